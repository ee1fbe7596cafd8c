"""The store of a worker without access to the spool: inputs and results go through the API (`app.remote.endpoints`).

root/                       0700, `remote` in the store's directory
  cache/<boot>/             inputs by id, as long as other jobs may want them: bounded in bytes and in time
  runs/<random>/            locked by the process that writes there; one that nobody holds is deleted
    <job>.<attempt>/        a result on its way out

Inputs of private operations and secrets are open files without a name: they end with the process. An array's id is a
digest under a secret that stays with the API, so the API computes the ids of outputs, and an input is known here by its
header and its length.
"""

import errno
import fcntl
import json
import logging
import os
import random
import secrets
import shutil
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

import httpx

from warpdesk_server.kernels.array import ArrayInfo, DType
from warpdesk_server.workers.queue.protocol import (
    CLAIM,
    ArrayOutput,
    JobRequest,
    ResultDocument,
    SentInputs,
    SentResult,
    SentResults,
    WantedInputs,
)
from warpdesk_server.workers.settings import WorkerSettings
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.protocol import UNKNOWN_ID, StoredArray, attempt_of, result_name

log = logging.getLogger("warpdesk.store")

T = TypeVar("T")

_TIMES = httpx.Timeout(30.0, connect=5.0)
_AT_ONCE = 1 << 20  # bytes of a file that are read or written at once
_THREADS = 8  # inputs that are fetched at once
_FIRST, _LONGEST = 0.05, 5.0  # seconds between two tries
_TOLD_EVERY = 60.0  # seconds between two lines of log about the same trouble
_LOOK_EVERY = 2.0  # seconds between two looks whether the API is there
_TIDY_EVERY = 30.0
_ERRANDS = 10_000  # that may wait for the API; what is not deleted by an errand is once its time is over
_PARTING = 5.0  # seconds that the last errands may take

# Refusals that asking again does not change. Whatever else is no answer, a proxy's 404 included.
_FINAL = frozenset({
    "unknown-array", "stale-attempt", "result-committed", "malformed-result", "array-too-large", "body-too-large",
    "storage-full",
})  # fmt: skip


class _Refused(Exception):
    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class _Away(Exception):
    """The API cannot be asked now."""


@dataclass(frozen=True)
class _Input:
    """An open file, or why there is none."""

    file: BinaryIO | None = None
    stored: StoredArray | None = None
    error: OSError | None = None


