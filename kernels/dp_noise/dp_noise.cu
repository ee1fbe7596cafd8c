// Clip records in exact integers, add them up or count them in bins, and add exact discrete Laplace or Gaussian noise.
//
// A value x becomes the integer round(x * mantissa * 2^exponent), ties to even, computed from the bits of x; a record is
// scaled down to its bound as floor(|q| * bound / norm); integers are summed mod 2^64, so no order of addition shows. The
// noise is Canonne, Kamath, Steinke (2020), algorithms 1 to 3, for scale t = 2^k grid steps, out of ChaCha20 (RFC 8439):
// element i reads blocks 0, 1, ... under the nonce LE64(i) || LE32(domain). The sampler is discrete_noise.cuh. Text and
// order of words are those of sampler.py and integers.py, which say why each step is exact. No float but the last product,
// noisy = (total + noise) * grid.
//
// Layout: bits[n][d] u64 (float64 bits), norms[n] u64 (0: record within its bound), total[d] u64, edges[bins + 1] f64,
// counts[bins] u64, key[8] u32. The noise is given numbers[n] u64, exact totals or bits of values, and writes the noisy
// float64 in their place, each of them once; out_of_range[1] u32 is set where a value passed 2^62 steps.
// Launch: row_norms     one warp per record, blockDim (32, 4), grid over records
//         sum_rows      128 threads; grid.x over columns, grid.y over the records, each block its share of them; total
//                       zeroed before
//         clip_rows     128 threads, one value each; the clipped steps take the values' place
//         count_values  128 threads; grid.x over the values, each block its share of them, grid.y over BINS bins each;
//                       16 KiB of shared memory; counts zeroed before
//         *_noise       128 threads, `rounds` elements to each; 8 KiB of shared memory, and 4 bytes an element
// count_values reads 8 bytes a value for each BINS bins and adds to shared memory, in which values of one bin wait for each
// other: a histogram of one bin takes the longest. row_norms and sum_rows read 8 bytes a value and take about 110 and 100 instructions each in the machine code for sm_90 (and
// a division where a record is scaled down): bound by arithmetic, 10^8 values in linf are at least 0.3 ms on an H200, of
// which memory would need 0.17.
//
// An element's noise takes 7.8 words of ChaCha20 (Laplace) or 12.2 (Gaussian) on average; 6 % and 22 % of the elements need
// more than the 16 of a block (measured on 200,000, k = 20). Were they refilled on the spot, a warp would wait for one
// nearly always: 1.9 (3.0) blocks for each of its elements. So all elements of a block of threads draw from their first 16
// words, and those that ran dry are done again, by threads side by side, with as many words as they need: 1.1 (1.5)
// blocks of about 1000 integer operations, 640 of them on the logic unit of sm_90, and some 250 of the sampler, more where
// the threads of a warp part ways, for 16 bytes. Bound by integer arithmetic: at 64 on the logic unit a clock, 2^20 Laplace
// elements are at least 62 us on an H200 (132 multiprocessors at 1.83 GHz), twice that if a warp's threads never agree.
// Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/chacha20.cuh"
#include "device/discrete_noise.cuh"

#define THREADS NOISE_THREADS
#define MOST_ROUNDS 8
#define L1 1
#define L2 2
#define LINF 3
#define BINS 4096

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

// The step of a value in a record of this norm, which is 0 where it is within the bound or cut coordinate by coordinate.
__device__ __forceinline__ i64 clipped(u64 bits, u64 mantissa, i32 exponent, u64 saturation, i32 norm, u64 bound, u64 size) {
    const i64 q = steps_of(bits, mantissa, exponent, norm == LINF ? bound : saturation);
    if (size == 0) return q;
    // Drop bits of both where magnitude * bound might not fit, the norm rounded up.
    const u64 widest = (1ull << 63) / bound;
    int shift = 0;
    while ((size >> shift) >= widest) ++shift;
    const u64 divisor = (size >> shift) + (shift > 0 ? 1u : 0u);
    const u64 magnitude = (magnitude_of(q) >> shift) * bound / divisor;
    return q < 0 ? -(i64)magnitude : (i64)magnitude;
}

// total[j] += sum of the clipped q[i][j]; `width` is a power of two, at most THREADS, of columns side by side. A block sums
// `rows` records, THREADS / width of them at a time, and adds once to each of its columns.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_rows(const u64* bits, u64 n, u64 d, u64 mantissa, i32 exponent, u64 saturation, i32 norm, u64 bound,
             const u64* norms, u32 width, u64 rows, u64* total) {
    __shared__ u64 sums[THREADS];
    const u64 column = (u64)blockIdx.x * width + threadIdx.x % width;
    const u64 first = blockIdx.y * rows;
    const u64 last = n - first < rows ? n : first + rows;
    u64 sum = 0;
    for (u64 row = first + threadIdx.x / width; row < last && column < d; row += THREADS / width)
        sum += (u64)clipped(bits[row * d + column], mantissa, exponent, saturation, norm, bound, norm == LINF ? 0 : norms[row]);
    sums[threadIdx.x] = sum;
    for (u32 apart = THREADS / 2; apart >= width; apart >>= 1) {
        __syncthreads();
        if (threadIdx.x < apart) sums[threadIdx.x] += sums[threadIdx.x + apart];
    }
    // Integers mod 2^64: any order gives the same bytes.
    if (threadIdx.x < width && column < d) atomicAdd(total + column, sums[threadIdx.x]);
}

