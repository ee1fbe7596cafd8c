"""The upload of results from remote workers: read in pieces, checked, and moved to the results of the store."""

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

import anyio.to_thread
from pydantic import ValidationError

from warpdesk_server.app.kit import limits
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.limits import Share
from warpdesk_server.app.services import Services
from warpdesk_server.kernels.operation import Computation
from warpdesk_server.workers.queue.protocol import (
    ArrayOutput,
    FileOutput,
    JobRequest,
    ResultDocument,
    SentResult,
    SentResults,
    ValueOutput,
)
from warpdesk_server.workers.queue.records import JobRecord
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.incoming import IncomingResult
from warpdesk_server.workers.store.npy_writer import FileWriter


class Pieces:
    """A reader of the body in which a remote worker sends results, for as many bytes at a time as are wanted."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    async def some(self, most: int) -> memoryview:
        """Read the next bytes that a remote worker sends, at least one and at most `most`."""
        while not self._left:
            try:
                self._left = memoryview(await anext(self._pieces))
            except StopAsyncIteration:
                raise Refusal("malformed-result", "The body is shorter than it declares") from None
        taken, self._left = self._left[:most], self._left[most:]
        return taken

    async def exactly(self, size: int) -> bytearray:
        """Read exactly `size` bytes of a remote worker's upload of results."""
        taken = bytearray()
        while len(taken) < size:
            taken += await self.some(size - len(taken))
        return taken

    async def end(self) -> None:
        """Refuse a remote worker's upload of results that has bytes after its announced end."""
        while not self._left:
            try:
                self._left = memoryview(await anext(self._pieces))
            except StopAsyncIteration:
                return
        raise Refusal("malformed-result", "The body is longer than it declares")


async def read_manifest(body: Pieces, limit: int, share: Share) -> SentResults:
    """Read the manifest with which a remote worker's upload of results begins. It gives the length of every file.

    The manifest's own length is added to the share before it is read.
    """
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
                raise Refusal(
                    "malformed-result", f"An array of {result.name} has an invalid shape of {len(array.shape)} axes"
                )
        total = sum(array.info.nbytes for array in arrays.values())
        if total > limit:
            raise Refusal("array-too-large", f"{result.name} is {total} bytes; the limit is {limit}")
    return sent


def _arrays(document: ResultDocument) -> dict[str, ArrayOutput]:
    return {name: output for name, output in document.outputs.items() if isinstance(output, ArrayOutput)}


def _files(document: ResultDocument) -> dict[str, ArrayOutput | FileOutput]:
    """The outputs whose files follow a remote worker's document, in their order."""
    return {name: output for name, output in document.outputs.items() if not isinstance(output, ValueOutput)}


def _size(output: ArrayOutput | FileOutput) -> int:
    return output.info.nbytes if isinstance(output, ArrayOutput) else output.bytes


def _described(output: ArrayOutput | FileOutput | ValueOutput) -> tuple[str, str, str]:
    """Kind, file and name of an output, as its operation declares them."""
    if isinstance(output, ArrayOutput):
        return "array", output.file, ""
    return ("file", output.file, output.name) if isinstance(output, FileOutput) else ("value", "", "")


def _mismatch(operation: Computation | None, request: JobRequest, document: ResultDocument) -> str | None:
    """The reason why a document that a remote worker sent is not the result of a job; None if it is."""
    if document.job != request.id or document.operation != request.operation:
        return f"The document is the result of {document.operation} of {document.job}"
    if request.shard is not None:
        return f"{request.id} is a shard, whose arrays are kept until its job has the result"
    if operation is None:
        return f"This service has no operation {request.operation!r}"
    outputs = operation.outputs_of(request.params)
    declared = {output.name: (output.kind, output.stored_as, output.file) for output in outputs}
    sent = {name: _described(output) for name, output in document.outputs.items()}
    if {name: kind for name, (kind, *_) in declared.items()} != {name: kind for name, (kind, *_) in sent.items()}:
        return f"{request.operation} has the outputs {', '.join(declared)}; the document has others"
    if declared != sent:
        return "A file is not named after its output"
    types = {output.name: output.media_type for output in outputs if output.kind == "file"}
    if types != {name: file.media_type for name, file in _files(document).items() if isinstance(file, FileOutput)}:
        return f"{request.operation} has files of the types {', '.join(types.values())}; the document has others"
    size = sum(map(_size, _files(document).values()))
    if request.task and size > request.result_bytes:
        return f"Its arrays and files have {size} bytes, and the task declares {request.result_bytes}"
    return None


