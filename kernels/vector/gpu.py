"""The vector operations on a GPU, by chunks of elements or of whole tiles."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device, Kernel
from warpdesk_server.kernels.gpu.occupancy import Shape, best
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.vector import spec
from warpdesk_server.kernels.vector.spec import Axpy, Elementwise, Norm, Reduction
from warpdesk_server.kernels.vector.tiles import MAGNITUDE, MAX, MIN, added, cut, euclidean, extreme

Array = NDArray[Any]
Answer = dict[str, Any]

_FILE = Path(__file__).with_name("vector.cu")
_SOURCE = {"float64": Source(_FILE, {"REAL": "f64"}), "float32": Source(_FILE, {"REAL": "f32"})}
SOURCES: tuple[Source, ...] = tuple(_SOURCE.values())

# As in vector.cu. Lanes decide bytes, and the threads of a tile are those its tree is written for.
_LANES, _THREADS = 1024, 256
_MOST_THREADS = 512  # of a block of independent warps; for rows, as many as for a tile
_WARP_BYTES = 2048  # bytes of x that a warp of an elementwise kernel handles


def add(params: Elementwise, x: Array, y: Array, *, device: Device) -> Answer:  # noqa: ARG001
    """The vector sum x + y of two arrays of equal shape and dtype on a GPU, element by element."""
    return {"add": _each("add", (), x, y, device)}


def multiply(params: Elementwise, x: Array, y: Array, *, device: Device) -> Answer:  # noqa: ARG001
    """The vector product x * y of two arrays of equal shape and dtype on a GPU, element by element."""
    return {"multiply": _each("multiply", (), x, y, device)}


def axpy(params: Axpy, x: Array, y: Array, *, device: Device) -> Answer:
    """The vector operation alpha * x + y on a GPU, rounded after the product and after the sum."""
    return {"axpy": _each("axpy", (x.dtype.type(params.alpha),), x, y, device)}


def dot(params: Reduction, x: Array, y: Array, *, device: Device) -> Answer:
    """The dot product of vectors x and y on a GPU in float64; its shape is x's without the last axis, or (1)."""
    return {"dot": _added("dot_tiles", params, (x, y), device)}


def sum(params: Reduction, x: Array, *, device: Device) -> Answer:  # noqa: A001
    """The sum of a vector x on a GPU in float64; its shape is x's without the last axis, or (1)."""
    return {"sum": _added("sum_tiles", params, (x,), device)}


def norm(params: Norm, x: Array, *, device: Device) -> Answer:
    """The norm of a vector x on a GPU in float64; its shape is x's without the last axis, or (1)."""
    if params.order == "l1":
        return {"norm": _added("norm1_tiles", params, (x,), device)}
    if params.order == "linf":
        return {"norm": _extreme(params, MAGNITUDE, x, device).astype(np.float64)}
    tiles = cut(params, x)
    squares, scales = np.empty(tiles.count), np.empty(tiles.count, np.int32)
    _by_tile("norm2_tiles", params, (x,), (), (squares, scales), device)
    return {"norm": euclidean(tiles, squares, scales)}


def min(params: Reduction, x: Array, *, device: Device) -> Answer:  # noqa: A001
    """The minimum of a vector x on a GPU in its dtype; its shape is x's without the last axis, or (1)."""
    return {"min": _extreme(params, MIN, x, device)}


def max(params: Reduction, x: Array, *, device: Device) -> Answer:  # noqa: A001
    """The maximum of a vector x on a GPU in its dtype; its shape is x's without the last axis, or (1)."""
    return {"max": _extreme(params, MAX, x, device)}


def _each(name: str, factors: tuple[Any, ...], x: Array, y: Array, device: Device) -> Array:
    kernel = device.kernel(_SOURCE[x.dtype.name], name)
    flat_x, flat_y, out = x.reshape(-1), y.reshape(-1), np.empty(x.size, x.dtype)

    def work(first: int, end: int) -> None:
        part = slice(first * spec.CHUNK, end * spec.CHUNK)
        given, result = device.to_device(flat_x[part]), device.to_device(flat_y[part])
        shape = _of_warps(-(-given.nbytes // _WARP_BYTES), _MOST_THREADS, kernel, device)
        kernel((shape.blocks,), (shape.threads,), (*factors, np.uint64(given.size), given, result))
        device.to_host(result, out[part])

    chunks.run(device, spec.element_chunks(x.size, x.itemsize), work, overlap=True)
    return out.reshape(x.shape)


def _by_tile(
    name: str, params: Reduction, arrays: tuple[Array, ...], options: tuple[Any, ...], outs: tuple[Array, ...],
    device: Device,
) -> None:  # fmt: skip
    """Run a vector reduction's kernel over all tiles of `arrays`, and fill `outs`, which have an entry for each
    tile."""
    tiles, itemsize = cut(params, arrays[0]), arrays[0].itemsize
    kernel = device.kernel(_SOURCE[arrays[0].dtype.name], name)
    flat, at_once = [array.reshape(-1) for array in arrays], spec.tiles_per_chunk(tiles.n)

    def work(first_chunk: int, end_chunk: int) -> None:
        first = first_chunk * at_once
        last = end_chunk * at_once if end_chunk * at_once < tiles.count else tiles.count
        part = slice(tiles.start(first), tiles.start(last))
        given = [device.to_device(array[part]) for array in flat]
        results = [device.empty(last - first, out.dtype) for out in outs]
        lengths = (np.uint64(number) for number in (tiles.n, tiles.per_row, first, last))
        tasks = last - first
        if tiles.n > _LANES:
            shape = Shape(tasks, _THREADS, 1)
        elif name == "norm2_tiles":
            shape = Shape(-(-tasks // (_THREADS // 32)), _THREADS, 1)
        else:
            shape = _of_warps(tasks, _THREADS, kernel, device)
        kernel((shape.blocks,), (shape.threads,), (*given, *options, *lengths, *results))
        for out, result in zip(outs, results, strict=True):
            device.to_host(result, out[first:last])

    grid = spec.tile_chunks(tiles.rows, tiles.n, len(arrays) * itemsize, spec.result_bytes(params))
    chunks.run(device, grid, work, overlap=True)


def _of_warps(warps: int, most: int, kernel: Kernel, device: Device) -> Shape:
    """The launch shape of a vector reduction's independent warps, in blocks of up to `most` threads; few are spread
    over the device."""
    given = (most // 4, most // 2, most)
    return best(device, kernel, (Shape(-(-warps // (threads // 32)), threads, threads) for threads in given))


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
