"""The indicators EMA and RSI on the CPU: the tiles of recurrence.py, eight segments side by side in each vector."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.cpu.fetch import fetch
from warpdesk_server.kernels.cpu.lanes import (
    LANES,
    after_1,
    after_2,
    after_4,
    load,
    loads,
    moved,
    spread,
    store,
    stores,
    strided,
    transposed,
    where_at_most,
    where_below,
)
from warpdesk_server.kernels.indicators.recurrence import (
    GROUP,
    SEGMENT,
    SEGMENTS,
    TILE,
    decay,
)

GROUP_BARS = LANES * SEGMENT  # bars of the segments that one vector runs
# Scratch memory of a tile: prices and results of an incomplete group, the bars before a group, up to seven numbers for
# each segment, and a row's first segment, which has no earlier state and runs once.
SPACE = 3 * GROUP_BARS + 7 * SEGMENTS + SEGMENT
HOLD = -1.0  # a placeholder where gains and losses have decayed to zero, until the last RSI is copied there


@lru_cache(maxsize=64)
def decays(beta: float, dtype: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The factors of settled segments of an indicator's recurrence: of the first 1 to 64, and at each of the six steps
    of a scan."""
    inclusive = np.full(SEGMENTS, decay(beta, np.dtype(dtype).type), dtype)
    strides = []
    for k in range(SEGMENTS.bit_length() - 1):
        strides.append(inclusive[-1])
        inclusive[1 << k :] = inclusive[1 << k :] * inclusive[: -(1 << k)]
    return inclusive, np.array(strides, dtype)


# The functions below take pointers, not arrays: Numba counts references at every turn of a loop that passes arrays on.
# A pointer to prices or results is to bar 0 of a row.


@inner
def _copy(out, values, count):  # type: ignore[no-untyped-def]
    """Copy `count` prices or values of an indicator to `out`."""
    # A loop: Numba takes seconds to compile an assignment to a slice.
    for i in range(count):
        out[i] = values[i]


@inner
def _padded(x, at, end, spare):  # type: ignore[no-untyped-def]
    """Copy a group's bars of prices from `at` on to `spare`; after the `end` of the row its last bar is repeated."""
    for i in range(GROUP_BARS):
        spare[i] = x[min(at + i, end - 1)]


@inner
def _bars_before(x, at, end, near):  # type: ignore[no-untyped-def]
    """The bar of prices before each segment of the group at `at`; outside of the row, its first or last bar."""
    if 0 < at <= end - GROUP_BARS:
        return strided(x, at - 1, SEGMENT)
    for k in range(LANES):
        near[k] = x[min(max(at + k * SEGMENT - 1, 0), end - 1)]
    return load(near, 0)


@inner
def _unpad(spare, out, at, end):  # type: ignore[no-untyped-def]
    for i in range(min(GROUP_BARS, end - at)):
        out[at + i] = spare[i]


@inner
def bars_of(x, at):  # type: ignore[no-untyped-def]
    """Eight bars of prices of each segment of a group, a vector for each bar."""
    return transposed(*loads(x, at, SEGMENT))


@inner
def put_bars(out, at, bars):  # type: ignore[no-untyped-def]
    stores(out, at, SEGMENT, transposed(*bars))


@inner
def _fetch(x, out, at):  # type: ignore[no-untyped-def]
    """Prefetch the group of bars after the next, both where it is read and where it is written.

    A group is eight short runs of cache lines, which no processor predicts.
    """
    for i in range(at + 2 * GROUP_BARS, at + 3 * GROUP_BARS, LANES):
        fetch(x, i)
        fetch(out, i)


@inner
def _joined(factor, early, late):  # type: ignore[no-untyped-def]
    return late + factor * early


