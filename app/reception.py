"""How requests come in: uvicorn's protocol, which copies a body four times before a route has it, with one copy.

A request that is no HTTP, or whose head does not end, is refused with a problem document as every other refusal is.
What still comes of a body whose request was answered is read and dropped: a connection that is closed with bytes in it
is reset, and whoever was sending would learn of that instead of the answer.
"""

import asyncio
import secrets
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app import errors, observe
from app.errors import Refusal

# Bytes read at once: of a body four times as many as the event loops do, since each read is a turn of the loop and of a
# thread; of anything else few, or one connection would hold up all others.
BODY_AT_ONCE = 1 << 20
HEAD_AT_ONCE = 64 << 10

MAX_HEAD = 64 << 10  # bytes that may come without the parser having anything to tell

# As long as a 10 MB body takes at 10 Mbit/s. Whoever is slower, or has more, finds the connection closed.
DROP_SECONDS = 10.0


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


class _Answering:
    """What the answer to a request with a body is written to: its end does not end a connection that bytes still come
    in by."""

    def __init__(self, http: "_Http", cycle: RequestResponseCycle) -> None:
        self._http, self._cycle = http, cycle
        self.write = http.transport.write
        self.is_closing = http.transport.is_closing

    def close(self) -> None:
        if not (self._cycle.response_complete and self._cycle.more_body):
            self._http.transport.close()  # `on_response_complete` does otherwise


class _Http(HttpToolsProtocol):
    _unfinished = 0  # bytes since the parser last had something to tell
    _reason = ""  # why the parser was stopped, when it was not the parser that minded
    _dropping: asyncio.TimerHandle | None = None  # until when what comes is dropped
    _deaf = False  # what comes is no HTTP

    @property
    def awaits_body(self) -> bool:
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        self._dropped()
        super().connection_lost(exc)

    def data_received(self, data: bytes | memoryview) -> None:
        if self._deaf:
            return
        dropping = self._dropping
        self._unfinished += len(data)
        super().data_received(data)  # type: ignore[arg-type]  # the parser takes any buffer
        if self._unfinished > MAX_HEAD and not self._deaf:
            self._refuse(Refusal("head-too-large", f"The request line and headers are over {MAX_HEAD} bytes"))
        if dropping is not None and self._dropping is None and self.cycle.response_complete:
            self._await_next()

    def on_headers_complete(self) -> None:
        self._unfinished = 0
        has_body = {b"content-length", b"transfer-encoding"} & {name for name, _ in self.headers}
        if self.parser.should_upgrade() and has_body:
            # The parser takes what follows for the other protocol's, so that the body would be empty.
            self._reason = "This is HTTP/1.1 alone: send a request that has a body without the header Upgrade"
            raise ValueError(self._reason)
        super().on_headers_complete()
        if has_body:
            self.cycle.transport = _Answering(self, self.cycle)  # type: ignore[assignment]  # all that it calls

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        if self.cycle.response_complete:
            return
        held = self.cycle.body
        if not held:
            self.cycle.body = b""  # type: ignore[assignment]  # not an empty bytearray: to it CPython adds by copying
        elif isinstance(held, bytes):
            self.cycle.body = bytearray(held)  # the third piece and later ones are added in place
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self._dropping is not None:
            self._dropped()
            self.cycle.more_body = False
            if not self.cycle.keep_alive:
                self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()  # requests that wait are enough; uvicorn reads on after each answer
        elif self.cycle.response_complete and self.cycle.more_body and not self.transport.is_closing():
            self._drop(last=not self.cycle.keep_alive)

    def shutdown(self) -> None:
        super().shutdown()
        if self._dropping is not None:
            self.transport.close()

    def _drop(self, *, last: bool) -> None:
        """Read on, for a while, and think nothing of it; after the last answer the other side is told that it was."""
        self._unset_keepalive_if_required()
        self._dropping = self.loop.call_later(DROP_SECONDS, self.transport.close)
        if last and self.transport.can_write_eof():  # not over TLS
            self.transport.write_eof()

    def _dropped(self) -> None:
        if self._dropping is not None:
            self._dropping.cancel()
            self._dropping = None

    def _await_next(self) -> None:
        """The body has ended after its answer: what follows is the next request, as after any answer."""
        if not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

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
        cycle, self._deaf = self.cycle, True
        under_way = cycle is not None and not cycle.response_complete
        if self._dropping is not None or self.pipeline or (under_way and cycle.response_started):
            # Its request has an answer, or it would be taken for that of another, or for the end of one that is cut
            # short instead.
            self.transport.close()
        else:
            self.transport.write(STATUS_LINE[refusal.status] + head + b"\r\n" + bytes(answer.body))
            self._drop(last=True)
            if under_way:  # its route learns that no more will come
                cycle.disconnected = True
                cycle.message_event.set()
        observe.log.info("refused before it had a path: %s", refusal.code, extra={"request_id": request_id})
