"""The interpreter of indicators' programs on the CPU: one compiled loop for every graph.

A row is run chunk by chunk, whole tiles of recurrence.py, and each step of the program over the whole chunk in turn, so
that what lies between steps stays in the core's cache. Arithmetic goes in strips of 512 bars. A step's numbers stand in
a register: a stretch of scratch memory for a chunk, with the bars before it that are still read. Before a row registers
hold NaN.
"""

import numpy as np
from numba import njit

from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.cpu.lanes import (
    LANES,
    addressed,
    after_1,
    after_2,
    after_4,
    before_1,
    keep_alive,
    load,
    moved,
    pointer,
    root,
    spread,
    store,
    where_at_most,
    where_below,
    where_differs,
    where_equal,
)
from warpdesk_server.kernels.device.elementary import exp64, log64
from warpdesk_server.kernels.indicators import windows
from warpdesk_server.kernels.indicators.pair_loops import pair_range
from warpdesk_server.kernels.indicators.plan import (
    FUSED,
    LOOPS,
    MAPS,
    STRIP,
)
from warpdesk_server.kernels.indicators.recurrence import SEGMENT, SEGMENTS, TILE
from warpdesk_server.kernels.indicators.recurrence_loops import (
    GROUP_BARS,
    bars_of,
    begin_state,
    carry_held,
    ema_tile,
    put_bars,
    rsi_tile,
)
from warpdesk_server.kernels.indicators.window_loops import (
    deviation_blocks,
    mean_blocks,
    short_deviations,
    short_means,
    short_strengths,
    strength_blocks,
)

CODES = (*MAPS, *FUSED, *LOOPS)
ARITHMETIC = len(MAPS) + len(FUSED)  # codes, the first
(
    ADD, SUB, MUL, DIV, ABS, SQRT, LOG, EXP, FLOOR, MAX, MIN, BELOW, AT_MOST, EQUAL, MISSING, RATIO, SELECT, COPY,
) = range(len(MAPS))  # fmt: skip
ADD_8, MAX_8, MIN_8, MUL_ADD, TRUE_RANGE = range(len(MAPS), ARITHMETIC)
MEAN, DEVIATION, CUTLER, PAIR, SPREAD, FIR, QUANTILE, COUNT_BELOW, FOLLOW, STRENGTH, SCAN, RATCHET, SAR = range(
    ARITHMETIC, len(CODES)
)
# Columns of a program's table. An operand has a base: 0 for the registers, or a series of the caller's; a place from
# there on; and whether it moves from bar to bar, which a constant does not. LAW is the row of the numbers of a loop,
# END the step after a run of arithmetic steps, OUTSIDE whether an arithmetic step has a base that is the caller's.
OP, TO_BASE, TO, A_BASE, A, A_MOVES, B_BASE, B, B_MOVES, C_BASE, C, C_MOVES, LAW, END, OUTSIDE = range(15)
# Columns of the laws: integers, and numbers of the inputs' dtype, after which come the decays of recurrence_loops.
PERIOD = WARM = 0
PLACE = 1
VALID, SETTLED, LOOK_BACK, LATE, OWN = 1, 2, 3, 4, 5  # OWN: how many there are
SHARE = BETA = 0
FLAT, WEIGHT, TINY, DECAYS = 1, 2, 3, 4
STRIDES = 6


@inner
def _greater(x, y):  # type: ignore[no-untyped-def]
    return where_equal(x, x, where_below(y, x, x, y), x)


@inner
def _smaller(x, y):  # type: ignore[no-untyped-def]
    return where_equal(x, x, where_below(x, y, x, y), x)


