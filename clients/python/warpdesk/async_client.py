"""The client of a Warpdesk service for asyncio."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Unpack, overload

import httpx
from numpy.typing import ArrayLike, NDArray
from pydantic import PrivateAttr

from warpdesk.async_operations import AsyncOperations
from warpdesk.calls import (
    AnyJob,
    AskedRound,
    Call,
    ManyProgress,
    OnTimeout,
    Options,
    Place,
    Progress,
    Result,
    Round,
    RoundResult,
    Shards,
    all_succeeded,
    labels_with,
    require_known,
)
from warpdesk.datasets import Dataset, DatasetRows, Time
from warpdesk.errors import JobFailed, JobTimeout, WarpdeskError
from warpdesk.event_reader import Reading
from warpdesk.exchange import BODY, PAUSE, Exchange, Steps, T, body_of, deadline_of, json_of
from warpdesk.files import AsyncResultFile, FileBody, FileReference
from warpdesk.frames import JobLabels
from warpdesk.models import (
    Accountant,
    ArrayDescription,
    BackendWish,
    Budget,
    DatasetDescription,
    DatasetSummary,
    Gap,
    JobDescription,
    JobEvent,
    Neighbouring,
    NewBudget,
    OperationDescription,
    Priority,
    RowsAppended,
    TaskStep,
)


class AsyncJob(JobDescription):
    """The client's `Job` for asyncio: the same methods, awaited."""

    _client: "AsyncClient" = PrivateAttr()
    _labels: JobLabels | None = PrivateAttr(None)

    async def wait(self, timeout: float | None = None, progress: Progress | None = None) -> "AsyncJob":
        """Wait until the service says that the job has ended, in success or not, and return it; JobTimeout after
        `timeout` seconds."""
        return await self._client.wait(self, timeout, progress)

    async def result(self, timeout: float | None = None, progress: Progress | None = None) -> Result:
        """Wait for the job and fetch its result from the service. Raises JobFailed if it has none."""
        return await self._client.result(self, timeout, progress)

    def events(self, timeout: float | None = None) -> AsyncIterator[JobEvent]:
        """Iterate over the job's events from the service, past and future, in order, until its end."""
        return self._client.events(self, timeout)

    async def cancel(self) -> "AsyncJob":
        """Ask the service to cancel the job, and return its state after that."""
        return await self._client.cancel(self)

    async def pause(self) -> "AsyncJob":
        """Ask the service to pause the task, and return its state after that."""
        return await self._client.pause(self)

    async def resume(self) -> "AsyncJob":
        """Ask the service to go on with the paused task, and return its state after that."""
        return await self._client.resume(self)

    async def steps(self, after: int = 0) -> Sequence[TaskStep]:
        """Fetch the numbers that the task has reported of its steps after that one, oldest first."""
        return await self._client.steps(self, after)

    async def refresh(self) -> "AsyncJob":
        """Fetch the job's current state from the service."""
        return await self._client.job(self)


