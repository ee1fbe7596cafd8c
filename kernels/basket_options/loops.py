"""The compiled loops of basket options: 256 paths move back in time, are exercised or not, and are summed."""

import numpy as np
from numba import njit

from warpdesk_server.kernels.basket_options.plan import BEST_OF, WEIGHTED_SUM
from warpdesk_server.kernels.basket_options.spec import BLOCK
from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.device.elementary import exp64
from warpdesk_server.kernels.device.fused import fused
from warpdesk_server.kernels.device.normal import box_muller
from warpdesk_server.kernels.device.philox import philox4x32
from warpdesk_server.kernels.device.reduce import tree_sum

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
MOST_FUNCTIONS = 10
LEAST = -1e300  # below every price


@njit(cache=True, nogil=True)
def walk(  # type: ignore[no-untyped-def]
    job, tables, first, paths, begin, end, start, stop, stream, k0, k1, coefficients, kept, state, moments, sums, counts
):  # fmt: skip
    """Move the paths of blocks `begin` to `end` - 1 from date `start` down to date `stop` + 1.

    Path `first` is the first of block 0, and there are none from `paths` on. `stream` tells paths of a valuation (0)
    from those of a fit (1). `state` is as cpu._state makes it: with `kept`, of every block, else of one. With `kept`,
    moments[block] are the sums for the regression (spec.products) on the last date that is reached. Where `stop` is -1,
    sums[block] are those of the payments (spec.SUMS), and counts[k] the paths exercised on date k, 0 for never.
    """
    words = np.empty((4, BLOCK), dtype=np.uint32)
    rows = np.empty((MOST_FUNCTIONS + 1, BLOCK))
    x = np.empty(BLOCK)
    for block in range(begin, end):
        slot = block if kept else 0
        motion, feature, paid = state[0][slot], state[1][slot], state[2][slot]
        date, normals = state[3][slot], state[4][slot]
        path = np.uint64(first + block * BLOCK)
        live = min(BLOCK, paths - first - block * BLOCK)
        for k in range(start, stop, -1):
            if k == job.dates:
                for i in range(BLOCK):
                    paid[i] = 0.0
                    date[i] = 0
            else:
                _exercise(job, k + 1, tables.discounts[k + 1], coefficients[k + 1], feature, paid, date, rows, x)
            if k == 0:
                _settle(job, tables, live, motion, paid, date, rows, x, sums[block], counts)
            else:
                _draw(job, tables, k, path, stream, k0, k1, words, normals, motion)
                _observe(job, tables, k, motion, feature, x, rows)
        if kept and 0 <= stop < job.dates - 1:
            _regress(job, live, feature, paid, rows, x, moments[block])


