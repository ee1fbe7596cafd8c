"""What is sent to a Warpdesk service, in which order, and what the answers mean, whoever carries the requests.

Each method of `Exchange` is a generator that yields requests, receives their responses and returns what was asked for.
A request may name seconds to pause before it is sent, in its extension `PAUSE`.
"""

import os
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
from numpy.typing import ArrayLike
from pydantic import ValidationError

from app.schemas import Array, ErrorDetail, Job, JobPage, OperationDescription, OperationList, Problem
from app.schemas import Result as ResultBody
from warpdesk.encoding import CSV, NPY, AnyArray, Body, array_body, as_array, as_json, file_body, fits_json, from_npy
from workers.protocol import BackendWish, Priority, Provenance

URL = "http://127.0.0.1:8000"
LONGEST_WAIT = 55  # seconds the service holds a request open
SLACK = 0.1  # seconds a wait may go on beyond its timeout: the service counts whole ones
FIRST_PAUSE = 0.005  # seconds between questions where less than a whole one is left; doubles each time
PAUSE = "pause"

T = TypeVar("T")
Steps = Generator[httpx.Request, httpx.Response, T]


class WarpdeskError(Exception):
    """The service refused a request, or a job failed: HTTP status, stable code, a sentence, the places it is about."""

    def __init__(self, status: int, code: str, detail: str, errors: tuple[ErrorDetail, ...] = ()) -> None:
        super().__init__(f"{detail} ({code}, HTTP {status})")
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = errors


@dataclass(frozen=True)
class Result:
    """The answer to one job: arrays as NumPy, anything else as plain Python; how it was computed; the job."""

    outputs: dict[str, Any]
    provenance: Provenance
    job: Job

    def __getitem__(self, name: str) -> Any:
        return self.outputs[name]


@dataclass(frozen=True)
class Options:
    backend: BackendWish
    priority: Priority
    seed: int | None
    deadline_s: float | None
    result_ttl_s: float | None


@dataclass(frozen=True)
class Place:
    """Where in the list of jobs a reader is: the next page, none for the first, and how many jobs are still wanted."""

    page: str | None
    left: int | None


