"""The compiled loop that sums bars: the twin of bars.cu."""

import math

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def sum_bars(opens, highs, lows, closes, values, sizes, keep, first, end, time, begin, stop, numbers, counts):  # type: ignore[no-untyped-def]
    """Fill bars `begin` to `stop` of `numbers` (6, rows * bars) and `counts`, which are those of row 0, then row 1.

    Inputs are flat, `time` entries in each row; without `values` they are (high + low + close) / 3. Sums are in float64
    and go in the order of entries. VWAP sums differences to the open, so that equal prices give themselves.
    """
    bars, given, some = first.size, values.size > 0, keep.size > 0
    for task in range(begin, stop):
        row, bar = task // bars, task % bars
        count, volume, moved = 0, 0.0, 0.0
        open_ = high = low = close = math.nan
        # Unsigned, so that no index is compared with 0.
        for i in range(np.uint64(row * time + first[bar]), np.uint64(row * time + end[bar])):
            if some and keep[i] == 0:
                continue
            if count == 0:
                open_ = np.float64(opens[i])
                high, low = np.float64(highs[i]), np.float64(lows[i])
            count += 1
            top, bottom, size = np.float64(highs[i]), np.float64(lows[i]), np.float64(sizes[i])
            if top > high:
                high = top
            if bottom < low:
                low = bottom
            close = np.float64(closes[i])
            volume += size
            if size > 0.0:
                price = np.float64(values[i]) if given else (top + bottom + close) / 3.0
                moved += (price - open_) * size
        vwap = math.nan
        if volume > 0.0:
            vwap = open_ + moved / volume
            if vwap > high:
                vwap = high
            if vwap < low:
                vwap = low
        numbers[0, task] = open_
        numbers[1, task] = high
        numbers[2, task] = low
        numbers[3, task] = close
        numbers[4, task] = volume
        numbers[5, task] = vwap
        counts[task] = count
