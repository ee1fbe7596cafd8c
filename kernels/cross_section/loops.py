"""The compiled loops of the operations across assets: each computes some bars.

A bar is a row of `assets` float64 numbers, NaN for an asset that is not there. They stand in the order of `groups.py`,
so that a group is a run of neighbours. `first` has for each place of a row the first place of its group, or -1 for no
group: one row for all bars, or one for each.
"""

import math

import numpy as np
from numba import njit

from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.cpu.lanes import keep_alive, load, pointer, spread, store
from warpdesk_server.kernels.cross_section.spec import AVERAGE, COLLINEAR, DENSE, FIRST, MAX
from warpdesk_server.kernels.device.reduce import tree_sum

LANES = 32  # of a sum: as many as a warp has threads

_BYTE = np.uint64(255)
_SIGN = np.uint64(1 << 63)


@inner
def _fill(x, begin, end, value):  # type: ignore[no-untyped-def]
    """Set some places to a number. A loop: Numba takes much longer to compile an assignment to a slice."""
    for k in range(begin, end):
        x[k] = value


@njit(cache=True, nogil=True)
def gather(x, begin, order, first, rows):  # type: ignore[no-untyped-def]
    """Copy the bars of x (assets, time) from `begin` on to rows (bars, assets), -0.0 as +0.0."""
    one = x.shape[1] == 1  # the same numbers for every bar
    for k in range(rows.shape[1]):
        for bar in range(rows.shape[0]):
            at = bar if order.shape[0] > 1 else 0
            source = 0 if one else begin + bar
            rows[bar, k] = np.float64(x[order[at, k], source]) + 0.0 if first[at, k] >= 0 else np.nan


@njit(cache=True, nogil=True)
def scatter(rows, order, begin, out):  # type: ignore[no-untyped-def]
    """Copy rows (bars, assets) to the bars of out (assets, time) from `begin` on."""
    for k in range(rows.shape[1]):
        for bar in range(rows.shape[0]):
            out[order[bar if order.shape[0] > 1 else 0, k], begin + bar] = rows[bar, k]


@inner
def sort(keys, places, count, other_keys, other_places, counts):  # type: ignore[no-untyped-def]
    """Sort the first `count` unsigned integers and their places, equal ones as they were, by bytes from the lowest."""
    for byte in range(8):
        for value in range(256):
            counts[byte, value] = 0
    for i in range(count):
        key = keys[i]
        for byte in range(8):
            counts[byte, (key >> np.uint64(8 * byte)) & _BYTE] += 1
    for byte in range(8):
        shift = np.uint64(8 * byte)
        if count == 0 or counts[byte, (keys[0] >> shift) & _BYTE] == count:
            continue  # all have this byte
        before = 0
        for value in range(256):
            here = counts[byte, value]
            counts[byte, value] = before
            before += here
        for i in range(count):
            key = keys[i]
            value = (key >> shift) & _BYTE
            to = counts[byte, value]
            counts[byte, value] = to + 1
            other_keys[to] = key
            other_places[to] = places[i]
        keys, other_keys = other_keys, keys
        places, other_places = other_places, places
    return keys, places


@njit(cache=True, nogil=True)
def group_orders(labels, order, first):  # type: ignore[no-untyped-def]
    """Write for each bar of labels (bars, assets) the order of its assets by label, and the first place of each group.

    Assets of equal labels keep their order. Those with a negative label come last, with first = -1.
    """
    bars, assets = labels.shape
    keys, places = np.empty((2, assets), np.uint64), np.empty((2, assets), np.int32)
    counts = np.empty((8, 256), np.int32)
    for bar in range(bars):
        changed = bar == 0
        for asset in range(assets):
            changed = changed or labels[bar, asset] != labels[bar - 1, asset]
            keys[0, asset] = np.uint64(labels[bar, asset])  # negative ones are the largest
            places[0, asset] = asset
        if not changed:
            for k in range(assets):
                order[bar, k], first[bar, k] = order[bar - 1, k], first[bar - 1, k]
            continue
        by_label, sorted_assets = sort(keys[0], places[0], assets, keys[1], places[1], counts)
        begin = 0
        for k in range(assets):
            if k > 0 and by_label[k] != by_label[k - 1]:
                begin = k
            order[bar, k] = sorted_assets[k]
            first[bar, k] = begin if by_label[k] < _SIGN else -1


@inner
def _sorted_groups(row, first, ends, keys, places, counts, sorted_places):  # type: ignore[no-untyped-def]
    """Sort the numbers of each group. The group from place s on has its places, in order of their numbers, in
    sorted_places[s : ends[s]]; equal numbers are in the order of their places."""
    count = 0
    bits = row.view(np.uint64)
    for k in range(row.size):
        if first[k] == k:
            ends[k] = k
        if row[k] == row[k]:
            keys[0, count] = ~bits[k] if bits[k] & _SIGN else bits[k] | _SIGN
            places[0, count] = k
            count += 1
    _, by_number = sort(keys[0], places[0], count, keys[1], places[1], counts)
    for i in range(count):
        place = by_number[i]
        group = first[place]
        sorted_places[ends[group]] = place
        ends[group] += 1


