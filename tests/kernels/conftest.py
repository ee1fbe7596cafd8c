"""The devices that kernel tests run on: the emulation everywhere, CUDA where there is a GPU.

Imports nothing beyond NumPy, pytest and the project. A GPU machine may have CuPy, Numba and pydantic and nothing
more: there `pytest -m gpu tests/kernels` leaves out and names files that need another package. With
WARPDESK_REQUIRE_GPU=1 (`make test-gpu`) it keeps what came out in WARPDESK_TEST_RESULTS.
"""

import importlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cudasim.device import EmulatedDevice
from tests.kernels.results import RESULTS, save
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.cupy_device import open_device
from warpdesk_server.kernels.gpu.faults import NoDevice

ROOT = Path(__file__).resolve().parents[2]
OURS = {"tests", "warpdesk", "warpdesk_server"}
REQUIRED = os.environ.get("WARPDESK_REQUIRE_GPU") == "1"

_left_out: dict[str, str] = {}
_opened: list[Device] = []
_began = time.monotonic()


@pytest.fixture(scope="session")
def cuda() -> Device:
    """The first GPU. Without one, skip with the reason, or fail where WARPDESK_REQUIRE_GPU=1 promised it."""
    try:
        _opened.append(open_device())
    except NoDevice as reason:
        if REQUIRED:
            pytest.fail(f"WARPDESK_REQUIRE_GPU=1, but: {reason}", pytrace=False)
        pytest.skip(f"no GPU: {reason}")
    return _opened[-1]


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    """Every device there is, in turn."""
    return EmulatedDevice() if request.param == "emulated" else request.getfixturevalue("cuda")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "what pytest-timeout, which is not loaded, would read")


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout(seconds): what pytest-timeout, which is not loaded, would read")


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


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # one of several processes of pytest-xdist
        session.config.workeroutput["left_out"] = _left_out


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _left_out.update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not REQUIRED:
        return
    try:
        device = _opened[-1] if _opened else open_device()  # pytest-xdist's processes opened it, not this one
    except NoDevice:
        return
    path = Path(os.environ.get("WARPDESK_TEST_RESULTS", RESULTS / "test-gpu.json"))
    counts = {name: len(terminalreporter.stats.get(name, ())) for name in ("passed", "failed", "error", "skipped")}
    save(path, device, counts, time.monotonic() - _began, _left_out)
    terminalreporter.line(f"kept in {path}")
