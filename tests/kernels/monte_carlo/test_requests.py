"""What monte_carlo refuses, and with which numbers; what it takes by default."""

from typing import Any

import pytest

from warpdesk_server.kernels.monte_carlo.spec import CHUNK, OPERATION
from warpdesk_server.kernels.problems import InvalidRequest

VALID: dict[str, Any] = {**OPERATION.example.params}


def refused(**changes: Any) -> list[tuple[str, str]]:
    given = {name: value for name, value in {**VALID, **changes}.items() if value != "absent"}
    with pytest.raises(InvalidRequest) as caught:
        OPERATION.validate(given, {})
    return [(problem.pointer, problem.detail) for problem in caught.value.problems]


def accepted(**changes: Any) -> Any:
    return OPERATION.validate({**VALID, **changes}, {})


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("payoff", "lookback", "european"),
        ("option", "straddle", "call"),
        ("spot", 0.0, "spot should be at least 1e-09, got 0.0"),
        ("spot", -1.0, "at least 1e-09, got -1.0"),
        ("spot", 1e300, "1000000000000"),
        ("strike", 0.0, "strike should be at least 1e-09"),
        ("volatility", -0.1, "at least 0"),
        ("maturity", 0.0, "maturity should be at least 1e-09, got "),
        ("maturity", -1.0, "maturity should be at least 1e-09, got "),
        ("maturity", 1e-323, "maturity should be at least 1e-09, got "),
        ("volatility", 1e-320, "volatility 9.99989e-321 is neither 0 nor at least 1e-09"),
        ("volatility", 9.99e-10, "volatility 9.99e-10 is neither 0 nor at least 1e-09"),
        ("steps", 0, "at least 1"),
        ("steps", 10_001, "10000"),
        ("steps", 2.5, "integer"),
        ("paths", 0, "at least 2"),
        ("paths", 1, "at least 2"),
        ("paths", 100_000_001, "100000000"),
        ("paths", "many", "integer"),
        ("paths", True, "integer"),
        ("confidence", 1.0, "0.999999"),
        ("confidence", 0.0, "0.5"),
        ("rate", float("nan"), "finite"),
        ("volatility", float("inf"), "finite"),
        ("spot", "absent", "required"),
    ],
)
def test_a_parameter_out_of_range_is_refused(field: str, value: Any, says: str) -> None:
    ((pointer, detail),) = refused(**{field: value})
    assert pointer == f"/params/{field}"
    assert says in detail


def test_an_unknown_parameter_is_refused() -> None:
    ((pointer, _),) = refused(sigma=0.2)
    assert pointer == "/params/sigma"


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1])
def test_a_quantile_must_lie_between_0_and_1(value: float) -> None:
    ((pointer, _),) = refused(quantiles=[0.5, value])
    assert pointer == "/params/quantiles/1"


def test_too_many_quantiles_are_refused() -> None:
    ((pointer, detail),) = refused(quantiles=[0.5] * 101)
    assert pointer == "/params/quantiles"
    assert "100" in detail


def test_too_much_work_is_refused_with_the_numbers() -> None:
    ((pointer, detail),) = refused(paths=100_000_000, steps=501)
    assert pointer == "/params/paths"
    assert detail == (
        "100,000,000 paths of 501 steps take as long as 50,500,000,000 path steps of an average; at most "
        "50,400,000,000 are allowed"
    )
    assert accepted(paths=100_000_000, steps=500).paths == 100_000_000


def test_the_least_volatility_and_maturity_are_taken_and_so_is_none() -> None:
    assert accepted(volatility=1e-9, maturity=1e-9, steps=10_000).volatility == 1e-9
    assert accepted(volatility=0.0).volatility == 0.0


def test_an_absurd_spread_is_refused_with_the_numbers() -> None:
    ((pointer, detail),) = refused(volatility=3.0, maturity=4.0)
    assert pointer == "/params/volatility"
    assert "volatility 3 over 4 years is a standard deviation of 6" in detail


def test_absurd_growth_is_refused_for_each_rate() -> None:
    problems = refused(rate=5.0, dividend=-5.0, maturity=30.0, volatility=0.1)
    assert [pointer for pointer, _ in problems] == ["/params/rate", "/params/dividend"]
    assert "e^150" in problems[0][1]


