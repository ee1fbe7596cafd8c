"""A worker, or an API, that kills itself by SIGKILL once, at a step of a charge.

`python -m tests.workers.parent.mortal STEP MARK`. The process is the real one; only the step named is wrapped.
The mark is a file that says it has happened.
"""

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from tests.workers.operations import PAID
from warpdesk_server.app.main import create_app
from warpdesk_server.privacy.charging import Charges
from warpdesk_server.workers.parent.main import run
from warpdesk_server.workers.queue.jobs import JobQueue

# What is wrapped, and whether it dies before or after it.
STEPS: dict[str, tuple[type[Any], str, str]] = {
    "before the claim": (Charges, "claim", "before"),
    "after the claim": (Charges, "claim", "after"),
    "before the release": (Charges, "release", "before"),
    "after the release": (Charges, "release", "after"),
    "after the finish": (JobQueue, "finish", "after"),
    "before the charge": (Charges, "reserve", "before"),
    "after the charge": (Charges, "reserve", "after"),
    "after the queue": (JobQueue, "enqueue_all", "after"),
}


def main(step: str, mark: str) -> int:
    owner, name, when = STEPS[step]
    setattr(owner, name, _mortal(getattr(owner, name), when, Path(mark)))
    if name in ("reserve", "enqueue_all"):
        uvicorn.run(create_app(operations_offered=PAID), port=int(os.environ["PORT"]), log_level="warning")
        return 0
    return run()


def _mortal(step: Callable[..., Any], when: str, mark: Path) -> Callable[..., Any]:
    @functools.wraps(step)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        fatal = not mark.exists() and _concerns_a_charge(step.__name__, arguments)
        if fatal and when == "before":
            _die(mark)
        answer = step(*arguments, **named)
        if fatal:
            _die(mark)
        return answer

    return wrapped


def _concerns_a_charge(name: str, arguments: tuple[Any, ...]) -> bool:
    """A worker finishes nothing now and then."""
    return name != "finish" or bool(arguments[1])


def _die(mark: Path) -> None:
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
