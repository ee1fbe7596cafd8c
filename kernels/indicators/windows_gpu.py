"""Windows on a GPU: moving averages, bands and Cutler's RSI, in one pass, or in two where a window is long.

`series` may be a part of longer rows (windows.Part). It must then begin no later than windows.first_bar says, with
changes=True for `cutler`, and the results, (rows, time - halo), have the bytes of the whole.
"""

from typing import Any

import numpy as np

from kernels.indicators.series import Series
from kernels.indicators.windows import EIGHT, SHORT, WHOLE, Part, share

# As in windows.cu.
_SLOTS = 9
_FEW, _THREADS = 128, 256
_LONG_BARS = EIGHT * _THREADS  # of one block of bars, in a block of threads


def means(series: Series, period: int, part: Part = WHOLE) -> Any:
    return _run(series, "sma", period, 0.0, part, sums=1)[0]


def bands(series: Series, period: int, width: float, part: Part = WHOLE) -> list[Any]:
    return _run(series, "bollinger", period, width, part, sums=2, outputs=3)


def cutler(series: Series, period: int, flat: float, part: Part = WHOLE) -> Any:
    return _run(series, "cutler", period, flat, part, sums=2)[0]


def at_a_time(eights: int) -> int:
    """Blocks of so many eights of bars that a block of threads takes."""
    return (_FEW if 2 * eights <= _FEW else _THREADS) // eights


def _run(series: Series, name: str, period: int, own: float, part: Part, sums: int, outputs: int = 1) -> list[Any]:
    shown = series.time - part.halo
    results = [series.empty(series.rows * shown) for _ in range(outputs)]
    prices = series.prices, np.int64(series.time), np.int64(part.origin), np.int64(part.halo), np.int32(period)
    law = share(period, series.dtype), series.real(own), series.nan

    def launch(kernel: str, blocks: int, threads: int, *args: Any, slots: int = 0) -> None:
        size = slots * series.dtype.itemsize
        series.launch("windows.cu", kernel, series.rows * blocks, threads, *prices, *args, shared=size)

    if period <= SHORT:
        tiles = -(-shown // (EIGHT * _FEW))
        launch(f"{name}_short", tiles, _FEW, np.int64(tiles), *law, *results)
        return results
    first = (part.origin + part.halo) // period
    blocks = (part.origin + series.time - 1) // period - first + 1
    if period <= _LONG_BARS:
        eights = -(-period // EIGHT)
        many = min(blocks, at_a_time(eights))
        threads = -(-many * eights // 32) * 32
        tiles = -(-blocks // many)
        # Prices of all blocks and of the one before, in whose place the results come: mean and deviation, for bands.
        slots = max(many + 1, many * min(outputs, 2)) * eights * _SLOTS
        deal = np.int64(first), np.int64(tiles), np.int32(eights), np.int32(many), np.uint32(2**32 // period + 1)
        launch(name, tiles, threads, *deal, np.int32(slots), *law, *results, slots=slots + 2 * sums * threads)
        return results
    stretches = -(-period // _LONG_BARS)
    grid = np.int64(first), np.int64(blocks), np.int32(stretches)
    totals = series.empty(series.rows * blocks * stretches * 2 * sums)
    slots = 2 * _THREADS * _SLOTS + 1 + 2 * sums * _THREADS
    launch(f"{name}_totals", blocks * stretches, _THREADS, *grid, series.nan, totals, slots=slots)
    launch(f"{name}_long", blocks * stretches, _THREADS, *grid, totals, *law, *results, slots=slots)
    return results
