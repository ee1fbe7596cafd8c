"""The specification of basket_option: European and American options on several assets, priced by simulated prices."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.monte_carlo.spec import DRIFT_LIMIT
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import InvalidRequest, Problem, refuse
from warpdesk_server.kernels.sharding import Division, Shard, Sharding

MOST_ASSETS = 32
MOST_DATES = 1_000
WORK_LIMIT = 20_000_000_000  # steps of one asset; 10^8 paths of 32 assets are 3.2 10^9
STATE_LIMIT = 1 << 30  # bytes of the paths that a policy is fitted on, which are all kept at once
DATES, POLICY_PATHS = 50, 100_000  # of an American option that names neither
BLOCK = 256  # paths whose sums are one leaf of the tree over all paths: as in kernels/device/reduce.py
# Paths in a chunk: BLOCK times a power of two, so that the tree over a chunk is a subtree of the tree over all.
CHUNK = 1 << 18

# The sums over the paths of a block: x, y, x^2, x y, y^2, where x is the payment and y that of the control less its
# expectation, both as of today. Then 1 if the payment is positive, 1 if the control's is, and the cube of
# x - weight y, for the skewness.
SUMS = 8
TERMS = 16  # fields of plan.Terms

Positive = Annotated[float, Field(gt=0, ge=1e-9, le=1e12)]


class BasketOption(Params):
    """One option on a basket: prices in one currency, times in years, rates continuously compounded per year."""

    payoff: Literal["weighted_sum", "best_of", "worst_of"] = Field(
        description="the value that is compared with the strike: the sum, the greatest or the least of weight * price"
    )
    option: Literal["call", "put"] = Field(description="call pays value - strike, put strike - value, never below 0")
    exercise: Literal["european", "american"] = Field(
        default="european",
        description="european: at maturity. american: today, or on one of `steps` equally spaced dates (Bermudan)",
    )
    strike: Positive
    rate: float = Field(default=0.0, ge=-10, le=10, description="risk-free rate, continuously compounded")
    maturity: float = Field(ge=1e-9, le=1000, description="years until expiry")
    steps: int | None = Field(
        default=None, ge=1, le=MOST_DATES, description="american: dates of exercise until expiry, which is the last; 50"
    )
    paths: int = Field(default=100_000, ge=2, le=100_000_000, description="paths that the option is valued on")
    policy_paths: int | None = Field(
        default=None,
        ge=100,
        le=10_000_000,
        description="american: further paths, which the policy of exercise is fitted on; 100,000",
    )
    control_variate: bool = Field(
        default=True,
        description="for european weighted_sum with weights above 0, and no other: correct by the geometric average, "
        "whose price is known exactly",
    )
    confidence: float = Field(default=0.95, ge=0.5, le=0.999999, description="level of the confidence interval")

    @property
    def is_american(self) -> bool:
        return self.exercise == "american"

    @property
    def dates(self) -> int:
        """The dates on which the option may pay."""
        return (self.steps or DATES) if self.is_american else 1

    @property
    def fit_paths(self) -> int:
        """The paths that a policy is fitted on: none for a European option."""
        return (self.policy_paths or POLICY_PATHS) if self.is_american else 0

    @model_validator(mode="after")
    def _fields_belong_to_the_exercise(self) -> Self:
        for name in ("steps", "policy_paths"):
            if not self.is_american and getattr(self, name) is not None:
                raise ValueError(f"{name} belongs to exercise american; exercise is european")
        return self


def functions(assets: int, american: bool = True) -> int:
    """The number of functions of the regression's basis; a European option has none, and takes the least there is."""
    return {1: 4, 2: 7}.get(assets, 10) if american else 4


def features(count: int) -> int:
    """The numbers of a path that a basis of so many functions is made of."""
    return {4: 1, 7: 2, 10: 3}[count]


def products(count: int) -> int:
    """The sums of a regression with so many functions: of products of each two, and of each with the target."""
    return count * (count + 1) // 2 + count


