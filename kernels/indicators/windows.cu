// Means, deviations and Cutler's RSI of windows at a cost that does not grow with the window (mathematics: windows.py).
//
// Prices and results are (rows, time), row by row. A row is cut into blocks of `period` bars, a block into eights, and
//
//   sum of a window = S[k] of the block before + P[k] of its own,  each ((h + g) + e) + scan within the eight,
//
// with e over the eights of a group of 16, g over the groups of 16 groups (2,048 bars), h over the rest.
//
// *_short  up to 12 bars: a thread has 8 bars and the 12 before them in registers and adds bar by bar.
// sma, deviation, cutler  up to 2,048 bars: a block of threads has as many blocks of bars as it has threads for their eights,
//          and the block before them, in shared memory. A thread sums an eight of P and the eight of S with the same k; e and
//          g come from the others' sums in shared memory, added in the order above by every thread that needs them, which
//          neighbours read at the same time; then it scans both eights. The results leave through shared memory. One pass.
// *_totals, *_long  longer windows: a block of 256 threads has 2,048 bars of one block of bars, and those of the block before
//          with the same k. The first kernel leaves the sums of its 2,048 bars, 2 or 4 numbers; the second adds those before
//          its own in order, for h, and goes on as above. Two passes, whatever the window.
//
// Launch. Blocks of bars, eights, groups and stretches of 2,048 bars decide bytes: they follow from the period alone, and so
// the last two kernels have 256 threads everywhere. How many eights of a row share a block of threads is free (up to 128 in
// *_short, up to 256 in the next), and so is how many rows do where they are short; windows_gpu.py lets the device choose.
//
// Bytes per bar in float64: 16. The block before, one block of bars in 43 for a period of 20 and one in two above 1,024, and of
// long windows a second and third reading of the prices, come from L2 where a period of prices fits there. Operations of float64
// per bar: 16 (sma), 52 with the root (deviation), 60 with the division (cutler); an H200 has time for 55. Instructions of all
// kinds per bar, for a period of 20 and one long row in blocks of 128 threads, were counted in the code for sm_90 when it also
// served parts of rows, which took a few more: 120 (sma), 205 (cutler); an H200 issues 103 in the time of 16 bytes. So sma may
// come to 86 % of the bandwidth, and cutler to half of it. In float32, half the bytes at nearly as many instructions, all wait
// for them.
// Registers in float64 on an H200: 48 (sma), 84 (deviation), 93 (cutler), up to 128 elsewhere, without spills. For sma and most of
// *_short the compiler is left to find how many, since any floor on the blocks of a multiprocessor made it take more; cutler_short
// spills where it is left alone. deviation and cutler are bound to 96 by the bounds of larger blocks than they have (BOUND): two
// blocks of 256 leave 128, of which cutler took up to 115, three leave 80, with which it spills. Shared memory for a period of 20:
// 11 KiB (sma), 14 KiB (the others) for 128 threads; an eight takes nine slots, so that threads that walk along their eights never
// meet in a bank. 10 and 5 such blocks fit an H200's multiprocessor, eight loads in flight per thread. Lanes load single numbers,
// side by side: blocks of bars begin anywhere, so that wider loads would not be aligned.
// Not yet measured on a GPU.

#include "device/types.cuh"

#define SHORT 12
#define EIGHT 8
#define SLOTS 9  // of an eight in shared memory
#define GROUP 16
#define GROUPS 32                  // of all blocks of bars of a block of threads, at most
#define THREADS 256                // at most
#define BOUND 320                  // threads, of which two blocks have 96 registers each
#define SHORT_THREADS 128          // at most
#define LONG_BARS (THREADS * EIGHT)  // 16 groups of 16 eights
#define IN_FLIGHT 8

// One NaN for every reason, so that the bytes do not depend on which operation met it.
__device__ __forceinline__ REAL plain(REAL value, REAL nan) { return value == value ? value : nan; }

// What a window sums, relative to its anchor, and what becomes of the sums. `own` is the RSI of flat prices.
struct Numbers {
    REAL part, own, nan;
};