class Exchange:
    """All that is to be known of one service: its address, the key, what it can compute."""

    def __init__(self, url: str | None, api_key: str | None, timeout: float) -> None:
        self._url = (url or os.environ.get("WARPDESK_URL") or URL).rstrip("/")
        self._timeout = timeout
        self._headers = {"Accept": "application/json"}
        if api_key := api_key or os.environ.get("WARPDESK_API_KEY"):
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._operations: dict[str, OperationDescription] = {}

    def run(self, operation: str, options: Options, fields: Mapping[str, Any], timeout: float | None) -> Steps[Result]:
        deadline = _deadline(timeout)
        job = yield from self.submit(operation, options, fields, wait=_seconds_left(deadline))
        return (yield from self._fetch(job, deadline))

    def submit(
        self, operation: str, options: Options, fields: Mapping[str, Any], wait: float | None = None
    ) -> Steps[Job]:
        description = yield from self._describe(operation)
        expected = {entry.name: entry for entry in (description.inputs if description else ())}
        inputs: dict[str, Any] = {}
        params: dict[str, Any] = {}
        for name, value in fields.items():
            if isinstance(value, Array):
                inputs[name] = {"array": value.id}
            elif name not in expected and not isinstance(value, np.ndarray):
                params[name] = value
            else:
                array = as_array(value, tuple(expected[name].dtypes) if name in expected else ())
                if fits_json(array):
                    inputs[name] = {"data": as_json(array), "dtype": array.dtype.name}
                else:
                    inputs[name] = {"array": (yield from self.upload(array)).id}
        body = {"operation": operation, "params": params, "inputs": inputs, **vars(options)}
        body = {name: value for name, value in body.items() if value is not None}
        response = yield self._request("POST", "/v1/jobs", json=body, wait=wait)
        return Job.model_validate_json(_checked(response).content)

    def job(self, job: Job | str, wait: float | None = None, pause: float = 0.0) -> Steps[Job]:
        response = yield self._request("GET", f"/v1/jobs/{_id(job)}", wait=wait, pause=pause)
        return Job.model_validate_json(_checked(response).content)

    def wait(self, job: Job | str, timeout: float | None) -> Steps[Job]:
        return (yield from self._wait(job, _deadline(timeout)))

    def result(self, job: Job | str, timeout: float | None) -> Steps[Result]:
        return (yield from self._fetch(job, _deadline(timeout)))

    def cancel(self, job: Job | str) -> Steps[Job]:
        response = yield self._request("POST", f"/v1/jobs/{_id(job)}/cancel")
        return Job.model_validate_json(_checked(response).content)

    def delete(self, job: Job | str) -> Steps[None]:
        _checked((yield self._request("DELETE", f"/v1/jobs/{_id(job)}")))

    def page(self, place: Place) -> Steps[tuple[list[Job], Place | None]]:
        """The jobs at a place in the list, and the place after them, if there is one."""
        left = place.left
        if left is not None and left <= 0:
            return [], None
        first = "/v1/jobs" if left is None else f"/v1/jobs?limit={min(left, 100)}"
        response = yield self._request("GET", place.page or first)
        found = JobPage.model_validate_json(_checked(response).content)
        left = None if left is None else left - len(found.jobs)
        return found.jobs, None if found.next is None else Place(found.next, left)

    def upload(self, array: ArrayLike | Path, columns: Sequence[str] = ()) -> Steps[Array]:
        body = file_body(array) if isinstance(array, Path) else array_body(np.asarray(array))
        query = f"?{_columns(columns)}" if columns else ""
        if query and body.media_type != CSV:
            raise ValueError("columns can be chosen from a .csv file only")
        request = self._request("PUT", f"/v1/arrays{query}", stream=body)
        request.headers["Content-Type"] = body.media_type
        request.headers["Content-Length"] = str(body.size)
        response = yield request
        return Array.model_validate_json(_checked(response).content)

    def download(self, array: Array | str) -> Steps[AnyArray]:
        name = array.id if isinstance(array, Array) else array
        response = yield self._request("GET", f"/v1/arrays/{name}", accept=NPY)
        return from_npy(_checked(response).content)

    def operations(self) -> Steps[dict[str, OperationDescription]]:
        response = yield self._request("GET", "/v1/operations")
        found = OperationList.model_validate_json(_checked(response).content).operations
        self._operations = {description.name: description for description in found}
        return dict(self._operations)

    def _describe(self, operation: str) -> Steps[OperationDescription | None]:
        if operation not in self._operations:
            yield from self.operations()
        return self._operations.get(operation)  # None: the service will say that it does not exist

    def _wait(self, job: Job | str, deadline: float | None) -> Steps[Job]:
        found = job if isinstance(job, Job) else (yield from self.job(job, _seconds_left(deadline)))
        pause = FIRST_PAUSE
        while not found.status.final:
            left = _seconds_left(deadline)
            if left <= 0:
                raise TimeoutError(f"the job {found.id} is still {found.status}")
            if _whole_seconds(left):
                found = yield from self.job(found, left)
            else:
                found = yield from self.job(found, pause=min(pause, left))
                pause *= 2
        return found

    def _fetch(self, job: Job | str, deadline: float | None) -> Steps[Result]:
        found = yield from self._wait(job, deadline)
        if found.error is not None:
            raise WarpdeskError(409, found.error.code, found.error.message)
        body = found.result
        if body is None:  # the job was given, not waited for; or it has no result, and the service says why
            response = yield self._request("GET", f"/v1/jobs/{found.id}/result")
            body = ResultBody.model_validate_json(_checked(response).content)
        description = yield from self._describe(found.operation)
        kinds = {output.name: output.kind for output in (description.outputs if description else ())}
        outputs = dict(body.outputs)
        for name in outputs:
            # JSON says neither dtype nor NaN.
            if kinds.get(name) == "array" and isinstance(outputs[name], list | dict):
                response = yield self._request("GET", f"/v1/jobs/{found.id}/result/{name}", accept=NPY)
                outputs[name] = from_npy(_checked(response).content)
        return Result(outputs, body.provenance, found)

    def _request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        stream: Body | None = None,
        wait: float | None = None,
        pause: float = 0.0,
        accept: str | None = None,
    ) -> httpx.Request:
        url = httpx.URL(f"{self._url}{path}")
        # httpx leaves the host out where it is given a stream.
        headers = {**self._headers, "Host": url.netloc.decode("ascii")}
        if accept is not None:
            headers["Accept"] = accept
        seconds = _whole_seconds(wait) if wait is not None else 0
        if seconds:
            headers["Prefer"] = f"wait={seconds}"
        extensions = {"timeout": httpx.Timeout(self._timeout, read=self._timeout + seconds).as_dict(), PAUSE: pause}
        return httpx.Request(method, url, headers=headers, json=json, stream=stream, extensions=extensions)


def _checked(response: httpx.Response) -> httpx.Response:
    """The response if it is a success, else its problem document raised as an exception."""
    if response.is_success:
        return response
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:  # a proxy's page, say
        raise WarpdeskError(response.status_code, "unexpected-response", response.text[:200]) from None
    raise WarpdeskError(response.status_code, problem.code, problem.detail, tuple(problem.errors))


def _id(job: Job | str) -> str:
    return job.id if isinstance(job, Job) else job


def _columns(names: Sequence[str]) -> httpx.QueryParams:
    """The query that asks for these columns. Raises ValueError for a name that the service would not take as one."""
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if "," in name or not name.strip():
            raise ValueError(
                f"{name!r} cannot be asked for as a column: commas separate names, and a name is not blank"
            )
    return httpx.QueryParams({"columns": names})


def _whole_seconds(wait: float) -> int:
    """What the service can be asked to wait, 0 where less than a second is left."""
    return max(0, floor(min(wait + SLACK, LONGEST_WAIT)))


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _seconds_left(deadline: float | None) -> float:
    return LONGEST_WAIT if deadline is None else deadline - time.monotonic()
