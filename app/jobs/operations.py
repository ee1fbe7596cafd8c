"""Routes of the operation catalogue, and the check of a submitted job against its operation."""

import hashlib
import json
import secrets
import sys
import time
from binascii import b2a_base64
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from typing import Any

from fastapi import APIRouter, Request
from pydantic import ValidationError

from warpdesk import models
from warpdesk_server.app.arrays import ndarray
from warpdesk_server.app.arrays.ndarray import Numbers
from warpdesk_server.app.arrays.nested import from_nested
from warpdesk_server.app.datasets import slices, times
from warpdesk_server.app.datasets.schemas import DatasetInput
from warpdesk_server.app.datasets.slices import Part, Room
from warpdesk_server.app.http import bodies
from warpdesk_server.app.jobs import schemas
from warpdesk_server.app.kit import errors, limits
from warpdesk_server.app.kit.errors import Refusal, refuse_at
from warpdesk_server.app.kit.schemas import WEEK
from warpdesk_server.app.services import Services, ServicesDep
from warpdesk_server.app.settings import Settings
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.indicators.indicator import INDICATORS
from warpdesk_server.kernels.operation import Computation, Cost, Input
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.plans import PLAN, Plan
from warpdesk_server.kernels.problems import InvalidRequest, Problem
from warpdesk_server.kernels.spend import Spend
from warpdesk_server.kernels.task import Task, TaskLimits
from warpdesk_server.workers.queue.protocol import AttachedInput, AttachedInputs, Together
from warpdesk_server.workers.store.protocol import StoredArray

router = APIRouter(tags=["operations"])

# Seeds the service chooses fit the integers every JSON reader holds exactly (RFC 8259 section 6).
SEED_BITS = 53

# A smaller array is written again rather than looked for: its bytes are compared as it is published.
_WRITTEN_AGAIN = 256 << 10
_LATELY = 60.0  # seconds since an input was stored, within which another job takes it as it is


@dataclass(frozen=True)
class Checked:
    """A valid submission of a job, with its parsed parameters and its input arrays, stored and inline.

    Inputs have their names in records here; `given` has the submission's names of them.
    """

    submission: schemas.Submission
    operation: Computation
    params: Params
    given: dict[str, str]
    stored: dict[str, str]
    inline: dict[str, Numbers]
    infos: dict[str, ArrayInfo]
    datasets: dict[str, dict[str, Any]]  # by names in the submission: what inputs were read from that name a dataset
    seed: int | None
    cost: Cost
    spend: Spend | None  # what it charges its budget; None if it names no budget
    task_limits: TaskLimits | None = None  # None if it is no task

    def is_secret(self, name: str) -> bool:
        return any(expected.secret for expected in self.operation.inputs if expected.name == name)


async def read(request: Request, services: Services) -> object:
    """Read a job's submission from the request's body, as parsed JSON that is not validated yet."""
    return await bodies.read_json(request, services.settings.max_body, partial(parsed, services), keys=_most_keys)


def _most_keys(body: bytes) -> int:
    """The most keys that the body of a submission may have: a plan has some for each of its steps."""
    return limits.JSON_KEYS_OF_PLANS if b'"plan"' in body else limits.JSON_KEYS


def parsed(services: Services, sent: bytes) -> object:
    """Parse the bytes of a job's submission. Only one with far too many entries, or far too many errors, is refused
    here."""
    body = services.amounts.of_job(bodies.parse(sent), sent)
    require_few(services, body)
    require_few_sets(sets_in(body))
    return body


def sets_in(sent: object) -> int:
    """How many sets of parameters the lists of a job's submission make, those of a plan's steps together; 0 without
    lists."""
    if not isinstance(sent, dict) or not isinstance(params := sent.get("params"), dict):
        return 0
    if sent.get("operation") == PLAN and isinstance(steps := params.get("steps"), list):
        return sum(map(sets_in, steps))
    if str(sent.get("operation")) not in INDICATORS:
        return 0
    return max((len(value) for value in params.values() if isinstance(value, list)), default=0)


