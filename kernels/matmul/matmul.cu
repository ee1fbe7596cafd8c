// product[z] = a[z] @ b[z] for a batch of row-major matrices, with one fixed order of summation.
//
// Mathematics: sum = 0; for p = 0, 1, ... k - 1: sum = fma(a[z, i, p], b[z, p, j], sum); product[z, i, j] = sum. fma is
// IEEE 754's, rounded once, and asked for by name: nothing is left to the compiler (--fmad=false). The order of p is
// that of the CPU's twin, and no tile changes it, so their bytes agree. Past the end of k, a enters as -0 and b as 0:
// adding -0 leaves every sum as it is, -0 too. Rows and columns past the edge repeat the last one and are not written.
//
// Memory layout: a (batch, m, k), b (batch, k, n), product (batch, m, n), all row-major, each beginning at 16 bytes;
// a_stride and b_stride are the elements from one matrix of the batch to the next, 0 where one serves them all. REAL is
// f32 or f64. Rows whose length is a whole number of 16 bytes are read (and written) 16 bytes at a time.
//
// Launch shape: grid.x = row tiles * column tiles; grid.z = batch, of which one launch takes 65,535.
//
//     kernel          tile f32    tile f64    along k    threads    a thread's patch    shared memory f32, f64
//     matmul_large    128 x 128   128 x 64    8          256        8 x 8, 8 x 4        16.6 KB, 25.1 KB
//     matmul_medium    64 x  64    64 x 64    16, 8      256        4 x 4               16.9 KB, 16.9 KB
//     matmul_small     32 x  32    32 x 32    16, 8       64        4 x 4                8.7 KB,  8.4 KB
//
// gpu.py takes the kernel whose tiles keep the multiprocessors busiest. At most 128 registers per thread, so that two
// blocks of 256 threads share a multiprocessor. While a block multiplies one slice of k out of shared memory, its next
// one comes from global memory into registers; two slices in shared memory make one barrier per slice enough. A warp's
// 32 threads stand 4 x 8 over its part of the tile and read their patch in pieces of 16 bytes: the 8 pieces of b lie
// side by side, the 4 of a are shared by 8 threads each, and no two meet in a bank.
//
// Cost: k fma (2 k operations) per element of the product. A tile of m x n takes k (m + n) elements from L2 or memory, so
// matmul_large in f32 does 16,384 fma for each 1,024 bytes of a and b: 16 fma (32 operations) per byte, f64 5.3 fma; and
// 16 fma (f64: 5.3) for each 16 bytes that a thread reads from shared memory. At 32 operations per byte the 4.8 TB/s of
// an H200 would feed 150 Tflop/s (f64: 51), so the limit is the arithmetic: 128 fma per multiprocessor and clock in f32, 67
// Tflop/s there (f64: 64 and 34), from n of about 2,000 on, where two blocks have a place on every multiprocessor.
// Not yet measured on a GPU.

#include "device/types.cuh"

#define LANES_Y 4  // a warp over its part of a tile
#define LANES_X 8
#define PIECE (16 / (int)sizeof(REAL))

// Steps along k that are scheduled together; of float64, and on the RTX 50, two would spill registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
#define STEPS 1
#else
#define STEPS (8 / (int)sizeof(REAL))
#endif

template <class T>
struct Sixteen;
template <>
struct Sixteen<f32> {
    typedef float4 bytes;
};
template <>
struct Sixteen<f64> {
    typedef double2 bytes;
};
typedef Sixteen<REAL>::bytes Bytes;


__device__ __forceinline__ void copy16(REAL* to, const REAL* from) {
    *reinterpret_cast<Bytes*>(to) = *reinterpret_cast<const Bytes*>(from);
}

// PIECE elements from `from` on, of which `there` exist: all or none where `wide`. `last` stands for the others.
__device__ __forceinline__ void fetch(REAL* to, const REAL* from, int there, bool wide, REAL last) {
    if (wide && there > 0) {
        copy16(to, from);
    } else {
#pragma unroll
        for (int e = 0; e < PIECE; e++) to[e] = e < there ? from[e] : last;
    }
}

