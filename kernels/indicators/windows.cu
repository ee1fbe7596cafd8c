// Moving averages, Bollinger bands, Cutler's RSI at a cost that does not grow with the window (mathematics: windows.py).
//
// Prices are (rows, time), row by row; the first column is bar `origin` of its row, and numbers are written for the columns
// after the first `halo`, (rows, time - halo). A row is cut into blocks of `period` bars, a block into eights, and
//
//   sum of a window = S[k] of the block before + P[k] of its own,  each ((h + g) + e) + scan within the eight,
//
// with e over the eights of a group of 16, g over the groups of 16 groups (2,048 bars), h over the rest.
//
// *_short  up to 12 bars: a block of 128 threads per 1,024 bars; a thread has its 8 bars and the 12 before them in
//          registers and adds bar by bar.
// sma, bollinger, cutler  up to 2,048 bars: a block of 128 threads (256 for windows above 512 bars) has as many blocks of
//          bars as it has threads for their eights, and the block before them, in shared memory. A thread sums an eight of
//          P and the eight of S with the same k; e and g come from the others' sums in shared memory, added in the order
//          above by every thread that needs them, which neighbours read at the same time; then it scans both eights. The
//          results leave through shared memory. One pass.
// *_totals, *_long  longer windows: a block of 256 threads has 2,048 bars of one block of bars, and those of the block before
//          with the same k. The first kernel leaves the sums of its 2,048 bars, 2 or 4 numbers; the second adds those before
//          its own in order, for h, and goes on as above. Two passes, whatever the window.
//
// Bytes per bar in float64: 16 (sma, cutler), 32 (bollinger). The halo, one block of bars in 43 for a period of 20 and one in
// two above 1,024, and of long windows a second and third reading of the prices, come from L2 where a period of prices
// fits there. Operations of float64 per bar: 16 (sma), 55 with the root (bollinger), 60 with the division (cutler); an H200
// has time for 55, or for 110 where 32 bytes are moved. Instructions of all kinds per bar, for a period of 20, counted in the
// code for sm_90: 105 (sma), 200 (bollinger and cutler); an H200 issues 103 in the time of 16 bytes and 206 in that of 32. So
// bandwidth and issue are about even for sma and bollinger, and cutler waits for its instructions. In float32, half the bytes
// at nearly as many instructions, all three do. A bar costs 10 of them to load and 13 to store where all bars are there.
// Registers in float64: up to 74 (sma), 107 (the others), without spills. Shared memory for a period of 20: 11 KiB (sma), 23 KiB
// (bollinger) a block; an eight takes nine slots, so that threads that walk along their eights never meet in a bank. 9 and
// 5 blocks of 128 threads fit an H200's multiprocessor, eight loads in flight per thread. Lanes load single numbers, side by
// side: blocks of bars begin anywhere, so that wider loads would not be aligned.
// Not yet measured on a GPU.

#include "device/types.cuh"

#define SHORT 12
#define EIGHT 8
#define SLOTS 9  // of an eight in shared memory
#define GROUP 16
#define GROUPS 32                  // of all blocks of bars of a block of threads, at most
#define THREADS 256                // at most
#define SHORT_THREADS 128
#define SHORT_BARS (SHORT_THREADS * EIGHT)
#define LONG_BARS (THREADS * EIGHT)  // 16 groups of 16 eights
#define IN_FLIGHT 8
#define PORTION (32 * IN_FLIGHT)

// One NaN for every reason, so that the bytes do not depend on which operation met it.
__device__ __forceinline__ REAL plain(REAL value, REAL nan) { return value == value ? value : nan; }

// What a window sums, relative to its anchor, and what becomes of the sums. `own` is the width, or the RSI of flat prices.
struct Numbers {
    REAL part, own, nan;
};

struct Means {
    static const i32 SUMS = 1, SHOWN = 1;
    static const bool CHANGES = false;
    template <i32 SUM> __device__ static __forceinline__ REAL term(REAL x, REAL anchor) { return x - anchor; }
    __device__ static __forceinline__ void show(REAL anchor, REAL sum, REAL, Numbers law, REAL* shown) {
        shown[0] = anchor + sum * law.part;
    }
};

