"""Jobs that were given up: what their owner sees, and what an operator can do."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.test_auth import bearer
from tests.app.computations import work
from tests.app.conftest import SCALE, Live, unlike
from tests.claims import finish, take
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.workers.queue.protocol import MAX_STRIKES, Failed

DIED = Failed(code="worker-died", message="the worker's process ended 3 times while it ran alone")


def give_up(api: Live, job_id: str) -> None:
    """Have the job end its worker until it is a dead letter."""
    for strike in range(1, MAX_STRIKES + 1):
        ended = finish(api.queue, take(api.queue, job_id), how="struck", reason="its worker died", failure=DIED)
        assert ended == ("dead" if strike == MAX_STRIKES else "queued")


def dead(api: Live, **wishes: Any) -> str:
    job_id = api.submit(**{**unlike(), **wishes})
    give_up(api, job_id)
    return job_id


def test_the_owner_sees_that_the_job_failed_and_why(api: Live) -> None:
    job_id = dead(api)

    job = api.http.get(f"/v1/jobs/{job_id}").json()
    result = api.http.get(f"/v1/jobs/{job_id}/result")

    assert (job["status"], job["attempt"]) == ("failed", 3)
    assert job["error"] == {"code": "worker-died", "message": DIED.message, "retryable": False}
    assert (result.status_code, result.json()["code"]) == (409, "job-failed")


def test_an_operator_sees_the_jobs_of_every_key_the_latest_first(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    first, second, operator = (create_key(tmp_path / "home", name, [name]) for name in ("submit", "submit", "admin"))
    with serve_api() as api:
        api.http.headers.update(bearer(first))
        older = dead(api, priority="research")
        api.http.headers.update(bearer(second))
        newer = dead(api)
        api.http.headers.update(bearer(operator))

        letters = api.http.get("/v1/dead-letters").json()

        assert [letter["id"] for letter in letters["dead_letters"]] == [newer, older]
        assert letters["next"] is None
        letter = letters["dead_letters"][1]
        assert (letter["owner"], letter["operation"], letter["priority"]) == (first.split("_")[1], "scale", "research")
        assert (letter["attempt"], letter["strikes"], letter["error"]["code"]) == (3, 3, "worker-died")


def test_the_end_of_a_private_job_that_was_given_up_is_a_whole_second(api: Live) -> None:
    for _ in range(3):
        dead(api, operation="hide", params={"count": 1}, inputs={"values": {"data": [1.0]}})

    letters = api.http.get("/v1/dead-letters").json()["dead_letters"]

    assert [datetime.fromisoformat(letter["ended_at"]).microsecond for letter in letters] == [0, 0, 0]


def test_dead_letters_come_in_pages_that_join(api: Live) -> None:
    ids = [dead(api) for _ in range(5)]

    pages: list[list[str]] = []
    url: str | None = "/v1/dead-letters?limit=2"
    while url:
        answer = api.http.get(url)
        pages.append([letter["id"] for letter in answer.json()["dead_letters"]])
        url = answer.json()["next"]
        assert answer.headers.get("Link") == (f'<{url}>; rel="next"' if url else None)

    assert pages == [[ids[4], ids[3]], [ids[2], ids[1]], [ids[0]]]


def test_a_dead_letter_that_is_run_again_is_a_job_as_before(api: Live) -> None:
    job_id = dead(api, deadline_s=3600)

    answer = api.http.post(f"/v1/dead-letters/{job_id}/rerun")

    assert (answer.status_code, answer.headers["Location"]) == (202, f"/v1/jobs/{job_id}")
    assert (answer.json()["id"], answer.json()["status"], answer.json()["error"]) == (job_id, "queued", None)
    assert answer.json()["deadline_at"] is None
    assert api.http.get("/v1/dead-letters").json()["dead_letters"] == []
    work(api.queue, api.store, job_id)
    assert api.http.get(f"/v1/jobs/{job_id}").json()["status"] == "succeeded"


def test_only_what_was_given_up_is_run_again(api: Live) -> None:
    queued = api.submit(**SCALE)
    job_id = dead(api)
    answers = [
        api.http.post(f"/v1/dead-letters/{wanted}/rerun") for wanted in (queued, job_id, job_id, "job_" + "0" * 32, "x")
    ]

    assert [answer.status_code for answer in answers] == [409, 202, 409, 404, 404]
    assert [answer.json().get("code") for answer in answers] == [
        "not-a-dead-letter", None, "not-a-dead-letter", "unknown-job", "unknown-job",
    ]  # fmt: skip
    assert answers[0].json()["detail"] == "The job is queued, and was not given up"


def test_a_dead_letter_keeps_its_inputs_until_it_is_erased(api: Live) -> None:
    job_id = dead(api, inputs={"values": {"data": [41.0, 42.0]}})
    record = api.queue.get(job_id)
    assert record is not None
    array = record.request.inputs["values"]

    kept = api.http.delete(f"/v1/arrays/{array}")
    api.http.delete(f"/v1/jobs/{job_id}")
    again = api.http.post(f"/v1/dead-letters/{job_id}/rerun")

    assert (kept.status_code, kept.json()["code"]) == (409, "array-in-use")
    assert api.store.find("local", array) is None
    assert (again.status_code, again.json()["code"]) == (409, "not-a-dead-letter")
    assert api.http.get("/v1/dead-letters").json()["dead_letters"] == []


@pytest.mark.parametrize("why", ["private", "lost"])
def test_a_dead_letter_whose_inputs_are_gone_stays_one(api: Live, why: str) -> None:
    private = {"operation": "hide", "params": {"count": 1}}
    job_id = dead(api, **(private if why == "private" else {}), inputs={"values": {"data": [51.0]}})
    record = api.queue.get(job_id)
    assert record is not None
    array = record.request.inputs["values"]
    if why == "lost":
        api.store.delete("local", array)

    answer = api.http.post(f"/v1/dead-letters/{job_id}/rerun")

    assert (answer.status_code, answer.json()["code"]) == (409, "inputs-gone")
    assert array in answer.json()["detail"]
    assert [letter["id"] for letter in api.http.get("/v1/dead-letters").json()["dead_letters"]] == [job_id]


def test_dead_letters_are_for_operators(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    token = create_key(tmp_path / "home", "desk", ["submit", "read", "cancel"])
    with serve_api() as api:
        for method, path in (("GET", "/v1/dead-letters"), ("POST", f"/v1/dead-letters/job_{'0' * 32}/rerun")):
            for headers, status in ((bearer(token), 403), ({}, 401)):
                assert api.http.request(method, path, headers=headers).status_code == status


def test_metrics_count_what_was_tried_again_and_given_up(serve_api: Callable[..., Any]) -> None:
    with serve_api() as api:
        dead(api)
        api.await_metrics(
            'warpdesk_jobs_dead_total{operation="scale"} 1.0',
            "warpdesk_dead_letters 1.0",
            'warpdesk_job_retries_total{operation="scale"} 2.0',
            'warpdesk_job_strikes_total{operation="scale"} 3.0',
        )
