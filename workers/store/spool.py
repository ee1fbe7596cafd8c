"""Keep arrays and results as files: streamed in, mapped by workers, erased when their time is over.

root/                       0700
  secret                    0600, 32 bytes; ids are keyed with it
  owners/<keyed owner>/     one directory per API key
    owner                   its id
    <64 hex digits>.npy     an array
    <64 hex digits>.json    its description; an array without one does not exist. Its time is over as late as the file
                            says it was changed, where that is later than what is written in it
  uploads/                  arrays on their way in
  ahead/                    directories made for results that are yet to come
  rows/                     matrices whose rows arrive one by one
  usage/                    how many bytes each owner stores: workers.store.usage
  results/<job>.<attempt>/  result.json and one .npy file per array output
"""

import errno
import fcntl
import json
import logging
import math
import os
import re
import secrets
import shutil
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from blake3 import blake3

from warpdesk_server.kernels.array import ArrayInfo, DType
from warpdesk_server.workers.queue.protocol import ArrayOutput, JobRequest, ResultDocument
from warpdesk_server.workers.settings import Durability
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.disk import boot, force, force_directories, force_files, free, require_room, reserve
from warpdesk_server.workers.store.rows import Rows
from warpdesk_server.workers.store.usage import BLOCK as BLOCK
from warpdesk_server.workers.store.usage import Quota as Quota
from warpdesk_server.workers.store.usage import QuotaPassed as QuotaPassed
from warpdesk_server.workers.store.usage import StoreFull as StoreFull
from warpdesk_server.workers.store.usage import Usage
from warpdesk_server.workers.store.usage import on_disk as on_disk

log = logging.getLogger("warpdesk.store")

_ARRAY_ID = re.compile(r"blake3:([0-9a-f]{64})")
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,128}")
_RESULT_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}\.[0-9]{1,9}")

# An upload or an attempt that has not been touched for this long was abandoned by its process.
UNKNOWN_ID = "blake3:" + "0" * 64  # of an array whose id only another host can compute
_ABANDONED_SECONDS = 24 * 3600.0

# Longer than a submission takes from its check to the queue.
_CHECKED_SECONDS = 120.0

# Pieces that one call writes; Linux takes 1,024 (IOV_MAX).
_MANY = 1024

# A file is given its place on the disk a stretch at a time: cheaper than a page at a time, and an upload that declares
# much and sends little holds little. A small one does without.
_RESERVED_AT_ONCE = 16 << 20
_RESERVED_FROM = 256 << 10

# Bytes of an array that others of its owner may wait for.
_FORCED_AT_ONCE = 1 << 20

# Bytes of an array that is shown before it is on the disk: hashed in 0.1 ms.
_PROVEN = 256 << 10


_SECRET_BYTES = 32


class UnusableStore(Exception):
    """The directory cannot be used as a store; the message says what to do."""


@dataclass(frozen=True)
class StoredArray:
    id: str  # "blake3:" + keyed BLAKE3(the owner's secret, dtype, shape and content), 64 hexadecimal digits
    info: ArrayInfo
    created_at: float
    expires_at: float


class ArrayWriter(Protocol):
    """An array on its way in. Use as a context manager: leaving it without `commit` deletes what was written."""

    def take(self, chunk: bytes | memoryview) -> None:
        """Append C-ordered little-endian bytes, which must not change before they are flushed; raises ValueError past
        the size the shape declares. Computes only: it never waits for a disk."""

    def flush(self) -> None:
        """Write what was taken. One thread may do so while another takes more."""

    def scratch(self) -> "Scratch":
        """A file for as many bytes, which counts as stored while the array is on its way. Raises QuotaPassed and
        StoreFull."""

    def commit(self, *, has_nan: bool, has_inf: bool) -> StoredArray:
        """Publish the array under its id; raises ValueError when bytes are missing."""

    def __enter__(self) -> "ArrayWriter": ...

    def __exit__(self, *error: object) -> None: ...


