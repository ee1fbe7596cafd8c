"""The watchdog of Lua scripts in Redis: it keeps the queue's scripts loaded, and ends a script that does not end.

Redis does nothing else while a script runs. After its `lua-time-limit` it refuses every command as BUSY, except the
commands that end the script.
"""

import asyncio
import logging
import time

import anyio
import anyio.to_thread
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.retry import Retry

from warpdesk_server.workers.queue import lua
from warpdesk_server.workers.queue.jobs import connect

log = logging.getLogger("warpdesk.api")

LOOK_SECONDS = 1.0
BUSY_SECONDS = 2.0  # BUSY for so long, and the script is ended; the queue's scripts take milliseconds


class Watchdog:
    """The watchdog of the queue's scripts in Redis, in one API process. Several may run: to end a script twice does
    no harm."""

    def __init__(self, url: str, patience: float) -> None:
        # No health check of the connection, which a busy Redis refuses too.
        self._redis = connect(url, Retry(NoBackoff(), 0), patience)
        # Scripts have no database, and a busy Redis refuses SELECT.
        self._redis.get_connection_kwargs().update(db=0, health_check_interval=0)
        self._busy_since: float | None = None
        self._trouble = ""
        self._thread = anyio.CapacityLimiter(1)

    async def watch(self) -> None:
        """The API's task that watches the queue's scripts in Redis; it runs for as long as the API."""
        while True:
            await anyio.to_thread.run_sync(self.look, limiter=self._thread)
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        try:
            lua.load(self._redis, lua.missing(self._redis))
        except NoPermissionError as error:
            remedy = "give the API's account the line `user api` of deploy/redis/users.acl"
            self._tell(f"scripts cannot be loaded into Redis ({error}): {remedy}")
        except ResponseError as error:
            if str(error).startswith("BUSY"):
                self._busy(function="FUNCTION KILL" in str(error))
                return
            self._tell(f"scripts cannot be loaded into Redis: {error}")
        except (RedisError, OSError):  # Redis cannot be reached, which the queue's calls log
            pass
        else:
            self._trouble = ""
        self._busy_since = None

    def close(self) -> None:
        self._redis.close()

    def _busy(self, *, function: bool) -> None:
        now = time.monotonic()
        if self._busy_since is None:
            self._busy_since = now
        seconds = now - self._busy_since
        if seconds < BUSY_SECONDS:
            return
        kill = "FUNCTION KILL" if function else "SCRIPT KILL"
        try:
            self._redis.execute_command(kill)  # type: ignore[no-untyped-call]
        except ResponseError as error:
            if str(error).startswith("UNKILLABLE"):
                self._tell(
                    "a script that has written holds Redis, which does not let it be ended: run SHUTDOWN NOSAVE as "
                    "`operator` and start Redis again. What was acknowledged is in its append-only file"
                )
            elif not str(error).startswith("NOTBUSY"):  # NOTBUSY: the script has ended meanwhile
                self._tell(f"a script holds Redis and {kill} is refused ({error}): run it as `operator`")
        except (RedisError, OSError) as error:
            self._tell(f"a script holds Redis and {kill} has no answer: {type(error).__name__}")
        else:
            log.warning("a script blocked Redis, which was BUSY for %.1f s: it was ended by %s", seconds, kill)
            self._busy_since = None

    def _tell(self, trouble: str) -> None:
        """Log a problem that the API has with the queue's scripts in Redis once, not at every check."""
        if trouble != self._trouble:
            self._trouble = trouble
            log.error("%s", trouble)
