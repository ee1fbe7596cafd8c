"""Erasure of a private job's device memory, which the pool would otherwise pass to the next job with its content."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.faults import fault


class PrivateMemory:
    """An allocator of device memory that is all overwritten with zeros at the end of `private_memory`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._arrays: list[Any] = []

    def to_device(self, array: Any) -> Any:
        """Copy a host array to private device memory."""
        return self._kept(self._device.to_device(array))

    def empty(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        return self._kept(self._device.empty(shape, dtype))

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        return self._kept(self._device.zeros(shape, dtype))

    def _kept(self, array: Any) -> Any:
        self._arrays.append(array)
        return array

    def zero(self) -> None:
        """Overwrite all device memory that was given out. Kernels that still run in this thread's lane end before
        that."""
        try:
            for array in self._arrays:
                array.fill(0)
        except Exception as error:
            # CuPy's errors have CUDA's number. This call bypasses the device, which would translate it.
            code = getattr(error, "status", None)
            if code is None:
                raise
            raise fault(code, f"{self._device.name}: private memory could not be overwritten: {error}") from error


@contextmanager
def private_memory(device: Device) -> Iterator[PrivateMemory]:
    """Provide private device memory for the block; it is overwritten with zeros at the end, also after a failure.

    Raises DeviceFault if it cannot be overwritten. A failure in the block is raised unchanged: after a lost device
    nothing can be written any more, and the memory is freed with the process.
    """
    memory = PrivateMemory(device)
    try:
        yield memory
    except BaseException:
        with suppress(Exception):
            memory.zero()
        raise
    memory.zero()
