"""What a kernel is and what runs it: CUDA sources, the contract of a device, and its faults by number."""

import math
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from warpdesk_server.kernels.gpu.memory import Memory  # which raises this module's OutOfMemory

_KERNELS = Path(__file__).resolve().parents[1]

# NVRTC's options, the same wherever a kernel is compiled. Products are never contracted into fma: the CPU has the same
# roundings then. Denormals of float32 are flushed, as in what CuPy compiles by itself around a library's call.
COMPILE_OPTIONS = ("--std=c++17", "--fmad=false", "-ftz=true", "--device-as-default-execution-space")


class DeviceFault(Exception):
    """A device could not do what was asked; `code` is the CUDA error number where there is one.

    `suspects` are the kernels that may have done it, in the order of their launches. Errors of a kernel surface at a
    later wait, so there can be several: those launched and not seen to end. One alone did it.
    """

    def __init__(self, message: str, code: int | None = None, suspects: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.suspects = suspects

    @property
    def kernel(self) -> str | None:
        """The kernel it is put down to: the first suspect, since what runs after a fault does not run."""
        return self.suspects[0] if self.suspects else None


class NoDevice(DeviceFault):
    """There is no usable GPU; the message says why."""


class OutOfMemory(DeviceFault):
    """Device memory ran out; the message carries the bytes."""


class LaunchFailed(DeviceFault):
    """A launch was refused (bad configuration, no kernel image): the job's fault, the context lives on."""


class CompileFailed(DeviceFault):
    """A kernel could not be compiled here: NVRTC refused it or cannot be loaded."""


class DeviceLost(DeviceFault):
    """A sticky or an unknown error: the context is, or may be, gone and the process that owns it must exit."""


@dataclass(frozen=True)
class Source:
    """A `.cu` file and the macros it is compiled with; headers it includes as "device/x.cuh" are inlined."""

    path: Path
    defines: Mapping[str, str | int] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.path, tuple(self.defines.items())))


@dataclass(frozen=True)
class Copied:
    """What was copied in one direction, and for how many seconds it was."""

    nbytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Copied") -> "Copied":
        return Copied(self.nbytes + other.nbytes, self.seconds + other.seconds)


@dataclass(frozen=True)
class Times:
    """What was copied to the device (`up`) and back (`down`), and seconds in kernels.

    Copies count from when the device is free for them to their end, kernels as the device saw them begin and end. Each
    lane counts for itself: where one copies while another computes, the two add up to more than a clock would show.
    """

    up: Copied = Copied()
    down: Copied = Copied()
    kernel: float = 0.0

    @property
    def copy(self) -> float:
        """Seconds of copies in both directions."""
        return self.up.seconds + self.down.seconds


class Kernel(Protocol):
    """A compiled `extern "C" __global__` function."""

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        """Launch. Scalars in `args` are NumPy scalars of the parameter's exact type; arrays are device arrays.

        `shared_mem` is dynamic shared memory in bytes: up to the device's `shared_memory`, less what is declared.
        """

    def blocks_per_multiprocessor(self, threads: int, shared_mem: int = 0) -> int:
        """How many blocks of so many threads one multiprocessor holds at a time, by the kernel's registers and shared
        memory; 0 for a block that cannot be launched. A launch shape may depend on it where no bit of the answer does.
        """


