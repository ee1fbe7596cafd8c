"""Routes for remote workers: they read the inputs of the jobs they run, and send the results.

Their keys have the scope `worker` and own nothing. A worker may read and write what belongs to a running attempt: it
names the attempt and shows the token of its claim, which no other worker has. This is a contract between two processes
of one release, and no part of the OpenAPI document. The other end is `workers/store/remote`.
"""

import json
import logging
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError

from warpdesk_server.app.access.auth import Worker
from warpdesk_server.app.arrays import storage
from warpdesk_server.app.http import bodies, downloads
from warpdesk_server.app.http.observe import after_private
from warpdesk_server.app.jobs.results import erase_secrets
from warpdesk_server.app.kit import limits
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.remote import attempts, incoming
from warpdesk_server.app.services import Services, ServicesDep
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.workers.queue.protocol import (
    CLAIM,
    SKIP,
    SentInputs,
    WantedInputs,
)
from warpdesk_server.workers.queue.records import JobRecord
from warpdesk_server.workers.store.checkpoints import partial_name

log = logging.getLogger("warpdesk.api")

router = APIRouter(prefix="/v1/worker", include_in_schema=False)

NPY, RESULTS = "application/x-npy", "application/octet-stream"

_CHECKPOINT = re.compile(r"[0-9]{1,9}\.[0-9]{1,15}")
_PIECE = 256 << 10  # of inputs: what the connection holds of them counts as sent


@router.get("")
async def greet(_: Worker, services: ServicesDep) -> Response:
    """Greet a remote worker whose key is valid. The header `Warpdesk-Version` names the service's release."""
    if not services.store.records_signed:
        raise Refusal("queue-unavailable", "Jobs that an earlier release queued are not signed yet")
    return Response(status_code=204, headers={"Warpdesk-Version": version("warpdesk")})


@router.get("/inputs/{attempt}/{name}")
async def read_input(attempt: str, name: str, request: Request, _: Worker, services: ServicesDep) -> Response:
    """Send an input of a running attempt as an .npy file. The header `Warpdesk-Array` describes the array."""
    found = await _running(services, attempt, request)
    owner, array_id = _place(found, name)
    gone = Refusal("unknown-array", f"The job has no input {name[:64]!r}, or it was erased")
    info = await anyio.to_thread.run_sync(_input_info, services, found, name)
    if info is None:
        raise gone
    headers = {"ETag": f'"{array_id}"', "Warpdesk-Array": json.dumps(asdict(info))}
    try:
        return await downloads.download(request, services.store.path(owner, array_id), headers, NPY)
    except FileNotFoundError:
        raise gone from None


@router.post("/inputs")
async def read_inputs(request: Request, caller: Worker, services: ServicesDep) -> Response:
    """Small inputs of attempts that run, in one answer: a length in four bytes, a SentInputs, then the .npy files that
    it tells of. What it tells nothing of is to be asked for alone."""
    try:
        with bodies.room(request, limits.WANTED, services.for_workers) as share:
            request_body = WantedInputs.model_validate_json(await bodies.read(request, limits.WANTED, share))
    except ValidationError as error:
        raise Refusal("invalid-request", f"The list of inputs is malformed in {error.error_count()} places") from None
    wanted = request_body.inputs
    records = await attempts.claimed(
        services, {attempt: request_body.claims.get(attempt, "") for attempt, _name in wanted}
    )

    share = services.for_workers.take(caller.id, limits.INPUTS_AT_ONCE)
    request.state.shares.append(share)

    def read() -> list[bytes]:
        infos, files, room = list[ArrayInfo | None](), list[bytes](), limits.INPUTS_AT_ONCE
        for attempt, name in wanted:
            content, found = None, records[attempt]
            if isinstance(found, Refusal):
                infos.append(None)
                continue
            info = _input_info(services, found, name)
            if info is not None and info.nbytes <= room:
                with suppress(FileNotFoundError):
                    content = services.store.path(*_place(found, name)).read_bytes()
                    files.append(content)
                    room -= len(content)
            infos.append(info if content is not None else None)
        head = SentInputs(arrays=tuple(infos)).model_dump_json().encode()
        return [len(head).to_bytes(4, "big") + head, *files]

    content = await anyio.to_thread.run_sync(read)
    length = sum(map(len, content))
    share.shrink(max(0, limits.INPUTS_AT_ONCE - length))
    return StreamingResponse(_pieces(content), headers={"Content-Length": str(length)}, media_type=RESULTS)


@router.post("/results")
async def take_results(request: Request, caller: Worker, services: ServicesDep) -> dict[str, dict[str, dict[str, str]]]:
    """Take what attempts that run have written: a length in four bytes, a SentResults, then the files in its order.

    The answer comes once they are kept as surely as everything else, and names those that are not, with a problem each.
    The first whole result of an attempt stays: what it sends again is dropped, since the first may be committed by now.
    """
    bodies.require_media_type(request, RESULTS)
    body = incoming.Pieces(request.stream())
    documents, unwritten = services.for_workers.take(caller.id, 0), services.unwritten.take(caller.id, 0)
    request.state.shares += [documents, unwritten]
    sent = await incoming.read_manifest(body, services.settings.max_job_bytes, documents)
    claims = {result.name: result.claim for result in sent.results}
    records = await attempts.claimed(services, claims)
    after_private.set(any(isinstance(found, JobRecord) and found.request.private for found in records.values()))
    results = list[incoming.Incoming]()
    try:
        await anyio.to_thread.run_sync(incoming.begin, services, sent, records, results)
        await incoming.receive(body, results, unwritten)
        await body.end()
        moved = await anyio.to_thread.run_sync(incoming.keep, services, results)
    finally:
        await anyio.to_thread.run_sync(incoming.discard, results)
    refused = {result.name: result.refusal for result in results if result.refusal is not None}
    after = await attempts.records_of(services, claims)
    late = {
        name: found
        for name, token in claims.items()
        if isinstance(found := attempts.running(name, after[name], token), Refusal)
    }
    # Canceled or erased meanwhile: the outcome will be refused, and nobody would ask for this again. A result that
    # another request brought is not this one's to delete.
    unwanted = [name for name in late.keys() & moved if attempts.is_unwanted(name, after[name])]
    await anyio.to_thread.run_sync(incoming.delete, services, unwanted)
    return {"refused": {name: {"code": why.code, "detail": why.detail} for name, why in {**late, **refused}.items()}}


