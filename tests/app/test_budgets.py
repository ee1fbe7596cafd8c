"""Budgets over HTTP: created once, charged exactly, quoted and checked; and what is refused loses nothing."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from app import charges
from kernels.catalogue import OPERATIONS
from tests.app.conftest import Live, live
from workers.queue import JobQueue

VALUES = {"values": {"data": [12.5, 99.0, 3.25], "dtype": "float64"}}


@pytest.fixture(scope="module")
def desk(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with live(tmp_path_factory.mktemp("home"), redis_server, OPERATIONS, ledger_every=3600.0, max_live_jobs=100) as api:
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


def budget_of(http: httpx.Client, budget: str) -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"/v1/budgets/{budget}").json()
    return found


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
    assert submit(desk.http, release(budget, "1"), "on-1").status_code == 202  # a refusal takes no key either


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
    assert desk.queue.get(first["id"]) is not None  # it is queued again
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
    job_id = submit(desk.http, release(budget), "lost").json()["id"]
    before = desk.queue.get(job_id)
    with desk.queue._redis.client() as redis:
        redis.flushall()
    state = desk.app.state.desk
    charges.look_once(state.ledger, JobQueue(desk.queue._redis), 0.0)
    after = desk.queue.get(job_id)
    assert before is not None
    assert after is not None
    assert after.request == before.request
    assert after.request.charge is not None


def test_a_job_that_is_canceled_before_anyone_claimed_it_is_refunded(desk: Live) -> None:
    budget = create(desk.http)["id"]
    job_id = submit(desk.http, release(budget), "canceled").json()["id"]
    charge = desk.queue.get(job_id).request.charge.id  # type: ignore[union-attr]
    desk.http.post(f"/v1/jobs/{job_id}/cancel")
    charges.look_once(desk.app.state.desk.ledger, JobQueue(desk.queue._redis), 0.0)
    told = desk.http.get(f"/v1/charges/{charge}").json()
    assert (told["state"], told["reason"]) == ("void", "its job canceled")
    assert budget_of(desk.http, budget)["remaining"]["epsilon"] == "1"
    kinds = [entry["kind"] for entry in desk.http.get(f"/v1/budgets/{budget}/history").json()["entries"]]
    assert kinds == ["charge", "refund"]
    # The key still has its canceled job: the same request is no new release.
    assert submit(desk.http, release(budget), "canceled").json()["status"] == "canceled"


def test_a_job_that_is_refused_after_the_charge_costs_nothing_and_leaves_its_key_free(
    redis_url: str, tmp_path: Any
) -> None:
    with live(tmp_path / "home", redis_url, OPERATIONS, ledger_every=3600.0) as api:
        budget = create(api.http)["id"]
        asks_for_a_gpu = {**release(budget), "backend": "gpu"}
        refused = submit(api.http, asks_for_a_gpu, "gpu")
        assert (refused.status_code, refused.json()["code"]) == (503, "no-gpu-worker")
        assert budget_of(api.http, budget)["remaining"]["epsilon"] == "1"
        again = submit(api.http, release(budget), "gpu")
        assert again.status_code == 202, again.text


def test_a_quote_says_what_a_release_would_leave_and_charges_nothing(desk: Live) -> None:
    budget = create(desk.http)["id"]
    fits = desk.http.post(f"/v1/budgets/{budget}/quote", json=release(budget, "0.3")).json()
    assert (fits["fits"], fits["cost"]["epsilon"], fits["remaining"]["epsilon"]) == (True, "0.3", "0.7")
    large = desk.http.post(f"/v1/budgets/{budget}/quote", json=release(budget, "1.5")).json()
    assert (large["fits"], large["remaining"]["epsilon"]) == (False, "1")
    assert budget_of(desk.http, budget)["entries"] == 0


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
