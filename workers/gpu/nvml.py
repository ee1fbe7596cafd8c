"""What the driver says of a GPU, read through NVML in a thread, so that a hung driver call hangs nobody who asks.

`Monitor` reads about once a second and listens for Xid events; `report` answers at once from the last reading, with its
age, and says since when a call has not returned. Nothing here touches CUDA, and nothing here changes a GPU: we report
and drain, we never reset. What it all means is judged in diagnosis.py.

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
from warpdesk_server.workers.gpu.gpm import Gpm
from warpdesk_server.workers.gpu.xid import meaning
from warpdesk_server.workers.queue.reports import CLOCK_REASONS, GpuReading, GpuReport, MigSlice, XidEvent
from warpdesk_server.workers.settings import WorkerSettings

log = logging.getLogger("warpdesk.nvml")

INTERVAL = 0.7  # seconds between two readings: with the deadline less than the two seconds in which a hang is told
DEADLINE = 1.0  # seconds a call may take before it is said to hang; a whole reading takes a few milliseconds
INIT_DEADLINE = 10.0  # the same for opening the library, which may load the driver's state onto the GPU first
_WAIT = 0.2  # seconds of one wait for an event, so that the thread notices its end

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h), the lowest first.
_REASONS = {1 << place: reason for place, reason in enumerate(CLOCK_REASONS)}

# Values of NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (nvmlDeviceGpuRecoveryAction_t).
_ACTIONS: dict[int, str] = {
    0: "none",
    1: "reset",
    2: "reboot",
    3: "drain-p2p",
    4: "drain-and-reset",
    5: "recover-imex-domain",
    6: "bus-reset",
    7: "reboot",
}

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a slice of one, that a worker can be given."""

    uuid: str
    name: str
    index: int  # of the whole GPU, as nvidia-smi counts


def library() -> Any:
    """pynvml, loaded when it is first asked for."""
    return importlib.import_module("pynvml")


def gpus(nvml: Any, deadline: float = INIT_DEADLINE) -> list[Gpu]:
    """Every GPU CUDA could use, slices instead of a GPU that is cut into MIG devices; none where NVML is missing.

    Raises TimeoutError when the driver does not answer.
    """
    return within(deadline, lambda: _gpus(nvml), "the NVIDIA driver did not say which GPUs there are")


def visible(found: Sequence[Gpu], chosen: str | None) -> list[str]:
    """The UUIDs of the GPUs that CUDA_VISIBLE_DEVICES leaves, all where it is None.

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
    """One reading of a GPU, named as for Monitor; waits for it no longer than `deadline` seconds."""
    monitor = Monitor(which, nvml)
    monitor.start()
    monitor.wait_for_first(deadline)
    monitor.stop()
    return monitor.report()


def within(deadline: float, work: Callable[[], _Value], otherwise: str) -> _Value:
    """What `work` returns or raises, or TimeoutError after `deadline` seconds, when it is left behind in its thread."""
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


def watch(settings: WorkerSettings, pid: Callable[[], int | None]) -> "Monitor | None":
    """A monitor, started, of the GPU a worker was told to use; None where it was told not to use one.

    A stand-in for a GPU has a driver only where a script plays one.
    """
    which = driver_name(settings.device)
    if which == "cpu" or (":" in settings.device and not which):
        return None
    monitor = Monitor(which, library(), pid, gpm=settings.gpm)
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
    """Reads one GPU as long as it lives. `report` may be called from any thread and never waits for the driver.

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
    ) -> None:
        super().__init__(name="nvml", daemon=True)
        self._which = which
        self._timed = _Timed(nvml, clock)
        self._nvml = nvml
        self._pid = pid
        self._interval = interval
        self._clock = clock
        self._gpm = gpm
        self._energy = Energy(interval)
        self._stopped = threading.Event()
        self._looked = threading.Event()
        self._session: _Session | None = None
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
        """What the GPU took between two moments of the clock: see workers.gpu.energy."""
        return self._energy.joules(since, until)

    def wait_for_first(self, deadline: float) -> bool:
        """Whether a first reading succeeded or failed within so many seconds."""
        return self._looked.wait(deadline)

    def stop(self) -> None:
        """Let the thread end; it is not waited for, since it may hang in the driver."""
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.is_set():
            self.step()
        self._close()

    def step(self) -> None:
        """One reading, and then events until the next is due."""
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
            self._session = _Session(self._timed, self._which, self._gpm, self._clock)
        reading = self._session.read(self._pid())
        now = self._clock()
        self._energy.see(reading, now)
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
            log.warning("NVML: %s", words)
            self._failure = Failure(code, words)
        else:
            self._failure = Failure(code, words, last.count + 1)
        self._close()

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


