"""Schemas of jobs: the submission, the job and its result, events, dead letters, and the operations on offer."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from warpdesk.models import ARRAY_ID, BackendWish, Body, DType, JobError, Priority, Reply
from warpdesk_server.app.arrays.schemas import DEFAULT_DTYPE
from warpdesk_server.app.datasets.schemas import DatasetInput
from warpdesk_server.app.kit import limits
from warpdesk_server.app.kit.schemas import WEEK, WIDEST

JOB_ID = r"^job_[0-9a-f]{32}$"
U64_MAX = 2**64 - 1


Labels = Annotated[
    dict[str, Any] | None,
    Field(
        description="What its rows and columns are called, in a form of the client's, such as `index` and `columns`. "
        "They are kept with the job until it is erased, and are in its result. They are no part of what is computed, "
        "nor of what an Idempotency-Key compares"
    ),
]


class StoredInput(Body):
    """A job's input that was uploaded before, by its array id."""

    # The pattern is only documentation: a malformed id is answered like an unknown one.
    array: Annotated[
        str, Field(description="Id that `PUT /v1/arrays` answered", json_schema_extra={"pattern": ARRAY_ID})
    ]
    labels: Labels = None


def _numbers(value: Any) -> Any:
    """The data of an inline input in a job's submission if it may hold numbers. Nested values are checked later, in
    the array."""
    if value is not None and type(value) not in (list, float, int):
        raise PydanticCustomError("numbers_type", "Input should be a number or nested lists of numbers")
    return value


class InlineInput(Body):
    """A job's input given inline: nested lists of numbers, row-major; `null` is NaN in a float dtype."""

    data: Annotated[Any, BeforeValidator(_numbers), Field(description="Nested lists of numbers, all rows equally long")]
    dtype: DType = DEFAULT_DTYPE
    labels: Labels = None


def _width(value: Any) -> Any:
    """A job's width: one sentence for what is neither of its kinds."""
    if value != "auto" and (type(value) is not int or not 1 <= value <= WIDEST):
        raise PydanticCustomError("width", "Input should be auto or a whole number from 1 to {most}", {"most": WIDEST})
    return value


# Parts of an error's location that pydantic adds for the kind of an input, and that are not in the request.
UNION_TAGS = frozenset({"StoredInput", "InlineInput", "DatasetInput"})


def _kind_of_input(value: Any) -> str:
    """The kind of an input in a job's submission, so that an error concerns that kind alone."""
    if isinstance(value, dict):
        return "DatasetInput" if "dataset" in value else "StoredInput" if "array" in value else "InlineInput"
    return next((kind for kind in UNION_TAGS if kind == type(value).__name__), "InlineInput")


JobInput = Annotated[
    Annotated[StoredInput, Tag("StoredInput")]
    | Annotated[InlineInput, Tag("InlineInput")]
    | Annotated[DatasetInput, Tag("DatasetInput")],
    Discriminator(_kind_of_input),
]


class Submission(Body):
    """A job to run. Parameters and inputs are described by `GET /v1/operations/{operation}`."""

    operation: Annotated[str, Field(max_length=64)]
    params: dict[str, Any] = Field(default_factory=dict)
    inputs: dict[str, JobInput] = Field(default_factory=dict)
    backend: BackendWish = "auto"
    priority: Priority = "batch"
    width: Annotated[
        Literal["auto"] | Annotated[int, Field(ge=1, le=WIDEST)],
        BeforeValidator(_width),
        Field(
            description="Parts in which several workers compute the job, with the bytes of one worker: a number, or "
            "`auto` for as many as devices are idle, where that is quicker"
        ),
    ] = "auto"
    seed: Annotated[int | None, Field(ge=0, le=U64_MAX, description="For operations that draw simulation words")] = None
    deadline_s: Annotated[
        float | None,
        Field(gt=0, le=WEEK, allow_inf_nan=False, description="Seconds from now after which the job is `expired`"),
    ] = None
    result_ttl_s: Annotated[
        float | None,
        Field(ge=1, le=WEEK, allow_inf_nan=False, description="Seconds the result is kept once the job is done"),
    ] = None

    @property
    def labels(self) -> dict[str, Any]:
        """The labels that inputs of the submission came with, by the inputs' names. A dataset has its own."""
        given = {name: each.labels for name, each in self.inputs.items() if not isinstance(each, DatasetInput)}
        return {name: labels for name, labels in given.items() if labels is not None}


class Bundle(Body):
    """Jobs to run, all or none: the body of `POST /v1/jobs/batch`."""

    # Each is checked by itself, so that all that is wrong is listed together.
    jobs: Annotated[list[Any], Field(min_length=1, max_length=limits.BUNDLE)]


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


class QueueLane(Reply):
    """The jobs of one priority, of all keys."""

    priority: Priority
    queued: int
    running: int
    delayed: Annotated[int, Field(description="Queued again after a fault, and not to be tried yet")]
    oldest_at: Annotated[datetime | None, Field(description="When the job that waits longest was submitted")]
    queued_by_key: Annotated[dict[str, int], Field(description="Queued jobs by the id of their API key")]


class WaitingJob(Reply):
    """A job that waits, of any key."""

    id: str
    owner: Annotated[str, Field(description="Id of the API key it belongs to")]
    operation: str
    priority: Priority
    backend: BackendWish
    submitted_at: datetime


class QueueState(Reply):
    """What waits and runs, of all keys."""

    paused: Annotated[bool, Field(description="Whether no worker takes a job: `POST /v1/queue/pause`, `rq suspend`")]
    lanes: Annotated[list[QueueLane], Field(description="In the order in which workers look at them")]
    oldest: Annotated[list[WaitingJob], Field(description="The jobs that wait longest")]
    paused_tasks: int
    dead_letters: int
    workers: Annotated[int, Field(description="Workers whose reports are recent")]
