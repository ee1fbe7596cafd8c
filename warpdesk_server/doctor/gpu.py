"""The doctor's checks of the GPU: driver, container, state, CuPy, NVRTC, and the device as a worker would open it."""

import ctypes
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from warpdesk_server.doctor.check import Check, Status
from warpdesk_server.doctor.machine import container, gib, nearest
from warpdesk_server.kernels import install
from warpdesk_server.kernels.gpu import nvrtc
from warpdesk_server.kernels.gpu.compile import ARCHITECTURES, sources
from warpdesk_server.kernels.gpu.cubins import Cubins
from warpdesk_server.kernels.gpu.nvrtc import CompileError, Nvrtc
from warpdesk_server.kernels.gpu.source import inline
from warpdesk_server.workers.gpu import nvml
from warpdesk_server.workers.queue.reports import DeviceReport, GpuReport

# The oldest Linux drivers of CUDA 12 and 13 (CUDA Toolkit release notes, table of minimum required drivers).
_OLDEST_DRIVER = {12: "525.60.13", 13: "580.65.06"}
_PACKAGE = "apt-get install nvidia-driver-580-server (Debian: nvidia-driver), then reboot"

# Reasons why opening a GPU failed, by CUDA's error number (CUDA driver API, CUresult).
_REMEDIES = {
    2: "nvidia-smi shows who holds the GPU's memory: stop them, or set WARPDESK_DEVICE to another GPU",
    3: "nvidia-smi: when it fails too, sudo modprobe nvidia_uvm, or reboot",
    35: f"install a newer driver: {_PACKAGE}",
    46: "another process has the GPU for itself: stop it, or sudo nvidia-smi -c DEFAULT",
    100: "ls -l /dev/nvidia*; in a container, start it with --gpus all",
    101: "nvidia-smi -L lists the GPUs: set WARPDESK_DEVICE to an index or UUID of these",
    802: "sudo systemctl restart nvidia-fabricmanager",
    803: "reboot: the driver in the kernel and its libraries are of different versions",
    804: "take the folder of cuda-compat out of LD_LIBRARY_PATH: this GPU does not run with it",
}
BROKEN = "nvidia-smi, and dmesg | grep -i nvrm; sudo nvidia-smi --gpu-reset with the service stopped, or reboot"

_STATES: dict[str, Status] = {
    "healthy": "ok",
    "unknown": "warning",
    "degraded": "warning",
    "drain": "failed",
    "quarantine": "failed",
}


@dataclass(frozen=True)
class Here:
    """What the doctor found of a GPU on this machine: the driver's library, its GPUs or their device files, and the
    setting.

    If there is no GPU and the settings ask for none, no check of the GPU is a failure.
    """

    driver: bool
    gpu: bool
    wanted: bool

    @property
    def matters(self) -> bool:
        return self.gpu or self.wanted


def here(setting: str, library: Any, root: Path = Path("/")) -> Here:
    """Find out for the doctor what this machine has of a GPU. `setting` is WARPDESK_DEVICE, `library` is NVML."""
    has_driver = True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        has_driver = False
    try:
        listed = bool(nvml.gpus(library))
    except TimeoutError:  # a driver that hangs has something to hang on
        listed = True
    return Here(has_driver, listed or bool(_nodes(root)), setting not in ("", "cpu"))


def driver(found: Here, root: Path = Path("/")) -> Check:
    """The doctor's check of libcuda, and whether it is new enough for the CUDA that CuPy was built for. CUDA is not
    initialised."""
    if not found.driver:
        return _no_driver(found, root)
    version = ctypes.c_int()
    if status := ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)):
        return Check("driver", "failed", f"libcuda.so.1 does not tell its version: CUDA error {status}", BROKEN)
    return driver_of(version.value, cupy_major())


def driver_of(version: int, needed: int | None) -> Check:
    """The doctor's check of a driver's CUDA version, such as 12090. `needed` is the CUDA major version that CuPy was
    built for."""
    found = f"knows CUDA {version // 1000}.{version % 1000 // 10}"
    if needed is not None and version // 1000 < needed:
        remedy = f"a driver {_OLDEST_DRIVER.get(needed, 'of that CUDA')} or newer: {_PACKAGE}"
        if needed > 12:
            remedy += f"; or {_other_cupy('cupy-cuda13x')}"
        return Check("driver", "failed", f"{found}, and CuPy is built for CUDA {needed}", remedy)
    return Check("driver", "ok", found, details={"cuda": version})


