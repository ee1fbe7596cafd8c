"""The part of Shamir's secret sharing that both backends share: 64-bit values, and checks and correction of shares."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.problems import InvalidRequest, Problem, refuse
from warpdesk_server.kernels.shamir.field import DTYPE, PRIME, weights, wrong_words
from warpdesk_server.kernels.shamir.spec import ShamirReconstruct, ShamirShare


def as_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """The values to share, as a read-only array of int64 or float64."""
    # Always read-only: Numba compiles again for each mixture of writable and read-only arrays.
    numbers = np.ascontiguousarray(values, np.float64 if values.dtype.kind == "f" else np.int64).view()
    numbers.flags.writeable = False
    return numbers


def scale_of(params: ShamirShare | ShamirReconstruct) -> float:
    """The scale of shared values as a float64, by which they are multiplied and divided; 1 if there is none."""
    return float(Fraction(Decimal(params.scale or "1")))


def shared(params: ShamirShare, shares: NDArray[Any]) -> dict[str, Any]:
    """The outputs of shamir_share."""
    return {
        "shares": shares,
        "x": list(range(1, params.shares + 1)),
        "statement": (
            f"Any {params.threshold} of the {params.shares} shares give the values back; {params.threshold - 1} or "
            "fewer say nothing of them but how many there are, to whoever cannot tell ChaCha20's keystream from random "
            "words: that is computational security, not that of Shamir's scheme with true random numbers. This answer "
            "holds all the shares, so the service that made it saw the values and every share of them: give each share "
            "to its holder and delete the result."
        ),
    }


@dataclass(frozen=True)
class Found:
    """The findings about shares: the number of elements at which they disagree, and the first of them (-1: none).

    `outside` counts, for each row, the words that are not below the prime.
    """

    inconsistent: int
    first: int
    outside: NDArray[np.int64]


def together(parts: Sequence[Found]) -> Found:
    """The findings about shares in all parts of the elements together."""
    first = min((part.first for part in parts if part.inconsistent), default=-1)
    outside = np.sum([part.outside for part in parts], axis=0)
    return Found(sum(part.inconsistent for part in parts), first, outside)


# Reconstruct an array of int64 or float64 from shares[order]: the first `threshold` rows of the order are combined with
# each row of the weights (see combine_loops.combine).
Combine = Callable[[NDArray[np.uint32], NDArray[Any], NDArray[Any]], Found]


def recover(params: ShamirReconstruct, shares: NDArray[Any], combine: Combine) -> dict[str, Any]:
    """Reconstruct values from all shares. Corrupted rows are left out in another pass, or refused.

    Raises InvalidRequest for words outside the field, and if the rows disagree and may not be corrected.
    """
    prime, rows = PRIME[params.field], len(params.x)
    values = np.empty(shares.shape[1], np.int64 if params.scale is None else np.float64)
    corrupted: set[int] = set()
    inconsistent = 0
    while True:
        order = np.array([row for row in range(rows) if row not in corrupted], np.uint32)
        base = [params.x[row] for row in order[: params.threshold]]
        at = [0, *(params.x[row] for row in order[params.threshold :])]
        found = combine(order, np.array(weights(prime, base, at), DTYPE[params.field]), values)
        _refuse_outside(params, found.outside)
        if not found.inconsistent:
            break
        inconsistent = inconsistent or found.inconsistent
        # One element shows which of its words are wrong. If the remaining rows disagree, another one is corrupted.
        column = [int(word) for word in shares[:, found.first]]
        wrong = wrong_words(prime, params.x, column, params.threshold) if params.nameable else None
        if wrong is None or len(corrupted | wrong) > params.nameable:
            raise _disagreement(params, inconsistent, shares.shape[1], [])
        corrupted |= wrong
    named = sorted(params.x[row] for row in corrupted)
    if named and not params.correct:
        raise _disagreement(params, inconsistent, shares.shape[1], named)
    return {
        "values": values,
        "extra": params.extra - len(named),
        "corrupted": named,
        "inconsistent": inconsistent,
        "statement": _statement(params, len(named)),
    }


def _statement(params: ShamirReconstruct, named: int) -> str:
    extra = params.extra - named
    if not extra and not named:
        return (
            f"{params.threshold} shares of threshold {params.threshold}: nothing was checked, and one wrong share "
            "makes the values wrong. The service that computed this saw the values."
        )
    claim = (
        f"Every element of {params.threshold + extra} shares lies on one polynomial of degree below {params.threshold}"
    )
    if named:
        claim += f", without the {named} that {'does' if named == 1 else 'do'} not"
    return (
        f"{claim}: the values are right unless more than {extra if not named else params.nameable} of the shares given "
        "are wrong in agreement. The service that computed this saw the values."
    )


def _refuse_outside(params: ShamirReconstruct, outside: NDArray[np.int64]) -> None:
    problems = [
        Problem(
            "/inputs/shares",
            f"{count} words of the share of x = {x} are not below {PRIME[params.field]}, the prime of {params.field}",
        )
        for x, count in zip(params.x, outside.tolist(), strict=True)
        if count
    ]
    if problems:
        raise InvalidRequest(*problems)


def _disagreement(params: ShamirReconstruct, inconsistent: int, size: int, named: list[int]) -> InvalidRequest:
    rows, threshold = len(params.x), params.threshold
    sentence = f"the {rows} shares disagree at {inconsistent} of {size} elements: "
    if len(named) == 1:
        sentence += f"the share of x = {named[0]} is corrupted; with correct it is left out"
    elif named:
        sentence += f"the shares of x = {', '.join(map(str, named))} are corrupted; with correct they are left out"
    elif params.nameable:
        sentence += f"more than {params.nameable} are corrupted, and {rows} of threshold {threshold} name no more"
    else:
        sentence += f"at least one is corrupted; to name one takes {threshold + 2} shares of threshold {threshold}"
    return refuse("/inputs/shares", sentence)
