"""The masking graph of a secure aggregation round: a ring on which each client masks with its nearest neighbours.

Bell, Bonawitz, Gascon, Lepoint and Raykova, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead" (CCS
2020): masking and sharing secrets with a few random neighbours protects as well as with everybody, except with a
probability that is chosen. The tails are exact sums of integers, nothing is rounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb, floor

FEWEST_CLIENTS = 3  # of two, each could take its own vector off the sum

COMPLETE = 50  # up to here everybody is everybody's neighbour: it costs little, and bears almost half dropping out

# Default assumptions about the clients.
CORRUPT = Fraction(1, 3)  # largest part that tells the server all it knows
DROP = Fraction(1, 5)  # largest part that drops out


@dataclass(frozen=True)
class Graph:
    """`degree` neighbours of each client in the masking graph; of them and the client itself any `threshold` recover
    its secrets."""

    degree: int
    threshold: int


@lru_cache(maxsize=256)
def parameters(
    n: int,
    security_bits: int = 40,
    failure_bits: int = 20,
    corrupt: Fraction = CORRUPT,
    drop: Fraction = DROP,
) -> Graph:
    """Return the masking graph's smallest even degree, and for it the smallest threshold, that protects `n` clients in
    random order.

    With at most floor(corrupt * n) clients telling the server what they know and floor(drop * n) dropping out, all of
    this holds:
    - except with probability 2**-security_bits, every honest client has fewer than `threshold` corrupt neighbours, and
      the honest clients that stay are connected (half of the probability for each);
    - except with probability 2**-failure_bits, every client's secrets can be recovered;
    - the threshold is more than half of the sharing set, the neighbours and the client itself, so that no two disjoint
      groups can be told different things about one client.

    Where no degree below n - 1 will do, and up to COMPLETE clients, everybody is everybody's neighbour, which protects
    against any number of corrupt clients below the threshold. Raises ValueError for fewer than three clients or for
    parts outside 0 to 1.
    """
    if n < FEWEST_CLIENTS:
        raise ValueError(f"{n} clients: of two, each could take its own vector off the sum; 3 are the least")
    if not (0 <= corrupt < 1 and 0 <= drop < 1):
        raise ValueError(f"corrupt {corrupt} and drop {drop} are parts of all clients, from 0 to below 1")
    bad, gone = floor(Fraction(corrupt) * n), floor(Fraction(drop) * n)
    for degree in range(2, n - 1, 2) if n > COMPLETE else ():
        if _disconnected(n, degree, bad + gone) * 2 ** (security_bits + 1) <= 1:
            threshold = max(majority(degree + 1), _safe(n, degree, bad, Fraction(1, n * 2 ** (security_bits + 1))))
            if threshold <= degree and _lost(n, degree, gone, threshold) * n * 2**failure_bits <= 1:
                return Graph(degree, threshold)
    return Graph(n - 1, max(majority(n), bad + 1))


def majority(size: int) -> int:
    """The smallest threshold of shares above half of a sharing set of `size` clients."""
    return size // 2 + 1


def neighbours(ring: Sequence[int], degree: int) -> dict[int, tuple[int, ...]]:
    """Return each client's neighbours in the masking graph, half of them on either side of it on the ring, or all
    others.

    `ring` has to be in an order drawn at random, after it was settled who takes part: who knew it before could crowd
    around a victim. Raises ValueError for an odd degree below len(ring) - 1, one above it, or a client named twice.
    """
    n = len(ring)
    if len(set(ring)) < n:
        raise ValueError(f"a ring names each client once, got {n} names of {len(set(ring))} clients")
    if not 0 < degree < n or (degree % 2 and degree != n - 1):
        raise ValueError(f"degree {degree} is neither an even number below {n - 1} nor {n - 1}, everybody else")
    if degree == n - 1:
        return {client: tuple(other for other in ring if other != client) for client in ring}
    steps = [step for step in range(-degree // 2, degree // 2 + 1) if step]
    return {client: tuple(ring[(at + step) % n] for step in steps) for at, client in enumerate(ring)}


def _disconnected(n: int, degree: int, missing: int) -> Fraction:
    """Bound the probability that `missing` clients of the masking ring in random order leave the others in two parts.

    That takes degree / 2 missing clients in a row at two places. There are n * (n - degree - 1) / 2 pairs of places
    that do not overlap, and the bound is their sum.
    """
    if missing < degree:
        return Fraction(0)
    places = Fraction(n * (n - degree - 1), 2)
    return places * Fraction(comb(missing, degree), comb(n, degree))


def _safe(n: int, degree: int, bad: int, probability: Fraction) -> int:
    """The smallest t such that t or more of an honest client's masking neighbours are corrupt with at most
    `probability`."""
    allowed = probability * comb(n - 1, degree)
    ways, most = 0, min(degree, bad)
    for corrupt in range(most, -1, -1):
        ways += comb(bad, corrupt) * comb(n - 1 - bad, degree - corrupt)
        if ways > allowed:
            return corrupt + 1
    return 0


def _lost(n: int, degree: int, gone: int, threshold: int) -> Fraction:
    """The probability that too few of a client's sharing set are left to recover its secrets, whether it is gone or
    stayed."""
    return max(
        _fewer(n - 1, n - gone, degree, threshold) if gone else Fraction(0),
        _fewer(n - 1, n - 1 - gone, degree, threshold - 1),  # it has a share of its own
    )


def _fewer(of: int, staying: int, drawn: int, than: int) -> Fraction:
    """The probability that fewer than `than` of `drawn` clients of the masking graph are among the `staying`
    (hypergeometric)."""
    ways = sum(comb(staying, left) * comb(of - staying, drawn - left) for left in range(min(than, drawn + 1)))
    return Fraction(ways, comb(of, drawn))
