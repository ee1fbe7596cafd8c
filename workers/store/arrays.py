"""The array files of a store: published whole, served while their content matches their id, and erased."""

import json
import logging
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from warpdesk.durable import force
from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.disk import boot, force_files, require_room
from warpdesk_server.workers.store.files import alone_in, read_description, unlink
from warpdesk_server.workers.store.npy_writer import NpyWriter, Scratch
from warpdesk_server.workers.store.protocol import StoredArray
from warpdesk_server.workers.store.secret import StoreKeys, id_of
from warpdesk_server.workers.store.usage import BLOCK, Usage, on_disk

log = logging.getLogger("warpdesk.store")

_ARRAY_ID = re.compile(r"blake3:([0-9a-f]{64})")

# A larger array, in bytes, is forced to the disk before its owner's directory is locked: others wait for that lock.
_FORCED_AT_ONCE = 1 << 20

# The largest array, in bytes, that becomes visible before it is on the disk: its id is checked in 0.1 ms.
_PROVEN = 256 << 10


class ArrayFiles:
    """The store's array files of all owners, in one directory for each owner. A process that writes them counts them in
    `usage`."""

    def __init__(self, root: Path, *, forced: bool, kept_free: int, usage: Usage | None) -> None:
        """With `forced`, publications and deletions of array files survive a power cut."""
        self._root, self.forced, self._kept_free, self._usage = root, forced, kept_free, usage
        self._keys = StoreKeys(root)
        self._directories: dict[str, Path] = {}  # of owners who were asked for: API keys are few

    def writer(
        self, owner: str, dtype: DType, shape: tuple[int, ...], ttl: float, *, unique: bool = False
    ) -> "SpoolWriter":
        """Begin an array in the store, which lives `ttl` seconds from its commit. A unique array gets an id of its own
        even if the same content is stored already: erasing one of them does not erase the other."""
        self.require_room(ArrayInfo(dtype, shape).nbytes)
        return SpoolWriter(self, owner, ArrayInfo(dtype, shape), ttl, unique=unique)

    def find(self, owner: str, array_id: str) -> StoredArray | None:
        stored = self._there(owner, array_id)
        return stored if stored is not None and stored.expires_at > time.time() else None

    def info_of(self, owner: str, array_id: str) -> ArrayInfo | None:
        """The description of an array in the store, expired or not; None if it is not stored."""
        stored = self._there(owner, array_id)
        return None if stored is None else stored.info

    def there(self, owner: str, array_id: str) -> bool:
        return self._description(owner, array_id).exists()

    def intact(self, owner: str, array_id: str) -> bool:
        """Whether a stored array's content still matches its id. That of a unique array never does."""
        stored, _ = self._described(owner, array_id)
        return stored is not None and self._proven(owner, stored)

    def path(self, owner: str, array_id: str) -> Path:
        """The path of the array's .npy file in the store. Raises ValueError for a malformed id."""
        return self._directory(owner) / f"{_hex(array_id)}.npy"

    def delete(self, owner: str, array_id: str, unread: Callable[[], bool] = lambda: True) -> bool:
        if not _ARRAY_ID.fullmatch(array_id):
            return False
        with suppress(FileNotFoundError), self.alone(owner):
            if not unread():
                return False
            existed = unlink(self._description(owner, array_id))
            if unlink(self.path(owner, array_id)) or existed:
                self._force(self._directory(owner))
            if self._usage is not None:
                self._usage.remove_array(owner, array_id)
            return existed
        return False

    def alone(self, owner: str) -> AbstractContextManager[None]:
        return alone_in(self._directory(owner))

    def require_room(self, size: int) -> None:
        """Raise OSError if `size` more bytes would use space that is kept free on the store's disk."""
        require_room(self._root, size, self._kept_free)

    def digest(self, owner: str, dtype: DType, shape: tuple[int, ...], data: bytes | memoryview) -> str:
        """The array id that these bytes have as a stored array of this owner."""
        mac = self._keys.array_mac(owner, ArrayInfo(dtype, shape))
        mac.update(data)
        return id_of(mac)

    def adopt(self, owner: str, file: Path, array_id: str, info: ArrayInfo, ttl: float) -> StoredArray:
        """Publish a stored result's file as an array of its owner (a hard link, no copy)."""
        link = self._root / "uploads" / f"{secrets.token_hex(16)}.npy"
        os.link(file, link)
        try:
            return self._publish(owner, link, array_id, info, ttl, linked=True)
        finally:
            unlink(link)  # still there when both were links to one file: rename(2) then does nothing

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
        """Publish a finished file in the store under its array id. If the same content is stored already, extend its
        lifetime.

        An array is whole whenever it is visible, after a power cut too, and its id is returned only once it is on the
        disk. A new small array is moved first and forced once, with its directory. Its description names the boot in
        which it was written, and after another boot its content is checked against its id. For any other array the
        contents are forced before the moves that make them visible, and the moves after that.
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
        with alone_in(directory):
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
                if self.forced and not proves_itself:  # first: a full disk refuses it, not the moves
                    force_files([file, written], self._root / "uploads")
                file.replace(places[0])
                written.replace(places[1])
            if self.forced and proves_itself:
                try:
                    force_files([*places, directory], directory)
                except OSError:
                    erase(*places)
                    raise
        if not proves_itself:
            self._force(directory)
        if before is None and self._usage is not None:  # what is linked has its bytes counted where it was linked from
            self._usage.add_array(owner, array_id, 0 if linked else size_of(info), stored.created_at // 1)
        return stored

    def _prolong(
        self, owner: str, array_id: str, info: ArrayInfo, ttl: float, content: Sequence[bytes | memoryview]
    ) -> StoredArray | None:
        """Extend the lifetime of a small stored array to at least `ttl` seconds; None if it is not stored with this
        content.

        Only the description file's mtime changes: what is on the disk already is not written again.
        """
        file, description = self.path(owner, array_id), self._description(owner, array_id)
        if info.nbytes > _PROVEN or not description.exists():
            return None
        with suppress(FileNotFoundError), alone_in(self._directory(owner)):
            before, _ = self._described(owner, array_id)
            if before is None or before.info != info or file.read_bytes() != b"".join(content):
                return None
            expires_at = float(math.ceil(time.time() + ttl))  # some file systems keep whole seconds
            if expires_at > before.expires_at:
                os.utime(description, (expires_at, expires_at))
            if self.forced:
                force_files([file, description, self._directory(owner)], self._directory(owner))
            return replace(before, expires_at=max(before.expires_at, expires_at))
        return None

    @contextmanager
    def _written(self, text: bytes) -> Iterator[Path]:
        """A new temporary file of the store with this text, for the caller to move; deleted if an OSError is raised."""
        file = self._root / "uploads" / secrets.token_hex(16)
        try:
            file.write_bytes(text)
            yield file
        except OSError:
            unlink(file)
            raise

    def _force(self, path: Path) -> None:
        """Force a file or a directory to the disk, if the store is durable."""
        if self.forced:
            force(path)

    def _there(self, owner: str, array_id: str) -> StoredArray | None:
        """The array of this id in the store, whose content is whole; None if there is none."""
        if not _ARRAY_ID.fullmatch(array_id):
            return None
        stored, shown_in = self._described(owner, array_id)
        if stored is None or shown_in in (None, boot()) or self._proven(owner, stored):
            return stored
        with suppress(FileNotFoundError), alone_in(self._directory(owner)):
            stored, shown_in = self._described(owner, array_id)  # uploaded again meanwhile, perhaps
            if stored is None or shown_in in (None, boot()) or self._proven(owner, stored):
                return stored
            log.warning("%s is incomplete after a crash of the machine, and is deleted", array_id)
            erase(self.path(owner, array_id), self._description(owner, array_id))
        return None

    def _proven(self, owner: str, stored: StoredArray) -> bool:
        """Whether a stored array's content matches its id, which only a power cut can have changed."""
        try:
            content = self.path(owner, stored.id).read_bytes()
        except FileNotFoundError:
            return False
        dtype, shape = stored.info.dtype, stored.info.shape
        header = npy.header(dtype, shape)
        return content.startswith(header) and self.digest(owner, dtype, shape, content[len(header) :]) == stored.id

    def _described(self, owner: str, array_id: str) -> tuple[StoredArray | None, str | None]:
        """The array of a description file in the store, and the boot in which it became visible before it was forced,
        or None."""
        fields, changed_at = read_description(self._description(owner, array_id))
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
            self._directories[owner] = self._root / "owners" / self._keys.directory(owner)
        return self._directories[owner]


