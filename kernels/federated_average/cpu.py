"""Federated averaging on all cores of the CPU: each tile of columns is summed over all clients' updates in integers."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.dp_noise.integers import to_grid
from warpdesk_server.kernels.dp_noise.release import DOMAIN
from warpdesk_server.kernels.dp_noise.sampler import add_noise
from warpdesk_server.kernels.federated_average.averaging import WHOLE, Averaging, Numbers, prepare
from warpdesk_server.kernels.federated_average.params import FederatedAverage
from warpdesk_server.kernels.federated_average.plan import LOG2_SCALE, SATURATION
from warpdesk_server.kernels.federated_average.spec import BLOCK

_TILE = 4096  # columns one core sums at a time
_MOST = float(SATURATION)
# Adding 1.5 * 2**52 leaves the nearest integer in the low bits of the sum.
_ROUND = 6755399441055744.0
_ROUND_BITS = np.int64(0x4338000000000000)
_WHOLE = np.uint64(WHOLE)
_LOW = np.int64((1 << 25) - 1)


def federated_average(
    params: FederatedAverage,
    updates: NDArray[Any] | None = None,
    weights: NDArray[Any] | None = None,
    sum: NDArray[np.int64] | None = None,  # noqa: A002 (the name of the input)
    model: NDArray[Any] | None = None,
    first_moment: NDArray[Any] | None = None,
    second_moment: NDArray[Any] | None = None,
    *,
    key: bytes,
) -> dict[str, Any]:
    """Average clients' updates (n, d), or the sum (d,) of a round, and update the model; `key` is 32 random bytes.

    Raises InvalidRequest for numbers that are not finite, and if no grid for the noise is safe.
    """
    given = {"updates": updates, "weights": weights, "sum": sum, "model": model}
    job = prepare(params, {**given, "first_moment": first_moment, "second_moment": second_moment})
    average = np.empty(job.width)
    total = _total(job)
    try:
        if job.made is None:
            np.multiply(np.divide(total, job.divisor, out=average), job.unit, out=average)
        else:
            domain = DOMAIN["discrete_gaussian"]
            add_noise(np.frombuffer(key, "<u4"), domain, LOG2_SCALE, float(job.made.grid), total, average)
    finally:
        total.fill(0)  # the answer without its noise
    return job.answer(average, *_moved(job, average))


def _total(job: Averaging) -> NDArray[np.int64]:
    """The sum (d,) of the clients' updates to average, in steps."""
    total = np.empty(job.width, np.int64)
    if job.updates is None:
        assert job.sum is not None  # noqa: S101 (one of both is there)
        if job.made is None:
            total[:] = job.sum
        else:
            bits = job.sum.astype(np.float64).view(np.uint64)
            bits.flags.writeable = False
            to_grid(bits, np.uint64(job.made.mantissa), job.made.exponent, total)
        return total
    updates = np.asarray(job.updates).view()
    updates.flags.writeable = False  # Numba compiles again for each mixture of writable and read-only arrays
    squares = None
    if job.made is not None:
        blocks = -(-job.width // BLOCK)
        squares = np.empty((job.clients, blocks, 3), np.uint64)
        step = job.factors[0]
        at_least = max(1, BLOCK // job.width)
        share(
            job.clients * blocks, lambda first, end: _add_squares(updates, step, first, end, squares), at_least=at_least
        )
    ratios = job.ratios(squares, 0, job.clients)
    tiles = -(-job.width // _TILE)
    at_least = max(1, 32_768 // (_TILE * job.clients))
    share(tiles, lambda first, end: _add_up(updates, job.factors, ratios, first, end, total), at_least=at_least)
    return total


def _moved(job: Averaging, average: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """The model and the optimiser's moments after this federated average; empty if there are none."""
    none = np.empty(0)
    rate = job.params.learning_rate
    with np.errstate(over="ignore", invalid="ignore"):
        if job.first_moment is None or job.second_moment is None:
            return none if job.model is None else job.model + rate * average, none, none
        assert job.model is not None  # noqa: S101 (the operation's check has seen to it)
        # Reddi et al. (2021), algorithm 2: no bias correction, the average is the negative gradient.
        beta1, beta2, tau = job.params.decay
        first = beta1 * job.first_moment + (1 - beta1) * average
        second = beta2 * job.second_moment + (1 - beta2) * (average * average)
        return job.model + rate * first / (np.sqrt(second) + tau), first, second


@njit
def _steps(x: Any, factor: Any) -> Any:
    """A number of a client's update in steps: round(x * factor), ties to even, cut to +-2**50."""
    return np.float64(min(max(np.float64(x) * factor, -_MOST), _MOST) + _ROUND).view(np.int64) - _ROUND_BITS


@njit
def _part(magnitude: Any, ratio: Any) -> Any:
    """A clipped and weighted number of a client's update: floor(magnitude * ratio / 2**63), magnitude <= 2**50, as
    int64."""
    mask = np.uint64(0xFFFFFFFF)
    doubled = np.uint64(magnitude) << np.uint64(1)
    a0, a1, b0, b1 = doubled & mask, doubled >> np.uint64(32), ratio & mask, ratio >> np.uint64(32)
    middle = a1 * b0 + (a0 * b0 >> np.uint64(32))
    cross = a0 * b1 + (middle & mask)
    return np.int64(a1 * b1 + (middle >> np.uint64(32)) + (cross >> np.uint64(32)))


@njit(cache=True, nogil=True)
def _add_squares(updates: NDArray[Any], factor: float, begin: int, end: int, squares: NDArray[np.uint64]) -> None:
    blocks = squares.shape[1]
    for task in range(begin, end):
        i, block = task // blocks, task % blocks
        row = updates[i, block * BLOCK : (block + 1) * BLOCK]
        high, middle, low = np.int64(0), np.int64(0), np.int64(0)
        for j in range(row.size):
            q = abs(_steps(row[j], factor))
            upper, lower = q >> np.int64(25), q & _LOW
            high += upper * upper
            middle += upper * lower
            low += lower * lower
        squares[i, block, 0] = np.uint64(high)
        squares[i, block, 1] = np.uint64(middle)
        squares[i, block, 2] = np.uint64(low)


@njit(cache=True, nogil=True)
def _add_up(
    updates: NDArray[Any], factors: Numbers, ratios: NDArray[np.uint64], begin: int, end: int, total: NDArray[np.int64]
) -> None:
    for tile in range(begin, end):
        sums = total[tile * _TILE : (tile + 1) * _TILE]
        sums[:] = 0
        for i in range(updates.shape[0]):
            row = updates[i, tile * _TILE : tile * _TILE + sums.size]
            factor, ratio = factors[i], ratios[i]
            if ratio == _WHOLE:
                for j in range(sums.size):
                    sums[j] += _steps(row[j], factor)
            else:
                for j in range(sums.size):
                    q = _steps(row[j], factor)
                    part = _part(abs(q), ratio)
                    sums[j] += -part if q < 0 else part
