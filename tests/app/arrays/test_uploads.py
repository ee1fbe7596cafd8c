"""Arrays over HTTP: an upload comes back as it was, and a malformed one is refused with the numbers."""

import asyncio
import io
import os
import pickle
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from tests.app.computations import work
from tests.app.conftest import Live, connected
from tests.waiting import wait_until
from warpdesk_server.app.arrays import npy_upload, table
from warpdesk_server.app.arrays.nested import from_nested
from warpdesk_server.app.arrays.npy_upload import NpyUpload
from warpdesk_server.app.arrays.table import Order
from warpdesk_server.app.jobs import operations
from warpdesk_server.app.jobs.results import erase_secrets
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.services import Services

NPY = {"Content-Type": "application/x-npy"}
CSV = {"Content-Type": "text/csv; charset=utf-8"}
NPY_WANTED = {"Accept": "application/x-npy"}


def npy(array: Any, version: tuple[int, int] = (1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), version=version)
    return file.getvalue()


def header(text: str, version: bytes = b"\x01\x00", length: int | None = None) -> bytes:
    body = text.encode()
    size = len(body) if length is None else length
    return b"\x93NUMPY" + version + struct.pack("<H" if version[0] == 1 else "<I", size) + body


def fetch(api: Live, array_id: str) -> Any:
    answer = api.http.get(f"/v1/arrays/{array_id}", headers={"Accept": "application/x-npy"})
    assert answer.status_code == 200
    return np.load(io.BytesIO(answer.content), allow_pickle=False)


SAMPLES: dict[str, Any] = {
    "one number": np.float64(1.5),
    "nothing": np.zeros((0,)),
    "no rows": np.zeros((0, 3)),
    "a series": np.arange(1000) * 0.1,
    "float32": np.linspace(0, 1, 77, dtype=np.float32).reshape(7, 11),
    "uint64": np.array([2**64 - 1, 2**63, 0], np.uint64),
    "int64": np.array([[-(2**63)], [2**63 - 1]], np.int64),
    "bytes": np.arange(256, dtype=np.uint8),
    "big-endian": np.arange(33, dtype=">f8").reshape(3, 11),
    "big-endian int32": np.arange(-5, 5, dtype=">i4"),
    "Fortran order": np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
    "Fortran and big-endian": np.asfortranarray(np.arange(24, dtype=">u4").reshape(4, 6)),
    "Fortran order, no rows": np.asfortranarray(np.zeros((0, 2, 3))),
    "Fortran order, no columns": np.asfortranarray(np.zeros((2, 3, 0))),
    "Fortran, one column": np.asfortranarray(np.arange(9.0).reshape(9, 1)),
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_what_goes_in_comes_out(api: Live, name: str, version: tuple[int, int]) -> None:
    sample = SAMPLES[name]

    answer = api.http.put("/v1/arrays", content=npy(sample, version), headers=NPY)

    body = answer.json()
    assert answer.status_code == 201, answer.text
    assert answer.headers["Location"] == f"/v1/arrays/{body['id']}"
    assert (body["dtype"], body["shape"], body["bytes"]) == (sample.dtype.name, list(sample.shape), sample.nbytes)
    assert body["created_at"] < body["expires_at"]
    back = fetch(api, body["id"])
    assert back.dtype == sample.dtype.newbyteorder("=")
    np.testing.assert_array_equal(back, sample)


def test_the_same_content_has_the_same_id_however_it_is_written(api: Live) -> None:
    sample = np.arange(12.0).reshape(3, 4)
    forms = [npy(sample), npy(np.asfortranarray(sample)), npy(sample.astype(">f8")), npy(sample, (2, 0))]

    ids = {api.http.put("/v1/arrays", content=form, headers=NPY).json()["id"] for form in forms}

    assert len(ids) == 1


@pytest.mark.parametrize("position", [0, 1, 70_000, 99_999])
@pytest.mark.parametrize(("value", "mark"), [(np.nan, "has_nan"), (-np.inf, "has_inf")])
def test_a_nan_or_infinity_is_seen_wherever_it_is(api: Live, position: int, value: float, mark: str) -> None:
    sample = np.ones(100_000)
    sample[position] = value

    body = api.http.put("/v1/arrays", content=npy(sample), headers=NPY).json()

    assert {name for name in ("has_nan", "has_inf") if body[name]} == {mark}


def test_an_array_may_come_in_chunks_without_a_length(api: Live) -> None:
    sample = np.arange(50_000) / 3
    content = npy(sample)

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(content), 7777):
            yield content[start : start + 7777]

    answer = api.http.put("/v1/arrays", content=pieces(), headers=NPY)

    assert answer.status_code == 201
    np.testing.assert_array_equal(fetch(api, answer.json()["id"]), sample)