struct Bands {
    static const i32 SUMS = 2, SHOWN = 2;
    static const bool CHANGES = false;
    template <i32 SUM> __device__ static __forceinline__ REAL term(REAL x, REAL anchor) {
        REAL difference = x - anchor;
        return SUM == 0 ? difference : difference * difference;
    }
    __device__ static __forceinline__ void show(REAL anchor, REAL sum, REAL sum_of_squares, Numbers law, REAL* shown) {
        REAL mean = sum * law.part, squares = sum_of_squares - mean * sum;
        // Rounding may leave less than nothing; and where the squares overflowed, the difference may be no number.
        squares = squares >= 0 ? squares : squares < 0 ? (REAL)0 : sum_of_squares;
        shown[0] = anchor + mean;
        shown[1] = law.own * sqrt(squares * law.part);
    }
};

struct Strengths {
    static const i32 SUMS = 2, SHOWN = 1;
    static const bool CHANGES = true;
    // A NaN change is neither <= 0 nor >= 0 and stays in both sums.
    template <i32 SUM> __device__ static __forceinline__ REAL term(REAL change, REAL) {
        if (SUM == 0) return change <= 0 ? (REAL)0 : change;
        return change >= 0 ? (REAL)0 : (REAL)0 - change;
    }
    __device__ static __forceinline__ void show(REAL, REAL gains, REAL losses, Numbers law, REAL* shown) {
        REAL total = gains + losses;
        // total - total is no number where gains or losses overflowed.
        shown[0] = total == 0 ? law.own : plain((REAL)100 * (gains / total) + (total - total), law.nan);
    }
};

// Rows of prices, or of a part of their columns.
struct Rows {
    const REAL* prices;
    i64 time, origin, halo;
    i32 period;
};

__device__ __forceinline__ i32 clamped(i64 count, i32 most) { return count < 0 ? 0 : count < most ? (i32)count : most; }

// The prices, or the changes, of `count` bars of a row from `bar` on; where there is none, something. `full`: all are there.
// `full` is the same for all threads of a block, and callers ask it once, around their loops: asked for each bar, the limits
// are worked out again for each, as there are no registers to keep them in.
template <class Law> struct Bars {
    const REAL* x;
    i32 low, high, second;
    bool full;
    REAL nan;

    __device__ __forceinline__ Bars(const Rows& rows, i64 row, i64 bar, i32 count, REAL nan) : nan(nan) {
        i64 column = bar - rows.origin;
        x = rows.prices + row * rows.time + column;
        low = clamped(-column, count);
        high = clamped(rows.time - column, count);
        second = clamped(1 - column, count);
        full = low == 0 && high == count && !(Law::CHANGES && second > 0);
    }

    template <bool FULL> __device__ __forceinline__ REAL at(i32 j) const {
        if (FULL) return Law::CHANGES ? x[j] - x[j - 1] : x[j];
        if (j < low || j >= high) return 0;
        if (!Law::CHANGES) return x[j];
        return j >= second ? x[j] - x[j - 1] : nan;
    }
};

struct Outputs {
    REAL *upper, *middle, *lower;  // the middle alone where one number is shown
};

// The results of `count` bars of a row from `bar` on. `full`: all are wanted and have a whole window.
template <class Law> struct Results {
    Outputs out;
    i32 low, high, whole;
    bool full;
    REAL nan;

    __device__ __forceinline__ Results(const Rows& rows, i64 row, i64 bar, i32 count, REAL nan, Outputs all) : out(all), nan(nan) {
        i64 shown = rows.time - rows.halo, column = bar - rows.origin - rows.halo, at = row * shown + column;
        out.middle += at;
        if (Law::SHOWN == 2) {
            out.upper += at;
            out.lower += at;
        }
        low = clamped(-column, count);
        high = clamped(shown - column, count);
        whole = clamped(rows.period - 1 + Law::CHANGES - bar, count);
        full = low == 0 && high == count && whole == 0;
    }

    // `first` is the middle, and `second` the reach of bands.
    template <bool FULL> __device__ __forceinline__ void put(i32 j, REAL first, REAL second) const {
        if (!FULL && (j < low || j >= high)) return;
        bool shown = FULL || j >= whole;
        out.middle[j] = shown ? plain(first, nan) : nan;
        if (Law::SHOWN == 2) {
            out.upper[j] = shown ? plain(first + second, nan) : nan;
            out.lower[j] = shown ? plain(first - second, nan) : nan;
        }
    }
};

__device__ __forceinline__ i32 slot(i32 bar) { return bar + (i32)((u32)bar / EIGHT); }

// ---------------------------------------------------------------- up to 12 bars

