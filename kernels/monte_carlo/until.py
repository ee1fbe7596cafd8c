"""The specification of monte_carlo_until: a simulation that goes on until its error is as small as is wanted."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.monte_carlo import spec
from warpdesk_server.kernels.monte_carlo.spec import BINS, BLOCK, CHUNK, MonteCarloParams
from warpdesk_server.kernels.operation import Cost, Example, Output
from warpdesk_server.kernels.task import Task, TaskLimits

PATHS_LIMIT = 100_000_000_000
WORK_LIMIT = 100_400_000_000_000  # path steps (spec.work): 10^11 paths of an average over 1,000 dates
STEP_WORK = 1 << 28  # path steps in a step of the task, about: a second of a few cores
FEWEST = 1 << 16  # paths before which no error is believed


class MonteCarloUntilParams(MonteCarloParams):
    """One option as in monte_carlo, and the standard error at which its simulation ends."""

    standard_error: Annotated[float, Field(ge=1e-9, le=1e12)] = Field(
        description="the simulation ends once the estimate's standard error is at most this, in the currency of the "
        "prices, and nothing speaks against that error (`warnings`)"
    )
    paths: int = Field(default=10_000_000_000, ge=2, le=PATHS_LIMIT, description="the most paths that are simulated")

    @model_validator(mode="after")
    def _paths_can_be_added(self) -> Self:
        if self.sampling == "sobol":
            raise ValueError("the number of Sobol points is chosen before the first; monte_carlo takes them")
        return self


def unit(params: MonteCarloUntilParams) -> int:
    """The paths that a step of the task simulates: BLOCK times a power of two, at most a chunk."""
    paths = BLOCK
    while paths < CHUNK and 2 * paths * params.steps <= STEP_WORK:
        paths *= 2
    return paths


def _check(params: MonteCarloUntilParams, _inputs: Mapping[str, ArrayInfo]) -> None:
    spec.require_simulable(params, WORK_LIMIT)


def _state_bytes(params: MonteCarloUntilParams) -> int:
    """The bytes of the sums of all units, and of the histogram."""
    return -(-params.paths // unit(params)) * spec.columns(params) * 8 + BINS * 8


def _cost(params: MonteCarloUntilParams, _inputs: Mapping[str, ArrayInfo]) -> Cost:
    step = spec.OPERATION.cost(params.model_copy(update={"paths": unit(params)}), {})
    return Cost(bytes=step.bytes + 3 * _state_bytes(params), work=float(spec.work(params)), step=step.step)


def _limits(params: MonteCarloUntilParams, _inputs: Mapping[str, ArrayInfo]) -> TaskLimits:
    """A step takes seconds; beside other work, of which tasks wait for the last core, it may take far longer."""
    return TaskLimits(3600.0, None, checkpoint_bytes=_state_bytes(params) + (64 << 10), result_bytes=64 << 10)


TASK = Task(
    name="monte_carlo_until",
    summary="Price of an option by as many simulated paths as its standard error needs: monte_carlo as a task",
    package="warpdesk_server.kernels.monte_carlo",
    params=MonteCarloUntilParams,
    inputs=(),
    outputs=(
        *spec.OPERATION.outputs,
        Output("reached", "whether the standard error was reached; false where `paths` came first", "value"),
    ),
    example=Example(
        params={
            **{name: value for name, value in spec.OPERATION.example.params.items() if name != "paths"},
            "steps": 52,
            "standard_error": 0.001,
            "paths": 200_000,
        }
    ),
    cost=_cost,
    check=_check,
    randomness="seed",
    counted_as="monte_carlo",
    limits=_limits,
    gpu=True,
    uses=("warpdesk_server.kernels.device", "warpdesk_server.kernels.cpu", "warpdesk_server.kernels.gpu"),
)
