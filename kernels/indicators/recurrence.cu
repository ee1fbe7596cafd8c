// EMA and RSI by affine maps: segments of 32 bars, tiles of 64 segments, exact carries (mathematics: recurrence.py).
//
// Prices and results are (rows, time), row by row. Every bar maps the state y to a y + u: a = beta once a run of prices has
// settled, 1 while it fills its seed, 0 at its first bar and where there is no price.
//
// gaps       the last bar without a price of each tile
// *_reduce   each thread runs a segment from state 0; a Kogge-Stone scan composes the tile's maps, (a, b) per segment
// carry      one thread per row takes the state from tile to tile, where the memory is longer than a look-back
// *_run      the state before the tile from the maps of up to `look_back` earlier tiles, oldest first, or from `carry`;
//            then each thread runs its segment again from its exact state
// rsi_hold   tiles in which gains and losses decayed to nothing repeat the last RSI before that
//
// All but carry (a thread per row): a block of 64 threads per row and tile of 2,048 bars, 17 KiB of shared memory in
// float64, read and written in order of time. Global memory per bar: three reads of the price, one write, and (a, b) of
// each segment written and read once, 1/8 of a number per bar. Operations per bar: 6 (EMA), 11 (RSI), and a division.
// Not yet measured on a GPU.

#include "device/types.cuh"

#define SEGMENT 32
#define SEGMENTS 64
#define TILE (SEGMENT * SEGMENTS)
#define SLOTS (TILE + SEGMENTS + 1)  // the bar before the tile, its bars, and a gap after 32 against bank conflicts
#define HOLD ((REAL)-1)

__device__ __forceinline__ i32 slot(i32 bar) { return bar + bar / SEGMENT; }

// x[slot(0)] is the bar before the tile. Bars outside the row are never looked at, but must not be uninitialised.
__device__ __forceinline__ void load_tile(const REAL* row, i64 time, i64 start, REAL* x) {
    for (i32 j = (i32)threadIdx.x; j <= TILE; j += SEGMENTS) {
        i64 bar = start - 1 + j;
        x[slot(j)] = bar >= 0 && bar < time ? row[bar] : (REAL)0;
    }
    __syncthreads();
}

__device__ __forceinline__ void store_tile(const REAL* x, i64 time, i64 start, REAL* row) {
    __syncthreads();
    for (i32 j = (i32)threadIdx.x; j < TILE && start + j < time; j += SEGMENTS) row[start + j] = x[slot(j + 1)];
}

__device__ __forceinline__ i32 bars_of_segment(i64 time, i64 start) {
    i64 left = time - start - (i64)threadIdx.x * SEGMENT;
    return left < 0 ? 0 : left < SEGMENT ? (i32)left : SEGMENT;
}

__device__ __forceinline__ i32 at_most(i64 count, i32 limit) { return count < limit ? (i32)count : limit; }

// Bars since the last gap before this thread's segment, at most settled + 1. `last` is shared, one entry per thread.
__device__ __forceinline__ i32 count_before(const REAL* x, const i64* gaps, i64 task, i64 tile, i32 bars, i32 settled,
                                            i32* last, i32* tile_count) {
    i32 s = (i32)threadIdx.x, own = -1;
    for (i32 i = 0; i < bars; ++i) {
        REAL price = x[slot(s * SEGMENT + i + 1)];
        if (price != price) own = s * SEGMENT + i;
    }
    last[s] = own;
    if (s == 0) {
        i64 start = tile * TILE, count = start;
        for (i64 back = 1; back <= tile; ++back) {
            i64 gap = gaps[task - back];
            if (gap >= 0) {
                count = start - 1 - gap;
                break;
            }
            if (back * TILE > settled) break;
        }
        *tile_count = at_most(count, settled + 1);
    }
    for (i32 h = 1; h < SEGMENTS; h *= 2) {
        __syncthreads();
        i32 other = s >= h ? last[s - h] : -1;
        __syncthreads();
        if (other > last[s]) last[s] = other;
    }
    __syncthreads();
    i32 gap = s > 0 ? last[s - 1] : -1;
    i32 count = gap >= 0 ? s * SEGMENT - 1 - gap : *tile_count + s * SEGMENT;
    return at_most(count, settled + 1);
}

