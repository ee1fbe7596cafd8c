// Share values by Shamir's scheme over 2^31 - 1 or 2^61 - 1, and put shares together again.
// Twins: share_loops.py and combine_loops.py.
//
//   share         out[x - 1][i] = value_i + c_1 x + c_2 x^2 + ... + c_{t-1} x^{t-1}   (mod p), x = 1 ... n
//   reconstruct   values[i] = sum_{r < t} weights[0][r] shares[r][i], and for q = 1 ... extra the same with weights[q]
//                 must be shares[t + q - 1][i]   (mod p)
//
// A value is a signed integer below p / 2 in magnitude, or a float64 times `scale`, rounded ties to even; -v is p - v.
// The coefficients are words of ChaCha20 (RFC 8439), drawn again where they are p (share_loops.py says which word is
// whose). Integers mod p, and of floats one product and one quotient: any order of the work gives the CPU's bytes.
//
// Layout: values[n] u64 (bits of an int64 or a float64), key[8] u32, out[shares][n] and shares[rows][n] of type Word,
// weights[1 + extra][t] Word. refused[1] u64 counts values that do not fit; found[2 + rows] u64: elements
// that disagree, the first of them, and of each row the words that are not below p.
// Launch: share        128 threads for 512 (m31) or 256 elements, whose coefficients lie in dynamic shared memory: 2 KiB
//                      for each that is held at a time. Where there are more than `held`, the block goes through them in
//                      sections, the highest first, and keeps its sums in `out` in between.
//         reconstruct  128 threads, an element to each.
// share: first every thread computes whole blocks of keystream, of which each holds one coefficient of 16 (8) elements; then
// it takes elements, with neighbours side by side, and computes four shares at a time by Horner's rule. x < 2^8, so sums
// of 64 bits take `steps` multiplications by x before they must be reduced: 9 of them for ten shares. A number mod
// 2^61 - 1 is two halves of 31 and 30 bits, each with a sum of its own. reconstruct: products of 31 bits add up four at a
// time before they are reduced, and for m61 three sums of products of halves do.
//
// Per element, in the machine code for sm_90, and bytes: share for m31 69 instructions a coefficient for the keystream, 6 for
// each of n shares rounded up to four, and 28 for each of those to be reduced and written; 8 + 4 n bytes. For m61 it is 135,
// 9 and 45; 8 + 8 n bytes. reconstruct: 24 (58 for m61) a word that is read and 100 more, and 4 t + 8 (8 t + 8) bytes where
// nothing is checked; each check costs another 26 (66) a word, which then comes from the cache. At four warps' instructions a
// clock in a multiprocessor (H200: 132 at 1.83 GHz) sharing 2^20 elements 6 of 10 takes at least 36 us (60 for m61): bound by
// arithmetic, since memory would need 12 (22). To put six shares together takes 8 us (15), where memory is as near a limit.
// Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/chacha20.cuh"

#define THREADS 128
#define LANES 16  // elements between two words of a block
#define DOMAIN 0x72616873u  // "shar", little-endian
#define HALF 0x7fffffffull
#if FIELD == 31
typedef u32 Word;
#define WORDS 16
#define P 0x7fffffffull
#else
typedef u64 Word;
#define WORDS 8
#define P 0x1fffffffffffffffull
#endif
#define TILE (LANES * WORDS)
#define ELEMENTS (2 * TILE)
#define ROUNDS (ELEMENTS / THREADS)
#define SHARES 4  // that are computed side by side, so that a coefficient is read once for them
#define CHECKS 2  // that are computed side by side

// A number below 2 p: what it would be below zero wraps round, and is the larger one then.
__device__ __forceinline__ Word below_p(Word v) {
    const Word less = v - (Word)P;
    return less < v ? less : v;
}

#if FIELD == 31
__device__ __forceinline__ Word reduced(u64 v) {
    v = (v & P) + (v >> 31);
    return below_p((u32)(v & P) + (u32)(v >> 31));
}

// A number mod p, not reduced.
struct Sum {
    u64 all;
};
__device__ __forceinline__ Sum sum_of(Word c) { return {c}; }
__device__ __forceinline__ Sum step(Sum s, u32 x, Word c) { return {s.all * x + c}; }
__device__ __forceinline__ Word reduced(Sum s) { return reduced(s.all); }

