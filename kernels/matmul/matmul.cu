// product[z] = a[z] @ b[z] for a batch of row-major matrices, with one fixed order of summation.
//
// Mathematics: product[z, i, j] = (((0 + a[z, i, 0] b[z, 0, j]) + a[z, i, 1] b[z, 1, j]) + ...), each product and each
// sum rounded on its own (compiled with --fmad=false). The order of p is that of the CPU's twin, so their bytes agree.
// Rows and columns past the edge enter as 0: the running sum is never -0, so adding 0 * x leaves it as it is.
//
// Memory layout: a (batch, m, k), b (batch, k, n), product (batch, m, n), all row-major; a_stride and b_stride are the
// elements from one matrix of the batch to the next, 0 where one serves them all. REAL is f32 or f64.
//
// Launch shape: blocks of (16, 16); grid.x = row tiles * column tiles, of 64 x 64 each; grid.z = min(batch, 65535), each
// block taking every grid.z-th product. A thread owns a 4 x 4 patch with a spacing of 16 in both directions, so that a
// warp reads and writes neighbouring columns.
//
// Cost per tile and step of 16 along k: 2,048 elements read from global memory, 65,536 products and as many sums; per
// product of a thread half a read of shared memory. Shared memory: 8.3 KB in f32, 16.5 KB in f64.
// Not yet measured on a GPU.

#include "device/types.cuh"

#define TILE 64    // rows and columns of the product that a block owns
#define DEPTH 16   // how far along k a block goes between barriers
#define SIDE 16    // threads along each direction
#define PATCH 4    // TILE / SIDE

extern "C" __global__ void matmul(const REAL* a, const REAL* b, REAL* product, i64 m, i64 n, i64 k, i64 a_stride,
                                  i64 b_stride, i64 batch, i64 column_tiles) {
    // Transposed, with one column more: neighbouring threads store down a column of it, each to another bank.
    __shared__ REAL a_tile[DEPTH][TILE + 1];
    __shared__ REAL b_tile[DEPTH][TILE];

    const int x = threadIdx.x;
    const int y = threadIdx.y;
    const int thread = y * SIDE + x;
    const i64 row_0 = (i64)(blockIdx.x / column_tiles) * TILE;
    const i64 column_0 = (i64)(blockIdx.x % column_tiles) * TILE;

    for (i64 z = blockIdx.z; z < batch; z += gridDim.z) {
        const REAL* a_z = a + z * a_stride;
        const REAL* b_z = b + z * b_stride;
        REAL sum[PATCH][PATCH];
        for (int i = 0; i < PATCH; i++)
            for (int j = 0; j < PATCH; j++) sum[i][j] = (REAL)0;

        for (i64 p_0 = 0; p_0 < k; p_0 += DEPTH) {
            for (int i = 0; i < PATCH; i++) {
                const int p = thread % DEPTH;
                const int row = thread / DEPTH + i * (TILE / PATCH);
                const bool inside = row_0 + row < m && p_0 + p < k;
                a_tile[p][row] = inside ? a_z[(row_0 + row) * k + p_0 + p] : (REAL)0;
            }
            for (int i = 0; i < PATCH; i++) {
                const int p = thread / TILE + i * (DEPTH / PATCH);
                const int column = thread % TILE;
                const bool inside = column_0 + column < n && p_0 + p < k;
                b_tile[p][column] = inside ? b_z[(p_0 + p) * n + column_0 + column] : (REAL)0;
            }
            __syncthreads();
            for (int p = 0; p < DEPTH; p++) {
                REAL left[PATCH], right[PATCH];
                for (int i = 0; i < PATCH; i++) left[i] = a_tile[p][y + i * SIDE];
                for (int j = 0; j < PATCH; j++) right[j] = b_tile[p][x + j * SIDE];
                for (int i = 0; i < PATCH; i++)
                    for (int j = 0; j < PATCH; j++) sum[i][j] = sum[i][j] + left[i] * right[j];
            }
            __syncthreads();
        }

        REAL* product_z = product + z * m * n;
        for (int i = 0; i < PATCH; i++) {
            const i64 row = row_0 + y + i * SIDE;
            for (int j = 0; j < PATCH; j++) {
                const i64 column = column_0 + x + j * SIDE;
                if (row < m && column < n) product_z[row * n + column] = sum[i][j];
            }
        }
    }
}
