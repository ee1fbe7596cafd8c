"""The simulation against prices other people published, held to its own standard error."""

from math import sqrt
from typing import Any

import numpy as np
import pytest

from tests.kernels.monte_carlo.exact import exact
from tests.vectors import options
from warpdesk_server.kernels.monte_carlo.closed_form import black_scholes, geometric_asian
from warpdesk_server.kernels.monte_carlo.cpu import monte_carlo
from warpdesk_server.kernels.monte_carlo.spec import MonteCarloParams

NEVER = 4.0  # standard errors: one chance in 16,000 for each comparison, and the seeds are fixed


def price(seed: int, **params: Any) -> tuple[float, float]:
    answer = monte_carlo(MonteCarloParams(**params), seed=seed)
    return answer["price"], answer["standard_error"]


def market(row: Any) -> dict[str, Any]:
    return {
        "option": row.option,
        "spot": row.spot,
        "strike": row.strike,
        "rate": row.r,
        "dividend": row.q,
        "volatility": row.volatility,
        "maturity": row.maturity,
    }


def assert_standard_normal(scores: list[float]) -> None:
    """Deviations in standard errors, from independent seeds: none absurd, and neither too wide nor too narrow."""
    squares = np.square(scores)
    assert np.sqrt(squares.max()) < NEVER, scores
    spread = 4 * sqrt(2 / len(scores))  # the mean of n squared normals has standard deviation sqrt(2 / n)
    assert abs(squares.mean() - 1) < spread, (squares.mean(), spread)


def test_european_prices_are_those_of_haug() -> None:
    scores = []
    for seed, row in enumerate(options.HAUG_EUROPEAN):
        found, error = price(seed, payoff="european", steps=1, paths=200_000, **market(row))
        scores.append((found - row.price) / error)
        assert error < 0.02 * row.spot
    assert_standard_normal(scores)


@pytest.mark.parametrize("steps", [1, 7, 52])
def test_european_prices_do_not_depend_on_the_number_of_steps(steps: int) -> None:
    row = options.HAUG_EUROPEAN[1]
    exact = black_scholes(row.option, row.spot, row.strike, row.r, row.q, row.volatility, row.maturity)
    scores = []
    for seed in range(20):
        found, error = price(1000 * steps + seed, payoff="european", steps=steps, paths=50_000, **market(row))
        scores.append((found - exact) / error)
    assert_standard_normal(scores)


def test_barrier_prices_are_those_of_haug() -> None:
    scores = []
    for seed, row in enumerate(options.HAUG_BARRIER):
        params = {"payoff": f"barrier_{row.kind}", "barrier": row.level, "rebate": row.rebate, **market(row)}
        found, error = price(100 + seed, steps=32, paths=60_000, **params)
        if row.level == row.spot and row.kind.endswith("out"):
            assert found == row.rebate  # knocked at the start: the rebate is paid now
            continue
        scores.append((found - row.price) / error)
    assert len(scores) >= 60
    assert_standard_normal(scores)


def test_barrier_prices_are_those_of_babsiri_and_noel() -> None:
    scores = []
    for seed, row in enumerate(options.BABSIRI_NOEL_BARRIER):
        found, error = price(
            200 + seed, payoff=f"barrier_{row.kind}", barrier=row.level, steps=4, paths=300_000, **market(row)
        )
        scores.append((found - row.price) / error)
    assert_standard_normal(scores)


def test_lookback_prices_are_those_of_haug_and_of_broadie_glasserman_and_kou() -> None:
    """Watched at all times: any number of steps gives the published prices."""
    scores = []
    for seed, row in enumerate(options.LOOKBACKS):
        given = {**market(row), "payoff": f"lookback_{row.strike_kind}", "extreme": row.extreme}
        p = MonteCarloParams(**given, steps=1 + seed % 5, paths=100_000)
        assert exact(p) == pytest.approx(row.price, abs=1e-4)
        answer = monte_carlo(p, seed=600 + seed)
        scores.append((answer["price"] - row.price) / answer["standard_error"])
    assert_standard_normal(scores)


