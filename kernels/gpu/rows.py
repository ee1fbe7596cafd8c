"""Host arrays that can be copied to or from a device: matrices whose rows are contiguous."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_rows(array: NDArray[Any]) -> NDArray[Any]:
    """An array as a matrix each of whose rows lies in one piece, without a copy: what is copied to or from a device.

    What is C-contiguous is one row. A block of columns of a C-contiguous matrix has its own rows; of anything else
    TypeError is raised.
    """
    if array.flags.c_contiguous:
        return array.reshape(1, -1)
    if array.ndim < 2 or array.strides[-1] != array.itemsize or math.prod(array.shape[:-2]) != 1:
        raise TypeError(
            f"an array of shape {array.shape} and strides {array.strides} is no matrix of rows in one piece each"
        )
    return array.reshape(array.shape[-2:])


def check_out(array: Any, out: Any) -> None:
    """Raise TypeError where an array of a device cannot be copied to `out` as it is.

    `out` is a NumPy array of its shape and dtype that can be written to, of rows as `as_rows` says.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(f"what a device computed is copied into NumPy arrays, got {type(out).__name__}")
    if (out.dtype, out.shape) != (array.dtype, array.shape):
        raise TypeError(f"{array.dtype} of shape {array.shape} cannot be copied into {out.dtype} of shape {out.shape}")
    if not out.flags.writeable:
        raise TypeError(f"the array of shape {out.shape} to copy into is read-only")
    as_rows(out)
