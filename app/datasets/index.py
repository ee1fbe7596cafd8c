"""The index of a dataset's log: which times and assets it has, at every version, and where each number is.

The first record of a log has the columns, and the assets of then: version 0. Each later one is one version. Its payload
has the times of its rows, the places of its assets unless it has all of them, and one block of numbers for each column,
rows by assets. A number is what the latest record that has its row and asset says, NaN where none does.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import Any

import numpy as np

from warpdesk.models import DType
from warpdesk_server.app.arrays.ndarray import Numbers, as_bytes
from warpdesk_server.app.datasets.times import FIRST
from warpdesk_server.kernels.array import ITEMSIZE
from warpdesk_server.workers.store.record_logs import Record

# What is noted of each record: where its payload starts, its rows, its assets, its first and last time, how many assets
# the dataset had after it, and whether it lists them.
_START, _ROWS, _ASSETS, _FIRST, _LAST, _TOTAL, _LISTED = range(7)
_FIELDS = 7

_COPIED_AT_ONCE = 2 << 20  # bytes of a record's numbers: the array that they go to has another order


@dataclass(frozen=True)
class View:
    """A dataset at one version, between two times."""

    columns: Mapping[str, DType]
    assets: Sequence[str]
    times: Numbers  # int64, growing
    version: int
    records: Numbers  # those that have rows between these times, oldest first
    end: int  # bytes of the log that they are in


class Index:
    """A dataset as one process knows it from its log. Its user holds a lock."""

    def __init__(self, first: Record) -> None:
        self.columns: dict[str, DType] = dict(first.header["columns"])
        self.first, self.last = first, first
        self.version = -1
        self.assets: list[str] = []
        self.places: dict[str, int] = {}
        self._times, self._versions = np.empty(16, np.int64), np.empty(16, np.int64)
        self._count = 0
        self._records = array("q")
        self._take(first, np.empty(0, np.int64))

    @property
    def rows(self) -> int:
        return self._count

    @property
    def times(self) -> Numbers:
        """The times of all rows, growing. What was read once never changes."""
        return self._times[: self._count]

    def take(self, records: Sequence[Record], content: mmap) -> None:
        """Note the records that follow in the dataset's log."""
        for record in records:
            self._take(record, np.frombuffer(content, np.int64, record.header["rows"], record.start))

    def view(self, version: int, first: int = FIRST, end: int | None = None) -> View:
        """The dataset at a version, from the first time on and before the end."""
        records = np.array(self._records, np.int64).reshape(-1, _FIELDS)[: version + 1]
        total = int(records[-1, _TOTAL])
        found = self.times
        if version < self.version:
            found = found[self._versions[: self._count] <= version]
        low = int(np.searchsorted(found, first))
        high = len(found) if end is None else max(low, int(np.searchsorted(found, end)))
        found = found[low:high]
        if len(found):
            inside = (records[:, _ROWS] > 0) & (records[:, _FIRST] <= found[-1]) & (records[:, _LAST] >= found[0])
            records = records[inside]
        else:
            records = records[:0]
        return View(self.columns, self.assets[:total], found, version, records, self.last.end)

    def _take(self, record: Record, found: Numbers) -> None:
        header = record.header
        for asset in header.get("assets", ()):
            self.places[asset] = len(self.assets)
            self.assets.append(asset)
        self.version += 1
        self.last = record
        listed, count = header.get("listed"), len(self.assets)
        ends = (int(found[0]), int(found[-1])) if len(found) else (0, 0)
        width = count if listed is None else listed
        self._records.extend((record.start, len(found), width, *ends, count, listed is not None))
        if len(found):
            self._insert(found)

    def _insert(self, found: Numbers) -> None:
        before = self.times
        if not self._count or found[0] > before[-1]:
            new = found
        else:
            new = found[~among(found, before)]
            if not len(new):
                return
            if new[0] < before[-1]:  # views of what was there stay as they are
                at = np.searchsorted(before, new)
                self._versions = np.insert(self._versions[: self._count], at, self.version)
                self._times = np.insert(before, at, new)
                self._count += len(new)
                return
        count = self._count + len(new)
        if count > len(self._times):
            room = np.empty(count, np.int64)
            self._times = np.concatenate((before, room))
            self._versions = np.concatenate((self._versions[: self._count], room))
        self._times[self._count : count] = new
        self._versions[self._count : count] = self.version
        self._count = count


