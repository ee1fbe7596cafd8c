// Sums of one float64 per thread of a block as trees of fixed shape, and the greatest of integers. Twin of reduce.py.
// Include device/types.cuh first.

const int REDUCE_BLOCK = 256;  // threads per block; a power of two
const int REDUCE_WARPS = REDUCE_BLOCK / 32;

// Lane i of a warp takes lane i + 16, then i + 8, down to i + 1; lane 0 gets the sum. All 32 lanes must call it.
__device__ __forceinline__ f64 warp_tree_sum(f64 value) {
#pragma unroll
    for (int stride = 16; stride > 0; stride /= 2) value += __shfl_down_sync(0xffffffffu, value, stride);
    return value;
}

// COUNT sums at a time, with one barrier: lane i of 256 takes lane i + 128, then i + 64, down to i + 1. Lane 0 of warp s
// gets sum s. `lanes` is shared memory of COUNT * REDUCE_BLOCK numbers; before it is written again, the block must meet
// at a barrier.
template <int COUNT>
__device__ __forceinline__ f64 tree_sums(const f64 (&values)[COUNT], f64* lanes) {
    static_assert(COUNT <= REDUCE_WARPS, "a warp for each sum");
#pragma unroll
    for (int sum = 0; sum < COUNT; ++sum) lanes[sum * REDUCE_BLOCK + threadIdx.x] = values[sum];
    __syncthreads();
    if (threadIdx.x / 32 >= COUNT) return 0.0;
    const f64* at = lanes + threadIdx.x / 32 * REDUCE_BLOCK + threadIdx.x % 32;
    // Halves, quarters and eighths of the block within a thread.
    return warp_tree_sum(((at[0] + at[128]) + (at[64] + at[192])) + ((at[32] + at[160]) + (at[96] + at[224])));
}

// The greatest of a warp, in every lane. All 32 lanes must call it.
template <class Integer>
__device__ __forceinline__ Integer warp_greatest(Integer value) {
#pragma unroll
    for (int stride = 16; stride > 0; stride /= 2) {
        const Integer other = __shfl_xor_sync(0xffffffffu, value, stride);
        value = other > value ? other : value;
    }
    return value;
}

// The greatest of a block, in every thread. `held` is shared memory of REDUCE_WARPS integers; before it is written again,
// the block must meet at a barrier.
template <class Integer>
__device__ __forceinline__ Integer block_greatest(Integer value, Integer* held) {
    value = warp_greatest(value);
    if (threadIdx.x % 32 == 0) held[threadIdx.x / 32] = value;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < REDUCE_WARPS; ++warp) value = held[warp] > value ? held[warp] : value;
    return value;
}
