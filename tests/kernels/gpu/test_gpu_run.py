"""`make test-gpu` runs with CuPy, NumPy, Numba, pydantic and pytest alone, and leaves one file behind."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.conftest import ROOT

NOT_NEEDED = (
    *("blake3", "cryptography", "fastapi", "httpx", "hypothesis", "jiter", "matplotlib", "nvidia", "prometheus_client"),
    *("pydantic_settings", "pynvml", "redis", "rq", "schemathesis", "scipy", "talib", "uvicorn"),
)
# What stands for the machine: Python runs it before anything else.
_WITHOUT = (
    f"import sys\nsys.modules.update(dict.fromkeys({NOT_NEEDED!r}))\n"
    # And the sources are not installed.
    "sys.meta_path[:] = [one for one in sys.meta_path if getattr(one, '__name__', '') != '_EditableFinder']\n"
)
_WITH_A_GPU = """
from pathlib import Path
from tests.kernels.gpu.cupy_on_cpu import Machine
from warpdesk_server.kernels.gpu import nvrtc
machine = Machine()
sys.modules.update(machine.modules(Path(__file__).parent))
nvrtc.find = machine.compiler
"""


def run(folder: Path, machine: str, *arguments: str, required: bool) -> "subprocess.CompletedProcess[str]":
    (folder / "usercustomize.py").write_text("")  # nobody's
    (folder / "sitecustomize.py").write_text(machine)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WARPDESK_")}
    environment |= {
        "PYTHONPATH": f"{folder}:{ROOT}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "WARPDESK_KERNEL_CACHE": str(folder / "cubins"),
        "WARPDESK_TEST_RESULTS": str(folder / "results.json"),
        **({"WARPDESK_REQUIRE_GPU": "1"} if required else {}),
    }
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-W", "default", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)


@pytest.fixture
def no_gpu() -> None:
    pytest.importorskip("numba")
    try:
        import cupy  # noqa: F401
    except ImportError:
        return
    pytest.skip("CuPy is installed, and would find a GPU if there is one")


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_each_test_is_skipped_with_the_reason_and_files_that_need_more_are_named(tmp_path: Path) -> None:
    ran = run(tmp_path, _WITHOUT, "tests/kernels", required=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "left out: tests.kernels.monte_carlo.test_closed_form (needs scipy)" in ran.stdout
    skipped = re.search(r"= (\d+) skipped, \d+ deselected in ", ran.stdout)
    assert skipped, ran.stdout
    assert int(skipped[1]) > 200
    assert re.search(r"SKIPPED \[\d+\] tests/kernels/test_parity.py:\d+: no GPU: CuPy cannot be imported", ran.stdout)
    assert not (tmp_path / "results.json").exists()


@pytest.mark.usefixtures("no_gpu")
def test_without_the_gpu_that_was_promised_the_run_fails_and_keeps_nothing(tmp_path: Path) -> None:
    ran = run(tmp_path, _WITHOUT, "tests/kernels/gpu/test_cuda.py", "-k", "canary", required=True)
    assert ran.returncode == 1
    assert "WARPDESK_REQUIRE_GPU=1, but: CuPy cannot be imported" in ran.stdout
    assert not (tmp_path / "results.json").exists()


def test_a_run_keeps_where_it_ran_and_what_came_out(tmp_path: Path) -> None:
    ran = run(tmp_path, _WITHOUT + _WITH_A_GPU, "tests/kernels/gpu/test_cuda.py", "-k", "canary", required=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    kept = json.loads((tmp_path / "results.json").read_text())
    assert kept["counts"] == {"passed": 1, "failed": 0, "error": 0, "skipped": 0}
    assert kept["seconds"] > 0
    device = kept["environment"]["device"]
    assert (device["name"], device["architecture"], device["cuda_of_driver"]) == ("Pretended", "sm_90", "12.9")
    assert (device["nvrtc"], device["compiled"]) == ("12.9.86", 1)
    assert {"numpy", "numba", "pydantic"} <= kept["environment"]["versions"].keys()
