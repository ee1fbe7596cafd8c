// Elementwise operations and reductions of one REAL, f64 or f32. Twin of loops.py; tiles.py says what is computed.
//
// Elementwise: y[i] = x[i] + y[i], x[i] * y[i], or alpha * x[i] + y[i], rounded after the product and after the sum.
//
// Reductions work on rows of n elements, cut into `tiles` tiles of TILE, the last one shorter; a launch does the tiles
// [first, last) of all, counted through the rows, and x begins where tile `first` does. Lane l of LANES adds the elements
// l, l + LANES, ... of its tile in float64, then lanes are halved: l takes l + 512, down to l + 1. Rows of no more than
// LANES have one element in a lane, and a warp does one alone. The host pairs the tiles of a row.
//   sum_tiles      sums[tile - first] = sum of x
//   dot_tiles      of x y, where the product of two float32 is exact
//   norm1_tiles    of |x|
//   norm2_tiles    of (x 2^scale)^2, scales[tile - first] = the exponent that brings the tile's largest magnitude to [2, 4)
//   greatest_tiles keys[tile - first] = the greatest of the integers that order x (or -x, or |x|), NaN above all
//
// Memory: elementwise arrays are allocations of their own, so that packs of 16 bytes are aligned; a warp reads 512 bytes
// side by side. Reductions read 256 (f64) or 128 (f32) bytes a warp, any alignment.
// Launch. TILE and LANES decide bytes and are constants, and so are the 256 threads of a tile, for whom reduce.cuh unrolls
// its tree. How many warps share a block is free elsewhere, and suits the device (gpu.py): up to 16 where each has 2 KiB of x
// (elementwise), up to 8 where each has a row of at most LANES elements (always 8 in norm2_tiles). Static shared memory at
// most 2 KiB + 64 bytes.
//
// Per element: add, multiply, axpy read two numbers and write one, 1 or 2 operations; reductions read one (dot: two), with
// 1 (sum, norm1), 2 (dot) or 3 (norm2) operations in float64 and about 5 on integers (greatest), and write 8 or 12 bytes a
// tile. All are bound by memory: 8 bytes an element of a float64 sum are 1.7 ps at 4.8 TB/s. Only where float64 runs at 1/64
// of float32 (GeForce) do reductions of float32 reach the limit of arithmetic first.
// Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/reduce.cuh"

#define THREADS 256       // of a tile
#define MOST_THREADS 512  // of an elementwise block
const int TILE = 8192;
const int LANES = 1024;
const int SLOTS = LANES / THREADS;  // lanes of a thread: its own, and every 256th after it

const int PACK = 16 / sizeof(REAL);
const int PACKS = 4;
struct __align__(16) Pack {
    REAL at[PACK];
};

// y[i] = both(x[i], y[i]), PACKS times 16 bytes of each in a thread, all read before the first is written; what is left
// over by packs goes one by one. A warp's packs lie side by side, so that their distances are constants.
template <class Both>
__device__ __forceinline__ void elementwise(u64 n, const REAL* x, REAL* y, Both both) {
    const u64 packs = n / PACK, warp = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const u64 first = warp * 32 * PACKS + threadIdx.x % 32;
    Pack xs[PACKS], ys[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const u64 p = first + k * 32;
        if (p < packs) {
            xs[k] = reinterpret_cast<const Pack*>(x)[p];
            ys[k] = reinterpret_cast<Pack*>(y)[p];
        }
    }
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const u64 p = first + k * 32;
        if (p < packs) {
#pragma unroll
            for (int i = 0; i < PACK; ++i) ys[k].at[i] = both(xs[k].at[i], ys[k].at[i]);
            reinterpret_cast<Pack*>(y)[p] = ys[k];
        }
    }
    const u64 left = packs * PACK + threadIdx.x;
    if (blockIdx.x == 0 && left < n) y[left] = both(x[left], y[left]);
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS) add(u64 n, const REAL* x, REAL* y) {
    elementwise(n, x, y, [](REAL a, REAL b) { return a + b; });
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS) multiply(u64 n, const REAL* x, REAL* y) {
    elementwise(n, x, y, [](REAL a, REAL b) { return a * b; });
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS) axpy(REAL alpha, u64 n, const REAL* x, REAL* y) {
    elementwise(n, x, y, [alpha](REAL a, REAL b) { return alpha * a + b; });
}

