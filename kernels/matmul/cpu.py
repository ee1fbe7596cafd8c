"""Multiply matrices on the CPU: NumPy's BLAS, or the twin of matmul.cu on all cores."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kernels.cores import share
from kernels.matmul.precision import nearest, relative_error
from kernels.matmul.spec import MatmulParams, dimensions

# A tile of the product that one thread owns: with a panel of DEPTH rows of b (512 KiB in float64) it stays in L2.
ROWS = 32
COLUMNS = 256
DEPTH = 256


def matmul(params: MatmulParams, a: NDArray[Any], b: NDArray[Any]) -> dict[str, Any]:
    """Return a @ b, shapes (m, k) or (batch, m, k) by (k, n) or (batch, k, n), with what ran, why, and its error.

    Raises InvalidRequest when shapes do not match or a reduced precision cannot hold an input.
    """
    size = dimensions(a.shape, b.shape)
    error = None
    if params.algorithm == "kernel":
        algorithm, reason = "kernel", "requested"
        product = np.empty((size.batch, size.m, size.n), a.dtype)
        factors, tiles = (_read_only(a), _read_only(b)), size.batch * -(-size.m // ROWS) * -(-size.n // COLUMNS)
        share(tiles, lambda first, end: _multiply(*factors, first, end, product))
    else:
        algorithm, reason = "library", f"{'requested' if params.algorithm else 'default'}: {_blas()}"
        if params.precision == "ieee":
            product = _library(a, b)
        else:
            product = _library(nearest(np, a, params.precision, "a"), nearest(np, b, params.precision, "b"))
            error = relative_error(np, _with_batch(a), _with_batch(b), product)
    return {
        "product": product.reshape(size.product),
        "algorithm": algorithm,
        "algorithm_reason": reason,
        "precision": params.precision,
        "relative_error": error,
    }


def _library(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return the product with a batch axis, of length 1 where neither factor has one."""
    with np.errstate(over="ignore", invalid="ignore"):  # an overflowing product is the answer, as in IEEE 754
        if b.ndim == 2:  # NumPy would call BLAS for each a; together they are one tall matrix
            return (a.reshape(-1, a.shape[-1]) @ b).reshape(-1, a.shape[-2], b.shape[-1])
        return np.asarray(a @ b)


@njit(cache=True, nogil=True)
def _multiply(a, b, first, end, product):  # type: ignore[no-untyped-def]
    """Add a[i, p] * b[p, j] to 0 in increasing p, rounding each product and each sum: the order of matmul.cu.

    Computes the tiles first to end - 1 of ROWS by COLUMNS of all products.

    Only the order of p matters to the bytes; tiles and threads divide i and j, which do not touch each other.
    """
    m, n = product.shape[1:]
    k = a.shape[2]
    row_tiles = (m + ROWS - 1) // ROWS
    column_tiles = (n + COLUMNS - 1) // COLUMNS
    for tile in range(first, end):
        z = tile // (row_tiles * column_tiles)
        row_0 = tile // column_tiles % row_tiles * ROWS
        column_0 = tile % column_tiles * COLUMNS
        row_1 = min(row_0 + ROWS, m)
        column_1 = min(column_0 + COLUMNS, n)
        left = a[min(z, a.shape[0] - 1)]
        right = b[min(z, b.shape[0] - 1)]
        product[z, row_0:row_1, column_0:column_1] = 0
        for p_0 in range(0, k, DEPTH):
            p_1 = min(p_0 + DEPTH, k)
            for i in range(row_0, row_1):
                row = product[z, i, column_0:column_1]
                p = p_0
                while p + 4 <= p_1:  # four terms per pass over the row; each sum is still rounded, in order
                    a0, a1, a2, a3 = left[i, p], left[i, p + 1], left[i, p + 2], left[i, p + 3]
                    b0 = right[p, column_0:column_1]
                    b1 = right[p + 1, column_0:column_1]
                    b2 = right[p + 2, column_0:column_1]
                    b3 = right[p + 3, column_0:column_1]
                    for j in range(row.size):
                        row[j] = (((row[j] + a0 * b0[j]) + a1 * b1[j]) + a2 * b2[j]) + a3 * b3[j]
                    p += 4
                while p < p_1:
                    a0 = left[i, p]
                    b0 = right[p, column_0:column_1]
                    for j in range(row.size):
                        row[j] = row[j] + a0 * b0[j]
                    p += 1


def _with_batch(array: NDArray[Any]) -> NDArray[Any]:
    return array.reshape(-1, *array.shape[-2:])


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    # Numba compiles anew for arrays that may be written; inputs may be read-only maps, so all are taken as such.
    view = np.asarray(_with_batch(array)).view()
    view.flags.writeable = False
    return view


def _blas() -> str:
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"NumPy's {blas['name']} {blas['version']}"
