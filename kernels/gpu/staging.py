"""Copies between host and GPU through pinned buffers, by several cores if an array is large.

Each core has two buffers: it fills one while the other is being transferred. Without pinned memory the driver copies
through a small buffer of its own, at a fraction of the link's speed. Pinning the caller's array (cudaHostRegister)
would save a copy, but is not done. To pin and unpin its pages costs about as much as to copy them. Inputs are read-only
maps of files, which few devices can pin. And a fault would leave an array pinned that its owner is about to free.
CUDA's reference, too, recommends pinned memory for staging areas.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE = 2 << 20  # bytes: 0.2 ms of a core, many times the cost of starting a copy, and less than the core's cache
# The most cores for one stream. A core copies some 10 GB/s and PCIe 5 carries some 55 each way. With two lanes at work
# the host's memory, through which each byte passes three times, is the limit.
_MOST_CORES = 4
_SHARE = 4  # pieces that are worth another core: 0.8 ms of work, while waking it takes some 0.1 ms
_NO_HOST_MEMORY = 2  # cudaErrorMemoryAllocation

_Pieces = deque[tuple[NDArray[Any], Any]]  # a part of the host's array, and its place in device memory


def cores(lanes: int) -> int:
    """The number of cores that copy between host and GPU for each of so many lanes."""
    from numba import config  # a child without a GPU may not need it

    return max(1, min(_MOST_CORES, config.NUMBA_NUM_THREADS // lanes))


class Staging:
    """The pinned buffers of one CUDA stream. One thread uses it at a time; other threads help with large arrays."""

    def __init__(self, cupy: Any, device: int, stream: Any, cores: int) -> None:
        self._cupy = cupy
        self._device = device
        self._stream = stream
        self._pairs = tuple((_Buffer(cupy, stream), _Buffer(cupy, stream)) for _ in range(cores))
        self._others = ThreadPoolExecutor(max(1, cores - 1), "staging")  # it starts a thread only when needed

    def upload(self, source: NDArray[Any], target: Any) -> None:
        """Copy a matrix of rows (rows.as_rows) to device memory (a CuPy memory pointer), and wait until it is there."""
        self._share(_send, source, target)
        self._stream.synchronize()

    def download(self, source: Any, target: NDArray[Any]) -> None:
        """Copy device memory into a matrix of rows (rows.as_rows), and wait until it is there."""
        self._share(_receive, target, source)

    def forget(self) -> None:
        """Overwrite the pinned buffers, which still hold data copied to or from the GPU."""
        for pair in self._pairs:
            for buffer in pair:
                buffer.zero()

    def _share(self, copy: Callable[[_Pieces, "_Pair"], None], matrix: NDArray[Any], pointer: Any) -> None:
        """Copy a matrix to or from the GPU in as many threads as are worth it. All have ended when this returns or
        fails."""
        pieces: _Pieces = deque(_cut(matrix, pointer))
        others: list[Future[None]] = []
        try:
            with suppress(RuntimeError):  # if the process may have no more threads, it copies without them
                for pair in self._pairs[1 : len(pieces) // _SHARE]:
                    others.append(self._others.submit(self._work, copy, pieces, pair))  # noqa: PERF401 (one may fail)
            self._work(copy, pieces, self._pairs[0])
        finally:
            wait(others)
        while others:
            others.pop().result()  # not in a variable: its error would keep it in a cycle, and with it memory

    def _work(self, copy: Callable[[_Pieces, "_Pair"], None], pieces: _Pieces, pair: "_Pair") -> None:
        try:
            self._cupy.cuda.Device(self._device).use()  # CuPy keeps the current device for each thread
            copy(pieces, pair)
        except BaseException:
            pieces.clear()  # so that the other threads end too
            raise


class _Buffer:
    """A buffer of pinned host memory for one piece of a copy to or from the GPU, allocated when it is first used."""

    def __init__(self, cupy: Any, stream: Any) -> None:
        self._cupy = cupy
        self._stream = stream
        self._event = cupy.cuda.Event(block=True, disable_timing=True)  # blocking: a wait does not use the processor
        self._memory: NDArray[np.uint8] | None = None
        self._used = 0

    def send(self, part: NDArray[Any], pointer: Any) -> None:
        self._wait()  # for the piece it held before
        held = self._as(part)
        held[...] = part
        pointer.copy_from_host_async(held.ctypes.data, held.nbytes, self._stream)
        self._event.record(self._stream)

    def receive(self, part: NDArray[Any], pointer: Any) -> None:
        """Start the copy from the GPU that `take` waits for."""
        held = self._as(part)
        pointer.copy_to_host_async(held.ctypes.data, held.nbytes, self._stream)
        self._event.record(self._stream)

    def take(self, part: NDArray[Any]) -> None:
        self._wait()
        part[...] = self._as(part)

    def zero(self) -> None:
        if self._memory is not None:
            self._wait()
            self._memory[: self._used] = 0
            self._used = 0

    def _wait(self) -> None:
        if self._used:
            self._event.synchronize()

    def _as(self, part: NDArray[Any]) -> NDArray[Any]:
        """The pinned buffer of a GPU copy with the shape and dtype of `part`. It counts as used from now on, even after
        a failure."""
        if self._memory is None:
            self._memory = self._pinned()
        self._used = max(self._used, part.nbytes)
        held: NDArray[Any] = self._memory[: part.nbytes].view(part.dtype).reshape(part.shape)
        return held

    def _pinned(self) -> NDArray[np.uint8]:
        try:
            return np.frombuffer(self._cupy.cuda.alloc_pinned_memory(PIECE), np.uint8, PIECE)
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status != _NO_HOST_MEMORY:
                raise
            return np.empty(PIECE, np.uint8)  # not pinned: slower, but correct


_Pair = tuple[_Buffer, _Buffer]


def _send(pieces: _Pieces, pair: _Pair) -> None:
    for buffer, part, pointer in _taken(pieces, pair):
        buffer.send(part, pointer)


def _receive(pieces: _Pieces, pair: _Pair) -> None:
    coming: deque[tuple[_Buffer, NDArray[Any]]] = deque()
    for buffer, part, pointer in _taken(pieces, pair):
        buffer.receive(part, pointer)
        coming.append((buffer, part))
        if len(coming) == len(pair):
            first, part = coming.popleft()
            first.take(part)
    for buffer, part in coming:
        buffer.take(part)


def _taken(pieces: _Pieces, pair: _Pair) -> Iterator[tuple[_Buffer, NDArray[Any], Any]]:
    """The pieces of a copy to or from the GPU that this thread takes, each with one of its two pinned buffers."""
    for buffer in cycle(pair):
        try:
            part, pointer = pieces.popleft()
        except IndexError:
            return
        yield buffer, part, pointer


def _cut(matrix: NDArray[Any], pointer: Any) -> Iterator[tuple[NDArray[Any], Any]]:
    """The pieces of a matrix and their device pointers: whole rows, or parts of one row, of at most PIECE bytes."""
    if not matrix.size:
        return
    height, width = matrix.shape
    down, across = max(1, PIECE // (width * matrix.itemsize)), PIECE // matrix.itemsize
    for top in range(0, height, down):
        for left in range(0, width, across):
            part = matrix[top : top + down, left : left + across]
            yield part, pointer + (top * width + left) * matrix.itemsize
