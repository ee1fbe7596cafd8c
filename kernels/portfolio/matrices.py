"""What is refused of a covariance matrix, and what portfolios are told by: both backends share it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.portfolio import loops
from warpdesk_server.kernels.problems import refuse

Array = NDArray[Any]


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


def read_only(array: Array) -> Array:
    """A view that cannot be written. Inputs may be read-only maps, and Numba compiles again for writable arrays."""
    view = array.view()
    view.flags.writeable = False
    return view
