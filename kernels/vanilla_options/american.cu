// American options: what the right to exercise early adds to European ones. Twin of american.py and premium.py;
// README.md has the equations, schemes.py the table.
//
// A thread has an option. Each number is an array of all options of the chunk, or of one that stands for all: bit j of
// `vary` says which number j is. The six outputs price to rho hold those of European options, and are changed in place.
//
// Memory: per option up to 97 bytes are read and 105 written. A block keeps three guesses of each option's boundary in
// shared memory, 312 bytes a thread, where no two threads of a warp meet in a bank. The table is read by all threads at
// once, from the cache. Launch: blocks of 64 threads, any number of them; no byte depends on it.
//
// Per option with accuracy: accurate some 1,300 points of quadrature of 150 operations in float64 each, for the price, vega
// and rho: 200,000 operations, so that an H200 (34 T/s) takes at least 6 ns. Arithmetic limits it everywhere.
// Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/elementary.cuh"
#include "device/normal_tail.cuh"

#define THREADS 64
#define MOST_NODES 13
const f64 LEAST_SPREAD = 1e-10, MOST_SPREAD = 3.0, LEAST_DRIFT = -10.0, MOST_DRIFT = 30.0;
const f64 FARTHEST = 39.0, TINY = 1e-290, HUGE_NUMBER = 1e290, LEAST_PULL = 1e-9, BLEND = 1.25, BUMP = 1e-6;
const f64 DENSITY = 0.3989422804014327;  // 1 / sqrt(2 pi)
const unsigned char HOLD = 0, EXERCISE = 1, EUROPEAN = 2, OUTSIDE = 3, UNKNOWN = 4, TWO_BOUNDARIES = 5;

struct Scheme {
    const f64* table;
    u32 nodes, points, repeats, last;
};

// A put of strike 1 and maturity 1, with its boundary's limits in logarithms.
struct Put {
    f64 rate, dividend, spread, per_spread, drift, log_start, log_end;
};

struct Tails {
    f64 far, bell, shifted, over, paid_over;
};

struct Premium {
    f64 value, slope, curve, log_bound;
};

// The boundary of a block's options in logarithms, node by node: in use, its squared distance from its start, the next.
struct Boundary {
    f64 logs[MOST_NODES][THREADS], squares[MOST_NODES][THREADS], next[MOST_NODES][THREADS];
};

__device__ __forceinline__ f64 nearer(f64 x) { return x < FARTHEST ? x : FARTHEST; }

__device__ __forceinline__ f64 above_boundary(const Boundary& b, const Put& put, const f64* row, u32 nodes, f64 level) {
    f64 square = row[0] * b.squares[0][threadIdx.x];
#pragma unroll 1
    for (u32 j = 1; j < nodes; ++j) square = fused(row[j], b.squares[j][threadIdx.x], square);
    return level - put.log_start + sqrt(square > 0.0 ? square : 0.0);
}

__device__ __forceinline__ Tails tails(const Put& put, f64 gap, f64 root, f64 sign) {
    const f64 time = root * root, per_root = 1.0 / root;
    const f64 far = (gap + put.drift * time) * (put.per_spread * per_root);
    const f64 near = sign * (far - put.spread * root);
    const f64 bell = exp64(-put.dividend * time - 0.5 * far * far);
    const f64 shifted = bell * exp64(gap);
    const f64 far_tail = bell * scaled_tail(nearer(fabs(far)));
    const f64 over = sign * far > 0.0 ? exp64(-put.dividend * time) - far_tail : far_tail;
    const f64 near_tail = shifted * scaled_tail(nearer(fabs(near)));
    const f64 paid_over = near > 0.0 ? exp64(-put.rate * time) - near_tail : near_tail;
    return {far, bell, shifted, over, paid_over};
}

__device__ __forceinline__ void take(Boundary& b, const Put& put, u32 nodes) {
#pragma unroll 1
    for (u32 node = 0; node < nodes; ++node) {
        const f64 moved = put.log_start - b.next[node][threadIdx.x];
        b.squares[node][threadIdx.x] = moved * moved;
        b.logs[node][threadIdx.x] = b.next[node][threadIdx.x];
    }
}

