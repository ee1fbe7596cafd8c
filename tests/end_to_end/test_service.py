"""A whole service over HTTP: every operation answers, and what is killed, missing or restarted costs no job."""

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from examples import demo, prices
from tests.conftest import Service, processes_of, serve, wait_until_ready
from tests.waiting import wait_until
from warpdesk import Client
from warpdesk_server.kernels.catalogue import CATALOGUE, OPERATIONS
from warpdesk_server.kernels.indicators.declared import DECLARED
from warpdesk_server.service import redis_server
from warpdesk_server.service.processes import module, spawn, stop
from warpdesk_server.service.redis_server import RedisServer

pytestmark = pytest.mark.timeout(500)  # seconds; a first start compiles every operation


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="warpdesk-test-"))
    yield folder
    shutil.rmtree(folder)


def answer(url: str, operation: str, **changes: Any) -> dict[str, Any]:
    """Post the example of an operation as the catalogue shows it, wait, return the job with its result."""
    body = httpx.get(f"{url}/v1/operations/{operation}").json()["example"] | changes
    response = httpx.post(f"{url}/v1/jobs", json=body, headers={"Prefer": "wait=55"}, timeout=60)
    assert response.status_code == 200, response.text
    job: dict[str, Any] = response.json()
    return job


def test_a_start_prints_what_a_person_needs_and_no_line_of_info(service: Service, client: Client) -> None:
    wait_until(lambda: re.search(r"^Device: \S", service.log.read_text(), re.M), service.log.read_text)
    printed = service.log.read_text()
    assert f"Warpdesk is starting at {service.url}, its state is in {service.home}\n" in printed
    assert f"Ready. Documentation to click through: {service.url}/docs\n" in printed
    assert " INFO " not in printed


@pytest.mark.parametrize("operation", CATALOGUE)
def test_the_example_of_each_operation_runs_as_shown(service: Service, client: Client, operation: str) -> None:
    job = answer(service.url, operation)
    assert (job["status"], job["error"], job["attempt"]) == ("succeeded", None, 1)
    outputs = job["result"]["outputs"]
    shown = CATALOGUE[operation]
    declared = {output.name: output.kind for output in shown.outputs_of(shown.example.params)}
    assert list(outputs) == list(declared)
    assert {name for name, value in client.result(job["id"]).outputs.items() if isinstance(value, np.ndarray)} == {
        name for name, kind in declared.items() if kind == "array"
    }
    how = job["result"]["provenance"]
    assert how["backend"] in ("cpu", "gpu")
    assert how["backend"] == "gpu" or how["fallback_reason"]
    assert (how["compute_seconds"] is None) == (shown.randomness == "private")


