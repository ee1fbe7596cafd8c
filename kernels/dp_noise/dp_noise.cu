// Clip records in exact integers, add them up, and add exact discrete Laplace or discrete Gaussian noise.
//
// A value x becomes the integer round(x * mantissa * 2^exponent), ties to even, computed from the bits of x; a record is
// scaled down to its bound as floor(|q| * bound / norm); integers are summed mod 2^64, so no order of addition shows. The
// noise is Canonne, Kamath, Steinke (2020), algorithms 1 to 3, for scale t = 2^k grid steps, out of ChaCha20 (RFC 8439):
// element i reads blocks 0, 1, ... under the nonce LE64(i) || LE32(mechanism). The sampler is discrete_noise.cuh. Text and
// order of words are those of sampler.py and integers.py, which say why each step is exact. No float but the last product,
// noisy = (total + noise) * grid.
//
// Layout: bits[n][d] u64 (float64 bits), norms[n] u64 (0: record within its bound), total[d] i64, noisy[d] f64, key[8] u32.
// Launch: row_norms     one warp per record, blockDim (32, 4), grid over records
//         sum_rows      128 threads; grid.x over columns, grid.y over chunks of ROWS records; total zeroed before
//         to_grid       one thread per value, 256 threads
//         *_noise       one thread per element, THREADS threads, 64 bytes of shared memory each
// row_norms and sum_rows read 8 bytes a value and do about 60 integer operations each; to_grid reads 8, writes 8. Laplace
// noise needs 1.1 ChaCha20 blocks an element on average (7.8 words of 16), Gaussian 1.3, about 1000 integer operations a
// block, and 16 bytes. Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/chacha20.cuh"
#include "device/discrete_noise.cuh"

#define THREADS NOISE_THREADS
#define ROWS 256
#define L1 1
#define L2 2
#define LINF 3

struct Wide {
    u64 high, low;
};

__device__ __forceinline__ Wide product(u64 a, u64 b) {
    const u64 a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
    const u64 low = a0 * b0, middle = a1 * b0, cross = a0 * b1, high = a1 * b1;
    const u64 carry = (low >> 32) + (middle & 0xffffffffu) + cross;
    return {high + (middle >> 32) + (carry >> 32), (carry << 32) | (low & 0xffffffffu)};
}

__device__ __forceinline__ Wide plus(Wide a, Wide b) {
    const u64 low = a.low + b.low;
    return {a.high + b.high + (low < a.low ? 1u : 0u), low};
}

__device__ __forceinline__ bool exceeds(Wide a, Wide b) { return a.high > b.high || (a.high == b.high && a.low > b.low); }

// Round the float64 with these bits times mantissa * 2^exponent to an integer, cut to +-most (at most 2^62).
__device__ i64 steps_of(u64 bits, u64 mantissa, i32 exponent, u64 most) {
    i32 biased = (i32)((bits >> 52) & 0x7ffu);
    u64 m = bits & 0xfffffffffffffull;
    if (biased > 0)
        m |= 1ull << 52;
    else
        biased = 1;
    const i32 shift = 1075 - biased - exponent;  // the value is m * mantissa / 2^shift
    const Wide p = product(m, mantissa);
    u64 magnitude;
    if (shift >= 108 || (p.high == 0 && p.low == 0)) {
        magnitude = 0;
    } else if (shift < 43) {
        magnitude = most;
    } else {
        u64 whole, half, below;
        if (shift < 64) {
            whole = (p.high << (64 - shift)) | (p.low >> shift);
            half = (p.low >> (shift - 1)) & 1u;
            below = p.low & ((1ull << (shift - 1)) - 1);
        } else if (shift == 64) {
            whole = p.high;
            half = p.low >> 63;
            below = p.low & 0x7fffffffffffffffull;
        } else {
            whole = p.high >> (shift - 64);
            half = (p.high >> (shift - 65)) & 1u;
            below = (p.high & ((1ull << (shift - 65)) - 1)) | p.low;
        }
        if (half != 0 && (below != 0 || (whole & 1u) != 0)) whole += 1;
        magnitude = whole > most ? most : whole;
    }
    return (bits >> 63) != 0 ? -(i64)magnitude : (i64)magnitude;
}