__device__ __forceinline__ Put guess(Boundary& b, const Scheme& scheme, f64 rate, f64 dividend, f64 spread) {
    const f64 per_spread = 1.0 / spread, drift = rate - dividend;
    const f64 half = drift * per_spread * per_spread - 0.5, twice = 2.0 * (rate * per_spread * per_spread);
    const f64 root = sqrt(half * half + twice);
    const f64 power = half > 0.0 ? half + root : twice / (root - half);
    const f64 inverse = 1.0 / power;
    const f64 ratio = dividend > rate ? rate / dividend : 1.0;
    const f64 log_start = log64(ratio > TINY ? ratio : TINY);
    f64 log_end = -log64(1.0 + (inverse < HUGE_NUMBER ? inverse : HUGE_NUMBER));
    log_end = log_end < log_start ? log_end : log_start;
    const Put put = {rate, dividend, spread, per_spread, drift + 0.5 * spread * spread, log_start, log_end};
#pragma unroll 1
    for (u32 node = 0; node < scheme.nodes; ++node) {
        const f64 root_time = scheme.table[node], spent = spread * root_time;
        const f64 lesser = dividend < rate ? dividend : rate;
        f64 pull = (drift > 0.0 ? drift : 0.0) * root_time * per_spread + LEAST_PULL;
        pull = pull + 0.3 * (lesser > 0.0 ? lesser : 0.0) * root_time * root_time / (1.0 + 3.0 * spent * spent);
        f64 speed = sqrt(1.4 + 2.0 * log64(1.0 + 0.2 / pull));
        const f64 apart = log_start / spent, most = log_start - log_end;
        speed = 0.64 + (speed - 0.64) / (1.0 + apart * apart);
        const f64 left = exp64(-speed * spent / most);
        b.next[node][threadIdx.x] = log_start - (most > 0.0 ? most * (1.0 - left) : 0.0);
    }
    take(b, put, scheme.nodes);
    return put;
}

__device__ __forceinline__ void improve(Boundary& b, const Put& put, const Scheme& scheme, u32 node) {
    const f64 root_time = scheme.table[node], old = b.logs[node][threadIdx.x];
    const f64* sines = scheme.table + scheme.nodes;
    const f64* rows = sines + 2 * scheme.points + (u64)node * scheme.points * scheme.nodes;
    f64 sum1 = 0.0, sum2 = 0.0, sum3 = 0.0, sum4 = 0.0;
#pragma unroll 1
    for (u32 k = 0; k < scheme.points; ++k) {
        const f64 sine = sines[k], weight = sines[scheme.points + k];
        const f64 gap = above_boundary(b, put, rows + k * scheme.nodes, scheme.nodes, old);
        const Tails t = tails(put, gap, root_time * sine, 1.0);
        sum1 = fused(weight * sine, t.over, sum1);
        sum2 = fused(weight * sine, t.paid_over, sum2);
        sum3 = fused(weight, t.bell, sum3);
        sum4 = fused(weight, t.shifted, sum4);
    }
    const f64 time = root_time * root_time, per_root = 1.0 / root_time, factor = DENSITY * put.per_spread;
    const Tails t = tails(put, old, root_time, 1.0);
    const f64 below = t.over + put.dividend * time * sum1;
    const f64 above = t.paid_over + put.rate * time * sum2;
    const f64 steeper = factor * (t.shifted * per_root + put.rate * root_time * sum4);
    const f64 flatter = factor * (t.bell * per_root + put.dividend * root_time * sum3);
    const f64 by_value = above / below, by_slope = steeper / (below + flatter);
    const f64 value = by_value > TINY && by_value < HUGE_NUMBER ? log64(by_value) : old;
    const f64 slope = by_slope > TINY && by_slope < HUGE_NUMBER ? log64(by_slope) : value;
    f64 pull = BLEND * (put.rate - put.dividend) * root_time * put.per_spread;
    pull = pull > 0.0 ? pull * pull : 0.0;
    f64 next = value + (slope - value) / (1.0 + pull * pull);
    next = next > put.log_end ? next : put.log_end;
    b.next[node][threadIdx.x] = next < put.log_start ? next : put.log_start;
}

