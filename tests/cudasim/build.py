"""Compile the emulation's run time and CUDA sources with g++, and keep the results by the hash of what went in."""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from warpdesk_server.kernels.gpu.source import Source, inline

HERE = Path(__file__).resolve().parent

# No contraction to fma, as NVRTC is told by --fmad=false: then floats agree to the last bit.
_FLAGS = [
    "-std=c++17",
    "-O2",
    "-g1",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-strict-aliasing",
]
_FLAGS += ["-fno-gnu-unique"]  # else one process holds one table for a kernel's name, whichever variant came first
_WARNINGS = ["-Werror=return-type", "-Werror=uninitialized"]  # the rest is NVRTC's to judge
_SANITIZERS = {
    None: [],
    "address,undefined": [
        "-fsanitize=address,undefined",
        "-fsanitize-sections=cudasim_shared",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    ],
    "thread": ["-fsanitize=thread"],
}

# What must be loaded before anything else in a process that runs what is so compiled.
LIBRARIES = {"address,undefined": "libasan.so", "thread": "libtsan.so"}


class CompileError(Exception):
    """g++ refused a kernel's text; the message is the compiler's."""


class Parameter(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_char),
        ("size", ctypes.c_uint),
        ("pointee", ctypes.c_char),
        ("pointee_size", ctypes.c_uint),
    ]


class KernelEntry(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("call", ctypes.c_void_p),
        ("parameters", ctypes.POINTER(Parameter)),
        ("parameter_count", ctypes.c_int),
        ("max_threads", ctypes.c_uint),
    ]


@dataclass(frozen=True)
class Module:
    """A compiled source: its kernels by name, and where `__shared__` lies."""

    library: ctypes.CDLL
    kernels: dict[str, KernelEntry]
    touch: Any
    shared: tuple[int, int]  # address and size, where it is not thread-local


def cache_directory() -> Path:
    given = os.environ.get("WARPDESK_CUDASIM_CACHE")
    return Path(given) if given else HERE.parent.parent / ".cache" / "cudasim"


@cache
def compiler() -> str:
    """The path and version of the C++ compiler. Raises CompileError if there is none."""
    path = shutil.which(os.environ.get("CXX", "g++"))
    if path is None:
        raise CompileError("CUDA emulation needs a C++ compiler: apt-get install g++")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return f"{path}\n{version}"


def _gxx(arguments: list[str], text: str | None = None) -> str:
    path = compiler().splitlines()[0]
    done = subprocess.run([path, *arguments], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileError(done.stderr)
    return done.stdout


def _built(name: str, suffix: str, what: tuple[object, ...], make: Any) -> Path:
    """Return the cached file for `what`, made first if need be; several processes may do so at once."""
    digest = hashlib.sha256(repr((compiler(), what)).encode()).hexdigest()[:24]
    path = cache_directory() / f"{name}-{digest}{suffix}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            make(made)
            made.replace(path)
    return path


@cache
def runtime() -> ctypes.CDLL:
    """Load the run time, compiled without sanitizers whatever the kernels are compiled with."""
    texts = [(HERE / name).read_text() for name in ("fiber.h", "thread.h", "runtime.cpp")]
    arguments = ["-std=c++17", "-O2", "-g1", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror"]
    path = _built(
        "runtime",
        ".so",
        (arguments, texts),
        lambda made: _gxx([*arguments, str(HERE / "runtime.cpp"), "-o", str(made)]),
    )
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.cudasim_launch.restype = ctypes.c_int
    library.cudasim_launch.argtypes = [
        ctypes.c_int,
        ctypes.c_int,
        ctypes.POINTER(KernelEntry),
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_uint),
        ctypes.POINTER(ctypes.c_uint),
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_ulonglong,
        ctypes.c_uint,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_double,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    return library


_EXTERN_SHARED = re.compile(
    r"extern\s+__shared__\s+(?P<align>__align__\s*\(\s*\w+\s*\)\s+)?(?P<type>[\w:]+(?:\s+[\w:]+)*?)\s+(?P<name>\w+)\s*\[\s*\]\s*;"
)
_GLOBAL = re.compile(
    r"__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\((?P<bounds>[^()]*(?:\([^()]*\)[^()]*)*)\)\s*)?(?:void\s+)?(?P<name>\w+)\s*\("
)


@cache
def _header() -> str:
    return (HERE / "thread.h").read_text() + (HERE / "cuda.h").read_text()


def compile_source(source: Source, sanitize: str | None = None) -> Path:
    """Return the shared library of a `.cu` file, compiled unless an equal one is in the cache."""
    text = inline(source)
    flags = [*_FLAGS, *_WARNINGS, *_SANITIZERS[sanitize]]

    def make(made: Path) -> None:
        kernels = _scan(text)
        if not kernels:
            raise CompileError(f"{source.path.name} holds no __global__ function")
        # The one change to the text: C++ has no name for memory whose size the launch gives.
        body = _EXTERN_SHARED.sub(
            lambda match: (
                f"{match['type']}* const {match['name']} = static_cast<{match['type']}*>(cudasim_dynamic_shared());"
            ),
            text,
        )
        rows = "\n".join(f"CUDASIM_KERNEL({name}, {bound})" for name, bound in kernels.items())
        unit = made.with_suffix(".cpp")
        unit.write_text(
            "namespace {\n"  # internal linkage, so that all of __shared__ can lie in one section
            f'{body}\n#line 1 "exports"\n'
            f"const CudasimKernel cudasim_table[] = {{\n{rows}\n{{nullptr, nullptr, nullptr, 0, 0}}}};\n"
            "__attribute__((unused)) __thread int cudasim_thread_local;\n}\n"
            'extern "C" const CudasimKernel* cudasim_kernels() { return cudasim_table; }\n'
            'extern "C" void cudasim_touch() { *const_cast<volatile int*>(&cudasim_thread_local) = 0; }\n'
            '__attribute__((weak, visibility("hidden")))\n'
            "extern char __start_cudasim_shared[], __stop_cudasim_shared[];\n"
            'extern "C" char* cudasim_shared_start() { return __start_cudasim_shared; }\n'
            'extern "C" char* cudasim_shared_stop() { return __stop_cudasim_shared; }\n'
        )
        _gxx([*flags, "-include", str(HERE / "cuda.h"), str(unit), "-o", str(made)])

    return _built(source.path.stem, ".so", (flags, _header(), text), make)


def _scan(text: str) -> dict[str, str]:
    """The kernels that are left after preprocessing, with the threads per block they are bounded to."""
    flags = ["-std=c++17", "-x", "c++", "-E", "-P", "-DCUDASIM_SCAN", "-include", str(HERE / "cuda.h"), "-"]
    return {match["name"]: (match["bounds"] or "1024").split(",")[0] for match in _GLOBAL.finditer(_gxx(flags, text))}


@cache
def load(path: Path) -> Module:
    runtime()  # what the library calls
    library = ctypes.CDLL(str(path))
    for name in ("cudasim_kernels", "cudasim_shared_start", "cudasim_shared_stop"):
        getattr(library, name).restype = ctypes.c_void_p
    table = ctypes.cast(library.cudasim_kernels(), ctypes.POINTER(KernelEntry))
    kernels = {}
    index = 0
    while table[index].name:
        entry = KernelEntry.from_address(ctypes.addressof(table[index]))
        kernels[entry.name.decode()] = entry
        index += 1
    start, stop = library.cudasim_shared_start() or 0, library.cudasim_shared_stop() or 0
    touch = ctypes.cast(library.cudasim_touch, ctypes.c_void_p)
    return Module(library, kernels, touch, (start, stop - start))
