"""NVRTC, NVIDIA's compiler of CUDA source, through ctypes. The library is loaded only when a kernel is compiled."""

import ctypes
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpdesk_server.kernels import install
from warpdesk_server.kernels.gpu.source import COMPILE_OPTIONS

# The only version that compiles for every GPU from V100 (sm_70) to RTX 50 (sm_120): 12.8 spills more registers, and 13
# has dropped Volta.
PACKAGE = "nvidia-cuda-nvrtc-cu12==12.9.*"
INSTALL = install.pip("install", PACKAGE)

_TEGRA = {72, 87, 101, 110}  # Xavier, Orin, and Thor under both of its numbers
_FILE = re.compile(r"libnvrtc\.so\.(\d+(?:\.\d+)*)")


class CompileError(Exception):
    """Raised if a CUDA source cannot be compiled: NVRTC refused it, and the message is its log, or NVRTC is missing.

    `remedy` is a shell command that fixes it, if there is one. It is for the operator; a client may see the message.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True)
class Compiled:
    """A compiled CUDA source: machine code for one architecture, and the assembler's log of registers and memory."""

    cubin: bytes
    log: str


class Nvrtc:
    """One NVRTC library, which compiles CUDA. `calls` counts the calls of it: 0 means that it was never loaded."""

    def __init__(self, path: Path, version: str = "") -> None:
        """`version` is the library's version, such as "12.9.86", if known without loading it; else NVRTC is asked."""
        self.path = path
        self.calls = 0
        self._version = version
        self._library: Any = None
        self._lock = threading.Lock()

    @property
    def version(self) -> str:
        if not self._version:
            major, minor = ctypes.c_int(), ctypes.c_int()
            self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
            self._version = f"{major.value}.{minor.value}"
        return self._version

    @property
    def major(self) -> int:
        """The major CUDA version of this NVRTC: drivers of this version and later ones load its cubins."""
        return int(self.version.partition(".")[0])

    def architectures(self) -> tuple[str, ...]:
        """The GPU architectures that this NVRTC compiles for: "sm_75", "sm_80", ..."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        return tuple(f"sm_{number}" for number in numbers)

    def target(self, architecture: str) -> str:
        """The architecture for which NVRTC compiles, so that a GPU of `architecture` can run the code.

        It is the same if this NVRTC knows it. Else it is the nearest older one of the same major version, whose machine
        code the GPU runs (CUDA C++ Programming Guide, binary compatibility; Tegra GPUs have none). Raises CompileError
        if there is none.
        """
        supported, wanted = self.architectures(), int(architecture.removeprefix("sm_"))
        if architecture in supported:
            return architecture
        numbers = {int(name.removeprefix("sm_")) for name in supported} - _TEGRA
        older = [number for number in numbers if number // 10 == wanted // 10 and number < wanted]
        if not older or wanted in _TEGRA:
            raise CompileError(f"NVRTC {self.version} makes no code for {architecture}", remedy(architecture))
        return f"sm_{max(older)}"

    def compile(self, text: str, name: str, architecture: str, options: tuple[str, ...] = COMPILE_OPTIONS) -> Compiled:
        """Compile CUDA text to machine code for a GPU of `architecture`, such as "sm_90".

        Raises CompileError with NVRTC's log, which refers to `name` and to the #line marks of the text.
        """
        target = self.target(architecture)
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
        try:
            given = [option.encode() for option in (*options, f"-arch={target}", "--ptxas-options=-v")]
            outcome = self._status("nvrtcCompileProgram", program, len(given), (ctypes.c_char_p * len(given))(*given))
            log = self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if outcome != 0:
                raise CompileError(f"NVRTC {self.version}: {log.strip() or self._error(outcome)}")
            return Compiled(self._bytes(program, "CUBIN"), log)
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        length = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(length))
        buffer = ctypes.create_string_buffer(length.value)
        self._call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def _call(self, function: str, *arguments: Any) -> None:
        if status := self._status(function, *arguments):
            raise CompileError(f"NVRTC {function} failed with error {status}: {self._error(status)}")

    def _status(self, function: str, *arguments: Any) -> int:
        return int(self._function(function)(*arguments))

    def _error(self, status: int) -> str:
        describe = self._function("nvrtcGetErrorString")
        describe.restype = ctypes.c_char_p
        return str(describe(status).decode())

    def _function(self, name: str) -> Any:
        with self._lock:  # kernels are compiled in several threads
            self.calls += 1
            if self._library is None:
                self._library = _load(self.path)
        return getattr(self._library, name)


def _load(path: Path) -> Any:
    """Load an NVRTC library, and before it the libraries that it loads by name: CUDA 13's does not find those beside
    itself."""
    numbered = _FILE.fullmatch(path.name)
    major = numbered[1].partition(".")[0] if numbered else "*"
    for builtins in sorted(path.resolve().parent.glob(f"libnvrtc-builtins.so.{major}.*")):
        with suppress(OSError):
            ctypes.CDLL(str(builtins))
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompileError(f"NVRTC cannot be loaded: {error}", INSTALL) from None


def remedy(architecture: str) -> str:
    """The shell command that installs an NVRTC for an architecture that the present one does not know.

    For GPUs before Turing it is CUDA 12's. Else it is the newest, and CUDA 12's must be removed, since it is preferred.
    """
    if int(architecture.removeprefix("sm_")) < 75:
        return INSTALL
    without = install.pip("uninstall", "-y", PACKAGE.partition("=")[0])
    return f"{without} && {install.pip('install', '--upgrade', 'nvidia-cuda-nvrtc')}"


def find() -> Nvrtc:
    """The NVRTC library of this machine. Raises CompileError if there is none.

    A wheel's library is preferred to a toolkit's, because it was installed for this Python. CUDA 12's is preferred to
    CUDA 13's, because its code loads under drivers of both, and it supports Volta. Of several in a folder the newest of
    CUDA 12 knows the most GPUs. CuPy's own choice does not matter: machine code goes to the driver, not to the runtime
    that CuPy was built with.
    """
    for path in _wheels():
        return Nvrtc(path, _of_wheel(path))
    for path in _toolkits():
        named = _FILE.fullmatch(path.name)
        return Nvrtc(path, named[1] if named and named[1].count(".") >= 1 else "")
    raise CompileError("NVRTC is not installed", INSTALL)


def _wheels() -> Iterator[Path]:
    for pattern in ("cuda_nvrtc/lib/libnvrtc.so.12", "cu[1-9]*/lib/libnvrtc.so.[1-9]*"):
        for folder in sys.path:
            yield from sorted(Path(folder, "nvidia").glob(pattern))


def _of_wheel(path: Path) -> str:
    """The version of the wheel that an NVRTC library belongs to, from the name of its metadata; "" if unknown."""
    site = path.parents[3]
    package = "nvidia_cuda_nvrtc_cu12" if path.parents[1].name == "cuda_nvrtc" else "nvidia_cuda_nvrtc"
    found = [folder.name.split("-")[1] for folder in site.glob(f"{package}-*.dist-info")]
    return found[0].removesuffix(".dist") if len(found) == 1 else ""


def _preference(file: Path) -> tuple[bool, list[int]]:
    """The sort key of NVRTC libraries in a folder: CUDA 12's, newest first, then other CUDA's, newest first."""
    named = _FILE.fullmatch(file.name)
    version = [int(part) for part in named[1].split(".")] if named else [0]
    return version[0] != 12, [-part for part in version]


def _toolkits() -> Iterator[Path]:
    """The NVRTC libraries of CUDA toolkits: in the usual environment variables, in the usual directories, or found by
    cuda.pathfinder (which comes with CuPy, and has to load a library to find it)."""
    roots = [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX") if os.environ.get(name)]
    folders = [root / lib for root in (*roots, Path("/usr/local/cuda")) for lib in ("lib64", "lib")]
    folders += [Path(text) for text in os.environ.get("LD_LIBRARY_PATH", "").split(":") if text]
    folders += [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"), Path("/usr/lib64")]
    for folder in folders:
        files = [file for file in folder.glob("libnvrtc.so.*") if _FILE.fullmatch(file.name)]
        yield from sorted({file.resolve() for file in files}, key=_preference)
    try:
        from cuda import pathfinder

        found = pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path
    except Exception:  # noqa: BLE001 (it is not installed, finds none, or fails in its own way: there is no NVRTC then)
        return
    if found:
        yield Path(found).resolve()