class WorkerStore(Protocol):
    """Where a worker reads inputs and writes results. An owner is the id of an API key."""

    def at_hand(
        self, jobs: Sequence[tuple[JobRequest, int]], tokens: Mapping[str, str]
    ) -> AbstractContextManager[None]:
        """Have the inputs of these attempts where `path` says, as long as the context lasts, and room for their
        results. What cannot be had is not found. Waits as long as it takes. `tokens` are those of their claims, by the
        names of their results: an API that has the store asks for them, also when results are finished."""

    def find(self, owner: str, array_id: str) -> StoredArray | None: ...

    def path(self, owner: str, array_id: str) -> Path:
        """The array as an .npy file. Raises FileNotFoundError where it is gone, and OSError with ESTALE where it is not
        given for this attempt."""

    def digest(self, owner: str, dtype: DType, shape: tuple[int, ...], data: bytes | memoryview) -> str:
        """The id these bytes have as an array of this owner."""

    def new_result(self, job_id: str, attempt: int, files: Sequence[str] = ()) -> Path:
        """A directory for one attempt, with nothing in it or with these files, which are empty; its name (`Path.name`)
        is what a Succeeded outcome carries."""

    def make_ahead(self, files: Sequence[str]) -> None:
        """Make what `new_result` will be asked for, while nobody waits."""

    def result(self, name: str) -> Path:
        """The directory: `result.json` (workers.queue.protocol.ResultDocument) and one .npy file per array output."""

    def finish_results(self, names: Sequence[str]) -> Mapping[str, OSError]:
        """Keep what attempts have written, as surely as the store promises: call it for one result or for all of a
        batch, once they are whole and before any of their outcomes is told. Returns why, for those that are not kept.
        """

    def delete_result(self, name: str, token: str = "") -> None:
        """Delete what an attempt wrote. Elsewhere it is deleted for who has the token of its claim, and else swept."""

    def erase_secrets(self, request: JobRequest, array_ids: Sequence[str]) -> None:
        """Delete secret inputs of a job that is done, which no live job reads."""

    @property
    def mac_of(self) -> Callable[[str], str] | None:
        """A keyed digest of a text. Only who has the store's secret can compute it; None where that is elsewhere."""

    def require_room(self, size: int) -> None:
        """Raise OSError where so many bytes would take of what is kept free of the disk."""

    def trouble(self) -> str | None:
        """Why no job should be claimed now, None while there is no reason. Never waits."""

    def close(self) -> None:
        """End what runs beside the caller."""


class Store(WorkerStore, Protocol):
    """Where arrays and results live. Another owner's array does not exist."""

    def writer(
        self, owner: str, dtype: DType, shape: tuple[int, ...], ttl: float, *, unique: bool = False
    ) -> ArrayWriter:
        """Begin an array. A unique one gets an id of its own, also where the same content is there already. Raises
        QuotaPassed, StoreFull and OSError where there is no room for it."""

    def known(self, owner: str, array_id: str) -> ArrayInfo | None:
        """What an array holds that is there, its time over or not: a live job reads it as long as it is."""

    def there(self, owner: str, array_id: str) -> bool:
        """Whether an array that was found a moment ago has not been deleted since."""

    def intact(self, owner: str, array_id: str) -> bool:
        """Whether an array's content is still what its id says. Reads all of it."""

    @property
    def mac_of(self) -> Callable[[str], str]: ...

    def delete(self, owner: str, array_id: str, unread: Callable[[], bool] = lambda: True) -> bool:
        """Delete an array if `unread` says so, which is asked while nobody can publish an array of the owner. Returns
        whether one was deleted."""

    def alone(self, owner: str) -> AbstractContextManager[None]:
        """Nobody else publishes or deletes an array of the owner meanwhile. Raises FileNotFoundError for an owner who
        never had an array."""

    def incoming(self, name: str, owner: str) -> "IncomingResult":
        """Begin a result that an attempt of one of the owner's jobs wrote on another host."""

    def adopt(self, owner: str, file: Path, array_id: str, info: ArrayInfo, ttl: float) -> StoredArray:
        """Publish a result's file as an array of its owner (a hard link, no copy)."""

    def rows(self, name: str, count: int, row_bytes: int) -> Rows:
        """The matrix of that name whose rows arrive one by one; whoever begins it deletes it."""

    def sweep(self, in_use: Callable[[str, str], bool | None]) -> int:
        """Delete arrays past their time that no live job reads, stale uploads, orphaned results; returns how many.
        `in_use` is None where Redis, which knows, cannot say."""

    def recount(self) -> None:
        """Count what is stored by its files. Raises StoreFull where that cannot be noted."""

    def promise(self, request: JobRequest, size: int) -> None:
        """Keep room for the result of a job that is about to be queued. Raises QuotaPassed and StoreFull."""

    def require(self, owner: str, size: int) -> None:
        """Raise QuotaPassed, StoreFull or OSError where there is no room for so many bytes."""

    def ended(self, results: Mapping[str, str | None], *, measured: bool = True) -> None:
        """Jobs have ended, with these results: what they were promised and did not take is free again from the next
        `sync` on. Results that are not measured count as what was promised until a recount."""

    def unended(self) -> Sequence[str]:
        """Jobs that were promised room, and were not told to have ended."""

    def sync(self) -> None:
        """Share with other processes what is stored; call it every second."""

    def arrays(
        self, owner: str, limit: int, before: tuple[float, str] | None = None
    ) -> Sequence[tuple[float, StoredArray]]:
        """The owner's arrays, newest first, and when each was noted: those after the one of that time and id."""

    def unread(self, owner: str, array_id: str) -> bool:
        """Whether it is certain, without asking Redis, that no live job reads the array."""

    def stored(self, owner: str | None = None) -> tuple[int, int]:
        """Bytes that an owner, or all of them together, store and may store."""

    def disk(self) -> tuple[int, int]:
        """Bytes that are free, and how many of them are kept free."""


