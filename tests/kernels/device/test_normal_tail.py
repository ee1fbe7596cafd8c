"""The normal distribution function against mpmath in 50 digits and published values, and its twin bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from warpdesk_server.kernels.device.normal_tail import normal_cdf, tail_slope
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.source import Source

Array = NDArray[np.float64]
_SOURCE = Source(Path(__file__).with_name("normal_tail.cu"))


@njit
def _each(x, cdf, slope):  # type: ignore[no-untyped-def]
    """Both functions in one compilation."""
    for i in range(len(x)):
        cdf[i] = normal_cdf(x[i])
        slope[i] = tail_slope(min(abs(x[i]) - 0.5, 39.0))


def evaluate(x: object) -> tuple[Array, Array]:
    numbers = np.asarray(x, float)
    out = np.empty_like(numbers), np.empty_like(numbers)
    _each(numbers, *out)
    return out


def cdf(x: object) -> Array:
    return evaluate(x)[0]


def some() -> Array:
    random = np.random.default_rng(5)
    return np.concatenate(
        [random.uniform(-38.6, 0, 1_500), random.uniform(-3, 8.5, 1_000), -np.exp(random.uniform(-45, 0, 200))]
    )


def exact(x: Array) -> list[Any]:
    import mpmath

    with mpmath.workdps(50):
        return [mpmath.erfc(-mpmath.mpf(float(one)) / mpmath.sqrt(2)) / 2 for one in x]


def test_it_is_within_7e_16_of_itself_and_below_the_normal_numbers_to_a_unit_besides() -> None:
    import mpmath

    x = some()
    for one, probability, got in zip(x, exact(x), cdf(x), strict=True):
        unit = 0 if probability >= mpmath.mpf(2) ** -1022 else mpmath.mpf(2) ** -1074
        assert abs(mpmath.mpf(float(got)) - probability) <= 7e-16 * probability + unit, one


# Abramowitz and Stegun (1964), tables 26.1 (to 15 digits) and 26.2 (-log10 of the upper tail).
@pytest.mark.parametrize(("x", "probability"), [(1.0, 0.841344746068543), (2.0, 0.977249868051821)])
def test_it_has_the_published_values(x: float, probability: float) -> None:
    assert cdf([x])[0] == pytest.approx(probability, abs=5e-16)


@pytest.mark.parametrize(("x", "minus_log"), [(5.0, 6.54265), (10.0, 23.11805), (20.0, 88.56010), (30.0, 197.30921)])
def test_its_tail_has_the_published_logarithms(x: float, minus_log: float) -> None:
    assert -np.log10(cdf([-x])[0]) == pytest.approx(minus_log, abs=6e-6)


def test_its_ends_its_middle_and_a_nan() -> None:
    assert cdf([-np.inf, -39.0, -1e300, 0.0, -0.0, 9.0, 1e300, np.inf]).tolist() == [0, 0, 0, 0.5, 0.5, 1, 1, 1]
    assert np.isnan(cdf([np.nan])[0])


def test_it_never_falls() -> None:
    x = np.sort(np.concatenate([np.linspace(-38.6, 8.5, 20_000), some()]))
    assert (np.diff(cdf(x)) >= -2e-16 * cdf(x)[1:] * 3).all()  # to its own rounding


def test_both_sides_add_up_to_one() -> None:
    x = some()
    assert np.abs(cdf(x) + cdf(-x) - 1).max() <= 2.0**-53


def test_the_slope_of_the_scaled_tail_is_within_2e_15_of_itself() -> None:
    import mpmath

    x = np.concatenate([some(), np.linspace(0, 39, 500)])
    with mpmath.workdps(50):
        for one, got in zip(x, evaluate(x)[1], strict=True):
            t = mpmath.mpf(min(abs(float(one)) - 0.5, 39.0))
            slope = 1 / mpmath.sqrt(2 * mpmath.pi) - t * mpmath.exp(t * t / 2) * mpmath.erfc(t / mpmath.sqrt(2)) / 2
            assert abs(mpmath.mpf(float(got)) / slope - 1) < 2e-15, t


def test_the_twins_have_the_same_bytes(device: Device) -> None:
    x = np.concatenate([some(), [np.inf, -np.inf, 0.0, -0.0, 39.0, -39.0]])
    out = [device.empty(x.size, np.float64) for _ in range(2)]
    device.kernel(_SOURCE, "evaluate")((2,), (256,), (np.uint32(x.size), device.to_device(x), *out))
    for expected, got in zip(evaluate(x), out, strict=True):
        assert device.to_host(got).tobytes() == expected.tobytes()
