"""The doctor's check of Redis' replicas, where WARPDESK_DURABILITY=replicated has them confirm each change."""

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from warpdesk_server.app.settings import Settings
from warpdesk_server.doctor.check import Check
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.keys import PROBE, PROBE_SECONDS
from warpdesk_server.workers.queue.replication import NotReplicated, Replicated, Unreplicable, require_replicable

_NAME = "redis replicas"
_SECONDS = 2.0


def replicas(settings: Settings) -> Check:
    """Whether the connected Redis has a change confirmed by its replicas, and takes none without them."""
    wanted = settings.replicas
    try:
        require_replicable(settings.redis_url)
        with connect(settings.redis_url, Retry(NoBackoff(), 0), 2 * _SECONDS) as connection:
            Replicated(connection, wanted, _SECONDS).set(PROBE, b"", ex=PROBE_SECONDS)
            least = _least(connection)
    except Unreplicable as error:
        return Check(_NAME, "failed", str(error), "see docs/how-to/deploy.md, or set WARPDESK_DURABILITY to always")
    except NotReplicated as error:
        remedy = "start them, set `appendonly yes` and `appendfsync always` on them, or lower WARPDESK_REPLICAS"
        return Check(_NAME, "failed", f"a change is not confirmed: {error}", remedy)
    except (ValueError, TypeError, redis.RedisError, OSError) as error:
        return Check(_NAME, "failed", f"not known: {type(error).__name__}", "see the check `redis`")
    if least is not None and least < wanted:
        return Check(
            _NAME,
            "warning",
            f"a change is confirmed by {wanted}; min-replicas-to-write is {least}: cut off from its replicas, a "
            "primary goes on taking changes, all of them to be lost. None of them is acknowledged",
            f"redis-cli CONFIG SET min-replicas-to-write {wanted}, and the same in each server's redis.conf",
        )
    return Check(_NAME, "ok", f"a change is confirmed by {wanted}, and without {least or 'them'} none is taken")


def _least(connection: redis.Redis) -> int | None:
    try:
        return int(connection.config_get("min-replicas-to-write").get("min-replicas-to-write") or 0)
    except redis.RedisError:  # an account that may not ask
        return None
