"""The part of a noisy release that both backends share: the values' bits, checks of the data, and the outputs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.dp_noise.description import describe
from warpdesk_server.kernels.dp_noise.params import DpNoise
from warpdesk_server.kernels.dp_noise.plan import MAX_TOTAL, Plan
from warpdesk_server.kernels.problems import InvalidRequest, refuse

NORM = {"l1": 1, "l2": 2, "linf": 3}

# Third nonce word of the noise's keystream: mechanisms never share a stream, nor do a count and its sum.
DOMAIN = {
    "discrete_laplace": int.from_bytes(b"lap1", "little"),
    "discrete_gaussian": int.from_bytes(b"gau1", "little"),
}
COUNT_DOMAIN = {
    "discrete_laplace": int.from_bytes(b"lapn", "little"),
    "discrete_gaussian": int.from_bytes(b"gaun", "little"),
}


def as_bits(values: NDArray[Any], *, clipped: bool) -> NDArray[np.uint64]:
    """The float64 bits of the values to release with noise, as a read-only array.

    An integer that is not exact in float64 is refused in a statistic. In a record it is rounded before the clip, which
    affects this record alone: a refusal would reveal that such a record is in the data.
    """
    too_large = values.dtype == np.int64 and values.size and max(int(values.max()), -int(values.min())) > 2**53
    if too_large and not clipped:
        # The message does not say which or where: values are private, and messages are logged and stored.
        raise refuse("/inputs/values", "an integer is above 2**53 in magnitude, beyond which float64 is not exact")
    exact = np.ascontiguousarray(values, np.float64)
    if not np.isfinite(exact).all():
        raise refuse("/inputs/values", "the array holds a NaN or an infinity")
    # Always read-only: Numba compiles again for each mixture of writable and read-only arrays.
    bits = np.asarray(exact).view(np.uint64)
    bits.flags.writeable = False
    return bits


def out_of_range(total: NDArray[np.int64]) -> bool:
    """Whether a value was cut because it was too large for the noise's grid."""
    return bool(total.size) and max(int(total.max()), -int(total.min())) >= MAX_TOTAL


def refused_as_out_of_range(made: Plan) -> InvalidRequest:
    """The refusal of a value too large for the noise's grid, which must not be changed silently."""
    return refuse(
        "/inputs/values",
        f"a value is {float(MAX_TOTAL * made.grid):.3g} or more in magnitude, 2**62 steps of the grid "
        f"{float(made.grid):.3g} that this noise needs",
    )


def answer(
    params: DpNoise, made: Plan, shape: tuple[int, ...], noisy: NDArray[np.float64], noisy_count: float | None
) -> dict[str, Any]:
    """The outputs of dp_noise from the noisy numbers, the same on every backend; this costs no privacy."""
    if params.query == "mean":
        divisor = made.divisor if noisy_count is None else max(noisy_count, 1.0)
        bound = float(made.bound * made.grid)
        noisy = np.clip(noisy / divisor, -bound, bound)  # no mean of clipped records exceeds the bound
    elif params.mode == "aggregate" or params.query == "identity":
        noisy = noisy.reshape(shape)
    return {"noisy": noisy, **describe(params, made, noisy_count)}
