"""The efficient frontier and hierarchical risk parity on the CPU."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.portfolio.matrices import (
    at_bounds,
    batch_of_matrices,
    check_bounds,
    of_each_asset,
    of_rank,
)
from warpdesk_server.kernels.portfolio.sequential import frontier_loops, hrp_loops
from warpdesk_server.kernels.portfolio.sequential.line import STEPS, critical_line
from warpdesk_server.kernels.portfolio.sequential.spec import LINKAGES, Frontier, Hrp
from warpdesk_server.kernels.portfolio.spectrum import conditioning, decompose
from warpdesk_server.kernels.problems import InvalidRequest, refuse

Array = NDArray[Any]

_AT_BOUND = 2.0**-48  # as in frontier_loops.STILL


def frontier(
    params: Frontier, means: Array, covariance: Array, lower: Array | None = None, upper: Array | None = None
) -> dict[str, Any]:
    """The efficient frontier of assets by their means (assets) and covariance matrix (assets, assets).

    Raises InvalidRequest for bounds that no portfolio meets, a matrix that is singular or not symmetric, and a target
    that is not on the frontier.
    """
    assets = len(means)
    least, most = of_each_asset(lower, 0.0, assets), of_each_asset(upper, 1.0, assets)
    check_bounds(least, most)
    matrix = batch_of_matrices(covariance)[0] * params.periods_per_year
    smallest, condition = _conditioning(matrix)
    yearly = means * params.periods_per_year
    corners, tolerances, violations, steps = critical_line(matrix, yearly, least, most)
    if steps < 0:
        raise refuse(
            "/inputs/covariance",
            f"the critical line did not end within {STEPS} x {assets:,} steps; its condition number is "
            f"{condition:.3g}: shrink the covariance",
        )
    line = _Line(corners, *frontier_loops.describe(matrix, yearly, corners))
    weights = line.between(*_place(params, line))
    parts = np.empty(assets)
    mean, risk = frontier_loops.contributions(matrix, yearly, weights, parts)
    margin = _AT_BOUND * np.maximum(1.0, np.abs(weights))
    return {
        "weights": weights,
        "bounds": at_bounds(weights, least + margin, most - margin),
        "risk_contributions": parts,
        "mean": mean,
        "risk": risk,
        "sharpe": (mean - params.rf) / risk,
        "corner_weights": corners,
        "corner_means": line.means,
        "corner_risks": np.sqrt(line.variances),
        "corner_lambdas": tolerances,
        "steps": int(steps),
        "violation": float(violations.max() / (math.fsum(np.diag(matrix)) / assets)),
        "ties": _ties(means),
        "smallest_eigenvalue": smallest,
        "condition_number": condition,
    }


@dataclass(frozen=True)
class _Line:
    """The efficient frontier: corners by falling mean, and the variance at t of the segment from each to the next,
    variance + 2 t linear + t^2 square."""

    corners: Array
    means: Array
    variances: Array
    linear: Array
    square: Array

    def between(self, corner: int, t: float) -> Array:
        """The weights at t of the segment from a corner."""
        if t == 0.0:
            return self.corners[corner].copy()
        weights: Array = (1.0 - t) * self.corners[corner] + t * self.corners[corner + 1]
        return weights


def _place(params: Frontier, line: _Line) -> tuple[int, float]:
    """The corner from which the chosen portfolio's segment goes, and where on it the portfolio is."""
    last = len(line.means) - 1
    if params.portfolio == "minimum_variance":
        return last, 0.0
    if params.portfolio == "maximum_sharpe":
        return _steepest(params.rf, line)
    target = float(params.target or 0.0)
    if params.portfolio == "target_mean":
        return _at_mean(target, line)
    return _at_risk(target, line)


def _steepest(rf: float, line: _Line) -> tuple[int, float]:
    """The place of the greatest Sharpe ratio: at a corner, or where the ratio's slope along a segment is 0."""
    means, variances = line.means.tolist(), line.variances.tolist()
    if means[0] <= rf:
        raise refuse("/params/rf", f"rf is {rf:g}, and no mean is above it: the greatest is {means[0]:g}")
    best, place = -math.inf, (0, 0.0)
    for k, (mean, variance) in enumerate(zip(means, variances, strict=True)):
        excess = mean - rf
        if excess / math.sqrt(variance) > best:
            best, place = excess / math.sqrt(variance), (k, 0.0)
        if k + 1 == len(means):
            break
        change, linear, square = means[k + 1] - mean, float(line.linear[k]), float(line.square[k])
        turn = excess * square - change * linear
        t = (change * variance - excess * linear) / turn if turn != 0.0 else -1.0
        if 0.0 < t < 1.0:
            ratio = (excess + t * change) / math.sqrt(variance + t * (2.0 * linear + t * square))
            if ratio > best:
                best, place = ratio, (k, t)
    return place