template <class Law, bool FULL, i32 BARS> __device__ __forceinline__ void load_short(const Bars<Law>& bars, REAL* x) {
    i32 thread = (i32)threadIdx.x;
    REAL loaded[IN_FLIGHT + 1];
#pragma unroll
    for (i32 e = 0; e <= IN_FLIGHT; ++e) {
        i32 j = thread + e * SHORT_THREADS;
        if (j < BARS) loaded[e] = bars.template at<FULL>(j);
    }
#pragma unroll
    for (i32 e = 0; e <= IN_FLIGHT; ++e) {
        i32 j = thread + e * SHORT_THREADS;
        if (j < BARS) x[slot(j)] = loaded[e];
    }
}

template <class Law, bool FULL>
__device__ __forceinline__ void put_short(const Results<Law>& results, const REAL* first, const REAL* x) {
#pragma unroll
    for (i32 e = 0; e < EIGHT; ++e) {
        i32 j = (i32)threadIdx.x + e * SHORT_THREADS;
        results.template put<FULL>(j, first[e], Law::SHOWN == 2 ? x[slot(j)] : (REAL)0);
    }
}

template <class Law> __device__ __forceinline__ void show_short(const Rows& rows, i64 tiles, Numbers law, Outputs out) {
    const i32 before = 2 * EIGHT;  // bars before the tile, in whole eights
    __shared__ REAL x[(SHORT_BARS + before) / EIGHT * SLOTS];
    i64 row = blockIdx.x / tiles, start = rows.origin + rows.halo + blockIdx.x % tiles * SHORT_BARS;
    i32 thread = (i32)threadIdx.x;
    Bars<Law> bars(rows, row, start - before, SHORT_BARS + before, law.nan);
    if (bars.full)
        load_short<Law, true, SHORT_BARS + before>(bars, x);
    else
        load_short<Law, false, SHORT_BARS + before>(bars, x);
    __syncthreads();
    REAL near[SHORT + EIGHT];
#pragma unroll
    for (i32 j = 0; j < SHORT + EIGHT; ++j) near[j] = x[thread * SLOTS + slot(j + before - SHORT)];
    REAL sum[EIGHT][2];
#pragma unroll
    for (i32 k = 0; k < EIGHT; ++k) sum[k][0] = sum[k][1] = 0;
#pragma unroll
    for (i32 m = Law::CHANGES ? 0 : 1; m < SHORT; ++m) {
        if (m >= rows.period) break;
#pragma unroll
        for (i32 k = 0; k < EIGHT; ++k) {
            REAL x = near[SHORT + k - m], newest = near[SHORT + k];
            sum[k][0] = sum[k][0] + Law::template term<0>(x, newest);
            if (Law::SUMS == 2) sum[k][1] = sum[k][1] + Law::template term<1>(x, newest);
        }
    }
    __syncthreads();
#pragma unroll
    for (i32 k = 0; k < EIGHT; ++k) {
        REAL shown[2];
        Law::show(near[SHORT + k], sum[k][0], sum[k][1], law, shown);
        x[thread * SLOTS + k] = shown[0];
        if (Law::SHOWN == 2) sum[k][0] = shown[1];
    }
    __syncthreads();
    REAL first[EIGHT];
#pragma unroll
    for (i32 e = 0; e < EIGHT; ++e) first[e] = x[slot(thread + e * SHORT_THREADS)];
    if (Law::SHOWN == 2) {
        __syncthreads();
#pragma unroll
        for (i32 k = 0; k < EIGHT; ++k) x[thread * SLOTS + k] = sum[k][0];
        __syncthreads();
    }
    Results<Law> results(rows, row, start, SHORT_BARS, law.nan, out);
    if (results.full)
        put_short<Law, true>(results, first, x);
    else
        put_short<Law, false>(results, first, x);
}

// ---------------------------------------------------------------- blocks of bars

// Where a thread's eight of P lies in shared memory, and that of S with the same k; of S, `left` bars are in the block.
struct Place {
    const REAL *own, *before;
    i32 left;
    REAL anchor;
};

template <class Law, i32 SUM> __device__ __forceinline__ REAL own_term(const Place& place, i32 k) {
    return Law::template term<SUM>(place.own[k], place.anchor);
}

template <class Law, i32 SUM> __device__ __forceinline__ REAL term_before(const Place& place, i32 k) {
    REAL term = Law::template term<SUM>(place.before[slot(k + 1)], place.anchor);
    return k < place.left ? term : (REAL)0;
}