@pytest.mark.parametrize("option", ["call", "put"])
@pytest.mark.parametrize("payoff", ["lookback_fixed", "lookback_floating"])
def test_lookback_prices_on_dates_are_those_of_spitzers_identity(payoff: str, option: str) -> None:
    strike = None if payoff == "lookback_floating" else 99.0 if option == "call" else 101.0
    given = {"payoff": payoff, "option": option, "spot": 100.0, "strike": strike, "rate": 0.06, "dividend": 0.02}
    given |= {"volatility": 0.3, "maturity": 0.5, "monitoring": "discrete"}
    scores = []
    for steps in (1, 2, 5, 13, 26):
        p = MonteCarloParams(**given, steps=steps, paths=100_000)
        answer = monte_carlo(p, seed=700 + steps)
        scores.append((answer["price"] - exact(p)) / answer["standard_error"])
    assert_standard_normal(scores)


def test_a_lookback_on_dates_nears_the_one_at_all_times_as_broadie_glasserman_and_kou_say() -> None:
    """Their theorem 3 (1999), with a factor f = exp(0.5826 sigma sqrt(h)): the mean greatest price on dates is that at
    all times, where it begins f times as high, over f."""
    given = {"payoff": "lookback_fixed", "option": "call", "spot": 100.0, "strike": 1e-9, "rate": 0.1}
    p = MonteCarloParams(**given, volatility=0.3, maturity=0.5, steps=80, monitoring="discrete")
    factor = float(np.exp(0.5826 * 0.3 * sqrt(0.5 / 80)))
    watched = exact(p.model_copy(update={"monitoring": None}))
    moved = exact(p.model_copy(update={"monitoring": None, "extreme": 100.0 * factor})) / factor
    assert abs(exact(p) - moved) < 0.03 * (watched - exact(p))


def test_digital_prices_are_those_of_haug() -> None:
    scores = []
    for cash, row in options.HAUG_DIGITAL:
        paid = {"payoff": "asset_or_nothing"} if cash is None else {"payoff": "cash_or_nothing", "payout": cash}
        p = MonteCarloParams(**market(row), **paid, steps=1, paths=200_000)
        assert exact(p) == pytest.approx(row.price, abs=1e-4)
        answers = [monte_carlo(p, seed=800 + seed) for seed in range(5)]
        scores += [(answer["price"] - row.price) / answer["standard_error"] for answer in answers]
    assert_standard_normal(scores)


def test_a_barrier_watched_at_all_times_needs_no_small_steps() -> None:
    """The bridge is exact for geometric Brownian motion: one step prices as well as fifty."""
    row = options.BABSIRI_NOEL_BARRIER[2]
    for steps in (1, 50):
        found, error = price(
            7, payoff=f"barrier_{row.kind}", barrier=row.level, steps=steps, paths=1_000_000, **market(row)
        )
        assert error < 0.006
        assert abs(found - row.price) < NEVER * error


def test_a_barrier_watched_on_dates_is_the_continuous_one_moved_outward() -> None:
    """Broadie, Glasserman and Kou (1997): by a factor exp(0.5826 sigma sqrt(T / steps)), to o(1 / sqrt(steps))."""
    params = {"option": "call", "spot": 100.0, "strike": 100.0, "rate": 0.1, "volatility": 0.3, "maturity": 0.2}
    level, steps, paths = 91.0, 50, 1_000_000
    on_dates, error = price(
        1, payoff="barrier_down_out", barrier=level, monitoring="discrete", steps=steps, paths=paths, **params
    )
    watched, _ = price(1, payoff="barrier_down_out", barrier=level, steps=steps, paths=paths, **params)
    moved = level * np.exp(-0.5826 * 0.3 * sqrt(0.2 / steps))
    corrected, _ = price(1, payoff="barrier_down_out", barrier=float(moved), steps=steps, paths=paths, **params)
    assert abs(on_dates - corrected) < 0.1 * (on_dates - watched)
    assert on_dates - watched > 5 * error


def test_geometric_asian_price_is_that_of_clewlow_and_strickland() -> None:
    row = options.CLEWLOW_STRICKLAND_GEOMETRIC
    scores = []
    for seed in range(20):
        found, error = price(300 + seed, payoff="asian_geometric", steps=row.fixings, paths=100_000, **market(row))
        scores.append((found - row.price) / error)
    assert_standard_normal(scores)


def test_arithmetic_asian_prices_are_those_of_levy() -> None:
    """The published prices are themselves simulated, to some 3e-3: their first row is exactly 1.39398 (next test)."""
    for seed, row in enumerate(options.LEVY_ARITHMETIC):
        found, error = price(
            400 + seed,
            payoff="asian_arithmetic",
            include_spot=True,
            steps=row.fixings - 1,
            paths=100_000,
            **market(row),
        )
        assert error < 1e-3
        assert abs(found - row.price) < 5e-3, (row, found, error)


