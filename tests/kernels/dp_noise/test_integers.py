"""Rounding, clipping and summing are exact, whatever the values and their order."""

from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernels.dp_noise.integers import OUT_OF_RANGE, sum_records, to_grid
from kernels.dp_noise.release import NORM

# The first call of a compiled function loads or compiles it: no example has a deadline.
_settings = settings(deadline=None, max_examples=50)

_UNIT = (1 << 52, -52)  # one step per unit
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_MANTISSAS = st.integers(2**52, 2**53 - 1)


@_settings
@given(st.lists(_FLOATS, min_size=1, max_size=20), _MANTISSAS, st.integers(-120, 20))
@example([0.5, 1.5, -2.5, -0.5], *_UNIT)
@example([5e-324, -0.0, 1.7976931348623157e308], 2**53 - 1, 0)
@example([2.0**62, 2.0**61, -(2.0**62), 2.0**63], *_UNIT)
def test_a_value_is_rounded_to_the_nearest_step_and_ties_to_even(
    values: list[float], mantissa: int, exponent: int
) -> None:
    exact = [Fraction(value) * mantissa * Fraction(2) ** exponent for value in values]
    expected = [max(-OUT_OF_RANGE, min(OUT_OF_RANGE, round(value))) for value in exact]
    steps = np.empty(len(values), np.int64)
    to_grid(_bits(values), np.uint64(mantissa), exponent, steps)
    assert steps.tolist() == expected


def test_every_position_of_the_binary_point_rounds_exactly() -> None:
    random = np.random.default_rng(3)
    for exponent in range(-115, -35):
        values = random.uniform(1, 2, 8) * random.choice([-1, 1], 8)
        mantissa = int(random.integers(2**52, 2**53))
        steps = np.empty(8, np.int64)
        to_grid(_bits(values), np.uint64(mantissa), exponent, steps)
        exact = [round(Fraction(float(value)) * mantissa * Fraction(2) ** exponent) for value in values]
        assert steps.tolist() == [max(-OUT_OF_RANGE, min(OUT_OF_RANGE, value)) for value in exact]


# A record in L2 keeps floor(|q| * bound / norm) with the norm rounded up to an integer: never above the bound.
@pytest.mark.parametrize(
    ("record", "bound", "expected"),
    [
        ([3, 4], 5, [3, 4]),
        ([6, 8], 5, [3, 4]),
        ([-6, 8], 5, [-3, 4]),
        ([1_000_000] * 4, 1_000_000, [500_000] * 4),
        ([1] * 9, 2, [0] * 9),
        ([0, 0], 1, [0, 0]),
    ],
)
def test_l2_clipping_of_known_records(record: list[int], bound: int, expected: list[int]) -> None:
    assert _sum([record], "l2", bound).tolist() == expected


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_record_whose_products_pass_64_bits_keeps_its_direction_to_one_part_in_a_million(norm: str) -> None:
    bound = 2**40
    clipped = _sum([[2.0**50, -(2.0**49), 3 * 2.0**47]], norm, bound).astype(np.float64)
    ideal = np.array([8.0, -4.0, 3.0]) / (15 if norm == "l1" else 89**0.5) * bound
    assert np.all(np.abs(clipped) <= np.abs(ideal))
    assert np.abs(clipped / ideal - 1).max() < 1e-6


@_settings
@given(
    st.lists(st.integers(-(2**48), 2**48), min_size=1, max_size=12),
    st.sampled_from(["l1", "l2", "linf"]),
    st.integers(1, 2**40),
)
def test_a_clipped_record_is_within_its_bound_and_an_inner_one_untouched(
    record: list[int], norm: str, bound: int
) -> None:
    clipped = [int(q) for q in _sum([record], norm, bound)]
    assert _within(clipped, norm, bound)
    if _within(record, norm, bound):
        assert clipped == record
    assert all(q * kept >= 0 and abs(kept) <= abs(q) for q, kept in zip(record, clipped, strict=True))


@_settings
@given(st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=12), st.integers(1, 2**20))
def test_l2_clipping_is_the_formula_in_whole_numbers(record: list[int], bound: int) -> None:
    squares = sum(q * q for q in record)
    norm = isqrt(squares - 1) + 1 if squares else 0
    expected = record if squares <= bound**2 else [(abs(q) * bound // norm) * (1 if q > 0 else -1) for q in record]
    assert _sum([record], "l2", bound).tolist() == expected


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_the_sum_depends_neither_on_the_order_of_records_nor_on_how_they_are_shared_out(norm: str) -> None:
    random = np.random.default_rng(4)
    records = random.normal(0, 1e6, (257, 7)) * np.exp2(random.integers(-30, 30, (257, 7)))
    totals = [
        sum_records(_bits(rows), np.uint64(_UNIT[0]), _UNIT[1], 2**50, NORM[norm], 2**30, parts).tolist()
        for rows in (records, records[::-1], random.permutation(records))
        for parts in (1, 2, 5, 257)
    ]
    assert all(total == totals[0] for total in totals)


def test_values_far_outside_are_cut_before_the_norm_so_that_no_square_overflows() -> None:
    clipped = _sum([[1e300, -1e300, 0.0, 1.0]], "l2", 1000)
    assert clipped.tolist() == [707, -707, 0, 0]


def _within(record: list[int], norm: str, bound: int) -> bool:
    if norm == "l2":
        return sum(q * q for q in record) <= bound**2
    return (sum if norm == "l1" else max)(abs(q) for q in record) <= bound


def _sum(records: Any, norm: str, bound: int) -> npt.NDArray[np.int64]:
    return sum_records(_bits(records), np.uint64(_UNIT[0]), _UNIT[1], 2**50, NORM[norm], bound, 1)


def _bits(values: Any) -> npt.NDArray[np.uint64]:
    bits = np.ascontiguousarray(values, np.float64).view(np.uint64)
    bits.flags.writeable = False
    return bits
