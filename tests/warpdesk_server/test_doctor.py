"""`warpdesk doctor` looks at everything and names what would mend what fails; its exit code says whether to serve."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cudasim import sound
from tests.cudasim.device import EmulatedDevice
from tests.kernels.families import families, kernels_of
from tests.kernels.gpu.cupy_on_cpu import Machine
from tests.stand_ins.nvml import A100, Replay, play
from tests.workers.device import PaperDevice
from warpdesk.cli.main import main
from warpdesk_server.app.settings import Settings
from warpdesk_server.doctor import gpu, kernels, machine
from warpdesk_server.doctor.check import Check, Findings
from warpdesk_server.doctor.gpu import Here
from warpdesk_server.doctor.launches import largest_launches
from warpdesk_server.kernels import install
from warpdesk_server.kernels.gpu import compile as gate
from warpdesk_server.kernels.gpu import nvrtc
from warpdesk_server.kernels.gpu.canary import CANARY
from warpdesk_server.kernels.gpu.cubins import Cubins
from warpdesk_server.kernels.gpu.faults import DeviceLost
from warpdesk_server.kernels.gpu.nvrtc import CompileError, Nvrtc
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.operation import Example
from warpdesk_server.workers.gpu import nvml
from warpdesk_server.workers.queue.reports import DeviceReport, GpuFinding, GpuReport
from warpdesk_server.workers.settings import WorkerSettings

NO_GPU = Here(driver=False, gpu=False, wanted=False)
WANTED = Here(driver=False, gpu=False, wanted=True)
GPU = Here(driver=True, gpu=True, wanted=False)
SCRIPTS = Path(__file__).parent.parent / "workers" / "gpu" / "nvml"


def outcome(check: Check) -> tuple[str, str, str | None]:
    return check.status, check.found, check.remedy


# ---------------------------------------------------------------- findings


def test_a_failure_has_a_remedy() -> None:
    with pytest.raises(ValueError, match="the failed check disk has no remedy"):
        Check("disk", "failed", "it is full")


def test_findings_are_healthy_unless_something_failed() -> None:
    fine = (Check("a", "ok", "1"), Check("b", "warning", "2", "do this"), Check("c", "absent", "3"))
    assert Findings(fine).healthy
    failed = Findings((*fine, Check("broken", "failed", "4", "do that", lines=("a table",))))
    assert not failed.healthy
    assert failed.as_text() == (
        "a       ok       1\n"
        "b       WARNING  2\n"
        "                 to mend it: do this\n"
        "c       -        3\n"
        "broken  FAILED   4\n"
        "                 to mend it: do that\n"
        "                 a table"
    )
    assert failed.as_json()["healthy"] is False


# ---------------------------------------------------------------- the machine


def test_this_system_and_python_are_ok() -> None:
    assert (machine.system().status, machine.python().status) == ("ok", "ok")


def test_a_missing_library_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LIBRARIES", (*machine.LIBRARIES, "not-there"))
    check = machine.python()
    assert check.found.endswith("without not-there")
    assert (check.status, check.remedy) == ("failed", install.warpdesk())


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A machine with 16 GiB, 8 of them available, in a control group of its own."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n")
    (tmp_path / "proc" / "cpuinfo").write_text("model name\t: A Processor\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/outer/inner\n")
    (tmp_path / "cgroup" / "outer" / "inner").mkdir(parents=True)
    return tmp_path / "proc"


def test_memory_is_enough_for_the_largest_job(proc: Path) -> None:
    check = machine.memory(Settings(), proc, proc.parent / "cgroup")
    assert outcome(check) == ("ok", "16 GiB, 8 GiB available", None)


@pytest.mark.parametrize(
    "file", ["cgroup/outer/memory.max", "cgroup/outer/inner/memory.max", "cgroup/memory/memory.limit_in_bytes"]
)
def test_a_containers_limit_on_memory_counts_and_the_remedy_fits_in_it(proc: Path, file: str) -> None:
    limit = proc.parent / file
    limit.parent.mkdir(exist_ok=True)
    limit.write_text(f"{2 << 30}\n")
    check = machine.memory(Settings(), proc, proc.parent / "cgroup")
    assert outcome(check) == (
        "warning",
        "16 GiB, 8 GiB available, this process may use 2 GiB: a job may ask for 4 GiB",
        f"export WARPDESK_MAX_JOB_BYTES={1 << 30}",
    )


def test_no_limit_is_no_limit(proc: Path) -> None:
    (proc.parent / "cgroup" / "outer" / "memory.max").write_text("max\n")
    assert machine.memory(Settings(), proc, proc.parent / "cgroup").details["limit"] is None


@pytest.mark.parametrize(
    ("files", "remedy"),
    [
        ({"outer/cpu.max": "50000 100000\n"}, 1),
        ({"outer/cpu.max": "max 100000\n", "outer/inner/cpu.max": "250000 100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
    ],
)
def test_fewer_processors_in_time_than_threads_is_a_warning(
    proc: Path, files: dict[str, str], remedy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (proc.parent / "cgroup" / name).parent.mkdir(exist_ok=True)
        (proc.parent / "cgroup" / name).write_text(text)
    monkeypatch.setenv("NUMBA_NUM_THREADS", "8")
    check = machine.processors(proc, proc.parent / "cgroup")
    assert check.status == "warning"
    assert "A Processor" in check.found
    assert check.remedy == f"export NUMBA_NUM_THREADS={remedy}, or give the container more processors"


def test_without_a_quota_all_processors_count(proc: Path) -> None:
    check = machine.processors(proc, proc.parent / "cgroup")
    assert (check.status, check.details["quota"]) == ("ok", None)


def test_a_home_that_is_not_there_yet_is_fine_and_stays_away(tmp_path: Path) -> None:
    check = machine.home(Settings(home=tmp_path / "a" / "b", max_array=1))
    assert check.status == "ok"
    assert check.found.endswith("free, not there yet")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("make", "status", "finding", "remedy"),
    [
        (lambda home: home.touch(), "failed", "is not a directory", "export WARPDESK_HOME=a directory"),
        (lambda home: home.mkdir(mode=0o755), "warning", "readable by others (mode 755)", "chmod 700 {home}"),
        (lambda home: (home.mkdir(), home.chmod(0o1777)), "failed", "share it", "export WARPDESK_HOME={home}/name"),
        (lambda home: home.mkdir(mode=0o700), "ok", "free", None),
    ],
)
def test_a_home_must_be_private(
    tmp_path: Path, make: Callable[[Path], object], status: str, finding: str, remedy: str | None
) -> None:
    home = tmp_path / "home"
    make(home)
    check = machine.home(Settings(home=home, max_array=1))
    assert check.status == status
    assert finding in check.found
    assert check.remedy == (remedy and remedy.format(home=home))


def test_a_home_that_cannot_be_written_or_is_full_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = machine.home(Settings(home=tmp_path, max_array=1 << 60))
    assert check.status == "warning"
    assert check.remedy == "export WARPDESK_HOME=a directory on a larger disk, or a smaller WARPDESK_MAX_ARRAY"
    monkeypatch.setattr(machine, "_LEAST_DISK", 1 << 60)
    check = machine.home(Settings(home=tmp_path, max_array=1))
    assert check.status == "failed"
    assert check.remedy == "free some space, or export WARPDESK_HOME=a directory on a larger disk"
    monkeypatch.setattr(os, "access", lambda *_: False)
    check = machine.home(Settings(home=tmp_path, max_array=1))
    assert check.status == "failed"
    assert check.remedy is not None
    assert check.remedy.startswith("sudo install -d -m 700 -o ")


# ---------------------------------------------------------------- the GPU


@pytest.mark.parametrize(
    ("version", "needed", "remedy"),
    [
        (12090, 12, None),
        (13000, 12, None),
        (13000, None, None),
        (11080, 12, "a driver 525.60.13 or newer: apt-get install nvidia-driver"),
        (12080, 13, "a driver 580.65.06 or newer: apt-get install nvidia-driver"),
    ],
)
def test_a_driver_must_know_the_cuda_of_cupy(version: int, needed: int | None, remedy: str | None) -> None:
    check = gpu.driver_of(version, needed)
    assert check.status == ("ok" if remedy is None else "failed")
    assert check.found.startswith(f"knows CUDA {version // 1000}.{version % 1000 // 10}")
    assert (check.remedy or "").startswith(remedy or "")
    other = f"{install.pip('uninstall', '-y', 'cupy-cuda13x')} && {install.warpdesk('gpu')}"
    assert (check.remedy or "").endswith(f"; or {other}") == (version == 12080)


def test_without_a_gpu_nothing_of_it_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("PATH", "")
    report = DeviceReport(backend="cpu", name="a CPU", reason="no NVIDIA driver")
    assert gpu.driver(NO_GPU, tmp_path).status == "absent"
    assert gpu.container_toolkit(NO_GPU, tmp_path) is None
    assert gpu.cupy(NO_GPU).status == "absent"
    assert gpu.device(report, NO_GPU).status == "absent"


def test_a_gpu_that_is_asked_for_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    driver = gpu.driver(WANTED, tmp_path)
    assert driver.status == "failed"
    assert "without a GPU, unset WARPDESK_DEVICE" in (driver.remedy or "")
    assert gpu.cupy(WANTED).remedy == install.warpdesk("gpu")
    report = DeviceReport(backend="cpu", name="a CPU", reason="no NVIDIA driver")
    assert gpu.device(report, WANTED).remedy == "mend what is failed above, or unset WARPDESK_DEVICE"


def test_a_gpu_without_the_drivers_libraries_is_told_how_to_get_them(tmp_path: Path) -> None:
    here = Here(driver=False, gpu=True, wanted=False)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    check = gpu.driver(here, tmp_path)
    assert (check.status, check.found) == ("failed", "libcuda.so.1 was not found, and /dev/nvidia0 is there")
    assert (check.remedy or "").startswith("install the driver's libraries: apt-get install nvidia-driver")
    (tmp_path / ".dockerenv").touch()
    assert gpu.driver(here, tmp_path).remedy == (
        "start the container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    )


def test_a_container_says_whether_it_sees_a_gpu(tmp_path: Path) -> None:
    (tmp_path / ".dockerenv").touch()
    check = gpu.container_toolkit(NO_GPU, tmp_path)
    assert check is not None
    assert (check.status, "--gpus all" in check.found) == ("absent", True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia3").touch()
    check = gpu.container_toolkit(GPU, tmp_path)
    assert check is not None
    assert outcome(check) == ("ok", "a Docker container sees nvidia3", None)


def test_docker_needs_the_toolkit_where_there_is_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    _program(tmp_path / "docker")
    here, none = gpu.container_toolkit(GPU, tmp_path), gpu.container_toolkit(NO_GPU, tmp_path)
    assert here is not None
    assert none is not None
    assert (here.status, none.status) == ("warning", "absent")
    assert (here.remedy or "").startswith("apt-get install nvidia-container-toolkit, sudo nvidia-ctk runtime configure")
    _program(tmp_path / "nvidia-ctk")
    here = gpu.container_toolkit(GPU, tmp_path)
    assert here is not None
    assert here.status == "ok"


def _program(path: Path) -> None:
    path.touch()
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("installed", "status", "remedy"),
    [
        (["cupy_cuda12x-14.2.0"], "ok", None),
        (["cupy_cuda13x-14.2.0"], "ok", None),
        (
            ["cupy_cuda12x-14.2.0", "cupy_cuda13x-14.2.0"],
            "failed",
            f"{install.pip('uninstall', '-y', 'cupy-cuda12x', 'cupy-cuda13x')} && {install.warpdesk('gpu')}",
        ),
    ],
)
def test_one_cupy_alone_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: list[str], status: str, remedy: str | None
) -> None:
    for name in installed:
        folder = tmp_path / f"{name}.dist-info"
        folder.mkdir()
        distribution, version = name.split("-")
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    check = gpu.cupy(GPU)
    assert (check.status, check.remedy) == (status, remedy)
    assert gpu.cupy_major() == int(installed[0][9:11])


def test_nvrtc_is_needed_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Nvrtc:
        raise CompileError("NVRTC is not installed", nvrtc.INSTALL)

    monkeypatch.setattr(nvrtc, "find", none)
    check, found = gpu.compiler(needed=False)
    assert (check.status, found) == ("absent", None)
    check, found = gpu.compiler(needed=True)
    assert (outcome(check), found) == (("failed", "NVRTC is not installed", nvrtc.INSTALL), None)


@pytest.fixture
def real() -> Nvrtc:
    try:
        return nvrtc.find()
    except CompileError as reason:
        pytest.skip(str(reason))


def test_a_library_that_is_not_of_its_wheel_is_a_failure(real: Nvrtc, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.compiler(needed=True)[0].status == "ok"
    monkeypatch.setattr(nvrtc, "find", lambda: Nvrtc(real.path, "11.2.1"))
    check, found = gpu.compiler(needed=True)
    assert (check.status, found) == ("failed", None)
    assert check.remedy == install.pip("install", "--force-reinstall", "nvidia-cuda-nvrtc-cu12==12.9.*")


@pytest.mark.parametrize(
    ("script", "status", "finding"),
    [("t4", "ok", "nothing wrong"), ("a100", "ok", "NVIDIA A100"), ("h100_mig", "ok", "H100"), ("lost", None, "")],
)
def test_what_the_driver_says_of_a_gpu_is_told(script: str, status: str | None, finding: str) -> None:
    report = nvml.look("", Replay(SCRIPTS / f"{script}.json"))
    checks = {check.name: check for check in gpu.state(report)}
    if status is not None:
        assert checks["state"].status == status
    assert finding in checks["state"].found
    if "clocks" in checks:
        assert "MHz" in checks["clocks"].found
        assert "held down by: " in checks["clocks"].found
        assert checks["device memory"].status == "ok"


@pytest.mark.parametrize(
    ("state", "status"),
    [("unknown", "warning"), ("degraded", "warning"), ("drain", "failed"), ("quarantine", "failed")],
)
def test_the_remedies_of_a_sick_gpu_are_the_drivers(state: Any, status: str) -> None:
    findings = (GpuFinding(state=state, reason="it is sick", remedy="reboot"),)
    (check,) = gpu.state(GpuReport(state=state, findings=findings))
    assert outcome(check) == (status, "it is sick", "reboot")


def test_memory_that_others_hold_is_a_warning() -> None:
    report = nvml.look("", Replay(SCRIPTS / "t4.json"))
    assert report.reading is not None
    full = report.model_copy(update={"reading": report.reading.model_copy(update={"memory_free": 1 << 30})})
    check = next(check for check in gpu.state(full) if check.name == "device memory")
    assert outcome(check) == (
        "warning",
        "15 GiB, 1 GiB free: others hold the rest",
        "nvidia-smi shows who holds it: stop them, or set WARPDESK_DEVICE to another GPU",
    )


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (35, "install a newer driver: "),
        (46, "another process has the GPU for itself: stop it, or sudo nvidia-smi -c DEFAULT"),
        (101, "nvidia-smi -L lists the GPUs: set WARPDESK_DEVICE to an index or UUID of these"),
        (802, "sudo systemctl restart nvidia-fabricmanager"),
        (803, "reboot: "),
        (999, "nvidia-smi, and dmesg | grep -i nvrm; "),
    ],
)
def test_what_cuda_says_when_a_gpu_is_opened_has_its_remedy(
    code: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from warpdesk_server.workers.child import device

    for name, module in Machine(driver_error=code).modules(tmp_path).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(device, "_missing", lambda: None)
    check = gpu.device(device.probe().report, GPU)
    assert check.status == "failed"
    assert f"CUDA finds no device: error {code}" in check.found
    assert (check.remedy or "").startswith(remedy)


def test_an_architecture_must_be_known_to_nvrtc(real: Nvrtc) -> None:
    assert gpu.architecture("sm_90", real).status == "ok"
    other = gpu.architecture("sm_101", real)
    assert (other.status, other.remedy) == ("warning", "warpdesk warm --arch sm_101")
    later = gpu.architecture("sm_109", real)
    assert (later.status, later.remedy) == ("warning", nvrtc.remedy("sm_109"))
    assert "sm_109, which runs what it makes for sm_10" in later.found
    old, new = gpu.architecture("sm_35", real), gpu.architecture("sm_999", real)
    assert (old.status, old.remedy) == ("failed", nvrtc.INSTALL)
    assert (new.status, new.remedy) == ("failed", nvrtc.remedy("sm_999"))


def test_the_cache_says_whether_a_start_would_compile(
    real: Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "sources", lambda: [("device", CANARY), ("tests", sound.SOURCE)])
    cubins = Cubins(tmp_path / "cubins", real)
    check = gpu.kernel_cache(cubins, "sm_90")
    assert (check.status, check.remedy) == ("warning", "warpdesk warm --arch sm_90")
    assert "2 of 2 sources are to be compiled for sm_90" in check.found
    assert gpu.kernel_cache(cubins, None).status == "ok"
    monkeypatch.setattr(gate, "sources", gpu.sources)
    gate.keep_all(cubins, ["sm_90"])
    check = gpu.kernel_cache(cubins, "sm_90")
    assert (check.status, check.details["missing"]) == ("ok", 0)


@pytest.mark.parametrize("name", ["sm_90", None])
def test_a_cache_that_cannot_be_written_is_a_warning_unless_all_is_kept_there(
    name: str | None, real: Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "sources", lambda: [("device", CANARY)])
    (tmp_path / "file").touch()
    check = gpu.kernel_cache(Cubins(tmp_path / "file" / "cubins", real), name)
    assert (check.status, check.remedy) == ("warning", "export WARPDESK_KERNEL_CACHE=a directory of yours")
    monkeypatch.setattr(gate, "sources", gpu.sources)
    cubins = Cubins(tmp_path / "cubins", real)
    gate.keep_all(cubins, ["sm_90"])
    monkeypatch.setattr(os, "access", lambda *_: False)  # as an image's is for the user it runs as
    assert gpu.kernel_cache(cubins, name).status == ("ok" if name else "warning")


@pytest.mark.parametrize("name", ["sm_90", None])
def test_a_cache_that_others_can_write_to_is_not_used_and_the_commands_that_mend_it_do(
    name: str | None, real: Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "sources", lambda: [("device", CANARY)])
    folder = tmp_path / "my kernels"
    folder.mkdir()
    folder.chmod(0o775)
    (folder / "sm_90-theirs.cubin").touch()
    cubins = Cubins(folder, real)
    check = gpu.kernel_cache(cubins, name)
    assert outcome(check) == (
        "warning",
        f"{folder}, 1 kept: others could put code there, its mode is 0775, so none is used and every start compiles",
        f"chmod go-w '{folder}' && rm -f '{folder}'/*.cubin",
    )
    subprocess.run(["bash", "-c", check.remedy or ""], check=True)
    assert cubins.refusal() is None
    assert cubins.kept() == []
    folder.chmod(0o1777)
    assert gpu.kernel_cache(cubins, name).remedy == f"export WARPDESK_KERNEL_CACHE='{folder}'/warpdesk"


def test_a_folder_that_may_not_be_looked_into_is_one_that_cannot_be_written(
    real: Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, stat = tmp_path / "root", Path.stat

    def barred(path: Path, **options: Any) -> os.stat_result:
        if hidden in path.parents:
            raise PermissionError(13, "Permission denied")
        return stat(path, **options)

    hidden.mkdir()
    monkeypatch.setattr(Path, "stat", barred)
    monkeypatch.setattr(os, "access", lambda path, _: path != hidden)
    check = gpu.kernel_cache(Cubins(hidden / "cache" / "kernels", real), None)
    assert (check.status, f"{hidden} cannot be written" in check.found) == ("warning", True)
    check = machine.home(Settings(home=hidden / "home", max_array=1))
    assert (check.status, f"{hidden} cannot be written" in check.found) == ("failed", True)


# ---------------------------------------------------------------- kernels and operations


def test_registers_and_occupancy_are_told_for_a_named_architecture(
    real: Nvrtc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "sources", lambda: [("device", CANARY)])
    check = kernels.usage({}, "sm_90", None, show=True)
    assert check.status == "ok"
    (row,) = check.details["kernels"]
    assert (row["kernel"], row["threads"], row["blocks"], row["occupancy"]) == ("canary", 128, 16, 1.0)
    assert row["blocks_by_driver"] is None
    assert check.lines[0].endswith(": of each kernel, as a job launches it that fills the GPU")
    assert check.lines[2].startswith("canary (canary.cu)")


def test_occupancy_is_that_of_the_blocks_and_shared_memory_that_a_family_launches(
    real: Nvrtc, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = next(source for _, source in gate.sources() if kernels.describe(source) == "vector.cu REAL=f64")
    other = next(source for _, source in gate.sources() if kernels.describe(source) == "recurrence.cu REAL=f64")
    monkeypatch.setattr(gate, "sources", lambda: [("vector", source), ("indicators", other)])
    catalogue = WorkerSettings().catalogue()
    check = kernels.usage({name: catalogue[name] for name in ("add", "sum", "rsi")}, "sm_90", None, show=True)
    rows = {row["kernel"]: row for row in check.details["kernels"]}
    add, sums, rsi, unasked = (rows[name] for name in ("add", "sum_tiles", "rsi", "dot_tiles"))
    assert (add["dynamic"], add["threads"]) == (0, 128)  # its launch bounds allow 512
    assert sums["threads"] == 256
    # Tiles of 2,048 prices of float64 in shared memory: 12 of them fit, and registers allow 11.
    assert (rsi["threads"], rsi["dynamic"], rsi["shared"], rsi["blocks"]) == (64, 18956, 0, 11)
    assert rsi["occupancy"] == 22 / 64
    assert (unasked["threads"], unasked["dynamic"], unasked["occupancy"]) == (None, None, None)


@pytest.mark.parametrize(
    ("architecture", "multiprocessors"), [pytest.param("sm_75", 40, marks=pytest.mark.thorough), ("sm_90", 132)]
)
def test_every_kernel_of_every_source_is_launched_by_the_doctor(architecture: str, multiprocessors: int) -> None:
    """On paper, at sizes that any CPU answers in time; some only when asked as if there were one multiprocessor."""
    launched: set[tuple[str, str]] = set()
    for count in (multiprocessors, 1):
        requests = kernels.requests(WorkerSettings().catalogue().values(), most=1e7)
        launched |= largest_launches(requests, architecture, count).keys()
    every = set().union(*(kernels_of(family) for family in families())) | {("canary.cu", "canary")}
    assert every - launched == set(), "not launched"


def test_a_kernel_that_spills_or_does_not_compile_is_told(
    real: Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text.cu"
    monkeypatch.setattr(gate, "sources", lambda: [("family", Source(path))])
    path.write_text(
        'extern "C" __global__ void __launch_bounds__(1024, 2) hoard(const volatile float* in, float* out) {\n'
        "float kept[64]; for (int i = 0; i < 64; ++i) kept[i] = in[i * 1024 + threadIdx.x];\n"
        "float sum = 0.0f; for (int i = 63; i >= 0; --i) sum = sum * kept[i] + in[i]; out[threadIdx.x] = sum; }\n"
    )
    check = kernels.usage({}, "sm_90", None, show=False)
    assert check.status == "warning"
    assert "hoard (text.cu) spills " in check.found
    path.write_text("no text of CUDA")
    check = kernels.usage({}, "sm_90", None, show=False)
    assert (check.status, check.remedy) == ("failed", "reinstall warpdesk, or report it")


class RefusingDevice(PaperDevice):
    """It takes no kernel."""

    architecture = "sm_90"

    def kernel(self, source: Source, name: str) -> Any:
        raise DeviceLost(f"{name} of {source.path.name}: an illegal address", 700)


def test_a_device_that_takes_no_kernel_is_a_failure(real: Nvrtc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "sources", lambda: [("device", CANARY)])
    check = kernels.usage({}, "sm_90", RefusingDevice(), show=False)
    assert check.status == "failed"
    assert check.found == "the device took no kernel of ours: canary of canary.cu: an illegal address"
    assert check.remedy == gpu.BROKEN


def test_what_the_driver_counts_is_told_beside_what_is_computed(real: Nvrtc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "sources", lambda: [("device", CANARY)])
    device = EmulatedDevice()
    monkeypatch.setattr(device, "architecture", "sm_90")
    counted = device.kernel(CANARY, "canary").blocks_per_multiprocessor(128)
    check = kernels.usage({}, "sm_90", device, show=False)
    (row,) = check.details["kernels"]
    assert row["blocks_by_driver"] == counted
    assert (check.status == "ok") == (counted == row["blocks"])


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    def named(name: str) -> Any:
        return WorkerSettings(operations=f"tests.workers.operations:{name}").catalogue()

    return named


def test_without_a_gpu_the_cpu_alone_answers_and_the_reason_is_told(catalogue: Callable[[str], Any]) -> None:
    (check,) = kernels.answers(catalogue("SOUND"), None, "no NVIDIA driver", [])
    assert check.status == "ok"
    count = len(catalogue("SOUND"))
    assert check.found == f"{count} of {count} are answered on the CPU; none was tried on a GPU: no NVIDIA driver"


def test_an_operation_that_fails_its_example_is_a_failure_with_its_name(catalogue: Callable[[str], Any]) -> None:
    checks = {check.name: check for check in kernels.answers(catalogue("OPERATIONS"), None, "none", [])}
    assert checks["examples"].status == "warning"
    assert checks["example of stumble"].status == "failed"
    assert (checks["example of stumble"].remedy or "").startswith("jobs of stumble fail: ")


class WrongDevice(PaperDevice):
    """It computes wrongly, from the first kernel on or only what is small."""

    def __init__(self, largest: int) -> None:
        self.largest = largest

    def to_host(self, array: Any, out: Any = None) -> Any:
        return super().to_host(array + (array.size <= self.largest), out)


class DyingDevice(PaperDevice):
    """It is lost as soon as it is given something small, which the canary's question is not."""

    def to_device(self, array: Any) -> Any:
        if array.size < 100:
            raise DeviceLost("an illegal address", 700)
        return super().to_device(array)


