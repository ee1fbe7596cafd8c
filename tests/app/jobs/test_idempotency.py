"""A request that is sent again with its Idempotency-Key is one job, whatever happened in between."""

import concurrent.futures
import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.app.access.test_auth import bearer
from tests.app.arrays.test_uploads import NPY, npy, stored_files
from tests.app.computations import fail, work
from tests.app.conftest import SCALE, Live, unlike
from tests.app.health.test_health import redis_pid
from tests.waiting import wait_until
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.service.redis_server import RedisServer
from warpdesk_server.workers.queue.jobs import connect

KEY = {"Idempotency-Key": "order-7731"}


def send(api: Live, body: Any = SCALE, **headers: str) -> httpx.Response:
    return api.http.post("/v1/jobs", json=body, headers={**KEY, **headers})


def test_the_same_request_with_the_same_key_is_one_job(api: Live) -> None:
    first, second = send(api), send(api)

    assert (first.status_code, second.status_code) == (202, 202)
    assert "Idempotent-Replayed" not in first.headers
    assert second.headers["Idempotent-Replayed"] == "true"
    assert second.headers["Location"] == first.headers["Location"]
    assert second.json()["id"] == first.json()["id"]
    assert api.queue.length() == len(api.queue.jobs("local", 10)[0]) == 1


def test_many_at_once_with_one_key_are_one_job(api: Live) -> None:
    for _ in range(3):
        body = unlike()
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            key = body["params"]["factor"]
            sent = [pool.submit(send, api, body, **{"Idempotency-Key": f"round-{key}"}) for _ in range(40)]
            answers = [answer.result() for answer in sent]

        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert sum("Idempotent-Replayed" not in answer.headers for answer in answers) == 1
    assert api.queue.length() == len(api.queue.jobs("local", 10)[0]) == 3


def test_secrets_that_came_many_times_at_once_are_kept_once(api: Live) -> None:
    before = stored_files(api)
    inputs = {"values": {"data": [61.0]}, "seeds": {"data": [0.25, 0.5]}}
    body = {"operation": "hide", "params": {"count": 1}, "inputs": inputs}
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: send(api, body), range(20)))
    made = set(stored_files(api)) - set(before)

    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sorted(Path(file).suffix for file in made) == [".json", ".json", ".npy", ".npy"]
    api.queue.cancel(answers[0].json()["id"])
    wait_until(lambda: len(set(stored_files(api)) - set(before)) == 2)


def test_one_that_is_refused_lets_the_next_with_its_key_try(api: Live) -> None:
    bodies = [{**SCALE, "params": {"factor": -1.0}}, SCALE] * 10
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda body: send(api, body), bodies))

    assert {answer.status_code for answer in answers} <= {202, 422}
    assert {answer.json()["id"] for answer in answers if answer.status_code == 202} == {
        api.queue.jobs("local", 10)[0][0].request.id
    }
    assert {answer.json()["code"] for answer in answers if answer.status_code == 422} <= {
        "invalid-request", "idempotency-key-reused",
    }  # fmt: skip


def test_the_same_key_with_another_body_is_refused_with_the_job_it_has(api: Live) -> None:
    job_id = send(api).json()["id"]
    before = api.queued()

    refused = send(api, {**SCALE, "params": {"factor": 9.0}})

    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency-key-reused")
    assert refused.json()["job"] == job_id
    assert job_id in refused.json()["detail"]
    assert api.queued() == before


def test_a_body_is_the_same_however_its_fields_are_ordered_and_spaced(api: Live) -> None:
    turned = json.dumps(dict(reversed(SCALE.items())), indent=3)

    first = send(api)
    second = api.http.post("/v1/jobs", content=turned, headers={**KEY, "Content-Type": "application/json"})

    assert second.json()["id"] == first.json()["id"]


def test_a_request_that_was_refused_leaves_its_key_free(api: Live) -> None:
    refused = send(api, {**SCALE, "params": {"factor": -1.0}})

    assert refused.status_code == 422
    assert send(api).status_code == 202


@pytest.mark.parametrize("end", ["cancel", "fail", "work"])
def test_a_job_that_is_done_is_answered_as_it_is(api: Live, end: str) -> None:
    job_id = send(api).json()["id"]
    match end:
        case "cancel":
            api.queue.cancel(job_id)
        case "fail":
            fail(api.queue, job_id)
        case "work":
            work(api.queue, api.store, job_id)

    plain, waited = send(api), send(api, Prefer="wait=10")

    state = {"cancel": "canceled", "fail": "failed", "work": "succeeded"}[end]
    assert (plain.status_code, plain.json()["status"]) == (202, state)
    assert (waited.status_code, waited.json()["status"]) == (200, state)
    assert waited.headers["Preference-Applied"] == "wait=10"
    assert waited.headers["Idempotent-Replayed"] == "true"
    if end == "work":
        assert waited.json()["result"]["outputs"] == {"scaled": [2.0, None, 6.0], "total": 8.0}
    assert len(api.queue.jobs("local", 10)[0]) == 1


def test_a_second_request_may_wait_for_the_job_of_the_first(api: Live) -> None:
    job_id = send(api).json()["id"]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reply = pool.submit(send, api, Prefer="wait=30")
        work(api.queue, api.store, job_id)
        answer = reply.result(20)

    assert (answer.status_code, answer.json()["id"]) == (200, job_id)


def test_the_inputs_may_be_gone_when_the_request_comes_again(api: Live) -> None:
    array = api.http.put("/v1/arrays", content=npy(np.arange(4.0)), headers=NPY).json()["id"]
    body = {**SCALE, "inputs": {"values": {"array": array}}}
    job_id = send(api, body).json()["id"]
    work(api.queue, api.store, job_id)
    assert api.http.delete(f"/v1/arrays/{array}").status_code == 204

    assert send(api, body).json()["id"] == job_id
    assert api.http.post("/v1/jobs", json=body).status_code == 422


