// Geometric Brownian motion and what one option pays on it. Twin of cpu.py; plan.py defines every scalar.
// Compiled once per KIND: 0 European, 1 arithmetic Asian, 2 geometric Asian, 3 barrier on dates, 4 barrier at all times.
//
// Mathematics. With W_k the float64 sum of the first k float32 normals of a path,
//     S_k = spot exp(drift k + diffusion W_k).
// Normals 4j .. 4j+3 of a path come from one call of Philox4x32-10 with counter (path low, path high, j, 0).
// x is the discounted payoff less `shift`; for the arithmetic Asian, y is the discounted geometric Asian payoff less its
// expectation `control`. Barriers at all times: between distances d0, d1 > 0 from the level, in units of the step's
// standard deviation, the Brownian bridge misses the level with probability 1 - exp(-2 d0 d1).
//
// Memory. partials[block][7]: sums over the block's paths of x, x^2, y, y^2, x y, and how many had a positive payoff and
// a positive control, each by tree_sum (whole numbers to 256 are exact).
// counts[16384]: terminal W in bins of 1 / bins_per_unit, the end bins open; integer atomics, so order does not matter.
// hit_discounts[steps + 1], barriers only: all threads read the same number at once.
//
// Launch: one path per thread, 256 threads, one block per 256 paths from `first` (a multiple of 256); threads at or past
// `paths` add zero and count nothing. Static shared memory 2 KiB.
//
// Work per path step: a quarter of Philox (5 products of 32 x 32 bits), half of a logarithm, square root, sine and cosine
// in float32 (about 25 operations), and in float64 1 addition (KIND 0), 2 (2), about 30 (1: an exponential), 7 (3) or
// 36 (4). Bytes per path: one atomic of 4 and 56 / 256. Bound by arithmetic.
// Not yet measured on a GPU.
#include "device/types.cuh"
#include "device/philox.cuh"
#include "device/elementary.cuh"
#include "device/uniform.cuh"
#include "device/normal.cuh"
#include "device/reduce.cuh"

const bool EUROPEAN = KIND == 0;
const bool ARITHMETIC = KIND == 1;
const bool GEOMETRIC = KIND == 2;
const bool ON_DATES = KIND == 3;
const bool AT_ALL_TIMES = KIND == 4;
const bool ASIAN = ARITHMETIC || GEOMETRIC;
const bool BARRIER = ON_DATES || AT_ALL_TIMES;

const int SUMS = 7;
const int BINS = 16384;

__device__ __forceinline__ f64 discounted_payoff(f64 price, f64 strike, f64 sign, f64 discount) {
    const f64 intrinsic = sign * (price - strike);
    return discount * (intrinsic > 0.0 ? intrinsic : 0.0);
}

extern "C" __global__ void __launch_bounds__(256)
monte_carlo(i64 first, i64 paths, u32 key0, u32 key1, i32 steps, i32 fixings, f64 drift, f64 diffusion, f64 spot,
            f64 strike, f64 sign, f64 discount, f64 shift, f64 control, f64 bins_per_unit, f64 side, f64 barrier,
            f64 barrier_drift, f64 barrier_noise, i32 knock_in, f64 rebate, const f64* hit_discounts, f64* partials,
            u32* counts) {
    __shared__ f64 lanes[REDUCE_BLOCK];
    const i64 path = first + (i64)blockIdx.x * REDUCE_BLOCK + threadIdx.x;
    f64 x = 0.0;
    f64 y = 0.0;
    f64 paid = 0.0;
    f64 control_paid = 0.0;
    if (path < paths) {
        const f64 start = side * barrier;
        f64 w = 0.0;
        f64 sum_w = 0.0;
        f64 sum_s = fixings > steps ? 1.0 : 0.0;
        f64 alive = start > 0.0 ? 1.0 : 0.0;
        f64 distance = start;
        f64 hit = start > 0.0 ? 0.0 : hit_discounts[0];
        for (i32 step = 0; step < steps; step += 4) {
            const PhiloxWords words =
                philox4x32((u32)path, (u32)((u64)path >> 32), (u32)step / 4u, 0u, key0, key1);
            const NormalPair front = box_muller(words.w0, words.w1);
            const NormalPair back = box_muller(words.w2, words.w3);
            const f32 normals[4] = {front.z0, front.z1, back.z0, back.z1};
#pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
                if (step + lane < steps) {
                    const f64 k = (f64)(step + lane + 1);
                    w += (f64)normals[lane];
                    if (ASIAN) sum_w += w;
                    if (ARITHMETIC) sum_s += exp64(drift * k + diffusion * w);
                    if (BARRIER) {
                        const f64 level = barrier - barrier_drift * k;
                        f64 still;
                        if (ON_DATES) {
                            still = side * (level - barrier_noise * w) > 0.0 ? alive : 0.0;
                        } else {
                            const f64 d = side * (level - w);
                            const f64 missed = 1.0 - exp64(-2.0 * (distance * d));
                            still = alive * (distance > 0.0 && d > 0.0 ? missed : 0.0);
                            distance = d;
                        }
                        hit += (alive - still) * hit_discounts[step + lane + 1];
                        alive = still;
                    }
                }
            }
        }
        if (ASIAN) {
            const f64 ladder = (f64)((i64)steps * (steps + 1) / 2);  // 1 + 2 + .. + steps
            const f64 mean_log = (drift * ladder + diffusion * sum_w) / (f64)fixings;
            const f64 geometric = discounted_payoff(spot * exp64(mean_log), strike, sign, discount);
            if (GEOMETRIC) {
                x = geometric;
            } else {
                x = discounted_payoff(spot * (sum_s / (f64)fixings), strike, sign, discount);
                control_paid = geometric > 0.0 ? 1.0 : 0.0;
                y = geometric - control;
            }
        } else {
            const f64 last = spot * exp64(drift * (f64)steps + diffusion * w);
            const f64 vanilla = discounted_payoff(last, strike, sign, discount);
            if (EUROPEAN) {
                x = vanilla;
            } else if (knock_in) {
                x = (1.0 - alive) * vanilla + discount * rebate * alive;
            } else {
                x = alive * vanilla + rebate * hit;
            }
        }
        paid = x > 0.0 ? 1.0 : 0.0;
        x -= shift;
        f64 place = w * bins_per_unit + (f64)(BINS / 2);
        place = place > 0.0 ? place : 0.0;
        place = place < BINS - 1.0 ? place : BINS - 1.0;
        atomicAdd(&counts[(i32)place], 1u);
    }
    f64 sums[SUMS] = {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0};
    sums[0] = tree_sum(x, lanes);
    sums[1] = tree_sum(x * x, lanes);
    if (ARITHMETIC) {
        sums[2] = tree_sum(y, lanes);
        sums[3] = tree_sum(y * y, lanes);
        sums[4] = tree_sum(x * y, lanes);
        sums[6] = tree_sum(control_paid, lanes);
    }
    sums[5] = tree_sum(paid, lanes);
    if (threadIdx.x == 0) {
        for (int i = 0; i < SUMS; ++i) partials[(i64)blockIdx.x * SUMS + i] = sums[i];
    }
}
