"""A job's result over HTTP: the document, one output, a range of it, and what erases it."""

import concurrent.futures
import io
import json
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.app.computations import fail, work
from tests.app.conftest import SCALE, Live, live, unlike
from tests.claims import finish, take
from tests.waiting import wait_until
from warpdesk_server.workers.queue.jobs import connect


def test_a_finished_job_tells_its_answer_and_how_it_was_computed(api: Live) -> None:
    job_id = api.submit(**SCALE)
    work(api.queue, api.store, job_id)

    status = api.http.get(f"/v1/jobs/{job_id}").json()
    result = api.http.get(f"/v1/jobs/{job_id}/result")

    assert status["status"] == "succeeded"
    assert status["provenance"]["device"] == "this process"
    assert status["submitted_at"] <= status["started_at"] <= status["ended_at"] < status["result_expires_at"]
    assert result.status_code == 200
    assert result.json() == {
        "job": job_id,
        "operation": "scale",
        "outputs": {"scaled": [2.0, None, 6.0], "total": 8.0},
        "provenance": status["provenance"],
    }


@pytest.mark.parametrize("count", [1, 1000, 2048, 20_000, 100_000])
@pytest.mark.parametrize("place", ["/dev/shm", None])  # noqa: S108 - a tmpfs, which cannot be read without waiting
def test_an_answer_is_the_same_whether_it_is_written_at_once_or_in_a_thread(
    redis_url: str, place: str | None, count: int
) -> None:
    with tempfile.TemporaryDirectory(dir=place) as home, live(Path(home), redis_url) as api:
        body = {"operation": "draw", "params": {"count": count}, "seed": 7}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            reply = pool.submit(api.http.post, "/v1/jobs", json=body, headers={"Prefer": "wait=30"})
            wait_until(lambda: api.queue.jobs("local", 1)[0])
            job_id = api.queue.jobs("local", 1)[0][0].request.id
            work(api.queue, api.store, job_id)
            waited = reply.result(30).json()
        result = api.http.get(f"/v1/jobs/{job_id}/result").json()

    assert waited["result"] == result
    assert result["outputs"] == {"numbers": np.random.default_rng(7).random(count).tolist()}


def test_a_result_that_did_not_change_is_not_sent_again(api: Live) -> None:
    job_id = api.submit(**SCALE)
    work(api.queue, api.store, job_id)
    tag = api.http.get(f"/v1/jobs/{job_id}/result").headers["ETag"]

    again = api.http.get(f"/v1/jobs/{job_id}/result", headers={"If-None-Match": f'"other", {tag}'})
    other = api.http.get(f"/v1/jobs/{job_id}/result/scaled", headers={"If-None-Match": tag})

    assert not tag.startswith("W/")
    assert (again.status_code, again.content) == (304, b"")
    assert other.status_code == 200


def test_one_output_comes_as_json_or_npy(api: Live) -> None:
    job_id = api.submit(**SCALE)
    work(api.queue, api.store, job_id)
    at = f"/v1/jobs/{job_id}/result"

    as_json = api.http.get(f"{at}/scaled", headers={"Accept": "application/json"})
    as_npy = api.http.get(f"{at}/scaled", headers={"Accept": "application/x-npy;q=0.9, application/json;q=0.1"})
    value = api.http.get(f"{at}/total")

    assert as_json.json() == [2.0, None, 6.0]
    assert as_npy.headers["Content-Type"] == "application/x-npy"
    np.testing.assert_array_equal(_npy(as_npy.content), [2.0, np.nan, 6.0])
    assert value.json() == 8.0
    assert as_json.headers["ETag"] != as_npy.headers["ETag"]


def _output(api: Live) -> tuple[str, bytes]:
    """The path of an output that is served as .npy only, and its bytes."""
    job_id = api.submit(operation="draw", params={"count": 501}, seed=7)
    work(api.queue, api.store, job_id)
    at = f"/v1/jobs/{job_id}/result/numbers"
    return at, api.http.get(at).content


