"""Calls of Lua scripts: each by its digest, after a process that may load scripts has loaded it.

A Redis that was restarted has no scripts. The API's account may load them, and does so at once. A worker's account may
only call those that are loaded (deploy/redis/users.acl), so a worker tries again until an API process has loaded them.
Without accounts, as in the embedded Redis, every process may load them.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import redis
from redis import Redis
from redis.exceptions import NoPermissionError, NoScriptError

from warpdesk_server.workers.queue.scripts import SCRIPTS


class ScriptsMissing(redis.ConnectionError):
    """Redis does not have the scripts of this release yet. Callers try again, as if Redis were away."""


@cache
def digest_of(script: str) -> str:
    """The digest by which Redis calls a Lua script."""
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


def evaluate(connection: Redis, script: str, *arguments: Any) -> Any:
    """Run a Lua script in Redis.

    One that Redis does not have is loaded and tried again, as often as the connection's own retries. Raises
    ScriptsMissing when it is still not there.
    """

    def call() -> Any:
        try:
            return connection.evalsha(digest_of(script), 0, *arguments)
        except NoScriptError:
            with suppress(NoPermissionError):  # a worker's account: an API process does it
                load(connection)
            raise ScriptsMissing("Redis lacks a script: an API process of this release has to load it") from None

    try:
        return call()
    except ScriptsMissing:
        retry = connection.get_retry()
    if retry is None:
        return call()
    # All else was tried again by the connection itself.
    return retry.call_with_retry(call, _nothing, lambda error: isinstance(error, ScriptsMissing))


def _nothing(_: Exception) -> None:
    """The hook between two tries of a script: do nothing, since the Redis connection itself is sound."""


def load(connection: Redis, scripts: Sequence[str] = SCRIPTS) -> None:
    """Load Lua scripts into Redis, all of this release by default.

    Raises NoPermissionError for an account that may not.
    """
    for script in scripts:
        connection.script_load(script)


def missing(connection: Redis) -> list[str]:
    """The Lua scripts of this release that Redis does not have."""
    loaded = connection.script_exists(*map(digest_of, SCRIPTS))
    return [script for script, there in zip(SCRIPTS, loaded, strict=True) if not there]
