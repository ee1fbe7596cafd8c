"""The writer of .npy files: numbers are hashed as they come, and the disk keeps its reserve."""

import errno
import os
import tempfile
from collections import deque
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.disk import require_room
from warpdesk_server.workers.store.secret import id_of

# Pieces that one call writes; Linux takes 1,024 (IOV_MAX).
_MANY = 1024

# A file is given its place on the disk a stretch at a time: cheaper than a page at a time, and an upload that declares
# much and sends little holds little. A small one does without.
_RESERVED_AT_ONCE = 16 << 20
_RESERVED_FROM = 256 << 10


class NpyWriter:
    """Numbers on their way into an .npy file, hashed as they come. So many bytes of the disk stay free."""

    def __init__(self, file: Path, info: ArrayInfo, mac: blake3, kept_free: int) -> None:
        self._info, self._mac, self._file, self._kept_free = info, mac, file, kept_free
        self._left = info.nbytes
        self.header = npy.header(info.dtype, info.shape)
        self._taken: deque[bytes | memoryview] = deque([self.header])
        self._size = len(self.header) + info.nbytes
        self._written = self._reserved = 0
        self._stream: BinaryIO | None = None

    def take(self, chunk: bytes | memoryview) -> None:
        """Append C-ordered little-endian bytes, which must not change before they are flushed; raises ValueError past
        the size the shape declares. They are hashed at once, while the processor still has them at hand."""
        size = memoryview(chunk).nbytes
        if size > self._left:
            raise ValueError(
                f"{self._info.dtype} of shape {list(self._info.shape)} has {self._info.nbytes} bytes, "
                f"got at least {self._info.nbytes - self._left + size}"
            )
        self._mac.update(chunk)
        self._taken.append(chunk)
        self._left -= size

    def flush(self) -> None:
        """Write what was taken. One thread may do so while another takes more."""
        if self._stream is None:
            self._stream = self._file.open("x+b", buffering=0)  # (where it is emulated, a reservation reads)
        while self._taken:
            chunks = [self._taken.popleft() for _ in range(min(len(self._taken), _MANY))]
            size = sum(memoryview(chunk).nbytes for chunk in chunks)
            require_room(self._stream.fileno(), size, self._kept_free)
            if size >= _RESERVED_FROM and self._written + size > self._reserved:
                self._reserve(self._stream, size)
            _write(self._stream, chunks)
            self._written += size

    def _reserve(self, stream: BinaryIO, size: int) -> None:
        """Only an advice, except that a full disk refuses it. At most twice what came is reserved: whoever stops in the
        middle holds little of the disk."""
        ahead = min(self._written + 2 * size, _RESERVED_AT_ONCE)  # so that few calls do
        stretch = min(max(size, ahead), self._size - self._written)
        self._reserved = self._written + stretch
        try:
            os.posix_fallocate(stream.fileno(), self._written, stretch)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            self._reserved = self._size  # the file system reserves nothing: do not ask again

    def finish(self) -> str:
        """Write the last of it; returns the id the numbers have. Raises ValueError when bytes are missing."""
        if self._left:
            raise ValueError(
                f"{self._info.dtype} of shape {list(self._info.shape)} has {self._info.nbytes} bytes, "
                f"got {self._info.nbytes - self._left}"
            )
        self.flush()
        self.close()
        return id_of(self._mac)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


class Scratch:
    """A file that is gone when it is closed. So many bytes of its disk stay free."""

    def __init__(self, directory: Path, kept_free: int) -> None:
        self._directory, self._kept_free = directory, kept_free
        self._file: BinaryIO | None = None

    def write(self, chunk: bytes | memoryview) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - closed below
        require_room(self._file.fileno(), memoryview(chunk).nbytes, self._kept_free)
        self._file.write(chunk)

    def whole(self) -> BinaryIO:
        """The file with everything that was written; at least one byte was."""
        assert self._file is not None  # noqa: S101
        self._file.flush()
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _write(stream: BinaryIO, chunks: list[bytes | memoryview]) -> None:
    """Write all of it, in one call unless the kernel takes less: each call is a hand-over of the interpreter's lock."""
    written = os.writev(stream.fileno(), chunks)
    for chunk in chunks:
        rest = memoryview(chunk)[written:]
        written = max(0, written - len(chunk))
        while rest:
            rest = rest[stream.write(rest) :]
