"""Pathwise delta, vega and rho beside derivatives of exact values, and beside bumped prices of the same paths."""

from math import sqrt
from typing import Any

import numpy as np
import pytest

from tests.kernels.monte_carlo.exact import exact
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


@pytest.mark.parametrize("option", ["call", "put"])
@pytest.mark.parametrize(("payoff", "given"), OPTIONS, ids=lambda one: one if isinstance(one, str) else "")
def test_greeks_are_the_derivatives_of_the_exact_value(payoff: str, given: dict[str, Any], option: str) -> None:
    p = params(payoff, option=option, steps=4, paths=50_000, greeks=True, **given)
    answer = monte_carlo(p, seed=31)
    for greek, found in answer["greeks"].items():
        assert found["standard_error"] > 0.0
        expected = slope(exact, p, greek, 1e-4)
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
    for greek, found in answer.pop("greeks").items():
        expected = slope(lambda bumped: monte_carlo(bumped, seed=32)["price"], p, greek, 1e-6)
        assert found["value"] == pytest.approx(expected, rel=1e-4, abs=1e-4), greek
    without = monte_carlo(p, seed=32)
    assert without.pop("greeks") is None
    assert answer == without, "nothing else changes"


@pytest.mark.parametrize(("sampling", "paths"), [("pseudo", 1_000), ("antithetic", 1_000), ("sobol", 4_096)])
def test_errors_of_greeks_cover_as_often_as_they_state(sampling: str, paths: int) -> None:
    p = params("asian_geometric", steps=3, paths=paths, sampling=sampling, greeks=True)

    def value(p: MonteCarloParams) -> float:
        assert p.strike is not None
        return geometric_asian(p.option, p.spot, p.strike, p.rate, p.dividend, p.volatility, p.maturity, p.steps)

    seeds = 200
    answers = [monte_carlo(p, seed=40_000 + seed)["greeks"] for seed in range(seeds)]
    quantile = 2.131 if sampling == "sobol" else 1.96
    for greek in BUMPED:
        expected = slope(value, p, greek, 1e-5)
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
