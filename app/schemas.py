"""What travels over HTTP as JSON: the job, its result, arrays, operations and the health documents."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from warpdesk_server.kernels.amount import Amount
from warpdesk_server.kernels.array import DType
from warpdesk_server.kernels.spend import Neighbouring
from warpdesk_server.privacy.accountants import Accountant as Accountant
from warpdesk_server.workers.queue.protocol import (
    BackendWish,
    ConditionState,
    EventName,
    GpuFinding,
    GpuState,
    MigSlice,
    Priority,
    PublicProvenance,
    State,
    WorkerReport,
)

JOB_ID = r"^job_[0-9a-f]{32}$"
BUDGET_ID = r"^budget_[0-9a-f]{32}$"
ARRAY_ID = r"^blake3:[0-9a-f]{64}$"
U64_MAX = 2**64 - 1
DEFAULT_DTYPE: DType = "float64"
WEEK = 604_800  # seconds: the longest deadline, and the longest that a result is kept


class Body(BaseModel):
    """Base of every body: no unknown field, immutable, JSON types taken as they are."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def moment(unix: float | None) -> datetime | None:
    """Unix seconds as a UTC time, which JSON carries as RFC 3339."""
    return None if unix is None else datetime.fromtimestamp(unix, UTC)


# --- what a caller sends


class StoredInput(Body):
    """An array uploaded before, by its id."""

    # The pattern is for readers of the schema: a malformed id is answered like an unknown one.
    array: Annotated[
        str, Field(description="Id that `PUT /v1/arrays` answered", json_schema_extra={"pattern": ARRAY_ID})
    ]


def _numbers(value: Any) -> Any:
    """What may hold numbers; what is in the lists is looked at when they become an array."""
    if value is not None and type(value) not in (list, float, int):
        raise PydanticCustomError("numbers_type", "Input should be a number or nested lists of numbers")
    return value


class InlineInput(Body):
    """An array written out: nested lists of numbers, row-major; `null` is NaN in a float dtype."""

    data: Annotated[Any, BeforeValidator(_numbers), Field(description="Nested lists of numbers, all rows equally long")]
    dtype: DType = DEFAULT_DTYPE


def _kind_of_input(value: Any) -> str:
    """Which of the two a caller means, so that an error speaks of that one alone."""
    has_id = "array" in value if isinstance(value, dict) else isinstance(value, StoredInput)
    return "StoredInput" if has_id else "InlineInput"


# What pydantic puts into the place of an error within an input, and no request holds.
UNION_TAGS = frozenset({"StoredInput", "InlineInput"})

JobInput = Annotated[
    Annotated[StoredInput, Tag("StoredInput")] | Annotated[InlineInput, Tag("InlineInput")],
    Discriminator(_kind_of_input),
]


class Submission(Body):
    """A job to run. Parameters and inputs are described by `GET /v1/operations/{operation}`."""

    operation: Annotated[str, Field(max_length=64)]
    params: dict[str, Any] = Field(default_factory=dict)
    inputs: dict[str, JobInput] = Field(default_factory=dict)
    backend: BackendWish = "auto"
    priority: Priority = "batch"
    seed: Annotated[int | None, Field(ge=0, le=U64_MAX, description="For operations that draw simulation words")] = None
    deadline_s: Annotated[
        float | None,
        Field(gt=0, le=WEEK, allow_inf_nan=False, description="Seconds from now after which the job is `expired`"),
    ] = None
    result_ttl_s: Annotated[
        float | None,
        Field(ge=1, le=WEEK, allow_inf_nan=False, description="Seconds the result is kept once the job is done"),
    ] = None


_NO_CONTROLS = r"^[^\x00-\x1f\x7f]+$"  # PostgreSQL keeps no text with a NUL


_ChargeKeys = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=40)]] | None,
    Field(max_length=100, description="Ids of the API keys that may charge it; null: every key that may submit"),
]
_ChargeArrays = Annotated[
    list[Annotated[str, Field(pattern=ARRAY_ID)]] | None,
    Field(
        max_length=1000,
        description="Ids of the arrays that may be charged to it, all inputs of a job among them; null: all arrays. An "
        "array's id is its owner's alone, and the result of a round of secure aggregation has none beforehand",
    ),
]


