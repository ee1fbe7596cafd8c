"""The child process' device calls in progress, recorded in memory that the parent process reads too.

The memory holds when the call that is due first began, and until when it may run. A message would not do: a call that
hangs may hold the interpreter, and then its process sends nothing any more.
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
# A call counts as late if it is still late this much later: before, both processes may have been stopped together.
_MOMENT = 0.15  # seconds


def shared() -> int:
    """Make a descriptor of memory that a worker's parent and child share, to be opened as `Calls` by both."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("calls")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _BYTES)
    return descriptor


class Calls:
    """The table of device calls: the child process' threads write it, and its parent process reads it."""

    def __init__(self, descriptor: int) -> None:
        """Map the table of the child's device calls. The descriptor may be closed afterwards."""
        self._window = memoryview(mmap.mmap(descriptor, _BYTES)).cast("d")  # since when and until when; 0: in none
        self._running: dict[int, tuple[float, float]] = {}  # since when and until when, by number
        self._numbers = itertools.count()
        self._changing = threading.Lock()
        self._late = self._late_at = 0.0

    def begin(self, patience: float) -> int:
        """Record, for the parent to read, the start of a device call that should take at most `patience` seconds.

        Returns its number.
        """
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
        """Seconds for which the child's device call that is due first has run; None if there is none."""
        since = self._window[0]
        return time.monotonic() - since if since else None

    def late(self) -> bool:
        """Whether the child's device call that is due first is past its limit, and was so `_MOMENT` seconds ago too."""
        now, until = time.monotonic(), self._window[1]
        if not until or now < until:
            return False
        if self._late != until:
            self._late, self._late_at = until, now
        return now - self._late_at >= _MOMENT

    def _tell(self) -> None:
        self._window[0], self._window[1] = min(self._running.values(), key=itemgetter(1), default=(0.0, 0.0))
