"""An NVML session with one GPU: its description, its readings and its Xid events.

Nothing here touches CUDA, and nothing changes a GPU.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from warpdesk_server.workers.gpu.gpm import Gpm
from warpdesk_server.workers.queue.reports import CLOCK_REASONS, GpuReading, MigSlice

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


class NvmlSession:
    """An open NVML session: the library is initialised, one GPU is found, and its Xid events are registered."""

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
                self._gpm = self._ask(self._open_gpm, clock)
        except BaseException:
            with suppress(Exception):
                nvml.nvmlShutdown()
            raise

    def read(self, pid: int | None) -> GpuReading:
        nvml, device, whole = self._nvml, self._device, self._whole
        memory = self._memory()
        reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, whole)
        if reasons is None:  # before driver 535 it had another name
            reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, whole)
        remapped = self._ask(nvml.nvmlDeviceGetRemappedRows, whole)
        utilization = self._ask(nvml.nvmlDeviceGetUtilizationRates, device)
        volatile = nvml.NVML_VOLATILE_ECC
        retirement = self._ask(nvml.nvmlDeviceGetRetiredPagesPendingStatus, whole)
        ratios = None if self._gpm is None else self._ask(self._gpm.read)
        return self._described.model_copy(
            update={
                **memory,
                **self._processes(pid),
                **(ratios or {}),
                "utilization": None if utilization is None else utilization.gpu / 100,
                "temperature": self._ask(nvml.nvmlDeviceGetTemperature, whole, nvml.NVML_TEMPERATURE_GPU),
                "slowdown_temperature": self._ask(
                    nvml.nvmlDeviceGetTemperatureThreshold, whole, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
                ),
                "power": _scaled(self._ask(nvml.nvmlDeviceGetPowerUsage, whole), 1e-3),
                "power_limit": _scaled(self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit, whole), 1e-3),
                "energy": _scaled(self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, whole), 1e-3),
                "sm_clock": _scaled(self._ask(nvml.nvmlDeviceGetClockInfo, whole, nvml.NVML_CLOCK_SM), 1_000_000),
                "memory_clock": _scaled(self._ask(nvml.nvmlDeviceGetClockInfo, whole, nvml.NVML_CLOCK_MEM), 1_000_000),
                "clock_reasons": None if reasons is None else clock_reasons(reasons),
                "ecc_uncorrected": self._ask(
                    nvml.nvmlDeviceGetTotalEccErrors, whole, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile
                ),
                "ecc_corrected": self._ask(
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
        """The number of an Xid event of the GPU, None where there was none in this time."""
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
        cuda = self._ask(nvml.nvmlSystemGetCudaDriverVersion_v2)
        capability = self._ask(nvml.nvmlDeviceGetCudaComputeCapability, self._whole)
        width = self._ask(nvml.nvmlDeviceGetMemoryBusWidth, self._whole)
        highest = self._ask(nvml.nvmlDeviceGetMaxClockInfo, self._whole, nvml.NVML_CLOCK_MEM)
        mig = None
        if self._device is not self._whole:
            mig = MigSlice(
                parent=nvml.nvmlDeviceGetUUID(self._whole),
                gpu_instance=self._ask(nvml.nvmlDeviceGetGpuInstanceId, self._device),
                compute_instance=self._ask(nvml.nvmlDeviceGetComputeInstanceId, self._device),
            )
        return GpuReading(
            uuid=nvml.nvmlDeviceGetUUID(self._device),
            name=nvml.nvmlDeviceGetName(self._device),
            index=self._ask(nvml.nvmlDeviceGetIndex, self._whole),
            mig=mig,
            driver=self._ask(nvml.nvmlSystemGetDriverVersion),
            cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            architecture=None if capability is None else "sm_{}{}".format(*capability),
            memory_bus_width=width or None,
            # Two words each cycle of the clock that NVML tells, of HBM and of GDDR5 to 7.
            peak_memory_bandwidth=2 * highest * 1_000_000 * width // 8 if highest and width else None,
        )

    def _register(self) -> Any:
        """Register an NVML event set for Xid events; None if this GPU or driver has none."""
        nvml = self._nvml
        supported = self._ask(nvml.nvmlDeviceGetSupportedEventTypes, self._whole)
        if not supported or not supported & nvml.nvmlEventTypeXidCriticalError:
            return None
        events = nvml.nvmlEventSetCreate()
        try:
            nvml.nvmlDeviceRegisterEvents(self._whole, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            nvml.nvmlEventSetFree(events)
            if is_grave(nvml, error):
                raise
            return None
        return events

    def _memory(self) -> dict[str, int | None]:
        nvml = self._nvml
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, self._device, nvml.nvmlMemory_v2)
        if memory is None:  # the first version counts what is reserved as used
            memory = nvml.nvmlDeviceGetMemoryInfo(self._device)
        return {
            "memory_total": memory.total,
            "memory_used": memory.used,
            "memory_free": memory.free,
            "memory_reserved": getattr(memory, "reserved", None),
        }

    def _processes(self, pid: int | None) -> dict[str, int | None]:
        """How many processes compute on the GPU by NVML, and the memory of ours and of all others.

        No number of a process leaves this.
        """
        processes = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses_v3, self._device)
        if processes is None:
            return {}
        found = {process.pid: process.usedGpuMemory for process in processes}
        # In a container NVML may count processes as the host does: where there is one only, it is ours by that number.
        ours = next(iter(found)) if len(found) == 1 and pid is not None else pid
        others = [memory for process, memory in found.items() if process != ours]
        certain = None not in others and (ours is None or ours in found or not found)
        return {
            "processes": len(found),
            "process_memory": found.get(ours),
            "other_memory": sum(others) if certain else None,
        }

    def _open_gpm(self, clock: Callable[[], float]) -> Gpm | None:
        """Open the GPM reader of the GPU; None if it has no performance monitoring."""
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
        pages = [self._ask(nvml.nvmlDeviceGetRetiredPages, whole, cause) for cause in causes]
        return None if None in pages else sum(len(page) for page in pages)

    def _recovery_action(self, whole: Any) -> str | None:
        nvml = self._nvml
        values = self._ask(nvml.nvmlDeviceGetFieldValues, whole, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if values is None or values[0].nvmlReturn != nvml.NVML_SUCCESS:
            return None
        number = values[0].value.uiVal
        return _ACTIONS.get(number, f"action {number}")

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """The driver's answer, or None where this GPU or driver has none. What concerns the whole GPU is raised."""
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            if is_grave(self._nvml, error):
                raise
            return None


def clock_reasons(bits: int) -> tuple[str, ...]:
    """The words for a set of NVML's clock event reasons."""
    return tuple(words for bit, words in _REASONS.items() if bits & bit)


def _scaled(value: int | None, by: float) -> Any:
    return None if value is None else round(value * by, 3)


def is_grave(nvml: Any, error: Any) -> bool:
    """Whether an NVML error concerns the whole GPU or the driver, and not only one query."""
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
    """The NVML device that a setting names, and the whole GPU it is, or is a slice of."""
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
