"""The benchmark of a GPU, on the emulated device and a stand-in for CuPy: what it measures, keeps and leaves out."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from tests.cudasim.device import EmulatedDevice
from tests.kernels.gpu import cupy_on_cpu
from warpdesk_server.benchmarks import gpu, on_gpu
from warpdesk_server.benchmarks.on_gpu import RATES, Recorder, measure_rates
from warpdesk_server.benchmarks.operations import Run, run_on_gpu, select
from warpdesk_server.benchmarks.rows import Row
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.gpu import nvrtc
from warpdesk_server.kernels.gpu.compile import ARCHITECTURES, compile_for
from warpdesk_server.kernels.gpu.contract import Times
from warpdesk_server.kernels.gpu.faults import NoDevice

ROOT = Path(__file__).resolve().parents[2]

# All that bench-gpu may need is CuPy, NumPy, Numba and pydantic with what they bring; the emulated device is ours.
_WITH_LITTLE_INSTALLED = """
import sys
from pathlib import Path

MISSING = {
    "blake3", "bottleneck", "cryptography", "fastapi", "httpx", "jiter", "matplotlib", "opendp", "pynvml",
    "pydantic_settings", "redis", "rq", "scipy", "talib", "torch", "tulipy", "uvicorn",
}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())

from warpdesk_server.benchmarks import gpu
from tests.cudasim.device import EmulatedDevice

sys.exit(gpu.main(EmulatedDevice(memory=16 << 20), Path(sys.argv[1]), ("small",)))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    file = tmp_path_factory.mktemp("bench") / "results" / "gpu.json"
    command = [sys.executable, "-c", _WITH_LITTLE_INSTALLED, str(file)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(file.read_text()), ran.stdout


@pytest.mark.timeout(300)
@pytest.mark.thorough
def test_bench_gpu_needs_few_packages_and_keeps_what_a_reader_needs(results):
    kept, printed = results

    assert kept["benchmark"] == "gpu"
    assert {"python", "cpu", "cores", "versions", "device"} <= set(kept["environment"])
    device = kept["environment"]["device"]
    assert device["name"] == "CUDA emulation"
    assert device["measured_copy_bytes_per_second"] > 0
    assert device["measured_keystream_bytes_per_second"] > 0
    assert {"architecture", "multiprocessors", "l2_bytes", "driver", "before", "after"} <= set(device)
    assert "copy rate" in printed
    assert "goals reached" in printed


@pytest.mark.timeout(300)
@pytest.mark.thorough
def test_every_operation_has_its_kernels_and_its_whole_call_measured(results):
    rows = [Row.read(row) for row in results[0]["rows"]]

    without = {name for name, operation in OPERATIONS.items() if not operation.gpu}
    for what, expected in (
        ("kernel", {*OPERATIONS} - without),
        ("host to host", {*OPERATIONS} - without),
        ("compute", {*OPERATIONS}),
    ):
        assert {row.operation for row in rows if row.what == what} == expected, what
    left_out = {
        name.split(",")[0] for name, why in results[0]["left_out"].items() if why == "it has no GPU implementation"
    }
    assert left_out == without
    moving = [row for row in rows if row.what == "kernel" and row.operation in ("sma", "add", "secure_aggregation")]
    assert all(row.part and row.of == "copy rate" for row in moving)
    assert any("no masks" in row.case and row.goal == ">= 75% of copy rate" for row in rows)


@pytest.mark.timeout(300)
@pytest.mark.thorough
def test_libraries_that_are_missing_are_named(results):
    left_out = results[0]["left_out"]

    assert left_out["sma: TA-Lib"] == "TA-Lib is not installed"
    assert left_out["secure_aggregation: NumPy + OpenSSL"] == "cryptography is not installed"
    assert left_out["the path of a worker's child"] == "No module named 'blake3'"
    assert any(name.startswith("matmul, library") and "cuBLAS" in reason for name, reason in left_out.items())


def test_bench_gpu_without_a_gpu_says_so_and_fails(monkeypatch, capsys, tmp_path):
    def none():
        raise NoDevice("the test has none")

    monkeypatch.setattr(on_gpu, "open_gpu", none)

    assert gpu.main(path=tmp_path / "gpu.json") == 1
    assert capsys.readouterr().out == "bench-gpu needs a GPU: the test has none\n"
    assert not (tmp_path / "gpu.json").exists()


def test_what_there_is_no_time_for_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "GPU_SECONDS", -1)
    monkeypatch.setattr(gpu, "SECONDS", -1)

    assert gpu.main(EmulatedDevice(memory=1 << 20), tmp_path / "gpu.json", ("small",)) == 0

    left_out = json.loads((tmp_path / "gpu.json").read_text())["left_out"]
    assert left_out["sum, 3,000 float64 on the GPU"] == left_out["sum, 3,000 float64 on the CPU"] == "no time was left"


