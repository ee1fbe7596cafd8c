"""Basket options on all cores of the CPU, by blocks of 256 paths in the first caches."""

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels import progress
from warpdesk_server.kernels.basket_options import spec
from warpdesk_server.kernels.basket_options.estimate import estimate
from warpdesk_server.kernels.basket_options.loops import walk
from warpdesk_server.kernels.basket_options.plan import Tables, Terms, plan
from warpdesk_server.kernels.basket_options.policy import Walk, fit
from warpdesk_server.kernels.basket_options.spec import BLOCK, SUMS, BasketOption, products
from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.device.reduce import sums_of_runs
from warpdesk_server.kernels.monte_carlo.plan import key
from warpdesk_server.kernels.sharding import Shard

Array = NDArray[Any]

BLOCKS_PER_TASK = 4


def basket_option(
    params: BasketOption,
    spot: Array,
    volatility: Array,
    correlation: Array | None = None,
    dividend: Array | None = None,
    weights: Array | None = None,
    *,
    seed: int,
) -> dict[str, Any]:
    """The outputs of basket_option; inputs as in spec.OPERATION, of shape (assets), (assets, assets) or (1)."""
    job, tables = plan(params, spot, volatility, correlation, dividend, weights)
    policy, share_of_fit = None, 0.0
    if params.is_american:
        share_of_fit = params.fit_paths / (params.fit_paths + params.paths)
        with progress.stage(0.0, share_of_fit):
            policy = fit(job, _PolicyPaths(job, tables, params.fit_paths, seed).walk)
    coefficients = policy.coefficients if policy else np.zeros((job.dates + 1, job.functions))
    with progress.stage(share_of_fit, 1.0):
        sums, counts = _value(job, tables, 0, params.paths, coefficients, seed)
    return estimate(params, job, sums, counts, policy)


def shard_sums(params: BasketOption, shard: Shard, *, seed: int, **inputs: Array) -> dict[str, Array]:
    """The sums of one shard of a European option (spec.sharding), its counts, and the option's terms for each unit."""
    job, tables = plan(params, **inputs)
    sums, counts = _value(job, tables, *spec.span(params, shard), np.zeros((2, job.functions)), seed)
    return {"sums": sums, "counts": counts, "terms": np.tile(np.array(job, np.float64), (len(sums), 1))}


class _PolicyPaths:
    """The paths that a policy is fitted on, in host memory: on one date at a time (policy.Walk)."""

    def __init__(self, job: Terms, tables: Tables, paths: int, seed: int) -> None:
        self._job, self._tables, self._paths, self._seed = job, tables, paths, seed
        self._blocks = -(-paths // BLOCK)
        self._state = _state(job, self._blocks)
        self._moments = np.empty((self._blocks, products(job.functions)))

    def walk(self, step: Walk, coefficients: Array) -> tuple[Array, Array]:
        """The sums of each block for the regression or, at the end, of its payments; and the counts of dates."""
        sums, counts = np.empty((self._blocks, SUMS)), np.zeros(self._job.dates + 1, np.int64)
        _walk(
            self._job, self._tables, (0, self._paths), (*step, 1), coefficients, self._state, self._moments, sums,
            counts, self._seed,
        )  # fmt: skip
        return (sums if step.end < 0 else self._moments), counts


def _value(job: Terms, tables: Tables, first: int, end: int, coefficients: Array, seed: int) -> tuple[Array, Array]:
    """The sums of the payments of paths in chunks (spec.SUMS), and how many paths are exercised on each date."""
    sums, counts = [], np.zeros(job.dates + 1, np.int64)
    for start in range(first, end, spec.CHUNK):
        stop = min(start + spec.CHUNK, end)
        part = np.empty((-(-(stop - start) // BLOCK), SUMS))
        with progress.stage((start - first) / (end - first), (stop - first) / (end - first)):
            steps = (job.dates, -1, 0)
            _walk(job, tables, (start, stop), steps, coefficients, None, np.empty((1, 1)), part, counts, seed)
        sums.append(sums_of_runs(part, len(part)))
    return np.concatenate(sums), counts


def _state(job: Terms, blocks: int) -> tuple[Array, ...]:
    """The state of paths on a date (loops.walk): motions, features, payment, date of exercise, four normals."""
    return (
        np.empty((blocks, job.assets, BLOCK)),
        np.empty((blocks, job.features, BLOCK)),
        np.empty((blocks, BLOCK)),
        np.empty((blocks, BLOCK), np.int32),
        np.empty((blocks, 4, BLOCK), np.float32),
    )


def _walk(
    job: Terms, tables: Tables, paths: tuple[int, int], steps: tuple[int, int, int], coefficients: Array,
    state: tuple[Array, ...] | None, moments: Array, sums: Array, counts: Array, seed: int,
) -> None:  # fmt: skip
    """Move blocks of paths by loops.walk. Without a state to keep, each thread has one for a block."""
    low, high = (np.uint64(word) for word in key(seed))
    lock = threading.Lock()

    def run(begin: int, end: int) -> None:
        own = np.zeros_like(counts)
        walk(
            job, tables, *paths, begin, end, *steps, low, high, coefficients, state is not None,
            state or _state(job, 1), moments, sums, own,
        )  # fmt: skip
        with lock:
            np.add(counts, own, out=counts)

    share(len(sums), run, at_least=BLOCKS_PER_TASK)
