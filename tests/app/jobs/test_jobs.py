"""A job over HTTP: submitted, waited for, cancelled, erased, listed."""

import concurrent.futures
import io
import math
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import pytest

from tests.app.computations import fail, work
from tests.app.conftest import SCALE, Live, unlike
from tests.app.health.test_health import report
from tests.claims import finish, take
from tests.waiting import wait_until
from warpdesk_server.app.jobs.submission import new_job_id
from warpdesk_server.workers.queue.records import Claim


def wait_for_job(api: Live) -> str:
    """The id of the one job that a request in another thread enqueued."""
    wait_until(lambda: api.queue.jobs("local", 1)[0])
    return api.queue.jobs("local", 1)[0][0].request.id


def test_an_accepted_job_says_where_it_is_and_when_to_ask(api: Live) -> None:
    answer = api.http.post("/v1/jobs", json=SCALE)

    body = answer.json()
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"/v1/jobs/{body['id']}"
    assert int(answer.headers["Retry-After"]).bit_count() == 1
    assert (body["status"], body["error"], body["attempt"], body["queue_position"]) == ("queued", None, 0, 0)
    assert body["links"] == {
        "self": f"/v1/jobs/{body['id']}",
        "result": f"/v1/jobs/{body['id']}/result",
        "events": f"/v1/jobs/{body['id']}/events",
        "cancel": f"/v1/jobs/{body['id']}/cancel",
        **dict.fromkeys(("pause", "resume", "progress")),  # of tasks alone
    }
    assert api.queue.length() == 1


def test_what_the_worker_gets_is_what_was_sent(api: Live) -> None:
    job_id = api.submit(**SCALE, priority="research", backend="cpu", deadline_s=100, result_ttl_s=50)

    record = api.queue.get(job_id)

    assert record is not None
    request = record.request
    assert (request.operation, request.params, request.owner) == ("scale", {"factor": 2.0}, "local")
    assert (request.priority, request.backend, request.result_ttl, request.seed) == ("research", "cpu", 50, None)
    assert request.work > 0
    assert request.deadline == pytest.approx(record.submitted_at + 100, abs=5)
    stored = np.load(api.store.path("local", request.inputs["values"]))
    np.testing.assert_array_equal(stored, [1.0, np.nan, 3.0])


def test_of_many_problems_the_first_twenty_are_told_and_the_rest_counted(api: Live) -> None:
    answer = api.http.post("/v1/jobs", json={**SCALE, **{f"field{place}": 1 for place in range(123)}})

    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == 20
    assert answer.json()["detail"].startswith("123 errors: ")
    assert answer.json()["detail"].endswith("; and 103 more")


def test_the_status_of_a_job_is_always_200(api: Live) -> None:
    failed, canceled, expired = (api.submit(**unlike()) for _ in range(3))
    fail(api.queue, failed)
    api.queue.cancel(canceled)
    assert finish(api.queue, take(api.queue, expired), how="expired") == "done"

    answers = [api.http.get(f"/v1/jobs/{job_id}") for job_id in (failed, canceled, expired)]

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert [answer.json()["status"] for answer in answers] == ["failed", "canceled", "expired"]
    assert answers[0].json()["error"] == {
        "code": "operation-error",
        "message": "it failed after 3 steps",
        "retryable": False,
    }


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
    after_wait = api.http.get(posted.headers["Location"], headers={"Prefer": "wait=1"})
    plain = api.http.get(posted.headers["Location"])

    assert (posted.status_code, after_wait.status_code, plain.status_code) == (202, 202, 200)
    assert after_wait.headers["Preference-Applied"] == "wait=1"
    assert after_wait.json()["status"] == "queued"


def test_many_waiters_for_one_job_all_wake(api: Live) -> None:
    job_id = api.submit(**SCALE)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        replies = [pool.submit(api.http.get, f"/v1/jobs/{job_id}", headers={"Prefer": "wait=30"}) for _ in range(20)]
        time.sleep(0.1)
        work(api.queue, api.store, job_id)
        answers = [reply.result(20) for reply in replies]

    assert {answer.json()["result"]["outputs"]["total"] for answer in answers} == {8.0}


@pytest.mark.parametrize(
    ("preference", "applied"), [("wait=999", "wait=55"), ("wait=x", None), ("wait=-1", None), ("", None)]
)
def test_a_wait_is_at_most_55_seconds_and_nonsense_is_ignored(api: Live, preference: str, applied: str | None) -> None:
    job_id = api.submit(**SCALE)
    api.queue.cancel(job_id)

    answer = api.http.get(f"/v1/jobs/{job_id}", headers={"Prefer": preference})

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
    assert api.queue.claim(Claim("a worker")) is None


