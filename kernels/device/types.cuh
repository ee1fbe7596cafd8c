// The number types of every kernel, and the fused product: NVRTC has no <stdint.h> without header wheels, and none is
// needed.
//
// On the host they are numpy.uint32, uint64, int32, int64, float32 and float64, in this order.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

// x y + z, rounded once: IEEE 754's fused multiply-add, asked for by name (nothing is contracted by the compiler).
__device__ __forceinline__ f32 fused(f32 x, f32 y, f32 z) { return __fmaf_rn(x, y, z); }
__device__ __forceinline__ f64 fused(f64 x, f64 y, f64 z) { return __fma_rn(x, y, z); }
