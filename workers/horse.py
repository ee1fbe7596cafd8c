"""The warm child as its parent sees it: start it, talk to it, kill it (RQ calls such a process its work horse)."""

import os
import socket
import subprocess
from contextlib import suppress
from multiprocessing.connection import Connection

from workers.process import python
from workers.protocol import DeviceReport
from workers.settings import WorkerSettings

# How long a killed process may take to go. One that is stuck in a driver call stays behind as the kernel's problem.
_REAP_SECONDS = 5.0


class Horse:
    """One child process at a time. Spawn it from the main thread: it dies with the thread that spawned it."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.pipe: Connection
        self.device: DeviceReport | None = None  # known once it is ready
        self.starts = 0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def ready(self) -> bool:
        return self._process is not None and self.device is not None

    def spawn(self, no_gpu: str | None = None) -> None:
        """Start the child; `no_gpu` is a reason to leave the GPU alone."""
        ours, theirs = socket.socketpair()
        environment = {name: value for name, value in os.environ.items() if name != "WARPDESK_REDIS_URL"}
        environment.update(self._settings.cache_environment())
        with theirs:
            self._process = subprocess.Popen(
                [
                    *python(),
                    "-m",
                    "workers.child",
                    str(theirs.fileno()),
                    str(os.getpid()),
                    *([] if no_gpu is None else [no_gpu]),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
            )
        self.pipe = Connection(ours.detach())
        self.device = None
        self.starts += 1

    def has_died(self) -> bool:
        """Whether the child has ended and was not reaped; does not reap it."""
        if self._process is None or self._process.returncode is not None:
            return True
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is not None

    def kill(self) -> int:
        """End the child whatever it is doing, and return its exit code (negative: the signal that ended it)."""
        if self._process is None:
            return 0
        process, self._process, self.device = self._process, None, None
        self.pipe.close()
        if process.poll() is None:
            process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_SECONDS)
        return process.returncode if process.returncode is not None else -9

    def reap(self) -> int:
        """The exit code of a child that closed its pipe; it is given a moment to end by itself."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        return self.kill()
