"""Compile every kernel for every GPU generation, with NVRTC alone: no GPU, no driver, no CuPy (`make kernels`).

Run as `python -m kernels.compile [--jobs 2]`: prints a table of registers, shared memory and spills, and fails when a
kernel does not compile or spills registers to memory. NVRTC 12.9 is the last version that knows sm_70 (V100) and the
first that knows sm_120 (RTX 50); it comes from the wheel nvidia-cuda-nvrtc-cu12==12.9.*.
"""

import argparse
import ctypes
import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import kernels
from kernels.cuda import CANARY, COMPILE_OPTIONS, Source, inline

ARCHITECTURES = (70, 75, 80, 86, 87, 89, 90, 100, 120)

_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)'")


class CompileError(Exception):
    """NVRTC refused a source; the message is its log."""


@dataclass(frozen=True)
class Usage:
    """What one kernel needs on one architecture: registers per thread, bytes of shared memory and of spills."""

    source: str
    kernel: str
    architecture: int
    registers: int
    shared: int
    spilled: int


def sources() -> Iterator[tuple[str, Source]]:
    """Every (family, source) that some kernels/<family>/gpu.py launches, and what every device runs first."""
    yield "device", CANARY
    for module in pkgutil.iter_modules(kernels.__path__):
        if module.ispkg and (Path(kernels.__path__[0]) / module.name / "gpu.py").exists():
            for source in importlib.import_module(f"kernels.{module.name}.gpu").SOURCES:
                yield module.name, source


def describe(source: Source) -> str:
    return " ".join([source.path.name, *(f"{name}={value}" for name, value in source.defines.items())])


def compile_for(source: Source, architecture: int) -> list[Usage]:
    """Compile to a cubin for one architecture, with the options CuPy uses, and read the assembler's log."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    text, name = inline(source).encode(), source.path.name.encode()
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None))
    try:
        options = [*COMPILE_OPTIONS, f"-arch=sm_{architecture}", "--ptxas-options=-v"]
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        outcome = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
        log = _text(nvrtc, program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        if outcome != 0:
            raise CompileError(f"{describe(source)} for sm_{architecture}: {log}")
        return list(_usages(describe(source), log))
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def compile_all(jobs: int = 2) -> list[Usage]:
    """Compile everything; NVRTC works without Python's lock, so threads are enough."""
    work = [(source, architecture) for _, source in sources() for architecture in ARCHITECTURES]
    with ThreadPoolExecutor(jobs) as pool:
        return [usage for usages in pool.map(lambda item: compile_for(*item), work) for usage in usages]


def _usages(source: str, log: str) -> Iterator[Usage]:
    starts = [*_ENTRY.finditer(log)]
    ends = [*(start.start() for start in starts[1:]), len(log)]
    for start, end in zip(starts, ends, strict=True):
        part = log[start.start() : end]
        registers, shared, spills = _REGISTERS.search(part), _SHARED.search(part), _SPILLS.search(part)
        if registers is None:
            raise CompileError(f"no register count in the log of {source}: {part}")
        yield Usage(
            source,
            start[1],
            int(start[2]),
            int(registers[1]),
            int(shared[1]) if shared else 0,
            int(spills[1]) + int(spills[2]) if spills else 0,
        )


@cache
def _nvrtc() -> Any:
    """Load NVRTC from its wheel, never one from the system: the version decides which architectures exist."""
    for folder in map(Path, sys.path):
        found = folder / "nvidia" / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"
        if found.exists():
            return ctypes.CDLL(str(found))
    raise CompileError("NVRTC is not installed: pip install 'nvidia-cuda-nvrtc-cu12==12.9.*'")


def _text(nvrtc: Any, program: ctypes.c_void_p, size: Callable[..., int], get: Callable[..., int]) -> str:
    length = ctypes.c_size_t()
    _check(nvrtc, size(program, ctypes.byref(length)))
    buffer = ctypes.create_string_buffer(length.value)
    _check(nvrtc, get(program, buffer))
    return buffer.value.decode()


def _check(nvrtc: Any, status: int) -> None:
    if status != 0:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise CompileError(f"NVRTC error {status}: {nvrtc.nvrtcGetErrorString(status).decode()}")


def table(usages: list[Usage]) -> str:
    """One row per kernel and variant, one column per architecture: registers/shared bytes, and spilled bytes if any."""
    rows: dict[tuple[str, str], dict[int, str]] = {}
    for usage in usages:
        cell = f"{usage.registers}/{usage.shared}" + (f" SPILLS {usage.spilled}" if usage.spilled else "")
        rows.setdefault((usage.source, usage.kernel), {})[usage.architecture] = cell
    names = [f"{kernel} ({source})" for source, kernel in rows]
    width = max(map(len, names), default=0)
    head = "registers/shared bytes".ljust(width) + "".join(f"{f'sm_{a}':>12}" for a in ARCHITECTURES)
    lines = [
        name.ljust(width) + "".join(f"{cells.get(a, '-'):>12}" for a in ARCHITECTURES)
        for name, cells in zip(names, rows.values(), strict=True)
    ]
    return "\n".join([head, *lines])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    try:
        usages = compile_all(parser.parse_args().jobs)
    except CompileError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(table(usages) + "\n")
    spilling = [usage for usage in usages if usage.spilled]
    for usage in spilling:
        sys.stderr.write(
            f"{usage.kernel} ({usage.source}) spills {usage.spilled} bytes on sm_{usage.architecture} "
            f"with {usage.registers} registers\n"
        )
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
