"""The usage table: what each owner stores in arrays, datasets and results, and in room reserved for results.

`usage/table.db` is an SQLite file, which every API process of the machine opens. A process counts what it adds in
memory at once, and `sync` moves the counts to the table every second. So a quota holds exactly within a process. Across
processes it misses what the others added in the last second. Before a job is queued its inputs are also written to the
process' own journal file: after a kill they still protect arrays from deletion. The stored files decide what is true:
`recount` corrects the table by them, and a table that is lost or damaged is made again.
"""

import json
import logging
import secrets
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from warpdesk_server.workers.store.disk import boot

log = logging.getLogger("warpdesk.store")

BLOCK = 4096  # the least bytes of disk that a file or a directory takes
_PATIENCE = 5.0  # seconds to wait for another process' transaction
_YOUNG = 60.0  # seconds in which a row may be ahead of its file, or of its job
_AGAIN = 0.2  # the least seconds between two syncs that a full quota causes, to see what others deleted

_TABLES = """
CREATE TABLE IF NOT EXISTS arrays (
    owner TEXT NOT NULL, id TEXT NOT NULL, bytes INTEGER NOT NULL, created_at REAL NOT NULL,
    told INTEGER NOT NULL,  -- 1: every job that ever named it was noted
    PRIMARY KEY (owner, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS arrays_by_time ON arrays (owner, created_at, id);
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, bytes INTEGER NOT NULL, created_at REAL NOT NULL,
    inputs TEXT  -- ids of arrays; NULL: the job has ended
    ) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS logs (
    owner TEXT NOT NULL, name TEXT NOT NULL, bytes INTEGER NOT NULL, changed_at REAL NOT NULL,
    PRIMARY KEY (owner, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS used (owner TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS start (boot TEXT NOT NULL);
"""

# The sum of an owner's rows, kept in the transaction that changes one.
_SUMS = "".join(
    "CREATE TRIGGER IF NOT EXISTS TABLE_EVENT AFTER EVENT ON TABLE BEGIN INSERT INTO used VALUES (ROW.owner, CHANGE) "
    "ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes; END;"
    .replace("TABLE", table).replace("EVENT", event).replace("ROW", row).replace("CHANGE", change)
    for table in ("arrays", "jobs", "logs")
    for event, row, change in (
        ("INSERT", "new", "new.bytes"),
        ("UPDATE", "new", "new.bytes - old.bytes"),
        ("DELETE", "old", "-old.bytes"),
    )
)  # fmt: skip
_ADD_ARRAY = "INSERT INTO arrays VALUES (?, ?, ?, ?, ?) ON CONFLICT (owner, id) DO UPDATE SET bytes = excluded.bytes"
_REMOVE_ARRAY = "DELETE FROM arrays WHERE owner = ? AND id = ?"
_ADD_LOG = (  # which only grows: what two processes note may come in any order
    "INSERT INTO logs VALUES (?, ?, ?, ?) ON CONFLICT (owner, name) DO UPDATE SET "
    "bytes = max(bytes, excluded.bytes), changed_at = max(changed_at, excluded.changed_at)"
)
_REMOVE_LOG = "DELETE FROM logs WHERE owner = ? AND name = ?"
_ADD_JOB = (
    "INSERT INTO jobs VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET bytes = excluded.bytes, inputs = excluded.inputs"
)
_END_JOB = "UPDATE jobs SET inputs = NULL, bytes = coalesce(?, bytes) WHERE id = ?"
_REMOVE_JOB = "DELETE FROM jobs WHERE id = ?"

_Change = tuple[str, tuple[Any, ...], int]  # a statement, its row, and the bytes that are counted until it is applied
_Job = tuple[str, str, int, float, str | None]  # a row of `jobs`


@dataclass(frozen=True)
class Quota:
    """The most bytes that one owner, and all owners together, may store."""

    of_owner: int
    in_all: int


class QuotaPassed(Exception):
    """The owner's quota of stored bytes does not allow so many more."""


class StoreFull(Exception):
    """The limit of all owners together does not allow so many bytes more, or the usage table cannot be written."""


