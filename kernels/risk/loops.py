"""The compiled loops of the risk operations: the twins of risk.cu, and what runs on the host for both backends."""

import numpy as np
from numba import njit

from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.device.elementary import exp64, log64
from warpdesk_server.kernels.device.normal import box_muller
from warpdesk_server.kernels.device.philox import philox4x32
from warpdesk_server.kernels.device.reduce import BLOCK, tree_sum
from warpdesk_server.kernels.matmul.block import add_products, block_shape, square_side, turn_squares
from warpdesk_server.kernels.matmul.cpu import DEPTH, LINE, aligned, pack_rows
from warpdesk_server.kernels.risk.spec import DIGIT, TILE

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_SIGN = np.uint64(1 << 63)
SCENARIOS = 96  # that one thread multiplies with all portfolios at a time; a multiple of a block's columns
_FIRST = np.uint64(64 - DIGIT)
_BYTE = np.uint64(255)
_DRAWN = 256  # counters that are drawn from together
_SMALL, _LARGE = 2.0**-512, 2.0**512
LN_2 = 0.6931471805599453


@njit(cache=True, nogil=True)
def factorise(covariance, factor):  # type: ignore[no-untyped-def]
    """Cholesky's factor, row by row. Returns (-1, 0), or the first asset whose pivot is only rounding and the pivot."""
    n = covariance.shape[0]
    for i in range(n):
        for j in range(i + 1):
            rest = covariance[i, j]
            for k in range(j):
                rest -= factor[i, k] * factor[j, k]
            if j < i:
                factor[i, j] = rest / factor[j, j]
            elif rest > 2.0**-50 * n * covariance[i, i]:
                factor[i, i] = np.sqrt(rest)
            else:
                return i, rest
    return -1, 0.0