def test_an_upload_whose_client_goes_away_leaves_nothing(serve_api: Callable[..., Any]) -> None:
    content = npy(np.arange(2_000_000.0))  # so large that a part is written before the end of the body arrives
    head = "PUT /v1/arrays HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-npy\r\n"
    head += f"Content-Length: {len(content)}\r\n\r\n"

    with serve_api() as api:
        before = stored_files(api)
        with connected(api) as connection:
            connection.sendall(head.encode() + content[:-1])
            wait_until(lambda: stored_files(api) != before)

        wait_until(lambda: stored_files(api) == before)


def test_a_head_and_a_description_tell_of_an_array(api: Live) -> None:
    array_id = api.http.put("/v1/arrays", content=npy([1.0, 2.0]), headers=NPY).json()["id"]

    described = api.http.get(f"/v1/arrays/{array_id}")
    head = api.http.head(f"/v1/arrays/{array_id}")

    assert described.json()["shape"] == [2]
    assert (head.status_code, head.content) == (200, b"")
    assert api.http.head("/v1/arrays/blake3:" + "0" * 64).status_code == 404


def test_an_array_that_outlived_its_time_is_swept_unless_a_live_job_reads_it(
    serve_api: Callable[..., Any],
) -> None:
    with serve_api(array_ttl=2.0, sweep_every=0.05) as api:
        read, unread = (
            api.http.put("/v1/arrays", content=npy([1.0, number]), headers=NPY).json()["id"] for number in (2.0, 3.0)
        )
        job_id = api.submit(operation="scale", params={"factor": 1.0}, inputs={"values": {"array": read}})

        wait_until(lambda: not api.store.path("local", unread).exists())

        assert api.http.get(f"/v1/arrays/{unread}").status_code == 404
        assert api.store.path("local", read).exists()
        api.queue.cancel(job_id)
        wait_until(lambda: not api.store.path("local", read).exists())


