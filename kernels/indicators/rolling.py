"""Declared indicators: statistics of the last bars, and signals from them."""

import math
from typing import Annotated, Literal

from pydantic import Field

from warpdesk_server.kernels.indicators import algebra as a
from warpdesk_server.kernels.indicators.algebra import Node
from warpdesk_server.kernels.indicators.indicator import Bars, Outputs, TwoBars, indicator, require_below, talib
from warpdesk_server.kernels.params import EXACT
from warpdesk_server.kernels.problems import refuse

MOST_ORDERED = 10_000  # bars of a window whose order is kept, for which a block's shared memory has room
Ordered = Annotated[int, Field(ge=2, le=MOST_ORDERED)]

_TWINS = [
    talib("MAX", period="timeperiod", fixed={"statistic": "max"}),
    talib("MIN", period="timeperiod", fixed={"statistic": "min"}),
    talib("SUM", period="timeperiod", fixed={"statistic": "sum"}),
    talib("STDDEV", period="timeperiod", fixed={"statistic": "std", "ddof": 0}),
    talib("VAR", period="timeperiod", fixed={"statistic": "var", "ddof": 0}),
    talib("AVGDEV", period="timeperiod", fixed={"statistic": "mean_deviation"}),
]


@indicator(
    "A statistic of the last `period` closes.",
    rolling="the statistic",
    same_as=_TWINS,
    example={"period": 20, "statistic": "std"},
)
def rolling(
    close: Node,
    *,
    period: TwoBars,
    statistic: Annotated[
        Literal["mean", "sum", "std", "var", "min", "max", "zscore", "mean_deviation", "median", "skew", "kurtosis"],
        Field(
            description="std and var divide by period - ddof. zscore: (close - mean) / std, NaN where std is 0. "
            "mean_deviation: the mean absolute distance from the mean. skew and kurtosis: the third and fourth moment "
            "in deviations, the latter less 3; NaN where nothing moves."
        ),
    ],
    ddof: Annotated[
        Literal[0, 1],
        EXACT,
        Field(
            description="degrees of freedom of std, var and zscore; 1 also corrects skew and kurtosis for small samples"
        ),
    ] = 0,
) -> Outputs:
    if statistic in ("skew", "kurtosis"):
        return _shape(close, period, statistic, ddof)
    if statistic == "median":
        return a.quantile(close, _ordered(period), 0.5)
    if statistic in ("min", "max"):
        return (a.lowest if statistic == "min" else a.highest)(close, period)
    if statistic == "sum":
        return a.sum_over(close, period)
    middle = a.mean(close, period)
    if statistic == "mean":
        return middle
    if statistic == "mean_deviation":
        return a.mean_deviation(close, middle, period)
    spread = a.deviation(close, period)
    if ddof:
        spread = spread * math.sqrt(period / (period - 1))
    if statistic == "var":
        return spread * spread
    return spread if statistic == "std" else a.ratio(close - middle, spread)


def _ordered(period: int) -> int:
    """A period of which all bars are kept in order. Raises InvalidRequest above MOST_ORDERED."""
    if period > MOST_ORDERED:
        raise refuse("/params/period", f"period should be at most {MOST_ORDERED} for a median, got {period}")
    return period


def _shape(x: Node, n: int, statistic: str, ddof: int) -> Node:
    """Skew or excess kurtosis, of the population or corrected as by Joanes and Gill (1998): G1 and G2."""
    least = {"skew": 3, "kurtosis": 4}[statistic]
    if ddof and n < least:
        raise refuse("/params/period", f"period should be at least {least} for a {statistic} of ddof 1, got {n}")
    two, three, four = a.central_moments(x, n)
    if statistic == "skew":
        correction = math.sqrt(n * (n - 1)) / (n - 2) if ddof else 1.0
        return a.ratio(correction * math.sqrt(n) * three, two * a.root(two))
    excess = a.ratio(n * four, two * two) - 3
    return (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * excess + 6) if ddof else excess


@indicator(
    "Quantile: the number below which `percent` of the last `period` closes lie. 50 is the median; 95 is what pandas "
    "calls the quantile 0.95.",
    rolling_quantile="the quantile",
    same_as=[talib("PERCENTILE", period="timeperiod", percent="percentile", fixed={"between": "nearest_rank"})],
    example={"percent": 90.0},
)
def rolling_quantile(
    close: Node,
    *,
    period: Ordered = 30,
    percent: Annotated[float, Field(ge=0, le=100, description="percent of the closes")] = 50.0,
    between: Annotated[
        Literal["linear", "nearest_rank"],
        Field(
            description="linear: on the straight line between the closes at both sides, as NumPy and pandas. "
            "nearest_rank: the lowest close that at least `percent` of them do not exceed, as TA-Lib."
        ),
    ] = "linear",
) -> Outputs:
    if between == "linear":
        return a.quantile(close, period, percent / 100)
    return a.order_statistic(close, period, max(0, math.ceil(percent * period / 100) - 1))


