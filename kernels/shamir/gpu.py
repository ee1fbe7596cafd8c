"""Shamir's secret sharing on a GPU, by chunks of elements."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.private import private_memory
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.shamir import spec
from warpdesk_server.kernels.shamir.field import DTYPE
from warpdesk_server.kernels.shamir.recover import Found, as_numbers, recover, scale_of, shared, together
from warpdesk_server.kernels.shamir.spec import TILES, ShamirReconstruct, ShamirShare, refused_values

_FILE = Path(__file__).with_name("shamir.cu")
_SOURCE = {"m31": Source(_FILE, {"FIELD": 31}), "m61": Source(_FILE, {"FIELD": 61})}
SOURCES: tuple[Source, ...] = tuple(_SOURCE.values())

_THREADS = 128  # as in shamir.cu
_HELD = 23  # coefficients in shared memory at a time, 2 KiB each: as much as a block has on every GPU
_NONE = np.uint64(2**64 - 1)


def shamir_share(params: ShamirShare, values: NDArray[Any], *, key: bytes, device: Device) -> dict[str, Any]:
    """The Shamir shares (k, n) of values (n,); `key` is 32 random bytes. Raises InvalidRequest for a value too
    large."""
    numbers = as_numbers(values).view(np.uint64)
    shares = np.empty((params.shares, values.size), DTYPE[params.field])
    of_chunk = spec.width(params.field, params.shares)
    outside: list[int] = []

    def work(first: int, end: int) -> None:
        part = slice(first * of_chunk, end * of_chunk)
        outside.append(_share(params, numbers[part], part.start, key, shares[:, part], device))

    chunks.run(device, spec.grid_share(params, {"values": ArrayInfo("int64", values.shape)}), work, overlap=True)
    if any(outside):
        raise refused_values(params, sum(outside), values.size)
    return shared(params, shares)


def _share(
    params: ShamirShare, numbers: NDArray[np.uint64], first: int, key: bytes, shares: NDArray[Any], device: Device
) -> int:
    """Write the Shamir shares of elements from `first` on. Returns the number of values that are too large."""
    elements, word = TILES[params.field], shares.itemsize
    held = min(params.threshold - 1, _HELD)
    # Private memory: all of it is overwritten before the pool reuses it.
    with private_memory(device) as memory:
        out, refused = memory.empty(shares.shape, shares.dtype), memory.zeros(1, np.uint64)
        device.kernel(_SOURCE[params.field], "share")(
            (-(-numbers.size // elements),),
            (_THREADS,),
            (
                memory.to_device(numbers),
                np.int32(params.scale is not None),
                np.float64(scale_of(params)),
                np.uint32(first // elements * 32),
                np.uint64(numbers.size),
                memory.to_device(np.frombuffer(key, "<u4")),
                np.uint32(params.threshold),
                np.uint32(params.shares),
                np.uint32(held),
                np.uint32(_steps(params.shares)),
                out,
                refused,
            ),
            shared_mem=held * elements * word,
        )
        device.to_host(out, shares)
        return int(device.to_host(refused)[0])


def _steps(shares: int) -> int:
    """The number of Horner steps by x <= shares after which a share's 64-bit sum must be reduced.

    A sum below p grows to p (x^steps + ... + x + 1), which must stay below 2^64; p, or half of it, has 31 bits.
    """
    steps = 1
    while sum(shares**power for power in range(steps + 2)) <= 2**32:
        steps += 1
    return steps


def shamir_reconstruct(params: ShamirReconstruct, shares: NDArray[Any], *, device: Device) -> dict[str, Any]:
    """The values (n,) of Shamir shares (m, n). Raises InvalidRequest for shares that do not fit together."""
    of_chunk = spec.width(params.field, len(params.x))
    grid = spec.grid_reconstruct(params, {"shares": ArrayInfo(DTYPE[params.field], shares.shape)})

    def all_chunks(order: NDArray[np.uint32], weights: NDArray[Any], values: NDArray[Any]) -> Found:
        parts: list[Found] = []

        def work(first: int, end: int) -> None:
            part = slice(first * of_chunk, end * of_chunk)
            parts.append(_reconstruct(params, shares[:, part], part.start, order, weights, values[part], device))

        chunks.run(device, grid, work, overlap=True)
        return together(parts)

    return recover(params, shares, all_chunks)


def _reconstruct(
    params: ShamirReconstruct,
    shares: NDArray[Any],
    first: int,
    order: NDArray[np.uint32],
    weights: NDArray[Any],
    values: NDArray[Any],
    device: Device,
) -> Found:
    """Reconstruct the values of elements from `first` on from their Shamir shares."""
    rows, size = shares.shape
    with private_memory(device) as memory:
        out = memory.empty(size, np.uint64)
        found = memory.to_device(np.array([0, _NONE, *[0] * len(order)], np.uint64))
        device.kernel(_SOURCE[params.field], "reconstruct")(
            (-(-size // _THREADS),),
            (_THREADS,),
            (
                memory.to_device(shares if len(order) == rows else shares[order]),
                np.uint64(size),
                np.uint64(first),
                np.uint32(params.threshold),
                np.uint32(len(order) - params.threshold),
                memory.to_device(weights),
                np.int32(params.scale is not None),
                np.float64(scale_of(params)),
                out,
                found,
            ),
        )
        device.to_host(out, values.view(np.uint64))
        counts = device.to_host(found)
    outside = np.zeros(rows, np.int64)
    outside[order] = counts[2:]
    return Found(int(counts[0]), int(counts[1]) if counts[0] else -1, outside)
