"""The Brownian bridge by which a simulation's Sobol points become paths: which date each dimension decides, and how.

Dimension 0 decides W at expiry, each next one W in the middle of an interval that is left, given its ends (Moskowitz
and Caflisch, Mathematical and Computer Modelling 23, 1996): between W_l and W_r, W_m is normal with the mean on the
line between them and the variance (m - l) (r - m) / (r - l). So the first dimensions, in which Sobol points are best,
carry most of the variance. Dimensions beyond those of the table are ordinary random numbers.
"""

from collections import deque
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.device.philox import philox4x32
from warpdesk_server.kernels.device.sobol import BITS, DIMENSIONS, directions
from warpdesk_server.kernels.monte_carlo.spec import REPLICATES, MonteCarloParams

STREAM = 2  # of Philox, the counter's last word, for scrambles: 0 has normals, 1 the uniform numbers of lookbacks


class Bridge(NamedTuple):
    """The bridge of a simulation by Sobol points, in the order in which dates are decided; else empty."""

    dates: NDArray[np.int32]  # (steps, 3): the date that is decided, those left and right of it; 0 is the start
    weights: NDArray[np.float64]  # (steps, 3): of W at the left date, at the right date, and of the normal
    directions: NDArray[np.uint32]  # (dimensions, 32)
    scrambles: NDArray[np.uint32]  # (REPLICATES, dimensions): the seeds
    bits: int  # of a replicate's 2^bits points


def dimensions(params: MonteCarloParams) -> int:
    """How many of a simulation's dimensions are Sobol points'."""
    return min(params.steps, DIMENSIONS)


def bridge(params: MonteCarloParams, k0: int, k1: int) -> Bridge:
    """The bridge of a simulation, with scrambles from its key."""
    if params.sampling != "sobol":
        empty = np.empty((0, BITS), np.uint32)
        return Bridge(np.empty((0, 3), np.int32), np.empty((0, 3)), empty, empty, 0)
    rows = [(params.steps, 0, 0)]
    weights = [(0.0, 0.0, sqrt(params.steps))]
    open_intervals = deque([(0, params.steps)])
    while open_intervals:
        left, right = open_intervals.popleft()
        if right - left > 1:
            middle = (left + right) // 2
            width = right - left
            rows.append((middle, left, right))
            from_left, from_right = (right - middle) / width, (middle - left) / width
            weights.append((from_left, from_right, sqrt((middle - left) * (right - middle) / width)))
            open_intervals += [(left, middle), (middle, right)]
    count = dimensions(params)
    key = np.uint64(k0), np.uint64(k1)
    scrambles = [
        [
            philox4x32(np.uint64(at), np.uint64(replicate), np.uint64(0), np.uint64(STREAM), *key)[0]
            for at in range(count)
        ]
        for replicate in range(REPLICATES)
    ]
    return Bridge(
        np.array(rows, np.int32),
        np.array(weights),
        directions()[:count],
        np.array(scrambles, np.uint32),
        (params.paths // REPLICATES).bit_length() - 1,
    )
