// Philox4x32-10: random words as a pure function of a 64-bit key and a 128-bit counter. Twin of philox.py.
//
// Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), table 2; tested on the
// known-answer vectors of Random123. Not the stream of numpy.random.Philox, which is the 4x64 variant.
// Include device/types.cuh first.

struct PhiloxWords {
    u32 w0, w1, w2, w3;
};

__device__ __forceinline__ PhiloxWords philox4x32(u32 c0, u32 c1, u32 c2, u32 c3, u32 k0, u32 k1) {
#pragma unroll
    for (int i = 0; i < 10; ++i) {
        const u64 p0 = (u64)0xD2511F53u * c0;
        const u64 p1 = (u64)0xCD9E8D57u * c2;
        c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
        c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
        c1 = (u32)p1;
        c3 = (u32)p0;
        k0 += 0x9E3779B9u;  // the golden ratio as a 32-bit fraction
        k1 += 0xBB67AE85u;  // sqrt(3) - 1
    }
    return {c0, c1, c2, c3};
}
