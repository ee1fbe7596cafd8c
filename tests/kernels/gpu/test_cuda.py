"""Sources are inlined whole, arguments checked before a launch, and faults told apart by their numbers."""

import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cudasim import sound
from tests.cudasim.build import compile_source, load
from tests.cudasim.device import deduced
from tests.kernels.gpu.cupy_on_cpu import CUDADriverError, Machine, pretend
from warpdesk_server.kernels.gpu import canary, chunks, staging
from warpdesk_server.kernels.gpu.arguments import Parameter, parameters
from warpdesk_server.kernels.gpu.compile import describe, sources
from warpdesk_server.kernels.gpu.contract import Device, Times
from warpdesk_server.kernels.gpu.cubins import CubinCounts
from warpdesk_server.kernels.gpu.cupy_device import CupyDevice, open_device
from warpdesk_server.kernels.gpu.faults import (
    CompileFailed,
    DeviceFault,
    DeviceLost,
    LaunchFailed,
    NoDevice,
    OutOfMemory,
    fault,
)
from warpdesk_server.kernels.gpu.nvrtc import CompileError
from warpdesk_server.kernels.gpu.private import private_memory
from warpdesk_server.kernels.gpu.source import Source, inline
from warpdesk_server.kernels.gpu.staging import PIECE
from warpdesk_server.kernels.operation import Grid

SOURCES = [pytest.param(source, id=describe(source)) for _, source in sources()]


# ---------------------------------------------------------------- sources


def test_headers_are_inlined_once_with_marks_and_macros_defined(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        '// text\n#include "device/types.cuh"\n#include "device/types.cuh"\n#include "device/sync.cuh"\nREAL last;\n'
    )
    text = inline(Source(path, {"REAL": "f32", "TILE": 16}))
    assert text.startswith('#define REAL f32\n#define TILE 16\n#line 1 "k.cu"\n// text\n#line 1 "device/types.cuh"\n')
    assert text.count("typedef unsigned int u32;") == 1
    assert "#include" not in text
    assert re.search(r'#line 5 "k\.cu"\s+REAL last;\n$', text)


@pytest.mark.parametrize("what", ["<cstdint>", '"device/../secret.cuh"', '"philox.cuh"', "<cooperative_groups.h>"])
def test_a_kernel_includes_only_our_device_headers(tmp_path: Path, what: str) -> None:
    path = tmp_path / "k.cu"
    path.write_text(f"\n#include {what}\n")
    with pytest.raises(ValueError, match=re.escape(f"k.cu:2 includes {what}")):
        inline(Source(path))


@pytest.mark.parametrize("source", SOURCES)
def test_parameters_read_from_the_text_are_those_a_compiler_sees(source: Source) -> None:
    module = load(compile_source(source))
    for name, entry in module.kernels.items():
        read, actual = parameters(inline(source), name), deduced(entry)
        assert read is not None, name
        assert [_blurred(one, two) for one, two in zip(read, actual, strict=True)] == list(read), name
        assert any(one.kind for one in read), name


def _blurred(read: Parameter, actual: Parameter) -> Parameter:
    """What the compiler saw, without what the text left open."""
    if actual.kind == "p" and read.kind == "p" and not read.pointee:
        return Parameter("p", 8)
    return actual if read.kind else Parameter("", 0)


