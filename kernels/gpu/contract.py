"""The contract of a device: what an operation's gpu.py may use, whatever drives the GPU."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from warpdesk_server.kernels.gpu.memory import Memory
from warpdesk_server.kernels.gpu.source import Source


@dataclass(frozen=True)
class Copied:
    """What was copied in one direction, and for how many seconds it was."""

    nbytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Copied") -> "Copied":
        return Copied(self.nbytes + other.nbytes, self.seconds + other.seconds)


@dataclass(frozen=True)
class Times:
    """What was copied to the device (`up`) and back (`down`), and seconds in kernels.

    Copies count from when the device is free for them to their end, kernels as the device saw them begin and end. Each
    lane counts for itself: where one copies while another computes, the two add up to more than a clock would show.
    """

    up: Copied = Copied()
    down: Copied = Copied()
    kernel: float = 0.0

    @property
    def copy(self) -> float:
        """Seconds of copies in both directions."""
        return self.up.seconds + self.down.seconds


class Kernel(Protocol):
    """A compiled `extern "C" __global__` function."""

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        """Launch. Scalars in `args` are NumPy scalars of the parameter's exact type; arrays are device arrays.

        `shared_mem` is dynamic shared memory in bytes: up to the device's `shared_memory`, less what is declared.
        """

    def blocks_per_multiprocessor(self, threads: int, shared_mem: int = 0) -> int:
        """How many blocks of so many threads one multiprocessor holds at a time, by the kernel's registers and shared
        memory; 0 for a block that cannot be launched. A launch shape may depend on it where no bit of the answer does.
        """


class Device(Protocol):
    """What an implementation in a family's gpu.py may ask of the device."""

    name: str
    architecture: str  # "sm_90"
    multiprocessors: int
    warp: int  # threads
    shared_memory: int  # bytes, the most that one block may have
    l2: int  # bytes
    lanes: int  # how many threads may work on it at a time, each with copies and kernels in an order of their own
    cupy: Any | None  # the CuPy module where CuPy drives the device, for libraries such as cuBLAS; None otherwise
    memory: Memory

    def lane(self, index: int) -> AbstractContextManager[None]:
        """Within it work of a thread goes to lane 1 <= index < lanes.

        It begins after what lane 0 was given until this was called, by whatever thread, and runs beside what comes. All
        other threads are in lane 0. At the end what was given to the lane is done, and its faults are raised.
        """

    def kernel(self, source: Source, name: str) -> Kernel:
        """Compile `source` (once) and return one of its kernels."""

    def to_device(self, array: Any) -> Any:
        """Copy a host array to the device. One of rows (see as_rows) need not be made contiguous before."""

    def empty(self, shape: tuple[int, ...] | int, dtype: Any) -> Any: ...

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> Any: ...

    def to_host(self, array: Any, out: Any = None) -> Any:
        """Wait for the device and copy an array back as NumPy, into `out` where it is given; return that.

        `out` is where a result is to be: check_out says what it must be. It holds anything after a failure.
        """

    def times(self) -> Times:
        """What copies and kernels took since the last call."""

    def forget(self) -> None:
        """Give back the memory that is kept for reuse and still holds what was in it: of uploads, and on the device."""
