"""Outputs of jobs that are files: what the client knows of them, and where their bytes go."""

import io
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from warpdesk.errors import WarpdeskError
from warpdesk.models import FileDescription


class FileBody:
    """The place that the bytes of a file from the service go to, piece by piece."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self.begin(goes_on=False)

    def begin(self, *, goes_on: bool) -> None:
        """A response begins: with the bytes after those that came, or with the first."""
        if not goes_on:
            self.size, self._digest = 0, sha256()
            self._target.seek(0)
            self._target.truncate()

    def take(self, piece: bytes) -> None:
        self._target.write(piece)
        self._digest.update(piece)
        self.size += len(piece)

    def require(self, described: FileDescription) -> None:
        """Raise WarpdeskError unless the client has the bytes that the service described."""
        if (self.size, self._digest.hexdigest()) != (described.bytes, described.sha256):
            sentence = f"{described.file} came with {self.size} bytes that are not the {described.bytes} of the result"
            raise WarpdeskError(0, "damaged-file", sentence)


class FileReference:
    """A file of a job's result at the service. Nothing of it is fetched before it is asked for."""

    def __init__(self, path: str, described: FileDescription) -> None:
        self.path, self.described = path, described
        self.name, self.media_type = described.file, described.media_type
        self.bytes, self.sha256 = described.bytes, described.sha256

    def __repr__(self) -> str:
        return f"<{self.name}, {self.media_type}, {self.bytes} bytes>"


class ResultFile(FileReference):
    """A file of a job's result at the service, which is fetched by `read` or `save`."""

    def __init__(self, fetch: Callable[[FileReference, FileBody], None], path: str, described: FileDescription) -> None:
        super().__init__(path, described)
        self._fetch = fetch

    def read(self) -> bytes:
        """Fetch the whole file from the service into memory."""
        memory = io.BytesIO()
        self._fetch(self, FileBody(memory))
        return memory.getvalue()

    def save(self, path: str | PathLike[str] = ".") -> Path:
        """Fetch the file from the service into a file here, or under its own name into a folder; returns the path.

        A path that ends in a slash is a folder, which is made if it is not there. The path has the whole file, or what
        was there before.
        """
        with _saved(self, path) as (place, body):
            self._fetch(self, body)
        return place


class AsyncResultFile(FileReference):
    """The client's `ResultFile` for asyncio: the same methods, awaited."""

    def __init__(
        self, fetch: Callable[[FileReference, FileBody], Awaitable[None]], path: str, described: FileDescription
    ) -> None:
        super().__init__(path, described)
        self._fetch = fetch

    async def read(self) -> bytes:
        """Fetch the whole file from the service into memory."""
        memory = io.BytesIO()
        await self._fetch(self, FileBody(memory))
        return memory.getvalue()

    async def save(self, path: str | PathLike[str] = ".") -> Path:
        """Fetch the file from the service into a file here, or under its own name into a folder; returns the path.

        A path that ends in a slash is a folder, which is made if it is not there. The path has the whole file, or what
        was there before.
        """
        with _saved(self, path) as (place, body):
            await self._fetch(self, body)
        return place


@contextmanager
def _saved(file: FileReference, path: str | PathLike[str]) -> Iterator[tuple[Path, FileBody]]:
    """The path that a client's file is saved to once this ends well, and where its bytes go until then."""
    place = Path(path)
    if os.fspath(path).endswith(("/", os.sep)):
        place.mkdir(parents=True, exist_ok=True)
    place = place / file.name if place.is_dir() else place
    unfinished = place.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with unfinished.open("x+b") as target:
            yield place, FileBody(target)
        unfinished.replace(place)
    finally:
        unfinished.unlink(missing_ok=True)