def test_a_gpu_that_answers_like_the_cpu_is_ok_and_its_kernels_are_counted(catalogue: Callable[[str], Any]) -> None:
    double = {"double": catalogue("OPERATIONS")["double"]}
    rows = [{"source": "canary.cu", "kernel": "canary"}, {"source": "gpu.py", "kernel": "other"}]
    first, check = kernels.answers(double, PaperDevice(), None, rows)
    assert outcome(first) == ("ok", "paper answers what is known", None)
    assert check.status == "ok"
    assert "on the CPU and on the GPU alike, at all sizes tried; 1 of 2 kernels were launched" in check.found
    assert check.details["not_launched"] == ["other (gpu.py)"]


@pytest.mark.parametrize(
    ("device", "finding", "remedy"),
    [
        (
            WrongDevice(2),
            "on the GPU, with inputs of (2,), otherwise than on the CPU: doubled: 2 of 2, the first 3.0 instead of 2.0",
            "WARPDESK_DEVICE=cpu",
        ),
        (DyingDevice(), "on the GPU, with inputs of (2,): an illegal address", "nvidia-smi"),
    ],
)
def test_a_gpu_that_answers_wrongly_or_dies_is_a_failure(
    device: PaperDevice, finding: str, remedy: str, catalogue: Callable[[str], Any]
) -> None:
    double = {"double": catalogue("OPERATIONS")["double"]}
    *_, check = kernels.answers(double, device, None, [])
    assert check.status == "failed"
    assert finding in check.found
    assert remedy in (check.remedy or "")


