"""The risk operations on a GPU, by chunks of portfolios or series, with the same bytes as on the CPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.occupancy import Shape, best
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.matmul.gpu import launch
from warpdesk_server.kernels.operation import Operation
from warpdesk_server.kernels.risk import coverage, measures, spec
from warpdesk_server.kernels.risk.cpu import as_series, of_tiles
from warpdesk_server.kernels.risk.losses import Losses
from warpdesk_server.kernels.risk.measures import Job
from warpdesk_server.kernels.risk.performance import check_returns, outputs, target
from warpdesk_server.kernels.risk.spec import (
    PERFORMANCE,
    ROWS,
    SIDE,
    SUMS,
    TILE,
    VALUE_AT_RISK,
    VAR_BACKTEST,
    Performance,
    ValueAtRisk,
    VarBacktest,
)

Array = NDArray[Any]

_SOURCE = Source(Path(__file__).with_name("risk.cu"), {})
SOURCES: tuple[Source, ...] = (_SOURCE,)

_SIDE_ROWS, _THREADS = 4, 256  # as in risk.cu


def value_at_risk(
    params: ValueAtRisk,
    weights: Array,
    returns: Array | None = None,
    probabilities: Array | None = None,
    covariance: Array | None = None,
    mean: Array | None = None,
    *,
    seed: int,
    device: Device,
) -> dict[str, Any]:
    """Value at risk of portfolios with weights (assets) or (portfolios, assets) on a GPU, as cpu.value_at_risk."""
    given = {"weights": weights, "returns": returns, "probabilities": probabilities}
    infos = {name: _info(array) for name, array in given.items() if array is not None}

    def run(job: Job, measure: Callable[[Losses, int, int], None]) -> None:
        each = spec.portfolios_of_a_chunk(params, job.count, job.weights.shape)

        def work(first: int, end: int) -> None:
            first, end = first * each, min(end * each, len(job.weights))
            measure(DeviceLosses(device, job, first, end), first, end)

        chunks.run(device, VALUE_AT_RISK.grid(params, infos), work, overlap=True)

    return measures.value_at_risk(run, params, weights, returns, probabilities, covariance, mean, seed)


def _info(array: Array) -> ArrayInfo:
    return ArrayInfo(array.dtype.name, array.shape)  # type: ignore[arg-type]


class DeviceLosses:
    """The losses of a job's portfolios first to end - 1 in device memory (losses.Losses)."""

    def __init__(self, device: Device, job: Job, first: int, end: int) -> None:
        self._device, self._job, self._portfolios = device, job, end - first
        self._tiles = -(-job.count // TILE)
        self._losses = device.empty((end - first, job.count), np.float64)
        # Where all masses are 1, nobody reads the number that stands for them.
        self._masses = device.to_device(job.masses if job.masses.size else np.zeros(1, np.uint64))
        columns = device.to_device(np.ascontiguousarray(job.exposures[first:end].T)[None])
        offsets = device.to_device(job.offsets[first:end])
        for begin in range(0, job.count, ROWS):
            rows = self._rows(begin)
            product = device.empty((1, rows.shape[1], end - first), np.float64)
            launch(rows, columns, product, device)
            squares = -(-rows.shape[1] // SIDE) * -(-self._portfolios // SIDE)
            shape = np.uint32(rows.shape[1]), np.uint32(self._portfolios), np.uint64(begin), np.uint64(job.count)
            self._kernel("turn")((squares,), (SIDE, _SIDE_ROWS), (product, offsets, *shape, self._losses))
            del rows, product  # freed before the next are made

    def ranked(self, masses: list[int]) -> Array:
        device, wanted = self._device, len(masses)
        states = self._portfolios * wanted
        prefixes, counts = device.zeros(states, np.uint64), device.zeros(states * 256, np.uint64)
        rest = device.to_device(np.tile(np.array(masses, np.uint64), self._portfolios))
        found = device.empty((self._portfolios, wanted), np.float64)
        for shift in range(56, -1, -8):
            self._of_tiles("count_digits", wanted, np.uint32(wanted), np.uint32(shift), prefixes, counts)
            self._for("choose_digit", states, np.uint64(states), np.uint32(shift), prefixes, rest, counts, found)
        return np.asarray(device.to_host(found))

    def tails(self, thresholds: Array) -> tuple[Array, Array]:
        device, each = self._device, thresholds.shape[1]
        sums = device.empty((self._portfolios, each, self._tiles, 2), np.float64)
        found = device.zeros((self._portfolios, each, 2), np.uint64)
        given = device.to_device(np.ascontiguousarray(thresholds))
        self._of_tiles("tail_tiles", each, np.uint32(each), given, sums, found)
        return of_tiles(device.to_host(sums)), np.asarray(device.to_host(found))

    def moments(self, centres: Array) -> Array:
        sums = self._device.empty((self._portfolios, self._tiles, 4), np.float64)
        self._of_tiles("moment_tiles", 1, self._device.to_device(np.ascontiguousarray(centres)), sums)
        return of_tiles(self._device.to_host(sums))

    def combined(self, pieces: Array) -> Array:
        device, job, (_, each, _) = self._device, self._job, pieces.shape
        lines = self._portfolios * each
        given = device.to_device(np.ascontiguousarray(pieces))
        total = np.zeros((lines, job.weights.shape[1]))
        for begin in range(0, job.count, ROWS):
            rows = self._rows(begin)
            count = rows.shape[1]
            weights = device.empty((1, lines, count), np.float64)
            numbers = np.uint64(lines), np.uint32(each), np.uint64(begin), np.uint32(count)
            self._for("weigh", lines * count, self._losses, *self._scenarios, given, *numbers, weights)
            added = device.empty((1, *total.shape), np.float64)
            launch(weights, rows, added, device)
            total += device.to_host(added)[0]
            del rows, weights, added  # freed before the next are made
        return total.reshape(self._portfolios, each, -1)

    @property
    def _scenarios(self) -> tuple[Any, ...]:
        """The masses of scenarios, whether there are any, and how many scenarios there are, for a kernel."""
        return self._masses, np.uint32(self._job.masses.size > 0), np.uint64(self._job.count)

    def _rows(self, begin: int) -> Any:
        """The rows (1, scenarios, assets) of ROWS scenarios from `begin` on, copied to the device or drawn there."""
        job, device, end = self._job, self._device, min(begin + ROWS, self._job.count)
        if job.rows is not None:
            return device.to_device(np.ascontiguousarray(job.rows[begin:end], np.float64)[None])
        assets = job.weights.shape[1]
        blocks, words = -(-assets // 4), (np.uint32(word) for word in job.words)
        rows = device.empty((1, end - begin, assets), np.float64)
        sizes = np.uint64(begin), np.uint64(end - begin), np.uint32(assets), np.uint32(blocks)
        freedom = np.int32(job.params.degrees_of_freedom or 0)
        self._for("draw", (end - begin) * blocks, *sizes, *words, freedom, rows)
        return rows

    def _of_tiles(self, name: str, each: int, *args: Any) -> None:
        """Launch a kernel that has a block for each tile of each portfolio, `each` times."""
        grid = self._portfolios * self._tiles, each
        self._kernel(name)(grid, (_THREADS,), (self._losses, *self._scenarios, np.uint32(self._tiles), *args))

    def _for(self, name: str, count: int, *args: Any) -> None:
        """Launch a kernel that has a thread for each of so many numbers."""
        _launch(self._device, name, count, *args)

    def _kernel(self, name: str) -> Any:
        return self._device.kernel(_SOURCE, name)


def _launch(device: Device, name: str, count: int, *args: Any) -> None:
    kernel = device.kernel(_SOURCE, name)
    shape = best(device, kernel, [Shape(-(-count // threads), threads, threads) for threads in (64, 128, _THREADS)])
    kernel((shape.blocks,), (shape.threads,), args)


def var_backtest(params: VarBacktest, returns: Array, var: Array, *, device: Device) -> dict[str, Any]:
    """Tests of forecasts var against returns, both (series, time) or (time), with the exceptions counted on a GPU."""
    earned, forecast = as_series(returns), as_series(var)
    counts = np.empty((len(earned), 5))

    def work(first: int, end: int) -> None:
        given = [device.to_device(array[first:end]) for array in (earned, forecast)]
        found = device.empty((end - first, 5), np.float64)
        sizes = np.uint64(end - first), np.uint64(earned.shape[1])
        _launch(device, "count_exceptions", 32 * (end - first), *given, *sizes, found)
        device.to_host(found, counts[first:end])

    _by_series(VAR_BACKTEST, params, device, work, returns=returns, var=var)
    return coverage.outputs(params, counts, earned.shape[1])


def performance(
    params: Performance, returns: Array, benchmark: Array | None = None, *, device: Device
) -> dict[str, Any]:
    """The performance of returns (series, time) or (time) on a GPU, and beside a benchmark (time).

    Raises InvalidRequest for a return below -1.
    """
    check_returns(returns, benchmark)
    earned, compared = as_series(returns), benchmark is not None
    count, time = earned.shape
    other = as_series(np.zeros(1) if benchmark is None else benchmark)[0]
    sums = np.empty((count, SUMS))
    depths, marks = np.empty((count, params.drawdowns)), np.empty((count, params.drawdowns, 3), np.int32)

    def work(first: int, end: int) -> None:
        given = device.to_device(earned[first:end])
        found = [device.empty(array[first:end].shape, array.dtype) for array in (sums, depths, marks)]
        sizes = np.uint32(compared), np.uint64(end - first), np.uint64(time)
        options = np.float64(target(params)), np.uint32(params.drawdowns)
        _launch(device, "run_series", end - first, given, device.to_device(other), *sizes, *options, *found)
        device.to_host(found[0], sums[first:end])
        device.to_host(found[1], depths[first:end])
        device.to_host(found[2], marks[first:end])

    inputs = {"returns": returns} if benchmark is None else {"returns": returns, "benchmark": benchmark}
    _by_series(PERFORMANCE, params, device, work, **inputs)
    return outputs(params, sums, depths, marks, time, compared)


def _by_series(
    operation: Operation, params: Any, device: Device, work: Callable[[int, int], None], **given: Array
) -> None:
    """Call `work` on a device for all series of `returns`, by chunks of some."""
    shape = given["returns"].shape
    count, each = spec.series(shape)[0], spec.series_of_a_chunk(shape)
    grid = operation.grid(params, {name: _info(array) for name, array in given.items()})
    chunks.run(device, grid, lambda first, end: work(first * each, min(end * each, count)), overlap=True)
