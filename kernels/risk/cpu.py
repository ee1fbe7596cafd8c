"""The risk operations on all cores of the CPU: the reference for every other backend."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels import progress
from warpdesk_server.kernels.cpu import pages
from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.device.reduce import sums_of_runs
from warpdesk_server.kernels.matmul.cpu import matmul
from warpdesk_server.kernels.matmul.spec import MatmulParams
from warpdesk_server.kernels.risk import coverage, loops, measures, spec
from warpdesk_server.kernels.risk.loops import SCENARIOS
from warpdesk_server.kernels.risk.losses import Losses
from warpdesk_server.kernels.risk.measures import Job
from warpdesk_server.kernels.risk.performance import check_returns, outputs, target
from warpdesk_server.kernels.risk.spec import AT_LEAST, ROWS, SUMS, TILE, Performance, ValueAtRisk, VarBacktest

Array = NDArray[Any]

_KERNEL = MatmulParams(algorithm="kernel")
_PACKED = 1 << 20  # numbers of exposures, and of their losses, that a thread packs at a time


def value_at_risk(
    params: ValueAtRisk,
    weights: Array,
    returns: Array | None = None,
    probabilities: Array | None = None,
    covariance: Array | None = None,
    mean: Array | None = None,
    *,
    seed: int,
) -> dict[str, Any]:
    """Value at risk of portfolios with weights (assets) or (portfolios, assets), from returns (scenarios, assets).

    `probabilities` (scenarios) weigh the scenarios. A covariance (assets, assets), with a mean (assets) or 0, stands
    for returns. Raises InvalidRequest for negative probabilities, and for a covariance that is not positive definite.
    """
    return measures.value_at_risk(_by_chunk, params, weights, returns, probabilities, covariance, mean, seed)


def _by_chunk(job: Job, measure: Callable[[Losses, int, int], None]) -> None:
    """Call `measure` for chunks of portfolios, which bound the memory of their losses."""
    total = len(job.weights)
    each = spec.portfolios_of_a_chunk(job.params, job.count, job.weights.shape)
    for first in range(0, total, each):
        end = min(first + each, total)
        with progress.stage(first / total, end / total):
            measure(HostLosses(job, first, end), first, end)


class HostLosses:
    """The losses of a job's portfolios first to end - 1 in host memory (losses.Losses)."""

    def __init__(self, job: Job, first: int, end: int) -> None:
        self._job, self._losses = job, pages.empty((end - first, job.count), np.float64)
        exposures, offsets = job.exposures[first:end], job.offsets[first:end]
        each = max(1, _PACKED // (job.weights.shape[1] + SCENARIOS))
        step = job.count if job.rows is not None and job.rows.dtype == np.float64 else 2 * ROWS
        for begin in range(0, job.count, step):
            rows = self._rows(begin, step)
            for at in range(0, end - first, each):
                some = slice(at, at + each)
                self._multiply(rows, exposures[some], offsets[some], begin, self._losses[some])
            del rows  # freed before the next are made

    def ranked(self, masses: list[int]) -> Array:
        found, wanted = np.empty((len(self._losses), len(masses))), np.array(masses, np.int64)
        self._share(lambda a, b: loops.select(self._losses, self._job.masses, wanted, a, b, found))
        return found

    def tails(self, thresholds: Array) -> tuple[Array, Array]:
        sums = np.empty((*thresholds.shape, -(-self._job.count // TILE), 2))
        found = np.empty((*thresholds.shape, 2), np.uint64)
        thresholds = np.ascontiguousarray(thresholds)
        self._share(lambda a, b: loops.tails(self._losses, self._job.masses, thresholds, a, b, sums, found))
        return of_tiles(sums), found

    def moments(self, centres: Array) -> Array:
        sums = np.empty((len(centres), -(-self._job.count // TILE), 4))
        self._share(lambda a, b: loops.moments(self._losses, self._job.masses, centres, a, b, sums))
        return of_tiles(sums)

    def combined(self, pieces: Array) -> Array:
        portfolios, count, _ = pieces.shape
        total = np.zeros((portfolios * count, self._job.weights.shape[1]))
        for begin in range(0, self._job.count, ROWS):
            rows = self._rows(begin, ROWS)
            weights = self._weigh(pieces, begin, len(rows))
            total += matmul(_KERNEL, weights.reshape(portfolios * count, -1), rows)["product"]
        return total.reshape(portfolios, count, -1)

    def _multiply(self, rows: Array, exposures: Array, offsets: Array, begin: int, losses: Array) -> None:
        tiles = -(-len(rows) // SCENARIOS)
        share(tiles, lambda a, b: loops.multiply(rows, exposures, offsets, begin, a, b, losses))

    def _weigh(self, pieces: Array, begin: int, scenarios: int) -> Array:
        """What each of some scenarios counts in each piece, (portfolios, m, scenarios)."""
        weights, masses = np.empty((*pieces.shape[:2], scenarios)), self._job.masses
        self._share(lambda a, b: loops.weigh(self._losses, masses, pieces, begin, a, b, weights), weights[0].size)
        return weights

    def _rows(self, begin: int, count: int) -> Array:
        """The rows of at most `count` scenarios from `begin` on, float64 and read-only."""
        job, end = self._job, min(begin + count, self._job.count)
        if job.rows is not None:
            given = np.ascontiguousarray(job.rows[begin:end], np.float64).view()
            given.flags.writeable = False
            return given
        rows = np.empty((end - begin, job.weights.shape[1]))
        freedom = int(job.params.degrees_of_freedom or 0)
        k0, k1 = (np.uint64(word) for word in job.words)
        share(
            len(rows),
            lambda a, b: loops.draw(begin, a, b, k0, k1, freedom, rows),
            at_least=max(1, AT_LEAST // rows.shape[1]),
        )
        rows.flags.writeable = False
        return rows

    def _share(self, run: Callable[[int, int], None], each: int = 0) -> None:
        """Run a loop over portfolios on all cores; `each` is how many numbers of one it reads."""
        share(len(self._losses), run, at_least=max(1, AT_LEAST // (each or self._job.count)))


def of_tiles(sums: Array) -> Array:
    """The sums (..., k) of tiles (..., tiles, k), as a tree of neighbours."""
    tiles = np.moveaxis(sums, -2, 0)
    return sums_of_runs(tiles.reshape(len(tiles), -1), len(tiles))[0].reshape(tiles.shape[1:])


def var_backtest(params: VarBacktest, returns: Array, var: Array) -> dict[str, Any]:
    """Tests of forecasts var against returns, both (series, time) or (time), by how often losses exceeded them."""
    earned, forecast = as_series(returns), as_series(var)
    counts = np.empty((len(earned), 5))
    share(len(earned), lambda a, b: loops.count_exceptions(earned, forecast, a, b, counts),
          at_least=max(1, AT_LEAST // earned.shape[1]))  # fmt: skip
    return coverage.outputs(params, counts, earned.shape[1])


def performance(params: Performance, returns: Array, benchmark: Array | None = None) -> dict[str, Any]:
    """The performance of returns (series, time) or (time), and beside a benchmark (time).

    Raises InvalidRequest for a return below -1.
    """
    check_returns(returns, benchmark)
    earned = as_series(returns)
    count, time = earned.shape
    other = as_series(np.empty(0) if benchmark is None else benchmark)[0]
    sums = np.empty((count, SUMS))
    depths, marks = np.empty((count, params.drawdowns)), np.empty((count, params.drawdowns, 3), np.int32)
    share(count, lambda a, b: loops.run_series(earned, other, target(params), a, b, sums, depths, marks),
          at_least=max(1, (AT_LEAST >> 3) // time))  # fmt: skip
    return outputs(params, sums, depths, marks, time, benchmark is not None)


def as_series(array: Array) -> Array:
    """Returns (series, time) of an array of rank 1 or 2, float64 and read-only."""
    given = (
        np.ascontiguousarray(array, np.float64).reshape(-1, array.shape[-1]).view() if array.size else np.empty((1, 0))
    )
    given.flags.writeable = False
    return given
