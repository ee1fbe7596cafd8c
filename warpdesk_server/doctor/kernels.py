"""The doctor's checks of the GPU kernels: each kernel's resources, and each operation's result on its example."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import chain, product
from typing import Any, cast

import numpy as np

from warpdesk.models import DType
from warpdesk_server.doctor.check import Check
from warpdesk_server.doctor.gpu import BROKEN
from warpdesk_server.doctor.launches import Launch, largest_launches
from warpdesk_server.kernels import install
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.gpu import canary
from warpdesk_server.kernels.gpu import compile as gate
from warpdesk_server.kernels.gpu.compile import Usage, describe
from warpdesk_server.kernels.gpu.contract import Device, Kernel
from warpdesk_server.kernels.gpu.faults import DeviceFault, DeviceLost, NoDevice
from warpdesk_server.kernels.gpu.nvrtc import CompileError
from warpdesk_server.kernels.gpu.occupancy import occupancy
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.operation import Example, Operation
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.workers.child.calibrate import sizes
from warpdesk_server.workers.child.warmup import Trial, answer, documented, variants
from warpdesk_server.workers.child.wrapped import WrappedDevice
from warpdesk_server.workers.predicted_times import job_of

_AT = "as a job launches it that fills the GPU"
_KEY = bytes(range(32))  # of private operations: their noise must be the same on both backends here
_MOST = 1e9  # elementary steps: a second or so of the CPU
_FILLING = 1e7  # that fill a multiprocessor, whatever the operation
_LONGEST = 0.5  # seconds; where the CPU takes longer, nothing larger is tried
_NUMBERS = (2, 50, 500, 5000)
# As parts of the largest: a BLAS library adds the products of a matrix in an order of its own, in float32 too, and may
# take another on each processor. Everything else gives the same bytes on both backends.
_CLOSE = 1e-4


def usage(operations: Mapping[str, Operation], architecture: str, device: Device | None, show: bool) -> Check:
    """The doctor's check of registers, shared memory, spills and occupancy of each kernel, by the driver's count if
    there is a driver.

    Occupancy is for the block size and dynamic shared memory of the operations' largest launches. These come from the
    operations' own code, run for one multiprocessor on a device that computes nothing (`launches.py`).
    """
    used: list[tuple[Source, Usage]] = []
    try:
        for _, source in gate.sources():
            used += ((source, one) for one in gate.compile_for(source, int(architecture.removeprefix("sm_"))))
        launches = largest_launches(requests(operations.values(), _FILLING), architecture, 1, (one for _, one in used))
        rows = [_row(one, launches.get((one.source, one.kernel)), architecture, source, device) for source, one in used]
    except CompileError as error:
        return Check("kernels", "failed", " ".join(str(error).split())[:500], "reinstall warpdesk, or report it")
    except DeviceFault as fault:
        return Check("kernels", "failed", f"the device took no kernel of ours: {fault}", BROKEN)
    least = min(rows, key=lambda row: (row["occupancy"] if row["occupancy"] is not None else math.inf, row["kernel"]))
    registers = [row["registers"] for row in rows]
    found = f"{len(rows)} for {architecture}: {min(registers)} to {max(registers)} registers"
    if least["occupancy"] is not None:
        found += f", occupancy {_AT} from {least['occupancy']:.0%} ({least['kernel']}, by its {least['bound_by']})"
    lines = tuple(_lines(rows)) if show else ()
    details = {"architecture": architecture, "kernels": rows}
    if spilling := [
        f"{row['kernel']} ({row['source']}) spills {row['spilled']} bytes" for row in rows if row["spilled"]
    ]:
        remedy = "report it: these kernels are slower than they should be"
        return Check("kernels", "warning", f"{found}; {'; '.join(spilling)}", remedy, details, lines)
    wrong = [row["kernel"] for row in rows if row["blocks_by_driver"] not in (None, row["blocks"])]
    if wrong:
        remedy = "none is needed: what is printed is the driver's count; report it"
        return Check(
            "kernels", "warning", f"{found}; the driver counts otherwise: {', '.join(wrong)}", remedy, details, lines
        )
    return Check("kernels", "ok", f"{found}, none spills", None, details, lines)


def _row(
    used: Usage, launch: Launch | None, architecture: str, source: Source, device: Device | None
) -> dict[str, Any]:
    """The row of one kernel in the doctor's table. The launch-dependent fields are left out for a kernel that no
    operation launched."""
    computed = counted = None
    if launch is not None:
        computed = occupancy(architecture, launch.threads, used.registers, used.shared + launch.dynamic)
        if device is not None and device.architecture == architecture:
            kernel = device.kernel(source, used.kernel)
            counted = kernel.blocks_per_multiprocessor(launch.threads, launch.dynamic)
    return {
        "kernel": used.kernel,
        "source": used.source,
        "threads": launch.threads if launch else None,
        "registers": used.registers,
        "shared": used.shared,
        "dynamic": launch.dynamic if launch else None,
        "spilled": used.spilled,
        "blocks": computed.blocks if computed else None,
        "blocks_by_driver": counted,
        "occupancy": computed.share if computed else None,
        "bound_by": computed.bound_by if computed else None,
    }


def _lines(rows: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    yield f"threads and bytes of dynamic shared memory: of each kernel, {_AT}"
    columns = f"{'threads':>8}{'registers':>10}{'shared':>8}{'dynamic':>8}{'blocks':>7}{'occupancy':>10}"
    yield f"{'kernel':<44}{columns}  bound by"
    for row in rows:
        name = f"{row['kernel']} ({row['source']})"
        filled = f"{row['occupancy']:.0%}" if row["occupancy"] is not None else "-"
        dynamic = "-" if row["dynamic"] is None else row["dynamic"]
        numbers = f"{row['threads'] or '-':>8}{row['registers']:>10}{row['shared']:>8}{dynamic:>8}"
        yield f"{name:<44}{numbers}{row['blocks'] or '-':>7}{filled:>10}  {row['bound_by'] or '-'}"


def requests(operations: Iterable[Operation], most: float) -> Iterator[Callable[[Any], object]]:
    """The requests that the doctor's `answers` runs on a device, each of `most` elementary steps or less."""
    operations = list(operations)
    for trial in chain(documented(operations), variants(operations)):
        largest = trial
        for largest in chain((trial,), _sizes(trial, most)):
            yield partial(_answer, largest)
        for other in _numbers(largest, most):
            yield partial(_answer, other)


