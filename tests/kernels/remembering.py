"""An emulated device that launches nothing twice, and on which memory runs out when a test says so.

What a launch does depends on nothing but its kernel, its shape and what is in its arguments; so the second of two equal
launches is answered with the bytes of the first. Whatever is answered was once computed by the kernel's own text.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.cudasim.device import DeviceArray, EmulatedDevice, EmulatedKernel
from warpdesk_server.kernels.gpu.faults import OutOfMemory
from warpdesk_server.kernels.gpu.source import Source


class RememberingDevice(EmulatedDevice):
    """`runs_out(n)` says whether the n-th allocation, counted from 1 since `begin`, finds no memory.

    Since `begin`, `uncleared` counts freed blocks that held something else than zeros, and `starved` the allocations
    that found less memory than they needed.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.uncleared = 0
        self.calls = 0  # launches, computed or remembered
        self.computed = 0
        self._kernels: dict[tuple[Source, str], _RememberedKernel] = {}
        self._answers: dict[Any, list[bytes]] = {}
        self._counting = threading.Lock()
        self.begin()

    def begin(
        self,
        memory: int = 1 << 40,
        lanes: int = 1,
        shape: tuple[int, int] = (4, 2),
        runs_out: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """`shape`: multiprocessors, and blocks that each holds."""
        self.memory.limit = memory
        self.lanes = lanes
        self.multiprocessors, self.blocks_per_multiprocessor = shape
        self.uncleared = self.starved = 0
        self.allocations = 0
        self._runs_out = runs_out

    def kernel(self, source: Source, name: str) -> Any:
        key = source, name
        if key not in self._kernels:
            self._kernels[key] = _RememberedKernel(self, super().kernel(source, name))
        return self._kernels[key]

    def launch(self, kernel: EmulatedKernel, grid: Any, block: Any, args: Any, shared_mem: int) -> None:
        arrays = [value for value in args if isinstance(value, DeviceArray)]
        given = tuple(_given(value, arrays) for value in args)
        key = kernel.source, kernel.name, grid, block, shared_mem, given
        self.calls += 1
        if key not in self._answers:
            self.computed += 1
            kernel(grid, block, args, shared_mem)
            self._answers[key] = [array._array.tobytes() for array in arrays]
        for array, answer in zip(arrays, self._answers[key], strict=True):
            if array.size:
                ctypes.memmove(array._array.ctypes.data, answer, len(answer))

    def _allocate(self, shape: Any, dtype: Any) -> DeviceArray:
        with self._counting:
            self.allocations += 1
            now = self.allocations
        if self._runs_out(now):
            raise OutOfMemory(f"out of memory: allocation {now} of {shape} {np.dtype(dtype)}, says the schedule", 2)
        try:
            return super()._allocate(shape, dtype)
        except OutOfMemory:
            self.starved += 1
            raise

    def _free(self, address: int, nbytes: int, life: Any) -> None:
        self.uncleared += any(ctypes.string_at(address, nbytes))
        super()._free(address, nbytes, life)


class _RememberedKernel:
    def __init__(self, device: RememberingDevice, kernel: EmulatedKernel) -> None:
        self._device = device
        self._kernel = kernel

    def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
        self._device.launch(self._kernel, grid, block, args, shared_mem)

    def blocks_per_multiprocessor(self, threads: int, shared_mem: int = 0) -> int:
        return self._kernel.blocks_per_multiprocessor(threads, shared_mem)


def _given(value: Any, arrays: list[DeviceArray]) -> Any:
    """An argument's content; of an array its type and shape too, and where it lies in the memory of an earlier one."""
    if not isinstance(value, DeviceArray):
        return value.dtype.str, value.tobytes()
    array = value._array
    shared = next((at for at, other in enumerate(arrays) if other._memory is value._memory), 0)
    offset = array.ctypes.data - arrays[shared]._array.ctypes.data if arrays[shared] is not value else 0
    return array.dtype.str, array.shape, shared, offset, array.tobytes()
