"""Run a job chunk by chunk, as many at a time as device memory holds.

The cut belongs to the job (`Operation.grid`); memory decides only how many chunks are resident, so no bit of an answer
depends on it. When memory runs out: give back what the pool keeps for reuse, wait a moment for others on the same
device, take fewer chunks. One chunk that does not fit is OutOfMemory, after which the caller goes to the CPU.
"""

import time
from collections.abc import Callable

from kernels.cuda import Device, OutOfMemory
from kernels.operation import Grid

_WAITS = (0.0, 0.1, 0.4)  # seconds before one chunk is tried again, for memory that another process holds


def run(device: Device, grid: Grid, work: Callable[[int, int], None]) -> None:
    """Call work(first, end) on consecutive parts of range(grid.chunks) until all are done.

    `work` computes its chunks and writes their results to host memory. It is called again for the same chunks, or for
    fewer of them, after it ran out of memory, and must have let go of its device arrays when it returns or fails.
    """
    first, resident, waits = 0, _fitting(device, grid, grid.chunks), iter(_WAITS)
    while first < grid.chunks:
        count = min(resident, grid.chunks - first)
        if (failure := _attempt(work, first, first + count)) is None:
            first, waits = first + count, iter(_WAITS)
            continue
        device.memory.release()
        if count > 1:
            resident = _fitting(device, grid, count // 2)
        elif (pause := next(waits, None)) is not None:
            time.sleep(pause)
        else:
            raise failure


def _attempt(work: Callable[[int, int], None], first: int, end: int) -> OutOfMemory | None:
    try:
        work(first, end)
    except OutOfMemory as error:
        # What is raised later carries no traceback: it would hold the arrays of the failed call.
        return error.with_traceback(None)
    return None


def _fitting(device: Device, grid: Grid, most: int) -> int:
    """How many chunks fit, from one to `most`: whether one does is found out by running it."""
    if not grid.each:
        return most
    count = (device.memory.room() - grid.fixed) // grid.each
    if count < most:
        device.memory.release()
        count = (device.memory.room() - grid.fixed) // grid.each
    return max(1, min(most, count))
