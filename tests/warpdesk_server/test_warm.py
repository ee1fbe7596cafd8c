"""`warpdesk warm` compiles what is not there yet, for the GPUs here or for those named, and says so."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stand_ins.nvml import play
from warpdesk.cli.main import main
from warpdesk_server.kernels.gpu import compile as gate
from warpdesk_server.kernels.gpu import nvrtc
from warpdesk_server.kernels.gpu.canary import CANARY
from warpdesk_server.kernels.gpu.nvrtc import CompileError
from warpdesk_server.precompile import named
from warpdesk_server.workers.child.warmup import stamp
from warpdesk_server.workers.settings import WorkerSettings


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A home where nothing is compiled, and one kernel to compile."""
    monkeypatch.setenv("WARPDESK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cupy"))
    for name in ("WARPDESK_KERNEL_CACHE", "NUMBA_CACHE_DIR"):
        monkeypatch.setenv(name, "")  # unset for us, and put back after the test
    monkeypatch.delenv("WARPDESK_DEVICE", raising=False)
    monkeypatch.setattr(gate, "sources", lambda: [("device", CANARY)])


@pytest.fixture
def compiler() -> nvrtc.Nvrtc:
    try:
        return nvrtc.find()
    except CompileError as reason:
        pytest.skip(str(reason))


def script(tmp_path: Path, *capabilities: list[int]) -> Path:
    """A machine with GPUs of these compute capabilities."""
    path = tmp_path / "nvml.json"
    devices = [{"nvmlDeviceGetCudaComputeCapability": capability} for capability in capabilities]
    path.write_text(json.dumps({"about": "", "moments": [{"system": {}, "devices": devices}]}))
    return path


def warmed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["warm", "--json", *arguments]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.parametrize("text", ["sm_90", "90", "9.0"])
def test_an_architecture_has_one_name(text: str) -> None:
    assert named(text) == "sm_90"


@pytest.mark.parametrize("text", ["", "sm90", "hopper", "9", "sm_9.0.1"])
def test_what_is_no_architecture_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["warm", "--arch", text])
    assert f"{text!r} is not an architecture such as sm_90" in capsys.readouterr().err


def test_named_architectures_are_compiled_once(
    compiler: nvrtc.Nvrtc, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for compiled in (True, False):
        report = warmed(capsys, "--kernels-only", "--arch", "sm_80", "9.0")
        assert report == {
            "directory": str(tmp_path / "home" / "cache" / "kernels"),
            "nvrtc": compiler.version,
            "kernels": [
                {"family": "device", "source": "canary.cu", "architecture": architecture, "compiled": compiled}
                for architecture in ("sm_80", "sm_90")
            ],
            "cpu": None,
        }
    assert main(["warm", "--kernels-only", "--arch", "sm_75", "sm_80"]) == 0
    output = capsys.readouterr().out
    assert "sm_75    1 compiled, 0 there already\nsm_80    0 compiled, 1 there already\n" in output
    assert f"by NVRTC {compiler.version}" in output


def test_an_architecture_that_nvrtc_does_not_know_is_told_those_it_knows(
    compiler: nvrtc.Nvrtc, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["warm", "--kernels-only", "--arch", "sm_12", "sm_90"]) == 1
    architectures = ", ".join(compiler.architectures())
    assert capsys.readouterr().err == f"warpdesk: no code for sm_12: NVRTC {compiler.version} knows {architectures}\n"


def test_all_means_every_architecture_this_nvrtc_knows(
    compiler: nvrtc.Nvrtc, capsys: pytest.CaptureFixture[str]
) -> None:
    report = warmed(capsys, "--kernels-only", "--all")
    architectures = [f"sm_{number}" for number in gate.ARCHITECTURES if f"sm_{number}" in compiler.architectures()]
    assert [kernel["architecture"] for kernel in report["kernels"]] == architectures
    assert {"sm_80", "sm_90", "sm_120"} <= set(architectures)


def test_without_a_name_the_gpus_here_count(
    compiler: nvrtc.Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, script(tmp_path, [9, 0], [7, 5], [9, 0]))
    report = warmed(capsys, "--kernels-only")
    assert [kernel["architecture"] for kernel in report["kernels"]] == ["sm_75", "sm_90"]
    monkeypatch.setenv("WARPDESK_DEVICE", "cpu")
    assert main(["warm", "--kernels-only"]) == 1, "nothing to compile for"


def test_without_a_gpu_or_a_name_only_the_cpus_code_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, script(tmp_path))
    monkeypatch.setenv("WARPDESK_OPERATIONS", "tests.workers.operations:SOUND")
    assert warmed(capsys) == {"directory": "", "nvrtc": None, "kernels": [], "cpu": "compiled"}
    assert stamp(WorkerSettings()).exists(), "a worker's second compiler has nothing to do"
    assert warmed(capsys)["cpu"] == "there already"
    assert main(["warm", "--kernels-only"]) == 1
    assert "no GPU was found here, and no architecture is named (--arch sm_90, or --all)" in capsys.readouterr().out


def test_an_operation_that_fails_its_example_on_the_cpu_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, script(tmp_path))
    monkeypatch.setenv("WARPDESK_OPERATIONS", "tests.workers.operations:OPERATIONS")
    assert main(["warm"]) == 1
    assert "CPU      failed: an operation fails its example, `warpdesk doctor` says which" in capsys.readouterr().out


def test_without_nvrtc_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def none() -> nvrtc.Nvrtc:
        raise CompileError("NVRTC is not installed", nvrtc.INSTALL)

    monkeypatch.setattr(nvrtc, "find", none)
    assert main(["warm", "--arch", "sm_90"]) == 1
    assert capsys.readouterr().err == (
        f"warpdesk: NVRTC is not installed: {sys.executable} -m pip install 'nvidia-cuda-nvrtc-cu12==12.9.*'\n"
    )


def test_a_directory_that_cannot_be_written_is_named_with_the_setting(
    compiler: nvrtc.Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WARPDESK_KERNEL_CACHE", str(tmp_path / "file" / "kernels"))
    assert main(["warm", "--arch", "sm_90", "--kernels-only"]) == 1
    message = capsys.readouterr().err
    assert str(tmp_path / "file") in message
    assert "set WARPDESK_KERNEL_CACHE to a directory of yours" in message
