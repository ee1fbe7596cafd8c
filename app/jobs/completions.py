"""Completions of jobs: one Redis subscription that wakes the requests which wait for a job or stream its events."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
import anyio.to_thread
from pydantic import ValidationError
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from warpdesk_server.app.jobs.queue import Queue
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.keys import EVENTS
from warpdesk_server.workers.queue.protocol import Event
from warpdesk_server.workers.queue.records import JobRecord
from warpdesk_server.workers.queue.sentinel import named, primary_url

log = logging.getLogger("warpdesk.api")

# Seconds between two reads of each job that requests wait for, and until a failed read is tried again. The subscription
# reports everything but this: while no worker is alive, a queued job expires only when its record is read.
SAFETY_POLL = 5.0

SILENCE = 5.0  # seconds without a message until Redis is pinged, and until an unanswered ping ends the connection
KEPT = 32  # events that wait for a slow reader; it reads later ones from Redis
AT_ONCE = 256  # records read in one turn of a thread


@dataclass(eq=False)
class Watch:
    """A request to the API that waits for the end of one job, for as long as its API key is accepted (`let_in`)."""

    job_id: str
    let_in: Callable[[], bool]
    woken: asyncio.Event = field(default_factory=asyncio.Event)  # set when the wait is over
    record: JobRecord | None = None  # once it is final
    enqueued: bool = False  # if so, a missing record means that Redis forgot the job


@dataclass(eq=False)
class Feed:
    """A request to the API that reads one job's events after number `last`, for as long as its API key is accepted
    (`let_in`)."""

    job_id: str
    last: int
    let_in: Callable[[], bool]
    fresh: list[Event] = field(default_factory=list)
    behind: bool = True  # there may be events that have to be read from Redis
    # The stream ends without the job's last event: the job was erased or forgotten, or the key is no longer accepted.
    over: bool = False
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, event: Event) -> None:
        """Give the request that reads a job's events the next one; a slow reader falls behind."""
        if len(self.fresh) >= KEPT:
            self.fall_behind()
        elif not self.behind:
            self.fresh.append(event)
        self.woken.set()

    def fall_behind(self) -> None:
        """Drop the reader's new events of its job, so that the request reads the missed ones from Redis."""
        self.fresh.clear()
        self.behind = True
        self.woken.set()

    def take(self) -> list[Event]:
        """Remove and return the new events of a job for its request, in order. If one is missing in between, the
        reader falls behind."""
        taken = [event for event in self.fresh if event.number > self.last]
        self.fresh.clear()
        if [event.number for event in taken] != [self.last + place for place in range(1, len(taken) + 1)]:
            self.fall_behind()
            return []
        return taken


@dataclass(eq=False)
class OwnersFeed:
    """A request to the API that follows all jobs of an owner, for as long as its API key is accepted (`let_in`)."""

    owner: str
    let_in: Callable[[], bool]
    woken: asyncio.Event = field(default_factory=asyncio.Event)  # set when there may be something new, or it is over


