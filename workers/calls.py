"""Since when a child is in a call of its device, and until when it may be, in memory that its parent reads too.

A call that hangs may hold the interpreter, and then its process says nothing any more: no message could tell of it.
"""

import itertools
import mmap
import os
import sys
import tempfile
import threading
import time
from operator import itemgetter

_BYTES = 16  # two float64: each is written at once, so that it is never read in halves
# What is late a moment later as well was not only stopped together with whoever looks.
_MOMENT = 0.15  # seconds


def shared() -> int:
    """A new descriptor of such memory, for Calls of this process and of another."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("calls")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _BYTES)
    return descriptor


class Calls:
    """Begun and ended by the threads of one process, looked at by another."""

    def __init__(self, descriptor: int) -> None:
        """The descriptor may be closed afterwards: the mapping has its own."""
        self._window = memoryview(mmap.mmap(descriptor, _BYTES)).cast("d")  # since when and until when; 0: in none
        self._running: dict[int, tuple[float, float]] = {}  # since when and until when, by number
        self._numbers = itertools.count()
        self._changing = threading.Lock()
        self._late = self._late_at = 0.0

    def begin(self, patience: float) -> int:
        """A call that should take so many seconds at most. Returns its number."""
        number = next(self._numbers)
        with self._changing:
            now = time.monotonic()  # one clock for all processes of a machine
            self._running[number] = now, now + patience
            self._tell()
        return number

    def end(self, number: int) -> None:
        with self._changing:
            del self._running[number]
            self._tell()

    def seconds(self) -> float | None:
        """For how long the call that is due first has run; None where there is none."""
        since = self._window[0]
        return time.monotonic() - since if since else None

    def late(self) -> bool:
        """Whether it runs for longer than it should, and did so a moment ago."""
        now, until = time.monotonic(), self._window[1]
        if not until or now < until:
            return False
        if self._late != until:
            self._late, self._late_at = until, now
        return now - self._late_at >= _MOMENT

    def _tell(self) -> None:
        self._window[0], self._window[1] = min(self._running.values(), key=itemgetter(1), default=(0.0, 0.0))
