"""The client's protocol without I/O: the requests to a service, their order, and the parsing of its responses.

Each method of `Exchange` is a generator that yields requests, receives their responses and returns the method's result.
A request's extension `PAUSE` is the number of seconds to wait before it is sent. If a request fails, the caller throws
the exception into the generator. `Reading` does the same for a job's event stream.
"""

import os
import re
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import floor
from pathlib import Path
from typing import Any, Literal, Required, TypedDict, TypeVar
from uuid import uuid4

import httpx
import numpy as np
from numpy.typing import ArrayLike

from warpdesk.arrays import AnyArray, as_array, as_json, as_param, fits_json, from_npy
from warpdesk.bodies import CSV, NPY, ChunkedBody, array_body, file_body
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
from warpdesk.event_stream import EventStream
from warpdesk.models import (
    DTYPES,
    Array,
    BackendWish,
    Budget,
    Job,
    JobDescription,
    JobEvent,
    JobPage,
    NewBudget,
    OperationDescription,
    OperationList,
    Priority,
    Provenance,
    State,
)
from warpdesk.models import Result as ResultBody
from warpdesk.secagg.quantisation import Quantisation

URL = "http://127.0.0.1:8000"
LONGEST_WAIT = 55  # seconds the service holds a request open
SLACK = 0.1  # seconds a wait may go on beyond its timeout: the service counts whole ones
FIRST_PAUSE = 0.005  # seconds between questions where less than a whole one is left; doubles each time
LONGEST_PAUSE = 1.0  # seconds between questions to which the service gives no answer before its time
PAUSE = "pause"

TRIES = 5  # of a request whose connection fails; the pauses between them are 1.5 seconds together
FIRST_RETRY = 0.1  # seconds; doubles each time
SILENCE = 45.0  # seconds without a word, three comments of the service, after which an event stream is opened anew

# Connection errors that a retry over a new connection may avoid.
LOST = (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError)
TRY_LATER = (429, 503)
ENDS = frozenset(state.value for state in State if state.final)

AnyJob = JobDescription | str  # a job, or its id
T = TypeVar("T")
Steps = Generator[httpx.Request, httpx.Response, T]


