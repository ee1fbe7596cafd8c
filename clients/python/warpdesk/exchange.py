"""The client's protocol without I/O: the requests to a service, their order, and the parsing of its responses.

Each method of `Exchange` is a generator that yields requests, receives their responses and returns the method's result.
A request's extension `PAUSE` is the number of seconds to wait before it is sent. If a request fails, the caller throws
the exception into the generator.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from math import floor
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx
import numpy as np
from numpy.typing import ArrayLike

from warpdesk import frames, kept_labels
from warpdesk.arrays import INLINE, AnyArray, as_array, as_json, as_param, fits_json, from_base64, from_npy
from warpdesk.bodies import CSV, NPY, ChunkedBody, array_body, file_body
from warpdesk.calls import (
    AnyJob,
    AskedRound,
    Call,
    LabelledArray,
    LabelledJob,
    ManyProgress,
    Options,
    Place,
    Result,
    Round,
    RoundResult,
    labels_with,
)
from warpdesk.datasets import Dataset, DatasetRows, as_time, as_times, nanoseconds_of
from warpdesk.errors import (
    REFUSED,
    JobFailed,
    JobTimeout,
    RequestRefused,
    RoundTimeout,
    Unreachable,
    WarpdeskError,
    checked,
)
from warpdesk.files import FileBody, FileReference
from warpdesk.frames import FrameLabels, JobLabels
from warpdesk.models import (
    DTYPES,
    ArrayDescription,
    Budget,
    DatasetDescription,
    DatasetPage,
    DatasetSummary,
    DType,
    FileDescription,
    Job,
    JobBundle,
    JobDescription,
    JobPage,
    NewBudget,
    OperationDescription,
    OperationList,
    Provenance,
    Reply,
    RowsAppended,
    State,
    TaskProgress,
    TaskStep,
)
from warpdesk.models import Result as ResultBody

URL = "http://127.0.0.1:8000"
LONGEST_WAIT = 55  # seconds the service holds a request open
LONGEST_SILENCE = 2  # seconds between two calls of `progress` for several jobs
SLACK = 0.1  # seconds a wait may go on beyond its timeout: the service counts whole ones
FIRST_PAUSE = 0.005  # seconds between questions where less than a whole one is left; doubles each time
LONGEST_PAUSE = 1.0  # seconds between questions to which the service gives no answer before its time
LONGEST_DELAY = 8  # seconds between questions to a service that does not wait: when jobs will be done it only guesses
PAUSE = "pause"
BUNDLE = "/v1/jobs/batch"
TINY = 32  # numbers: below, an array that several jobs read goes into the body of each
BODY = "body"  # a response's extension: the array that it brought, as `ArrayBody`
INTO = "into"  # a request's extension: the `FileBody` that its response is written to

TRIES = 5  # of a request whose connection fails; the pauses between them are 1.5 seconds together
FIRST_RETRY = 0.1  # seconds; doubles each time

# Connection errors that a retry over a new connection may avoid.
LOST = (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError)
TRY_LATER = (429, 503)
REST = 206  # the status of a response that has the rest of a file

FLOATS: tuple[DType, ...] = ("float64", "float32")  # of a dataset's columns

T = TypeVar("T")
R = TypeVar("R", bound=Reply)
Steps = Generator[httpx.Request, httpx.Response, T]


class ArrayBody:
    """The memory that an array of a response is read into, piece by piece, and where it then stays."""

    def __init__(self, size: int) -> None:
        self.content = bytearray(size)
        self._end = 0

    @classmethod
    def of(cls, response: httpx.Response) -> "ArrayBody | None":
        """The memory for a response that brings an array and says how long it is; None for any other."""
        length = response.headers.get("Content-Length", "")
        plain = response.headers.get("Content-Type") == NPY and "Content-Encoding" not in response.headers
        return cls(int(length)) if response.is_success and plain and length.isdigit() else None

    def take(self, piece: bytes) -> None:
        begin, self._end = self._end, self._end + len(piece)
        self.content[begin : self._end] = piece


def body_of(request: httpx.Request, response: httpx.Response) -> ArrayBody | FileBody | None:
    """The place that a response's bytes go to as they arrive; None for one that is read as a whole."""
    into: FileBody | None = request.extensions.get(INTO)
    if into is None or not response.is_success:
        return ArrayBody.of(response)
    into.begin(goes_on=response.status_code == REST)
    return into


