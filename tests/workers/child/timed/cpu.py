"""What takes its time on the CPU."""

from typing import Any

from tests.workers.child import timed


def crunch(params: Any) -> dict[str, Any]:
    timed.CLOCK.work("cpu", params.size)
    return {"size": params.size}


def murmur(params: Any, key: bytes) -> dict[str, Any]:
    timed.CLOCK.work("cpu", params.size)
    return {"size": params.size}
