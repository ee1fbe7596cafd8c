"""Lua scripts in Redis: each is called by its digest, and loaded by whoever may load scripts.

A Redis that was restarted knows no script. The API's account may load them and does so at once; a worker's account may
only call those that are there (deploy/redis/users.acl), so a worker asks again until an API process has loaded them.
Without accounts, as in the embedded Redis, everybody may.
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
    """Redis does not know the scripts of this release yet. It is tried again as if Redis were away."""


@cache
def digest_of(script: str) -> str:
    """What Redis calls a script that it has seen."""
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


def evaluate(connection: Redis, script: str, *arguments: Any) -> Any:
    """Run a script. One that Redis does not know is loaded and tried again, as often as the connection's own retries
    say; raises ScriptsMissing when it is not there then."""

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
    """There is no connection to close."""


def load(connection: Redis, scripts: Sequence[str] = SCRIPTS) -> None:
    """Load scripts, all of this release by default. Raises NoPermissionError for an account that may not."""
    for script in scripts:
        connection.script_load(script)


def missing(connection: Redis) -> list[str]:
    """The scripts of this release that Redis does not know."""
    known = connection.script_exists(*map(digest_of, SCRIPTS))
    return [script for script, there in zip(SCRIPTS, known, strict=True) if not there]
