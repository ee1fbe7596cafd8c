"""What every CUDA source promises: no foreign header, no assembly but in twins, no arithmetic the CPU cannot repeat."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for suffix in ("cu", "cuh") for path in (ROOT / "kernels").rglob(f"*.{suffix}"))
CUDA = [pytest.param(path, id=str(path.relative_to(ROOT / "kernels"))) for path in FILES]
SOURCES = [pytest.param(path, id=path.name) for path in FILES if path.suffix == ".cu"]

# CUDA's and the host's differ in the last bit; our own are in kernels/device/elementary.cuh.
LIBRARY = (
    r"\b(?:exp|exp2|expm1|log|log2|log10|log1p|pow|sin|cos|tan|sincos|sincospi|tanh|erf|erfc|rsqrt|cbrt|hypot)f?\s*\("
)


def code(path: Path) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", path.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("path", CUDA)
def test_only_our_own_headers_are_included(path: Path) -> None:
    assert [name for name in re.findall(r"#\s*include\s*(\S+)", code(path)) if not name.startswith('"device/')] == []


@pytest.mark.parametrize("path", CUDA)
def test_assembly_is_written_only_in_device_headers_that_have_a_twin_for_the_cpu(path: Path) -> None:
    if re.search(r"\basm\b", code(path)):
        assert path.parent.name == "device"
        assert "WD_CPU_SHIM" in path.read_text()


@pytest.mark.parametrize("path", CUDA)
def test_no_function_is_called_whose_last_bit_differs_between_machines(path: Path) -> None:
    assert re.findall(LIBRARY, code(path)) == []
    assert re.findall(r"\b__(?:exp|log|sin|cos|pow|fdividef|sincos)\w*\s*\(", code(path)) == []


@pytest.mark.parametrize("path", SOURCES)
def test_every_kernel_has_c_linkage(path: Path) -> None:
    text = code(path)
    assert len(re.findall(r"__global__", text)) == len(re.findall(r'extern\s+"C"\s+__global__', text))
    assert "__global__" in text


@pytest.mark.parametrize("path", SOURCES)
def test_every_source_opens_with_what_it_computes_and_when_it_was_measured(path: Path) -> None:
    head = path.read_text().partition("#include")[0].strip()
    assert all(line.startswith("//") for line in head.splitlines())
    assert re.search(r"[Nn]ot yet measured on a\s*(//)?\s*GPU|[Mm]easured on", head), (
        f"{path.name}: when was it measured?"
    )


@pytest.mark.parametrize("path", SOURCES)
def test_every_source_says_what_it_moves_and_computes_and_which_of_them_limits_it(path: Path) -> None:
    head = path.read_text().partition("#include")[0].replace("\n//", "")
    for words in ("bytes", "operations|instructions|fma", "limit|bound by|bandwidth"):
        assert re.search(words, head, re.IGNORECASE), f"{path.name} says nothing of {words}"


def test_launch_code_is_imported_without_cupy_and_compiles_nothing() -> None:
    text = """
import importlib, pathlib, subprocess, sys
sys.modules["cupy"] = None
subprocess.Popen = None
for path in sorted(pathlib.Path("kernels").glob("*/gpu.py")):
    module = importlib.import_module(f"warpdesk_server.kernels.{path.parent.name}.gpu")
    assert isinstance(module.SOURCES, tuple) and module.SOURCES, path
    assert all(source.path.exists() for source in module.SOURCES), path
    print(path.parent.name)
"""
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(path.parent.name for path in (ROOT / "kernels").glob("*/gpu.py"))
