"""The same on a device: one launch each, so that faults can be planned by launch."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.workers.misbehaving import cpu
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.source import Source

SOURCE = Source(Path(__file__))  # tests.workers.device looks kernels up by name


def double(params: Any, values: np.ndarray, device: Device) -> dict[str, Any]:
    given = device.to_device(values)
    doubled = device.empty(values.shape, values.dtype)
    device.kernel(SOURCE, "double_values")(
        ((values.size + 127) // 128,), (128,), (given, doubled, np.int64(values.size))
    )
    doubled = device.to_host(doubled)
    return {"doubled": doubled, "total": float(doubled.sum())}


def nap(params: Any, device: Device) -> dict[str, Any]:
    return cpu.nap(params)


def stumble(params: Any, values: np.ndarray, device: Device) -> dict[str, Any]:
    return cpu.stumble(params, values)


def pieces(params: Any, values: np.ndarray, device: Device) -> dict[str, Any]:
    cpu.pieces(params, values)
    return {"doubled": double(params, values, device)["doubled"]}


def waver(params: Any, values: np.ndarray, device: Device) -> dict[str, Any]:
    return cpu.waver(params, values)


def hoard(params: Any, device: Device) -> dict[str, Any]:
    return cpu.hoard(params)


def confine(params: Any, device: Device) -> dict[str, Any]:
    return cpu.confine(params)


def die(params: Any, device: Device) -> dict[str, Any]:
    return cpu.die(params)


def whisper(params: Any, secret: np.ndarray, key: bytes, device: Device) -> dict[str, Any]:
    return cpu.whisper(params, secret, key)


def linger(params: Any, values: np.ndarray, key: bytes, device: Device) -> dict[str, Any]:
    return cpu.linger(params, values, key)
