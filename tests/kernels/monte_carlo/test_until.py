"""monte_carlo_until: the answer of monte_carlo with as many paths as it took, whatever interrupted it."""

import json
from collections.abc import Callable
from math import isclose
from typing import Any

import pytest

from tests.cudasim.device import EmulatedDevice
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.monte_carlo import cpu, until
from warpdesk_server.kernels.monte_carlo.closed_form import geometric_asian
from warpdesk_server.kernels.monte_carlo.spec import MonteCarloParams
from warpdesk_server.kernels.monte_carlo.task import monte_carlo_until
from warpdesk_server.kernels.monte_carlo.until import TASK, MonteCarloUntilParams
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.kernels.task import State, Stopped, Undisturbed

OPTION: dict[str, Any] = {
    "payoff": "asian_arithmetic",
    "option": "call",
    "spot": 100.0,
    "strike": 100.0,
    "rate": 0.05,
    "volatility": 0.2,
    "maturity": 1.0,
    "steps": 4,
}


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until, "STEP_WORK", 4 * 8192)
    monkeypatch.setattr(until, "FEWEST", 1024)


def params(**fields: Any) -> MonteCarloUntilParams:
    values = {**OPTION, "standard_error": 0.01, **fields}
    parsed = TASK.validate(values, {})
    assert isinstance(parsed, MonteCarloUntilParams)
    return parsed


def text(outputs: dict[str, Any]) -> str:
    return json.dumps(outputs, sort_keys=True)


class Interrupted(Undisturbed):
    """Stops after so many steps, with the state that they left; `device` is where it runs."""

    def __init__(self, steps: int, state: State | None, device: Device | None = None) -> None:
        super().__init__(device)
        self.state, self._left = state, steps

    def checkpoint(self, step: int, make: Callable[[], State]) -> None:  # noqa: ARG002 (the contract's)
        self._left -= 1
        if not self._left:
            self.state = make()
            raise Stopped


def in_pieces(params: MonteCarloUntilParams, steps: int, *devices: Device | None) -> dict[str, Any]:
    """The outputs of a run that is interrupted every so many steps, and goes on at the next of the devices."""
    state: State | None = None
    for turn in range(10_000):
        context = Interrupted(steps, state, devices[turn % len(devices)])
        try:
            return monte_carlo_until(params, context, seed=5)
        except Stopped:
            state = context.state
    raise AssertionError("it never ends")


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("wanted", [0.05, 0.002, 0.0008])
def test_the_answer_is_that_of_monte_carlo_with_the_paths_it_took(wanted: float) -> None:
    job = params(standard_error=wanted, paths=200_000)
    outputs = monte_carlo_until(job, Undisturbed(), seed=5)
    reached = outputs.pop("reached")
    plain = MonteCarloParams.model_validate({**OPTION, "paths": outputs["paths"]})
    assert text(outputs) == text(cpu.monte_carlo(plain, seed=5))
    assert reached == (outputs["standard_error"] <= wanted)
    if reached and outputs["paths"] > 8192:
        before = MonteCarloParams.model_validate({**OPTION, "paths": outputs["paths"] - 8192})
        assert cpu.monte_carlo(before, seed=5)["standard_error"] > wanted, "it stops at the first time"  # type: ignore[operator]


@pytest.mark.usefixtures("small_steps")
def test_antithetic_paths_are_those_of_monte_carlo_too() -> None:
    fields = {"payoff": "lookback_fixed", "sampling": "antithetic"}
    outputs = monte_carlo_until(params(standard_error=0.1, paths=100_000, **fields), Undisturbed(), seed=5)
    assert outputs.pop("reached")
    plain = MonteCarloParams.model_validate({**OPTION, **fields, "paths": outputs["paths"]})
    assert text(outputs) == text(cpu.monte_carlo(plain, seed=5))


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_wherever_it_is_interrupted_the_bytes_are_the_same(steps: int) -> None:
    job = params(standard_error=0.0012, paths=100_001)
    whole = monte_carlo_until(job, Undisturbed(), seed=5)
    assert text(in_pieces(job, steps, None)) == text(whole)


