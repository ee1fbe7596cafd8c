"""The compiled loops of hierarchical risk parity: distances, a tree of clusters, its leaves, and weights by halves."""

import math

import numpy as np
from numba import njit

from warpdesk_server.kernels.cpu.compiled import inner

SINGLE, COMPLETE, AVERAGE = range(3)


@njit(cache=True, nogil=True)
def distances(covariance, out):  # type: ignore[no-untyped-def]
    """The distance sqrt((1 - correlation) / 2) of each pair of assets."""
    size = len(covariance)
    for i in range(size):
        for j in range(size):
            correlation = covariance[i, j] / (math.sqrt(covariance[i, i]) * math.sqrt(covariance[j, j]))
            out[i, j] = 0.0 if i == j else math.sqrt(0.5 * max(0.0, 1.0 - max(-1.0, correlation)))


@njit(cache=True, nogil=True)
def distances_of_columns(given, out):  # type: ignore[no-untyped-def]
    """The Euclidean distance of each pair of columns of a symmetric matrix."""
    size = len(given)
    for i in range(size):
        row = out[i]
        for j in range(i + 1, size):
            row[j] = 0.0
        for k in range(size):
            own, others = given[k, i], given[k]
            for j in range(i + 1, size):
                difference = own - others[j]
                row[j] += difference * difference
        row[i] = 0.0
        for j in range(i + 1, size):
            row[j] = math.sqrt(row[j])
            out[j, i] = row[j]


@inner
def _find_nearest(distance, there, i, nearest, bound):  # type: ignore[no-untyped-def]
    """Note the nearest cluster after the i-th that is still there, the first of equally near ones, and its distance."""
    best, least = -1, np.inf
    for j in range(i + 1, len(there)):
        if distance[i, j] < least and there[j]:
            best, least = j, distance[i, j]
    nearest[i], bound[i] = best, least


@njit(cache=True, nogil=True)
def cluster(distance, linkage, merges):  # type: ignore[no-untyped-def]
    """The tree of clusters by joining the nearest two, of equally near ones those with the first places.

    A cluster has the place of its first asset. `distance` is overwritten. A row of `merges` has SciPy's form: the two
    clusters, the smaller number first, their distance and how many assets they have; row r makes cluster assets + r.

    A cluster whose nearest one was joined to another has no distance below its `bound`, and looks for its nearest only
    once that is the least of all (Muellner, "Modern hierarchical, agglomerative clustering algorithms", 2011).
    """
    size = len(distance)
    there, counts = np.full(size, True), np.ones(size)
    numbers, nearest, bound = np.arange(size), np.empty(size, np.int64), np.empty(size)
    for i in range(size):
        _find_nearest(distance, there, i, nearest, bound)
    for merge in range(size - 1):
        first, second = 0, -1
        while second < 0:
            for i in range(size):
                if bound[i] < bound[first]:
                    first = i
            second = nearest[first]
            if second < 0:
                _find_nearest(distance, there, first, nearest, bound)
                first = 0
        own, other = counts[first], counts[second]
        merges[merge, 0] = min(numbers[first], numbers[second])
        merges[merge, 1] = max(numbers[first], numbers[second])
        merges[merge, 2] = distance[first, second]
        merges[merge, 3] = counts[first] = own + other
        numbers[first] = size + merge
        there[second], bound[second] = False, np.inf
        for k in range(size):
            if not there[k] or k == first:
                continue
            one, two = distance[first, k], distance[second, k]
            if linkage == SINGLE:
                new = min(one, two)
            elif linkage == COMPLETE:
                new = max(one, two)
            else:
                new = (own * one + other * two) / (own + other)
            distance[first, k] = distance[k, first] = new
            moved = nearest[k] == first or nearest[k] == second
            if k < first and (new < bound[k] or (new == bound[k] and (moved or first < nearest[k]))):
                bound[k] = new
                nearest[k] = first if nearest[k] >= 0 else -1
            elif moved:
                nearest[k] = -1
        _find_nearest(distance, there, first, nearest, bound)


@njit(cache=True, nogil=True)
def leaves(merges, order):  # type: ignore[no-untyped-def]
    """The assets from left to right under the tree, the cluster with the smaller number on the left."""
    size = len(order)
    stack = np.empty(size + 1, np.int64)
    stack[0] = 2 * size - 2
    depth, count = 1, 0
    while depth > 0:
        depth -= 1
        node = stack[depth]
        if node < size:
            order[count] = node
            count += 1
        else:
            stack[depth] = np.int64(merges[node - size, 1])
            stack[depth + 1] = np.int64(merges[node - size, 0])
            depth += 2


@inner
def _variance(covariance, order, begin, end, marginal):  # type: ignore[no-untyped-def]
    """The variance of the assets at some places of the order, weighted by their inverse variances."""
    total = 0.0
    for a in range(begin, end):
        marginal[a] = 0.0
        total += 1.0 / covariance[order[a], order[a]]
    for a in range(begin, end):
        row = covariance[order[a]]
        weight = 1.0 / row[order[a]] / total
        for b in range(begin, end):
            marginal[b] += weight * row[order[b]]
    variance = 0.0
    for a in range(begin, end):
        variance += 1.0 / covariance[order[a], order[a]] / total * marginal[a]
    return variance


@njit(cache=True, nogil=True)
def bisect(covariance, order, weights):  # type: ignore[no-untyped-def]
    """The weights by halves: a part of the order is cut in the middle, its weight divided by inverse variances."""
    size = len(order)
    marginal = np.empty(size)
    begins, ends = np.empty(size + 1, np.int64), np.empty(size + 1, np.int64)
    weights[:] = 1.0
    begins[0], ends[0], depth = 0, size, 1
    while depth > 0:
        depth -= 1
        begin, end = begins[depth], ends[depth]
        if end - begin < 2:
            continue
        middle = begin + (end - begin) // 2
        left = _variance(covariance, order, begin, middle, marginal)
        right = _variance(covariance, order, middle, end, marginal)
        part = right / (left + right) if left + right > 0.0 else 0.5
        for a in range(begin, end):
            weights[order[a]] *= part if a < middle else 1.0 - part
        begins[depth], ends[depth] = middle, end
        begins[depth + 1], ends[depth + 1] = begin, middle
        depth += 2
