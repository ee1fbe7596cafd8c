"""The monitor of a GPU's driver: a thread reads NVML, so that a driver call that hangs blocks no caller.

`Monitor` reads about once a second and listens for Xid events; `report` answers at once from the last reading, with its
age, and says since when a call has not returned. Nothing here touches CUDA, and nothing here changes a GPU: we report
and drain, we never reset. The diagnosis is in diagnosis.py.

`library` everywhere is the module `pynvml`.
"""

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from warpdesk_server.workers.gpu.diagnosis import Failure, Slowdown, findings
from warpdesk_server.workers.gpu.energy import Energy
from warpdesk_server.workers.gpu.session import NvmlSession, is_grave
from warpdesk_server.workers.gpu.xid import meaning
from warpdesk_server.workers.queue.reports import GpuReading, GpuReport, XidEvent
from warpdesk_server.workers.settings import WorkerSettings

log = logging.getLogger("warpdesk.nvml")

INTERVAL = 0.7  # seconds between two readings: with the deadline less than the two seconds in which a hang is told
DEADLINE = 1.0  # seconds a call may take before it is said to hang; a whole reading takes a few milliseconds
INIT_DEADLINE = 10.0  # the same for opening the library, which may load the driver's state onto the GPU first
_NO_LIBRARY = 12  # NVML_ERROR_LIBRARY_NOT_FOUND
_WAIT = 0.2  # seconds of one wait for an event, so that the thread notices its end

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a slice of one, as its driver names it, that a worker can be given."""

    uuid: str
    name: str
    index: int  # of the whole GPU, as nvidia-smi counts


def library() -> Any:
    """The module `pynvml`, imported at the first call."""
    return importlib.import_module("pynvml")


def gpus(nvml: Any, deadline: float = INIT_DEADLINE) -> list[Gpu]:
    """Every GPU the driver knows that CUDA could use; none where NVML is missing.

    Of a GPU that is cut into MIG devices there are the slices. Raises TimeoutError when the driver does not answer.
    """
    return within(deadline, lambda: _gpus(nvml), "the NVIDIA driver did not say which GPUs there are")


def visible(found: Sequence[Gpu], chosen: str | None) -> list[str]:
    """The UUIDs of the driver's GPUs that CUDA_VISIBLE_DEVICES leaves, all where it is None.

    As CUDA reads it: indices, and beginnings of UUIDs that fit only one, up to the first that names no GPU. An index
    counts as nvidia-smi does, and of a GPU that is cut takes its first slice. Where the driver told of no GPU, CUDA is
    left to judge the words.
    """
    if chosen is None:
        return [gpu.uuid for gpu in found]
    words = [word.strip() for word in chosen.split(",")] if chosen.strip() else []
    if not found:
        return words
    left: list[str] = []
    for word in words:
        if word.isdigit():
            fitting = [gpu.uuid for gpu in found if gpu.index == int(word)][:1]
        else:
            fitting = [gpu.uuid for gpu in found if word and gpu.uuid.startswith(word)]
        if len(fitting) != 1:
            break
        left += fitting
    return left


def look(which: str, nvml: Any, deadline: float = INIT_DEADLINE + DEADLINE) -> GpuReport:
    """One reading of a GPU from its driver, named as for Monitor; waits for it no longer than `deadline` seconds."""
    monitor = Monitor(which, nvml)
    monitor.start()
    monitor.wait_for_first(deadline)
    monitor.stop()
    return monitor.report()


def within(deadline: float, work: Callable[[], _Value], otherwise: str) -> _Value:
    """What `work`, a call of the GPU's driver, returns or raises.

    Raises TimeoutError after `deadline` seconds: the call is then left behind in its thread.
    """
    done = threading.Event()
    results: list[_Value] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 (raised again below)
            errors.append(error)
        done.set()

    threading.Thread(target=run, name="nvml", daemon=True).start()
    if not done.wait(deadline):
        raise TimeoutError(f"{otherwise} in {deadline:g} s")
    if errors:
        raise errors[0]
    return results[0]


def watch(
    settings: WorkerSettings, pid: Callable[[], int | None], processes: Callable[[], int] = lambda: 1
) -> "Monitor | None":
    """A started monitor of the driver of the GPU that a worker was told to use.

    None where it was told not to use one. A stand-in for a GPU has a driver only where a script plays one. `processes`
    tells how many on the GPU are the worker's and its companion's.
    """
    which = driver_name(settings.device)
    if which == "cpu" or (":" in settings.device and not which):
        return None
    monitor = Monitor(which, library(), pid, gpm=settings.gpm, processes=processes)
    monitor.start()
    return monitor


def driver_name(setting: str) -> str:
    """What the driver calls the GPU that WARPDESK_DEVICE names: a UUID, an index, or "" for the first one CUDA may use.

    A stand-in for a GPU, "module:factory@uuid", has the UUID it is given.
    """
    if ":" in setting:
        return setting.partition("@")[2]
    return setting or os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()


class Monitor(threading.Thread):
    """The monitor that reads one GPU's driver. `report` may be called from any thread and never waits for the driver.

    `which` names the GPU: by its UUID or a MIG device's, its index, its place on the PCI bus, or "" for the first.
    `pid` is asked for the process whose memory is read, `gpm` asks for what workers.gpu.gpm reads.
    """

    def __init__(
        self,
        which: str,
        nvml: Any,
        pid: Callable[[], int | None] = lambda: None,
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.monotonic,
        gpm: bool = False,
        processes: Callable[[], int] = lambda: 1,
    ) -> None:
        super().__init__(name="nvml", daemon=True)
        self._which = which
        self._timed = _Timed(nvml, clock)
        self._nvml = nvml
        self._pid = pid
        self._interval = interval
        self._clock = clock
        self._gpm = gpm
        self._processes = processes
        self._energy = Energy(interval)
        self._stopped = threading.Event()
        self._looked = threading.Event()
        self._session: NvmlSession | None = None
        self._read: tuple[GpuReading, float] | None = None  # and when, by the clock
        self._failure: Failure | None = None
        self._xids: tuple[XidEvent, ...] = ()  # the latest of each number
        self._slowdown = Slowdown()

    def report(self) -> GpuReport:
        now = self._clock()
        read, failure, hung = self._read, self._failure, self._timed.overdue(now)
        reading = read[0] if read is not None else None
        found = findings(self._nvml, reading, self._slowdown.reasons, failure, hung, self._xids)
        return GpuReport(
            state=found[0].state if found else "healthy",
            findings=found,
            reading=reading,
            age_seconds=round(now - read[1], 3) if read is not None else None,
            hung_since=round(time.time() - hung[1], 3) if hung is not None else None,
            xids=self._xids,
        )

    def joules(self, since: float, until: float) -> float | None:
        """The joules that the GPU used between two moments of the clock: see workers.gpu.energy."""
        return self._energy.joules(since, until)

    def wait_for_first(self, deadline: float) -> bool:
        """Whether a first reading of the GPU's driver succeeded or failed within so many seconds."""
        return self._looked.wait(deadline)

    def stop(self) -> None:
        """Let the monitor's thread end; it is not waited for, since it may hang in the GPU's driver."""
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.is_set():
            self.step()
        self._close()

    def step(self) -> None:
        """Read the GPU once, then wait for Xid events until the next reading is due."""
        try:
            self._sample()
            self._looked.set()
            self._listen()
        except Exception as error:  # noqa: BLE001 (NVML's errors, and whatever a broken library raises)
            self._fail(error)
            self._looked.set()
            self._stopped.wait(self._interval)

    def _sample(self) -> None:
        if self._session is None:
            self._session = NvmlSession(self._timed, self._which, self._gpm, self._clock)
        reading = self._session.read(self._pid())
        now = self._clock()
        self._energy.see(reading, now, self._processes())
        self._slowdown.see(reading.clock_reasons, now)
        self._read, self._failure = (reading, now), None

    def _listen(self) -> None:
        until = self._clock() + self._interval
        session = self._session
        while session is not None and (left := until - self._clock()) > 0 and not self._stopped.is_set():
            if not session.events:
                self._stopped.wait(left)
            elif (xid := session.next_xid(min(left, _WAIT))) is not None:
                asks, words = meaning(xid)
                log.warning("Xid %d on %s: %s", xid, session.uuid, words)
                event = XidEvent(xid=xid, at=round(time.time(), 3), asks=asks, meaning=words)
                self._xids = (*(other for other in self._xids if other.xid != xid), event)

    def _fail(self, error: Exception) -> None:
        code, last = getattr(error, "value", None), self._failure
        words = str(error) if isinstance(code, int) else f"{type(error).__name__}: {error}"
        if last is None or last.code != code:
            # A machine without a GPU has no driver's library: the service's start says what computes instead.
            log.log(logging.INFO if code == _NO_LIBRARY else logging.WARNING, "NVML: %s", words)
            self._failure = Failure(code, words)
        else:
            self._failure = Failure(code, words, last.count + 1)
        self._close()

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


