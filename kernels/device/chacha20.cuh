// ChaCha20 block function (RFC 8439, section 2.3); the twin of chacha20.py. Include device/types.cuh first.
//
// State: 4 constants, key[8], a 32-bit block counter, 3 nonce words; ten double rounds; plus the input. One block is
// sixteen 32-bit words, the keystream's bytes read little-endian. A thread keeps all sixteen words in registers: 80
// quarter rounds of 4 additions, 4 exclusive ors and 4 rotations, so about 1000 integer instructions for 64 bytes, of which
// sm_90 does 640 on its logic unit and the additions on its multipliers, and no memory is touched. Keys and counters arrive
// as u32 words in device memory, never as 64-bit scalars: CuPy once passed large unsigned scalars as signed ones.

__device__ __forceinline__ u32 chacha20_rotate(u32 x, int by) { return (x << by) | (x >> (32 - by)); }

__device__ __forceinline__ void chacha20_quarter(u32& a, u32& b, u32& c, u32& d) {
    a += b;
    d = chacha20_rotate(d ^ a, 16);
    c += d;
    b = chacha20_rotate(b ^ c, 12);
    a += b;
    d = chacha20_rotate(d ^ a, 8);
    c += d;
    b = chacha20_rotate(b ^ c, 7);
}

// key[8], counter and nonce words -> out[16].
__device__ __forceinline__ void chacha20_block(const u32* key, u32 counter, u32 n0, u32 n1, u32 n2, u32* out) {
    // "expa" "nd 3" "2-by" "te k", little-endian.
    const u32 in[16] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u, key[0], key[1], key[2], key[3],
                        key[4],      key[5],      key[6],      key[7],      counter, n0,     n1,     n2};
    u32 x[16];
#pragma unroll
    for (int w = 0; w < 16; ++w) x[w] = in[w];
#pragma unroll 2
    for (int round = 0; round < 10; ++round) {
        chacha20_quarter(x[0], x[4], x[8], x[12]);
        chacha20_quarter(x[1], x[5], x[9], x[13]);
        chacha20_quarter(x[2], x[6], x[10], x[14]);
        chacha20_quarter(x[3], x[7], x[11], x[15]);
        chacha20_quarter(x[0], x[5], x[10], x[15]);
        chacha20_quarter(x[1], x[6], x[11], x[12]);
        chacha20_quarter(x[2], x[7], x[8], x[13]);
        chacha20_quarter(x[3], x[4], x[9], x[14]);
    }
#pragma unroll
    for (int w = 0; w < 16; ++w) out[w] = x[w] + in[w];
}
