"""The compiled loops of tridiagonal systems: each takes eight systems side by side through their rows.

`scratch` has rows of numbers for eight systems: row i of a real array begins at 8 i, and of a complex one at 16 i, its
imaginary parts after its real parts. `state` has the rows of spec.STATES for eight systems. tridiagonal.cu has the same
steps in the same order.
"""

import numpy as np
from numba import njit

from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.cpu.lanes import (
    LANES,
    exponent,
    keep_alive,
    load,
    moved,
    pointer,
    spread,
    store,
    unscale,
    where_at_least,
    where_at_most,
    where_below,
    where_equal,
)
from warpdesk_server.kernels.device.elementary import log64
from warpdesk_server.kernels.tridiagonal.numbers import (
    get,
    imaginary,
    inverse,
    larger,
    larger_part,
    length,
    limit,
    minus,
    of_real,
    parts_sum,
    put,
    real_part,
    scaled,
    size,
    times,
)
from warpdesk_server.kernels.tridiagonal.spec import (
    DOMINANT,
    ERROR,
    EXPONENT,
    FOUND,
    GAP_ROW,
    GIVEN,
    GROWTH,
    LEAST_FLOAT32,
    NORM,
    PIVOT_LEAST,
    PIVOT_MOST,
    PIVOT_RATIO,
    PIVOT_ROW,
    ROUNDINGS,
    SIGN,
    SIGN_IMAGINARY,
    TAINT,
    UNIT,
)


@njit(cache=True, nogil=True)
def gather(values, first, start, parts, scratch):  # type: ignore[no-untyped-def]
    """Copy eight of the tridiagonal systems (systems, rows, parts) from `first` on to `scratch`, from row `start` on.

    After the last system it is repeated. Imaginary parts that there are none of are 0, and other rows as they were.
    """
    last = values.shape[0] - 1
    for row in range(values.shape[1]):
        for part in range(parts):
            at = ((start + row) * parts + part) * LANES
            if part < values.shape[2]:
                for lane in range(LANES):
                    scratch[at + lane] = values[min(first + lane, last), row, part]
            else:
                for lane in range(LANES):
                    scratch[at + lane] = 0.0


@njit(cache=True, nogil=True)
def scatter(scratch, first, values):  # type: ignore[no-untyped-def]
    """Copy eight tridiagonal systems from `scratch` to values (systems, rows, parts), or as many as there are."""
    parts = values.shape[2]
    for lane in range(min(LANES, values.shape[0] - first)):
        for row in range(values.shape[1]):
            for part in range(parts):
                values[first + lane, row, part] = scratch[(row * parts + part) * LANES + lane]


@njit(cache=True, nogil=True)
def scatter_float32(scratch, first, values):  # type: ignore[no-untyped-def]
    """Copy eight tridiagonal systems as `scatter`, rounded to float32; numbers below its least normal one are 0."""
    parts = values.shape[2]
    for lane in range(min(LANES, values.shape[0] - first)):
        for row in range(values.shape[1]):
            for part in range(parts):
                number = scratch[(row * parts + part) * LANES + lane]
                values[first + lane, row, part] = number * 0.0 if abs(number) < LEAST_FLOAT32 else number


# What is known of systems between two rows: the determinant's number and exponent, the growth, whether all rows are
# dominant, the norm, the first row with a refused pivot, and the first with a number that is not finite.


@inner
def _before_rows(zero):  # type: ignore[no-untyped-def]
    """What is known of tridiagonal systems before their first row."""
    none = real_part(zero)
    one = none + spread(1.0)
    return of_real(zero, one), none, one, one, none, none - one, none - one


@inner
def _determinant(product, exponents, u):  # type: ignore[no-untyped-def]
    """The determinant of tridiagonal systems times a pivot; its larger part is scaled to [1, 2) by powers of two."""
    product = times(product, u)
    largest_part = larger_part(product)
    return scaled(product, unscale(largest_part)), exponents + exponent(largest_part)


