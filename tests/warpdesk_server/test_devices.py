"""Several GPUs: which workers `warpdesk serve` starts, and a job whose GPU is lost. The driver is played by scripts."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Service, serve
from tests.stand_ins.nvml import play
from tests.waiting import wait_until
from warpdesk_server.service.serve import Options, _devices, _workers
from warpdesk_server.workers.gpu.nvml import gpus

SCRIPTS = Path(__file__).parents[1] / "workers" / "gpu" / "nvml"
STAND_IN = "tests.workers.several:NumberedDevice"
TWO = [f"GPU-a1000000-0000-4000-8000-00000000000{number}" for number in (0, 1)]
SLICES = [f"MIG-0000000{number}-1111-5222-8333-444444444444" for number in (1, 2)]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | Path], None]:
    """Has a script play the driver of a machine on which CuPy is installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    return lambda script: play(monkeypatch, script if isinstance(script, Path) else SCRIPTS / f"{script}.json")


def test_each_gpu_is_named_by_its_uuid_and_each_slice_by_its_own(driver: Callable[[str], None]) -> None:
    driver("two")
    assert _devices({}) == TWO
    assert _devices({"CUDA_VISIBLE_DEVICES": "1"}) == [TWO[1]]
    assert _devices({"CUDA_VISIBLE_DEVICES": ""}) == []
    driver("h100_mig")
    assert _devices({}) == SLICES
    driver("none")
    assert _devices({}) == []


def test_gpus_are_named_where_cupy_could_use_them(
    driver: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver("two")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert _devices({}) == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert _devices({}) == TWO


@pytest.mark.parametrize("setting", ["cpu", "1", TWO[0], f"{STAND_IN}@{TWO[0]}", STAND_IN, ""])
def test_a_device_that_was_told_is_the_only_one(driver: Callable[[str], None], setting: str) -> None:
    driver("two")
    assert _devices({"WARPDESK_DEVICE": setting}) == []
    assert len(_workers(Options(), {"WARPDESK_DEVICE": setting})) == 1


def test_there_is_a_worker_for_each_gpu_and_one_on_the_cpu_or_as_many_as_were_asked_for(
    driver: Callable[[str], None],
) -> None:
    driver("two")
    assert [child.name for child in _workers(Options(), {})] == ["worker 1", "worker 2", "worker 3"]
    assert [child.name for child in _workers(Options(workers=2), {})] == ["worker 1", "worker 2"]
    for own in ({"WARPDESK_AUTO": "gpu"}, {"WARPDESK_TAKES": "long"}):  # nothing may go to the CPU
        assert len(_workers(Options(), own)) == 2
    assert len(_workers(Options(workers=3), {})) == 3
    assert _workers(Options(worker=False), {}) == []
    driver("none")
    assert [child.name for child in _workers(Options(), {})] == ["worker"]


def test_a_driver_that_hangs_leaves_one_worker_to_look_for_itself(
    driver: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpdesk_server.service.serve.gpus", partial(gpus, deadline=0.1))
    played = json.loads((SCRIPTS / "two.json").read_text())
    played["moments"][0]["system"]["nvmlInit"] = {"hang": True}
    path = tmp_path / "script.json"
    path.write_text(json.dumps(played))
    driver(path)
    assert len(_workers(Options(), {})) == 1
    path.write_text((SCRIPTS / "two.json").read_text())  # lets the call return


def test_a_job_whose_gpu_is_lost_runs_on_the_other_one(redis_url: str, tmp_path: Path) -> None:
    with serve(
        tmp_path,
        STAND_IN_NVML=str(SCRIPTS / "two.json"),
        STAND_IN_DEVICES=STAND_IN,
        STAND_IN_FAULTS="lost@1/once",
        WARPDESK_REDIS_URL=redis_url,
        WARPDESK_OPERATIONS="tests.workers.operations:SOUND",
    ) as service:
        workers = wait_until(lambda: ready_workers(service, 3), "three workers are not ready", 90)
        [beside] = [worker for worker in workers if worker["device"]["backend"] == "cpu"]
        assert beside["takes"] == "quick"
        workers.remove(beside)
        assert sorted(worker["device"]["uuid"] for worker in workers) == TWO
        assert sorted(worker["device"]["name"] for worker in workers) == [f"paper {uuid}" for uuid in TWO]
        job_id = enqueue_double(service, redis_url)
        record = wait_until(lambda: final(redis_url, job_id), "the job did not end", 90)
        loser = wait_until(
            lambda: next((w for w in all_workers(service) if w["restarts"]), None), "no worker restarted its child", 90
        )
        assert record.state == "succeeded"
        # The worker on the CPU may have taken it first, before it has seen that others have a GPU.
        assert sum("the device was lost" in reason for reason in reasons(redis_url, job_id)) == 1
        assert record.provenance.backend == "gpu"
        [other] = [w["device"]["name"] for w in workers if w["name"] != loser["name"]]
        assert record.provenance.device == other


def all_workers(service: Service) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{service.url}/gpu-health", timeout=10).json()["workers"]
    return found


def ready_workers(service: Service, count: int) -> list[dict[str, Any]] | None:
    workers = [worker for worker in all_workers(service) if worker["state"] == "ready"]
    return workers if len(workers) == count else None


def enqueue_double(service: Service, redis_url: str) -> str:
    """Submit a job for a GPU by the queue itself: the API offers its own catalogue, not that of the tests."""
    import numpy as np

    from warpdesk_server.workers.queue.jobs import JobQueue, connect
    from warpdesk_server.workers.queue.protocol import JobRequest
    from warpdesk_server.workers.store.spool import SpoolStore

    store = SpoolStore(service.home / "store")
    values = np.array([1.0, 2.0])
    with store.writer("local", "float64", values.shape, 600.0) as writer:
        writer.take(values.tobytes())
        array = writer.commit(has_nan=False, has_inf=False).id
    request = JobRequest(
        id="job_00000001",
        owner="local",
        operation="double",
        params={},
        inputs={"values": array},
        backend="gpu",
        timeout=60.0,
        result_ttl=600.0,
    )
    connection = connect(redis_url)
    JobQueue(connection, store.mac_of).enqueue(request)
    connection.close()
    return request.id


def reasons(redis_url: str, job_id: str) -> list[str]:
    """Why a job was queued again, each time."""
    from warpdesk_server.workers.queue.jobs import JobQueue, connect

    with connect(redis_url) as connection:
        return [event.reason for event in JobQueue(connection).events(job_id) if event.reason]


def final(redis_url: str, job_id: str) -> Any:
    from warpdesk_server.workers.queue.jobs import JobQueue, connect

    connection = connect(redis_url)
    record = JobQueue(connection).get(job_id)
    connection.close()
    return record if record is not None and record.state.final else None
