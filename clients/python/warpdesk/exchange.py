"""The client's protocol without I/O: the requests to a service, their order, and the parsing of its responses.

Each method of `Exchange` is a generator that yields requests, receives their responses and returns the method's result.
A request's extension `PAUSE` is the number of seconds to wait before it is sent. If a request fails, the caller throws
the exception into the generator.
"""

import os
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from math import floor
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import httpx
import numpy as np
from numpy.typing import ArrayLike

from warpdesk.arrays import AnyArray, as_array, as_json, as_param, fits_json, from_npy
from warpdesk.bodies import CSV, NPY, ChunkedBody, array_body, file_body
from warpdesk.calls import AnyJob, AskedRound, Options, Place, Result, Round, RoundResult
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
from warpdesk.models import (
    DTYPES,
    ArrayDescription,
    Budget,
    FileDescription,
    Job,
    JobDescription,
    JobPage,
    NewBudget,
    OperationDescription,
    OperationList,
    Provenance,
    Reply,
    State,
    TaskProgress,
    TaskStep,
)
from warpdesk.models import Result as ResultBody

URL = "http://127.0.0.1:8000"
LONGEST_WAIT = 55  # seconds the service holds a request open
SLACK = 0.1  # seconds a wait may go on beyond its timeout: the service counts whole ones
FIRST_PAUSE = 0.005  # seconds between questions where less than a whole one is left; doubles each time
LONGEST_PAUSE = 1.0  # seconds between questions to which the service gives no answer before its time
PAUSE = "pause"
BODY = "body"  # a response's extension: the array that it brought, as `ArrayBody`
INTO = "into"  # a request's extension: the `FileBody` that its response is written to

TRIES = 5  # of a request whose connection fails; the pauses between them are 1.5 seconds together
FIRST_RETRY = 0.1  # seconds; doubles each time

