// Kernels without a defect: every mode of the emulation must run them clean.
#include "device/types.cuh"
#include "device/sync.cuh"

extern "C" __global__ void scale(const f64* in, f64* out, f64 factor, u32 n) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * factor;
}

extern "C" __global__ void __launch_bounds__(256) block_sum(const u32* in, u32* out, u32 n) {
    __shared__ u32 parts[8];
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    u32 value = i < n ? in[i] : 0;
    for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xFFFFFFFFu, value, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 sum = 0;
        for (u32 w = 0; w < blockDim.x / 32; ++w) sum += parts[w];
        atomicAdd(out, sum);
    }
}

// One warp per block sums 32 words through shared memory, the steps set apart by __syncwarp.
extern "C" __global__ void warp_sum(const u32* in, u32* out) {
    __shared__ u32 sums[32];
    sums[threadIdx.x] = in[blockIdx.x * 32 + threadIdx.x];
    __syncwarp();
    for (u32 step = 16; step > 0; step /= 2) {
        u32 other = threadIdx.x < step ? sums[threadIdx.x + step] : 0;
        __syncwarp();
        sums[threadIdx.x] += other;
        __syncwarp();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}

// Blocks of 8 x 8 threads transpose a matrix of n x n words, n a multiple of 8.
extern "C" __global__ void transpose(const u32* in, u32* out, u32 n) {
    __shared__ u32 tile[8][9];
    u32 x = blockIdx.x * 8 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
    tile[threadIdx.y][threadIdx.x] = in[y * n + x];
    __syncthreads();
    u32 to_x = blockIdx.y * 8 + threadIdx.x, to_y = blockIdx.x * 8 + threadIdx.y;
    out[to_y * n + to_x] = tile[threadIdx.x][threadIdx.y];
}

// Lanes with an odd word agree among themselves, under the mask that a ballot gave them.
extern "C" __global__ void odd_lanes(const u32* in, u32* out) {
    u32 value = in[threadIdx.x];
    u32 odd = __ballot_sync(0xFFFFFFFFu, value % 2);
    if (value % 2) {
        u32 leader = __ffs((i32)odd) - 1;
        value = __shfl_sync(odd, value, leader);
        __syncwarp(odd);
    }
    out[threadIdx.x] = value;
}

// The last block to finish adds up what all blocks left: counted with acquire and release.
extern "C" __global__ void last_block_sums(const u32* in, u32* parts, u32* count, u32* out) {
    __shared__ u32 last;
    if (threadIdx.x == 0) {
        u32 sum = 0;
        for (u32 i = 0; i < 32; ++i) sum += in[blockIdx.x * 32 + i];
        parts[blockIdx.x] = sum;
        last = add_acq_rel(count, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        u32 sum = 0;
        for (u32 b = 0; b < gridDim.x; ++b) sum += parts[b];
        out[0] = sum;
    }
}

extern "C" __global__ void reverse(const f32* in, f32* out) {
    extern __shared__ f32 held[];
    held[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = held[blockDim.x - 1 - threadIdx.x];
}

// Running totals of the blocks: each waits for its predecessor's, which it finds by ticket, not by blockIdx.
extern "C" __global__ void chained_scan(const u32* in, u32* out, u32* ticket, u32* flags, u32* totals) {
    __shared__ u32 mine, before;
    __shared__ u32 values[64];
    if (threadIdx.x == 0) mine = add_relaxed(ticket, 1u);
    __syncthreads();
    u32 tile = mine;
    values[threadIdx.x] = in[tile * blockDim.x + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 sum = 0;
        for (u32 i = 0; i < blockDim.x; ++i) values[i] = sum += values[i];
        u32 carry = 0;
        if (tile > 0) {
            while (load_acquire(&flags[tile - 1]) == 0) pause();
            carry = totals[tile - 1];
        }
        totals[tile] = carry + sum;
        store_release(&flags[tile], 1u);
        before = carry;
    }
    __syncthreads();
    out[tile * blockDim.x + threadIdx.x] = before + values[threadIdx.x];
}
