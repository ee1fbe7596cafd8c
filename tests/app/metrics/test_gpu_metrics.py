"""Metrics of workers and GPUs, from reports as workers write them."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import ROOT
from tests.stand_ins.nvml import Replay
from warpdesk_server.app.metrics.gpu import collect
from warpdesk_server.workers.gpu.nvml import look
from warpdesk_server.workers.gpu.session import clock_reasons
from warpdesk_server.workers.queue.reports import (
    CLOCK_REASONS,
    BreakerReport,
    DeviceMemory,
    DeviceReport,
    GpuCondition,
    GpuReport,
    WorkerReport,
    XidEvent,
)

NOW = 2_000_000_000.0
A100 = "GPU-a1000000-0000-4000-8000-000000000000"
H100 = "GPU-48100000-0000-4000-8000-000000000000"
SLICES = [f"MIG-0000000{number}-1111-5222-8333-444444444444" for number in (1, 2)]

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(script: str, which: str = "", **changes: Any) -> GpuReport:
    """The report of a driver that plays this script, 0.5 s old."""
    report = look(which, Replay(ROOT / "tests" / "workers" / "gpu" / "nvml" / f"{script}.json"))
    assert report.reading is not None
    reading = report.reading.model_copy(update=changes)
    return report.model_copy(update={"reading": reading, "age_seconds": 0.5, "hung_since": None})


def condition(driver: GpuReport | None, **fields: Any) -> GpuCondition:
    reading = None if driver is None else driver.reading
    values: dict[str, Any] = {
        "state": "healthy",
        "since": NOW - 60,
        "uuid": reading and reading.uuid,
        "canary_at": NOW - 9,
        "memory": DeviceMemory(used=10, held=30, limit=1000, stuck=1, peak=20),
        "driver": driver,
        **fields,
    }
    return GpuCondition(**values)


def worker(slot: int | None, gpu: GpuCondition | None = None, **fields: Any) -> WorkerReport:
    backend: Any = "cpu" if gpu is None else "gpu"
    values: dict[str, Any] = {
        "name": f"host-4711-{slot}",
        "host": "host",
        "pid": 4711,
        "child_pid": 4712,
        "state": "ready",
        "device": DeviceReport(backend=backend, name="a device"),
        "started_at": NOW - 100,
        "reported_at": NOW - 2,
        "slot": slot,
        "gpu": gpu,
        **fields,
    }
    return WorkerReport(**values)


def samples(*reports: WorkerReport) -> Samples:
    """The samples that a scraper reads, with a check that none comes twice."""
    made = list(collect(reports, NOW))
    found: Samples = {}
    for family in text_string_to_metric_families(exposition(made)):
        for sample in family.samples:
            key = sample.name.removeprefix("warpdesk_"), frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    assert len({family.name for family in made}) == len(made)
    return found


def exposition(made: list[Metric]) -> str:
    class Made:
        def collect(self) -> list[Metric]:
            return made

    registry = CollectorRegistry()
    registry.register(Made())  # type: ignore[arg-type]
    return generate_latest(registry).decode()


def of(found: Samples, name: str, /, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))


def named(found: Samples, name: str) -> dict[str, float]:
    """The samples of one metric, by the values of their labels."""
    return {"/".join(sorted(dict(labels).values())): value for (of, labels), value in found.items() if of == name}


def test_what_the_driver_says_of_a_gpu_is_exported_in_base_units() -> None:
    found = samples(worker(0, condition(read("a100"))))
    assert {name: of(found, f"gpu_{name}", uuid=A100) for name in (
        "utilization_ratio", "memory_used_bytes", "memory_total_bytes", "temperature_celsius",
        "temperature_slowdown_celsius", "power_watts", "power_limit_watts", "peak_memory_bandwidth_bytes_per_second",
        "processes", "reading_age_seconds", "driver_hung", "breakers_open", "canary_last_success_timestamp_seconds",
    )} == {
        "utilization_ratio": 1.0, "memory_used_bytes": 3 << 30, "memory_total_bytes": 80 << 30,
        "temperature_celsius": 58, "temperature_slowdown_celsius": 89, "power_watts": 318.25,
        "power_limit_watts": 400.0, "peak_memory_bandwidth_bytes_per_second": 2.03904e12, "processes": 1,
        "reading_age_seconds": 2.5, "driver_hung": 0, "breakers_open": 0,
        "canary_last_success_timestamp_seconds": NOW - 9,
    }  # fmt: skip
    assert of(found, "gpu_energy_joules_total", uuid=A100) == pytest.approx(73_482_115, abs=400)
    assert of(found, "gpu_clock_hertz", uuid=A100, domain="memory") == 1.593e9
    assert of(found, "gpu_ecc_errors_total", uuid=A100, kind="uncorrected") == 0
    assert of(found, "gpu_state", uuid=A100, state="healthy") == 1
    assert of(found, "gpu_state", uuid=A100, state="quarantined") == 0
    assert of(found, "gpu_info", uuid=A100, name="NVIDIA A100-SXM4-80GB", driver="570.172.08", cuda="12.8", mig="",
              architecture="sm_80") == 1  # fmt: skip


def test_every_reason_of_the_clocks_is_there_before_it_is_active() -> None:
    assert clock_reasons(~0) == CLOCK_REASONS
    reading = read("a100", clock_reasons=("hardware thermal slowdown",))
    found = samples(worker(0, condition(reading)))
    events = {reason: of(found, "gpu_clock_event_active", uuid=A100, reason=reason) for reason in CLOCK_REASONS}
    assert events == {reason: float(reason == "hardware thermal slowdown") for reason in CLOCK_REASONS}


def test_what_a_gpu_does_not_tell_is_left_out_and_never_zero() -> None:
    untold = dict.fromkeys((
        "utilization", "slowdown_temperature", "energy", "clock_reasons", "ecc_uncorrected", "rows_remapped",
        "rows_remapped_uncorrected", "remap_pending", "remap_failed", "peak_memory_bandwidth", "other_memory",
        "process_memory", "memory_reserved",
    ))  # fmt: skip
    found = samples(worker(0, condition(read("a100", **untold), memory=None, canary_at=None)))
    names = {name for name, _ in found}
    for name in (
        "utilization_ratio", "temperature_slowdown_celsius", "energy_joules_total", "clock_event_active",
        "remapped_rows", "peak_memory_bandwidth_bytes_per_second", "sm_activity_ratio", "dram_activity_ratio",
        "memory_reserved_bytes", "pool_used_bytes", "canary_last_success_timestamp_seconds",
        "xid_last_timestamp_seconds", "breaker_open",
    ):  # fmt: skip
        assert f"gpu_{name}" not in names
    assert named(found, "gpu_ecc_errors_total") == {f"{A100}/corrected": 0}
    assert named(found, "gpu_process_memory_bytes") == {}


def test_a_gpu_that_two_workers_use_is_there_once() -> None:
    first = condition(
        read("a100", power=100.0, process_memory=300, other_memory=500),
        faults={"launch": 2},
        breakers=(breaker("double_values"),),
        canary_at=NOW - 40,
    )
    late = read("a100", power=200.0, process_memory=450, other_memory=350, processes=3)
    second = condition(
        late.model_copy(update={"hung_since": NOW - 3, "age_seconds": 0.1}),
        state="degraded",
        faults={"launch": 1, "lost": 1},
        breakers=(breaker("double_values"), breaker("nap (long)")),
    )
    found = samples(worker(0, first), worker(1, second))
    assert named(found, "gpu_power_watts") == {A100: 200.0}  # the later reading
    assert named(found, "gpu_reading_age_seconds") == {A100: pytest.approx(2.1)}
    assert named(found, "gpu_pool_held_bytes") == {A100: 60}
    assert named(found, "gpu_pool_limit_bytes") == {A100: 2000}
    assert named(found, "gpu_process_memory_bytes") == {f"{A100}/own": 750, f"{A100}/other": 50}
    assert named(found, "gpu_processes") == {A100: 3}
    assert named(found, "gpu_faults") == {f"{A100}/launch": 3, f"{A100}/lost": 1}
    assert named(found, "gpu_breaker_open") == {f"{A100}/double_values": 1, f"{A100}/nap (long)": 1}
    assert named(found, "gpu_breakers_open") == {A100: 2}
    assert named(found, "gpu_driver_hung") == {A100: 1}
    assert of(found, "gpu_state", uuid=A100, state="degraded") == 1
    assert of(found, "gpu_state", uuid=A100, state="healthy") == 0
    assert named(found, "gpu_canary_last_success_timestamp_seconds") == {A100: NOW - 40}


def breaker(what: str) -> BreakerReport:
    return BreakerReport(what=what, kind="kernel", state="open", reason="it failed", since=NOW, next_probe=NOW)


def test_slices_have_their_memory_and_the_whole_gpu_is_there_once() -> None:
    drivers = [read("h100_mig", which, sm_activity=0.25) for which in SLICES]
    late = drivers[1].model_copy(update={"age_seconds": 9.0, "xids": (XidEvent(xid=94, at=5.0, asks="", meaning=""),)})
    found = samples(worker(0, condition(drivers[0])), worker(1, condition(late)))
    assert named(found, "gpu_memory_total_bytes") == dict.fromkeys(SLICES, 42_000_000_000)
    assert named(found, "gpu_sm_activity_ratio") == dict.fromkeys(SLICES, 0.25)
    assert named(found, "gpu_breakers_open") == dict.fromkeys(SLICES, 0)
    for name in ("power_watts", "temperature_celsius", "energy_joules_total", "peak_memory_bandwidth_bytes_per_second"):
        assert named(found, f"gpu_{name}").keys() == {H100}
    assert named(found, "gpu_xid_last_timestamp_seconds") == {f"94/{H100}": 5.0}
    info = [dict(labels) for name, labels in found if name == "gpu_info"]
    assert sorted((labels["uuid"], labels["mig"], labels["name"]) for labels in info) == [
        (H100, "", "NVIDIA H100 80GB HBM3"),
        *((each, H100, "NVIDIA H100 80GB HBM3 MIG 3g.40gb") for each in SLICES),
    ]


def test_a_gpu_that_is_known_without_its_driver_has_a_state_and_no_reading() -> None:
    found = samples(worker(0, condition(None, uuid=A100, state="quarantined")))
    assert of(found, "gpu_state", uuid=A100, state="quarantined") == 1
    assert {name for name, labels in found if name.startswith("gpu_")} == {
        "gpu_state", "gpu_breakers_open", "gpu_canary_last_success_timestamp_seconds",
        *(f"gpu_pool_{name}_bytes" for name in ("used", "held", "limit", "stuck")),
    }  # fmt: skip
    assert not any(name.startswith("gpu_") for name, _ in samples(worker(0, condition(None, state="absent"))))


def test_every_kind_of_worker_is_counted_before_there_is_one() -> None:
    nobody = named(samples(), "workers")
    assert len(nobody) == 12
    assert set(nobody.values()) == {0}
    found = samples(worker(0), worker(1, state="busy"), worker(2, device=None, state="starting"))
    assert {key: count for key, count in named(found, "workers").items() if count} == {
        "cpu/ready": 1, "busy/cpu": 1, "starting/unknown": 1,
    }  # fmt: skip
    assert named(found, "worker_last_heartbeat_timestamp_seconds") == dict.fromkeys("012", NOW - 2)
    assert named(found, "worker_restarts") == dict.fromkeys("012", 0)


def test_workers_of_the_release_before_are_counted_though_they_have_no_slot_and_no_price() -> None:
    document = worker(None, condition(read("a100"))).model_dump(mode="json")
    for name in ("slot", "dollars_per_hour"):
        del document[name]
    for name in ("architecture", "energy", "processes", "other_memory", "memory_bus_width", "peak_memory_bandwidth"):
        del document["gpu"]["driver"]["reading"][name]
    found = samples(WorkerReport.model_validate(document), worker(3, dollars_per_hour=1.25))
    assert sum(named(found, "workers").values()) == 2
    assert named(found, "worker_restarts") == {"3": 0}
    assert named(found, "fleet_dollars_per_hour") == {"": 1.25}
    assert named(found, "gpu_power_watts") == {A100: 318.25}


@pytest.mark.parametrize(
    ("prices", "fleet"), [((), {"": 0}), ((None,), {}), ((2.0, None), {"": 2.0}), ((2.0, 0.5), {"": 2.5})]
)
def test_the_fleet_costs_what_the_priced_workers_cost(
    prices: tuple[float | None, ...], fleet: dict[str, float]
) -> None:
    reports = [worker(slot, dollars_per_hour=price) for slot, price in enumerate(prices)]
    assert named(samples(*reports), "fleet_dollars_per_hour") == fleet


def test_the_companion_of_a_worker_shares_its_device_and_its_price() -> None:
    beside = worker(1, dollars_per_hour=2.0, pid=4720, started_by=4711, takes="long")
    elsewhere = worker(2, dollars_per_hour=2.0, pid=4721, started_by=4711, takes="long", host="another")
    reports = worker(0, dollars_per_hour=2.0, takes="both"), beside, elsewhere
    found = samples(*reports)
    assert named(found, "fleet_dollars_per_hour") == {"": 4.0}
    assert named(found, "workers")["cpu/ready"] == 2


def test_eight_gpus_make_fewer_than_seven_hundred_series_and_no_label_is_an_id() -> None:
    reports = [
        worker(slot, condition(read("a100", uuid=f"GPU-{slot}", sm_activity=0.5, tensor_activity=0.5)))
        for slot in range(8)
    ]
    found = samples(*reports)
    assert len(found) < 700
    labels = {label for _, labels in found for label, _ in labels}
    assert labels == {
        "backend", "state", "slot", "uuid", "kind", "domain", "reason", "name", "driver", "cuda", "mig", "architecture",
    }  # fmt: skip
    assert not any("4711" in value or value == "host" for _, labels in found for _, value in labels)
