"""The parser of server-sent events (HTML standard, section 9.2.6), which takes the stream in pieces of any size."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a CR at the end may be half of a CRLF


@dataclass(frozen=True)
class Message:
    """One server-sent event from the service: the stream's last event id, the event's type and its data."""

    id: str
    event: str
    data: str


class EventStream:
    """The client's parser of one event stream. `retry` is the pause in seconds that the service asks for before a
    reconnect."""

    def __init__(self) -> None:
        self.retry: float | None = None
        self._rest = b""
        self._id = self._event = ""
        self._data: list[str] = []

    def take(self, piece: bytes) -> Iterator[Message]:
        """Parse one piece of the service's event stream, and yield the events that it completes."""
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
