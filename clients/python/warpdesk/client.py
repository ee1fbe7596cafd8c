"""The HTTP client of a Warpdesk service, with NumPy arrays in and out.

    with Client() as client:
        result = client.run("rsi", close=closes, period=14)
        result["rsi"], result.provenance.backend

`AsyncClient` of async_client.py has the same methods. The requests and their order are written once, in exchange.py;
the two clients differ only in how they send them.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Unpack, overload

import httpx
from numpy.typing import ArrayLike, NDArray
from pydantic import PrivateAttr

from warpdesk.async_client import AsyncClient, AsyncJob
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
from warpdesk.event_reader import Reading
from warpdesk.exchange import BODY, PAUSE, Exchange, Steps, T, body_of, deadline_of, json_of
from warpdesk.files import AsyncResultFile, FileBody, FileReference, ResultFile
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
from warpdesk.operations import Operations
from warpdesk.progress import ProgressBar

__all__ = [
    "ArrayDescription",
    "AsyncClient",
    "AsyncJob",
    "AsyncResultFile",
    "Budget",
    "Busy",
    "Call",
    "Client",
    "Dataset",
    "DatasetRows",
    "Job",
    "JobEvent",
    "JobFailed",
    "JobTimeout",
    "NotFound",
    "OperationDescription",
    "ProgressBar",
    "RequestRefused",
    "Result",
    "ResultFile",
    "Round",
    "RoundResult",
    "RoundTimeout",
    "Unauthorized",
    "Unreachable",
    "WarpdeskError",
]


class Job(JobDescription):
    """A job that the client submitted: its last fetched state, and methods to wait for it, cancel it and fetch its
    result."""

    _client: "Client" = PrivateAttr()
    _labels: JobLabels | None = PrivateAttr(None)

    def wait(self, timeout: float | None = None, progress: Progress | None = None) -> "Job":
        """Wait until the service says that the job has ended, in success or not, and return it; JobTimeout after
        `timeout` seconds."""
        return self._client.wait(self, timeout, progress)

    def result(self, timeout: float | None = None, progress: Progress | None = None) -> Result:
        """Wait for the job and fetch its result from the service. Raises JobFailed if it has none."""
        return self._client.result(self, timeout, progress)

    def events(self, timeout: float | None = None) -> Iterator[JobEvent]:
        """Iterate over the job's events from the service, past and future, in order, until its end."""
        return self._client.events(self, timeout)

    def cancel(self) -> "Job":
        """Ask the service to cancel the job, and return its state after that."""
        return self._client.cancel(self)

    def pause(self) -> "Job":
        """Ask the service to pause the task, and return its state after that."""
        return self._client.pause(self)

    def resume(self) -> "Job":
        """Ask the service to go on with the paused task, and return its state after that."""
        return self._client.resume(self)

    def steps(self, after: int = 0) -> Sequence[TaskStep]:
        """Fetch the numbers that the task has reported of its steps after that one, oldest first."""
        return self._client.steps(self, after)

    def refresh(self) -> "Job":
        """Fetch the job's current state from the service."""
        return self._client.job(self)


