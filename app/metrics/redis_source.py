"""The collector of metrics in Redis: it adds this process's counts there every second, and reads queue and workers.

The counts of all processes are one hash (workers.queue.counts), so every API process exports the same totals. An
addition counts once, even if its reply is lost. The counts of job transitions are moved into the hash in the same
step. A clean stop sends the remaining counts. A killed process loses its last second of request counts, but no job's.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from warpdesk.models import Priority
from warpdesk_server.app.kit import durability
from warpdesk_server.app.kit.durability import Durability
from warpdesk_server.app.metrics.collector import Collector
from warpdesk_server.workers.queue.counts import Tally
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.records import Backlog
from warpdesk_server.workers.queue.reports import WorkerReport

SECONDS = 1.0
_FACTS_SECONDS = 5.0  # how often Redis is asked about itself


@dataclass(frozen=True)
class Facts:
    """Redis' own state, for the API's metrics. None: the Redis server or its access rules do not report the value."""

    memory: int | None
    max_memory: int | None  # 0: no limit
    evicted: int | None
    keeps: bool | None  # whether Redis evicts nothing and has an append-only file
    durability: Durability


@dataclass(frozen=True)
class Snapshot:
    at: float  # Unix seconds by Redis' clock
    queues: Mapping[Priority, Backlog]
    dead: int
    paused: int
    workers: Sequence[WorkerReport]
    facts: Facts


class RedisCollector(Collector[Snapshot]):
    """The API's collector of metrics in Redis. `tally` holds the counts of this process until they are sent."""

    def __init__(self, url: str, patience: float) -> None:
        super().__init__("redis", self._seen_now, SECONDS)
        self.tally = Tally()
        self._connection = connect(url, retry=Retry(NoBackoff(), 0), timeout=patience)
        self._queue = JobQueue(self._connection)
        self._facts: Facts | None = None
        self._facts_at = 0.0

    def stop(self, patience: float) -> None:
        super().stop(patience)
        with suppress(RedisError):
            self._queue.count_left(self.tally)
        self._connection.close()

    def _seen_now(self, requested: bool) -> Snapshot | None:
        if requested or not self.tally.empty:
            self._queue.count(self.tally, ask=requested)
        if not requested:
            return None
        queues, dead = self._queue.queues()
        paused, workers = self._queue.paused(), self._queue.workers()
        return Snapshot(self._queue.time(), queues, dead, paused, workers, self._itself())

    def _itself(self) -> Facts:
        now = time.monotonic()
        if self._facts is None or now - self._facts_at > _FACTS_SECONDS:
            self._facts, self._facts_at = self._ask_itself(), now
        return self._facts

    def _ask_itself(self) -> Facts:
        try:
            info = self._connection.info()
        except ResponseError:
            info = {}
        policy, appends = info.get("maxmemory_policy"), info.get("aof_enabled")
        return Facts(
            memory=info.get("used_memory"),
            max_memory=info.get("maxmemory"),
            evicted=info.get("evicted_keys"),
            keeps=None if policy is None or appends is None else policy == "noeviction" and appends == 1,
            durability=durability.of_redis(self._connection),
        )
