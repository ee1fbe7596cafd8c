"""The exact integers of a noisy release: values are rounded to the grid, and records are clipped and summed or counted.

A float64 is m * 2**e with an integer m, and so is the number of grid steps in a unit. Their product is an integer of
106 bits, which is rounded to the grid by its bits (ties to even). Floating-point sums reveal the order of their
additions, and their rounding is not bounded by one step: Casacuberta et al., "Widespread Underestimation of
Sensitivity in Differentially Private Libraries and How to Fix It" (CCS 2022).
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.dp_noise.release import NORM

L1, LINF = NORM["l1"], NORM["linf"]
OUT_OF_RANGE = 1 << 62  # steps; a larger value is cut to this

_U = np.uint64


@njit
def _product(a: np.uint64, b: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return the high and the low 64 bits of a * b, for the sampler of exact noise."""
    mask = _U(0xFFFFFFFF)
    a0, a1, b0, b1 = a & mask, a >> _U(32), b & mask, b >> _U(32)
    low, middle, cross, high = a0 * b0, a1 * b0, a0 * b1, a1 * b1
    carry = (low >> _U(32)) + (middle & mask) + cross  # at most 2**64 - 1
    return high + (middle >> _U(32)) + (carry >> _U(32)), (carry << _U(32)) | (low & mask)


@njit
def _steps(bits: np.uint64, mantissa: np.uint64, exponent: int, most: int) -> np.int64:
    """A float64 value (its bits) in steps of the noise's grid: times mantissa * 2**exponent, rounded, cut to +-most (up
    to 2**62)."""
    biased = np.int64((bits >> _U(52)) & _U(0x7FF))
    m = bits & _U(0xFFFFFFFFFFFFF)
    if biased > 0:
        m |= _U(1) << _U(52)
    else:
        biased = np.int64(1)
    shift = 1075 - biased - exponent  # the value is (m * mantissa) / 2**shift, and m * mantissa < 2**106
    high, low = _product(m, mantissa)
    if shift >= 108 or (high == _U(0) and low == _U(0)):
        return np.int64(0)
    if shift < 43:  # m is normal here, the product at least 2**104, the result at least 2**62
        magnitude = np.int64(most)
    else:
        if shift < 64:
            floor = (high << _U(64 - shift)) | (low >> _U(shift))
            half = (low >> _U(shift - 1)) & _U(1)
            below = low & ((_U(1) << _U(shift - 1)) - _U(1))
        else:
            floor = high >> _U(shift - 64)
            if shift == 64:
                half = low >> _U(63)
                below = low & _U(0x7FFFFFFFFFFFFFFF)
            else:
                half = (high >> _U(shift - 65)) & _U(1)
                below = (high & ((_U(1) << _U(shift - 65)) - _U(1))) | low
        if half == _U(1) and (below != _U(0) or floor & _U(1) == _U(1)):
            floor += _U(1)
        magnitude = np.int64(most) if floor > _U(most) else np.int64(floor)
    return -magnitude if bits >> _U(63) else magnitude


@njit
def _root_up(high: np.uint64, low: np.uint64) -> np.uint64:
    """The square root of a record's 128-bit sum of squares before noise, rounded up, for sums below 2**126."""
    root = _U(0)
    for bit in range(62 if high else 31, -1, -1):
        tried = root | (_U(1) << _U(bit))
        square_high, square_low = _product(tried, tried)
        if square_high < high or (square_high == high and square_low <= low):
            root = tried
    square_high, square_low = _product(root, root)
    return root if square_high == high and square_low == low else root + _U(1)


@njit
def _exceeds(high: np.uint64, low: np.uint64, bound: int) -> bool:
    square_high, square_low = _product(_U(bound), _U(bound))
    return bool(high > square_high or (high == square_high and low > square_low))


