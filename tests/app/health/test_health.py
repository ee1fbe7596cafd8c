"""Health, metrics, and what the service reports while its Redis or its store fails."""

import asyncio
import concurrent.futures
import errno
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.arrays.test_uploads import NPY, npy
from tests.app.computations import COMPUTATIONS, fail, work
from tests.app.conftest import SCALE, Live, live, unlike
from tests.conftest import free_port
from tests.waiting import wait_until
from tests.workers.conftest import Desk
from tests.workers.operations import OPERATIONS as MISBEHAVING
from warpdesk_server.app import background
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.app.health import endpoints
from warpdesk_server.app.jobs.completions import Completions
from warpdesk_server.service.redis_server import RedisServer
from warpdesk_server.workers.queue.reports import (
    BreakerReport,
    DeviceMemory,
    DeviceReport,
    FailedExample,
    GpuCondition,
    GpuReading,
    GpuReport,
    WarmUp,
    WorkerReport,
)
from warpdesk_server.workers.store.protocol import ArrayWriter, Store


def report(name: str, state: Any, backend: Any = "cpu", **device: Any) -> WorkerReport:
    return WorkerReport(
        name=name,
        host="here",
        pid=1,
        child_pid=2,
        state=state,
        device=DeviceReport(backend=backend, name=f"{backend} of {name}", **device),
        started_at=time.time(),
        reported_at=time.time(),
        last_fault="error 700: illegal address" if state == "restarting" else None,
    )


def judged(answer: httpx.Response) -> dict[str, Any]:
    """The body without the free bytes of this machine's disk."""
    whole: dict[str, Any] = answer.json()
    assert whole.pop("store_free_bytes") > 0
    if whole["warm_up"] is None:
        del whole["warm_up"]
    return whole


def test_without_a_worker_the_process_lives_and_is_not_ready(api: Live) -> None:
    live, ready, health = (api.http.get(path) for path in ("/livez", "/readyz", "/health"))

    assert (live.status_code, live.json()) == (200, {"status": "ok", "reasons": []})
    assert (ready.status_code, health.status_code) == (503, 503)
    assert judged(ready) == {"status": "unavailable", "reasons": ["None of 0 live workers is ready"]}


@pytest.mark.parametrize(("state", "status"), [("starting", 503), ("ready", 200), ("busy", 200), ("restarting", 503)])
def test_readiness_is_that_of_the_workers(api: Live, state: str, status: int) -> None:
    api.queue.report(report(f"a {state} one", state), ttl=60)

    assert api.http.get("/readyz").status_code == status


def test_a_worker_that_has_not_tried_every_example_is_not_ready_and_says_how_far_it_is(api: Live) -> None:
    warming = {"warm_up": WarmUp(done=12, of=19)}
    api.queue.report(report("a new one", "ready").model_copy(update=warming), ttl=60)
    alone = api.http.get("/readyz")
    api.queue.report(report("two", "busy"), ttl=60)
    beside_another = api.http.get("/readyz")

    assert (alone.status_code, beside_another.status_code) == (503, 200)
    sentence = "None of 1 live workers is ready: warming 12 of 19"
    assert judged(alone) == {"status": "unavailable", "reasons": [sentence], "warm_up": {"done": 12, "of": 19}}
    assert beside_another.json()["reasons"] == ["1 of 2 live workers are starting or restarting"]


def test_a_worker_of_long_jobs_makes_no_service_ready_and_its_start_is_no_trouble(api: Live) -> None:
    def long(state: str) -> WorkerReport:
        return report("long", state).model_copy(update={"takes": "long"})

    api.queue.report(long("ready"), ttl=60)
    alone = api.http.get("/readyz")
    api.queue.report(report("quick", "ready").model_copy(update={"takes": "both"}), ttl=60)
    api.queue.report(long("starting"), ttl=60)
    starting = api.http.get("/readyz")
    api.queue.report(long("restarting"), ttl=60)
    restarting = api.http.get("/readyz")
    api.queue.report(long("busy"), ttl=60)
    api.queue.report(report("quick", "ready").model_copy(update={"takes": "both", "long_fault": "it ended"}), ttl=60)
    without = api.http.get("/readyz")

    assert (alone.status_code, alone.json()["reasons"]) == (
        503,
        ["None of 1 live workers is ready: takes long jobs alone"],
    )
    assert judged(starting) == {"status": "ok", "reasons": []}
    assert restarting.json()["reasons"] == ["1 of 2 live workers are starting or restarting"]
    assert without.json()["reasons"] == ["1 of 2 live workers cannot start a process for long jobs"]


