"""The specification of backtests: one set of a strategy's parameters, a sweep of many, and how overfitted it is."""

import json
from collections.abc import Mapping
from functools import lru_cache
from math import comb
from typing import Annotated, Any, Literal

from pydantic import Field

from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.backtest.sets import Number, Sets, sets_of
from warpdesk_server.kernels.backtest.strategy import DISTANCES, INPUTS, MARKET, PRICES, SIDES, Strategy
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.indicators import indicator
from warpdesk_server.kernels.indicators.bars import BARS
from warpdesk_server.kernels.indicators.expression import MOST_NODES
from warpdesk_server.kernels.indicators.indicator import whole_shape
from warpdesk_server.kernels.indicators.spec import ROUNDING
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.kernels.sharding import Division, Shard, Sharding

MOST_SETS = 1_000_000
MOST_RUNS = 4_000_000  # sets times assets: their metrics are 0.6 GB
MOST_VALUES = 100_000  # of one parameter of a grid
MOST_BARS = 1e12  # bars of all runs together
MOST_BLOCKS = 64
MOST_TRIALS = 10**12
# Bars of all runs of a chunk on a device, and the sets of one asset that a core takes together; they change no byte.
CHUNK = 1 << 22
SETS_TOGETHER = 256
_STEP = 1.5e-9  # seconds of a core for each unit of work
_PLANNING, _OPERAND_WORK = 3e-4, 4.0  # of an operand's row: seconds to plan it, and work for each bar
_FEW = 16  # operands that are planned in the time that every job takes to begin
OPERANDS_HELD = 256 << 20  # bytes of operands that are kept for the assets at hand

METRICS = (
    "total_return", "cagr", "volatility", "sharpe", "sortino", "calmar", "max_drawdown", "drawdown_bars", "trades",
    "win_rate", "profit_factor", "exposure", "turnover", "costs", "skewness", "kurtosis", "probabilistic_sharpe",
    "final_equity", "ruined",
)  # fmt: skip
TRADE_FIELDS = (
    "asset", "entry_bar", "exit_bar", "side", "units", "entry_price", "exit_price", "gain", "reason",
)  # fmt: skip
REASONS = ("signal", "stop", "target", "end", "ruin", "open")  # why a trade ended, by its number

_Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
_Value = Annotated[int | float, Field(ge=-1e15, le=1e15)]
_Expression = Annotated[Any, Field(description="an expression")]
_ANY_OF: Any = {"anyOf": [{"type": "number"}, {"type": "string"}, {"type": "object"}]}
_Distance = Annotated[
    Any,
    Field(
        description='a fraction of the entry\'s price, {"param": name}, or an expression: a distance in price',
        json_schema_extra=_ANY_OF,
    ),
]


class Graph(Params):
    """A strategy's graph: expressions as in the operation `expression`, with {"param": name} in place of numbers."""

    let: Annotated[dict[_Name, _Expression], Field(default_factory=dict, max_length=MOST_NODES)]
    entries: _Expression = Field(default=None, description="not 0: enter long")
    exits: _Expression = Field(default=None, description="not 0: leave long")
    short_entries: _Expression = Field(default=None, description="not 0: enter short")
    short_exits: _Expression = Field(default=None, description="not 0: leave short")
    target: _Expression = Field(
        default=None,
        description="in place of all four: above 0 long, below 0 short, 0 none. An order is made where its sign "
        "changes, and a NaN changes nothing",
    )


