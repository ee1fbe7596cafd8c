"""The compiled loops of the efficient frontier: Markowitz's critical line, on a matrix that is swept in place.

The portfolio for a tolerance of risk L >= 0 is the minimum of w'Sw / 2 - L m'w with sum w = 1 and lower <= w <= upper.
Its free assets F are those between their bounds. The table T is the matrix S bordered by ones and the means m, swept on
F (Goodnight, "A tutorial on the SWEEP operator", 1979): with A the inverse of S within F and B the other assets it has

    T[F, F] = -A,  T[B, F] = S[B, F] A,  T[B, B] = S[B, B] - S[B, F] A S[F, B],

and alike for the borders. All that a step needs is linear in L with coefficients from T.
"""

import math

import numpy as np
from numba import njit

from warpdesk_server.kernels.cpu.compiled import inner

LOWER, FREE, UPPER = -1, 0, 1
SAME = 2.0**-40  # tolerances of risk that differ by less, relative to the greater one, are of one corner
STILL = 2.0**-48  # a weight that changes by less has not moved


@njit(cache=True, nogil=True)
def sweep(table, k):  # type: ignore[no-untyped-def]
    """Add asset k to the free ones, or take it from them: both are one exchange but for a sign."""
    size = len(table)
    pivot = table[k, k]
    sign = 1.0 if pivot > 0.0 else -1.0
    row = table[k]
    for i in range(size):
        if i == k:
            continue
        factor = table[i, k] / pivot
        if factor == 0.0:
            continue
        target = table[i]
        for j in range(size):
            target[j] -= factor * row[j]
        target[k] = sign * factor
    for j in range(size):
        row[j] = table[j, k] if j != k else -1.0 / pivot


@njit(cache=True, nogil=True)
def border(table, state, means):  # type: ignore[no-untyped-def]
    """Set the border of the means for the free assets that the table has."""
    assets = len(state)
    last = table[assets + 1]
    for i in range(assets):
        last[i] = means[i] if state[i] != FREE else 0.0
    last[assets] = last[assets + 1] = 0.0
    for j in range(assets):
        if state[j] == FREE:
            for i in range(assets + 1):
                last[i] -= means[j] * table[j, i]
    for i in range(assets + 1):
        table[i, assets + 1] = last[i]


@inner
def _coefficients(table, state, weights, constant, slope):  # type: ignore[no-untyped-def]
    """The weights of free assets, and the gradients of others with the opposite sign, as constant + L * slope."""
    assets = len(state)
    ones, means = table[assets], table[assets + 1]
    for i in range(assets + 1):
        constant[i] = 0.0
    for j in range(assets):
        if state[j] != FREE and weights[j] != 0.0:
            for i in range(assets + 1):
                constant[i] -= weights[j] * table[j, i]
    start = (-constant[assets] - 1.0) / ones[assets]
    rate = -means[assets] / ones[assets]
    for i in range(assets):
        constant[i] += start * ones[i]
        slope[i] = means[i] + rate * ones[i]
    return start, rate


@inner
def _next(state, lower, upper, constant, slope, active, count, last, came, now):  # type: ignore[no-untyped-def]
    """The next asset that comes to a bound or leaves one as L falls, the greatest such L (0: none), and where it goes.

    Of equal ones the first asset. The asset that moved `last` does not move back to where it `came` from.
    """
    best, asset, to = 0.0, -1, FREE
    for i in range(len(state)):
        if not active[i]:
            continue
        at, turn = 0.0, FREE
        if state[i] == FREE:
            if count == 1:
                continue
            if slope[i] > 0.0:
                at, turn = (lower[i] - constant[i]) / slope[i], LOWER
            elif slope[i] < 0.0:
                at, turn = (upper[i] - constant[i]) / slope[i], UPPER
            if turn == FREE or (i == last and turn == came):
                continue
        elif i != last and ((state[i] == LOWER and slope[i] < 0.0) or (state[i] == UPPER and slope[i] > 0.0)):
            at = -constant[i] / slope[i]
        at = min(at, now)
        if at > best:
            best, asset, to = at, i, turn
    return best, asset, to