struct Means {
    static const i32 SUMS = 1;
    static const bool CHANGES = false;
    template <i32 SUM> __device__ static __forceinline__ REAL term(REAL x, REAL anchor) { return x - anchor; }
    __device__ static __forceinline__ REAL show(REAL anchor, REAL sum, REAL, Numbers law) { return anchor + sum * law.part; }
};

struct Deviations {
    static const i32 SUMS = 2;
    static const bool CHANGES = false;
    template <i32 SUM> __device__ static __forceinline__ REAL term(REAL x, REAL anchor) {
        REAL difference = x - anchor;
        return SUM == 0 ? difference : difference * difference;
    }
    __device__ static __forceinline__ REAL show(REAL anchor, REAL sum, REAL sum_of_squares, Numbers law) {
        REAL mean = sum * law.part, squares = sum_of_squares - mean * sum;
        // Rounding may leave less than nothing; and where the squares overflowed, the difference may be no number.
        squares = squares >= 0 ? squares : squares < 0 ? (REAL)0 : sum_of_squares;
        REAL middle = anchor + mean;
        return middle == middle ? sqrt(squares * law.part) : middle;  // NaN where the mean is, also of one bar
    }
};

struct Strengths {
    static const i32 SUMS = 2;
    static const bool CHANGES = true;
    // A NaN change is neither <= 0 nor >= 0 and stays in both sums.
    template <i32 SUM> __device__ static __forceinline__ REAL term(REAL change, REAL) {
        if (SUM == 0) return change <= 0 ? (REAL)0 : change;
        return change >= 0 ? (REAL)0 : (REAL)0 - change;
    }
    __device__ static __forceinline__ REAL show(REAL, REAL gains, REAL losses, Numbers law) {
        REAL total = gains + losses;
        // total - total is no number where gains or losses overflowed.
        return total == 0 ? law.own : plain((REAL)100 * (gains / total) + (total - total), law.nan);
    }
};

struct Rows {
    const REAL* prices;
    i64 time;
    i32 period;
};

// The rows that a block of threads has, of `rows` in all: `packed` of them side by side.
__device__ __forceinline__ i32 rows_here(i64 rows, i64 row, i32 packed) {
    return rows - row < packed ? (i32)(rows - row) : packed;
}

__device__ __forceinline__ i32 clamped(i64 count, i32 most) { return count < 0 ? 0 : count < most ? (i32)count : most; }

// The prices, or the changes, of `count` bars of a row from `bar` on; where there is none, something.
// Whether all of a stretch is there is asked once for the bars that a warp takes at a time: asked for each bar, the limits are
// worked out again for each, as there are no registers to keep them in.
template <class Law> struct Bars {
    const REAL* x;
    i64 time;
    i32 low, high, second;
    REAL nan;

    __device__ __forceinline__ Bars(const Rows& rows, i64 row, i64 bar, i32 count, REAL nan) : time(rows.time), nan(nan) {
        x = rows.prices + row * rows.time + bar;
        low = clamped(-bar, count);
        high = clamped(rows.time - bar, count);
        second = clamped(1 - bar, count);
    }

    __device__ __forceinline__ bool full(i32 from, i32 to) const {
        return from >= low && to <= high && !(Law::CHANGES && from < second);
    }

    // Bar j of the row `below`, which has the same columns.
    template <bool FULL> __device__ __forceinline__ REAL at(i32 j, i64 below = 0) const {
        const REAL* price = x + below * time + j;
        if (FULL) return Law::CHANGES ? price[0] - price[-1] : price[0];
        if (j < low || j >= high) return 0;
        if (!Law::CHANGES) return price[0];
        return j >= second ? price[0] - price[-1] : nan;
    }
};