@inner
def _compose_settled(strides, v, none):  # type: ignore[no-untyped-def]
    """Compose the maps of an indicator's segments into maps from the tile's start, if all factors are the settled ones.

    `v` points to the offsets. `none` is -0 in all lanes: adding its product with a factor changes no number.
    """
    f = spread(strides[0])
    a, b, c, d = load(v, 0), load(v, 8), load(v, 16), load(v, 24)
    e, g, h, i = load(v, 32), load(v, 40), load(v, 48), load(v, 56)
    a, b, c, d, e, g, h, i = (
        _joined(f, after_1(a, none), a),
        _joined(f, after_1(b, a), b),
        _joined(f, after_1(c, b), c),
        _joined(f, after_1(d, c), d),
        _joined(f, after_1(e, d), e),
        _joined(f, after_1(g, e), g),
        _joined(f, after_1(h, g), h),
        _joined(f, after_1(i, h), i),
    )
    f = spread(strides[1])
    a, b, c, d, e, g, h, i = (
        _joined(f, after_2(a, none), a),
        _joined(f, after_2(b, a), b),
        _joined(f, after_2(c, b), c),
        _joined(f, after_2(d, c), d),
        _joined(f, after_2(e, d), e),
        _joined(f, after_2(g, e), g),
        _joined(f, after_2(h, g), h),
        _joined(f, after_2(i, h), i),
    )
    f = spread(strides[2])
    a, b, c, d, e, g, h, i = (
        _joined(f, after_4(a, none), a),
        _joined(f, after_4(b, a), b),
        _joined(f, after_4(c, b), c),
        _joined(f, after_4(d, c), d),
        _joined(f, after_4(e, d), e),
        _joined(f, after_4(g, e), g),
        _joined(f, after_4(h, g), h),
        _joined(f, after_4(i, h), i),
    )
    f = spread(strides[3])
    b, c, d, e, g, h, i = (
        _joined(f, a, b),
        _joined(f, b, c),
        _joined(f, c, d),
        _joined(f, d, e),
        _joined(f, e, g),
        _joined(f, g, h),
        _joined(f, h, i),
    )
    f = spread(strides[4])
    c, d, e, g, h, i = (
        _joined(f, a, c),
        _joined(f, b, d),
        _joined(f, c, e),
        _joined(f, d, g),
        _joined(f, e, h),
        _joined(f, g, i),
    )
    f = spread(strides[5])
    e, g, h, i = _joined(f, a, e), _joined(f, b, g), _joined(f, c, h), _joined(f, d, i)
    store(v, 0, a)
    store(v, 8, b)
    store(v, 16, c)
    store(v, 24, d)
    store(v, 32, e)
    store(v, 40, g)
    store(v, 48, h)
    store(v, 56, i)


@inner
def _compose(a, b, used, one):  # type: ignore[no-untyped-def]
    """Compose the maps of an indicator's first `used` segments, each with its own factor in `a`, which is overwritten.

    From the last eight to the first, so that a step reads nothing that it has written.
    """
    ones, none = spread(one), spread(-(one - one))
    for s in range(used - LANES, -1, -LANES):
        va, vb = load(a, s), load(b, s)
        ea, eb = (load(a, s - LANES), load(b, s - LANES)) if s > 0 else (ones, none)
        store(b, s, vb + va * after_1(vb, eb))
        store(a, s, va * after_1(va, ea))
    for s in range(used - LANES, -1, -LANES):
        va, vb = load(a, s), load(b, s)
        ea, eb = (load(a, s - LANES), load(b, s - LANES)) if s > 0 else (ones, none)
        store(b, s, vb + va * after_2(vb, eb))
        store(a, s, va * after_2(va, ea))
    for s in range(used - LANES, -1, -LANES):
        va, vb = load(a, s), load(b, s)
        ea, eb = (load(a, s - LANES), load(b, s - LANES)) if s > 0 else (ones, none)
        store(b, s, vb + va * after_4(vb, eb))
        store(a, s, va * after_4(va, ea))
    h = LANES
    while h < used:
        for s in range(used - LANES, h - 1, -LANES):
            va, vb = load(a, s), load(b, s)
            store(b, s, vb + va * load(b, s - h))
            store(a, s, va * load(a, s - h))
        h *= 2


@inner
def _enter(a, b, used, y, entry):  # type: ignore[no-untyped-def]
    """The state of an EMA or RSI before each of a tile's `used` segments, from the state `y` before the tile."""
    entry[0] = y
    for s in range(1, used):
        entry[s] = b[s - 1] + a[s - 1] * y


@inner
def _ema_step(before, price, beta, y):  # type: ignore[no-untyped-def]
    return beta * (y + (before - price))


