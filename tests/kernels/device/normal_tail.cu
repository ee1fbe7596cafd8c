// Evaluate the normal distribution function of each number. Reads and writes 16 bytes for some 100 operations in float64,
// which are the limit. Not yet measured on a GPU.
#include "device/types.cuh"
#include "device/elementary.cuh"
#include "device/normal_tail.cuh"

extern "C" __global__ void __launch_bounds__(256) cdf(u32 count, const f64* x, f64* out) {
    for (u32 i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) out[i] = normal_cdf(x[i]);
}
