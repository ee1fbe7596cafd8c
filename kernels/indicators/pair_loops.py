"""Windows over two series on the CPU (algebra.covariance, correlation, beta), at a cost independent of the window.

A row is cut into blocks of `period` bars as in windows.py, and differences are to the first bars of the later block.
The sums of the earlier block are added from its last bar back, those of the later block from its first bar on, one bar
after another. Where eight whole blocks lie ahead, they are run side by side, a lane each.
"""

from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.cpu.lanes import (
    LANES,
    after_1,
    load,
    loads,
    moved,
    root,
    spread,
    store,
    stores,
    transposed,
    where_below,
    where_equal,
)
from warpdesk_server.kernels.indicators.algebra import CORRELATION, COVARIANCE
from warpdesk_server.kernels.indicators.plan import SIDE_BY_SIDE, SUMS


@inner
def pair_range(x, y, period, part, kind, space, here, limit, out, zero, one, nan):  # type: ignore[no-untyped-def]
    """The statistic of windows of two series from `here`, where a block begins, to `limit`; pointers are to bar 0."""
    start = here
    while start < limit:
        # Vectors of eight bars reach up to seven beyond the last of eight blocks.
        if start > 0 and period <= SIDE_BY_SIDE and start + LANES * period + LANES <= limit:
            _eight_blocks(x, y, period, part, kind, space, start, out, zero, one, nan)
            start += LANES * period
        else:
            _block(x, y, period, part, kind, space, start, min(start + period, limit), out, zero, one, nan)
            start += period


@inner
def _shown(sums, part, kind, zeros, ones, nans):  # type: ignore[no-untyped-def]
    """The statistic from the sums of differences to the anchors; lanes may be any eight windows."""
    u, uu, v, vv, uv = sums
    together = uv - u * part * v
    if kind == COVARIANCE:
        shown = together * part
    else:
        other = vv - v * part * v
        below = where_below(other, zeros, zeros, other)  # rounding may leave less than nothing
        if kind == CORRELATION:
            own = uu - u * part * u
            below = root(where_below(own, zeros, zeros, own)) * root(below)
        shown = where_equal(below, zeros, nans, together / below)
        if kind == CORRELATION:  # rounding may leave more than 1
            shown = where_below(ones, shown, ones, shown)
            shown = where_below(shown, zeros - ones, zeros - ones, shown)
    return where_equal(shown, shown, shown, nans)


@inner
def _block(x, y, period, part, kind, space, start, stop, out, zero, one, nan):  # type: ignore[no-untyped-def]
    c, d, whole = x[start], y[start], -(-period // LANES) * LANES
    us, uus, vs = space, moved(space, whole), moved(space, 2 * whole)
    vvs, uvs = moved(space, 3 * whole), moved(space, 4 * whole)
    u, uu, v, vv, uv = zero, zero, zero, zero, zero
    for k in range(period - 1, -1, -1):
        us[k], uus[k], vs[k], vvs[k], uvs[k] = u, uu, v, vv, uv
        if start > 0:
            a, b = x[start - period + k] - c, y[start - period + k] - d
            u, uu, v, vv, uv = u + a, uu + a * a, v + b, vv + b * b, uv + a * b
    u, uu, v, vv, uv = zero, zero, zero, zero, zero
    for k in range(stop - start):
        a, b = x[start + k] - c, y[start + k] - d
        u, uu, v, vv, uv = u + a, uu + a * a, v + b, vv + b * b, uv + a * b
        us[k], uus[k], vs[k], vvs[k], uvs[k] = us[k] + u, uus[k] + uu, vs[k] + v, vvs[k] + vv, uvs[k] + uv
    for k in range(0, stop - start, LANES):
        sums = load(us, k), load(uus, k), load(vs, k), load(vvs, k), load(uvs, k)
        store(us, k, _shown(sums, spread(part), kind, spread(zero), spread(one), spread(nan)))
    for k in range(stop - start):
        out[start + k] = us[k] if start > 0 or k == period - 1 else nan


@inner
def _side_by_side(x, period, start, to):  # type: ignore[no-untyped-def]
    """Eight blocks from `start` on, a lane each; up to seven bars after each are taken along."""
    for k in range(0, period, LANES):
        stores(to, k * LANES, LANES, transposed(*loads(x, start + k, period)))


@inner
def _eight_blocks(x, y, period, part, kind, space, start, out, zero, one, nan):  # type: ignore[no-untyped-def]
    zeros, ones, nans, parts = spread(zero), spread(one), spread(nan), spread(part)
    xs = moved(space, SUMS * LANES * period)
    ys = moved(xs, LANES * (period + LANES))
    _side_by_side(x, period, start, xs)
    _side_by_side(y, period, start, ys)
    c, d = load(xs, 0), load(ys, 0)
    u, uu, v, vv, uv = zeros, zeros, zeros, zeros, zeros
    for k in range(period - 1, -1, -1):
        at, sums = k * LANES, moved(space, k * SUMS * LANES)
        store(sums, 0, u)
        store(sums, LANES, uu)
        store(sums, 2 * LANES, v)
        store(sums, 3 * LANES, vv)
        store(sums, 4 * LANES, uv)
        # The block before a lane's is the lane before, and for the first lane that before `start`.
        a = after_1(load(xs, at), spread(x[start - period + k])) - c
        b = after_1(load(ys, at), spread(y[start - period + k])) - d
        u, uu, v, vv, uv = u + a, uu + a * a, v + b, vv + b * b, uv + a * b
    u, uu, v, vv, uv = zeros, zeros, zeros, zeros, zeros
    for k in range(period):
        at, before = k * LANES, moved(space, k * SUMS * LANES)
        a, b = load(xs, at) - c, load(ys, at) - d
        u, uu, v, vv, uv = u + a, uu + a * a, v + b, vv + b * b, uv + a * b
        sums = (
            load(before, 0) + u,
            load(before, LANES) + uu,
            load(before, 2 * LANES) + v,
            load(before, 3 * LANES) + vv,
            load(before, 4 * LANES) + uv,
        )
        store(xs, at, _shown(sums, parts, kind, zeros, ones, nans))
    # From the end, and within eight bars from the first lane on: what a vector writes beyond its block is written once
    # more, by the block after it.
    for k in range((period - 1) // LANES * LANES, -1, -LANES):
        stores(out, start + k, period, transposed(*loads(xs, k * LANES, LANES)))
