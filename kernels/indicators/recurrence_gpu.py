"""The indicators EMA and RSI on a GPU, by recurrences, in one launch each."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from warpdesk_server.kernels.gpu.occupancy import Shape, best
from warpdesk_server.kernels.indicators.recurrence import (
    SEGMENT,
    SEGMENTS,
    Recurrence,
    board,
    decay,
    look_back,
    negligible,
)
from warpdesk_server.kernels.indicators.series import Series

_MOST_SEGMENTS = 192  # as in recurrence.cu: of the rows that share a block


def averages(series: Series, law: Recurrence, out: Any) -> None:
    """The EMA on a GPU; `law.beta` is not 0."""
    _run(series, "ema", 1, law, out, np.int32(law.late + 1))


def strengths(series: Series, law: Recurrence, flat: float, out: Any) -> None:
    own = series.real(law.first), series.real(negligible(series.dtype.itemsize)), series.real(flat)
    _run(series, "rsi", 2, law, out, *own)


def _run(series: Series, name: str, states: int, law: Recurrence, out: Any, *own: Any) -> None:
    device, itemsize = series.device, series.dtype.itemsize
    needed = board(law, states, series.rows, series.tiles, itemsize)
    shape = best(device, series.kernel("recurrence.cu", name), _shapes(series, states))
    packed = shape.threads // series.width
    flags, tables = device.zeros(needed.flags, np.uint32), series.empty(needed.numbers)
    series.launch(
        "recurrence.cu",
        name,
        shape.blocks,
        shape.threads,
        *(series.prices, np.int64(series.rows), np.int64(series.time), np.int64(series.tiles)),
        *(np.int32(value) for value in (packed, series.width, look_back(law, itemsize))),
        *(np.int64(needed.groups), np.int64(needed.spans), flags, tables, out),
        *(series.real(law.beta), decay(law.beta, series.real)),
        *(np.int32(value) for value in (law.late + law.warm, law.late + law.valid, law.settled)),
        *(series.nan, *own),
        shared=shape.shared,
    )


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