def test_a_gpu_that_does_not_answer_what_is_known_is_asked_nothing_more(catalogue: Callable[[str], Any]) -> None:
    first, check = kernels.answers({"double": catalogue("OPERATIONS")["double"]}, WrongDevice(1 << 20), None, [])
    assert first.status == "failed"
    assert first.found.startswith("paper computes wrongly: ")
    assert check.found == "1 of 1 are answered on the CPU; none was tried on a GPU: it does not answer what is known"


@pytest.mark.timeout(300)
def test_sizes_and_other_numbers_reach_kernels_that_the_examples_do_not() -> None:
    # The lengths of windows decide which kernel answers.
    catalogue = WorkerSettings().catalogue()
    rows = [{"source": "windows.cu REAL=f64", "kernel": kernel} for kernel in ("sma_short", "sma", "deviation_long")]
    checks = list(kernels.answers({"sma": catalogue["sma"]}, EmulatedDevice(), None, rows, most=1e4))
    assert [(check.name, check.status) for check in checks] == [("canary", "ok"), ("examples", "ok")]
    assert checks[1].details["not_launched"] == ["deviation_long (windows.cu REAL=f64)"]


@pytest.mark.parametrize(
    ("expected", "got", "sentence"),
    [
        (1.0, 1.0, None),
        ("kernel", "library", None),
        (None, 1e-9, None),
        ([1.0, float("nan")], [1.0, float("nan")], None),
        ([1.0, 2.0], [1.0, 2.0000000000000004], "1 of 2, the first 2.0000000000000004 instead of 2.0"),
        ([1e9, 1.0], [1e9, 2.0], "1 of 2, the first 2.0 instead of 1.0"),
        ([0.0], [-0.0], "1 of 1, the first -0.0 instead of 0.0"),
        (np.float32([1.0]), np.float64([1.0]), "float64 instead of float32"),
        ([1.0, 2.0], [1.0, 2.1], "1 of 2, the first 2.1 instead of 2.0"),
        ([1.0, float("nan")], [1.0, 2.0], "1 of 2, the first 2.0 instead of nan"),
        ([1, 2], [1, 3], "1 of 2, the first 3 instead of 2"),
        (["1", "2"], ["1", "3"], "1 of 2, the first 3 instead of 2"),
        ([1.0], [1.0, 2.0], "shape (2,) instead of (1,)"),
        ({"a": 1.0, "b": 2}, {"a": 1.0, "b": 3}, "b: 1 of 1, the first 3 instead of 2"),
    ],
)
def test_answers_that_differ_in_a_single_bit_differ(expected: Any, got: Any, sentence: str | None) -> None:
    assert kernels.difference(expected, got) == sentence


