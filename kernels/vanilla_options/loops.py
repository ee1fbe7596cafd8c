"""The compiled loops of the operations on options: strips of options, in steps that a compiler makes SIMD code of.

Each step is a loop over one strip and has no branch. `given` are the numbers of the options, in the order of
`spec.quantities`, each an array of all options or of one strip; the options of a strip begin at its number times
`steps`, which is 1 or 0. README.md has the formulas.
"""

from math import sqrt

import numpy as np
from numba import njit

from warpdesk_server.kernels.device.elementary import exp64, log64, log_series
from warpdesk_server.kernels.device.fused import fused
from warpdesk_server.kernels.device.normal_tail import FARTHEST, UNSCALE, scaled_bell, scaled_tail, tail_slope
from warpdesk_server.kernels.vanilla_options.spec import (
    ABOVE,
    BELOW,
    LEAST,
    MOST,
    MOST_RATE,
    NO_VEGA,
    OK,
    UNKNOWN,
)

STRIP = 128  # options: what is kept of them stays in the first cache
DENSITY = 0.3989422804014327  # 1 / sqrt(2 pi)
WORTHLESS = -1e308  # the logarithm of 0, which log64 does not know

# Where a number of a strip's options begins in its memory. Several are used twice.
GROWN, PAID, RATIO, LOG, NEAR, NEAR_TAIL, FAR_TAIL, BELL, PER_SPREAD, ROOT, ODD, DISCOUNT = (
    STRIP * row for row in range(12)
)
ROWS = 12

# Of implied volatilities: the same for their rows.
GAP, WANTED, LOG_WANTED, SPREAD, INFLECTION, PER_ROOT, STATUS, DISTANCE, NEARER, FARTHER, AREA, SCALE, SCALED = (
    STRIP * row for row in range(13)
)
# Nodes and weights of Gauss and Legendre for eight points of [-1, 1]: an error below 1e-16 for spreads up to 1.
POINTS = (
    -0.9602898564975363,
    -0.7966664774136267,
    -0.525532409916329,
    -0.1834346424956498,
    0.1834346424956498,
    0.525532409916329,
    0.7966664774136267,
    0.9602898564975363,
)
WEIGHTS = (
    0.10122853629037626,
    0.22238103445337448,
    0.31370664587788727,
    0.362683783378362,
    0.362683783378362,
    0.31370664587788727,
    0.22238103445337448,
    0.10122853629037626,
)
IMPLIED_ROWS = 13
FAR_ENOUGH = 0.6  # d beyond which the first guess takes the logarithm, not the tangent
ROUNDING = 2.0**-49  # of the greater amount: a price in the money tells no smaller time value
NEAR_THE_MONEY = (
    0.17  # (large - small) / (large + small), whose numerator is exact there: the logarithm is good to itself
)
SCALED_GAP, SCALED_LEVEL = 2.0**-20, 2.0**-11  # gaps and levels below both are scaled until one is this
LEAST_LEVEL = 1e-290  # of a price: below, e^(-d^2/2) leaves the range of float64
LEAST_VALUE = 1e-250  # of a time value under a normal price, for the same reason
LEAST_RATIO = 2.0**-12  # of |forward - strike| to the time value: below, a straight line is good to 1e-8
PI = 3.141592653589793
# Of a first guess of the distance, good to 4.3e-4 of itself: fitted in 40 digits, from a distance of 1e-4 to 38.5.
START0, START1, START2, START3 = 0.32486551, 0.81920139, -0.78973844, 0.14778631


@njit(cache=True, forceinline=True)
def _positive(x):  # type: ignore[no-untyped-def]
    """Whether an option's price, volatility or maturity is in its range: 0, or from LEAST to MOST."""
    return (x <= MOST) & ((x >= LEAST) | (x == 0.0))


