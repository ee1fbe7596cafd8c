// Geometric Brownian motion and what one option pays on it. Twin of cpu.py; plan.py defines every scalar.
// Compiled once per KIND: 0 European or digital, 1 arithmetic Asian, 2 geometric Asian, 3 barrier on dates, 4 barrier at all
// times, 5 lookback on dates, 6 lookback at all times. With GREEKS 1, for KIND 0, 1, 2, 5 and 6, the paths' derivatives too.
//
// Mathematics. With W_k the float64 sum of the first k float32 normals of a path,
//     S_k = spot exp(drift k + diffusion W_k).
// Normals 4j .. 4j+3 of a path come from one call of Philox4x32-10 with counter (path low, path high, j, 0).
// x is the discounted payoff less `shift`; for the arithmetic Asian, y is the discounted geometric Asian payoff less its
// expectation `control`. Barriers at all times: between distances d0, d1 > 0 from the level, in units of the step's
// standard deviation, the Brownian bridge misses the level with probability 1 - exp(-2 d0 d1). Lookbacks at all times: the
// bridge's least distance is (d0 + d1 - sqrt((d1 - d0)^2 - 2 ln U)) / 2, with U from the counter (.., .., j, 1).
//
// Antithetic paths: 2i and 2i + 1 have the words of pair i, of which the second turns its angles by half and takes ~word for
// U. Their sums are of the means of pairs. Sobol: `stored` says that W comes from `walks` (walks.cu), not from Philox.
//
// Memory. partials[block][8]: sums over the block's paths of x, x^2, y, y^2, x y, how many had a positive payoff and a
// positive control (whole numbers to 256 are exact), and ((x - weight y) unit)^3, each by tree_sums.
// With GREEKS partials[block][16]: after these the sums of delta, delta^2, vega, vega^2, theta, theta^2, rho, rho^2.
// counts[16384]: terminal W in bins of 1 / bins_per_unit, the end bins open; integer atomics, so order does not matter.
// lines[steps], KIND 1: drift k; KIND 3 to 6: barrier - barrier_drift k; hit_discounts[steps + 1], KIND 3, 4: all threads
// read the same number at once.
//
// Launch: one path per thread, 256 threads, one block per 256 paths from `first` (a multiple of 256), as many as there
// are partials for; threads at or past `paths` add zero and count nothing. Static shared memory 16 KiB (KIND 1, GREEKS) or 8.
// `tame` says that no exponent of KIND 1 can leave the range of exp64_within.
//
// Work per path step: a quarter of Philox (5 products of 32 x 32 bits and 10 other integer operations), half of a
// logarithm, square root, sine and cosine (about 28 in float32), a conversion, and in float64 1 operation (KIND 0), 20 (1: 16
// are an exponential), 2 (2), 8 (3), 29 (4), 5 (5) or 17 with a square root (6, besides another quarter of Philox and a
// logarithm). Of the machine code for sm_90 that is 41, 66 (77 where not tame), 44, 55, 86, 50 and 107 instructions a path step for
// KIND 0 to 6; with GREEKS 43, 78 (90), 44, 58 (KIND 5) and 152 (6). From stored paths it is 20, 61, 25, 38, 74, 30 and 91, besides
// those of walks.cu. At the end of a path 1 exponential (KIND 0, 2 to 4) or 2; with GREEKS 1 to 3 more.
// Bytes: of a path step 8 where paths are stored, else none but what all threads share; of a path one atomic of 4 and 64 / 256, with
// GREEKS 128 / 256.
// Bound by arithmetic: a multiprocessor issues 128 instructions of threads a clock, of them 64 in float64, so 2^20 paths of
// 252 steps of KIND 1 take at least 0.56 ms on an H200 (132 multiprocessors at 1.83 GHz), of KIND 0 0.35 ms.
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
const bool REACH_ON_DATES = KIND == 5;
const bool REACH_AT_ALL_TIMES = KIND == 6;
const bool ASIAN = ARITHMETIC || GEOMETRIC;
const bool BARRIER = ON_DATES || AT_ALL_TIMES;
const bool LOOKBACK = REACH_ON_DATES || REACH_AT_ALL_TIMES;
const bool DATED = ASIAN || REACH_ON_DATES;  // of the kinds that have Greeks, those whose dates matter

