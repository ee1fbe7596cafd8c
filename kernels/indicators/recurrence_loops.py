"""EMA and RSI on the CPU: the tiles of recurrence.py, 64 segments side by side so that one vector runs several."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kernels.indicators.cores import share
from kernels.indicators.recurrence import SEGMENT, SEGMENTS, TILE, Recurrence, look_back, negligible

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
def _compose_settled(strides, b):  # type: ignore[no-untyped-def]
    """Compose the maps of a tile's segments into those from the tile's start, all factors being the settled ones."""
    old = np.empty_like(b)
    for k in range(strides.size):
        h = 1 << k
        _copy(b, old)
        late, own, early, factor = b[h:], old[h:], old[: SEGMENTS - h], strides[k]
        for s in range(late.size):
            late[s] = own[s] + factor * early[s]


@njit(cache=True, error_model="numpy")
def _compose(a, b):  # type: ignore[no-untyped-def]
    """The same with a factor for each segment; `a` holds the composed factors afterwards."""
    old_a, old_b = np.empty_like(a), np.empty_like(b)
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
def _ema_bars(columns, beta, y, shown):  # type: ignore[no-untyped-def]
    for i in range(SEGMENT):
        before, price, row = columns[i], columns[i + 1], shown[i]
        for s in range(price.size):
            y[s] = beta * (y[s] + (before[s] - price[s]))
            row[s] = price[s] + y[s]


@njit(cache=True, error_model="numpy")
def _rsi_segments(columns, beta, zero, up, down):  # type: ignore[no-untyped-def]
    _fill(up, zero)
    _fill(down, zero)
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


@njit(cache=True, error_model="numpy", nogil=True)
def _count_rows(prices, settled, broken, counts):  # type: ignore[no-untyped-def]
    for row in range(prices.shape[0]):
        _counts(prices[row], settled, broken[row], counts[row])


@njit(cache=True, error_model="numpy", nogil=True)
def _carry_rows(a, b, look_back, entry):  # type: ignore[no-untyped-def]
    assets, tiles = entry.shape
    for row in range(assets):
        _carry(a[row * tiles : (row + 1) * tiles, -1], b[row * tiles : (row + 1) * tiles, -1], look_back, entry[row])


@njit(cache=True, error_model="numpy", nogil=True)
def _ema_reduce(prices, beta, first, end, b, broken):  # type: ignore[no-untyped-def]
    tiles, space = broken.shape[1], np.empty((SEGMENT + 1) * SEGMENTS, prices.dtype)
    for task in range(first, end):
        start = task % tiles * TILE
        lanes = _segments(prices.shape[1], start)
        columns = space[: (SEGMENT + 1) * lanes].reshape(SEGMENT + 1, lanes)
        _columns(prices[task // tiles], start, columns)
        _ema_segments(columns, beta, b[task])
        broken[task // tiles, task % tiles] = _any_nan(b[task])


@njit(cache=True, error_model="numpy", nogil=True)
def _ema_compose(  # type: ignore[no-untyped-def]
    prices, beta, warm, valid, settled, one, inclusive, strides, counts, first, end, a, b, begin, broken
):
    tiles, nothing = broken.shape[1], np.empty(0, prices.dtype)
    for task in range(first, end):
        row, tile = task // tiles, task % tiles
        count = counts[row, tile]
        if count >= settled and not broken[row, tile]:
            _compose_settled(strides, b[task])
            _copy(inclusive, a[task])
            _fill(begin[task], -1)
            continue
        broken[row, tile] = True
        for s in range(SEGMENTS):
            if count >= settled and not np.isnan(b[task, s]):
                a[task, s], begin[task, s], count = inclusive[0], -1, settled + 1
            else:
                begin[task, s] = count
                count, a[task, s], b[task, s] = _ema_any_segment(
                    prices[row], tile * TILE + s * SEGMENT, count, beta, warm, valid, settled, one, one - one, nothing
                )
        _compose(a[task], b[task])


@njit(cache=True, error_model="numpy", nogil=True)
def _ema_show(  # type: ignore[no-untyped-def]
    prices, beta, warm, valid, settled, one, first, end, a, b, begin, broken, entry, out
):
    tiles, space = broken.shape[1], np.empty((2, (SEGMENT + 1) * SEGMENTS), prices.dtype)
    y = np.empty(SEGMENTS, prices.dtype)
    for task in range(first, end):
        row, start = task // tiles, task % tiles * TILE
        lanes = _segments(prices.shape[1], start)
        columns = space[0, : (SEGMENT + 1) * lanes].reshape(SEGMENT + 1, lanes)
        shown = space[1, : SEGMENT * lanes].reshape(SEGMENT, lanes)
        _enter(a[task], b[task], entry[row, task % tiles], y)
        _columns(prices[row], start, columns)
        _ema_bars(columns, beta, y, shown)
        _rows(shown, out[row, start : start + TILE])
        if broken[row, task % tiles]:
            _enter(a[task], b[task], entry[row, task % tiles], y)
            for s in range(SEGMENTS):
                if begin[task, s] >= 0:
                    _ema_any_segment(
                        prices[row], start + s * SEGMENT, begin[task, s], beta, warm, valid, settled, one, y[s],
                        out[row],
                    )  # fmt: skip


@njit(cache=True, error_model="numpy", nogil=True)
def _rsi_reduce(prices, beta, one, first, end, up, down, broken):  # type: ignore[no-untyped-def]
    tiles, space = broken.shape[1], np.empty((SEGMENT + 1) * SEGMENTS, prices.dtype)
    for task in range(first, end):
        start = task % tiles * TILE
        lanes = _segments(prices.shape[1], start)
        columns = space[: (SEGMENT + 1) * lanes].reshape(SEGMENT + 1, lanes)
        _columns(prices[task // tiles], start, columns)
        _rsi_segments(columns, beta, one - one, up[task], down[task])
        broken[task // tiles, task % tiles] = _any_nan(up[task])


@njit(cache=True, error_model="numpy", nogil=True)
def _rsi_compose(  # type: ignore[no-untyped-def]
    prices, beta, warm, valid, settled, weight, one, hundred, tiny, inclusive, strides, counts, first, end, a, up, down,
    begin, broken,
):  # fmt: skip
    tiles, nothing, zero = broken.shape[1], np.empty(0, prices.dtype), one - one
    for task in range(first, end):
        row, tile = task // tiles, task % tiles
        count = counts[row, tile]
        if count >= settled and not broken[row, tile]:
            _compose_settled(strides, up[task])
            _compose_settled(strides, down[task])
            _copy(inclusive, a[task])
            _fill(begin[task], -1)
            continue
        broken[row, tile] = True
        for s in range(SEGMENTS):
            if count >= settled and not np.isnan(up[task, s]):
                a[task, s], begin[task, s], count = inclusive[0], -1, settled + 1
            else:
                begin[task, s] = count
                count, a[task, s], up[task, s], down[task, s], _ = _rsi_any_segment(
                    prices[row], tile * TILE + s * SEGMENT, count, beta, warm, valid, settled, weight, one, hundred,
                    tiny, zero, zero, nothing,
                )  # fmt: skip
        again = a[task].copy()  # composing leaves the factors composed
        _compose(a[task], up[task])
        _compose(again, down[task])


@njit(cache=True, error_model="numpy", nogil=True)
def _rsi_show(  # type: ignore[no-untyped-def]
    prices, beta, warm, valid, settled, weight, one, hundred, tiny, first, end, a, up, down, begin, broken, entry_up,
    entry_down, held, out,
):  # fmt: skip
    tiles, space = broken.shape[1], np.empty((2, (SEGMENT + 1) * SEGMENTS), prices.dtype)
    gains, losses = np.empty(SEGMENTS, prices.dtype), np.empty(SEGMENTS, prices.dtype)
    for task in range(first, end):
        row, tile = task // tiles, task % tiles
        start = tile * TILE
        lanes = _segments(prices.shape[1], start)
        columns = space[0, : (SEGMENT + 1) * lanes].reshape(SEGMENT + 1, lanes)
        shown = space[1, : SEGMENT * lanes].reshape(SEGMENT, lanes)
        _enter(a[task], up[task], entry_up[row, tile], gains)
        _enter(a[task], down[task], entry_down[row, tile], losses)
        _columns(prices[row], start, columns)
        held[row, tile] = _rsi_bars(columns, beta, one - one, hundred, tiny, gains, losses, shown)
        _rows(shown, out[row, start : start + TILE])
        if broken[row, tile]:
            _enter(a[task], up[task], entry_up[row, tile], gains)
            _enter(a[task], down[task], entry_down[row, tile], losses)
            for s in range(SEGMENTS):
                if begin[task, s] >= 0:
                    _, _, _, _, some = _rsi_any_segment(
                        prices[row], start + s * SEGMENT, begin[task, s], beta, warm, valid, settled, weight, one,
                        hundred, tiny, gains[s], losses[s], out[row],
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


class _Maps:
    """What is known of each tile (assets, tiles) and of each of its segments (assets * tiles, segments)."""

    def __init__(self, prices: NDArray[Any], states: int) -> None:
        assets, tiles = prices.shape[0], -(-prices.shape[1] // TILE)
        self.tasks = assets * tiles
        self.a = np.empty((self.tasks, SEGMENTS), prices.dtype)
        self.b = [np.empty((self.tasks, SEGMENTS), prices.dtype) for _ in range(states)]
        # For a segment that a gap or a seed falls into, the bars counted before it; -1 where it only decays.
        self.begin = np.empty((self.tasks, SEGMENTS), np.int32)
        self.broken = np.empty((assets, tiles), np.bool_)
        self.counts = np.empty((assets, tiles), np.int64)
        self.entry = [np.empty((assets, tiles), prices.dtype) for _ in range(states)]

    def share(self, run: Callable[[int, int], None]) -> None:
        share(self.tasks, run, at_least=8)


def ema(prices: NDArray[Any], law: Recurrence, out: NDArray[Any]) -> None:
    """Fill `out` (assets, time) with the EMA of a law of recurrence.py."""
    real, maps = prices.dtype.type, _Maps(prices, states=1)
    beta, constants = real(law.beta), (real(law.beta), law.warm, law.valid, law.settled, real(1))
    factors = decays(law.beta, prices.dtype)
    segments = maps.a, *maps.b, maps.begin, maps.broken
    maps.share(lambda first, end: _ema_reduce(prices, beta, first, end, *maps.b, maps.broken))
    _count_rows(prices, law.settled, maps.broken, maps.counts)
    maps.share(lambda first, end: _ema_compose(prices, *constants, *factors, maps.counts, first, end, *segments))
    _carry_rows(maps.a, *maps.b, look_back(law, prices.itemsize), *maps.entry)
    maps.share(lambda first, end: _ema_show(prices, *constants, first, end, *segments, *maps.entry, out))


def rsi(prices: NDArray[Any], law: Recurrence, flat: float, out: NDArray[Any]) -> None:
    """Fill `out` (assets, time) with the RSI of a law of recurrence.py."""
    real, maps = prices.dtype.type, _Maps(prices, states=2)
    beta, one, tiny = real(law.beta), real(1), real(negligible(prices.itemsize))
    constants = beta, law.warm, law.valid, law.settled, real(law.first), one, real(100), tiny
    factors = decays(law.beta, prices.dtype)
    segments = maps.a, *maps.b, maps.begin, maps.broken
    held = np.empty(maps.broken.shape, np.int64)
    maps.share(lambda first, end: _rsi_reduce(prices, beta, one, first, end, *maps.b, maps.broken))
    _count_rows(prices, law.settled, maps.broken, maps.counts)
    maps.share(lambda first, end: _rsi_compose(prices, *constants, *factors, maps.counts, first, end, *segments))
    for b, entry in zip(maps.b, maps.entry, strict=True):
        _carry_rows(maps.a, b, look_back(law, prices.itemsize), entry)
    maps.share(lambda first, end: _rsi_show(prices, *constants, first, end, *segments, *maps.entry, held, out))
    _carry_held_rows(held, real(flat), out)