class NewBudget(Body):
    """A privacy budget for a dataset. Amounts are decimal strings, or numbers, which are taken as they are written."""

    name: Annotated[str, Field(min_length=1, max_length=200, pattern=_NO_CONTROLS)]
    dataset: Annotated[
        str,
        Field(
            min_length=1,
            max_length=200,
            pattern=_NO_CONTROLS,
            description="Whose privacy it is; one open budget each. Names that differ in case, blanks or Unicode's "
            "compatible forms alone are one; characters that cannot be seen are refused",
        ),
    ]
    accountant: Annotated[
        Accountant,
        Field(
            description="How releases add up: epsilon; epsilon and delta; rho of zero-concentrated DP. Laplace noise "
            "fits each, Gaussian noise the last, and `approx` where it is asked for by epsilon and delta"
        ),
    ]
    neighbouring: Annotated[
        Neighbouring, Field(description="What one person's data is: a record more or less, or another record")
    ]
    epsilon: Amount | None = None
    delta: Amount | None = None
    rho: Amount | None = None
    charge_keys: _ChargeKeys = None
    arrays: _ChargeArrays = None


class BudgetRules(Body):
    """Who may charge a budget, and what."""

    charge_keys: _ChargeKeys = None
    arrays: _ChargeArrays = None


# --- what it gets back


class Reply(BaseModel):
    model_config = ConfigDict(frozen=True)


class ErrorDetail(Reply):
    pointer: Annotated[str, Field(description="JSON pointer into the request, e.g. /params/period")]
    detail: str


class Problem(Reply):
    """RFC 9457 problem details."""

    type: Annotated[str, Field(description="URI reference of the description of this kind of problem")]
    title: str
    status: int
    detail: Annotated[str, Field(description="A sentence with the numbers in it")]
    code: Annotated[str, Field(description="Stable word for programs")]
    retryable: Annotated[bool, Field(description="Whether the same request may succeed later")]
    errors: list[ErrorDetail] = Field(default_factory=list)
    job: Annotated[str | None, Field(description="The job that an Idempotency-Key belongs to")] = None


class Links(Reply):
    self: str
    result: str
    events: str
    cancel: str


class JobError(Reply):
    """Why a job failed."""

    code: str
    message: str
    retryable: bool


class Provenance(PublicProvenance):
    """How an answer was computed. Of a launch that jobs share, `batch_size` counts the key's own, seconds are the share
    of these, energy and cost that of the job; whether jobs of other keys were in it is told to nobody."""

    batch_size: Annotated[int, Field(description="Jobs of the key in the same launch")] = 1
    batch_reason: Annotated[
        str | None,
        Field(description="Why no more of them: full, bytes, waited, drained; of a launch of the key's jobs alone"),
    ] = None


class Result(Reply):
    """The answer. NaN is null, an infinity the string "Infinity" or "-Infinity"."""

    job: str
    operation: str
    outputs: Annotated[
        dict[str, Any],
        Field(description="A number, string, object or nested list; over 100,000 numbers: {array, dtype, shape}"),
    ]
    provenance: Provenance


class JobDescription(Reply):
    """What is told of a job, but its answer."""

    id: str
    operation: str
    status: State
    backend: Annotated[BackendWish, Field(description="The backend asked for; `provenance` says the one that ran")]
    priority: Priority
    seed: int | None
    attempt: Annotated[
        int,
        Field(description="0 until a worker has started it; of a job that an identical one was computed for, always"),
    ]
    queue_position: Annotated[int | None, Field(description="The key's jobs ahead of it; null once it is not queued")]
    progress: Annotated[float | None, Field(description="Fraction done, where the operation reports one")]
    submitted_at: datetime
    started_at: Annotated[datetime | None, Field(description="Not told of `private` operations")]
    ended_at: Annotated[datetime | None, Field(description="Of `private` operations rounded up to the second")]
    deadline_at: datetime | None
    result_expires_at: datetime | None
    erased: bool
    error: JobError | None
    provenance: Provenance | None
    request_id: Annotated[
        str | None,
        Field(description="X-Request-ID of the request that made it, for the logs"),
    ]
    links: Links


class Job(JobDescription):
    """A job, with its answer where that was waited for."""

    result: Annotated[Result | None, Field(description="With `Prefer: wait=N`, once the job succeeded")] = None


