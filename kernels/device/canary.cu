// A question with a known answer, asked when a device is opened and again and again while it serves: words, float64,
// float32, shared and global memory. Twin of kernels/gpu/canary.py, which says what every thread must answer.
//
// Thread i takes the number of thread 127 - t of its own block through shared memory, draws Philox4x32-10 of the counter
// (that number, 0, 0, 0) under the key (0, 0), and iterates x <- sqrt(x^2 / 2 + 1 / (1 + x)) 64 times in float64 and in
// float32, from the first two words as fractions. Only + * / and the square root, so there is one right answer.
//
// Layout: given[n]; words[4 n], doubles[n], singles[n]. Launch: 128 threads (each scheduler of a multiprocessor gets a
// warp), as many blocks as there are multiprocessors. 32 bytes and about 800 operations per thread: bound by its launch.
// Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/philox.cuh"

extern "C" __global__ void __launch_bounds__(128) canary(const u32* given, u32* words, f64* doubles, f32* singles) {
    __shared__ u32 line[128];
    const u32 t = threadIdx.x, i = blockIdx.x * 128 + t;
    line[t] = given[i];
    __syncthreads();
    const PhiloxWords drawn = philox4x32(line[127 - t], 0, 0, 0, 0, 0);
    words[4 * i] = drawn.w0;
    words[4 * i + 1] = drawn.w1;
    words[4 * i + 2] = drawn.w2;
    words[4 * i + 3] = drawn.w3;

    f64 x = (f64)drawn.w0 * 0x1p-32;
    f32 y = (f32)(drawn.w1 >> 8) * 0x1p-24f;
    for (i32 step = 0; step < 64; ++step) {
        x = sqrt(x * x * 0.5 + 1.0 / (1.0 + x));
        y = sqrtf(y * y * 0.5f + 1.0f / (1.0f + y));
    }
    doubles[i] = x;
    singles[i] = y;
}