// The results of `count` bars of a row from `bar` on.
template <class Law> struct Results {
    REAL* out;
    i64 time;
    i32 high, whole;
    REAL nan;

    __device__ __forceinline__ Results(const Rows& rows, i64 row, i64 bar, i32 count, REAL nan, REAL* all)
        : out(all + row * rows.time + bar), time(rows.time), nan(nan) {
        high = clamped(rows.time - bar, count);
        whole = clamped(rows.period - 1 + Law::CHANGES - bar, count);
    }

    // Whether all of these are there and have a whole window.
    __device__ __forceinline__ bool full(i32 from, i32 to) const { return to <= high && from >= whole; }

    // The result of bar j of the row `below`.
    template <bool FULL> __device__ __forceinline__ void put(i32 j, i64 below, REAL value) const {
        if (FULL || j < high) out[below * time + j] = FULL || j >= whole ? plain(value, nan) : nan;
    }
};

__device__ __forceinline__ i32 slot(i32 bar) { return bar + (i32)((u32)bar / EIGHT); }

// ---------------------------------------------------------------- into shared memory, and from there

// Load `count` bars of each of some rows, each to the place of shared memory that `place(row, j)` says. A warp takes
// 32 * FLIGHT bars of a row at a time, so that the addresses of a lane's bars differ by constants.
template <class Law, bool FULL, bool INSIDE, i32 FLIGHT, class Where>
__device__ __forceinline__ void load_portion(const Bars<Law>& bars, i32 row, i32 j0, i32 count, REAL* space, Where place) {
    REAL loaded[FLIGHT];
#pragma unroll
    for (i32 e = 0; e < FLIGHT; ++e)
        if (INSIDE || j0 + e * 32 < count) loaded[e] = bars.template at<FULL>(j0 + e * 32, row);
#pragma unroll
    for (i32 e = 0; e < FLIGHT; ++e)
        if (INSIDE || j0 + e * 32 < count) space[place(row, j0 + e * 32)] = loaded[e];
}

template <i32 FLIGHT, class Law, class Where>
__device__ __forceinline__ void load_rows(const Bars<Law>& bars, i32 rows, i32 count, REAL* space, Where place) {
    i32 lane = (i32)threadIdx.x % 32, portions = (count + 32 * FLIGHT - 1) / (32 * FLIGHT);
    for (i32 p = (i32)threadIdx.x / 32; p < rows * portions; p += (i32)blockDim.x / 32) {
        i32 row = rows > 1 ? p / portions : 0, from = (p - row * portions) * 32 * FLIGHT, to = from + 32 * FLIGHT;
        if (to <= count && bars.full(from, to))
            load_portion<Law, true, true, FLIGHT>(bars, row, from + lane, count, space, place);
        else if (bars.full(from, to <= count ? to : count))
            load_portion<Law, true, false, FLIGHT>(bars, row, from + lane, count, space, place);
        else
            load_portion<Law, false, false, FLIGHT>(bars, row, from + lane, count, space, place);
    }
}

// Show `put(row, j)` of each bar of some rows.
template <bool FULL, bool INSIDE, class Put> __device__ __forceinline__ void put_portion(i32 row, i32 j0, i32 high, Put put) {
#pragma unroll
    for (i32 e = 0; e < IN_FLIGHT; ++e)
        if (INSIDE || j0 + e * 32 < high) put.template at<FULL>(row, j0 + e * 32);
}

template <class Law, class Put>
__device__ __forceinline__ void put_rows(const Results<Law>& results, i32 rows, Put put) {
    i32 lane = (i32)threadIdx.x % 32, portions = (results.high + 32 * IN_FLIGHT - 1) / (32 * IN_FLIGHT);
    for (i32 p = (i32)threadIdx.x / 32; p < rows * portions; p += (i32)blockDim.x / 32) {
        i32 row = rows > 1 ? p / portions : 0, from = (p - row * portions) * 32 * IN_FLIGHT, to = from + 32 * IN_FLIGHT;
        if (to <= results.high && results.full(from, to))
            put_portion<true, true>(row, from + lane, results.high, put);
        else if (results.full(from, results.high))
            put_portion<true, false>(row, from + lane, results.high, put);
        else
            put_portion<false, false>(row, from + lane, results.high, put);
    }
}

// ---------------------------------------------------------------- up to 12 bars

// How bars are dealt to blocks of threads: `width` eights of each of `packed` rows.
struct Spread {
    i64 rows, tiles;
    i32 width, packed;
};

