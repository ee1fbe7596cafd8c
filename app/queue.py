"""The job queue for coroutines: every call in a thread and within a time, and one subscription that wakes who waits."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

import anyio
import anyio.to_thread
from pydantic import ValidationError
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from app.errors import Refusal
from workers.protocol import EVENTS, Event
from workers.queue import JobQueue, JobRecord, connect, told

log = logging.getLogger("warpdesk.api")

T = TypeVar("T")

# Redis, or the disk of a submission, may hang rather than refuse; then this many threads are stuck at most, and
# requests still answer in time.
THREADS = 32

# Seconds after which a waiter asks by itself, and a reader that could not read tries again. The subscription tells all
# else; where no worker is alive, a queued job's deadline passes for whoever asks.
SAFETY_POLL = 5.0

SILENCE = 5.0  # seconds without a word of Redis until it is asked for one, and as many until the connection is given up
KEPT = 32  # events that wait for a slow reader; it reads later ones from Redis
AT_ONCE = 256  # records read in one turn of a thread


class Queue:
    """`await queue(lambda jobs: jobs.get(id))`: 503 when Redis does not answer within `patience` seconds, or no thread
    is free to ask it for so long."""

    def __init__(self, url: str, patience: float) -> None:
        self._connection = connect(url, timeout=patience)
        self._patience = patience
        self._threads = anyio.CapacityLimiter(THREADS)
        self.jobs = JobQueue(self._connection)
        self.usable = True  # as far as the last call knows

    async def __call__(self, use: Callable[[JobQueue], T]) -> T:
        return await self.after(lambda: use)

    async def after(
        self, prepare: Callable[[], Callable[[JobQueue], T]], threads: anyio.CapacityLimiter | None = None
    ) -> T:
        """Prepare, and use Redis, in one go: each change of thread takes as long as a small submission's check.

        What is prepared may wait for a disk: the patience with Redis begins when it is asked. What may wait for more
        has `threads` of its own, and the caller's patience with them.
        """
        patience = _Patience(self._patience)
        if threads is not None:
            patience.pause()

        def call() -> T:
            patience.pause()
            use = prepare()
            patience.begin()
            try:
                return use(self.jobs)
            except (RedisError, OSError) as error:
                raise _Unusable(error) from error

        try:
            with patience:
                used = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=threads or self._threads)
        except _Silent:
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
        await self(lambda _: self._connection.set("warpdesk:probe", b"", ex=10))

    def close(self) -> None:
        self._connection.close()


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
        self.begin()

    def begin(self) -> None:
        """From any thread."""
        self._since: float | None = time.monotonic()

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


@dataclass(eq=False)
class Watch:
    """One who waits for the end of one job."""

    woken: asyncio.Event = field(default_factory=asyncio.Event)
    record: JobRecord | None = None  # once it is final


@dataclass(eq=False)
class Feed:
    """One who reads the events of one job, and has had those up to `last`."""

    job_id: str
    last: int
    fresh: list[Event] = field(default_factory=list)
    behind: bool = True  # there may be events that only Redis has
    over: bool = False  # nothing is to come, though its last event was not had: the job was erased, or its time is over
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, event: Event) -> None:
        if len(self.fresh) >= KEPT:
            self.fall_behind()
        elif not self.behind:
            self.fresh.append(event)
        self.woken.set()

    def fall_behind(self) -> None:
        self.fresh.clear()
        self.behind = True
        self.woken.set()

    def take(self) -> list[Event]:
        """What came and was not had yet, in order; one that is missing in between leaves the reader behind."""
        taken = [event for event in self.fresh if event.number > self.last]
        self.fresh.clear()
        if [event.number for event in taken] != [self.last + place for place in range(1, len(taken) + 1)]:
            self.fall_behind()
            return []
        return taken


class Completions:
    """Tells who waits for a job that it is done, and who reads its events what happens. One Redis connection for all.

    Jobs that ended are read once, however many wait for them: each is told to `seen`, for the counters.
    """

    def __init__(self, url: str, queue: Queue, seen: Callable[[JobRecord], Awaitable[None]]) -> None:
        self._url = url
        self._queue = queue
        self._seen = seen
        self._watches: dict[str, set[Watch]] = {}
        self._feeds: dict[str, set[Feed]] = {}
        self._ended: dict[str, None] = {}  # jobs to be read, in the order of their ends
        self._told: list[JobRecord] = []  # of jobs that ended, not yet told to `seen`
        self._any_ended = asyncio.Event()
        self.released = False

    @contextmanager
    def watch(self, job_id: str) -> Iterator[Watch]:
        """Begin before the job is enqueued, so that no end is missed."""
        with _entered(self._watches, job_id, Watch()) as watch:
            yield watch

    @contextmanager
    def follow(self, job_id: str, after: int) -> Iterator[Feed]:
        """Read a job's events after that number, with `news`."""
        with _entered(self._feeds, job_id, Feed(job_id, after)) as feed:
            yield feed

    def release(self) -> None:
        """Answer everyone who waits with the job as it is: this process is about to end, the jobs go on."""
        self.released = True
        for watches in self._watches.values():
            for watch in watches:
                watch.woken.set()
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.woken.set()

    async def until_done(self, watch: Watch, job_id: str, seconds: float) -> JobRecord | None:
        """The record once it is final, or as it is when the time is over; survives a Redis that goes and comes back."""
        record: JobRecord | None = None
        with anyio.move_on_after(seconds):
            while not self.released:
                with anyio.move_on_after(SAFETY_POLL):
                    await watch.woken.wait()
                watch.woken.clear()
                if watch.record is not None:
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

    async def news(self, feed: Feed, seconds: float) -> list[Event]:
        """The events the reader has not had, in order and each once; none if there are none within some seconds.

        What it missed while it was slow, or while there was no connection, comes from Redis.
        """
        with anyio.move_on_after(seconds):
            while not (self.released or feed.over):
                if feed.behind:
                    events = await self._missed(feed)
                else:
                    await feed.woken.wait()
                    feed.woken.clear()
                    events = feed.take()
                if events:
                    feed.last = events[-1].number
                    return events
        return []

    async def _missed(self, feed: Feed) -> list[Event]:
        feed.behind = False  # what comes from now on is kept, so that none is lost between the two

        def read(jobs: JobQueue) -> tuple[list[Event], bool]:
            if events := jobs.events(feed.job_id, feed.last):
                return events, False
            record = jobs.get(feed.job_id)
            if record is not None and not record.state.final:
                return [], False
            events = jobs.events(feed.job_id, feed.last)  # it may have ended between the two
            return events, not events

        try:
            events, feed.over = await self._queue(read)
            return events
        except Refusal:
            feed.fall_behind()
            await asyncio.sleep(SAFETY_POLL)
            return []
        except BaseException:
            feed.fall_behind()
            raise

    async def listen(self) -> None:
        """Run for as long as the API does."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hear())
            tasks.create_task(self._look_up())

    async def _hear(self) -> None:
        pause = 0.1
        while True:
            try:
                async with (
                    AsyncRedis.from_url(
                        self._url,
                        decode_responses=True,
                        protocol=2,  # of the third, redis-py writes out every message for a log
                        socket_connect_timeout=2.0,
                        socket_timeout=10.0,
                        # redis-py refuses the option for a unix socket, which needs none.
                        **({} if self._url.startswith("unix:") else {"socket_keepalive": True}),
                    ) as client,
                    client.pubsub() as channel,
                    _ended(channel),
                ):
                    await channel.subscribe(EVENTS)
                    asked = False
                    while True:
                        message = await channel.get_message(timeout=SILENCE)
                        if message is None:
                            if asked:
                                raise TimeoutError(f"no word of Redis for {2 * SILENCE:g} seconds")
                            await channel.ping()
                        elif message["type"] == "message":
                            self._tell(message["data"])
                            await asyncio.sleep(0)  # messages that are there already are read without a pause
                        elif message["type"] == "subscribe":  # redis-py may have connected again without a word
                            pause = 0.1
                            self._catch_up()
                        asked = message is None
            except Exception as error:  # noqa: BLE001 - whatever breaks it, waiters need it back
                log.warning("no news of jobs, trying again in %.1f s: %r", pause, error)
            await asyncio.sleep(pause)
            pause = min(2.0, pause * 2)

    def _tell(self, message: str) -> None:
        text, _, record = message.partition("\n")
        try:
            event = Event.model_validate_json(text)
        except ValidationError as error:
            log.warning("an event that cannot be read: %s", error)
            return
        for feed in self._feeds.get(event.job, ()):
            feed.put(event)
        if event.final:
            try:
                ended = told(record) if record else None
            except (ValueError, KeyError):  # of another release, say: what can be read of it is looked up
                ended = None
            if ended is None:
                self._ended[event.job] = None
            else:
                self._wake(ended)
                self._told.append(ended)
            self._any_ended.set()

    def _catch_up(self) -> None:
        """What happened while nobody listened is not told again: readers read, and every job waited for is looked at"""
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.fall_behind()
        self._ended.update(dict.fromkeys(self._watches))
        self._any_ended.set()

    def _wake(self, record: JobRecord) -> None:
        for watch in self._watches.get(record.request.id, ()):
            watch.record = record
            watch.woken.set()

    async def _look_up(self) -> None:
        """Read the records of jobs that ended and were not told with them, and tell the counters of all."""
        while True:
            await self._any_ended.wait()
            await asyncio.sleep(0)  # those who were woken by it answer first
            asked = list(self._ended)[:AT_ONCE]
            try:
                records = await self._queue(lambda jobs: _readable(jobs, asked)) if asked else []  # noqa: B023
            except Refusal:
                await asyncio.sleep(1.0)
                continue
            for job_id in asked:
                del self._ended[job_id]
            final = [record for record in records if record is not None and record.state.final]
            for record in final:
                self._wake(record)
            final += self._told
            self._told = []
            if not self._ended:
                self._any_ended.clear()
            for record in final:
                try:
                    await self._seen(record)
                except Exception:  # a disk that fails, say: those who wait for other jobs must still be told
                    log.exception("what follows the end of %s", record.request.id)


def _readable(jobs: JobQueue, job_ids: list[str]) -> list[JobRecord | None]:
    """The records, without those that this release cannot read."""
    try:
        return jobs.records(job_ids)
    except (ValueError, KeyError):
        if len(job_ids) == 1:
            log.warning("the record of %s cannot be read", job_ids[0], exc_info=True)
            return []
        half = len(job_ids) // 2
        return [*_readable(jobs, job_ids[:half]), *_readable(jobs, job_ids[half:])]


L = TypeVar("L", Watch, Feed)


@contextmanager
def _entered(register: dict[str, set[L]], job_id: str, listener: L) -> Iterator[L]:
    register.setdefault(job_id, set()).add(listener)
    try:
        yield listener
    finally:
        listeners = register[job_id]
        listeners.discard(listener)
        if not listeners:
            del register[job_id]


@asynccontextmanager
async def _ended(channel: PubSub) -> AsyncIterator[None]:
    """Wait for the end of its connection: over TLS that takes a moment, and the event loop must not end before."""
    try:
        yield
    finally:
        if channel.connection is not None:
            with suppress(RedisError, OSError):
                await channel.connection.disconnect()
