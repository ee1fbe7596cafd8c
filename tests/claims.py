"""Claim one certain job as a worker would, for tests that stand in for a worker."""

from typing import Any

from workers.queue import Claim, Ending, Held, JobQueue


def take(queue: JobQueue, job_id: str, worker: str = "a test", process: str = "", gpu: bool = True) -> Held:
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


def finish(queue: JobQueue, job: Held, outcome: Any = None, **how: Any) -> str:
    """End one attempt; how that went."""
    return queue.finish([Ending(job, outcome, **how)])[0][0]
