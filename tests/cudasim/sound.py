"""Kernels without a defect: every order and every sanitizer must let them pass, with the right answer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.cudasim.device import EmulatedDevice
from warpdesk_server.kernels.gpu.source import Source

SOURCE = Source(Path(__file__).parent / "sources" / "sound.cu")


def scale(device: EmulatedDevice) -> None:
    given = np.arange(300, dtype=np.float64)
    out = device.empty(300, np.float64)
    device.kernel(SOURCE, "scale")((3,), (128,), (device.to_device(given), out, np.float64(3), np.uint32(300)))
    _equal(device, out, 3 * given)


def block_sum(device: EmulatedDevice) -> None:
    given = _words(1000)
    out = device.zeros(1, np.uint32)
    device.kernel(SOURCE, "block_sum")((4,), (256,), (device.to_device(given), out, np.uint32(1000)))
    _equal(device, out, [given.sum()])


def warp_sum(device: EmulatedDevice) -> None:
    given = _words(96)
    out = device.empty(3, np.uint32)
    device.kernel(SOURCE, "warp_sum")((3,), (32,), (device.to_device(given), out))
    _equal(device, out, given.reshape(3, 32).sum(1))


def transpose(device: EmulatedDevice) -> None:
    given = _words(256).reshape(16, 16)
    out = device.empty((16, 16), np.uint32)
    device.kernel(SOURCE, "transpose")((2, 2), (8, 8), (device.to_device(given), out, np.uint32(16)))
    _equal(device, out, given.T)


def odd_lanes(device: EmulatedDevice) -> None:
    given = _words(64)
    out = device.empty(64, np.uint32)
    device.kernel(SOURCE, "odd_lanes")((1,), (64,), (device.to_device(given), out))
    leaders = [warp[warp % 2 == 1][0] for warp in given.reshape(2, 32)]
    _equal(device, out, np.where(given % 2 == 1, np.repeat(leaders, 32), given))


def last_block_sums(device: EmulatedDevice) -> None:
    given = _words(8 * 32)
    count, out = device.zeros(1, np.uint32), device.empty(1, np.uint32)
    device.kernel(SOURCE, "last_block_sums")(
        (8,), (32,), (device.to_device(given), device.empty(8, np.uint32), count, out)
    )
    _equal(device, out, [given.sum()])


def reverse(device: EmulatedDevice) -> None:
    given = np.arange(64, dtype=np.float32)
    out = device.empty(64, np.float32)
    device.kernel(SOURCE, "reverse")((1,), (64,), (device.to_device(given), out), shared_mem=64 * 4)
    _equal(device, out, given[::-1])


def chained_scan(device: EmulatedDevice) -> None:
    given = _words(8 * 64)
    out, totals = device.empty(8 * 64, np.uint32), device.empty(8, np.uint32)
    device.kernel(SOURCE, "chained_scan")(
        (8,), (64,), (device.to_device(given), out, device.zeros(1, np.uint32), device.zeros(8, np.uint32), totals)
    )
    _equal(device, out, np.cumsum(given))


SOUND: dict[str, Callable[[EmulatedDevice], None]] = {
    play.__name__: play
    for play in (scale, block_sum, warp_sum, transpose, odd_lanes, last_block_sums, reverse, chained_scan)
}


def _words(count: int) -> "np.ndarray[Any, Any]":
    return np.random.default_rng(count).integers(0, 1000, count, dtype=np.uint32)


def _equal(device: EmulatedDevice, got: Any, expected: Any) -> None:
    np.testing.assert_array_equal(device.to_host(got), expected)
