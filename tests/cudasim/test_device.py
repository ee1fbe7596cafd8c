"""The emulated device refuses what a GPU would take and garble, and computes what CUDA's words mean."""

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cudasim import sound
from tests.cudasim.build import CompileError
from tests.cudasim.device import CAN_FLUSH, FINITE, EmulatedDevice
from tests.cudasim.scenes import DEFECTS
from warpdesk_server.kernels.gpu.contract import Times
from warpdesk_server.kernels.gpu.faults import LaunchFailed, OutOfMemory
from warpdesk_server.kernels.gpu.source import Source

ROOT = Path(__file__).resolve().parents[2]


def compiled(tmp_path: Path, text: str, name: str = "k", **defines: int | str) -> Any:
    path = tmp_path / "text.cu"
    path.write_text(text)
    device = EmulatedDevice()
    return device, device.kernel(Source(path, defines), name)


# ---------------------------------------------------------------- arguments


def typed(**changed: Any) -> None:
    device = EmulatedDevice()
    arguments: dict[str, Any] = {
        "in": device.zeros(4, np.float32),
        "out": device.zeros(4, np.float32),
        "factor": np.float32(2),
        "n": np.int32(4),
        "seed": np.uint64(1),
    }
    for name, make in changed.items():
        arguments[name.rstrip("_")] = make(device)
    device.kernel(DEFECTS, "typed")((1,), (4,), tuple(arguments.values()))


