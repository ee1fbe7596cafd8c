"""The writers of a store's files, which hash what arrives and leave the disk's reserve free."""

import errno
import os
import tempfile
from collections import deque
from pathlib import Path
from typing import BinaryIO, Protocol

from blake3 import blake3

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.disk import require_room
from warpdesk_server.workers.store.secret import id_of

# The most pieces that one writev(2) call writes; Linux takes 1,024 (IOV_MAX).
_MANY = 1024

# Disk space is reserved for a file in stretches. That is cheaper than page by page, and an upload that declares much
# and sends little holds little. Nothing is reserved for a small file.
_RESERVED_AT_ONCE = 16 << 20
_RESERVED_FROM = 256 << 10

# A large file of a durable store is forced to the disk in stretches while it is written. All at once, at its end, it
# would keep the small files of others from the disk for as long: 0.4 s of a gigabyte, measured, and 0.05 s so.
STRETCH = 16 << 20


class Digest(Protocol):
    """A digest of what a file of the store holds."""

    def update(self, data: bytes | memoryview, /) -> object: ...

    def hexdigest(self) -> str: ...


class FileWriter:
    """The writer of one file in a store. It hashes the bytes as they arrive, and `kept_free` bytes of the disk stay
    free.

    What is `forced`, because the store is durable, is nearly on the disk by the time it is whole.
    """

    def __init__(
        self,
        file: Path,
        size: int,
        digest: Digest,
        kept_free: int,
        *,
        forced: bool,
        header: bytes = b"",
        what: str = "the file",
    ) -> None:
        """A file of so many bytes after its `header`, which is not hashed; `what` it is, in errors."""
        self._digest, self._file, self._kept_free, self._forced = digest, file, kept_free, forced
        self._content, self._left, self._what = size, size, what
        self.header = header
        self._taken: deque[bytes | memoryview] = deque([header])
        self._size = len(header) + size
        self._written = self._reserved = self._on_disk = 0
        self._stream: BinaryIO | None = None

    def take(self, chunk: bytes | memoryview) -> None:
        """Append bytes to the stored file; they must not change before they are flushed. Raises ValueError past the
        declared size. The bytes are hashed at once, while they are in the processor's cache."""
        size = memoryview(chunk).nbytes
        if size > self._left:
            came = self._content - self._left + size
            raise ValueError(f"{self._what} has {self._content} bytes, got at least {came}")
        self._digest.update(chunk)
        self._taken.append(chunk)
        self._left -= size

    def flush(self) -> None:
        """Write the bytes that were taken to the stored file on disk. One thread may do so while another takes more."""
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
            if self._forced and self._written - self._on_disk >= STRETCH:
                os.fdatasync(self._stream.fileno())
                self._on_disk = self._written

    def _reserve(self, stream: BinaryIO, size: int) -> None:
        """Reserve disk space for the next bytes of the file. It is only advice to the file system, but a full disk
        refuses it. At most twice what came is reserved: an upload that stops in the middle holds little of the disk."""
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
        """Write the rest of the stored file and close it; returns its digest in hexadecimal. Raises ValueError when
        bytes are missing."""
        if self._left:
            raise ValueError(f"{self._what} has {self._content} bytes, got {self._content - self._left}")
        self.flush()
        self.close()
        return self._digest.hexdigest()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


class NpyWriter(FileWriter):
    """The writer of one .npy file in a store, which takes C-ordered little-endian bytes."""

    def __init__(self, file: Path, info: ArrayInfo, mac: blake3, kept_free: int, *, forced: bool) -> None:
        what = f"{info.dtype} of shape {list(info.shape)}"
        header = npy.header(info.dtype, info.shape)
        super().__init__(file, info.nbytes, mac, kept_free, forced=forced, header=header, what=what)
        self._info, self._mac = info, mac

    def finish(self) -> str:
        """Write the rest of the .npy file and close it; returns the array's id. Raises ValueError when bytes are
        missing."""
        super().finish()
        return id_of(self._mac)


class Scratch:
    """A temporary file of the store, which is gone when it is closed. `kept_free` bytes of its disk stay free."""

    def __init__(self, directory: Path, kept_free: int) -> None:
        self._directory, self._kept_free = directory, kept_free
        self._file: BinaryIO | None = None

    def write(self, chunk: bytes | memoryview) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - closed below
        require_room(self._file.fileno(), memoryview(chunk).nbytes, self._kept_free)
        self._file.write(chunk)

    def whole(self) -> BinaryIO:
        """The store's temporary file, with everything written and flushed. Call it only after at least one byte was
        written."""
        assert self._file is not None  # noqa: S101
        self._file.flush()
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _write(stream: BinaryIO, chunks: list[bytes | memoryview]) -> None:
    """Write all chunks to a file of the store, in one call unless the kernel takes less: each call hands over the
    interpreter's lock."""
    written = os.writev(stream.fileno(), chunks)
    for chunk in chunks:
        rest = memoryview(chunk)[written:]
        written = max(0, written - len(chunk))
        while rest:
            rest = rest[stream.write(rest) :]
