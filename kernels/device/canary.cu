// The first kernel a device must get right before any job is given to it: out[i] = 3 i + 1.
//
// Layout: n = gridDim.x * blockDim.x words, one per thread; 4 bytes written and two operations per word.
// Launch: any one-dimensional grid that covers the array exactly. Not yet measured on a GPU.

#include "device/types.cuh"

extern "C" __global__ void canary(u32* out, u32 factor) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = factor * i + 1;
}
