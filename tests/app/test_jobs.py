"""A job over HTTP: submitted, waited for, answered, cancelled, erased, listed."""

import concurrent.futures
import io
import math
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.jobs import new_job_id
from tests.app.computations import fail, work
from tests.app.conftest import Live
from workers.protocol import State

SCALE = {"operation": "scale", "params": {"factor": 2.0}, "inputs": {"values": {"data": [1.0, None, 3.0]}}}


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def wait_for_job(api: Live) -> str:
    """The id of the one job a request in another thread has enqueued."""
    wait_until(lambda: api.queue.jobs("local", 1))
    return api.queue.jobs("local", 1)[0].request.id


def test_an_accepted_job_says_where_it_is_and_when_to_ask(api: Live) -> None:
    answer = api.http.post("/v1/jobs", json=SCALE)

    body = answer.json()
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"/v1/jobs/{body['id']}"
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert (body["status"], body["error"], body["attempt"], body["queue_position"]) == ("queued", None, 0, 0)
    assert body["links"] == {
        "self": f"/v1/jobs/{body['id']}",
        "result": f"/v1/jobs/{body['id']}/result",
        "cancel": f"/v1/jobs/{body['id']}/cancel",
    }
    assert api.queue.length() == 1


def test_an_idle_service_asks_for_no_longer_wait_than_its_jobs_take(serve_api: Callable[..., Any]) -> None:
    with serve_api() as api:
        time.sleep(1.1)  # so that one job is less than one a second
        job_id = api.submit(**SCALE)
        work(api.queue, api.store, job_id)
        wait_until(lambda: api.app.state.desk.metrics.finished_per_second() > 0)

        answer = api.http.post("/v1/jobs", json=SCALE)

        assert api.app.state.desk.metrics.finished_per_second() < 1
        assert answer.headers["Retry-After"] == "1"


def test_the_wait_grows_with_the_queue_and_with_what_jobs_take(serve_api: Callable[..., Any]) -> None:
    with serve_api() as api:
        metrics = api.app.state.desk.metrics
        job_id = api.submit(**SCALE)
        record = api.queue.get(job_id)
        assert record is not None
        done = replace(record, state=State.SUCCEEDED, started_at=100.0, ended_at=100.25)
        for _ in range(50):
            metrics.finished(done)
        metrics._started = time.time() - 50  # one job a second, a quarter of a second each

        assert [metrics.drain_seconds(jobs) for jobs in (1, 4, 8, 40, 100_000)] == [1, 1, 2, 10, 60]


def test_what_the_worker_gets_is_what_was_sent(api: Live) -> None:
    job_id = api.submit(**SCALE, priority="research", backend="cpu", deadline_s=100, result_ttl_s=50)

    record = api.queue.get(job_id)

    assert record is not None
    request = record.request
    assert (request.operation, request.params, request.owner) == ("scale", {"factor": 2.0}, "local")
    assert (request.priority, request.backend, request.result_ttl, request.seed) == ("research", "cpu", 50, None)
    assert request.deadline == pytest.approx(record.submitted_at + 100, abs=5)
    stored = np.load(api.store.path("local", request.inputs["values"]))
    np.testing.assert_array_equal(stored, [1.0, np.nan, 3.0])


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
    """Where an output lies that exists as .npy alone, and its bytes."""
    job_id = api.submit(operation="draw", params={"count": 501}, seed=7)
    work(api.queue, api.store, job_id)
    at = f"/v1/jobs/{job_id}/result/numbers"
    return at, api.http.get(at).content