# Connection errors that a retry over a new connection may avoid.
LOST = (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError)
TRY_LATER = (429, 503)
REST = 206  # the status of a response that has the rest of a file

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
    ) -> Steps[Job]:
        description = yield from self._describe(operation, deadline)
        expected = {entry.name: entry for entry in (description.inputs if description else ())}
        numbers = description.params.get("properties", {}) if description else {}  # of an input: one number for all
        named = description is not None and description.open_inputs  # by the request: what is no parameter is an input
        inputs: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for name, value in {**(params or {}), **fields}.items():
            if isinstance(value, ArrayDescription):
                inputs[name] = {"array": value.id}
            elif not isinstance(value, np.ndarray) and (
                (name in numbers if named else name not in expected) or (name in numbers and isinstance(value, Real))
            ):
                others[name] = as_param(name, value)
            else:
                array = as_array(name, value, tuple(expected[name].dtypes) if name in expected else DTYPES)
                if fits_json(array):
                    inputs[name] = {"data": as_json(array), "dtype": array.dtype.name}
                else:
                    inputs[name] = {"array": (yield from self.upload(array, deadline=deadline)).id}
        body = {"operation": operation, "params": others, "inputs": inputs, **vars(options)}
        if options.width == "auto":  # the release before does not know it
            del body["width"]
        body = {name: value for name, value in body.items() if value is not None}
        # One key for all tries of this call: a reply that is lost does not make a second job.
        headers = {"Idempotency-Key": idempotency_key if idempotency_key is not None else uuid4().hex}
        return (
            yield from self._read(Job, "POST", "/v1/jobs", json=body, headers=headers, deadline=deadline, wait=wait)
        )

    def job(self, job: AnyJob, deadline: float | None = None, *, wait: bool = False, pause: float = 0.0) -> Steps[Job]:
        return (yield from self._read(Job, "GET", f"/v1/jobs/{id_of(job)}", deadline=deadline, wait=wait, pause=pause))

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
            # JSON says neither dtype nor NaN.
            if kinds.get(name) == "array" and isinstance(outputs[name], list | dict):
                response = yield from self.ask("GET", f"/v1/jobs/{found.id}/result/{name}", headers={"Accept": NPY})
                outputs[name] = _array_of(response)
            elif kinds.get(name) == "file":
                described = FileDescription.model_validate(outputs[name])
                outputs[name] = self._file(f"/v1/jobs/{found.id}/result/{name}", described)
        return Result(outputs, body.provenance, found)

    def _kinds(self, job: JobDescription) -> Steps[dict[str, str]]:
        """The kinds of a job's outputs, by their names: of its operation, or of a plan those of its steps."""
        description = yield from self._describe(job.operation, None)
        if description is None or not description.open_inputs:
            return {output.name: output.kind for output in (description.outputs if description else ())}
        known = job if isinstance(job, Job) and job.params is not None else (yield from self.job(job))
        plan = known.params or {}
        operations = {step["id"]: step["operation"] for step in plan.get("steps", ())}
        kinds: dict[str, str] = {}
        for name, wanted in plan.get("outputs", {}).items():
            step, _, output = wanted["from"].partition(".")
            declared = yield from self._describe(operations[step], None)
            kinds[name] = next(each.kind for each in (declared.outputs if declared else ()) if each.name == output)
        return kinds

    def cancel(self, job: AnyJob) -> Steps[Job]:
        return (yield from self._read(Job, "POST", f"/v1/jobs/{id_of(job)}/cancel"))

    def pause(self, job: AnyJob) -> Steps[Job]:
        return (yield from self._read(Job, "POST", f"/v1/jobs/{id_of(job)}/pause"))

    def resume(self, job: AnyJob) -> Steps[Job]:
        return (yield from self._read(Job, "POST", f"/v1/jobs/{id_of(job)}/resume"))

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
        body = file_body(array) if isinstance(array, Path) else array_body(as_array("the array", array, DTYPES))
        query = f"?{_columns(columns)}" if columns else ""
        if query and body.media_type != CSV:
            raise ValueError("columns can be chosen from a .csv file only")
        content = {"stream": body, "headers": body.headers, "deadline": deadline}
        return (yield from self._read(ArrayDescription, "PUT", f"/v1/arrays{query}", **content))

    def download(self, array: ArrayDescription | str) -> Steps[AnyArray]:
        response = yield from self.ask("GET", f"/v1/arrays/{id_of(array)}", headers={"Accept": NPY})
        return _array_of(response)

    def fetch(self, file: FileReference, body: FileBody) -> Steps[None]:
        """Fetch a file of a result from the service. Where a connection breaks, the next goes on after it."""
        headers = {"Accept": file.media_type, "Accept-Encoding": "identity"}
        yield from self.ask("GET", file.path, headers=headers, into=body)
        body.require(file.described)

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
        pause: float = 0.0,
        into: FileBody | None = None,
    ) -> Steps[httpx.Response]:
        """Send one request of the client with retries, and return the service's successful response.

        With `wait` the service may hold the request until the deadline. A request is sent again if its connection
        fails, or if the service says when to retry. Retries end at the deadline, or without one after the time a
        request may take. Every request is idempotent. With `into` the response is written there; a request that is sent
        again asks for the rest, and one that brought something counts as the first.
        """
        until = deadline
        tries = 0
        while True:
            seconds = _whole_seconds(_seconds_left(deadline)) if wait else 0
            request = self.request(method, path, headers or {}, self.timeout + seconds, json=json, stream=stream)
            if seconds:
                request.headers["Prefer"] = f"wait={seconds}"
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


def retry_after(response: httpx.Response) -> float | None:
    """The seconds that the service asks the client to wait, from a response's `Retry-After` header."""
    seconds = response.headers.get("Retry-After", "")
    return float(seconds) if response.status_code in TRY_LATER and seconds.isascii() and seconds.isdigit() else None


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
