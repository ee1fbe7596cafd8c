// Kernels with one planted defect each; what must catch it is in tests/cudasim/scenes.py.
// All are launched with one-dimensional grids; out has one word per thread unless said otherwise.
#include "device/types.cuh"
#include "device/sync.cuh"

#define FULL 0xFFFFFFFFu
#define THREAD threadIdx.x
#define INDEX (blockIdx.x * blockDim.x + threadIdx.x)

// ---- synchronisation

extern "C" __global__ void missing_second_barrier(const u32* in, u32* out) {
    __shared__ u32 tile[64];
    u32 sum = 0;
    for (u32 round = 0; round < 4; ++round) {
        tile[THREAD] = in[round * 64 + THREAD];
        __syncthreads();
        for (u32 i = 0; i < 64; ++i) sum += tile[i] * (i + 1);
        // a thread may now overwrite what another still reads
    }
    out[THREAD] = sum;
}

extern "C" __global__ void missing_first_barrier(const u32* in, u32* out) {
    __shared__ u32 tile[64];
    tile[THREAD] = in[THREAD];
    out[THREAD] = tile[63 - THREAD];
}

extern "C" __global__ void missing_syncwarp(const u32* in, u32* out) {
    __shared__ u32 sums[32];
    volatile u32* shared = sums;   // how it was done before Volta
    shared[THREAD] = in[THREAD];
    for (u32 step = 16; step > 0; step /= 2)
        if (THREAD < step) shared[THREAD] += shared[THREAD + step];
    out[THREAD] = shared[0];
}

extern "C" __global__ void shuffle_taken_for_a_fence(const u32* in, u32* out) {
    __shared__ u32 values[32];
    values[THREAD] = in[THREAD];
    u32 zero = __shfl_sync(FULL, 0u, 0);   // orders no memory
    out[THREAD] = values[31 - THREAD] + zero;
}

extern "C" __global__ void harmless_looking_rewrite(const u32* in, u32* out) {
    // The right answer in every order: thread 0 writes again what is there. The reads of the others still race with it.
    __shared__ u32 values[64];
    values[THREAD] = in[THREAD];
    __syncthreads();
    if (THREAD == 0)
        for (u32 i = 1; i < 64; ++i) values[i] = in[i];
    out[THREAD] = values[THREAD];
}

extern "C" __global__ void barrier_for_some(const u32* in, u32* out) {
    if (THREAD < 16) __syncthreads();
    out[THREAD] = in[THREAD];
}

extern "C" __global__ void two_barriers_for_one(const u32* in, u32* out) {
    if (THREAD % 2)
        __syncthreads();
    else
        __syncthreads();
    out[THREAD] = in[THREAD];
}

extern "C" __global__ void return_before_barrier(const u32* in, u32* out) {
    if (THREAD >= 48) return;
    __syncthreads();
    out[THREAD] = in[THREAD];
}

extern "C" __global__ void mask_without_caller(const u32* in, u32* out) {
    out[THREAD] = __shfl_sync(0x0000FFFFu, in[THREAD], 0);
}

extern "C" __global__ void lanes_that_never_come(const u32* in, u32* out) {
    u32 value = in[THREAD];
    if (THREAD % 32 < 16)
        value = __shfl_down_sync(FULL, value, 1);
    else
        __syncthreads();
    out[THREAD] = value;
}

extern "C" __global__ void lane_outside_mask(const u32* in, u32* out) {
    u32 value = in[THREAD];
    if (THREAD % 32 < 16) value = __shfl_down_sync(0x0000FFFFu, value, 16);
    out[THREAD] = value;
}

extern "C" __global__ void two_collectives_for_one(const u32* in, u32* out) {
    u32 value = in[THREAD];
    if (THREAD % 2)
        value = __shfl_sync(FULL, value, 0);
    else
        value = __ballot_sync(FULL, value > 3);
    out[THREAD] = value;
}

// ---- memory nobody wrote

extern "C" __global__ void uninitialised_shared(const u32* in, u32* out) {
    __shared__ u32 sum;
    atomicAdd(&sum, in[THREAD]);
    __syncthreads();
    out[THREAD] = sum;
}

extern "C" __global__ void uninitialised_global(const u32* in, u32* out) {
    out[THREAD] += in[THREAD];
}

extern "C" __global__ void warm_up_never_written(const f32* in, f32* out) {
    f32 shown = in[THREAD];
    if (shown == shown) out[THREAD] = shown;   // NaN must be written too
}

// ---- between blocks

