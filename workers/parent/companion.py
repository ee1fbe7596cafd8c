"""The companion: another worker process beside a worker, which takes the jobs that take long, or the tasks.

It is a worker like any other, with a parent, a child and a name of its own, started while such jobs wait and gone after
some time without one. Its child runs at the lowest priority of the machine, so that quick jobs find the processor free.
So nothing that a long job or a task does, its death included, touches a quick one.
"""

import logging
import math
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import Literal

from warpdesk_server.kernels.gpu.memory import SHARE
from warpdesk_server.workers.parent.busy_times import VARIABLE, BusyTimes
from warpdesk_server.workers.process import python, tie_to
from warpdesk_server.workers.queue.protocol import LONG, OF_TASKS, Kind
from warpdesk_server.workers.queue.reports import WorkerReport
from warpdesk_server.workers.settings import WorkerSettings

log = logging.getLogger("warpdesk.worker")

OfCompanions = Literal["long", "tasks"]

IDLE_SECONDS = 300.0  # without a job, until it ends
FORGOTTEN_SECONDS = 3600.0  # after which it may be able to run a task that it could not: somebody may have helped it
_LONGEST_DELAY = 60.0  # between two starts, where it ends with a fault; the first is a second
_TURN_SECONDS, _ILL_SECONDS = 2.0, 3.0  # see `patience`
_SOUND_SECONDS = 10.0  # after which one that runs has started well
_LEAST_BYTES = 1 << 20  # less than that is no amount of device memory
# Of the device memory that the worker and its companions may take. A task that needs more wants a worker of its own.
_SHARES: Mapping[OfCompanions, float] = {"long": 3 / 9, "tasks": 1 / 9}
_KINDS: Mapping[OfCompanions, Sequence[Kind]] = {"long": LONG, "tasks": OF_TASKS}


