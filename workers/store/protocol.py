"""The interfaces of a store: arrays of owners, and results of attempts."""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import BinaryIO, Protocol

from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.workers.queue.protocol import JobRequest
from warpdesk_server.workers.store.checkpoints import Write
from warpdesk_server.workers.store.incoming import IncomingResult
from warpdesk_server.workers.store.npy_writer import Scratch
from warpdesk_server.workers.store.record_logs import RecordLogs
from warpdesk_server.workers.store.rows import Rows

UNKNOWN_ID = "blake3:" + "0" * 64  # the id of an array whose real id only another host can compute
_ATTEMPT = re.compile(r"[A-Za-z0-9_-]{1,128}(:[0-9]{1,4})?\.[0-9]{1,9}")


@dataclass(frozen=True)
class StoredArray:
    id: str  # "blake3:" + keyed BLAKE3(the owner's secret, dtype, shape and content), 64 hexadecimal digits
    info: ArrayInfo
    created_at: float
    expires_at: float


class ArrayWriter(Protocol):
    """The writer of one array into a store. Use it as a context manager: leaving it without `commit` deletes what was
    written."""

    def take(self, chunk: bytes | memoryview) -> None:
        """Append C-ordered little-endian bytes to the stored array; they must not change before they are flushed.
        Raises ValueError past the size that the shape declares. It never waits for a disk."""

    def flush(self) -> None:
        """Write the bytes that were taken to the store's disk. One thread may do so while another takes more."""

    def scratch(self) -> Scratch:
        """A temporary file of the store for as many bytes as the array has, which counts as stored while the array is
        written. Raises QuotaPassed and StoreFull."""

    def commit(self, *, has_nan: bool, has_inf: bool) -> StoredArray:
        """Publish the array in the store under its id; raises ValueError when bytes are missing."""

    def __enter__(self) -> "ArrayWriter": ...

    def __exit__(self, *error: object) -> None: ...


class WorkerStore(Protocol):
    """The store in which a worker reads inputs and writes results. An owner is the id of an API key."""

    def at_hand(
        self, jobs: Sequence[tuple[JobRequest, int]], tokens: Mapping[str, str]
    ) -> AbstractContextManager[None]:
        """A context in which the store has the inputs of these attempts at the paths that `path` returns, with room for
        the results.

        An input that cannot be had is not found. Waits as long as it takes. `tokens` are the tokens of the attempts'
        claims, by result name: a store behind the API needs them, also when results are finished.
        """

    def find(self, owner: str, array_id: str) -> StoredArray | None: ...

    def path(self, owner: str, array_id: str) -> Path:
        """The path at which a worker reads the array's .npy file. Raises FileNotFoundError if it is gone, and OSError
        with ESTALE if the API does not give it to this attempt."""

    def digest(self, owner: str, dtype: DType, shape: tuple[int, ...], data: bytes | memoryview) -> str:
        """The array id that these bytes have as a stored array of this owner."""

    def new_result(self, job_id: str, attempt: int, files: Sequence[str] = ()) -> Path:
        """Make the store's result directory of one attempt, which is empty or holds these empty files. A Succeeded
        outcome carries its name (`Path.name`)."""

    def make_ahead(self, files: Sequence[str]) -> None:
        """Make in advance the result directory that the next `new_result` will need, while no job waits."""

    def result(self, name: str) -> Path:
        """A result's directory in the store: `result.json` (workers.queue.protocol.ResultDocument) and one file
        per output that is an array or a file."""

    def finish_results(self, names: Sequence[str]) -> Mapping[str, OSError]:
        """Make whole results as durable as the store promises, and return the errors of those that are not kept.

        Call it once for one result or for all of a batch, before any of their outcomes is reported.
        """

    def delete_result(self, name: str, token: str = "") -> None:
        """Delete an attempt's result from the store. A store behind the API deletes it if `token` is its claim's, and
        else sweeps it later."""

    def keep_checkpoint(self, attempt: str, name: str, write: Write, most: int, token: str) -> None:
        """Store what `write` writes as a checkpoint of an attempt, or as the arrays of a shard from an attempt at it
        (`workers.store.checkpoints`), whole before this returns, and a checkpoint on the disk.

        Raises OSError, with EFBIG if it has more than `most` bytes, and with ESTALE if `token` is not that of the claim
        of the attempt that runs, where the store can tell."""

    def checkpoints(self, job_id: str, name: str, attempt: int, token: str) -> Generator[BinaryIO]:
        """The stored checkpoint of that name, for the attempt that resumes it, and then others as far as they are
        there: for whoever finds the first damaged or gone."""

    def delete_checkpoints(self, job_id: str) -> None:
        """Delete a job's checkpoints from the store. A store behind the API leaves that to the API."""

    def erase_secrets(self, request: JobRequest, array_ids: Sequence[str]) -> None:
        """Delete from the store the secret input arrays of a finished job, which no live job reads."""

    @property
    def forced(self) -> bool:
        """Whether what a worker writes into the store is forced to its disk: a large file in stretches, as it is
        written (`workers.store.npy_writer.STRETCH`)."""

    @property
    def mac_of(self) -> Callable[[str], str] | None:
        """The function for keyed digests of texts. It needs the store's secret; None if that is on another host."""

    def require_room(self, size: int) -> None:
        """Raise OSError if `size` more bytes would use space that is kept free on the store's disk."""

    def trouble(self) -> str | None:
        """Why the store allows no claim of a job now; None if it does. Never waits."""

    def close(self) -> None:
        """Close the store, and end its background thread if it has one."""


