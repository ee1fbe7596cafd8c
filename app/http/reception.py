"""The HTTP protocol of a connection: uvicorn's with httptools, plus time limits and fewer copies of a body.

Why it is here, and not left to a proxy: the service is often run without one. It does what uvicorn does not.
- Time: a head must be complete within `head_seconds`. A body must keep `body_rate`. The client must read its response.
- Number: connections are counted by address, and those beyond the limits are refused.
- Answers: bytes that are not HTTP, and heads that are too long or malformed, are answered with a problem document.
- Lingering close: the rest of a body whose request was answered is read and dropped for `DROP_SECONDS`. A connection
  closed with unread bytes is reset, and its client would see the reset instead of the answer.
- Speed: an upload is copied once before its route has it. uvicorn copies it four times.

What it uses of uvicorn is private to it, so a release may take it away. `pyproject.toml` names the highest release that
is let in, and `tests/app/http/test_uvicorn.py` lists every attribute and fails by name where one is missing:
- of `HttpToolsProtocol` the parser's callbacks, the current `cycle`, its `pipeline`, and the keep-alive timer;
- of `RequestResponseCycle` the `body` it gathers, the `transport` it answers on, and the flags of its progress;
- of `FlowControl` whether reading is paused.
"""

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from warpdesk_server.app.access.peers import Peer
from warpdesk_server.app.http import observe
from warpdesk_server.app.http.connections import Connections, most_connections
from warpdesk_server.app.kit import errors
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.limits import Share, network
from warpdesk_server.app.settings import Settings

# Bytes of one read. Of a body four times as many as the event loops read, since each read costs a turn of the loop and
# of a thread. Of anything else few, or one connection would delay all others.
BODY_AT_ONCE = 1 << 20
HEAD_AT_ONCE = 64 << 10

MAX_HEAD = 64 << 10  # bytes that may come before the parser calls back

LEAST_READ = 64 << 10  # bytes of a blocked response that the client must read within `idle_seconds`

LOOKS = 4  # checks in the time that a head or a body has

# As long as a 10 MB body takes at 10 Mbit/s. For a slower client, or a larger body, the connection is closed.
DROP_SECONDS = 10.0


def reception(settings: Settings) -> Callable[..., "Reception"]:
    """The factory of HTTP protocols for uvicorn's option `http`, one for each server."""
    whole = most_connections(settings.max_connections)
    return partial(Reception, settings, Connections(settings.max_connections_per_address, whole))


class Reception(asyncio.BufferedProtocol):
    """The protocol that uvicorn makes for each HTTP connection. It reads into one buffer and passes on a view of it.

    Not a subclass of uvicorn's protocol, which is an `asyncio.Protocol`: uvloop allocates new bytes for each of its
    reads.
    """

    # One for all connections: the loop fills it and hands it over in one step, and the parser copies what it keeps.
    _incoming = memoryview(bytearray(BODY_AT_ONCE))

    def __init__(self, settings: Settings, connections: Connections, *arguments: Any, **options: Any) -> None:
        self._http = _Http(settings, connections, *arguments, **options)

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
    """The transport of an HTTP response. The head goes with the first piece of the body: each write wakes the client.

    Its `close` does not end a connection that still receives the request's body.
    """

    def __init__(self, http: "_Http", cycle: RequestResponseCycle) -> None:
        self._http, self._cycle = http, cycle
        self._head: bytes | None = None  # what is not sent yet
        self._headless = True
        self.is_closing = http.transport.is_closing

    def write(self, data: bytes) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._http.transport.writelines((head, data))
        elif self._headless and self._cycle.response_started:  # (before that "100 Continue" is written)
            self._head, self._headless = data, False
            self._http.loop.call_soon(self._send_head)  # a stream of events has no first piece yet
        else:
            self._http.transport.write(data)

    def _send_head(self) -> None:
        if self._head is not None and not self.is_closing():
            self._http.transport.write(self._head)
        self._head = None

    def close(self) -> None:
        self._send_head()
        if not (self._cycle.response_complete and self._cycle.more_body):
            self._http.transport.close()  # in the other case `on_response_complete` closes it


