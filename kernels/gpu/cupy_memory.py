"""The device memory of a GPU driven by CuPy: CuPy's pool, with the accounting of kernels.gpu.memory."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from warpdesk_server.kernels.gpu.memory import Ledger, MemoryReport


class CupyMemory(Ledger):
    """CuPy's pool of device memory, the only one of this process.

    In CuPy 14.2 a free block belongs to the stream it was first allocated for, and serves no other stream. Before an
    allocation fails, the pool frees the blocks of all streams, as `release` does. A block that was split is freed only
    when all its parts are: that is the memory that may be stuck. All of CuPy allocates here, for its libraries too.
    """

    def __init__(self, cupy: Any, limit: int) -> None:
        super().__init__(limit)
        self._cupy = cupy
        self._pool = cupy.get_default_memory_pool()
        self._pool.set_limit(size=limit)
        self._stuck = 0
        self._making = threading.local()
        cupy.cuda.set_allocator(self._malloc)

    def used(self) -> int:
        return int(self._pool.used_bytes())

    def room(self) -> int:
        free, _ = self._cupy.cuda.runtime.memGetInfo()
        return int(min(free + self._pool.free_bytes(), self.limit - self._pool.used_bytes()))

    def release(self) -> None:
        self._pool.free_all_blocks()
        self._stuck = self._held_unused()

    def report(self) -> MemoryReport:
        held, stuck = int(self._pool.total_bytes()), min(self._stuck, self._held_unused())
        return MemoryReport(self.used(), held, self.limit, stuck, self.peak)

    @contextmanager
    def making(self, what: str) -> Iterator[None]:
        """Note what this thread allocates device memory for in the block."""
        self._making.what = what
        try:
            yield
        finally:
            del self._making.what

    def _held_unused(self) -> int:
        return int(self._pool.free_bytes())

    def _malloc(self, nbytes: int) -> Any:
        pointer = self._pool.malloc(nbytes)
        if nbytes:
            block = pointer.mem
            block.life = self.born(block.size, getattr(self._making, "what", "a library's workspace"))
        return pointer
