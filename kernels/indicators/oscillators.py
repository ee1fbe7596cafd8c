"""Declared indicators: momentum and oscillators."""

import math
from typing import Annotated, Literal

from pydantic import Field

from warpdesk_server.kernels.indicators import algebra as a
from warpdesk_server.kernels.indicators.algebra import Node
from warpdesk_server.kernels.indicators.indicator import Bars, Outputs, TwoBars, indicator, require_below, talib
from warpdesk_server.kernels.indicators.volatility import range_of
from warpdesk_server.kernels.params import EXACT
from warpdesk_server.kernels.problems import refuse

Start = Annotated[
    Literal["talib", "plain", "tradingview"],
    Field(
        description="talib: the fast average starts so late that both have their first number at the same bar, and "
        "outputs are shown from the first bar that has all. plain: each average starts as soon as it can. tradingview: "
        "exponential averages start from the first price."
    ),
]
Average = Annotated[Literal["ema", "sma"], Field(description="exponential or simple averages")]

_MACD = ("macd", "macdsignal", "macdhist")


@indicator(
    "Relative strength index: 100 gains / (gains + losses), both averaged by the convention (Wilder 1978).",
    rsi="the index",
    same_as=[talib("RSI", period="timeperiod", fixed={"convention": "talib", "flat": 0})],
    example={"period": 14},
    variants=[{"convention": "cutler"}],
    oldest=True,
)
def rsi(
    close: Node,
    *,
    # With one bar an RSI could only say 0, 50 or 100; TA-Lib asks for two as well.
    period: Annotated[TwoBars, Field(description="changes in the average; 14 is customary")],
    convention: Annotated[
        Literal["talib", "tradingview", "cutler", "ema"],
        Field(
            description="talib, tradingview: Wilder's smoothing, seeded by the mean of the first `period` changes. "
            "cutler: simple means of the last `period` gains and losses. "
            "ema: alpha = 2 / (period + 1), seeded by the first change."
        ),
    ] = "talib",
    flat: Annotated[
        Literal[0, 50, 100, "nan"],
        Field(
            description="the RSI of prices that never moved: 50, or 0 (as TA-Lib), 100 (as Pine's classic source), nan"
        ),
        EXACT,
    ] = 50,
) -> Outputs:
    # The same NaN object each time, so that equal nodes are found equal.
    return a.strength(close, period, convention, math.nan if flat == "nan" else flat)


def _averages(x: Node, fast: int, slow: int, kind: str, convention: str = "plain") -> tuple[Node, Node]:
    """A fast and a slow average."""
    require_below(fast, slow)
    if kind == "sma":
        return a.mean(x, fast), a.mean(x, slow)
    if convention == "tradingview":
        return a.ema(x, fast, convention), a.ema(x, slow, convention)
    return a.ema(x, fast, late=slow - fast if convention == "talib" else 0), a.ema(x, slow)


