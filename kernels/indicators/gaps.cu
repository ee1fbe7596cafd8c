// Close gaps before an indicator runs and reopen them in its result: rows packed to their left end, or filled forward.
//
// Prices are (rows, time), row by row; a bar without a price holds NaN. A block of 64 threads takes 64 segments of 32 bars: of a
// tile of 2,048 bars, or of `packed` rows of `width` segments each, where rows are that short. A warp takes a segment at a time
// and asks by a vote which of its bars have a price. Bar t of a packed row is the t-th price: after the prices of the tiles
// before (carry_prices, a warp per row), of the segments before, of the bars before. So what a warp writes to a packed row, or
// reads from one, lies in one run. A filled bar has the latest price: of its segment, of those before in the tile, of the tiles
// before.
//
// count_prices and carry_prices run once, where a row is longer than a tile, then pack or fill_forward; spread once per
// result. Bytes per bar in float64: 8 (count_prices), 16 (pack, fill_forward), 24 (spread). Operations per bar: a comparison, a
// vote and some ten of integers; instructions of all kinds, counted in the code for sm_90: 10 (count_prices), 60 (pack), 55
// (fill_forward), 52 (spread), where an H200 issues 103 in the time of 16 bytes. So memory bandwidth is the limit; in float32
// instructions are as well, and for rows of much less than 32 bars, which leave lanes idle, they are before it. Shared memory
// of pack and fill_forward in float64: 18 KiB a block, which leaves room for 11 on a multiprocessor of an H200.
// Not yet measured on a GPU.

#include "device/types.cuh"

#define SEGMENT 32
#define SEGMENTS 64
#define TILE (SEGMENT * SEGMENTS)
#define ALL 0xffffffffu

// What a block has of the rows: `tiles` of a row are each a block's; where it is 1, `packed` rows of `width` segments are.
struct Rows {
    i64 rows, time, tiles;
    i32 packed, width;
};

// The segments of a block.
struct Segments {
    i64 first[SEGMENTS];    // the first bar, counted through all rows
    i32 length[SEGMENTS];   // the bars that there are
    u32 known[SEGMENTS];    // a bit for each bar that has a price
    i32 through[SEGMENTS];  // the prices of these segments up to this one (run_of)
};

// The first bar of the row that a thread's own segment is of, and how many rounds of a segment for each warp a block has.
struct Place {
    i64 row;
    i32 rounds;
};

__device__ __forceinline__ Place lay_out(const Rows& in, Segments& segments) {
    i32 s = (i32)threadIdx.x, own = in.packed > 1 ? s / in.width : 0;
    i64 row = in.tiles > 1 ? blockIdx.x / in.tiles : (i64)blockIdx.x * in.packed + own;
    i64 start = in.tiles > 1 ? blockIdx.x % in.tiles * TILE : 0, bar = start + (s - own * in.width) * SEGMENT;
    i64 left = in.time - bar, used = in.packed > 1 ? in.packed * in.width : (in.time - start + SEGMENT - 1) / SEGMENT;
    bool here = own < in.packed && row < in.rows && left > 0;
    segments.first[s] = row * in.time + bar;
    segments.length[s] = !here ? 0 : left < SEGMENT ? (i32)left : SEGMENT;
    segments.known[s] = 0;
    __syncthreads();
    return {row * in.time, used < SEGMENTS ? ((i32)used + 1) / 2 : SEGMENTS / 2};
}

// Find which bars have a price; a thread keeps its own prices in `x`, where there is one.
__device__ __forceinline__ void find(const REAL* prices, i32 rounds, REAL nan, REAL* x, Segments& segments) {
    i32 warp = (i32)threadIdx.x / 32, lane = (i32)threadIdx.x % 32;
    for (i32 i = 0; i < rounds; i += 8) {
        REAL part[8];
#pragma unroll
        for (i32 e = 0; e < 8; ++e) {
            i32 s = 2 * (i + e) + warp;
            part[e] = lane < segments.length[s] ? prices[segments.first[s] + lane] : nan;
        }
#pragma unroll
        for (i32 e = 0; e < 8; ++e) {
            i32 s = 2 * (i + e) + warp;
            if (x) x[s * SEGMENT + lane] = part[e];
            u32 known = __ballot_sync(ALL, part[e] == part[e]);
            if (lane == 0) segments.known[s] = known;
        }
    }
    __syncthreads();
}