@inner
def _ema_reduce(x, at, before, beta, y):  # type: ignore[no-untyped-def]
    for i in range(0, SEGMENT, LANES):
        a, b, c, d, e, f, g, h = bars_of(x, at + i)
        y = _ema_step(before, a, beta, y)
        y = _ema_step(a, b, beta, y)
        y = _ema_step(b, c, beta, y)
        y = _ema_step(c, d, beta, y)
        y = _ema_step(d, e, beta, y)
        y = _ema_step(e, f, beta, y)
        y = _ema_step(f, g, beta, y)
        y = _ema_step(g, h, beta, y)
        before = h
    return y


@inner
def _ema_run(x, at, before, beta, y, out, to):  # type: ignore[no-untyped-def]
    for i in range(0, SEGMENT, LANES):
        a, b, c, d, e, f, g, h = bars_of(x, at + i)
        ya = _ema_step(before, a, beta, y)
        yb = _ema_step(a, b, beta, ya)
        yc = _ema_step(b, c, beta, yb)
        yd = _ema_step(c, d, beta, yc)
        ye = _ema_step(d, e, beta, yd)
        yf = _ema_step(e, f, beta, ye)
        yg = _ema_step(f, g, beta, yf)
        y = _ema_step(g, h, beta, yg)
        put_bars(out, to + i, (a + ya, b + yb, c + yc, d + yd, e + ye, f + yf, g + yg, h + y))
        before = h


@inner
def _gain(change, zero):  # type: ignore[no-untyped-def]
    return zero if change <= zero else change


@inner
def _loss(change, zero):  # type: ignore[no-untyped-def]
    return zero if change >= zero else -change


@inner
def _strength(up, down, hundred, tiny):  # type: ignore[no-untyped-def]
    total = up + down
    # total - total is NaN if gains or losses overflowed: the result is then NaN instead of 0.
    return HOLD if total <= tiny else hundred * (up / total) + (total - total)


@inner
def _rsi_step(before, price, beta, zeros, up, down):  # type: ignore[no-untyped-def]
    # A change of -0 does not show in the sums. These comparisons take one instruction each, <= and >= take two.
    rise, fall = price - before, before - price
    up = beta * up + where_below(rise, zeros, zeros, rise)
    down = beta * down + where_below(fall, zeros, zeros, fall)
    return up, down


@inner
def _rsi_reduce(x, at, before, beta, zeros):  # type: ignore[no-untyped-def]
    up = down = zeros
    for i in range(0, SEGMENT, LANES):
        a, b, c, d, e, f, g, h = bars_of(x, at + i)
        up, down = _rsi_step(before, a, beta, zeros, up, down)
        up, down = _rsi_step(a, b, beta, zeros, up, down)
        up, down = _rsi_step(b, c, beta, zeros, up, down)
        up, down = _rsi_step(c, d, beta, zeros, up, down)
        up, down = _rsi_step(d, e, beta, zeros, up, down)
        up, down = _rsi_step(e, f, beta, zeros, up, down)
        up, down = _rsi_step(f, g, beta, zeros, up, down)
        up, down = _rsi_step(g, h, beta, zeros, up, down)
        before = h
    return up, down


@inner
def _rsi_bar(before, price, beta, zeros, constants, up, down, held):  # type: ignore[no-untyped-def]
    up, down = _rsi_step(before, price, beta, zeros, up, down)
    hundred, tiny, hold = constants
    total = up + down
    # As _strength.
    shown = where_at_most(total, tiny, hold, hundred * (up / total) + (total - total))
    return shown, up, down, where_at_most(total, tiny, hold, held)


@inner
def _rsi_run(x, at, before, beta, zeros, constants, up, down, out, to):  # type: ignore[no-untyped-def]
    """Run eight RSI segments from their exact states. Returns HOLD in lanes that have a bar with HOLD, else 0."""
    held = zeros
    for i in range(0, SEGMENT, LANES):
        a, b, c, d, e, f, g, h = bars_of(x, at + i)
        ra, up, down, held = _rsi_bar(before, a, beta, zeros, constants, up, down, held)
        rb, up, down, held = _rsi_bar(a, b, beta, zeros, constants, up, down, held)
        rc, up, down, held = _rsi_bar(b, c, beta, zeros, constants, up, down, held)
        rd, up, down, held = _rsi_bar(c, d, beta, zeros, constants, up, down, held)
        re, up, down, held = _rsi_bar(d, e, beta, zeros, constants, up, down, held)
        rf, up, down, held = _rsi_bar(e, f, beta, zeros, constants, up, down, held)
        rg, up, down, held = _rsi_bar(f, g, beta, zeros, constants, up, down, held)
        rh, up, down, held = _rsi_bar(g, h, beta, zeros, constants, up, down, held)
        put_bars(out, to + i, (ra, rb, rc, rd, re, rf, rg, rh))
        before = h
    return held