def require_few_sets(count: int, pointer: str = "/params") -> None:
    """Refuse lists of parameters that take long to check."""
    if count > limits.SETS:
        sentence = f"lists make {count} sets of parameters; one request may have {limits.SETS}"
        raise refuse_at("invalid-request", pointer, sentence)


def require_few(services: Services, sent: object) -> None:
    """Refuse a job's submission with far too many entries, or far too many errors. A thread does it."""
    if isinstance(sent, dict):
        _require_few(sent)
        _require_few_problems(services.operations.get(str(sent.get("operation"))), sent.get("params"))


def submission(body: object) -> schemas.Submission:
    """A job's submission with valid fields from a request body. Raises a refusal that lists the invalid ones."""
    return bodies.fitted(schemas.Submission, body, schemas.UNION_TAGS)


class Sources:
    """Where the inputs of one request's jobs come from: the owner's stored arrays and datasets, each looked up once,
    and the room that inline numbers still have."""

    def __init__(self, services: Services, owner: str) -> None:
        self._services, self.owner = services, owner
        self.find = cache(partial(services.store.find, owner))
        self.room = services.settings.max_inline_numbers
        self._memory = Room(services.store, services.settings.max_array)  # for what is read from datasets
        self._parts: dict[str, Part] = {}  # by the inputs that name them
        self._busy: Refusal | None = None  # what was in the way of a dataset: the request waits for one writer alone
        self._versions: dict[str, int] = {}  # of datasets that were read without a version

    def part(self, wanted: DatasetInput, pointer: str) -> Part:
        """A part of a dataset. All inputs of a request that name no version read the same one, whatever is appended
        meanwhile."""
        if wanted.as_of is None:
            wanted = wanted.model_copy(update={"as_of": self._versions.get(wanted.dataset)})
        key = wanted.model_dump_json()
        if key not in self._parts:
            part = self._read(wanted, pointer)
            for version in (wanted.as_of, part.version):
                self._parts[wanted.model_copy(update={"as_of": version}).model_dump_json()] = part
            if wanted.as_of is None:
                self._versions[wanted.dataset] = part.version
        return self._parts[key]

    def _read(self, wanted: DatasetInput, pointer: str) -> Part:
        if self._busy is not None:
            raise self._busy
        try:
            return slices.as_input(self._services.datasets, self._memory, self.owner, wanted, pointer)
        except Refusal as refusal:
            if not refusal.problems:
                self._busy = refusal
            raise


def check(services: Services, submission: schemas.Submission, sources: Sources) -> Checked:
    """Check a job's submission against its operation and the stored arrays. Writes nothing; call it in a thread."""
    operation = _find(services.operations, submission.operation)
    if isinstance(operation, Plan):
        params = operation.with_seeds(submission.params, lambda: secrets.randbits(SEED_BITS))
        submission = submission.model_copy(update={"params": params})
    _require_few_labels(operation, submission)
    seed = _seed(operation, submission.seed)
    given: dict[str, str] = {}
    try:
        given = operation.given_names(submission.inputs)
        inline, stored, infos, reads = _inputs(operation, submission, given, sources)
        _require_a_shape(operation, inline, given)
        _require_small_record(submission, reads)
        parsed = operation.validate(submission.params, infos)
    except InvalidRequest as error:
        problems = tuple(_as_given(problem, given) for problem in error.problems)
        raise Refusal("invalid-request", errors.sentence_of(problems, error.count), *problems) from None
    if submission.backend == "gpu" and (lacking := operation.lacking_gpu(submission.params)):
        raise refuse_at("invalid-request", "/backend", f"{', '.join(lacking)} has no GPU implementation")
    cost, task_limits = operation.cost(parsed, infos), None
    if isinstance(operation, Task):
        task_limits = operation.limits(parsed, infos)
    elif cost.bytes > services.settings.max_job_bytes:
        sentence = f"The job needs {cost.bytes} bytes while it runs; the limit is {services.settings.max_job_bytes}"
        raise refuse_at("job-too-large", "", sentence)
    spend = None if operation.spend is None else operation.spend(parsed, infos)
    if spend is not None:
        _require_versions(submission)
    return Checked(submission, operation, parsed, given, stored, inline, infos, reads, seed, cost, spend, task_limits)


