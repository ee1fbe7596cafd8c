// y <- a y + b from bar to bar, and y <- b where a is 0; from y = 0 before a row. The twin of _scan_tile in program_loops.py.
//
// The order decides the last bits. A row is cut into segments of 32 bars and tiles of 64 segments. Each segment, run from 0,
// becomes a map y -> factor y + offset. The state before a segment is that before its tile, mapped through the segments
// before it one after another; the state before a tile is that before the tile before it, mapped through the composition
// of all its segments.
//
// Three launches: scan_maps leaves the map of each tile, scan_chain takes the states through the tiles of each row, a thread
// per row, and scan_run runs every segment from its exact state. A row of one tile needs the last alone. A block has 64
// threads and one tile, which it loads into shared memory side by side.
//
// Bytes per bar in float64: 16 (scan_maps) and 24 (scan_run), or 24 in all where rows have one tile; 8 less each where a is
// one number. Operations per bar: 4 and 2, which is nothing beside it: memory bandwidth is the limit. scan_chain waits for
// memory once a tile: some 0.1 ms for a row of a million bars, which other rows do not add to. Shared memory: 34 KiB a
// block in float64, six of them to an H200's multiprocessor, with 12 KiB in flight each. Registers: up to 44 a thread, on
// sm_120 up to 78, no spills.
// Not yet measured on a GPU.

#include "device/types.cuh"

#define SEGMENT 32
#define SEGMENTS 64
#define TILE (SEGMENT * SEGMENTS)

__device__ __forceinline__ i32 slot(i32 bar) { return bar + bar / SEGMENT; }

__device__ __forceinline__ REAL applied(REAL a, REAL b, REAL y) { return a == 0 ? b : a * y + b; }

// A tile in shared memory, a gap after each segment against bank conflicts. Bars beyond the row change nothing.
struct Tile {
    REAL *a, *b;
    i64 start;
    i32 count;

    __device__ __forceinline__ Tile(const REAL* factors, i32 is_fixed, REAL fixed, const REAL* offsets, i64 time, i64 tiles,
                                    REAL* a, REAL* b)
        : a(a), b(b) {
        i64 row = blockIdx.x / tiles * time, bar = blockIdx.x % tiles * TILE;
        start = row + bar;
        count = time - bar < TILE ? (i32)(time - bar) : TILE;
        for (i32 j = (i32)threadIdx.x; j < TILE; j += SEGMENTS) {
            bool here = j < count;
            a[slot(j)] = !here ? (REAL)1 : is_fixed ? fixed : factors[start + j];
            b[slot(j)] = here ? offsets[start + j] : (REAL)0;
        }
        __syncthreads();
    }
};

// The map of this thread's segment.
__device__ __forceinline__ void reduce(const Tile& tile, REAL* factors, REAL* offsets) {
    i32 s = (i32)threadIdx.x;
    REAL factor = 1, offset = 0;
    for (i32 i = 0; i < SEGMENT; ++i) {
        REAL a = tile.a[slot(s * SEGMENT + i)];
        offset = applied(a, tile.b[slot(s * SEGMENT + i)], offset);
        factor = applied(a, 0, factor);
    }
    factors[s] = factor;
    offsets[s] = offset;
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(SEGMENTS)
scan_maps(const REAL* a, i32 is_fixed, REAL fixed, const REAL* b, i64 time, i64 tiles, i64 tasks, REAL* maps) {
    __shared__ REAL space[2][TILE + SEGMENTS], factors[SEGMENTS], offsets[SEGMENTS];
    Tile tile(a, is_fixed, fixed, b, time, tiles, space[0], space[1]);
    reduce(tile, factors, offsets);
    if (threadIdx.x) return;
    REAL factor = 1, offset = 0;
    for (i32 s = 0; s < SEGMENTS; ++s) {
        offset = applied(factors[s], offsets[s], offset);
        factor = applied(factors[s], 0, factor);
    }
    maps[blockIdx.x] = factor;
    maps[tasks + blockIdx.x] = offset;
}

// The state before each tile, in the place of the tile's factor.
extern "C" __global__ void __launch_bounds__(SEGMENTS)
scan_chain(REAL* maps, i64 rows, i64 tiles) {
    i64 row = (i64)blockIdx.x * SEGMENTS + threadIdx.x;
    if (row >= rows) return;
    REAL y = 0;
    for (i64 task = row * tiles; task < (row + 1) * tiles; ++task) {
        REAL factor = maps[task];
        maps[task] = y;
        y = applied(factor, maps[rows * tiles + task], y);
    }
}

extern "C" __global__ void __launch_bounds__(SEGMENTS)
scan_run(const REAL* a, i32 is_fixed, REAL fixed, const REAL* b, i64 time, i64 tiles, const REAL* states, REAL* out) {
    __shared__ REAL space[2][TILE + SEGMENTS], factors[SEGMENTS], offsets[SEGMENTS];
    Tile tile(a, is_fixed, fixed, b, time, tiles, space[0], space[1]);
    reduce(tile, factors, offsets);
    i32 thread = (i32)threadIdx.x;
    if (thread == 0) {
        REAL y = tiles > 1 ? states[blockIdx.x] : (REAL)0;
        for (i32 s = 0; s < SEGMENTS; ++s) {
            REAL before = y;
            y = applied(factors[s], offsets[s], y);
            offsets[s] = before;
        }
    }
    __syncthreads();
    REAL y = offsets[thread];
    for (i32 i = 0; i < SEGMENT; ++i) {
        i32 at = slot(thread * SEGMENT + i);
        y = applied(tile.a[at], tile.b[at], y);
        tile.b[at] = y;
    }
    __syncthreads();
    for (i32 j = thread; j < tile.count; j += SEGMENTS) out[tile.start + j] = tile.b[slot(j)];
}
