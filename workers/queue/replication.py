"""Answers of Redis that a failover does not take back (WARPDESK_DURABILITY=replicated).

A replica that Sentinel promotes has a beginning of the primary's history: all up to some moment. So an answer is safe
once enough replicas have on the disk all that the primary had written when it answered. WAITAOF tells that of the
writes of its own connection, hence the probe before it, which comes after every write that the answer may tell of. All
goes in one round trip on one connection: the primary that confirms is the one that answered.
"""

import logging
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.keys import PROBE, PROBE_SECONDS

log = logging.getLogger("warpdesk.queue")

_LOOK_SECONDS = 2.0
OLDEST = (7, 2)  # the first release with WAITAOF

# Milliseconds of the waits before the last one. A replica confirms before it forces its file, and again only when it is
# asked, which each wait does: one wait alone would last until the replica's next report, up to a second.
_WAITS = (1, 2, 4, 8, 16, 32, 64, 128)


class NotReplicated(Disconnected):
    """Raised if Redis did not say in time that enough replicas have on the disk what it answered."""


class Unreplicable(Exception):
    """Raised if the connected Redis can never confirm a write; the message says why, and what to do."""


class Replicated(Redis):
    """A client of Redis on the pool of another, whose answers wait until `replicas` replicas have them on the disk.

    Raises NotReplicated after `seconds`: what was asked may have been done. With `retry` it asks again, for callers
    whose same question again changes nothing.
    """

    def __init__(self, connection: Redis, replicas: int, seconds: float, retry: Retry | None = None) -> None:
        super().__init__(connection_pool=connection.connection_pool)
        self._confirmation = replicas, seconds, retry

    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        with self.pipeline(transaction=False) as pipe:
            pipe.execute_command(*arguments, **options)  # type: ignore[no-untyped-call]
            return pipe.execute()[0]

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        """A pipeline whose answers wait alike; one that is a transaction does not."""
        if transaction:
            return super().pipeline(transaction, shard_hint)
        return _Pipeline(self.connection_pool, self.response_callbacks, *self._confirmation)


class _Pipeline(Pipeline):
    def __init__(self, pool: Any, callbacks: Any, replicas: int, seconds: float, retry: Retry | None) -> None:
        super().__init__(pool, callbacks, False, None)
        self._replicas, self._milliseconds, self._retry = replicas, round(seconds * 1000), retry

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """The answers of Redis to what was asked, once they are confirmed."""
        commands = list(self.command_stack)
        if self._retry is None:
            return self._confirmed(commands, raise_on_error)
        return self._retry.call_with_retry(
            lambda: self._confirmed(commands, raise_on_error),
            lambda _: None,
            is_retryable=lambda error: isinstance(error, NotReplicated),
        )

    def _confirmed(self, commands: list[Any], raise_on_error: bool) -> list[Any]:
        self.command_stack = list(commands)
        self.set(PROBE, b"", ex=PROBE_SECONDS)
        waits = [each for each in _WAITS if each < self._milliseconds / 2]
        for milliseconds in (*waits, self._milliseconds - sum(waits)):
            self.execute_command("WAITAOF", 1, self._replicas, milliseconds)  # type: ignore[no-untyped-call]
        answers = super().execute(raise_on_error=False)
        mine, probe, wait = answers[: len(commands)], answers[len(commands)], answers[-1]
        for answer in mine if raise_on_error else ():
            if isinstance(answer, ResponseError):
                raise answer
        for error in (probe, wait):
            if isinstance(error, ResponseError):  # what was asked was done
                raise NotReplicated(str(error))
        local, replicas = wait
        if not local or replicas < self._replicas:
            self.connection_pool.disconnect(inuse_connections=False)  # the Sentinels may name another primary by now
            disk = "" if local else ", nor the primary"
            raise NotReplicated(
                f"{replicas} of {self._replicas} replicas have it on the disk{disk}, after {self._milliseconds} ms"
            )
        return mine


def require_replicable(url: str) -> None:
    """Raise Unreplicable if a Redis can confirm no write, or does so after seconds only. One that is away is no
    reason: what it does not confirm later is not told."""
    with connect(url, Retry(NoBackoff(), 0), _LOOK_SECONDS) as connection:
        try:
            _require_replicable(connection)
        except (RedisError, OSError) as error:
            log.warning("whether Redis can confirm changes is not known yet: %s", error)


def _require_replicable(connection: Redis) -> None:
    try:
        info = connection.info()
    except ResponseError:  # a managed server: WAITAOF itself will tell
        return
    version = str(info.get("redis_version", ""))
    found = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if found < OLDEST:
        raise Unreplicable(
            f"WARPDESK_DURABILITY=replicated needs Redis 7.2 or later, or Valkey, and the connected one is {version}"
        )
    if info.get("aof_enabled") == 0:
        raise Unreplicable(
            "WARPDESK_DURABILITY=replicated needs an append-only file, and the connected Redis has none: set "
            "`appendonly yes` there and on its replicas"
        )
    try:
        policy = connection.config_get("appendfsync").get("appendfsync", "always")
    except RedisError:  # an account that may not ask
        return
    if policy != "always":
        raise Unreplicable(
            f"WARPDESK_DURABILITY=replicated needs `appendfsync always`, and the connected Redis has {policy}: each "
            "answer would wait for a second or two"
        )
