"""Erasure of a private job's device memory, which a pool would pass to the next job with its content."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.faults import fault


class PrivateMemory:
    """Memory of a device that is zeroed, all of it, where the `with` of `private_memory` ends."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._arrays: list[Any] = []

    def to_device(self, array: Any) -> Any:
        """Copy a host array to the device."""
        return self._kept(self._device.to_device(array))

    def empty(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        return self._kept(self._device.empty(shape, dtype))

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        return self._kept(self._device.zeros(shape, dtype))

    def _kept(self, array: Any) -> Any:
        self._arrays.append(array)
        return array

    def zero(self) -> None:
        """Overwrite everything given out, after the kernels that still run: they are in the lane of this thread."""
        try:
            for array in self._arrays:
                array.fill(0)
        except Exception as error:
            # CuPy's errors carry CUDA's number; this call does not pass through the device, which would translate it.
            code = getattr(error, "status", None)
            if code is None:
                raise
            raise fault(code, f"{self._device.name}: private memory could not be overwritten: {error}") from error


@contextmanager
def private_memory(device: Device) -> Iterator[PrivateMemory]:
    """Give out device memory that is overwritten with zeros at the end, also when the work inside fails.

    Raises DeviceFault where it cannot be overwritten. A failure inside is raised as it is: where that was a lost device
    nothing can be written any more, and the memory goes with the process.
    """
    memory = PrivateMemory(device)
    try:
        yield memory
    except BaseException:
        with suppress(Exception):
            memory.zero()
        raise
    memory.zero()