// Where the prices of a thread's segment stand in the packed row, and where that row's prices end.
struct Run {
    i64 first, end;
};

__device__ __forceinline__ Run run_of(const Rows& in, i64 row, Segments& segments, const i64* count, const i64* total) {
    i32 s = (i32)threadIdx.x, lane = s % 32, prices = __popc(segments.known[s]), through = prices;
    for (i32 h = 1; h < 32; h *= 2) {
        i32 earlier = __shfl_up_sync(ALL, through, h);
        through += lane >= h ? earlier : 0;
    }
    segments.through[s] = through;
    __syncthreads();
    if (s >= 32) through += segments.through[31];
    __syncthreads();
    segments.through[s] = through;
    __syncthreads();
    i32 from = s / in.width * in.width, last = from + in.width < SEGMENTS ? from + in.width - 1 : SEGMENTS - 1;
    i32 rows_before = from > 0 ? segments.through[from - 1] : 0, before = through - prices - rows_before;
    if (in.tiles == 1) return {row + before, row + segments.through[last] - rows_before};
    return {row + count[blockIdx.x] + before, row + total[blockIdx.x / in.tiles]};
}

// Per tile: the number of prices, and the bar of the latest one (-1 without any).
extern "C" __global__ void __launch_bounds__(SEGMENTS)
count_prices(const REAL* prices, i64 time, i64 tiles, i64* count, i64* latest) {
    __shared__ i64 counts[SEGMENTS], bars[SEGMENTS];
    i64 row = blockIdx.x / tiles, start = blockIdx.x % tiles * TILE, own = 0, bar = -1;
    for (i32 j = (i32)threadIdx.x; j < TILE && start + j < time; j += SEGMENTS) {
        REAL price = prices[row * time + start + j];
        if (price == price) {
            own += 1;
            bar = start + j;
        }
    }
    counts[threadIdx.x] = own;
    bars[threadIdx.x] = bar;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (i32 s = 1; s < SEGMENTS; ++s) {
            own += counts[s];
            bar = bars[s] > bar ? bars[s] : bar;
        }
        count[blockIdx.x] = own;
        latest[blockIdx.x] = bar;
    }
}

// One warp per row: `count` becomes the prices before each tile, `latest` the latest price's bar before it.
extern "C" __global__ void __launch_bounds__(SEGMENTS)
carry_prices(i64 rows, i64 tiles, i64* count, i64* latest, i64* total) {
    i64 row = blockIdx.x * (i64)(SEGMENTS / 32) + threadIdx.x / 32, sum = 0, last = -1;
    i32 lane = (i32)threadIdx.x % 32;
    if (row >= rows) return;
    for (i64 first = 0; first < tiles; first += 32) {
        bool here = first + lane < tiles;
        i64 at = row * tiles + first + lane, own = here ? count[at] : 0, bar = here ? latest[at] : -1, through = own;
        for (i32 h = 1; h < 32; h *= 2) {
            i64 earlier = __shfl_up_sync(ALL, through, h), earlier_bar = __shfl_up_sync(ALL, bar, h);
            if (lane < h) continue;
            through += earlier;
            bar = bar >= 0 ? bar : earlier_bar;
        }
        i64 before = __shfl_up_sync(ALL, bar, 1);
        if (here) {
            count[at] = sum + through - own;
            latest[at] = lane > 0 && before >= 0 ? before : last;
        }
        sum += __shfl_sync(ALL, through, 31);
        bar = __shfl_sync(ALL, bar, 31);
        last = bar >= 0 ? bar : last;
    }
    if (lane == 0) total[row] = sum;
}

