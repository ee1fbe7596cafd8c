"""The contract between HTTP, queue and worker: small JSON models, and the limits of a job's attempts."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from warpdesk.models import (
    FILE_NAME,
    MEDIA_TYPE,
    BackendWish,
    ChargeRef,
    DType,
    EventName,
    FileDescription,
    Priority,
    PublicProvenance,
    StepProvenance,
)
from warpdesk_server.kernels.array import ArrayInfo

PRIORITIES: tuple[Priority, ...] = ("realtime", "batch", "research")
# Kinds of work, which workers take: quick jobs on any device, those that need a GPU, the same of quick jobs with inputs
# in their records, of quick plans, of long jobs, of long plans, and tasks. The release before knows no plans, and takes
# none of their kinds.
Kind = Literal[
    "any", "gpu", "attached", "attached-gpu", "plan", "plan-gpu", "long", "long-gpu", "long-plan", "long-plan-gpu",
    "task", "task-gpu",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
QUICK, LONG, OF_TASKS = KINDS[:6], KINDS[6:10], KINDS[10:]
# The kinds that a worker takes, by the name of what it takes (`workers.settings.Takes`, which says what each means).
# The release before named nothing.
_TAKEN: Mapping[str, tuple[Kind, ...]] = {
    "both": KINDS,
    "all": (*QUICK, *LONG),
    "quick": QUICK,
    "long": LONG,
    "tasks": OF_TASKS,
    "": KINDS[:2],
}


def kinds_taken(takes: str, *, gpu: bool) -> list[Kind]:
    """The kinds of work in the queue that a worker takes, with those that need a GPU or without."""
    return [kind for kind in _TAKEN.get(takes, ()) if gpu or not kind.endswith("gpu")]


TASK = "workers.execute.run"  # the only function a job may name; a name in Redis, which older releases know
MAX_STRIKES = 3  # attempts that the job itself ended the worker with
MAX_ATTEMPTS = 10  # of a job, for whatever reason they ended
MAX_OVERTAKES = 2  # of slow leads of one job: what is slow on three workers is slow everywhere

# A shard is taken from its worker after this many times the slowest shard of the workers that wait: from a helper by
# the lead, from the lead by a helper.
PATIENCE_TIMES = 2

# Reasons of an answer that a worker without a GPU computed, although others have one. Numbers follow the first.
SOONER_ON_CPU = "sooner on the CPU than after the GPU's queue"
NO_GPU_WAS_FREE = "no GPU was free: what its jobs take is not known yet"

CLAIM = "Warpdesk-Claim"  # header of a worker's request: the token of the claim of the attempt that it is about

SKIP = "Warpdesk-Skip"  # header of a worker that wants a checkpoint: how many it has found bad, at most 2


def digest_of_claim(token: str) -> str:
    """The digest of a claim's token, which Redis gets instead of the token: a reader of Redis cannot present it."""
    return hashlib.blake2b(token.encode(), digest_size=16).hexdigest()


