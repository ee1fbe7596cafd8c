"""Covariance and risk parity on all cores of the CPU: the reference for every other backend."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.matmul.cpu import matmul
from warpdesk_server.kernels.portfolio import loops
from warpdesk_server.kernels.portfolio.matrices import batch_of_matrices, of_rank, read_only
from warpdesk_server.kernels.portfolio.spec import PRODUCT, Covariance, RiskParity
from warpdesk_server.kernels.portfolio.spectrum import conditioning, decompose
from warpdesk_server.kernels.problems import refuse

Array = NDArray[Any]
Multiply = Callable[[Array, Array], Array]  # (batch, m, k) by (batch, k, n)

DECAY = 0.94  # RiskMetrics, Technical Document, 4th ed., 1996: of daily returns
_PANEL = 192  # columns of a product that are computed together; no byte depends on it
_LEAST_REST = 1e-6  # of 1 minus the sum of squared weights: below it, digits of a covariance cancel
_AT_LEAST = 1 << 15  # numbers: fewer are not worth another thread


def covariance(params: Covariance, returns: Array) -> dict[str, Any]:
    """The covariance of simple returns (assets, time) or (batch, assets, time), float64 or float32.

    Raises InvalidRequest if ledoit_wolf meets an asset whose returns do not vary, if the decay leaves one return all
    the weight, and if a covariance overflows.
    """
    return covariance_by(_symmetric, params, returns)


def covariance_by(multiply: Multiply, params: Covariance, returns: Array) -> dict[str, Any]:
    """The covariance of returns by a device's products, which are symmetric."""
    batch = returns if returns.ndim == 3 else returns[np.newaxis]
    count, assets, time = batch.shape
    weights, scales, divisor = _weights(params, time)
    means, centred = np.empty((count, assets)), np.empty(batch.shape)
    rows, row_means, row_out = read_only(batch.reshape(-1, time)), means.reshape(-1), centred.reshape(-1, time)
    centre = partial(loops.centre, rows, weights, scales, params.demean)
    share(len(rows), lambda first, end: centre(first, end, row_means, row_out), max(1, _AT_LEAST // time))
    found = multiply(centred, _turned(centred)) / divisor
    if not np.isfinite(found).all():
        raise refuse("/inputs/returns", f"the largest return is {np.abs(batch).max():g}: its square overflows")
    shrinkage = np.zeros(count)
    if params.method == "ledoit_wolf":
        _check_variances(found, returns.ndim)
        for item in range(count):
            shrinkage[item] = loops.shrink(found[item], centred[item], divisor)
    correlation = np.empty_like(found)
    for item in range(count):
        loops.correlate(found[item], correlation[item])
    found *= params.periods_per_year
    spectrum, components = np.full((count, 1), np.nan), np.empty((count, 0, assets))
    if params.eigenvalues or params.components:
        spectrum, components = decompose(found, params.components)
    smallest, condition = conditioning(spectrum)
    explained = spectrum[:, ::-1][:, : params.components].copy()
    answer: dict[str, Array] = {
        "covariance": found,
        "correlation": correlation,
        "means": means * params.periods_per_year,
        "shrinkage": shrinkage,
        "eigenvalues": spectrum if params.eigenvalues else np.empty((count, 0)),
        "explained_variance": explained,
        "explained_variance_ratio": _ratios(found, explained),
        "components": components,
        "smallest_eigenvalue": smallest,
        "condition_number": condition,
    }
    return of_rank(returns.ndim, answer)


def _ratios(matrices: Array, explained: Array) -> Array:
    """The parts of the sum of all variances that components explain; NaN where it is 0."""
    ratios = np.full_like(explained, np.nan)
    for ratio, matrix, part in zip(ratios, matrices, explained, strict=True):
        exponent = math.frexp(np.diag(matrix).max())[1]  # of huge variances the sum would overflow
        total = math.fsum(np.ldexp(np.diag(matrix), -exponent))
        if total > 0.0:
            ratio[:] = np.ldexp(part, -exponent) / total
    return ratios


def _weights(params: Covariance, time: int) -> tuple[Array, Array, float]:
    """The weights of the mean, the factors of centred returns, and what sums of their products are divided by."""
    if params.method != "ewma":
        return np.full(time, 1.0 / time), np.ones(time), float(time - params.demean)
    decay = DECAY if params.decay is None else params.decay
    falling = np.empty(time)
    weight = total = 0.0
    for back in range(time):
        weight = weight * decay if back else 1.0
        falling[time - 1 - back] = weight
        total += weight
    falling /= total
    # Weights of a sample make it smaller by the sum of their squares, as 1 / time does (pandas, ewm(...).cov()).
    squares = 0.0
    for weight in falling:
        squares += float(weight) * float(weight)
    divisor = 1.0 - squares if params.demean else 1.0
    if divisor < _LEAST_REST:
        raise refuse(
            "/params/decay",
            f"decay {decay:g} leaves the newest of {time} returns a weight of {falling[-1]:g}: nothing is left to vary",
        )
    return falling, np.sqrt(falling), divisor


def _check_variances(found: Array, rank: int) -> None:
    for item, matrix in enumerate(found):
        for asset in np.flatnonzero(np.diag(matrix) == 0.0)[:1]:
            where = f"batch {item}, " if rank == 3 else ""
            raise refuse(
                "/inputs/returns", f"{where}asset {asset} has a variance of 0: ledoit_wolf needs its correlations"
            )


def _turned(rows: Array) -> Array:
    return np.ascontiguousarray(rows.transpose(0, 2, 1))


def _symmetric(a: Array, b: Array) -> Array:
    """The products a @ b of which each is symmetric: columns from the diagonal down, and their mirror image.

    The bytes are those of whole products: a sum's terms are the same either way, and in the same order.
    """
    count, size, _ = a.shape
    out = np.empty((count, size, size))
    for begin in range(0, size, _PANEL):
        columns = slice(begin, min(begin + _PANEL, size))
        for item in range(count):
            below = matmul(PRODUCT, a[item, begin:], np.ascontiguousarray(b[item, :, columns]))["product"]
            out[item, begin:, columns] = below
            out[item, columns, begin:] = below.T
    return out


def risk_parity(params: RiskParity, covariance: Array, budgets: Array | None = None) -> dict[str, Any]:
    """The risk-parity weights of covariance matrices (assets, assets) or (batch, assets, assets).

    Raises InvalidRequest for a matrix that is not symmetric, a variance or budget that is not above 0, and where the
    tolerance is not reached.
    """

    def solve(matrices: Array, parts: Array, *out: Array) -> None:
        run = partial(loops.risk_parity, matrices, parts, params.tolerance, params.sweeps)
        share(len(matrices), lambda first, end: run(first, end, *out))

    return risk_parity_by(solve, params, covariance, budgets)


def risk_parity_by(
    solve: Callable[..., None], params: RiskParity, covariance: Array, budgets: Array | None
) -> dict[str, Any]:
    """The risk-parity weights by a device's `solve(matrices, budgets, x, Sx, iterations, residuals)`."""
    matrices = batch_of_matrices(covariance)
    count, assets, _ = matrices.shape
    parts = _budgets(budgets, assets)
    x, marginal = np.empty((count, assets)), np.empty((count, assets))
    iterations, residuals = np.empty(count, np.int32), np.empty(count)
    solve(matrices, parts, x, marginal, iterations, residuals)
    # A portfolio that is no number has no residual: max leaves NaN out.
    done = (residuals <= params.tolerance) & np.isfinite(x).all(axis=1)
    for item in np.flatnonzero(~done)[:1]:
        where = f"matrix {item} of the batch: " if covariance.ndim == 3 else ""
        raise refuse(
            "/params/sweeps",
            f"{where}after {int(iterations[item])} sweeps a risk contribution is {residuals[item]:.3g} from its "
            f"budget, and tolerance is {params.tolerance:.3g}: allow more of either, or shrink the covariance",
        )
    weights, contributions, risk = np.empty_like(x), np.empty_like(x), np.empty(count)
    loops.weigh(x, marginal, weights, contributions, risk)
    smallest, condition = conditioning(decompose(matrices)[0] if params.spectrum else np.full((count, 1), np.nan))
    answer: dict[str, Array] = {
        "weights": weights,
        "risk_contributions": contributions,
        "risk": risk,
        "iterations": iterations,
        "residual": residuals,
        "smallest_eigenvalue": smallest,
        "condition_number": condition,
    }
    return of_rank(covariance.ndim, answer)


def _budgets(budgets: Array | None, assets: int) -> Array:
    if budgets is None:
        return np.full(assets, 1.0 / assets)
    for asset in np.flatnonzero(~(budgets > 0.0))[:1]:
        raise refuse("/inputs/budgets", f"asset {asset} has budget {budgets[asset]:g}: it must be above 0")
    parts: Array = loops.normalised(read_only(budgets))
    return parts
