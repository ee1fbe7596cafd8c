"""The share of a multiprocessor's warps that a kernel fills is what NVIDIA's calculator says."""

import csv
from pathlib import Path

import pytest

from tests.conftest import ROOT
from warpdesk_server.kernels.gpu import nvrtc
from warpdesk_server.kernels.gpu.compile import ARCHITECTURES, compile_for
from warpdesk_server.kernels.gpu.nvrtc import CompileError
from warpdesk_server.kernels.gpu.occupancy import LIMITS, Occupancy, launch_bounds, occupancy
from warpdesk_server.kernels.gpu.source import Source

_LINES = (ROOT / "tests" / "vectors" / "occupancy.csv").read_text().splitlines()
ROWS = list(csv.DictReader(line for line in _LINES if not line.startswith("#")))


def test_blocks_are_those_of_nvidias_calculator() -> None:
    assert len(ROWS) == 600
    assert {row["architecture"] for row in ROWS} == set(LIMITS)
    for row in ROWS:
        found = occupancy(row["architecture"], *(int(row[name]) for name in ("threads", "registers", "shared")))
        assert found is not None
        assert found.blocks == int(row["blocks"]), row


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "expected"),
    [
        (256, 32, 0, Occupancy(8, 1.0, "threads")),
        (256, 64, 0, Occupancy(4, 0.5, "registers")),
        (128, 16, 75 << 10, Occupancy(3, 0.1875, "shared memory")),
        (32, 16, 0, Occupancy(32, 0.5, "blocks")),
        (1024, 128, 0, Occupancy(0, 0.0, "registers")),
        (128, 16, 228 << 10, Occupancy(0, 0.0, "shared memory")),
    ],
)
def test_what_allows_no_more_blocks_is_said(threads: int, registers: int, shared: int, expected: Occupancy) -> None:
    assert occupancy("sm_90", threads, registers, shared) == expected


def test_an_unknown_architecture_is_no_guess() -> None:
    assert occupancy("sm_35", 128, 32) is None


def test_every_architecture_that_is_compiled_for_is_known() -> None:
    assert {f"sm_{number}" for number in ARCHITECTURES} <= LIMITS.keys()


def test_launch_bounds_are_read_from_machine_code_of_every_architecture(tmp_path: Path) -> None:
    path = tmp_path / "bounds.cu"
    path.write_text(
        'extern "C" __global__ void __launch_bounds__(192) bound(int* x) { *x = 1; }\n'
        'extern "C" __global__ void __launch_bounds__(96, 4) twice_bound(int* x) { *x = 1; }\n'
        'extern "C" __global__ void free_of_bounds(int* x) { *x = 1; }\n'
    )
    try:
        compiler = nvrtc.find()
    except CompileError as reason:
        pytest.skip(str(reason))
    for architecture in compiler.architectures():
        compiled = compiler.compile(path.read_text(), path.name, architecture)
        assert launch_bounds(compiled.cubin) == {"bound": 192, "twice_bound": 96}
    usages = {usage.kernel: usage.threads for usage in compile_for(Source(path), 90)}
    assert usages == {"bound": 192, "twice_bound": 96, "free_of_bounds": None}
