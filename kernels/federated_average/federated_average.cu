// Average updates of clients in exact integers, and move the model; twin of cpu.py, averaging.py says what is computed.
//
//   steps    q = round(x * factor[i]), ties to even, cut to +-2^50; the product is rounded once to float64
//   total[j] = sum_i sign(q) floor(|q| ratio[i] / 2^63)     mod 2^64: any order of addition gives the same bytes
//   average  = total / divisor * unit
//   descend  model += rate * average
//   adapt    Reddi et al. (2021), algorithm 2, in + - * / and sqrt of float64, each rounded once
//
// FLOAT is 32 or 64. Numbers are read as bits: float32 kernels of this project flush denormals, an update has them.
//
// Layout: updates[n][d] u32 or u64, factors[n] f64, ratios[n] u64, squares[n][blocks][3] u64, total[d] u64, of which the
// average, as bits of f64, takes the place; model, first and second are f64.
// Launch: add_squares  128 threads for the BLOCK numbers of a client's block, one block of threads each; 3 KiB shared
//         add_up       128 threads, a column each, grid.y over the clients, each block its share of them; total zeroed
//         the others   128 threads, an element each
// add_squares and add_up read 4 (8) bytes a number and take some 20 and 25 instructions, 3 of them in float64: bound by
// memory on an H200, by float64 arithmetic where that has 1/64 of the rate of float32. Not yet measured on a GPU.

#include "device/types.cuh"

#define THREADS 128
#define BLOCK 8192

#if FLOAT == 32
typedef u32 Bits;
#else
typedef u64 Bits;
#endif

__device__ __forceinline__ f64 number(Bits bits) {
#if FLOAT == 32
    const u32 fraction = bits & 0x7fffffu, exponent = (bits >> 23) & 0xffu;
    const f64 smallest = 1.401298464324817e-45;  // 2^-149
    if (exponent == 0) return (bits >> 31) != 0 ? -((f64)fraction * smallest) : (f64)fraction * smallest;
    // The same number as float64: the exponent's bias is 896 more.
    const u64 wide = ((u64)(bits >> 31) << 63) | ((u64)(exponent + 896u) << 52) | ((u64)fraction << 29);
    return __longlong_as_double((i64)wide);
#else
    return __longlong_as_double((i64)bits);
#endif
}

__device__ __forceinline__ i64 steps(Bits bits, f64 factor) {
    const f64 most = 1125899906842624.0;  // 2^50
    f64 x = number(bits) * factor;
    x = x < -most ? -most : x;
    x = x > most ? most : x;
    // Adding 1.5 * 2^52 leaves the nearest integer in the low bits of the sum.
    return __double_as_longlong(x + 6755399441055744.0) - 0x4338000000000000ll;
}

__device__ __forceinline__ u64 magnitude_of(i64 q) { return (u64)(q < 0 ? -q : q); }

// squares[i][b] = sums of h h, h l and l l over a block's step counts h 2^25 + l, each below 2^63. Block `index` of threads
// does block index % blocks of client index / blocks.
extern "C" __global__ void __launch_bounds__(THREADS)
    add_squares(const Bits* updates, u64 d, u64 blocks, f64 factor, u64* squares) {
    __shared__ u64 sums[3][THREADS];
    const u64 client = blockIdx.x / blocks, begin = blockIdx.x % blocks * BLOCK;
    const u64 end = begin + BLOCK < d ? begin + BLOCK : d;
    u64 high = 0, middle = 0, low = 0;
    for (u64 j = begin + threadIdx.x; j < end; j += THREADS) {
        const u64 q = magnitude_of(steps(updates[client * d + j], factor));
        const u64 upper = q >> 25, lower = q & 0x1ffffffu;
        high += upper * upper;
        middle += upper * lower;
        low += lower * lower;
    }
    sums[0][threadIdx.x] = high;
    sums[1][threadIdx.x] = middle;
    sums[2][threadIdx.x] = low;
    for (u32 half = THREADS / 2; half > 0; half >>= 1) {
        __syncthreads();
        if (threadIdx.x < half)
            for (int k = 0; k < 3; ++k) sums[k][threadIdx.x] += sums[k][threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        for (int k = 0; k < 3; ++k) squares[3 * (u64)blockIdx.x + k] = sums[k][0];
}

// total[j] += what clients blockIdx.y * rows and on, `rows` of them, send in column j.
extern "C" __global__ void __launch_bounds__(THREADS)
    add_up(const Bits* updates, u64 n, u64 d, const f64* factors, const u64* ratios, u64 rows, u64* total) {
    const u64 j = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (j >= d) return;
    const u64 begin = blockIdx.y * rows, end = begin + rows < n ? begin + rows : n;
    u64 sum = 0;
    for (u64 i = begin; i < end; ++i) {
        const i64 q = steps(updates[i * d + j], factors[i]);
        const u64 part = __umul64hi(magnitude_of(q) << 1, ratios[i]);
        sum += q < 0 ? 0 - part : part;
    }
    if (gridDim.y == 1)
        total[j] += sum;
    else
        atomicAdd(total + j, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS) average(u64* total, u64 n, f64 divisor, f64 unit) {
    const u64 j = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (j < n) total[j] = (u64)__double_as_longlong((f64)(i64)total[j] / divisor * unit);
}

extern "C" __global__ void __launch_bounds__(THREADS) descend(const u64* average, u64 n, f64 rate, f64* model) {
    const u64 j = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (j < n) model[j] = model[j] + rate * __longlong_as_double((i64)average[j]);
}

// `rest1` and `rest2` are 1 - beta1 and 1 - beta2.
extern "C" __global__ void __launch_bounds__(THREADS)
    adapt(const u64* average, u64 n, f64 rate, f64 beta1, f64 rest1, f64 beta2, f64 rest2, f64 tau, f64* model,
          f64* first, f64* second) {
    const u64 j = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (j >= n) return;
    const f64 moved = __longlong_as_double((i64)average[j]);
    const f64 m = beta1 * first[j] + rest1 * moved;
    const f64 v = beta2 * second[j] + rest2 * (moved * moved);
    first[j] = m;
    second[j] = v;
    model[j] = model[j] + rate * m / (sqrt(v) + tau);
}
