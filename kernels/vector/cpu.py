"""The vector operations on all cores of the CPU: the reference for every other backend."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.vector import loops
from warpdesk_server.kernels.vector.spec import TILE, Axpy, Elementwise, Norm, Reduction
from warpdesk_server.kernels.vector.tiles import MAGNITUDE, MAX, MIN, Tiles, added, cut, euclidean, extreme

Array = NDArray[Any]
Answer = dict[str, Any]

_AT_LEAST = 1 << 16  # elements: fewer are not worth another thread


def add(params: Elementwise, x: Array, y: Array) -> Answer:  # noqa: ARG001
    """The vector sum x + y of two arrays of equal shape and dtype, element by element."""
    return {"add": _each(loops.add, x, y)}


def multiply(params: Elementwise, x: Array, y: Array) -> Answer:  # noqa: ARG001
    """The vector product x * y of two arrays of equal shape and dtype, element by element."""
    return {"multiply": _each(loops.multiply, x, y)}


def axpy(params: Axpy, x: Array, y: Array) -> Answer:
    """The vector operation alpha * x + y, rounded after the product and after the sum."""
    alpha = x.dtype.type(params.alpha)
    return {"axpy": _each(lambda *job: loops.axpy(alpha, *job), x, y)}


def dot(params: Reduction, x: Array, y: Array) -> Answer:
    """The dot product of vectors x and y in float64; its shape is x's without the last axis, or (1)."""
    return {"dot": _added(params, loops.dots, x, y)}


def sum(params: Reduction, x: Array) -> Answer:  # noqa: A001
    """The sum of a vector x in float64; its shape is x's without the last axis, or (1)."""
    return {"sum": _added(params, loops.sums, x)}


def norm(params: Norm, x: Array) -> Answer:
    """The norm of a vector x in float64; its shape is x's without the last axis, or (1)."""
    if params.order == "l1":
        return {"norm": _added(params, loops.magnitudes, x)}
    if params.order == "linf":
        return {"norm": _extreme(params, MAGNITUDE, x).astype(np.float64)}
    tiles = cut(params, x)
    squares, scales = np.empty(tiles.count), np.empty(tiles.count, np.int32)
    _by_tile(tiles, lambda *job: loops.squares(_flat(x), *job, squares, scales))
    return {"norm": euclidean(tiles, squares, scales)}


def min(params: Reduction, x: Array) -> Answer:  # noqa: A001
    """The minimum of a vector x in its dtype; its shape is x's without the last axis, or (1)."""
    return {"min": _extreme(params, MIN, x)}


def max(params: Reduction, x: Array) -> Answer:  # noqa: A001
    """The maximum of a vector x in its dtype; its shape is x's without the last axis, or (1)."""
    return {"max": _extreme(params, MAX, x)}


def _flat(array: Array) -> Array:
    """A vector operation's array, flat and read-only: Numba compiles again for each mixture of writable and read-only
    arrays."""
    flat = np.asarray(array).reshape(-1)
    flat.flags.writeable = False
    return flat


def _each(loop: Callable[..., None], x: Array, y: Array) -> Array:
    out = np.empty(x.shape, x.dtype)
    arrays = _flat(x), _flat(y), out.reshape(-1)
    share(x.size, lambda first, end: loop(*(array[first:end] for array in arrays)), at_least=_AT_LEAST)
    return out


def _by_tile(tiles: Tiles, loop: Callable[..., None]) -> None:
    elements = tiles.n if tiles.n < TILE else TILE
    share(
        tiles.count,
        lambda first, end: loop(tiles.n, tiles.per_row, first, end),
        at_least=-(-_AT_LEAST // elements),
    )


def _added(params: Reduction, loop: Callable[..., None], *arrays: Array) -> Array:
    tiles = cut(params, arrays[0])
    sums, flat = np.empty(tiles.count), [_flat(array) for array in arrays]
    _by_tile(tiles, lambda *job: loop(*flat, *job, sums))
    return added(tiles, sums)


def _extreme(params: Reduction, which: int, x: Array) -> Array:
    tiles = cut(params, x)
    keys = np.empty(tiles.count, np.int64)
    integer = np.dtype(f"i{x.itemsize}")
    sign, infinity = 8 * x.itemsize - 1, int(x.dtype.type(np.inf).view(integer))
    _by_tile(tiles, lambda *job: loops.greatest(_flat(x).view(integer), sign, infinity, which, *job, keys))
    return extreme(tiles, keys, which, x.dtype)
