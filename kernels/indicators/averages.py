"""Declared indicators: averages, and bands that are drawn over prices."""

import math
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field

from warpdesk_server.kernels.indicators import algebra as a
from warpdesk_server.kernels.indicators.algebra import Node
from warpdesk_server.kernels.indicators.indicator import Bars, Outputs, TwoBars, indicator, talib
from warpdesk_server.kernels.indicators.volatility import range_of
from warpdesk_server.kernels.problems import refuse

Width = Annotated[float, Field(gt=0, le=1e6)]

_AVERAGE = "the average"
_UPPER, _MIDDLE, _LOWER = "the upper band", "the middle", "the lower band"


@indicator(
    "Simple moving average: the mean of the last `period` prices.",
    sma=_AVERAGE,
    same_as=[talib("SMA", period="timeperiod"), talib("MA", period="timeperiod")],
    example={"period": 10},
    oldest=True,
)
def sma(close: Node, *, period: Bars) -> Outputs:
    return a.mean(close, period)


@indicator(
    "Exponential moving average: e <- e + alpha (close - e), alpha = 2 / (period + 1).",
    ema=_AVERAGE,
    same_as=[talib("EMA", period="timeperiod", fixed={"convention": "talib"})],
    example={"period": 10},
    oldest=True,
)
def ema(
    close: Node,
    *,
    period: Bars,
    convention: Annotated[
        Literal["talib", "tradingview"],
        Field(
            description="talib: the first number, at bar `period` - 1 counted from 0, is the mean of the first "
            "`period` prices. tradingview: it is the first price, at bar 0.",
        ),
    ] = "talib",
) -> Outputs:
    return a.ema(close, period, convention)


@indicator(
    "Bollinger bands: mean and `width` population standard deviations around it.",
    upper="middle + width * deviation",
    middle="mean of the last `period` prices: the sma, byte for byte",
    lower="middle - width * deviation",
    same_as=[
        talib(
            "BBANDS",
            period="timeperiod",
            width=("nbdevup", "nbdevdn"),
            outputs=("upperband", "middleband", "lowerband"),
        )
    ],
    oldest=True,
)
def bollinger(
    close: Node,
    *,
    period: Bars = 20,
    width: Annotated[
        float, Field(gt=0, le=1e6, description="standard deviations (ddof = 0) between mean and band")
    ] = 2.0,
) -> Outputs:
    return a.bands(close, period, width)


@indicator(
    "Wilder's average: alpha = 1 / period, from the mean of the first `period` prices (Wilder 1978).",
    rma=_AVERAGE,
    same_as=[talib("RMA", period="timeperiod")],
    example={"period": 10},
)
def rma(close: Node, *, period: Bars) -> Outputs:
    return a.rma(close, period)


@indicator(
    "Weighted average: weights period, period - 1, ... 1 from the newest price on.",
    wma=_AVERAGE,
    same_as=[talib("WMA", period="timeperiod")],
    example={"period": 10},
)
def wma(close: Node, *, period: Bars) -> Outputs:
    return a.weighted_mean(close, period)


