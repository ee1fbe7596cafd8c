"""The algebra of indicators: a graph of series, made of a few primitives, that every indicator is written in.

A node is a series: one number for each bar. Nodes are data; nothing is computed here, and nothing is compiled for a
graph. `plan.py` turns the nodes of some outputs into a program, which `program_cpu.py` runs on the CPU and
`program_gpu.py` on a GPU, with the same bytes.

The primitives are arithmetic bar by bar, whose operands may be earlier bars (`lag`), and loops: `mean`, `deviation`,
`follow`, `strength` and `cutler`, which are those of sma, bollinger, ema and rsi; `pair`, a covariance, correlation or
beta; `spread`, a mean distance; `fir`, a sum with weights; `quantile` and `count_below`, which go by the order of a
window's bars; `scan`, y <- a y + b from bar to bar; `ratchet` and `sar`, whose states go through comparisons. All else
is written in these.

Before a row there is nothing: NaN. A comparison is 1 or 0, and 0 where an operand is NaN.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from warpdesk_server.kernels.indicators.recurrence import ema_recurrence, rsi_recurrence

Number = float | int
COVARIANCE, CORRELATION, BETA = range(3)  # what a `pair` shows


@dataclass(frozen=True, eq=False)
class Node:
    """A node of an indicator's graph: its operation, the nodes it reads, and numbers such as a period.

    `delay` is how many bars later than its operands it has its first number; `early` that it has one as soon as its
    second operand has, which stands in for the others (`from_start`).
    """

    op: str
    args: "tuple[Node, ...]" = ()
    values: tuple[Number, ...] = ()
    name: str = ""
    delay: int = 0
    early: bool = False

    def __add__(self, other: "Node | Number") -> "Node":
        return Node("add", (self, node(other)))

    def __radd__(self, other: Number) -> "Node":
        return Node("add", (node(other), self))

    def __sub__(self, other: "Node | Number") -> "Node":
        return Node("sub", (self, node(other)))

    def __rsub__(self, other: Number) -> "Node":
        return Node("sub", (node(other), self))

    def __mul__(self, other: "Node | Number") -> "Node":
        return Node("mul", (self, node(other)))

    def __rmul__(self, other: Number) -> "Node":
        return Node("mul", (node(other), self))

    def __truediv__(self, other: "Node | Number") -> "Node":
        return Node("div", (self, node(other)))

    def __rtruediv__(self, other: Number) -> "Node":
        return Node("div", (node(other), self))

    def __neg__(self) -> "Node":
        return node(-0.0) - self

    def __lt__(self, other: "Node | Number") -> "Node":
        return Node("below", (self, node(other)))

    def __le__(self, other: "Node | Number") -> "Node":
        return Node("at_most", (self, node(other)))

    def __gt__(self, other: "Node | Number") -> "Node":
        return Node("below", (node(other), self))

    def __ge__(self, other: "Node | Number") -> "Node":
        return Node("at_most", (node(other), self))


def node(value: "Node | Number") -> Node:
    """The node of an indicator's graph for a number, which is the same at every bar; a node is returned as it is."""
    return value if isinstance(value, Node) else Node("constant", (), (float(value),))


NOTHING = node(math.nan)


def series(name: str) -> Node:
    """An input of an indicator: `close`, `high` and so on."""
    return Node("input", name=name)


def inputs_of(nodes: Iterable[Node]) -> set[str]:
    """The names of the inputs that some nodes read."""
    names, waiting, done = set[str](), list(nodes), set[int]()
    while waiting:
        node_ = waiting.pop()
        if id(node_) not in done:
            done.add(id(node_))
            waiting += node_.args
            names |= {node_.name} if node_.op == "input" else set()
    return names


# ---------------------------------------------------------------- bar by bar


def lag(x: Node, bars: int) -> Node:
    """The series `bars` >= 0 bars ago; NaN before the row. There is no way to look ahead."""
    if bars < 0:
        raise ValueError(f"a lag of {bars} bars would look ahead")
    return Node("lag", (x,), (bars,)) if bars else x


def change(x: Node, bars: int = 1) -> Node:
    return x - lag(x, bars)


def maximum(a: Node, b: Node | Number) -> Node:
    """The greater of two series at each bar; NaN where one is NaN, and of zeros of both signs the second."""
    return Node("max", (a, node(b)))


