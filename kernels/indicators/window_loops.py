"""Windows on the CPU: the joins of windows.py over chunks of bars that stay in a core's cache."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kernels.cores import share
from kernels.indicators.windows import steps

# Bars per chunk: so many of all buffers fit the second-level cache. Chunks do not show in the result (windows.py).
CHUNK = 2048

Plan = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[Any]]


def plan(period: int, dtype: Any) -> Plan:
    """The joins as arrays: kind (0 level, 1 take, 2 gather), lag, and w, 1 - w, w (1 - w) in the dtype computed in."""
    joins = steps(period)
    kinds = np.array([0 if not join.gather else 1 if join.take else 2 for join in joins], np.uint8)
    lags = np.array([join.lag for join in joins], np.int64)
    shares = [(join.old_share, 1.0 - join.old_share, join.old_share * (1.0 - join.old_share)) for join in joins]
    return kinds, lags, np.array(shares, dtype)


def chunk_of(period: int) -> int:
    """Bars per chunk: long windows reach back `period` bars before a chunk, so their chunks are longer."""
    return max(CHUNK, 4 * period)


@njit(cache=True, error_model="numpy")
def _plain(value):  # type: ignore[no-untyped-def]
    """One NaN for every reason, so that the bytes do not depend on which operation met it."""
    return value if value == value else np.nan


@njit(cache=True, error_model="numpy")
def _fill(out, value):  # type: ignore[no-untyped-def]
    for i in range(out.size):  # Numba takes seconds to compile an assignment to a slice
        out[i] = value


@njit(cache=True, error_model="numpy")
def _join_prices(x_new, x_old, w, d):  # type: ignore[no-untyped-def]
    for i in range(d.size):
        d[i] = w * (x_old[i] - x_new[i])


@njit(cache=True, error_model="numpy")
def _join_means(x_new, x_old, d_new, d_old, w, d):  # type: ignore[no-untyped-def]
    for i in range(d.size):
        delta = (d_old[i] + (x_old[i] - x_new[i])) - d_new[i]
        d[i] = d_new[i] + w * delta


@njit(cache=True, error_model="numpy")
def _show_joined_means(x_new, x_old, d_new, d_old, w, middle):  # type: ignore[no-untyped-def]
    for i in range(middle.size):
        delta = (d_old[i] + (x_old[i] - x_new[i])) - d_new[i]
        middle[i] = _plain(x_new[i] + (d_new[i] + w * delta))


@njit(cache=True, error_model="numpy")
def _join_price_moments(x_new, x_old, w, d, v):  # type: ignore[no-untyped-def]
    for i in range(d.size):
        delta = x_old[i] - x_new[i]
        d[i] = w[0] * delta
        v[i] = w[2] * (delta * delta)


@njit(cache=True, error_model="numpy")
def _join_moments(x_new, x_old, d_new, d_old, v_new, v_old, w, d, v):  # type: ignore[no-untyped-def]
    for i in range(d.size):
        delta = (d_old[i] + (x_old[i] - x_new[i])) - d_new[i]
        d[i] = d_new[i] + w[0] * delta
        v[i] = (w[1] * v_new[i] + w[0] * v_old[i]) + w[2] * (delta * delta)


@njit(cache=True, error_model="numpy")
def _show_joined_moments(  # type: ignore[no-untyped-def]
    x_new, x_old, d_new, d_old, v_new, v_old, w, width, upper, middle, lower
):
    for i in range(middle.size):
        delta = (d_old[i] + (x_old[i] - x_new[i])) - d_new[i]
        mean = x_new[i] + (d_new[i] + w[0] * delta)
        reach = width * np.sqrt((w[1] * v_new[i] + w[0] * v_old[i]) + w[2] * (delta * delta))
        upper[i] = _plain(mean + reach)
        middle[i] = _plain(mean)
        lower[i] = _plain(mean - reach)


@njit(cache=True, error_model="numpy")
def _join_sums(new, old, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = new[i] + old[i]


@njit(cache=True, error_model="numpy")
def _mean_chunk(x, period, kinds, lags, shares, space, middle):  # type: ignore[no-untyped-def]
    size, last, length, kept = x.size, kinds.size - 1, 1, False
    level, spare, gathered, other = space[0, :size], space[1, :size], space[2, :size], space[3, :size]
    if period & 1:
        _fill(level, 0)
    for k in range(last):
        lag = lags[k]
        first = length - 1 + lag
        new, old = slice(first, size), slice(first - lag, size - lag)
        if kinds[k] == 0:
            if length == 1:
                _join_prices(x[new], x[old], shares[k, 0], spare[new])
            else:
                _join_means(x[new], x[old], level[new], level[old], shares[k, 0], spare[new])
            length *= 2
            if kept:  # the level is what was gathered so far and must stay
                level, spare, other, kept = spare, other, level, False
                gathered, other = other, gathered
            else:
                level, spare = spare, level
        elif kinds[k] == 1:
            kept = True
        else:
            _join_means(x[new], x[old], gathered[new], level[old], shares[k, 0], other[new])
            gathered, other = other, gathered
    lag = lags[last]
    new, old = slice(period - 1, size), slice(period - 1 - lag, size - lag)
    if kinds[last] == 2:
        _show_joined_means(x[new], x[old], gathered[new], level[old], shares[last, 0], middle)
    else:
        shown, deviation = x[new], level[new]
        for i in range(middle.size):
            middle[i] = _plain(shown[i] + deviation[i])


@njit(cache=True, error_model="numpy")
def _bands_chunk(x, period, kinds, lags, shares, width, space, upper, middle, lower):  # type: ignore[no-untyped-def]
    size, last, length, kept = x.size, kinds.size - 1, 1, False
    level_d, spare_d, gathered_d, other_d = space[0, :size], space[1, :size], space[2, :size], space[3, :size]
    level_v, spare_v, gathered_v, other_v = space[4, :size], space[5, :size], space[6, :size], space[7, :size]
    if period & 1:
        _fill(level_d, 0)
        _fill(level_v, 0)
    for k in range(last):
        lag = lags[k]
        first = length - 1 + lag
        new, old = slice(first, size), slice(first - lag, size - lag)
        if kinds[k] == 0:
            if length == 1:
                _join_price_moments(x[new], x[old], shares[k], spare_d[new], spare_v[new])
            else:
                _join_moments(
                    x[new], x[old], level_d[new], level_d[old], level_v[new], level_v[old], shares[k], spare_d[new],
                    spare_v[new],
                )  # fmt: skip
            length *= 2
            if kept:
                level_d, spare_d, other_d, kept = spare_d, other_d, level_d, False
                level_v, spare_v, other_v = spare_v, other_v, level_v
                gathered_d, other_d = other_d, gathered_d
                gathered_v, other_v = other_v, gathered_v
            else:
                level_d, spare_d = spare_d, level_d
                level_v, spare_v = spare_v, level_v
        elif kinds[k] == 1:
            kept = True
        else:
            _join_moments(
                x[new], x[old], gathered_d[new], level_d[old], gathered_v[new], level_v[old], shares[k], other_d[new],
                other_v[new],
            )  # fmt: skip
            gathered_d, other_d = other_d, gathered_d
            gathered_v, other_v = other_v, gathered_v
    lag = lags[last]
    new, old = slice(period - 1, size), slice(period - 1 - lag, size - lag)
    if kinds[last] == 2:
        _show_joined_moments(
            x[new], x[old], gathered_d[new], level_d[old], gathered_v[new], level_v[old], shares[last], width, upper,
            middle, lower,
        )  # fmt: skip
    else:
        shown, deviation, variance = x[new], level_d[new], level_v[new]
        for i in range(middle.size):
            mean = shown[i] + deviation[i]
            reach = width * np.sqrt(variance[i])
            upper[i] = _plain(mean + reach)
            middle[i] = _plain(mean)
            lower[i] = _plain(mean - reach)


@njit(cache=True, error_model="numpy")
def _cutler_chunk(x, period, kinds, lags, hundred, flat, rsi):  # type: ignore[no-untyped-def]
    change = x[1:] - x[:-1]
    size = change.size
    level_g, level_l = np.empty_like(change), np.empty_like(change)
    zero = hundred - hundred
    for i in range(size):  # a NaN is neither <= 0 nor >= 0 and stays in both
        level_g[i] = zero if change[i] <= 0 else change[i]
        level_l[i] = zero if change[i] >= 0 else -change[i]
    spare_g, spare_l = np.empty_like(change), np.empty_like(change)
    gathered_g, gathered_l = np.empty_like(change), np.empty_like(change)
    length = 1
    for k in range(kinds.size):
        lag = lags[k]
        if kinds[k] == 0:
            first = 2 * length - 1
            _join_sums(level_g[first:], level_g[first - lag : size - lag], spare_g[first:])
            _join_sums(level_l[first:], level_l[first - lag : size - lag], spare_l[first:])
            level_g, spare_g = spare_g, level_g
            level_l, spare_l = spare_l, level_l
            length *= 2
        elif kinds[k] == 1:
            gathered_g[:] = level_g
            gathered_l[:] = level_l
        else:
            first = lag + length - 1
            _join_sums(gathered_g[first:], level_g[first - lag : size - lag], gathered_g[first:])
            _join_sums(gathered_l[first:], level_l[first - lag : size - lag], gathered_l[first:])
    gains, losses = gathered_g[period - 1 :], gathered_l[period - 1 :]
    for i in range(rsi.size):
        total = gains[i] + losses[i]
        # total - total is NaN where gains or losses overflowed.
        rsi[i] = flat if total == 0 else _plain(hundred * (gains[i] / total) + (total - total))


@njit(cache=True, error_model="numpy", nogil=True)
def _mean_chunks(prices, period, kinds, lags, shares, chunk, first, end, middle):  # type: ignore[no-untyped-def]
    time = prices.shape[1]
    chunks = (time - period) // chunk + 1
    space = np.empty((4, chunk + period - 1), prices.dtype)
    for task in range(first, end):
        row, start = task // chunks, task % chunks * chunk
        if start == 0:
            _fill(middle[row, : period - 1], np.nan)
        stop = min(start + chunk + period - 1, time)
        shown = middle[row, start + period - 1 : stop]
        _mean_chunk(prices[row, start:stop], period, kinds, lags, shares, space, shown)


@njit(cache=True, error_model="numpy", nogil=True)
def _bands_chunks(  # type: ignore[no-untyped-def]
    prices, period, kinds, lags, shares, width, chunk, first, end, upper, middle, lower
):
    time = prices.shape[1]
    chunks = (time - period) // chunk + 1
    space = np.empty((8, chunk + period - 1), prices.dtype)
    for task in range(first, end):
        row, start = task // chunks, task % chunks * chunk
        if start == 0:
            _fill(upper[row, : period - 1], np.nan)
            _fill(middle[row, : period - 1], np.nan)
            _fill(lower[row, : period - 1], np.nan)
        stop = min(start + chunk + period - 1, time)
        shown = slice(start + period - 1, stop)
        _bands_chunk(
            prices[row, start:stop], period, kinds, lags, shares, width, space, upper[row, shown], middle[row, shown],
            lower[row, shown],
        )  # fmt: skip


@njit(cache=True, error_model="numpy", nogil=True)
def _cutler_chunks(prices, period, kinds, lags, hundred, flat, chunk, first, end, rsi):  # type: ignore[no-untyped-def]
    time = prices.shape[1]
    chunks = (time - period - 1) // chunk + 1
    for task in range(first, end):
        row, start = task // chunks, task % chunks * chunk
        if start == 0:
            _fill(rsi[row, :period], np.nan)
        stop = min(start + chunk + period, time)
        _cutler_chunk(prices[row, start:stop], period, kinds, lags, hundred, flat, rsi[row, start + period : stop])


def means(prices: NDArray[Any], period: int, middle: NDArray[Any]) -> None:
    """Fill `middle` (assets, time) with the mean of each bar's last `period` prices, NaN before the first window."""
    joins = plan(period, prices.dtype)

    def run(chunk: int, first: int, end: int) -> None:
        _mean_chunks(prices, period, *joins, chunk, first, end, middle)

    _by_chunk(run, period, prices, middle)


