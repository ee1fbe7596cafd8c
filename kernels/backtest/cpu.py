"""Backtests on all cores of the CPU: the reference for every other backend."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.backtest import loops, luck, metrics, spec
from warpdesk_server.kernels.backtest.job import Job, answer, single_answer
from warpdesk_server.kernels.backtest.signals import chunks, prefix_differences
from warpdesk_server.kernels.backtest.split_loops import try_splits
from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.cpu.lanes import LANES
from warpdesk_server.kernels.device import orders as o

Array = NDArray[Any]
_NO_CURVE, _NO_LOG = np.empty((2, 0)), np.empty((0, o.TRADE))
_SPLITS = 2048  # that share the tables of a tile, at least


def backtest_sweep(params: spec.Sweep, **inputs: Array) -> dict[str, Any]:
    """The metrics of each set of a strategy's parameters for each asset. Prices are (time) or (assets, time)."""
    job = Job(params, inputs)
    raw = np.empty((metrics.RAW, job.assets, job.sets.count))
    sums = np.empty((4, job.assets, job.sets.count, params.blocks))
    for asset, first, end, series in chunks(job):
        raw[:, asset, first:end], sums[:, asset, first:end] = _simulate(job, asset, first, end, series)
    return answer(job, raw, sums, prefix_differences(job))


def backtest(params: spec.Single, **inputs: Array) -> dict[str, Any]:
    """Equity, position and trades of a strategy with one set of parameters, with the metrics that a sweep gives."""
    job = Job(params, inputs)
    raw = np.empty((metrics.RAW, job.assets))
    curves, logs = np.empty((job.assets, 2, job.bars)), np.zeros((job.assets, 2 * job.bars + 2, o.TRADE))
    for asset, first, end, series in chunks(job):
        own, _ = _simulate(job, asset, first, end, series, curves[asset], logs[asset])
        raw[:, asset] = own[:, 0]
    return single_answer(job, raw, curves, logs, prefix_differences(job))


def _simulate(
    job: Job, asset: int, first: int, end: int, series: list[Array], curve: Array = _NO_CURVE, log: Array = _NO_LOG
) -> tuple[Array, Array]:
    """Raw numbers (RAW, sets) and sums of blocks (4, sets, blocks) of some sets of an asset, with their signals and
    distances. Curve and trades of the only one are filled, if they are given."""
    prices, sets, params = job.prices(asset), end - first, job.params
    raw, sums = np.empty((metrics.RAW, sets)), np.empty((4, sets, params.blocks))
    orders = np.ascontiguousarray(job.orders[:, first:end])
    given = prices, job.kinds(prices), series[0], job.rules, orders, *series[1:], params.capital

    def work(begin: int, until: int) -> None:
        loops.simulate(*given, begin * LANES, min(until * LANES, sets), raw, sums, curve, log)

    share(-(-sets // LANES), work)
    return raw, sums


def overfitting(
    params: spec.Overfitting, returns: Array | None = None, block_sums: Array | None = None
) -> dict[str, Any]:
    """Deflated Sharpe ratio, probability of overfitting and walk-forward of returns (sets, bars), or of their sums."""
    sums, bars = luck.sums_of(params, returns, block_sums)
    halves, sizes = luck.splits(params.blocks), luck.sizes_of(params, bars)
    chosen, below, equal = (np.zeros(len(halves), np.int64) for _ in range(3))

    def work(first: int, end: int) -> None:
        try_splits(sums[0], sums[1], halves, sizes, first, end, chosen[first:end], below[first:end], equal[first:end])

    share(len(halves), work, _SPLITS)
    return luck.answer(params, sums, bars, chosen, below, equal)
