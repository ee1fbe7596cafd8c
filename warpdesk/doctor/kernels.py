"""Our kernels on this machine: what each needs of a GPU, and whether each operation answers its example rightly."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from typing import Any, cast

import numpy as np

from kernels import canary, install
from kernels import compile as gate
from kernels.array import ArrayInfo, DType
from kernels.compile import Usage, describe
from kernels.cuda import Device, DeviceFault, DeviceLost, Kernel, NoDevice, Source
from kernels.nvrtc import CompileError
from kernels.occupancy import occupancy
from kernels.operation import Example, InvalidRequest, Operation
from warpdesk.doctor.check import Check
from warpdesk.doctor.gpu import BROKEN
from workers.calibrate import sizes
from workers.cost import job_of
from workers.warmup import Trial, answer, documented, variants
from workers.wrapped import WrappedDevice

_UNBOUND = 256  # threads per block taken for a kernel that does not say how many it may have
_AT = "at the largest block, without dynamic shared memory"
_KEY = bytes(range(32))  # of private operations: their noise must be the same on both backends here
_MOST = 1e9  # elementary steps: a second or so of the CPU
_LONGEST = 0.5  # seconds; where the CPU takes longer, nothing larger is tried
_NUMBERS = (2, 50, 500, 5000)
# As parts of the largest: a BLAS library adds the products of a matrix in an order of its own, in float32 too, and may
# take another on each processor. Everything else gives the same bytes on both backends.
_CLOSE = 1e-4


def usage(architecture: str, device: Device | None, show: bool) -> Check:
    """Registers, shared memory, spills and occupancy of each kernel, and by the driver's count where it is there.

    Occupancy is that of the largest block a kernel may have, with the shared memory it declares: what the launches of a
    job ask for, smaller blocks or more shared memory, is not known here.
    """
    rows, spilling = [], []
    try:
        for _, source in gate.sources():
            for used in gate.compile_for(source, int(architecture.removeprefix("sm_"))):
                rows.append(_row(used, architecture, source, device))
                if used.spilled:
                    spilling.append(f"{used.kernel} ({used.source}) spills {used.spilled} bytes")
    except CompileError as error:
        return Check("kernels", "failed", " ".join(str(error).split())[:500], "reinstall warpdesk, or report it")
    except DeviceFault as fault:
        return Check("kernels", "failed", f"the device took no kernel of ours: {fault}", BROKEN)
    least = min(rows, key=lambda row: (row["occupancy"] if row["occupancy"] is not None else math.inf, row["kernel"]))
    registers = [row["registers"] for row in rows]
    found = f"{len(rows)} for {architecture}: {min(registers)} to {max(registers)} registers, "
    found += f"occupancy {_AT} from {least['occupancy']:.0%} ({least['kernel']}, by its {least['bound_by']})"
    lines = tuple(_lines(rows)) if show else ()
    details = {"architecture": architecture, "kernels": rows}
    if spilling:
        remedy = "report it: these kernels are slower than they should be"
        return Check("kernels", "warning", f"{found}; {'; '.join(spilling)}", remedy, details, lines)
    wrong = [row["kernel"] for row in rows if row["blocks_by_driver"] not in (None, row["blocks"])]
    if wrong:
        remedy = "none is needed: what is printed is the driver's count; report it"
        return Check(
            "kernels", "warning", f"{found}; the driver counts otherwise: {', '.join(wrong)}", remedy, details, lines
        )
    return Check("kernels", "ok", f"{found}, none spills", None, details, lines)


def _row(used: Usage, architecture: str, source: Source, device: Device | None) -> dict[str, Any]:
    threads = used.threads or _UNBOUND
    computed = occupancy(architecture, threads, used.registers, used.shared)
    counted = None
    if device is not None and device.architecture == architecture:
        counted = device.kernel(source, used.kernel).blocks_per_multiprocessor(threads)
    return {
        "kernel": used.kernel,
        "source": used.source,
        "threads": threads,
        "registers": used.registers,
        "shared": used.shared,
        "spilled": used.spilled,
        "blocks": computed.blocks if computed else None,
        "blocks_by_driver": counted,
        "occupancy": computed.share if computed else None,
        "bound_by": computed.bound_by if computed else None,
    }


def _lines(rows: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    yield f"blocks and occupancy: {_AT}; a launch may take others"
    yield f"{'kernel':<44}{'threads':>8}{'registers':>10}{'shared':>8}{'blocks':>7}{'occupancy':>10}  bound by"
    for row in rows:
        name = f"{row['kernel']} ({row['source']})"
        filled = f"{row['occupancy']:.0%}" if row["occupancy"] is not None else "-"
        numbers = f"{row['threads']:>8}{row['registers']:>10}{row['shared']:>8}{row['blocks'] or '-':>7}{filled:>10}"
        yield f"{name:<44}{numbers}  {row['bound_by'] or '-'}"


def answers(
    operations: Mapping[str, Operation],
    device: Device | None,
    no_gpu: str | None,
    kernels: Sequence[Mapping[str, Any]],
    most: float = _MOST,
) -> Iterator[Check]:
    """Each operation's documented example on the CPU; where there is a GPU, that and its variants there too, and larger
    ones, which other kernels answer, of `most` elementary steps or less.

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
        problems.append(Check(f"example of {trial}", "failed", problem.said, problem.remedy))
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
    said: str
    remedy: str
    last: bool = False  # nothing answers on this device any more


