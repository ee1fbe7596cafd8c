"""The indicators EMA and RSI on a GPU, by recurrences, in one launch each."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.gpu.occupancy import Shape, best
from warpdesk_server.kernels.indicators.recurrence import (
    GROUP,
    SEGMENT,
    SEGMENTS,
    TILE,
    Recurrence,
    decay,
    look_back,
    negligible,
)
from warpdesk_server.kernels.indicators.series import Series

HOLD = -1.0  # as in recurrence.cu
_MOST_SEGMENTS = 192  # as there: of the rows that share a block


@dataclass(frozen=True)
class Place:
    """The place of a series of prices in a row that was cut in time; by default the rows are whole.

    The bars begin with tile `first` of the row. Of these, `halo` tiles at the front are only reduced. `counted` is the
    number of bars since the last gap before them. If `first` is not 0, the bar before them is the first of the prices.
    `before` is the state there (see `start`), if the recurrence depends on all earlier tiles.
    """

    first: int = 0
    halo: int = 0
    counted: int = 0
    before: NDArray[Any] | None = None


def start(states: int) -> NDArray[Any]:
    """The state of an indicator's recurrence before a row of prices: that before the span, the map of its groups, and
    the map of tiles."""
    nothing = [0.0] * states
    return np.array([*nothing, 1.0, *nothing, 1.0, *nothing])


def averages(series: Series, law: Recurrence, place: Place = Place(), out: Any = None) -> tuple[Any, Any]:
    """The EMA on a GPU, and the state after it (see `start`), which is undefined if tiles look back."""
    if law.beta == 0:
        return series.prices[int(place.first > 0) + place.halo * TILE :], None
    return _run(series, "ema", 1, law, place, out, np.int32(law.late + 1))


def strengths(series: Series, law: Recurrence, flat: float, place: Place = Place(), out: Any = None) -> tuple[Any, Any]:
    """The RSI on a GPU, and the state after it. A bar that repeats a value from before the cut is HOLD."""
    own = series.real(law.first), series.real(negligible(series.dtype.itemsize)), series.real(flat)
    return _run(series, "rsi", 2, law, place, out, *own)


def _run(series: Series, name: str, states: int, law: Recurrence, place: Place, out: Any, *own: Any) -> tuple[Any, Any]:
    device, back, lead = series.device, look_back(law, series.dtype.itemsize), int(place.first > 0)
    tiles, tasks = series.tiles, series.tasks
    shape = best(device, series.kernel("recurrence.cu", name), _shapes(series, states))
    packed = shape.threads // series.width
    groups = spans = 0
    if back == 0:
        groups = -(-(place.first % GROUP + tiles) // GROUP)
        spans = (place.first % GROUP**2 + tiles) // GROUP**2 + 1
    flags = device.zeros(1 + 3 * tasks + series.rows * (groups + spans), np.uint32)
    tables = series.empty((2 + states) * tasks + series.rows * ((1 + states) * groups + states * spans))
    after = series.empty(3 * states + 2)
    out = series.empty(series.rows * (series.time - place.halo * TILE)) if out is None else out
    before = after  # a placeholder: the kernel reads neither, and no copy is needed
    if back == 0:
        before = device.to_device((start(states) if place.before is None else place.before).astype(series.dtype))
    series.launch(
        "recurrence.cu",
        name,
        shape.blocks,
        shape.threads,
        *(series.prices, np.int64(series.rows), np.int64(series.time), np.int64(tiles), np.int64(place.first)),
        *(np.int32(value) for value in (lead, packed, series.width, place.halo, place.counted, back)),
        *(np.int64(groups), np.int64(spans), flags, tables, before, after, out),
        *(series.real(law.beta), decay(law.beta, series.real)),
        *(np.int32(value) for value in (law.late + law.warm, law.late + law.valid, law.settled)),
        *(series.nan, *own),
        shared=shape.shared,
    )
    return out, after


def _shapes(series: Series, states: int) -> Iterator[Shape]:
    """The possible shapes of an indicator's launch: a tile, or a single row, has a block of its own; short rows share
    one."""
    alone = series.tiles > 1 or series.rows == 1
    for threads in (SEGMENTS,) if alone else range(32, _MOST_SEGMENTS + 1, 32):
        packed = threads // series.width
        if not alone and threads - packed * series.width >= 32:
            continue  # one of its warps would be idle
        blocks = series.tasks if alone else -(-series.rows // packed)
        numbers = threads * (SEGMENT + 1) + 1 + (1 + states) * threads
        yield Shape(blocks, threads, threads, numbers * series.dtype.itemsize + 4 * (2 * threads + 1))