// Compose the maps of segments 0 .. s for each thread s. `a`, `b` are shared; the result is there and in the arguments.
__device__ __forceinline__ void compose(REAL* a, REAL* b) {
    i32 s = (i32)threadIdx.x;
    for (i32 h = 1; h < SEGMENTS; h *= 2) {
        __syncthreads();
        REAL own_a = a[s], own_b = b[s];
        if (s >= h) {
            own_b = own_b + own_a * b[s - h];
            own_a = own_a * a[s - h];
        }
        __syncthreads();
        a[s] = own_a;
        b[s] = own_b;
    }
    __syncthreads();
}

// The state before this thread's segment.
__device__ __forceinline__ REAL enter(const REAL* a, const REAL* b, const REAL* entry, i64 task, i64 tile, i32 look_back) {
    REAL y = 0;
    if (look_back == 0) {
        y = entry[task];
    } else if (tile > 0) {
        i64 first = tile > look_back ? tile - look_back : 0;
        y = b[(task - tile + first) * SEGMENTS + SEGMENTS - 1];
        for (i64 other = first + 1; other < tile; ++other) {
            i64 at = (task - tile + other) * SEGMENTS + SEGMENTS - 1;
            y = b[at] + a[at] * y;
        }
    }
    if (threadIdx.x == 0) return y;
    i64 at = task * SEGMENTS + threadIdx.x - 1;
    return b[at] + a[at] * y;
}

struct Ema {
    REAL beta;
    i32 warm, valid, settled;
};

// One bar of an EMA: y is the distance of the average from the price; while a seed fills, that of the sum of its prices.
__device__ __forceinline__ void ema_bar(Ema law, REAL before, REAL price, i32& count, REAL& bars, REAL& a, REAL& y) {
    if (price != price) {
        count = 0;
        bars = 0;
        a = 0;
        y = 0;
        return;
    }
    count += count <= law.settled;
    if (count == 1) {
        bars = 1;
        a = 0;
        y = 0;
    } else if (count <= law.warm) {
        y = y + bars * (before - price);
        bars += 1;
        if (count == law.warm) {
            y = y / bars;
            a = a / bars;
        }
    } else {
        y = law.beta * (y + (before - price));
        a = a * law.beta;
    }
}

struct Rsi {
    REAL beta, first;
    i32 warm, valid, settled;
};

// One bar of an RSI: the averages of gains and losses, both divided by alpha.
__device__ __forceinline__ void rsi_bar(Rsi law, REAL before, REAL price, i32& count, REAL& a, REAL& up, REAL& down) {
    if (price != price) {
        count = 0;
        a = 0;
        up = 0;
        down = 0;
        return;
    }
    count += count <= law.settled;
    if (count == 1) {
        a = 0;
        up = 0;
        down = 0;
        return;
    }
    REAL change = price - before;
    REAL gain = change <= 0 ? (REAL)0 : change, loss = change >= 0 ? (REAL)0 : -change;
    if (count <= law.warm) {
        up = up + law.first * gain;
        down = down + law.first * loss;
    } else {
        up = law.beta * up + gain;
        down = law.beta * down + loss;
        a = a * law.beta;
    }
}

extern "C" __global__ void __launch_bounds__(SEGMENTS)
gaps(const REAL* prices, i64 time, i64 tiles, i64* last) {
    __shared__ i64 found[SEGMENTS];
    i64 row = blockIdx.x / tiles, start = blockIdx.x % tiles * TILE, own = -1;
    for (i32 j = (i32)threadIdx.x; j < TILE && start + j < time; j += SEGMENTS) {
        REAL price = prices[row * time + start + j];
        if (price != price) own = start + j;
    }
    found[threadIdx.x] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (i32 s = 1; s < SEGMENTS; ++s) own = found[s] > own ? found[s] : own;
        last[blockIdx.x] = own;
    }
}

