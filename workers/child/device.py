"""The probe for the device that this process computes on; a missing GPU is a value with a reason, not an exception."""

import ctypes
import importlib
import importlib.util
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.cupy_device import open_device
from warpdesk_server.kernels.gpu.faults import DeviceFault
from warpdesk_server.workers.gpu.nvml import driver_name, library, look
from warpdesk_server.workers.queue.reports import DeviceReport

_PATIENCE = 5.0  # seconds; what the driver says of a device is told with it, and not needed


@dataclass(frozen=True)
class Probe:
    """The result of the child's probe for a device.

    `device` is None where there is no GPU; `report.reason` then says why.
    """

    report: DeviceReport
    device: Device | None


def probe(setting: str = "", memory: str = "") -> Probe:
    """Open the device that the child was told to use (`WorkerSettings.device`), or say why there is none.

    A CUDA index counts as nvidia-smi does. Call it once per process: a CUDA context belongs to its process. `memory`
    limits what is taken of the device's (`WorkerSettings.gpu_memory`).
    """
    if setting == "cpu":
        return without_gpu("the setting WARPDESK_DEVICE is cpu")
    try:
        if ":" in setting:
            return _found(_stand_in(setting), driver_name(setting))
        if reason := _missing():
            return without_gpu(reason)
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        if setting:
            os.environ["CUDA_VISIBLE_DEVICES"] = setting
        device = open_device(memory=memory)
        # CUDA's index is not NVML's where not all are visible, and of a MIG device the bus is that of the whole GPU.
        name = driver_name(setting)
        return _found(device, name if name.startswith("MIG-") else _bus(device))
    except DeviceFault as fault:
        return without_gpu(str(fault), fault.code)
    except Exception as error:  # noqa: BLE001 (whatever a driver or a library raises, there is a CPU to compute on)
        return without_gpu(f"looking for a GPU failed with {type(error).__name__}: {error}")


def without_gpu(reason: str, fault: int | None = None) -> Probe:
    """The probe of a child that computes on the CPU.

    `fault` is the CUDA error with which opening a GPU that may be there failed.
    """
    return Probe(DeviceReport(backend="cpu", name=cpu_name(), reason=reason, fault=fault), None)


@cache
def cpu_name() -> str:
    """The name of the CPU that the child computes on, and how many of its cores this process may use."""
    name = "CPU"
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{name}, {cores} core{'s' if cores > 1 else ''}"


def _missing() -> str | None:
    """Why the child cannot use CUDA, found without starting it."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver: libcuda.so.1 was not found"
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed: install warpdesk with the extra gpu"
    return None


def _found(device: Device, name: str) -> Probe:
    """The probe of a child that computes on a GPU.

    `name` is what the driver calls the device, "" for a stand-in that it does not know.
    """
    details: dict[str, Any] = {"uuid": name if name.startswith(("GPU-", "MIG-")) else None}
    if name:
        reading = look(name, library(), deadline=_PATIENCE).reading
        if reading is not None:  # a driver that does not tell is no fault: the device works
            details = {"memory_bytes": reading.memory_total, "driver": reading.driver, "uuid": reading.uuid}
    report = DeviceReport(backend="gpu", name=device.name, architecture=device.architecture, **details)
    return Probe(report, device)


def _bus(device: Device) -> str:
    """Where the child's GPU is on the PCI bus, which NVML knows it by too."""
    runtime = cast("Any", device.cupy).cuda.runtime
    bus = runtime.deviceGetPCIBusId(runtime.getDevice())
    return bus.decode() if isinstance(bus, bytes) else str(bus)


def _stand_in(setting: str) -> Any:
    """The stand-in for a GPU that the child computes on.

    It is what "module:factory" makes, or "module:factory@uuid" of a UUID.
    """
    path, _, uuid = setting.partition("@")
    module, _, attribute = path.partition(":")
    factory = getattr(importlib.import_module(module), attribute)
    return factory(uuid) if uuid else factory()