// A sum of products, four of them at a time.
struct Products {
    u64 all, four;
};
__device__ __forceinline__ void add(Products& s, Word y, Word w) { s.four += (u64)y * w; }
__device__ __forceinline__ void fold(Products& s) {
    s.all += (s.four & P) + (s.four >> 31);
    s.four = 0;
}
__device__ __forceinline__ Word reduced(const Products& s) { return reduced(s.all); }
#define NOTHING {0, 0}
#else
struct Sum {
    u64 low, high;
};
__device__ __forceinline__ Sum sum_of(Word c) { return {c & HALF, c >> 31}; }
__device__ __forceinline__ Sum step(Sum s, u32 x, Word c) { return {s.low * x + (c & HALF), s.high * x + (c >> 31)}; }
// low + high 2^31 for any low, and high below 2^63.
__device__ __forceinline__ u64 folded(u64 low, u64 high) {
    return (low & P) + (low >> 61) + (high >> 30) + ((high & 0x3fffffffull) << 31);
}
__device__ __forceinline__ Word reduced(Sum s) {
    const u64 v = folded(s.low, s.high);
    return below_p((v & P) + (v >> 61));
}

struct Products {
    u64 all, low, middle, high;
};
__device__ __forceinline__ void add(Products& s, Word y, Word w) {
    const u32 y0 = (u32)(y & HALF), y1 = (u32)(y >> 31), w0 = (u32)(w & HALF), w1 = (u32)(w >> 31);
    s.low += (u64)y0 * w0;
    s.middle += (u64)y0 * w1;
    s.middle += (u64)y1 * w0;
    s.high += (u64)y1 * w1;
}
__device__ __forceinline__ void fold(Products& s) {
    const u64 v = folded(s.low, s.middle) + (s.high << 1) + s.all;  // high 2^62 is 2 high
    s.all = (v & P) + (v >> 61);
    s.low = s.middle = s.high = 0;
}
__device__ __forceinline__ Word reduced(const Products& s) { return below_p(s.all); }
#define NOTHING {0, 0, 0, 0}
#endif

__device__ __forceinline__ Word drawn(const u32* words, int w) {
#if FIELD == 31
    return words[w] & (u32)P;
#else
    return (((u64)words[2 * w + 1] << 32) | words[2 * w]) & P;
#endif
}

// What is at word w of a block where p was at first: once in 2^31 or 2^61 coefficients.
__device__ __noinline__ Word drawn_again(const u32* key, u32 counter, u32 k, int w) {
    Word found = (Word)P;
    for (u32 attempt = 1; found == (Word)P; ++attempt) {
        u32 words[16];
        chacha20_block(key, counter, k, attempt, DOMAIN, words);
#pragma unroll
        for (int each = 0; each < WORDS; ++each)
            if (each == w) found = drawn(words, each);
    }
    return found;
}

// False where the value does not fit.
__device__ __forceinline__ bool encode(u64 bits, bool floats, f64 scale, Word& secret) {
    i64 v = (i64)bits;
    if (floats) {
        const f64 rounded = rint(__longlong_as_double((i64)bits) * scale);
        if (!(fabs(rounded) < (f64)(1ull << (FIELD - 1)))) return false;
        v = (i64)rounded;
    } else if (v > (i64)(P / 2) || v < -(i64)(P / 2)) {
        return false;
    }
    secret = (Word)(v < 0 ? v + (i64)P : v);
    return true;
}