extern "C" __global__ void __launch_bounds__(SEGMENTS)
ema_reduce(const REAL* prices, i64 time, i64 tiles, const i64* gaps, REAL beta, i32 warm, i32 valid, i32 settled,
           i32* counts, REAL* maps_a, REAL* maps_b) {
    __shared__ REAL x[SLOTS], a[SEGMENTS], b[SEGMENTS];
    __shared__ i32 last[SEGMENTS], tile_count;
    i64 task = blockIdx.x, row = task / tiles, tile = task % tiles, start = tile * TILE;
    i32 s = (i32)threadIdx.x, bars = bars_of_segment(time, start);
    load_tile(prices + row * time, time, start, x);
    i32 count = count_before(x, gaps, task, tile, bars, settled, last, &tile_count);
    counts[task * SEGMENTS + s] = count;
    Ema law = {beta, warm, valid, settled};
    REAL factor = 1, y = 0, filled = (REAL)(count < warm ? count : warm);
    for (i32 i = 0; i < bars; ++i) {
        i32 j = s * SEGMENT + i;
        ema_bar(law, x[slot(j)], x[slot(j + 1)], count, filled, factor, y);
    }
    a[s] = factor;
    b[s] = y;
    compose(a, b);
    maps_a[task * SEGMENTS + s] = a[s];
    maps_b[task * SEGMENTS + s] = b[s];
}

extern "C" __global__ void __launch_bounds__(SEGMENTS)
ema_run(const REAL* prices, i64 time, i64 tiles, REAL beta, i32 warm, i32 valid, i32 settled, i32 look_back,
        const i32* counts, const REAL* maps_a, const REAL* maps_b, const REAL* entry, REAL nan, REAL* out) {
    __shared__ REAL x[SLOTS];
    i64 task = blockIdx.x, row = task / tiles, tile = task % tiles, start = tile * TILE;
    i32 s = (i32)threadIdx.x, bars = bars_of_segment(time, start), count = counts[task * SEGMENTS + s];
    load_tile(prices + row * time, time, start, x);
    Ema law = {beta, warm, valid, settled};
    REAL y = enter(maps_a, maps_b, entry, task, tile, look_back);
    REAL factor = 1, filled = (REAL)(count < warm ? count : warm), before = x[slot(s * SEGMENT)];
    __syncthreads();  // results replace prices from here on, and the next segment has read the last price of this one
    for (i32 i = 0; i < bars; ++i) {
        REAL& cell = x[slot(s * SEGMENT + i + 1)];
        REAL price = cell;
        ema_bar(law, before, price, count, filled, factor, y);
        cell = count >= valid ? price + y : nan;
        before = price;
    }
    store_tile(x, time, start, out + row * time);
}

extern "C" __global__ void __launch_bounds__(SEGMENTS)
rsi_reduce(const REAL* prices, i64 time, i64 tiles, const i64* gaps, REAL beta, REAL first, i32 warm, i32 valid,
           i32 settled, i32* counts, REAL* maps_a, REAL* maps_up, REAL* maps_down) {
    __shared__ REAL x[SLOTS], a[SEGMENTS], up[SEGMENTS], again[SEGMENTS], down[SEGMENTS];
    __shared__ i32 last[SEGMENTS], tile_count;
    i64 task = blockIdx.x, row = task / tiles, tile = task % tiles, start = tile * TILE;
    i32 s = (i32)threadIdx.x, bars = bars_of_segment(time, start);
    load_tile(prices + row * time, time, start, x);
    i32 count = count_before(x, gaps, task, tile, bars, settled, last, &tile_count);
    counts[task * SEGMENTS + s] = count;
    Rsi law = {beta, first, warm, valid, settled};
    REAL factor = 1, gains = 0, losses = 0;
    for (i32 i = 0; i < bars; ++i) {
        i32 j = s * SEGMENT + i;
        rsi_bar(law, x[slot(j)], x[slot(j + 1)], count, factor, gains, losses);
    }
    a[s] = again[s] = factor;
    up[s] = gains;
    down[s] = losses;
    compose(a, up);
    compose(again, down);
    maps_a[task * SEGMENTS + s] = a[s];
    maps_up[task * SEGMENTS + s] = up[s];
    maps_down[task * SEGMENTS + s] = down[s];
}

