"""Datasets over HTTP: rows are appended once, corrected by new versions, and read by jobs at the version they name."""

import io
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.app.arrays.test_uploads import NPY, NPY_WANTED, npy
from tests.app.computations import work
from tests.app.conftest import SCALE, Live
from warpdesk_server.app.access.keys import Scope, create_key
from warpdesk_server.app.datasets import slices, times
from warpdesk_server.app.datasets.schemas import DatasetInput
from warpdesk_server.app.jobs.operations import Sources
from warpdesk_server.app.kit import limits
from warpdesk_server.workers.store import record_logs

MONDAY, TUESDAY, WEDNESDAY = (f"2026-11-{day}T21:00:00Z" for day in (23, 24, 25))
COLUMNS = {"close": "float64", "volume": "float32"}
WIDE, NARROW = [[1.0, 2.0], [2.0, 3.0]], [[1.0], [2.0]]

_numbers = itertools.count()


@pytest.fixture
def us(api: Live) -> Iterator[str]:
    """The path of a new dataset of A and B."""
    path = f"/v1/datasets/us-{next(_numbers)}"
    made = api.http.put(path, json={"columns": COLUMNS, "assets": ["A", "B"]})
    assert (made.status_code, made.headers["location"]) == (201, path)
    yield path
    api.http.delete(path)


def rows(*close: list[float | None], at: Any = (MONDAY, TUESDAY), **more: Any) -> dict[str, Any]:
    volume = [[None if number is None else 10 * number for number in row] for row in close]
    return {"times": list(at), "columns": {"close": list(close), "volume": volume}, **more}


def append(api: Live, path: str, *close: list[float | None], **more: Any) -> httpx.Response:
    return api.http.post(f"{path}/rows", json=rows(*close, **more))