def test_arguments_of_the_exact_types_are_taken() -> None:
    typed()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"factor": lambda _: np.float64(2)}, "argument 2 of typed is a float of 4 bytes, got numpy.float64"),
        ({"factor": lambda _: 2.0}, "argument 2 of typed must be a NumPy scalar, got float 2.0"),
        ({"n": lambda _: np.int64(4)}, "argument 3 of typed is a signed integer of 4 bytes, got numpy.int64"),
        ({"n": lambda _: np.uint32(4)}, "argument 3 of typed is a signed integer of 4 bytes, got numpy.uint32"),
        ({"n": lambda _: 4}, "argument 3 of typed must be a NumPy scalar, got int 4"),
        ({"n": lambda _: True}, "argument 3 of typed must be a NumPy scalar, got bool True"),
        ({"out": lambda d: d.zeros(4, np.float64)}, "argument 1 of typed points to a float of 4 bytes, got float64"),
        ({"out": lambda d: d.zeros(4, np.uint32)}, "argument 1 of typed points to a float of 4 bytes, got uint32"),
        ({"out": lambda _: np.zeros(4, np.float32)}, "argument 1 of typed is a pointer, got ndarray"),
        ({"out": lambda _: np.float32(4)}, "argument 1 of typed is a pointer, got float32"),
        ({"out": lambda d: d.zeros((4, 2), np.float32)[:, 0]}, "argument 1 of typed: the array of shape .* contiguous"),
        ({"more": lambda _: np.int32(0)}, "typed takes 5 arguments, got 6"),
    ],
)
def test_an_argument_of_another_type_is_a_type_error(changed: dict[str, Callable[..., Any]], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        typed(**changed)


# ---------------------------------------------------------------- launches


@pytest.mark.parametrize(
    ("grid", "block", "shared_mem", "message"),
    [
        ((0,), (32,), 0, "cannot be launched"),
        ((1,), (0,), 0, "cannot be launched"),
        ((1, 65_536), (32,), 0, "cannot be launched"),
        ((), (32,), 0, "1 to 3 dimensions"),
        ((1,), (33,), 0, "block .* has 33 threads, allowed are 32"),
        ((1,), (32,), 65_537, "65537 bytes of dynamic shared memory, allowed are 65536"),
    ],
)
def test_a_launch_that_cuda_would_refuse_is_refused(
    grid: tuple[int, ...], block: tuple[int, ...], shared_mem: int, message: str
) -> None:
    device = EmulatedDevice()
    words = device.zeros(64, np.uint32)
    with pytest.raises(LaunchFailed, match=message):
        device.kernel(DEFECTS, "bounded")(grid, block, (words, words), shared_mem)


def test_an_unknown_kernel_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(LaunchFailed, match=r"sound.cu has no kernel 'sum'; it has scale, block_sum"):
        EmulatedDevice().kernel(sound.SOURCE, "sum")


def test_a_wait_without_nanosleep_is_given_up_after_the_limit() -> None:
    # In a process of its own, since nobody can end the spinning thread.
    text = """
import numpy, pathlib, tempfile
from warpdesk_server.kernels.gpu.source import Source
from tests.cudasim.device import EmulatedDevice, KernelDefect
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "spin.cu"
    path.write_text('extern "C" __global__ void spin(volatile unsigned* flag) { while (*flag == 0) {} }')
    device = EmulatedDevice(limit=1)
    try:
        device.kernel(Source(path), "spin")((1,), (1,), (device.zeros(1, numpy.uint32),))
    except KernelDefect as defect:
        print(defect.code, defect)
"""
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("702 spin still runs after 1 s: a loop that waits without __nanosleep")


def test_launches_from_several_host_threads_do_not_disturb_each_other() -> None:
    failures = []

    def many() -> None:
        try:
            for _ in range(5):
                for play in sound.SOUND.values():
                    play(EmulatedDevice("random"))
        except Exception as error:  # noqa: BLE001 (handed to the test's own thread)
            failures.append(error)

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_copies_and_kernels_are_timed_apart_and_counted_once() -> None:
    device = EmulatedDevice()
    sound.scale(device)
    times = device.times()
    assert times.copy > 0
    assert times.kernel > 0
    assert times.up.nbytes > 0
    assert times.down.nbytes > 0
    assert device.times() == Times()


# ---------------------------------------------------------------- memory


def test_fresh_memory_holds_no_number_anyone_could_rely_on() -> None:
    device = EmulatedDevice()
    assert np.isnan(device.to_host(device.empty(100, np.float64))).all()
    assert (device.to_host(device.empty((2, 3), np.int32)) == -1).all()
    assert (device.to_host(device.zeros((2, 3), np.int32)) == 0).all()


def test_fresh_memory_holds_the_pattern_that_was_asked_for() -> None:
    device = EmulatedDevice(poison=FINITE)
    assert (device.to_host(device.empty((2, 3), np.int32)) == 0x5A5A5A5A).all()
    assert np.isfinite(device.to_host(device.empty(100, np.float32))).all()
    assert (device.to_host(device.zeros((2, 3), np.int32)) == 0).all()


def test_the_peak_is_the_most_that_was_allocated_at_a_time() -> None:
    device = EmulatedDevice()
    first, second = device.empty(100, np.float64), device.zeros(25, np.int32)
    del first, second
    device.to_device(np.zeros(10))
    assert device.memory.peak == 900


def test_memory_runs_out_with_the_bytes_and_comes_back_when_arrays_die() -> None:
    device = EmulatedDevice(memory=1000)
    first = device.empty(100, np.float64)
    with pytest.raises(OutOfMemory, match="needed 400 bytes, free 200 bytes"):
        device.empty(100, np.float32)
    view = first[10:20]
    del first
    gc.collect()
    with pytest.raises(OutOfMemory):
        device.empty(100, np.float64)
    del view
    gc.collect()
    assert device.empty(100, np.float64).nbytes == 800


def test_a_device_array_becomes_a_host_array_only_through_to_host() -> None:
    device = EmulatedDevice()
    array = device.to_device(np.arange(6.0))
    with pytest.raises(TypeError, match="through device"):
        np.asarray(array)
    with pytest.raises(TypeError, match="take slices"):
        array[2]
    assert device.to_host(array.reshape(2, 3)[1]).tolist() == [3.0, 4.0, 5.0]


def test_an_empty_array_is_a_null_pointer() -> None:
    device = EmulatedDevice()
    assert device.to_host(device.to_device(np.empty((0, 3)))).shape == (0, 3)
    nothing = device.empty(0, np.float64)
    device.kernel(sound.SOURCE, "scale")((1,), (32,), (nothing, nothing, np.float64(1), np.uint32(0)))


# ---------------------------------------------------------------- what does not compile


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('extern "C" __global__ void k(double* x) { x[0] = exp(x[0]); }', "exp"),
        ('extern "C" __global__ void k(float* x) { atomicAdd(x, 1.0f); }', "deleted function"),
        ('extern "C" __global__ void k(int* x) { x[0] = lgamma; }', r"text\.cu:1:\d+: error"),
        ("__device__ void f() {}", "holds no __global__ function"),
    ],
)
def test_what_would_not_give_the_same_bytes_everywhere_does_not_compile(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(CompileError, match=message):
        compiled(tmp_path, text)


def test_compiled_kernels_are_kept_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPDESK_CUDASIM_CACHE", str(tmp_path / "cache"))
    text = 'extern "C" __global__ void k(int* x) { x[0] = VALUE; }'
    compiled(tmp_path, text, VALUE=1)
    compiled(tmp_path, text, VALUE=1)
    compiled(tmp_path, text, VALUE=2)
    assert len(list((tmp_path / "cache").glob("text-*.so"))) == 2


# ---------------------------------------------------------------- what CUDA's words mean

_WORDS = r"""
extern "C" __global__ void k(const unsigned* in, unsigned* out) {
    unsigned t = threadIdx.x, x = in[t], full = 0xFFFFFFFFu, n = 0;
    unsigned* row = out + t * COUNT;
    row[n++] = __shfl_sync(full, x, 5);
    row[n++] = __shfl_sync(full, x, 37);
    row[n++] = __shfl_sync(full, x, 3, 8);
    row[n++] = __shfl_up_sync(full, x, 3);
    row[n++] = __shfl_up_sync(full, x, 3, 8);
    row[n++] = __shfl_down_sync(full, x, 5);
    row[n++] = __shfl_down_sync(full, x, 5, 16);
    row[n++] = __shfl_xor_sync(full, x, 6);
    row[n++] = __ballot_sync(full, x & 1);
    row[n++] = __any_sync(full, x == in[7]);
    row[n++] = __all_sync(full, x != 1);
    row[n++] = __match_any_sync(full, x % 4);
    row[n++] = __syncthreads_count(x & 1);
    row[n++] = __syncthreads_or(x & 1);
    row[n++] = __syncthreads_and(x & 1);
    row[n++] = __popc(x);
    row[n++] = __clz((int)x);
    row[n++] = __ffs((int)x);
    row[n++] = __brev(x);
    row[n++] = __umulhi(x, 0x9E3779B9u);
    row[n++] = (unsigned)__mulhi((int)x, -1640531527);
    row[n++] = __funnelshift_l(x, in[(t + 1) % 32], 35);
    row[n++] = __funnelshift_r(x, in[(t + 1) % 32], 9);
    row[n++] = __byte_perm(x, in[(t + 1) % 32], 0x5271);
    row[n++] = (unsigned)(__umul64hi(x * 0x9E3779B97F4A7C15ull, 0xD1342543DE82EF95ull) >> 7);
    row[n++] = __float_as_uint(__uint_as_float(x & 0x7F7FFFFFu) * 0.5f);
}
"""


def _expected(x: list[int], t: int) -> list[int]:
    """The CUDA C++ Programming Guide and the CUDA Math API, written down once more in Python."""
    nxt = x[(t + 1) % 32]
    both = nxt << 32 | x[t]
    odd = [value & 1 for value in x]
    signed = x[t] - (x[t] >> 31 << 32)
    pool = x[t].to_bytes(4, "little") + nxt.to_bytes(4, "little")
    product = (x[t] * 0x9E3779B97F4A7C15 % 2**64) * 0xD1342543DE82EF95
    half = np.uint32(x[t] & 0x7F7FFFFF).view(np.float32) * np.float32(0.5)
    return [
        x[5],
        x[37 % 32],
        x[t // 8 * 8 + 3],
        x[t - 3] if t >= 3 else x[t],
        x[t - 3] if t % 8 >= 3 else x[t],
        x[t + 5] if t + 5 < 32 else x[t],
        x[t + 5] if t % 16 + 5 < 16 else x[t],
        x[t ^ 6],
        sum(bit << lane for lane, bit in enumerate(odd)),
        1,
        int(all(value != 1 for value in x)),
        sum(1 << lane for lane, value in enumerate(x) if value % 4 == x[t] % 4),
        sum(odd),
        int(any(odd)),
        int(all(odd)),
        x[t].bit_count(),
        32 - x[t].bit_length(),
        (x[t] & -x[t]).bit_length(),
        int(f"{x[t]:032b}"[::-1], 2),
        x[t] * 0x9E3779B9 >> 32,
        (signed * -1640531527 >> 32) % 2**32,
        (both << 3 >> 32) % 2**32,
        (both >> 9) % 2**32,
        int.from_bytes(bytes(pool[int(digit)] for digit in "1725"), "little"),
        (product >> 64 >> 7) % 2**32,
        int(half.view(np.uint32)),
    ]


def test_intrinsics_do_what_the_programming_guide_says(tmp_path: Path) -> None:
    words = np.random.default_rng(3).integers(0, 2**32, 32, dtype=np.uint32)
    words[4:6] = 0, 0xFFFFFFFF
    expected = np.array([_expected([int(word) for word in words], t) for t in range(32)], np.uint32)
    device, kernel = compiled(tmp_path, _WORDS, COUNT=expected.shape[1])
    out = device.empty(expected.shape, np.uint32)
    kernel((1,), (32,), (device.to_device(words), out))
    np.testing.assert_array_equal(device.to_host(out), expected)


def test_atomics_do_what_the_programming_guide_says(tmp_path: Path) -> None:
    text = """
extern "C" __global__ void k(unsigned* out, unsigned long long* wide) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x + 1;
    atomicAdd(&out[0], i);
    atomicSub(&out[1], i);
    atomicMin(&out[2], i);
    atomicMax(&out[3], i);
    atomicOr(&out[4], 1u << (i % 32));
    atomicAnd(&out[5], ~(1u << (i % 7)));
    atomicXor(&out[6], i);
    atomicInc(&out[7], 9u);
    atomicDec(&out[8], 9u);
    for (unsigned old = out[9], seen; (seen = atomicCAS(&out[9], old, old + 3)) != old; old = seen) {}
    atomicAdd(&wide[0], 0x100000001ull);
    atomicMax(&wide[1], (unsigned long long)i << 40);
    out[10 + i - 1] = i;
}
"""
    device, kernel = compiled(tmp_path, text)
    start = np.array([0, 0, 2**32 - 1, 0, 0, 2**32 - 1, 0, 0, 0, 0], np.uint32)
    out = device.to_device(np.concatenate([start, np.zeros(96, np.uint32)]))
    wide = device.zeros(2, np.uint64)
    kernel((3,), (32,), (out, wide))
    total = 96 * 97 // 2
    xor = int(np.bitwise_xor.reduce(np.arange(1, 97)))
    assert device.to_host(out)[:10].tolist() == [
        total, 2**32 - total, 1, 96, 2**32 - 1, 2**32 - 128, xor, 96 % 10, (10 - 96 % 10) % 10, 3 * 96,
    ]  # fmt: skip
    assert device.to_host(wide).tolist() == [96 * 0x100000001, 96 << 40]


def test_a_product_and_a_sum_are_rounded_twice(tmp_path: Path) -> None:
    text = 'extern "C" __global__ void k(const double* in, double* out) { out[0] = in[0] * in[1] + in[2]; }'
    device, kernel = compiled(tmp_path, text)
    a, b = 1 + 2.0**-30, 1 - 2.0**-30
    out = device.empty(1, np.float64)
    kernel((1,), (1,), (device.to_device(np.array([a, b, -1.0])), out))
    assert device.to_host(out)[0] == 0.0  # contracted into one fma it would be -2**-60


@pytest.mark.skipif(not CAN_FLUSH, reason="only an x86 processor can be told to flush denormals")
@pytest.mark.parametrize(("given", "factor"), [(1e-310, 1e10), (1e-300, 1e-10)], ids=["read", "computed"])
def test_denormals_are_flushed_in_kernels_that_are_told_to_and_nowhere_else(given: float, factor: float) -> None:
    for flush, expected in ((True, 0.0), (False, given * factor)):
        device = EmulatedDevice(flush=flush)
        out = device.empty(1, np.float64)
        device.kernel(sound.SOURCE, "scale")(
            (1,), (32,), (device.to_device(np.array([given])), out, np.float64(factor), np.uint32(1))
        )
        assert device.to_host(out).tolist() == [expected]
        assert expected == 0 or np.float64(given) * np.float64(factor) == expected > 0
    assert np.float64(1e-300) * np.float64(1e-10) > 0