class Device(Protocol):
    """What an implementation in a family's gpu.py may ask of the device."""

    name: str
    architecture: str  # "sm_90"
    multiprocessors: int
    warp: int  # threads
    shared_memory: int  # bytes, the most that one block may have
    l2: int  # bytes
    lanes: int  # how many threads may work on it at a time, each with copies and kernels in an order of their own
    cupy: Any | None  # the CuPy module where CuPy drives the device, for libraries such as cuBLAS; None otherwise
    memory: "Memory"

    def lane(self, index: int) -> AbstractContextManager[None]:
        """Within it work of a thread goes to lane 1 <= index < lanes.

        It begins after what lane 0 was given until this was called, by whatever thread, and runs beside what comes. All
        other threads are in lane 0. At the end what was given to the lane is done, and its faults are raised.
        """

    def kernel(self, source: Source, name: str) -> Kernel:
        """Compile `source` (once) and return one of its kernels."""

    def to_device(self, array: Any) -> Any:
        """Copy a host array to the device. One of rows (see as_rows) need not be made contiguous before."""

    def empty(self, shape: tuple[int, ...] | int, dtype: Any) -> Any: ...

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> Any: ...

    def to_host(self, array: Any, out: Any = None) -> Any:
        """Wait for the device and copy an array back as NumPy, into `out` where it is given; return that.

        `out` is where a result is to be: check_out says what it must be. It holds anything after a failure.
        """

    def times(self) -> Times:
        """What copies and kernels took since the last call."""

    def forget(self) -> None:
        """Give back the memory that is kept for reuse and still holds what was in it: of uploads, and on the device."""


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?P<what>[<"][^>"]*[>"]).*$', re.MULTILINE)


def inline(source: Source) -> str:
    """Return the text with its macros defined and every `#include "device/x.cuh"` replaced by that header, once.

    The text is complete: it is what a compiled kernel is kept by (kernels.gpu.cubins). Marks (#line) keep the
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


@dataclass(frozen=True)
class Parameter:
    """What a kernel's parameter is: kind "f", "i", "u" or "b" with its bytes, or "p" and what it points to.

    An unknown type has kind "" and takes any NumPy scalar; an unknown pointee takes any array.
    """

    kind: str
    size: int
    pointee: str = ""
    pointee_size: int = 0


_TYPES = {
    "u32": ("u", 4),
    "u64": ("u", 8),
    "i32": ("i", 4),
    "i64": ("i", 8),
    "f32": ("f", 4),
    "f64": ("f", 8),
    "unsigned char": ("u", 1),
    "unsigned int": ("u", 4),
    "unsigned": ("u", 4),
    "unsigned long long": ("u", 8),
    "int": ("i", 4),
    "long long": ("i", 8),
    "float": ("f", 4),
    "double": ("f", 8),
    "bool": ("b", 1),
}
_KIND_NAMES = {"f": "a float", "i": "a signed integer", "u": "an unsigned integer", "b": "a bool"}
_ALIAS = re.compile(
    r"\btypedef\s+(?P<old>[\w ]+?)\s+(?P<new>\w+)\s*;|\busing\s+(?P<name>\w+)\s*=\s*(?P<is>[\w ]+?)\s*;"
)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(?P<name>\w+)[ \t]+(?P<is>[\w ]+?)[ \t]*$", re.MULTILINE)


def parameters(text: str, name: str) -> tuple[Parameter, ...] | None:
    """Read the parameters of a kernel from its source; None when several versions of it differ (#if)."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    aliases: dict[str, str] = {}
    for match in (*_MACRO.finditer(code), *_ALIAS.finditer(code)):
        names = match.groupdict()
        new, old = names.get("new") or names["name"], names.get("old") or names["is"]
        # A name with two meanings (#if) is left unread rather than guessed.
        aliases[new] = old if aliases.get(new, old) == old else ""
    found = {
        tuple(_parameter(part, aliases) for part in match[1].split(",") if part.strip() not in ("", "void"))
        for match in re.finditer(rf"__global__[^;{{}}]*?\b{name}\s*\(([^)]*)\)\s*\{{", code)
    }
    return found.pop() if len(found) == 1 else None


def _parameter(text: str, aliases: Mapping[str, str]) -> Parameter:
    words = [
        word
        for word in re.findall(r"\w+", text)
        if word not in ("const", "volatile", "__restrict__", "__grid_constant__")
    ]
    declared = " ".join(words[:-1])  # the last word is the parameter's name
    for _ in aliases:
        if declared in _TYPES or declared not in aliases:
            break
        declared = aliases[declared]
    kind, size = _TYPES.get(declared, ("", 0))
    return Parameter("p", 8, kind, size) if "*" in text else Parameter(kind, size)


def check_arguments(name: str, expected: tuple[Parameter, ...], args: tuple[Any, ...], array: type) -> None:
    """Raise TypeError where a kernel would read other bytes than were meant: CuPy passes what it is given unseen.

    A Python float would arrive as eight bytes and an int as int64, whatever the parameter is. `array` is the type of
    device arrays.
    """
    if len(args) != len(expected):
        raise TypeError(f"{name} takes {len(expected)} arguments, got {len(args)}")
    for position, (value, parameter) in enumerate(zip(args, expected, strict=True)):
        at = f"argument {position} of {name}"
        if parameter.kind == "p":
            if not isinstance(value, array):
                raise TypeError(f"{at} is a pointer, got {type(value).__name__}")
            _check_array(at, parameter, value)
        elif not isinstance(value, np.generic):
            raise TypeError(f"{at} must be a NumPy scalar, got {type(value).__name__} {value!r}")
        elif parameter.kind and (value.dtype.kind, value.itemsize) != (parameter.kind, parameter.size):
            raise TypeError(
                f"{at} is {_KIND_NAMES[parameter.kind]} of {parameter.size} bytes, got numpy.{value.dtype.name}"
            )


def _check_array(at: str, parameter: Parameter, value: Any) -> None:
    if not value.flags.c_contiguous:
        raise TypeError(f"{at}: the array of shape {value.shape} is not contiguous")
    same = {"i": "integer", "u": "integer"}  # the same bytes either way, and kernels do reinterpret them
    kind = parameter.pointee
    if kind and (same.get(kind, kind), parameter.pointee_size) != (
        same.get(value.dtype.kind, value.dtype.kind),
        value.itemsize,
    ):
        raise TypeError(f"{at} points to {_KIND_NAMES[kind]} of {parameter.pointee_size} bytes, got {value.dtype}")


def as_rows(array: NDArray[Any]) -> NDArray[Any]:
    """An array as a matrix each of whose rows lies in one piece, without a copy: what is copied to or from a device.

    What is C-contiguous is one row. A block of columns of a C-contiguous matrix has its own rows; of anything else
    TypeError is raised.
    """
    if array.flags.c_contiguous:
        return array.reshape(1, -1)
    if array.ndim < 2 or array.strides[-1] != array.itemsize or math.prod(array.shape[:-2]) != 1:
        raise TypeError(
            f"an array of shape {array.shape} and strides {array.strides} is no matrix of rows in one piece each"
        )
    return array.reshape(array.shape[-2:])


def check_out(array: Any, out: Any) -> None:
    """Raise TypeError where an array of a device cannot be copied to `out` as it is.

    `out` is a NumPy array of its shape and dtype that can be written to, of rows as `as_rows` says.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(f"what a device computed is copied into NumPy arrays, got {type(out).__name__}")
    if (out.dtype, out.shape) != (array.dtype, array.shape):
        raise TypeError(f"{array.dtype} of shape {array.shape} cannot be copied into {out.dtype} of shape {out.shape}")
    if not out.flags.writeable:
        raise TypeError(f"the array of shape {out.shape} to copy into is read-only")
    as_rows(out)


def check_shape(name: str, grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    """Raise LaunchFailed for an empty or too large grid or block. CuPy launches one block where zero are asked for."""
    if not (1 <= len(grid) <= 3 and 1 <= len(block) <= 3):
        raise LaunchFailed(f"{name}: grid {grid} and block {block} must have 1 to 3 dimensions", 1, (name,))
    if min(*grid, *block) < 1 or grid[0] > 2**31 - 1 or max(grid[1:], default=1) > 65_535:
        raise LaunchFailed(f"{name}: a grid {grid} of blocks {block} cannot be launched", 1, (name,))


# By number, never by text. Of these CUDA says that the process must be ended: every later call has the same error.
# ECC, NVLink, contained, illegal address, time-out, destroyed context, assertion, hardware stack to launch failure,
# tensor memory, ended by the MPS server, external device; and 999, of which it says nothing.
_STICKY = {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999}
# The launch was refused, nothing happened: invalid value, configuration, symbol, function or image, no image for this
# GPU, PTX of another version, invalid source, a file, a shared object's symbol or the object not found, an operating
# system's call, not found, too many resources, too many blocks that wait for each other, not supported, a cluster that
# is too large.
_REFUSED = {1, 9, 13, 98, 200, 209, 218, 222, 300, 301, 302, 303, 304, 500, 701, 720, 801, 912}


def fault(code: int, message: str, suspects: tuple[str, ...] = ()) -> DeviceFault:
    """Return the fault a CUDA error number stands for, put down to `suspects`.

    A number that is not known here is DeviceLost: a new process costs seconds, and a context that is broken without
    being known to be would fail every job after this one.
    """
    if code == 2:
        return OutOfMemory(message, code)
    if code in _REFUSED:
        return LaunchFailed(message, code, suspects)
    unknown = "" if code in _STICKY else f" (CUDA error {code}, of unknown effect)"
    return DeviceLost(message + unknown, code, suspects)


CANARY = Source(_KERNELS / "device" / "canary.cu")
