"""The reports of workers: their state, their device, and the condition of its GPU.

A worker's parent process writes a WorkerReport every few seconds, and the API reads those that are within their time to
live.
"""

from typing import Literal

from pydantic import Field

from warpdesk_server.workers.queue.protocol import Kind, Message, kinds_taken

WorkerState = Literal["starting", "ready", "busy", "restarting"]


class DeviceReport(Message):
    """A worker's device in its report; `reason` says why there is no GPU when `backend` is "cpu"."""

    backend: Literal["cpu", "gpu"]
    name: str
    reason: str | None = None
    architecture: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    uuid: str | None = None
    fault: int | None = None  # the CUDA error with which opening a GPU failed, -1 where it computed wrongly


GpuState = Literal["healthy", "unknown", "degraded", "drain", "quarantine"]  # the later, the worse


class MigSlice(Message):
    """The part of a GPU that a MIG device is."""

    parent: str  # UUID of the whole GPU
    gpu_instance: int | None = None
    compute_instance: int | None = None


# Reasons why a GPU's clocks are not higher, by NVML's names.
CLOCK_REASONS = (
    "idle",
    "application clocks",
    "software power cap",
    "hardware slowdown",
    "sync boost",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "hardware power brake",
    "display clocks",
)


class GpuReading(Message):
    """The driver's reading of one GPU. A value that the GPU or its driver does not give is None, and never 0.

    Of a MIG device, memory is that of the slice, the rest that of the whole GPU.
    """

    uuid: str
    name: str
    index: int | None = None  # as nvidia-smi counts
    mig: MigSlice | None = None
    driver: str | None = None
    cuda: str | None = None  # the newest CUDA this driver runs
    architecture: str | None = None  # by its compute capability: "sm_90"
    memory_total: int | None = None  # bytes, here and below
    memory_used: int | None = None
    memory_free: int | None = None
    memory_reserved: int | None = None
    process_memory: int | None = None  # of the worker's child
    other_memory: int | None = None  # of other processes that compute on it
    processes: int | None = None  # that compute on it, the worker's child among them
    memory_bus_width: int | None = None  # bits
    peak_memory_bandwidth: int | None = None  # bytes per second: the bus at the memory's highest clock, both edges
    utilization: float | None = None  # share of time in which any kernel ran, not of how much of the GPU it used
    temperature: int | None = None  # degrees Celsius
    slowdown_temperature: int | None = None
    power: float | None = None  # watts
    power_limit: float | None = None
    energy: float | None = None  # joules since the driver was loaded
    sm_clock: int | None = None  # hertz
    memory_clock: int | None = None
    clock_reasons: tuple[str, ...] | None = None  # of CLOCK_REASONS
    ecc_uncorrected: int | None = None  # since the driver was loaded
    ecc_corrected: int | None = None
    rows_remapped: int | None = None  # of memory, for whatever cause
    rows_remapped_uncorrected: int | None = None  # of these, after an uncorrectable error
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pages_retired: int | None = None  # before Ampere, which remaps rows instead
    retirement_pending: bool | None = None
    recovery_action: str | None = None  # which the driver recommends: "none", "reset", "reboot", "drain-and-reset", ...
    # GPU performance monitoring, from Hopper on and where it is switched on; means since the reading before, 0 to 1.
    sm_activity: float | None = None  # of the multiprocessors, how many had work
    sm_occupancy: float | None = None  # of the warps they can hold, how many they held
    tensor_activity: float | None = None  # of the tensor pipes' time
    dram_activity: float | None = None  # of the peak memory bandwidth


class XidEvent(Message):
    """A fault the driver logged while the worker listened."""

    xid: int
    at: float  # Unix seconds
    asks: str  # the action in NVIDIA's catalogue: see workers.gpu.xid
    meaning: str


class GpuFinding(Message):
    """A fault of a GPU, and its remedy for an operator."""

    state: GpuState
    reason: str
    remedy: str


class GpuReport(Message):
    """The report of a GPU by its driver. `state` is that of the worst finding.

    degraded: it computes, but slower, or there is a doubt. drain: finish what runs, start nothing on it. quarantine:
    its results, or that it gives any, cannot be relied on. unknown: the driver does not say.
    """

    state: GpuState
    findings: tuple[GpuFinding, ...] = ()
    reading: GpuReading | None = None  # the last one
    age_seconds: float | None = None  # of the reading, when this report was made
    hung_since: float | None = None  # Unix seconds; a call of the driver's library has not returned since
    xids: tuple[XidEvent, ...] = ()  # the latest of each number


class BreakerReport(Message):
    """A circuit breaker: it keeps a kernel or an example off a GPU where it failed. Times are Unix seconds."""

    what: str  # a kernel's name, or an operation's example
    kind: Literal["kernel", "example"]
    state: Literal["open", "half-open"]
    reason: str
    since: float
    next_probe: float  # then a job may try it again


