"""Random appends and corrections leave what a dictionary has, at every version, in every process."""

import math
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpdesk_server.app.datasets import slices
from warpdesk_server.app.datasets.changes import Rows
from warpdesk_server.app.datasets.collection import Datasets
from warpdesk_server.app.datasets.schemas import TIME, DatasetInput
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.workers.store.spool import SpoolStore
from warpdesk_server.workers.store.usage import Quota

COLUMNS = {"close": "float64", "small": "float32"}
ASSETS = ["A", "B", "C", "D", "E"]
MANY = 1 << 30

Cells = dict[tuple[int, str, str], float]  # by time, asset and column; NaN is left out

_numbers = st.sampled_from([math.nan, 0.0, -0.0, 1.5, 2.5, math.inf])


@st.composite
def _appends(draw: st.DrawFn) -> tuple[list[int], list[str] | None, dict[str, list[list[float]]], bool]:
    times = sorted(draw(st.sets(st.integers(0, 12), min_size=1, max_size=4)))
    assets = draw(st.lists(st.sampled_from(ASSETS), unique=True, min_size=1, max_size=4))
    columns = {
        column: [[draw(_numbers) for _ in assets] for _ in times]
        for column in COLUMNS
    }  # fmt: skip
    return times, assets, columns, draw(st.booleans())


class Model:
    """A dataset as dictionaries: all of its cells at every version."""

    def __init__(self) -> None:
        self.versions: list[tuple[list[int], list[str], Cells]] = [([], [], {})]

    def append(
        self, times: list[int], assets: list[str], columns: Mapping[str, list[list[float]]], correct: bool
    ) -> bool:
        """Whether the rows are taken."""
        there, known_assets, cells = self.versions[-1]
        after = dict(cells)
        for column, rows in columns.items():
            for time, row in zip(times, rows, strict=True):
                for asset, number in zip(assets, row, strict=True):
                    after.pop((time, asset, column), None)
                    if not math.isnan(number):
                        after[time, asset, column] = number
        kept = {key: number for key, number in after.items() if key[0] in there}
        changed = list(map(repr, sorted(kept.items()))) != list(map(repr, sorted(cells.items())))
        early = any(time not in there and there and time < there[-1] for time in times)
        if (changed or early) and not correct:
            return False
        new = [*known_assets, *(asset for asset in assets if asset not in known_assets)]
        grown = sorted({*there, *times})
        if changed or grown != there or new != known_assets:
            self.versions.append((grown, new, after))
        return True

    def column(self, version: int, column: str, first: int, end: int) -> np.ndarray:
        times, assets, cells = self.versions[version]
        inside = [time for time in times if first <= time < end]
        rows = [[cells.get((time, asset, column), math.nan) for time in inside] for asset in assets]
        return np.array(rows, COLUMNS[column]).reshape(len(assets), len(inside))


def same(found: Any, expected: Any) -> bool:
    return bool(found.dtype == expected.dtype and found.tobytes() == expected.tobytes())


@settings(max_examples=30, deadline=None)
@given(st.lists(_appends(), min_size=1, max_size=8), st.integers(0, 12), st.integers(0, 13))
def test_every_version_of_a_dataset_is_what_a_model_says(
    appends: list[tuple[list[int], list[str], dict[str, list[list[float]]], bool]], first: int, end: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        opened = [SpoolStore(Path(folder), "everysec", kept_free=0, quota=Quota(MANY, MANY)) for _ in range(2)]
        with closing(opened[0]), closing(opened[1]):
            here, there = (Datasets(store, 10) for store in opened)  # as two processes
            here.create("key_a", "us", COLUMNS, [])  # type: ignore[arg-type]
            model = Model()
            for number, (times, assets, columns, correct) in enumerate(appends):
                writer = (here, there)[number % 2]
                blocks = {column: np.array(rows, COLUMNS[column]) for column, rows in columns.items()}
                rows = Rows(np.array(times, np.int64), assets, blocks)
                if model.append(times, assets, columns, correct=correct):
                    writer.append("key_a", "us", rows, correct=correct)
                    change, summary = writer.append("key_a", "us", rows, correct=False)  # sent again
                    assert (change.added, change.corrected, change.new_assets) == (0, 0, [])
                    assert summary.version == len(model.versions) - 1
                else:
                    with pytest.raises(Refusal, match="correct=true"):
                        writer.append("key_a", "us", rows, correct=correct)
            for reader, store in ((here, opened[0]), (Datasets(opened[1], 10), opened[1])):
                room = slices.Room(store, MANY)
                for version, (grown, names, _) in enumerate(model.versions):
                    for column in COLUMNS:
                        wanted = DatasetInput.model_validate(
                            {"dataset": "us", "column": column, "from": first, "to": end, "as_of": version}
                        )
                        found = slices.read(reader, room, "key_a", wanted, "")
                        expected = model.column(version, column, first, end)
                        assert (list(found.assets), found.times.tolist()) == (
                            names, [time for time in grown if first <= time < end]
                        )  # fmt: skip
                        assert same(found.numbers, expected)
                        for some, part in ((names[-1:], expected[-1:]), (names[::-2], expected[::-2])):
                            few = wanted.model_copy(update={"assets": some or None})
                            assert same(slices.read(reader, room, "key_a", few, "").numbers, part)
                    clock = DatasetInput(dataset="us", column=TIME, as_of=version)
                    assert slices.read(reader, room, "key_a", clock, "").numbers.tolist() == grown
