"""Budgets over HTTP: created once, charged exactly, quoted and checked; and what is refused loses nothing."""

import hashlib
import itertools
import json
import math
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from tests.app.arrays.test_uploads import npy
from tests.app.conftest import Live, live
from tests.conftest import redis_of_its_own
from tests.waiting import wait_until
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.app.budgets import settlement
from warpdesk_server.app.jobs import operations
from warpdesk_server.app.kit import ledger_calls
from warpdesk_server.app.kit.limits import LEDGER_THREADS
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.privacy.budgets import Budgets
from warpdesk_server.privacy.charging import Charges
from warpdesk_server.privacy.database import DatabaseUnavailable
from warpdesk_server.privacy.ledger import Ledger
from warpdesk_server.service.redis_server import RedisServer
from warpdesk_server.workers.queue.keys import IDEMPOTENCY

VALUES = {"values": {"data": [12.5, 99.0, 3.25], "dtype": "float64"}}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home = tmp_path_factory.mktemp("home")
    with redis_of_its_own() as url, live(home, url, OPERATIONS, ledger_every=3600.0, max_live_jobs=100) as api:
        yield api


def create(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"name": "autumn", "accountant": "pure", "neighbouring": "add_remove", "epsilon": "1", **fields}
    answer = http.post("/v1/budgets", json={"dataset": f"set {create.made}", **body})
    create.made += 1
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/v1/budgets/{answer.json()['id']}"
    made: dict[str, Any] = answer.json()
    return made


create.made = 0  # type: ignore[attr-defined]


def release(budget: str, epsilon: Any = "0.1", **params: Any) -> dict[str, Any]:
    return {
        "operation": "dp_noise",
        "params": {
            "mechanism": "discrete_laplace",
            "mode": "records",
            "epsilon": epsilon,
            "clip": {"norm": "linf", "bound": "100"},
            "neighbouring": "add_remove",
            "budget": budget,
            **params,
        },
        "inputs": VALUES,
    }


def submit(http: httpx.Client, body: dict[str, Any], key: str) -> httpx.Response:
    return http.post("/v1/jobs", json=body, headers={"Idempotency-Key": key})


def queued(http: httpx.Client, body: dict[str, Any], key: str) -> str:
    """The id of the job that is submitted."""
    answer = submit(http, body, key)
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["id"]
    return job_id


def budget_of(http: httpx.Client, budget: str) -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"/v1/budgets/{budget}").json()
    return found


def test_a_release_of_a_dataset_names_its_version_and_is_refused_before_it_is_charged(desk: Live) -> None:
    budget = create(desk.http)["id"]
    desk.http.put("/v1/datasets/people", json={"columns": {"age": "float64"}, "assets": ["one"]})
    rows = {"times": [0, 1, 2], "columns": {"age": [[12.5], [99.0], [3.25]]}}
    assert desk.http.post("/v1/datasets/people/rows", json=rows).json()["version"] == 1
    age = {"dataset": "people", "column": "age", "assets": "one"}

    refused = submit(desk.http, {**release(budget), "inputs": {"values": age}}, "people-1")
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/inputs/values/as_of")
    assert budget_of(desk.http, budget)["entries"] == 0

    body = {**release(budget), "inputs": {"values": {**age, "as_of": 1}}}
    first = submit(desk.http, body, "people-2")
    rows["columns"]["age"][0] = [13.5]  # type: ignore[index]
    desk.http.post("/v1/datasets/people/rows", json={**rows, "correct": True})
    again = submit(desk.http, body, "people-2")
    assert [answer.status_code for answer in (first, again)] == [202, 202]
    assert first.json()["id"] == again.json()["id"]
    assert budget_of(desk.http, budget)["entries"] == 1