def test_an_erased_job_is_not_run_again_by_its_key(api: Live) -> None:
    job_id = send(api).json()["id"]
    api.http.delete(f"/v1/jobs/{job_id}")

    again = send(api)

    assert (again.json()["id"], again.json()["erased"], again.json()["status"]) == (job_id, True, "canceled")


def test_a_request_that_comes_again_is_no_new_job_for_any_limit(serve_api: Callable[..., Any]) -> None:
    with serve_api(max_queue=1, max_live_jobs=1) as api:
        job_id = send(api).json()["id"]
        wait_until(lambda: api.app.state.services.admission.troubles())
        new = api.http.post("/v1/jobs", json=SCALE, headers={"Idempotency-Key": "another"})

        again = send(api)

        assert new.json()["code"] == "queue-full"
        assert (again.status_code, again.json()["id"]) == (202, job_id)


def test_a_key_belongs_to_its_owner(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    mine, theirs = (create_key(tmp_path / "home", name, ["submit", "read"]) for name in ("mine", "theirs"))
    with serve_api() as api:
        answers = [send(api, **bearer(token)) for token in (mine, theirs)]

        assert [answer.status_code for answer in answers] == [202, 202]
        assert answers[0].json()["id"] != answers[1].json()["id"]
        assert "Idempotent-Replayed" not in answers[1].headers


def test_a_key_that_may_not_read_learns_no_more_by_sending_again(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    token = create_key(tmp_path / "home", "desk", ["submit"])
    with serve_api() as api:
        job_id = send(api, **bearer(token)).json()["id"]
        fail(api.queue, job_id)

        again = send(api, **bearer(token), Prefer="wait=5")

        assert (again.status_code, again.json()["id"]) == (202, job_id)
        assert (again.json()["status"], again.json()["error"]) == ("queued", None)


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (b"", "1 to 255 characters long, got 0"),
        (b"x" * 256, "1 to 255 characters long, got 256"),
        (b"a\tb", "Character 1 of Idempotency-Key cannot be printed"),
        ("a\u200bb".encode(), "Character 1 of Idempotency-Key cannot be printed"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_key_that_cannot_be_is_refused(api: Live, key: bytes, sentence: str) -> None:
    answer = api.http.post("/v1/jobs", json=SCALE, headers={b"Idempotency-Key": key})

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid-idempotency-key")
    assert sentence in answer.json()["detail"]
    assert api.queued() == (0, [])


def test_two_keys_are_refused(api: Live) -> None:
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    answer = api.http.post("/v1/jobs", json=SCALE, headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid-idempotency-key")


@pytest.mark.parametrize("key", ["x" * 255, "заказ 7731", '"8e03978e-40d5-43dd-bc93-6894a57f9324"'])
def test_a_key_may_be_any_printable_text(api: Live, key: str) -> None:
    answers = [api.http.post("/v1/jobs", json=SCALE, headers={b"Idempotency-Key": key.encode()}) for _ in range(2)]

    assert answers[0].json()["id"] == answers[1].json()["id"]


def test_redis_holds_nothing_of_a_key_or_a_body_that_could_be_guessed(api: Live) -> None:
    send(api)
    guesses = [b"order-7731"]
    for text in ("order-7731", json.dumps(SCALE, sort_keys=True, separators=(",", ":"))):
        guesses += [hashlib.new(name, text.encode()).hexdigest().encode() for name in ("sha256", "blake2b", "md5")]

    with connect(api.redis_url) as redis:
        (name,) = redis.keys("warpdesk:idempotency:*")
        held = [name, redis.get(name), *redis.keys("*")]
        lasts = redis.ttl(name)

    assert not [guess for guess in guesses for value in held if guess in value]
    assert 86_000 < lasts <= 86_400


def test_arrays_that_came_with_a_request_that_made_no_job_are_deleted(serve_api: Callable[..., Any]) -> None:
    with serve_api(max_live_jobs=1) as api:
        api.submit(**SCALE)
        before = stored_files(api)
        secret = {"values": {"data": [7.0, 8.0]}, "seeds": {"data": [0.25, 0.5]}}

        refused = api.http.post("/v1/jobs", json={"operation": "hide", "params": {"count": 1}, "inputs": secret})

        assert refused.json()["code"] == "quota-reached"
        assert stored_files(api) == before


def test_arrays_that_were_there_before_a_refused_request_stay(serve_api: Callable[..., Any]) -> None:
    with serve_api(max_live_jobs=1) as api:
        api.submit(**SCALE)
        array = api.http.put("/v1/arrays", content=npy(np.array([5.0, 6.0])), headers=NPY).json()["id"]

        refused = api.http.post("/v1/jobs", json={**SCALE, "inputs": {"values": {"data": [5.0, 6.0]}}})

        assert refused.json()["code"] == "quota-reached"
        assert api.http.get(f"/v1/arrays/{array}").status_code == 200


def test_a_request_that_redis_took_too_long_for_is_found_again_by_its_key(
    tmp_path: Path, serve_api: Callable[..., Any]
) -> None:
    with RedisServer(tmp_path / "r") as server, serve_api(server.url, redis_patience=0.5) as api:
        wait_until(lambda: api.http.get("/v1/jobs").status_code == 200)
        pid = redis_pid(api)
        os.kill(pid, signal.SIGSTOP)
        try:
            refused = send(api)
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: send(api).status_code == 202)

        again = send(api)

        assert (refused.status_code, refused.json()["code"]) == (503, "queue-unavailable")
        assert (again.status_code, again.json()["status"]) == (202, "queued")
        assert len(api.queue.jobs("local", 10)[0]) == 1
