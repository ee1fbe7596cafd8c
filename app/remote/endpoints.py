"""What workers of other hosts ask for: the inputs of the jobs they run, and a place for their results.

Their keys have the scope `worker` and are nobody's: what they may read and write is told by the jobs that run, each by
the attempt that runs and the token of its claim, which only the worker has that claimed it. This is a contract between
two processes of one release (`workers/store/remote.py` is the other end) and no part of the OpenAPI document.
"""

import json
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError

from warpdesk_server.app.access.auth import Worker
from warpdesk_server.app.http import bodies, downloads
from warpdesk_server.app.http.observe import after_private
from warpdesk_server.app.jobs.results import erase_secrets
from warpdesk_server.app.kit import limits
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.limits import Share
from warpdesk_server.app.services import Services, ServicesDep
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.operation import Operation
from warpdesk_server.workers.queue.protocol import (
    CLAIM,
    ArrayOutput,
    JobRequest,
    ResultDocument,
    SentInputs,
    SentResult,
    SentResults,
    State,
    WantedInputs,
)
from warpdesk_server.workers.queue.records import JobRecord
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.incoming import IncomingResult
from warpdesk_server.workers.store.npy_writer import NpyWriter
from warpdesk_server.workers.store.protocol import attempt_of

log = logging.getLogger("warpdesk_server.service.api")

router = APIRouter(prefix="/v1/worker", include_in_schema=False)

NPY, RESULTS = "application/x-npy", "application/octet-stream"

_PIECE = 256 << 10  # of inputs: what the connection holds of them counts as sent


@router.get("")
async def greet(_: Worker) -> Response:
    """The service is there and takes the key; which release it is."""
    return Response(status_code=204, headers={"Warpdesk-Version": version("warpdesk")})


@router.get("/inputs/{attempt}/{name}")
async def read_input(attempt: str, name: str, request: Request, _: Worker, services: ServicesDep) -> Response:
    """An input of an attempt that runs, as an .npy file; what is known of it is in the header `Warpdesk-Array`."""
    found = (await _found(services, {attempt: request.headers.get(CLAIM, "")}))[attempt]
    if isinstance(found, Refusal):
        raise found
    owner, array_id = _place(found, name)
    gone = Refusal("unknown-array", f"The job has no input {name[:64]!r}, or has it no more")
    info = await anyio.to_thread.run_sync(_known, services, found, name)
    if info is None:
        raise gone
    told = {"ETag": f'"{array_id}"', "Warpdesk-Array": json.dumps(asdict(info))}
    try:
        return await downloads.download(request, services.store.path(owner, array_id), told, NPY)
    except FileNotFoundError:
        raise gone from None


@router.post("/inputs")
async def read_inputs(request: Request, caller: Worker, services: ServicesDep) -> Response:
    """Small inputs of attempts that run, in one answer: a length in four bytes, a SentInputs, then the .npy files that
    it tells of. What it tells nothing of is to be asked for alone."""
    try:
        with bodies.room(request, limits.WANTED, services.for_workers) as share:
            asked = WantedInputs.model_validate_json(await bodies.read(request, limits.WANTED, share))
    except ValidationError as error:
        raise Refusal("invalid-request", f"The list of inputs is malformed in {error.error_count()} places") from None
    wanted = asked.inputs
    records = await _found(services, {attempt: asked.claims.get(attempt, "") for attempt, _name in wanted})

    share = services.for_workers.take(caller.id, limits.INPUTS_AT_ONCE)
    request.state.shares.append(share)

    def read() -> list[bytes]:
        told, files, room = list[ArrayInfo | None](), list[bytes](), limits.INPUTS_AT_ONCE
        for attempt, name in wanted:
            content, found = None, records[attempt]
            if isinstance(found, Refusal):
                told.append(None)
                continue
            info = _known(services, found, name)
            if info is not None and info.nbytes <= room:
                with suppress(FileNotFoundError):
                    content = services.store.path(*_place(found, name)).read_bytes()
                    files.append(content)
                    room -= len(content)
            told.append(info if content is not None else None)
        head = SentInputs(arrays=tuple(told)).model_dump_json().encode()
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
    body = _Body(request.stream())
    documents, unwritten = services.for_workers.take(caller.id, 0), services.unwritten.take(caller.id, 0)
    request.state.shares += [documents, unwritten]
    sent = await _manifest(body, services.settings.max_job_bytes, documents)
    claims = {result.name: result.claim for result in sent.results}
    records = await _found(services, claims)
    after_private.set(any(isinstance(found, JobRecord) and found.request.private for found in records.values()))
    incoming = list[_Incoming]()
    try:
        await anyio.to_thread.run_sync(_begin, services, sent, records, incoming)
        await _receive(body, incoming, unwritten)
        await body.end()
        moved = await anyio.to_thread.run_sync(_keep, services, incoming)
    finally:
        await anyio.to_thread.run_sync(_discard, incoming)
    refused = {result.name: result.refusal for result in incoming if result.refusal is not None}
    after = await _records(services, claims)
    late = {
        name: found
        for name, token in claims.items()
        if isinstance(found := _running(name, after[name], token), Refusal)
    }
    # Canceled or erased meanwhile: the outcome will be refused, and nobody would ask for this again. A result that
    # another request brought is not this one's to delete.
    unwanted = [name for name in late.keys() & moved if _is_unwanted(name, after[name])]
    await anyio.to_thread.run_sync(_delete, services, unwanted)
    return {"refused": {name: {"code": why.code, "detail": why.detail} for name, why in {**late, **refused}.items()}}


