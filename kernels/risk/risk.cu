// Losses of portfolios, their exact quantiles and tail sums; exceptions of forecasts; performance of series. Twin of
// loops.py; spec.py has TILE, ROWS, PIECES and SUMS, which decide bytes.
//
// Mathematics. The product of scenarios' rows and exposures is that of matmul.cu. Then, for each portfolio:
//   draw               normals of scenarios: those of assets 4j .. 4j+3 come from Philox counter (scenario, j, 0)
//   turn               losses[p][begin + s] = offset[p] + product[s][p]
//   count_digits       counts, by mass, of one byte of the losses' keys, over losses that have the bytes chosen so far;
//   choose_digit       of these the least whose mass, with that of lesser ones, reaches the wanted mass. Eight turns give
//                      the exact loss of that rank. Keys order as the losses do. Counts are integers: no order shows
//   tail_tiles         sums of mass (L - x) and mass (L - x)^2 over losses above x, and the masses above and at x
//   moment_tiles       sums of mass (L - c)^k, k = 1 to 4
//   weigh              what each scenario counts in a contribution (losses.py); matmul.cu adds the rows
// A tile is 8192 scenarios: thread t of 256 adds the scenarios t, t + 256, ... of it, threads are added by halving, and
// tiles in pairs on the host. Of series:
//   count_exceptions   transitions between none and one, as whole numbers in float64, which are exact
//   run_series         growth, drawdowns, and sums in the order of time, in two passes
//
// Launch. draw, weigh: a thread for a number, any blocks. turn: 32 x 4 threads for 32 x 32 numbers, in one dimension. count_digits: 256
// threads for a tile of a portfolio, grid.y a wanted mass; choose_digit: a thread for each of these. tail_tiles,
// moment_tiles: 256 threads for a tile, grid.y a threshold. count_exceptions: a warp for a series; run_series: a thread.
// Static shared memory at most 8.25 KiB.
//
// Per loss: turn moves 16 bytes, and each turn of the selection, each threshold and each pass of moments reads 8, most of
// them from the second-level cache where 100,000 scenarios of 100 portfolios fit, with some 6 operations and an atomic in
// shared memory. So a quantile with its tails is bound by memory, at about 100 bytes a loss; the product before it, with
// as many multiply-adds as there are assets, is bound by arithmetic. run_series reads a series twice with about 30
// operations a return, which wait for each other: bound by latency, unless there are thousands of series.
// Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/philox.cuh"
#include "device/elementary.cuh"
#include "device/uniform.cuh"
#include "device/normal.cuh"
#include "device/reduce.cuh"

#define SIDE 32
#define SIDE_ROWS 4
#define TILE 8192
#define PIECES 8
#define SUMS 27

const u32 ALL = 0xffffffffu;
const u64 SIGN = 0x8000000000000000ull;

__device__ __forceinline__ u64 thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

struct Four {
    f64 z[4];
};

__device__ __forceinline__ Four four(u64 scenario, u32 block, u32 kind, u32 k0, u32 k1) {
    const PhiloxWords words = philox4x32((u32)scenario, (u32)(scenario >> 32), block, kind, k0, k1);
    const NormalPair front = box_muller(words.w0, words.w1), back = box_muller(words.w2, words.w3);
    return {{widened(front.z0), widened(front.z1), widened(back.z0), widened(back.z1)}};
}

// A thread draws four numbers of a row; `blocks` of them make the row.
extern "C" __global__ void __launch_bounds__(256)
    draw(u64 first, u64 count, u32 assets, u32 blocks, u32 k0, u32 k1, i32 freedom, f64* rows) {
    const u64 row = thread() / blocks;
    const u32 block = (u32)(thread() % blocks);
    if (row >= count) return;
    f64 factor = 1.0;
    if (freedom > 0) {
        f64 squares = 0.0;
        for (i32 place = 0; place < freedom; place += 4) {
            const Four drawn = four(first + row, (u32)place / 4u, 1u, k0, k1);
#pragma unroll
            for (i32 each = 0; each < 4; ++each)
                if (place + each < freedom) squares += drawn.z[each] * drawn.z[each];
        }
        factor = sqrt((f64)(freedom - 2) / squares);
    }
    const Four drawn = four(first + row, block, 0u, k0, k1);
#pragma unroll
    for (u32 each = 0; each < 4; ++each)
        if (4 * block + each < assets) rows[row * assets + 4 * block + each] = drawn.z[each] * factor;
}