def test_a_gpu_driven_by_cupy_is_measured_through_its_own_streams_and_events(monkeypatch, tmp_path):
    # The stand-in for CuPy queues what a stream is given and times it with events; it has no graphs.
    machine = cupy_on_cpu.Machine(memory=32 << 20)
    for name, module in machine.modules(tmp_path).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(nvrtc, "find", machine.compiler)
    monkeypatch.setenv("WARPDESK_KERNEL_CACHE", str(tmp_path / "cubins"))
    monkeypatch.setattr(cupy_on_cpu.Pointer, "copy_from_device_async", copy_from_device_async, raising=False)
    device, out = on_gpu.open_gpu(), Run()
    cases = select(["sma", "rsi", "sum", "dp_noise", "monte_carlo"], ["small"])

    run_on_gpu(cases, device, out)

    assert {row.operation for row in out.rows if row.what == "kernel"} == {case.operation for case in cases}
    assert all(row.note.startswith("events: ") and "no graph" in row.note for row in out.rows if row.what == "kernel")
    assert all(row.time.low > 0 for row in out.rows)
    assert out.device["measured_copy_by"] in ("our kernel", "the driver")
    assert device.memory.report().used == 0


def copy_from_device_async(self, source, nbytes):
    self._copy(self.address, source.address, nbytes, self._machine.stream)


# The kernels that the rates are measured with.


def test_the_copy_copies():
    device = EmulatedDevice()
    given = np.arange(4 * 1000, dtype=np.uint32)
    out = device.empty(given.shape, given.dtype)

    device.kernel(RATES, "copy")((3,), (256,), (device.to_device(given), out, np.int64(1000)))

    assert np.array_equal(device.to_host(out), given)


def test_the_keystream_is_openssls():
    device = EmulatedDevice()
    key = np.arange(8, dtype=np.uint32)
    out = device.empty(16 * 300, np.uint32)

    device.kernel(RATES, "keystream")((1,), (256,), (device.to_device(key), out, np.uint32(300)))

    cipher = Cipher(algorithms.ChaCha20(key.tobytes(), bytes(16)), mode=None)
    assert device.to_host(out).tobytes() == cipher.encryptor().update(bytes(64 * 300))


@pytest.mark.parametrize("architecture", [ARCHITECTURES[0], ARCHITECTURES[-1]])
def test_the_rates_kernels_compile_without_spills(architecture):
    usages = compile_for(RATES, architecture)

    assert {usage.kernel for usage in usages} == {"copy", "keystream"}
    assert {usage.spilled for usage in usages} == {0}


def test_the_copy_rate_counts_a_byte_as_read_and_as_written(monkeypatch):
    device = EmulatedDevice(memory=1 << 20)
    monkeypatch.setattr(device, "times", lambda: Times(kernel=0.5))

    rates = measure_rates(device, 1 << 16)

    assert (rates.copy, rates.copy_by, rates.keystream) == (2 * 65536 / 0.5, "our kernel", 65536 / 0.5)


# Replaying what one call did on the device.


class Graphs:
    """CuPy's streams and graphs: launching a graph does again what was done while a stream captured it.

    Its clock counts what was done.
    """

    def __init__(self, device, fails=False):
        self.done, self.captures, device.cupy = 0, 0, self
        self.device, self.fails = device, fails
        self.cuda = SimpleNamespace(Stream=self._stream, Event=self._event, get_elapsed_time=lambda a, b: b.at - a.at)

    def _event(self):
        event = SimpleNamespace(at=None, synchronize=lambda: None)
        event.record = lambda _stream: setattr(event, "at", self.done)
        return event

    def _stream(self, non_blocking):  # noqa: ARG002 (CuPy's name)
        graphs, begun = self, []

        class Stream:
            def __enter__(self):
                return self

            def __exit__(self, *error):
                return None

            def synchronize(self):
                pass

            def begin_capture(self):
                if graphs.fails:
                    raise RuntimeError("this cannot be captured")
                begun.append(graphs.done)

            def end_capture(self):
                graphs.captures += 1
                count = graphs.done - begun[0]
                return SimpleNamespace(launch=lambda _stream: setattr(graphs, "done", graphs.done + count))

        return Stream()


class Counting(EmulatedDevice):
    """An emulated device whose kernels have the function that CuPy's have, and count how often it is called."""

    graphs = None

    def kernel(self, source, name):
        kernel = super().kernel(source, name)

        def function(grid, block, args, shared_mem):
            self.graphs.done += 1

        kernel._function = function
        return kernel

    def zeros(self, shape, dtype):
        array = super().zeros(shape, dtype)
        array.data = SimpleNamespace(memset_async=lambda value, nbytes: None)
        return array


@pytest.mark.parametrize("operation", ["sma", "rsi", "sum"])
def test_the_launches_of_one_call_are_repeated_as_a_graph(operation):
    case = select([operation], ["small"])[0]
    device = Counting()
    device.graphs = Graphs(device)
    recorder = Recorder(device)
    case.call(case.inputs(), recorder)()

    timing, how = on_gpu.kernel_time(case, device, case.inputs())

    # The clock counted launches, in thousandths of a second: one call is as many as were taken down.
    assert timing.median == pytest.approx(len(recorder.names) / 1e3)
    assert how.startswith("graph of ")
    assert device.graphs.captures == 1
    assert set(recorder.names) == {name for _, name in device.launches}


def test_where_no_graph_can_be_made_launches_are_timed_one_by_one():
    device = Counting()
    device.graphs = Graphs(device, fails=True)
    case = select(["sma"], ["small"])[0]

    timing, how = on_gpu.kernel_time(case, device, case.inputs())

    assert how.startswith("events: ")
    assert "no graph: this cannot be captured" in how
    assert timing.median > 0