@indicator(
    "Percent rank: how many of the `period` closes before it the close exceeds, in percent.",
    percent_rank="the rank, 0 to 100",
    same_as=[talib("PERCENTRANK", period="timeperiod", fixed={"equal": "out"})],
)
def percent_rank(
    close: Node,
    *,
    period: Bars = 30,
    equal: Annotated[
        Literal["out", "in"],
        Field(description="out: equal closes do not count (TA-Lib). in: they count (TradingView)."),
    ] = "out",
) -> Outputs:
    return 100 * a.count_below(close, period, equal == "in") / period


@indicator(
    "Highest and lowest close of the last `period` bars, and how long ago they were; the newest of equal ones counts.",
    highest="the highest close",
    lowest="the lowest close",
    since_highest="how many bars ago the highest was",
    since_lowest="how many bars ago the lowest was",
    same_as=[talib("MINMAX", period="timeperiod", outputs=("max", "min", None, None))],
)
def extremes(close: Node, *, period: TwoBars = 30) -> Outputs:
    return {
        "highest": a.highest(close, period),
        "lowest": a.lowest(close, period),
        "since_highest": a.since_highest(close, period),
        "since_lowest": a.since_lowest(close, period),
    }


@indicator(
    "Linear regression of the last `period` closes on time.",
    value="the line at the newest bar",
    slope="its rise per bar",
    intercept="the line at the oldest bar of the window",
    forecast="the line one bar ahead",
    same_as=[
        talib("LINEARREG", period="timeperiod", outputs=("real", None, None, None)),
        talib("LINEARREG_SLOPE", period="timeperiod", outputs=(None, "real", None, None)),
        talib("LINEARREG_INTERCEPT", period="timeperiod", outputs=(None, None, "real", None)),
        talib("TSF", period="timeperiod", outputs=(None, None, None, "real")),
    ],
)
def linear_regression(close: Node, *, period: TwoBars = 14) -> Outputs:
    middle, slope = a.regression(close, period)
    reach = (period - 1) / 2 * slope
    value = middle + reach
    return {"value": value, "slope": slope, "intercept": middle - reach, "forecast": value + slope}


@indicator(
    "Mean reversion: the z-score of the close, and the position of one who sells above it and buys below.",
    zscore="(close - mean) / population deviation; NaN where there is none",
    position="-1, 0 or 1: taken at |z| >= entry against the deviation, left at |z| <= exit, kept where z is NaN",
    example={"period": 10},
)
def mean_reversion(
    close: Node,
    *,
    period: TwoBars = 20,
    entry: Annotated[float, Field(gt=0, le=1e6, description="|z| at which a position is taken")] = 2.0,
    exit: Annotated[float, Field(ge=0, le=1e6, description="|z| at which it is left")] = 0.5,  # noqa: A002
) -> Outputs:
    if exit >= entry:
        raise refuse("/params/exit", f"exit should be below entry, got {exit} and {entry}")
    z = a.ratio(close - a.mean(close, period), a.deviation(close, period))
    side = a.where(z <= -entry, 1, a.where(z >= entry, -1, 0))
    acts = a.either(z <= -entry, a.either(z >= entry, a.absolute(z) <= exit))
    return {"zscore": z, "position": a.latch(side, acts, first=0)}


@indicator(
    "Crossover of a fast and a slow average: 1 at the bar at which the fast one comes to lie on the other side.",
    up="1 where fast > slow, and fast <= slow a bar before",
    down="1 where fast < slow, and fast >= slow a bar before",
    example={"fast": 5, "slow": 10},
)
def crossover(
    close: Node,
    *,
    fast: Bars = 20,
    slow: TwoBars = 50,
    average: Annotated[Literal["sma", "ema"], Field(description="simple or exponential averages")] = "sma",
) -> Outputs:
    require_below(fast, slow)
    quick, idle = (a.mean(close, n) if average == "sma" else a.ema(close, n) for n in (fast, slow))
    up, down = a.crosses(quick, idle), a.crosses(idle, quick)
    both = a.lag(quick - idle, 1) + (quick - idle)
    return {"up": a.shown_with(up, both), "down": a.shown_with(down, both)}


@indicator(
    "Breakout: the close leaves the range of the `period` bars before it.",
    breakout="1 above the highest high, -1 below the lowest low, else 0",
)
def breakout(high: Node, low: Node, close: Node, *, period: Bars = 20) -> Outputs:
    top, bottom = a.lag(a.highest(high, period), 1), a.lag(a.lowest(low, period), 1)
    side = a.where(close > top, 1, a.where(close < bottom, -1, 0))
    return a.shown_with(side, top + bottom + close)


