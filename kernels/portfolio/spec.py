"""The specification of covariance and risk parity: what portfolios are made from, and one that needs no means."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.matmul.spec import OPERATION as MATMUL
from warpdesk_server.kernels.matmul.spec import MatmulParams
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import refuse

MOST_ASSETS = 8_192
MOST_EIGENVALUES = 2_048  # assets: about 20 s of one core
CHUNK = 1 << 22  # numbers of the matrices in a chunk of risk parity on a device; it changes no byte
PRODUCT = MatmulParams(algorithm="kernel")  # what multiplies the returns

# Seconds that one core takes for a step.
_MULTIPLY_ADD = 3e-11
_SWEEP = 2e-10
# Of eigenvalues, and of eigenvectors besides, by the cube of the assets; of both by the square.
_REFLECT, _VECTORS, _TURN = 6e-10, 9e-10, 4e-8


Spectrum = Annotated[
    bool,
    Field(
        description="also compute the smallest eigenvalue and the condition number of the covariance, which takes "
        "longer than the weights"
    ),
]


class Covariance(Params):
    method: Literal["sample", "ewma", "ledoit_wolf"] = Field(
        default="sample",
        description="sample: divided by time - 1. ewma: weights that fall by the factor decay each step back in time. "
        "ledoit_wolf: sample, shrunk towards equal correlations (Ledoit and Wolf 2004).",
    )
    decay: float | None = Field(
        default=None, gt=0.0, lt=1.0, description="of ewma: weight of a time over that of the next; null: 0.94"
    )
    demean: bool = Field(
        default=True,
        description="subtract each asset's mean. false: the mean is taken as 0, and nothing is deducted from time.",
    )
    periods_per_year: float = Field(
        default=1.0, gt=0.0, le=1e9, description="periods of the returns in a year: means and covariances times this"
    )
    eigenvalues: bool = Field(default=False, description="also compute all eigenvalues of the covariance matrix")
    components: int = Field(
        default=0,
        ge=0,
        le=MOST_EIGENVALUES,
        description="also compute so many principal components of the covariance, at most as many as there are assets",
    )


class RiskParity(Params):
    tolerance: float = Field(
        default=1e-10,
        ge=1e-13,
        le=1e-2,
        description="stop once no asset's part of the risk is further than this from its budget, as a part of all risk",
    )
    sweeps: int = Field(
        default=1_000, ge=1, le=100_000, description="the most sweeps over all assets; more are refused, not cut short"
    )
    spectrum: Spectrum = False


def batch_of(info: ArrayInfo) -> int:
    """The number of matrices in an array of rank 2 or 3."""
    return info.shape[0] if info.ndim == 3 else 1


def matrices_of_a_chunk(assets: int) -> int:
    return max(1, CHUNK // assets**2)


def check_assets(assets: int, pointer: str, most: int = MOST_ASSETS) -> None:
    if assets > most:
        raise refuse(pointer, f"{assets:,} assets, the most are {most:,}")


def check_square(inputs: Mapping[str, ArrayInfo], most: int = MOST_ASSETS) -> int:
    """The number of assets of the input `covariance`. Raises InvalidRequest if it is not square or has too many."""
    shape = inputs["covariance"].shape
    if shape[-1] != shape[-2]:
        raise refuse("/inputs/covariance", f"shape {list(shape)}: a covariance matrix has as many rows as columns")
    check_assets(shape[-1], "/inputs/covariance", most)
    return shape[-1]


def check_of_assets(inputs: Mapping[str, ArrayInfo], assets: int, *names: str, one: bool = False) -> None:
    """Raise InvalidRequest if an input that has a number for each asset (or `one` for all) has another length."""
    for name in names:
        if name in inputs and inputs[name].shape not in ((assets,), *(((1,),) if one else ())):
            raise refuse(
                f"/inputs/{name}",
                f"shape {list(inputs[name].shape)}, and covariance has {assets} assets: {name} needs ({assets})"
                + (" or (1)" if one else ""),
            )


def spectrum_seconds(batch: int, assets: int, vectors: bool = False) -> float:
    """The seconds that one core takes for the eigenvalues of so many matrices, and for all eigenvectors."""
    return batch * ((_REFLECT + _VECTORS * vectors) * assets**3 + _TURN * assets**2)


def _product(inputs: Mapping[str, ArrayInfo]) -> dict[str, ArrayInfo]:
    *batch, assets, time = inputs["returns"].shape
    return {"a": ArrayInfo("float64", (*batch, assets, time)), "b": ArrayInfo("float64", (*batch, time, assets))}


def _covariance_cost(params: Covariance, inputs: Mapping[str, ArrayInfo]) -> Cost:
    returns = inputs["returns"]
    batch, (assets, time) = batch_of(returns), returns.shape[-2:]
    work = batch * assets**2 * time / 2
    matrices = 3  # besides what eigenvalues and eigenvectors are computed in
    if params.eigenvalues or params.components:
        work += spectrum_seconds(batch, assets, params.components > 0) / _MULTIPLY_ADD
        matrices += 3 if params.components else 1
    nbytes = returns.nbytes + 8 * batch * assets * (2 * time + matrices * assets)
    return Cost(nbytes, work=float(work), step=_MULTIPLY_ADD)


def _covariance_grid(_params: Any, inputs: Mapping[str, ArrayInfo]) -> Grid:
    return MATMUL.grid(PRODUCT, _product(inputs))


def _check_covariance(params: Covariance, inputs: Mapping[str, ArrayInfo]) -> None:
    assets, time = inputs["returns"].shape[-2:]
    decomposed = params.eigenvalues or params.components > 0
    check_assets(assets, "/inputs/returns", MOST_EIGENVALUES if decomposed else MOST_ASSETS)
    if params.components > assets:
        raise refuse("/params/components", f"{params.components:,} components, and there are {assets:,} assets")
    if time < 2:
        raise refuse("/inputs/returns", f"{time} return of each asset: a covariance needs 2")
    if params.decay is not None and params.method != "ewma":
        raise refuse("/params/decay", f"decay {params.decay:g} is for ewma, and method is {params.method}")
    if params.method == "ledoit_wolf" and assets < 2:
        raise refuse("/params/method", "ledoit_wolf shrinks correlations: it needs 2 assets, got 1")


def _risk_parity_cost(params: Any, inputs: Mapping[str, ArrayInfo]) -> Cost:
    covariance = inputs["covariance"]
    # About 20 sweeps; a step is a multiply-add of a vector instruction.
    work = 20.0 * covariance.size
    work += params.spectrum * spectrum_seconds(batch_of(covariance), covariance.shape[-1]) / _SWEEP
    return Cost((2 + params.spectrum) * covariance.nbytes, work=work, step=_SWEEP)


def _risk_parity_grid(_params: Any, inputs: Mapping[str, ArrayInfo]) -> Grid:
    covariance = inputs["covariance"]
    assets, batch = covariance.shape[-1], batch_of(covariance)
    each = min(batch, matrices_of_a_chunk(assets))
    # A matrix, its portfolio and what the portfolio covaries with; sweeps and the residual. The budgets serve all.
    return Grid(-(-batch // each), each * (8 * assets**2 + 16 * assets + 12), 8 * assets)


def _check_risk_parity(params: Any, inputs: Mapping[str, ArrayInfo]) -> None:
    check_of_assets(inputs, check_square(inputs, MOST_EIGENVALUES if params.spectrum else MOST_ASSETS), "budgets")


OF_MATRICES = ("asset asset", "batch asset asset")
OF_ASSETS = ("asset", "batch asset")
OF_EACH = ("1", "batch")  # a number of each matrix
_OF_COMPONENTS = ("component", "batch component")


def conditioning_outputs(asked_by: str) -> tuple[Output, Output]:
    return (
        Output("smallest_eigenvalue", f"of the covariance, shape (1) or (batch); NaN without {asked_by}", axes=OF_EACH),
        Output(
            "condition_number",
            "the greatest eigenvalue over the smallest, infinite where that is 0 but for rounding; "
            f"shape (1) or (batch); NaN without {asked_by}",
            axes=OF_EACH,
        ),
    )


_REAL: tuple[DType, ...] = ("float64", "float32")
COVARIANCE_INPUT = Input(
    "covariance",
    "symmetric covariance matrix of simple returns, shape (assets, assets) or (batch, assets, assets)",
    ("float64",),
    (2, 3),
    axes=OF_MATRICES,
)
MATRIX = {"data": [[0.04, 0.006, 0.01], [0.006, 0.09, 0.018], [0.01, 0.018, 0.16]], "dtype": "float64"}
_RETURNS = {
    "data": [[0.01, -0.02, 0.03, 0.01, 0.0], [0.02, -0.01, 0.02, 0.0, -0.01], [-0.01, 0.01, 0.0, 0.02, 0.01]],
    "dtype": "float64",
}


COVARIANCE = Operation(
    name="covariance",
    summary="Covariance, correlation and means of returns: sample, exponentially weighted, or shrunk (Ledoit-Wolf); "
    "its principal components.",
    package="warpdesk_server.kernels.portfolio",
    params=Covariance,
    inputs=(
        Input(
            "returns",
            "simple returns, shape (assets, time) or (batch, assets, time), oldest first",
            _REAL,
            (2, 3),
            axes=("asset time", "batch asset time"),
        ),
    ),
    outputs=(
        Output("covariance", "per year, shape (assets, assets) or (batch, assets, assets), float64", axes=OF_MATRICES),
        Output("correlation", "of the same shape; NaN beside an asset whose variance is 0", axes=OF_MATRICES),
        Output(
            "means",
            "mean of each asset's returns per year, shape (assets) or (batch, assets); ewma: weighted",
            axes=OF_ASSETS,
        ),
        Output(
            "shrinkage",
            "ledoit_wolf: the weight of the equal correlations, from 0 to 1; else 0; (1) or (batch)",
            axes=OF_EACH,
        ),
        Output(
            "eigenvalues",
            "of the covariance, ascending, shape (assets) or (batch, assets); (..., 0) if not asked",
            axes=("eigenvalue", "batch eigenvalue"),
        ),
        Output(
            "explained_variance",
            "the variance along each component, which is its eigenvalue, falling; shape (components) or "
            "(batch, components)",
            axes=_OF_COMPONENTS,
        ),
        Output(
            "explained_variance_ratio",
            "explained_variance as a part of the sum of all variances; NaN where nothing varies",
            axes=_OF_COMPONENTS,
        ),
        Output(
            "components",
            "the principal components, eigenvectors of length 1 whose largest element is positive, shape "
            "(components, assets) or (batch, components, assets)",
            axes=("component asset", "batch component asset"),
        ),
        *conditioning_outputs("`eigenvalues` or `components`"),
    ),
    example=Example({}, {"returns": _RETURNS}),
    cost=_covariance_cost,
    grid=_covariance_grid,
    sizes=lambda params, inputs: {
        "component": params.components,
        "eigenvalue": inputs["returns"].shape[-2] if params.eigenvalues else 0,
    },
    check=_check_covariance,
    batching=Batching(steps=3e8, alike=False),
    variants=(Example({"method": "ledoit_wolf", "components": 2}, {"returns": _RETURNS}),),
    compile_seconds=4.0,
    counted_as="portfolio",
)
RISK_PARITY = Operation(
    name="risk_parity",
    summary="Long-only weights whose assets have given parts of the portfolio's risk: equal ones, or budgets.",
    package="warpdesk_server.kernels.portfolio",
    params=RiskParity,
    inputs=(
        COVARIANCE_INPUT,
        Input(
            "budgets",
            "each asset's part of the risk, above 0, shape (assets); they are divided by their sum. Default: equal",
            ("float64",),
            (1,),
            required=False,
            axes=("asset",),
        ),
    ),
    outputs=(
        Output("weights", "above 0, with sum 1, shape (assets) or (batch, assets)", axes=OF_ASSETS, finite=True),
        Output("risk_contributions", "each asset's part of the risk, with sum 1, of the same shape", axes=OF_ASSETS),
        Output("risk", "standard deviation of the portfolio's return, shape (1) or (batch)", axes=OF_EACH),
        Output("iterations", "sweeps over all assets, int32, shape (1) or (batch)", axes=OF_EACH, dtype="int32"),
        Output(
            "residual",
            "the greatest distance of a risk contribution from its budget, shape (1) or (batch)",
            axes=OF_EACH,
        ),
        *conditioning_outputs("`spectrum`"),
    ),
    example=Example({}, {"covariance": MATRIX}),
    cost=_risk_parity_cost,
    grid=_risk_parity_grid,
    check=_check_risk_parity,
    batching=Batching(steps=5e7, alike=False),
    variants=(
        Example({"spectrum": True}, {"covariance": MATRIX, "budgets": {"data": [2.0, 1.0, 1.0], "dtype": "float64"}}),
    ),
    compile_seconds=4.0,
    counted_as="portfolio",
)

OPERATIONS = (COVARIANCE, RISK_PARITY)
