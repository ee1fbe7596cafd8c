"""Run a job chunk by chunk, as many at a time as device memory holds.

The cut belongs to the job (`Operation.grid`); memory decides only how many chunks are resident, so no bit of an answer
depends on it. When memory runs out: give back what the pool keeps for reuse, wait a moment for what others have, on the
device or in this process, take fewer chunks. One chunk that does not fit is OutOfMemory, after which the caller goes to
the CPU.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from warpdesk_server.kernels import progress
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.faults import DeviceLost, OutOfMemory
from warpdesk_server.kernels.gpu.memory import let_go
from warpdesk_server.kernels.operation import Grid

Work = Callable[[int, int], None]

PATIENCE = 0.5  # seconds to wait for memory that others have: about what a job of theirs takes
# The least a part is worth a copy of its own beside the next one's, in bytes: 2 ms of a PCIe 4 link, where a part costs
# some 0.1 ms to begin and to end.
PART = 64 << 20
_LEAST_PARTS = 20  # parts, as far as there are chunks, where progress has a listener
_TICK = 0.01  # seconds between looks at what other processes have left


def run(device: Device, grid: Grid, work: Work, *, overlap: bool = False) -> None:
    """Call work(first, end) on consecutive parts of range(grid.chunks) until all are done, each part in memory at once.

    `work` computes its chunks and writes their results to host memory. It is called again for the same chunks, or for
    fewer of them, after it ran out of memory: so it changes what it shares with others last, when nothing can fail any
    more, and lets go of its device arrays when it returns or fails. `grid.fixed` is counted for every call.

    Parts whose calls share nothing that they change may `overlap`: on a device with lanes a large job then runs in
    several threads, one part's copies beside another's, in any order, and the parts are smaller than memory asks for.
    They are also smaller where progress has a listener (kernels.progress).

    Raises OutOfMemory where one chunk does not fit, with the bytes, and what the device said as its cause. Any other
    failure of a part ends the job: it is raised once, when no lane is at work any more.
    """
    job = _Job(device, grid, work)
    if overlap and device.lanes > 1:
        job.in_lanes()
    job.alone()


class _Job:
    def __init__(self, device: Device, grid: Grid, work: Work) -> None:
        self._device = device
        self._memory = device.memory
        self._grid = grid
        self._work = work
        self._todo = [(0, grid.chunks)] if grid.chunks else []
        # With a listener, as many parts as do not spend their time on what each of them needs beside its chunks.
        parts = min(_LEAST_PARTS, grid.chunks * grid.each // max(4 * grid.fixed, 1)) if progress.has_listener() else 1
        self._most = -(-grid.chunks // max(parts, 1))
        self._resident = self._most  # at most so many chunks are in one part
        self._done = 0
        self._lock = threading.Lock()
        self._stop = False
        self._failures: list[BaseException] = []

    def alone(self) -> None:
        """Do what is left in this thread."""
        if not self._todo:
            return
        self._stop, again = False, False
        self._resident = self._fitting(self._resident)
        while (part := self._take()) is not None:
            failure = self._attempt(*part)
            if failure is None:
                again = False
                continue
            self._todo.append(part)
            self._memory.release()
            count = part[1] - part[0]
            if count > 1:
                self._resident = self._fitting(count // 2)
            elif again:
                raise self._gave_up(failure) from failure
            else:
                again = True
                self._await(self._need(1))

    def in_lanes(self) -> None:
        """Do what can be done by all lanes at a time; what ran out of memory is left."""
        lanes, grid = self._device.lanes, self._grid
        parts = min(grid.chunks, grid.chunks * grid.each // max(PART, 4 * grid.fixed))
        if parts < 2:
            return
        self._resident = min(-(-grid.chunks // parts), self._count(lanes))
        if self._resident < 1:
            self._resident = self._most
            return
        # Asked for here: a lane begins after what this thread has prepared, and does not wait for its first part too.
        others = [self._device.lane(index) for index in range(1, lanes)]
        threads = [threading.Thread(target=self._lane, args=(lane,), daemon=True) for lane in others]
        for thread in threads:
            thread.start()
        try:
            self._parts()
        finally:
            self._stop = True
            for thread in threads:
                thread.join()
        if self._failures:
            # Of several, the one after which this process must end.
            raise next((each for each in self._failures if isinstance(each, DeviceLost)), self._failures[0])

    def _lane(self, lane: AbstractContextManager[None]) -> None:
        try:
            with lane:
                self._parts()
        except BaseException as error:  # noqa: BLE001 (raised in the caller's thread)
            self._fail(error)

    def _parts(self) -> None:
        while not self._stop and (part := self._take()) is not None:
            try:
                failure = self._attempt(*part)
            except BaseException as error:  # noqa: BLE001 (raised when all lanes have stopped)
                self._fail(error)
                return
            if failure is not None:
                with self._lock:
                    self._todo.append(part)
                self._stop = True  # one lane needs less than two

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failures.append(error)
        self._stop = True

    def _take(self) -> tuple[int, int] | None:
        with self._lock:
            if not self._todo:
                return None
            first, end = self._todo.pop()
            last = min(end, first + self._resident)
            if last < end:
                self._todo.append((last, end))
            return first, last

    def _attempt(self, first: int, end: int) -> OutOfMemory | None:
        try:
            with self._memory.reserve(self._need(end - first), PATIENCE):
                self._work(first, end)
        except OutOfMemory as error:
            let_go(error)  # else it would hold the arrays of the failed call while the next one is made
            return error
        except BaseException as error:
            let_go(error)  # as the caller may compute on while it handles it
            raise
        with self._lock:
            self._done += end - first
        progress.report(self._done / self._grid.chunks)
        return None

    def _need(self, count: int) -> int:
        return self._grid.fixed + count * self._grid.each

    def _count(self, lanes: int = 1) -> int:
        """How many chunks fit into what is not reserved, in each lane."""
        return (self._memory.unreserved() // lanes - self._grid.fixed) // self._grid.each

    def _fitting(self, most: int) -> int:
        """How many chunks fit, from one to `most`: whether one does is found out by running it."""
        if not self._grid.each or self._count() >= most:
            return most
        self._memory.release()
        if self._count() < most:
            self._await(self._need(most))
        return max(1, min(most, self._count()))

    def _await(self, nbytes: int) -> None:
        """Wait for other processes on the device, where it is them who leave too little."""
        until = time.monotonic() + PATIENCE
        while self._memory.short(nbytes) and time.monotonic() < until:
            time.sleep(_TICK)

    def _gave_up(self, failure: OutOfMemory) -> OutOfMemory:
        needed = f"one chunk needs {self._need(1)} bytes, " if self._need(1) else ""
        free = max(0, self._memory.room())
        return OutOfMemory(f"{failure}; {needed}the limit is {self._memory.limit} bytes, free are {free}", 2)
