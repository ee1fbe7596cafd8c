// Risk parity: the minimum of x'Sx / 2 - sum of b_i ln x_i for each covariance matrix S of a batch, by cyclic coordinate
// descent (Spinu 2013; Griveau-Billion, Richard and Roncalli 2013). Twin of loops.py, function risk_parity.
//
// Memory layout: covariances (batch, size, size), x and y (batch, size), iterations and residuals (batch), budgets
// (size). y is Sx.
//
// Launch shape: a block of 256 threads for each matrix. Thread t has the elements t, t + 256, ... of y: only it reads
// and writes them. Each is changed in the order of the assets, as on the CPU, so the bytes are equal.
//
// Cost: a sweep reads the matrix, 8 size^2 bytes, for 2 size^2 operations. Matrices of up to some hundred assets stay in
// L2 or L1 from the second sweep on, so the limit is the latency of size dependent steps with a barrier each. Many
// matrices keep a GPU busy, one does not. Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/reduce.cuh"

extern "C" __global__ void __launch_bounds__(256)
    risk_parity(const f64* covariances, const f64* budgets, u32 size, f64 tolerance, i32 most, f64* x, f64* y,
                i32* iterations, f64* residuals) {
    __shared__ f64 next[2];  // y of the asset whose turn is next, and of the one whose turn it is
    __shared__ u64 held[REDUCE_WARPS];
    const f64* s = covariances + (u64)blockIdx.x * size * size;
    f64* portfolio = x + (u64)blockIdx.x * size;
    f64* marginal = y + (u64)blockIdx.x * size;
    const u32 thread = threadIdx.x;

    for (u32 i = thread; i < size; i += REDUCE_BLOCK)
        portfolio[i] = sqrt(budgets[i]) / sqrt(s[(u64)i * size + i]);
    __syncthreads();
    for (u32 j = thread; j < size; j += REDUCE_BLOCK) {
        f64 sum = 0.0;
        for (u32 i = 0; i < size; ++i) sum += portfolio[i] * s[(u64)i * size + j];
        marginal[j] = sum;
    }
    __syncthreads();
    f64 square = 0.0;
    for (u32 i = 0; i < size; ++i) square += portfolio[i] * marginal[i];
    const f64 scale = square > 0.0 ? 1.0 / sqrt(square) : 1.0;
    __syncthreads();
    for (u32 i = thread; i < size; i += REDUCE_BLOCK) {
        portfolio[i] *= scale;
        marginal[i] *= scale;
    }
    i32 sweep = 0;
    f64 residual;
    while (true) {
        __syncthreads();
        residual = 0.0;
        for (u32 i = thread; i < size; i += REDUCE_BLOCK) {
            const f64 distance = fabs(portfolio[i] * marginal[i] - budgets[i]);
            if (distance > residual) residual = distance;
        }
        // Numbers that are not negative are in the order of their bits.
        residual = __longlong_as_double((i64)block_greatest((u64)__double_as_longlong(residual), held));
        if (residual <= tolerance || sweep == most) break;
        if (thread == 0) next[0] = marginal[0];
        __syncthreads();
        for (u32 i = 0; i < size; ++i) {
            const f64 variance = s[(u64)i * size + i];
            const f64 others = next[i % 2] - variance * portfolio[i];
            const f64 root = sqrt(others * others + 4.0 * variance * budgets[i]);
            const f64 found = others > 0.0 ? 2.0 * budgets[i] / (others + root) : (root - others) / (2.0 * variance);
            const f64 change = found - portfolio[i];
            for (u32 j = thread; j < size; j += REDUCE_BLOCK) {
                marginal[j] += change * s[(u64)i * size + j];
                if (j == i + 1) next[j % 2] = marginal[j];
            }
            __syncthreads();
            if (thread == 0) portfolio[i] = found;
        }
        ++sweep;
    }
    if (thread == 0) {
        iterations[blockIdx.x] = sweep;
        residuals[blockIdx.x] = residual;
    }
}