def test_the_demo_answers_every_operation_on_real_prices_and_leaves_nothing_behind(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPDESK_TEST_RUN", str(home))
    results = demo.main(home / "state", home / "demo.png")
    assert [pid for pid in processes_of(home) if pid != os.getpid()] == []
    declared = {operation.name for operation in DECLARED if operation.counted_as} - {"macd"}  # they share one loop
    assert list(results) == [name for name in OPERATIONS if name not in declared]
    close = prices.sp500().close
    np.testing.assert_allclose(results["sma"]["sma"][-1], close[-200:].mean(), rtol=1e-12)
    np.testing.assert_allclose(
        results["bollinger"]["upper"][-1], close[-20:].mean() + 2 * close[-20:].std(), rtol=1e-12
    )
    assert 0 < results["rsi"]["rsi"][-1] < 50, "the index fell in December 2018"
    printed = capsys.readouterr().out
    assert "equals the plain sum" in printed
    assert all(name in printed for name in results)
    assert (home / "demo.png").read_bytes().startswith(b"\x89PNG")


# A simulation long enough to be caught in the middle: a quarter of a billion path steps.
LONG: dict[str, Any] = {
    "payoff": "european",
    "option": "call",
    "spot": 100.0,
    "strike": 100.0,
    "volatility": 0.2,
    "maturity": 1.0,
    "steps": 500,
    "paths": 1_000_000,
}


@pytest.mark.parametrize("victim", ["child_pid", "pid"])
def test_a_job_whose_worker_is_killed_is_answered_with_the_same_bytes(
    service: Service, client: Client, victim: str
) -> None:
    undisturbed = client.run("monte_carlo", seed=7, timeout=120, **LONG)
    job = client.submit("monte_carlo", seed=7, **LONG)
    wait_until(lambda: client.job(job).status == "running")
    [worker] = [each for each in httpx.get(f"{service.url}/gpu-health").json()["workers"] if each["takes"] == "long"]
    os.kill(worker[victim], signal.SIGKILL)
    again = client.result(job, timeout=120)
    assert again.provenance.attempt == 2
    assert again.outputs == undisturbed.outputs


def test_a_killed_api_is_started_again_and_still_knows_its_jobs(service: Service, client: Client) -> None:
    job = client.run("matmul", a=[[1.0, 2.0]], b=[[3.0], [4.0]]).job
    marked = processes_of(service.home)
    [api] = [pid for pid, command in marked.items() if "warpdesk_server.service.api" in command]
    os.kill(api, signal.SIGKILL)
    wait_until(lambda: api not in processes_of(service.home))
    wait_until_ready(service)
    assert client.result(job)["product"].tolist() == [[11.0]]


def test_a_killed_redis_is_started_again_with_every_job_it_acknowledged(service: Service, client: Client) -> None:
    job = client.run("matmul", a=[[1.0, 2.0]], b=[[3.0], [4.0]]).job
    [redis] = [pid for pid, command in processes_of(service.home).items() if "redis.sock" in command]
    os.kill(redis, signal.SIGKILL)
    wait_until(lambda: httpx.get(f"{service.url}/readyz").status_code != 200 or redis not in processes_of(service.home))
    wait_until_ready(service)
    assert client.result(job)["product"].tolist() == [[11.0]]
    assert client.run("matmul", a=[[2.0]], b=[[3.0]], timeout=60)["product"].tolist() == [[6.0]]


def test_without_redis_the_api_says_so_at_once_and_recovers_when_it_comes(home: Path) -> None:
    absent = RedisServer(home / "redis-home")
    with serve(home / "service-home", ready=False, WARPDESK_REDIS_URL=absent.url) as service:
        wait_until(lambda: _answers(service))
        refused = httpx.post(f"{service.url}/v1/jobs", json=_example("matmul"), timeout=30)  # its own limit is less
        assert (refused.status_code, refused.json()["code"]) == (503, "queue-unavailable")
        assert refused.json()["retryable"] is True
        assert int(refused.headers["Retry-After"]) >= 1
        assert httpx.get(f"{service.url}/readyz").status_code == 503
        with absent:
            wait_until_ready(service)
            assert answer(service.url, "matmul")["status"] == "succeeded"


def _answers(service: Service) -> bool:
    try:
        return httpx.get(f"{service.url}/livez").status_code == 200
    except httpx.TransportError:
        return False


def _example(operation: str) -> dict[str, Any]:
    shown = CATALOGUE[operation]
    return {"operation": operation, "params": shown.example.params, "inputs": shown.example.inputs}


def test_a_restart_keeps_queued_jobs_and_results(home: Path) -> None:
    state = home / "state"
    with serve(state, "--no-worker", ready=False) as service:
        wait_until(lambda: _answers(service))
        with Client(service.url) as client:
            jobs = [client.submit("matmul", a=[[float(n)]], b=[[2.0]]) for n in range(3)]
            assert {job.status for job in client.list()} == {"queued"}
    with serve(state) as service, Client(service.url) as client:
        answers = [client.result(job, timeout=60)["product"].tolist() for job in jobs]
        assert answers == [[[0.0]], [[2.0]], [[4.0]]]
    with serve(state, "--no-worker", ready=False) as service:
        wait_until(lambda: _answers(service))
        with Client(service.url) as client:
            assert [client.result(job)["product"].tolist() for job in jobs] == answers
            assert [job.id for job in client.list()] == [job.id for job in reversed(jobs)]


def test_a_worker_started_by_hand_serves_an_api_without_one(home: Path) -> None:
    state = home / "state"
    with serve(state, "--no-worker", ready=False) as service:
        wait_until(lambda: _answers(service))
        assert httpx.get(f"{service.url}/readyz").status_code == 503
        where = {"WARPDESK_HOME": str(state), "WARPDESK_REDIS_URL": redis_server.url(state)}
        command, needed = module("warpdesk", "worker")
        # Started in another folder, one that has an `app` of its own.
        (home / "app").mkdir()
        worker = spawn(command, env={**os.environ, **needed, **where}, cwd=home, log=home / "worker.log")
        try:
            wait_until_ready(service)
            with Client(service.url) as client:
                assert client.run("matmul", a=[[2.0]], b=[[3.0]], timeout=60)["product"].tolist() == [[6.0]]
            worker.terminate()
            assert worker.wait(30) == 0, (home / "worker.log").read_text()
        finally:
            stop(worker)


def test_a_request_that_waits_when_the_service_stops_is_told_where_its_job_is(home: Path) -> None:
    with serve(home / "state", "--no-worker", ready=False) as service:
        wait_until(lambda: _answers(service))
        with ThreadPoolExecutor(1) as pool:
            body, wait = _example("matmul"), {"Prefer": "wait=50"}
            waiting = pool.submit(httpx.post, f"{service.url}/v1/jobs", json=body, headers=wait, timeout=60)
            wait_until(lambda: httpx.get(f"{service.url}/v1/jobs").json()["jobs"])
            service.process.terminate()
            response = waiting.result(60)
        assert response.status_code == 202
        assert response.json()["status"] == "queued"


def test_a_killed_service_takes_its_children_along(home: Path) -> None:
    running = serve(home / "state")
    with running as service:
        assert len(processes_of(service.home)) >= 5, "the service, Redis, the API, a worker and its child"
        service.process.kill()
        # Leaving the block asserts that nothing with this home is alive.


EMULATED = {"WARPDESK_DEVICE": "tests.cudasim.device:EmulatedDevice", "WARPDESK_AUTO": "gpu"}


@pytest.fixture(scope="module")
def emulated() -> Iterator[Service]:
    """A service whose device is the emulated GPU: the same kernels, loader and launch code, run on the CPU."""
    folder = Path(tempfile.mkdtemp(prefix="warpdesk-test-"))
    with serve(folder, **EMULATED) as running:
        yield running
    shutil.rmtree(folder)


CPU_ONLY = [name for name, operation in CATALOGUE.items() if not operation.gpu]


@pytest.mark.parametrize("operation", CPU_ONLY)
def test_a_job_that_asks_for_the_gpu_is_refused_where_its_operation_has_none(emulated: Service, operation: str) -> None:
    body = httpx.get(f"{emulated.url}/v1/operations/{operation}").json()["example"] | {"backend": "gpu"}
    reply = httpx.post(f"{emulated.url}/v1/jobs", json=body)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid-request")
    assert f"{operation} has no GPU implementation" in reply.text


@pytest.mark.parametrize("operation", [name for name in CATALOGUE if name not in CPU_ONLY])
def test_a_job_that_asks_for_the_gpu_runs_there_and_says_so(
    service: Service, emulated: Service, operation: str
) -> None:
    seed = {"seed": 7} if CATALOGUE[operation].randomness == "seed" else {}
    job = answer(emulated.url, operation, backend="gpu", **seed)
    assert (job["status"], job["error"]) == ("succeeded", None)
    how = job["result"]["provenance"]
    assert (how["backend"], how["fallback_reason"]) == ("gpu", None)
    if CATALOGUE[operation].randomness != "private":
        numbers = _numbers(job["result"]["outputs"])
        on_cpu = _numbers(answer(service.url, operation, backend="cpu", **seed)["result"]["outputs"])
        np.testing.assert_allclose(numbers, on_cpu, rtol=1e-12, equal_nan=True)


def _numbers(value: Any) -> list[float]:
    """Every number of a result in its order, None as NaN; words are left out, they name what ran."""
    if isinstance(value, dict):
        return [number for part in value.values() for number in _numbers(part)]
    if isinstance(value, list):
        return [number for part in value for number in _numbers(part)]
    if value is None:
        return [float("nan")]
    return [] if isinstance(value, str) else [float(value)]


def test_a_gpu_job_is_refused_where_no_worker_has_a_gpu(service: Service, client: Client) -> None:
    worker = httpx.get(f"{service.url}/gpu-health").json()["workers"][0]
    if worker["device"]["backend"] == "gpu":
        pytest.skip("this machine has a GPU")
    refused = httpx.post(f"{service.url}/v1/jobs", json=_example("matmul") | {"backend": "gpu"})
    assert (refused.status_code, refused.json()["code"]) == (503, "no-gpu-worker")
    assert worker["device"]["reason"] in refused.json()["detail"]


def test_device_memory_that_runs_out_moves_the_job_to_the_cpu_and_the_answer_says_why(home: Path) -> None:
    with serve(home / "state", **EMULATED, STAND_IN_FAULTS="oom@1-2") as service:
        first, second = (answer(service.url, "monte_carlo", seed=7)["result"] for _ in range(2))
    assert first["provenance"]["backend"] == "cpu"
    assert "out of memory" in first["provenance"]["fallback_reason"]
    assert "3221225472" in first["provenance"]["fallback_reason"], "the bytes are named"
    assert (second["provenance"]["backend"], second["provenance"]["fallback_reason"]) == ("gpu", None)
    assert first["outputs"] == second["outputs"], "the same paths on either"
