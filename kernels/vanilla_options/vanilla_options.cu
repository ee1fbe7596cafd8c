// Prices and Greeks of European options. Twin of loops.py; README.md has the formulas.
//
//   lognormal  Black-Scholes-Merton, and Black 76 where the dividend yield is the rate and `of_forward` is 1
//   normal     Bachelier
//
// A thread has an option. Each number is an array of all options of the chunk, or of one that stands for all: bit j of
// `vary` says which number j is. Outputs are price, delta, gamma, vega, theta, rho.
//
// Memory: a warp reads and writes 256 bytes of each array side by side; one number for all is read once by each warp.
// Launch: blocks of 256 threads, any number of them; no byte depends on it.
//
// Per option up to 49 bytes are read and 48 written, for some 320 operations in float64 (lognormal): at half of float64's
// 34 T/s of an H200 19 ps, beside 20 ps for its memory. So bandwidth and arithmetic limit it alike; where float64 runs at
// 1/64 of float32 (GeForce) arithmetic is the limit.
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
    const f64 value = discount * (spread * (bell * (DENSITY - far * tail)) + (inner > 0.0 ? inner : 0.0));
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
