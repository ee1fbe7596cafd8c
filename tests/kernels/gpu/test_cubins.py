"""A kept cubin is used for what it was made from alone; whatever happens to the directory, kernels compile."""

import logging
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from warpdesk_server.kernels.gpu import source
from warpdesk_server.kernels.gpu.cubins import CubinCounts, Cubins, default_directory
from warpdesk_server.kernels.gpu.nvrtc import Compiled, CompileError, Nvrtc, find
from warpdesk_server.kernels.gpu.source import COMPILE_OPTIONS, Source, inline

TEXT = 'extern "C" __global__ void k(int* x) { *x = 1; }'


class Compiler(Nvrtc):
    """Makes something of a text that tells what it was made from."""

    def __init__(self, version: str = "12.9.86") -> None:
        super().__init__(Path("libnvrtc.so"), version)

    def compile(self, text: str, name: str, architecture: str, options: tuple[str, ...] = COMPILE_OPTIONS) -> Compiled:
        self.calls += 1
        if "undefined" in text:
            raise CompileError("an error")
        return Compiled(repr((self.version, text, architecture, options)).encode(), name)


def start(folder: Path, version: str = "12.9.86", options: tuple[str, ...] = COMPILE_OPTIONS) -> Cubins:
    """The cubins as a new process sees them."""
    return Cubins(folder / "cubins", Compiler(version), options)


def content(cubins: Cubins, text: str = TEXT, architecture: str = "sm_90") -> bytes:
    return cubins.cubin(text, "k.cu", architecture)


def test_a_second_start_compiles_nothing_and_asks_nothing(tmp_path: Path) -> None:
    first, second = start(tmp_path), start(tmp_path)
    assert content(first) == content(first) == content(second)
    assert first.counts == CubinCounts(compiled=1, found=1, nvrtc_calls=1)
    assert second.counts == CubinCounts(compiled=0, found=1, nvrtc_calls=0)


def test_a_start_that_finds_its_cubins_does_not_load_nvrtc(tmp_path: Path) -> None:
    try:
        find()
    except CompileError as reason:
        pytest.skip(str(reason))
    program = (
        "import sys; from pathlib import Path\n"
        "from warpdesk_server.kernels.gpu.cubins import Cubins; from warpdesk_server.kernels.gpu.nvrtc import find\n"
        "from tests.kernels.gpu.test_cubins import TEXT, content\n"
        "content(Cubins(Path(sys.argv[1]), find()))\n"
        "print('libnvrtc' in Path('/proc/self/maps').read_text())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "cubins")]
    loaded = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert loaded == ["True\n", "False\n"]


@pytest.mark.gpu
@pytest.mark.usefixtures("cuda")
def test_a_gpu_that_is_opened_again_compiles_nothing_and_never_loads_nvrtc(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from warpdesk_server.kernels.gpu.cupy_device import open_device\n"
        "print(open_device().cubins.counts.compiled, 'libnvrtc' in Path('/proc/self/maps').read_text())"
    )
    environment = {**os.environ, "WARPDESK_KERNEL_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", program]
    opened = [
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert opened == ["1 True\n", "0 False\n"]


def test_text_option_architecture_and_version_each_make_another_cubin(tmp_path: Path) -> None:
    made = {
        content(start(tmp_path)),
        content(start(tmp_path), TEXT.replace("1", "2")),
        content(start(tmp_path), architecture="sm_80"),
        content(start(tmp_path, version="12.9.87")),
        content(start(tmp_path, options=COMPILE_OPTIONS[:-1])),
    }
    assert len(made) == len(start(tmp_path).kept()) == 5


def test_a_change_of_a_header_or_a_macro_makes_another_cubin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "device").mkdir()
    header, path = tmp_path / "device" / "one.cuh", tmp_path / "k.cu"
    header.write_text("typedef float real;\n")
    path.write_text('#include "device/one.cuh"\n' + TEXT)
    monkeypatch.setattr(source, "_KERNELS", tmp_path)
    cubins = start(tmp_path)
    for _ in range(2):
        content(cubins, inline(Source(path, {"TILE": 16})))
    assert cubins.counts.compiled == 1
    content(cubins, inline(Source(path, {"TILE": 32})))
    assert cubins.counts.compiled == 2
    header.write_text("typedef double real;\n")
    content(cubins, inline(Source(path, {"TILE": 16})))
    assert cubins.counts.compiled == 3


@pytest.mark.parametrize("damage", [lambda whole: whole[:-1], lambda _: b"", lambda whole: b"\0" + whole[1:]])
def test_a_damaged_cubin_is_made_anew(tmp_path: Path, damage: "object") -> None:
    whole = content(start(tmp_path))
    (path,) = start(tmp_path).kept()
    path.write_bytes(damage(whole))  # type: ignore[operator]
    cubins = start(tmp_path)
    assert content(cubins) == whole
    assert cubins.counts.compiled == 1
    assert path.read_bytes() == whole


def test_where_nothing_can_be_kept_kernels_compile_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cubins"
    folder.touch()
    cubins = start(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert content(cubins) == content(cubins)
    assert cubins.counts.compiled == 2
    assert [record.message for record in caplog.records] == [
        f"compiled kernels cannot be kept in {folder} ([Errno 17] File exists: '{folder}'): "
        "every start compiles them again"
    ]


@pytest.mark.parametrize(
    ("mode", "remedy"),
    [
        (0o775, "chmod go-w {0} && rm -f {0}/*.cubin"),
        (0o757, "chmod go-w {0} && rm -f {0}/*.cubin"),
        (0o1777, "export WARPDESK_KERNEL_CACHE={0}/warpdesk"),
    ],
)
def test_where_others_could_put_code_nothing_is_read_or_kept_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, remedy: str
) -> None:
    content(start(tmp_path))
    folder = tmp_path / "cubins"
    folder.chmod(mode)
    cubins = start(tmp_path)
    with caplog.at_level(logging.WARNING):
        content(cubins)
        content(cubins, TEXT.replace("1", "2"))
    assert cubins.counts == CubinCounts(compiled=2, found=0, nvrtc_calls=2)
    assert len(cubins.kept()) == 1
    assert [record.message for record in caplog.records] == [
        f"compiled kernels cannot be kept in {folder} ([Errno 1] others could put code there, its mode is {mode:04o}; "
        f"to mend it: {remedy.format(folder)}): every start compiles them again"
    ]
    with pytest.raises(PermissionError, match="others could put code there"):
        cubins.keep(TEXT, "k.cu", "sm_90")
    folder.chmod(0o755)
    assert start(tmp_path).find(TEXT, "sm_90") == content(start(tmp_path))


def test_what_another_user_kept_is_not_read_and_what_root_kept_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    content(start(tmp_path))
    owner = (tmp_path / "cubins").stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    cubins = start(tmp_path)
    content(cubins)
    assert cubins.counts.compiled == (0 if owner == 0 else 1)
    if owner == 0:
        os.chown(tmp_path / "cubins", 7, -1)
        content(cubins)
        assert cubins.counts.compiled == 1
        owner = 7
    assert f"it belongs to user {owner}, who could put code there" in caplog.text


@pytest.mark.parametrize(
    ("us", "owner", "mode", "remedy"),
    [
        (1000, 1000, 0o775, "chmod go-w {0} && rm -f {0}/*.cubin"),
        (1000, 0, 0o775, "sudo chmod go-w {0} && sudo rm -f {0}/*.cubin"),
        (1000, 7, 0o755, "sudo chown 1000 {0} && rm -f {0}/*.cubin"),
        (1000, 7, 0o775, "sudo chown 1000 {0} && chmod go-w {0} && rm -f {0}/*.cubin"),
        (0, 7, 0o775, "chown 0 {0} && chmod go-w {0} && rm -f {0}/*.cubin"),
        (0, 7, 0o1777, "export WARPDESK_KERNEL_CACHE={0}/warpdesk"),
        (1000, 0, 0o755, None),
        (1000, 1000, 0o1755, None),
    ],
)
def test_the_remedy_takes_the_directory_from_the_others_and_removes_what_they_may_have_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, us: int, owner: int, mode: int, remedy: str | None
) -> None:
    folder = start(tmp_path).directory
    folder.mkdir()
    real = folder.stat()
    monkeypatch.setattr(os, "geteuid", lambda: us)
    monkeypatch.setattr(Path, "stat", lambda _: os.stat_result((stat.S_IFDIR | mode, 0, 0, 0, owner, *real[5:10])))
    refused = start(tmp_path).refusal()
    assert (refused and refused.remedy) == (remedy and remedy.format(folder))


