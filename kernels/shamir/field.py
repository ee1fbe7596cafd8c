"""The two prime fields of Shamir's shares, in plain integers: Lagrange's weights, and error correction."""

from collections.abc import Iterable, Sequence
from typing import Literal

Field = Literal["m31", "m61"]

# Mersenne primes: a product is reduced by a shift and an addition.
PRIME: dict[str, int] = {"m31": 2**31 - 1, "m61": 2**61 - 1}
DTYPE: dict[str, Literal["uint32", "uint64"]] = {"m31": "uint32", "m61": "uint64"}


def weights(prime: int, x: Sequence[int], at: Sequence[int]) -> list[list[int]]:
    """Shares' Lagrange weights: for each point of `at` the w with f(point) = sum w[i] f(x[i]) mod p, deg f < len(x).

    The points of `x` and those of `at` must all be different mod p.
    """
    inverse = [pow(_product(prime, (one - other for other in x if other != one)), -1, prime) for one in x]
    rows = []
    for point in at:
        whole = _product(prime, (point - one for one in x))
        rows.append([whole * of * pow(point - one, -1, prime) % prime for one, of in zip(x, inverse, strict=True)])
    return rows


def wrong_words(prime: int, x: Sequence[int], words: Sequence[int], threshold: int) -> set[int] | None:
    """The places of the wrong words among the shares of one secret; None if over (len(x) - threshold) // 2 are wrong.

    Gao, "A new algorithm for decoding Reed-Solomon codes" (2003): interpolate all the words, then run Euclid's
    algorithm with the polynomial that is zero at every x, and stop half way.
    """
    before, now = _through_zeros(prime, x), _interpolate(prime, x, words)
    v_before: list[int] = []
    v_now = [1]
    while 2 * (len(now) - 1) >= len(x) + threshold:
        quotient, rest = _divide(prime, before, now)
        before, now = now, rest
        v_before, v_now = v_now, _subtract(prime, v_before, _multiply(prime, quotient, v_now))
    polynomial, rest = _divide(prime, now, v_now)
    if rest or len(polynomial) > threshold:
        return None
    wrong = {i for i, one in enumerate(x) if _value(prime, polynomial, one) != words[i]}
    return wrong if 2 * len(wrong) <= len(x) - threshold else None


def _product(prime: int, factors: Iterable[int]) -> int:
    result = 1
    for factor in factors:
        result = result * factor % prime
    return result


# A polynomial is the list of its coefficients, the constant first and the last not zero.
_Polynomial = list[int]


def _through_zeros(prime: int, x: Sequence[int]) -> _Polynomial:
    """The polynomial that is zero at every share's x: the product of all (X - x[i])."""
    result = [1]
    for one in x:
        result = _subtract(prime, [0, *result], [one * c for c in result])
    return result


def _interpolate(prime: int, x: Sequence[int], words: Sequence[int]) -> _Polynomial:
    """The polynomial through all shares' points, by Newton's divided differences: term i makes it right at point i."""
    result: _Polynomial = []
    basis = [1]
    for one, word in zip(x, words, strict=True):
        missing = (word - _value(prime, result, one)) * pow(_value(prime, basis, one), -1, prime)
        result = _subtract(prime, result, [-missing * c for c in basis])
        basis = _subtract(prime, [0, *basis], [one * c for c in basis])
    return result


def _value(prime: int, polynomial: _Polynomial, at: int) -> int:
    result = 0
    for coefficient in reversed(polynomial):
        result = (result * at + coefficient) % prime
    return result


def _subtract(prime: int, a: _Polynomial, b: _Polynomial) -> _Polynomial:
    size = max(len(a), len(b))
    return _trimmed([(one - other) % prime for one, other in zip(_longer(a, size), _longer(b, size), strict=True)])


def _multiply(prime: int, a: _Polynomial, b: _Polynomial) -> _Polynomial:
    result = [0] * (len(a) + len(b))
    for i, one in enumerate(a):
        for j, other in enumerate(b):
            result[i + j] += one * other
    return _trimmed([c % prime for c in result])


def _divide(prime: int, a: _Polynomial, b: _Polynomial) -> tuple[_Polynomial, _Polynomial]:
    """Quotient and remainder of two polynomials, for the correction of shares."""
    rest, leading = list(a), pow(b[-1], -1, prime)
    quotient = [0] * max(0, len(a) - len(b) + 1)
    for at in reversed(range(len(quotient))):
        factor = quotient[at] = rest[at + len(b) - 1] * leading % prime
        for i, c in enumerate(b):
            rest[at + i] = (rest[at + i] - factor * c) % prime
    return _trimmed(quotient), _trimmed(rest)


def _longer(a: _Polynomial, size: int) -> _Polynomial:
    return a + [0] * (size - len(a))


def _trimmed(a: _Polynomial) -> _Polynomial:
    while a and a[-1] == 0:
        a.pop()
    return a