// What the scans of an eight end with, without the scans.
template <class Law, i32 SUM> __device__ __forceinline__ void sum_eight(const Place& place, REAL& own, REAL& before) {
    REAL x[EIGHT], y[EIGHT];
#pragma unroll
    for (i32 k = 0; k < EIGHT; ++k) {
        x[k] = own_term<Law, SUM>(place, k);
        y[k] = term_before<Law, SUM>(place, k);
    }
    own = ((x[7] + x[6]) + (x[5] + x[4])) + ((x[3] + x[2]) + (x[1] + x[0]));
    before = ((y[0] + y[1]) + (y[2] + y[3])) + ((y[4] + y[5]) + (y[6] + y[7]));
}

// The sums of the windows that end in the eight; `own` and `before` are the sums of the eights before it.
template <class Law, i32 SUM>
__device__ __forceinline__ void sum_windows(const Place& place, REAL own, REAL before, REAL* sum) {
    REAL x[EIGHT];
#pragma unroll
    for (i32 k = 0; k < EIGHT; ++k) {
        x[k] = own_term<Law, SUM>(place, k);
        sum[k] = term_before<Law, SUM>(place, k);
    }
#pragma unroll
    for (i32 reach = 1; reach < EIGHT; reach *= 2)
#pragma unroll
        for (i32 k = 0; k + reach < EIGHT; ++k) {
            i32 j = EIGHT - 1 - k;
            x[j] = x[j] + x[j - reach];
            sum[k] = sum[k] + sum[k + reach];
        }
#pragma unroll
    for (i32 k = 0; k < EIGHT; ++k) sum[k] = (before + sum[k]) + (own + x[k]);
}

// Totals of eights and of groups, shared: of P for each sum, then of S.
template <class Law> struct Totals {
    REAL* eights;  // [2 * SUMS][threads]
    REAL* groups;  // [2 * SUMS][GROUPS]
    i32 threads;
    bool grouped;  // blocks of bars have several groups, or the totals of groups are wanted
};

// (h + g) + e for P and S of this thread, whose block of bars has the threads first .. first + eights - 1 and keeps its groups
// from place `group` on. `own` and `before` come with h. Called by all threads; those without an eight have eights = 0.
template <class Law>
__device__ __forceinline__ void sum_before(const Totals<Law>& totals, const Place& place, i32 first, i32 eights, i32 group,
                                           REAL* own, REAL* before) {
    i32 mine = (i32)threadIdx.x, s = mine - first, n = totals.threads;
    sum_eight<Law, 0>(place, totals.eights[mine], totals.eights[Law::SUMS * n + mine]);
    if (Law::SUMS == 2) sum_eight<Law, Law::SUMS - 1>(place, totals.eights[n + mine], totals.eights[3 * n + mine]);
    __syncthreads();
    i32 from = s / GROUP * GROUP, to = from + GROUP < eights ? from + GROUP : eights;
    REAL e_own[Law::SUMS], e_before[Law::SUMS];
#pragma unroll
    for (i32 i = 0; i < Law::SUMS; ++i) {
        const REAL *of_own = totals.eights + i * n + first, *of_before = totals.eights + (Law::SUMS + i) * n + first;
        e_own[i] = e_before[i] = 0;
#pragma unroll 1
        for (i32 other = from; other < s; ++other) e_own[i] = e_own[i] + of_own[other];
#pragma unroll 1
        for (i32 other = to - 1; other > s; --other) e_before[i] = e_before[i] + of_before[other];
        if (!totals.grouped || eights == 0) continue;
        if (s == to - 1) totals.groups[i * GROUPS + group + s / GROUP] = e_own[i] + of_own[s];
        if (s == from) totals.groups[(Law::SUMS + i) * GROUPS + group + s / GROUP] = e_before[i] + of_before[s];
    }
    REAL g_own[Law::SUMS], g_before[Law::SUMS];
#pragma unroll
    for (i32 i = 0; i < Law::SUMS; ++i) g_own[i] = g_before[i] = 0;
    if (totals.grouped) {
        __syncthreads();
        i32 groups = (eights + GROUP - 1) / GROUP;
#pragma unroll
        for (i32 i = 0; i < Law::SUMS; ++i) {
            const REAL *of_own = totals.groups + i * GROUPS + group, *of_before = of_own + Law::SUMS * GROUPS;
#pragma unroll 1
            for (i32 other = 0; other < s / GROUP; ++other) g_own[i] = g_own[i] + of_own[other];
#pragma unroll 1
            for (i32 other = groups - 1; other > s / GROUP; --other) g_before[i] = g_before[i] + of_before[other];
        }
    }
#pragma unroll
    for (i32 i = 0; i < Law::SUMS; ++i) {
        own[i] = (own[i] + g_own[i]) + e_own[i];
        before[i] = (before[i] + g_before[i]) + e_before[i];
    }
}

