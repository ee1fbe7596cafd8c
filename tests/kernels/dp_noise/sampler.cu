// Run the sampler's functions on words that a test chose: one thread per stream of sixteen words, then ChaCha20's.

#include "device/types.cuh"
#include "device/chacha20.cuh"
#include "device/discrete_noise.cuh"

#define ONE_IN 0
#define BELOW 1
#define LAPLACE 2
#define GAUSSIAN 3

// chosen[n][16]; number is a count, a numerator or k; drawn[n] the outcome, read[n] how many words it took.
extern "C" __global__ void __launch_bounds__(NOISE_THREADS)
    drawn_from(u32 which, const u32* chosen, const u32* key, u64 number, i32 bits, u32 n, i64* drawn, u32* read) {
    __shared__ u32 words[16 * NOISE_THREADS];
    __shared__ u32 shares[NOISE_SHARES];
    fill_shares(shares);
    __syncthreads();
    const u32 i = blockIdx.x * NOISE_THREADS + threadIdx.x;
    if (i >= n) return;
    for (u32 w = 0; w < 16; ++w) words[w * NOISE_THREADS + threadIdx.x] = chosen[16 * i + w];
    Stream<true> s = {key, words + threadIdx.x, shares, i, 7u, 1u, 0u};
    if (which == ONE_IN)
        drawn[i] = one_in(s, (u32)number) ? 1 : 0;
    else if (which == BELOW)
        drawn[i] = below(s, number, bits) ? 1 : 0;
    else
        drawn[i] = which == LAPLACE ? laplace(s, (i32)number) : gaussian(s, (i32)number);
    read[i] = 16 * (s.block - 1u) + s.at;
}