@pytest.mark.usefixtures("small_steps")
def test_a_device_and_the_cpu_continue_each_others_work(emulated: EmulatedDevice) -> None:
    job = params(standard_error=0.002, paths=40_000)
    whole = monte_carlo_until(job, Undisturbed(), seed=5)
    assert text(monte_carlo_until(job, Undisturbed(emulated), seed=5)) == text(whole)
    assert text(in_pieces(job, 1, None, emulated)) == text(whole)


@pytest.fixture
def emulated() -> EmulatedDevice:
    return EmulatedDevice()


@pytest.mark.usefixtures("small_steps")
def test_it_ends_at_the_most_paths_and_says_that_the_error_is_not_reached() -> None:
    context = Undisturbed()
    outputs = monte_carlo_until(params(standard_error=1e-6, paths=20_001), context, seed=5)
    assert (outputs["paths"], outputs["reached"]) == (20_001, False)
    assert [step for step, _, _ in context.reports] == [1, 2, 3]
    assert context.reports[-1][1] == 1.0


@pytest.mark.usefixtures("small_steps")
def test_an_error_that_nobody_can_trust_is_not_enough() -> None:
    """Far out of the money no path pays at first: an error of 0 is no evidence."""
    outputs = monte_carlo_until(
        params(payoff="european", strike=400.0, standard_error=1.0, paths=30_000), Undisturbed(), seed=5
    )
    assert outputs["standard_error"] < 1.0
    assert (outputs["paths"], outputs["reached"]) == (30_000, False)
    assert outputs["warnings"]


def test_a_path_without_noise_is_exact_at_the_first_look() -> None:
    outputs = monte_carlo_until(params(volatility=0.0, steps=1, standard_error=1e-9), Undisturbed(), seed=5)
    assert (outputs["standard_error"], outputs["reached"]) == (0.0, True)


@pytest.mark.usefixtures("small_steps")
def test_the_price_is_the_closed_form_within_the_error_that_was_asked_for() -> None:
    job = params(payoff="asian_geometric", standard_error=0.02)
    outputs = monte_carlo_until(job, Undisturbed(), seed=11)
    exact = geometric_asian("call", 100.0, 100.0, 0.05, 0.0, 0.2, 1.0, 4, False)
    assert outputs["reached"]
    assert isclose(outputs["price"], exact, abs_tol=4 * 0.02)


@pytest.mark.usefixtures("small_steps")
def test_it_reports_the_price_its_error_and_how_far_it_seems_to_be() -> None:
    context = Undisturbed()
    outputs = monte_carlo_until(params(standard_error=0.001), context, seed=5)
    parts = [done for _, done, _ in context.reports]
    assert parts == sorted(parts)
    assert parts[-1] == 1.0
    assert context.reports[-1][2] == {name: outputs[name] for name in ("price", "standard_error", "paths")}


@pytest.mark.parametrize(
    ("fields", "pointer", "sentence"),
    [
        ({"standard_error": 0.0}, "/params/standard_error", "should be at least 1e-09"),
        ({"paths": 10**11 + 1}, "/params/paths", "should be at most 100000000000"),
        ({"paths": 10**11, "steps": 1001}, "/params/paths", "at most 100,400,000,000,000 are allowed"),
        ({"sampling": "sobol", "paths": 65_536}, "/params", "the number of Sobol points is chosen before the first"),
        ({"volatility": 9.0}, "/params/volatility", "is a standard deviation of 9 of the log price"),
    ],
)
def test_what_cannot_be_simulated_is_refused(fields: dict[str, Any], pointer: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        params(**fields)
    (problem,) = refusal.value.problems
    assert (problem.pointer, sentence in problem.detail) == (pointer, True)


@pytest.mark.parametrize("steps", [1, 252, 10_000])
def test_a_step_is_a_power_of_two_of_blocks_and_its_state_is_in_the_limits(steps: int) -> None:
    job = params(steps=steps, paths=10**9)
    unit = until.unit(job)
    assert unit % until.BLOCK == 0
    assert unit & (unit - 1) == 0
    assert unit <= until.CHUNK
    assert unit * steps <= until.STEP_WORK
    assert TASK.limits(job, {}).checkpoint_bytes > -(-(10**9) // unit) * 64
