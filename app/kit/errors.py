"""The API's errors: every way a request can fail, answered as RFC 9457 problem details with a code and a sentence."""

import errno
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from warpdesk import models
from warpdesk_server.kernels.problems import MOST_LISTED, Problem, problems_of
from warpdesk_server.privacy.database import DatabaseUnavailable
from warpdesk_server.privacy.errors import Refused
from warpdesk_server.privacy.journal import LedgerBehind
from warpdesk_server.privacy.seeds import WrongKey
from warpdesk_server.workers.store.disk import Reserved

log = logging.getLogger("warpdesk.api")

MEDIA_TYPE = "application/problem+json"

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

# code: (status, title, whether the same request may succeed later)
CODES: dict[str, tuple[int, str, bool]] = {
    "malformed-json": (400, "The body is not JSON", False),
    "duplicate-key": (400, "The body names a field twice", False),
    "bad-request": (400, "The request could not be understood", False),
    "idempotency-key-required": (400, "A request that charges a budget needs an Idempotency-Key", False),
    "invalid-idempotency-key": (400, "The Idempotency-Key cannot be used", False),
    "disconnected": (400, "The client disconnected before the body was complete", True),
    "unauthorized": (401, "No valid API key was given", False),
    "unknown-member": (401, "The join token does not belong to this round", False),
    "missing-scope": (403, "The API key lacks the scope this needs", False),
    "foreign-host": (403, "Without API keys only the service's own user on this machine is served", False),
    "not-found": (404, "There is nothing at this path", False),
    "unknown-job": (404, "There is no such job", False),
    "unknown-round": (404, "There is no such round", False),
    "unknown-array": (404, "There is no such array", False),
    "unknown-dataset": (404, "There is no such dataset", False),
    "unknown-output": (404, "The job has no such output", False),
    "method-not-allowed": (405, "This path does not take this method", False),
    "not-acceptable": (406, "None of the accepted media types is available", False),
    "unknown-budget": (404, "There is no such budget", False),
    "unknown-charge": (404, "There is no such charge", False),
    "too-slow": (408, "The request came too slowly", True),
    "budget-exceeded": (409, "The release costs more than the budget has left", False),
    "charge-forbidden": (403, "The budget's rules forbid this key, or one of the inputs", False),
    "budget-closed": (409, "The budget was closed", False),
    "dataset-taken": (409, "The dataset has an open budget", False),
    "dataset-exists": (409, "There is another dataset of this name", False),
    "rows-differ": (409, "The rows would change what the dataset has", False),
    "array-in-use": (409, "A live job reads this array", True),
    "not-a-dead-letter": (409, "The job was not given up", False),
    "not-a-task": (409, "The job is no task: it has no steps", False),
    "inputs-gone": (409, "Inputs of the job were deleted", False),
    "stale-attempt": (409, "The attempt is not the job's current one", False),
    "result-committed": (409, "The result is already the answer of its job", False),
    "job-failed": (409, "The job failed", False),
    "job-canceled": (409, "The job was canceled", False),
    "job-expired": (409, "The job's deadline passed before it was done", False),
    "not-yet": (409, "The round has not reached this phase", True),
    "phase-over": (409, "The round is past this phase", False),
    "already-sent": (409, "The client has sent this before", False),
    "round-aborted": (409, "The round was aborted", False),
    "result-gone": (410, "The result was erased or has expired", False),
    "body-too-large": (413, "The body is larger than the limit", False),
    "array-too-large": (413, "The array is larger than the limit", False),
    "unsupported-media-type": (415, "The body's media type is not accepted here", False),
    "range-not-satisfiable": (416, "The range begins after the end", False),
    "invalid-request": (422, "The request does not fit the operation", False),
    "unknown-operation": (422, "There is no such operation", False),
    "idempotency-key-reused": (422, "The Idempotency-Key belongs to another request", False),
    "not-accountable": (422, "The budget's accountant cannot account for this release", False),
    "job-too-large": (422, "The job needs more memory than one job may", False),
    "malformed-array": (422, "The body is not a valid array of the declared type", False),
    "malformed-result": (422, "The body is not a valid result of the attempt", False),
    "malformed-csv": (422, "The CSV cannot be read as numbers", False),
    "wrong-length": (422, "The content does not have the required length", False),
    "double-reveal": (422, "Both secrets of one client would be revealed", False),
    "forged-share": (422, "The share does not match its commitment", False),
    "not-a-neighbour": (422, "A named client has no part in this step", False),
    "missing-share": (422, "A required client is missing", False),
    "rate-limited": (429, "Too many requests from this key or address", True),
    "share-used-up": (429, "This key or address has used up its share", True),
    "quota-reached": (429, "The API key has too many jobs that are not done", True),
    "too-many-rounds": (429, "The API key has too many live rounds", True),
    "too-many-datasets": (429, "The API key has as many datasets as it may", True),
    "storage-quota": (429, "The API key has used up its storage quota", True),
    "head-too-large": (431, "The request line and headers are larger than the limit", False),
    "internal-error": (500, "The service failed", True),
    "storage-full": (503, "There is no room for more arrays", True),
    "no-gpu-worker": (503, "No GPU worker is alive", True),
    "busy": (503, "The service is too busy to accept this now", True),
    "queue-full": (503, "The queue is full", True),
    "queue-memory": (503, "Redis is nearly out of memory", True),
    "deadline-unreachable": (503, "The queue is too long for the deadline", True),
    "audit-unavailable": (503, "The audit log cannot be written", True),
    "ledger-unavailable": (503, "The database of budgets and rounds cannot be used", True),
    "queue-unavailable": (503, "The queue cannot be reached", True),
    "not-replicated": (503, "No replica of Redis has confirmed it in time", True),
}