@inner
def _judge(growth, pivot_row, at, d, u, over):  # type: ignore[no-untyped-def]
    """The growth of tridiagonal systems, and their first refused pivot, with the pivot u of row `at`; over is 1 / u."""
    ours, theirs = size(u), size(d)
    first = where_below(pivot_row, spread(0.0), at, pivot_row)
    kept = where_at_least(ours, limit(u, PIVOT_LEAST), pivot_row, first)
    kept = where_at_most(ours, limit(u, PIVOT_MOST), kept, first)
    kept = where_at_least(ours, limit(u, PIVOT_RATIO) * theirs, kept, first)
    return larger(growth, theirs * size(over)), kept


@inner
def _after_row(facts, at, a, d, c, u, over, beside):  # type: ignore[no-untyped-def]
    """What is known of tridiagonal systems after a row. `beside` is 0, or NaN if a number besides a, d, c is."""
    product, exponents, growth, dominant, norm, pivot_row, gap_row = facts
    product, exponents = _determinant(product, exponents, u)
    growth, pivot_row = _judge(growth, pivot_row, at, d, u, over)
    none = spread(0.0)
    others, own = length(a, size(a)) + length(c, size(c)), length(d, size(d))
    dominant = where_at_least(own, others, dominant, none)
    finite = _nothing_of(a) + _nothing_of(d) + _nothing_of(c) + beside
    first = where_below(gap_row, none, at, gap_row)
    gap_row = where_equal(finite, none, gap_row, first)
    return product, exponents, growth, dominant, larger(norm, others + own), pivot_row, gap_row


@inner
def _nothing_of(x):  # type: ignore[no-untyped-def]
    """0 for a finite number of tridiagonal systems, else NaN."""
    return parts_sum(scaled(x, spread(0.0)))


@inner
def _keep(facts, state):  # type: ignore[no-untyped-def]
    """Write what is known of tridiagonal systems after their last row."""
    product, exponents, growth, dominant, norm, pivot_row, gap_row = facts
    store(state, LANES * SIGN, real_part(product))
    store(state, LANES * SIGN_IMAGINARY, imaginary(product))
    store(state, LANES * EXPONENT, exponents)
    store(state, LANES * GROWTH, length(product, growth))
    store(state, LANES * DOMINANT, dominant)
    store(state, LANES * NORM, norm)
    store(state, LANES * PIVOT_ROW, pivot_row)
    store(state, LANES * GAP_ROW, gap_row)


@inner
def _solve(zero, shift, a, d, c, b, g, y, n, state):  # type: ignore[no-untyped-def]
    """Solve tridiagonal systems: b becomes x. g and y have room for a number of each row."""
    facts = _before_rows(zero)
    given = real_part(zero)
    g_before, y_before = zero, zero
    for i in range(n):
        ai, di, ci, bi = get(zero, a, i), minus(get(zero, d, i), shift), get(zero, c, i), get(zero, b, i)
        u = minus(di, times(ai, g_before))
        over = inverse(u)
        facts = _after_row(facts, spread(np.float64(i)), ai, di, ci, u, over, _nothing_of(bi))
        given = larger(given, larger_part(bi))
        y_before = times(minus(bi, times(ai, y_before)), over)
        g_before = times(ci, over)
        put(g_before, g, i)
        put(y_before, y, i)
    found, worst, taint = real_part(zero), real_part(zero), real_part(zero)
    x, x_after = y_before, zero  # of row i, and of the row after it
    for j in range(n):
        i = n - 1 - j
        x_before = zero
        if i > 0:
            x_before = minus(get(zero, y, i - 1), times(get(zero, g, i - 1), x))
        left = minus(get(zero, b, i), times(get(zero, a, i), x_before))
        left = minus(left, times(minus(get(zero, d, i), shift), x))
        left = minus(left, times(get(zero, c, i), x_after))
        found, worst = larger(found, larger_part(x)), larger(worst, larger_part(left))
        taint = taint + _nothing_of(left)
        put(x, b, i)
        x_after, x = x, x_before
    _keep(facts, state)
    store(state, LANES * GIVEN, given)
    store(state, LANES * FOUND, found)
    store(state, LANES * ERROR, worst)
    store(state, LANES * TAINT, taint)