@router.delete("/results/{attempt}")
async def delete_result(attempt: str, request: Request, _: Worker, services: ServicesDep) -> Response:
    """Delete what an attempt sent that is no answer, for who claimed it. What nobody deletes is swept in time."""
    record = (await _records(services, [attempt]))[attempt]
    if not _is_to_delete(attempt, record, request.headers.get(CLAIM, "")):
        raise Refusal("result-committed", f"{attempt} is an answer, or may be one")
    await anyio.to_thread.run_sync(services.store.delete_result, attempt)
    return Response(status_code=204)


@router.delete("/jobs/{job_id}/secrets")
async def delete_secrets(job_id: str, _: Worker, services: ServicesDep) -> Response:
    """Erase the secret inputs of a job that is done, unless another live job reads them."""
    (record,) = await services.queue(lambda jobs: jobs.checked([job_id]))
    if record is not None and record.state.final:
        await erase_secrets(services, record)
    return Response(status_code=204)


async def _pieces(content: Iterable[bytes]) -> AsyncIterator[memoryview]:
    for whole in content:
        for at in range(0, len(whole), _PIECE):
            yield memoryview(whole)[at : at + _PIECE]


def _place(record: JobRecord, name: str) -> tuple[str, str]:
    """Whose array an input is, and its id; "" where there is no such input."""
    return record.request.owner, record.request.inputs.get(name, "")


def _known(services: Services, record: JobRecord, name: str) -> ArrayInfo | None:
    """What is known of an input; None where it is gone, or is not what a budget was charged for, which a worker of
    another host cannot see. Reads files: call it in a thread."""
    owner, array_id = _place(record, name)
    info = services.store.known(owner, array_id) if array_id else None
    if info is not None and record.request.charge is not None and not services.store.intact(owner, array_id):
        log.error("%s: the content of an input is not what a budget was charged for", record.request.id)
        return None
    return info


def _attempt(name: str) -> tuple[str, int]:
    try:
        return attempt_of(name)
    except ValueError as error:
        raise Refusal("stale-attempt", str(error)) from None


async def _records(services: Services, names: Iterable[str]) -> dict[str, JobRecord | None]:
    """The jobs of these attempts."""
    jobs_of = {name: _attempt(name)[0] for name in names}
    records = await services.queue(lambda jobs: jobs.checked(list(jobs_of.values())))
    return dict(zip(jobs_of, records, strict=True))


def _running(name: str, record: JobRecord | None, token: str) -> JobRecord | Refusal:
    """The job of an attempt, where the attempt is the one that runs, by the claim that has this token.

    Workers may write the record: that it runs is theirs to say, but not what it asks for, nor that what the API has
    ended runs again.
    """
    if record is None or record.state is not State.RUNNING or record.attempt != _attempt(name)[1]:
        return Refusal("stale-attempt", f"{name} is not the attempt that runs")
    if record.closed:
        return Refusal("stale-attempt", f"{name} was canceled, or is past its deadline")
    if not record.is_held_by(token):
        return Refusal("stale-attempt", f"{name} was claimed by another worker")
    return record


