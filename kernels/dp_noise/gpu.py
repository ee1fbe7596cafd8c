"""Add exact noise on a device: records go up in parts, the integers of the sum stay there until they are noisy."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.cuda import Device, Source
from kernels.dp_noise.plan import Plan, describe, plan
from kernels.dp_noise.release import DOMAIN, NORM, as_bits, refuse_out_of_range
from kernels.dp_noise.spec import DpNoise
from kernels.private import PrivateMemory, private_memory

_SOURCE = Source(Path(__file__).with_name("dp_noise.cu"))
SOURCES: tuple[Source, ...] = (_SOURCE,)

_THREADS, _ROWS = 128, 256  # as in the source
_WORKSPACE = 256 * 2**20  # bytes of records on the device at once
_GRID_Y = 65_535  # CUDA's most blocks along y


def dp_noise(
    params: DpNoise, values: NDArray[Any], *, key: bytes, device: Device, workspace: int = _WORKSPACE
) -> dict[str, Any]:
    """Return the noisy sum of records (n,) or (n, d), or the noisy statistic (d,) or (n, d); `key` is 32 random bytes.

    Raises InvalidRequest for values that are not finite or too far out for the grid, and where no grid is safe.
    """
    made = plan(params, values.shape)
    bits = as_bits(values, clipped=params.clip is not None)
    with private_memory(device) as memory:
        host = _noisy(params, made, bits, key, device, memory, workspace)
    return {"noisy": host if params.mode == "records" else host.reshape(values.shape), **describe(params, made)}


def _noisy(
    params: DpNoise, made: Plan, bits: NDArray[np.uint64], key: bytes, device: Device, memory: PrivateMemory,
    workspace: int,
) -> NDArray[np.float64]:  # fmt: skip
    if params.clip is not None:
        total = memory.zeros(made.width, np.uint64)
        _sum(made, NORM[params.clip.norm], bits.reshape(len(bits), -1), device, workspace, total)
    else:
        total = memory.empty(bits.size, np.int64)
        device.kernel(_SOURCE, "to_grid")(
            (-(-bits.size // 256),),
            (256,),
            (memory.to_device(bits.reshape(-1)), np.uint64(bits.size), *_step(made), total),
        )
        exact = device.to_host(total)
        try:
            refuse_out_of_range(exact, made)
        finally:
            exact.fill(0)
    noisy = memory.empty(made.width, np.float64)
    kernel = "laplace_noise" if params.mechanism == "discrete_laplace" else "gaussian_noise"
    device.kernel(_SOURCE, kernel)(
        (-(-made.width // _THREADS),),
        (_THREADS,),
        (
            memory.to_device(np.frombuffer(key, "<u4")),
            np.uint32(DOMAIN[params.mechanism]),
            np.int32(made.log2_scale),
            np.float64(float(made.grid)),
            total,
            np.uint64(made.width),
            noisy,
        ),
    )
    host: NDArray[np.float64] = device.to_host(noisy)
    return host


def _sum(made: Plan, norm: int, rows: NDArray[np.uint64], device: Device, workspace: int, total: Any) -> None:
    """Add the clipped records to `total`, u64 (d,) on the device: the same two's complement bits as int64."""
    n, d = rows.shape
    at_once = max(1, workspace // (8 * d))
    for first in range(0, n, at_once):
        part = rows[first : first + at_once]
        # Each part is overwritten before the pool gives its memory to the next.
        with private_memory(device) as memory:
            bits, norms = memory.to_device(part), memory.empty(len(part), np.uint64)
            _add_part(made, norm, bits, norms, device, total)


def _add_part(made: Plan, norm: int, bits: Any, norms: Any, device: Device, total: Any) -> None:
    n, d = bits.shape
    width = min(_THREADS, 1 << (d - 1).bit_length())
    shared = (*_step(made), np.uint64(made.saturation), np.int32(norm), np.uint64(made.bound))
    if norm != NORM["linf"]:
        device.kernel(_SOURCE, "row_norms")((-(-n // 4),), (32, 4), (bits, np.uint64(n), np.uint64(d), *shared, norms))
    # 65,535 blocks of 256 are 16 million records, which a workspace of narrow records passes.
    for row in range(0, n, _GRID_Y * _ROWS):
        left = min(n - row, _GRID_Y * _ROWS)
        device.kernel(_SOURCE, "sum_rows")(
            (-(-d // width), -(-left // _ROWS)),
            (_THREADS,),
            (bits[row:], np.uint64(left), np.uint64(d), *shared, norms[row:], np.uint32(width), total),
        )


def _step(made: Plan) -> tuple[Any, Any]:
    return np.uint64(made.mantissa), np.int32(made.exponent)
