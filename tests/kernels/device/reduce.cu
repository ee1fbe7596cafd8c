// The sum of each of two sets of 256 numbers, by one block.
#include "device/types.cuh"
#include "device/reduce.cuh"

extern "C" __global__ void __launch_bounds__(256) sum_twice(const f64* numbers, f64* sums) {
    __shared__ f64 lanes[2 * REDUCE_BLOCK];
    const f64 values[2] = {numbers[threadIdx.x], numbers[REDUCE_BLOCK + threadIdx.x]};
    const f64 sum = tree_sums(values, lanes);
    if (threadIdx.x == 0 || threadIdx.x == 32) sums[threadIdx.x / 32] = sum;
}
