"""The store's disk: files are forced to it, so that they survive a power cut, and a reserve of it is kept free.

Files are forced one by one, or the file system as a whole: that is one wait for the disk instead of several for each
file. On ext4 and a virtual SSD, 64 directories with two small files each: 50 ms one after another, 20 ms in eight
threads, 3 ms as a whole.
"""

import ctypes
import errno
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from warpdesk.durable import force

# The most dirty bytes, of all processes, with which the file system is forced as a whole: it writes all of them.
_LITTLE = 16 << 20
_THREADS = 8  # ext4 writes its journal once for all that wait for it; more threads are no quicker
# statfs(2): file systems whose syncfs(2) waits as fsync(2) does. FUSE's may not tell its server at all.
_WHOLE = frozenset({0xEF53, 0x58465342, 0x9123683E})  # ext2 to ext4, XFS, Btrfs
_TOLD_SINCE = (5, 8)  # the kernel from which on syncfs(2) says that something could not be written

_WAITING = re.compile(rb"^(?:Dirty|Writeback):\s+(\d+) kB$", re.MULTILINE)

# The reserve for Redis, the ledger and the audit log: a part of the disk, within bounds. Redis writes its
# append-only file anew once it has doubled, from 64 MB on.
_KEPT_PART, _KEPT_LEAST, _KEPT_MOST, _KEPT_OF_SMALL = 20, 1 << 30, 4 << 30, 4

_libc = ctypes.CDLL(None, use_errno=True)


def size(path: Path) -> int:
    """The size in bytes of the disk that a directory of the store is on."""
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize


def free(path: Path | int) -> int:
    """The free bytes of the disk that a directory or an open file of the store is on."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def reserve(path: Path) -> int:
    """The bytes to keep free on the store's disk: a twentieth, at least 1 and at most 4 GiB, and never more than a
    quarter."""
    whole = size(path)
    return min(max(whole // _KEPT_PART, _KEPT_LEAST), _KEPT_MOST, whole // _KEPT_OF_SMALL)


class Reserved(OSError):
    """A write to the store was refused because it would use the disk space that is kept free. Its errno is that of a
    full disk."""

    def __init__(self, more: int, kept: int) -> None:
        # Without the free space: it depends on all owners, and one owner reads the sentence.
        self.sentence = (
            f"{more} bytes more would not leave the {kept} bytes of the disk that are kept for Redis and the ledger"
        )
        super().__init__(errno.ENOSPC, self.sentence)


def require_room(path: Path | int, more: int, kept: int) -> None:
    """Raise Reserved if `more` bytes would use the space that is kept free on the store's disk."""
    if kept and free(path) - more < kept:
        raise Reserved(more, kept)


def force_files(files: Sequence[Path], parent: Path) -> None:
    """Force the store's files and directories, all on the file system of `parent`, to the disk. Raises OSError."""
    if _dirty() > _LITTLE or not _force_all_of(parent):
        force(*files)


def force_directories(directories: Sequence[Path], parent: Path, moved_from: Sequence[Path]) -> None:
    """Force the store's directories in `parent`, and the files in each, to the disk. Raises OSError.

    They were moved here from the directories `moved_from`, which are forced too: on a file system without a journal a
    check after a power cut could otherwise leave either place.
    """
    if not directories:
        return
    if _dirty() <= _LITTLE and _force_all_of(parent):
        return
    with ThreadPoolExecutor(min(_THREADS, len(directories))) as threads:
        list(threads.map(_force_tree, directories))
    force(parent, *moved_from)


@cache
def boot() -> str:
    """The id that Linux gives the present boot, noted beside stored arrays; empty if the system has none.

    No power cut can have damaged a file of the store that was written in the present boot.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _force_tree(directory: Path) -> None:
    force(*sorted(directory.iterdir()), directory)


def _force_all_of(path: Path) -> bool:
    """Force the whole file system that a directory of the store is on; False if its syncfs(2) guarantees too little."""
    if not _tells(os.uname().release):
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _kind(descriptor) not in _WHOLE:
            return False
        if _libc.syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
        return True
    finally:
        os.close(descriptor)


def _tells(release: str) -> bool:
    version = re.match(r"(\d+)\.(\d+)", release)
    return version is not None and (int(version[1]), int(version[2])) >= _TOLD_SINCE


def _kind(descriptor: int) -> int:
    """The magic number of the store's file system: the first word of `struct statfs`."""
    found = (ctypes.c_long * 64)()
    return 0 if _libc.fstatfs(descriptor, found) else found[0] & 0xFFFFFFFF


def _dirty() -> int:
    """The bytes of all file systems that Linux has not written to disk yet: what forcing the store's whole disk would
    write."""
    try:
        descriptor = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return _LITTLE + 1
    try:  # in one call: it is asked once for each result, and each call makes the kernel count anew
        size_answer = os.read(descriptor, 1 << 14)
    finally:
        os.close(descriptor)
    return 1024 * sum(map(int, _WAITING.findall(size_answer)))