def test_parameters_follow_macros_and_typedefs_and_skip_comments() -> None:
    text = """
    #define REAL f32
    typedef REAL real; using word = unsigned long long;
    // extern "C" __global__ void k(int old) {
    extern "C" __global__ void __launch_bounds__(256, 2) k(
        const real* __restrict__ in,  // (n, m)
        Unknown* out, const word key, i32 n, unsigned int m, Unknown last) {
    }
    """
    assert parameters(text, "k") == (
        Parameter("p", 8, "f", 4),
        Parameter("p", 8),
        Parameter("u", 8),
        Parameter("i", 4),
        Parameter("u", 4),
        Parameter("", 0),
    )
    assert parameters(text + "__global__ void k(int other) {}", "k") is None
    assert parameters(text + "using word = u32;", "k")[2] == Parameter("", 0)
    assert parameters(text, "kk") is None


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (2, OutOfMemory),
        (1, LaunchFailed),
        (9, LaunchFailed),
        (209, LaunchFailed),
        *((code, LaunchFailed) for code in range(300, 305)),
        (701, LaunchFailed),
        (720, LaunchFailed),
        (801, LaunchFailed),
        (912, LaunchFailed),
        (214, DeviceLost),
        (700, DeviceLost),
        (702, DeviceLost),
        (710, DeviceLost),
        *((code, DeviceLost) for code in range(714, 720)),
        (3, DeviceLost),
        (46, DeviceLost),
        (400, DeviceLost),
        (600, DeviceLost),
        (802, DeviceLost),
        (810, DeviceLost),
        (911, DeviceLost),
        (999, DeviceLost),
    ],
)
def test_a_fault_is_told_by_its_number(code: int, kind: type[DeviceFault]) -> None:
    found = fault(code, "text says nothing")
    assert type(found) is kind
    assert found.code == code


# ---------------------------------------------------------------- opening a GPU


def test_without_cupy_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(NoDevice, match="CuPy cannot be imported: "):
        open_device()


@pytest.mark.parametrize(
    ("facts", "index", "reason", "code"),
    [
        ({"driver_error": 35}, 0, "CUDA finds no device: error 35", 35),
        ({"devices": 0}, 0, "there is no device 0: CUDA sees 0", 101),
        ({"devices": 2}, 2, "there is no device 2: CUDA sees 2", 101),
        ({"architecture": 61}, 0, "Pretended is of architecture sm_61; the kernels need sm_70 or later", None),
        ({"nvrtc": None}, 0, "NVRTC is not installed", None),
        (
            {"nvrtc": "13.5.1"},
            0,
            "the driver knows CUDA 12.9 and cannot load what NVRTC 13.5.1 makes: it takes a driver of CUDA 13, or "
            "NVRTC of CUDA 12",
            None,
        ),
        (
            {"compile_error": True},
            0,
            "device 0 failed its first kernel: canary.cu could not be compiled on Pretended: nvrtc: error: invalid",
            None,
        ),
        (
            {"broken_module": RuntimeError("what CuPy likes")},
            0,
            "device 0 failed its first kernel: canary.cu could not be compiled on Pretended: what CuPy likes",
            None,
        ),
        ({"launch_error": 209}, 0, "device 0 failed its first kernel: Pretended: error 209", 209),
        ({"sync_error": 700}, 0, "device 0 failed its first kernel: Pretended: error 700", 700),
        (
            {"memory": 100},
            0,
            "device 0 failed its first kernel: out of memory: needed 67584 bytes, free 90 of 90 bytes",
            2,
        ),
        ({"wrong": True}, 0, "Pretended computes wrongly: 67584 of 67584 known answers in words, the first", -1),
    ],
)
def test_a_gpu_that_cannot_be_used_is_no_device_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, facts: Any, index: int, reason: str, code: int | None
) -> None:
    pretend(monkeypatch, tmp_path, **facts)
    with pytest.raises(NoDevice, match=re.escape(reason)) as error:
        open_device(index)
    assert error.value.code == code


# ---------------------------------------------------------------- using a GPU


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[CupyDevice, Machine]:
    machine = pretend(monkeypatch, tmp_path)
    return open_device(), machine


def test_an_opened_gpu_says_what_it_is(gpu: tuple[CupyDevice, Machine]) -> None:
    device, _ = gpu
    assert (device.name, device.architecture, device.multiprocessors) == ("Pretended", "sm_90", 132)


def test_a_driver_of_cuda_13_takes_what_nvrtc_12_makes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, tmp_path, driver=13000, nvrtc="12.9.86")
    assert open_device().architecture == "sm_90"


def test_a_second_process_finds_what_the_first_compiled_and_asks_nvrtc_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for expected in (CubinCounts(compiled=2, found=0, nvrtc_calls=2), CubinCounts(compiled=0, found=2, nvrtc_calls=0)):
        pretend(monkeypatch, tmp_path)
        device = open_device()
        device.kernel(sound.SOURCE, "scale")
        device.kernel(sound.SOURCE, "reverse")
        assert device.cubins.counts == expected


