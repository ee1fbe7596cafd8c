// Sum masked vectors mod 2^32 or 2^64 and remove the masks, each output word written once however many masks there are.
//
//   total[j] = sum_rows masked[row][j] - sum_{m: subtract[m]} mask_m[j] + sum_{m: !subtract[m]} mask_m[j]   (mod 2^BITS)
//
// mask_m is the ChaCha20 keystream (RFC 8439) of key seeds[m], nonce (nonces[m], 0, 0), from block 0 on, read as
// little-endian words of BITS bits. Integers mod 2^BITS: any order of addition gives the same bytes.
//
// Layout: masked[rows][dim] and total[dim] of type Word, seeds[masks][8] u32, nonces[masks] and subtract[masks] u32. All
// threads read the same seed at once, which caches broadcast.
// Launch: one thread per ChaCha20 block (16 words of 32 bits, 8 of 64), 128 threads a block, one-dimensional grid.
// `first_block` is the ChaCha20 block of column 0: a vector may be cut at any multiple of a block.
// Per output word: rows * sizeof(Word) bytes read, sizeof(Word) written, about 60 (BITS 32) or 120 (BITS 64) integer
// operations per mask. Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/chacha20.cuh"

#if BITS == 32
typedef u32 Word;
#else
typedef u64 Word;
#endif

#define WORDS_PER_BLOCK (512 / BITS)

extern "C" __global__ void __launch_bounds__(128)
    unmask(const Word* masked, u32 rows, u64 dim, const u32* seeds, const u32* nonces, const u32* subtract, u32 masks,
           u32 first_block, Word* total) {
    const u64 block = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 first = block * WORDS_PER_BLOCK;
    if (first >= dim) return;
    const u32 count = dim - first < WORDS_PER_BLOCK ? (u32)(dim - first) : WORDS_PER_BLOCK;

    Word sum[WORDS_PER_BLOCK];
#pragma unroll
    for (int w = 0; w < WORDS_PER_BLOCK; ++w) sum[w] = 0;

    for (u32 m = 0; m < masks; ++m) {
        u32 words[16];
        chacha20_block(seeds + 8 * (u64)m, first_block + (u32)block, nonces[m], 0u, 0u, words);
        const bool minus = subtract[m] != 0u;
#pragma unroll
        for (int w = 0; w < WORDS_PER_BLOCK; ++w) {
#if BITS == 32
            const Word mask = words[w];
#else
            const Word mask = ((Word)words[2 * w + 1] << 32) | words[2 * w];
#endif
            sum[w] += minus ? (Word)0 - mask : mask;
        }
    }
    for (u32 row = 0; row < rows; ++row) {
        const Word* vector = masked + (u64)row * dim + first;
#pragma unroll
        for (int w = 0; w < WORDS_PER_BLOCK; ++w)
            if (w < count) sum[w] += vector[w];
    }
#pragma unroll
    for (int w = 0; w < WORDS_PER_BLOCK; ++w)
        if (w < count) total[first + w] = sum[w];
}