// Put what the windows of this thread's eight show at `eight`, and the second number of each `stride` after the first, when
// all threads have read what lies there.
template <class Law>
__device__ __forceinline__ void show(const Place& place, const REAL* own, const REAL* before, Numbers law, bool active, REAL* eight,
                                     i32 stride) {
    REAL sum[Law::SUMS][EIGHT];
    sum_windows<Law, 0>(place, own[0], before[0], sum[0]);
    if (Law::SUMS == 2) sum_windows<Law, Law::SUMS - 1>(place, own[Law::SUMS - 1], before[Law::SUMS - 1], sum[Law::SUMS - 1]);
    __syncthreads();
    if (!active) return;
#pragma unroll
    for (i32 k = 0; k < EIGHT; ++k) {
        REAL shown[2];
        Law::show(place.anchor, sum[0][k], sum[Law::SUMS - 1][k], law, shown);
        eight[k] = shown[0];
        if (Law::SHOWN == 2) eight[stride + k] = shown[1];
    }
}

// How bars are dealt to blocks of threads: `eights` of a block of bars, `many` blocks of bars at a time, and
// `reciprocal` = 2^32 / period + 1, rounded down, with which a small number is divided by the period.
struct Deal {
    i64 first, tiles;
    i32 eights, many;
    u32 reciprocal;
    i32 slots;
};

// Where bar j of the blocks of bars that a block of threads has lies in shared memory.
__device__ __forceinline__ i32 dealt(i32 j, i32 period, const Deal& deal) {
    i32 q = (i32)__umulhi((u32)j, deal.reciprocal);
    return q * deal.eights * SLOTS + slot(j - q * period);
}

// A warp takes PORTION bars at a time, so that the addresses of a lane's bars differ by constants. INSIDE: none is past the
// last.
template <class Law, bool FULL, bool INSIDE>
__device__ __forceinline__ void load_portion(const Bars<Law>& bars, i32 j0, i32 count, i32 period, const Deal& deal,
                                             REAL* space) {
    REAL loaded[IN_FLIGHT];
#pragma unroll
    for (i32 e = 0; e < IN_FLIGHT; ++e)
        if (INSIDE || j0 + e * 32 < count) loaded[e] = bars.template at<FULL>(j0 + e * 32);
#pragma unroll
    for (i32 e = 0; e < IN_FLIGHT; ++e)
        if (INSIDE || j0 + e * 32 < count) space[dealt(j0 + e * 32, period, deal)] = loaded[e];
}

template <class Law, bool FULL>
__device__ __forceinline__ void load_blocks(const Bars<Law>& bars, i32 count, i32 period, const Deal& deal, REAL* space) {
    i32 lane = (i32)threadIdx.x % 32;
    for (i32 from = (i32)threadIdx.x / 32 * PORTION; from < count; from += (i32)blockDim.x / 32 * PORTION)
        if (FULL && from + PORTION <= count)
            load_portion<Law, FULL, FULL>(bars, from + lane, count, period, deal, space);
        else
            load_portion<Law, FULL, false>(bars, from + lane, count, period, deal, space);
}

template <class Law, bool FULL, bool INSIDE>
__device__ __forceinline__ void put_portion(const Results<Law>& results, i32 j0, i32 period, const Deal& deal, const REAL* space,
                                            i32 stride) {
#pragma unroll
    for (i32 e = 0; e < IN_FLIGHT; ++e) {
        i32 j = j0 + e * 32, at = dealt(j, period, deal);
        if (INSIDE || j < results.high)
            results.template put<FULL>(j, space[at], Law::SHOWN == 2 ? space[at + stride] : (REAL)0);
    }
}

template <class Law, bool FULL>
__device__ __forceinline__ void put_blocks(const Results<Law>& results, i32 period, const Deal& deal, const REAL* space,
                                           i32 stride) {
    i32 lane = (i32)threadIdx.x % 32;
    for (i32 from = (i32)threadIdx.x / 32 * PORTION; from < results.high; from += (i32)blockDim.x / 32 * PORTION)
        if (FULL && from + PORTION <= results.high)
            put_portion<Law, FULL, FULL>(results, from + lane, period, deal, space, stride);
        else
            put_portion<Law, FULL, false>(results, from + lane, period, deal, space, stride);
}