extern "C" __global__ void __launch_bounds__(SIDE* SIDE_ROWS)
    turn(const f64* product, const f64* offsets, u32 scenarios, u32 portfolios, u64 begin, u64 count, f64* losses) {
    __shared__ f64 square[SIDE][SIDE + 1];
    const u32 across = (portfolios + SIDE - 1) / SIDE;
    const u32 row = blockIdx.x / across * SIDE, column = blockIdx.x % across * SIDE;
    for (u32 y = threadIdx.y; y < SIDE; y += SIDE_ROWS) {
        if (row + y < scenarios && column + threadIdx.x < portfolios)
            square[y][threadIdx.x] = product[(u64)(row + y) * portfolios + column + threadIdx.x];
    }
    __syncthreads();
    for (u32 y = threadIdx.y; y < SIDE; y += SIDE_ROWS) {
        const u32 p = column + y, s = row + threadIdx.x;
        if (p < portfolios && s < scenarios) losses[p * count + begin + s] = offsets[p] + square[threadIdx.x][y] + 0.0;
    }
}

__device__ __forceinline__ u64 key_of(f64 x) {
    const u64 bits = (u64)__double_as_longlong(x);
    return bits & SIGN ? ~bits : bits | SIGN;
}

// The scenarios of this block's tile, and its portfolio.
struct Tile {
    u64 portfolio, begin, end;
};

__device__ __forceinline__ Tile tile_of(u64 count, u32 tiles) {
    const u64 begin = (u64)(blockIdx.x % tiles) * TILE;
    return {blockIdx.x / tiles, begin, begin + TILE < count ? begin + TILE : count};
}

// masses may be any array where `weighted` is 0: all are 1 then. prefixes[p][i] are the bytes above `shift` + 8.
extern "C" __global__ void __launch_bounds__(256)
    count_digits(const f64* losses, const u64* masses, u32 weighted, u64 count, u32 tiles, u32 wanted, u32 shift,
                 const u64* prefixes, u64* counts) {
    __shared__ u64 held[256];
    const Tile tile = tile_of(count, tiles);
    const u64 at = tile.portfolio * wanted + blockIdx.y;
    held[threadIdx.x] = 0;
    __syncthreads();
    const u64 prefix = prefixes[at];
    for (u64 s = tile.begin + threadIdx.x; s < tile.end; s += 256) {
        const u64 key = key_of(losses[tile.portfolio * count + s]);
        if (shift == 56 || key >> (shift + 8) == prefix)
            atomicAdd(&held[(key >> shift) & 255u], weighted ? masses[s] : (u64)1);
    }
    __syncthreads();
    if (held[threadIdx.x]) atomicAdd(&counts[at * 256 + threadIdx.x], held[threadIdx.x]);
}

// Adds the chosen digit to each prefix, takes what lies below it from the wanted mass, and clears the counts. After the
// last digit the prefix is the key of found[p][i].
extern "C" __global__ void __launch_bounds__(256)
    choose_digit(u64 states, u32 shift, u64* prefixes, u64* wanted, u64* counts, f64* found) {
    const u64 at = thread();
    if (at >= states) return;
    u64 rest = wanted[at];
    u32 digit = 0;
    for (; counts[at * 256 + digit] < rest; ++digit) rest -= counts[at * 256 + digit];
    for (u32 each = 0; each < 256; ++each) counts[at * 256 + each] = 0;
    const u64 key = prefixes[at] << 8 | digit;
    prefixes[at] = key;
    wanted[at] = rest;
    if (shift == 0) found[at] = __longlong_as_double((i64)(key & SIGN ? key ^ SIGN : ~key));
}

// sums[p][i][tile][2]; found[p][i][2], which begins at 0.
extern "C" __global__ void __launch_bounds__(256)
    tail_tiles(const f64* losses, const u64* masses, u32 weighted, u64 count, u32 tiles, u32 thresholds,
               const f64* threshold, f64* sums, u64* found) {
    __shared__ f64 lanes[2 * REDUCE_BLOCK];
    __shared__ u64 held[2];
    const Tile tile = tile_of(count, tiles);
    const u64 at = tile.portfolio * thresholds + blockIdx.y;
    if (threadIdx.x < 2) held[threadIdx.x] = 0;
    __syncthreads();
    const f64 x = threshold[at];
    f64 first = 0.0, second = 0.0;
    u64 above = 0, equal = 0;
    for (u64 s = tile.begin + threadIdx.x; s < tile.end; s += 256) {
        const f64 loss = losses[tile.portfolio * count + s], apart = loss - x, excess = apart > 0.0 ? apart : 0.0;
        const u64 own = weighted ? masses[s] : (u64)1;
        first += (f64)own * excess;
        second += (f64)own * (excess * excess);
        above += loss > x ? own : (u64)0;  // infinities are equal, and have no difference
        equal += loss == x ? own : (u64)0;
    }
    if (above) atomicAdd(&held[0], above);
    if (equal) atomicAdd(&held[1], equal);
    const f64 values[2] = {first, second};
    const f64 sum = tree_sums(values, lanes);  // it has a barrier
    if (threadIdx.x % 32 == 0 && threadIdx.x < 64) {
        sums[(at * tiles + blockIdx.x % tiles) * 2 + threadIdx.x / 32] = sum;
        if (held[threadIdx.x / 32]) atomicAdd(&found[at * 2 + threadIdx.x / 32], held[threadIdx.x / 32]);
    }
}