def test_a_deleted_array_is_gone(api: Live) -> None:
    array_id = api.http.put("/v1/arrays", content=npy([1.0, 2.0, 8.0]), headers=NPY).json()["id"]

    answers = [api.http.delete(f"/v1/arrays/{array_id}") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [204, 404]


def test_an_array_that_a_live_job_reads_is_not_deleted(api: Live) -> None:
    array_id = api.http.put("/v1/arrays", content=npy([1.0, 2.0, 9.0]), headers=NPY).json()["id"]
    job_id = api.submit(operation="scale", params={"factor": 1.0}, inputs={"values": {"array": array_id}})

    busy = api.http.delete(f"/v1/arrays/{array_id}")
    api.http.post(f"/v1/jobs/{job_id}/cancel")
    free = api.http.delete(f"/v1/arrays/{array_id}")

    assert (busy.status_code, busy.json()["code"], free.status_code) == (409, "array-in-use", 204)


def test_a_job_whose_array_is_deleted_while_it_is_looked_at_is_refused_until_it_is_uploaded_again(api: Live) -> None:
    content = npy([1.0, 2.0, 10.0])
    array_id = api.http.put("/v1/arrays", content=content, headers=NPY).json()["id"]
    body = {"operation": "scale", "params": {"factor": 1.0}, "inputs": {"values": {"array": array_id}}}
    assert api.queue.forbid("local", array_id)  # the first step of a deletion

    refused = api.http.post("/v1/jobs", json=body)
    api.http.put("/v1/arrays", content=content, headers=NPY)
    taken = api.http.post("/v1/jobs", json=body)

    assert (refused.status_code, refused.json()["code"]) == (422, "invalid-request")
    assert refused.json()["errors"] == [
        {"pointer": "/inputs/values/array", "detail": f"there is no array {array_id!r}"}
    ]
    assert taken.status_code == 202


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Calls to make once, in the next submission: after its inputs were found and before the job is queued."""
    keep, happens = operations.keep_inputs, list[Callable[[], object]]()

    def keep_inputs(*arguments: Any) -> Any:
        while happens:
            happens.pop()()
        return keep(*arguments)

    monkeypatch.setattr(operations, "keep_inputs", keep_inputs)
    return happens


def _scaled(api: Live, array_id: str) -> httpx.Response:
    body = {"operation": "scale", "params": {"factor": 1.0}, "inputs": {"values": {"array": array_id}}}
    return api.http.post("/v1/jobs", json=body)


def _is_refused_as_unknown(answer: httpx.Response, array_id: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert answer.json()["errors"] == [{"pointer": "/inputs/values/array", "detail": f"there is no array {array_id!r}"}]


def test_a_job_whose_array_is_deleted_after_it_was_found_is_refused(
    api: Live, between: list[Callable[[], object]]
) -> None:
    array_id = api.http.put("/v1/arrays", content=npy([1.0, 2.0, 15.0]), headers=NPY).json()["id"]
    between.append(lambda: api.http.delete(f"/v1/arrays/{array_id}").raise_for_status())

    _is_refused_as_unknown(_scaled(api, array_id), array_id)
    assert api.queued() == (0, [])


def test_a_job_whose_array_was_deleted_long_ago_but_after_it_was_found_is_refused(
    api: Live, between: list[Callable[[], object]]
) -> None:
    """The submission stalled, as on a disk that hangs, until Redis no longer had the note of the deletion."""
    array_id = api.http.put("/v1/arrays", content=npy([1.0, 2.0, 16.0]), headers=NPY).json()["id"]

    def long_ago() -> None:
        api.http.delete(f"/v1/arrays/{array_id}").raise_for_status()
        api.queue.allow("local", array_id)

    between.append(long_ago)

    _is_refused_as_unknown(_scaled(api, array_id), array_id)
    assert api.queued() == (0, [])


def test_a_job_whose_array_is_uploaded_again_and_deleted_at_once_is_refused(
    api: Live, between: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload allows jobs to read the array again. Here that happens only after the deletion, when it is gone."""
    content = npy([1.0, 2.0, 17.0])
    array_id = api.http.put("/v1/arrays", content=content, headers=NPY).json()["id"]
    allow = Services.allow

    def delete_first(desk: Services, owner: str, array: str) -> None:
        api.http.delete(f"/v1/arrays/{array}").raise_for_status()
        allow(desk, owner, array)

    def upload_again() -> None:
        monkeypatch.setattr(Services, "allow", delete_first)
        api.http.put("/v1/arrays", content=content, headers=NPY).raise_for_status()

    between.append(upload_again)

    _is_refused_as_unknown(_scaled(api, array_id), array_id)
    assert api.queued() == (0, [])


def test_an_array_that_is_uploaded_again_while_it_is_deleted_is_there_for_the_job_that_reads_it(
    api: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = npy([1.0, 2.0, 18.0])
    array_id = api.http.put("/v1/arrays", content=content, headers=NPY).json()["id"]
    jobs = api.app.state.services.queue.jobs
    forbid, again = jobs.forbid, list[Future[httpx.Response]]()

    def upload_and_submit() -> httpx.Response:
        api.http.put("/v1/arrays", content=content, headers=NPY).raise_for_status()
        return _scaled(api, array_id)

    with ThreadPoolExecutor(1) as threads:

        def forbid_slowly(owner: str, array: str) -> bool:
            outcome = forbid(owner, array)
            again.append(threads.submit(upload_and_submit))
            wait(again, timeout=1.0)  # it may have to wait for the end of the deletion
            return bool(outcome)

        monkeypatch.setattr(jobs, "forbid", forbid_slowly)
        deleted = api.http.delete(f"/v1/arrays/{array_id}")
        submitted = again[0].result()

    assert (deleted.status_code, submitted.status_code) == (204, 202)
    work(api.queue, api.store, submitted.json()["id"])
    assert api.http.get(f"/v1/jobs/{submitted.json()['id']}").json()["status"] == "succeeded"


def test_numbers_in_a_body_are_taken_though_the_same_are_being_deleted_as_an_array(api: Live) -> None:
    array_id = api.http.put("/v1/arrays", content=npy([1.0, 2.0, 11.0]), headers=NPY).json()["id"]
    assert api.queue.forbid("local", array_id)

    job_id = api.submit(operation="scale", params={"factor": 1.0}, inputs={"values": {"data": [1.0, 2.0, 11.0]}})
    api.store.delete("local", array_id)  # the last step of the deletion

    work(api.queue, api.store, job_id)
    result = api.http.get(f"/v1/jobs/{job_id}/result").json()
    assert result["outputs"]["scaled"] == [1.0, 2.0, 11.0]


def test_an_output_that_was_erased_and_is_computed_again_can_be_an_input(api: Live) -> None:
    def drawn() -> tuple[str, str]:
        job_id = api.submit(operation="draw", params={"count": 601}, seed=601)
        work(api.queue, api.store, job_id)
        return job_id, api.http.get(f"/v1/jobs/{job_id}/result").json()["outputs"]["numbers"]["array"]

    first, array_id = drawn()
    api.http.delete(f"/v1/jobs/{first}")

    _, again = drawn()

    assert again == array_id
    api.submit(operation="scale", params={"factor": 1.0}, inputs={"values": {"array": again}})


def test_secrets_that_two_clients_uploaded_are_one_array_and_gone_with_the_first_job_that_is_done(api: Live) -> None:
    def upload() -> str:
        return str(api.http.put("/v1/arrays", content=npy([0.125, 0.375]), headers=NPY).json()["id"])

    seeds, same = upload(), upload()
    body = {"operation": "hide", "params": {"count": 1}}
    inputs = {"values": {"data": [1.0]}, "seeds": {"array": seeds}}
    api.http.post(f"/v1/jobs/{api.submit(**body, inputs=inputs)}/cancel")
    wait_until(lambda: api.store.find("local", seeds) is None)

    refused = api.http.post("/v1/jobs", json={**body, "inputs": inputs})
    upload()
    taken = api.http.post("/v1/jobs", json={**body, "inputs": inputs})

    assert (seeds == same, refused.status_code, taken.status_code) == (True, 422, 202)


def test_a_secret_that_is_uploaded_again_is_not_erased_for_a_job_that_was_done_before(api: Live) -> None:
    content = npy([0.125, 0.625])
    seeds = api.http.put("/v1/arrays", content=content, headers=NPY).json()["id"]
    inputs = {"values": {"data": [1.0]}, "seeds": {"array": seeds}}
    job_id = api.submit(operation="hide", params={"count": 1}, inputs=inputs)
    api.store.delete("local", seeds)  # as a worker does at the end of the job
    api.queue.cancel(job_id)
    record = api.queue.get(job_id)
    assert record is not None
    wait_until(lambda: time.time() > (record.ended_at or 0))
    api.http.put("/v1/arrays", content=content, headers=NPY)

    asyncio.run(erase_secrets(api.app.state.services, record))  # as the API does at the event of the cancel

    assert api.store.find("local", seeds) is not None


GOOD = "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }"
LIES = {
    "empty body": (b"", "ends after 0 bytes"),
    "half a magic string": (b"\x93NUM", "ends after 4 bytes"),
    "not npy": (b"PK\x03\x04 a zip file", "magic string"),
    "header cut off": (header(GOOD, length=200), "ends after"),
    "header of 4 GB": (header(GOOD, b"\x02\x00", 2**32 - 1), "4294967295 bytes long; the limit is 10000"),
    "version 9": (header(GOOD, b"\x09\x00"), "version 9.0"),
    "truncated": (npy(np.arange(3.0))[:-1], "24 bytes of numbers; the body holds 23"),
    "no numbers": (header(GOOD), "24 bytes of numbers; the body holds 0"),
    "too many numbers": (npy(np.arange(3.0)) + b"12345678", "24 bytes of numbers; the body holds 32"),
    "pickled objects": (npy(np.array([None, {}], object)), "pickled Python objects"),
    "pickle named otherwise": (header(GOOD.replace("<f8", "O8")) + pickle.dumps([1]), "is not one of float64"),
    "structured": (npy(np.zeros(2, [("a", "f8"), ("b", "i4")])), "tructured arrays are not taken"),
    "complex": (npy(np.zeros(2, complex)), "'<c16' is not one of float64"),
    "text": (npy(np.array(["a", "b"])), "is not one of float64"),
    "half precision": (npy(np.zeros(2, np.float16)), "'<f2' is not one of"),
    "truth values": (npy(np.zeros(2, bool)), "'|b1' is not one of"),
    "negative extent": (header(GOOD.replace("(3,)", "(-3,)")), "not a tuple of whole numbers"),
    "true as an extent": (header(GOOD.replace("(3,)", "(True,)")), "not a tuple of whole numbers"),
    "shape is a list": (header(GOOD.replace("(3,)", "[3]")), "not a tuple of whole numbers"),
    "rank 9": (header(GOOD.replace("(3,)", str((1,) * 9))) + b"12345678", "rank 9; the limit is 8"),
    "an extent of 36,000 bits": (header(GOOD.replace("(3,)", f"(0, 0x{'f' * 9000})")), "xis 1 of the shape is longer"),
    "an extent of 10**40": (header(GOOD.replace("(3,)", f"(0, {10**40})")), "longer than 9223372036854775807"),
    "an empty array NumPy cannot make": (
        header(GOOD.replace("(3,)", f"({2**40}, 0, {2**40})")), "that are not empty hold more than"
    ),
    "code for a header": (header("__import__('os').system('true')"), "not a dictionary"),
    "a deep header": (header("(" * 4000 + ")" * 4000), "not a dictionary"),
    "a key more": (header(GOOD.replace("}", "'unit': 'USD'}")), "not a dictionary"),
    "a key twice": (header(GOOD.replace("}", "'shape': (2,)}")), "not a dictionary"),
    "missing key": (header("{'descr': '<f8', 'shape': (3,)}"), "not a dictionary"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_an_npy_that_lies_is_refused_with_the_numbers(api: Live, name: str) -> None:
    content, sentence = LIES[name]
    before = stored_files(api)

    answer = api.http.put("/v1/arrays", content=content, headers=NPY)
    chunked = api.http.put("/v1/arrays", content=iter([content]), headers=NPY)

    for reply in (answer, chunked):
        assert (reply.status_code, reply.json()["code"]) == (422, "malformed-array")
    assert sentence in answer.json()["detail"]
    assert set(stored_files(api)) <= set(before)


@pytest.mark.parametrize("declared", [200_000, 10**15, 10**18])
def test_an_array_over_the_limit_is_refused_by_its_header(api: Live, declared: int) -> None:
    content = header(GOOD.replace("(3,)", f"({declared},)")) + b"x" * 1000

    answer = api.http.put("/v1/arrays", content=content, headers=NPY)

    assert (answer.status_code, answer.json()["code"]) == (413, "array-too-large")
    assert f"is {8 * declared} bytes; the limit is 1000000" in answer.json()["detail"]


@pytest.mark.parametrize("media_type", ["application/octet-stream", "application/json", "", "multipart/form-data"])
def test_another_media_type_is_refused(api: Live, media_type: str) -> None:
    answer = api.http.put("/v1/arrays", content=npy([1.0]), headers={"Content-Type": media_type})

    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported-media-type")


def test_a_csv_becomes_series(api: Live) -> None:
    text = 'Date,Open,Close\r\n2024-01-02,1.5,2\r\n2024-01-03,,4e2\r\n"2024-01-04", 3 ,NaN\r\n'

    one = api.http.put("/v1/arrays?columns=Close", content=text, headers=CSV).json()
    two = api.http.put("/v1/arrays?columns=Close,Open", content=text, headers=CSV).json()

    assert (one["dtype"], one["shape"], one["has_nan"]) == ("float64", [3], True)
    np.testing.assert_array_equal(fetch(api, one["id"]), [2.0, 400.0, np.nan])
    np.testing.assert_array_equal(fetch(api, two["id"]), [[2.0, 400.0, np.nan], [1.5, np.nan, 3.0]])
    same = api.http.put("/v1/arrays?columns=Close&columns=Open", content=text, headers=CSV).json()
    assert same["id"] == two["id"]


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("1\n2\n3\n", [], [1.0, 2.0, 3.0]),
        ("1\n\n3", [], [1.0, np.nan, 3.0]),
        ("1,2\n3,4\n", [], [[1.0, 3.0], [2.0, 4.0]]),
        ("1,2\n3,4\n", ["1"], [2.0, 4.0]),
        ("\ufeffClose\n1\n\n\n", [], [1.0]),
        ('"a,b",c\n1,2\n', ["c"], [2.0]),
        ("x\n-1e-3\n", ["x"], [-1e-3]),
        ("name,2024\n1,2\n", ["2024"], [2.0]),
        ("name,52w high\n1,2\n", ["52w high", "name"], [[2.0], [1.0]]),
        ("x\n" + "7\n" * 5000 + "\n8\n", [], [7.0] * 5000 + [np.nan, 8.0]),
    ],
)
def test_a_csv_is_read_as_the_field_writes_it(text: str, columns: list[str], expected: list[float]) -> None:
    columns_read = table.read(text.encode(), Order(columns, 10, 10_000, 0, 0))

    np.testing.assert_array_equal(columns_read[0] if len(columns_read) == 1 else columns_read, expected)


@pytest.mark.parametrize(
    ("text", "query", "sentence"),
    [
        ("a,b\n1,2\n3\n", "", "Row 3 has 1 cells, row 1 has 2"),
        ("a,b\n1,2\n3,4,5\n", "", "Row 3 has 3 cells, row 1 has 2"),
        ("a\n" + "1\n" * 4097 + "1,2\n", "", "Row 4099 has 2 cells, row 1 has 1"),
        ("1\n" * 4097 + "x\n", "", "Row 4098, column '0': 'x' is not a number"),
        ("a,b\n1,2\n\n5,6\n", "", "Row 3 has 1 cells, row 1 has 2"),
        ("Date,Close\n2024-01-02,3\n", "", "Row 2, column 'Date': '2024-01-02' is not a number"),
        ("Date,Open,Close\n2024-01-02,1,3\n", "", "columns Open, Close are numeric: choose among them with ?columns="),
        ("Close,Date\n3,2024-01-02\n", "", "column Close is numeric: choose it with ?columns=Close"),
        ("Day,Date\nMon,2024-01-02\n", "", "'Mon' is not a number; no column holds numbers alone"),
        ("Close\n1\nN/A\n", "?columns=Close", "'N/A' is not a number; a gap is written as an empty cell"),
        ("Close\n1\n2\n$3\n", "?columns=Close", "'$3' is not a number; a gap is written as an empty cell"),
        ("Date;Close\n2024;3\n", "?columns=Close", "separated by semicolons: separate them by commas"),
        ("Date;Close\n2024;3,5\n", "", "separated by semicolons: separate them by commas"),
        ("Date\tClose\n2024\t3\n", "", "separated by tabs: separate them by commas"),
        ("1," * 10_000 + "1\n", "", "Line 1 has 10001 cells; a CSV may have at most 10000 columns"),
        ("1\n" + "1," * 10_000 + "1\n", "", "Line 2 has 10001 cells; a CSV may have at most 10000 columns"),
        ('"\n"' + ",1" * 6000 + ',"\n"' + ",1" * 6000, "", "Row 1 has 12002 cells; a CSV may have at most 10000"),
        ("," * 60_000, "", "The CSV has about 60001 cells, by its commas and lines; the limit is 50000"),
        ("1,2\n", "?columns=0,1,0", "Column '0' is chosen 2 times"),
        ("\r" * 60_000 + "1", "", "The CSV has about 60001 cells, by its commas and lines; the limit is 50000"),
        ("Date,Close\n2024-01-02,3\n", "?columns=Volume", "There is no column 'Volume'; there are Date, Close"),
        ("a,a\n1,2\n", "?columns=a", "2 columns are called 'a'"),
        ("a,b\n", "", "a header and no rows"),
        ("1O0\n200\n300\n", "", "Row 1 is not all numbers, and as a header its '1O0' begins like a number"),
        ('"1,000"\n2\n', "", "its '1,000' begins like a number"),
        ("1_0\n2_0\n", "", "its '1_0' begins like a number"),
        ("x,-.5\n1,2\n", "", "its '-.5' begins like a number"),
        ("", "", "The CSV has no rows"),
        ("\n\n", "", "The CSV has no rows"),
        ("a\n1_000\n", "", "'1_000' is not a number"),
        ("a\n١٢\n", "", "'١٢' is not a number"),
        ("1\n0x10\n", "", "'0x10' is not a number"),
        ('a\n"1\n', "", "The CSV cannot be read"),
    ],
)
def test_a_csv_that_is_no_table_of_numbers_is_refused(api: Live, text: str, query: str, sentence: str) -> None:
    answer = api.http.put(f"/v1/arrays{query}", content=text.encode(), headers=CSV)

    assert (answer.status_code, answer.json()["code"]) == (422, "malformed-csv")
    assert sentence in answer.json()["detail"]


def test_a_csv_that_is_not_utf8_is_refused(api: Live) -> None:
    answer = api.http.put("/v1/arrays", content="a\n1\nä".encode("latin-1"), headers=CSV)

    assert (answer.status_code, answer.json()["detail"]) == (422, "Byte 4 of the CSV is not UTF-8")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    dtype=st.sampled_from(["<f8", ">f8", "<f4", "<i8", ">u8", "<u4", "|u1"]),
    order=st.sampled_from("CF"),
)
def test_any_array_cut_anywhere_arrives_whole(api: Live, data: st.DataObject, dtype: str, order: Any) -> None:
    shape = data.draw(arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
    sample = data.draw(arrays_of.arrays(np.dtype(dtype), shape))
    content = npy(np.asarray(sample, order=order))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    pieces = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]

    flushed = data.draw(st.lists(st.booleans(), min_size=len(pieces), max_size=len(pieces)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(npy_upload, "BLOCK", data.draw(st.sampled_from([8, 64, 1 << 20])))
        upload = incoming(api, len(content))
        for piece, flush in zip(pieces, flushed, strict=True):
            upload.take(piece)
            if flush:
                upload.flush()
        stored = upload.finish()

    np.testing.assert_array_equal(np.load(api.store.path("local", stored.id)), sample)
    floating = sample.dtype.kind == "f"
    assert stored.info.has_nan == (floating and bool(np.isnan(sample).any()))
    assert stored.info.has_inf == (floating and bool(np.isinf(sample).any()))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(max_size=300), keep=st.integers(0, 160), position=st.integers(0, 200))
@example(noise=b"\x1c", keep=1, position=npy(np.arange(5.0)).index(b"}") + 1)  # str.strip takes it for a space
def test_any_damage_to_a_file_is_refused_or_stored_as_it_says(
    api: Live, noise: bytes, keep: int, position: int
) -> None:
    good = npy(np.arange(5.0))
    content = good[:position] + noise + good[position + len(noise) :] if keep % 2 else good[:keep] + noise

    upload = incoming(api, len(content))
    try:
        upload.take(content)
        stored = upload.finish()
    except Refusal:
        upload.discard()
        return
    np.testing.assert_array_equal(np.load(api.store.path("local", stored.id)), np.load(io.BytesIO(content)))


@pytest.mark.parametrize(
    ("data", "dtype", "expected"),
    [
        (1.5, "float64", np.float64(1.5)),
        ([], "float64", np.zeros(0)),
        ([[], []], "float64", np.zeros((2, 0))),
        ([1, 2.5, None], "float64", np.array([1, 2.5, np.nan])),
        ([[1, 2], [3, 4]], "float32", np.array([[1, 2], [3, 4]], np.float32)),
        ([2**64 - 1, 0], "uint64", np.array([2**64 - 1, 0], np.uint64)),
        ([-(2**63), 2**63 - 1], "int64", np.array([-(2**63), 2**63 - 1])),
        ([255, 0], "uint8", np.array([255, 0], np.uint8)),
    ],
)
def test_lists_become_arrays(data: object, dtype: Any, expected: Any) -> None:
    array = from_nested(data, dtype, "/data", 100)

    assert array.dtype == expected.dtype
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("data", "dtype", "pointer", "sentence"),
    [
        ([[1, 2], [3]], "float64", "/data/1", "the row has 1 entries, the first row has 2"),
        ([[1, 2], 3], "float64", "/data/1", "3 is in the place of a list of 2"),
        ([1, [2]], "float64", "/data", "a list is in the place of a number"),
        ([1, "2"], "float64", "/data/1", "'2' is not a number of float64"),
        ([[1, 2], [True, 4]], "float64", "/data/1/0", "true is not a number of float64"),
        ([1, None], "int64", "/data/1", "null is not a number of int64"),
        ([1.0], "int64", "/data/0", "1.0 is not a number of int64"),
        ([0, -1], "uint64", "/data/1", "-1 is outside uint64, which goes from 0 to 18446744073709551615"),
        ([0, 256], "uint8", "/data/1", "256 is outside uint8, which goes from 0 to 255"),
        ([10**400], "float64", "/data/0", "is outside float64"),
        ([1.0, 1e400], "float64", "/data/1", "inf is outside float64"),
        (
            [[1.0, 2.0], [3.0, -1e39]],
            "float32",
            "/data/1/1",
            "-1e+39 is outside float32, which goes from -3.4028235e+38",
        ),
        ([None, 10**39], "float32", "/data/1", "is outside float32"),
        ([[[[[[[[[1]]]]]]]]], "float64", "/data", "nested deeper than 8"),
        ([[0.0] * 20] * 6, "float64", "/data", "120 numbers of shape [6, 20] are more than the 100"),
        (None, "uint8", "/data", "null is not a number of uint8"),
    ],
)
def test_lists_that_are_no_array_are_refused(data: object, dtype: Any, pointer: str, sentence: str) -> None:
    with pytest.raises(Refusal) as refusal:
        from_nested(data, dtype, "/data", 100)

    assert refusal.value.status == 422
    assert refusal.value.problems[0].pointer == pointer
    assert sentence in refusal.value.problems[0].detail


def stored_files(api: Live) -> list[str]:
    """Every file of arrays and results, half-written ones included.

    Without the owner's name, which the first upload writes, and the counts of stored bytes, which change each second.
    """
    root = api.settings.store_directory
    return sorted(
        os.path.join(folder, file)  # noqa: PTH118
        for folder, _, files in os.walk(root)
        for file in files
        if file != "owner" and os.path.basename(folder) != "usage"  # noqa: PTH119
    )


def incoming(api: Live, length: int) -> NpyUpload:
    return NpyUpload(lambda d, s: api.store.writer("local", d, s, 60.0), 10**6, length)


@pytest.mark.parametrize(
    ("range_header", "status", "code"),
    [
        ("bytes=9-3", 400, "bad-request"),
        ("bytes=a-b", 400, "bad-request"),
        ("bytes=99999-", 416, "range-not-satisfiable"),
    ],
)
def test_a_range_of_an_array_that_cannot_be_given_is_a_problem_document(
    api: Live, range_header: str, status: int, code: str
) -> None:
    answer = api.http.get(_uploaded(api), headers={"Accept": "application/x-npy", "Range": range_header})

    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/problem+json")
    assert answer.json()["code"] == code


@pytest.mark.parametrize("range_header", ["bytes=0-9", "bytes=9-3", "bytes=99999-"])
def test_a_head_of_an_array_ignores_a_range(api: Live, range_header: str) -> None:
    at = _uploaded(api)
    size = len(api.http.get(at, headers=NPY_WANTED).content)

    answer = api.http.head(at, headers={**NPY_WANTED, "Range": range_header})

    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["Content-Length"] == str(size)


def test_an_array_whose_file_is_gone_is_unknown(api: Live) -> None:
    at = _uploaded(api)
    api.store.path("local", at.rpartition("/")[2]).unlink()

    answer = api.http.get(at, headers=NPY_WANTED)

    assert (answer.status_code, answer.json()["code"]) == (404, "unknown-array")
    api.http.delete(at)


def test_a_delete_among_many_downloads_cuts_none_of_them(api: Live) -> None:
    for size in range(100_000, 100_010):
        file = npy(np.arange(float(size)))
        at = f"/v1/arrays/{api.http.put('/v1/arrays', content=file, headers=NPY).json()['id']}"
        with ThreadPoolExecutor(8) as threads:
            answers = [threads.submit(api.http.get, at, headers=NPY_WANTED) for _ in range(16)]
            deleted = threads.submit(api.http.delete, at)
            answers += [threads.submit(api.http.get, at, headers=NPY_WANTED) for _ in range(8)]
        assert deleted.result().status_code == 204
        for answer in (future.result() for future in answers):  # httpx raises for a body that is cut
            if answer.status_code == 200:
                np.testing.assert_array_equal(np.load(io.BytesIO(answer.content)), np.arange(float(size)))
            else:
                assert (answer.status_code, answer.json()["code"]) == (404, "unknown-array")


def _uploaded(api: Live) -> str:
    """The path of an uploaded array of four numbers."""
    stored = api.http.put("/v1/arrays", content=npy(np.arange(4.0)), headers=NPY).json()
    return f"/v1/arrays/{stored['id']}"
