"""Reduced precisions: each format's rounding against an independent one, and what its error is said to be."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpdesk_server.kernels.matmul import cpu
from warpdesk_server.kernels.matmul.precision import LARGEST, nearest, relative_error
from warpdesk_server.kernels.matmul.spec import MatmulParams
from warpdesk_server.kernels.problems import InvalidRequest

SIGNIFICAND = {"tf32": 11, "bf16": 8}  # bits, the implicit one among them
UNIT = {"tf32": 2.0**-11, "bf16": 2.0**-8, "fp16": 2.0**-11}  # half an ulp of 1

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
precisions = pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])


def rounded(value, precision):
    return float(nearest(np, np.array([value], np.float32), precision, "a")[0])


def rounded_exactly(value, bits):
    """Round to `bits` of significand by exact arithmetic on doubles, with float32's smallest exponent."""
    _, exponent = math.frexp(value)
    quantum = max(exponent, -125) - bits
    return math.ldexp(round(math.ldexp(value, -quantum)), quantum)  # Python rounds ties to even


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@given(value=finite)
@settings(max_examples=300)
def test_tf32_and_bf16_round_to_nearest_even(precision, value):
    expected = rounded_exactly(value, SIGNIFICAND[precision])

    if abs(expected) <= LARGEST[precision]:
        assert struct.pack("d", rounded(value, precision)) == struct.pack("d", math.copysign(expected, value))
    else:
        with pytest.raises(InvalidRequest):
            rounded(value, precision)


@given(value=st.floats(-65519.99609375, 65519.99609375, width=32))  # 65520 is the first to round to infinity
@settings(max_examples=300)
def test_fp16_rounds_as_binary16_does(value):
    assert rounded(value, "fp16") == struct.unpack("e", struct.pack("e", value))[0]


# Ties and their neighbours, worked by hand: bf16 near 1 has steps of 2^-7, tf32 of 2^-10.
@pytest.mark.parametrize(
    ("precision", "value", "expected"),
    [
        ("bf16", 1 + 2**-8, 1.0),
        ("bf16", 1 + 3 * 2**-8, 1 + 2**-6),
        ("bf16", 1 + 2**-8 + 2**-23, 1 + 2**-7),
        ("bf16", 2 - 2**-23, 2.0),
        ("tf32", 1 + 2**-11, 1.0),
        ("tf32", 1 + 3 * 2**-11, 1 + 2**-9),
        ("tf32", -(1 + 2**-11 + 2**-23), -(1 + 2**-10)),
        ("fp16", 65519.0, 65504.0),
        ("fp16", 2.0**-25, 0.0),
        ("fp16", 2.0**-24, 2.0**-24),
    ],
)
def test_ties_go_to_the_even_neighbour(precision, value, expected):
    assert rounded(value, precision) == expected


@precisions
def test_values_of_the_format_stay_as_they_are(precision):
    values = nearest(np, np.random.default_rng(1).standard_normal(1000).astype(np.float32), precision, "a")

    assert np.array_equal(nearest(np, values, precision, "a"), values)


@pytest.mark.parametrize(
    ("precision", "value", "sentence"),
    [
        ("fp16", 70000.0, "fp16 holds at most 65504 in magnitude and b[1, 2] is beyond that; scale"),
        ("fp16", -65520.0, "fp16 holds at most 65504 in magnitude and b[1, 2] is beyond that; scale"),
        ("bf16", 3.4028235e38, "bf16 holds at most 3.38953e+38 in magnitude and b[1, 2] is beyond that; scale"),
    ],
)
def test_a_value_the_format_cannot_hold_is_refused_with_its_place_and_not_itself(precision, value, sentence):
    a, b = np.ones((2, 2), np.float32), np.ones((2, 3), np.float32)
    b[1, 2] = value

    with pytest.raises(InvalidRequest) as refusal:
        cpu.matmul(MatmulParams(precision=precision), a, b)

    assert sentence in str(refusal.value)


@precisions
@given(m=st.integers(1, 40), k=st.integers(1, 200), n=st.integers(1, 40), seed=st.integers(0, 999))
@settings(max_examples=25, deadline=None)
def test_the_error_returned_is_that_of_the_product(precision, m, k, n, seed):
    random = np.random.default_rng(seed)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))

    answer = cpu.matmul(MatmulParams(precision=precision), a, b)

    exact = a.astype(np.longdouble) @ b
    measured = [i * (m - 1) // max(min(m, 16) - 1, 1) for i in range(min(m, 16))]
    error = np.linalg.norm((answer["product"] - exact)[measured]) / np.linalg.norm(exact[measured])
    assert answer["relative_error"] == pytest.approx(float(error), rel=1e-6)
    assert (answer["algorithm"], answer["precision"]) == ("library", precision)


@precisions
def test_products_stay_within_the_bound_of_rounded_factors(precision):
    # Both factors rounded, then summed in float32: |error| <= (2u + u^2 + (1 + u)^2 gamma_k) |a| |b| (Higham, ch. 3).
    random = np.random.default_rng(7)
    a, b = (random.uniform(-1, 1, shape).astype(np.float32) for shape in ((60, 300), (300, 50)))
    u, gamma = UNIT[precision], 300 * 2**-24 / (1 - 300 * 2**-24)

    product = cpu.matmul(MatmulParams(precision=precision), a, b)["product"]

    # fp16 rounds below 2^-14 to a fixed step of 2^-24 instead of a relative one.
    floor = 300 * 2**-24 if precision == "fp16" else 0.0
    bound = (2 * u + u * u + (1 + u) ** 2 * gamma) * (np.abs(a).astype(np.float64) @ np.abs(b)) + floor
    assert np.all(np.abs(product - a.astype(np.float64) @ b) <= bound)


def test_narrower_formats_cost_more_and_the_answer_shows_it():
    random = np.random.default_rng(3)
    a, b = (random.standard_normal((100, 100)).astype(np.float32) for _ in "ab")

    error = {p: cpu.matmul(MatmulParams(precision=p), a, b)["relative_error"] for p in ("tf32", "bf16", "fp16")}

    # Each factor is off by u / sqrt(3) on average over a binade or less, and the two errors add in squares.
    assert 0.1 * UNIT["tf32"] < error["tf32"] < UNIT["tf32"]
    assert 0.1 * UNIT["bf16"] < error["bf16"] < UNIT["bf16"]
    assert error["fp16"] == pytest.approx(error["tf32"], rel=0.01)  # both keep 11 bits


def test_the_error_is_null_where_it_has_no_scale():
    zero, ones = np.zeros((3, 3), np.float32), np.ones((3, 3), np.float32)
    large = np.full((2, 2), 1e38, np.float32)

    assert cpu.matmul(MatmulParams(precision="bf16"), zero, ones)["relative_error"] is None
    assert cpu.matmul(MatmulParams(precision="bf16"), large, large)["relative_error"] is None


def test_the_error_is_measured_in_every_part_of_a_batch_and_in_blocks_of_columns(monkeypatch):
    random = np.random.default_rng(5)
    a, b = random.standard_normal((4, 3, 5)), random.standard_normal((4, 5, 7))
    product = a @ b
    product[2, 1, 6] += 1e-3  # 12 rows in all: each is measured

    expected = 1e-3 / np.linalg.norm(a @ b)
    assert relative_error(np, a, b, product) == pytest.approx(expected)
    monkeypatch.setattr("warpdesk_server.kernels.matmul.precision._WORKSPACE", 10)  # two columns at a time
    assert relative_error(np, a, b, product) == pytest.approx(expected)
