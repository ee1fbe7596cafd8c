"""The part of a release that both backends share: the bits of values, and refusals that depend on the data."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.dp_noise.description import describe
from warpdesk_server.kernels.dp_noise.params import DpNoise
from warpdesk_server.kernels.dp_noise.plan import MAX_TOTAL, Plan
from warpdesk_server.kernels.problems import InvalidRequest, refuse

NORM = {"l1": 1, "l2": 2, "linf": 3}

# Third nonce word of the noise's keystream: the two mechanisms never share a stream, nor a count that with its sum.
DOMAIN = {
    "discrete_laplace": int.from_bytes(b"lap1", "little"),
    "discrete_gaussian": int.from_bytes(b"gau1", "little"),
}
COUNT_DOMAIN = {
    "discrete_laplace": int.from_bytes(b"lapn", "little"),
    "discrete_gaussian": int.from_bytes(b"gaun", "little"),
}


def as_bits(values: NDArray[Any], *, clipped: bool) -> NDArray[np.uint64]:
    """Return the float64 bits of the values as a read-only array.

    An integer that no float64 holds exactly is refused in a statistic. In records it is rounded, which concerns that
    record alone and comes before the clip: a refusal would tell that such a person is among them.
    """
    too_large = values.dtype == np.int64 and values.size and max(int(values.max()), -int(values.min())) > 2**53
    if too_large and not clipped:
        # Neither which nor where: values are private, and messages are logged and kept.
        raise refuse("/inputs/values", "an integer is above 2**53 in magnitude, beyond which float64 is not exact")
    exact = np.ascontiguousarray(values, np.float64)
    if not np.isfinite(exact).all():
        raise refuse("/inputs/values", "the array holds a NaN or an infinity")
    # Read-only always: Numba compiles again for every mixture of writable arrays and read-only memory maps.
    bits = np.asarray(exact).view(np.uint64)
    bits.flags.writeable = False
    return bits


def out_of_range(total: NDArray[np.int64]) -> bool:
    """Whether a value was cut where it was brought to the grid."""
    return bool(total.size) and max(int(total.max()), -int(total.min())) >= MAX_TOTAL


def refused_as_out_of_range(made: Plan) -> InvalidRequest:
    """Silently moving a value would be wrong, and far out there noise is no question."""
    return refuse(
        "/inputs/values",
        f"a value is {float(MAX_TOTAL * made.grid):.3g} or more in magnitude, 2**62 steps of the grid "
        f"{float(made.grid):.3g} that this noise needs",
    )


def answer(
    params: DpNoise, made: Plan, shape: tuple[int, ...], noisy: NDArray[np.float64], noisy_count: float | None
) -> dict[str, Any]:
    """Return the outputs: what follows from noisy numbers alone costs nothing, and is the same on every backend."""
    if params.query == "mean":
        divisor = made.divisor if noisy_count is None else max(noisy_count, 1.0)
        bound = float(made.bound * made.grid)
        noisy = np.clip(noisy / divisor, -bound, bound)  # no mean of clipped records is beyond
    elif params.mode == "aggregate" or params.query == "identity":
        noisy = noisy.reshape(shape)
    return {"noisy": noisy, **describe(params, made, noisy_count)}
