"""Load CUDA sources and launch them on a device: a GPU through CuPy, or whatever stands in for one in a test."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

_KERNELS = Path(__file__).resolve().parent

# NVRTC's options, the same wherever a kernel is compiled. Products are never contracted into fma: the CPU has the same
# roundings then. Denormals of float32 are flushed because CuPy, which adds the two options after --fmad, always does.
COMPILE_OPTIONS = ("--std=c++17", "--fmad=false", "-ftz=true", "--device-as-default-execution-space")


class DeviceFault(Exception):
    """A device could not do what was asked; `code` is the CUDA error number where there is one."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class NoDevice(DeviceFault):
    """There is no usable GPU; the message says why."""


class OutOfMemory(DeviceFault):
    """Device memory ran out; the message carries the bytes."""


class LaunchFailed(DeviceFault):
    """A launch was refused (bad configuration, no kernel image): the job's fault, the context lives on."""


class DeviceLost(DeviceFault):
    """A sticky error: the context is gone and the process that owns it must exit."""


@dataclass(frozen=True)
class Source:
    """A `.cu` file and the macros it is compiled with; headers it includes as "device/x.cuh" are inlined."""

    path: Path
    defines: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True)
class Times:
    """Seconds spent copying between host and device, and in kernels."""

    copy: float = 0.0
    kernel: float = 0.0


class Kernel(Protocol):
    """A compiled `extern "C" __global__` function."""

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        """Launch. Scalars in `args` are NumPy scalars of the parameter's exact type; arrays are device arrays."""


class Device(Protocol):
    """What an implementation in a family's gpu.py may ask of the device."""

    name: str
    architecture: str  # "sm_90"
    multiprocessors: int
    cupy: Any | None  # the CuPy module where CuPy drives the device, for libraries such as cuBLAS; None otherwise

    def kernel(self, source: Source, name: str) -> Kernel:
        """Compile `source` (once) and return one of its kernels."""

    def to_device(self, array: Any) -> Any:
        """Copy a host array to the device."""

    def empty(self, shape: tuple[int, ...] | int, dtype: Any) -> Any: ...

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> Any: ...

    def to_host(self, array: Any) -> Any:
        """Wait for the device and copy an array back as NumPy."""

    def times(self) -> Times:
        """What copies and kernels took since the last call."""


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?P<what>[<"][^>"]*[>"]).*$', re.MULTILINE)


def inline(source: Source) -> str:
    """Return the kernel's text with its macros defined and every `#include "device/x.cuh"` replaced by that header, once.

    The text is complete: CuPy's disk cache hashes it, and would not hash an included file. Marks (#line) keep the
    compiler's messages pointing at the files as they are written.
    """
    seen: set[str] = set()

    def expand(path: Path, shown: str) -> str:
        text = path.read_text()

        def include(match: re.Match[str]) -> str:
            line = text.count("\n", 0, match.start()) + 1
            name = match["what"][1:-1]
            if match["what"][0] == "<" or not re.fullmatch(r"device/\w+\.cuh", name):
                raise ValueError(f'{shown}:{line} includes {match["what"]}; kernels include only "device/<name>.cuh"')
            if name in seen:
                return ""
            seen.add(name)
            return f'#line 1 "{name}"\n{expand(_KERNELS / name, name)}\n#line {line + 1} "{shown}"'

        return _INCLUDE.sub(include, text)

    defines = "".join(f"#define {name} {value}\n" for name, value in source.defines.items())
    return f'{defines}#line 1 "{source.path.name}"\n{expand(source.path, source.path.name)}'
