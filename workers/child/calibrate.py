"""The calibration of costs (`workers.child.cost`): it times each operation on the CPU and the GPU, on made-up data.

An operation says by its example what a request looks like. Larger ones are made from it by repeating the numbers of its
inputs, along all axes, the last one, or only that of its first input, or by multiplying one of its numbers: whichever
the operation takes and calls more work.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.faults import DeviceLost
from warpdesk_server.kernels.operation import Backend, Example, Operation
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.workers.child.backend import RECOVERABLE
from warpdesk_server.workers.child.cost import Costs
from warpdesk_server.workers.child.device import Probe
from warpdesk_server.workers.predicted_times import Job, job_of

STEP = 8  # between two sizes
_SMALLER, _LARGER = 4, 9  # steps from the example
_LONGEST = 0.1  # seconds; a backend that takes longer at one size is not asked for a larger one
_RUNS, _SHORT = 7, 0.02  # at least two runs, at most seven as long as they take fewer seconds than this together
_MOST_BYTES = 64 << 20  # that a job may need

Say = Callable[[str], None]
Shape = tuple[int, ...]
Grow = Callable[[float], tuple[dict[str, Any], dict[str, Shape]]]  # parameters and shapes of so many times the size


def calibrate(
    operations: Iterable[Operation],
    found: Probe,
    costs: Costs,
    say: Say = lambda line: None,  # noqa: ARG005
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Measure each operation and variant for predicted times, and save the measurements in `costs`.

    `say` gets a line for each. Takes about a second for each of them. Raises DeviceLost; what cannot run on a backend
    is left unknown there.
    """
    for operation in operations:
        for example in (Example(operation.example.params, operation.example.inputs), *operation.variants):
            _calibrate(replace(operation, example=example), found, costs, say, clock)
    costs.save()


def _calibrate(operation: Operation, found: Probe, costs: Costs, say: Say, clock: Callable[[], float]) -> None:
    todo: dict[Backend, Device | None] = {"cpu": None}
    if found.device is not None:
        todo["gpu"] = found.device
    took: dict[Backend, list[str]] = {backend: [] for backend in todo}
    for job, params, arguments in sizes(operation):
        for backend, device in list(todo.items()):
            seconds = measure(operation, backend, params, arguments, device, clock)
            if seconds is None or seconds > _LONGEST:
                del todo[backend]
            if seconds is not None:
                costs.add(backend, job, seconds)
                took[backend].append(f"{seconds * 1e3:.3g}")
        if not todo:
            break
    chosen = " ".join(f"{name}={value}" for name, value in operation.example.params.items() if isinstance(value, str))
    for backend, times in took.items():
        say(f"{operation.name} {chosen} on the {backend}: {', '.join(times) or 'does not run'} ms")


def sizes(operation: Operation, off: float = 1.0) -> Iterator[tuple[Job, Params, dict[str, Any]]]:
    """Requests of growing size from which times are predicted, with what is known of each before it runs.

    `off` times the sizes of a calibration.
    """
    grow = _growth(operation)
    if grow is None:
        return
    given = {name: np.asarray(one["data"], dtype=one["dtype"]) for name, one in operation.example.inputs.items()}
    last = 0.0
    for step in range(-_SMALLER, _LARGER):
        params, shapes = grow(off * float(STEP) ** step)
        described = {name: replace(_info(array), shape=shapes[name]) for name, array in given.items()}
        try:
            parsed = operation.validate(params, described)
        except InvalidRequest:
            continue
        if max(operation.cost(parsed, described).bytes, sum(info.nbytes for info in described.values())) > _MOST_BYTES:
            return
        job = job_of(operation, parsed, described)
        if job.work > 1.5 * last:
            last = job.work
            yield job, parsed, {name: _repeated(array, shapes[name]) for name, array in given.items()}


def _growth(operation: Operation) -> Grow | None:
    """How calibration makes the operation's example larger; None where it takes nothing larger that is more work."""
    given = {name: np.asarray(one["data"], dtype=one["dtype"]) for name, one in operation.example.inputs.items()}
    params = operation.example.params
    for grow in _ways(params, {name: array.shape for name, array in given.items()}):
        work = []
        for factor in (1.0, float(STEP), float(STEP) ** 2, float(STEP) ** 3):  # a small one may be all preparation
            changed, shapes = grow(factor)
            described = {name: replace(_info(array), shape=shapes[name]) for name, array in given.items()}
            try:
                work.append(job_of(operation, operation.validate(changed, described), described).work)
            except InvalidRequest:
                work.append(0.0)
        if max(work) > 1.5 * work[0]:
            return grow
    return None


def _ways(params: dict[str, Any], shapes: dict[str, Shape]) -> Iterator[Grow]:
    if shapes:
        first, ndim = next(iter(shapes)), max(len(shape) for shape in shapes.values())
        yield lambda factor: (params, {name: _all(shape, factor ** (1 / ndim)) for name, shape in shapes.items()})
        yield lambda factor: (params, {name: _last(shape, factor) for name, shape in shapes.items()})
        yield lambda factor: (params, shapes | {first: _last(shapes[first], factor)})
        yield lambda factor: (params, {name: (*_all(shape[:1], factor), *shape[1:]) for name, shape in shapes.items()})
    numbers = {name: value for name, value in params.items() if type(value) is int}
    for name in sorted(numbers, key=lambda name: -numbers[name]):
        yield partial(_multiplied, params, shapes, name)


def _all(shape: Shape, factor: float) -> Shape:
    return tuple(max(1, round(length * factor)) for length in shape)


def _last(shape: Shape, factor: float) -> Shape:
    return (*shape[:-1], *_all(shape[-1:], factor))


def _multiplied(
    params: dict[str, Any], shapes: dict[str, Shape], name: str, factor: float
) -> tuple[dict[str, Any], dict[str, Shape]]:
    return params | {name: max(1, round(params[name] * factor))}, shapes


def _repeated(array: np.ndarray, shape: Shape) -> np.ndarray:
    for axis, length in enumerate(shape):
        array = np.take(array, np.arange(length) % array.shape[axis], axis=axis)
    return np.ascontiguousarray(array)


def measure(
    operation: Operation,
    backend: Backend,
    params: Params,
    inputs: dict[str, Any],
    device: Device | None,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """The measured seconds from which times are predicted: the quickest of a few runs of an operation.

    Copies are included. None if the operation does not run there.
    """
    arguments = dict(inputs)
    if operation.randomness == "seed":
        arguments["seed"] = 0
    elif operation.randomness == "private":
        arguments["key"] = os.urandom(32)
    if device is not None:
        arguments["device"] = device
    took: list[float] = []
    try:
        compute = operation.implementation(backend)
        while len(took) < 2 or (len(took) < _RUNS and sum(took) < _SHORT):
            began = clock()
            compute(params, **arguments)
            took.append(clock() - began)
    except DeviceLost:
        raise
    except (*RECOVERABLE, ImportError, MemoryError):
        return None
    except InvalidRequest:  # made-up numbers may be no answer to what was asked: masks that do not cancel
        return None
    return min(took)


def _info(array: np.ndarray) -> ArrayInfo:
    has_nan = array.dtype.kind == "f" and bool(np.isnan(array).any())
    return ArrayInfo(cast(DType, array.dtype.name), array.shape, has_nan)
