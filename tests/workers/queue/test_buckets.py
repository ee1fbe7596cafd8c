"""The table of preferred numbers, and the quantiles of counts in it."""

import math
from collections import Counter
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpdesk_server.workers.queue.buckets import BOUNDS, RELATIVE_ERROR, bound, cumulative, index, quantile

times = st.floats(0, 1e6) | st.integers(0, len(BOUNDS) - 1).map(BOUNDS.__getitem__)


def test_no_bound_is_more_than_an_eighth_above_the_one_before() -> None:
    exact = [Decimal(repr(value)) for value in BOUNDS]
    assert (exact[0], exact[-1]) == (Decimal("1e-5"), Decimal("1e5"))
    assert all(1 < after / before <= Decimal("1.125") for before, after in pairwise(exact))


@pytest.mark.parametrize("decade", range(-5, 5))
def test_every_decade_has_the_limits_people_ask_for(decade: int) -> None:
    for number in ("1", "2", "2.5", "5", "7.5"):
        limit = float(f"{number}e{decade}")
        assert bound(index(limit)) == limit


@given(times)
def test_a_time_is_counted_where_le_would_count_it(seconds: float) -> None:
    place = index(seconds)
    assert seconds <= bound(place)
    assert place == 0 or bound(place - 1) < seconds


def test_what_is_out_of_the_table_is_counted_at_its_ends() -> None:
    assert [index(seconds) for seconds in (-3.0, 0.0, 1e-9, 1e5, 1e9)] == [0, 0, 0, 230, 231]
    assert bound(231) == math.inf


@given(st.lists(st.floats(1e-5, 1e5), min_size=1, max_size=200), st.floats(0, 1))
def test_a_quantile_is_within_its_error(values: list[float], share: float) -> None:
    estimate = quantile(Counter(map(index, values)), share)
    assert estimate == pytest.approx(np.quantile(values, share, method="inverted_cdf"), rel=RELATIVE_ERROR)


def test_the_stated_error_is_that_of_the_widest_buckets() -> None:
    worst = max(abs((quantile({index(limit): 1}, 0.5) or 0.0) / limit - 1) for limit in BOUNDS[1:])
    just_above = 0.2 * (1 + 1e-12)  # in the bucket up to 0.225, an eighth more
    assert abs((quantile({index(just_above): 1}, 0.5) or 0.0) / just_above - 1) == pytest.approx(RELATIVE_ERROR)
    assert worst <= RELATIVE_ERROR < 0.061


def test_nothing_counted_has_no_quantile() -> None:
    assert quantile({}, 0.5) is None
    assert quantile({3: 0}, 0.5) is None


def test_a_quantile_out_of_the_table_is_told_as_its_end() -> None:
    assert (quantile({0: 5}, 0.9), quantile({len(BOUNDS): 5}, 0.9)) == (1e-5, 1e5)


@given(st.lists(times, max_size=200))
def test_a_histogram_over_some_bounds_is_exact(values: list[float]) -> None:
    limits = (0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 7.5, 600.0)
    counted = cumulative(Counter(map(index, values)), limits)
    assert counted == [sum(value <= limit for value in values) for limit in limits]


def test_a_histogram_over_another_bound_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.07 s is none of the 231 bounds; the next above is 0\.075 s"):
        cumulative({}, (0.05, 0.07))
