"""Compile everything before the first job: a worker is ready when each operation has run once.

On a machine that has compiled nothing yet a second process compiles too, from the other end of the catalogue:
compilers hold the interpreter's lock, so threads would not help, and what one process has compiled the other loads
from the cache. Once the worker is ready that process goes on, at low priority, with what the examples leave out: the
same operations in float32.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from kernels.array import ArrayInfo, DType
from kernels.cuda import DeviceLost
from kernels.operation import Operation
from workers.backend import RECOVERABLE, choose
from workers.device import Probe, without_gpu
from workers.process import die_with, python
from workers.settings import WorkerSettings

log = logging.getLogger("warpdesk.child")


def warm_up(operations: Iterable[Operation], found: Probe) -> None:
    """Run every operation's example on its backend, so that no job waits for a compiler.

    An operation that cannot run its example is logged and left to fail in its jobs; a lost device is raised.
    """
    for operation in operations:
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
        else:
            log.info("%s is warm on the %s (%.2f s)", operation.name, choice.backend, time.perf_counter() - began)


def _info(array: np.ndarray) -> ArrayInfo:
    return ArrayInfo(cast(DType, array.dtype.name), array.shape)


def in_single_precision(operations: Iterable[Operation]) -> Iterator[Operation]:
    """The operations whose example runs in float32 too, with that example: they compile anew for it."""
    for operation in operations:
        inputs = operation.example.inputs
        taken = {expected.name: expected.dtypes for expected in operation.inputs}
        if inputs and all(inputs[name]["dtype"] == "float64" and "float32" in taken[name] for name in inputs):
            single = {name: {**example, "dtype": "float32"} for name, example in inputs.items()}
            yield replace(operation, example=replace(operation.example, inputs=single))


def start_second_compiler() -> None:
    """While this process warms up, compile from the other end in another one, unless there is compiled code.

    It finishes the catalogue in any case: a worker with a GPU wants the CPU's code for the day it falls back.
    """
    cache = Path(os.environ.get("NUMBA_CACHE_DIR", ""))
    if next(cache.rglob("*.nbi"), None) is None and (os.cpu_count() or 1) > 1:
        compiler = subprocess.Popen(
            [*python(), "-m", "workers.warmup", str(os.getpid())], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        threading.Thread(target=compiler.wait, daemon=True).start()  # so that it leaves no zombie


def main(parent: int) -> None:
    """Run every operation's example on the CPU, the last one first, then those that run in float32."""
    die_with(parent)
    operations, cpu = list(WorkerSettings().catalogue().values()), without_gpu("only compiling")
    warm_up(reversed(operations), cpu)
    os.nice(10)  # the worker is ready by now: its jobs come first
    warm_up(in_single_precision(operations), cpu)


if __name__ == "__main__":
    main(int(sys.argv[1]))