class RemoteStore:
    """A worker's store, through the API of `settings.api_url`. The parent and the child have one each."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._secret = {
            name: frozenset(given.name for given in operation.inputs if given.secret)
            for name, operation in settings.catalogue().items()
        }
        self._api = _Api(settings.api_url, settings.api_key.get_secret_value())
        self._root = settings.store_directory / "remote"
        self._runs, self._caches = self._root / "runs", self._root / "cache"
        # A cache outlives no boot: after a power cut a file may have the right length and other bytes.
        self._cache = self._caches / Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._cache_bytes, self._cache_seconds = settings.cache_bytes, settings.cache_seconds
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._users = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._users, fcntl.LOCK_SH)
        for directory in (self._runs, self._caches, self._cache):
            directory.mkdir(mode=0o700, exist_ok=True)
        self.mac_of: Callable[[str], str] | None = None  # the secret is the API's
        self._inputs: dict[tuple[str, str], _Input] = {}
        self._tokens: Mapping[str, str] = {}  # of the claims of the attempts that were at hand last
        self._run: tuple[Path, int] | None = None
        self._beside = _Beside(self._api.greet, self._tidy)
        self._tidy()

    # Inputs.

    @contextmanager
    def at_hand(self, jobs: Sequence[tuple[JobRequest, int]], tokens: Mapping[str, str]) -> Iterator[None]:
        """Fetch the inputs of these attempts, and let go of them afterwards. Waits for the API as long as it takes."""
        self._tokens = tokens
        wanted: dict[tuple[str, str], tuple[str, bool]] = {}
        for request, attempt in jobs:
            for name, array_id in request.inputs.items():
                place, at = (request.owner, array_id), f"{result_name(request.id, attempt)}/{name}"
                private = request.private or name in self._secret.get(request.operation, ())
                wanted[place] = at, private or (place in wanted and wanted[place][1])
        try:
            self._fetch_all(wanted)
            yield
        finally:
            for held in self._inputs.values():
                if held.file is not None:
                    held.file.close()  # who has mapped it still has it
            self._inputs.clear()
            self._evict()

    def find(self, owner: str, array_id: str) -> StoredArray | None:
        """What is known of an input that is at hand."""
        return self._inputs.get((owner, array_id), _Input()).stored

    def path(self, owner: str, array_id: str) -> Path:
        """An input that is at hand. Raises FileNotFoundError, and OSError where there was no room for it."""
        held = self._inputs.get((owner, array_id), _Input())
        if held.error is not None:
            raise held.error
        if held.file is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such input", array_id)
        return Path(f"/proc/self/fd/{held.file.fileno()}")

    # Results.

    def digest(self, owner: str, dtype: DType, shape: tuple[int, ...], data: bytes | memoryview) -> str:  # noqa: ARG002
        """Only the API can tell."""
        return UNKNOWN_ID

    def new_result(self, job_id: str, attempt: int, files: Sequence[str] = ()) -> Path:  # noqa: ARG002
        """An empty directory on this machine."""
        directory = self._own_run() / result_name(job_id, attempt)
        with suppress(FileNotFoundError):
            shutil.rmtree(directory)
        directory.mkdir(mode=0o700)
        return directory

    def require_room(self, size: int) -> None:
        """Nothing is kept free on this machine's disk; that of the store is asked where results are sent."""

    def make_ahead(self, files: Sequence[str]) -> None:
        """Sending a result takes longer than to make its files."""

    def result(self, name: str) -> Path:
        """The directory of an attempt, which is on this machine until it is finished."""
        attempt_of(name)
        return self._own_run() / name

    def finish_results(self, names: Sequence[str]) -> Mapping[str, OSError]:
        """Send results, in one request, and delete them here. Waits for the API as long as it takes.

        The error of one whose attempt is not the one that runs any more is ESTALE.
        """
        directories = [self.result(name) for name in names]
        try:
            refused = self._api.send(directories, self._tokens)
        except _Refused as refusal:
            number = errno.ENOSPC if refusal.code == "storage-full" else errno.EIO
            return dict.fromkeys(names, OSError(number, f"the API does not take the result: {refusal}"))
        except OSError as error:
            return dict.fromkeys(names, error)
        finally:
            for directory in directories:
                shutil.rmtree(directory, ignore_errors=True)
        return {
            name: OSError(
                errno.ESTALE if refusal.code == "stale-attempt" else errno.EIO,
                f"the API does not take the result: {refusal}",
            )
            for name, refusal in refused.items()
        }

    def delete_result(self, name: str, token: str = "") -> None:
        """Delete it here, also where a child left it that is gone; soon in the store, for who has its claim's token."""
        attempt_of(name)
        for directory in self._runs.glob(f"*/{name}"):
            shutil.rmtree(directory, ignore_errors=True)
        if token:
            self._beside.add(lambda: self._api.delete(f"results/{name}", token))

    def erase_secrets(self, request: JobRequest, array_ids: Sequence[str]) -> None:
        """Have the API erase the secret inputs of the job that no live job reads; soon."""
        if array_ids:
            self._beside.add(lambda: self._api.delete(f"jobs/{request.id}/secrets"))

    # The rest.

    def trouble(self) -> str | None:
        """Why no job should be claimed now: the API is away, or does not take the key. Never waits."""
        return self._beside.trouble()

    def close(self) -> None:
        """Do what waits for the API, for five seconds at most. The last process of this machine leaves nothing."""
        self._beside.close()
        self._api.close()
        if self._run is not None:
            path, lock = self._run
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
        with suppress(BlockingIOError):
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for directory in (self._runs, self._caches):
                shutil.rmtree(directory, ignore_errors=True)
        os.close(self._users)

    # Files.

    def _fetch_all(self, wanted: Mapping[tuple[str, str], tuple[str, bool]]) -> None:
        """Inputs from the cache, the small ones of the rest in one request, the others side by side."""
        for place, (_, private) in wanted.items():
            if not private and (cached := self._cached(place[1].removeprefix("blake3:"))) is not None:
                self._inputs[place] = cached
        missing = [place for place in wanted if place not in self._inputs]
        if len(missing) > 1:
            for place, came in zip(
                missing, self._api.fetch_small([wanted[place][0] for place in missing], self._tokens), strict=True
            ):
                if came is not None:
                    self._inputs[place] = self._keep(place[1], wanted[place][1], partial(self._copy, *came))
            missing = [place for place in missing if place not in self._inputs]

        def fetch(place: tuple[str, str]) -> _Input:
            at, private = wanted[place]
            return self._keep(place[1], private, lambda file: self._api.fetch(at, self._tokens, file, self._make_room))

        if missing:
            with ThreadPoolExecutor(min(_THREADS, len(missing))) as threads:
                self._inputs.update(zip(missing, threads.map(fetch, missing), strict=True))

    def _keep(self, array_id: str, private: bool, write: Callable[[BinaryIO], ArrayInfo]) -> _Input:
        """A file with what came: one of the cache, or one without a name."""
        name = array_id.removeprefix("blake3:")
        temporary = self._own_run() / secrets.token_hex(8)
        file = temporary.open("x+b", buffering=0)
        try:
            if private:
                temporary.unlink()
            info = write(file)
            if not _is_whole(file, info):
                raise OSError(errno.EIO, f"what came is not {info.dtype} of shape {list(info.shape)}")
            if not private:
                (self._cache / f"{name}.json").write_text(json.dumps(asdict(info)))
                temporary.replace(self._cache / f"{name}.npy")
        except (_Refused, OSError) as error:
            file.close()
            temporary.unlink(missing_ok=True)
            if isinstance(error, _Refused):
                if error.code == "unknown-array":
                    return _Input()
                error = OSError(errno.ESTALE, f"the API gives it to no worker: {error}")
            log.error("an input cannot be kept here: %s", error)
            return _Input(error=error)
        return _Input(file, _stored(array_id, info))

    def _copy(self, info: ArrayInfo, content: memoryview, file: BinaryIO) -> ArrayInfo:
        _write(file, content, self._make_room)
        return info

    def _cached(self, name: str) -> _Input | None:
        try:
            file = (self._cache / f"{name}.npy").open("rb", buffering=0)
        except FileNotFoundError:
            return None
        try:
            fields = json.loads((self._cache / f"{name}.json").read_bytes())
            info = ArrayInfo(fields["dtype"], tuple(fields["shape"]), fields["has_nan"], fields["has_inf"])
            if _is_whole(file, info):
                os.utime(file.fileno())
                return _Input(file, _stored(f"blake3:{name}", info))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # being evicted, or damaged
        file.close()
        return None

    def _evict(self, most: int | None = None) -> None:
        """Delete inputs that nobody used for long, and the oldest until the rest is within the bound.

        Whoever has one open keeps it.
        """
        found = []
        for file in self._cache.glob("*.npy"):
            with suppress(FileNotFoundError):
                status = file.stat()
                found.append((status.st_mtime, status.st_size, file))
        left, oldest = sum(size for _, size, _ in found), time.time() - self._cache_seconds
        for used_at, size, file in sorted(found):
            if used_at >= oldest and left <= (self._cache_bytes if most is None else most):
                break
            file.unlink(missing_ok=True)
            file.with_suffix(".json").unlink(missing_ok=True)
            left -= size

    def _make_room(self) -> None:
        self._evict(0)

    def _tidy(self) -> None:
        """Delete what processes left that have ended, and earlier boots' caches."""
        self._evict()
        for cache in self._caches.iterdir():
            if cache != self._cache:
                shutil.rmtree(cache, ignore_errors=True)
        for run in self._runs.iterdir():
            with suppress(FileNotFoundError, BlockingIOError):
                lock = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(run, ignore_errors=True)
                finally:
                    os.close(lock)

    def _own_run(self) -> Path:
        """Where this process writes, until it ends."""
        while self._run is None:
            path = self._runs / secrets.token_hex(8)
            path.mkdir(mode=0o700)
            with suppress(FileNotFoundError):  # another process tidied before it was locked
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(lock, fcntl.LOCK_EX)
                if path.exists():
                    self._run = path, lock
        return self._run[0]