def test_ten_releases_of_a_tenth_fit_and_the_eleventh_is_refused_with_what_remains(desk: Live) -> None:
    budget = create(desk.http)["id"]
    for at in range(10):
        answer = submit(desk.http, release(budget), f"ten-{at}")
        assert answer.status_code == 202, answer.text
    refused = submit(desk.http, release(budget), "ten-10")
    assert refused.status_code == 409
    assert refused.json()["code"] == "budget-exceeded"
    assert "0.1" in refused.json()["detail"]
    assert "remains epsilon 0" in refused.json()["detail"]
    found = budget_of(desk.http, budget)
    assert (found["spent"]["epsilon"], found["remaining"]["epsilon"], found["entries"]) == ("1", "0", 10)
    assert desk.http.get(f"/v1/budgets/{budget}/verify").json()["valid"] is True


def test_the_ledger_goes_on_after_a_refusal(desk: Live) -> None:
    budget = create(desk.http)["id"]
    assert submit(desk.http, release(budget, "2"), "on-1").status_code == 409
    assert submit(desk.http, release(budget, "1"), "on-1").status_code == 202  # a refusal uses up no idempotency key


def test_a_number_is_charged_as_it_is_written_and_not_as_the_float_beside_it(desk: Live) -> None:
    budget = create(desk.http, epsilon=1.000000000001)["id"]
    body = release(budget, "AMOUNT")
    for at, written in enumerate(("0.1", "1e-1", "0.800000000001")):
        text = httpx.Request("POST", "/", json=body).read().replace(b'"AMOUNT"', written.encode())
        headers = {"Idempotency-Key": f"written-{at}", "Content-Type": "application/json"}
        answer = desk.http.post("/v1/jobs", content=text, headers=headers)
        assert answer.status_code == 202, answer.text
    assert budget_of(desk.http, budget)["remaining"]["epsilon"] == "0"


def test_a_release_without_an_idempotency_key_is_refused_before_it_is_charged(desk: Live) -> None:
    budget = create(desk.http)["id"]
    answer = desk.http.post("/v1/jobs", json=release(budget))
    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency-key-required")
    assert budget_of(desk.http, budget)["entries"] == 0


def test_the_same_request_is_charged_once_though_redis_has_forgotten_it(desk: Live) -> None:
    budget = create(desk.http)["id"]
    first = submit(desk.http, release(budget), "forgotten").json()
    with desk.queue._redis.client() as redis:
        redis.flushall()
    again = submit(desk.http, release(budget), "forgotten")
    assert (again.status_code, again.json()["id"]) == (202, first["id"])
    assert again.headers["idempotent-replayed"] == "true"
    assert desk.queue.get(first["id"]) is not None  # the job is queued again
    assert budget_of(desk.http, budget)["spent"]["epsilon"] == "0.1"


def test_another_request_with_a_key_that_was_charged_is_refused_for_ever(desk: Live) -> None:
    budget = create(desk.http)["id"]
    submit(desk.http, release(budget), "reused")
    with desk.queue._redis.client() as redis:
        redis.flushall()
    answer = submit(desk.http, release(budget, "0.2"), "reused")
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency-key-reused")
    assert budget_of(desk.http, budget)["spent"]["epsilon"] == "0.1"


def test_many_callers_at_once_spend_a_budget_to_the_last_and_no_further(desk: Live) -> None:
    budget = create(desk.http)["id"]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda at: submit(desk.http, release(budget, "0.04"), f"many-{at}"), range(40)))
    assert sorted({answer.status_code for answer in answers} - {503}) == [202, 409]
    taken = sum(answer.status_code == 202 for answer in answers)
    found = budget_of(desk.http, budget)
    assert found["entries"] == taken == 25
    assert found["remaining"]["epsilon"] == "0"


def test_a_charged_job_that_reached_no_queue_is_queued_with_its_charge(desk: Live) -> None:
    budget = create(desk.http)["id"]
    job_id = queued(desk.http, release(budget), "lost")
    before = desk.queue.get(job_id)
    with desk.queue._redis.client() as redis:
        redis.flushall()
    _look_once(desk)
    after = desk.queue.get(job_id)
    assert before is not None
    assert after is not None
    assert after.request == before.request
    assert after.request.charge is not None