@inner
def _ema_any_segment(x, start, time, count, beta, warm, valid, settled, late, one, y, shows, out):  # type: ignore[no-untyped-def]
    """Run an EMA segment with gaps or a seed, and write it to `out` if it `shows`. Returns count, factor, state."""
    zero = one - one
    a, bars = one, zero
    for _ in range(min(count - late, warm)):
        bars += one  # the count in the dtype of the prices
    for t in range(start, min(start + SEGMENT, time)):
        if np.isnan(x[t]):
            count, bars, a, y = 0, zero, zero, zero
        else:
            count += count <= settled
            if count <= late + 1:
                bars, a, y = (one if count > late else zero), zero, zero
            elif count < late + warm:
                y = y + bars * (x[t - 1] - x[t])
                bars += one
            elif count == late + warm:
                y = y + bars * (x[t - 1] - x[t])
                bars += one
                y = y / bars
                a = a / bars
            else:
                y = beta * (y + (x[t - 1] - x[t]))
                a = a * beta
        if shows:
            out[t] = x[t] + y if count >= late + valid else np.nan
    return count, a, y


@inner
def _rsi_any_segment(  # type: ignore[no-untyped-def]
    x, start, time, count, beta, warm, valid, settled, first, one, hundred, tiny, up, down, shows, out
):
    zero, a, held = one - one, one, 0
    for t in range(start, min(start + SEGMENT, time)):
        if np.isnan(x[t]):
            count, a, up, down = 0, zero, zero, zero
        else:
            count += count <= settled
            if count == 1:
                a, up, down = zero, zero, zero
            else:
                change = x[t] - x[t - 1]
                gain, loss = _gain(change, zero), _loss(change, zero)
                if count <= warm:
                    up = up + first * gain
                    down = down + first * loss
                else:
                    up = beta * up + gain
                    down = beta * down + loss
                    a = a * beta
        if shows:
            if count >= valid:
                out[t] = _strength(up, down, hundred, tiny)
                held += up + down <= tiny
            else:
                out[t] = np.nan
    return count, a, up, down, held


@inner
def begin_state(far, one):  # type: ignore[no-untyped-def]
    """Set the start of a row's EMA or RSI: the state before its span, and empty maps of the span and of the group."""
    zero = one - one
    far[0], far[1], far[2], far[3], far[4] = zero, one, zero, one, zero


@inner
def _advance(far, tile, a, b, one):  # type: ignore[no-untyped-def]
    """Append the map of an indicator's tile to those of its group; append a full group to those of its span."""
    zero = one - one
    far[3], far[4] = a * far[3], b + a * far[4]
    if (tile + 1) % GROUP == 0:
        far[1], far[2] = far[3] * far[1], far[4] + far[3] * far[2]
        far[3], far[4] = one, zero
        if (tile + 1) % (GROUP * GROUP) == 0:
            far[0] = far[2] + far[1] * far[0]
            far[1], far[2] = one, zero


@inner
def _carry(a, b, tile, look_back, far):  # type: ignore[no-untyped-def]
    """The state of an EMA or RSI before a tile, from the maps of the `look_back` tiles before it, or of all tiles."""
    if look_back == 0:
        return far[4] + far[3] * (far[2] + far[1] * far[0])
    state = far[0] - far[0]
    for other in range(max(0, tile - look_back), tile):
        state = b[other] + a[other] * state
    return state


@inner
def _any_nan(values, count):  # type: ignore[no-untyped-def]
    total = values[0] - values[0]
    for i in range(count):
        total += values[i] - values[i]
    return np.isnan(total)