def _stored(array_id: str, info: ArrayInfo) -> StoredArray:
    now = time.time()
    return StoredArray(array_id, info, created_at=now, expires_at=now)


def _is_whole(file: BinaryIO, info: ArrayInfo) -> bool:
    header = npy.header(info.dtype, info.shape)
    size = os.fstat(file.fileno()).st_size
    return size == len(header) + info.nbytes and os.pread(file.fileno(), len(header), 0) == header


class _Api:
    """Requests to `/v1/worker`. Those that must be answered are repeated until they are."""

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
                limits = httpx.Limits(max_connections=_THREADS + 1)
                self._made = httpx.Client(headers=self._headers, timeout=_TIMES, limits=limits)
            return self._made

    def close(self) -> None:
        if self._made is not None:
            self._made.close()

    def greet(self) -> None:
        """Raises _Away."""
        self._once("GET", "")

    def delete(self, what: str, token: str = "") -> None:
        """Raises _Away."""
        with suppress(_Refused):
            self._once("DELETE", f"/{what}", headers={CLAIM: token})

    def fetch_small(
        self, wanted: Sequence[str], tokens: Mapping[str, str]
    ) -> list[tuple[ArrayInfo, memoryview] | None]:
        """Inputs that came in one answer, with what is known of them; None is to be asked for alone."""
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
        """Write an input into a file, and go on where a connection broke. Raises _Refused and OSError."""

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
                    _write(file, piece, make_room)
            return ArrayInfo(fields["dtype"], tuple(fields["shape"]), fields["has_nan"], fields["has_inf"])

        return self._patiently(go_on)

    def send(self, directories: Sequence[Path], tokens: Mapping[str, str]) -> dict[str, _Refused]:
        """Send results, and return those that were refused. Raises _Refused and OSError."""
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
            if isinstance(output, ArrayOutput)
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
        return {name: _Refused(problem["code"], problem["detail"]) for name, problem in refused.items()}

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
            raise self._unheard(error) from None
        if not answer.is_success:
            raise self._refusal(answer)
        return answer

    def _patiently(self, step: Callable[[], T]) -> T:
        delay, told = _FIRST, -_TOLD_EVERY
        while True:
            try:
                return step()
            except httpx.TransportError as error:
                away = self._unheard(error)
            except _Away as error:
                away = error
            if time.monotonic() - told >= _TOLD_EVERY:
                told = time.monotonic()
                log.warning("%s; trying on", away)
            time.sleep(random.uniform(0.5, 1.0) * delay)  # noqa: S311 (so that workers do not come all at once)
            delay = min(_LONGEST, 2 * delay)

    def _unheard(self, error: httpx.TransportError) -> _Away:
        return _Away(f"the API at {self._url} does not answer: {type(error).__name__}: {error}")

    def _refusal(self, answer: httpx.Response) -> _Away | _Refused:
        try:
            problem = answer.json()
            code, detail = str(problem["code"]), str(problem["detail"])
        except (ValueError, KeyError, TypeError):
            code, detail = "", ""
        if code in _FINAL:
            return _Refused(code, detail)
        return _Away(f"the API at {self._url} answers {answer.status_code} {code or 'without a problem'}: {detail}")


