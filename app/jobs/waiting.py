"""Why a task waits, from what the workers report of the tasks that they can run."""

from collections.abc import Sequence

from warpdesk_server.workers.queue.reports import WorkerReport


def waiting_reason(task: str, workers: Sequence[WorkerReport]) -> str | None:
    """The sentence with which a job says why no worker runs its task now; None where one is about to.

    A worker that starts a process for tasks reports what it last heard from that one, and nothing before it ran.
    """
    takers = [worker for worker in workers if worker.takes in ("tasks", "both")]
    if not takers:
        return "no worker takes tasks"
    able = [worker for worker in takers if worker.tasks is None or worker.tasks.get(task) == ()]
    if not able:
        lacks = sorted({f"on {worker.host} {_lack(task, worker)}" for worker in takers})
        return f"no worker can run {task}: {'; '.join(lacks)}"
    running = [worker for worker in able if worker.takes == "tasks"]
    if running and all(worker.state == "busy" for worker in running):
        return f"each worker that can run {task} is busy with a task"
    return None


def _lack(task: str, worker: WorkerReport) -> str:
    """What a job is told that a worker lacks for its task."""
    missing = (worker.tasks or {}).get(task)
    return "it is not known" if missing is None else f"it needs {', '.join(missing)}, which the environment lacks"