@inner
def _map(op, count, to, a, b, c, zero, one):  # type: ignore[no-untyped-def]
    """An arithmetic step over a strip of bars."""
    zeros, ones = spread(zero), spread(one)
    if op == ADD:
        for i in range(0, count, LANES):
            store(to, i, load(a, i) + load(b, i))
    elif op == SUB:
        for i in range(0, count, LANES):
            store(to, i, load(a, i) - load(b, i))
    elif op == MUL:
        for i in range(0, count, LANES):
            store(to, i, load(a, i) * load(b, i))
    elif op == DIV:
        for i in range(0, count, LANES):
            store(to, i, load(a, i) / load(b, i))
    elif op == ABS:
        for i in range(0, count, LANES):
            x = load(a, i)
            store(to, i, where_at_most(x, zeros, zeros - x, x))
    elif op == SQRT:
        for i in range(0, count, LANES):
            store(to, i, root(load(a, i)))
    elif op == LOG:
        for i in range(count):
            to[i] = log64(a[i]) if b[0] <= a[i] <= c[0] else np.nan
    elif op == EXP:
        for i in range(count):
            to[i] = exp64(a[i]) if a[i] == a[i] else np.nan
    elif op == FLOOR:
        for i in range(count):
            to[i] = np.floor(a[i])
    elif op == MAX:
        for i in range(0, count, LANES):
            store(to, i, _greater(load(a, i), load(b, i)))
    elif op == MIN:
        for i in range(0, count, LANES):
            store(to, i, _smaller(load(a, i), load(b, i)))
    elif op == BELOW:
        for i in range(0, count, LANES):
            store(to, i, where_below(load(a, i), load(b, i), ones, zeros))
    elif op == AT_MOST:
        for i in range(0, count, LANES):
            store(to, i, where_at_most(load(a, i), load(b, i), ones, zeros))
    elif op == EQUAL:
        for i in range(0, count, LANES):
            store(to, i, where_equal(load(a, i), load(b, i), ones, zeros))
    elif op == MISSING:
        for i in range(0, count, LANES):
            x = load(a, i)
            store(to, i, where_equal(x, x, load(c, i), load(b, i)))
    elif op == RATIO:
        for i in range(0, count, LANES):
            x = load(b, i)
            store(to, i, where_equal(x, zeros, load(c, i), load(a, i) / x))
    elif op == SELECT:
        for i in range(0, count, LANES):
            store(to, i, where_differs(load(a, i), zeros, load(b, i), load(c, i)))
    elif op == COPY:
        for i in range(0, count, LANES):
            store(to, i, load(a, i))
    elif op == MUL_ADD:
        for i in range(0, count, LANES):
            store(to, i, load(a, i) * load(b, i) + load(c, i))
    elif op == TRUE_RANGE:
        for i in range(0, count, LANES):
            high, low, before = load(a, i), load(b, i), load(c, i)
            up, down = high - before, low - before
            up = where_at_most(up, zeros, zeros - up, up)
            down = where_at_most(down, zeros, zeros - down, down)
            store(to, i, _greater(_greater(high - low, up), down))
    elif op == ADD_8:
        x = load(a, -LANES)
        pairs = x + after_1(x, x)
        fours = pairs + after_2(pairs, pairs)
        for i in range(0, count, LANES):
            early, x = x, load(a, i)
            early, pairs = pairs, x + after_1(x, early)
            early, fours = fours, pairs + after_2(pairs, early)
            store(to, i, fours + after_4(fours, early))
    elif op == MAX_8:
        x = load(a, -LANES)
        pairs = _greater(x, after_1(x, x))
        fours = _greater(pairs, after_2(pairs, pairs))
        for i in range(0, count, LANES):
            early, x = x, load(a, i)
            early, pairs = pairs, _greater(x, after_1(x, early))
            early, fours = fours, _greater(pairs, after_2(pairs, early))
            store(to, i, _greater(fours, after_4(fours, early)))
    else:
        x = load(a, -LANES)
        pairs = _smaller(x, after_1(x, x))
        fours = _smaller(pairs, after_2(pairs, pairs))
        for i in range(0, count, LANES):
            early, x = x, load(a, i)
            early, pairs = pairs, _smaller(x, after_1(x, early))
            early, fours = fours, _smaller(pairs, after_2(pairs, early))
            store(to, i, _smaller(fours, after_4(fours, early)))


@inner
def _spread_range(x, middle, period, part, count, to, zero):  # type: ignore[no-untyped-def]
    """The mean distance of the last `period` bars from `middle`, added from the newest to the oldest."""
    zeros, parts = spread(zero), spread(part)
    for i in range(0, count, LANES):
        centre, total = load(middle, i), zeros
        for k in range(period):
            distance = load(x, i - k) - centre
            total = total + where_at_most(distance, zeros, zeros - distance, distance)
        store(to, i, total * parts)


