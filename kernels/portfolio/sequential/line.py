"""The critical line of a frontier from its start at the greatest mean to the minimum variance."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.portfolio.sequential import frontier_loops
from warpdesk_server.kernels.portfolio.sequential.frontier_loops import FREE, LOWER, UPPER

Array = NDArray[Any]

STEPS = 20  # the most for each asset
_ROOM = 64  # corners at a time, besides as many as there are assets


def critical_line(covariance: Array, means: Array, lower: Array, upper: Array) -> tuple[Array, Array, Array, int]:
    """The corner portfolios by falling mean, their tolerances of risk, their violations and the number of steps.

    The violation of the conditions of optimality is in units of the covariance. A number of steps below 0: the line did
    not end within STEPS for each asset.
    """
    assets = len(means)
    table = np.zeros((assets + 2, assets + 2))
    table[:assets, :assets] = covariance
    table[assets, :assets] = table[:assets, assets] = 1.0
    weights, state, marginal = _greatest_mean(means, lower, upper)
    frontier_loops.sweep(table, marginal)
    shape = table, covariance
    place = np.array([np.inf, -1.0, 0.0, STEPS * assets, 0.0, 0.0])
    tied = means == means[marginal]
    if tied.sum() > 1:
        # Of the portfolios with the greatest mean the one of least variance: the end of the line on which the index
        # takes the place of the mean.
        index = -1.0 * np.arange(assets)
        _follow(shape, index, (lower, upper), state, weights, tied, place)
        if place[5] < 0:
            return np.empty((0, assets)), np.empty(0), np.empty(0), -1
        place[:3], place[4:] = (np.inf, -1.0, 0.0), 0.0
    # Less the mean of the marginal asset, so that for great tolerances no digits are lost.
    every = np.ones(assets, np.bool_)
    found = _follow(shape, means - means[marginal], (lower, upper), state, weights, every, place)
    return *found, int(STEPS * assets - place[3]) if place[5] > 0 else -1


def _greatest_mean(means: Array, lower: Array, upper: Array) -> tuple[Array, Array, int]:
    """The portfolio of the greatest mean, which bounds its assets have, and the one asset that is counted as free."""
    weights, state, rest = lower.copy(), np.full(len(means), LOWER), 1.0
    for bound in lower.tolist():
        rest -= bound
    order = np.argsort(-means, kind="stable").tolist()  # of equal means the first asset
    marginal = order[-1]
    for asset in order:
        room = float(upper[asset] - lower[asset])
        if rest <= room:
            marginal = asset
            weights[asset] = lower[asset] + max(rest, 0.0)
            break
        weights[asset], state[asset] = upper[asset], UPPER
        rest -= room
    state[marginal] = FREE
    return weights, state, marginal


def _follow(
    shape: tuple[Array, Array],
    means: Array,
    bounds: tuple[Array, Array],
    state: Array,
    weights: Array,
    active: Array,
    place: Array,
) -> tuple[Array, Array, Array]:
    """The corners of the line on which only `active` assets move, with their tolerances and violations."""
    table, covariance = shape
    frontier_loops.border(table, state, means)
    parts: list[tuple[Array, Array, Array]] = []
    while True:
        room = len(means) + _ROOM
        part = np.empty((room, len(means))), np.empty(room), np.empty(room)
        if parts:  # the last corner may still change
            for array, before in zip(part, parts[-1], strict=True):
                array[0] = before[-1]
            parts[-1] = tuple(before[:-1] for before in parts[-1])  # type: ignore[assignment]
            place[4] = 1.0
        frontier_loops.descend(table, covariance, means, *bounds, state, weights, active, place, *part)
        found = int(place[4])
        parts.append(tuple(array[:found] for array in part))  # type: ignore[arg-type]
        if place[5] != 0.0:
            corners, tolerances, violations = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            return corners, tolerances, violations
