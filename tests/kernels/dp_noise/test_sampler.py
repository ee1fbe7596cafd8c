"""The sampler draws the exact distributions, and the tests that say so can fail."""

import itertools

import numba
import numpy as np
import numpy.typing as npt
import pytest

from kernels.dp_noise.release import DOMAIN
from kernels.dp_noise.sampler import add_noise
from tests.kernels.dp_noise.distributions import Draw, fits, gaussian_pmf, laplace_pmf, moments_fit

_COUNT = 200_000
_KEYS = itertools.count(1)  # fresh, and the same in every run


def _noise(mechanism: str, k: int, count: int, key: int) -> npt.NDArray[np.int64]:
    words = np.frombuffer(key.to_bytes(32, "little"), "<u4")
    noisy = np.empty(count)
    add_noise(words, DOMAIN[mechanism], k, 1.0, np.zeros(count, np.int64), noisy)
    return noisy.astype(np.int64)


def _draw(mechanism: str, k: int) -> Draw:
    return lambda count: _noise(mechanism, k, count, next(_KEYS) << 64)


# P(0) of the discrete Gaussian from the theta function in 17 digits (mpmath); variance at most sigma**2: Canonne,
# Kamath, Steinke (2020), Corollary 9.
def test_the_reference_distributions_are_normalised_and_of_the_known_variance() -> None:
    for t in (1.0, 2.0, 8.0):
        n = np.arange(-400, 401)
        pmf = laplace_pmf(t, 400)
        assert pmf.sum() == pytest.approx(1, abs=1e-12)
        # Variance of the discrete Laplace: 2 e^(-1/t) / (1 - e^(-1/t))^2.
        assert (pmf * n**2).sum() == pytest.approx(2 * np.exp(-1 / t) / (1 - np.exp(-1 / t)) ** 2, rel=1e-9)
    assert gaussian_pmf(1.0, 10)[10] == pytest.approx(0.39894227826686171, rel=1e-14)
    assert gaussian_pmf(2.0, 10)[10] == pytest.approx(0.19947114020071634, rel=1e-14)
    assert (gaussian_pmf(1.0, 30) * np.arange(-30, 31) ** 2).sum() < 1


@pytest.mark.parametrize("k", [0, 1, 4])
def test_laplace_noise_has_the_exact_probabilities(k: int) -> None:
    assert fits(_draw("discrete_laplace", k), laplace_pmf(2.0**k, 8 << k), _COUNT)


@pytest.mark.parametrize("k", [0, 1, 4])
def test_gaussian_noise_has_the_exact_probabilities(k: int) -> None:
    assert fits(_draw("discrete_gaussian", k), gaussian_pmf(2.0**k, 5 << k), _COUNT)


@pytest.mark.parametrize("k", [10, 20, 31, 32, 33, 40])
def test_laplace_noise_of_a_wide_scale_has_the_exact_moments(k: int) -> None:
    q = np.exp(-1 / 2.0**k)
    # Geometric sums; 1 - q by expm1 so that nothing cancels.
    p = -np.expm1(-1 / 2.0**k)
    mean_abs, variance = 2 * q / (p * (1 + q)), 2 * q / p**2
    fourth = 2 * q * (1 + 10 * q + q * q) / p**4
    assert moments_fit(_draw("discrete_laplace", k), mean_abs, variance, fourth, _COUNT)


@pytest.mark.parametrize("k", [10, 20, 30])
def test_gaussian_noise_of_a_wide_scale_has_the_exact_moments(k: int) -> None:
    sigma = 2.0**k  # at this width the sums over the integers equal the integrals to far below the test's resolution
    assert moments_fit(_draw("discrete_gaussian", k), sigma * (2 / np.pi) ** 0.5, sigma**2, 3 * sigma**4, _COUNT)


@pytest.mark.parametrize(
    ("mechanism", "k"), [("discrete_laplace", 20), ("discrete_laplace", 40), ("discrete_gaussian", 20)]
)
def test_noise_of_a_wide_scale_fills_equally_likely_bins_equally(mechanism: str, k: int) -> None:
    from scipy import stats

    def binned(count: int) -> npt.NDArray[np.int64]:
        # Through the distribution function, continuous at this width, into 100 bins of equal probability.
        scaled = (_draw(mechanism, k)(count) + 0.5) / 2.0**k
        uniform = (stats.laplace if mechanism == "discrete_laplace" else stats.norm).cdf(scaled)
        return np.minimum((uniform * 101).astype(np.int64), 100) - 50

    assert fits(binned, np.full(101, 1 / 101), _COUNT)