@njit
def _clip(row: NDArray[np.int64], norm: int, bound: int) -> None:
    """Clip a record row[d], before noise, to a norm of at most `bound`: floor(|q| * bound / norm), with the norm
    rounded up."""
    if norm == LINF:
        for j in range(row.size):
            row[j] = min(max(row[j], -bound), bound)
        return
    size = _U(0)
    if norm == L1:
        for j in range(row.size):
            size += _U(abs(row[j]))
        if size <= _U(bound):
            return
    else:
        high, low = _U(0), _U(0)
        for j in range(row.size):
            square_high, square_low = _product(_U(abs(row[j])), _U(abs(row[j])))
            low += square_low
            high += square_high + (_U(1) if low < square_low else _U(0))
        if not _exceeds(high, low, bound):
            return
        size = _root_up(high, low)
    # |q| * bound must fit in 64 bits. If it might not, bits of both are dropped: the norm is rounded up, |q| down.
    shift = _U(0)
    while (size >> shift) >= (_U(1) << _U(63)) // _U(bound):
        shift += _U(1)
    divisor = size >> shift
    if shift > _U(0):
        divisor += _U(1)
    for j in range(row.size):
        magnitude = np.int64((_U(abs(row[j])) >> shift) * _U(bound) // divisor)
        row[j] = -magnitude if row[j] < 0 else magnitude


def sum_records(
    bits: NDArray[np.uint64], mantissa: np.uint64, exponent: int, saturation: int, norm: int, bound: int, parts: int
) -> NDArray[np.int64]:
    """The sum of the clipped records bits[n, d] in steps, before noise; `parts` only distributes the rows over the
    cores."""
    partial = np.zeros((parts, bits.shape[1]), np.int64)
    share(
        parts,
        lambda first, end: _sum_parts(bits, mantissa, exponent, saturation, norm, bound, parts, first, end, partial),
    )
    total: NDArray[np.int64] = partial.sum(axis=0)
    partial.fill(0)  # sums without noise
    return total


@njit(cache=True, nogil=True)
def _sum_parts(
    bits: NDArray[np.uint64], mantissa: np.uint64, exponent: int, saturation: int, norm: int, bound: int, parts: int,
    first: int, end: int, partial: NDArray[np.int64],
) -> None:  # fmt: skip
    n, d = bits.shape
    row = np.empty(d, np.int64)
    for part in range(first, end):
        for i in range(part * n // parts, (part + 1) * n // parts):
            for j in range(d):
                row[j] = _steps(bits[i, j], mantissa, exponent, saturation)
            _clip(row, norm, bound)
            for j in range(d):
                partial[part, j] += row[j]


def clip_records(
    bits: NDArray[np.uint64], mantissa: np.uint64, exponent: int, saturation: int, norm: int, bound: int
) -> NDArray[np.int64]:
    """The clipped records of bits[n, d] in steps, before noise is added."""
    steps = np.empty(bits.shape, np.int64)
    share(
        len(bits),
        lambda first, end: _clip_part(bits[first:end], mantissa, exponent, saturation, norm, bound, steps[first:end]),
        at_least=1 + 4096 // bits.shape[1],
    )
    return steps


@njit(cache=True, nogil=True)
def _clip_part(
    bits: NDArray[np.uint64], mantissa: np.uint64, exponent: int, saturation: int, norm: int, bound: int,
    steps: NDArray[np.int64],
) -> None:  # fmt: skip
    n, d = bits.shape
    for i in range(n):
        for j in range(d):
            steps[i, j] = _steps(bits[i, j], mantissa, exponent, saturation)
        _clip(steps[i], norm, bound)


def count_records(values: NDArray[np.float64], edges: NDArray[np.float64], parts: int) -> NDArray[np.int64]:
    """The histogram of records, before noise: how many values[n] lie in each bin of edges[bins + 1]; `parts`
    distributes them."""
    partial = np.zeros((parts, len(edges) - 1), np.int64)
    share(parts, lambda first, end: _count_parts(values, edges, parts, first, end, partial))
    counts: NDArray[np.int64] = partial.sum(axis=0)
    partial.fill(0)  # counts without noise
    return counts


@njit(cache=True, nogil=True)
def _count_parts(
    values: NDArray[np.float64], edges: NDArray[np.float64], parts: int, first: int, end: int,
    partial: NDArray[np.int64],
) -> None:  # fmt: skip
    n, bins = values.size, edges.size - 1
    for part in range(first, end):
        for i in range(part * n // parts, (part + 1) * n // parts):
            value = values[i]
            if value < edges[0] or value > edges[bins]:
                continue
            low, high = 0, bins  # edges[low] <= value, and value < edges[high] but for the last
            while high - low > 1:
                middle = (low + high) // 2
                if value < edges[middle]:
                    high = middle
                else:
                    low = middle
            partial[part, low] += 1


def to_grid(bits: NDArray[np.uint64], mantissa: np.uint64, exponent: int, steps: NDArray[np.int64]) -> None:
    """Round the values bits[n] to the noise's grid: write them as steps[n], cut to +-OUT_OF_RANGE."""
    share(bits.size, lambda first, end: _to_grid(bits[first:end], mantissa, exponent, steps[first:end]), at_least=4096)


@njit(cache=True, nogil=True)
def _to_grid(bits: NDArray[np.uint64], mantissa: np.uint64, exponent: int, steps: NDArray[np.int64]) -> None:
    for i in range(bits.size):
        steps[i] = _steps(bits[i], mantissa, exponent, OUT_OF_RANGE)