def _at_mean(target: float, line: _Line) -> tuple[int, float]:
    greatest, least = float(line.means[0]), float(line.means[-1])
    if not least <= target <= greatest:
        raise _not_there("mean", target, least, greatest)
    after = int(np.argmax(line.means <= target))
    if after == 0 or line.means[after] == target:
        return after, 0.0
    before = float(line.means[after - 1])
    return after - 1, (before - target) / (before - float(line.means[after]))


def _at_risk(target: float, line: _Line) -> tuple[int, float]:
    greatest, least = math.sqrt(line.variances[0]), math.sqrt(line.variances[-1])
    if not least <= target <= greatest:
        raise _not_there("risk", target, least, greatest)
    variance = target * target
    after = int(np.argmax(line.variances <= variance)) if variance >= line.variances[-1] else len(line.variances) - 1
    if after == 0 or line.variances[after] == variance:
        return after, 0.0
    before, linear, square = (float(of[after - 1]) for of in (line.variances, line.linear, line.square))
    # The smaller root, in the form without cancellation.
    root = math.sqrt(max(0.0, linear * linear - square * (before - variance)))
    return after - 1, min(1.0, max(0.0, (before - variance) / (root - linear)))


def _not_there(what: str, target: float, least: float, greatest: float) -> InvalidRequest:
    return refuse(
        "/params/target",
        f"{what} {target:.17g} is not on the frontier: the least is {least:.17g}, of the minimum variance, and the "
        f"greatest {greatest:.17g}",
    )


def _conditioning(matrix: Array) -> tuple[float, float]:
    """The smallest eigenvalue and condition number of a covariance matrix. Raises InvalidRequest if it is singular."""
    values, _ = decompose(matrix[np.newaxis])
    smallest, condition = (float(number[0]) for number in conditioning(values))
    if not condition < math.inf:
        raise refuse(
            "/inputs/covariance",
            f"singular: the smallest eigenvalue is {smallest:.3g}, and the greatest {values[0, -1]:.3g}. Shrink it "
            "(covariance, method ledoit_wolf), or use more returns than assets",
        )
    return smallest, condition


def _ties(means: Array) -> list[list[int]]:
    """The groups of assets with equal means, by their first asset."""
    groups: dict[float, list[int]] = {}
    for asset, mean in enumerate(means.tolist()):
        groups.setdefault(mean, []).append(asset)
    return [group for group in groups.values() if len(group) > 1]


def hrp(params: Hrp, covariance: Array) -> dict[str, Any]:
    """The hierarchical risk parity of covariance matrices (assets, assets) or (batch, assets, assets).

    Raises InvalidRequest for a matrix that is not symmetric and a variance that is not above 0.
    """
    matrices = batch_of_matrices(covariance)
    count, assets, _ = matrices.shape
    weights, parts = np.empty((count, assets)), np.empty((count, assets))
    risks, order = np.empty(count), np.empty((count, assets), np.int32)
    merges = np.empty((count, assets - 1, 4))

    def solve(first: int, end: int) -> None:
        for item in range(first, end):
            matrix, distance = matrices[item], np.empty((assets, assets))
            hrp_loops.distances(matrix, distance)
            if params.distance == "of_distances":
                plain, distance = distance, np.empty((assets, assets))
                hrp_loops.distances_of_columns(plain, distance)
            hrp_loops.cluster(distance, LINKAGES.index(params.linkage), merges[item])
            hrp_loops.leaves(merges[item], order[item])
            hrp_loops.bisect(matrix, order[item], weights[item])
            _, risks[item] = frontier_loops.contributions(matrix, weights[item], weights[item], parts[item])

    share(count, solve)
    smallest, condition = conditioning(decompose(matrices)[0] if params.spectrum else np.full((count, 1), np.nan))
    answer: dict[str, Array] = {
        "weights": weights,
        "risk_contributions": parts,
        "risk": risks,
        "order": order,
        "merges": merges,
        "smallest_eigenvalue": smallest,
        "condition_number": condition,
    }
    return of_rank(covariance.ndim, answer)