def _array_of(response: httpx.Response) -> AnyArray:
    body = response.extensions.get(BODY)
    return from_npy(response.content if body is None else body.content)


class Exchange:
    """The client's requests to one service, with its address, its API key and the operations it has."""

    def __init__(
        self,
        url: str | None,
        api_key: str | None,
        timeout: float,
        file: Callable[[str, FileDescription], FileReference] = FileReference,
    ) -> None:
        """`file` makes what a result has for an output that is a file, of its path and its description."""
        self._file = file
        self.url = _address(url or os.environ.get("WARPDESK_URL") or URL)
        self.timeout = timeout
        self._headers = {"Accept": "application/json"}
        if api_key := (api_key or os.environ.get("WARPDESK_API_KEY") or "").strip():  # read from a file, it ends a line
            if not re.fullmatch(r"[!-~]+", api_key):  # which httpx would print with all of the key
                raise ValueError(f"the API key of {len(api_key)} characters has some that no key has: copy it again")
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._operations: dict[str, OperationDescription] = {}

    def run(
        self,
        operation: str,
        options: Options,
        params: Mapping[str, Any] | None,
        fields: Mapping[str, Any],
        idempotency_key: str | None,
        deadline: float | None,
    ) -> Steps[Result]:
        job = yield from self.submit(operation, options, params, fields, idempotency_key, deadline, wait=True)
        return (yield from self.result(job, deadline))

    def submit(
        self,
        operation: str,
        options: Options,
        params: Mapping[str, Any] | None,
        fields: Mapping[str, Any],
        idempotency_key: str | None,
        deadline: float | None = None,
        *,
        wait: bool = False,
        keep_labels: bool = False,
    ) -> Steps[LabelledJob]:
        """Submit a job. With `keep_labels` the service keeps those of frames beside it, if they are small."""
        fields = {**(params or {}), **fields}
        body, labels = yield from self._submission(
            operation, options, fields, deadline, _SentInputs(), keep_labels=keep_labels
        )
        # One key for all tries of this call: a reply that is lost does not make a second job.
        content = {"json": body, "headers": _key(idempotency_key), "deadline": deadline, "wait": wait}
        job = yield from self._read(LabelledJob, "POST", "/v1/jobs", **content)
        job._labels = labels
        return job

    def submit_many(
        self, calls: Sequence[Call], idempotency_key: str | None, deadline: float | None = None
    ) -> Steps[Sequence[Job]]:
        if not calls:
            return []
        body, labels = yield from self._bundle(calls, deadline, keep_labels=True)
        content = {"json": body, "headers": _key(idempotency_key), "deadline": deadline}
        return _labelled((yield from self._read(JobBundle, "POST", BUNDLE, **content)).jobs, labels)

    def run_many(
        self,
        calls: Sequence[Call],
        idempotency_key: str | None,
        deadline: float | None,
        progress: ManyProgress | None,
    ) -> Steps[list[Result | JobFailed]]:
        """Submit several jobs, wait for all and fetch their results. The request waits, and is sent again under its
        key until all jobs have ended: no job is asked for by itself."""
        if not calls:
            return []
        body, labels = yield from self._bundle(calls, deadline)
        content: dict[str, Any] = {
            "json": body,
            "headers": _key(idempotency_key),
            "prefer": "arrays=base64",
            "longest": LONGEST_WAIT if progress is None else LONGEST_SILENCE,
            "deadline": deadline,
        }
        jobs, delay = yield from self._waited(content)
        pause = FIRST_PAUSE
        while True:
            unfinished = [job for job in jobs if not job.status.final]
            if progress is not None:
                progress(len(jobs) - len(unfinished), len(jobs))
            if not unfinished:
                break
            left = _seconds_left(deadline)
            if left <= 0:
                raise JobTimeout(unfinished[0], unfinished[0].status, unfinished)
            if _whole_seconds(left):
                jobs, delay = yield from self._waited(content, min(delay, left))
            else:
                # A wait of none brings results, if all have ended.
                given = {**content, "prefer": "wait=0, arrays=base64", "pause": min(pause, left)}
                jobs = (yield from self._read(JobBundle, "POST", BUNDLE, **given)).jobs
                pause *= 2
        results: list[Result | JobFailed] = []
        for place, job in enumerate(_labelled(jobs, labels)):
            try:
                results.append((yield from self.result(job, deadline)))
            except JobFailed as error:
                results.append(JobFailed(error.code, error.detail, job, place))
        return results

    def _waited(self, content: Mapping[str, Any], pause: float = 0.0) -> Steps[tuple[Sequence[Job], float]]:
        """Send the request of several jobs, which waits for all of them; returns the jobs, and the seconds after which
        it should be sent again.

        They are 0 unless the service answered before its time: it does not wait where the key has all its waits.
        """
        longest = content["longest"]
        seconds = min(longest, _whole_seconds(_seconds_left(content["deadline"]) - pause))
        began = time.monotonic() + pause
        response = yield from self.ask("POST", BUNDLE, **content, wait=True, pause=pause)
        jobs = JobBundle.model_validate_json(response.content).jobs
        if time.monotonic() - began >= seconds - SLACK or all(job.status.final for job in jobs):
            return jobs, 0.0
        return jobs, min(_seconds(response) or LONGEST_PAUSE, LONGEST_DELAY, longest)

    def _bundle(
        self, calls: Sequence[Call], deadline: float | None, *, keep_labels: bool = False
    ) -> Steps[tuple[dict[str, Any], Sequence[JobLabels | None]]]:
        """The body that submits several jobs, and the labels of each. What several of them read is uploaded, once, and
        so is what the body has no room for."""
        first = yield from self._describe(calls[0].operation, deadline)
        sent = _SentInputs(calls, first.limits.inline_numbers if first is not None else INLINE)
        jobs: list[dict[str, Any]] = []
        labels: list[JobLabels | None] = []
        for call in calls:
            made = yield from self._submission(
                call.operation, call.options, call.fields, deadline, sent, keep_labels=keep_labels
            )
            jobs.append(made[0])
            labels.append(made[1])
        return {"jobs": jobs}, labels

    def _submission(
        self,
        operation: str,
        options: Options,
        fields: Mapping[str, Any],
        deadline: float | None,
        sent: "_SentInputs",
        *,
        keep_labels: bool,
    ) -> Steps[tuple[dict[str, Any], JobLabels | None]]:
        """The body that submits a job, once inputs are uploaded that do not go with it, and the labels of frames."""
        description = yield from self._describe(operation, deadline)
        expected = {entry.name: entry for entry in (description.inputs if description else ())}
        numbers = description.params.get("properties", {}) if description else {}  # of an input: one number for all
        named = description is not None and description.open_inputs  # by the request: what is no parameter is an input
        arrays: dict[str, ArrayDescription | AnyArray] = {}
        parts: dict[str, dict[str, Any]] = {}  # of datasets
        labels: dict[str, FrameLabels] = {}
        turned_inputs: set[str] = set()
        others: dict[str, Any] = {}
        for name, value in fields.items():
            entry = expected.get(name)
            if name not in expected and name in numbers and isinstance(value, np.ndarray | range):
                value = [*value] if isinstance(value, range) else value.tolist()
            if isinstance(value, ArrayDescription):
                arrays[name] = value
                if entry is not None and isinstance(value, LabelledArray):
                    labels[name] = frames.require_turned(name, value._labels, entry.axes)
            elif (library := frames.library_of(value)) is not None and (entry is not None or named or not description):
                if entry is not None:
                    kind = entry.dtypes, entry.ranks, entry.axes
                elif named:
                    kind = [*DTYPES], [1, 2], [[*axes] for axes in frames.SERIES]
                else:  # the service will say that the operation does not exist
                    continue
                array, labels[name] = frames.read_frame(name, value, library, *kind)
                arrays[name] = as_array(name, array, tuple(kind[0]))
                if array.ndim == 2 and frames.is_turned(frames.axes_of(kind[2], 2)):
                    turned_inputs.add(name)
            elif isinstance(value, Dataset):
                parts[name] = value.as_input()
            # As `job.datasets` has it.
            elif (named or name in expected) and isinstance(value, Mapping) and "dataset" in value:
                parts[name] = dict(value)
            elif not isinstance(value, np.ndarray) and (
                (name in numbers if named else entry is None) or (name in numbers and isinstance(value, Real))
            ):
                others[name] = as_param(name, value)
            else:
                arrays[name] = as_array(name, value, tuple(entry.dtypes) if entry is not None else DTYPES)
        axes = {name: entry.axes for name, entry in expected.items()}
        ranks = {name: len(each.shape) for name, each in arrays.items() if name in axes}
        joint = frames.labels_of({name: labels[name] for name in labels if name in axes}, axes, ranks)
        inputs = parts
        for name, each in arrays.items():
            if isinstance(each, ArrayDescription):
                inputs[name] = {"array": each.id}
            elif (before := sent.uploaded(fields[name], each, is_turned=name in turned_inputs)) is not None:
                inputs[name] = {"array": before}
            elif sent.go_inline(fields[name], each):
                inputs[name] = {"data": as_json(each), "dtype": each.dtype.name}
            else:
                stored = yield from self.upload(each, deadline=deadline)
                inputs[name] = {"array": sent.keep(fields[name], each, stored.id, is_turned=name in turned_inputs)}
        if keep_labels and joint is not None and description is not None:
            for name, text in kept_labels.written(joint, labels, description.limits.label_bytes).items():
                inputs[name]["labels"] = text
        body = {"operation": operation, "params": others, "inputs": inputs, **vars(options)}
        if options.width == "auto":  # the release before does not know it
            del body["width"]
        return {name: value for name, value in body.items() if value is not None}, joint

    def job(
        self, job: AnyJob, deadline: float | None = None, *, wait: bool = False, pause: float = 0.0
    ) -> Steps[LabelledJob]:
        return (yield from self._job(job, "GET", deadline=deadline, wait=wait, pause=pause))

    def wait(self, job: AnyJob, deadline: float | None) -> Steps[JobDescription]:
        found = (yield from self.job(job, deadline, wait=True)) if isinstance(job, str) else job
        pause = FIRST_PAUSE
        while not found.status.final:
            left = _seconds_left(deadline)
            if left <= 0:
                raise JobTimeout(found, found.status)
            if _whole_seconds(left):
                found = yield from self.job(found, deadline, wait=True)
            else:
                found = yield from self.job(found, deadline, pause=min(pause, left))
                pause *= 2
        return found

    def result(self, job: AnyJob, deadline: float | None) -> Steps[Result]:
        found = yield from self.wait(job, deadline)
        if found.error is not None:
            raise JobFailed(found.error.code, found.error.message, found)
        body = found.result if isinstance(found, Job) else None
        if body is None:  # the job was given, not waited for; or it has no result, and the service says why
            try:
                body = yield from self._read(ResultBody, "GET", f"/v1/jobs/{found.id}/result")
            except RequestRefused as refusal:
                if found.status in (State.CANCELED, State.EXPIRED) and refusal.status == REFUSED:
                    raise JobFailed(refusal.code, refusal.detail, found) from None
                raise
        kinds = yield from self._kinds(found)
        outputs = dict(body.outputs)
        for name in outputs:
            value = outputs[name]
            if kinds.get(name) == "array" and isinstance(value, dict) and "base64" in value:
                outputs[name] = from_base64(value)
            # JSON says neither dtype nor NaN.
            elif kinds.get(name) == "array" and isinstance(value, list | dict):
                response = yield from self.ask("GET", f"/v1/jobs/{found.id}/result/{name}", headers={"Accept": NPY})
                outputs[name] = _array_of(response)
            elif kinds.get(name) == "file":
                described = FileDescription.model_validate(outputs[name])
                outputs[name] = self._file(f"/v1/jobs/{found.id}/result/{name}", described)
        description = yield from self._describe(found.operation, None)
        axes = {entry.name: entry.axes for entry in (description.inputs if description else ())}
        if (labels := labels_with(job) or kept_labels.read(body.labels, axes)) is not None:
            for output in description.outputs if description else ():
                if isinstance(array := outputs.get(output.name), np.ndarray):
                    outputs[output.name] = labels.labelled(output.name, array, output.axes, outputs.get("names", ()))
        return Result(outputs, body.provenance, found)

    def _kinds(self, job: JobDescription) -> Steps[dict[str, str]]:
        """The kinds of a job's outputs, by their names: of its operation, or of a plan those of its steps."""
        description = yield from self._describe(job.operation, None)
        if description is None or not description.open_inputs:
            return {output.name: output.kind for output in (description.outputs if description else ())}
        whole = job if isinstance(job, Job) and job.params is not None else (yield from self.job(job))
        plan = whole.params or {}
        operations = {step["id"]: step["operation"] for step in plan.get("steps", ())}
        kinds: dict[str, str] = {}
        for name, wanted in plan.get("outputs", {}).items():
            step, _, output = wanted["from"].partition(".")
            declared = yield from self._describe(operations[step], None)
            kinds[name] = next(each.kind for each in (declared.outputs if declared else ()) if each.name == output)
        return kinds

    def cancel(self, job: AnyJob) -> Steps[LabelledJob]:
        return (yield from self._job(job, "POST", "/cancel"))

    def pause(self, job: AnyJob) -> Steps[LabelledJob]:
        return (yield from self._job(job, "POST", "/pause"))

    def resume(self, job: AnyJob) -> Steps[LabelledJob]:
        return (yield from self._job(job, "POST", "/resume"))

    def steps(self, job: AnyJob, after: int) -> Steps[list[TaskStep]]:
        """Fetch all that a task has reported of the steps after that one, page by page."""
        found: list[TaskStep] = []
        place: str | None = f"/v1/jobs/{id_of(job)}/progress?after={after}"
        while place is not None:
            page = yield from self._read(TaskProgress, "GET", place)
            found += page.steps
            place = page.next
        return found

    def delete(self, job: AnyJob) -> Steps[None]:
        yield from self.ask("DELETE", f"/v1/jobs/{id_of(job)}")

    def page(self, place: Place) -> Steps[tuple[list[Job], Place | None]]:
        """Fetch one page of the list of jobs from the service; returns its jobs and the position of the next page, if
        any."""
        left = place.left
        if left is not None and left <= 0:
            return [], None
        first = "/v1/jobs" if left is None else f"/v1/jobs?limit={min(left, 100)}"
        found = yield from self._read(JobPage, "GET", place.page or first)
        left = None if left is None else left - len(found.jobs)
        return found.jobs, None if found.next is None else Place(found.next, left)

    def upload(
        self, array: ArrayLike | Path, columns: Sequence[str] = (), deadline: float | None = None
    ) -> Steps[ArrayDescription]:
        labels = None
        if (library := frames.library_of(array)) is not None:
            array, labels = frames.read_frame("the array", array, library, DTYPES, (1, 2), frames.SERIES)
        body = file_body(array) if isinstance(array, Path) else array_body(as_array("the array", array, DTYPES))
        query = f"?{_columns(columns)}" if columns else ""
        if query and body.media_type != CSV:
            raise ValueError("columns can be chosen from a .csv file only")
        content = {"stream": body, "headers": body.headers, "deadline": deadline}
        stored = yield from self._read(ArrayDescription, "PUT", f"/v1/arrays{query}", **content)
        return stored if labels is None else LabelledArray.of(stored, labels)

    def download(self, array: ArrayDescription | str) -> Steps[Any]:
        response = yield from self.ask("GET", f"/v1/arrays/{id_of(array)}", headers={"Accept": NPY})
        numbers = _array_of(response)
        return frames.restored(numbers, array._labels) if isinstance(array, LabelledArray) else numbers

    def fetch(self, file: FileReference, body: FileBody) -> Steps[None]:
        """Fetch a file of a result from the service. Where a connection breaks, the next goes on after it."""
        headers = {"Accept": file.media_type, "Accept-Encoding": "identity"}
        yield from self.ask("GET", file.path, headers=headers, into=body)
        body.require(file.described)

    def create_dataset(self, name: str, columns: Mapping[str, str], assets: Sequence[str]) -> Steps[DatasetDescription]:
        body = {"columns": dict(columns), "assets": list(assets)}
        return (yield from self._read(DatasetDescription, "PUT", _path(name), json=body))

    def append_rows(
        self, name: str, times: Any, columns: Mapping[str, ArrayLike], assets: Sequence[str] | None, *, correct: bool
    ) -> Steps[RowsAppended]:
        """Append rows in one request; what is large is uploaded before it."""
        at = as_times(times)
        blocks = {column: as_array(column, given, FLOATS) for column, given in columns.items()}
        if len(at) == 1:
            blocks = {column: block[np.newaxis] if block.ndim == 1 else block for column, block in blocks.items()}
        body: dict[str, Any] = {"times": at, "columns": {}, "correct": correct}
        if assets is not None:
            body["assets"] = list(assets)
        large = {column for column, block in blocks.items() if not fits_json(block)}
        if len(at) > INLINE:
            stamps = np.array([nanoseconds_of(time) for time in at], np.int64)
            body["times"] = {"array": (yield from self.upload(stamps)).id}
        dtypes = (yield from self.dataset(name)).columns if large else {}
        for column, block in blocks.items():
            if column in large:
                kept = _rounded(column, block, dtypes.get(column, block.dtype.name))
                body["columns"][column] = {"array": (yield from self.upload(kept)).id}
            else:
                body["columns"][column] = as_json(block)
        return (yield from self._read(RowsAppended, "POST", f"{_path(name)}/rows", json=body))

    def read_rows(self, dataset: Dataset) -> Steps[DatasetRows]:
        described = yield from self.dataset(dataset.name)
        version = described.version if dataset.as_of is None else dataset.as_of
        query: dict[str, Any] = {"as_of": version}
        for name, at in (("from", dataset.start), ("to", dataset.stop)):
            if at is not None:
                query[name] = as_time(at)
        numbers = yield from self._rows(dataset, {**query, "column": dataset.column})
        times = yield from self._rows(dataset, {**query, "column": "time"})
        named = [dataset.assets] if isinstance(dataset.assets, str) else dataset.assets
        assets = described.assets[: numbers.shape[-1]] if named is None else list(named)
        return DatasetRows(times.view("datetime64[ns]"), assets, numbers, version)

    def _rows(self, dataset: Dataset, query: Mapping[str, Any]) -> Steps[AnyArray]:
        named = [dataset.assets] if isinstance(dataset.assets, str) else dataset.assets
        params = httpx.QueryParams({**query, **({} if named is None else {"assets": list(named)})})
        response = yield from self.ask("GET", f"{_path(dataset.name)}/rows?{params}", headers={"Accept": NPY})
        return _array_of(response)

    def datasets(self) -> Steps[list[DatasetSummary]]:
        return (yield from self._read(DatasetPage, "GET", "/v1/datasets")).datasets

    def dataset(self, name: str) -> Steps[DatasetDescription]:
        return (yield from self._read(DatasetDescription, "GET", _path(name)))

    def delete_dataset(self, name: str) -> Steps[None]:
        yield from self.ask("DELETE", _path(name))

    def operations(self, deadline: float | None = None) -> Steps[dict[str, OperationDescription]]:
        found = yield from self._read(OperationList, "GET", "/v1/operations", deadline=deadline)
        self._operations = {description.name: description for description in found.operations}
        return dict(self._operations)

    def create_budget(self, wanted: NewBudget) -> Steps[Budget]:
        return (yield from self._read(Budget, "POST", "/v1/budgets", json=wanted.model_dump(exclude_none=True)))

    def budget(self, budget: Budget | str) -> Steps[Budget]:
        return (yield from self._read(Budget, "GET", f"/v1/budgets/{id_of(budget)}"))

    def secagg_round(self, fields: AskedRound) -> Steps[Round]:
        fewest = max(fields.get("threshold", 0), fields["clients"] // 2 + 1, 3)
        body = {"min_clients": fewest, **fields, "quantisation": fields["quantisation"].model_dump()}
        response = yield from self.ask("POST", "/v1/secagg/rounds", json=body)
        made = response.json()
        return Round(made["id"], made["join_tokens"], made["overflow_proof"])

    def secagg_result(self, made: Round | str, deadline: float | None) -> Steps[RoundResult]:
        pause, response = FIRST_PAUSE, None
        while response is None:
            try:
                response = yield from self.ask("GET", f"/v1/secagg/rounds/{id_of(made)}/result", pause=pause)
            except WarpdeskError as error:
                if error.code != "not-yet":
                    raise
                if (left := _seconds_left(deadline)) <= 0:
                    raise RoundTimeout(id_of(made)) from None
                pause = min(2 * pause, LONGEST_PAUSE, left)
        result = response.json()
        array = yield from self.ask("GET", f"/v1/jobs/{result['job']}/result/sum", headers={"Accept": NPY})
        return RoundResult(
            _array_of(array),
            result["survivors"],
            result["dropped"],
            result["overflow_proof"],
            result["statement"],
            Provenance.model_validate(result["provenance"]),
            result["job"],
        )

    def ask(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        stream: ChunkedBody | None = None,
        headers: Mapping[str, str] | None = None,
        deadline: float | None = None,
        wait: bool = False,
        longest: int = LONGEST_WAIT,
        prefer: str = "",
        pause: float = 0.0,
        into: FileBody | None = None,
    ) -> Steps[httpx.Response]:
        """Send one request of the client with retries, and return the service's successful response.

        With `wait` the service may hold the request until the deadline, for at most `longest` seconds; `prefer` are
        other preferences. A request is sent again if its connection
        fails, or if the service says when to retry. Retries end at the deadline, or without one after the time a
        request may take. Every request is idempotent. With `into` the response is written there; a request that is sent
        again asks for the rest, and one that brought something counts as the first.
        """
        until = deadline
        tries = 0
        while True:
            seconds = min(longest, _whole_seconds(_seconds_left(deadline) - pause)) if wait else 0
            request = self.request(method, path, headers or {}, self.timeout + seconds, json=json, stream=stream)
            if preferred := ", ".join([*([f"wait={seconds}"] if seconds else []), *([prefer] if prefer else [])]):
                request.headers["Prefer"] = preferred
            request.extensions[PAUSE] = pause
            before = 0
            if into is not None:
                request.extensions[INTO], before = into, into.size
                if before:
                    request.headers["Range"] = f"bytes={before}-"
            try:
                response = yield request
            except httpx.TransportError as error:
                if into is not None and into.size > before:
                    until, tries = deadline, 0
                until = until or time.monotonic() + self.timeout
                tries += 1
                pause = FIRST_RETRY * 2 ** (tries - 1)
                if not isinstance(error, LOST) or tries == TRIES or time.monotonic() + pause > until:
                    raise Unreachable(self.url, error) from error
            else:
                until = until or time.monotonic() + self.timeout
                later = retry_after(response)
                if later is None or time.monotonic() + later > until:
                    return checked(response)
                pause = later

    def _job(self, job: AnyJob, method: str, path: str = "", **content: Any) -> Steps[LabelledJob]:
        """Ask the service about a job, or something of it, and return its state with the labels that it had."""
        found = yield from self._read(LabelledJob, method, f"/v1/jobs/{id_of(job)}{path}", **content)
        found._labels = labels_with(job)
        return found

    def _read(self, reply: type[R], method: str, path: str, **content: Any) -> Steps[R]:
        response = yield from self.ask(method, path, **content)
        return reply.model_validate_json(response.content)

    def _describe(self, operation: str, deadline: float | None) -> Steps[OperationDescription | None]:
        if operation not in self._operations:
            yield from self.operations(deadline)
        return self._operations.get(operation)  # None: the service will say that it does not exist

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        read_timeout: float,
        *,
        json: Any = None,
        stream: ChunkedBody | None = None,
    ) -> httpx.Request:
        url = httpx.URL(f"{self.url}{path}")
        # httpx leaves the host out where it is given a stream, and takes headers for ASCII.
        sent = httpx.Headers({**self._headers, "Host": url.netloc.decode("ascii"), **headers}, encoding="utf-8")
        timeout = httpx.Timeout(self.timeout, read=read_timeout).as_dict()
        return httpx.Request(method, url, headers=sent, json=json, stream=stream, extensions={"timeout": timeout})


