// Sum masked vectors mod 2^32 or 2^64 and remove the masks, each output word written once however many masks there are.
//
//   total[j] = sum_rows masked[row][j] - sum_{m: subtract[m]} mask_m[j] + sum_{m: !subtract[m]} mask_m[j]   (mod 2^BITS)
//
// mask_m is the ChaCha20 keystream (RFC 8439) of key seeds[m], nonce (nonces[m], 0, 0), from block 0 on, read as
// little-endian words of BITS bits. Integers mod 2^BITS: any order of addition gives the same bytes.
//
// Layout: masked[rows][dim] and total[dim] of type Word, seeds[masks][8] u32, nonces[masks] and subtract[masks] u32. All
// threads read the same seed at once, which caches broadcast.
// Launch: 128 threads, grid.x over the columns, each block 128 ChaCha20 blocks of them (2048 words of 32 bits, 1024 of 64).
// `first_block` is the ChaCha20 block of column 0: a vector may be cut at any multiple of a block. Where columns are few,
// grid.y shares out the masks and the rows, and the shares are added to a total that was zeroed before.
// A thread expands one ChaCha20 block of every mask and holds its 16 (8) words in registers. Rows are read with a warp's
// words side by side (128 or 256 bytes), so the masks are first handed over through shared memory: 8.5 (9) KiB, of which
// each thread leaves a word free after its own to spread them over the banks.
//
// Per output word: rows * sizeof(Word) bytes read, sizeof(Word) written, and for each mask 61 (BITS 32) or 122 (BITS 64)
// integer operations: in the machine code for sm_90, 40 (80) on the logic unit and 20 (40) additions that the multipliers do
// beside it. At 64 of each a clock in a multiprocessor (H200: 132 at 1.83 GHz) keystream comes at 1.5 TB/s. As every row has
// a mask of its own, that is the limit, at a third of what memory gives; without masks it would be memory.
// Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/chacha20.cuh"

#if BITS == 32
typedef u32 Word;
#else
typedef u64 Word;
#endif

#define THREADS 128
#define WORDS_PER_BLOCK (512 / BITS)
#define HELD (WORDS_PER_BLOCK + 1)

extern "C" __global__ void __launch_bounds__(THREADS)
    unmask(const Word* masked, u32 rows, u64 dim, const u32* seeds, const u32* nonces, const u32* subtract, u32 masks,
           u32 first_block, Word* total) {
    __shared__ Word held[THREADS * HELD];
    const u64 begin = (u64)blockIdx.x * THREADS * WORDS_PER_BLOCK;  // first column of this block
    Word sum[WORDS_PER_BLOCK];
#pragma unroll
    for (int w = 0; w < WORDS_PER_BLOCK; ++w) sum[w] = 0;

    if (begin + threadIdx.x * WORDS_PER_BLOCK < dim) {
        const u32 counter = first_block + blockIdx.x * THREADS + threadIdx.x;
        for (u32 m = blockIdx.y; m < masks; m += gridDim.y) {
            u32 words[16];
            chacha20_block(seeds + 8 * (u64)m, counter, nonces[m], 0u, 0u, words);
#if BITS == 32
#define MASK(w) words[w]
#else
#define MASK(w) (((Word)words[2 * (w) + 1] << 32) | words[2 * (w)])
#endif
            if (subtract[m] != 0u) {
#pragma unroll
                for (int w = 0; w < WORDS_PER_BLOCK; ++w) sum[w] -= MASK(w);
            } else {
#pragma unroll
                for (int w = 0; w < WORDS_PER_BLOCK; ++w) sum[w] += MASK(w);
            }
        }
    }

    // From here on a thread has every 128th column.
#pragma unroll
    for (int w = 0; w < WORDS_PER_BLOCK; ++w) held[threadIdx.x * HELD + w] = sum[w];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WORDS_PER_BLOCK; ++i) {
        const u32 at = i * THREADS + threadIdx.x;
        sum[i] = held[at / WORDS_PER_BLOCK * HELD + at % WORDS_PER_BLOCK];
    }
    const u64 column = begin + threadIdx.x;
    const bool whole = begin + THREADS * WORDS_PER_BLOCK <= dim;
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
        const Word* vector = masked + (u64)row * dim + column;
        if (whole) {
#pragma unroll
            for (int i = 0; i < WORDS_PER_BLOCK; ++i) sum[i] += vector[i * THREADS];
        } else {
#pragma unroll
            for (int i = 0; i < WORDS_PER_BLOCK; ++i)
                if (column + i * THREADS < dim) sum[i] += vector[i * THREADS];
        }
    }
#pragma unroll
    for (int i = 0; i < WORDS_PER_BLOCK; ++i) {
        if (column + i * THREADS >= dim) break;
        // Integers mod 2^BITS: the shares may be added in any order.
        if (gridDim.y == 1)
            total[column + i * THREADS] = sum[i];
        else
            atomicAdd(total + column + i * THREADS, sum[i]);
    }
}