// sums[p][tile][4].
extern "C" __global__ void __launch_bounds__(256)
    moment_tiles(const f64* losses, const u64* masses, u32 weighted, u64 count, u32 tiles, const f64* centres, f64* sums) {
    __shared__ f64 lanes[4 * REDUCE_BLOCK];
    const Tile tile = tile_of(count, tiles);
    const f64 centre = centres[tile.portfolio];
    f64 values[4] = {0.0, 0.0, 0.0, 0.0};
    for (u64 s = tile.begin + threadIdx.x; s < tile.end; s += 256) {
        const f64 d = losses[tile.portfolio * count + s] - centre, square = d * d;
        const f64 mass = weighted ? (f64)masses[s] : 1.0;
        values[0] += mass * d;
        values[1] += mass * square;
        values[2] += mass * (square * d);
        values[3] += mass * (square * square);
    }
    const f64 sum = tree_sums(values, lanes);
    if (threadIdx.x % 32 == 0 && threadIdx.x < 128) sums[blockIdx.x * 4ull + threadIdx.x / 32] = sum;
}

// weights[p][m][s] for `rows` scenarios from `begin` on; lines are the m of all p.
extern "C" __global__ void __launch_bounds__(256)
    weigh(const f64* losses, const u64* masses, u32 weighted, u64 count, const f64* pieces, u64 lines, u32 each, u64 begin,
          u32 rows, f64* weights) {
    const u64 line = thread() / rows, s = begin + thread() % rows;
    if (line >= lines) return;
    const f64* piece = pieces + line * PIECES;
    const f64 loss = losses[line / each * count + s], d = loss - piece[3];
    const f64 inside = piece[4] + d * (piece[5] + d * (piece[6] + d * piece[7]));
    const f64 counted = loss > piece[1] ? piece[2] : loss >= piece[0] ? inside : 0.0;
    weights[thread()] = (weighted ? (f64)masses[s] : 1.0) * counted;
}

// counts[series][5]: from none to none, from none to one, from one to none, from one to one; whether the first is one.
extern "C" __global__ void __launch_bounds__(256)
    count_exceptions(const f64* returns, const f64* var, u64 series, u64 time, f64* counts) {
    const u64 at = thread() / 32;
    if (at >= series) return;
    const u32 lane = threadIdx.x % 32;
    const f64 *earned = returns + at * time, *forecast = var + at * time;
    f64 found[4] = {0.0, 0.0, 0.0, 0.0};
    for (u64 t = 1 + lane; t < time; t += 32) {
        const bool before = -earned[t - 1] > forecast[t - 1], now = -earned[t] > forecast[t];
        found[0] += !before && !now ? 1.0 : 0.0;
        found[1] += !before && now ? 1.0 : 0.0;
        found[2] += before && !now ? 1.0 : 0.0;
        found[3] += before && now ? 1.0 : 0.0;
    }
#pragma unroll
    for (int each = 0; each < 4; ++each) {
        const f64 sum = warp_tree_sum(found[each]);
        if (lane == 0) counts[at * 5 + each] = sum;
    }
    if (lane == 0) counts[at * 5 + 4] = -earned[0] > forecast[0] ? 1.0 : 0.0;
}

// A product of factors as mantissa * 2^(512 exponent), which neither overflows nor underflows.
struct Growth {
    f64 mantissa = 1.0, exponent = 0.0;
    __device__ __forceinline__ void multiply(f64 factor) {
        mantissa *= factor;
        if (mantissa < 0x1p-512 && mantissa > 0.0) {
            mantissa *= 0x1p512;
            exponent -= 1.0;
        } else if (mantissa > 0x1p512) {
            mantissa *= 0x1p-512;
            exponent += 1.0;
        }
    }
    __device__ __forceinline__ void write(f64* to) const {
        to[0] = mantissa;
        to[1] = exponent;
    }
};

