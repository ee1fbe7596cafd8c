"""Why a task waits, as its job says."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.app.computations import WITH_TASKS
from tests.app.conftest import SCALE, Live, live
from tests.waiting import wait_until
from warpdesk_server.app.jobs.waiting import waiting_reason
from warpdesk_server.workers.queue.records import Claim
from warpdesk_server.workers.queue.reports import DeviceReport, WorkerReport


def worker(host: str, takes: str = "tasks", state: str = "ready", **tasks: tuple[str, ...]) -> WorkerReport:
    own = {"pid": 3, "started_by": 1} if takes == "tasks" else {"pid": 1}  # one for tasks is of the other on its host
    values = {**own, "child_pid": 2, "device": None, "started_at": 0.0, "reported_at": 0.0}
    reported = None if tasks == {"nothing": ()} else tasks
    return WorkerReport.model_validate(
        {"name": f"{host}-{takes}", "host": host, "takes": takes, "state": state, "tasks": reported, **values}
    )


ILL = worker("a", "both", nothing=()).model_copy(update={"task_fault": "the worker of tasks ended with exit code 1"})
LACKING = "no worker can run train: on a it needs torch, onnx, which the environment lacks"


@pytest.mark.parametrize(
    ("workers", "reason"),
    [
        ([], "no worker takes tasks"),
        ([worker("a", "quick"), worker("b", "long"), worker("c", "all")], "no worker takes tasks"),
        ([worker("a", train=("torch", "onnx"))], LACKING),
        ([worker("a", train=("torch", "onnx")), worker("a", "both", train=("torch", "onnx"))], LACKING),
        ([worker("a", train=("torch", "onnx")), worker("b", simulate=())], f"{LACKING}; on b it is not known"),
        ([worker("a", train=("torch",)), worker("b", train=())], None),
        ([worker("a", train=("torch",)), worker("b", "both", nothing=())], None),
        ([worker("a", state="busy", train=())], "each worker that can run train is busy with a task"),
        ([worker("a", state="busy", train=()), worker("b", train=())], None),
        ([worker("a", state="busy", nothing=()), worker("a", "both", nothing=())],
         "each worker that can run train is busy with a task"),
        ([worker("a", "both", nothing=())], None),
        ([worker("a", state="busy", train=()), worker("a", "both", train=()), worker("b", "both", nothing=())], None),
        ([ILL], "no worker can run train: on a the worker of tasks ended with exit code 1"),
        ([ILL, worker("a", train=())], None),
        ([ILL, worker("b", "both", nothing=())], None),
    ],
)  # fmt: skip
def test_a_task_says_why_it_waits(workers: Sequence[WorkerReport], reason: str | None) -> None:
    assert waiting_reason("train", workers) == reason


def test_a_task_that_asks_for_a_gpu_says_that_there_is_none() -> None:
    gpu = DeviceReport(backend="gpu", name="H200")
    workers = [worker("a", "both", nothing=())]
    assert waiting_reason("train", workers, on_gpu=True) == "it asks for a GPU, and no worker that takes tasks has one"
    workers.append(worker("b", "both", nothing=()).model_copy(update={"device": gpu}))
    assert waiting_reason("train", workers, on_gpu=True) is None


@pytest.fixture
def api(tmp_path: Path, redis_url: str) -> Iterator[Live]:
    with live(tmp_path, redis_url, WITH_TASKS) as running:
        yield running


def shown(api: Live, job_id: str) -> Any:
    return api.http.get(f"/v1/jobs/{job_id}").json()["waiting_reason"]


def test_a_job_shows_it_while_it_waits_and_is_a_task(api: Live) -> None:
    job_id, quick = api.submit(operation="chain", params={"steps": 3}, seed=7), api.submit(**SCALE)
    wait_until(lambda: shown(api, job_id) == "no worker takes tasks")
    assert shown(api, quick) is None
    api.queue.report(worker("a", chain=("torch",)), 60.0)
    wait_until(
        lambda: shown(api, job_id) == "no worker can run chain: on a it needs torch, which the environment lacks"
    )
    again = api.http.post("/v1/jobs", json={"operation": "chain", "params": {"steps": 3}}).json()
    assert again["waiting_reason"] == shown(api, job_id), "as it is submitted"
    api.queue.report(worker("b", chain=()), 60.0)
    wait_until(lambda: shown(api, job_id) is None)
    assert api.queue.claim(Claim("a worker", takes="tasks")) is not None
    api.http.post(f"/v1/jobs/{again['id']}/pause")
    api.queue.unregister("b-tasks")
    assert shown(api, job_id) is shown(api, again["id"]) is None, "one runs, and its owner has the other wait"
