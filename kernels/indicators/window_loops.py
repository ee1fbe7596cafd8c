"""Indicators over windows on the CPU: the sums of windows.py, eight bars at a time."""

from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.cpu.fetch import fetch
from warpdesk_server.kernels.cpu.lanes import (
    LANES,
    after_1,
    after_2,
    after_4,
    before_1,
    before_2,
    before_4,
    first,
    keep,
    last,
    load,
    moved,
    root,
    spread,
    store,
    where_at_least,
    where_at_most,
    where_below,
    where_equal,
)
from warpdesk_server.kernels.indicators.windows import EIGHT, GROUP

assert LANES == EIGHT  # noqa: S101
AHEAD = 512  # bars: memory that is prefetched so early is in the cache when it is needed
WORTH = 32_768  # bars: fewer are computed in the time it takes to wake a thread


def space_of(period: int) -> int:
    """The numbers of scratch memory that a thread needs: eight, and two sums for each bar of a block.

    It is longer than needed, so that threads share no cache line.
    """
    return 2 * -(-period // EIGHT) * EIGHT + 4 * EIGHT


@inner
def _load(x, at, size, spare):  # type: ignore[no-untyped-def]
    """Load eight bars of prices from `at` on as a vector; those beyond the end of `x` are undefined."""
    return _load_where(at + EIGHT <= size, x, at, size, spare)


@inner
def _load_where(whole, x, at, size, spare):  # type: ignore[no-untyped-def]
    """Load eight bars of prices from `at` on as a vector; `whole` says that all exist, which a loop back checks only
    once."""
    if whole:
        return load(x, at)
    for k in range(min(size - at, EIGHT)):
        spare[k] = x[at + k]
    return load(spare, 0)


@inner
def _store(out, at, end, spare, lanes):  # type: ignore[no-untyped-def]
    """Store an indicator's vector of up to eight bars from `at` on, those before `end`."""
    if at + EIGHT <= end:
        store(out, at, lanes)
    else:
        store(spare, 0, lanes)
        for k in range(end - at):
            out[at + k] = spare[k]


@inner
def _scan(lanes, zeros):  # type: ignore[no-untyped-def]
    lanes = lanes + after_1(lanes, zeros)
    lanes = lanes + after_2(lanes, zeros)
    return lanes + after_4(lanes, zeros)


@inner
def _scan_back(lanes, zeros):  # type: ignore[no-untyped-def]
    lanes = lanes + before_1(lanes, zeros)
    lanes = lanes + before_2(lanes, zeros)
    return lanes + before_4(lanes, zeros)


@inner
def _carry(eights, total, e, g, h, zero):  # type: ignore[no-untyped-def]
    """A window's three partial sums (e, g, h) before the next eight bars; `eights` are done, or in S still to do."""
    e = e + total
    if eights % GROUP == 0:
        g, e = g + e, zero
        if eights % (GROUP * GROUP) == 0:
            h, g = h + g, zero
    return e, g, h


@inner
def _plain(lanes, nan):  # type: ignore[no-untyped-def]
    """An indicator's numbers with every NaN replaced by one NaN, so that bytes do not depend on the operation that made
    it."""
    return where_equal(lanes, lanes, lanes, nan)


@inner
def _moments(anchor, u, v, part, zeros):  # type: ignore[no-untyped-def]
    """Mean and deviation of windows, from sums of differences to the anchor (u) and of their squares (v).

    Both are NaN where one is, also for one bar.
    """
    mean = u * part
    squares = v - mean * u
    # Rounding may make this negative, which becomes 0. If v overflowed, this may be NaN, which becomes v.
    squares = where_at_least(squares, zeros, squares, where_below(squares, zeros, zeros, v))
    mean = anchor + mean
    return mean, where_equal(mean, mean, root(squares * part), mean)


@inner
def _strength(gains, losses, flat, hundred, nans, zeros):  # type: ignore[no-untyped-def]
    total = gains + losses
    # total - total is NaN if gains or losses overflowed.
    shown = _plain(hundred * (gains / total) + (total - total), nans)
    return where_equal(total, zeros, flat, shown)


@inner
def _gains(change, zeros):  # type: ignore[no-untyped-def]
    """Changes of prices that are gains, else 0. A NaN is neither <= 0 nor >= 0, so it stays in gains and in losses."""
    return where_at_most(change, zeros, zeros, change)


@inner
def _losses(change, zeros):  # type: ignore[no-untyped-def]
    return where_at_least(change, zeros, zeros, zeros - change)


# A range of a row's results: x and the results are pointers to bar 0 of the row, `size` says how many bars may be read
# from there on. `here` is the first bar: of a block, if the period is not short. `constants` has eight zeros, NaN
# and 100; `space` has room for eight numbers and for two tables of a block.


@inner
def short_means(x, period, part, constants, space, here, limit, size, out):  # type: ignore[no-untyped-def]
    spare, nan, zeros = space, constants[EIGHT], load(constants, 0)
    nans, parts = spread(nan), spread(part)
    for at in range(here, min(period - 1, limit)):
        out[at] = nan
    for at in range(max(here, period - 1), limit, EIGHT):
        whole = at + EIGHT <= size
        newest, u = _load_where(whole, x, at, size, spare), zeros
        for m in range(1, period):
            u = u + (_load_where(whole, x, at - m, size, spare) - newest)
        _store(out, at, limit, spare, _plain(newest + u * parts, nans))


@inner
def short_deviations(x, period, part, constants, space, here, limit, size, out, mid):  # type: ignore[no-untyped-def]
    spare, nan, zeros = space, constants[EIGHT], load(constants, 0)
    nans, parts = spread(nan), spread(part)
    for at in range(here, min(period - 1, limit)):
        out[at] = nan
        mid[at] = nan
    for at in range(max(here, period - 1), limit, EIGHT):
        whole = at + EIGHT <= size
        newest, u, v = _load_where(whole, x, at, size, spare), zeros, zeros
        for m in range(1, period):
            difference = _load_where(whole, x, at - m, size, spare) - newest
            u = u + difference
            v = v + difference * difference
        mean, deviation = _moments(newest, u, v, parts, zeros)
        _store(out, at, limit, spare, _plain(deviation, nans))
        _store(mid, at, limit, spare, _plain(mean, nans))


@inner
def short_strengths(x, period, flat, constants, space, here, limit, size, out):  # type: ignore[no-untyped-def]
    spare, nan, hundred, zeros = space, constants[EIGHT], spread(constants[EIGHT + 1]), load(constants, 0)
    nans, flats = spread(nan), spread(flat)
    for at in range(here, min(period, limit)):
        out[at] = nan
    for at in range(max(here, period), limit, EIGHT):
        whole = at + EIGHT <= size
        later, gains, losses = _load_where(whole, x, at, size, spare), zeros, zeros
        for m in range(1, period + 1):
            earlier = _load_where(whole, x, at - m, size, spare)
            change = later - earlier
            gains, losses = gains + _gains(change, zeros), losses + _losses(change, zeros)
            later = earlier
        _store(out, at, limit, spare, _strength(gains, losses, flats, hundred, nans, zeros))


@inner
def mean_blocks(x, period, part, constants, space, here, limit, size, out):  # type: ignore[no-untyped-def]
    spare, before, eights = space, moved(space, EIGHT), -(-period // EIGHT)
    zero, nan, zeros = constants[0], constants[EIGHT], load(constants, 0)
    nans, parts = spread(nan), spread(part)
    for start in range(here, limit, period):
        anchor, stop = spread(x[start]), min(start + period, limit)
        if start == 0:
            for k in range(eights):
                store(before, k * EIGHT, zeros)
        else:
            e, g, h = zero, zero, zero
            k = eights - 1
            at = start - period + k * EIGHT + 1
            u = _scan_back(keep(_load(x, at, size, spare) - anchor, period - 1 - k * EIGHT), zeros)
            store(before, k * EIGHT, u)
            while k > 0:
                e, g, h = _carry(k, first(u), e, g, h, zero)
                at, k = at - EIGHT, k - 1
                u = _scan_back(load(x, at) - anchor, zeros)
                store(before, k * EIGHT, spread((h + g) + e) + u)
        e, g, h = zero, zero, zero
        for k in range(-(-(stop - start) // EIGHT)):
            at = start + k * EIGHT
            fetch(x, at + AHEAD)
            fetch(out, at + AHEAD)
            u = _scan(_load(x, at, size, spare) - anchor, zeros)
            total = load(before, k * EIGHT) + (spread((h + g) + e) + u)
            _store(out, at, limit, spare, _plain(anchor + total * parts, nans))
            e, g, h = _carry(k + 1, last(u), e, g, h, zero)
    if here == 0:
        for k in range(min(period - 1, limit)):
            out[k] = nan


@inner
def deviation_blocks(x, period, part, constants, space, here, limit, size, out, mid):  # type: ignore[no-untyped-def]
    spare, before_u, eights = space, moved(space, EIGHT), -(-period // EIGHT)
    before_v = moved(before_u, eights * EIGHT)
    zero, nan, zeros = constants[0], constants[EIGHT], load(constants, 0)
    nans, parts = spread(nan), spread(part)
    for start in range(here, limit, period):
        anchor, stop = spread(x[start]), min(start + period, limit)
        if start == 0:
            for k in range(eights):
                store(before_u, k * EIGHT, zeros)
                store(before_v, k * EIGHT, zeros)
        else:
            e_u, g_u, h_u, e_v, g_v, h_v = zero, zero, zero, zero, zero, zero
            k = eights - 1
            at = start - period + k * EIGHT + 1
            u = keep(_load(x, at, size, spare) - anchor, period - 1 - k * EIGHT)
            v = _scan_back(u * u, zeros)
            u = _scan_back(u, zeros)
            store(before_u, k * EIGHT, u)
            store(before_v, k * EIGHT, v)
            while k > 0:
                e_u, g_u, h_u = _carry(k, first(u), e_u, g_u, h_u, zero)
                e_v, g_v, h_v = _carry(k, first(v), e_v, g_v, h_v, zero)
                at, k = at - EIGHT, k - 1
                u = load(x, at) - anchor
                v = _scan_back(u * u, zeros)
                u = _scan_back(u, zeros)
                store(before_u, k * EIGHT, spread((h_u + g_u) + e_u) + u)
                store(before_v, k * EIGHT, spread((h_v + g_v) + e_v) + v)
        e_u, g_u, h_u, e_v, g_v, h_v = zero, zero, zero, zero, zero, zero
        for k in range(-(-(stop - start) // EIGHT)):
            at = start + k * EIGHT
            fetch(x, at + AHEAD)
            fetch(out, at + AHEAD)
            fetch(mid, at + AHEAD)
            u = _load(x, at, size, spare) - anchor
            v = _scan(u * u, zeros)
            u = _scan(u, zeros)
            sum_u = load(before_u, k * EIGHT) + (spread((h_u + g_u) + e_u) + u)
            sum_v = load(before_v, k * EIGHT) + (spread((h_v + g_v) + e_v) + v)
            mean, deviation = _moments(anchor, sum_u, sum_v, parts, zeros)
            _store(out, at, limit, spare, _plain(deviation, nans))
            _store(mid, at, limit, spare, _plain(mean, nans))
            e_u, g_u, h_u = _carry(k + 1, last(u), e_u, g_u, h_u, zero)
            e_v, g_v, h_v = _carry(k + 1, last(v), e_v, g_v, h_v, zero)
    if here == 0:
        for k in range(min(period - 1, limit)):
            out[k] = nan
            mid[k] = nan


@inner
def strength_blocks(x, period, flat, constants, space, here, limit, size, out):  # type: ignore[no-untyped-def]
    spare, before_u, eights = space, moved(space, EIGHT), -(-period // EIGHT)
    before_v = moved(before_u, eights * EIGHT)
    zero, nan, hundred = constants[0], constants[EIGHT], spread(constants[EIGHT + 1])
    zeros, nans, flats = load(constants, 0), spread(nan), spread(flat)
    for start in range(here, limit, period):
        stop = min(start + period, limit)
        if start == 0:  # bar 0 has no change, and every window of the first block holds it
            for at in range(start, stop):
                out[at] = nan
            continue
        e_u, g_u, h_u, e_v, g_v, h_v = zero, zero, zero, zero, zero, zero
        k = eights - 1
        at = start - period + k * EIGHT + 1
        change = keep(_load(x, at, size, spare) - load(x, at - 1), period - 1 - k * EIGHT)
        u, v = _scan_back(_gains(change, zeros), zeros), _scan_back(_losses(change, zeros), zeros)
        store(before_u, k * EIGHT, u)
        store(before_v, k * EIGHT, v)
        while k > 0:
            e_u, g_u, h_u = _carry(k, first(u), e_u, g_u, h_u, zero)
            e_v, g_v, h_v = _carry(k, first(v), e_v, g_v, h_v, zero)
            at, k = at - EIGHT, k - 1
            change = load(x, at) - load(x, at - 1)
            u, v = _scan_back(_gains(change, zeros), zeros), _scan_back(_losses(change, zeros), zeros)
            store(before_u, k * EIGHT, spread((h_u + g_u) + e_u) + u)
            store(before_v, k * EIGHT, spread((h_v + g_v) + e_v) + v)
        e_u, g_u, h_u, e_v, g_v, h_v = zero, zero, zero, zero, zero, zero
        for k in range(-(-(stop - start) // EIGHT)):
            at = start + k * EIGHT
            fetch(x, at + AHEAD)
            fetch(out, at + AHEAD)
            change = _load(x, at, size, spare) - _load(x, at - 1, size, spare)
            u, v = _scan(_gains(change, zeros), zeros), _scan(_losses(change, zeros), zeros)
            gains = load(before_u, k * EIGHT) + (spread((h_u + g_u) + e_u) + u)
            losses = load(before_v, k * EIGHT) + (spread((h_v + g_v) + e_v) + v)
            _store(out, at, limit, spare, _strength(gains, losses, flats, hundred, nans, zeros))
            e_u, g_u, h_u = _carry(k + 1, last(u), e_u, g_u, h_u, zero)
            e_v, g_v, h_v = _carry(k + 1, last(v), e_v, g_v, h_v, zero)