@njit(cache=True, nogil=True, error_model="numpy")
def lognormal(given, is_call, steps, of_forward, percent, day, first, end, out):  # type: ignore[no-untyped-def]
    """Prices and Greeks under a lognormal price, of the spot or, with rate and dividend equal, of the forward.

    The option out of the money is priced, which is min(grown, paid) times a difference of two probabilities; the other
    has its intrinsic value besides. Its nearer probability is that of the smaller of the two amounts, its farther one
    that of the greater.
    """
    w = np.empty(ROWS * STRIP)
    for start in range(first, end, STRIP):
        count = min(STRIP, end - start)
        at = start * steps
        spot = given[0][at[0] : at[0] + count]
        strike = given[1][at[1] : at[1] + count]
        rate = given[2][at[2] : at[2] + count]
        dividend = given[3][at[3] : at[3] + count]
        volatility = given[4][at[4] : at[4] + count]
        maturity = given[5][at[5] : at[5] + count]
        call = is_call[at[6] : at[6] + count]
        for i in range(count):
            earned, lost = rate[i] * maturity[i], dividend[i] * maturity[i]
            inside = (abs(earned) <= MOST_RATE) & (abs(lost) <= MOST_RATE)
            w[ODD + i] = 0.0 if inside else np.nan
            w[GROWN + i] = exp64(-lost)
            w[PAID + i] = exp64(-earned)
        for i in range(count):
            inside = _positive(spot[i]) & _positive(strike[i]) & _positive(volatility[i]) & _positive(maturity[i])
            w[ODD + i] = w[ODD + i] if inside else np.nan
        for i in range(count):
            discount = w[GROWN + i]
            grown, paid = spot[i] * discount, strike[i] * w[PAID + i]
            small = grown if grown < paid else paid
            large = paid if grown < paid else grown
            root = sqrt(maturity[i])
            w[DISCOUNT + i], w[GROWN + i], w[PAID + i], w[ROOT + i] = discount, grown, paid, root
            w[RATIO + i] = small / large if small > 0.0 else 0.0
            w[PER_SPREAD + i] = 1.0 / (volatility[i] * root + 0.0)  # not 1 / -0.0
        for i in range(count):
            w[LOG + i] = log64(w[RATIO + i])
        for i in range(count):
            distance = w[LOG + i] if w[RATIO + i] > 0.0 else WORTHLESS
            distance = distance * w[PER_SPREAD + i] if distance < 0.0 else 0.0
            half = 0.5 * (volatility[i] * w[ROOT + i])
            near, far = distance + half, half - distance
            w[NEAR + i] = near
            near = abs(near)
            w[NEAR_TAIL + i] = near if near < FARTHEST else FARTHEST
            w[FAR_TAIL + i] = far if far < FARTHEST else FARTHEST
        for i in range(count):
            w[BELL + i] = scaled_bell(w[NEAR_TAIL + i]) * UNSCALE
        for i in range(count):
            w[NEAR_TAIL + i] = scaled_tail(w[NEAR_TAIL + i])
            w[FAR_TAIL + i] = scaled_tail(w[FAR_TAIL + i])
        for i in range(count):
            grown, paid, bell = w[GROWN + i], w[PAID + i], w[BELL + i]
            near_tail, far_tail = w[NEAR_TAIL + i], w[FAR_TAIL + i]
            small = grown if grown < paid else paid
            beyond = w[NEAR + i] > 0.0
            value = small * (1.0 - bell * (near_tail + far_tail) if beyond else bell * (near_tail - far_tail))
            near = bell * near_tail
            w[NEAR + i] = value
            w[NEAR_TAIL + i] = 1.0 - near if beyond else near
            w[FAR_TAIL + i] = bell * w[RATIO + i] * far_tail
            w[BELL + i] = small * bell * DENSITY
        for i in range(count):
            grown, paid, near, far = w[GROWN + i], w[PAID + i], w[NEAR_TAIL + i], w[FAR_TAIL + i]
            below = grown < paid  # a call is out of the money
            one = near if below else 1.0 - far  # of N(d1) and N(d2) for a call, of N(d1) - 1 and N(d2) - 1 for a put
            two = far if below else 1.0 - near
            other_one = near - 1.0 if below else -far
            other_two = far - 1.0 if below else -near
            is_a_call = call[i] > 0
            one = one if is_a_call else other_one
            two = two if is_a_call else other_two
            inner = grown - paid if is_a_call else paid - grown
            inner = inner if inner > 0.0 else 0.0
            w[LOG + i] = w[NEAR + i] + inner + w[ODD + i]
            w[RATIO + i] = w[DISCOUNT + i] * one + w[ODD + i]
            w[NEAR_TAIL + i] = grown * one
            w[FAR_TAIL + i] = paid * two
        for i in range(count):
            density, per_spread, odd = w[BELL + i], w[PER_SPREAD + i], w[ODD + i]
            per_spot = 1.0 / spot[i]
            decay = 0.5 * density * (volatility[i] * volatility[i] * per_spread)
            decay = decay if (density > 0.0) & (volatility[i] > 0.0) else 0.0
            curved = density * per_spread * (per_spot * per_spot)
            w[GROWN + i] = (curved if density > 0.0 else 0.0) + odd
            w[ROOT + i] = density * w[ROOT + i] * percent + odd
            w[NEAR + i] = (dividend[i] * w[NEAR_TAIL + i] - rate[i] * w[FAR_TAIL + i] - decay) * day + odd
        for i in range(count):
            owed = -w[LOG + i] if of_forward else w[FAR_TAIL + i]
            w[FAR_TAIL + i] = maturity[i] * owed * percent + w[ODD + i]
        for k, row in enumerate((LOG, RATIO, GROWN, ROOT, NEAR, FAR_TAIL)):
            for i in range(count):
                out[k][start + i] = w[row + i]