def test_a_worker_that_no_longer_reports_counts_no_more(api: Live) -> None:
    api.queue.report(report("one", "ready"), ttl=0.05)

    wait_until(lambda: api.http.get("/readyz").status_code == 503)


def test_one_of_two_workers_down_is_degraded_and_ready(api: Live) -> None:
    api.queue.report(report("one", "ready"), ttl=60)
    api.queue.report(report("two", "restarting"), ttl=60)

    ready = api.http.get("/readyz")

    assert ready.status_code == 200
    assert judged(ready) == {"status": "degraded", "reasons": ["1 of 2 live workers are starting or restarting"]}


def failed(operation: str, backend: Any = "cpu", **details: Any) -> FailedExample:
    return FailedExample(operation=operation, backend=backend, error="RuntimeError", message="/a/path: 7", **details)


def test_a_worker_that_replaces_its_child_by_its_own_will_is_waited_for(
    serve_api: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_api() as api:
        able = report("one", "ready")
        api.queue.report(able, ttl=60)
        admission = api.app.state.services.admission
        wait_until(lambda: admission.able_lately(able, 60))
        replacing = able.model_copy(update={"state": "restarting"})

        api.queue.report(replacing, ttl=60)
        at_first = api.http.get("/readyz")
        api.queue.report(replacing.model_copy(update={"last_fault": "error 700"}), ttl=60)
        after_a_fault = api.http.get("/readyz")
        api.queue.report(replacing, ttl=60)
        monkeypatch.setattr(endpoints, "_REPLACING_SECONDS", 0.0)  # any replacement takes longer
        at_last = api.http.get("/readyz")

        assert (at_first.status_code, at_first.json()["status"]) == (200, "degraded")
        assert at_first.json()["reasons"] == ["1 of 1 live workers are starting or restarting"]
        for answer in (after_a_fault, at_last):
            assert answer.status_code == 503
            assert answer.json()["reasons"] == ["None of 1 live workers is ready: restarting"]


def test_an_operation_that_failed_its_example_degrades_the_service_by_name(api: Live) -> None:
    api.queue.report(report("one", "ready"), ttl=60)
    api.queue.report(report("two", "busy").model_copy(update={"failed_examples": (failed("draw"),)}), ttl=60)

    ready = api.http.get("/readyz")

    assert ready.status_code == 200
    assert judged(ready) == {"status": "degraded", "reasons": ["draw fails on 1 of 2 workers: RuntimeError"]}


def test_a_service_on_which_no_operation_works_is_not_ready(api: Live) -> None:
    failures = tuple(failed(name) for name in COMPUTATIONS)
    api.queue.report(report("one", "ready").model_copy(update={"failed_examples": failures[1:]}), ttl=60)
    some = api.http.get("/readyz")
    api.queue.report(report("one", "ready").model_copy(update={"failed_examples": failures}), ttl=60)
    none = api.http.get("/readyz")

    assert (some.status_code, some.json()["status"]) == (200, "degraded")
    assert (none.status_code, none.json()["status"]) == (503, "unavailable")
    assert none.json()["reasons"] == [
        "None of 1 ready workers can run any operation",
        *(f"{name} fails on 1 of 1 workers: RuntimeError" for name in COMPUTATIONS),
    ]


def test_a_variant_or_a_fallback_disables_no_operation(api: Live) -> None:
    failures = [failed(name, "gpu", fallback=True) for name in COMPUTATIONS]
    failures.append(failed("scale", "gpu", variant="float32"))
    changes = {"failed_examples": tuple(failures), "gpu": condition("degraded", reason="examples failed")}
    sick = report("one", "ready", "gpu").model_copy(update=changes)
    api.queue.report(sick, ttl=60)
    ready, gpu = api.http.get("/readyz"), api.http.get("/gpu-health").json()

    assert ready.status_code == 200
    assert ready.json()["status"] == "degraded"
    assert "scale falls back to the CPU on 1 of 1 workers: RuntimeError" in ready.json()["reasons"]
    assert "scale (float32) fails on 1 of 1 workers: RuntimeError" in ready.json()["reasons"]
    assert gpu["status"] == "degraded"
    assert gpu["reasons"][0] == "one is degraded: examples failed"
    assert gpu["reasons"][1] == (
        "scale failed on the gpu of one with RuntimeError: /a/path: 7; its jobs fall back to the CPU"
    )
    assert gpu["reasons"][-1] == "scale (float32) failed on the gpu of one with RuntimeError: /a/path: 7"


def test_what_an_error_says_is_not_told_to_everyone(api: Live) -> None:
    api.queue.report(report("one", "ready").model_copy(update={"failed_examples": (failed("draw"),)}), ttl=60)

    assert "/a/path" not in api.http.get("/readyz").text
    assert "/a/path: 7" in api.http.get("/gpu-health").text


def test_a_real_worker_whose_examples_fail_degrades_the_service_and_one_that_can_do_nothing_does_not_serve(
    redis_url: str, tmp_path: Path
) -> None:
    with live(tmp_path / "api", redis_url, MISBEHAVING) as api:
        desk = Desk(redis_url, tmp_path / "worker", api.queue, api.store)
        desk.home.mkdir()
        try:
            desk.start_worker(ready=False, WARPDESK_OPERATIONS="tests.workers.operations:NOTHING_WORKS")
            wait_until(lambda: "stumble fails" in api.http.get("/readyz").text)
            idle = api.http.get("/readyz")
            desk.start_worker()
            wait_until(lambda: api.http.get("/readyz").status_code == 200)
            serving = api.http.get("/readyz").json()
        finally:
            desk.close()

    assert (idle.status_code, idle.json()["status"]) == (503, "unavailable")
    assert idle.json()["reasons"][0].startswith("None of 1 live workers is ready: ")
    assert serving["status"] == "degraded"
    assert "stumble fails on 1 of 1 workers: RuntimeError" in serving["reasons"]
    assert any(reason.startswith("hoard fails on 1 of 1 workers: ") for reason in serving["reasons"])
    assert not any("double" in reason for reason in serving["reasons"])


def test_a_quarantined_gpu_is_told_and_not_taken_for_none(redis_url: str, tmp_path: Path) -> None:
    with live(tmp_path / "api", redis_url, MISBEHAVING) as api:
        desk = Desk(redis_url, tmp_path / "worker", api.queue, api.store)
        desk.home.mkdir()
        try:
            sick = desk.start_worker(
                WARPDESK_DEVICE="tests.workers.device:BrokenDevice",
                WARPDESK_OPERATIONS="tests.workers.operations:SOUND",
            )
            assert sick is not None
            ready, gpu = api.http.get("/readyz"), api.http.get("/gpu-health").json()
            memory = api.http.get("/gpu-memory").json()
            body = {"operation": "double", "inputs": {"values": {"data": [1.0]}}, "backend": "gpu"}
            refused = api.http.post("/v1/jobs", json=body)
        finally:
            desk.close()

    assert (ready.status_code, judged(ready)) == (
        200,
        {
            "status": "degraded",
            "reasons": ["The GPU of 1 of 1 live workers is quarantined; jobs run on the CPU there"],
        },
    )
    (reason,) = gpu["reasons"]
    assert gpu["status"] == "degraded"
    assert reason.startswith(f"{sick.name} is quarantined: the device was lost (")
    assert "uncorrectable memory error" in reason
    assert memory == {"devices": []}
    assert (refused.status_code, refused.json()["code"]) == (503, "no-gpu-worker")
    assert "the GPU is quarantined: the device was lost (" in refused.json()["detail"]


def condition(state: Any, **details: Any) -> GpuCondition:
    return GpuCondition(state=state, since=1.8e9, **details)


def test_gpu_health_says_what_the_workers_reported(api: Live) -> None:
    def reported(name: str, gpu: GpuCondition | None, *device: Any, **details: Any) -> Any:
        api.queue.report(report(name, *device, **details).model_copy(update={"gpu": gpu}), ttl=60)
        return api.http.get("/gpu-health").json()

    unknown = api.http.get("/gpu-health").json()
    unsaid = reported("cpu", None, "starting")
    none = reported("cpu", condition("absent", reason="no NVIDIA driver"), "ready", reason="no NVIDIA driver")
    used = DeviceMemory(used=1, held=2, limit=20 << 30, stuck=3, outside=4, peak=5)
    healthy = condition("healthy", name="H200", uuid="GPU-1", canary_at=time.time() - 7, call_since=1.8e9, memory=used)
    ok = reported("gpu", healthy, "ready", "gpu", memory_bytes=24 << 30, uuid="GPU-1")
    memory = api.http.get("/gpu-memory").json()
    ill = condition("restarting", name="H200", uuid="GPU-1", reason="error 700: illegal address", faults={"lost": 1})
    degraded = reported("gpu", ill, "restarting", "gpu")

    assert (unknown["status"], unknown["devices"], unknown["workers"]) == ("unknown", [], [])
    assert (unsaid["status"], unsaid["reasons"]) == (
        "unknown",
        ["None of 1 live workers has said yet whether it has a GPU"],
    )
    assert (none["status"], none["reasons"]) == ("none", ["no NVIDIA driver"])
    assert (ok["status"], len(ok["workers"])) == ("ok", 2)
    by_worker = {device["worker"]: device for device in ok["devices"]}
    assert {name: device["state"] for name, device in by_worker.items()} == {"cpu": "absent", "gpu": "healthy"}
    assert 7 <= by_worker["gpu"]["canary_age_seconds"] < 60
    assert by_worker["gpu"]["since"] == by_worker["gpu"]["call_since"] == "2027-01-15T08:00:00Z"
    assert memory == {
        "devices": [
            {
                "worker": "gpu",
                "workers": [
                    {
                        "worker": "gpu",
                        "used_bytes": 1,
                        "held_bytes": 2,
                        "limit_bytes": 20 << 30,
                        "stuck_bytes": 3,
                        "outside_bytes": 4,
                        "peak_bytes": 5,
                        "process_bytes": None,
                    }
                ],
                "name": "H200",
                "uuid": "GPU-1",
                "memory_bytes": 24 << 30,
                "used_bytes": 1,
                "held_bytes": 2,
                "limit_bytes": 20 << 30,
                "stuck_bytes": 3,
                "outside_bytes": 4,
                "peak_bytes": 5,
                **dict.fromkeys(
                    (
                        "device_used_bytes",
                        "device_free_bytes",
                        "device_reserved_bytes",
                        "process_bytes",
                        "others_bytes",
                        "processes",
                        "age_seconds",
                    )
                ),
            }
        ]
    }
    assert (degraded["status"], degraded["reasons"]) == (
        "degraded",
        ["gpu is restarting: error 700: illegal address"],
    )


def test_a_gpu_that_a_worker_shares_with_its_companion_is_there_once_with_both(api: Live) -> None:
    def reported(name: str, gpu: GpuCondition, takes: str, pid: int, **details: Any) -> None:
        own = {"gpu": gpu, "takes": takes, "pid": pid, **details}
        api.queue.report(report(name, "ready", "gpu", uuid=gpu.uuid).model_copy(update=own), ttl=60)

    def on_gpu(state: Any, age: float, process: int, **details: Any) -> GpuCondition:
        whole = {"memory_used": 100, "processes": 3, "other_memory": 90 - process, "process_memory": process}
        driver = GpuReport(state="healthy", reading=GpuReading(uuid="GPU-1", name="H200", **whole), age_seconds=age)
        return condition(state, name="H200", uuid="GPU-1", driver=driver, **details)

    pools = [DeviceMemory(used=used, held=2 * used, limit=50, stuck=0, peak=used) for used in (10, 20)]
    reported("b quick", on_gpu("healthy", 300.0, 30, memory=pools[0], faults={"launch": 1}), "both", 10)
    reported("a long", on_gpu("healthy", 0.5, 40, memory=pools[1], faults={"launch": 2}), "long", 11, started_by=10)
    reported("another", condition("healthy", name="H200", uuid="GPU-2"), "both", 12)
    reported("on the CPU", condition("absent", reason="no"), "both", 13)
    reported("beside it", condition("absent", reason="no"), "long", 14, started_by=13)
    health, memory = (api.http.get(path).json()["devices"] for path in ("/gpu-health", "/gpu-memory"))
    reported("a long", on_gpu("degraded", 0.5, 40, reason="it is slow"), "long", 11, started_by=10)
    worse = api.http.get("/gpu-health").json()

    assert sorted((each["worker"], *sorted(each["workers"])) for each in health) == [
        ("another", "another"), ("b quick", "a long", "b quick"), ("on the CPU", "beside it", "on the CPU")
    ]  # fmt: skip
    (shared,) = (each for each in health if each["uuid"] == "GPU-1")
    assert (shared["state"], shared["faults"]) == ("healthy", {"launch": 3})
    assert shared["driver"]["age_seconds"] < 300.0
    (of_both,) = (each for each in memory if each["uuid"] == "GPU-1")
    assert [of_both[f"{name}_bytes"] for name in ("used", "held", "limit", "process", "others", "device_used")] == [
        30, 60, 100, 70, 20, 100
    ]  # fmt: skip
    assert {each["worker"]: each["used_bytes"] for each in of_both["workers"]} == {"b quick": 10, "a long": 20}
    assert worse["reasons"] == ["a long is degraded: it is slow"]


# Fields that reveal nothing of other keys' jobs, whatever their values.
STEADY = {
    "device": {"worker", "workers", "host", "name", "uuid", "state", "since", "next_probe_at", "breakers", "slot",
               "dollars_per_hour", "driver"},
    "driver": {"state", "findings", "hung_since", "age_seconds", "index", "mig", "driver", "cuda", "architecture",
               "slowdown_temperature_celsius", "power_limit_watts", "memory_bus_bits",
               "peak_memory_bandwidth_bytes_per_second", "ecc_corrected", "ecc_uncorrected", "rows_remapped",
               "rows_remapped_uncorrected", "remap_pending", "remap_failed", "pages_retired", "retirement_pending",
               "recovery_action", "xids"},
    "memory": {"worker", "workers", "name", "uuid", "memory_bytes", "limit_bytes", "device_reserved_bytes",
               "age_seconds"},
}  # fmt: skip


def test_what_jobs_do_to_a_gpu_is_told_to_keys_that_may_see_what_all_keys_do(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    numbers = dict.fromkeys(GpuReading.model_fields, 1)
    reading = GpuReading(
        **{**numbers, "uuid": "GPU-1", "name": "H200", "mig": None, "clock_reasons": ("idle",), "architecture": "sm_90",
           "driver": "570", "cuda": "12.8", "recovery_action": "none"}
    )  # fmt: skip
    busy = condition(
        "degraded",
        reason="a job has been in one call of it",
        name="H200",
        uuid="GPU-1",
        canary_at=1.8e9,
        call_since=1.8e9,
        last_fault="out of memory",
        last_fault_at=1.8e9,
        faults={"out-of-memory": 1},
        memory=DeviceMemory(used=1, held=2, limit=20 << 30, stuck=3, outside=4, peak=5),
        driver=GpuReport(state="healthy", reading=reading, age_seconds=0.5),
    )
    scopes = (["read"], ["read", "metrics"], ["admin"])
    tokens = [create_key(tmp_path / "home", "key", given) for given in scopes]
    with serve_api() as api:
        api.queue.report(report("one", "busy", "gpu", memory_bytes=24 << 30).model_copy(update={"gpu": busy}), ttl=60)

        def ask(path: str) -> list[Any]:
            return [api.http.get(path, headers={"X-API-Key": token}).json() for token in tokens]

        health, memory = ask("/gpu-health"), ask("/gpu-memory")

    for whole in health[1:]:
        assert [worker["state"] for worker in whole["workers"]] == ["busy"]
        assert whole["reasons"] == ["one is degraded: a job has been in one call of it"]
        assert (whole["devices"][0]["call_since"], whole["devices"][0]["driver"]["utilization"]) == (
            "2027-01-15T08:00:00Z",
            1.0,
        )
    assert [document["devices"][0]["used_bytes"] for document in memory] == [None, 1, 1]
    of_worker = [document["devices"][0]["workers"][0] for document in memory]
    assert {name for name, value in of_worker[0].items() if value is not None} == {"worker", "limit_bytes"}
    assert of_worker[1]["used_bytes"] == 1
    assert (health[0]["workers"], health[0]["reasons"]) == ([], ["one is degraded"])
    for kind, plain, whole in (
        ("device", health[0]["devices"][0], health[1]["devices"][0]),
        ("driver", health[0]["devices"][0]["driver"], health[1]["devices"][0]["driver"]),
        ("memory", memory[0]["devices"][0], memory[1]["devices"][0]),
    ):
        assert plain.keys() == whole.keys()
        assert {name for name in plain if plain[name] is None} == {
            name for name in whole if whole[name] is None or name not in STEADY[kind]
        }


def test_a_kernel_that_is_kept_off_a_gpu_is_told_with_its_next_probe_and_why_only_to_keys(api: Live) -> None:
    breaker = BreakerReport(
        what="rsi", kind="kernel", state="open", reason="/a/path was refused", since=1.8e9, next_probe=1.8e9 + 30
    )
    ill = condition("degraded", reason="rsi is kept off the GPU: /a/path was refused", breakers=(breaker,))
    api.queue.report(report("one", "ready", "gpu").model_copy(update={"gpu": ill}), ttl=60)
    ready, gpu = api.http.get("/readyz"), api.http.get("/gpu-health").json()

    assert (ready.status_code, judged(ready)) == (
        200,
        {
            "status": "degraded",
            "reasons": ["rsi is kept off the GPU of 1 of 1 live workers", "The GPU of 1 of 1 live workers is degraded"],
        },
    )
    assert gpu["reasons"] == ["one is degraded: rsi is kept off the GPU: /a/path was refused"]
    assert gpu["devices"][0]["breakers"] == [
        {
            "what": "rsi",
            "kind": "kernel",
            "state": "open",
            "reason": "/a/path was refused",
            "since": "2027-01-15T08:00:00Z",
            "next_probe_at": "2027-01-15T08:00:30Z",
        }
    ]


def test_a_gpu_job_needs_a_gpu_worker(api: Live) -> None:
    api.queue.report(report("cpu", "ready", reason="no NVIDIA driver"), ttl=60)
    before = api.queued()

    refused = api.http.post("/v1/jobs", json={**SCALE, "backend": "gpu"})
    files = {path.name for path in api.settings.store_directory.rglob("*")}
    never_stored = {"values": {"data": [0.1, 0.7, 0.123]}}
    api.http.post("/v1/jobs", json={**SCALE, "inputs": never_stored, "backend": "gpu"})

    assert {path.name for path in api.settings.store_directory.rglob("*")} == files
    assert (refused.status_code, refused.json()["code"]) == (503, "no-gpu-worker")
    assert refused.json()["detail"] == ("The job asks for a GPU; of 1 live workers none has one: no NVIDIA driver")
    assert refused.json()["retryable"]
    assert "Retry-After" in refused.headers
    assert api.queued() == before
    api.queue.report(report("gpu", "busy", "gpu"), ttl=60)
    assert api.http.post("/v1/jobs", json={**SCALE, "backend": "gpu"}).status_code == 202


def test_metrics_count_what_happened(serve_api: Callable[..., Any]) -> None:
    with serve_api() as api:
        done, failed, queued = (api.submit(**unlike()) for _ in range(3))
        work(api.queue, api.store, done)
        fail(api.queue, failed)
        api.queue.report(report("one", "ready"), ttl=60)
        requests = 'warpdesk_http_requests_total{code="202",method="POST",route="/v1/jobs"} 3.0'
        wait_until(lambda: api.http.get("/performance-metrics").json()["operations"]["scale"]["jobs"].get("failed"))
        wait_until(lambda: requests in api.http.get("/metrics").text)  # added up once a second

        text = api.http.get("/metrics").text
        performance = api.http.get("/performance-metrics").json()

        finished = 'warpdesk_jobs_finished_total{operation="scale",queue="batch",reason="%s",state="%s"} 1.0'
        assert 'warpdesk_jobs_enqueued_total{operation="scale",queue="batch"} 3.0' in text
        assert finished % ("", "succeeded") in text
        assert finished % ("operation-error", "failed") in text
        assert 'warpdesk_queue_jobs{queue="batch",state="queued"} 1.0' in text
        assert 'warpdesk_queue_jobs{queue="realtime",state="queued"} 0.0' in text
        assert 'warpdesk_queue_oldest_job_age_seconds{queue="realtime"} 0.0' in text
        assert 'warpdesk_job_seconds_count{queue="batch"} 1.0' in text
        assert 'warpdesk_job_run_seconds_sum{backend="cpu",operation="scale"} 0.5' in text
        assert 'warpdesk_workers{backend="cpu",state="ready"} 1.0' in text
        assert requests in text
        assert queued not in text
        assert performance["operations"]["scale"]["jobs"] == {"succeeded": 1, "failed": 1}
        assert performance["queues"]["batch"]["waiting"] == 1


def test_ids_and_inventions_never_become_labels(api: Live) -> None:
    api.http.get("/v1/jobs/job_secret")
    api.http.get("/nowhere/secret")
    api.http.request("SECRET", "/v1/jobs")

    assert "secret" not in api.http.get("/metrics").text.lower()


def test_metrics_have_a_private_port(serve_api: Callable[..., Any]) -> None:
    port = free_port()
    with serve_api(metrics_port=port):
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics")

    assert answer.status_code == 200
    assert "warpdesk_queue_up 1.0" in answer.text


def test_a_full_queue_refuses_and_says_when_to_come_back(serve_api: Callable[..., Any]) -> None:
    with serve_api(max_queue=2) as api:
        for _ in range(2):
            api.submit(**unlike())
        before = api.queued()

        refused = api.http.post("/v1/jobs", json=SCALE)

        assert (refused.status_code, refused.json()["code"]) == (503, "queue-full")
        assert refused.json()["detail"] == "The queue is full: 2 jobs may wait"
        assert int(refused.headers["Retry-After"]).bit_count() == 1
        assert api.queued() == before


def test_redis_may_be_away_at_the_start_and_come_and_go(tmp_path: Path, serve_api: Callable[..., Any]) -> None:
    server = RedisServer(tmp_path / "r")
    with serve_api(server.url) as api:
        assert_unavailable(api)

        server.start()
        try:
            wait_until(lambda: api.http.post("/v1/jobs", json=SCALE).status_code == 202)
            server.stop()
            assert_unavailable(api)
            server.start()
            wait_until(lambda: api.http.get("/v1/jobs").status_code == 200)
            kept = api.http.get("/v1/jobs").json()["jobs"]
        finally:
            server.stop()

        assert len(kept) == 1


def test_a_waiter_survives_a_restart_of_redis(tmp_path: Path, serve_api: Callable[..., Any]) -> None:
    with RedisServer(tmp_path / "r") as server, serve_api(server.url) as api:
        wait_until(lambda: api.http.get("/v1/jobs").status_code == 200)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            reply = pool.submit(api.http.post, "/v1/jobs", json=SCALE, headers={"Prefer": "wait=30"})
            wait_until(lambda: api.queue.length() == 1)
            server.stop()
            server.start()
            job_id = api.queue.jobs("local", 1)[0][0].request.id
            work(api.queue, api.store, job_id)
            answer = reply.result(40)

    assert (answer.status_code, answer.json()["status"]) == (200, "succeeded")


def test_a_redis_that_hangs_is_a_503_and_not_a_hang(tmp_path: Path, serve_api: Callable[..., Any]) -> None:
    with RedisServer(tmp_path / "r") as server, serve_api(server.url, redis_patience=0.3) as api:
        wait_until(lambda: api.http.get("/v1/jobs").status_code == 200)
        pid = redis_pid(api)
        os.kill(pid, signal.SIGSTOP)
        try:
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(lambda _: api.http.post("/v1/jobs", json=SCALE, timeout=20), range(8)))
            assert api.http.get("/livez").status_code == 200
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: api.http.get("/v1/jobs").status_code == 200)

        assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {(503, "queue-unavailable")}
        # What was refused does not run: it is not queued, or was cancelled as soon as Redis had taken it.
        wait_until(lambda: not [job for job in api.queue.jobs("local", 20)[0] if not job.state.final])


