"""Metrics of the live workers and their GPUs, from the reports that each leaves in Redis, by slot and by GPU.

A GPU that several workers use is exported once: driver values come from the latest reading, the workers' memory is
summed, and the worst of their judgements counts. A slice of a GPU has its own memory and judgement; the driver's values
of the whole GPU are exported once, under its UUID. An unknown value is left out, and is never 0.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from prometheus_client.core import Metric

from warpdesk_server.app.metrics.families import families
from warpdesk_server.workers.metrics import METRICS
from warpdesk_server.workers.queue.reports import (
    CLOCK_REASONS,
    ConditionState,
    GpuCondition,
    GpuReading,
    WorkerReport,
    WorkerState,
)

_WORST: tuple[ConditionState, ...] = ("healthy", "degraded", "restarting", "lost", "quarantined", "absent")

_Metrics = dict[str, dict[tuple[str, ...], float | None]]  # by name, then by the values of its labels


@dataclass(frozen=True)
class _Gpu:
    """A GPU, or a slice of one, on the metrics page: its workers' reports and the latest reading, `age` seconds old."""

    uuid: str
    workers: tuple[GpuCondition, ...]
    reading: GpuReading | None
    age: float | None

    @property
    def whole(self) -> str:
        """The UUID of the whole GPU in the metrics' labels: its own, or that of the GPU it is a slice of."""
        mig = None if self.reading is None else self.reading.mig
        return self.uuid if mig is None else mig.parent


def collect(reports: Iterable[WorkerReport], now: float | None = None) -> Iterator[Metric]:
    """All metrics of workers and GPUs for the API's page, from the workers' reports; `now` in Unix seconds."""
    workers = list(reports)
    gpus = _gpus(workers, time.time() if now is None else now)
    found = _of_workers(workers) | _of_judgement(gpus) | _of_memory(gpus) | _of_driver(gpus)
    return families(
        {name: found.get(name, {}) for name, metric in METRICS.items() if metric.source in ("report", "gpu")}
    )


def _of_workers(workers: Sequence[WorkerReport]) -> _Metrics:
    own = {(worker.host, worker.pid) for worker in workers}
    apart = [worker for worker in workers if (worker.host, worker.started_by) not in own]  # no companions
    counts = Counter((worker.device.backend if worker.device else "unknown", worker.state) for worker in apart)
    slots = {
        worker.slot: worker
        for worker in sorted(workers, key=lambda worker: worker.reported_at)
        if worker.slot is not None  # None in reports of an earlier release
    }
    prices = [worker.dollars_per_hour for worker in apart if worker.dollars_per_hour is not None]
    return {
        "workers": {
            (backend, state): counts[backend, state]
            for backend in ("cpu", "gpu", "unknown")
            for state in get_args(WorkerState)
        },
        "worker_last_heartbeat_timestamp_seconds": {
            (str(slot),): worker.reported_at for slot, worker in sorted(slots.items())
        },
        "worker_restarts": {(str(slot),): worker.restarts for slot, worker in sorted(slots.items())},
        "fleet_dollars_per_hour": {(): sum(prices) if prices or not workers else None},
    }


def _of_judgement(gpus: Sequence[_Gpu]) -> _Metrics:
    """Prometheus metrics of a GPU's condition, as its workers judge it: state, canary, breakers and faults."""
    found: _Metrics = defaultdict(dict)
    for gpu in gpus:
        uuid = gpu.uuid
        worst = max((worker.state for worker in gpu.workers), key=_WORST.index)
        found["gpu_state"] |= {(uuid, state): state == worst for state in _WORST}
        answered = [worker.canary_at for worker in gpu.workers if worker.canary_at is not None]
        found["gpu_canary_last_success_timestamp_seconds"][uuid,] = min(answered, default=None)
        opened = sorted({breaker.what for worker in gpu.workers for breaker in worker.breakers})
        found["gpu_breaker_open"] |= {(uuid, what): 1 for what in opened}
        found["gpu_breakers_open"][uuid,] = len(opened)
        faults = sum((Counter(worker.faults) for worker in gpu.workers), Counter[str]())
        found["gpu_faults"] |= {(uuid, kind): count for kind, count in sorted(faults.items())}
        drivers = [worker.driver for worker in gpu.workers if worker.driver is not None]
        hung = any(driver.hung_since is not None for driver in drivers) if drivers else None
        found["gpu_driver_hung"][uuid,] = hung
        found["gpu_reading_age_seconds"][uuid,] = gpu.age
    return found