@indicator(
    "Moving average convergence/divergence (Appel 1979).",
    macd="the fast less the slow average",
    signal="the average of macd, exponential or simple as the others",
    histogram="macd - signal",
    same_as=[
        talib(
            "MACD", fast="fastperiod", slow="slowperiod", signal="signalperiod", outputs=_MACD,
            fixed={"convention": "talib", "average": "ema"},
        ),
        talib(
            "MACDEXT", fast="fastperiod", slow="slowperiod", signal="signalperiod", outputs=_MACD,
            fixed={"convention": "talib", "average": "sma"},
        ),
        talib(
            "MACDFIX", signal="signalperiod", outputs=_MACD,
            fixed={"convention": "talib", "average": "fixed", "fast": 12, "slow": 26},
        ),
    ],
    example={"fast": 6, "slow": 13, "signal": 5},
)  # fmt: skip
def macd(
    close: Node,
    *,
    fast: Bars = 12,
    slow: TwoBars = 26,
    signal: Bars = 9,
    average: Annotated[
        Literal["ema", "sma", "fixed"],
        Field(
            description="exponential or simple averages. fixed: exponential ones of alpha 0.15 and 0.075, which Appel "
            "uses for fast 12 and slow 26."
        ),
    ] = "ema",
    convention: Start = "talib",
) -> Outputs:
    quick, idle = _averages(close, fast, slow, average, convention)
    if average == "fixed":
        if (fast, slow) != (12, 26) or convention == "tradingview":
            given = f"{fast} and {slow}, {convention}"
            raise refuse("/params/average", f"fixed averages are for fast 12 and slow 26, talib or plain, got {given}")
        late = slow - fast if convention == "talib" else 0
        quick, idle = a.smoothed(close, 0.15, fast, late), a.smoothed(close, 0.075, slow)
    line = quick - idle
    start = "tradingview" if convention == "tradingview" else "talib"
    smooth = a.mean(line, signal) if average == "sma" else a.ema(line, signal, start)
    shown = a.shown_with(line, smooth) if convention == "talib" else line
    return {"macd": shown, "signal": smooth, "histogram": line - smooth}


@indicator(
    "Absolute price oscillator: the fast less the slow average.",
    apo="the difference",
    same_as=[
        talib("APO", fast="fastperiod", slow="slowperiod", fixed={"average": "ema"}, theirs={"matype": 1}),
        talib("APO", fast="fastperiod", slow="slowperiod", fixed={"average": "sma"}, theirs={"matype": 0}),
    ],
)  # fmt: skip
def apo(close: Node, *, fast: Bars = 12, slow: TwoBars = 26, average: Average = "ema") -> Outputs:
    quick, idle = _averages(close, fast, slow, average)
    return quick - idle


@indicator(
    "Percentage price oscillator: the fast less the slow average, in percent of the slow one.",
    ppo="the difference in percent",
    same_as=[
        talib("PPO", fast="fastperiod", slow="slowperiod", fixed={"average": "ema"}, theirs={"matype": 1}),
        talib("PPO", fast="fastperiod", slow="slowperiod", fixed={"average": "sma"}, theirs={"matype": 0}),
    ],
)  # fmt: skip
def ppo(close: Node, *, fast: Bars = 12, slow: TwoBars = 26, average: Average = "ema") -> Outputs:
    quick, idle = _averages(close, fast, slow, average)
    return a.ratio(100 * (quick - idle), idle, 0)


@indicator(
    "Percentage volume oscillator: the percentage price oscillator of volume.",
    pvo="the difference in percent",
    same_as=[talib("PVO", fast="fastperiod", slow="slowperiod", theirs={"matype": 1})],
)
def pvo(volume: Node, *, fast: Bars = 12, slow: TwoBars = 26) -> Outputs:
    quick, idle = _averages(volume, fast, slow, "ema")
    return a.ratio(100 * (quick - idle), idle, 0)


@indicator(
    "Momentum: the change of the close over `period` bars.",
    momentum="the change",
    same_as=[talib("MOM", period="timeperiod")],
)
def momentum(close: Node, *, period: Bars = 10) -> Outputs:
    return a.change(close, period)


@indicator(
    "Rate of change: the close relative to that of `period` bars ago; 0 where that one was 0.",
    roc="the rate",
    same_as=[
        talib("ROC", period="timeperiod", fixed={"form": "percent"}),
        talib("ROCP", period="timeperiod", fixed={"form": "fraction"}),
        talib("ROCR", period="timeperiod", fixed={"form": "ratio"}),
        talib("ROCR100", period="timeperiod", fixed={"form": "ratio100"}),
    ],
)
def roc(
    close: Node,
    *,
    period: Bars = 10,
    form: Annotated[
        Literal["percent", "fraction", "ratio", "ratio100", "log"],
        Field(
            description="percent: 100 (c / c' - 1). fraction: (c - c') / c'. ratio: c / c'. ratio100: 100 c / c'. "
            "log: ln(c / c'), NaN where that has none."
        ),
    ] = "percent",
) -> Outputs:
    before = a.lag(close, period)
    quotient = close / before
    if form == "log":
        return a.log(quotient)
    rate = {
        "percent": (quotient - 1) * 100,
        "fraction": (close - before) / before,
        "ratio": quotient,
        "ratio100": quotient * 100,
    }
    return a.where(a.equal(before, 0), 0, rate[form])