@router.put("/checkpoints/{attempt}/{name}")
async def take_checkpoint(attempt: str, name: str, request: Request, caller: Worker, services: ServicesDep) -> Response:
    """Take a checkpoint of a task from the attempt that runs it, or the arrays of a shard, and answer once it is kept:
    a checkpoint as surely as a result, what can be computed again as a whole file."""
    record = await _running(services, attempt, request)
    most, number = record.request.checkpoint_bytes, attempts.attempt_named(attempt)[1]
    own = name.startswith(f"{number}.") if (shard := record.request.shard) is None else name == partial_name(shard)
    if not _CHECKPOINT.fullmatch(name) or not own:
        raise Refusal("invalid-request", f"{name[:40]!r} is not the name of a checkpoint of this attempt")
    bodies.require_length(request, most)
    with storage.refused():
        services.store.require_room(2 * most)  # it is copied once
    with tempfile.TemporaryFile(dir=services.settings.store_directory) as file:
        size = 0
        async for piece in request.stream():
            size += len(piece)
            if size > most:
                raise Refusal("body-too-large", f"The job declares {most} bytes at most")
            with services.unwritten.take(caller.id, len(piece)):
                await anyio.to_thread.run_sync(file.write, piece)
        file.seek(0)
        await _running(services, attempt, request)  # still
        with storage.refused():
            await anyio.to_thread.run_sync(
                services.store.keep_checkpoint, attempt, name, partial(shutil.copyfileobj, file), most, ""
            )
    return Response(status_code=204)


@router.get("/checkpoints/{attempt}/{name}")
async def read_checkpoint(attempt: str, name: str, request: Request, _: Worker, services: ServicesDep) -> Response:
    """Send a checkpoint of a task to the attempt that resumes it, or the arrays of a shard to the attempt that merges
    them. The header SKIP asks for another, if it is bad."""
    skip = {"1": 1, "2": 2}.get(request.headers.get(SKIP, ""), 0)
    record = await _running(services, attempt, request)
    gone = Refusal("unknown-array", f"The job has no checkpoint {name[:40]!r}")
    if not _CHECKPOINT.fullmatch(name):
        raise gone
    found = islice(services.store.checkpoints(record.request.job_id, name, record.attempt, ""), skip, None)
    file = await anyio.to_thread.run_sync(next, found, None)
    if file is None:
        raise gone
    try:
        return await downloads.download(request, Path(file.name), {}, RESULTS)
    except FileNotFoundError:
        raise gone from None


async def _running(services: Services, attempt: str, request: Request) -> JobRecord:
    """The record of an attempt that a remote worker names and runs. Refuses any other."""
    found = (await attempts.claimed(services, {attempt: request.headers.get(CLAIM, "")}))[attempt]
    if isinstance(found, Refusal):
        raise found
    return found


@router.delete("/results/{attempt}")
async def delete_result(attempt: str, request: Request, _: Worker, services: ServicesDep) -> Response:
    """Delete a result that an attempt sent and that is no answer, for the worker that claimed it.

    Results that nobody deletes are swept in time.
    """
    record = (await attempts.records_of(services, [attempt]))[attempt]
    if not attempts.may_delete(attempt, record, request.headers.get(CLAIM, "")):
        raise Refusal("result-committed", f"{attempt} is the answer of its job, or may become it")
    await anyio.to_thread.run_sync(services.store.delete_result, attempt)
    return Response(status_code=204)


@router.delete("/jobs/{job_id}/secrets")
async def delete_secrets(job_id: str, _: Worker, services: ServicesDep) -> Response:
    """Erase the secret inputs of a job that has ended, unless another live job reads them."""
    (record,) = await services.queue(lambda jobs: jobs.checked([job_id]))
    if record is not None and record.state.final:
        await erase_secrets(services, record)
    return Response(status_code=204)


async def _pieces(content: Iterable[bytes]) -> AsyncIterator[memoryview]:
    """The pieces of a download to a remote worker, at most `_PIECE` bytes each."""
    for whole in content:
        for at in range(0, len(whole), _PIECE):
            yield memoryview(whole)[at : at + _PIECE]


def _place(record: JobRecord, name: str) -> tuple[str, str]:
    """The owner and id of an input array that a remote worker asks for; the id is "" if the job has no such input."""
    return record.request.owner, record.request.inputs.get(name, "")


def _input_info(services: Services, record: JobRecord, name: str) -> ArrayInfo | None:
    """The description of an input array for a remote worker; None if it is gone or its content changed since a budget
    was charged.

    A remote worker cannot detect that change. Reads files: call it in a thread.
    """
    owner, array_id = _place(record, name)
    info = services.store.info_of(owner, array_id) if array_id else None
    if info is not None and record.request.charge is not None and not services.store.intact(owner, array_id):
        log.error("%s: the content of an input is not what a budget was charged for", record.request.id)
        return None
    return info