// bits[i][j] becomes the clipped q[i][j], as 64 bits.
extern "C" __global__ void __launch_bounds__(THREADS)
    clip_rows(u64* bits, u64 n, u64 d, u64 mantissa, i32 exponent, u64 saturation, i32 norm, u64 bound, const u64* norms) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n * d) return;
    bits[i] = (u64)clipped(bits[i], mantissa, exponent, saturation, norm, bound, norm == LINF ? 0 : norms[i / d]);
}

// counts[b] += how many values lie in bin b, which is [edges[b], edges[b + 1]), the last with its right edge. A block counts
// `each` values, at most 2^32, in bins BINS * blockIdx.y and on.
extern "C" __global__ void __launch_bounds__(THREADS)
    count_values(const u64* bits, u64 n, const f64* edges, u32 bins, u64 each, u64* counts) {
    __shared__ u32 found[BINS];
    const u32 base = blockIdx.y * BINS;
    const u32 here = bins - base < BINS ? bins - base : BINS;
    for (u32 bin = threadIdx.x; bin < here; bin += THREADS) found[bin] = 0;
    __syncthreads();
    const f64 least = edges[base], most = edges[base + here];
    const bool closed = base + here == bins;
    const u64 first = blockIdx.x * each;
    const u64 last = n - first < each ? n : first + each;
    for (u64 i = first + threadIdx.x; i < last; i += THREADS) {
        const f64 value = __longlong_as_double((i64)bits[i]);
        if (value < least || value > most || (value == most && !closed)) continue;
        u32 low = 0, high = here;
        while (high - low > 1) {
            const u32 middle = (low + high) / 2;
            if (value < edges[base + middle])
                high = middle;
            else
                low = middle;
        }
        atomicAdd(found + low, 1u);
    }
    __syncthreads();
    for (u32 bin = threadIdx.x; bin < here; bin += THREADS)
        if (found[bin] != 0) atomicAdd(counts + base + bin, (u64)found[bin]);
}

// What noise is added to: totals in steps, or values that are still to be brought to the grid.
struct Statistic {
    u64* numbers;
    bool values;
    u64 mantissa;
    i32 exponent;
    f64 grid;
    u32* out_of_range;
};

__device__ __forceinline__ void release(const Statistic& of, u64 i, i64 noise) {
    u64 steps = of.numbers[i];
    if (of.values) {
        const i64 rounded = steps_of(steps, of.mantissa, of.exponent, 1ull << 62);
        if (magnitude_of(rounded) >> 62 != 0) atomicOr(of.out_of_range, 1u);
        steps = (u64)rounded;
    }
    of.numbers[i] = (u64)__double_as_longlong((f64)(i64)(steps + (u64)noise) * of.grid);
}

// numbers[i] = noisy number of element first + i, for i below n; `draw` is the sampler.
template <class Draw>
__device__ __forceinline__ void add_noise(const u32* key, u32 mechanism, const Statistic& of, u64 first, u64 n, u32 rounds,
                                          Draw draw) {
    __shared__ u32 words[16 * THREADS];
    __shared__ u32 left[MOST_ROUNDS * THREADS];  // elements whose first block ran dry, in any order
    __shared__ u32 count;
    __shared__ u32 shares[NOISE_SHARES];
    fill_shares(shares);
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    const u64 begin = (u64)blockIdx.x * THREADS * rounds;
    for (u32 round = 0; round < rounds; ++round) {
        const u32 at = round * THREADS + threadIdx.x;
        if (begin + at >= n) break;
        Stream<false> s = {key, words + threadIdx.x, shares, first + begin + at, mechanism, 0u, 16u};
        refill(s);
        const i64 noise = draw(s);
        if (dry(s))
            left[atomicAdd(&count, 1u)] = at;
        else
            release(of, begin + at, noise);
    }
    __syncthreads();
    for (u32 turn = threadIdx.x; turn < count; turn += THREADS) {
        const u64 i = begin + left[turn];
        Stream<true> s = {key, words + threadIdx.x, shares, first + i, mechanism, 0u, 16u};
        release(of, i, draw(s));
    }
}

struct Laplace {
    i32 k;
    template <bool ENDLESS>
    __device__ __forceinline__ i64 operator()(Stream<ENDLESS>& s) const {
        return laplace(s, k);
    }
};

struct Gaussian {
    i32 k;
    template <bool ENDLESS>
    __device__ __forceinline__ i64 operator()(Stream<ENDLESS>& s) const {
        return gaussian(s, k);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    laplace_noise(const u32* key, u32 mechanism, i32 k, u64* numbers, i32 values, u64 mantissa, i32 exponent, f64 grid,
                  u64 first, u64 n, u32 rounds, u32* out_of_range) {
    add_noise(key, mechanism, {numbers, values != 0, mantissa, exponent, grid, out_of_range}, first, n, rounds, Laplace{k});
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gaussian_noise(const u32* key, u32 mechanism, i32 k, u64* numbers, i32 values, u64 mantissa, i32 exponent, f64 grid,
                   u64 first, u64 n, u32 rounds, u32* out_of_range) {
    add_noise(key, mechanism, {numbers, values != 0, mantissa, exponent, grid, out_of_range}, first, n, rounds, Gaussian{k});
}