def minimum(a: Node, b: Node | Number) -> Node:
    """The smaller of two series at each bar, as `maximum`."""
    return Node("min", (a, node(b)))


def absolute(x: Node) -> Node:
    return Node("abs", (x,))


def root(x: Node) -> Node:
    """The square root of a series; NaN below zero."""
    return Node("sqrt", (x,))


def log(x: Node) -> Node:
    """The natural logarithm of a series; NaN at zero, below, and for denormals."""
    return Node("log", (x,))


def exp(x: Node) -> Node:
    """e to the power of a series; infinity above 709, 0 below -708."""
    return where(x > 709, math.inf, where(x < -708, 0, Node("exp", (x,))))


# atan(x) / x in powers of x^2 for |x| <= tan(pi / 8), interpolated at Chebyshev's nodes: good to 1.3e-18.
_ATAN = (
    1.0, -0.3333333333333312, 0.19999999999940893, -0.14285714279250245, 0.11111110744919658, -0.09090896809064027,
    0.07692045330902225, -0.06662951813629191, 0.05846878297330872, -0.05035102456601552, 0.03796525745386593,
    -0.017805397205419446,
)  # fmt: skip
_SINH = tuple(1 / math.factorial(power) for power in range(1, 18, 2))  # Taylor: 8e-18 of it is left out at 1