@njit(cache=True, nogil=True)
def draw(first, begin, end, k0, k1, freedom, rows):  # type: ignore[no-untyped-def]
    """Fill rows begin to end - 1 with the normals of scenarios first + row, four to a counter (scenario, block, 0).

    With `freedom` > 0 a row is divided by the root of a chi-squared over freedom - 2, so that it has a t distribution
    of variance 1. Its normals have the counters (scenario, block, 1).
    """
    assets = rows.shape[1]
    blocks = (assets + 3) // 4
    places, numbers = np.empty((2, _DRAWN), np.uint64), np.empty((4, _DRAWN), np.float32)
    words, factors, four = np.empty((4, _DRAWN), np.uint32), np.empty(end - begin), np.empty((4, 1), np.float32)
    for row in range(begin, end):
        factors[row - begin] = 1.0
        if freedom > 0:
            squares = 0.0
            for place in range(freedom):
                if place % 4 == 0:
                    places[0, 0], places[1, 0] = np.uint64(first + row), np.uint64(place // 4)
                    _normals(places[:, :1], np.uint64(1), k0, k1, words[:, :1], four)
                squares += np.float64(four[place % 4, 0]) * np.float64(four[place % 4, 0])
            factors[row - begin] = np.sqrt(np.float64(freedom - 2) / squares)
    for start in range(begin * blocks, end * blocks, _DRAWN):
        count = min(_DRAWN, end * blocks - start)
        for i in range(count):
            places[0, i], places[1, i] = np.uint64(first + (start + i) // blocks), np.uint64((start + i) % blocks)
        _normals(places[:, :count], np.uint64(0), k0, k1, words, numbers)
        for i in range(count):
            row, asset = (start + i) // blocks, (start + i) % blocks * 4
            for each in range(min(4, assets - asset)):
                rows[row, asset + each] = np.float64(numbers[each, i]) * factors[row - begin]


@inner
def _normals(places, kind, k0, k1, words, numbers):  # type: ignore[no-untyped-def]
    """Four normals for each counter (scenario, block, kind): loops that become SIMD code."""
    count = places.shape[1]
    for i in range(count):
        scenario = places[0, i]
        a, b, c, d = philox4x32(scenario & _LOW, scenario >> _HALF, places[1, i], kind, k0, k1)
        words[0, i], words[1, i], words[2, i], words[3, i] = a, b, c, d
    for pair in range(2):
        for i in range(count):
            z0, z1 = box_muller(words[2 * pair, i], words[2 * pair + 1, i])
            numbers[2 * pair, i], numbers[2 * pair + 1, i] = z0, z1


@njit(cache=True, nogil=True)
def multiply(rows, exposures, offsets, begin, first, end, losses):  # type: ignore[no-untyped-def]
    """losses[p, begin + s] = offsets[p] + the product of exposures[p] and rows[s], for s in tiles first to end - 1.

    A product starts at 0 and takes fma(exposures[p, k], rows[s, k], sum) in increasing k, the order of matmul's kernel.
    Blocks of its registers have portfolios as rows and scenarios as columns, so that losses need no turning.
    """
    portfolios, assets = exposures.shape
    high, wide = block_shape(losses)
    lines, depth = -(-portfolios // high) * high, min(assets, DEPTH)
    left = np.empty(lines * assets)
    for k in range(0, assets, depth):
        terms = min(depth, assets - k)
        pack_rows(exposures, 0, portfolios, k, terms, high, left[lines * k :])
    right = aligned(np.empty(wide * depth + LINE))
    tile = aligned(np.empty(lines * SCENARIOS + LINE))
    for number in range(first, end):
        start, stop = number * SCENARIOS, min(number * SCENARIOS + SCENARIOS, rows.shape[0])
        for place in range(lines * SCENARIOS):
            tile[place] = 0.0
        for k in range(0, assets, depth):
            terms = min(depth, assets - k)
            for s in range(start, stop, wide):
                _pack_scenarios(rows, s, min(wide, stop - s), k, terms, wide, right)
                for p in range(0, lines, high):
                    at = p * SCENARIOS + s - start
                    add_products(left, lines * k + p * terms, right, 0, terms, tile, at, SCENARIOS)
        for p in range(portfolios):
            for s in range(stop - start):
                losses[p, begin + start + s] = offsets[p] + tile[p * SCENARIOS + s] + 0.0  # never -0.0


@inner
def _pack_scenarios(rows, start, columns, k, terms, wide, right):  # type: ignore[no-untyped-def]
    """Pack rows of scenarios so that the numbers of one asset are adjacent, as matmul's pack_rows does."""
    side = square_side(right)
    squares = terms - terms % side if columns == wide else 0
    numbers, assets = rows.reshape(-1), rows.shape[1]
    for p in range(0, squares, side):
        turn_squares(numbers, start * assets + k + p, assets, right, p * wide)
    if squares < terms:
        pack_rows(rows, start, start + columns, k + squares, terms - squares, wide, right[squares * wide :])


@inner
def _key(x):  # type: ignore[no-untyped-def]
    bits = np.float64(x).view(np.uint64)
    return ~bits if bits & _SIGN else bits | _SIGN


@inner
def _number(key):  # type: ignore[no-untyped-def]
    return np.uint64(key ^ _SIGN if key & _SIGN else ~key).view(np.float64)


@njit(cache=True, nogil=True)
def select(losses, masses, wanted, first, end, found):  # type: ignore[no-untyped-def]
    """found[p, i] = the least loss of portfolio p such that losses up to it have the mass wanted[i] (increasing).

    Losses become integers of their order, which are counted by their first bits; those of the counted bucket are kept,
    and counted by byte after byte. No order of additions matters, since masses are integers.
    """
    count = losses.shape[1]
    weighted = masses.size > 0
    counts, digits = np.empty(1 << DIGIT, np.int64), np.empty(256, np.int64)
    keys, weights = np.empty(count, np.uint64), np.empty(count if weighted else 0, np.int64)
    rest_keys, rest_weights = np.empty(count, np.uint64), np.empty(weights.size, np.int64)
    for p in range(first, end):
        for bucket in range(counts.size):
            counts[bucket] = 0
        row = losses[p]
        if weighted:
            for s in range(count):
                counts[_key(row[s]) >> _FIRST] += np.int64(masses[s])
        else:
            for s in range(count):
                counts[_key(row[s]) >> _FIRST] += 1
        bucket, before, kept, kept_of = -1, 0, 0, -1
        for i in range(wanted.size):
            while before + (counts[bucket] if bucket >= 0 else 0) < wanted[i]:
                before += counts[bucket] if bucket >= 0 else 0
                bucket += 1
            if kept_of != bucket:
                kept, kept_of = 0, bucket
                for s in range(count):
                    key = _key(row[s])
                    if key >> _FIRST == np.uint64(bucket):
                        keys[kept] = key
                        if weighted:
                            weights[kept] = np.int64(masses[s])
                        kept += 1
            for k in range(kept):
                rest_keys[k] = keys[k]
                if weighted:
                    rest_weights[k] = weights[k]
            found[p, i] = _number(_least(rest_keys, rest_weights, kept, wanted[i] - before, digits))


@inner
def _least(keys, weights, count, wanted, digits):  # type: ignore[no-untyped-def]
    """The least of some keys such that keys up to it have the mass `wanted`; the keys are overwritten."""
    prefix = np.uint64(0)
    for byte in range(7, -1, -1):
        shift = np.uint64(8 * byte)
        for digit in range(256):
            digits[digit] = 0
        for k in range(count):
            digits[(keys[k] >> shift) & _BYTE] += weights[k] if weights.size else 1
        chosen = 0
        while digits[chosen] < wanted:
            wanted -= digits[chosen]
            chosen += 1
        prefix |= np.uint64(chosen) << shift
        kept = 0
        for k in range(count):
            if (keys[k] >> shift) & _BYTE == np.uint64(chosen):
                keys[kept] = keys[k]
                if weights.size:
                    weights[kept] = weights[k]
                kept += 1
        count = kept
    return prefix


@inner
def _mass(masses, s):  # type: ignore[no-untyped-def]
    return np.float64(masses[s]) if masses.size > 0 else 1.0


@njit(cache=True, nogil=True)
def tails(losses, masses, thresholds, first, end, sums, found):  # type: ignore[no-untyped-def]
    """Sums of each tile (portfolios, m, tiles, 2), and masses (portfolios, m, 2) above and at the thresholds.

    Lane l of BLOCK adds the scenarios l, l + BLOCK, ... of a tile, and lanes are added by halving.
    """
    count = losses.shape[1]
    lanes = np.empty((2, BLOCK))
    for p in range(first, end):
        row = losses[p]
        for i in range(thresholds.shape[1]):
            threshold, above, equal = thresholds[p, i], np.uint64(0), np.uint64(0)
            for tile in range(sums.shape[2]):
                begin = tile * TILE
                _tail_lanes(row[begin : min(begin + TILE, count)], masses[begin : begin + TILE], threshold, lanes)
                sums[p, i, tile, 0] = tree_sum(lanes[0])
                sums[p, i, tile, 1] = tree_sum(lanes[1])
            if masses.size:
                for s in range(count):
                    above += masses[s] if row[s] > threshold else np.uint64(0)
                    equal += masses[s] if row[s] == threshold else np.uint64(0)
            else:
                for s in range(count):
                    above += np.uint64(row[s] > threshold)
                    equal += np.uint64(row[s] == threshold)
            found[p, i, 0], found[p, i, 1] = above, equal


@inner
def _tail_lanes(row, masses, threshold, lanes):  # type: ignore[no-untyped-def]
    for lane in range(BLOCK):
        lanes[0, lane] = lanes[1, lane] = 0.0
    whole = row.size // BLOCK
    for step in range(whole + 1):
        begin = step * BLOCK
        for lane in range(BLOCK if step < whole else row.size - begin):
            apart = row[begin + lane] - threshold
            excess = apart if apart > 0.0 else 0.0
            mass = _mass(masses, begin + lane)
            lanes[0, lane] += mass * excess
            lanes[1, lane] += mass * (excess * excess)


@njit(cache=True, nogil=True)
def moments(losses, masses, centres, first, end, sums):  # type: ignore[no-untyped-def]
    """Sums of each tile (portfolios, tiles, 4) of the powers 1 to 4 of losses less the centres, as `tails` adds."""
    count = losses.shape[1]
    lanes = np.empty((4, BLOCK))
    for p in range(first, end):
        for tile in range(sums.shape[1]):
            start = tile * TILE
            row, part = losses[p, start : min(start + TILE, count)], masses[start : start + TILE]
            for lane in range(BLOCK):
                lanes[0, lane] = lanes[1, lane] = lanes[2, lane] = lanes[3, lane] = 0.0
            for begin in range(0, row.size, BLOCK):
                for lane in range(min(BLOCK, row.size - begin)):
                    d = row[begin + lane] - centres[p]
                    mass, square = _mass(part, begin + lane), d * d
                    lanes[0, lane] += mass * d
                    lanes[1, lane] += mass * square
                    lanes[2, lane] += mass * (square * d)
                    lanes[3, lane] += mass * (square * square)
            for power in range(4):
                sums[p, tile, power] = tree_sum(lanes[power])


@njit(cache=True, nogil=True)
def weigh(losses, masses, pieces, begin, first, end, weights):  # type: ignore[no-untyped-def]
    """weights[p, m, s] = what scenario begin + s counts in piece m of portfolio p (losses.Losses.combined)."""
    for p in range(first, end):
        for m in range(pieces.shape[1]):
            low, high, above, centre = pieces[p, m, 0], pieces[p, m, 1], pieces[p, m, 2], pieces[p, m, 3]
            c0, c1, c2, c3 = pieces[p, m, 4], pieces[p, m, 5], pieces[p, m, 6], pieces[p, m, 7]
            for s in range(weights.shape[2]):
                loss = losses[p, begin + s]
                d = loss - centre
                inside = c0 + d * (c1 + d * (c2 + d * c3))
                count = above if loss > high else inside if loss >= low else 0.0
                weights[p, m, s] = _mass(masses, begin + s) * count


@njit(cache=True, nogil=True)
def count_exceptions(returns, var, first, end, counts):  # type: ignore[no-untyped-def]
    """counts[series] = transitions from none to none, none to one, one to none and one to one; whether the first is
    one. An exception is a loss above its forecast."""
    time = returns.shape[1]
    for at in range(first, end):
        earned, forecast = returns[at], var[at]
        ones = pairs = np.int64(0)
        for t in range(1, time):
            now = np.int64(-earned[t] > forecast[t])
            ones += now
            pairs += now & np.int64(-earned[t - 1] > forecast[t - 1])
        begins = np.int64(-earned[0] > forecast[0])
        ends = np.int64(-earned[time - 1] > forecast[time - 1])
        left = ones + begins - ends  # exceptions that something follows
        counts[at, 0], counts[at, 1] = time - 1 - left - (ones - pairs), ones - pairs
        counts[at, 2], counts[at, 3], counts[at, 4] = left - pairs, pairs, begins


@inner
def _grow(growth, factor):  # type: ignore[no-untyped-def]
    """Multiply a growth (mantissa, exponent of 2^512) by a factor, without overflow or underflow."""
    growth[0] *= factor
    if growth[0] < _SMALL and growth[0] > 0.0:
        growth[0] *= _LARGE
        growth[1] -= 1.0
    elif growth[0] > _LARGE:
        growth[0] *= _SMALL
        growth[1] += 1.0


@inner
def _add_drawdown(depths, marks, fall, start, trough, recovery):  # type: ignore[no-untyped-def]
    """Insert a drawdown into a series' deepest ones, which are in order of depth, equal ones in the order of time."""
    at = depths.size - 1
    if not fall > depths[at]:
        return
    while at > 0 and fall > depths[at - 1]:
        depths[at] = depths[at - 1]
        for each in range(3):
            marks[at, each] = marks[at - 1, each]
        at -= 1
    depths[at] = fall
    marks[at, 0], marks[at, 1], marks[at, 2] = start, trough, recovery


@njit(cache=True, nogil=True)
def run_series(returns, benchmark, target, first_series, end, sums, depths, marks):  # type: ignore[no-untyped-def]
    """Sums of each series, in the order of time, and its deepest drawdowns.

    sums: means of returns, benchmark and their difference; then as performance.py unpacks them, sums above and
    below the target, of powers of the distances from the means, counts of rises and falls of the benchmark, and
    growths. marks: how many returns had been earned at the start, trough and recovery of each drawdown, or -1.
    """
    time, compared = returns.shape[1], benchmark.size > 0
    for at in range(first_series, end):
        r, out = returns[at], sums[at]
        for each in range(depths.shape[1]):
            depths[at, each] = 0.0
            marks[at, each, 0] = marks[at, each, 1] = marks[at, each, 2] = -1
        first = np.float64(r[0])
        first_b = np.float64(benchmark[0]) if compared else 0.0
        first_a = first - first_b
        total, total_b, total_a, below, gain, loss, up, down = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        growths = out[17:].reshape(5, 2)
        for each in range(5):
            growths[each, 0], growths[each, 1] = 1.0, 0.0
        level, depth, peak, trough = 1.0, 0.0, 0, 0
        for t in range(time):
            value = np.float64(r[t])
            over = value - target
            total += value - first
            gain += over if over > 0.0 else 0.0
            loss += -over if over < 0.0 else 0.0
            below += over * over if over < 0.0 else 0.0
            _grow(growths[0], 1.0 + value)
            level *= 1.0 + value
            if level >= 1.0:
                if depth > 0.0:
                    _add_drawdown(depths[at], marks[at], depth, peak, trough, t + 1)
                level, depth, peak = 1.0, 0.0, t + 1
            elif 1.0 - level > depth:
                depth, trough = 1.0 - level, t + 1
            if compared:
                other = np.float64(benchmark[t])
                total_b += other - first_b
                total_a += (value - other) - first_a
                if other > 0.0:
                    up += 1.0
                    _grow(growths[1], 1.0 + value)
                    _grow(growths[2], 1.0 + other)
                elif other < 0.0:
                    down += 1.0
                    _grow(growths[3], 1.0 + value)
                    _grow(growths[4], 1.0 + other)
        if depth > 0.0:
            _add_drawdown(depths[at], marks[at], depth, peak, trough, -1)
        n = np.float64(time)
        mean, mean_b, mean_a = first + total / n, first_b + total_b / n, first_a + total_a / n
        d1, d2, d3, d4, e1, e2, a1, a2, de = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for t in range(time):
            d = np.float64(r[t]) - mean
            square = d * d
            d1 += d
            d2 += square
            d3 += square * d
            d4 += square * square
            if compared:
                e = np.float64(benchmark[t]) - mean_b
                a = (np.float64(r[t]) - np.float64(benchmark[t])) - mean_a
                e1 += e
                e2 += e * e
                a1 += a
                a2 += a * a
                de += d * e
        out[0], out[1], out[2], out[3], out[4], out[5] = mean, below, gain, loss, mean_b, mean_a
        out[6], out[7], out[8], out[9] = d1, d2, d3, d4
        out[10], out[11], out[12], out[13], out[14], out[15], out[16] = e1, e2, a1, a2, de, up, down


@njit(cache=True)
def logarithms(growths, found):  # type: ignore[no-untyped-def]
    """The logarithms of growths (n, 2), of 0 minus infinity."""
    for at in range(found.size):
        mantissa = growths[at, 0]
        found[at] = log64(mantissa) + growths[at, 1] * (512.0 * LN_2) if mantissa > 0.0 else -np.inf


@njit(cache=True, forceinline=True)
def exponential(x):  # type: ignore[no-untyped-def]
    """e^x also beyond exp64's range, where it becomes infinity or 0; NaN of NaN."""
    if x != x or abs(x) <= 708.0:
        return exp64(x) if x == x else x
    half = exp64(0.5 * x)
    return half * half


@njit(cache=True)
def exponentials(logarithms, found):  # type: ignore[no-untyped-def]
    """e to the power of each number."""
    for at in range(found.size):
        found[at] = exponential(logarithms[at])


@njit(cache=True, nogil=True)
def add_terms(weights, terms, first, end, sums):  # type: ignore[no-untyped-def]
    """sums[p, m] = the sum of weights[p, k] * terms[p, m, k], in the order of k."""
    for p in range(first, end):
        for m in range(terms.shape[1]):
            total = 0.0
            for k in range(terms.shape[2]):
                total += weights[p, k] * terms[p, m, k]
            sums[p, m] = total
