"""Admission control: a submission that cannot be served is rejected before its body is read.

Under overload most submissions are refused, and a refusal must cost less than the work that it refuses. So no refusal
reads Redis. One task reads the queue's state several times a second, and submissions are judged by that view, which is
at most 0.2 s old. The exact limits are checked again where the job is enqueued, in one atomic step with it.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.to_thread
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from warpdesk.models import Priority
from warpdesk_server.app.access.keys import LOCAL
from warpdesk_server.app.jobs.throughput import LONG_PACE, ThroughputEstimate, retry_after
from warpdesk_server.app.kit import durability, limits
from warpdesk_server.app.kit.durability import Durability
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.places import Places
from warpdesk_server.app.settings import Settings
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.protocol import LONG, PRIORITIES, QUICK, JobRequest, Kind
from warpdesk_server.workers.queue.records import Bounds, JobRecord
from warpdesk_server.workers.queue.reports import WorkerReport

log = logging.getLogger("warpdesk.api")

LOOK_SECONDS = 0.2
WORKERS_SECONDS = 1.0
DURABILITY_SECONDS = 5.0

# Reading the queue may take this part of the process's time, however long the queue's lists are.
_LOOKING = 0.05

_LATELY = 0.05  # weight of the latest submission in the moving average of their durations

# Safety factor of predicted waits: the queue's rate is an average of unlike jobs, and more jobs come while one waits.
MARGIN = 1.5

# Shorter waits are not believed of a submission that was not kept waiting itself: the view may be LOOK_SECONDS old, and
# jobs in it may be done already.
_STALE = 2 * LOOK_SECONDS

# Retry-After of a full queue: until 1/20 of it is free. A single free place is taken before the caller is back.
_ROOM = 20


@dataclass
class WaitingJobs:
    """The queued jobs of one kind, quick or long, in the API's view: as last read, and what this process enqueued
    since. No job waits for one of the other kind."""

    by_owner: dict[Priority, dict[str, int]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(sum(owners.values()) for owners in self.by_owner.values())

    def ahead(self, owner: str, priority: Priority) -> int:
        """The number of queued jobs, in the API's view of the queue, that workers claim before the owner's next one.

        Higher priorities come first. Within one priority, owners take turns.
        """
        before = 0
        for other in PRIORITIES[: PRIORITIES.index(priority)]:
            before += sum(self.by_owner.get(other, {}).values())
        beside = self.by_owner.get(priority, {})
        own = beside.get(owner, 0)
        return before + own + sum(min(count, own + 1) for other_owner, count in beside.items() if other_owner != owner)

    def count(self, owner: str, priority: Priority) -> None:
        owners = self.by_owner.setdefault(priority, {})
        owners[owner] = owners.get(owner, 0) + 1


@dataclass
class View:
    """The API's view of the job queue and of Redis' memory, as they were last read."""

    waiting: int = 0
    quick: WaitingJobs = field(default_factory=WaitingJobs)
    long: WaitingJobs = field(default_factory=WaitingJobs)
    memory: int = 0  # bytes that Redis uses
    max_memory: int = 0  # 0: no limit


class Admission:
    """Admission control of one API process: it holds the view of the queue, and admits or refuses jobs by it."""

    def __init__(self, settings: Settings, throughput: ThroughputEstimate) -> None:
        self._settings = settings
        self.throughput = throughput
        self.long_throughput = ThroughputEstimate(pace=LONG_PACE)
        self._long_workers = 0
        self._redis = connect(settings.redis_url, retry=Retry(NoBackoff(), 0), timeout=settings.redis_patience)
        self._jobs = JobQueue(self._redis)
        self._thread = anyio.CapacityLimiter(1)
        self._view = View()
        self._away: str | None = None  # why Redis could not be read
        self._over: dict[str, tuple[float, int, int | None]] = {}  # owners at their quota: until when; see quota()
        self._on_their_way: Counter[tuple[str, Priority]] = Counter()
        self._turns = Places(limits.TURNS + limits.SPARE_TURNS, limits.TURNS)
        self._charging_turns = Places(
            limits.TURNS + limits.SPARE_TURNS, limits.TURNS
        )  # apart, so that submissions that wait for the ledger take no turn from the rest
        self._turn_took = 0.0  # seconds
        self._able: dict[str, tuple[float, object]] = {}  # workers: when seen able, and their last fault then
        self._redis_durability: Durability = "unknown"
        self._workers_at = self._durability_at = 0.0
        # The kinds of work that some worker takes. What would be of another kind waits in a lane that every one takes.
        self.served = frozenset[Kind]()
        self.workers: Sequence[WorkerReport] | None = None  # None until they were looked at

    # Questions of requests.

    def bounds(self, owner: str) -> Bounds:
        """The limits of one owner in the queue, for admission control. If there are API keys, part of the queue is
        left to other owners."""
        settings = self._settings
        return Bounds(settings.max_queue, settings.max_live_jobs, owner != LOCAL, settings.max_live_tasks)

    def require_turn(self, owner: str) -> None:
        """Refuse a submission of a job that would wait too long for its turn in this API process."""
        seconds = self._until_turn(owner)
        self._require_room(self._turns, owner)
        if seconds > limits.TURN_SECONDS:
            sentence = (
                f"Another submission of the key would wait longer than {limits.TURN_SECONDS:g} seconds for its turn"
            )
            raise Refusal("busy", sentence, headers={"Retry-After": "1"})

    def _require_room(self, turns: Places, owner: str) -> None:
        """Refuse a submission of a job if the owner has as many in progress as there is room left for other owners."""
        own, free = turns.present[owner], 2 * limits.SUBMISSIONS - turns.present.total()
        if own >= free:
            sentence = f"{own} submissions of the key are in progress, which is its share at the moment"
            raise Refusal("busy", sentence, headers={"Retry-After": "1"})

    def _until_turn(self, owner: str) -> float:
        """Seconds that a job's submission which arrives now would wait for its turn in this API process."""
        return max(0, self._turns.ahead(owner) - limits.TURNS + 1) / limits.TURNS * self._turn_took

    def admit(self, owner: str) -> None:
        """Refuse a submission that would not be queued: the queue is full, Redis is out of memory, or the owner is
        at its quota."""
        view = self._view
        if view.max_memory and view.memory >= self._settings.max_redis_memory * view.max_memory:
            raise self.memory()
        if view.waiting >= self._settings.max_queue:
            raise self.full(view.waiting)
        until, live, free = self._over.get(owner, (0.0, 0, None))
        if time.monotonic() < until:
            raise self.quota(live, free)

    def require_in_time(
        self, owner: str, priority: Priority, deadline_s: float, *, long: bool, before: int | None = None
    ) -> None:
        """Refuse a submission that has its turn and turned out to be a long or a quick job, if its deadline would pass
        before it is computed. May be called in any thread.

        `before`: of a job in a bundle, how many others of it come first. It was not judged at a turn.
        """
        if before is not None:
            self._meet(owner, priority, deadline_s, 0.0, long=long, least=_STALE, before=before)
        elif self._long_are_apart:  # else it was judged at its turn
            self._meet(owner, priority, deadline_s, long=long, least=_STALE)

    @property
    def _long_are_apart(self) -> bool:
        return not self.served.isdisjoint(LONG)

    def _meet_as_either(self, owner: str, priority: Priority, deadline_s: float, wait: float | None = None) -> None:
        """Refuse a submission whose deadline would pass, whether its job is long or quick. That is not known yet."""
        least = 0.0 if wait is None else _STALE
        if self._long_are_apart:
            try:
                self._meet(owner, priority, deadline_s, wait, long=True, least=least)
            except Refusal:
                pass
            else:
                return
        self._meet(owner, priority, deadline_s, wait, least=least)

    def _meet(
        self,
        owner: str,
        priority: Priority,
        deadline_s: float,
        wait: float | None = None,
        *,
        long: bool = False,
        least: float = 0.0,
        before: int = 0,
    ) -> None:
        """Refuse a submission whose deadline would pass before its job is computed, by how quickly jobs of its kind
        were computed lately. While that is not known, none is refused.

        `wait` is the seconds until the submission's turn. None: it has its turn, and `_on_their_way` counts its job.
        Predicted waits of at most `least` seconds are none.
        """
        throughput, waiting = self._of_kind(long=long)
        rate = throughput.recent_lower_bound
        if rate is None:
            return
        earlier = PRIORITIES[: PRIORITIES.index(priority) + 1]
        on_their_way = 0  # of those few are long, if any
        if not long:
            on_their_way = sum(count for (_, other), count in [*self._on_their_way.items()] if other in earlier)
            if wait is None:  # only submissions that have their turn are before it; those that wait for one come after
                on_their_way = min(on_their_way, limits.TURNS) - 1
        ahead = waiting.ahead(owner, priority) + on_their_way + before
        seconds = ((ahead + 1) / rate if ahead else 0.0) * MARGIN
        left = deadline_s - ((wait or 0.0) + self._turn_took) * MARGIN
        if left > 0 and seconds <= max(left, least):
            return
        own, kind = sum(waiting.by_owner.get(other, {}).get(owner, 0) for other in earlier), "long" if long else "quick"
        sentence = (
            f"{own + before} {kind} jobs of the key wait before it, and its deadline would pass before it is computed, "
            f"as {kind} jobs ended lately: that is {deadline_s:.3g} seconds away"
        )
        after = throughput.retry_after(ahead + 1 - left / MARGIN * rate)
        raise Refusal("deadline-unreachable", sentence, headers={"Retry-After": after})

    @asynccontextmanager
    async def turn(
        self, owner: str, priority: Priority, deadline_s: float | None, *, charging: bool = False
    ) -> AsyncIterator[None]:
        """Wait for the submission's turn in this API process, and hold it in the block. Refuse a job whose deadline
        would pass meanwhile.

        Until the block ends, the submission counts as a job of the queue. Submissions that may wait for the ledger
        (`charging`) have turns of their own.
        """
        if charging:
            self._require_room(self._charging_turns, owner)
            async with self._charging_turns.take(owner):
                yield
            return
        waiting_since = time.monotonic()
        if deadline_s is not None:
            self._meet_as_either(owner, priority, deadline_s, self._until_turn(owner))
        self._on_their_way[owner, priority] += 1
        try:
            async with self._turns.take(owner):
                began = time.monotonic()
                if deadline_s is not None and began - waiting_since > LOOK_SECONDS:
                    self._meet_as_either(owner, priority, deadline_s - (began - waiting_since))
                try:
                    yield
                finally:
                    self._turn_took += _LATELY * (time.monotonic() - began - self._turn_took)
        finally:
            self._on_their_way[owner, priority] -= 1
            if not self._on_their_way[owner, priority]:
                del self._on_their_way[owner, priority]

    def enqueued(self, owner: str, priority: Priority, *, long: bool) -> None:
        """Add a job that was just enqueued to the API's view of the queue, since that is read again only later."""
        self._of_kind(long=long)[1].count(owner, priority)

    def ended(self, record: JobRecord) -> None:
        """Count a job that ended in the throughput of its kind."""
        self._of_kind(long=record.request.long)[0].ended(record)

    def retry_after(self, job: JobRequest, *, queued: bool) -> str:
        """The Retry-After header of the response for a job that is not done."""
        throughput, waiting = self._of_kind(long=job.long)
        return throughput.retry_after(waiting.ahead(job.owner, job.priority) if queued else 1)

    @property
    def waiting_long(self) -> int:
        """How many long jobs wait, in the API's view of the queue."""
        return self._view.long.total

    def _of_kind(self, *, long: bool) -> tuple[ThroughputEstimate, WaitingJobs]:
        return (self.long_throughput, self._view.long) if long else (self.throughput, self._view.quick)

    def _until_free(self, places: float) -> str:
        """The Retry-After header for when so many jobs have left the queue: quick and long ones leave it beside each
        other."""
        kinds = [self._of_kind(long=long) for long in (False, True)]
        rates = [throughput.rate for throughput, waiting in kinds if waiting.total and throughput.rate is not None]
        return retry_after(places, sum(rates) if rates else None)

    def full(self, waiting: int, jobs: int = 1) -> Refusal:
        """The API's refusal of a submission of so many jobs because the queue is full."""
        most = self._settings.max_queue
        sentence = f"The queue is full: {most} jobs may wait"
        if jobs > 1:
            sentence = f"{jobs} jobs do not fit into the queue: {waiting} wait, and {most} may"
        after = self._until_free(waiting - most + max(jobs, most // _ROOM))
        return Refusal("queue-full", sentence, headers={"Retry-After": after})

    def quota(self, live: int, free: int | None, jobs: int = 1) -> Refusal:
        """The API's refusal of a submission of so many jobs by an owner with `live` jobs. `free`: the queue's free
        places, if they are what limits it."""
        most, whole = self._settings.max_live_jobs if free is None else free, self._settings.max_queue
        limit = f"the limit is {most}" if free is None else f"that is its share at the moment of a queue of {whole}"
        both = (self._view.quick, self._view.long)
        turns = max(1, sum(len(owners) for kind in both for owners in kind.by_owner.values()))  # served in turn
        more = f", and {jobs} more would be too many" if jobs > 1 else ""
        sentence = f"{live} jobs of the key are queued or running{more}; {limit}"
        after = self._until_free((live - most + jobs) * turns)
        return Refusal("quota-reached", sentence, headers={"Retry-After": after})

    def tasks(self, live: int, jobs: int = 1) -> Refusal:
        """The API's refusal of so many jobs, of which some are tasks, by an owner with `live` tasks."""
        more = ", and those of the request would be too many" if jobs > 1 else ""
        most = self._settings.max_live_tasks
        sentence = f"{live} tasks of the key are queued, running or paused{more}; the limit is {most}"
        return Refusal("quota-reached", sentence, headers={"Retry-After": "60"})

    def was_full(self, waiting: int) -> None:
        """Note that Redis refused a submitted job because the queue is full, so that others are refused without
        asking Redis."""
        self._view.waiting = waiting

    def was_at_quota(self, owner: str, live: int, free: int | None) -> None:
        """Note that Redis refused a submitted job because its owner is at its quota."""
        now = time.monotonic()
        self._over = {key: refusal for key, refusal in self._over.items() if refusal[0] > now}
        self._over[owner] = (now + LOOK_SECONDS, live, free)

    def memory(self) -> Refusal:
        """The API's refusal of a submission because Redis is nearly out of memory."""
        share = self._settings.max_redis_memory
        sentence = f"Redis is too full for new jobs: they are accepted below {share:.0%} of its memory"
        return Refusal("queue-memory", sentence, headers={"Retry-After": "10"})

    @property
    def durability(self) -> Durability:
        """The durability that the API reports for jobs and arrays, by Redis' configuration and the settings."""
        found = self._redis_durability if self._away is None else "unknown"
        return durability.weakest(found, self._settings.durability)

    @property
    def away(self) -> str | None:
        """Why the API could not read the queue in Redis the last time; None if it could."""
        return self._away

    def troubles(self) -> list[str]:
        """The reasons for which the API refuses new jobs at present although queued jobs still run."""
        view, settings = self._view, self._settings
        reasons = []
        if view.max_memory and view.memory >= settings.max_redis_memory * view.max_memory:
            reasons.append(self.memory().detail)
        if view.waiting >= settings.max_queue:
            reasons.append(self.full(view.waiting).detail)
        return reasons

    def able_lately(self, worker: WorkerReport, within: float) -> bool:
        """Whether the API has seen this worker able to run jobs in the last `within` seconds, and no fault of it
        since."""
        at, fault = self._able.get(worker.name, (-within, None))
        return time.monotonic() - at < within and _fault(worker) == fault

    # The task.

    async def look(self) -> None:
        """The task that refreshes the API's view of the queue; it runs for as long as the API."""
        while True:
            started = time.monotonic()
            try:
                view = await anyio.to_thread.run_sync(self._look, limiter=self._thread)
            except (RedisError, OSError) as error:
                if self._away is None:
                    log.warning("the queue cannot be read: %s: %s", type(error).__name__, error)
                self._away = f"Redis cannot be used: {type(error).__name__}"
                self._durability_at = 0.0  # another server may answer next
            except Exception:  # one malformed report must not end this task
                log.exception("the queue cannot be read")
            else:
                self._view, self._away = view, None
            took = time.monotonic() - started
            await asyncio.sleep(max(LOOK_SECONDS, took / _LOOKING) if self._away is None else LOOK_SECONDS)

    def _look(self) -> View:
        """Read the queue, Redis' memory and the workers into a new view for admission. Asks Redis: call it in a
        thread."""
        now = time.monotonic()
        memory, max_memory = self._memory()
        quick, long = (WaitingJobs(self._jobs.waiting_by_owner(kinds)) for kinds in (QUICK, LONG))
        view = View(self._jobs.length(), quick, long, memory, max_memory)
        if now >= self._workers_at:
            workers = self._jobs.workers()
            self.served = frozenset(kind for worker in workers for kind in worker.kinds)
            self._long_workers = _long_workers(workers)
            self.workers = workers
            able = {
                worker.name: (now, _fault(worker)) for worker in workers if worker.able and worker.serves_quick_jobs
            }
            kept = {name: report for name, report in self._able.items() if now - report[0] < 60}
            self._able, self._workers_at = {**kept, **able}, now + WORKERS_SECONDS
        if now >= self._durability_at:
            self._redis_durability, self._durability_at = durability.of_redis(self._redis), now + DURABILITY_SECONDS
        self.throughput.look(quick.total, sum(now - at < 2 * WORKERS_SECONDS for at, _ in self._able.values()))
        self.long_throughput.look(long.total, self._long_workers)
        return view

    def _memory(self) -> tuple[int, int]:
        try:
            info: Mapping[str, int] = self._redis.info("memory")
        except ResponseError:  # INFO is not available or not allowed: Redis itself refuses writes when it is full
            return 0, 0
        return info.get("used_memory", 0), info.get("maxmemory", 0)

    def close(self) -> None:
        self._redis.close()


def _long_workers(workers: Sequence[WorkerReport]) -> int:
    """How many long jobs are computed at a time, once every companion of a worker runs."""
    return len(takers_of_long_jobs(workers))


def takers_of_long_jobs(workers: Sequence[WorkerReport]) -> list[WorkerReport]:
    """The workers that take long jobs. Of one and its companion it is the first, or the only one that reports."""
    takers = [worker for worker in workers if not set(LONG).isdisjoint(worker.kinds)]
    processes = {(worker.host, worker.pid) for worker in takers}
    return [worker for worker in takers if (worker.host, worker.started_by) not in processes]


def _fault(worker: WorkerReport) -> object:
    return worker.last_fault, worker.gpu and worker.gpu.last_fault_at
