"""Gaps in prices on a GPU: closed before an indicator runs and reopened in its result, as gaps.py does."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from warpdesk_server.kernels.indicators.recurrence import SEGMENTS
from warpdesk_server.kernels.indicators.series import Series


@dataclass(frozen=True)
class PriceCounts:
    """The counts of prices in an indicator's series whose rows have several tiles.

    `count` is the number of prices before each tile, `latest` the bar of the last one before it, `total` the number in
    each row. If rows have one tile, a block sees the whole row, and these arrays are not read.
    """

    count: Any
    latest: Any
    total: Any


def count_prices(series: Series) -> PriceCounts:
    device = series.device
    if series.tiles == 1:
        nothing = device.empty(1, np.int64)
        return PriceCounts(nothing, nothing, nothing)
    count, latest = (device.empty(series.tasks, np.int64) for _ in range(2))
    total = device.empty(series.rows, np.int64)
    shape = np.int64(series.time), np.int64(series.tiles)
    series.launch("gaps.cu", "count_prices", series.tasks, SEGMENTS, series.prices, *shape, count, latest)
    blocks = -(-series.rows // (SEGMENTS // 32))  # a warp per row
    rows = np.int64(series.rows), np.int64(series.tiles)
    series.launch("gaps.cu", "carry_prices", blocks, SEGMENTS, *rows, count, latest, total)
    return PriceCounts(count, latest, total)


def packed(series: Series, before: PriceCounts) -> Series:
    """The indicator's series with the prices of each row packed to its left end, followed by NaN."""
    out = series.empty()
    _launch(series, "pack", series.prices, *_shape(series), before.count, before.total, series.nan, out)
    return series.with_prices(out)


def spread(series: Series, before: PriceCounts, result: Any) -> Any:
    """An indicator's result for packed prices, back on the bars of `series` that have a price; NaN on the others."""
    out = series.empty()
    args = before.count, before.total, series.nan, out
    _launch(series, "spread", result, series.prices, *_shape(series), *args)
    return out


def filled(series: Series) -> Series:
    """The indicator's series with each missing price replaced by the latest one before it."""
    out = series.empty()
    _launch(series, "fill_forward", series.prices, *_shape(series), count_prices(series).latest, series.nan, out)
    return series.with_prices(out)


def _shape(series: Series) -> tuple[Any, ...]:
    whole = (np.int64(value) for value in (series.rows, series.time, series.tiles))
    return (*whole, np.int32(_rows_together(series)), np.int32(series.width))


def _launch(series: Series, name: str, *args: Any) -> None:
    blocks = series.tasks if series.tiles > 1 else -(-series.rows // _rows_together(series))
    series.launch("gaps.cu", name, blocks, SEGMENTS, *args)


def _rows_together(series: Series) -> int:
    """The number of rows of prices that share a block of 64 segments on the GPU."""
    return SEGMENTS // series.width