def _answer(trial: Trial, device: Device) -> Mapping[str, Any]:
    return answer(trial, "gpu", device, _KEY)


def answers(
    operations: Mapping[str, Operation],
    device: Device | None,
    no_gpu: str | None,
    kernels: Sequence[Mapping[str, Any]],
    most: float = _MOST,
) -> Iterator[Check]:
    """The doctor's check of each operation's documented example: run it on the CPU, and compare with the GPU if there
    is one.

    The GPU also runs variants and larger requests, which use other kernels, of at most `most` elementary steps.
    It answers each request twice, the second time as if it had a single multiprocessor: operations then
    choose other kernels and launch shapes.

    `kernels` are the rows of `usage`, to say which of them were launched.
    """
    watched = _Watched(device) if device is not None else None
    if watched is not None:
        first = _canary(watched)
        yield first
        if first.status == "failed":  # whatever else it answers cannot be relied on
            watched, no_gpu = None, "it does not answer what is known"
    trials = list(documented(operations.values()))
    if watched is not None:
        trials += variants(operations.values())
    alike = 0
    problems: list[Check] = []
    for trial in trials:
        if (problem := _problem(trial, watched, most)) is None:
            alike += 1
            continue
        problems.append(Check(f"example of {trial}", "failed", problem.sentence, problem.remedy))
        if problem.last:
            break
    details: dict[str, Any] = {"tried": len(trials), "answered": alike, "on_gpu": watched is not None}
    if watched is None:
        found = f"{alike} of {len(trials)} are answered on the CPU; none was tried on a GPU: {no_gpu}"
    else:
        every = {(row["source"], row["kernel"]) for row in kernels}
        left = sorted(f"{kernel} ({source})" for source, kernel in every - watched.launched)
        found = f"{alike} of {len(trials)} are answered on the CPU and on the GPU alike, at all sizes tried; "
        found += f"{len(every) - len(left)} of {len(every)} kernels were launched"
        details["not_launched"] = left
    yield Check("examples", "warning" if problems else "ok", found, details=details)
    yield from problems