class Message(BaseModel):
    """A message between processes, by Redis or by a pipe.

    Unknown fields are ignored: during an update two releases read one Redis.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)


class Together(Message):
    """The jobs with which a queued job may run in one launch, and the limits of the launch."""

    key: str  # digest of the operation's batch key, the backend wish and, for private operations, the owner
    items: int
    bytes: int
    wait: float = 0.0  # seconds to wait for company


class Forecast(Message):
    """What a job is predicted to take on a GPU and on the CPU, by the API, from jobs like it that ended.

    None where none of about its size ran there.
    """

    kind: str  # `workers.predicted_times.Job.kind`
    gpu: float | None = None  # seconds
    cpu: float | None = None


class JobRequest(Message):
    """The request in a job record, as a worker needs it. Inputs are array ids in the owner's part of the store."""

    id: str
    owner: str  # id of the API key
    operation: str
    params: dict[str, Any]
    inputs: dict[str, str]
    attached: dict[str, DType] = {}  # names and dtypes of those that are in the job record and not in the store
    datasets: dict[str, dict[str, Any]] = {}  # what inputs were read from a dataset, as the caller would send it again
    backend: BackendWish = "auto"
    priority: Priority = "batch"
    seed: int | None = None
    deadline: float | None = None  # Unix seconds
    timeout: float  # seconds a single attempt may run; of a task, a single step
    work: float = 0.0  # elementary steps, about: `kernels.operation.Cost.steps`
    size: int = 0  # bytes, about: `kernels.operation.Cost.bytes`
    task: bool = False  # of a task (`kernels.task`), which runs in steps and resumes
    plan: bool = False  # of many operations (`kernels.plans`), or of several sets of parameters
    checkpoint_bytes: int = 0  # the most that a checkpoint of a task, or the arrays of a shard, may take on the disk
    result_bytes: int = 0  # of a task: the most that the arrays and files of its result may take
    seconds: float | None = None  # of a task: the most that all its steps may take together
    forecast: Forecast | None = None  # None where no worker has a GPU
    shards: int = 1  # parts in which several workers may compute it (`kernels.sharding`)
    long: bool = False  # takes long, and a worker that also takes long jobs is there: `app.jobs.admission`
    private: bool = False  # has private random words, which its times would leak, or secret inputs, which are not kept
    together: Together | None = None  # None: always alone
    result_ttl: float  # seconds
    charge: ChargeRef | None = None  # of a release that a budget pays for
    request_id: str | None = None  # of the HTTP request that made it
    # Of inputs, by the names that the request gave them: for its owner alone. No worker reads them; the release before
    # does not know them, and drops them where it writes a request anew.
    labels: dict[str, dict[str, Any]] = Field(default={}, repr=False)

    @property
    def shard(self) -> int | None:
        """The number of the shard that this is the request of; None for a job. Its id is "<job>:<number>"."""
        number = self.id.partition(":")[2]
        return int(number) if number else None

    @property
    def keeps_files(self) -> bool:
        """Whether attempts of the queued job keep files in the store before it is done."""
        return self.task or self.shards > 1

    @property
    def job_id(self) -> str:
        """The id of the queued job that this is the request of, or of a shard."""
        return self.id.partition(":")[0]

    def of_shard(self, shard_id: str) -> "JobRequest":
        """The request of a shard of the queued job."""
        return self.model_copy(update={"id": shard_id})

    @property
    def lane(self) -> str:
        """The lane of the queue in which the job waits, by its priority and the kind of work it is."""
        own = ["task"] if self.task else ["long"] if self.long else []
        own += ["plan"] if self.plan else ["attached"] if self.attached and not own else []
        return "-".join([self.priority, *own, *["gpu"] * (self.backend == "gpu")])

    @property
    def on_gpu(self) -> float | None:
        """Seconds that a queued job is predicted to keep a worker with a GPU; None where that is not known."""
        if self.forecast is None or self.backend == "cpu":
            return None if self.forecast is None else self.forecast.cpu
        if self.backend == "gpu" or self.forecast.gpu is None or self.forecast.cpu is None:
            return self.forecast.gpu
        return min(self.forecast.gpu, self.forecast.cpu)

    @property
    def on_cpu(self) -> float | None:
        """Seconds that a queued job is predicted to take a worker without a GPU; 0 where it is to run on the CPU."""
        if self.backend == "cpu":
            return 0.0
        return None if self.forecast is None or self.backend == "gpu" else self.forecast.cpu

    @property
    def stored_inputs(self) -> list[str]:
        """The ids of the inputs of the queued job that are arrays in the store."""
        return sorted({array_id for name, array_id in self.inputs.items() if name not in self.attached})

    @property
    def canonical_params(self) -> str:
        """The canonical text of the parameters in a job's queued request, as the ledger digests them.

        Equal parameters have equal texts.
        """
        return json.dumps(self.params, sort_keys=True, separators=(",", ":"))

    @property
    def canonical_inputs(self) -> str:
        return json.dumps(self.inputs, sort_keys=True, separators=(",", ":"))


class Event(Message):
    """An event of a job, as Redis keeps and publishes it. Private jobs have no "running" and no "progress"."""

    job: str
    number: int  # 1, 2, ... of this job
    event: EventName
    at: float  # Unix seconds by Redis' clock
    attempt: int
    progress: float | None = None  # of "progress"
    reason: str | None = None  # of "queued": why it is queued again; of a task's "progress": why it began again
    step: int | None = None  # of a task's "progress"
    values: dict[str, float | None] | None = None  # of a task's "progress": what it reports of the step
    owner: str = ""  # of the job, if all events of the owner are followed

    @property
    def final(self) -> bool:
        return self.event not in ("queued", "running", "progress", "paused")


