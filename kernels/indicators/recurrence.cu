// EMA and RSI by affine maps: segments of 32 bars, tiles of 64 segments, exact carries (mathematics: recurrence.py).
//
// Prices and results are (rows, time), row by row. Every bar maps the state y to a y + u: a = beta once a run of prices has
// settled, 1 while it fills its seed, 0 at its first bar and where there is no price.
//
// One pass. A block of 64 threads takes a ticket, which names its tile of 2,048 bars, and reads the tile's prices once into
// shared memory. Then:
//   1. It publishes how many bars of the tile follow its last gap, and counts the bars since a gap before its own first bar
//      from what as many tiles before it published as a seed may reach back (one, where a seed is shorter than a tile).
//   2. Each thread runs a segment from state 0; a Kogge-Stone scan composes the segments, and the tile's map is published.
//   3. The state before the tile comes from maps of earlier tiles, oldest first: of `look_back` tiles; or, where that is 0,
//      of the tiles before it in its group of 64, of the groups before that in its span of 64, and from the state before
//      the span, which is the only chain: one link in 8,388,608 bars.
//   4. Each thread runs its segment again from its exact state, and the results leave through shared memory.
// A block waits for earlier tickets alone. Which maps it composes, and in which order, is a function of its tile. Where gains
// and losses have decayed to nothing an RSI repeats the last one; a tile that begins so looks for it in earlier tiles: a
// copy, so that neither where it is found nor when shows. Rows that are shorter than a tile share a block, `packed` of
// them with `width` segments each, and wait for nobody.
//
// Launch. Segments of 32 bars, tiles of 64 of them, groups and spans decide bytes, so that a tile has 64 threads everywhere,
// and a block for itself: tickets let them wait for each other however few are resident. How many short rows share a
// block, of up to 192 threads, is free; recurrence_gpu.py lets the device choose.
//
// Bytes per bar in float64: 16, one read and one write, and 36 (EMA) or 44 (RSI) per tile for what is published: 0.1 %.
// Operations per bar in float64: twice 3 (EMA); twice 7, a division and 6 (RSI), 30 to 35 instructions. An H200 has time for
// some 60 while it moves 16 bytes. So memory bandwidth is the limit. Shared memory: 18 KiB (EMA), 18.5 KiB (RSI) per tile,
// which leaves room for 11 blocks on a multiprocessor of an H200. Registers in float64: RSI is bound to what 11 blocks have, 80
// per thread (the bounds say it for blocks of 192 threads, which have three tiles' share); EMA to 112, of which it takes up to
// 84: on some GPUs it spills where it is bound to fewer. 20,480 bars are 11 microseconds of the multiprocessor's share of
// the memory's rate, which may pass between reading a tile and writing it before waiting costs bandwidth. float32 takes half
// the shared memory; both are bound to 64 registers, enough for 16 blocks, since without a bound they spill on some GPUs.
// Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/sync.cuh"

#define SEGMENT 32
#define SEGMENTS 64
#define TILE (SEGMENT * SEGMENTS)
#define GROUP 64  // tiles of a group, and groups of a span
#define MOST_SEGMENTS 192  // of a block of rows, of which a thread has one each
#define HOLD ((REAL)-1)
#define ALL 0xffffffffu

__device__ __forceinline__ i32 slot(i32 bar) { return bar + bar / SEGMENT; }

__device__ __forceinline__ i32 at_most(i64 count, i32 limit) { return count < limit ? (i32)count : limit; }

__device__ __forceinline__ u32 wait_for(const u32* flag) {
    u32 value = load_acquire(flag);
    while (value == 0) {
        pause();
        value = load_acquire(flag);
    }
    return value;
}

// A mark says all that its writer has to say; so nothing else has to be ordered by it.
__device__ __forceinline__ u32 wait_for_mark(const u32* mark) {
    u32 value = load_relaxed(mark);
    while (value == 0) {
        pause();
        value = load_relaxed(mark);
    }
    return value;
}

// y -> a y + b for each of the K states, which share their factor.
template <i32 K> struct Map {
    REAL a, b[K];
};

