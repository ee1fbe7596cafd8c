"""The table of a scheme of american_option: points in time of the boundary, and rules of quadrature.

The table is made in 30 digits, so that its bytes are the same on every machine.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.vanilla_options.spec import SCHEMES, Scheme

_DIGITS = 30


MOST_NODES = max(scheme.nodes for scheme in SCHEMES.values())


@cache
def table(scheme: Scheme) -> NDArray[np.float64]:
    """The table of a scheme, read-only.

    Square roots of the nodes' times, from 1 down to the least above 0. Then sines, weights and rows of interpolation
    of the quadrature of all nodes, node by node, and of the price. A quadrature is over angles t from 0 to pi/2, where
    a time before a node at tau is tau sin(t)^2; the time of the boundary is tau cos(t)^2. Weights have the factor
    2 cos(t). A row of interpolation has the weight of each node's value; it is 0 at time 0.
    """
    from mpmath.ctx_mp import MPContext  # type: ignore[import-untyped]  # here, because it is slow to import

    mp = MPContext()
    mp.dps = _DIGITS
    roots = [(1 + mp.cos(i * mp.pi / scheme.nodes)) / 2 for i in range(scheme.nodes)]
    angles, weights = _gauss_legendre(mp, scheme.points)
    last_angles, last_weights = _gauss_legendre(mp, scheme.last)
    numbers = [
        *roots,
        *map(mp.sin, angles),
        *weights,
        *(each for root in roots for angle in angles for each in _interpolation(mp, root * mp.cos(angle), roots)),
        *map(mp.sin, last_angles),
        *last_weights,
        *(each for angle in last_angles for each in _interpolation(mp, mp.cos(angle), roots)),
    ]
    found = np.array([float(number) for number in numbers])
    found.flags.writeable = False
    return found


def _gauss_legendre(mp: Any, count: int) -> tuple[list[Any], list[Any]]:
    """Angles from 0 to pi/2 by the rule of Gauss and Legendre, and its weights times 2 cos(angle)."""
    angles, weights = [], []
    for i in range(count):
        x = mp.cos(mp.pi * (count - i - mp.mpf(1) / 4) / (count + mp.mpf(1) / 2))
        for _ in range(5):
            before, value = mp.mpf(1), x
            for k in range(2, count + 1):
                before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
            slope = count * (x * value - before) / (x * x - 1)
            x = x - value / slope
        angles.append((1 + x) * mp.pi / 4)
        weights.append(mp.pi / (1 - x * x) / slope**2 * mp.cos(angles[-1]))
    return angles, weights


def _interpolation(mp: Any, at: Any, roots: list[Any]) -> list[Any]:
    """The weights of values at `roots`, the Chebyshev points of [0, 1] but 0, in their polynomial at `at`."""
    signs = [mp.mpf(-1) ** i / (2 if i in (0, len(roots)) else 1) for i in range(len(roots) + 1)]
    parts = [sign / (at - root) for sign, root in zip(signs, [*roots, 0], strict=True)]
    total = mp.fsum(parts)
    return [part / total for part in parts[:-1]]
