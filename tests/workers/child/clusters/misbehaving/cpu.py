"""Moving means that wait for a gate, fail, refuse, or end their process."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.problems import refuse


def gated(params: Any, **inputs: Any) -> dict[str, Any]:
    """On a node: note this process and its parent in the folder of the gate, and wait until that has a file `open`."""
    if "TEST_GATE" in os.environ:
        gate = Path(os.environ["TEST_GATE"])
        (gate / f"{os.getppid()}-{os.getpid()}").touch()
        while not (gate / "open").exists():
            time.sleep(0.02)
    return OPERATIONS["sma"].implementation("cpu")(params, **inputs)


def failing(_params: Any, **_inputs: Any) -> dict[str, Any]:
    raise ZeroDivisionError("a number of the caller")


def refusing(_params: Any, **_inputs: Any) -> dict[str, Any]:
    raise refuse("/inputs/close", "no")


def dying(_params: Any, **_inputs: Any) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
