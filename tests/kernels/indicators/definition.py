"""What a graph of the algebra means: each node bar by bar, in plain Python, slow, sums by math.fsum.

In floats, or in as many digits as wanted (test_exactness.py).
"""

from collections.abc import Mapping
from itertools import pairwise
from math import copysign, exp, floor, fsum, isnan, log, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.indicators.algebra import CORRELATION, COVARIANCE, Node

Numbers = list[float]
number: Any = float  # what the inputs and constants become


def evaluate(outputs: Mapping[str, Node], inputs: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The numbers of some nodes for inputs of one row."""
    time, done = len(next(iter(inputs.values()))), dict[int, Numbers]()

    def of(node: Node) -> Numbers:
        if id(node) not in done:
            done[id(node)] = _evaluated(node, [of(arg) for arg in node.args], inputs, time)
        return done[id(node)]

    return {name: np.array(of(node)) for name, node in outputs.items()}


def _evaluated(node: Node, args: list[Numbers], inputs: Mapping[str, Any], time: int) -> Numbers:
    if node.op == "input":
        return [number(each) for each in inputs[node.name]]
    if node.op == "constant":
        return [number(node.values[0])] * time
    if node.op == "lag":
        bars = int(node.values[0])
        return [nan] * min(bars, time) + args[0][: max(time - bars, 0)]
    if node.op in _BAR_BY_BAR:
        return [_BAR_BY_BAR[node.op](*bar) for bar in zip(*args, strict=True)]
    return _LOOPS[node.op](node.values, *args)


def _quotient(a: float, b: float) -> float:
    if b != 0:
        return a / b
    return nan if a == 0 or isnan(a) or isnan(b) else copysign(float("inf"), a) * copysign(1, b)


_BAR_BY_BAR: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _quotient,
    "abs": abs,
    "sqrt": lambda a: sqrt(a) if a >= 0 else nan,
    "log": lambda a: log(a) if a > 0 else nan,
    "exp": lambda a: a if isnan(a) else exp(min(max(a, -708.0), 709.0)),
    "floor": lambda a: a if isnan(a) else float(floor(a)),
    "max": lambda a, b: nan if isnan(a) or isnan(b) else max(a, b),
    "min": lambda a, b: nan if isnan(a) or isnan(b) else min(a, b),
    "below": lambda a, b: float(a < b),
    "at_most": lambda a, b: float(a <= b),
    "equal": lambda a, b: float(a == b),
    "missing": lambda a, yes, no: yes if isnan(a) else no,
    "ratio": lambda a, b, otherwise: otherwise if b == 0 else _quotient(a, b),
    "select": lambda condition, yes, no: no if condition == 0 else yes,
}


def _windows(x: Numbers, bars: int) -> list[Numbers | None]:
    """The last `bars` numbers at each bar; None where one is missing."""
    found: list[Numbers | None] = []
    for t in range(len(x)):
        window = x[max(t - bars + 1, 0) : t + 1]
        found.append(None if len(window) < bars or any(map(isnan, window)) else window)
    return found


def _mean(window: Numbers) -> float:
    return fsum(window) / len(window)


def _means(values: Any, x: Numbers) -> Numbers:
    return [nan if window is None else _mean(window) for window in _windows(x, values[0])]


def _deviations(values: Any, x: Numbers) -> Numbers:
    def deviation(window: Numbers) -> float:
        middle = _mean(window)
        return sqrt(fsum((each - middle) ** 2 for each in window) / len(window))

    return [nan if window is None else deviation(window) for window in _windows(x, values[0])]


def _pairs(values: Any, x: Numbers, y: Numbers) -> Numbers:
    period, kind = values

    def product(window: Numbers, other: Numbers) -> float:
        window, other = ([each - series[0] for each in series] for series in (window, other))  # equal ones: exactly 0
        middle, other_middle = _mean(window), _mean(other)
        return fsum((a - middle) * (b - other_middle) for a, b in zip(window, other, strict=True)) / period

    def shown(window: Numbers, other: Numbers) -> float:
        if kind == COVARIANCE:
            return product(window, other)
        below = product(other, other)
        if kind == CORRELATION:
            below = sqrt(product(window, window)) * sqrt(below)
        return product(window, other) / below if below else nan

    both = zip(_windows(x, period), _windows(y, period), strict=True)
    return [nan if window is None or other is None else shown(window, other) for window, other in both]


def _spreads(values: Any, x: Numbers, middle: Numbers) -> Numbers:
    return [
        nan if window is None else fsum(abs(each - centre) for each in window) / len(window)
        for window, centre in zip(_windows(x, values[0]), middle, strict=True)
    ]


def _fir(values: Any, x: Numbers) -> Numbers:
    return [
        nan if window is None else fsum(each * weight for each, weight in zip(reversed(window), values, strict=True))
        for window in _windows(x, len(values))
    ]


def _quantile(values: Any, x: Numbers) -> Numbers:
    period, place, fraction = values

    def chosen(window: Numbers) -> float:
        low, high = (sorted(window)[min(at, period - 1)] for at in (place, place + 1))
        return low + fraction * (high - low)

    return [nan if window is None else chosen(window) for window in _windows(x, period)]


def _count_below(values: Any, x: Numbers) -> Numbers:
    period, with_equal = values
    return [
        float(sum(each < now or (with_equal and each == now) for each in x[max(t - period, 0) : t]))
        for t, now in enumerate(x)
    ]


def _cutler(values: Any, x: Numbers) -> Numbers:
    period, flat = values
    steps = [nan, *(b - a for a, b in pairwise(x))]

    def strength(window: Numbers) -> float:
        up, down = fsum(max(each, 0) for each in window), fsum(max(-each, 0) for each in window)
        return float(flat) if up + down == 0 else 100 * up / (up + down)

    return [nan if window is None else strength(window) for window in _windows(steps, period)]


def _follow(values: Any, x: Numbers) -> Numbers:
    beta, warm, late = values
    shown, run, average, count = list[float](), list[float](), 0.0, 0
    for price in x:
        count = 0 if isnan(price) else count + 1
        run = [*run, price] if count > late else []
        if len(run) == warm:
            average = _mean(run)
        elif len(run) > warm:
            average = price + beta * (average - price)
        shown.append(average if len(run) >= warm else nan)
    return shown


def _strength(values: Any, x: Numbers) -> Numbers:
    beta, warm, valid, first, flat = values
    shown, count, up, down, last = list[float](), 0, 0.0, 0.0, float(flat)
    for price, before in zip(x, [nan, *x], strict=False):
        count = 0 if isnan(price) else count + 1
        if count <= 1:
            up, down, last = 0.0, 0.0, float(flat)
        else:
            weight, kept = (first, 1.0) if count <= warm else (1.0, beta)
            up = kept * up + weight * max(price - before, 0)
            down = kept * down + weight * max(before - price, 0)
        if count >= valid and up + down > 2.0**-1000:
            last = 100 * up / (up + down)
        shown.append(last if count >= valid else nan)
    return shown


def _scan(values: Any, a: Numbers, b: Numbers) -> Numbers:
    shown, y = list[float](), 0.0
    for factor, offset in zip(a, b, strict=True):
        y = offset if factor == 0 else factor * y + offset
        shown.append(y)
    return shown


def _ratchet(values: Any, bound: Numbers, x: Numbers) -> Numbers:
    shown = list[float]()
    for t, (now, other) in enumerate(zip(bound, x, strict=True)):
        last = shown[-1] if shown else nan
        falls = isnan(last) or now < last or x[t - 1] > last
        shown.append(nan if isnan(now) or isnan(other) else now if falls else last)
    return shown


def _sar(values: Any, high: Numbers, low: Numbers) -> Numbers:
    paces, (apart, start, signed) = {1: values[:3], -1: values[3:6]}, values[6:]
    shown, side, stop, extreme, pace, run = list[float](), 1, 0.0, 0.0, 0.0, 0
    for t, (h, low_) in enumerate(zip(high, low, strict=True)):
        run = 0 if isnan(h) or isnan(low_) else run + 1
        if run < 2:
            shown.append(nan)
            continue
        before = t - 1 if run > 2 else t  # the first stop may lie within the bar before
        if run == 2:
            side = -1 if low[t - 1] - low_ > max(h - high[t - 1], 0) else 1
            side = side if start == 0 else int(copysign(1, start))
            stop, extreme, pace = (low[t - 1], h, paces[1][0]) if side > 0 else (high[t - 1], low_, paces[-1][0])
            stop = abs(start) if start else stop
        limits = (low[before], low_) if side > 0 else (high[before], h)
        if (side > 0 and low_ <= stop) or (side < 0 and h >= stop):
            side = -side
            limits = (low[before], low_) if side > 0 else (high[before], h)
            stop = min(extreme, *limits) if side > 0 else max(extreme, *limits)
            stop -= side * apart * stop
            shown.append(side * stop if signed else stop)
            pace, extreme = paces[side][0], h if side > 0 else low_
        else:
            shown.append(side * stop if signed else stop)
            if side * ((h if side > 0 else low_) - extreme) > 0:
                extreme, pace = h if side > 0 else low_, min(pace + paces[side][1], paces[side][2])
        stop = stop + pace * (extreme - stop)
        stop = min(stop, *limits) if side > 0 else max(stop, *limits)
    return shown


_LOOPS: dict[str, Any] = {
    "mean": _means,
    "deviation": _deviations,
    "pair": _pairs,
    "spread": _spreads,
    "fir": _fir,
    "quantile": _quantile,
    "count_below": _count_below,
    "cutler": _cutler,
    "follow": _follow,
    "strength": _strength,
    "scan": _scan,
    "ratchet": _ratchet,
    "sar": _sar,
}
