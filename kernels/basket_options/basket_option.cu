// Paths of several assets that move back in time, are exercised or not, and are summed. Twin of loops.py; plan.py defines
// every scalar and table. Compiled once per FUNCTIONS of the regression's basis: 4 (one asset, or a European option), 7
// (two assets), 10 (more).
//
// Mathematics. With B_j the independent motions of a path, value_i = base_i exp(drift_i k + sum of load_ij B_j(k)). From
// date k + 1 to k, B_j(k) = shrink_k B_j(k + 1) + spread_k z. Normal m = (dates - k) assets + j comes from Philox4x32-10
// with counter (path low, path high, m / 4, stream).
//
// Memory. For each block of 256 paths: motion[assets][256], feature[FEATURES][256], paid[256] in float64 and date[256], which
// a launch reads unless it starts on the last date, and writes unless it ends below 0. With `kept`, moments[block][PRODUCTS]:
// sums over the paths in the money of products of two functions, and of a function with what later exercise pays. At the
// end, sums[block][8], each by tree_sums, and counts[dates + 1] of the dates of exercise by integer atomics, whose order
// does not matter. Motions stay in global memory, that is in caches: 256 paths of 32 assets have 64 KiB.
//
// Launch: one path per thread, 256 threads, one block per 256 paths from `first`; paths at or past `paths` move too, and add
// zero. Static shared memory 16 KiB; 4 blocks on a multiprocessor, since left to itself the compiler takes 40 registers and
// spills on some. Dates from `start` down to `stop` + 1, with `stop` -1 for the end: a fit has a launch
// for each date, since its regression is solved between them, a valuation one for all.
//
// Work per path and date: for each asset a quarter of Philox (5 products of 32 x 32 bits, 10 other integer operations), half
// of a logarithm, square root, sine and cosine (about 28 in float32), 32 operations in float64 for the exponential and 8
// others, and (assets + 1) / 2 fused products with as many loads of 8 bytes from the caches. Besides 8 for each of the
// PRODUCTS = 14, 35 or 65 sums of a fit, and FUNCTIONS for the decision. Bytes from memory per path and date of a fit:
// 16 (assets + FEATURES + 1) + 8.
// Bound by arithmetic in float64 (64 a clock and multiprocessor): 10^5 paths on 50 dates of one asset, fitted and valued,
// are about 1.3e9 operations, 0.08 ms on an H200, and 50 launches with a copy of the sums to the host between them.
// Not yet measured on a GPU.
#include "device/types.cuh"
#include "device/philox.cuh"
#include "device/elementary.cuh"
#include "device/uniform.cuh"
#include "device/normal.cuh"
#include "device/reduce.cuh"

const int FEATURES = FUNCTIONS / 3;
const int PRODUCTS = FUNCTIONS * (FUNCTIONS + 1) / 2 + FUNCTIONS;
const int SUMS = 8;
const int WEIGHTED_SUM = 0;
const int BEST_OF = 1;

// 1, t, t^2, t^3 of the payment t; u, u^2, t u; v, v^2, u v of two prices.
__device__ __forceinline__ void fill_basis(const f64 (&feature)[FEATURES], f64 (&basis)[FUNCTIONS]) {
    basis[0] = 1.0;
    basis[1] = feature[0];
    basis[2] = feature[0] * feature[0];
    basis[3] = basis[2] * feature[0];
#pragma unroll
    for (int f = 1; f < FEATURES; ++f) {
        basis[3 * f + 1] = feature[f];
        basis[3 * f + 2] = feature[f] * feature[f];
        basis[3 * f + 3] = feature[f - 1] * feature[f];
    }
}

struct Normals {
    f32 z0, z1, z2, z3;
};

__device__ __forceinline__ Normals draw(u64 number, u32 call, u32 stream, u32 key0, u32 key1) {
    const PhiloxWords words = philox4x32((u32)number, (u32)(number >> 32), call, stream, key0, key1);
    const NormalPair front = box_muller(words.w0, words.w1);
    const NormalPair back = box_muller(words.w2, words.w3);
    return {front.z0, front.z1, back.z0, back.z1};
}