// The deepest drawdowns so far, deepest first, equal ones in the order of time.
struct Deepest {
    u32 most;
    f64* depth;
    i32* marks;  // of each its start, trough and recovery
    __device__ __forceinline__ void add(f64 fall, i32 start, i32 trough, i32 recovery) {
        if (!(fall > depth[most - 1])) return;
        u32 at = most - 1;
        for (; at > 0 && fall > depth[at - 1]; --at) {
            depth[at] = depth[at - 1];
            for (u32 each = 0; each < 3; ++each) marks[3 * at + each] = marks[3 * at - 3 + each];
        }
        depth[at] = fall;
        marks[3 * at] = start;
        marks[3 * at + 1] = trough;
        marks[3 * at + 2] = recovery;
    }
};

// sums[series][SUMS] as loops.run_series lists them, depths[series][most], marks[series][most][3].
extern "C" __global__ void __launch_bounds__(256)
    run_series(const f64* returns, const f64* benchmark, u32 compared, u64 series, u64 time, f64 target, u32 most,
               f64* sums, f64* depths, i32* marks) {
    const u64 at = thread();
    if (at >= series) return;
    const f64* r = returns + at * time;
    f64* sum = sums + at * SUMS;
    Deepest deepest = {most, depths + at * most, marks + at * most * 3};
    for (u32 each = 0; each < most; ++each) {
        deepest.depth[each] = 0.0;
        for (u32 mark = 0; mark < 3; ++mark) deepest.marks[3 * each + mark] = -1;
    }
    const f64 first = r[0], first_b = compared ? benchmark[0] : 0.0, first_a = first - first_b;
    f64 total = 0.0, total_b = 0.0, total_a = 0.0, below = 0.0, gain = 0.0, loss = 0.0, up = 0.0, down = 0.0;
    Growth growth, up_own, up_other, down_own, down_other;
    f64 level = 1.0, depth = 0.0;  // of the last peak; the deepest fall since
    i32 peak = 0, trough = 0;
    for (u64 t = 0; t < time; ++t) {
        const f64 value = r[t], over = value - target;
        total += value - first;
        gain += over > 0.0 ? over : 0.0;
        loss += over < 0.0 ? -over : 0.0;
        below += over < 0.0 ? over * over : 0.0;
        growth.multiply(1.0 + value);
        level *= 1.0 + value;
        const i32 now = (i32)t + 1;
        if (level >= 1.0) {
            if (depth > 0.0) deepest.add(depth, peak, trough, now);
            level = 1.0;
            depth = 0.0;
            peak = now;
        } else if (1.0 - level > depth) {
            depth = 1.0 - level;
            trough = now;
        }
        if (compared) {
            const f64 other = benchmark[t];
            total_b += other - first_b;
            total_a += (value - other) - first_a;
            if (other > 0.0) {
                up += 1.0;
                up_own.multiply(1.0 + value);
                up_other.multiply(1.0 + other);
            } else if (other < 0.0) {
                down += 1.0;
                down_own.multiply(1.0 + value);
                down_other.multiply(1.0 + other);
            }
        }
    }
    if (depth > 0.0) deepest.add(depth, peak, trough, -1);
    const f64 n = (f64)time, mean = first + total / n, mean_b = first_b + total_b / n, mean_a = first_a + total_a / n;
    f64 d1 = 0.0, d2 = 0.0, d3 = 0.0, d4 = 0.0, e1 = 0.0, e2 = 0.0, a1 = 0.0, a2 = 0.0, de = 0.0;
    for (u64 t = 0; t < time; ++t) {
        const f64 d = r[t] - mean, square = d * d;
        d1 += d;
        d2 += square;
        d3 += square * d;
        d4 += square * square;
        if (compared) {
            const f64 e = benchmark[t] - mean_b, a = (r[t] - benchmark[t]) - mean_a;
            e1 += e;
            e2 += e * e;
            a1 += a;
            a2 += a * a;
            de += d * e;
        }
    }
    const f64 plain[17] = {mean, below, gain, loss, mean_b, mean_a, d1, d2, d3, d4, e1, e2, a1, a2, de, up, down};
    for (u32 each = 0; each < 17; ++each) sum[each] = plain[each];
    growth.write(sum + 17);
    up_own.write(sum + 19);
    up_other.write(sum + 21);
    down_own.write(sum + 23);
    down_other.write(sum + 25);
}