def test_a_gpu_works_where_compiled_kernels_cannot_be_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cubins").touch()
    pretend(monkeypatch, tmp_path)
    device = open_device()
    device.kernel(sound.SOURCE, "scale")
    device.kernel(sound.SOURCE, "reverse")
    assert device.cubins.counts == CubinCounts(compiled=2, found=0, nvrtc_calls=2)


def test_kernels_launch_through_cupy_with_our_options_and_are_compiled_once(gpu: tuple[CupyDevice, Machine]) -> None:
    device, machine = gpu
    given = np.arange(64, dtype=np.float32)
    out = device.empty(64, np.float32)
    for _ in range(2):
        device.kernel(sound.SOURCE, "reverse")((1,), (64,), (device.to_device(given), out), shared_mem=256)
    assert device.to_host(out).tolist() == given[::-1].tolist()
    options = ("--std=c++17", "--fmad=false", "-ftz=true", "--device-as-default-execution-space")
    assert machine.compiled == [("canary.cu", "sm_90", options), (sound.SOURCE.path.name, "sm_90", options)]
    assert machine.launches[-1] == ("reverse", (1,), (64,), 256)
    times = device.times()
    assert times.kernel > 0
    assert times.copy == times.up.seconds + times.down.seconds > 0
    assert (times.up.nbytes, times.down.nbytes) == (2 * 256, 256)
    assert device.times() == Times()


def test_arguments_are_checked_before_cupy_sees_them(gpu: tuple[CupyDevice, Machine]) -> None:
    device, machine = gpu
    words = device.zeros(4, np.float64)
    before = len(machine.launches)
    scale = device.kernel(sound.SOURCE, "scale")
    for factor, message in ((2.0, "must be a NumPy scalar, got float"), (np.float32(2), "got numpy.float32")):
        with pytest.raises(TypeError, match=message):
            scale((1,), (4,), (words, words, factor, np.uint32(4)))
    with pytest.raises(TypeError, match="points to a float of 8 bytes, got float32"):
        scale((1,), (4,), (words, device.zeros(4, np.float32), np.float64(2), np.uint32(4)))
    assert len(machine.launches) == before


def test_an_empty_grid_is_refused_where_cupy_would_launch_one_block(gpu: tuple[CupyDevice, Machine]) -> None:
    device, _ = gpu
    words = device.zeros(4, np.float64)
    with pytest.raises(LaunchFailed, match=r"a grid \(0,\) of blocks \(4,\) cannot be launched"):
        device.kernel(sound.SOURCE, "scale")((0,), (4,), (words, words, np.float64(2), np.uint32(4)))


def test_running_out_of_memory_says_how_much_was_needed_and_free(gpu: tuple[CupyDevice, Machine]) -> None:
    device, _ = gpu
    kept = device.zeros(1000, np.float64)
    for allocate in (
        lambda: device.empty((1024, 1024), np.float64),
        lambda: device.zeros(1 << 20, np.float64),
        lambda: device.to_device(np.zeros(1 << 20)),
    ):
        with pytest.raises(OutOfMemory, match=r"needed 8388608 bytes, free 9\d{5} of 943718 bytes") as error:
            allocate()
        assert error.value.code == 2
    assert kept.size == 1000


