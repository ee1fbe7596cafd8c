"""Talk to a Warpdesk service from Python, NumPy in and out.

    with Client() as client:
        result = client.run("rsi", prices=closes, period=14)
        result["rsi"], result.provenance.backend

`Client` and `AsyncClient` have the same methods. What is sent and in which order is written once, as generators that
yield requests and receive responses; the two clients differ only in how they send them.
"""

import io
import os
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError

from app.schemas import Array, ErrorDetail, Job, JobPage, OperationDescription, OperationList, Problem
from app.schemas import Result as ResultBody
from workers.protocol import BackendWish, Priority, Provenance

__all__ = ["Array", "AsyncClient", "Client", "Job", "OperationDescription", "Result", "WarpdeskError"]

URL = "http://127.0.0.1:8000"
INLINE = 4096  # numbers: below, JSON costs less than a second request
LONGEST_WAIT = 55  # seconds the service holds a request open
CHUNK = 1 << 20

NPY = "application/x-npy"
MEDIA_TYPES = {".npy": NPY, ".csv": "text/csv"}

AnyArray = NDArray[Any]
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


class Client:
    """A connection to one service. Close it, or use it as a context manager.

    `url` defaults to WARPDESK_URL or http://127.0.0.1:8000, `api_key` to WARPDESK_API_KEY. `timeout` is in seconds and
    counts per request, beside the time the service is asked to wait. Network failures raise httpx.TransportError.
    """

    def __init__(self, url: str | None = None, api_key: str | None = None, *, timeout: float = 30.0) -> None:
        self._protocol = _Protocol(url, api_key, timeout)
        self._http = httpx.Client()

    def run(
        self,
        operation: str,
        *,
        backend: BackendWish = "auto",
        priority: Priority = "realtime",
        seed: int | None = None,
        deadline_s: float | None = None,
        result_ttl_s: float | None = None,
        timeout: float | None = None,
        params: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Result:
        """Submit, wait and fetch the answer. `fields` are the operation's inputs (arrays) and parameters by name.

        `params` holds more of them, also any that is named like an argument of this method.

        `timeout` limits the whole wait in seconds: TimeoutError then, and the job goes on. Raises WarpdeskError when
        the request is refused or the job fails.
        """
        options = _Options(backend, priority, seed, deadline_s, result_ttl_s)
        return self._send(self._protocol.run(operation, options, {**(params or {}), **fields}, timeout))

    def submit(
        self,
        operation: str,
        *,
        backend: BackendWish = "auto",
        priority: Priority = "batch",
        seed: int | None = None,
        deadline_s: float | None = None,
        result_ttl_s: float | None = None,
        params: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Job:
        """Enqueue a job and return at once."""
        options = _Options(backend, priority, seed, deadline_s, result_ttl_s)
        return self._send(self._protocol.submit(operation, options, {**(params or {}), **fields}))

    def job(self, job: Job | str) -> Job:
        """The job as it is now."""
        return self._send(self._protocol.job(job))

    def wait(self, job: Job | str, timeout: float | None = None) -> Job:
        """The job once it is final, whatever its end; TimeoutError after `timeout` seconds."""
        return self._send(self._protocol.wait(job, timeout))

    def result(self, job: Job | str, timeout: float | None = None) -> Result:
        """Wait for a job and fetch its answer."""
        return self._send(self._protocol.result(job, timeout))

    def cancel(self, job: Job | str) -> Job:
        return self._send(self._protocol.cancel(job))

    def delete(self, job: Job | str) -> None:
        """Erase a job's inputs and result; a live job is canceled first."""
        self._send(self._protocol.delete(job))

    def list(self, limit: int | None = None) -> Iterator[Job]:
        """Your jobs, newest first, all of them or the first `limit`; fetched page by page as you go."""
        page, left = None, limit
        while left is None or left > 0:
            found = self._send(self._protocol.page(page, left))
            yield from found.jobs
            left = None if left is None else left - len(found.jobs)
            if (page := found.next) is None:
                return

    def upload(self, array: ArrayLike | Path) -> Array:
        """Store an array, or the content of an .npy or .csv file, for jobs to use by its id."""
        return self._send(self._protocol.upload(array))

    def download(self, array: Array | str) -> AnyArray:
        return self._send(self._protocol.download(array))

    def operations(self) -> dict[str, OperationDescription]:
        """What the service can compute."""
        return self._send(self._protocol.operations())

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _send(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                request = steps.send(self._http.send(request))
        except StopIteration as end:
            answer: T = end.value
            return answer


class AsyncClient:
    """`Client` for asyncio: the same methods, awaited; `list` is an asynchronous iterator."""

    def __init__(self, url: str | None = None, api_key: str | None = None, *, timeout: float = 30.0) -> None:
        self._protocol = _Protocol(url, api_key, timeout)
        self._http = httpx.AsyncClient()

    async def run(
        self,
        operation: str,
        *,
        backend: BackendWish = "auto",
        priority: Priority = "realtime",
        seed: int | None = None,
        deadline_s: float | None = None,
        result_ttl_s: float | None = None,
        timeout: float | None = None,
        params: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Result:
        options = _Options(backend, priority, seed, deadline_s, result_ttl_s)
        return await self._send(self._protocol.run(operation, options, {**(params or {}), **fields}, timeout))

    async def submit(
        self,
        operation: str,
        *,
        backend: BackendWish = "auto",
        priority: Priority = "batch",
        seed: int | None = None,
        deadline_s: float | None = None,
        result_ttl_s: float | None = None,
        params: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Job:
        options = _Options(backend, priority, seed, deadline_s, result_ttl_s)
        return await self._send(self._protocol.submit(operation, options, {**(params or {}), **fields}))

    async def job(self, job: Job | str) -> Job:
        return await self._send(self._protocol.job(job))

    async def wait(self, job: Job | str, timeout: float | None = None) -> Job:
        return await self._send(self._protocol.wait(job, timeout))

    async def result(self, job: Job | str, timeout: float | None = None) -> Result:
        return await self._send(self._protocol.result(job, timeout))

    async def cancel(self, job: Job | str) -> Job:
        return await self._send(self._protocol.cancel(job))

    async def delete(self, job: Job | str) -> None:
        await self._send(self._protocol.delete(job))

    async def list(self, limit: int | None = None) -> AsyncIterator[Job]:
        page, left = None, limit
        while left is None or left > 0:
            found = await self._send(self._protocol.page(page, left))
            for job in found.jobs:
                yield job
            left = None if left is None else left - len(found.jobs)
            if (page := found.next) is None:
                return

    async def upload(self, array: ArrayLike | Path) -> Array:
        return await self._send(self._protocol.upload(array))

    async def download(self, array: Array | str) -> AnyArray:
        return await self._send(self._protocol.download(array))

    async def operations(self) -> dict[str, OperationDescription]:
        return await self._send(self._protocol.operations())

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                request = steps.send(await self._http.send(request))
        except StopIteration as end:
            answer: T = end.value
            return answer


@dataclass(frozen=True)
class _Options:
    backend: BackendWish
    priority: Priority
    seed: int | None
    deadline_s: float | None
    result_ttl_s: float | None


class _Protocol:
    """What to send, in which order, and what the answers mean; knows nothing of how requests travel."""

    def __init__(self, url: str | None, api_key: str | None, timeout: float) -> None:
        self._url = (url or os.environ.get("WARPDESK_URL") or URL).rstrip("/")
        self._timeout = timeout
        self._headers = {"Accept": "application/json"}
        if api_key := api_key or os.environ.get("WARPDESK_API_KEY"):
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._operations: dict[str, OperationDescription] = {}

    def run(self, operation: str, options: _Options, fields: Mapping[str, Any], timeout: float | None) -> Steps[Result]:
        deadline = _deadline(timeout)
        job = yield from self.submit(operation, options, fields, wait=_seconds_left(deadline))
        return (yield from self._fetch(job, deadline))

    def submit(
        self, operation: str, options: _Options, fields: Mapping[str, Any], wait: float | None = None
    ) -> Steps[Job]:
        description = yield from self._describe(operation)
        expected = {entry.name: entry for entry in (description.inputs if description else ())}
        inputs: dict[str, Any] = {}
        params: dict[str, Any] = {}
        for name, value in fields.items():
            if name not in expected:
                params[name] = value
            elif isinstance(value, Array):
                inputs[name] = {"array": value.id}
            else:
                array = _as_array(value, tuple(expected[name].dtypes))
                if array.size <= INLINE and not (array.dtype.kind == "f" and np.isinf(array).any()):
                    inputs[name] = {"data": _as_json(array), "dtype": array.dtype.name}
                else:
                    inputs[name] = {"array": (yield from self.upload(array)).id}
        body = {"operation": operation, "params": params, "inputs": inputs, **vars(options)}
        body = {name: value for name, value in body.items() if value is not None}
        response = yield self._request("POST", "/v1/jobs", json=body, wait=wait)
        return Job.model_validate_json(_checked(response).content)

    def job(self, job: Job | str, wait: float | None = None) -> Steps[Job]:
        response = yield self._request("GET", f"/v1/jobs/{_id(job)}", wait=wait)
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

    def page(self, url: str | None, limit: int | None) -> Steps[JobPage]:
        first = "/v1/jobs" if limit is None else f"/v1/jobs?limit={min(limit, 100)}"
        response = yield self._request("GET", url or first)
        return JobPage.model_validate_json(_checked(response).content)

    def upload(self, array: ArrayLike | Path) -> Steps[Array]:
        stream: _Body = _FileBody(array) if isinstance(array, Path) else _ArrayBody(np.asarray(array))
        request = self._request("PUT", "/v1/arrays", stream=stream)
        request.headers["Content-Type"] = stream.media_type
        request.headers["Content-Length"] = str(stream.size)
        response = yield request
        return Array.model_validate_json(_checked(response).content)

    def download(self, array: Array | str) -> Steps[AnyArray]:
        name = array.id if isinstance(array, Array) else array
        return _npy(_checked((yield self._request("GET", f"/v1/arrays/{name}", accept=NPY))))

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
        while not found.status.final:
            left = _seconds_left(deadline)
            if left <= 0:
                raise TimeoutError(f"the job {found.id} is still {found.status}")
            found = yield from self.job(found, left)
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
                outputs[name] = _npy(_checked(response))
        return Result(outputs, body.provenance, found)

    def _request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        stream: "_Body | None" = None,
        wait: float | None = None,
        accept: str | None = None,
    ) -> httpx.Request:
        url = httpx.URL(path if path.startswith("http") else f"{self._url}{path}")
        # httpx leaves the host out where it is given a stream.
        headers = {**self._headers, "Host": url.netloc.decode("ascii")}
        if accept is not None:
            headers["Accept"] = accept
        seconds = min(max(1, ceil(wait)), LONGEST_WAIT) if wait is not None else 0
        if seconds:
            headers["Prefer"] = f"wait={seconds}"
        extensions = {"timeout": httpx.Timeout(self._timeout, read=self._timeout + seconds).as_dict()}
        return httpx.Request(method, url, headers=headers, json=json, stream=stream, extensions=extensions)


class _Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body sent in chunks by either client, so that a large array is never copied whole."""

    media_type: str
    size: int

    def chunks(self) -> Iterator[bytes]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[bytes]:
        yield from self.chunks()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks():
            yield chunk


class _ArrayBody(_Body):
    def __init__(self, array: AnyArray) -> None:
        array = _plain(array)
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
        self._header = header.getvalue()
        self._data = memoryview(array.reshape(-1).view(np.uint8).data)
        self.media_type = NPY
        self.size = len(self._header) + len(self._data)

    def chunks(self) -> Iterator[bytes]:
        yield self._header
        for start in range(0, len(self._data), CHUNK):
            yield bytes(self._data[start : start + CHUNK])


class _FileBody(_Body):
    def __init__(self, path: Path) -> None:
        if path.suffix not in MEDIA_TYPES:
            raise ValueError(f"{path.name} is none of {', '.join(MEDIA_TYPES)}")
        self._path = path
        self.media_type = MEDIA_TYPES[path.suffix]
        self.size = path.stat().st_size

    def chunks(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk


def _checked(response: httpx.Response) -> httpx.Response:
    """The response if it is a success, else its problem document raised as an exception."""
    if response.is_success:
        return response
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:  # a proxy's page, say
        raise WarpdeskError(response.status_code, "unexpected-response", response.text[:200]) from None
    raise WarpdeskError(response.status_code, problem.code, problem.detail, tuple(problem.errors))


def _as_array(value: ArrayLike, dtypes: tuple[str, ...]) -> AnyArray:
    """An array is sent as it is; anything else becomes the operation's first dtype where NumPy's guess is not taken."""
    array = np.asarray(value)
    if not isinstance(value, np.ndarray) and array.dtype.name not in dtypes:
        array = np.asarray(value, dtype=dtypes[0])
    return _plain(array)


def _plain(array: AnyArray) -> AnyArray:
    """C order and little-endian, without a copy where it is so already."""
    if array.dtype.hasobject:
        raise TypeError(f"an array of dtype {array.dtype} holds Python objects and cannot be sent")
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def _as_json(array: AnyArray) -> Any:
    if array.dtype.kind == "f" and np.isnan(array).any():
        boxed = array.astype(object)
        boxed[np.isnan(array)] = None
        return boxed.tolist()
    return array.tolist()


def _npy(response: httpx.Response) -> AnyArray:
    array: AnyArray = np.load(io.BytesIO(response.content), allow_pickle=False)
    return array


def _id(job: Job | str) -> str:
    return job.id if isinstance(job, Job) else job


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _seconds_left(deadline: float | None) -> float:
    return LONGEST_WAIT if deadline is None else deadline - time.monotonic()
