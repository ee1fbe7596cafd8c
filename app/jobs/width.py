"""The number of shards in which workers compute a submitted job."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Literal

from warpdesk_server.app.jobs.admission import takers_of_long_jobs
from warpdesk_server.app.jobs.operations import Checked
from warpdesk_server.app.kit.errors import refuse_at
from warpdesk_server.kernels.operation import Operation
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.reports import WorkerReport


def shards(checked: Checked, width: int | Literal["auto"], idle: int) -> int:
    """In how many parts workers compute a submitted job, if so many devices are idle. Refuses a width for a job that
    is computed as a whole."""
    operation = checked.operation
    if width == 1 or (width == "auto" and idle < 2):
        return 1
    if width == "auto":
        return operation.width(checked.params, checked.infos, idle) if isinstance(operation, Operation) else 1
    if not isinstance(operation, Operation) or operation.sharding is None:
        why = f"{operation.name} is always computed by one worker"
    elif (sharding := operation.shards(checked.params, checked.infos)) is None:
        why = f"this job of {operation.name} has one part, by its size or its parameters"
    else:
        return min(width, sharding.units)
    raise refuse_at("invalid-request", "/width", f"width {width}: {why}; leave it out, or give 1")


def may_be_cut(checked: Checked, width: int | Literal["auto"]) -> bool:
    """Whether the number of a submitted job's shards depends on which workers are idle."""
    return width == "auto" and isinstance(checked.operation, Operation) and checked.operation.sharding is not None


def idle(jobs: JobQueue, waiting: int) -> int:
    """How many workers could compute a long job and its shards now, while so many others wait. Asks Redis."""
    workers = jobs.workers()
    return max(0, idle_for_long(workers, jobs.busy([worker.name for worker in workers])) - waiting)


def idle_for_long(workers: Sequence[WorkerReport], busy: Collection[str]) -> int:
    """How many of the workers could compute something long side by side: each on a GPU of its own, or, where no GPU is
    idle, on CPU cores that no other one of them takes. Beside a GPU a CPU would be waited for.

    `busy` are those that have jobs now, by their names.
    """
    at_work = [worker for worker in workers if worker.takes in ("long", "all") and worker.name in busy]
    places = {(worker.host, process) for worker in at_work for process in (worker.pid, worker.started_by)}
    gpus, shares = 0, defaultdict[str, list[float]](list)
    for worker in takers_of_long_jobs(workers):
        if (worker.host, worker.pid) in places or worker.device is None:
            continue
        if worker.device.backend == "gpu":
            gpus += 1
        else:
            shares[worker.host].append(worker.cpu_share)
    return gpus or sum(min(len(parts), max(1, round(1 / max(parts)))) for parts in shares.values())
