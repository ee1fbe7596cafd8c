// Prices, Greeks and implied volatilities of European options. Twin of loops.py; README.md has the formulas.
//
//   lognormal  Black-Scholes-Merton, and Black 76 where the dividend yield is the rate and `of_forward` is 1
//   normal     Bachelier
//   implied    volatilities from prices under a lognormal price, and a status of each
//   implied_normal  the same under a normal one
//
// A thread has an option. Each number is an array of all options of the chunk, or of one that stands for all: bit j of
// `vary` says which number j is. Outputs are price, delta, gamma, vega, theta, rho; of
// implied volatility, and its status as a byte.
//
// Memory: a warp reads and writes 256 bytes of each array side by side; one number for all is read once by each warp.
// Launch: blocks of 256 threads, any number of them; no byte depends on it.
//
// Per option up to 49 bytes are read and 48 written, for some 320 operations in float64 (lognormal): at half of float64's
// 34 T/s of an H200 19 ps, beside 20 ps for its memory. So bandwidth and arithmetic limit it alike; where float64 runs at
// 1/64 of float32 (GeForce) arithmetic is the limit. An implied volatility takes some 1,900 operations, a normal one 350.
// Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/elementary.cuh"
#include "device/normal_tail.cuh"

#define THREADS 256
const f64 LEAST = 1e-50, MOST = 1e50, MOST_RATE = 100.0, FARTHEST = 39.0, WORTHLESS = -1e308;
const f64 DENSITY = 0.3989422804014327;  // 1 / sqrt(2 pi)

// 0, or from LEAST to MOST: a price, a volatility or a maturity in its range.
__device__ __forceinline__ bool positive(f64 x) { return x <= MOST && (x >= LEAST || x == 0.0); }

__device__ __forceinline__ f64 at_most(f64 x, f64 most) { return x < most ? x : most; }