@inner
def _fir_range(x, weights, period, count, to, zero):  # type: ignore[no-untyped-def]
    """The last `period` bars times their weights, added from the newest to the oldest."""
    zeros = spread(zero)
    for i in range(0, count, LANES):
        total = zeros
        for k in range(period):
            total = total + load(x, i - k) * spread(weights[k])
        store(to, i, total)


@inner
def _count_range(x, period, with_equal, count, to, zero, one):  # type: ignore[no-untyped-def]
    """How many of the `period` bars before each are below it, or at most it."""
    zeros, ones = spread(zero), spread(one)
    for i in range(0, count, LANES):
        now, total = load(x, i), zeros
        for k in range(1, period + 1):
            if with_equal:
                total = total + where_at_most(load(x, i - k), now, ones, zeros)
            else:
                total = total + where_below(load(x, i - k), now, ones, zeros)
        store(to, i, total)


@inner
def _quantile_range(x, period, place, fraction, count, to, ordered, zero, one, nan):  # type: ignore[no-untyped-def]
    """The number at a place among the last `period` bars in ascending order, or `fraction` of the way to the next.

    The bars of the window are kept in `ordered`, ascending, with infinity for one that is missing: one leaves and one
    comes at a time. Numbers are found exactly, so that no byte depends on the way. Zeros count as +0.
    """
    infinite, missing = one / zero, 0
    for i in range(period + 2 * LANES):
        ordered[i] = infinite
    for k in range(1 - period, count):
        now, old = x[k] + zero, infinite
        if k > 0:
            old = x[k - period]
            if np.isnan(old):
                old, missing = infinite, missing - 1
        if np.isnan(now):
            now, missing = infinite, missing + 1
        _replaced(ordered, min(k + period, period), spread(old), spread(now), spread(-infinite))
        if k >= 0:
            shown = nan
            if missing == 0:
                shown = ordered[place]
                if fraction > zero and ordered[place + 1] > shown:
                    shown = shown + fraction * (ordered[place + 1] - shown)
            to[k] = shown


@inner
def _replaced(ordered, count, old, now, lowest):  # type: ignore[no-untyped-def]
    """Take a number out of `count` ascending ones and put another in, eight places at a time and without branches.

    What is left when `old` is gone is `left`; with `now` in its place, each is the middle one of itself, that before
    it, and `now`.
    """
    here, early = load(ordered, 0), lowest
    for j in range(0, count, LANES):
        later = load(ordered, j + LANES)
        left = where_below(here, old, here, before_1(here, later))
        before = after_1(left, early)
        before = where_below(before, now, now, before)
        store(ordered, j, where_below(left, before, left, before))
        here, early = later, left


@inner
def _ratchet(bound, x, count, to, state, zero, one):  # type: ignore[no-untyped-def]
    """algebra.ratchet; the state is whether a run has begun, its last number, and the last of x."""
    begun, y, before = state[0] != zero, state[1], state[2]
    for i in range(count):
        if not begun or bound[i] < y or before > y:
            y = bound[i]
        begun = not (np.isnan(y) or np.isnan(bound[i]) or np.isnan(x[i]))
        to[i], before = y if begun else zero / zero, x[i]
    state[0], state[1], state[2] = one if begun else zero, y, before


