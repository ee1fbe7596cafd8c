"""What clients and onlookers saw, and what was done to the service meanwhile, each with its time: one JSON line each.

A history says nothing of what the service thinks of itself. `checker.check` judges it.
"""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

What = Literal[
    "submitted",  # a client is about to send a job
    "acknowledged",  # it got an id: from here on the job must not be lost
    "refused",  # it was told that there is no job
    "unknown",  # it was told nothing, or nothing that it can rely on
    "canceling",  # a client is about to ask for the end of a job
    "seen",  # somebody looked at a job, between `began` and `at`
    "gone",  # the same, and there was no such job or no answer any more
    "told",  # all events of a job as its stream has them
    "listed",  # a job is among those of its owner
    "fault",  # something was done to the service
    "exit",  # one of its processes ended
]


@dataclass(frozen=True)
class Entry:
    """Times are those of time.monotonic(). What does not apply is None."""

    at: float
    what: What
    by: str
    began: float | None = None
    submission: int | None = None
    request: str | None = None  # name of the request, whose answer a clean run knows
    key: str | None = None  # Idempotency-Key
    ends: tuple[str, ...] | None = None  # how the job may end: a state, or "failed: CODE"
    job: str | None = None
    state: str | None = None
    final: bool | None = None
    code: str | None = None  # of the error of a failed job
    attempt: int | None = None
    record: str | None = None  # digest of all that is told of a final job beside the next two
    provenance: str | None = None  # digest of how the answer was computed
    answer: str | None = None  # digest of a result's outputs
    events: tuple[str, ...] | None = None  # their names in order
    detail: str | None = None


class History:
    """Thread-safe. The file is whole up to the moment something fails, so that a failed run can be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w")
        self._lock = threading.Lock()
        self._entries: list[Entry] = []

    def add(self, what: What, by: str, **details: Any) -> Entry:
        with self._lock:
            entry = Entry(at=time.monotonic(), what=what, by=by, **details)
            self._entries.append(entry)
            self._file.write(json.dumps({name: value for name, value in asdict(entry).items() if value is not None}))
            self._file.write("\n")
            self._file.flush()
        return entry

    def entries(self) -> Sequence[Entry]:
        with self._lock:
            return tuple(self._entries)

    def __enter__(self) -> "History":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


def read(path: Path) -> Iterator[Entry]:
    """A history that was written."""
    names = {field.name for field in fields(Entry)}
    with path.open() as file:
        for line in file:
            details = {name: value for name, value in json.loads(line).items() if name in names}
            for name in ("ends", "events"):
                if name in details:
                    details[name] = tuple(details[name])
            yield Entry(**details)
