"""What a store promises to those that use it: arrays of owners, and results of attempts."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.workers.queue.protocol import JobRequest
from warpdesk_server.workers.store.incoming import IncomingResult
from warpdesk_server.workers.store.npy_writer import Scratch
from warpdesk_server.workers.store.rows import Rows

UNKNOWN_ID = "blake3:" + "0" * 64  # of an array whose id only another host can compute
_RESULT_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}\.[0-9]{1,9}")


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

    def scratch(self) -> Scratch:
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

    def info_of(self, owner: str, array_id: str) -> ArrayInfo | None:
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

    def incoming(self, name: str, owner: str) -> IncomingResult:
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