class Client(Operations):
    """The synchronous client of one service. Close it, or use it as a context manager.

    Each operation has a method, `client.macd(closes, fast=8)`, and all are run by their names too.

    `url` defaults to WARPDESK_URL or http://127.0.0.1:8000, `api_key` to WARPDESK_API_KEY. `timeout` is in seconds per
    request; the time that the service is asked to wait comes on top.

    A request whose connection fails is sent up to five times within 1.5 seconds, then Unreachable is raised.
    A request refused with a time to retry (429, 503 with `Retry-After`) is sent again at that time. The limit is the
    method's `timeout` if given, else the client's.
    """

    def __init__(self, url: str | None = None, api_key: str | None = None, *, timeout: float = 30.0) -> None:
        self._exchange = Exchange(url, api_key, timeout, partial(ResultFile, self._fetch))
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

        `params` holds further fields, also any that is named like an argument of this method. `shards` is in how many
        parts several workers may compute the job, with the bytes of one worker; "auto" cuts it where that is quicker.

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
                return self._send(run)
            job = self._send(self._exchange.submit(operation, options, params, fields, idempotency_key))
            return self.result(job, timeout, progress)
        except JobTimeout as late:
            if on_timeout == "cancel":
                try:
                    late.end(self.cancel(late.job))
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
        shards: Shards = "auto",
        idempotency_key: str | None = None,
        params: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Job:
        """Submit a job to the service and return at once.

        The service makes one job of all calls with the same `idempotency_key`. It keeps the key for a day, or for ever
        if the job charges a privacy budget. Without an `idempotency_key` each call makes its own job.
        """
        options = Options(backend, priority, seed, deadline_s, result_ttl_s, shards)
        steps = self._exchange.submit(operation, options, params, fields, idempotency_key, keep_labels=True)
        return self._own(self._send(steps))

    @overload
    def run_many(
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
    def run_many(
        self,
        calls: Iterable[Call],
        *,
        timeout: float | None = None,
        on_timeout: OnTimeout = "leave",
        progress: ManyProgress | None = None,
        idempotency_key: str | None = None,
        return_exceptions: Literal[True],
    ) -> list[Result | JobFailed]: ...

    def run_many(
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

            client.run_many([Call("rsi", close=prices, period=period) for period in range(5, 55)])

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
            results = self._send(steps)
        except JobTimeout as late:
            if on_timeout == "cancel":
                try:
                    late.unfinished = [self.cancel(job) for job in late.unfinished]
                    late.end(late.unfinished[0])
                except WarpdeskError as why:
                    late.add_note(f"Not all jobs were canceled: {why}")
            raise
        for failed in results:
            if isinstance(failed, JobFailed):
                failed.job = self._own(failed.job)
        return results if return_exceptions else all_succeeded(results)

    def submit_many(self, calls: Iterable[Call], *, idempotency_key: str | None = None) -> Sequence[Job]:
        """Submit up to 1,000 jobs to the service, all or none, and return them at once, in order. `idempotency_key` is
        of all together."""
        return [self._own(job) for job in self._send(self._exchange.submit_many([*calls], idempotency_key))]

    def job(self, job: AnyJob) -> Job:
        """Fetch a job's current state from the service."""
        return self._own(self._send(self._exchange.job(job)))

    def wait(self, job: AnyJob, timeout: float | None = None, progress: Progress | None = None) -> Job:
        """Wait until the service says that the job has ended, in success or not, and return it; JobTimeout after
        `timeout` seconds."""
        self._report(job, timeout, progress)
        return self._own(self._send(self._exchange.wait(job, deadline_of(timeout))))

    def result(self, job: AnyJob, timeout: float | None = None, progress: Progress | None = None) -> Result:
        """Wait for a job and fetch its result from the service."""
        self._report(job, timeout, progress)
        return self._send(self._exchange.result(job, deadline_of(timeout)))

    def events(self, job: AnyJob, timeout: float | None = None) -> Iterator[JobEvent]:
        """Iterate over a job's events from the service, past and future, in order, until its end; JobTimeout after
        `timeout` seconds.

        A lost connection is opened again, and no event is missed or repeated.
        """
        for event in self._events(job, timeout):
            assert isinstance(event, JobEvent)  # noqa: S101 (of one job nothing is lost)
            yield event

    def follow(self, timeout: float | None = None) -> Iterator[JobEvent | Gap]:
        """Iterate over what happens to any job of the API key from now on, without end; TimeoutError after `timeout`
        seconds.

        A lost connection is opened again, and no event is repeated. A `Gap` says that events were missed which the
        service no longer has: list the jobs then.
        """
        return self._events(None, timeout)

    def _events(self, job: AnyJob | None, timeout: float | None) -> Iterator[JobEvent | Gap]:
        reading = Reading(self._exchange, job, deadline_of(timeout))
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
        """Ask the service to cancel a queued or running job, and return its state after that. A job that has ended is
        not changed."""
        return self._own(self._send(self._exchange.cancel(job)))

    def pause(self, job: AnyJob) -> Job:
        """Ask the service to pause a task, and return its state after that: `paused`, or `running` until the step that
        it is in has ended.

        Raises RequestRefused for a job that is no task.
        """
        return self._own(self._send(self._exchange.pause(job)))

    def resume(self, job: AnyJob) -> Job:
        """Ask the service to go on with a paused task from its latest checkpoint, and return its state after that."""
        return self._own(self._send(self._exchange.resume(job)))

    def steps(self, job: AnyJob, after: int = 0) -> Sequence[TaskStep]:
        """Fetch from the service the numbers that a task has reported of its steps after that one, oldest first."""
        return self._send(self._exchange.steps(job, after))

    def delete(self, job: AnyJob) -> None:
        """Ask the service to erase a job's inputs and result. A queued or running job is canceled first."""
        self._send(self._exchange.delete(job))

    def list(self, limit: int | None = None) -> Iterator[Job]:
        """Iterate over the API key's jobs at the service, newest first, all or the first `limit`. Pages are fetched as
        needed."""
        place: Place | None = Place(None, limit)
        while place is not None:
            jobs, place = self._send(self._exchange.page(place))
            yield from map(self._own, jobs)

    def call(self, method: str, path: str, *, json: Any = None) -> Any:
        """Send a request to any route of the service, such as `("GET", "/v1/queue")`, and return its JSON; None where
        there is none."""
        return json_of(self._send(self._exchange.ask(method, path, json=json)))

    def upload(self, array: ArrayLike | Path, *, columns: Sequence[str] = ()) -> ArrayDescription:
        """Upload an array to the service, or the content of an .npy or .csv file, for jobs to use by its id.

        A frame is uploaded with its rows along the last axis; jobs that are given what this returns have its labels.
        `columns` names the columns of a .csv file to keep, in the order wanted; without it all are kept. One column has
        the shape (rows,), several (columns, rows). Raises ValueError if the input is not a .csv file.
        """
        return self._send(self._exchange.upload(array, columns))

    def download(self, array: ArrayDescription | str) -> Any:
        """Download a stored array from the service as NumPy, or as the frame that `upload` was given for it."""
        return self._send(self._exchange.download(array))

    def create_dataset(
        self, name: str, *, columns: Mapping[str, str], assets: Sequence[str] = ()
    ) -> DatasetDescription:
        """Make a dataset at the service: columns with their dtypes ("float64", "float32"), and the first assets.

        One that is there with the same columns and assets is returned as it is. Raises WarpdeskError if it is there
        with others.
        """
        return self._send(self._exchange.create_dataset(name, columns, assets))

    def append_rows(
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
        return self._send(self._exchange.append_rows(name, times, columns, assets, correct=correct))

    def read_rows(
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
        return self._send(self._exchange.read_rows(Dataset(name, column, start, stop, assets, as_of)))

    def datasets(self) -> Sequence[DatasetSummary]:
        """Fetch the list of the API key's datasets from the service, by name."""
        return self._send(self._exchange.datasets())

    def dataset(self, name: str) -> DatasetDescription:
        """Fetch the description of a dataset from the service: columns, assets, first and last time, version, bytes."""
        return self._send(self._exchange.dataset(name))

    def delete_dataset(self, name: str) -> None:
        """Ask the service to delete a dataset with all versions. Jobs that read it go on."""
        self._send(self._exchange.delete_dataset(name))

    def operations(self) -> dict[str, OperationDescription]:
        """Fetch the list of operations that the service can compute."""
        return self._send(self._exchange.operations())

    def create_budget(
        self, name: str, *, dataset: str, accountant: Accountant, neighbouring: Neighbouring, **more: Any
    ) -> Budget:
        """Ask the service to open a dataset's privacy budget. Needs an API key with the scope `admin`.

        Its total is epsilon= (pure), epsilon= and delta= (approx) or rho= (zcdp), each a decimal string. The
        lists charge_keys= and arrays= say which keys may charge it, and for which arrays. Raises WarpdeskError if the
        dataset has an open budget.
        """
        wanted = NewBudget(name=name, dataset=dataset, accountant=accountant, neighbouring=neighbouring, **more)
        return self._send(self._exchange.create_budget(wanted))

    def budget(self, budget: Budget | str) -> Budget:
        """Fetch a privacy budget from the service: exact decimals of what was spent and what remains, and the head of
        its hash chain."""
        return self._send(self._exchange.budget(budget))

    def secagg_round(self, **fields: Unpack[AskedRound]) -> Round:
        """Ask the service to create a secure aggregation round that sums `clients` vectors (dimension,). Each client
        needs one token.

        A client takes part with `warpdesk.secagg`. Raises WarpdeskError, for example if the sum could overflow.
        """
        return self._send(self._exchange.secagg_round(fields))

    def secagg_result(self, made: Round | str, timeout: float | None = None) -> RoundResult:
        """Wait for the end of a secure aggregation round and fetch its sum from the service; RoundTimeout after
        `timeout` seconds.

        The round must be one of this API key. Raises WarpdeskError with the reason if the round was aborted.
        """
        return self._send(self._exchange.secagg_result(made, deadline_of(timeout)))

    def __repr__(self) -> str:
        return f"Client({self._exchange.url!r})"

    def close(self) -> None:
        """Close the client's connections to the service."""
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
        own = Job.model_construct(**dict(job))
        own._client = self
        own._labels = labels_with(job)
        return own

    def _fetch(self, file: FileReference, body: FileBody) -> None:
        """Fetch a file of a result from the service, for the file itself."""
        self._send(self._exchange.fetch(file, body))

    def _send(self, steps: Steps[T]) -> T:
        try:
            return send(self._http, steps)
        except (JobTimeout, JobFailed) as error:
            error.job = error.job if isinstance(error.job, str) else self._own(error.job)
            if isinstance(error, JobTimeout):
                error.unfinished = [self._own(job) for job in error.unfinished]
            raise


def send(http: httpx.Client, steps: Steps[T]) -> T:
    """Send the client's requests of an exchange over HTTP, and return the exchange's result."""
    try:
        request = next(steps)
        while True:
            time.sleep(request.extensions[PAUSE])
            try:
                response = http.send(request, stream=True)
                with closing(response):
                    if body := body_of(request, response):
                        for piece in response.iter_raw():
                            body.take(piece)
                        response.extensions[BODY] = body
                    else:
                        response.read()
            except httpx.TransportError as error:
                request = steps.throw(error)
            else:
                request = steps.send(response)
    except StopIteration as end:
        return end.value