def _of_memory(gpus: Sequence[_Gpu]) -> _Metrics:
    found: _Metrics = defaultdict(dict)
    for gpu in gpus:
        pools = [worker.memory for worker in gpu.workers if worker.memory is not None]
        for field in ("used", "held", "limit", "stuck"):
            found[f"gpu_pool_{field}_bytes"][gpu.uuid,] = sum(getattr(pool, field) for pool in pools) if pools else None
        readings = [worker.driver.reading for worker in gpu.workers if worker.driver is not None]
        own = [r.process_memory for r in readings if r is not None and r.process_memory is not None]
        memory = found["gpu_process_memory_bytes"]
        memory[gpu.uuid, "own"] = sum(own) if own else None
        reading = gpu.reading
        if reading is None:
            continue
        if reading.other_memory is not None:
            everyone = reading.other_memory + (reading.process_memory or 0)
            memory[gpu.uuid, "other"] = max(0, everyone - sum(own))
        for field in ("used", "free", "total", "reserved"):
            found[f"gpu_memory_{field}_bytes"][gpu.uuid,] = getattr(reading, f"memory_{field}")
        found["gpu_processes"][gpu.uuid,] = reading.processes
        for field in ("sm_activity", "sm_occupancy", "tensor_activity", "dram_activity"):
            found[f"gpu_{field}_ratio"][gpu.uuid,] = getattr(reading, field)
    return found


# Metrics of whole GPUs, and the field of the driver's reading that each shows.
_OF_WHOLE = {
    "gpu_utilization_ratio": "utilization",
    "gpu_temperature_celsius": "temperature",
    "gpu_temperature_slowdown_celsius": "slowdown_temperature",
    "gpu_power_watts": "power",
    "gpu_power_limit_watts": "power_limit",
    "gpu_energy_joules_total": "energy",
    "gpu_peak_memory_bandwidth_bytes_per_second": "peak_memory_bandwidth",
}


def _of_driver(gpus: Sequence[_Gpu]) -> _Metrics:
    """Prometheus metrics of what the driver reports of whole GPUs."""
    found: _Metrics = defaultdict(dict)
    wholes: dict[str, _Gpu] = {}
    for gpu in gpus:
        if gpu.reading is None:
            continue
        found["gpu_info"][_info(gpu.uuid, gpu.reading, gpu.whole if gpu.whole != gpu.uuid else "")] = 1
        if gpu.whole not in wholes or _age(gpu) < _age(wholes[gpu.whole]):
            wholes[gpu.whole] = gpu
    for uuid, gpu in sorted(wholes.items()):
        reading = gpu.reading
        if reading is None:
            continue
        if uuid != gpu.uuid:
            found["gpu_info"][_info(uuid, reading, "")] = 1
        for name, field in _OF_WHOLE.items():
            found[name][uuid,] = getattr(reading, field)
        found["gpu_clock_hertz"] |= {(uuid, "sm"): reading.sm_clock, (uuid, "memory"): reading.memory_clock}
        for reason in CLOCK_REASONS if reading.clock_reasons is not None else ():
            found["gpu_clock_event_active"][uuid, reason] = reason in (reading.clock_reasons or ())
        found["gpu_ecc_errors_total"] |= {
            (uuid, "corrected"): reading.ecc_corrected,
            (uuid, "uncorrected"): reading.ecc_uncorrected,
        }
        rows = found["gpu_remapped_rows"]
        if reading.rows_remapped is not None and reading.rows_remapped_uncorrected is not None:
            rows[uuid, "corrected"] = reading.rows_remapped - reading.rows_remapped_uncorrected
        rows[uuid, "uncorrected"] = reading.rows_remapped_uncorrected
        rows[uuid, "pending"] = reading.remap_pending
        rows[uuid, "failed"] = reading.remap_failed
    xids = found["gpu_xid_last_timestamp_seconds"]
    for gpu in gpus:
        for worker in gpu.workers:
            for fault in worker.driver.xids if worker.driver is not None else ():
                key = gpu.whole, str(fault.xid)
                xids[key] = max(fault.at, xids.get(key) or 0.0)
    return found


def _info(uuid: str, reading: GpuReading, mig: str) -> tuple[str, ...]:
    """The label values of the metric `gpu_info` for a GPU or, with `mig`, for a slice of the GPU with that UUID."""
    name = reading.name if mig or reading.mig is None else reading.name.partition(" MIG ")[0]
    return (uuid, name, reading.driver or "", reading.cuda or "", mig, reading.architecture or "")


def _gpus(workers: Sequence[WorkerReport], now: float) -> list[_Gpu]:
    """The GPUs that the metrics page shows, each once, from the workers' reports with their latest reading."""
    conditions: dict[str, list[GpuCondition]] = defaultdict(list)
    readings: dict[str, tuple[float, GpuReading]] = {}
    for worker in workers:
        gpu = worker.gpu
        if gpu is None:
            continue
        driver = gpu.driver
        reading = None if driver is None else driver.reading
        uuid = gpu.uuid if reading is None else reading.uuid
        if uuid is None:
            continue
        conditions[uuid].append(gpu)
        if driver is not None and reading is not None and driver.age_seconds is not None:
            age = max(0.0, now - worker.reported_at) + driver.age_seconds
            if uuid not in readings or age < readings[uuid][0]:
                readings[uuid] = age, reading
    return [
        _Gpu(uuid, tuple(found), *(readings[uuid][::-1] if uuid in readings else (None, None)))
        for uuid, found in sorted(conditions.items())
    ]


def _age(gpu: _Gpu) -> float:
    return float("inf") if gpu.age is None else gpu.age