extern "C" __global__ void predecessor_by_index(const u32* in, u32* out, u32* flags) {
    if (THREAD == 0) {
        u32 carry = 0;
        if (blockIdx.x > 0)
            while ((carry = load_acquire(&flags[blockIdx.x - 1])) == 0) pause();
        store_release(&flags[blockIdx.x], carry + 1);
    }
    out[INDEX] = in[INDEX];
}

extern "C" __global__ void flag_nobody_sets(const u32* in, u32* out, u32* flags) {
    while (load_acquire(&flags[0]) == 0) pause();
    out[INDEX] = in[INDEX];
}

extern "C" __global__ void lost_updates(const u32* in, u32* out) {
    out[0] += in[INDEX];   // out: one word, zero before
}

// In the two kernels below the blocks must run at the same time, or the sanitizer sees one end before the other begins:
// block 1 says that it is there, and neither pauses, which would let the emulator order them.

extern "C" __global__ void published_under_relaxed_flag(const u32* in, u32* out, u32* flags) {
    // Block 0 hands its data to block 1 under a flag that orders nothing.
    if (THREAD != 0) return;
    if (blockIdx.x == 0) {
        while (load_relaxed(&flags[2]) == 0) {}
        flags[1] = in[0];
        store_relaxed(&flags[0], 1u);
    } else {
        store_relaxed(&flags[2], 1u);
        while (load_relaxed(&flags[0]) == 0) {}
        out[0] = flags[1];
    }
}

extern "C" __global__ void released_too_early(const u32* in, u32* out, u32* flags) {
    if (THREAD != 0) return;
    if (blockIdx.x == 0) {
        while (load_acquire(&flags[2]) == 0) {}
        store_release(&flags[0], 1u);
        flags[1] = in[0];
    } else {
        store_release(&flags[2], 1u);
        while (load_acquire(&flags[0]) == 0) {}
        out[0] = flags[1];
    }
}

extern "C" __global__ void two_writers(const u32* in, u32* out) {
    out[0] = in[0];   // the same value by every thread is still a race
}

// ---- addresses

extern "C" __global__ void read_one_past(const u32* in, u32* out, u32 n) {
    if (INDEX <= n) out[THREAD] = in[INDEX];   // should be <
}

extern "C" __global__ void write_before(const u32* in, u32* out) {
    (out - 1)[THREAD] = in[THREAD];
}

extern "C" __global__ void grid_too_large(const u32* in, u32* out) {
    out[INDEX + 64] = in[INDEX];
}

__device__ __noinline__ void set(u32* at, u32 i, u32 value) { at[i] = value; }

extern "C" __global__ void shared_pointer_overrun(const u32* in, u32* out) {
    __shared__ u32 tile[64];
    set(tile, THREAD + (THREAD == 63), in[THREAD]);
    __syncthreads();
    out[THREAD] = tile[THREAD];
}

extern "C" __global__ void shared_index_past_the_end(const u32* in, u32* out, u32 shift) {
    __shared__ u32 tile[64];
    tile[THREAD] = in[THREAD];
    __syncthreads();
    out[THREAD] = tile[THREAD + shift];
}

extern "C" __global__ void dynamic_shared_too_small(const u32* in, u32* out) {
    extern __shared__ u32 held[];
    held[THREAD] = in[THREAD];   // launched with 63 words for 64 threads
    __syncthreads();
    out[THREAD] = held[63 - THREAD];
}

extern "C" __global__ void local_array_overrun(const u32* in, u32* out, u32 n) {
    u32 mine[4];
    for (u32 i = 0; i < n; ++i) set(mine, i, in[i]);   // n is 5
    out[THREAD] = mine[THREAD % 4];
}

extern "C" __global__ void misaligned_vector(const f32* in, f32* out) {
    float4 four = *reinterpret_cast<const float4*>(in + 1);
    out[THREAD] = four.x + four.w;
}

// ---- arithmetic without a meaning

extern "C" __global__ void shift_by_width(const u32* in, u32* out, u32 n) { out[THREAD] = in[THREAD] << n; }   // n is 32

extern "C" __global__ void signed_overflow(const i32* in, i32* out) { out[THREAD] = in[THREAD] + 2147483647; }

// ---- refused by the kernel itself, or at launch

extern "C" __global__ void failed_assertion(const u32* in, u32* out) {
    assert(in[THREAD] < 60);
    out[THREAD] = in[THREAD];
}

extern "C" __global__ void __launch_bounds__(32) bounded(const u32* in, u32* out) { out[THREAD] = in[THREAD]; }

extern "C" __global__ void typed(const f32* in, f32* out, f32 factor, i32 n, u64 seed) {
    if ((i32)THREAD < n) out[THREAD] = in[THREAD] * factor + (f32)seed;
}