// `held` of a tile says that a bar of it awaits rsi_hold; `ends` is the last RSI known in the tile (`flat` after a gap),
// HOLD where the whole tile waits.
extern "C" __global__ void __launch_bounds__(SEGMENTS)
rsi_run(const REAL* prices, i64 time, i64 tiles, REAL beta, REAL first, i32 warm, i32 valid, i32 settled, i32 look_back,
        const i32* counts, const REAL* maps_a, const REAL* maps_up, const REAL* maps_down, const REAL* entry_up,
        const REAL* entry_down, REAL tiny, REAL flat, REAL nan, i32* held, REAL* ends, REAL* out) {
    __shared__ REAL x[SLOTS];
    __shared__ i32 waits[SEGMENTS];
    i64 task = blockIdx.x, row = task / tiles, tile = task % tiles, start = tile * TILE;
    i32 s = (i32)threadIdx.x, bars = bars_of_segment(time, start), count = counts[task * SEGMENTS + s], waiting = 0;
    load_tile(prices + row * time, time, start, x);
    Rsi law = {beta, first, warm, valid, settled};
    REAL gains = enter(maps_a, maps_up, entry_up, task, tile, look_back);
    REAL losses = enter(maps_a, maps_down, entry_down, task, tile, look_back);
    REAL factor = 1, before = x[slot(s * SEGMENT)];
    __syncthreads();  // results replace prices from here on, and the next segment has read the last price of this one
    for (i32 i = 0; i < bars; ++i) {
        REAL& cell = x[slot(s * SEGMENT + i + 1)];
        REAL price = cell, shown = nan;
        rsi_bar(law, before, price, count, factor, gains, losses);
        if (count >= valid) {
            REAL total = gains + losses;
            REAL index = (REAL)100 * (gains / total) + (total - total);  // NaN where gains or losses overflowed
            shown = total <= tiny ? HOLD : index == index ? index : nan;
            waiting |= total <= tiny;
        }
        cell = shown;
        before = price;
    }
    waits[s] = waiting;
    store_tile(x, time, start, out + row * time);
    if (s == 0) {
        for (i32 other = 1; other < SEGMENTS; ++other) waiting |= waits[other];
        held[task] = waiting;
        REAL end = HOLD;
        for (i32 j = at_most(time - start, TILE); j > 0 && end == HOLD; --j) end = x[slot(j)];
        ends[task] = end == end ? end : flat;
    }
}

extern "C" __global__ void __launch_bounds__(SEGMENTS)
rsi_hold(i64 time, i64 tiles, const i32* held, const REAL* ends, REAL flat, REAL* rsi) {
    __shared__ REAL x[SLOTS], known[SEGMENTS];
    i64 task = blockIdx.x, row = task / tiles, tile = task % tiles, start = tile * TILE;
    i32 s = (i32)threadIdx.x, bars = bars_of_segment(time, start);
    if (!held[task]) return;
    for (i32 j = s; j < TILE; j += SEGMENTS)  // not the bar before, as load_tile does: another block may be writing it
        x[slot(j + 1)] = start + j < time ? rsi[row * time + start + j] : (REAL)0;
    __syncthreads();
    REAL last = HOLD;
    for (i32 i = bars; i > 0 && last == HOLD; --i) last = x[slot(s * SEGMENT + i)];
    known[s] = last == last ? last : flat;
    __syncthreads();
    last = HOLD;
    for (i32 other = s - 1; other >= 0 && last == HOLD; --other) last = known[other];
    for (i64 back = 1; back <= tile && last == HOLD; ++back) last = ends[task - back];
    if (last == HOLD) last = flat;
    for (i32 i = 0; i < bars; ++i) {
        REAL& cell = x[slot(s * SEGMENT + i + 1)];
        if (cell == HOLD)
            cell = last;
        else
            last = cell == cell ? cell : flat;
    }
    store_tile(x, time, start, rsi + row * time);
}

extern "C" __global__ void __launch_bounds__(SEGMENTS)
carry(i64 rows, i64 tiles, const REAL* maps_a, const REAL* maps_b, REAL* entry) {
    i64 row = blockIdx.x * (i64)SEGMENTS + threadIdx.x;
    if (row >= rows) return;
    REAL y = 0;
    for (i64 tile = 0; tile < tiles; ++tile) {
        i64 at = (row * tiles + tile) * SEGMENTS + SEGMENTS - 1;
        entry[row * tiles + tile] = y;
        y = maps_b[at] + maps_a[at] * y;
    }
}
