"""What the kernel tests know of the families: their cases, and the kernels their sources define."""

import importlib
from pathlib import Path

from tests.cudasim.build import compile_source, load
from tests.kernels.parity import Case
from warpdesk_server.kernels.gpu.compile import describe, sources

ROOT = Path(__file__).resolve().parents[2]


def families() -> list[str]:
    """The families that have code for the GPU."""
    return sorted(path.parent.name for path in (ROOT / "kernels").glob("*/gpu.py"))


def on_the_cpu_alone() -> list[str]:
    """The families that have no code for the GPU, as folders of kernels."""
    found = [path.parent for path in (ROOT / "kernels").rglob("cpu.py") if not path.with_name("gpu.py").exists()]
    return sorted(path.relative_to(ROOT / "kernels").as_posix() for path in found)


def cases(family: str) -> tuple[Case, ...]:
    if not (Path(__file__).parent / family / "cases.py").exists():
        return ()
    module = f"tests.kernels.{family.replace('/', '.')}.cases"
    found: tuple[Case, ...] = importlib.import_module(module).CASES
    return found


def all_cases() -> list[tuple[str, Case]]:
    return [(family, case) for family in families() for case in cases(family)]


def cuda_files() -> set[Path]:
    return set((ROOT / "kernels").rglob("*.cu"))


def kernels_of(family: str) -> set[tuple[str, str]]:
    """(source with its macros, kernel) for every `__global__` function that the family's sources compile to."""
    return {
        (describe(source), kernel)
        for owner, source in sources()
        if owner == family
        for kernel in load(compile_source(source)).kernels
    }
