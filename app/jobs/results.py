"""Routes of a job's result: all outputs as JSON, or one output as JSON or .npy."""

import hashlib
import logging
import os
import time
from binascii import b2a_base64
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio.to_thread
import pydantic_core
from fastapi import APIRouter, Request, Response

from warpdesk import models
from warpdesk.arrays import as_json
from warpdesk.models import State
from warpdesk_server.app.access.auth import Reader
from warpdesk_server.app.arrays import ndarray
from warpdesk_server.app.http import bodies, downloads
from warpdesk_server.app.http.direct import DirectRoute
from warpdesk_server.app.jobs.records import own_job, pending, provenance
from warpdesk_server.app.kit import errors
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.services import Services, ServicesDep
from warpdesk_server.workers.queue.protocol import ArrayOutput, FileOutput, ResultDocument, ValueOutput
from warpdesk_server.workers.queue.records import JobRecord

log = logging.getLogger("warpdesk.api")

router = APIRouter(tags=["jobs"], route_class=DirectRoute)

JSON, NPY = "application/json", "application/x-npy"

# Most bytes of a result that is read and serialised on the event loop: that takes about as long as a change of thread.
SMALL = 16 * 1024
# To open a file so soon after it was written waits for no disk: its directory entries are still in memory.
_LATELY = 5.0  # seconds

_NOT_SUCCEEDED = {State.FAILED: "job-failed", State.CANCELED: "job-canceled", State.EXPIRED: "job-expired"}

_RESPONSES: dict[int | str, dict[str, Any]] = {
    202: {
        "model": models.Job,
        "description": "Not done yet",
        "headers": {"Retry-After": {"schema": {"type": "integer"}}},
    },
    304: {"description": "The copy named in If-None-Match is the current one"},
    **errors.documented(
        "unauthorized", "missing-scope", "foreign-host", "unknown-job", "not-acceptable", "job-failed", "job-canceled",
        "job-expired", "result-gone", "queue-unavailable",
    ),
}  # fmt: skip


@router.get(
    "/v1/jobs/{job_id}/result",
    summary="Get the answer of a job",
    response_model=models.Result,
    responses=_RESPONSES,
)
async def get_result(job_id: str, request: Request, caller: Reader, services: ServicesDep) -> Response:
    bodies.negotiate(request, JSON)
    record = await own_job(services, caller, job_id)
    if not record.state.final:
        return pending(services, record, None, {})
    name = available(record)
    tag = _tag(name, "", JSON)
    if _is_current(request, tag):
        return Response(status_code=304, headers={"ETag": tag, "Vary": "Accept"})
    content = await written(services, record, pydantic_core.to_json)
    return Response(content, 200, {"ETag": tag, "Vary": "Accept"}, JSON)


