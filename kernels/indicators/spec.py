"""What the indicators take and give: sma, ema, rsi and bollinger of one price series or of many."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from kernels.array import ITEMSIZE, ArrayInfo
from kernels.indicators.recurrence import SEGMENTS, TILE
from kernels.operation import EXACT, Cost, Example, Input, Operation, Output, Params, refuse

LONGEST_PERIOD = 100_000

NanPolicy = Literal["window", "skip", "ffill", "error"]
_Period = Annotated[int, Field(ge=1, le=LONGEST_PERIOD, description="bars in the window", examples=[20])]

_Gaps = Annotated[
    NanPolicy,
    Field(
        description="window: no number while the window, or the bars a recursion starts from, hold a NaN; a recursion "
        "starts afresh after it. skip: as if bars without a price did not exist; they get NaN. ffill: the last price "
        "stands in. error: refuse prices with a NaN.",
    ),
]


class Sma(Params):
    period: _Period
    nan_policy: _Gaps = "window"


class Ema(Params):
    period: _Period
    convention: Literal["talib", "tradingview"] = Field(
        default="talib",
        description="talib: the first number, at bar `period` - 1 counted from 0, is the mean of the first `period` "
        "prices. tradingview: it is the first price, at bar 0.",
    )
    nan_policy: _Gaps = "window"


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
    nan_policy: _Gaps = "window"


class Bollinger(Params):
    period: _Period = 20
    width: float = Field(default=2.0, gt=0, le=1e6, description="standard deviations (ddof = 0) between mean and band")
    nan_policy: _Gaps = "window"


def _prices_needed(params: Any) -> int:
    if isinstance(params, Rsi):
        return params.period + 1
    if isinstance(params, Ema) and params.convention == "tradingview":
        return 1
    return int(params.period)


def _check(params: Any, inputs: Mapping[str, ArrayInfo]) -> None:
    prices = inputs["prices"]
    needed, got = _prices_needed(params), prices.shape[-1]
    if got < needed:
        raise refuse("/params/period", f"period {params.period} needs at least {needed} prices, got {got}")
    if params.nan_policy == "error" and prices.has_nan:
        raise refuse("/inputs/prices", 'the prices hold a NaN and nan_policy is "error"')


def _states(params: Any) -> int:
    """What a recurrence carries from bar to bar: an average, or that of gains and that of losses."""
    if isinstance(params, Rsi):
        return 0 if params.convention == "cutler" else 2
    return 1 if isinstance(params, Ema) else 0


def _cost(outputs: int, workspace: int) -> Any:
    """Bytes of input, outputs and the buffers of the backend that needs more (the GPU).

    `workspace`, in multiples of the input, is what closed gaps and windows longer than shared memory take. To it comes
    what whole tiles take, of which every row has one, however short; and 1 MiB for tables and for rounding up.
    """

    def cost(params: Any, inputs: Mapping[str, ArrayInfo]) -> Cost:
        prices = inputs["prices"]
        time = prices.shape[-1]
        itemsize = ITEMSIZE[prices.dtype]
        tiles = math.prod(prices.shape[:-1]) * -(-time // TILE)
        tile = 24  # counts of prices where gaps are closed
        if states := _states(params):
            reals = (1 + states) * itemsize
            tile += SEGMENTS * (reals + 4)  # each segment's map and bars since a gap
            tile += reals + 12  # the tile's states, its last gap, and where an RSI stands still
        return Cost(bytes=(1 + outputs + workspace) * prices.nbytes + tiles * tile + (1 << 20))

    return cost


_PRICES = Input(
    "prices", "closing prices, shape (time) or (assets, time), oldest first", ("float64", "float32"), (1, 2), nan=True
)

# StockCharts ChartSchool, worked spreadsheet "cs-rsi.xls": 33 closes of QQQQ.
_CLOSES = [
    44.3389, 44.0902, 44.1497, 43.6124, 44.3278, 44.8264, 45.0955, 45.4245, 45.8433, 46.0826, 45.8931,
    46.0328, 45.6140, 46.2820, 46.2820, 46.0028, 46.0328, 46.4116, 46.2222, 45.6439, 46.2122, 46.2521,
    45.7137, 46.4515, 45.7835, 45.3548, 44.0288, 44.1783, 44.2181, 44.5672, 43.4205, 42.6628, 43.1314,
]  # fmt: skip


def _example(**params: Any) -> Example:
    return Example(params=params, inputs={"prices": {"data": _CLOSES, "dtype": "float64"}})


def _with_a_gap(**params: Any) -> Example:
    prices = [*_CLOSES[:5], None, *_CLOSES[6:]]
    return Example(params=params, inputs={"prices": {"data": prices, "dtype": "float64"}})


SMA = Operation(
    name="sma",
    summary="Simple moving average.",
    package="kernels.indicators",
    params=Sma,
    inputs=(_PRICES,),
    outputs=(Output("sma", "mean of the last `period` prices, of the prices' shape and dtype; NaN before the first"),),
    example=_example(period=10),
    cost=_cost(outputs=1, workspace=5),
    check=_check,
    variants=(_with_a_gap(period=10, nan_policy="skip"),),  # every indicator closes gaps by the same code
)

EMA = Operation(
    name="ema",
    summary="Exponential moving average, alpha = 2 / (period + 1).",
    package="kernels.indicators",
    params=Ema,
    inputs=(_PRICES,),
    outputs=(Output("ema", "the average, of the prices' shape and dtype; NaN before the first"),),
    example=_example(period=10),
    cost=_cost(outputs=1, workspace=3),
    check=_check,
)

RSI = Operation(
    name="rsi",
    summary="Relative strength index, 0 to 100.",
    package="kernels.indicators",
    params=Rsi,
    inputs=(_PRICES,),
    outputs=(Output("rsi", "the index, of the prices' shape and dtype; first at bar `period`, counted from 0"),),
    example=_example(period=14),
    cost=_cost(outputs=1, workspace=8),
    check=_check,
    variants=(_example(period=14, convention="cutler"),),  # windows; the other conventions are one recursion
)

BOLLINGER = Operation(
    name="bollinger",
    summary="Bollinger bands: mean and `width` population standard deviations around it.",
    package="kernels.indicators",
    params=Bollinger,
    inputs=(_PRICES,),
    outputs=(
        Output("upper", "middle + width * deviation, of the prices' shape and dtype"),
        Output("middle", "mean of the last `period` prices: the sma, byte for byte"),
        Output("lower", "middle - width * deviation"),
    ),
    example=_example(period=20, width=2.0),
    cost=_cost(outputs=3, workspace=10),
    check=_check,
)