def _write(file: BinaryIO, piece: bytes | memoryview, make_room: Callable[[], None]) -> None:
    rest = memoryview(piece)
    room_made = False
    while rest:
        try:
            rest = rest[file.write(rest) :]
        except OSError as error:
            if room_made or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            make_room()
            room_made = True


class _Beside:
    """A thread that looks whether the API is there, does what need not be waited for, and tidies up.

    It is started when it is first needed.
    """

    def __init__(self, look: Callable[[], None], tidy: Callable[[], None]) -> None:
        self._look, self._tidy = look, tidy
        self._errands: deque[Callable[[], None]] = deque(maxlen=_ERRANDS)
        self._trouble: str | None = "the API was not asked yet"
        self._wanted = threading.Condition()
        self._thread: threading.Thread | None = None
        self._end_by: float | None = None

    def add(self, errand: Callable[[], None]) -> None:
        with self._wanted:
            self._errands.append(errand)
            self._start()
            self._wanted.notify()

    def trouble(self) -> str | None:
        with self._wanted:
            self._start()
        return self._trouble

    def close(self) -> None:
        with self._wanted:
            self._end_by = time.monotonic() + _PARTING
            self._wanted.notify()
        if self._thread is not None:
            self._thread.join(_PARTING)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="remote store", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        look_at = tidy_at = 0.0
        while True:
            with self._wanted:
                if self._end_by is None and not (self._errands and self._trouble is None):
                    self._wanted.wait(max(0.0, look_at - time.monotonic()))
            try:
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + _LOOK_EVERY
                    self._look()
                    self._says(None)
                while self._errands and (self._end_by is None or time.monotonic() < self._end_by):
                    self._errands[0]()
                    self._errands.popleft()
            except _Away as error:
                self._says(str(error))
            except Exception:
                log.exception("an errand failed")
                with suppress(IndexError):
                    self._errands.popleft()
            if self._end_by is not None:
                return
            if time.monotonic() >= tidy_at:
                tidy_at = time.monotonic() + _TIDY_EVERY
                self._tidy()

    def _says(self, trouble: str | None) -> None:
        if trouble is not None and self._trouble is None:
            log.warning("no job is taken: %s", trouble)
        elif trouble is None and self._trouble is not None:
            log.info("the API answers")
        self._trouble = trouble