def test_the_secrets_of_a_job_that_never_ran_are_erased_with_it(api: Live) -> None:
    inputs = {"values": {"data": [1.0]}, "seeds": {"data": [0.25, 0.5]}}
    first, second = (api.submit(operation="hide", params={"count": 1}, inputs=inputs) for _ in range(2))
    record, other = api.queue.get(first), api.queue.get(second)
    assert record is not None
    assert other is not None

    api.http.post(f"/v1/jobs/{first}/cancel")
    wait_until(lambda: api.store.find("local", record.request.inputs["seeds"]) is None)
    assert api.store.find("local", other.request.inputs["seeds"]) is not None  # another job's array of the same numbers
    assert api.store.find("local", record.request.inputs["values"]) is not None


def test_uploaded_secrets_are_erased_with_the_last_live_job_that_reads_them(api: Live) -> None:
    file = io.BytesIO()
    np.save(file, np.array([0.25, 0.75]))
    seeds = api.http.put("/v1/arrays", content=file.getvalue(), headers={"Content-Type": "application/x-npy"}).json()
    inputs = {"values": {"data": [1.0]}, "seeds": {"array": seeds["id"]}}
    first, second = (api.submit(operation="hide", params={"count": 1}, inputs=inputs) for _ in range(2))

    api.http.post(f"/v1/jobs/{first}/cancel")
    time.sleep(0.2)  # long enough for the API to handle the event of the first
    assert api.store.find("local", seeds["id"]) is not None

    api.http.post(f"/v1/jobs/{second}/cancel")
    wait_until(lambda: api.store.find("local", seeds["id"]) is None)


def test_the_secrets_of_a_job_that_ran_and_went_back_to_the_queue_are_erased_when_it_is_canceled(api: Live) -> None:
    inputs = {"values": {"data": [1.0]}, "seeds": {"data": [0.125, 0.5]}}
    job_id = api.submit(operation="hide", params={"count": 1}, inputs=inputs)
    held = take(api.queue, job_id)
    assert finish(api.queue, held, how="returned") == "queued"

    api.http.post(f"/v1/jobs/{job_id}/cancel")

    record = api.queue.get(job_id)
    assert record is not None
    assert (record.state.value, record.attempt) == ("canceled", 1)
    wait_until(lambda: api.store.find("local", held.request.inputs["seeds"]) is None)


def test_the_time_a_private_job_took_is_not_told(api: Live) -> None:
    job_id = api.submit(operation="hide", params={"count": 1}, inputs={"values": {"data": [1.0]}})
    work(api.queue, api.store, job_id)
    record = api.queue.get(job_id)
    assert record is not None
    assert record.ended_at is not None

    job = api.http.get(f"/v1/jobs/{job_id}").json()
    listed = api.http.get("/v1/jobs").json()["jobs"][0]
    waited = api.http.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=1"}).json()

    for document in (job, listed, waited):
        assert document["started_at"] is None
        ended_at = datetime.fromisoformat(document["ended_at"].replace("Z", "+00:00"))
        assert ended_at.timestamp() == math.ceil(record.ended_at)
        assert datetime.fromisoformat(document["result_expires_at"].replace("Z", "+00:00")).microsecond == 0
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


def test_jobs_are_listed_newest_first_in_pages_that_join(api: Live) -> None:
    ids = [api.submit(**unlike()) for _ in range(5)]

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


@pytest.mark.parametrize(
    ("takes", "lane"), [("both", "batch-long"), ("all", "batch-long"), ("quick", "batch"), ("", "batch")]
)
def test_a_job_that_would_take_long_waits_apart_if_a_worker_takes_such_jobs(
    serve_api: Callable[..., Any], takes: str, lane: str
) -> None:
    with serve_api(long_seconds=5e-8) as api:
        worker, admission = report("a worker", "busy"), api.app.state.services.admission
        api.queue.report(worker.model_copy(update={"takes": takes}), ttl=60)
        wait_until(lambda: admission.able_lately(worker, 60))
        quick, long = (api.submit(**{**unlike(), "params": {"factor": 2.5, "window": window}}) for window in (1, 3))

    records = api.queue.records([quick, long])
    own = "batch-attached" if takes else "batch"
    assert [record.request.lane for record in records if record is not None] == [own, lane if "long" in lane else own]