def gather(
    view: View, content: mmap, column: str, wanted: Numbers, places: Sequence[int] | None, into: Numbers
) -> None:
    """Write a column's numbers at the wanted times, which grow, into an array (asset, time) that is full of NaN.

    `places` are those of the wanted assets in the dataset; None stands for all.
    """
    dtype = np.dtype(view.columns[column])
    names = list(view.columns)
    before = [ITEMSIZE[view.columns[name]] for name in names[: names.index(column)]]
    selected = None if places is None else np.array(places, np.int64)
    rank = np.full(len(view.assets), -1)
    rank[slice(None) if selected is None else selected] = np.arange(into.shape[0])
    for start, rows, assets, first, listed, step in _stretches(view.records):
        place = int(np.searchsorted(wanted, first)) if rows == 1 else 0
        if not assets or (rows == 1 and (place == len(wanted) or wanted[place] != first)):
            continue
        own = 1 if step else rows  # rows of one record
        at = start + 8 * own
        target: Any = slice(0, assets)
        chosen = None
        if listed:
            ranks = rank[np.frombuffer(content, np.int64, assets, at)]
            chosen = np.flatnonzero(ranks >= 0)
            target = ranks[chosen]
            at += 8 * assets
        elif selected is not None:
            target = np.flatnonzero(selected < assets)
            chosen = selected[target]
        at += sum(padded(own * assets * size) for size in before)
        width = assets * dtype.itemsize
        block: Numbers = np.ndarray((rows, assets), dtype, content, at, (step or width, dtype.itemsize))
        if rows == 1:
            into[target, place] = block[0] if chosen is None else block[0, chosen]
            continue
        found: Numbers = np.ndarray((rows,), np.int64, content, start, (step or 8,))
        inside = np.flatnonzero(among(found, wanted))
        columns = np.searchsorted(wanted, found[inside])
        several = max(1, _COPIED_AT_ONCE // width)
        for low in range(0, len(inside), several):
            part = block[_selection(inside[low : low + several])]
            if chosen is not None:
                part = part[:, chosen]
            to = _selection(columns[low : low + several])
            if isinstance(to, slice):
                into[target, to] = part.T
            else:
                into[np.ix_(np.arange(assets) if isinstance(target, slice) else target, to)] = part.T


def _stretches(records: Numbers) -> Iterator[tuple[int, int, int, int, int, int]]:
    """What is read as one block: a record, or records of one row each that follow each other at one distance.

    Each has its start, rows, assets, first time, whether it lists them, and that distance, 0 for a single record.
    """
    start, rows, assets, first, _, _, listed = records.T
    # Records i and i + 1 may be of one stretch; those of a stretch have growing times, so that none replaces another.
    alike = (rows == 1) & (listed == 0)
    alike = alike[1:] & alike[:-1] & (assets[1:] == assets[:-1]) & (first[1:] > first[:-1])
    steps = np.diff(start)
    cut = np.ones(len(records), bool)
    cut[1:] = ~alike
    cut[2:] |= alike[:-1] & (steps[1:] != steps[:-1])
    heads = np.flatnonzero(cut)
    counts = np.diff(np.append(heads, len(records))).tolist()
    for head, count in zip(heads.tolist(), counts, strict=True):
        step = int(steps[head]) if count > 1 else 0
        many = count if count > 1 else int(rows[head])
        yield int(start[head]), many, int(assets[head]), int(first[head]), int(listed[head]), step


def _selection(places: Numbers) -> Any:
    """Places that grow, as a slice where none is left out."""
    if int(places[-1]) - int(places[0]) + 1 == len(places):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def payload(found: Numbers, places: Numbers | None, columns: Sequence[Numbers]) -> list[bytes | memoryview]:
    """The payload of a record: times, places of assets if it lists them, and the block of each column."""
    pieces: list[bytes | memoryview] = [as_bytes(found)]
    if places is not None:
        pieces.append(as_bytes(places))
    for block in columns:
        content = as_bytes(block)
        pieces.append(content if content.nbytes % 8 == 0 else bytes(content).ljust(padded(content.nbytes), b"\0"))
    return pieces


def padded(size: int) -> int:
    return -(-size // 8) * 8


def among(found: Numbers, others: Numbers) -> Numbers:
    """Which of these times, which grow, are among others, which grow too."""
    if not len(others):
        return np.zeros(len(found), bool)
    at = np.searchsorted(others, found)
    same: Numbers = others[np.minimum(at, len(others) - 1)] == found
    return same
