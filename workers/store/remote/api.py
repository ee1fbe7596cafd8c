"""The HTTP client of a worker's store: requests to `/v1/worker`, repeated as long as the API is away."""

import json
import logging
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

import httpx

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.workers.queue.protocol import (
    CLAIM,
    SKIP,
    ArrayOutput,
    FileOutput,
    ResultDocument,
    SentInputs,
    SentResult,
    SentResults,
    WantedInputs,
)
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.remote.cache import write

log = logging.getLogger("warpdesk.store")

T = TypeVar("T")

_TIMES = httpx.Timeout(30.0, connect=5.0)
_AT_ONCE = 1 << 20  # bytes of a file that are read or written at once
THREADS = 8  # inputs that are fetched at once
_FIRST, _LONGEST = 0.05, 5.0  # seconds between two tries
_TOLD_EVERY = 60.0  # seconds between two lines of log about the same trouble

# Refusals that asking again does not change. Whatever else is no answer, a proxy's 404 included.
_FINAL = frozenset({
    "unknown-array", "stale-attempt", "result-committed", "malformed-result", "array-too-large", "body-too-large",
    "storage-full",
})  # fmt: skip


class Refused(Exception):
    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class ApiAway(Exception):
    """The API does not answer the remote store, or its answer is not final."""