// The least r with r * r >= wide.
__device__ u64 root_up(Wide wide) {
    u64 root = 0;
    for (int bit = wide.high != 0 ? 62 : 31; bit >= 0; --bit) {
        const u64 tried = root | (1ull << bit);
        if (!exceeds(product(tried, tried), wide)) root = tried;
    }
    const Wide square = product(root, root);
    return square.high == wide.high && square.low == wide.low ? root : root + 1;
}

// norms[i] = the L1 or L2 norm of record i, rounded up, where it exceeds the bound; 0 where it does not.
extern "C" __global__ void __launch_bounds__(128)
    row_norms(const u64* bits, u64 n, u64 d, u64 mantissa, i32 exponent, u64 saturation, i32 norm, u64 bound, u64* norms) {
    const u64 row = (u64)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= n) return;  // a whole warp at a time: threadIdx.y is the same in all 32 lanes
    Wide size = {0, 0};
    for (u64 j = threadIdx.x; j < d; j += 32) {
        const u64 q = magnitude_of(steps_of(bits[row * d + j], mantissa, exponent, saturation));
        size = plus(size, norm == L1 ? Wide{0, q} : product(q, q));
    }
    for (int apart = 16; apart > 0; apart >>= 1) {
        Wide other;
        other.high = __shfl_xor_sync(0xffffffffu, size.high, apart);
        other.low = __shfl_xor_sync(0xffffffffu, size.low, apart);
        size = plus(size, other);
    }
    if (threadIdx.x != 0) return;
    if (norm == L1)
        norms[row] = size.low > bound ? size.low : 0;
    else
        norms[row] = exceeds(size, product(bound, bound)) ? root_up(size) : 0;
}

// total[j] += sum of the clipped q[i][j] over ROWS records; `width` is a power of two, at most THREADS, of columns side by side.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_rows(const u64* bits, u64 n, u64 d, u64 mantissa, i32 exponent, u64 saturation, i32 norm, u64 bound,
             const u64* norms, u32 width, u64* total) {
    const u64 column = (u64)blockIdx.x * width + threadIdx.x % width;
    if (column >= d) return;
    const u64 first = (u64)blockIdx.y * ROWS;
    const u64 last = n - first < ROWS ? n : first + ROWS;
    u64 sum = 0;
    for (u64 row = first + threadIdx.x / width; row < last; row += THREADS / width) {
        const i64 q = steps_of(bits[row * d + column], mantissa, exponent, norm == LINF ? bound : saturation);
        u64 magnitude = magnitude_of(q);
        const u64 size = norm == LINF ? 0 : norms[row];
        if (size != 0) {
            // magnitude * bound must fit 64 bits: drop bits of both where it might not, the norm rounded up.
            int shift = 0;
            while ((size >> shift) >= (1ull << 63) / bound) ++shift;
            const u64 divisor = (size >> shift) + (shift > 0 ? 1u : 0u);
            magnitude = (magnitude >> shift) * bound / divisor;
        }
        sum += q < 0 ? 0 - magnitude : magnitude;
    }
    atomicAdd(total + column, sum);  // integers mod 2^64: any order gives the same bytes
}

extern "C" __global__ void __launch_bounds__(256) to_grid(const u64* bits, u64 n, u64 mantissa, i32 exponent, i64* steps) {
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) steps[i] = steps_of(bits[i], mantissa, exponent, 1ull << 62);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    laplace_noise(const u32* key, u32 mechanism, i32 k, f64 grid, const i64* total, u64 n, f64* noisy) {
    __shared__ u32 words[16 * THREADS];
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    Stream s = {key, words + threadIdx.x, i, mechanism, 0u, 16u};
    noisy[i] = (f64)(i64)((u64)total[i] + (u64)laplace(s, k)) * grid;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gaussian_noise(const u32* key, u32 mechanism, i32 k, f64 grid, const i64* total, u64 n, f64* noisy) {
    __shared__ u32 words[16 * THREADS];
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    Stream s = {key, words + threadIdx.x, i, mechanism, 0u, 16u};
    noisy[i] = (f64)(i64)((u64)total[i] + (u64)gaussian(s, k)) * grid;
}