class ArrayPage(Reply):
    arrays: list["Array"]
    next: Annotated[str | None, Field(description="URL of the next, older page")]
    stored_bytes: Annotated[
        int,
        Field(
            description="bytes of the disk that the key's arrays and results take, and that results of its jobs were "
            "promised; each file counts as whole blocks of 4,096"
        ),
    ]
    max_stored_bytes: Annotated[int, Field(description="the key's quota of them")]
    round_bytes: Annotated[
        int | None,
        Field(
            description="bytes of the masked vectors of the key's live rounds, those to come among them; null while "
            "the ledger does not answer"
        ),
    ]
    max_round_bytes: Annotated[int, Field(description="the key's quota of those")]


class JobPage(Reply):
    jobs: list[Job]
    next: Annotated[str | None, Field(description="URL of the next, older page")]


class JobEvent(Reply):
    """Something that happened to a job. It is the `data` of a server-sent event, `number` its `id`, `event` its type.

    The last one of a job is its end: `succeeded`, `failed`, `canceled` or `expired`.
    """

    job: str
    number: Annotated[int, Field(description="1, 2, ... of this job: what `Last-Event-ID` takes")]
    event: Annotated[EventName, Field(description="`running` and `progress` are not told of `private` operations")]
    at: Annotated[datetime, Field(description="Of `private` operations rounded up to the second")]
    attempt: int
    progress: Annotated[float | None, Field(description="Of `progress`: the fraction done")]
    reason: Annotated[str | None, Field(description="Of `queued`: why it waits again; null the first time")]


class Amounts(Reply):
    """Exact decimals; null where the accountant has no such amount."""

    epsilon: str | None = None
    delta: str | None = None
    rho: str | None = None


class Budget(Reply):
    """A privacy budget and what remains of it."""

    id: str
    name: str
    dataset: str
    accountant: Accountant
    neighbouring: Neighbouring
    state: Literal["open", "closed"]
    total: Amounts
    spent: Amounts
    remaining: Amounts
    entries: Annotated[int, Field(description="Charges and refunds so far")]
    head: Annotated[str, Field(description="Hash of the last entry, which covers all before it")]
    created_by: Annotated[str, Field(description="Id of the API key")]
    created_at: datetime


class BudgetPage(Reply):
    budgets: list[Budget]
    next: Annotated[str | None, Field(description="URL of the next, later page")]


class Quote(Reply):
    """What a job would take from a budget. Others may charge it before you do."""

    fits: bool
    cost: Amounts
    remaining: Annotated[Amounts, Field(description="After the job; now, where it does not fit")]


_OWN = "Null for a key without the scope `admin`, unless it is its own"


class Entry(Reply):
    """A link of a budget's chain."""

    number: int
    kind: Literal["charge", "refund", "close", "rules"]
    charge: Annotated[str | None, Field(description=f"Of a charge or refund. {_OWN}")]
    owner: Annotated[str | None, Field(description=f"Id of the API key, or of the administrator. {_OWN}")]
    operation: Annotated[str | None, Field(description=f"Of a charge or refund. {_OWN}")]
    job: Annotated[str | None, Field(description=f"Of a charge or refund. {_OWN}")]
    amounts: Amounts
    relation: Annotated[
        str, Field(description="Of neighbours the release protects; `declared`: the caller vouches for the sensitivity")
    ]
    reason: Annotated[str | None, Field(description=f"Why; of `rules` the rules, as JSON. {_OWN}")]
    at: datetime
    previous: Annotated[str, Field(description="Hash of the entry before, or of what the budget was created with")]
    hash: Annotated[str, Field(description="SHA-256 of `text`, in hexadecimal")]
    text: Annotated[
        str | None,
        Field(description=f"The entry as it is hashed: canonical JSON, with digests of what was asked for. {_OWN}"),
    ]


class History(Reply):
    entries: list[Entry]
    next: Annotated[str | None, Field(description="URL of the next, later page")]


class Verified(Reply):
    """Whether a chain fits: every hash, and what was spent."""

    valid: bool
    entries: int
    head: str
    first_bad: Annotated[int | None, Field(description="Number of the first entry that does not fit")]
    reason: str | None


class Charge(Reply):
    """What a release was charged, and what became of it."""

    id: str
    budget: str
    job: str
    operation: str
    amounts: Amounts
    state: Annotated[
        Literal["charged", "claimed", "released", "failed", "void"],
        Field(description="claimed: a worker has the noise; failed: spent and not answered; void: refunded"),
    ]
    reason: Annotated[str | None, Field(description="Of failed and void")]
    number: Annotated[int, Field(description="Of its entry in the budget's chain")]
    head: Annotated[str, Field(description="Hash of that entry")]
    at: datetime


