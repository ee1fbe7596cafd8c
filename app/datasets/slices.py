"""Parts of datasets as arrays: for a job's input, and for whoever reads rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from warpdesk_server.app.arrays.ndarray import Numbers
from warpdesk_server.app.datasets import times
from warpdesk_server.app.datasets.collection import Datasets
from warpdesk_server.app.datasets.index import Index, View, gather
from warpdesk_server.app.datasets.schemas import TIME, DatasetInput
from warpdesk_server.app.kit import errors, limits
from warpdesk_server.app.kit.errors import Refusal, refuse_at
from warpdesk_server.kernels.array import ITEMSIZE
from warpdesk_server.kernels.problems import Problem
from warpdesk_server.workers.store.protocol import Store


@dataclass(frozen=True)
class Slice:
    """A part of one column of a dataset at one version."""

    numbers: Numbers  # (asset, time), or (time,) of one asset; of `TIME` int64
    assets: Sequence[str]
    times: Numbers
    version: int


def read(datasets: Datasets, store: Store, owner: str, wanted: DatasetInput, limit: int, at: str) -> Slice:
    """Read a part of a dataset, of at most `limit` bytes. Files are read: call it in a thread.

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
    if wanted.column == TIME:
        return Slice(view.times, assets, view.times, version)
    shape = count, len(view.times)
    dtype = np.dtype(view.columns[wanted.column])
    size = math.prod(shape) * ITEMSIZE[view.columns[wanted.column]]
    if size > limit:
        sentence = (
            f"{wanted.column} of {count} assets at {len(view.times)} times is {size} bytes; the limit is {limit}: "
            "narrow it by from and to, or by assets"
        )
        raise refuse_at("array-too-large", at, sentence)
    if size <= limits.READ_IN_MEMORY:
        numbers = np.empty(shape, dtype)
    else:
        numbers = np.frombuffer(store.scratch_memory(size), dtype).reshape(shape)
    numbers.fill(np.nan)
    gather(view, content, wanted.column, view.times, places, numbers)
    return Slice(numbers[0] if isinstance(wanted.assets, str) else numbers, assets, view.times, version)


def as_input(datasets: Datasets, store: Store, owner: str, wanted: DatasetInput, limit: int, at: str) -> Slice:
    """A part of a dataset as the input of a job. Raises a refusal of a 422 alone, of an empty part too."""
    try:
        found = read(datasets, store, owner, wanted, limit, at)
    except Refusal as refusal:
        if refusal.code == "unknown-dataset":
            raise refuse_at("invalid-request", f"{at}/dataset", _lower(refusal.detail)) from None
        raise
    if not len(found.times):
        summary = datasets.summary(owner, wanted.dataset)
        has = "has no rows"
        if summary.first is not None and summary.last is not None:
            has = f"has rows from {times.text(summary.first)} to {times.text(summary.last)}"
        sentence = f"{wanted.dataset} {has}, and none of version {found.version} in this range"
        problem = Problem(f"{at}/from", sentence)
        raise Refusal("invalid-request", errors.sentence_of((problem,)), problem)
    return found


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
