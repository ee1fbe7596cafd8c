"""The worker's retries of Redis commands: without a limit, until the worker is told to stop."""

import logging
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

import redis
from redis.backoff import AbstractBackoff
from redis.retry import Retry

log = logging.getLogger("warpdesk.worker")

T = TypeVar("T")

_FIRST, _LONGEST = 0.02, 1.0

# How Redis says that it takes no writes now: it is full, follows another, cannot write its file or lacks its replicas,
# or is held up by a script. Inside of a script of ours older ones say so in the middle of a sentence.
_PASSES = re.compile(
    "not allowed when used memory|against a read only replica|MISCONF|NOREPLICAS|link with MASTER is down"
    r"|BUSY \w+ is busy",
    re.IGNORECASE,
)


class StopRequested(Exception):
    """Raised when the worker was told to stop and Redis does not answer."""


class StoppableBackoff(AbstractBackoff):
    """Delays between the worker's tries of one Redis command.

    After `end_by` passes, a try that fails raises StopRequested.
    """

    def __init__(self) -> None:
        self.end_by: float | None = None  # time.monotonic()
        self.why = "nothing was tried"  # what the last try failed with

    def __deepcopy__(self, memo: object) -> "StoppableBackoff":
        return self  # redis-py gives each connection a copy; all of them must hear of the end

    def compute(self, failures: int) -> float:
        if self.end_by is not None and time.monotonic() > self.end_by:
            raise StopRequested
        if failures == 3 or failures % 60 == 0:
            log.warning("Redis does not answer, or refuses: %s; trying on (%d tries)", self.why, failures)
        return min(_LONGEST, _FIRST * 2.0 ** min(failures, 16))


class RetryUntilStopped(Retry):
    """The retry policy of the worker's Redis connection.

    It also retries what Redis refuses for a while, such as writes when it is full: for a worker with a result to
    deliver that is the same as no answer.
    """

    def __init__(self, patience: StoppableBackoff) -> None:
        super().__init__(patience, -1)
        self._patience = patience

    def call_with_retry(self, do: Callable[[], T], *how: Any, **more: Any) -> T:
        def ask() -> T:
            try:
                return do()
            except redis.ResponseError as error:
                if _PASSES.search(str(error)):
                    raise redis.ConnectionError(str(error)) from error
                raise
            except (redis.ConnectionError, redis.TimeoutError) as error:
                self._patience.why = str(error) or type(error).__name__
                raise

        return super().call_with_retry(ask, *how, **more)
