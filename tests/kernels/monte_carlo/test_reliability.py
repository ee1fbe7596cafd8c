"""An estimate that rests on too few paths says so, and one that does not say so covers as often as it states."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import skew

from kernels.monte_carlo.closed_form import geometric_asian
from kernels.monte_carlo.cpu import monte_carlo
from kernels.monte_carlo.reliability import ENOUGH_SEEN
from kernels.monte_carlo.spec import MonteCarloParams
from tests.kernels.monte_carlo.reference import simulate
from tests.kernels.monte_carlo.test_monte_carlo import params

PAYOFFS = "european", "asian_geometric", "barrier_up_in", "barrier_up_out", "barrier_down_in", "barrier_down_out"


def exact(p: MonteCarloParams) -> float:
    """The value by numerical integration over the normal of the price at expiry.

    Between a start and an end that lie on the same side of a barrier, a Brownian bridge reaches it with probability
    exp(-2 d0 d1 / variance), where d0 and d1 are the distances in log price.
    """
    if p.payoff == "asian_geometric":
        return geometric_asian(p.option, p.spot, p.strike, p.rate, p.dividend, p.volatility, p.maturity, p.steps)
    deviation = p.volatility * np.sqrt(p.maturity)
    z = np.linspace(-12.0, 12.0 + deviation, 20_001)
    weight = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi) * (z[1] - z[0]) * np.exp(-p.rate * p.maturity)
    log_return = (p.rate - p.dividend) * p.maturity - 0.5 * deviation**2 + deviation * z
    pays = np.maximum((1 if p.option == "call" else -1) * (p.spot * np.exp(log_return) - p.strike), 0.0)
    if p.barrier is not None:
        side = 1 if "_up_" in p.payoff else -1
        start = side * np.log(p.barrier / p.spot)
        end = start - side * log_return
        reached = np.exp(-2.0 * start * np.maximum(end, 0.0) / deviation**2)
        pays = reached * pays + (1.0 - reached) * p.rebate if p.payoff.endswith("_in") else (1.0 - reached) * pays
    return float(weight @ pays)


def drawn(random: np.random.Generator) -> tuple[MonteCarloParams, float]:
    """An option that is worth at least a basis point of the spot, and its value.

    Its strike and barrier are at most one and a half and two deviations of the log price away.
    """
    while True:
        p = _any(random)
        if (value := exact(p)) >= 1e-4 * p.spot:
            return p, value


def _any(random: np.random.Generator) -> MonteCarloParams:
    payoff = str(random.choice(PAYOFFS))
    volatility, maturity = random.uniform(0.05, 1.2), random.uniform(0.05, 4.0)
    deviation = volatility * np.sqrt(maturity)
    extra: dict[str, Any] = {}
    if payoff.startswith("barrier"):
        away = random.uniform(0.3, 2.0) * deviation
        extra["barrier"] = 100.0 * np.exp(away if "_up_" in payoff else -away)
    return MonteCarloParams(
        payoff=payoff,  # type: ignore[arg-type]
        option=str(random.choice(["call", "put"])),  # type: ignore[arg-type]
        spot=100.0,
        strike=100.0 * np.exp(random.uniform(-1.5, 1.5) * deviation),
        rate=random.uniform(-0.02, 0.1),
        dividend=random.uniform(0.0, 0.05),
        volatility=volatility,
        maturity=maturity,
        steps=int(random.integers(1, 4)),
        paths=int(random.choice([10_000, 100_000, 200_000])),
        **extra,
    )


def test_intervals_without_a_warning_cover_and_few_are_warned() -> None:
    random = np.random.default_rng(2611)
    covered, moderate, warned = [], 0, 0
    for seed in range(300):
        p, value = drawn(random)
        answer = monte_carlo(p, seed=seed)
        if p.paths >= 100_000 and p.volatility * np.sqrt(p.maturity) <= 1.0:
            moderate += 1
            warned += bool(answer["warnings"])
        if not answer["warnings"]:
            low, high = answer["confidence_interval"]
            covered.append(low <= value <= high)
    assert len(covered) > 200
    assert moderate > 80
    assert warned <= 0.02 * moderate
    # Three standard deviations of a binomial count at 95 %.
    assert np.mean(covered) >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / len(covered)), np.mean(covered)


@pytest.mark.parametrize(
    ("seed", "option"),
    [
        (115, {"payoff": "barrier_down_in", "option": "put", "strike": 110, "barrier": 60, "rate": 0.08, "steps": 1}),
        (184, {"payoff": "barrier_up_in", "option": "call", "strike": 100, "barrier": 125, "maturity": 0.2, "steps": 10}
         | {"rebate": 3}),
    ],
)  # fmt: skip
def test_a_barrier_reached_by_few_paths_is_warned_of(seed: int, option: dict[str, Any]) -> None:
    market = {"spot": 100, "volatility": 0.1, "maturity": 1, "dividend": 0.04, "paths": 100_000}
    p = MonteCarloParams(**{**market, **option})
    answer = monte_carlo(p, seed=seed)
    low, high = answer["confidence_interval"]
    assert not low <= exact(p) <= high
    assert answer["paying_paths"] > 3_000  # which tells nothing: each pays something, however small
    assert answer["deciding_paths"] < 5
    assert f"About {answer['deciding_paths']} of 100,000 paths decide the estimate" in answer["warnings"][0]


@pytest.mark.parametrize("deviation", [2.5, 3.0, 4.0, 5.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_call_carried_by_rare_high_prices_is_warned_of(deviation: float, seed: int) -> None:
    call = params("european", strike=100.0, volatility=deviation, maturity=1.0, steps=1, paths=100_000)
    told = " ".join(monte_carlo(call, seed=seed)["warnings"])
    assert f"The log price has a standard deviation of {deviation:g} until expiry" in told
    assert "not 100,000" in told


@pytest.mark.parametrize("payoff", ["european", "asian_geometric", "asian_arithmetic", "barrier_up_out"])
def test_the_deciding_paths_are_the_paths_over_the_squared_skewness(payoff: str) -> None:
    p = params(payoff, steps=3, paths=2_000)
    simulated, answer = simulate(11, p), monte_carlo(p, seed=11)
    left = simulated.payoffs - simulated.controls if payoff == "asian_arithmetic" else simulated.payoffs
    assert answer["deciding_paths"] == pytest.approx(min(p.paths, p.paths / skew(left) ** 2), rel=2e-3, abs=1)


def test_without_its_control_an_average_is_judged_by_its_payoffs() -> None:
    p = params("asian_arithmetic", steps=3, paths=2_000, control_variate=False)
    answer = monte_carlo(p, seed=11)
    assert answer["deciding_paths"] == pytest.approx(p.paths / skew(simulate(11, p).payoffs) ** 2, rel=2e-3, abs=1)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e11])
def test_the_size_of_a_price_changes_nothing(size: float) -> None:
    p = params("european", spot=size, strike=1.1 * size, steps=1, paths=5_000)
    assert monte_carlo(p, seed=3)["deciding_paths"] == pytest.approx(
        monte_carlo(params("european", spot=1.0, strike=1.1, steps=1, paths=5_000), seed=3)["deciding_paths"], abs=1
    )


def test_a_payment_that_no_path_had_is_not_taken_for_impossible() -> None:
    rare = monte_carlo(params("european", option="put", strike=1.0, steps=1, paths=1_000), seed=1)
    assert (rare["price"], rare["standard_error"], rare["deciding_paths"]) == (0.0, 0.0, 0)
    assert "Of 1,000 paths no path paid" in rare["warnings"][0]
    knocked = monte_carlo(
        params("barrier_up_in", barrier=10_000.0, rebate=3.0, monitoring="discrete", paths=500), seed=1
    )
    assert "Of 500 paths every path paid the same" in knocked["warnings"][0]


def test_what_is_certain_is_not_warned_of() -> None:
    assert monte_carlo(params("european", volatility=0.0, paths=100), seed=1)["warnings"] == []
    out = monte_carlo(params("barrier_up_out", barrier=90.0, rebate=2.0, paths=100), seed=1)
    assert (out["knocked_at_start"], out["price"], out["warnings"]) == (True, 2.0, [])
    for payoff, option, barrier in (("barrier_up_out", "call", 105.0), ("barrier_down_out", "put", 95.0)):
        never = monte_carlo(params(payoff, option=option, strike=barrier, barrier=barrier, paths=100), seed=1)
        assert (never["price"], never["warnings"]) == (0.0, [])


def test_so_few_paths_that_their_skewness_tells_nothing_are_warned_of() -> None:
    answer = monte_carlo(params("european", steps=1, paths=ENOUGH_SEEN - 1), seed=1)
    assert answer["deciding_paths"] < ENOUGH_SEEN
    assert answer["warnings"]