def json_of(response: httpx.Response) -> Any:
    """The JSON of a service's response; None where it has no body."""
    return response.json() if response.content else None


def _labelled(jobs: Sequence[Job], labels: Sequence[JobLabels | None]) -> Sequence[LabelledJob]:
    """Jobs with the labels of their inputs, in the same order."""
    found = []
    for job, each in zip(jobs, labels, strict=True):
        labelled = LabelledJob.model_construct(**dict(job))
        labelled._labels = each
        found.append(labelled)
    return found


class _SentInputs:
    """How the arrays of one request's jobs are sent: small ones in its body, as far as there is room, and what several
    jobs read as an array that is uploaded once."""

    def __init__(self, calls: Sequence[Call] = (), room: int = INLINE) -> None:
        self._alone, self._room = not calls, room
        self._times = Counter(id(value) for call in calls for value in call.fields.values())
        self._ids: dict[tuple[int, str, int, bool], str] = {}

    def uploaded(self, value: Any, array: AnyArray, *, is_turned: bool) -> str | None:
        """The id of the array that the caller's value was uploaded as for another input. A frame is several arrays:
        as it is, turned, or its only column."""
        return self._ids.get((id(value), array.dtype.name, array.ndim, is_turned))

    def go_inline(self, value: Any, array: AnyArray) -> bool:
        """Whether the caller's value goes into the body."""
        if self._alone or not fits_json(array):
            return fits_json(array)
        if array.size > self._room or (self._times[id(value)] > 1 and array.size > TINY):
            return False
        self._room -= array.size
        return True

    def keep(self, value: Any, array: AnyArray, array_id: str, *, is_turned: bool) -> str:
        self._ids[id(value), array.dtype.name, array.ndim, is_turned] = array_id
        return array_id


