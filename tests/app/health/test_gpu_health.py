"""The routes of health with a real worker and a played driver: they report all readings and never wait for it."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.conftest import Live, live
from tests.conftest import ROOT
from tests.stand_ins.nvml import A100
from tests.waiting import wait_until
from tests.workers.conftest import Desk
from tests.workers.operations import OPERATIONS
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.keys import WORKERS, worker_key

SCRIPT = ROOT / "tests" / "workers" / "gpu" / "nvml" / "a100.json"
ROUTES = ("/livez", "/readyz", "/health", "/gpu-health", "/gpu-memory")


@pytest.fixture
def watched(redis_url: str, tmp_path: Path) -> Iterator[tuple[Live, Path]]:
    """An API with a worker on a stand-in for a GPU, and the script that plays the driver."""
    script = tmp_path / "script.json"
    script.write_text(SCRIPT.read_text())
    with live(tmp_path / "api", redis_url, OPERATIONS) as api:
        desk = Desk(redis_url, tmp_path / "worker", api.queue, api.store)
        desk.home.mkdir()
        try:
            desk.start_worker(
                WARPDESK_DEVICE=f"tests.workers.several:NumberedDevice@{A100}",
                STAND_IN_NVML=str(script),
                WARPDESK_OPERATIONS="tests.workers.operations:SOUND",
                WARPDESK_PRICES='{"paper": 1.5}',
            )
            yield api, script
        finally:
            desk.close()


def device(api: Live, path: str = "/gpu-health") -> dict[str, Any]:
    (found,) = api.http.get(path).json()["devices"]
    return dict(found)


def play(script: Path, **first_device: Any) -> None:
    played = json.loads(SCRIPT.read_text())
    played["moments"][0]["devices"][0] |= first_device
    new = script.with_suffix(".new")
    new.write_text(json.dumps(played))
    new.replace(script)


def test_no_route_of_health_waits_for_a_driver_that_hangs_and_all_tell_what_was_known_before(
    watched: tuple[Live, Path],
) -> None:
    api, script = watched
    wait_until(lambda: device(api, "/gpu-memory")["process_bytes"] is not None)
    health, memory = device(api), device(api, "/gpu-memory")
    play(script, nvmlDeviceGetMemoryInfo={"hang": True})
    wait_until(lambda: device(api)["driver"]["hung_since"] is not None)
    hung = device(api)
    waited: list[float] = []
    for _ in range(10):
        for route in ROUTES:
            began = time.monotonic()
            answer = api.http.get(route)
            waited.append(time.monotonic() - began)
            # After ten seconds of hanging the GPU is left alone, and the worker is not ready for a moment.
            assert answer.status_code in (200, 503), answer.text
    play(script)  # lets the call return, and the worker's thread end
    assert max(waited) < 2.0  # the driver does not return until `play` below
    assert hung["state"] == "degraded"
    assert "the driver hangs: nvmlDeviceGetMemoryInfo has not returned" in hung["reason"]
    assert hung["driver"]["age_seconds"] > health["driver"]["age_seconds"]

    assert (health["state"], health["slot"], health["dollars_per_hour"]) == ("healthy", 0, 1.5)
    assert 0 <= health["canary_age_seconds"] < 120
    driver = {name: value for name, value in health["driver"].items() if name not in ("age_seconds", "energy_joules")}
    assert health["driver"]["energy_joules"] >= 73_482_115
    assert driver == {
        "state": "healthy", "findings": [], "hung_since": None, "index": 0, "mig": None, "driver": "570.172.08",
        "cuda": "12.8", "architecture": "sm_80", "utilization": 1.0, "temperature_celsius": 58,
        "slowdown_temperature_celsius": 89, "power_watts": 318.25, "power_limit_watts": 400.0,
        "sm_clock_hertz": 1_410_000_000, "memory_clock_hertz": 1_593_000_000, "clock_reasons": [],
        "memory_bus_bits": 5120, "peak_memory_bandwidth_bytes_per_second": 2_039_040_000_000, "processes": 1,
        "ecc_corrected": 0, "ecc_uncorrected": 0, "rows_remapped": 0, "rows_remapped_uncorrected": 0,
        "remap_pending": False, "remap_failed": False, "pages_retired": None, "retirement_pending": None,
        "recovery_action": "none", "sm_activity": None, "sm_occupancy": None, "tensor_activity": None,
        "dram_activity": None, "xids": [],
    }  # fmt: skip
    assert {name: value for name, value in memory.items() if name not in ("worker", "workers", "age_seconds")} == {
        "name": f"paper {A100}", "uuid": A100, "memory_bytes": 80 << 30,
        "used_bytes": 0, "held_bytes": 0, "limit_bytes": 16 << 30, "stuck_bytes": 0, "peak_bytes": 0,
        "outside_bytes": 3 << 30, "device_used_bytes": 3 << 30, "device_free_bytes": 81_996_546_048,
        "device_reserved_bytes": 681_574_400, "process_bytes": 3 << 30, "others_bytes": 0, "processes": 1,
    }  # fmt: skip
    assert memory["age_seconds"] < 60


# A worker's report as release 0.5 wrote it.
EARLIER: dict[str, Any] = {
    "name": "host-7-ab12", "host": "host", "pid": 7, "child_pid": 8, "state": "ready",
    "device": {"backend": "gpu", "name": "NVIDIA H200", "reason": None, "architecture": "sm_90",
               "memory_bytes": 150_000_000_000, "driver": "570.172.08", "uuid": "GPU-1", "fault": None},
    "started_at": 1.8e9, "reported_at": 1.8e9, "restarts": 0, "last_fault": None, "failed_examples": [],
    "gpu": {"state": "healthy", "reason": None, "since": 1.8e9, "name": "NVIDIA H200", "uuid": "GPU-1",
            "next_probe": None, "breakers": [], "canary_at": 1.8e9, "call_since": None, "last_fault": None,
            "last_fault_at": None, "faults": {}, "memory": None,
            "driver": {"state": "healthy", "findings": [], "age_seconds": 0.4, "hung_since": None, "xids": [],
                       "reading": {"uuid": "GPU-1", "name": "NVIDIA H200", "index": 0, "mig": None,
                                   "memory_total": 150_000_000_000, "temperature": 40, "power": 120.5,
                                   "clock_reasons": ["idle"], "rows_remapped": 0}}},
    "fallbacks": {},
}  # fmt: skip


@pytest.fixture
def old(api: Live) -> Live:
    with connect(api.redis_url) as redis:
        redis.hset(WORKERS, EARLIER["name"], "")
        redis.set(worker_key(EARLIER["name"]), json.dumps(EARLIER), ex=60)
    return api


def test_a_worker_of_the_release_before_is_told_with_what_it_said(old: Live) -> None:
    gpu = device(old)
    assert (gpu["state"], gpu["slot"], gpu["dollars_per_hour"]) == ("healthy", None, None)
    assert gpu["driver"]["temperature_celsius"] == 40
    assert (gpu["driver"]["energy_joules"], gpu["driver"]["processes"], gpu["driver"]["architecture"]) == (None,) * 3
    assert device(old, "/gpu-memory")["others_bytes"] is None
    assert old.http.get("/readyz").status_code == 200
    assert old.http.get("/metrics").status_code == 200


@pytest.mark.parametrize("odd", [{"state": "hibernating"}, {"gpu": {"state": "molten", "since": 0}}, {"slot": "first"}])
def test_a_worker_of_a_later_release_that_nobody_understands_hides_no_other(old: Live, odd: dict[str, Any]) -> None:
    with connect(old.redis_url) as redis:
        redis.hset(WORKERS, "later", "")
        redis.set(worker_key("later"), json.dumps({**EARLIER, "name": "later", "new": 1, **odd}), ex=60)
    answers: list[httpx.Response] = [old.http.get(route) for route in ROUTES]
    assert [answer.status_code for answer in answers] == [200] * len(ROUTES)
    assert [worker["name"] for worker in old.http.get("/gpu-health").json()["workers"]] == [EARLIER["name"]]
