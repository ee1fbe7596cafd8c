"""Parts of datasets as arrays: for a job's input, and for whoever reads rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from warpdesk.models import DType
from warpdesk_server.app.arrays import ndarray
from warpdesk_server.app.arrays.ndarray import Numbers
from warpdesk_server.app.datasets import times
from warpdesk_server.app.datasets.collection import Datasets
from warpdesk_server.app.datasets.index import Index, View, gather, padded
from warpdesk_server.app.datasets.schemas import TIME, DatasetInput
from warpdesk_server.app.kit import errors, limits
from warpdesk_server.app.kit.errors import Refusal, refuse_at
from warpdesk_server.kernels.array import ITEMSIZE, ArrayInfo
from warpdesk_server.kernels.problems import Problem
from warpdesk_server.workers.store.protocol import Store, StoredArray


@dataclass(frozen=True)
class Slice:
    """A part of one column of a dataset at one version."""

    numbers: Numbers  # (asset, time), or (time,) of one asset; of `TIME` int64
    assets: Sequence[str]
    times: Numbers
    version: int


@dataclass(frozen=True)
class Part:
    """What a job is given of a dataset."""

    numbers: Numbers
    info: ArrayInfo
    version: int


class Room:
    """Memory for what one request reads of datasets, of at most `left` bytes. Beyond the first ones it is in files of
    the store's disk, which are gone with it."""

    def __init__(self, store: Store, left: int) -> None:
        self._store, self.left, self._in_memory = store, left, limits.READ_IN_MEMORY
        self._file = memoryview(b"")

    def array(self, shape: tuple[int, ...], dtype: DType) -> Numbers:
        """An array whose numbers are not written yet. Raises OSError if the disk has no room."""
        size = math.prod(shape) * ITEMSIZE[dtype]
        self.left -= size
        if size <= self._in_memory:
            self._in_memory -= size
            return np.empty(shape, dtype)
        if size > len(self._file):  # many small parts have one file
            self._file = memoryview(self._store.scratch_memory(max(size, limits.READ_IN_MEMORY)))
        piece, self._file = self._file[:size], self._file[padded(size) :]
        return np.frombuffer(piece, dtype).reshape(shape)


def read(
    datasets: Datasets, room: Room, owner: str, wanted: DatasetInput, at: str, in_json: int | None = None
) -> Slice:
    """Read a part of a dataset, for which there is room, and of no more numbers than `in_json`. Files are read: call it
    in a thread.

    Raises a refusal of what is wrong, at the JSON pointer `at`; a 404 for a dataset that the owner does not have.
    """
    with datasets.reading(owner, wanted.dataset) as (index, log):
        if wanted.column != TIME and wanted.column not in index.columns:
            has = f"{wanted.dataset} has the columns {', '.join(index.columns)}"
            raise refuse_at("invalid-request", f"{at}/column", f"there is no column {wanted.column[:64]!r}; {has}")
        if wanted.as_of is not None and wanted.as_of > index.version:
            sentence = f"{wanted.dataset} is at version {index.version}; version {wanted.as_of} is not there"
            raise refuse_at("invalid-request", f"{at}/as_of", sentence)
        version = index.version if wanted.as_of is None else wanted.as_of
        first = times.FIRST if wanted.first is None else wanted.first
        view = index.view(version, first, wanted.end)
        places = _places(index, view, wanted, at)
        content = log.content(view.end)
    count = len(view.assets) if places is None else len(places)
    assets = view.assets if places is None else [view.assets[place] for place in places]
    dtype: DType = "int64" if wanted.column == TIME else view.columns[wanted.column]
    shape = (len(view.times),) if wanted.column == TIME else (count, len(view.times))
    _require_room(room, wanted.column, shape, dtype, at, in_json)
    numbers = room.array(shape, dtype)
    if wanted.column == TIME:
        numbers[:] = view.times
        return Slice(numbers, assets, view.times, version)
    numbers.fill(np.nan)
    gather(view, content, wanted.column, view.times, places, numbers)
    return Slice(numbers[0] if isinstance(wanted.assets, str) else numbers, assets, view.times, version)