class Rules(Params):
    """The rules of orders; each default is the one that flatters a strategy least."""

    strategy: Graph | None = Field(
        default=None, description="a graph; without it the inputs entries, exits and so on, or target, are the signals"
    )
    fill: Literal["next_open", "next_close", "same_close"] = Field(
        default="next_open",
        description="where an order fills that a signal at a bar's close makes. same_close is optimistic: the price "
        "that gives the signal can hardly be had",
    )
    fee: float = Field(default=0.0, ge=0, lt=0.5, description="fraction of each side's value")
    fee_of: Literal["traded", "spent"] = Field(
        default="traded",
        description="what an entry's fee is a fraction of: the value that is traded, or that and the fee together",
    )
    fixed_fee: float = Field(default=0.0, ge=0, le=1e12, description="of each side, in money")
    slippage: float = Field(default=0.0, ge=0, lt=0.5, description="fraction of the price, against you")
    borrow: float = Field(default=0.0, ge=0, le=100, description="of a short position's value, per year")
    size: Any = Field(
        default=1.0,
        description='of a position: a number above 0, {"param": name}, or an expression, read at the signal\'s bar',
        json_schema_extra=_ANY_OF,
    )
    size_in: Literal["equity", "units"] = Field(
        default="equity", description="whether `size` is a fraction of the equity at the entry, or units"
    )
    whole_units: bool = Field(default=False, description="round units down to whole ones")
    stop_loss: _Distance = None
    trailing_stop: _Distance = Field(
        default=None,
        description="as stop_loss, but from the best high (short: low) since the entry, up to the bar before",
    )
    take_profit: _Distance = None
    stops_from: Literal["entry", "next_bar"] = Field(
        default="entry", description="whether stops and targets hold within the bar at whose open a position begins"
    )
    if_both: Literal["stop", "target"] = Field(
        default="stop", description="which of the two fills where a bar reaches both, and its open neither"
    )
    target_fill: Literal["level", "open_if_better"] = Field(
        default="level", description="the price of a target that the bar's open is already beyond"
    )
    opposite: Literal["reverse", "exit"] = Field(
        default="reverse", description="whether an entry against the position turns it, or only ends it"
    )
    last_bar: Literal["marked", "sold"] = Field(
        default="marked", description="whether a position is marked at the last close, or sold there"
    )
    capital: float = Field(default=100_000.0, gt=0, ge=1e-6, le=1e15)
    periods_per_year: float = Field(default=252.0, gt=0, ge=1e-6, le=1e9, description="bars of a year")
    benchmark_sharpe: float = Field(
        default=0.0,
        ge=-1e3,
        le=1e3,
        description="Sharpe ratio of a year that probabilistic_sharpe compares with",
    )
    blocks: int = Field(default=1, ge=1, le=MOST_BLOCKS, description="of bars, for walk-forward and PBO")
    flat_at_edges: bool = Field(
        default=False,
        description="sell at the last close of each block, so that blocks do not depend on each other. Signals at its "
        "last bar, and a target that lasts, fill in the next block",
    )
    prefix_checks: int = Field(
        default=0,
        ge=0,
        le=20,
        description="cuts at which the job shows that its graph does not look ahead: bars from the cut on are "
        "replaced, and the signals before it compared. Of given series it shows nothing",
    )


class Sweep(Rules):
    grid: Annotated[
        dict[_Name, Annotated[tuple[_Value, ...], Field(min_length=1, max_length=MOST_VALUES)]],
        Field(default_factory=dict, max_length=16, description="values of each parameter, all combined with all"),
    ]
    sets: Annotated[
        dict[_Name, Annotated[tuple[_Value, ...], Field(min_length=1, max_length=MOST_SETS)]],
        Field(
            default_factory=dict,
            max_length=16,
            description="in place of a grid: of each parameter its value in each set",
        ),
    ]
    where: str = Field(default="", max_length=400, description='what sets must meet: "fast < slow and slow < 200"')


class Single(Rules):
    values: Annotated[
        dict[_Name, _Value], Field(default_factory=dict, max_length=16, description="the value of each parameter")
    ]
    weights: Annotated[
        tuple[Annotated[float, Field(ge=0, le=1e9)], ...],
        Field(
            default=(),
            max_length=MOST_VALUES,
            description="parts of the capital in each asset, for portfolio_returns; empty: equal parts",
        ),
    ]