def test_low_bits_of_wide_noise_are_even() -> None:
    for k in (20, 33, 40):
        low = _draw("discrete_laplace", k)(_COUNT) & 63
        assert fits(lambda _count, low=low: low - 31, np.append(np.full(63, 1 / 64), 0.0)[:63], _COUNT)


@pytest.mark.parametrize("mechanism", ["discrete_laplace", "discrete_gaussian"])
def test_noise_of_an_element_depends_on_key_and_place_alone(mechanism: str) -> None:
    many = _noise(mechanism, 20, 3000, 77)
    for count in (1, 15, 16, 17, 1023, 1024, 1025):
        assert np.array_equal(_noise(mechanism, 20, count, 77), many[:count])
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        assert np.array_equal(_noise(mechanism, 20, 3000, 77), many)
    finally:
        numba.set_num_threads(before)


def test_the_two_mechanisms_share_no_words() -> None:
    assert not np.array_equal(
        np.sign(_noise("discrete_laplace", 20, 64, 5)), np.sign(_noise("discrete_gaussian", 20, 64, 5))
    )


def test_neighbouring_elements_are_independent() -> None:
    values = _noise("discrete_laplace", 20, _COUNT + 1, 99) / 2.0**20
    correlation = np.mean(values[:-1] * values[1:]) / 2  # the variance is 2
    assert abs(correlation) < 5 / _COUNT**0.5


# Samplers that are wrong on purpose. Each must fail every time, or the tests above prove nothing.


def _rounded_continuous(scale: float) -> Draw:
    random = np.random.default_rng(1)
    return lambda count: np.rint(random.laplace(0, scale, count)).astype(np.int64)


def _two_sided_geometric(scale: float, twice_zero: bool = False) -> Draw:
    random = np.random.default_rng(2)

    def draw(count: int) -> npt.NDArray[np.int64]:
        p = -np.expm1(-1 / scale)
        if twice_zero:  # a sign for every magnitude, zero's two signs both kept
            return (random.geometric(p, count) - 1) * random.choice([-1, 1], count)
        return random.geometric(p, count) - random.geometric(p, count)

    return draw


def test_a_right_sampler_of_another_make_passes() -> None:
    # The difference of two geometrics is a discrete Laplace (Inusah and Kozubowski 2006).
    assert fits(_two_sided_geometric(2.0), laplace_pmf(2.0, 16), _COUNT)


@pytest.mark.parametrize(
    ("defect", "draw"),
    [
        ("rounded continuous Laplace", _rounded_continuous(2.0)),
        ("zero counted twice", _two_sided_geometric(2.0, twice_zero=True)),
        ("scale 5 % short", _two_sided_geometric(1.9)),
        ("never odd", lambda count: 2 * _noise("discrete_laplace", 0, count, next(_KEYS))),
        ("one sign", lambda count: np.abs(_noise("discrete_laplace", 1, count, next(_KEYS)))),
        ("Gaussian for Laplace", lambda count: _noise("discrete_gaussian", 1, count, next(_KEYS))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_sampler_is_caught_by_its_probabilities(defect: str, draw: Draw) -> None:
    assert not fits(draw, laplace_pmf(2.0, 16), _COUNT), defect


@pytest.mark.parametrize(
    ("defect", "draw"),
    [
        ("scale 4 % short", lambda count: (_noise("discrete_laplace", 20, count, next(_KEYS)) * 0.96).astype(np.int64)),
        ("shifted by 5 %", lambda count: _noise("discrete_laplace", 20, count, next(_KEYS)) + (1 << 20) // 20),
        (
            "tail cut at 4 scales",
            lambda count: np.clip(_noise("discrete_laplace", 20, count, next(_KEYS)), -4 << 20, 4 << 20),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_sampler_of_wide_scale_is_caught_by_its_moments(defect: str, draw: Draw) -> None:
    t = 2.0**20
    assert not moments_fit(draw, t, 2 * t**2, 24 * t**4, _COUNT), defect
