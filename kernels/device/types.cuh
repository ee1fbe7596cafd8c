// The number types of every kernel: NVRTC has no <stdint.h> without header wheels, and none is needed.
//
// On the host they are numpy.uint32, uint64, int32, int64, float32 and float64, in this order.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;