@inner
def _inverse_diagonal(zero, shift, a, d, c, u_all, e_all, n, state):  # type: ignore[no-untyped-def]
    """The diagonals of inverses of tridiagonal systems, which u_all becomes; e_all has room for the errors of u."""
    facts = _before_rows(zero)
    unit, most = spread(UNIT), spread(ROUNDINGS * UNIT)
    g, e = zero, real_part(zero)  # c / u of the row before, and the error of u in units of u
    for i in range(n):
        ai, di, ci = get(zero, a, i), minus(get(zero, d, i), shift), get(zero, c, i)
        t = times(ai, g)
        u = minus(di, t)
        over = inverse(u)
        facts = _after_row(facts, spread(np.float64(i)), ai, di, ci, u, over, real_part(zero))
        error = length(t, size(t)) * (e + most) + unit * (length(u, size(u)) + length(di, size(di)))
        e = length(over, size(over)) * error
        g = times(ci, over)
        put(u, u_all, i)
        store(e_all, LANES * i, error)
    product, exponents, growth, dominant, norm, pivot_row, gap_row = facts
    h, e, worst, taint = zero, real_part(zero), real_part(zero), real_part(zero)
    for j in range(n):
        i = n - 1 - j
        di = minus(get(zero, d, i), shift)
        q = times(get(zero, c, i), h)  # h is a / w of the row after
        error = length(q, size(q)) * (e + most)
        v = minus(get(zero, u_all, i), q)
        found = inverse(v)
        worst = larger(worst, length(found, size(found)) * (load(e_all, LANES * i) + error))
        taint = taint + _nothing_of(found)
        taint = where_at_least(size(v), limit(v, PIVOT_LEAST), taint, spread(np.nan))
        put(found, u_all, i)
        w = minus(di, q)
        over = inverse(w)
        growth, pivot_row = _judge(growth, pivot_row, spread(np.float64(i)), di, w, over)
        error = error + unit * (length(w, size(w)) + length(di, size(di)))
        e = length(over, size(over)) * error
        h = times(get(zero, a, i), over)
    _keep((product, exponents, growth, dominant, norm, pivot_row, gap_row), state)
    store(state, LANES * ERROR, worst + spread(5.0 * UNIT))
    store(state, LANES * TAINT, taint)


@njit(cache=True, nogil=True, error_model="numpy")
def solve(rows, shift, n, state):  # type: ignore[no-untyped-def]
    """Solve eight tridiagonal systems of n rows: lower, diagonal, upper, rhs, and room for two more arrays in `rows`.

    rhs becomes the solution. `shift` is z; the numbers are real where that has one part.
    """
    none = spread(0.0)
    p, each = pointer(rows), rows.shape[1]
    a, d, c, b = p, moved(p, each), moved(p, 2 * each), moved(p, 3 * each)
    g, y, found = moved(p, 4 * each), moved(p, 5 * each), pointer(state)
    if shift.size == 1:
        _solve(none, spread(shift[0]), a, d, c, b, g, y, n, found)
    else:
        _solve((none, none), (spread(shift[0]), spread(shift[1])), a, d, c, b, g, y, n, found)
    keep_alive(rows, state)


@njit(cache=True, nogil=True, error_model="numpy")
def inverse_diagonal(rows, shift, n, state):  # type: ignore[no-untyped-def]
    """The diagonals of the inverses of eight tridiagonal systems of n rows: lower, diagonal, upper, and room for two
    more arrays in `rows`.

    The first of these becomes the answer. `shift` is z; the numbers are real where that has one part.
    """
    none = spread(0.0)
    p, each = pointer(rows), rows.shape[1]
    a, d, c, u, e = p, moved(p, each), moved(p, 2 * each), moved(p, 3 * each), moved(p, 4 * each)
    if shift.size == 1:
        _inverse_diagonal(none, spread(shift[0]), a, d, c, u, e, n, pointer(state))
    else:
        _inverse_diagonal((none, none), (spread(shift[0]), spread(shift[1])), a, d, c, u, e, n, pointer(state))
    keep_alive(rows, state)


@njit(cache=True, nogil=True)
def logarithms(numbers):  # type: ignore[no-untyped-def]
    """ln of each positive number of tridiagonal systems, which it replaces."""
    for k in range(numbers.size):
        numbers[k] = log64(numbers[k])
