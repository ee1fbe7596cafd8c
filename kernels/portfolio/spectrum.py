"""The eigenvalues and eigenvectors of covariance matrices.

Householder's tridiagonal form, then implicit QR steps with Wilkinson's shifts (Golub and Van Loan, Matrix Computations,
4th ed., 2013, sections 8.3.1 to 8.3.3). Eigenvalues are good to rounding of the greatest one.
"""

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.cpu.cores import share

Array = NDArray[Any]

SINGULAR = 2.0**-50  # times the assets and the greatest eigenvalue: what rounding leaves of an eigenvalue of 0
_NOTHING = 2.0**-900  # a square beside numbers near 1: it leaves no digit of them, and its own are few
_STEPS = 32  # QR steps for each eigenvalue; there are about two


def decompose(matrices: Array, components: int = 0) -> tuple[Array, Array]:
    """The eigenvalues (batch, assets) of symmetric matrices, ascending, and the eigenvectors of the greatest ones.

    Eigenvectors (batch, components, assets) go by falling eigenvalue; their largest element, the first of equal ones,
    is positive. A matrix is scaled by a power of two, so that no square of an element is beyond float64.
    """
    count, size, _ = matrices.shape
    values, vectors = np.empty((count, size)), np.empty((count, components, size))

    def work(first: int, end: int) -> None:
        for item in range(first, end):
            _, exponent = math.frexp(float(np.abs(matrices[item]).max()))
            diagonal, basis = np.empty(size), np.empty((size if components else 0, size))
            _diagonalise(np.ldexp(matrices[item], -exponent), diagonal, basis)
            order = np.argsort(-diagonal, kind="stable")
            values[item] = np.ldexp(diagonal[order[::-1]], exponent)
            rows = basis[order[:components]]
            largest = np.take_along_axis(rows, np.abs(rows).argmax(axis=1)[:, np.newaxis], axis=1)
            vectors[item] = np.where(largest < 0.0, -rows, rows) + 0.0  # never -0.0

    share(count, work)
    return values, vectors


def conditioning(values: Array) -> tuple[Array, Array]:
    """The smallest eigenvalue and the condition number of each matrix by its eigenvalues (batch, assets), ascending.

    The condition number is infinite where the smallest eigenvalue is no more than rounding leaves of 0.
    """
    smallest, greatest = values[:, 0], values[:, -1]
    singular = smallest <= values.shape[1] * SINGULAR * greatest
    return smallest.copy(), np.where(singular, np.inf, greatest / np.where(singular, 1.0, smallest))


@inner
def _tridiagonalise(a, diagonal, beside, scales):  # type: ignore[no-untyped-def]
    """Reduce a symmetric matrix to the diagonal of its tridiagonal form and what is beside it, by reflections.

    Reflection k is I - scales[k] v v', for the v that is left in row k, after the diagonal. `a` is overwritten.
    """
    size = len(a)
    v, w, p = np.zeros(size), np.zeros(size), np.empty(size)
    before = np.zeros(size)  # the v of the reflection before; rows are less before w' + w before' when they are read
    for k in range(size):
        for j in range(k, size):
            a[k, j] -= before[k] * w[j] + w[k] * before[j]
        diagonal[k] = a[k, k]
        if k >= size - 2:
            beside[k] = a[k, k + 1] if k + 1 < size else 0.0
            continue
        square = scale = 0.0
        for i in range(k + 1, size):
            v[i] = a[k, i]
            p[i] = 0.0
            square += v[i] * v[i]
        beside[k] = 0.0
        if square >= _NOTHING:
            head = v[k + 1]
            beside[k] = -math.sqrt(square) if head > 0.0 else math.sqrt(square)
            v[k + 1] = a[k, k + 1] = head - beside[k]
            scale = -1.0 / (beside[k] * v[k + 1])  # 2 / v'v
        scales[k] = scale
        for i in range(k + 1, size):
            left, right, factor = before[i], w[i], scale * v[i]
            for j in range(k + 1, size):
                number = a[i, j] - (left * w[j] + right * before[j])
                a[i, j] = number
                p[j] += factor * number
        half = 0.0
        for i in range(k + 1, size):
            half += p[i] * v[i]
        half = 0.5 * scale * half
        for i in range(k + 1, size):
            before[i] = v[i]
            w[i] = p[i] - half * v[i]


@inner
def _multiply_reflections(a, scales, basis):  # type: ignore[no-untyped-def]
    """The product of the reflections that _tridiagonalise left, transposed: its rows make the form from the matrix."""
    size = len(a)
    u = np.empty(size)
    for i in range(size):
        for j in range(size):
            basis[i, j] = 1.0 if i == j else 0.0
    for k in range(size - 3, -1, -1):
        v, scale = a[k], scales[k]
        if scale == 0.0:
            continue
        for j in range(k + 1, size):
            u[j] = 0.0
        for i in range(k + 1, size):
            for j in range(k + 1, size):
                u[j] += v[i] * basis[i, j]
        for i in range(k + 1, size):
            factor = scale * v[i]
            for j in range(k + 1, size):
                basis[i, j] -= factor * u[j]
    for i in range(size):
        for j in range(i):
            basis[i, j], basis[j, i] = basis[j, i], basis[i, j]


@njit(cache=True, nogil=True, error_model="numpy")
def _diagonalise(a, diagonal, basis):  # type: ignore[no-untyped-def]
    """The eigenvalues of a symmetric matrix whose elements are near 1, in no order, and eigenvectors as rows of `basis`
    unless it has none. NaN where the steps do not end, as for a matrix with NaN. `a` is overwritten."""
    size = len(a)
    beside, scales = np.zeros(size), np.empty(size)
    _tridiagonalise(a, diagonal, beside, scales)
    if len(basis):
        _multiply_reflections(a, scales, basis)
    reach = 0.0  # no eigenvalue exceeds it (Gershgorin)
    for k in range(size):
        reach = max(reach, abs(diagonal[k]) + abs(beside[k]) + (abs(beside[k - 1]) if k else 0.0))
    least = reach * 2.0**-54
    last = size - 1
    for _ in range(_STEPS * size):
        while last > 0 and abs(beside[last - 1]) <= least:
            last -= 1
        if last <= 0:
            break
        first = last - 1
        while first > 0 and abs(beside[first - 1]) > least:
            first -= 1
        # The shift is the eigenvalue of the last two rows that is nearer to the last element.
        half, corner = 0.5 * (diagonal[last - 1] - diagonal[last]), beside[last - 1]
        root = math.sqrt(half * half + corner * corner)
        x = diagonal[first] - (diagonal[last] - corner * corner / (half + (root if half >= 0.0 else -root)))
        z = beside[first]
        for k in range(first, last):
            square = x * x + z * z
            c, s = 1.0, 0.0
            if square >= _NOTHING:
                length = math.sqrt(square)
                c, s = x / length, z / length
                if k > first:
                    beside[k - 1] = length
            turn = s * (diagonal[k + 1] - diagonal[k]) + 2.0 * c * beside[k]
            diagonal[k] += s * turn
            diagonal[k + 1] -= s * turn
            beside[k] = c * turn - beside[k]
            if k + 1 < last:
                x, z = beside[k], s * beside[k + 1]
                beside[k + 1] *= c
            if len(basis):
                upper, lower = basis[k], basis[k + 1]
                for j in range(size):
                    one, two = upper[j], lower[j]
                    upper[j] = c * one + s * two
                    lower[j] = c * two - s * one
    if last > 0:
        diagonal[:] = np.nan