def _polynomial(x: Node, coefficients: Sequence[float]) -> Node:
    """c0 + c1 x + c2 x^2 ... by Horner's rule."""
    y = node(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        y = y * x + coefficient
    return y


def arctangent(x: Node) -> Node:
    """The angle, in radians, whose tangent is a series; by + - * / alone, so that it has the same bytes everywhere."""
    size = absolute(x)
    steep, middling = size > math.sqrt(2) + 1, size > math.sqrt(2) - 1
    turned = where(steep, -1 / size, where(middling, (size - 1) / (size + 1), size))
    base = where(steep, math.pi / 2, where(middling, math.pi / 4, 0))
    angle = base + turned * _polynomial(turned * turned, _ATAN)
    return where(x < 0, -angle, angle)


def hyperbolic_sine(x: Node) -> Node:
    """(e^x - e^-x) / 2; near 0 by Taylor's series."""
    far = _half_exp(absolute(x)) - exp(-absolute(x)) / 2
    return where(absolute(x) < 1, x * _polynomial(x * x, _SINH), where(x < 0, -far, far))


def hyperbolic_cosine(x: Node) -> Node:
    """(e^x + e^-x) / 2."""
    return _half_exp(absolute(x)) + exp(-absolute(x)) / 2


def _half_exp(x: Node) -> Node:
    """e^x / 2, also where e^x is too large."""
    root_of_it = exp(x / 2)
    return root_of_it / 2 * root_of_it


def hyperbolic_tangent(x: Node) -> Node:
    """sinh / cosh; away from 0, 1 - 2 / (e^2|x| + 1) with the sign of x."""
    far = 1 - 2 / (exp(2 * absolute(x)) + 1)
    return where(absolute(x) < 1, hyperbolic_sine(x) / hyperbolic_cosine(x), where(x < 0, -far, far))


def floor(x: Node) -> Node:
    """The greatest integer that is not above a series."""
    return Node("floor", (x,))


def equal(a: Node, b: Node | Number) -> Node:
    return Node("equal", (a, node(b)))


def missing(x: Node) -> Node:
    """1 where a series is NaN, else 0."""
    return where_missing(x, 1, 0)


def where_missing(x: Node, yes: Node | Number, no: Node | Number) -> Node:
    """`yes` where x is NaN, else `no`."""
    return Node("missing", (x, node(yes), node(no)))


def where(condition: Node, yes: Node | Number, no: Node | Number) -> Node:
    """`yes` where the condition is a number but 0, else `no`."""
    return Node("select", (condition, node(yes), node(no)))


def from_start(x: Node) -> Node:
    """A choice (`where`) that has a number as soon as what is chosen at first has."""
    return replace(x, early=True)


def both(a: Node, b: Node) -> Node:
    return Node("mul", (a, b))


def either(a: Node, b: Node) -> Node:
    return Node("max", (a, b))


def opposite(condition: Node) -> Node:
    return equal(condition, 0)


def ratio(a: Node | Number, b: Node, otherwise: Node | Number = math.nan) -> Node:
    """a / b, and `otherwise` where b is 0."""
    return Node("ratio", (node(a), b, node(otherwise)))


def shown_with(x: Node, other: Node) -> Node:
    """A series of which only the bars are shown at which another has a number."""
    return where_missing(other, NOTHING, x)


# ---------------------------------------------------------------- over the last n bars


def mean(x: Node, period: int) -> Node:
    """The mean of the last `period` bars: the operation `sma`, byte for byte."""
    return Node("mean", (x,), (period,), delay=period - 1)


def deviation(x: Node, period: int) -> Node:
    """The population deviation (ddof = 0) of the last `period` bars, as in the operation `bollinger`."""
    return Node("deviation", (x,), (period,), delay=period - 1)


def bands(x: Node, period: int, width: float) -> dict[str, Node]:
    """Bollinger's bands: the operation `bollinger`, byte for byte."""
    middle, reach = mean(x, period), width * deviation(x, period)
    return {"upper": middle + reach, "middle": middle, "lower": middle - reach}


Window = tuple[Node, ...]


def _doubled(one: Window, period: int, joined: Callable[[Window, Window, int, int], Window]) -> Window:
    """What describes the last `period` bars, made from what describes one bar.

    Windows of 1, 2, 4 ... bars are made by doubling, and those of the period's binary digits are joined, the longest
    and newest first. `joined` takes the newest bars, those before them, and how many each are.
    """
    levels, bars = [one], 1
    while 2 * bars <= period:
        levels.append(joined(levels[-1], tuple(lag(each, bars) for each in levels[-1]), bars, bars))
        bars *= 2
    window = levels[-1]
    for level in range(len(levels) - 2, -1, -1):
        if period >> level & 1:
            window = joined(window, tuple(lag(each, bars) for each in levels[level]), bars, 1 << level)
            bars += 1 << level
    return window


def sum_over(x: Node, period: int) -> Node:
    """The sum of the last `period` bars, NaN while one of them is.

    It is made by doubling. Nothing is subtracted, so nothing outside the window leaves a trace, and the error grows
    with the logarithm of the period.
    """
    return _doubled((x,), period, lambda newer, older, at, bars: (newer[0] + older[0],))[0]  # noqa: ARG005


def weighted_mean(x: Node, period: int) -> Node:
    """The mean of the last `period` bars with weights period, period - 1, ... 1 from the newest on."""
    plain, aged = _weighed(x, period)
    return x + (period * plain - aged) / (period * (period + 1) // 2)


def _weighed(x: Node, period: int) -> Window:
    """Sums of the differences to the newest of the last `period` bars, plain and weighed by their age."""

    def joined(newer: Window, older: Window, at: int, bars: int) -> Window:
        step, ages = lag(x, at) - x, at * bars + bars * (bars - 1) // 2
        return newer[0] + (older[0] + bars * step), newer[1] + (older[1] + (at * older[0] + ages * step))

    none = x - x  # of a window of one bar; 0, or NaN where x is
    return _doubled((none, none), period, joined)


def regression(x: Node, period: int) -> tuple[Node, Node]:
    """The line of least squares through the last `period` bars: its value in their middle, and its rise per bar."""
    plain, aged = _weighed(x, period)
    span = period * (period * period - 1)
    slope = (6 * (period - 1) * plain - 12 * aged) / span
    return x + plain / period, slope


def mean_deviation(x: Node, middle: Node, period: int) -> Node:
    """The mean distance of the last `period` bars from a number of the newest, such as their mean."""
    return Node("spread", (x, middle), (period,), delay=period - 1)


def covariance(x: Node, y: Node, period: int) -> Node:
    """The population covariance of the last `period` bars."""
    return Node("pair", (x, y), (period, COVARIANCE), delay=period - 1)


def correlation(x: Node, y: Node, period: int) -> Node:
    """The correlation of the last `period` bars; NaN where one series does not move."""
    return Node("pair", (x, y), (period, CORRELATION), delay=period - 1)


def beta(x: Node, y: Node, period: int) -> Node:
    """The covariance of the last `period` bars relative to the variance of y; NaN where y does not move."""
    return Node("pair", (x, y), (period, BETA), delay=period - 1)


def weighted_sum(x: Node, weights: Sequence[float]) -> Node:
    """The sum of the last bars times one weight each, the newest bar's first; added from the newest to the oldest."""
    return Node("fir", (x,), tuple(weights), delay=len(weights) - 1)


def order_statistic(x: Node, period: int, place: int, fraction: float = 0.0) -> Node:
    """The number at a place, from 0 on, among the last `period` bars in ascending order.

    With a `fraction`, so far on the way from there to the next. NaN while one of the bars is.
    """
    return Node("quantile", (x,), (period, place, fraction), delay=period - 1)


def quantile(x: Node, period: int, share: float) -> Node:
    """The number below which a `share`, 0 to 1, of the last `period` bars lies, on the straight line between two."""
    place = share * (period - 1)
    return order_statistic(x, period, math.floor(place), place - math.floor(place))


def count_below(x: Node, period: int, with_equal: bool = False) -> Node:
    """How many of the `period` bars before this one are below it, and with `with_equal` how many are at most it."""
    counted = Node("count_below", (x,), (period, int(with_equal)), delay=period)
    return shown_with(counted, highest(x, period + 1))


def central_moments(x: Node, period: int) -> tuple[Node, Node, Node]:
    """The second, third and fourth power of the distance from the mean of the last `period` bars, each summed.

    Two windows are joined by Pebay's formulas (2008), which subtract no large sums. Means are kept as differences to
    the newest bar, so that the accuracy does not depend on how far the bars are from 0.
    """

    def joined(newer: Window, older: Window, at: int, bars: int) -> Window:
        (mean_a, two_a, three_a, four_a), (mean_b, two_b, three_b, four_b), n = newer, older, at + bars
        apart = mean_b + (lag(x, at) - x) - mean_a
        step = apart / n
        square = step * step
        across = apart * step * (at * bars)
        return (
            mean_a + bars * step,
            two_a + two_b + across,
            three_a + three_b + (across * step * (at - bars) + 3 * step * (at * two_b - bars * two_a)),
            four_a
            + four_b
            + (
                across * square * (at * at - at * bars + bars * bars)
                + 6 * square * (at * at * two_b + bars * bars * two_a)
                + 4 * step * (at * three_b - bars * three_a)
            ),
        )

    none = x - x
    _, two, three, four = _doubled((none, none, none, none), period, joined)
    return two, three, four


def efficiency(x: Node, period: int) -> Node:
    """The change over `period` bars relative to the sum of all changes; 1 where nothing changed (Kaufman 1995)."""
    moved, way = absolute(change(x, period)), sum_over(absolute(change(x)), period)
    return shown_with(where(way <= moved, 1, moved / way), way)


def momentum_balance(x: Node, period: int) -> Node:
    """Gains less losses relative to both, by plain sums of `period` changes: -1 to 1, 0 where nothing moved."""
    step = change(x)
    gains, losses = (sum_over(maximum(side, 0), period) for side in (step, -step))
    return ratio(gains - losses, gains + losses, 0)


def after(x: Node, bars: int) -> Node:
    """A series without the first `bars` bars of each run."""
    return shown_with(x, highest(x, bars + 1)) if bars else x


def crosses(a: Node, b: Node) -> Node:
    """1 where a > b, and a <= b a bar before."""
    return both(a > b, lag(a, 1) <= lag(b, 1))


def _extreme(x: Node, period: int, better: Callable[[Node, Node], Node]) -> Node:
    bars = 1
    while 2 * bars <= period:
        x, bars = better(x, lag(x, bars)), 2 * bars
    return better(x, lag(x, period - bars)) if period > bars else x


def highest(x: Node, period: int) -> Node:
    """The highest of the last `period` bars, NaN while one of them is."""
    return _extreme(x, period, maximum)


def lowest(x: Node, period: int) -> Node:
    """The lowest of the last `period` bars, NaN while one of them is."""
    return _extreme(x, period, minimum)


def since_highest(x: Node, period: int) -> Node:
    """How many bars ago the highest of the last `period` bars was; the newest of equal ones counts."""
    best, age, bars = x, x - x, 1
    while bars < period:
        step = min(bars, period - bars)
        older = lag(best, step)
        age = where(best < older, lag(age, step) + step, age)
        best, bars = maximum(best, older), bars + step
    return shown_with(age, best)


def since_lowest(x: Node, period: int) -> Node:
    """How many bars ago the lowest of the last `period` bars was; the newest of equal ones counts."""
    return since_highest(-x, period)


# ---------------------------------------------------------------- from bar to bar


def ema(x: Node, period: int, convention: str = "talib", late: int = 0) -> Node:
    """The exponential average, alpha = 2 / (period + 1): the operation `ema`, byte for byte.

    It leaves out the first `late` bars of each run.
    """
    law = ema_recurrence(period, convention)
    return _follow(x, law.beta, law.warm, late)


def smoothed(x: Node, alpha: float, warm: int, late: int = 0) -> Node:
    """The exponential average of an alpha, from the mean of the first `warm` bars, as `ema`."""
    return _follow(x, 1 - alpha, warm, late)


def rma(x: Node, period: int, late: int = 0) -> Node:
    """Wilder's average, alpha = 1 / period, from the mean of the first `period` bars (Wilder 1978), as `ema`."""
    return _follow(x, (period - 1) / period, period, late)


def _follow(x: Node, beta: float, warm: int, late: int) -> Node:
    if not beta:
        return after(x, late)
    return Node("follow", (x,), (beta, warm, late), delay=warm - 1 + late)


def strength(x: Node, period: int, convention: str = "talib", flat: float = 50.0) -> Node:
    """The relative strength index: the operation `rsi`, byte for byte."""
    if convention == "cutler":
        return Node("cutler", (x,), (period, flat), delay=period)
    law = rsi_recurrence(period, convention)
    return Node("strength", (x,), (law.beta, law.warm, law.valid, law.first, flat), delay=period)


def scan(a: Node, b: Node) -> Node:
    """y <- a y + b from bar to bar, from y = 0; where a is 0, y is b whatever it was."""
    return Node("scan", (a, b))


def run_length(x: Node) -> Node:
    """How many bars in a row, up to this one, have a number."""
    present = where_missing(x, 0, 1)
    return scan(present, present)


def wilder_sum(x: Node, there: Node, period: int, warm: int) -> Node:
    """Wilder's sum: the plain sum of the first `warm` bars of a run of `there`, then y <- y (period - 1) / period + x.

    It has numbers for all bars (`from_bar`).
    """
    run = run_length(there)
    decay = where(run <= 1, 0, where(run <= warm, 1, (period - 1) / period))
    return scan(decay, where_missing(there, 0, x))


def from_bar(bar: int, x: Node, there: Node) -> Node:
    """A series from a bar of each run of `there` on, counted from 1."""
    return replace(where(run_length(there) >= bar, x, NOTHING), delay=bar - 1)


def total(x: Node) -> Node:
    """The sum of all bars so far; a bar without a number adds nothing and has none."""
    return shown_with(scan(node(1), where_missing(x, 0, x)), x)


def latch(value: Node, when: Node, first: Node | Number = math.nan) -> Node:
    """The value at the last bar at which `when` was not 0, and `first` before there was one."""
    begun = scan(node(1), when)
    held = where(equal(begun, 0), first, scan(opposite(when), where(when, value, 0)))
    return from_start(held) if not isinstance(first, float) or first == first else held


def ratchet(bound: Node, x: Node) -> Node:
    """An upper bound that only falls, until the series has been above it: y <- bound where bound < y or where x of the
    bar before is above y, else y. A NaN begins anew."""
    return Node("ratchet", (bound, x))


Pace = tuple[float, float, float]  # of a parabolic stop: at first, what an extreme adds, and at most


def parabolic(
    high: Node, low: Node, rising: Pace, falling: Pace, apart: float = 0.0, start: float = 0.0, signed: bool = False
) -> Node:
    """Wilder's parabolic stop and reverse (Wilder 1978), from the second bar of a run on; a NaN begins anew.

    At a turn the stop is moved away from the bars by its share `apart`. A run starts on the long side with the stop
    `start` if that is above 0, on the short side with -`start` if it is below. With `signed` the stop of a short
    position is shown as a negative number.
    """
    return Node("sar", (high, low), (*rising, *falling, apart, start, float(signed)), delay=1)


def average(*nodes: Node) -> Node:
    """The mean of some series at each bar, added from the first to the last."""
    total_ = nodes[0]
    for other in nodes[1:]:
        total_ = total_ + other
    return total_ / len(nodes)


def chain(step: Callable[[Node], Node], x: Node, times: int) -> Sequence[Node]:
    """A step applied once, twice, and so on: ema, ema of ema."""
    results = []
    for _ in range(times):
        x = step(x)
        results.append(x)
    return results
