"""Vector operations on a device: elements, or whole tiles, as many chunks of them at a time as memory holds."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels import chunks
from kernels.cuda import Device, Source
from kernels.vector import spec
from kernels.vector.spec import Axpy, Elementwise, Norm, Reduction
from kernels.vector.tiles import MAGNITUDE, MAX, MIN, added, cut, euclidean, extreme

Array = NDArray[Any]
Answer = dict[str, Any]

_FILE = Path(__file__).with_name("vector.cu")
_SOURCE = {"float64": Source(_FILE, {"REAL": "f64"}), "float32": Source(_FILE, {"REAL": "f32"})}
SOURCES: tuple[Source, ...] = tuple(_SOURCE.values())

_THREADS, _PACKS, _LANES = 256, 4, 1024  # as in vector.cu


def add(params: Elementwise, x: Array, y: Array, *, device: Device) -> Answer:  # noqa: ARG001
    """x + y, of one shape and dtype."""
    return {"add": _each("add", (), x, y, device)}


def multiply(params: Elementwise, x: Array, y: Array, *, device: Device) -> Answer:  # noqa: ARG001
    """x * y, of one shape and dtype."""
    return {"multiply": _each("multiply", (), x, y, device)}


def axpy(params: Axpy, x: Array, y: Array, *, device: Device) -> Answer:
    """alpha * x + y, rounded after each of the two."""
    return {"axpy": _each("axpy", (x.dtype.type(params.alpha),), x, y, device)}


def dot(params: Reduction, x: Array, y: Array, *, device: Device) -> Answer:
    """Sum of x * y in float64, of shape (1) or of x's without its last axis."""
    return {"dot": _added("dot_tiles", params, (x, y), device)}


def sum(params: Reduction, x: Array, *, device: Device) -> Answer:  # noqa: A001
    """Sum of x in float64, of shape (1) or of x's without its last axis."""
    return {"sum": _added("sum_tiles", params, (x,), device)}


def norm(params: Norm, x: Array, *, device: Device) -> Answer:
    """Norm of x in float64, of shape (1) or of x's without its last axis."""
    if params.order == "l1":
        return {"norm": _added("norm1_tiles", params, (x,), device)}
    if params.order == "linf":
        return {"norm": _extreme(params, MAGNITUDE, x, device).astype(np.float64)}
    tiles = cut(params, x)
    squares, scales = np.empty(tiles.count), np.empty(tiles.count, np.int32)
    _by_tile("norm2_tiles", params, (x,), (), (squares, scales), device)
    return {"norm": euclidean(tiles, squares, scales)}


def min(params: Reduction, x: Array, *, device: Device) -> Answer:  # noqa: A001
    """Least of x, of its dtype and of shape (1) or of its without the last axis."""
    return {"min": _extreme(params, MIN, x, device)}


def max(params: Reduction, x: Array, *, device: Device) -> Answer:  # noqa: A001
    """Greatest of x, of its dtype and of shape (1) or of its without the last axis."""
    return {"max": _extreme(params, MAX, x, device)}


def _each(name: str, factors: tuple[Any, ...], x: Array, y: Array, device: Device) -> Array:
    kernel = device.kernel(_SOURCE[x.dtype.name], name)
    flat_x, flat_y, out = x.reshape(-1), y.reshape(-1), np.empty(x.size, x.dtype)

    def work(first: int, end: int) -> None:
        part = slice(first * spec.CHUNK, end * spec.CHUNK)
        given, result = device.to_device(flat_x[part]), device.to_device(flat_y[part])
        blocks = -(-given.nbytes // (16 * _PACKS * _THREADS))
        kernel((blocks,), (_THREADS,), (*factors, np.uint64(given.size), given, result))
        device.to_host(result, out[part])

    chunks.run(device, spec.element_chunks(x.size, x.itemsize), work, overlap=True)
    return out.reshape(x.shape)


def _by_tile(
    name: str, params: Reduction, arrays: tuple[Array, ...], options: tuple[Any, ...], outs: tuple[Array, ...],
    device: Device,
) -> None:  # fmt: skip
    """Fill `outs`, an entry for each tile, by a kernel that is given `arrays` and `options`."""
    tiles, itemsize = cut(params, arrays[0]), arrays[0].itemsize
    kernel = device.kernel(_SOURCE[arrays[0].dtype.name], name)
    flat, at_once = [array.reshape(-1) for array in arrays], spec.tiles_per_chunk(tiles.n)
    rows_of_a_block = 1 if tiles.n > _LANES else _THREADS // 32

    def work(first_chunk: int, end_chunk: int) -> None:
        first = first_chunk * at_once
        last = end_chunk * at_once if end_chunk * at_once < tiles.count else tiles.count
        part = slice(tiles.start(first), tiles.start(last))
        given = [device.to_device(array[part]) for array in flat]
        results = [device.empty(last - first, out.dtype) for out in outs]
        lengths = (np.uint64(number) for number in (tiles.n, tiles.per_row, first, last))
        blocks = -(-(last - first) // rows_of_a_block)
        kernel((blocks,), (_THREADS,), (*given, *options, *lengths, *results))
        for out, result in zip(outs, results, strict=True):
            device.to_host(result, out[first:last])

    grid = spec.tile_chunks(tiles.rows, tiles.n, len(arrays) * itemsize, spec.result_bytes(params))
    chunks.run(device, grid, work, overlap=True)


def _added(name: str, params: Reduction, arrays: tuple[Array, ...], device: Device) -> Array:
    tiles = cut(params, arrays[0])
    sums = np.empty(tiles.count)
    _by_tile(name, params, arrays, (), (sums,), device)
    return added(tiles, sums)


def _extreme(params: Reduction, which: int, x: Array, device: Device) -> Array:
    tiles = cut(params, x)
    keys = np.empty(tiles.count, np.int64)
    _by_tile("greatest_tiles", params, (x,), (np.int32(which),), (keys,), device)
    return extreme(tiles, keys, which, x.dtype)
