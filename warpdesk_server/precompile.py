"""Compilation ahead of time: the GPU kernels, for this machine's or named architectures, and the CPU code."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from warpdesk_server.kernels.gpu.compile import ARCHITECTURES, Kept, keep_all
from warpdesk_server.kernels.gpu.cubins import Cubins
from warpdesk_server.workers.child.warmup import stamp, start_second_compiler
from warpdesk_server.workers.gpu import nvml
from warpdesk_server.workers.settings import WorkerSettings

CpuCode = Literal["compiled", "there already", "failed"]


@dataclass(frozen=True)
class Warmed:
    """What `warpdesk warm` compiled ahead of time. There are no kernels without a GPU or a named architecture. `cpu` is
    None if left out."""

    directory: str
    nvrtc: str | None
    kernels: tuple[Kept, ...]
    cpu: CpuCode | None

    @property
    def complete(self) -> bool:
        return self.cpu != "failed" and (self.cpu is not None or bool(self.kernels))

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    def as_text(self) -> str:
        lines = []
        for architecture, total in Counter(kept.architecture for kept in self.kernels).items():
            compiled = sum(kept.compiled for kept in self.kernels if kept.architecture == architecture)
            lines.append(f"{architecture:<9}{compiled} compiled, {total - compiled} there already")
        if lines:
            lines.append(f"         kept in {self.directory}, by NVRTC {self.nvrtc}")
        else:
            lines.append("kernels  none: no GPU was found here, and no architecture is named (--arch sm_90, or --all)")
        if self.cpu is not None:
            failed = ": an operation fails its example, `warpdesk doctor` says which" if self.cpu == "failed" else ""
            lines.append(f"CPU      {self.cpu}{failed}")
        return "\n".join(lines)


def warm(cubins: Cubins | None, architectures: Sequence[str], with_cpu: bool) -> Warmed:
    """Compile missing kernels and CPU code ahead of time. Raises CompileError, and OSError if the directory cannot be
    written."""
    kernels: tuple[Kept, ...] = ()
    if cubins is not None and architectures:
        kernels = tuple(keep_all(cubins, architectures, jobs=len(os.sched_getaffinity(0))))
    return Warmed(
        str(cubins.directory) if cubins is not None else "",
        cubins.compiler.version if cubins is not None else None,
        kernels,
        _warm_cpu() if with_cpu else None,
    )


def architectures_of(cubins: Cubins) -> list[str]:
    """The GPU architectures to precompile kernels for, without those that this NVRTC does not support: version 13 has
    dropped sm_70."""
    supported = cubins.compiler.architectures()
    return [name for number in ARCHITECTURES if (name := f"sm_{number}") in supported]


def named(text: str) -> str:
    """NVRTC's name of a GPU architecture to precompile for: "sm_90" for "sm_90", "90" or "9.0". Raises ValueError for
    other text."""
    match = re.fullmatch(r"(?:sm_)?(\d{2,3}|\d{1,2}\.\d)", text)
    if match is None:
        raise ValueError(f"{text!r} is not an architecture such as sm_90")
    return "sm_" + match[1].replace(".", "")


def architectures_here() -> list[str]:
    """The architectures to precompile for: those of this machine's GPUs as the driver reports them, without CUDA; empty
    if it reports none."""
    library = nvml.library()
    with suppress(Exception):  # NVML's errors, or a driver that does not answer: there is no GPU to compile for
        return nvml.within(nvml.INIT_DEADLINE, lambda: _architectures(library), "the driver did not answer")
    return []


def _architectures(library: Any) -> list[str]:
    library.nvmlInit()
    try:
        handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
        return sorted({"sm_{}{}".format(*library.nvmlDeviceGetCudaComputeCapability(handle)) for handle in handles})
    finally:
        library.nvmlShutdown()


def _warm_cpu() -> CpuCode:
    """Compile ahead of time the CPU code of a worker's first start, in a separate process, as such a start does."""
    settings = WorkerSettings()
    os.environ.update(settings.cache_environment())
    compiler = start_second_compiler(settings)
    if compiler is None:
        return "there already"
    compiler.wait()
    return "compiled" if stamp(settings).exists() else "failed"
