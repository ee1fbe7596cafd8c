"""The maintenance of a store's directory: delete expired files, and recount what is stored."""

import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path

from warpdesk_server.workers.queue.protocol import ResultDocument
from warpdesk_server.workers.store import record_logs
from warpdesk_server.workers.store.files import alone_in, expiry, modified_at, read_description, unlink
from warpdesk_server.workers.store.usage import BLOCK, Usage, on_disk

log = logging.getLogger("warpdesk.store")

# An upload or an attempt that has not been touched for this long was abandoned by its process.
ABANDONED_SECONDS = 24 * 3600.0

# Longer than a submission takes from its check to the queue.
_CHECKED_SECONDS = 120.0


class Sweep:
    """One sweep through a store's directory, which deletes expired files.

    `in_use` asks Redis whether a live job reads an array; it returns None if Redis does not answer. `unread` says
    without Redis whether it is certain that no live job reads the array.
    """

    def __init__(
        self,
        root: Path,
        usage: Usage | None,
        in_use: Callable[[str, str], bool | None],
        unread: Callable[[str, str], bool],
    ) -> None:
        self._root, self._usage, self._in_use, self._unread = root, usage, in_use, unread
        self._now = time.time()

    def run(self) -> int:
        """Delete the store's expired arrays that no live job reads, stale uploads and orphaned results; returns how
        many."""
        removed = 0
        for upload in chain((self._root / "uploads").iterdir(), (self._root / "ahead").iterdir()):
            if modified_at(upload) < self._now - ABANDONED_SECONDS:
                if upload.is_dir():
                    shutil.rmtree(upload, ignore_errors=True)
                    removed += 1
                else:
                    removed += unlink(upload)
        for directory in (self._root / "results").iterdir():
            expires_at = expiry(read_description(directory / "result.json")[0])
            if expires_at is None:
                expires_at = modified_at(directory) + ABANDONED_SECONDS
            if expires_at < self._now:
                shutil.rmtree(directory, ignore_errors=True)
                removed += 1
        for directory in (self._root / "owners").iterdir():
            try:
                removed += self._sweep_owner(directory)
            except (OSError, UnicodeDecodeError) as error:
                log.warning("%s cannot be swept: %s", directory.name, type(error).__name__)
        return removed

    def _sweep_owner(self, directory: Path) -> int:
        try:
            owner = (directory / "owner").read_text()
        except FileNotFoundError:
            return 0
        removed = 0
        for file in directory.glob("*.npy"):
            array_id = f"blake3:{file.stem}"
            if _end(file) < self._now:
                with alone_in(directory):  # not uploaded again meanwhile
                    if (ended := _end(file)) < self._now and not self._is_read(owner, array_id, self._now - ended):
                        unlink(file.with_suffix(".json"))
                        removed += unlink(file)
                        if self._usage is not None:
                            self._usage.remove_array(owner, array_id)
        return removed

    def _is_read(self, owner: str, array_id: str, over_for: float) -> bool:
        """Whether a live job may read a stored array that expired `over_for` seconds ago, so that the sweep leaves it.

        While Redis is away the usage table answers, which records the inputs of a job before the job is queued. No job
        can be queued with an expired array, except one that was checked just before the array expired.
        """
        used = self._in_use(owner, array_id)
        if used is not None:
            return used
        return over_for < _CHECKED_SECONDS or not self._unread(owner, array_id)


def recount(root: Path, usage: Usage) -> None:
    """Correct the usage table by the files that are stored. Raises StoreFull if the table cannot be written."""
    now, arrays = time.time(), dict[tuple[str, str], tuple[int, float]]()
    results, places = Counter[str](), dict[str, Path]()
    for directory in (root / "owners").iterdir():
        with suppress(FileNotFoundError, UnicodeDecodeError):
            owner = (directory / "owner").read_text()
            for entry in os.scandir(directory):
                if entry.name.endswith(".npy"):
                    with suppress(FileNotFoundError):
                        status = entry.stat()
                        size = on_disk(status.st_size) // status.st_nlink + BLOCK
                        arrays[owner, f"blake3:{entry.name[:-4]}"] = size, status.st_mtime // 1
    for entry in os.scandir(root / "results"):
        job_id = entry.name.rpartition(".")[0]
        results[job_id] += taken(Path(entry))
        places[job_id] = Path(entry)

    def owner_of(job_id: str) -> str | None:
        try:
            return ResultDocument.model_validate_json((places[job_id] / "result.json").read_bytes()).owner
        except (OSError, ValueError):  # it is being written
            return None

    usage.recount(arrays, results, now, owner_of, record_logs.recounted(root))


def taken(directory: Path) -> int:
    """The disk space of a stored result in bytes; 0 if it is gone. A file that is also an array counts half here."""
    total = 0
    with suppress(FileNotFoundError):
        for entry in os.scandir(directory):
            status = entry.stat()
            total += on_disk(status.st_size) // status.st_nlink
        total += BLOCK
    return total


def _end(file: Path) -> float:
    """The expiry time of a stored array, in Unix seconds."""
    fields, changed_at = read_description(file.with_suffix(".json"))
    expires_at = expiry(fields)
    if expires_at is None:  # no description: in the middle of a publication, after a crash, or damaged
        return modified_at(file) + ABANDONED_SECONDS
    return max(expires_at, changed_at)
