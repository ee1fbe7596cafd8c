"""The data of the queue: job records, attempts, claims and the ways in which an attempt ends."""

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import nan
from typing import Literal, NamedTuple

from warpdesk_server.workers.queue.protocol import (
    MAX_ATTEMPTS,
    Failed,
    JobRequest,
    Provenance,
    State,
    Succeeded,
    digest_of_claim,
)

LEASE_SECONDS = 15.0
RENEW_SECONDS = 5.0

Finish = Literal["done", "queued", "dead", "stale"]

# What a job ends with that was claimed too often, where nothing better is known.
GIVEN_UP = Failed(
    code="worker-died", message=f"{MAX_ATTEMPTS} workers took the job and were gone or gave it back", retryable=True
)


class QueueFull(Exception):
    """So many jobs wait already."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} jobs are waiting")
        self.waiting = waiting


class QuotaReached(Exception):
    """The owner has so many live jobs already; `free` places of the queue, where it has its share of them."""

    def __init__(self, live: int, free: int | None = None) -> None:
        super().__init__(f"{live} jobs of the owner are live")
        self.live = live
        self.free = free


class KeyReused(Exception):
    """The idempotency key belongs to a job that was asked for otherwise."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"the key belongs to {job_id}")
        self.job_id = job_id


class InputsGone(Exception):
    """Arrays that are being deleted, or were."""

    def __init__(self, *arrays: str) -> None:
        super().__init__(", ".join(arrays))
        self.arrays = arrays


@dataclass(frozen=True)
class IdempotencyKey:
    """Digests of the key and of what was sent with it."""

    key: str
    fingerprint: str


@dataclass(frozen=True)
class Bounds:
    """The most jobs that may wait, and that the owner may have live, before this one. Where the queue is shared, an
    owner may have as many live as there are free places, so that one who comes later finds some."""

    waiting: int
    of_owner: int
    shared: bool = False


@dataclass(frozen=True)
class Enqueued:
    job_id: str
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
    strikes: int = 0  # attempts the job itself ended its worker with
    dead: bool = False  # given up, and kept to be looked at and run again
    error: Failed | None = None
    provenance: Provenance | None = None
    closed: bool = False  # the API canceled or erased it, or it is past its deadline; told by `JobQueue.checked` alone
    claim: str = ""  # the attempt that was claimed last, and the digest of that claim's token

    def is_held_by(self, token: str) -> bool:
        """Whether the attempt was claimed by who has this token."""
        expected = f"{self.attempt} {digest_of_claim(token)}"
        return hmac.compare_digest(self.claim.encode(), expected.encode())


@dataclass(frozen=True)
class Held:
    """An attempt that a worker has claimed. The job's id and the attempt tell it from others; that it is the one of
    this claim is shown by the claim's token."""

    request: JobRequest = field(compare=False)
    attempt: int
    strikes: int = field(default=0, compare=False)
    ahead: float | None = field(default=None, compare=False)  # of time.monotonic() before Redis' clock
    submitted_at: float = field(default=nan, compare=False)  # by Redis' clock; NaN where no times are counted
    started_at: float = field(default=nan, compare=False)
    token: str = field(default="", compare=False, repr=False)  # of its claim
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.request.id)

    @property
    def fence(self) -> tuple[str, int, str]:
        """What tells Redis which attempt of which claim it is."""
        return self.id, self.attempt, digest_of_claim(self.token)

    @property
    def due(self) -> float | None:
        """Its deadline by time.monotonic(): deadlines are Redis' time, which this host's need not be."""
        if self.request.deadline is None or self.ahead is None:
            return None
        return self.request.deadline + self.ahead


@dataclass(frozen=True)
class Batch:
    """Jobs that run in one launch, and why there are no more: "full", "bytes" or "drained"."""

    jobs: tuple[Held, ...]
    reason: str


class Followed(NamedTuple):
    """A job that an identical one was computed for, with times by Redis' clock; none where no times are counted."""

    queue: str
    state: str
    submitted_at: float
    started_at: float  # of the other one


class Finished(NamedTuple):
    """How each attempt ended, what was claimed with that, when it was, by Redis' clock, and for whom else."""

    how: list[Finish]
    then: Batch | None
    at: float
    followed: list[Followed]


@dataclass(frozen=True)
class Claim:
    """A worker's wish for jobs. Of a batch that waits for company, `only` is the key and the rest what it may take.

    With `waits`, a claim that finds nothing holds for two seconds, or until the worker takes it back by `leave`: the
    next job is handed to it in the step in which it is enqueued, by the list `handed_key`. The same claim again holds
    for two seconds more, or answers what it was handed.
    """

    worker: str
    process: str = ""  # workers.process.identity of the worker
    gpu: bool = False  # also those that insist on a GPU
    waits: bool = False
    only: str = ""
    items: int = 0
    bytes: int = 0
    # Nobody but the worker has it, and Redis its digest: who shows it to the API has made the claim.
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)

    @cached_property
    def digest(self) -> str:
        return digest_of_claim(self.token)


@dataclass(frozen=True)
class Ending:
    """How an attempt ends.

    An outcome is committed. Without one the job's deadline has passed (`how` "expired"), or the job goes back to the
    queue for `reason`: "returned" where that is no fault of its own, "apart" where it may be, so that it runs alone
    next time, "struck" where it is, "retry" after the next of `delays` for a fault that may pass. `failure` is what it
    ends with if it is given up.
    """

    job: Held
    outcome: Succeeded | Failed | None = None
    how: Literal["done", "expired", "returned", "apart", "struck", "retry"] = "done"
    reason: str = ""
    failure: Failed = GIVEN_UP
    delays: Sequence[float] = ()
    kept_off: str = ""  # of an answer of the CPU that was wanted from a GPU: what kept it off, to be counted

    @property
    def succeeded(self) -> bool:
        return isinstance(self.outcome, Succeeded)


@dataclass(frozen=True)
class Backlog:
    """Jobs of one priority: those in its lists, those that run, those that wait out a backoff. Jobs that an identical
    one computes for are in none of them."""

    queued: int
    running: int
    delayed: int
    oldest: float | None  # Unix seconds by Redis' clock: the submission of the first in a list


@dataclass(frozen=True)
class Reaped:
    """An attempt that was ended because its worker is gone, or a job that expired in the queue ("gone")."""

    request: JobRequest
    attempt: int
    how: str  # "queued", "dead" or "gone"
