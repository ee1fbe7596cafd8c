"""Uniform float32 numbers from random words, never zero: the twin of the device header uniform.cuh."""

import numpy as np
from numba import njit

ULP = np.float32(2.0**-32)
HALF_ULP = np.float32(2.0**-33)


@njit(cache=True, forceinline=True)
def uniform(word):  # type: ignore[no-untyped-def]
    """The device header's uniform number from a random word: (word + 1/2) 2^-32 rounded to float32, in [2^-33, 1].

    Its log is finite. The conversion of the word rounds to 24 bits first. Small words, which make the tail of a normal,
    are exact.
    """
    return np.float32(word) * ULP + HALF_ULP
