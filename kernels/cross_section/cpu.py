"""The operations across assets on all cores of the CPU: the reference for every other backend."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.cross_section import loops
from warpdesk_server.kernels.cross_section.groups import Groups
from warpdesk_server.kernels.cross_section.spec import TIES, Neutralise, Rank, Winsorise, ZScore
from warpdesk_server.kernels.problems import refuse

Array = NDArray[Any]
# Work on the rows (columns, bars, assets) of the bars from `begin` on, whose groups are `first`.
Work = Callable[[Array, Array, int], None]

# Bars that are copied together: as many as have so many numbers, but two cache lines of each asset if there is memory.
_IN_CACHE = 1 << 16
_LINES = 16
_IN_MEMORY = 1 << 20
_AT_LEAST = 1 << 14  # numbers: fewer are not worth another thread


def cross_rank(params: Rank, values: Array, groups: Array | None = None) -> dict[str, Any]:
    """The rank of each asset of values (assets, time) at each bar, float64 or float32, within its group if any."""

    def work(rows: Array, first: Array, _begin: int) -> None:
        loops.ranks(rows[0], first, TIES[params.ties], params.percentile)

    return {"rank": _by_bar(values, groups, work)}


def cross_zscore(params: ZScore, values: Array, groups: Array | None = None) -> dict[str, Any]:
    """The z-score of each asset of values (assets, time) at each bar, float64 or float32, within its group if any."""

    def work(rows: Array, first: Array, _begin: int) -> None:
        loops.zscores(rows[0], first, params.ddof)

    return {"zscore": _by_bar(values, groups, work)}


def winsorise(params: Winsorise, values: Array, groups: Array | None = None) -> dict[str, Any]:
    """The values (assets, time), float64 or float32, clipped to two quantiles of each bar, of each group if any."""

    def work(rows: Array, first: Array, _begin: int) -> None:
        loops.winsorise(rows[0], first, params.lower, params.upper)

    return {"winsorised": _by_bar(values, groups, work)}


def neutralise(
    params: Neutralise,
    values: Array,
    factors: Array | None = None,
    weights: Array | None = None,
    groups: Array | None = None,
) -> dict[str, Any]:
    """The residuals of each bar's least-squares regression of values (assets, time) on factors and intercepts.

    Raises InvalidRequest if a weight is negative.
    """
    check_weights(weights)
    used = np.empty(values.shape[1], np.int32)

    def work(rows: Array, first: Array, begin: int) -> None:
        loops.neutralise(rows, first, params.intercept, used[begin : begin + rows.shape[1]])

    return {"residual": _by_bar(values, groups, work, weights, *(() if factors is None else factors)), "used": used}


def check_weights(weights: Array | None) -> None:
    """Raise InvalidRequest for the first negative weight of assets."""
    if weights is not None and (weights < 0).any():
        at = tuple(int(index) for index in np.argwhere(weights < 0)[0])
        bar = f" at bar {at[1]}" if len(at) > 1 else ""
        raise refuse("/inputs/weights", f"the weight of asset {at[0]}{bar} is {weights[at]:g}, below 0")


def _by_bar(values: Array, groups: Array | None, work: Work, *others: Array | None) -> Array:
    """Let `work` change the bars of values (assets, time), copied to rows beside those of others (1.0 for None)."""
    assets, time = values.shape
    grouping = Groups(groups, assets)
    constant = None if grouping.vary else grouping.of_bars(0, 1)
    columns = [None if given is None else _matrix(given) for given in (values, *others)]
    each = assets * len(columns)
    strip = max(1, _IN_CACHE // each, min(_LINES, _IN_MEMORY // each))
    out = np.empty(values.shape, values.dtype)

    def run(first: int, end: int) -> None:
        for begin in range(first, end, strip):
            bars = min(strip, end - begin)
            order, starts = constant or grouping.of_bars(begin, begin + bars)
            rows = np.empty((len(columns), bars, assets))
            for column, given in zip(rows, columns, strict=True):
                if given is None:
                    column.fill(1.0)
                else:
                    loops.gather(given, begin, order, starts, column)
            work(rows, starts, begin)
            loops.scatter(rows[0], order, begin, out)

    share(time, run, at_least=max(min(strip, _LINES), -(-_AT_LEAST // each)))
    return out


def _matrix(given: Array) -> Array:
    """Numbers (assets, time), or (assets, 1) where they are the same at each bar: read-only, as Numba compiles again
    for each mixture of writable and read-only arrays."""
    matrix = np.asarray(given).reshape(given.shape[0], -1)
    matrix.flags.writeable = False
    return matrix
