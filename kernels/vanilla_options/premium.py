"""The compiled loop of american_option: premiums for early exercise, by strips of options, as SIMD code.

Every option is a put of strike 1 and maturity 1 that may be exercised early. README.md has the equations, schemes.py
the table.
"""

from math import sqrt

import numpy as np
from numba import njit

from warpdesk_server.kernels.device.elementary import exp64, log64
from warpdesk_server.kernels.device.fused import fused
from warpdesk_server.kernels.device.normal_tail import FARTHEST, scaled_tail
from warpdesk_server.kernels.vanilla_options.loops import DENSITY
from warpdesk_server.kernels.vanilla_options.schemes import MOST_NODES

STRIP = 32  # options: what is kept of them stays in the first cache
TINY, HUGE = 1e-290, 1e290
LEAST_PULL = 1e-9
BLEND = 1.25  # times the drift per spread: above 1, equation B has most weight

# Where a number of a strip's options begins in its memory.
LOG_SPOT, PER_SPREAD, DRIFT, LOG_START, LOG_END, BOUNDARY, GAP, FAR, NEAR, BELL, SHIFTED, OVER, PAID_OVER = (
    STRIP * row for row in range(13)
)
APART, FLAT, FLAT_TAIL, EDGE, SUM1, SUM2, SUM3, SUM4 = (STRIP * row for row in range(13, 21))
LOGS, SQUARES, NEXT = (STRIP * row for row in range(21, 21 + 3 * MOST_NODES, MOST_NODES))
ROWS = 21 + 3 * MOST_NODES


@njit(cache=True, nogil=True, error_model="numpy")
def log(x):  # type: ignore[no-untyped-def]
    """ln of each number in its place."""
    for i in range(x.size):
        x[i] = log64(x[i])


@njit(cache=True, nogil=True, error_model="numpy")
def exp(x):  # type: ignore[no-untyped-def]
    """e^ of each number in its place."""
    for i in range(x.size):
        x[i] = exp64(x[i])


@njit(cache=True, nogil=True, error_model="numpy")
def premiums(rates, dividends, spreads, spots, table, nodes, points, repeats, last, first, end, out):  # type: ignore[no-untyped-def]
    """Premiums of puts for early exercise, their first and second derivatives by the spot, and the logarithms of their
    boundaries today: rows of `out`.

    Numbers are those of strike 1 and maturity 1, the spread is the volatility. The sizes are the table's scheme's.
    """
    w = np.zeros(ROWS * STRIP)
    sines, weights, rows = nodes, nodes + points, nodes + 2 * points
    last_sines = rows + nodes * points * nodes
    last_weights, last_rows = last_sines + last, last_sines + 2 * last
    for begin in range(first, end, STRIP):
        count = min(STRIP, end - begin)
        rate, dividend = rates[begin : begin + count], dividends[begin : begin + count]
        spread, spot = spreads[begin : begin + count], spots[begin : begin + count]
        _guess(w, table, nodes, rate, dividend, spread)
        for _ in range(repeats):
            for node in range(nodes):
                root_time = table[node]
                for i in range(count):
                    w[BOUNDARY + i] = w[LOGS + node * STRIP + i]
                    w[SUM1 + i], w[SUM2 + i], w[SUM3 + i], w[SUM4 + i] = 0.0, 0.0, 0.0, 0.0
                for k in range(points):
                    sine, weight = table[sines + k], table[weights + k]
                    _interpolate(w, table, rows + (node * points + k) * nodes, nodes, w[BOUNDARY : BOUNDARY + count])
                    _tails(w, rate, dividend, spread, root_time * sine, 1.0)
                    for i in range(count):
                        w[SUM1 + i] = fused(weight * sine, w[OVER + i], w[SUM1 + i])
                        w[SUM2 + i] = fused(weight * sine, w[PAID_OVER + i], w[SUM2 + i])
                        w[SUM3 + i] = fused(weight, w[BELL + i], w[SUM3 + i])
                        w[SUM4 + i] = fused(weight, w[SHIFTED + i], w[SUM4 + i])
                _improve(w, rate, dividend, spread, root_time)
                for i in range(count):
                    w[NEXT + node * STRIP + i] = w[BOUNDARY + i]
            _take(w, nodes, count)
        for i in range(count):
            w[LOG_SPOT + i] = spot[i]
            w[EDGE + i] = -w[LOGS + i]
            w[SUM1 + i], w[SUM2 + i], w[SUM3 + i] = 0.0, 0.0, 0.0
        log(w[LOG_SPOT : LOG_SPOT + count])
        exp(w[EDGE : EDGE + count])
        for i in range(count):
            w[EDGE + i] = rate[i] * w[EDGE + i] - dividend[i]
        for k in range(last):
            sine, weight = table[last_sines + k], table[last_weights + k]
            per_root = 1.0 / sine
            _interpolate(w, table, last_rows + k * nodes, nodes, w[LOG_SPOT : LOG_SPOT + count])
            _tails(w, rate, dividend, spread, sine, -1.0)
            _flat_tails(w, per_root, count)
            for i in range(count):
                per_spot, per_time, edge = 1.0 / spot[i], w[PER_SPREAD + i] * per_root, w[EDGE + i]
                density = rate[i] * w[SHIFTED + i] * per_spot - dividend[i] * w[BELL + i]
                lost = dividend[i] * w[OVER + i]
                level = (rate[i] - dividend[i] * spot[i]) * w[FLAT_TAIL + i]
                slope = DENSITY * per_time * (edge * w[FLAT + i] - density) - lost
                curve = per_time * (density * w[FAR + i] - edge * w[APART + i] * w[FLAT + i])
                curve = DENSITY * per_time * per_spot * (dividend[i] * w[BELL + i] + curve)
                w[SUM1 + i] = fused(weight * sine, rate[i] * w[PAID_OVER + i] - spot[i] * lost - level, w[SUM1 + i])
                w[SUM2 + i] = fused(weight * sine, slope, w[SUM2 + i])
                w[SUM3 + i] = fused(weight * sine, curve, w[SUM3 + i])
        _flat_tails(w, 1.0, count)
        for i in range(count):
            tail, per_spread, edge = w[FLAT_TAIL + i], w[PER_SPREAD + i], w[EDGE + i]
            near = DENSITY * w[FLAT + i] - w[APART + i] * tail
            level = rate[i] - dividend[i] * spot[i]
            out[0, begin + i] = w[SUM1 + i] + level * (tail - w[APART + i] * near)
            out[1, begin + i] = w[SUM2 + i] - 2.0 * edge * per_spread * near
            out[2, begin + i] = w[SUM3 + i] + 2.0 * edge * per_spread * per_spread * tail / spot[i]
            out[3, begin + i] = w[LOGS + i]


