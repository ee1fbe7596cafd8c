"""The job queue with WARPDESK_DURABILITY=replicated: it answers nothing that a failover of Redis could take back.

What the API tells its callers can not be taken back, nor can what a worker does in the store: it deletes the results of
attempts that are over, and secret inputs of jobs that have ended. A failover that took a claim back would also give the
number of its attempt, and so the place of its result, to another worker.
"""

from collections.abc import Callable, Sequence
from typing import Any

from redis import Redis
from redis.retry import Retry

from warpdesk.models import State
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import Event, OwnersEvent, Provenance
from warpdesk_server.workers.queue.records import (
    ALL_JOBS,
    Batch,
    Claim,
    Ending,
    Enqueued,
    Finished,
    Held,
    JobFilter,
    JobRecord,
    NewJob,
    Reaped,
)
from warpdesk_server.workers.queue.replication import Replicated


class ReplicatedJobs(JobQueue):
    """The job queue whose changes, claims and ends of jobs are answered once replicas have them on the disk.

    What is not final is read at once: a failover may take a job back from running to queued. What must stay is read
    again with confirmation. So most questions cost no write.
    """

    def __init__(
        self,
        connection: Redis,
        mac_of: Callable[[str], str] | None,
        replicas: int,
        seconds: float,
        retry: Retry | None = None,
    ) -> None:
        super().__init__(connection, mac_of)
        self._confirmed = JobQueue(Replicated(connection, replicas, seconds, retry), mac_of)

    # Changes.

    def enqueue_all(self, new: Sequence[NewJob], *arguments: Any, **options: Any) -> Enqueued:
        return self._confirmed.enqueue_all(new, *arguments, **options)

    def cancel(self, job_id: str, *, by_worker: bool = False) -> Any:
        return self._confirmed.cancel(job_id, by_worker=by_worker)

    def erase(self, job_id: str) -> tuple[str | None, tuple[str, ...]]:
        return self._confirmed.erase(job_id)

    def forbid(self, owner: str, array_id: str) -> bool:
        return self._confirmed.forbid(owner, array_id)

    def rerun(self, job_id: str) -> bool:
        return self._confirmed.rerun(job_id)

    def pause(self, job_id: str) -> State:
        return self._confirmed.pause(job_id)

    def resume(self, job_id: str) -> State:
        return self._confirmed.resume(job_id)

    def suspend(self, *, suspended: bool) -> None:
        self._confirmed.suspend(suspended=suspended)

    # What may show the end of a job, or that there is one.

    def get(self, job_id: str) -> JobRecord | None:
        record = super().get(job_id)
        return record if _open(record) else self._confirmed.get(job_id)

    def records(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        records = super().records(job_ids)
        return records if all(map(_open, records)) else self._confirmed.records(job_ids)

    def may_run(self, job_ids: Sequence[str]) -> list[bool]:
        """Of what may not run any more checkpoints are deleted."""
        found = super().may_run(job_ids)
        return found if all(found) else self._confirmed.may_run(job_ids)

    def published_record(self, job_id: str, record: str) -> JobRecord | None:  # noqa: ARG002
        """None: what is published is not confirmed, and the job has to be read."""
        return None

    def jobs(
        self, owner: str, limit: int, before: str | None = None, wanted: JobFilter = ALL_JOBS
    ) -> tuple[Sequence[JobRecord], str | None]:
        return self._confirmed.jobs(owner, limit, before, wanted)

    def dead_letters(self, limit: int, before: str | None = None) -> Sequence[JobRecord]:
        return self._confirmed.dead_letters(limit, before)

    def events(self, job_id: str, after: int = 0) -> list[Event]:
        return self._confirmed.events(job_id, after) if super().events(job_id, after) else []

    def begin_to_follow(self, owner: str) -> int:
        return self._confirmed.begin_to_follow(owner)

    def events_of(self, owner: str, after: int, limit: int) -> list[OwnersEvent]:
        return self._confirmed.events_of(owner, after, limit) if super().events_of(owner, after, 1) else []

    def replay(self, owner: str, key: str) -> tuple[str, str] | None:
        return None if super().replay(owner, key) is None else self._confirmed.replay(owner, key)

    # A worker's.

    def claim(self, claim: Claim) -> Batch | None:
        """The same claim again has the same answer: one that found something is made again with confirmation."""
        return None if super().claim(claim) is None else self._confirmed.claim(claim)

    def claim_shard(self, claim: Claim, job: Held, patience: float, **more: Any) -> Batch | list[Provenance] | None:
        """Without an end to commit it is asked as a claim is: the lead waits by asking again and again."""
        if more.get("ended") is None and super().claim_shard(claim, job, patience, **more) is None:
            return None
        return self._confirmed.claim_shard(claim, job, patience, **more)

    def handed(self, claim: Claim, message: bytes) -> Batch | None:  # noqa: ARG002 (it is not confirmed)
        return self._confirmed.claim(claim)

    def leave(self, claim: Claim) -> Batch | None:
        return self._confirmed.leave(claim)

    def finish(self, endings: Sequence[Ending], worker: str = "", *, then: Claim | None = None) -> Finished:
        return self._confirmed.finish(endings, worker, then=then)

    def step(self, held: Held, step: int, *report: Any, **more: Any) -> bool:
        return self._confirmed.step(held, step, *report, **more)

    def reap(self, dead: Sequence[str], **options: Any) -> list[Reaped]:
        return self._confirmed.reap(dead, **options)


def _open(record: JobRecord | None) -> bool:
    return record is None or not record.state.final
