"""The matrix product on the CPU: NumPy's BLAS, or the twin of matmul.cu on all cores."""

from typing import Any

import numba
import numpy as np
from numba import njit
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.matmul.block import add_products, block_shape, copy_row
from warpdesk_server.kernels.matmul.precision import nearest, relative_error
from warpdesk_server.kernels.matmul.spec import MatmulParams, dimensions

# The part of a product that one thread computes at a time: rows, columns, and DEPTH terms of each sum. To pack parts of
# a and b for it then takes little time beside the products, and a part of b (2 MiB in float64) stays in the cache.
ROWS = 480
COLUMNS = 960
DEPTH = 256
LINE = 64  # bytes
_LEAST_ROWS, _LEAST_COLUMNS = 64, 256  # tiles are not made smaller than this to occupy every thread


def matmul(params: MatmulParams, a: NDArray[Any], b: NDArray[Any]) -> dict[str, Any]:
    """The matrix product a @ b, (m, k) or (batch, m, k) by (k, n) or (batch, k, n), its algorithm, reason and error.

    Raises InvalidRequest if shapes do not match, or if a reduced precision cannot hold an input.
    """
    size = dimensions(a.shape, b.shape)
    error = None
    if params.algorithm == "kernel":
        algorithm, reason = "kernel", "requested"
        product = np.empty((size.batch, size.m, size.n), a.dtype)
        factors = _read_only(a), _read_only(b)
        rows, columns = _tile(size.batch, size.m, size.n, numba.get_num_threads())
        tiles = size.batch * -(-size.m // rows) * -(-size.n // columns)
        share(tiles, lambda first, end: _multiply(*factors, rows, columns, first, end, product))
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
    """The matrix product by NumPy's BLAS, with a batch axis, of length 1 if neither factor has one."""
    with np.errstate(over="ignore", invalid="ignore"):  # an overflowing product is the answer, as in IEEE 754
        if b.ndim == 2:  # all a are one tall matrix; else NumPy would call BLAS for each a
            return (a.reshape(-1, a.shape[-1]) @ b).reshape(-1, a.shape[-2], b.shape[-1])
        return np.asarray(a @ b)


def _tile(batch: int, m: int, n: int, threads: int) -> tuple[int, int]:
    """The rows and columns of a matrix product's tile, such that every thread has tiles. No byte depends on it.

    Rows are divided first: to pack a number of a takes five times as long as to pack one of b.
    """
    row_parts, column_parts = max(1, -(-m // ROWS)), max(1, -(-n // COLUMNS))
    while batch * row_parts * column_parts < 4 * threads:
        if m >= 2 * row_parts * _LEAST_ROWS:
            row_parts *= 2
        elif n >= 2 * column_parts * _LEAST_COLUMNS:
            column_parts *= 2
        else:
            break
    # In whole blocks of any processor, which have 6 or 8 rows and at most 48 columns.
    rows, columns = -(-m // (24 * row_parts)) * 24, -(-n // (48 * column_parts)) * 48
    return max(1, min(m, rows)), max(1, min(n, columns))  # of an empty product too


@njit(cache=True, nogil=True)
def _multiply(a, b, rows, columns, first, end, product):  # type: ignore[no-untyped-def]
    """Compute tiles first to end - 1, of `rows` by `columns`, of all products: product[i, j] = sum a[i, p] b[p, j].

    A sum starts at 0 and takes fma(a[i, p], b[p, j], sum) in increasing p, the order of matmul.cu. Tiles, blocks and
    threads divide i and j, which are independent. Between two parts of k the sums are stored in the product, which does
    not round them.
    """
    m, n = product.shape[1:]
    k = a.shape[2]
    high, wide = block_shape(product)
    left = np.empty((rows + high) * min(k, DEPTH), a.dtype)  # blocks of `high` rows of a, transposed
    right = aligned(np.empty((columns + wide) * min(k, DEPTH) + LINE, a.dtype))  # blocks of `wide` columns of b
    edge = np.zeros(high * wide, a.dtype)  # a block that extends past the product's edge
    row_tiles = (m + rows - 1) // rows
    column_tiles = (n + columns - 1) // columns
    for tile in range(first, end):
        z = tile // (row_tiles * column_tiles)
        row_0 = tile // column_tiles % row_tiles * rows
        column_0 = tile % column_tiles * columns
        row_1 = min(row_0 + rows, m)
        column_1 = min(column_0 + columns, n)
        out = product[z].reshape(-1)
        product[z, row_0:row_1, column_0:column_1] = 0
        for p_0 in range(0, k, DEPTH):
            terms = min(DEPTH, k - p_0)
            pack_rows(a[min(z, a.shape[0] - 1)], row_0, row_1, p_0, terms, high, left)
            _pack_columns(b[min(z, b.shape[0] - 1)], column_0, column_1, p_0, terms, wide, right)
            for j in range(column_0, column_1, wide):
                for i in range(row_0, row_1, high):
                    a_at, b_at = (i - row_0) * terms, (j - column_0) * terms
                    if i + high <= row_1 and j + wide <= column_1:
                        add_products(left, a_at, right, b_at, terms, out, i * n + j, n)
                        continue
                    for x in range(min(high, row_1 - i)):
                        for y in range(min(wide, column_1 - j)):
                            edge[x * wide + y] = out[(i + x) * n + j + y]
                    add_products(left, a_at, right, b_at, terms, edge, 0, wide)
                    for x in range(min(high, row_1 - i)):
                        for y in range(min(wide, column_1 - j)):
                            out[(i + x) * n + j + y] = edge[x * wide + y]


@njit(cache=True, nogil=True)
def aligned(numbers):  # type: ignore[no-untyped-def]
    """Memory for a matrix product's packed factor, from a cache line on: a vector that crosses two lines takes twice as
    long to read."""
    return numbers[-numbers.ctypes.data % LINE // numbers.itemsize :]


@njit(cache=True, nogil=True)
def pack_rows(a, row_0, row_1, p_0, terms, high, packed):  # type: ignore[no-untyped-def]
    """Pack rows of the factor a, block by block, so that a block's numbers of one p are adjacent. Places past the edge
    stay."""
    for i in range(row_0, row_1, high):
        at = (i - row_0) * terms
        for x in range(min(high, row_1 - i)):
            row = a[i + x]
            for p in range(terms):
                packed[at + p * high + x] = row[p_0 + p]


@njit(cache=True, nogil=True)
def _pack_columns(b, column_0, column_1, p_0, terms, wide, packed):  # type: ignore[no-untyped-def]
    """Pack columns of the factor b, block by block, row by row. Places past the edge keep their old numbers."""
    n = b.shape[1]
    numbers = b.reshape(-1)
    for j in range(column_0, column_1, wide):
        at = (j - column_0) * terms
        if j + wide <= column_1:
            for p in range(terms):
                copy_row(numbers, (p_0 + p) * n + j, packed, at + p * wide)
        else:
            for p in range(terms):
                for y in range(column_1 - j):
                    packed[at + p * wide + y] = b[p_0 + p, j + y]


def _with_batch(array: NDArray[Any]) -> NDArray[Any]:
    return array if array.ndim == 3 else array[np.newaxis]


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    # Inputs may be read-only maps, and Numba compiles again for writable arrays. So all become read-only.
    view = np.asarray(_with_batch(array)).view()
    view.flags.writeable = False
    return view


def _blas() -> str:
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"NumPy's {blas['name']} {blas['version']}"
