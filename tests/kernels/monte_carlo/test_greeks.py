"""Pathwise Greeks beside derivatives of exact values, and beside bumped prices of the same paths."""

from math import sqrt
from typing import Any

import numpy as np
import pytest

from tests.kernels.monte_carlo.exact import exact
from tests.kernels.monte_carlo.reference import simulate
from tests.kernels.monte_carlo.test_monte_carlo import params
from warpdesk_server.kernels.monte_carlo import cpu
from warpdesk_server.kernels.monte_carlo.closed_form import geometric_asian
from warpdesk_server.kernels.monte_carlo.cpu import monte_carlo
from warpdesk_server.kernels.monte_carlo.spec import OPERATION, MonteCarloParams
from warpdesk_server.kernels.monte_carlo.task import monte_carlo_until
from warpdesk_server.kernels.monte_carlo.until import TASK
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.kernels.task import Undisturbed

BUMPED = {"delta": "spot", "vega": "volatility", "rho": "rate"}
OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("european", {}),
    ("asian_arithmetic", {"control_variate": False}),
    ("asian_geometric", {}),
    ("lookback_fixed", {}),
    ("lookback_floating", {}),
    ("lookback_floating", {"monitoring": "discrete"}),
)


def slope(value: Any, p: MonteCarloParams, greek: str, part: float) -> float:
    """The derivative of a value of the parameters, by a central difference of `part` of the parameter."""
    name = BUMPED[greek]
    size = part * getattr(p, name)
    up, down = (value(p.model_copy(update={name: getattr(p, name) + bump})) for bump in (size, -size))
    return float((up - down) / (2 * size))


def theta(value: Any, p: MonteCarloParams) -> float:
    """The derivative of a value to the time that elapses.

    Of an average by its equation until the first date: r V - (r - q) S dV/dS - volatility^2 S^2 d2V/dS2 / 2.
    """
    if not p.is_asian:
        return -by_maturity(value, p, 1e-4)
    size = 1e-3 * p.spot
    down, here, up = (value(p.model_copy(update={"spot": p.spot + bump})) for bump in (-size, 0.0, size))
    curved = (p.volatility * p.spot) ** 2 * (up - 2 * here + down) / (2 * size * size)
    return float(p.rate * here - (p.rate - p.dividend) * p.spot * (up - down) / (2 * size) - curved)


def by_maturity(value: Any, p: MonteCarloParams, part: float) -> float:
    up, down = (value(p.model_copy(update={"maturity": p.maturity * (1 + bump)})) for bump in (part, -part))
    return float((up - down) / (2 * part * p.maturity))


@pytest.mark.parametrize("option", ["call", "put"])
@pytest.mark.parametrize(("payoff", "given"), OPTIONS, ids=lambda one: one if isinstance(one, str) else "")
def test_greeks_are_the_derivatives_of_the_exact_value(payoff: str, given: dict[str, Any], option: str) -> None:
    p = params(payoff, option=option, steps=4, paths=50_000, greeks=True, **given)
    answer = monte_carlo(p, seed=31)
    for greek, found in answer["greeks"].items():
        assert found["standard_error"] > 0.0
        if greek == "theta" and p.monitoring == "discrete":
            continue  # the next test but one has it
        expected = theta(exact, p) if greek == "theta" else slope(exact, p, greek, 1e-4)
        assert abs(found["value"] - expected) < 4 * found["standard_error"], (greek, found, expected)


@pytest.mark.parametrize("option", ["call", "put"])
@pytest.mark.parametrize(
    ("payoff", "given"),
    [
        *OPTIONS,
        ("asian_arithmetic", {"control_variate": False, "include_spot": True, "sampling": "antithetic"}),
        ("asian_geometric", {"include_spot": True, "sampling": "sobol"}),
        ("lookback_fixed", {"monitoring": "discrete", "extreme": 101.0}),
        ("lookback_floating", {"monitoring": "discrete", "extreme": 99.0, "sampling": "antithetic"}),
    ],
)
def test_greeks_are_the_derivatives_of_the_price_of_the_same_paths(
    payoff: str, given: dict[str, Any], option: str
) -> None:
    """A bump of 1e-6 takes few of 4,096 paths past a kink, and its difference has rounding errors of 1e-9."""
    p = params(payoff, option=option, steps=5, paths=4_096, **given)
    answer = monte_carlo(p.model_copy(update={"greeks": True}), seed=32)

    def price(bumped: MonteCarloParams) -> Any:
        return monte_carlo(bumped, seed=32)["price"]

    greeks = answer.pop("greeks")
    found = greeks.pop("theta")
    if not (p.is_asian or p.monitoring == "discrete"):  # their dates are no parameters
        assert found["value"] == pytest.approx(-by_maturity(price, p, 1e-6), rel=1e-4, abs=1e-4)
    for greek, found in greeks.items():
        expected = slope(price, p, greek, 1e-6)
        assert found["value"] == pytest.approx(expected, rel=1e-4, abs=1e-4), greek
    without = monte_carlo(p, seed=32)
    assert without.pop("greeks") is None
    assert answer == without, "nothing else changes"


