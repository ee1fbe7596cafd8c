"""Secure aggregation on a GPU: it sums the masked vectors and removes the masks, by chunks of columns."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device, Kernel
from warpdesk_server.kernels.gpu.occupancy import resident
from warpdesk_server.kernels.gpu.private import private_memory
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.secure_aggregation.spec import SecureAggregation, columns, grid_of
from warpdesk_server.kernels.secure_aggregation.unmask import Masks, answer, masks

_FILE = Path(__file__).with_name("secure_aggregation.cu")
_SOURCE = {bits: Source(_FILE, {"BITS": bits}) for bits in (32, 64)}
SOURCES: tuple[Source, ...] = tuple(_SOURCE.values())

_THREADS = 128  # as in secure_aggregation.cu
_LEAST_MASKS = 4  # masks that are worth a block of their own, whose words are added to memory
_GRID_Y = 65_535  # CUDA's most blocks along y


def secure_aggregation(
    params: SecureAggregation,
    masked: NDArray[Any],
    self_seeds: NDArray[np.uint8],
    pair_seeds: NDArray[np.uint8] | None = None,
    *,
    device: Device,
) -> dict[str, Any]:
    """Unmask the sum of masked vectors (survivors, dim) on a GPU. Raises InvalidRequest if seeds do not fit."""
    rows, dim = masked.shape
    width, total = columns(rows, params.modulus_bits), np.empty(dim, masked.dtype)
    with masks(params, self_seeds, pair_seeds) as remove:

        def work(first: int, end: int) -> None:
            part = slice(first * width, end * width)
            _unmask(params, masked[:, part], remove, part.start, total[part], device)

        chunks.run(device, grid_of(rows, dim, params.modulus_bits, len(remove.seeds)), work, overlap=True)
    return answer(params, total)


def unmasking(device: Device, bits: int, dim: int, masks: int) -> tuple[Kernel, tuple[int, int], int]:
    """The unmasking kernel for words of `bits` bits, its blocks (columns, shares of the masks), and their threads."""
    kernel = device.kernel(_SOURCE[bits], "unmask")
    blocks = -(-dim // (_THREADS * _words(bits)))
    shares = max(1, min(resident(device, kernel, _THREADS) // blocks, masks // _LEAST_MASKS, _GRID_Y))
    return kernel, (blocks, shares), _THREADS


def _words(bits: int) -> int:
    """The number of words in a block of the masks' keystream."""
    return 512 // bits


def _unmask(
    params: SecureAggregation, part: NDArray[Any], remove: Masks, first: int, total: NDArray[Any], device: Device
) -> None:
    """Write the unmasked sum of `part`, the masked vectors' columns from `first` on, to `total`."""
    rows, dim = part.shape
    kernel, (blocks, shares), threads = unmasking(device, params.modulus_bits, dim, len(remove.seeds))
    # Private memory: all of it is overwritten before the pool reuses it.
    with private_memory(device) as memory:
        seeds, nonces, subtract = (memory.to_device(array) for array in (remove.seeds, remove.nonces, remove.subtract))
        out = memory.empty(dim, part.dtype) if shares == 1 else memory.zeros(dim, part.dtype)
        kernel(
            (blocks, shares),
            (threads,),
            (
                memory.to_device(part),
                np.uint32(rows),
                np.uint64(dim),
                seeds,
                nonces,
                subtract,
                np.uint32(len(remove.seeds)),
                np.uint32(first // _words(params.modulus_bits)),
                out,
            ),
        )
        device.to_host(out, total)
