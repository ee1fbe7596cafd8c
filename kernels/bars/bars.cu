// Bars of entries: open, high, low, close, volume, average price and count. The twin of sum_bars in loops.py.
//
// A thread has a bar, and adds its entries in their order, so that the volume of a bar is the very sum that closed it. Where
// a bar begins and ends is found on the CPU (edges.py).
//
// Layout: opens ... sizes[rows][time] REAL (of ticks five of them are one array); values where they are given, else they are
// (high + low + close) / 3; keep[rows][time] where some entries are left out; first[bars] and end[bars]; numbers[6][rows][bars]
// and counts[rows][bars].
//
// Bytes per entry in float64: 16 of ticks, 40 of smaller bars; 56 a bar. Neighbours read entries a bar apart, and a sector of 32
// bytes serves one thread for four entries, from the first-level cache where it holds the block's bars. Some 20 operations an
// entry, among them two chains of additions of float64. The limit of many short bars is bandwidth; bars of hundreds of entries
// wait for additions, and a single bar of all entries is one thread's work. The copy to the device (16 bytes an entry at 25 GB/s)
// takes longer than the kernel wherever bars fill the device.
// Registers: 52 to 56, no spills; 56 % of the warps of sm_90 are resident. Shared memory: none. Not yet measured on a GPU.

#include "device/types.cuh"

#define THREADS 128

extern "C" __global__ void __launch_bounds__(THREADS)
sum_bars(const REAL* opens, const REAL* highs, const REAL* lows, const REAL* closes, const REAL* values, const REAL* sizes,
         const unsigned char* keep, i32 given, i32 some, const i64* first, const i64* end, i64 time, i64 bars, i64 tasks, f64 nan,
         REAL* numbers, i64* counts) {
    const i64 task = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (task >= tasks) return;
    const i64 row = task / bars, bar = task % bars;
    i64 count = 0;
    f64 volume = 0, moved = 0, open = nan, high = nan, low = nan, close = nan;
#pragma unroll 1
    for (i64 i = row * time + first[bar]; i < row * time + end[bar]; ++i) {
        if (some != 0 && keep[i] == 0) continue;
        const f64 top = highs[i], bottom = lows[i], size = sizes[i];
        if (count == 0) {
            open = opens[i];
            high = top;
            low = bottom;
        }
        ++count;
        high = top > high ? top : high;
        low = bottom < low ? bottom : low;
        close = closes[i];
        volume += size;
        if (size > 0) {
            const f64 price = given != 0 ? (f64)values[i] : (top + bottom + close) / 3;
            moved += (price - open) * size;
        }
    }
    f64 average = nan;
    if (volume > 0) {
        average = open + moved / volume;
        average = average > high ? high : average;
        average = average < low ? low : average;
    }
    const f64 shown[] = {open, high, low, close, volume, average};
#pragma unroll
    for (i32 each = 0; each < 6; ++each) numbers[each * tasks + task] = (REAL)shown[each];
    counts[task] = count;
}
