"""The loop over a job's chunks on a GPU: it runs as many at a time as device memory holds.

The cut into chunks belongs to the job (`Operation.grid`). Memory decides only how many are resident, so no bit of an
answer depends on it. If memory runs out, the pool's free blocks are released, others get a moment to free theirs, and
then fewer chunks run at a time. If one chunk does not fit, OutOfMemory is raised, and the caller computes on the CPU.
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

PATIENCE = 0.5  # seconds to wait for memory that others hold: about the time of one of their jobs
# The least bytes of a part that is copied beside the next one: 2 ms of a PCIe 4 link, while each part costs some 0.1 ms
# to begin and to end.
PART = 64 << 20
_LEAST_PARTS = 20  # parts, as far as there are chunks, if progress has a listener
_TICK = 0.01  # seconds between checks of the device's free memory


def run(device: Device, grid: Grid, work: Work, *, overlap: bool = False) -> None:
    """Run all chunks of a job on a GPU: call work(first, end) on parts of range(grid.chunks) that fit into memory.

    `work` computes its chunks and writes their results to host memory. After it ran out of memory it is called again
    for the same chunks, or for fewer. So it must change shared state last, when nothing can fail any more, and must
    drop its device arrays when it returns or fails. `grid.fixed` is counted for every call.

    Parts may `overlap` if their calls change nothing that they share. On a device with lanes a large job then runs in
    several threads, in any order, one part's copies beside another's; for that, parts are smaller than memory allows.
    They are also smaller if progress has a listener (kernels.progress).

    Raises OutOfMemory if one chunk does not fit, with the bytes, and the device's own error as its cause. Any other
    failure of a part ends the job: it is raised once, after all lanes have stopped.
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
        # With a listener, more parts, but not so many that `grid.fixed` of each takes most of the time.
        parts = min(_LEAST_PARTS, grid.chunks * grid.each // max(4 * grid.fixed, 1)) if progress.has_listener() else 1
        self._most = -(-grid.chunks // max(parts, 1))
        self._resident = self._most  # at most so many chunks are in one part
        self._done = 0
        self._lock = threading.Lock()
        self._stop = False
        self._failures: list[BaseException] = []

    def alone(self) -> None:
        """Run the job's remaining chunks on the GPU in this thread."""
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
        """Run chunks in all lanes of the GPU at once. Parts that ran out of memory are left."""
        lanes, grid = self._device.lanes, self._grid
        parts = min(grid.chunks, grid.chunks * grid.each // max(PART, 4 * grid.fixed))
        if parts < 2:
            return
        self._resident = min(-(-grid.chunks // parts), self._count(lanes))
        if self._resident < 1:
            self._resident = self._most
            return
        # Made here: a lane begins after the work that this thread has launched so far, so not after its first part.
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
            # Of several failures raise the one after which this process must end.
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
            let_go(error)  # else it would keep the arrays of the failed call alive during the next call
            return error
        except BaseException as error:
            let_go(error)  # the caller may go on computing while it handles the error
            raise
        with self._lock:
            self._done += end - first
        progress.report(self._done / self._grid.chunks)
        return None

    def _need(self, count: int) -> int:
        return self._grid.fixed + count * self._grid.each

    def _count(self, lanes: int = 1) -> int:
        """The number of chunks that fit into unreserved device memory, in each lane."""
        return (self._memory.unreserved() // lanes - self._grid.fixed) // self._grid.each

    def _fitting(self, most: int) -> int:
        """The number of chunks to launch at once, from one to `most`. Whether a single one fits, only running it
        shows."""
        if not self._grid.each or self._count() >= most:
            return most
        self._memory.release()
        if self._count() < most:
            self._await(self._need(most))
        return max(1, min(most, self._count()))

    def _await(self, nbytes: int) -> None:
        """Wait a moment for device memory of a chunk, if other processes hold it."""
        until = time.monotonic() + PATIENCE
        while self._memory.short(nbytes) and time.monotonic() < until:
            time.sleep(_TICK)

    def _gave_up(self, failure: OutOfMemory) -> OutOfMemory:
        needed = f"one chunk needs {self._need(1)} bytes, " if self._need(1) else ""
        free = max(0, self._memory.room())
        return OutOfMemory(f"{failure}; {needed}the limit is {self._memory.limit} bytes, free are {free}", 2)