template <class Law> struct PutShort {
    const Results<Law>& results;
    const REAL* space;
    i32 region;

    template <bool FULL> __device__ __forceinline__ void at(i32 row, i32 j) const {
        results.template put<FULL>(j, row, space[row * region + slot(j)]);
    }
};

template <class Law> __device__ __forceinline__ void show_short(const Rows& rows, Spread spread, Numbers law, REAL* out) {
    extern __shared__ REAL space[];
    const i32 before = 2 * EIGHT;  // bars before the tile, in whole eights
    i32 thread = (i32)threadIdx.x, count = spread.width * EIGHT, region = (spread.width + 2) * SLOTS;
    i64 row = blockIdx.x / spread.tiles * spread.packed, start = blockIdx.x % spread.tiles * count;
    i32 here = rows_here(spread.rows, row, spread.packed);
    load_rows<IN_FLIGHT + 1>(Bars<Law>(rows, row, start - before, count + before, law.nan), here, count + before, space,
                             [region](i32 row, i32 j) { return row * region + slot(j); });
    __syncthreads();
    i32 mine = thread / spread.width;
    bool active = mine < here;
    REAL* eight = space + (active ? mine * region + (thread - mine * spread.width) * SLOTS : 0);
    REAL near[SHORT + EIGHT];
#pragma unroll
    for (i32 j = 0; j < SHORT + EIGHT; ++j) near[j] = eight[slot(j + before - SHORT)];
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
#pragma unroll
    for (i32 k = 0; k < EIGHT; ++k) sum[k][0] = Law::show(near[SHORT + k], sum[k][0], sum[k][1], law);
    Results<Law> results(rows, row, start, count, law.nan, out);
    __syncthreads();
    if (active)
#pragma unroll
        for (i32 k = 0; k < EIGHT; ++k) eight[k] = sum[k][0];
    __syncthreads();
    put_rows(results, here, PutShort<Law>{results, space, region});
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

// Put what the windows of this thread's eight show at `eight`, when all threads have read what lies there.
template <class Law>
__device__ __forceinline__ void show(const Place& place, const REAL* own, const REAL* before, Numbers law, bool active, REAL* eight) {
    REAL sum[Law::SUMS][EIGHT];
    sum_windows<Law, 0>(place, own[0], before[0], sum[0]);
    if (Law::SUMS == 2) sum_windows<Law, Law::SUMS - 1>(place, own[Law::SUMS - 1], before[Law::SUMS - 1], sum[Law::SUMS - 1]);
    __syncthreads();
    if (!active) return;
#pragma unroll
    for (i32 k = 0; k < EIGHT; ++k) eight[k] = Law::show(place.anchor, sum[0][k], sum[Law::SUMS - 1][k], law);
}

// How bars are dealt to blocks of threads: `many` blocks of bars, of `eights` eights each, of each of `packed` rows, which lie
// `region` apart in shared memory, and totals behind them, from `slots` on; `reciprocal` = 2^32 / period + 1, rounded down, with
// which a small number is divided by the period.
struct Deal {
    i64 rows, tiles;
    i32 eights, many, packed, region;
    u32 reciprocal;
    i32 slots;

    // Where bar j of a row lies in shared memory.
    __device__ __forceinline__ i32 place(i32 row, i32 j, i32 period) const {
        i32 q = (i32)__umulhi((u32)j, reciprocal);
        return row * region + q * eights * SLOTS + slot(j - q * period);
    }
};

template <class Law> struct PutBlocks {
    const Results<Law>& results;
    const Deal& deal;
    const REAL* space;
    i32 period;

    template <bool FULL> __device__ __forceinline__ void at(i32 row, i32 j) const {
        results.template put<FULL>(j, row, space[deal.place(row, j, period)]);
    }
};

template <class Law> __device__ __forceinline__ void show_blocks(const Rows& rows, Deal deal, Numbers law, REAL* out) {
    extern __shared__ REAL space[];
    __shared__ REAL groups[2 * Law::SUMS * GROUPS];
    i32 thread = (i32)threadIdx.x, threads = (i32)blockDim.x, width = deal.eights * SLOTS, period = rows.period;
    i64 row = blockIdx.x / deal.tiles * deal.packed, block = blockIdx.x % deal.tiles * deal.many;
    i64 start = block * period;
    i32 count = (deal.many + 1) * period, here = rows_here(deal.rows, row, deal.packed);
    load_rows<IN_FLIGHT>(Bars<Law>(rows, row, start - period, count, law.nan), here, count, space,
                         [&deal, period](i32 row, i32 j) { return deal.place(row, j, period); });
    __syncthreads();
    // Of all blocks of bars, the one this thread has an eight of.
    i32 mine = thread / deal.eights, own_row = deal.packed > 1 ? mine / deal.many : 0;
    bool active = own_row < here && mine < deal.packed * deal.many;
    if (!active) mine = own_row = 0;
    i32 first = active ? mine * deal.eights : thread, s = thread - first;
    REAL* of_block = space + own_row * deal.region + (mine - own_row * deal.many) * width;  // the block before it
    Place place = {of_block + width + s * SLOTS, of_block + s * SLOTS, period - 1 - s * EIGHT, of_block[width]};
    REAL own[Law::SUMS], before[Law::SUMS];
#pragma unroll
    for (i32 i = 0; i < Law::SUMS; ++i) own[i] = before[i] = 0;
    Totals<Law> totals = {space + deal.slots, groups, threads, deal.eights > GROUP};
    sum_before<Law>(totals, place, first, active ? deal.eights : 0, mine * ((deal.eights + GROUP - 1) / GROUP), own, before);
    show<Law>(place, own, before, law, active, of_block + s * SLOTS);
    __syncthreads();
    Results<Law> results(rows, row, start, count - period, law.nan, out);
    put_rows(results, here, PutBlocks<Law>{results, deal, space, period});
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
    if (bars.full(0, LONG_BARS))
        load_eights<Law, true>(bars, space);
    else
        load_eights<Law, false>(bars, space);
}

template <class Law, bool FULL> __device__ __forceinline__ void put_long(const Results<Law>& results, const REAL* space) {
    for (i32 j = (i32)threadIdx.x; j < results.high; j += THREADS) results.template put<FULL>(j, 0, space[slot(j)]);
}

// 2,048 bars of a block, and what a thread does with them in both kernels.
template <class Law> struct Stretch {
    i64 row, block, at;  // `at`: place among all stretches
    i32 number, bars, eights;
    REAL anchor;

    __device__ __forceinline__ Stretch(const Rows& rows, i64 blocks, i32 stretches, REAL nan) {
        at = blockIdx.x;
        number = (i32)(at % stretches);
        block = at / stretches % blocks;
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
__device__ __forceinline__ void sum_stretches(const Rows& rows, i64 blocks, i32 stretches, REAL nan, REAL* sums) {
    extern __shared__ REAL space[];
    __shared__ REAL groups[2 * Law::SUMS * GROUPS];
    const i32 slots = LONG_BARS / EIGHT * SLOTS;
    Stretch<Law> stretch(rows, blocks, stretches, nan);
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
__device__ __forceinline__ void show_stretches(const Rows& rows, i64 blocks, i32 stretches, const REAL* sums, Numbers law,
                                               REAL* out) {
    extern __shared__ REAL space[];
    __shared__ REAL groups[2 * Law::SUMS * GROUPS], others[2 * Law::SUMS];
    const i32 slots = LONG_BARS / EIGHT * SLOTS;
    Stretch<Law> stretch(rows, blocks, stretches, law.nan);
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
    show<Law>(place, own, before, law, true, space + thread * SLOTS);
    __syncthreads();
    i64 start = stretch.block * rows.period + (i64)stretch.number * LONG_BARS;
    Results<Law> results(rows, stretch.row, start, stretch.bars, law.nan, out);
    if (results.full(0, stretch.bars))
        put_long<Law, true>(results, space);
    else
        put_long<Law, false>(results, space);
}

// ---------------------------------------------------------------- kernels

extern "C" __global__ void __launch_bounds__(SHORT_THREADS)
sma_short(const REAL* prices, i64 time, i32 period, i64 rows, i64 tiles, i32 width, i32 packed,
          REAL part, REAL own, REAL nan, REAL* out) {
    show_short<Means>({prices, time, period}, {rows, tiles, width, packed}, {part, own, nan}, out);
}

extern "C" __global__ void __launch_bounds__(THREADS)
sma(const REAL* prices, i64 time, i32 period, i64 rows, i64 tiles, i32 eights, i32 many,
    i32 packed, i32 region, u32 reciprocal, i32 slots, REAL part, REAL own, REAL nan, REAL* out) {
    show_blocks<Means>({prices, time, period},
                      {rows, tiles, eights, many, packed, region, reciprocal, slots}, {part, own, nan}, out);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
sma_totals(const REAL* prices, i64 time, i32 period, i64 blocks, i32 stretches,
           REAL nan, REAL* sums) {
    sum_stretches<Means>({prices, time, period}, blocks, stretches, nan, sums);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
sma_long(const REAL* prices, i64 time, i32 period, i64 blocks, i32 stretches,
         const REAL* sums, REAL part, REAL own, REAL nan, REAL* out) {
    show_stretches<Means>({prices, time, period}, blocks, stretches, sums, {part, own, nan}, out);
}

extern "C" __global__ void __launch_bounds__(SHORT_THREADS, 4)
cutler_short(const REAL* prices, i64 time, i32 period, i64 rows, i64 tiles, i32 width, i32 packed,
          REAL part, REAL own, REAL nan, REAL* out) {
    show_short<Strengths>({prices, time, period}, {rows, tiles, width, packed}, {part, own, nan}, out);
}

extern "C" __global__ void __launch_bounds__(BOUND, 2)
cutler(const REAL* prices, i64 time, i32 period, i64 rows, i64 tiles, i32 eights, i32 many,
    i32 packed, i32 region, u32 reciprocal, i32 slots, REAL part, REAL own, REAL nan, REAL* out) {
    show_blocks<Strengths>({prices, time, period},
                      {rows, tiles, eights, many, packed, region, reciprocal, slots}, {part, own, nan}, out);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
cutler_totals(const REAL* prices, i64 time, i32 period, i64 blocks, i32 stretches,
              REAL nan, REAL* sums) {
    sum_stretches<Strengths>({prices, time, period}, blocks, stretches, nan, sums);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
cutler_long(const REAL* prices, i64 time, i32 period, i64 blocks, i32 stretches,
            const REAL* sums, REAL part, REAL own, REAL nan, REAL* out) {
    show_stretches<Strengths>({prices, time, period}, blocks, stretches, sums, {part, own, nan}, out);
}

extern "C" __global__ void __launch_bounds__(SHORT_THREADS)
deviation_short(const REAL* prices, i64 time, i32 period, i64 rows, i64 tiles, i32 width, i32 packed,
          REAL part, REAL own, REAL nan, REAL* out) {
    show_short<Deviations>({prices, time, period}, {rows, tiles, width, packed}, {part, own, nan}, out);
}

extern "C" __global__ void __launch_bounds__(BOUND, 2)
deviation(const REAL* prices, i64 time, i32 period, i64 rows, i64 tiles, i32 eights, i32 many,
    i32 packed, i32 region, u32 reciprocal, i32 slots, REAL part, REAL own, REAL nan, REAL* out) {
    show_blocks<Deviations>({prices, time, period},
                      {rows, tiles, eights, many, packed, region, reciprocal, slots}, {part, own, nan}, out);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
deviation_totals(const REAL* prices, i64 time, i32 period, i64 blocks, i32 stretches,
                 REAL nan, REAL* sums) {
    sum_stretches<Deviations>({prices, time, period}, blocks, stretches, nan, sums);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
deviation_long(const REAL* prices, i64 time, i32 period, i64 blocks, i32 stretches,
            const REAL* sums, REAL part, REAL own, REAL nan, REAL* out) {
    show_stretches<Deviations>({prices, time, period}, blocks, stretches, sums, {part, own, nan}, out);
}