def _canary(device: Device) -> Check:
    try:
        canary.check(device)
    except DeviceFault as fault:
        return Check("canary", "failed", str(fault), BROKEN)
    return Check("canary", "ok", f"{device.name} answers what is known")


@dataclass(frozen=True)
class _Problem:
    sentence: str
    remedy: str
    last: bool = False  # nothing answers on this device any more


def _problem(trial: Trial, device: "_Watched | None", most: float) -> _Problem | None:
    on_gpu = device if find_spec(f"{trial.operation.package}.gpu") is not None else None
    largest = trial
    for sized in chain((trial,), _sizes(trial, most) if on_gpu else ()):
        took = _tried(sized, on_gpu, made_up=sized is not trial)
        if isinstance(took, _Problem):
            return took
        largest = sized
        if sized is not trial and took > _LONGEST:
            break
    for other in _numbers(largest, most) if on_gpu else ():
        if isinstance(problem := _tried(other, on_gpu, made_up=True), _Problem):
            return problem
    return None


def _tried(trial: Trial, device: "_Watched | None", made_up: bool) -> _Problem | float:
    """Run a request on the CPU and on the GPU for the doctor, and compare; returns the problem, or the CPU's
    seconds."""
    began = time.perf_counter()
    try:
        expected = answer(trial, "cpu", None, _KEY)
    except Exception as error:  # noqa: BLE001 (a broken operation is what is looked for)
        if isinstance(error, InvalidRequest) and made_up:
            return 0.0  # made-up numbers need not make sense to an operation
        again = install.pip("install", "--force-reinstall", "numba", "numpy")
        remedy = f"jobs of {trial.operation.name} fail: {again}, or report it"
        return _Problem(f"on the CPU: {type(error).__name__}: {error}", remedy)
    took = time.perf_counter() - began
    for on in (device, device.narrow()) if device is not None else ():
        if (problem := _on_gpu(trial, on, expected)) is not None:
            return problem
    return took


def _sizes(trial: Trial, most: float) -> Iterator[Trial]:
    """Variants of the doctor's request, each eight times as large as the one before: large inputs use other kernels."""
    for job, params, inputs in sizes(replace(trial.operation, example=trial.example)):
        if job.work > most:
            break
        given = {name: {"data": array, "dtype": array.dtype.name} for name, array in inputs.items()}
        yield replace(trial, example=Example(params.model_dump(mode="json"), given))


def _numbers(largest: Trial, most: float) -> Iterator[Trial]:
    """Variants of the doctor's largest request with other integer parameters: a longer period may use other kernels."""
    given = largest.example.params
    whole = [name for name, value in given.items() if type(value) is int]
    for name, number in product(whole, _NUMBERS):
        other = replace(largest, example=replace(largest.example, params={**given, name: number}))
        if _work(other) <= most:
            yield other


def _work(trial: Trial) -> float:
    """The work in elementary steps of a request that the doctor made up; infinite if the operation refuses it."""
    given = {name: np.asarray(one["data"], one["dtype"]) for name, one in trial.example.inputs.items()}
    described = {name: ArrayInfo(cast(DType, array.dtype.name), array.shape, False) for name, array in given.items()}
    try:
        params = trial.operation.validate(trial.example.params, described)
    except InvalidRequest:
        return math.inf
    return job_of(trial.operation, params, described).work