template <int ROWS, int COLUMNS, int DEPTH, int HIGH, int BROAD>
__device__ __forceinline__ void multiply(const REAL* a, const REAL* b, REAL* product, i64 m, i64 n, i64 k, i64 a_stride,
                                         i64 b_stride, i64 column_tiles) {
    constexpr int WARPS_X = COLUMNS / (LANES_X * BROAD);
    constexpr int THREADS = ROWS / (LANES_Y * HIGH) * WARPS_X * 32;
    constexpr int A_PIECES = ROWS * DEPTH / PIECE / THREADS;
    constexpr int B_PIECES = DEPTH * COLUMNS / PIECE / THREADS;
    static_assert(A_PIECES * PIECE * THREADS == ROWS * DEPTH && B_PIECES * PIECE * THREADS == DEPTH * COLUMNS, "");

    // a lies transposed, and a piece longer than its columns: the threads of a warp store down several of them at once.
    __shared__ __align__(16) REAL a_slice[2][DEPTH][ROWS + PIECE];
    __shared__ __align__(16) REAL b_slice[2][DEPTH][COLUMNS];

    const int thread = threadIdx.x;
    const int lane = thread % 32;
    const int warp = thread / 32;
    const int y = warp / WARPS_X * (LANES_Y * HIGH) + lane / LANES_X * PIECE;  // first row of the patch in the tile
    const int x = warp % WARPS_X * (LANES_X * BROAD) + lane % LANES_X * PIECE;
    const i64 row_0 = (i64)(blockIdx.x / column_tiles) * ROWS;
    const i64 column_0 = (i64)(blockIdx.x % column_tiles) * COLUMNS;
    const bool a_wide = k % PIECE == 0;
    const bool b_wide = n % PIECE == 0;

    const i64 z = blockIdx.z;
    const REAL* a_from[A_PIECES];
    const REAL* b_from[B_PIECES];
    int b_there[B_PIECES];  // columns, from the first of a piece on
#pragma unroll
    for (int i = 0; i < A_PIECES; i++) {
        const int piece = thread + i * THREADS;
        const i64 row = row_0 + piece / (DEPTH / PIECE);
        a_from[i] = a + z * a_stride + (row < m ? row : m - 1) * k + piece % (DEPTH / PIECE) * PIECE;
    }
#pragma unroll
    for (int i = 0; i < B_PIECES; i++) {
        const int piece = thread + i * THREADS;
        const i64 column = column_0 + piece % (COLUMNS / PIECE) * PIECE;
        b_there[i] = (int)(n - column < PIECE ? n - column : PIECE);
        b_from[i] = b + z * b_stride + piece / (COLUMNS / PIECE) * n + column;
    }

    REAL sum[HIGH][BROAD];
#pragma unroll
    for (int i = 0; i < HIGH; i++)
#pragma unroll
        for (int j = 0; j < BROAD; j++) sum[i][j] = (REAL)0;

    __align__(16) REAL a_next[A_PIECES][PIECE];
    __align__(16) REAL b_next[B_PIECES][PIECE];
    // The next slice, of `terms` or DEPTH of k, into registers.
    auto read = [&](i64 terms) {
        const int depth = terms < DEPTH ? (int)terms : DEPTH;
#pragma unroll
        for (int i = 0; i < A_PIECES; i++) {
            const int p = (thread + i * THREADS) % (DEPTH / PIECE) * PIECE;
            fetch(a_next[i], a_from[i], depth - p, a_wide, -(REAL)0);
            a_from[i] += DEPTH;
        }
#pragma unroll
        for (int i = 0; i < B_PIECES; i++) {
            const int p = (thread + i * THREADS) / (COLUMNS / PIECE);
            fetch(b_next[i], b_from[i], p < depth ? b_there[i] : 0, b_wide, (REAL)0);
            b_from[i] += DEPTH * n;
        }
    };
    auto store = [&](int slice) {
#pragma unroll
        for (int i = 0; i < A_PIECES; i++) {
            const int piece = thread + i * THREADS;
#pragma unroll
            for (int e = 0; e < PIECE; e++)
                a_slice[slice][piece % (DEPTH / PIECE) * PIECE + e][piece / (DEPTH / PIECE)] = a_next[i][e];
        }
#pragma unroll
        for (int i = 0; i < B_PIECES; i++) {
            const int piece = thread + i * THREADS;
            copy16(&b_slice[slice][piece / (COLUMNS / PIECE)][piece % (COLUMNS / PIECE) * PIECE], b_next[i]);
        }
    };

    read(k);
    store(0);
    __syncthreads();
    int slice = 0;
    for (i64 terms = k; terms > 0; terms -= DEPTH) {
        const bool more = terms > DEPTH;
        if (more) read(terms - DEPTH);
#pragma unroll STEPS
        for (int p = 0; p < DEPTH; p++) {
            __align__(16) REAL left[HIGH];
            __align__(16) REAL right[BROAD];
#pragma unroll
            for (int i = 0; i < HIGH; i += PIECE) copy16(&left[i], &a_slice[slice][p][y + i * LANES_Y]);
#pragma unroll
            for (int j = 0; j < BROAD; j += PIECE) copy16(&right[j], &b_slice[slice][p][x + j * LANES_X]);
#pragma unroll
            for (int i = 0; i < HIGH; i++)
#pragma unroll
                for (int j = 0; j < BROAD; j++) sum[i][j] = fused(left[i], right[j], sum[i][j]);
        }
        if (more) {
            // Nobody reads the other slice: all have passed the barrier after the last look at it.
            slice ^= 1;
            store(slice);
            __syncthreads();
        }
    }

    REAL* product_z = product + z * m * n;
#pragma unroll
    for (int i = 0; i < HIGH; i++) {
        const i64 row = row_0 + y + i / PIECE * (PIECE * LANES_Y) + i % PIECE;
        if (row >= m) continue;
#pragma unroll
        for (int j = 0; j < BROAD; j += PIECE) {
            const i64 column = column_0 + x + j * LANES_X;
            __align__(16) REAL piece[PIECE];
#pragma unroll
            for (int e = 0; e < PIECE; e++) piece[e] = sum[i][j + e];
            if (b_wide && column < n) {
                copy16(product_z + row * n + column, piece);
            } else {
#pragma unroll
                for (int e = 0; e < PIECE; e++)
                    if (column + e < n) product_z[row * n + column + e] = piece[e];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 2)
    matmul_large(const REAL* a, const REAL* b, REAL* product, i64 m, i64 n, i64 k, i64 a_stride, i64 b_stride,
                 i64 column_tiles) {
    multiply<128, sizeof(REAL) == 4 ? 128 : 64, 8, 8, sizeof(REAL) == 4 ? 8 : 4>(a, b, product, m, n, k, a_stride,
                                                                                 b_stride, column_tiles);
}

extern "C" __global__ void __launch_bounds__(256, 2)
    matmul_medium(const REAL* a, const REAL* b, REAL* product, i64 m, i64 n, i64 k, i64 a_stride, i64 b_stride,
                  i64 column_tiles) {
    multiply<64, 64, 4 * PIECE, 4, 4>(a, b, product, m, n, k, a_stride, b_stride, column_tiles);
}

extern "C" __global__ void __launch_bounds__(64)
    matmul_small(const REAL* a, const REAL* b, REAL* product, i64 m, i64 n, i64 k, i64 a_stride, i64 b_stride,
                 i64 column_tiles) {
    multiply<32, 32, 4 * PIECE, 4, 4>(a, b, product, m, n, k, a_stride, b_stride, column_tiles);
}
