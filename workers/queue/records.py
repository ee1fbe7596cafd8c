"""The data of the queue: job records, attempts, claims and the ways in which an attempt ends."""

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, nan
from typing import Literal, NamedTuple

from warpdesk.models import State
from warpdesk_server.workers.queue.protocol import (
    MAX_ATTEMPTS,
    Failed,
    JobRequest,
    Kind,
    Provenance,
    Succeeded,
    digest_of_claim,
    kinds_taken,
)

LEASE_SECONDS = 15.0
RENEW_SECONDS = 5.0

Finish = Literal["done", "queued", "dead", "stale"]

# The error of a job that was claimed too often, where no better one is given.
GIVEN_UP = Failed(
    code="worker-died", message=f"{MAX_ATTEMPTS} workers took the job and were gone or gave it back", retryable=True
)


class QueueFull(Exception):
    """Raised on enqueueing if the queue in Redis has as many jobs as it may have."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} jobs are waiting")
        self.waiting = waiting


class QuotaReached(Exception):
    """Raised on enqueueing if the owner has as many live jobs in the queue as it may have.

    `free` places are left where the queue is shared.
    """

    def __init__(self, live: int, free: int | None = None) -> None:
        super().__init__(f"{live} jobs of the owner are live")
        self.live = live
        self.free = free


class TasksReached(Exception):
    """Raised on enqueueing if the owner has as many live tasks in the queue as it may have."""

    def __init__(self, live: int) -> None:
        super().__init__(f"{live} tasks of the owner are live")
        self.live = live


class Stale(Exception):
    """Raised for an attempt that is not the one that runs any more: its worker has lost the job."""

    def __init__(self, job: "Held") -> None:
        super().__init__(f"{job.id} attempt {job.attempt} does not run any more")


class KeyReused(Exception):
    """Raised on enqueueing if the idempotency key belongs to a job of a different request."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"the key belongs to {job_id}")
        self.job_id = job_id


class InputsGone(Exception):
    """Raised on enqueueing if input arrays of a job are deleted, or about to be."""

    def __init__(self, *arrays: str) -> None:
        super().__init__(", ".join(arrays))
        self.arrays = arrays


@dataclass(frozen=True)
class IdempotencyKey:
    """Digests in Redis of an idempotency key and of the request that was sent with it."""

    key: str
    fingerprint: str


@dataclass(frozen=True)
class Bounds:
    """The most jobs that may wait in the queue, and that an owner may have live, for one more to be enqueued.

    Where the queue is shared, an owner may have as many live jobs as there are free places, so that another owner who
    comes later finds some.
    """

    waiting: int
    of_owner: int
    shared: bool = False
    tasks: int | None = None  # the most live tasks of an owner, None for no limit


class NewJob(NamedTuple):
    """A job that is about to be enqueued, as `JobQueue.enqueue` takes it."""

    request: JobRequest
    same: str | None = None
    attached: str = ""


@dataclass(frozen=True)
class Enqueued:
    job_id: str  # of several the first one's
    replayed: bool = False  # the idempotency key's earlier job


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
    strikes: int = 0  # attempts in which the job ended its worker's process
    dead: bool = False  # a dead letter: given up, and kept for an operator to look at and run again
    error: Failed | None = None
    provenance: Provenance | None = None
    step: int | None = None  # of a task: the last one whose state is in a checkpoint
    pausing: bool = False  # its owner pauses the task, and its worker has not done so yet
    closed: bool = False  # the API canceled or erased it, or it is past its deadline; set by `JobQueue.checked` alone
    claim: str = ""  # the latest claimed attempt, and the digest of that claim's token

    def is_held_by(self, token: str) -> bool:
        """Whether the attempt in the job record was claimed with this token."""
        expected = f"{self.attempt} {digest_of_claim(token)}"
        return hmac.compare_digest(self.claim.encode(), expected.encode())


@dataclass(frozen=True)
class JobFilter:
    """Which jobs of an owner are listed: those in one of some states (all for none), of an operation, and submitted
    from a time on until before another. Times are Unix seconds, by the clock of the API that took the job."""

    states: frozenset[State] = frozenset()
    operation: str | None = None
    since: float | None = None
    until: float | None = None

    def takes(self, record: "JobRecord") -> bool:
        """Whether a job record has the state and the operation that are asked for."""
        return (not self.states or record.state in self.states) and self.operation in (None, record.request.operation)

    @property
    def narrow(self) -> bool:
        """Whether records are left out that lie in the range of times."""
        return bool(self.states) or self.operation is not None

    @property
    def ids(self) -> tuple[str, str]:
        """The bounds of job ids by submission, as ZREVRANGEBYLEX takes them: the highest and the lowest."""
        first, end = (None if at is None else f"job_{max(0, ceil(at * 1000)):012x}" for at in (self.since, self.until))
        return "+" if end is None else f"({end}", "-" if first is None else f"[{first}"


ALL_JOBS = JobFilter()


