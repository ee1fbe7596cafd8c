"""What the kernel tests know of the families: their cases, and the kernels their sources define."""

import importlib
import re
from pathlib import Path

from tests.kernels.parity import Case

ROOT = Path(__file__).resolve().parents[2]


def families() -> list[str]:
    """The families that have code for the GPU."""
    return sorted(path.parent.name for path in (ROOT / "kernels").glob("*/gpu.py"))


def cases(family: str) -> tuple[Case, ...]:
    if not (Path(__file__).parent / family / "cases.py").exists():
        return ()
    found: tuple[Case, ...] = importlib.import_module(f"tests.kernels.{family}.cases").CASES
    return found


def all_cases() -> list[tuple[str, Case]]:
    return [(family, case) for family in families() for case in cases(family)]


def cuda_files() -> set[Path]:
    return set((ROOT / "kernels").rglob("*.cu"))


def kernels_of(family: str) -> set[tuple[str, str]]:
    """(file, kernel) for every `__global__` function in the family's folder."""
    return {
        (path.name, name) for path in (ROOT / "kernels" / family).rglob("*.cu") for name in _names(path.read_text())
    }


def _names(text: str) -> set[str]:
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    code = re.sub(r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)", " ", code)
    return {match[1] for match in re.finditer(r"__global__\s+void\s+(\w+)\s*\(", code)}
