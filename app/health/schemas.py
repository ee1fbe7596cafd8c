"""Schemas of health: whether the service works, and what each GPU does in the judgement of its worker."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from warpdesk.models import Reply
from warpdesk_server.workers.queue.reports import ConditionState, GpuFinding, GpuState, MigSlice, WarmUp, WorkerReport


class Health(Reply):
    status: Literal["ok", "degraded", "unavailable"]
    reasons: list[str]


class Readiness(Health):
    store_free_bytes: Annotated[
        int,
        Field(description="bytes that are free on the disk of arrays and results, at least: rounded to a power of two"),
    ]
    warm_up: Annotated[
        WarmUp | None,
        Field(description="how many examples of operations the furthest worker has tried; null if none warms up"),
    ]


class GpuHealth(Reply):
    status: Annotated[
        Literal["ok", "degraded", "none", "unknown"],
        Field(description="none: no worker has a GPU; unknown: no worker is alive, or has said yet what it has"),
    ]
    reasons: list[str]
    devices: list["GpuDevice"]
    workers: Annotated[
        list[WorkerReport], Field(description="What each says of itself; none for a key without the scope `metrics`")
    ]


class GpuDevice(Reply):
    """A GPU in the judgement of the worker that uses it. Each is there once.

    What the jobs of all keys do to it is for keys with the scope `metrics`: for others `reason` is null unless there is
    no GPU, and so are times and faults of calls and canaries, and what the driver says of load.
    """

    worker: Annotated[str, Field(description="Whose judgement it is: of several workers that of the worst")]
    workers: Annotated[list[str], Field(description="That use it: a worker and its companion for long jobs share one")]
    host: str
    name: str | None
    uuid: str | None
    state: Annotated[
        ConditionState,
        Field(
            description="degraded: it serves, and something is wrong; quarantined: jobs run on the CPU until it has "
            "passed its canary and the examples again; lost, restarting: its process ends, or a new one opens it; "
            "absent: there is none"
        ),
    ]
    reason: str | None
    since: datetime | None
    next_probe_at: Annotated[datetime | None, Field(description="When a quarantined GPU is tried again")]
    breakers: Annotated[list["GpuBreaker"], Field(description="Kernels and examples that are kept off the GPU")]
    canary_at: Annotated[datetime | None, Field(description="When it last answered right what is known")]
    canary_age_seconds: float | None
    call_since: Annotated[
        datetime | None,
        Field(
            description="Since when the running job has been in one call of it, told from one second on; where its "
            "size does not explain that, the state is degraded"
        ),
    ]
    last_fault: str | None
    last_fault_at: datetime | None
    faults: Annotated[dict[str, int] | None, Field(description="By kind, since the worker started")]
    slot: Annotated[int | None, Field(description="The worker's number in metrics")]
    dollars_per_hour: Annotated[float | None, Field(description="By the table of prices; null without one")]
    driver: Annotated["GpuDriver | None", Field(description="What the driver says of it")]


class GpuDriver(Reply):
    """What the driver said of a GPU when it was read last; null is what this GPU or its driver does not tell.

    Of a MIG device, memory, processes and activities are those of the slice, the rest is of the whole GPU.
    """

    state: Annotated[
        GpuState,
        Field(description="drain: start nothing on it; quarantine: what it computes cannot be relied on"),
    ]
    findings: Annotated[list[GpuFinding], Field(description="What is wrong with it, and what to do about it")]
    hung_since: Annotated[
        datetime | None, Field(description="A call of the driver's library has not returned since; nobody waits for it")
    ]
    age_seconds: Annotated[float | None, Field(description="Of the reading, from which all of the following is")]
    index: Annotated[int | None, Field(description="As nvidia-smi counts")]
    mig: Annotated[MigSlice | None, Field(description="The slice it is, of which GPU")]
    driver: Annotated[str | None, Field(description="Version")]
    cuda: Annotated[str | None, Field(description="The newest CUDA this driver runs")]
    architecture: Annotated[str | None, Field(description='By its compute capability: "sm_90"')]
    utilization: Annotated[
        float | None, Field(description="Share of time in which any kernel ran, not how much of the GPU worked; 0 to 1")
    ]
    temperature_celsius: int | None
    slowdown_temperature_celsius: Annotated[int | None, Field(description="From which on it slows itself down")]
    power_watts: float | None
    power_limit_watts: float | None
    energy_joules: Annotated[float | None, Field(description="Taken since the driver was loaded")]
    sm_clock_hertz: int | None
    memory_clock_hertz: int | None
    clock_reasons: Annotated[list[str] | None, Field(description="Why its clocks are not higher")]
    memory_bus_bits: int | None
    peak_memory_bandwidth_bytes_per_second: int | None
    processes: Annotated[int | None, Field(description="That compute on it, the worker's among them")]
    ecc_corrected: Annotated[int | None, Field(description="Memory errors since the driver was loaded")]
    ecc_uncorrected: Annotated[int | None, Field(description="Memory errors since the driver was loaded")]
    rows_remapped: Annotated[int | None, Field(description="Rows of memory, for whatever cause")]
    rows_remapped_uncorrected: Annotated[int | None, Field(description="Of these, after an uncorrectable error")]
    remap_pending: bool | None
    remap_failed: bool | None
    pages_retired: Annotated[int | None, Field(description="Pages of memory, before Ampere")]
    retirement_pending: bool | None
    recovery_action: Annotated[str | None, Field(description="What the driver asks for")]
    sm_activity: Annotated[
        float | None, Field(description="Of the multiprocessors, how many had work; 0 to 1. See WARPDESK_GPM")
    ]
    sm_occupancy: Annotated[float | None, Field(description="Of the warps they can hold, how many they held; 0 to 1")]
    tensor_activity: Annotated[float | None, Field(description="Share of time in which tensor cores worked; 0 to 1")]
    dram_activity: Annotated[float | None, Field(description="Memory bandwidth used, of its peak; 0 to 1")]
    xids: Annotated[list["GpuXid"], Field(description="Faults the driver logged, the latest of each number")]


class GpuXid(Reply):
    xid: int
    at: datetime | None
    asks: Annotated[str, Field(description="What NVIDIA's catalogue says to do")]
    meaning: str


class GpuBreaker(Reply):
    what: Annotated[str, Field(description="A kernel's name, or an operation's example")]
    kind: Literal["kernel", "example"]
    state: Literal["open", "half-open"]
    reason: str
    since: datetime | None
    next_probe_at: Annotated[datetime | None, Field(description="From then on one job may try it")]


class GpuMemory(Reply):
    """Memory of each GPU a live worker reported."""

    devices: list["GpuMemoryDevice"]


class GpuMemoryOfWorker(Reply):
    """Bytes of one worker's process on a GPU."""

    worker: str
    used_bytes: int | None = None
    held_bytes: int | None = None
    limit_bytes: int | None = None
    stuck_bytes: int | None = None
    outside_bytes: int | None = None
    peak_bytes: int | None = None
    process_bytes: int | None = None