extern "C" __global__ void __launch_bounds__(THREADS)
    lognormal(u64 count, u32 vary, const f64* spots, const f64* strikes, const f64* rates, const f64* dividends,
              const f64* volatilities, const f64* maturities, const unsigned char* calls, u32 of_forward, f64 percent,
              f64 day, f64 nan, f64* price, f64* delta, f64* gamma, f64* vega, f64* theta, f64* rho) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const auto of = [=](const f64* numbers, u32 j) { return numbers[vary >> j & 1 ? i : 0]; };
    const f64 spot = of(spots, 0), strike = of(strikes, 1), rate = of(rates, 2), dividend = of(dividends, 3);
    const f64 volatility = of(volatilities, 4), maturity = of(maturities, 5);
    const bool call = calls[vary >> 6 & 1 ? i : 0] > 0;
    const f64 earned = rate * maturity, lost = dividend * maturity;
    const bool inside = fabs(earned) <= MOST_RATE && fabs(lost) <= MOST_RATE && positive(spot) && positive(strike) &&
                        positive(volatility) && positive(maturity);
    const f64 odd = inside ? 0.0 : nan;
    const f64 discount = exp64(-lost);
    const f64 grown = spot * discount, paid = strike * exp64(-earned);
    const bool below = grown < paid;  // a call is out of the money
    const f64 small = below ? grown : paid, large = below ? paid : grown;
    const f64 root = sqrt(maturity);
    const f64 ratio = small > 0.0 ? small / large : 0.0;
    const f64 per_spread = 1.0 / (volatility * root + 0.0);
    f64 distance = ratio > 0.0 ? log64(ratio) : WORTHLESS;
    distance = distance < 0.0 ? distance * per_spread : 0.0;
    const f64 half = 0.5 * (volatility * root);
    const f64 nearer = distance + half;
    const f64 near_by = at_most(fabs(nearer), FARTHEST), far_off = at_most(half - distance, FARTHEST);
    const f64 bell = scaled_bell(near_by) * 0x1p-600;
    const f64 near_tail = scaled_tail(near_by), far_tail = scaled_tail(far_off);
    const bool beyond = nearer > 0.0;
    const f64 value = small * (beyond ? 1.0 - bell * (near_tail + far_tail) : bell * (near_tail - far_tail));
    const f64 near = beyond ? 1.0 - bell * near_tail : bell * near_tail;
    const f64 far = bell * ratio * far_tail;
    const f64 density = small * bell * DENSITY;
    const f64 one = call ? (below ? near : 1.0 - far) : below ? near - 1.0 : -far;
    const f64 two = call ? (below ? far : 1.0 - near) : below ? far - 1.0 : -near;
    const f64 inner = call ? grown - paid : paid - grown;
    const f64 total = value + (inner > 0.0 ? inner : 0.0) + odd;
    const f64 of_spot = grown * one, of_strike = paid * two;
    const f64 per_spot = 1.0 / spot;
    const f64 decay = 0.5 * density * (volatility * volatility * per_spread);
    const f64 curved = density * per_spread * (per_spot * per_spot);
    price[i] = total;
    delta[i] = discount * one + odd;
    gamma[i] = (density > 0.0 ? curved : 0.0) + odd;
    vega[i] = density * root * percent + odd;
    theta[i] = (dividend * of_spot - rate * of_strike - (density > 0.0 && volatility > 0.0 ? decay : 0.0)) * day + odd;
    rho[i] = maturity * (of_forward ? -total : of_strike) * percent + odd;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    normal(u64 count, u32 vary, const f64* forwards, const f64* strikes, const f64* rates, const f64* volatilities,
           const f64* maturities, const unsigned char* calls, f64 percent, f64 day, f64 nan, f64* price, f64* delta,
           f64* gamma, f64* vega, f64* theta, f64* rho) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const auto of = [=](const f64* numbers, u32 j) { return numbers[vary >> j & 1 ? i : 0]; };
    const f64 forward = of(forwards, 0), strike = of(strikes, 1), rate = of(rates, 2);
    const f64 volatility = of(volatilities, 3), maturity = of(maturities, 4);
    const bool call = calls[vary >> 5 & 1 ? i : 0] > 0;
    const f64 earned = rate * maturity, root = sqrt(maturity), gap = forward - strike;
    const bool inside = fabs(earned) <= MOST_RATE && fabs(forward) <= MOST && fabs(strike) <= MOST &&
                        positive(volatility) && positive(maturity);
    const f64 odd = inside ? 0.0 : nan;
    const f64 discount = exp64(-earned), spread = volatility * root;
    const f64 per_spread = 1.0 / (spread + 0.0);
    const f64 far = at_most(gap != 0.0 ? fabs(gap) * per_spread : 0.0, FARTHEST);
    const f64 bell = scaled_bell(far) * 0x1p-600, tail = scaled_tail(far);
    const f64 density = discount * bell * DENSITY;
    const f64 inner = call ? gap : -gap;
    const f64 value = discount * (spread * (bell * tail_slope(far)) + (inner > 0.0 ? inner : 0.0));
    const f64 less = bell * tail;
    const f64 probability = (gap < 0.0) == call ? less : 1.0 - less;
    const f64 decay = 0.5 * density * (volatility * volatility * per_spread);
    price[i] = value + odd;
    delta[i] = (call ? discount * probability : -(discount * probability)) + odd;
    gamma[i] = (density > 0.0 ? density * per_spread : 0.0) + odd;
    vega[i] = density * root * percent + odd;
    theta[i] = (rate * value - (density > 0.0 && volatility > 0.0 ? decay : 0.0)) * day + odd;
    rho[i] = -(maturity * value) * percent + odd;
}

const f64 OK = 0.0, BELOW = 1.0, ABOVE = 2.0, NO_VEGA = 3.0, UNKNOWN = 4.0;
const f64 FAR_ENOUGH = 0.6, ROUNDING = 0x1p-49, NEAR_THE_MONEY = 0.17, LEAST_LEVEL = 1e-290;
const f64 SCALED_GAP = 0x1p-20, SCALED_LEVEL = 0x1p-11;
// Nodes and weights of Gauss and Legendre for eight points of [-1, 1].
__device__ const f64 POINTS[8] = {-0.9602898564975363, -0.7966664774136267, -0.525532409916329, -0.1834346424956498,
                                  0.1834346424956498, 0.525532409916329, 0.7966664774136267, 0.9602898564975363};
__device__ const f64 WEIGHTS[8] = {0.10122853629037626, 0.22238103445337448, 0.31370664587788727, 0.362683783378362,
                                   0.362683783378362, 0.31370664587788727, 0.22238103445337448, 0.10122853629037626};

// A first guess of the spread: the tangent at the inflection or, far from it, what the logarithm of the level says; above
// the inflection a parabola through the logarithm of what is left to 1.
__device__ __forceinline__ f64 first_spread(f64 gap, f64 inflection, f64 wanted, f64 log_wanted, f64 tail) {
    const f64 level = 0.5 - tail;
    if (!(wanted < level)) {
        f64 rest = log64(0.5 + tail) - log_wanted;
        rest = rest > 0.0 ? rest : 0.0;
        const f64 slope = DENSITY / (0.5 + tail);
        return inflection + 2.0 * rest / (slope + sqrt(slope * slope + 0.5 * rest));
    }
    const f64 tangent = inflection - (level - wanted) * (1.0 / DENSITY);
    const f64 ratio = gap / tangent;
    const f64 near = ratio - 0.5 * tangent, far = ratio + 0.5 * tangent;
    if (!(wanted < 0.5 && tangent < inflection && near > FAR_ENOUGH)) return tangent;
    const f64 part = scaled_tail(near > 0.0 && near < FARTHEST ? near : 0.0) - scaled_tail(at_most(far, FARTHEST));
    f64 squared = 2.0 * (log64(part) - log_wanted);
    squared = squared > 0.0 ? squared : 0.0;
    return 2.0 * gap / (sqrt(squared) + sqrt(squared + 2.0 * gap));
}

