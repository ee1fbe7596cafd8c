"""The policy of exercise of an American option: least squares over paths, from the last date to the first.

Longstaff and Schwartz (Review of Financial Studies 14, 2001): on each date, over the paths that are in the money, what
the policy of later dates pays is regressed on functions of the prices. Exercise where the payment is more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels import progress
from warpdesk_server.kernels.basket_options.plan import Terms
from warpdesk_server.kernels.device.reduce import pairwise_sum

Array = NDArray[Any]

# What must be left of a function's sum of squares, given the functions before it; below, it is left out.
LEAST_PART = 2.0**-40


class Walk(NamedTuple):
    """The dates that paths move through: from `start` down to `end` + 1. After date 0, at `end` -1, they are summed."""

    start: int
    end: int


@dataclass(frozen=True)
class Policy:
    """The policy of an option: what waiting is worth on date k, by coefficients (dates + 1, functions).

    `in_the_money` counts its paths in the money on each date before the last, and `sums` are those of its own paths,
    (blocks, spec.SUMS).
    """

    coefficients: Array
    in_the_money: list[int]
    sums: Array


def fit(job: Terms, walk: Callable[[Walk, Array], tuple[Array, Array]]) -> Policy:
    """The policy of an option. `walk` moves all paths, and gives the sums of the date where it ends."""
    coefficients = np.zeros((job.dates + 1, job.functions))
    in_the_money = []
    start = job.dates
    for date in range(job.dates - 1, 0, -1):
        with progress.stage(1.0 - (date + 1) / job.dates, 1.0 - date / job.dates):
            moments, _ = walk(Walk(start, date - 1), coefficients)
        found = [float(value) for value in pairwise_sum(moments)]
        coefficients[date] = solve(found, job.functions)
        in_the_money.append(int(found[0]))
        start = date - 1
    sums, _ = walk(Walk(start, -1), coefficients)
    return Policy(coefficients, in_the_money[::-1], sums)


def solve(moments: list[float], count: int) -> list[float]:
    """The coefficients of a least squares fit of `count` functions, from the sums over paths.

    `moments` are the rows of the upper triangle of the sums of products of two functions, each row followed by the sum
    of its function with the target. By Cholesky, in a fixed order. A function that those before it nearly give
    (LEAST_PART), or that is 0 on all paths, has the coefficient 0.
    """
    rows: list[list[float]] = []
    start = 0
    for i in range(count):
        rows.append([0.0] * i + moments[start : start + count - i + 1])
        start += count - i + 1
    kept: list[int] = []
    for i in range(count):
        row = rows[i][:]
        for m in kept:
            factor = rows[m][i]
            for j in range(i, count + 1):
                row[j] -= factor * rows[m][j]
        if row[i] <= LEAST_PART * rows[i][i]:
            continue
        pivot = sqrt(row[i])
        rows[i] = [0.0] * i + [value / pivot for value in row[i:]]
        kept.append(i)
    found = [0.0] * count
    for i in reversed(kept):
        rest = rows[i][count]
        for j in kept:
            if j > i:
                rest -= rows[i][j] * found[j]
        found[i] = rest / rows[i][i]
    return found
