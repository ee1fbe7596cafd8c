"""How requests come in: uvicorn's protocol, which copies a body four times before a route has it, with one copy.

A request that is no HTTP, or whose head does not end, is refused with a problem document as every other refusal is.
"""

import asyncio
import secrets
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app import errors, observe
from app.errors import Refusal

# Bytes read at once: of a body four times as many as the event loops do, since each read is a turn of the loop and of a
# thread; of anything else few, or one connection would hold up all others.
BODY_AT_ONCE = 1 << 20
HEAD_AT_ONCE = 64 << 10

MAX_HEAD = 64 << 10  # bytes that may come without the parser having anything to tell


class Reception(asyncio.BufferedProtocol):
    """What uvicorn makes for each connection: it reads into one buffer, and hands the parser a view of it.

    Not a subclass of uvicorn's protocol, which is an `asyncio.Protocol`: uvloop gives those new bytes for each read.
    """

    # One for all connections: the loop fills it and has it read in one step, and the parser copies what it keeps.
    _incoming = memoryview(bytearray(BODY_AT_ONCE))

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._http = _Http(*arguments, **options)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's wish, which is always the same
        return self._incoming if self._http.awaits_body else self._incoming[:HEAD_AT_ONCE]

    def buffer_updated(self, nbytes: int) -> None:
        self._http.data_received(self._incoming[:nbytes])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._http.connection_made(transport)  # type: ignore[arg-type]  # (a loop makes no other for TCP)

    def connection_lost(self, exc: Exception | None) -> None:
        self._http.connection_lost(exc)

    def eof_received(self) -> None:
        self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()


class _Http(HttpToolsProtocol):
    _unfinished = 0  # bytes since the parser last had something to tell
    _reason = ""  # why the parser was stopped, when it was not the parser that minded

    @property
    def awaits_body(self) -> bool:
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def data_received(self, data: bytes | memoryview) -> None:
        self._unfinished += len(data)
        super().data_received(data)  # type: ignore[arg-type]  # the parser takes any buffer
        if self._unfinished > MAX_HEAD and not self.transport.is_closing():
            self._refuse(Refusal("head-too-large", f"The request line and headers are over {MAX_HEAD} bytes"))

    def on_headers_complete(self) -> None:
        self._unfinished = 0
        has_body = {b"content-length", b"transfer-encoding"} & {name for name, _ in self.headers}
        if self.parser.should_upgrade() and has_body:
            # The parser takes what follows for the other protocol's, so that the body would be empty.
            self._reason = "This is HTTP/1.1 alone: send a request that has a body without the header Upgrade"
            raise ValueError(self._reason)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        held = self.cycle.body
        if not held:
            self.cycle.body = b""  # type: ignore[assignment]  # not an empty bytearray: to it CPython adds by copying
        elif isinstance(held, bytes):
            self.cycle.body = bytearray(held)  # the third piece and later ones are added in place
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()  # requests that wait are enough; uvicorn reads on after each answer

    def send_400_response(self, msg: str) -> None:
        self._refuse(Refusal("bad-request", self._reason or msg))

    def _refuse(self, refusal: Refusal) -> None:
        request_id = secrets.token_hex(8)
        answer = errors.response(refusal)
        headers = {**observe.SAFE_HEADERS, **answer.headers, "X-Request-ID": request_id, "Connection": "close"}
        lines = [
            *self.server_state.default_headers,
            *((key.encode(), value.encode()) for key, value in headers.items()),
        ]
        head = b"".join(b"%s: %s\r\n" % line for line in lines)
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(STATUS_LINE[refusal.status] + head + b"\r\n" + bytes(answer.body))
        # else it would be taken for the end of an answer under way, which is cut short instead
        self.transport.close()
        observe.log.info("refused before it had a path: %s id=%s", refusal.code, request_id)
