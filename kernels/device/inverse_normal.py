"""The inverse of the normal distribution function by + - * / and fused products: the twin of the device header
inverse_normal.cuh.

Algorithm AS 241, PPND16, of Wichura (Applied Statistics 37, 1988), with the project's own logarithm. Its third rational
function is left out: it serves probabilities below e^-25 alone. No branch depends on the argument, so loops over this
function become SIMD code.
"""

from math import sqrt

from numba import njit

from warpdesk_server.kernels.device.elementary import log64
from warpdesk_server.kernels.device.fused import fused

CENTRE = 0.425  # up to this distance of the probability from 1/2 the first function serves, of CENTRE^2 - distance^2
A0, A1, A2, A3 = 3.3871328727963666080, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4
A4, A5, A6, A7 = 4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3
B1, B2, B3 = 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3
B4, B5, B6, B7 = 2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3
NEAR = 1.6  # the second function's argument is sqrt(-ln p) - NEAR, where p is the smaller tail
C0, C1, C2, C3 = 1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504
C4, C5, C6, C7 = 1.27045825245236838258, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4
D1, D2, D3 = 2.05319162663775882187, 1.67638483018380384940, 6.89767334985100004550e-1
D4, D5, D6, D7 = (
    1.48103976427480074590e-1,
    1.51986665636164571966e-2,
    5.47593808499534494600e-4,
    1.05075007164441684324e-9,
)


@njit(cache=True, forceinline=True, error_model="numpy")
def inverse_normal(p):  # type: ignore[no-untyped-def]
    """The x that a standard normal is below with probability p in [e^-25, 1 - e^-25], as in the device header."""
    q = p - 0.5
    r = fused(-q, q, CENTRE * CENTRE)
    above = fused(fused(fused(fused(A7, r, A6), r, A5), r, A4), r, A3)
    above = fused(fused(fused(above, r, A2), r, A1), r, A0)
    below = fused(fused(fused(fused(B7, r, B6), r, B5), r, B4), r, B3)
    below = fused(fused(fused(below, r, B2), r, B1), r, 1.0)
    centre = q * above / below
    tail = p if q < 0.0 else 1.0 - p
    r = sqrt(-log64(tail)) - NEAR
    above = fused(fused(fused(fused(C7, r, C6), r, C5), r, C4), r, C3)
    above = fused(fused(fused(above, r, C2), r, C1), r, C0)
    below = fused(fused(fused(fused(D7, r, D6), r, D5), r, D4), r, D3)
    below = fused(fused(fused(below, r, D2), r, D1), r, 1.0)
    far = above / below
    far = -far if q < 0.0 else far
    return centre if abs(q) <= CENTRE else far
