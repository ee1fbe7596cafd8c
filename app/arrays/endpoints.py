"""Routes of arrays: upload, list, download and delete."""

import asyncio
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Query, Request, Response

from warpdesk import models
from warpdesk_server.app.access.auth import Reader, Submitter
from warpdesk_server.app.access.keys import Key
from warpdesk_server.app.arrays import csv_upload, schemas, storage
from warpdesk_server.app.arrays.npy_upload import NpyUpload
from warpdesk_server.app.http import bodies, downloads
from warpdesk_server.app.kit import durability, errors, limits
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.schemas import moment
from warpdesk_server.app.services import Services, ServicesDep
from warpdesk_server.privacy.database import DatabaseUnavailable
from warpdesk_server.workers.store.npy import MAX_HEADER
from warpdesk_server.workers.store.protocol import StoredArray
from warpdesk_server.workers.store.usage import StoreFull

router = APIRouter(tags=["arrays"])

JSON, NPY, CSV = "application/json", "application/x-npy", "text/csv"

# Seconds that a list of arrays waits for the ledger.
_PATIENCE = 2.0

_CURSOR = r"^[0-9]{1,12}-[0-9a-f]{64}$"
_CALLER = ("unauthorized", "missing-scope", "foreign-host")
_BINARY = {"schema": {"type": "string", "format": "binary"}}


@router.put(
    "/v1/arrays",
    summary="Upload an array",
    status_code=201,
    response_model=models.ArrayDescription,
    responses={
        201: {
            "headers": {"Location": {"description": "The array", "schema": {"type": "string"}}, **durability.DOCUMENTED}
        },
        **errors.documented(
            *_CALLER, "storage-full", "disconnected", "body-too-large", "array-too-large", "unsupported-media-type",
            "malformed-array", "malformed-csv", "invalid-request", "rate-limited", "storage-quota",
        ),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                NPY: _BINARY,
                CSV: {"schema": {"type": "string"}, "example": "Date,Close\n2024-01-02,4742.83\n2024-01-03,4704.81\n"},
            },
        }
    },
)  # fmt: skip
async def upload_array(
    request: Request,
    caller: Submitter,
    services: ServicesDep,
    columns: Annotated[
        list[str] | None,
        Query(description="CSV only: names in the order wanted, separated by commas or repeated", examples=[["Close"]]),
    ] = None,
) -> Response:
    """`application/x-npy` (dtypes float64, float32, int64, int32, uint64, uint32, uint8; never pickled objects) is
    stored as it comes. `text/csv` becomes float64: one column of shape (rows,), several of shape (columns, rows); the
    first row may be a header; an empty cell is NaN. The same content gives the same id, and another key cannot use or
    guess it."""
    services.submission_rate.take(caller.id)
    media_type = bodies.require_media_type(request, NPY, CSV)
    if media_type == NPY and columns is not None:
        sentence = f"columns is for CSV; this body is {NPY}"
        raise errors.refuse_at("invalid-request", "/query/columns", sentence)
    with storage.refused():
        if media_type == CSV:
            stored = await _csv(request, caller, services, columns)
        else:
            stored = await _npy(request, caller, services)
    durable = durability.of_array(services.admission.durability)
    headers = {"Location": f"/v1/arrays/{stored.id}", durability.HEADER: durable}
    return Response(view(stored).model_dump_json(), 201, headers, JSON)


async def _csv(request: Request, caller: Key, services: Services, columns: list[str] | None) -> StoredArray:
    chosen = [name.strip() for name in ",".join(columns or ()).split(",") if name.strip()]

    limit = min(services.settings.max_csv, services.settings.max_array)

    def keep(body: bytes) -> StoredArray:
        upload = _npy_upload(services, caller, None)
        try:
            stored = csv_upload.from_csv(body, chosen, limit, upload)
        finally:
            upload.discard()
        services.allow(caller.id, stored.id)
        return stored

    with bodies.room(request, limit) as share:
        body = await bodies.read(request, limit, share)
        async with AsyncExitStack() as place:
            if not csv_upload.is_small_csv(body):
                await _wait_for(place, services, caller)
            return await anyio.to_thread.run_sync(keep, body)


