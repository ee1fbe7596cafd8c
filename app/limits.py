"""How many requests may come from one: a token bucket for each, held by this process alone."""

import ipaddress
import math
import time
from collections.abc import Callable

from app.errors import Refusal

_MOST = 10_000  # buckets that are kept


class Limits:
    """Each may send `burst` requests at once and `rate` a second on average; `sentence` says so to who sends more.

    However many come, 10,000 buckets are kept: full ones are forgotten first, which changes nothing, then those that
    were counted longest ago.
    """

    def __init__(self, rate: float, burst: int, sentence: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._sentence = sentence
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens, and when they were counted; the latest last

    def take(self, whose: str) -> None:
        """Count one request, or refuse it with 429 and the seconds after which one more is due."""
        now = self._clock()
        tokens, counted = self._buckets.pop(whose, (self._burst, now))
        tokens = min(self._burst, tokens + (now - counted) * self._rate)
        if tokens < 1.0:
            self._buckets[whose] = tokens, now
            wait = max(1, math.ceil((1.0 - tokens) / self._rate))
            sentence = f"{self._sentence}: {self._rate:g} a second, {self._burst:g} at once"
            raise Refusal("rate-limited", sentence, headers={"Retry-After": str(wait)})
        self._buckets[whose] = tokens - 1.0, now
        if len(self._buckets) > _MOST:
            self._forget(now)

    def _forget(self, now: float) -> None:
        full = [
            whose
            for whose, (tokens, counted) in self._buckets.items()
            if tokens + (now - counted) * self._rate >= self._burst
        ]
        oldest = list(self._buckets)[: _MOST // 10]  # so many at once that this is done seldom
        for whose in full or oldest:
            del self._buckets[whose]


def network(address: str) -> str:
    """What counts as one sender: an IPv4 address, or the /64 that one line has of IPv6."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]  # of a unix socket, say
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return address
