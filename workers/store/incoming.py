"""A job result that a worker on another host sends into the store."""

import errno
import secrets
import shutil
from hashlib import file_digest, sha256
from pathlib import Path

from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.workers.queue.protocol import ArrayOutput, FileOutput, ResultDocument
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.files import alone_in
from warpdesk_server.workers.store.npy_writer import FileWriter, NpyWriter
from warpdesk_server.workers.store.secret import StoreKeys, id_of

_READ_AT_ONCE = 1 << 20  # bytes of an output that is proven


class IncomingResult:
    """A job result that is being received from a worker on another host. It is moved to its place in the store once it
    is whole."""

    def __init__(
        self, uploads: Path, place: Path, owner: str, keys: StoreKeys, kept_free: int, *, forced: bool
    ) -> None:
        self._place, self._owner, self._keys, self._kept_free, self._forced = place, owner, keys, kept_free, forced
        self._directory = uploads / secrets.token_hex(16)
        self._directory.mkdir(mode=0o700)

    def writer(self, file: str, dtype: DType, shape: tuple[int, ...]) -> NpyWriter:
        """Begin the array file of one output of the received result; the writer's `finish` returns the array's id."""
        info = ArrayInfo(dtype, shape)
        mac = self._keys.array_mac(self._owner, info)
        return NpyWriter(self._directory / file, info, mac, self._kept_free, forced=self._forced)

    def file_writer(self, file: str, size: int) -> FileWriter:
        """Begin the file of one output of the received result; the writer's `finish` returns its SHA-256."""
        return FileWriter(self._directory / file, size, sha256(), self._kept_free, forced=self._forced)

    def move(self, document: str) -> bool:
        """Add `result.json` and move the received result to its place in the store. False if the attempt has a result
        already.

        Nothing replaces a result that may be committed. One that a power cut damaged was never committed: it is
        replaced.
        """
        (self._directory / "result.json").write_text(document)
        if self._moved():
            return True
        with alone_in(self._place.parent):
            if self._is_whole():
                return False
            shutil.rmtree(self._place, ignore_errors=True)
            return self._moved()

    def _moved(self) -> bool:
        """Move the received directory to the result's place in the store; False if a directory with files is there."""
        try:
            self._directory.rename(self._place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
        return True

    def _is_whole(self) -> bool:
        """Whether the files of the result that is stored already match its document."""
        try:
            document = ResultDocument.model_validate_json((self._place / "result.json").read_bytes())
            for output in document.outputs.values():
                if isinstance(output, FileOutput):
                    with (self._place / output.file).open("rb") as stream:
                        if file_digest(stream, "sha256").hexdigest() != output.sha256:
                            return False
                if isinstance(output, ArrayOutput):
                    mac = self._keys.array_mac(self._owner, output.info)
                    with (self._place / output.file).open("rb") as stream:
                        stream.seek(len(npy.header(output.dtype, output.shape)))
                        while piece := stream.read(_READ_AT_ONCE):
                            mac.update(piece)
                    if id_of(mac) != output.id:
                        return False
        except (OSError, ValueError):
            return False
        return True

    def discard(self) -> None:
        """Delete the received result's files, unless they were moved to their place in the store."""
        shutil.rmtree(self._directory, ignore_errors=True)
