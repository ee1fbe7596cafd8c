"""EMA and RSI on the CPU: the tiles of recurrence.py, 64 segments side by side so that one vector runs several."""

from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from kernels.indicators.recurrence import SEGMENT, SEGMENTS, TILE

HOLD = -1.0  # stands where gains and losses have decayed to nothing, until the last RSI is carried there


@lru_cache(maxsize=64)
def decays(beta: float, dtype: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The factors of settled segments: of the first 1 to 64 segments, and at each of the six steps of their scan."""
    factor = np.ones(1, dtype)
    for _ in range(SEGMENT):
        factor *= np.dtype(dtype).type(beta)
    inclusive = np.full(SEGMENTS, factor[0], dtype)
    strides = []
    for k in range(SEGMENTS.bit_length() - 1):
        strides.append(inclusive[-1])
        inclusive[1 << k :] = inclusive[1 << k :] * inclusive[: -(1 << k)]
    return inclusive, np.array(strides, dtype)


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
def _compose_settled(strides, b):  # type: ignore[no-untyped-def]
    """Compose the maps of a tile's segments into those from the tile's start, all factors being the settled ones."""
    old = np.empty_like(b)
    for k in range(strides.size):
        h = 1 << k
        old[:] = b
        late, own, early, factor = b[h:], old[h:], old[: SEGMENTS - h], strides[k]
        for s in range(late.size):
            late[s] = own[s] + factor * early[s]


@njit(cache=True, error_model="numpy")
def _compose(a, b):  # type: ignore[no-untyped-def]
    """The same with a factor for each segment; `a` holds the composed factors afterwards."""
    old_a, old_b = np.empty_like(a), np.empty_like(b)
    h = 1
    while h < SEGMENTS:
        old_a[:] = a
        old_b[:] = b
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
    y[:] = 0
    for i in range(SEGMENT):
        before, price = columns[i], columns[i + 1]
        for s in range(price.size):
            y[s] = beta * (y[s] + (before[s] - price[s]))


@njit(cache=True, error_model="numpy")
def _ema_bars(columns, beta, y, shown):  # type: ignore[no-untyped-def]
    for i in range(SEGMENT):
        before, price, row = columns[i], columns[i + 1], shown[i]
        for s in range(price.size):
            y[s] = beta * (y[s] + (before[s] - price[s]))
            row[s] = price[s] + y[s]


@njit(cache=True, error_model="numpy")
def _rsi_segments(columns, beta, zero, up, down):  # type: ignore[no-untyped-def]
    up[:] = 0
    down[:] = 0
    for i in range(SEGMENT):
        before, price = columns[i], columns[i + 1]
        for s in range(price.size):
            change = price[s] - before[s]
            up[s] = beta * up[s] + (zero if change <= zero else change)
            down[s] = beta * down[s] + (zero if change >= zero else -change)


@njit(cache=True, error_model="numpy")
def _rsi_bars(columns, beta, zero, hundred, tiny, up, down, shown):  # type: ignore[no-untyped-def]
    held = 0
    for i in range(SEGMENT):
        before, price, row = columns[i], columns[i + 1], shown[i]
        for s in range(price.size):
            change = price[s] - before[s]
            up[s] = beta * up[s] + (zero if change <= zero else change)
            down[s] = beta * down[s] + (zero if change >= zero else -change)
            total = up[s] + down[s]
            row[s] = hundred * (up[s] / total) if total > tiny else HOLD
            held += not total > tiny
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
                gain = zero if change <= zero else change
                loss = zero if change >= zero else -change
                if count <= warm:
                    up = up + first * gain
                    down = down + first * loss
                else:
                    up = beta * up + gain
                    down = beta * down + loss
                    a = a * beta
        if out.size:
            if count >= valid:
                total = up + down
                out[t] = hundred * (up / total) if total > tiny else HOLD
                held += not total > tiny
            else:
                out[t] = np.nan
    return count, a, up, down, held


@njit(cache=True, error_model="numpy")
def _counts(x, settled, broken, counts):  # type: ignore[no-untyped-def]
    """For each tile of a row: the bars since the last gap before it, at most settled + 1."""
    count = 0
    for tile in range(counts.size):
        counts[tile] = count
        start = tile * TILE
        end = min(start + TILE, x.size)
        count = min(count + end - start, settled + 1)
        if broken[tile]:
            for t in range(end - 1, start - 1, -1):
                if np.isnan(x[t]):
                    count = min(end - 1 - t, settled + 1)
                    break


@njit(cache=True, error_model="numpy")
def _carry(a, b, look_back, y):  # type: ignore[no-untyped-def]
    """The state before each tile of a row, from the maps of at most `look_back` earlier tiles, oldest first."""
    y[0] = 0
    for tile in range(1, y.size):
        if look_back == 0:
            y[tile] = b[tile - 1] + a[tile - 1] * y[tile - 1]
        else:
            first = max(0, tile - look_back)
            state = b[first]
            for other in range(first + 1, tile):
                state = b[other] + a[other] * state
            y[tile] = state


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


@njit(parallel=True, cache=True, error_model="numpy")
def ema_tiles(prices, beta, warm, valid, settled, look_back, inclusive, strides, one, out):  # type: ignore[no-untyped-def]
    """Fill `out` (assets, time) with the EMA; `look_back` 0 carries the state through all tiles."""
    assets, time = prices.shape
    tiles = -(-time // TILE)
    a = np.empty((assets * tiles, SEGMENTS), prices.dtype)
    b = np.empty((assets * tiles, SEGMENTS), prices.dtype)
    # For a segment that a gap or a seed falls into, the count of bars before it; -1 where it only decays.
    begin = np.empty((assets * tiles, SEGMENTS), np.int32)
    broken = np.empty((assets, tiles), np.bool_)
    counts = np.empty((assets, tiles), np.int64)
    entry = np.empty((assets, tiles), prices.dtype)
    for task in prange(assets * tiles):
        start = task % tiles * TILE
        columns = np.empty((SEGMENT + 1, _segments(time, start)), prices.dtype)
        _columns(prices[task // tiles], start, columns)
        _ema_segments(columns, beta, b[task])
        broken[task // tiles, task % tiles] = _any_nan(b[task])
    for row in range(assets):
        _counts(prices[row], settled, broken[row], counts[row])
    for task in prange(assets * tiles):
        row, tile = task // tiles, task % tiles
        count = counts[row, tile]
        if count >= settled and not broken[row, tile]:
            _compose_settled(strides, b[task])
            a[task] = inclusive
            begin[task] = -1
        else:
            nothing = np.empty(0, prices.dtype)
            broken[row, tile] = True
            for s in range(SEGMENTS):
                if count >= settled and not np.isnan(b[task, s]):
                    a[task, s], begin[task, s], count = inclusive[0], -1, settled + 1
                else:
                    begin[task, s] = count
                    count, a[task, s], b[task, s] = _ema_any_segment(
                        prices[row],
                        tile * TILE + s * SEGMENT,
                        count,
                        beta,
                        warm,
                        valid,
                        settled,
                        one,
                        one - one,
                        nothing,
                    )
            _compose(a[task], b[task])
    for row in range(assets):
        _carry(a[row * tiles : (row + 1) * tiles, -1], b[row * tiles : (row + 1) * tiles, -1], look_back, entry[row])
    for task in prange(assets * tiles):
        row, start = task // tiles, task % tiles * TILE
        columns = np.empty((SEGMENT + 1, _segments(time, start)), prices.dtype)
        shown = np.empty((SEGMENT, columns.shape[1]), prices.dtype)
        y = np.empty(SEGMENTS, prices.dtype)
        _enter(a[task], b[task], entry[row, task % tiles], y)
        before = y.copy()
        _columns(prices[row], start, columns)
        _ema_bars(columns, beta, y, shown)
        _rows(shown, out[row, start : start + TILE])
        if broken[row, task % tiles]:
            for s in range(SEGMENTS):
                if begin[task, s] >= 0:
                    _ema_any_segment(
                        prices[row], start + s * SEGMENT, begin[task, s], beta, warm, valid, settled, one, before[s],
                        out[row],
                    )  # fmt: skip


@njit(parallel=True, cache=True, error_model="numpy")
def rsi_tiles(  # type: ignore[no-untyped-def]
    prices, beta, warm, valid, settled, look_back, inclusive, strides, first, one, hundred, tiny, flat, out
):
    """Fill `out` (assets, time) with the RSI; `look_back` 0 carries the state through all tiles."""
    assets, time = prices.shape
    tiles = -(-time // TILE)
    zero = one - one
    a = np.empty((assets * tiles, SEGMENTS), prices.dtype)
    up = np.empty((assets * tiles, SEGMENTS), prices.dtype)
    down = np.empty((assets * tiles, SEGMENTS), prices.dtype)
    begin = np.empty((assets * tiles, SEGMENTS), np.int32)
    broken = np.empty((assets, tiles), np.bool_)
    held = np.empty((assets, tiles), np.int64)
    counts = np.empty((assets, tiles), np.int64)
    entry_up = np.empty((assets, tiles), prices.dtype)
    entry_down = np.empty((assets, tiles), prices.dtype)
    for task in prange(assets * tiles):
        start = task % tiles * TILE
        columns = np.empty((SEGMENT + 1, _segments(time, start)), prices.dtype)
        _columns(prices[task // tiles], start, columns)
        _rsi_segments(columns, beta, zero, up[task], down[task])
        broken[task // tiles, task % tiles] = _any_nan(up[task])
    for row in range(assets):
        _counts(prices[row], settled, broken[row], counts[row])
    for task in prange(assets * tiles):
        row, tile = task // tiles, task % tiles
        count = counts[row, tile]
        if count >= settled and not broken[row, tile]:
            _compose_settled(strides, up[task])
            _compose_settled(strides, down[task])
            a[task] = inclusive
            begin[task] = -1
        else:
            nothing = np.empty(0, prices.dtype)
            broken[row, tile] = True
            for s in range(SEGMENTS):
                if count >= settled and not np.isnan(up[task, s]):
                    a[task, s], begin[task, s], count = inclusive[0], -1, settled + 1
                else:
                    begin[task, s] = count
                    count, a[task, s], up[task, s], down[task, s], _ = _rsi_any_segment(
                        prices[row], tile * TILE + s * SEGMENT, count, beta, warm, valid, settled, first, one,
                        hundred, tiny, zero, zero, nothing,
                    )  # fmt: skip
            again = a[task].copy()
            _compose(a[task], up[task])
            _compose(again, down[task])
    for row in range(assets):
        rows = slice(row * tiles, (row + 1) * tiles)
        _carry(a[rows, -1], up[rows, -1], look_back, entry_up[row])
        _carry(a[rows, -1], down[rows, -1], look_back, entry_down[row])
    for task in prange(assets * tiles):
        row, tile = task // tiles, task % tiles
        start = tile * TILE
        columns = np.empty((SEGMENT + 1, _segments(time, start)), prices.dtype)
        shown = np.empty((SEGMENT, columns.shape[1]), prices.dtype)
        gains, losses = np.empty(SEGMENTS, prices.dtype), np.empty(SEGMENTS, prices.dtype)
        _enter(a[task], up[task], entry_up[row, tile], gains)
        _enter(a[task], down[task], entry_down[row, tile], losses)
        before_up, before_down = gains.copy(), losses.copy()
        _columns(prices[row], start, columns)
        held[row, tile] = _rsi_bars(columns, beta, zero, hundred, tiny, gains, losses, shown)
        _rows(shown, out[row, start : start + TILE])
        if broken[row, tile]:
            for s in range(SEGMENTS):
                if begin[task, s] >= 0:
                    _, _, _, _, some = _rsi_any_segment(
                        prices[row], start + s * SEGMENT, begin[task, s], beta, warm, valid, settled, first, one,
                        hundred, tiny, before_up[s], before_down[s], out[row],
                    )  # fmt: skip
                    held[row, tile] += some
    for row in range(assets):
        for tile in range(tiles):
            if held[row, tile]:
                _carry_held(out[row], tile * TILE, flat)


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