def test_a_gpu_answers_as_if_it_had_one_multiprocessor_too() -> None:
    # Small tiles are for products that leave multiprocessors idle.
    operation = WorkerSettings().catalogue()["matmul"]
    one = {"matmul": replace(operation, variants=(Example({"algorithm": "kernel"}, operation.example.inputs),))}
    rows = [{"source": "matmul.cu REAL=f64", "kernel": f"matmul_{size}"} for size in ("small", "medium")]
    device = EmulatedDevice()
    device.multiprocessors = 1000
    checks = list(kernels.answers(one, device, None, rows, most=3e5))
    assert [(check.name, check.status) for check in checks] == [("canary", "ok"), ("examples", "ok")]
    assert checks[1].details["not_launched"] == []


@pytest.mark.parametrize(
    ("expected", "got", "sentence"),
    [
        ([1.0, 2.0], [1.0, 2.00001], None),
        ([0.0, float("nan"), float("inf")], [-0.0, float("nan"), float("inf")], None),
        ([1.0, 2.0], [1.0, 2.1], "1 of 2, the first 2.1 instead of 2.0"),
        ([1, 2], [1, 3], "1 of 2, the first 3 instead of 2"),
    ],
)
def test_floats_of_a_library_may_differ_by_rounding(expected: Any, got: Any, sentence: str | None) -> None:
    assert kernels.difference(expected, got, close=1e-4) == sentence