def test_a_host_without_memory_is_no_fault_of_the_device(
    gpu: tuple[CupyDevice, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, _ = gpu
    words = device.zeros(4, np.float64)

    def full(*_: Any) -> None:
        raise MemoryError("the host's")

    with monkeypatch.context() as host:
        host.setattr(np, "empty", full)
        with pytest.raises(MemoryError, match="the host's"):
            device.to_host(words)


def test_a_fault_of_a_kernel_appears_at_the_next_wait_with_its_kind(gpu: tuple[CupyDevice, Machine]) -> None:
    device, machine = gpu
    words = device.zeros(4, np.float64)
    machine.sync_error = 700
    for wait in (lambda: device.to_host(words), device.times, lambda: device.to_device(np.zeros(3))):
        with pytest.raises(DeviceLost, match="Pretended: error 700") as error:
            wait()
        assert error.value.code == 700


@pytest.mark.parametrize("raised", [CompileError("NVRTC 12.9: error"), OSError(28, "No space left on device")])
def test_a_kernel_that_cannot_be_compiled_is_a_fault_of_the_device_and_the_next_one_may_be(
    gpu: tuple[CupyDevice, Machine], raised: Exception
) -> None:
    device, machine = gpu
    machine.broken_module = raised
    with pytest.raises(CompileFailed, match=f"could not be compiled on Pretended: {re.escape(str(raised))}"):
        device.kernel(sound.SOURCE, "scale")
    machine.broken_module = None
    device.kernel(sound.SOURCE, "scale")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(700, DeviceLost), (209, LaunchFailed), (300, LaunchFailed), (2, OutOfMemory), (12345, DeviceLost)],
)
def test_what_cuda_says_while_a_kernel_is_loaded_keeps_its_kind(
    gpu: tuple[CupyDevice, Machine], status: int, kind: type[DeviceFault]
) -> None:
    device, machine = gpu
    machine.broken_module = CUDADriverError(status)
    with pytest.raises(kind) as error:
        device.kernel(sound.SOURCE, "scale")
    assert error.value.code == status


def test_opening_raises_nothing_but_no_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = pretend(monkeypatch, tmp_path)
    broken = AttributeError("module 'cupy' has no attribute 'function'")
    monkeypatch.setattr(CupyDevice, "check", lambda _: (_ for _ in ()).throw(broken))
    with pytest.raises(NoDevice, match="device 0 cannot be opened: AttributeError: module 'cupy' has no"):
        open_device()
    assert machine.devices == 1


def test_a_source_is_read_once_in_the_life_of_a_device(gpu: tuple[CupyDevice, Machine], tmp_path: Path) -> None:
    device, machine = gpu
    source = Source(tmp_path / "edited.cu")
    source.path.write_text(sound.SOURCE.path.read_text())
    scale, compiled = device.kernel(source, "scale"), len(machine.compiled)
    source.path.write_text("an edit that does not compile")
    assert device.kernel(Source(source.path), "scale") is scale
    device.kernel(source, "reverse")
    assert len(machine.compiled) == compiled


def test_forgetting_leaves_nothing_of_what_went_up_or_came_down(gpu: tuple[CupyDevice, Machine]) -> None:
    device, machine = gpu
    device.to_host(device.to_device(np.full(3, 2.0)))
    assert _left(machine) > 0
    device.forget()
    assert (_left(machine), machine.pool.kept()) == (0, b"")


def _left(machine: Machine) -> int:
    """Bytes of 2.0, whose first is 0x40, in the staging buffers."""
    return sum(int(np.count_nonzero(buffer == 0x40)) for buffer in machine.pinned)


