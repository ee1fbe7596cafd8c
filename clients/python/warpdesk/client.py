"""Talk to a Warpdesk service from Python, NumPy in and out.

    with Client() as client:
        result = client.run("rsi", prices=closes, period=14)
        result["rsi"], result.provenance.backend

`Client` and `AsyncClient` have the same methods. What is sent and in which order is written once, in exchange.py; the
two clients differ only in how they send it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Unpack, get_args

import httpx
from numpy.typing import ArrayLike
from pydantic import PrivateAttr

from warpdesk.arrays import AnyArray
from warpdesk.errors import (
    Busy,
    JobFailed,
    JobTimeout,
    NotFound,
    RequestRefused,
    RoundTimeout,
    Unauthorized,
    Unreachable,
    WarpdeskError,
)
from warpdesk.exchange import (
    PAUSE,
    AskedRound,
    Exchange,
    Options,
    Place,
    Result,
    Round,
    RoundResult,
    Steps,
    T,
)
from warpdesk.models import (
    Accountant,
    Array,
    BackendWish,
    Budget,
    JobDescription,
    JobEvent,
    Neighbouring,
    NewBudget,
    OperationDescription,
    Priority,
)
from warpdesk.progress import ProgressBar

__all__ = [
    "Array",
    "AsyncClient",
    "AsyncJob",
    "Budget",
    "Busy",
    "Client",
    "Job",
    "JobEvent",
    "JobFailed",
    "JobTimeout",
    "NotFound",
    "OperationDescription",
    "ProgressBar",
    "RequestRefused",
    "Result",
    "Round",
    "RoundResult",
    "RoundTimeout",
    "Unauthorized",
    "Unreachable",
    "WarpdeskError",
]

Progress = Callable[[JobEvent], object]  # is called with each event of a job, in order
AnyJob = JobDescription | str  # a job, or its id
OnTimeout = Literal["leave", "cancel"]  # what becomes of a job whose caller waits no longer


def _require_known(wish: OnTimeout) -> None:
    if wish not in get_args(OnTimeout):
        raise ValueError(f"on_timeout is one of {', '.join(get_args(OnTimeout))}, got {wish!r}")


class Job(JobDescription):
    """A job as it was last seen, with what its client can do with it."""

    _client: "Client" = PrivateAttr()

    def wait(self, timeout: float | None = None, progress: Progress | None = None) -> "Job":
        """The job once it is final, whatever its end; JobTimeout after `timeout` seconds."""
        return self._client.wait(self, timeout, progress)

    def result(self, timeout: float | None = None, progress: Progress | None = None) -> Result:
        """Wait for the job and fetch its answer; JobFailed where it has none."""
        return self._client.result(self, timeout, progress)

    def events(self, timeout: float | None = None) -> Iterator[JobEvent]:
        """What happened to the job and what happens, in order, until its end."""
        return self._client.events(self, timeout)

    def cancel(self) -> "Job":
        """End the job; the job as it is then."""
        return self._client.cancel(self)

    def refresh(self) -> "Job":
        """The job as it is now."""
        return self._client.job(self)


class AsyncJob(JobDescription):
    """`Job` for asyncio: the same methods, awaited."""

    _client: "AsyncClient" = PrivateAttr()

    async def wait(self, timeout: float | None = None, progress: Progress | None = None) -> "AsyncJob":
        """The job once it is final, whatever its end; JobTimeout after `timeout` seconds."""
        return await self._client.wait(self, timeout, progress)

    async def result(self, timeout: float | None = None, progress: Progress | None = None) -> Result:
        """Wait for the job and fetch its answer; JobFailed where it has none."""
        return await self._client.result(self, timeout, progress)

    def events(self, timeout: float | None = None) -> AsyncIterator[JobEvent]:
        """What happened to the job and what happens, in order, until its end."""
        return self._client.events(self, timeout)

    async def cancel(self) -> "AsyncJob":
        """End the job; the job as it is then."""
        return await self._client.cancel(self)

    async def refresh(self) -> "AsyncJob":
        """The job as it is now."""
        return await self._client.job(self)


class Client:
    """A connection to one service. Close it, or use it as a context manager.

    `url` defaults to WARPDESK_URL or http://127.0.0.1:8000, `api_key` to WARPDESK_API_KEY. `timeout` is in seconds and
    counts per request, beside the time the service is asked to wait.

    A request whose connection fails is sent up to five times within 1.5 seconds, then Unreachable is raised.
    Where the service refuses a request for now and says when it may take it (429, 503), it is sent again then, within
    the method's `timeout` where that is given, else the client's.
    """

    def __init__(self, url: str | None = None, api_key: str | None = None, *, timeout: float = 30.0) -> None:
        self._exchange = Exchange(url, api_key, timeout)
        self._http = httpx.Client()

    def run(
        self,
        operation: str,
        *,
        backend: BackendWish = "auto",
        priority: Priority = "batch",
        seed: int | None = None,
        deadline_s: float | None = None,
        result_ttl_s: float | None = None,
        timeout: float | None = None,
        on_timeout: OnTimeout = "leave",
        progress: Progress | None = None,
        idempotency_key: str | None = None,
        params: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Result:
        """Submit, wait and fetch the answer. `fields` are the operation's inputs (arrays) and parameters by name.

        `params` holds more of them, also any that is named like an argument of this method.

        `timeout` limits the whole wait in seconds: JobTimeout then, whose `job` goes on, or with `on_timeout="cancel"`
        ends. `progress` is called with each event of the job; a `ProgressBar` draws them. Raises RequestRefused when
        the request is refused, JobFailed when the job has no answer and Unreachable when no service answers.
        """
        _require_known(on_timeout)
        options = Options(backend, priority, seed, deadline_s, result_ttl_s)
        values = {**(params or {}), **fields}
        try:
            if progress is None:
                return self._send(self._exchange.run(operation, options, values, timeout, idempotency_key))
            job = self._send(self._exchange.submit(operation, options, values, idempotency_key))
            return self.result(job, timeout, progress)
        except JobTimeout as late:
            if on_timeout == "cancel":
                try:
                    late.job = self.cancel(late.job)
                    late.add_note(f"The job is {late.job.status}")
                except WarpdeskError as why:
                    late.add_note(f"The job was not canceled: {why}")
            raise

    def submit(
        self,
        operation: str,
        *,
        backend: BackendWish = "auto",
        priority: Priority = "batch",
        seed: int | None = None,
        deadline_s: float | None = None,
        result_ttl_s: float | None = None,
        idempotency_key: str | None = None,
        params: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Job:
        """Enqueue a job and return at once.

        The service makes one job of all calls with the same `idempotency_key`, for a day, or for ever where a budget is
        charged; without one, each call has its own.
        """
        options = Options(backend, priority, seed, deadline_s, result_ttl_s)
        values = {**(params or {}), **fields}
        return self._own(self._send(self._exchange.submit(operation, options, values, idempotency_key)))

    def job(self, job: AnyJob) -> Job:
        """The job as it is now."""
        return self._own(self._send(self._exchange.job(job)))

    def wait(self, job: AnyJob, timeout: float | None = None, progress: Progress | None = None) -> Job:
        """The job once it is final, whatever its end; JobTimeout after `timeout` seconds."""
        self._report(job, timeout, progress)
        return self._own(self._send(self._exchange.wait(job, timeout)))

    def result(self, job: AnyJob, timeout: float | None = None, progress: Progress | None = None) -> Result:
        """Wait for a job and fetch its answer."""
        self._report(job, timeout, progress)
        return self._send(self._exchange.result(job, timeout))

    def events(self, job: AnyJob, timeout: float | None = None) -> Iterator[JobEvent]:
        """What happened to a job and what happens, in order, until its end; JobTimeout after `timeout` seconds.

        A connection that is lost is opened again: no event is missed or given twice.
        """
        reading = self._exchange.events(job, timeout)
        while not reading.over:
            with reading.attempt() as request:
                time.sleep(request.extensions[PAUSE])
                with closing(self._http.send(request, stream=True)) as response:
                    if response.status_code != 200:
                        response.read()
                    reading.begin(response)
                    for piece in response.iter_bytes():
                        yield from reading.take(piece)
                        if reading.stale:
                            break

    def cancel(self, job: AnyJob) -> Job:
        """End a job that waits or runs; the job as it is then. A final job stays as it is."""
        return self._own(self._send(self._exchange.cancel(job)))

    def delete(self, job: AnyJob) -> None:
        """Erase a job's inputs and result; a live job is canceled first."""
        self._send(self._exchange.delete(job))

    def list(self, limit: int | None = None) -> Iterator[Job]:
        """Your jobs, newest first, all of them or the first `limit`; fetched page by page as you go."""
        place: Place | None = Place(None, limit)
        while place is not None:
            jobs, place = self._send(self._exchange.page(place))
            yield from map(self._own, jobs)

    def upload(self, array: ArrayLike | Path, *, columns: Sequence[str] = ()) -> Array:
        """Store an array, or the content of an .npy or .csv file, for jobs to use by its id.

        `columns` names the columns of a .csv file to keep, in the order wanted; without it all are. One column has the
        shape (rows,), several (columns, rows). Raises ValueError where there are no columns to choose from.
        """
        return self._send(self._exchange.upload(array, columns))

    def download(self, array: Array | str) -> AnyArray:
        """A stored array as NumPy."""
        return self._send(self._exchange.download(array))

    def operations(self) -> dict[str, OperationDescription]:
        """What the service can compute."""
        return self._send(self._exchange.operations())

    def create_budget(
        self, name: str, *, dataset: str, accountant: Accountant, neighbouring: Neighbouring, **more: Any
    ) -> Budget:
        """Open the privacy budget of a dataset of epsilon= (pure), epsilon= and delta= (approx) or rho= (zcdp), each a
        decimal string; charge_keys= and arrays= are lists of who may charge it, and what. Needs a key with the scope
        admin. Raises WarpdeskError where the dataset has an open one."""
        wanted = NewBudget(name=name, dataset=dataset, accountant=accountant, neighbouring=neighbouring, **more)
        return self._send(self._exchange.create_budget(wanted))

    def budget(self, budget: Budget | str) -> Budget:
        """A budget as it is now: exact decimals of what was spent and what remains, and the head of its chain."""
        return self._send(self._exchange.budget(budget))

    def secagg_round(self, **fields: Unpack[AskedRound]) -> Round:
        """Make a round in which `clients` vectors (dimension,) are summed; give each client one of its tokens.

        A client takes part with `warpdesk.secagg`. Raises WarpdeskError, also where the sum could overflow.
        """
        return self._send(self._exchange.secagg_round(fields))

    def secagg_result(self, made: Round | str, timeout: float | None = None) -> RoundResult:
        """Wait until a round of this key is done, and fetch the sum; RoundTimeout after `timeout` seconds.

        Raises WarpdeskError where the round was aborted, with the reason.
        """
        return self._send(self._exchange.secagg_result(made, timeout))

    def __repr__(self) -> str:
        return f"Client({self._exchange.url!r})"

    def close(self) -> None:
        """Close the connections to the service."""
        self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _report(self, job: AnyJob, timeout: float | None, progress: Progress | None) -> None:
        if progress is not None:
            for event in self.events(job, timeout):
                progress(event)

    def _own(self, job: JobDescription) -> Job:
        own = Job.model_construct(**_fields(job))
        own._client = self
        return own

    def _send(self, steps: Steps[T]) -> T:
        try:
            return send(self._http, steps)
        except (JobTimeout, JobFailed) as error:
            error.job = error.job if isinstance(error.job, str) else self._own(error.job)
            raise


