// Ranks, quantiles, z-scores and regressions across assets at each bar. Twin of loops.py.
//
// Values (assets, time) have the bars side by side; what is computed of a bar needs its assets side by side. So `gather`
// copies the bars of a chunk to rows (bars, assets) of float64, kernels change the rows, and `scatter` copies them back.
// A row stands in the order of groups.py: a group is a run of neighbours. first[k] is the first place of the group of
// place k, or -1 for no group. `order` and `first` have one row for all bars, or where they `vary` one for each.
//
// Ranks and quantiles. `sort_tiles` sorts TILE places of a row at a time by (group, number, place) in a bitonic network;
// `merge_tiles` gives each its place among all tiles, by binary search. All is exact, so no cut of the work shows.
// Since sorting keeps each group where it is, first[q] is also the group of the q-th of the sorted row.
//   ranks        ranks or percentiles, by the neighbours in the sorted row
//   distinct     how many different numbers there are up to each of the sorted row, for dense ranks
//   winsorise    two quantiles of the group, and the number clipped to them
// Means and regressions: a warp for each bar. Lane l adds the places begin + l, begin + l + 32, ... of a group or of the
// row, and lanes are added by halving: this order decides bytes.
//   zscores      distances from the mean in standard deviations
//   neutralise   residuals, by the modified Gram-Schmidt method in two passes
//
// Launch. gather, scatter: 32 x 4 threads for 32 x 32 numbers. sort_tiles: half as many threads as places, 16 bytes of
// dynamic shared memory a place, 16 KiB at most. merge_tiles, ranks, winsorise: a thread for a place, any blocks.
// distinct, zscores, neutralise: any number of warps up to WARPS share a block. Static shared memory at most 8.5 KiB.
//
// Per number of a float64 array: gather and scatter move 32 bytes. A sort of 512 places has 45 steps and one of 1024 has
// 55, each half a comparison of some 15 instructions, and each tile of a longer row 10 comparisons: bound by
// instructions and shared memory. z-scores read a row 7 times and write it 3 times, from the cache of the multiprocessor
// where it fits, with 12 operations: bound by memory. neutralise with K factors reads about 6 K^2 numbers, with as many
// operations: bound by the second-level cache. All but that with many factors are short beside copies over PCIe.
// Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/reduce.cuh"

#define SIDE 32          // of the squares that gather and scatter turn
#define SIDE_ROWS 4      // threads that turn a square, times SIDE
#define SORTING 512      // threads: half of spec.TILE
#define PLACES 256       // threads of kernels with one for each place
#define WARPS 8          // of a block, at most
#define MOST_FACTORS 64  // as in spec.py

const u32 ALL = 0xffffffffu;
const u64 SIGN = 0x8000000000000000ull;
const u64 ABSENT = 0xffffffffffffffffull;  // the key of NaN
enum Ties { AVERAGE, MIN, MAX, DENSE, FIRST };

// rows[bar][k] = x[order[k]][bar], -0.0 as +0.0; NaN where there is no group. x has its own strides: 0 between bars where
// all have the same numbers.
extern "C" __global__ void __launch_bounds__(SIDE* SIDE_ROWS)
    gather(const REAL* x, u64 asset_stride, u64 bar_stride, const i32* order, const i32* first, u32 vary, u64 bars,
           u32 assets, f64 nan, f64* rows) {
    __shared__ f64 square[SIDE][SIDE + 1];
    const u64 bar = (u64)blockIdx.x * SIDE + threadIdx.x;
    for (u32 y = threadIdx.y; y < SIDE; y += SIDE_ROWS) {
        const u32 k = blockIdx.y * SIDE + y;
        if (bar < bars && k < assets) {
            const u64 at = vary ? bar * assets + k : k;
            square[y][threadIdx.x] = first[at] < 0 ? nan : (f64)x[order[at] * asset_stride + bar * bar_stride] + 0.0;
        }
    }
    __syncthreads();
    const u32 k = blockIdx.y * SIDE + threadIdx.x;
    for (u32 y = threadIdx.y; y < SIDE; y += SIDE_ROWS) {
        const u64 to = (u64)blockIdx.x * SIDE + y;
        if (to < bars && k < assets) rows[to * assets + k] = square[threadIdx.x][y];
    }
}