template <i32 K> __device__ __forceinline__ Map<K> identity() {
    Map<K> map;
    map.a = 1;
    for (i32 k = 0; k < K; ++k) map.b[k] = 0;
    return map;
}

template <i32 K> __device__ __forceinline__ Map<K> composed(const Map<K>& early, Map<K> late) {
    for (i32 k = 0; k < K; ++k) late.b[k] = late.b[k] + late.a * early.b[k];
    late.a = late.a * early.a;
    return late;
}

// A table of maps: factors, then the offsets of each state.
template <i32 K> struct Maps {
    REAL* at;
    i64 size;
    __device__ __forceinline__ Map<K> get(i64 i) const {
        Map<K> map;
        map.a = at[i];
        for (i32 k = 0; k < K; ++k) map.b[k] = at[(1 + k) * size + i];
        return map;
    }
    __device__ __forceinline__ void put(i64 i, const Map<K>& map) const {
        at[i] = map.a;
        for (i32 k = 0; k < K; ++k) at[(1 + k) * size + i] = map.b[k];
    }
};

// Shared memory of a block, dynamic since it follows from the number of its threads.
template <i32 K> struct Space {
    REAL *x, *maps;  // the bar before the tile, its bars, and a gap after 32 against bank conflicts; a map for each segment
    u32* nans;  // a bit for each bar of a segment
    u32* marks;
    u32* ticket;

    __device__ __forceinline__ Space(REAL* all) {
        i32 segments = (i32)blockDim.x;
        x = all;
        maps = all + segments * (SEGMENT + 1) + 1;
        nans = reinterpret_cast<u32*>(maps + (1 + K) * segments);
        marks = nans + segments;
        ticket = marks + segments;
    }
};

struct Rows {
    const REAL* prices;
    REAL* out;
    i64 rows, time, tiles;
    i32 packed, width, look_back;
};

struct Board {
    u32* flags;  // all 0 at first
    REAL* tables;
    i64 groups, spans;  // of a row
};

struct Ema {
    static constexpr i32 K = 1;
    static constexpr bool HOLDS = false;
    REAL beta, decay;
    i32 warm, valid, settled, begins;  // the seed holds the bars `begins` to `warm` of a run
    REAL nan;

    __device__ __forceinline__ void step(REAL before, REAL price, REAL* y) const { y[0] = beta * (y[0] + (before - price)); }

    // One bar: y is the distance of the average from the price; while a seed fills, that of the sum of its prices.
    __device__ __forceinline__ void bar(REAL before, REAL price, i32& count, REAL& bars, Map<1>& map) const {
        if (price != price) {
            count = 0;
            bars = 0;
            map.a = 0;
            map.b[0] = 0;
            return;
        }
        count += count <= settled;
        if (count <= begins) {
            map.a = 0;
            map.b[0] = 0;
            bars = count == begins ? (REAL)1 : (REAL)0;
        } else if (count <= warm) {
            map.b[0] = map.b[0] + bars * (before - price);
            bars += 1;
            if (count == warm) {
                map.b[0] = map.b[0] / bars;
                map.a = map.a / bars;
            }
        } else {
            step(before, price, map.b);
            map.a = map.a * beta;
        }
    }

    __device__ __forceinline__ REAL shown(REAL price, const REAL* y) const { return price + y[0]; }

    // The bars that have gone into the seed after `count` bars of a run.
    __device__ __forceinline__ i32 filled(i32 count) const {
        i32 bars = (count < warm ? count : warm) - begins + 1;
        return bars < 0 ? 0 : bars;
    }
};

struct Rsi {
    static constexpr i32 K = 2;
    static constexpr bool HOLDS = true;
    REAL beta, decay, weight;
    i32 warm, valid, settled;
    REAL nan, tiny, flat;

    // The averages of gains and losses, both divided by alpha.
    __device__ __forceinline__ void step(REAL before, REAL price, REAL* y) const {
        REAL change = price - before;
        y[0] = beta * y[0] + (change <= 0 ? (REAL)0 : change);
        y[1] = beta * y[1] + (change >= 0 ? (REAL)0 : -change);
    }

