// What the device can do at most: copy memory, and make ChaCha20 keystream. The bounds of all other kernels, measured.
//
// copy: 16 bytes per thread and step, read once and written once; 32 bytes moved for no arithmetic. Limit: memory.
// keystream: a thread makes one block of 16 words and writes them, 64 bytes for about 1,000 integer operations.
// Launch: any number of blocks; threads stride over what there is. Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/chacha20.cuh"

// `count` pieces of 16 bytes.
extern "C" __global__ void __launch_bounds__(256) copy(const u32* from, u32* to, i64 count) {
    const i64 stride = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
}

// Blocks 0 to count - 1 of the stream of a key, nonce 0. Four words at a time: a warp's lines are whole after four stores.
extern "C" __global__ void __launch_bounds__(256) keystream(const u32* key, u32* out, u32 count) {
    const u32 stride = gridDim.x * blockDim.x;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        u32 words[16];
        chacha20_block(key, i, 0, 0, 0, words);
        uint4* at = reinterpret_cast<uint4*>(out + 16 * (i64)i);
#pragma unroll
        for (int w = 0; w < 4; w++) at[w] = make_uint4(words[4 * w], words[4 * w + 1], words[4 * w + 2], words[4 * w + 3]);
    }
}
