// Brownian paths from scrambled Sobol points by a Brownian bridge. Twin of cpu.py's _build; bridge.py makes the tables.
//
// walks[steps + 1][columns]: W of each path at each date, 0 at the first. dates[steps][3]: the date that is decided, and
// those left and right of it; weights[steps][3]: of W there, and of the normal. directions[dimensions][32] and
// scrambles[replicates][dimensions] belong to the first `dimensions` of them; the others take normals 4j .. 4j+3 of the
// path from one call of Philox4x32-10 with counter (path low, path high, j, 0), as pseudo-random paths do.
//
// Launch: one path per thread, 256 threads, one block per 256 paths from `first` on (a multiple of 256). Path p has point
// p mod 2^bits of replicate p >> bits.
//
// Work per path step of a Sobol dimension: 4 integer operations for each bit of the point, 12 for its scramble, and some 80 in
// float64. Memory per path step: 16 bytes read and 8 written. Bound by arithmetic. Not yet measured on a GPU.
#include "device/types.cuh"
#include "device/philox.cuh"
#include "device/elementary.cuh"
#include "device/uniform.cuh"
#include "device/normal.cuh"
#include "device/inverse_normal.cuh"
#include "device/sobol.cuh"

extern "C" __global__ void __launch_bounds__(256)
walks(i64 first, i64 paths, i64 columns, u32 key0, u32 key1, i32 steps, i32 dimensions, i32 bits, const i32* dates,
      const f64* weights, const u32* directions, const u32* scrambles, f64* walks) {
    const i64 column = (i64)blockIdx.x * 256 + threadIdx.x;
    const i64 number = first + column;
    if (number >= paths) return;
    f64* const at = walks + column;
    const u32* const seeds = scrambles + (number >> bits) * dimensions;
    const u32 point = (u32)number & ((1u << bits) - 1u);
    at[0] = 0.0;
    NormalPair front = {0.0f, 0.0f}, back = {0.0f, 0.0f};
    for (i32 j = 0; j < steps; ++j) {
        f64 z;
        if (j < dimensions) {
            const u32 word = owen_scramble(sobol(point, bits, directions + 32 * j), seeds[j]);
            z = inverse_normal(((f64)word + 0.5) * 0x1p-32);
        } else {
            const i32 lane = (j - dimensions) & 3;
            if (lane == 0) {
                const PhiloxWords words = philox4x32((u32)number, (u32)((u64)number >> 32), (u32)(j - dimensions) / 4u, 0u,
                                                     key0, key1);
                front = box_muller(words.w0, words.w1);
                back = box_muller(words.w2, words.w3);
            }
            z = widened(lane == 0 ? front.z0 : lane == 1 ? front.z1 : lane == 2 ? back.z0 : back.z1);
        }
        const f64* const weight = weights + 3 * j;
        const i32* const date = dates + 3 * j;
        at[date[0] * columns] =
            fused(weight[0], at[date[1] * columns], fused(weight[1], at[date[2] * columns], weight[2] * z));
    }
}
