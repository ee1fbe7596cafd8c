"""Benchmark cases of secret sharing beside NumPy: vectorised, in cache-sized blocks, with the latest safe reduction.

The peers do what a careful user of NumPy would do and no more: their random words are PCG64's, which is quicker than a
cipher and protects nothing, and they check neither words nor extra shares.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.benchmarks.cases import Call, Case, Goal, Inputs, Sizes, measured, numpy_peer, random
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.shamir.field import DTYPE, PRIME, weights

_BLOCK = 1 << 15  # elements
_31, _61 = np.uint64(31), np.uint64(61)
_P31, _P61 = np.uint64(2**31 - 1), np.uint64(2**61 - 1)
_LOW30 = np.uint64(2**30 - 1)

Words = NDArray[np.uint64]


def numpy_share(field: str, threshold: int, shares: int, values: NDArray[np.int64]) -> NDArray[Any]:
    """Shares (shares, n) of integers (n,), by Horner's rule: for small x sums take t steps before they are reduced."""
    generator, prime = random(), PRIME[field]
    if (prime if field == "m31" else 2**31) * sum(shares**k for k in range(threshold)) >= 2**64:
        raise ValueError(f"{shares} shares of threshold {threshold} would have to be reduced on the way")
    out = np.empty((shares, values.size), DTYPE[field])
    for first in range(0, values.size, _BLOCK):
        secrets = values[first : first + _BLOCK]
        polynomials = generator.integers(0, prime, (threshold, secrets.size), np.uint64)
        polynomials[0] = np.where(secrets < 0, secrets + prime, secrets)
        if field == "m31":
            for x in range(1, shares + 1):
                out[x - 1, first : first + _BLOCK] = _reduced31(_horner(polynomials, np.uint64(x)))
        else:
            low, high = polynomials & _P31, polynomials >> _31
            for x in range(1, shares + 1):
                halves = _horner(low, np.uint64(x)), _horner(high, np.uint64(x))
                out[x - 1, first : first + _BLOCK] = _reduced61(*halves)
    return out


def numpy_reconstruct(
    field: str, x: tuple[int, ...], threshold: int, shares: NDArray[Any], check: bool = False
) -> NDArray[np.int64]:
    """The integers that the first `threshold` rows stand for; `check` compares the others. Raises ValueError."""
    prime = PRIME[field]
    rows = weights(prime, x[:threshold], [0, *(x[threshold:] if check else ())])
    out = np.empty(shares.shape[1], np.int64)
    combine = _combined31 if field == "m31" else _combined61
    for first in range(0, out.size, _BLOCK):
        block = shares[:, first : first + _BLOCK].astype(np.uint64)
        for extra, row in zip(block[threshold:], rows[1:], strict=False):
            if not np.array_equal(combine(row, block), extra):
                raise ValueError("the shares disagree")
        secrets = combine(rows[0], block).astype(np.int64)
        out[first : first + _BLOCK] = np.where(secrets > prime // 2, secrets - prime, secrets)
    return out


def _horner(polynomials: Words, x: np.uint64) -> Words:
    total = polynomials[-1].copy()
    for coefficient in polynomials[-2::-1]:
        total *= x
        total += coefficient
    return total


def _below(total: Words, prime: np.uint64) -> Words:
    return np.minimum(total, total - prime)  # which wraps round where it is below


def _reduced31(total: Words) -> Words:
    total = (total & _P31) + (total >> _31)
    return _below((total & _P31) + (total >> _31), _P31)


def _reduced61(low: Words, high: Words) -> Words:
    total = (low & _P61) + (low >> _61) + (high >> np.uint64(30)) + ((high & _LOW30) << _31)
    return _below((total & _P61) + (total >> _61), _P61)


def _combined31(row: list[int], block: Words) -> Words:
    total = np.zeros(block.shape[1], np.uint64)
    for weight, words in zip(row, block, strict=False):
        product = words * np.uint64(weight)
        total += (product & _P31) + (product >> _31)
    return _reduced31(total)


def _combined61(row: list[int], block: Words) -> Words:
    total = np.zeros(block.shape[1], np.uint64)
    for weight, words in zip(row, block, strict=False):
        a, b = np.uint64(weight & (2**31 - 1)), np.uint64(weight >> 31)
        low, high = words & _P31, words >> _31
        part = _reduced61(low * a, low * b + high * a) + ((high * b) << np.uint64(1))
        total += (part & _P61) + (part >> _61)
        total = (total & _P61) + (total >> _61)
    return _below(total, _P61)


def _values(size: int) -> NDArray[np.int64]:
    return random().integers(-(2**29), 2**29, size)


def _share(sizes: Sizes, field: str, threshold: int, shares: int, size: int, goal: Goal | None = None) -> Case:
    def peer(inputs: Inputs) -> Call:
        return partial(numpy_share, field, threshold, shares, inputs["values"])

    return Case(
        "shamir_share",
        f"{field}, {threshold} of {shares}, {measured(size)}",
        {"field": field, "threshold": threshold, "shares": shares},
        lambda: {"values": _values(size)},
        sizes,
        (numpy_peer(peer, note="PCG64's words"),),
        goal or Goal(),
        moved=size * (8 + shares * (4 if field == "m31" else 8)),
        keystream=size * (threshold - 1) * (4 if field == "m31" else 8),
    )


def _reconstruct(sizes: Sizes, field: str, threshold: int, given: int, size: int, goal: Goal | None = None) -> Case:
    x = tuple(range(1, given + 1))

    def inputs() -> Inputs:
        operation = OPERATIONS["shamir_share"]
        params = operation.params.model_validate({"field": field, "threshold": threshold, "shares": given})
        return {"shares": operation.implementation("cpu")(params, _values(size), key=bytes(32))["shares"]}

    def peer(inputs: Inputs) -> Call:
        return partial(numpy_reconstruct, field, x, threshold, inputs["shares"], given > threshold)

    return Case(
        "shamir_reconstruct",
        f"{field}, {given} shares of threshold {threshold}, {measured(size)}",
        {"field": field, "threshold": threshold, "x": x},
        inputs,
        sizes,
        (numpy_peer(peer),),
        goal or Goal(),
        moved=size * (8 + given * (4 if field == "m31" else 8)),
    )


_FIVE = Goal({"NumPy": 5.0})
CASES: tuple[Case, ...] = (
    _share("small", "m31", 2, 3, 1000),
    _share("small", "m61", 3, 5, 1000),
    _reconstruct("small", "m31", 2, 3, 1000),
    _reconstruct("small", "m61", 3, 5, 1000),
    _share("full", "m31", 6, 10, 1_000_000, Goal({"NumPy": 5.0}, seconds=40e-6)),
    _share("full", "m61", 6, 10, 1_000_000, _FIVE),
    _reconstruct("full", "m31", 6, 6, 1_000_000, Goal({"NumPy": 5.0}, seconds=12e-6)),
    _reconstruct("full", "m31", 6, 8, 1_000_000, _FIVE),
    _reconstruct("full", "m61", 6, 6, 1_000_000, _FIVE),
    _reconstruct("full", "m61", 6, 8, 1_000_000, _FIVE),
    _share("large", "m31", 6, 10, 20_000_000, Goal(seconds=0.8e-3)),
    _reconstruct("large", "m31", 6, 6, 20_000_000, Goal(seconds=0.24e-3)),
)