@indicator(
    "Stochastic oscillator: where the close lies between the lowest low and the highest high of `period` bars, 0 to "
    "100, smoothed; 0 where they are equal (Lane 1984).",
    k="the position, averaged over `smooth` bars",
    d="the average of k over `signal` bars",
    same_as=[
        talib("STOCH", period="fastk_period", smooth="slowk_period", signal="slowd_period", outputs=("slowk", "slowd")),
        talib("STOCHF", period="fastk_period", signal="fastd_period", fixed={"smooth": 1}, outputs=("fastk", "fastd")),
    ],
)
def stochastic(high: Node, low: Node, close: Node, *, period: Bars = 14, smooth: Bars = 3, signal: Bars = 3) -> Outputs:
    k = a.mean(_position(high, low, close, period), smooth)
    d = a.mean(k, signal)
    return {"k": a.shown_with(k, d), "d": d}


def _position(high: Node, low: Node, close: Node, period: int) -> Node:
    top, bottom = a.highest(high, period), a.lowest(low, period)
    return a.ratio(100 * (close - bottom), top - bottom, 0)


@indicator(
    "Stochastic RSI: where the RSI lies between its lowest and highest of `period` bars (Chande and Kroll 1994).",
    k="the position, 0 to 100",
    d="the average of k over `signal` bars",
    same_as=[
        talib(
            "STOCHRSI",
            rsi_period="timeperiod",
            period="fastk_period",
            signal="fastd_period",
            outputs=("fastk", "fastd"),
        )
    ],
)
def stochastic_rsi(
    close: Node,
    *,
    rsi_period: Annotated[TwoBars, Field(description="changes in the RSI's average")] = 14,
    period: Bars = 14,
    signal: Bars = 3,
) -> Outputs:
    rsi = a.strength(close, rsi_period)
    k = _position(rsi, rsi, rsi, period)
    d = a.mean(k, signal)
    return {"k": a.shown_with(k, d), "d": d}


@indicator(
    "Williams' %R: how far the close lies below the highest high of `period` bars, -100 to 0; 0 where high and low are "
    "equal.",
    williams_r="the position",
    same_as=[talib("WILLR", period="timeperiod")],
)
def williams_r(high: Node, low: Node, close: Node, *, period: TwoBars = 14) -> Outputs:
    top, bottom = a.highest(high, period), a.lowest(low, period)
    return a.ratio(-100 * (top - close), top - bottom, 0)


@indicator(
    "Commodity channel index: the distance of the typical price from its mean, in 0.015 mean absolute deviations "
    "(Lambert 1980); 0 where there is no deviation.",
    cci="the index",
    same_as=[talib("CCI", period="timeperiod")],
)
def cci(high: Node, low: Node, close: Node, *, period: TwoBars = 20) -> Outputs:
    price = a.average(high, low, close)
    middle = a.mean(price, period)
    return a.ratio(price - middle, 0.015 * a.mean_deviation(price, middle, period), 0)


@indicator(
    "Chande momentum oscillator: gains less losses relative to both, -100 to 100; 0 where nothing moved.",
    cmo="the oscillator",
    same_as=[
        talib("CMO", period="timeperiod", fixed={"convention": "talib"}),
        talib("CMOU", period="timeperiod", fixed={"convention": "chande"}),
    ],
)
def cmo(
    close: Node,
    *,
    period: TwoBars = 14,
    convention: Annotated[
        Literal["talib", "chande"],
        Field(description="talib: gains and losses by Wilder's average. chande: plain sums (Chande and Kroll 1994)."),
    ] = "talib",
) -> Outputs:
    step = a.change(close)
    up, down = a.maximum(step, 0), a.maximum(-step, 0)
    gains, losses = (a.rma(x, period) if convention == "talib" else a.sum_over(x, period) for x in (up, down))
    return a.ratio(100 * (gains - losses), gains + losses, 0)


