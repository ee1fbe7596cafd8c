// exp, log, sine and cosine by + - * / and fused products, so that every device gets the same bytes. Twin of
// elementary.py, which says where the polynomials come from; their measured errors are in kernels/monte_carlo/README.md.
// Include device/types.cuh first.

// -2 ln u for a normal float32 u in (0, 1]: the squared radius of Box and Muller.
__device__ __forceinline__ f32 minus_two_log(f32 u) {
    const i32 sqrt_half = 0x3F3504F3;  // float32 nearest sqrt(1/2)
    const i32 bits = __float_as_int(u) - sqrt_half;
    const i32 exponent = bits >> 23;
    const f32 f = __int_as_float((bits & 0x007FFFFF) + sqrt_half) - 1.0f;
    f32 q = 0.087348364f;
    q = fused(q, f, -0.14307518f);
    q = fused(q, f, 0.14917974f);
    q = fused(q, f, -0.16570508f);
    q = fused(q, f, 0.19962072f);
    q = fused(q, f, -0.25001755f);
    q = fused(q, f, 0.3333395f);
    q = fused(q, f, -0.4999999f);
    return -2.0f * fused((f32)exponent, 0.6931472f, fused(f * f, q, f));
}

struct SineCosine {
    f32 sine, cosine;
};

// Sine and cosine of the angle word * 2^-32 turns; the reduction to an eighth turn is exact, in integers.
__device__ __forceinline__ SineCosine sincos_turn(u32 word) {
    const u32 quadrant = (word + 0x20000000u) & 0xC0000000u;
    const f32 t = (f32)(i32)(word - quadrant) * 1.4629181e-09f;  // 2 pi 2^-32
    const f32 t2 = t * t;
    const f32 s = fused(t * t2, fused(fused(-0.00019515282f, t2, 0.00833216f), t2, -0.16666655f), t);
    const f32 tail = fused(fused(2.4433157e-05f, t2, -0.0013887316f), t2, 0.041666646f);
    const f32 c = fused(t2 * t2, tail, fused(-0.5f, t2, 1.0f));
    const bool odd = quadrant & 0x40000000u;
    const f32 sine = odd ? c : s;
    const f32 cosine = odd ? s : c;
    return {quadrant & 0x80000000u ? -sine : sine, (quadrant + 0x40000000u) & 0x80000000u ? -cosine : cosine};
}

// e^r for |r| <= ln2/2.
__device__ __forceinline__ f64 exp_mantissa(f64 r) {
    f64 e = 0x1.b03a278a36d33p-26;
    e = fused(e, r, 0x1.28b67abd347bap-22);
    e = fused(e, r, 0x1.71dd7a80ce34dp-19);
    e = fused(e, r, 0x1.a0198f8254d97p-16);
    e = fused(e, r, 0x1.a01a01e0fc08dp-13);
    e = fused(e, r, 0x1.6c16c18863872p-10);
    e = fused(e, r, 0x1.1111111108249p-7);
    e = fused(e, r, 0x1.555555554f361p-5);
    e = fused(e, r, 0x1.555555555556bp-3);
    e = fused(e, r, 0x1.000000000000dp-1);
    return 1.0 + fused(r * r, e, r);
}

// e^x in float64 for x in [-708, 709].
__device__ __forceinline__ f64 exp64_within(f64 x) {
    // Adding 1.5 * 2^52 leaves the nearest integer in the low bits of the sum.
    const f64 shifted = fused(x, 0x1.71547652b82fep+0, 6755399441055744.0);
    const f64 k = shifted - 6755399441055744.0;
    const f64 r = fused(-k, 0x1.a39ef35793c76p-33, fused(-k, 0x1.62e42fee00000p-1, x));  // ln 2 in two parts
    const f64 mantissa = exp_mantissa(r);
    const u32 exponent = (u32)__double2loint(shifted) << 20;
    return __hiloint2double((i32)((u32)__double2hiint(mantissa) + exponent), __double2loint(mantissa));
}

// The same; arguments beyond are taken as the end they are past.
__device__ __forceinline__ f64 exp64(f64 x) {
    x = x > -708.0 ? x : -708.0;
    return exp64_within(x < 709.0 ? x : 709.0);
}

// 2 artanh s = ln((1 + s) / (1 - s)) for |s| <= 0.1716.
__device__ __forceinline__ f64 log_series(f64 s) {
    const f64 z = s * s;
    f64 tail = 0x1.2ec33c80407abp-3;
    tail = fused(tail, z, 0x1.39a9e370ed297p-3);
    tail = fused(tail, z, 0x1.7465d7863b2f6p-3);
    tail = fused(tail, z, 0x1.c71c549fd5741p-3);
    tail = fused(tail, z, 0x1.2492493da0384p-2);
    tail = fused(tail, z, 0x1.9999999986ad0p-2);
    tail = fused(tail, z, 0x1.5555555555575p-1);
    tail = z * tail;
    return fused(s, tail, 2.0 * s);
}

// ln x for a normal float64 x > 0.
__device__ __forceinline__ f64 log64(f64 x) {
    const u64 sqrt_half = 0x3FE6A09E667F3BCDull;  // float64 nearest sqrt(1/2)
    const i64 bits = (i64)(((u64)(u32)__double2hiint(x) << 32 | (u32)__double2loint(x)) - sqrt_half);
    const f64 k = (f64)(bits >> 52);
    const u64 mantissa = ((u64)bits & 0x000FFFFFFFFFFFFFull) + sqrt_half;
    const f64 f = __hiloint2double((i32)(mantissa >> 32), (i32)mantissa) - 1.0;
    return fused(k, 0x1.62e42fee00000p-1, fused(k, 0x1.a39ef35793c76p-33, log_series(f / (2.0 + f))));
}

// A float32 that is no denormal as float64, and the square root of 0 or of a float32 in [2^-101, 2^127]. Both are exact, or
// correctly rounded, as the plain conversion and sqrtf are; these would take a product by 1 beside it that flushes
// denormals, and a branch to a slow path for all other numbers, past which nothing is moved. The root is what NVRTC
// makes of sqrtf in that range: an approximation y of 1/sqrt(x), and one step of Newton's from x y with fused products.
#ifdef WD_CPU_SHIM

__device__ __forceinline__ f64 widened(f32 x) { return (f64)x; }
__device__ __forceinline__ f32 sqrt_within(f32 x) { return sqrtf(x); }

#else

__device__ __forceinline__ f64 widened(f32 x) {
    f64 wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(x));
    return wide;
}
__device__ __forceinline__ f32 sqrt_within(f32 x) {
    f32 y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    const f32 root = x * y;
    const f32 rounded = fused(fused(-root, root, x), 0.5f * y, root);
    return x > 0.0f ? rounded : x;
}

#endif
