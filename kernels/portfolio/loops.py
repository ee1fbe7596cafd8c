"""The compiled loops of covariance and risk parity; those of risk parity are the twin of portfolio.cu."""

import math

import numpy as np
from numba import njit

from warpdesk_server.kernels.cpu.compiled import inner

LANES = 32  # of a sum over time: lane l adds the times l, l + 32, ...; lanes are added by halving


@inner
def _tree(lanes):  # type: ignore[no-untyped-def]
    """The sum of the lanes by halving, which overwrites them."""
    stride = LANES // 2
    while stride > 0:
        for lane in range(stride):
            lanes[lane] += lanes[lane + stride]
        stride //= 2
    return lanes[0]


@inner
def _weighted_sum(values, weights, lanes):  # type: ignore[no-untyped-def]
    """The sum of weights[t] * values[t] over time."""
    for lane in range(LANES):
        lanes[lane] = 0.0
    whole = values.size // LANES * LANES
    for begin in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += weights[begin + lane] * values[begin + lane]
    for t in range(whole, values.size):
        lanes[t - whole] += weights[t] * values[t]
    return _tree(lanes)


@njit(cache=True, nogil=True)
def centre(returns, weights, scales, demean, first, end, means, out):  # type: ignore[no-untyped-def]
    """The weighted mean of each row of returns, and the row without its mean times `scales`.

    The mean is subtracted twice, the second time the mean of what rounding left. Equal returns leave exactly 0.
    """
    lanes = np.empty(LANES)
    row = np.empty(returns.shape[1])
    for asset in range(first, end):
        for t in range(row.size):
            row[t] = np.float64(returns[asset, t])
        equal = True
        for t in range(row.size):
            equal &= row[t] == row[0]
        mean = row[0] if equal else _weighted_sum(row, weights, lanes)
        if demean:
            for t in range(row.size):
                row[t] -= mean
            rest = 0.0 if equal else _weighted_sum(row, weights, lanes)
            mean += rest
            for t in range(row.size):
                row[t] -= rest
        means[asset] = mean
        for t in range(row.size):
            out[asset, t] = scales[t] * row[t]


@njit(cache=True, nogil=True)
def correlate(covariance, out):  # type: ignore[no-untyped-def]
    """The correlation matrix of a covariance matrix; NaN where a variance is 0."""
    size = len(covariance)
    roots = np.sqrt(np.diag(covariance))
    for i in range(size):
        for j in range(size):
            if roots[i] == 0.0 or roots[j] == 0.0:
                out[i, j] = np.nan
            else:
                out[i, j] = min(1.0, max(-1.0, covariance[i, j] / (roots[i] * roots[j])))
        if roots[i] != 0.0:
            out[i, i] = 1.0


@njit(cache=True, nogil=True)
def shrink(sample, centred, count):  # type: ignore[no-untyped-def]
    """Shrink a sample covariance matrix in place towards equal correlations, and return the weight of these.

    Ledoit and Wolf 2004, appendix B, for returns less their mean, with all sums over time divided by `count`. The sums
    over pairs of assets of products over time are taken over assets first: no further matrix is needed.
    """
    size, time = centred.shape
    roots = np.sqrt(np.diag(sample))
    second, third, first = np.zeros(time), np.zeros(time), np.zeros(time)
    fourth = 0.0
    for i in range(size):
        root = roots[i]
        for t in range(time):
            y = centred[i, t]
            square = y * y
            first[t] += root * y
            second[t] += square
            third[t] += square * y / root
        for t in range(time):
            square = centred[i, t] * centred[i, t]
            fourth += square * square
    pi = mixed = 0.0
    for t in range(time):
        pi += second[t] * second[t]
        mixed += third[t] * first[t]
    average = squares = products = diagonal = 0.0
    for i in range(size):
        average_row = squares_row = products_row = 0.0
        for j in range(size):
            squares_row += sample[i, j] * sample[i, j]
            if j != i:
                average_row += sample[i, j] / (roots[i] * roots[j])
                products_row += roots[i] * roots[j] * sample[i, j]
        average += average_row
        squares += squares_row
        products += products_row
        diagonal += sample[i, i] * sample[i, i]
    average /= size * (size - 1)
    pi = pi / count - squares
    rho = fourth / count - diagonal + average * ((mixed - fourth) / count - products)
    gamma = 0.0
    for i in range(size):
        row = 0.0
        for j in range(size):
            if j != i:
                distance = sample[i, j] - average * (roots[i] * roots[j])
                row += distance * distance
        gamma += row
    weight = 1.0 if gamma == 0.0 else min(1.0, max(0.0, (pi - rho) / gamma / count))
    for i in range(size):
        for j in range(size):
            if j != i:
                target = average * (roots[i] * roots[j])
                sample[i, j] = weight * target + (1.0 - weight) * sample[i, j]
    return weight