__device__ __forceinline__ f64 halley(f64 spread, f64 gap, f64 inflection, f64 log_wanted) {
    const f64 ratio = gap / spread, half = 0.5 * spread;
    const f64 near_tail = scaled_tail(at_most(fabs(half - ratio), FARTHEST));
    const f64 far_tail = scaled_tail(at_most(half + ratio, FARTHEST));
    const f64 near = half - ratio;
    const bool lower = spread < inflection;
    const f64 part = lower ? near_tail - far_tail : near_tail + far_tail;
    f64 slope = DENSITY / part;
    slope = lower ? slope : -slope;
    const f64 newton = (log_wanted - (log64(part) - 0.5 * (near * near))) / slope;
    const f64 bend = -near * (0.5 + ratio / spread) - slope;
    const f64 divisor = 1.0 + 0.5 * bend * newton;
    f64 moved = spread + newton / (divisor > 0.25 ? divisor : 0.25);
    const f64 least = lower ? 0.25 * spread : inflection, most = lower ? inflection : 4.0 * spread;
    moved = moved > least ? moved : least;
    return moved < most ? moved : most;
}

__device__ __forceinline__ f64 newton(f64 spread, f64 gap, f64 wanted) {
    const f64 ratio = gap / spread, half = 0.5 * spread;
    const f64 near = at_most(fabs(half - ratio), FARTHEST);
    const f64 bell = scaled_bell(near) * 0x1p-600;
    f64 level;
    if (spread <= 1.0) {
        f64 area = 0.0;
#pragma unroll 1
        for (int k = 0; k < 8; ++k) {
            const f64 t = ratio + 0.5 * (spread < 1.0 ? spread : 1.0) * POINTS[k];
            area += WEIGHTS[k] * tail_slope(at_most(t, FARTHEST));
        }
        level = 0.5 * spread * bell * area;
    } else {
        const f64 near_tail = scaled_tail(near), far_tail = scaled_tail(at_most(half + ratio, FARTHEST));
        level = half > ratio ? 1.0 - bell * (near_tail + far_tail) : bell * (near_tail - far_tail);
    }
    f64 moved = spread + (wanted - level) / (DENSITY * bell);
    moved = moved > 0.5 * spread ? moved : 0.5 * spread;
    return moved < 2.0 * spread ? moved : 2.0 * spread;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    implied(u64 count, u32 vary, const f64* spots, const f64* strikes, const f64* rates, const f64* dividends,
            const f64* prices, const f64* maturities, const unsigned char* calls, u32 halley_steps, u32 newton_steps,
            f64 nan, f64* volatility, unsigned char* status) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const auto of = [=](const f64* numbers, u32 j) { return numbers[vary >> j & 1 ? i : 0]; };
    const f64 spot = of(spots, 0), strike = of(strikes, 1), rate = of(rates, 2), dividend = of(dividends, 3);
    const f64 price = of(prices, 4), maturity = of(maturities, 5);
    const bool call = calls[vary >> 6 & 1 ? i : 0] > 0;
    const f64 earned = rate * maturity, lost = dividend * maturity;
    const bool inside = fabs(earned) <= MOST_RATE && fabs(lost) <= MOST_RATE && positive(maturity) && positive(spot) &&
                        positive(strike) && fabs(price) <= MOST;
    const f64 grown = spot * exp64(-lost), paid = strike * exp64(-earned);
    const f64 small = grown < paid ? grown : paid, large = grown < paid ? paid : grown;
    const f64 inner = call ? grown - paid : paid - grown;
    const f64 slack = inner > 0.0 ? ROUNDING * large : 0.0;
    const f64 value = price - (inner > 0.0 ? inner : 0.0);
    const f64 most = maturity > 0.0 ? small : 0.0;
    const f64 level = value / small;
    f64 known = level > LEAST_LEVEL && level < 1.0 ? OK : NO_VEGA;
    known = value >= most ? ABOVE : known;
    known = value <= slack ? NO_VEGA : known;
    known = value < -slack ? BELOW : known;
    known = inside ? known : UNKNOWN;
    status[i] = (unsigned char)known;
    volatility[i] = nan;
    if (known != OK) return;
    const f64 apart = (large - small) / (large + small);
    const f64 gap = apart < NEAR_THE_MONEY ? log_series(apart) : -log64(small / large);
    f64 scale = at_most(SCALED_GAP / gap, SCALED_LEVEL / level);
    scale = scale > 1.0 ? scale : 1.0;
    const f64 scaled_gap = gap * scale, scaled_level = level * scale;
    const f64 inflection = sqrt(2.0 * scaled_gap);
    const f64 tail = scaled_tail(at_most(inflection, FARTHEST));
    const f64 log_wanted = log64(scaled_level < 0.5 - tail ? scaled_level : 1.0 - scaled_level);
    f64 spread = first_spread(scaled_gap, inflection, scaled_level, log_wanted, tail);
#pragma unroll 1
    for (u32 k = 0; k < halley_steps; ++k) spread = halley(spread, scaled_gap, inflection, log_wanted);
    spread = spread / scale;
#pragma unroll 1
    for (u32 k = 0; k < newton_steps; ++k) spread = newton(spread, gap, level);
    volatility[i] = spread * (1.0 / sqrt(of(maturities, 5)));  // read again: no register is held for it
}

