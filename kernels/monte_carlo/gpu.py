"""The Monte Carlo simulation of option paths on a GPU, one path per thread, in one launch if memory allows."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.device.reduce import BLOCK, sums_of_runs
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.monte_carlo import spec
from warpdesk_server.kernels.monte_carlo.bridge import bridge
from warpdesk_server.kernels.monte_carlo.estimate import estimate
from warpdesk_server.kernels.monte_carlo.plan import DIFFERENTIABLE, KINDS, hit_discounts, key, lines, tame, terms
from warpdesk_server.kernels.monte_carlo.spec import BINS, MonteCarloParams
from warpdesk_server.kernels.sharding import Shard

_CU = Path(__file__).with_name("monte_carlo.cu")

_WALKS = Source(Path(__file__).with_name("walks.cu"))

_PLAIN = tuple(Source(_CU, {"KIND": kind, "GREEKS": 0}) for kind in KINDS)
_GREEKS = {kind: Source(_CU, {"KIND": kind, "GREEKS": 1}) for kind in DIFFERENTIABLE}

SOURCES: tuple[Source, ...] = (*_PLAIN, *_GREEKS.values(), _WALKS)


def monte_carlo(params: MonteCarloParams, *, seed: int, device: Device) -> dict[str, object]:
    """The outputs of monte_carlo, an option's simulated price, with the same bytes as cpu.monte_carlo."""
    return estimate(params, **simulate(params, 0, params.paths, spec.unit(params), seed=seed, device=device))


def shard_sums(params: MonteCarloParams, shard: Shard, *, seed: int, device: Device) -> dict[str, NDArray[Any]]:
    """The sums and the histogram of one shard of a simulation, with the same bytes as cpu.shard_sums."""
    return simulate(params, *spec.span(params, shard), spec.unit(params), seed=seed, device=device)


def simulate(
    params: MonteCarloParams, first: int, end: int, unit: int, *, seed: int, device: Device
) -> dict[str, NDArray[Any]]:
    """Simulate the paths from `first` to `end` - 1, with the same bytes as cpu.simulate."""
    job = terms(params)
    k0, k1 = key(seed)
    words = np.uint32(k0), np.uint32(k1)
    bridged, stored = bridge(params, k0, k1), params.sampling == "sobol"
    kernel = device.kernel(_GREEKS[job.kind] if params.greeks else _PLAIN[job.kind], "monte_carlo")
    scalars = (
        *words,
        *(np.int32(number) for number in (job.steps, job.fixings)),
        *(np.float64(number) for number in (job.drift, job.diffusion, job.spot, job.strike, job.sign, job.discount)),
        *(np.float64(number) for number in (job.shift, job.control, job.weight, job.unit, job.bins_per_unit)),
        *(np.float64(number) for number in (job.side, job.barrier, job.barrier_noise)),
        np.int32(job.form),
        np.float64(job.cash),
        *(np.int32(number) for number in (tame(job), job.mirrored, stored, job.moves)),
        *(np.float64(number) for number in (job.step, job.tilt, job.volatility, job.rate, job.maturity)),
    )
    tables = lines(job), hit_discounts(params)
    part = params.model_copy(update={"paths": end - first})
    grid = spec.grid(part, {})
    sums, counts = np.empty((-(-(end - first) // unit), spec.columns(params))), np.zeros(BINS, np.int64)

    def work(begin: int, stop: int) -> None:
        start, paths = first + begin * spec.CHUNK, min(first + stop * spec.CHUNK, end)
        blocks = -(-(paths - start) // BLOCK)
        shared = [device.to_device(table) for table in tables]
        counted, partials = device.zeros(BINS, np.uint32), device.empty((blocks, spec.columns(params)), np.float64)
        if not stored:
            nowhere = np.int64(0), shared[0]
            kernel(
                (blocks,), (BLOCK,), (np.int64(start), np.int64(paths), *scalars, *nowhere, *shared, partials, counted)
            )
        else:
            columns = spec.walks_at_once(part)
            made = [device.to_device(table) for table in bridged[:4]]
            walks = device.empty((params.steps + 1, columns), np.float64)
            dims = np.int32(len(bridged.directions)), np.int32(bridged.bits)
            build = device.kernel(_WALKS, "walks")
            for at in range(start, paths, columns):
                till = min(at + columns, paths)
                some = slice((at - start) // BLOCK, -(-(till - start) // BLOCK))
                ends = np.int64(at), np.int64(till)
                shape = (some.stop - some.start,), (BLOCK,)
                build(*shape, (*ends, np.int64(columns), *words, np.int32(job.steps), *dims, *made, walks))
                kernel(*shape, (*ends, *scalars, np.int64(columns), walks, *shared, partials[some], counted))
        summed, histogram = device.to_host(partials), device.to_host(counted)
        found, from_unit = sums_of_runs(summed, unit // BLOCK), (start - first) // unit
        sums[from_unit : from_unit + len(found)] = found
        np.add(counts, histogram, out=counts)  # last, when nothing can fail any more, so that chunks are counted once

    chunks.run(device, grid, work)
    return {"sums": sums, "counts": counts}