template <class Law> __device__ __forceinline__ void show_blocks(const Rows& rows, Deal deal, Numbers law, Outputs out) {
    extern __shared__ REAL space[];
    __shared__ REAL groups[2 * Law::SUMS * GROUPS];
    i32 thread = (i32)threadIdx.x, threads = (i32)blockDim.x, width = deal.eights * SLOTS;
    i64 row = blockIdx.x / deal.tiles, block = deal.first + blockIdx.x % deal.tiles * deal.many;
    i64 start = block * rows.period;
    i32 count = (deal.many + 1) * rows.period;
    Bars<Law> bars(rows, row, start - rows.period, count, law.nan);
    if (bars.full)
        load_blocks<Law, true>(bars, count, rows.period, deal, space);
    else
        load_blocks<Law, false>(bars, count, rows.period, deal, space);
    __syncthreads();
    i32 mine = thread / deal.eights;
    bool active = mine < deal.many;
    if (!active) mine = 0;
    i32 first = active ? mine * deal.eights : thread, s = thread - first;
    const REAL* here = space + (mine + 1) * width + s * SLOTS;
    Place place = {here, here - width, rows.period - 1 - s * EIGHT, space[(mine + 1) * width]};
    REAL own[Law::SUMS], before[Law::SUMS];
#pragma unroll
    for (i32 i = 0; i < Law::SUMS; ++i) own[i] = before[i] = 0;
    Totals<Law> totals = {space + deal.slots, groups, threads, deal.eights > GROUP};
    sum_before<Law>(totals, place, first, active ? deal.eights : 0, mine * ((deal.eights + GROUP - 1) / GROUP), own, before);
    i32 stride = deal.many * width;
    show<Law>(place, own, before, law, active, space + mine * width + s * SLOTS, stride);
    __syncthreads();
    Results<Law> results(rows, row, start, count - rows.period, law.nan, out);
    if (results.full)
        put_blocks<Law, true>(results, rows.period, deal, space, stride);
    else
        put_blocks<Law, false>(results, rows.period, deal, space, stride);
}

// ---------------------------------------------------------------- blocks of bars longer than shared memory

template <class Law, bool FULL> __device__ __forceinline__ void load_eights(const Bars<Law>& bars, REAL* space) {
    i32 thread = (i32)threadIdx.x;
    REAL loaded[EIGHT];
#pragma unroll
    for (i32 e = 0; e < EIGHT; ++e) loaded[e] = bars.template at<FULL>(thread + e * THREADS);
#pragma unroll
    for (i32 e = 0; e < EIGHT; ++e) space[slot(thread + e * THREADS)] = loaded[e];
}

template <class Law> __device__ __forceinline__ void load_long(const Bars<Law>& bars, REAL* space) {
    if (bars.full)
        load_eights<Law, true>(bars, space);
    else
        load_eights<Law, false>(bars, space);
}

template <class Law, bool FULL>
__device__ __forceinline__ void put_long(const Results<Law>& results, const REAL* space, i32 stride) {
    for (i32 j = (i32)threadIdx.x; j < results.high; j += THREADS)
        results.template put<FULL>(j, space[slot(j)], Law::SHOWN == 2 ? space[slot(j) + stride] : (REAL)0);
}

// 2,048 bars of a block, and what a thread does with them in both kernels.
template <class Law> struct Stretch {
    i64 row, block, at;  // `at`: place among all stretches
    i32 number, bars, eights;
    REAL anchor;

    __device__ __forceinline__ Stretch(const Rows& rows, i64 first, i64 blocks, i32 stretches, REAL nan) {
        at = blockIdx.x;
        number = (i32)(at % stretches);
        block = first + at / stretches % blocks;
        row = at / stretches / blocks;
        bars = rows.period - number * LONG_BARS < LONG_BARS ? rows.period - number * LONG_BARS : LONG_BARS;
        eights = (bars + EIGHT - 1) / EIGHT;
        anchor = Bars<Law>(rows, row, block * rows.period, 1, nan).template at<false>(0);
    }

    // Fill `here` with the stretch of the block, and `there` with that of the block before and the bar after it.
    __device__ __forceinline__ Place load(const Rows& rows, REAL* here, REAL* there, REAL nan) const {
        i32 thread = (i32)threadIdx.x;
        i64 start = block * rows.period + (i64)number * LONG_BARS;
        Bars<Law> own(rows, row, start, LONG_BARS, nan), before(rows, row, start - rows.period, LONG_BARS + 1, nan);
        load_long(own, here);
        load_long(before, there);
        if (thread == 0) there[slot(LONG_BARS)] = before.template at<false>(LONG_BARS);
        __syncthreads();
        i32 s = thread * SLOTS;
        return {here + s, there + s, rows.period - 1 - number * LONG_BARS - thread * EIGHT, anchor};
    }
};

