// Random 32-bit words as float32 uniforms that are never zero. Twin of uniform.py.
// Include device/types.cuh first.

// (word + 1/2) 2^-32 rounded to float32: in [2^-33, 1], so its logarithm is finite.
__device__ __forceinline__ f32 uniform(u32 word) {
    return (f32)word * 0x1p-32f + 0x1p-33f;
}