def _no_driver(here: Here, root: Path) -> Check:
    found = "libcuda.so.1 was not found"
    if here.gpu:
        nodes = _nodes(root)
        remedy = f"install the driver's libraries: {_PACKAGE}"
        if container(root):
            remedy = "start the container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        what = f"/dev/{nodes[0]}" if nodes else "a GPU"
        return Check("driver", "failed", f"{found}, and {what} is there", remedy)
    if here.wanted:
        remedy = f"{_PACKAGE}; in a container, start it with --gpus all; without a GPU, unset WARPDESK_DEVICE"
        return Check("driver", "failed", f"{found}, and WARPDESK_DEVICE asks for a GPU", remedy)
    return Check("driver", "absent", f"{found}: jobs run on the CPU")


def _nodes(root: Path) -> list[str]:
    """The device files of GPUs below /dev, for the doctor's check of the driver."""
    return sorted(path.name for path in (root / "dev").glob("nvidia[0-9]*"))


def container_toolkit(here: Here, root: Path = Path("/")) -> Check | None:
    """The doctor's check whether this container sees a GPU, or on a host with Docker whether its containers can. None
    elsewhere."""
    name = "container toolkit"
    if inside := container(root):
        if nodes := _nodes(root):
            return Check(name, "ok", f"{inside} sees {', '.join(nodes)}")
        return Check(name, "absent", f"{inside} has no /dev/nvidia0; with --gpus all it would see the host's GPUs")
    if shutil.which("docker") is None:
        return None
    if found := shutil.which("nvidia-ctk"):
        return Check(name, "ok", f"{found}, for containers that Docker starts with --gpus all")
    if not here.gpu:
        return Check(name, "absent", "Docker is here, nvidia-ctk is not; without a GPU it is not needed")
    remedy = (
        "apt-get install nvidia-container-toolkit, sudo nvidia-ctk runtime configure --runtime=docker, "
        "sudo systemctl restart docker"
    )
    return Check(name, "warning", "Docker is here, nvidia-ctk is not: containers will see no GPU", remedy)


def state(report: GpuReport) -> Iterator[Check]:
    """The doctor's check of the GPU's state as the driver reports it: faults with remedies, memory, clocks and what
    limits them."""
    reading, findings = report.reading, report.findings
    summary = "; ".join(finding.reason for finding in findings)
    remedy = "; ".join(dict.fromkeys(finding.remedy for finding in findings)) or None
    if reading is None:
        yield Check("state", _STATES[report.state], summary or "the driver does not tell", remedy or BROKEN)
        return
    name = f"{reading.name}, {reading.uuid}, driver {reading.driver}"
    details = reading.model_dump(mode="json")
    yield Check("state", _STATES[report.state], f"{name}: {summary or 'nothing wrong'}", remedy, details)
    yield _device_memory(report)
    clocks = [
        f"{clock} {hertz // 1_000_000} MHz"
        for clock, hertz in (("multiprocessors", reading.sm_clock), ("memory", reading.memory_clock))
        if hertz is not None
    ]
    if reading.temperature is not None:
        clocks.append(f"{reading.temperature} °C")
    if reading.power is not None:
        limit = f" of {reading.power_limit:.0f}" if reading.power_limit is not None else ""
        clocks.append(f"{reading.power:.0f}{limit} W")
    reasons = "not told" if reading.clock_reasons is None else ", ".join(reading.clock_reasons) or "nothing"
    yield Check("clocks", "ok" if clocks else "absent", ", ".join([*clocks, f"held down by: {reasons}"]))


def _device_memory(report: GpuReport) -> Check:
    reading = report.reading
    if reading is None or reading.memory_total is None or reading.memory_free is None:
        return Check("device memory", "absent", "the driver does not tell")
    total, free = reading.memory_total, reading.memory_free
    found = f"{gib(total)}, {gib(free)} free"
    details = {"total": total, "free": free}
    if free < total // 2:
        remedy = "nvidia-smi shows who holds it: stop them, or set WARPDESK_DEVICE to another GPU"
        return Check("device memory", "warning", f"{found}: others hold the rest", remedy, details)
    return Check("device memory", "ok", found, details=details)


def cupy(here: Here) -> Check:
    """The doctor's check of which CuPy is installed. Two CuPy distributions share a folder and break each other."""
    installed = _cupies()
    if len(installed) > 1:
        names = sorted(installed)
        return Check("cupy", "failed", f"{' and '.join(names)} overwrite each other", _other_cupy(*names))
    if not installed:
        if here.matters:
            return Check("cupy", "failed", "not installed: no GPU can be used", install.warpdesk("gpu"))
        return Check("cupy", "absent", "not installed; without a GPU it is not needed")
    ((name, version),) = installed.items()
    return Check("cupy", "ok", f"{name} {version}", details={"name": name, "version": version})


def cupy_major() -> int | None:
    """The CUDA version that the installed CuPy is built for, as the doctor finds it."""
    return next((int(name[9:11]) for name in _cupies() if name[9:11].isdigit()), None)


