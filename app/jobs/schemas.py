"""Schemas of jobs: the submission, the job and its result, events, dead letters, and the operations on offer."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from warpdesk_server.app.arrays.schemas import ARRAY_ID, DEFAULT_DTYPE
from warpdesk_server.app.kit.schemas import WEEK, Body, Reply
from warpdesk_server.kernels.array import DType
from warpdesk_server.workers.queue.protocol import BackendWish, EventName, Priority, PublicProvenance, State

JOB_ID = r"^job_[0-9a-f]{32}$"
U64_MAX = 2**64 - 1


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