@dataclass
class SlowStore:
    """A store on a slow disk."""

    store: Store
    seconds: float

    def writer(self, *arguments: Any, **options: Any) -> ArrayWriter:
        time.sleep(self.seconds)
        return self.store.writer(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def test_the_time_a_disk_takes_is_not_counted_against_redis(serve_api: Callable[..., Any]) -> None:
    with serve_api(redis_patience=0.3) as api:
        api.app.state.services = replace(api.app.state.services, store=SlowStore(api.store, seconds=1.0))

        answer = api.http.post("/v1/jobs", json=SCALE)

    assert answer.status_code == 202


def test_a_redis_that_hangs_after_a_slow_disk_is_a_503(tmp_path: Path, serve_api: Callable[..., Any]) -> None:
    with RedisServer(tmp_path / "r") as server, serve_api(server.url, redis_patience=0.3) as api:
        wait_until(lambda: api.http.get("/v1/jobs").status_code == 200)
        api.app.state.services = replace(api.app.state.services, store=SlowStore(api.store, seconds=1.0))
        pid = redis_pid(api)
        os.kill(pid, signal.SIGSTOP)
        try:
            answer = api.http.post("/v1/jobs", json=SCALE, timeout=20)
        finally:
            os.kill(pid, signal.SIGCONT)

        assert (answer.status_code, answer.json()["code"]) == (503, "queue-unavailable")
        wait_until(lambda: not [job for job in api.queue.jobs("local", 20)[0] if not job.state.final])


@dataclass
class BrokenStore:
    """A store on a disk that fails."""

    error: Exception

    def find(self, *_: Any) -> None:
        raise self.error

    def require(self, *_: Any) -> None:
        pass

    def writer(self, *_: Any, **__: Any) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RuntimeError("secret reason"), 500, "internal-error"),
        (OSError(errno.EIO, "secret reason"), 500, "internal-error"),
        (OSError(errno.ENOSPC, "secret reason"), 503, "storage-full"),
    ],
)
def test_a_fault_of_our_own_is_told_without_a_trace(
    serve_api: Callable[..., Any], error: Exception, status: int, code: str
) -> None:
    with serve_api() as api:
        api.app.state.services = replace(api.app.state.services, store=BrokenStore(error))

        answers = [
            api.http.get("/v1/arrays/blake3:" + "0" * 64),
            api.http.post("/v1/jobs", json=SCALE),
            api.http.put("/v1/arrays", content=npy([1.0, 2.0]), headers=NPY),
        ]

        for answer in answers:
            assert (answer.status_code, answer.json()["code"]) == (status, code)
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert "secret" not in answer.text
            assert "Traceback" not in answer.text
        assert api.queued() == (0, [])
        assert api.http.get("/livez").status_code == 200


