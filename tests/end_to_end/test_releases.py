"""A budget from its creation to its end, over HTTP, with real workers; and nothing private anywhere else."""

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Service, serve
from tests.waiting import wait_until
from tests.workers.parent.test_private_jobs import everything
from warpdesk_server.benchmarks.postgres import NoPostgres, postgres
from warpdesk_server.service import redis_server
from warpdesk_server.workers.queue.jobs import connect

pytestmark = pytest.mark.timeout(500)  # the first service of a run compiles

MARKED = 271828.18284590452  # a value nobody else has
BOUND = "500000"


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=60) as http:
        yield http


def new_budget(http: httpx.Client, dataset: str, **fields: Any) -> str:
    body = {"name": "n", "dataset": dataset, "accountant": "pure", "neighbouring": "add_remove", "epsilon": "1"}
    budget: str = http.post("/v1/budgets", json={**body, **fields}).json()["id"]
    return budget


def release(http: httpx.Client, budget: str, key: str, values: Any = (MARKED, 1.0), **params: Any) -> httpx.Response:
    request = {
        "mechanism": "discrete_laplace",
        "mode": "records",
        "epsilon": "0.25",
        "clip": {"norm": "linf", "bound": BOUND},
        "neighbouring": "add_remove",
        "budget": budget,
        **params,
    }
    body = {
        "operation": "dp_noise",
        "params": request,
        "inputs": {"values": {"data": list(values), "dtype": "float64"}},
    }
    return http.post("/v1/jobs", json=body, headers={"Idempotency-Key": key, "Prefer": "wait=30"})


def test_a_release_says_what_it_was_charged_and_is_the_same_whenever_it_is_asked_for(http: httpx.Client) -> None:
    budget = new_budget(http, "once")
    first = release(http, budget, "once-1").json()
    again = release(http, budget, "once-1").json()
    assert first["status"] == again["status"] == "succeeded", first
    assert first["result"] == again["result"]
    receipt = first["provenance"]["charge"]
    assert receipt["budget"] == budget
    found = http.get(f"/v1/budgets/{budget}").json()
    assert (found["head"], found["spent"]["epsilon"]) == (receipt["head"], "0.25")
    charge = http.get(f"/v1/charges/{receipt['id']}").json()
    assert (charge["state"], charge["job"], charge["head"]) == ("released", first["id"], receipt["head"])


def test_two_charges_for_the_same_data_have_noise_of_their_own(http: httpx.Client) -> None:
    budget = new_budget(http, "twice")
    sums = [release(http, budget, f"twice-{at}").json()["result"]["outputs"]["noisy"] for at in range(3)]
    assert len({str(noisy) for noisy in sums}) == 3


def test_the_answer_of_a_charge_is_gone_with_its_result_and_is_never_made_again(http: httpx.Client) -> None:
    budget = new_budget(http, "gone")
    job = release(http, budget, "gone-1").json()
    assert http.delete(f"/v1/jobs/{job['id']}").status_code == 204
    again = release(http, budget, "gone-1")
    assert again.json()["id"] == job["id"]
    assert http.get(f"/v1/jobs/{job['id']}/result").status_code == 410
    assert http.get(f"/v1/budgets/{budget}").json()["entries"] == 1


def test_a_job_that_fails_at_its_worker_stays_spent_since_its_noise_was_drawn(http: httpx.Client) -> None:
    budget = new_budget(http, "far out")
    # An aggregate far beyond its grid is seen by the worker alone.
    params = {"mode": "aggregate", "sensitivity": {"norm": "l1", "value": "0.001"}, "clip": None, "neighbouring": None}
    failed = release(http, budget, "far-1", [MARKED * 1e18], **params).json()
    assert failed["status"] == "failed", failed
    charge = http.get(f"/v1/budgets/{budget}/history").json()["entries"][0]["charge"]
    # On a busy machine the ledger is told by the next look after charges, and not with the answer.
    wait_until(lambda: http.get(f"/v1/charges/{charge}").json()["state"] == "failed")
    assert http.get(f"/v1/budgets/{budget}").json()["spent"]["epsilon"] == "0.25"


def test_no_value_and_no_noise_is_anywhere_but_in_the_answer(service: Service, http: httpx.Client) -> None:
    budget = new_budget(http, "private")
    done = release(http, budget, "private-1").json()
    noisy = float(done["result"]["outputs"]["noisy"][0])
    over = release(http, budget, "private-2", epsilon="0.9")
    wrong = release(http, budget, "private-3", clip={"norm": "linf", "bound": "-1"})
    far = release(http, budget, "private-4", [MARKED, 2.0**1023], epsilon="1e-9")
    assert (over.status_code, wrong.status_code) == (409, 422)
    texts = [over.text, wrong.text, far.text if far.status_code >= 400 else "", service.log.read_text()]
    texts += [http.get(path).text for path in ("/metrics", "/gpu-health", "/performance-metrics", "/health")]
    texts += [http.get(f"/v1/budgets/{budget}{path}").text for path in ("", "/history", "/verify")]
    kept = "\n".join(texts).encode()
    kept += b"".join(file.read_bytes() for file in service.home.glob("ledger.db*"))
    with connect(redis_server.url(service.home)) as redis:
        kept += everything(redis)
    kept += b"".join(file.read_bytes() for file in (service.home / "redis").rglob("*") if file.is_file())
    assert done["id"].encode() in kept  # what is looked through holds the job
    noise = noisy - (MARKED + 1.0)
    secrets = [b"271828.18", struct.pack("<d", MARKED), f"{noisy:.6f}".encode()[:-3], struct.pack("<d", noisy)]
    secrets += [f"{abs(noise):.4f}".encode()[:-1], struct.pack("<d", noise)]
    assert [secret for secret in secrets if secret in kept] == []


def test_a_service_keeps_its_budgets_in_postgresql_too() -> None:
    try:
        with (
            postgres("fsync=off") as url,
            tempfile.TemporaryDirectory(prefix="warpdesk-test-") as home,
            serve(
                Path(home) / "home",
                WARPDESK_LEDGER_URL=url,
                WARPDESK_LEDGER_ANCHOR_URL=url.replace("/postgres?", "/template1?"),  # another that every server has
            ) as running,
            httpx.Client(base_url=running.url, timeout=60) as http,
        ):
            budget = new_budget(http, "elsewhere")
            first = release(http, budget, "elsewhere-1").json()
            again = release(http, budget, "elsewhere-1").json()
            assert first["status"] == "succeeded", first
            assert first["result"] == again["result"]
            assert http.get(f"/v1/budgets/{budget}").json()["spent"]["epsilon"] == "0.25"
            assert http.get(f"/v1/budgets/{budget}/verify").json()["valid"]
            assert not list((Path(home) / "home").glob("ledger.[da]*"))
    except NoPostgres as reason:
        pytest.skip(f"no PostgreSQL: {reason}")