def _other_cupy(*without: str) -> str:
    return f"{install.pip('uninstall', '-y', *without)} && {install.warpdesk('gpu')}"


def _cupies() -> dict[str, str]:
    found = {(dist.name or "").lower().replace("_", "-"): dist.version for dist in metadata.distributions()}
    return {name: version for name, version in found.items() if name == "cupy" or name.startswith("cupy-cuda")}


def compiler(needed: bool) -> tuple[Check, Nvrtc | None]:
    """The doctor's check that the compiler NVRTC loads and answers."""
    try:
        found = nvrtc.find()
        version = Nvrtc(found.path).version
        architectures = found.architectures()
    except CompileError as error:
        if needed:
            return Check("nvrtc", "failed", str(error), error.remedy), None
        return Check("nvrtc", "absent", f"{error}; without a GPU it is not needed"), None
    sentence = f"{found.version} at {found.path}, for {architectures[0]} to {architectures[-1]}"
    if not f"{found.version}.".startswith(f"{version}."):
        remedy = install.pip("install", "--force-reinstall", nvrtc.PACKAGE)
        return Check("nvrtc", "failed", f"{sentence}, but the library says {version}", remedy), None
    details = {"version": found.version, "path": str(found.path), "architectures": architectures}
    major = cupy_major()
    if major is not None and major != found.major:
        sentence += f"; CuPy is built for CUDA {major} and uses an NVRTC of its own where it needs one"
    return Check("nvrtc", "ok", sentence, details=details), found


def device(report: DeviceReport, here: Here) -> Check:
    """The doctor's check of the device that a worker would open, GPU or CPU."""
    details = report.model_dump(mode="json")
    if report.backend == "gpu":
        return Check("device", "ok", f"{report.name}, {report.architecture}", details=details)
    found = f"{report.name}; no GPU, because {report.reason}"
    if not here.matters:
        return Check("device", "absent", found, details=details)
    if report.fault is not None:
        return Check("device", "failed", found, _REMEDIES.get(report.fault, BROKEN), details)
    remedy = "mend what is failed above" + (
        ", or unset WARPDESK_DEVICE" if here.wanted else ", or set WARPDESK_DEVICE=cpu"
    )
    return Check("device", "failed", found, remedy, details)


def architecture(name: str, compiler: Nvrtc) -> Check:
    """The doctor's check whether the kernels are made for the GPU's architecture."""
    tested = [f"sm_{number}" for number in ARCHITECTURES]
    try:
        target = compiler.target(name)
    except CompileError as error:
        return Check("architecture", "failed", str(error), error.remedy)
    if target != name:
        found = f"NVRTC {compiler.version} does not know {name}, which runs what it makes for {target}"
        return Check("architecture", "warning", found, nvrtc.remedy(name))
    if name not in tested:
        found = f"{name} is not among those every kernel is compiled for before a release ({', '.join(tested)})"
        return Check("architecture", "warning", found, f"warpdesk warm --arch {name}")
    return Check("architecture", "ok", f"{name}, every kernel is made for it")


def kernel_cache(cubins: Cubins, name: str | None) -> Check:
    """The doctor's check of the kernel cache: how many kernels a start would find or compile, or why it can do
    neither."""
    kept = len(cubins.kept())
    found = f"{cubins.directory}, {kept} kept"
    if (refused := cubins.refusal()) is not None:
        sentence = f"{found}: {refused.reason}, so none is used and every start compiles"
        return Check("kernel cache", "warning", sentence, refused.remedy)
    blocked = _unwritable(cubins.directory)
    elsewhere = "export WARPDESK_KERNEL_CACHE=a directory of yours"
    if name is None and blocked:
        sentence = f"{found}: {blocked}, so every start compiles what is not kept"
        return Check("kernel cache", "warning", sentence, elsewhere)
    if name is None:
        return Check("kernel cache", "ok", found)
    texts = [inline(source) for _, source in sources()]
    missing = sum(cubins.find(text, name) is None for text in texts)
    details = {"kept": kept, "sources": len(texts), "missing": missing}
    if missing and blocked:
        found += f": {blocked}, so every start compiles {missing} of {len(texts)} sources for {name}"
        return Check("kernel cache", "warning", found, elsewhere, details)
    if missing:
        found += f"; {missing} of {len(texts)} sources are to be compiled for {name} when they are first used"
        return Check("kernel cache", "warning", found, f"warpdesk warm --arch {name}", details)
    return Check(
        "kernel cache", "ok", f"{found}; all {len(texts)} sources for {name}, a start compiles nothing", None, details
    )


def _unwritable(directory: Path) -> str | None:
    existing = nearest(directory)
    if not existing.is_dir():
        return f"{existing} is not a directory"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{existing} cannot be written"
    return None
