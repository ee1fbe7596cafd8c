"""Jobs of one request: all are queued or none, quotas count all, and sent twice they are the same jobs."""

import base64
import concurrent.futures
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.app.access.test_auth import bearer
from tests.app.arrays.test_uploads import NPY, npy, stored_files
from tests.app.computations import WITH_TASKS, fail, work
from tests.app.conftest import SCALE, Live, live, unlike
from tests.app.jobs.test_attached import has_workers
from tests.waiting import wait_until
from tests.workers.stepping import CHAIN
from warpdesk.models import State
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.app.jobs.bundle import ids_from
from warpdesk_server.app.kit import limits
from warpdesk_server.kernels.catalogue import CATALOGUE

KEY = {"Idempotency-Key": "order-7731"}
PATH = "/v1/jobs/batch"


def send(api: Live, jobs: Sequence[Any], **headers: str) -> httpx.Response:
    return api.http.post(PATH, json={"jobs": jobs}, headers=headers)


def ids(answer: httpx.Response) -> list[str]:
    assert answer.status_code in (200, 202), answer.text
    return [job["id"] for job in answer.json()["jobs"]]


def scale(factor: float, *values: float | None) -> dict[str, Any]:
    return {"operation": "scale", "params": {"factor": factor}, "inputs": {"values": {"data": values or [1.0]}}}


def refused(answer: httpx.Response, api: Live, before: Any) -> dict[str, Any]:
    """The problem document of a bundle of which nothing was done."""
    assert (api.queued(), stored_files(api)) == before
    return dict(answer.json())


def now(api: Live) -> Any:
    return api.queued(), stored_files(api)


def test_the_jobs_are_queued_and_answered_in_order(api: Live) -> None:
    answer = send(api, [scale(2.0), scale(3.0), {"operation": "draw", "params": {"count": 2}, "priority": "realtime"}])

    assert answer.status_code == 202
    assert [job["operation"] for job in answer.json()["jobs"]] == ["scale", "scale", "draw"]
    assert int(answer.headers["Retry-After"]) > 0
    assert ids(answer) == ids_from(ids(answer)[0], 3)
    listed = [job["id"] for job in api.http.get("/v1/jobs").json()["jobs"]]
    assert listed == ids(answer)[::-1]
    for job_id in ids(answer):
        work(api.queue, api.store, job_id)
    assert api.http.get(f"/v1/jobs/{listed[-1]}/result").json()["outputs"]["scaled"] == [2.0]


def test_all_that_is_wrong_is_listed_and_nothing_is_done(api: Live) -> None:
    array = api.http.put("/v1/arrays", content=npy(np.arange(4.0)), headers=NPY).json()["id"]
    before = now(api)
    jobs = [
        SCALE,
        {**SCALE, "params": {"factor": -1.0}},
        {**SCALE, "inputs": {"values": {"array": array}, "weights": {"array": "blake3:" + "0" * 64}}},
        {"operation": "scal"},
        7,
        {**SCALE, "inputs": {"values": {"data": [[1.0], [2.0, 3.0]]}}, "prority": "batch"},
        {**SCALE, "width": 3},
    ]

    answer = send(api, jobs, **KEY)

    problem = refused(answer, api, before)
    assert (answer.status_code, problem["code"]) == (422, "invalid-request")
    assert [error["pointer"] for error in problem["errors"]] == [
        "/jobs/1/params/factor",
        "/jobs/2/inputs/weights/array",
        "/jobs/3/operation",
        "/jobs/4",
        "/jobs/5/prority",
        "/jobs/6/width",
    ]
    assert send(api, [SCALE], **KEY).status_code == 202  # its key is free


def test_what_is_wrong_with_every_job_is_counted_and_the_first_are_listed(api: Live) -> None:
    problem = send(api, [{"operation": "none"}] * 30).json()
    assert problem["code"] == "unknown-operation"
    assert problem["detail"].startswith("30 errors: /jobs/0/operation: There is no operation 'none'")
    assert problem["detail"].endswith("and 10 more")
    assert len(problem["errors"]) == 20