@njit(cache=True, nogil=True, error_model="numpy")
def normal(given, is_call, steps, percent, day, first, end, out):  # type: ignore[no-untyped-def]
    """Prices and Greeks under a normal price, by Bachelier's formula of the forward."""
    w = np.empty(ROWS * STRIP)
    for start in range(first, end, STRIP):
        count = min(STRIP, end - start)
        at = start * steps
        forward = given[0][at[0] : at[0] + count]
        strike = given[1][at[1] : at[1] + count]
        rate = given[2][at[2] : at[2] + count]
        volatility = given[3][at[3] : at[3] + count]
        maturity = given[4][at[4] : at[4] + count]
        call = is_call[at[5] : at[5] + count]
        for i in range(count):
            earned, root, gap = rate[i] * maturity[i], sqrt(maturity[i]), forward[i] - strike[i]
            inside = (abs(earned) <= MOST_RATE) & (abs(forward[i]) <= MOST) & (abs(strike[i]) <= MOST)
            inside = inside & _positive(volatility[i]) & _positive(maturity[i])
            odd = 0.0 if inside else np.nan
            discount, spread = exp64(-earned), volatility[i] * root
            per_spread = 1.0 / (spread + 0.0)  # not 1 / -0.0
            far = abs(gap) * per_spread if gap != 0.0 else 0.0
            far = far if far < FARTHEST else FARTHEST
            bell, tail = scaled_bell(far) * UNSCALE, scaled_tail(far)
            density = discount * bell * DENSITY
            is_a_call = call[i] > 0
            inner = gap if is_a_call else -gap
            inner = inner if inner > 0.0 else 0.0
            value = discount * (spread * (bell * tail_slope(far)) + inner)
            less = bell * tail
            probability = less if (gap < 0.0) == is_a_call else 1.0 - less
            decay = 0.5 * density * (volatility[i] * volatility[i] * per_spread)
            decay = decay if (density > 0.0) & (volatility[i] > 0.0) else 0.0
            curved = density * per_spread if density > 0.0 else 0.0
            w[GROWN + i] = value + odd
            w[PAID + i] = (discount * probability if is_a_call else -(discount * probability)) + odd
            w[RATIO + i] = curved + odd
            w[LOG + i] = density * root * percent + odd
            w[NEAR + i] = (rate[i] * value - decay) * day + odd
            w[NEAR_TAIL + i] = -(maturity[i] * value) * percent + odd
        for k, row in enumerate((GROWN, PAID, RATIO, LOG, NEAR, NEAR_TAIL)):
            for i in range(count):
                out[k][start + i] = w[row + i]