def assert_unavailable(api: Any) -> None:
    for method, path, body in [
        ("POST", "/v1/jobs", SCALE),
        ("GET", "/v1/jobs", None),
        ("GET", "/v1/jobs/job_" + "0" * 32, None),
        ("GET", "/gpu-health", None),
    ]:
        answer = api.http.request(method, path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (503, "queue-unavailable"), answer.text
        assert answer.headers["Retry-After"] == "1"
    assert api.http.get("/readyz").status_code == 503
    assert api.http.get("/livez").status_code == 200
    assert "warpdesk_queue_up 0.0" in api.http.get("/metrics").text


def redis_pid(api: Any) -> int:
    from warpdesk_server.workers.queue.jobs import connect

    with connect(api.redis_url) as redis:
        pid: int = redis.info("server")["process_id"]
    return pid


@pytest.mark.parametrize(("where", "loop"), [(background, "_turn"), (Completions, "hear")])
def test_the_api_stops_though_a_task_swallows_its_cancel(
    serve_api: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, where: Any, loop: str
) -> None:
    """As redis-py's task may at a new connection: 20 of 4,180 subscriptions that Redis refused did."""

    async def stubborn(_: object) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        await asyncio.sleep(3600)

    monkeypatch.setattr(where, loop, stubborn)
    with serve_api():
        pass  # `serve_api` waits for the API to end
