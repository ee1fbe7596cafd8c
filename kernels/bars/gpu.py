"""Bars on a GPU, by chunks of whole rows."""

from pathlib import Path
from typing import Any, cast

import numpy as np

from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.bars import spec
from warpdesk_server.kernels.bars.entries import Array, Sums, answer, entries_of
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
    entries = entries_of(params, inputs)
    edges, rows, time = entries.edges, entries.rows, entries.size.shape[1]
    count, dtype = edges.first.size, entries.size.dtype
    numbers, counts = np.empty((len(NUMBERS), rows, count), dtype), np.empty((rows, count), np.int64)
    kernel, at_once = device.kernel(_SOURCE[dtype.name], "sum_bars"), spec.rows_of_a_chunk(rows, time)
    keep = entries.keep.reshape(-1, time)

    def work(begin: int, end: int) -> None:
        part = slice(begin * at_once, min(end * at_once, rows))
        distinct = {id(column): device.to_device(column[part]) for column in entries.columns}
        columns = [distinct[id(column)] for column in entries.columns]
        kept = device.to_device(keep[part] if keep.size else np.zeros(1, np.uint8))
        first, last = device.to_device(edges.first), device.to_device(edges.end)
        shape = part.stop - part.start, count
        tasks = shape[0] * count
        results = [device.empty(shape, dtype) for _ in NUMBERS]
        counted = device.empty(shape, np.int64)
        kernel(
            (-(-tasks // _THREADS),),
            (_THREADS,),
            (
                *columns, kept, np.int32(keep.size > 0), first, last, np.int64(time), np.int64(count), np.int64(tasks),
                np.float64(np.nan), *results, counted,
            ),
        )  # fmt: skip
        for result, out in zip(results, numbers, strict=True):
            device.to_host(result, out[part])
        device.to_host(counted, counts[part])

    if count:
        infos = {
            name: ArrayInfo(cast(DType, array.dtype.name), array.shape)
            for name, array in inputs.items()
            if array is not None
        }
        chunks.run(device, spec.grid(params, infos), work, overlap=True)
    return answer(params, entries, Sums(numbers, counts))
