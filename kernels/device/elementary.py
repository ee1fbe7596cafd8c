"""The functions exp, log, sine and cosine from + - * / and fused products, with the same bytes on every device: the
twin of the device header elementary.cuh.

The polynomials are minimax fits made for this project (Lawson's iteration in extended precision). The worst relative
error of each fit stands beside it, and kernels/monte_carlo/README.md has the error measured after rounding. No branch
depends on the argument, so loops over these functions become SIMD code.
"""

import numpy as np
from numba import njit

from warpdesk_server.kernels.device.fused import fused

# log(1+f) = f + f^2 Q(f) on [sqrt(1/2) - 1, sqrt(2) - 1]: 3.0e-8.
Q0 = np.float32(-0.4999999)
Q1 = np.float32(0.3333395)
Q2 = np.float32(-0.25001755)
Q3 = np.float32(0.19962072)
Q4 = np.float32(-0.16570508)
Q5 = np.float32(0.14917974)
Q6 = np.float32(-0.14307518)
Q7 = np.float32(0.087348364)
LN2_F32 = np.float32(0.6931472)
ONE = np.float32(1)
MINUS_TWO = np.float32(-2)
SQRT_HALF_BITS = np.int32(0x3F3504F3)  # float32 nearest sqrt(1/2)
MANTISSA = np.int32(0x007FFFFF)
MANTISSA_BITS = np.int32(23)

# sin t = t + t^3 S(t^2): 3.8e-9; cos t = 1 - t^2/2 + t^4 C(t^2): 1.2e-10; both on [-pi/4, pi/4].
S0 = np.float32(-0.16666655)
S1 = np.float32(0.00833216)
S2 = np.float32(-0.00019515282)
C0 = np.float32(0.041666646)
C1 = np.float32(-0.0013887316)
C2 = np.float32(2.4433157e-05)
HALF = np.float32(0.5)
RADIANS_PER_WORD = np.float32(2 * np.pi * 2.0**-32)
EIGHTH_TURN = np.uint32(1 << 29)
QUADRANT_BITS = np.uint32(30)
QUADRANT = np.uint32(0xC0000000)

# exp r = 1 + r + r^2 E(r) on [-ln2/2, ln2/2]: 5.2e-18.
E0 = float.fromhex("0x1.000000000000dp-1")
E1 = float.fromhex("0x1.555555555556bp-3")
E2 = float.fromhex("0x1.555555554f361p-5")
E3 = float.fromhex("0x1.1111111108249p-7")
E4 = float.fromhex("0x1.6c16c18863872p-10")
E5 = float.fromhex("0x1.a01a01e0fc08dp-13")
E6 = float.fromhex("0x1.a0198f8254d97p-16")
E7 = float.fromhex("0x1.71dd7a80ce34dp-19")
E8 = float.fromhex("0x1.28b67abd347bap-22")
E9 = float.fromhex("0x1.b03a278a36d33p-26")
LOG2_E = float.fromhex("0x1.71547652b82fep+0")
# ln 2 in two parts; the high one has 21 trailing zero bits, so its product with any exponent is exact.
LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
# Adding 1.5 * 2^52 leaves the nearest integer in the low bits of the sum.
ROUND = 6755399441055744.0
EXP_LOWEST = -708.0
EXP_HIGHEST = 709.0
EXPONENT_SHIFT = np.int64(52)

# log(1+f) = 2s + s z L(z), s = f / (2 + f), z = s^2, 1 + f in [sqrt(1/2), sqrt(2)]: 2.2e-18.
L0 = float.fromhex("0x1.5555555555575p-1")
L1 = float.fromhex("0x1.9999999986ad0p-2")
L2 = float.fromhex("0x1.2492493da0384p-2")
L3 = float.fromhex("0x1.c71c549fd5741p-3")
L4 = float.fromhex("0x1.7465d7863b2f6p-3")
L5 = float.fromhex("0x1.39a9e370ed297p-3")
L6 = float.fromhex("0x1.2ec33c80407abp-3")
SQRT_HALF_BITS_F64 = np.int64(0x3FE6A09E667F3BCD)
MANTISSA_F64 = np.int64(0x000FFFFFFFFFFFFF)


