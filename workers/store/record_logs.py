"""Record logs of a store: append-only files of an owner, by name, whose records are whole or not there.

datasets/<keyed owner>/   one directory per API key
  owner                   its id
  <name>.log              records, one after another

A record is a prefix of 32 bytes, a JSON header and a payload, both padded to 8 bytes. The prefix has the lengths and a
digest of the record and of the digest before it. `append` returns once the record is on the disk.

Every step may be cut off by kill -9. A record that was being written has a wrong digest: readers end before it, and
the next writer cuts it off. One that is whole is there, acknowledged or not: whoever reads it first forces it to the
disk. Writers and deletions hold the exclusive lock of the file, in which the kernel lets go of a process that ends.
A file appears with its first record, by a link that never replaces another.
"""

import errno
import fcntl
import json
import mmap
import os
import re
import secrets
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from warpdesk.durable import force, write_new
from warpdesk.models import DATASET_NAME
from warpdesk_server.workers.store.disk import require_room
from warpdesk_server.workers.store.files import alone_in, unlink
from warpdesk_server.workers.store.secret import StoreKeys
from warpdesk_server.workers.store.usage import Usage, on_disk

_PREFIX = struct.Struct("<4sIQ16s")  # magic, bytes of the header, bytes of the payload, digest
_MAGIC = b"WDL1"
_NO_DIGEST = bytes(16)
_ALIGNED = 8
_SUFFIX = ".log"
_NAME = re.compile(DATASET_NAME)

PATIENCE = 2.0  # seconds that a reader waits for a writer
_waits = threading.BoundedSemaphore(64)  # readers that wait in this process, and threads of those that gave up


class NoLog(Exception):
    """There is no record log of this name, or it was deleted meanwhile."""


class LogExists(Exception):
    """There is a record log of this name already."""