    __device__ __forceinline__ void bar(REAL before, REAL price, i32& count, REAL&, Map<2>& map) const {
        if (price != price) {
            count = 0;
            map.a = map.b[0] = map.b[1] = 0;
            return;
        }
        count += count <= settled;
        if (count == 1) {
            map.a = map.b[0] = map.b[1] = 0;
        } else if (count <= warm) {
            REAL change = price - before;
            map.b[0] = map.b[0] + weight * (change <= 0 ? (REAL)0 : change);
            map.b[1] = map.b[1] + weight * (change >= 0 ? (REAL)0 : -change);
        } else {
            step(before, price, map.b);
            map.a = map.a * beta;
        }
    }

    __device__ __forceinline__ i32 filled(i32) const { return 0; }

    __device__ __forceinline__ REAL shown(REAL, const REAL* y) const {
        REAL total = y[0] + y[1];
        REAL index = (REAL)100 * (y[0] / total) + (total - total);  // NaN where gains or losses overflowed
        return total <= tiny ? HOLD : index == index ? index : nan;
    }
};

// The row, among those of this block, and the bar that slot `i` of this thread stands for; false where there is none.
__device__ __forceinline__ bool place(const Rows& in, i64 row, i64 start, i32 i, i32& own, i64& bar) {
    i32 segment = (i * (i32)blockDim.x + (i32)threadIdx.x) / SEGMENT;
    own = in.packed > 1 ? segment / in.width : 0;
    bar = start + (segment - own * in.width) * SEGMENT + (i32)threadIdx.x % 32;
    return own < in.packed && row + own < in.rows && bar < in.time;
}

// Whether a tile is full and alone in its block, so that nothing has to be asked for each of its bars.
__device__ __forceinline__ bool is_full(const Rows& in, i64 start) { return in.packed == 1 && start + TILE <= in.time; }

// Load the tile of each row of this block, row after row of `width` segments, and return whether a price is missing.
template <i32 K> __device__ __forceinline__ bool load(const Rows& in, i64 row, i64 start, Space<K>& space) {
    i32 s = (i32)threadIdx.x, threads = (i32)blockDim.x;
    const REAL* here = in.prices + row * in.time + start;
    bool missing = false, full = is_full(in, start);
    if (s == 0) space.x[0] = start > 0 ? here[-1] : (REAL)0;
    for (i32 i = 0; i < SEGMENT; i += 8) {
        REAL part[8];
        if (full) {
#pragma unroll
            for (i32 e = 0; e < 8; ++e) part[e] = here[(i + e) * SEGMENTS + s];
        } else {
#pragma unroll
            for (i32 e = 0; e < 8; ++e) {
                i32 own;
                i64 bar;
                part[e] = place(in, row, start, i + e, own, bar) ? in.prices[(row + own) * in.time + bar] : (REAL)0;
            }
        }
#pragma unroll
        for (i32 e = 0; e < 8; ++e) {
            i32 j = (i + e) * threads + s;
            space.x[slot(j + 1)] = part[e];
            u32 nans = __ballot_sync(ALL, part[e] != part[e]);
            if (s % 32 == 0) space.nans[j / SEGMENT] = nans;
            missing |= nans != 0;
        }
    }
    return __syncthreads_or(missing);
}

template <i32 K> __device__ __forceinline__ void store(const Rows& in, i64 row, i64 start, const Space<K>& space) {
    i32 s = (i32)threadIdx.x;
    REAL* here = in.out + row * in.time + start;
    if (is_full(in, start)) {
#pragma unroll 8
        for (i32 i = 0; i < SEGMENT; ++i) here[i * SEGMENTS + s] = space.x[slot(i * SEGMENTS + s + 1)];
        return;
    }
    for (i32 i = 0; i < SEGMENT; ++i) {
        i32 own;
        i64 bar;
        if (place(in, row, start, i, own, bar))
            in.out[(row + own) * in.time + bar] = space.x[slot(i * (i32)blockDim.x + s + 1)];
    }
}