def _on_gpu(trial: Trial, device: "_Watched", expected: Mapping[str, Any]) -> _Problem | None:
    shapes = ", ".join(str(np.shape(given["data"])) for given in trial.example.inputs.values())
    where = f"on the GPU, with inputs of {shapes}" if shapes else "on the GPU"
    try:
        got = answer(trial, "gpu", device, _KEY)
    except NoDevice:  # this request is not for the GPU
        return None
    except DeviceLost as fault:
        return _Problem(f"{where}: {fault}", BROKEN, last=True)
    except DeviceFault as fault:
        return _Problem(f"{where}: {fault}", "jobs like it run on the CPU meanwhile; report it")
    except Exception as error:  # noqa: BLE001 (a broken operation is what is looked for)
        return _Problem(f"{where}: {type(error).__name__}: {error}", "set WARPDESK_DEVICE=cpu, and report it")
    close = _CLOSE if "library" in (expected.get("algorithm"), got.get("algorithm")) else 0.0
    other = [
        f"{name}: {mismatch}"
        for name, value in expected.items()
        if (mismatch := difference(value, got.get(name), close))
    ]
    if not other:
        return None
    remedy = f"{BROKEN}; if it stays, set WARPDESK_DEVICE=cpu, and report it"
    return _Problem(f"{where}, otherwise than on the CPU: {'; '.join(other)}", remedy)


def difference(expected: Any, got: Any, close: float = 0.0) -> str | None:
    """How an output of the GPU differs from the CPU's in its bytes, for the doctor's check; None if it does not.

    All NaNs are equal. With `close`, floats may differ by that fraction of the largest. Strings are not compared: they
    tell how the result was computed.
    """
    if isinstance(expected, str | bool | None):
        return None
    if isinstance(expected, Mapping):
        inner = (
            f"{name}: {mismatch}"
            for name, part in expected.items()
            if (mismatch := difference(part, got.get(name), close))
        )
        return next(inner, None)
    one, two = np.asarray(expected), np.asarray(got)
    if one.shape != two.shape:
        return f"shape {two.shape} instead of {one.shape}"
    if one.dtype.kind == "f" and one.dtype != two.dtype:
        return f"{two.dtype} instead of {one.dtype}"
    wrong = _apart(one, two, close) if one.dtype.kind == "f" else one != two
    if not wrong.any():
        return None
    first = int(np.flatnonzero(wrong)[0])
    return f"{np.count_nonzero(wrong)} of {one.size}, the first {two.flat[first]} instead of {one.flat[first]}"


def _apart(one: np.ndarray, two: np.ndarray, close: float) -> np.ndarray:
    """The mask of numbers that differ between the outputs that the doctor compares. With `close` 0, zeros of different
    sign differ too."""
    alike: np.ndarray = (one == two) & (np.signbit(one) == np.signbit(two)) | (np.isnan(one) & np.isnan(two))
    if close:
        with np.errstate(all="ignore"):
            largest = np.max(np.abs(one), where=np.isfinite(one), initial=0.0) or 1.0
            alike |= (one == two) | (np.abs(two - one) <= close * largest)
    return ~alike


class _Watched(WrappedDevice):
    """The doctor's device wrapper that records the source and name of each kernel used on it."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.launched: set[tuple[str, str]] = set()

    def narrow(self) -> "_Watched":
        """The doctor's device once more, which reports a single multiprocessor to the code that launches kernels."""
        other = _Watched(self._device)
        other.launched, other.multiprocessors = self.launched, 1
        return other

    def kernel(self, source: Source, name: str) -> Kernel:
        self.launched.add((describe(source), name))
        return super().kernel(source, name)