class SpoolWriter(NpyWriter):
    """The writer of one array into a store. Used as a context manager, it deletes what was not committed."""

    def __init__(self, store: ArrayFiles, owner: str, info: ArrayInfo, ttl: float, *, unique: bool) -> None:
        mac = store._keys.array_mac(owner, info)
        if unique:
            mac.update(secrets.token_bytes(32))
        super().__init__(
            store._root / "uploads" / f"{secrets.token_hex(16)}.npy", info, mac, store._kept_free, forced=store.forced
        )
        self._store, self._owner, self._ttl, self._unique = store, owner, ttl, unique
        self._counted = 0
        self._count(size_of(info))

    def _count(self, size: int) -> None:
        if self._store._usage is not None:
            self._store._usage.begin(self._owner, size)
            self._counted += size

    def scratch(self) -> Scratch:
        self._count(on_disk(self._info.nbytes))
        return Scratch(self._file.parent, self._kept_free)

    def commit(self, *, has_nan: bool, has_inf: bool) -> StoredArray:
        """Publish the array in the store under its id; raises ValueError when bytes are missing."""
        info = ArrayInfo(self._info.dtype, self._info.shape, has_nan, has_inf)
        if self._stream is None and not self._left and not self._unique:
            there = self._store._prolong(self._owner, id_of(self._mac), info, self._ttl, self._taken)
            if there is not None:
                return there
        array_id = self.finish()
        return self._store._publish(self._owner, self._file, array_id, info, self._ttl, unique=self._unique)

    def __enter__(self) -> "SpoolWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
        unlink(self._file)  # still there only when it was not published
        if self._store._usage is not None:
            self._store._usage.end(self._owner, self._counted)
            self._counted = 0


def size_of(info: ArrayInfo) -> int:
    """The disk space of a stored array in bytes: its .npy file and its description file."""
    return on_disk(len(npy.header(info.dtype, info.shape)) + info.nbytes) + BLOCK


def _hex(array_id: str) -> str:
    match = _ARRAY_ID.fullmatch(array_id)
    if match is None:
        raise ValueError("an array id is 'blake3:' and 64 hexadecimal digits")
    return match.group(1)


def erase(file: Path, description: Path) -> None:
    unlink(description)  # first: without it there is no array
    unlink(file)