def result_name(job_id: str, attempt: int) -> str:
    """The name under which an attempt writes, known before the attempt has written anything."""
    return f"{job_id}.{attempt}"


def attempt_of(name: str) -> tuple[str, int]:
    """The job and the attempt that a result's name tells. Raises ValueError for a name that is not one."""
    if not _RESULT_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a result")
    job_id, _, attempt = name.rpartition(".")
    return job_id, int(attempt)


class SpoolStore:
    """A directory of memory-mappable .npy files, mode 0700, on the machine's own disk.

    With durability `always`, what was published, finished or deleted is so after a power cut too. With `everysec` it is
    left to the kernel: the last files may then be missing or cut short.
    """

    def __init__(
        self,
        root: Path,
        durability: Durability = "always",
        *,
        kept_free: int | None = None,
        quota: Quota | None = None,
    ) -> None:
        """`kept_free`: bytes of the disk that are not for arrays and results, by the disk's size when None. Who writes
        arrays counts them against a quota; without one nothing is counted."""
        self._root = root
        self._forced = durability == "always"
        for directory in (root, *(root / name for name in ("owners", "uploads", "ahead", "rows", "results"))):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)
        self._kept_free = reserve(root) if kept_free is None else kept_free
        self._usage = None if quota is None else Usage(root / "usage", quota)
        self._ended: deque[tuple[Mapping[str, str | None], bool]] = deque()
        self._secret = known_secret(root) or _new_secret(root / "secret")
        self._record_key = self._keyed(b"record|", "")
        self._directories: dict[str, Path] = {}  # of owners who were asked for: API keys are few

    def writer(
        self, owner: str, dtype: DType, shape: tuple[int, ...], ttl: float, *, unique: bool = False
    ) -> "SpoolWriter":
        """Begin an array that lives `ttl` seconds from its commit. A unique one gets an id of its own, also where the
        same content is there already: whoever erases the one does not erase the other."""
        self.require_room(ArrayInfo(dtype, shape).nbytes)
        return SpoolWriter(self, owner, ArrayInfo(dtype, shape), ttl, unique=unique)

    def at_hand(
        self,
        jobs: Sequence[tuple[JobRequest, int]],  # noqa: ARG002
        tokens: Mapping[str, str],  # noqa: ARG002
    ) -> AbstractContextManager[None]:
        """They are here."""
        return nullcontext()

    def find(self, owner: str, array_id: str) -> StoredArray | None:
        stored = self._there(owner, array_id)
        return stored if stored is not None and stored.expires_at > time.time() else None

    def known(self, owner: str, array_id: str) -> ArrayInfo | None:
        """What an array holds that is there, its time over or not."""
        stored = self._there(owner, array_id)
        return None if stored is None else stored.info

    def there(self, owner: str, array_id: str) -> bool:
        return self._description(owner, array_id).exists()

    def intact(self, owner: str, array_id: str) -> bool:
        """Whether an array's content is still what its id says. One whose id was made its own never is."""
        stored, _ = self._described(owner, array_id)
        return stored is not None and self._proven(owner, stored)

    def mac_of(self, text: str) -> str:
        """A keyed digest of a text, under a key of its own."""
        return blake3(text.encode(), key=self._record_key).hexdigest()

    def path(self, owner: str, array_id: str) -> Path:
        """The array as an .npy file. Raises ValueError for a malformed id."""
        return self._directory(owner) / f"{_hex(array_id)}.npy"

    def delete(self, owner: str, array_id: str, unread: Callable[[], bool] = lambda: True) -> bool:
        if not _ARRAY_ID.fullmatch(array_id):
            return False
        with suppress(FileNotFoundError), self.alone(owner):
            if not unread():
                return False
            existed = _unlink(self._description(owner, array_id))
            if _unlink(self.path(owner, array_id)) or existed:
                self._force(self._directory(owner))
            if self._usage is not None:
                self._usage.remove_array(owner, array_id)
            return existed
        return False

    def alone(self, owner: str) -> AbstractContextManager[None]:
        return _alone_in(self._directory(owner))

    def erase_secrets(self, request: JobRequest, array_ids: Sequence[str]) -> None:
        for array_id in array_ids:
            self.delete(request.owner, array_id)

    def trouble(self) -> str | None:
        """Why nothing should be stored now: the disk has no more free than what is kept free."""
        if free(self._root) >= self._kept_free:
            return None
        return f"The disk of the store has less free than is kept for Redis and the ledger, {self._kept_free} bytes"

    def require_room(self, size: int) -> None:
        """Raise OSError where so many bytes would take of what is kept free."""
        require_room(self._root, size, self._kept_free)

    def close(self) -> None:
        if self._usage is not None:
            self._usage.close()

    def promise(self, request: JobRequest, size: int) -> None:
        if self._usage is not None:
            self._usage.add_job(request.owner, request.id, size, request.inputs.values())

    def require(self, owner: str, size: int) -> None:
        self.require_room(size)
        if self._usage is not None:
            self._usage.require(owner, size)

    def ended(self, results: Mapping[str, str | None], *, measured: bool = True) -> None:
        if self._usage is not None:
            self._ended.append((results, measured))

    def unended(self) -> Sequence[str]:
        return [] if self._usage is None else self._usage.live_jobs()

    def sync(self) -> None:
        if self._usage is None:
            return
        sizes = dict[str, int | None]()
        for _ in range(len(self._ended)):
            results, measured = self._ended.popleft()
            for job_id, name in results.items():
                sizes[job_id] = 0 if name is None else _taken(self.result(name)) if measured else None
        self._usage.end_jobs(sizes)
        self._usage.sync()

    def arrays(
        self, owner: str, limit: int, before: tuple[float, str] | None = None
    ) -> Sequence[tuple[float, StoredArray]]:
        if self._usage is None:
            return []
        with suppress(StoreFull):  # then what was stored in the last second is left out
            self._usage.sync()
        found: list[tuple[float, StoredArray]] = []
        while len(found) < limit and (listed := self._usage.arrays(owner, limit, before)):
            for noted_at, array_id in listed:
                if (stored := self.find(owner, array_id)) is not None:
                    found.append((noted_at, stored))
            before = listed[-1]
        return found[:limit]

    def unread(self, owner: str, array_id: str) -> bool:
        with suppress(StoreFull):
            return self._usage is not None and self._usage.unread(owner, array_id)
        return False

    def stored(self, owner: str | None = None) -> tuple[int, int]:
        if self._usage is None:
            return 0, 0
        quota = self._usage.quota
        if owner is None:
            return self._usage.used_by_all(), quota.in_all
        return self._usage.used(owner), quota.of_owner

    def disk(self) -> tuple[int, int]:
        return free(self._root), self._kept_free

    def digest(self, owner: str, dtype: DType, shape: tuple[int, ...], data: bytes | memoryview) -> str:
        """The id these bytes have as an array of this owner."""
        mac = self._mac(owner, ArrayInfo(dtype, shape))
        mac.update(data)
        return _array_id(mac)

    def new_result(self, job_id: str, attempt: int, files: Sequence[str] = ()) -> Path:
        directory = self.result(result_name(job_id, attempt))
        if files:
            with suppress(OSError):  # there is none, or this attempt has left something
                self._ahead(files).rename(directory)
                return directory
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            shutil.rmtree(directory)
            directory.mkdir(mode=0o700)
        return directory

    def make_ahead(self, files: Sequence[str]) -> None:
        """A directory with these files, for whoever is first: a file system takes longer to find room for new ones than
        for what is written into them."""
        place = self._ahead(files)
        if place.exists():
            return
        made = self._root / "uploads" / secrets.token_hex(16)
        try:
            made.mkdir(mode=0o700)
            for file in files:
                (made / file).touch(mode=0o600)
            made.rename(place)
        except OSError:  # another process was quicker, or the disk is full, as a job will tell
            shutil.rmtree(made, ignore_errors=True)

    def _ahead(self, files: Sequence[str]) -> Path:
        """Another place every half a day: what is swept after a whole one is not used any more."""
        return self._root / "ahead" / f"{int(time.time() / _ABANDONED_SECONDS * 2)}.{'+'.join(files)}"

    def result(self, name: str) -> Path:
        """The directory of one attempt's result. Raises ValueError for a name that is not one."""
        attempt_of(name)
        return self._root / "results" / name

    def incoming(self, name: str, owner: str) -> "IncomingResult":
        """Begin a result from another host: nothing is where `result` says before it is whole."""
        return IncomingResult(self, name, owner)

    def finish_results(self, names: Sequence[str]) -> Mapping[str, OSError]:
        """Have whole results on the disk where that is promised. None of them is kept where the disk refuses one."""
        if not self._forced:
            return {}
        try:
            places = [self.result(name) for name in names]
            force_directories(places, self._root / "results", [self._root / "ahead", self._root / "uploads"])
        except OSError as error:
            return dict.fromkeys(names, error)
        return {}

    def delete_result(self, name: str, token: str = "") -> None:  # noqa: ARG002 (who has the directory needs none)
        with suppress(FileNotFoundError):
            shutil.rmtree(self.result(name))
            self._force(self._root / "results")

    def adopt(self, owner: str, file: Path, array_id: str, info: ArrayInfo, ttl: float) -> StoredArray:
        """Publish a result's file as an array of its owner (a hard link, no copy)."""
        link = self._root / "uploads" / f"{secrets.token_hex(16)}.npy"
        os.link(file, link)
        try:
            return self._publish(owner, link, array_id, info, ttl, linked=True)
        finally:
            _unlink(link)  # still there when both were links to one file: rename(2) then does nothing

    def rows(self, name: str, count: int, row_bytes: int) -> Rows:
        """The matrix of that name whose rows arrive one by one. Raises ValueError for a name that is not plain."""
        if not _PLAIN.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a matrix")
        file = self._root / "rows" / f"{name}.npy"
        return Rows(file, count, row_bytes, forced=self._forced, kept_free=self._kept_free)

    def sweep(self, in_use: Callable[[str, str], bool | None]) -> int:
        """Delete arrays past their time that no live job reads, stale uploads, orphaned results; returns how many."""
        now = time.time()
        removed = 0
        for upload in chain((self._root / "uploads").iterdir(), (self._root / "ahead").iterdir()):
            if _modified(upload) < now - _ABANDONED_SECONDS:
                if upload.is_dir():
                    shutil.rmtree(upload, ignore_errors=True)
                    removed += 1
                else:
                    removed += _unlink(upload)
        for directory in (self._root / "results").iterdir():
            expires_at = _expiry(_read(directory / "result.json")[0])
            if expires_at is None:
                expires_at = _modified(directory) + _ABANDONED_SECONDS
            if expires_at < now:
                shutil.rmtree(directory, ignore_errors=True)
                removed += 1
        for directory in (self._root / "owners").iterdir():
            try:
                removed += self._sweep_owner(directory, in_use, now)
            except (OSError, UnicodeDecodeError) as error:
                log.warning("%s cannot be swept: %s", directory.name, type(error).__name__)
        return removed

    def _sweep_owner(self, directory: Path, in_use: Callable[[str, str], bool | None], now: float) -> int:
        try:
            owner = (directory / "owner").read_text()
        except FileNotFoundError:
            return 0
        removed = 0
        for file in directory.glob("*.npy"):
            array_id = f"blake3:{file.stem}"
            if _end(file) < now:
                with _alone_in(directory):  # not uploaded again meanwhile
                    if (ended := _end(file)) < now and not self._read_by_a_job(owner, array_id, now - ended, in_use):
                        _unlink(file.with_suffix(".json"))
                        removed += _unlink(file)
                        if self._usage is not None:
                            self._usage.remove_array(owner, array_id)
        return removed

    def _read_by_a_job(
        self, owner: str, array_id: str, over_for: float, in_use: Callable[[str, str], bool | None]
    ) -> bool:
        """Whether a live job may read an array whose time is over for so many seconds.

        While Redis is away the table of what is stored answers, which notes what a job reads before the job is queued.
        No job can be queued with an array whose time is over, but for one that was checked just before.
        """
        told = in_use(owner, array_id)
        if told is not None:
            return told
        return over_for < _CHECKED_SECONDS or not self.unread(owner, array_id)

    def recount(self) -> None:
        """Have the table of what is stored say what is there. Raises StoreFull where it cannot be written."""
        if self._usage is None:
            return
        now, arrays = time.time(), dict[tuple[str, str], tuple[int, float]]()
        results, places = Counter[str](), dict[str, Path]()
        for directory in (self._root / "owners").iterdir():
            with suppress(FileNotFoundError, UnicodeDecodeError):
                owner = (directory / "owner").read_text()
                for entry in os.scandir(directory):
                    if entry.name.endswith(".npy"):
                        with suppress(FileNotFoundError):
                            status = entry.stat()
                            taken = on_disk(status.st_size) // status.st_nlink + BLOCK
                            arrays[owner, f"blake3:{entry.name[:-4]}"] = taken, status.st_mtime // 1
        for entry in os.scandir(self._root / "results"):
            job_id = entry.name.rpartition(".")[0]
            results[job_id] += _taken(Path(entry))
            places[job_id] = Path(entry)

        def owner_of(job_id: str) -> str | None:
            try:
                return ResultDocument.model_validate_json((places[job_id] / "result.json").read_bytes()).owner
            except (OSError, ValueError):  # it is being written
                return None

        self._usage.recount(arrays, results, now, owner_of)

    def _publish(
        self,
        owner: str,
        file: Path,
        array_id: str,
        info: ArrayInfo,
        ttl: float,
        *,
        unique: bool = False,
        linked: bool = False,
    ) -> StoredArray:
        """Move a finished file to its id. The same content again only lives longer.

        What is there is whole at any moment, also for whoever comes after a power cut, and nobody is told of it before
        it is on the disk. A new small array is moved first and forced once, whole: its description names the start of
        the machine it was written in, and after another start its id has to prove its content. Of any other the
        contents are forced before the moves that make them visible, and the moves after them.
        """
        directory = self._directory(owner)
        if not (directory / "owner").exists():
            directory.mkdir(mode=0o700, exist_ok=True)
            with self._written(owner.encode()) as written:
                self._force(written)
                written.replace(directory / "owner")
            self._force(directory.parent)
        if info.nbytes > _FORCED_AT_ONCE:
            self._force(file)  # before others of the owner would have to wait for it
        places = self.path(owner, array_id), self._description(owner, array_id)
        with _alone_in(directory):
            now = time.time()
            before, _ = self._described(owner, array_id)
            stored = StoredArray(
                id=array_id,
                info=info,
                created_at=now if before is None else before.created_at,
                expires_at=now + ttl if before is None else max(before.expires_at, now + ttl),
            )
            description = {"info": asdict(info), "created_at": stored.created_at, "expires_at": stored.expires_at}
            proves_itself = before is None and not unique and info.nbytes <= _PROVEN and boot() != ""
            if proves_itself:
                description["boot"] = boot()
            with self._written(json.dumps(description).encode()) as written:
                if self._forced and not proves_itself:  # first: a full disk refuses it, not the moves
                    force_files([file, written], self._root / "uploads")
                file.replace(places[0])
                written.replace(places[1])
            if self._forced and proves_itself:
                try:
                    force_files([*places, directory], directory)
                except OSError:
                    _erase(*places)
                    raise
        if not proves_itself:
            self._force(directory)
        if before is None and self._usage is not None:  # what is linked has its bytes counted where it was linked from
            self._usage.add_array(owner, array_id, 0 if linked else size_of(info), stored.created_at // 1)
        return stored

    def _prolong(
        self, owner: str, array_id: str, info: ArrayInfo, ttl: float, content: Sequence[bytes | memoryview]
    ) -> StoredArray | None:
        """Have a small array that is there with this content live longer, at the least `ttl` seconds; None where it is
        not. Its file is given another time: what is on the disk already is not written again."""
        file, description = self.path(owner, array_id), self._description(owner, array_id)
        if info.nbytes > _PROVEN or not description.exists():
            return None
        with suppress(FileNotFoundError), _alone_in(self._directory(owner)):
            before, _ = self._described(owner, array_id)
            if before is None or before.info != info or file.read_bytes() != b"".join(content):
                return None
            expires_at = float(math.ceil(time.time() + ttl))  # some file systems keep whole seconds
            if expires_at > before.expires_at:
                os.utime(description, (expires_at, expires_at))
            if self._forced:
                force_files([file, description, self._directory(owner)], self._directory(owner))
            return replace(before, expires_at=max(before.expires_at, expires_at))
        return None

    @contextmanager
    def _written(self, text: bytes) -> Iterator[Path]:
        """A new file with this text, to be moved where it belongs; none is left when that fails."""
        file = self._root / "uploads" / secrets.token_hex(16)
        try:
            file.write_bytes(text)
            yield file
        except OSError:
            _unlink(file)
            raise

    def _force(self, path: Path) -> None:
        """Have a file or a directory on the disk, where that is promised."""
        if self._forced:
            force(path)

    def _there(self, owner: str, array_id: str) -> StoredArray | None:
        """An array whose content is whole."""
        if not _ARRAY_ID.fullmatch(array_id):
            return None
        stored, shown_in = self._described(owner, array_id)
        if stored is None or shown_in in (None, boot()) or self._proven(owner, stored):
            return stored
        with suppress(FileNotFoundError), _alone_in(self._directory(owner)):
            stored, shown_in = self._described(owner, array_id)  # uploaded again meanwhile, perhaps
            if stored is None or shown_in in (None, boot()) or self._proven(owner, stored):
                return stored
            log.warning("%s did not outlive the end of the machine whole, and does not exist", array_id)
            _erase(self.path(owner, array_id), self._description(owner, array_id))
        return None

    def _is_whole(self, result: Path, owner: str) -> bool:
        """Whether a result's files are what its document says."""
        try:
            document = ResultDocument.model_validate_json((result / "result.json").read_bytes())
            for output in document.outputs.values():
                if isinstance(output, ArrayOutput):
                    mac = self._mac(owner, output.info)
                    with (result / output.file).open("rb") as stream:
                        stream.seek(len(npy.header(output.dtype, output.shape)))
                        while piece := stream.read(_FORCED_AT_ONCE):
                            mac.update(piece)
                    if _array_id(mac) != output.id:
                        return False
        except (OSError, ValueError):
            return False
        return True

    def _proven(self, owner: str, stored: StoredArray) -> bool:
        """Whether the content is what its id says, which only a power cut can have changed."""
        try:
            content = self.path(owner, stored.id).read_bytes()
        except FileNotFoundError:
            return False
        dtype, shape = stored.info.dtype, stored.info.shape
        header = npy.header(dtype, shape)
        return content.startswith(header) and self.digest(owner, dtype, shape, content[len(header) :]) == stored.id

    def _described(self, owner: str, array_id: str) -> tuple[StoredArray | None, str | None]:
        """What a description tells, and in which start of the machine it was shown before it was forced, if it was."""
        fields, changed_at = _read(self._description(owner, array_id))
        try:
            info = fields["info"]
            stored = StoredArray(
                id=array_id,
                info=ArrayInfo(info["dtype"], tuple(info["shape"]), info["has_nan"], info["has_inf"]),
                created_at=float(fields["created_at"]),
                expires_at=max(float(fields["expires_at"]), changed_at),
            )
        except (KeyError, TypeError, ValueError):  # no description, or a damaged one
            return None, None
        return stored, fields.get("boot")

    def _description(self, owner: str, array_id: str) -> Path:
        return self._directory(owner) / f"{_hex(array_id)}.json"

    def _directory(self, owner: str) -> Path:
        if owner not in self._directories:
            # A name nobody chose: an owner's id may hold anything, "../" included.
            name = self._keyed(b"directory|", owner).hex()[:32]
            self._directories[owner] = self._root / "owners" / name
        return self._directories[owner]

    def _keyed(self, purpose: bytes, owner: str) -> bytes:
        return blake3(purpose + owner.encode(), key=self._secret).digest()

    def _mac(self, owner: str, info: ArrayInfo) -> blake3:
        described = f"{info.dtype}|{','.join(str(length) for length in info.shape)}|"
        return blake3(described.encode(), key=self._keyed(b"owner|", owner))


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
        return _array_id(self._mac)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


class SpoolWriter(NpyWriter):
    """An array on its way into a SpoolStore."""

    def __init__(self, store: SpoolStore, owner: str, info: ArrayInfo, ttl: float, *, unique: bool) -> None:
        mac = store._mac(owner, info)
        if unique:
            mac.update(secrets.token_bytes(32))
        super().__init__(store._root / "uploads" / f"{secrets.token_hex(16)}.npy", info, mac, store._kept_free)
        self._store, self._owner, self._ttl, self._unique = store, owner, ttl, unique
        self._counted = 0
        self._count(size_of(info))

    def _count(self, size: int) -> None:
        if self._store._usage is not None:
            self._store._usage.begin(self._owner, size)
            self._counted += size

    def scratch(self) -> "Scratch":
        self._count(on_disk(self._info.nbytes))
        return Scratch(self._file.parent, self._kept_free)

    def commit(self, *, has_nan: bool, has_inf: bool) -> StoredArray:
        """Publish the array under its id; raises ValueError when bytes are missing."""
        info = ArrayInfo(self._info.dtype, self._info.shape, has_nan, has_inf)
        if self._stream is None and not self._left and not self._unique:
            there = self._store._prolong(self._owner, _array_id(self._mac), info, self._ttl, self._taken)
            if there is not None:
                return there
        array_id = self.finish()
        return self._store._publish(self._owner, self._file, array_id, info, self._ttl, unique=self._unique)

    def __enter__(self) -> "SpoolWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
        _unlink(self._file)  # still there only when it was not published
        if self._store._usage is not None:
            self._store._usage.end(self._owner, self._counted)
            self._counted = 0


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


class IncomingResult:
    """A result that was written on another host, on its way into a SpoolStore."""

    def __init__(self, store: SpoolStore, name: str, owner: str) -> None:
        self._store, self._owner = store, owner
        self._place = store.result(name)
        self._directory = store._root / "uploads" / secrets.token_hex(16)
        self._directory.mkdir(mode=0o700)

    def writer(self, file: str, dtype: DType, shape: tuple[int, ...]) -> NpyWriter:
        """Begin the array of an output; its `finish` returns the array's id."""
        info = ArrayInfo(dtype, shape)
        return NpyWriter(self._directory / file, info, self._store._mac(self._owner, info), self._store._kept_free)

    def move(self, document: str) -> bool:
        """Add `result.json`, and be the attempt's result. False where it has one: nothing takes the place of a result
        that may be committed. What a power cut left of one never was, and gives way."""
        (self._directory / "result.json").write_text(document)
        if self._moved():
            return True
        with _alone_in(self._place.parent):
            if self._store._is_whole(self._place, self._owner):
                return False
            shutil.rmtree(self._place, ignore_errors=True)
            return self._moved()

    def _moved(self) -> bool:
        """Take the place, where nothing is or an empty directory."""
        try:
            self._directory.rename(self._place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
        return True

    def discard(self) -> None:
        """Delete what came, unless it was moved."""
        shutil.rmtree(self._directory, ignore_errors=True)


def _write(stream: BinaryIO, chunks: list[bytes | memoryview]) -> None:
    """Write all of it, in one call unless the kernel takes less: each call is a hand-over of the interpreter's lock."""
    written = os.writev(stream.fileno(), chunks)
    for chunk in chunks:
        rest = memoryview(chunk)[written:]
        written = max(0, written - len(chunk))
        while rest:
            rest = rest[stream.write(rest) :]


def size_of(info: ArrayInfo) -> int:
    """Bytes of the disk that an array takes: its file and its description."""
    return on_disk(len(npy.header(info.dtype, info.shape)) + info.nbytes) + BLOCK


def _taken(directory: Path) -> int:
    """Bytes of the disk that a result takes; 0 where it is gone. A file that is an array too counts for half here."""
    taken = 0
    with suppress(FileNotFoundError):
        for entry in os.scandir(directory):
            status = entry.stat()
            taken += on_disk(status.st_size) // status.st_nlink
        taken += BLOCK
    return taken


def _array_id(mac: blake3) -> str:
    return f"blake3:{mac.hexdigest()}"


def known_secret(root: Path) -> bytes | None:
    """What the ids of a store's arrays are keyed with, None in a new store. Raises UnusableStore where it is lost."""
    file, wrong = root / "secret", "is gone"
    with suppress(FileNotFoundError):
        secret = file.read_bytes()
        if len(secret) == _SECRET_BYTES:
            return secret
        wrong = f"has {len(secret)} bytes, not {_SECRET_BYTES}"
    owners = root / "owners"
    if wrong == "is gone" and not (owners.is_dir() and any(owners.iterdir())):
        return None
    raise UnusableStore(
        f"the store's secret {file} {wrong}, and no array can be found without it: put it back from a backup, or move "
        f"{root} away and begin without its arrays and results"
    )


def _new_secret(file: Path) -> bytes:
    """The secret of a new store. Whoever comes second reads what the first one wrote."""
    temporary = file.with_name(f"secret.{secrets.token_hex(8)}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(secrets.token_bytes(_SECRET_BYTES))
        stream.flush()
        os.fsync(stream.fileno())
    with suppress(FileExistsError):
        os.link(temporary, file)  # unlike a rename, a link never replaces another process' secret
    temporary.unlink()
    force(file.parent, file.parent.parent)  # the ids of every array depend on it
    return file.read_bytes()


def _hex(array_id: str) -> str:
    match = _ARRAY_ID.fullmatch(array_id)
    if match is None:
        raise ValueError("an array id is 'blake3:' and 64 hexadecimal digits")
    return match.group(1)


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Let nobody else, in this or another process, publish into this directory or delete from it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _unlink(file: Path) -> bool:
    with suppress(FileNotFoundError):
        file.unlink()
        return True
    return False


def _erase(file: Path, description: Path) -> None:
    _unlink(description)  # first: without it there is no array
    _unlink(file)


def _modified(file: Path) -> float:
    with suppress(FileNotFoundError):
        return file.stat().st_mtime
    return time.time()


def _end(file: Path) -> float:
    """When an array's time is over."""
    fields, changed_at = _read(file.with_suffix(".json"))
    expires_at = _expiry(fields)
    if expires_at is None:  # between the two steps of a publication, left there by a crash, or damaged
        return _modified(file) + _ABANDONED_SECONDS
    return max(expires_at, changed_at)


def _expiry(fields: Mapping[str, Any]) -> float | None:
    with suppress(KeyError, TypeError, ValueError):
        return float(fields["expires_at"])
    return None


def _read(file: Path) -> tuple[dict[str, Any], float]:
    """The fields of a description and when its file was changed, in Unix seconds. One that is damaged, as a crash of
    the machine may leave it, is like none: empty."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}, 0.0
    try:
        status = os.fstat(descriptor)
        if not status.st_size:  # of a result that is being written, or made ahead
            return {}, 0.0
        fields = json.loads(os.read(descriptor, status.st_size))
    except ValueError:
        log.warning("%s is damaged, and what it describes does not exist", file.name)
        return {}, 0.0
    finally:
        os.close(descriptor)
    return fields if isinstance(fields, dict) else {}, status.st_mtime
