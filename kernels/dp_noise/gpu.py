"""Add exact noise on a device: records go up in parts, the integers of the sum stay there until they are noisy."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.cuda import Device, Source
from kernels.dp_noise.plan import Plan, describe, plan
from kernels.dp_noise.release import DOMAIN, NORM, as_bits, refuse_out_of_range
from kernels.dp_noise.spec import DpNoise

_SOURCE = Source(Path(__file__).with_name("dp_noise.cu"))
SOURCES: tuple[Source, ...] = (_SOURCE,)

_THREADS, _ROWS = 128, 256  # as in the source
_WORKSPACE = 256 * 2**20  # bytes of records on the device at once


def dp_noise(
    params: DpNoise, values: NDArray[Any], *, key: bytes, device: Device, workspace: int = _WORKSPACE
) -> dict[str, Any]:
    """Return the noisy sum of records (n,) or (n, d), or the noisy statistic (d,) or (n, d); `key` is 32 random bytes.

    Raises InvalidRequest for values that are not finite or too far out for the grid, and where no grid is safe.
    """
    made = plan(params, values.shape)
    bits = as_bits(values)
    if params.clip is not None:
        total = _sum(made, NORM[params.clip.norm], bits.reshape(len(bits), -1), device, workspace)
    else:
        total = device.empty(bits.size, np.int64)
        device.kernel(_SOURCE, "to_grid")(
            (-(-bits.size // 256),),
            (256,),
            (device.to_device(bits.reshape(-1)), np.uint64(bits.size), *_step(made), total),
        )
        refuse_out_of_range(device.to_host(total), made)
    noisy = device.empty(made.width, np.float64)
    kernel = "laplace_noise" if params.mechanism == "discrete_laplace" else "gaussian_noise"
    device.kernel(_SOURCE, kernel)(
        (-(-made.width // _THREADS),),
        (_THREADS,),
        (
            device.to_device(np.frombuffer(key, "<u4")),
            np.uint32(DOMAIN[params.mechanism]),
            np.int32(made.log2_scale),
            np.float64(float(made.grid)),
            total,
            np.uint64(made.width),
            noisy,
        ),
    )
    host = device.to_host(noisy)
    return {"noisy": host if params.mode == "records" else host.reshape(values.shape), **describe(params, made)}


def _sum(made: Plan, norm: int, rows: NDArray[np.uint64], device: Device, workspace: int) -> Any:
    """Return the sum of the clipped records, u64 (d,) on the device: the same two's complement bits as int64."""
    n, d = rows.shape
    total = device.zeros(d, np.uint64)
    at_once = max(1, workspace // (8 * d))
    width = min(_THREADS, 1 << (d - 1).bit_length())
    for first in range(0, n, at_once):
        part = rows[first : first + at_once]
        count = np.uint64(len(part))
        bits, norms = device.to_device(part), device.empty(len(part), np.uint64)
        shared = (*_step(made), np.uint64(made.saturation), np.int32(norm), np.uint64(made.bound))
        if norm != NORM["linf"]:
            device.kernel(_SOURCE, "row_norms")(
                (-(-len(part) // 4),), (32, 4), (bits, count, np.uint64(d), *shared, norms)
            )
        # A grid has at most 65,535 blocks along y: 16 million records, which a workspace of narrow records passes.
        for row in range(0, len(part), 65_535 * _ROWS):
            left = min(len(part) - row, 65_535 * _ROWS)
            device.kernel(_SOURCE, "sum_rows")(
                (-(-d // width), -(-left // _ROWS)),
                (_THREADS,),
                (bits[row:], np.uint64(left), np.uint64(d), *shared, norms[row:], np.uint32(width), total),
            )
    return total


def _step(made: Plan) -> tuple[Any, Any]:
    return np.uint64(made.mantissa), np.int32(made.exponent)
