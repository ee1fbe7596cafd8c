"""Secret sharing (Shamir 1979): any `threshold` shares of a 32-byte secret recover it, and fewer reveal nothing.

A secret is five limbs of 52 bits, little-endian, each the value at 0 of a random polynomial over the field of
2**61 - 1 elements. A share is the five values at the holder's x, each a little-endian word of 8 bytes.
"""

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import combinations
from operator import mul

PRIME = 2**61 - 1
SECRET_BYTES = 32
SHARE_BYTES = 40

_LIMBS, _BITS = 5, 52


class InconsistentShares(ValueError):
    """The Shamir shares do not lie on one polynomial, or its secret is not 32 bytes.

    `odd` is the x of the share that does not fit, if exactly one can be identified.
    """

    def __init__(self, message: str, odd: int | None = None) -> None:
        super().__init__(message)
        self.odd = odd


def split(secret: bytes, threshold: int, xs: Sequence[int]) -> dict[int, bytes]:
    """Return a Shamir share of a client's secret, 40 bytes, for each x. Raises ValueError for a secret that is not 32
    bytes, a threshold outside 2 to len(xs), or an x that is repeated or outside 1 to 2**61 - 2."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, got {len(secret)}")
    if not 2 <= threshold <= len(xs):
        raise ValueError(f"threshold {threshold} of {len(xs)} shares is outside 2 to {len(xs)}")
    _check_places(xs)
    whole = int.from_bytes(secret, "little")
    polynomials = [
        ((whole >> _BITS * limb) & (2**_BITS - 1), *(secrets.randbelow(PRIME) for _ in range(threshold - 1)))
        for limb in range(_LIMBS)
    ]
    shares = {}
    for x in xs:
        powers = _powers(x, threshold)
        shares[x] = b"".join(_word(sum(map(mul, polynomial, powers)) % PRIME) for polynomial in polynomials)
    return shares


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret of `threshold` or more Shamir shares, by x.

    More shares than `threshold` are checked against each other; shares that were changed pass with probability 2**-61.
    Raises ValueError for too few shares, for an x outside 1 to 2**61 - 2 or words outside the field, and
    InconsistentShares where the shares do not fit together.
    """
    if not 2 <= threshold <= len(shares):
        raise ValueError(f"{len(shares)} shares of a secret that takes {threshold}, 2 at least")
    xs = tuple(sorted(shares))
    _check_places(xs)
    words = list(zip(*(_read(x, shares[x]) for x in xs), strict=True))  # by limb
    if _faulty(xs, words, threshold):
        raise _inconsistent(xs, words, threshold)
    at_zero = _at_zero(xs[:threshold])
    whole = 0
    for limb, values in enumerate(words):
        value = sum(map(mul, values, at_zero)) % PRIME
        if value >> min(_BITS, 8 * SECRET_BYTES - _BITS * limb):
            raise InconsistentShares(f"{len(xs)} shares hide no 32 bytes: limb {limb} has more bits than it can")
        whole |= value << _BITS * limb
    return whole.to_bytes(SECRET_BYTES, "little")


def commitment(round_id: str, kind: str, owner: int, recipient: int, share: bytes) -> bytes:
    """Return the 32 bytes by which `owner` commits to the share of its `kind` of secret that `recipient` holds.

    SHA-256("warpdesk/secagg/v1/commit" || round id || kind || owner || recipient || share): texts after their length
    in one byte, ids as little-endian words of 8 bytes. A share is random enough to hide behind a plain digest.
    """
    texts = b"".join(bytes([len(text)]) + text for text in (round_id.encode(), kind.encode()))
    ids = owner.to_bytes(8, "little") + recipient.to_bytes(8, "little")
    return sha256(b"warpdesk/secagg/v1/commit" + texts + ids + share).digest()


def _check_places(xs: Sequence[int]) -> None:
    if len(set(xs)) < len(xs):
        raise ValueError(f"{len(xs)} shares have {len(set(xs))} places: each has one of its own")
    if outside := [x for x in xs if not 1 <= x < PRIME]:
        raise ValueError(f"x = {outside[0]} is outside 1 to 2**61 - 2: at 0 lies the secret")


@lru_cache(maxsize=4096)
def _powers(x: int, count: int) -> tuple[int, ...]:
    powers = [1]
    for _ in range(count - 1):
        powers.append(powers[-1] * x % PRIME)
    return tuple(powers)


@lru_cache(maxsize=64)
def _at_zero(xs: tuple[int, ...]) -> tuple[int, ...]:
    """The Lagrange weights of the Shamir shares at 0: the sum of weight * share is the polynomial's value at 0."""
    inverse = _inverse_differences(xs)
    whole = 1
    for x in xs:
        whole = whole * -x % PRIME
    return tuple(whole * weight * pow(-x, -1, PRIME) % PRIME for x, weight in zip(xs, inverse, strict=True))


@lru_cache(maxsize=64)
def _check(xs: tuple[int, ...], threshold: int) -> tuple[int, ...]:
    """Weights whose sum with the Shamir shares is 0 for every polynomial of a degree below `threshold`.

    A random word of the dual code (MacWilliams and Sloane 1977, chapter 10): the sum is 0 for other shares only where
    a random polynomial happens to be a root of their difference. Nobody but this process knows it.
    """
    random = [secrets.randbelow(PRIME) for _ in range(len(xs) - threshold)]
    values = [sum(map(mul, random, _powers(x, len(random)))) for x in xs]
    return tuple(weight * value % PRIME for weight, value in zip(_inverse_differences(xs), values, strict=True))


@lru_cache(maxsize=64)
def _inverse_differences(xs: tuple[int, ...]) -> tuple[int, ...]:
    weights = []
    for x in xs:
        product = 1
        for other in xs:
            if other != x:
                product = product * (x - other) % PRIME
        weights.append(pow(product, -1, PRIME))
    return tuple(weights)


def _faulty(xs: tuple[int, ...], words: Sequence[Sequence[int]], threshold: int) -> bool:
    if len(xs) == threshold:
        return False
    check = _check(xs, threshold)
    return any(sum(map(mul, values, check)) % PRIME for values in words)


def _inconsistent(xs: tuple[int, ...], words: Sequence[Sequence[int]], threshold: int) -> InconsistentShares:
    """Name the Shamir share without which the others fit together, if there is exactly one and they are more than
    enough."""
    fitting: list[int] = []
    if len(xs) > threshold + 1:
        for others in combinations(range(len(xs)), len(xs) - 1):
            rest = [[values[at] for at in others] for values in words]
            if not _faulty(tuple(xs[at] for at in others), rest, threshold):
                fitting += set(range(len(xs))) - set(others)
    if len(fitting) == 1:
        odd = xs[fitting[0]]
        return InconsistentShares(f"the share at x = {odd} does not fit the other {len(xs) - 1}", odd)
    return InconsistentShares(f"{len(xs)} shares do not fit together, and {threshold} of them cannot tell which is odd")


def _word(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _read(x: int, share: bytes) -> tuple[int, ...]:
    if len(share) != SHARE_BYTES:
        raise ValueError(f"the share at x = {x} has {len(share)} bytes, not {SHARE_BYTES}")
    words = tuple(int.from_bytes(share[at : at + 8], "little") for at in range(0, SHARE_BYTES, 8))
    if max(words) >= PRIME:
        raise ValueError(f"the share at x = {x} has a word outside the field of 2**61 - 1")
    return words
