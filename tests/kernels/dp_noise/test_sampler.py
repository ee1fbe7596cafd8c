"""The sampler draws the exact distributions, and the tests that say so can fail."""

import itertools

import numba
import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.dp_noise.distributions import (
    Draw,
    expected_shift,
    failures,
    fits,
    gaussian_pmf,
    laplace_pmf,
    moments_fit,
    passes,
    power,
)
from warpdesk_server.kernels.dp_noise.release import DOMAIN
from warpdesk_server.kernels.dp_noise.sampler import add_noise

_COUNT = 200_000
_MANY = 1_000_000  # what a scale that is 1 % off takes
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


@pytest.mark.parametrize("k", [0, 1, 3])
def test_laplace_noise_has_the_exact_probabilities_and_moments(k: int) -> None:
    assert passes(_draw("discrete_laplace", k), laplace_pmf(2.0**k, 40 << k), _MANY)


@pytest.mark.parametrize("k", [0, 1, 3])
def test_gaussian_noise_has_the_exact_probabilities_and_moments(k: int) -> None:
    assert passes(_draw("discrete_gaussian", k), gaussian_pmf(2.0**k, 12 << k), _MANY)


@pytest.mark.parametrize("k", [10, 20, 31, 32, 33, 40])
def test_laplace_noise_of_a_wide_scale_has_the_exact_moments(k: int) -> None:
    q = np.exp(-1 / 2.0**k)
    # Geometric sums; 1 - q by expm1 so that nothing cancels.
    p = -np.expm1(-1 / 2.0**k)
    mean_abs, variance = 2 * q / (p * (1 + q)), 2 * q / p**2
    fourth = 2 * q * (1 + 10 * q + q * q) / p**4
    count = _MANY if k in (20, 40) else _COUNT
    assert moments_fit(_draw("discrete_laplace", k), mean_abs, variance, fourth, count)


@pytest.mark.parametrize("k", [10, 20, 30])
def test_gaussian_noise_of_a_wide_scale_has_the_exact_moments(k: int) -> None:
    sigma = 2.0**k  # at this width the sums over the integers equal the integrals to far below the test's resolution
    assert moments_fit(_draw("discrete_gaussian", k), sigma * (2 / np.pi) ** 0.5, sigma**2, 3 * sigma**4, _MANY)


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


def _of_pmf(pmf: npt.NDArray[np.float64]) -> Draw:
    random, below = np.random.default_rng(3), np.cumsum(pmf)
    return lambda count: np.searchsorted(below, random.random(count) * below[-1]) - len(pmf) // 2


def _series(g: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """exp(-g) as a series that ends at its fifth term, which is 2 % too much at 1."""
    return np.asarray(1 - g + g**2 / 2 - g**3 / 6 + g**4 / 24)


def _biased_exp(scale: int) -> Draw:
    """Canonne, Kamath and Steinke's sampler whose Bernoulli(exp(-g)) is that series."""
    random = np.random.default_rng(4)

    def draw(count: int) -> npt.NDArray[np.int64]:
        u = random.integers(0, scale, 3 * count)
        u = u[random.random(u.size) < _series(u / scale)]
        v = random.geometric(1 - _series(np.array(1.0)), u.size) - 1
        negative = random.random(u.size) < 0.5
        magnitude = u + v * scale
        keep = ~(negative & (magnitude == 0))
        drawn: npt.NDArray[np.int64] = np.where(negative, -magnitude, magnitude)[keep][:count]
        assert drawn.size == count
        return drawn

    return draw


def _biased_exp_pmf(scale: int, reach: int) -> npt.NDArray[np.float64]:
    n = np.abs(np.arange(-reach, reach + 1))
    weights = _series(n % scale / scale) * _series(np.array(1.0)) ** (n // scale)
    return np.asarray(weights / weights.sum())


def _rounded_laplace_pmf(scale: float, reach: int) -> npt.NDArray[np.float64]:
    edges = np.abs(np.arange(-reach, reach + 1)) - 0.5
    pmf = (np.exp(-edges / scale) - np.exp(-(edges + 1) / scale)) / 2
    pmf[reach] = 1 - np.exp(-0.5 / scale)
    return np.asarray(pmf)


# What is wrong, how it is drawn and with which probabilities, what it should be, and by which tests it is caught.
_MUTANTS: list[tuple[str, Draw, npt.NDArray[np.float64], npt.NDArray[np.float64], set[str]]] = [
    (
        "a Laplace scale 1 % short", _of_pmf(laplace_pmf(7.92, 320)), laplace_pmf(7.92, 320), laplace_pmf(8, 320),
        {"magnitude", "variance"},
    ),
    (
        "a Laplace scale 1 % long", _of_pmf(laplace_pmf(8.08, 320)), laplace_pmf(8.08, 320), laplace_pmf(8, 320),
        {"magnitude", "variance"},
    ),
    (
        "a Gaussian sigma 1 % short", _of_pmf(gaussian_pmf(7.92, 100)), gaussian_pmf(7.92, 100), gaussian_pmf(8, 100),
        {"magnitude", "variance", "zero"},
    ),
    (
        "a rounded continuous Laplace", _rounded_continuous(4.0), _rounded_laplace_pmf(4.0, 160), laplace_pmf(4, 160),
        {"zero", "probabilities"},
    ),
    (
        "a biased Bernoulli(exp)", _biased_exp(16), _biased_exp_pmf(16, 640), laplace_pmf(16, 640),
        {"magnitude", "variance", "probabilities"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("defect", "draw", "wrong", "right", "caught_by"), _MUTANTS, ids=[mutant[0] for mutant in _MUTANTS]
)
def test_a_mutant_is_caught_by_a_test_whose_power_is_known(
    defect: str,
    draw: Draw,
    wrong: npt.NDArray[np.float64],
    right: npt.NDArray[np.float64],
    caught_by: set[str],
) -> None:
    shifted = {name: expected_shift(name, wrong, right, _MANY) for name in caught_by - {"probabilities"}}
    assert max(map(power, shifted.values())) > 0.9999, (defect, shifted)
    assert failures(draw(_MANY), wrong) == set(), "it is drawn as it is said to be"
    assert not passes(draw, right, _MANY), defect
    certain = {name for name, shift in shifted.items() if power(shift) > 0.9999}
    assert failures(draw(_MANY), right) >= certain | (caught_by & {"probabilities"})


def test_a_scale_that_is_1_percent_off_moves_the_mean_magnitude_by_ten_standard_deviations() -> None:
    assert expected_shift("magnitude", laplace_pmf(8.08, 320), laplace_pmf(8, 320), _MANY) == pytest.approx(
        10, rel=0.02
    )
    assert expected_shift("magnitude", gaussian_pmf(8.08, 100), gaussian_pmf(8, 100), _MANY) == pytest.approx(
        13.2, rel=0.02
    )
    assert power(10) == pytest.approx(1 - 3.5e-7, abs=2e-7)


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
        ("scale 1 % short", lambda count: (_noise("discrete_laplace", 20, count, next(_KEYS)) * 0.99).astype(np.int64)),
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
    assert not moments_fit(draw, t, 2 * t**2, 24 * t**4, _MANY), defect