@pytest.mark.parametrize(
    ("asked", "part"),
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
def test_a_part_of_an_output_can_be_asked_for(api: Live, asked: str, part: slice) -> None:
    at, whole = _output(api)

    answer = api.http.get(at, headers={"Range": asked})

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


@pytest.mark.parametrize("asked", ["lines=1-2", "1-2", "", "=1-2"])
def test_a_range_in_a_unit_that_is_not_known_is_ignored(api: Live, asked: str) -> None:
    at, whole = _output(api)

    answer = api.http.get(at, headers={"Range": asked})

    assert (answer.status_code, answer.content) == (200, whole)


@pytest.mark.parametrize(
    "asked",
    [
        *("bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=9-3", "bytes=1"),
        *("bytes=--1", "bytes=1-1_0", "bytes=0-1,x", "bytes=+1-2", "bytes=0-" + "9" * 20),
    ],
)
def test_a_malformed_range_is_a_problem_document(api: Live, asked: str) -> None:
    at, _ = _output(api)

    answer = api.http.get(at, headers={"Range": asked})

    assert (answer.status_code, answer.headers["Content-Type"]) == (400, "application/problem+json")
    assert (answer.json()["code"], answer.json()["status"]) == ("bad-request", 400)
    assert answer.json()["detail"].startswith(f"Range {asked!r} is not bytes=first-last")


@pytest.mark.parametrize("asked", ["bytes=1000000-", "bytes=5000-6000", "bytes=-0", "bytes=8888-,9999-"])
def test_a_range_beyond_the_end_is_a_problem_document_with_the_size(api: Live, asked: str) -> None:
    at, whole = _output(api)

    answer = api.http.get(at, headers={"Range": asked})

    assert (answer.status_code, answer.headers["Content-Type"]) == (416, "application/problem+json")
    assert answer.headers["Content-Range"] == f"bytes */{len(whole)}"
    assert answer.json()["code"] == "range-not-satisfiable"
    assert answer.json()["detail"] == f"Range {asked!r} begins at or after the end of the {len(whole)} bytes"


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
    assert "given as application/x-npy" in as_json.json()["detail"]
    assert as_it_comes.headers["Content-Type"] == "application/x-npy"
    assert _npy(as_it_comes.content).shape == (501,)


def test_of_many_problems_the_first_twenty_are_told_and_the_rest_counted(api: Live) -> None:
    answer = api.http.post("/v1/jobs", json={**SCALE, **{f"field{place}": 1 for place in range(123)}})

    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == 20
    assert answer.json()["detail"].startswith("123 things are wrong: ")
    assert answer.json()["detail"].endswith("; and 103 more")


def test_the_status_of_a_job_is_always_200(api: Live) -> None:
    failed, canceled, expired = (api.submit(**SCALE) for _ in range(3))
    fail(api.queue, failed)
    api.queue.cancel(canceled)
    started = api.queue.start(expired)
    assert started is not None
    api.queue.expire(expired, started[1])

    answers = [api.http.get(f"/v1/jobs/{job_id}") for job_id in (failed, canceled, expired)]

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert [answer.json()["status"] for answer in answers] == ["failed", "canceled", "expired"]
    assert answers[0].json()["error"] == {
        "code": "operation-error",
        "message": "it failed after 3 steps",
        "retryable": False,
    }


def test_a_job_without_a_result_says_why(api: Live) -> None:
    pending, failed, canceled = (api.submit(**SCALE) for _ in range(3))
    fail(api.queue, failed)
    api.queue.cancel(canceled)

    answers = [api.http.get(f"/v1/jobs/{job_id}/result") for job_id in (pending, failed, canceled)]

    assert [answer.status_code for answer in answers] == [202, 409, 409]
    assert "Retry-After" in answers[0].headers
    assert [answer.json()["code"] for answer in answers[1:]] == ["job-failed", "job-canceled"]
    assert answers[1].json()["detail"] == "The job is failed and has no result: it failed after 3 steps"


def test_a_job_past_its_deadline_is_expired(api: Live) -> None:
    job_id = api.submit(**SCALE, deadline_s=0.001)
    time.sleep(0.02)

    answer = api.http.get(f"/v1/jobs/{job_id}").json()
    result = api.http.get(f"/v1/jobs/{job_id}/result")

    assert answer["status"] == "expired"
    assert (result.status_code, result.json()["code"]) == (409, "job-expired")


def test_a_wait_is_answered_when_the_job_is_done(api: Live) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reply = pool.submit(api.http.post, "/v1/jobs", json=SCALE, headers={"Prefer": "respond-async, wait=30"})
        job_id = wait_for_job(api)
        work(api.queue, api.store, job_id)
        answer = reply.result(20)

    assert answer.status_code == 200
    assert answer.headers["Preference-Applied"] == "wait=30"
    assert answer.json()["status"] == "succeeded"
    assert answer.json()["result"]["outputs"] == {"scaled": [2.0, None, 6.0], "total": 8.0}


def test_a_wait_for_a_job_that_fails_tells_the_failure(api: Live) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reply = pool.submit(api.http.post, "/v1/jobs", json=SCALE, headers={"Prefer": "wait=30"})
        fail(api.queue, wait_for_job(api))
        answer = reply.result(20)

    assert (answer.status_code, answer.json()["status"], answer.json()["result"]) == (200, "failed", None)
    assert answer.json()["error"]["message"] == "it failed after 3 steps"


def test_a_wait_that_is_too_short_leaves_the_job_running(api: Live) -> None:
    posted = api.http.post("/v1/jobs", json=SCALE, headers={"Prefer": "wait=0"})
    asked = api.http.get(posted.headers["Location"], headers={"Prefer": "wait=1"})
    plain = api.http.get(posted.headers["Location"])

    assert (posted.status_code, asked.status_code, plain.status_code) == (202, 202, 200)
    assert asked.headers["Preference-Applied"] == "wait=1"
    assert asked.json()["status"] == "queued"


def test_many_waiters_for_one_job_all_wake(api: Live) -> None:
    job_id = api.submit(**SCALE)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        replies = [pool.submit(api.http.get, f"/v1/jobs/{job_id}", headers={"Prefer": "wait=30"}) for _ in range(20)]
        time.sleep(0.1)
        work(api.queue, api.store, job_id)
        answers = [reply.result(20) for reply in replies]

    assert {answer.json()["result"]["outputs"]["total"] for answer in answers} == {8.0}


@pytest.mark.parametrize(
    ("asked", "applied"), [("wait=999", "wait=55"), ("wait=x", None), ("wait=-1", None), ("", None)]
)
def test_a_wait_is_at_most_55_seconds_and_nonsense_is_ignored(api: Live, asked: str, applied: str | None) -> None:
    job_id = api.submit(**SCALE)
    api.queue.cancel(job_id)

    answer = api.http.get(f"/v1/jobs/{job_id}", headers={"Prefer": asked})

    assert answer.headers.get("Preference-Applied") == applied


def test_a_seed_is_given_to_a_simulation_that_brings_none(api: Live) -> None:
    drawn = api.http.post("/v1/jobs", json={"operation": "draw", "params": {"count": 3}}).json()
    given = api.http.post("/v1/jobs", json={"operation": "draw", "params": {"count": 3}, "seed": 2**64 - 1}).json()

    assert 0 <= drawn["seed"] < 2**53
    assert given["seed"] == 2**64 - 1


def test_a_canceled_job_never_runs(api: Live) -> None:
    job_id = api.submit(**SCALE)

    first, second = (api.http.post(f"/v1/jobs/{job_id}/cancel") for _ in range(2))

    assert (first.status_code, first.json()["status"]) == (200, "canceled")
    assert (second.status_code, second.json()["status"]) == (200, "canceled")
    assert api.queue.start(job_id) is None


def test_the_secrets_of_a_job_that_never_ran_are_erased_with_it(api: Live) -> None:
    inputs = {"values": {"data": [1.0]}, "seeds": {"data": [0.25, 0.5]}}
    first, second = (api.submit(operation="hide", params={"count": 1}, inputs=inputs) for _ in range(2))
    record, other = api.queue.get(first), api.queue.get(second)
    assert record is not None
    assert other is not None

    api.http.post(f"/v1/jobs/{first}/cancel")
    wait_until(lambda: api.store.find("local", record.request.inputs["seeds"]) is None)
    assert api.store.find("local", other.request.inputs["seeds"]) is not None  # equal numbers, yet another's
    assert api.store.find("local", record.request.inputs["values"]) is not None


def test_uploaded_secrets_are_erased_with_the_last_live_job_that_reads_them(api: Live) -> None:
    file = io.BytesIO()
    np.save(file, np.array([0.25, 0.75]))
    seeds = api.http.put("/v1/arrays", content=file.getvalue(), headers={"Content-Type": "application/x-npy"}).json()
    inputs = {"values": {"data": [1.0]}, "seeds": {"array": seeds["id"]}}
    first, second = (api.submit(operation="hide", params={"count": 1}, inputs=inputs) for _ in range(2))

    api.http.post(f"/v1/jobs/{first}/cancel")
    time.sleep(0.2)  # long enough for the news of the first to have been acted on
    assert api.store.find("local", seeds["id"]) is not None

    api.http.post(f"/v1/jobs/{second}/cancel")
    wait_until(lambda: api.store.find("local", seeds["id"]) is None)


def test_the_secrets_of_a_job_that_ran_and_went_back_to_the_queue_are_erased_when_it_is_canceled(api: Live) -> None:
    inputs = {"values": {"data": [1.0]}, "seeds": {"data": [0.125, 0.5]}}
    job_id = api.submit(operation="hide", params={"count": 1}, inputs=inputs)
    started = api.queue.start(job_id)
    assert started is not None
    request, attempt = started
    assert api.queue.retry(job_id, attempt, strike=False)

    api.http.post(f"/v1/jobs/{job_id}/cancel")

    record = api.queue.get(job_id)
    assert record is not None
    assert (record.state.value, record.attempt) == ("canceled", 1)
    wait_until(lambda: api.store.find("local", request.inputs["seeds"]) is None)


def test_the_time_a_private_job_took_is_not_told(api: Live) -> None:
    job_id = api.submit(operation="hide", params={"count": 1}, inputs={"values": {"data": [1.0]}})
    work(api.queue, api.store, job_id)
    record = api.queue.get(job_id)
    assert record is not None
    assert record.ended_at is not None

    job = api.http.get(f"/v1/jobs/{job_id}").json()
    listed = api.http.get("/v1/jobs").json()["jobs"][0]
    waited = api.http.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=1"}).json()

    for told in (job, listed, waited):
        assert told["started_at"] is None
        ended_at = datetime.fromisoformat(told["ended_at"].replace("Z", "+00:00"))
        assert ended_at.timestamp() == math.ceil(record.ended_at)
        assert datetime.fromisoformat(told["result_expires_at"].replace("Z", "+00:00")).microsecond == 0
    open_job = api.submit(**SCALE)
    work(api.queue, api.store, open_job)
    assert api.http.get(f"/v1/jobs/{open_job}").json()["started_at"] is not None


def test_canceling_a_finished_job_changes_nothing(api: Live) -> None:
    job_id = api.submit(**SCALE)
    work(api.queue, api.store, job_id)

    answer = api.http.post(f"/v1/jobs/{job_id}/cancel")

    assert (answer.status_code, answer.json()["status"]) == (200, "succeeded")


def test_an_erased_job_keeps_nothing_but_the_fact(api: Live) -> None:
    values = {"data": [5.0, 6.0, 7.5]}
    job_id = api.submit(operation="scale", params={"factor": 3.0}, inputs={"values": values})
    record = api.queue.get(job_id)
    assert record is not None
    work(api.queue, api.store, job_id)

    erased = api.http.delete(f"/v1/jobs/{job_id}")
    again = api.http.delete(f"/v1/jobs/{job_id}")

    assert (erased.status_code, again.status_code) == (204, 204)
    assert api.store.find("local", record.request.inputs["values"]) is None
    assert not list(api.settings.store_directory.glob(f"results/{job_id}*"))
    status = api.http.get(f"/v1/jobs/{job_id}").json()
    assert (status["status"], status["erased"], status["seed"]) == ("succeeded", True, None)
    result = api.http.get(f"/v1/jobs/{job_id}/result")
    assert (result.status_code, result.json()["code"]) == (410, "result-gone")


def test_erasing_a_job_leaves_an_input_that_another_live_job_reads(api: Live) -> None:
    first, second = (api.submit(**SCALE) for _ in range(2))

    api.http.delete(f"/v1/jobs/{first}")

    record = api.queue.get(second)
    assert record is not None
    assert api.store.find("local", record.request.inputs["values"]) is not None
    work(api.queue, api.store, second)


def test_erasing_a_job_deletes_its_large_output_too(api: Live) -> None:
    job_id = api.submit(operation="draw", params={"count": 600}, seed=8)
    work(api.queue, api.store, job_id)
    array = api.http.get(f"/v1/jobs/{job_id}/result").json()["outputs"]["numbers"]["array"]

    api.http.delete(f"/v1/jobs/{job_id}")

    assert api.http.get(f"/v1/arrays/{array}").status_code == 404


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
    """A client that makes the server wait: its system takes some 256 KiB before it reads, not megabytes."""
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
            with suppress(FileNotFoundError):  # closed since it was listed
                count += f"/results/{job_id}" in str(descriptor.readlink())
        return count

    with _reading_slowly(api) as http, http.stream("GET", at):
        assert opened() == 1
    for asked in ("bytes=9-3", "bytes=99999999-", "bytes=0-9", "lines=1"):
        api.http.get(at, headers={"Range": asked})

    wait_until(lambda: opened() == 0)


def test_a_result_that_outlived_its_time_is_gone(api: Live) -> None:
    job_id = api.submit(**SCALE, result_ttl_s=1)
    work(api.queue, api.store, job_id)
    assert api.http.get(f"/v1/jobs/{job_id}/result").status_code == 200
    time.sleep(1.1)

    answer = api.http.get(f"/v1/jobs/{job_id}/result")

    assert (answer.status_code, answer.json()["code"]) == (410, "result-gone")
    assert api.http.get(f"/v1/jobs/{job_id}").json()["status"] == "succeeded"


def test_jobs_are_listed_newest_first_in_pages_that_join(api: Live) -> None:
    ids = [api.submit(**SCALE) for _ in range(5)]

    pages: list[list[str]] = []
    url: str | None = "/v1/jobs?limit=2"
    while url:
        answer = api.http.get(url)
        pages.append([job["id"] for job in answer.json()["jobs"]])
        url = answer.json()["next"]
        assert answer.headers.get("Link") == (f'<{url}>; rel="next"' if url else None)

    assert pages == [[ids[4], ids[3]], [ids[2], ids[1]], [ids[0]]]


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "cursor=job_1", "cursor=../x"])
def test_a_page_that_cannot_be_is_refused(api: Live, query: str) -> None:
    answer = api.http.get(f"/v1/jobs?{query}")

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert answer.json()["errors"][0]["pointer"].startswith("/query/")


def test_ids_of_one_process_sort_by_time() -> None:
    ids: list[str] = []
    for _ in range(50):
        ids.append(new_job_id())
        time.sleep(0.000001)

    assert ids == sorted(ids)
    for job_id in ids:
        number = uuid.UUID(hex=job_id.removeprefix("job_"))
        assert (number.version, number.variant) == (7, uuid.RFC_4122)
        assert abs((number.int >> 80) / 1000 - time.time()) < 60


def test_a_whole_number_beyond_two_to_the_53_is_stored_exactly(api: Live) -> None:
    weights = [2**64 - 1, 2**53 + 1, 0]
    job_id = api.submit(
        operation="scale",
        params={"factor": 1.0},
        inputs={"values": {"data": [1.0]}, "weights": {"data": weights, "dtype": "uint64"}},
    )

    record = api.queue.get(job_id)

    assert record is not None
    assert np.load(api.store.path("local", record.request.inputs["weights"])).tolist() == weights


def _npy(content: bytes) -> Any:
    return np.load(io.BytesIO(content), allow_pickle=False)
