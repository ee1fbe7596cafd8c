"""The file of a matrix whose rows arrive one by one, each from a different caller; it becomes an .npy file in place.

The file begins sparse, with one row for everybody who may send one and without a header. The holder of a row's lock
writes the row in its place. `close` moves the last rows into the gaps, cuts the file, and what is left is the array.
All of it may be repeated after a crash at any point, and by several processes at once.
"""

import fcntl
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from warpdesk.durable import force
from warpdesk.models import DType
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.disk import require_room

_START = 128  # bytes of a header, whatever the shape: the data begin at a multiple of 64
_PIECE = 4 << 20  # bytes moved or overwritten at a time


class RowTaken(Exception):
    """Raised if another caller is writing this row of a stored matrix."""


class Closed(Exception):
    """Raised if a stored matrix is closed and takes no more rows."""


class Rows:
    """A stored matrix of `count` rows of `row_bytes` bytes each, in `file`."""

    def __init__(self, file: Path, count: int, row_bytes: int, *, forced: bool, kept_free: int = 0) -> None:
        self.file = file
        self._count, self._row_bytes, self._forced, self._kept_free = count, row_bytes, forced, kept_free

    def begin(self) -> None:
        """Make the stored matrix's file, unless it exists."""
        if self.file.exists():
            return
        fresh = self.file.with_name(secrets.token_hex(16))
        try:
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                stream.truncate(_START + self._count * self._row_bytes)
            with suppress(FileExistsError):
                os.link(fresh, self.file)  # with its length from the first moment
        finally:
            fresh.unlink(missing_ok=True)

    def open(self, number: int) -> "Row":
        """Lock a row of the matrix's file for writing, until it is closed or its process ends. Raises RowTaken while
        another caller holds it."""
        start = _START + number * self._row_bytes
        descriptor = os.open(self.file, os.O_RDWR | os.O_CLOEXEC)
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, self._row_bytes, 0)  # struct flock
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError | PermissionError):
                raise RowTaken from None
            raise
        return Row(descriptor, start, self._row_bytes, forced=self._forced, kept_free=self._kept_free)

    def close(self, keep: Sequence[int], dtype: DType, shape: tuple[int, int]) -> list[int]:
        """Close the matrix's file and turn the rows to keep into the stored array; returns the number of the row at
        each place.

        Every row has to be written by then: an upload that still runs ends with Closed. Only as many rows are moved
        as are missing among the first.
        """
        order, header = arranged(keep), npy.header(dtype, shape)
        if len(header) != _START or shape[0] != len(keep):
            raise ValueError(f"an array of shape {list(shape)} does not begin after {_START} bytes, or has other rows")
        descriptor = os.open(self.file, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = _START + len(keep) * self._row_bytes
            if os.fstat(descriptor).st_size == size and os.pread(descriptor, _START, 0) == header:
                return order
            os.pwrite(descriptor, header, 0)  # from here on nobody writes but who holds the lock
            for place, number in enumerate(order):
                if place != number:
                    self._move(descriptor, number, place)
            if self._forced:
                os.fsync(descriptor)
            os.ftruncate(descriptor, size)
            if self._forced:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return order

    def _move(self, descriptor: int, number: int, place: int) -> None:
        source, target = (_START + row * self._row_bytes for row in (number, place))
        for at in range(0, self._row_bytes, _PIECE):
            piece = os.pread(descriptor, min(_PIECE, self._row_bytes - at), source + at)
            _write(descriptor, [piece], target + at)

    def delete(self) -> None:
        with suppress(FileNotFoundError):
            self.file.unlink()
            if self._forced:
                force(self.file.parent)


class Row:
    """The writer of one row of a stored matrix. Its opener must close it."""

    def __init__(self, descriptor: int, start: int, size: int, *, forced: bool, kept_free: int = 0) -> None:
        self._descriptor, self._start, self._size, self._forced = descriptor, start, size, forced
        self._kept_free = kept_free
        self._written = 0

    def write(self, pieces: Sequence[bytes]) -> None:
        """Append pieces to the row of the matrix's file. Raises ValueError past the row's length, Closed once the
        matrix is closed, and OSError if there is no room."""
        length = sum(map(len, pieces))
        if self._written + length > self._size:
            raise ValueError(f"{self._written + length} bytes are more than the row's {self._size}")
        require_room(self._descriptor, length, self._kept_free)
        with self._open():
            _write(self._descriptor, pieces, self._start + self._written)
        self._written += length

    def finish(self) -> None:
        """Force the row to the disk, if the store is durable. Raises ValueError if bytes are missing."""
        if self._written != self._size:
            raise ValueError(f"{self._written} bytes are fewer than the row's {self._size}")
        if self._forced:
            os.fsync(self._descriptor)

    def erase(self) -> None:
        """Overwrite with zeros what was written to the matrix's file, unless the matrix is closed and the place holds
        another row."""
        with suppress(Closed), self._open():
            for at in range(0, self._written, _PIECE):
                _write(self._descriptor, [bytes(min(_PIECE, self._written - at))], self._start + at)

    def close(self) -> None:
        os.close(self._descriptor)

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Hold a shared lock of the matrix's file that keeps `Rows.close` from beginning. Raises Closed after it has
        begun."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)
        try:
            if os.pread(self._descriptor, 1, 0) != b"\0":
                raise Closed
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)


def arranged(keep: Sequence[int]) -> list[int]:
    """The row number for each place of the final array file: rows that fit where they are stay; the last rows fill the
    gaps."""
    kept = set(keep)
    last = iter(sorted(row for row in kept if row >= len(kept)))
    return [place if place in kept else next(last) for place in range(len(kept))]


def _write(descriptor: int, pieces: Sequence[bytes], at: int) -> None:
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            written = os.pwrite(descriptor, rest, at)
            rest, at = rest[written:], at + written