def _fields(job: JobDescription) -> dict[str, Any]:
    """The fields of a job, without its answer."""
    return {name: getattr(job, name) for name in JobDescription.model_fields}


def send(http: httpx.Client, steps: Steps[T]) -> T:
    """Carry the requests of an exchange, and return what it returns."""
    try:
        request = next(steps)
        while True:
            time.sleep(request.extensions[PAUSE])
            try:
                response = http.send(request)
            except httpx.TransportError as error:
                request = steps.throw(error)
            else:
                request = steps.send(response)
    except StopIteration as end:
        answer: T = end.value
        return answer


class AsyncClient:
    """`Client` for asyncio: the same methods, awaited; `list` and `events` are asynchronous iterators."""

    def __init__(self, url: str | None = None, api_key: str | None = None, *, timeout: float = 30.0) -> None:
        self._exchange = Exchange(url, api_key, timeout)
        self._http = httpx.AsyncClient()

    async def run(
        self,
        operation: str,
        *,
        backend: BackendWish = "auto",
        priority: Priority = "batch",
        seed: int | None = None,
        deadline_s: float | None = None,
        result_ttl_s: float | None = None,
        timeout: float | None = None,
        on_timeout: OnTimeout = "leave",
        progress: Progress | None = None,
        idempotency_key: str | None = None,
        params: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Result:
        """Submit, wait and fetch the answer. `fields` are the operation's inputs (arrays) and parameters by name.

        `params` holds more of them, also any that is named like an argument of this method.

        `timeout` limits the whole wait in seconds: JobTimeout then, whose `job` goes on, or with `on_timeout="cancel"`
        ends. `progress` is called with each event of the job; a `ProgressBar` draws them. Raises RequestRefused when
        the request is refused, JobFailed when the job has no answer and Unreachable when no service answers.
        """
        _require_known(on_timeout)
        options = Options(backend, priority, seed, deadline_s, result_ttl_s)
        values = {**(params or {}), **fields}
        try:
            if progress is None:
                return await self._send(self._exchange.run(operation, options, values, timeout, idempotency_key))
            job = await self._send(self._exchange.submit(operation, options, values, idempotency_key))
            return await self.result(job, timeout, progress)
        except JobTimeout as late:
            if on_timeout == "cancel":
                try:
                    late.job = await self.cancel(late.job)
                    late.add_note(f"The job is {late.job.status}")
                except WarpdeskError as why:
                    late.add_note(f"The job was not canceled: {why}")
            raise

    async def submit(
        self,
        operation: str,
        *,
        backend: BackendWish = "auto",
        priority: Priority = "batch",
        seed: int | None = None,
        deadline_s: float | None = None,
        result_ttl_s: float | None = None,
        idempotency_key: str | None = None,
        params: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> AsyncJob:
        """Enqueue a job and return at once.

        The service makes one job of all calls with the same `idempotency_key`, for a day, or for ever where a budget is
        charged; without one, each call has its own.
        """
        options = Options(backend, priority, seed, deadline_s, result_ttl_s)
        values = {**(params or {}), **fields}
        return self._own(await self._send(self._exchange.submit(operation, options, values, idempotency_key)))

    async def job(self, job: AnyJob) -> AsyncJob:
        """The job as it is now."""
        return self._own(await self._send(self._exchange.job(job)))

    async def wait(self, job: AnyJob, timeout: float | None = None, progress: Progress | None = None) -> AsyncJob:
        """The job once it is final, whatever its end; JobTimeout after `timeout` seconds."""
        await self._report(job, timeout, progress)
        return self._own(await self._send(self._exchange.wait(job, timeout)))

    async def result(self, job: AnyJob, timeout: float | None = None, progress: Progress | None = None) -> Result:
        """Wait for a job and fetch its answer."""
        await self._report(job, timeout, progress)
        return await self._send(self._exchange.result(job, timeout))

    async def events(self, job: AnyJob, timeout: float | None = None) -> AsyncIterator[JobEvent]:
        """What happened to a job and what happens, in order, until its end; JobTimeout after `timeout` seconds.

        A connection that is lost is opened again: no event is missed or given twice.
        """
        reading = self._exchange.events(job, timeout)
        while not reading.over:
            with reading.attempt() as request:
                await asyncio.sleep(request.extensions[PAUSE])
                async with aclosing(await self._http.send(request, stream=True)) as response:
                    if response.status_code != 200:
                        await response.aread()
                    reading.begin(response)
                    async for piece in response.aiter_bytes():
                        for event in reading.take(piece):
                            yield event
                        if reading.stale:
                            break

    async def cancel(self, job: AnyJob) -> AsyncJob:
        """End a job that waits or runs; the job as it is then. A final job stays as it is."""
        return self._own(await self._send(self._exchange.cancel(job)))

    async def delete(self, job: AnyJob) -> None:
        """Erase a job's inputs and result; a live job is canceled first."""
        await self._send(self._exchange.delete(job))

    async def list(self, limit: int | None = None) -> AsyncIterator[AsyncJob]:
        """Your jobs, newest first, all of them or the first `limit`; fetched page by page as you go."""
        place: Place | None = Place(None, limit)
        while place is not None:
            jobs, place = await self._send(self._exchange.page(place))
            for job in jobs:
                yield self._own(job)

    async def upload(self, array: ArrayLike | Path, *, columns: Sequence[str] = ()) -> Array:
        """Store an array, or the content of an .npy or .csv file, for jobs to use by its id.

        `columns` names the columns of a .csv file to keep, in the order wanted; without it all are. One column has the
        shape (rows,), several (columns, rows). Raises ValueError where there are no columns to choose from.
        """
        return await self._send(self._exchange.upload(array, columns))

    async def download(self, array: Array | str) -> AnyArray:
        """A stored array as NumPy."""
        return await self._send(self._exchange.download(array))

    async def operations(self) -> dict[str, OperationDescription]:
        """What the service can compute."""
        return await self._send(self._exchange.operations())

    async def create_budget(
        self, name: str, *, dataset: str, accountant: Accountant, neighbouring: Neighbouring, **more: Any
    ) -> Budget:
        """Open the privacy budget of a dataset of epsilon= (pure), epsilon= and delta= (approx) or rho= (zcdp), each a
        decimal string; charge_keys= and arrays= are lists of who may charge it, and what. Needs a key with the scope
        admin. Raises WarpdeskError where the dataset has an open one."""
        wanted = NewBudget(name=name, dataset=dataset, accountant=accountant, neighbouring=neighbouring, **more)
        return await self._send(self._exchange.create_budget(wanted))

    async def budget(self, budget: Budget | str) -> Budget:
        """A budget as it is now: exact decimals of what was spent and what remains, and the head of its chain."""
        return await self._send(self._exchange.budget(budget))

    async def secagg_round(self, **fields: Unpack[AskedRound]) -> Round:
        """Make a round in which `clients` vectors (dimension,) are summed; give each client one of its tokens.

        A client takes part with `warpdesk.secagg`. Raises WarpdeskError, also where the sum could overflow.
        """
        return await self._send(self._exchange.secagg_round(fields))

    async def secagg_result(self, made: Round | str, timeout: float | None = None) -> RoundResult:
        """Wait until a round of this key is done, and fetch the sum; RoundTimeout after `timeout` seconds.

        Raises WarpdeskError where the round was aborted, with the reason.
        """
        return await self._send(self._exchange.secagg_result(made, timeout))

    def __repr__(self) -> str:
        return f"AsyncClient({self._exchange.url!r})"

    async def close(self) -> None:
        """Close the connections to the service."""
        await self._http.aclose()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _report(self, job: AnyJob, timeout: float | None, progress: Progress | None) -> None:
        if progress is not None:
            async for event in self.events(job, timeout):
                progress(event)

    def _own(self, job: JobDescription) -> AsyncJob:
        own = AsyncJob.model_construct(**_fields(job))
        own._client = self
        return own

    async def _send(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                await asyncio.sleep(request.extensions[PAUSE])
                try:
                    response = await self._http.send(request)
                except httpx.TransportError as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(response)
        except StopIteration as end:
            answer: T = end.value
            return answer
        except (JobTimeout, JobFailed) as error:
            error.job = error.job if isinstance(error.job, str) else self._own(error.job)
            raise
