"""Jobs and workers of plain RQ, for the tests that show what it does with them."""

import fcntl
import os
import signal
from pathlib import Path
from typing import Any

from rq import SimpleWorker


class KilledAtThePop(SimpleWorker):
    """Dies by SIGKILL when it has taken a job from its queue and before it has begun it."""

    def execute_job(self, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def wait_at(gate: str, marker: str) -> str:
    """Tell that it runs, then wait until the test opens the gate."""
    Path(marker).touch()
    with Path(gate).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    return "done"


def wait_natively_at(gate: str, marker: str) -> None:
    """The same in C: system(3) waits for its command whatever signals come, as a wait for a GPU does."""
    Path(marker).touch()
    os.system(f"flock --shared {gate} true")  # noqa: S605 (a path of the test's own)
