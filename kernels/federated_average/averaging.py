"""The part of a federated average that both backends share: updates as integers, checks of the data, the answer.

A number x of client i enters the sum as

    floor(|q| * ratio[i] / 2**63), with the sign of q,    q = round(x * factor[i]), ties to even, |q| <= 2**50

where the product is rounded once to float64. Everything after that is exact in integers, so the order of clients does
not matter.

Without noise factor[i] = w[i] * 2**E and ratio[i] = 2**63, which leaves q unchanged. E follows from the largest |w x|:
a step is at most 2**-48 of it with up to 4095 clients. The average is total / (sum of w) / 2**E.
With noise every factor is the plan's, and ratio[i] = floor(2**63 * min(1, bound / norm of q) * w[i] / max_weight): the
L2 norm of a client's integers never passes bound * w[i] / max_weight.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import frexp, fsum, isfinite
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.dp_noise.rational import root_up
from warpdesk_server.kernels.federated_average.params import FederatedAverage
from warpdesk_server.kernels.federated_average.plan import Plan, describe, plan, undescribed
from warpdesk_server.kernels.federated_average.spec import BLOCK
from warpdesk_server.kernels.problems import refuse

Numbers = NDArray[np.float64]

WHOLE = 1 << 63  # the ratio of an update that is neither clipped nor weighted
_BITS = 50  # bits of a step count if there is no plan
_TOTAL_BITS = 62
_PART = 8 * BLOCK  # numbers of an update that one core scans in one task


@dataclass(frozen=True)
class Averaging:
    """One federated average: without noise it is total / divisor * unit, with noise (total + noise) * made.grid."""

    params: FederatedAverage
    clients: int
    width: int
    made: Plan | None
    updates: NDArray[Any] | None  # (n, d), or the sum (d,) of a round
    sum: NDArray[np.int64] | None
    weights: Numbers  # (n,), if there are updates
    factors: Numbers  # (n,)
    divisor: float
    unit: float
    total_weight: float
    model: Numbers | None
    first_moment: Numbers | None
    second_moment: Numbers | None

    def ratios(self, squares: NDArray[np.uint64] | None, first: int, end: int) -> NDArray[np.uint64]:
        """The ratios of averaged clients first to end; with noise from squares[., blocks, 3], sums over their steps.

        For step counts h * 2**25 + l these are the sums of h * h, h * l and l * l.
        """
        if squares is None:
            return np.full(end - first, WHOLE, np.uint64)
        assert self.made is not None  # noqa: S101 (squares are taken for a plan)
        assert self.params.dp is not None  # noqa: S101
        bound, most = self.made.bound, Fraction(self.params.dp.max_weight or 1)
        found = np.empty(end - first, np.uint64)
        for i, blocks in enumerate(squares.tolist()):
            high, middle, low = (sum(column) for column in zip(*blocks, strict=True))
            norm = root_up((high << 50) + (middle << 26) + low)
            weight = min(max(Fraction(float(self.weights[first + i])), Fraction(0)), most) / most
            found[i] = int(WHOLE * weight * (Fraction(bound, norm) if norm > bound else 1))
        return found

    def answer(self, average: Numbers, model: Numbers, first: Numbers, second: Numbers) -> dict[str, Any]:
        return {
            "average": average,
            "model": model,
            "first_moment": first,
            "second_moment": second,
            "total_weight": self.total_weight,
            **(
                undescribed(self.params, self.clients)
                if self.made is None
                else describe(self.params, self.made, self.width)
            ),
        }


def prepare(params: FederatedAverage, given: dict[str, NDArray[Any] | None]) -> Averaging:
    """Check all numbers of a federated average before it is computed, and convert them.

    Raises InvalidRequest for a number that is not finite, a negative weight or only zero weights, a negative mean of
    squares, or a sum of another round.
    """
    updates, total = given["updates"], given["sum"]
    if params.round is None:
        assert updates is not None  # noqa: S101 (the operation's check has seen to it)
        clients, width = updates.shape
    else:
        assert total is not None  # noqa: S101
        clients, width = params.round.survivors, len(total)
    made = None if params.dp is None else plan(params, clients, width)
    model, first, second = (_state(given[name], name) for name in ("model", "first_moment", "second_moment"))
    if params.strategy == "fedadam" and first is None:
        # Reddi et al. (2021), algorithm 2, begins with a second moment of tau squared at least.
        _, _, tau = params.decay
        first, second = np.zeros(width), np.full(width, tau * tau)
    weights, factors, divisor, unit, total_weight = np.empty(0), np.empty(0), 1.0, 1.0, 0.0
    if updates is not None:
        largest = largest_of(updates)
        weights = _weights(given["weights"], clients)
        if made is None:
            factors, divisor, unit, total_weight = _scaling(largest, weights)
        else:
            factors = np.full(clients, float(made.steps))
    elif total is not None:
        divisor, total_weight = _of_round(params, total)
    if params.dp is not None:
        total_weight = float(params.dp.expected_weight)
    return Averaging(
        params, clients, width, made, updates, total, weights, factors, divisor, unit, total_weight,
        model, first, second,
    )  # fmt: skip


def _scaling(largest: Numbers, weights: Numbers) -> tuple[Numbers, float, float, float]:
    """The factors (n,), divisor, unit and total weight of a federated average without noise."""
    if (weights < 0).any():
        raise refuse("/inputs/weights", f"weight {int(np.argmax(weights < 0))} is negative")
    if not weights.any():
        raise refuse("/inputs/weights", f"all {weights.size} weights are zero")
    with np.errstate(over="ignore"):
        total_weight = float(weights.sum())
    if not isfinite(total_weight):
        raise refuse("/inputs/weights", "the weights add up to more than a float64 holds")
    # Weights are scaled below 1, so that no product overflows. fsum is exact, so the order does not matter.
    _, power = frexp(float(weights.max()))
    scaled = np.ldexp(weights, -power)
    counted = (scaled > 0) & (largest > 0)
    top = int((np.frexp(scaled)[1] + np.frexp(largest)[1])[counted].max()) if counted.any() else 0
    exponent = min(min(_BITS, _TOTAL_BITS - weights.size.bit_length()) - top, 1000)
    return np.ldexp(scaled, exponent), fsum(scaled), 2.0**-exponent, fsum(weights)


def _of_round(params: FederatedAverage, total: NDArray[np.int64]) -> tuple[float, float]:
    """The divisor of a federated average of a round's sum without noise, and its total weight."""
    given = params.round
    assert given is not None  # noqa: S101 (a sum comes with its round)
    # np.abs would wrap at -2**63.
    if max(int(total.max()), -int(total.min())) > given.max_abs_sum:
        raise refuse(
            "/inputs/sum",
            f"a coordinate passes {given.max_abs_sum}, which no sum of {given.survivors} vectors within the round's "
            "quantisation can: the sum is of another round",
        )
    weight = given.total_weight or given.survivors
    return float(Fraction(given.quantisation.scale) * weight), float(weight)