class Incoming:
    """One result from a remote worker, as it arrives. The files of a refused result are read and dropped."""

    def __init__(self, services: Services, sent: SentResult, found: JobRecord | Refusal) -> None:
        self.name = sent.name
        self._document = sent.document
        self.refusal: Refusal | None = None
        self._ids: dict[str, str] = {}
        self._writers: dict[str, FileWriter] = {}
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

    async def receive(self, body: Pieces) -> AsyncIterator[int]:
        """Read the result's files from a remote worker's upload; yields how many more bytes are held in memory."""
        for name, output in _files(self._document).items():
            writer = None
            header = npy.header(output.dtype, output.shape) if isinstance(output, ArrayOutput) else b""
            if await body.exactly(len(header)) != header:
                raise Refusal("malformed-result", f"{output.file} of {self.name} does not begin as the document says")
            if self._place is not None:
                writer = self._writers[name] = self._writer(self._place, output)
            left = _size(output)
            while left:
                piece = await body.some(left)
                left -= len(piece)
                if writer is not None:
                    writer.take(piece)
                    yield len(piece)

    @staticmethod
    def _writer(place: IncomingResult, output: ArrayOutput | FileOutput) -> FileWriter:
        if isinstance(output, ArrayOutput):
            return place.writer(output.file, output.dtype, output.shape)
        return place.file_writer(output.file, output.bytes)

    def write(self) -> None:
        """Write the held bytes of a remote worker's result to the store. Call it in a thread."""
        for writer in self._writers.values():
            writer.flush()

    def move(self) -> bool:
        """Finish a remote worker's files and publish them as the attempt's result, perhaps not on the disk yet. Call it
        in a thread.

        If the attempt has a result already, this one is dropped, and False is returned.
        """
        assert self._place is not None  # noqa: S101
        outputs = dict(self._document.outputs)
        for name, output in _files(self._document).items():
            digest = self._writers[name].finish()
            if isinstance(output, ArrayOutput):
                outputs[name] = output.model_copy(update={"id": digest})
            elif digest != output.sha256:
                raise Refusal("malformed-result", f"{output.file} of {self.name} has other bytes than were announced")
        document = {"owner": self._owner, "outputs": outputs, "expires_at": self._expires_at}
        return self._place.move(self._document.model_copy(update=document).model_dump_json())

    def discard(self) -> None:
        """Delete the files that a remote worker sent, unless they were published."""
        for writer in self._writers.values():
            writer.close()
        if self._place is not None:
            self._place.discard()


def begin(
    services: Services, sent: SentResults, records: Mapping[str, JobRecord | Refusal], incoming: list[Incoming]
) -> None:
    """Add one `Incoming` for each result of a remote worker's manifest to the list."""
    incoming.extend(Incoming(services, result, records[result.name]) for result in sent.results)


async def receive(body: Pieces, incoming: Sequence[Incoming], share: Share) -> None:
    """Read the results that a remote worker sends, hashing each piece as it arrives. Pieces are written many at
    once, or singly if the share is full."""
    waiting = list[Incoming]()
    for result in incoming:
        waiting.append(result)
        async for size in result.receive(body):
            if not share.fits(max(size, limits.PIECE)) or share.amount >= limits.RESULTS_WRITTEN_AT_ONCE:
                await anyio.to_thread.run_sync(_write, waiting)
                waiting = [result]
                share.close()


def _write(incoming: Sequence[Incoming]) -> None:
    for result in incoming:
        result.write()


def keep(services: Services, incoming: Sequence[Incoming]) -> set[str]:
    """Publish the results that a remote worker sent and force them to the disk; returns the names that this request
    published."""
    taken = [result for result in incoming if result.refusal is None]
    moved = {result.name for result in taken if result.move()}
    for error in services.store.finish_results([result.name for result in taken]).values():
        raise error
    return moved


def discard(incoming: Sequence[Incoming]) -> None:
    """Delete the files of results that a remote worker sent, unless they were published."""
    for result in incoming:
        result.discard()


def delete(services: Services, names: Iterable[str]) -> None:
    """Delete the named results of remote workers from the service's store."""
    for name in names:
        services.store.delete_result(name)