def test_a_job_that_is_canceled_before_anyone_claimed_it_is_refunded(desk: Live) -> None:
    budget = create(desk.http)["id"]
    job_id = queued(desk.http, release(budget), "canceled")
    charge = desk.queue.get(job_id).request.charge.id  # type: ignore[union-attr]
    desk.http.post(f"/v1/jobs/{job_id}/cancel")
    _look_once(desk)
    document = desk.http.get(f"/v1/charges/{charge}").json()
    assert (document["state"], document["reason"]) == ("void", "its job was canceled")
    assert budget_of(desk.http, budget)["remaining"]["epsilon"] == "1"
    kinds = [entry["kind"] for entry in desk.http.get(f"/v1/budgets/{budget}/history").json()["entries"]]
    assert kinds == ["charge", "refund"]
    # The idempotency key still names the canceled job: the same request is no new release.
    assert submit(desk.http, release(budget), "canceled").json()["status"] == "canceled"


def test_a_job_that_is_refused_after_the_charge_costs_nothing_and_leaves_its_key_free(
    redis_url: str, tmp_path: Any
) -> None:
    with live(tmp_path / "home", redis_url, OPERATIONS, ledger_every=3600.0, max_live_jobs=1) as api:
        budget = create(api.http)["id"]
        first = queued(api.http, release(budget), "first")
        refused = submit(api.http, release(budget), "second")
        assert (refused.status_code, refused.json()["code"]) == (429, "quota-reached")
        kinds = [entry["kind"] for entry in api.http.get(f"/v1/budgets/{budget}/history").json()["entries"]]
        assert kinds == ["charge", "charge", "refund"]
        api.http.post(f"/v1/jobs/{first}/cancel")
        wait_until(lambda: submit(api.http, release(budget), "second").status_code == 202)