// x[order[k]][bar] = rows[bar][k], for x (assets, bars).
extern "C" __global__ void __launch_bounds__(SIDE* SIDE_ROWS)
    scatter(const f64* rows, const i32* order, u32 vary, u64 bars, u32 assets, REAL* x) {
    __shared__ f64 square[SIDE][SIDE + 1];
    const u32 k = blockIdx.y * SIDE + threadIdx.x;
    for (u32 y = threadIdx.y; y < SIDE; y += SIDE_ROWS) {
        const u64 bar = (u64)blockIdx.x * SIDE + y;
        if (bar < bars && k < assets) square[threadIdx.x][y] = rows[bar * assets + k];
    }
    __syncthreads();
    const u64 bar = (u64)blockIdx.x * SIDE + threadIdx.x;
    for (u32 y = threadIdx.y; y < SIDE; y += SIDE_ROWS) {
        const u32 place = blockIdx.y * SIDE + y;
        if (bar < bars && place < assets)
            x[order[vary ? bar * assets + place : place] * bars + bar] = (REAL)square[y][threadIdx.x];
    }
}

// Unsigned integers in the order of the numbers, NaN last.
__device__ __forceinline__ u64 key_of(f64 x) {
    const u64 bits = (u64)__double_as_longlong(x);
    if (x != x) return ABSENT;
    return bits & SIGN ? ~bits : bits | SIGN;
}

__device__ __forceinline__ f64 number_of(u64 key) {
    return __longlong_as_double((i64)(key & SIGN ? key ^ SIGN : ~key));
}

// What a row is sorted by. A group is the first of its places; none, as u32 the greatest, comes last.
struct Entry {
    u32 group;
    u64 key;
    u32 place;
    __device__ __forceinline__ bool before(const Entry& other) const {
        if (group != other.group) return group < other.group;
        if (key != other.key) return key < other.key;
        return place < other.place;
    }
};

// Sorts `width` places, a power of two, in each of `tiles` tiles of a row: keys and places in sorted order.
extern "C" __global__ void __launch_bounds__(SORTING)
    sort_tiles(const f64* rows, const i32* first, u32 vary, u32 assets, u32 tiles, u32 width, u64* keys, i32* places) {
    extern __shared__ u64 shared[];
    u64* key = shared;
    u32* group = reinterpret_cast<u32*>(shared + width);
    u32* place = group + width;
    const u64 bar = blockIdx.x / tiles;
    const u32 start = blockIdx.x % tiles * width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        const u32 k = start + i;
        key[i] = k < assets ? key_of(rows[bar * assets + k]) : ABSENT;
        group[i] = k < assets ? (u32)first[vary ? bar * assets + k : k] : ALL;
        place[i] = k;
    }
    for (u32 size = 2; size <= width; size *= 2) {
        for (u32 stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            for (u32 pair = threadIdx.x; pair < width / 2; pair += blockDim.x) {
                const u32 i = 2 * pair - (pair & (stride - 1)), j = i + stride;
                const Entry a = {group[i], key[i], place[i]}, b = {group[j], key[j], place[j]};
                if (b.before(a) == ((i & size) == 0)) {
                    group[i] = b.group, key[i] = b.key, place[i] = b.place;
                    group[j] = a.group, key[j] = a.key, place[j] = a.place;
                }
            }
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        if (start + i < assets) {
            keys[bar * assets + start + i] = key[i];
            places[bar * assets + start + i] = (i32)place[i];
        }
    }
}

