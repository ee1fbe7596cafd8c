"""kill -9 at every step of a charge, in the real processes: one charge, one answer, and the bytes it would have had."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest

from tests.conftest import ROOT, free_port
from tests.workers.conftest import OWNER, Desk
from tests.workers.parent.test_charges import Till, noisy
from warpdesk.models import State
from warpdesk_server.privacy.budgets import NewBudget

WORKER_STEPS = ("before the claim", "after the claim", "before the release", "after the release", "after the finish")
API_STEPS = ("before the charge", "after the charge", "after the queue")
LONG = 200  # of `make chaos`, all steps together


@pytest.mark.timeout(600)  # a busy machine starts processes slowly
def test_a_worker_killed_at_any_step_costs_a_release_time_and_nothing_else(desk: Desk) -> None:
    till = Till(desk)
    for step in WORKER_STEPS:
        crash_a_worker(desk, till, step)
    assert till.ledger.budgets.verify(till.budget).ok
    till.engine.dispose()


@pytest.mark.timeout(600)
def test_an_api_killed_at_any_step_charges_a_request_once(desk: Desk) -> None:
    for step in API_STEPS:
        crash_an_api(desk, step)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_two_hundred_kills_at_all_steps(desk: Desk) -> None:
    till = Till(desk)
    for at in range(LONG):
        if at % 10 == 0:  # ten releases of a tenth are all that a budget holds
            new = NewBudget("n", f"d{at}", "pure", "add_remove", OWNER, epsilon="1")
            till.budget = till.ledger.budgets.open(new).id
        steps = WORKER_STEPS + API_STEPS
        step = steps[at % len(steps)]
        if step in API_STEPS:
            crash_an_api(desk, step)
        else:
            crash_a_worker(desk, till, step)
    till.engine.dispose()


def crash_a_worker(desk: Desk, till: Till, step: str) -> None:
    job = till.submit()
    expected = _answer_by(till, job)
    mark = desk.marker(f"mark {job.id}")
    with _process(desk, "tests.workers.parent.mortal", step, str(mark)) as worker:
        desk.until(lambda: worker.poll() is not None, f"the worker outlived {step}")
    assert (worker.returncode, mark.exists()) == (-9, True), desk.log()
    # The next worker finds what the dead one left, if it left anything.
    with _process(desk, "warpdesk_server.workers.parent.main"):
        record = desk.wait(job.id)
    assert record.state is State.SUCCEEDED, (step, record)
    assert noisy(desk, record.result) == expected, step
    charge = till.of(job)
    assert charge.state == "released", step
    assert [entry.kind for entry in till.ledger.budgets.history(till.budget, charge.seq - 1, 1)] == ["charge"]


def _answer_by(till: Till, job: Any) -> list[int]:
    """What the release has to be: the sum of the secret and the noise of its one key. To ask for the key is a claim, so
    the ledger is told the truth; it may be asked as often as wanted."""
    key = till.key(job)
    return [1234567890129 + int(part) for part in np.frombuffer(key, np.uint64).astype(np.int64) >> 32]


def crash_an_api(desk: Desk, step: str) -> None:
    mark, port = desk.marker(f"mark api {time.monotonic_ns()}"), free_port()
    url = f"http://127.0.0.1:{port}"
    with _api(desk, step, str(mark), port) as api, httpx.Client(base_url=url, timeout=30) as http:
        dataset = f"of {mark.name}"
        new = {"name": "n", "dataset": dataset, "accountant": "pure", "neighbouring": "add_remove", "epsilon": "1"}
        budget = http.post("/v1/budgets", json=new).json()["id"]
        with pytest.raises(httpx.TransportError):
            _release(http, budget, mark.name)
        desk.until(lambda: api.poll() is not None, f"the API outlived {step}")
    assert (api.returncode, mark.exists()) == (-9, True)
    # The mark is there: this one lives. The caller sends the same request again, as it would.
    with _api(desk, step, str(mark), port), httpx.Client(base_url=url, timeout=30) as http:
        first, second = _release(http, budget, mark.name), _release(http, budget, mark.name)
        assert first.json()["id"] == second.json()["id"], step
        with _process(desk, "warpdesk_server.workers.parent.main"):
            record = desk.wait(first.json()["id"])
        assert record.state is State.SUCCEEDED, (step, record)
        found = http.get(f"/v1/budgets/{budget}").json()
        assert (found["spent"]["epsilon"], found["entries"]) == ("0.1", 1), step
        assert http.get(f"/v1/budgets/{budget}/verify").json()["valid"]


def _release(http: httpx.Client, budget: str, key: str) -> httpx.Response:
    body = {
        "operation": "whisper",
        "params": {"budget": budget},
        "inputs": {"secret": {"data": [1, 2], "dtype": "int64"}},
    }
    return http.post("/v1/jobs", json=body, headers={"Idempotency-Key": key})


@contextmanager
def _process(desk: Desk, module: str, *arguments: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WARPDESK_")}
    with (desk.home / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={
                **clean,
                "WARPDESK_HOME": str(desk.home),
                "WARPDESK_REDIS_URL": desk.url,
                "WARPDESK_OPERATIONS": "tests.workers.operations:PAID",
                "WARPDESK_DEVICE": "cpu",
                "WARPDESK_RETRY_DELAYS": "[]",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@contextmanager
def _api(desk: Desk, step: str, mark: str, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    with _process(desk, "tests.workers.parent.mortal", step, mark, PORT=str(port)) as process:

        def answers() -> bool:
            try:
                return httpx.get(f"http://127.0.0.1:{port}/livez").status_code == 200
            except httpx.TransportError:
                return False

        desk.until(answers, "the API did not start")
        yield process
