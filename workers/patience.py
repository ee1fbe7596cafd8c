"""How long a worker waits for Redis: for ever, until it is told to stop."""

import logging
import time

from redis.backoff import AbstractBackoff
from rq.exceptions import StopRequested

log = logging.getLogger("warpdesk.worker")

_FIRST, _LONGEST = 0.02, 1.0


class Patience(AbstractBackoff):
    """Delays between the tries of one Redis command. After `end_by` passes, a try that fails raises StopRequested."""

    def __init__(self) -> None:
        self.end_by: float | None = None  # time.monotonic()

    def __deepcopy__(self, memo: object) -> "Patience":
        return self  # redis-py gives each connection a copy; all of them must hear of the end

    def compute(self, failures: int) -> float:
        if self.end_by is not None and time.monotonic() > self.end_by:
            raise StopRequested
        if failures == 3 or failures % 60 == 0:
            log.warning("Redis does not answer; trying on (%d tries)", failures)
        return min(_LONGEST, _FIRST * 2.0 ** min(failures, 16))
