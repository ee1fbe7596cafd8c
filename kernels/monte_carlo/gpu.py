"""Simulate geometric Brownian motion on a GPU, one path per thread, a chunk of paths per launch."""

from pathlib import Path

import numpy as np

from kernels.cuda import Device, Source
from kernels.device.reduce import BLOCK, pairwise_sum
from kernels.monte_carlo.estimate import estimate
from kernels.monte_carlo.plan import BINS, KINDS, SUMS, hit_discounts, key, terms
from kernels.monte_carlo.spec import CHUNK, MonteCarloParams

_CU = Path(__file__).with_name("monte_carlo.cu")

SOURCES: tuple[Source, ...] = tuple(Source(_CU, {"KIND": kind}) for kind in KINDS)


def monte_carlo(params: MonteCarloParams, *, seed: int, device: Device, chunk: int = CHUNK) -> dict[str, object]:
    """Return the outputs of the operation, byte for byte those of cpu.monte_carlo, for any `chunk` as there."""
    job = terms(params)
    k0, k1 = key(seed)
    kernel = device.kernel(SOURCES[job.kind], "monte_carlo")
    scalars = (
        *(np.uint32(word) for word in (k0, k1)),
        *(np.int32(number) for number in (job.steps, job.fixings)),
        *(np.float64(number) for number in (job.drift, job.diffusion, job.spot, job.strike, job.sign, job.discount)),
        *(np.float64(number) for number in (job.shift, job.control, job.bins_per_unit)),
        *(np.float64(number) for number in (job.side, job.barrier, job.barrier_drift, job.barrier_noise)),
        np.int32(job.knock_in),
        np.float64(job.rebate),
    )
    discounts = device.to_device(hit_discounts(params))
    counts = device.zeros(BINS, np.uint32)
    partials = device.empty((-(-min(chunk, params.paths) // BLOCK), SUMS), np.float64)
    chunks = []
    for first in range(0, params.paths, chunk):
        blocks = -(-min(chunk, params.paths - first) // BLOCK)
        kernel((blocks,), (BLOCK,), (np.int64(first), np.int64(params.paths), *scalars, discounts, partials, counts))
        chunks.append(pairwise_sum(device.to_host(partials)[:blocks]))
    return estimate(params, job, pairwise_sum(np.array(chunks)), device.to_host(counts).astype(np.int64))