def _require_versions(submission: schemas.Submission) -> None:
    """Refuse a job that charges a budget with the latest version of a dataset: sent again, it would be another job."""
    for name, value in submission.inputs.items():
        if isinstance(value, DatasetInput) and value.as_of is None:
            sentence = "a job that charges a budget names the version that it reads of a dataset: as_of"
            raise refuse_at("invalid-request", f"/inputs/{errors.escape(name)}/as_of", sentence)


def _as_given(problem: Problem, given: Mapping[str, str]) -> Problem:
    """A problem of a submission, whose pointer to an input has the name that the submission gives it."""
    for name, shown in given.items():
        if problem.pointer == f"/inputs/{name}":
            return Problem(f"/inputs/{shown}", problem.detail)
    return problem


def _require_few(body: Mapping[str, Any]) -> None:
    inputs = limits.INPUTS_OF_PLANS if body.get("operation") == PLAN else limits.INPUTS
    for name, most in (("inputs", inputs), ("params", limits.PARAMS)):
        given = body.get(name)
        if isinstance(given, dict) and len(given) > most:
            raise refuse_at("invalid-request", f"/{name}", f"{name} has {len(given)} entries; the limit is {most}")


def _require_small_record(submission: schemas.Submission, reads: Mapping[str, Any]) -> None:
    """Refuse a submission of which Redis would have to keep too much, for as long as its result."""
    size = _json_bytes(submission.params, limits.RECORD) + _json_bytes(dict(reads), limits.RECORD)
    if size > limits.RECORD:
        sentence = f"parameters, and the parts of datasets that are read, have over {limits.RECORD} bytes as JSON"
        raise Refusal("job-too-large", f"{sentence}, which is the most that is kept of a job's request")


def _require_few_labels(operation: Computation, submission: schemas.Submission) -> None:
    """Refuse labels of a submission that take more bytes than Redis shall keep, and those of confidential data."""
    room = limits.LABELS
    for name, given in submission.labels.items():
        pointer = f"/inputs/{errors.escape(name)}/labels"
        if operation.confidential:
            raise refuse_at("invalid-request", pointer, f"{operation.name} is confidential, and keeps no labels")
        room -= _json_bytes(given, room)
        if room < 0:
            sentence = f"the labels of a job may have {limits.LABELS} bytes as JSON, and these have more"
            raise refuse_at("invalid-request", pointer, sentence)


def _json_bytes(value: object, most: int) -> int:
    """About how many bytes a part of a submission has as JSON; counted no further than `most`."""
    waiting, size = [value], 0
    while waiting and size <= most:
        match waiting.pop():
            case dict() as each:
                size += 2 + 2 * len(each)
                waiting += [*each, *each.values()]
            case list() as each:
                size += 2 + len(each)
                waiting += each
            case str() as each:
                size += 2 + len(each.encode(errors="surrogatepass"))
            case each:
                size += len(str(each))
    return size


def _require_a_shape(operation: Computation, inline: Mapping[str, Numbers], given: Mapping[str, str]) -> None:
    """Refuse a submission's inline input `[]` if rank 1 is not allowed: in JSON it may also mean shape (0, 3)."""
    for expected in operation.inputs:
        numbers = inline.get(expected.name)
        if numbers is None or numbers.shape != (0,) or 1 in expected.ranks:
            continue
        remedy = "upload the array as .npy" if expected.empty else f"{operation.name} takes no empty array"
        sentence = f"an empty list cannot express a shape such as [0, 3]; {remedy}"
        raise refuse_at("invalid-request", f"/inputs/{given[expected.name]}/data", sentence)


