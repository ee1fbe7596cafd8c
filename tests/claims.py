"""Jobs by hand, and their claims, for tests that stand in for callers and workers."""

from collections.abc import Sequence
from typing import Any

from warpdesk_server.workers.queue.counts import Tally, note_endings
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import JobRequest, Provenance, Succeeded
from warpdesk_server.workers.queue.records import Batch, Claim, Ending, Held

ARRAY = "blake3:" + "a" * 64
OTHER = "blake3:" + "b" * 64


def request(number: int = 1, owner: str = "key_a", **fields: Any) -> JobRequest:
    """The job "job_0001", and so on."""
    values: dict[str, Any] = {
        "params": {"period": 14},
        "inputs": {"prices": ARRAY},
        "seed": 2**64 - 1,
        "timeout": 10.0,
        "result_ttl": 60.0,
        **fields,
    }
    return JobRequest(id=f"job_{number:04d}", owner=owner, operation="rsi", **values)


def claim(queue: JobQueue, worker: str = "w1", **wish: Any) -> list[str]:
    """The ids of what a worker gets."""
    batch = queue.claim(Claim(worker, **wish))
    return [] if batch is None else ids(batch)


def ids(batch: Batch) -> list[str]:
    return [job.id for job in batch.jobs]


def take(
    queue: JobQueue, job_id: str = "job_0001", worker: str = "a test", process: str = "", gpu: bool = True
) -> Held:
    """Claim until the job is among what was claimed; the others go back."""
    others: list[Held] = []
    while (batch := queue.claim(Claim(worker, process, gpu=gpu))) is not None:
        found = [job for job in batch.jobs if job.id == job_id]
        others += [job for job in batch.jobs if job.id != job_id]
        if found:
            if others:
                queue.finish([Ending(job, how="returned", reason="a test wanted another") for job in others])
            return found[0]
    raise AssertionError(f"{job_id} cannot be claimed")


def succeeded(job: Held) -> Succeeded:
    provenance = Provenance(backend="cpu", device="a CPU", attempt=job.attempt)
    return Succeeded(result=f"{job.id}.{job.attempt}", provenance=provenance)


def finish(queue: JobQueue, job: Held, outcome: Any = None, **how: Any) -> str:
    """End one attempt; how that went."""
    return queue.finish([Ending(job, outcome, **how)])[0][0]


def computed(queue: JobQueue, endings: Sequence[Ending]) -> None:
    """End attempts, and tell what only their worker knows, as it does a second later."""
    finished = queue.finish(endings)
    assert set(finished.how) == {"done"}
    tally = Tally()
    note_endings(tally, endings, finished.at, finished.followers)
    queue.count(tally)
