"""The job queue for coroutines: every call in a thread and within a time, and one subscription that wakes who waits."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
import anyio.to_thread
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError

from app.errors import Refusal
from workers.protocol import DONE_CHANNEL
from workers.queue import JobQueue, JobRecord, connect

log = logging.getLogger("warpdesk.api")

T = TypeVar("T")

# Redis may hang rather than refuse; then this many threads are stuck at most, and requests still answer in time.
THREADS = 32

# How long a waiter trusts the subscription alone. A message can be lost with its connection, a job cannot.
SAFETY_POLL = 5.0


class Queue:
    """`await queue(lambda jobs: jobs.get(id))`: 503 when Redis does not answer within `patience` seconds."""

    def __init__(self, url: str, patience: float) -> None:
        self._connection = connect(url, timeout=patience)
        self._patience = patience
        self._threads = anyio.CapacityLimiter(THREADS)
        self.jobs = JobQueue(self._connection)
        self._usable = True

    async def __call__(self, use: Callable[[JobQueue], T]) -> T:
        try:
            with anyio.fail_after(self._patience):
                used = await anyio.to_thread.run_sync(use, self.jobs, abandon_on_cancel=True, limiter=self._threads)
        except TimeoutError:
            sentence = reason = f"Redis did not answer within {self._patience:g} seconds"
        except (RedisError, OSError) as error:
            sentence = f"Redis cannot be used: {type(error).__name__}"
            reason = f"{sentence}: {error}"
        else:
            if not self._usable:
                self._usable = True
                log.warning("Redis can be used again")
            return used
        if self._usable:  # one line, not one for each request until it is back
            self._usable = False
            log.warning("%s", reason)
        raise Refusal("queue-unavailable", sentence, headers={"Retry-After": "1"})

    async def writable(self) -> None:
        """Raise the same refusal unless Redis takes a write."""
        await self(lambda _: self._connection.set("warpdesk:probe", b"", ex=10))

    def close(self) -> None:
        self._connection.close()


@dataclass(eq=False)
class Watch:
    """One waiter for one job."""

    woken: asyncio.Event = field(default_factory=asyncio.Event)
    record: JobRecord | None = None


class Completions:
    """Tells who waits for a job that it is done. One Redis connection for any number of waiters."""

    def __init__(self, url: str, queue: Queue, seen: Callable[[JobRecord], Awaitable[None]]) -> None:
        self._url = url
        self._queue = queue
        self._seen = seen
        self._watches: dict[str, set[Watch]] = {}
        self._released = False

    @contextmanager
    def watch(self, job_id: str) -> Iterator[Watch]:
        """Begin before the job is enqueued, so that no end is missed."""
        watch = Watch()
        self._watches.setdefault(job_id, set()).add(watch)
        try:
            yield watch
        finally:
            watches = self._watches[job_id]
            watches.discard(watch)
            if not watches:
                del self._watches[job_id]

    def release(self) -> None:
        """Answer everyone who waits with the job as it is: this process is about to end, the jobs go on."""
        self._released = True
        self._wake_all()

    async def until_done(self, watch: Watch, job_id: str, seconds: float) -> JobRecord | None:
        """The record once it is final, or as it is when the time is over; survives a Redis that goes and comes back."""
        record: JobRecord | None = None
        with anyio.move_on_after(seconds):
            while not self._released:
                with anyio.move_on_after(SAFETY_POLL):
                    await watch.woken.wait()
                watch.woken.clear()
                if watch.record is not None and watch.record.state.final:
                    return watch.record
                try:
                    record = await self._queue(lambda jobs: jobs.get(job_id))
                except Refusal:
                    continue
                if record is None or record.state.final:
                    return record
        try:
            return await self._queue(lambda jobs: jobs.get(job_id))
        except Refusal:
            return record

    async def listen(self) -> None:
        """Run for as long as the API does."""
        pause = 0.1
        while True:
            try:
                async with (
                    AsyncRedis.from_url(
                        self._url,
                        decode_responses=True,
                        socket_connect_timeout=2.0,
                        socket_timeout=10.0,
                        # redis-py refuses the option for a unix socket, which needs none.
                        **({} if self._url.startswith("unix:") else {"socket_keepalive": True}),
                    ) as client,
                    client.pubsub(ignore_subscribe_messages=True) as channel,
                ):
                    await channel.subscribe(DONE_CHANNEL)
                    self._wake_all()  # for what ended while nobody listened
                    while True:
                        message = await channel.get_message(timeout=5.0)
                        pause = 0.1
                        if message is None:
                            continue
                        done = [message["data"]]
                        while (message := await channel.get_message(timeout=0.0)) is not None:
                            done.append(message["data"])
                        await self._announce(done)
            except Exception as error:  # noqa: BLE001 - whatever breaks it, waiters need it back
                log.warning("no news of finished jobs, trying again in %.1f s: %r", pause, error)
            await asyncio.sleep(pause)
            pause = min(2.0, pause * 2)

    async def _announce(self, done: list[str]) -> None:
        """Read each finished job once, for the counters and for everyone who waits for it."""
        records: list[JobRecord | None]
        try:
            records = await self._queue(lambda jobs: [jobs.get(job_id) for job_id in done])
        except Refusal:
            records = [None] * len(done)
        for job_id, record in zip(done, records, strict=True):
            for watch in self._watches.get(job_id, ()):
                watch.record = record
                watch.woken.set()
            if record is not None:
                await self._seen(record)

    def _wake_all(self) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.woken.set()