@pytest.mark.parametrize(
    ("range_header", "part"),
    [
        ("bytes=0-9", slice(0, 10)),
        ("bytes=100-", slice(100, None)),
        ("bytes=-8", slice(-8, None)),
        ("bytes=-100000", slice(0, None)),
        ("BYTES=5-5", slice(5, 6)),
        ("bytes=0-0,99999-", slice(0, 1)),
        ("bytes=99999-, ,7-9", slice(7, 10)),
    ],
)
def test_a_part_of_an_output_can_be_asked_for(api: Live, range_header: str, part: slice) -> None:
    at, whole = _output(api)

    answer = api.http.get(at, headers={"Range": range_header})

    assert (answer.status_code, answer.content) == (206, whole[part])
    assert answer.headers["Content-Range"].endswith(f"/{len(whole)}")


def test_several_parts_at_once_are_answered_with_the_whole(api: Live) -> None:
    at, whole = _output(api)

    answer = api.http.get(at, headers={"Range": "bytes=0-1,8-9"})

    assert (answer.status_code, answer.content) == (200, whole)


def test_a_part_is_given_only_of_the_copy_that_if_range_names(api: Live) -> None:
    at, whole = _output(api)
    headers = api.http.get(at).headers

    def ask(name: str) -> int:
        answer = api.http.get(at, headers={"Range": "bytes=0-9", "If-Range": name})
        assert answer.content == (whole[:10] if answer.status_code == 206 else whole)
        return answer.status_code

    assert [ask(headers["ETag"]), ask(headers["Last-Modified"])] == [206, 206]
    assert [ask('"another"'), ask("W/" + headers["ETag"])] == [200, 200]


@pytest.mark.parametrize("range_header", ["lines=1-2", "1-2", "", "=1-2"])
def test_a_range_in_a_unit_that_is_not_known_is_ignored(api: Live, range_header: str) -> None:
    at, whole = _output(api)

    answer = api.http.get(at, headers={"Range": range_header})

    assert (answer.status_code, answer.content) == (200, whole)


@pytest.mark.parametrize(
    "range_header",
    [
        *("bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=9-3", "bytes=1"),
        *("bytes=--1", "bytes=1-1_0", "bytes=0-1,x", "bytes=+1-2", "bytes=0-" + "9" * 20),
    ],
)
def test_a_malformed_range_is_a_problem_document(api: Live, range_header: str) -> None:
    at, _ = _output(api)

    answer = api.http.get(at, headers={"Range": range_header})

    assert (answer.status_code, answer.headers["Content-Type"]) == (400, "application/problem+json")
    assert (answer.json()["code"], answer.json()["status"]) == ("bad-request", 400)
    assert answer.json()["detail"].startswith(f"Range {range_header!r} is not bytes=first-last")


@pytest.mark.parametrize("range_header", ["bytes=1000000-", "bytes=5000-6000", "bytes=-0", "bytes=8888-,9999-"])
def test_a_range_beyond_the_end_is_a_problem_document_with_the_size(api: Live, range_header: str) -> None:
    at, whole = _output(api)

    answer = api.http.get(at, headers={"Range": range_header})

    assert (answer.status_code, answer.headers["Content-Type"]) == (416, "application/problem+json")
    assert answer.headers["Content-Range"] == f"bytes */{len(whole)}"
    assert answer.json()["code"] == "range-not-satisfiable"
    assert answer.json()["detail"] == f"Range {range_header!r} begins at or after the end of the {len(whole)} bytes"


@pytest.mark.parametrize(
    ("path", "accept", "status", "code"),
    [
        ("/result", "application/x-npy", 406, "not-acceptable"),
        ("/result/scaled", "text/html", 406, "not-acceptable"),
        ("/result/total", "application/x-npy", 406, "not-acceptable"),
        ("/result/scaled", "application/json;q=0, application/x-npy;q=0", 406, "not-acceptable"),
        ("/result/other", "*/*", 404, "unknown-output"),
    ],
)
def test_a_form_that_does_not_exist_is_refused(api: Live, path: str, accept: str, status: int, code: str) -> None:
    job_id = api.submit(**SCALE)
    work(api.queue, api.store, job_id)

    answer = api.http.get(f"/v1/jobs/{job_id}{path}", headers={"Accept": accept})

    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_infinities_in_a_result_are_words(api: Live) -> None:
    job_id = api.submit(operation="scale", params={"factor": 1e6}, inputs={"values": {"data": [1e308, -1e308, None]}})
    with np.errstate(over="ignore", invalid="ignore"):
        work(api.queue, api.store, job_id)

    answer = api.http.get(f"/v1/jobs/{job_id}/result").json()

    assert answer["outputs"]["scaled"] == ["Infinity", "-Infinity", None]