@indicator(
    "TRIX: the change of an exponential average of an average of an average, in percent (Hutson 1983).",
    trix="the change in percent",
    same_as=[talib("TRIX", period="timeperiod")],
)
def trix(close: Node, *, period: Bars = 15) -> Outputs:
    three = a.chain(lambda x: a.ema(x, period), close, 3)[-1]
    before = a.lag(three, 1)
    return a.where(a.equal(before, 0), 0, (three / before - 1) * 100)


@indicator(
    "True strength index: changes, averaged twice, relative to their sizes, -100 to 100 (Blau 1991).",
    tsi="the index",
    same_as=[talib("TSI", slow="firstperiod", fast="secondperiod")],
)
def tsi(
    close: Node,
    *,
    slow: Annotated[TwoBars, Field(description="bars of the first average")] = 25,
    fast: Annotated[TwoBars, Field(description="bars of the second average")] = 13,
) -> Outputs:
    step = a.change(close)
    moved, size = (a.ema(a.ema(x, slow), fast) for x in (step, a.absolute(step)))
    return a.ratio(100 * moved, size, 0)


@indicator(
    "Ultimate oscillator: buying pressure over three windows, weighed 4, 2 and 1, 0 to 100 (Williams 1985).",
    ultimate_oscillator="the oscillator",
    same_as=[talib("ULTOSC", short="timeperiod1", medium="timeperiod2", long="timeperiod3")],
)
def ultimate_oscillator(
    high: Node,
    low: Node,
    close: Node,
    *,
    short: Annotated[Bars, Field(description="bars of the window weighed 4")] = 7,
    medium: Annotated[Bars, Field(description="bars of the window weighed 2")] = 14,
    long: Annotated[Bars, Field(description="bars of the window weighed 1")] = 28,
) -> Outputs:
    if not short < medium < long:
        raise refuse("/params/short", f"short, medium and long should ascend, got {short}, {medium} and {long}")
    before = a.lag(close, 1)
    bottom, reach = a.minimum(low, before), range_of(high, low, close)
    pressure = close - bottom
    one, two, three = (
        a.ratio(a.sum_over(pressure, bars), a.sum_over(reach, bars), 0) for bars in (short, medium, long)
    )
    return 100 * (4 * one + 2 * two + three) / 7


@indicator(
    "Awesome oscillator: the fast less the slow simple average of (high + low) / 2 (Williams 1998).",
    awesome_oscillator="the difference",
    same_as=[talib("AO", fast="fastperiod", slow="slowperiod")],
)
def awesome_oscillator(high: Node, low: Node, *, fast: Bars = 5, slow: TwoBars = 34) -> Outputs:
    quick, idle = _averages((high + low) / 2, fast, slow, "sma")
    return quick - idle


@indicator(
    "Acceleration oscillator: the awesome oscillator less its simple average (Williams 1998).",
    acceleration_oscillator="the difference",
    same_as=[talib("AC", fast="fastperiod", slow="slowperiod", signal="signalperiod")],
)
def acceleration_oscillator(high: Node, low: Node, *, fast: Bars = 5, slow: TwoBars = 34, signal: Bars = 5) -> Outputs:
    quick, idle = _averages((high + low) / 2, fast, slow, "sma")
    return quick - idle - a.mean(quick - idle, signal)


