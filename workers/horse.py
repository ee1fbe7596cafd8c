"""The warm child as its parent sees it: start it, talk to it, kill it (RQ calls such a process its work horse)."""

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from multiprocessing.connection import Connection

from workers.pipe import (
    LOST_DEVICE,
    Answer,
    Checked,
    Checking,
    FromChild,
    Lost,
    Orders,
    Ready,
    Starting,
    Step,
    Using,
    receive,
    send,
)
from workers.process import python
from workers.protocol import DeviceReport
from workers.settings import WorkerSettings

# How long a killed process may take to go. One that is stuck in a driver call stays behind as the kernel's problem.
_REAP_SECONDS = 5.0


class Horse:
    """One child process at a time. Spawn it from the main thread: it dies with the thread that spawned it.

    What the present child said last is kept here, since it tells what the child died of.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.pipe: Connection
        self.device: DeviceReport | None = None  # known once it is ready
        self.step: Step | None = None  # how far it has come
        self.trial: str | None = None  # the example it is trying
        self.lost: Lost | None = None  # what it said of the device it lost
        self.starts = 0
        self.uses_gpu = False  # its job is on the GPU
        self._checking_since: float | None = None  # time.monotonic(); it asks the canary
        self._heard_at = 0.0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def ready(self) -> bool:
        return self._process is not None and self.device is not None

    @property
    def starts_on_gpu(self) -> bool:
        return self.step in ("looking for a GPU", "warming up on the GPU")

    @property
    def doing(self) -> str:
        """What it said last that it does next, as the end of a sentence."""
        if self.step is None:
            return "before it looked for a GPU"
        return f"while {self.step}" + (f", in {self.trial}" if self.trial else "")

    @property
    def silent_seconds(self) -> float:
        """How long ago it was heard of."""
        return time.monotonic() - self._heard_at

    @property
    def canary_left(self) -> float | None:
        """Seconds that the canary may take yet to answer; None where it is not asked."""
        if self._checking_since is None:
            return None
        return self._checking_since + self._settings.canary_deadline_seconds - time.monotonic()

    def spawn(self, orders: Orders) -> None:
        """Start the child and tell it what to leave alone."""
        ours, theirs = socket.socketpair()
        environment = {name: value for name, value in os.environ.items() if name != "WARPDESK_REDIS_URL"}
        environment.update(self._settings.cache_environment())
        with theirs:
            self._process = subprocess.Popen(
                [*python(), "-m", "workers.child", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
            )
        self.pipe = Connection(ours.detach())
        self.device = self.step = self.trial = self.lost = self._checking_since = None
        self.uses_gpu = False
        self.starts += 1
        self._heard_at = time.monotonic()
        with suppress(OSError):  # it is dead already, and will be found so
            send(self.pipe, orders)

    def hear(self) -> FromChild:
        """The next message; raises EOFError or OSError when the child has ended."""
        message = receive(self.pipe)
        self._heard_at = time.monotonic()
        if isinstance(message, Starting):
            self.step, self.trial = message.step, message.trial
        elif isinstance(message, Ready):
            self.device, self.trial = message.device, None
        elif isinstance(message, Answer):
            self.uses_gpu = False
        elif isinstance(message, Using):
            self.uses_gpu = message.gpu
        elif isinstance(message, Checking):
            self._checking_since = message.began
        elif isinstance(message, Checked):
            self._checking_since = None
        elif isinstance(message, Lost):
            self.lost, self._checking_since = message, None
        return message

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

    def reap(self) -> str:
        """Why a child that closed its pipe has ended, as the beginning of a sentence.

        What it said last is heard, and it is given a moment to end by itself.
        """
        if self._process is not None:
            with suppress(EOFError, OSError, ValueError):
                while self.lost is None and self.pipe.poll():
                    self.hear()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        code = self.kill()
        if self.lost is not None or code == LOST_DEVICE:
            return f"the device was lost ({self.lost.message if self.lost else 'it did not say why'})"
        if code < 0:
            return f"the worker process was ended by signal {-code} ({signal.Signals(-code).name})"
        return f"the worker process ended with exit code {code}"
