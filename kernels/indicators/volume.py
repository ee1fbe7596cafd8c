"""Declared indicators: what volume says."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from warpdesk_server.kernels.indicators import algebra as a
from warpdesk_server.kernels.indicators.algebra import Node
from warpdesk_server.kernels.indicators.indicator import Bars, Outputs, TwoBars, indicator, require_below, talib


def _flow(high: Node, low: Node, close: Node, volume: Node) -> Node:
    """Chaikin's money flow volume: volume times the place of the close in the bar, -1 to 1; 0 without a range."""
    return a.ratio((close - low) - (high - close), high - low, 0) * volume


@indicator(
    "On-balance volume: volume added where the close rises and taken away where it falls (Granville 1963).",
    obv="the balance",
    same_as=[talib("OBV", fixed={"convention": "talib"})],
)
def obv(
    close: Node,
    volume: Node,
    *,
    convention: Annotated[
        Literal["talib", "zero"], Field(description="talib: begins with the first bar's volume. zero: begins with 0.")
    ] = "talib",
) -> Outputs:
    last = _last(close)
    signed = a.where(close > last, volume, a.where(close < last, -volume, 0))
    if convention == "talib":
        signed = a.where_missing(last, volume, signed)
    return a.total(a.shown_with(a.from_start(signed), close))


@indicator(
    "Accumulation/distribution: the sum of money flow volumes (Chaikin).",
    ad="the sum",
    same_as=[talib("AD")],
)
def ad(high: Node, low: Node, close: Node, volume: Node) -> Outputs:
    return a.total(_flow(high, low, close, volume))


@indicator(
    "Chaikin oscillator: the fast less the slow exponential average of accumulation/distribution, both from its first "
    "number.",
    adosc="the difference",
    same_as=[talib("ADOSC", fast="fastperiod", slow="slowperiod")],
)
def adosc(high: Node, low: Node, close: Node, volume: Node, *, fast: TwoBars = 3, slow: TwoBars = 10) -> Outputs:
    require_below(fast, slow)
    line = a.total(_flow(high, low, close, volume))
    return a.shown_with(a.ema(line, fast, "tradingview") - a.ema(line, slow, "tradingview"), a.lowest(line, slow))


@indicator(
    "Chaikin money flow: money flow volume relative to volume over `period` bars, -1 to 1.",
    cmf="the flow",
    same_as=[talib("CMF", period="timeperiod")],
)
def cmf(high: Node, low: Node, close: Node, volume: Node, *, period: Bars = 20) -> Outputs:
    return a.ratio(a.sum_over(_flow(high, low, close, volume), period), a.sum_over(volume, period), 0)


@indicator(
    "Money flow index: an RSI of typical price times volume, 0 to 100 (Quong and Soudack 1989).",
    mfi="the index",
    same_as=[talib("MFI", period="timeperiod")],
)
def mfi(high: Node, low: Node, close: Node, volume: Node, *, period: TwoBars = 14) -> Outputs:
    price = a.average(high, low, close)
    flow, step = price * volume, a.change(price)
    up = a.sum_over(a.shown_with(a.where(step > 0, flow, 0), step), period)
    down = a.sum_over(a.shown_with(a.where(step < 0, flow, 0), step), period)
    return a.ratio(100 * up, up + down, 0)


@indicator(
    "Force index: the exponential average of the change of the close times volume (Elder 1993).",
    force_index="the average",
    same_as=[talib("EFI", period="timeperiod")],
)
def force_index(close: Node, volume: Node, *, period: Bars = 13) -> Outputs:
    return a.ema(a.change(close) * volume, period)


@indicator(
    "Market facilitation index: (high - low) / volume; 0 where there is no volume (Williams).",
    market_facilitation="the index",
    same_as=[talib("MARKETFI")],
)
def market_facilitation(high: Node, low: Node, volume: Node) -> Outputs:
    return a.ratio(high - low, volume, 0)


@indicator(
    "Price volume trend: the sum of volume times the relative change of the close.",
    pvt="the sum",
    same_as=[talib("PVT")],
)
def pvt(close: Node, volume: Node) -> Outputs:
    before = a.lag(close, 1)
    moved = a.ratio(close - before, before, 0) * volume
    return a.total(a.shown_with(a.from_start(a.where_missing(before, 0, moved)), close))


@indicator(
    "Relative volume: volume relative to the mean of the `period` bars before it.",
    relative_volume="the ratio",
    same_as=[talib("RVOL", period="timeperiod")],
)
def relative_volume(volume: Node, *, period: Bars = 20) -> Outputs:
    return a.ratio(volume, a.lag(a.mean(volume, period), 1), 0)


@indicator(
    "Average price weighed by volume since the first bar.",
    vwap="the average; NaN until something was traded",
    same_as=[talib("VWAP")],
)
def vwap(high: Node, low: Node, close: Node, volume: Node) -> Outputs:
    traded = a.average(high, low, close) * volume
    return a.ratio(a.total(traded), a.total(a.shown_with(volume, traded)))


@indicator(
    "Average price weighed by volume since the first bar of the session.",
    session_vwap="the average; NaN until something was traded in the session",
)
def session_vwap(high: Node, low: Node, close: Node, volume: Node, session: Node) -> Outputs:
    traded = a.average(high, low, close) * volume
    begins = a.where_missing(session, 0, a.opposite(a.equal(session, _last(session))))
    kept = a.from_start(a.where(begins, 0, 1))
    sums = [a.scan(kept, a.where_missing(traded, 0, x)) for x in (traded, volume)]
    return a.shown_with(a.ratio(sums[0], sums[1]), traded)


@indicator(
    "Williams' accumulation/distribution: the sum of how far closes lie from the true low where they rise, and from "
    "the true high where they fall.",
    wad="the sum",
    same_as=[talib("WAD")],
)
def wad(high: Node, low: Node, close: Node) -> Outputs:
    before = a.lag(close, 1)
    up, down = close - a.minimum(low, before), close - a.maximum(high, before)
    moved = a.where(close > before, up, a.where(close < before, down, 0))
    return a.total(a.shown_with(a.from_start(a.where_missing(before, 0, moved)), high + low + close))


def _index(close: Node, volume: Node, counts: Callable[[Node, Node], Node]) -> Node:
    """1000, multiplied by the relative change of the close at bars that count; a gap is passed over."""
    before, volume_before = _last(close), _last(volume)
    moved = a.where(counts(volume, volume_before), close / before, 1)
    factor = a.from_start(a.where_missing(before, 0, a.where_missing(close, 1, moved)))
    begun = a.from_start(a.where_missing(before, a.where_missing(close, 0, 1000), 0))
    return a.shown_with(a.scan(factor, begun), close)


def _last(x: Node) -> Node:
    """The last number before each bar."""
    return a.lag(a.latch(x, a.opposite(a.missing(x))), 1)


@indicator(
    "Negative volume index: 1000 times all relative changes of the close at bars of less volume than the last (Dysart, "
    "Fosback 1976).",
    nvi="the index",
    same_as=[talib("NVI")],
)
def nvi(close: Node, volume: Node) -> Outputs:
    return _index(close, volume, lambda now, before: now < before)


@indicator(
    "Positive volume index: 1000 times all relative changes of the close at bars of more volume than the last.",
    pvi="the index",
    same_as=[talib("PVI")],
)
def pvi(close: Node, volume: Node) -> Outputs:
    return _index(close, volume, lambda now, before: now > before)