@indicator(
    "Swing pivots: a high above those of the `left` bars before it and not below those of the `right` bars after it, "
    "and lows likewise. A pivot is shown at the bar that confirms it, `right` bars later; of equal highs the first "
    "counts.",
    high="the high of the pivot that this bar confirms, else NaN",
    low="the low of the pivot that this bar confirms, else NaN",
    example={"left": 2, "right": 2},
)
def swing_pivots(
    high: Node,
    low: Node,
    *,
    left: Annotated[Bars, Field(description="bars before the pivot")] = 5,
    right: Annotated[Bars, Field(description="bars after the pivot; it is known that many bars later")] = 5,
) -> Outputs:
    def pivot(x: Node) -> Node:
        middle = a.lag(x, right)
        is_one = a.both(middle > a.lag(a.highest(x, left), right + 1), middle >= a.highest(x, right))
        return a.where(is_one, middle, a.NOTHING)

    return {"high": pivot(high), "low": -pivot(-low)}


@indicator(
    "Fractals: a high above those of the `left` bars before it and of the `right` bars after it, and lows likewise; "
    "shown at the bar that confirms it, `right` bars later (Williams 1995).",
    high="100 where a high is confirmed, else 0",
    low="100 where a low is confirmed, else 0",
    same_as=[talib("FRACTAL", left="leftbars", right="rightbars", outputs=("swinghigh", "swinglow"))],
)
def fractal(
    high: Node,
    low: Node,
    *,
    left: Annotated[Bars, Field(description="bars before it")] = 2,
    right: Annotated[Bars, Field(description="bars after it")] = 2,
) -> Outputs:
    def found(x: Node) -> Node:
        middle, before, later = a.lag(x, right), a.lag(a.highest(x, left), right + 1), a.highest(x, right)
        return a.shown_with(a.where(a.both(middle > before, middle > later), 100, 0), before + later)

    return {"high": found(high), "low": found(-low)}


@indicator(
    "Threshold: whether the close is above a level. With a lower level to fall below, small moves do not count.",
    state="1 from a close above `upper` to one below `lower`, else 0; at first 0",
    up="1 at the bar at which the state becomes 1",
    down="1 at the bar at which it becomes 0",
    example={"upper": 90.0, "lower": 88.0},
)
def threshold(
    close: Node,
    *,
    upper: Annotated[float, Field(ge=-1e300, le=1e300, description="the level to rise above")],
    lower: Annotated[float, Field(ge=-1e300, le=1e300, description="the level to fall below, at most `upper`")],
) -> Outputs:
    if lower > upper:
        raise refuse("/params/lower", f"lower should be at most upper, got {lower} and {upper}")
    above = close > upper
    state = a.latch(above, a.either(above, close < lower), first=0)
    before = a.lag(state, 1)
    return {
        "state": a.shown_with(state, close),
        "up": a.shown_with(a.both(state, a.opposite(before)), before + close),
        "down": a.shown_with(a.both(before, a.opposite(state)), before + close),
    }


@indicator(
    "Covariance, correlation or beta of the last `period` closes and a benchmark's, which may be one for all assets.",
    rolling_pair="the statistic; a correlation with what does not move, and a beta to it, are NaN",
    same_as=[
        talib(
            "CORREL", period="timeperiod", fixed={"statistic": "correlation", "of": "prices"},
            inputs={"close": "high", "benchmark": "low"},
        ),
        talib(
            "BETA", period="timeperiod", fixed={"statistic": "beta", "of": "returns"},
            inputs={"close": "low", "benchmark": "high"},
        ),
    ],
    example={"period": 20, "statistic": "correlation"},
)  # fmt: skip
def rolling_pair(
    close: Node,
    benchmark: Node,
    *,
    period: TwoBars,
    statistic: Annotated[
        Literal["covariance", "correlation", "beta"],
        Field(description="covariance divides by period - ddof. beta: covariance / variance of the benchmark."),
    ],
    of: Annotated[Literal["prices", "returns"], Field(description="prices, or their relative changes")] = "prices",
    ddof: Annotated[
        Literal[0, 1], EXACT, Field(description="degrees of freedom taken off for covariance; pandas takes 1")
    ] = 0,
) -> Outputs:
    x, y = close, benchmark
    if of == "returns":
        x, y = (a.ratio(a.change(each), a.lag(each, 1), 0) for each in (close, benchmark))
    if statistic == "covariance":
        return a.covariance(x, y, period) * (period / (period - ddof))
    return (a.correlation if statistic == "correlation" else a.beta)(x, y, period)