def appended(api: Live, path: str, *close: list[float | None], **more: Any) -> dict[str, Any]:
    answer = append(api, path, *close, **more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def close(api: Live, path: str, **query: Any) -> dict[str, Any]:
    answer = api.http.get(f"{path}/rows", params={"column": "close", **query})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def name(path: str) -> str:
    return path.rpartition("/")[2]


def problem(answer: httpx.Response) -> tuple[int, str, str]:
    body = answer.json()
    pointer = body["errors"][0]["pointer"] if body.get("errors") else ""
    return answer.status_code, body["code"], pointer


def test_rows_are_appended_once_however_often_they_are_sent(api: Live, us: str) -> None:
    assert appended(api, us, [1.5, None], [2.5, 20.0]) == {
        "dataset": name(us), "version": 1, "rows": 2, "added": 2, "corrected": 0, "unchanged": 0, "new_assets": [],
    }  # fmt: skip
    again = appended(api, us, [1.5, None], [2.5, 20.0], [3.5, 30.0], at=(MONDAY, TUESDAY, WEDNESDAY))
    assert again == {
        "dataset": name(us), "version": 2, "rows": 3, "added": 1, "corrected": 0, "unchanged": 2, "new_assets": [],
    }  # fmt: skip
    assert appended(api, us, [3.5, 30.0], at=[WEDNESDAY])["version"] == 2
    assert close(api, us) == {
        "dataset": name(us),
        "column": "close",
        "version": 2,
        "times": [MONDAY, TUESDAY, WEDNESDAY],
        "assets": ["A", "B"],
        "data": [[1.5, None], [2.5, 20.0], [3.5, 30.0]],
    }


def test_a_dataset_is_described_listed_and_made_once(api: Live, us: str) -> None:
    same = api.http.put(us, json={"columns": COLUMNS, "assets": ["A", "B"]})
    other = api.http.put(us, json={"columns": {"close": "float64"}, "assets": ["A", "B"]})
    assert (same.status_code, problem(other)[:2]) == (200, (409, "dataset-exists"))
    assert "close: float64, volume: float32, made with 2 assets" in other.json()["detail"]
    appended(api, us, [1.5, None], [2.5, 20.0])
    described = api.http.get(us).json()
    listed = [each for each in api.http.get("/v1/datasets").json()["datasets"] if each["name"] == name(us)]
    assert {**listed[0], "assets": ["A", "B"]} == described
    assert {key: described[key] for key in ("rows", "first", "last", "version", "asset_count", "columns", "bytes")} == {
        "rows": 2, "first": MONDAY, "last": TUESDAY, "version": 1, "asset_count": 2, "columns": COLUMNS, "bytes": 4096,
    }  # fmt: skip
    assert api.http.delete(us).status_code == 204
    for method, path in (("GET", us), ("DELETE", us), ("GET", f"{us}/rows?column=close")):
        assert problem(api.http.request(method, path))[:2] == (404, "unknown-dataset")


def test_other_numbers_at_a_time_that_is_there_are_refused_or_a_correction_and_as_of_has_those_of_then(
    api: Live, us: str
) -> None:
    appended(api, us, [1.5, None], [2.5, 20.0])
    refused = append(api, us, [1.5, 7.0], [2.5, 21.0])
    assert problem(refused) == (409, "rows-differ", "/columns/close/0/1")
    assert refused.json()["detail"] == (
        f"close of B at {MONDAY} is nan in {name(us)} and would become 7.0; 4 numbers at 2 times differ. "
        "Send the rows with correct=true to make a new version with them"
    )
    assert appended(api, us, [1.5, None], [2.5, 21.0], correct=True)["corrected"] == 1
    assert close(api, us)["data"] == [[1.5, None], [2.5, 21.0]]
    assert close(api, us, as_of=1)["data"] == [[1.5, None], [2.5, 20.0]]
    assert close(api, us, as_of=0)["data"] == []


def test_a_row_before_the_last_is_a_correction(api: Live, us: str) -> None:
    appended(api, us, [1.0, 1.0], [3.0, 3.0], at=(MONDAY, WEDNESDAY))
    refused = append(api, us, [2.0, 2.0], at=[TUESDAY])
    assert problem(refused) == (409, "rows-differ", "/times/0")
    assert f"has no row at {TUESDAY} and has one at {WEDNESDAY}" in refused.json()["detail"]
    assert appended(api, us, [2.0, 2.0], at=[TUESDAY], correct=True)["added"] == 1
    assert close(api, us)["times"] == [MONDAY, TUESDAY, WEDNESDAY]
    assert close(api, us, as_of=1)["times"] == [MONDAY, WEDNESDAY]


def test_an_append_may_name_some_assets_and_new_ones(api: Live, us: str) -> None:
    appended(api, us, [1.0, 2.0], at=[MONDAY])
    assert appended(api, us, [3.0, 4.0], at=[TUESDAY], assets=["C", "A"])["new_assets"] == ["C"]
    found = close(api, us)
    assert (found["assets"], found["data"]) == (["A", "B", "C"], [[1.0, 2.0, None], [4.0, None, 3.0]])
    assert close(api, us, assets="C,B", **{"from": TUESDAY})["data"] == [[3.0, None]]
    assert close(api, us, to=TUESDAY)["data"] == [[1.0, 2.0, None]]
    assert close(api, us, as_of=1)["assets"] == ["A", "B"]


def test_rows_come_and_go_as_arrays_too(api: Live, us: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_AT_ONCE", 1000)
    numbers = np.arange(1200.0).reshape(600, 2)
    at = np.arange(600) * 60_000_000_000
    ids = [api.http.put("/v1/arrays", content=npy(each), headers=NPY).json()["id"]
           for each in (at, numbers, numbers.astype("float32"))]  # fmt: skip
    body = {"times": {"array": ids[0]}, "columns": {"close": {"array": ids[1]}, "volume": {"array": ids[2]}}}
    assert api.http.post(f"{us}/rows", json=body).json()["added"] == 600
    for column, expected in (("close", numbers), ("volume", numbers.astype("float32")), ("time", at)):
        answer = api.http.get(f"{us}/rows", params={"column": column, "from": 0}, headers=NPY_WANTED)
        assert answer.headers["warpdesk-dataset-version"] == "1"
        found = np.load(io.BytesIO(answer.content))
        assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())
    part = api.http.get(f"{us}/rows?column=close", headers={**NPY_WANTED, "Range": "bytes=128-135"})
    assert (part.status_code, part.content) == (206, numbers[0, :1].tobytes())
    too_many = api.http.get(f"{us}/rows", params={"column": "close"})
    assert problem(too_many)[:2] == (413, "array-too-large")
    assert "1200 numbers are more than the 500 that JSON may hold" in too_many.json()["detail"]
    monkeypatch.setattr(slices, "gather", None)  # it is refused before it is read
    assert problem(api.http.get(f"{us}/rows", params={"column": "close"}))[:2] == (413, "array-too-large")


def submit(api: Live, path: str, **wanted: Any) -> httpx.Response:
    values = {"dataset": name(path), "column": "close", **wanted}
    return api.http.post("/v1/jobs", json={**SCALE, "inputs": {"values": values}})


def scaled(api: Live, answer: httpx.Response) -> Any:
    assert answer.status_code == 202, answer.text
    work(api.queue, api.store, answer.json()["id"])
    return api.http.get(f"{answer.json()['links']['result']}").json()["outputs"]["scaled"]


def test_a_job_reads_a_dataset_by_asset_and_time_and_says_the_version_that_repeats_it(api: Live, us: str) -> None:
    appended(api, us, [1.5, None], [2.5, 20.0])
    first = submit(api, us)
    source = first.json()["datasets"]["values"]
    assert source == {"dataset": name(us), "column": "close", "as_of": 1, "from": None, "to": None, "assets": None}
    appended(api, us, [3.0, 21.0], [4.0, 30.0], at=(TUESDAY, WEDNESDAY), correct=True)
    assert scaled(api, first) == [[3.0, 5.0], [None, 40.0]]
    assert scaled(api, submit(api, us)) == [[3.0, 6.0, 8.0], [None, 42.0, 60.0]]
    assert scaled(api, submit(api, us, **source)) == [[3.0, 5.0], [None, 40.0]]
    one = submit(api, us, assets="B", **{"from": TUESDAY, "to": times.parse(WEDNESDAY)})
    assert one.json()["datasets"]["values"] == {
        "dataset": name(us), "column": "close", "as_of": 2, "from": TUESDAY, "to": WEDNESDAY, "assets": "B",
    }  # fmt: skip
    assert scaled(api, one) == [42.0]
    some = submit(api, us, assets=["B", "A"])
    late = submit(api, us, assets=["B"])
    assert api.http.delete(us).status_code == 204  # the jobs have arrays of their own
    assert scaled(api, some) == [[None, 42.0, 60.0], [3.0, 6.0, 8.0]]
    assert scaled(api, late) == [[None, 42.0, 60.0]]
    assert api.http.get(late.headers["location"]).json()["datasets"]["values"]["assets"] == ["B"]


def test_inputs_of_one_request_read_the_same_version_whatever_is_appended_meanwhile(api: Live, us: str) -> None:
    appended(api, us, [1.5, None], [2.5, 20.0])
    close, volume = (DatasetInput(dataset=name(us), column=column) for column in COLUMNS)
    sources = Sources(api.app.state.services, "local")
    first = sources.part(close, "")
    appended(api, us, [3.0, 21.0], at=[WEDNESDAY])
    assert (first.version, sources.part(volume, "").version, sources.part(close, "")) == (1, 1, first)
    assert sources.part(close.model_copy(update={"as_of": 1}), "") is first
    assert Sources(api.app.state.services, "local").part(close, "").version == 2
    both = [{**SCALE, "inputs": {"values": {"dataset": name(us), "column": each}}} for each in COLUMNS]
    batch = api.http.post("/v1/jobs/batch", json={"jobs": both}).json()["jobs"]
    assert [job["datasets"]["values"]["as_of"] for job in batch] == [2, 2]


def test_what_a_request_reads_beyond_its_memory_is_in_one_file_of_the_store(
    api: Live, us: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(api, us, [1.5, None], [2.5, 20.0])
    store, sizes = api.app.state.services.store, list[int]()
    monkeypatch.setattr(
        store, "scratch_memory", lambda size, made=store.scratch_memory: sizes.append(size) or made(size)
    )
    monkeypatch.setattr(limits, "READ_IN_MEMORY", 48)
    sources = Sources(api.app.state.services, "local")
    wanted = DatasetInput(dataset=name(us), column="close")
    parts = [sources.part(wanted.model_copy(update={"end": times.LAST - each}), "") for each in range(3)]
    parts.append(sources.part(wanted.model_copy(update={"column": "time", "assets": "A"}), ""))
    assert [part.numbers.nbytes for part in parts] == [32, 32, 32, 16]
    assert sizes == [48, 48]  # the second and the third; the fourth has memory
    assert all(part.numbers.tolist()[0] == [1.5, 2.5] for part in parts[:3])
    assert parts[3].numbers.tolist() == [times.parse(MONDAY), times.parse(TUESDAY)]
    assert [(part.info.has_nan, part.info.has_inf) for part in parts] == [(True, False)] * 3 + [(False, False)]


def test_an_input_that_the_operation_does_not_have_is_not_read(
    api: Live, us: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(api, us, [1.5, None], [2.5, 20.0])
    monkeypatch.setattr(slices, "read", None)
    wanted = {"dataset": name(us), "column": "close"}
    inputs = {"values": SCALE["inputs"]["values"], "odd": wanted}
    refused = api.http.post("/v1/jobs", json={**SCALE, "inputs": inputs})
    assert problem(refused) == (422, "invalid-request", "/inputs/odd")
    assert "scale has no input 'odd'" in refused.json()["detail"]


def test_a_job_whose_dataset_is_being_written_for_long_is_to_be_sent_again(
    api: Live, us: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(api, us, [1.5, None], [2.5, 20.0])
    monkeypatch.setattr(record_logs, "PATIENCE", 0.2)
    job = {**SCALE, "inputs": {"values": {"dataset": name(us), "column": "close"}}}
    with api.app.state.services.store.logs.writing("local", name(us)):
        began = time.monotonic()
        batch = api.http.post("/v1/jobs/batch", json={"jobs": [job] * 10})
        for answer in (submit(api, us), batch):
            assert (problem(answer)[:2], answer.headers["retry-after"]) == ((503, "busy"), "1")
        assert time.monotonic() - began < 1.5  # the jobs of a batch wait together
    assert submit(api, us).status_code == 202


def test_a_large_part_is_read_into_a_file_of_the_store_and_a_larger_one_is_refused(
    api: Live, us: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(api, us, [1.5, None], [2.5, 20.0])
    monkeypatch.setattr(limits, "READ_IN_MEMORY", 0)
    assert scaled(api, submit(api, us)) == [[3.0, 5.0], [None, 40.0]]
    assert not list((api.settings.store_directory / "uploads").iterdir())
    at = np.arange(62_501)
    column = api.http.put("/v1/arrays", content=npy(np.ones((62_501, 1))), headers=NPY).json()["id"]
    small = api.http.put("/v1/arrays", content=npy(np.ones((62_501, 1), "float32")), headers=NPY).json()["id"]
    stamps = api.http.put("/v1/arrays", content=npy(at), headers=NPY).json()["id"]
    body = {"times": {"array": stamps}, "columns": {"close": {"array": column}, "volume": {"array": small}}}
    assert api.http.post(f"{us}/rows", json={**body, "assets": ["A"], "correct": True}).json()["added"] == 62_501
    wanted: dict[str, Any] = {"as_of": 2, "assets": ["A"]}
    arrays = []
    for _ in range(2):
        job = api.http.get(submit(api, us, **wanted).headers["location"]).json()
        arrays.append(job["inputs"]["values"]["array"])
        arrays.append(api.store.path("local", arrays[-1]).stat().st_ino)
    assert arrays[2:] == arrays[:2]  # it is not written again
    large = submit(api, us)
    assert problem(large) == (422, "invalid-request", "/inputs/values")
    assert "close of 2 assets at 62503 times is 1000048 bytes; the limit is 1000000" in large.json()["detail"]


@pytest.mark.parametrize(
    ("wanted", "pointer", "sentence"),
    [
        ({"dataset": "none"}, "dataset", "there is no dataset 'none'"),
        ({"dataset": "../us"}, "dataset", "there is no dataset '../us'"),
        ({"column": "open"}, "column", "there is no column 'open'; {us} has the columns close, volume"),
        ({"as_of": 2}, "as_of", "{us} is at version 1; version 2 is not there"),
        ({"as_of": -1}, "as_of", "as_of should be at least 0, got -1"),
        ({"as_of": 0}, "from", f"{{us}} has rows from {MONDAY} to {TUESDAY}, and none of version 0 in this range"),
        ({"from": "2027-01-01T00:00:00Z"}, "from", "and none of version 1 in this range"),
        ({"from": "2027-01-01"}, "from", "'2027-01-01' is not a time with a zone"),
        ({"from": 2**63}, "from", "9223372036854775808 is outside what nanoseconds in 64 bits hold"),
        ({"to": 1.5}, "to", "A time is whole nanoseconds since 1970"),
        ({"assets": ["A", "Z"]}, "assets/1", "{us} has no asset 'Z' at version 1"),
        ({"assets": "Z"}, "assets", "{us} has no asset 'Z' at version 1"),
        ({"assets": ["A", "A"]}, "assets", "A is given twice"),
        ({"assets": []}, "assets", "a list of 1 to 1000 names, got a list of 0"),
        ({"assets": 3}, "assets", "the name of an asset, or a list of 1 to 1000 names, got 3"),
        ({"versoin": 3}, "versoin", "there is no field 'versoin' here"),
    ],
)
def test_what_a_job_cannot_read_of_a_dataset_is_refused_at_its_place(
    api: Live, us: str, wanted: dict[str, Any], pointer: str, sentence: str
) -> None:
    appended(api, us, [1.5, None], [2.5, 20.0])
    before = api.queued()
    answer = submit(api, us, **wanted)
    assert problem(answer) == (422, "invalid-request", f"/inputs/values/{pointer}")
    assert sentence.format(us=name(us)) in answer.json()["detail"]
    assert api.queued() == before


@pytest.mark.parametrize(
    ("change", "pointer", "sentence"),
    [
        ({"times": [TUESDAY, MONDAY]}, "/times/1", f"times have to grow: {MONDAY} follows {TUESDAY}"),
        ({"times": [MONDAY, MONDAY]}, "/times/1", "times have to grow"),
        ({"times": ["2026-11-23T21:00:00", TUESDAY]}, "/times/0", "is not a time with a zone"),
        ({"times": [MONDAY]}, "/columns/close", "close has the shape [2, 2]; 1 times and the assets need [1, 2]"),
        ({"times": []}, "/times", "at least 1 item"),
        ({"times": {"array": "blake3:" + "0" * 64}}, "/times/array", "there is no array 'blake3:00"),
        ({"assets": ["A"]}, "/columns/close", "close has the shape [2, 2]; 2 times and the assets need [2, 1]"),
        ({"assets": ["A", "A"]}, "/assets", "A is given twice"),
        ({"assets": ["A", "x,y"]}, "/assets/1", "'x,y' is not 1 to 64 printable characters without a comma"),
        ({"columns": {"close": NARROW, "volume": NARROW}}, "/assets", "the rows have 1 assets and {us} has 2"),
        ({"columns": {"close": WIDE}}, "/columns", "volume is missing"),
        ({"columns": {**COLUMNS, "close": [1.0], "volume": [1.0], "x": [1.0]}}, "/columns/x", "there is no column 'x'"),
        ({"columns": {"close": WIDE, "volume": [[1.0, 1e300], [2.0, 3.0]]}}, "/columns/volume/0/1", "outside float32"),
        ({"columns": {"close": WIDE, "volume": NARROW}}, "/columns", "the columns differ in shape"),
        ({"columns": {"close": "all", "volume": [[1.0]]}}, "/columns/close", "should be a list of rows"),
        ({"correct": 1}, "/correct", "correct should be true or false, got 1"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_refused_at_their_place_and_nothing_is_appended(
    api: Live, us: str, change: dict[str, Any], pointer: str, sentence: str
) -> None:
    answer = api.http.post(f"{us}/rows", json={**rows([1.0, 2.0], [2.0, 3.0]), **change})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert pointer in [each["pointer"] for each in answer.json()["errors"]]
    assert sentence.format(us=name(us)) in answer.json()["detail"]
    assert api.http.get(us).json()["version"] == 0


@pytest.mark.parametrize(
    ("path", "body", "pointer", "sentence"),
    [
        (".hidden", {"columns": COLUMNS}, "/name", "'.hidden' cannot be the name of a dataset"),
        ("a" * 65, {"columns": COLUMNS}, "/name", "cannot be the name of a dataset"),
        ("new", {"columns": {}}, "/columns", "at least 1 item"),
        ("new", {"columns": {f"c{each}": "float64" for each in range(65)}}, "/columns", "at most 64 items"),
        ("new", {"columns": {"volume": "int64"}}, "/columns/volume", "'float64' or 'float32'"),
        ("new", {"columns": {"time": "float64"}}, "/columns/time", "'time' is the name of the times themselves"),
        ("new", {"columns": {"a b": "float64"}}, "/columns/a b/[key]", "should match ^[A-Za-z_]"),
        ("new", {"columns": COLUMNS, "assets": ["A", "A"]}, "/assets", "A is given twice"),
        ("new", {"columns": COLUMNS, "assets": [" A"]}, "/assets/0", "' A' is not 1 to 64 printable characters"),
        ("new", {"columns": COLUMNS, "assets": [*map(str, range(10_001))]}, "/assets", "at most 10000 items"),
    ],
)  # fmt: skip
def test_a_dataset_that_cannot_be_made_is_refused(
    api: Live, path: str, body: dict[str, Any], pointer: str, sentence: str
) -> None:
    answer = api.http.put(f"/v1/datasets/{path}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert pointer in [each["pointer"] for each in answer.json()["errors"]]
    assert sentence in answer.json()["detail"]


def test_what_cannot_be_read_of_rows_is_refused(api: Live, us: str) -> None:
    for query, pointer in (
        ("column=open", "/query/column"),
        ("column=close&from=monday", "/query/from"),
        ("column=close&as_of=9", "/query/as_of"),
        ("column=close&assets=A,Z", "/query/assets/1"),
        ("column=close&assets=A,A", "/query/assets"),
        ("columns=close", "/query/columns"),
    ):
        assert problem(api.http.get(f"{us}/rows?{query}")) == (422, "invalid-request", pointer)
    assert problem(api.http.get(f"{us}/rows?column=close", headers={"Accept": "text/csv"}))[0] == 406


def test_limits_of_rows_and_assets_are_in_the_sentences(api: Live, us: str, monkeypatch: pytest.MonkeyPatch) -> None:
    appended(api, us, [1.0, 2.0], at=[MONDAY])
    monkeypatch.setattr(limits, "DATASET_ROWS", 2)
    monkeypatch.setattr(limits, "DATASET_ASSETS", 3)
    many = append(api, us, [1.0, 2.0], [3.0, 4.0], at=(TUESDAY, WEDNESDAY))
    assert f"{name(us)} would have 3 rows; the limit is 2" in many.json()["detail"]
    wide = append(api, us, [1.0, 2.0], at=[TUESDAY], assets=["C", "D"])
    assert f"{name(us)} would have 4 assets; the limit is 3" in wide.json()["detail"]
    monkeypatch.setattr(limits, "ROW_BYTES_AT_ONCE", 40)
    stored = api.http.put("/v1/arrays", content=npy(np.zeros((2, 2))), headers=NPY).json()["id"]
    body = {"times": [MONDAY, TUESDAY], "columns": {"close": {"array": stored}, "volume": [[0, 0], [0, 0]]}}
    large = api.http.post(f"{us}/rows", json=body)
    assert "the rows have 48 bytes or more; one request may append 40" in large.json()["detail"]
    columns = {"volume": {"array": stored}, "close": [[0, 0], [0, 0]]}
    wrong = api.http.post(f"{us}/rows", json={**body, "columns": columns})
    assert "the array is float64; float32 is needed" in wrong.json()["detail"]


def test_datasets_of_other_keys_are_not_there_and_scopes_and_quotas_hold(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    both: list[Scope] = ["submit", "read"]
    one, two, reads, submits = (
        {"Authorization": f"Bearer {create_key(tmp_path / 'home', f'key {number}', scopes)}"}
        for number, scopes in enumerate((both, both, both[1:], both[:1]))
    )
    made = {"columns": COLUMNS, "assets": ["A", "B"]}
    with serve_api(max_datasets=2, max_stored_bytes_per_key=90_000, max_stored_bytes=200_000) as api:
        assert api.http.put("/v1/datasets/us", json=made, headers=one).status_code == 201
        for method, path, body in (
            ("GET", "/v1/datasets/us", None), ("DELETE", "/v1/datasets/us", None),
            ("GET", "/v1/datasets/us/rows?column=close", None),
            ("POST", "/v1/datasets/us/rows", rows([1.0, 2.0], at=[MONDAY])),
        ):  # fmt: skip
            answer = api.http.request(method, path, json=body, headers=two)
            assert problem(answer) == (404, "unknown-dataset", "")
        assert api.http.get("/v1/datasets", headers=two).json()["datasets"] == []
        for method, path, body, key in (
            ("PUT", "/v1/datasets/x", made, reads), ("POST", "/v1/datasets/x/rows", {}, reads),
            ("DELETE", "/v1/datasets/x", None, reads), ("GET", "/v1/datasets", None, submits),
            ("GET", "/v1/datasets/x", None, submits), ("GET", "/v1/datasets/x/rows?column=c", None, submits),
        ):  # fmt: skip
            assert problem(api.http.request(method, path, json=body, headers=key))[:2] == (403, "missing-scope")

        assert api.http.put("/v1/datasets/eu", json=made, headers=one).status_code == 201
        assert api.http.put("/v1/datasets/us", json=made, headers=one).status_code == 200
        third = api.http.put("/v1/datasets/jp", json=made, headers=one)
        assert problem(third)[:2] == (429, "too-many-datasets")
        assert "The key has 2 datasets, and may have 2" in third.json()["detail"]

        blocks = np.zeros((1500, 2)), np.zeros((1500, 2), "float32")
        ids = [api.http.put("/v1/arrays", content=npy(each), headers={**NPY, **one}).json()["id"]
               for each in (np.arange(1500), *blocks)]  # fmt: skip
        body = {"times": {"array": ids[0]}, "columns": {"close": {"array": ids[1]}, "volume": {"array": ids[2]}}}
        before = api.http.get("/v1/datasets", headers=one).json()["stored_bytes"]
        refused = api.http.post("/v1/datasets/us/rows", json=body, headers=one)
        assert problem(refused)[:2] == (429, "storage-quota")
        assert f"The key stores {before} bytes and would store" in refused.json()["detail"]
        for array in ids:
            used = api.http.delete(f"/v1/arrays/{array}", headers=one)
            assert used.status_code == 204
        assert api.http.get("/v1/datasets/us", headers=one).json()["version"] == 0
        assert api.http.post("/v1/datasets/us/rows", json=rows([1.0, 2.0], at=[MONDAY]), headers=one).status_code == 200
    with serve_api() as again:  # a restart loses nothing
        assert again.http.get("/v1/datasets/us", headers=one).json()["rows"] == 1


def test_an_input_as_it_is_documented_is_what_the_service_takes() -> None:
    written = DatasetInput.model_json_schema()
    assert list(written["properties"]) == ["dataset", "column", "from", "to", "assets", "as_of"]
    assert written["required"] == ["dataset", "column"]