class _Timed:
    """The NVML library, wrapped so that the running call and its start are recorded."""

    def __init__(self, nvml: Any, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._clock = clock
        self._running: tuple[str, float, float] | None = None  # the call, its beginning, how long it may take

    def overdue(self, now: float) -> tuple[str, float] | None:
        """The NVML call that should have returned by now, and for how many seconds it has run."""
        running = self._running
        if running is None or now - running[1] <= running[2]:
            return None
        return running[0], now - running[1]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._nvml, name)
        if not callable(found) or not name.startswith("nvml"):
            return found

        def call(*arguments: Any) -> Any:
            self._running = (name, self._clock(), _allowed(name, arguments))
            try:
                return found(*arguments)
            finally:
                self._running = None

        return call


def _allowed(name: str, arguments: tuple[Any, ...]) -> float:
    if name == "nvmlInit":
        return INIT_DEADLINE
    if name == "nvmlEventSetWait_v2":
        return DEADLINE + arguments[1] / 1000
    return DEADLINE


def _gpus(nvml: Any) -> list[Gpu]:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        log.info("no GPU through NVML: %s", error)
        return []
    try:
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                whole = nvml.nvmlDeviceGetHandleByIndex(index)
                devices = _slices(nvml, whole)
                found += [Gpu(nvml.nvmlDeviceGetUUID(d), nvml.nvmlDeviceGetName(d), index) for d in devices]
            except nvml.NVMLError as error:
                log.warning("GPU %d is left out: %s", index, error)  # it is lost, or not for this user
        return found
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _slices(nvml: Any, whole: Any) -> list[Any]:
    """The GPU as NVML lists it, or its MIG devices where it is cut; cut and without any, CUDA cannot use it."""
    try:
        if nvml.nvmlDeviceGetMigMode(whole)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return [whole]
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(whole)
    except nvml.NVMLError as error:
        if is_grave(nvml, error):
            raise
        return [whole]
    slices = []
    for index in range(most):
        with suppress(nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            slices.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, index))
    return slices
