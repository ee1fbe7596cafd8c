"""Host arrays that can be copied to or from a device without a temporary copy: matrices with contiguous rows."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_rows(array: NDArray[Any]) -> NDArray[Any]:
    """A host array as a matrix of contiguous rows, without a copy, for a copy to or from a device.

    A C-contiguous array becomes one row. A block of columns of a C-contiguous matrix keeps its rows. Any other array
    raises TypeError.
    """
    if array.flags.c_contiguous:
        return array.reshape(1, -1)
    if array.ndim < 2 or array.strides[-1] != array.itemsize or math.prod(array.shape[:-2]) != 1:
        raise TypeError(
            f"an array of shape {array.shape} and strides {array.strides} is no matrix of rows in one piece each"
        )
    return array.reshape(array.shape[-2:])


def check_out(array: Any, out: Any) -> None:
    """Raise TypeError if a device array cannot be copied to the host array `out` directly.

    `out` must be a writable NumPy array of the same shape and dtype, with rows as `as_rows` requires.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(f"what a device computed is copied into NumPy arrays, got {type(out).__name__}")
    if (out.dtype, out.shape) != (array.dtype, array.shape):
        raise TypeError(f"{array.dtype} of shape {array.shape} cannot be copied into {out.dtype} of shape {out.shape}")
    if not out.flags.writeable:
        raise TypeError(f"the array of shape {out.shape} to copy into is read-only")
    as_rows(out)
