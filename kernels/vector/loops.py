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
_NEAR = 200  # powers of two: (2^13 * 4^2) 4^200 does not overflow, and 4^-200 leaves the largest square normal
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


@njit(cache=True, inline="always")
def _size(number):  # type: ignore[no-untyped-def]
    """The bits of a number's magnitude, which have the order of magnitudes; NaN is above infinity."""
    return np.float64(number).view(np.int64) & _MAGNITUDE


@njit(cache=True, nogil=True)
def _add_squares(x, factor, lanes):  # type: ignore[no-untyped-def]
    """Add (x factor)^2 to the lanes of a tile of a vector norm; returns the bits of the largest magnitude."""
    largest, fours = np.int64(0), x.size - x.size % (4 * LANES)
    for line in range(0, fours, 4 * LANES):  # four lines at once take three quarters of the time of one after another
        lines = x[line : line + 4 * LANES]
        for lane in range(LANES):
            a, b = np.float64(lines[lane]), np.float64(lines[lane + LANES])
            c, d = np.float64(lines[lane + 2 * LANES]), np.float64(lines[lane + 3 * LANES])
            largest = max(largest, max(max(_size(a), _size(b)), max(_size(c), _size(d))))
            a, b, c, d = a * factor, b * factor, c * factor, d * factor
            lanes[lane] = (((lanes[lane] + a * a) + b * b) + c * c) + d * d
    for line in range(fours, x.size, LANES):
        part = x[line : min(line + LANES, x.size)]
        for lane in range(part.size):
            scaled = np.float64(part[lane]) * factor
            lanes[lane] += scaled * scaled
            largest = max(largest, _size(part[lane]))
    return largest


@njit(cache=True, nogil=True)
def squares(x, n, tiles, first, end, out, scales):  # type: ignore[no-untyped-def]
    """Write for a vector norm each tile's sum of (x 2^scale)^2 and its scale: the largest magnitude comes to [2, 4).

    If all magnitudes are below 2^-1022, the least normal number, the scale is the largest possible.

    The largest magnitude is found in the same pass as the sum, which is taken with the scale of the tile before. One
    that is near gives the same sum but for a power of two: what is lost below the least number is too small to be
    seen beside the largest. Otherwise the tile is summed again.
    """
    lanes = np.empty(LANES)
    scale = 0
    for tile in range(first, end):
        start, count = _place(n, tiles, tile)
        width = _width(count)
        near = False
        while not near:
            tried = scale
            lanes[:width] = 0.0
            largest = _add_squares(x[start : start + count], ldexp(1.0, tried), lanes)
            exponent = int(largest >> _EXPONENT)
            scale = 1024 - exponent if exponent > 0 else 1023
            if exponent == 2047:
                scale = tried = 0  # the sum is infinite or NaN with any scale
            near = abs(scale - tried) <= _NEAR
        out[tile] = ldexp(tree_sum(lanes[:width]), 2 * (scale - tried))
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
