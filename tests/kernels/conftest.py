"""The devices that kernel tests run on: the emulation everywhere, CUDA where there is a GPU.

Imports nothing beyond NumPy, pytest and the project. A GPU machine may have CuPy, Numba and pydantic and nothing
more: there `pytest -m gpu tests/kernels` leaves out and names files that need another package.
"""

import importlib
import importlib.util
import os
from pathlib import Path

import pytest

from kernels.cuda import Device, NoDevice
from kernels.cupy_device import open_device
from tests.cudasim.device import EmulatedDevice


@pytest.fixture(scope="session")
def cuda() -> Device:
    """The first GPU. Without one, skip with the reason, or fail where WARPDESK_REQUIRE_GPU=1 promised it."""
    try:
        return open_device()
    except NoDevice as reason:
        if os.environ.get("WARPDESK_REQUIRE_GPU") == "1":
            pytest.fail(f"WARPDESK_REQUIRE_GPU=1, but: {reason}", pytrace=False)
        pytest.skip(f"no GPU: {reason}")


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    """Every device there is, in turn."""
    return EmulatedDevice() if request.param == "emulated" else request.getfixturevalue("cuda")


ROOT = Path(__file__).resolve().parents[2]
OURS = {"app", "kernels", "tests", "warpdesk", "workers"}
_left_out: dict[str, str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    if importlib.util.find_spec("pytest_timeout") is None:
        parser.addini("timeout", "what pytest-timeout, which is not installed, would read")


def pytest_configure(config: pytest.Config) -> None:
    if importlib.util.find_spec("pytest_timeout") is None:
        config.addinivalue_line("markers", "timeout(seconds): what pytest-timeout, which is not installed, would read")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.option.markexpr != "gpu" or not collection_path.match("test_*.py"):
        return None
    name = ".".join(collection_path.relative_to(ROOT).with_suffix("").parts)
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OURS:
            raise
        _left_out[name] = error.name
        return True
    except pytest.skip.Exception:  # collecting the file skips it with this reason; raised here it would skip them all
        return None
    return None


def pytest_report_collectionfinish() -> list[str]:
    return [f"left out: {name} (needs {package})" for name, package in sorted(_left_out.items())]
