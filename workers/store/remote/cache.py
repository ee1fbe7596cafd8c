"""The cache of inputs that came through the API: files for other jobs, bounded in bytes and in time."""

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.protocol import StoredArray


@dataclass(frozen=True)
class HeldInput:
    """An input that was fetched over HTTP: its open file, or the error for which there is none."""

    file: BinaryIO | None = None
    stored: StoredArray | None = None
    error: OSError | None = None


class InputCache:
    """The remote store's cache of inputs for one boot of the machine, with files named by the digits of the array
    ids."""

    def __init__(self, folder: Path, most_bytes: int, seconds: float) -> None:
        # A cache outlives no boot: after a power cut a file may have the right length and other bytes.
        self._folder = folder / Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._most_bytes, self._seconds = most_bytes, seconds
        for directory in (folder, self._folder):
            directory.mkdir(mode=0o700, exist_ok=True)

    def add(self, name: str, file: Path, info: ArrayInfo) -> None:
        """Move a whole file from the API into the cache of inputs."""
        (self._folder / f"{name}.json").write_text(json.dumps(asdict(info)))
        file.replace(self._folder / f"{name}.npy")

    def find(self, name: str) -> HeldInput | None:
        try:
            file = (self._folder / f"{name}.npy").open("rb", buffering=0)
        except FileNotFoundError:
            return None
        try:
            fields = json.loads((self._folder / f"{name}.json").read_bytes())
            info = ArrayInfo(fields["dtype"], tuple(fields["shape"]), fields["has_nan"], fields["has_inf"])
            if is_whole(file, info):
                os.utime(file.fileno())
                return HeldInput(file, stored(f"blake3:{name}", info))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # being evicted, or damaged
        file.close()
        return None

    def evict(self, most: int | None = None) -> None:
        """Delete cached inputs of the API that were not used for long, and then the oldest until the rest is within the
        limit.

        A process that has one open can still read it.
        """
        found = []
        for file in self._folder.glob("*.npy"):
            with suppress(FileNotFoundError):
                status = file.stat()
                found.append((status.st_mtime, status.st_size, file))
        left, oldest = sum(size for _, size, _ in found), time.time() - self._seconds
        for used_at, size, file in sorted(found):
            if used_at >= oldest and left <= (self._most_bytes if most is None else most):
                break
            file.unlink(missing_ok=True)
            file.with_suffix(".json").unlink(missing_ok=True)
            left -= size

    def make_room(self) -> None:
        self.evict(0)

    def delete_earlier(self) -> None:
        """Delete the remote store's caches of earlier boots of the machine."""
        for cache in self._folder.parent.iterdir():
            if cache != self._folder:
                shutil.rmtree(cache, ignore_errors=True)


def stored(array_id: str, info: ArrayInfo) -> StoredArray:
    now = time.time()
    return StoredArray(array_id, info, created_at=now, expires_at=now)


def is_whole(file: BinaryIO, info: ArrayInfo) -> bool:
    header = npy.header(info.dtype, info.shape)
    size = os.fstat(file.fileno()).st_size
    return size == len(header) + info.nbytes and os.pread(file.fileno(), len(header), 0) == header


def write(file: BinaryIO, piece: bytes | memoryview, make_room: Callable[[], None]) -> None:
    rest = memoryview(piece)
    room_made = False
    while rest:
        try:
            rest = rest[file.write(rest) :]
        except OSError as error:
            if room_made or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            make_room()
            room_made = True