@inner
def _marginal(covariance, weights, out):  # type: ignore[no-untyped-def]
    for i in range(len(weights)):
        out[i] = 0.0
    for j in range(len(weights)):
        if weights[j] != 0.0:
            for i in range(len(weights)):
                out[i] += weights[j] * covariance[j, i]


@njit(cache=True, nogil=True)
def descend(table, covariance, means, lower, upper, state, weights, active, place, corners, tolerances, violations):  # type: ignore[no-untyped-def]
    """Follow the critical line as L falls to 0, or until there are as many corners as fit.

    `corners` has their weights, `tolerances` their L, `violations` the greatest violation of the conditions of
    optimality. `place` is where the line is: L, the asset that moved last and where it came from, the steps that are
    left, the corners that are there, and whether the line has ended (1), the corners are full (0) or the steps have run
    out (-1).
    """
    assets = len(state)
    constant, slope = np.empty(assets + 1), np.empty(assets)
    gradient = np.empty(assets)
    now, last, came, steps, found = place[0], int(place[1]), int(place[2]), int(place[3]), int(place[4])
    ended = 0
    while found < len(corners):
        count = 0
        for i in range(assets):
            count += state[i] == FREE
        level, rate = _coefficients(table, state, weights, constant, slope)
        at, asset, to = _next(state, lower, upper, constant, slope, active, count, last, came, now)
        moved = False
        if count > 1:  # a single free asset stays where the budget has it
            for i in range(assets):
                if state[i] == FREE:
                    new = min(upper[i], max(lower[i], constant[i] + at * slope[i]))
                    if i == asset:
                        new = lower[i] if to == LOWER else upper[i]
                    moved |= abs(new - weights[i]) > STILL * max(1.0, abs(new))
                    weights[i] = new
        if found == 0 or (moved and now - at > SAME * now):
            found += 1
        for i in range(assets):
            corners[found - 1, i] = weights[i]
        _marginal(covariance, weights, gradient)
        worst = 0.0
        for i in range(assets):
            g = gradient[i] - at * means[i] - (level + at * rate)
            if state[i] == LOWER:
                g = max(0.0, -g)
            elif state[i] == UPPER:
                g = max(0.0, g)
            worst = max(worst, abs(g))
        tolerances[found - 1], violations[found - 1] = at, worst
        if asset < 0 or steps == 0:
            ended = 1 if asset < 0 else -1
            break
        steps -= 1
        came, last, now = state[asset] if state[asset] != FREE else to, asset, at
        state[asset] = to
        sweep(table, asset)
    place[0], place[1], place[2], place[3], place[4], place[5] = now, last, came, steps, found, ended


@njit(cache=True, nogil=True)
def describe(covariance, means, corners):  # type: ignore[no-untyped-def]
    """The mean and variance of each corner, and for the segment to the next one, w + t d: w'Sd and d'Sd."""
    count, assets = corners.shape
    mean, variance, linear, square = np.zeros(count), np.zeros(count), np.zeros(count), np.zeros(count)
    before, after = np.empty(assets), np.empty(assets)
    for k in range(count):
        _marginal(covariance, corners[k], after)
        for i in range(assets):
            mean[k] += corners[k, i] * means[i]
            variance[k] += corners[k, i] * after[i]
        if k:
            for i in range(assets):
                change = after[i] - before[i]
                linear[k - 1] += corners[k - 1, i] * change
                square[k - 1] += (corners[k, i] - corners[k - 1, i]) * change
        before, after = after, before
    return mean, variance, linear, square


@njit(cache=True, nogil=True)
def contributions(covariance, means, weights, out):  # type: ignore[no-untyped-def]
    """Each asset's part of a portfolio's variance (0 where there is none), its mean and its standard deviation."""
    _marginal(covariance, weights, out)
    mean = variance = 0.0
    for i in range(len(weights)):
        out[i] *= weights[i]
        mean += weights[i] * means[i]
        variance += out[i]
    for i in range(len(weights)):
        out[i] = out[i] / variance if variance > 0.0 else 0.0
    return mean, math.sqrt(max(0.0, variance))
