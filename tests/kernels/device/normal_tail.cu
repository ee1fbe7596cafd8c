// Evaluate the normal distribution function of each number, and the slope of the scaled tail. Reads and writes 16 bytes for some 100 operations in float64,
// which are the limit. Not yet measured on a GPU.
#include "device/types.cuh"
#include "device/elementary.cuh"
#include "device/normal_tail.cuh"

extern "C" __global__ void __launch_bounds__(256) evaluate(u32 count, const f64* x, f64* cdf, f64* slope) {
    for (u32 i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
        cdf[i] = normal_cdf(x[i]);
        const f64 t = fabs(x[i]) - 0.5;
        slope[i] = tail_slope(t < 39.0 ? t : 39.0);
    }
}
