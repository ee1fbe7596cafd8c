"""The compile gate: every source for every architecture by `make kernels`; here, that it sees what it must refuse."""

import re
from pathlib import Path

import pytest

from tests.cudasim import sound
from warpdesk_server.kernels.gpu import compile as gate
from warpdesk_server.kernels.gpu import nvrtc
from warpdesk_server.kernels.gpu.canary import CANARY
from warpdesk_server.kernels.gpu.compile import ARCHITECTURES, Kept, Usage, compile_all, compile_for, keep_all, table
from warpdesk_server.kernels.gpu.cubins import Cubins
from warpdesk_server.kernels.gpu.nvrtc import CompileError
from warpdesk_server.kernels.gpu.source import Source

try:
    nvrtc.find()
except CompileError as reason:
    pytest.skip(str(reason), allow_module_level=True)

# More values alive at once than 32 registers hold: the assembler must keep some in memory.
_SPILLS = """
extern "C" __global__ void __launch_bounds__(1024, 2) hoard(const volatile float* in, float* out) {
    float kept[64];
    for (int i = 0; i < 64; ++i) kept[i] = in[i * 1024 + threadIdx.x];
    float sum = 0.0f;
    for (int i = 63; i >= 0; --i) sum = sum * kept[i] + in[i];
    out[threadIdx.x] = sum;
}
"""


def source(folder: Path, text: str) -> Source:
    path = folder / "text.cu"
    path.write_text(text)
    return Source(path)


def test_a_kernel_compiles_for_every_architecture_and_says_what_it_needs() -> None:
    usages = [usage for architecture in ARCHITECTURES for usage in compile_for(CANARY, architecture)]
    assert [(usage.kernel, usage.architecture) for usage in usages] == [("canary", a) for a in ARCHITECTURES]
    for usage in usages:
        assert 2 <= usage.registers <= 32
        assert (usage.shared, usage.spilled) == (512, 0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_acquire_release_and_tickets_assemble_for_every_architecture(architecture: int) -> None:
    kernels = {usage.kernel: usage.spilled for usage in compile_for(sound.SOURCE, architecture)}
    assert kernels["chained_scan"] == kernels["last_block_sums"] == 0
    assert len(kernels) == len(sound.SOUND)


def test_shared_memory_and_each_kernel_of_a_file_are_read_from_the_log(tmp_path: Path) -> None:
    text = """
    extern "C" __global__ void first(float* x) {
        __shared__ float held[100];
        held[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = held[99 - threadIdx.x];
    }
    extern "C" __global__ void second(float* x) { x[0] = 1.0f; }
    """
    usages = {usage.kernel: usage for usage in compile_for(source(tmp_path, text), 80)}
    assert (usages["first"].shared, usages["second"].shared) == (400, 0)


def run(monkeypatch: pytest.MonkeyPatch, text: Source, *options: str) -> int:
    monkeypatch.setattr(gate, "sources", lambda: [("family", text)])
    monkeypatch.setattr("sys.argv", ["warpdesk_server.kernels.gpu.compile", *options])
    return gate.main()


def test_a_kernel_that_spills_fails_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, source(tmp_path, _SPILLS)) == 1
    out, err = capsys.readouterr()
    assert "SPILLS" in out
    for architecture in ARCHITECTURES:
        assert re.search(rf"hoard \(text\.cu\) spills [1-9]\d* bytes on sm_{architecture} with \d+ registers", err)


def test_a_kernel_that_does_not_compile_fails_the_gate_with_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = '#include "device/types.cuh"\nextern "C" __global__ void k(u32* x) {\n    x[0] = y;\n}\n'
    assert run(monkeypatch, source(tmp_path, text)) == 1
    assert 'text.cu(3): error: identifier "y" is undefined' in capsys.readouterr().err


def test_a_sound_kernel_passes_the_gate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, CANARY) == 0
    assert "canary (canary.cu)" in capsys.readouterr().out


def test_what_compiled_before_is_left_out_until_its_text_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--known", str(tmp_path / "before.json")]
    assert run(monkeypatch, CANARY, *options) == 0
    assert run(monkeypatch, CANARY, *options, "--save") == 0
    assert capsys.readouterr().out.count("canary (canary.cu)") == 2
    assert run(monkeypatch, CANARY, *options) == 0
    assert capsys.readouterr().out == "1 of 1 sources are as they were when they compiled\n"
    (tmp_path / "canary.cu").write_text(CANARY.path.read_text() + "// another text\n")
    assert run(monkeypatch, Source(tmp_path / "canary.cu"), *options) == 0
    assert "canary (canary.cu)" in capsys.readouterr().out
    assert run(monkeypatch, source(tmp_path, _SPILLS), *options, "--save") == 1
    assert run(monkeypatch, CANARY, *options) == 0
    assert capsys.readouterr().out.endswith("1 of 1 sources are as they were when they compiled\n")


def test_an_architecture_the_compiler_does_not_know_is_an_error() -> None:
    with pytest.raises(CompileError, match=r"canary\.cu for sm_35: NVRTC .* makes no code for sm_35"):
        compile_for(CANARY, 35)


def test_all_architectures_times_all_sources_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def note(text: Source, architecture: int) -> list[Usage]:
        made.append(architecture)
        return [Usage(text.path.name, "k", architecture, 10, 0, 0)]

    monkeypatch.setattr(gate, "compile_for", note)
    usages = compile_all()
    assert sorted(made) == sorted(list(ARCHITECTURES) * len(list(gate.sources())))
    assert table(usages).count("10/0") == len({usage.source for usage in usages}) * len(ARCHITECTURES)


def test_keeping_all_compiles_each_source_once_and_removes_what_is_no_source_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = source(tmp_path, 'extern "C" __global__ void gone() {}')
    cubins = Cubins(tmp_path / "cubins", nvrtc.find())
    monkeypatch.setattr(gate, "sources", lambda: [("family", gone)])
    assert keep_all(cubins, ["sm_90"]) == [Kept("family", "text.cu", "sm_90", compiled=True)]
    monkeypatch.setattr(gate, "sources", lambda: [("device", CANARY)])
    for compiled in (True, False):
        assert keep_all(cubins, ["sm_80", "sm_90"]) == [
            Kept("device", "canary.cu", architecture, compiled) for architecture in ("sm_80", "sm_90")
        ]
    assert len(cubins.kept()) == 2


def test_keeping_a_source_that_does_not_compile_names_it_and_its_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "sources", lambda: [("family", source(tmp_path, "no text of CUDA"))])
    with pytest.raises(CompileError, match=r"text\.cu for sm_90: NVRTC .*error"):
        keep_all(Cubins(tmp_path / "cubins", nvrtc.find()), ["sm_90"])
