"""Secure aggregation on all cores of the CPU: it sums the masked vectors and removes the masks, tile by tile.

A tile is the sixteen ChaCha20 blocks that fill a set of vector registers: 256 words of 32 bits. A core expands every
mask for its tile in turn, and adds or subtracts it in the lane order of the generator. Only the sum of the masks is
then brought into the order of the vector, where the masked rows are added.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.cpu.fetch import fetch
from warpdesk_server.kernels.device.chacha20 import LANES, WORDS, blocks, prepare
from warpdesk_server.kernels.secure_aggregation.spec import SecureAggregation
from warpdesk_server.kernels.secure_aggregation.unmask import answer, masks

_TILE = WORDS * LANES


def secure_aggregation(
    params: SecureAggregation,
    masked: NDArray[Any],
    self_seeds: NDArray[np.uint8],
    pair_seeds: NDArray[np.uint8] | None = None,
) -> dict[str, Any]:
    """Unmask the sum of masked vectors (survivors, dim) on the CPU. Raises InvalidRequest if seeds do not fit."""
    total = np.empty(masked.shape[1], masked.dtype)
    unmask = _unmask32 if params.modulus_bits == 32 else _unmask64
    tiles = -(-total.nbytes // (4 * _TILE))
    with masks(params, self_seeds, pair_seeds) as remove:
        taken = _read_only(masked), remove.seeds, remove.nonces, remove.subtract
        share(tiles, lambda first, end: unmask(*taken, first, end, total))
    return answer(params, total)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view of masked vectors or seeds: Numba compiles again for each mixture of writable and read-only."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


# Slices, so that indices begin at 0: if an index might be negative, Numba checks each one and does not vectorise.


@inner
def _add_rows(masked: NDArray[Any], first: int, sums: NDArray[Any]) -> None:
    for m in range(masked.shape[0]):
        row = masked[m, first : first + sums.size]
        for j in range(sums.size):
            sums[j] += row[j]


@inner
def _fetch(masked: NDArray[Any], at: int, count: int) -> None:
    for j in range(0, count, 64 // masked.itemsize):
        fetch(masked, at + j)


@inner
def _copy(words: NDArray[Any], out: NDArray[Any]) -> None:
    for j in range(out.size):
        out[j] = words[j]


@njit(cache=True, nogil=True)
def _unmask32(
    masked: NDArray[np.uint32],
    seeds: NDArray[np.uint32],
    nonces: NDArray[np.uint32],
    subtract: NDArray[np.uint32],
    begin: int,
    end: int,
    total: NDArray[np.uint32],
) -> None:
    dim = total.size
    state = np.empty(_TILE, np.uint32)
    words = np.empty(_TILE, np.uint32)
    held = np.empty(_TILE, np.uint32)  # the sum of the masks, in lane order
    for tile in range(begin, end):
        for j in range(_TILE):
            held[j] = 0
        for m in range(seeds.shape[0]):
            prepare(state, seeds[m], nonces[m], 0, 0)
            for lane in range(LANES):
                state[12 * LANES + lane] = np.uint32(tile * LANES + lane)
            if m < masked.shape[0]:
                _fetch(masked, m * dim + tile * _TILE, _TILE)
            blocks(state, words)
            if subtract[m]:
                for j in range(_TILE):
                    held[j] += words[j]
            else:
                for j in range(_TILE):
                    held[j] -= words[j]
        first = tile * _TILE
        count = min(_TILE, dim - first)
        for lane in range(LANES):
            for w in range(WORDS):
                words[lane * WORDS + w] = np.uint32(0) - held[w * LANES + lane]
        _add_rows(masked, first, words[:count])
        _copy(words, total[first : first + count])


@njit(cache=True, nogil=True)
def _unmask64(
    masked: NDArray[np.uint64],
    seeds: NDArray[np.uint32],
    nonces: NDArray[np.uint32],
    subtract: NDArray[np.uint32],
    begin: int,
    end: int,
    total: NDArray[np.uint64],
) -> None:
    # Word 2w of a block is the low half of 64-bit word w, word 2w + 1 the high half.
    dim = total.size
    half = _TILE // 2
    state = np.empty(_TILE, np.uint32)
    words = np.empty(_TILE, np.uint32)
    held, sums = np.empty(half, np.uint64), np.empty(half, np.uint64)
    for tile in range(begin, end):
        for j in range(half):
            held[j] = 0
        for m in range(seeds.shape[0]):
            prepare(state, seeds[m], nonces[m], 0, 0)
            for lane in range(LANES):
                state[12 * LANES + lane] = np.uint32(tile * LANES + lane)
            if m < masked.shape[0]:
                _fetch(masked, m * dim + tile * half, half)
            blocks(state, words)
            for w in range(WORDS // 2):
                for lane in range(LANES):
                    low = np.uint64(words[2 * w * LANES + lane])
                    word = (np.uint64(words[(2 * w + 1) * LANES + lane]) << np.uint64(32)) | low
                    if subtract[m]:
                        held[w * LANES + lane] += word
                    else:
                        held[w * LANES + lane] -= word
        first = tile * half
        count = min(half, dim - first)
        for lane in range(LANES):
            for w in range(WORDS // 2):
                sums[lane * (WORDS // 2) + w] = np.uint64(0) - held[w * LANES + lane]
        _add_rows(masked, first, sums[:count])
        _copy(sums, total[first : first + count])
