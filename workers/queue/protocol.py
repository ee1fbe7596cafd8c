"""The contract between HTTP, queue and worker: small JSON models and the name of every Redis key."""

import hashlib
import json
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from warpdesk_server.kernels.array import ArrayInfo, DType

BackendWish = Literal["auto", "gpu", "cpu"]
Priority = Literal["realtime", "batch", "research"]
WorkerState = Literal["starting", "ready", "busy", "restarting"]

QUEUE = "warpdesk"  # what the names of RQ's queues begin with, and the queue RQ shows workers at
PRIORITIES: tuple[Priority, ...] = ("realtime", "batch", "research")
TASK = "workers.execute.run"  # the only function a job may name; a name in Redis, which older releases know
MAX_STRIKES = 3  # attempts that the job itself ended the worker with
MAX_ATTEMPTS = 10  # of a job, for whatever reason they ended

# Pub/sub: each event of each job, an Event as JSON; after a last one and a line break, unless it is large, the record.
EVENTS = "warpdesk:events"
LEASES = "warpdesk:leases"  # sorted set: the running jobs, by the time their worker must have renewed its claim
WORKERS = "warpdesk:workers"  # hash: each worker's name and the identity of its process


def job_key(job_id: str) -> str:
    """Hash: the job record (fields in `workers.queue.jobs`)."""
    return f"warpdesk:job:{job_id}"


def owner_key(owner: str) -> str:
    """Sorted set, all scores 0: the ids of one API key's jobs, in time order because they are UUIDv7."""
    return f"warpdesk:jobs:{owner}"


def uses_key(owner: str, array_id: str) -> str:
    """Set: the live (queued or running) jobs that read an array."""
    return f"warpdesk:uses:{owner}:{array_id}"


def events_key(job_id: str) -> str:
    """Stream: the job's events; an entry's id is "<number>-0", its field "event" an Event as JSON."""
    return f"warpdesk:events:{job_id}"


def worker_key(name: str) -> str:
    """String with a time to live: the WorkerReport of a worker that is alive."""
    return f"warpdesk:worker:{name}"


CLAIM = "Warpdesk-Claim"  # header of a worker's request: the token of the claim of the attempt that it is about


def digest_of_claim(token: str) -> str:
    """What Redis is told of a claim's token. Who can read Redis cannot present the token."""
    return hashlib.blake2b(token.encode(), digest_size=16).hexdigest()


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"

    @property
    def final(self) -> bool:
        return self not in (State.QUEUED, State.RUNNING)


class Message(BaseModel):
    """What it does not know it passes over: while a service is updated, processes of two releases read one Redis."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Together(Message):
    """With which other jobs a job may run in one launch, and the limits of one."""

    key: str  # digest of the operation's batch key, the backend wish and, for private operations, the owner
    items: int
    bytes: int
    wait: float = 0.0  # seconds to wait for company


class ChargeRef(Message):
    """What a release was charged to: the charge, its budget, and the hash of the budget's chain with this charge."""

    id: str
    budget: str
    head: str


class JobRequest(Message):
    """What a worker needs to run a job. Inputs are array ids in the owner's part of the store."""

    id: str
    owner: str  # id of the API key
    operation: str
    params: dict[str, Any]
    inputs: dict[str, str]
    backend: BackendWish = "auto"
    priority: Priority = "batch"
    seed: int | None = None
    deadline: float | None = None  # Unix seconds
    timeout: float  # seconds a single attempt may run
    work: float = 0.0  # elementary steps, about: `kernels.operation.Cost.steps`
    size: int = 0  # bytes, about: `kernels.operation.Cost.bytes`
    private: bool = False  # has private random words, of which its times tell, or secret inputs, which nobody keeps
    together: Together | None = None  # None: always alone
    result_ttl: float  # seconds
    charge: ChargeRef | None = None  # of a release that a budget pays for
    request_id: str | None = None  # of the HTTP request that made it

    @property
    def canonical_params(self) -> str:
        """The same text for the same parameters, as the ledger digests them."""
        return json.dumps(self.params, sort_keys=True, separators=(",", ":"))

    @property
    def canonical_inputs(self) -> str:
        return json.dumps(self.inputs, sort_keys=True, separators=(",", ":"))


EventName = Literal["queued", "running", "progress", "succeeded", "failed", "canceled", "expired"]


