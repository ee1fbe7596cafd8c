// Which set is best in one half of the blocks, and what rank it has in the other, for every split. Twin of split_loops.py.
//
// one and two are sums of returns and of their squares (sets, blocks). halves has the blocks of each split's first half
// as bits. The score of a set in a half of n bars is s |s| / (n q - s s) for its sums s and q there.
//
// Launch: a thread for each split from `first` to `end` - 1, 256 of a block or any power of two. All threads of a block
// go through the sets together. Of each set they fill tables in shared memory with the sums of every subset of the first
// blocks and of the others: 4 tables of 2^(blocks / 2) numbers, 8 KiB for 16 blocks and 32 KiB for 20.
//
// Two passes of about 25 instructions a set and split, of them a division, and 16 bytes a set and block for each block
// of threads: bound by arithmetic in float64, and by waiting where there are few splits. Not yet measured on a GPU.

#include "device/types.cuh"

#define THREADS 256

const f64 STILL = 1.4210854715202004e-14;  // 2^-46, as in metrics.py

struct Sums {
    f64 s, q;
};

__device__ __forceinline__ f64 score_of(const Sums& sums, f64 bars) {
    const f64 spare = bars * sums.q - sums.s * sums.s;
    const f64 size = sums.s < 0.0 ? 0.0 - sums.s : sums.s;
    return spare > STILL * bars * (bars * sums.q) ? sums.s * size / spare : 0.0;
}

__device__ inline void fill(const f64* one, const f64* two, i64 set, i32 blocks, f64* tables) {
    const i32 low = blocks / 2, subsets = 1 << low;
    __syncthreads();
    for (i32 at = threadIdx.x; at < 4 * subsets; at += blockDim.x) {
        const i32 table = at / subsets, subset = at % subsets;
        const f64* const from = (table < 2 ? one : two) + set * blocks + (table & 1) * low;
        f64 sum = 0.0;
#pragma unroll 1
        for (i32 block = 0; block < low; ++block)
            if (subset >> block & 1) sum += from[block];
        tables[at] = sum;
    }
    __syncthreads();
}

__device__ __forceinline__ Sums sums_of(const f64* tables, i32 subsets, i32 low, i64 half) {
    const i64 front = half & (subsets - 1), back = half >> low;
    return {tables[front] + tables[subsets + back], tables[2 * subsets + front] + tables[3 * subsets + back]};
}

__device__ __forceinline__ f64 bars_of(const f64* sizes, i32 blocks, i64 half) {
    f64 bars = 0.0;
#pragma unroll 1  // unrolled, it takes more registers than there are
    for (i32 block = 0; block < blocks; ++block)
        if (half >> block & 1) bars += sizes[block];
    return bars;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    try_splits(const f64* one, const f64* two, const i64* halves, const f64* sizes, i64 sets, i32 blocks, i64 count,
               i64* chosen, i64* below, i64* equal) {
    extern __shared__ f64 tables[];
    const i64 split = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const i32 low = blocks / 2, subsets = 1 << low;
    const i64 half = split < count ? halves[split] : 0, rest = ((i64)1 << blocks) - 1 - half;
    const f64 trained = bars_of(sizes, blocks, half), tested = bars_of(sizes, blocks, rest);
    f64 best = 0.0, own = 0.0;
    i64 which = 0;
    for (i64 set = 0; set < sets; ++set) {
        fill(one, two, set, blocks, tables);
        const f64 score = score_of(sums_of(tables, subsets, low, half), trained);
        if (set == 0 || score > best) {
            best = score;
            which = set;
            own = score_of(sums_of(tables, subsets, low, rest), tested);
        }
    }
    i64 less = 0, same = 0;
    for (i64 set = 0; set < sets; ++set) {
        fill(one, two, set, blocks, tables);
        const f64 score = score_of(sums_of(tables, subsets, low, rest), tested);
        less += score < own;
        same += score == own;
    }
    if (split >= count) return;
    chosen[split] = which;
    below[split] = less;
    equal[split] = same;
}
