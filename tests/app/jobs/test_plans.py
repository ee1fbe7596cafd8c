"""Plans at the door and behind it: what is refused before it is queued, who may claim one, and what its result has."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from tests.app.conftest import Live, live
from tests.claims import computed, take
from tests.conftest import emptied, redis_of_its_own
from warpdesk_server.kernels.catalogue import CATALOGUE, PLAN
from warpdesk_server.workers.child import execute
from warpdesk_server.workers.child.device import without_gpu
from warpdesk_server.workers.queue.protocol import JobRequest, Kind, Succeeded
from warpdesk_server.workers.queue.records import Claim, Ending

PRICES = {"data": [100.0 + (7 * bar) % 11 for bar in range(48)], "dtype": "float64"}
OPTION = {"payoff": "european", "option": "call", "spot": 100.0, "strike": 100.0, "volatility": 0.2, "maturity": 1.0,
          "paths": 1024, "steps": 4}  # fmt: skip


@pytest.fixture(scope="module")
def running_plans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with redis_of_its_own() as url, live(tmp_path_factory.mktemp("home"), url, CATALOGUE, max_job_bytes=1 << 30) as api:
        yield api


@pytest.fixture
def api(running_plans: Live) -> Live:
    emptied(running_plans.redis_url)
    return running_plans


def body(**changes: Any) -> dict[str, Any]:
    return {"operation": "plan", **asdict(PLAN.example), **changes}


def simulations(*seeds: int | None) -> dict[str, Any]:
    steps = [
        {"id": f"s{at}", "operation": "monte_carlo", "params": OPTION} | ({} if seed is None else {"seed": seed})
        for at, seed in enumerate(seeds)
    ]
    return {"operation": "plan", "params": {"steps": steps, "outputs": {"price": {"from": "s0.price"}}}}


def work(api: Live, job_id: str) -> None:
    job = take(api.queue, job_id)
    attached = {job_id: job.attached} if job.attached else {}
    (outcome,) = execute.run(
        [(job.request, job.attempt)], api.store, without_gpu("none here"), CATALOGUE, attached=attached  # type: ignore[arg-type]
    )  # fmt: skip
    assert isinstance(outcome, Succeeded), outcome
    computed(api.queue, [Ending(job, outcome)])


def queued(api: Live, job_id: str) -> JobRequest:
    record = api.queue.get(job_id)
    assert record is not None
    return record.request


def test_a_plan_is_one_job_whose_result_has_the_names_of_its_request(api: Live) -> None:
    job_id = api.submit(**body())
    work(api, job_id)
    result = api.http.get(f"/v1/jobs/{job_id}/result").json()
    assert list(result["outputs"]) == ["now", "rsi"]
    assert result["outputs"]["now"] != [None]
    assert len(result["outputs"]["rsi"]) == 48
    steps = result["provenance"]["steps"]
    assert [(step["id"], step["operation"], step["backend"]) for step in steps] == [
        ("rsi14", "rsi", "cpu"), ("smooth", "ema", "cpu"),
    ]  # fmt: skip
    now = api.http.get(f"/v1/jobs/{job_id}/result/now", headers={"Accept": "application/x-npy"})
    assert (now.status_code, len(now.content)) == (200, 128 + 8)
    assert api.http.get(f"/v1/jobs/{job_id}/result/ema").json()["code"] == "unknown-output"


def test_what_is_wrong_with_a_step_is_told_before_anything_is_queued(api: Live) -> None:
    wrong = body()
    wrong["params"]["steps"][1]["params"]["period"] = 0
    answer = api.http.post("/v1/jobs", json=wrong)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert answer.json()["errors"] == [
        {"pointer": "/params/steps/1/params/period", "detail": "period should be at least 1, got 0"}
    ]
    unread = api.http.post("/v1/jobs", json=body(inputs={"prices": PRICES, "more": PRICES}))
    assert unread.json()["errors"][0]["pointer"] == "/inputs/more"
    unnamed = api.http.post("/v1/jobs", json=body(inputs={"prices": PRICES, "More/../x": PRICES}))
    assert unnamed.status_code == 422
    huge = api.http.post("/v1/jobs", json=simulations(*([1] * 2001)))
    assert "at most 2000 items, got 2001" in huge.text
    assert api.queued() == (0, [])


def test_a_plan_for_the_gpu_needs_operations_that_have_code_for_it(api: Live) -> None:
    steps = [
        {"id": "c", "operation": "covariance", "inputs": {"returns": "prices"}},
        {"id": "h", "operation": "hrp", "inputs": {"covariance": "c.covariance"}},
    ]
    params = {"steps": steps, "outputs": {"w": {"from": "h.weights"}}}
    prices = {"data": [[1.0, 2.0, 4.0], [3.0, 1.0, 2.0]]}
    answer = api.http.post("/v1/jobs", json=body(params=params, inputs={"prices": prices}, backend="gpu"))
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/backend")
    assert "hrp has no GPU implementation" in answer.text
    assert api.http.post("/v1/jobs", json=body(params=params, inputs={"prices": prices})).status_code == 202


def test_a_plan_whose_live_arrays_are_too_large_is_refused_with_the_number(api: Live) -> None:
    steps = [{"id": f"s{at}", "operation": "monte_carlo", "params": {**OPTION, "paths": 10**8}} for at in range(2)]
    params = {"steps": steps, "outputs": {"price": {"from": "s0.price"}}}
    small = api.app.state.services.settings.max_job_bytes
    assert api.http.post("/v1/jobs", json={"operation": "plan", "params": params}).status_code == 202
    wide = {"id": "x", "operation": "matmul", "inputs": {"a": "a", "b": "b"}}
    answer = api.http.post(
        "/v1/jobs",
        json={
            "operation": "plan",
            "params": {"steps": [wide], "outputs": {"y": {"from": "x.product"}}},
            "inputs": {"a": {"data": [[1.0]] * 20_000}, "b": {"data": [[1.0] * 20_000]}},
        },
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "job-too-large")
    assert f"the limit is {small}" in answer.text


def test_seeds_are_drawn_once_and_written_into_the_steps(api: Live) -> None:
    one = queued(api, api.submit(**simulations(None, 5)))
    other = queued(api, api.submit(**simulations(None, 5)))
    drawn = [request.params["steps"][0]["seed"] for request in (one, other)]
    assert drawn[0] != drawn[1]
    assert [request.params["steps"][1]["seed"] for request in (one, other)] == [5, 5]
    key = {"Idempotency-Key": "the same plan"}
    ids = {api.http.post("/v1/jobs", json=simulations(None), headers=key).json()["id"] for _ in range(2)}
    assert len(ids) == 1


def test_equal_plans_are_computed_once_unless_they_draw(api: Live) -> None:
    first, second = api.submit(**body()), api.submit(**body())
    work(api, first)
    assert api.http.get(f"/v1/jobs/{second}").json()["provenance"]["coalesced"]
    api.submit(**simulations(None))
    drawing = api.submit(**simulations(None))
    work(api, drawing)  # it is queued of its own


class OlderClaim(Claim):
    """A claim as workers of the release before make it."""

    @property
    def kinds(self) -> list[Kind]:
        return ["any", "gpu", "attached", "attached-gpu", "long", "long-gpu", "task", "task-gpu"]


def test_a_worker_of_the_release_before_is_given_no_plan(api: Live) -> None:
    waits = OlderClaim("an older worker", waits=True)
    assert api.queue.claim(waits) is None
    job_id = api.submit(**body())
    assert api.queue.leave(waits) is None  # it was not handed over
    assert api.queue.claim(OlderClaim("an older worker")) is None
    work(api, job_id)


@pytest.mark.parametrize(
    ("fields", "lane"),
    [
        ({}, "batch-plan"),
        ({"backend": "gpu"}, "batch-plan-gpu"),
        ({"long": True}, "batch-long-plan"),
        ({"long": True, "backend": "gpu", "priority": "research"}, "research-long-plan-gpu"),
        ({"attached": {"prices": "float64"}}, "batch-plan"),
    ],
)
def test_plans_wait_in_lanes_of_their_own(fields: dict[str, Any], lane: str) -> None:
    request = JobRequest(
        id="job_1", owner="a", operation="plan", params={}, inputs={}, timeout=1, result_ttl=1, plan=True, **fields
    )
    assert request.lane == lane


def test_a_plan_may_have_more_inputs_and_keys_than_other_jobs(api: Live) -> None:
    steps = [
        {"id": f"s{at}", "operation": "sma", "params": {"period": 2}, "inputs": {"close": f"x{at % 50}"}}
        for at in range(200)
    ]
    outputs = {f"o{at}": {"from": f"s{at}.sma", "last": 1} for at in range(200)}
    inputs = {f"x{at}": {"data": [float(at), 1.0]} for at in range(50)}
    whole = {"operation": "plan", "params": {"steps": steps, "outputs": outputs}, "inputs": inputs}
    job_id = api.submit(**whole)
    work(api, job_id)
    result = api.http.get(f"/v1/jobs/{job_id}/result").json()
    assert result["outputs"]["o7"] == [4.0]
    assert len(result["outputs"]) == 200
    whole["inputs"] |= {f"y{at}": {"data": [1.0]} for at in range(1000)}
    assert "inputs has 1050 entries; the limit is 1024" in api.http.post("/v1/jobs", json=whole).text