// Bars since the last gap before a tile, at most settled + 1.
template <i32 K>
__device__ __forceinline__ i32 count_before_tile(const Rows& in, u32* gaps, i64 task, i64 tile, i32 settled, bool missing,
                                                 Space<K>& space) {
    i32 s = (i32)threadIdx.x;
    if (s == 0 && tile + 1 < in.tiles) {
        u32 mark = 1;  // no gap
        for (i32 segment = SEGMENTS - 1; missing && segment >= 0 && mark == 1; --segment)
            if (space.nans[segment]) mark = 2 + (u32)((SEGMENTS - 1 - segment) * SEGMENT + __clz((i32)space.nans[segment]));
        store_relaxed(gaps + task, mark);
    }
    i32 reach = at_most(tile, settled / TILE + 1), count = 0, i = 0;
    if (s < reach) space.marks[s] = wait_for_mark(gaps + task - 1 - s);
    if (reach) __syncthreads();
    for (; i < reach && space.marks[i] == 1; ++i) count += TILE;
    if (i < reach) count += (i32)space.marks[i] - 2;
    return at_most(count, settled + 1);
}

// Wait for `count` published maps from `from` on and compose them with `map`, oldest first.
template <i32 K>
__device__ __forceinline__ Map<K> compose_published(Map<K> map, i32 count, const u32* flags, Maps<K> maps, i64 from,
                                                    Maps<K> near) {
    __syncthreads();  // what is in shared memory has been read
    if ((i32)threadIdx.x < count) {
        wait_for(flags + from + threadIdx.x);
        near.put(threadIdx.x, maps.get(from + threadIdx.x));
    }
    __syncthreads();
#pragma unroll 1  // or RSI spills
    for (i32 i = 0; i < count; ++i) map = composed(map, near.get(i));
    return map;
}

// The state before a tile whose memory reaches through all tiles; publishes what later tiles need of it.
template <i32 K>
__device__ __forceinline__ void long_memory(const Rows& in, const Board& board, const u32* ready, Maps<K> tile_maps, i64 row,
                                            i64 task, i64 tile, const Map<K>& whole, Maps<K> near, REAL* state) {
    i64 groups = in.rows * board.groups, spans = in.rows * board.spans;
    u32 *group_ready = board.flags + 1 + 3 * in.rows * in.tiles, *span_ready = group_ready + groups;
    Maps<K> group_maps = {tile_maps.at + (2 + K) * in.rows * in.tiles, groups};
    REAL* span_states = group_maps.at + (1 + K) * groups;
    i64 group = row * board.groups + tile / GROUP, span = row * board.spans + tile / (GROUP * GROUP);
    i32 in_group = (i32)(tile % GROUP), in_span = (i32)(tile / GROUP % GROUP);
    bool last = (i32)threadIdx.x == 0, begun = tile >= GROUP * GROUP;

    Map<K> tiles = compose_published(identity<K>(), in_group, ready, tile_maps, task - in_group, near);
    Map<K> through = composed(tiles, whole);
    if (last && in_group == GROUP - 1) {
        group_maps.put(group, through);
        store_release(group_ready + group, 1u);
    }
    Map<K> over = compose_published(identity<K>(), in_span, group_ready, group_maps, group - in_span, near);
    if (begun) wait_for(span_ready + span);
    REAL y[K];
    for (i32 k = 0; k < K; ++k) {
        y[k] = 0;
        if (begun) y[k] = span_states[k * spans + span];
        state[k] = tiles.b[k] + tiles.a * (over.b[k] + over.a * y[k]);
    }
    if (last && in_group == GROUP - 1 && in_span == GROUP - 1 && tile + 1 < in.tiles) {
        over = composed(over, through);
        for (i32 k = 0; k < K; ++k) span_states[k * spans + span + 1] = over.b[k] + over.a * y[k];
        store_release(span_ready + span + 1, 1u);
    }
}