@indicator(
    "Aroon: how long ago the highest high and the lowest low of the last `period` + 1 bars were, 100 for now; of equal "
    "ones the newest counts (Chande 1995).",
    up="100 (period - bars since the highest high) / period",
    down="the same of the lowest low",
    oscillator="up - down",
    same_as=[
        talib("AROON", period="timeperiod", outputs=("aroonup", "aroondown", None)),
        talib("AROONOSC", period="timeperiod", outputs=(None, None, "real")),
    ],
)
def aroon(high: Node, low: Node, *, period: TwoBars = 14) -> Outputs:
    up, down = (
        100 * (period - since) / period
        for since in (a.since_highest(high, period + 1), a.since_lowest(low, period + 1))
    )
    return {"up": up, "down": down, "oscillator": up - down}


def _movements(high: Node, low: Node) -> tuple[Node, Node, Node]:
    """Wilder's directional movements of each bar: how far it reaches above or below the last, the larger alone.

    The third series is NaN where they are not known.
    """
    up, down = a.change(high), a.lag(low, 1) - low
    plus, minus = a.where(up > a.maximum(down, 0), up, 0), a.where(down > a.maximum(up, 0), down, 0)
    return plus, minus, up - down


@indicator(
    "Directional movement: Wilder's sums of what bars reach above and below the last (Wilder 1978).",
    plus="+DM",
    minus="-DM",
    same_as=[
        talib("PLUS_DM", period="timeperiod", outputs=("real", None)),
        talib("MINUS_DM", period="timeperiod", outputs=(None, "real")),
    ],
)
def directional_movement(high: Node, low: Node, *, period: TwoBars = 14) -> Outputs:
    *movements, there = _movements(high, low)
    plus, minus = (a.from_bar(period - 1, a.wilder_sum(x, there, period, period - 1), there) for x in movements)
    return {"plus": plus, "minus": minus}


def _directions(high: Node, low: Node, close: Node, period: int, convention: str = "talib") -> tuple[Node, Node, Node]:
    """+DI, -DI and DX."""
    plus, minus, there = _movements(high, low)
    reach = range_of(high, low, close)
    there = there + reach
    if convention == "tradingview":
        up, down, way = (a.rma(a.shown_with(x, there), period) for x in (plus, minus, reach))
    else:
        up, down, way = (a.wilder_sum(x, there, period, period - 1) for x in (plus, minus, reach))
        way = a.from_bar(period, way, there)
    plus_di, minus_di = a.ratio(100 * up, way, 0), a.ratio(100 * down, way, 0)
    return plus_di, minus_di, a.ratio(100 * a.absolute(plus_di - minus_di), plus_di + minus_di, 0)


@indicator(
    "Average directional index with its lines (Wilder 1978).",
    adx="Wilder's average of dx",
    plus_di="+DI: 100 times upward movement / true range, by Wilder's sums",
    minus_di="-DI: the same of downward movement",
    dx="100 |+DI - -DI| / (+DI + -DI)",
    same_as=[
        talib(function, period="timeperiod", outputs=outputs, fixed={"convention": "talib"})
        for function, outputs in (
            ("ADX", ("real", None, None, None)),
            ("PLUS_DI", (None, "real", None, None)),
            ("MINUS_DI", (None, None, "real", None)),
            ("DX", (None, None, None, "real")),
        )
    ],
)
def adx(
    high: Node,
    low: Node,
    close: Node,
    *,
    period: TwoBars = 14,
    convention: Annotated[
        Literal["talib", "tradingview"],
        Field(
            description="talib: movements and range by Wilder's sums, from those of the first period - 1 bars. "
            "tradingview: by Wilder's averages, from the mean of `period` bars."
        ),
    ] = "talib",
) -> Outputs:
    plus_di, minus_di, dx = _directions(high, low, close, period, convention)
    return {"adx": a.rma(dx, period), "plus_di": plus_di, "minus_di": minus_di, "dx": dx}