// The tile of a block, or the row of a warp: where it begins in x, and how many elements it has.
struct Place {
    u64 start;
    u32 count;
};

__device__ __forceinline__ u64 offset(u64 tile, u64 n, u64 tiles) { return tile / tiles * n + tile % tiles * TILE; }

__device__ __forceinline__ Place place(u64 tile, u64 n, u64 tiles, u64 first) {
    const u64 left = n - tile % tiles * TILE;
    return {offset(tile, n, tiles) - offset(first, n, tiles), left < TILE ? (u32)left : TILE};
}

// Which tile of the launch this block, or this warp, does, where `warps` share a block.
__device__ __forceinline__ u64 task(u64 n, u32 warps) {
    return n > LANES ? blockIdx.x : (u64)blockIdx.x * warps + threadIdx.x / 32;
}

// Element `line` LANES + lane of a block's tile, for this thread's lane of a slot.
__device__ __forceinline__ u32 element(int line, int slot) { return line * LANES + slot * THREADS + threadIdx.x; }

// sums[task] = the tree over term(i) of the elements i of its tile.
template <class Term>
__device__ __forceinline__ void add_up(u64 n, u64 tiles, u64 first, u64 last, f64* sums, Term term) {
    __shared__ f64 lanes[REDUCE_BLOCK];
    const u64 task_ = task(n, blockDim.x / 32);
    if (task_ >= last - first) return;  // all threads that meet below, together
    const Place at = place(first + task_, n, tiles, first);
    f64 sum;
    if (n > LANES) {
        f64 held[SLOTS] = {0.0, 0.0, 0.0, 0.0};
#pragma unroll
        for (int line = 0; line < TILE / LANES; ++line) {
#pragma unroll
            for (int slot = 0; slot < SLOTS; ++slot) {
                const u32 i = element(line, slot);
                if (i < at.count) held[slot] += term(at.start + i);
            }
        }
        const f64 mine[1] = {(held[0] + held[2]) + (held[1] + held[3])};
        sum = tree_sums(mine, lanes);
        if (threadIdx.x != 0) return;
    } else {
        f64 held[LANES / 32];
#pragma unroll
        for (int k = 0; k < LANES / 32; ++k) {
            const u32 i = k * 32 + threadIdx.x % 32;
            held[k] = i < at.count ? 0.0 + term(at.start + i) : 0.0;  // a lane begins at +0.0
        }
#pragma unroll
        for (int stride = LANES / 64; stride > 0; stride /= 2) {
#pragma unroll
            for (int k = 0; k < stride; ++k) held[k] += held[k + stride];
        }
        sum = warp_tree_sum(held[0]);
        if (threadIdx.x % 32 != 0) return;
    }
    sums[task_] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sum_tiles(const REAL* x, u64 n, u64 tiles, u64 first, u64 last, f64* sums) {
    add_up(n, tiles, first, last, sums, [x](u64 i) { return (f64)x[i]; });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    dot_tiles(const REAL* x, const REAL* y, u64 n, u64 tiles, u64 first, u64 last, f64* sums) {
    add_up(n, tiles, first, last, sums, [x, y](u64 i) { return (f64)x[i] * (f64)y[i]; });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    norm1_tiles(const REAL* x, u64 n, u64 tiles, u64 first, u64 last, f64* sums) {
    add_up(n, tiles, first, last, sums, [x](u64 i) {
        const f64 value = (f64)x[i];
        return value < 0.0 ? -value : value;
    });
}

__device__ __forceinline__ i32 exponent_of(f64 x) { return (__double2hiint(x) >> 20) & 0x7ff; }

// The exponent by which numbers are scaled whose greatest biased exponent is this: as in loops.py.
__device__ __forceinline__ i32 scale_of(i32 exponent) {
    if (exponent == 2047) return 0;
    return exponent > 0 ? 1024 - exponent : 1023;
}

__device__ __forceinline__ f64 power_of_two(i32 exponent) { return __hiloint2double((exponent + 1023) << 20, 0); }

extern "C" __global__ void __launch_bounds__(THREADS)
    norm2_tiles(const REAL* x, u64 n, u64 tiles, u64 first, u64 last, f64* sums, i32* scales) {
    __shared__ f64 lanes[REDUCE_BLOCK];
    __shared__ i32 exponents[REDUCE_WARPS];
    const u64 task_ = task(n, REDUCE_WARPS);  // another number costs two registers, and these a third of the blocks
    if (task_ >= last - first) return;
    const Place at = place(first + task_, n, tiles, first);
    const bool long_rows = n > LANES;
    f64 held[TILE / THREADS];  // as many as a warp needs for a short row
    i32 exponent = 0;
#pragma unroll
    for (int k = 0; k < TILE / THREADS; ++k) {
        const u32 i = long_rows ? element(k / SLOTS, k % SLOTS) : k * 32 + threadIdx.x % 32;
        held[k] = i < at.count ? (f64)x[at.start + i] : 0.0;
        exponent = max(exponent, exponent_of(held[k]));
    }
    const i32 scale = scale_of(long_rows ? block_greatest(exponent, exponents) : warp_greatest(exponent));
    const f64 factor = power_of_two(scale);
#pragma unroll
    for (int k = 0; k < TILE / THREADS; ++k) {
        const f64 scaled = held[k] * factor;
        held[k] = scaled * scaled;
    }
    f64 sum;
    if (long_rows) {
#pragma unroll
        for (int k = SLOTS; k < TILE / THREADS; ++k) held[k % SLOTS] += held[k];
        const f64 mine[1] = {(held[0] + held[2]) + (held[1] + held[3])};
        sum = tree_sums(mine, lanes);
        if (threadIdx.x != 0) return;
    } else {
#pragma unroll
        for (int stride = LANES / 64; stride > 0; stride /= 2) {
#pragma unroll
            for (int k = 0; k < stride; ++k) held[k] += held[k + stride];
        }
        sum = warp_tree_sum(held[0]);
        if (threadIdx.x % 32 != 0) return;
    }
    sums[task_] = sum;
    scales[task_] = scale;
}

__device__ __forceinline__ i64 bits_of(f64 x) { return __double_as_longlong(x); }
__device__ __forceinline__ i64 bits_of(f32 x) { return __float_as_int(x); }

#define MIN 1
#define MAGNITUDE 2

// Integers in the order of the floats: for MAX (0) of x, for MIN of -x, for MAGNITUDE of |x|; NaN is the greatest.
__device__ __forceinline__ i64 key_of(REAL x, i32 which) {
    const i64 most = sizeof(REAL) == 8 ? 0x7fffffffffffffffll : 0x7fffffffll;
    const i64 infinity = sizeof(REAL) == 8 ? 0x7ff0000000000000ll : 0x7f800000ll;
    const i64 bits = bits_of(x), size = bits & most;
    if (size > infinity) return most;
    if (which == MAGNITUDE) return size;
    const i64 key = bits ^ ((bits >> 63) & most);  // bits of float32 bring their sign along
    return which == MIN ? ~key : key;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    greatest_tiles(const REAL* x, i32 which, u64 n, u64 tiles, u64 first, u64 last, i64* keys) {
    __shared__ i64 held[REDUCE_WARPS];
    const u64 task_ = task(n, blockDim.x / 32);
    if (task_ >= last - first) return;
    const Place at = place(first + task_, n, tiles, first);
    const bool long_rows = n > LANES;
    const u32 apart = long_rows ? THREADS : 32;
    i64 best = -0x7fffffffffffffffll - 1;
#pragma unroll 8
    for (u32 i = threadIdx.x % apart; i < at.count; i += apart) best = max(best, key_of(x[at.start + i], which));
    best = long_rows ? block_greatest(best, held) : warp_greatest(best);
    if (threadIdx.x % apart == 0) keys[task_] = best;
}