@pytest.mark.parametrize(
    ("body", "pointer", "sentence"),
    [
        ([], "", "the body should be an object, got a list of 0"),
        ({}, "/jobs", "the field 'jobs' is required"),
        ({"jobs": []}, "/jobs", "jobs should hold at least 1 item, got 0"),
        ({"jobs": [{}] * 1001}, "/jobs", "jobs should hold at most 1000 items, got 1001"),
        ({"jobs": {"operation": "scale"}}, "/jobs", "jobs should be a list, got an object"),
        ({"jobs": [SCALE], "params": {}}, "/params", "there is no field 'params' here"),
        ({"jobs": [{**SCALE, "params": {str(n): n for n in range(65)}}]}, "/jobs/0/params", "params has 65 entries"),
    ],
)
def test_a_body_that_is_no_bundle_is_refused(api: Live, body: Any, pointer: str, sentence: str) -> None:
    answer = api.http.post(PATH, json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert sentence in answer.json()["errors"][0]["detail"]


def test_a_confidential_job_is_not_one_of_several(api: Live) -> None:
    before = now(api)
    hide = {"operation": "hide", "params": {"count": 1}, "inputs": {"values": {"data": [7.0]}}}
    problem = refused(send(api, [SCALE, hide]), api, before)
    assert problem["errors"] == [
        {
            "pointer": "/jobs/1/operation",
            "detail": "hide is confidential, and each of its jobs is submitted by itself: POST /v1/jobs",
        }
    ]


def test_inline_inputs_count_together(api: Live) -> None:
    before = now(api)
    problem = refused(send(api, [scale(number, *[1.5] * 400) for number in range(3)]), api, before)
    assert problem["errors"][0]["pointer"] == "/jobs/2/inputs/values/data"
    assert "400 numbers of shape [400] are more than the 200 that inline inputs may still hold" in problem["detail"]


def test_an_array_of_many_jobs_is_looked_up_once(api: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    array = api.http.put("/v1/arrays", content=npy(np.arange(4.0)), headers=NPY).json()["id"]
    store, found = api.app.state.services.store, list[str]()
    find = store.find

    def noted(owner: str, array_id: str) -> Any:
        found.append(array_id)
        return find(owner, array_id)

    monkeypatch.setattr(store, "find", noted)

    answer = send(api, [{**unlike(), "inputs": {"values": {"array": array}}} for _ in range(50)])

    assert answer.status_code == 202
    assert found == [array]


def test_equal_jobs_are_computed_once(api: Live) -> None:
    answer = send(api, [SCALE, SCALE, SCALE])
    assert api.queue.length() == 1
    work(api.queue, api.store, ids(answer)[0])
    jobs = send(api, [SCALE], Prefer="wait=0").json()["jobs"]  # a new one: the others are done
    assert jobs[0]["status"] == "queued"
    last = api.http.get(f"/v1/jobs/{ids(answer)[2]}").json()
    assert (last["status"], last["provenance"]["coalesced"]) == ("succeeded", True)


# Idempotency.


def test_sent_twice_they_are_the_same_jobs(api: Live) -> None:
    jobs = [scale(2.0), scale(3.0)]
    first = send(api, jobs, **KEY)
    work(api.queue, api.store, ids(first)[0])
    before = now(api)

    again = send(api, jobs, **KEY)

    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert ids(again) == ids(first)
    assert [job["status"] for job in again.json()["jobs"]] == ["succeeded", "queued"]
    assert now(api) == before


def test_many_at_once_at_two_processes_are_the_same_jobs(api: Live, tmp_path: Path) -> None:
    jobs = [unlike() for _ in range(20)]
    with live(api.settings.home, api.redis_url) as other, concurrent.futures.ThreadPoolExecutor(8) as pool:
        each = [api, other] * 3
        answers = list(pool.map(lambda at: send(at, jobs, **KEY), each))

    assert len({tuple(ids(answer)) for answer in answers}) == 1
    assert sum("Idempotent-Replayed" not in answer.headers for answer in answers) == 1
    assert api.queue.length() == 20


def test_a_key_of_other_jobs_is_refused_with_the_first_of_them(api: Live) -> None:
    jobs = [scale(2.0), scale(3.0)]
    first = ids(send(api, jobs, **KEY))[0]
    single = api.http.post("/v1/jobs", json=SCALE, headers={"Idempotency-Key": "one job"}).json()["id"]
    before = now(api)

    for answer, job_id in (
        (send(api, jobs[::-1], **KEY), first),
        (send(api, jobs[:1], **KEY), first),
        (api.http.post("/v1/jobs", json=jobs[0], headers=KEY), first),
        (send(api, [SCALE], **{"Idempotency-Key": "one job"}), single),
    ):
        problem = refused(answer, api, before)
        assert (answer.status_code, problem["code"], problem["job"]) == (422, "idempotency-key-reused", job_id)


def test_a_key_that_may_not_read_learns_no_more_by_sending_again(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    token = create_key(tmp_path / "home", "desk", ["submit"])
    with serve_api() as api:
        first = send(api, [SCALE], **bearer(token), **KEY)
        fail(api.queue, ids(first)[0])

        again = send(api, [SCALE], **bearer(token), **KEY, Prefer="wait=5")

        assert (again.status_code, ids(again)) == (202, ids(first))
        assert again.json()["jobs"][0]["status"] == "queued"
        realtime = send(api, [{**SCALE, "priority": "realtime"}], **bearer(token))
        assert (realtime.status_code, realtime.json()["code"]) == (403, "missing-scope")
        assert realtime.json()["detail"].startswith("jobs[0]: The priority 'realtime' needs the scope")


# Waiting.


def test_all_are_waited_for_and_come_with_their_results(api: Live) -> None:
    jobs = [scale(2.0, 1.0, None), {"operation": "draw", "params": {"count": 2}, "seed": 5}, scale(3.0)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reply = pool.submit(send, api, jobs, Prefer="wait=30", **KEY)
        wait_until(lambda: api.queue.length() == 3)
        queued = [job["id"] for job in api.http.get("/v1/jobs").json()["jobs"]][::-1]
        for job_id in queued[:2]:
            work(api.queue, api.store, job_id)
        fail(api.queue, queued[2])
        answer = reply.result(20)

    assert (answer.status_code, answer.headers["Preference-Applied"]) == (200, "wait=30")
    assert "Retry-After" not in answer.headers
    first, second, third = answer.json()["jobs"]
    assert first["result"]["outputs"] == {"scaled": [2.0, None], "total": 2.0}
    assert second["result"] == api.http.get(f"/v1/jobs/{queued[1]}/result").json()
    assert (third["status"], third["result"]) == ("failed", None)

    exact = send(api, jobs, Prefer="wait=30, arrays=base64", **KEY).json()["jobs"]
    scaled = exact[0]["result"]["outputs"]["scaled"]
    assert (scaled["dtype"], scaled["shape"]) == ("float64", [2])
    assert base64.b64decode(scaled["base64"]) == np.array([2.0, np.nan]).tobytes()
    assert exact[0]["result"]["outputs"]["total"] == 2.0


def test_what_is_not_done_in_time_is_answered_as_it_is(api: Live) -> None:
    jobs = [scale(2.0), scale(3.0)]
    work(api.queue, api.store, ids(send(api, jobs, **KEY))[1])

    answer = send(api, jobs, Prefer="wait=1", **KEY)

    assert (answer.status_code, answer.headers["Preference-Applied"]) == (202, "wait=1")
    assert [(job["status"], job["result"]) for job in answer.json()["jobs"]] == [("queued", None), ("succeeded", None)]


def test_results_beyond_the_bound_are_left_to_their_links(api: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [scale(2.0), scale(3.0, *[1.0] * 300), scale(4.0)]
    for job_id in ids(send(api, jobs, **KEY)):
        work(api.queue, api.store, job_id)
    monkeypatch.setattr(limits, "RESULTS_OF_A_BUNDLE", 1000)

    answer = send(api, jobs, Prefer="wait=1", **KEY)

    assert [job["result"] is None for job in answer.json()["jobs"]] == [False, True, True]


# Limits.


def test_quotas_count_all_jobs_and_what_does_not_fit_is_refused_whole(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    token = create_key(tmp_path / "home", "desk", ["submit", "read"])
    with serve_api(max_queue=20, max_live_jobs=6, submission_burst=20, submissions_per_second=0.001) as api:

        def several(count: int) -> httpx.Response:
            return send(api, [unlike() for _ in range(count)], **bearer(token))

        assert ids(several(4))
        before = now(api)
        problem = refused(several(3), api, before)
        assert (problem["code"], problem["retryable"]) == ("quota-reached", True)
        assert (
            problem["detail"] == "4 jobs of the key are queued or running, and 3 more would be too many; the limit is 6"
        )
        problem = refused(several(7), api, before)
        assert problem["detail"] == "there are 7 jobs; by this service's limits a key may submit 6 at once"
        assert ids(several(2))
        for job in api.http.get("/v1/jobs", headers=bearer(token)).json()["jobs"]:
            api.queue.cancel(job["id"])
        assert ids(several(6))
        for job in api.http.get("/v1/jobs", headers=bearer(token)).json()["jobs"]:
            api.queue.cancel(job["id"])
        before = now(api)
        answer = several(6)  # of 20 tokens 4, 3, 1, 2 and 6 are spent
        problem = refused(answer, api, before)
        assert (answer.status_code, problem["code"]) == (429, "rate-limited")
        assert problem["detail"] == "A key may submit so many jobs and arrays: 0.001 a second, 20 at once"


def test_a_queue_without_room_for_all_takes_none(serve_api: Callable[..., Any]) -> None:
    with serve_api(max_queue=5) as api:
        assert ids(send(api, [unlike() for _ in range(3)]))
        before = now(api)
        answer = send(api, [unlike() for _ in range(3)])
        problem = refused(answer, api, before)
        assert (answer.status_code, problem["code"]) == (503, "queue-full")
        assert problem["detail"] == "3 jobs do not fit into the queue: 3 wait, and 5 may"
        assert ids(send(api, [unlike() for _ in range(2)]))


def test_the_bytes_of_all_jobs_count(serve_api: Callable[..., Any]) -> None:
    with serve_api(max_stored_bytes_per_key=200_000) as api:
        before = now(api)
        answer = send(api, [unlike() for _ in range(20)])
        problem = refused(answer, api, before)
        assert (answer.status_code, problem["code"]) == (429, "storage-quota")
        assert "The key stores 0 bytes and would store" in problem["detail"]
        assert ids(send(api, [unlike() for _ in range(5)]))


def test_tasks_are_counted_and_jobs_of_all_kinds_stand_side_by_side(tmp_path: Path, redis_url: str) -> None:
    task = {"operation": CHAIN.name, "params": CHAIN.example.params, "inputs": CHAIN.example.inputs}
    with live(tmp_path / "home", redis_url, WITH_TASKS, max_live_tasks=2) as api:
        has_workers(api, True)
        assert ids(send(api, [unlike(), task, task]))
        with_inputs = api.queue.get(api.http.get("/v1/jobs").json()["jobs"][2]["id"])
        assert with_inputs is not None
        assert with_inputs.request.lane == "batch-attached"
        problem = send(api, [unlike(), task]).json()
        assert problem["code"] == "quota-reached"
        assert problem["detail"].startswith(
            "2 tasks of the key are queued, running or paused, and those of the request"
        )


def test_a_deadline_counts_the_jobs_before_it(serve_api: Callable[..., Any]) -> None:
    with serve_api() as api:
        done = api.queue.get(api.submit(**unlike()))
        assert done is not None
        estimate = api.app.state.services.admission.throughput
        for _ in range(20):
            estimate.ended(replace(done, state=State.SUCCEEDED, started_at=100.0, ended_at=102.0))
        wait_until(lambda: estimate.rate is not None)
        before = now(api)

        answer = send(api, [*(unlike() for _ in range(20)), {**unlike(), "deadline_s": 5}])
        problem = refused(answer, api, before)

        assert (answer.status_code, problem["code"]) == (503, "deadline-unreachable")
        assert problem["detail"].startswith("jobs[20]: 21 quick jobs of the key wait before it")
        first = {**unlike(), "deadline_s": 5, "priority": "realtime"}
        assert ids(send(api, [*(unlike() for _ in range(20)), first]))


def test_a_list_of_parameters_waits_for_a_worker_that_takes_it(tmp_path: Path, redis_url: str) -> None:
    with live(tmp_path / "home", redis_url, CATALOGUE) as api:
        rsi = {"operation": "rsi", "inputs": {"close": {"data": [1.0, 2.0, 3.0, 4.0]}}}
        jobs = [{**rsi, "params": {"period": period}} for period in ([2, 3], 2)]
        records = api.queue.records(ids(send(api, jobs)))
        assert [record and record.request.lane for record in records] == ["batch-plan", "batch"]
        assert records[0] is not None
        assert records[0].request.params == {"period": [2, 3]}


def test_lists_of_parameters_are_limited_and_count_as_submissions(
    serve_api: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SETS", 12)
    close = {"close": {"data": [float(day) for day in range(1, 40)]}}

    def rsi(*periods: int) -> dict[str, Any]:
        return {"operation": "rsi", "params": {"period": [*periods]}, "inputs": close}

    step = {"id": "a", "operation": "rsi", "params": {"period": [2, 3, 4, 5, 6, 7, 8]}, "inputs": {"close": "close"}}
    outputs = {"x": {"from": "a.rsi"}}
    plan = {"operation": "plan", "params": {"steps": [step, {**step, "id": "b"}], "outputs": outputs}, "inputs": close}
    with serve_api(operations=CATALOGUE, submissions_per_second=0.001, submission_burst=20) as api:
        for body, count in ((rsi(*range(2, 15)), 13), (plan, 14)):
            answer = api.http.post("/v1/jobs", json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
            assert f"lists make {count} sets of parameters; one request may have 12" in answer.json()["detail"]
        assert "lists make 14 sets" in send(api, [rsi(*range(2, 9)), rsi(*range(2, 9))]).json()["detail"]
        assert api.http.post("/v1/jobs", json=rsi(*range(2, 12))).status_code == 202
        answer = api.http.post("/v1/jobs", json=rsi(*range(2, 12)))
        assert (answer.status_code, answer.json()["code"]) == (429, "rate-limited")
