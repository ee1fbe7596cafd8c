"""The interface of a device: what an operation's gpu.py may use, whatever library drives the GPU."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from warpdesk_server.kernels.gpu.memory import Memory
from warpdesk_server.kernels.gpu.source import Source


@dataclass(frozen=True)
class Copied:
    """The bytes copied between host and device memory in one direction, and the seconds it took."""

    nbytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Copied") -> "Copied":
        return Copied(self.nbytes + other.nbytes, self.seconds + other.seconds)


@dataclass(frozen=True)
class Times:
    """The copies to a GPU's memory (`up`) and back (`down`), and the seconds in kernels.

    A copy counts from the moment the device is free for it to its end, a kernel by the device's own events. Lanes are
    added up: if one copies while another computes, the sum is more than the time on a clock.
    """

    up: Copied = Copied()
    down: Copied = Copied()
    kernel: float = 0.0

    @property
    def copy(self) -> float:
        """Seconds of copies between host and device memory, in both directions."""
        return self.up.seconds + self.down.seconds


class Kernel(Protocol):
    """A compiled CUDA kernel: an `extern "C" __global__` function."""

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        """Launch the kernel. Scalars in `args` are NumPy scalars of the parameter's exact type; arrays are device
        arrays.

        `shared_mem` is dynamic shared memory in bytes, up to the device's `shared_memory` less what it declares.
        """

    def blocks_per_multiprocessor(self, threads: int, shared_mem: int = 0) -> int:
        """The number of the kernel's blocks that one multiprocessor holds at a time; 0 if a block cannot be launched.

        It depends on registers and shared memory. A launch shape may depend on it if no bit of the answer does.
        """


class Device(Protocol):
    """The device as an operation's gpu.py sees it: memory, copies, kernels and lanes of a GPU."""

    name: str
    architecture: str  # "sm_90"
    multiprocessors: int
    warp: int  # threads
    shared_memory: int  # bytes, the most that one block may have
    l2: int  # bytes
    lanes: int  # number of threads that may use it at a time, each with its own order of copies and kernels
    cupy: Any | None  # the CuPy module where CuPy drives the device, for libraries such as cuBLAS; None otherwise
    memory: Memory

    def lane(self, index: int) -> AbstractContextManager[None]:
        """Put this thread's kernels and copies into the device's lane 1 <= index < lanes for the block.

        The lane begins after everything that any thread gave to lane 0 before this call, and runs beside what follows.
        All other threads are in lane 0. The block ends when the lane's work is done; its faults are raised there.
        """

    def kernel(self, source: Source, name: str) -> Kernel:
        """One of the kernels of a CUDA source, which is compiled once."""

    def to_device(self, array: Any) -> Any:
        """Copy a host array to device memory. It may be a matrix of contiguous rows (see as_rows)."""

    def empty(self, shape: tuple[int, ...] | int, dtype: Any) -> Any: ...

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> Any: ...

    def to_host(self, array: Any, out: Any = None) -> Any:
        """Wait for the kernels, and copy an array from device memory to NumPy, into `out` if it is given.

        `out` must pass check_out. After a failure its content is undefined.
        """

    def times(self) -> Times:
        """The times of copies and kernel launches on the device since the last call."""

    def forget(self) -> None:
        """Free the memory that is kept for reuse and still has its old content: staging buffers and device memory."""
