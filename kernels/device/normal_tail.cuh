// The standard normal distribution function and its tail by + - * / and fused products. Twin of normal_tail.py, which
// says where the polynomial comes from. Include device/types.cuh first.

// e^(t^2/2) times the probability that a standard normal exceeds t, for 0 <= t <= 39.
__device__ __forceinline__ f64 scaled_tail(f64 t) {
    const f64 w = 1.0 / (t + 4.0);
    const f64 u = (t - 4.0) * w;
    const f64 v = u * u, x = v * v;
    f64 p0 = 0x1.deef0f2d5c023p-27;
    p0 = fused(p0, x, 0x1.1b30fd839573fp-22);
    p0 = fused(p0, x, 0x1.7fe0a6f066493p-21);
    p0 = fused(p0, x, 0x1.17a4a6e3ba156p-13);
    p0 = fused(p0, x, 0x1.eec4cc3e45a10p-5);
    p0 = fused(p0, x, 0x1.82b4bb8c94dcep-1);
    f64 p1 = 0x1.540d685f73c13p-34;
    p1 = fused(p1, x, -0x1.4b4640d20d481p-23);
    p1 = fused(p1, x, -0x1.8d3603d6a0fbfp-18);
    p1 = fused(p1, x, -0x1.e4a416416730ap-13);
    p1 = fused(p1, x, -0x1.ee2761035495fp-8);
    p1 = fused(p1, x, -0x1.373e3a893c287p-1);
    f64 p2 = -0x1.09934b372409ap-30;
    p2 = fused(p2, x, -0x1.483dfd2efa358p-24);
    p2 = fused(p2, x, -0x1.4fa3e33833c8ep-21);
    p2 = fused(p2, x, -0x1.00120539f52d5p-19);
    p2 = fused(p2, x, -0x1.c81719cb05950p-9);
    p2 = fused(p2, x, 0x1.8c6dbf2cfc2fap-2);
    f64 p3 = 0x1.f49a93a2a1689p-27;
    p3 = fused(p3, x, 0x1.11c12c2679292p-20);
    p3 = fused(p3, x, 0x1.26cf91931aaddp-15);
    p3 = fused(p3, x, 0x1.ab825f80112b8p-10);
    p3 = fused(p3, x, -0x1.7dff2bff68870p-3);
    const f64 p = fused(v, fused(u, p3, p2), fused(u, p1, p0));
    return p * w;
}

// -m'(t) = 1 / sqrt(2 pi) - t m(t), where m is scaled_tail, for -1/2 <= t <= 39.
__device__ __forceinline__ f64 tail_slope(f64 t) {
    const f64 w = 1.0 / (t + 5.0);
    const f64 z = (0.5 * t - 7.5) * w;
    const f64 v = z * z, x = v * v;
    f64 p0 = -0x1.449450424a889p-29;
    p0 = fused(p0, x, -0x1.1489b7a8ee2d6p-18);
    p0 = fused(p0, x, -0x1.bda2e296c742dp-18);
    p0 = fused(p0, x, 0x1.3b901f80c5a1cp-16);
    p0 = fused(p0, x, 0x1.21df8ae59f2bfp-8);
    p0 = fused(p0, x, 0x1.5aa5d26ca5240p-2);
    p0 = fused(p0, x, 0x1.666389bed7a78p-1);
    f64 p1 = -0x1.924cc97ffa79ap-20;
    p1 = fused(p1, x, -0x1.33a013a44bc20p-18);
    p1 = fused(p1, x, -0x1.cc9ee60e52f8fp-15);
    p1 = fused(p1, x, 0x1.7d3ee666c15b8p-11);
    p1 = fused(p1, x, -0x1.652b2a1d260e4p-3);
    p1 = fused(p1, x, -0x1.c520520aaeec0p-1);
    f64 p2 = -0x1.64f4c7643809fp-22;
    p2 = fused(p2, x, -0x1.9ec98dc43178bp-18);
    p2 = fused(p2, x, 0x1.211b206508cfbp-16);
    p2 = fused(p2, x, -0x1.e02ceb5156d29p-11);
    p2 = fused(p2, x, 0x1.2fc2b9dfd9807p-4);
    p2 = fused(p2, x, 0x1.8e3ab479c3f85p-1);
    f64 p3 = -0x1.69caab6ef53fcp-25;
    p3 = fused(p3, x, -0x1.c5ee51b556283p-18);
    p3 = fused(p3, x, 0x1.2a0c25678cf34p-18);
    p3 = fused(p3, x, 0x1.3533c74b20342p-12);
    p3 = fused(p3, x, -0x1.8a108b6c966e8p-6);
    p3 = fused(p3, x, -0x1.1d62b7e603daap-1);
    return fused(v, fused(z, p3, p2), fused(z, p1, p0)) * (w * w);
}

// 2^600 e^(-t^2/2) for 0 <= t <= 39, with the rounding error of t^2 taken into the exponent.
__device__ __forceinline__ f64 scaled_bell(f64 t) {
    const f64 x = -0.5 * t * t, error = fused(-0.5 * t, t, -x);
    const f64 shifted = fused(x, 0x1.71547652b82fep+0, 6755399441055744.0);
    const f64 k = shifted - 6755399441055744.0;
    const f64 r = fused(-k, 0x1.a39ef35793c76p-33, fused(-k, 0x1.62e42fee00000p-1, x)) + error;
    const f64 mantissa = exp_mantissa(r);
    const u32 exponent = ((u32)__double2loint(shifted) << 20) + (600u << 20);
    return __hiloint2double((i32)((u32)__double2hiint(mantissa) + exponent), __double2loint(mantissa));
}

// The probability that a standard normal is at most x: 0 below -38.5; NaN of NaN.
__device__ __forceinline__ f64 normal_cdf(f64 x) {
    const f64 t = fabs(x) < 39.0 ? fabs(x) : 39.0;
    const f64 tail = (scaled_bell(t) * scaled_tail(t)) * 0x1p-600;
    const f64 probability = x > 0.0 ? 1.0 - tail : tail;
    return x == x ? probability : x;
}