@njit(cache=True, nogil=True, error_model="numpy")
def implied(given, is_call, steps, halley_steps, newton_steps, first, end, volatility, status):  # type: ignore[no-untyped-def]
    """The implied volatility of each option under a lognormal price, and what can be said of it.

    The level of an option is its price out of the money in parts of min(grown, paid), and grows from 0 to 1 with the
    spread, volatility * sqrt(maturity). README.md has the steps.
    """
    w = np.empty(IMPLIED_ROWS * STRIP)
    for start in range(first, end, STRIP):
        count = min(STRIP, end - start)
        at = start * steps
        spot = given[0][at[0] : at[0] + count]
        strike = given[1][at[1] : at[1] + count]
        rate = given[2][at[2] : at[2] + count]
        dividend = given[3][at[3] : at[3] + count]
        price = given[4][at[4] : at[4] + count]
        maturity = given[5][at[5] : at[5] + count]
        call = is_call[at[6] : at[6] + count]
        for i in range(count):
            earned, lost = rate[i] * maturity[i], dividend[i] * maturity[i]
            inside = (abs(earned) <= MOST_RATE) & (abs(lost) <= MOST_RATE) & _positive(maturity[i])
            w[STATUS + i] = OK if inside else UNKNOWN
            w[NEARER + i] = exp64(-lost)
            w[FARTHER + i] = exp64(-earned)
            w[PER_ROOT + i] = 1.0 / sqrt(maturity[i])
        for i in range(count):
            grown, paid = spot[i] * w[NEARER + i], strike[i] * w[FARTHER + i]
            small = grown if grown < paid else paid
            large = paid if grown < paid else grown
            inner = grown - paid if call[i] > 0 else paid - grown
            slack = ROUNDING * large if inner > 0.0 else 0.0
            value = price[i] - (inner if inner > 0.0 else 0.0)
            most = small if maturity[i] > 0.0 else 0.0
            level = value / small
            verdict = OK if (level > LEAST_LEVEL) & (level < 1.0) else NO_VEGA
            verdict = ABOVE if value >= most else verdict
            verdict = NO_VEGA if value <= slack else verdict
            verdict = BELOW if value < -slack else verdict
            inside = _positive(spot[i]) & _positive(strike[i]) & (abs(price[i]) <= MOST)
            verdict = verdict if inside & (w[STATUS + i] == OK) else UNKNOWN
            w[STATUS + i] = verdict
            w[WANTED + i] = level if verdict == OK else 0.5
            w[GAP + i] = small / large if verdict == OK else 1.0
            w[SPREAD + i] = (large - small) / (large + small) if verdict == OK else 0.0
        for i in range(count):
            gap = -log64(w[GAP + i])
            gap = log_series(w[SPREAD + i]) if w[SPREAD + i] < NEAR_THE_MONEY else gap
            scale, most = SCALED_GAP / gap, SCALED_LEVEL / w[WANTED + i]
            scale = scale if scale < most else most
            scale = scale if scale > 1.0 else 1.0
            w[GAP + i], w[SCALE + i] = gap, scale
            gap = gap * scale
            inflection = sqrt(2.0 * gap)
            w[SCALED + i] = gap
            w[INFLECTION + i] = inflection
            w[FARTHER + i] = scaled_tail(inflection if inflection < FARTHEST else FARTHEST)
        for i in range(count):
            level = 0.5 - w[FARTHER + i]  # at the inflection
            inflection, wanted = w[INFLECTION + i], w[WANTED + i] * w[SCALE + i]
            lower = wanted < level
            w[LOG_WANTED + i] = log64(wanted if lower else 1.0 - wanted)
            tangent = inflection - (level - wanted) * (1.0 / DENSITY)
            rest = log64(0.5 + w[FARTHER + i]) - w[LOG_WANTED + i]
            rest = rest if rest > 0.0 else 0.0
            slope = DENSITY / (0.5 + w[FARTHER + i])
            w[SPREAD + i] = tangent if lower else inflection + 2.0 * rest / (slope + sqrt(slope * slope + 0.5 * rest))
        for i in range(count):
            spread, gap = w[SPREAD + i], w[SCALED + i]
            ratio = gap / spread
            near, far = ratio - 0.5 * spread, ratio + 0.5 * spread
            w[DISTANCE + i] = near
            w[NEARER + i] = scaled_tail(near if (near > 0.0) & (near < FARTHEST) else 0.0)
            w[FARTHER + i] = scaled_tail(far if far < FARTHEST else FARTHEST)
        for i in range(count):
            gap = w[SCALED + i]
            squared = 2.0 * (log64(w[NEARER + i] - w[FARTHER + i]) - w[LOG_WANTED + i])
            squared = squared if squared > 0.0 else 0.0
            spread = 2.0 * gap / (sqrt(squared) + sqrt(squared + 2.0 * gap))
            far_off = (w[WANTED + i] < 0.5) & (w[SPREAD + i] < w[INFLECTION + i]) & (w[DISTANCE + i] > FAR_ENOUGH)
            w[SPREAD + i] = spread if far_off else w[SPREAD + i]
        for _ in range(halley_steps):
            for i in range(count):
                ratio, half = w[SCALED + i] / w[SPREAD + i], 0.5 * w[SPREAD + i]
                near, far = abs(half - ratio), half + ratio
                w[NEARER + i] = scaled_tail(near if near < FARTHEST else FARTHEST)
                w[FARTHER + i] = scaled_tail(far if far < FARTHEST else FARTHEST)
            for i in range(count):
                spread, inflection, gap = w[SPREAD + i], w[INFLECTION + i], w[SCALED + i]
                ratio = gap / spread
                near = 0.5 * spread - ratio
                lower = spread < inflection
                part = w[NEARER + i] - w[FARTHER + i] if lower else w[NEARER + i] + w[FARTHER + i]
                slope = DENSITY / part
                slope = slope if lower else -slope
                newton = (w[LOG_WANTED + i] - (log64(part) - 0.5 * (near * near))) / slope
                bend = -near * (0.5 + ratio / spread) - slope
                divisor = 1.0 + 0.5 * bend * newton
                moved = spread + newton / (divisor if divisor > 0.25 else 0.25)
                least = 0.25 * spread if lower else inflection
                most = inflection if lower else 4.0 * spread
                moved = moved if moved > least else least
                w[SPREAD + i] = moved if moved < most else most
        for i in range(count):
            w[SPREAD + i] = w[SPREAD + i] / w[SCALE + i]
        for _ in range(newton_steps):
            for i in range(count):
                spread = w[SPREAD + i]
                ratio, half = w[GAP + i] / spread, 0.5 * spread
                near, far = abs(half - ratio), half + ratio
                near = near if near < FARTHEST else FARTHEST
                w[AREA + i] = 0.0
                w[DISTANCE + i] = scaled_bell(near) * UNSCALE
                w[NEARER + i] = scaled_tail(near)
                w[FARTHER + i] = scaled_tail(far if far < FARTHEST else FARTHEST)
            for k in range(len(POINTS)):
                point, weight = POINTS[k], WEIGHTS[k]
                for i in range(count):
                    spread = w[SPREAD + i]
                    t = w[GAP + i] / spread + 0.5 * (spread if spread < 1.0 else 1.0) * point
                    w[AREA + i] += weight * tail_slope(t if t < FARTHEST else FARTHEST)
            for i in range(count):
                spread, bell = w[SPREAD + i], w[DISTANCE + i]
                near_tail, far_tail = w[NEARER + i], w[FARTHER + i]
                beyond = 0.5 * spread > w[GAP + i] / spread
                level = 1.0 - bell * (near_tail + far_tail) if beyond else bell * (near_tail - far_tail)
                level = 0.5 * spread * bell * w[AREA + i] if spread <= 1.0 else level
                moved = spread + (w[WANTED + i] - level) / (DENSITY * bell)
                moved = moved if moved > 0.5 * spread else 0.5 * spread
                w[SPREAD + i] = moved if moved < 2.0 * spread else 2.0 * spread
        for i in range(count):
            volatility[start + i] = w[SPREAD + i] * w[PER_ROOT + i] if w[STATUS + i] == OK else np.nan
        for i in range(count):
            status[start + i] = np.uint8(w[STATUS + i])


