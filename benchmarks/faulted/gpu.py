"""GPU implementations of the benchmark `faults`: each operation's own."""

from collections.abc import Callable
from typing import Any

from warpdesk_server.benchmarks.faulted import FAMILIES

_Compute = Callable[..., dict[str, Any]]


def _untimed(compute: _Compute) -> _Compute:
    def untimed(params: Any, **arguments: Any) -> dict[str, Any]:
        return {**compute(params, **arguments), "began": None}

    return untimed


globals().update({operation.name: _untimed(operation.implementation("gpu")) for operation in FAMILIES})
