"""Find out which device this process computes on; a missing GPU is a value with a reason, never an exception."""

import ctypes
import importlib
import importlib.util
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kernels.cuda import Device, DeviceFault
from kernels.cupy_device import open_device
from workers.protocol import DeviceReport


@dataclass(frozen=True)
class Probe:
    """What was found. `device` is None where there is no GPU; `report.reason` then says why."""

    report: DeviceReport
    device: Device | None


def probe(setting: str = "") -> Probe:
    """Open the device a worker was told to use (`WorkerSettings.device`), or say why there is none.

    A CUDA index counts as nvidia-smi does. Call it once per process: a CUDA context belongs to its process.
    """
    if setting == "cpu":
        return without_gpu("the setting WARPDESK_DEVICE is cpu")
    try:
        if ":" in setting:
            return _found(_named(setting)())
        if reason := _missing():
            return without_gpu(reason)
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        if setting:
            os.environ["CUDA_VISIBLE_DEVICES"] = setting
        return _found(open_device())
    except DeviceFault as fault:
        return without_gpu(str(fault))
    except Exception as error:  # noqa: BLE001 (whatever a driver or a library raises, there is a CPU to compute on)
        return without_gpu(f"looking for a GPU failed with {type(error).__name__}: {error}")


def without_gpu(reason: str) -> Probe:
    return Probe(DeviceReport(backend="cpu", name=cpu_name(), reason=reason), None)


@cache
def cpu_name() -> str:
    """The processor's name and how many of its cores this process may use."""
    name = "CPU"
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{name}, {cores} core{'s' if cores > 1 else ''}"


def _missing() -> str | None:
    """Why CUDA cannot be used, found without starting it."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver: libcuda.so.1 was not found"
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed: install warpdesk with the extra gpu"
    return None


def _found(device: Device) -> Probe:
    return Probe(
        DeviceReport(backend="gpu", name=device.name, architecture=device.architecture, **_details(device)), device
    )


def _details(device: Device) -> dict[str, Any]:
    """What NVML knows of the device; nothing where NVML is missing or cannot tell, which is no fault."""
    if device.cupy is None:
        return {}
    try:
        import pynvml

        bus = device.cupy.cuda.runtime.deviceGetPCIBusId(device.cupy.cuda.runtime.getDevice())
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus.encode() if isinstance(bus, str) else bus)
            return {
                "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                "driver": pynvml.nvmlSystemGetDriverVersion(),
                "uuid": pynvml.nvmlDeviceGetUUID(handle),
            }
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # noqa: BLE001 (whatever NVML or its absence raises, the device still computes)
        return {}


def _named(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)
