"""What a client raises: one exception for each thing a caller may do about it."""

from typing import Any

import httpx

from warpdesk.models import ErrorDetail, JobDescription

REFUSED = 409  # the status of a job's result that never comes


class WarpdeskError(Exception):
    """The service refused a request, did not answer, or a job failed.

    `code` is stable, `detail` a sentence, `errors` the places it is about, `status` that of HTTP: 0 without an answer.
    """

    def __init__(self, status: int, code: str, detail: str, errors: tuple[ErrorDetail, ...] = ()) -> None:
        super().__init__(f"{detail} ({code}, HTTP {status})" if status else detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = errors

    def __reduce__(self) -> tuple[Any, ...]:  # so that a pool of processes can hand it on
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[WarpdeskError], args: tuple[Any, ...], state: dict[str, Any]) -> WarpdeskError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class RequestRefused(WarpdeskError):
    """The service answered, and refused: the request must change before it is sent again."""


class Unauthorized(RequestRefused):
    """The API key is missing, not valid, or lacks a scope (401, 403)."""


class NotFound(RequestRefused):
    """There is no such thing, or there is no more (404, 410)."""


class Busy(RequestRefused):
    """The service does not take the request for now (429, 503, 507): the same one may be taken later."""


class Unreachable(WarpdeskError, httpx.TransportError):
    """No service answered at the address."""

    def __init__(self, url: str, error: httpx.TransportError) -> None:
        reason = str(error) or type(error).__name__
        WarpdeskError.__init__(self, 0, "unreachable", f"no Warpdesk service answers at {url}: {reason}")


class JobFailed(WarpdeskError):
    """A job ended without an answer: it failed, was canceled or expired. `job` is how it ended."""

    def __init__(self, code: str, detail: str, job: JobDescription) -> None:
        super().__init__(REFUSED, code, detail)
        self.job = job


class JobTimeout(WarpdeskError, TimeoutError):
    """A job did not end within the time that its caller waits. It goes on, unless its caller cancels it.

    `job` is the job as it was last seen, or its id where nothing more was known.
    """

    def __init__(self, job: JobDescription | str, state: str) -> None:
        self.job = job
        name = job if isinstance(job, str) else job.id
        super().__init__(0, "timeout", f"the job {name} is still {state}")


class RoundTimeout(WarpdeskError, TimeoutError):
    """A round of secure aggregation had no sum within the time that its caller waits. `round` is its id."""

    def __init__(self, round_id: str) -> None:
        self.round = round_id
        super().__init__(0, "timeout", f"{round_id} has no sum yet")


def refused(status: int, code: str, detail: str, errors: tuple[ErrorDetail, ...] = ()) -> RequestRefused:
    """The exception for an answer that is no success."""
    kinds = {401: Unauthorized, 403: Unauthorized, 404: NotFound, 410: NotFound, 429: Busy, 503: Busy, 507: Busy}
    return kinds.get(status, RequestRefused)(status, code, detail, errors)
