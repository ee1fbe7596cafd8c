"""Buckets of times: one fixed table of preferred numbers, and the quantiles and histograms of counts in it.

Bucket `i` counts times above the bound before it and at most `BOUNDS[i]`, as `le` of a Prometheus histogram does. So a
histogram over some of the bounds is exact. A bound is at most 1.125 times the one before, and a quantile is given as
the geometric middle of its bucket. That is within `RELATIVE_ERROR` of the value of that rank (`numpy.quantile` with
`method="inverted_cdf"`). A time below the first bound, 10 us, is given as that bound, and one above the last, 28 hours,
as the last.

Counts are kept in Redis by index, for days: another table needs other names there.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate

# Of each decade: short numbers, among them those that limits are made of.
_PREFERRED = (
    1, 1.1, 1.2, 1.35, 1.5, 1.65, 1.8, 2, 2.25, 2.5, 2.75, 3, 3.3, 3.6, 4, 4.5, 5, 5.5, 6, 6.75, 7.5, 8, 9
)  # fmt: skip
_DECADES = range(-5, 5)

# From decimal text, as a reader of Prometheus' text reads them: 2.5 * 1e-4 is not always 2.5e-4.
BOUNDS = (*(float(f"{number}e{decade}") for decade in _DECADES for number in _PREFERRED), 1e5)

RELATIVE_ERROR = math.sqrt(1.125) - 1  # 6.1 %


def index(seconds: float) -> int:
    """The bucket in which a time is counted: 0 for a negative one, as after a clock was set back.

    Above all bounds it is `len(BOUNDS)`.
    """
    return bisect_left(BOUNDS, seconds)


def bound(index: int) -> float:
    """The largest time, in seconds, that a bucket of the counts in Redis holds."""
    return BOUNDS[index] if index < len(BOUNDS) else math.inf


def quantile(counts: Mapping[int, int], share: float) -> float | None:
    """The quantile, in seconds, of times counted in buckets, within RELATIVE_ERROR; None where nothing was counted."""
    rank = max(1, math.ceil(share * sum(counts.values())))
    for bucket in sorted(counts):
        rank -= counts[bucket]
        if rank <= 0:
            return _middle(bucket)
    return None


def _middle(bucket: int) -> float:
    if bucket == 0:
        return BOUNDS[0]
    if bucket >= len(BOUNDS):
        return BOUNDS[-1]
    return math.sqrt(BOUNDS[bucket - 1] * BOUNDS[bucket])


def cumulative(counts: Mapping[int, int], bounds: Iterable[float]) -> list[int]:
    """The number of times that the buckets count at or below each of these bounds.

    Raises ValueError for a bound that is not in the table of buckets.
    """
    totals = list(accumulate(counts.get(bucket, 0) for bucket in range(len(BOUNDS) + 1)))
    at_most = []
    for value in bounds:
        last = index(value)
        if bound(last) != value:
            raise ValueError(f"{value!r} s is none of the {len(BOUNDS)} bounds; the next above is {bound(last)!r} s")
        at_most.append(totals[last])
    return at_most