class OffByOneBit(EmulatedDevice):
    """What it answers is the next number, but for what the canary asks, which is more."""

    def to_host(self, array: Any, out: Any = None) -> Any:
        host = super().to_host(array, out)
        return np.nextafter(host, np.inf, out, dtype=host.dtype) if host.size < 100 else host


@pytest.mark.parametrize(("algorithm", "status"), [("kernel", "failed"), (None, "ok")])
def test_only_where_a_library_multiplied_is_rounding_no_difference(algorithm: str | None, status: str) -> None:
    # By default the CPU takes its library, whatever the device takes.
    operation = WorkerSettings().catalogue()["matmul"]
    example = replace(operation.example, params={"algorithm": algorithm} if algorithm else {})
    one = {"matmul": replace(operation, example=example, variants=())}
    checks = list(kernels.answers(one, OffByOneBit(), None, [], most=1))
    assert checks[-1].status == status, checks


# ---------------------------------------------------------------- the command


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("WARPDESK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cupy"))
    monkeypatch.setenv("WARPDESK_KERNEL_CACHE", "")  # put back after the test
    monkeypatch.setenv("WARPDESK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WARPDESK_OPERATIONS", "tests.workers.operations:SOUND")
    monkeypatch.setenv("WARPDESK_MAX_JOB_BYTES", "1")
    return tmp_path / "home"


