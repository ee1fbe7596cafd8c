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
    if (threadIdx.x == 0) mine = add_acq_rel(ticket, 1u);
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
