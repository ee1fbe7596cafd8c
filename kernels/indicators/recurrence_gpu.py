"""Recurrences on a GPU: exponential averages and RSI."""

from typing import Any

import numpy as np

from kernels.indicators.recurrence import SEGMENTS, Recurrence, look_back, negligible
from kernels.indicators.series import Series


def _law(law: Recurrence) -> tuple[np.int32, np.int32, np.int32]:
    return np.int32(law.warm), np.int32(law.valid), np.int32(law.settled)


def _entries(series: Series, back: int, maps_a: Any, maps_b: Any) -> Any:
    """The state before each tile where it is carried through all of them; otherwise *_run looks back by itself."""
    if back:
        return maps_b
    entry = series.empty(series.tasks)
    rows = np.int64(series.rows), np.int64(series.tiles)
    series.launch("recurrence.cu", "carry", -(-series.rows // SEGMENTS), SEGMENTS, *rows, maps_a, maps_b, entry)
    return entry


def _reduced(series: Series, name: str, law: tuple[Any, ...], states: int) -> tuple[Any, list[Any]]:
    """Counts of bars before each segment, and the maps from each tile's start: the factor and `states` offsets."""
    shape = np.int64(series.time), np.int64(series.tiles)
    last = series.device.empty(series.tasks, np.int64)
    series.by_tile("recurrence.cu", "gaps", series.prices, *shape, last)
    counts = series.device.empty(series.tasks * SEGMENTS, np.int32)
    maps = [series.empty(series.tasks * SEGMENTS) for _ in range(1 + states)]
    series.by_tile("recurrence.cu", name, series.prices, *shape, last, *law, counts, *maps)
    return counts, maps


def averages(series: Series, law: Recurrence) -> Any:
    constants = series.real(law.beta), *_law(law)
    counts, maps = _reduced(series, "ema_reduce", constants, 1)
    back = look_back(law, series.dtype.itemsize)
    shape = np.int64(series.time), np.int64(series.tiles)
    out = series.empty()
    series.by_tile(
        "recurrence.cu",
        "ema_run",
        *(series.prices, *shape, *constants, np.int32(back)),
        *(counts, *maps, _entries(series, back, *maps), series.nan, out),
    )
    return out


def strengths(series: Series, law: Recurrence, flat: float) -> Any:
    constants = series.real(law.beta), series.real(law.first), *_law(law)
    counts, maps = _reduced(series, "rsi_reduce", constants, 2)
    back = look_back(law, series.dtype.itemsize)
    shape = np.int64(series.time), np.int64(series.tiles)
    entries = [_entries(series, back, maps[0], offset) for offset in maps[1:]]
    held = series.device.empty(series.tasks, np.int32)
    ends, out = series.empty(series.tasks), series.empty()
    tiny, level = series.real(negligible(series.dtype.itemsize)), series.real(flat)
    series.by_tile(
        "recurrence.cu",
        "rsi_run",
        *(series.prices, *shape, *constants, np.int32(back)),
        *(counts, *maps, *entries, tiny, level, series.nan, held, ends, out),
    )
    series.by_tile("recurrence.cu", "rsi_hold", *shape, held, ends, level, out)
    return out