// The last RSI known before a tile that begins without one: `flat` at the start of a row.
template <i32 K>
__device__ __forceinline__ REAL held_before(const Rows& in, const u32* ended, const REAL* ends, i64 task, i64 tile, REAL flat,
                                            Space<K>& space) {
    i32 s = (i32)threadIdx.x;
    for (i64 back = 1; tile - back >= 0; back += SEGMENTS) {
        i64 other = tile - back - s;
        bool known = other >= 0 && wait_for(ended + task - back - s) == 2;
        __syncthreads();
        space.marks[s] = known;
        space.maps[s] = known ? ends[task - back - s] : HOLD;
        __syncthreads();
        for (i32 i = 0; i < SEGMENTS; ++i)
            if (space.marks[i]) return space.maps[i];
    }
    return flat;
}

// Repeat the last RSI where gains and losses have decayed to nothing, in the rows of a block or in a tile.
template <i32 K>
__device__ __forceinline__ void hold(const Rows& in, const Board& board, i64 task, i64 tile, i32 bars, i32 held, i32 lane,
                                     REAL flat, Space<K>& space) {
    i32 s = (i32)threadIdx.x;
    u32* ended = board.flags + 1 + 2 * in.rows * in.tiles;
    REAL* ends = board.tables + (1 + K) * in.rows * in.tiles;
    i32 any = __syncthreads_or(held);
    if (s == 0 && tile + 1 < in.tiles) {
        REAL end = HOLD;
        for (i32 j = TILE; j > 0 && end == HOLD; --j) end = space.x[slot(j)];
        ends[task] = end == end ? end : flat;
        store_release(ended + task, end == HOLD ? 1u : 2u);
    }
    if (!any) return;
    REAL earlier = flat;
    if (tile > 0) {  // of one row
        bool asks = space.x[slot(1)] == HOLD, all = asks;
        if (asks) earlier = held_before(in, ended, ends, task, tile, flat, space);
        for (i32 j = TILE; all && j > 1; --j) all = space.x[slot(j)] == HOLD;
        if (all && s == 0 && tile + 1 < in.tiles) {
            ends[task] = earlier;
            store_release(ended + task, 2u);
        }
    }
    REAL last = HOLD;
    for (i32 i = bars; i > 0 && last == HOLD; --i) last = space.x[slot(s * SEGMENT + i)];
    __syncthreads();
    space.maps[s] = last == last ? last : flat;
    __syncthreads();
    last = HOLD;
    for (i32 back = 1; back <= lane && last == HOLD; ++back) last = space.maps[s - back];
    if (last == HOLD) last = earlier;
    for (i32 i = 0; i < bars; ++i) {
        REAL& cell = space.x[slot(s * SEGMENT + i + 1)];
        if (cell == HOLD)
            cell = last;
        else
            last = cell == cell ? cell : flat;
    }
}

