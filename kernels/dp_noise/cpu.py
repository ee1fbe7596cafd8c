"""A release with exact noise on all cores of the CPU: round to the grid, clip, sum or count, add noise, to floats."""

from typing import Any

import numpy as np
from numba import get_num_threads
from numpy.typing import NDArray

from warpdesk_server.kernels.dp_noise.integers import clip_records, count_records, sum_records, to_grid
from warpdesk_server.kernels.dp_noise.params import DpNoise
from warpdesk_server.kernels.dp_noise.plan import Plan, plan
from warpdesk_server.kernels.dp_noise.release import (
    COUNT_DOMAIN,
    DOMAIN,
    NORM,
    answer,
    as_bits,
    out_of_range,
    refused_as_out_of_range,
)
from warpdesk_server.kernels.dp_noise.sampler import add_noise
from warpdesk_server.kernels.dp_noise.spec import MOST_PARTS


def dp_noise(params: DpNoise, values: NDArray[Any], *, key: bytes) -> dict[str, Any]:
    """The noisy query of records (n,) or (n, d), or a noisy statistic (d,) or (n, d); `key` is 32 random bytes.

    Raises InvalidRequest for values that are not finite or too large for the grid, and if no grid is safe.
    """
    made = plan(params, values.shape)
    total = _total(params, made, as_bits(values, clipped=params.mode == "records"))
    words = np.frombuffer(key, "<u4")
    try:
        if params.mode == "aggregate" and out_of_range(total):
            raise refused_as_out_of_range(made)
        noisy = np.empty(total.size, np.float64)
        add_noise(words, DOMAIN[params.mechanism], made.log2_scale, float(made.grid), total.reshape(-1), noisy)
    finally:
        total.fill(0)  # the answer without its noise
    noisy_count = None
    if made.count is not None:
        counted, count = np.array([len(values) * made.count.bound]), np.empty(1)
        domain = COUNT_DOMAIN[params.mechanism]
        add_noise(words, domain, made.count.log2_scale, float(made.count.grid), counted, count)
        noisy_count = float(count[0])
    return answer(params, made, values.shape, noisy, noisy_count)


def _total(params: DpNoise, made: Plan, bits: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The exact statistic in steps of the noise's grid, before noise is added."""
    step = np.uint64(made.mantissa), made.exponent
    if params.mode == "aggregate":
        steps = np.empty(bits.size, np.int64)
        to_grid(bits.reshape(-1), *step, steps)
        return steps
    # More parts than cores would only cost memory: each part has a sum of its own.
    parts = min(len(bits), get_num_threads(), MOST_PARTS)
    if params.bins is not None:
        total = count_records(bits.view(np.float64), np.array(params.bins.boundaries()), parts)
        total *= made.bound
        return total
    assert params.clip is not None  # noqa: S101 (the validator has seen to it)
    rows, norm = bits.reshape(len(bits), -1), NORM[params.clip.norm]
    if params.query == "identity":
        return clip_records(rows, *step, made.saturation, norm, made.bound)
    return sum_records(rows, *step, made.saturation, norm, made.bound, parts)