// The first of begin to end - 1 for which `holds` is false, where it is true up to some point; end if it always is.
template <class Holds>
__device__ __forceinline__ u32 first_without(u32 begin, u32 end, Holds holds) {
    while (begin < end) {
        const u32 middle = begin + (end - begin) / 2;
        if (holds(middle))
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

// The bar and the place of this thread.
struct Here {
    u64 bar;
    u32 place;
};

__device__ __forceinline__ u64 thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ Here here(u32 assets) { return {thread() / assets, (u32)(thread() % assets)}; }

extern "C" __global__ void __launch_bounds__(PLACES)
    merge_tiles(const u64* keys, const i32* places, const i32* first, u32 vary, u64 bars, u32 assets, u32 width,
                u64* merged_keys, i32* merged_places) {
    if (thread() >= bars * assets) return;
    const Here at = here(assets);
    const u64* key = keys + at.bar * assets;
    const i32* place = places + at.bar * assets;
    const i32* group = first + (vary ? at.bar * assets : 0);
    const Entry mine = {(u32)group[at.place], key[at.place], (u32)place[at.place]};
    u32 to = 0;
    for (u32 start = 0; start < assets; start += width) {
        const u32 end = start + width < assets ? start + width : assets;
        to += first_without(start, end, [&](u32 q) {
                  return Entry{(u32)group[q], key[q], (u32)place[q]}.before(mine);
              }) - start;
    }
    merged_keys[at.bar * assets + to] = mine.key;
    merged_places[at.bar * assets + to] = (i32)mine.place;
}

// One of a sorted row: its group, and where the numbers equal to it and the numbers of its group end.
struct Sorted {
    u32 assets, q;
    const u64* key;
    const i32* group;

    __device__ __forceinline__ u32 start() const { return (u32)group[q]; }
    __device__ __forceinline__ bool absent() const { return group[q] < 0 || key[q] == ABSENT; }
    __device__ __forceinline__ u32 least() const {
        return first_without(start(), q, [&](u32 other) { return key[other] < key[q]; });
    }
    __device__ __forceinline__ u32 end_of_equal() const {
        return first_without(q, assets, [&](u32 other) { return group[other] == group[q] && key[other] == key[q]; });
    }
    __device__ __forceinline__ u32 end() const {
        return first_without(q, assets, [&](u32 other) { return group[other] == group[q] && key[other] != ABSENT; });
    }
};

// rows[bar][place] = the rank of its number in its group. `upto` is what `distinct` wrote, used for dense ranks alone.
extern "C" __global__ void __launch_bounds__(PLACES)
    ranks(const u64* keys, const i32* places, const i32* first, u32 vary, u64 bars, u32 assets, i32 ties, u32 percentile,
          const i32* upto, f64 nan, f64* rows) {
    if (thread() >= bars * assets) return;
    const Here at = here(assets);
    const u64 row = at.bar * assets;
    const Sorted one = {assets, at.place, keys + row, first + (vary ? row : 0)};
    f64 rank = nan;
    if (!one.absent()) {
        const u32 start = one.start();
        if (ties == FIRST) {
            rank = (f64)(at.place - start + 1);
        } else if (ties == DENSE) {
            rank = (f64)(upto[row + at.place] - upto[row + start] + 1);
        } else {
            const f64 least = ties == MAX ? 0.0 : (f64)(one.least() - start + 1);
            const f64 most = ties == MIN ? 0.0 : (f64)(one.end_of_equal() - start);
            rank = ties == AVERAGE ? (least + most) / 2.0 : least + most;
        }
        if (percentile) {
            const u32 end = one.end();
            rank /= (f64)(ties == DENSE ? upto[row + end - 1] - upto[row + start] + 1 : end - start);
        }
    }
    rows[row + places[row + at.place]] = rank;
}

// upto[bar][q] = how many of the sorted row up to q differ from the one before them, or begin a group.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    distinct(const u64* keys, const i32* first, u32 vary, u64 bars, u32 assets, i32* upto) {
    const u64 bar = thread() / 32;
    if (bar >= bars) return;
    const u32 lane = threadIdx.x % 32;
    const u64* key = keys + bar * assets;
    const i32* group = first + (vary ? bar * assets : 0);
    i32 before = 0;
    for (u32 line = 0; line < assets; line += 32) {
        const u32 q = line + lane;
        const u32 fresh = __ballot_sync(ALL, q < assets && ((u32)group[q] == q || (q > 0 && key[q] != key[q - 1])));
        if (q < assets) upto[bar * assets + q] = before + __popc(fresh & (ALL >> (31 - lane)));
        before += __popc(fresh);
    }
}

// The quantile of `count` sorted numbers, as NumPy's default interpolates it.
__device__ __forceinline__ f64 quantile(const u64* key, u32 count, f64 share) {
    const f64 place = share * (f64)(count - 1), below = floor(place), part = place - below;
    const u32 at = (u32)below, next = at + 1 < count ? at + 1 : count - 1;
    const f64 low = number_of(key[at]), high = number_of(key[next]);
    return part < 0.5 ? low + (high - low) * part : high - (high - low) * (1.0 - part);
}

extern "C" __global__ void __launch_bounds__(PLACES)
    winsorise(const u64* keys, const i32* places, const i32* first, u32 vary, u64 bars, u32 assets, f64 lower, f64 upper,
              f64 nan, f64* rows) {
    if (thread() >= bars * assets) return;
    const Here at = here(assets);
    const u64 row = at.bar * assets;
    const Sorted one = {assets, at.place, keys + row, first + (vary ? row : 0)};
    f64 value = nan;
    if (!one.absent()) {
        const u64* key = one.key + one.start();
        const u32 count = one.end() - one.start();
        const f64 least = quantile(key, count, lower), most = quantile(key, count, upper);
        value = number_of(one.key[at.place]);
        value = value < least ? least : value;
        value = value > most ? most : value;
    }
    rows[row + places[row + at.place]] = value;
}

// What a warp knows of its bar: its groups, and the sums that all lanes get.
struct Bar {
    u32 assets, lane;
    const i32* first;

    // The sum of term(k) for begin <= k < end.
    template <class Term>
    __device__ __forceinline__ f64 sum(u32 begin, u32 end, Term term) const {
        f64 value = 0.0;
        for (u32 k = begin + lane; k < end; k += 32) value += term(k);
        __syncwarp();  // what was read may be written next, by other lanes
        return __shfl_sync(ALL, warp_tree_sum(value), 0);
    }

    // Calls each(begin, end) for the groups.
    template <class Each>
    __device__ __forceinline__ void for_groups(Each each) const {
        for (u32 begin = 0; begin < assets && first[begin] >= 0;) {
            u32 end = begin;
            for (bool whole = true; whole;) {
                const bool in = end + lane < assets && first[end + lane] == (i32)begin;
                const u32 count = __popc(__ballot_sync(ALL, in));
                end += count;
                whole = count == 32;
            }
            each(begin, end);
            begin = end;
        }
    }

    // Whether all numbers of a group that are there are equal, as they are where none is.
    __device__ __forceinline__ bool equal(const f64* x, const f64* there, u32 begin, u32 end) const {
        f64 one = 0.0;
        bool found = false;
        for (u32 line = begin; line < end; line += 32) {
            const u32 k = line + lane;
            const bool in = k < end && there[k] > 0.0;
            const u32 votes = __ballot_sync(ALL, in);
            if (votes == 0) continue;
            const f64 mine = in ? x[k] : 0.0;
            if (!found) one = __shfl_sync(ALL, mine, __ffs((i32)votes) - 1);
            found = true;
            if (__any_sync(ALL, in && mine != one)) return false;
        }
        return true;
    }

    __device__ __forceinline__ f64 total(const f64* weights, const f64* there, u32 begin, u32 end) const {
        return sum(begin, end, [=](u32 k) { return weights[k] * there[k] * there[k]; });
    }

    // Subtract from the numbers of each group their weighted mean. Numbers that are all equal leave exactly 0.
    __device__ __forceinline__ void demean(f64* x, const f64* weights, const f64* there) const {
        for_groups([&](u32 begin, u32 end) {
            const bool zero = equal(x, there, begin, end);
            const f64 mean = zero ? 0.0
                                  : sum(begin, end, [=](u32 k) { return weights[k] * x[k] * there[k]; }) /
                                        total(weights, there, begin, end);
            for (u32 k = begin + lane; k < end; k += 32) x[k] = zero ? 0.0 : x[k] - mean;
        });
        __syncwarp();
    }
};

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    zscores(const i32* first, u32 vary, u64 bars, u32 assets, i32 ddof, f64 nan, f64* rows, f64* theres) {
    const u64 at = thread() / 32;
    if (at >= bars) return;
    const Bar bar = {assets, threadIdx.x % 32, first + (vary ? at * assets : 0)};
    f64 *x = rows + at * assets, *there = theres + at * assets;
    for (u32 k = bar.lane; k < assets; k += 32) {
        const f64 value = x[k];
        there[k] = value == value ? 1.0 : 0.0;
        x[k] = value == value ? value : 0.0;
    }
    __syncwarp();
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) bar.demean(x, there, there);
    u32 grouped = 0;
    bar.for_groups([&](u32 begin, u32 end) {
        const f64 freedom = bar.total(there, there, begin, end) - (f64)ddof;
        const f64 squares = bar.sum(begin, end, [=](u32 k) { return there[k] * x[k] * x[k]; });
        const f64 deviation = freedom > 0.0 ? sqrt(squares / freedom) : nan;
        for (u32 k = begin + bar.lane; k < end; k += 32)
            x[k] = there[k] > 0.0 && deviation > 0.0 ? x[k] / deviation : nan;
        grouped = end;
    });
    for (u32 k = grouped + bar.lane; k < assets; k += 32) x[k] = nan;
}