class Event(Message):
    """Something that happened to a job. Private jobs have no "running" and no "progress"."""

    job: str
    number: int  # 1, 2, ... of this job
    event: EventName
    at: float  # Unix seconds by Redis' clock
    attempt: int
    progress: float | None = None  # of "progress"
    reason: str | None = None  # of "queued": why it is queued again

    @property
    def final(self) -> bool:
        return self.event not in ("queued", "running", "progress")


class PublicProvenance(Message):
    """How an answer was computed. Private operations leave the compute times out: a sampler's time leaks its noise."""

    backend: Literal["cpu", "gpu"]
    device: str
    device_uuid: str | None = None  # of the GPU, where its driver told it
    fallback_reason: str | None = None  # why not the GPU, where nobody asked for the CPU and it was not chosen
    backend_reason: str | None = None  # by what prediction this backend was chosen where both could compute it
    batch_size: int = 1  # jobs in the same launch; an owner is told of its own alone
    batch_reason: str | None = None  # why the batch grew no further: "full", "bytes", "waited", "drained"
    coalesced: bool = False  # an identical job of the same key, live at the time, was computed for this one too
    seed: int | None = None
    attempt: int
    queue_seconds: float | None = None
    copy_seconds: float | None = None
    kernel_seconds: float | None = None
    compute_seconds: float | None = None
    fallback_seconds: float | None = None  # from a fault on the GPU to the first instruction on the CPU
    energy_joules: float | None = None  # of the GPU, this job's share of its launch; None where nobody can tell
    cost_dollars: float | None = None  # the same share of the launch's seconds at the device's price, if it has one
    charge: ChargeRef | None = None  # what the release was charged to


class Provenance(PublicProvenance):
    """Provenance as the worker knows it, of the whole launch (the owner's: `app.jobs.records.provenance`)."""

    batch_own: int | None = None  # of `batch_size`, jobs of the same owner; a release before this one told none


class Transfers(Message):
    """What was copied between the host and the device, in bytes, and for how many seconds it was."""

    h2d_bytes: int = 0
    h2d_seconds: float = 0.0
    d2h_bytes: int = 0
    d2h_seconds: float = 0.0


class Succeeded(Message):
    kind: Literal["succeeded"] = "succeeded"
    result: str  # name of the result in the store
    provenance: Provenance
    digest: str | None = None  # of the outputs of a job that was charged: SHA-256, for the ledger alone
    bytes: int = 0  # of all inputs and outputs


FAILURES = (
    "invalid-input", "out-of-memory", "storage-full", "device-fault", "no-gpu-worker", "timeout", "worker-died",
    "operation-error", "ledger-unavailable", "charge-ended", "charge-changed",
)  # fmt: skip


class Failed(Message):
    """`code` is one of FAILURES."""

    kind: Literal["failed"] = "failed"
    code: str
    message: str
    retryable: bool = False


class ArrayOutput(Message):
    """An output that is an array: a file beside the document, and the id it has as an array of the job's owner."""

    file: str
    dtype: DType
    shape: tuple[int, ...]
    id: str
    has_nan: bool
    has_inf: bool

    @property
    def info(self) -> ArrayInfo:
        return ArrayInfo(self.dtype, self.shape, self.has_nan, self.has_inf)


class ValueOutput(Message):
    """An output that is a plain JSON value. NaN and infinities are null."""

    value: Any


class ResultDocument(Message):
    """What `result.json` holds; `outputs` is in the operation's order."""

    job: str
    owner: str = ""  # of the job; a release before this one told none
    operation: str
    outputs: dict[str, ArrayOutput | ValueOutput]
    expires_at: float


class WantedInputs(Message):
    """The body of `POST /v1/worker/inputs`: attempts ("<job>.<attempt>") and the names of their inputs, and of each
    attempt the token of its claim."""

    inputs: tuple[tuple[str, str], ...]
    claims: dict[str, str] = Field(default={}, repr=False)


class SentInputs(Message):
    """What begins its answer, after its length in four bytes (big-endian): what is known of each, None where it does
    not follow."""

    arrays: tuple[ArrayInfo | None, ...]


class SentResult(Message):
    """A result from another host. Its files follow, in the order of the document's outputs."""

    name: str  # "<job>.<attempt>"
    claim: str = Field(default="", repr=False)  # the token of the claim
    document: ResultDocument  # without the ids of outputs, which only the API can compute


class SentResults(Message):
    """What begins `POST /v1/worker/results`, after its length in four bytes (big-endian)."""

    results: tuple[SentResult, ...]