class DeviceMemory(Message):
    """Bytes on a device, of the one process that uses it: its `kernels.gpu.memory.MemoryReport`, and `outside`.

    `outside` is what the process has beside its pool: the context, modules, libraries. The parent takes it from
    the driver's reading; None where that does not say.
    """

    used: int
    held: int
    limit: int
    stuck: int
    peak: int
    outside: int | None = None

    @property
    def leftover(self) -> int:
        """Bytes that by a worker's report are in use, or stuck, between jobs."""
        return self.used + self.stuck

    def with_outside(self, driver: GpuReport | None) -> "DeviceMemory":
        reading = None if driver is None else driver.reading
        if reading is None or reading.process_memory is None:
            return self
        return self.model_copy(update={"outside": max(0, reading.process_memory - self.held)})


ConditionState = Literal["healthy", "degraded", "quarantined", "lost", "restarting", "absent"]


class GpuCondition(Message):
    """The condition of a worker's GPU, as the worker's parent process judges it. Times are Unix seconds.

    degraded: it serves, with a fault that is in `reason`. quarantined: jobs run on the CPU until it has
    passed its canary and the examples again. lost: its process has ended or is ending. restarting: a new process opens
    it. absent: there is none, or it is not to be used.
    """

    state: ConditionState
    reason: str | None = None
    since: float
    name: str | None = None
    uuid: str | None = None
    next_probe: float | None = None  # of a quarantined GPU
    breakers: tuple[BreakerReport, ...] = ()
    canary_at: float | None = None  # when its canary was last right
    call_since: float | None = None  # the running job has been in one call of it since, for a second or longer
    last_fault: str | None = None
    last_fault_at: float | None = None
    faults: dict[str, int] = Field(default={})  # by kind, since the worker started
    memory: DeviceMemory | None = None
    driver: GpuReport | None = None


class FailedExample(Message):
    """An example that failed when the worker warmed up, and has not been answered since."""

    operation: str
    variant: str | None = None  # None is the documented example
    backend: Literal["cpu", "gpu"]
    error: str  # the exception's type
    message: str
    fallback: bool = False  # the CPU ran it instead, as it will run the operation's jobs
    choices: dict[str, bool | str] = Field(default={})  # a variant's parameters that are words or switches
    dtypes: dict[str, str] = Field(default={})  # a variant's inputs
    lost_the_device: bool = False  # at an earlier start; it was not tried on the GPU again

    @property
    def trial(self) -> str:
        """The name, in a worker's report, of an example that failed; no other example of any operation has it."""
        return self.operation if self.variant is None else f"{self.operation} ({self.variant})"

    @property
    def disables(self) -> bool:
        """Whether a worker's report leaves nothing that shows that it can run the failed example's operation at all."""
        return self.variant is None and not self.fallback


class WarmUp(Message):
    """How many examples of operations a worker's child has tried."""

    done: int
    of: int


class WorkerReport(Message):
    name: str
    host: str
    pid: int
    child_pid: int | None
    state: WorkerState
    device: DeviceReport | None  # None until the child has probed
    started_at: float
    reported_at: float
    restarts: int = 0
    last_fault: str | None = None
    failed_examples: tuple[FailedExample, ...] = ()
    gpu: GpuCondition | None = None  # None until the first child is ready or has failed
    fallbacks: dict[str, int] = Field(default={})  # answers of the CPU to jobs that wanted a GPU, by the reason
    slot: int | None = None  # the smallest number that was free when it came: see workers.queue.slots
    dollars_per_hour: float | None = None  # the price of its device, if it has one: see workers.prices
    warm_up: WarmUp | None = None  # None once every example was tried. On the CPU jobs are computed meanwhile
    long_fault: str | None = None  # why its companion for long jobs does not run
    task_fault: str | None = None  # the same of its companion for tasks
    started_by: int = 0  # process on its host; where that is another worker's, the two share a device
    cpu_share: float = 1.0  # of its host's cores: the threads with which its child computes on the CPU
    takes: str = ""  # which jobs: `workers.settings.Takes`. The release before wrote none, and took no long ones

    # The tasks that a worker of tasks knows, each with the libraries that its environment lacks. A worker that starts
    # another for them has what that reported last. None where nothing is known, and from the release before.
    tasks: dict[str, tuple[str, ...]] | None = None

    @property
    def able(self) -> bool:
        """Whether the worker, by its report, takes jobs and has tried every operation's example."""
        return self.state in ("ready", "busy") and self.warm_up is None

    @property
    def serves_quick_jobs(self) -> bool:
        return self.takes not in ("long", "tasks")

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of work that by its report the worker takes, itself or by its companion."""
        return kinds_taken(self.takes, gpu=self.device is not None and self.device.backend == "gpu")
