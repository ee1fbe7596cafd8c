// Write ChaCha20 blocks as they are: one thread per block, counters first + i, the nonce fixed.

#include "device/types.cuh"
#include "device/chacha20.cuh"

extern "C" __global__ void chacha20_blocks(const u32* key, u32 first, const u32* nonce, u32* out, u32 count) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) chacha20_block(key, first + i, nonce[0], nonce[1], nonce[2], out + 16 * i);
}
