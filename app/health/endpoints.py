"""Health routes: the state of this process, the queue, the workers and their GPUs."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import anyio.to_thread
from fastapi import APIRouter, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST

from warpdesk_server.app.access.auth import Reader, Watcher
from warpdesk_server.app.health import schemas
from warpdesk_server.app.health.devices import ReportedGpu, reported_gpus
from warpdesk_server.app.kit import errors
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.schemas import moment
from warpdesk_server.app.metrics import performance
from warpdesk_server.app.metrics.schemas import ServicePerformance
from warpdesk_server.app.services import Services, ServicesDep
from warpdesk_server.kernels.operation import Operation
from warpdesk_server.workers.queue.reports import (
    DeviceMemory,
    FailedExample,
    GpuCondition,
    GpuReading,
    GpuReport,
    WarmUp,
    WorkerReport,
)

router = APIRouter(tags=["health"])

# What tells how much all keys compute, and is null to a key without the scope `metrics`.
_LOAD_OF_DEVICE = ("call_since", "canary_at", "canary_age_seconds", "last_fault", "last_fault_at", "faults")
_LOAD_OF_DRIVER = (
    "utilization", "temperature_celsius", "power_watts", "energy_joules", "sm_clock_hertz", "memory_clock_hertz",
    "clock_reasons", "processes", "sm_activity", "sm_occupancy", "tensor_activity", "dram_activity",
)  # fmt: skip
_LOAD_OF_MEMORY_OF_WORKER = (
    "used_bytes", "held_bytes", "stuck_bytes", "outside_bytes", "peak_bytes", "process_bytes",
)  # fmt: skip
_LOAD_OF_MEMORY = (
    "used_bytes", "held_bytes", "stuck_bytes", "outside_bytes", "peak_bytes", "device_used_bytes", "device_free_bytes",
    "process_bytes", "others_bytes", "processes",
)  # fmt: skip

# A worker replaces its child after a cancel or a time-out, by its own will: within so many seconds jobs wait, no more.
_REPLACING_SECONDS = 5.0

_CALLER = errors.documented("unauthorized", "missing-scope", "foreign-host", "queue-unavailable")
_UNAVAILABLE: dict[int | str, dict[str, object]] = {
    503: {"model": schemas.Readiness, "description": "Jobs cannot be run now; `reasons` says why"}
}


@router.get("/livez", summary="Is the process alive", response_model=schemas.Health)
async def livez() -> schemas.Health:
    """Answers as long as the event loop turns; asks nothing of Redis or workers."""
    return schemas.Health(status="ok", reasons=[])


@router.get("/readyz", summary="Can a job be taken and run", response_model=schemas.Readiness, responses=_UNAVAILABLE)
async def readyz(services: ServicesDep, response: Response) -> schemas.Readiness:
    """200 when the queue takes writes, the disk of arrays and results has room, and a worker that reported within its
    time can run at least one operation.

    A worker is ready when it has tried each operation's example. Until then `warm_up` says how many it has tried; on
    the CPU it computes jobs meanwhile. `degraded` names the examples that failed. Their jobs are taken, and fail or
    fall back to the CPU as the reason says.
    """
    health = await _health(services)
    if health.status == "unavailable":
        response.status_code = 503
    return health


@router.get("/health", summary="How the service is", response_model=schemas.Readiness, responses=_UNAVAILABLE)
async def health(services: ServicesDep, response: Response) -> schemas.Readiness:
    """As `/readyz`, and `degraded` says what is wrong although jobs run."""
    return await readyz(services, response)


async def _health(services: Services) -> schemas.Readiness:
    trouble, (left, _) = await anyio.to_thread.run_sync(lambda: (services.store.trouble(), services.store.disk()))
    workers = list[WorkerReport]()
    try:
        await services.queue.writable()
        workers += await services.queue(lambda jobs: jobs.workers())
        health = _of_workers(services, workers)
    except Refusal as refusal:
        health = schemas.Health(status="unavailable", reasons=[refusal.detail])
    if trouble is not None:
        health = schemas.Health(status="unavailable", reasons=[trouble, *health.reasons])
    about = 1 << (left.bit_length() - 1) if left else 0  # exactly, it would tell the sizes of others' arrays
    warming = [worker.warm_up for worker in workers if worker.warm_up is not None]
    return schemas.Readiness(
        status=health.status,
        reasons=health.reasons,
        store_free_bytes=about,
        warm_up=max(warming, key=lambda warm_up: warm_up.done, default=None),
    )


_OTHERS = {"long": "long jobs", "tasks": "tasks"}  # what workers take that take no quick jobs


def _of_workers(services: Services, workers: Sequence[WorkerReport]) -> schemas.Health:
    quick = [worker for worker in workers if worker.serves_quick_jobs]
    able = [worker for worker in quick if _is_able(services, worker)]
    if not able:
        states = [_progress(worker.warm_up) or worker.state for worker in quick]
        states += [f"takes {_OTHERS[worker.takes]} alone" for worker in workers if not worker.serves_quick_jobs]
        sentence = (
            f"None of {len(workers)} live workers is ready" + (": " if states else "") + ", ".join(sorted(states))
        )
        return schemas.Health(status="unavailable", reasons=[sentence, *_gpus(workers), *_failures(workers)])
    troubles = [*services.admission.troubles(), *_waiting(workers), *_gpus(workers), *_failures(able)]
    offered = {name for name, one in services.operations.items() if isinstance(one, Operation)}
    if offered and all(_disabled(worker) >= offered for worker in able):
        sentence = f"None of {len(able)} ready workers can run any operation"
        return schemas.Health(status="unavailable", reasons=[sentence, *troubles])
    return schemas.Health(status="degraded" if troubles else "ok", reasons=troubles)


def _is_able(services: Services, worker: WorkerReport) -> bool:
    return worker.able or services.admission.able_lately(worker, _REPLACING_SECONDS)


def _progress(warm_up: WarmUp | None) -> str:
    return f"warming {warm_up.done} of {warm_up.of}" if warm_up is not None else ""


def _waiting(workers: Sequence[WorkerReport]) -> list[str]:
    # One that takes long jobs is started when there are some, and its child anew after a cancel: that is no trouble.
    waiting = [each for each in workers if not each.able and (each.serves_quick_jobs or each.last_fault is not None)]
    reasons = [f"{len(waiting)} of {len(workers)} live workers are starting or restarting"] if waiting else []
    if failed := sum(each.long_fault is not None for each in workers):
        reasons.append(f"{failed} of {len(workers)} live workers cannot start a process for long jobs")
    if failed := sum(each.task_fault is not None for each in workers):
        reasons.append(f"{failed} of {len(workers)} live workers cannot start a process for tasks")
    return reasons


def _gpus(workers: Sequence[WorkerReport]) -> list[str]:
    """Sentences of the health reply for GPUs that are degraded, quarantined or kept off although jobs run. The
    causes need a key."""
    gpus = [worker.gpu for worker in workers if worker.gpu is not None]
    states = Counter(gpu.state for gpu in gpus)
    kept_off = Counter(breaker.what for gpu in gpus for breaker in gpu.breakers)
    of = f"of {len(workers)} live workers"
    reasons = [f"{what} is kept off the GPU of {count} {of}" for what, count in sorted(kept_off.items())]
    if count := states["quarantined"]:
        reasons.append(f"The GPU of {count} {of} is quarantined; jobs run on the CPU there")
    if count := states["degraded"]:
        reasons.append(f"The GPU of {count} {of} is degraded")
    return reasons


def _disabled(worker: WorkerReport) -> set[str]:
    return {failure.operation for failure in worker.failed_examples if failure.disables}


def _failures(workers: Sequence[WorkerReport]) -> list[str]:
    """A sentence of the health reply for each failing example of an operation, with the kinds of errors. The errors'
    messages are for keys alone."""
    errors: dict[tuple[str, str | None, bool], list[str]] = defaultdict(list)
    for worker in workers:
        for failure in worker.failed_examples:
            errors[failure.operation, failure.variant, failure.fallback].append(failure.error)
    return [
        f"{_example(operation, variant)} {'falls back to the CPU' if fallback else 'fails'} on {len(found)} of "
        f"{len(workers)} workers: {', '.join(sorted(set(found)))}"
        for (operation, variant, fallback), found in errors.items()
    ]


def _example(operation: str, variant: str | None) -> str:
    return operation if variant is None else f"{operation} ({variant})"


def _health_notes(worker: WorkerReport, failures: Iterable[FailedExample]) -> list[str]:
    return [
        f"{_example(failure.operation, failure.variant)} failed on the {failure.backend} of {worker.name} with "
        f"{failure.error}: {failure.message}" + ("; its jobs fall back to the CPU" if failure.fallback else "")
        for failure in failures
    ]


@router.get(
    "/gpu-health", summary="What each worker says of its device", response_model=schemas.GpuHealth, responses=_CALLER
)
async def gpu_health(caller: Reader, services: ServicesDep) -> schemas.GpuHealth:
    """What jobs do to it is told to keys with the scope `metrics` alone."""
    workers = list(await services.queue(lambda jobs: jobs.workers()))
    if not workers:
        return schemas.GpuHealth(status="unknown", reasons=["No worker is alive"], devices=[], workers=[])
    devices, shown = [_device(gpu) for gpu in reported_gpus(workers)], workers
    if not caller.allows("metrics"):
        devices, shown = [_without_load(device) for device in devices], []
    if not devices:
        reason = f"None of {len(workers)} live workers has said yet whether it has a GPU"
        return schemas.GpuHealth(status="unknown", reasons=[reason], devices=[], workers=shown)
    present = [device for device in devices if device.state != "absent"]
    if not present:
        why = sorted({device.reason for device in devices if device.reason})
        return schemas.GpuHealth(status="none", reasons=why, devices=devices, workers=shown)
    reasons = [
        f"{device.worker} is {device.state}" + (f": {device.reason}" if device.reason else "")
        for device in present
        if device.state != "healthy"
    ]
    for worker in workers:
        reasons += _health_notes(worker, (failure for failure in worker.failed_examples if failure.backend == "gpu"))
    status: Literal["ok", "degraded"] = "degraded" if reasons else "ok"
    return schemas.GpuHealth(status=status, reasons=reasons, devices=devices, workers=shown)


def _without_load(device: schemas.GpuDevice) -> schemas.GpuDevice:
    """A GPU in the reply of `/gpu-health` without what jobs of all keys do to it. Its reasons tell that too: why it
    restarts, what hangs."""
    driver = device.driver and device.driver.model_copy(update=dict.fromkeys(_LOAD_OF_DRIVER))
    hidden = _LOAD_OF_DEVICE if device.state == "absent" else ("reason", *_LOAD_OF_DEVICE)
    return device.model_copy(update={**dict.fromkeys(hidden), "driver": driver})


def _device(reported: ReportedGpu) -> schemas.GpuDevice:
    worker, gpu = reported.worker, reported.condition
    return schemas.GpuDevice(
        worker=worker.name,
        workers=[each.name for each, _ in reported.reports],
        host=worker.host,
        name=gpu.name,
        uuid=gpu.uuid,
        state=gpu.state,
        reason=gpu.reason,
        since=moment(gpu.since),
        next_probe_at=moment(gpu.next_probe),
        breakers=[
            schemas.GpuBreaker(
                what=breaker.what,
                kind=breaker.kind,
                state=breaker.state,
                reason=breaker.reason,
                since=moment(breaker.since),
                next_probe_at=moment(breaker.next_probe),
            )
            for breaker in gpu.breakers
        ],
        canary_at=moment(gpu.canary_at),
        canary_age_seconds=None if gpu.canary_at is None else max(0.0, time.time() - gpu.canary_at),
        call_since=moment(gpu.call_since),
        last_fault=gpu.last_fault,
        last_fault_at=moment(gpu.last_fault_at),
        faults=gpu.faults,
        slot=worker.slot,
        dollars_per_hour=worker.dollars_per_hour,
        driver=None if gpu.driver is None else _driver(reported.read_by, gpu.driver),
    )


def _driver(worker: WorkerReport, driver: GpuReport) -> schemas.GpuDriver:
    reading = driver.reading or GpuReading(uuid="", name="")
    return schemas.GpuDriver(
        state=driver.state,
        findings=list(driver.findings),
        hung_since=moment(driver.hung_since),
        age_seconds=_age(worker, driver),
        index=reading.index,
        mig=reading.mig,
        driver=reading.driver,
        cuda=reading.cuda,
        architecture=reading.architecture,
        utilization=reading.utilization,
        temperature_celsius=reading.temperature,
        slowdown_temperature_celsius=reading.slowdown_temperature,
        power_watts=reading.power,
        power_limit_watts=reading.power_limit,
        energy_joules=reading.energy,
        sm_clock_hertz=reading.sm_clock,
        memory_clock_hertz=reading.memory_clock,
        clock_reasons=None if reading.clock_reasons is None else list(reading.clock_reasons),
        memory_bus_bits=reading.memory_bus_width,
        peak_memory_bandwidth_bytes_per_second=reading.peak_memory_bandwidth,
        processes=reading.processes,
        ecc_corrected=reading.ecc_corrected,
        ecc_uncorrected=reading.ecc_uncorrected,
        rows_remapped=reading.rows_remapped,
        rows_remapped_uncorrected=reading.rows_remapped_uncorrected,
        remap_pending=reading.remap_pending,
        remap_failed=reading.remap_failed,
        pages_retired=reading.pages_retired,
        retirement_pending=reading.retirement_pending,
        recovery_action=reading.recovery_action,
        sm_activity=reading.sm_activity,
        sm_occupancy=reading.sm_occupancy,
        tensor_activity=reading.tensor_activity,
        dram_activity=reading.dram_activity,
        xids=[
            schemas.GpuXid(xid=event.xid, at=moment(event.at), asks=event.asks, meaning=event.meaning)
            for event in driver.xids
        ],
    )


def _age(worker: WorkerReport, driver: GpuReport | None) -> float | None:
    """The age of the driver's reading in the reply of `/gpu-health`, in seconds: the report that holds it is of a
    while ago too."""
    if driver is None or driver.age_seconds is None:
        return None
    return round(driver.age_seconds + max(0.0, time.time() - worker.reported_at), 3)


@router.get("/gpu-memory", summary="Memory of each GPU", response_model=schemas.GpuMemory, responses=_CALLER)
async def gpu_memory(caller: Reader, services: ServicesDep) -> schemas.GpuMemory:
    """How much of it is in use is told to keys with the scope `metrics` alone."""
    workers = await services.queue(lambda jobs: jobs.workers())
    devices = [_memory(gpu) for gpu in reported_gpus(workers) if gpu.condition.state not in ("absent", "quarantined")]
    if not caller.allows("metrics"):
        devices = [_without_memory_load(device) for device in devices]
    return schemas.GpuMemory(devices=devices)


def _without_memory_load(device: schemas.GpuMemoryDevice) -> schemas.GpuMemoryDevice:
    """A GPU in the reply of `/gpu-memory` without how much of it the jobs of all keys use."""
    workers = [each.model_copy(update=dict.fromkeys(_LOAD_OF_MEMORY_OF_WORKER)) for each in device.workers]
    return device.model_copy(update={**dict.fromkeys(_LOAD_OF_MEMORY), "workers": workers})


def _memory_of(worker: WorkerReport, gpu: GpuCondition) -> schemas.GpuMemoryOfWorker:
    pool = {} if gpu.memory is None else {f"{name}_bytes": value for name, value in gpu.memory}
    reading = None if gpu.driver is None else gpu.driver.reading
    return schemas.GpuMemoryOfWorker(
        worker=worker.name, process_bytes=None if reading is None else reading.process_memory, **pool
    )


def _memory(reported: ReportedGpu) -> schemas.GpuMemoryDevice:
    worker, gpu = reported.worker, reported.condition
    workers = [_memory_of(*report) for report in reported.reports]
    reading = None if gpu.driver is None else gpu.driver.reading
    device = {} if reading is None else reading.model_dump()
    fields = (*DeviceMemory.model_fields, "process")
    ours = {name: _sum(getattr(each, f"{name}_bytes") for each in workers) for name in fields}
    others = device.get("other_memory")
    if others is not None:  # to the worker whose reading it is, the companion is another process
        own = sum(each.process_bytes or 0 for each in workers)
        others = max(0, others + (device.get("process_memory") or 0) - own)
    return schemas.GpuMemoryDevice(
        worker=worker.name,
        workers=workers,
        name=gpu.name or "",
        uuid=gpu.uuid,
        memory_bytes=worker.device.memory_bytes if worker.device is not None else None,
        used_bytes=ours.get("used"),
        held_bytes=ours.get("held"),
        limit_bytes=ours.get("limit"),
        stuck_bytes=ours.get("stuck"),
        outside_bytes=ours.get("outside"),
        peak_bytes=ours.get("peak"),
        device_used_bytes=device.get("memory_used"),
        device_free_bytes=device.get("memory_free"),
        device_reserved_bytes=device.get("memory_reserved"),
        process_bytes=ours.get("process"),
        others_bytes=others,
        processes=device.get("processes"),
        age_seconds=_age(reported.read_by, gpu.driver),
    )


def _sum(amounts: Iterable[int | None]) -> int | None:
    """The sum of what is known; None where nothing is."""
    found = [amount for amount in amounts if amount is not None]
    return sum(found) if found else None


@router.get(
    "/performance-metrics",
    summary="How quick jobs are, and whether that changed",
    response_model=ServicePerformance,
    responses=errors.documented(
        "invalid-request", "unauthorized", "missing-scope", "foreign-host", "queue-unavailable"
    ),
)
async def performance_metrics(
    _: Watcher,
    services: ServicesDep,
    hours: Annotated[int, Query(ge=1, le=24, description="How many whole clock hours to look at, beside this one")] = 1,
) -> ServicePerformance:
    """For keys with the scope `metrics`: it is of the jobs of all keys."""
    return performance.report(await services.queue(lambda jobs: services.history.read(jobs, hours)))


@router.get(
    "/metrics",
    summary="Metrics in the Prometheus text format",
    response_class=Response,
    responses={
        200: {"description": "Metrics", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **errors.documented("unauthorized", "missing-scope", "foreign-host"),
    },
)
async def metrics(caller: Watcher, services: ServicesDep) -> Response:
    """For keys with the scope `metrics`. Metrics of budgets and rounds name datasets: only a key with the scope `admin`
    and the private port get them."""
    page = await anyio.to_thread.run_sync(lambda: services.metrics.exposition(budgets=caller.allows("admin")))
    return Response(page, headers={"Content-Type": CONTENT_TYPE_LATEST})