def _state(given: NDArray[Any] | None, name: str) -> Numbers | None:
    if given is None:
        return None
    exact = np.ascontiguousarray(given, np.float64)
    if not np.isfinite(exact).all():
        raise refuse(f"/inputs/{name}", "the array holds a NaN or an infinity")
    if name == "second_moment" and (exact < 0).any():
        raise refuse("/inputs/second_moment", "a mean of squares is negative")
    return exact


def _weights(weights: NDArray[Any] | None, clients: int) -> Numbers:
    taken = np.ones(clients) if weights is None else np.ascontiguousarray(weights, np.float64)
    if not np.isfinite(taken).all():
        raise refuse("/inputs/weights", "the array holds a NaN or an infinity")
    return taken


def largest_of(updates: NDArray[Any]) -> Numbers:
    """The largest magnitude (n,) of each client's update. Raises InvalidRequest if one is not finite."""
    # The bits are compared as integers: magnitudes have the same order, and NaN and infinities come last.
    bits = np.asarray(updates).view(f"i{updates.itemsize}")
    bits.flags.writeable = False  # Numba compiles again for each mixture of writable and read-only arrays
    rows, columns = updates.shape
    parts = -(-columns // _PART)
    found = np.zeros((rows, parts), bits.dtype)
    mask = np.iinfo(bits.dtype).max
    at_least = max(1, _PART // columns)
    share(rows * parts, lambda first, end: _largest(bits, bits.dtype.type(mask), first, end, found), at_least=at_least)
    largest: Numbers = found.max(axis=1).view(updates.dtype).astype(np.float64)
    if not np.isfinite(largest).all():
        # The message does not say which or where: updates are private, and messages are logged and stored.
        raise refuse("/inputs/updates", "the array holds a NaN or an infinity")
    return largest


@njit(cache=True, nogil=True)
def _largest(bits: NDArray[Any], mask: Any, begin: int, end: int, found: NDArray[Any]) -> None:
    parts = found.shape[1]
    for task in range(begin, end):
        i, part = task // parts, task % parts
        row = bits[i, part * _PART : (part + 1) * _PART]
        most = found[i, part]
        for j in range(row.size):
            most = max(most, row[j] & mask)
        found[i, part] = most