@njit(cache=True, nogil=True, error_model="numpy")
def _guess(w, table, nodes, rate, dividend, spread):  # type: ignore[no-untyped-def]
    """The first guess of the boundary, and its limits just before expiry and long before it."""
    count = rate.size
    for i in range(count):
        per_spread = 1.0 / spread[i]
        drift = rate[i] - dividend[i]
        half = drift * per_spread * per_spread - 0.5
        twice = 2.0 * (rate[i] * per_spread * per_spread)
        root = sqrt(half * half + twice)
        power = half + root if half > 0.0 else twice / (root - half)
        inverse = 1.0 / power
        ratio = rate[i] / dividend[i] if dividend[i] > rate[i] else 1.0
        w[PER_SPREAD + i] = per_spread
        w[DRIFT + i] = drift + 0.5 * spread[i] * spread[i]
        w[LOG_START + i] = ratio if ratio > TINY else TINY
        w[LOG_END + i] = 1.0 + (inverse if inverse < HUGE else HUGE)
    log(w[LOG_START : LOG_START + count])
    log(w[LOG_END : LOG_END + count])
    for i in range(count):
        end, start = -w[LOG_END + i], w[LOG_START + i]
        w[LOG_END + i] = end if end < start else start
    for node in range(nodes):
        root_time = table[node]
        for i in range(count):
            drift, spent = rate[i] - dividend[i], spread[i] * root_time
            lesser = dividend[i] if dividend[i] < rate[i] else rate[i]
            pull = (drift if drift > 0.0 else 0.0) * root_time * w[PER_SPREAD + i] + LEAST_PULL
            pull = pull + 0.3 * (lesser if lesser > 0.0 else 0.0) * root_time * root_time / (1.0 + 3.0 * spent * spent)
            w[GAP + i] = 1.0 + 0.2 / pull
        log(w[GAP : GAP + count])
        for i in range(count):
            spent = spread[i] * root_time
            speed = sqrt(1.4 + 2.0 * w[GAP + i])
            apart = w[LOG_START + i] / spent
            speed = 0.64 + (speed - 0.64) / (1.0 + apart * apart)
            w[FAR + i] = -speed * spent / (w[LOG_START + i] - w[LOG_END + i])
        exp(w[FAR : FAR + count])
        for i in range(count):
            most = w[LOG_START + i] - w[LOG_END + i]
            w[NEXT + node * STRIP + i] = w[LOG_START + i] - (most * (1.0 - w[FAR + i]) if most > 0.0 else 0.0)
    _take(w, nodes, count)


@njit(cache=True, nogil=True, error_model="numpy")
def _take(w, nodes, count):  # type: ignore[no-untyped-def]
    """The next guess of all nodes becomes the one in use."""
    for node in range(nodes):
        for i in range(count):
            moved = w[LOG_START + i] - w[NEXT + node * STRIP + i]
            w[SQUARES + node * STRIP + i] = moved * moved
            w[LOGS + node * STRIP + i] = w[NEXT + node * STRIP + i]


