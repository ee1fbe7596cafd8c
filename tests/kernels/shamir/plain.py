"""Shamir's scheme in a few lines of plain integers, written from the paper: what the kernels are compared with."""

from collections.abc import Sequence

import numpy as np

from warpdesk_server.kernels.shamir.field import PRIME


def evaluate(prime: int, coefficients: Sequence[int], x: int) -> int:
    return sum(c * x**power for power, c in enumerate(coefficients)) % prime


def interpolate(prime: int, points: Sequence[tuple[int, int]]) -> int:
    """The value at 0 of the polynomial through the points (x, y), by fractions mod p."""
    total = 0
    for x, y in points:
        over, under = 1, 1
        for other, _ in points:
            if other != x:
                over, under = over * -other, under * (x - other)
        total += y * over * pow(under, -1, prime)
    return total % prime


def plain_shares(field: str, threshold: int, x: Sequence[int], size: int) -> list[list[int]]:
    """Shares at `x` of random polynomials. Of the first all coefficients are p - 1, the secret of the second is the
    largest that is not negative."""
    prime, random = PRIME[field], np.random.default_rng([threshold, size])
    polynomials = [[prime - 1] * threshold]
    polynomials += [[int(c) for c in random.integers(0, prime, threshold)] for _ in range(size - 1)]
    if size > 1:
        polynomials[1][0] = prime // 2
    return [[evaluate(prime, polynomial, one) for polynomial in polynomials] for one in x]