__device__ __forceinline__ Premium premium(Boundary& b, const Scheme& scheme, f64 rate, f64 dividend, f64 spread, f64 spot) {
    const Put put = guess(b, scheme, rate, dividend, spread);
#pragma unroll 1
    for (u32 step = 0; step < scheme.repeats; ++step) {
#pragma unroll 1
        for (u32 node = 0; node < scheme.nodes; ++node) improve(b, put, scheme, node);
        take(b, put, scheme.nodes);
    }
    const f64 log_spot = log64(spot), log_bound = b.logs[0][threadIdx.x];
    const f64 edge = rate * exp64(-log_bound) - dividend, per_spot = 1.0 / spot, level = rate - dividend * spot;
    const f64* sines = scheme.table + scheme.nodes + 2 * scheme.points + (u64)scheme.nodes * scheme.points * scheme.nodes;
    const f64* rows = sines + 2 * scheme.last;
    f64 sum1 = 0.0, sum2 = 0.0, sum3 = 0.0, apart = 0.0, flat = 0.0, flat_tail = 0.0;
#pragma unroll 1
    for (u32 k = 0; k <= scheme.last; ++k) {
        const bool end = k == scheme.last;  // what was taken from the integrals is added in closed form
        const f64 sine = end ? 1.0 : sines[k], per_root = 1.0 / sine;
        apart = (log_spot - log_bound) * (put.per_spread * per_root);
        apart = apart > 0.0 ? apart : 0.0;
        flat = exp64(-0.5 * apart * apart);
        flat_tail = flat * scaled_tail(nearer(apart));
        if (end) break;
        const f64 weight = sines[scheme.last + k];
        const f64 gap = above_boundary(b, put, rows + k * scheme.nodes, scheme.nodes, log_spot);
        const Tails t = tails(put, gap, sine, -1.0);
        const f64 per_time = put.per_spread * per_root;
        const f64 density = rate * t.shifted * per_spot - dividend * t.bell, lost = dividend * t.over;
        const f64 slope = DENSITY * per_time * (edge * flat - density) - lost;
        f64 curve = per_time * (density * t.far - edge * apart * flat);
        curve = DENSITY * per_time * per_spot * (dividend * t.bell + curve);
        sum1 = fused(weight * sine, rate * t.paid_over - spot * lost - level * flat_tail, sum1);
        sum2 = fused(weight * sine, slope, sum2);
        sum3 = fused(weight * sine, curve, sum3);
    }
    const f64 near = DENSITY * flat - apart * flat_tail;
    return {sum1 + level * (flat_tail - apart * near), sum2 - 2.0 * edge * put.per_spread * near,
            sum3 + 2.0 * edge * put.per_spread * put.per_spread * flat_tail / spot, log_bound};
}