def _problem(trial: Trial, device: "_Watched | None", most: float) -> _Problem | None:
    on_gpu = device is not None and find_spec(f"{trial.operation.package}.gpu") is not None
    for sized in (trial, *(_larger(trial, most) if on_gpu else ())):
        began = time.perf_counter()
        try:
            expected = answer(sized, "cpu", None, _KEY)
        except Exception as error:  # noqa: BLE001 (a broken operation is what is looked for)
            if isinstance(error, InvalidRequest) and sized is not trial:
                continue  # made-up numbers need not make sense to an operation
            again = install.pip("install", "--force-reinstall", "numba", "numpy")
            remedy = f"jobs of {trial.operation.name} fail: {again}, or report it"
            return _Problem(f"on the CPU: {type(error).__name__}: {error}", remedy)
        took = time.perf_counter() - began
        if device is not None and on_gpu and (problem := _on_gpu(sized, device, expected)) is not None:
            return problem
        if sized is not trial and took > _LONGEST:
            break
    return None


def _larger(trial: Trial, most: float) -> Iterator[Trial]:
    """The same request, eight times as large each time, and the largest with other whole numbers, a longer period say:
    what there is much of, and what reaches far, is for other kernels."""
    largest = trial
    for job, params, inputs in sizes(replace(trial.operation, example=trial.example)):
        if job.work > most:
            break
        given = {name: {"data": array, "dtype": array.dtype.name} for name, array in inputs.items()}
        largest = replace(trial, example=Example(params.model_dump(mode="json"), given))
        yield largest
    given_params = largest.example.params
    whole = [name for name, value in given_params.items() if type(value) is int]
    for name, number in product(whole, _NUMBERS):
        other = replace(trial, example=replace(largest.example, params={**given_params, name: number}))
        if _work(other) <= most:
            yield other


def _work(trial: Trial) -> float:
    """How much there is to do, infinite for what the operation does not take."""
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
    other = [f"{name}: {said}" for name, value in expected.items() if (said := difference(value, got.get(name), close))]
    if not other:
        return None
    remedy = f"{BROKEN}; if it stays, set WARPDESK_DEVICE=cpu, and report it"
    return _Problem(f"{where}, otherwise than on the CPU: {'; '.join(other)}", remedy)


def difference(expected: Any, got: Any, close: float = 0.0) -> str | None:
    """How an output of the GPU differs from the CPU's in its bytes; None where it does not.

    One NaN is as good as another. With `close`, floats may differ by such a part of the largest. Words by themselves
    are not compared: they tell how it was computed.
    """
    if isinstance(expected, str | bool | None):
        return None
    if isinstance(expected, Mapping):
        inner = (
            f"{name}: {said}" for name, part in expected.items() if (said := difference(part, got.get(name), close))
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
    """Which numbers are others: a zero of the other sign too, unless something is allowed."""
    alike: np.ndarray = (one == two) & (np.signbit(one) == np.signbit(two)) | (np.isnan(one) & np.isnan(two))
    if close:
        with np.errstate(all="ignore"):
            largest = np.max(np.abs(one), where=np.isfinite(one), initial=0.0) or 1.0
            alike |= (one == two) | (np.abs(two - one) <= close * largest)
    return ~alike


class _Watched(WrappedDevice):
    """Remembers which kernels were launched on it: their sources and names."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.launched: set[tuple[str, str]] = set()

    def kernel(self, source: Source, name: str) -> Kernel:
        self.launched.add((describe(source), name))
        return super().kernel(source, name)
