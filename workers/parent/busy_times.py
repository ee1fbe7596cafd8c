"""The times for which a worker and its companion compute, which each reads of the other.

They share a device, so its energy and its price are of both: while both compute, each has half. So a joule is counted
once. The times are in a few bytes of memory that the two processes map, since neither may wait for the other.
"""

import mmap
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable

VARIABLE = "WARPDESK_BUSY_TIMES_FD"  # of a companion: the file that its worker made

# Whether the process is there, seconds of its launches that ended, and since when one runs or 0, by time.monotonic(),
# which is one clock for all processes of a machine.
_SIDE = struct.Struct("=ddd")


class BusyTimes:
    """The busy times of one of the two processes, and those of the other as this one reads them."""

    def __init__(self, fd: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`fd` is that of the other's, where that made them first."""
        self._clock = clock
        self.fd = _made() if fd is None else fd
        self._memory = mmap.mmap(self.fd, 2 * _SIDE.size)
        self._own, self._other = (0, _SIDE.size) if fd is None else (_SIDE.size, 0)
        self._total = 0.0
        self._began = clock()
        self._others_before = 0.0
        self._write(since=0.0)

    @property
    def processes(self) -> int:
        """How many of the two processes are there, and may be on the device. May be called in any thread."""
        return 1 + bool(self._read()[0])

    def begin(self) -> None:
        """Note that a launch of this process begins."""
        self._began = self._clock()
        self._others_before = self._of_other(self._began)
        self._write(since=self._began)

    def end(self) -> float:
        """Note the end of that launch, and return this process' share of the device while it ran."""
        now = self._clock()
        took, both = now - self._began, self._of_other(now) - self._others_before
        self._total += took
        self._write(since=0.0)
        return 1.0 if took <= 0 else 1.0 - min(max(both, 0.0), took) / took / 2

    def forget_other(self) -> None:
        """Note that the other process has gone, in whatever state it was."""
        _SIDE.pack_into(self._memory, self._other, 0.0, 0.0, 0.0)

    def _of_other(self, now: float) -> float:
        """Seconds for which the other has computed until now."""
        _, total, since = self._read()
        return total + (max(0.0, now - since) if since else 0.0)

    def _read(self) -> tuple[float, float, float]:
        here, total, since = _SIDE.unpack_from(self._memory, self._other)
        return here, total, since

    def _write(self, since: float) -> None:
        _SIDE.pack_into(self._memory, self._own, 1.0, self._total, since)


def _made() -> int:
    """A file for both processes; on Linux in memory, since a full disk ends whoever writes to a mapped file."""
    if sys.platform == "linux":
        fd = os.memfd_create("busy-times")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, 2 * _SIDE.size)
    return fd
