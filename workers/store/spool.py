"""The spool store: a directory of array and result files, which workers map and which are erased once they expire.

root/                       0700
  secret                    0600, 32 bytes; ids are keyed with it
  owners/<keyed owner>/     one directory per API key
    owner                   its id
    <64 hex digits>.npy     an array
    <64 hex digits>.json    its description; an array without one does not exist. The array expires at the file's mtime
                            or at the time that is written in it, whichever is later
  uploads/                  arrays on their way in
  ahead/                    directories made for results that are yet to come
  checkpoints/<job>/        <attempt>.<step>: the state of a task after a step; <number>.1: the arrays of a shard
  rows/                     matrices whose rows arrive one by one
  usage/                    how many bytes each owner stores: usage.py
  datasets/<keyed owner>/   datasets of an API key, each an append-only file: record_logs.py
  results/<job>.<attempt>/  result.json and one file per output that is an array or a file
  records-signed            what an earlier release queued has a MAC by now
"""

import hashlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from mmap import mmap
from pathlib import Path
from typing import BinaryIO

from warpdesk_server.workers.queue.protocol import JobRequest
from warpdesk_server.workers.settings import Durability
from warpdesk_server.workers.store import maintenance
from warpdesk_server.workers.store.arrays import ArrayFiles
from warpdesk_server.workers.store.checkpoints import CheckpointFiles, Write
from warpdesk_server.workers.store.disk import force_directories, free, reserve
from warpdesk_server.workers.store.incoming import IncomingResult
from warpdesk_server.workers.store.protocol import StoredArray, attempt_of, result_name
from warpdesk_server.workers.store.record_logs import RecordLogs
from warpdesk_server.workers.store.rows import Rows
from warpdesk_server.workers.store.usage import Quota, StoreFull, Usage

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,128}")


class SpoolStore(ArrayFiles):
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
        """`kept_free`: bytes of the disk that are not for arrays and results, by the disk's size when None. A process
        that writes arrays counts them against a quota; without a quota nothing is counted."""
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._signed_mark, self._signed = root / "records-signed", False
        if not (root / "owners").exists():  # a new store: there is no earlier release
            self.note_signed_records()
        for name in ("owners", "uploads", "ahead", "rows", "results"):
            (root / name).mkdir(mode=0o700, exist_ok=True)
        root.chmod(0o700)
        super().__init__(
            root,
            forced=durability != "everysec",
            kept_free=reserve(root) if kept_free is None else kept_free,
            usage=None if quota is None else Usage(root / "usage", quota),
        )
        self.logs = RecordLogs(root, self._keys, forced=self.forced, kept_free=self._kept_free, usage=self._usage)
        self._checkpoints = CheckpointFiles(root / "checkpoints", forced=self.forced)
        self._ended: deque[tuple[Mapping[str, str | None], bool]] = deque()

    def at_hand(
        self,
        jobs: Sequence[tuple[JobRequest, int]],  # noqa: ARG002
        tokens: Mapping[str, str],  # noqa: ARG002
    ) -> AbstractContextManager[None]:
        """An empty context: the inputs are in the spool on this machine already."""
        return nullcontext()

    def mac_of(self, text: str) -> str:
        """A MAC of a job's record: a digest of its text under a key of the store's secret that has no other use."""
        return self._keys.mac_of(text)

    def keep_checkpoint(self, attempt: str, name: str, write: Write, most: int, token: str) -> None:  # noqa: ARG002
        self.require_room(most)
        job_id, of_shard, _ = attempt_of(attempt)[0].partition(":")
        keep = self._checkpoints.keep_shard if of_shard else self._checkpoints.keep
        keep(job_id, name, write, most)

    def checkpoints(self, job_id: str, name: str, attempt: int, token: str) -> Generator[BinaryIO]:  # noqa: ARG002
        return self._checkpoints.open(job_id, name)

    def delete_checkpoints(self, job_id: str) -> None:
        self._checkpoints.delete(job_id)

    def checkpointed(self) -> Sequence[str]:
        return self._checkpoints.jobs()

    def erase_secrets(self, request: JobRequest, array_ids: Sequence[str]) -> None:
        for array_id in array_ids:
            self.delete(request.owner, array_id)

    @property
    def records_signed(self) -> bool:
        self._signed = self._signed or self._signed_mark.exists()
        return self._signed

    def note_signed_records(self) -> None:
        self._signed_mark.touch(mode=0o600)

    def trouble(self) -> str | None:
        """The reason why no job should be claimed now: older jobs are not signed yet, or the spool's disk has no more
        free than what is kept free."""
        if not self.records_signed:
            return "Jobs that an earlier release queued are not signed yet: the API signs them when it starts"
        if free(self._root) >= self._kept_free:
            return None
        return f"The disk of the store has less free than is kept for Redis and the ledger, {self._kept_free} bytes"

    def close(self) -> None:
        if self._usage is not None:
            self._usage.close()

    def promise(self, request: JobRequest, size: int) -> None:
        if self._usage is not None:
            self._usage.add_job(request.owner, request.id, size, request.stored_inputs)

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
        sizes, checkpointed = dict[str, int | None](), frozenset(self._checkpoints.jobs())
        for _ in range(len(self._ended)):
            results, measured = self._ended.popleft()
            for job_id, name in results.items():
                if job_id in checkpointed:
                    self._checkpoints.delete(job_id)
                sizes[job_id] = 0 if name is None else maintenance.taken(self.result(name)) if measured else None
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
        """Make a result directory with these empty files in the spool, for the next result. A file system takes longer
        to find room for new files than to write small contents into them."""
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
        """The path of the spool's directory made in advance, named by a digest of its files: their names may be longer
        than a name can be. It changes every half day, so that none in use is swept after a day."""
        half_day = int(time.time() / maintenance.ABANDONED_SECONDS * 2)
        return self._root / "ahead" / f"{half_day}.{hashlib.sha256('+'.join(files).encode()).hexdigest()[:32]}"

    def result(self, name: str) -> Path:
        """The spool's directory of one attempt's result. Raises ValueError for a name that is not one."""
        attempt_of(name)
        return self._root / "results" / name

    def incoming(self, name: str, owner: str) -> IncomingResult:
        """Begin to receive a result from another host into the spool. It is moved to the path that `result` returns
        once it is whole."""
        place = self.result(name)
        return IncomingResult(self._root / "uploads", place, owner, self._keys, self._kept_free, forced=self.forced)

    def finish_results(self, names: Sequence[str]) -> Mapping[str, OSError]:
        """Force whole results to the disk, if the store is durable. If the disk refuses one, none of them is kept."""
        if not self.forced:
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

    def rows(self, name: str, count: int, row_bytes: int) -> Rows:
        """The spool's matrix of that name whose rows arrive one by one. Raises ValueError for a name that is not
        plain."""
        if not _PLAIN.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a matrix")
        file = self._root / "rows" / f"{name}.npy"
        return Rows(file, count, row_bytes, forced=self.forced, kept_free=self._kept_free)

    def scratch_memory(self, size: int) -> mmap:
        self.require_room(size)
        with tempfile.TemporaryFile(dir=self._root / "uploads") as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk refuses it here, not where it is written
            return mmap(file.fileno(), size)

    def sweep(self, in_use: Callable[[str, str], bool | None]) -> int:
        return maintenance.Sweep(self._root, self._usage, in_use, self.unread).run()

    def recount(self) -> None:
        if self._usage is not None:
            maintenance.recount(self._root, self._usage)