// Forms of a kind.
const i32 CASH_OR_NOTHING = 1, ASSET_OR_NOTHING = 2;  // KIND 0; 0 is vanilla
const i32 KNOCK_IN = 1;                               // KIND 3, 4
const i32 FLOATING_STRIKE = 1;                        // KIND 5, 6

const int SUMS = 8;
const int COLUMNS = GREEKS ? 16 : SUMS;
const int BINS = 16384;

__device__ __forceinline__ f64 discounted_payoff(f64 price, f64 strike, f64 sign, f64 discount) {
    const f64 intrinsic = sign * (price - strike);
    return discount * (intrinsic > 0.0 ? intrinsic : 0.0);
}

// Where a path is: W, what its payoff needs of it.
struct Path {
    f64 w, sum_w, sum_s, alive, distance, hit, lowest;
    f64 sum_log, sum_time;  // GREEKS: sums of S ln(S / spot) and S k of the arithmetic Asian; time of the extreme price
    f64 front;  // GREEKS of a dated option: the normal of the first step
};

template <bool TAME>
__device__ __forceinline__ void advance(Path& path, f32 normal, f32 square, i32 step, f64 diffusion, f64 side, f64 barrier_noise,
                                        const f64* lines, const f64* hit_discounts) {
    path.w += widened(normal);
    if (ASIAN) path.sum_w += path.w;
    if (ARITHMETIC) {
        const f64 log_price = fused(diffusion, path.w, lines[step]);
        const f64 price = TAME ? exp64_within(log_price) : exp64(log_price);
        path.sum_s += price;
        if (GREEKS) {
            path.sum_log += price * log_price;
            path.sum_time += price * (f64)(step + 1);
        }
    }
    if (BARRIER) {
        f64 still;
        if (ON_DATES) {
            still = side * (lines[step] - barrier_noise * path.w) > 0.0 ? path.alive : 0.0;
        } else {
            const f64 d = side * (lines[step] - path.w);
            // Above 0 the level was crossed, and nobody reads it.
            const f64 exponent = -2.0 * (path.distance * d);
            const f64 missed = 1.0 - exp64_within(exponent > -708.0 ? exponent : -708.0);
            still = path.alive * (path.distance > 0.0 && d > 0.0 ? missed : 0.0);
            path.distance = d;
        }
        path.hit += (path.alive - still) * hit_discounts[step + 1];
        path.alive = still;
    }
    if (REACH_ON_DATES) {
        const f64 d = side * (lines[step] - barrier_noise * path.w);
        if (GREEKS) path.sum_time = d < path.lowest ? (f64)(step + 1) : path.sum_time;
        path.lowest = d < path.lowest ? d : path.lowest;
    }
    if (REACH_AT_ALL_TIMES) {
        const f64 d = side * (lines[step] - path.w);
        const f64 gap = d - path.distance;
        const f64 root = sqrt(fused(gap, gap, widened(square)));
        const f64 low = 0.5 * ((d + path.distance) - root);
        if (GREEKS) path.sum_time = low < path.lowest ? (f64)(step + 1) - 0.5 * (1.0 + gap / root) : path.sum_time;
        path.lowest = low < path.lowest ? low : path.lowest;
        path.distance = d;
    }
}

struct Normals {
    f32 z[4], square[4];
};

// Where a path's numbers come from: its number, or that of its pair; `turn` is 2^31 for the mirror image, else 0. Or walks.
struct Numbers {
    u64 number;
    u32 turn, key0, key1;
    i32 steps;
    const f64* walk;  // W at the start; `columns` further on, W at the next date
    i64 columns;
};

