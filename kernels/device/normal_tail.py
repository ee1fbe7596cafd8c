"""The standard normal distribution function and its tail by + - * / and fused products: the twin of the device header
normal_tail.cuh.

The probability beyond t >= 0 is e^(-t^2/2) times the scaled tail m(t) = e^(t^2/2) erfc(t / sqrt(2)) / 2, so that it is
good to a few units in the last place until it underflows. (t + 4) m(t) is a polynomial in u = (t - 4) / (t + 4), the
mapping of Shepherd and Laframboise (1981); its coefficients were made for this project by Chebyshev interpolation in 50
digits. No branch depends on the argument, so loops over these functions become SIMD code.
"""

import numpy as np
from numba import njit

from warpdesk_server.kernels.device.elementary import EXPONENT_SHIFT, LN2_HIGH, LN2_LOW, LOG2_E, ROUND, exp_mantissa
from warpdesk_server.kernels.device.fused import fused

# (t + 4) m(t), 0 <= t <= 39, from u^0 on: 3.8e-17; the last digit of M3 is such that m(0) is exactly 1/2.
M0 = float.fromhex("0x1.82b4bb8c94dcep-1")
M1 = float.fromhex("-0x1.373e3a893c287p-1")
M2 = float.fromhex("0x1.8c6dbf2cfc2fap-2")
M3 = float.fromhex("-0x1.7dff2bff68870p-3")
M4 = float.fromhex("0x1.eec4cc3e45a10p-5")
M5 = float.fromhex("-0x1.ee2761035495fp-8")
M6 = float.fromhex("-0x1.c81719cb05950p-9")
M7 = float.fromhex("0x1.ab825f80112b8p-10")
M8 = float.fromhex("0x1.17a4a6e3ba156p-13")
M9 = float.fromhex("-0x1.e4a416416730ap-13")
M10 = float.fromhex("-0x1.00120539f52d5p-19")
M11 = float.fromhex("0x1.26cf91931aaddp-15")
M12 = float.fromhex("0x1.7fe0a6f066493p-21")
M13 = float.fromhex("-0x1.8d3603d6a0fbfp-18")
M14 = float.fromhex("-0x1.4fa3e33833c8ep-21")
M15 = float.fromhex("0x1.11c12c2679292p-20")
M16 = float.fromhex("0x1.1b30fd839573fp-22")
M17 = float.fromhex("-0x1.4b4640d20d481p-23")
M18 = float.fromhex("-0x1.483dfd2efa358p-24")
M19 = float.fromhex("0x1.f49a93a2a1689p-27")
M20 = float.fromhex("0x1.deef0f2d5c023p-27")
M21 = float.fromhex("0x1.540d685f73c13p-34")
M22 = float.fromhex("-0x1.09934b372409ap-30")
# (t + 5)^2 times the slope of -m, -1/2 <= t <= 39, in z = (t - 15) / (2 (t + 5)) from z^0 on: 1.5e-17.
S0 = float.fromhex("0x1.666389bed7a78p-1")
S1 = float.fromhex("-0x1.c520520aaeec0p-1")
S2 = float.fromhex("0x1.8e3ab479c3f85p-1")
S3 = float.fromhex("-0x1.1d62b7e603daap-1")
S4 = float.fromhex("0x1.5aa5d26ca5240p-2")
S5 = float.fromhex("-0x1.652b2a1d260e4p-3")
S6 = float.fromhex("0x1.2fc2b9dfd9807p-4")
S7 = float.fromhex("-0x1.8a108b6c966e8p-6")
S8 = float.fromhex("0x1.21df8ae59f2bfp-8")
S9 = float.fromhex("0x1.7d3ee666c15b8p-11")
S10 = float.fromhex("-0x1.e02ceb5156d29p-11")
S11 = float.fromhex("0x1.3533c74b20342p-12")
S12 = float.fromhex("0x1.3b901f80c5a1cp-16")
S13 = float.fromhex("-0x1.cc9ee60e52f8fp-15")
S14 = float.fromhex("0x1.211b206508cfbp-16")
S15 = float.fromhex("0x1.2a0c25678cf34p-18")
S16 = float.fromhex("-0x1.bda2e296c742dp-18")
S17 = float.fromhex("-0x1.33a013a44bc20p-18")
S18 = float.fromhex("-0x1.9ec98dc43178bp-18")
S19 = float.fromhex("-0x1.c5ee51b556283p-18")
S20 = float.fromhex("-0x1.1489b7a8ee2d6p-18")
S21 = float.fromhex("-0x1.924cc97ffa79ap-20")
S22 = float.fromhex("-0x1.64f4c7643809fp-22")
S23 = float.fromhex("-0x1.69caab6ef53fcp-25")
S24 = float.fromhex("-0x1.449450424a889p-29")
FARTHEST = 39.0  # beyond 38.5 the tail is below half the least float64
# A power of two by which e^(-t^2/2) is scaled while it is multiplied, so that only the last product is subnormal.
SCALE = 2.0**600
UNSCALE = 2.0**-600
SCALE_EXPONENT = np.int64(600 << 52)