def test_a_large_output_comes_as_an_array_that_can_be_fetched_and_used(api: Live) -> None:
    job_id = api.submit(operation="draw", params={"count": 501}, seed=7)
    work(api.queue, api.store, job_id)

    reference = api.http.get(f"/v1/jobs/{job_id}/result").json()["outputs"]["numbers"]
    array = api.http.get(f"/v1/arrays/{reference['array']}", headers={"Accept": "application/x-npy"})
    next_job = api.submit(operation="scale", params={"factor": 1.0}, inputs={"values": {"array": reference["array"]}})

    assert (reference["dtype"], reference["shape"]) == ("float64", [501])
    np.testing.assert_array_equal(_npy(array.content), np.random.default_rng(7).random(501))
    assert api.queue.get(next_job) is not None


def test_a_large_output_is_given_as_npy_alone(api: Live) -> None:
    job_id = api.submit(operation="draw", params={"count": 501}, seed=7)
    work(api.queue, api.store, job_id)
    at = f"/v1/jobs/{job_id}/result/numbers"

    as_json = api.http.get(at, headers={"Accept": "application/json"})
    as_it_comes = api.http.get(at)

    assert (as_json.status_code, as_json.json()["code"]) == (406, "not-acceptable")
    assert "available as application/x-npy" in as_json.json()["detail"]
    assert as_it_comes.headers["Content-Type"] == "application/x-npy"
    assert _npy(as_it_comes.content).shape == (501,)


def test_a_job_without_a_result_says_why(api: Live) -> None:
    pending, failed, canceled = (api.submit(**unlike()) for _ in range(3))
    fail(api.queue, failed)
    api.queue.cancel(canceled)

    answers = [api.http.get(f"/v1/jobs/{job_id}/result") for job_id in (pending, failed, canceled)]

    assert [answer.status_code for answer in answers] == [202, 409, 409]
    assert "Retry-After" in answers[0].headers
    assert [answer.json()["code"] for answer in answers[1:]] == ["job-failed", "job-canceled"]
    assert answers[1].json()["detail"] == "The job is failed and has no result: it failed after 3 steps"


def test_an_output_whose_file_is_gone_is_gone(api: Live) -> None:
    job_id = api.submit(operation="draw", params={"count": 503}, seed=503)
    work(api.queue, api.store, job_id)
    (file,) = api.settings.store_directory.glob(f"results/{job_id}*/*.npy")
    file.unlink()

    for path in ("result/numbers", "result"):
        answer = api.http.get(f"/v1/jobs/{job_id}/{path}")

        assert (answer.status_code, answer.json()["code"]) == (410, "result-gone")


def test_an_erase_among_many_downloads_cuts_none_of_them(api: Live) -> None:
    for _ in range(10):
        job_id = api.submit(operation="draw", params={"count": 100_000}, seed=7)
        work(api.queue, api.store, job_id)
        at = f"/v1/jobs/{job_id}/result/numbers"
        whole = api.http.get(at).content
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            answers = [threads.submit(api.http.get, at) for _ in range(16)]
            erased = threads.submit(api.http.delete, f"/v1/jobs/{job_id}")
            answers += [threads.submit(api.http.get, at) for _ in range(8)]
        assert erased.result().status_code == 204
        for answer in (future.result() for future in answers):  # httpx raises for a body that is cut
            if answer.status_code == 200:
                assert answer.content == whole
            else:
                assert (answer.status_code, answer.json()["code"]) == (410, "result-gone")


def _reading_slowly(api: Live) -> httpx.Client:
    """A client that makes the server wait: its socket buffers some 256 KiB, not megabytes."""
    transport = httpx.HTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 * 1024)])
    return httpx.Client(base_url=api.url, transport=transport, timeout=30)


