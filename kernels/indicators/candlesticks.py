"""The declared indicator `candlestick`: patterns of one to five bars, as TA-Lib defines and measures them.

A body is long, a shadow short and so on by comparison with the bars before it: the mean of a range over the last 10
bars (5 for near, far and equal), times a factor. These are TA-Lib's default settings (ta_global.c).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Annotated, Any, Literal

from pydantic import Field

from warpdesk_server.kernels.indicators import algebra as a
from warpdesk_server.kernels.indicators.algebra import Node
from warpdesk_server.kernels.indicators.indicator import Outputs, indicator, talib

PATTERNS: dict[str, Callable[..., Node]] = {}
_DEEP = (
    "abandoned_baby", "dark_cloud_cover", "evening_doji_star", "evening_star", "mat_hold", "morning_doji_star",
    "morning_star",
)  # fmt: skip


@dataclass(frozen=True)
class Bars:
    """The bars some bars ago, with what patterns ask of them."""

    open: Node
    high: Node
    low: Node
    close: Node
    ago: int = 0

    def back(self, bars: int) -> "Bars":
        return Bars(self.open, self.high, self.low, self.close, self.ago + bars)

    def _then(self, x: Node) -> Node:
        return a.lag(x, self.ago)

    def _usual(self, reach: Node, bars: int, factor: float) -> Node:
        """The mean of a range over the bars before, times a factor."""
        return self._then(a.lag(a.sum_over(reach, bars), 1) * (factor / bars))

    @cached_property
    def o(self) -> Node:
        return self._then(self.open)

    @cached_property
    def h(self) -> Node:
        return self._then(self.high)

    @cached_property
    def l(self) -> Node:  # noqa: E743
        return self._then(self.low)

    @cached_property
    def c(self) -> Node:
        return self._then(self.close)

    @cached_property
    def top(self) -> Node:
        """The upper end of the body."""
        return a.maximum(self.o, self.c)

    @cached_property
    def bottom(self) -> Node:
        return a.minimum(self.o, self.c)

    @cached_property
    def body(self) -> Node:
        return a.absolute(self.c - self.o)

    @cached_property
    def upper(self) -> Node:
        return self.h - self.top

    @cached_property
    def lower(self) -> Node:
        return self.bottom - self.l

    @cached_property
    def white(self) -> Node:
        return self.c >= self.o

    @cached_property
    def black(self) -> Node:
        return self.c < self.o

    @cached_property
    def side(self) -> Node:
        return a.where(self.white, 1, -1)

    @property
    def _body(self) -> Node:
        return a.absolute(self.close - self.open)

    @property
    def _shadows(self) -> Node:
        return (self.high - self.low) - self._body

    @cached_property
    def long(self) -> Node:
        return self.body > self._usual(self._body, 10, 1)

    @cached_property
    def usual_body(self) -> Node:
        return self._usual(self._body, 10, 1)

    @cached_property
    def short(self) -> Node:
        return self.body < self.usual_body

    @cached_property
    def not_long(self) -> Node:
        return self.body <= self.usual_body

    @cached_property
    def doji(self) -> Node:
        return self.body <= self._usual(self.high - self.low, 10, 0.1)

    @cached_property
    def tiny(self) -> Node:
        """A very short shadow."""
        return self._usual(self.high - self.low, 10, 0.1)

    @cached_property
    def brief(self) -> Node:
        """A short shadow: half the mean of both."""
        return self._usual(self._shadows, 10, 0.5)

    @cached_property
    def near(self) -> Node:
        return self._usual(self.high - self.low, 5, 0.2)

    @cached_property
    def far(self) -> Node:
        return self._usual(self.high - self.low, 5, 0.6)

    @cached_property
    def same(self) -> Node:
        return self._usual(self.high - self.low, 5, 0.05)

    @cached_property
    def flush_top(self) -> Node:
        return self.upper < self.tiny

    @cached_property
    def flush_bottom(self) -> Node:
        return self.lower < self.tiny

    def above(self, other: "Bars") -> Node:
        """Whether the body lies above another with a gap."""
        return self.bottom > other.top

    def below(self, other: "Bars") -> Node:
        return self.top < other.bottom

    def inside(self, other: "Bars") -> Node:
        """Whether the body lies within another."""
        return every(self.top < other.top, self.bottom > other.bottom)


def every(*conditions: Node) -> Node:
    return reduce(a.both, conditions)


def some(*conditions: Node) -> Node:
    return reduce(a.either, conditions)


def about(x: Node, y: Node, reach: Node) -> Node:
    """Whether two numbers are at most `reach` apart."""
    return every(x <= y + reach, x >= y - reach)


def either_way(up: Node, down: Node) -> Node:
    """100 where it points up, -100 where down, else 0."""
    return a.where(up, 100, a.where(down, -100, 0))


def pattern(build: Callable[..., Node]) -> Callable[..., Node]:
    PATTERNS[build.__name__] = build
    return build


def bullish(condition: Node) -> Node:
    return a.where(condition, 100, 0)


def bearish(condition: Node) -> Node:
    return a.where(condition, -100, 0)


def by_side(condition: Node, side: Node) -> Node:
    return a.where(condition, 100 * side, 0)


# ---------------------------------------------------------------- one bar


@pattern
def doji(x: Bars) -> Node:
    return bullish(x.doji)


@pattern
def dragonfly_doji(x: Bars) -> Node:
    return bullish(every(x.doji, x.flush_top, x.lower > x.tiny))


@pattern
def gravestone_doji(x: Bars) -> Node:
    return bullish(every(x.doji, x.flush_bottom, x.upper > x.tiny))


@pattern
def long_legged_doji(x: Bars) -> Node:
    return bullish(every(x.doji, some(x.lower > x.body, x.upper > x.body)))


@pattern
def rickshaw_man(x: Bars) -> Node:
    middle = x.l + (x.h - x.l) / 2
    centred = every(x.bottom <= middle + x.near, x.top >= middle - x.near)
    return bullish(every(x.doji, x.lower > x.body, x.upper > x.body, centred))


@pattern
def takuri(x: Bars) -> Node:
    return bullish(every(x.doji, x.flush_top, x.lower > 2 * x.body))


@pattern
def belt_hold(x: Bars) -> Node:
    return by_side(every(x.long, a.where(x.white, x.flush_bottom, x.flush_top)), x.side)


@pattern
def closing_marubozu(x: Bars) -> Node:
    return by_side(every(x.long, a.where(x.white, x.flush_top, x.flush_bottom)), x.side)


@pattern
def marubozu(x: Bars) -> Node:
    return by_side(every(x.long, x.flush_top, x.flush_bottom), x.side)


@pattern
def long_line(x: Bars) -> Node:
    return by_side(every(x.long, x.upper < x.brief, x.lower < x.brief), x.side)


@pattern
def short_line(x: Bars) -> Node:
    return by_side(every(x.short, x.upper < x.brief, x.lower < x.brief), x.side)


@pattern
def spinning_top(x: Bars) -> Node:
    return by_side(every(x.short, x.upper > x.body, x.lower > x.body), x.side)


@pattern
def high_wave(x: Bars) -> Node:
    return by_side(every(x.short, x.upper > 2 * x.body, x.lower > 2 * x.body), x.side)


# ---------------------------------------------------------------- two bars


@pattern
def hammer(x: Bars) -> Node:
    y = x.back(1)
    return bullish(every(x.short, x.lower > x.body, x.flush_top, x.bottom <= y.l + y.near))


@pattern
def hanging_man(x: Bars) -> Node:
    y = x.back(1)
    return bearish(every(x.short, x.lower > x.body, x.flush_top, x.bottom >= y.h - y.near))


@pattern
def inverted_hammer(x: Bars) -> Node:
    return bullish(every(x.short, x.upper > x.body, x.flush_bottom, x.below(x.back(1))))


@pattern
def shooting_star(x: Bars) -> Node:
    return bearish(every(x.short, x.upper > x.body, x.flush_bottom, x.above(x.back(1))))


@pattern
def counterattack(x: Bars) -> Node:
    y = x.back(1)
    return by_side(every(a.equal(y.side, -x.side), y.long, x.long, about(x.c, y.c, y.same)), x.side)


@pattern
def dark_cloud_cover(x: Bars, penetration: float) -> Node:
    y = x.back(1)
    return bearish(every(y.white, y.long, x.black, x.o > y.h, x.c > y.o, x.c < y.c - y.body * penetration))


@pattern
def piercing(x: Bars) -> Node:
    y = x.back(1)
    return bullish(every(y.black, y.long, x.white, x.long, x.o < y.l, x.c < y.o, x.c > y.c + y.body * 0.5))


@pattern
def doji_star(x: Bars) -> Node:
    y = x.back(1)
    return by_side(every(y.long, x.doji, a.where(y.white, x.above(y), x.below(y))), -y.side)


@pattern
def engulfing(x: Bars) -> Node:
    y = x.back(1)
    up = every(x.white, y.black, some(every(x.c >= y.o, x.o < y.c), every(x.c > y.o, x.o <= y.c)))
    down = every(x.black, y.white, some(every(x.o >= y.c, x.c < y.o), every(x.o > y.c, x.c <= y.o)))
    whole = a.opposite(some(a.equal(x.o, y.c), a.equal(x.c, y.o)))
    return a.where(some(up, down), a.where(whole, 100, 80) * x.side, 0)


def _harami(x: Bars, small: Node) -> Node:
    y = x.back(1)
    within = every(x.top <= y.top, x.bottom >= y.bottom)
    return a.where(every(y.long, small, within), a.where(x.inside(y), 100, 80) * -y.side, 0)


@pattern
def harami(x: Bars) -> Node:
    return _harami(x, x.not_long)


@pattern
def harami_cross(x: Bars) -> Node:
    return _harami(x, x.doji)


@pattern
def homing_pigeon(x: Bars) -> Node:
    y = x.back(1)
    return bullish(every(y.black, x.black, y.long, x.not_long, x.o < y.o, x.c > y.c))


@pattern
def in_neck(x: Bars) -> Node:
    y = x.back(1)
    return bearish(every(y.black, y.long, x.white, x.o < y.l, x.c <= y.c + y.same, x.c >= y.c))


@pattern
def on_neck(x: Bars) -> Node:
    y = x.back(1)
    return bearish(every(y.black, y.long, x.white, x.o < y.l, about(x.c, y.l, y.same)))


@pattern
def thrusting(x: Bars) -> Node:
    y = x.back(1)
    return bearish(every(y.black, y.long, x.white, x.o < y.l, x.c > y.c + y.same, x.c <= y.c + y.body * 0.5))


def _kick(x: Bars) -> Node:
    y = x.back(1)
    bare = every(*(part for bar in (x, y) for part in (bar.long, bar.flush_top, bar.flush_bottom)))
    return every(a.equal(y.side, -x.side), bare, a.where(y.black, x.l > y.h, x.h < y.l))


@pattern
def kicking(x: Bars) -> Node:
    return by_side(_kick(x), x.side)


@pattern
def kicking_by_length(x: Bars) -> Node:
    y = x.back(1)
    return by_side(_kick(x), a.where(x.body > y.body, x.side, y.side))


@pattern
def matching_low(x: Bars) -> Node:
    y = x.back(1)
    return bullish(every(y.black, x.black, about(x.c, y.c, y.same)))


@pattern
def separating_lines(x: Bars) -> Node:
    y = x.back(1)
    flush = a.where(x.white, x.flush_bottom, x.flush_top)
    return by_side(every(a.equal(y.side, -x.side), about(x.o, y.o, y.same), x.long, flush), x.side)


# ---------------------------------------------------------------- three bars


@pattern
def two_crows(x: Bars) -> Node:
    y, z = x.back(1), x.back(2)
    opens = every(x.o < y.o, x.o > y.c)
    return bearish(every(z.white, z.long, y.black, y.above(z), x.black, opens, x.c > z.o, x.c < z.c))


@pattern
def upside_gap_two_crows(x: Bars) -> Node:
    y, z = x.back(1), x.back(2)
    ends = every(x.black, x.o > y.o, x.c < y.c, x.c > z.c)
    return bearish(every(z.white, z.long, y.black, y.not_long, y.above(z), ends))


@pattern
def three_inside(x: Bars) -> Node:
    y, z = x.back(1), x.back(2)
    turns = some(every(z.white, x.black, x.c < z.o), every(z.black, x.white, x.c > z.o))
    return by_side(every(z.long, y.not_long, y.inside(z), turns), -z.side)


@pattern
def three_outside(x: Bars) -> Node:
    y, z = x.back(1), x.back(2)
    up = every(y.white, z.black, y.c > z.o, y.o < z.c, x.c > y.c)
    return either_way(up, every(y.black, z.white, y.o > z.c, y.c < z.o, x.c < y.c))


@pattern
def three_stars_in_the_south(x: Bars) -> Node:
    y, z = x.back(1), x.back(2)
    first = every(z.black, z.long, z.lower > z.body)
    second = every(y.black, y.body < z.body, y.o > z.c, y.o <= z.h, y.l < z.c, y.l >= z.l, y.lower > y.tiny)
    third = every(x.black, x.short, x.flush_bottom, x.flush_top, x.l > y.l, x.h < y.h)
    return bullish(every(first, second, third))


@pattern
def three_white_soldiers(x: Bars) -> Node:
    y, z = x.back(1), x.back(2)
    white = every(*(every(bar.white, bar.flush_top) for bar in (x, y, z)))
    rising = every(x.c > y.c, y.c > z.c, y.o > z.o, y.o <= z.c + z.near, x.o > y.o, x.o <= y.c + y.near)
    return bullish(every(white, rising, y.body > z.body - z.far, x.body > y.body - y.far, x.body > x.usual_body))


@pattern
def identical_three_crows(x: Bars) -> Node:
    y, z = x.back(1), x.back(2)
    black = every(*(every(bar.black, bar.flush_bottom) for bar in (x, y, z)))
    return bearish(every(black, z.c > y.c, y.c > x.c, about(y.o, z.c, z.same), about(x.o, y.c, y.same)))


@pattern
def abandoned_baby(x: Bars, penetration: float) -> Node:
    y, z = x.back(1), x.back(2)
    down = every(z.white, x.black, x.c < z.c - z.body * penetration, y.l > z.h, x.h < y.l)
    up = every(z.black, x.white, x.c > z.c + z.body * penetration, y.h < z.l, x.l > y.h)
    return by_side(every(z.long, y.doji, x.body > x.usual_body, some(up, down)), x.side)


def _evening(x: Bars, star: Node, penetration: float) -> Node:
    y, z = x.back(1), x.back(2)
    ends = every(x.body > x.usual_body, x.black, x.c < z.c - z.body * penetration)
    return bearish(every(z.long, z.white, star, y.above(z), ends))


def _morning(x: Bars, star: Node, penetration: float) -> Node:
    y, z = x.back(1), x.back(2)
    ends = every(x.body > x.usual_body, x.white, x.c > z.c + z.body * penetration)
    return bullish(every(z.long, z.black, star, y.below(z), ends))


@pattern
def evening_doji_star(x: Bars, penetration: float) -> Node:
    return _evening(x, x.back(1).doji, penetration)


@pattern
def evening_star(x: Bars, penetration: float) -> Node:
    return _evening(x, x.back(1).not_long, penetration)


@pattern
def morning_doji_star(x: Bars, penetration: float) -> Node:
    return _morning(x, x.back(1).doji, penetration)


@pattern
def morning_star(x: Bars, penetration: float) -> Node:
    return _morning(x, x.back(1).not_long, penetration)


@pattern
def side_by_side_white(x: Bars) -> Node:
    y, z = x.back(1), x.back(2)
    up, down = every(y.above(z), x.above(z)), every(y.below(z), x.below(z))
    alike = every(y.white, x.white, about(x.body, y.body, y.near), about(x.o, y.o, y.same))
    return either_way(every(up, alike), every(down, alike))


@pattern
def stick_sandwich(x: Bars) -> Node:
    y, z = x.back(1), x.back(2)
    return bullish(every(z.black, y.white, x.black, y.l > z.c, about(x.c, z.c, z.same)))


@pattern
def tasuki_gap(x: Bars) -> Node:
    y, z = x.back(1), x.back(2)
    alike = a.absolute(y.body - x.body) < y.near
    up = every(y.above(z), y.white, x.black, x.o < y.c, x.o > y.o, x.c < y.o, x.c > z.top, alike)
    down = every(y.below(z), y.black, x.white, x.o < y.o, x.o > y.c, x.c > y.o, x.c < z.bottom, alike)
    return either_way(up, down)


@pattern
def tristar(x: Bars) -> Node:
    y, z = x.back(1), x.back(2)
    small = z._usual(x.high - x.low, 10, 0.1)
    dojis = every(z.body <= small, y.body <= small, x.body <= small)
    return either_way(every(dojis, y.below(z), x.bottom > y.bottom), every(dojis, y.above(z), x.top < y.top))


@pattern
def unique_three_river(x: Bars) -> Node:
    y, z = x.back(1), x.back(2)
    second = every(y.black, y.c > z.c, y.o <= z.o, y.l < z.l)
    return bullish(every(z.long, z.black, second, x.short, x.white, x.o > y.l))


@pattern
def side_gap_three_methods(x: Bars) -> Node:
    y, z = x.back(1), x.back(2)
    colours = every(a.equal(z.side, y.side), a.equal(y.side, -x.side))
    closes = every(x.o < y.top, x.o > y.bottom, x.c < z.top, x.c > z.bottom)
    return by_side(every(colours, closes, a.where(z.white, y.above(z), y.below(z))), z.side)


@pattern
def advance_block(x: Bars) -> Node:
    y, z = x.back(1), x.back(2)
    white = every(x.white, y.white, z.white, x.c > y.c, y.c > z.c, z.long, z.upper < z.brief)
    opens = every(y.o > z.o, y.o <= z.c + z.near, x.o > y.o, x.o <= y.c + y.near)
    tires = some(
        every(y.body < z.body - z.far, x.body < y.body + y.near),
        x.body < y.body - y.far,
        every(x.body < y.body, y.body < z.body, some(x.upper > x.brief, y.upper > y.brief)),
        every(x.body < y.body, x.upper > x.body),
    )
    return bearish(every(white, opens, tires))


@pattern
def stalled(x: Bars) -> Node:
    y, z = x.back(1), x.back(2)
    white = every(x.white, y.white, z.white, x.c > y.c, y.c > z.c, z.long, y.long, y.flush_top)
    return bearish(every(white, y.o > z.o, y.o <= z.c + z.near, x.short, x.o >= y.c - x.body - y.near))


def _confirmed(x: Bars, up: Node, down: Node) -> Node:
    """A pattern of the bar, or twice as much at the first of the next three bars that confirms it."""
    found = either_way(up, down)
    none, result = a.equal(found, 0), found
    earlier: list[Node] = []  # whether the pattern so many bars ago is confirmed by now
    for ago in (1, 2, 3):
        then = a.lag(found, ago)
        meets = some(every(then > 0, x.c > a.lag(x.h, ago + 1)), every(then < 0, x.c < a.lag(x.l, ago + 1)))
        quiet = [a.lag(none, bars) for bars in range(1, ago)]
        first = every(none, meets, *quiet, *(a.opposite(a.lag(each, ago - at)) for at, each in enumerate(earlier, 1)))
        result = a.where(first, 2 * then, result)
        earlier.append(meets)
    return result


@pattern
def hikkake(x: Bars) -> Node:
    y, z = x.back(1), x.back(2)
    inside = every(y.h < z.h, y.l > z.l)
    return _confirmed(x, every(inside, x.h < y.h, x.l < y.l), every(inside, x.h > y.h, x.l > y.l))


@pattern
def modified_hikkake(x: Bars) -> Node:
    y, z, first = x.back(1), x.back(2), x.back(3)
    inside = every(z.h < first.h, z.l > first.l, y.h < z.h, y.l > z.l)
    up = every(inside, x.h < y.h, x.l < y.l, z.c <= z.l + z.near)
    return _confirmed(x, up, every(inside, x.h > y.h, x.l > y.l, z.c >= z.h - z.near))


# ---------------------------------------------------------------- four and five bars


@pattern
def three_black_crows(x: Bars) -> Node:
    y, z, first = x.back(1), x.back(2), x.back(3)
    black = every(*(every(bar.black, bar.flush_bottom) for bar in (x, y, z)))
    opens = every(y.o < z.o, y.o > z.c, x.o < y.o, x.o > y.c)
    return bearish(every(first.white, black, opens, first.h > z.c, z.c > y.c, y.c > x.c))


@pattern
def three_line_strike(x: Bars) -> Node:
    y, z, first = x.back(1), x.back(2), x.back(3)
    colours = every(a.equal(first.side, z.side), a.equal(z.side, y.side), a.equal(x.side, -y.side))
    opens = every(
        *(every(later.o >= bar.bottom - bar.near, later.o <= bar.top + bar.near) for later, bar in ((z, first), (y, z)))
    )
    up = every(y.white, y.c > z.c, z.c > first.c, x.o > y.c, x.c < first.o)
    down = every(y.black, y.c < z.c, z.c < first.c, x.o < y.c, x.c > first.o)
    return by_side(every(colours, opens, some(up, down)), y.side)


@pattern
def concealing_baby_swallow(x: Bars) -> Node:
    y, z, first = x.back(1), x.back(2), x.back(3)
    black = every(*(bar.black for bar in (x, y, z, first)))
    bare = every(*(every(bar.flush_top, bar.flush_bottom) for bar in (first, z)))
    return bullish(every(black, bare, y.below(z), y.upper > y.tiny, y.h > z.c, x.h > y.h, x.l < y.l))


@pattern
def breakaway(x: Bars) -> Node:
    one, two, three, four = x.back(4), x.back(3), x.back(2), x.back(1)
    colours = every(a.equal(one.side, two.side), a.equal(two.side, four.side), a.equal(four.side, -x.side))
    falls = every(three.h < two.h, three.l < two.l, four.h < three.h, four.l < three.l)
    rises = every(three.h > two.h, three.l > two.l, four.h > three.h, four.l > three.l)
    up = every(one.black, two.below(one), falls, x.c > two.o, x.c < one.c)
    down = every(one.white, two.above(one), rises, x.c < two.o, x.c > one.c)
    return by_side(every(one.long, colours, some(up, down)), x.side)


@pattern
def ladder_bottom(x: Bars) -> Node:
    one, two, three, four = x.back(4), x.back(3), x.back(2), x.back(1)
    falls = every(one.black, two.black, three.black, one.o > two.o, two.o > three.o, one.c > two.c, two.c > three.c)
    return bullish(every(falls, four.black, four.upper > four.tiny, x.white, x.o > four.o, x.c > four.h))


@pattern
def mat_hold(x: Bars, penetration: float) -> Node:
    one, two, three, four = x.back(4), x.back(3), x.back(2), x.back(1)
    bodies = every(one.long, two.short, three.short, four.short, one.white, two.black, x.white, two.above(one))
    lowest = one.c - one.body * penetration
    falls = every(
        three.bottom < one.c, four.bottom < one.c, three.bottom > lowest, four.bottom > lowest, three.top < two.o,
        four.top < three.top,
    )  # fmt: skip
    return bullish(every(bodies, falls, x.o > four.c, x.c > a.maximum(a.maximum(two.h, three.h), four.h)))


@pattern
def rise_fall_three_methods(x: Bars) -> Node:
    one, small = x.back(4), (x.back(3), x.back(2), x.back(1))
    two, three, four = small
    colours = every(
        a.equal(one.side, -two.side), a.equal(two.side, three.side), a.equal(three.side, four.side),
        a.equal(four.side, -x.side),
    )  # fmt: skip
    within = every(*(every(bar.short, bar.bottom < one.h, bar.top > one.l) for bar in small))
    up = one.side
    steps = every(three.c * up < two.c * up, four.c * up < three.c * up, x.o * up > four.c * up, x.c * up > one.c * up)
    return by_side(every(one.long, x.long, colours, within, steps), up)


_TALIB = {
    "ADVANCEBLOCK": "advance_block", "HIKKAKE": "hikkake", "HIKKAKEMOD": "modified_hikkake", "MATHOLD": "mat_hold",
    "RISEFALL3METHODS": "rise_fall_three_methods", "STALLEDPATTERN": "stalled",
    "2CROWS": "two_crows", "3BLACKCROWS": "three_black_crows", "3INSIDE": "three_inside",
    "3LINESTRIKE": "three_line_strike", "3OUTSIDE": "three_outside", "3STARSINSOUTH": "three_stars_in_the_south",
    "3WHITESOLDIERS": "three_white_soldiers", "ABANDONEDBABY": "abandoned_baby", "BELTHOLD": "belt_hold",
    "BREAKAWAY": "breakaway", "CLOSINGMARUBOZU": "closing_marubozu", "CONCEALBABYSWALL": "concealing_baby_swallow",
    "COUNTERATTACK": "counterattack", "DARKCLOUDCOVER": "dark_cloud_cover", "DOJI": "doji", "DOJISTAR": "doji_star",
    "DRAGONFLYDOJI": "dragonfly_doji", "ENGULFING": "engulfing", "EVENINGDOJISTAR": "evening_doji_star",
    "EVENINGSTAR": "evening_star", "GAPSIDESIDEWHITE": "side_by_side_white", "GRAVESTONEDOJI": "gravestone_doji",
    "HAMMER": "hammer", "HANGINGMAN": "hanging_man", "HARAMI": "harami", "HARAMICROSS": "harami_cross",
    "HIGHWAVE": "high_wave", "HOMINGPIGEON": "homing_pigeon", "IDENTICAL3CROWS": "identical_three_crows",
    "INNECK": "in_neck", "INVERTEDHAMMER": "inverted_hammer", "KICKING": "kicking",
    "KICKINGBYLENGTH": "kicking_by_length", "LADDERBOTTOM": "ladder_bottom", "LONGLEGGEDDOJI": "long_legged_doji",
    "LONGLINE": "long_line", "MARUBOZU": "marubozu", "MATCHINGLOW": "matching_low",
    "MORNINGDOJISTAR": "morning_doji_star", "MORNINGSTAR": "morning_star", "ONNECK": "on_neck", "PIERCING": "piercing",
    "RICKSHAWMAN": "rickshaw_man", "SEPARATINGLINES": "separating_lines", "SHOOTINGSTAR": "shooting_star",
    "SHORTLINE": "short_line", "SPINNINGTOP": "spinning_top", "STICKSANDWICH": "stick_sandwich", "TAKURI": "takuri",
    "TASUKIGAP": "tasuki_gap", "THRUSTING": "thrusting", "TRISTAR": "tristar", "UNIQUE3RIVER": "unique_three_river",
    "UPSIDEGAP2CROWS": "upside_gap_two_crows", "XSIDEGAP3METHODS": "side_gap_three_methods",
}  # fmt: skip
_NAMES: Any = Literal[tuple(sorted(PATTERNS))]


@indicator(
    "A candlestick pattern, by TA-Lib's definitions and its default measures of long, short, near and equal.",
    candlestick="100 where it points up, -100 where down, 80 and -80 where ends are equal, 200 and -200 where a "
    "hikkake is confirmed, else 0",
    same_as=[
        talib(
            f"CDL{name}", **({"penetration": "penetration"} if ours in _DEEP else {}), outputs=("integer",),
            fixed={"pattern": ours},
        )
        for name, ours in _TALIB.items()
    ],
    example={"pattern": "engulfing"},
)  # fmt: skip
def candlestick(
    open: Node,  # noqa: A002
    high: Node,
    low: Node,
    close: Node,
    *,
    pattern: Annotated[_NAMES, Field(description="the pattern that is looked for")],
    penetration: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description=f"how far into the first body the last must close, as a part of it: {', '.join(_DEEP)}",
        ),
    ] = 0.3,
) -> Outputs:
    bars = Bars(open, high, low, close)
    own = {"penetration": penetration} if pattern in _DEEP else {}
    return a.shown_with(PATTERNS[pattern](bars, **own), a.lag(a.sum_over(high - low, 10), 1) + close - open)
