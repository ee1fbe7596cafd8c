// Evaluate scrambled Sobol points of one dimension as normals: of each index a word and its normal, 12 bytes written for
// some 200 operations, which are the limit. Not yet measured on a GPU.
#include "device/types.cuh"
#include "device/elementary.cuh"
#include "device/inverse_normal.cuh"
#include "device/sobol.cuh"

extern "C" __global__ void __launch_bounds__(256)
evaluate(u32 count, i32 bits, u32 seed, const u32* directions, u32* words, f64* normals) {
    for (u32 i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
        words[i] = owen_scramble(sobol(i, bits, directions), seed);
        normals[i] = inverse_normal(((f64)words[i] + 0.5) * 0x1p-32);
    }
}
