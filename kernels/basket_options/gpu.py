"""Basket options on a GPU, one path per thread, with the same bytes as on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.basket_options import spec
from warpdesk_server.kernels.basket_options.estimate import estimate
from warpdesk_server.kernels.basket_options.plan import Tables, Terms, plan
from warpdesk_server.kernels.basket_options.policy import Policy, Walk, fit
from warpdesk_server.kernels.basket_options.spec import BLOCK, SUMS, BasketOption, products
from warpdesk_server.kernels.device.reduce import sums_of_runs
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.monte_carlo.plan import key
from warpdesk_server.kernels.sharding import Shard

Array = NDArray[Any]

_CU = Path(__file__).with_name("basket_option.cu")
_VARIANTS = {count: Source(_CU, {"FUNCTIONS": count}) for count in (4, 7, 10)}
SOURCES: tuple[Source, ...] = tuple(_VARIANTS.values())


def basket_option(
    params: BasketOption,
    spot: Array,
    volatility: Array,
    correlation: Array | None = None,
    dividend: Array | None = None,
    weights: Array | None = None,
    *,
    seed: int,
    device: Device,
) -> dict[str, Any]:
    """The outputs of basket_option, with the same bytes as cpu.basket_option."""
    job, tables = plan(params, spot, volatility, correlation, dividend, weights)
    inputs = {"spot": ArrayInfo("float64", spot.shape)}
    policies: list[Policy] = []

    def fitted(_first: int, _end: int) -> None:
        paths = _Paths(device, job, tables, 0, params.fit_paths, seed, kept=True)
        policies[:] = [fit(job, paths.walk)]

    if params.is_american:
        chunks.run(device, spec.policy_grid(params, inputs), fitted)
    policy = policies[0] if policies else None
    coefficients = policy.coefficients if policy else np.zeros((job.dates + 1, job.functions))
    sums, counts = _value(params, job, tables, 0, params.paths, coefficients, seed, device)
    return estimate(params, job, sums, counts, policy)


def shard_sums(params: BasketOption, shard: Shard, *, seed: int, device: Device, **inputs: Array) -> dict[str, Array]:
    """The arrays of one shard of a European option, with the same bytes as cpu.shard_sums."""
    job, tables = plan(params, **inputs)
    coefficients = np.zeros((2, job.functions))
    sums, counts = _value(params, job, tables, *spec.span(params, shard), coefficients, seed, device)
    return {"sums": sums, "counts": counts, "terms": np.tile(np.array(job, np.float64), (len(sums), 1))}


def _value(
    params: BasketOption, job: Terms, tables: Tables, first: int, end: int, coefficients: Array, seed: int,
    device: Device,
) -> tuple[Array, Array]:  # fmt: skip
    """The sums of the payments of paths in chunks (spec.SUMS), and how many paths are exercised on each date."""
    inputs = {"spot": ArrayInfo("float64", (job.assets,))}
    grid = spec.grid(params.model_copy(update={"paths": end - first}), inputs)
    sums, counts = np.empty((grid.chunks, SUMS)), np.zeros(job.dates + 1, np.int64)

    def work(begin: int, stop: int) -> None:
        ends = first + begin * spec.CHUNK, min(first + stop * spec.CHUNK, end)
        summed, counted = _Paths(device, job, tables, *ends, seed).walk(Walk(job.dates, -1), coefficients)
        sums[begin:stop] = sums_of_runs(summed, spec.CHUNK // BLOCK)
        np.add(counts, counted, out=counts)  # last, when nothing can fail any more, so that chunks are counted once

    chunks.run(device, grid, work)
    return sums, counts


class _Paths:
    """The paths of a basket from `first` to `end` - 1 in device memory: on one date at a time (policy.Walk)."""

    def __init__(
        self, device: Device, job: Terms, tables: Tables, first: int, end: int, seed: int, *, kept: bool = False
    ) -> None:
        self._device, self._job, self._kept = device, job, kept
        self._kernel = device.kernel(_VARIANTS[job.functions], "basket_option")
        self._blocks = -(-(end - first) // BLOCK)
        self._paths = (np.int64(first), np.int64(end), *(np.uint32(word) for word in key(seed)), np.uint32(kept))
        self._scalars = (
            np.int32(kept), np.int32(job.kind), np.int32(job.assets), np.int32(job.dates), np.float64(job.sign),
            np.float64(job.strike), np.float64(job.control), np.float64(job.control_base), np.float64(job.weight),
            np.int32(job.controlled),
        )  # fmt: skip
        self._tables = [device.to_device(table) for table in tables]
        self._state = (
            device.empty((self._blocks, job.assets, BLOCK), np.float64),
            device.empty((self._blocks, job.features, BLOCK), np.float64),
            device.empty((self._blocks, BLOCK), np.float64),
            device.empty((self._blocks, BLOCK), np.int32),
        )
        self._moments = device.empty((self._blocks if kept else 1, products(job.functions)), np.float64)

    def walk(self, step: Walk, coefficients: Array) -> tuple[Array, Array]:
        """The sums of each block for the regression or, at the end, of its payments; and the counts of dates."""
        device, job, ends = self._device, self._job, step.end < 0
        sums = device.empty((self._blocks if ends else 1, SUMS), np.float64)
        counts = device.zeros(job.dates + 1, np.uint32)
        self._kernel(
            (self._blocks,),
            (BLOCK,),
            (
                *self._paths, np.int32(step.start), np.int32(step.end), *self._scalars, *self._tables,
                device.to_device(coefficients), *self._state, self._moments, sums, counts,
            ),
        )  # fmt: skip
        return device.to_host(sums if ends else self._moments), device.to_host(counts)