// Sums of stretches: of P for each sum, then of S.
template <class Law>
__device__ __forceinline__ void sum_stretches(const Rows& rows, i64 first, i64 blocks, i32 stretches, REAL nan, REAL* sums) {
    extern __shared__ REAL space[];
    __shared__ REAL groups[2 * Law::SUMS * GROUPS];
    const i32 slots = LONG_BARS / EIGHT * SLOTS;
    Stretch<Law> stretch(rows, first, blocks, stretches, nan);
    Place place = stretch.load(rows, space, space + slots, nan);
    REAL own[Law::SUMS], before[Law::SUMS];
#pragma unroll
    for (i32 i = 0; i < Law::SUMS; ++i) own[i] = before[i] = 0;
    Totals<Law> totals = {space + 2 * slots + 1, groups, THREADS, true};
    i32 thread = (i32)threadIdx.x, eights = thread < stretch.eights ? stretch.eights : 0;
    sum_before<Law>(totals, place, eights ? 0 : thread, eights, 0, own, before);
    if (thread >= 2 * Law::SUMS) return;
    REAL sum = 0;
    i32 count = (stretch.eights + GROUP - 1) / GROUP;
    for (i32 i = 0; i < count; ++i) sum = sum + groups[thread * GROUPS + (thread < Law::SUMS ? i : count - 1 - i)];
    sums[stretch.at * 2 * Law::SUMS + thread] = sum;
}

template <class Law>
__device__ __forceinline__ void show_stretches(const Rows& rows, i64 first, i64 blocks, i32 stretches, const REAL* sums, Numbers law,
                                               Outputs out) {
    extern __shared__ REAL space[];
    __shared__ REAL groups[2 * Law::SUMS * GROUPS], others[2 * Law::SUMS];
    const i32 slots = LONG_BARS / EIGHT * SLOTS;
    Stretch<Law> stretch(rows, first, blocks, stretches, law.nan);
    i32 thread = (i32)threadIdx.x, eights = thread < stretch.eights ? stretch.eights : 0;
    if (thread < 2 * Law::SUMS) {
        const REAL* of_block = sums + (stretch.at - stretch.number) * 2 * Law::SUMS + thread;
        REAL sum = 0;
        if (thread < Law::SUMS)
            for (i32 other = 0; other < stretch.number; ++other) sum = sum + of_block[other * 2 * Law::SUMS];
        else
            for (i32 other = stretches - 1; other > stretch.number; --other) sum = sum + of_block[other * 2 * Law::SUMS];
        others[thread] = sum;
    }
    Place place = stretch.load(rows, space, space + slots, law.nan);
    REAL own[Law::SUMS], before[Law::SUMS];
#pragma unroll
    for (i32 i = 0; i < Law::SUMS; ++i) {
        own[i] = others[i];
        before[i] = others[Law::SUMS + i];
    }
    Totals<Law> totals = {space + 2 * slots + 1, groups, THREADS, true};
    sum_before<Law>(totals, place, eights ? 0 : thread, eights, 0, own, before);
    show<Law>(place, own, before, law, true, space + thread * SLOTS, slots);
    __syncthreads();
    i64 start = stretch.block * rows.period + (i64)stretch.number * LONG_BARS;
    Results<Law> results(rows, stretch.row, start, stretch.bars, law.nan, out);
    if (results.full)
        put_long<Law, true>(results, space, slots);
    else
        put_long<Law, false>(results, space, slots);
}

// ---------------------------------------------------------------- kernels


