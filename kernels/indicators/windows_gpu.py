"""Windows on a GPU: moving averages, bands and Cutler's RSI."""

from typing import Any

import numpy as np

from kernels.indicators.series import Series
from kernels.indicators.windows import steps

_LONGEST_IN_SHARED_MEMORY = 1024  # as in windows.cu


def means(series: Series, period: int) -> Any:
    joins, middle, nan = steps(period), series.empty(), series.nan
    if period <= _LONGEST_IN_SHARED_MEMORY:
        series.by_chunk("sma", joins, period, 2, series.shares(joins), nan, middle)
        return middle
    time, size = np.int64(series.time), np.int64(series.size)
    level = gathered = series.device.zeros(series.size, series.dtype)
    for join in joins:
        if join.take:
            gathered = level
            continue
        out = series.empty()
        new = gathered if join.gather else level
        share = series.real(join.old_share)
        series.by_bar("join_means", series.prices, time, size, np.int64(join.lag), share, nan, new, level, out)
        level, gathered = (level, out) if join.gather else (out, gathered)
    series.by_bar("show_means", series.prices, size, nan, gathered, middle)
    return middle


def bands(series: Series, period: int, width: float) -> list[Any]:
    joins, nan, reach = steps(period), series.nan, series.real(width)
    bands = [series.empty() for _ in range(3)]
    if period <= _LONGEST_IN_SHARED_MEMORY:
        series.by_chunk("bollinger", joins, period, 3, series.shares(joins), nan, reach, *bands)
        return bands
    time, size = np.int64(series.time), np.int64(series.size)
    zeros = series.device.zeros(series.size, series.dtype)
    level = gathered = (zeros, zeros)
    for join in joins:
        if join.take:
            gathered = level
            continue
        out = (series.empty(), series.empty())
        new = gathered if join.gather else level
        w = join.old_share
        shares = (series.real(share) for share in (w, 1.0 - w, w * (1.0 - w)))
        moments = new[0], level[0], new[1], level[1], *out
        series.by_bar("join_moments", series.prices, time, size, np.int64(join.lag), *shares, nan, *moments)
        level, gathered = (level, out) if join.gather else (out, gathered)
    series.by_bar("show_bands", series.prices, size, nan, reach, *gathered, *bands)
    return bands


def cutler(series: Series, period: int, flat: float) -> Any:
    joins, nan, out = steps(period), series.nan, series.empty()
    if period <= _LONGEST_IN_SHARED_MEMORY:
        series.by_chunk("cutler", joins, period, 2, nan, series.real(flat), out)
        return out
    time, size = np.int64(series.time), np.int64(series.size)
    level = gathered = (series.empty(), series.empty())
    series.by_bar("changes", series.prices, time, size, nan, *level)
    for join in joins:
        if join.take:
            gathered = level
            continue
        new = gathered if join.gather else level
        sums = (series.empty(), series.empty())
        for part, old, total in zip(new, level, sums, strict=True):
            series.by_bar("join_sums", time, size, np.int64(join.lag), nan, part, old, total)
        level, gathered = (level, sums) if join.gather else (sums, gathered)
    series.by_bar("show_strengths", size, nan, series.real(flat), *gathered, out)
    return out
