"""Shamir reconstruction on the CPU: compiled loops that combine shares into values, over strips of elements.

All numbers are 64-bit integers, reduced as late as they allow. A number mod 2^61 - 1 is two halves of 31 and 30 bits.
Twin: shamir.cu.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.compiled import inner

STRIP = 512  # elements that are combined at a time: their sums stay in the first-level cache

_U64 = np.uint64
_P61 = np.uint64(2**61 - 1)
_LOW30, _LOW31 = np.uint64(2**30 - 1), np.uint64(2**31 - 1)
_1, _30, _31, _61 = (np.uint64(number) for number in (1, 30, 31, 61))


@inner
def _add31(total, y, w):  # type: ignore[no-untyped-def]
    """Add four weighted Shamir shares: total[j] += sum of y[.][j] w[.], reduced to at most 2^34."""
    y0, y1, y2, y3 = y
    w0, w1, w2, w3 = w
    for j in range(total.size):
        v = _U64(y0[j]) * _U64(w0) + _U64(y1[j]) * _U64(w1) + _U64(y2[j]) * _U64(w2) + _U64(y3[j]) * _U64(w3)
        total[j] += (v & _LOW31) + (v >> _31)


@inner
def _low(v):  # type: ignore[no-untyped-def]
    return v & _LOW31


@inner
def _high(v):  # type: ignore[no-untyped-def]
    return (v >> _31) & _LOW30


@inner
def _add61(total, y, w):  # type: ignore[no-untyped-def]
    """Add four weighted Shamir shares mod 2^61 - 1; the total stays below 2^61 + 8. Products of halves fit in 64
    bits."""
    y0, y1, y2, y3 = y
    a0, a1, a2, a3 = _low(w[0]), _low(w[1]), _low(w[2]), _low(w[3])
    b0, b1, b2, b3 = _high(w[0]), _high(w[1]), _high(w[2]), _high(w[3])
    for j in range(total.size):
        u0, u1, u2, u3 = _low(y0[j]), _low(y1[j]), _low(y2[j]), _low(y3[j])
        v0, v1, v2, v3 = _high(y0[j]), _high(y1[j]), _high(y2[j]), _high(y3[j])
        low = u0 * a0 + u1 * a1 + u2 * a2 + u3 * a3
        middle = (u0 * b0 + v0 * a0) + (u1 * b1 + v1 * a1) + (u2 * b2 + v2 * a2) + (u3 * b3 + v3 * a3)
        high = v0 * b0 + v1 * b1 + v2 * b2 + v3 * b3
        v = (low & _P61) + (low >> _61) + (middle >> _30) + ((middle & _LOW30) << _31) + (high << _1) + total[j]
        total[j] = (v & _P61) + (v >> _61)


@inner
def _reduce(total, bits):  # type: ignore[no-untyped-def]
    prime = (_1 << _U64(bits)) - _1
    for j in range(total.size):
        v = (total[j] & prime) + (total[j] >> _U64(bits))
        total[j] = v - prime if v >= prime else v


@inner
def _weigh(shares, base, weights, first, total, bits):  # type: ignore[no-untyped-def]
    """Combine Shamir shares: total[j] = sum of weights[r] shares[base[r], first + j] mod 2^bits - 1, by fours of
    weights."""
    for j in range(total.size):
        total[j] = _U64(0)
    end = first + total.size
    for r in range(0, weights.size, 4):
        y = (
            shares[base[r], first:end],
            shares[base[r + 1], first:end],
            shares[base[r + 2], first:end],
            shares[base[r + 3], first:end],
        )
        if bits == 31:
            _add31(total, y, (weights[r], weights[r + 1], weights[r + 2], weights[r + 3]))
        else:
            _add61(total, y, (weights[r], weights[r + 1], weights[r + 2], weights[r + 3]))
    _reduce(total, bits)


@inner
def _decode(total, bits, floats, scale, integers, reals):  # type: ignore[no-untyped-def]
    prime = np.int64((1 << bits) - 1)
    if floats:
        for j in range(total.size):
            v = np.int64(total[j])
            reals[j] = np.float64(v - prime if v > prime // 2 else v) / scale
    else:
        for j in range(total.size):
            v = np.int64(total[j])
            integers[j] = v - prime if v > prime // 2 else v


@inner
def _count_outside(row, prime):  # type: ignore[no-untyped-def]
    largest = row[0]
    for j in range(row.size):
        largest = max(largest, row[j])
    count = 0
    if largest >= prime:
        for j in range(row.size):
            count += row[j] >= prime
    return count


@inner
def _compare(row, total, differs):  # type: ignore[no-untyped-def]
    for j in range(row.size):
        differs[j] |= row[j] != total[j]


@njit(cache=True, nogil=True)
def combine(
    shares: NDArray[Any],
    base: NDArray[np.uint32],
    checked: NDArray[np.uint32],
    weights: NDArray[Any],
    bits: int,
    floats: bool,
    scale: float,
    begin: int,
    end: int,
    integers: NDArray[np.int64],
    reals: NDArray[np.float64],
    outside: NDArray[np.int64],
) -> tuple[int, int]:
    """Reconstruct the values of strips begin to end from Shamir shares, into `integers` or, if `floats`, `reals`.

    Both are one memory. Rows `base` (4k,) of shares (m, len) are combined with each row of weights (1 + extra, 4k),
    some of which may be 0. The first row of weights gives the values, the others the expected rows `checked` (extra,).
    Returns the number of elements at which a checked row differs, and the first of them. outside[row] counts words that
    are not below 2^bits - 1.
    """
    prime = (_1 << _U64(bits)) - _1
    total, differs = np.empty(STRIP, np.uint64), np.empty(STRIP, np.uint8)
    inconsistent, where = 0, -1
    for strip in range(begin, end):
        first = strip * STRIP
        last = min(first + STRIP, shares.shape[1])
        sums, differ = total[: last - first], differs[: last - first]
        for j in range(differ.size):
            differ[j] = 0
        for q in range(weights.shape[0]):
            _weigh(shares, base, weights[q], first, sums, bits)
            if q == 0:
                _decode(sums, bits, floats, scale, integers[first:last], reals[first:last])
            else:
                _compare(shares[checked[q - 1], first:last], sums, differ)
        for r in range(shares.shape[0]):
            outside[r] += _count_outside(shares[r, first:last], prime)
        count = 0
        for j in range(differ.size):
            count += differ[j]
        if count and where < 0:
            j = 0
            while not differ[j]:
                j += 1
            where = first + j
        inconsistent += count
    for j in range(STRIP):
        total[j] = _U64(0)  # it holds secret values
    return inconsistent, where