def test_a_barrier_option_needs_its_barrier() -> None:
    ((_, detail),) = refused(payoff="barrier_up_out")
    assert "barrier_up_out needs a barrier" in detail


@pytest.mark.parametrize(
    ("field", "value", "takers"),
    [
        ("barrier", 120.0, "barrier"),
        ("monitoring", "discrete", "barrier and lookback"),
        ("rebate", 1.0, "barrier"),
        ("payout", 1.0, "cash_or_nothing"),
        ("extreme", 120.0, "lookback"),
    ],
)
def test_a_field_belongs_to_its_payoffs(field: str, value: Any, takers: str) -> None:
    ((_, detail),) = refused(**{field: value})
    assert f"{field} belongs to {takers} payoffs" in detail


def test_a_strike_is_needed_by_all_but_a_floating_lookback_which_refuses_it() -> None:
    ((_, detail),) = refused(strike=None)
    assert "payoff asian_arithmetic needs a strike" in detail
    ((_, detail),) = refused(payoff="lookback_floating")
    assert "payoff lookback_floating has no strike" in detail
    assert accepted(payoff="lookback_floating", strike=None).strike is None


@pytest.mark.parametrize(("paths", "fewer"), [(100_000, 65_536), (2, 4_096), (4_080, 4_096), (4_097, 4_096)])
def test_sobol_points_that_are_no_power_of_two_are_refused_with_numbers_that_are(paths: int, fewer: int) -> None:
    ((_, detail),) = refused(sampling="sobol", paths=paths)
    assert f"paths may be {fewer:,} or {2 * fewer:,}, not {paths:,}" in detail
    for fitting in (fewer, 2 * fewer):
        assert accepted(sampling="sobol", paths=fitting).paths == fitting


@pytest.mark.parametrize("paths", [2, 1_001])
def test_antithetic_paths_come_in_pairs(paths: int) -> None:
    ((_, detail),) = refused(sampling="antithetic", paths=paths)
    assert f"come in pairs, of which there must be two; paths is {paths:,}" in detail
    assert accepted(sampling="antithetic", paths=4).paths == 4


def test_at_all_times_the_spot_is_not_beyond_the_extreme_price() -> None:
    ((_, detail),) = refused(payoff="lookback_fixed", extreme=90.0)
    assert "extreme 90 is not the greatest price until today" in detail
    assert "the spot is 100" in detail
    ((_, detail),) = refused(payoff="lookback_floating", strike=None, extreme=110.0)
    assert "extreme 110 is not the least price" in detail
    assert accepted(payoff="lookback_fixed", extreme=90.0, monitoring="discrete").extreme == 90.0


def test_only_an_average_may_include_the_spot() -> None:
    ((_, detail),) = refused(payoff="european", include_spot=True)
    assert "include_spot belongs to Asian payoffs" in detail


def test_the_example_runs() -> None:
    answer = OPERATION.implementation("cpu")(OPERATION.validate(VALID, {}), seed=1)
    assert list(answer) == [output.name for output in OPERATION.outputs]
    assert answer["price"] == pytest.approx(5.78, abs=0.01)


def test_memory_grows_by_the_sums_of_each_256_paths_and_stays_small() -> None:
    one = OPERATION.cost(accepted(paths=CHUNK), {}).bytes
    two = OPERATION.cost(accepted(paths=2 * CHUNK), {}).bytes
    assert two - one == CHUNK // 256 * 8 * 8
    assert OPERATION.cost(accepted(paths=100_000_000), {}).bytes < 32 * 1024 * 1024


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({}, 12 + 4),
        ({"payoff": "european"}, 6 + 4),
        ({"payoff": "lookback_fixed"}, 15 + 4),
        ({"payoff": "lookback_fixed", "monitoring": "discrete"}, 9 + 4),
        ({"greeks": True}, 12 + 18),
        ({"sampling": "sobol", "paths": 4_096}, 54 + 4),
    ],
)
def test_work_is_counted_in_path_steps_of_an_average(given: dict[str, Any], steps: int) -> None:
    params = accepted(**{"paths": 1_000, "steps": 12, **given})
    assert OPERATION.cost(params, {}).work == params.paths * steps
