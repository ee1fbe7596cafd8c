// Close gaps before an indicator runs and reopen them in its result: rows packed to their left end, or filled forward.
//
// Prices are (rows, time), row by row; a bar without a price holds NaN. A block of 64 threads takes 2,048 bars of a row. Bar t
// of a packed row is the t-th price: the prices of the tiles before (carry_prices, a warp per row), of the 32 bars' segments
// before, of the bars before. A warp takes a segment at a time and asks by a vote which of its bars have a price, so that what
// it writes to a packed row, or reads from one, lies in one run. A filled bar has the latest price: of its segment, of those
// before in the tile, of the tiles before.
//
// count_prices runs once, then pack or fill_forward; spread once per result. Bytes per bar in float64: 8 (count_prices), 16
// (pack, fill_forward), 24 (spread). Operations per bar: a comparison, a vote and some ten of integers. So memory bandwidth is
// the limit.
// Not yet measured on a GPU.

#include "device/types.cuh"

#define SEGMENT 32
#define SEGMENTS 64
#define TILE (SEGMENT * SEGMENTS)
#define SLOTS (TILE + SEGMENTS)
#define ALL 0xffffffffu

__device__ __forceinline__ i32 slot(i32 bar) { return bar + bar / SEGMENT; }

// Which bars of a tile have a price: a bit for each bar of a segment, and the prices in the segments before it.
struct Known {
    u32 bars[SEGMENTS];
    i32 before[SEGMENTS];
    __device__ __forceinline__ bool at(i32 bar) const { return bars[bar / SEGMENT] >> bar % SEGMENT & 1; }
    __device__ __forceinline__ i32 rank(i32 bar) const {
        return before[bar / SEGMENT] + __popc(bars[bar / SEGMENT] & ((1u << bar % SEGMENT) - 1));
    }
};

// Find them, of a tile whose row goes on for `left` bars; a thread keeps its own prices in `x` where there is one.
__device__ __forceinline__ void find(const REAL* tile, i64 left, REAL nan, REAL* x, Known& known) {
    i32 s = (i32)threadIdx.x, before = 0;
    for (i32 i = 0; i < SEGMENT; i += 8) {
        REAL part[8];
#pragma unroll
        for (i32 e = 0; e < 8; ++e) {
            i32 j = (i + e) * SEGMENTS + s;
            part[e] = j < left ? tile[j] : nan;
        }
#pragma unroll
        for (i32 e = 0; e < 8; ++e) {
            i32 j = (i + e) * SEGMENTS + s;
            if (x) x[j] = part[e];
            u32 bars = __ballot_sync(ALL, part[e] == part[e]);
            if (s % 32 == 0) known.bars[j / SEGMENT] = bars;
        }
    }
    __syncthreads();
    for (i32 other = 0; other < s; ++other) before += __popc(known.bars[other]);
    known.before[s] = before;
    __syncthreads();
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

extern "C" __global__ void __launch_bounds__(SEGMENTS)
pack(const REAL* prices, i64 time, i64 tiles, const i64* count, const i64* total, REAL nan, REAL* packed) {
    __shared__ REAL x[TILE];
    __shared__ Known known;
    i64 row = blockIdx.x / tiles, start = blockIdx.x % tiles * TILE, left = time - start, end = total[row] - start;
    find(prices + row * time + start, left, nan, x, known);
    REAL* run = packed + row * time + count[blockIdx.x];
    REAL* tile = packed + row * time + start;
#pragma unroll 8
    for (i32 j = (i32)threadIdx.x; j < TILE; j += SEGMENTS) {
        if (known.at(j)) run[known.rank(j)] = x[j];
        if (end <= j && j < left) tile[j] = nan;  // after the last price of the row
    }
}

extern "C" __global__ void __launch_bounds__(SEGMENTS)
spread(const REAL* result, const REAL* prices, i64 time, i64 tiles, const i64* count, REAL nan, REAL* out) {
    __shared__ Known known;
    i64 row = blockIdx.x / tiles, start = blockIdx.x % tiles * TILE, left = time - start;
    find(prices + row * time + start, left, nan, nullptr, known);
    const REAL* run = result + row * time + count[blockIdx.x];
    REAL* tile = out + row * time + start;
    for (i32 i = 0; i < SEGMENT; i += 8) {
        REAL part[8];
#pragma unroll
        for (i32 e = 0; e < 8; ++e) {
            i32 j = (i + e) * SEGMENTS + (i32)threadIdx.x;
            part[e] = known.at(j) ? run[known.rank(j)] : nan;
        }
#pragma unroll
        for (i32 e = 0; e < 8; ++e) {
            i32 j = (i + e) * SEGMENTS + (i32)threadIdx.x;
            if (j < left) tile[j] = part[e];
        }
    }
}

extern "C" __global__ void __launch_bounds__(SEGMENTS)
fill_forward(const REAL* prices, i64 time, i64 tiles, const i64* latest, REAL nan, REAL* filled) {
    __shared__ REAL x[SLOTS];
    __shared__ i32 found[SEGMENTS];
    i64 row = blockIdx.x / tiles, start = blockIdx.x % tiles * TILE, bar = latest[blockIdx.x];
    i32 s = (i32)threadIdx.x, own = -1;
    for (i32 j = s; j < TILE; j += SEGMENTS) x[slot(j)] = start + j < time ? prices[row * time + start + j] : nan;
    __syncthreads();
    for (i32 i = 0; i < SEGMENT; ++i) {
        REAL price = x[slot(s * SEGMENT + i)];
        if (price == price) own = s * SEGMENT + i;
    }
    found[s] = own;
    __syncthreads();
    i32 near = -1;
    for (i32 other = s - 1; other >= 0 && near < 0; --other) near = found[other];
    REAL last = near >= 0 ? x[slot(near)] : bar >= 0 ? prices[row * time + bar] : nan;
    for (i32 i = 0; i < SEGMENT; ++i) {  // writes bars without a price only; others read bars with one
        REAL& cell = x[slot(s * SEGMENT + i)];
        if (cell == cell)
            last = cell;
        else
            cell = last;
    }
    __syncthreads();
    for (i32 j = s; j < TILE && start + j < time; j += SEGMENTS) filled[row * time + start + j] = x[slot(j)];
}