@inner
def _parabolic(high, low, count, to, law, state, zero, one, nan):  # type: ignore[no-untyped-def]
    """algebra.parabolic; the state is the bars of the run (0, 1 or more), the side, the stop, the extreme, the pace,
    and the last high and low. `law` has the numbers of the node."""
    apart, start, signed = law[6], law[7], law[8] != zero
    bars, side, stop, extreme, pace, top, bottom = state[0], state[1], state[2], state[3], state[4], state[5], state[6]
    for i in range(count):
        h, l = high[i], low[i]  # noqa: E741
        shown = nan
        if np.isnan(h) or np.isnan(l):
            bars = zero
        elif bars == zero:
            bars = one
        else:
            if bars == one:
                # Down if the low falls, and more than the high rises.
                fall, rise = bottom - l, h - top
                side = -one if start < zero or (start == zero and fall > zero and rise < fall) else one
                stop, extreme, pace = (bottom, h, law[0]) if side > zero else (top, l, law[3])
                if start != zero:
                    stop = start if side > zero else -start
                bars, top, bottom = one + one, h, l
            turned = l <= stop if side > zero else h >= stop
            if turned:
                side, stop = -side, extreme
                stop = _beyond(stop, top, bottom, h, l, side, zero)
                if apart != zero:
                    stop = stop - side * (stop * apart)
                shown = stop
                pace, extreme = (law[0], h) if side > zero else (law[3], l)
            else:
                shown = stop
                if (h > extreme) if side > zero else (l < extreme):
                    extreme, pace = (h, min(pace + law[1], law[2])) if side > zero else (l, min(pace + law[4], law[5]))
            stop = _beyond(stop + pace * (extreme - stop), top, bottom, h, l, side, zero)
        to[i] = -shown if signed and side < zero else shown
        top, bottom = h, l
    state[0], state[1], state[2], state[3], state[4], state[5], state[6] = bars, side, stop, extreme, pace, top, bottom


@inner
def _beyond(stop, top, bottom, h, l, side, zero):  # type: ignore[no-untyped-def]  # noqa: E741
    """A stop that lies within neither of the last two bars."""
    if side > zero:
        stop = min(stop, bottom)
        return min(stop, l)
    stop = max(stop, top)
    return max(stop, h)


@inner
def _scan_step(a, b, y, zeros):  # type: ignore[no-untyped-def]
    return where_equal(a, zeros, b, a * y + b)


@inner
def _scan_reduce(a, b, zeros, ones):  # type: ignore[no-untyped-def]
    """The maps y -> factor y + offset of eight segments."""
    factor, offset = ones, zeros
    for i in range(0, SEGMENT, LANES):
        a0, a1, a2, a3, a4, a5, a6, a7 = bars_of(a, i)
        b0, b1, b2, b3, b4, b5, b6, b7 = bars_of(b, i)
        offset = _scan_step(a0, b0, offset, zeros)
        offset = _scan_step(a1, b1, offset, zeros)
        offset = _scan_step(a2, b2, offset, zeros)
        offset = _scan_step(a3, b3, offset, zeros)
        offset = _scan_step(a4, b4, offset, zeros)
        offset = _scan_step(a5, b5, offset, zeros)
        offset = _scan_step(a6, b6, offset, zeros)
        offset = _scan_step(a7, b7, offset, zeros)
        factor = _scan_step(a0, zeros, factor, zeros)
        factor = _scan_step(a1, zeros, factor, zeros)
        factor = _scan_step(a2, zeros, factor, zeros)
        factor = _scan_step(a3, zeros, factor, zeros)
        factor = _scan_step(a4, zeros, factor, zeros)
        factor = _scan_step(a5, zeros, factor, zeros)
        factor = _scan_step(a6, zeros, factor, zeros)
        factor = _scan_step(a7, zeros, factor, zeros)
    return factor, offset


@inner
def _scan_run(a, b, y, zeros, to):  # type: ignore[no-untyped-def]
    for i in range(0, SEGMENT, LANES):
        a0, a1, a2, a3, a4, a5, a6, a7 = bars_of(a, i)
        b0, b1, b2, b3, b4, b5, b6, b7 = bars_of(b, i)
        y0 = _scan_step(a0, b0, y, zeros)
        y1 = _scan_step(a1, b1, y0, zeros)
        y2 = _scan_step(a2, b2, y1, zeros)
        y3 = _scan_step(a3, b3, y2, zeros)
        y4 = _scan_step(a4, b4, y3, zeros)
        y5 = _scan_step(a5, b5, y4, zeros)
        y6 = _scan_step(a6, b6, y5, zeros)
        y = _scan_step(a7, b7, y6, zeros)
        put_bars(to, i, (y0, y1, y2, y3, y4, y5, y6, y))


@inner
def _applied(a, b, y):  # type: ignore[no-untyped-def]
    return b if a == 0 else a * y + b


