"""The specification of portfolios whose steps follow one another: the efficient frontier, risk parity of clusters.

They run on the CPU alone: a step needs the one before, and one problem has too few numbers for a GPU.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.operation import Cost, Example, Input, Operation, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.portfolio.spec import (
    COVARIANCE_INPUT,
    MATRIX,
    OF_ASSETS,
    OF_EACH,
    Spectrum,
    batch_of,
    check_of_assets,
    check_square,
    conditioning_outputs,
    spectrum_seconds,
)
from warpdesk_server.kernels.problems import refuse

MOST_ASSETS = 2_048  # some 10 s of one core
_STEP = 2.5e-10  # seconds that one core takes for a multiply-add of a matrix in its cache

Kind = Literal["minimum_variance", "maximum_sharpe", "target_mean", "target_risk"]


Linkage = Literal["single", "complete", "average"]
LINKAGES: tuple[Linkage, ...] = ("single", "complete", "average")  # their numbers in hrp_loops.py


class Frontier(Params):
    portfolio: Kind = Field(
        default="minimum_variance",
        description="which portfolio of the frontier the weights are of. maximum_sharpe: the greatest (mean - rf) / "
        "risk. target_mean, target_risk: the one with the mean or risk `target`.",
    )
    target: float | None = Field(default=None, description="mean or risk of a target portfolio, per year")
    rf: float = Field(default=0.0, description="risk-free return per year, of Sharpe ratios")
    periods_per_year: float = Field(
        default=1.0, gt=0.0, le=1e9, description="means and covariances are of a period: they are taken times this"
    )


def _frontier_cost(_params: Any, inputs: Mapping[str, ArrayInfo]) -> Cost:
    assets = inputs["means"].size
    # About as many steps as assets, each an exchange in the table, and the eigenvalues; corners with their weights.
    return Cost(8 * assets**2 * 8, work=3.0 * assets**3 + 100.0 * assets**2, step=_STEP)


def _check_frontier(params: Frontier, inputs: Mapping[str, ArrayInfo]) -> None:
    assets = check_square(inputs, MOST_ASSETS)
    check_of_assets(inputs, assets, "means")
    check_of_assets(inputs, assets, "lower", "upper", one=True)
    wants = params.portfolio.startswith("target")
    if wants and params.target is None:
        raise refuse("/params/target", f"{params.portfolio} needs the {params.portfolio[7:]} that is wanted")
    if not wants and params.target is not None:
        raise refuse("/params/target", f"target {params.target:g} is not for {params.portfolio}")


class Hrp(Params):
    distance: Literal["of_distances", "of_correlations"] = Field(
        default="of_distances",
        description="of_correlations: sqrt((1 - correlation) / 2) of two assets. of_distances: the Euclidean distance "
        "of their rows of those distances, as in Lopez de Prado 2016.",
    )
    linkage: Linkage = Field(
        default="single", description="distance of two clusters: of the nearest two assets, the farthest, or the mean"
    )
    spectrum: Spectrum = False


def _hrp_cost(params: Any, inputs: Mapping[str, ArrayInfo]) -> Cost:
    covariance = inputs["covariance"]
    batch, assets = batch_of(covariance), covariance.shape[-1]
    work = batch * (110.0 * assets**2 + (2.0 * assets**3 if params.distance == "of_distances" else 0.0))
    work += params.spectrum * spectrum_seconds(batch, assets) / _STEP
    return Cost(3 * covariance.nbytes, work=work, step=_STEP)


def _hrp_sizes(_params: Any, inputs: Mapping[str, ArrayInfo]) -> dict[str, int]:
    assets = inputs["covariance"].shape[-1]
    return {"place": assets, "merge": assets - 1, "column": 4}


def _check_hrp(_params: Any, inputs: Mapping[str, ArrayInfo]) -> None:
    check_square(inputs, MOST_ASSETS)


def _bound(name: str, default: str) -> Input:
    return Input(
        name,
        f"{name} bound of each asset's weight, shape (assets), or (1) for all; default {default}",
        ("float64",),
        (1,),
        required=False,
        axes=("asset",),
    )


_MEANS = {"data": [0.08, 0.1, 0.14], "dtype": "float64"}

FRONTIER = Operation(
    name="frontier",
    summary="The efficient frontier with bounds, by the critical line: all corner portfolios, and one that is chosen.",
    package="warpdesk_server.kernels.portfolio.sequential",
    params=Frontier,
    inputs=(
        Input("means", "mean return of each asset, shape (assets)", ("float64",), (1,), axes=("asset",)),
        Input(
            "covariance",
            "symmetric covariance matrix of the returns, shape (assets, assets)",
            ("float64",),
            (2,),
            axes=("asset asset",),
        ),
        _bound("lower", "0"),
        _bound("upper", "1"),
    ),
    outputs=(
        Output("weights", "of the chosen portfolio, with sum 1, shape (assets)", axes=("asset",), finite=True),
        Output(
            "bounds",
            "-1 for an asset at its lower bound, 1 at its upper one, 0 between, int32, shape (assets)",
            axes=("asset",),
            dtype="int32",
        ),
        Output("risk_contributions", "each asset's part of the variance, with sum 1, shape (assets)", axes=("asset",)),
        Output("mean", "of the chosen portfolio per year", "value"),
        Output("risk", "its standard deviation per year", "value"),
        Output("sharpe", "(mean - rf) / risk", "value"),
        Output(
            "corner_weights",
            "the corner portfolios by falling mean, shape (corners, assets): every efficient portfolio lies between "
            "two neighbours",
            axes=("corner asset",),  # the data decide how many
        ),
        Output("corner_means", "per year, shape (corners)", axes=("corner",)),
        Output("corner_risks", "per year, shape (corners)", axes=("corner",)),
        Output(
            "corner_lambdas",
            "the least tolerance of risk of which the corner is the answer, shape (corners)",
            axes=("corner",),
        ),
        Output("steps", "of the critical line: assets that left or reached a bound", "value"),
        Output("violation", "of the conditions of optimality, the greatest, as a part of the mean variance", "value"),
        Output("ties", "groups of assets with equal means, which are broken by the index", "value"),
        Output("smallest_eigenvalue", "of the covariance per year", "value"),
        Output("condition_number", "the greatest eigenvalue over the smallest", "value"),
    ),
    example=Example({"portfolio": "maximum_sharpe", "rf": 0.02}, {"means": _MEANS, "covariance": MATRIX}),
    cost=_frontier_cost,
    check=_check_frontier,
    batching=Batching(steps=4e7, alike=False),
    compile_seconds=6.0,
    counted_as="portfolio",
)

HRP = Operation(
    name="hrp",
    summary="Hierarchical risk parity: weights by halves of a tree of clusters, with no inverse of the covariance.",
    package="warpdesk_server.kernels.portfolio.sequential",
    params=Hrp,
    inputs=(COVARIANCE_INPUT,),
    outputs=(
        Output("weights", "above 0, with sum 1, shape (assets) or (batch, assets)", axes=OF_ASSETS, finite=True),
        Output(
            "risk_contributions", "each asset's part of the variance, with sum 1, of the same shape", axes=OF_ASSETS
        ),
        Output("risk", "standard deviation of the portfolio's return, shape (1) or (batch)", axes=OF_EACH),
        Output(
            "order",
            "the assets from left to right under the tree, int32, of the weights' shape",
            axes=("place", "batch place"),
            dtype="int32",
        ),
        Output(
            "merges",
            "the tree in SciPy's form, shape (assets - 1, 4) or (batch, assets - 1, 4): two clusters, their distance "
            "and how many assets they have; row r makes cluster assets + r",
            axes=("merge column", "batch merge column"),
        ),
        *conditioning_outputs("`spectrum`"),
    ),
    example=Example({}, {"covariance": MATRIX}),
    cost=_hrp_cost,
    sizes=_hrp_sizes,
    check=_check_hrp,
    batching=Batching(steps=4e7, alike=False),
    variants=(Example({"spectrum": True}, {"covariance": MATRIX}),),
    compile_seconds=4.0,
    counted_as="portfolio",
)

OPERATIONS = (FRONTIER, HRP)