@dataclass(frozen=True, eq=False)
class Result(Mapping[str, Any]):
    """The result of one job: its outputs, arrays as NumPy and the rest as plain Python; the provenance; the job.

    An output is `result["upper"]` or `result.upper`. An output named like another attribute needs the first form.
    """

    outputs: dict[str, Any]
    provenance: Provenance
    job: JobDescription

    def __getitem__(self, name: str) -> Any:
        return self.outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    def __getattr__(self, name: str) -> Any:
        outputs = self.__dict__.get("outputs", {})
        if name in outputs:
            return outputs[name]
        raise AttributeError(f"there is no output {name!r}; there are {', '.join(outputs)}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.outputs]


class AskedRound(TypedDict, total=False):
    """The arguments of a new secure aggregation round. The default modulus is 2**32, the default output float.

    `min_clients` is the fewest clients that may send keys and shares; the default is just more than half. `threshold`
    is for a round in which all clients share with all. Without it, neighbours and threshold follow from the number of
    clients. `deadlines` are the seconds that each phase may take.
    """

    clients: Required[int]
    dimension: Required[int]
    quantisation: Required[Quantisation]
    min_clients: int
    threshold: int
    modulus_bits: Literal[32, 64]
    output: Literal["int", "float", "mean"]
    deadlines: Mapping[Literal["keys_s", "shares_s", "masked_s", "unmask_s"], float]
    backend: BackendWish


@dataclass(frozen=True)
class Round:
    """A created secure aggregation round: its id, a join token for each client, and why no sum can overflow.

    Any client may get any token. The tokens cannot be fetched again.
    """

    id: str
    tokens: list[str] = field(repr=False)
    overflow_proof: dict[str, int]


@dataclass(frozen=True)
class RoundResult:
    """The sum of the survivors' vectors, and what the service learned while it was made."""

    sum: AnyArray
    survivors: list[int]
    dropped: list[int]
    overflow_proof: dict[str, int]
    statement: str
    provenance: Provenance
    job: str


@dataclass(frozen=True)
class Options:
    backend: BackendWish
    priority: Priority
    seed: int | None
    deadline_s: float | None
    result_ttl_s: float | None


@dataclass(frozen=True)
class Place:
    """A position in the list of jobs: the next page, none for the first, and how many jobs are still wanted."""

    page: str | None
    left: int | None


class Exchange:
    """The requests to one service, with its address, its API key and the operations it has."""

    def __init__(self, url: str | None, api_key: str | None, timeout: float) -> None:
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
        inputs: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for name, value in {**(params or {}), **fields}.items():
            if isinstance(value, Array):
                inputs[name] = {"array": value.id}
            elif name not in expected and not isinstance(value, np.ndarray):
                others[name] = as_param(name, value)
            else:
                array = as_array(name, value, tuple(expected[name].dtypes) if name in expected else DTYPES)
                if fits_json(array):
                    inputs[name] = {"data": as_json(array), "dtype": array.dtype.name}
                else:
                    inputs[name] = {"array": (yield from self.upload(array, deadline=deadline)).id}
        body = {"operation": operation, "params": others, "inputs": inputs, **vars(options)}
        body = {name: value for name, value in body.items() if value is not None}
        # One key for all tries of this call: a reply that is lost does not make a second job.
        headers = {"Idempotency-Key": idempotency_key if idempotency_key is not None else uuid4().hex}
        response = yield from self.ask("POST", "/v1/jobs", json=body, headers=headers, deadline=deadline, wait=wait)
        return Job.model_validate_json(response.content)

    def job(self, job: AnyJob, deadline: float | None = None, *, wait: bool = False, pause: float = 0.0) -> Steps[Job]:
        response = yield from self.ask("GET", f"/v1/jobs/{_id(job)}", deadline=deadline, wait=wait, pause=pause)
        return Job.model_validate_json(response.content)

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
                response = yield from self.ask("GET", f"/v1/jobs/{found.id}/result")
            except RequestRefused as refusal:
                if found.status in (State.CANCELED, State.EXPIRED) and refusal.status == REFUSED:
                    raise JobFailed(refusal.code, refusal.detail, found) from None
                raise
            body = ResultBody.model_validate_json(response.content)
        description = yield from self._describe(found.operation, None)
        kinds = {output.name: output.kind for output in (description.outputs if description else ())}
        outputs = dict(body.outputs)
        for name in outputs:
            # JSON says neither dtype nor NaN.
            if kinds.get(name) == "array" and isinstance(outputs[name], list | dict):
                response = yield from self.ask("GET", f"/v1/jobs/{found.id}/result/{name}", headers={"Accept": NPY})
                outputs[name] = from_npy(response.content)
        return Result(outputs, body.provenance, found)

    def cancel(self, job: AnyJob) -> Steps[Job]:
        response = yield from self.ask("POST", f"/v1/jobs/{_id(job)}/cancel")
        return Job.model_validate_json(response.content)

    def delete(self, job: AnyJob) -> Steps[None]:
        yield from self.ask("DELETE", f"/v1/jobs/{_id(job)}")

    def page(self, place: Place) -> Steps[tuple[list[Job], Place | None]]:
        """Fetch one page of the list of jobs; returns its jobs and the position of the next page, if any."""
        left = place.left
        if left is not None and left <= 0:
            return [], None
        first = "/v1/jobs" if left is None else f"/v1/jobs?limit={min(left, 100)}"
        response = yield from self.ask("GET", place.page or first)
        found = JobPage.model_validate_json(response.content)
        left = None if left is None else left - len(found.jobs)
        return found.jobs, None if found.next is None else Place(found.next, left)

    def upload(
        self, array: ArrayLike | Path, columns: Sequence[str] = (), deadline: float | None = None
    ) -> Steps[Array]:
        body = file_body(array) if isinstance(array, Path) else array_body(as_array("the array", array, DTYPES))
        query = f"?{_columns(columns)}" if columns else ""
        if query and body.media_type != CSV:
            raise ValueError("columns can be chosen from a .csv file only")
        headers = {"Content-Type": body.media_type, "Content-Length": str(body.size)}
        response = yield from self.ask("PUT", f"/v1/arrays{query}", stream=body, headers=headers, deadline=deadline)
        return Array.model_validate_json(response.content)

    def download(self, array: Array | str) -> Steps[AnyArray]:
        name = array.id if isinstance(array, Array) else array
        response = yield from self.ask("GET", f"/v1/arrays/{name}", headers={"Accept": NPY})
        return from_npy(response.content)

    def operations(self, deadline: float | None = None) -> Steps[dict[str, OperationDescription]]:
        response = yield from self.ask("GET", "/v1/operations", deadline=deadline)
        found = OperationList.model_validate_json(response.content).operations
        self._operations = {description.name: description for description in found}
        return dict(self._operations)

    def create_budget(self, wanted: NewBudget) -> Steps[Budget]:
        response = yield from self.ask("POST", "/v1/budgets", json=wanted.model_dump(exclude_none=True))
        return Budget.model_validate_json(response.content)

    def budget(self, budget: Budget | str) -> Steps[Budget]:
        name = budget.id if isinstance(budget, Budget) else budget
        response = yield from self.ask("GET", f"/v1/budgets/{name}")
        return Budget.model_validate_json(response.content)

    def secagg_round(self, fields: AskedRound) -> Steps[Round]:
        fewest = max(fields.get("threshold", 0), fields["clients"] // 2 + 1, 3)
        body = {"min_clients": fewest, **fields, "quantisation": fields["quantisation"].model_dump()}
        response = yield from self.ask("POST", "/v1/secagg/rounds", json=body)
        made = response.json()
        return Round(made["id"], made["join_tokens"], made["overflow_proof"])

    def secagg_result(self, made: Round | str, deadline: float | None) -> Steps[RoundResult]:
        name = made.id if isinstance(made, Round) else made
        pause, response = FIRST_PAUSE, None
        while response is None:
            try:
                response = yield from self.ask("GET", f"/v1/secagg/rounds/{name}/result", pause=pause)
            except WarpdeskError as error:
                if error.code != "not-yet":
                    raise
                if (left := _seconds_left(deadline)) <= 0:
                    raise RoundTimeout(name) from None
                pause = min(2 * pause, LONGEST_PAUSE, left)
        result = response.json()
        array = yield from self.ask("GET", f"/v1/jobs/{result['job']}/result/sum", headers={"Accept": NPY})
        return RoundResult(
            from_npy(array.content),
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
    ) -> Steps[httpx.Response]:
        """Send one request with retries, and return its successful response.

        With `wait` the service may hold the request until the deadline. A request is sent again if its connection
        fails, or if the service says when to retry. Retries end at the deadline, or without one after the time a
        request may take. Every request is idempotent.
        """
        until = deadline
        tries = 0
        while True:
            seconds = _whole_seconds(_seconds_left(deadline)) if wait else 0
            request = self.request(method, path, headers or {}, self.timeout + seconds, json=json, stream=stream)
            if seconds:
                request.headers["Prefer"] = f"wait={seconds}"
            request.extensions[PAUSE] = pause
            try:
                response = yield request
            except httpx.TransportError as error:
                until = until or time.monotonic() + self.timeout
                tries += 1
                pause = FIRST_RETRY * 2 ** (tries - 1)
                if not isinstance(error, LOST) or tries == TRIES or time.monotonic() + pause > until:
                    raise Unreachable(self.url, error) from error
            else:
                until = until or time.monotonic() + self.timeout
                later = _retry_after(response)
                if later is None or time.monotonic() + later > until:
                    return checked(response)
                pause = later

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


class Reading:
    """The reader of one job's event stream. It reconnects as needed and resumes after the last event read."""

    def __init__(self, exchange: Exchange, job: AnyJob, deadline: float | None) -> None:
        self.over = False
        self._exchange = exchange
        self._job = job
        self._deadline = deadline
        self._until: float | None = None  # when the service has asked to wait for as long as a request may take
        self._last: JobEvent | None = None
        self._stream = EventStream()
        self._read_timeout = SILENCE
        self._pause = 0.0
        self._failures = 0

    @contextmanager
    def attempt(self) -> Iterator[httpx.Request]:
        """The request for the next connection to the event stream. Another may follow it in any case.

        Raises JobTimeout after the deadline, and Unreachable after several failures to connect.
        """
        left = self._left() - self._pause
        if left <= 0:
            state = "queued" if self._last is None else self._last.event.replace("progress", "running")
            raise JobTimeout(self._job, state)
        self._read_timeout = min(SILENCE, left)
        headers = {"Accept": "text/event-stream"}
        if self._last is not None:
            headers["Last-Event-ID"] = str(self._last.number)
        request = self._exchange.request("GET", f"/v1/jobs/{_id(self._job)}/events", headers, self._read_timeout)
        request.extensions[PAUSE] = self._pause
        self._pause = FIRST_RETRY * 2**self._failures
        self._failures += 1
        self._stream = EventStream()
        try:
            yield request
        except httpx.TransportError as error:
            if not isinstance(error, LOST) or self._failures == TRIES:
                raise Unreachable(self._exchange.url, error) from error
        self.over = self.over or (self._last is not None and self._last.event in ENDS)

    def begin(self, response: httpx.Response) -> None:
        """Check the response that opens the event stream; any other body has been read whole. Raises WarpdeskError."""
        later = _retry_after(response)
        if later is None:
            self.over = checked(response).status_code == 204  # there is nothing to come
            self._until = None
            later = 1.0  # until the service says what it wants
        else:
            self._until = self._until or time.monotonic() + self._exchange.timeout
            if later > min(self._left(), self._until - time.monotonic()):
                checked(response)
        self._failures = 0
        self._pause = later

    def take(self, piece: bytes) -> Iterator[JobEvent]:
        """Parse one piece of the event stream, and return the job events that it completes."""
        for message in self._stream.take(piece):
            event = JobEvent.model_validate_json(message.data)
            if self._last is None or event.number > self._last.number:
                self._last = event
                yield event
        if self._stream.retry is not None:
            self._pause = self._stream.retry

    @property
    def stale(self) -> bool:
        """Whether this connection's read timeout ends well after the deadline. A new connection gets a shorter one."""
        if self._deadline is None or self._read_timeout <= 1.25 * self._left():
            return False
        self._pause = 0.0
        return True

    def _left(self) -> float:
        return SILENCE if self._deadline is None else self._deadline - time.monotonic()


def _retry_after(response: httpx.Response) -> float | None:
    """The seconds of a response's `Retry-After` header."""
    seconds = response.headers.get("Retry-After", "")
    return float(seconds) if response.status_code in TRY_LATER and seconds.isascii() and seconds.isdigit() else None


def _address(url: str) -> str:
    """A service's base URL without a slash at its end. Raises ValueError for an invalid URL."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not the address of a service: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ValueError(f"{url!r} is not the address of a service, such as {URL}")
    return url.rstrip("/")


def _id(job: AnyJob) -> str:
    return job if isinstance(job, str) else job.id


def _columns(names: Sequence[str]) -> httpx.QueryParams:
    """The query parameter of an upload that selects CSV columns. Raises ValueError for an unusable name."""
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if "," in name or not name.strip():
            raise ValueError(
                f"{name!r} cannot be asked for as a column: commas separate names, and a name is not blank"
            )
    return httpx.QueryParams({"columns": names})


def _whole_seconds(wait: float) -> int:
    """The whole seconds of `Prefer: wait` for a remaining time; 0 if less than a second is left."""
    return max(0, floor(min(wait + SLACK, LONGEST_WAIT)))


def deadline_of(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _seconds_left(deadline: float | None) -> float:
    return LONGEST_WAIT if deadline is None else deadline - time.monotonic()