def test_a_directory_that_is_not_there_is_not_refused(tmp_path: Path) -> None:
    assert start(tmp_path).refusal() is None


def test_what_a_group_may_write_elsewhere_it_may_not_write_here(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        content(start(tmp_path))
    finally:
        os.umask(before)
    assert start(tmp_path).find(TEXT, "sm_90") is not None


def test_a_source_that_does_not_compile_leaves_nothing(tmp_path: Path) -> None:
    cubins = start(tmp_path)
    with pytest.raises(CompileError):
        content(cubins, "undefined")
    assert (cubins.counts.compiled, cubins.counts.failed) == (0, 1)
    assert cubins.kept() == []


def test_what_no_source_needs_any_more_is_removed_for_every_architecture(tmp_path: Path) -> None:
    old, cubins = start(tmp_path, version="12.8.93"), start(tmp_path)
    content(old)
    for text in (TEXT, TEXT.replace("1", "2")):
        for architecture in ("sm_80", "sm_120"):
            content(cubins, text, architecture)
    killed, writing = cubins.directory / "killed.part", cubins.directory / "writing.part"
    for path in (killed, writing):
        path.touch()
    os.utime(killed, (time.time() - 4000,) * 2)
    assert cubins.remove_unused([TEXT]) == 4
    assert [path.name.partition("-")[0] for path in cubins.kept()] == ["sm_120", "sm_80"]
    assert cubins.find(TEXT, "sm_120")
    assert not killed.exists()
    assert writing.exists()


def test_what_one_user_kept_another_may_read(tmp_path: Path) -> None:
    content(start(tmp_path))
    (path,) = start(tmp_path).kept()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_keeping_says_whether_it_compiled_and_fails_where_nothing_can_be_kept(tmp_path: Path) -> None:
    assert [start(tmp_path).keep(TEXT, "k.cu", "sm_90") for _ in range(2)] == [True, False]
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Cubins(tmp_path / "file", Compiler()).keep(TEXT, "k.cu", "sm_90")


def test_two_processes_may_write_the_same_cubin_at_once(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.kernels.gpu.test_cubins import content, start\n"
        "for i in range(200): content(start(Path(sys.argv[1])), f'text {i}' * 1000)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    both = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    cubins = start(tmp_path)
    assert len(cubins.kept()) == 200
    for i in range(200):
        content(cubins, f"text {i}" * 1000)
    assert cubins.counts.compiled == 0
    assert {path.suffix for path in cubins.directory.iterdir()} == {".cubin"}


def test_the_directory_is_the_environments_or_among_the_users_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPDESK_KERNEL_CACHE", "/srv/kernels")
    assert default_directory() == Path("/srv/kernels")
    monkeypatch.delenv("WARPDESK_KERNEL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/caches")
    assert default_directory() == Path("/var/caches/warpdesk/kernels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_directory() == Path("/home/someone/.cache/warpdesk/kernels")
