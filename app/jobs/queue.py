"""The job queue for coroutines: every call of Redis runs in a thread and has a time limit."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeVar

import anyio
import anyio.to_thread
from redis.exceptions import RedisError

from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.keys import PROBE, PROBE_SECONDS
from warpdesk_server.workers.queue.replicated_jobs import ReplicatedJobs
from warpdesk_server.workers.queue.replication import NotReplicated, Replicated

log = logging.getLogger("warpdesk.api")

T = TypeVar("T")

# Redis, or the disk of a submission, may hang instead of failing. Then at most this many threads are stuck, and
# requests are still answered in time.
THREADS = 32


class Queue:
    """The API's job queue as an async callable: `await queue(lambda jobs: jobs.get(id))`.

    Raises a 503 if Redis does not answer within `patience` seconds, or no thread becomes free in that time.
    """

    def __init__(self, url: str, patience: float, mac_of: Callable[[str], str], replicas: int = 0) -> None:
        """`replicas`: how many of Redis must have on the disk what is told; 0: none. They have `patience` too."""
        self._patience = patience if not replicas else 2 * patience
        self._connection = self._writer = connect(url, timeout=self._patience)
        self._threads = anyio.CapacityLimiter(THREADS)
        self.replicated = replicas > 0
        self.jobs = JobQueue(self._connection, mac_of)
        if replicas:
            self.jobs = ReplicatedJobs(self._connection, mac_of, replicas, patience)
            self._writer = Replicated(self._connection, replicas, patience)
        self.usable = True  # as far as the last call knows

    async def __call__(self, use: Callable[[JobQueue], T]) -> T:
        return await self.after(_nothing, use)

    async def after(
        self,
        prepare: Callable[[], None],
        use: Callable[[JobQueue], T],
        own: Callable[[Callable[[], T]], Awaitable[T]] | None = None,
    ) -> T:
        """Call `prepare` and then use the API's job queue, both in one thread.

        One thread for both, because a change of thread takes as long as the check of a small submission. `prepare` may
        wait for a disk: the time limit of Redis begins after it. Work that may wait longer runs in threads of its own,
        through `own`, and the caller limits its time.
        """
        patience = _Patience(self._patience)
        if own is not None:
            patience.pause()

        def call() -> T:
            patience.pause()
            prepare()
            patience.begin()
            try:
                return use(self.jobs)
            except NotReplicated:
                raise
            except (RedisError, ConnectionError, TimeoutError) as error:  # another OSError is of a disk
                raise _Unusable(error) from error

        try:
            with patience:
                if own is not None:
                    used = await own(call)
                else:
                    used = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads)
        except _Silent:
            if not patience.began:  # Redis was not asked yet
                sentence = f"None of {THREADS} threads was free to ask Redis within {self._patience:g} seconds"
                raise Refusal("queue-unavailable", sentence, headers={"Retry-After": "1"}) from None
            sentence = reason = f"Redis did not answer within {self._patience:g} seconds"
        except NotReplicated as error:  # Redis is there
            sentence = f"What was asked may have been done, and a failover could undo it: {error}"
            raise Refusal("not-replicated", sentence, headers={"Retry-After": "1"}) from None
        except _Unusable as unusable:
            sentence = f"Redis cannot be used: {type(unusable.reason).__name__}"
            reason = f"{sentence}: {unusable.reason}"
        else:
            if not self.usable:
                self.usable = True
                log.warning("Redis can be used again")
            return used
        if self.usable:  # log the first failure only, not each request's until Redis is back
            self.usable = False
            log.warning("%s", reason)
        raise Refusal("queue-unavailable", sentence, headers={"Retry-After": "1"})

    async def writable(self) -> None:
        """Raise the API's 503 of an unusable job queue unless Redis accepts a write, and replicas confirm it where they
        have to."""
        await self(lambda _: self._writer.set(PROBE, b"", ex=PROBE_SECONDS))

    def close(self) -> None:
        self._connection.close()


def _nothing() -> None:
    """The empty preparation of an API call that uses the job queue alone."""


class _Unusable(Exception):
    """Raised in the API if the job queue's Redis cannot be used. Apart from errors of the preparation, which may
    have the same type."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _Silent(Exception):
    """Raised in the API's call of the job queue if no thread became free, or Redis did not answer, in time."""


class _Patience:
    """The time limit of one API call of the job queue: it cancels the block once a thread or Redis took too long.
    For one use."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._scope = anyio.CancelScope()
        self._timer: asyncio.TimerHandle | None = None
        self._since: float | None = time.monotonic()  # start of the wait, for a thread at first; None while paused
        self.began = False  # whether the wait for Redis began

    def begin(self) -> None:
        """Start the time limit of Redis in an API call of the job queue. May be called in any thread."""
        self._since, self.began = time.monotonic(), True

    def pause(self) -> None:
        """Stop the time limit of the API's call of the job queue until `begin` starts it again."""
        self._since = None

    def _look(self) -> None:
        since = self._since
        left = self._seconds if since is None else since + self._seconds - time.monotonic()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left, self._look)
        else:
            self._scope.cancel()

    def __enter__(self) -> None:
        self._look()
        self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:  # None: the time was over at once
            self._timer.cancel()
        if self._scope.__exit__(kind, error, trace):
            raise _Silent
