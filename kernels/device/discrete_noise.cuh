// Draw exact discrete Laplace and discrete Gaussian noise from random words; the twin of dp_noise/sampler.py, which says why
// each step is exact. Include device/types.cuh and device/chacha20.cuh first.
//
// Canonne, Kamath, Steinke (2020), algorithms 1 to 3, for a scale of 2^k grid steps. Integers alone; words are read in the
// order in which sampler.py reads them, so that both give the same noise.

#define NOISE_THREADS 128  // threads of a block: so far apart lie two words of one thread in shared memory
#define NOISE_SHARES 32    // counts whose share of all words is kept in shared memory: a division takes half a draw

__device__ __forceinline__ u64 magnitude_of(i64 q) { return (u64)(q < 0 ? -q : q); }

// The words one element has still to read. They lie in shared memory, one column per thread, because their index is not
// known to the compiler; a thread touches its own column alone. ENDLESS draws block after block. Else there is one block,
// and what is drawn after its last word is void: `dry` is true then, and every loop ends.
template <bool ENDLESS>
struct Stream {
    const u32* key;
    u32* words;
    const u32* shares;
    u64 element;
    u32 mechanism;
    u32 block;
    u32 at;
};

// What streams of a block read as `shares`; all threads of a block call it and then meet at a barrier.
__device__ __forceinline__ void fill_shares(u32* shares) {
    if (threadIdx.x > 0 && threadIdx.x < NOISE_SHARES) shares[threadIdx.x] = 0xffffffffu / threadIdx.x;
}

template <bool ENDLESS>
__device__ __forceinline__ void refill(Stream<ENDLESS>& s) {
    u32 out[16];
    chacha20_block(s.key, s.block, (u32)s.element, (u32)(s.element >> 32), s.mechanism, out);
#pragma unroll
    for (int w = 0; w < 16; ++w) s.words[w * NOISE_THREADS] = out[w];
    s.block += 1;
    s.at = 0;
}

template <bool ENDLESS>
__device__ __forceinline__ u32 word(Stream<ENDLESS>& s) {
    if (ENDLESS) {
        if (s.at == 16) refill(s);
        return s.words[s.at++ * NOISE_THREADS];
    }
    const u32 at = s.at < 16 ? s.at : 15;
    s.at += 1;
    return s.words[at * NOISE_THREADS];
}

template <bool ENDLESS>
__device__ __forceinline__ bool dry(const Stream<ENDLESS>& s) {
    return !ENDLESS && s.at > 16;
}

// True with probability numerator / 2^bits.
template <bool ENDLESS>
__device__ bool below(Stream<ENDLESS>& s, u64 numerator, int bits) {
    while (bits > 32) {
        bits -= 32;
        const u32 top = (u32)(numerator >> bits);
        const u32 drawn = word(s);
        if (drawn != top) return drawn < top;
        numerator &= (1ull << bits) - 1;
    }
    return ((u64)word(s) >> (32 - bits)) < numerator;
}

// True with probability 1 / count.
template <bool ENDLESS>
__device__ bool one_in(Stream<ENDLESS>& s, u32 count) {
    if (count == 1) return true;
    // One block of words is read up before a count of 18.
    const u32 share = !ENDLESS || count < NOISE_SHARES ? s.shares[count] : 0xffffffffu / count;
    for (;;) {
        const u32 drawn = word(s);
        if (dry(s)) return false;
        if (drawn < share * count) return drawn < share;
    }
}

template <bool ENDLESS>
__device__ bool exp_minus_one(Stream<ENDLESS>& s) {
    u32 count = 1;
    while (one_in(s, count)) ++count;
    return (count & 1u) == 1u;
}

template <bool ENDLESS>
__device__ bool exp_minus(Stream<ENDLESS>& s, u64 numerator, int bits) {
    u32 count = 1;
    while (below(s, numerator, bits) && one_in(s, count)) ++count;
    return (count & 1u) == 1u;
}

template <bool ENDLESS>
__device__ i64 laplace(Stream<ENDLESS>& s, int k) {
    for (;;) {
        u32 drawn = word(s);
        if (dry(s)) return 0;
        u64 u;
        if (k < 32) {
            u = (u64)drawn >> (32 - k);
        } else {
            u = (u64)drawn << (k - 32);
            drawn = word(s);
            u |= (u64)drawn >> (64 - k);
        }
        const bool negative = (drawn & 1u) == 1u;
        if (!exp_minus(s, u, k)) continue;
        u64 v = 0;
        while (exp_minus_one(s)) ++v;
        const i64 magnitude = (i64)(u + (v << k));
        if (negative && magnitude == 0) continue;
        return negative ? -magnitude : magnitude;
    }
}

template <bool ENDLESS>
__device__ i64 gaussian(Stream<ENDLESS>& s, int k) {
    for (;;) {
        const i64 n = laplace(s, k);
        if (dry(s)) return 0;
        const u64 distance = magnitude_of((i64)magnitude_of(n) - (1ll << k));
        const u64 a = distance >> k, b = distance & ((1ull << k) - 1);
        u64 whole = ((a * a) >> 1) + ((a * b) >> k);
        u64 fraction = ((a & 1u) << (2 * k)) + (((a * b) & ((1ull << k) - 1)) << (k + 1)) + b * b;
        whole += fraction >> (2 * k + 1);
        fraction &= (1ull << (2 * k + 1)) - 1;
        bool kept = true;
        for (; kept && whole > 0; --whole) kept = exp_minus_one(s);
        if (kept && exp_minus(s, fraction, 2 * k + 1)) return n;
    }
}
