"""The Monte Carlo simulation of option paths on all cores of the CPU, by blocks of 256 paths in the first cache."""

import threading
from math import sqrt
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from warpdesk_server.kernels import progress
from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.device.elementary import exp64, minus_two_log
from warpdesk_server.kernels.device.fused import fused
from warpdesk_server.kernels.device.inverse_normal import inverse_normal
from warpdesk_server.kernels.device.normal import box_muller
from warpdesk_server.kernels.device.philox import philox4x32
from warpdesk_server.kernels.device.reduce import BLOCK, sums_of_runs, tree_sum
from warpdesk_server.kernels.device.sobol import owen_scramble, sobol
from warpdesk_server.kernels.device.uniform import uniform
from warpdesk_server.kernels.monte_carlo import spec
from warpdesk_server.kernels.monte_carlo.bridge import Bridge, bridge
from warpdesk_server.kernels.monte_carlo.estimate import estimate
from warpdesk_server.kernels.monte_carlo.plan import (
    ASIAN_ARITHMETIC,
    ASIAN_GEOMETRIC,
    ASSET_OR_NOTHING,
    BARRIER_CONTINUOUS,
    BARRIER_DISCRETE,
    CASH_OR_NOTHING,
    EUROPEAN,
    FLOATING_STRIKE,
    KNOCK_IN,
    LOOKBACK_CONTINUOUS,
    LOOKBACK_DISCRETE,
    hit_discounts,
    key,
    terms,
)
from warpdesk_server.kernels.monte_carlo.spec import BINS, SUMS, MonteCarloParams
from warpdesk_server.kernels.sharding import Shard

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
ZERO, ONE = np.uint64(0), np.uint64(1)
BLOCKS_PER_TASK = 4
BLOCK_BITS = BLOCK.bit_length() - 1
ALL_BITS = np.uint32(0xFFFFFFFF)


def monte_carlo(params: MonteCarloParams, *, seed: int) -> dict[str, object]:
    """The outputs of monte_carlo. Its cut into chunks of paths bounds memory and changes no byte of the answer."""
    return estimate(params, **simulate(params, 0, params.paths, spec.unit(params), seed=seed))


def shard_sums(params: MonteCarloParams, shard: Shard, *, seed: int) -> dict[str, NDArray[Any]]:
    """The sums and the histogram of one shard of a simulation (spec.sharding)."""
    return simulate(params, *spec.span(params, shard), spec.unit(params), seed=seed)


