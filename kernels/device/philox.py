"""Random words by Philox4x32-10, a pure function of a 64-bit key and a 128-bit counter: the twin of the device header
philox.cuh."""

import numpy as np
from numba import njit

# Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), table 2.
# The Weyl increments of the key are the golden ratio and sqrt(3) - 1, as 32-bit fractions.
M0 = np.uint64(0xD2511F53)
M1 = np.uint64(0xCD9E8D57)
W0 = np.uint64(0x9E3779B9)
W1 = np.uint64(0xBB67AE85)
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
ROUNDS = 10


@njit(cache=True, forceinline=True)
def philox4x32(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    """The device header's four random words of counter (c0, c1, c2, c3) under key (k0, k1), each a uint64 below 2^32.

    Words are uint64, because a 32 x 32 -> 64 bit product is then one multiplication in each SIMD lane; the high half of
    a product of uint32 lanes needs shuffles. Without forceinline LLVM calls this in the caller's loop, which stays
    scalar.
    """
    for _ in range(ROUNDS):
        p0 = M0 * c0
        p1 = M1 * c2
        c0 = (p1 >> HALF) ^ c1 ^ k0
        c2 = (p0 >> HALF) ^ c3 ^ k1
        c1 = p1 & LOW
        c3 = p0 & LOW
        k0 = (k0 + W0) & LOW
        k1 = (k1 + W1) & LOW
    return c0, c1, c2, c3
