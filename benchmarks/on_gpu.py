"""Time a case on a device: its kernels alone, from host to host, and what part of the device's own rates that is."""

import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from warpdesk_server.benchmarks.cases import Case, Goal, Inputs
from warpdesk_server.benchmarks.report import Timing
from warpdesk_server.benchmarks.rows import Row
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.faults import NoDevice
from warpdesk_server.kernels.gpu.source import Source

RATES = Source(Path(__file__).with_name("rates.cu"))

_COPIED = 1 << 30  # bytes, far more than any cache holds
_REPLAYED = 2e-3  # seconds of kernels between two looks at the clock, so that it does not count
_THREADS = 256


@dataclass(frozen=True)
class Rates:
    """The device's rates measured in this run: bytes moved and bytes of keystream per second."""

    copy: float
    copy_by: str
    keystream: float


def measure_rates(device: Device, nbytes: int = _COPIED) -> Rates:
    """The best of our copy kernel and the driver's copy between two arrays; a byte counts as read and as written."""
    nbytes = min(nbytes, device.memory.room() // 4) // 1024 * 1024
    one, two = device.zeros(nbytes // 4, np.uint32), device.zeros(nbytes // 4, np.uint32)
    blocks = (device.multiprocessors * 16,)
    copy, keystream = (device.kernel(RATES, name) for name in ("copy", "keystream"))
    ways: dict[str, Callable[[], object]] = {
        "our kernel": lambda: copy(blocks, (_THREADS,), (one, two, np.int64(nbytes // 16)))
    }
    if device.cupy is not None:
        # CuPy's device alone has libraries, and times what they do.
        library: Any = device
        ways["the driver"] = lambda: library.library(lambda: two.data.copy_from_device_async(one.data, nbytes))
    seconds = {name: _seconds(device, way) for name, way in ways.items()}
    by = min(seconds, key=lambda name: seconds[name])
    words = _seconds(device, lambda: keystream(blocks, (_THREADS,), (two[:8], one, np.uint32(nbytes // 64))))
    return Rates(2 * nbytes / seconds[by], by, nbytes / words)


def _seconds(device: Device, work: Callable[[], object], repeats: int = 7) -> float:
    """The median of the device's own timings of `work`, after one warm-up."""
    work()
    device.times()
    taken = []
    for _ in range(repeats):
        work()
        taken.append(device.times().kernel)
    return statistics.median(taken)


def measure(case: Case, device: Device, rates: Rates, inputs: Inputs, library: bool = False) -> list[Row]:
    """Rows of one case: its kernels, and the whole call with its copies. `library`: multiply by cuBLAS."""
    kernels, how = kernel_time(case, device, inputs)
    row = Row(case.operation, case.label, "gpu", "kernel", "cuBLAS" if library else "Warpdesk", kernels, note=how)
    taken = kernels.median
    if case.multiplied:
        row = replace(row, note=f"{row.note}; {2 * case.multiplied / taken / 1e12:.3g} TFLOP/s")
    elif case.moved:
        row = replace(row, part=case.moved / taken / rates.copy, of="copy rate")
    if case.keystream:
        row = replace(row, note=f"{row.note}; {case.keystream / taken / 1e12:.3g} TB/s of keystream")
    whole = host_to_host(case, device, inputs)
    return [
        _judged(case.goal, row, case.keystream),
        replace(row, what="host to host", time=whole, part=None, of="", note=""),
    ]


def masked_sum(device: Device, rates: Rates, dim: int, goal: Goal, rows: int = 16) -> Row:
    """The unmasking kernel with no mask to remove: what the sums of the clients' vectors alone take."""
    from warpdesk_server.kernels.secure_aggregation.gpu import unmasking

    kernel, blocks, threads = unmasking(device, 32, dim, masks=0)
    masked, total = device.zeros((rows, dim), np.uint32), device.empty(dim, np.uint32)
    none = device.zeros(8, np.uint32)
    arguments = (
        *(masked, np.uint32(rows), np.uint64(dim)),
        *(none, none, none, np.uint32(0), np.uint32(0), total),
    )
    taken = [_seconds(device, lambda: kernel(blocks, (threads,), arguments), 1) for _ in range(9)]
    part = 4 * (rows + 1) * dim / statistics.median(taken) / rates.copy
    row = Row(
        "secure_aggregation",
        f"sum of {rows} x {dim:,} words of 32 bits, no masks",
        "gpu",
        "kernel",
        "Warpdesk",
        Timing.of(taken),
        part=part,
        of="copy rate",
        note="events: unmask x 1",
    )
    return _judged(goal, row)


def library_time(case: Case, device: Device, call: Callable[[], object], by: str) -> Row:
    """The row of a GPU library that does the same on arrays that lie on the device."""
    library: Any = device
    taken = [_seconds(device, lambda: library.library(call), 1) for _ in range(min(case.repeats, 9))]
    return Row(case.operation, case.label, "gpu", "kernel", by, Timing.of(taken), note="events: the call")


def against_library(row: Row, library: Row, goal: float | None) -> Row:
    """The row of our product with the part of cuBLAS's rate in it."""
    part = library.time.median / row.time.median
    row = replace(row, part=part, of="cuBLAS's rate")
    return row if goal is None else replace(row, goal=f">= {goal:.0%} of cuBLAS", reached=part >= goal)


def _judged(goal: Goal, row: Row, keystream: int = 0) -> Row:
    taken = row.time.median
    if goal.seconds is not None:
        return replace(row, goal=f"<= {goal.seconds * 1e6:g} us", reached=taken <= goal.seconds)
    if goal.words is not None:
        rate = keystream / taken
        return replace(row, goal=f">= {goal.words / 1e12:g} TB/s of keystream", reached=rate >= goal.words)
    if goal.part is not None and row.part is not None:
        return replace(row, goal=f">= {goal.part:.0%} of copy rate", reached=row.part >= goal.part)
    return row


def host_to_host(case: Case, device: Device, inputs: Inputs) -> Timing:
    call, seconds = case.call(inputs, device), []
    for _ in range(1 + min(case.repeats, 7)):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    device.times()
    return Timing.of(seconds[1:])


def kernel_time(case: Case, device: Device, inputs: Inputs) -> tuple[Timing, str]:
    """Seconds of all kernels of one call, and how they were measured.

    The launches of one call are recorded and repeated as one CUDA graph, with neither host work nor timers between
    them; the caches hold what the last repetition left. If that is not possible, the device's times of the launches
    are added up.
    """
    recorder = Recorder(device)
    device.times()
    case.call(inputs, recorder)()
    once = device.times().kernel
    launches = ", ".join(f"{name} x {count}" for name, count in Counter(recorder.names).items())
    repeats = min(case.repeats, 21)
    if device.cupy is not None:
        try:
            copies = max(1, min(100, int(_REPLAYED / max(once, 1e-6))))
            return _replayed(device.cupy, recorder.steps, copies, repeats), f"graph of {copies} x ({launches})"
        except Exception as error:  # noqa: BLE001 (a library may not be captured; CuPy raises what it likes)
            launches += f"; no graph: {error}"
    recorder.steps.clear()
    call = case.call(inputs, device)
    seconds = []
    for _ in range(repeats):
        device.times()
        call()
        seconds.append(device.times().kernel)
    return Timing.of(seconds), f"events: {launches}"


def _replayed(cupy: Any, steps: list[Callable[[], object]], copies: int, repeats: int) -> Timing:
    stream = cupy.cuda.Stream(non_blocking=True)
    seconds = []
    with stream:
        for step in steps:  # what is made lazily is made here
            step()
        stream.synchronize()
        stream.begin_capture()
        try:
            for _ in range(copies):
                for step in steps:
                    step()
        finally:
            graph = stream.end_capture()
        for _ in range(repeats + 1):
            before, after = cupy.cuda.Event(), cupy.cuda.Event()
            before.record(stream)
            graph.launch(stream)
            after.record(stream)
            after.synchronize()
            seconds.append(cupy.cuda.get_elapsed_time(before, after) / 1e3 / copies)
    return Timing.of(seconds[1:])


class Recorder:
    """A device that records its launches and copies, to repeat them without the host's work.

    It keeps every array that was used. Memory that was zeroed is zeroed again in its turn.
    """

    lanes = 1  # an order

    def __init__(self, device: Device) -> None:
        self._device = device
        self.steps: list[Callable[[], object]] = []
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def kernel(self, source: Source, name: str) -> "_RecordedKernel":
        return _RecordedKernel(self, self._device.kernel(source, name), name)

    def zeros(self, shape: Any, dtype: Any) -> Any:
        array = self._device.zeros(shape, dtype)
        if self._device.cupy is not None:
            self.steps.append(lambda: array.data.memset_async(0, array.nbytes))
        return array

    def library(self, work: Callable[[], Any], name: str = "library") -> Any:
        device: Any = self._device
        self.steps.append(work)
        self.names.append(name)
        return device.library(work, name)


class _RecordedKernel:
    def __init__(self, recorder: Recorder, kernel: Any, name: str) -> None:
        self._recorder = recorder
        self._kernel = kernel
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
        self._kernel(grid, block, args, shared_mem)
        # Launched without the device wrapper, which would time each launch: CUDA cannot read a clock in a graph.
        function: Any = getattr(self._kernel, "_function", None)
        self._recorder.steps.append(lambda: function(grid, block, args, shared_mem=shared_mem))
        self._recorder.names.append(self._name)


_FIELDS = (
    "name",
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "clocks.max.mem",
    "power.draw",
    "temperature.gpu",
    "ecc.mode.current",
    "mig.mode.current",
)


def board() -> dict[str, str]:
    """The output of nvidia-smi for the first GPU: name, clocks, power, temperature. Empty if the tool is missing."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader", "--id=0"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(_FIELDS, (value.strip() for value in output.strip().split(",")), strict=False))


def open_gpu() -> Device:
    """The first GPU. Raises NoDevice with the reason."""
    from warpdesk_server.kernels.gpu.cupy_device import open_device

    device = open_device()
    if device.cupy is None:
        raise NoDevice("there is no CUDA device")
    return device