@njit(cache=True, forceinline=True)
def minus_two_log(u):  # type: ignore[no-untyped-def]
    """-2 ln u for a normal float32 u in (0, 1]: the squared radius of Box and Muller, as in the device header."""
    bits = np.int32(np.float32(u).view(np.int32) - SQRT_HALF_BITS)
    exponent = np.int32(bits >> MANTISSA_BITS)
    f = np.int32((bits & MANTISSA) + SQRT_HALF_BITS).view(np.float32) - ONE
    q = fused(fused(fused(fused(Q7, f, Q6), f, Q5), f, Q4), f, Q3)
    q = fused(fused(fused(q, f, Q2), f, Q1), f, Q0)
    return MINUS_TWO * fused(np.float32(exponent), LN2_F32, fused(f * f, q, f))


@njit(cache=True, forceinline=True)
def sincos_turn(word):  # type: ignore[no-untyped-def]
    """Sine and cosine of word * 2^-32 turns, as in the device header; the reduction to an eighth turn is exact, in
    integers."""
    quadrant = np.uint32(word + EIGHTH_TURN) & QUADRANT
    t = np.float32(np.int32(word - quadrant)) * RADIANS_PER_WORD
    t2 = t * t
    s = fused(t * t2, fused(fused(S2, t2, S1), t2, S0), t)
    c = fused(t2 * t2, fused(fused(C2, t2, C1), t2, C0), fused(-HALF, t2, ONE))
    odd = (quadrant >> QUADRANT_BITS) & np.uint32(1)
    sine = c if odd else s
    cosine = s if odd else c
    sine = -sine if quadrant & np.uint32(0x80000000) else sine
    cosine = -cosine if np.uint32(quadrant + np.uint32(0x40000000)) & np.uint32(0x80000000) else cosine
    return sine, cosine


@njit(cache=True, forceinline=True)
def exp_mantissa(r):  # type: ignore[no-untyped-def]
    """e^r in float64 for |r| <= ln2/2, as in the device header."""
    e = fused(fused(fused(fused(fused(E9, r, E8), r, E7), r, E6), r, E5), r, E4)
    e = fused(fused(fused(fused(e, r, E3), r, E2), r, E1), r, E0)
    return 1.0 + fused(r * r, e, r)


@njit(cache=True, forceinline=True)
def exp64(x):  # type: ignore[no-untyped-def]
    """e^x in float64 as in the device header; an argument outside [-708, 709] is replaced by the nearer end."""
    x = min(max(x, EXP_LOWEST), EXP_HIGHEST)
    shifted = fused(x, LOG2_E, ROUND)
    k = shifted - ROUND
    mantissa = exp_mantissa(fused(-k, LN2_LOW, fused(-k, LN2_HIGH, x)))
    bits = np.float64(mantissa).view(np.int64) + (np.float64(shifted).view(np.int64) << EXPONENT_SHIFT)
    return np.int64(bits).view(np.float64)


@njit(cache=True, forceinline=True)
def log_series(s):  # type: ignore[no-untyped-def]
    """2 artanh s = ln((1 + s) / (1 - s)) in float64 for |s| <= 0.1716, as in the device header."""
    z = s * s
    tail = z * fused(fused(fused(fused(fused(fused(L6, z, L5), z, L4), z, L3), z, L2), z, L1), z, L0)
    return fused(s, tail, 2.0 * s)


@njit(cache=True, forceinline=True, error_model="numpy")
def log64(x):  # type: ignore[no-untyped-def]
    """ln x for a normal float64 x > 0, as in the device header."""
    bits = np.float64(x).view(np.int64) - SQRT_HALF_BITS_F64
    k = np.float64(bits >> EXPONENT_SHIFT)
    f = np.int64((bits & MANTISSA_F64) + SQRT_HALF_BITS_F64).view(np.float64) - 1.0
    return fused(k, LN2_HIGH, fused(k, LN2_LOW, log_series(f / (2.0 + f))))