def simulate(params: MonteCarloParams, first: int, end: int, unit: int, *, seed: int) -> dict[str, NDArray[Any]]:
    """Simulate the paths from `first`, a multiple of `unit`, to `end` - 1.

    The sums of each unit of paths (units, spec.columns), and the counts of terminal prices (BINS). A unit is BLOCK
    times a power of two, and at most a chunk.
    """
    job, discounts = terms(params), hit_discounts(params)
    k0, k1 = key(seed)
    bridged = bridge(params, k0, k1)
    columns = spec.columns(params)
    sums, counts = np.empty((-(-(end - first) // unit), columns)), np.zeros(BINS, dtype=np.int64)
    for start in range(first, end, spec.CHUNK):
        stop = min(start + spec.CHUNK, end)
        partials = np.empty((-(-(stop - start) // BLOCK), columns))
        with progress.stage((start - first) / (end - first), (stop - first) / (end - first)):
            _simulate(job, discounts, bridged, np.uint64(k0), np.uint64(k1), start, partials, counts)
        found, from_unit = sums_of_runs(partials, unit // BLOCK), (start - first) // unit
        sums[from_unit : from_unit + len(found)] = found
    return {"sums": sums, "counts": counts}


def _simulate(
    job: Any, discounts: NDArray[np.float64], bridged: Bridge, k0: np.uint64, k1: np.uint64, first: int,
    partials: NDArray[np.float64], counts: NDArray[np.int64],
) -> None:  # fmt: skip
    """Simulate paths from `first` on: fill partials[block] with sums over its paths, and count terminal prices."""
    lock = threading.Lock()

    def run(begin: int, end: int) -> None:
        own = np.zeros(BINS, dtype=np.uint32)
        state, walks = np.empty((12, BLOCK)), np.empty((len(bridged.dates) + 1, BLOCK))
        # What most requests do not need is compiled apart, and called for each block.
        step = 1 if job.greeks or len(bridged.dates) else end - begin
        for block in range(begin, end, step):
            if len(bridged.dates):
                _build(bridged, np.uint64(first + block * BLOCK), k0, k1, walks)
            _simulate_blocks(job, discounts, walks, k0, k1, first, block, block + step, state, partials, own)
            if job.greeks:
                live = min(BLOCK, job.paths - first - block * BLOCK)
                _differentiate(job, live, state, partials[block])
        with lock:
            np.add(counts, own, out=counts)

    share(len(partials), run, at_least=BLOCKS_PER_TASK)


@njit(cache=True, nogil=True)
def _simulate_blocks(job, discounts, walks, k0, k1, first, begin, end, state, partials, counts):  # type: ignore[no-untyped-def]
    words = np.empty((4, BLOCK), dtype=np.uint32)
    normals, squares = np.empty((4, BLOCK), dtype=np.float32), np.empty((4, BLOCK), dtype=np.float32)
    for block in range(begin, end):
        path = first + block * BLOCK
        _walk(job, discounts, np.uint64(path), k0, k1, words, normals, squares, walks, state)
        live = min(BLOCK, job.paths - path)
        _settle(job, live, state, partials[block])
        _count(job, live, state[0], counts)


@inner
def _walk(job, discounts, path, k0, k1, words, normals, squares, walks, state):  # type: ignore[no-untyped-def]
    """Simulate an option's BLOCK paths to expiry. The rows of `state` are W and then what the payoff needs."""
    w, sum_w, sum_s, alive, distance, hit = state[0], state[1], state[2], state[3], state[4], state[5]
    lowest, sum_log, sum_time, front = state[8], state[9], state[10], state[11]
    start = job.side * job.barrier
    for i in range(BLOCK):
        w[i] = 0.0
        sum_w[i] = 0.0
        sum_s[i] = 1.0 if job.fixings > job.steps else 0.0
        alive[i] = 1.0 if start > 0.0 else 0.0
        distance[i] = start
        hit[i] = 0.0 if start > 0.0 else discounts[0]
        lowest[i] = 0.0
        sum_log[i] = 0.0
        sum_time[i] = 0.0
    for step in range(job.steps):
        lane = step % 4
        if lane == 0:
            if len(walks) > 1:
                for ahead in range(min(4, job.steps - step)):
                    for i in range(BLOCK):
                        normals[ahead, i] = np.float32(walks[step + ahead + 1, i] - walks[step + ahead, i])
            else:
                _draw(path, np.uint64(step // 4), k0, k1, job.mirrored, words, normals)
            if job.kind == LOOKBACK_CONTINUOUS:
                _draw_squares(path, np.uint64(step // 4), k0, k1, job.mirrored, words, squares)
            if step == 0:
                for i in range(BLOCK):
                    front[i] = np.float64(normals[0, i])
        k = np.float64(step + 1)
        if job.kind == EUROPEAN:
            _add(normals[lane], w)
        elif job.kind == ASIAN_ARITHMETIC:
            if job.greeks:
                _average_moments(normals[lane], job.drift * k, job.diffusion, k, w, sum_w, sum_s, sum_log, sum_time)
            else:
                _average(normals[lane], job.drift * k, job.diffusion, w, sum_w, sum_s)
        elif job.kind == ASIAN_GEOMETRIC:
            _add_twice(normals[lane], w, sum_w)
        else:
            level = job.barrier - job.barrier_drift * k
            if job.kind == BARRIER_DISCRETE:
                _watch_dates(normals[lane], level, job.side, job.barrier_noise, discounts[step + 1], w, alive, hit)
            elif job.kind == BARRIER_CONTINUOUS:
                _watch_always(normals[lane], level, job.side, discounts[step + 1], w, alive, distance, hit)
            elif job.kind == LOOKBACK_DISCRETE:
                _reach_on_dates(normals[lane], level, job.side, job.barrier_noise, k, w, lowest, sum_time)
            else:
                _reach_at_all_times(normals[lane], squares[lane], level, job.side, k, w, distance, lowest, sum_time)


@njit(cache=True)
def _draw(path, step_block, k0, k1, mirrored, words, normals):  # type: ignore[no-untyped-def]
    """Draw four normals for each of BLOCK simulated paths; the counter is (path low, path high, step block, 0).

    The mirror image of a path has its normals with the other sign, as half a turn more of the angle makes them.
    """
    count = BLOCK >> mirrored
    _draw_words(path >> np.uint64(mirrored), count, step_block, ZERO, k0, k1, words)
    for pair in range(2):
        for i in range(count):
            z0, z1 = box_muller(words[2 * pair, i], words[2 * pair + 1, i])
            normals[2 * pair, i] = z0
            normals[2 * pair + 1, i] = z1
    if mirrored:
        for row in range(4):
            z = normals[row]
            for i in range(BLOCK // 2 - 1, -1, -1):
                front = z[i]
                z[2 * i] = front
                z[2 * i + 1] = -front


@inner
def _draw_squares(path, step_block, k0, k1, mirrored, words, squares):  # type: ignore[no-untyped-def]
    """Draw -2 ln U of four uniform numbers for each of BLOCK simulated paths; the counter's last word is 1. The mirror
    image has 1 - U."""
    _draw_words(path >> np.uint64(mirrored), BLOCK >> mirrored, step_block, ONE, k0, k1, words)
    for lane in range(4):
        if mirrored:
            _mirror(words[lane])
        for i in range(BLOCK):
            squares[lane, i] = minus_two_log(uniform(words[lane, i]))


@inner
def _draw_words(path, count, step_block, stream, k0, k1, words):  # type: ignore[no-untyped-def]
    for i in range(count):
        p = np.uint64(path + np.uint64(i))
        a, b, c, d = philox4x32(p & LOW, p >> HALF, step_block, stream, k0, k1)
        words[0, i] = a
        words[1, i] = b
        words[2, i] = c
        words[3, i] = d


@inner
def _mirror(words):  # type: ignore[no-untyped-def]
    """Give each pair of antithetic paths one word of the first half of these, and its second path the bits reversed."""
    for i in range(BLOCK // 2 - 1, -1, -1):
        word = words[i]
        words[2 * i] = word
        words[2 * i + 1] = word ^ ALL_BITS


@njit(cache=True, nogil=True, error_model="numpy")
def _build(bridged, path, k0, k1, walks):  # type: ignore[no-untyped-def]
    """Build BLOCK paths of one replicate's Sobol points: W at each date, by the bridge's order."""
    words, normals = np.empty((4, BLOCK), dtype=np.uint32), np.empty((4, BLOCK), dtype=np.float32)
    z = np.empty(BLOCK)
    dimensions = len(bridged.directions)
    replicate, point = np.int64(path) >> bridged.bits, np.int64(path) & ((1 << bridged.bits) - 1)
    for i in range(BLOCK):
        walks[0, i] = 0.0
    for j in range(len(bridged.dates)):
        if j < dimensions:
            # Points of a block differ in their last bits alone, so that each is another one and one direction number.
            words[0, 0] = sobol(point, bridged.bits, bridged.directions[j])
            for bit in range(BLOCK_BITS):
                for i in range(1 << bit):
                    words[0, (1 << bit) + i] = words[0, i] ^ bridged.directions[j, bit]
            seed = bridged.scrambles[replicate, j]
            for i in range(BLOCK):
                z[i] = inverse_normal((np.float64(owen_scramble(words[0, i], seed)) + 0.5) * 2.0**-32)
        else:
            lane = (j - dimensions) % 4
            if lane == 0:
                _draw(path, np.uint64((j - dimensions) // 4), k0, k1, 0, words, normals)
            for i in range(BLOCK):
                z[i] = np.float64(normals[lane, i])
        w = walks[bridged.dates[j, 0]]
        left, right = walks[bridged.dates[j, 1]], walks[bridged.dates[j, 2]]
        a, b, c = bridged.weights[j, 0], bridged.weights[j, 1], bridged.weights[j, 2]
        for i in range(BLOCK):
            w[i] = fused(a, left[i], fused(b, right[i], c * z[i]))


@inner
def _add(z, w):  # type: ignore[no-untyped-def]
    for i in range(BLOCK):
        w[i] += np.float64(z[i])


@inner
def _add_twice(z, w, sum_w):  # type: ignore[no-untyped-def]
    for i in range(BLOCK):
        w[i] += np.float64(z[i])
        sum_w[i] += w[i]


@inner
def _average(z, drifted, diffusion, w, sum_w, sum_s):  # type: ignore[no-untyped-def]
    for i in range(BLOCK):
        w[i] += np.float64(z[i])
        sum_w[i] += w[i]
        sum_s[i] += exp64(fused(diffusion, w[i], drifted))


@inner
def _average_moments(z, drifted, diffusion, k, w, sum_w, sum_s, sum_log, sum_time):  # type: ignore[no-untyped-def]
    """The same, and the sums of each price times its logarithm, and times its date."""
    for i in range(BLOCK):
        w[i] += np.float64(z[i])
        sum_w[i] += w[i]
        log_price = fused(diffusion, w[i], drifted)
        price = exp64(log_price)
        sum_s[i] += price
        sum_log[i] += price * log_price
        sum_time[i] += price * k


@inner
def _watch_dates(z, level, side, noise, discount, w, alive, hit):  # type: ignore[no-untyped-def]
    """Knock an option's paths that are at or past the level on this date."""
    for i in range(BLOCK):
        w[i] += np.float64(z[i])
        still = alive[i] if side * (level - noise * w[i]) > 0.0 else 0.0
        hit[i] += (alive[i] - still) * discount
        alive[i] = still


@inner
def _watch_always(z, level, side, discount, w, alive, distance, hit):  # type: ignore[no-untyped-def]
    """Multiply each path's weight by the probability that its Brownian bridge over this step missed the barrier.

    Between points at distances d0, d1 > 0 from the level, in units of the step's standard deviation, it is
    1 - exp(-2 d0 d1) (Beaglehole, Dybvig and Zhou 1997; Andersen and Brotherton-Ratcliffe 1996).
    """
    for i in range(BLOCK):
        w[i] += np.float64(z[i])
        d = side * (level - w[i])
        missed = 1.0 - exp64(-2.0 * (distance[i] * d))
        still = alive[i] * (missed if distance[i] > 0.0 and d > 0.0 else 0.0)
        hit[i] += (alive[i] - still) * discount
        alive[i] = still
        distance[i] = d


@inner
def _reach_on_dates(z, level, side, noise, k, w, lowest, time):  # type: ignore[no-untyped-def]
    """Note the least distance of each path from the extreme price so far, below 0 beyond it, and when that is."""
    for i in range(BLOCK):
        w[i] += np.float64(z[i])
        d = side * (level - noise * w[i])
        time[i] = k if d < lowest[i] else time[i]
        lowest[i] = d if d < lowest[i] else lowest[i]


@inner
def _reach_at_all_times(z, square, level, side, k, w, distance, lowest, time):  # type: ignore[no-untyped-def]
    """The same at all times: the minimum of the Brownian bridge from d0 to d1 of variance 1 is at most
    (d0 + d1 - sqrt((d1 - d0)^2 - 2 ln U)) / 2 with probability U (Beaglehole, Dybvig and Zhou 1997). It falls with the
    drift of a step times what is noted as its time."""
    for i in range(BLOCK):
        w[i] += np.float64(z[i])
        d = side * (level - w[i])
        gap = d - distance[i]
        root = sqrt(fused(gap, gap, np.float64(square[i])))
        low = 0.5 * ((d + distance[i]) - root)
        time[i] = k - 0.5 * (1.0 + gap / root) if low < lowest[i] else time[i]
        lowest[i] = low if low < lowest[i] else lowest[i]
        distance[i] = d


@inner
def _settle(job, live, state, sums):  # type: ignore[no-untyped-def]
    """Write the sums of payoffs listed in spec.SUMS over the first `live` paths of a block.

    x is the discounted payoff minus `shift`, y the discounted control minus its expectation.
    """
    w, sum_w, sum_s, alive, hit, lowest = state[0], state[1], state[2], state[3], state[5], state[8]
    x, y = state[6], state[7]
    _pay(job, w, sum_w, sum_s, alive, hit, lowest, x, y)
    paid = 0
    control_paid = 0
    for i in range(live):
        paid += x[i] > 0.0
        control_paid += y[i] > 0.0
        x[i] -= job.shift
        y[i] -= job.control
    for i in range(live, BLOCK):
        x[i] = 0.0
        y[i] = 0.0
    if job.mirrored:
        _average_pairs(x)
        _average_pairs(y)
    sums[5] = np.float64(paid)
    sums[6] = np.float64(control_paid)
    scratch = state[4]  # the distances are no longer needed
    for i in range(BLOCK):
        left = (x[i] - job.weight * y[i]) * job.unit
        scratch[i] = left * left * left
    sums[7] = tree_sum(scratch)
    sums[1] = _sum_of_products(x, x, scratch)
    sums[2] = 0.0
    sums[3] = 0.0
    sums[4] = 0.0
    if job.kind == ASIAN_ARITHMETIC:
        sums[4] = _sum_of_products(x, y, scratch)
        sums[3] = _sum_of_products(y, y, scratch)
        sums[2] = tree_sum(y)
    sums[0] = tree_sum(x)


@inner
def _average_pairs(x):  # type: ignore[no-untyped-def]
    """Put the mean of each pair of antithetic paths in the place of its first, and 0 in that of its second."""
    for i in range(0, BLOCK, 2):
        x[i] = 0.5 * (x[i] + x[i + 1])
        x[i + 1] = 0.0


@inner
def _sum_of_products(x, y, scratch):  # type: ignore[no-untyped-def]
    for i in range(BLOCK):
        scratch[i] = x[i] * y[i]
    return tree_sum(scratch)


@inner
def _positive_part(x):  # type: ignore[no-untyped-def]
    return x if x > 0.0 else 0.0


@inner
def _pay(job, w, sum_w, sum_s, alive, hit, lowest, x, y):  # type: ignore[no-untyped-def]
    """Write each path's discounted payoff to x and, for the arithmetic Asian, that of its control to y."""
    fixings = np.float64(job.fixings)
    steps = np.float64(job.steps)
    ladder = np.float64(job.steps * (job.steps + 1) // 2)  # 1 + 2 + .. + steps
    scale = job.diffusion if job.diffusion > 0.0 else 1.0
    for i in range(BLOCK):
        y[i] = 0.0
        if job.kind == ASIAN_ARITHMETIC or job.kind == ASIAN_GEOMETRIC:
            geometric = job.spot * exp64((job.drift * ladder + job.diffusion * sum_w[i]) / fixings)
            control = job.discount * _positive_part(job.sign * (geometric - job.strike))
            if job.kind == ASIAN_GEOMETRIC:
                x[i] = control
            else:
                arithmetic = job.spot * (sum_s[i] / fixings)
                x[i] = job.discount * _positive_part(job.sign * (arithmetic - job.strike))
                y[i] = control
        else:
            last = job.spot * exp64(job.drift * steps + job.diffusion * w[i])
            price, strike = last, job.strike
            if job.kind == LOOKBACK_DISCRETE or job.kind == LOOKBACK_CONTINUOUS:
                price = job.spot * exp64(scale * (job.barrier - job.side * lowest[i]))
                if job.form == FLOATING_STRIKE:
                    price, strike = last, price
            inside = job.sign * (price - strike)
            vanilla = job.discount * _positive_part(inside)
            if job.kind == BARRIER_DISCRETE or job.kind == BARRIER_CONTINUOUS:
                if job.form == KNOCK_IN:
                    x[i] = (1.0 - alive[i]) * vanilla + job.discount * job.cash * alive[i]
                else:
                    x[i] = alive[i] * vanilla + job.cash * hit[i]
            elif job.kind == EUROPEAN and job.form == CASH_OR_NOTHING:
                x[i] = job.discount * job.cash if inside > 0.0 else 0.0
            elif job.kind == EUROPEAN and job.form == ASSET_OR_NOTHING:
                x[i] = job.discount * last if inside > 0.0 else 0.0
            else:
                x[i] = vanilla


@njit(cache=True, nogil=True, error_model="numpy")
def _differentiate(job, live, state, sums):  # type: ignore[no-untyped-def]
    """Write the sums of pathwise derivatives, and of their squares.

    What an option pays by is a sum of prices S. Its derivative to the logarithm of the spot is `first`; `logs` is the
    sum of S ln(S / spot) and `times` that of S k, of which others are made. `moved` is `first` without today's price.
    """
    w, sum_w, sum_s, lowest = state[0], state[1], state[2], state[8]
    sum_log, sum_time, front = state[9], state[10], state[11]
    greeks, scratch = np.empty((4, BLOCK)), np.empty(BLOCK)
    scale = job.diffusion if job.diffusion > 0.0 else 1.0
    fixings, steps = np.float64(job.fixings), np.float64(job.steps)
    ladder = np.float64(job.steps * (job.steps + 1) // 2)
    still = job.spot * ((fixings - steps) / fixings) if job.kind == ASIAN_ARITHMETIC else 0.0
    part = steps / fixings if job.kind == ASIAN_GEOMETRIC else 1.0
    for i in range(BLOCK):
        if job.kind == ASIAN_ARITHMETIC:
            price = job.spot * (sum_s[i] / fixings)
            first, logs, times = price, job.spot * (sum_log[i] / fixings), job.spot * (sum_time[i] / fixings)
        elif job.kind == ASIAN_GEOMETRIC:
            log_price = (job.drift * ladder + job.diffusion * sum_w[i]) / fixings
            price = job.spot * exp64(log_price)
            first, logs, times = price, price * log_price, price * (ladder / fixings)
        else:
            log_price = job.drift * steps + job.diffusion * w[i]
            price = job.spot * exp64(log_price)
            first, logs, times = price, price * log_price, price * steps
        moved = part * (first - still)
        strike = job.strike
        if job.kind == LOOKBACK_DISCRETE or job.kind == LOOKBACK_CONTINUOUS:
            log_extreme = scale * (job.barrier - job.side * lowest[i])
            extreme = job.spot * exp64(log_extreme)
            beyond = extreme if lowest[i] < 0.0 else 0.0
            own = extreme if job.moves else beyond
            if job.form == FLOATING_STRIKE:
                moved = first - beyond
                first, logs, times = first - own, logs - beyond * log_extreme, times - beyond * sum_time[i]
                strike = extreme
            else:
                price, first, moved = extreme, own, beyond
                logs, times = beyond * log_extreme, beyond * sum_time[i]
        inside = job.sign * (price - strike)
        factor = job.discount * job.sign if inside > 0.0 else 0.0
        greeks[0, i] = factor * first / job.spot
        greeks[1, i] = factor * ((logs - job.tilt * times) / job.volatility)
        value = job.discount * _positive_part(inside)
        greeks[3, i] = factor * (job.step * times) - job.maturity * value
        if job.kind == EUROPEAN or job.kind == LOOKBACK_CONTINUOUS:
            nearer = factor * (0.5 * (logs + job.drift * times) / job.maturity)
        else:
            pull = job.diffusion * front[i]
            kept = exp64(-part * pull) if job.kind != LOOKBACK_DISCRETE else 0.0
            inside = job.sign * (still + (price - still) * kept - strike)
            without = job.discount * job.sign * (moved * kept) if inside > 0.0 else 0.0
            nearer = (factor * moved * job.drift + (factor * moved - without) * (0.5 * pull)) / job.step
        greeks[2, i] = job.rate * value - nearer
    for greek in range(4):
        values = greeks[greek]
        for i in range(live, BLOCK):
            values[i] = 0.0
        if job.mirrored:
            _average_pairs(values)
        sums[SUMS + 2 * greek + 1] = _sum_of_products(values, values, scratch)
        sums[SUMS + 2 * greek] = tree_sum(values)


@inner
def _count(job, live, w, counts):  # type: ignore[no-untyped-def]
    """Count the terminal prices of the first `live` simulated paths in bins; values beyond an end count in the end
    bin."""
    for i in range(live):
        place = w[i] * job.bins_per_unit + BINS / 2
        counts[np.int64(min(max(place, 0.0), BINS - 1.0))] += np.uint32(1)
