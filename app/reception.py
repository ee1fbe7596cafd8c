"""How bytes come in: uvicorn's protocol, which copies a body four times on its way to a route, made to copy it once.

It reads into a buffer of ours instead of new bytes, and hands on the parser's bytes as they are instead of through a
`bytearray`. What is no HTTP at all gets the problem document that every other refusal is.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app import errors
from app.errors import Refusal

READ_AT_ONCE = 256 << 10


class Reception(HttpToolsProtocol, asyncio.BufferedProtocol):
    # One for all connections: the event loop fills it and has it read in one step, and the parser keeps no view of it.
    _incoming = memoryview(bytearray(READ_AT_ONCE))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's wish, which is always the same
        return self._incoming

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._incoming[:nbytes])  # type: ignore[arg-type]  # the parser takes any buffer

    def on_body(self, body: bytes) -> None:
        if not self.cycle.body:  # an empty bytearray; to empty bytes CPython adds others without a copy
            self.cycle.body = b""  # type: ignore[assignment]
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        answer = errors.response(Refusal("bad-request", msg))
        headers = {**answer.headers, "connection": "close"}
        lines = [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items()]
        self.transport.write(b"".join([STATUS_LINE[400], *lines, b"\r\n", bytes(answer.body)]))
        self.transport.close()
