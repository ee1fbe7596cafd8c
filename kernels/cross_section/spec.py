"""The specification of the operations across assets: rank, z-score, winsorise and neutralise at each bar."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from warpdesk.models import DType
from warpdesk_server.kernels.array import ITEMSIZE, ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output
from warpdesk_server.kernels.params import EXACT, Params
from warpdesk_server.kernels.problems import refuse

MOST_ASSETS = 65_536  # about as many as there are listed shares
MOST_FACTORS = 64
MOST_WORK = 2e11  # steps of about a nanosecond of one core
# Numbers of one chunk on a device, times the columns that each bar has there; it changes no byte.
CHUNK = 1 << 22
_CORES = 8  # of a worker that computes on the CPU, for what a job is said to need
TILE = 1024  # assets that a block sorts; it changes no byte

Ties = Literal["average", "min", "max", "dense", "first"]
AVERAGE, MIN, MAX, DENSE, FIRST = range(5)  # as in cross_section.cu
TIES: dict[Ties, int] = {"average": AVERAGE, "min": MIN, "max": MAX, "dense": DENSE, "first": FIRST}

# The part of a factor's sum of squares that must be left when the intercept and earlier factors are taken out of it,
# 1.5e-11 of its length. A factor with less is a combination of them.
COLLINEAR = 2.0**-72


class Rank(Params):
    ties: Ties = Field(
        default="average",
        description="ranks of equal numbers, as pandas names them. average, min, max: of the ranks they have together. "
        "dense: the same rank, and the next number has the next one. first: in the order of the assets.",
    )
    percentile: bool = Field(
        default=False,
        description="divide by the number of ranked assets (dense: by the greatest rank), so that ranks are above 0 "
        "and at most 1",
    )


class ZScore(Params):
    ddof: Annotated[Literal[0, 1], EXACT] = Field(
        default=0, description="the variance is the sum of squares divided by n - ddof: 0 population, 1 sample"
    )


class Winsorise(Params):
    lower: float = Field(default=0.01, ge=0.0, le=1.0, description="quantile below which numbers are raised to it")
    upper: float = Field(default=0.99, ge=0.0, le=1.0, description="quantile above which numbers are lowered to it")


class Neutralise(Params):
    intercept: bool = Field(
        default=True,
        description="remove the mean too: of all assets, or of each group. false: factors alone, through the origin",
    )


def columns(params: Params, inputs: Mapping[str, ArrayInfo]) -> int:
    """The columns of numbers that a bar has while it is computed: one, or values, weights, who is there and factors."""
    if not isinstance(params, Neutralise):
        return 1
    return 3 + (inputs["factors"].shape[0] if "factors" in inputs else 0)


def bars_of_a_chunk(params: Params, inputs: Mapping[str, ArrayInfo]) -> int:
    assets, time = inputs["values"].shape
    return min(time, max(1, CHUNK // (assets * columns(params, inputs))))


def _bytes_of_a_bar(params: Params, inputs: Mapping[str, ArrayInfo]) -> int:
    """Device memory of one bar: for each asset its number as given, in float64, and what the operation needs besides;
    for the bar the number of factors that were used."""
    values = inputs["values"]
    assets = values.shape[0]
    each = ITEMSIZE[values.dtype] + 8 * columns(params, inputs)
    if isinstance(params, Rank | Winsorise):
        dense = isinstance(params, Rank) and params.ties == "dense"
        each += 24 if assets > TILE else 16 if dense else 12  # keys and places, twice while tiles are merged; a count
    if isinstance(params, ZScore):
        each += 8  # who is there
    if any(name in inputs and _varies(inputs, name) for name in ("factors", "weights")):
        each += ITEMSIZE[values.dtype]  # one factor or the weights as given: they are copied one after another
    if "groups" in inputs and _varies(inputs, "groups"):
        each += 8  # the order of the assets, and where their groups begin
    return assets * each + (4 if isinstance(params, Neutralise) else 0)


def _varies(inputs: Mapping[str, ArrayInfo], name: str) -> bool:
    """Whether an input has numbers for each bar, and not one for all bars."""
    return inputs[name].ndim == (3 if name == "factors" else 2)


def _grid(params: Any, inputs: Mapping[str, ArrayInfo]) -> Grid:
    assets, time = inputs["values"].shape
    bars = bars_of_a_chunk(params, inputs)
    fixed = 0 if "groups" in inputs and _varies(inputs, "groups") else 8 * assets
    fixed += ITEMSIZE[inputs["values"].dtype] * assets if isinstance(params, Neutralise) else 0  # numbers of all bars
    return Grid(-(-time // bars), bars * _bytes_of_a_bar(params, inputs), fixed)


def _cost(params: Any, inputs: Mapping[str, ArrayInfo]) -> Cost:
    values = inputs["values"]
    grid = _grid(params, inputs)
    each = values.shape[0] * (columns(params, inputs) + 8)
    scratch = _CORES * 8 * max(each, min(values.size * columns(params, inputs), 1 << 20))  # of each core's bars
    nbytes = sum(given.nbytes for given in inputs.values()) + values.nbytes + scratch + grid.fixed + grid.each
    return Cost(nbytes, work=_work(params, inputs))


def _work(params: Params, inputs: Mapping[str, ArrayInfo]) -> float:
    """Elementary steps: factors are made orthogonal in pairs; the rest takes about as long as eight pairs."""
    factors = max(0, columns(params, inputs) - 3)
    return float(inputs["values"].size * (8 + factors**2 if isinstance(params, Neutralise) else 1))


def _check(params: Any, inputs: Mapping[str, ArrayInfo]) -> None:
    values = inputs["values"]
    assets, time = values.shape
    if assets > MOST_ASSETS:
        raise refuse("/inputs/values", f"{assets:,} assets, the most are {MOST_ASSETS:,}")
    for name, info in inputs.items():
        leading = info.shape[:1] if name == "factors" else ()
        if name != "values" and info.shape not in ((*leading, assets), (*leading, assets, time)):
            before = "factors, " if name == "factors" else ""
            raise refuse(
                f"/inputs/{name}",
                f"shape {list(info.shape)}, and values has shape {list(values.shape)}: {name} needs "
                f"({before}{assets}) or ({before}{assets}, {time})",
            )
        if name != "groups" and info.dtype != values.dtype:
            raise refuse(f"/inputs/{name}", f"dtype {info.dtype}, and values has {values.dtype}: they must be equal")
    if isinstance(params, Winsorise) and params.lower > params.upper:
        raise refuse("/params/lower", f"lower {params.lower:g} is above upper {params.upper:g}")
    if isinstance(params, Neutralise):
        _check_neutralise(params, inputs)


def _check_neutralise(params: Neutralise, inputs: Mapping[str, ArrayInfo]) -> None:
    if "factors" in inputs and inputs["factors"].shape[0] > MOST_FACTORS:
        raise refuse("/inputs/factors", f"{inputs['factors'].shape[0]} factors, the most are {MOST_FACTORS}")
    if (steps := _work(params, inputs)) > MOST_WORK:
        raise refuse(
            "/inputs/factors",
            f"{inputs['factors'].shape[0]} factors at {inputs['values'].size:,} numbers are {steps:.3g} steps, and a "
            f"job has at most {MOST_WORK:.3g}: use fewer factors or divide the bars",
        )
    if not params.intercept and "groups" in inputs:
        raise refuse("/params/intercept", "groups have an intercept each, so intercept cannot be false beside groups")
    if not params.intercept and "factors" not in inputs:
        raise refuse("/params/intercept", "without an intercept and without factors there is nothing to remove")


_REAL: tuple[DType, ...] = ("float64", "float32")
_OF_ASSETS = ("asset", "asset time")
_VALUES = Input(
    "values",
    "a number for each asset and bar, shape (assets, time), oldest bar first; NaN: the asset is not there at that bar",
    _REAL,
    (2,),
    nan=True,
    axes=("asset time",),
)
_GROUPS = Input(
    "groups",
    "a label for each asset, shape (assets) or (assets, time), such as its industry; each group has its own ranks, "
    "mean and deviation, and an intercept of its own beside factors; "
    "a negative label: in no group, and NaN in the answer",
    ("int64", "int32"),
    (1, 2),
    required=False,
    axes=_OF_ASSETS,
)
_FACTORS = Input(
    "factors",
    "exposures, shape (factors, assets) or (factors, assets, time), of the dtype of values; an asset with a NaN is "
    "left out of the bar",
    _REAL,
    (2, 3),
    required=False,
    nan=True,
    axes=("factor asset", "factor asset time"),
)
_WEIGHTS = Input(
    "weights",
    "weights of the squares, 0 or more, shape (assets) or (assets, time), of the dtype of values; an asset with weight "
    "0 has a residual and no influence, one with a NaN is left out",
    _REAL,
    (1, 2),
    required=False,
    nan=True,
    axes=_OF_ASSETS,
)

_SHOWN: dict[str, dict[str, Any]] = {
    "values": {
        "data": [[1.5, 3.0], [2.5, 1.0], [0.5, 2.0], [4.0, 2.5], [2.5, 0.5]],
        "dtype": "float64",
    },
    "groups": {"data": [10, 20, 10, 20, 20], "dtype": "int64"},
}


def _like_values(name: str, doc: str) -> Output:
    return Output(name, f"{doc}; of the shape and dtype of values", axes=("asset time",), dtype="same")


# More assets than a block sorts, with equal numbers among them.
_MANY = Example({"ties": "dense"}, {"values": {"data": [[k % 7.0] for k in range(TILE + 1)], "dtype": "float64"}})


def _in_float32(example: Example) -> Example:
    """The example in float32, with its labels as they are."""
    singles = {"float64": "float32"}
    inputs = {
        name: {**given, "dtype": singles.get(given["dtype"], given["dtype"])} for name, given in example.inputs.items()
    }
    return Example(example.params, inputs)


def _operation(
    name: str,
    summary: str,
    params: type[Params],
    outputs: tuple[Output, ...],
    example: Example,
    steps: float,
    more: tuple[Input, ...] = (),
    variants: tuple[Example, ...] = (),
) -> Operation:
    return Operation(
        name=name,
        summary=summary,
        package="warpdesk_server.kernels.cross_section",
        params=params,
        inputs=(_VALUES, *more, _GROUPS),
        outputs=outputs,
        example=example,
        cost=_cost,
        grid=_grid,
        check=_check,
        batching=Batching(steps=steps),
        variants=(_in_float32(example), *variants),
        compile_seconds=2.0,
        counted_as="cross_section",
    )


CROSS_RANK = _operation(
    "cross_rank",
    "Rank or percentile of each asset among all assets, or its group, at each bar.",
    Rank,
    (_like_values("rank", "1 for the least number, or its percentile"),),
    Example({}, _SHOWN),
    steps=5e5,
    variants=(_MANY,),
)
CROSS_ZSCORE = _operation(
    "cross_zscore",
    "Distance of each asset from the mean of all assets, or its group, in standard deviations, at each bar.",
    ZScore,
    (_like_values("zscore", "(value - mean) / standard deviation, NaN where that is 0 or unknown"),),
    Example({}, _SHOWN),
    steps=2e6,
)
WINSORISE = _operation(
    "winsorise",
    "Clip each asset to two quantiles of all assets, or its group, at each bar.",
    Winsorise,
    (_like_values("winsorised", "the clipped values"),),
    Example({"lower": 0.1, "upper": 0.9}, _SHOWN),
    steps=5e5,
)
NEUTRALISE = _operation(
    "neutralise",
    "What a mean, group means or a regression on factors leave of each asset at each bar: demeaned or neutral values.",
    Neutralise,
    (
        _like_values("residual", "residuals of the least-squares regression"),
        Output(
            "used",
            "how many factors the regression of each bar used, shape (time), int32; fewer than were given where some "
            "are combinations of others",
            axes=("time",),
            dtype="int32",
        ),
    ),
    Example({}, {**_SHOWN, "factors": {"data": [[0.1, 1.2, -0.3, 0.8, -1.0]], "dtype": "float64"}}),
    steps=1.5e7,
    more=(_FACTORS, _WEIGHTS),
)

OPERATIONS = (CROSS_RANK, CROSS_ZSCORE, WINSORISE, NEUTRALISE)