def bands(
    prices: NDArray[Any], period: int, width: float, upper: NDArray[Any], middle: NDArray[Any], lower: NDArray[Any]
) -> None:
    """Fill the three bands (assets, time) from the mean and population deviation of each bar's last `period` prices."""
    joins, reach = plan(period, prices.dtype), prices.dtype.type(width)

    def run(chunk: int, first: int, end: int) -> None:
        _bands_chunks(prices, period, *joins, reach, chunk, first, end, upper, middle, lower)

    _by_chunk(run, period, prices, upper, middle, lower)


def cutler(prices: NDArray[Any], period: int, flat: float, rsi: NDArray[Any]) -> None:
    """Fill `rsi` (assets, time) from plain sums of the last `period` gains and losses."""
    kinds, lags, _ = plan(period, prices.dtype)
    real = prices.dtype.type

    def run(chunk: int, first: int, end: int) -> None:
        _cutler_chunks(prices, period, kinds, lags, real(100), real(flat), chunk, first, end, rsi)

    _by_chunk(run, period + 1, prices, rsi)


def _by_chunk(run: Callable[[int, int, int], None], needed: int, prices: NDArray[Any], *outputs: NDArray[Any]) -> None:
    assets, time = prices.shape
    if time < needed:
        for out in outputs:
            out.fill(np.nan)
        return
    chunk = chunk_of(needed)
    share(assets * ((time - needed) // chunk + 1), lambda first, end: run(chunk, first, end), at_least=4)
