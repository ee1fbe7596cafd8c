"""The specification of the indicators sma, ema, rsi and bollinger, of one price series or of many."""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from warpdesk_server.kernels.array import ITEMSIZE, ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.indicators import algebra as a
from warpdesk_server.kernels.indicators.cuts import Cut
from warpdesk_server.kernels.indicators.plan import Program, plan
from warpdesk_server.kernels.indicators.recurrence import (
    GROUP,
    TILE,
    Recurrence,
    ema_recurrence,
    look_back,
    rsi_recurrence,
)
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output, SameAs
from warpdesk_server.kernels.params import EXACT, Params
from warpdesk_server.kernels.problems import refuse

LONGEST_PERIOD = 100_000
COMPILE_SECONDS = 13  # of the loop that all graphs share
COMPILED_WITH = "programs of indicators"
# Bars of a chunk: 32 MiB of float64. To read them takes hardly longer than a launch, and they fit on any GPU.
CHUNK_BARS = 1 << 22
CORES = 8  # of a worker that computes on the CPU, for what a job is said to need
_LONG_WINDOW = 2048  # bars of a window whose sums go through device memory
BATCHING = Batching(steps=2e6)  # low, since prices with skipped gaps take ten times as long
ROUNDING = 1 << 14  # an allocator rounds each array up to 512 bytes

NanPolicy = Literal["window", "skip", "ffill", "error"]
_Period = Annotated[int, Field(ge=1, le=LONGEST_PERIOD, description="bars in the window", examples=[20])]

Gaps = Annotated[
    NanPolicy,
    Field(
        description="window: no number while the window, or the bars a recursion starts from, hold a NaN; a recursion "
        "starts afresh after it. skip: as if bars without a price did not exist; they get NaN. ffill: the last price "
        "stands in. error: refuse prices with a NaN.",
    ),
]


class Sma(Params):
    period: _Period
    nan_policy: Gaps = "window"


class Ema(Params):
    period: _Period
    convention: Literal["talib", "tradingview"] = Field(
        default="talib",
        description="talib: the first number, at bar `period` - 1 counted from 0, is the mean of the first `period` "
        "prices. tradingview: it is the first price, at bar 0.",
    )
    nan_policy: Gaps = "window"


class Rsi(Params):
    # With one bar an RSI could only say 0, 50 or 100; TA-Lib asks for two as well.
    period: Annotated[
        int, Field(ge=2, le=LONGEST_PERIOD, description="changes in the average; 14 is customary", examples=[14])
    ]
    convention: Literal["talib", "tradingview", "cutler", "ema"] = Field(
        default="talib",
        description="talib, tradingview: Wilder's smoothing, seeded by the mean of the first `period` changes. "
        "cutler: simple means of the last `period` gains and losses. "
        "ema: alpha = 2 / (period + 1), seeded by the first change.",
    )
    flat: Annotated[Literal[0, 50, 100, "nan"], EXACT] = Field(
        default=50,
        description="the RSI of prices that never moved: 50, or 0 (as TA-Lib), 100 (as Pine's classic source), nan",
    )
    nan_policy: Gaps = "window"


class Bollinger(Params):
    period: _Period = 20
    width: float = Field(default=2.0, gt=0, le=1e6, description="standard deviations (ddof = 0) between mean and band")
    nan_policy: Gaps = "window"


def prices_needed(params: Any) -> int:
    """The length of the shortest series in which an indicator has a number."""
    if isinstance(params, Rsi):
        return params.period + 1
    if isinstance(params, Ema) and params.convention == "tradingview":
        return 1
    return int(params.period)


def _check(params: Any, inputs: Mapping[str, ArrayInfo]) -> None:
    prices = inputs["prices"]
    needed, got = prices_needed(params), prices.shape[-1]
    if got < needed:
        raise refuse("/params/period", f"period {params.period} needs at least {needed} prices, got {got}")
    if params.nan_policy == "error" and prices.has_nan:
        raise refuse("/inputs/prices", 'the prices hold a NaN and nan_policy is "error"')


def _states(params: Any) -> int:
    """The number of states of an indicator's recurrence: an average, or those of gains and losses; 0 for windows."""
    if isinstance(params, Rsi):
        return 0 if params.convention == "cutler" else 2
    return 1 if isinstance(params, Ema) else 0


def _law(params: Any) -> Recurrence | None:
    """The recurrence of an EMA or RSI; None for an indicator over windows."""
    if isinstance(params, Ema):
        return ema_recurrence(params.period, params.convention)
    if isinstance(params, Rsi) and params.convention != "cutler":
        return rsi_recurrence(params.period, params.convention)
    return None