@inner
def _scan_tile(a, a_moves, b, b_moves, count, to, y, space, zero, one):  # type: ignore[no-untyped-def]
    """y <- a y + b over a tile; returns the state after it.

    Each segment of 32 bars is run from 0 and becomes a map. The state before a segment is that before the tile, mapped
    through the segments before it, one after another; that after the tile, through the composition of all its maps.
    """
    zeros, ones = spread(zero), spread(one)
    factors, offsets, entries = space, moved(space, SEGMENTS), moved(space, 2 * SEGMENTS)
    groups = -(-count // GROUP_BARS)
    for g in range(groups):
        at = g * GROUP_BARS
        factor, offset = _scan_reduce(moved(a, at * a_moves), moved(b, at * b_moves), zeros, ones)
        store(factors, g * LANES, factor)
        store(offsets, g * LANES, offset)
    state, factor, offset = y, one, zero
    for s in range(groups * LANES):
        entries[s] = state
        state = _applied(factors[s], offsets[s], state)
        offset = _applied(factors[s], offsets[s], offset)
        factor = _applied(factors[s], zero, factor)
    for g in range(groups):
        at = g * GROUP_BARS
        _scan_run(moved(a, at * a_moves), moved(b, at * b_moves), load(entries, g * LANES), zeros, moved(to, at))
    return _applied(factor, offset, y)


@inner
def _copy(x, to, count):  # type: ignore[no-untyped-def]
    for i in range(0, count - LANES + 1, LANES):
        store(to, i, load(x, i))
    for i in range(count // LANES * LANES, count):
        to[i] = x[i]


@inner
def _within(x, base, count, spare):  # type: ignore[no-untyped-def]
    """The last bars of an operand where a whole vector may be read: a series of the caller's may end with them."""
    if base == 0:
        return x
    _copy(x, spare, count)
    return spare


@inner
def _map_step(step, bases, registers, strip, count, spare, zero, one):  # type: ignore[no-untyped-def]
    """A step of a program's table over a strip. Series of the caller's are not touched beyond it."""
    to = moved(addressed(registers, bases[step[TO_BASE]]), step[TO] + strip)
    a = moved(addressed(registers, bases[step[A_BASE]]), step[A] + strip * step[A_MOVES])
    b = moved(addressed(registers, bases[step[B_BASE]]), step[B] + strip * step[B_MOVES])
    c = moved(addressed(registers, bases[step[C_BASE]]), step[C] + strip * step[C_MOVES])
    rest = count % LANES if step[OUTSIDE] else 0
    whole = count - rest
    _map(step[OP], whole, to, a, b, c, zero, one)
    if rest:
        a = _within(moved(a, whole), step[A_BASE], rest, spare)
        b = _within(moved(b, whole), step[B_BASE], rest, moved(spare, LANES))
        c = _within(moved(c, whole), step[C_BASE], rest, moved(spare, 2 * LANES))
        _map(step[OP], LANES, moved(spare, 3 * LANES), a, b, c, zero, one)
        _copy(moved(spare, 3 * LANES), moved(to, whole), rest)


@inner
def _slide(register, history, chunk):  # type: ignore[no-untyped-def]
    for i in range(history):
        register[i] = register[i + chunk]


@inner
def _exchange(state, registers, kept, counts, integers, far, ends, tiles, tile, back):  # type: ignore[no-untyped-def]
    """Write what a row's later bars need to a state, before a tile that begins a chunk; or read it `back`."""
    for k in range(kept.shape[0]):
        state = _exchanged(state, moved(registers, kept[k, 0]), kept[k, 1], back)
    for law in range(integers.shape[0]):
        if back:
            counts[law] = np.int64(state[0])
        else:
            state[0] = counts[law]
        state = _exchanged(moved(state, 1), moved(far, 10 * law), 10, back)
        earlier = integers[law, LOOK_BACK]
        for table in range(3 * law, 3 * law + 3):
            count = min(earlier, tile)
            _exchanged(state, moved(ends, table * tiles + tile - count), count, back)
            state = moved(state, earlier)


@inner
def _exchanged(state, numbers, count, back):  # type: ignore[no-untyped-def]
    """Write numbers to a state, or read them back; returns where the next are."""
    for i in range(count):
        if back:
            numbers[i] = state[i]
        else:
            state[i] = numbers[i]
    return moved(state, count)


@njit(cache=True, error_model="numpy", nogil=True)
def run_rows(  # type: ignore[no-untyped-def]
    table, kept, given, copies, integers, numbers, constants, room, space_room, states, first, time, chunk, parts,
    reach, unsure, begin, end,
):  # fmt: skip
    """Run a program over the tasks `begin` to `end`: the rows, each in `parts` parts.

    `kept` has place and length of the bars that each register keeps from chunk to chunk. `given` has the caller's
    series, inputs and then outputs: the address of bar 0 of row 0, the numbers from row to row, whether it is an
    output, and a register for an output that is not shown yet. `copies` are those between series and registers: the
    series, the register, and whether it is copied out. Where `states` has numbers for each row, rows go on from them
    at bar `first`, and they become those after the last whole chunk. `unsure` becomes 1 if a part depends on more bars
    before it than its `reach`.
    """
    one = constants[0]
    zero, nan, hundred = one - one, constants[1], constants[2]
    file, space = np.empty(room, constants.dtype), np.empty(space_room, constants.dtype)
    registers, scratch = pointer(file), pointer(space)
    edges = np.zeros(16, constants.dtype)  # as window_loops wants its constants
    edges[8], edges[9] = nan, hundred
    edge = pointer(edges)
    steps, laws, tiles = table.shape[0], integers.shape[0], -(-time // TILE)
    counts, segments = np.zeros(laws + 1, np.int64), np.empty(SEGMENTS, np.int64)
    ends, far = np.zeros(3 * tiles * laws + 1, constants.dtype), np.zeros(10 * laws + 1, constants.dtype)
    segments_at, ends_at, far_at, numbers_at = pointer(segments), pointer(ends), pointer(far), pointer(numbers)
    bases, itemsize = np.empty(given.shape[0] + 1, np.int64), constants.itemsize
    bases[0] = file.ctypes.data
    states_at = pointer(states)
    spare, bases_at, rows_at = moved(scratch, space_room - 4 * LANES), pointer(bases), pointer(table)
    for k in range(constants.size):
        for i in range(STRIP):
            registers[k * STRIP + i] = constants[k]
    for task in range(begin, end):
        row, part = task // parts, task % parts
        own, stop = part * tiles // parts * TILE, min((part + 1) * tiles // parts * TILE, time)
        start = max(first, own - reach)
        for k in range(kept.shape[0]):
            for i in range(kept[k, 1]):
                registers[kept[k, 0] + i] = nan
        for law in range(laws):
            counts[law] = 0
            begin_state(moved(far_at, 10 * law), one)
            begin_state(moved(far_at, 10 * law + 5), one)
        for at in range(start, stop + 1, chunk):
            if states.shape[1] and at:
                state = moved(states_at, row * states.shape[1])
                _exchange(state, registers, kept, counts, integers, far_at, ends_at, tiles, at // TILE, at == first)
            if at == stop:
                break
            count = min(chunk, stop - at)
            for k in range(given.shape[0]):
                bases[1 + k] = given[k, 0] + (given[k, 1] * row + at - first) * itemsize
                if given[k, 2] and at < own:
                    bases[1 + k] = bases[0] + given[k, 3] * itemsize
            for k in range(copies.shape[0]):
                if not copies[k, 2]:
                    _copy(addressed(registers, bases[1 + copies[k, 0]]), moved(registers, copies[k, 1]), count)
            step = 0
            while step < steps:
                op, law = table[step, OP], table[step, LAW]
                to = moved(addressed(registers, bases[table[step, TO_BASE]]), table[step, TO])
                a = moved(addressed(registers, bases[table[step, A_BASE]]), table[step, A])
                b = moved(addressed(registers, bases[table[step, B_BASE]]), table[step, B])
                if op < ARITHMETIC:
                    until = table[step, END]
                    for strip in range(0, count, STRIP):
                        for k in range(step, until):
                            _map_step(
                                moved(rows_at, k * (OUTSIDE + 1)), bases_at, registers, strip,
                                min(STRIP, count - strip), spare, zero, one,
                            )  # fmt: skip
                    step = until
                    continue
                law_at = moved(numbers_at, law * numbers.shape[1])
                if op <= PAIR:
                    period, weight, flat = integers[law, PERIOD], numbers[law, SHARE], numbers[law, FLAT]
                    short, block = period <= windows.SHORT, at // period * period
                    x, y, out, limit = moved(a, -at), moved(b, -at), moved(to, -at), at + count
                    size = limit if table[step, A_BASE] else at + chunk
                    if op == MEAN and short:
                        short_means(x, period, weight, edge, scratch, at, limit, size, out)
                    elif op == MEAN:
                        mean_blocks(x, period, weight, edge, scratch, block, limit, size, out)
                    elif op == DEVIATION and short:
                        short_deviations(x, period, weight, edge, scratch, at, limit, size, out, y)
                    elif op == DEVIATION:
                        deviation_blocks(x, period, weight, edge, scratch, block, limit, size, out, y)
                    elif op == CUTLER and short:
                        short_strengths(x, period, flat, edge, scratch, at, limit, size, out)
                    elif op == CUTLER:
                        strength_blocks(x, period, flat, edge, scratch, block, limit, size, out)
                    else:
                        pair_range(
                            x, y, period, weight, integers[law, PLACE], scratch, block, limit, out, zero, one, nan
                        )
                elif op == SPREAD:
                    _spread_range(a, b, integers[law, PERIOD], numbers[law, SHARE], count, to, zero)
                elif op == FIR:
                    _fir_range(a, law_at, integers[law, PERIOD], count, to, zero)
                elif op == QUANTILE:
                    period, place, fraction = integers[law, PERIOD], integers[law, PLACE], law_at[SHARE]
                    _quantile_range(a, period, place, fraction, count, to, scratch, zero, one, nan)
                elif op == COUNT_BELOW:
                    _count_range(a, integers[law, PERIOD], integers[law, PLACE], count, to, zero, one)
                elif op == RATCHET:
                    _ratchet(a, b, count, to, moved(far_at, 10 * law), zero, one)
                elif op == SAR:
                    _parabolic(a, b, count, to, law_at, moved(far_at, 10 * law), zero, one, nan)
                elif op == SCAN:
                    for tile in range(0, count, TILE):
                        far[10 * law] = _scan_tile(
                            moved(a, tile * table[step, A_MOVES]), table[step, A_MOVES],
                            moved(b, tile * table[step, B_MOVES]), table[step, B_MOVES],
                            min(TILE, count - tile), moved(to, tile), far[10 * law], scratch, zero, one,
                        )  # fmt: skip
                else:
                    inclusive, strides = moved(law_at, DECAYS), moved(law_at, DECAYS + SEGMENTS)
                    for tile in range(at // TILE, -(-(at + count) // TILE)):
                        if op == FOLLOW:
                            counts[law] = ema_tile(
                                moved(a, -at), moved(to, -at), time, tile, counts[law], law_at[BETA],
                                integers[law, WARM], integers[law, VALID], integers[law, SETTLED], integers[law, LATE],
                                one, inclusive, strides, integers[law, LOOK_BACK], tiles, scratch, segments_at,
                                moved(ends_at, 3 * tiles * law), moved(far_at, 10 * law),
                            )  # fmt: skip
                            continue
                        counts[law], held = rsi_tile(
                            moved(a, -at), moved(to, -at), time, tile, counts[law], law_at[BETA],
                            integers[law, WARM], integers[law, VALID], integers[law, SETTLED], law_at[WEIGHT], one,
                            hundred, law_at[TINY], inclusive, strides, integers[law, LOOK_BACK], tiles,
                            scratch, segments_at, moved(ends_at, 3 * tiles * law), moved(far_at, 10 * law),
                        )  # fmt: skip
                        if held:
                            carry_held(moved(to, -at), tile * TILE, time, law_at[FLAT])
                            unsure[0] = max(unsure[0], tile * TILE < own)  # it may have stood still before, too
                step += 1
            for k in range(copies.shape[0]):
                if copies[k, 2] and at >= own:
                    _copy(moved(registers, copies[k, 1]), addressed(registers, bases[1 + copies[k, 0]]), count)
            for k in range(kept.shape[0]):
                _slide(moved(registers, kept[k, 0]), kept[k, 1], chunk)
    keep_alive(file, space, edges, counts, segments, ends, far, numbers, bases, table, states)
