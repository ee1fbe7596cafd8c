// Indicators whose state goes through comparisons from bar to bar, so that no two bars can be computed at a time: an upper bound
// that only falls (algebra.ratchet), and Wilder's parabolic stop and reverse. The twins of _ratchet and _parabolic in
// program_loops.py.
//
// A thread has a row. Neighbours read bars that are a row apart, so that a sector of 32 bytes serves one thread for four
// bars of float64, from the first-level cache where it holds the block's rows.
//
// Bytes per bar in float64: 24, if no sector is lost before it is used up. Operations per bar: some 5 (ratchet), 20 (sar), one
// after another: a bar waits for that before it, some 100 cycles, so that latency is the limit and not bandwidth. Rows alone
// fill a GPU: 1 million bars of one row take some 60 ms, and so do those of 10,000 rows. Registers: up to 40, no spills.
// Shared memory: none.
// Not yet measured on a GPU.

#include "device/types.cuh"

#define THREADS 32

extern "C" __global__ void __launch_bounds__(THREADS)
ratchet(const REAL* bound, const REAL* x, i64 rows, i64 time, REAL nan, REAL* out) {
    i64 row = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (row >= rows) return;
    bool begun = false;
    REAL y = 0, before = 0;
    for (i64 i = row * time; i < (row + 1) * time; ++i) {
        REAL b = bound[i], now = x[i];
        if (!begun || b < y || before > y) y = b;
        begun = y == y && b == b && now == now;
        out[i] = begun ? y : nan;
        before = now;
    }
}

// A stop that lies within neither of the last two bars.
__device__ __forceinline__ REAL beyond(REAL stop, REAL top, REAL bottom, REAL h, REAL l, bool up) {
    if (up) {
        stop = bottom < stop ? bottom : stop;
        return l < stop ? l : stop;
    }
    stop = top > stop ? top : stop;
    return h > stop ? h : stop;
}

extern "C" __global__ void __launch_bounds__(THREADS)
sar(const REAL* high, const REAL* low, i64 rows, i64 time, REAL first_up, REAL step_up, REAL most_up, REAL first_down,
    REAL step_down, REAL most_down, REAL apart, REAL start, REAL with_sign, REAL nan, REAL* out) {
    i64 row = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (row >= rows) return;
    i32 bars = 0;
    bool up = true;
    REAL stop = 0, extreme = 0, pace = 0, top = 0, bottom = 0;
    for (i64 i = row * time; i < (row + 1) * time; ++i) {
        REAL h = high[i], l = low[i], shown = nan;
        if (h != h || l != l) {
            bars = 0;
        } else if (bars == 0) {
            bars = 1;
        } else {
            if (bars == 1) {
                // Down if the low falls, and more than the high rises.
                REAL fall = bottom - l, rise = h - top;
                up = !(start < 0 || (start == 0 && fall > 0 && rise < fall));
                stop = start != 0 ? (up ? start : -start) : up ? bottom : top;
                extreme = up ? h : l;
                pace = up ? first_up : first_down;
                bars = 2;
                top = h;
                bottom = l;
            }
            if (up ? l <= stop : h >= stop) {
                up = !up;
                stop = beyond(extreme, top, bottom, h, l, up);
                if (apart != 0) stop = up ? stop - stop * apart : stop + stop * apart;
                shown = stop;
                pace = up ? first_up : first_down;
                extreme = up ? h : l;
            } else {
                shown = stop;
                if (up ? h > extreme : l < extreme) {
                    extreme = up ? h : l;
                    REAL step = up ? step_up : step_down, most = up ? most_up : most_down;
                    pace = pace + step < most ? pace + step : most;
                }
            }
            stop = beyond(stop + pace * (extreme - stop), top, bottom, h, l, up);
        }
        out[i] = with_sign != 0 && !up ? -shown : shown;
        top = h;
        bottom = l;
    }
}