def _tables(params: Any, rows: int, time: int, itemsize: int) -> int:
    """Bytes of an indicator's launch besides the arrays that are as long as the prices."""
    tiles, need = rows * -(-time // TILE), 0
    if params.nan_policy in ("skip", "ffill") and time > TILE:
        need += 16 * tiles + 8 * rows  # PriceCounts: two numbers for each tile, one for each row
    if law := _law(params):
        states = _states(params)
        need += tiles * (12 + (2 + states) * itemsize)  # what a tile publishes
        if look_back(law, itemsize) == 0:
            groups, spans = -(-time // (GROUP * TILE)) + 1, -(-time // (GROUP * GROUP * TILE)) + 1
            need += rows * (groups * (4 + (1 + states) * itemsize) + spans * (4 + states * itemsize))
    elif params.period > _LONG_WINDOW:
        sums = 1 if isinstance(params, Sma) else 2  # of each window, over both of its blocks
        need += rows * (time // params.period + 2) * -(-params.period // _LONG_WINDOW) * 2 * sums * itemsize
    return need


def _halo(params: Any, itemsize: int) -> int:
    """The number of earlier bars that an indicator needs to compute a piece of a row."""
    if law := _law(params):
        return look_back(law, itemsize) * TILE + 1
    return 2 * int(params.period)


def _need(params: Any, rows: int, time: int, itemsize: int, outputs: int) -> int:
    """Bytes of device memory for an indicator of whole rows: prices, prices without gaps, results, tables."""
    arrays = 1 + outputs + (params.nan_policy == "skip")
    return arrays * rows * time * itemsize + _tables(params, rows, time, itemsize)


def _sizes(inputs: Mapping[str, ArrayInfo]) -> tuple[int, int, int]:
    prices = inputs["prices"]
    return math.prod(prices.shape[:-1]), prices.shape[-1], ITEMSIZE[prices.dtype]


def gap_bytes(policy: NanPolicy, inputs: int, rows: int, time: int, itemsize: int) -> int:
    """Bytes of the CPU's memory that closing and reopening gaps takes: inputs without them, and what is made on the
    way."""
    each = {"skip": (inputs + 3) * itemsize + 2, "ffill": inputs * itemsize + 18}
    return rows * time * each.get(policy, 0)


def scratch_bytes(program: Program, rows: int, time: int, itemsize: int) -> int:
    """Bytes of the CPU's memory that the cores keep while they run a program."""
    return min(CORES, rows * -(-time // TILE)) * program.kept * itemsize


_CLOSE = a.series("close")
_GRAPHS: dict[type, Callable[[Any], dict[str, a.Node]]] = {
    Sma: lambda params: {"sma": a.mean(_CLOSE, params.period)},
    Ema: lambda params: {"ema": a.ema(_CLOSE, params.period, params.convention)},
    Rsi: lambda params: {"rsi": a.strength(_CLOSE, params.period, params.convention, float(params.flat))},
    Bollinger: lambda params: a.bands(_CLOSE, params.period, params.width),
}


@lru_cache(maxsize=256)
def program(params: Any, itemsize: int) -> Program:
    """The program that the CPU runs for sma, ema, rsi or bollinger with these parameters."""
    return plan(_GRAPHS[type(params)](params), itemsize)


def _cost(outputs: int) -> Any:
    def cost(params: Any, inputs: Mapping[str, ArrayInfo]) -> Cost:
        rows, time, itemsize = _sizes(inputs)
        grid = _grid(outputs)(params, inputs)
        need = _need(params, rows, time, itemsize, outputs) + gap_bytes(params.nan_policy, 1, rows, time, itemsize)
        need += scratch_bytes(program(params, itemsize), rows, time, itemsize)
        return Cost(bytes=grid.fixed + max(need, grid.each), work=rows * time * max(1.0, _states(params)))

    return cost


def _grid(outputs: int) -> Any:
    """The grid of an indicator: chunks of about CHUNK_BARS bars, whole rows or parts (kernels.indicators.cuts)."""

    def grid(params: Any, inputs: Mapping[str, ArrayInfo]) -> Grid:
        rows, time, itemsize = _sizes(inputs)
        if not rows * time:
            return Grid(0, 0)
        cut = Cut(rows, time, CHUNK_BARS)
        if not cut.in_time:
            return Grid(cut.chunks, _need(params, cut.rows_each, time, itemsize, outputs), ROUNDING)
        if params.nan_policy != "window":  # gaps are closed on the host
            params = params.model_copy(update={"nan_policy": "window"})
        halo = min(_halo(params, itemsize), time)
        each = _need(params, 1, cut.length, itemsize, outputs)
        return Grid(cut.chunks, each, ROUNDING + _need(params, 1, halo, itemsize, outputs))

    return grid


_PRICES = Input(
    "prices",
    "closing prices, shape (time) or (assets, time), oldest first",
    ("float64", "float32"),
    (1, 2),
    nan=True,
    renamed="close",
)

# StockCharts ChartSchool, worked spreadsheet "cs-rsi.xls": 33 closes of QQQQ.
_CLOSES = [
    44.3389, 44.0902, 44.1497, 43.6124, 44.3278, 44.8264, 45.0955, 45.4245, 45.8433, 46.0826, 45.8931,
    46.0328, 45.6140, 46.2820, 46.2820, 46.0028, 46.0328, 46.4116, 46.2222, 45.6439, 46.2122, 46.2521,
    45.7137, 46.4515, 45.7835, 45.3548, 44.0288, 44.1783, 44.2181, 44.5672, 43.4205, 42.6628, 43.1314,
]  # fmt: skip


def _twin(
    function: str, parameters: Mapping[str, Any], fixed: Mapping[str, Any] | None = None, **outputs: str
) -> SameAs:
    return SameAs("TA-Lib", function, parameters, {"close": "close"}, outputs, fixed or {})


def _example(**params: Any) -> Example:
    return Example(params=params, inputs={"prices": {"data": _CLOSES, "dtype": "float64"}})


def _with_a_gap(**params: Any) -> Example:
    prices = [*_CLOSES[:5], None, *_CLOSES[6:]]
    return Example(params=params, inputs={"prices": {"data": prices, "dtype": "float64"}})


SMA = Operation(
    name="sma",
    compile_seconds=COMPILE_SECONDS,
    compiled_with=COMPILED_WITH,
    summary="Simple moving average.",
    package="warpdesk_server.kernels.indicators",
    params=Sma,
    inputs=(_PRICES,),
    outputs=(Output("sma", "mean of the last `period` prices, of the prices' shape and dtype; NaN before the first"),),
    example=_example(period=10),
    cost=_cost(outputs=1),
    grid=_grid(outputs=1),
    check=_check,
    batching=BATCHING,
    same_as=(_twin("SMA", {"period": "timeperiod"}, sma="real"), _twin("MA", {"period": "timeperiod"}, sma="real")),
    # Every indicator closes gaps by the same code.
    variants=(_with_a_gap(period=10, nan_policy="skip"), _with_a_gap(period=10, nan_policy="ffill")),
)

EMA = Operation(
    name="ema",
    compile_seconds=COMPILE_SECONDS,
    compiled_with=COMPILED_WITH,
    summary="Exponential moving average, alpha = 2 / (period + 1).",
    package="warpdesk_server.kernels.indicators",
    params=Ema,
    inputs=(_PRICES,),
    outputs=(Output("ema", "the average, of the prices' shape and dtype; NaN before the first"),),
    example=_example(period=10),
    cost=_cost(outputs=1),
    grid=_grid(outputs=1),
    check=_check,
    batching=BATCHING,
    same_as=(_twin("EMA", {"period": "timeperiod"}, {"convention": "talib"}, ema="real"),),
)

RSI = Operation(
    name="rsi",
    compile_seconds=COMPILE_SECONDS,
    compiled_with=COMPILED_WITH,
    summary="Relative strength index, 0 to 100.",
    package="warpdesk_server.kernels.indicators",
    params=Rsi,
    inputs=(_PRICES,),
    outputs=(Output("rsi", "the index, of the prices' shape and dtype; first at bar `period`, counted from 0"),),
    example=_example(period=14),
    cost=_cost(outputs=1),
    grid=_grid(outputs=1),
    check=_check,
    batching=BATCHING,
    same_as=(_twin("RSI", {"period": "timeperiod"}, {"convention": "talib", "flat": 0}, rsi="real"),),
    variants=(_example(period=14, convention="cutler"),),  # windows; the other conventions are one recursion
)

BOLLINGER = Operation(
    name="bollinger",
    compile_seconds=COMPILE_SECONDS,
    compiled_with=COMPILED_WITH,
    summary="Bollinger bands: mean and `width` population standard deviations around it.",
    package="warpdesk_server.kernels.indicators",
    params=Bollinger,
    inputs=(_PRICES,),
    outputs=(
        Output("upper", "middle + width * deviation, of the prices' shape and dtype"),
        Output("middle", "mean of the last `period` prices: the sma, byte for byte"),
        Output("lower", "middle - width * deviation"),
    ),
    example=_example(period=20, width=2.0),
    cost=_cost(outputs=3),
    grid=_grid(outputs=3),
    check=_check,
    batching=BATCHING,
    same_as=(
        _twin(
            "BBANDS",
            {"period": "timeperiod", "width": ("nbdevup", "nbdevdn")},
            upper="upperband",
            middle="middleband",
            lower="lowerband",
        ),
    ),
)
