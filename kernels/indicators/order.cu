// Loops over the bars of a window: a sum with weights (algebra.weighted_sum), how many bars are below the newest
// (count_below), covariance, correlation and beta of two series (pair), and the number at a place of their order
// (order_statistic). The twins of _fir_range, _count_range and _quantile_range in program_loops.py, and of pair_loops.py.
//
// fir, count_below and pair: a thread per bar reads the window; neighbours read the same bars, which the first-level cache
// has. pair goes from the last bar of the earlier block back, and then from the first of the later one on.
//
// quantile: a warp shows `each` bars of a row, one after another, and first goes through the period - 1 bars before them. It
// keeps the rank of each bar of the window in shared memory, at the bar's number modulo the period, so that a thread always
// has the same ranks. A bar that comes adds 1 to the rank of those above it, one that leaves takes 1 from those above it; of
// equal bars the older counts as the lower. The bar whose rank is `place` is the number that is asked for, exactly, so that
// the way there shows in no byte.
//
// Bytes per bar in float64: 16 from device memory (pair 24), and a window of 8 a bar (16) from the caches. Operations per
// bar: 2 (fir), 3 (count_below), 8 (quantile) and 10 (pair) for each bar of the window, so that these are the limit and not bandwidth; quantile waits
// some 30 cycles more a bar for the sum over the warp, which the other warps of a multiprocessor fill. Registers: up to
// 67, no spills. Shared memory of quantile: 4 bytes a bar of the window and 16, so that 32 warps fit an H200's multiprocessor
// up to a window of 1,500 bars, and 5 at 10,000.
// Not yet measured on a GPU.

#include "device/types.cuh"

#define ALL 0xffffffffu

enum { COVARIANCE, CORRELATION };  // or a beta

extern "C" __global__ void __launch_bounds__(256)
fir(const REAL* x, i64 size, i64 time, i32 period, const REAL* weights, REAL nan, REAL* out) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    if (i % time < period - 1) {
        out[i] = nan;
        return;
    }
    REAL total = 0;
    for (i32 k = 0; k < period; ++k) total = total + x[i - k] * weights[k];
    out[i] = total;
}

extern "C" __global__ void __launch_bounds__(256)
count_below(const REAL* x, i64 size, i64 time, i32 period, i32 with_equal, REAL nan, REAL* out) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    i32 count = 0, before = (i32)(i % time < period ? i % time : period);
    REAL now = x[i];
    for (i32 k = 1; k <= before; ++k) count += with_equal ? x[i - k] <= now : x[i - k] < now;
    out[i] = (REAL)count;
}

// Sums of differences to the anchors c and d.
struct Sums {
    REAL u, uu, v, vv, uv;

    __device__ __forceinline__ void add(REAL a, REAL b) {
        u = u + a;
        uu = uu + a * a;
        v = v + b;
        vv = vv + b * b;
        uv = uv + a * b;
    }
};

extern "C" __global__ void __launch_bounds__(256)
pair(const REAL* x, const REAL* y, i64 size, i64 time, i32 period, i32 kind, REAL part, REAL nan, REAL* out) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    i64 bar = i % time;
    if (bar < period - 1) {
        out[i] = nan;
        return;
    }
    i64 start = i - bar % period;
    REAL c = x[start], d = y[start];
    Sums early = {0, 0, 0, 0, 0}, late = {0, 0, 0, 0, 0};
    for (i64 j = start - 1; j > i - period; --j) early.add(x[j] - c, y[j] - d);
    for (i64 j = start; j <= i; ++j) late.add(x[j] - c, y[j] - d);
    REAL u = early.u + late.u, uu = early.uu + late.uu, v = early.v + late.v, vv = early.vv + late.vv;
    REAL together = early.uv + late.uv - u * part * v, shown;
    if (kind == COVARIANCE) {
        shown = together * part;
    } else {
        REAL other = vv - v * part * v, below = other < 0 ? (REAL)0 : other;
        if (kind == CORRELATION) {
            REAL own = uu - u * part * u;
            below = sqrt(own < 0 ? (REAL)0 : own) * sqrt(below);
        }
        shown = below == 0 ? nan : together / below;
    }
    out[i] = shown == shown ? shown : nan;
}

extern "C" __global__ void __launch_bounds__(32)
quantile(const REAL* x, i64 time, i64 parts, i32 each, i32 period, i32 place, REAL fraction, REAL nan, REAL* out) {
    extern __shared__ i32 rank[];
    __shared__ REAL found[2];  // the numbers at the place and at the next
    i32 lane = (i32)threadIdx.x, missing = 0;
    i64 row = blockIdx.x / parts * time, start = blockIdx.x % parts * each;
    i64 end = start + each < time ? start + each : time, from = start < period ? 0 : start - period + 1;
    i32 slot = (i32)(from % period);
    for (i64 bar = from; bar < end; ++bar) {
        bool full = bar - from >= period;
        REAL now = x[row + bar], old = full ? x[row + bar - period] : nan;
        missing += (now == now ? 0 : 1) - (full && old != old ? 1 : 0);
        i32 own = 0;
        for (i32 s = lane; s < period; s += 32) {
            i64 at = bar - slot + s - (s > slot ? period : 0);
            if (s == slot || at < from) continue;
            REAL other = x[row + at];
            i32 its = rank[s] + (now < other ? 1 : 0) - (old <= other ? 1 : 0);
            rank[s] = its;
            own += other <= now ? 1 : 0;
            if (its == place) found[0] = other;
            if (its == place + 1) found[1] = other;
        }
#pragma unroll
        for (i32 apart = 16; apart > 0; apart /= 2) own += __shfl_xor_sync(ALL, own, apart);
        if (lane == slot % 32) {
            bool present = now == now;
            rank[slot] = present ? own : -1;
            if (present && own == place) found[0] = now;
            if (present && own == place + 1) found[1] = now;
        }
        __syncwarp();
        if (lane == 0 && bar >= start) {
            REAL shown = nan;
            if (missing == 0 && bar >= period - 1) {
                shown = found[0] + 0;
                if (fraction > 0 && found[1] > shown) shown = shown + fraction * (found[1] - shown);
            }
            out[row + bar] = shown;
        }
        __syncwarp();
        slot = slot + 1 == period ? 0 : slot + 1;
    }
}