@njit(cache=True, nogil=True)
def ranks(rows, first, ties, percentile):  # type: ignore[no-untyped-def]
    """Replace the numbers of each group by their ranks."""
    bars, assets = rows.shape
    keys, places = np.empty((2, assets), np.uint64), np.empty((2, assets), np.int32)
    ends, found, counts = np.empty(assets, np.int32), np.empty(assets, np.int32), np.empty((8, 256), np.int32)
    for bar in range(bars):
        row, groups = rows[bar], first[bar if first.shape[0] > 1 else 0]
        _sorted_groups(row, groups, ends, keys, places, counts, found)
        for start in range(assets):
            if groups[start] != start:
                continue
            end = ends[start]
            at, distinct = start, 0
            while at < end:
                stop = at + 1
                while stop < end and row[found[stop]] == row[found[at]]:
                    stop += 1
                distinct += 1
                below, upto = np.float64(at - start), np.float64(stop - start)
                rank = below + 1.0
                if ties == AVERAGE:
                    rank = (below + 1.0 + upto) / 2.0
                elif ties == MAX:
                    rank = upto
                elif ties == DENSE:
                    rank = np.float64(distinct)
                for k in range(at, stop):
                    row[found[k]] = np.float64(k - start) + 1.0 if ties == FIRST else rank
                at = stop
            if percentile:
                whole = np.float64(distinct if ties == DENSE else end - start)
                for k in range(start, end):
                    row[found[k]] /= whole


@inner
def _quantile(row, found, start, count, share):  # type: ignore[no-untyped-def]
    """The quantile of sorted numbers as NumPy's default interpolates it."""
    place = share * np.float64(count - 1)
    below = math.floor(place)
    part = place - below
    low = row[found[start + np.int64(below)]]
    high = row[found[start + min(np.int64(below) + 1, count - 1)]]
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1.0 - part)


@njit(cache=True, nogil=True)
def winsorise(rows, first, lower, upper):  # type: ignore[no-untyped-def]
    """Clip the numbers of each group to two of its quantiles."""
    bars, assets = rows.shape
    keys, places = np.empty((2, assets), np.uint64), np.empty((2, assets), np.int32)
    ends, found, counts = np.empty(assets, np.int32), np.empty(assets, np.int32), np.empty((8, 256), np.int32)
    for bar in range(bars):
        row, groups = rows[bar], first[bar if first.shape[0] > 1 else 0]
        _sorted_groups(row, groups, ends, keys, places, counts, found)
        for start in range(assets):
            if groups[start] != start or ends[start] == start:
                continue
            count = ends[start] - start
            least = _quantile(row, found, start, count, lower)
            most = _quantile(row, found, start, count, upper)
            for k in range(start, ends[start]):
                value = row[found[k]]
                value = least if value < least else value
                row[found[k]] = most if value > most else value


@inner
def _dot(weights, a, b, begin, end, lanes):  # type: ignore[no-untyped-def]
    """The sum of weights * a * b over the places begin to end.

    Lane l adds the places begin + l, begin + l + 32, ... in this order, and lanes are added by halving.
    """
    whole, width = begin + (end - begin) // LANES * LANES, LANES
    if whole > begin:
        u, v, w = pointer(weights), pointer(a), pointer(b)
        s0 = s1 = s2 = s3 = spread(0.0)
        for at in range(begin, whole, LANES):
            s0 = s0 + load(u, at) * load(v, at) * load(w, at)
            s1 = s1 + load(u, at + 8) * load(v, at + 8) * load(w, at + 8)
            s2 = s2 + load(u, at + 16) * load(v, at + 16) * load(w, at + 16)
            s3 = s3 + load(u, at + 24) * load(v, at + 24) * load(w, at + 24)
        sums = pointer(lanes)
        store(sums, 0, s0)
        store(sums, 8, s1)
        store(sums, 16, s2)
        store(sums, 24, s3)
    else:
        width = 1
        while width < end - begin:
            width *= 2
        _fill(lanes, 0, width, 0.0)
    for k in range(whole, end):
        lanes[k - whole] += weights[k] * a[k] * b[k]
    keep_alive(weights, a, b)
    return tree_sum(lanes[:width])


@inner
def _subtract(x, factor, y):  # type: ignore[no-untyped-def]
    """x -= factor * y, rounded after the product and after the difference."""
    whole, factors = x.size // 8 * 8, spread(factor)
    target, source = pointer(x), pointer(y)
    for at in range(0, whole, 8):
        store(target, at, load(target, at) - factors * load(source, at))
    for k in range(whole, x.size):
        x[k] -= factor * y[k]
    keep_alive(x, y)


