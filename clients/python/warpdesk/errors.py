"""Exceptions of the client: one class for each way a caller may react."""

from collections.abc import Sequence
from typing import Any

import httpx
from pydantic import ValidationError

from warpdesk.models import ErrorDetail, JobDescription, Problem

REFUSED = 409  # the status of a job's result that never comes


class WarpdeskError(Exception):
    """Base of the client's exceptions: a refused request, no answer, or a failed job.

    `code` is stable and `detail` a sentence. `errors` are the fields at fault. `status` is the HTTP status, 0 without
    an answer.
    """

    def __init__(self, status: int, code: str, detail: str, errors: tuple[ErrorDetail, ...] = ()) -> None:
        super().__init__(_message(detail, f"({code}, HTTP {status})", errors) if status else detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = errors

    def __reduce__(self) -> tuple[Any, ...]:  # so that a pool of processes can hand it on
        return _again, (type(self), self.args, self.__dict__)


def _message(detail: str, about: str, errors: Sequence[ErrorDetail]) -> str:
    """The text of an exception, with each field at fault once."""
    places = [f"{place.pointer}: {place.detail}" for place in errors]
    if len(places) > 1:  # the sentence of the service has them in one line
        return "\n  ".join([f"{len(places)} things are wrong {about}", *places])
    if places and detail == errors[0].detail:
        return f"{places[0]} {about}"
    return "\n  ".join([f"{detail} {about}", *places])


def _again(kind: type[WarpdeskError], args: tuple[Any, ...], state: dict[str, Any]) -> WarpdeskError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class RequestRefused(WarpdeskError):
    """The service answered the client, and refused: the request must change before it is sent again."""


class Unauthorized(RequestRefused):
    """The service refuses the client's API key: it is missing, not valid, or lacks a scope (401, 403)."""


class NotFound(RequestRefused):
    """The service does not have what the client asked for, or no longer (404, 410)."""


class Busy(RequestRefused):
    """The service cannot accept the client's request now (429, 503, 507); the same request may succeed later."""


class Unreachable(WarpdeskError, httpx.TransportError):
    """No service answered the client at the address."""

    def __init__(self, url: str, error: httpx.TransportError) -> None:
        reason = str(error) or type(error).__name__
        WarpdeskError.__init__(self, 0, "unreachable", f"no Warpdesk service answers at {url}: {reason}")


class JobFailed(WarpdeskError):
    """The client's exception for a job that ended without a result: it failed, was canceled or expired. `job` is its
    final state. Of one among several, `place` is its place among them, from 0."""

    def __init__(self, code: str, detail: str, job: JobDescription, place: int | None = None) -> None:
        about = "" if place is None else f"jobs[{place}], {job.operation}: "
        super().__init__(REFUSED, code, f"{about}{detail}")
        self.job = job
        self.place = place


class JobTimeout(WarpdeskError, TimeoutError):
    """A job did not end within the timeout that the client was given. The job goes on, unless its caller cancels it.

    `job` is the job's last known state, or only its id if no state is known. Of several jobs it is the first that did
    not end, and `unfinished` are all of those.
    """

    def __init__(self, job: JobDescription | str, state: str, unfinished: Sequence[JobDescription] = ()) -> None:
        self.job = job
        self.unfinished = unfinished
        name = job if isinstance(job, str) else job.id
        others = f", and {len(unfinished) - 1} others have not ended" if len(unfinished) > 1 else ""
        super().__init__(0, "timeout", f"{name} is still {state}{others}")

    def end(self, job: JobDescription) -> None:
        """Say what became of the job that the client canceled for this timeout: it may have ended by itself."""
        self.job = job
        how = "was canceled" if job.status == "canceled" else f"has {job.status} since"
        self.detail = f"{job.id} had not ended by the timeout, and {how}"
        self.args = (self.detail,)


class RoundTimeout(WarpdeskError, TimeoutError):
    """A secure aggregation round had no sum within the timeout that the client was given. `round` is its id."""

    def __init__(self, round_id: str) -> None:
        self.round = round_id
        super().__init__(0, "timeout", f"{round_id} has no sum yet")


_KINDS = {401: Unauthorized, 403: Unauthorized, 404: NotFound, 410: NotFound, 429: Busy, 503: Busy, 507: Busy}


def checked(response: httpx.Response) -> httpx.Response:
    """Return a successful response of the service; raise the problem document of any other as the client's
    exception."""
    if response.is_success:
        return response
    kind = _KINDS.get(response.status_code, RequestRefused)
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:  # a proxy's page, say
        raise kind(response.status_code, "unexpected-response", response.text[:200]) from None
    raise kind(response.status_code, problem.code, problem.detail, tuple(problem.errors))