@njit(cache=True, nogil=True)
def asymmetry(matrix):  # type: ignore[no-untyped-def]
    """The first place (i, j) at which a matrix is not symmetric, with i < j, or has a diagonal that is not above 0.

    (-1, -1): there is none. Places that differ by 2^-40 of the two standard deviations count as equal.
    """
    size = len(matrix)
    for i in range(size):
        if not matrix[i, i] > 0.0:
            return i, i
    for i in range(size):
        for j in range(i + 1, size):
            difference = abs(matrix[i, j] - matrix[j, i])
            if difference > 2.0**-40 * math.sqrt(matrix[i, i] * matrix[j, j]):
                return i, j
    return -1, -1


@njit(cache=True, nogil=True)
def risk_parity(covariances, budgets, tolerance, most, first, end, x, y, iterations, residuals):  # type: ignore[no-untyped-def]
    """Minimise x'Sx / 2 - sum of b ln x for covariance matrices S first to end - 1, by cyclic coordinate descent.

    y is Sx, of which each element is changed in the order of the assets, as in portfolio.cu.
    """
    size = covariances.shape[1]
    for item in range(first, end):
        s, portfolio, marginal = covariances[item], x[item], y[item]
        for i in range(size):
            portfolio[i] = math.sqrt(budgets[i]) / math.sqrt(s[i, i])
            marginal[i] = 0.0
        for i in range(size):
            for j in range(size):
                marginal[j] += portfolio[i] * s[i, j]
        square = 0.0
        for i in range(size):
            square += portfolio[i] * marginal[i]
        scale = 1.0 / math.sqrt(square) if square > 0.0 else 1.0
        for i in range(size):
            portfolio[i] *= scale
            marginal[i] *= scale
        sweep, residual = 0, 0.0
        while True:
            residual = 0.0
            for i in range(size):
                residual = max(residual, abs(portfolio[i] * marginal[i] - budgets[i]))
            if residual <= tolerance or sweep == most:
                break
            for i in range(size):
                variance = s[i, i]
                others = marginal[i] - variance * portfolio[i]
                root = math.sqrt(others * others + 4.0 * variance * budgets[i])
                # The form without cancellation.
                new = 2.0 * budgets[i] / (others + root) if others > 0.0 else (root - others) / (2.0 * variance)
                change = new - portfolio[i]
                portfolio[i] = new
                for j in range(size):
                    marginal[j] += change * s[i, j]
            sweep += 1
        iterations[item] = sweep
        residuals[item] = residual


@njit(cache=True, nogil=True)
def normalised(parts):  # type: ignore[no-untyped-def]
    """Positive numbers divided by their sum."""
    total = 0.0
    for part in parts:
        total += part
    return parts / total


@njit(cache=True, nogil=True)
def weigh(x, y, weights, contributions, risks):  # type: ignore[no-untyped-def]
    """The weights, parts of the risk and risk of portfolios x that are not yet divided by their sum; y is Sx."""
    for item in range(len(x)):
        total = square = 0.0
        for i in range(x.shape[1]):
            total += x[item, i]
            square += x[item, i] * y[item, i]
        for i in range(x.shape[1]):
            weights[item, i] = x[item, i] / total
            contributions[item, i] = x[item, i] * y[item, i] / square
        risks[item] = math.sqrt(square) / total