async def _wait_for(place: AsyncExitStack, services: Services, caller: Key) -> None:
    """Wait for a turn among the CSV uploads that are parsed, for a limited time. The turn lasts until the stack is
    left."""
    try:
        with anyio.fail_after(limits.CSV_WAIT):
            await place.enter_async_context(services.csvs.take(caller.id))
    except TimeoutError:
        sentence = (
            f"CSV files: {limits.CSV_PER_KEY} of one key and {limits.CSV_IN_ALL} of all are read at once; "
            f"this one waited {limits.CSV_WAIT:g} seconds for its turn"
        )
        code = "share-used-up" if services.csvs.present[caller.id] else "busy"
        raise Refusal(code, sentence, headers={"Retry-After": "1"}) from None


async def _npy(request: Request, caller: Key, services: Services) -> StoredArray:
    """Check and hash each piece of an .npy upload as it arrives, while a thread writes the pieces before it.

    The computing is done here, in the event loop: some 200 microseconds for a piece of 1 MiB. The processor has the
    bytes at hand now. Each step of a thread beside it costs two hand-overs of the interpreter's lock.
    """
    limit = services.settings.max_array + MAX_HEADER
    bodies.require_length(request, limit)
    incoming = _npy_upload(services, caller, bodies.declared_length(request))
    thread: Future[Any] | None = None
    share = services.unwritten.take(caller.id, 0)
    try:
        received = waiting = 0
        async for piece in request.stream():
            received += len(piece)
            if received > limit:
                raise Refusal("body-too-large", f"The body is over the limit of {limit} bytes")
            if incoming.end is not None and received > incoming.end:
                raise incoming.overlong()
            incoming.take(piece)
            size = max(len(piece), limits.PIECE)
            waiting += size
            crowded = not share.fits(size)  # then nothing waits
            if not crowded and (
                waiting < limits.UPLOAD_WRITTEN_AT_ONCE
                or (thread and waiting < limits.UPLOAD_BACKLOG and not thread.done())
            ):
                continue
            if thread is not None:
                await _done(thread)
            thread = services.threads.submit(incoming.flush)
            if crowded:
                await _done(thread)
                share.close()
            else:
                share.shrink(share.amount - waiting)
            waiting = 0
        thread = services.threads.submit(_finish, incoming, thread, services, caller)
        stored: StoredArray = await _done(thread)
    except BaseException:
        if thread is not None:
            with suppress(Exception):  # the first error is the one that is answered
                await _done(thread)  # what the thread writes must be deleted after it
        await anyio.to_thread.run_sync(incoming.discard)
        raise
    finally:
        share.close()
    return stored


def _npy_upload(services: Services, caller: Key, length: int | None) -> NpyUpload:
    settings = services.settings
    return NpyUpload(
        lambda dtype, shape: services.store.writer(caller.id, dtype, shape, settings.array_ttl),
        settings.max_array,
        length,
    )


def _finish(incoming: NpyUpload, flushing: "Future[None] | None", services: Services, caller: Key) -> StoredArray:
    stored = incoming.finish(flushing)
    services.allow(caller.id, stored.id)
    return stored


async def _done(thread: "Future[Any]") -> Any:
    """The return value of a thread that writes an .npy upload. Canceling the wait does not cancel the thread, as
    threads cannot be interrupted."""
    waiting = asyncio.wrap_future(thread)
    await asyncio.wait([waiting])
    return waiting.result()


@router.get(
    "/v1/arrays",
    summary="List your arrays, newest first",
    response_model=schemas.ArrayPage,
    responses=errors.documented(*_CALLER, "invalid-request", "storage-full"),
)
async def list_arrays(
    caller: Reader,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="From `next` of the page before", pattern=_CURSOR)] = None,
) -> Response:
    """With the bytes that the key stores and may store: its arrays, the results of its jobs, and its rounds."""
    before = None
    if cursor is not None:
        created_at, _, digits = cursor.partition("-")
        before = float(created_at), f"blake3:{digits}"
    with storage.refused():
        found = list(await anyio.to_thread.run_sync(services.store.arrays, caller.id, limit + 1, before))
    stored_bytes, max_stored_bytes = services.store.stored(caller.id)
    round_bytes = None
    with anyio.move_on_after(_PATIENCE), suppress(DatabaseUnavailable):  # arrays can be listed without the ledger
        round_bytes = await services.ledger_threads.run(caller.id, lambda: services.rounds.live_bytes(caller.id))
    last = found[limit - 1] if len(found) > limit else None
    page = schemas.ArrayPage(
        arrays=[view(stored) for _, stored in found[:limit]],
        next=None if last is None else f"/v1/arrays?limit={limit}&cursor={last[0]:.0f}-{last[1].id[7:]}",
        stored_bytes=stored_bytes,
        max_stored_bytes=max_stored_bytes,
        round_bytes=round_bytes,
        max_round_bytes=services.settings.round_bytes_per_key,
    )
    headers = {"Link": f'<{page.next}>; rel="next"'} if page.next else {}
    return Response(page.model_dump_json(), 200, headers, JSON)


