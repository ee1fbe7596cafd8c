"""Run one attempt of a job: decode, choose, compute, encode."""

import errno
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from kernels.array import ArrayInfo, DType
from kernels.cuda import Device, DeviceLost, NoDevice, OutOfMemory
from kernels.memory import let_go
from kernels.operation import InvalidRequest, Operation
from workers import codec
from workers.backend import RECOVERABLE, Choice, choose
from workers.cost import Costs, job_of
from workers.device import Probe, cpu_name
from workers.protocol import Failed, JobRequest, Provenance, Succeeded
from workers.store import Store

log = logging.getLogger("warpdesk.execute")

_BLOCKS_TOLD = 5  # of a leak


def run(
    request: JobRequest,
    attempt: int,
    store: Store,
    found: Probe,
    operations: Mapping[str, Operation],
    keep_off_gpu: str | None = None,
    costs: Costs | None = None,
    expect: Callable[[float], None] | None = None,
) -> Succeeded | Failed:
    """Compute and write the result of one attempt; nothing is visible until the caller commits it.

    `costs` predicts which backend is the quicker, where the job leaves that open, and learns how long it took; `expect`
    is told what jobs of the size took on the GPU. Raises DeviceLost, after which this process must end. Every other
    failure is a value whose message holds no data.
    """
    operation = operations.get(request.operation)
    if operation is None:
        return Failed(code="invalid-input", message=f"this worker has no operation {request.operation!r}")
    try:
        return _run(operation, request, attempt, store, found, keep_off_gpu, costs, expect)
    except DeviceLost:
        raise
    except InvalidRequest as error:
        return Failed(code="invalid-input", message=str(error))
    except NoDevice as error:
        return Failed(code="no-gpu-worker", message=f"backend gpu was asked for, but: {error}", retryable=True)
    except OutOfMemory as error:
        return Failed(code="out-of-memory", message=str(error), retryable=True)
    except RECOVERABLE as error:
        return Failed(code="device-fault", message=str(error), retryable=True)
    except MemoryError as error:
        return Failed(code="out-of-memory", message=f"out of memory on the CPU: {error}", retryable=True)
    except Exception as error:  # noqa: BLE001 (a bug in an operation must not end the worker)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            log.error("%s of %s: the disk is full", operation.name, request.id)
            return Failed(code="storage-full", message="the disk that holds results is full", retryable=True)
        # Where it failed is logged; what it failed on is not: a message may quote the caller's data.
        places = "".join(traceback.format_tb(error.__traceback__))
        log.error("%s of %s failed with %s\n%s", operation.name, request.id, type(error).__name__, places)
        return Failed(code="operation-error", message=f"{operation.name} failed with {type(error).__name__}")
    finally:
        if found.device is not None and request.backend != "cpu" and _is_private(operation):
            # Outside the attempt, whose arrays are let go of by now; a device that is lost says so here too.
            found.device.forget()


def prepare(operations: Iterable[Operation]) -> None:
    """Import what a fallback calls, so that none waits for it."""
    for operation in operations:
        operation.implementation("cpu")


def _run(
    operation: Operation,
    request: JobRequest,
    attempt: int,
    store: Store,
    found: Probe,
    keep_off_gpu: str | None,
    costs: Costs | None,
    expect: Callable[[float], None] | None,
) -> Succeeded:
    params, inputs = codec.decode(operation, request, store)
    arguments: dict[str, Any] = dict(inputs)
    if operation.randomness == "seed":
        arguments["seed"] = request.seed
    elif operation.randomness == "private":
        # Drawn for this attempt, known to no one, kept nowhere: an attempt that does not commit takes it along.
        arguments["key"] = os.urandom(32)
    job = pick = None
    clock = time.perf_counter
    if costs is not None:
        job = job_of(operation, params, {name: _info(array) for name, array in inputs.items()})
        pick, clock = partial(costs.pick, job), costs.clock
        if expect is not None and (seconds := costs.expected(job)) is not None:
            expect(seconds)
    choice = choose(operation, request.backend, found, keep_off_gpu, pick)
    if choice.device is not None:
        choice.device.times()  # forget what an earlier job took
    watch = _Watch(clock)
    try:
        outputs = _compute(operation, request, params, arguments, choice, watch)
    except RECOVERABLE as fault:
        if choice.backend == "cpu" or request.backend == "gpu":
            raise
        let_go(fault)  # and so of what its job had on the device
        choice = Choice("cpu", reason=str(fault))
        if operation.randomness == "private":
            arguments["key"] = os.urandom(32)
        try:
            outputs = _compute(operation, request, params, arguments, choice, watch)
        finally:  # no fallback waits for a log to be written
            log.warning("%s of %s went from the GPU to the CPU: %s", operation.name, request.id, fault)
    if costs is not None and job is not None:
        costs.learn(choice.backend, job, watch.took)
    directory = store.new_result(request.id, attempt)
    codec.encode(operation, request, outputs, directory, store, time.time())
    return Succeeded(result=directory.name, provenance=_provenance(operation, request, attempt, choice, watch))


def _is_private(operation: Operation) -> bool:
    return operation.randomness == "private" or any(given.secret for given in operation.inputs)


def _info(array: np.ndarray) -> ArrayInfo:
    return ArrayInfo(cast(DType, array.dtype.name), array.shape)


@dataclass
class _Watch:
    """When an implementation was called and returned, and when the one before it was seen to fail."""

    clock: Callable[[], float]
    began: float = 0.0
    ended: float = 0.0
    failed: float | None = None

    @property
    def took(self) -> float:
        return self.ended - self.began

    @property
    def switched(self) -> float | None:
        return None if self.failed is None else self.began - self.failed


def _compute(
    operation: Operation, request: JobRequest, params: Any, arguments: Mapping[str, Any], choice: Choice, watch: _Watch
) -> dict[str, Any]:
    compute = operation.implementation(choice.backend)
    if choice.device is None:
        watch.began = watch.clock()
        outputs = compute(params, **arguments)
        watch.ended = watch.clock()
        return outputs
    with choice.device.memory.job() as account:
        watch.began = watch.clock()
        try:
            outputs = compute(params, **arguments, device=choice.device)
        except RECOVERABLE:
            watch.failed = watch.clock()
            raise
        watch.ended = watch.clock()
    if account.left:
        log.error(
            "%s of %s left %d blocks of %d bytes on the device: %s",
            operation.name,
            request.id,
            len(account.left),
            sum(block.nbytes for block in account.left),
            "; ".join(str(block) for block in account.left[:_BLOCKS_TOLD]),
        )
    return outputs


def _provenance(operation: Operation, request: JobRequest, attempt: int, choice: Choice, watch: _Watch) -> Provenance:
    private = operation.randomness == "private"  # how long an exact sampler took tells something of its noise
    times = choice.device.times() if choice.device is not None and not private else None
    return Provenance(
        backend=choice.backend,
        device=_name(choice.device),
        fallback_reason=choice.reason,
        backend_reason=choice.picked,
        seed=request.seed if operation.randomness == "seed" else None,
        attempt=attempt,
        copy_seconds=times.copy if times else None,
        kernel_seconds=times.kernel if times else None,
        compute_seconds=None if private else watch.took,
        fallback_seconds=watch.switched,
    )


def _name(device: Device | None) -> str:
    return cpu_name() if device is None else device.name
