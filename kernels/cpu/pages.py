"""Memory of large arrays, kept for the next one.

The GNU allocator gives arrays of more than 32 MiB back to the system at once, smaller ones where enough is free beside
them, and the next has to be made of new pages: for the answer of an `expression`, 80 MB, that takes as long as a
quarter of its computation, for that of `macd`, 30 MB, as long as all of it.
"""

import ctypes
import math
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGE = 4 << 20  # bytes; smaller arrays cost little either way
_TIMES = 4  # as large as an array a block may be
_MOST = 256 << 20  # bytes that stay with the process while nobody uses them
_spare: list[NDArray[np.uint8]] = []  # one block, or none


def empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array as from `np.empty`, whose memory serves the next one once neither it nor a view of it is left."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if not _LARGE < size <= _MOST:
        return np.empty(shape, dtype)
    try:
        block = _spare.pop()
    except IndexError:
        block = np.empty(0, np.uint8)
    if block.nbytes > _TIMES * size:  # a small array does not hold a large block
        _keep(block)
    if not size <= block.nbytes <= _TIMES * size:
        block = np.empty(size, np.uint8)
    lent = (ctypes.c_ubyte * block.nbytes).from_buffer(block.data)
    weakref.finalize(lent, _keep, block).atexit = False
    return np.frombuffer(memoryview(lent), dtype, math.prod(shape)).reshape(shape)


def _keep(block: NDArray[np.uint8]) -> None:
    _spare[:] = [block]