class _Timed:
    """The library, whose calls leave a mark while they run."""

    def __init__(self, nvml: Any, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._clock = clock
        self._running: tuple[str, float, float] | None = None  # the call, its beginning, how long it may take

    def overdue(self, now: float) -> tuple[str, float] | None:
        """The call that should have returned by now, and for how many seconds it has run."""
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


class _Session:
    """The library opened, one GPU found in it, and its events asked for."""

    def __init__(self, nvml: Any, which: str, gpm: bool, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._gpm: Gpm | None = None
        nvml.nvmlInit()
        try:
            self._device, self._whole = _find(nvml, which)
            self._described = self._describe()
            self.uuid = self._described.uuid
            self.events = self._register()
            if gpm:
                self._gpm = self._told(self._open_gpm, clock)
        except BaseException:
            with suppress(Exception):
                nvml.nvmlShutdown()
            raise

    def read(self, pid: int | None) -> GpuReading:
        nvml, device, whole = self._nvml, self._device, self._whole
        memory = self._memory()
        reasons = self._told(nvml.nvmlDeviceGetCurrentClocksEventReasons, whole)
        if reasons is None:  # before driver 535 it had another name
            reasons = self._told(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, whole)
        remapped = self._told(nvml.nvmlDeviceGetRemappedRows, whole)
        utilization = self._told(nvml.nvmlDeviceGetUtilizationRates, device)
        volatile = nvml.NVML_VOLATILE_ECC
        retirement = self._told(nvml.nvmlDeviceGetRetiredPagesPendingStatus, whole)
        ratios = None if self._gpm is None else self._told(self._gpm.read)
        return self._described.model_copy(
            update={
                **memory,
                **self._processes(pid),
                **(ratios or {}),
                "utilization": None if utilization is None else utilization.gpu / 100,
                "temperature": self._told(nvml.nvmlDeviceGetTemperature, whole, nvml.NVML_TEMPERATURE_GPU),
                "slowdown_temperature": self._told(
                    nvml.nvmlDeviceGetTemperatureThreshold, whole, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
                ),
                "power": _scaled(self._told(nvml.nvmlDeviceGetPowerUsage, whole), 1e-3),
                "power_limit": _scaled(self._told(nvml.nvmlDeviceGetEnforcedPowerLimit, whole), 1e-3),
                "energy": _scaled(self._told(nvml.nvmlDeviceGetTotalEnergyConsumption, whole), 1e-3),
                "sm_clock": _scaled(self._told(nvml.nvmlDeviceGetClockInfo, whole, nvml.NVML_CLOCK_SM), 1_000_000),
                "memory_clock": _scaled(self._told(nvml.nvmlDeviceGetClockInfo, whole, nvml.NVML_CLOCK_MEM), 1_000_000),
                "clock_reasons": None if reasons is None else clock_reasons(reasons),
                "ecc_uncorrected": self._told(
                    nvml.nvmlDeviceGetTotalEccErrors, whole, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile
                ),
                "ecc_corrected": self._told(
                    nvml.nvmlDeviceGetTotalEccErrors, whole, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile
                ),
                "rows_remapped": None if remapped is None else remapped[0] + remapped[1],
                "rows_remapped_uncorrected": None if remapped is None else remapped[1],
                "remap_pending": None if remapped is None else bool(remapped[2]),
                "remap_failed": None if remapped is None else bool(remapped[3]),
                "pages_retired": self._pages_retired(whole),
                "retirement_pending": None if retirement is None else bool(retirement),
                "recovery_action": self._recovery_action(whole),
            }
        )

    def next_xid(self, seconds: float) -> int | None:
        """The number of an Xid event, None where there was none in this time."""
        nvml = self._nvml
        try:
            event = nvml.nvmlEventSetWait_v2(self.events, max(1, int(seconds * 1000)))
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_TIMEOUT:
                return None
            raise
        own = self._described.mig.gpu_instance if self._described.mig is not None else None
        other = event.gpuInstanceId != nvml.NVML_VALUE_NOT_AVAILABLE_uint.value and event.gpuInstanceId != own
        if event.eventType != nvml.nvmlEventTypeXidCriticalError or (own is not None and other):
            return None
        return int(event.eventData)

    def close(self) -> None:
        if self._gpm is not None:
            self._gpm.close()
        with suppress(Exception):  # a GPU that is gone closes as it likes
            if self.events is not None:
                self._nvml.nvmlEventSetFree(self.events)
            self._nvml.nvmlShutdown()

    def _describe(self) -> GpuReading:
        nvml = self._nvml
        cuda = self._told(nvml.nvmlSystemGetCudaDriverVersion_v2)
        capability = self._told(nvml.nvmlDeviceGetCudaComputeCapability, self._whole)
        width = self._told(nvml.nvmlDeviceGetMemoryBusWidth, self._whole)
        highest = self._told(nvml.nvmlDeviceGetMaxClockInfo, self._whole, nvml.NVML_CLOCK_MEM)
        mig = None
        if self._device is not self._whole:
            mig = MigSlice(
                parent=nvml.nvmlDeviceGetUUID(self._whole),
                gpu_instance=self._told(nvml.nvmlDeviceGetGpuInstanceId, self._device),
                compute_instance=self._told(nvml.nvmlDeviceGetComputeInstanceId, self._device),
            )
        return GpuReading(
            uuid=nvml.nvmlDeviceGetUUID(self._device),
            name=nvml.nvmlDeviceGetName(self._device),
            index=self._told(nvml.nvmlDeviceGetIndex, self._whole),
            mig=mig,
            driver=self._told(nvml.nvmlSystemGetDriverVersion),
            cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            architecture=None if capability is None else "sm_{}{}".format(*capability),
            memory_bus_width=width or None,
            # Two words each cycle of the clock that NVML tells, of HBM and of GDDR5 to 7.
            peak_memory_bandwidth=2 * highest * 1_000_000 * width // 8 if highest and width else None,
        )

    def _register(self) -> Any:
        """An event set that hears of Xids, None where this GPU or driver has none."""
        nvml = self._nvml
        supported = self._told(nvml.nvmlDeviceGetSupportedEventTypes, self._whole)
        if not supported or not supported & nvml.nvmlEventTypeXidCriticalError:
            return None
        events = nvml.nvmlEventSetCreate()
        try:
            nvml.nvmlDeviceRegisterEvents(self._whole, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            nvml.nvmlEventSetFree(events)
            if _is_grave(nvml, error):
                raise
            return None
        return events

    def _memory(self) -> dict[str, int | None]:
        nvml = self._nvml
        memory = self._told(nvml.nvmlDeviceGetMemoryInfo, self._device, nvml.nvmlMemory_v2)
        if memory is None:  # the first version counts what is reserved as used
            memory = nvml.nvmlDeviceGetMemoryInfo(self._device)
        return {
            "memory_total": memory.total,
            "memory_used": memory.used,
            "memory_free": memory.free,
            "memory_reserved": getattr(memory, "reserved", None),
        }

    def _processes(self, pid: int | None) -> dict[str, int | None]:
        """How many compute on it, and the memory of ours and of all others; no number of a process leaves this."""
        told = self._told(self._nvml.nvmlDeviceGetComputeRunningProcesses_v3, self._device)
        if told is None:
            return {}
        found = {process.pid: process.usedGpuMemory for process in told}
        # In a container NVML may count processes as the host does: where there is one only, it is ours by that number.
        ours = next(iter(found)) if len(found) == 1 and pid is not None else pid
        others = [memory for process, memory in found.items() if process != ours]
        known = None not in others and (ours is None or ours in found or not found)
        return {
            "processes": len(found),
            "process_memory": found.get(ours),
            "other_memory": sum(others) if known else None,
        }

    def _open_gpm(self, clock: Callable[[], float]) -> Gpm | None:
        """None where this GPU has no performance monitoring."""
        if not self._nvml.nvmlGpmQueryDeviceSupport(self._whole).isSupportedDevice:
            return None
        mig = self._described.mig
        return Gpm(self._nvml, self._whole, None if mig is None else mig.gpu_instance, clock)

    def _pages_retired(self, whole: Any) -> int | None:
        nvml = self._nvml
        causes = (
            nvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
            nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
        )
        pages = [self._told(nvml.nvmlDeviceGetRetiredPages, whole, cause) for cause in causes]
        return None if None in pages else sum(len(page) for page in pages)

    def _recovery_action(self, whole: Any) -> str | None:
        nvml = self._nvml
        values = self._told(nvml.nvmlDeviceGetFieldValues, whole, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if values is None or values[0].nvmlReturn != nvml.NVML_SUCCESS:
            return None
        number = values[0].value.uiVal
        return _ACTIONS.get(number, f"action {number}")

    def _told(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None where this GPU or driver has none. What concerns the whole GPU is raised."""
        try:
            return ask(*arguments)
        except self._nvml.NVMLError as error:
            if _is_grave(self._nvml, error):
                raise
            return None


def clock_reasons(bits: int) -> tuple[str, ...]:
    """The words for a set of NVML's clock event reasons."""
    return tuple(words for bit, words in _REASONS.items() if bits & bit)


def _scaled(value: int | None, by: float) -> Any:
    return None if value is None else round(value * by, 3)


def _is_grave(nvml: Any, error: Any) -> bool:
    """Whether an error is of the GPU or the driver, and not of one question."""
    return error.value in (
        nvml.NVML_ERROR_GPU_IS_LOST,
        nvml.NVML_ERROR_RESET_REQUIRED,
        nvml.NVML_ERROR_UNKNOWN,
        nvml.NVML_ERROR_UNINITIALIZED,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        nvml.NVML_ERROR_OPERATING_SYSTEM,
    )


def _find(nvml: Any, which: str) -> tuple[Any, Any]:
    """The device a setting names, and the whole GPU it is, or is a slice of."""
    if which.startswith("MIG-"):
        device = nvml.nvmlDeviceGetHandleByUUID(which)
        return device, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    if ":" in which:
        device = nvml.nvmlDeviceGetHandleByPciBusId(which)
    elif which and not which.isdigit():
        device = nvml.nvmlDeviceGetHandleByUUID(which)
    else:
        device = nvml.nvmlDeviceGetHandleByIndex(int(which or 0))
    return device, device


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
    """The GPU itself, or its MIG devices where it is cut; cut and without any, CUDA cannot use it."""
    try:
        if nvml.nvmlDeviceGetMigMode(whole)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return [whole]
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(whole)
    except nvml.NVMLError as error:
        if _is_grave(nvml, error):
            raise
        return [whole]
    slices = []
    for index in range(most):
        with suppress(nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            slices.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, index))
    return slices