async def _found(services: Services, claims: Mapping[str, str]) -> dict[str, JobRecord | Refusal]:
    """The jobs of these attempts, where the attempt is the one that runs and was claimed by who asks."""
    return {name: _running(name, record, claims[name]) for name, record in (await _records(services, claims)).items()}


def _is_to_delete(name: str, record: JobRecord | None, token: str) -> bool:
    """Whether who claimed an attempt, which the token shows, may delete its result: until it is the answer.

    The ledger may give the next attempt that of an earlier one, where a budget was charged for it.
    """
    return (
        record is not None
        and record.request.charge is None
        and record.attempt == _attempt(name)[1]
        and record.state is not State.SUCCEEDED
        and record.is_held_by(token)
    )


def _is_unwanted(name: str, record: JobRecord | None) -> bool:
    """Whether what came too late will be nobody's answer. While the attempt runs another request may have been told
    that it is kept, and its end may be under way."""
    return (
        record is not None
        and record.request.charge is None
        and record.attempt >= _attempt(name)[1]
        and (record.attempt > _attempt(name)[1] or record.state not in (State.RUNNING, State.SUCCEEDED))
    )


class _Body:
    """A request's body, as much of it at a time as is wanted."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    async def some(self, most: int) -> memoryview:
        """The next bytes, at least one."""
        while not self._left:
            try:
                self._left = memoryview(await anext(self._pieces))
            except StopAsyncIteration:
                raise Refusal("malformed-result", "The body ends before what it announces") from None
        taken, self._left = self._left[:most], self._left[most:]
        return taken

    async def exactly(self, size: int) -> bytearray:
        taken = bytearray()
        while len(taken) < size:
            taken += await self.some(size - len(taken))
        return taken

    async def end(self) -> None:
        """Refuse what comes after the end."""
        while not self._left:
            try:
                self._left = memoryview(await anext(self._pieces))
            except StopAsyncIteration:
                return
        raise Refusal("malformed-result", "The body goes on after what it announces")


async def _manifest(body: _Body, limit: int, share: Share) -> SentResults:
    """What the body begins with, whose every file has a length that can be told. It counts before it is read."""
    size = int.from_bytes(await body.exactly(4), "big")
    if size > limits.DOCUMENTS:
        raise Refusal("body-too-large", f"The documents are {size} bytes; the limit is {limits.DOCUMENTS}")
    share.grow(size)
    text = await body.exactly(size)
    try:
        sent = await anyio.to_thread.run_sync(SentResults.model_validate_json, text)
    except ValidationError as error:
        raise Refusal("malformed-result", f"The documents are malformed in {error.error_count()} places") from None
    names = [result.name for result in sent.results]
    if len(names) > limits.RESULTS or len(set(names)) < len(names):
        raise Refusal(
            "malformed-result", f"{len(names)} results were sent; at most {limits.RESULTS} are taken, each once"
        )
    for result in sent.results:
        arrays = _arrays(result.document)
        for array in arrays.values():
            if len(array.shape) > npy.MAX_RANK or any(extent < 0 for extent in array.shape):
                raise Refusal("malformed-result", f"No array of {result.name} has {len(array.shape)} axes like these")
        total = sum(array.info.nbytes for array in arrays.values())
        if total > limit:
            raise Refusal("array-too-large", f"{result.name} is {total} bytes; the limit is {limit}")
    return sent


def _arrays(document: ResultDocument) -> dict[str, ArrayOutput]:
    return {name: output for name, output in document.outputs.items() if isinstance(output, ArrayOutput)}


def _mismatch(operation: Operation | None, request: JobRequest, document: ResultDocument) -> str | None:
    """Why a document is not the result of a job, if it is not."""
    if document.job != request.id or document.operation != request.operation:
        return f"It is the result of {document.operation} of {document.job}"
    if operation is None:
        return f"This service has no operation {request.operation!r}"
    declared = {output.name: output.kind == "array" for output in operation.outputs}
    if declared != {name: isinstance(output, ArrayOutput) for name, output in document.outputs.items()}:
        return f"{request.operation} has the outputs {', '.join(declared)}, and these are others"
    if any(array.file != f"{name}.npy" for name, array in _arrays(document).items()):
        return "A file is not named after its output"
    return None


class _Incoming:
    """A result on its way in; one that is refused is read over."""

    def __init__(self, services: Services, sent: SentResult, found: JobRecord | Refusal) -> None:
        self.name = sent.name
        self._document = sent.document
        self.refusal: Refusal | None = None
        self._ids: dict[str, str] = {}
        self._writers: dict[str, NpyWriter] = {}
        self._place: IncomingResult | None = None
        if isinstance(found, Refusal):
            self.refusal = found
            return
        operation = services.operations.get(found.request.operation)
        if (why := _mismatch(operation, found.request, sent.document)) is not None:
            self.refusal = Refusal("malformed-result", why)
            return
        self._owner = found.request.owner
        self._expires_at = time.time() + found.request.result_ttl  # by this clock
        self._place = services.store.incoming(sent.name, found.request.owner)

    async def receive(self, body: _Body) -> AsyncIterator[int]:
        """Take the files; yields how many bytes more are held."""
        for name, array in _arrays(self._document).items():
            writer = None
            header = npy.header(array.dtype, array.shape)
            if await body.exactly(len(header)) != header:
                raise Refusal("malformed-result", f"{array.file} of {self.name} does not begin as the document says")
            if self._place is not None:
                writer = self._writers[name] = self._place.writer(array.file, array.dtype, array.shape)
            left = array.info.nbytes
            while left:
                piece = await body.some(left)
                left -= len(piece)
                if writer is not None:
                    writer.take(piece)
                    yield len(piece)

    def write(self) -> None:
        """Write what is held. In a thread."""
        for writer in self._writers.values():
            writer.flush()

    def move(self) -> bool:
        """Finish the files and be the attempt's result, though perhaps not on the disk yet, unless it has one: then
        this one is dropped, and the answer is False. In a thread."""
        assert self._place is not None  # noqa: S101
        outputs = {
            name: output.model_copy(update={"id": self._writers[name].finish()})
            if isinstance(output, ArrayOutput)
            else output
            for name, output in self._document.outputs.items()
        }
        told = {"owner": self._owner, "outputs": outputs, "expires_at": self._expires_at}
        return self._place.move(self._document.model_copy(update=told).model_dump_json())

    def discard(self) -> None:
        """Delete what came, unless it was moved."""
        for writer in self._writers.values():
            writer.close()
        if self._place is not None:
            self._place.discard()


def _begin(
    services: Services, sent: SentResults, records: Mapping[str, JobRecord | Refusal], incoming: list[_Incoming]
) -> None:
    incoming.extend(_Incoming(services, result, records[result.name]) for result in sent.results)


async def _receive(body: _Body, incoming: Sequence[_Incoming], share: Share) -> None:
    """Hash each piece as it comes, and write many at once; each at once where the share has no room for it."""
    waiting = list[_Incoming]()
    for result in incoming:
        waiting.append(result)
        async for size in result.receive(body):
            if not share.fits(max(size, limits.PIECE)) or share.amount >= limits.RESULTS_WRITTEN_AT_ONCE:
                await anyio.to_thread.run_sync(_write, waiting)
                waiting = [result]
                share.close()


def _write(incoming: Sequence[_Incoming]) -> None:
    for result in incoming:
        result.write()


def _keep(services: Services, incoming: Sequence[_Incoming]) -> set[str]:
    """Have all that came on the disk; the names of what is there by this request."""
    taken = [result for result in incoming if result.refusal is None]
    moved = {result.name for result in taken if result.move()}
    for error in services.store.finish_results([result.name for result in taken]).values():
        raise error
    return moved


def _discard(incoming: Sequence[_Incoming]) -> None:
    for result in incoming:
        result.discard()


def _delete(services: Services, names: Iterable[str]) -> None:
    for name in names:
        services.store.delete_result(name)
