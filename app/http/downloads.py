"""HTTP responses that send a file of the store, or a range of it, even if the file is deleted meanwhile."""

import os
import re
from collections.abc import AsyncIterator, Mapping
from email.utils import formatdate
from pathlib import Path
from typing import Any, BinaryIO

import anyio.to_thread
from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from warpdesk_server.app.kit import errors
from warpdesk_server.app.kit.errors import Refusal

_AT_ONCE = 256 * 1024  # bytes read by one call of a thread

RANGE: dict[str, Any] = {
    "parameters": [
        {
            "name": "Range",
            "in": "header",
            "description": "`bytes=first-last`: that part of an .npy or file (RFC 9110 section 14); other units are "
            "ignored, and so are several parts at once",
            "schema": {"type": "string"},
        }
    ]
}
RANGED: dict[int | str, dict[str, Any]] = {
    206: {
        "description": "The part that `Range` asks for",
        "content": {
            "application/x-npy": {"schema": {"type": "string", "format": "binary"}},
            "*/*": {"schema": {"type": "string", "format": "binary"}},
        },
        "headers": {"Content-Range": {"schema": {"type": "string"}}},
    },
    **errors.documented("bad-request", "range-not-satisfiable"),
}

# int-range and suffix-range of RFC 9110 section 14.1.1; no file has a size of 20 digits.
_PART = re.compile(r"(?P<first>[0-9]{1,19})-(?P<last>[0-9]{0,19})|-(?P<suffix>[0-9]{1,19})")


async def download(request: Request, path: Path, headers: Mapping[str, str], media_type: str) -> StreamingResponse:
    """The HTTP response that sends a file; `headers` hold its ETag.

    Raises FileNotFoundError, and a Refusal for an invalid or empty range.
    """
    file = await anyio.to_thread.run_sync(_open, path)
    try:
        return _Download(request, file, headers, media_type)
    except BaseException:
        file.close()
        raise


def _open(path: Path) -> BinaryIO:
    return path.open("rb", buffering=0)


class _Download(StreamingResponse):
    """A streaming HTTP response of a file that is already open: a deleted file stays readable while it is open."""

    def __init__(self, request: Request, file: BinaryIO, headers: Mapping[str, str], media_type: str) -> None:
        self._file = file
        status = os.fstat(file.fileno())
        headers = {
            **headers,
            "Accept-Ranges": "bytes",
            "Last-Modified": formatdate(status.st_mtime, usegmt=True),
        }
        part = _part(request, headers, status.st_size)
        self._first, end = part or (0, status.st_size)
        self._end = end
        headers["Content-Length"] = str(end - self._first)
        if part is not None:
            headers["Content-Range"] = f"bytes {self._first}-{end - 1}/{status.st_size}"
        body = self._pieces() if request.method == "GET" else _nothing()
        super().__init__(body, 200 if part is None else 206, headers, media_type)

    async def _pieces(self) -> AsyncIterator[bytes]:
        place = self._first
        while place < self._end:
            length = min(_AT_ONCE, self._end - place)
            piece = await anyio.to_thread.run_sync(os.pread, self._file.fileno(), length, place)
            if not piece:  # files of the store are never truncated; the server ends the connection
                raise OSError(f"the file ends at byte {place} of {self._end}")
            yield piece
            place += len(piece)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()


async def _nothing() -> AsyncIterator[bytes]:
    """The empty body of an HTTP response to HEAD."""
    yield b""


def _part(request: Request, headers: Mapping[str, str], size: int) -> tuple[int, int] | None:
    """The range of a file that an HTTP request asks for: its first byte and the byte after its last. None for the
    whole file."""
    text = request.headers.get("range", "")
    unit, _, parts = text.partition("=")
    if request.method != "GET" or unit.strip().lower() != "bytes":  # RFC 9110 section 14.2: both ignore it
        return None
    if request.headers.get("if-range", headers["ETag"]) not in (headers["ETag"], headers["Last-Modified"]):
        return None
    wanted = [_positions(part.strip(" \t"), size) for part in parts.split(",") if part.strip(" \t")]
    if not wanted or None in wanted:
        sentence = f"Range {text[:200]!r} is not bytes=first-last with two positions, the first not after the last"
        raise Refusal("bad-request", sentence)
    there = [(first, min(end, size)) for first, end in filter(None, wanted) if first < min(end, size)]
    if not there:
        sentence = f"Range {text[:200]!r} begins at or after the end of the {size} bytes"
        raise Refusal("range-not-satisfiable", sentence, headers={"Content-Range": f"bytes */{size}"})
    return there[0] if len(there) == 1 else None


def _positions(part: str, size: int) -> tuple[int, int] | None:
    """One range of the Range header, from its first byte to the byte after its last; None if it is invalid."""
    match = _PART.fullmatch(part)
    if match is None:
        return None
    if match["suffix"]:
        return max(0, size - int(match["suffix"])), size
    first, last = int(match["first"]), int(match["last"] or size - 1)
    if match["last"] and last < first:
        return None
    return first, last + 1
