"""Standard normal numbers from random words by Box and Muller: the twin of the device header normal.cuh."""

from math import sqrt

from numba import njit

from warpdesk_server.kernels.device.elementary import minus_two_log, sincos_turn
from warpdesk_server.kernels.device.uniform import uniform


@njit(cache=True, forceinline=True)
def box_muller(radius_word, angle_word):  # type: ignore[no-untyped-def]
    """Two independent standard normals in float32, r cos(angle) and r sin(angle), as in the device header; |z| <=
    sqrt(66 ln 2) = 6.77."""
    r = sqrt(minus_two_log(uniform(radius_word)))
    sine, cosine = sincos_turn(angle_word)
    return r * cosine, r * sine
