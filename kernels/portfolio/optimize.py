"""The specification of optimize: a portfolio under general constraints, by Clarabel, a library of cone programs.

It is a task since its library need not be there, and since programs of many scenarios take minutes.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.operation import Cost, Example, Input, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.portfolio.spec import MATRIX, check_assets
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.kernels.task import Task, TaskLimits

MOST_ASSETS = 2_048
MOST_SCENARIOS = 1_000_000
MOST_NUMBERS = 100_000_000  # of scenarios times assets


class Optimize(Params):
    objective: Literal["variance", "cvar"] = Field(
        default="variance",
        description="variance: the least risk_aversion w'Sw / 2 - means'w, or w'Sw / 2 without risk_aversion. cvar: "
        "the least mean of the worst losses over scenarios (Rockafellar and Uryasev 2000). Costs are added to both.",
    )
    risk_aversion: float | None = Field(
        default=None, gt=0.0, le=1e9, description="of variance; null: means are ignored"
    )
    confidence: float = Field(
        default=0.95, gt=0.0, lt=1.0, description="of cvar: the worst 1 - confidence of the scenarios are averaged"
    )
    least_mean: float | None = Field(default=None, description="the least mean return of the portfolio")
    turnover: float | None = Field(default=None, ge=0.0, description="the most that sum |w - previous| may be")
    tracking_error: float | None = Field(
        default=None, gt=0.0, description="the most that the standard deviation of w - benchmark may be"
    )


# Inputs with a number for each asset, and whether one number for all will do.
_OF_ASSETS = {"means": False, "lower": True, "upper": True, "previous": False, "costs": True, "benchmark": False}


def assets_of(inputs: Mapping[str, ArrayInfo]) -> int:
    return inputs["covariance"].shape[1] if "covariance" in inputs else inputs["scenarios"].shape[1]


def _check(params: Optimize, inputs: Mapping[str, ArrayInfo]) -> None:
    _check_needed(params, inputs)
    assets = assets_of(inputs)
    check_assets(assets, "/inputs/covariance" if "covariance" in inputs else "/inputs/scenarios", MOST_ASSETS)
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        name: ((assets,), (1,)) if one else ((assets,),) for name, one in _OF_ASSETS.items()
    }
    shapes["covariance"] = ((assets, assets),)
    groups = inputs["groups"].shape[0] if "groups" in inputs else 0
    shapes |= {"groups": ((groups, assets),), "group_lower": ((groups,),), "group_upper": ((groups,),)}
    if "scenarios" in inputs:
        count = inputs["scenarios"].shape[0]
        shapes["scenarios"] = ((count, assets),)
        if count > MOST_SCENARIOS or inputs["scenarios"].size > MOST_NUMBERS:
            raise refuse(
                "/inputs/scenarios",
                f"{count:,} scenarios of {assets:,} assets, the most are {MOST_SCENARIOS:,}, and {MOST_NUMBERS:,} "
                "numbers",
            )
    for name, info in inputs.items():
        if info.shape not in shapes[name]:
            wanted = " or ".join(str(list(shape)) for shape in shapes[name])
            raise refuse(f"/inputs/{name}", f"shape {list(info.shape)}, and with {assets} assets it needs {wanted}")


def _check_needed(params: Optimize, inputs: Mapping[str, ArrayInfo]) -> None:
    """Raise InvalidRequest for an input that is missing, or that nothing asks for."""
    tracked = ("tracking_error", params.tracking_error is not None)
    wants: dict[str, list[tuple[str, bool]]] = {
        "covariance": [("objective variance", params.objective == "variance"), tracked],
        "scenarios": [("objective cvar", params.objective == "cvar")],
        "means": [
            ("risk_aversion", params.risk_aversion is not None),
            ("least_mean", params.least_mean is not None),
        ],
        "previous": [("turnover", params.turnover is not None), ("costs", "costs" in inputs)],
        "benchmark": [tracked],
        "groups": [("group_lower", "group_lower" in inputs), ("group_upper", "group_upper" in inputs)],
    }
    for name, reasons in wants.items():
        given = [reason for reason, wanted in reasons if wanted]
        if given and name not in inputs:
            raise refuse(f"/inputs/{name}", f"{given[0]} needs {name}")
        if not given and name in inputs and name in ("previous", "benchmark", "groups"):
            raise refuse(f"/inputs/{name}", f"nothing uses {name}: it is for {' or '.join(of for of, _ in reasons)}")
    if params.risk_aversion is not None and params.objective == "cvar":
        raise refuse("/params/risk_aversion", "risk_aversion is for objective variance; cvar has least_mean")


def _cost(_params: Any, inputs: Mapping[str, ArrayInfo]) -> Cost:
    assets = assets_of(inputs)
    scenarios = inputs["scenarios"].shape[0] if "scenarios" in inputs else 0
    # Some 20 factorisations of the cones' matrix, which has the scenarios' numbers and some rows of each asset.
    numbers = assets**2 + assets * scenarios
    return Cost(100 * numbers + 2_000 * (assets + scenarios), work=20.0 * (assets + 10) * numbers, step=1e-9)


def _limits(_params: Any, inputs: Mapping[str, ArrayInfo]) -> TaskLimits:
    return TaskLimits(3_600.0, 3_600.0, checkpoint_bytes=64 << 10, result_bytes=64 * assets_of(inputs) + (64 << 10))


_FLOAT: tuple[Literal["float64"]] = ("float64",)


def _input(name: str, doc: str, axes: str = "asset") -> Input:
    return Input(name, doc, _FLOAT, (len(axes.split()),), required=False, axes=(axes,))


TASK = Task(
    name="optimize",
    summary="Portfolio of least variance or CVaR with groups, turnover, costs and tracking error, by Clarabel",
    package="warpdesk_server.kernels.portfolio",
    params=Optimize,
    inputs=(
        _input("covariance", "symmetric covariance matrix of the returns, shape (assets, assets)", "asset asset"),
        _input("means", "mean return of each asset, shape (assets)"),
        _input(
            "scenarios",
            "returns of each asset in each scenario, equally likely, shape (scenarios, assets)",
            "scenario asset",
        ),
        _input("lower", "lower bound of each weight, shape (assets) or (1); default 0"),
        _input("upper", "upper bound of each weight, shape (assets) or (1); default 1"),
        _input("groups", "factors of the weights in the sum of each group, shape (groups, assets)", "group asset"),
        _input("group_lower", "the least of each sum, shape (groups)", "group"),
        _input("group_upper", "the most of each sum, shape (groups)", "group"),
        _input("previous", "weights before, for turnover and costs, shape (assets)"),
        _input("costs", "cost of a change of each weight by 1, as a return, shape (assets) or (1)"),
        _input("benchmark", "weights for tracking_error, shape (assets)"),
    ),
    outputs=(
        Output("weights", "with sum 1, shape (assets)", axes=("asset",)),
        Output(
            "bounds",
            "-1 for an asset at its lower bound, 1 at its upper one, to 1e-6, int32, shape (assets)",
            axes=("asset",),
            dtype="int32",
        ),
        Output(
            "risk_contributions",
            "each asset's part of the variance, with sum 1, shape (assets); (0) without one",
            axes=("asset",),
        ),
        Output("mean", "means'w; null without means", "value"),
        Output("risk", "standard deviation of the return; null without a covariance", "value"),
        Output("cvar", "mean of the worst losses over scenarios; null without scenarios", "value"),
        Output("turnover", "sum |w - previous|; null without previous weights", "value"),
        Output("tracking_error", "standard deviation of w - benchmark; null without a benchmark", "value"),
        Output("smallest_eigenvalue", "of the covariance; null without one", "value"),
        Output("condition_number", "the greatest eigenvalue over the smallest; null if singular", "value"),
        Output("objective", "what was minimised, in units of the inputs", "value"),
        Output("gap", "between the primal and the dual objective, in units of the inputs", "value"),
        Output("primal_residual", "the library's, of the constraints", "value"),
        Output("dual_residual", "the library's, of the conditions of optimality", "value"),
        Output("iterations", "of the library", "value"),
        Output("status", "solved, or almost_solved: to the library's reduced accuracy", "value"),
        Output("algorithm", "library: its last digits are not promised", "value"),
        Output("algorithm_reason", "the library and its version", "value"),
    ),
    example=Example({}, {"covariance": MATRIX}),
    cost=_cost,
    check=_check,
    counted_as="portfolio",
    limits=_limits,
    libraries=("clarabel",),
)