@indicator(
    "Triangular average: a simple average of a simple average.",
    trima=_AVERAGE,
    same_as=[talib("TRIMA", period="timeperiod")],
    example={"period": 10},
)
def trima(close: Node, *, period: Bars) -> Outputs:
    longer = period // 2 + 1
    return a.mean(a.mean(close, (period + 1) // 2), longer)


@indicator(
    "Double exponential average: 2 e - ema(e), e = ema(close) (Mulloy 1994).",
    dema=_AVERAGE,
    same_as=[talib("DEMA", period="timeperiod")],
    example={"period": 10},
)
def dema(close: Node, *, period: Bars) -> Outputs:
    one, two = a.chain(lambda x: a.ema(x, period), close, 2)
    return 2 * one - two


@indicator(
    "Triple exponential average: 3 e - 3 ema(e) + ema(ema(e)) (Mulloy 1994).",
    tema=_AVERAGE,
    same_as=[talib("TEMA", period="timeperiod")],
    example={"period": 10},
)
def tema(close: Node, *, period: Bars) -> Outputs:
    one, two, three = a.chain(lambda x: a.ema(x, period), close, 3)
    return 3 * one - 3 * two + three


@indicator(
    "Tillson's T3: six exponential averages, weighed by the volume factor (Tillson 1998).",
    t3=_AVERAGE,
    same_as=[talib("T3", period="timeperiod", factor="vfactor")],
)
def t3(
    close: Node,
    *,
    period: Bars = 5,
    factor: Annotated[float, Field(ge=0, le=1, description="volume factor: 0 is an ema of ema of ema")] = 0.7,
) -> Outputs:
    _, _, three, four, five, six = a.chain(lambda x: a.ema(x, period), close, 6)
    square, cube = factor * factor, factor * factor * factor
    c1, c2 = -cube, 3 * square + 3 * cube
    c3, c4 = -6 * square - 3 * factor - 3 * cube, 1 + 3 * factor + cube + 3 * square
    return c1 * six + c2 * five + c3 * four + c4 * three


@indicator(
    "Hull average: wma(2 wma(close, period / 2) - wma(close, period), sqrt(period)), both rounded down (Hull 2005).",
    hma=_AVERAGE,
    same_as=[talib("HMA", period="timeperiod")],
    example={"period": 10},
)
def hma(close: Node, *, period: TwoBars) -> Outputs:
    quick = 2 * a.weighted_mean(close, period // 2) - a.weighted_mean(close, period)
    return a.weighted_mean(quick, math.isqrt(period))


@indicator(
    "Zero-lag exponential average: ema of 2 close - the close (period - 1) / 2 bars ago (Ehlers and Way 2010).",
    zlma=_AVERAGE,
    same_as=[talib("ZLEMA", period="timeperiod")],
    example={"period": 10},
)
def zlma(close: Node, *, period: TwoBars) -> Outputs:
    return a.ema(2 * close - a.lag(close, (period - 1) // 2), period)


@indicator(
    "Kaufman's adaptive average: alpha between 2 / (slow + 1) and 2 / (fast + 1), squared, by the efficiency ratio "
    "over `period` bars; from the close before the first (Kaufman 1995).",
    kama=_AVERAGE,
    same_as=[talib("KAMA", period="timeperiod", fixed={"fast": 2, "slow": 30})],
)
def kama(close: Node, *, period: TwoBars = 10, fast: Bars = 2, slow: Bars = 30) -> Outputs:
    quick, idle = 2 / (fast + 1), 2 / (slow + 1)
    pace = a.efficiency(close, period) * (quick - idle) + idle
    return _adaptive(close, pace * pace, a.lag(close, 1))


def _adaptive(close: Node, alpha: Node, before: Node) -> Node:
    """y <- (1 - alpha) y + alpha close from a number at the first bar of a run of alphas."""
    run = a.run_length(alpha)
    moved = alpha * close
    first = (1 - alpha) * before + moved
    begins = run <= 1
    factor = a.where(begins, 0, 1 - alpha)
    return a.shown_with(a.scan(factor, a.where_missing(alpha, 0, a.where(begins, first, moved))), alpha)


@indicator(
    "Chande's variable index dynamic average: alpha = 2 / (period + 1) times the absolute momentum oscillator of "
    "`pace_period` changes, 0 to 1, by plain sums (Chande and Kroll 1994). It starts from the mean of the closes "
    "before the first oscillator. Chande's article of 1992 has a ratio of deviations in its place.",
    vidya=_AVERAGE,
)
def vidya(
    close: Node,
    *,
    period: Bars = 14,
    pace_period: Annotated[TwoBars, Field(description="changes that the momentum oscillator sums")] = 14,
) -> Outputs:
    pace = a.absolute(a.momentum_balance(close, pace_period))
    alpha = 2 / (period + 1) * pace
    return _adaptive(close, alpha, a.lag(a.mean(close, pace_period), 1))


@indicator(
    "Arnaud Legoux average: weights by a bell curve whose middle lies `offset` of the way from the oldest bar to the "
    "newest and whose deviation is period / sigma bars (Legoux and Kouzis-Loukas 2009).",
    alma=_AVERAGE,
)
def alma(
    close: Node,
    *,
    period: Annotated[int, Field(ge=1, le=1000)] = 9,
    offset: Annotated[
        float, Field(ge=0, le=1, description="0: the oldest bar weighs most. 1: the newest does.")
    ] = 0.85,
    sigma: Annotated[float, Field(ge=0.1, le=100, description="the higher, the fewer bars weigh")] = 6.0,
) -> Outputs:
    return a.weighted_sum(close, _bell(period, offset, sigma))


def _bell(period: int, offset: float, sigma: float) -> list[float]:
    """The weights of an `alma` from the newest bar on; in decimals, so that they are the same on every machine."""
    middle, spread = Decimal(offset) * (period - 1), Decimal(period) / Decimal(sigma)
    ages = (period - 1 - middle - bar for bar in range(period))
    weights = [(-(age * age) / (2 * spread * spread)).exp() for age in ages]
    total = sum(weights)
    return [float(weight / total) for weight in weights]


@indicator(
    "Middle of the highest and the lowest close of the last `period` bars.",
    midpoint=_MIDDLE,
    same_as=[talib("MIDPOINT", period="timeperiod")],
)
def midpoint(close: Node, *, period: TwoBars = 14) -> Outputs:
    return (a.highest(close, period) + a.lowest(close, period)) / 2


@indicator(
    "Middle of the highest high and the lowest low of the last `period` bars.",
    midprice=_MIDDLE,
    same_as=[talib("MIDPRICE", period="timeperiod")],
)
def midprice(high: Node, low: Node, *, period: TwoBars = 14) -> Outputs:
    return (a.highest(high, period) + a.lowest(low, period)) / 2


@indicator(
    "Average weighed by volume over the last `period` bars; NaN where nothing was traded in all of them.",
    vwma=_AVERAGE,
    same_as=[talib("VWMA", period="timeperiod")],
    example={"period": 10},
)
def vwma(close: Node, volume: Node, *, period: Bars) -> Outputs:
    return a.ratio(a.sum_over(close * volume, period), a.sum_over(volume, period))


@indicator("Mean of open, high, low and close.", average_price=_MIDDLE, same_as=[talib("AVGPRICE")])
def average_price(open: Node, high: Node, low: Node, close: Node) -> Outputs:  # noqa: A002
    return (high + low + close + open) / 4


@indicator("Mean of high and low.", median_price=_MIDDLE, same_as=[talib("MEDPRICE")])
def median_price(high: Node, low: Node) -> Outputs:
    return (high + low) / 2


@indicator("Mean of high, low and close.", typical_price=_MIDDLE, same_as=[talib("TYPPRICE")])
def typical_price(high: Node, low: Node, close: Node) -> Outputs:
    return a.average(high, low, close)


@indicator("Mean of high, low and twice the close.", weighted_close=_MIDDLE, same_as=[talib("WCLPRICE")])
def weighted_close(high: Node, low: Node, close: Node) -> Outputs:
    return (high + low + close * 2) / 4


@indicator(
    "Donchian channel: the highest high and the lowest low of the last `period` bars.",
    upper=_UPPER,
    middle="the mean of both",
    lower=_LOWER,
    same_as=[
        talib(
            "DONCHIAN", period="timeperiod", fixed={"current": True}, outputs=("upperband", "middleband", "lowerband")
        )
    ],
)  # fmt: skip
def donchian(
    high: Node,
    low: Node,
    *,
    period: TwoBars = 20,
    current: Annotated[
        bool, Field(description="whether the bar itself is one of them; else they end before it")
    ] = True,
) -> Outputs:
    upper, lower = a.highest(high, period), a.lowest(low, period)
    if not current:
        upper, lower = a.lag(upper, 1), a.lag(lower, 1)
    return {"upper": upper, "middle": (upper + lower) / 2, "lower": lower}


@indicator(
    "Keltner channel: an exponential average and `width` average true ranges around it (Keltner 1960, Raschke).",
    upper=_UPPER,
    middle=_MIDDLE,
    lower=_LOWER,
    same_as=[
        talib(
            "KC", period="timeperiod", range_period="atrperiod", width="nbdev", fixed={"convention": "talib"},
            outputs=("upperband", "middleband", "lowerband"),
        )
    ],
)  # fmt: skip
def keltner(
    high: Node,
    low: Node,
    close: Node,
    *,
    period: TwoBars = 20,
    range_period: Annotated[Bars, Field(description="bars of the range's average")] = 10,
    width: Width = 2.0,
    convention: Annotated[
        Literal["talib", "tradingview"],
        Field(
            description="talib: the average is of typical prices, and both averages start so late that they have their "
            "first number at the same bar. tradingview: it is of closes, and each starts as soon as it can."
        ),
    ] = "talib",
) -> Outputs:
    middle, first = close, 0
    if convention == "talib":
        middle, first = a.average(high, low, close), max(period - 1, range_period)
    middle = a.ema(middle, period, late=max(0, first - period + 1))
    reach = width * a.rma(range_of(high, low, close), range_period, late=max(0, first - range_period))
    return {"upper": middle + reach, "middle": a.shown_with(middle, reach), "lower": middle - reach}


@indicator(
    "Acceleration bands: averages of high (1 + 4 r) and low (1 - 4 r), r = (high - low) / (high + low) (Headley 2002).",
    upper=_UPPER,
    middle="the simple average of closes",
    lower=_LOWER,
    same_as=[talib("ACCBANDS", period="timeperiod", outputs=("upperband", "middleband", "lowerband"))],
)
def acceleration_bands(high: Node, low: Node, close: Node, *, period: TwoBars = 20) -> Outputs:
    reach = a.ratio(4 * (high - low), high + low, 0)
    return {
        "upper": a.mean(high * (1 + reach), period),
        "middle": a.mean(close, period),
        "lower": a.mean(low * (1 - reach), period),
    }


@indicator(
    "Ichimoku: middles of highest highs and lowest lows. Charts draw the spans `base_period` bars ahead and the "
    "lagging line as many behind; here every number stands at the bar at which it is known.",
    conversion="tenkan-sen: middle of the last `conversion_period` bars",
    base="kijun-sen: middle of the last `base_period` bars",
    span_a="senkou span A: mean of conversion and base, drawn `base_period` bars ahead",
    span_b="senkou span B: middle of the last `span_period` bars, drawn `base_period` bars ahead",
    example={"conversion_period": 3, "base_period": 6, "span_period": 12},
)
def ichimoku(
    high: Node,
    low: Node,
    *,
    conversion_period: Annotated[Bars, Field(description="bars of the conversion line")] = 9,
    base_period: Annotated[Bars, Field(description="bars of the base line")] = 26,
    span_period: Annotated[Bars, Field(description="bars of span B")] = 52,
) -> Outputs:
    conversion, base, span = (
        (a.highest(high, bars) + a.lowest(low, bars)) / 2 for bars in (conversion_period, base_period, span_period)
    )
    return {"conversion": conversion, "base": base, "span_a": (conversion + base) / 2, "span_b": span}


@indicator(
    "Parabolic stop and reverse: a stop that follows the extreme price, the quicker the longer it lasts, and changes "
    "sides when it is met (Wilder 1978). It begins on the side to which the second bar moves more.",
    parabolic_sar="the stop",
    same_as=[talib("SAR", acceleration="acceleration", maximum="maximum")],
)
def parabolic_sar(
    high: Node,
    low: Node,
    *,
    acceleration: Annotated[
        float, Field(gt=0, le=1, description="the pace at first, and what each extreme adds")
    ] = 0.02,
    maximum: Annotated[float, Field(gt=0, le=1, description="the pace at most")] = 0.2,
) -> Outputs:
    if acceleration > maximum:
        raise refuse(
            "/params/acceleration", f"acceleration should be at most maximum, got {acceleration} and {maximum}"
        )
    pace = (acceleration, acceleration, maximum)
    return a.parabolic(high, low, pace, pace)


@indicator(
    "Parabolic stop and reverse with a pace of its own for each side, a first stop, and a distance at turns; of a pace "
    "above its maximum the maximum counts.",
    parabolic_sar_extended="the stop, as a negative number while it lies above the bars",
    same_as=[
        talib(
            "SAREXT", start="startvalue", apart="offsetonreverse", first_up="accelerationinitlong",
            step_up="accelerationlong", maximum_up="accelerationmaxlong", first_down="accelerationinitshort",
            step_down="accelerationshort", maximum_down="accelerationmaxshort",
        ),
    ],
    example={"apart": 0.01, "first_up": 0.03, "step_down": 0.04, "maximum_down": 0.1},
)  # fmt: skip
def parabolic_sar_extended(
    high: Node,
    low: Node,
    *,
    start: Annotated[
        float,
        Field(ge=-1e30, le=1e30, description="first stop: above 0, below the bars; below 0, above them; 0, Wilder's"),
    ] = 0.0,
    apart: Annotated[
        float, Field(ge=0, le=1, description="share by which a turn moves the stop away from the bars")
    ] = 0.0,
    first_up: Annotated[float, Field(ge=0, le=1, description="pace at first while the stop is below the bars")] = 0.02,
    step_up: Annotated[float, Field(ge=0, le=1, description="what each higher high adds to it")] = 0.02,
    maximum_up: Annotated[float, Field(ge=0, le=1, description="that pace at most")] = 0.2,
    first_down: Annotated[
        float, Field(ge=0, le=1, description="pace at first while the stop is above the bars")
    ] = 0.02,
    step_down: Annotated[float, Field(ge=0, le=1, description="what each lower low adds to it")] = 0.02,
    maximum_down: Annotated[float, Field(ge=0, le=1, description="that pace at most")] = 0.2,
) -> Outputs:
    rising, falling = (
        (min(first, most), min(step, most), most)
        for first, step, most in ((first_up, step_up, maximum_up), (first_down, step_down, maximum_down))
    )
    return a.parabolic(high, low, rising, falling, apart, start, signed=True)


@indicator(
    "Supertrend: bands of `width` average true ranges around (high + low) / 2 that only close in; the trend turns "
    "where the close leaves them.",
    supertrend="the lower band in an upward trend, the upper one in a downward trend",
    trend="1 upward, -1 downward",
    same_as=[talib("SUPERTREND", period="timeperiod", width="multiplier", outputs=("supertrend", "trend"))],
)
def supertrend(high: Node, low: Node, close: Node, *, period: TwoBars = 10, width: Width = 3.0) -> Outputs:
    reach, middle = width * a.rma(range_of(high, low, close), period), (high + low) / 2
    upper, lower = a.ratchet(middle + reach, close), -a.ratchet(reach - middle, -close)
    above, below = close > upper, close < lower
    trend = a.shown_with(a.latch(a.where(above, 1, -1), a.either(above, below), first=1), upper)
    return {"supertrend": a.where(trend > 0, lower, upper), "trend": trend}


@indicator(
    "Heikin-Ashi bars: the close is the mean of the bar, the open the middle of the Heikin-Ashi bar before.",
    open="the middle of the last Heikin-Ashi open and close; of the bar itself at first",
    high="the highest of the bar and of both",
    low="the lowest of the bar and of both",
    close="the mean of open, high, low and close",
    same_as=[talib("HA", outputs=("haopen", "hahigh", "halow", "haclose"))],
)
def heikin_ashi(open: Node, high: Node, low: Node, close: Node) -> Outputs:  # noqa: A002
    end = (open + high + low + close) / 4
    before = a.lag(end, 1)
    fresh = a.from_start(a.where_missing(before, (open + close) / 2, 0.5 * before))
    start = a.shown_with(a.scan(a.from_start(a.where_missing(before, 0, 0.5)), fresh), end)
    return {
        "open": start,
        "high": a.maximum(a.maximum(high, start), end),
        "low": a.minimum(a.minimum(low, start), end),
        "close": end,
    }