class _Http(HttpToolsProtocol):
    _unfinished = 0  # bytes since the parser last called back
    _reason = ""  # why this class stopped the parser; empty if the parser itself did
    _dropping: asyncio.TimerHandle | None = None  # closes the connection if the rest of a dropped body takes too long
    _deaf = False  # received bytes are ignored: the connection was refused

    _due: float | None = None  # when the head must be complete, or the body is too slow; None between requests
    _watch: asyncio.TimerHandle | None = None  # the next check of `_due`
    _looked = 0.0

    _place: Share | None = None  # among the connections
    _reading: asyncio.TimerHandle | None = None  # the next check whether the client reads its response

    def __init__(self, settings: Settings, connections: Connections, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._all = connections
        self._head_seconds, self._body_seconds = settings.head_seconds, settings.body_seconds
        self._body_rate = settings.body_rate
        self.timeout_keep_alive = settings.idle_seconds  # type: ignore[assignment]  # what a timer takes
        self._look_seconds = min(self._head_seconds, self._body_seconds) / LOOKS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self.app_state = {**self.app_state, "peer": Peer(self.server, self.client)}  # the `state` of its requests
        try:
            self._place = self._all.admit(self, self._sender())
        except Refusal as refusal:
            self._turn_away(refusal)
        else:
            self._await_next()

    def _sender(self) -> str:
        """The client that this HTTP connection counts for: its network address, or the connection itself behind a
        proxy.

        All connections through a proxy have the proxy's address. So each connection of a trusted proxy (uvicorn's
        `FORWARDED_ALLOW_IPS`) counts by itself.
        """
        host, port = self.client or ("", 0)
        trusted = isinstance(self.app, ProxyHeadersMiddleware) and host in self.app.trusted_hosts
        return f"{host} {port} {id(self)}" if trusted or not host else network(host)

    def _turn_away(self, refusal: Refusal) -> None:
        """Refuse an HTTP connection with a reason, or close it without one while many others are being refused."""
        try:
            self._place = self._all.refused.take("")
        except Refusal:
            self.transport.abort()
        else:
            self._refuse(refusal)

    def evict(self) -> None:
        """Close this idle HTTP connection to make room for a new one."""
        self._leave()
        self.transport.abort()

    def _leave(self) -> None:
        """Give up this connection's place among the open HTTP connections."""
        self._all.begun(self)
        if self._place is not None:
            self._place.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_awaiting_reader()

    def _await_reader(self) -> None:
        """Start the timer that closes the HTTP connection if the client reads too little of its response meanwhile."""
        unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(self.timeout_keep_alive, self._see_reader, unread)

    def _see_reader(self, unread: int) -> None:
        """Close the HTTP connection if the client has read less than LEAST_READ of its response since the last
        check."""
        if unread - self.transport.get_write_buffer_size() < LEAST_READ:
            self.transport.abort()
        else:
            self._await_reader()

    def _stop_awaiting_reader(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    @property
    def awaits_body(self) -> bool:
        """Whether the HTTP connection receives a request's body that its route still wants."""
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._stop_awaiting_reader()
        self._dropped()
        self._unset_keepalive_if_required()
        if self._watch is not None:
            self._watch.cancel()
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
        self._keep_watch(len(data))

    def _keep_watch(self, received: int) -> None:
        """Set the time by which an HTTP request's head or body is due. Each piece of a body extends it by its time
        at `body_rate`."""
        if self._due is None:
            if not self._unfinished:
                return
            self._due = self.loop.time() + self._head_seconds  # line ends before a request
        elif self.awaits_body:
            self._due = min(self._due + received / self._body_rate, self.loop.time() + self._body_seconds)
        if self._watch is None:
            self._look_later()

    def _look_later(self) -> None:
        self._looked = self.loop.time()
        self._watch = self.loop.call_later(self._look_seconds, self._look)

    def _look(self) -> None:
        """Refuse an HTTP request whose head or body is too slow. Time in which the server itself did not read does
        not count."""
        self._watch = None
        if self._due is None or self._deaf or self._dropping is not None or self.transport.is_closing():
            return
        now = self.loop.time()
        late = now - self._looked > 2 * self._look_seconds
        answering = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        unasked = self.awaits_body and self.cycle.waiting_for_100_continue
        if answering or unasked or self.flow.read_paused or late:
            self._due += now - self._looked
        if now < self._due:
            self._look_later()
        elif self.awaits_body:
            pace = f"{self._body_rate} bytes a second, over {self._body_seconds:g} seconds"
            self._refuse(Refusal("too-slow", f"The body comes more slowly than {pace}"))
        else:
            sentence = f"The request line and headers were not complete after {self._head_seconds:g} seconds"
            self._refuse(Refusal("too-slow", sentence))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._due = self.loop.time() + self._head_seconds

    def on_headers_complete(self) -> None:
        self._unfinished = 0
        self._due = self.loop.time() + self._body_seconds
        names = [name for name, _ in self.headers]
        has_body = b"content-length" in names or b"transfer-encoding" in names
        self._reason = self._unusable(names, has_body=has_body)
        if self._reason:
            raise ValueError(self._reason)
        super().on_headers_complete()
        self._all.begun(self)
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # after an upgrade the parser does not parse HTTP any more
        self.cycle.transport = _Answering(self, self.cycle)  # type: ignore[assignment]  # all that it calls

    def _unusable(self, names: list[bytes], *, has_body: bool) -> str:
        """The reason to refuse an HTTP head that the parser accepts; empty if none (RFC 9112, sections 3.2, 6.1)."""
        version, hosts = self.parser.get_http_version(), names.count(b"host")
        if hosts > 1:
            return f"The request has {hosts} headers Host; it may have one"
        if not hosts and version == "1.1":
            return "The request has no header Host, which HTTP/1.1 needs"
        if version == "1.0" and b"transfer-encoding" in names:
            return "HTTP/1.0 has no Transfer-Encoding: send the header Content-Length"
        if has_body and self.parser.should_upgrade():
            # The parser would treat the body as bytes of the other protocol, so it would be empty.
            return "The service speaks HTTP/1.1 only: send a request with a body without the header Upgrade"
        return ""

    def _unsupported_upgrade_warning(self) -> None:
        """No warning as uvicorn's: an HTTP request's offered upgrade is ignored, and no library is missing."""

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        if self.cycle.response_complete:
            return
        held = self.cycle.body
        if not held:
            self.cycle.body = b""  # type: ignore[assignment]  # CPython copies what it adds to an empty bytearray
        elif isinstance(held, bytes):
            self.cycle.body = bytearray(held)  # the third and later pieces are appended in place
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unfinished, self._due = 0, None
        super().on_message_complete()
        if self._dropping is not None:
            self._dropped()
            self.cycle.more_body = False
            if not self.cycle.keep_alive:
                self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and self.parser is not None:  # (None once the connection is lost)
            self._all.answered(self)
        if self.pipeline:
            self.flow.pause_reading()  # uvicorn would read on after each response, though requests already wait
        elif self.cycle.response_complete and self.cycle.more_body and not self.transport.is_closing():
            self._drop(last=not self.cycle.keep_alive)

    def shutdown(self) -> None:
        super().shutdown()
        if self._dropping is not None:
            self.transport.close()

    def _drop(self, *, last: bool) -> None:
        """Discard the rest of an HTTP request's body for up to `DROP_SECONDS`. After the last response, half-close."""
        self._unset_keepalive_if_required()
        if self.cycle is not None:
            self.cycle.body = bytearray()
        self._dropping = self.loop.call_later(DROP_SECONDS, self.transport.close)
        if last and self.transport.can_write_eof():  # not over TLS
            self.transport.write_eof()

    def _dropped(self) -> None:
        """Stop discarding an HTTP request's body: it has ended, or the connection is lost."""
        if self._dropping is not None:
            self._dropping.cancel()
            self._dropping = None

    def _await_next(self) -> None:
        """Start the keep-alive timer of an idle HTTP connection, on which the next request may come."""
        if not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def send_400_response(self, msg: str) -> None:
        self._refuse(Refusal("bad-request", self._reason or msg))

    def _refuse(self, refusal: Refusal) -> None:
        """Refuse the HTTP connection's request with a problem document if it is not answered yet, and close."""
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
            # The request is already answered, or the client would take this response for that of an earlier request,
            # or for the rest of a response that has begun.
            self.transport.close()
        else:
            self.transport.write(STATUS_LINE[refusal.status] + head + b"\r\n" + bytes(answer.body))
            self._drop(last=True)
            if under_way:  # the route must learn that the rest of the body will not come
                cycle.waiting_for_100_continue = False
                cycle.disconnected = True
                cycle.message_event.set()
        observe.log.info("refused before its path was read: %s", refusal.code, extra={"request_id": request_id})