def test_a_refused_job_that_could_not_be_refunded_keeps_its_inputs_and_is_queued_later(
    redis_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refund(*_: Any, **__: Any) -> bool:
        raise DatabaseUnavailable("the connection was lost")

    with live(tmp_path / "home", redis_url, OPERATIONS, ledger_every=3600.0, max_live_jobs=1) as api:
        budget = create(api.http)["id"]
        first = queued(api.http, release(budget), "first")
        body = {**release(budget), "inputs": {"values": {"data": [4.25, 7.5], "dtype": "float64"}}}
        charges = api.app.state.services.ledger.charges
        with monkeypatch.context() as patch:
            patch.setattr(charges, "refund", refund)
            assert submit(api.http, body, "second").json()["code"] == "quota-reached"
        [second] = [charge.job_id for charge in charges.open(0, 9) if charge.job_id != first]
        assert api.queue.get(second) is None
        _look_once(api)
        request = _request_of(api, second)
        assert api.store.find(request.owner, request.inputs["values"]) is not None
        assert budget_of(api.http, budget)["spent"]["epsilon"] == "0.2"


def test_a_job_for_a_gpu_that_nobody_has_is_refused_before_it_is_charged(desk: Live) -> None:
    budget = create(desk.http)["id"]
    refused = submit(desk.http, {**release(budget), "backend": "gpu"}, "gpu")
    assert (refused.status_code, refused.json()["code"]) == (503, "no-gpu-worker")
    assert budget_of(desk.http, budget)["entries"] == 0
    assert submit(desk.http, release(budget), "gpu").status_code == 202


def test_a_repeat_whose_stored_input_is_gone_is_given_its_job_though_redis_forgot_the_key(desk: Live) -> None:
    budget = create(desk.http)["id"]
    with desk.store.writer("local", "float64", (2,), 60.0) as writer:
        writer.take(bytes(16))
        array = writer.commit(has_nan=False, has_inf=False).id
    body = {**release(budget), "inputs": {"values": {"array": array}}}
    first = submit(desk.http, body, "stored").json()
    desk.store.delete("local", array)
    with desk.queue._redis.client() as redis:
        for key in redis.keys(f"{IDEMPOTENCY}*"):
            redis.delete(key)
    again = submit(desk.http, body, "stored")
    assert (again.status_code, again.json()["id"]) == (202, first["id"])
    assert budget_of(desk.http, budget)["entries"] == 1


def test_a_quote_says_what_a_release_would_leave_and_charges_nothing(desk: Live) -> None:
    budget = create(desk.http)["id"]
    fits = desk.http.post(f"/v1/budgets/{budget}/quote", json=release(budget, "0.3")).json()
    assert (fits["fits"], fits["cost"]["epsilon"], fits["remaining"]["epsilon"]) == (True, "0.3", "0.7")
    large = desk.http.post(f"/v1/budgets/{budget}/quote", json=release(budget, "1.5")).json()
    assert (large["fits"], large["remaining"]["epsilon"]) == (False, "1")
    assert budget_of(desk.http, budget)["entries"] == 0


def test_a_quote_says_how_accurate_the_answer_would_be(desk: Live) -> None:
    budget = create(desk.http)["id"]
    quotes = [
        desk.http.post(f"/v1/budgets/{budget}/quote", json=release(budget, epsilon, **more)).json()["accuracy_95"]
        for epsilon, more in (("0.5", {}), ("0.05", {}), ("0.5", {"query": "mean"}))
    ]
    # Of Laplace noise of scale b = bound / epsilon it is b ln 20.
    assert quotes[:2] == pytest.approx([200 * math.log(20), 2000 * math.log(20)], rel=1e-3)
    assert quotes[2] is None, "of a mean it depends on the number of records, which is private"


def test_a_quote_of_what_charges_nothing_is_refused(desk: Live) -> None:
    budget = create(desk.http)["id"]
    body = release(budget)
    body["params"].pop("budget")
    body["params"]["unaccounted"] = True
    answer = desk.http.post(f"/v1/budgets/{budget}/quote", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "not-accountable")


def test_a_closed_budget_takes_no_more_and_frees_its_dataset(desk: Live) -> None:
    made = create(desk.http, dataset="closing")
    taken = desk.http.post("/v1/budgets", json={**_new("closing"), "name": "second"})
    assert (taken.status_code, taken.json()["code"]) == (409, "dataset-taken")
    assert desk.http.post(f"/v1/budgets/{made['id']}/close").json()["state"] == "closed"
    refused = submit(desk.http, release(made["id"]), "closed")
    assert (refused.status_code, refused.json()["code"]) == (409, "budget-closed")
    assert desk.http.post("/v1/budgets", json=_new("closing")).status_code == 201


def _new(dataset: str) -> dict[str, Any]:
    return {
        "name": "n",
        "dataset": dataset,
        "accountant": "zcdp",
        "neighbouring": "replace_one",
        "rho": "0.5",
    }


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"epsilon": None}, "a budget of the accountant pure is given by epsilon"),
        ({"epsilon": "0"}, "is not above zero"),
        ({"epsilon": "-1"}, "is not above zero"),
        ({"epsilon": "1e-13"}, "more than the 12 decimal places"),
        ({"epsilon": "NaN"}, "is not a decimal number"),
        ({"delta": "0.1"}, "a budget of the accountant pure is given by epsilon"),
        ({"accountant": "approx", "delta": "1"}, "is not below 1"),
        ({"accountant": "renyi"}, "accountant"),
        ({"neighbouring": "both"}, "neighbouring"),
        ({"more": 1}, "there is no field 'more'"),
        ({"epsilon": 10**4000}, "outside 1e-30 to 1e30"),
        ({"dataset": "a\0b"}, "dataset should match"),
        ({"dataset": "pat\u200bients"}, "character 4 of the name is U+200B, which cannot be seen"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused_with_the_reason(
    desk: Live, fields: dict[str, Any], sentence: str
) -> None:
    body = {"name": "n", "dataset": "d", "accountant": "pure", "neighbouring": "add_remove", "epsilon": "1", **fields}
    body = {name: value for name, value in body.items() if value is not None}
    answer = desk.http.post("/v1/budgets", json=body)
    assert answer.status_code == 422, answer.text
    assert sentence in answer.text


def test_a_release_that_the_accountant_cannot_hold_is_refused_before_the_charge(desk: Live) -> None:
    budget = create(desk.http)["id"]
    gaussian = release(budget)
    gaussian["params"] |= {"mechanism": "discrete_gaussian", "rho": "0.1"}
    del gaussian["params"]["epsilon"]
    other = release(budget, neighbouring="replace_one")
    for at, body in enumerate((gaussian, other)):
        answer = submit(desk.http, body, f"held-{at}")
        assert (answer.status_code, answer.json()["code"]) == (422, "not-accountable"), answer.text
    assert budget_of(desk.http, budget)["entries"] == 0


def test_an_unknown_budget_is_a_404_with_its_pointer(desk: Live) -> None:
    missing = "budget_" + "0" * 32
    answer = submit(desk.http, release(missing), "missing")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown-budget")
    assert answer.json()["errors"][0]["pointer"] == "/params/budget"
    for path in ("", "/history", "/verify"):
        assert desk.http.get(f"/v1/budgets/{missing}{path}").status_code == 404


def test_whoever_reads_the_history_can_replay_the_chain_and_find_what_an_entry_says_in_its_hash(desk: Live) -> None:
    budget = create(desk.http)["id"]
    for at in range(3):
        submit(desk.http, release(budget, "0.01"), f"replay-{at}")
    entries = desk.http.get(f"/v1/budgets/{budget}/history").json()["entries"]
    for entry, follows in itertools.pairwise([*entries, None]):
        assert hashlib.sha256(entry["text"].encode()).hexdigest() == entry["hash"]
        body = json.loads(entry["text"])
        assert (body["seq"], body["charge_id"], body["prev"]) == (entry["number"], entry["charge"], entry["previous"])
        assert body["amounts"] == {"epsilon": "0.01"}
        assert follows is None or follows["previous"] == entry["hash"]
    assert budget_of(desk.http, budget)["head"] == entries[-1]["hash"]


def test_history_comes_in_pages_that_fit_together(desk: Live) -> None:
    budget = create(desk.http)["id"]
    for at in range(5):
        submit(desk.http, release(budget, "0.01"), f"page-{at}")
    url, entries = f"/v1/budgets/{budget}/history?limit=2", []
    while url:
        page = desk.http.get(url).json()
        entries += page["entries"]
        url = page["next"]
    assert [entry["number"] for entry in entries] == [1, 2, 3, 4, 5]
    assert [entry["previous"] for entry in entries[1:]] == [entry["hash"] for entry in entries[:-1]]
    assert budget_of(desk.http, budget)["head"] == entries[-1]["hash"]


def test_an_answer_that_redis_forgot_is_queued_again_for_whoever_finds_it(desk: Live) -> None:
    budget = create(desk.http)["id"]
    job_id = queued(desk.http, release(budget), "answered")
    ledger, request = desk.app.state.services.ledger, _request_of(desk, job_id)
    _answer(ledger, request)
    with desk.queue._redis.client() as redis:
        redis.flushall()
    again = submit(desk.http, release(budget), "answered")
    assert (again.status_code, again.json()["id"]) == (202, job_id)
    assert _request_of(desk, job_id).charge == request.charge
    assert budget_of(desk.http, budget)["entries"] == 1


def test_what_was_charged_without_a_word_keeps_its_inputs(desk: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = create(desk.http)["id"]
    charges = desk.app.state.services.ledger.charges

    def lost(*arguments: Any) -> None:
        Charges.reserve(charges, *arguments)
        raise DatabaseUnavailable("the connection was lost")

    body = {**release(budget), "inputs": {"values": {"data": [8.25, 7.5], "dtype": "float64"}}}
    with monkeypatch.context() as patch:
        patch.setattr(charges, "reserve", lost)
        assert submit(desk.http, body, "unheard").json()["code"] == "ledger-unavailable"
    _look_once(desk)
    again = submit(desk.http, body, "unheard")
    assert (again.status_code, again.headers["idempotent-replayed"]) == (202, "true")
    assert _request_of(desk, again.json()["id"]).charge.id
    assert budget_of(desk.http, budget)["entries"] == 1


def test_a_charge_whose_inputs_are_gone_before_it_is_queued_is_refunded_and_frees_its_key(desk: Live) -> None:
    budget = create(desk.http)["id"]
    body = {**release(budget), "inputs": {"values": {"data": [6.25, 7.5], "dtype": "float64"}}}
    request = _request_of(desk, queued(desk.http, body, "inputs gone"))
    with desk.queue._redis.client() as redis:
        redis.flushall()
    assert desk.store.delete(request.owner, request.inputs["values"])
    _look_once(desk)
    assert budget_of(desk.http, budget)["remaining"]["epsilon"] == "1"
    again = submit(desk.http, body, "inputs gone")
    assert again.status_code == 202, again.text
    assert again.json()["id"] != request.id


def test_one_charge_that_cannot_be_looked_after_keeps_no_other_waiting(desk: Live) -> None:
    budget = create(desk.http)["id"]
    first, second = (queued(desk.http, release(budget), f"odd {at}") for at in range(2))
    with desk.queue._redis.client() as redis:
        redis.flushall()
    state = desk.app.state.services
    with state.database.begin() as connection:
        connection.exec_driver_sql("UPDATE charge_outbox SET job = '{' WHERE job_id = ?", (first,))
    _look_once(desk)
    assert (desk.queue.get(first), desk.queue.get(second) is not None) == (None, True)
    with state.database.begin() as connection:  # cleans up for the tests after this one
        connection.exec_driver_sql("DELETE FROM charge_outbox WHERE job_id = ?", (first,))


def test_a_job_canceled_just_after_its_answer_was_committed_is_settled(desk: Live) -> None:
    budget = create(desk.http)["id"]
    job_id = queued(desk.http, release(budget), "canceled late")
    ledger, request = desk.app.state.services.ledger, _request_of(desk, job_id)
    _answer(ledger, request)
    desk.queue.cancel(job_id)
    record = desk.queue.get(job_id)
    assert record is not None
    settlement.settle(ledger, record)
    assert ledger.charges.get(request.charge.id).state == "released"


def test_a_ledger_that_hangs_keeps_nothing_else_waiting(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_calls, "PATIENCE", 15.0)
    other = {**release(""), "params": {**release("")["params"], "unaccounted": True}}
    del other["params"]["budget"]
    # A Redis of its own: threads go on after their callers have gone, and would queue jobs in the next test's Redis.
    with (
        RedisServer(tmp_path / "redis") as server,
        live(tmp_path / "home", server.url, OPERATIONS, ledger_every=3600.0) as api,
    ):
        budget = create(api.http)["id"]
        with ThreadPoolExecutor(60) as threads, api.app.state.services.database.begin():  # holds the write lock
            held = [
                threads.submit(httpx.post, f"{api.url}/v1/jobs", json=release(budget, "0.01"), timeout=60,
                               headers={"Idempotency-Key": f"held {at}"})
                for at in range(50)
            ]  # fmt: skip
            time.sleep(1.0)
            for _ in range(2):
                taken = api.http.post("/v1/jobs", json=other)
                assert taken.status_code == 202, taken.text
                assert api.http.get(f"/v1/jobs/{taken.json()['id']}").status_code == 200
            listed = api.http.get("/v1/arrays").json()
            assert (listed["round_bytes"], listed["max_round_bytes"]) == (None, api.settings.round_bytes_per_key)
            assert not any(answer.done() for answer in held)
            refused = {answer.result().json().get("code") for answer in held}
        assert refused == {"ledger-unavailable"}
        wait_until(lambda: submit(api.http, release(budget, "0.01"), "held 0").status_code == 202)
        assert api.http.get(f"/v1/budgets/{budget}/verify").json()["valid"]


def test_calls_of_a_ledger_that_hangs_keep_their_places_though_nobody_waits_for_them(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        RedisServer(tmp_path / "redis") as server,
        live(tmp_path / "home", server.url, OPERATIONS, ledger_every=3600.0) as api,
    ):
        budget = create(api.http)["id"]
        monkeypatch.setattr(ledger_calls, "PATIENCE", 0.5)
        database = api.app.state.services.database

        def give_up(number: int) -> str:
            key = {"Idempotency-Key": f"held {number}"}
            answer = httpx.post(f"{api.url}/v1/jobs", json=release(budget, "0.01"), timeout=60, headers=key)
            return str(answer.json().get("code"))

        with ThreadPoolExecutor(LEDGER_THREADS) as threads, database.begin():  # holds the write lock
            for wave in range(3):
                refused = set(threads.map(give_up, range(8 * wave, 8 * wave + 8)))
                assert refused == {"ledger-unavailable"}
            stuck = database.pool.checkedout()  # type: ignore[attr-defined]
        assert stuck <= LEDGER_THREADS + 2, "one holds the lock, and the metrics may be read"
        monkeypatch.setattr(ledger_calls, "PATIENCE", 30.0)
        wait_until(lambda: submit(api.http, release(budget, "0.01"), "another").status_code == 202)


@pytest.mark.parametrize("what", ["quotes", "chains"])
def test_one_keys_questions_leave_the_ledger_to_others(
    tmp_path: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    home = tmp_path / "home"
    greedy, calm = ({"Authorization": f"Bearer {create_key(home, name, ['read'])}"} for name in ("greedy", "calm"))
    asking, go_on = list[object](), threading.Event()

    def hanging(answer: Callable[..., object]) -> Callable[..., object]:
        def hang(*arguments: object) -> object:
            asking.append(arguments)
            assert go_on.wait(100)
            return answer(*arguments)

        return hang

    with live(home, redis_url, OPERATIONS, ledger_every=3600.0) as api, ThreadPoolExecutor(12) as threads:
        monkeypatch.setattr(operations, "check", hanging(operations.check))
        monkeypatch.setattr(Budgets, "verify", hanging(Budgets.verify))

        def ask(_: int) -> int:
            if what == "chains":
                answer = httpx.get(f"{api.url}/v1/budgets/x/verify", headers=greedy, timeout=100)
            else:
                answer = httpx.post(f"{api.url}/v1/budgets/x/quote", json=release("x"), headers=greedy, timeout=100)
            return answer.status_code

        statuses = threads.map(ask, range(12))
        under_way = api.app.state.services.under_way
        wait_until(lambda: asking and under_way.held() == 12)
        try:
            found = api.http.get("/v1/charges/x", headers=calm)
            at_once = len(asking)
        finally:
            go_on.set()
        ended = set(statuses)

    assert (found.status_code, found.json()["code"]) == (404, "unknown-charge")
    assert at_once <= LEDGER_THREADS // 2
    assert ended == {422 if what == "quotes" else 404}  # x is no id of a budget


def test_a_budget_names_who_may_charge_it_and_what_and_shows_charges_to_their_owner(
    tmp_path: Any, redis_url: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    tokens = {name: create_key(home, name, ["submit", "read"]) for name in ("one", "other")}
    boss = {"Authorization": f"Bearer {create_key(home, 'boss', ['admin'])}"}
    one, other = ({"Authorization": f"Bearer {token}"} for token in tokens.values())
    with live(home, redis_url, OPERATIONS, ledger_every=3600.0) as api:
        api.http.headers.update(boss)
        budget = create(api.http, charge_keys=[tokens["one"].split("_")[1]])["id"]
        rules = f"/v1/budgets/{budget}/rules"

        def submitted(who: dict[str, str], key: str, **inputs: Any) -> httpx.Response:
            body = {**release(budget), **inputs}
            return api.http.post("/v1/jobs", json=body, headers={**who, "Idempotency-Key": key})

        assert submitted(one, "first").status_code == 202
        refused = submitted(other, "first")
        assert (refused.status_code, refused.json()["code"]) == (403, "charge-forbidden")
        assert refused.json()["errors"][0]["pointer"] == "/params/budget"
        quoted = api.http.post(f"/v1/budgets/{budget}/quote", json=release(budget), headers=other)
        assert (quoted.status_code, quoted.json()["code"]) == (403, "charge-forbidden")

        as_npy = {"Content-Type": "application/x-npy"}
        uploaded = api.http.put("/v1/arrays", content=npy(np.array([12.5, 99.0, 3.25])), headers={**other, **as_npy})
        stored = uploaded.json()["id"]
        theirs = {"charge_keys": None, "arrays": [stored]}
        assert api.http.put(rules, json=theirs, headers=other).status_code == 403
        assert api.http.put(rules, json={"arrays": ["a file"]}).status_code == 422
        assert api.http.put(rules, json=theirs).json() == api.http.get(rules).json() == theirs
        assert submitted(other, "second", inputs={"values": {"array": stored}}).status_code == 202
        more = {"values": {"data": [1.0, 2.0], "dtype": "float64"}}
        assert submitted(other, "third", inputs=more).json()["code"] == "charge-forbidden"
        assert budget_of(api.http, budget)["spent"]["epsilon"] == "0.2"

        for who, visibility in ((boss, [True, True, True, True]), (one, [False, True, False, False])):
            found = api.http.get(f"/v1/budgets/{budget}/history", headers=who).json()["entries"]
            assert [entry["kind"] for entry in found] == ["rules", "charge", "rules", "charge"]
            assert [entry["owner"] is not None for entry in found] == visibility
            assert [entry["text"] is not None for entry in found] == visibility
            hidden = [entry for entry, shown in zip(found, visibility, strict=True) if not shown]
            assert {entry[name] for entry in hidden for name in ("charge", "job", "operation", "reason")} <= {None}
            assert tokens["other"].split("_")[1] not in str(hidden)
        assert api.http.get(f"/v1/budgets/{budget}/verify", headers=one).json()["valid"]


def test_an_anchor_that_was_edited_under_a_running_service_is_an_unusable_ledger(
    tmp_path: Any, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with live(tmp_path / "home", redis_url, OPERATIONS, ledger_every=3600.0) as api:
        budget = create(api.http)["id"]
        with sqlite3.connect(tmp_path / "home" / "ledger.anchor") as anchor:
            anchor.execute("UPDATE anchor_heads SET seal = ''")
        anchor.close()
        another = {"name": "n", "dataset": "d", "accountant": "pure", "neighbouring": "add_remove", "epsilon": "1"}
        for refused in (
            submit(api.http, release(budget), "first"),
            api.http.post("/v1/budgets", json=another),
        ):
            assert (refused.status_code, refused.json()["code"]) == (503, "ledger-unavailable"), refused.text
    assert "was not written with this ledger's key" in caplog.text


def test_a_ledger_that_was_put_back_under_a_running_service_is_charged_nothing(tmp_path: Any, redis_url: str) -> None:
    with live(tmp_path / "home", redis_url, OPERATIONS, ledger_every=3600.0) as api:
        budget = create(api.http)["id"]
        assert submit(api.http, release(budget), "first").status_code == 202
        database, file = api.app.state.services.database, tmp_path / "home" / "ledger.db"

        def closed() -> bool:
            """Whether SQLite's log is merged into the file: by the last connection to close, perhaps a collector's."""
            database.dispose()
            return not file.with_name("ledger.db-wal").exists()

        wait_until(closed)
        older = file.read_bytes()
        assert submit(api.http, release(budget), "second").status_code == 202
        wait_until(closed)
        file.write_bytes(older)

        refused = submit(api.http, release(budget), "third")

        assert (refused.status_code, refused.json()["code"]) == (503, "ledger-unavailable")
        assert api.http.get(f"/v1/budgets/{budget}").json()["spent"]["epsilon"] == "0.1"
        assert api.http.post(f"/v1/budgets/{budget}/close").status_code == 503


def _answer(ledger: Ledger, request: Any) -> None:
    """Claim and release the request's charge, as a worker does."""
    ledger.charges.claim(
        request.charge.id,
        operation="dp_noise",
        params=request.canonical_params,
        inputs=request.canonical_inputs,
        version=OPERATIONS["dp_noise"].release_version,
    )
    ledger.charges.release(request.charge.id, "{}", bytes(32))


def _request_of(desk: Live, job_id: str) -> Any:
    record = desk.queue.get(job_id)
    assert record is not None
    return record.request


def _look_once(desk: Live) -> None:
    state = desk.app.state.services
    settlement.look_once(state.ledger, desk.queue, state.store, 0.0)
