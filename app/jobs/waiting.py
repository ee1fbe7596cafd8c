"""Why a task waits, from what the workers report of the tasks that they can run."""

from collections.abc import Sequence

from warpdesk_server.workers.queue.reports import WorkerReport


def waiting_reason(task: str, workers: Sequence[WorkerReport], *, on_gpu: bool = False) -> str | None:
    """The sentence with which a job says why no worker runs its task now; None where one is about to.

    A worker that starts a process for tasks reports what it last heard from that one, and nothing before it ran.
    """
    running = [worker for worker in workers if worker.takes == "tasks"]
    have_one = {(worker.host, worker.started_by) for worker in running}
    starting = [each for each in workers if each.takes == "both" and (each.host, each.pid) not in have_one]
    takers = [*running, *starting]
    if not takers:
        return "no worker takes tasks"
    if on_gpu:
        takers = [worker for worker in takers if "task-gpu" in worker.kinds]
        if not takers:
            return "it asks for a GPU, and no worker that takes tasks has one"
    lacks = {id(worker): _lack(task, worker) for worker in takers}
    able = [worker for worker in takers if lacks[id(worker)] is None]
    if not able:
        reasons = sorted({f"on {worker.host} {lacks[id(worker)]}" for worker in takers})
        return f"no worker can run {task}: {'; '.join(reasons)}"
    if all(worker.takes == "tasks" and worker.state == "busy" for worker in able):
        return f"each worker that can run {task} is busy with a task"
    return None


def _lack(task: str, worker: WorkerReport) -> str | None:
    """What a job is told that a worker lacks for its task; None if it lacks nothing, or nobody knows yet."""
    if worker.takes == "both" and worker.task_fault is not None:
        return worker.task_fault
    if worker.tasks is None or worker.tasks.get(task) == ():
        return None
    missing = worker.tasks.get(task)
    return "it is not known" if missing is None else f"it needs {', '.join(missing)}, which the environment lacks"
