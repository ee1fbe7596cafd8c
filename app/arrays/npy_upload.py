"""The .npy upload of arrays: parsed, checked and hashed in pieces, as they arrive."""

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import numpy as np

from warpdesk.models import DType
from warpdesk_server.app.arrays.ndarray import Numbers, as_bytes, oddities
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.kernels.array import ITEMSIZE
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.protocol import ArrayWriter, StoredArray

OpenWriter = Callable[[DType, tuple[int, ...]], ArrayWriter]

BLOCK = 1 << 20  # bytes of a column-major array that are turned at once


class NpyUpload:
    """An .npy upload that is written to the store while it arrives. Only unwritten pieces are in memory.

    `take` only computes, so that an event loop may call it; `flush`, `finish` and `discard` wait for the disk and
    belong in a thread. Big-endian numbers are swapped and Fortran order is turned into C order (through a scratch
    file), so that what is stored is always C-ordered and little-endian. An upload that is not finished must be
    discarded.
    """

    def __init__(self, open_writer: OpenWriter, limit: int, length: int | None) -> None:
        self._open_writer = open_writer
        self._limit = limit
        self._length = length
        self.end: int | None = None  # bytes of the whole file, known once its header has come
        self._head = b""
        self._writer: ArrayWriter | _Turned | None = None
        self._rest = b""  # a number cut in two by the end of a piece
        self._received = 0  # bytes of numbers
        self._has_nan = self._has_inf = False

    def take(self, piece: bytes) -> None:
        """Check and hash the next bytes of the .npy upload now, while they are in the processor's cache."""
        if self._writer is None:
            self._head += piece
            found = _header(self._head)
            if found is None:
                return
            header, start = found
            self._writer = self._open(header, start)
            piece, self._head = self._head[start:], b""
        self._received += len(piece)
        if self._received > self._bytes:
            raise self.overlong()
        numbers = memoryview(piece)
        looked_at = [self._look(whole) for whole in self._whole_numbers(numbers)]
        for chunk in looked_at if self._swap else [numbers]:
            self._writer.take(chunk)

    def flush(self) -> None:
        """Write the pieces of the .npy upload taken so far to the store. One thread may do so while another takes
        more."""
        if self._writer is not None:
            self._writer.flush()

    def finish(self, flushing: "Future[None] | None" = None) -> StoredArray:
        """Write the .npy upload's last bytes, after any running flush, and publish the array. Refuses a file that
        ended early."""
        if flushing is not None:
            flushing.result()
        if self._writer is None:
            start = "starts with" if self._head.startswith(npy.MAGIC[: len(self._head)]) else "does not start with"
            raise _malformed(
                f"the body ends after {len(self._head)} bytes inside the npy header; it {start} the magic string"
            )
        if self._received < self._bytes:
            raise _malformed(
                f"the header declares {self._declared}, {self._bytes} bytes of numbers; the body holds {self._received}"
            )
        stored = self._writer.commit(has_nan=self._has_nan, has_inf=self._has_inf)
        self.discard()
        return stored

    def overlong(self) -> Refusal:
        return _malformed(f"the header declares {self._declared}, {self._bytes} bytes of numbers; the body holds more")

    def discard(self) -> None:
        """Delete the bytes of the .npy upload, unless they were published."""
        if self._writer is not None:
            self._writer.__exit__(None, None, None)

    def _open(self, header: npy.Header, start: int) -> "ArrayWriter | _Turned":
        self._dtype, self._swap, shape = header.dtype, header.swapped, header.shape
        self._bytes = math.prod(shape) * ITEMSIZE[self._dtype]
        self._declared = f"{self._dtype} of shape {list(shape)}"
        if self._bytes > self._limit:
            raise Refusal("array-too-large", f"{self._declared} is {self._bytes} bytes; the limit is {self._limit}")
        if self._length is not None and self._length - start != self._bytes:
            raise _malformed(
                f"the header declares {self._declared}, {self._bytes} bytes of numbers; "
                f"the body holds {self._length - start}"
            )
        self.end = start + self._bytes
        writer = self._open_writer(self._dtype, shape).__enter__()
        self._writer = writer  # is discarded, also where there is no room to turn it
        if header.fortran and self._bytes and sum(extent > 1 for extent in shape) > 1:
            return _Turned(writer, self._dtype, shape)
        return writer

    def _whole_numbers(self, piece: memoryview) -> Iterator[memoryview]:
        """The whole numbers in a piece of an .npy upload. Only a number cut between two pieces is copied."""
        size = ITEMSIZE[self._dtype]
        if self._rest:
            missing = size - len(self._rest)
            self._rest += bytes(piece[:missing])
            piece = piece[missing:]
            if len(self._rest) < size:
                return
            yield memoryview(self._rest)
        whole = len(piece) - len(piece) % size
        self._rest = bytes(piece[whole:])
        if whole:
            yield piece[:whole]

    def _look(self, whole: memoryview) -> memoryview:
        numbers = np.frombuffer(whole, np.dtype(self._dtype))
        if self._swap:
            numbers = numbers.byteswap()
            whole = as_bytes(numbers)
        has_nan, has_inf = oddities(numbers)
        self._has_nan |= has_nan
        self._has_inf |= has_inf
        return whole


class _Turned:
    """The writer of a column-major .npy upload: it collects a scratch file, and transposes it at the end."""

    def __init__(self, writer: ArrayWriter, dtype: DType, shape: tuple[int, ...]) -> None:
        self._writer, self._dtype, self._shape = writer, np.dtype(dtype), shape
        self._taken: deque[memoryview] = deque()
        self._scratch = writer.scratch()

    def take(self, chunk: memoryview) -> None:
        self._taken.append(chunk)

    def flush(self) -> None:
        while self._taken:
            self._scratch.write(self._taken.popleft())

    def commit(self, *, has_nan: bool, has_inf: bool) -> StoredArray:
        """Write the .npy upload's numbers to the store in row-major order, a block at a time."""
        self.flush()
        columns = np.memmap(self._scratch.whole(), self._dtype, "r", shape=self._shape, order="F")
        for block in _in_rows(columns, BLOCK // self._dtype.itemsize):
            self._writer.take(as_bytes(block))
            self._writer.flush()
        return self._writer.commit(has_nan=has_nan, has_inf=has_inf)

    def __exit__(self, *error: object) -> None:
        self._scratch.close()
        self._writer.__exit__(*error)


def _in_rows(numbers: Numbers, most: int) -> Iterator[Numbers]:
    """Blocks of a column-major .npy upload that follow each other in row-major order, each of `most` numbers or
    fewer."""
    rows = most * numbers.shape[0] // numbers.size
    if rows == 0 and numbers.ndim > 1:
        for row in numbers:
            yield from _in_rows(row, most)
    else:
        for first in range(0, numbers.shape[0], max(1, rows)):
            yield numbers[first : first + max(1, rows)]


def _header(head: bytes) -> tuple[npy.Header, int] | None:
    """Parse the header of an .npy upload: its fields, and where the numbers start; None while it is incomplete."""
    try:
        size = npy.header_size(head)
        return (npy.parse(head[:size]), size) if size is not None and len(head) >= size else None
    except npy.Malformed as error:
        raise _malformed(str(error)) from None


def _malformed(sentence: str) -> Refusal:
    return Refusal("malformed-array", sentence[0].upper() + sentence[1:])
