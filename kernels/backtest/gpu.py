"""Backtests on a GPU, a set of parameters for each thread, with the same bytes as on the CPU.

Operands are computed on the host, since they are few; signals of each set, and the simulation, on the device.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.backtest import luck, metrics, spec
from warpdesk_server.kernels.backtest.job import Job, answer, single_answer
from warpdesk_server.kernels.backtest.signals import prefix_differences
from warpdesk_server.kernels.backtest.strategy import DISTANCES, SIGNAL
from warpdesk_server.kernels.device import orders as o
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.occupancy import Shape, best
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.indicators import program_gpu
from warpdesk_server.kernels.indicators.series import Series
from warpdesk_server.kernels.operation import Operation

Array = NDArray[Any]

_BACKTEST, _OVERFITTING = (Source(Path(__file__).with_name(f"{name}.cu")) for name in ("backtest", "overfitting"))
SOURCES: tuple[Source, ...] = (_BACKTEST, _OVERFITTING)
_SQUARE, _SQUARE_ROWS = 32, 4  # as in backtest.cu
_SPLITS = 256  # threads, as in overfitting.cu


def backtest_sweep(params: spec.Sweep, *, device: Device, **inputs: Array) -> dict[str, Any]:
    """The metrics of each set of a strategy's parameters for each asset on a GPU: the outputs of cpu.backtest_sweep."""
    job = Job(params, inputs)
    raw, sums, _, _ = _simulate(spec.BACKTEST_SWEEP, job, device, 0)
    shape = job.assets, job.sets.count
    return answer(job, raw.reshape(-1, *shape), sums.reshape(4, *shape, params.blocks), prefix_differences(job))


def backtest(params: spec.Single, *, device: Device, **inputs: Array) -> dict[str, Any]:
    """Equity, position and trades of a strategy with one set of parameters on a GPU: the outputs of cpu.backtest."""
    job = Job(params, inputs)
    raw, _, curves, logs = _simulate(spec.BACKTEST, job, device, 2 * job.bars + 2)
    return single_answer(job, raw, curves, logs, prefix_differences(job))


