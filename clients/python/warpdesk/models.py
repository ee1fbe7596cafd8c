"""Pydantic models of the JSON bodies between a service and its clients. The service uses the same models."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from warpdesk.amount import Amount

DType = Literal["float64", "float32", "int64", "int32", "uint64", "uint32", "uint8"]
DTYPES: tuple[DType, ...] = get_args(DType)
BackendWish = Literal["auto", "gpu", "cpu"]
Priority = Literal["realtime", "batch", "research"]
EventName = Literal["queued", "running", "progress", "paused", "succeeded", "failed", "canceled", "expired"]
Accountant = Literal["pure", "approx", "zcdp"]
Neighbouring = Literal["add_remove", "replace_one"]


ARRAY_ID = r"^blake3:[0-9a-f]{64}$"
FILE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$"  # of a file that is an output; it names no other folder
MEDIA_TYPE = r"^[a-z]+/[a-z0-9][a-z0-9.+-]{0,99}$"
DATASET_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"  # it is the name of a file too
_NO_CONTROLS = r"^[^\x00-\x1f\x7f]+$"  # PostgreSQL keeps no text with a NUL


class Body(BaseModel):
    """Base model of every JSON body that a client sends: no unknown field, immutable, JSON types taken as they are."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Reply(BaseModel):
    """Base model of every JSON reply that a client receives: immutable. A field that a newer service adds is
    ignored."""

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


class ArrayDescription(Reply):
    id: str
    dtype: DType
    shape: list[int]
    has_nan: bool
    has_inf: bool
    bytes: int
    created_at: datetime
    expires_at: datetime


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"

    @property
    def final(self) -> bool:
        return self not in (State.QUEUED, State.RUNNING, State.PAUSED)


class ChargeRef(Reply):
    """What a release was charged to: the charge, its budget, and the hash of the budget's chain with this charge."""

    id: str
    budget: str
    head: str


class PublicProvenance(Reply):
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


class StepProvenance(Reply):
    """How a step of a plan was computed."""

    id: str
    operation: str
    backend: Literal["cpu", "gpu"]
    seconds: float
    fallback_reason: Annotated[str | None, Field(description="As of a job")] = None


class Provenance(PublicProvenance):
    """How an answer was computed. Of a launch that jobs share, `batch_size` counts the key's own, seconds are the share
    of these, energy and cost that of the job; whether jobs of other keys were in it is told to nobody."""

    batch_size: Annotated[int, Field(description="Jobs of the key in the same launch")] = 1
    batch_reason: Annotated[
        str | None,
        Field(description="Why no more of them: full, bytes, waited, drained; of a launch of the key's jobs alone"),
    ] = None
    steps: Annotated[
        list[StepProvenance] | None, Field(description="Of a plan, in its result: how each step was computed")
    ] = None


class JobShards(Reply):
    """The parts of a job that several workers compute, with the bytes of one worker."""

    count: int
    cpu: Annotated[int | None, Field(description="Once the job succeeded: those that were computed on CPUs")]
    gpu: Annotated[int | None, Field(description="The same on GPUs")]


class Links(Reply):
    self: str
    result: str
    events: str
    cancel: str
    pause: Annotated[str | None, Field(description="Of a task, as the two that follow")] = None
    resume: str | None = None
    progress: str | None = None


class JobError(Reply):
    """Why a job failed."""

    code: str
    message: str
    retryable: bool


class FileDescription(Reply):
    """An output that is a file, as JSON tells it. Its bytes are at `/v1/jobs/{id}/result/{output}`."""

    file: Annotated[str, Field(pattern=FILE_NAME, description="Its name")]
    media_type: Annotated[str, Field(pattern=MEDIA_TYPE)]
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Result(Reply):
    """The answer. NaN is null, an infinity the string "Infinity" or "-Infinity"."""

    job: str
    operation: str
    outputs: Annotated[
        dict[str, Any],
        Field(
            description="A number, string, object or nested list; over 100,000 numbers: {array, dtype, shape}; "
            "a file: {file, media_type, bytes, sha256}"
        ),
    ]
    provenance: Provenance
    labels: Annotated[
        dict[str, dict[str, Any]],
        Field(description="Those that were sent with inputs, by input; an axis of an output has those of its name"),
    ] = {}