class Overfitting(Params):
    blocks: int = Field(
        default=16, ge=2, le=20, multiple_of=2, description="of bars, that are trained on in every half (CSCV)"
    )
    bars: int = Field(
        default=0, ge=0, le=1_000_000_000, description="with `block_sums`: the bars that they were made of"
    )
    prior_trials: int = Field(
        default=0, ge=0, le=MOST_TRIALS, description="sets that were tried before, which deflate the Sharpe ratio too"
    )
    trials: int | None = Field(
        default=None,
        ge=1,
        le=MOST_TRIALS,
        description="number of independent trials that deflate the Sharpe ratio; null: the sets and prior_trials",
    )
    train_blocks: int = Field(
        default=0, ge=0, le=19, description="blocks on which walk-forward chooses; 0: all before the tested one"
    )
    periods_per_year: float = Field(default=252.0, gt=0, ge=1e-6, le=1e9, description="bars of a year")


def sets_of_params(params: Any) -> Sets:
    if isinstance(params, Sweep):
        return sets_of(params.grid, params.sets, params.where, MOST_SETS)
    return sets_of({}, {name: (value,) for name, value in params.values.items()}, "", 1)


@lru_cache(maxsize=1)  # of a million sets it is large
def _strategy(written: str, sets: Sets, repeated: bool) -> Strategy:
    let, outputs = json.loads(written)
    return Strategy(let, outputs, sets, repeated)


def strategy_of(params: Any, inputs: Mapping[str, Any]) -> Strategy:
    """The strategy of a request: its graph, or the signals that are among its inputs."""
    let = params.strategy.let if params.strategy is not None else {}
    if params.strategy is not None:
        outputs = {name: getattr(params.strategy, name) for name in (*SIDES, "target")}
    else:
        outputs = {name: name for name in (*SIDES, "target") if name in inputs}
    outputs |= {name: getattr(params, name) for name in DISTANCES if is_series(getattr(params, name))}
    given = {name: written for name, written in outputs.items() if written is not None}
    return _strategy(json.dumps([let, given]), sets_of_params(params), params.flat_at_edges)


def is_series(written: Any) -> bool:
    """Whether a stop or a size is an expression, and not a number or a parameter."""
    return isinstance(written, str) or (isinstance(written, dict) and "param" not in written)


def order_numbers(params: Any, sets: Sets) -> dict[str, tuple[Number, ...]]:
    """The fractions of each set's orders that are numbers: for each of DISTANCES one value, or one for each set."""
    found = {}
    for name in DISTANCES:
        written = getattr(params, name)
        if isinstance(written, dict) and "param" in written:
            found[name] = sets.columns[sets.names.index(written["param"])]
        elif written is not None and not is_series(written):
            found[name] = (written,)
    return found


# ---------------------------------------------------------------- checks


def _check(params: Any, infos: Mapping[str, ArrayInfo]) -> None:
    signals = [name for name in (*SIDES, "target") if name in infos]
    if params.strategy is None and not signals:
        raise refuse("/params/strategy", f"give a strategy, or signals as inputs: {', '.join(SIDES)}, or target")
    given = (
        signals
        if params.strategy is None
        else [n for n in (*SIDES, "target") if getattr(params.strategy, n) is not None]
    )
    where = "/inputs/target" if params.strategy is None else "/params/strategy/target"
    if not given:
        raise refuse("/params/strategy", f"the strategy has no {', '.join(SIDES)} and no target")
    if "target" in given and len(given) > 1:
        raise refuse(where, f"target stands for all signals, and there are {', '.join(given[:-1])} too")
    if isinstance(params, Sweep) and bool(params.grid) == bool(params.sets):
        raise refuse("/params/grid", "give a grid or sets, " + ("not both" if params.grid else "got neither"))
    sets = sets_of_params(params)
    _check_orders(params, sets)
    strategy = strategy_of(params, infos)
    used = strategy.parameters | {
        written["param"]
        for name in DISTANCES
        if isinstance(written := getattr(params, name), dict) and "param" in written
    }
    for name in sets.names:
        if name not in used:
            at = "values" if isinstance(params, Single) else "grid" if params.grid else "sets"
            raise refuse(f"/params/{at}/{name}", f"nothing reads the parameter {name!r}")
    _check_inputs(params, infos, strategy)
    _check_values(strategy)
    _check_amount(params, infos, sets)