template <class Law>
__device__ __forceinline__ void run(const Law& law, const Rows& in, const Board& board, Space<Law::K>& space) {
    constexpr i32 K = Law::K;
    i32 s = (i32)threadIdx.x;
    if (s == 0) *space.ticket = in.tiles > 1 ? add_relaxed(board.flags, 1u) : (u32)blockIdx.x;
    __syncthreads();
    i64 tasks = in.rows * in.tiles, task = *space.ticket, row = in.tiles > 1 ? task / in.tiles : task * in.packed;
    i64 tile = in.tiles > 1 ? task % in.tiles : 0, start = tile * TILE;
    u32 *gaps = board.flags + 1, *ready = gaps + tasks;
    Maps<K> tile_maps = {board.tables, tasks}, near = {space.maps, (i64)blockDim.x};
    i32 own = s / in.width, lane = s % in.width;  // the row among those of this block, and the segment of its tile
    i64 left = in.time - start - lane * SEGMENT;
    i32 bars = own < in.packed && row + own < in.rows && left > 0 ? at_most(left, SEGMENT) : 0;

    bool missing = load(in, row, start, space);
    i32 count = at_most(count_before_tile(in, gaps, task, tile, law.settled, missing, space) + lane * SEGMENT, law.settled + 1);
    for (i32 back = 1; missing && back <= lane; ++back)
        if (space.nans[s - back]) {
            count = at_most((back - 1) * SEGMENT + __clz((i32)space.nans[s - back]), law.settled + 1);
            break;
        }

    REAL edge = space.x[slot(s * SEGMENT)];
    bool plain = count >= law.settled && space.nans[s] == 0 && bars == SEGMENT;
    Map<K> map = identity<K>();
    {
        REAL before = edge, filled = (REAL)law.filled(count);
        i32 reached = count;
        for (i32 i = 0; i < bars; ++i) {
            REAL price = space.x[slot(s * SEGMENT + i + 1)];
            if (plain)
                law.step(before, price, map.b);
            else
                law.bar(before, price, reached, filled, map);
            before = price;
        }
        if (plain) map.a = law.decay;
    }
    near.put(s, map);
    for (i32 h = 1; h < in.width; h *= 2) {
        __syncthreads();
        if (lane >= h) map = composed(near.get(s - h), map);
        __syncthreads();
        near.put(s, map);
    }
    if (s == SEGMENTS - 1 && tile + 1 < in.tiles) {
        tile_maps.put(task, map);
        store_release(ready + task, 1u);
    }

    __syncthreads();
    Map<K> earlier = lane > 0 ? near.get(s - 1) : identity<K>(), state = identity<K>();
    if (in.look_back > 0) {
        i32 known = at_most(tile, in.look_back);
        if (known) state = compose_published(state, known, ready, tile_maps, task - known, near);
    } else if (tile > 0) {
        Map<K> whole = near.get((i64)blockDim.x - 1);
        long_memory(in, board, ready, tile_maps, row, task, tile, whole, near, state.b);
    }
    if (lane > 0)
        for (i32 k = 0; k < K; ++k) state.b[k] = earlier.b[k] + earlier.a * state.b[k];

    REAL before = edge, filled = (REAL)law.filled(count);
    i32 held = 0;
    for (i32 i = 0; i < bars; ++i) {
        REAL& cell = space.x[slot(s * SEGMENT + i + 1)];
        REAL price = cell;
        if (plain)
            law.step(before, price, state.b);
        else
            law.bar(before, price, count, filled, state);
        REAL shown = plain || count >= law.valid ? law.shown(price, state.b) : law.nan;
        if (Law::HOLDS) held |= shown == HOLD;
        cell = shown;
        before = price;
    }
    if constexpr (Law::HOLDS) hold(in, board, task, tile, bars, held, lane, law.flat, space);
    __syncthreads();
    store(in, row, start, space);
}

extern "C" __global__ void __launch_bounds__(MOST_SEGMENTS, sizeof(REAL) == 8 ? 3 : 5)
ema(const REAL* prices, i64 rows, i64 time, i64 tiles, i32 packed, i32 width, i32 look_back, i64 groups, i64 spans,
    u32* flags, REAL* tables, REAL* out, REAL beta, REAL decay,
    i32 warm, i32 valid, i32 settled, REAL nan, i32 begins) {
    extern __shared__ REAL shared[];
    Space<1> space(shared);
    Rows in = {prices, out, rows, time, tiles, packed, width, look_back};
    Board board = {flags, tables, groups, spans};
    run(Ema{beta, decay, warm, valid, settled, begins, nan}, in, board, space);
}

extern "C" __global__ void __launch_bounds__(MOST_SEGMENTS, sizeof(REAL) == 8 ? 4 : 5)
rsi(const REAL* prices, i64 rows, i64 time, i64 tiles, i32 packed, i32 width, i32 look_back, i64 groups, i64 spans,
    u32* flags, REAL* tables, REAL* out, REAL beta, REAL decay,
    i32 warm, i32 valid, i32 settled, REAL nan, REAL weight, REAL tiny, REAL flat) {
    extern __shared__ REAL shared[];
    Space<2> space(shared);
    Rows in = {prices, out, rows, time, tiles, packed, width, look_back};
    Board board = {flags, tables, groups, spans};
    run(Rsi{beta, decay, weight, warm, valid, settled, nan, tiny, flat}, in, board, space);
}