@njit(cache=True, nogil=True, error_model="numpy")
def _interpolate(w, table, row, nodes, level):  # type: ignore[no-untyped-def]
    """How far a level is above the boundary at a point in time, in logarithms (GAP), by a row of the table."""
    first, count = table[row], level.size
    for i in range(count):
        w[GAP + i] = first * w[SQUARES + i]
    for j in range(1, nodes, 4):
        one, two, three, four = table[row + j], table[row + j + 1], table[row + j + 2], table[row + j + 3]
        at = SQUARES + j * STRIP
        for i in range(count):
            value = fused(two, w[at + STRIP + i], fused(one, w[at + i], w[GAP + i]))
            w[GAP + i] = fused(four, w[at + 3 * STRIP + i], fused(three, w[at + 2 * STRIP + i], value))
    for i in range(count):
        w[GAP + i] = level[i] - w[LOG_START + i] + sqrt(w[GAP + i] if w[GAP + i] > 0.0 else 0.0)


@njit(cache=True, nogil=True, error_model="numpy")
def _tails(w, rate, dividend, spread, root, sign):  # type: ignore[no-untyped-def]
    """What the distribution of the price after some time, root^2, says of a level that is GAP below it.

    d+ (FAR), e^(-d+^2/2) and e^(-d-^2/2) (BELL, SHIFTED), and the probability that the price is above the level, or
    below it if the sign is -1: in shares of the asset and in money (OVER, PAID_OVER). All but d+ are discounted.
    """
    time, per_root, count = root * root, 1.0 / root, rate.size
    for i in range(count):
        far = (w[GAP + i] + w[DRIFT + i] * time) * (w[PER_SPREAD + i] * per_root)
        w[FAR + i] = far
        w[NEAR + i] = sign * (far - spread[i] * root)
        w[BELL + i] = exp64(-dividend[i] * time - 0.5 * far * far)
    for i in range(count):
        w[SHIFTED + i] = w[BELL + i] * exp64(w[GAP + i])
    for i in range(count):
        far = abs(w[FAR + i])
        tail = w[BELL + i] * scaled_tail(far if far < FARTHEST else FARTHEST)
        w[OVER + i] = exp64(-dividend[i] * time) - tail if sign * w[FAR + i] > 0.0 else tail
    for i in range(count):
        near = abs(w[NEAR + i])
        tail = w[SHIFTED + i] * scaled_tail(near if near < FARTHEST else FARTHEST)
        w[PAID_OVER + i] = exp64(-rate[i] * time) - tail if w[NEAR + i] > 0.0 else tail


@njit(cache=True, nogil=True, error_model="numpy")
def _flat_tails(w, per_root, count):  # type: ignore[no-untyped-def]
    """The same for today's boundary without drift: d (APART), e^(-d^2/2) (FLAT) and the probability (FLAT_TAIL)."""
    for i in range(count):
        apart = (w[LOG_SPOT + i] - w[LOGS + i]) * (w[PER_SPREAD + i] * per_root)
        apart = apart if apart > 0.0 else 0.0
        flat = exp64(-0.5 * apart * apart)
        w[APART + i] = apart
        w[FLAT + i] = flat
        w[FLAT_TAIL + i] = flat * scaled_tail(apart if apart < FARTHEST else FARTHEST)


@njit(cache=True, nogil=True, error_model="numpy")
def _improve(w, rate, dividend, spread, root_time):  # type: ignore[no-untyped-def]
    """The next guess of the boundary at a node (BOUNDARY) from its quadrature, by equations A and B."""
    time, per_root, count = root_time * root_time, 1.0 / root_time, rate.size
    for i in range(count):
        w[GAP + i] = w[BOUNDARY + i]
    _tails(w, rate, dividend, spread, root_time, 1.0)
    for i in range(count):
        factor = DENSITY * w[PER_SPREAD + i]
        below = w[OVER + i] + dividend[i] * time * w[SUM1 + i]
        above = w[PAID_OVER + i] + rate[i] * time * w[SUM2 + i]
        steeper = factor * (w[SHIFTED + i] * per_root + rate[i] * root_time * w[SUM4 + i])
        flatter = factor * (w[BELL + i] * per_root + dividend[i] * root_time * w[SUM3 + i])
        w[FAR + i] = above / below
        w[NEAR + i] = steeper / (below + flatter)
        w[GAP + i] = w[FAR + i]
        w[SHIFTED + i] = w[NEAR + i]
    log(w[GAP : GAP + count])
    log(w[SHIFTED : SHIFTED + count])
    for i in range(count):
        value = w[GAP + i] if (w[FAR + i] > TINY) & (w[FAR + i] < HUGE) else w[BOUNDARY + i]
        slope = w[SHIFTED + i] if (w[NEAR + i] > TINY) & (w[NEAR + i] < HUGE) else value
        pull = BLEND * (rate[i] - dividend[i]) * root_time * w[PER_SPREAD + i]
        pull = pull * pull if pull > 0.0 else 0.0
        new = value + (slope - value) / (1.0 + pull * pull)
        new = new if new > w[LOG_END + i] else w[LOG_END + i]
        w[BOUNDARY + i] = new if new < w[LOG_START + i] else w[LOG_START + i]