def _check_orders(params: Any, sets: Sets) -> None:
    for name in DISTANCES:
        written = getattr(params, name)
        if isinstance(written, bool) or not isinstance(written, int | float | str | dict | None):
            raise refuse(f"/params/{name}", f"{name} is a number, a parameter or an expression")
        if (
            isinstance(written, dict)
            and "param" in written
            and (set(written) != {"param"} or written["param"] not in sets.names)
        ):
            raise refuse(f"/params/{name}", f"{name} names no parameter; there are {', '.join(sets.names) or 'none'}")
    most = {
        "stop_loss": 1.0,
        "trailing_stop": 1.0,
        "take_profit": 100.0,
        "size": 10.0 if params.size_in == "equity" else 1e12,
    }
    for name, values in order_numbers(params, sets).items():
        for value in (min(values), max(values)):
            if not 0 < value <= most[name]:
                raise refuse(
                    f"/params/{name}", f"{name} should be above 0 and at most {most[name]:g}, got {_short(value)}"
                )


def _short(number: Number) -> str:
    """A number in few digits, also one that no float64 holds."""
    try:
        return f"{number:g}"
    except OverflowError:
        return "a number beyond what float64 can hold"


def _check_inputs(params: Any, infos: Mapping[str, ArrayInfo], strategy: Strategy) -> None:
    wanted = dict(strategy.inputs)
    prices = {"close": "every backtest"} | ({"open": "fill next_open"} if params.fill == "next_open" else {})
    if any(getattr(params, name) is not None for name in ("stop_loss", "trailing_stop", "take_profit")):
        prices |= dict.fromkeys(("open", "high", "low"), "a stop or a target")
    for name, reason in prices.items():
        if name not in infos:
            raise refuse(f"/inputs/{name}", f"{reason} needs {name}, and the request has no such input")
    for name, at in wanted.items():
        if name not in infos:
            raise refuse(f"/inputs/{name}", f"the strategy reads {name} at {at}, and the request has no such input")
    for name in infos:
        if name not in prices and name not in wanted:
            raise refuse(f"/inputs/{name}", f"nothing reads {name}")
    indicator.require_alike(OPERATION_OF[type(params)], _WINDOW, infos)
    bars = whole_shape(infos)[-1]
    if params.blocks > bars:
        raise refuse("/params/blocks", f"{params.blocks} blocks need as many bars, got {bars}")
    if params.prefix_checks >= bars:
        raise refuse(
            "/params/prefix_checks", f"{params.prefix_checks} cuts need {params.prefix_checks + 1} bars, got {bars}"
        )


class _Window(Params):
    nan_policy: str = "window"


_WINDOW = _Window()


def _check_values(strategy: Strategy) -> None:
    """Read each operand with the least and the greatest values of its parameters: most wrong values are among them."""
    sets = strategy.sets
    for operand in strategy.operands:
        for name in operand.names:
            column = sets.columns[sets.names.index(name)]
            for index in {column.index(min(column)), column.index(max(column))}:
                strategy.node(operand, sets.at(index))


def _check_amount(params: Any, infos: Mapping[str, ArrayInfo], sets: Sets) -> None:
    assets, bars = _sizes(infos)
    if isinstance(params, Single) and params.weights and not (len(params.weights) == assets and any(params.weights)):
        raise refuse(
            "/params/weights",
            f"{len(params.weights):,} weights with the sum {sum(params.weights):g} for {assets:,} assets: give one for "
            "each, not all 0",
        )
    where = "/params/grid" if isinstance(params, Sweep) and params.grid else "/params/sets"
    if sets.count * assets > MOST_RUNS:
        raise refuse(
            where, f"{sets.count:,} sets of {assets:,} assets are {sets.count * assets:,} runs, at most {MOST_RUNS:,}"
        )
    if (steps := sets.count * assets * bars * (1 + params.prefix_checks)) > MOST_BARS:
        raise refuse(
            where,
            f"{sets.count * assets:,} runs of {bars:,} bars are {steps:.3g} bars, and a job has at most "
            f"{MOST_BARS:.3g}",
        )


def _sizes(infos: Mapping[str, ArrayInfo]) -> tuple[int, int]:
    """Assets and bars."""
    shape = whole_shape(infos)
    return (shape[0] if len(shape) > 1 else 1), shape[-1]


