// Loops over the bars of a window: a sum with weights (algebra.weighted_sum), how many bars are below the newest
// (count_below), and the number at a place of their order (order_statistic). The twins of _fir_range, _count_range and
// _quantile_range in program_loops.py.
//
// fir and count_below: a thread per bar reads the window; neighbours read the same bars, which the first-level cache has.
//
// quantile: a warp shows `each` bars of a row, one after another, and first goes through the period - 1 bars before them. It
// keeps the rank of each bar of the window in shared memory, at the bar's number modulo the period, so that a thread always
// has the same ranks. A bar that comes adds 1 to the rank of those above it, one that leaves takes 1 from those above it; of
// equal bars the older counts as the lower. The bar whose rank is `place` is the number that is asked for, exactly, so that
// the way there shows in no byte.
//
// Bytes per bar in float64: 16 from device memory, and a window of 8 a bar from the caches. Operations per bar: 2 (fir), 3
// (count_below) and 8 (quantile) for each bar of the window, so that these are the limit and not bandwidth; quantile waits
// some 30 cycles more a bar for the sum over the warp, which the other warps of a multiprocessor fill. Registers: up to
// 67, no spills. Shared memory of quantile: 4 bytes a bar of the window and 16, so that 32 warps fit an H200's multiprocessor
// up to a window of 1,500 bars, and 5 at 10,000.
// Not yet measured on a GPU.

#include "device/types.cuh"

#define ALL 0xffffffffu

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
