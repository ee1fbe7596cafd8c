"""The compiled loops of the vector operations: each computes some of an array's elements, or of its tiles.

Inputs are one-dimensional and read-only. In reductions, `n` is the length of a row, `tiles` the number of tiles in a
row, and `first` to `end` are the tiles to compute.
"""

from math import ldexp

import numpy as np
from numba import njit

from warpdesk_server.kernels.device.reduce import tree_sum
from warpdesk_server.kernels.vector.spec import TILE
from warpdesk_server.kernels.vector.tiles import MAGNITUDE, MIN

LANES = 1024

_EXPONENT = np.int64(52)  # bits below a float64's exponent
_MAGNITUDE = np.int64(0x7FFFFFFFFFFFFFFF)  # all bits but the sign


@njit(cache=True, nogil=True)
def add(x, y, out):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        out[i] = x[i] + y[i]


@njit(cache=True, nogil=True)
def multiply(x, y, out):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        out[i] = x[i] * y[i]


@njit(cache=True, nogil=True)
def axpy(alpha, x, y, out):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        out[i] = alpha * x[i] + y[i]


@njit(cache=True, inline="always")
def _place(n, tiles, tile):  # type: ignore[no-untyped-def]
    """The first element of a vector reduction's tile, and its number of elements."""
    within = tile % tiles * TILE
    return tile // tiles * n + within, min(TILE, n - within)


@njit(cache=True, inline="always")
def _width(count):  # type: ignore[no-untyped-def]
    """The number of lanes of a reduction's tile to halve: those that are not empty, rounded up to a power of two."""
    width = 1
    while width < count and width < LANES:
        width *= 2
    return width


@njit(cache=True, nogil=True)
def sums(x, n, tiles, first, end, out):  # type: ignore[no-untyped-def]
    lanes = np.empty(LANES)
    for tile in range(first, end):
        start, count = _place(n, tiles, tile)
        width = _width(count)
        lanes[:width] = 0.0
        for line in range(start, start + count, LANES):
            part = x[line : min(line + LANES, start + count)]
            for lane in range(part.size):
                lanes[lane] += np.float64(part[lane])
        out[tile] = tree_sum(lanes[:width])


@njit(cache=True, nogil=True)
def dots(x, y, n, tiles, first, end, out):  # type: ignore[no-untyped-def]
    lanes = np.empty(LANES)
    for tile in range(first, end):
        start, count = _place(n, tiles, tile)
        width = _width(count)
        lanes[:width] = 0.0
        for line in range(start, start + count, LANES):
            last = min(line + LANES, start + count)
            part, other = x[line:last], y[line:last]
            for lane in range(part.size):
                lanes[lane] += np.float64(part[lane]) * np.float64(other[lane])
        out[tile] = tree_sum(lanes[:width])


@njit(cache=True, nogil=True)
def magnitudes(x, n, tiles, first, end, out):  # type: ignore[no-untyped-def]
    lanes = np.empty(LANES)
    for tile in range(first, end):
        start, count = _place(n, tiles, tile)
        width = _width(count)
        lanes[:width] = 0.0
        for line in range(start, start + count, LANES):
            part = x[line : min(line + LANES, start + count)]
            for lane in range(part.size):
                lanes[lane] += abs(np.float64(part[lane]))
        out[tile] = tree_sum(lanes[:width])


@njit(cache=True, nogil=True)
def squares(x, n, tiles, first, end, out, scales):  # type: ignore[no-untyped-def]
    """Write for a vector norm each tile's sum of (x 2^scale)^2 and its scale: the largest magnitude comes to [2, 4).

    If all magnitudes are below 2^-1022, the least normal number, the scale is the largest possible.
    """
    lanes = np.empty(LANES)
    for tile in range(first, end):
        start, count = _place(n, tiles, tile)
        width = _width(count)
        largest = np.int64(0)
        whole = x[start : start + count]
        for i in range(whole.size):
            largest = max(largest, np.float64(whole[i]).view(np.int64) & _MAGNITUDE)
        exponent = int(largest >> _EXPONENT)
        scale = 1024 - exponent if exponent > 0 else 1023
        if exponent == 2047:
            scale = 0  # a NaN, so the sum is NaN
        factor = ldexp(1.0, scale)
        lanes[:width] = 0.0
        for line in range(start, start + count, LANES):
            part = x[line : min(line + LANES, start + count)]
            for lane in range(part.size):
                scaled = np.float64(part[lane]) * factor
                lanes[lane] += scaled * scaled
        out[tile] = tree_sum(lanes[:width])
        scales[tile] = scale


@njit(cache=True, nogil=True)
def greatest(bits, sign, infinity, which, n, tiles, first, end, out):  # type: ignore[no-untyped-def]
    """Write the greatest key of each tile (kernels/vector/tiles.py); `bits` are the floats' bits as integers.

    `sign` is the position of the highest bit, `infinity` the bits of infinity.
    """
    most = (np.int64(1) << np.int64(sign)) - np.int64(1) if sign < 63 else _MAGNITUDE
    flip = np.int64(-1) if which == MIN else np.int64(0)
    magnitude = which == MAGNITUDE
    for tile in range(first, end):
        start, count = _place(n, tiles, tile)
        part = bits[start : start + count]
        best = -most - 1
        for i in range(part.size):
            size = part[i] & most
            key = size if magnitude else (part[i] ^ ((part[i] >> sign) & most)) ^ flip
            best = max(best, most if size > infinity else key)
        out[tile] = best
