"""The job queue for coroutines: every call in a thread, and within a time."""

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

log = logging.getLogger("warpdesk.api")

T = TypeVar("T")

# Redis, or the disk of a submission, may hang rather than refuse; then this many threads are stuck at most, and
# requests still answer in time.
THREADS = 32


class Queue:
    """`await queue(lambda jobs: jobs.get(id))`: 503 when Redis does not answer within `patience` seconds, or no thread
    is free to ask it for so long."""

    def __init__(self, url: str, patience: float, mac_of: Callable[[str], str]) -> None:
        self._connection = connect(url, timeout=patience)
        self._patience = patience
        self._threads = anyio.CapacityLimiter(THREADS)
        self.jobs = JobQueue(self._connection, mac_of)
        self.usable = True  # as far as the last call knows

    async def __call__(self, use: Callable[[JobQueue], T]) -> T:
        return await self.after(_nothing, use)

    async def after(
        self,
        prepare: Callable[[], None],
        use: Callable[[JobQueue], T],
        own: Callable[[Callable[[], T]], Awaitable[T]] | None = None,
    ) -> T:
        """Prepare, and use Redis, in one go: each change of thread takes as long as a small submission's check.

        What is prepared may wait for a disk: the patience with Redis begins when it is asked. What may wait for more
        has threads of its own, and the caller's patience with them.
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
            except (RedisError, ConnectionError, TimeoutError) as error:  # another OSError is of a disk
                raise _Unusable(error) from error

        try:
            with patience:
                if own is not None:
                    used = await own(call)
                else:
                    used = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads)
        except _Silent:
            if not patience.began:  # it says nothing of Redis
                sentence = f"None of {THREADS} threads was free to ask Redis within {self._patience:g} seconds"
                raise Refusal("queue-unavailable", sentence, headers={"Retry-After": "1"}) from None
            sentence = reason = f"Redis did not answer within {self._patience:g} seconds"
        except _Unusable as unusable:
            sentence = f"Redis cannot be used: {type(unusable.reason).__name__}"
            reason = f"{sentence}: {unusable.reason}"
        else:
            if not self.usable:
                self.usable = True
                log.warning("Redis can be used again")
            return used
        if self.usable:  # one line, not one for each request until it is back
            self.usable = False
            log.warning("%s", reason)
        raise Refusal("queue-unavailable", sentence, headers={"Retry-After": "1"})

    async def writable(self) -> None:
        """Raise the same refusal unless Redis takes a write."""
        await self(lambda _: self._connection.set(PROBE, b"", ex=PROBE_SECONDS))

    def close(self) -> None:
        self._connection.close()


def _nothing() -> None:
    """What needs no preparation."""


class _Unusable(Exception):
    """Why Redis could not be used, told apart from what went wrong before it was asked."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _Silent(Exception):
    """No thread, or Redis, answered in time."""


class _Patience:
    """Gives up what is awaited within it once a thread or Redis was waited for too long. Used once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._scope = anyio.CancelScope()
        self._timer: asyncio.TimerHandle | None = None
        self._since: float | None = time.monotonic()  # it waits for a thread
        self.began = False  # to wait for Redis

    def begin(self) -> None:
        """It waits for Redis from now on. From any thread."""
        self._since, self.began = time.monotonic(), True

    def pause(self) -> None:
        """What is done until it begins again does not count."""
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
        if self._timer is not None:  # else it was over before it began
            self._timer.cancel()
        if self._scope.__exit__(kind, error, trace):
            raise _Silent
