"""Server-sent events out of the pieces a stream comes in (HTML standard, section 9.2.6)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a CR at the end may be half of a CRLF


@dataclass(frozen=True)
class Message:
    """One event: the id it leaves the stream at, its type, its data."""

    id: str
    event: str
    data: str


class EventStream:
    """What came of one stream; `retry` is the pause in seconds that the service asks for before it is opened again."""

    def __init__(self) -> None:
        self.retry: float | None = None
        self._rest = b""
        self._id = self._event = ""
        self._data: list[str] = []

    def take(self, piece: bytes) -> Iterator[Message]:
        """The events that this piece completes."""
        *lines, self._rest = _LINE_END.split(self._rest + piece)
        for line in lines:
            if line:
                self._field(line.decode("utf-8", "replace"))
                continue
            if self._data:
                yield Message(self._id, self._event or "message", "\n".join(self._data))
            self._event, self._data = "", []

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry = int(value) / 1000
