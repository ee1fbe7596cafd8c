"""Rounding, clipping and summing are exact, whatever the values and their order."""

from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from warpdesk_server.kernels.dp_noise import gpu
from warpdesk_server.kernels.dp_noise.integers import OUT_OF_RANGE, sum_records, to_grid
from warpdesk_server.kernels.dp_noise.release import NORM
from warpdesk_server.kernels.gpu.contract import Device

# The first call of a compiled function loads or compiles it: no example has a deadline.
_settings = settings(deadline=None, max_examples=50)

_UNIT = (1 << 52, -52)  # one step per unit
(_SOURCE,) = gpu.SOURCES
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


def _around_ties(shift: int) -> tuple[int, list[int]]:
    """A mantissa, and m from 2**52 to 2**53 with m * mantissa just below, at and just above half of 2**shift."""
    if shift <= 52:
        # An odd mantissa can be divided by: m runs through all residues.
        mantissa = 0x17_3B5C_9D2E_4F61 | 2**52
        targets = [(2 ** (shift - 1) + apart) * pow(mantissa, -1, 2**shift) for apart in (-1, 0, 1)]
        least = [2**52 + (target - 2**52) % 2**shift for target in targets]
        return mantissa, [m + more for m in least for more in (0, 2**shift) if m + more < 2**53]
    # With 2**52 for a mantissa the low shift - 52 bits of m are what is rounded; `even` or odd is what stays.
    low = shift - 52
    remainders = [2 ** (low - 1) + apart for apart in (-1, 0, 1)]
    stays = [2**52 >> low, (2**52 >> low) + 1, (2**53 >> low) - 1]
    found = {(stay << low) + remainder for stay in stays for remainder in remainders}
    return 2**52, sorted(m for m in found if 2**52 <= m < 2**53)


def test_the_values_around_ties_are_ties_of_even_and_odd_steps_and_their_neighbours() -> None:
    for shift in (*range(43, 52), *range(54, 104)):  # at 52 and 53 there is room for one tie of each mantissa
        mantissa, found = _around_ties(shift)
        half = 2 ** (shift - 1)
        pairs = {((m * mantissa >> shift) % 2, np.sign(m * mantissa % 2**shift - half)) for m in found}
        assert pairs >= {(0, 0), (1, 0)}, shift
        assert shift < 54 or pairs == {(even, side) for even in (0, 1) for side in (-1, 0, 1)}, shift


@pytest.mark.parametrize("shift", range(43, 110))
def test_values_around_ties_are_rounded_to_even_on_the_cpu(shift: int) -> None:
    mantissa, found = _around_ties(shift)
    steps = np.empty(2 * len(found), np.int64)
    to_grid(_both_signs(found), np.uint64(mantissa), 52 - shift, steps)
    assert steps.tolist() == _rounded(found, mantissa, shift)


@pytest.mark.parametrize("shift", range(43, 110))
def test_values_around_ties_are_rounded_to_even_on_a_device(device: Device, shift: int) -> None:
    mantissa, found = _around_ties(shift)
    count = 2 * len(found)
    steps = device.zeros(count, np.int64)  # sums of one record
    bits = device.to_device(_both_signs(found))
    arguments = (
        bits, np.uint64(1), np.uint64(count), np.uint64(mantissa), np.int32(52 - shift), np.uint64(0),
        np.int32(NORM["linf"]), np.uint64(OUT_OF_RANGE), steps, np.uint32(128), np.uint64(1), steps,
    )  # fmt: skip
    device.kernel(_SOURCE, "sum_rows")((1 + count // 128, 1), (128,), arguments)
    assert device.to_host(steps).tolist() == _rounded(found, mantissa, shift)


def _both_signs(found: list[int]) -> npt.NDArray[np.uint64]:
    """The float64 bits of m / 2**52 and of its negative, for every m."""
    bits = np.array([(1023 << 52) + (m - 2**52) + (sign << 63) for sign in (0, 1) for m in found], np.uint64)
    bits.flags.writeable = False
    return bits


def _rounded(found: list[int], mantissa: int, shift: int) -> list[int]:
    exact = [min(round(Fraction(m * mantissa, 2**shift)), OUT_OF_RANGE) for m in found]
    return exact + [-step for step in exact]


_CARRYING = [[2**32 - 1] * 3, [2**33 - 2**16, 2**33 - 2**15, 5], [2**48 - 1] * 40, [3 * 2**31] * 33]


@pytest.mark.parametrize("record", _CARRYING[:2])
def test_records_whose_squares_carry_past_64_bits_are_clipped_by_their_whole_norm(record: list[int]) -> None:
    norm = isqrt(sum(q * q for q in record) - 1) + 1
    assert _sum([record], "l2", 1000).tolist() == [q * 1000 // norm for q in record]


@pytest.mark.parametrize("record", _CARRYING)
def test_a_device_takes_the_norm_of_squares_that_carry_past_64_bits(device: Device, record: list[int]) -> None:
    norms, squares = device.empty(1, np.uint64), sum(q * q for q in record)
    assert sum(q * q % 2**64 for q in record) >= 2**64, "nothing is carried"
    arguments = (
        device.to_device(_bits([record])), np.uint64(1), np.uint64(len(record)), np.uint64(_UNIT[0]),
        np.int32(_UNIT[1]), np.uint64(2**50), np.int32(NORM["l2"]), np.uint64(1000), norms,
    )  # fmt: skip
    device.kernel(_SOURCE, "row_norms")((1,), (32, 4), arguments)
    assert device.to_host(norms).tolist() == [isqrt(squares - 1) + 1]


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
