"""Datasets in one process: single rows are read together, versions have a limit, and readers do not wait for long."""

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from warpdesk.models import DType
from warpdesk_server.app.datasets import index
from warpdesk_server.app.datasets.changes import Rows
from warpdesk_server.app.datasets.collection import Datasets
from warpdesk_server.app.datasets.schemas import DatasetInput
from warpdesk_server.app.datasets.slices import Room, read
from warpdesk_server.app.kit import limits
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.workers.store import record_logs
from warpdesk_server.workers.store.spool import SpoolStore
from warpdesk_server.workers.store.usage import Quota

COLUMNS: dict[str, DType] = {"open": "float32", "close": "float64"}
ASSETS = ["A", "B", "C"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SpoolStore]:
    with closing(SpoolStore(tmp_path, "everysec", kept_free=0, quota=Quota(1 << 30, 1 << 30))) as made:
        yield made


@pytest.fixture
def datasets(store: SpoolStore) -> Datasets:
    made = Datasets(store, 10)
    made.create("key_a", "us", COLUMNS, ASSETS)
    return made


def append(datasets: Datasets, at: Sequence[int], close: np.ndarray, assets: list[str] | None = None) -> None:
    blocks = {"open": close.astype("float32"), "close": close}
    datasets.append("key_a", "us", Rows(np.array(at), assets, blocks), correct=True)


@pytest.mark.parametrize("copied_at_once", [1, 1 << 20])
def test_rows_that_were_appended_one_by_one_are_read_as_if_they_had_come_together(
    store: SpoolStore, datasets: Datasets, monkeypatch: pytest.MonkeyPatch, copied_at_once: int
) -> None:
    monkeypatch.setattr(index, "_COPIED_AT_ONCE", copied_at_once)
    chance, expected = random.Random(3), np.full((80, 3), np.nan)
    for number in range(110):
        if chance.random() < 0.8:  # a day more, or a correction of one
            at = [number if number < 75 else chance.randrange(80)]
        else:
            at = sorted(chance.sample(range(80), 3))
        close = np.array([[chance.random() for _ in ASSETS] for _ in at])
        if chance.random() < 0.1:
            append(datasets, at, close[:, :2], ["C", "A"])
            expected[np.ix_(at, [2, 0])] = close[:, :2]
        else:
            append(datasets, at, close)
            expected[at] = close
    with datasets.reading("key_a", "us") as (found, _):
        times = found.times
        stretches = list(index._stretches(found.view(found.version).records))
    assert len(stretches) < 105  # of 110 records
    for assets, places in ((None, [0, 1, 2]), (["C", "A"], [2, 0]), (["B"], [1])):
        for column, dtype in COLUMNS.items():
            for first, end in ((0, 80), (7, 60)):
                wanted = DatasetInput.model_validate(
                    {"dataset": "us", "column": column, "assets": assets, "from": first, "to": end}
                )
                inside = times[(times >= first) & (times < end)]
                numbers = read(datasets, Room(store, 1 << 20), "key_a", wanted, "").numbers
                assert numbers.tobytes() == expected[np.ix_(inside, places)].T.astype(dtype).tobytes()


def test_rows_for_a_dataset_that_was_made_again_with_other_columns_are_refused(datasets: Datasets) -> None:
    for columns in ({"open": "float64", "close": "float64"}, {"close": "float64"}, {**COLUMNS, "volume": "float64"}):
        datasets.delete("key_a", "us")
        datasets.create("key_a", "us", columns, ASSETS)  # type: ignore[arg-type]
        with pytest.raises(Refusal, match="us was made again meanwhile, with the columns ") as refusal:
            append(datasets, [1], np.ones((1, 3)))
        assert (refusal.value.code, refusal.value.status) == ("dataset-exists", 409)
        assert datasets.summary("key_a", "us").version == 0


def test_a_dataset_has_a_limited_number_of_versions(datasets: Datasets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DATASET_VERSIONS", 2)
    append(datasets, [1], np.ones((1, 3)))
    append(datasets, [2], np.ones((1, 3)))
    append(datasets, [1, 2], np.ones((2, 3)))  # sent again, they make no version
    with pytest.raises(Refusal, match="us is at version 2; the limit is 2, one for each append"):
        append(datasets, [3], np.ones((1, 3)))
    assert datasets.summary("key_a", "us").version == 2


def test_a_reader_is_told_to_come_again_where_a_writer_takes_long(
    store: SpoolStore, datasets: Datasets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_logs, "PATIENCE", 0.05)
    append(datasets, [1], np.ones((1, 3)))
    with store.logs.writing("key_a", "us"):
        for _ in range(3):
            with pytest.raises(
                Refusal, match=r"Others write us, and have not let go of it for 0\.05 seconds"
            ) as refusal:
                datasets.summary("key_a", "us")
            assert (refusal.value.code, refusal.value.headers["Retry-After"]) == ("busy", "1")
        with pytest.raises(Refusal, match="Others write us"):
            list(datasets.summaries("key_a"))
    monkeypatch.setattr(record_logs, "PATIENCE", 2.0)
    assert datasets.summary("key_a", "us").version == 1
    append(datasets, [2], np.ones((1, 3)))  # those who gave up hold nothing
    with datasets._opened(store.logs.writing("key_a", "us"), "key_a", "us"):
        monkeypatch.setattr(record_logs, "PATIENCE", 0.05)
        with pytest.raises(Refusal, match="Others write us"):
            datasets.summary("key_a", "us")