@indicator(
    "Average directional movement rating: the mean of adx and of adx `period` - 1 bars ago (Wilder 1978).",
    adxr="the rating",
    same_as=[talib("ADXR", period="timeperiod")],
)
def adxr(high: Node, low: Node, close: Node, *, period: TwoBars = 14) -> Outputs:
    index = a.rma(_directions(high, low, close, period)[2], period)
    return (index + a.lag(index, period - 1)) / 2


@indicator(
    "Vortex: how far highs reach from the last lows, and lows from the last highs, relative to the true range (Botes "
    "and Siepman 2010).",
    plus="+VI",
    minus="-VI",
    same_as=[talib("VORTEX", period="timeperiod", outputs=("plusvi", "minusvi"))],
)
def vortex(high: Node, low: Node, close: Node, *, period: TwoBars = 14) -> Outputs:
    reach = a.sum_over(range_of(high, low, close), period)
    up, down = a.absolute(high - a.lag(low, 1)), a.absolute(low - a.lag(high, 1))
    return {
        "plus": a.ratio(a.sum_over(up, period), reach, 0),
        "minus": a.ratio(a.sum_over(down, period), reach, 0),
    }


@indicator(
    "Balance of power: (close - open) / (high - low); 0 where high and low are equal.",
    balance_of_power="the balance",
    same_as=[talib("BOP")],
)
def balance_of_power(open: Node, high: Node, low: Node, close: Node) -> Outputs:  # noqa: A002
    return a.ratio(close - open, high - low, 0)


@indicator(
    "Qstick: the simple average of close - open (Chande 1994).",
    qstick="the average",
    same_as=[talib("QSTICK", period="timeperiod")],
)
def qstick(open: Node, close: Node, *, period: Bars = 10) -> Outputs:  # noqa: A002
    return a.mean(close - open, period)


@indicator(
    "Elder's ray: how far high and low lie from an exponential average of closes (Elder 1989).",
    bull="high - ema",
    bear="low - ema",
    same_as=[talib("ERI", period="timeperiod", outputs=("bullpower", "bearpower"))],
)
def elder_ray(high: Node, low: Node, close: Node, *, period: TwoBars = 13) -> Outputs:
    middle = a.ema(close, period)
    return {"bull": high - middle, "bear": low - middle}


@indicator(
    "Efficiency ratio: the change over `period` bars relative to the way there, 0 to 1 (Kaufman 1995).",
    efficiency_ratio="the ratio",
    same_as=[talib("ER", period="timeperiod")],
)
def efficiency_ratio(close: Node, *, period: TwoBars = 10) -> Outputs:
    return a.efficiency(close, period)


@indicator(
    "Coppock curve: the weighted average of the sum of two rates of change (Coppock 1962).",
    coppock="the curve",
    same_as=[talib("COPPOCK", period="wmaperiod", short="roc1period", long="roc2period")],
)
def coppock(
    close: Node,
    *,
    period: Bars = 10,
    short: Annotated[Bars, Field(description="bars of the one rate of change")] = 11,
    long: Annotated[Bars, Field(description="bars of the other")] = 14,
) -> Outputs:
    rates = [a.where(a.equal(a.lag(close, n), 0), 0, 100 * (close / a.lag(close, n) - 1)) for n in (short, long)]
    return a.weighted_mean(rates[0] + rates[1], period)


@indicator(
    "Vertical horizontal filter: the highest less the lowest close relative to the way between them (White 1991).",
    vertical_horizontal_filter="the ratio",
    same_as=[talib("VHF", period="timeperiod")],
)
def vertical_horizontal_filter(close: Node, *, period: TwoBars = 28) -> Outputs:
    reach = a.highest(close, period) - a.lowest(close, period)
    return a.ratio(reach, a.sum_over(a.absolute(a.change(close)), period), 0)


