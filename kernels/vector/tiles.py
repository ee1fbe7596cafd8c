"""The part of vector reductions that all backends share: rows are cut into tiles, whose results become one number.

A row of n elements is cut into tiles of 8192, the last one shorter. Lane l of 1024 adds the elements l, l + 1024, ...
of its tile in this order. The lanes are added by halving, and the tiles of a row by pairs of neighbours
(kernels/device/reduce.py). The shape of this tree depends on n alone, so no distribution of the work changes a byte.

Minimum, maximum and largest magnitude need no tree, since they do not round. Floats are compared as integers, by keys
of the same order: if the sign bit is set, all other bits are inverted. So -0.0 comes before +0.0. NaN has the greatest
key.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.device.reduce import pairwise_sum
from warpdesk_server.kernels.vector.spec import TILE, Reduction, rows

MAX, MIN, MAGNITUDE = range(3)  # which extreme to find: as in vector.cu


@dataclass(frozen=True)
class Tiles:
    """The tiles of a vector reduction over rows of n elements each; `shape` is that of the result."""

    rows: int
    n: int
    shape: tuple[int, ...]

    @property
    def per_row(self) -> int:
        return -(-self.n // TILE)

    @property
    def count(self) -> int:
        return self.rows * self.per_row

    def start(self, tile: int) -> int:
        """The first element of a reduction's tile; for the tile after the last it is the number of all elements."""
        row, within = divmod(tile, self.per_row)
        return row * self.n + within * TILE


def cut(params: Reduction, x: NDArray[Any]) -> Tiles:
    count, n = rows(params, x.shape)
    return Tiles(count, n, (1,) if params.axis == "all" or x.ndim == 1 else x.shape[:-1])


def added(tiles: Tiles, sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """The vector sums of all rows from the sums of their tiles."""
    return pairwise_sum(sums.reshape(tiles.rows, tiles.per_row).T).reshape(tiles.shape)


def euclidean(tiles: Tiles, squares: NDArray[np.float64], scales: NDArray[np.int32]) -> NDArray[np.float64]:
    """The L2 norms of all vectors (rows) from the sums of (x 2^scale)^2 over their tiles."""
    scales = scales.reshape(tiles.rows, tiles.per_row)
    least = scales.min(axis=1)  # the scale of the largest magnitude
    shifted = np.ldexp(squares.reshape(scales.shape), 2 * (least[:, None] - scales))
    with np.errstate(over="ignore"):
        norms: NDArray[np.float64] = np.ldexp(np.sqrt(pairwise_sum(shifted.T)), -least)
    return norms.reshape(tiles.shape)


def extreme(tiles: Tiles, keys: NDArray[np.int64], which: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The extreme elements of all vectors (rows) from the greatest keys of their tiles, as floats of `dtype`."""
    greatest = keys.reshape(tiles.rows, tiles.per_row).max(axis=1)
    integer = np.dtype(f"i{dtype.itemsize}")
    most = np.iinfo(integer).max  # the key of NaN
    key = ~greatest if which == MIN else greatest
    values = (key ^ ((key >> 63) & most)).astype(integer).view(dtype)
    return np.where(greatest == most, dtype.type(np.nan), values).reshape(tiles.shape)
