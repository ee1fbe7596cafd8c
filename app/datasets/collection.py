"""The datasets of all owners, as routes and submissions use them: made, appended to, read and deleted.

Its methods read and write files: call them in a thread.
"""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from warpdesk.models import DType
from warpdesk_server.app.datasets.changes import Change, Rows, change
from warpdesk_server.app.datasets.index import Index
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.workers.store import record_logs
from warpdesk_server.workers.store.protocol import Store
from warpdesk_server.workers.store.record_logs import LogBusy, LogExists, NoLog, RecordLog, TooManyLogs
from warpdesk_server.workers.store.usage import on_disk

_KEPT = 4_000_000  # rows and versions of all datasets whose index is kept in memory, 64 bytes each or fewer


@dataclass(frozen=True)
class Summary:
    """A dataset as it is now."""

    name: str
    columns: Mapping[str, DType]
    assets: Sequence[str]
    rows: int
    first: int | None
    last: int | None
    version: int
    bytes: int
    created_at: float
    changed_at: float


class Datasets:
    """The datasets in a store, with the indexes of those that were used last."""

    def __init__(self, store: Store, most: int) -> None:
        """`most` is how many one owner may have."""
        self._store, self._logs, self.most = store, store.logs, most
        self._lock = threading.Lock()  # of the table of indexes
        self._indexes: OrderedDict[tuple[str, str], tuple[threading.Lock, list[Index]]] = OrderedDict()

    def create(self, owner: str, name: str, columns: Mapping[str, DType], assets: Sequence[str]) -> bool:
        """Make a dataset; returns False if it is there with these columns and first assets. Raises a 409 if it is
        there with others, a 429 if the owner has too many."""
        header = {"id": secrets.token_hex(8), "at": time.time(), "rows": 0, "columns": columns, "assets": assets}
        try:
            self._logs.create(owner, name, header, self.most)
            return True
        except TooManyLogs as error:
            sentence = f"The key has {error.count} datasets, and may have {self.most}; DELETE one that is not needed"
            raise Refusal("too-many-datasets", sentence, headers={"Retry-After": "60"}) from None
        except LogExists:
            with self.reading(owner, name) as (index, _):
                first = index.first.header
        if first["columns"] == dict(columns) and first["assets"] == list(assets):
            return False
        shown = ", ".join(f"{column}: {dtype}" for column, dtype in first["columns"].items())
        sentence = f"There is a dataset {name} with the columns {shown}, made with {len(first['assets'])} assets"
        raise Refusal("dataset-exists", sentence)

    def append(self, owner: str, name: str, rows: Rows, *, correct: bool) -> tuple[Change, Summary]:
        """Append rows, once: those that are there already change nothing. Ends with the dataset after it.

        The log's lock is held from the look at what is there to the end of the write, so that of writers at once each
        sees what the others wrote.
        """
        with self._opened(self._logs.writing(owner, name), owner, name) as (index, log):
            found = change(name, index, log.content(index.last.end), rows, correct=correct)
            if found.payload is not None:
                record = log.append(index.last, {"at": time.time(), **found.header}, found.payload)
                index.take([record], log.content(record.end))
            return found, _summary(name, index)

    def summary(self, owner: str, name: str) -> Summary:
        with self.reading(owner, name) as (index, _):
            return _summary(name, index)

    def summaries(self, owner: str) -> Iterator[Summary]:
        """All datasets of an owner, by name."""
        for name in self._logs.names(owner):
            try:
                yield self.summary(owner, name)
            except Refusal as refusal:
                if refusal.code != "unknown-dataset":  # deleted meanwhile
                    raise

    def delete(self, owner: str, name: str) -> None:
        try:
            self._logs.delete(owner, name)
        except NoLog:
            raise unknown(name) from None
        with self._lock:
            self._indexes.pop((owner, name), None)

    @contextmanager
    def reading(self, owner: str, name: str) -> Iterator[tuple[Index, RecordLog]]:
        """A dataset's index, as it is on the disk now, and its log. Others of this process wait for the index. Raises
        a 404, and a 503 if an append keeps it waiting for long."""
        with self._opened(self._logs.reading(owner, name), owner, name) as opened:
            yield opened

    @contextmanager
    def _opened(
        self, opening: AbstractContextManager[RecordLog], owner: str, name: str
    ) -> Iterator[tuple[Index, RecordLog]]:
        """The index of a log with all of its records. The lock of the file is always taken before that of the
        index."""
        try:
            with opening as log:
                with self._lock:
                    lock, kept = self._indexes.setdefault((owner, name), (threading.Lock(), []))
                    self._indexes.move_to_end((owner, name))
                with ExitStack() as held:
                    with log.shared():
                        if not lock.acquire(timeout=-1 if log.is_locked else record_logs.PATIENCE):
                            raise LogBusy(name)
                        held.callback(lock.release)
                        index = _refreshed(kept, log)
                    yield index, log
                self._forget()
        except NoLog:
            raise unknown(name) from None
        except LogBusy:
            sentence = f"Others write {name}, and have not let go of it for {record_logs.PATIENCE:g} seconds"
            raise Refusal("busy", sentence, headers={"Retry-After": "1"}) from None

    def _forget(self) -> None:
        """Forget the indexes that were used longest ago, while all have too many rows."""
        with self._lock:
            total = sum(_size(kept) for _, kept in self._indexes.values())
            while total > _KEPT and len(self._indexes) > 1:
                _, (_, kept) = self._indexes.popitem(last=False)
                total -= _size(kept)


def _refreshed(kept: list[Index], log: RecordLog) -> Index:
    """The index in the list with what was appended to the log since; a new one if the log is another."""
    index = kept.pop() if kept else None  # where this fails in the middle, the next begins anew
    if index is None or index.first.digest != log.identity():  # deleted, and made again
        first, *records = log.records()
        index = Index(first)
    else:
        records = log.records(index.last)
    if records:
        index.take(records, log.content(records[-1].end))
    kept.append(index)
    return index


def unknown(name: str) -> Refusal:
    return Refusal("unknown-dataset", f"There is no dataset {name[:80]!r}")


def _size(kept: Sequence[Index]) -> int:
    return sum(index.rows + index.version for index in kept)


def _summary(name: str, index: Index) -> Summary:
    found = index.times
    return Summary(
        name,
        index.columns,
        list(index.assets),
        index.rows,
        int(found[0]) if len(found) else None,
        int(found[-1]) if len(found) else None,
        index.version,
        on_disk(index.last.end),
        float(index.first.header["at"]),
        float(index.last.header["at"]),
    )