def _require_few_problems(operation: Computation | None, params: object) -> None:
    """Refuse a submission with very many errors in its params in one sentence: to write one for each would take
    seconds.

    pydantic needs about 300 bytes for each error, so this runs where only few large bodies are parsed at a time.
    """
    if operation is None or not isinstance(params, dict):
        return
    waiting: list[Any] = [params]
    parts = 0
    while waiting and parts <= limits.PROBLEMS:
        value = waiting.pop()
        if isinstance(value, Mapping | list):
            parts += len(value)
            waiting += value.values() if isinstance(value, Mapping) else value
    if parts <= limits.PROBLEMS:
        return
    try:
        operation.params.model_validate_json(json.dumps(params))
    except ValidationError as error:
        count = error.error_count()
    else:
        return
    if count > limits.PROBLEMS:
        raise refuse_at("invalid-request", "/params", f"params has {count} errors")


def keep_inputs(services: Services, owner: str, checked: Checked) -> dict[str, StoredArray]:
    """Store the inline input arrays of a job's submission. Writes files: call it in a thread.

    A secret input is erased when its job is done, so two jobs never share one, even with the same content.
    """
    return {
        name: _stored_lately(services, owner, checked, name)
        or ndarray.store(
            services.store,
            owner,
            numbers,
            checked.infos[name],
            services.settings.inline_ttl,
            unique=checked.is_secret(name),
        )
        for name, numbers in checked.inline.items()
    }


def _stored_lately(services: Services, owner: str, checked: Checked, name: str) -> StoredArray | None:
    """The stored array of a large input's content, if another job was submitted with it a moment ago; None else.

    Jobs that read one part of a dataset write it once a minute.
    """
    info = checked.infos[name]
    if info.nbytes < _WRITTEN_AGAIN or checked.is_secret(name):
        return None
    array_id = services.store.digest(owner, info.dtype, info.shape, ndarray.as_bytes(checked.inline[name]))
    found = services.store.find(owner, array_id)
    is_young = found is not None and found.expires_at > time.time() + services.settings.inline_ttl - _LATELY
    return found if is_young else None


def may_be_attached(services: Services, checked: Checked) -> bool:
    """Whether the inline inputs of a job's submission may go with it into Redis instead of the store.

    They are small and of no operation that is confidential or charges: what Redis was given stays in its append-only
    file until that is written anew.
    """
    size = sum(checked.infos[name].nbytes for name in checked.inline)
    small = bool(checked.inline) and size <= services.settings.max_attached_bytes
    return (
        small and checked.task_limits is None and not checked.operation.confidential and checked.operation.spend is None
    )


def attached(checked: Checked) -> str:
    """The inline inputs of a job's submission as they go into Redis."""
    inputs = {
        name: AttachedInput(
            shape=checked.infos[name].shape,
            data=b2a_base64(ndarray.as_bytes(numbers), newline=False).decode(),
        )
        for name, numbers in checked.inline.items()
    }
    return AttachedInputs.dump_json(inputs).decode()


def _find(operations: Mapping[str, Computation], name: str) -> Computation:
    operation = operations.get(name)
    if operation is None:
        raise refuse_at("unknown-operation", "/operation", _unknown(operations, name))
    return operation


def _unknown(operations: Mapping[str, Computation], name: str) -> str:
    """A sentence about an operation that does not exist, with those that may be meant: TA-Lib's function of that name
    among them."""
    twins = [
        operation.name
        for operation in operations.values()
        if any(twin.function.lower() == name.lower() for twin in operation.same_as)
    ]
    near = [*twins, *(each for each in get_close_matches(name[:64].lower(), operations, n=5) if each not in twins)]
    hint = f"near are {', '.join(near)}; " if near else ""
    return f"There is no operation {name[:64]!r}; {hint}GET /v1/operations lists all {len(operations)}"


