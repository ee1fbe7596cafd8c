"""What takes its time on a device."""

from typing import Any

from tests.workers.child import timed
from warpdesk_server.kernels.gpu.contract import Device


def crunch(params: Any, device: Device) -> dict[str, Any]:
    timed.CLOCK.work("gpu", params.size)
    return {"size": params.size}


def murmur(params: Any, key: bytes, device: Device) -> dict[str, Any]:
    timed.CLOCK.work("gpu", params.size)
    return {"size": params.size}
