"""CPU implementations of the benchmark `faults`: each operation's own, with the time at which it began."""

import time
from collections.abc import Callable
from typing import Any

from warpdesk_server.benchmarks.faulted import FAMILIES

_Compute = Callable[..., dict[str, Any]]


def _timed(compute: _Compute) -> _Compute:
    def timed(params: Any, **arguments: Any) -> dict[str, Any]:
        began = time.time()
        return {**compute(params, **arguments), "began": began}

    return timed


globals().update({operation.name: _timed(operation.implementation("cpu")) for operation in FAMILIES})