def overfitting(
    params: spec.Overfitting, returns: Array | None = None, block_sums: Array | None = None, *, device: Device
) -> dict[str, Any]:
    """Deflated Sharpe ratio, probability of overfitting and walk-forward: the outputs of cpu.overfitting."""
    sums, bars = luck.sums_of(params, returns, block_sums)
    halves, sizes = luck.splits(params.blocks), luck.sizes_of(params, bars)
    ranks = np.empty((3, len(halves)), np.int64)
    each = spec.splits_of_a_chunk(params)

    def work(first: int, end: int) -> None:
        here = halves[first * each : end * each]
        uploaded = [device.to_device(array.reshape(-1)) for array in (sums[0], sums[1], here, sizes)]
        out = [device.empty(len(here), np.int64) for _ in ranks]
        args = *uploaded, np.int64(sums.shape[1]), np.int32(params.blocks), np.int64(len(here)), *out
        blocks, tables = -(-len(here) // _SPLITS), 4 * 8 << params.blocks // 2
        device.kernel(_OVERFITTING, "try_splits")((blocks,), (_SPLITS,), args, tables)
        for array, rows in zip(out, ranks, strict=True):
            device.to_host(array, rows[first * each : first * each + len(here)])

    infos = {"block_sums": ArrayInfo("float64", sums.shape)}
    chunks.run(device, spec.OVERFITTING.grid(params, infos), work, overlap=True)
    return luck.answer(params, sums, bars, *ranks)


def _simulate(operation: Operation, job: Job, device: Device, capacity: int) -> tuple[Array, Array, Array, Array]:
    """Raw numbers (RAW, runs), sums of blocks (4, runs, blocks), curves (runs, 2, bars) and trades of all runs: asset
    after asset, each with all sets. No curves, and no trades, for a capacity of 0."""
    runs, bars, blocks = job.assets * job.sets.count, job.bars, job.params.blocks
    raw, sums = np.empty((metrics.RAW, runs)), np.empty((4, runs, blocks))
    shown = runs if capacity else 0
    curves, logs = np.empty((shown, 2, bars)), np.empty((shown, capacity, o.TRADE))
    each = spec.runs_of_a_chunk(job.params, job.infos)

    def work(first: int, end: int) -> None:
        part = _Part(job, device, first * each, min(end * each, runs))
        found = part.simulate(capacity)
        raw[:, part.runs], sums[:, part.runs] = (
            found[0].reshape(-1, part.count),
            found[1].reshape(4, part.count, blocks),
        )
        if capacity:
            curves[part.runs], logs[part.runs] = found[2].reshape(-1, 2, bars), found[3].reshape(-1, capacity, o.TRADE)

    chunks.run(device, operation.grid(job.params, job.infos), work, overlap=True)
    return raw, sums, curves, logs


class _Part:
    """Some runs of a job on a device, and the assets that they are of."""

    def __init__(self, job: Job, device: Device, first: int, end: int) -> None:
        self.job, self.device, self.runs, self.count = job, device, slice(first, end), end - first
        self._first, self._size = first, (np.int64(end - first), np.int64(job.bars))
        self._assets = range(first // job.sets.count, (end - 1) // job.sets.count + 1)
        self._sets = np.arange(first, end) % job.sets.count

    def simulate(self, capacity: int) -> list[Array]:
        job, device, count, blocks = self.job, self.device, self.count, self.job.params.blocks
        series = self._series()
        signals = device.empty(count * job.bars, np.uint8)
        squares = -(-job.bars // _SQUARE), -(-count // _SQUARE)
        device.kernel(_BACKTEST, "pack")(squares, (_SQUARE, _SQUARE_ROWS), (series[SIGNAL], *self._size, signals))
        prices = np.array([job.prices(asset) for asset in self._assets])
        kinds = np.array([job.kinds(each) for each in prices])
        given = sum(1 << place for place, name in enumerate(DISTANCES) if name in series)
        out = [
            device.empty(metrics.RAW * count, np.float64),
            device.empty(4 * count * blocks, np.float64),
            device.empty(2 * job.bars * count if capacity else 1, np.float64),
            device.zeros(o.TRADE * capacity * count if capacity else 1, np.float64),
        ]
        self._launch(
            "simulate", count,
            *(self._up(prices), self._up(kinds), signals, self._up(job.rules), self._up(job.orders[:, self._sets])),
            *(np.uint32(given), *(series.get(name, out[0]) for name in DISTANCES)),  # any array where none is read
            *(np.int64(self._first - self._assets[0] * job.sets.count), np.int64(job.sets.count), *self._size),
            *(np.int64(blocks), np.float64(job.params.capital), *out, np.int64(capacity)),
        )  # fmt: skip
        return [device.to_host(array) for array in (out if capacity else out[:2])]

    def _series(self) -> dict[str, Any]:
        """The outputs of the strategy's program: signals and distances (runs * bars)."""
        job, given = self.job, {}
        rows = [job.operands.of_asset(asset) for asset in self._assets]
        asset = (np.arange(self._first, self._first + self.count) // job.sets.count) - self._assets[0]
        for number, places in enumerate(job.operands.places):
            length = len(rows[0][number])
            used, place = np.unique(asset * length + places[self._sets], return_inverse=True)
            table = np.array([rows[row // length][number][row % length] for row in used])
            out = self.device.empty(self.count * job.bars, np.float64)
            self._launch("spread_rows", self.count * job.bars, self._up(table), self._up(place), *self._size, out)
            given[f"#{number}"] = Series(self.device, out, self.count, job.bars, np.float64)
        return dict(zip(job.program.names, program_gpu.run(job.program, given), strict=True))

    def _up(self, array: Array) -> Any:
        return self.device.to_device(np.ascontiguousarray(array).reshape(-1))

    def _launch(self, name: str, threads: int, *args: Any) -> None:
        kernel = self.device.kernel(_BACKTEST, name)
        shape = best(self.device, kernel, [Shape(-(-threads // each), each, each) for each in (64, 128, 256)])
        kernel((shape.blocks,), (shape.threads,), args)
