"""The loop over splits of `overfitting` on the CPU: which set is best in one half, and what rank it has in the other.

Sums over the blocks of a half are two entries of tables: of every subset of the first blocks, and of the others. Sets
go side by side, a tile at a time, so that the tables of a tile stay in the core's cache.
"""

import numpy as np
from numba import njit

from warpdesk_server.kernels.backtest.metrics import STILL
from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.cpu.lanes import (
    LANES,
    keep,
    keep_alive,
    load,
    pointer,
    spread,
    store,
    where_below,
    where_equal,
    which_below,
)

TILE = 64  # sets


@inner
def _fill(sums, first, begin, count, table):  # type: ignore[no-untyped-def]
    """Sums over every subset of so many blocks from `first` on, of a tile's sets: table (subsets, TILE)."""
    last = sums.shape[0] - 1 - begin  # which stands in for those after it
    table[0, :] = 0.0
    for subset in range(1, 1 << count):
        top = 0
        while subset >> (top + 1):
            top += 1
        rest = subset ^ (1 << top)
        for k in range(TILE):
            table[subset, k] = table[rest, k] + sums[begin + min(k, last), first + top]


@inner
def _sum(row):  # type: ignore[no-untyped-def]
    total = 0.0
    for lane in range(LANES):
        total += row[lane]
    return total


@inner
def _bars_of(half, sizes):  # type: ignore[no-untyped-def]
    bars = 0.0
    for block in range(sizes.size):
        if half >> block & 1:
            bars += sizes[block]
    return bars


@inner
def _score(one, two, row, half, sizes, low):  # type: ignore[no-untyped-def]
    """The score of one set, by the additions of the tables."""
    s_front = s_back = q_front = q_back = 0.0
    for block in range(sizes.size):
        if half >> block & 1:
            if block < low:
                s_front += one[row, block]
                q_front += two[row, block]
            else:
                s_back += one[row, block]
                q_back += two[row, block]
    s, q = s_front + s_back, q_front + q_back
    bars = _bars_of(half, sizes)
    spare = bars * q - s * s
    return s * abs(s) / spare if spare > STILL * bars * (bars * q) else 0.0


@njit(cache=True, error_model="numpy", nogil=True)
def try_splits(one, two, halves, sizes, first, end, chosen, below, equal):  # type: ignore[no-untyped-def]
    """Try the splits from `first` to `end` - 1: sums of returns and of their squares (sets, blocks), halves as bits.

    A set's score in a half of n bars is s |s| / (n q - s s), for the sums s of its returns and q of their squares. It
    grows with the Sharpe ratio, and is 0 where nothing moved. Of equal scores the first set is chosen.
    """
    sets, blocks = one.shape
    low = blocks // 2
    subsets = 1 << low
    tables = np.empty((4, subsets, TILE))
    best, own = np.empty(end - first), np.empty(end - first)
    row, scores = np.empty(LANES), np.empty(TILE)
    at, show, of_tile = pointer(tables), pointer(row), pointer(scores)
    size = subsets * TILE
    zero, ones = spread(0.0), spread(1.0)
    for passes in range(2):
        best[:] = -np.inf
        for begin in range(0, sets, TILE):
            count = min(TILE, sets - begin)
            _fill(one, 0, begin, low, tables[0])
            _fill(one, low, begin, low, tables[1])
            _fill(two, 0, begin, low, tables[2])
            _fill(two, low, begin, low, tables[3])
            for split in range(first, end):
                half = halves[split]
                if passes:
                    half = (1 << blocks) - 1 - half
                bars = spread(_bars_of(half, sizes))
                still = spread(STILL) * bars
                front, back = (half & (subsets - 1)) * TILE, (half >> low) * TILE + size
                most, less, same = spread(-np.inf), zero, zero
                mine = spread(own[split - first])
                for k in range(0, TILE, LANES):
                    s = load(at, front + k) + load(at, back + k)
                    q = load(at, front + 2 * size + k) + load(at, back + 2 * size + k)
                    spare = bars * q - s * s
                    signed = s * where_below(s, zero, zero - s, s)
                    score = where_below(still * (bars * q), spare, signed / spare, zero)
                    if passes:
                        less = less + keep(where_below(score, mine, ones, zero), count - k)
                        same = same + keep(where_equal(score, mine, ones, zero), count - k)
                    else:
                        most = where_below(most, score, score, most)
                        store(of_tile, k, score)
                if passes:
                    store(show, 0, less)
                    below[split - first] += np.int64(_sum(row))
                    store(show, 0, same)
                    equal[split - first] += np.int64(_sum(row))
                elif which_below(spread(best[split - first]), most):
                    for k in range(count):
                        if scores[k] > best[split - first]:
                            best[split - first], chosen[split - first] = scores[k], begin + k
        if passes == 0:
            for split in range(first, end):
                half = (1 << blocks) - 1 - halves[split]
                own[split - first] = _score(one, two, chosen[split - first], half, sizes, low)
    keep_alive(tables, row, scores)