@njit(cache=True, nogil=True, error_model="numpy")
def implied_normal(given, is_call, steps, halley_steps, first, end, volatility, status):  # type: ignore[no-untyped-def]
    """The implied volatility of each option under a normal price, and what can be said of it.

    The price out of the money in parts of |forward - strike| depends on the distance alone, which is |forward - strike|
    over the spread, volatility * sqrt(maturity). README.md has the steps.
    """
    w = np.empty(IMPLIED_ROWS * STRIP)
    for start in range(first, end, STRIP):
        count = min(STRIP, end - start)
        at = start * steps
        forward = given[0][at[0] : at[0] + count]
        strike = given[1][at[1] : at[1] + count]
        rate = given[2][at[2] : at[2] + count]
        price = given[3][at[3] : at[3] + count]
        maturity = given[4][at[4] : at[4] + count]
        call = is_call[at[5] : at[5] + count]
        for i in range(count):
            earned, gap = rate[i] * maturity[i], forward[i] - strike[i]
            inside = (abs(earned) <= MOST_RATE) & (abs(forward[i]) <= MOST) & (abs(strike[i]) <= MOST)
            inside = inside & (abs(price[i]) <= MOST) & _positive(maturity[i])
            discount = exp64(-earned)
            inner = gap if call[i] > 0 else -gap
            inner = discount * inner if inner > 0.0 else 0.0
            slack, value = ROUNDING * inner, price[i] - inner
            wanted = value / discount
            verdict = OK if wanted > LEAST_VALUE else NO_VEGA
            verdict = verdict if maturity[i] > 0.0 else ABOVE
            verdict = NO_VEGA if value <= slack else verdict
            verdict = BELOW if value < -slack else verdict
            verdict = verdict if inside else UNKNOWN
            w[STATUS + i] = verdict
            w[WANTED + i] = wanted if verdict == OK else 1.0
            w[GAP + i] = abs(gap) if verdict == OK else 1.0
            w[PER_ROOT + i] = 1.0 / sqrt(maturity[i])
        for i in range(count):
            ratio = w[GAP + i] / w[WANTED + i]
            ratio = ratio if ratio > LEAST_RATIO else LEAST_RATIO
            w[LOG_WANTED + i] = -log64(ratio)
            w[DISTANCE + i] = log64(1.0 + ratio)
        for i in range(count):
            grown = w[DISTANCE + i]
            part = grown / (grown + 8.0)
            bent = ((START3 * part + START2) * part + START1) * part + START0
            w[DISTANCE + i] = grown / sqrt(2.0 * PI + grown * part * bent)
        for _ in range(halley_steps):
            for i in range(count):
                distance = w[DISTANCE + i]
                slope = tail_slope(distance)
                square = distance * distance
                newton = (log64(slope / distance) - 0.5 * square - w[LOG_WANTED + i]) * (slope * (1.0 / DENSITY))
                bend = (DENSITY - slope) / slope - square
                distance = distance * ((2.0 + newton * (bend + 1.0)) / (2.0 + newton * (bend - 1.0)))
                w[DISTANCE + i] = distance if distance < FARTHEST else FARTHEST
        for i in range(count):
            gap, wanted = w[GAP + i], w[WANTED + i]
            spread = gap / w[DISTANCE + i]
            spread = spread if gap > LEAST_RATIO * wanted else (wanted + 0.5 * gap) * (1.0 / DENSITY)
            distance = gap / spread
            bell = scaled_bell(distance) * UNSCALE
            # Both are spread times the slope; near the money the second has fewer roundings.
            value = spread * tail_slope(distance)
            value = value if distance > 1.0 else fused(-gap, scaled_tail(distance), DENSITY * spread)
            spread += fused(-bell, value, wanted) / (DENSITY * bell)
            volatility[start + i] = spread * w[PER_ROOT + i] if w[STATUS + i] == OK else np.nan
        for i in range(count):
            status[start + i] = np.uint8(w[STATUS + i])