// columns (3 + factors, bars, assets): numbers, weights, factors, and room for who is there. The numbers become residuals.
extern "C" __global__ void __launch_bounds__(WARPS * 32, 3)
    neutralise(const i32* first, u32 vary, u64 bars, u32 assets, u32 factors, u32 intercept, f64 collinear, f64 nan,
               f64* columns, i32* used) {
    __shared__ f64 lengths[WARPS][MOST_FACTORS + 1];
    const u64 at = thread() / 32;
    if (at >= bars) return;
    const Bar bar = {assets, threadIdx.x % 32, first + (vary ? at * assets : 0)};
    const auto column = [=](u32 c) { return columns + (c * bars + at) * assets; };
    f64 *weights = column(1), *there = column(factors + 2), *squares = lengths[threadIdx.x / 32];
    for (u32 k = bar.lane; k < assets; k += 32) {
        bool all = true;
        for (u32 c = 0; c < factors + 2; ++c) all = all && column(c)[k] == column(c)[k];
        there[k] = all ? 1.0 : 0.0;
        weights[k] = all ? weights[k] : 0.0;
    }
    __syncwarp();
    u32 unknowns = factors;
    if (intercept) {
        bar.for_groups([&](u32 begin, u32 end) {
            const bool some = bar.total(weights, there, begin, end) > 0.0;
            for (u32 k = begin + bar.lane; k < end && !some; k += 32) there[k] = 0.0;
            unknowns += some;
        });
        __syncwarp();
    }
    for (u32 k = bar.lane; k < assets; k += 32) {
        for (u32 c = 0; c < factors + 2; ++c) column(c)[k] = there[k] > 0.0 ? column(c)[k] : 0.0;
    }
    __syncwarp();
    i32 kept = 0;
#pragma unroll 1
    for (u32 step = 0; step <= factors; ++step) {
        f64* x = column(step < factors ? step + 2 : 0);  // the factors in their order, and the numbers last
        const auto square = [=](u32 k) { return weights[k] * x[k] * x[k]; };
        const f64 before = bar.sum(0, assets, square);
#pragma unroll 1
        for (int turn = 0; turn < 2; ++turn) {  // once leaves too much where factors are nearly collinear
            if (intercept) bar.demean(x, weights, there);
#pragma unroll 1
            for (u32 other = 0; other < step; ++other) {
                if (!(squares[other] > 0.0)) continue;
                const f64* basis = column(other + 2);
                const f64 share =
                    bar.sum(0, assets, [=](u32 k) { return weights[k] * basis[k] * x[k]; }) / squares[other];
                for (u32 k = bar.lane; k < assets; k += 32) x[k] -= share * basis[k];
            }
            __syncwarp();
        }
        const f64 after = bar.sum(0, assets, square);
        const bool keep = after > before * collinear;
        if (bar.lane == 0) squares[step] = keep ? after : 0.0;
        kept += keep && step < factors;
        __syncwarp();
    }
    const f64 equations = bar.sum(0, assets, [=](u32 k) { return weights[k] > 0.0 ? 1.0 : 0.0; });
    for (u32 k = bar.lane; k < assets; k += 32) {
        if (there[k] == 0.0 || equations < (f64)unknowns) column(0)[k] = nan;
    }
    if (bar.lane == 0) used[at] = equations < (f64)unknowns ? 0 : kept;
}