class Store(WorkerStore, Protocol):
    """The API's store of arrays and results. For an owner, the arrays of other owners do not exist."""

    def writer(
        self, owner: str, dtype: DType, shape: tuple[int, ...], ttl: float, *, unique: bool = False
    ) -> ArrayWriter:
        """Begin an array in the API's store. A unique array gets an id of its own even if the same content is stored
        already. Raises QuotaPassed, StoreFull and OSError if there is no room for it."""

    def info_of(self, owner: str, array_id: str) -> ArrayInfo | None:
        """The store's description of an array, expired or not: a live job may read it until it is deleted."""

    def there(self, owner: str, array_id: str) -> bool:
        """Whether an array that was found in the store a moment ago has not been deleted since."""

    def intact(self, owner: str, array_id: str) -> bool:
        """Whether a stored array's content still matches its id. Reads all of it."""

    @property
    def mac_of(self) -> Callable[[str], str]: ...

    @property
    def records_signed(self) -> bool:
        """Whether the jobs that an earlier release queued are signed. Until then the store is in trouble, so that no
        worker claims a job: it would fail these as forged."""

    def note_signed_records(self) -> None:
        """Note in the store, once, that the jobs of an earlier release are signed."""

    def delete(self, owner: str, array_id: str, unread: Callable[[], bool] = lambda: True) -> bool:
        """Delete an array from the store if `unread` returns true; returns whether one was deleted. While `unread`
        runs, nobody can publish an array of the owner."""

    def alone(self, owner: str) -> AbstractContextManager[None]:
        """The exclusive lock of an owner's arrays in the store: nobody else publishes or deletes one meanwhile. Raises
        FileNotFoundError for an owner who never had an array."""

    def incoming(self, name: str, owner: str) -> IncomingResult:
        """Begin to receive into the store the result of one of the owner's jobs from a worker on another host."""

    def adopt(self, owner: str, file: Path, array_id: str, info: ArrayInfo, ttl: float) -> StoredArray:
        """Publish a stored result's file as an array of its owner (a hard link, no copy)."""

    def rows(self, name: str, count: int, row_bytes: int) -> Rows:
        """The stored matrix of that name whose rows arrive one by one; whoever begins it deletes it."""

    @property
    def logs(self) -> RecordLogs:
        """The append-only files of owners in the store: their datasets."""

    def scratch_memory(self, size: int) -> mmap:
        """Memory of so many bytes in a file of the store's disk that is gone with it. Raises OSError without room."""

    def sweep(self, in_use: Callable[[str, str], bool | None]) -> int:
        """Delete the store's expired arrays that no live job reads, stale uploads and orphaned results; returns how
        many. `in_use` asks Redis whether a live job reads an array; it returns None if Redis does not answer."""

    def recount(self) -> None:
        """Recount the stored bytes by the files. Raises StoreFull if the usage table cannot be written."""

    def promise(self, request: JobRequest, size: int) -> None:
        """Reserve room in the store for the result of a job that is about to be queued. Raises QuotaPassed and
        StoreFull."""

    def require(self, owner: str, size: int) -> None:
        """Raise QuotaPassed, StoreFull or OSError if the store has no room for `size` bytes."""

    def ended(self, results: Mapping[str, str | None], *, measured: bool = True) -> None:
        """Record in the usage table the jobs that ended, with their results. Reserved room that a result did not take
        is free after the next `sync`. Results that are not measured count with the reserved size until a recount."""

    def unended(self) -> Sequence[str]:
        """The ids of jobs with reserved room in the store that were not recorded as ended."""

    def checkpointed(self) -> Sequence[str]:
        """The ids of jobs that have checkpoints in the store."""

    def sync(self) -> None:
        """Exchange the counts of stored bytes with other processes; call it every second."""

    def arrays(
        self, owner: str, limit: int, before: tuple[float, str] | None = None
    ) -> Sequence[tuple[float, StoredArray]]:
        """A page of the owner's stored arrays, newest first, with the time at which each was recorded. `before` is the
        time and id of the last array of the page before."""

    def unread(self, owner: str, array_id: str) -> bool:
        """Whether it is certain, without asking Redis, that no live job reads the stored array."""

    def stored(self, owner: str | None = None) -> tuple[int, int]:
        """The stored bytes of an owner, or of all owners together, and their quota."""

    def disk(self) -> tuple[int, int]:
        """The free bytes of the store's disk, and how many of them are kept free."""


def result_name(job_id: str, attempt: int) -> str:
    """The name of an attempt's result directory in the store, known before the attempt has written anything."""
    return f"{job_id}.{attempt}"


def attempt_of(name: str) -> tuple[str, int]:
    """The id of a job, or of a shard of one, and the attempt number in the name of an attempt, which is that of its
    stored result. Raises ValueError for anything else."""
    if not _ATTEMPT.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a result")
    job_id, _, attempt = name.rpartition(".")
    return job_id, int(attempt)
