"""The kernel launches of a request on a GPU, recorded by running its code on a device that computes nothing."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from warpdesk_server.kernels.gpu import canary
from warpdesk_server.kernels.gpu.arguments import check_shape
from warpdesk_server.kernels.gpu.compile import Usage, describe
from warpdesk_server.kernels.gpu.contract import Times
from warpdesk_server.kernels.gpu.memory import Ledger, Memory, MemoryReport
from warpdesk_server.kernels.gpu.occupancy import LIMITS, occupancy
from warpdesk_server.kernels.gpu.source import Source

Key = tuple[str, str]  # a source with its macros, and a kernel of it


@dataclass(frozen=True)
class Launch:
    """A kernel launch that the doctor recorded: the number of blocks, the threads of a block, and its bytes of dynamic
    shared memory."""

    blocks: int
    threads: int
    dynamic: int


def largest_launches(
    requests: Iterable[Callable[[Any], object]], architecture: str, multiprocessors: int, usages: Iterable[Usage] = ()
) -> dict[Key, Launch]:
    """The launch with the most threads of each kernel that the doctor's requests, functions of a device, would launch.

    `usages` are the kernels' needs, from which the blocks per multiprocessor follow. For other kernels it is one block.
    """
    device = _PaperDevice(architecture, multiprocessors, {(used.source, used.kernel): used for used in usages})
    for request in (canary.check, *requests):
        with suppress(Exception):  # its numbers are all zero; what it launched until then is known
            request(device)
    return device.largest


class _Memory(Ledger):
    """The memory account of the doctor's paper device, with a limit that no request reaches."""

    def __init__(self) -> None:
        super().__init__(limit=1 << 40)

    def used(self) -> int:
        return 0

    def room(self) -> int:
        return self.limit

    def release(self) -> None:
        """Do nothing: the doctor's paper device, which only notes launches, holds no memory."""

    def report(self) -> MemoryReport:
        return MemoryReport(used=0, held=0, limit=self.limit)


class _PaperDevice:
    """The doctor's device that computes nothing: its memory is zeros on the host, and kernel launches are recorded."""

    name = "paper"
    warp = 32
    l2 = 32 << 20
    lanes = 1
    cupy = None

    def __init__(self, architecture: str, multiprocessors: int, usages: Mapping[Key, Usage]) -> None:
        self.architecture, self.multiprocessors = architecture, multiprocessors
        limits = LIMITS.get(architecture)
        self.shared_memory = limits.shared - limits.reserved if limits else 48 << 10
        self.memory: Memory = _Memory()
        self.usages = usages
        self.largest: dict[Key, Launch] = {}

    def lane(self, index: int) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def kernel(self, source: Source, name: str) -> "_PaperKernel":
        return _PaperKernel(self, (describe(source), name))

    def to_device(self, array: Any) -> Any:
        return np.zeros_like(array)

    def empty(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        return np.zeros(shape, dtype)

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        return np.zeros(shape, dtype)

    def to_host(self, array: Any, out: Any = None) -> Any:
        if out is None:
            return array
        out[...] = array
        return out

    def times(self) -> Times:
        return Times()

    def forget(self) -> None:
        """Do nothing: the doctor's paper device keeps no memory for reuse."""


class _PaperKernel:
    def __init__(self, device: _PaperDevice, key: Key) -> None:
        self._device = device
        self._key = key

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: tuple[Any, ...],  # noqa: ARG002
        shared_mem: int = 0,
    ) -> None:
        check_shape(self._key[1], grid, block)
        launch, largest = Launch(prod(grid), prod(block), shared_mem), self._device.largest
        before = largest.get(self._key)
        if before is None or launch.blocks * launch.threads > before.blocks * before.threads:
            largest[self._key] = launch

    def blocks_per_multiprocessor(self, threads: int, shared_mem: int = 0) -> int:
        used = self._device.usages.get(self._key)
        if used is None or (used.threads is not None and threads > used.threads):
            return int(used is None)
        found = occupancy(self._device.architecture, threads, used.registers, used.shared + shared_mem)
        return found.blocks if found else 1
