"""Indicators over windows on a GPU (moving average, bands, Cutler's RSI), in one pass, or in two for long windows.

`series` may be a part of longer rows (windows.Part). It must then begin no later than windows.first_bar, with
changes=True for `cutler`. The results, (rows, time - halo), have the same bytes as those of whole rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from warpdesk_server.kernels.gpu.occupancy import Shape, best
from warpdesk_server.kernels.indicators.series import Series
from warpdesk_server.kernels.indicators.windows import EIGHT, SHORT, WHOLE, Part, share

# As in windows.cu.
_SLOTS = 9
_MOST_SHORT, _MOST = 128, 256  # threads
# It decides bytes: the sum of a longer block is added up from sums of so many bars.
_LONG_BARS = EIGHT * _MOST


def means(series: Series, period: int, part: Part = WHOLE, out: Any = None) -> Any:
    return _run(series, "sma", period, 0.0, part, sums=1, out=out)[0]


def bands(series: Series, period: int, width: float, part: Part = WHOLE) -> list[Any]:
    return _run(series, "bollinger", period, width, part, sums=2, outputs=3)


def deviations(series: Series, period: int, out: Any = None) -> Any:
    return _run(series, "deviation", period, 1.0, WHOLE, sums=2, out=out)[0]


def cutler(series: Series, period: int, flat: float, part: Part = WHOLE, out: Any = None) -> Any:
    return _run(series, "cutler", period, flat, part, sums=2, out=out)[0]


@dataclass(frozen=True)
class _Rows:
    """Rows of prices cut into `tiles` tiles of `many` pieces each; if that is one tile, `packed` rows share a block."""

    tiles: int
    many: int
    packed: int

    def blocks(self, rows: int) -> int:
        return -(-rows // self.packed) * self.tiles


def _rows(rows: int, pieces: int, most: int) -> _Rows:
    """The cut of rows of prices of `pieces` pieces each, if a block holds at most `most`. The tiles of a row are
    equally long."""
    tiles = -(-pieces // most)
    many = -(-pieces // tiles)
    return _Rows(tiles, many, min(rows, most // many) if tiles == 1 else 1)


def _run(
    series: Series, name: str, period: int, own: float, part: Part, sums: int, outputs: int = 1, out: Any = None
) -> list[Any]:
    shown, itemsize = series.time - part.halo, series.dtype.itemsize
    results = [series.empty(series.rows * shown) for _ in range(outputs)] if out is None else [out]
    prices = series.prices, np.int64(series.time), np.int64(part.origin), np.int64(part.halo), np.int32(period)
    law = share(period, series.dtype), series.real(own), series.nan

    def launch(kernel: str, shape: Shape, *args: Any) -> None:
        series.launch("windows.cu", kernel, shape.blocks, shape.threads, *prices, *args, shared=shape.shared)

    if period <= SHORT:
        spreads = {}
        for most in (_MOST_SHORT // 2, _MOST_SHORT):
            spread = _rows(series.rows, -(-shown // EIGHT), most)
            threads, eights = _warps(spread.packed * spread.many), spread.packed * (spread.many + 2)
            work = threads * EIGHT + spread.packed * 2 * EIGHT
            spreads[Shape(spread.blocks(series.rows), threads, work, eights * _SLOTS * itemsize)] = spread
        shape = best(series.device, series.kernel("windows.cu", f"{name}_short"), spreads)
        spread = spreads[shape]
        dealt = np.int64(series.rows), np.int64(spread.tiles), np.int32(spread.many), np.int32(spread.packed)
        launch(f"{name}_short", shape, *dealt, *law, *results)
        return results
    first = (part.origin + part.halo) // period
    blocks = (part.origin + series.time - 1) // period - first + 1
    if period <= _LONG_BARS:
        eights = -(-period // EIGHT)
        deals = {}
        for most in (_MOST // 4, _MOST // 2, _MOST):
            if eights > most:
                continue
            deal = _rows(series.rows, blocks, most // eights)
            threads = _warps(deal.packed * deal.many * eights)
            # Prices of all blocks and of the one before. Results overwrite them: mean and deviation, for bands.
            region = max(deal.many + 1, deal.many * min(outputs, 2)) * eights * _SLOTS
            shared = (deal.packed * region + 2 * sums * threads) * itemsize
            shape = Shape(deal.blocks(series.rows), threads, threads * EIGHT + deal.packed * period, shared)
            deals[shape] = deal, region
        shape = best(series.device, series.kernel("windows.cu", name), deals)
        deal, region = deals[shape]
        cut = np.int64(series.rows), np.int64(first), np.int64(deal.tiles)
        places = (np.int32(number) for number in (eights, deal.many, deal.packed, region))
        reciprocal = np.uint32(2**32 // period + 1)
        launch(name, shape, *cut, *places, reciprocal, np.int32(deal.packed * region), *law, *results)
        return results
    stretches = -(-period // _LONG_BARS)
    grid = np.int64(first), np.int64(blocks), np.int32(stretches)
    totals = series.empty(series.rows * blocks * stretches * 2 * sums)
    shared = (2 * _MOST * _SLOTS + 1 + 2 * sums * _MOST) * itemsize
    shape = Shape(series.rows * blocks * stretches, _MOST, 2 * _LONG_BARS, shared)
    launch("bollinger_totals" if name == "deviation" else f"{name}_totals", shape, *grid, series.nan, totals)
    launch(f"{name}_long", shape, *grid, totals, *law, *results)
    return results


def _warps(threads: int) -> int:
    return -(-threads // 32) * 32