def examined(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json", *arguments])
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"] is (code == 0)
    return code, {check["name"]: check for check in found["checks"]}


def test_every_check_has_a_name_a_status_and_a_finding(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, checks = examined(capsys)
    assert code == 0, checks
    assert {"system", "python", "memory", "processors", "home", "redis", "device", "nvrtc", "examples"} <= checks.keys()
    for check in checks.values():
        assert check["status"] in ("ok", "warning", "failed", "absent")
        assert check["found"]
    assert checks["examples"]["status"] == "ok"


def test_looking_quickly_changes_nothing(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, checks = examined(capsys, "--quick")
    assert not own_home.exists()
    assert not {"kernels", "examples"} & checks.keys()


def test_kernels_that_are_asked_for_are_not_left_out_for_quickness(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--quick", "--arch", "sm_90"]) == 2
    assert "--quick leaves out the kernels, which --arch asks for" in capsys.readouterr().err


def test_a_gpu_that_the_settings_ask_for_and_that_is_not_there_is_unhealthy(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPDESK_DEVICE", "tests.workers.device:absent")
    code, checks = examined(capsys, "--quick")
    assert (code, checks["device"]["status"]) == (1, "failed")
    assert "the device is held by another process" in checks["device"]["found"]
    assert checks["device"]["remedy"] == "mend what is failed above, or unset WARPDESK_DEVICE"
    monkeypatch.setenv("WARPDESK_DEVICE", "cpu")
    code, checks = examined(capsys, "--quick")
    assert (code, checks["device"]["status"]) == (0, "absent")
    monkeypatch.setenv("WARPDESK_DEVICE", "tests.workers.device:PaperDevice")
    code, checks = examined(capsys, "--quick")
    assert (code, checks["device"]["status"]) == (0, "ok")


def test_a_sick_gpu_is_unhealthy_and_named(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPDESK_DEVICE", f"tests.workers.several:NumberedDevice@{A100}")
    play(monkeypatch, SCRIPTS / "a100.json")
    code, checks = examined(capsys, "--quick")
    assert (code, checks["state"]["status"]) == (0, "ok")
    script = json.loads((SCRIPTS / "a100.json").read_text())
    script["moments"][0]["devices"][0]["fields"] = {"NVML_FI_DEV_GET_GPU_RECOVERY_ACTION": 1}
    (tmp_path / "sick.json").write_text(json.dumps(script))
    play(monkeypatch, tmp_path / "sick.json")
    code, checks = examined(capsys, "--quick")
    assert (code, checks["state"]["status"]) == (1, "failed")
    assert checks["state"]["remedy"]


def test_calibrating_keeps_what_operations_take_where_there_is_a_choice(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPDESK_DEVICE", "cpu")
    _, checks = examined(capsys, "--quick", "--calibrate")
    assert (checks["calibration"]["status"], own_home.exists()) == ("absent", False)
    monkeypatch.setenv("WARPDESK_OPERATIONS", "tests.workers.operations:SOUND")
    monkeypatch.setenv("WARPDESK_DEVICE", "tests.workers.device:PaperDevice")
    code, checks = examined(capsys, "--quick", "--calibrate")
    assert (code, checks["calibration"]["status"]) == (0, "ok")
    assert list((own_home / "costs").glob("gpu-*.json"))


def test_kernels_are_shown_for_a_named_architecture(
    real: Nvrtc, own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate, "sources", lambda: [("device", CANARY)])
    assert main(["doctor", "--arch", "9.0"]) == 0
    output = capsys.readouterr().out
    assert "canary (canary.cu)" in output
    assert "1 for sm_90: " in output