// The sums of products of each two functions and of each with the target, in rows of the upper triangle.
__device__ __forceinline__ void regress(const f64 (&basis)[FUNCTIONS], f64 target, f64* lanes, f64* moments) {
    f64 values[REDUCE_WARPS];
    int at = 0;
#pragma unroll
    for (int p = 0; p < FUNCTIONS; ++p) {
#pragma unroll
        for (int q = p; q <= FUNCTIONS; ++q) {
            values[at % REDUCE_WARPS] = basis[p] * (q < FUNCTIONS ? basis[q < FUNCTIONS ? q : 0] : target);
            ++at;
            if (at % REDUCE_WARPS == 0 || at == PRODUCTS) {
                const int before = (at - 1) / REDUCE_WARPS * REDUCE_WARPS;
                const int place = before + threadIdx.x / 32;
                const f64 sum = tree_sums(values, lanes);
                if (threadIdx.x % 32 == 0 && place < PRODUCTS) moments[place] = sum;
                __syncthreads();
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 4)
basket_option(i64 first, i64 paths, u32 key0, u32 key1, u32 stream, i32 start, i32 stop, i32 kept, i32 kind, i32 assets,
              i32 dates, f64 sign, f64 strike, f64 control, f64 control_base, f64 weight, i32 controlled, const f64* loads,
              const f64* bases, const f64* drifts, const f64* control_loads, const f64* discounts, const f64* shrinks,
              const f64* spreads, const f64* coefficients, f64* motion, f64* feature_of, f64* paid_of, i32* date_of,
              f64* moments, f64* sums, u32* counts) {
    __shared__ f64 lanes[REDUCE_WARPS * REDUCE_BLOCK];
    const i64 block = blockIdx.x;
    const i64 number = first + block * REDUCE_BLOCK + threadIdx.x;
    const bool live = number < paths;
    motion += block * assets * REDUCE_BLOCK + threadIdx.x;
    feature_of += block * FEATURES * REDUCE_BLOCK + threadIdx.x;
    paid_of += block * REDUCE_BLOCK + threadIdx.x;
    date_of += block * REDUCE_BLOCK + threadIdx.x;

    f64 feature[FEATURES];
    f64 basis[FUNCTIONS];
    f64 paid = 0.0;
    i32 date = 0;
#pragma unroll
    for (int f = 0; f < FEATURES; ++f) feature[f] = start < dates ? feature_of[f * REDUCE_BLOCK] : 0.0;
    if (start < dates) {
        paid = *paid_of;
        date = *date_of;
    }
    Normals normals = {0.0f, 0.0f, 0.0f, 0.0f};
    bool drawn = false;

    for (i32 k = start; k > stop; --k) {
        if (k < dates) {
            f64 waiting = 0.0;
            if (k + 1 < dates) {
                fill_basis(feature, basis);
                const f64* own = coefficients + (i64)(k + 1) * FUNCTIONS;
#pragma unroll
                for (int p = 0; p < FUNCTIONS; ++p) waiting = fused(own[p], basis[p], waiting);
            }
            const f64 payment = discounts[k + 1] * feature[0];
            if (payment > 0.0 && payment > waiting) {
                paid = payment;
                date = k + 1;
            }
        }
        if (k == 0) break;

        const f64 shrink = shrinks[k];
        const f64 spread = spreads[k];
        for (i32 j = 0; j < assets; ++j) {
            const u32 m = (u32)(dates - k) * (u32)assets + (u32)j;
            const u32 lane = m % 4u;
            if (lane == 0u || !drawn) normals = draw(number, m / 4u, stream, key0, key1);
            drawn = true;
            const f32 z = lane < 2u ? (lane == 0u ? normals.z0 : normals.z1) : (lane == 2u ? normals.z2 : normals.z3);
            const f64 before = k < dates ? motion[j * REDUCE_BLOCK] : 0.0;
            motion[j * REDUCE_BLOCK] = fused(shrink, before, spread * widened(z));
        }

        // Of a worst, prices are taken with a minus sign: the least is then the greatest.
        const f64 side = kind == WEIGHTED_SUM || kind == BEST_OF ? 1.0 : -1.0;
        f64 total = 0.0;
        f64 top0 = -1e300;
        f64 top1 = -1e300;
        f64 top2 = -1e300;
        for (i32 asset = 0; asset < assets; ++asset) {
            f64 x = drifts[asset] * (f64)k;
            const f64* row = loads + asset * assets;
            for (i32 j = 0; j <= asset; ++j) x = fused(row[j], motion[j * REDUCE_BLOCK], x);
            const f64 value = bases[asset] * exp64(x);
            total += value;
            f64 rest = side * value;
            f64 greatest = top0;
            top0 = rest > greatest ? rest : greatest;
            rest = rest > greatest ? greatest : rest;
            greatest = top1;
            top1 = rest > greatest ? rest : greatest;
            rest = rest > greatest ? greatest : rest;
            top2 = rest > top2 ? rest : top2;
        }
        const bool sum = kind == WEIGHTED_SUM;
        feature[0] = sign * ((sum ? total : side * top0) - strike);
        if (FEATURES > 1) feature[FEATURES > 1 ? 1 : 0] = side * (sum ? top0 : top1) - strike;
        if (FEATURES > 2) feature[FEATURES > 2 ? 2 : 0] = side * (sum ? top1 : top2) - strike;
    }

    if (stop >= 0) {
#pragma unroll
        for (int f = 0; f < FEATURES; ++f) feature_of[f * REDUCE_BLOCK] = feature[f];
        *paid_of = paid;
        *date_of = date;
        if (kept && stop < dates - 1) {
            fill_basis(feature, basis);
            const bool counted = live && feature[0] > 0.0;
#pragma unroll
            for (int p = 0; p < FUNCTIONS; ++p) basis[p] = counted ? basis[p] : 0.0;
            regress(basis, paid, lanes, moments + block * PRODUCTS);
        }
        return;
    }

    f64 y = 0.0;
    f64 control_paid = 0.0;
    if (controlled) {
        f64 x = 0.0;
        for (i32 j = 0; j < assets; ++j) x = fused(control_loads[j], motion[j * REDUCE_BLOCK], x);
        const f64 value = discounts[dates] * (sign * (control_base * exp64(x) - strike));
        y = value > 0.0 ? value : 0.0;
        control_paid = y > 0.0 && live ? 1.0 : 0.0;
    }
    const f64 x = live ? paid : 0.0;
    y = live ? y - control : 0.0;
    const f64 left = x - weight * y;
    if (live) atomicAdd(&counts[date], 1u);
    const f64 values[SUMS] = {x, y, x * x, x * y, y * y, x > 0.0 ? 1.0 : 0.0, control_paid, left * left * left};
    const f64 sum = tree_sums(values, lanes);
    if (threadIdx.x % 32 == 0) sums[block * SUMS + threadIdx.x / 32] = sum;
}
