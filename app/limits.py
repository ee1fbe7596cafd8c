"""How many requests a key may send: a token bucket for each, held by this process alone."""

import math
import time
from collections.abc import Callable

from app.errors import Refusal


class Limits:
    """Each key may send `burst` requests at once and `rate` a second on average."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens, and when they were counted

    def take(self, owner: str) -> None:
        """Count one request, or refuse it with 429 and the seconds after which one more is due."""
        now = self._clock()
        tokens, counted = self._buckets.get(owner, (self._burst, now))
        tokens = min(self._burst, tokens + (now - counted) * self._rate)
        if tokens < 1.0:
            wait = max(1, math.ceil((1.0 - tokens) / self._rate))
            sentence = f"The key may submit {self._rate:g} jobs and arrays a second, {self._burst:g} at once"
            raise Refusal("rate-limited", sentence, headers={"Retry-After": str(wait)})
        self._buckets[owner] = (tokens - 1.0, now)
