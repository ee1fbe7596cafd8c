"""What an append changes in a dataset: new rows, corrections and new assets, or why it is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import Any

import numpy as np

from warpdesk_server.app.arrays.ndarray import Numbers
from warpdesk_server.app.datasets import times
from warpdesk_server.app.datasets.index import Index, among, gather, payload
from warpdesk_server.app.kit import limits
from warpdesk_server.app.kit.errors import Refusal, refuse_at


@dataclass(frozen=True)
class Rows:
    """Rows to append to a dataset: growing times, assets by name, and one block (time, asset) of each column."""

    times: Numbers
    assets: Sequence[str] | None  # None: all that the dataset has, in its order
    columns: Mapping[str, Numbers]


@dataclass(frozen=True)
class Change:
    """What an append changes; `header` and `payload` of the record that says so, which is None if nothing does."""

    added: int
    corrected: int
    unchanged: int
    new_assets: Sequence[str]
    header: Mapping[str, Any]
    payload: Sequence[bytes | memoryview] | None


def change(name: str, index: Index, content: mmap, rows: Rows, *, correct: bool) -> Change:
    """What these rows change. Without `correct`, raises a 409 if numbers that are there would become others, or if a
    row would come before the last one."""
    _require_columns(name, index, rows)
    assets, new_assets = _assets(name, index, rows)
    found, is_there = rows.times, among(rows.times, index.times)
    if (total := index.rows + int((~is_there).sum())) > limits.DATASET_ROWS:
        sentence = f"{name} would have {total} rows; the limit is {limits.DATASET_ROWS}"
        raise refuse_at("invalid-request", "/times", sentence)
    places = np.array([index.places.get(asset, -1) for asset in assets], np.int64)
    differs = np.zeros(len(found), bool)
    odd: tuple[str, int, int, float, float] | None = None
    count = 0
    if is_there.any():
        for column, given in rows.columns.items():
            before = _before(index, content, column, found[is_there], places)
            other = ~_same(before, given[is_there])
            if not other.any():
                continue
            count += int(other.sum())
            row, asset = (int(each[0]) for each in np.nonzero(other))
            place = int(np.flatnonzero(is_there)[row])
            odd = odd or (column, place, asset, float(before[row, asset]), float(given[place, asset]))
            differs[np.flatnonzero(is_there)[other.any(axis=1)]] = True
    if not correct:
        if odd is not None:
            raise _differs(name, rows, assets, odd, count, int(differs.sum()))
        _require_later(name, index, found, is_there)
    written = ~is_there | differs
    kept = int(written.sum())
    sums = int((~is_there).sum()), int(differs.sum()), len(found) - kept
    if not kept and not new_assets:
        return Change(*sums, new_assets, {}, None)
    if index.version >= limits.DATASET_VERSIONS:
        sentence = (
            f"{name} is at version {index.version}; the limit is {limits.DATASET_VERSIONS}, one for each append: send "
            "several rows at once, to another dataset"
        )
        raise refuse_at("invalid-request", "", sentence)
    places[places < 0] = np.arange(len(index.assets), len(index.assets) + len(new_assets))
    is_whole = len(places) == len(index.assets) + len(new_assets) and bool((np.diff(places) == 1).all())
    header: dict[str, Any] = {"rows": kept}
    if new_assets:
        header["assets"] = new_assets
    if not is_whole:
        header["listed"] = len(places)
    blocks = [rows.columns[column][written] for column in index.columns]
    return Change(*sums, new_assets, header, payload(found[written], None if is_whole else places, blocks))


def _require_columns(name: str, index: Index, rows: Rows) -> None:
    """Refuse rows that were made for a dataset with other columns, which was deleted meanwhile."""
    own = {column: block.dtype.name for column, block in rows.columns.items()}
    if own != index.columns:
        shown = ", ".join(f"{column}: {dtype}" for column, dtype in index.columns.items())
        raise Refusal("dataset-exists", f"{name} was made again meanwhile, with the columns {shown}")


def _assets(name: str, index: Index, rows: Rows) -> tuple[Sequence[str], list[str]]:
    """The assets of the rows, and those of them that the dataset does not have."""
    width = next(iter(rows.columns.values())).shape[1]
    if rows.assets is None:
        if width != len(index.assets):
            sentence = f"the rows have {width} assets and {name} has {len(index.assets)}: name those of the rows"
            raise refuse_at("invalid-request", "/assets", sentence)
        return index.assets, []
    new_assets = [asset for asset in rows.assets if asset not in index.places]
    if (total := len(index.assets) + len(new_assets)) > limits.DATASET_ASSETS:
        sentence = f"{name} would have {total} assets; the limit is {limits.DATASET_ASSETS}"
        raise refuse_at("invalid-request", "/assets", sentence)
    return rows.assets, new_assets


def _before(index: Index, content: mmap, column: str, wanted: Numbers, places: Numbers) -> Numbers:
    """The numbers (time, asset) that a dataset has now; NaN for assets that it does not have."""
    view = index.view(index.version, int(wanted[0]), int(wanted[-1]) + 1 if wanted[-1] < times.LAST else None)
    there = places >= 0
    numbers = np.full((int(there.sum()), len(wanted)), np.nan, np.dtype(view.columns[column]))
    gather(view, content, column, wanted, places[there].tolist(), numbers)
    found = np.full((len(wanted), len(places)), np.nan, numbers.dtype)
    found[:, there] = numbers.T
    return found


def _same(some: Numbers, others: Numbers) -> Numbers:
    """Which numbers are the same: the same bits, or NaN."""
    bits = np.dtype(f"u{some.itemsize}")
    same: Numbers = some.view(bits) == np.ascontiguousarray(others).view(bits)
    return same | (np.isnan(some) & np.isnan(others))


def _differs(
    name: str, rows: Rows, assets: Sequence[str], odd: tuple[str, int, int, float, float], count: int, at_times: int
) -> Refusal:
    column, row, asset, before, after = odd
    numbers = "1 number differs" if count == 1 else f"{count} numbers at {at_times} times differ"
    sentence = (
        f"{column} of {assets[asset]} at {times.text(int(rows.times[row]))} is {before!r} in {name} and would become "
        f"{after!r}; {numbers}. Send the rows with correct=true to make a new version with them"
    )
    return refuse_at("rows-differ", f"/columns/{column}/{row}/{asset}", sentence)


def _require_later(name: str, index: Index, found: Numbers, is_there: Numbers) -> None:
    """Refuse a new row before the last one: it changes what was answered for these times."""
    if not index.rows:
        return
    early = np.flatnonzero(~is_there & (found < index.times[-1]))
    if len(early):
        at, last = times.text(int(found[early[0]])), times.text(int(index.times[-1]))
        sentence = (
            f"{name} has no row at {at} and has one at {last}: a row before the last is a correction. Send the rows "
            "with correct=true to make a new version with them"
        )
        raise refuse_at("rows-differ", f"/times/{early[0]}", sentence)
