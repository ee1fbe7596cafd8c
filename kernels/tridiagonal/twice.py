"""Tridiagonal systems in twice the precision of float64, for the few whose certificate failed.

A number is a pair of float64 whose sum it is, the second below a rounding of the first, with 106 bits together; a
complex number is a pair of these. Sums and products are Dekker's (1971), without fused operations. All backends call
these loops, on the CPU.
"""

import math

import numpy as np
from numba import njit

from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.tridiagonal.spec import (
    ERROR,
    EXPONENT,
    FOUND,
    PIVOT_LEAST,
    ROUNDINGS,
    SIGN,
    SIGN_IMAGINARY,
    TAINT,
    UNIT,
)

_SPLIT = 134217729.0  # 2^27 + 1
_UNIT = 2.0**-100  # above the relative error of a sum, product or inverse below


@inner
def _joined(a, b):  # type: ignore[no-untyped-def]
    """The pair of a + b, exactly, for one tridiagonal number; |a| >= |b|."""
    high = a + b
    return high, b - (high - a)


@inner
def _sum(a, b):  # type: ignore[no-untyped-def]
    """The pair of a + b, exactly."""
    high = a + b
    other = high - a
    return high, (a - (high - other)) + (b - other)


@inner
def _product(a, b):  # type: ignore[no-untyped-def]
    """The pair of a * b, exactly; no factor beyond 2^970."""
    high = a * b
    c, d = a * _SPLIT, b * _SPLIT
    a_high, b_high = c - (c - a), d - (d - b)
    a_low, b_low = a - a_high, b - b_high
    return high, ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low


@inner
def _add(a, b):  # type: ignore[no-untyped-def]
    high, low = _sum(a[0], b[0])
    more, rest = _sum(a[1], b[1])
    high, low = _joined(high, low + more)
    return _joined(high, low + rest)


@inner
def _negative(a):  # type: ignore[no-untyped-def]
    return -a[0], -a[1]


@inner
def _multiply(a, b):  # type: ignore[no-untyped-def]
    high, low = _product(a[0], b[0])
    return _joined(high, low + (a[0] * b[1] + a[1] * b[0]))


@inner
def _reciprocal(a):  # type: ignore[no-untyped-def]
    """1 / a by a division and two steps of Newton's, the second in full."""
    one, guess = (1.0, 0.0), (1.0 / a[0], 0.0)
    for _ in range(2):
        guess = _add(guess, _multiply(guess, _add(one, _negative(_multiply(a, guess)))))
    return guess


@inner
def _minus(x, y):  # type: ignore[no-untyped-def]
    return _add(x[0], _negative(y[0])), _add(x[1], _negative(y[1]))


@inner
def _times(x, y):  # type: ignore[no-untyped-def]
    return (
        _add(_multiply(x[0], y[0]), _negative(_multiply(x[1], y[1]))),
        _add(_multiply(x[0], y[1]), _multiply(x[1], y[0])),
    )


@inner
def _inverse(x):  # type: ignore[no-untyped-def]
    over = _reciprocal(_add(_multiply(x[0], x[0]), _multiply(x[1], x[1])))
    return _multiply(x[0], over), _negative(_multiply(x[1], over))


@inner
def _length(x):  # type: ignore[no-untyped-def]
    return math.sqrt(x[0][0] * x[0][0] + x[1][0] * x[1][0])


@inner
def _larger_part(x):  # type: ignore[no-untyped-def]
    return max(abs(x[0][0]), abs(x[1][0]))


@inner
def _get(numbers, row):  # type: ignore[no-untyped-def]
    return (numbers[row, 0], 0.0), (numbers[row, 1], 0.0)


@inner
def _get_pair(numbers, row):  # type: ignore[no-untyped-def]
    return (numbers[row, 0], numbers[row, 1]), (numbers[row, 2], numbers[row, 3])


@inner
def _put_pair(x, numbers, row):  # type: ignore[no-untyped-def]
    numbers[row, 0], numbers[row, 1] = x[0]
    numbers[row, 2], numbers[row, 3] = x[1]


@inner
def _scaled_product(re, im, exponent, u):  # type: ignore[no-untyped-def]
    """The determinant of a tridiagonal matrix times u: its larger part in [1, 2), and its exponent."""
    a, b = u[0][0], u[1][0]
    re, im = re * a - im * b, re * b + im * a
    more = math.frexp(max(abs(re), abs(im)))[1] - 1
    return math.ldexp(re, -more), math.ldexp(im, -more), exponent + more