extern "C" __global__ void __launch_bounds__(SHORT_THREADS, 6)
sma_short(const REAL* prices, i64 time, i64 origin, i64 halo, i32 period, i64 tiles, REAL part, REAL own, REAL nan,
          REAL* middle) {
    show_short<Means>({prices, time, origin, halo, period}, tiles, {part, own, nan}, {nullptr, middle, nullptr});
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
sma(const REAL* prices, i64 time, i64 origin, i64 halo, i32 period, i64 first, i64 tiles, i32 eights, i32 many,
    u32 reciprocal, i32 slots, REAL part, REAL own, REAL nan, REAL* middle) {
    show_blocks<Means>({prices, time, origin, halo, period}, {first, tiles, eights, many, reciprocal, slots},
                      {part, own, nan}, {nullptr, middle, nullptr});
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
sma_totals(const REAL* prices, i64 time, i64 origin, i64 halo, i32 period, i64 first, i64 blocks, i32 stretches,
           REAL nan, REAL* sums) {
    sum_stretches<Means>({prices, time, origin, halo, period}, first, blocks, stretches, nan, sums);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
sma_long(const REAL* prices, i64 time, i64 origin, i64 halo, i32 period, i64 first, i64 blocks, i32 stretches,
         const REAL* sums, REAL part, REAL own, REAL nan, REAL* middle) {
    show_stretches<Means>({prices, time, origin, halo, period}, first, blocks, stretches, sums, {part, own, nan},
                         {nullptr, middle, nullptr});
}

extern "C" __global__ void __launch_bounds__(SHORT_THREADS, 5)
bollinger_short(const REAL* prices, i64 time, i64 origin, i64 halo, i32 period, i64 tiles, REAL part, REAL own,
                REAL nan, REAL* upper, REAL* middle, REAL* lower) {
    show_short<Bands>({prices, time, origin, halo, period}, tiles, {part, own, nan}, {upper, middle, lower});
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
bollinger(const REAL* prices, i64 time, i64 origin, i64 halo, i32 period, i64 first, i64 tiles, i32 eights, i32 many,
          u32 reciprocal, i32 slots, REAL part, REAL own, REAL nan, REAL* upper, REAL* middle, REAL* lower) {
    show_blocks<Bands>({prices, time, origin, halo, period}, {first, tiles, eights, many, reciprocal, slots},
                      {part, own, nan}, {upper, middle, lower});
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
bollinger_totals(const REAL* prices, i64 time, i64 origin, i64 halo, i32 period, i64 first, i64 blocks, i32 stretches,
                 REAL nan, REAL* sums) {
    sum_stretches<Bands>({prices, time, origin, halo, period}, first, blocks, stretches, nan, sums);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
bollinger_long(const REAL* prices, i64 time, i64 origin, i64 halo, i32 period, i64 first, i64 blocks, i32 stretches,
               const REAL* sums, REAL part, REAL own, REAL nan, REAL* upper, REAL* middle, REAL* lower) {
    show_stretches<Bands>({prices, time, origin, halo, period}, first, blocks, stretches, sums, {part, own, nan},
                         {upper, middle, lower});
}

extern "C" __global__ void __launch_bounds__(SHORT_THREADS, 5)
cutler_short(const REAL* prices, i64 time, i64 origin, i64 halo, i32 period, i64 tiles, REAL part, REAL own, REAL nan,
             REAL* middle) {
    show_short<Strengths>({prices, time, origin, halo, period}, tiles, {part, own, nan}, {nullptr, middle, nullptr});
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
cutler(const REAL* prices, i64 time, i64 origin, i64 halo, i32 period, i64 first, i64 tiles, i32 eights, i32 many,
       u32 reciprocal, i32 slots, REAL part, REAL own, REAL nan, REAL* middle) {
    show_blocks<Strengths>({prices, time, origin, halo, period}, {first, tiles, eights, many, reciprocal, slots},
                      {part, own, nan}, {nullptr, middle, nullptr});
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
cutler_totals(const REAL* prices, i64 time, i64 origin, i64 halo, i32 period, i64 first, i64 blocks, i32 stretches,
              REAL nan, REAL* sums) {
    sum_stretches<Strengths>({prices, time, origin, halo, period}, first, blocks, stretches, nan, sums);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
cutler_long(const REAL* prices, i64 time, i64 origin, i64 halo, i32 period, i64 first, i64 blocks, i32 stretches,
            const REAL* sums, REAL part, REAL own, REAL nan, REAL* middle) {
    show_stretches<Strengths>({prices, time, origin, halo, period}, first, blocks, stretches, sums, {part, own, nan},
                         {nullptr, middle, nullptr});
}