// The normals of four steps, of which `step` is the first, and -2 ln U of as many uniform numbers for KIND 6.
template <bool STORED>
__device__ __forceinline__ Normals draw(const Numbers& numbers, i32 step) {
    const u64 number = numbers.number;
    const u32 key0 = numbers.key0, key1 = numbers.key1;
    Normals drawn;
    if (STORED) {
#pragma unroll
        for (int lane = 0; lane < 4; ++lane) {
            const f64* const at = numbers.walk + (step + lane) * numbers.columns;
            drawn.z[lane] = step + lane < numbers.steps ? (f32)(at[numbers.columns] - at[0]) : 0.0f;
        }
    } else {
        const PhiloxWords words = philox4x32((u32)number, (u32)(number >> 32), (u32)step / 4u, 0u, key0, key1);
        const NormalPair front = box_muller(words.w0, words.w1 ^ numbers.turn);
        const NormalPair back = box_muller(words.w2, words.w3 ^ numbers.turn);
        drawn.z[0] = front.z0;
        drawn.z[1] = front.z1;
        drawn.z[2] = back.z0;
        drawn.z[3] = back.z1;
    }
    if (REACH_AT_ALL_TIMES) {
        const PhiloxWords more = philox4x32((u32)number, (u32)(number >> 32), (u32)step / 4u, 1u, key0, key1);
        const u32 mirror = numbers.turn ? 0xFFFFFFFFu : 0u;
        drawn.square[0] = minus_two_log(uniform(more.w0 ^ mirror));
        drawn.square[1] = minus_two_log(uniform(more.w1 ^ mirror));
        drawn.square[2] = minus_two_log(uniform(more.w2 ^ mirror));
        drawn.square[3] = minus_two_log(uniform(more.w3 ^ mirror));
    } else {
        drawn.square[0] = drawn.square[1] = drawn.square[2] = drawn.square[3] = 0.0f;
    }
    return drawn;
}

template <bool TAME, bool STORED>
__device__ __forceinline__ void walk(Path& path, const Numbers& numbers, f64 diffusion, f64 side, f64 barrier_noise,
                                     const f64* lines, const f64* hit_discounts) {
    const i32 steps = numbers.steps;
    i32 step = 0;
    // Twice, where registers suffice: the exponential's constants are then loaded once for eight steps.
#pragma unroll(STORED || REACH_AT_ALL_TIMES || GREEKS ? 1 : 2)
    for (; step + 4 <= steps; step += 4) {
        const Normals drawn = draw<STORED>(numbers, step);
        if (GREEKS && DATED && step == 0) path.front = widened(drawn.z[0]);
        // Four steps without a branch between them: their exponentials run side by side.
#pragma unroll
        for (int lane = 0; lane < 4; ++lane)
            advance<TAME>(path, drawn.z[lane], drawn.square[lane], step + lane, diffusion, side, barrier_noise, lines,
                          hit_discounts);
    }
    if (step == steps) return;
    const Normals drawn = draw<STORED>(numbers, step);
    if (GREEKS && DATED && step == 0) path.front = widened(drawn.z[0]);
#pragma unroll
    for (int lane = 0; lane < 3; ++lane)
        if (step + lane < steps)
            advance<TAME>(path, drawn.z[lane], drawn.square[lane], step + lane, diffusion, side, barrier_noise, lines,
                          hit_discounts);
}

struct Greeks {
    f64 delta, vega, theta, rho;
};

