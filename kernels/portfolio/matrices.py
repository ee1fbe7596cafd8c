"""What is refused of covariance matrices and of bounds of weights."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.portfolio import loops
from warpdesk_server.kernels.problems import refuse

Array = NDArray[Any]

_MOST_WEIGHT = 1e9
_SLACK = 1e-12  # of sums of bounds: ten bounds of 0.1 add up to 1 - 1.1e-16


def batch_of_matrices(matrices: Array) -> Array:
    """Matrices (assets, assets) or (batch, assets, assets) with a batch axis, after checks.

    Raises InvalidRequest for a variance that is not above 0, and for a matrix that is not symmetric.
    """
    batch = read_only(matrices if matrices.ndim == 3 else matrices[np.newaxis])
    for item, matrix in enumerate(batch):
        i, j = (int(index) for index in loops.asymmetry(matrix))
        if i < 0:
            continue
        where = f"matrix {item} of the batch: " if matrices.ndim == 3 else ""
        if i == j:
            raise refuse("/inputs/covariance", f"{where}asset {i} has variance {matrix[i, i]:.17g}: it must be above 0")
        raise refuse(
            "/inputs/covariance",
            f"{where}not symmetric: row {i}, column {j} has {matrix[i, j]:.17g}, and row {j}, column {i} has "
            f"{matrix[j, i]:.17g}",
        )
    return batch


def of_rank(rank: int, answer: dict[str, Array]) -> dict[str, Array]:
    """The outputs of a batch (rank 3), or without its axis (rank 2), where a number of each matrix has shape (1)."""
    return {name: array[0] if rank == 2 and array.ndim > 1 else array for name, array in answer.items()}


def read_only(array: Array) -> Array:
    """A view that cannot be written. Inputs may be read-only maps, and Numba compiles again for writable arrays."""
    view = array.view()
    view.flags.writeable = False
    return view


def of_each_asset(given: Array | None, default: float, assets: int) -> Array:
    """A number for each asset, of an input that has these, or one for all, or was not given."""
    numbers = np.full(assets, default)
    if given is not None:
        numbers[:] = given
    return numbers


def at_bounds(weights: Array, lower: Array, upper: Array) -> Array:
    """-1 for weights at most `lower`, also if they are fixed there, 1 for those at least `upper`, else 0 (int32)."""
    return np.where(weights <= lower, -1, np.where(weights >= upper, 1, 0)).astype(np.int32)


def check_bounds(lower: Array, upper: Array) -> None:
    """Raise InvalidRequest for bounds of weights that no portfolio meets, and for those beyond a billion."""
    for name, bounds in (("lower", lower), ("upper", upper)):
        for asset in np.flatnonzero(np.abs(bounds) > _MOST_WEIGHT)[:1]:
            raise refuse(
                f"/inputs/{name}", f"asset {asset}: {name} {bounds[asset]:g} is beyond {_MOST_WEIGHT:g} either way"
            )
    for asset in np.flatnonzero(lower > upper)[:1]:
        raise refuse("/inputs/lower", f"asset {asset}: lower {lower[asset]:g} is above upper {upper[asset]:g}")
    least, most = math.fsum(lower), math.fsum(upper)
    if least > 1.0 + _SLACK:
        raise refuse("/inputs/lower", f"the sum of the lower bounds is {least:.12g}, and weights have the sum 1")
    if most < 1.0 - _SLACK:
        raise refuse("/inputs/upper", f"the sum of the upper bounds is {most:.12g}, and weights have the sum 1")
