"""Run one attempt of a job: decode, choose, compute, encode."""

import errno
import logging
import os
import time
import traceback
from collections.abc import Mapping
from typing import Any

from kernels.cuda import Device, DeviceLost, NoDevice, OutOfMemory
from kernels.operation import InvalidRequest, Operation
from workers import codec
from workers.backend import RECOVERABLE, Choice, choose
from workers.device import Probe, cpu_name
from workers.protocol import Failed, JobRequest, Provenance, Succeeded
from workers.store import Store

log = logging.getLogger("warpdesk.execute")


def run(
    request: JobRequest,
    attempt: int,
    store: Store,
    found: Probe,
    operations: Mapping[str, Operation],
    keep_off_gpu: str | None = None,
) -> Succeeded | Failed:
    """Compute and write the result of one attempt; nothing is visible until the caller commits it.

    Raises DeviceLost, after which this process must end. Every other failure is a value whose message holds no data.
    """
    operation = operations.get(request.operation)
    if operation is None:
        return Failed(code="invalid-input", message=f"this worker has no operation {request.operation!r}")
    try:
        return _run(operation, request, attempt, store, found, keep_off_gpu)
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


def _run(
    operation: Operation, request: JobRequest, attempt: int, store: Store, found: Probe, keep_off_gpu: str | None
) -> Succeeded:
    params, inputs = codec.decode(operation, request, store)
    arguments: dict[str, Any] = dict(inputs)
    if operation.randomness == "seed":
        arguments["seed"] = request.seed
    elif operation.randomness == "private":
        # Drawn for this attempt, known to no one, kept nowhere: an attempt that does not commit takes it along.
        arguments["key"] = os.urandom(32)
    choice = choose(operation, request.backend, found, keep_off_gpu)
    if choice.device is not None:
        choice.device.times()  # forget what an earlier job took
    began = time.perf_counter()
    try:
        outputs = _compute(operation, params, arguments, choice)
    except RECOVERABLE as fault:
        if choice.backend == "cpu" or request.backend == "gpu":
            raise
        log.warning("%s of %s falls back to the CPU: %s", operation.name, request.id, fault)
        choice = Choice("cpu", None, str(fault))
        if operation.randomness == "private":
            arguments["key"] = os.urandom(32)
        began = time.perf_counter()
        outputs = _compute(operation, params, arguments, choice)
    took = time.perf_counter() - began
    directory = store.new_result(request.id, attempt)
    codec.encode(operation, request, outputs, directory, store, time.time())
    return Succeeded(result=directory.name, provenance=_provenance(operation, request, attempt, choice, took))


def _is_private(operation: Operation) -> bool:
    return operation.randomness == "private" or any(given.secret for given in operation.inputs)


def _compute(operation: Operation, params: Any, arguments: Mapping[str, Any], choice: Choice) -> dict[str, Any]:
    if choice.device is None:
        return operation.implementation("cpu")(params, **arguments)
    return operation.implementation("gpu")(params, **arguments, device=choice.device)


def _provenance(operation: Operation, request: JobRequest, attempt: int, choice: Choice, took: float) -> Provenance:
    private = operation.randomness == "private"  # how long an exact sampler took tells something of its noise
    times = choice.device.times() if choice.device is not None and not private else None
    return Provenance(
        backend=choice.backend,
        device=_name(choice.device),
        fallback_reason=choice.reason,
        seed=request.seed if operation.randomness == "seed" else None,
        attempt=attempt,
        copy_seconds=times.copy if times else None,
        kernel_seconds=times.kernel if times else None,
        compute_seconds=None if private else took,
    )


def _name(device: Device | None) -> str:
    return cpu_name() if device is None else device.name