class DeviceReport(Message):
    """What the probe found; `reason` says why there is no GPU when `backend` is "cpu"."""

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


# What may keep a GPU's clocks from being higher, by NVML's names for it.
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
    """What the driver says of one GPU. None is what this GPU or its driver does not tell, and is never 0.

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
    recovery_action: str | None = None  # what the driver asks for: "none", "reset", "reboot", "drain-and-reset", ...
    # GPU performance monitoring, from Hopper on and where it was asked for; means since the reading before, 0 to 1.
    sm_activity: float | None = None  # of the multiprocessors, how many had work
    sm_occupancy: float | None = None  # of the warps they can hold, how many they held
    tensor_activity: float | None = None  # of the tensor pipes' time
    dram_activity: float | None = None  # of the peak memory bandwidth


class XidEvent(Message):
    """A fault the driver logged while the worker listened."""

    xid: int
    at: float  # Unix seconds
    asks: str  # what NVIDIA's catalogue says to do: see workers.gpu.xid
    meaning: str


class GpuFinding(Message):
    """One thing that is wrong with a GPU, and what an operator can do about it."""

    state: GpuState
    reason: str
    remedy: str


class GpuReport(Message):
    """What is known of a GPU from its driver. `state` is that of the worst finding.

    degraded: it computes, slower or with a doubt. drain: finish what runs, start nothing on it. quarantine: what it
    computes, or that it computes, cannot be relied on. unknown: the driver does not tell.
    """

    state: GpuState
    findings: tuple[GpuFinding, ...] = ()
    reading: GpuReading | None = None  # the last one
    age_seconds: float | None = None  # of the reading, when this report was made
    hung_since: float | None = None  # Unix seconds; a call of the driver's library has not returned since
    xids: tuple[XidEvent, ...] = ()  # the latest of each number


class BreakerReport(Message):
    """Something that is kept off a GPU because it failed there. Times are Unix seconds."""

    what: str  # a kernel's name, or an operation's example
    kind: Literal["kernel", "example"]
    state: Literal["open", "half-open"]
    reason: str
    since: float
    next_probe: float  # then a job may try it again


class DeviceMemory(Message):
    """Bytes on a device, of the one process that uses it: its `kernels.gpu.memory.MemoryReport`, and `outside`.

    `outside` is what the process has beside its pool: the context, modules, libraries. The parent tells it from the
    driver's reading; None where that does not say.
    """

    used: int
    held: int
    limit: int
    stuck: int
    peak: int
    outside: int | None = None


ConditionState = Literal["healthy", "degraded", "quarantined", "lost", "restarting", "absent"]


class GpuCondition(Message):
    """How a worker's GPU is, in the judgement of the worker's parent process. Times are Unix seconds.

    degraded: it serves, and something is wrong that `reason` tells. quarantined: jobs run on the CPU until it has
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
    canary_at: float | None = None  # when it last answered right what is known
    call_since: float | None = None  # the running job has been in one call of it since, for a second or longer
    last_fault: str | None = None
    last_fault_at: float | None = None
    faults: dict[str, int] = {}  # by kind, since the worker started
    memory: DeviceMemory | None = None
    driver: GpuReport | None = None


class FailedExample(Message):
    """An example that failed when the worker warmed up, and has not been answered since."""

    operation: str
    variant: str | None = None  # what tells it apart from the documented example
    backend: Literal["cpu", "gpu"]
    error: str  # the exception's type
    message: str
    fallback: bool = False  # the CPU ran it instead, as it will run the operation's jobs
    choices: dict[str, bool | str] = {}  # a variant's words among the parameters that tell it apart
    dtypes: dict[str, str] = {}  # a variant's inputs
    lost_the_device: bool = False  # at an earlier start; it was not tried on the GPU again

    @property
    def trial(self) -> str:
        """The example's name among those of all operations."""
        return self.operation if self.variant is None else f"{self.operation} ({self.variant})"

    @property
    def disables(self) -> bool:
        """Whether the worker has no evidence that it can run the operation at all."""
        return self.variant is None and not self.fallback


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
    fallbacks: dict[str, int] = {}  # answers from the CPU that were wanted from the GPU, by what kept them off it
    slot: int | None = None  # the smallest number that was free when it came: see workers.queue.slots
    dollars_per_hour: float | None = None  # the price of its device, if it has one: see workers.prices