# ---------------------------------------------------------------- costs


def runs_of_a_chunk(params: Any, infos: Mapping[str, ArrayInfo]) -> int:
    """The runs of a chunk on a device: assets with their sets."""
    assets, bars = _sizes(infos)
    return max(1, min(assets * sets_of_params(params).count, CHUNK // bars))


def _grid(params: Any, infos: Mapping[str, ArrayInfo]) -> Grid:
    assets, bars = _sizes(infos)
    sets, each = sets_of_params(params).count, runs_of_a_chunk(params, infos)
    strategy = strategy_of(params, infos)
    # Of each run its operands as they come, its place among them, and its rows; signals as bytes; numbers, and a curve.
    run = len(strategy.operands) * (16 * bars + 8) + bars + 8 * (20 + 4 * params.blocks)
    run += 64 * (2 * bars + 2) + 16 * bars if isinstance(params, Single) else 0
    asset = 33 * bars
    needed = indicator.need(strategy.program, each, bars, 8) + each * run + -(-each // sets) * asset
    return Grid(-(-assets * sets // each), needed, 2 * asset + 1024 + ROUNDING)


def _cost(params: Any, infos: Mapping[str, ArrayInfo]) -> Cost:
    assets, bars = _sizes(infos)
    strategy = strategy_of(params, infos)
    runs, grid = assets * strategy.sets.count, _grid(params, infos)
    shown = 8 * (len(METRICS) + 20 + 4 * params.blocks) * runs + 8 * 4 * strategy.sets.count
    shown += 8 * assets * (2 * bars + 2) * 11 if isinstance(params, Single) else 0
    prices = 2 * sum(info.nbytes for info in infos.values())
    together = min(SETS_TOGETHER, strategy.sets.count)
    scratch = 8 * together * bars * (2 + len(strategy.operands) + len(strategy.program.outputs))
    row = 8 * bars * strategy.rows
    held = max(row, min(assets * row, OPERANDS_HELD))
    planning = max(0, strategy.planned_rows - _FEW) * _PLANNING / _STEP
    operands = planning + strategy.planned_rows * _OPERAND_WORK * assets * bars
    work = (float(runs * bars) * (2 + strategy.program.work) + operands) * (1 + params.prefix_checks)
    return Cost(shown + prices + scratch + held + grid.fixed + grid.each, work=work, step=_STEP)


def _axis_sizes(params: Any, _infos: Mapping[str, ArrayInfo]) -> dict[str, int]:
    sets = sets_of_params(params)
    return {
        "metric": len(METRICS),
        "set": sets.count,
        "parameter": len(sets.names),
        "power": 4,
        "block": params.blocks,
        "check": params.prefix_checks,
    }


def _like(params: Sweep, sets: Sets, shard: Shard) -> Sweep:
    """The sweep of a shard's sets."""
    columns = {name: column[shard.first : shard.end] for name, column in zip(sets.names, sets.columns, strict=True)}
    return params.model_copy(update={"grid": {}, "sets": columns, "where": ""})


def _sharding(params: Sweep, infos: Mapping[str, ArrayInfo]) -> Sharding:
    """The sharding of a sweep by sets: each shard reads all prices."""
    sets = sets_of_params(params)
    joined = {
        "metrics": Division(
            ArrayInfo("float64", shape_of_metrics(infos, sets.count)), inner=len(whole_shape(infos)) - 1, outer=1
        ),
        "block_sums": Division(
            ArrayInfo("float64", shape_of_sums(params, infos, sets.count)), inner=len(whole_shape(infos)), outer=1
        ),
        "sets": Division(ArrayInfo("float64", (len(sets.names), sets.count)), inner=0, outer=1),
    }
    return Sharding(
        sets.count,
        lambda shard: _like(params, sets, shard),
        joined=joined,
        added={"prefix_differences": ArrayInfo("int64", (params.prefix_checks,))},
        values=values_of(params, infos, sets),
    )


def shape_of_metrics(infos: Mapping[str, Any], sets: int) -> tuple[int, ...]:
    return (len(METRICS), sets, *whole_shape(infos)[:-1])


def shape_of_sums(params: Any, infos: Mapping[str, Any], sets: int) -> tuple[int, ...]:
    return (4, sets, *whole_shape(infos)[:-1], params.blocks)


def values_of(params: Any, infos: Mapping[str, Any], sets: Sets) -> dict[str, Any]:
    """The outputs of a backtest that are no arrays: names, and the rules that it went by."""
    own = {"strategy", "grid", "sets", "where", "values", "weights", "prefix_checks"}
    rules = {name: value for name, value in params.model_dump(mode="json").items() if name not in own}
    own_series = sorted(set(strategy_of(params, infos).inputs) - MARKET)
    rules |= {
        "signals": "given" if params.strategy is None else "graph",
        "optimistic": params.fill == "same_close",
        "look_ahead": f"not known: reads {', '.join(own_series)}"
        if own_series
        else "none: no expression reads a later bar",
        "prefix_cuts": cuts_of(params, whole_shape(infos)[-1]),
    }
    return {"metric_names": list(METRICS), "parameter_names": list(sets.names), "rules": rules}


def cuts_of(params: Any, bars: int) -> list[int]:
    """The bars from which on a prefix check replaces prices."""
    return [max(1, (number + 1) * bars // (params.prefix_checks + 1)) for number in range(params.prefix_checks)]


# ---------------------------------------------------------------- overfitting


def splits_of(params: Overfitting) -> int:
    return comb(params.blocks, params.blocks // 2)


def _check_overfitting(params: Overfitting, infos: Mapping[str, ArrayInfo]) -> None:
    if len(infos) != 1:
        raise refuse(
            "/inputs/returns", "give either returns, shape (sets, bars), or block_sums, shape (4, sets, blocks)"
        )
    name, info = next(iter(infos.items()))
    if name == "returns":
        if params.bars:
            raise refuse("/params/bars", "returns have their own number of bars; bars belongs to block_sums")
        if info.shape[1] < 2 * params.blocks:
            least = 2 * params.blocks
            raise refuse("/params/blocks", f"{params.blocks} blocks need at least {least} bars, got {info.shape[1]}")
    else:
        if info.shape[0] != 4 or info.shape[2] != params.blocks:
            raise refuse(
                "/inputs/block_sums",
                f"shape {list(info.shape)}, expected (4, sets, {params.blocks}): blocks is {params.blocks}",
            )
        if params.bars < 2 * params.blocks:
            raise refuse(
                "/params/bars",
                f"{params.blocks} blocks are of at least {2 * params.blocks} bars, got {params.bars}: give the bars "
                "that the sums were made of",
            )
    sets = info.shape[-2]
    if not 2 <= sets <= MOST_SETS:
        raise refuse(f"/inputs/{name}", f"{sets:,} sets; overfitting compares 2 to {MOST_SETS:,}")
    if params.trials is not None and params.prior_trials:
        raise refuse(
            "/params/prior_trials",
            f"trials {params.trials:,} is the number of all trials: there are no prior_trials besides",
        )
    if params.train_blocks >= params.blocks:
        raise refuse("/params/train_blocks", f"{params.train_blocks} blocks to train on leave none of {params.blocks}")


def splits_of_a_chunk(params: Overfitting) -> int:
    """The splits of a chunk on a device, whose threads go through the sets together."""
    return max(1, min(splits_of(params), CHUNK >> 6))


def _overfitting_grid(params: Overfitting, infos: Mapping[str, ArrayInfo]) -> Grid:
    sets, each = next(iter(infos.values())).shape[-2], splits_of_a_chunk(params)
    # Of each split its half, the best set, and how many are below it and beside it; sums and sizes of blocks.
    fixed = 16 * params.blocks * sets + 8 * params.blocks + ROUNDING
    return Grid(-(-splits_of(params) // each), 32 * each, fixed)


def _overfitting_cost(params: Overfitting, infos: Mapping[str, ArrayInfo]) -> Cost:
    info, grid = next(iter(infos.values())), _overfitting_grid(params, infos)
    sets = info.shape[-2]
    nbytes = 2 * info.nbytes + 32 * params.blocks * sets + 200 * splits_of(params) + grid.fixed + grid.each
    # From 2.2 steps of a set in a split to 4, where each set is better than those before it.
    return Cost(nbytes, work=3.5 * sets * splits_of(params) + info.size, step=_STEP)


# ---------------------------------------------------------------- operations

_REAL: tuple[DType, ...] = ("float64", "float32")
_DOC = {
    "open": "opening prices", "high": "highest prices of the bars", "low": "lowest prices of the bars",
    "close": "closing prices; a bar that lacks a price fills no order, and its position is kept",
    "entries": "signals: not 0 to enter long", "short_entries": "not 0 to enter short", "exits": "not 0 to leave long",
    "short_exits": "not 0 to leave short",
    "target": "in place of all four: above 0 long, below 0 short, 0 none, NaN no change",
}  # fmt: skip
_INPUTS = tuple(
    Input(
        name,
        f"{_DOC.get(name, 'any series that the strategy reads')}, shape (time) or (assets, time), oldest first",
        _REAL,
        (1, 2),
        required=name == "close",
        nan=True,
        axes=indicator.AXES,
    )
    for name in INPUTS
)
_METRICS = ", ".join(METRICS)
_NAMES = (
    Output("metric_names", "the names of the metrics", "value"),
    Output("parameter_names", "the names of the parameters, in order", "value"),
    Output(
        "rules",
        "every rule that orders went by; `optimistic` where they fill at the price that gives the signal; whether "
        "signals can look ahead; the bars of the prefix checks",
        "value",
    ),
)
_PREFIX = Output(
    "prefix_differences",
    "of each prefix check how many runs had other signals before the cut; 0 shows that the graph does not look ahead, "
    "and nothing of series that the request gives; shape (checks), int64",
    axes=("check",),
    dtype="int64",
)
_CROSS = {
    "let": {"fast": {"op": "sma", "of": "close", "period": {"param": "fast"}},
            "slow": {"op": "sma", "of": "close", "period": {"param": "slow"}}},
    "entries": {"op": "crosses_above", "a": "fast", "b": "slow"},
    "exits": {"op": "crosses_below", "a": "fast", "b": "slow"},
}  # fmt: skip
_BARS = {name: {"data": BARS[name][:120], "dtype": "float64"} for name in PRICES}
_COSTS = {"fee": 0.001, "slippage": 0.0005, "stop_loss": 0.05}

BACKTEST_SWEEP = Operation(
    name="backtest_sweep",
    summary="Metrics of a strategy for each set of parameters and each asset, with fees, stops and targets.",
    package="warpdesk_server.kernels.backtest",
    params=Sweep,
    inputs=_INPUTS,
    outputs=(
        Output(
            "metrics",
            f"{_METRICS}; shape (metrics, sets) or (metrics, sets, assets), float64",
            axes=("metric set", "metric set asset"),
        ),
        Output(
            "block_sums",
            "sums of the returns' first four powers in each block, for `overfitting`; shape (4, sets, blocks) or "
            "(4, sets, assets, blocks)",
            axes=("power set block", "power set asset block"),
        ),
        Output(
            "sets",
            "the value of each parameter in each set, shape (parameters, sets), float64",
            axes=("parameter set",),
        ),
        _PREFIX,
        *_NAMES,
    ),
    example=Example(
        {"strategy": _CROSS, "grid": {"fast": [3, 5, 8], "slow": [8, 13, 21]}, "where": "fast < slow", **_COSTS}, _BARS
    ),
    cost=_cost,
    grid=_grid,
    sizes=_axis_sizes,
    check=_check,
    batching=Batching(steps=2e6, alike=False),
    sharding=_sharding,
    compile_seconds=9.0,
    compiled_with="the loop of backtests",
    counted_as="backtest",
)
BACKTEST = Operation(
    name="backtest",
    summary="Equity, position and trades of a strategy with one set of parameters: the curve behind a sweep's metrics.",
    package="warpdesk_server.kernels.backtest",
    params=Single,
    inputs=_INPUTS,
    outputs=(
        Output("equity", "equity at each close, of the shape of close, float64", axes=indicator.AXES),
        Output(
            "position", "units at each close, negative if short, of the shape of close, float64", axes=indicator.AXES
        ),
        Output(
            "trades",
            f"shape (trades, {len(TRADE_FIELDS)}), float64: {', '.join(TRADE_FIELDS)}; reasons are numbered "
            f"{', '.join(REASONS)}; an open trade's exit_bar is -1, its exit_price the last close",
            axes=("trade field",),  # the data decide how many
        ),
        Output(
            "metrics", f"{_METRICS}; shape (metrics) or (metrics, assets), float64", axes=("metric", "metric asset")
        ),
        Output(
            "portfolio_returns",
            "returns of a portfolio that gives each asset's account its part of the capital, and moves no money "
            "between them afterwards, shape (time), float64",
            axes=("time",),
        ),
        _PREFIX,
        *_NAMES,
        Output("trade_fields", "the names of a trade's columns", "value"),
        Output("reasons", "why a trade ended, by its number", "value"),
    ),
    example=Example({"strategy": _CROSS, "values": {"fast": 5, "slow": 13}, **_COSTS}, _BARS),
    cost=_cost,
    grid=_grid,
    sizes=_axis_sizes,
    check=_check,
    batching=Batching(steps=2e6, alike=False),
    compile_seconds=9.0,
    compiled_with="the loop of backtests",
    counted_as="backtest",
)
_RETURNS = [[0.01 * ((7 * bar * (number + 3)) % 11 - 5 + 0.2 * number) for bar in range(24)] for number in range(5)]
OVERFITTING = Operation(
    name="overfitting",
    summary="How much of the best set's result is luck: deflated Sharpe ratio, PBO, walk-forward.",
    package="warpdesk_server.kernels.backtest",
    params=Overfitting,
    inputs=(
        Input(
            "returns",
            "of each set at each bar, shape (sets, bars), oldest first",
            _REAL,
            (2,),
            required=False,
            axes=("set time",),
        ),
        Input(
            "block_sums",
            "what backtest_sweep gives of one asset, shape (4, sets, blocks)",
            ("float64",),
            (3,),
            required=False,
            axes=("power set block",),
        ),
    ),
    outputs=(
        Output("best", "the set with the highest Sharpe ratio, counted from 0", "value"),
        Output("sharpe", "its Sharpe ratio of a year", "value"),
        Output("probabilistic_sharpe", "the probability that its true Sharpe ratio is above 0", "value"),
        Output("deflated_sharpe", "the probability that it is above what the best of all trials has by luck", "value"),
        Output("expected_best_sharpe", "that Sharpe ratio of luck, of a year", "value"),
        Output("trials", "how many independent ones it was deflated by: as given, or sets and prior trials, which are "
               "too many, as sets are alike", "value"),
        Output("pbo", "probability of backtest overfitting: how often the best set in half of the blocks is not better "
               "than the median in the other half", "value"),
        Output("splits", "how many halves were tried", "value"),
        Output("logits", "of each split the logit of the rank that the best set of one half has in the other",
               axes=("split",)),
        Output("chosen", "of each split its best set, int64", axes=("split",), dtype="int64"),
        Output("walk_forward", "for each tested block: block, chosen set, Sharpe ratio in training and in the test; "
               "shape (blocks, 4), float64", axes=("block column",)),
        Output("walk_forward_sharpe", "Sharpe ratio of the tested blocks together, of a year", "value"),
    ),
    example=Example(
        {"blocks": 4},
        {"returns": {"data": _RETURNS, "dtype": "float64"}},
    ),
    cost=_overfitting_cost,
    grid=_overfitting_grid,
    sizes=lambda params, _infos: {
        "split": splits_of(params), "block": params.blocks - (params.train_blocks or 1), "column": 4,
    },
    check=_check_overfitting,
    batching=Batching(steps=2e6, alike=False),
    compile_seconds=5.0,
    counted_as="backtest",
)  # fmt: skip

OPERATION_OF: dict[type, Operation] = {Sweep: BACKTEST_SWEEP, Single: BACKTEST}
OPERATIONS = (BACKTEST_SWEEP, BACKTEST, OVERFITTING)