def test_an_average_of_spot_and_expiry_is_half_a_european_option() -> None:
    """max(K - (S0 + S_T) / 2, 0) is half of max(2 K - S0 - S_T, 0), which Black and Scholes price exactly."""
    row = options.LEVY_ARITHMETIC[0]
    exact = 0.5 * black_scholes(
        row.option, row.spot, 2 * row.strike - row.spot, row.r, row.q, row.volatility, row.maturity
    )
    assert exact == pytest.approx(row.price, abs=5e-4)
    scores = []
    for seed in range(40):
        found, error = price(
            450 + seed, payoff="asian_arithmetic", include_spot=True, steps=1, paths=50_000, **market(row)
        )
        scores.append((found - exact) / error)
    assert_standard_normal(scores)
    assert abs(np.mean(scores)) < NEVER / sqrt(len(scores))


def test_arithmetic_asian_prices_are_near_turnbull_and_wakeman() -> None:
    """Theirs is a lognormal approximation, off by up to 0.015 here, low in the money and high out of it."""
    for seed, row in enumerate(options.HAUG_TURNBULL_WAKEMAN):
        found, error = price(500 + seed, payoff="asian_arithmetic", steps=row.fixings, paths=100_000, **market(row))
        assert error < 1e-3
        assert abs(found - row.price) < 0.02, (row, found, error)


def test_the_control_variate_does_not_move_the_price() -> None:
    """Corrected and plain estimates of many seeds have the same mean, and the corrected error is the honest one."""
    row = options.LEVY_ARITHMETIC[3]
    params = MonteCarloParams(payoff="asian_arithmetic", steps=12, paths=5_000, **market(row))
    answers = [monte_carlo(params, seed=seed) for seed in range(200)]
    corrected = np.array([answer["price"] for answer in answers])
    errors = np.array([answer["standard_error"] for answer in answers])
    plain = np.array([answer["control_variate"]["plain_price"] for answer in answers])
    plain_errors = np.array([answer["control_variate"]["plain_standard_error"] for answer in answers])
    assert abs(corrected.mean() - plain.mean()) < NEVER * plain_errors.mean() / sqrt(len(answers))
    assert corrected.std() == pytest.approx(errors.mean(), rel=0.25)
    assert plain.std() == pytest.approx(plain_errors.mean(), rel=0.25)
    reduction = np.mean([answer["control_variate"]["variance_reduction"] for answer in answers])
    assert reduction > 100
    assert reduction == pytest.approx((plain_errors.mean() / errors.mean()) ** 2, rel=0.1)


def test_the_control_variate_names_its_closed_form() -> None:
    row = options.CLEWLOW_STRICKLAND_GEOMETRIC
    answer = monte_carlo(
        MonteCarloParams(payoff="asian_arithmetic", steps=row.fixings, paths=1_000, **market(row)), seed=0
    )
    control = answer["control_variate"]
    assert control["name"] == "geometric_asian"
    assert control["closed_form"] == pytest.approx(row.price, abs=1e-9)
    assert control["closed_form"] == geometric_asian(
        row.option, row.spot, row.strike, row.r, row.q, row.volatility, row.maturity, row.fixings
    )


@pytest.mark.parametrize(("payoff", "confidence"), [("european", 0.8), ("european", 0.95), ("asian_arithmetic", 0.95)])
def test_the_confidence_interval_covers_as_often_as_it_says(payoff: str, confidence: float) -> None:
    params = MonteCarloParams(
        payoff=payoff,
        option="call",
        spot=100.0,
        strike=100.0,
        rate=0.05,
        volatility=0.2,
        maturity=1.0,
        steps=2,
        paths=2_000,
        confidence=confidence,
        control_variate=False,
    )
    exact = (
        black_scholes("call", 100.0, 100.0, 0.05, 0.0, 0.2, 1.0)
        if payoff == "european"
        else monte_carlo(params.model_copy(update={"paths": 2_000_000, "control_variate": True}), seed=1)["price"]
    )
    seeds = 1_000
    covered = 0
    for seed in range(seeds):
        low, high = monte_carlo(params, seed=10_000 + seed)["confidence_interval"]
        covered += low <= exact <= high
    allowed = 3.5 * sqrt(confidence * (1 - confidence) / seeds)
    assert abs(covered / seeds - confidence) < allowed, covered