class DeadLetter(Reply):
    """A job that was given up: it ended its worker three times, or no worker lived long enough for it."""

    id: str
    owner: Annotated[str, Field(description="Id of the API key it belongs to")]
    operation: str
    backend: BackendWish
    priority: Priority
    attempt: int
    strikes: Annotated[int, Field(description="Attempts that ended their worker")]
    submitted_at: datetime
    ended_at: datetime | None
    error: JobError | None


class DeadLetterPage(Reply):
    dead_letters: list[DeadLetter]
    next: Annotated[str | None, Field(description="URL of the next, older page")]


class Array(Reply):
    id: str
    dtype: DType
    shape: list[int]
    has_nan: bool
    has_inf: bool
    bytes: int
    created_at: datetime
    expires_at: datetime


class InputDescription(Reply):
    name: str
    doc: str
    dtypes: list[DType]
    ranks: list[int]
    required: bool
    nan_allowed: bool
    empty_allowed: bool
    secret: Annotated[bool, Field(description="Erased when the job is done")]


class OutputDescription(Reply):
    name: str
    doc: str
    kind: Literal["array", "value"]


class Limits(Reply):
    inline_numbers: Annotated[int, Field(description="Numbers all inline inputs of a job may hold together")]
    array_bytes: Annotated[int, Field(description="Bytes one stored array may hold")]
    job_bytes: Annotated[int, Field(description="Bytes a job may need while it runs")]
    deadline_s: int
    result_ttl_s: int


class OperationDescription(Reply):
    name: str
    summary: str
    randomness: Annotated[
        Literal["none", "seed", "private"], Field(description="Only `seed` operations take a seed from the caller")
    ]
    params: Annotated[dict[str, Any], Field(description="JSON Schema of `params`")]
    inputs: list[InputDescription]
    outputs: list[OutputDescription]
    limits: Limits
    example: Annotated[dict[str, Any], Field(description="A body for `POST /v1/jobs` that runs as shown")]


class OperationList(Reply):
    operations: list[OperationDescription]


class Health(Reply):
    status: Literal["ok", "degraded", "unavailable"]
    reasons: list[str]


