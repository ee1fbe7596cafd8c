"""Durability of writes: how soon the connected Redis and the store have on the disk what they accept."""

from typing import Literal

from redis import Redis
from redis.exceptions import ResponseError

from warpdesk_server.workers.settings import Durability as Forced

Durability = Literal["replicated", "always", "everysec", "none", "unknown"]

_POLICIES: dict[str, Durability] = {"always": "always", "everysec": "everysec"}

HEADER = "Warpdesk-Durability"
DOCUMENTED = {
    HEADER: {
        "description": "When what was taken is on the disk: `replicated` before this answer, and on a replica's; "
        "`always` before this answer; `everysec` about a second later, arrays within half a minute; `none` at some "
        "time or never; `unknown` where Redis does not tell",
        "schema": {"type": "string", "enum": ["replicated", "always", "everysec", "none", "unknown"]},
    }
}


def weakest(redis: Durability, store: Forced) -> Durability:
    """The durability that the API reports: that of the connected Redis, and no more than the store's profile.

    With the profile `replicated` no answer comes before it is confirmed, whatever is known of Redis' configuration.

    With the profile `everysec` files are not forced: they follow within the half minute in which a kernel writes them.
    """
    return store if redis == "always" or store == "replicated" else redis


def of_array(found: Durability) -> Durability:
    """The durability of an array, of what the API reports for a job: the store has no replica."""
    return "always" if found == "replicated" else found


def of_redis(connection: Redis) -> Durability:
    """The durability that the API finds for the connected Redis. Raises RedisError if it cannot be asked.

    `always`: each write is on the disk before it is confirmed; `everysec`: about a second later; `none`: at some time
    or never; `unknown`: the server does not say.
    """
    try:
        found = connection.config_get("*append*")
    except ResponseError:  # a managed server without CONFIG, or a user who may not ask
        return _by_information(connection)
    if found.get("appendonly") != "yes":
        return "none"
    if found.get("no-appendfsync-on-rewrite") == "yes":
        return "none"  # while the file is rewritten nothing is forced
    return _POLICIES.get(found.get("appendfsync") or "", "none")


def _by_information(connection: Redis) -> Durability:
    """The durability that the API reports for a Redis that refuses CONFIG, from its INFO."""
    try:
        enabled = connection.info("persistence").get("aof_enabled")
    except ResponseError:
        return "unknown"
    return "none" if enabled == 0 else "unknown"