// The derivatives of what a path pays, x. It pays by a sum of prices S, whose derivative to the logarithm of the spot is
// `first`; `logs` is the sum of S ln(S / spot) and `times` that of S k, of which others are made. `moved` is `first` without
// today's price.
__device__ __forceinline__ Greeks differentiate(const Path& path, f64 x, i32 steps, i32 fixings, f64 drift, f64 diffusion,
                                                f64 spot, f64 strike, f64 sign, f64 discount, f64 side, f64 barrier,
                                                i32 form, i32 moves, f64 step, f64 tilt, f64 volatility, f64 rate, f64 maturity) {
    const f64 still = ARITHMETIC ? spot * (((f64)fixings - (f64)steps) / (f64)fixings) : 0.0;
    const f64 part = GEOMETRIC ? (f64)steps / (f64)fixings : 1.0;
    f64 price, first, logs, times;
    if (ARITHMETIC) {
        first = price = spot * (path.sum_s / (f64)fixings);
        logs = spot * (path.sum_log / (f64)fixings);
        times = spot * (path.sum_time / (f64)fixings);
    } else {
        const f64 ladder = (f64)((i64)steps * (steps + 1) / 2);
        const f64 log_price = GEOMETRIC ? (drift * ladder + diffusion * path.sum_w) / (f64)fixings
                                        : drift * (f64)steps + diffusion * path.w;
        first = price = spot * exp64(log_price);
        logs = price * log_price;
        times = price * (GEOMETRIC ? ladder / (f64)fixings : (f64)steps);
    }
    f64 moved = part * (first - still);
    if (LOOKBACK) {
        const f64 log_extreme = (diffusion > 0.0 ? diffusion : 1.0) * (barrier - side * path.lowest);
        const f64 extreme = spot * exp64(log_extreme);
        const f64 beyond = path.lowest < 0.0 ? extreme : 0.0;
        const f64 own = moves ? extreme : beyond;
        if (form == FLOATING_STRIKE) {
            moved = first - beyond;
            first -= own;
            logs -= beyond * log_extreme;
            times -= beyond * path.sum_time;
            strike = extreme;
        } else {
            price = extreme;
            first = own;
            moved = beyond;
            logs = beyond * log_extreme;
            times = beyond * path.sum_time;
        }
    }
    const f64 factor = sign * (price - strike) > 0.0 ? discount * sign : 0.0;
    f64 nearer;
    if (DATED) {
        const f64 pull = diffusion * path.front;
        const f64 kept = ASIAN ? exp64(-part * pull) : 0.0;
        const f64 without = sign * (still + (price - still) * kept - strike) > 0.0 ? discount * sign * (moved * kept) : 0.0;
        nearer = (factor * moved * drift + (factor * moved - without) * (0.5 * pull)) / step;
    } else {
        nearer = factor * (0.5 * (logs + drift * times) / maturity);
    }
    return {factor * first / spot, factor * ((logs - tilt * times) / volatility), rate * x - nearer,
            factor * (step * times) - maturity * x};
}

// The mean of a pair of lanes in the first of them, 0 in the second. All 32 lanes must call it.
__device__ __forceinline__ f64 mean_of_pair(f64 value) {
    const f64 other = __shfl_xor_sync(0xffffffffu, value, 1);
    return threadIdx.x & 1 ? 0.0 : 0.5 * (value + other);
}