def on_disk(size: int) -> int:
    """The bytes of disk that a stored file of this size takes."""
    return -(-size // BLOCK) * BLOCK


class Usage:
    """One API process' view of the usage table. Any thread may use it."""

    def __init__(self, folder: Path, quota: Quota) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder, self.quota = folder, quota
        self._lock = threading.RLock()  # of what is in memory
        self._by_owner: dict[str, int] = {}  # bytes by owner, of the table
        self._added: Counter[str] = Counter()  # and those that are not in it yet, or are on their way
        self._changes: list[_Change] = []  # of arrays and logs
        self._jobs: dict[str, _Job] = {}
        self._ends: dict[str, int | None] = {}  # of jobs that are in the table
        self._journal: BinaryIO | None = None
        self._closed = False
        self._table_lock = threading.Lock()
        self._table: sqlite3.Connection | None = None
        self._looked_at = 0.0

    def used(self, owner: str) -> int:
        """The bytes that the owner stores, is writing to the store, or has reserved there for results."""
        with self._lock:
            return self._by_owner.get(owner, 0) + self._added[owner]

    def used_by_all(self) -> int:
        with self._lock:
            return sum(self._by_owner.values()) + self._added.total()

    def begin(self, owner: str, size: int) -> None:
        """Count bytes that are about to be written to the store. Raises QuotaPassed and StoreFull. Never waits for the
        table."""
        with self._lock:
            if (why := self._over(owner, size)) is not None:
                raise why
            self._added[owner] += size

    def end(self, owner: str, size: int) -> None:
        """Stop counting bytes of `begin` in the store: they are counted as an array now, or were deleted."""
        with self._lock:
            self._added[owner] -= size

    def add_array(self, owner: str, array_id: str, size: int, created_at: float) -> None:
        """Record a published array in the usage table, with a time in whole seconds: it may be the output of a private
        job."""
        self._change(owner, size, _ADD_ARRAY, (owner, array_id, size, created_at, 1))

    def remove_array(self, owner: str, array_id: str) -> None:
        self._change(owner, 0, _REMOVE_ARRAY, (owner, array_id))

    def add_log(self, owner: str, name: str, size: int, more: int, changed_at: float) -> None:
        """Record the size of a record log that has just grown by `more` bytes in the usage table."""
        self._change(owner, more, _ADD_LOG, (owner, name, size, changed_at))

    def remove_log(self, owner: str, name: str) -> None:
        self._change(owner, 0, _REMOVE_LOG, (owner, name))

    def add_job(self, owner: str, job_id: str, size: int, inputs: Iterable[str]) -> None:
        """Reserve room in the store for the result of a job that is about to be queued, and record its input arrays.
        Raises QuotaPassed and StoreFull."""
        self.require(owner, size)
        row: _Job = (job_id, owner, size, time.time(), " ".join(inputs))
        with self._lock:
            if (why := self._over(owner, size)) is not None:  # others added meanwhile
                raise why
            try:
                if self._journal is None:
                    self._journal = (self._folder / f"{secrets.token_hex(8)}.jobs").open("xb", buffering=0)
                self._journal.write(json.dumps(row).encode() + b"\n")
                if self._closed:  # a thread that was waited for no longer: the next start reads the file
                    self._journal.close()
                    self._journal = None
            except OSError as error:
                raise StoreFull(f"What is stored cannot be noted: {error.strerror}") from None
            before = self._jobs.get(job_id)
            self._jobs[job_id] = row
            self._added[owner] += size - (0 if before is None else before[2])

    def end_jobs(self, sizes: Mapping[str, int | None]) -> None:
        """Record in the usage table jobs that ended, with the sizes of their results: 0 without a result, None to count
        the reserved size."""
        with self._lock:
            for job_id, size in sizes.items():
                row = self._jobs.pop(job_id, None)
                if row is None:
                    self._ends[job_id] = size
                    continue
                _, owner, promised, created_at, _ = row
                taken = promised if size is None else size
                self._added[owner] += taken - promised
                if taken:
                    self._jobs[job_id] = (job_id, owner, taken, created_at, None)

    def sync(self) -> None:
        """Move this process' counts of stored bytes to the usage table, and read those of the others. Raises StoreFull
        if the table cannot be used; the counts then stay in memory."""
        with self._table_lock:
            with self._lock:
                changes, jobs, ends, journal = self._changes, self._jobs, self._ends, self._journal
                self._changes, self._jobs, self._ends, self._journal = [], {}, {}, None
            try:
                table = self._opened()
                self._apply(table, changes, jobs.values(), ends)
                by_owner = dict(table.execute("SELECT owner, bytes FROM used WHERE bytes").fetchall())
            except BaseException as error:
                with self._lock:
                    self._changes = changes + self._changes
                    self._jobs, self._ends = {**jobs, **self._jobs}, {**ends, **self._ends}
                if journal is not None:
                    journal.close()  # its file stays, and is read by whoever wants to delete an array
                if isinstance(error, sqlite3.Error):
                    raise self._unusable(error) from None
                raise
            with self._lock:
                self._by_owner = by_owner
                for _, row, size in changes:
                    self._added[row[0]] -= size
                for _, owner, size, *_ in jobs.values():
                    self._added[owner] -= size
                self._added += Counter()  # forget owners at 0
                self._looked_at = time.monotonic()
            if journal is not None:
                journal.close()
                Path(journal.name).unlink(missing_ok=True)

    def live_jobs(self) -> list[str]:
        """The ids of jobs that the usage table does not record as ended, without those that are just being queued."""
        rows = self._read("SELECT id FROM jobs WHERE inputs NOTNULL AND created_at < ?", time.time() - _YOUNG)
        return [job_id for (job_id,) in rows]

    def unread(self, owner: str, array_id: str) -> bool:
        """Whether it is certain that no live job reads a stored array: every job that ever named it is recorded as
        ended. Raises StoreFull if the table cannot be read."""
        with suppress(StoreFull):
            self.sync()
        with self._lock:
            if any(array_id in (inputs or "") for *_, inputs in self._jobs.values()):
                return False
        for file in self._folder.glob("*.jobs"):  # of this process, of others, and of those that were killed
            with suppress(FileNotFoundError):  # moved to the table, which is read after it
                if array_id in file.read_text():
                    return False
        if self._read("SELECT told FROM arrays WHERE owner = ? AND id = ?", owner, array_id) != [(1,)]:
            return False
        return not self._read("SELECT 1 FROM jobs WHERE owner = ? AND instr(inputs, ?) LIMIT 1", owner, array_id)

    def arrays(self, owner: str, limit: int, before: tuple[float, str] | None = None) -> list[tuple[float, str]]:
        """A page of the owner's stored arrays, newest first: the creation time and id of each. `before` is the last of
        the page before."""
        if before is None:
            query = "SELECT created_at, id FROM arrays WHERE owner = ? ORDER BY created_at DESC, id DESC LIMIT ?"
            return self._read(query, owner, limit)
        query = (
            "SELECT created_at, id FROM arrays WHERE owner = ? AND (created_at, id) < (?, ?) "
            "ORDER BY created_at DESC, id DESC LIMIT ?"
        )
        return self._read(query, owner, *before, limit)

    def recount(
        self,
        arrays: Mapping[tuple[str, str], tuple[int, float]],
        results: Mapping[str, int],
        looked_at: float,
        owner_of: Callable[[str], str | None] = lambda _: None,
        logs: Mapping[tuple[str, str], int] = MappingProxyType({}),
    ) -> None:
        """Correct the table by the files that exist: sizes and times of arrays by owner and id, sizes of results by
        job, and of logs by owner and name.

        The files were listed from `looked_at` on. `owner_of` returns the owner of a job whose result is not in the
        table. Raises StoreFull.
        """
        self.sync()
        self._take_over(looked_at)
        before, changes, ends = looked_at - _YOUNG, list[_Change](), dict[str, int | None]()
        rows = self._read("SELECT owner, id, bytes, created_at FROM arrays")
        rows_by_array = {(owner, array_id): (size, created_at) for owner, array_id, size, created_at in rows}
        for (owner, array_id), (size, created_at) in arrays.items():
            if rows_by_array.get((owner, array_id), (None, 0))[0] != size:
                changes.append((_ADD_ARRAY, (owner, array_id, size, created_at, 0), 0))
        changes += [
            (_REMOVE_ARRAY, key, 0) for key, (_, at) in rows_by_array.items() if key not in arrays and at < before
        ]
        noted_logs = self._read("SELECT owner, name, bytes, changed_at FROM logs")
        rows_by_log = {(owner, name): (size, at) for owner, name, size, at in noted_logs}
        for key in rows_by_log.keys() | logs.keys():
            size, at = rows_by_log.get(key, (None, 0.0))
            if size != logs.get(key) and at < before:
                changes.append((_REMOVE_LOG, key, 0))
                if key in logs:
                    changes.append((_ADD_LOG, (*key, logs[key], looked_at), 0))
        noted = self._read("SELECT id, bytes, created_at, inputs ISNULL FROM jobs")
        found: list[_Job] = [
            (job_id, whose, results[job_id], looked_at, None)
            for job_id in results.keys() - {job_id for job_id, *_ in noted}
            if (whose := owner_of(job_id))
        ]
        for job_id, size, at, is_over in noted:
            if not is_over:
                continue
            if not (there := results.get(job_id, 0)):
                ends |= {job_id: 0} if at < before else {}
            elif there != size:
                ends[job_id] = there
        with self._table_lock:
            try:
                self._apply(self._opened(), changes, found, ends)
            except sqlite3.Error as error:
                raise self._unusable(error) from None
        self.sync()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        with suppress(StoreFull):
            self.sync()
        with self._table_lock:
            self._close()

    def _change(self, owner: str, size: int, statement: str, row: tuple[Any, ...]) -> None:
        with self._lock:
            self._changes.append((statement, row, size))
            self._added[owner] += size

    def require(self, owner: str, size: int) -> None:
        """Raise QuotaPassed or StoreFull if `size` more bytes would pass a quota of the store, by the counts known
        now."""
        if self._over(owner, size) is None:
            return
        if time.monotonic() - self._looked_at > _AGAIN:
            self.sync()
        if (why := self._over(owner, size)) is not None:
            raise why

    def _over(self, owner: str, size: int) -> Exception | None:
        mine, everyones = self.used(owner), self.used_by_all()
        if mine + size > self.quota.of_owner:
            return QuotaPassed(
                f"The key stores {mine} bytes and would store {size} more; its quota is {self.quota.of_owner}"
            )
        if everyones + size > self.quota.in_all:
            return StoreFull(
                f"{size} bytes more would be over the limit of what all keys store together, {self.quota.in_all}"
            )
        return None

    def _take_over(self, now: float) -> None:
        """Move the journal files of killed processes to the usage table: a living process moves its own within
        seconds."""
        for file in self._folder.glob("*.jobs"):
            with suppress(FileNotFoundError):
                if file.stat().st_mtime > now - _YOUNG:
                    continue
                rows = [json.loads(line) for line in file.read_bytes().splitlines() if line.endswith(b"]")]
                with self._table_lock:
                    try:
                        self._apply(self._opened(), (), rows, {})
                    except sqlite3.Error as error:
                        raise self._unusable(error) from None
                file.unlink()

    def _read(self, query: str, *values: Any) -> list[Any]:
        with self._table_lock:
            try:
                return self._opened().execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise self._unusable(error) from None

    def _apply(
        self,
        table: sqlite3.Connection,
        changes: Iterable[_Change],
        jobs: Iterable[_Job] = (),
        ends: Mapping[str, int | None] = MappingProxyType({}),
    ) -> None:
        """Apply changes of arrays and jobs to the usage table, in one transaction."""
        table.execute("BEGIN IMMEDIATE")
        try:
            for statement, row, _ in changes:
                table.execute(statement, row)
            table.executemany(_ADD_JOB, jobs)
            table.executemany(_END_JOB, [(size, job_id) for job_id, size in ends.items() if size != 0])
            table.executemany(_REMOVE_JOB, [(job_id,) for job_id, size in ends.items() if size == 0])
            table.execute("COMMIT")
        except BaseException:
            if table.in_transaction:
                table.execute("ROLLBACK")
            raise

    def _opened(self) -> sqlite3.Connection:
        if self._table is not None:
            return self._table
        table = sqlite3.connect(self._folder / "table.db", _PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            table.execute("PRAGMA journal_mode = WAL")
            table.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last rows, never the table
            table.executescript(f"BEGIN IMMEDIATE;{_TABLES}{_SUMS}COMMIT;")
            if table.execute("SELECT boot FROM start").fetchall() != [(boot(),)]:  # a power cut may have cost rows
                self._apply(
                    table,
                    [
                        ("UPDATE arrays SET told = 0", (), 0),
                        ("DELETE FROM start", (), 0),
                        ("INSERT INTO start VALUES (?)", (boot(),), 0),
                    ],
                )
        except sqlite3.Error:
            table.close()
            raise
        self._table = table
        return table

    def _unusable(self, error: sqlite3.Error) -> StoreFull:
        """The StoreFull to raise in place of an SQLite error of the usage table. Closes the table, and deletes a
        damaged file of it."""
        self._close()
        if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            log.warning("%s is damaged (%s) and is made again", self._folder / "table.db", error)
            for file in self._folder.glob("table.db*"):
                file.unlink(missing_ok=True)
        return StoreFull(f"What is stored cannot be noted: {error}")

    def _close(self) -> None:
        if self._table is not None:
            self._table.close()
            self._table = None
