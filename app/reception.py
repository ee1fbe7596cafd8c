"""How requests come in: uvicorn's protocol, which copies a body four times before a route has it, with half the copies.

A request that is no HTTP, or whose head does not end, is refused with a problem document as every other refusal is.
"""

import secrets

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app import errors, observe
from app.errors import Refusal

MAX_HEAD = 64 << 10  # bytes that may come without a request line and headers being complete


class Reception(HttpToolsProtocol):
    _unfinished = 0  # bytes since the parser last had something to tell

    def data_received(self, data: bytes) -> None:
        self._unfinished += len(data)
        super().data_received(data)
        if self._unfinished > MAX_HEAD and not self.transport.is_closing():
            self._refuse(Refusal("head-too-large", f"The request line and headers are over {MAX_HEAD} bytes"))

    def on_headers_complete(self) -> None:
        self._unfinished = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        held = self.cycle.body
        if not held:
            self.cycle.body = b""  # type: ignore[assignment]  # not an empty bytearray: to it CPython adds by copying
        elif isinstance(held, bytes):
            self.cycle.body = bytearray(held)  # the third piece and later ones are added in place
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        self._refuse(Refusal("bad-request", msg))

    def _refuse(self, refusal: Refusal) -> None:
        request_id = secrets.token_hex(8)
        answer = errors.response(refusal)
        headers = {**observe.SAFE_HEADERS, **answer.headers, "X-Request-ID": request_id, "Connection": "close"}
        lines = [
            *self.server_state.default_headers,
            *((key.encode(), value.encode()) for key, value in headers.items()),
        ]
        head = b"".join(b"%s: %s\r\n" % line for line in lines)
        self.transport.write(STATUS_LINE[refusal.status] + head + b"\r\n" + bytes(answer.body))
        self.transport.close()
        observe.log.info("refused before it had a path: %s id=%s", refusal.code, request_id)