extern "C" __global__ void __launch_bounds__(THREADS)
    american(u64 count, u32 vary, const f64* spots, const f64* strikes, const f64* rates, const f64* dividends,
             const f64* volatilities, const f64* maturities, const unsigned char* calls, u32 of_forward, f64 percent,
             f64 day, const f64* table, u32 nodes, u32 points, u32 repeats, u32 last, f64 nan, f64 infinity, f64* price,
             f64* delta, f64* gamma, f64* vega, f64* theta, f64* rho, f64* critical, unsigned char* status) {
    __shared__ Boundary boundary;
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const auto of = [=](const f64* numbers, u32 j) { return numbers[vary >> j & 1 ? i : 0]; };
    const bool call = calls[vary >> 6 & 1 ? i : 0] > 0;
    f64 here, there, spread, x;
    {
        const f64 spot = of(spots, 0), strike = of(strikes, 1), rate = of(rates, 2), dividend = of(dividends, 3);
        const f64 volatility = of(volatilities, 4), years = of(maturities, 5);
        const f64 asset = call ? strike : spot, money = call ? spot : strike;
        const f64 earned = rate * years, lost = dividend * years;
        spread = volatility * sqrt(years), x = asset / money;
        here = call ? lost : earned, there = call ? earned : lost;
        const bool may = here > 0.0 || (here == 0.0 && there < 0.0) || years == 0.0;
        const bool two = here < 0.0 && there < here;
        const bool still = asset == 0.0 || money == 0.0 || spread < LEAST_SPREAD;
        const bool sure = price[i] == price[i];
        if (!sure || (two && !still)) {
            price[i] = delta[i] = gamma[i] = vega[i] = theta[i] = rho[i] = critical[i] = nan;
            status[i] = sure ? TWO_BOUNDARIES : UNKNOWN;
            return;
        }
        if (!may) {
            critical[i] = call ? infinity : 0.0;
            status[i] = EUROPEAN;
            return;
        }
        if (still) {
            f64 turn = there * asset / (here * money);
            const bool turns = turn > TINY && turn < HUGE_NUMBER;
            turn = turns ? log64(turn) / (there - here) : 0.0;
            f64 time = 0.0, paid = 0.0, grown = 0.0, value = 0.0;
#pragma unroll 1
            for (u32 k = 0; k < 3; ++k) {
                const f64 when = k == 1 ? turn : 0.5 * k;
                const f64 got = exp64(-here * when), given = exp64(-there * when);
                const f64 worth = money * got - asset * given;
                if (worth > value && when >= 0.0 && when <= 1.0) time = when, paid = got, grown = given, value = worth;
            }
            const f64 total = money * paid - asset * grown;
            price[i] = total;
            delta[i] = call ? paid : -grown;
            gamma[i] = vega[i] = 0.0;
            theta[i] = time > 0.0 ? (here * (money * paid) - there * (asset * grown)) / years * day : 0.0;
            rho[i] = years * time * (of_forward ? -total : call ? asset * grown : -(money * paid)) * percent;
            const f64 bound = there > here ? here / there : 1.0;
            critical[i] = call ? strike / bound : strike * bound;
            status[i] = total > 0.0 && time == 0.0 ? EXERCISE : HOLD;
            return;
        }
    }
    status[i] = HOLD;
    const Scheme scheme = {table, nodes, points, repeats, last};
    const f64 bump = BUMP * spread;
    f64 by_volatility = 0.0, by_rate = 0.0;
    Premium now = {};
#pragma unroll 1
    for (u32 k = 0; k < 3; ++k) {  // with another volatility, with another rate, as it is
        const f64 more = k == 1 ? bump : 0.0;
        now = premium(boundary, scheme, here + (!call || of_forward ? more : 0.0),
                      there + (call || of_forward ? more : 0.0), k == 0 ? spread + bump : spread, x);
        by_volatility = k == 0 ? now.value : by_volatility;
        by_rate = k == 1 ? now.value : by_rate;
    }
    // Numbers are read again, so that no register is held for them.
    const f64 spot = of(spots, 0), strike = of(strikes, 1), rate = of(rates, 2), dividend = of(dividends, 3);
    const f64 volatility = of(volatilities, 4), years = of(maturities, 5);
    const f64 asset = call ? strike : spot, money = call ? spot : strike, drift = here - there;
    const f64 bound = exp64(now.log_bound), gain = money - asset;
    const bool exercise = x <= bound;
    f64 full = price[i] + money * now.value;
    const f64 least = price[i] > gain ? price[i] : gain;
    full = full > least ? full : least;
    full = full < money ? full : money;
    full = exercise ? gain : full;
    f64 slope = delta[i] + (call ? now.value - x * now.slope : now.slope);
    slope = exercise ? (call ? 1.0 : -1.0) : slope;
    f64 curve = gamma[i] + (call ? x * x * now.curve : now.curve) / money;
    curve = exercise ? 0.0 : curve;
    const f64 swing = volatility * spot;
    const f64 decay = rate * full - (rate - dividend) * spot * slope - 0.5 * swing * swing * curve;
    const f64 per_bump = money / bump;
    const bool stated = drift >= LEAST_DRIFT * spread && drift <= MOST_DRIFT * spread && spread <= MOST_SPREAD;
    price[i] = full;
    delta[i] = slope;
    gamma[i] = curve;
    vega[i] = exercise ? 0.0 : vega[i] + (by_volatility - now.value) * per_bump * sqrt(years) * percent;
    theta[i] = exercise ? 0.0 : decay * day;
    rho[i] = exercise ? 0.0 : rho[i] + (by_rate - now.value) * per_bump * years * percent;
    critical[i] = call ? strike / bound : strike * bound;
    status[i] = stated ? (exercise ? EXERCISE : HOLD) : OUTSIDE;
}
