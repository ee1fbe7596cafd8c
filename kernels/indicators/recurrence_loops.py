"""EMA and RSI on the CPU: the tiles of recurrence.py, 64 segments side by side so that one vector runs several."""

from functools import lru_cache
from typing import Any

import numpy as np
from numba import get_num_threads, njit
from numpy.typing import NDArray

from kernels.cores import share
from kernels.indicators.recurrence import GROUP, SEGMENT, SEGMENTS, TILE, Recurrence, decay, look_back, negligible

HOLD = -1.0  # stands where gains and losses have decayed to nothing, until the last RSI is carried there


@lru_cache(maxsize=64)
def decays(beta: float, dtype: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The factors of settled segments: of the first 1 to 64 segments, and at each of the six steps of their scan."""
    inclusive = np.full(SEGMENTS, decay(beta, np.dtype(dtype).type), dtype)
    strides = []
    for k in range(SEGMENTS.bit_length() - 1):
        strides.append(inclusive[-1])
        inclusive[1 << k :] = inclusive[1 << k :] * inclusive[: -(1 << k)]
    return inclusive, np.array(strides, dtype)


@njit(cache=True, error_model="numpy")
def _copy(values, out):  # type: ignore[no-untyped-def]
    # A loop: Numba takes seconds to compile an assignment to a slice.
    for i in range(out.size):
        out[i] = values[i]


@njit(cache=True, error_model="numpy")
def _fill(out, value):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = value


@njit(cache=True, error_model="numpy")
def _columns(x, start, columns):  # type: ignore[no-untyped-def]
    """Lay a tile out as columns[1 + bar, segment], row 0 holding the bar before; the series' ends are repeated."""
    time = x.size
    for s in range(columns.shape[1]):
        before = start + s * SEGMENT - 1
        if before >= 0 and before + SEGMENT < time:
            part = x[before : before + SEGMENT + 1]
            for i in range(SEGMENT + 1):
                columns[i, s] = part[i]
        else:
            for i in range(SEGMENT + 1):
                columns[i, s] = x[min(max(before + i, 0), time - 1)]


@njit(cache=True, error_model="numpy")
def _rows(columns, out):  # type: ignore[no-untyped-def]
    """Undo `_columns` for results: columns[bar, segment] to bars in order."""
    for s in range(-(-out.size // SEGMENT)):
        part = out[s * SEGMENT : (s + 1) * SEGMENT]
        for i in range(part.size):
            part[i] = columns[i, s]


@njit(cache=True, error_model="numpy")
def _compose_settled(strides, b, old):  # type: ignore[no-untyped-def]
    """Compose the maps of a tile's segments into those from the tile's start, all factors being the settled ones."""
    for k in range(strides.size):
        h = 1 << k
        _copy(b, old)
        late, own, early, factor = b[h:], old[h:], old[: SEGMENTS - h], strides[k]
        for s in range(late.size):
            late[s] = own[s] + factor * early[s]


@njit(cache=True, error_model="numpy")
def _compose(a, b, old_a, old_b):  # type: ignore[no-untyped-def]
    """The same with a factor for each segment; `a` holds the composed factors afterwards."""
    h = 1
    while h < SEGMENTS:
        _copy(a, old_a)
        _copy(b, old_b)
        for s in range(SEGMENTS - h):
            b[s + h] = old_b[s + h] + old_a[s + h] * old_b[s]
            a[s + h] = old_a[s + h] * old_a[s]
        h *= 2


@njit(cache=True, error_model="numpy")
def _enter(a, b, y, entry):  # type: ignore[no-untyped-def]
    """The state before each segment of a tile, from the state `y` before the tile."""
    entry[0] = y
    for s in range(1, SEGMENTS):
        entry[s] = b[s - 1] + a[s - 1] * y


@njit(cache=True, error_model="numpy")
def _ema_segments(columns, beta, y):  # type: ignore[no-untyped-def]
    _fill(y, beta - beta)
    for i in range(SEGMENT):
        before, price = columns[i], columns[i + 1]
        for s in range(price.size):
            y[s] = beta * (y[s] + (before[s] - price[s]))


@njit(cache=True, error_model="numpy")
def _ema_bars(columns, beta, y):  # type: ignore[no-untyped-def]
    """Run the segments from their states; the results take the place of the bars before theirs."""
    for i in range(SEGMENT):
        before, price = columns[i], columns[i + 1]
        for s in range(price.size):
            y[s] = beta * (y[s] + (before[s] - price[s]))
            before[s] = price[s] + y[s]


@njit(cache=True, error_model="numpy")
def _gain(change, zero):  # type: ignore[no-untyped-def]
    return zero if change <= zero else change


@njit(cache=True, error_model="numpy")
def _loss(change, zero):  # type: ignore[no-untyped-def]
    return zero if change >= zero else -change


@njit(cache=True, error_model="numpy")
def _strength(up, down, hundred, tiny):  # type: ignore[no-untyped-def]
    total = up + down
    # total - total is NaN where gains or losses overflowed: no number rather than 0.
    return HOLD if total <= tiny else hundred * (up / total) + (total - total)


@njit(cache=True, error_model="numpy")
def _rsi_segments(columns, beta, zero, up, down):  # type: ignore[no-untyped-def]
    _fill(up, zero)
    _fill(down, zero)
    for i in range(SEGMENT):
        before, price = columns[i], columns[i + 1]
        for s in range(price.size):
            change = price[s] - before[s]
            up[s] = beta * up[s] + _gain(change, zero)
            down[s] = beta * down[s] + _loss(change, zero)


@njit(cache=True, error_model="numpy")
def _rsi_bars(columns, beta, zero, hundred, tiny, up, down):  # type: ignore[no-untyped-def]
    held = 0
    for i in range(SEGMENT):
        before, price = columns[i], columns[i + 1]
        for s in range(price.size):
            change = price[s] - before[s]
            up[s] = beta * up[s] + _gain(change, zero)
            down[s] = beta * down[s] + _loss(change, zero)
            before[s] = _strength(up[s], down[s], hundred, tiny)
            held += up[s] + down[s] <= tiny
    return held


@njit(cache=True, error_model="numpy")
def _ema_any_segment(x, start, count, beta, warm, valid, settled, one, y, out):  # type: ignore[no-untyped-def]
    """Run a segment that gaps or a seed fall into; `out` of length 0 only reduces it. Returns count, factor, state."""
    zero = one - one
    a, bars = one, zero
    for _ in range(min(count, warm)):
        bars += one  # the count in the dtype of the prices
    for t in range(start, min(start + SEGMENT, x.size)):
        if np.isnan(x[t]):
            count, bars, a, y = 0, zero, zero, zero
        else:
            count += count <= settled
            if count == 1:
                bars, a, y = one, zero, zero
            elif count < warm:
                y = y + bars * (x[t - 1] - x[t])
                bars += one
            elif count == warm:
                y = y + bars * (x[t - 1] - x[t])
                bars += one
                y = y / bars
                a = a / bars
            else:
                y = beta * (y + (x[t - 1] - x[t]))
                a = a * beta
        if out.size:
            out[t] = x[t] + y if count >= valid else np.nan
    return count, a, y


@njit(cache=True, error_model="numpy")
def _rsi_any_segment(  # type: ignore[no-untyped-def]
    x,
    start,
    count,
    beta,
    warm,
    valid,
    settled,
    first,
    one,
    hundred,
    tiny,
    up,
    down,
    out,
):
    zero, a, held = one - one, one, 0
    for t in range(start, min(start + SEGMENT, x.size)):
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
        if out.size:
            if count >= valid:
                out[t] = _strength(up, down, hundred, tiny)
                held += up + down <= tiny
            else:
                out[t] = np.nan
    return count, a, up, down, held


@njit(cache=True, error_model="numpy")
def _counted(x, start, settled):  # type: ignore[no-untyped-def]
    """The bars since the last gap before a bar, at most settled + 1."""
    count = 0
    while count <= settled and start - count > 0 and not np.isnan(x[start - count - 1]):
        count += 1
    return count


@njit(cache=True, error_model="numpy")
def _begin(far, one):  # type: ignore[no-untyped-def]
    """The state before a row's span, the map of the groups of the span, and that of the tiles of the group."""
    zero = one - one
    far[0], far[1], far[2], far[3], far[4] = zero, one, zero, one, zero


@njit(cache=True, error_model="numpy")
def _advance(far, tile, a, b, one):  # type: ignore[no-untyped-def]
    """Let a tile's map follow those before it in its group, a full group those before it in its span."""
    zero = one - one
    far[3], far[4] = a * far[3], b + a * far[4]
    if (tile + 1) % GROUP == 0:
        far[1], far[2] = far[3] * far[1], far[4] + far[3] * far[2]
        far[3], far[4] = one, zero
        if (tile + 1) % (GROUP * GROUP) == 0:
            far[0] = far[2] + far[1] * far[0]
            far[1], far[2] = one, zero


@njit(cache=True, error_model="numpy")
def _carry(a, b, tile, look_back, far):  # type: ignore[no-untyped-def]
    """The state before a tile: from the maps of `look_back` tiles, oldest first, or of all of them."""
    if look_back == 0:
        return far[4] + far[3] * (far[2] + far[1] * far[0])
    state = far[0] - far[0]
    for other in range(max(0, tile - look_back), tile):
        state = b[other] + a[other] * state
    return state


@njit(cache=True, error_model="numpy")
def _segments(time, start):  # type: ignore[no-untyped-def]
    """The segments of a tile that hold bars, in full vectors of eight."""
    return min(SEGMENTS, -(-(time - start) // (8 * SEGMENT)) * 8)


@njit(cache=True, error_model="numpy")
def _any_nan(values):  # type: ignore[no-untyped-def]
    total = values[0] - values[0]
    for value in values:
        total += value - value
    return np.isnan(total)


@njit(cache=True, error_model="numpy", nogil=True)
def _ema_parts(  # type: ignore[no-untyped-def]
    prices, beta, warm, valid, settled, one, inclusive, strides, look_back, parts, first, end, out
):
    time, zero, nothing = prices.shape[1], one - one, np.empty(0, prices.dtype)
    tiles, space = -(-time // TILE), np.empty((SEGMENT + 1) * SEGMENTS, prices.dtype)
    segments, begin = np.empty((5, SEGMENTS), prices.dtype), np.empty(SEGMENTS, np.int64)
    a, b, y, old_a, old_b = segments[0], segments[1], segments[2], segments[3], segments[4]
    ends, far = np.empty((2, tiles), prices.dtype), np.empty(5, prices.dtype)
    for task in range(first, end):
        x, shown, part = prices[task // parts], out[task // parts], task % parts
        own = part * tiles // parts  # tiles before it are only reduced, for what they carry into it
        begun = max(0, own - look_back)
        _begin(far, one)
        count = _counted(x, begun * TILE, settled)
        for tile in range(begun, (part + 1) * tiles // parts):
            start, stop = tile * TILE, min(tile * TILE + TILE, time)
            lanes = _segments(time, start)
            columns = space[: (SEGMENT + 1) * lanes].reshape(SEGMENT + 1, lanes)
            _columns(x, start, columns)
            _ema_segments(columns, beta, b)
            gaps = _any_nan(b)
            plain = count >= settled and not gaps
            if plain:
                _compose_settled(strides, b, old_b)
                _copy(inclusive, a)
            else:
                reached = count
                for s in range(SEGMENTS):
                    if reached >= settled and not np.isnan(b[s]):
                        a[s], begin[s], reached = inclusive[0], -1, settled + 1
                    else:
                        begin[s] = reached
                        reached, a[s], b[s] = _ema_any_segment(
                            x, start + s * SEGMENT, reached, beta, warm, valid, settled, one, zero, nothing
                        )
                _compose(a, b, old_a, old_b)
            ends[0, tile], ends[1, tile] = a[-1], b[-1]
            count = _counted(x, stop, settled) if gaps else min(count + stop - start, settled + 1)
            if tile < own:
                continue
            entry = _carry(ends[0], ends[1], tile, look_back, far)
            _advance(far, tile, a[-1], b[-1], one)
            _enter(a, b, entry, y)
            _ema_bars(columns, beta, y)
            _rows(columns, shown[start:stop])
            if not plain:
                _enter(a, b, entry, y)
                for s in range(SEGMENTS):
                    if begin[s] >= 0:
                        _ema_any_segment(x, start + s * SEGMENT, begin[s], beta, warm, valid, settled, one, y[s], shown)


@njit(cache=True, error_model="numpy", nogil=True)
def _rsi_parts(  # type: ignore[no-untyped-def]
    prices, beta, warm, valid, settled, weight, one, hundred, tiny, inclusive, strides, look_back, parts, first, end,
    held, out,
):  # fmt: skip
    time, zero, nothing = prices.shape[1], one - one, np.empty(0, prices.dtype)
    tiles, space = -(-time // TILE), np.empty((SEGMENT + 1) * SEGMENTS, prices.dtype)
    segments, begin = np.empty((8, SEGMENTS), prices.dtype), np.empty(SEGMENTS, np.int64)
    a, up, down, gains, losses = segments[0], segments[1], segments[2], segments[3], segments[4]
    again, old_a, old_b = segments[5], segments[6], segments[7]
    ends, far = np.empty((3, tiles), prices.dtype), np.empty((2, 5), prices.dtype)
    far_up, far_down = far[0], far[1]
    for task in range(first, end):
        row, part = task // parts, task % parts
        x, shown = prices[row], out[row]
        own = part * tiles // parts  # tiles before it are only reduced, for what they carry into it
        begun = max(0, own - look_back)
        _begin(far_up, one)
        _begin(far_down, one)
        count = _counted(x, begun * TILE, settled)
        for tile in range(begun, (part + 1) * tiles // parts):
            start, stop = tile * TILE, min(tile * TILE + TILE, time)
            lanes = _segments(time, start)
            columns = space[: (SEGMENT + 1) * lanes].reshape(SEGMENT + 1, lanes)
            _columns(x, start, columns)
            _rsi_segments(columns, beta, zero, up, down)
            gaps = _any_nan(up)
            plain = count >= settled and not gaps
            if plain:
                _compose_settled(strides, up, old_b)
                _compose_settled(strides, down, old_b)
                _copy(inclusive, a)
            else:
                reached = count
                for s in range(SEGMENTS):
                    if reached >= settled and not np.isnan(up[s]):
                        a[s], begin[s], reached = inclusive[0], -1, settled + 1
                    else:
                        begin[s] = reached
                        reached, a[s], up[s], down[s], _ = _rsi_any_segment(
                            x, start + s * SEGMENT, reached, beta, warm, valid, settled, weight, one, hundred, tiny,
                            zero, zero, nothing,
                        )  # fmt: skip
                _copy(a, again)  # composing leaves the factors composed
                _compose(again, up, old_a, old_b)
                _compose(a, down, old_a, old_b)
            ends[0, tile], ends[1, tile], ends[2, tile] = a[-1], up[-1], down[-1]
            count = _counted(x, stop, settled) if gaps else min(count + stop - start, settled + 1)
            if tile < own:
                continue
            gained = _carry(ends[0], ends[1], tile, look_back, far_up)
            lost = _carry(ends[0], ends[2], tile, look_back, far_down)
            _advance(far_up, tile, a[-1], up[-1], one)
            _advance(far_down, tile, a[-1], down[-1], one)
            _enter(a, up, gained, gains)
            _enter(a, down, lost, losses)
            held[row, tile] = _rsi_bars(columns, beta, zero, hundred, tiny, gains, losses)
            _rows(columns, shown[start:stop])
            if not plain:
                _enter(a, up, gained, gains)
                _enter(a, down, lost, losses)
                for s in range(SEGMENTS):
                    if begin[s] >= 0:
                        _, _, _, _, some = _rsi_any_segment(
                            x, start + s * SEGMENT, begin[s], beta, warm, valid, settled, weight, one, hundred, tiny,
                            gains[s], losses[s], shown,
                        )  # fmt: skip
                        held[row, tile] += some


@njit(cache=True, error_model="numpy")
def _carry_held(rsi, start, flat):  # type: ignore[no-untyped-def]
    """Where nothing moved for so long that both averages decayed to nothing, the last RSI of the run stands."""
    last = flat
    if start > 0 and not np.isnan(rsi[start - 1]):
        last = rsi[start - 1]
    for t in range(start, min(start + TILE, rsi.size)):
        if np.isnan(rsi[t]):
            last = flat
        elif rsi[t] < 0:
            rsi[t] = last
        else:
            last = rsi[t]


@njit(cache=True, error_model="numpy", nogil=True)
def _carry_held_rows(held, flat, rsi):  # type: ignore[no-untyped-def]
    for row in range(held.shape[0]):
        for tile in range(held.shape[1]):
            if held[row, tile]:
                _carry_held(rsi[row], tile * TILE, flat)


def parts(assets: int, tiles: int, reach: int) -> int:
    """The parts to cut each row into: several tasks for each core, and no part mostly repeats what others reduce."""
    if reach == 0:
        return 1
    return max(1, min(tiles // (4 * reach), -(-4 * get_num_threads() // assets)))


def ema(prices: NDArray[Any], law: Recurrence, out: NDArray[Any]) -> None:
    """Fill `out` (assets, time) with the EMA of a law of recurrence.py."""
    if law.beta == 0:
        np.copyto(out, prices)
        return
    real, (tasks, at_least, grid) = prices.dtype.type, _plan(prices, law)
    constants = real(law.beta), law.warm, law.valid, law.settled, real(1), *grid
    share(tasks, lambda first, end: _ema_parts(prices, *constants, first, end, out), at_least)


def rsi(prices: NDArray[Any], law: Recurrence, flat: float, out: NDArray[Any]) -> None:
    """Fill `out` (assets, time) with the RSI of a law of recurrence.py."""
    real, (tasks, at_least, grid) = prices.dtype.type, _plan(prices, law)
    constants = (
        real(law.beta), law.warm, law.valid, law.settled, real(law.first), real(1), real(100),
        real(negligible(prices.itemsize)), *grid,
    )  # fmt: skip
    held = np.empty((prices.shape[0], -(-prices.shape[1] // TILE)), np.int64)
    share(tasks, lambda first, end: _rsi_parts(prices, *constants, first, end, held, out), at_least)
    _carry_held_rows(held, real(flat), out)


def _plan(prices: NDArray[Any], law: Recurrence) -> tuple[int, int, tuple[Any, ...]]:
    """The tasks to share, how many at least at a time, and what each needs beside its law: decays, look back, parts."""
    assets, tiles = prices.shape[0], -(-prices.shape[1] // TILE)
    reach = look_back(law, prices.itemsize)
    cut = parts(assets, tiles, reach)
    return assets * cut, -(-8 // tiles), (*decays(law.beta, prices.dtype), reach, cut)