_FOUND: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "What is known of the array, or with `Accept: application/x-npy` the array itself",
        "content": {NPY: _BINARY},
    },
    **downloads.RANGED,
    **errors.documented(*_CALLER, "unknown-array", "not-acceptable"),
}  # fmt: skip


@router.get(
    "/v1/arrays/{array_id}",
    summary="Look at an array",
    response_model=models.ArrayDescription,
    responses=_FOUND,
    openapi_extra=downloads.RANGE,
)
async def get_array(array_id: str, request: Request, caller: Reader, services: ServicesDep) -> Response:
    media_type = bodies.negotiate(request, JSON, NPY)
    stored = await anyio.to_thread.run_sync(_own, services, caller, array_id)
    if media_type == NPY:
        headers = {"ETag": f'"{stored.id}"', "Vary": "Accept"}  # the id is that of the content
        try:
            return await downloads.download(request, services.store.path(caller.id, stored.id), headers, NPY)
        except FileNotFoundError:
            raise _unknown(array_id) from None
    return Response(view(stored).model_dump_json(), 200, {"Vary": "Accept"}, JSON)


router.add_api_route(
    "/v1/arrays/{array_id}",
    get_array,
    methods=["HEAD"],
    summary="Ask whether an array is there",
    name="head_array",
    response_class=Response,
    responses={200: {"description": "It is"}, **errors.documented(*_CALLER, "unknown-array", "not-acceptable")},
)


@router.delete(
    "/v1/arrays/{array_id}",
    summary="Delete an array",
    status_code=204,
    response_class=Response,
    responses={
        204: {"description": "Deleted"},
        **errors.documented(*_CALLER, "unknown-array", "array-in-use", "queue-unavailable"),
    },
)
async def delete_array(array_id: str, caller: Submitter, services: ServicesDep) -> Response:
    """While Redis is away an array is deleted where it is certain that no job reads it."""
    stored = await anyio.to_thread.run_sync(_own, services, caller, array_id)
    try:
        unread = await services.queue(lambda _: services.delete_unread(caller.id, stored.id))
    except Refusal as refusal:
        unread = await anyio.to_thread.run_sync(
            lambda: services.store.delete(caller.id, stored.id, lambda: services.store.unread(caller.id, stored.id))
        )
        if not unread:
            sentence = f"{refusal.detail}, and a job that may not have ended reads {stored.id}"
            raise Refusal(refusal.code, sentence, headers=refusal.headers) from None
    if not unread:
        raise Refusal("array-in-use", f"A job that is not done, or was given up, reads {stored.id}; erase it or wait")
    with suppress(StoreFull):  # the room is there for the caller's next upload
        await anyio.to_thread.run_sync(services.store.sync)
    return Response(status_code=204)


def _own(services: Services, caller: Key, array_id: str) -> StoredArray:
    stored = services.store.find(caller.id, array_id)
    if stored is None:
        raise _unknown(array_id)
    return stored


def _unknown(array_id: str) -> Refusal:
    return Refusal("unknown-array", f"There is no array {array_id[:80]!r}")


def view(stored: StoredArray) -> models.ArrayDescription:
    info = stored.info
    # Whole seconds: an output becomes an array as a private job ends.
    created_at, expires_at = (moment(float(int(at))) for at in (stored.created_at, stored.expires_at))
    assert created_at is not None  # noqa: S101
    assert expires_at is not None  # noqa: S101
    return models.ArrayDescription(
        id=stored.id,
        dtype=info.dtype,
        shape=list(info.shape),
        has_nan=info.has_nan,
        has_inf=info.has_inf,
        bytes=info.nbytes,
        created_at=created_at,
        expires_at=expires_at,
    )
