"""Copies between host and device through two pinned buffers: one is on its way while the host is at the other.

The driver copies memory that is not pinned through a small buffer of its own, at a fraction of the link's speed, and
pinning an array for one copy costs more than the copy. Two buffers serve arrays of any size.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE = 8 << 20  # bytes: 0.2 ms of a PCIe 5 link, many times what asking for a copy takes
_NO_HOST_MEMORY = 2  # cudaErrorMemoryAllocation


class Staging:
    """The buffers of one stream; one thread at a time."""

    def __init__(self, cupy: Any, stream: Any) -> None:
        self._cupy = cupy
        self._stream = stream
        self._buffers: list[_Buffer] = []

    def upload(self, source: NDArray[Any], target: Any) -> None:
        """Copy a contiguous array to device memory (a CuPy memory pointer), and wait until it is there."""
        flat = _bytes_of(source)
        for first, end, buffer in self._pieces(flat.size):
            buffer.wait()  # for the piece it held before
            buffer.bytes[: end - first] = flat[first:end]
            (target + first).copy_from_host_async(buffer.address, end - first, self._stream)
            buffer.left(end - first)
        self._stream.synchronize()

    def download(self, source: Any, target: NDArray[Any]) -> None:
        """Copy device memory into a contiguous array, and wait until it is there."""
        flat = _bytes_of(target)
        arriving: list[tuple[int, int, _Buffer]] = []
        for first, end, buffer in self._pieces(flat.size):
            (source + first).copy_to_host_async(buffer.address, end - first, self._stream)
            buffer.left(end - first)
            arriving.append((first, end, buffer))
            if len(arriving) == 2:
                _take(flat, *arriving.pop(0))
        for piece in arriving:
            _take(flat, *piece)

    def forget(self) -> None:
        """Overwrite what copies left in the buffers."""
        for buffer in self._buffers:
            buffer.zero()

    def _pieces(self, nbytes: int) -> Iterator[tuple[int, int, "_Buffer"]]:
        for number, first in enumerate(range(0, nbytes, PIECE)):
            if number % 2 >= len(self._buffers):
                self._buffers.append(_Buffer(self._cupy, self._stream))
            yield first, min(first + PIECE, nbytes), self._buffers[number % 2]


class _Buffer:
    def __init__(self, cupy: Any, stream: Any) -> None:
        self._stream = stream
        self._event = cupy.cuda.Event(block=True, disable_timing=True)  # a wait leaves the processor to others
        self._used = 0
        try:
            self.bytes: NDArray[np.uint8] = np.frombuffer(cupy.cuda.alloc_pinned_memory(PIECE), np.uint8, PIECE)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status != _NO_HOST_MEMORY:
                raise
            self.bytes = np.empty(PIECE, np.uint8)  # slower, and as good
        self.address = self.bytes.ctypes.data

    def left(self, nbytes: int) -> None:
        """A copy of so many bytes was given to the stream."""
        self._event.record(self._stream)
        self._used = max(self._used, nbytes)

    def wait(self) -> None:
        if self._used:
            self._event.synchronize()

    def zero(self) -> None:
        self.wait()
        self.bytes[: self._used] = 0
        self._used = 0


def _take(flat: NDArray[np.uint8], first: int, end: int, buffer: _Buffer) -> None:
    buffer.wait()
    flat[first:end] = buffer.bytes[: end - first]


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
