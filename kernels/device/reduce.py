"""Sums of float64 numbers in trees of a fixed shape, the same on CPU and GPU: the twin of the device header reduce.cuh.

A block of 256 values is halved: lane i adds lane i + 128, then i + 64, down to i + 1; so is any other power of two.
The sums of blocks are then paired with their neighbours, level by level, and a missing neighbour counts as zero. Since
x + 0 = x, the tree over any aligned run of 2^k blocks is a subtree of the tree over all of them. So cutting the work at
such runs changes no byte.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

BLOCK = 256  # values added by one block of threads, and by one pass of the CPU


@njit(cache=True)
def tree_sum(values):  # type: ignore[no-untyped-def]
    """The device header's tree sum of a float64 array whose length is a power of two; the array is overwritten."""
    stride = values.size // 2
    while stride > 0:
        for i in range(stride):
            values[i] += values[i + stride]
        stride //= 2
    return values[0]


def pairwise_sum(partials: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum that kernels share over the first axis of (blocks, sums), as a tree of neighbours."""
    total: NDArray[np.float64] = sums_of_runs(partials, len(partials))[0]
    return total


def sums_of_runs(partials: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """The sums that kernels share over each run of `length` blocks: (blocks, sums) become (runs, sums).

    If the length is a power of two, `pairwise_sum` of the runs has the bytes of `pairwise_sum` of the blocks.
    """
    while length > 1:
        if len(partials) % 2:
            partials = np.concatenate([partials, np.zeros((1, *partials.shape[1:]))])
        partials = partials[0::2] + partials[1::2]
        length = -(-length // 2)
    # A single block may be -0.0, which adding a missing neighbour would turn into +0.0.
    return partials + 0.0