class ApiClient:
    """The remote store's HTTP client for `/v1/worker`. Requests that must be answered are repeated until they are."""

    def __init__(self, url: str, key: str) -> None:
        self._url = f"{url.rstrip('/')}/v1/worker"
        self._headers = {"Authorization": f"Bearer {key}", "Accept-Encoding": "identity"}
        self._made: httpx.Client | None = None
        self._making = threading.Lock()

    @property
    def _client(self) -> httpx.Client:
        with self._making:
            if self._made is None:
                logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line for each request
                limits = httpx.Limits(max_connections=THREADS + 1)
                self._made = httpx.Client(headers=self._headers, timeout=_TIMES, limits=limits)
            return self._made

    def close(self) -> None:
        if self._made is not None:
            self._made.close()

    def greet(self) -> None:
        """Ask over HTTP whether the API answers and takes this worker's key. Raises ApiAway."""
        self._once("GET", "")

    def delete(self, what: str, token: str = "") -> None:
        """Have the API delete a result or secret inputs, by one HTTP request. Raises ApiAway."""
        with suppress(Refused):
            self._once("DELETE", f"/{what}", headers={CLAIM: token})

    def fetch_small(
        self, wanted: Sequence[str], tokens: Mapping[str, str]
    ) -> list[tuple[ArrayInfo, memoryview] | None]:
        """Fetch small inputs over HTTP in one request, each with its description; None for an input that must be
        fetched alone."""
        inputs = tuple((attempt, name) for attempt, _, name in (at.partition("/") for at in wanted))
        claims = {attempt: tokens[attempt] for attempt, _ in inputs}
        body = WantedInputs(inputs=inputs, claims=claims).model_dump_json().encode()
        headers = {"Content-Type": "application/json"}
        answer = memoryview(
            self._patiently(lambda: self._once("POST", "/inputs", content=body, headers=headers)).content
        )
        end = 4 + int.from_bytes(answer[:4], "big")
        found: list[tuple[ArrayInfo, memoryview] | None] = []
        for info in SentInputs.model_validate_json(bytes(answer[4:end])).arrays:
            if info is None:
                found.append(None)
                continue
            begin, end = end, end + len(npy.header(info.dtype, info.shape)) + info.nbytes
            found.append((info, answer[begin:end]))
        return found

    def fetch(self, at: str, tokens: Mapping[str, str], file: BinaryIO, make_room: Callable[[], None]) -> ArrayInfo:
        """Download an input from the API into a file, and resume after a broken connection. Raises Refused and
        OSError."""

        def go_on() -> ArrayInfo:
            have = file.tell()
            headers = {CLAIM: tokens[at.partition("/")[0]], **({"Range": f"bytes={have}-"} if have else {})}
            with self._client.stream("GET", f"{self._url}/inputs/{at}", headers=headers) as answer:
                if have and answer.status_code != 206:
                    file.seek(0)
                    file.truncate()
                if answer.status_code not in (200, 206):
                    answer.read()
                    raise self._refusal(answer)
                fields = json.loads(answer.headers["Warpdesk-Array"])
                for piece in answer.iter_raw(_AT_ONCE):
                    write(file, piece, make_room)
            return ArrayInfo(fields["dtype"], tuple(fields["shape"]), fields["has_nan"], fields["has_inf"])

        return self._patiently(go_on)

    def send(self, directories: Sequence[Path], tokens: Mapping[str, str]) -> dict[str, Refused]:
        """Send results to the API, and return those that it refused. Raises Refused and OSError."""
        documents = [
            ResultDocument.model_validate_json((directory / "result.json").read_bytes()) for directory in directories
        ]
        manifest = SentResults(
            results=tuple(
                SentResult(name=directory.name, claim=tokens[directory.name], document=document)
                for directory, document in zip(directories, documents, strict=True)
            )
        )
        head = manifest.model_dump_json().encode()
        files = [
            directory / output.file
            for directory, document in zip(directories, documents, strict=True)
            for output in document.outputs.values()
            if isinstance(output, ArrayOutput | FileOutput)
        ]
        size = 4 + len(head) + sum(file.stat().st_size for file in files)

        def body() -> Iterator[bytes]:
            waiting = bytearray(struct.pack(">I", len(head)) + head)
            for file in files:
                with file.open("rb") as stream:
                    while piece := stream.read(_AT_ONCE):
                        waiting += piece  # many small files go in one piece
                        if len(waiting) >= _AT_ONCE:
                            yield bytes(waiting)
                            waiting.clear()
            yield bytes(waiting)

        def deliver() -> httpx.Response:
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
            return self._once("POST", "/results", content=body(), headers=headers)

        refused = self._patiently(deliver).json()["refused"]
        return {name: Refused(problem["code"], problem["detail"]) for name, problem in refused.items()}

    def send_checkpoint(self, attempt: str, name: str, file: Path, token: str, *, patiently: bool = False) -> None:
        """Send an attempt's checkpoint to the API, in one HTTP request, or `patiently` in as many as it takes. Raises
        ApiAway and Refused."""

        def send() -> None:
            with file.open("rb") as content:
                headers = {"Content-Length": str(file.stat().st_size), CLAIM: token}
                self._once("PUT", f"/checkpoints/{attempt}/{name}", iter(lambda: content.read(_AT_ONCE), b""), headers)

        self._patiently(send) if patiently else send()

    def fetch_checkpoint(self, attempt: str, name: str, file: BinaryIO, token: str, skip: int) -> None:
        """Download a checkpoint from the API into a file, for the attempt that resumes it and has found `skip` of them
        bad. Raises Refused and OSError."""

        def whole() -> None:
            file.seek(0)
            file.truncate()
            url = f"{self._url}/checkpoints/{attempt}/{name}"
            with self._client.stream("GET", url, headers={CLAIM: token, SKIP: str(skip)}) as answer:
                if answer.status_code != 200:
                    answer.read()
                    raise self._refusal(answer)
                for piece in answer.iter_raw(_AT_ONCE):
                    file.write(piece)

        self._patiently(whole)

    def _once(
        self,
        method: str,
        path: str,
        content: Iterator[bytes] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        try:
            answer = self._client.request(method, self._url + path, content=content, headers=headers)
        except httpx.TransportError as error:
            raise self._no_answer(error) from None
        if not answer.is_success:
            raise self._refusal(answer)
        return answer

    def _patiently(self, step: Callable[[], T]) -> T:
        delay, logged_at = _FIRST, -_TOLD_EVERY
        while True:
            try:
                return step()
            except httpx.TransportError as error:
                away = self._no_answer(error)
            except ApiAway as error:
                away = error
            if time.monotonic() - logged_at >= _TOLD_EVERY:
                logged_at = time.monotonic()
                log.warning("%s; trying on", away)
            time.sleep(random.uniform(0.5, 1.0) * delay)  # noqa: S311 (so that workers do not come all at once)
            delay = min(_LONGEST, 2 * delay)

    def _no_answer(self, error: httpx.TransportError) -> ApiAway:
        return ApiAway(f"the API at {self._url} does not answer: {type(error).__name__}: {error}")

    def _refusal(self, answer: httpx.Response) -> ApiAway | Refused:
        try:
            problem = answer.json()
            code, detail = str(problem["code"]), str(problem["detail"])
        except (ValueError, KeyError, TypeError):
            code, detail = "", ""
        if code in _FINAL:
            return Refused(code, detail)
        return ApiAway(f"the API at {self._url} answers {answer.status_code} {code or 'without a problem'}: {detail}")