# code: headers of an answer to an error of budgets or rounds
_HEADERS: dict[str, Mapping[str, str]] = {
    "unknown-member": {"WWW-Authenticate": 'Bearer realm="warpdesk round"'},
    **{code: {"Retry-After": "60"} for code in ("too-many-rounds", "storage-quota", "storage-full")},
}


class Refusal(Exception):
    """An exception that refuses a request; it becomes the problem document that the caller reads."""

    def __init__(
        self,
        code: str,
        detail: str,
        *problems: Problem,
        headers: Mapping[str, str] | None = None,
        job: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.problems = problems
        self.headers = dict(headers or {})
        self.job = job

    @property
    def status(self) -> int:
        return CODES[self.code][0]


def refuse_at(code: str, pointer: str, detail: str) -> Refusal:
    """A refusal whose problem document points to one place in the request."""
    return Refusal(code, detail, Problem(pointer, detail))


def refusal_of(error: Refused | DatabaseUnavailable, pointer: str | None = None) -> Refusal:
    """Translate an error of privacy budgets or rounds into a refusal with an error code of the API.

    `pointer` is the JSON pointer to the error's own root in this request.
    """
    if isinstance(error, DatabaseUnavailable):
        return ledger_unavailable(reason_of(error))
    sentence = str(error)
    if error.pointer is None:
        return Refusal(error.code, sentence[:1].upper() + sentence[1:], headers=_HEADERS.get(error.code))
    return refuse_at(error.code, pointer or error.pointer, sentence)


def ledger_unavailable(reason: str) -> Refusal:
    log.warning("the database of budgets and rounds cannot be used: %s", reason)
    return Refusal(
        "ledger-unavailable", "The database of budgets and rounds cannot be used", headers={"Retry-After": "5"}
    )


def reason_of(error: Exception) -> str:
    """The reason of an error for the API's log. An unforeseen error is logged by type alone: its text could hold
    anything."""
    return str(error) if isinstance(error, LedgerBehind | WrongKey) else type(error).__name__


def response(refusal: Refusal) -> Response:
    status, title, retryable = CODES[refusal.code]
    problem = models.Problem(
        type=f"/problems/{refusal.code}",
        title=title,
        status=status,
        detail=refusal.detail,
        code=refusal.code,
        retryable=retryable,
        errors=[
            models.ErrorDetail(pointer=problem.pointer, detail=problem.detail)
            for problem in refusal.problems[:MOST_LISTED]
        ],
        job=refusal.job,
    )
    return Response(problem.model_dump_json(exclude_none=True), status, refusal.headers, MEDIA_TYPE)


def escape(part: object) -> str:
    """One token of the JSON pointer of a problem (RFC 6901)."""
    return str(part).replace("~", "~0").replace("/", "~1")


def documented(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer these codes, grouped by status for OpenAPI."""
    by_status: dict[int, list[str]] = {}
    if "body-too-large" in codes:  # any body may come too slowly, or while too many others do
        codes = (*codes, *(code for code in ("too-slow", "share-used-up", "busy") if code not in codes))
    if {"unauthorized", "unknown-member"} & {*codes}:  # as whoever has to be known
        codes = (*codes, *(code for code in ("rate-limited", "share-used-up", "busy") if code not in codes))
    if "queue-unavailable" in codes:  # with durability `replicated`
        codes = (*codes, "not-replicated")
    for code in codes:
        by_status.setdefault(CODES[code][0], []).append(code)
    documents: dict[int | str, dict[str, Any]] = {}
    for status, members in sorted(by_status.items()):
        documents[status] = {
            "description": "; ".join(f"`{code}`: {CODES[code][1]}" for code in members),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        if status in (429, 503):
            documents[status]["headers"] = {
                "Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer"}}
            }
        if status == 416:
            documents[status]["headers"] = {
                "Content-Range": {"description": "`bytes */` and the size", "schema": {"type": "string"}}
            }
        if status == 401:
            documents[status]["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return documents


def body(model: type[BaseModel]) -> dict[str, Any]:
    """The `requestBody` of a route that reads this model by itself; `app.http.document` adds the model."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def install(api: FastAPI) -> None:
    """Give the API one form of error, the problem document, for the framework's own errors too."""

    @api.exception_handler(Refusal)
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)  # noqa: S101
        request.app.state.services.metrics.refused(error.code)
        return response(error)

    @api.exception_handler(HTTPException)
    async def framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101
        headers = dict(error.headers or {})
        if error.status_code == HTTPStatus.NOT_FOUND:
            return response(Refusal("not-found", f"There is nothing at {request.url.path}", headers=headers))
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = ", ".join(_methods(request))
            sentence = f"{request.url.path} does not take {request.method[:40]}; it takes {allowed}"
            return response(Refusal("method-not-allowed", sentence, headers={"Allow": allowed}))
        return response(Refusal("bad-request", str(error.detail), headers=headers))

    @api.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101
        problems, count = problems_of(error.errors())
        return response(Refusal("invalid-request", sentence_of(problems, count), *problems))

    @api.exception_handler(ClientDisconnect)
    async def disconnected(_: Request, __: Exception) -> Response:
        return response(Refusal("disconnected", "The connection closed before the body was complete"))


def _methods(request: Request) -> list[str]:
    """Every method of the path, for the problem of a wrong one (RFC 9110 section 15.5.6). The framework names those
    of the first route alone."""
    return [
        method
        for method in METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in request.app.routes)
    ]