def _seed(operation: Computation, given: int | None) -> int | None:
    if operation.randomness == "seed":
        return secrets.randbits(SEED_BITS) if given is None else given
    if given is not None:
        why = "draws from the operating system alone" if operation.randomness == "private" else "draws no random words"
        raise refuse_at("invalid-request", "/seed", f"{operation.name} takes no seed: it {why}")
    return None


def _input_names(operation: Computation, params: Mapping[str, Any]) -> set[str]:
    """The names of inputs, in records, that a job with these params can have."""
    if not isinstance(operation, Plan):
        return {expected.name for expected in operation.inputs}
    steps = params.get("steps")
    sources = [step.get("inputs") for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return {str(name) for each in sources if isinstance(each, dict) for name in each.values()}


def _inputs(
    operation: Computation, submission: schemas.Submission, given: Mapping[str, str], sources: Sources
) -> tuple[dict[str, Numbers], dict[str, str], dict[str, ArrayInfo], dict[str, dict[str, Any]]]:
    """The inputs of a job's submission by name: inline arrays, ids of stored arrays, the descriptions of both, and
    what was read from datasets, which is inline from here on. An input that the operation will refuse by its name is
    not read."""
    names = _input_names(operation, submission.params)
    inline: dict[str, Numbers] = {}
    reads: dict[str, dict[str, Any]] = {}
    stored: dict[str, str] = {}
    infos: dict[str, ArrayInfo] = {}
    problems: list[Problem] = []
    for name, shown in given.items():
        value, pointer = submission.inputs[shown], f"/inputs/{errors.escape(shown)}"
        if isinstance(value, schemas.StoredInput):
            found = sources.find(value.array)
            if found is None:
                problems.append(_missing(shown, value.array))
            else:
                stored[name], infos[name] = found.id, found.info
            continue
        if isinstance(value, DatasetInput) and name not in names:
            infos[name] = ArrayInfo("float64", (0,))
            continue
        try:
            if isinstance(value, DatasetInput):
                part = sources.part(value, pointer)
                inline[name], infos[name], reads[shown] = part.numbers, part.info, _source(value, part.version)
                continue
            numbers = from_nested(value.data, value.dtype, f"{pointer}/data", sources.room)
            sources.room -= numbers.size
        except Refusal as refusal:
            if not refusal.problems:  # a dataset that is being written
                raise
            problems += refusal.problems
            continue
        inline[name], infos[name] = numbers, ndarray.describe(numbers)
    if problems:
        raise Refusal("invalid-request", errors.sentence_of(tuple(problems)), *problems)
    return inline, stored, infos, reads


def _source(value: DatasetInput, version: int) -> dict[str, Any]:
    """What a job's input was read from, as the caller would send it again for the same array."""
    found: dict[str, Any] = {"dataset": value.dataset, "column": value.column, "as_of": version}
    found |= {name: times.text(at) for name, at in (("from", value.first), ("to", value.end)) if at is not None}
    return found if value.assets is None else {**found, "assets": value.assets}


def missing(checked: Checked, gone: Container[str]) -> Sequence[Problem]:
    """The problems of a submission whose stored inputs were deleted after the check: the same as if they had never
    existed."""
    return [_missing(checked.given[name], array_id) for name, array_id in checked.stored.items() if array_id in gone]


def _missing(name: str, array_id: str) -> Problem:
    return Problem(f"/inputs/{errors.escape(name)}/array", f"there is no array {array_id[:80]!r}")


def together(owner: str, checked: Checked) -> Together | None:
    operation = checked.operation
    alike, batching = operation.batch_key(checked.params, checked.infos), operation.batching
    if alike is None or batching is None:
        return None
    apart = [alike, checked.submission.backend, owner if operation.confidential else None]
    key = hashlib.blake2b(json.dumps(apart).encode(), digest_size=16).hexdigest()
    return Together(key=key, items=batching.items, bytes=batching.bytes, wait=batching.wait)


def describe(operation: Computation, settings: Settings) -> models.OperationDescription:
    return models.OperationDescription(
        name=operation.name,
        summary=operation.summary,
        task=isinstance(operation, Task),
        open_inputs=isinstance(operation, Plan),
        randomness=operation.randomness,
        params=operation.params.model_json_schema(),
        inputs=[
            *(_described(expected) for expected in operation.inputs),
            *(_earlier_name(expected) for expected in operation.inputs if expected.renamed),
        ],
        outputs=[
            models.OutputDescription(
                name=output.name, doc=output.doc, kind=output.kind, axes=[axes.split() for axes in output.axes]
            )
            for output in operation.outputs
        ],
        limits=models.Limits(
            inline_numbers=settings.max_inline_numbers,
            array_bytes=settings.max_array,
            job_bytes=settings.max_job_bytes,
            deadline_s=WEEK,
            result_ttl_s=WEEK,
            label_bytes=0 if operation.confidential else limits.LABELS,
        ),
        task_limits=_task_limits(operation),
        example=example(operation),
        same_as=[
            models.SameFunction(
                library=twin.library,
                function=twin.function,
                parameters={
                    ours: theirs if isinstance(theirs, str) else list(theirs)
                    for ours, theirs in twin.parameters.items()
                },
                fixed=dict(twin.fixed),
                library_fixed=dict(twin.theirs),
                inputs=dict(twin.inputs),
                outputs=dict(twin.outputs),
            )
            for twin in operation.same_as
        ],
    )


def _task_limits(operation: Computation) -> models.TaskLimits | None:
    """The limits of a task's example, for the operation's description; None where it is no task."""
    if not isinstance(operation, Task):
        return None
    infos = {
        name: ndarray.describe(from_nested(given["data"], given["dtype"], f"/inputs/{name}/data", sys.maxsize))
        for name, given in operation.example.inputs.items()
    }
    found = operation.limits(operation.validate(operation.example.params, infos), infos)
    return models.TaskLimits(
        step_s=found.step_seconds,
        total_s=found.seconds,
        checkpoint_bytes=found.checkpoint_bytes,
        result_bytes=found.result_bytes,
    )


def _described(expected: Input) -> models.InputDescription:
    return models.InputDescription(
        name=expected.shown,
        doc=expected.doc,
        dtypes=list(expected.dtypes),
        ranks=list(expected.ranks),
        required=expected.required,
        nan_allowed=expected.nan,
        empty_allowed=expected.empty,
        secret=expected.secret,
        axes=[axes.split() for axes in expected.axes],
    )


def _earlier_name(expected: Input) -> models.InputDescription:
    """The earlier name of an operation's renamed input, so that clients send a list under it as an input."""
    changes = {"name": expected.name, "doc": f"earlier name of {expected.shown}", "required": False}
    return _described(expected).model_copy(update={**changes, "alias_of": expected.shown})


def example(operation: Computation) -> dict[str, Any]:
    """An example body of `POST /v1/jobs` for an operation; it runs unchanged."""
    shown = {expected.name: expected.shown for expected in operation.inputs}
    inputs = {shown.get(name, name): given for name, given in operation.example.inputs.items()}  # a plan has open names
    return {"operation": operation.name, "params": operation.example.params, "inputs": inputs}


@router.get("/v1/operations", summary="List what can be computed", response_model=models.OperationList)
async def list_operations(services: ServicesDep) -> models.OperationList:
    return models.OperationList(
        operations=[describe(operation, services.settings) for operation in services.operations.values()]
    )


@router.get(
    "/v1/operations/{name}",
    summary="Describe one operation",
    response_model=models.OperationDescription,
    responses=errors.documented("not-found"),
)
async def get_operation(name: str, services: ServicesDep) -> models.OperationDescription:
    found = services.operations.get(name)
    if found is None:
        raise Refusal("not-found", _unknown(services.operations, name))
    return describe(found, services.settings)
