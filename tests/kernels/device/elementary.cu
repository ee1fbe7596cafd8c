// Compare the quick square root and the quick conversion with the plain ones, over words as Box and Muller takes them.
#include "device/types.cuh"
#include "device/elementary.cuh"
#include "device/uniform.cuh"

// wrong[0] counts the words first, first + stride, ..., `count` of them, whose root differs, wrong[1] those whose
// conversion does.
extern "C" __global__ void __launch_bounds__(256) compare(u32 first, u32 stride, u32 count, u32* wrong) {
    for (u32 i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
        const f32 square = minus_two_log(uniform(first + i * stride));
        const f32 root = sqrtf(square);
        if (__float_as_int(sqrt_within(square)) != __float_as_int(root)) atomicAdd(wrong, 1u);
        const f32 z = root * sincos_turn(first + i * stride).cosine;
        if (__double_as_longlong(widened(z)) != __double_as_longlong((f64)z)) atomicAdd(wrong + 1, 1u);
    }
}