def _require_room(room: Room, column: str, shape: tuple[int, ...], dtype: DType, at: str, in_json: int | None) -> None:
    numbers, rows = math.prod(shape), shape[-1]
    if in_json is not None and max(numbers, rows) > in_json:
        sentence = (
            f"{max(numbers, rows)} numbers are more than the {in_json} that JSON may hold: send Accept: "
            "application/x-npy, or narrow the rows by from and to, or by assets"
        )
        raise refuse_at("array-too-large", at, sentence)
    if (size := numbers * ITEMSIZE[dtype]) > room.left:
        of = f"{column} of {shape[0]} assets at {rows} times" if len(shape) > 1 else f"{column} of {rows} rows"
        sentence = f"{of} is {size} bytes; the limit is {room.left}: narrow it by from and to, or by assets"
        raise refuse_at("array-too-large", at, sentence)


def described(numbers: Numbers) -> ArrayInfo:
    """The description of an array. It is looked at piece by piece, since a look at all takes memory for each number."""
    flat = numbers.reshape(-1)
    many = limits.READ_AT_ONCE // flat.itemsize
    odd = [ndarray.oddities(flat[low : low + many]) for low in range(0, len(flat), many)]
    dtype: DType = numbers.dtype.name
    return ArrayInfo(dtype, numbers.shape, any(nan for nan, _ in odd), any(inf for _, inf in odd))


def stored(store: Store, owner: str, numbers: Numbers, ttl: float) -> StoredArray:
    """Write what was read to the store, as an array (time, asset). Its order is turned piece by piece."""
    info = described(numbers)
    shape = numbers.shape[::-1]
    many = max(1, limits.READ_AT_ONCE // (numbers.itemsize * math.prod(shape[1:]) or 1))
    with store.writer(owner, info.dtype, shape, ttl) as writer:
        for low in range(0, shape[0], many):
            writer.take(ndarray.as_bytes(numbers[..., low : low + many].T))
            writer.flush()
        return writer.commit(has_nan=info.has_nan, has_inf=info.has_inf)


def as_input(datasets: Datasets, room: Room, owner: str, wanted: DatasetInput, at: str) -> Part:
    """A part of a dataset as the input of a job. Raises a refusal of a 422, of an empty part too, or a 503."""
    try:
        found = read(datasets, room, owner, wanted, at)
        summary = None if len(found.times) else datasets.summary(owner, wanted.dataset)
    except Refusal as refusal:
        if refusal.code == "unknown-dataset":
            raise refuse_at("invalid-request", f"{at}/dataset", _lower(refusal.detail)) from None
        raise
    if summary is not None:
        has = "has no rows"
        if summary.first is not None and summary.last is not None:
            has = f"has rows from {times.text(summary.first)} to {times.text(summary.last)}"
        sentence = f"{wanted.dataset} {has}, and none of version {found.version} in this range"
        problem = Problem(f"{at}/from", sentence)
        raise Refusal("invalid-request", errors.sentence_of((problem,)), problem)
    return Part(found.numbers, described(found.numbers), found.version)


def _places(index: Index, view: View, wanted: DatasetInput, at: str) -> list[int] | None:
    """The places of the wanted assets in the dataset, in their order; None for all."""
    if wanted.assets is None:
        return None
    names = [wanted.assets] if isinstance(wanted.assets, str) else wanted.assets
    for place, name in enumerate(names):
        if index.places.get(name, len(view.assets)) >= len(view.assets):
            pointer = f"{at}/assets" if isinstance(wanted.assets, str) else f"{at}/assets/{place}"
            sentence = f"{wanted.dataset} has no asset {name[:64]!r} at version {view.version}"
            raise refuse_at("invalid-request", pointer, sentence)
    return [index.places[name] for name in names]


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