@njit(cache=True, forceinline=True, error_model="numpy")
def scaled_tail(t):  # type: ignore[no-untyped-def]
    """m(t) = e^(t^2/2) times the probability that a standard normal exceeds t, for 0 <= t <= 39."""
    w = 1.0 / (t + 4.0)
    u = (t - 4.0) * w
    # Four chains instead of one of 22 products and sums, each of which waits for the one before.
    v = u * u
    x = v * v
    p0 = fused(fused(fused(fused(fused(M20, x, M16), x, M12), x, M8), x, M4), x, M0)
    p1 = fused(fused(fused(fused(fused(M21, x, M17), x, M13), x, M9), x, M5), x, M1)
    p2 = fused(fused(fused(fused(fused(M22, x, M18), x, M14), x, M10), x, M6), x, M2)
    p3 = fused(fused(fused(fused(M19, x, M15), x, M11), x, M7), x, M3)
    p = fused(v, fused(u, p3, p2), fused(u, p1, p0))
    return p * w


@njit(cache=True, forceinline=True, error_model="numpy")
def tail_slope(t):  # type: ignore[no-untyped-def]
    """-m'(t) = 1 / sqrt(2 pi) - t m(t), for -1/2 <= t <= 39, where the difference would cancel."""
    w = 1.0 / (t + 5.0)
    z = (0.5 * t - 7.5) * w
    v = z * z
    x = v * v
    p0 = fused(fused(fused(fused(fused(fused(S24, x, S20), x, S16), x, S12), x, S8), x, S4), x, S0)
    p1 = fused(fused(fused(fused(fused(S21, x, S17), x, S13), x, S9), x, S5), x, S1)
    p2 = fused(fused(fused(fused(fused(S22, x, S18), x, S14), x, S10), x, S6), x, S2)
    p3 = fused(fused(fused(fused(fused(S23, x, S19), x, S15), x, S11), x, S7), x, S3)
    return fused(v, fused(z, p3, p2), fused(z, p1, p0)) * (w * w)


@njit(cache=True, forceinline=True, error_model="numpy")
def scaled_bell(t):  # type: ignore[no-untyped-def]
    """2^600 e^(-t^2/2) for 0 <= t <= 39, with the rounding error of t^2 taken into the exponent."""
    x = -0.5 * t * t
    error = fused(-0.5 * t, t, -x)
    shifted = fused(x, LOG2_E, ROUND)
    k = shifted - ROUND
    r = fused(-k, LN2_LOW, fused(-k, LN2_HIGH, x)) + error
    mantissa = exp_mantissa(r)
    bits = np.float64(mantissa).view(np.int64) + (np.float64(shifted).view(np.int64) << EXPONENT_SHIFT)
    return np.int64(bits + SCALE_EXPONENT).view(np.float64)


@njit(cache=True, forceinline=True, error_model="numpy")
def normal_cdf(x):  # type: ignore[no-untyped-def]
    """The probability that a standard normal is at most x, as in the device header: 0 below -38.5; NaN of NaN."""
    t = min(abs(x), FARTHEST)
    tail = (scaled_bell(t) * scaled_tail(t)) * UNSCALE
    probability = 1.0 - tail if x > 0.0 else tail
    return probability if x == x else x
