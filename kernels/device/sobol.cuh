// Sobol points in base 2 and their Owen scramble by a hash. Twin of sobol.py, which has the sources and makes the direction
// numbers. Include device/types.cuh first.

// The point `index` < 2^bits of one dimension with its bits in reverse order, from the dimension's 32 direction numbers.
__device__ __forceinline__ u32 sobol(u32 index, i32 bits, const u32* directions) {
    u32 word = 0;
    for (i32 bit = 0; bit < bits; ++bit) word ^= index >> bit & 1u ? directions[bit] : 0u;
    return word;
}

// The scrambled point, with its bits in their usual order.
__device__ __forceinline__ u32 owen_scramble(u32 word, u32 seed) {
    word ^= word * 0x3D20ADEAu;
    word += seed;
    word *= seed >> 16 | 1u;
    word ^= word * 0x05526C56u;
    word ^= word * 0x53A22864u;
    return __brev(word);
}
