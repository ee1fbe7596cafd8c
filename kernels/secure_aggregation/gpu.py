"""Sum masked vectors and remove the masks on a device, in as many columns at a time as fit a fixed workspace."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.cuda import Device, Source
from kernels.private import private_memory
from kernels.secure_aggregation.spec import SecureAggregation
from kernels.secure_aggregation.unmask import answer, masks

_FILE = Path(__file__).with_name("secure_aggregation.cu")
_SOURCE = {bits: Source(_FILE, {"BITS": bits}) for bits in (32, 64)}
SOURCES: tuple[Source, ...] = tuple(_SOURCE.values())

_THREADS = 128
_WORKSPACE = 256 * 2**20  # bytes of masked vectors on the device at once


def secure_aggregation(
    params: SecureAggregation,
    masked: NDArray[Any],
    self_seeds: NDArray[np.uint8],
    pair_seeds: NDArray[np.uint8] | None = None,
    *,
    device: Device,
    workspace: int = _WORKSPACE,
) -> dict[str, Any]:
    """Unmask the sum of masked (survivors, dim) uint32 or uint64. Raises InvalidRequest where seeds do not fit."""
    with masks(params, self_seeds, pair_seeds) as remove, private_memory(device) as memory:
        unmask = device.kernel(_SOURCE[params.modulus_bits], "unmask")
        seeds, nonces, subtract = (memory.to_device(array) for array in (remove.seeds, remove.nonces, remove.subtract))
        rows, dim = masked.shape
        per_block = 512 // params.modulus_bits
        columns = max(1, workspace // (rows * masked.itemsize * per_block)) * per_block
        total = np.empty(dim, masked.dtype)
        for first in range(0, dim, columns):
            part = np.ascontiguousarray(masked[:, first : first + columns])
            width = part.shape[1]
            blocks = -(-width // per_block)
            # Each part is overwritten before the pool gives its memory to the next.
            with private_memory(device) as part_memory:
                out = part_memory.empty(width, masked.dtype)
                unmask(
                    (-(-blocks // _THREADS),),
                    (_THREADS,),
                    (
                        part_memory.to_device(part),
                        np.uint32(rows),
                        np.uint64(width),
                        seeds,
                        nonces,
                        subtract,
                        np.uint32(len(remove.seeds)),
                        np.uint32(first // per_block),
                        out,
                    ),
                )
                total[first : first + width] = device.to_host(out)
    return answer(params, total)