class InputReference(Reply):
    """An input of a job, as it was read."""

    array: Annotated[str | None, Field(description="Id of the stored array; null of few numbers that came inline")]
    dtype: Annotated[DType | None, Field(description="Of numbers that came inline")] = None


class DatasetRead(Reply):
    """What a job's input was read from. Sent again as an input, it is the same array."""

    dataset: str
    column: str
    as_of: Annotated[int, Field(description="The version that was read")]
    first: Annotated[str | None, Field(alias="from")] = None
    end: Annotated[str | None, Field(alias="to")] = None
    assets: str | list[str] | None = None

    model_config = ConfigDict(serialize_by_alias=True)


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
    step: Annotated[int | None, Field(description="Of a task: the last step whose state is in a checkpoint")] = None
    datasets: Annotated[
        dict[str, DatasetRead], Field(description="Of each input that a dataset was named for: what was read of it")
    ] = {}
    shards: Annotated[JobShards | None, Field(description="null if one worker computes it")] = None
    waiting_reason: Annotated[
        str | None,
        Field(description="Of a task that waits: why no worker runs it, such as a library that they all lack"),
    ] = None
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

    params: Annotated[
        dict[str, Any] | None,
        Field(
            description="As they were sent, of a plan with the seeds that were drawn. Where one job is read; "
            "null of an erased one, and of an operation that takes secrets or draws private noise"
        ),
    ] = None
    inputs: Annotated[dict[str, InputReference] | None, Field(description="As `params`")] = None
    result: Annotated[Result | None, Field(description="With `Prefer: wait=N`, once the job succeeded")] = None


class JobBundle(Reply):
    """Jobs of one request, in its order."""

    jobs: list[Job]


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
    reason: Annotated[
        str | None,
        Field(
            description="Of `queued`: why it waits again; null the first time. Of a task's `progress`: why it restarts"
        ),
    ]
    step: Annotated[int | None, Field(description="Of a task's `progress`: its step, counted from 1")] = None
    values: Annotated[
        dict[str, float | None] | None, Field(description="Of a task's `progress`: the numbers that it reports")
    ] = None
    operation: Annotated[str | None, Field(description="Where the events of all jobs are followed")] = None


class Gap(Reply):
    """In the stream of all events of a key: some before the next one are no longer kept."""

    event: Literal["gap"]
    detail: str


class TaskStep(Reply):
    """What a task reported of a step, such as a loss. NaN and infinities are null."""

    step: Annotated[int, Field(description="Counted from 1")]
    at: datetime
    values: dict[str, float | None]


class TaskProgress(Reply):
    """What a task has reported of its steps."""

    job: str
    done: Annotated[float | None, Field(description="Fraction done, where the task reports one")]
    checkpoint: Annotated[int | None, Field(description="The last step whose state is kept: it goes on after it")]
    steps: list[TaskStep]
    next: Annotated[str | None, Field(description="URL of the next, later page")]


class DatasetSummary(Reply):
    """A dataset: rows by time, and in each column a number for every asset."""

    name: str
    columns: Annotated[dict[str, DType], Field(description="Names and dtypes")]
    asset_count: int
    rows: int
    first: Annotated[str | None, Field(description="Time of the first row, to the nanosecond; null without rows")]
    last: Annotated[str | None, Field(description="Time of the last row")]
    version: Annotated[int, Field(description="0 as it is made; one more with each append that changes something")]
    bytes: Annotated[int, Field(description="Of the disk, with all versions, in whole blocks of 4,096")]
    created_at: datetime
    changed_at: datetime


class DatasetDescription(DatasetSummary):
    """A dataset with the names of its assets."""

    assets: Annotated[list[str], Field(description="In the order in which they were added")]


class DatasetPage(Reply):
    datasets: Annotated[list[DatasetSummary], Field(description="All of the key, by name")]
    max_datasets: Annotated[int, Field(description="How many the key may have")]
    stored_bytes: Annotated[
        int, Field(description="Bytes of the disk that the key's datasets, arrays and results take")
    ]
    max_stored_bytes: Annotated[int, Field(description="The key's quota of them")]


class RowsAppended(Reply):
    """What an append has changed."""

    dataset: str
    version: Annotated[int, Field(description="That has these rows")]
    rows: Annotated[int, Field(description="Of the dataset now")]
    added: Annotated[int, Field(description="Rows that were not there")]
    corrected: Annotated[int, Field(description="Rows that were there with other numbers")]
    unchanged: Annotated[int, Field(description="Rows that were there with these numbers")]
    new_assets: list[str]