@dataclass(frozen=True)
class Held:
    """An attempt that a worker has claimed from the queue, identified by the job's id and the attempt.

    The claim's token proves it.
    """

    request: JobRequest = field(compare=False)
    attempt: int
    strikes: int = field(default=0, compare=False)
    ahead: float | None = field(default=None, compare=False)  # seconds that time.monotonic() is ahead of Redis' clock
    submitted_at: float = field(default=nan, compare=False)  # by Redis' clock; NaN where no times are counted
    started_at: float = field(default=nan, compare=False)
    token: str = field(default="", compare=False, repr=False)  # of its claim
    attached: str = field(default="", compare=False, repr=False)  # its attached inputs, as JSON
    checkpoint: str = field(default="", compare=False)  # of a task: the name of its latest checkpoint
    # Why a worker without a GPU has it (`Claim.gpus`): seconds that it would have waited for one, -1 if nobody knows.
    gpu_wait: float | None = field(default=None, compare=False)
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.request.id)

    @property
    def fence(self) -> tuple[str, int, str]:
        """The fence of a claimed attempt: its job, its number and its claim, as Redis compares them."""
        return self.id, self.attempt, digest_of_claim(self.token)

    @property
    def due(self) -> float | None:
        """The deadline in a claimed job's record, by time.monotonic().

        Records have it by Redis' clock, and this host's may differ.
        """
        if self.request.deadline is None or self.ahead is None:
            return None
        return self.request.deadline + self.ahead


@dataclass(frozen=True)
class Batch:
    """Jobs claimed from the queue for one launch, and why there are no more of them: "full", "bytes" or "drained"."""

    jobs: tuple[Held, ...]
    reason: str


class Follower(NamedTuple):
    """A job that was answered with the result of an identical one. Times are by Redis' clock."""

    queue: str
    state: str
    submitted_at: float
    started_at: float  # of the identical one


class Renewed(NamedTuple):
    """Redis' answer to a renewal: attempts that are no longer the worker's, and those whose tasks it shall pause."""

    lost: list[Held]
    pausing: list[Held]


class Finished(NamedTuple):
    """Redis' answer to finish: how each attempt ended, the batch claimed with it, the time by its clock, followers."""

    how: list[Finish]
    then: Batch | None
    at: float
    followers: list[Follower]


@dataclass(frozen=True)
class Claim:
    """A worker's request to the queue for jobs.

    For a batch that waits for company, `only` is its key, with the most it may take.

    With `waits`, a claim that finds nothing stays for two seconds, or until the worker ends it by `leave`. In that time
    the next job is handed to the worker as it is enqueued, in the list `handed_key`. The same claim again stays for two
    seconds more, or answers what was handed.
    """

    worker: str
    process: str = ""  # workers.process.identity of the worker
    gpu: bool = False  # also those that insist on a GPU
    takes: Literal["all", "quick", "long", "tasks"] = "all"
    waits: bool = False
    # Workers with a GPU: jobs that are predicted to end sooner there are left to them.
    gpus: tuple[str, ...] = ()
    tasks: tuple[str, ...] | None = None  # of a worker of tasks: those that it can run; None for all
    only: str = ""
    items: int = 0
    bytes: int = 0
    # Only the worker has it; Redis has its digest. It proves to the API who made the claim.
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)

    @cached_property
    def digest(self) -> str:
        return digest_of_claim(self.token)

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of work in the queue that the worker takes."""
        return kinds_taken(self.takes, gpu=self.gpu)


@dataclass(frozen=True)
class Ending:
    """The end of a job's attempt, as the worker reports it to the queue.

    With an outcome, the outcome is committed. Without one, `how` says what happens:

        expired    the job's deadline has passed
        returned   it goes back to the queue for `reason`, which is no fault of the job
        apart      the same, and it may be the job's fault: it runs alone next time
        struck     the same, and it is the job's fault
        retry      it goes back after the next of `delays`, since the fault may pass

    `failure` is the job's error if it is given up.
    """

    job: Held
    outcome: Succeeded | Failed | None = None
    how: Literal["done", "expired", "returned", "apart", "struck", "retry"] = "done"
    reason: str = ""
    failure: Failed = GIVEN_UP
    delays: Sequence[float] = ()
    stopped: bool = False  # a task that was told to stop, by its owner's pause or because its worker does
    kept_off: str = ""  # the reason why the CPU answered a job that wanted a GPU, to be counted

    @property
    def succeeded(self) -> bool:
        return isinstance(self.outcome, Succeeded)


@dataclass(frozen=True)
class Backlog:
    """The jobs of one priority in Redis: in its lists, running, and in a backoff.

    Followers of an identical job are in none.
    """

    queued: int
    running: int
    delayed: int
    oldest: float | None  # submission of the oldest job in a list, in Unix seconds by Redis' clock


@dataclass(frozen=True)
class Reaped:
    """An attempt that was taken from a worker that is gone, or a job that expired in the queue ("gone")."""

    request: JobRequest
    attempt: int
    how: str  # "queued", "dead" or "gone"
