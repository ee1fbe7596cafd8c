"""The specification of the risk operations: value at risk, its backtest, and the performance of return series."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from warpdesk.models import DType
from warpdesk_server.kernels.array import ITEMSIZE, ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.kernels.sharding import Division, Sharding

MOST_SCENARIOS = 1 << 22  # so that weights of up to 2^40 add up to less than 2^63
MOST_ASSETS = 10_000
MOST_WORK = 1e14  # multiply-adds: about an hour of one core
# Scenarios whose products with the assets are added up before such sums are. It decides bytes of contributions.
ROWS = 8192
TILE = 8192  # scenarios of a portfolio whose sums one block makes, before tiles are paired. It decides bytes
# Losses of a chunk of portfolios on a device, and returns of a chunk of series; it changes no byte.
CHUNK = 1 << 26
TOGETHER = 1 << 20  # weights of portfolios that are measured together from a covariance
_MULTIPLY_ADD = 3e-11  # seconds of a core, as matmul's
PIECES = 8  # numbers that say what a scenario weighs in a contribution, as in risk.cu
SUMS = 27  # numbers that a pass over a series gives, as in risk.cu
SIDE = 32  # of the squares that `turn` turns
DIGIT = 14  # bits of a key by which losses are counted first: sign, exponent and two bits of the mantissa
AT_LEAST = 1 << 15  # losses: fewer are not worth another thread
_THREADS = 64  # that select quantiles at a time, at most

Level = Annotated[float, Field(ge=0.5, le=0.999999)]


class ValueAtRisk(Params):
    """The loss that a portfolio exceeds with a probability of 1 - level, as a positive number."""

    method: Literal["historical", "parametric", "monte_carlo"] = Field(
        default="historical",
        description="historical: the scenarios as they are. parametric: from their moments, or from a covariance. "
        "monte_carlo: simulated from their covariance, or from the one given",
    )
    levels: Annotated[tuple[Level, ...], Field(min_length=1, max_length=16)] = Field(
        default=(0.95, 0.99), description="confidence levels"
    )
    quantile: Literal["lower", "higher", "linear"] = Field(
        default="lower",
        description="of n losses of scenarios: lower is the ceil(level n)-th of them, higher the next one where "
        "level n is whole, linear NumPy's default",
    )
    distribution: Literal["normal", "student_t", "cornish_fisher"] = Field(
        default="normal",
        description="of the losses, for parametric and monte_carlo; student_t has the covariance given or measured. "
        "cornish_fisher (parametric alone): the normal quantile corrected by measured skewness and kurtosis",
    )
    degrees_of_freedom: float | None = Field(
        default=None, gt=2, le=1000, description="of student_t; a whole number of at most 100 for monte_carlo"
    )
    decay: float | None = Field(
        default=None,
        ge=0.5,
        lt=1,
        description="factor of a scenario's weight for each newer one; the last row is the newest. null: equal weights",
    )
    scenarios: int | None = Field(
        default=None, ge=2, le=MOST_SCENARIOS, description="that monte_carlo simulates; 100,000 if null"
    )
    components: bool = Field(default=False, description="also compute marginal and component contributions")
    window: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="neighbours by rank on each side of the VaR scenario over which its contributions are averaged; "
        "for historical and monte_carlo",
    )

    @property
    def samples(self) -> bool:
        """Whether a quantile of scenarios is taken."""
        return self.method != "parametric"

    @property
    def simulated(self) -> int:
        return 100_000 if self.scenarios is None else self.scenarios

    @field_validator("levels")
    @classmethod
    def _levels_differ(cls, levels: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(levels)) < len(levels):
            raise ValueError(f"levels has {len(levels)} numbers, of which {len(set(levels))} differ; give each once")
        return levels

    @model_validator(mode="after")
    def _fields_belong_to_the_method(self) -> Self:
        def belongs(name: str, given: bool, methods: str, allowed: bool) -> None:
            if given and not allowed:
                raise ValueError(
                    f"{name} belongs to {methods}; method is {self.method}, distribution {self.distribution}"
                )

        simulates, student = self.method == "monte_carlo", self.distribution == "student_t"
        belongs(
            "distribution", self.distribution != "normal", "parametric and monte_carlo", self.method != "historical"
        )
        belongs("cornish_fisher", self.distribution == "cornish_fisher", "parametric", self.method == "parametric")
        belongs("degrees_of_freedom", self.degrees_of_freedom is not None, "student_t", student)
        belongs("scenarios", self.scenarios is not None, "monte_carlo", simulates)
        belongs("window", self.window > 0, "historical and monte_carlo", self.samples)
        belongs("quantile", self.quantile != "lower", "historical and monte_carlo", self.samples)
        if student and self.degrees_of_freedom is None:
            raise ValueError("student_t needs degrees_of_freedom")
        freedom = self.degrees_of_freedom or 3.0
        if simulates and (freedom != int(freedom) or freedom > 100):
            raise ValueError(
                f"degrees_of_freedom {freedom:g}: a simulation adds squares of as many normals, so it takes a whole "
                "number of at most 100"
            )
        if self.decay is not None and (self.quantile == "linear" or self.window):
            raise ValueError(
                "linear and window count scenarios by rank, so they need equal weights, and decay is given"
            )
        return self


class VarBacktest(Params):
    """A level whose forecasts are compared with what happened."""

    level: Level = Field(default=0.99, description="confidence level of the forecasts")


class Performance(Params):
    """Conventions of performance: simple returns, deviations with n - 1, arithmetic means times periods a year."""

    periods_per_year: float = Field(default=252.0, gt=0, le=1e6, description="returns in a year: 252 days, 12 months")
    risk_free: float = Field(
        default=0.0, gt=-1, le=10, description="rate of a year; that of a period is it divided by periods_per_year"
    )
    target: float | None = Field(
        default=None, gt=-1, le=10, description="of a year, for Sortino and Omega; null: risk_free"
    )
    drawdowns: int = Field(default=5, ge=1, le=20, description="how many of the deepest drawdowns are listed")


def exact(level: float) -> Fraction:
    """A level as it is written: 0.95 is 95 / 100, not the binary number near it."""
    return Fraction(repr(level))


# ---------------------------------------------------------------- value_at_risk


def portfolios(weights: ArrayInfo) -> int:
    return weights.shape[0] if weights.ndim == 2 else 1


def scenarios(params: ValueAtRisk, inputs: Mapping[str, ArrayInfo]) -> int:
    """The scenarios that a job has: rows of returns, or simulated ones; 0 where a covariance says all."""
    if params.method == "monte_carlo":
        return params.simulated
    return inputs["returns"].shape[0] if "returns" in inputs else 0


def portfolios_of_a_chunk(params: ValueAtRisk, count: int, shape: tuple[int, ...]) -> int:
    """The portfolios in one chunk, of weights (portfolios, assets) or (assets) and so many scenarios."""
    total = shape[0] if len(shape) == 2 else 1
    return min(total, max(1, CHUNK // _numbers(params, count, shape[-1])))


def _numbers(params: ValueAtRisk, count: int, assets: int) -> int:
    """The numbers of eight bytes that a portfolio of a chunk needs on a device."""
    rows, levels, tiles = min(ROWS, count), len(params.levels), -(-count // TILE)
    moved = 2 * levels * (rows + assets + PIECES) if params.components else 0  # weights of scenarios, and their sums
    selected = 7 * levels * (256 + 3)  # counters of digits, prefixes, ranks and results
    summed = levels * (3 + 2 * tiles) + 4 * tiles + 1
    return count + rows + assets + 2 + moved + max(selected, summed)


def _weighted(params: ValueAtRisk, inputs: Mapping[str, ArrayInfo]) -> bool:
    return params.decay is not None or "probabilities" in inputs


def _var_grid(params: Any, inputs: Mapping[str, ArrayInfo]) -> Grid:
    """The grid of a value at risk: portfolios, with their losses, and rows of scenarios, which all portfolios share."""
    count, total, assets = scenarios(params, inputs), portfolios(inputs["weights"]), inputs["weights"].shape[-1]
    if count == 0:
        return Grid(1, 0)
    each = portfolios_of_a_chunk(params, count, inputs["weights"].shape)
    fixed = 8 * (min(ROWS, count) * assets + (count if _weighted(params, inputs) else 1))
    return Grid(-(-total // each), 8 * each * _numbers(params, count, assets), fixed)


def _var_cost(params: Any, inputs: Mapping[str, ArrayInfo]) -> Cost:
    grid, weights = _var_grid(params, inputs), inputs["weights"]
    total, assets, levels = portfolios(weights), weights.shape[-1], len(params.levels)
    out = 8 * total * levels * (4 + 4 * assets * params.components)
    held = 16 * weights.size + 8 * 3 * assets * assets  # weights and exposures, a covariance and its factor
    count = scenarios(params, inputs)
    if params.samples and count:  # each thread keeps the keys of a bucket twice, with their masses, and counts digits
        threads = min(-(-portfolios_of_a_chunk(params, count, weights.shape) // max(1, AT_LEAST // count)), _THREADS)
        held += 8 * threads * ((4 if _weighted(params, inputs) else 2) * count + (1 << DIGIT))
    if params.method == "monte_carlo" and "returns" in inputs:
        held += 8 * 4 * inputs["returns"].size  # whose covariance is measured
    if "covariance" in inputs and params.method == "parametric":
        held += 8 * min(weights.size, max(TOGETHER, assets)) * (4 + 12 * levels * params.components)
    return Cost(
        # On the CPU twice as many rows of scenarios are made at a time.
        sum(given.nbytes for given in inputs.values()) + out + held + 2 * grid.fixed + grid.each,
        work=_var_work(params, inputs),
        step=_MULTIPLY_ADD,
    )


def _var_work(params: ValueAtRisk, inputs: Mapping[str, ArrayInfo]) -> float:
    """Multiply-adds: losses, contributions, passes over the losses (of 100 each), and a covariance and its factor.

    Counters of the quantile's digits take 300,000 for each portfolio.
    Normals take 450 each, and are drawn again for each chunk and for contributions.
    """
    count, total, assets = scenarios(params, inputs), portfolios(inputs["weights"]), inputs["weights"].shape[-1]
    moved = 2 * len(params.levels) * params.components
    work = float(total) * count * (assets * (1 + moved) + 100 * (1 + len(params.levels)))
    work += float(total) * 300_000 * params.samples
    if params.method == "monte_carlo":
        measured = inputs["returns"].shape[0] if "returns" in inputs else 0
        drawn = _var_grid(params, inputs).chunks * (1 + params.components)
        work += float(count) * assets * 450 * drawn + float(assets) ** 2 * (measured + 10 * assets)
    return work + float(total) * assets * (2 * assets + 100) * (count == 0)


def _check_var(params: Any, inputs: Mapping[str, ArrayInfo]) -> None:
    weights, returns = inputs["weights"], inputs.get("returns")
    assets, total = weights.shape[-1], portfolios(weights)
    if (returns is None) == ("covariance" not in inputs):
        raise refuse("/inputs/returns", "give returns, or a covariance instead of them; one of both")
    if returns is None and (params.method == "historical" or params.distribution == "cornish_fisher"):
        raise refuse("/inputs/returns", f"{params.method} {params.distribution} needs returns, not a covariance")
    if returns is None and (params.decay is not None or "probabilities" in inputs):
        raise refuse("/inputs/returns", "decay and probabilities are weights of returns, and a covariance is given")
    if returns is not None and "mean" in inputs:
        raise refuse("/inputs/mean", "the mean of returns is measured; give one with a covariance alone")
    if assets > MOST_ASSETS:
        raise refuse("/inputs/weights", f"{assets:,} assets, the most are {MOST_ASSETS:,}")
    turned = returns is not None and returns.shape[0] == assets  # a row for each asset, as other operations take it
    scenarios = returns.shape[-1 if turned else 0] if returns else 0
    shapes: dict[str, tuple[int, ...]] = {"returns": (scenarios, assets), "covariance": (assets, assets)}
    shapes |= {"mean": (assets,), "probabilities": (scenarios,)}
    for name, shape in shapes.items():
        if name in inputs and inputs[name].shape != shape:
            raise refuse(
                f"/inputs/{name}",
                f"shape {list(inputs[name].shape)}, and weights has {assets} assets"
                f"{f', returns {shape[0]} scenarios' if name == 'probabilities' else ''}: it should be {list(shape)}",
            )
    if "probabilities" in inputs and (params.decay is not None or params.quantile == "linear" or params.window):
        raise refuse("/inputs/probabilities", "probabilities go with neither decay nor linear nor window")
    _check_scenarios(params, inputs)
    if (work := _var_work(params, inputs)) > MOST_WORK:
        raise refuse(
            "/inputs/weights",
            f"{total:,} portfolios of {assets:,} assets take {work:.3g} steps, the most are {MOST_WORK:.3g}: "
            "divide the portfolios",
        )


def _check_scenarios(params: ValueAtRisk, inputs: Mapping[str, ArrayInfo]) -> None:
    rows = inputs["returns"].shape[0] if "returns" in inputs else None
    if rows is not None and rows > MOST_SCENARIOS:
        raise refuse("/inputs/returns", f"{rows:,} scenarios, the most are {MOST_SCENARIOS:,}")
    least = 1 if params.method == "historical" else 4 if params.distribution == "cornish_fisher" else 2
    if rows is not None and rows < least:
        raise refuse("/inputs/returns", f"{params.method} {params.distribution} needs {least} scenarios, got {rows}")
    if params.samples:
        count, level = scenarios(params, inputs), max(params.levels)
        tail = 1 - exact(level)
        if count * tail < 1:
            at = "/inputs/returns" if params.method == "historical" else "/params/scenarios"
            raise refuse(
                at,
                f"beyond level {level:g} lie {float(count * tail):g} of {count:,} scenarios; it needs "
                f"{-(-tail.denominator // tail.numerator):,} scenarios for one of them",
            )


def _var_sizes(params: Any, inputs: Mapping[str, ArrayInfo]) -> dict[str, int]:
    return {"level": len(params.levels), "asset": inputs["weights"].shape[-1] * params.components}


def _var_sharding(params: Any, inputs: Mapping[str, ArrayInfo]) -> Sharding | None:
    """The sharding of a value at risk: portfolios. A shard reads, or simulates, all scenarios."""
    weights = inputs["weights"]
    if weights.ndim == 1:
        return None
    total, levels = weights.shape[0], len(params.levels)
    flat = Division(ArrayInfo("float64", (total, levels)))
    parts = Division(ArrayInfo("float64", (total, levels, weights.shape[1] * params.components)), inner=2)
    return Sharding(
        total,
        lambda _: params,
        inputs={"weights": Division(weights)},
        joined=dict.fromkeys(FLAT, flat) | dict.fromkeys(CONTRIBUTIONS, parts),
        values=named(params),
    )


def named(params: ValueAtRisk) -> dict[str, Any]:
    """The outputs of a value at risk that say what was computed."""
    return {
        "levels": list(params.levels),
        "method": params.method,
        "quantile": params.quantile if params.samples else None,
    }


_REAL: tuple[DType, ...] = ("float64", "float32")
_SHAPE = "shape (portfolios, levels), or (levels) for one portfolio"
_PARTS = "shape (portfolios, levels, assets), or (levels, assets); without `components` the last axis has length 0"


def _of_levels(name: str, doc: str) -> Output:
    return Output(name, f"{doc}; {_SHAPE}", axes=("level", "portfolio level"))


def _of_parts(name: str, doc: str) -> Output:
    return Output(name, f"{doc}; {_PARTS}", axes=("level asset", "portfolio level asset"))


_ARRAYS = (
    _of_levels("var", "value at risk: the loss that is exceeded with probability 1 - level"),
    _of_levels("cvar", "expected shortfall: the mean of the worst 1 - level of the losses"),
    _of_levels("var_error", "standard error of var; NaN where it is not known"),
    _of_levels("cvar_error", "standard error of cvar; NaN where it is not known"),
    _of_parts("marginal_var", "derivative of var by each asset's weight"),
    _of_parts("component_var", "weight times marginal_var: parts of var, which add up to it"),
    _of_parts("marginal_cvar", "derivative of cvar by each asset's weight"),
    _of_parts("component_cvar", "weight times marginal_cvar: parts of cvar, which add up to it"),
)
FLAT = tuple(output.name for output in _ARRAYS[:4])
CONTRIBUTIONS = tuple(output.name for output in _ARRAYS[4:])

_RETURNS = {"data": [[0.01, -0.02], [-0.03, 0.01], [0.02, 0.02], [-0.01, -0.04], [0.0, 0.03]], "dtype": "float64"}
_WEIGHTS = {"data": [[0.5, 0.5], [1.0, -0.5]], "dtype": "float64"}
_SHOWN = {"returns": _RETURNS, "weights": _WEIGHTS}

VALUE_AT_RISK = Operation(
    name="value_at_risk",
    summary="Value at risk and expected shortfall of portfolios, with standard errors and each asset's contribution.",
    package="warpdesk_server.kernels.risk",
    params=ValueAtRisk,
    inputs=(
        Input(
            "weights",
            "amount held of each asset, shape (assets), or (portfolios, assets); losses are in its unit",
            _REAL,
            (1, 2),
            axes=("asset", "portfolio asset"),
        ),
        Input(
            "returns",
            "simple returns of each asset in each scenario, shape (scenarios, assets), oldest first",
            _REAL,
            (2,),
            required=False,
            axes=("scenario asset",),
        ),
        Input(
            "probabilities",
            "weights of the scenarios, 0 or more, shape (scenarios)",
            _REAL,
            (1,),
            required=False,
            axes=("scenario",),
        ),
        Input(
            "covariance",
            "covariance of the returns instead of these, shape (assets, assets)",
            _REAL,
            (2,),
            required=False,
            axes=("asset asset",),
        ),
        Input(
            "mean",
            "mean of the returns beside a covariance, shape (assets); 0 if left out",
            _REAL,
            (1,),
            required=False,
            axes=("asset",),
        ),
    ),
    outputs=(
        *_ARRAYS,
        Output("levels", "the confidence levels, in the order of the arrays", "value"),
        Output("method", "historical, parametric or monte_carlo", "value"),
        Output("quantile", "the rule of the quantile; null for parametric", "value"),
    ),
    example=Example({"levels": [0.8], "components": True}, _SHOWN),
    cost=_var_cost,
    check=_check_var,
    grid=_var_grid,
    sizes=_var_sizes,
    batching=Batching(steps=1e8, alike=False),
    sharding=_var_sharding,
    randomness="seed",
    variants=(
        Example({"levels": [0.8], "components": True, "window": 1}, _SHOWN),
        Example({"method": "parametric", "components": True}, _SHOWN),
        Example(
            {"method": "monte_carlo", "scenarios": 1000, "distribution": "student_t", "degrees_of_freedom": 5.0}, _SHOWN
        ),
    ),
    compile_seconds=8.0,
    counted_as="risk",
)


# ---------------------------------------------------------------- series: var_backtest and performance


def series(shape: tuple[int, ...]) -> tuple[int, int]:
    """The number of series and of times of an array (series, time), or of one series (time)."""
    return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])


def series_of_a_chunk(shape: tuple[int, ...]) -> int:
    count, time = series(shape)
    return min(count, max(1, CHUNK // time))


def _series_grid(params: Any, inputs: Mapping[str, ArrayInfo]) -> Grid:
    count, time = series(inputs["returns"].shape)
    each = series_of_a_chunk(inputs["returns"].shape)
    listed = params.drawdowns if isinstance(params, Performance) else 0
    both = 2 if "var" in inputs else 1
    shared = 8 * (time if "benchmark" in inputs else 1)
    return Grid(-(-count // each), 8 * each * (both * time + SUMS) + 20 * each * listed, shared)


def _series_cost(params: Any, inputs: Mapping[str, ArrayInfo]) -> Cost:
    grid, returns = _series_grid(params, inputs), inputs["returns"]
    copied = sum(8 * given.size for given in inputs.values() if ITEMSIZE[given.dtype] < 8)
    out = series(returns.shape)[0] * 8 * (SUMS + 40)
    nbytes = sum(given.nbytes for given in inputs.values()) + copied + out + grid.each
    return Cost(nbytes, work=float(returns.size), step=2e-8 if isinstance(params, Performance) else 1e-9)


def _check_backtest(_params: Any, inputs: Mapping[str, ArrayInfo]) -> None:
    returns, var = inputs["returns"], inputs["var"]
    if returns.shape != var.shape:
        raise refuse(
            "/inputs/var", f"shape {list(var.shape)}, and returns has {list(returns.shape)}: they must be equal"
        )
    _check_times(inputs, 2)


def _check_performance(_params: Any, inputs: Mapping[str, ArrayInfo]) -> None:
    time = series(inputs["returns"].shape)[1]
    if "benchmark" in inputs and inputs["benchmark"].shape != (time,):
        raise refuse(
            "/inputs/benchmark",
            f"shape {list(inputs['benchmark'].shape)}, and returns has {time} times: it should be [{time}]",
        )
    _check_times(inputs, 2)


def _check_times(inputs: Mapping[str, ArrayInfo], least: int) -> None:
    time = series(inputs["returns"].shape)[1]
    if not least <= time < 1 << 31:
        raise refuse("/inputs/returns", f"{time:,} returns of each series; it needs at least {least} and below 2^31")


_SERIES = "shape (series); of one series (1)"
_OF_TIMES = ("time", "series time")


def _of_series(name: str, doc: str, dtype: DType = "float64") -> Output:
    return Output(name, f"{doc}; {_SERIES}", axes=("1", "series"), dtype=dtype)


def _of_drawdowns(name: str, doc: str, dtype: DType = "int32") -> Output:
    return Output(name, doc, axes=("1 drawdown", "series drawdown"), dtype=dtype)


VAR_BACKTEST = Operation(
    name="var_backtest",
    summary="Tests of value-at-risk forecasts: Kupiec's, Christoffersen's and the Basel traffic light.",
    package="warpdesk_server.kernels.risk",
    params=VarBacktest,
    inputs=(
        Input(
            "returns",
            "what was earned, shape (series, time) or (time), oldest first; losses are negative",
            _REAL,
            (1, 2),
            axes=_OF_TIMES,
        ),
        Input(
            "var",
            "the forecasts, of the shape of returns, losses positive: exceeded where -return > var",
            _REAL,
            (1, 2),
            axes=_OF_TIMES,
        ),
    ),
    outputs=(
        _of_series("exceptions", "how often the loss exceeded the forecast, int64", "int64"),
        Output("expected", "how often it should have: (1 - level) times the number of forecasts", "value"),
        _of_series("kupiec", "likelihood ratio of unconditional coverage (proportion of failures)"),
        _of_series("kupiec_p", "its p-value, chi-squared with 1 degree of freedom"),
        _of_series("independence", "Christoffersen's likelihood ratio of independence; NaN where unknown"),
        _of_series("independence_p", "its p-value, chi-squared with 1 degree of freedom"),
        _of_series("conditional", "likelihood ratio of conditional coverage: kupiec + independence"),
        _of_series("conditional_p", "its p-value, chi-squared with 2 degrees of freedom"),
        Output(
            "transitions",
            "how often no exception or one (first) was followed by none or one; int64, (series, 2, 2)",
            axes=("1 before after", "series before after"),
            dtype="int64",
        ),
        Output("zone", "of the Basel traffic light for each series: green, yellow or red", "value"),
        _of_series("cumulative", "probability of fewer or as many exceptions, by which the zone is chosen"),
        Output("unknown", "for each series null, or a sentence why its independence is not known", "value"),
    ),
    example=Example(
        {"level": 0.8},
        {
            "returns": {"data": [0.01, -0.03, -0.04, 0.02, 0.0, -0.01], "dtype": "float64"},
            "var": {"data": [0.02, 0.02, 0.03, 0.03, 0.02, 0.02], "dtype": "float64"},
        },
    ),
    cost=_series_cost,
    check=_check_backtest,
    grid=_series_grid,
    sizes=lambda _params, _inputs: {"before": 2, "after": 2},
    batching=Batching(steps=1e7, alike=False),
    compile_seconds=1.0,
    counted_as="risk",
)

PERFORMANCE = Operation(
    name="performance",
    summary="Performance of return series: growth, risk-adjusted ratios, drawdowns, and against a benchmark.",
    package="warpdesk_server.kernels.risk",
    params=Performance,
    inputs=(
        Input(
            "returns",
            "simple returns, -1 or more, shape (series, time) or (time), oldest first",
            _REAL,
            (1, 2),
            axes=_OF_TIMES,
        ),
        Input("benchmark", "simple returns of a benchmark, shape (time)", _REAL, (1,), required=False, axes=("time",)),
    ),
    outputs=(
        _of_series("total_return", "growth over all times, less 1"),
        _of_series("annual_return", "the same a year, compounded (CAGR)"),
        _of_series("volatility", "standard deviation (n - 1) times the root of periods a year"),
        _of_series("sharpe", "mean over risk_free by the standard deviation, a year"),
        _of_series("sortino", "mean over target by the downside deviation over all n times, a year"),
        _of_series("calmar", "annual_return by max_drawdown"),
        _of_series("omega", "sum of returns above target by that of those below it"),
        _of_series("skew", "third moment by the 3/2 power of the variance (n)"),
        _of_series("kurtosis", "fourth moment by the square of the variance (n), less 3"),
        _of_series("max_drawdown", "largest fall from a peak, as a positive part of it"),
        _of_drawdowns(
            "drawdown_depth",
            "of the deepest drawdowns, deepest first, 0 where there are fewer; (series, drawdowns)",
            "float64",
        ),
        _of_drawdowns(
            "drawdown_start", "how many returns had been earned at the peak; -1: none; int32, (series, drawdowns)"
        ),
        _of_drawdowns("drawdown_trough", "how many at the lowest point; -1: none; int32, (series, drawdowns)"),
        _of_drawdowns(
            "drawdown_recovery",
            "how many when the peak was reached again; -1: not yet, or none; int32, (series, drawdowns)",
        ),
        _of_drawdowns(
            "drawdown_length", "returns from peak to recovery, or to the end; 0: none; int32, (series, drawdowns)"
        ),
        _of_series("tracking_error", "standard deviation (n - 1) of returns less the benchmark's, a year"),
        _of_series("information_ratio", "mean of returns less the benchmark's by their deviation, a year"),
        _of_series("beta", "covariance with the benchmark by its variance"),
        _of_series("alpha", "mean excess return less beta times the benchmark's, a year (Jensen)"),
        _of_series("up_capture", "geometric mean where the benchmark rose, by the benchmark's there"),
        _of_series("down_capture", "geometric mean where the benchmark fell, by the benchmark's there"),
        Output("undefined", "sentences: which numbers are NaN, of how many series, and why", "value"),
    ),
    example=Example(
        {"periods_per_year": 12.0},
        {
            "returns": {"data": [[0.02, -0.03, 0.01, 0.04, -0.01], [0.0, 0.01, 0.02, -0.02, 0.01]], "dtype": "float64"},
            "benchmark": {"data": [0.01, -0.02, 0.02, 0.03, -0.01], "dtype": "float64"},
        },
    ),
    cost=_series_cost,
    check=_check_performance,
    grid=_series_grid,
    sizes=lambda params, _inputs: {"drawdown": params.drawdowns},
    batching=Batching(steps=1e6, alike=False),
    compile_seconds=2.0,
    counted_as="risk",
)

OPERATIONS = (VALUE_AT_RISK, VAR_BACKTEST, PERFORMANCE)