class DatasetRows(Reply):
    """A range of rows of one column."""

    dataset: str
    column: str
    version: Annotated[int, Field(description="The version that was read: `as_of` of it")]
    times: list[str]
    assets: list[str]
    data: Annotated[list[Any], Field(description="A row for each time, with a number of each asset; NaN is null")]


class InputDescription(Reply):
    name: str
    doc: str
    dtypes: list[DType]
    ranks: list[int]
    required: bool
    nan_allowed: bool
    empty_allowed: bool
    secret: Annotated[bool, Field(description="Erased when the job is done")]
    axes: Annotated[
        list[list[str]],
        Field(
            description="Names of the axes for each rank, such as `asset`, `time`; `...` stands for all before them. "
            "Empty where the rank does not tell them"
        ),
    ] = []
    alias_of: Annotated[
        str | None, Field(description="The input of which this is an earlier name; a job has one of the two")
    ] = None


class OutputDescription(Reply):
    name: str
    doc: str
    kind: Literal["array", "value", "file"]
    axes: Annotated[
        list[list[str]],
        Field(
            description="Names of the axes for each rank. An axis of an input with the same name has the same labels; "
            "`1` is an axis of length 1"
        ),
    ] = []


class Limits(Reply):
    inline_numbers: Annotated[int, Field(description="Numbers all inline inputs of a job may hold together")]
    array_bytes: Annotated[int, Field(description="Bytes one stored array may hold")]
    job_bytes: Annotated[int, Field(description="Bytes a job may need while it runs")]
    deadline_s: int
    result_ttl_s: int
    label_bytes: Annotated[
        int, Field(description="Bytes that all `labels` of a job may have as JSON; 0: the operation takes none")
    ] = 0


class TaskLimits(Reply):
    """The limits that a task sets for its example. Those of a job depend on its parameters and inputs."""

    step_s: Annotated[float, Field(description="Seconds that a step may take")]
    total_s: Annotated[float | None, Field(description="Seconds that all steps may take together; null: no limit")]
    checkpoint_bytes: int
    result_bytes: Annotated[int, Field(description="Bytes of the arrays and files of a result")]


class SameFunction(Reply):
    """A function of another library that gives the same numbers."""

    library: str
    function: str
    parameters: Annotated[
        dict[str, str | list[str]], Field(description="Parameters of the operation, with the library's names for them")
    ]
    fixed: Annotated[dict[str, Any], Field(description="Parameters of the operation that must have these values")]
    library_fixed: Annotated[dict[str, Any], Field(description="Parameters of the library that must have these values")]
    inputs: Annotated[dict[str, str], Field(description="Inputs of the operation, with the library's names for them")]
    outputs: Annotated[
        dict[str, str], Field(description="Outputs of the operation that the library gives, with its names")
    ]


class OperationDescription(Reply):
    name: str
    summary: str
    task: Annotated[
        bool, Field(description="Whether it runs in steps, for hours if need be, and can be paused and resumed")
    ] = False
    open_inputs: Annotated[
        bool, Field(description="Whether a request names the inputs and outputs itself, as of a plan")
    ] = False
    randomness: Annotated[
        Literal["none", "seed", "private"], Field(description="Only `seed` operations take a seed from the caller")
    ]
    params: Annotated[dict[str, Any], Field(description="JSON Schema of `params`")]
    inputs: list[InputDescription]
    outputs: list[OutputDescription]
    limits: Limits
    task_limits: Annotated[TaskLimits | None, Field(description="Of a task, for its example")] = None
    example: Annotated[dict[str, Any], Field(description="A body for `POST /v1/jobs` that runs as shown")]
    same_as: Annotated[
        list[SameFunction], Field(description="Functions of other libraries that give the same numbers")
    ] = []


class OperationList(Reply):
    operations: list[OperationDescription]


ChargeKeys = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=40)]] | None,
    Field(max_length=100, description="Ids of the API keys that may charge it; null: every key that may submit"),
]


ChargeArrays = Annotated[
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
    charge_keys: ChargeKeys = None
    arrays: ChargeArrays = None


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
