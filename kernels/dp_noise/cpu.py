"""Add exact noise on the CPU, all cores: to the grid, clip, sum, sample, back to floats."""

from typing import Any

import numpy as np
from numba import get_num_threads
from numpy.typing import NDArray

from kernels.dp_noise.integers import sum_records, to_grid
from kernels.dp_noise.plan import describe, plan
from kernels.dp_noise.release import DOMAIN, NORM, as_bits, out_of_range, refused_as_out_of_range
from kernels.dp_noise.sampler import add_noise
from kernels.dp_noise.spec import MOST_PARTS, DpNoise


def dp_noise(params: DpNoise, values: NDArray[Any], *, key: bytes) -> dict[str, Any]:
    """Return the noisy sum of records (n,) or (n, d), or the noisy statistic (d,) or (n, d); `key` is 32 random bytes.

    Raises InvalidRequest for values that are not finite or too far out for the grid, and where no grid is safe.
    """
    made = plan(params, values.shape)
    bits = as_bits(values, clipped=params.clip is not None)
    mantissa = np.uint64(made.mantissa)
    if params.clip is not None:
        rows = bits.reshape(len(bits), -1)
        # More parts than cores only cost memory: each holds a sum of its own.
        parts = min(len(rows), get_num_threads(), MOST_PARTS)
        norm = NORM[params.clip.norm]
        total = sum_records(rows, mantissa, made.exponent, made.saturation, norm, made.bound, parts)
    else:
        total = np.empty(bits.size, np.int64)
        to_grid(bits.reshape(-1), mantissa, made.exponent, total)
    try:
        if params.clip is None and out_of_range(total):
            raise refused_as_out_of_range(made)
        noisy = np.empty(total.size, np.float64)
        words = np.frombuffer(key, "<u4")
        add_noise(words, DOMAIN[params.mechanism], made.log2_scale, float(made.grid), total, noisy)
    finally:
        total.fill(0)  # the answer without its noise
    return {"noisy": noisy if params.mode == "records" else noisy.reshape(values.shape), **describe(params, made)}