@indicator(
    "Detrended price oscillator: the close period / 2 + 1 bars ago less the mean of the last `period` closes.",
    detrended_price="the difference",
    same_as=[talib("DPO", period="timeperiod")],
)
def detrended_price(close: Node, *, period: Bars = 20) -> Outputs:
    return a.lag(close, period // 2 + 1) - a.mean(close, period)


@indicator(
    "Intraday momentum index: an RSI of close - open, 0 to 100; 50 where nothing moved (Chande and Kroll 1994).",
    intraday_momentum="the index",
    same_as=[talib("IMI", period="timeperiod")],
)
def intraday_momentum(open: Node, close: Node, *, period: Bars = 14) -> Outputs:  # noqa: A002
    step = close - open
    up, down = a.sum_over(a.maximum(step, 0), period), a.sum_over(a.maximum(-step, 0), period)
    return a.ratio(100 * up, up + down, 50)


@indicator(
    "KDJ: a stochastic oscillator smoothed by Wilder's averages, and how far its lines are apart.",
    k="the average of the position over `smooth` bars",
    d="the average of k over `signal` bars",
    j="3 k - 2 d",
    same_as=[
        talib("KDJ", period="fastk_period", smooth="slowk_period", signal="slowd_period", outputs=("k", "d", "j")),
    ],
)
def kdj(high: Node, low: Node, close: Node, *, period: Bars = 9, smooth: Bars = 3, signal: Bars = 3) -> Outputs:
    k = a.rma(_position(high, low, close, period), smooth)
    d = a.rma(k, signal)
    return {"k": a.shown_with(k, d), "d": d, "j": 3 * k - 2 * d}


@indicator(
    "Stochastic momentum index: how far the close lies from the middle of the range, averaged twice, relative to half "
    "the range, -100 to 100 (Blau 1993).",
    smi="the index",
    signal="the exponential average of smi",
    same_as=[
        talib(
            "SMI", period="timeperiod", slow="slowperiod", fast="fastperiod", signal="signalperiod",
            outputs=("smi", "smisignal"),
        )
    ],
    example={"period": 8, "slow": 9},
)  # fmt: skip
def stochastic_momentum(
    high: Node,
    low: Node,
    close: Node,
    *,
    period: Bars = 13,
    slow: Annotated[Bars, Field(description="bars of the first average")] = 25,
    fast: Annotated[Bars, Field(description="bars of the second average")] = 2,
    signal: Bars = 9,
) -> Outputs:
    top, bottom = a.highest(high, period), a.lowest(low, period)
    apart, reach = (a.ema(a.ema(x, slow), fast) for x in (close - (top + bottom) / 2, top - bottom))
    index = a.ratio(100 * apart, 0.5 * reach, 0)
    line = a.ema(index, signal)
    return {"smi": a.shown_with(index, line), "signal": line}


@indicator(
    "Forecast oscillator: how far the close lies from what the regression of the `period` closes before it forecast, "
    "in percent of the close (Chande 1992).",
    forecast_oscillator="the distance in percent",
    same_as=[talib("FOSC", period="timeperiod")],
)
def forecast_oscillator(close: Node, *, period: TwoBars = 14) -> Outputs:
    middle, slope = a.regression(close, period)
    forecast = a.lag(middle + (period + 1) / 2 * slope, 1)
    return a.ratio(100 * (close - forecast), close, 0)


@indicator(
    "Relative volatility index: an RSI of deviations, counted as gains or losses by the change of the close; 50 "
    "where nothing moved (Dorsey 1993).",
    relative_volatility="the index, 0 to 100",
    same_as=[talib("RVI", period="timeperiod", deviation="stddevperiod")],
)
def relative_volatility(
    close: Node,
    *,
    period: TwoBars = 14,
    deviation: Annotated[TwoBars, Field(description="bars of the deviation")] = 10,
) -> Outputs:
    spread, step = a.deviation(close, deviation), a.change(close)
    up, down = (a.rma(a.shown_with(a.where(side > 0, spread, 0), spread + step), period) for side in (step, -step))
    return a.ratio(100 * up, up + down, 50)
