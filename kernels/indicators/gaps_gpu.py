"""Gaps on a GPU: closed before an indicator runs and reopened in its result, as gaps.py does."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from warpdesk_server.kernels.indicators.recurrence import SEGMENTS
from warpdesk_server.kernels.indicators.series import Series


@dataclass(frozen=True)
class PriceCounts:
    """Of a series whose rows have several tiles: the prices before each tile, the bar of the latest one before it, and
    the prices of each row. The rows of a single tile are each seen whole by a block, and nothing is read here."""

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
    """The prices of each row moved to its left end, NaN behind them."""
    out = series.empty()
    _launch(series, "pack", series.prices, *_shape(series), before.count, before.total, series.nan, out)
    return series.with_prices(out)


def spread(series: Series, before: PriceCounts, result: Any) -> Any:
    """A result of packed prices, back on the bars of `series` that have one, NaN on the others."""
    out = series.empty()
    args = before.count, before.total, series.nan, out
    _launch(series, "spread", result, series.prices, *_shape(series), *args)
    return out


def filled(series: Series) -> Series:
    """The prices, the latest one before it in place of each that is missing."""
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
    """The rows that share a block of 64 segments."""
    return SEGMENTS // series.width
