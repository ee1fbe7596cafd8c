// Moving averages, Bollinger bands and Cutler's RSI from windows joined by doubling (mathematics: windows.py).
//
// Prices and results are (rows, time), row by row. A window of h bars ending at t is D = mean - x[t] and V = variance;
//
//   delta = (D_old + (x[t-lag] - x[t])) - D_new,  D = D_new + w delta,  V = (u V_new + w V_old) + w u delta^2,
//
// with w the old bars' share and u = 1 - w. `kinds`, `lags` and `shares` (w, u, w u for each join) list the joins of the
// period: kind 0 doubles the level, 1 takes the level as the first part gathered, 2 joins what is gathered with the level.
//
// sma, bollinger, cutler: a block of 256 threads per row and 1,024 bars, periods up to 1,024. A block reads its bars and
//   the period - 1 before them once into shared memory (1,023 + 1,024 bars of x, D and V in float64 just fit 48 KiB) and
//   doubles there in place. Global memory per bar: one price read (at most two), one number written (bollinger: three).
//   Operations per bar and join: 5 (D) or 12 (D and V); a period has at most 2 log2(period) joins.
// join_*, show_*, changes: longer periods, one join of all bars per launch, a thread per bar, 256 threads per block; each
//   join moves 5 (means), 8 (moments) or 3 (sums) numbers per bar.
// Not yet measured on a GPU.

#include "device/types.cuh"

#define BLOCK 256
#define CHUNK 1024
#define HELD 8   // bars of a level per thread: (CHUNK + 1,023) / BLOCK, rounded up
#define SHOWN 4  // bars of a result per thread: CHUNK / BLOCK

struct Shares {
    REAL w, u, wu;
};

__device__ __forceinline__ Shares shares_of(const REAL* shares, i32 join) {
    return {shares[3 * join], shares[3 * join + 1], shares[3 * join + 2]};
}

// One NaN for every reason, so that the bytes do not depend on which operation met it.
__device__ __forceinline__ REAL plain(REAL value, REAL nan) { return value == value ? value : nan; }

__device__ __forceinline__ REAL joined_mean(REAL x_new, REAL x_old, REAL d_new, REAL d_old, REAL w) {
    REAL delta = (d_old + (x_old - x_new)) - d_new;
    return d_new + w * delta;
}

__device__ __forceinline__ void join(REAL x_new, REAL x_old, REAL d_new, REAL d_old, REAL v_new, REAL v_old, Shares s,
                                     REAL& d, REAL& v) {
    REAL delta = (d_old + (x_old - x_new)) - d_new;
    d = d_new + s.w * delta;
    v = (s.u * v_new + s.w * v_old) + s.wu * (delta * delta);
}

