"""NVRTC is found and named without being loaded, and answers with machine code or with its log."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from warpdesk_server.kernels.gpu import nvrtc
from warpdesk_server.kernels.gpu.canary import CANARY
from warpdesk_server.kernels.gpu.nvrtc import CompileError, Nvrtc, find
from warpdesk_server.kernels.gpu.source import inline

CUDA_12, CUDA_13 = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "nvidia/cu13/lib/libnvrtc.so.13"
PIP = f"{sys.executable} -m pip"
# CUDA 12's is found first where both are.
NEWEST = f"{PIP} uninstall -y nvidia-cuda-nvrtc-cu12 && {PIP} install --upgrade nvidia-cuda-nvrtc"


@pytest.fixture(scope="module")
def real() -> Nvrtc:
    try:
        return find()
    except CompileError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with no NVRTC, and the folder where its Python looks for packages."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setitem(sys.modules, "cuda", None)
    for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    if any(nvrtc._toolkits()):
        pytest.skip("this machine has a CUDA toolkit")
    return site


def place(root: Path, *files: str) -> None:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_where_there_is_none_the_error_knows_how_to_install_it(bare: Path) -> None:
    with pytest.raises(CompileError, match=r"NVRTC is not installed$") as error:
        find()
    assert error.value.remedy == f"{PIP} install 'nvidia-cuda-nvrtc-cu12==12.9.*'"


@pytest.mark.parametrize(
    ("files", "path", "version"),
    [
        ([CUDA_12, "nvidia_cuda_nvrtc_cu12-12.9.86.dist-info/RECORD"], CUDA_12, "12.9.86"),
        ([CUDA_13, "nvidia_cuda_nvrtc-13.0.88.dist-info/RECORD"], CUDA_13, "13.0.88"),
        (
            [
                *(CUDA_13, "nvidia_cuda_nvrtc-13.0.88.dist-info/RECORD"),
                *(CUDA_12, "nvidia_cuda_nvrtc_cu12-12.9.86.dist-info/RECORD"),
            ],
            CUDA_12,
            "12.9.86",
        ),
    ],
    ids=["CUDA 12", "CUDA 13", "both"],
)
def test_a_wheel_is_named_by_its_metadata_and_not_loaded(bare: Path, files: list[str], path: str, version: str) -> None:
    place(bare, *files)
    found = find()
    assert (found.path, found.version, found.major) == (bare / path, version, int(version[:2]))
    assert found.calls == 0


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"])
def test_a_toolkits_is_named_by_its_file_and_comes_after_a_wheel(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    toolkit = tmp_path / "toolkit"
    place(toolkit, "lib64/libnvrtc.so.12.4.127", "lib64/libnvrtc-builtins.so.12.4")
    (toolkit / "lib64" / "libnvrtc.so.12").symlink_to("libnvrtc.so.12.4.127")
    monkeypatch.setenv(variable, str(toolkit))
    found = find()
    assert (found.path, found.version, found.calls) == (toolkit / "lib64/libnvrtc.so.12.4.127", "12.4.127", 0)
    place(bare, CUDA_13)
    assert find().path == bare / CUDA_13


def test_of_a_toolkits_versions_the_newest_of_cuda_12_is_taken(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    for version in ("11.8.89", "13.0.88", "13.1.2", "12.4.127", "12.10.1", "12.9.86"):
        place(tmp_path, f"lib64/libnvrtc.so.{version}")
    found = []
    while files := [*(tmp_path / "lib64").iterdir()]:
        found.append(find().version)
        next(file for file in files if file.name.endswith(found[-1])).unlink()
    assert found == ["12.10.1", "12.9.86", "12.4.127", "13.1.2", "13.0.88", "11.8.89"]


def test_a_library_that_is_not_one_is_an_error_with_the_remedy(bare: Path) -> None:
    place(bare, CUDA_12)
    found = find()
    with pytest.raises(CompileError, match="NVRTC cannot be loaded: ") as error:
        found.version  # noqa: B018 (nothing says it, so NVRTC is asked)
    assert error.value.remedy.startswith(f"{PIP} install")
    assert found.calls == 1


def test_what_nvrtc_looks_for_by_name_is_loaded_from_beside_it(tmp_path: Path) -> None:
    # As CUDA 13's does, which has no search path of its own.
    built = {
        "libnvrtc-builtins.so.99.1": "int nothing;",
        "libnvrtc.so.99": """
            #include <dlfcn.h>
            extern "C" int nvrtcVersion(int* major, int* minor) {
                *major = 99, *minor = 1;
                return dlopen("libnvrtc-builtins.so.99.1", RTLD_NOW) == nullptr;
            }
            extern "C" const char* nvrtcGetErrorString(int) { return "builtins not found"; }""",
    }
    for name, text in built.items():
        command = [
            "g++",
            "-shared",
            "-fPIC",
            "-x",
            "c++",
            "-",
            f"-Wl,-soname,{name}",
            "-o",
            str(tmp_path / name),
            "-ldl",
        ]
        subprocess.run(command, input=text, text=True, check=True)
    assert Nvrtc(tmp_path / "libnvrtc.so.99").version == "99.1"


def test_what_a_wheel_says_is_what_the_library_answers(real: Nvrtc) -> None:
    library = Nvrtc(real.path)
    assert real.version.startswith(library.version + ".") or real.version == library.version
    assert library.calls == 1


def test_a_source_becomes_machine_code_for_its_architecture(real: Nvrtc) -> None:
    before = real.calls
    text = inline(CANARY)
    made = [real.compile(text, "canary.cu", architecture) for architecture in ("sm_80", "sm_90", "sm_90")]
    for compiled in made:
        assert compiled.cubin.startswith(b"\x7fELF")
        assert "Used " in compiled.log
    assert made[0].cubin != made[1].cubin
    assert made[1].cubin == made[2].cubin
    assert real.calls > before


@pytest.mark.parametrize(
    ("wanted", "target"),
    [("sm_75", "sm_75"), ("sm_88", "sm_86"), ("sm_89", "sm_86"), ("sm_103", "sm_100"), ("sm_87", "sm_87")],
)
def test_a_gpu_that_nvrtc_does_not_know_runs_what_is_made_for_an_older_one_of_its_major_version(
    monkeypatch: pytest.MonkeyPatch, wanted: str, target: str
) -> None:
    compiler = Nvrtc(Path("libnvrtc.so"), "12.9.86")
    monkeypatch.setattr(compiler, "architectures", lambda: ("sm_75", "sm_80", "sm_86", "sm_87", "sm_100"))
    assert compiler.target(wanted) == target


@pytest.mark.parametrize(
    ("wanted", "remedy"),
    [
        ("sm_70", f"{PIP} install 'nvidia-cuda-nvrtc-cu12==12.9.*'"),
        ("sm_110", NEWEST),
        ("sm_120", NEWEST),
    ],
)
def test_a_gpu_of_a_major_version_that_nvrtc_does_not_know_is_an_error_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, wanted: str, remedy: str
) -> None:
    compiler = Nvrtc(Path("libnvrtc.so"), "13.0.88")
    monkeypatch.setattr(compiler, "architectures", lambda: ("sm_75", "sm_100"))
    with pytest.raises(CompileError, match=rf"NVRTC 13\.0\.88 makes no code for {wanted}$") as error:
        compiler.compile("", "k.cu", wanted)
    assert error.value.remedy == remedy


def test_what_is_made_for_an_older_gpu_is_the_code_of_the_older_one(real: Nvrtc) -> None:
    text, architectures = inline(CANARY), real.architectures()
    later = next(number for number in range(101, 110) if f"sm_{number}" not in architectures)
    cubin = real.compile(text, "canary.cu", f"sm_{later}").cubin
    assert cubin == real.compile(text, "canary.cu", real.target(f"sm_{later}")).cubin


def test_a_refused_source_is_an_error_with_the_log_and_the_next_one_compiles(real: Nvrtc) -> None:
    with pytest.raises(CompileError, match=rf'NVRTC {re.escape(real.version)}: k\.cu\(1\): error: identifier "y"'):
        real.compile('#line 1 "k.cu"\n__global__ void k(int* x) { *x = y; }', "k.cu", "sm_90")
    real.compile('extern "C" __global__ void k(int* x) { *x = 1; }', "k.cu", "sm_90")