class AsyncClient(AsyncOperations):
    """`Client` for asyncio: the same methods, awaited; `list` and `events` are asynchronous iterators."""

    def __init__(self, url: str | None = None, api_key: str | None = None, *, timeout: float = 30.0) -> None:
        self._exchange = Exchange(url, api_key, timeout, partial(AsyncResultFile, self._fetch))
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
        shards: Shards = "auto",
        timeout: float | None = None,
        on_timeout: OnTimeout = "leave",
        progress: Progress | None = None,
        idempotency_key: str | None = None,
        params: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Result:
        """Submit a job to the service, wait for it and fetch its result. `fields` are the operation's inputs (arrays)
        and parameters.

        `params` holds further fields, also any that is named like an argument of this method.

        `timeout` limits the whole wait in seconds. After it JobTimeout is raised; its `job` goes on, or is canceled
        with `on_timeout="cancel"`. `progress` is called with each event of the job; a `ProgressBar` draws them. Raises
        RequestRefused if the service refuses the request, JobFailed if the job has no result, and Unreachable if no
        service answers.
        """
        require_known(on_timeout)
        options = Options(backend, priority, seed, deadline_s, result_ttl_s, shards)
        try:
            if progress is None:
                run = self._exchange.run(operation, options, params, fields, idempotency_key, deadline_of(timeout))
                return await self._send(run)
            job = await self._send(self._exchange.submit(operation, options, params, fields, idempotency_key))
            return await self.result(job, timeout, progress)
        except JobTimeout as late:
            if on_timeout == "cancel":
                try:
                    late.end(await self.cancel(late.job))
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
        shards: Shards = "auto",
        idempotency_key: str | None = None,
        params: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> AsyncJob:
        """Submit a job to the service and return at once.

        The service makes one job of all calls with the same `idempotency_key`. It keeps the key for a day, or for ever
        if the job charges a privacy budget. Without an `idempotency_key` each call makes its own job.
        """
        options = Options(backend, priority, seed, deadline_s, result_ttl_s, shards)
        steps = self._exchange.submit(operation, options, params, fields, idempotency_key, keep_labels=True)
        return self._own(await self._send(steps))

    @overload
    async def run_many(
        self,
        calls: Iterable[Call],
        *,
        timeout: float | None = None,
        on_timeout: OnTimeout = "leave",
        progress: ManyProgress | None = None,
        idempotency_key: str | None = None,
        return_exceptions: Literal[False] = False,
    ) -> list[Result]: ...

    @overload
    async def run_many(
        self,
        calls: Iterable[Call],
        *,
        timeout: float | None = None,
        on_timeout: OnTimeout = "leave",
        progress: ManyProgress | None = None,
        idempotency_key: str | None = None,
        return_exceptions: Literal[True],
    ) -> list[Result | JobFailed]: ...

    async def run_many(
        self,
        calls: Iterable[Call],
        *,
        timeout: float | None = None,
        on_timeout: OnTimeout = "leave",
        progress: ManyProgress | None = None,
        idempotency_key: str | None = None,
        return_exceptions: bool = False,
    ) -> list[Result] | list[Result | JobFailed]:
        """Submit up to 1,000 jobs to the service, all or none, wait for all and fetch their results, in order.

            await client.run_many([Call("rsi", close=prices, period=period) for period in range(5, 55)])

        An array that several calls name is uploaded once. `progress` is called with how many jobs have ended, and of
        how many. The first job without a result raises JobFailed, whose `place` says which it is; with
        `return_exceptions` the exceptions of such jobs are in the list instead, in their places.

        `timeout` limits the whole wait in seconds. After it JobTimeout is raised; the jobs in its `unfinished` go on,
        or are canceled with `on_timeout="cancel"`. Raises RequestRefused, with the place of each mistake, if the
        service refuses the jobs: then none is queued.
        """
        require_known(on_timeout)
        steps = self._exchange.run_many([*calls], idempotency_key, deadline_of(timeout), progress)
        try:
            results = await self._send(steps)
        except JobTimeout as late:
            if on_timeout == "cancel":
                try:
                    late.unfinished = [await self.cancel(job) for job in late.unfinished]
                    late.end(late.unfinished[0])
                except WarpdeskError as why:
                    late.add_note(f"Not all jobs were canceled: {why}")
            raise
        for failed in results:
            if isinstance(failed, JobFailed):
                failed.job = self._own(failed.job)
        return results if return_exceptions else all_succeeded(results)

    async def submit_many(self, calls: Iterable[Call], *, idempotency_key: str | None = None) -> Sequence[AsyncJob]:
        """Submit up to 1,000 jobs to the service, all or none, and return them at once, in order. `idempotency_key` is
        of all together."""
        jobs = await self._send(self._exchange.submit_many([*calls], idempotency_key))
        return [self._own(job) for job in jobs]

    async def job(self, job: AnyJob) -> AsyncJob:
        """Fetch a job's current state from the service."""
        return self._own(await self._send(self._exchange.job(job)))

    async def wait(self, job: AnyJob, timeout: float | None = None, progress: Progress | None = None) -> AsyncJob:
        """Wait until the service says that the job has ended, in success or not, and return it; JobTimeout after
        `timeout` seconds."""
        await self._report(job, timeout, progress)
        return self._own(await self._send(self._exchange.wait(job, deadline_of(timeout))))

    async def result(self, job: AnyJob, timeout: float | None = None, progress: Progress | None = None) -> Result:
        """Wait for a job and fetch its result from the service."""
        await self._report(job, timeout, progress)
        return await self._send(self._exchange.result(job, deadline_of(timeout)))

    async def events(self, job: AnyJob, timeout: float | None = None) -> AsyncIterator[JobEvent]:
        """Iterate over a job's events from the service, past and future, in order, until its end; JobTimeout after
        `timeout` seconds.

        A lost connection is opened again, and no event is missed or repeated.
        """
        async for event in self._events(job, timeout):
            assert isinstance(event, JobEvent)  # noqa: S101 (of one job nothing is lost)
            yield event

    def follow(self, timeout: float | None = None) -> AsyncIterator[JobEvent | Gap]:
        """Iterate over what happens to any job of the API key from now on, without end; TimeoutError after `timeout`
        seconds.

        A lost connection is opened again, and no event is repeated. A `Gap` says that events were missed which the
        service no longer has: list the jobs then.
        """
        return self._events(None, timeout)

    async def _events(self, job: AnyJob | None, timeout: float | None) -> AsyncIterator[JobEvent | Gap]:
        reading = Reading(self._exchange, job, deadline_of(timeout))
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
        """Ask the service to cancel a queued or running job, and return its state after that. A job that has ended is
        not changed."""
        return self._own(await self._send(self._exchange.cancel(job)))

    async def pause(self, job: AnyJob) -> AsyncJob:
        """Ask the service to pause a task, and return its state after that: `paused`, or `running` until the step that
        it is in has ended.

        Raises RequestRefused for a job that is no task.
        """
        return self._own(await self._send(self._exchange.pause(job)))

    async def resume(self, job: AnyJob) -> AsyncJob:
        """Ask the service to go on with a paused task from its latest checkpoint, and return its state after that."""
        return self._own(await self._send(self._exchange.resume(job)))

    async def steps(self, job: AnyJob, after: int = 0) -> Sequence[TaskStep]:
        """Fetch from the service the numbers that a task has reported of its steps after that one, oldest first."""
        return await self._send(self._exchange.steps(job, after))

    async def delete(self, job: AnyJob) -> None:
        """Ask the service to erase a job's inputs and result. A queued or running job is canceled first."""
        await self._send(self._exchange.delete(job))

    async def list(self, limit: int | None = None) -> AsyncIterator[AsyncJob]:
        """Iterate over the API key's jobs at the service, newest first, all or the first `limit`. Pages are fetched as
        needed."""
        place: Place | None = Place(None, limit)
        while place is not None:
            jobs, place = await self._send(self._exchange.page(place))
            for job in jobs:
                yield self._own(job)

    async def call(self, method: str, path: str, *, json: Any = None) -> Any:
        """Send a request to any route of the service, such as `("GET", "/v1/queue")`, and return its JSON; None where
        there is none."""
        return json_of(await self._send(self._exchange.ask(method, path, json=json)))

    async def upload(self, array: ArrayLike | Path, *, columns: Sequence[str] = ()) -> ArrayDescription:
        """Upload an array to the service, or the content of an .npy or .csv file, for jobs to use by its id.

        A frame is uploaded with its rows along the last axis; jobs that are given what this returns have its labels.
        `columns` names the columns of a .csv file to keep, in the order wanted; without it all are kept. One column has
        the shape (rows,), several (columns, rows). Raises ValueError if the input is not a .csv file.
        """
        return await self._send(self._exchange.upload(array, columns))

    async def download(self, array: ArrayDescription | str) -> Any:
        """Download a stored array from the service as NumPy, or as the frame that `upload` was given for it."""
        return await self._send(self._exchange.download(array))

    async def create_dataset(
        self, name: str, *, columns: Mapping[str, str], assets: Sequence[str] = ()
    ) -> DatasetDescription:
        """Make a dataset at the service: columns with their dtypes ("float64", "float32"), and the first assets.

        One that is there with the same columns and assets is returned as it is. Raises WarpdeskError if it is there
        with others.
        """
        return await self._send(self._exchange.create_dataset(name, columns, assets))

    async def append_rows(
        self,
        name: str,
        times: Sequence[Time] | NDArray[Any] | Time,
        columns: Mapping[str, ArrayLike],
        *,
        assets: Sequence[str] | None = None,
        correct: bool = False,
    ) -> RowsAppended:
        """Append rows to a dataset of the service: growing times, and an array (time, asset) of every column; (asset,)
        for one time.

        `assets` names those of the arrays; without it they are all of the dataset, in its order. A new name is added.
        All rows are there afterwards, or none. Sent again they change nothing. Other numbers at a time that is there,
        and a row before the last one, raise RequestRefused without `correct`.
        """
        return await self._send(self._exchange.append_rows(name, times, columns, assets, correct=correct))

    async def read_rows(
        self,
        name: str,
        column: str,
        start: Time | None = None,
        stop: Time | None = None,
        *,
        assets: Sequence[str] | None = None,
        as_of: int | None = None,
    ) -> DatasetRows:
        """Read the rows of a dataset's column from the service, from `start` on and before `stop`, as numbers
        (time, asset). `as_of` is a version, the latest if it is None."""
        return await self._send(self._exchange.read_rows(Dataset(name, column, start, stop, assets, as_of)))

    async def datasets(self) -> Sequence[DatasetSummary]:
        """Fetch the list of the API key's datasets from the service, by name."""
        return await self._send(self._exchange.datasets())

    async def dataset(self, name: str) -> DatasetDescription:
        """Fetch the description of a dataset from the service: columns, assets, first and last time, version, bytes."""
        return await self._send(self._exchange.dataset(name))

    async def delete_dataset(self, name: str) -> None:
        """Ask the service to delete a dataset with all versions. Jobs that read it go on."""
        await self._send(self._exchange.delete_dataset(name))

    async def operations(self) -> dict[str, OperationDescription]:
        """Fetch the list of operations that the service can compute."""
        return await self._send(self._exchange.operations())

    async def create_budget(
        self, name: str, *, dataset: str, accountant: Accountant, neighbouring: Neighbouring, **more: Any
    ) -> Budget:
        """Ask the service to open a dataset's privacy budget. Needs an API key with the scope `admin`.

        Its total is epsilon= (pure), epsilon= and delta= (approx) or rho= (zcdp), each a decimal string. The
        lists charge_keys= and arrays= say which keys may charge it, and for which arrays. Raises WarpdeskError if the
        dataset has an open budget.
        """
        wanted = NewBudget(name=name, dataset=dataset, accountant=accountant, neighbouring=neighbouring, **more)
        return await self._send(self._exchange.create_budget(wanted))

    async def budget(self, budget: Budget | str) -> Budget:
        """Fetch a privacy budget from the service: exact decimals of what was spent and what remains, and the head of
        its hash chain."""
        return await self._send(self._exchange.budget(budget))

    async def secagg_round(self, **fields: Unpack[AskedRound]) -> Round:
        """Ask the service to create a secure aggregation round that sums `clients` vectors (dimension,). Each client
        needs one token.

        A client takes part with `warpdesk.secagg`. Raises WarpdeskError, for example if the sum could overflow.
        """
        return await self._send(self._exchange.secagg_round(fields))

    async def secagg_result(self, made: Round | str, timeout: float | None = None) -> RoundResult:
        """Wait for the end of a secure aggregation round and fetch its sum from the service; RoundTimeout after
        `timeout` seconds.

        The round must be one of this API key. Raises WarpdeskError with the reason if the round was aborted.
        """
        return await self._send(self._exchange.secagg_result(made, deadline_of(timeout)))

    def __repr__(self) -> str:
        return f"AsyncClient({self._exchange.url!r})"

    async def close(self) -> None:
        """Close the client's connections to the service."""
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
        own = AsyncJob.model_construct(**dict(job))
        own._client = self
        own._labels = labels_with(job)
        return own

    async def _fetch(self, file: FileReference, body: FileBody) -> None:
        """Fetch a file of a result from the service, for the file itself."""
        await self._send(self._exchange.fetch(file, body))

    async def _send(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                await asyncio.sleep(request.extensions[PAUSE])
                try:
                    response = await self._http.send(request, stream=True)
                    async with aclosing(response):
                        if body := body_of(request, response):
                            async for piece in response.aiter_raw():
                                body.take(piece)
                            response.extensions[BODY] = body
                        else:
                            await response.aread()
                except httpx.TransportError as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(response)
        except StopIteration as end:
            return end.value
        except (JobTimeout, JobFailed) as error:
            error.job = error.job if isinstance(error.job, str) else self._own(error.job)
            if isinstance(error, JobTimeout):
                error.unfinished = [self._own(job) for job in error.unfinished]
            raise
