"""Declared indicators: how far prices move."""

import math
from typing import Annotated, Literal

from pydantic import Field

from warpdesk_server.kernels.indicators import algebra as a
from warpdesk_server.kernels.indicators.algebra import Node
from warpdesk_server.kernels.indicators.indicator import Bars, Outputs, TwoBars, indicator, talib

LN_2 = 0.6931471805599453

Convention = Annotated[
    Literal["talib", "tradingview"],
    Field(
        description="talib: the first bar has no true range, since there is no close before it. tradingview: it has "
        "high - low, so that averages begin a bar earlier."
    ),
]


def range_of(high: Node, low: Node, close: Node, convention: str = "talib") -> Node:
    """The true range: of the bar and the close before it (Wilder 1978)."""
    before, own = a.lag(close, 1), high - low
    reach = a.maximum(a.maximum(own, a.absolute(high - before)), a.absolute(low - before))
    return reach if convention == "talib" else a.from_start(a.where_missing(before, own, reach))


@indicator(
    "True range: the range of the bar and the close before it (Wilder 1978).",
    true_range="the range",
    same_as=[talib("TRANGE", fixed={"convention": "talib"})],
)
def true_range(high: Node, low: Node, close: Node, *, convention: Convention = "talib") -> Outputs:
    return range_of(high, low, close, convention)


@indicator(
    "Average true range: Wilder's average of the true range (Wilder 1978).",
    atr="the average range",
    same_as=[talib("ATR", period="timeperiod", fixed={"convention": "talib"})],
)
def atr(high: Node, low: Node, close: Node, *, period: Bars = 14, convention: Convention = "talib") -> Outputs:
    return a.rma(range_of(high, low, close, convention), period)


@indicator(
    "Average true range in percent of the close.",
    natr="100 atr / close",
    same_as=[talib("NATR", period="timeperiod", fixed={"convention": "talib"})],
)
def natr(high: Node, low: Node, close: Node, *, period: TwoBars = 14, convention: Convention = "talib") -> Outputs:
    return a.ratio(100 * a.rma(range_of(high, low, close, convention), period), close, 0)


@indicator(
    "Average daily range: the simple average of high - low.",
    adr="the average range",
    same_as=[talib("ADR", period="timeperiod")],
)
def adr(high: Node, low: Node, *, period: Bars = 14) -> Outputs:
    return a.mean(high - low, period)


@indicator(
    "Chaikin's volatility: the change of the exponential average of high - low, in percent.",
    chaikin_volatility="the change in percent",
    same_as=[talib("CVI", period="timeperiod", lookback="rocperiod")],
)
def chaikin_volatility(
    high: Node,
    low: Node,
    *,
    period: TwoBars = 10,
    lookback: Annotated[Bars, Field(description="bars from which the change is counted")] = 10,
) -> Outputs:
    width = a.ema(high - low, period)
    before = a.lag(width, lookback)
    return a.where(a.equal(before, 0), 0, (width / before - 1) * 100)


@indicator(
    "Mass index: the sum of ema(range) / ema(ema(range)) over `slow` bars (Dorsey 1992).",
    mass_index="the sum",
    same_as=[talib("MASSI", fast="fastperiod", slow="slowperiod")],
)
def mass_index(
    high: Node,
    low: Node,
    *,
    fast: Annotated[TwoBars, Field(description="bars of both averages")] = 9,
    slow: Annotated[TwoBars, Field(description="bars of the sum")] = 25,
) -> Outputs:
    one, two = a.chain(lambda x: a.ema(x, fast), high - low, 2)
    return a.sum_over(a.ratio(one, two, 0), slow)


Periods = Annotated[
    float, Field(gt=0, le=1e9, description="bars per year; the result is multiplied by its square root")
]
_VOLATILITY = "the volatility per year, 0.2 for 20 %"


def _volatility(variance: Node, periods_per_year: float) -> Node:
    return a.root(a.maximum(variance, 0)) * math.sqrt(periods_per_year)


@indicator("Volatility of logarithmic returns: their sample deviation (ddof = 1).", close_to_close=_VOLATILITY)
def close_to_close(close: Node, *, period: TwoBars = 20, periods_per_year: Periods = 252.0) -> Outputs:
    spread = a.deviation(a.log(close / a.lag(close, 1)), period)
    return spread * math.sqrt(period / (period - 1) * periods_per_year)


@indicator(
    "Parkinson's volatility: of the range, mean of ln(high / low)^2 / (4 ln 2) (Parkinson 1980).", parkinson=_VOLATILITY
)
def parkinson(high: Node, low: Node, *, period: Bars = 20, periods_per_year: Periods = 252.0) -> Outputs:
    reach = a.log(high / low)
    return _volatility(a.mean(reach * reach, period) / (4 * LN_2), periods_per_year)


@indicator(
    "Garman and Klass's volatility: mean of ln(high / low)^2 / 2 - (2 ln 2 - 1) ln(close / open)^2 (Garman and Klass "
    "1980).",
    garman_klass=_VOLATILITY,
)
def garman_klass(
    open: Node,  # noqa: A002
    high: Node,
    low: Node,
    close: Node,
    *,
    period: Bars = 20,
    periods_per_year: Periods = 252.0,
) -> Outputs:
    reach, moved = a.log(high / low), a.log(close / open)
    return _volatility(a.mean(reach * reach * 0.5 - moved * moved * (2 * LN_2 - 1), period), periods_per_year)


def _without_drift(open: Node, high: Node, low: Node, close: Node) -> Node:  # noqa: A002
    """Rogers and Satchell's variance of a bar."""
    return a.log(high / close) * a.log(high / open) + a.log(low / close) * a.log(low / open)


@indicator(
    "Rogers and Satchell's volatility, which a drift does not change: mean of ln(h / c) ln(h / o) + ln(l / c) "
    "ln(l / o) (Rogers and Satchell 1991).",
    rogers_satchell=_VOLATILITY,
)
def rogers_satchell(
    open: Node,  # noqa: A002
    high: Node,
    low: Node,
    close: Node,
    *,
    period: Bars = 20,
    periods_per_year: Periods = 252.0,
) -> Outputs:
    return _volatility(a.mean(_without_drift(open, high, low, close), period), periods_per_year)


@indicator(
    "Yang and Zhang's volatility: overnight variance, k times that from open to close, 1 - k times Rogers and "
    "Satchell's; k = 0.34 / (1.34 + (n + 1) / (n - 1)) (Yang and Zhang 2000).",
    yang_zhang=_VOLATILITY,
)
def yang_zhang(
    open: Node,  # noqa: A002
    high: Node,
    low: Node,
    close: Node,
    *,
    period: TwoBars = 20,
    periods_per_year: Periods = 252.0,
) -> Outputs:
    overnight = a.deviation(a.log(open / a.lag(close, 1)), period)
    within = a.deviation(a.log(close / open), period)
    sample, k = period / (period - 1), 0.34 / (1.34 + (period + 1) / (period - 1))
    variance = sample * overnight * overnight + k * sample * within * within
    return _volatility(variance + (1 - k) * a.mean(_without_drift(open, high, low, close), period), periods_per_year)