@njit(cache=True, nogil=True, error_model="numpy")
def solve(lower, diagonal, upper, rhs, shift, state):  # type: ignore[no-untyped-def]
    """Solve one tridiagonal system of complex numbers (rows, 2), lower and upper with a row of 0 at their edge.

    rhs becomes the solution rounded to float64, whose residual `state` gets.
    """
    n = rhs.shape[0]
    z = _get(shift, 0)
    ratios, forward, solution = np.empty((n, 4)), np.empty((n, 4)), np.zeros((n + 2, 2))
    g = y = ((0.0, 0.0), (0.0, 0.0))
    re, im, exponent = 1.0, 0.0, 0
    for i in range(n):
        a = _get(lower, i)
        u = _minus(_minus(_get(diagonal, i), z), _times(a, g))
        over = _inverse(u)
        y = _times(_minus(_get(rhs, i), _times(a, y)), over)
        g = _times(_get(upper, i), over)
        _put_pair(g, ratios, i)
        _put_pair(y, forward, i)
        re, im, exponent = _scaled_product(re, im, exponent, u)
    x = ((0.0, 0.0), (0.0, 0.0))
    for i in range(n - 1, -1, -1):
        x = _minus(_get_pair(forward, i), _times(_get_pair(ratios, i), x))
        solution[i + 1, 0], solution[i + 1, 1] = x[0][0], x[1][0]
    found = worst = taint = 0.0
    for i in range(n):
        left = _minus(_get(rhs, i), _times(_get(lower, i), _get(solution, i)))
        left = _minus(left, _times(_minus(_get(diagonal, i), z), _get(solution, i + 1)))
        left = _minus(left, _times(_get(upper, i), _get(solution, i + 2)))
        found, worst = max(found, _larger_part(_get(solution, i + 1))), max(worst, _larger_part(left))
        taint += left[0][0] * 0.0 + left[1][0] * 0.0
    rhs[:, 0] = solution[1:-1, 0]
    rhs[:, 1] = solution[1:-1, 1]
    state[SIGN], state[SIGN_IMAGINARY], state[EXPONENT] = re, im, exponent
    state[FOUND], state[ERROR], state[TAINT] = found, worst, taint


@njit(cache=True, nogil=True, error_model="numpy")
def inverse_diagonal(lower, diagonal, upper, shift, state):  # type: ignore[no-untyped-def]
    """The diagonal of the inverse of one tridiagonal matrix of complex numbers (rows, 2), which takes the place of
    `diagonal`; lower and upper have a row of 0 at their edge, and `state` gets the bound of its error."""
    n = diagonal.shape[0]
    z = _get(shift, 0)
    pivots, errors = np.empty((n, 4)), np.empty(n)
    g = h = ((0.0, 0.0), (0.0, 0.0))
    e = worst = taint = 0.0
    re, im, exponent = 1.0, 0.0, 0
    for i in range(n):
        d, t = _minus(_get(diagonal, i), z), _times(_get(lower, i), g)
        u = _minus(d, t)
        over = _inverse(u)
        errors[i] = _length(t) * (e + ROUNDINGS * _UNIT) + _UNIT * (_length(u) + _length(d))
        e = _length(over) * errors[i]
        g = _times(_get(upper, i), over)
        _put_pair(u, pivots, i)
        re, im, exponent = _scaled_product(re, im, exponent, u)
    e = 0.0
    for i in range(n - 1, -1, -1):
        d, q = _minus(_get(diagonal, i), z), _times(_get(upper, i), h)
        error = _length(q) * (e + ROUNDINGS * _UNIT)
        v = _minus(_get_pair(pivots, i), q)
        found = _inverse(v)
        worst = max(worst, _length(found) * (errors[i] + error))
        taint += found[0][0] * 0.0 + found[1][0] * 0.0
        if not _length(v) >= PIVOT_LEAST:
            taint = np.nan
        w = _minus(d, q)
        over = _inverse(w)
        e = _length(over) * (error + _UNIT * (_length(w) + _length(d)))
        h = _times(_get(lower, i), over)
        diagonal[i, 0], diagonal[i, 1] = found[0][0], found[1][0]
    state[SIGN], state[SIGN_IMAGINARY], state[EXPONENT] = re, im, exponent
    state[ERROR], state[TAINT] = worst + UNIT, taint
