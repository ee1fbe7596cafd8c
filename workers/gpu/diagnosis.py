"""The diagnosis of a GPU from its driver's readings: findings, each with a GPU state, a reason and a remedy."""

from dataclasses import dataclass
from typing import Any

from warpdesk_server.workers.queue.reports import GpuFinding, GpuReading, GpuState, XidEvent

LONG_HANG = 10.0  # seconds after which a hung call is no hiccup
HYSTERESIS = 10.0  # seconds a slowdown must last to be one, and be gone to be over
_MANY_FAILURES = 3  # readings in a row
# Of the clocks' event reasons (nvml.py). A power cap and a busy GPU are normal.
_TROUBLE = {"hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "hardware power brake"}
_RANK: tuple[GpuState, ...] = ("healthy", "unknown", "degraded", "drain", "quarantine")

_RESET = "stop every process on the GPU, this worker first, run `nvidia-smi --gpu-reset -i {uuid}`, start again"
_REBOOT = "restart the machine; if it happens again, the GPU or its power or slot needs a repair"
_WHAT_ASKS: dict[str, tuple[GpuState, str]] = {
    "reset-gpu": ("quarantine", _RESET),
    "restart-machine": ("quarantine", _REBOOT),
    "restart-vm": ("quarantine", "restart the virtual machine"),
    "check-nvlink": ("degraded", "look at `nvidia-smi nvlink --status`; a reset of the GPU clears it"),
    "check-power": ("degraded", "connect the auxiliary power of the GPU"),
    "update-software": ("degraded", "update the driver, and the host's"),
    "look": ("degraded", "look it up in the kernel's log (`dmesg | grep Xid`) and in NVIDIA's catalogue of Xids"),
}
_ACTION_ASKS: dict[str, tuple[GpuState, str]] = {
    "reset": ("quarantine", _RESET),
    "reboot": ("quarantine", _REBOOT),
    "bus-reset": ("quarantine", _REBOOT),
    "drain-and-reset": ("drain", _RESET),
    "drain-p2p": ("drain", "let the jobs that use other GPUs directly end, then reset the GPU"),
    "recover-imex-domain": ("degraded", "recover the IMEX domain; work on this GPU alone goes on"),
}


@dataclass(frozen=True)
class Failure:
    """A failed reading of the driver: NVML's error number, its words, and the number of failures in a row."""

    code: int | None
    words: str
    count: int = 1


class Slowdown:
    """The lasting reasons of a GPU's driver for which its clocks are slowed down.

    Each stays until it was absent for `HYSTERESIS` seconds.
    """

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self._first_at: dict[str, float] = {}
        self.reasons: tuple[str, ...] = ()

    def see(self, reasons: tuple[str, ...] | None, now: float) -> None:
        for reason in _TROUBLE.intersection(reasons or ()):
            self._began.setdefault(reason, now)
            self._first_at[reason] = now
        lasting = []
        for reason, began in list(self._began.items()):
            first_at = self._first_at[reason]
            if first_at < now and (reason not in self.reasons or now - first_at >= HYSTERESIS):
                del self._began[reason]  # it had not lasted, or is over
            elif reason in self.reasons or first_at - began >= HYSTERESIS:
                lasting.append(reason)
        self.reasons = tuple(sorted(lasting))


def findings(
    nvml: Any,
    reading: GpuReading | None,
    slowdown: tuple[str, ...],
    failure: Failure | None,
    hung: tuple[str, float] | None,
    xids: tuple[XidEvent, ...],
) -> tuple[GpuFinding, ...]:
    """All findings on a GPU from its driver's readings, the worst first; none for a healthy GPU.

    `reading` is the last that succeeded, `slowdown` what slows it down (see Slowdown), `failure` the last one that did
    not succeed if none has since, `hung` a call that should have returned and its seconds. `nvml` names the errors.
    """
    found = [
        *(_of_hang(*hung) if hung is not None else ()),
        *(_of_failure(nvml, failure, reading) if failure is not None else ()),
        *(_of_reading(reading, slowdown) if reading is not None else ()),
        *_of_xids(xids, reading),
    ]
    if reading is None and not found:
        found.append(_finding("unknown", "the driver has not been read yet", "wait a moment"))
    return tuple(sorted(found, key=lambda finding: -_RANK.index(finding.state)))


def _finding(state: GpuState, reason: str, remedy: str) -> GpuFinding:
    return GpuFinding(state=state, reason=reason, remedy=remedy)


def _of_hang(call: str, seconds: float) -> list[GpuFinding]:
    state: GpuState = "drain" if seconds >= LONG_HANG else "degraded"
    remedy = "look for Xids and NVRM lines in the kernel's log; a driver that stays hung needs a restart of the machine"
    return [_finding(state, f"the driver hangs: {call} has not returned for {seconds:.1f} s", remedy)]


def _of_failure(nvml: Any, failure: Failure, reading: GpuReading | None) -> list[GpuFinding]:
    code, words = failure.code, failure.words
    if code == nvml.NVML_ERROR_GPU_IS_LOST:
        return [_finding("quarantine", f"the GPU is lost: {words}", _REBOOT)]
    if code == nvml.NVML_ERROR_RESET_REQUIRED:
        return [_finding("quarantine", f"the GPU needs a reset: {words}", _for(_RESET, reading))]
    if code == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        remedy = (
            "where there is a GPU, install its driver; in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        )
        return [_finding("unknown", f"NVML cannot be asked: {words}", remedy)]
    if code == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return [_finding("unknown", f"NVML cannot be asked: {words}", "load the driver: `modprobe nvidia`")]
    if code == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        remedy = "the driver was updated while it was loaded: restart the machine"
        return [_finding("drain", f"the driver's library and its kernel module differ: {words}", remedy)]
    if code in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_GPU_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
        remedy = "compare WARPDESK_DEVICE with `nvidia-smi -L`"
        worse: GpuState = "quarantine" if reading is not None else "unknown"
        return [_finding(worse, f"the driver does not know this GPU: {words}", remedy)]
    if code == nvml.NVML_ERROR_UNKNOWN and failure.count >= _MANY_FAILURES:
        remedy = (
            "a container loses its GPUs so when systemd reloads on the host: start the container again; "
            "devices given by CDI, or the cgroupfs driver, prevent it"
        )
        return [_finding("drain", f"the driver answered {words!r} {failure.count} times in a row", remedy)]
    state: GpuState = "degraded" if failure.count >= _MANY_FAILURES else "unknown"
    return [_finding(state, f"the driver could not be read: {words}", "run `nvidia-smi` on this machine")]


def _of_reading(reading: GpuReading, slowdown: tuple[str, ...]) -> list[GpuFinding]:
    found = []
    reset = _for(_RESET, reading)
    if reading.recovery_action in _ACTION_ASKS:
        state, remedy = _ACTION_ASKS[reading.recovery_action]
        reason = f"the driver asks for this recovery: {reading.recovery_action}"
        found.append(_finding(state, reason, _for(remedy, reading)))
    if reading.ecc_uncorrected:
        reason = f"{reading.ecc_uncorrected} uncorrectable memory errors since the driver was loaded"
        found.append(_finding("quarantine", reason, reset))
    if reading.remap_failed:
        reason = "a faulty row of memory could not be remapped"
        found.append(_finding("quarantine", reason, "have the GPU replaced"))
    if reading.remap_pending:
        found.append(_finding("drain", "a faulty row of memory waits to be remapped by a reset", reset))
    if reading.retirement_pending:
        found.append(_finding("drain", "a faulty page of memory waits to be retired by a reset", reset))
    if slowdown:
        reason = f"the GPU is slowed down: {', '.join(slowdown)}"
        if reading.temperature is not None:
            reason += f" at {reading.temperature} °C"
        found.append(_finding("degraded", reason, "look at cooling, power supply and `nvidia-smi -q -d PERFORMANCE`"))
    return found


def _of_xids(xids: tuple[XidEvent, ...], reading: GpuReading | None) -> list[GpuFinding]:
    """A finding for each Xid event that is more than a fault of the running program; such faults the worker handles."""
    found = []
    for event in (event for event in xids if event.asks in _WHAT_ASKS):
        state, remedy = _WHAT_ASKS[event.asks]
        found.append(_finding(state, f"Xid {event.xid}: {event.meaning}", _for(remedy, reading)))
    return found


def _for(remedy: str, reading: GpuReading | None) -> str:
    """A finding's remedy with the GPU's name in it; a reset is one of the whole GPU."""
    if reading is None:
        return remedy.format(uuid="<uuid>")
    return remedy.format(uuid=reading.mig.parent if reading.mig is not None else reading.uuid)
