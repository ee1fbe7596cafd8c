"""Indicators' sums over windows on a GPU (mean, deviation, Cutler's RSI), in one pass, or in two for long windows."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from warpdesk_server.kernels.gpu.occupancy import Shape, best
from warpdesk_server.kernels.indicators.series import Series
from warpdesk_server.kernels.indicators.windows import EIGHT, SHORT, STRETCH, share, totals

# As in windows.cu.
_SLOTS = 9
_MOST_SHORT, _MOST = 128, 256  # threads


def means(series: Series, period: int, out: Any) -> None:
    _run(series, "sma", period, out, sums=1)


def deviations(series: Series, period: int, out: Any) -> None:
    _run(series, "deviation", period, out, sums=2)


def cutler(series: Series, period: int, flat: float, out: Any) -> None:
    _run(series, "cutler", period, out, sums=2, own=flat)


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


def _run(series: Series, name: str, period: int, out: Any, sums: int, own: float = 0.0) -> None:
    itemsize = series.dtype.itemsize
    prices = series.prices, np.int64(series.time), np.int32(period)
    law = share(period, series.dtype), series.real(own), series.nan

    def launch(kernel: str, shape: Shape, *args: Any) -> None:
        series.launch("windows.cu", kernel, shape.blocks, shape.threads, *prices, *args, shared=shape.shared)

    if period <= SHORT:
        spreads = {}
        for most in (_MOST_SHORT // 2, _MOST_SHORT):
            spread = _rows(series.rows, -(-series.time // EIGHT), most)
            threads, eights = _warps(spread.packed * spread.many), spread.packed * (spread.many + 2)
            work = threads * EIGHT + spread.packed * 2 * EIGHT
            spreads[Shape(spread.blocks(series.rows), threads, work, eights * _SLOTS * itemsize)] = spread
        shape = best(series.device, series.kernel("windows.cu", f"{name}_short"), spreads)
        spread = spreads[shape]
        dealt = np.int64(series.rows), np.int64(spread.tiles), np.int32(spread.many), np.int32(spread.packed)
        launch(f"{name}_short", shape, *dealt, *law, out)
        return
    blocks = -(-series.time // period)
    if period <= STRETCH:
        eights = -(-period // EIGHT)
        deals = {}
        for most in (_MOST // 4, _MOST // 2, _MOST):
            if eights > most:
                continue
            deal = _rows(series.rows, blocks, most // eights)
            threads = _warps(deal.packed * deal.many * eights)
            region = (deal.many + 1) * eights * _SLOTS  # prices of all blocks and of the one before
            shared = (deal.packed * region + 2 * sums * threads) * itemsize
            shape = Shape(deal.blocks(series.rows), threads, threads * EIGHT + deal.packed * period, shared)
            deals[shape] = deal, region
        shape = best(series.device, series.kernel("windows.cu", name), deals)
        deal, region = deals[shape]
        cut = np.int64(series.rows), np.int64(deal.tiles)
        places = (np.int32(number) for number in (eights, deal.many, deal.packed, region))
        reciprocal = np.uint32(2**32 // period + 1)
        launch(name, shape, *cut, *places, reciprocal, np.int32(deal.packed * region), *law, out)
        return
    stretches = -(-period // STRETCH)
    grid = np.int64(blocks), np.int32(stretches)
    left = series.empty(totals(period, series.rows, series.time, sums))
    shared = (2 * _MOST * _SLOTS + 1 + 2 * sums * _MOST) * itemsize
    shape = Shape(series.rows * blocks * stretches, _MOST, 2 * STRETCH, shared)
    launch(f"{name}_totals", shape, *grid, series.nan, left)
    launch(f"{name}_long", shape, *grid, left, *law, out)


def _warps(threads: int) -> int:
    return -(-threads // 32) * 32
