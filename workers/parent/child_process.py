"""The parent's handle of the warm child process: start it, exchange messages with it, kill it."""

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from multiprocessing.connection import Connection

from warpdesk_server.workers import calls
from warpdesk_server.workers.calls import Calls
from warpdesk_server.workers.parent.companion import beside_companion
from warpdesk_server.workers.pipe import (
    LOST_DEVICE,
    Checked,
    Checking,
    FromChild,
    Lost,
    OfDevice,
    Orders,
    Ready,
    Starting,
    Step,
    receive,
    send,
)
from warpdesk_server.workers.process import python
from warpdesk_server.workers.queue.counts import Tally
from warpdesk_server.workers.queue.reports import DeviceReport, WarmUp
from warpdesk_server.workers.settings import WorkerSettings

# How long a killed process may take to go. One that is stuck in a driver call stays behind as the kernel's problem.
_REAP_SECONDS = 5.0
# How long a parent that hears late of a question to the canary, or of its deadline, waits for the answer, which may be
# on its way.
_LATE_SECONDS = 0.2


class ChildProcess:
    """The parent's handle of its child: one process at a time.

    Spawn it from the main thread: it dies with the thread that spawned it. The last messages of the present child are
    kept here, since they show what a child died of.
    """

    def __init__(self, settings: WorkerSettings, tally: Tally) -> None:
        self._settings = settings
        self._tally = tally
        self._process: subprocess.Popen[bytes] | None = None
        self._dismissed: subprocess.Popen[bytes] | None = None  # killed, and not seen to end
        self._calls: Calls
        self.pipe: Connection
        self.device: DeviceReport | None = None  # known once it is ready
        self.step: Step | None = None  # how far it has come
        self.trial: str | None = None  # the example it is trying
        self.warm_up: WarmUp | None = None  # None once every example was tried
        self.lost: Lost | None = None  # what it said of the device it lost
        self.starts = 0
        self.opening_seconds: float | None = None  # how long it took to open the GPU
        self._looking_since: float | None = None  # time.monotonic(), as below; it looks for a GPU
        self._answer_by: float | None = None  # it asks the canary, which may take so long
        self._heard_at = 0.0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def ready(self) -> bool:
        return self._process is not None and self.device is not None and self.lost is None

    @property
    def gone(self) -> bool:
        """Whether the parent has no child, or a child that lost its device and is about to end."""
        return self._process is None or self.lost is not None

    @property
    def trial_left(self) -> float | None:
        """Seconds that the parent still gives its child for an example between two jobs; None if it tries none."""
        if not self.ready or self.trial is None:
            return None
        return self._settings.start_seconds - self.silent_seconds

    @property
    def starts_on_gpu(self) -> bool:
        return self.step in ("looking for a GPU", "warming up on the GPU")

    @property
    def doing(self) -> str:
        """The step that the parent last heard of from its child, as the end of a sentence."""
        if self.step is None:
            return "before it looked for a GPU"
        return f"while {self.step}" + (f", in {self.trial}" if self.trial else "")

    @property
    def silent_seconds(self) -> float:
        """Seconds since the parent last had a message from its child."""
        return time.monotonic() - self._heard_at

    @property
    def call_seconds(self) -> float | None:
        """Seconds for which the parent sees its child in one device call of a job; None if it is in none."""
        return self._calls.seconds() if self._process is not None else None

    @property
    def call_late(self) -> bool:
        """Whether the parent sees its child in a device call that takes longer than the job should."""
        return self._process is not None and self._calls.late()

    @property
    def canary_left(self) -> float | None:
        """Seconds that the parent still gives its child for the canary check of the device; None if none runs.

        If the parent notices the end late, the whole machine may have been stopped: the child gets `_LATE_SECONDS`
        more.
        """
        if self._answer_by is None:
            return None
        now = time.monotonic()
        if now > self._answer_by + _LATE_SECONDS:
            self._answer_by = now + _LATE_SECONDS
        return self._answer_by - now

    def spawn(self, orders: Orders) -> None:
        """Start the worker's child process and send it its orders."""
        ours, theirs = socket.socketpair()
        withheld = ("WARPDESK_REDIS_URL", "WARPDESK_REDIS_URL_FILE")
        environment = {name: value for name, value in os.environ.items() if name not in withheld}
        environment.update(self._settings.cache_environment())
        environment.update(beside_companion(self._settings))
        window = calls.shared()
        try:
            self._calls = Calls(window)
            self._process = subprocess.Popen(
                [
                    *python(),
                    "-m",
                    "warpdesk_server.workers.child.main",
                    *map(str, (theirs.fileno(), window, os.getpid())),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), window],
                env=environment,
            )
        finally:
            theirs.close()
            os.close(window)
        self.pipe = Connection(ours.detach())
        self.device = self.step = self.trial = self.warm_up = self.lost = None
        self.opening_seconds = self._looking_since = self._answer_by = None
        self.starts += 1
        self._heard_at = time.monotonic()
        with suppress(OSError):  # it is dead already, and will be found so
            send(self.pipe, orders)

    def hear(self) -> FromChild:
        """Receive in the parent the child's next message; raises EOFError or OSError when the child has ended."""
        message = receive(self.pipe)
        self._heard_at = time.monotonic()
        if isinstance(message, Starting):
            self.step, self.trial, self.warm_up = message.step, message.trial, _unfinished(message.warm_up)
            if message.step == "looking for a GPU":
                self._looking_since = self._heard_at
            elif self.opening_seconds is None and self._looking_since is not None:
                self.opening_seconds = self._heard_at - self._looking_since
        elif isinstance(message, Ready):
            self.device, self.trial, self.warm_up = message.device, None, _unfinished(message.warm_up)
        elif isinstance(message, Checking):
            deadline = message.began + self._settings.canary_deadline_seconds
            self._answer_by = max(deadline, self._heard_at + _LATE_SECONDS)
        elif isinstance(message, Checked):
            self._answer_by = None
        elif isinstance(message, Lost):
            self.lost, self._answer_by = message, None
        if isinstance(message, OfDevice):
            for state, number in message.compilations.items():
                self._tally.add("kernel_compilations_total", state, amount=number)
        return message

    def hear_out(self) -> None:
        """Receive in the parent the last messages of a child that has ended or is about to."""
        with suppress(EOFError, OSError, ValueError):
            while self._process is not None and self.lost is None and self.pipe.poll():
                self.hear()

    def has_died(self) -> bool:
        """Whether the parent's child process has ended; does not reap it."""
        if self._process is None or self._process.returncode is not None:
            return True
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is not None

    def dismiss(self) -> None:
        """Kill the worker's child process without waiting for its end."""
        if self._process is None:
            return
        self._dismissed, self._process, self.device = self._process, None, None
        self.pipe.close()
        if self._dismissed.poll() is None:
            self._dismissed.kill()

    def kill(self) -> int:
        """Kill the worker's child process and return its exit code (negative: the signal that ended it)."""
        self.dismiss()
        process, self._dismissed = self._dismissed, None
        if process is None:
            return 0
        with suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_SECONDS)
        return process.returncode if process.returncode is not None else -9

    def reap(self) -> str:
        """Why a child that closed its pipe to the parent has ended, as the beginning of a sentence.

        Its last messages are received, and it gets a second to end by itself.
        """
        self.hear_out()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        code = self.kill()
        if self.lost is not None or code == LOST_DEVICE:
            return f"the device was lost ({self.lost.message if self.lost else 'it did not say why'})"
        if code < 0:
            return f"the worker process was ended by signal {-code} ({signal.Signals(-code).name})"
        return f"the worker process ended with exit code {code}"


def _unfinished(warm_up: WarmUp | None) -> WarmUp | None:
    return warm_up if warm_up is not None and warm_up.done < warm_up.of else None
