"""Memory of a private job is overwritten, and what goes wrong is told as it is."""

from typing import Any, NoReturn

import numpy as np
import pytest

from tests.cudasim.device import DeviceArray
from tests.kernels.watched import WatchedDevice
from warpdesk_server.kernels.gpu.faults import DeviceLost
from warpdesk_server.kernels.gpu.private import PrivateMemory, private_memory


class _Cuda(RuntimeError):
    """As CuPy's errors are: CUDA's number is `status`."""

    status = 700


def _broken(*_arguments: Any) -> None:
    raise _Cuda("an illegal memory access was encountered")


def test_all_memory_is_overwritten_at_the_end_and_not_before() -> None:
    device = WatchedDevice()
    with private_memory(device) as memory:
        memory.to_device(np.arange(10.0))
        memory.empty((3, 5), np.uint32)
        assert memory.zeros(4, np.int64).dtype == np.int64
        assert device.left() > 0
    assert len(device.given) == 3
    assert device.left() == 0


def test_a_failure_inside_is_raised_as_it_is_after_memory_is_overwritten() -> None:
    device = WatchedDevice()
    with pytest.raises(KeyboardInterrupt), private_memory(device) as memory:
        _fail(KeyboardInterrupt(), memory.to_device(np.arange(10.0)))
    assert device.left() == 0


def test_memory_that_cannot_be_overwritten_is_a_fault_of_the_device() -> None:
    with (
        pytest.raises(DeviceLost, match="private memory could not be overwritten: an illegal memory access"),
        private_memory(WatchedDevice()) as memory,
    ):
        _unwritable(memory)


def test_a_lost_device_is_reported_by_what_lost_it() -> None:
    with pytest.raises(DeviceLost, match="the kernel did it"), private_memory(WatchedDevice()) as memory:
        _fail(DeviceLost("the kernel did it", 719), _unwritable(memory))


def _unwritable(memory: PrivateMemory) -> DeviceArray:
    array: DeviceArray = memory.empty(1, np.uint8)
    array.fill = _broken  # type: ignore[method-assign]
    return array


def _fail(error: BaseException, _held: DeviceArray) -> NoReturn:
    raise error