@inner
def _draw(job, tables, k, path, stream, k0, k1, words, normals, motion):  # type: ignore[no-untyped-def]
    """Draw the motions of BLOCK paths on date k, given those on date k + 1.

    Normal m = (dates - k) assets + j is that of asset j; one counter (path low, path high, m / 4, stream) gives four.
    """
    shrink, spread = tables.shrinks[k], tables.spreads[k]
    for j in range(job.assets):
        m = (job.dates - k) * job.assets + j
        lane = m % 4
        if lane == 0:
            for i in range(BLOCK):
                p = np.uint64(path + np.uint64(i))
                a, b, c, d = philox4x32(p & LOW, p >> HALF, np.uint64(m // 4), np.uint64(stream), k0, k1)
                words[0, i] = a
                words[1, i] = b
                words[2, i] = c
                words[3, i] = d
            for pair in range(2):
                for i in range(BLOCK):
                    z0, z1 = box_muller(words[2 * pair, i], words[2 * pair + 1, i])
                    normals[2 * pair, i] = z0
                    normals[2 * pair + 1, i] = z1
        for i in range(BLOCK):
            before = motion[j, i] if k < job.dates else 0.0
            motion[j, i] = fused(shrink, before, spread * np.float64(normals[lane, i]))


@inner
def _observe(job, tables, k, motion, feature, x, top):  # type: ignore[no-untyped-def]
    """Write the features of BLOCK paths on date k: what exercise pays (below 0 out of the money), then prices.

    They are the greatest two prices of a sum, the second and third of a best, the least but one and two of a worst.
    """
    # Of a worst, prices are taken with a minus sign: the least is then the greatest.
    side = 1.0 if job.kind == WEIGHTED_SUM or job.kind == BEST_OF else -1.0
    total = feature[0]
    for i in range(BLOCK):
        total[i] = 0.0
        for place in range(3):
            top[place, i] = LEAST
    for asset in range(job.assets):
        for i in range(BLOCK):
            x[i] = tables.drifts[asset] * np.float64(k)
        for j in range(asset + 1):
            load = tables.loads[asset, j]
            for i in range(BLOCK):
                x[i] = fused(load, motion[j, i], x[i])
        base = tables.bases[asset]
        for i in range(BLOCK):
            x[i] = base * exp64(x[i])
            total[i] += x[i]
        if job.kind == WEIGHTED_SUM and job.features == 1:
            continue  # no price is asked for
        for i in range(BLOCK):
            rest = side * x[i]
            greatest = top[0, i]
            top[0, i] = rest if rest > greatest else greatest
            rest = greatest if rest > greatest else rest
            greatest = top[1, i]
            top[1, i] = rest if rest > greatest else greatest
            rest = greatest if rest > greatest else rest
            top[2, i] = rest if rest > top[2, i] else top[2, i]
    skip = 0 if job.kind == WEIGHTED_SUM else 1
    for i in range(BLOCK):
        value = total[i] if job.kind == WEIGHTED_SUM else side * top[0, i]
        feature[0, i] = job.sign * (value - job.strike)
    for f in range(1, job.features):
        for i in range(BLOCK):
            feature[f, i] = side * top[f - 1 + skip, i] - job.strike


@inner
def _basis(job, feature, basis):  # type: ignore[no-untyped-def]
    """Write the functions of BLOCK paths: 1, t, t^2, t^3 of the payment t; u, u^2, t u; v, v^2, u v of two prices."""
    t = feature[0]
    for i in range(BLOCK):
        basis[0, i] = 1.0
        basis[1, i] = t[i]
        basis[2, i] = t[i] * t[i]
        basis[3, i] = basis[2, i] * t[i]
    for f in range(1, job.features):
        for i in range(BLOCK):
            u = feature[f, i]
            basis[3 * f + 1, i] = u
            basis[3 * f + 2, i] = u * u
            basis[3 * f + 3, i] = feature[f - 1, i] * u


@inner
def _exercise(job, k, discount, coefficients, feature, paid, date, basis, waiting):  # type: ignore[no-untyped-def]
    """Exercise those of BLOCK paths on date k whose payment is more than what waiting is worth, as of today."""
    for i in range(BLOCK):
        waiting[i] = 0.0
    if k < job.dates:
        _basis(job, feature, basis)
        for p in range(job.functions):
            for i in range(BLOCK):
                waiting[i] = fused(coefficients[p], basis[p, i], waiting[i])
    for i in range(BLOCK):
        payment = discount * feature[0, i]
        now = payment > 0.0 and payment > waiting[i]
        paid[i] = payment if now else paid[i]
        date[i] = np.int32(k) if now else date[i]


@inner
def _regress(job, live, feature, paid, basis, x, moments):  # type: ignore[no-untyped-def]
    """Write the sums of products of the functions, and of these with what later exercise pays, in the money alone."""
    _basis(job, feature, basis)
    for p in range(job.functions):
        for i in range(BLOCK):
            basis[p, i] = basis[p, i] if feature[0, i] > 0.0 and i < live else 0.0
    for i in range(BLOCK):
        basis[job.functions, i] = paid[i]
    _add_products(basis, job.functions, 0, job.functions, x, moments)


@inner
def _settle(job, tables, live, motion, paid, date, rows, x, sums, counts):  # type: ignore[no-untyped-def]
    """Write the sums listed in spec.SUMS over the first `live` paths of a block, and count their dates of exercise."""
    payment, control = rows[1], rows[2]
    for i in range(BLOCK):
        control[i] = 0.0
        x[i] = 0.0
    if job.controlled:
        for j in range(job.assets):
            for i in range(BLOCK):
                x[i] = fused(tables.control_loads[j], motion[j, i], x[i])
        for i in range(BLOCK):
            value = tables.discounts[job.dates] * (job.sign * (job.control_base * exp64(x[i]) - job.strike))
            control[i] = value if value > 0.0 else 0.0
    paying = 0
    control_paying = 0
    for i in range(BLOCK):
        payment[i] = paid[i] if i < live else 0.0
        paying += payment[i] > 0.0
        control_paying += control[i] > 0.0 and i < live
        control[i] = control[i] - job.control if i < live else 0.0
        left = payment[i] - job.weight * control[i]
        rows[0, i] = 1.0
        x[i] = left * left * left
    for i in range(live):
        counts[date[i]] += 1
    sums[5] = np.float64(paying)
    sums[6] = np.float64(control_paying)
    sums[7] = tree_sum(x)
    _add_products(rows, 3, 1, 2, x, sums)


@inner
def _add_products(rows, count, first, last, x, sums):  # type: ignore[no-untyped-def]
    """Write the sums of products of each of `count` rows with itself and those after it, from `first` to `last`."""
    at = 0
    for p in range(count):
        a = rows[p]
        for q in range(max(p, first), last + 1):
            b = rows[q]
            # As tree_sum of the products, with three halvings at a time, and so without a store between them.
            for i in range(32):
                near = (a[i] * b[i] + a[i + 128] * b[i + 128]) + (a[i + 64] * b[i + 64] + a[i + 192] * b[i + 192])
                far = (a[i + 32] * b[i + 32] + a[i + 160] * b[i + 160]) + (
                    a[i + 96] * b[i + 96] + a[i + 224] * b[i + 224]
                )
                x[i] = near + far
            for i in range(8):
                x[i] = (x[i] + x[i + 16]) + (x[i + 8] + x[i + 24])
            sums[at] = ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))
            at += 1
