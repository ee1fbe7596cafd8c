"""Stand-ins for GPUs that hang where a planned fault cannot: as they are opened again, and as their process ends."""

import os
import sys
from pathlib import Path
from typing import Any

from tests.workers.device import PaperDevice, hanging
from warpdesk_server.kernels.gpu.faults import DeviceLost
from warpdesk_server.kernels.gpu.source import Source


def once_hung() -> PaperDevice:
    """It works until a launch has hung; then it cannot be opened any more."""
    if (Path(os.environ["WARPDESK_HOME"]) / "faults" / "hang-any-1").exists():
        return hanging()
    return PaperDevice()


class ClingingDevice(PaperDevice):
    """It is lost in the second canary, and its process cannot end then; the next process has no trouble."""

    def __init__(self) -> None:
        self._canaries = 0
        self._mark = Path(os.environ["WARPDESK_HOME"]) / "clung"

    def kernel(self, source: Source, name: str) -> Any:
        if name == "canary":
            self._canaries += 1
        if self._canaries == 2 and not self._mark.exists():
            self._mark.touch()
            sys.stderr = _Stuck()  # type: ignore[assignment]
            raise DeviceLost("the GPU has fallen off the bus", 999)
        return super().kernel(source, name)


class _Stuck:
    """The last thing that a process does before it ends is to flush this."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        hanging()
