"""Bars on a GPU, by chunks of whole rows."""

from pathlib import Path
from typing import Any, cast

import numpy as np

from warpdesk.models import DType
from warpdesk_server.kernels import progress
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.bars import spec
from warpdesk_server.kernels.bars.entries import EDGES, Array, Sums, answer, entries_of
from warpdesk_server.kernels.bars.spec import NUMBERS, Bars
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.source import Source

_FILE = Path(__file__).with_name("bars.cu")
_SOURCE = {"float64": Source(_FILE, {"REAL": "f64"}), "float32": Source(_FILE, {"REAL": "f32"})}
SOURCES: tuple[Source, ...] = tuple(_SOURCE.values())

_THREADS = 128  # as in bars.cu


def bars(params: Bars, *, device: Device, **inputs: Array | None) -> dict[str, Any]:
    """The bars of ticks (n), or of smaller bars (n) or (assets, n). Raises InvalidRequest for what only data shows."""
    with progress.stage(0, EDGES):
        entries = entries_of(params, inputs)
    edges, rows, time = entries.edges, entries.rows, entries.size.shape[1]
    count, dtype = edges.first.size, entries.size.dtype
    numbers, counts = np.empty((len(NUMBERS), rows * count), dtype), np.empty(rows * count, np.int64)
    kernel, at_once = device.kernel(_SOURCE[dtype.name], "sum_bars"), spec.rows_of_a_chunk(rows, time)
    keep, nothing = entries.keep.reshape(-1, time), np.zeros(1, dtype)

    def work(begin: int, end: int) -> None:
        part = slice(begin * at_once, min(end * at_once, rows))
        distinct = {
            id(column): device.to_device(column[part] if column.size else nothing) for column in entries.columns
        }
        columns = [distinct[id(column)] for column in entries.columns]
        kept = device.to_device(keep[part] if keep.size else np.zeros(1, np.uint8))
        first, last = device.to_device(edges.first), device.to_device(edges.end)
        bars_of_part = slice(part.start * count, part.stop * count)
        tasks = bars_of_part.stop - bars_of_part.start
        results, counted = device.empty(len(NUMBERS) * tasks, dtype), device.empty(tasks, np.int64)
        flags = np.int32(entries.value.size > 0), np.int32(keep.size > 0)
        sizes = np.int64(time), np.int64(count), np.int64(tasks)
        args = *columns, kept, *flags, first, last, *sizes, np.float64(np.nan), results, counted
        kernel((-(-tasks // _THREADS),), (_THREADS,), args)
        for at, out in enumerate(numbers):
            device.to_host(results[at * tasks : (at + 1) * tasks], out[bars_of_part])
        device.to_host(counted, counts[bars_of_part])

    if count:
        infos = {
            name: ArrayInfo(cast(DType, array.dtype.name), array.shape)
            for name, array in inputs.items()
            if array is not None
        }
        with progress.stage(EDGES, 1):
            chunks.run(device, spec.grid(params, infos), work, overlap=True)
    shape = rows, count
    return answer(params, entries, Sums(numbers.reshape(len(NUMBERS), *shape), counts.reshape(shape)))