// The windows that end at the 1,024 bars from `start`; thread i leaves those of bars start + i + 256 e in got_d and got_v.
template <bool MOMENTS>
__device__ __forceinline__ void windows_of(const REAL* row, i64 time, i64 start, i32 period, i32 joins, const i32* kinds,
                                           const i32* lags, const REAL* shares, REAL nan, REAL* x, REAL* d, REAL* v,
                                           REAL* got_d, REAL* got_v) {
    i32 size = CHUNK + period - 1, thread = (i32)threadIdx.x;
    for (i32 j = thread; j < size; j += BLOCK) {
        i64 bar = start + j - (period - 1);
        x[j] = bar >= 0 && bar < time ? row[bar] : nan;
        d[j] = 0;
        if (MOMENTS) v[j] = 0;
    }
    __syncthreads();
    i32 length = 1;
    for (i32 k = 0; k < joins; ++k) {
        i32 lag = lags[k];
        Shares s = shares_of(shares, k);
        if (kinds[k] == 0) {
            REAL next_d[HELD], next_v[HELD];
#pragma unroll
            for (i32 e = 0; e < HELD; ++e) {
                i32 j = thread + e * BLOCK;
                if (j >= 2 * length - 1 && j < size) {
                    if (MOMENTS)
                        join(x[j], x[j - lag], d[j], d[j - lag], v[j], v[j - lag], s, next_d[e], next_v[e]);
                    else
                        next_d[e] = joined_mean(x[j], x[j - lag], d[j], d[j - lag], s.w);
                }
            }
            __syncthreads();
#pragma unroll
            for (i32 e = 0; e < HELD; ++e) {
                i32 j = thread + e * BLOCK;
                if (j >= 2 * length - 1 && j < size) {
                    d[j] = next_d[e];
                    if (MOMENTS) v[j] = next_v[e];
                }
            }
            __syncthreads();
            length *= 2;
        } else {
#pragma unroll
            for (i32 e = 0; e < SHOWN; ++e) {
                i32 j = period - 1 + thread + e * BLOCK;
                if (kinds[k] == 1) {
                    got_d[e] = d[j];
                    if (MOMENTS) got_v[e] = v[j];
                } else if (MOMENTS) {
                    join(x[j], x[j - lag], got_d[e], d[j - lag], got_v[e], v[j - lag], s, got_d[e], got_v[e]);
                } else {
                    got_d[e] = joined_mean(x[j], x[j - lag], got_d[e], d[j - lag], s.w);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
sma(const REAL* prices, i64 time, i64 chunks, i32 period, i32 joins, const i32* kinds, const i32* lags, const REAL* shares,
    REAL nan, REAL* middle) {
    extern __shared__ REAL space[];
    i64 row = blockIdx.x / chunks, start = blockIdx.x % chunks * CHUNK;
    i32 size = CHUNK + period - 1;
    REAL got_d[SHOWN], got_v[SHOWN];
    windows_of<false>(prices + row * time, time, start, period, joins, kinds, lags, shares, nan, space, space + size, space,
                      got_d, got_v);
#pragma unroll
    for (i32 e = 0; e < SHOWN; ++e) {
        i32 i = (i32)threadIdx.x + e * BLOCK;
        if (start + i < time) middle[row * time + start + i] = plain(space[period - 1 + i] + got_d[e], nan);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
bollinger(const REAL* prices, i64 time, i64 chunks, i32 period, i32 joins, const i32* kinds, const i32* lags,
          const REAL* shares, REAL nan, REAL width, REAL* upper, REAL* middle, REAL* lower) {
    extern __shared__ REAL space[];
    i64 row = blockIdx.x / chunks, start = blockIdx.x % chunks * CHUNK;
    i32 size = CHUNK + period - 1;
    REAL got_d[SHOWN], got_v[SHOWN];
    windows_of<true>(prices + row * time, time, start, period, joins, kinds, lags, shares, nan, space, space + size,
                     space + 2 * size, got_d, got_v);
#pragma unroll
    for (i32 e = 0; e < SHOWN; ++e) {
        i32 i = (i32)threadIdx.x + e * BLOCK;
        if (start + i >= time) continue;
        i64 at = row * time + start + i;
        REAL mean = space[period - 1 + i] + got_d[e], reach = width * sqrt(got_v[e]);
        upper[at] = plain(mean + reach, nan);
        middle[at] = plain(mean, nan);
        lower[at] = plain(mean - reach, nan);
    }
}

// A NaN change is neither <= 0 nor >= 0 and stays in both sums.
__device__ __forceinline__ REAL gain_of(REAL change) { return change <= 0 ? (REAL)0 : change; }
__device__ __forceinline__ REAL loss_of(REAL change) { return change >= 0 ? (REAL)0 : -change; }

__device__ __forceinline__ REAL strength(REAL gains, REAL losses, REAL flat, REAL nan) {
    REAL total = gains + losses;
    return total == 0 ? flat : plain((REAL)100 * (gains / total) + (total - total), nan);  // NaN if one overflowed
}

extern "C" __global__ void __launch_bounds__(BLOCK)
cutler(const REAL* prices, i64 time, i64 chunks, i32 period, i32 joins, const i32* kinds, const i32* lags, REAL nan,
       REAL flat, REAL* rsi) {
    extern __shared__ REAL space[];
    i64 row = blockIdx.x / chunks, start = blockIdx.x % chunks * CHUNK;
    i32 size = CHUNK + period - 1, thread = (i32)threadIdx.x;
    REAL *gains = space, *losses = space + size;
    const REAL* x = prices + row * time;
    for (i32 j = thread; j < size; j += BLOCK) {
        i64 bar = start + j - (period - 1);
        REAL change = bar >= 1 && bar < time ? x[bar] - x[bar - 1] : nan;
        gains[j] = gain_of(change);
        losses[j] = loss_of(change);
    }
    __syncthreads();
    REAL got_up[SHOWN], got_down[SHOWN];
    i32 length = 1;
    for (i32 k = 0; k < joins; ++k) {
        i32 lag = lags[k];
        if (kinds[k] == 0) {
            REAL up[HELD], down[HELD];
#pragma unroll
            for (i32 e = 0; e < HELD; ++e) {
                i32 j = thread + e * BLOCK;
                if (j >= 2 * length - 1 && j < size) {
                    up[e] = gains[j] + gains[j - lag];
                    down[e] = losses[j] + losses[j - lag];
                }
            }
            __syncthreads();
#pragma unroll
            for (i32 e = 0; e < HELD; ++e) {
                i32 j = thread + e * BLOCK;
                if (j >= 2 * length - 1 && j < size) {
                    gains[j] = up[e];
                    losses[j] = down[e];
                }
            }
            __syncthreads();
            length *= 2;
        } else {
#pragma unroll
            for (i32 e = 0; e < SHOWN; ++e) {
                i32 j = period - 1 + thread + e * BLOCK;
                got_up[e] = kinds[k] == 1 ? gains[j] : got_up[e] + gains[j - lag];
                got_down[e] = kinds[k] == 1 ? losses[j] : got_down[e] + losses[j - lag];
            }
        }
    }
#pragma unroll
    for (i32 e = 0; e < SHOWN; ++e) {
        i32 i = thread + e * BLOCK;
        if (start + i < time) rsi[row * time + start + i] = strength(got_up[e], got_down[e], flat, nan);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
join_means(const REAL* x, i64 time, i64 size, i64 lag, REAL w, REAL nan, const REAL* d_new, const REAL* d_old, REAL* d) {
    i64 i = blockIdx.x * (i64)BLOCK + threadIdx.x;
    if (i >= size) return;
    d[i] = i % time >= lag ? joined_mean(x[i], x[i - lag], d_new[i], d_old[i - lag], w) : nan;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
join_moments(const REAL* x, i64 time, i64 size, i64 lag, REAL w, REAL u, REAL wu, REAL nan, const REAL* d_new,
             const REAL* d_old, const REAL* v_new, const REAL* v_old, REAL* d, REAL* v) {
    i64 i = blockIdx.x * (i64)BLOCK + threadIdx.x;
    if (i >= size) return;
    if (i % time >= lag) {
        join(x[i], x[i - lag], d_new[i], d_old[i - lag], v_new[i], v_old[i - lag], {w, u, wu}, d[i], v[i]);
    } else {
        d[i] = nan;
        v[i] = nan;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
join_sums(i64 time, i64 size, i64 lag, REAL nan, const REAL* sum_new, const REAL* sum_old, REAL* sum) {
    i64 i = blockIdx.x * (i64)BLOCK + threadIdx.x;
    if (i >= size) return;
    sum[i] = i % time >= lag ? sum_new[i] + sum_old[i - lag] : nan;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
changes(const REAL* x, i64 time, i64 size, REAL nan, REAL* gains, REAL* losses) {
    i64 i = blockIdx.x * (i64)BLOCK + threadIdx.x;
    if (i >= size) return;
    REAL change = i % time >= 1 ? x[i] - x[i - 1] : nan;
    gains[i] = gain_of(change);
    losses[i] = loss_of(change);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
show_means(const REAL* x, i64 size, REAL nan, const REAL* d, REAL* middle) {
    i64 i = blockIdx.x * (i64)BLOCK + threadIdx.x;
    if (i < size) middle[i] = plain(x[i] + d[i], nan);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
show_bands(const REAL* x, i64 size, REAL nan, REAL width, const REAL* d, const REAL* v, REAL* upper, REAL* middle,
           REAL* lower) {
    i64 i = blockIdx.x * (i64)BLOCK + threadIdx.x;
    if (i >= size) return;
    REAL mean = x[i] + d[i], reach = width * sqrt(v[i]);
    upper[i] = plain(mean + reach, nan);
    middle[i] = plain(mean, nan);
    lower[i] = plain(mean - reach, nan);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
show_strengths(i64 size, REAL nan, REAL flat, const REAL* gains, const REAL* losses, REAL* rsi) {
    i64 i = blockIdx.x * (i64)BLOCK + threadIdx.x;
    if (i < size) rsi[i] = strength(gains[i], losses[i], flat, nan);
}
