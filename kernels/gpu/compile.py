"""Compile every CUDA kernel for every GPU generation, with NVRTC alone: no GPU, no driver, no CuPy (`make kernels`).

Run as `python -m warpdesk_server.kernels.gpu.compile [--jobs 2]`: prints a table of registers, shared memory and
spills, and fails when a kernel does not compile or spills registers to memory. With `--known FILE` it leaves out what
compiled before from the same text by the same compiler; `--save` writes that file.
"""

import argparse
import hashlib
import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

from warpdesk_server import kernels
from warpdesk_server.kernels.gpu import nvrtc
from warpdesk_server.kernels.gpu.canary import CANARY
from warpdesk_server.kernels.gpu.cubins import Cubins
from warpdesk_server.kernels.gpu.nvrtc import CompileError, Nvrtc
from warpdesk_server.kernels.gpu.occupancy import launch_bounds
from warpdesk_server.kernels.gpu.source import COMPILE_OPTIONS, Source, inline

ARCHITECTURES = (70, 75, 80, 86, 87, 89, 90, 100, 103, 120, 121)

_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)'")


@dataclass(frozen=True)
class Usage:
    """The resources of one kernel on one GPU architecture: registers of a thread, bytes of shared memory and spills.

    `threads` is the most threads of a block, if the kernel has launch bounds.
    """

    source: str
    kernel: str
    architecture: int
    registers: int
    shared: int
    spilled: int
    threads: int | None = None


def sources() -> Iterator[tuple[str, Source]]:
    """Every (family, CUDA source) that some kernels/<family>/gpu.py launches, and the canary's."""
    yield "device", CANARY
    for module in pkgutil.iter_modules(kernels.__path__):
        if module.ispkg and (Path(kernels.__path__[0]) / module.name / "gpu.py").exists():
            for source in importlib.import_module(f"{kernels.__name__}.{module.name}.gpu").SOURCES:
                yield module.name, source


def describe(source: Source) -> str:
    return " ".join([source.path.name, *(f"{name}={value}" for name, value in source.defines.items())])


def compile_for(source: Source, architecture: int) -> list[Usage]:
    """Compile a CUDA source for one architecture, and read the kernels' resources from the assembler's log.

    Raises CompileError.
    """
    try:
        compiled = _compiler().compile(inline(source), source.path.name, f"sm_{architecture}")
    except CompileError as error:
        raise CompileError(f"{describe(source)} for sm_{architecture}: {error}", error.remedy) from None
    bounds = launch_bounds(compiled.cubin)
    return [replace(usage, threads=bounds.get(usage.kernel)) for usage in _usages(describe(source), compiled.log)]


def compile_all(jobs: int = 2, chosen: Iterable[Source] | None = None) -> list[Usage]:
    """Compile some CUDA sources, or every one, for every architecture, in threads: NVRTC runs without Python's lock."""
    chosen = [source for _, source in sources()] if chosen is None else chosen
    work = [(source, architecture) for source in chosen for architecture in ARCHITECTURES]
    with ThreadPoolExecutor(jobs) as pool:
        return [usage for usages in pool.map(lambda item: compile_for(*item), work) for usage in usages]


@dataclass(frozen=True)
class Kept:
    """A CUDA source whose cubin for an architecture is in the cache; `compiled` now, or before."""

    family: str
    source: str
    architecture: str
    compiled: bool


def keep_all(cubins: Cubins, architectures: Iterable[str], jobs: int = 2) -> list[Kept]:
    """Compile every CUDA source whose cubin is not cached yet, and remove cubins that no source needs any more.

    Raises CompileError and OSError; cubins that were compiled until then stay in the cache.
    """
    texts = [(family, source, inline(source)) for family, source in sources()]

    def keep(work: tuple[tuple[str, Source, str], str]) -> Kept:
        (family, source, text), architecture = work
        try:
            compiled = cubins.keep(text, source.path.name, architecture)
        except CompileError as error:
            raise CompileError(f"{describe(source)} for {architecture}: {error}", error.remedy) from None
        return Kept(family, describe(source), architecture, compiled)

    with ThreadPoolExecutor(jobs) as pool:
        kept = list(pool.map(keep, product(texts, architectures)))
    cubins.remove_unused(text for _, _, text in texts)
    return kept


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
def _compiler() -> Nvrtc:
    return nvrtc.find()


def table(usages: list[Usage]) -> str:
    """The table of kernels' resources: a row for each kernel and variant, a column for each architecture.

    A cell has the registers, the bytes of shared memory, and the spilled bytes if any.
    """
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


def digests() -> dict[str, str]:
    """A digest of all that the compilation of each CUDA source depends on: text, options, compiler, architectures."""
    made_by = repr((_compiler().version, COMPILE_OPTIONS, ARCHITECTURES))
    return {
        describe(source): hashlib.sha256(f"{made_by}\0{inline(source)}".encode()).hexdigest()[:32]
        for _, source in sources()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--known", type=Path, help="digests of sources that compiled without a spill")
    parser.add_argument("--save", action="store_true", help="write --known anew if everything compiles without a spill")
    chosen = parser.parse_args()
    before = json.loads(chosen.known.read_text()) if chosen.known and chosen.known.exists() else {}
    now = digests() if chosen.known else {}
    every = [source for _, source in sources()]
    changed = [s for s in every if not chosen.known or before.get(describe(s)) != now[describe(s)]]
    if len(changed) < len(every):
        sys.stdout.write(f"{len(every) - len(changed)} of {len(every)} sources are as they were when they compiled\n")
    try:
        usages = compile_all(chosen.jobs, changed)
    except CompileError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if usages:
        sys.stdout.write(table(usages) + "\n")
    spilling = [usage for usage in usages if usage.spilled]
    for usage in spilling:
        sys.stderr.write(
            f"{usage.kernel} ({usage.source}) spills {usage.spilled} bytes on sm_{usage.architecture} "
            f"with {usage.registers} registers\n"
        )
    if spilling:
        return 1
    if chosen.save and now != before:
        chosen.known.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