def unforeseen(method: str, path: str, error: Exception) -> Response:
    """Answer an unforeseen error with a problem document: a full disk, too many open files, or a bug. The reason
    goes to the log alone."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        log.error("the disk is full: %s", error.strerror)
        sentence = error.sentence if isinstance(error, Reserved) else "The disk that holds arrays is full"
        return response(Refusal("storage-full", sentence, headers={"Retry-After": "60"}))
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        log.error("no more files can be opened: %s", error.strerror)
        sentence = "The service has reached the system's limit of open files"
        return response(Refusal("busy", sentence, headers={"Retry-After": "1"}))
    log.error("%s %s failed", method, quote(path, "/:"), exc_info=error)  # a path may have a line's end in it
    return response(Refusal("internal-error", "The service failed on this request; its log has the reason"))


def sentence_of(problems: Sequence[Problem], count: int | None = None) -> str:
    """Join validation errors into the one sentence of a problem document. It lists the first of them, or all."""
    count = len(problems) if count is None else count
    if count == 1:
        return problems[0].detail
    lines = [f"{problem.pointer}: {problem.detail}" for problem in problems[:MOST_LISTED]]
    more = [f"and {count - MOST_LISTED} more"] if count > MOST_LISTED else []
    return f"{count} errors: " + "; ".join(lines + more)
