"""Shamir's secret sharing on all cores of the CPU, in tiles of a few hundred elements that fit in the first cache."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.shamir.combine_loops import STRIP, combine
from warpdesk_server.kernels.shamir.field import DTYPE
from warpdesk_server.kernels.shamir.recover import Found, as_numbers, recover, scale_of, shared, together
from warpdesk_server.kernels.shamir.share_loops import TILE31, TILE61, share31, share61
from warpdesk_server.kernels.shamir.spec import ShamirReconstruct, ShamirShare, refused_values


def shamir_share(params: ShamirShare, values: NDArray[Any], *, key: bytes) -> dict[str, Any]:
    """The Shamir shares (k, n) of values (n,); `key` is 32 random bytes. Raises InvalidRequest for a value too
    large."""
    numbers = as_numbers(values)
    shares = np.empty((params.shares, values.size), DTYPE[params.field])
    outside: list[int] = []
    compute, tile = (share31, TILE31) if params.field == "m31" else (share61, TILE61)
    given = numbers.view(np.int64), numbers.view(np.float64), params.scale is not None, scale_of(params)
    words = np.frombuffer(key, "<u4")
    share(
        -(-values.size // tile),
        lambda begin, end: outside.append(compute(*given, words, params.threshold, begin, end, shares)),
    )
    if any(outside):
        raise refused_values(params, sum(outside), values.size)
    return shared(params, shares)


def shamir_reconstruct(params: ShamirReconstruct, shares: NDArray[Any]) -> dict[str, Any]:
    """The values (n,) of Shamir shares (m, n). Raises InvalidRequest for shares that do not fit together."""
    read = np.asarray(shares).view()
    read.flags.writeable = False
    bits = 31 if params.field == "m31" else 61

    def all_strips(order: NDArray[np.uint32], weights: NDArray[Any], values: NDArray[Any]) -> Found:
        parts: list[Found] = []
        spare = -params.threshold % 4
        base = np.pad(order[: params.threshold], (0, spare))
        rows = base, order[params.threshold :], np.pad(weights, ((0, 0), (0, spare)))
        written = values.view(np.int64), values.view(np.float64)

        def part(begin: int, end: int) -> None:
            outside = np.zeros(len(read), np.int64)
            how = bits, params.scale is not None, scale_of(params)
            inconsistent, first = combine(read, *rows, *how, begin, end, *written, outside)
            parts.append(Found(inconsistent, first, outside))

        share(-(-read.shape[1] // STRIP), part)
        return together(parts)

    return recover(params, read, all_strips)