class Companion:
    """A worker's handle of its companion for one kind of work, of which at most one runs.

    `start` it from the main thread: it dies with the thread that started it.
    """

    def __init__(self, settings: WorkerSettings, takes: OfCompanions, busy: BusyTimes | None = None) -> None:
        """`busy` are the times that the two tell each other, None where they tell none."""
        self.takes: OfCompanions = takes
        self.kinds = frozenset(_KINDS[takes])
        self.wanted = False  # it is to be started
        self.tasks: Mapping[str, tuple[str, ...]] | None = None  # with what each lacks in its environment, once known
        self._heard_at = 0.0  # of these, time.monotonic()
        self.waited_for_since: float | None = None  # since when jobs wait that it would take, by time.monotonic()
        self._python = [settings.task_python] if takes == "tasks" and settings.task_python else python()
        self._busy = busy
        self._idle_seconds = min(IDLE_SECONDS, settings.idle_exit_seconds or IDLE_SECONDS)
        self._gpu_memory = settings.gpu_memory
        self._process: subprocess.Popen[bytes] | None = None
        self._was_stopped = False
        self.fault: str | None = None  # why it does not run
        if takes == "tasks" and settings.task_python and shutil.which(settings.task_python) is None:
            self.fault = f"{self._name} cannot start: WARPDESK_TASK_PYTHON, {settings.task_python!r}, is no program"
            log.warning("%s", self.fault)
        self._started_at = 0.0  # time.monotonic()
        self._faults = 0
        self._not_before = 0.0  # time.monotonic()

    @property
    def runs(self) -> bool:
        """Whether the worker's companion runs; notes its end."""
        if self._process is None:
            return False
        code = self._process.poll()
        if code is None:
            if time.monotonic() - self._started_at > _SOUND_SECONDS:
                self.fault = None
            return True
        self._process = None
        if self._busy is not None:
            self._busy.forget_other()
        self._faults = 0 if code == 0 else self._faults + 1
        if code == 0:
            self.fault = None
        else:
            delay = min(_LONGEST_DELAY, 2.0 ** (self._faults - 1))
            self.fault = f"{self._name} ended with exit code {code}"
            log.warning("%s; it may start again in %.0f s", self.fault, delay)
            self._not_before = time.monotonic() + delay
        return False

    def look(
        self, worker: str, waiting: Set[Kind], others: Sequence[WorkerReport], tasks: Set[str] = frozenset()
    ) -> None:
        """Decide at a heartbeat whether the worker starts this companion: such jobs wait, and nobody else takes them.

        `waiting` are the kinds of all jobs that wait, and `tasks` the names of the tasks among them.
        """
        now, own = time.monotonic(), waiting & self.kinds
        self._hear(others, now)
        if self.tasks is not None and now - self._heard_at < FORGOTTEN_SECONDS:
            own = own if any(self.tasks.get(name) == () for name in tasks) else frozenset()  # it would wait beside them
        if not own:
            self.wanted, self.waited_for_since = False, None
            return
        if self.waited_for_since is None:
            self.waited_for_since = now
        self.wanted = now - self.waited_for_since >= patience(worker, own, others, self.takes)

    def _hear(self, others: Sequence[WorkerReport], now: float) -> None:
        """Note what the worker's companion reports of the tasks that it can run."""
        pid = None if self._process is None else self._process.pid
        for report in others:  # the interpreter may be started by a script
            is_own = pid in (report.pid, report.started_by) and report.host == socket.gethostname()
            if is_own and report.tasks is not None:
                self.tasks, self._heard_at = report.tasks, now

    def start(self) -> None:
        """Start the worker's companion, unless it runs, ended with a fault just now, or was told to stop."""
        if self._was_stopped or self.runs or time.monotonic() < self._not_before:
            return
        self._started_at = time.monotonic()
        environment = {
            **os.environ,
            "WARPDESK_TAKES": self.takes,
            "WARPDESK_IDLE_EXIT_SECONDS": repr(self._idle_seconds),
            "WARPDESK_GPU_MEMORY": _part(self._gpu_memory, _SHARES[self.takes]),
        }
        environment.pop(VARIABLE, None)
        passed: tuple[int, ...] = ()
        if self._busy is not None:
            environment[VARIABLE], passed = str(self._busy.fd), (self._busy.fd,)
        environment.pop("WARPDESK_MAX_SECONDS", None)  # the worker ends it with itself
        try:
            self._process = subprocess.Popen(
                [*self._python, "-m", "warpdesk_server.workers.parent.main"],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=passed,
                preexec_fn=tie_to(os.getpid(), signal.SIGKILL),
            )
        except OSError as error:  # no memory, or no process to be had: later, perhaps
            self.fault = f"{self._name} could not be started: {error}"
            log.warning("%s", self.fault)
            self._not_before = time.monotonic() + 1.0

    @property
    def _name(self) -> str:
        return "the worker of long jobs" if self.takes == "long" else "the worker of tasks"

    def stop(self, *, again: bool = False) -> None:
        """Have the worker's companion take no more jobs and end, as SIGTERM has any worker; does not wait.

        It is told once, or `again`: a second time ends the grace of its job.
        """
        if self._process is not None and self._process.poll() is None and (again or not self._was_stopped):
            self._process.terminate()
        self._was_stopped = True

    def end(self, seconds: float) -> bool:
        """Wait until the worker's companion has ended, and kill it after so many seconds; whether it ended well."""
        if self._process is None:
            return True
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, seconds))
        if self._process.poll() is None:
            self._process.kill()
        return self._process.wait() in (0, -signal.SIGTERM)  # the latter before it could have a job


def patience(worker: str, waiting: Set[Kind], others: Sequence[WorkerReport], takes: OfCompanions = "long") -> float:
    """Seconds for which a worker lets jobs of these kinds wait before it starts a companion for them.

    Workers that have none yet do so in turns, by their names, so that one job does not start as many. A worker that
    seems free for these jobs is waited for, but not long: it may be ill.
    """
    free = any(
        report.takes in (takes, "all") and report.state in ("starting", "ready") and waiting & set(report.kinds)
        for report in others
    )
    have_one = {(report.host, report.started_by) for report in others if report.takes == takes}
    before = sum(
        report.takes == "both" and report.name < worker and (report.host, report.pid) not in have_one
        for report in others
    )
    return before * _TURN_SECONDS + (_ILL_SECONDS if free else 0.0)


def _part(setting: str, share: float) -> str:
    """A share of the device memory that a worker's setting grants. What grants none stays, for the child to refuse."""
    try:
        value = float(setting or SHARE)
    except ValueError:
        return setting
    if 0 < value <= 1:
        return repr(value * share)
    return str(int(value * share)) if _LEAST_BYTES <= value < math.inf else setting


def beside_companion(settings: WorkerSettings) -> dict[str, str]:
    """The environment of a worker's own child, by which it leaves device memory to the companions there may be."""
    if settings.takes != "both":
        return {}
    return {"WARPDESK_GPU_MEMORY": _part(settings.gpu_memory, 1 - sum(_SHARES.values()))}
