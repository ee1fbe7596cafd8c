"""Bars on all cores of the CPU: the reference for every other backend."""

from typing import Any

import numpy as np

from warpdesk_server.kernels import progress
from warpdesk_server.kernels.bars.entries import EDGES, Array, Sums, answer, entries_of
from warpdesk_server.kernels.bars.loops import sum_bars
from warpdesk_server.kernels.bars.spec import NUMBERS, Bars
from warpdesk_server.kernels.cpu.cores import share

_AT_LEAST = 1 << 16  # entries: fewer are not worth another thread


def bars(params: Bars, **inputs: Array | None) -> dict[str, Any]:
    """The bars of ticks (n), or of smaller bars (n) or (assets, n). Raises InvalidRequest for what only data shows."""
    with progress.stage(0, EDGES):
        entries = entries_of(params, inputs)
    edges, rows, time = entries.edges, entries.rows, entries.size.shape[1]
    tasks = rows * edges.first.size
    numbers, counts = np.empty((len(NUMBERS), tasks), entries.size.dtype), np.empty(tasks, np.int64)
    given = *(column.reshape(-1) for column in entries.columns), entries.keep, edges.first, edges.end, time
    with progress.stage(EDGES, 1):
        share(
            tasks,
            lambda begin, stop: sum_bars(*given, begin, stop, numbers, counts),
            at_least=max(1, _AT_LEAST * tasks // entries.size.size),
        )
    shape = rows, edges.first.size
    return answer(params, entries, Sums(numbers.reshape(len(NUMBERS), *shape), counts.reshape(shape)))
