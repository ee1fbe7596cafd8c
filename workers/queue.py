"""The job record in Redis and its transitions, each one atomic script: enqueue, start, finish, retry, cancel, erase."""

from collections.abc import Sequence
from dataclasses import dataclass

from redis import Redis

from workers.protocol import Failed, JobRequest, Provenance, State, Succeeded, WorkerReport


@dataclass(frozen=True)
class JobRecord:
    """A job as Redis knows it. Times are Unix seconds by Redis' clock."""

    request: JobRequest
    state: State
    attempt: int
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    progress: float | None = None
    result: str | None = None  # name in the store
    result_expires_at: float | None = None
    erased: bool = False
    error: Failed | None = None
    provenance: Provenance | None = None


def connect(url: str) -> Redis:
    """A client with explicit time-outs (redis-py 8 gives every blocking command 5 seconds otherwise)."""
    raise NotImplementedError


class JobQueue:
    """Jobs of every owner. Synchronous: the API calls it in threads."""

    def __init__(self, connection: Redis) -> None: ...

    def enqueue(self, request: JobRequest) -> None: ...

    def get(self, job_id: str) -> JobRecord | None:
        """The record; a queued job whose deadline has passed is turned into `expired` first."""

    def position(self, job_id: str) -> int | None:
        """Jobs ahead of a queued job (0 = next), None when it is not queued."""

    def cancel(self, job_id: str) -> State:
        """Queued: canceled at once, never runs. Running: canceled at once, its worker is told to stop it. Final: unchanged."""

    def erase(self, job_id: str) -> tuple[str | None, tuple[str, ...]]:
        """Cancel if live, then forget parameters, inputs and result; returns the result's name and the array ids that no
        other live job of the owner uses, for the store to delete."""

    def jobs(self, owner: str, limit: int, before: str | None = None) -> Sequence[JobRecord]:
        """The owner's jobs, newest first, older than the id `before`."""

    def in_use(self, owner: str, array_id: str) -> bool:
        """Whether a live job of the owner reads the array."""

    def workers(self) -> Sequence[WorkerReport]: ...

    def length(self) -> int: ...

    # Called by a worker's parent process.

    def start(self, job_id: str) -> tuple[JobRequest, int] | None:
        """Raise the attempt (the fence) and mark the job running; None when it is final, canceled or past its deadline."""

    def progress(self, job_id: str, attempt: int, fraction: float) -> None: ...

    def finish(self, job_id: str, attempt: int, outcome: Succeeded | Failed) -> bool:
        """Make one outcome visible. False when the attempt is stale or the job is already final: the caller deletes what
        the attempt wrote, unread."""

    def retry(self, job_id: str, attempt: int) -> bool:
        """Put a job whose worker died back at the front of the queue; False when it is stale, final or out of attempts."""

    def report(self, report: WorkerReport, ttl: float) -> None: ...