class GpuMemoryDevice(Reply):
    """Bytes, of all workers that use the GPU together; null until one has told, as while it restarts, and for a key
    without the scope `metrics`, but for the device's total, the limit and what the driver keeps."""

    worker: Annotated[str, Field(description="As in `/gpu-health`")]
    workers: Annotated[list[GpuMemoryOfWorker], Field(description="What each process has of it")]
    name: str
    uuid: str | None
    memory_bytes: Annotated[int | None, Field(description="Total memory of the device")]
    used_bytes: Annotated[int | None, Field(description="In arrays")]
    held_bytes: Annotated[int | None, Field(description="Taken from the driver: used, and kept for reuse")]
    limit_bytes: Annotated[int | None, Field(description="The most that is held")]
    stuck_bytes: Annotated[int | None, Field(description="Held, not used, and not given back when it was asked for")]
    outside_bytes: Annotated[int | None, Field(description="Of the processes beside their pools: context, modules")]
    peak_bytes: Annotated[int | None, Field(description="The most used at a time in the last job")]
    device_used_bytes: Annotated[int | None, Field(description="Of the device, by the driver: of all processes")]
    device_free_bytes: Annotated[int | None, Field(description="Of the device, by the driver")]
    device_reserved_bytes: Annotated[int | None, Field(description="Of the device, kept by the driver for itself")]
    process_bytes: Annotated[int | None, Field(description="Of the workers' processes, by the driver")]
    others_bytes: Annotated[int | None, Field(description="Of other processes, by the driver")]
    processes: Annotated[int | None, Field(description="That compute on it")]
    age_seconds: Annotated[float | None, Field(description="Of what the driver says")]
