"""Metrics of the live workers and their GPUs, from the reports that each leaves in Redis, by slot and by GPU.

A GPU that several workers use is there once: what its driver says is taken from the latest reading, what its workers
hold on it is summed, and of their judgements the worst counts. Of a slice of a GPU, memory and judgement are the
slice's, and what the driver says of the whole GPU is there once, by the whole GPU's name. What nobody knows is left
out, and is never 0.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from warpdesk_server.workers.queue.protocol import (
    CLOCK_REASONS,
    ConditionState,
    GpuCondition,
    GpuReading,
    WorkerReport,
    WorkerState,
)

_WORST: tuple[ConditionState, ...] = ("healthy", "degraded", "restarting", "lost", "quarantined", "absent")

_Value = float | int | None


@dataclass(frozen=True)
class _Gpu:
    """A GPU, or a slice of one: what its workers say of it, and the latest reading, with its age in seconds."""

    uuid: str
    workers: tuple[GpuCondition, ...]
    reading: GpuReading | None
    age: float | None

    @property
    def whole(self) -> str:
        """The UUID of the GPU that it is, or is a slice of."""
        mig = None if self.reading is None else self.reading.mig
        return self.uuid if mig is None else mig.parent


def families(reports: Iterable[WorkerReport], now: float | None = None) -> Iterator[Metric]:
    """All metrics of workers and GPUs; `now` in Unix seconds."""
    workers = list(reports)
    gpus = _gpus(workers, time.time() if now is None else now)
    yield from _of_workers(workers)
    yield from _of_judgement(gpus)
    yield from _of_memory(gpus)
    yield from _of_driver(gpus)


def _of_workers(workers: Sequence[WorkerReport]) -> Iterator[Metric]:
    alive = GaugeMetricFamily("warpdesk_workers", "Live workers", labels=["backend", "state"])
    counts = Counter((worker.device.backend if worker.device else "unknown", worker.state) for worker in workers)
    for backend in ("cpu", "gpu", "unknown"):
        for state in get_args(WorkerState):
            alive.add_metric([backend, state], counts[backend, state])
    yield alive
    slots = {
        str(worker.slot): worker
        for worker in sorted(workers, key=lambda worker: worker.reported_at)
        if worker.slot is not None  # as an earlier release reports
    }
    heartbeat = GaugeMetricFamily(
        "warpdesk_worker_last_heartbeat_timestamp_seconds", "When it last reported", labels=["slot"]
    )
    restarts = GaugeMetricFamily(
        "warpdesk_worker_restarts", "Processes of the worker that were replaced since it started", labels=["slot"]
    )
    for slot, worker in sorted(slots.items(), key=lambda item: int(item[0])):
        heartbeat.add_metric([slot], worker.reported_at)
        restarts.add_metric([slot], worker.restarts)
    yield from (heartbeat, restarts)
    fleet = GaugeMetricFamily(
        "warpdesk_fleet_dollars_per_hour", "What the live workers whose device has a price cost together"
    )
    prices = [worker.dollars_per_hour for worker in workers if worker.dollars_per_hour is not None]
    if prices or not workers:
        fleet.add_metric([], sum(prices))
    yield fleet


def _of_judgement(gpus: Sequence[_Gpu]) -> Iterator[Metric]:
    """What workers found out by using a GPU."""
    state = _gauge("state", "1 for the state it is in, by the worst judgement of its workers", "state")
    canary = _gauge("canary_last_success_timestamp_seconds", "When it last answered right what is known")
    breaker = _gauge("breaker_open", "1 for each kernel or example that is kept off it", "what")
    breakers = _gauge("breakers_open", "How many kernels and examples are kept off it")
    faults = _gauge("faults", "Faults since its workers started", "kind")
    hung = _gauge("driver_hung", "1 while a call of the driver's library does not return")
    age = _gauge("reading_age_seconds", "How old the last reading of the driver is")
    for gpu in gpus:
        worst = max((worker.state for worker in gpu.workers), key=_WORST.index)
        for name in _WORST:
            state.add_metric([gpu.uuid, name], name == worst)
        answered = [worker.canary_at for worker in gpu.workers if worker.canary_at is not None]
        _add(canary, [gpu.uuid], min(answered, default=None))
        opened = sorted({found.what for worker in gpu.workers for found in worker.breakers})
        for what in opened:
            breaker.add_metric([gpu.uuid, what], 1)
        breakers.add_metric([gpu.uuid], len(opened))
        for kind, count in sorted(sum((Counter(worker.faults) for worker in gpu.workers), Counter[str]()).items()):
            faults.add_metric([gpu.uuid, kind], count)
        drivers = [worker.driver for worker in gpu.workers if worker.driver is not None]
        _add(hung, [gpu.uuid], any(driver.hung_since is not None for driver in drivers) if drivers else None)
        _add(age, [gpu.uuid], gpu.age)
    yield from (state, canary, breaker, breakers, faults, hung, age)


def _of_memory(gpus: Sequence[_Gpu]) -> Iterator[Metric]:
    for name, words in {
        "used": "in arrays",
        "held": "taken from the driver: used, or kept for reuse",
        "limit": "that the workers may hold at most",
        "stuck": "held, not used, and not given back when it was asked for",
    }.items():
        pool = _gauge(f"pool_{name}_bytes", f"Device memory of the workers' pools, {words}")
        for gpu in gpus:
            told = [getattr(worker.memory, name) for worker in gpu.workers if worker.memory is not None]
            _add(pool, [gpu.uuid], sum(told) if told else None)
        yield pool
    for name, words in {"used": "in use", "free": "free", "total": "there", "reserved": "kept by the driver"}.items():
        yield _each(gpus, f"memory_{name}_bytes", f"Device memory that is {words}", f"memory_{name}")
    memory = _gauge("process_memory_bytes", "Device memory of workers' processes, and of all others", "kind")
    for gpu in gpus:
        readings = [worker.driver.reading for worker in gpu.workers if worker.driver is not None]
        told = [r.process_memory for r in readings if r is not None and r.process_memory is not None]
        _add(memory, [gpu.uuid, "own"], sum(told) if told else None)
        if gpu.reading is not None and gpu.reading.other_memory is not None:
            everyone = gpu.reading.other_memory + (gpu.reading.process_memory or 0)
            memory.add_metric([gpu.uuid, "other"], max(0, everyone - sum(told)))
    yield memory
    yield _each(gpus, "processes", "Processes that compute on it", "processes")
    for name, words in {
        "sm_activity": "Of its multiprocessors, how many had work",
        "sm_occupancy": "Of the warps that its multiprocessors can hold, how many they held",
        "tensor_activity": "Share of time in which its tensor cores worked",
        "dram_activity": "Memory bandwidth used, of its peak",
    }.items():
        yield _each(gpus, f"{name}_ratio", f"{words}, between two readings", name)


def _of_driver(gpus: Sequence[_Gpu]) -> Iterator[Metric]:
    """What the driver says of whole GPUs."""
    info = _gauge(
        "info", "1; what it is, `mig` the GPU it is a slice of", "name", "driver", "cuda", "mig", "architecture"
    )
    wholes: dict[str, _Gpu] = {}
    for gpu in gpus:
        reading = gpu.reading
        if reading is None:
            continue
        rest = (
            reading.driver or "",
            reading.cuda or "",
            gpu.whole if gpu.whole != gpu.uuid else "",
            reading.architecture or "",
        )
        info.add_metric([gpu.uuid, reading.name, *rest], 1)
        if gpu.whole not in wholes or _age(gpu) < _age(wholes[gpu.whole]):
            wholes[gpu.whole] = gpu
    for uuid, gpu in sorted(wholes.items()):
        if gpu.reading is not None and uuid != gpu.uuid:
            reading = gpu.reading
            name = reading.name.partition(" MIG ")[0]
            info.add_metric([uuid, name, reading.driver or "", reading.cuda or "", "", reading.architecture or ""], 1)
    yield info
    readings = {uuid: gpu.reading for uuid, gpu in sorted(wholes.items()) if gpu.reading is not None}
    busy = "Share of time in which any kernel ran, not how much of the GPU worked"
    for name, words, field in (
        ("utilization_ratio", busy, "utilization"),
        ("temperature_celsius", "Its temperature", "temperature"),
        ("temperature_slowdown_celsius", "From which on it slows down", "slowdown_temperature"),
        ("power_watts", "What it takes", "power"),
        ("power_limit_watts", "What it may take", "power_limit"),
    ):
        yield _by_uuid(_gauge(name, words), readings, field)
    energy = CounterMetricFamily("warpdesk_gpu_energy_joules", "Taken since its driver was loaded", labels=["uuid"])
    yield _by_uuid(energy, readings, "energy")
    clock = _gauge("clock_hertz", "How fast it runs", "domain")
    event = _gauge("clock_event_active", "1 while this keeps its clocks from being higher", "reason")
    ecc = CounterMetricFamily(
        "warpdesk_gpu_ecc_errors", "Memory errors since its driver was loaded", labels=["uuid", "kind"]
    )
    rows = _gauge(
        "remapped_rows",
        "Rows of memory that were remapped after errors of a kind; 1 while one is pending, and once one failed",
        "kind",
    )
    for uuid, reading in readings.items():
        _add(clock, [uuid, "sm"], reading.sm_clock)
        _add(clock, [uuid, "memory"], reading.memory_clock)
        for reason in CLOCK_REASONS if reading.clock_reasons is not None else ():
            event.add_metric([uuid, reason], reason in (reading.clock_reasons or ()))
        _add(ecc, [uuid, "corrected"], reading.ecc_corrected)
        _add(ecc, [uuid, "uncorrected"], reading.ecc_uncorrected)
        if reading.rows_remapped is not None and reading.rows_remapped_uncorrected is not None:
            _add(rows, [uuid, "corrected"], reading.rows_remapped - reading.rows_remapped_uncorrected)
        _add(rows, [uuid, "uncorrected"], reading.rows_remapped_uncorrected)
        _add(rows, [uuid, "pending"], reading.remap_pending)
        _add(rows, [uuid, "failed"], reading.remap_failed)
    yield from (clock, event, ecc, rows)
    peak = _gauge("peak_memory_bandwidth_bytes_per_second", "Of its memory's bus at the highest clock")
    yield _by_uuid(peak, readings, "peak_memory_bandwidth")
    xids: dict[tuple[str, str], float] = {}
    for gpu in gpus:
        for worker in gpu.workers:
            for found in worker.driver.xids if worker.driver is not None else ():
                key = gpu.whole, str(found.xid)
                xids[key] = max(found.at, xids.get(key, 0.0))
    xid = _gauge("xid_last_timestamp_seconds", "When its driver last logged a fault of this number", "xid")
    for labels, at in sorted(xids.items()):
        xid.add_metric(list(labels), at)
    yield xid


def _gpus(workers: Sequence[WorkerReport], now: float) -> list[_Gpu]:
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


def _gauge(name: str, words: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"warpdesk_gpu_{name}", words, labels=["uuid", *labels])


def _each(gpus: Sequence[_Gpu], name: str, words: str, field: str) -> Metric:
    return _by_uuid(_gauge(name, words), {gpu.uuid: gpu.reading for gpu in gpus if gpu.reading is not None}, field)


def _by_uuid(
    family: GaugeMetricFamily | CounterMetricFamily,
    readings: Mapping[str, GpuReading],
    field: str,
) -> Metric:
    for uuid, reading in readings.items():
        _add(family, [uuid], getattr(reading, field))
    return family


def _add(family: GaugeMetricFamily | CounterMetricFamily, labels: list[str], value: _Value) -> None:
    if value is not None:
        family.add_metric(labels, value)