@router.get(
    "/v1/jobs/{job_id}/result/{output}",
    summary="Get one output of a job: as JSON or .npy, or a file",
    response_model=None,
    responses={
        200: {
            "description": "The output",
            "content": {
                JSON: {"schema": {}},
                NPY: {"schema": {"type": "string", "format": "binary"}},
                "*/*": {"schema": {"type": "string", "format": "binary"}},
            },
        },
        **_RESPONSES,
        **downloads.RANGED,
        **errors.documented("unknown-job", "unknown-output"),
    },
    openapi_extra=downloads.RANGE,
)
async def get_output(job_id: str, output: str, request: Request, caller: Reader, services: ServicesDep) -> Response:
    """One output of the job's result. An array of more than 100,000 numbers is available as .npy only, a file as what
    its `media_type` says."""
    record = await own_job(services, caller, job_id)
    if not record.state.final:
        return pending(services, record, None, {})
    name = available(record)
    found = (await anyio.to_thread.run_sync(_document, services, record)).outputs.get(output)
    if found is None:
        raise Refusal("unknown-output", f"{record.request.operation} has no output {output[:64]!r}")
    offered: tuple[str, ...] = (JSON,)
    if isinstance(found, ArrayOutput):  # the same limit of JSON numbers as in the whole result
        offered = (JSON, NPY) if found.info.size <= services.settings.max_result_numbers else (NPY,)
    elif isinstance(found, FileOutput):
        offered = (found.media_type,)
    media_type = bodies.negotiate(request, *offered)
    headers = {"ETag": _tag(name, output, media_type), "Vary": "Accept"}
    if _is_current(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    if isinstance(found, ValueOutput):
        return Response(pydantic_core.to_json(found.value), 200, headers, JSON)
    file = services.store.result(name) / found.file
    if isinstance(found, FileOutput):
        headers["Content-Disposition"] = f'attachment; filename="{found.name}"'  # a browser saves it, and shows nothing
    if media_type == NPY or isinstance(found, FileOutput):
        try:
            return await downloads.download(request, file, headers, media_type)
        except FileNotFoundError:
            raise _outlived() from None
    content = await anyio.to_thread.run_sync(lambda: pydantic_core.to_json(as_json(_load(file))))
    return Response(content, 200, headers, JSON)


def available(record: JobRecord) -> str:
    """The name of the stored result that a route may send for an ended job. Raises a 409 if the job has none, a 410
    if it is gone."""
    code = _NOT_SUCCEEDED.get(record.state)
    if code is not None:
        why = f": {record.error.message}" if record.error is not None else ""
        raise Refusal(code, f"The job is {record.state.value} and has no result{why}")
    if record.erased or record.result is None:
        raise Refusal("result-gone", "The result was erased")
    if record.result_expires_at is not None and record.result_expires_at < time.time():
        raise _outlived()
    return record.result


async def written(services: Services, record: JobRecord, form: Callable[[dict[str, Any]], bytes]) -> bytes:
    """The response with a job's result as bytes, made by `form` from the fields of `models.Result`.

    On the event loop if the job has just ended and its result is small and in the page cache, else in a thread.
    """
    if record.ended_at is not None and abs(time.time() - record.ended_at) < _LATELY:
        with suppress(BlockingIOError):
            return form(rendered(services, record, at_once=True))
    return await anyio.to_thread.run_sync(lambda: form(rendered(services, record)))


def in_base64(numbers: ndarray.Numbers) -> dict[str, Any]:
    """An output of a job that is an array, as a reader of `Prefer: arrays=base64` gets it: its bytes in C order,
    little-endian."""
    data = b2a_base64(ndarray.as_bytes(numbers), newline=False).decode()
    return {"dtype": numbers.dtype.name, "shape": list(numbers.shape), "base64": data}


def rendered(
    services: Services,
    record: JobRecord,
    *,
    at_once: bool = False,
    array: Callable[[ndarray.Numbers], Any] = as_json,
) -> dict[str, Any]:
    """The fields of a job's `models.Result`, as the API sends it. Large outputs become stored arrays of the job's
    owner, and `array` writes the others.

    With `at_once` nothing waits for a disk: BlockingIOError is raised instead.
    """
    name = available(record)
    read = _AtHand(SMALL).read if at_once else Path.read_bytes
    document = _document(services, record, read)
    outputs: dict[str, Any] = {}
    for key, found in document.outputs.items():
        if isinstance(found, FileOutput):
            outputs[key] = found.reference.model_dump()
            continue
        if isinstance(found, ValueOutput):
            outputs[key] = found.value
            continue
        file = services.store.result(name) / found.file
        if found.info.size <= services.settings.max_result_numbers:
            outputs[key] = array(_load(file, read))
            continue
        if at_once:
            raise BlockingIOError
        if services.store.find(record.request.owner, found.id) is None:
            ttl = max(1.0, (record.result_expires_at or 0.0) - (record.ended_at or 0.0))
            try:
                services.store.adopt(record.request.owner, file, found.id, found.info, ttl)
            except FileNotFoundError:
                raise _outlived() from None
            services.allow(record.request.owner, found.id)
        outputs[key] = {"array": found.id, "dtype": found.dtype, "shape": list(found.shape)}
    how = provenance(record)
    assert how is not None  # noqa: S101 - a job that succeeded says how
    if document.steps is not None:
        how = how.model_copy(update={"steps": list(document.steps)})
    labels = record.request.labels
    return {
        "job": record.request.id,
        "operation": record.request.operation,
        "outputs": outputs,
        "provenance": how.model_dump(mode="json"),
        **({"labels": labels} if labels else {}),
    }


def adopted(services: Services, record: JobRecord) -> tuple[str, ...]:
    """The array ids that the API gives a job's large outputs. Reads files: call it in a thread."""
    if record.result is None or record.erased:
        return ()
    try:
        document = _document(services, record)
    except Refusal:
        return ()
    return tuple(found.id for found in document.outputs.values() if isinstance(found, ArrayOutput))


def _document(services: Services, record: JobRecord, read: Callable[[Path], bytes] = Path.read_bytes) -> ResultDocument:
    """The description of a job's result for a route, from its result.json in the store.

    Workers write the job's record, which names the result. So the result of another owner is refused as gone.
    """
    try:
        document = ResultDocument.model_validate_json(read(services.store.result(available(record)) / "result.json"))
    except (FileNotFoundError, ValueError):  # ValueError: not the name of a result, or the file is incomplete
        raise _outlived() from None
    if document.owner != record.request.owner:
        log.error("%s names the result of a job of another key", record.request.id)
        raise _outlived()
    return document


def is_of(services: Services, name: str, owner: str) -> bool:
    """Whether the API may send this stored result as the owner's. Reads a file: call it in a thread.

    An incomplete result belongs to nobody: the store's sweep removes it.
    """
    try:
        document = ResultDocument.model_validate_json((services.store.result(name) / "result.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return document.owner == owner


def _load(file: Path, read: Callable[[Path], bytes] = Path.read_bytes) -> ndarray.Numbers:
    try:
        return ndarray.from_file(read(file))
    except FileNotFoundError:
        raise _outlived() from None


class _AtHand:
    """The API's reader of a job's result files in the page cache, for `room` bytes in all. It raises BlockingIOError
    for all others."""

    def __init__(self, room: int) -> None:
        self._room = room

    def read(self, file: Path) -> bytes:
        try:
            # Without O_NOATIME the first read updates the access time, which writes to the file system's journal.
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME)
        except PermissionError:  # the file is another user's
            raise BlockingIOError from None
        try:
            size = os.fstat(descriptor).st_size
            self._room -= size
            if self._room < 0:
                raise BlockingIOError
            data = bytearray(size)
            if os.preadv(descriptor, [data], 0, os.RWF_NOWAIT) < size:
                raise BlockingIOError
        except OSError as error:  # some file systems, such as tmpfs, do not know the flag
            raise BlockingIOError from error
        finally:
            os.close(descriptor)
        return bytes(data)


def _outlived() -> Refusal:
    return Refusal("result-gone", "The result has expired or was erased")


def _tag(name: str, output: str, media_type: str) -> str:
    """The ETag of a job's result, a strong validator: results never change, so name and media type identify the
    bytes."""
    return f'"{hashlib.sha256(f"1|{name}|{output}|{media_type}".encode()).hexdigest()[:32]}"'


def _is_current(request: Request, tag: str) -> bool:
    """Whether the client's copy of a job's result is current: If-None-Match (RFC 9110 section 13.1.2), compared
    weakly."""
    header = ", ".join(request.headers.getlist("if-none-match"))
    return header.strip() == "*" or tag in (part.strip().removeprefix("W/") for part in header.split(","))


async def erase_secrets(services: Services, record: JobRecord) -> None:
    """Delete the secret input arrays of an ended job from the API's store, unless another live job reads them."""
    operation = services.operations.get(record.request.operation)
    secrets = [] if operation is None else operation.secrets(record.request.inputs)
    owner, ended_at = record.request.owner, record.ended_at or 0.0

    def left() -> list[str]:
        found = [services.store.find(owner, array) for array in secrets]
        # An array that was uploaded since then is for another job: the worker had already erased this job's.
        return [array.id for array in found if array is not None and array.created_at <= ended_at]

    secrets = await anyio.to_thread.run_sync(left) if secrets else []
    if not secrets:
        return
    try:
        await services.queue(lambda _: [services.delete_unread(owner, array) for array in secrets])
    except Refusal:
        return  # Redis cannot be reached: the arrays still expire