@inner
def _end_of_group(first, begin):  # type: ignore[no-untyped-def]
    end = begin + 1
    while end < first.size and first[end] == begin:
        end += 1
    return end


@inner
def _totals(weights, there, first, totals, lanes):  # type: ignore[no-untyped-def]
    """Write the total weight of each group at its first place, and return the number of groups that have one.

    Of a group without weight no asset is there.
    """
    begin = count = 0
    while begin < first.size and first[begin] >= 0:
        end = _end_of_group(first, begin)
        totals[begin] = _dot(weights, there, there, begin, end, lanes)
        if totals[begin] > 0.0:
            count += 1
        else:
            _fill(there, begin, end, 0.0)
        begin = end
    return count


@inner
def _demean(x, weights, there, first, totals, lanes):  # type: ignore[no-untyped-def]
    """Subtract from the numbers of each group their weighted mean. Numbers that are all equal leave exactly 0."""
    begin = 0
    while begin < x.size and first[begin] >= 0:
        end = _end_of_group(first, begin)
        one = begin
        while one < end and there[one] == 0.0:
            one += 1
        other = one + 1
        while other < end and (there[other] == 0.0 or x[other] == x[one]):
            other += 1
        if other >= end:
            _fill(x, begin, end, 0.0)
        else:
            mean = _dot(weights, x, there, begin, end, lanes) / totals[begin]
            for k in range(begin, end):
                x[k] -= mean
        begin = end


@njit(cache=True, nogil=True)
def zscores(rows, first, ddof):  # type: ignore[no-untyped-def]
    """Replace the numbers of each group by their distances from the mean in standard deviations."""
    bars, assets = rows.shape
    there, totals, lanes = np.empty(assets), np.empty(assets), np.empty(LANES)
    for bar in range(bars):
        row, groups = rows[bar], first[bar if first.shape[0] > 1 else 0]
        for k in range(assets):
            there[k] = 1.0 if row[k] == row[k] else 0.0
            row[k] = row[k] if row[k] == row[k] else 0.0
        _totals(there, there, groups, totals, lanes)
        for _ in range(2):  # the second time the mean of what rounding left
            _demean(row, there, there, groups, totals, lanes)
        begin = 0
        while begin < assets and groups[begin] >= 0:
            end = _end_of_group(groups, begin)
            deviation = np.nan
            if totals[begin] > ddof:
                deviation = math.sqrt(_dot(there, row, row, begin, end, lanes) / (totals[begin] - ddof))
            for k in range(begin, end):
                row[k] = row[k] / deviation if there[k] > 0.0 and deviation > 0.0 else np.nan
            begin = end
        _fill(row, begin, assets, np.nan)


@njit(cache=True, nogil=True)
def neutralise(columns, first, intercept, used):  # type: ignore[no-untyped-def]
    """Replace the numbers of columns[0] by their residuals. columns: numbers, weights, factors; each (bars, assets).

    used[bar] is the number of factors that were kept, 0 where there are too few assets for a regression.
    """
    factors, bars, assets = columns.shape[0] - 2, columns.shape[1], columns.shape[2]
    there, totals, lanes, norms = np.empty(assets), np.empty(assets), np.empty(LANES), np.empty(factors + 1)
    for bar in range(bars):
        groups, weights = first[bar if first.shape[0] > 1 else 0], columns[1, bar]
        _fill(there, 0, assets, 1.0)
        for column in range(factors + 2):
            for k in range(assets):
                if columns[column, bar, k] != columns[column, bar, k]:
                    there[k] = 0.0
        for k in range(assets):
            weights[k] = weights[k] if there[k] > 0.0 else 0.0
        unknowns = factors
        if intercept:
            unknowns += _totals(weights, there, groups, totals, lanes)
        for column in range(factors + 2):
            for k in range(assets):
                columns[column, bar, k] = columns[column, bar, k] if there[k] > 0.0 else 0.0
        used[bar] = 0
        for step in range(factors + 1):
            # The factors in their order, and the numbers last.
            x = columns[step + 2 if step < factors else 0, bar]
            before = _dot(weights, x, x, 0, assets, lanes)
            for _ in range(2):  # once leaves too much where factors are nearly collinear
                if intercept:
                    _demean(x, weights, there, groups, totals, lanes)
                for other in range(step):
                    if norms[other] > 0.0:
                        basis = columns[other + 2, bar]
                        _subtract(x, _dot(weights, basis, x, 0, assets, lanes) / norms[other], basis)
            norms[step] = _dot(weights, x, x, 0, assets, lanes)
            if not norms[step] > before * COLLINEAR:
                norms[step] = 0.0
            elif step < factors:
                used[bar] += 1
        equations = 0
        for k in range(assets):
            equations += weights[k] > 0.0
        if equations < unknowns:
            used[bar] = 0
        for k in range(assets):
            if there[k] == 0.0 or equations < unknowns:
                columns[0, bar, k] = np.nan