@pytest.mark.parametrize("option", ["call", "put"])
@pytest.mark.parametrize(
    ("payoff", "given"),
    [
        ("lookback_fixed", {"extreme": 101.0}),
        ("lookback_floating", {"sampling": "antithetic"}),
        ("lookback_floating", {"extreme": 99.0}),
    ],
)
def test_theta_of_a_lookback_on_dates_is_the_derivative_of_the_price_of_the_same_paths(
    payoff: str, given: dict[str, Any], option: str
) -> None:
    """A day is 1e-6 of a year here. Float32 normals move a price by a millionth of itself."""
    p = params(payoff, option=option, steps=5, paths=500, monitoring="discrete", greeks=True, **given)
    found = monte_carlo(p, seed=33)["greeks"]["theta"]["value"]
    later, before = (simulate(33, p, elapsed=day).payoffs.mean() for day in (1e-6, -1e-6))
    assert found == pytest.approx((later - before) / 2e-6, rel=1e-4, abs=1e-4)


def test_theta_of_an_average_with_many_dates_has_a_small_error() -> None:
    """Only its first step becomes shorter, so that the derivative of a single path is wild. That of the path without
    the step is taken off, which has the mean 0."""
    errors = [
        monte_carlo(params("asian_geometric", steps=steps, paths=20_000, greeks=True), seed=2)["greeks"]["theta"]
        for steps in (4, 256)
    ]
    assert errors[1]["standard_error"] < 4 * errors[0]["standard_error"]  # the root of 64 without


@pytest.mark.parametrize(("sampling", "paths"), [("pseudo", 1_000), ("antithetic", 1_000), ("sobol", 4_096)])
def test_errors_of_greeks_cover_as_often_as_they_state(sampling: str, paths: int) -> None:
    p = params("asian_geometric", steps=3, paths=paths, sampling=sampling, greeks=True)

    def value(p: MonteCarloParams) -> float:
        assert p.strike is not None
        return geometric_asian(p.option, p.spot, p.strike, p.rate, p.dividend, p.volatility, p.maturity, p.steps)

    seeds = 200
    answers = [monte_carlo(p, seed=40_000 + seed)["greeks"] for seed in range(seeds)]
    quantile = 2.131 if sampling == "sobol" else 1.96
    for greek in answers[0]:
        expected = theta(value, p) if greek == "theta" else slope(value, p, greek, 1e-5)
        found, errors = (np.array([a[greek][name] for a in answers]) for name in ("value", "standard_error"))
        covered = np.mean(np.abs(found - expected) < quantile * errors)
        assert abs(covered - 0.95) < 3.5 * sqrt(0.95 * 0.05 / seeds), (greek, covered)


@pytest.mark.parametrize("payoff", ["cash_or_nothing", "asset_or_nothing", "barrier_up_out", "barrier_down_in"])
def test_greeks_of_a_payoff_that_jumps_are_refused(payoff: str) -> None:
    given = params(payoff, paths=10).model_dump(mode="json", exclude_none=True) | {"greeks": True}
    with pytest.raises(InvalidRequest) as caught:
        OPERATION.validate(given, {})
    assert f"miss the jump of payoff {payoff}" in caught.value.problems[0].detail


def test_greeks_without_volatility_are_refused() -> None:
    given = params("european", paths=10, volatility=0.0).model_dump(mode="json", exclude_none=True) | {"greeks": True}
    with pytest.raises(InvalidRequest) as caught:
        OPERATION.validate(given, {})
    assert "greeks need a volatility" in caught.value.problems[0].detail


def test_the_task_has_the_greeks_of_monte_carlo() -> None:
    p = params("european", steps=2, paths=70_000, greeks=True)
    given = p.model_dump(mode="json", exclude_none=True) | {"standard_error": 1e-6}
    outputs = monte_carlo_until(TASK.validate(given, {}), Undisturbed(), seed=3)
    assert not outputs.pop("reached")
    assert outputs == cpu.monte_carlo(p, seed=3)