@pytest.mark.parametrize("pinnable", [True, False])
@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5])
def test_copies_of_any_size_go_through_two_buffers_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int, pinnable: bool
) -> None:
    machine = pretend(monkeypatch, tmp_path, memory=64 << 20, pinnable=pinnable)
    device = open_device()
    given = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    array = device.to_device(given)
    assert machine.stream.done, "the copy is there, and its time is known"
    kept = given.copy()
    given[:] = 0  # the caller may do what it likes with it
    np.testing.assert_array_equal(device.to_host(array), kept)
    np.testing.assert_array_equal(device.to_host(array[size // 3 :: 2]), kept[size // 3 :: 2])
    assert len(machine.pinned) == (0 if not pinnable else 2 if size > PIECE else 1)


def test_work_of_any_thread_is_on_a_stream_of_its_own_lane_and_on_the_devices_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = pretend(monkeypatch, tmp_path, devices=2)
    device = open_device(1)
    machine.streams.clear()
    words = device.to_device(np.arange(4.0))

    def scale(index: int) -> None:
        with device.lane(index) if index else nullcontext():
            twice = device.zeros(4, np.float64)
            device.kernel(sound.SOURCE, "scale")((1,), (4,), (words, twice, np.float64(2), np.uint32(4)))
            assert device.to_host(twice).tolist() == [0.0, 2.0, 4.0, 6.0]

    scale(0)
    for index in (0, 1, 1):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(scale, index).result()
    first, foreign, lane, again = machine.streams
    assert first is foreign
    assert lane is again
    assert len({0, first.number, lane.number}) == 3, "neither on the default stream nor on the other's"


def test_work_goes_to_its_lane_after_a_library_has_used_a_stream_of_its_own(gpu: tuple[CupyDevice, Machine]) -> None:
    device, machine = gpu
    words = device.zeros(4, np.float64)
    with device._cupy.cuda.Stream(non_blocking=True):
        pass
    machine.streams.clear()
    device.kernel(sound.SOURCE, "scale")((1,), (4,), (words, words, np.float64(2), np.uint32(4)))
    assert [stream is device._lanes[0].stream for stream in machine.streams] == [True]


def test_a_lane_begins_after_what_was_prepared_for_it_and_ends_with_its_faults(
    gpu: tuple[CupyDevice, Machine],
) -> None:
    device, machine = gpu
    words = device.zeros(4, np.float64)  # not done yet: nobody waited
    with device.lane(1):
        assert device.to_host(words).tolist() == [0.0] * 4
    machine.sync_error = 719
    with pytest.raises(DeviceLost, match="in scale"), device.lane(1):
        device.kernel(sound.SOURCE, "scale")((1,), (4,), (words, words, np.float64(2), np.uint32(4)))


def test_a_lane_does_not_wait_for_what_lane_0_is_given_after_it_was_asked_for(
    gpu: tuple[CupyDevice, Machine],
) -> None:
    device, _ = gpu
    later, lane = device.empty(4, np.float64), device.lane(1)
    later.fill(3.0)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_enter, lane).result()
    assert not device._lanes[0].stream.done
    assert device.to_host(later).tolist() == [3.0] * 4


def _enter(lane: AbstractContextManager[None]) -> None:
    with lane:
        pass


@pytest.mark.parametrize(("cores", "piece"), [(1, PIECE), (3, 1024)])
def test_parts_in_two_lanes_are_whole_and_leave_nothing_private_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores: int, piece: int
) -> None:
    machine = pretend(monkeypatch, tmp_path, memory=3 << 20)
    monkeypatch.setattr(staging, "PIECE", piece)
    monkeypatch.setattr("warpdesk_server.kernels.gpu.cupy_device.cores", lambda _: cores)
    device = open_device()
    device.forget()
    machine.streams.clear()
    monkeypatch.setattr(chunks, "PART", 12_000)
    given, found = np.full((24, 200), 2.0), np.empty((24, 200))
    runs_out, both = iter([False, True] + [False] * 100), threading.Barrier(2)

    def work(first: int, end: int) -> None:
        with private_memory(device) as memory:
            part, out = memory.to_device(given[first:end]), memory.empty((end - first, 200), np.float64)
            arguments = part, out, np.float64(2), np.uint32(part.size)
            device.kernel(sound.SOURCE, "scale")((-(-part.size // 64),), (64,), arguments)
            if first < 8:
                with suppress(threading.BrokenBarrierError):
                    both.wait(1)  # the first two parts are there at a time
            if next(runs_out):
                memory.empty(1 << 20, np.float64)
            device.to_host(out, found[first:end])

    chunks.run(device, Grid(24, 2 * 200 * 8), work, overlap=True)
    np.testing.assert_array_equal(found, given * 2)
    assert len(set(machine.streams)) == 2
    assert device.memory.used() == 0
    device.times()  # waits, as every job does in the end
    kept = machine.pool.kept()
    assert len(kept) > 5_000
    assert b"\x40" not in kept, "the first byte of 2.0"
    device.forget()
    assert (_left(machine), machine.pool.kept()) == (0, b"")


def test_times_are_of_all_lanes(gpu: tuple[CupyDevice, Machine]) -> None:
    device, _ = gpu
    with device.lane(1):
        words = device.to_device(np.arange(4.0))
        device.kernel(sound.SOURCE, "scale")((1,), (4,), (words, words, np.float64(2), np.uint32(4)))
    times = device.times()
    assert times.copy > 0
    assert times.kernel > 0
    assert device.times() == Times()


def test_a_lost_device_names_the_kernels_that_may_have_done_it(gpu: tuple[CupyDevice, Machine]) -> None:
    device, machine = gpu
    words = device.zeros(4, np.float64)
    arguments = (words, words, np.float64(2), np.uint32(4))
    scale = device.kernel(sound.SOURCE, "scale")
    scale((1,), (4,), arguments)
    device.to_host(words)  # the first launch is seen to end
    scale((1,), (4,), arguments)
    machine.sync_error = 700
    with pytest.raises(DeviceLost, match=r"^Pretended: error 700, in scale$") as error:
        device.to_host(words)
    assert (error.value.kernel, error.value.suspects) == ("scale", ("scale",))
    reverse = device.kernel(sound.SOURCE, "reverse")
    reverse((1,), (2,), (device.zeros(2, np.float32), device.empty(2, np.float32)), 8)
    with pytest.raises(DeviceLost, match=r"in one of scale, reverse$") as error:
        device.to_host(words)
    assert (error.value.kernel, error.value.suspects) == ("scale", ("scale", "reverse"))


def test_suspects_of_all_lanes_are_in_the_order_of_their_launches(gpu: tuple[CupyDevice, Machine]) -> None:
    device, machine = gpu
    words, floats = device.zeros(4, np.float64), device.zeros(4, np.float32)
    scale, reverse = (device.kernel(sound.SOURCE, name) for name in ("scale", "reverse"))
    with pytest.raises(DeviceLost) as error, device.lane(1):  # noqa: PT012 (the end of the lane raises)
        reverse((1,), (4,), (floats, floats), 16)
        with ThreadPoolExecutor(1) as lane_0:
            lane_0.submit(scale, (1,), (4,), (words, words, np.float64(2), np.uint32(4))).result()
        machine.sync_error = 700
    assert error.value.suspects == ("reverse", "scale")


def test_a_kernel_that_was_seen_to_end_is_not_suspected(gpu: tuple[CupyDevice, Machine]) -> None:
    device, machine = gpu
    words, floats = device.zeros(4, np.float64), device.zeros(4, np.float32)
    device.kernel(sound.SOURCE, "scale")((1,), (4,), (words, words, np.float64(2), np.uint32(4)))
    reverse = device.kernel(sound.SOURCE, "reverse")
    with pytest.raises(DeviceLost) as error, device.lane(1):  # noqa: PT012 (the end of the lane raises)
        device.to_host(words)  # after what the other lane was given before this one began
        reverse((1,), (4,), (floats, floats), 16)
        machine.sync_error = 700
    assert error.value.suspects == ("reverse",)


def test_a_refused_launch_names_its_kernel_and_a_copy_that_fails_none(gpu: tuple[CupyDevice, Machine]) -> None:
    device, machine = gpu
    words, floats = device.zeros(4, np.float64), device.zeros(4, np.float32)
    device.kernel(sound.SOURCE, "reverse")((1,), (4,), (floats, floats), 16)
    machine.launch_error = 701
    with pytest.raises(LaunchFailed, match=r"^Pretended: error 701$") as refused:
        device.kernel(sound.SOURCE, "scale")((1,), (4,), (words, words, np.float64(2), np.uint32(4)))
    assert refused.value.suspects == ("scale",)
    device.times()
    machine.sync_error = 700
    with pytest.raises(DeviceLost) as lost:
        device.to_device(np.zeros(3))
    assert lost.value.kernel is None


def test_a_block_may_have_more_than_48_kib_of_shared_memory_where_the_gpu_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = pretend(monkeypatch, tmp_path, static_shared=1024)
    device = open_device()
    assert device.shared_memory == 232_448
    reverse = device.kernel(sound.SOURCE, "reverse")
    assert reverse.registers == 40
    assert reverse.blocks_per_multiprocessor(256) == 8
    for dynamic, allowed in ((48_128, {}), (60_000, {"reverse": 231_424}), (50_000, {"reverse": 231_424})):
        reverse((1,), (64,), (device.empty(64, np.float32), device.empty(64, np.float32)), shared_mem=dynamic)
        assert machine.allowed == allowed
    with pytest.raises(LaunchFailed, match="reverse: 231425 bytes of dynamic shared memory, Pretended allows 231424"):
        reverse.blocks_per_multiprocessor(64, 231_425)


@pytest.mark.parametrize("play", sound.SOUND.values(), ids=sound.SOUND)
def test_sound_kernels_are_right_through_cupy_whose_work_is_put_off(gpu: tuple[CupyDevice, Machine], play: Any) -> None:
    play(gpu[0])


# ---------------------------------------------------------------- the memory of a GPU


@pytest.mark.parametrize(
    ("setting", "limit"), [("", 1_887_436), ("0.5", 1_048_576), ("1", 2_097_152), ("786432", 786_432), ("6e5", 600_000)]
)
def test_a_process_takes_no_more_of_a_gpu_than_its_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, limit: int
) -> None:
    machine = pretend(monkeypatch, tmp_path, memory=2 << 20)
    device = open_device(0, setting)
    device.forget()  # the canary's
    assert device.memory.report().limit == device.memory.room() == limit
    kept = device.empty(limit // 512 * 512, np.uint8)
    with pytest.raises(OutOfMemory, match=rf"needed 512 bytes, free {limit % 512} of {limit} bytes"):
        device.empty(512, np.uint8)
    assert machine.pool.total_bytes() == kept.size


@pytest.mark.parametrize("setting", ["-1", "0", "2e6", "half", "nan"])
def test_a_limit_that_cannot_be_is_told_with_what_can(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str
) -> None:
    pretend(monkeypatch, tmp_path)
    with pytest.raises(NoDevice, match=f"a number of bytes up to 1048576, or a share above 0.*got '{setting}'"):
        open_device(0, setting)


def test_a_report_tells_what_is_used_and_held_and_what_other_processes_leave(
    gpu: tuple[CupyDevice, Machine],
) -> None:
    device, machine = gpu
    device.forget()  # the canary's memory
    first, second = device.empty(10_000, np.uint8), device.empty(1, np.uint8)
    del first
    report = device.memory.report()
    assert (report.used, report.held, report.limit) == (second.size * 512, 10_752, 943_718)
    assert report.peak > 67_584 * 6, "the canary's"
    assert device.memory.room() == 943_718 - 512
    machine.others = 1_000_000
    assert device.memory.room() == 48_576 - 512
    assert device.memory.short(100_000)
    assert not device.memory.short(40_000)
    assert not device.memory.short(2_000_000), "that is the limit's doing"


def test_what_a_job_left_behind_is_named(gpu: tuple[CupyDevice, Machine]) -> None:
    device, machine = gpu
    kept = []
    device.forget()
    with device.memory.job() as account:
        workspace = device.zeros((4, 8), np.float64)
        kept.append(device.to_device(np.zeros(3))[1:])
        machine.allocate(700)  # what a library takes and gives back
        del workspace
    assert [str(block) for block in account.left] == ["float64 (3,) in 512 bytes"]
    assert (account.before, account.after, account.peak) == (0, 512, 512 + 512 + 1024)
    kept.clear()
    with device.memory.job() as account:
        device.to_host(device.to_device(np.zeros(3)))
    assert (account.left, account.after) == ((), 0)


def test_a_part_of_a_block_that_is_in_use_keeps_the_rest_stuck(gpu: tuple[CupyDevice, Machine]) -> None:
    device, _ = gpu
    device.forget()
    kept = []
    with device.memory.job():
        whole = device.empty(8192, np.uint8)
        del whole
        kept.append(device.empty(512, np.uint8))  # a part of the same block
    report = device.memory.report()
    assert (report.used, report.held, report.stuck) == (512, 8192, 7680)
    kept.append(device.empty(7680, np.uint8))
    assert device.memory.report().stuck == 0, "it is of use again"
    kept.clear()
    device.memory.release()
    assert device.memory.report().held == device.memory.report().stuck == 0


def test_a_refused_launch_leaves_the_device_usable(gpu: tuple[CupyDevice, Machine]) -> None:
    device, machine = gpu
    words = device.zeros(4, np.float64)
    arguments = (words, words, np.float64(2), np.uint32(4))
    machine.launch_error = 701
    with pytest.raises(LaunchFailed) as error:
        device.kernel(sound.SOURCE, "scale")((1,), (4,), arguments)
    assert error.value.code == 701
    machine.launch_error = None
    device.kernel(sound.SOURCE, "scale")((1,), (4,), arguments)
    assert device.to_host(words).tolist() == [0.0] * 4


# ---------------------------------------------------------------- on every device there is


def test_the_canary_answers_what_is_known(device: Device) -> None:
    canary.check(device)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32", "uint64", "uint32", "uint8"])
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (2, 0, 4)])
def test_arrays_come_back_as_they_went(device: Device, shape: tuple[int, ...], dtype: str) -> None:
    array = (np.arange(np.prod(shape)).reshape(shape) * 3).astype(dtype)
    array.flags.writeable = False
    back = device.to_host(device.to_device(array))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(back, array)
    np.testing.assert_array_equal(device.to_host(device.zeros(shape, dtype)), np.zeros(shape, dtype))
    assert device.to_host(device.empty(shape, dtype)).shape == shape


@pytest.mark.parametrize("play", sound.SOUND.values(), ids=sound.SOUND)
def test_sound_kernels_are_right(device: Device, play: Any) -> None:
    play(device)


def test_a_large_array_comes_back_as_it_went(device: Device) -> None:
    given = np.random.default_rng(9).integers(0, 256, 3 * PIECE + 5, np.uint8)
    array = device.to_device(given)
    np.testing.assert_array_equal(device.to_host(array), given)
    np.testing.assert_array_equal(device.to_host(array[PIECE - 1 : 2 * PIECE + 1]), given[PIECE - 1 : 2 * PIECE + 1])


def test_overlapping_parts_are_as_good_as_one(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "PART", 1 << 16)
    given = np.random.default_rng(3).standard_normal((64, 1024))
    found = np.empty_like(given)
    scale = device.kernel(sound.SOURCE, "scale")

    def work(first: int, end: int) -> None:
        part = device.to_device(given[first:end])
        scale((part.size // 128,), (128,), (part, part, np.float64(2), np.uint32(part.size)))
        found[first:end] = device.to_host(part)

    with device.memory.job() as account:
        chunks.run(device, Grid(64, 8 * 1024), work, overlap=True)
    np.testing.assert_array_equal(found, given * 2)
    assert account.left == ()
    assert account.after == account.before
    assert account.peak > account.before


def test_what_is_kept_is_on_the_account_until_it_goes(device: Device) -> None:
    kept = []
    with device.memory.job() as account:
        kept.append(device.zeros((3, 1000), np.float64).reshape(-1)[5:])
    (block,) = account.left
    assert block.what == "float64 (3, 1000)"
    assert account.after - account.before == block.nbytes >= 24_000
    kept.clear()
    with device.memory.job() as account:
        pass
    assert (account.left, account.after) == ((), account.before)
    report = device.memory.report()
    assert report.used <= report.held <= report.limit


def test_more_than_the_limit_is_out_of_memory_and_the_device_works_on(device: Device) -> None:
    with pytest.raises(OutOfMemory, match=f"needed {device.memory.limit + 1} bytes"):
        device.empty(device.memory.limit + 1, np.uint8)
    canary.check(device)


def test_a_kernel_tells_how_many_blocks_of_it_fit_and_takes_the_shared_memory_there_is(device: Device) -> None:
    reverse = device.kernel(sound.SOURCE, "reverse")
    assert reverse.blocks_per_multiprocessor(64) >= reverse.blocks_per_multiprocessor(64, 60_000) >= 1
    given, out = device.to_device(np.arange(64, dtype=np.float32)), device.empty(64, np.float32)
    reverse((1,), (64,), (given, out), device.shared_memory)
    assert device.to_host(out).tolist() == list(range(63, -1, -1))
    with pytest.raises(LaunchFailed, match="bytes of dynamic shared memory") as error:
        reverse((1,), (64,), (given, out), device.shared_memory + 1)
    assert error.value.kernel == "reverse"