def _key(chosen: str | None) -> dict[str, str]:
    return {"Idempotency-Key": chosen if chosen is not None else uuid4().hex}


def retry_after(response: httpx.Response) -> float | None:
    """The seconds after which the client should send a request again that the service refused for now."""
    return _seconds(response) if response.status_code in TRY_LATER else None


def _seconds(response: httpx.Response) -> float | None:
    """The seconds that the service asks the client to wait, from a response's `Retry-After` header."""
    seconds = response.headers.get("Retry-After", "")
    return float(seconds) if seconds.isascii() and seconds.isdigit() else None


def _address(url: str) -> str:
    """The base URL of the client's service, without a slash at its end. Raises ValueError for an invalid URL."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not the address of a service: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ValueError(f"{url!r} is not the address of a service, such as {URL}")
    return url.rstrip("/")


def id_of(named: AnyJob | ArrayDescription | Budget | Round) -> str:
    """The id of a job, array, budget or round, which the client's caller gave as itself or by its id."""
    return named if isinstance(named, str) else named.id


def _path(dataset: str) -> str:
    """The path of a dataset at the service."""
    return f"/v1/datasets/{quote(dataset, safe='')}"


def _rounded(column: str, block: AnyArray, dtype: str) -> AnyArray:
    """The numbers of a column in its dtype, as the service rounds those in JSON. Raises ValueError beyond its range."""
    with np.errstate(over="ignore"):
        rounded = block.astype(dtype)
    if (np.isinf(rounded) & ~np.isinf(block)).any():
        raise ValueError(f"{column} has numbers that are outside {dtype}")
    return rounded


def _columns(names: Sequence[str]) -> httpx.QueryParams:
    """The query parameter of the client's upload that selects CSV columns. Raises ValueError for an unusable name."""
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if "," in name or not name.strip():
            raise ValueError(
                f"{name!r} cannot be asked for as a column: commas separate names, and a name is not blank"
            )
    return httpx.QueryParams({"columns": names})


def _whole_seconds(wait: float) -> int:
    """The whole seconds of the client's `Prefer: wait` for a remaining time; 0 if less than a second is left."""
    return max(0, floor(min(wait + SLACK, LONGEST_WAIT)))


def deadline_of(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _seconds_left(deadline: float | None) -> float:
    return LONGEST_WAIT if deadline is None else deadline - time.monotonic()