def test_a_download_that_has_begun_ends_though_its_file_is_erased(api: Live) -> None:
    job_id = api.submit(operation="draw", params={"count": 1_000_000}, seed=7)
    work(api.queue, api.store, job_id)
    with _reading_slowly(api) as http, http.stream("GET", f"/v1/jobs/{job_id}/result/numbers") as answer:
        assert api.http.delete(f"/v1/jobs/{job_id}").status_code == 204
        assert len(answer.read()) == int(answer.headers["Content-Length"]) > 8_000_000


def test_no_download_leaves_a_file_open(api: Live) -> None:
    job_id = api.submit(operation="draw", params={"count": 1_000_000}, seed=9)
    work(api.queue, api.store, job_id)
    at = f"/v1/jobs/{job_id}/result/numbers"

    def opened() -> int:
        count = 0
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # closed after it was listed
                count += f"/results/{job_id}" in str(descriptor.readlink())
        return count

    with _reading_slowly(api) as http, http.stream("GET", at):
        assert opened() == 1
    for range_header in ("bytes=9-3", "bytes=99999999-", "bytes=0-9", "lines=1"):
        api.http.get(at, headers={"Range": range_header})

    wait_until(lambda: opened() == 0)


def test_a_result_that_outlived_its_time_is_gone(api: Live) -> None:
    job_id = api.submit(**SCALE, result_ttl_s=3)
    work(api.queue, api.store, job_id)
    assert api.http.get(f"/v1/jobs/{job_id}/result").status_code == 200
    wait_until(lambda: api.http.get(f"/v1/jobs/{job_id}/result").status_code != 200)

    answer = api.http.get(f"/v1/jobs/{job_id}/result")

    assert (answer.status_code, answer.json()["code"]) == (410, "result-gone")
    assert api.http.get(f"/v1/jobs/{job_id}").json()["status"] == "succeeded"


@pytest.mark.parametrize("swept", ["early", "late"])
def test_a_result_is_gone_after_its_own_time_whenever_its_file_was_swept(api: Live, swept: str) -> None:
    short = {**unlike(), "result_ttl_s": 1}
    jobs = [api.submit(**short) for _ in range(2)]  # identical jobs are computed once
    work(api.queue, api.store, jobs[0])
    kept = api.submit(**unlike())
    work(api.queue, api.store, kept)
    (file,) = api.settings.store_directory.glob(f"results/{jobs[0]}*/result.json")
    record = api.queue.get(jobs[0])
    assert record is not None
    assert record.result_expires_at == pytest.approx(record.ended_at + 1, abs=0.01)
    assert json.loads(file.read_bytes())["expires_at"] == pytest.approx(record.result_expires_at, abs=0.5)
    if swept == "early":
        api.store.delete_result(file.parent.name)
    else:
        wait_until(lambda: api.http.get(f"/v1/jobs/{jobs[0]}/result").status_code != 200)

    for job_id in jobs:
        answer = api.http.get(f"/v1/jobs/{job_id}/result")
        output = api.http.get(f"/v1/jobs/{job_id}/result/total")

        assert [(a.status_code, a.json()["code"]) for a in (answer, output)] == [(410, "result-gone")] * 2
        assert api.http.get(f"/v1/jobs/{job_id}").json()["status"] == "succeeded"
    assert file.exists() == (swept == "late")
    assert api.http.get(f"/v1/jobs/{kept}/result").status_code == 200


@pytest.mark.parametrize("state", ["succeeded", "coalesced", "failed", "canceled", "expired"])
def test_what_became_of_a_job_is_known_for_a_day_after_its_result(api: Live, state: str) -> None:
    body = {**unlike(), "result_ttl_s": 100}
    job_id = leader = api.submit(**body)
    if state == "coalesced":
        job_id = api.submit(**body)
    match state:
        case "succeeded" | "coalesced":
            work(api.queue, api.store, leader)
        case "failed":
            fail(api.queue, job_id)
        case "canceled":
            api.queue.cancel(job_id)
        case "expired":
            finish(api.queue, take(api.queue, job_id), how="expired")

    with connect(api.redis_url) as redis:
        lasts = redis.ttl(f"warpdesk:job:{job_id}")

    assert api.http.get(f"/v1/jobs/{job_id}").json()["status"] == state.replace("coalesced", "succeeded")
    assert 86_400 + 90 < lasts <= 86_400 + 100


def _npy(content: bytes) -> Any:
    return np.load(io.BytesIO(content), allow_pickle=False)
