"""The closed forms against published prices and SciPy."""

import numpy as np
import pytest
from scipy import stats

from tests.vectors import options
from warpdesk_server.kernels.monte_carlo.closed_form import (
    black_scholes,
    geometric_asian,
    geometric_asian_pays,
    normal_quantile,
    student_quantile,
)


@pytest.mark.parametrize("row", options.HAUG_EUROPEAN)
def test_black_scholes_prices_are_those_of_haug(row: options.European) -> None:
    found = black_scholes(row.option, row.spot, row.strike, row.r, row.q, row.volatility, row.maturity)
    assert found == pytest.approx(row.price, abs=1e-4)


def test_the_discrete_geometric_asian_price_is_that_of_clewlow_and_strickland() -> None:
    row = options.CLEWLOW_STRICKLAND_GEOMETRIC
    found = geometric_asian(row.option, row.spot, row.strike, row.r, row.q, row.volatility, row.maturity, row.fixings)
    assert found == pytest.approx(row.price, abs=1e-10)


def test_many_fixings_approach_the_continuous_geometric_average_of_haug() -> None:
    row = options.HAUG_GEOMETRIC_CONTINUOUS
    found = geometric_asian(row.option, row.spot, row.strike, row.r, row.q, row.volatility, row.maturity, 100_000)
    assert found == pytest.approx(row.price, abs=1e-4)


def test_one_fixing_is_a_european_option() -> None:
    assert geometric_asian("call", 100.0, 90.0, 0.05, 0.02, 0.3, 2.0, 1) == pytest.approx(
        black_scholes("call", 100.0, 90.0, 0.05, 0.02, 0.3, 2.0), rel=1e-14
    )


def test_the_spot_as_a_fixing_halves_the_log_return_of_one_step() -> None:
    """G = sqrt(S0 S_T): lognormal with half the mean and half the deviation."""
    mean, deviation = 0.5 * (0.05 - 0.02 - 0.045) * 2.0, 0.5 * 0.3 * np.sqrt(2.0)
    d2 = (np.log(100 / 90) + mean) / deviation
    expected = np.exp(-0.1) * (
        100 * np.exp(mean + deviation**2 / 2) * stats.norm.cdf(d2 + deviation) - 90 * stats.norm.cdf(d2)
    )
    assert geometric_asian("call", 100.0, 90.0, 0.05, 0.02, 0.3, 2.0, 1, include_spot=True) == pytest.approx(
        expected, rel=1e-13
    )


def test_the_chance_that_a_geometric_average_pays_is_its_slope_in_the_strike() -> None:
    """-dC/dK = e^(-rT) P(G > K), and the put's chance is the rest."""
    rest = (0.05, 0.02, 0.3, 2.0, 6, True)
    for strike in (60.0, 100.0, 150.0):
        low, high = (geometric_asian("call", 100.0, strike + bump, *rest) for bump in (-1e-3, 1e-3))
        chance = geometric_asian_pays("call", 100.0, strike, *rest)
        assert chance == pytest.approx((low - high) / 2e-3 * np.exp(0.1), rel=1e-7)
        assert chance + geometric_asian_pays("put", 100.0, strike, *rest) == pytest.approx(1.0, rel=1e-15)
    still = (0.05, 0.0, 0.0, 1.0, 4)
    assert [geometric_asian_pays(option, 100.0, 101.0, *still) for option in ("call", "put")] == [1.0, 0.0]


def test_without_volatility_an_option_is_worth_its_forward() -> None:
    assert black_scholes("call", 100.0, 90.0, 0.05, 0.0, 0.0, 1.0) == pytest.approx(100 - 90 * np.exp(-0.05), rel=1e-14)
    assert black_scholes("put", 100.0, 90.0, 0.05, 0.0, 0.0, 1.0) == 0.0


@pytest.mark.parametrize("probability", [1e-9, 0.025, 0.3, 0.5, 0.75, 0.9, 0.975, 0.995, 0.9999995])
def test_normal_quantiles_are_those_of_scipy(probability: float) -> None:
    assert normal_quantile(probability) == pytest.approx(stats.norm.ppf(probability), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("probability", [0.5, 0.55, 0.75, 0.975, 0.995, 0.9999995])
@pytest.mark.parametrize("freedom", [3, 15])
def test_quantiles_of_students_t_are_those_of_scipy(probability: float, freedom: int) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9)
