"""The warm child: one process that owns the device, the compiled kernels and the data, and knows nothing of Redis.

Started by `workers.horse` as `python -m workers.child <file descriptor> <parent's pid> [reason not to use a GPU]`. It
answers one assignment at a time and may be killed at any moment.
"""

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np

from kernels.array import ArrayInfo, DType
from kernels.cuda import DeviceLost
from kernels.operation import Operation
from workers import execute, faults
from workers.backend import RECOVERABLE, choose
from workers.device import Probe, probe, without_gpu
from workers.pipe import LOST_DEVICE, Answer, Lost, Ready, receive_assignment, send
from workers.settings import WorkerSettings
from workers.store import SpoolStore

log = logging.getLogger("warpdesk.child")

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def main(descriptor: int, parent: int, no_gpu: str | None) -> int:
    """Probe, warm up, then serve until the parent closes the pipe."""
    _die_with(parent)
    # A terminal's Ctrl-C and a group's SIGTERM are for the parent: it decides whether this process may finish its job.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.set_inheritable(descriptor, False)
    pipe = Connection(descriptor)
    settings = WorkerSettings()
    os.environ.update(settings.cache_environment())
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s", level=logging.INFO)

    began = time.monotonic()
    operations = settings.catalogue()
    found = probe(settings.device) if no_gpu is None else without_gpu(no_gpu)
    faulty = None
    if found.device is not None and settings.faults:
        faulty = faults.FaultyDevice(found.device, faults.parse(settings.faults), settings.home / "faults")
        found = replace(found, device=faulty)
    store = SpoolStore(settings.store_directory)
    try:
        warm_up(operations, found)
        if faulty is not None:
            faulty.arm()
        send(pipe, Ready(device=found.report, seconds=time.monotonic() - began))
        while True:
            work = receive_assignment(pipe)
            outcome = execute.run(work.request, work.attempt, store, found, operations, work.keep_off_gpu)
            send(pipe, Answer(job=work.request.id, attempt=work.attempt, outcome=outcome))
    except DeviceLost as fault:
        send(pipe, Lost(message=str(fault)))
        return LOST_DEVICE
    except (EOFError, ConnectionError):
        return 0  # the parent has gone


def warm_up(operations: Mapping[str, Operation], found: Probe) -> None:
    """Run every operation's example on its backend, so that no job waits for a compiler.

    An operation that cannot run its example is logged and left to fail in its jobs; a lost device is raised.
    """
    for operation in operations.values():
        choice = choose(operation, "auto", found)
        inputs = {
            name: np.asarray(example["data"], dtype=example["dtype"])
            for name, example in operation.example.inputs.items()
        }
        arguments: dict[str, Any] = dict(inputs)
        if operation.randomness == "seed":
            arguments["seed"] = 0
        elif operation.randomness == "private":
            arguments["key"] = os.urandom(32)
        if choice.device is not None:
            arguments["device"] = choice.device
        began = time.perf_counter()
        try:
            params = operation.validate(operation.example.params, {name: _info(inputs[name]) for name in inputs})
            operation.implementation(choice.backend)(params, **arguments)
        except DeviceLost:
            raise
        except RECOVERABLE as fault:
            log.warning("%s does not run on %s: %s", operation.name, found.report.name, fault)
        except Exception as error:  # (one broken operation must not take the others down)
            log.error("the example of %s failed", operation.name, exc_info=error)
        log.info("%s is warm on the %s (%.2f s)", operation.name, choice.backend, time.perf_counter() - began)


def _info(array: np.ndarray) -> ArrayInfo:
    return ArrayInfo(cast(DType, array.dtype.name), array.shape)


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it died before the line above


if __name__ == "__main__":
    code = main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
    # A poisoned CUDA context may hang in its destructors.
    sys.stderr.flush()
    os._exit(code)
