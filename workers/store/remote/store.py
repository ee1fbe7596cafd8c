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
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.workers.queue.protocol import JobRequest
from warpdesk_server.workers.settings import WorkerSettings
from warpdesk_server.workers.store.checkpoints import Write, write_file
from warpdesk_server.workers.store.protocol import UNKNOWN_ID, StoredArray, attempt_of, result_name
from warpdesk_server.workers.store.remote.api import THREADS, ApiAway, ApiClient, Refused
from warpdesk_server.workers.store.remote.cache import HeldInput, InputCache, is_whole, stored, write
from warpdesk_server.workers.store.remote.errands import BackgroundErrands

log = logging.getLogger("warpdesk.store")


class RemoteStore:
    """A worker's store over HTTP, through the API of `settings.api_url`. The parent and the child have one each."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._secret = {
            name: frozenset(given.name for given in operation.inputs if given.secret)
            for name, operation in settings.catalogue().items()
        }
        self._api = ApiClient(settings.api_url, settings.api_key.get_secret_value())
        self._root = settings.store_directory / "remote"
        self._runs, self._caches = self._root / "runs", self._root / "cache"
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._users = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._users, fcntl.LOCK_SH)
        self._runs.mkdir(mode=0o700, exist_ok=True)
        self._cache = InputCache(self._caches, settings.cache_bytes, settings.cache_seconds)
        self.forced = False  # the API keeps them
        self.mac_of: Callable[[str], str] | None = None  # the secret is the API's
        self._inputs: dict[tuple[str, str], HeldInput] = {}
        self._tokens: Mapping[str, str] = {}  # of the claims of the attempts that were at hand last
        self._run: tuple[Path, int] | None = None
        self._errands = BackgroundErrands(self._api.greet, self._tidy)
        self._tidy()

    # Inputs.

    @contextmanager
    def at_hand(self, jobs: Sequence[tuple[JobRequest, int]], tokens: Mapping[str, str]) -> Iterator[None]:
        """Fetch the inputs of these attempts from the API, and let go of them afterwards. Waits for the API as long as
        it takes."""
        self._tokens = tokens
        wanted: dict[tuple[str, str], tuple[str, bool]] = {}
        for request, attempt in jobs:
            for name, array_id in request.inputs.items():
                if name in request.attached:
                    continue
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
            self._cache.evict()

    def find(self, owner: str, array_id: str) -> StoredArray | None:
        """The description of an input that was fetched from the API; None if it was not."""
        return self._inputs.get((owner, array_id), HeldInput()).stored

    def path(self, owner: str, array_id: str) -> Path:
        """The path of an input that was fetched from the API. Raises FileNotFoundError, and OSError if there was no
        room for it."""
        held = self._inputs.get((owner, array_id), HeldInput())
        if held.error is not None:
            raise held.error
        if held.file is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such input", array_id)
        return Path(f"/proc/self/fd/{held.file.fileno()}")

    # Results.

    def digest(self, owner: str, dtype: DType, shape: tuple[int, ...], data: bytes | memoryview) -> str:  # noqa: ARG002
        """The placeholder for an output's array id, which only the API behind this remote store can compute."""
        return UNKNOWN_ID

    def new_result(self, job_id: str, attempt: int, files: Sequence[str] = ()) -> Path:  # noqa: ARG002
        """An empty directory on this machine for the result of an attempt, until it is sent to the API."""
        directory = self._own_run() / result_name(job_id, attempt)
        with suppress(FileNotFoundError):
            shutil.rmtree(directory)
        directory.mkdir(mode=0o700)
        return directory

    def require_room(self, size: int) -> None:
        """Nothing is kept free on this machine's disk; that of the API's store is asked where results are sent."""

    def make_ahead(self, files: Sequence[str]) -> None:
        """Do nothing: sending a result over HTTP takes longer than to make its files."""

    def result(self, name: str) -> Path:
        """The directory of an attempt's result, which is on this machine until it is sent to the API."""
        attempt_of(name)
        return self._own_run() / name

    def finish_results(self, names: Sequence[str]) -> Mapping[str, OSError]:
        """Send results to the API, in one request, and delete them here. Waits for the API as long as it takes.

        The error of one whose attempt is not the one that runs any more is ESTALE.
        """
        directories = [self.result(name) for name in names]
        try:
            refused = self._api.send(directories, self._tokens)
        except Refused as refusal:
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
        """Delete a result here, also one that a dead child left; with its claim's token, soon in the API's store
        too."""
        attempt_of(name)
        for directory in self._runs.glob(f"*/{name}"):
            shutil.rmtree(directory, ignore_errors=True)
        if token:
            self._errands.add(lambda: self._api.delete(f"results/{name}", token))

    # Checkpoints.

    def keep_checkpoint(self, attempt: str, name: str, write: Write, most: int, token: str) -> None:
        """Send a checkpoint to the API, once: a task that cannot keep one goes on. The arrays of a shard are sent like
        results: as often as it takes. Raises OSError, as others do."""
        of_shard = ":" in attempt_of(attempt)[0]
        file = self._own_run() / f"{attempt}.checkpoint"
        try:
            write_file(file, write, most, forced=False)
            self._api.send_checkpoint(attempt, name, file, token, patiently=of_shard)
        except ApiAway as error:
            raise OSError(errno.EHOSTUNREACH, str(error)) from None
        except Refused as refusal:
            number = errno.ESTALE if refusal.code == "stale-attempt" else errno.ENOSPC
            raise OSError(number, f"the API does not take the checkpoint: {refusal}") from None
        finally:
            file.unlink(missing_ok=True)

    def checkpoints(self, job_id: str, name: str, attempt: int, token: str) -> Generator[BinaryIO]:
        """The checkpoint of that name, and then others that the API has. Waits for the API as long as it takes."""
        with tempfile.TemporaryFile(dir=self._own_run()) as file, suppress(Refused):
            for skip in range(3):
                self._api.fetch_checkpoint(result_name(job_id, attempt), name, file, token, skip)
                file.seek(0)
                yield file

    def delete_checkpoints(self, job_id: str) -> None:
        """Do nothing: the API deletes the checkpoints of jobs that have ended."""

    def erase_secrets(self, request: JobRequest, array_ids: Sequence[str]) -> None:
        """Have the API erase the secret inputs of the job that no live job reads; soon."""
        if array_ids:
            self._errands.add(lambda: self._api.delete(f"jobs/{request.id}/secrets"))

    # The rest.

    def trouble(self) -> str | None:
        """Why no job should be claimed now: the API is away, or does not take the key. Never waits."""
        return self._errands.trouble()

    def close(self) -> None:
        """Do what waits for the API behind this store, for five seconds at most. The last process of this machine
        leaves nothing."""
        self._errands.close()
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
        """Take inputs from the cache, fetch the small ones of the rest from the API in one request, and the others in
        parallel."""
        for place, (_, private) in wanted.items():
            if not private and (cached := self._cache.find(place[1].removeprefix("blake3:"))) is not None:
                self._inputs[place] = cached
        missing = [place for place in wanted if place not in self._inputs]
        if len(missing) > 1:
            for place, came in zip(
                missing, self._api.fetch_small([wanted[place][0] for place in missing], self._tokens), strict=True
            ):
                if came is not None:
                    self._inputs[place] = self._keep(place[1], wanted[place][1], partial(self._copy, *came))
            missing = [place for place in missing if place not in self._inputs]

        def fetch(place: tuple[str, str]) -> HeldInput:
            at, private = wanted[place]
            return self._keep(
                place[1], private, lambda file: self._api.fetch(at, self._tokens, file, self._cache.make_room)
            )

        if missing:
            with ThreadPoolExecutor(min(THREADS, len(missing))) as threads:
                self._inputs.update(zip(missing, threads.map(fetch, missing), strict=True))

    def _keep(self, array_id: str, private: bool, write: Callable[[BinaryIO], ArrayInfo]) -> HeldInput:
        """Write an input fetched from the API into a file: one of the cache, or one without a name for a private
        input."""
        temporary = self._own_run() / secrets.token_hex(8)
        file = temporary.open("x+b", buffering=0)
        try:
            if private:
                temporary.unlink()
            info = write(file)
            if not is_whole(file, info):
                raise OSError(errno.EIO, f"what came is not {info.dtype} of shape {list(info.shape)}")
            if not private:
                self._cache.add(array_id.removeprefix("blake3:"), temporary, info)
        except (Refused, OSError) as error:
            file.close()
            temporary.unlink(missing_ok=True)
            if isinstance(error, Refused):
                if error.code == "unknown-array":
                    return HeldInput()
                error = OSError(errno.ESTALE, f"the API gives it to no worker: {error}")
            log.error("an input cannot be cached here: %s", error)
            return HeldInput(error=error)
        return HeldInput(file, stored(array_id, info))

    def _copy(self, info: ArrayInfo, content: memoryview, file: BinaryIO) -> ArrayInfo:
        write(file, content, self._cache.make_room)
        return info

    def _tidy(self) -> None:
        """Delete the remote store's files of processes that have ended, and the caches of earlier boots."""
        self._cache.evict()
        self._cache.delete_earlier()
        for run in self._runs.iterdir():
            with suppress(FileNotFoundError, BlockingIOError):
                lock = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(run, ignore_errors=True)
                finally:
                    os.close(lock)

    def _own_run(self) -> Path:
        """The locked directory in which this process' remote store writes until it ends."""
        while self._run is None:
            path = self._runs / secrets.token_hex(8)
            path.mkdir(mode=0o700)
            with suppress(FileNotFoundError):  # another process tidied before it was locked
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(lock, fcntl.LOCK_EX)
                if path.exists():
                    self._run = path, lock
        return self._run[0]