class TooManyLogs(Exception):
    """The owner has as many record logs as it may."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


class LogBusy(Exception):
    """A writer has held the record log for as long as a reader waits."""


class DamagedLog(OSError):
    """A record log in whose middle a record is damaged, which no crash explains."""


@dataclass(frozen=True)
class Record:
    """A whole record of a log: its header, and where its payload is in the file."""

    header: Mapping[str, Any]
    start: int
    end: int
    digest: bytes


class RecordLogs:
    """The record logs of all owners. A process that writes them counts their bytes in `usage`."""

    def __init__(self, root: Path, keys: StoreKeys, *, forced: bool, kept_free: int, usage: Usage | None) -> None:
        self._root, self._keys, self._usage = root, keys, usage
        self._place, self._uploads = root / "datasets", root / "uploads"
        self.forced, self._kept_free = forced, kept_free

    def create(self, owner: str, name: str, header: Mapping[str, Any], most: int) -> None:
        """Make a log with its first record, which has no payload. Raises LogExists, TooManyLogs beyond `most` logs of
        the owner, and QuotaPassed, StoreFull or OSError if there is no room."""
        directory = self._directory(owner)
        self._begin_owner(owner, directory)
        fresh, content = self._uploads / secrets.token_hex(16), b"".join(_record(_NO_DIGEST, header, []))
        try:
            with self._counted(owner, on_disk(len(content))):
                write_new(fresh, content)
                with alone_in(directory):
                    if self._path(owner, name).exists():
                        raise LogExists(name)
                    if (count := len(self.names(owner))) >= most:
                        raise TooManyLogs(count)
                    os.link(fresh, self._path(owner, name))
                    if self.forced:
                        force(directory)
                self._note(owner, name, len(content), on_disk(len(content)))
        finally:
            unlink(fresh)

    def names(self, owner: str) -> list[str]:
        """The names of the owner's logs, sorted."""
        return sorted(file.name.removesuffix(_SUFFIX) for file in self._directory(owner).glob(f"*{_SUFFIX}"))

    @contextmanager
    def reading(self, owner: str, name: str) -> Iterator["RecordLog"]:
        """The log, open for reading: what is appended or deleted meanwhile does not change what was read. Raises
        NoLog."""
        yield from self._opened(owner, name, os.O_RDONLY)

    @contextmanager
    def writing(self, owner: str, name: str) -> Iterator["RecordLog"]:
        """The log under its exclusive lock: nobody else appends to it or deletes it meanwhile. Raises NoLog."""
        yield from self._opened(owner, name, os.O_RDWR)

    def delete(self, owner: str, name: str) -> None:
        """Delete the log. Raises NoLog."""
        with self.writing(owner, name):
            unlink(self._path(owner, name))
            if self.forced:
                force(self._directory(owner))
            if self._usage is not None:
                self._usage.remove_log(owner, name)

    def _opened(self, owner: str, name: str, flags: int) -> Iterator["RecordLog"]:
        try:
            descriptor = os.open(self._path(owner, name), flags | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NoLog(name) from None
        try:
            if flags & os.O_RDWR:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if not os.fstat(descriptor).st_nlink:  # deleted while this waited
                    raise NoLog(name)
            yield RecordLog(self, descriptor, owner, name, is_locked=bool(flags & os.O_RDWR))
        finally:
            if flags & os.O_RDWR:  # a mapping of the file has a descriptor too, which may live on in an error's frames
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _begin_owner(self, owner: str, directory: Path) -> None:
        """Make the owner's directory, unless it is there with the owner's id. Cut off anywhere, it is made again."""
        if (directory / "owner").exists():
            return
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._uploads / secrets.token_hex(16)
        try:
            write_new(fresh, owner.encode())
            fresh.replace(directory / "owner")
        finally:
            unlink(fresh)
        if self.forced:
            force(directory, self._place, self._root)

    @contextmanager
    def _counted(self, owner: str, size: int) -> Iterator[None]:
        """Count bytes that are about to be written against the quota and the disk's reserve."""
        require_room(self._root, size, self._kept_free)
        if self._usage is None:
            yield
            return
        self._usage.begin(owner, size)
        try:
            yield
        finally:
            self._usage.end(owner, size)

    def _note(self, owner: str, name: str, size: int, more: int) -> None:
        if self._usage is not None:
            self._usage.add_log(owner, name, on_disk(size), more, time.time())

    def _path(self, owner: str, name: str) -> Path:
        """The file of a log. Raises NoLog for a name that none can have, such as "../other"."""
        if not _NAME.fullmatch(name):
            raise NoLog(name)
        return self._directory(owner) / f"{name}{_SUFFIX}"

    def _directory(self, owner: str) -> Path:
        return self._place / self._keys.directory(owner)


class RecordLog:
    """An open record log. Its opener closes it."""

    def __init__(self, logs: RecordLogs, descriptor: int, owner: str, name: str, *, is_locked: bool) -> None:
        self._logs, self._descriptor, self._owner, self._name = logs, descriptor, owner, name
        self.is_locked = is_locked  # exclusively

    def identity(self) -> bytes:
        """The digest of the log's first record, which no other log has."""
        digest: bytes = _PREFIX.unpack(os.pread(self._descriptor, _PREFIX.size, 0))[3]
        return digest

    def records(self, after: Record | None = None) -> list[Record]:
        """The whole records of the log after that one, on the disk. The caller holds a lock. Raises DamagedLog."""
        found = self._read(after)
        if found and self._logs.forced:  # the writer of the last one may have been killed before it was forced
            os.fdatasync(self._descriptor)
        return found

    def content(self, end: int) -> mmap.mmap:
        """The log's bytes up to there, which never change."""
        return mmap.mmap(self._descriptor, end, access=mmap.ACCESS_READ)

    def append(self, last: Record, header: Mapping[str, Any], payload: Sequence[bytes | memoryview]) -> Record:
        """Append a record after the last one, and force it to the disk. The caller holds the exclusive lock.

        Raises QuotaPassed, StoreFull and OSError if it cannot be written; the log is as it was then.
        """
        logs, pieces = self._logs, _record(last.digest, header, payload)
        size = sum(memoryview(piece).nbytes for piece in pieces)
        end = last.end + size
        more = on_disk(end) - on_disk(last.end)
        with logs._counted(self._owner, more):
            try:
                os.ftruncate(self._descriptor, last.end)  # what a writer that was killed has left
                at = last.end
                for piece in pieces:
                    rest = memoryview(piece).cast("B")
                    while rest:
                        written = os.pwrite(self._descriptor, rest, at)
                        rest, at = rest[written:], at + written
                if logs.forced:
                    os.fdatasync(self._descriptor)
            except OSError:
                os.ftruncate(self._descriptor, last.end)
                raise
            logs._note(self._owner, self._name, end, more)
        start = last.end + _PREFIX.size + len(pieces[1])
        return Record(header, start, end, _PREFIX.unpack(pieces[0])[3])

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the log's shared lock: nobody is in the middle of an append, whose last step may fail. Raises
        LogBusy."""
        if self.is_locked:
            yield
            return
        _lock_shared(self._descriptor, self._name)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _read(self, after: Record | None) -> list[Record]:
        at, digest = (0, _NO_DIGEST) if after is None else (after.end, after.digest)
        size = os.fstat(self._descriptor).st_size
        if size <= at:
            return []
        found: list[Record] = []
        with mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ) as content:
            while (record := _next(content, at)) is not None:
                # With forced records only the last can be damaged: those before it were forced before it was written.
                doubtful = record.end == size or not self._logs.forced
                if doubtful and _digest(digest, memoryview(content)[at : record.end]) != record.digest:
                    break
                found.append(record)
                at, digest = record.end, record.digest
            if at < size and self._logs.forced:
                self._require_a_tail(content, at, size)
        return found

    def _require_a_tail(self, content: mmap.mmap, at: int, size: int) -> None:
        """Raise DamagedLog if whole records follow what is no whole record: an append that was cut off is the last."""
        place = content.find(_MAGIC, at + 1)
        while place != -1:
            if place % _ALIGNED == 0 and _next(content, place) is not None:
                raise DamagedLog(errno.EIO, f"the log {self._name} is damaged at byte {at} of {size}")
            place = content.find(_MAGIC, place + 1)


def _lock_shared(descriptor: int, name: str) -> None:
    """Take the shared lock of a file within `PATIENCE` seconds. Raises LogBusy.

    A thread waits for it, since the kernel has no deadline for it, and asking again and again would come after every
    writer that waits. The lock is of the open file: it lasts until this descriptor and its copy are closed.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        pass
    held, copy = threading.Event(), os.dup(descriptor)
    if not _waits.acquire(blocking=False):
        os.close(copy)
        raise LogBusy(name)

    def wait() -> None:
        try:
            fcntl.flock(copy, fcntl.LOCK_SH)
            held.set()
        finally:
            os.close(copy)
            _waits.release()

    threading.Thread(target=wait, name="shared-lock", daemon=True).start()
    if not held.wait(PATIENCE):
        raise LogBusy(name)


def recounted(root: Path) -> dict[tuple[str, str], int]:
    """The disk space of every record log of a store by owner and name."""
    found: dict[tuple[str, str], int] = {}
    with suppress(FileNotFoundError):
        for directory in (root / "datasets").iterdir():
            with suppress(FileNotFoundError, UnicodeDecodeError):
                owner = (directory / "owner").read_text()
                for file in directory.glob(f"*{_SUFFIX}"):
                    with suppress(FileNotFoundError):
                        found[owner, file.name.removesuffix(_SUFFIX)] = on_disk(file.stat().st_size)
    return found


def _record(
    before: bytes, header: Mapping[str, Any], payload: Sequence[bytes | memoryview]
) -> list[bytes | memoryview]:
    """The pieces of a record: its prefix, its header and its payload, whose pieces have a multiple of 8 bytes each."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    size = sum(memoryview(piece).nbytes for piece in payload)
    draft = _PREFIX.pack(_MAGIC, len(text), size, _NO_DIGEST)
    digest = blake3(before)
    for piece in (draft, text, *payload):
        digest.update(memoryview(piece).cast("B"))
    return [_PREFIX.pack(_MAGIC, len(text), size, digest.digest(16)), text, *payload]


def _digest(before: bytes, record: memoryview) -> bytes:
    """The digest that a whole record should have, after the record with the digest `before`."""
    magic, header, payload, _ = _PREFIX.unpack_from(record)
    digest = blake3(before)
    digest.update(_PREFIX.pack(magic, header, payload, _NO_DIGEST))
    digest.update(record[_PREFIX.size :])
    return digest.digest(16)


def _next(content: mmap.mmap, at: int) -> Record | None:
    """The record that begins there, if the file has all the bytes that its prefix says."""
    size = len(content)
    if at + _PREFIX.size > size:
        return None
    magic, header, payload, digest = _PREFIX.unpack_from(content, at)
    start = at + _PREFIX.size + header
    if magic != _MAGIC or start + payload > size:
        return None
    try:
        fields = json.loads(content[at + _PREFIX.size : start])
    except ValueError:
        return None
    return Record(fields, start, start + payload, digest) if isinstance(fields, dict) else None