class OwnersEvent(NamedTuple):
    """An event in the stream of all events of an owner's jobs, with its number there."""

    number: int
    event: Event | None  # None: the job was erased
    operation: str
    private: bool


class ReportedStep(NamedTuple):
    """What a task reported of a step; `at` is in Unix seconds by Redis' clock. NaN and infinities are None."""

    step: int
    at: float
    values: dict[str, float | None]


class Provenance(PublicProvenance):
    """Provenance in a job record, as the worker knows it, of the whole launch.

    The owner's is made by `app.jobs.records.provenance`.
    """

    batch_own: int | None = None  # of `batch_size`, jobs of the same owner; the release before wrote none
    shards: dict[str, int] | None = None  # of a job in shards: how many were computed on each backend
    resumed_from: int | None = None  # of a task: the step whose checkpoint its last attempt went on from
    # The launch's share of its device, which energy and cost are for: a worker's companion may have computed too.
    device_share: float = 1.0


class Transfers(Message):
    """The copies between host and device that a worker counts: bytes and seconds."""

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
    """The outcome of a failed attempt in a job record; `code` is one of FAILURES."""

    kind: Literal["failed"] = "failed"
    code: str
    message: str
    retryable: bool = False


class AttachedInput(Message):
    """A small input in a job's record in Redis: its bytes in C order, in Base64.

    Its dtype and its id are in the request. By the id whoever has the store's secret checks it.
    """

    shape: tuple[int, ...]
    data: str = Field(repr=False)


class Stopped(Message):
    """The outcome of an attempt that is not over.

    A task stopped after a step, whose state is in a checkpoint, or could not begin here, for the `reason`. Or of a job
    in shards the shard of the number `step` has to be computed again.
    """

    kind: Literal["stopped"] = "stopped"
    step: int
    reason: str = ""


AttachedInputs = TypeAdapter(dict[str, AttachedInput])


class ArrayOutput(Message):
    """An output in `result.json` that is an array.

    It is a file beside the document, and has an id as an array of the job's owner.
    """

    file: str
    dtype: DType
    shape: tuple[int, ...]
    id: str
    has_nan: bool
    has_inf: bool

    @property
    def info(self) -> ArrayInfo:
        return ArrayInfo(self.dtype, self.shape, self.has_nan, self.has_inf)


class FileOutput(Message):
    """An output in `result.json` that is a file of its own format: one beside the document, and what is told of it."""

    file: str
    name: str = Field(pattern=FILE_NAME)
    media_type: str = Field(pattern=MEDIA_TYPE)
    bytes: int = Field(ge=0)
    sha256: str

    @property
    def reference(self) -> FileDescription:
        return FileDescription(file=self.name, media_type=self.media_type, bytes=self.bytes, sha256=self.sha256)


class ValueOutput(Message):
    """An output in `result.json` that is a plain JSON value. NaN and infinities are null."""

    value: Any


class ResultDocument(Message):
    """The content of `result.json`; `outputs` is in the operation's order."""

    job: str
    owner: str = ""  # of the job; the release before wrote none
    operation: str
    outputs: dict[str, ArrayOutput | FileOutput | ValueOutput]
    expires_at: float
    steps: tuple[StepProvenance, ...] | None = None  # of a plan: how each was computed


class WantedInputs(Message):
    """The body of `POST /v1/worker/inputs`: attempts ("<job>.<attempt>") and the names of their inputs.

    It has of each attempt the token of its claim.
    """

    inputs: tuple[tuple[str, str], ...]
    claims: dict[str, str] = Field(default={}, repr=False)


class SentInputs(Message):
    """The head of the API's answer to a worker that wants inputs, after its length in four bytes (big-endian).

    It has of each input its array, or None where the array does not follow.
    """

    arrays: tuple[ArrayInfo | None, ...]


class SentResult(Message):
    """A result that a worker of another host sends. Its files follow, in the order of the document's outputs."""

    name: str  # "<job>.<attempt>"
    claim: str = Field(default="", repr=False)  # the token of the claim
    document: ResultDocument  # without the ids of outputs, which only the API can compute


class SentResults(Message):
    """The head of `POST /v1/worker/results`, after its length in four bytes (big-endian)."""

    results: tuple[SentResult, ...]