// Coefficients 1 to t - 1 are held in sections of `held`; `steps` multiplications fit between two reductions.
extern "C" __global__ void __launch_bounds__(THREADS)
    share(const u64* values, i32 floats, f64 scale, u32 first_block, u64 n, const u32* key, u32 threshold, u32 shares,
          u32 held, u32 steps, Word* out, u64* refused) {
    extern __shared__ Word coefficients[];
    const u64 begin = (u64)blockIdx.x * ELEMENTS;
    for (u32 end = threshold; end > 1;) {
        const u32 low = end - 1 > held ? end - held : 1;
        for (u32 at = threadIdx.x; at < (end - low) * 2 * LANES; at += THREADS) {
            const u32 lane = at % (2 * LANES), k = low + at / (2 * LANES);
            const u32 counter = first_block + blockIdx.x * 2 * LANES + lane;
            u32 words[16];
            chacha20_block(key, counter, k, 0u, DOMAIN, words);
            Word* mine = coefficients + (k - low) * ELEMENTS + lane / LANES * TILE + lane % LANES;
            u32 again = 0;
#pragma unroll
            for (int w = 0; w < WORDS; ++w) {
                mine[w * LANES] = drawn(words, w);
                again |= (drawn(words, w) == (Word)P ? 1u : 0u) << w;
            }
            for (; again != 0; again &= again - 1) {
                const int w = __ffs((int)again) - 1;
                mine[w * LANES] = drawn_again(key, counter, k, w);
            }
        }
        __syncthreads();
        for (u32 round = 0; round < ROUNDS; ++round) {
            const u32 e = round * THREADS + threadIdx.x;
            const u64 i = begin + e;
            if (i >= n) break;
            Word secret = 0;
            if (low == 1 && !encode(values[i], floats != 0, scale, secret)) atomicAdd(refused, 1ull);
            Word* to = out + i;
            for (u32 x = 1; x <= shares; x += SHARES) {
                const u32 count = shares - x + 1;  // that are left
                Sum sum[SHARES];
#pragma unroll
                for (u32 s = 0; s < SHARES; ++s) sum[s] = sum_of((Word)0);
                if (end < threshold) {
#pragma unroll
                    for (u32 s = 0; s < SHARES; ++s)
                        if (s < count) sum[s] = sum_of(to[s * n]);
                }
                u32 left = steps;
                const Word* c = coefficients + e + (end - low) * ELEMENTS;
                for (u32 k = end; k > low; --k) {
                    c -= ELEMENTS;
#pragma unroll
                    for (u32 s = 0; s < SHARES; ++s) sum[s] = step(sum[s], x + s, *c);
                    if (--left == 0) {
                        left = steps;
#pragma unroll
                        for (u32 s = 0; s < SHARES; ++s) sum[s] = sum_of(reduced(sum[s]));
                    }
                }
                if (low == 1) {
#pragma unroll
                    for (u32 s = 0; s < SHARES; ++s) sum[s] = step(sum[s], x + s, secret);
                }
#pragma unroll
                for (u32 s = 0; s < SHARES; ++s) {
                    if (s < count) *to = reduced(sum[s]);
                    to += n;
                }
            }
        }
        __syncthreads();
        end = low;
    }
}

// results[q] for row at + q of the weights, or the last; returns the largest of the words that it combines.
template <int COUNT>
__device__ __forceinline__ Word combine(const Word* column, u64 n, u32 threshold, const Word* weights, u32 at, u32 last,
                                        Word* results) {
    Products sums[COUNT];
    const Word* of[COUNT];
#pragma unroll
    for (int q = 0; q < COUNT; ++q) {
        sums[q] = NOTHING;
        of[q] = weights + (at + q < last ? at + q : last) * threshold;
    }
    Word largest = 0;
    for (u32 r = 0; r < threshold; ++r, column += n) {
        const Word y = *column;
        largest = y > largest ? y : largest;
#pragma unroll
        for (int q = 0; q < COUNT; ++q) add(sums[q], y, of[q][r]);
        if (r % 4 == 3) {
#pragma unroll
            for (int q = 0; q < COUNT; ++q) fold(sums[q]);
        }
    }
#pragma unroll
    for (int q = 0; q < COUNT; ++q) {
        fold(sums[q]);
        results[q] = reduced(sums[q]);
    }
    return largest;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    reconstruct(const Word* shares, u64 n, u64 first, u32 threshold, u32 extra, const Word* weights, i32 floats, f64 scale,
                u64* values, u64* found) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    bool agree = true;
    Word largest = 0;
    const Word* checked = shares + threshold * n + i;
    for (u32 at = 1; at <= extra; at += CHECKS) {
        Word told[CHECKS];
        combine<CHECKS>(shares + i, n, threshold, weights, at, extra, told);
#pragma unroll
        for (u32 q = 0; q < CHECKS; ++q) {
            if (at + q > extra) break;
            const Word y = *checked;
            largest = y > largest ? y : largest;
            agree = agree && told[q] == y;
            checked += n;
        }
    }
    if (!agree) {
        atomicAdd(found, 1ull);
        atomicMin(found + 1, first + i);
    }

    Word secret[1];
    const Word combined = combine<1>(shares + i, n, threshold, weights, 0u, 0u, secret);
    if (combined >= (Word)P || largest >= (Word)P) {
        for (u32 r = 0; r < threshold + extra; ++r)
            if (shares[r * n + i] >= (Word)P) atomicAdd(found + 2 + r, 1ull);
    }
    const i64 v = secret[0] > P / 2 ? (i64)secret[0] - (i64)P : (i64)secret[0];
    values[i] = floats != 0 ? (u64)__double_as_longlong((f64)v / scale) : (u64)v;
}
