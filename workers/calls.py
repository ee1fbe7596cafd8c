"""Since when a child is in a call of its device, in memory that its parent reads too.

A call that hangs may hold the interpreter, and then its process says nothing any more: no message could tell of it.
"""

import mmap
import os
import sys
import tempfile
import threading
import time

_BYTES = 8  # one float64: it is written at once, so that it is never read in halves


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
    """Begun and ended by the threads of one process, looked at by another. Calls of one thread are not nested."""

    def __init__(self, descriptor: int) -> None:
        """The descriptor may be closed afterwards: the mapping has its own."""
        self._since = memoryview(mmap.mmap(descriptor, _BYTES)).cast("d")
        self._running: dict[int, float] = {}
        self._changing = threading.Lock()

    def begin(self) -> None:
        with self._changing:
            now = time.monotonic()  # one clock for all processes of a machine
            if not self._running:
                self._since[0] = now
            self._running[threading.get_ident()] = now

    def end(self) -> None:
        with self._changing:
            del self._running[threading.get_ident()]
            self._since[0] = next(iter(self._running.values()), 0.0)  # in the order in which they began

    def seconds(self) -> float | None:
        """For how long the oldest call that has not returned has run; None where there is none."""
        since = self._since[0]
        return time.monotonic() - since if since else None
