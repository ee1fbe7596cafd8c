"""The specification of monte_carlo: options under geometric Brownian motion, priced by simulated paths."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.operation import Cost, Example, Grid, Operation, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import InvalidRequest, Problem
from warpdesk_server.kernels.sharding import Division, Shard, Sharding

Payoff = Literal[
    "european",
    "asian_arithmetic",
    "asian_geometric",
    "barrier_up_out",
    "barrier_up_in",
    "barrier_down_out",
    "barrier_down_in",
    "cash_or_nothing",
    "asset_or_nothing",
    "lookback_fixed",
    "lookback_floating",
]

PATHS_LIMIT = 100_000_000
STEPS_LIMIT = 10_000
WORK_LIMIT = 50_400_000_000  # path steps: 10^8 paths of an average over 500 dates
SPREAD_LIMIT = 5.0  # standard deviations of the terminal log price: 500 % for a year, or 50 % for a hundred
DRIFT_LIMIT = 100.0  # |rate| * maturity and |dividend| * maturity; e^-100 is 4e-44
FLOOR = 1e-9  # least maturity, and least volatility but 0: below lie steps whose deviation float64 cannot resolve
BLOCK = 256  # paths whose sums are one leaf of the tree over all paths: as in kernels/device/reduce.py
# Paths in a chunk: BLOCK times a power of two, so that the tree over a chunk is a subtree of the tree over all.
CHUNK = 1 << 20
UNITS = 256  # that a job is cut into at most: their sums take 16 KiB, and many workers have even shards all the same

# The sums over the paths of a block: x, x^2, y, y^2, x y, where x is the payoff minus plan.Terms.shift and y the
# control minus its expectation. Then 1 if the payoff is positive, 1 if the control's is, and the cube of
# (x - weight y) unit, for the skewness. Counts to 2^53 are exact in float64.
SUMS = 8
GREEKS = ("delta", "vega", "theta", "rho")  # the sums of each and of its square follow where they are wanted

SOBOL_DIMENSIONS = 64  # those of kernels/device/sobol.py

# The histogram of W_steps / sqrt(steps), a standard normal: 1024 bins a standard deviation, 8 deviations either way.
BINS_PER_DEVIATION = 1024
BINS = 16 * BINS_PER_DEVIATION

# Independent scrambles of a Sobol sample, whose prices' spread is the error. Each has a power of two of points, so that
# a block is of one replicate, and a replicate's sum a subtree of the sum of all.
REPLICATES = 16
WALKS_BYTES = 256 << 20  # of paths from Sobol points that a device holds at a time
# Work is counted in path steps of an average by pseudo-random numbers, 3.3 ns of a core. In such steps, by processor
# time: a step of each kind of payoff, what a Sobol point adds to it, the end of a path, and what Greeks add to that.
AT_EXPIRY, ON_DATES, AVERAGE, AT_ALL_TIMES = 0.5, 0.75, 1.0, 1.25
SOBOL_STEPS, END_STEPS, GREEK_STEPS = 3.5, 4.0, 14.0

Positive = Annotated[float, Field(gt=0, ge=1e-9, le=1e12)]


class MonteCarloParams(Params):
    """One option on one asset: prices in one currency, times in years, rates continuously compounded per year."""

    payoff: Payoff = Field(
        description="what is paid; Asian options average the fixings, barrier options knock in or out, digital options "
        "(cash_or_nothing, asset_or_nothing) pay all or nothing, lookback options the greatest or least price"
    )
    option: Literal["call", "put"] = Field(
        description="call pays price - strike, put strike - price, never below 0; digital: above or below the strike"
    )
    spot: Positive = Field(description="price of the asset today")
    strike: Positive | None = Field(
        default=None, description="needed by every payoff but lookback_floating, whose strike is the extreme price"
    )
    rate: float = Field(default=0.0, ge=-10, le=10, description="risk-free rate, continuously compounded")
    dividend: float = Field(default=0.0, ge=-10, le=10, description="dividend yield, continuously compounded")
    volatility: float = Field(ge=0, le=50, description="per square root of a year: 0.2 is 20 %; 0, or at least 1e-9")
    maturity: float = Field(ge=FLOOR, le=1000, description="years until expiry")
    steps: int = Field(
        default=252,
        ge=1,
        le=STEPS_LIMIT,
        description="equal time steps until expiry: fixings of an Asian option, dates at which a barrier or an extreme "
        "price is looked at",
    )
    paths: int = Field(default=100_000, ge=2, le=PATHS_LIMIT)
    include_spot: bool = Field(default=False, description="Asian: the price at time 0 counts as a first fixing")
    barrier: Positive | None = Field(default=None, description="level that knocks a barrier option in or out")
    monitoring: Literal["discrete", "continuous"] | None = Field(
        default=None,
        description="barrier, lookback: looked at on the steps only, or at all times (default) by the Brownian bridge",
    )
    rebate: float = Field(
        default=0.0,
        ge=0,
        le=1e12,
        description="barrier: paid when an option is knocked out, or at expiry when it was never knocked in",
    )
    payout: Positive | None = Field(default=None, description="cash_or_nothing: what is paid (default 1)")
    extreme: Positive | None = Field(
        default=None,
        description="lookback: the extreme price until today (default: the spot), the greatest for fixed calls and "
        "floating puts, the least for fixed puts and floating calls",
    )
    control_variate: bool = Field(
        default=True, description="asian_arithmetic: correct by the geometric average, whose price is known exactly"
    )
    sampling: Literal["pseudo", "antithetic", "sobol"] = Field(
        default="pseudo",
        description="pseudo-random paths; antithetic ones, in pairs of a path and its mirror image; or scrambled Sobol "
        "points by a Brownian bridge, where `paths` is 16 times a power of two, at least 4,096",
    )
    greeks: bool = Field(
        default=False,
        description="delta, vega, theta and rho by pathwise derivatives, with their errors; for payoffs without a "
        "jump, so not for barrier and digital ones",
    )
    confidence: float = Field(default=0.95, ge=0.5, le=0.999999, description="level of the confidence interval")
    quantiles: Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], Field(max_length=100)] = Field(
        default=(0.05, 0.5, 0.95), description="probabilities whose quantiles of the terminal price are wanted"
    )

    @property
    def is_barrier(self) -> bool:
        return self.payoff.startswith("barrier")

    @property
    def is_asian(self) -> bool:
        return self.payoff.startswith("asian")

    @property
    def is_lookback(self) -> bool:
        return self.payoff.startswith("lookback")

    @property
    def looks_up(self) -> bool:
        """Whether a lookback option pays by the greatest price, not the least."""
        return (self.option == "call") == (self.payoff == "lookback_fixed")

    @field_validator("volatility")
    @classmethod
    def _noise_is_absent_or_resolved(cls, volatility: float) -> float:
        if 0.0 < volatility < FLOOR:
            raise ValueError(f"volatility {volatility:g} is neither 0 nor at least {FLOOR:g}")
        return volatility

    @model_validator(mode="after")
    def _fields_belong_to_the_payoff(self) -> Self:
        if self.is_barrier and self.barrier is None:
            raise ValueError(f"payoff {self.payoff} needs a barrier level")
        for name, given, takers, belongs in (
            ("barrier", self.barrier is not None, "barrier", self.is_barrier),
            ("monitoring", self.monitoring is not None, "barrier and lookback", self.is_barrier or self.is_lookback),
            ("rebate", self.rebate != 0.0, "barrier", self.is_barrier),
            ("payout", self.payout is not None, "cash_or_nothing", self.payoff == "cash_or_nothing"),
            ("extreme", self.extreme is not None, "lookback", self.is_lookback),
        ):
            if given and not belongs:
                raise ValueError(f"{name} belongs to {takers} payoffs; payoff {self.payoff} has none")
        if self.include_spot and not self.is_asian:
            raise ValueError(f"include_spot belongs to Asian payoffs; payoff {self.payoff} averages nothing")
        if self.payoff == "lookback_floating" and self.strike is not None:
            raise ValueError("payoff lookback_floating has no strike: its strike is the extreme price")
        if self.payoff != "lookback_floating" and self.strike is None:
            raise ValueError(f"payoff {self.payoff} needs a strike")
        if self.greeks and not (self.payoff == "european" or self.is_asian or self.is_lookback):
            raise ValueError(
                f"greeks are pathwise derivatives, which miss the jump of payoff {self.payoff}; bump its parameters at "
                "the same seed instead"
            )
        if self.greeks and self.volatility == 0.0:
            raise ValueError("greeks need a volatility, which is 0")
        if self.sampling == "antithetic" and (self.paths % 2 or self.paths < 4):
            raise ValueError(f"antithetic paths come in pairs, of which there must be two; paths is {self.paths:,}")
        points = self.paths // REPLICATES
        if self.sampling == "sobol" and (points < BLOCK or points & (points - 1) or self.paths != points * REPLICATES):
            fewer = max(BLOCK, 1 << max(points, 1).bit_length() - 1) * REPLICATES
            more = f" or {2 * fewer:,}" if 2 * fewer <= PATHS_LIMIT else ""
            raise ValueError(
                f"Sobol points come in {REPLICATES} replicates of a power of two, at least {BLOCK}: paths may be "
                f"{fewer:,}{more}, not {self.paths:,}"
            )
        if self.extreme is not None and self.monitoring != "discrete":
            word, past = (
                ("greatest", self.spot > self.extreme) if self.looks_up else ("least", self.spot < self.extreme)
            )
            if past:
                raise ValueError(
                    f"extreme {self.extreme:g} is not the {word} price until today where the price is looked at at all "
                    f"times: the spot is {self.spot:g}"
                )
        return self


def _check(params: MonteCarloParams, _inputs: Mapping[str, ArrayInfo]) -> None:
    require_simulable(params, WORK_LIMIT)


def require_simulable(params: MonteCarloParams, most: int) -> None:
    """Raise InvalidRequest for more than `most` path steps, and for an option that float64 cannot simulate."""
    problems = []
    if (steps := work(params)) > most:
        problems.append(
            Problem(
                "/params/paths",
                f"{params.paths:,} paths of {params.steps:,} steps take as long as {steps:,} path steps of an average; "
                f"at most {most:,} are allowed",
            )
        )
    spread = params.volatility * params.maturity**0.5
    if spread > SPREAD_LIMIT:
        problems.append(
            Problem(
                "/params/volatility",
                f"volatility {params.volatility:g} over {params.maturity:g} years is a standard deviation of "
                f"{spread:g} of the log price; at most {SPREAD_LIMIT:g} is allowed",
            )
        )
    for name in ("rate", "dividend"):
        grown = getattr(params, name) * params.maturity
        if abs(grown) > DRIFT_LIMIT:
            problems.append(
                Problem(
                    f"/params/{name}",
                    f"{name} {getattr(params, name):g} over {params.maturity:g} years is a factor of e^{grown:g}; "
                    f"at most e^{DRIFT_LIMIT:g} either way is allowed",
                )
            )
    if problems:
        raise InvalidRequest(*problems)


def _cost(params: MonteCarloParams, _inputs: Mapping[str, ArrayInfo]) -> Cost:
    """The cost of a simulation: sums of all blocks, and of a chunk's; counts of up to 64 threads; tables of steps."""
    blocks = -(-params.paths // BLOCK) + -(-min(params.paths, CHUNK) // BLOCK)
    tables = 2 * (params.steps + 1) * 8
    if params.sampling == "sobol":  # 64 threads have a block of walks each
        tables += 64 * BLOCK * (params.steps + 1) * 8
    return Cost(blocks * columns(params) * 8 + 64 * BINS * 4 + tables, float(work(params)), step=3.3e-9)


def work(params: MonteCarloParams) -> int:
    """The work of a simulation, in path steps of an average by pseudo-random numbers."""
    step = AVERAGE if params.payoff == "asian_arithmetic" else AT_EXPIRY
    if params.is_barrier or params.is_lookback:
        step = ON_DATES if params.monitoring == "discrete" else AT_ALL_TIMES
    step += SOBOL_STEPS if params.sampling == "sobol" else 0.0
    return int(params.paths * (params.steps * step + END_STEPS + GREEK_STEPS * params.greeks))


def columns(params: MonteCarloParams) -> int:
    """How many sums a block of a simulation has: those listed at SUMS, and two of each Greek."""
    return SUMS + 2 * len(GREEKS) * params.greeks


def walks_at_once(params: MonteCarloParams) -> int:
    """The paths from Sobol points that a device holds at a time: whole blocks."""
    fitting = WALKS_BYTES // (BLOCK * (params.steps + 1) * 8)
    return max(1, min(fitting, -(-params.paths // BLOCK), CHUNK // BLOCK)) * BLOCK


def _walks_bytes(params: MonteCarloParams) -> int:
    """The device memory of walks from Sobol points, and of the tables that make them."""
    if params.sampling != "sobol":
        return 0
    dimensions = min(params.steps, SOBOL_DIMENSIONS)
    tables = params.steps * 3 * (4 + 8) + dimensions * (32 + REPLICATES) * 4
    return walks_at_once(params) * (params.steps + 1) * 8 + tables


def grid(params: MonteCarloParams, _inputs: Mapping[str, ArrayInfo]) -> Grid:
    """The grid of a simulation: chunks of CHUNK paths with sums of their blocks, and besides, counts and tables."""
    blocks = -(-min(params.paths, CHUNK) // BLOCK)
    in_lines = params.steps if params.is_barrier or params.is_lookback or params.payoff == "asian_arithmetic" else 1
    numbers = in_lines + (params.steps + 1 if params.is_barrier else 1)
    fixed = BINS * 4 + numbers * 8 + _walks_bytes(params)
    return Grid(-(-params.paths // CHUNK), each=blocks * columns(params) * 8, fixed=fixed)


def unit(params: MonteCarloParams) -> int:
    """The paths of a simulation's unit: BLOCK times a power of two, so that its tree is a subtree; at most a chunk."""
    paths = BLOCK
    while paths < CHUNK and paths * UNITS < params.paths:
        paths *= 2
    return paths


def span(params: MonteCarloParams, shard: Shard) -> tuple[int, int]:
    """The paths of a simulation's shard: the first, and the end."""
    return shard.first * unit(params), min(shard.end * unit(params), params.paths)


def like(params: MonteCarloParams, shard: Shard) -> MonteCarloParams:
    """The parameters of a simulation of as many paths as a shard has."""
    first, end = span(params, shard)
    return params.model_copy(update={"paths": end - first})


def sharding(params: MonteCarloParams, _inputs: Mapping[str, ArrayInfo]) -> Sharding:
    """The sharding of a simulation: of each unit of paths the sums listed at SUMS, and of each shard its histogram."""
    units = -(-params.paths // unit(params))
    return Sharding(
        units,
        partial(like, params),
        joined={"sums": Division(ArrayInfo("float64", (units, columns(params))))},
        added={"counts": ArrayInfo("int64", (BINS,))},
        partials="shard_sums",
        outputs="estimate.estimate",
    )


_MARKET = {"spot": 100.0, "strike": 100.0, "rate": 0.05, "dividend": 0.0, "volatility": 0.2, "maturity": 1.0}


def _variant(payoff: Payoff, **params: Any) -> Example:
    return Example({"payoff": payoff, "option": "call", **_MARKET, "steps": 12, "paths": 1000, **params})


OPERATION = Operation(
    name="monte_carlo",
    compile_seconds=4,
    summary="Price of a European, Asian, barrier, digital or lookback option by simulated geometric Brownian motion, "
    "with its error",
    package="warpdesk_server.kernels.monte_carlo",
    params=MonteCarloParams,
    inputs=(),
    outputs=(
        Output("price", "estimated present value", "value"),
        Output(
            "standard_error",
            "standard deviation of that estimate; 0 where all paths paid the same, no evidence where that was nothing",
            "value",
        ),
        Output(
            "confidence_interval",
            "[low, high]: price -+ the standard error times the normal quantile, for sobol that of Student's t with 15 "
            "degrees of freedom",
            "value",
        ),
        Output("confidence", "level of the interval", "value"),
        Output("quantiles", "[{probability, price}]: of the asset's simulated price at expiry", "value"),
        Output(
            "quantile_resolution",
            "greatest relative distance of a quantile from the simulated price of that rank (half a bin's width)",
            "value",
        ),
        Output(
            "control_variate",
            "{name, closed_form, beta, beta_estimated, paying_paths, expected_paying_paths, plain_price, "
            "plain_standard_error, variance_reduction} where one was used; beta is 1, and not estimated, where fewer "
            "than 200 paths are expected to pay the control",
            "value",
        ),
        Output("knocked_at_start", "barrier payoffs: whether the spot is at or past the barrier; else null", "value"),
        Output(
            "greeks",
            "{delta, vega, theta, rho}, each {value, standard_error}, where they are wanted: per 1.00 of price and "
            "volatility, a year, 1.00 of rate; else null",
            "value",
        ),
        Output("paths", "paths simulated", "value"),
        Output(
            "sampling",
            "{method, samples, sobol_dimensions}: how many independent samples the standard error rests on, which are "
            "paths, pairs of paths or replicates; and how many of a path's dimensions are Sobol points', the others "
            "being pseudo-random",
            "value",
        ),
        Output(
            "paying_paths",
            "paths whose payoff was positive (barrier at all times: whose expected payoff given its dates was)",
            "value",
        ),
        Output(
            "deciding_paths",
            "paths over squared skewness: of k paths that pay the same where no other pays it is about k. Below 50 the "
            "standard error is not to be trusted",
            "value",
        ),
        Output("warnings", "sentences: why the price or its error is not to be trusted; empty if it is", "value"),
        Output("steps", "time steps of each path", "value"),
    ),
    example=Example(
        params={
            "payoff": "asian_arithmetic",
            "option": "call",
            **_MARKET,
            "steps": 252,
            "paths": 100_000,
        }
    ),
    cost=_cost,
    check=_check,
    grid=grid,
    # Each job has its own seed, and its paths fill a device. Jobs run one by one, so the bytes of one count at a time.
    batching=Batching(steps=2e6, alike=False, bytes=512 << 20),
    sharding=sharding,
    randomness="seed",
    # On a GPU each of these is compiled by itself; on the CPU one function serves them all.
    variants=(
        _variant("european"),
        _variant("asian_geometric"),
        _variant("barrier_up_out", barrier=130.0, monitoring="discrete"),
        _variant("barrier_down_in", barrier=80.0, monitoring="continuous"),
        _variant("lookback_fixed", monitoring="discrete"),
        _variant("lookback_floating", strike=None),
        _variant("european", sampling="sobol", paths=4096),
        *(_variant(payoff, greeks=True) for payoff in ("european", "asian_arithmetic", "asian_geometric")),
        _variant("lookback_fixed", monitoring="discrete", greeks=True),
        _variant("lookback_floating", strike=None, greeks=True),
    ),
)
