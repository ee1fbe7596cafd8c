"""In how many parts workers compute a job: what a submission may ask for, and what `auto` stands for."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.app.health.test_health import report
from tests.waiting import wait_until
from warpdesk_server.app.jobs.width import idle_for_long
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.workers.queue.reports import WorkerReport

PATHS = 1 << 23
MONTE_CARLO: dict[str, Any] = {
    "operation": "monte_carlo",
    "params": {
        "payoff": "asian_arithmetic", "option": "call", "spot": 100.0, "strike": 100.0, "volatility": 0.2,
        "maturity": 1.0, "paths": PATHS, "steps": 252,
    },
}  # fmt: skip
SERIES = {"data": [1.0, 2.0, 3.0, 4.0]}
SMA: dict[str, Any] = {"operation": "sma", "params": {"period": 2}, "inputs": {"prices": SERIES}}


@pytest.fixture
def catalogue(serve_api: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **settings: serve_api(operations=OPERATIONS, **settings)


def shards(api: Any, **body: Any) -> int:
    record = api.queue.get(api.submit(**body))
    assert record is not None
    count: int = record.request.shards
    return count


def worker(name: str, **details: Any) -> WorkerReport:
    given = {"takes": "both", "host": name, **details}
    return report(name, given.pop("state", "ready"), given.pop("backend", "cpu")).model_copy(update=given)


def test_a_job_is_cut_into_as_many_parts_as_were_asked_for_and_as_it_has(catalogue: Callable[..., Any]) -> None:
    with catalogue() as api:
        assert shards(api, **MONTE_CARLO, width=4) == 4
        assert shards(api, **MONTE_CARLO, width=1) == 1
        assert shards(api, **{**SMA, "inputs": {"prices": {"data": [SERIES["data"]] * 3}}}, width=8) == 3, "its assets"
        assert shards(api, **SMA, width=1) == 1
        shown = api.http.get(f"/v1/jobs/{api.submit(**MONTE_CARLO, width=5)}").json()["shards"]
        assert shown == {"count": 5, "cpu": None, "gpu": None}
        assert api.http.get(f"/v1/jobs/{api.submit(**SMA)}").json()["shards"] is None


@pytest.mark.parametrize("width", [0, 257, -1, 1.5, "two", True, None])
def test_a_width_that_is_none_is_refused(api: Any, width: object) -> None:
    answer = api.http.post("/v1/jobs", json={**MONTE_CARLO, "width": width})
    assert answer.status_code == 422, answer.text
    (problem,) = answer.json()["errors"]
    assert problem["pointer"] == "/width"
    assert "auto or a whole number from 1 to 256" in problem["detail"]


def test_a_width_for_a_job_that_one_worker_computes_is_refused(catalogue: Callable[..., Any]) -> None:
    """One series is not cut, and what is private stays on one host."""
    noise = OPERATIONS["dp_noise"].example
    private: dict[str, Any] = {"operation": "dp_noise", "params": noise.params, "inputs": noise.inputs}
    with catalogue() as api:
        for body in (SMA, private):
            answer = api.http.post("/v1/jobs", json={**body, "width": 2})
            assert answer.status_code == 422, answer.text
            name = body["operation"]
            why = "dp_noise is always computed by one worker"
            why = why if name == "dp_noise" else "this job of sma has one part, by its size or its parameters"
            sentence = f"width 2: {why}; leave it out, or give 1"
            assert sentence in answer.text
        assert api.queue.length() == 0


def test_auto_cuts_a_long_job_for_the_workers_that_are_idle(catalogue: Callable[..., Any]) -> None:
    with catalogue() as api:
        admission = api.app.state.services.admission
        assert shards(api, **MONTE_CARLO) == 1, "nobody is there"
        api.queue.cancel(api.submit(**MONTE_CARLO))
        for name in ("one", "two", "three"):
            api.queue.report(worker(name), ttl=60)
        wait_until(lambda: "long" in admission.served and admission.waiting_long == 0)
        first = api.submit(**{**MONTE_CARLO, "params": {**MONTE_CARLO["params"], "strike": 101.0}})
        assert api.queue.get(first).request.shards == 3
        assert shards(api, **SMA) == 1
        few = {**MONTE_CARLO["params"], "paths": 20_000}
        assert shards(api, **{**MONTE_CARLO, "params": few}) == 1, "a part would be shorter than it takes to claim it"


@pytest.mark.parametrize(
    ("workers", "idle"),
    [
        ([], 0),
        ([worker("a"), worker("b")], 2),
        ([worker("a", takes="quick"), worker("b", takes="tasks"), worker("c", takes="")], 0),
        # Its companion computes something.
        ([worker("a", pid=7), worker("a", takes="long", pid=8, started_by=7, state="busy"), worker("b")], 1),
        ([worker("a", pid=7), worker("a", takes="long", pid=8, started_by=7), worker("b")], 2),
        # What is quick is no hindrance.
        ([worker("a", state="busy")], 1),
        ([worker("a", takes="all", state="busy"), worker("b", takes="all")], 1),
        # Of one host: all cores twice, and half of them twice.
        ([worker("a", pid=1), worker("a", pid=2)], 1),
        ([worker("a", pid=1, cpu_share=0.5), worker("a", pid=2, cpu_share=0.5)], 2),
        ([worker("a", pid=1, backend="gpu"), worker("a", pid=2, backend="gpu"), worker("a", pid=3)], 2),
    ],
)
def test_idle_workers_are_those_that_could_compute_something_long_side_by_side(
    workers: list[WorkerReport], idle: int
) -> None:
    assert idle_for_long(workers, [worker.name for worker in workers if worker.state == "busy"]) == idle
