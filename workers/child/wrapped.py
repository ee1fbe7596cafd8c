"""The base classes of device and kernel wrappers: they pass every call on, and subclasses watch or disturb calls."""

from contextlib import AbstractContextManager
from typing import Any

from warpdesk_server.kernels.gpu.contract import Device, Kernel, Times
from warpdesk_server.kernels.gpu.memory import Memory
from warpdesk_server.kernels.gpu.source import Source


class WrappedDevice:
    """A wrapper of the child's device, which also passes on what the device offers beyond the contract."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.name = device.name
        self.architecture = device.architecture
        self.multiprocessors = device.multiprocessors
        self.warp = device.warp
        self.shared_memory = device.shared_memory
        self.l2 = device.l2
        self.lanes = device.lanes
        self.cupy = device.cupy
        self.memory: Memory = device.memory

    def lane(self, index: int) -> AbstractContextManager[None]:
        return self._device.lane(index)

    def kernel(self, source: Source, name: str) -> Kernel:
        return self._device.kernel(source, name)

    def to_device(self, array: Any) -> Any:
        return self._device.to_device(array)

    def empty(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        return self._device.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        return self._device.zeros(shape, dtype)

    def to_host(self, array: Any, out: Any = None) -> Any:
        return self._device.to_host(array, out)

    def times(self) -> Times:
        return self._device.times()

    def forget(self) -> None:
        self._device.forget()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


class WrappedKernel:
    """A wrapper of a kernel on the child's device, which also passes on what the kernel offers beyond the contract."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        self._kernel(grid, block, args, shared_mem)

    def blocks_per_multiprocessor(self, threads: int, shared_mem: int = 0) -> int:
        return self._kernel.blocks_per_multiprocessor(threads, shared_mem)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)