class Completions:
    """The notifier of one API process: it wakes requests that wait for a job or read its events.

    All share one Redis connection. A job is read once, however many requests wait for it, and many jobs in one step.
    """

    def __init__(self, url: str, queue: Queue) -> None:
        self._url = url
        self._queue = queue
        self._watches: dict[str, set[Watch]] = {}
        self._feeds: dict[str, set[Feed]] = {}
        self._owners: dict[str, set[OwnersFeed]] = {}
        self._ended: dict[str, None] = {}  # jobs to be read, in the order of their ends
        self._readers: dict[str, asyncio.Future[JobRecord | None]] = {}  # jobs to be read for those who asked
        self._any_to_read = asyncio.Event()
        self._over: list[JobRecord] = []  # records of ended jobs for which `follow_up` was not called yet
        self._any_over = asyncio.Event()
        self.released = False

    @contextmanager
    def watch(self, job_id: str, let_in: Callable[[], bool]) -> Iterator[Watch]:
        """A watch of one job for a request, in the block. Begin it before the job is enqueued, so that its end is
        not missed."""
        with _entered(self._watches, job_id, Watch(job_id, let_in)) as watch:
            yield watch

    @contextmanager
    def follow(self, job_id: str, after: int, let_in: Callable[[], bool]) -> Iterator[Feed]:
        """A feed of one job's events after number `after` for a request, in the block. Read them with `news`."""
        with _entered(self._feeds, job_id, Feed(job_id, after, let_in)) as feed:
            yield feed

    @contextmanager
    def follow_owner(self, owner: str, let_in: Callable[[], bool]) -> Iterator[OwnersFeed]:
        """A feed of all jobs of an owner for a request, in the block: it is woken when one of them has an event."""
        with _entered(self._owners, owner, OwnersFeed(owner, let_in)) as feed:
            yield feed

    def release(self) -> None:
        """End all requests that wait for jobs and all event streams, because this API process stops. The jobs go on,
        and waits return them as they are."""
        self.released = True
        for watches in self._watches.values():
            for watch in watches:
                watch.woken.set()
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.woken.set()
        self._wake_owners()

    def _wake_owners(self) -> None:
        for feeds in self._owners.values():
            for feed in feeds:
                feed.woken.set()

    def dismiss(self) -> None:
        """End the waits for jobs and the event streams whose API keys are no longer accepted."""
        for watches in self._watches.values():
            for watch in watches:
                if not watch.let_in():
                    watch.woken.set()
        for feeds in self._feeds.values():
            for feed in feeds:
                if not feed.let_in():
                    feed.over = True
                    feed.woken.set()
        self._wake_owners()  # each looks at its key

    async def until_done(
        self, watches: Sequence[Watch], seconds: float, gone: Coroutine[object, object, None]
    ) -> list[JobRecord | None]:
        """Wait in a request for the end of all of its jobs and return their records, or their present records when
        `seconds` pass or `gone` returns.

        `gone` returns when the client has disconnected. Call this once the jobs are enqueued. It survives a restart of
        Redis.
        """
        for watch in watches:
            watch.enqueued = True
        leaving = asyncio.create_task(gone)
        leaving.add_done_callback(lambda _: _wake_all(watches))
        try:
            if not self.released:
                with anyio.move_on_after(seconds):
                    for watch in watches:
                        await watch.woken.wait()
        finally:
            leaving.cancel()
        unread = [watch.job_id for watch in watches if watch.record is None]
        found = dict(zip(unread, await asyncio.gather(*map(self.current, unread)), strict=True))
        return [watch.record or found[watch.job_id] for watch in watches]

    async def current(self, job_id: str) -> JobRecord | None:
        """The job's present record for a request; None if there is none, or if it cannot be read.

        Requests that ask at the same time share one read.
        """
        return await asyncio.shield(self._ask(job_id))  # other requests may wait for the same read

    def _ask(self, job_id: str) -> asyncio.Future[JobRecord | None]:
        if job_id not in self._readers:
            self._readers[job_id] = asyncio.get_running_loop().create_future()
            self._any_to_read.set()
        return self._readers[job_id]

    async def news(self, feed: Feed, seconds: float) -> list[Event]:
        """Wait up to `seconds` for the next events of a job that a request follows. Return them in order, each once;
        none if none came.

        Events that the reader missed, because it was slow or there was no connection, are read from Redis.
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
        """Read the job's events that the request missed from Redis; set `over` if there are none and the job ended."""
        feed.behind = False  # keep events from now on, so that none is lost between this read and the next message

        def read(jobs: JobQueue) -> tuple[list[Event], bool]:
            if events := jobs.events(feed.job_id, feed.last):
                return events, False
            record = jobs.get(feed.job_id)
            if record is not None and not record.state.final:
                return [], False
            events = jobs.events(feed.job_id, feed.last)  # the job may have ended between the two reads
            return events, not events

        try:
            events, feed.over = await self._queue(read)
            return events
        except Refusal:
            feed.fall_behind()
            await asyncio.sleep(SAFETY_POLL * random.uniform(0.5, 1.0))  # noqa: S311 - not all at the same moment
            return []
        except BaseException:
            feed.fall_behind()
            raise

    async def hear(self) -> None:
        """A loop of the API: receive job events from the Redis subscription, and reconnect after an error."""
        pause = 0.1
        while True:
            try:
                url = await self._primary()
                async with (
                    AsyncRedis.from_url(
                        url,
                        decode_responses=True,
                        protocol=2,  # with protocol 3, redis-py formats every message for its log
                        socket_connect_timeout=2.0,
                        socket_timeout=10.0,
                        # redis-py refuses the option for a unix socket, which needs none.
                        **({} if url.startswith("unix:") else {"socket_keepalive": True}),
                    ) as client,
                    client.pubsub() as channel,
                    _ended(channel),
                ):
                    await channel.subscribe(EVENTS)
                    polling = False
                    while True:
                        message = await channel.get_message(timeout=SILENCE)
                        if message is None:
                            if polling:
                                raise TimeoutError(f"no word of Redis for {2 * SILENCE:g} seconds")
                            if await self._primary() != url:
                                raise ConnectionError("Redis has another primary")
                            await channel.ping()
                        elif message["type"] == "message":
                            self._tell(message["data"])
                            await asyncio.sleep(0)  # reading messages that have arrived does not yield by itself
                        elif message["type"] == "subscribe":  # also when redis-py has silently reconnected
                            pause = 0.1
                            self._catch_up()
                        polling = message is None
            except Exception as error:  # whatever ends it, requests that wait need it again
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise asyncio.CancelledError from error  # the connection broke while the API ends
                log.warning("the subscription to job events failed, trying again in %.1f s: %r", pause, error)
            await asyncio.sleep(pause)
            pause = min(2.0, pause * 2)

    async def _primary(self) -> str:
        """The URL of the Redis server to which the API's subscription belongs now."""
        if named(self._url) is None:
            return self._url
        return await anyio.to_thread.run_sync(primary_url, self._url, abandon_on_cancel=True)

    def _tell(self, message: str) -> None:
        """Pass a published job event to the requests that read it; if the job ended, wake those that wait for it."""
        text, _, record = message.partition("\n")
        try:
            event = Event.model_validate_json(text)
        except ValidationError as error:
            log.warning("a job's event cannot be parsed: %s", error)
            return
        for of_owner in self._owners.get(event.owner, ()):
            of_owner.woken.set()
        for feed in self._feeds.get(event.job, ()):
            if self._queue.replicated:  # what is published is not confirmed: it is read
                feed.fall_behind()
            else:
                feed.put(event)
        if event.final:
            ended = self._queue.jobs.published_record(event.job, record) if record else None
            if ended is None or not ended.state.final:  # not authentic, so anyone may have published it: read the job
                self._ended[event.job] = None
                self._any_to_read.set()
            else:
                self._wake(event.job, ended)
                self._over.append(ended)
                self._any_over.set()

    def _catch_up(self) -> None:
        """Read all jobs that requests watch or follow again: what was published without a subscription is lost."""
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.fall_behind()
        self._wake_owners()
        self._ended.update(dict.fromkeys(self._watches))
        self._any_to_read.set()

    def _wake(self, job_id: str, record: JobRecord | None) -> None:
        for watch in self._watches.get(job_id, ()):
            watch.record = record
            watch.woken.set()

    async def poll(self) -> None:
        """A loop of the API: every `SAFETY_POLL` seconds, read each job that a request waits for, at most `AT_ONCE` in
        one step."""
        while True:
            waited = list(self._watches)
            steps = [waited[start : start + AT_ONCE] for start in range(0, len(waited), AT_ONCE)] or [[]]
            for step in steps:
                await asyncio.sleep(SAFETY_POLL / len(steps))
                for job_id in step:
                    if job_id in self._watches:
                        self._ask(job_id)

    async def read(self) -> None:
        """A loop of the API: read the job records that requests ask for, and those of ended jobs whose event came
        without a record."""
        while True:
            await self._any_to_read.wait()
            await asyncio.sleep(0)  # requests that were just woken go first
            wanted = list(dict.fromkeys((*self._readers, *self._ended)))[:AT_ONCE]
            readers = {job_id: self._readers.pop(job_id) for job_id in wanted if job_id in self._readers}
            enqueued = {job for job in wanted if any(watch.enqueued for watch in self._watches.get(job, ()))}
            try:
                records = await self._queue(lambda jobs: jobs.records(wanted)) if wanted else []  # noqa: B023
            except BaseException as error:  # nobody would read these jobs: the requests must not wait for them
                for future in readers.values():
                    future.set_result(None)
                if not isinstance(error, Refusal):
                    raise
                await asyncio.sleep(1.0)
                continue
            for job_id, record in zip(wanted, records, strict=True):
                if record.state.final if record is not None else job_id in enqueued:
                    self._wake(job_id, record)
                if job_id in self._ended:
                    del self._ended[job_id]
                    if record is not None and record.state.final:
                        self._over.append(record)
                        self._any_over.set()
                if job_id in readers:
                    readers[job_id].set_result(record)
            if not (self._ended or self._readers):
                self._any_to_read.clear()

    async def follow_ends(self, follow_up: Callable[[JobRecord], Awaitable[None]]) -> None:
        """A loop of the API: call `follow_up` for each ended job. It may wait for a disk or the ledger, but no request
        waits for it."""
        while True:
            await self._any_over.wait()
            await asyncio.sleep(0)  # requests that were just woken go first
            self._any_over.clear()
            over, self._over = self._over, []
            for record in over:
                try:
                    await follow_up(record)
                except Exception:  # a disk that fails, say: other jobs must still be followed up
                    log.exception("the follow-up of job %s failed", record.request.id)


def _wake_all(watches: Sequence[Watch]) -> None:
    for watch in watches:
        watch.woken.set()


L = TypeVar("L", Watch, Feed, OwnersFeed)


@contextmanager
def _entered(register: dict[str, set[L]], name: str, listener: L) -> Iterator[L]:
    register.setdefault(name, set()).add(listener)
    try:
        yield listener
    finally:
        listeners = register[name]
        listeners.discard(listener)
        if not listeners:
            del register[name]


@asynccontextmanager
async def _ended(channel: PubSub) -> AsyncIterator[None]:
    """Close the connection of the API's subscription to job events at the end of the block.

    Over TLS that takes a moment, and the event loop must not end before.
    """
    try:
        yield
    finally:
        if channel.connection is not None:
            with suppress(RedisError, OSError):
                await channel.connection.disconnect()
