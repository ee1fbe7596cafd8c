// Covariance, correlation and beta of two series over windows. The twin of pair_loops.py.
//
// A row is cut into blocks of `period` bars. A window is the end of one block and the beginning of the next, and differences
// are to the first bars c and d of the later block. The earlier block's bars are added from its last one back, the later one's
// from its first one on.
//
// pair: a thread per bar adds its window; neighbours read the same bars, which the first-level cache has. Up to 1,024 bars.
// pair_blocks: a thread per block goes once through the block before it, leaves the sums of each bar's part of it in device
// memory, and goes once through its own.
//
// Bytes per bar in float64: 24 from device memory, and a window of 16 a bar from the caches (pair); 120, of which a warp reads
// and writes 32 blocks at a time (pair_blocks). Operations: 10 for each bar of the window (pair), so that these are the limit
// above some 20 bars; 20 a bar (pair_blocks), whose limit is how long a thread waits for memory: rows are as quick as one
// another only where there are some thousand blocks. Registers: up to 58 (pair) and 80 (pair_blocks), no spills.
// Not yet measured on a GPU.

#include "device/types.cuh"

enum { COVARIANCE, CORRELATION, BETA };

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

__device__ __forceinline__ REAL shown(const Sums& early, const Sums& late, i32 kind, REAL part, REAL nan) {
    REAL u = early.u + late.u, uu = early.uu + late.uu, v = early.v + late.v, vv = early.vv + late.vv;
    REAL together = early.uv + late.uv - u * part * v, found;
    if (kind == COVARIANCE) {
        found = together * part;
    } else {
        REAL other = vv - v * part * v, below = other < 0 ? (REAL)0 : other;
        if (kind == CORRELATION) {
            REAL own = uu - u * part * u;
            below = sqrt(own < 0 ? (REAL)0 : own) * sqrt(below);
        }
        found = below == 0 ? nan : together / below;
        if (kind == CORRELATION) found = found > 1 ? (REAL)1 : found < -1 ? (REAL)-1 : found;
    }
    return found == found ? found : nan;
}

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
    out[i] = shown(early, late, kind, part, nan);
}

// `before` has room for five numbers of each bar.
extern "C" __global__ void __launch_bounds__(64)
pair_blocks(const REAL* x, const REAL* y, i64 size, i64 time, i64 blocks, i64 tasks, i32 period, i32 kind, REAL part, REAL nan,
            REAL* before, REAL* out) {
    i64 task = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (task >= tasks) return;
    i64 bar = task % blocks * period, start = task / blocks * time + bar;
    i32 count = time - bar < period ? (i32)(time - bar) : period;
    REAL c = x[start], d = y[start];
    Sums early = {0, 0, 0, 0, 0}, late = {0, 0, 0, 0, 0};
    for (i32 k = period - 1; k >= 0; --k) {
        if (k < count) {
            REAL* sums = before + start + k;
            sums[0] = early.u;
            sums[size] = early.uu;
            sums[2 * size] = early.v;
            sums[3 * size] = early.vv;
            sums[4 * size] = early.uv;
        }
        if (bar > 0) early.add(x[start - period + k] - c, y[start - period + k] - d);
    }
    for (i32 k = 0; k < count; ++k) {
        const REAL* sums = before + start + k;
        early = {sums[0], sums[size], sums[2 * size], sums[3 * size], sums[4 * size]};
        late.add(x[start + k] - c, y[start + k] - d);
        out[start + k] = bar + k < period - 1 ? nan : shown(early, late, kind, part, nan);
    }
}
