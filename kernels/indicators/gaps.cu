// Close gaps before an indicator runs and reopen them in its result: rows packed to their left end, or filled forward.
//
// Prices are (rows, time), row by row; a bar without a price holds NaN. A block of 64 threads takes 2,048 bars of a row, each
// thread 32 in a row, through shared memory, so that global memory is read and written in order of time. Bar t of a packed
// row is the t-th price: the prices of the tiles before (carry_prices, a thread per row), of the segments before, of the bars
// before. A filled bar has the latest price: of its segment, of those before in the tile, of the tiles before.
//
// count_prices runs once, then pack or fill_forward; spread once per result. Bytes per bar in float64: 8 (count_prices), 16
// (pack, fill_forward), 24 (spread). Operations per bar: a comparison and an addition. So memory bandwidth is the limit;
// pack writes and spread reads where 32 bars of a thread begin, which the caches have to put together.
// Not yet measured on a GPU.

#include "device/types.cuh"

#define SEGMENT 32
#define SEGMENTS 64
#define TILE (SEGMENT * SEGMENTS)
#define SLOTS (TILE + SEGMENTS)

__device__ __forceinline__ i32 slot(i32 bar) { return bar + bar / SEGMENT; }

// Load a tile and return how many prices the segments before this thread's hold.
__device__ __forceinline__ i32 prices_before(const REAL* row, i64 time, i64 start, REAL nan, REAL* x, i32* counts) {
    i32 s = (i32)threadIdx.x, own = 0;
    for (i32 j = s; j < TILE; j += SEGMENTS) x[slot(j)] = start + j < time ? row[start + j] : nan;
    __syncthreads();
    for (i32 i = 0; i < SEGMENT; ++i) {
        REAL price = x[slot(s * SEGMENT + i)];
        own += price == price;
    }
    counts[s] = own;
    __syncthreads();
    i32 before = 0;
    for (i32 other = 0; other < s; ++other) before += counts[other];
    return before;
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

// One thread per row: `count` becomes the prices before each tile, `latest` the latest price's bar before it.
extern "C" __global__ void __launch_bounds__(SEGMENTS)
carry_prices(i64 rows, i64 tiles, i64* count, i64* latest, i64* total) {
    i64 row = blockIdx.x * (i64)SEGMENTS + threadIdx.x;
    if (row >= rows) return;
    i64 sum = 0, bar = -1;
    for (i64 at = row * tiles; at < (row + 1) * tiles; ++at) {
        i64 own = count[at], own_bar = latest[at];
        count[at] = sum;
        latest[at] = bar;
        sum += own;
        bar = own_bar >= 0 ? own_bar : bar;
    }
    total[row] = sum;
}

extern "C" __global__ void __launch_bounds__(SEGMENTS)
pack(const REAL* prices, i64 time, i64 tiles, const i64* count, const i64* total, REAL nan, REAL* packed) {
    __shared__ REAL x[SLOTS];
    __shared__ i32 counts[SEGMENTS];
    i64 row = blockIdx.x / tiles, start = blockIdx.x % tiles * TILE;
    i32 s = (i32)threadIdx.x;
    i64 place = count[blockIdx.x] + prices_before(prices + row * time, time, start, nan, x, counts);
    for (i32 i = 0; i < SEGMENT; ++i) {
        REAL price = x[slot(s * SEGMENT + i)];
        if (price == price) packed[row * time + place++] = price;
    }
    for (i32 j = s; j < TILE && start + j < time; j += SEGMENTS)
        if (start + j >= total[row]) packed[row * time + start + j] = nan;
}

extern "C" __global__ void __launch_bounds__(SEGMENTS)
spread(const REAL* result, const REAL* prices, i64 time, i64 tiles, const i64* count, REAL nan, REAL* out) {
    __shared__ REAL x[SLOTS];
    __shared__ i32 counts[SEGMENTS];
    i64 row = blockIdx.x / tiles, start = blockIdx.x % tiles * TILE;
    i32 s = (i32)threadIdx.x;
    i64 place = count[blockIdx.x] + prices_before(prices + row * time, time, start, nan, x, counts);
    for (i32 i = 0; i < SEGMENT; ++i) {
        REAL& cell = x[slot(s * SEGMENT + i)];
        cell = cell == cell ? result[row * time + place++] : nan;
    }
    __syncthreads();
    for (i32 j = s; j < TILE && start + j < time; j += SEGMENTS) out[row * time + start + j] = x[slot(j)];
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
