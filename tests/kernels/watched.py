"""An emulated device that keeps all memory it gave out, so that a test can see what a private job left in it."""

from typing import Any

import numpy as np

from tests.cudasim.device import DeviceArray, EmulatedDevice
from warpdesk_server.kernels.gpu.faults import LaunchFailed
from warpdesk_server.kernels.gpu.source import Source


class WatchedDevice(EmulatedDevice):
    """`refuse` names a kernel whose launch fails, and `memory` limits the bytes, as on any emulated device."""

    def __init__(self, refuse: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._refuse = refuse
        self.given: list[DeviceArray] = []
        self.copied: list[bytes] = []  # what went up

    def left(self) -> int:
        """Bytes that are not zero, of all memory given out."""
        return sum(int(np.count_nonzero(array._array.reshape(-1).view(np.uint8))) for array in self.given)

    def kernel(self, source: Source, name: str) -> Any:
        return _Refused() if name == self._refuse else super().kernel(source, name)

    def to_device(self, array: Any) -> DeviceArray:
        self.copied.append(np.ascontiguousarray(array).tobytes())
        return super().to_device(array)

    def _allocate(self, shape: Any, dtype: Any) -> DeviceArray:
        array = super()._allocate(shape, dtype)
        self.given.append(array)
        return array


class _Refused:
    """A kernel that cannot be launched."""

    def blocks_per_multiprocessor(self, *_shape: int) -> int:
        return 1

    def __call__(self, *_launch: Any, **_memory: Any) -> None:
        raise LaunchFailed("too many resources are asked for, says the test", 701)