// `count`, `total` and `latest` are read where a row has more than one tile.
extern "C" __global__ void __launch_bounds__(SEGMENTS)
pack(const REAL* prices, i64 rows, i64 time, i64 tiles, i32 packed, i32 width, const i64* count, const i64* total, REAL nan,
     REAL* out) {
    __shared__ REAL x[TILE];
    __shared__ Segments segments;
    __shared__ Run runs[SEGMENTS];
    Rows in = {rows, time, tiles, packed, width};
    Place own = lay_out(in, segments);
    i32 warp = (i32)threadIdx.x / 32, lane = (i32)threadIdx.x % 32;
    find(prices, own.rounds, nan, x, segments);
    runs[threadIdx.x] = run_of(in, own.row, segments, count, total);
    __syncthreads();
#pragma unroll 8
    for (i32 i = 0; i < own.rounds; ++i) {
        i32 s = 2 * i + warp;
        u32 known = segments.known[s];
        Run run = runs[s];
        i64 bar = segments.first[s] + lane;
        if (known >> lane & 1) out[run.first + __popc(known & ((1u << lane) - 1))] = x[s * SEGMENT + lane];
        if (lane < segments.length[s] && bar >= run.end) out[bar] = nan;
    }
}

extern "C" __global__ void __launch_bounds__(SEGMENTS)
spread(const REAL* result, const REAL* prices, i64 rows, i64 time, i64 tiles, i32 packed, i32 width, const i64* count,
       const i64* total, REAL nan, REAL* out) {
    __shared__ Segments segments;
    __shared__ i64 runs[SEGMENTS];
    Rows in = {rows, time, tiles, packed, width};
    Place own = lay_out(in, segments);
    i32 warp = (i32)threadIdx.x / 32, lane = (i32)threadIdx.x % 32;
    find(prices, own.rounds, nan, nullptr, segments);
    runs[threadIdx.x] = run_of(in, own.row, segments, count, total).first;
    __syncthreads();
    for (i32 i = 0; i < own.rounds; i += 8) {
        REAL part[8];
#pragma unroll
        for (i32 e = 0; e < 8; ++e) {
            i32 s = 2 * (i + e) + warp;
            u32 known = segments.known[s];
            part[e] = known >> lane & 1 ? result[runs[s] + __popc(known & ((1u << lane) - 1))] : nan;
        }
#pragma unroll
        for (i32 e = 0; e < 8; ++e) {
            i32 s = 2 * (i + e) + warp;
            if (lane < segments.length[s]) out[segments.first[s] + lane] = part[e];
        }
    }
}

extern "C" __global__ void __launch_bounds__(SEGMENTS)
fill_forward(const REAL* prices, i64 rows, i64 time, i64 tiles, i32 packed, i32 width, const i64* latest, REAL nan, REAL* out) {
    __shared__ REAL x[TILE], before[SEGMENTS];
    __shared__ Segments segments;
    Rows in = {rows, time, tiles, packed, width};
    Place own = lay_out(in, segments);
    i32 warp = (i32)threadIdx.x / 32, lane = (i32)threadIdx.x % 32;
    find(prices, own.rounds, nan, x, segments);
    i32 other = (i32)threadIdx.x - 1, from = (i32)threadIdx.x / width * width;
    while (other >= from && !segments.known[other]) --other;
    i64 bar = tiles > 1 ? latest[blockIdx.x] : -1;
    before[threadIdx.x] = other >= from ? x[other * SEGMENT + 31 - __clz((i32)segments.known[other])]
                          : bar >= 0    ? prices[own.row + bar]
                                        : nan;
    __syncthreads();
#pragma unroll 8
    for (i32 i = 0; i < own.rounds; ++i) {
        i32 s = 2 * i + warp;
        u32 known = segments.known[s] & ALL >> (31 - lane);  // up to this bar
        REAL price = known ? x[s * SEGMENT + 31 - __clz((i32)known)] : before[s];
        if (lane < segments.length[s]) out[segments.first[s] + lane] = price;
    }
}