class Readiness(Health):
    store_free_bytes: Annotated[
        int,
        Field(description="bytes that are free on the disk of arrays and results, at least: rounded to a power of two"),
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
    """A worker's GPU in the worker's judgement.

    What the jobs of all keys do to it is for keys with the scope `metrics`: for others `reason` is null unless there is
    no GPU, and so are times and faults of calls and canaries, and what the driver says of load.
    """

    worker: str
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


class GpuMemoryDevice(Reply):
    """Bytes. Of the worker's process, which alone uses its pool; null until it has told, as while it restarts, and for
    a key without the scope `metrics`, but for the device's total, the limit and what the driver keeps."""

    worker: str
    name: str
    uuid: str | None
    memory_bytes: Annotated[int | None, Field(description="Total memory of the device")]
    used_bytes: Annotated[int | None, Field(description="In arrays")]
    held_bytes: Annotated[int | None, Field(description="Taken from the driver: used, and kept for reuse")]
    limit_bytes: Annotated[int | None, Field(description="The most that is held")]
    stuck_bytes: Annotated[int | None, Field(description="Held, not used, and not given back when it was asked for")]
    outside_bytes: Annotated[int | None, Field(description="Of the process beside its pool: context, modules")]
    peak_bytes: Annotated[int | None, Field(description="The most used at a time in the last job")]
    device_used_bytes: Annotated[int | None, Field(description="Of the device, by the driver: of all processes")]
    device_free_bytes: Annotated[int | None, Field(description="Of the device, by the driver")]
    device_reserved_bytes: Annotated[int | None, Field(description="Of the device, kept by the driver for itself")]
    process_bytes: Annotated[int | None, Field(description="Of the worker's process, by the driver")]
    others_bytes: Annotated[int | None, Field(description="Of other processes, by the driver")]
    processes: Annotated[int | None, Field(description="That compute on it")]
    age_seconds: Annotated[float | None, Field(description="Of what the driver says")]


class Quantiles(Reply):
    """Seconds. The count and the mean are exact, the quantiles as exact as `quantile_error` says."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


class Trend(Reply):
    """Whether launches take longer than they did, among those of one size class."""

    launches: Annotated[int, Field(description="In this clock hour; where that is less than 30, in the one before too")]
    mean: Annotated[float | None, Field(description="Seconds that one of them took")]
    baseline: Annotated[
        float | None,
        Field(description="Median of what the mean was in each earlier hour of the last 7 days; null below 3 hours"),
    ]
    hours: Annotated[int, Field(description="With launches, of which the baseline is")]
    ratio: Annotated[float | None, Field(description="The mean over the baseline; above 1 it became slower")]
    sentence: str


class Launches(Reply):
    seconds: Annotated[Quantiles, Field(description="On a GPU by its own events, on a CPU of the call that computes")]
    trend: Trend


class Batches(Reply):
    """Of launches, how many jobs each computed."""

    launches: int
    mean: float
    p50: int
    p95: int
    largest: int
    ended_by: Annotated[
        dict[str, int],
        Field(description="Launches by why there were no more jobs: full, bytes, waited, drained, alone"),
    ]


class Computing(Reply):
    """Amounts per second are per second of launches, not of the clock. Times, energy and cost are without those of
    private jobs."""

    computed: Annotated[int, Field(description="Jobs; those an identical one was computed for are not among them")]
    computed_per_second: float
    run_seconds: Annotated[Quantiles | None, Field(description="Computing, for each job the time of its launch")]
    bytes_per_second: Annotated[float | None, Field(description="Inputs and outputs: the achieved bandwidth")]
    work_per_second: Annotated[float | None, Field(description="Elementary steps")]
    joules_per_thousand_jobs: Annotated[float | None, Field(description="Null where no device tells its energy")]
    dollars_per_thousand_jobs: Annotated[float | None, Field(description="Null where no price is set")]
    launches: Annotated[
        dict[str, Launches],
        Field(description="By size class, the elementary steps of all its jobs: small below 1e6, medium below 1e8, "
              "large below 1e10, huge"),
    ]  # fmt: skip


class BackendPerformance(Computing):
    devices: Annotated[
        dict[str, Computing],
        Field(description="The same of each device by itself, its trend against its own past: GPUs by UUID, as in "
              "/gpu-health, CPUs by name and cores"),
    ]  # fmt: skip


class OperationPerformance(Reply):
    jobs: Annotated[dict[str, int], Field(description="By final state, since `counted_since`")]
    jobs_per_second: Annotated[float, Field(description="That ended, in whatever state")]
    failures: Annotated[dict[str, int], Field(description="By the error's code")]
    coalesced: Annotated[int, Field(description="Jobs that an identical one was computed for")]
    retries: Annotated[int, Field(description="Attempts beyond the first")]
    fallbacks: Annotated[
        dict[str, int], Field(description="Answers of the CPU that were wanted from a GPU, by what kept them off it")
    ]
    gpu_share: Annotated[float | None, Field(description="Of the computed jobs, how many a GPU computed, 0 to 1")]
    batches: Batches | None
    backends: dict[str, BackendPerformance]


class QueuePerformance(Reply):
    waiting: Annotated[int, Field(description="Jobs that wait now, those in a backoff left out")]
    jobs: Annotated[dict[str, int], Field(description="By final state, since `counted_since`")]
    jobs_per_second: Annotated[float, Field(description="That ended, in whatever state")]
    wait_seconds: Annotated[
        Quantiles | None, Field(description="From the submission to the start of the attempt that answered")
    ]
    seconds: Annotated[Quantiles | None, Field(description="From the submission to the end of jobs that succeeded")]


class Performance(Reply):
    """The same of every API process: all is counted in Redis. What has no other time is of jobs that ended from `since`
    to `at`; private jobs are counted and have no times."""

    at: datetime
    since: Annotated[datetime, Field(description="`hours` before this clock hour, or when counting began")]
    counted_since: Annotated[datetime | None, Field(description="Null where no job was counted yet")]
    quantile_error: Annotated[
        float, Field(description="How far a quantile may be from the time of that rank, relative to it")
    ]
    queues: dict[str, QueuePerformance]
    operations: dict[str, OperationPerformance]


class ProblemKind(Reply):
    code: str
    status: int
    title: str
    retryable: bool