extern "C" __global__ void __launch_bounds__(256)
monte_carlo(i64 first, i64 paths, u32 key0, u32 key1, i32 steps, i32 fixings, f64 drift, f64 diffusion, f64 spot,
            f64 strike, f64 sign, f64 discount, f64 shift, f64 control, f64 weight, f64 unit, f64 bins_per_unit,
            f64 side, f64 barrier, f64 barrier_noise, i32 form, f64 cash, i32 tame, i32 mirrored, i32 stored, i32 moves,
            f64 step, f64 tilt, f64 volatility, f64 rate, f64 maturity, i64 columns, const f64* walks, const f64* lines,
            const f64* hit_discounts, f64* partials, u32* counts) {
    __shared__ f64 lanes[(ARITHMETIC || GREEKS ? SUMS : 4) * REDUCE_BLOCK];
    const i64 number = first + (i64)blockIdx.x * REDUCE_BLOCK + threadIdx.x;
    f64 x = 0.0;
    f64 y = 0.0;
    f64 paid = 0.0;
    f64 control_paid = 0.0;
    Greeks greeks = {0.0, 0.0, 0.0, 0.0};
    if (number < paths) {
        const f64 start = side * barrier, fixed_strike = strike;
        Path path;
        path.w = 0.0;
        path.sum_w = 0.0;
        path.sum_s = fixings > steps ? 1.0 : 0.0;
        path.alive = start > 0.0 ? 1.0 : 0.0;
        path.distance = start;
        path.hit = start > 0.0 ? 0.0 : hit_discounts[0];
        path.lowest = 0.0;
        path.sum_log = 0.0;
        path.sum_time = 0.0;
        path.front = 0.0;
        const Numbers numbers = {(u64)number >> mirrored, (u32)(number & mirrored) << 31, key0, key1, steps,
                                 walks + (i64)blockIdx.x * REDUCE_BLOCK + threadIdx.x, columns};
        if (stored)
            walk<false, true>(path, numbers, diffusion, side, barrier_noise, lines, hit_discounts);
        else if (ARITHMETIC && tame)
            walk<true, false>(path, numbers, diffusion, side, barrier_noise, lines, hit_discounts);
        else
            walk<false, false>(path, numbers, diffusion, side, barrier_noise, lines, hit_discounts);
        if (ASIAN) {
            const f64 ladder = (f64)((i64)steps * (steps + 1) / 2);  // 1 + 2 + .. + steps
            const f64 mean_log = (drift * ladder + diffusion * path.sum_w) / (f64)fixings;
            const f64 geometric = discounted_payoff(spot * exp64(mean_log), strike, sign, discount);
            if (GEOMETRIC) {
                x = geometric;
            } else {
                x = discounted_payoff(spot * (path.sum_s / (f64)fixings), strike, sign, discount);
                control_paid = geometric > 0.0 ? 1.0 : 0.0;
                y = geometric - control;
            }
        } else {
            const f64 last = spot * exp64(drift * (f64)steps + diffusion * path.w);
            f64 price = last;
            if (LOOKBACK) {
                const f64 scale = diffusion > 0.0 ? diffusion : 1.0;
                const f64 extreme = spot * exp64(scale * (barrier - side * path.lowest));
                if (form == FLOATING_STRIKE) strike = extreme;
                else price = extreme;
            }
            const f64 vanilla = discounted_payoff(price, strike, sign, discount);
            if (BARRIER) {
                x = form == KNOCK_IN ? (1.0 - path.alive) * vanilla + discount * cash * path.alive
                                     : path.alive * vanilla + cash * path.hit;
            } else if (EUROPEAN && form != 0) {
                x = sign * (last - strike) > 0.0 ? discount * (form == CASH_OR_NOTHING ? cash : last) : 0.0;
            } else {
                x = vanilla;
            }
        }
        if (GREEKS)
            greeks = differentiate(path, x, steps, fixings, drift, diffusion, spot, fixed_strike, sign, discount, side,
                                   barrier, form, moves, step, tilt, volatility, rate, maturity);
        paid = x > 0.0 ? 1.0 : 0.0;
        x -= shift;
        f64 place = path.w * bins_per_unit + (f64)(BINS / 2);
        place = place > 0.0 ? place : 0.0;
        place = place < BINS - 1.0 ? place : BINS - 1.0;
        atomicAdd(&counts[(i32)place], 1u);
    }
    if (mirrored) {
        x = mean_of_pair(x);
        if (ARITHMETIC) y = mean_of_pair(y);
        if (GREEKS)
            greeks = {mean_of_pair(greeks.delta), mean_of_pair(greeks.vega), mean_of_pair(greeks.theta),
                      mean_of_pair(greeks.rho)};
    }
    f64* const partial = partials + (i64)blockIdx.x * COLUMNS;
    const int warp = threadIdx.x / 32;
    const f64 left = (x - weight * y) * unit;
    const f64 cube = left * left * left;
    f64 sum;
    if (ARITHMETIC) {
        const f64 values[SUMS] = {x, x * x, y, y * y, x * y, paid, control_paid, cube};
        sum = tree_sums(values, lanes);
    } else {
        const f64 values[4] = {x, x * x, paid, cube};
        sum = tree_sums(values, lanes);
    }
    if (GREEKS) {
        const f64 values[8] = {greeks.delta, greeks.delta * greeks.delta, greeks.vega, greeks.vega * greeks.vega,
                               greeks.theta, greeks.theta * greeks.theta, greeks.rho,  greeks.rho * greeks.rho};
        __syncthreads();
        const f64 total = tree_sums(values, lanes);
        if (threadIdx.x % 32 == 0) partial[SUMS + warp] = total;
    }
    if (threadIdx.x % 32 != 0) return;
    if (ARITHMETIC) {
        partial[warp] = sum;
    } else {
        // Sums 2 and 3 are those of `paid` and `cube`; the control's four are 0.
        partial[warp == 2 ? 5 : warp == 5 ? 2 : warp == 3 ? 7 : warp == 7 ? 3 : warp] = warp < 4 ? sum : 0.0;
    }
}