def state_bytes(paths: int, assets: int, count: int) -> int:
    """The bytes of so many paths on a date: what moves each asset, features, payment, date of exercise; and sums."""
    return -(-paths // BLOCK) * (BLOCK * (8 * (assets + features(count) + 1) + 4) + 8 * SUMS)


def policy_bytes(params: BasketOption, assets: int) -> int:
    """The bytes of the paths that a policy is fitted on, with the sums of their blocks; 0 for a European option."""
    count = functions(assets, params.is_american)
    return state_bytes(params.fit_paths, assets, count) + -(-params.fit_paths // BLOCK) * products(count) * 8


def _check(params: BasketOption, inputs: Mapping[str, ArrayInfo]) -> None:
    assets = inputs["spot"].shape[0]
    if assets > MOST_ASSETS:
        raise refuse("/inputs/spot", f"{assets} assets; at most {MOST_ASSETS} are allowed")
    wanted: dict[str, tuple[tuple[int, ...], ...]] = {
        "volatility": ((assets,), (1,)),
        "correlation": ((assets, assets),),
        "dividend": ((assets,), (1,)),
        "weights": ((assets,),),
    }
    problems = [
        Problem(
            f"/inputs/{name}",
            f"shape {list(inputs[name].shape)}, and spot has {assets} assets: {name} needs "
            + " or ".join(str(list(shape)) for shape in shapes),
        )
        for name, shapes in wanted.items()
        if name in inputs and inputs[name].shape not in shapes
    ]
    if assets > 1 and "correlation" not in inputs:
        problems.append(Problem("/inputs/correlation", f"{assets} assets need correlations, {[assets, assets]}"))
    if abs(grown := params.rate * params.maturity) > DRIFT_LIMIT:
        problems.append(
            Problem(
                "/params/rate",
                f"rate {params.rate:g} over {params.maturity:g} years is a factor of e^{grown:g}; at most "
                f"e^{DRIFT_LIMIT:g} either way is allowed",
            )
        )
    work = (params.paths + params.fit_paths) * params.dates * assets
    if work > WORK_LIMIT:
        problems.append(
            Problem(
                "/params/paths",
                f"{params.paths + params.fit_paths:,} paths of {assets} assets on {params.dates:,} dates are {work:,} "
                f"steps of an asset; at most {WORK_LIMIT:,} are allowed",
            )
        )
    kept = policy_bytes(params, assets)
    if kept > STATE_LIMIT:
        problems.append(
            Problem(
                "/params/policy_paths",
                f"{params.fit_paths:,} paths of {assets} assets, which are fitted at once, take {kept:,} bytes; at "
                f"most {STATE_LIMIT:,} are allowed",
            )
        )
    if problems:
        raise InvalidRequest(*problems)


def _cost(params: BasketOption, inputs: Mapping[str, ArrayInfo]) -> Cost:
    """The cost of an option: the policy's paths, sums of all blocks, and a block of paths for each of up to 64 threads.

    A step is one of an asset: a normal, an exponential, and what it has of the correlations.
    """
    assets = inputs["spot"].shape[0]
    blocks = -(-params.paths // BLOCK)
    scratch = 64 * BLOCK * (8 * assets + 200)
    steps = (
        (params.paths + params.fit_paths) * params.dates * (assets + 0.05 * assets * assets + (1 if assets > 1 else 0))
    )
    carried = 16 * params.fit_paths  # normals
    return Cost(policy_bytes(params, assets) + carried + blocks * SUMS * 8 + scratch, work=float(steps), step=8e-9)


def grid(params: BasketOption, inputs: Mapping[str, ArrayInfo]) -> Grid:
    """The grid of a valuation: chunks of CHUNK paths; and besides, tables, and what the policy's paths take more."""
    assets = inputs["spot"].shape[0]
    each = state_bytes(min(params.paths, CHUNK), assets, functions(assets, params.is_american))
    more = max(policy_bytes(params, assets) - each, 0)
    return Grid(-(-params.paths // CHUNK), each, fixed=_tables(params, assets) + more)


def policy_grid(params: BasketOption, inputs: Mapping[str, ArrayInfo]) -> Grid:
    """The grid of the fit of a policy: one chunk, since a regression needs all paths of a date."""
    assets = inputs["spot"].shape[0]
    return Grid(1, policy_bytes(params, assets), fixed=_tables(params, assets))


def span(params: BasketOption, shard: Shard) -> tuple[int, int]:
    """The paths of a shard of European options: the first, and the end."""
    return shard.first * CHUNK, min(shard.end * CHUNK, params.paths)


def _like(params: BasketOption, shard: Shard) -> BasketOption:
    first, end = span(params, shard)
    return params.model_copy(update={"paths": end - first})


def _sharding(params: BasketOption, _inputs: Mapping[str, ArrayInfo]) -> Sharding | None:
    """The sharding of European options: units are chunks. None for American ones, whose policy needs all of its paths.

    What is merged are the sums of each unit (SUMS), and the counts of paths that pay; `terms` are those of the plan,
    which is made of the inputs, the same for each unit.
    """
    if params.is_american:
        return None
    units = -(-params.paths // CHUNK)
    return Sharding(
        units,
        partial(_like, params),
        joined={
            "sums": Division(ArrayInfo("float64", (units, SUMS))),
            "terms": Division(ArrayInfo("float64", (units, TERMS))),
        },
        added={"counts": ArrayInfo("int64", (2,))},
        partials="shard_sums",
        outputs="estimate.merged",
    )


def _tables(params: BasketOption, assets: int) -> int:
    """The bytes of a job's tables, coefficients and counts on a device, and of two arrays that are not used."""
    count = functions(assets, params.is_american)
    return 8 * (assets * (assets + 3) + (params.dates + 1) * (count + 4) + products(count) + SUMS)


_TWO: dict[str, dict[str, Any]] = {
    "spot": {"data": [100.0, 95.0], "dtype": "float64"},
    "volatility": {"data": [0.2], "dtype": "float64"},
    "dividend": {"data": [0.1], "dtype": "float64"},
    "correlation": {"data": [[1.0, 0.5], [0.5, 1.0]], "dtype": "float64"},
}
_THREE: dict[str, dict[str, Any]] = {
    "spot": {"data": [100.0, 95.0, 90.0], "dtype": "float64"},
    "volatility": {"data": [0.2], "dtype": "float64"},
    "correlation": {"data": [[1.0, 0.5, 0.3], [0.5, 1.0, 0.4], [0.3, 0.4, 1.0]], "dtype": "float64"},
}
_PATHS = {"paths": 20_000, "policy_paths": 10_000}
_MARKET: dict[str, Any] = {"strike": 100.0, "rate": 0.05, "maturity": 1.0}
_REAL: tuple[DType, ...] = ("float64",)

OPERATION = Operation(
    name="basket_option",
    compile_seconds=4,
    summary="Price of a European or American option on the sum, best or worst of several assets, by simulated prices",
    package="warpdesk_server.kernels.basket_options",
    params=BasketOption,
    inputs=(
        Input("spot", "price of each asset today, shape (assets)", _REAL, (1,), axes=("asset",)),
        Input(
            "volatility",
            "of each asset, per square root of a year, shape (assets), or (1) for all",
            _REAL,
            (1,),
            axes=("asset",),
        ),
        Input(
            "correlation",
            "of the log prices, shape (assets, assets): symmetric, with 1 on the diagonal, positive definite; may be "
            "left out for one asset",
            _REAL,
            (2,),
            required=False,
            axes=("asset asset",),
        ),
        Input(
            "dividend",
            "yield of each asset, continuously compounded, shape (assets), or (1) for all; 0 if left out",
            _REAL,
            (1,),
            required=False,
            axes=("asset",),
        ),
        Input(
            "weights",
            "factor of each price, shape (assets). If left out: 1 / assets for weighted_sum, else 1. Below 0: for a "
            "spread",
            _REAL,
            (1,),
            required=False,
            axes=("asset",),
        ),
    ),
    outputs=(
        Output("price", "estimated present value; american: of the fitted policy on paths it has not seen", "value"),
        Output(
            "standard_error",
            "standard deviation of that estimate; 0 where all paths paid the same, no evidence where that was nothing",
            "value",
        ),
        Output("confidence_interval", "[low, high]: price -+ the normal quantile times the standard error", "value"),
        Output("confidence", "level of the interval", "value"),
        Output(
            "control_variate",
            "{name, closed_form, beta, beta_estimated, paying_paths, expected_paying_paths, plain_price, "
            "plain_standard_error, variance_reduction} where one was used, else null",
            "value",
        ),
        Output(
            "american",
            "{policy_paths, basis, in_sample_price, in_sample_standard_error, payment_today, exercise_today, "
            "probability, dates}; null for european. in_sample_price is that on the policy's own paths; exercise_today "
            "whether payment_today is at least what waiting is worth; probability the share of paths that are "
            "exercised. dates has {time, probability, in_the_money} of each: years, the share of paths exercised on "
            "it, and how many of the policy's paths were in the money",
            "value",
        ),
        Output("paths", "paths that the option is valued on", "value"),
        Output("paying_paths", "paths whose payment was positive", "value"),
        Output(
            "deciding_paths",
            "paths over squared skewness of the payments (with a control, less the control). Below 50 the standard "
            "error is not to be trusted",
            "value",
        ),
        Output("warnings", "sentences: why the price or its error is not to be trusted; empty if it is", "value"),
    ),
    example=Example(
        {"payoff": "best_of", "option": "call", "exercise": "american", **_MARKET, "steps": 9, **_PATHS}, _TWO
    ),
    cost=_cost,
    check=_check,
    grid=grid,
    # Each job has its own seed, and its paths fill a device. Jobs run one by one, so the bytes of one count at a time.
    batching=Batching(steps=1e6, alike=False, bytes=512 << 20),
    sharding=_sharding,
    randomness="seed",
    # On a GPU each of these is compiled by itself; on the CPU one function serves them all.
    variants=(
        Example({"payoff": "weighted_sum", "option": "call", **_MARKET, "paths": 1_000}, _TWO),
        Example(
            {"payoff": "worst_of", "option": "put", "exercise": "american", **_MARKET, "steps": 3, **_PATHS}, _THREE
        ),
    ),
)
