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
_MOST = 256 << 20  # bytes that stay with the process while nobody uses them
_spare: dict[int, NDArray[np.uint8]] = {}  # a block for each power of two, the one that was given back last at the end


def empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array as from `np.empty`, whose memory serves the next one once neither it nor a view of it is left.

    A block serves arrays of more than half its size, so that a small array holds no large one.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if not _LARGE < size <= _MOST:
        return np.empty(shape, dtype)
    block = _spare.pop(size.bit_length(), None)
    if block is None or block.nbytes < size:
        block = np.empty(size, np.uint8)
    lent = (ctypes.c_ubyte * block.nbytes).from_buffer(block.data)
    weakref.finalize(lent, _keep, block).atexit = False
    return np.frombuffer(memoryview(lent), dtype, math.prod(shape)).reshape(shape)


def _keep(block: NDArray[np.uint8]) -> None:
    _spare[block.nbytes.bit_length()] = block
    for kind in list(_spare):  # the oldest first
        if sum(other.nbytes for other in list(_spare.values())) > _MOST:
            _spare.pop(kind, None)