@inner
def _after(x, start, stop, count, gaps, settled):  # type: ignore[no-untyped-def]
    """The number of bars with a price since the last gap before `stop`, at most settled + 1; `count` before `start`.

    There may be `gaps` between them, or only numbers that have overflowed.
    """
    since = stop - start
    if gaps:
        since = 0
        while since < stop - start and not np.isnan(x[stop - since - 1]):
            since += 1
    return min(since if since < stop - start else count + since, settled + 1)


@inner
def ema_tile(  # type: ignore[no-untyped-def]
    x, out, time, tile, count, beta, warm, valid, settled, late, one, inclusive, strides, look_back, tiles,
    space, begin, ends, far,
):  # fmt: skip
    """Compute a tile of an EMA; returns the count of bars before the next tile.

    `count` is the number of bars since the last gap before the tile. `space` has SPACE numbers, `begin` SEGMENTS
    integers. `ends` has the maps of the row's tiles, factors first, and `far` the state of `begin_state`.
    """
    zero = one - one
    betas, zeros, none = spread(beta), spread(zero), spread(-zero)
    padded, shown_padded, near = space, moved(space, GROUP_BARS), moved(space, 2 * GROUP_BARS)
    a = moved(near, GROUP_BARS)
    b, y, head = moved(a, SEGMENTS), moved(a, 2 * SEGMENTS), moved(a, 3 * SEGMENTS)
    start, stop = tile * TILE, min(tile * TILE + TILE, time)
    used = -(-(stop - start) // GROUP_BARS) * LANES
    for s in range(0, used, LANES):
        at = start + s * SEGMENT
        _fetch(x, out, at)
        before = _bars_before(x, at, time, near)
        if at + GROUP_BARS <= time:
            store(b, s, _ema_reduce(x, at, before, betas, zeros))
        else:
            _padded(x, at, time, padded)
            store(b, s, _ema_reduce(padded, 0, before, betas, zeros))
    gaps = _any_nan(b, used)
    plain = count >= settled and not gaps
    if plain:
        _compose_settled(strides, b, none)
        _copy(a, inclusive, SEGMENTS)
    else:
        reached = count
        for s in range(used):
            if reached >= settled and not np.isnan(b[s]):
                a[s], begin[s], reached = inclusive[0], -1, settled + 1
            else:
                begin[s] = reached
                reached, a[s], b[s] = _ema_any_segment(
                    x,
                    start + s * SEGMENT,
                    time,
                    reached,
                    beta,
                    warm,
                    valid,
                    settled,
                    late,
                    one,
                    zero,
                    start + s == 0,
                    head,
                )
        _compose(a, b, used, one)
    ends[tile], ends[tiles + tile] = a[SEGMENTS - 1], b[SEGMENTS - 1]
    count = _after(x, start, stop, count, gaps, settled)
    entry = _carry(ends, moved(ends, tiles), tile, look_back, far)
    _advance(far, tile, a[SEGMENTS - 1], b[SEGMENTS - 1], one)
    _enter(a, b, used, entry, y)
    for s in range(0, used, LANES):
        at = start + s * SEGMENT
        before = _bars_before(x, at, time, near)
        if at + GROUP_BARS <= time:
            _ema_run(x, at, before, betas, load(y, s), out, at)
        else:
            _padded(x, at, time, padded)
            _ema_run(padded, 0, before, betas, load(y, s), shown_padded, 0)
            _unpad(shown_padded, out, at, time)
    if not plain:
        if start == 0:
            _copy(out, head, min(SEGMENT, time))
        for s in range(start == 0, used):
            if begin[s] >= 0:
                at = start + s * SEGMENT
                _ema_any_segment(x, at, time, begin[s], beta, warm, valid, settled, late, one, y[s], True, out)
    return count


@inner
def rsi_tile(  # type: ignore[no-untyped-def]
    x, out, time, tile, count, beta, warm, valid, settled, weight, one, hundred, tiny, inclusive, strides,
    look_back, tiles, space, begin, ends, far,
):  # fmt: skip
    """Compute a tile of an RSI.

    As ema_tile, with a space of SPACE numbers, three tables in `ends` and two states in `far`. Returns the count
    before the next tile, and how many bars hold HOLD, if any.
    """
    zero = one - one
    betas, zeros, none = spread(beta), spread(zero), spread(-zero)
    constants = spread(hundred), spread(tiny), spread(-one)  # HOLD
    padded, shown_padded, near = space, moved(space, GROUP_BARS), moved(space, 2 * GROUP_BARS)
    a = moved(near, GROUP_BARS)
    again, up, down = moved(a, SEGMENTS), moved(a, 2 * SEGMENTS), moved(a, 3 * SEGMENTS)
    gains, losses, waits = moved(a, 4 * SEGMENTS), moved(a, 5 * SEGMENTS), moved(a, 6 * SEGMENTS)
    head, held = moved(a, 7 * SEGMENTS), 0
    far_up, far_down, end = far, moved(far, 5), SEGMENTS - 1
    start, stop = tile * TILE, min(tile * TILE + TILE, time)
    used = -(-(stop - start) // GROUP_BARS) * LANES
    for s in range(0, used, LANES):
        at = start + s * SEGMENT
        _fetch(x, out, at)
        before = _bars_before(x, at, time, near)
        if at + GROUP_BARS <= time:
            rising, falling = _rsi_reduce(x, at, before, betas, zeros)
        else:
            _padded(x, at, time, padded)
            rising, falling = _rsi_reduce(padded, 0, before, betas, zeros)
        store(up, s, rising)
        store(down, s, falling)
    gaps = _any_nan(up, used)
    plain = count >= settled and not gaps
    if plain:
        _compose_settled(strides, up, none)
        _compose_settled(strides, down, none)
        _copy(a, inclusive, SEGMENTS)
    else:
        reached = count
        for s in range(used):
            if reached >= settled and not np.isnan(up[s]):
                a[s], begin[s], reached = inclusive[0], -1, settled + 1
            else:
                begin[s] = reached
                reached, a[s], up[s], down[s], some = _rsi_any_segment(
                    x, start + s * SEGMENT, time, reached, beta, warm, valid, settled, weight, one, hundred, tiny,
                    zero, zero, start + s == 0, head,
                )  # fmt: skip
                if start + s == 0:
                    held = some
        _copy(again, a, used)  # composing leaves the factors composed
        _compose(again, up, used, one)
        _compose(a, down, used, one)
    ends[tile], ends[tiles + tile], ends[2 * tiles + tile] = a[end], up[end], down[end]
    count = _after(x, start, stop, count, gaps, settled)
    gained = _carry(ends, moved(ends, tiles), tile, look_back, far_up)
    lost = _carry(ends, moved(ends, 2 * tiles), tile, look_back, far_down)
    _advance(far_up, tile, a[end], up[end], one)
    _advance(far_down, tile, a[end], down[end], one)
    _enter(a, up, used, gained, gains)
    _enter(a, down, used, lost, losses)
    for s in range(0, used, LANES):
        at = start + s * SEGMENT
        before = _bars_before(x, at, time, near)
        rising, falling = load(gains, s), load(losses, s)
        if at + GROUP_BARS <= time:
            waiting = _rsi_run(x, at, before, betas, zeros, constants, rising, falling, out, at)
        else:
            _padded(x, at, time, padded)
            waiting = _rsi_run(padded, 0, before, betas, zeros, constants, rising, falling, shown_padded, 0)
            _unpad(shown_padded, out, at, time)
        store(waits, s, waiting)
    for s in range(used):
        held += waits[s] != zero and (plain or begin[s] < 0)
    if not plain:
        if start == 0:
            _copy(out, head, min(SEGMENT, time))
        for s in range(start == 0, used):
            if begin[s] >= 0:
                _, _, _, _, some = _rsi_any_segment(
                    x, start + s * SEGMENT, time, begin[s], beta, warm, valid, settled, weight, one, hundred, tiny,
                    gains[s], losses[s], True, out,
                )  # fmt: skip
                held += some
    return count, held


@inner
def carry_held(rsi, start, time, flat):  # type: ignore[no-untyped-def]
    """Replace HOLD by the last RSI of its run: prices did not move for so long that both averages decayed to zero."""
    last = flat
    if start > 0 and not np.isnan(rsi[start - 1]):
        last = rsi[start - 1]
    for t in range(start, min(start + TILE, time)):
        if np.isnan(rsi[t]):
            last = flat
        elif rsi[t] < 0:
            rsi[t] = last
        else:
            last = rsi[t]