const f64 LEAST_VALUE = 1e-250, LEAST_RATIO = 0x1p-12, PI = 3.141592653589793;
const f64 START0 = 0.32486551, START1 = 0.81920139, START2 = -0.78973844, START3 = 0.14778631;

extern "C" __global__ void __launch_bounds__(THREADS)
    implied_normal(u64 count, u32 vary, const f64* forwards, const f64* strikes, const f64* rates, const f64* prices,
                   const f64* maturities, const unsigned char* calls, u32 halley_steps, f64 nan, f64* volatility,
                   unsigned char* status) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const auto of = [=](const f64* numbers, u32 j) { return numbers[vary >> j & 1 ? i : 0]; };
    const f64 forward = of(forwards, 0), strike = of(strikes, 1), rate = of(rates, 2), price = of(prices, 3);
    const f64 maturity = of(maturities, 4);
    const bool call = calls[vary >> 5 & 1 ? i : 0] > 0;
    const f64 earned = rate * maturity, apart = forward - strike;
    const bool inside = fabs(earned) <= MOST_RATE && fabs(forward) <= MOST && fabs(strike) <= MOST &&
                        fabs(price) <= MOST && positive(maturity);
    const f64 discount = exp64(-earned);
    f64 inner = call ? apart : -apart;
    inner = inner > 0.0 ? discount * inner : 0.0;
    const f64 slack = ROUNDING * inner, value = price - inner;
    const f64 wanted = value / discount, gap = fabs(apart);
    f64 known = wanted > LEAST_VALUE ? OK : NO_VEGA;
    known = maturity > 0.0 ? known : ABOVE;
    known = value <= slack ? NO_VEGA : known;
    known = value < -slack ? BELOW : known;
    known = inside ? known : UNKNOWN;
    status[i] = (unsigned char)known;
    volatility[i] = nan;
    if (known != OK) return;
    f64 spread = (wanted + 0.5 * gap) * (1.0 / DENSITY);
    if (gap > LEAST_RATIO * wanted) {
        const f64 ratio = gap / wanted > LEAST_RATIO ? gap / wanted : LEAST_RATIO;
        const f64 log_wanted = -log64(ratio), grown = log64(1.0 + ratio);
        const f64 part = grown / (grown + 8.0);
        const f64 bent = ((START3 * part + START2) * part + START1) * part + START0;
        f64 distance = grown / sqrt(2.0 * PI + grown * part * bent);
#pragma unroll 1
        for (u32 k = 0; k < halley_steps; ++k) {
            const f64 slope = tail_slope(distance), square = distance * distance;
            const f64 newton = (log64(slope / distance) - 0.5 * square - log_wanted) * (slope * (1.0 / DENSITY));
            const f64 bend = (DENSITY - slope) / slope - square;
            distance = distance * ((2.0 + newton * (bend + 1.0)) / (2.0 + newton * (bend - 1.0)));
            distance = at_most(distance, FARTHEST);
        }
        spread = gap / distance;
    }
    const f64 distance = gap / spread;
    const f64 bell = scaled_bell(distance) * 0x1p-600;
    // Both are spread times the slope; near the money the second has fewer roundings.
    const f64 worth = distance > 1.0 ? spread * tail_slope(distance)
                                     : fused(-gap, scaled_tail(distance), DENSITY * spread);
    spread += fused(-bell, worth, wanted) / (DENSITY * bell);
    volatility[i] = spread * (1.0 / sqrt(maturity));
}
