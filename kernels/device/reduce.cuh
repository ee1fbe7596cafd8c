// Sum of one float64 per thread of a block, as a tree of fixed shape. Twin of tree_sum in reduce.py.
// Include device/types.cuh first.

const int REDUCE_BLOCK = 256;  // threads per block; a power of two

// Lane i takes lane i + 128, then i + 64, down to i + 1. `lanes` is shared memory of REDUCE_BLOCK numbers, which every
// thread of the block may overwrite at once and free again on return; thread 0 gets the sum, the others 0.
__device__ __forceinline__ f64 tree_sum(f64 value, f64* lanes) {
    const int lane = threadIdx.x;
    lanes[lane] = value;
    __syncthreads();
    for (int stride = REDUCE_BLOCK / 2; stride > 0; stride /= 2) {
        if (lane < stride) lanes[lane] += lanes[lane + stride];
        __syncthreads();
    }
    const f64 sum = lane == 0 ? lanes[0] : 0.0;
    __syncthreads();
    return sum;
}
