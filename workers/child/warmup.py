"""The warm-up of a worker's child: it compiles everything before a user needs it.

A worker is ready when each operation's documented example has run. On the CPU it computes jobs as soon as one has, and
tries the others between two jobs, those that compile quickly first.

On a machine that has compiled nothing yet a second process compiles for the CPU too, from the other end of that order:
compilers hold the interpreter's lock, so threads would not help, and what one process has compiled the other loads from
the cache. Then that process goes on, at low priority, with what the documented examples leave out: operations'
variants, and all of them in float32. A GPU's kernels can only be compiled by the process that owns the device, and
faster, so there the variants come before the worker is ready.
"""

import fcntl
import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.fingerprint import fingerprint
from warpdesk_server.kernels.gpu.faults import DeviceLost, NoDevice
from warpdesk_server.kernels.operation import Example, Operation
from warpdesk_server.workers.child.backend import RECOVERABLE, choose
from warpdesk_server.workers.child.device import Probe, cpu_name, without_gpu
from warpdesk_server.workers.process import die_with, python
from warpdesk_server.workers.queue.reports import FailedExample
from warpdesk_server.workers.settings import WorkerSettings

log = logging.getLogger("warpdesk.child")

_LONGEST_MESSAGE = 300


@dataclass(frozen=True)
class Trial:
    """One request that the warm-up runs.

    `variant` tells it apart from the operation's documented example, for which it is None.
    """

    operation: Operation
    example: Example
    variant: str | None = None

    def __str__(self) -> str:
        return self.operation.name + (f" ({self.variant})" if self.variant else "")


def documented(operations: Iterable[Operation]) -> Iterator[Trial]:
    """The warm-up's trials of each operation's documented example, those that the CPU compiles quickly first."""
    for operation in sorted(operations, key=lambda operation: operation.compile_seconds):
        yield Trial(operation, operation.example)


def variants(operations: Iterable[Operation]) -> Iterator[Trial]:
    """The warm-up's trials of what the documented examples leave out.

    These are the variants, and every example whose inputs may be float32 in that.
    """
    for operation in operations:
        for example in (operation.example, *operation.variants):
            failures = ", ".join(
                f"{name} {value if isinstance(value, str) else json.dumps(value)}"
                for name, value in example.params.items()
                if operation.example.params.get(name) != value
            )
            if example is not operation.example:
                yield Trial(operation, example, failures or "another input")
            if (single := _in_single_precision(operation, example)) is not None:
                yield Trial(operation, single, f"{failures}, float32" if failures else "float32")


def choices(trial: Trial) -> dict[str, bool | str]:
    """The words and switches that tell a variant's parameters apart in the warm-up.

    They choose code, where numbers are only computed with. A number that is not 0, where the documented example has 0
    or none, is a switch that is on.
    """
    fields = trial.operation.params.model_fields
    found: dict[str, bool | str] = {}
    for name, value in trial.example.params.items():
        shown = trial.operation.example.params.get(name, fields[name].get_default())
        if isinstance(value, bool) or (isinstance(value, str) and value.isidentifier()):
            if shown != value:
                found[name] = value
        elif isinstance(value, int | float) and value and not shown:
            found[name] = True
    return found


def _in_single_precision(operation: Operation, example: Example) -> Example | None:
    taken = {expected.name: expected.dtypes for expected in operation.inputs}
    inputs = example.inputs
    if inputs and all(given["dtype"] == "float64" and "float32" in taken[name] for name, given in inputs.items()):
        return replace(example, inputs={name: {**given, "dtype": "float32"} for name, given in inputs.items()})
    return None


def try_example(trial: Trial, found: Probe, skip: Mapping[str, str] = MappingProxyType({})) -> FailedExample | None:
    """Run an example in the warm-up as its job would run; returns its failure, if it fails.

    No job waits for a compiler then. What cannot run on the GPU is run on the CPU, as its jobs will be; so is what
    `skip` names, because the device was lost in it before. Raises DeviceLost.
    """
    began = time.perf_counter()
    choice = choose(trial.operation, "auto", found)
    if choice.device is not None and str(trial) in skip:
        log.warning("%s is not tried on %s: %s", trial, found.report.name, skip[str(trial)])
        lost = _failure(trial, "gpu", DeviceLost(skip[str(trial)]), fallback=_runs_on_the_cpu(trial))
        return lost.model_copy(update={"lost_the_device": True})
    try:
        with nullcontext() if choice.device is not None else _alone(trial):
            answer(trial, choice.backend, choice.device)
    except DeviceLost:
        raise
    except RECOVERABLE as fault:
        if choice.device is None or not _runs_on_the_cpu(trial):
            log.error("%s failed its example on %s: %s", trial, found.report.name, fault)
            return _failure(trial, choice.backend, fault)
        if isinstance(fault, NoDevice):  # this request is not for the GPU, and the answer will say why
            log.info("%s runs on the CPU: %s", trial, fault)
            return None
        log.warning("%s does not run on %s, its jobs fall back to the CPU: %s", trial, found.report.name, fault)
        return _failure(trial, choice.backend, fault, fallback=True)
    except Exception as error:  # (one broken operation must not take the others down)
        log.error("the example of %s failed on the %s", trial, choice.backend, exc_info=error)
        return _failure(trial, choice.backend, error)
    log.info("%s is warm on the %s (%.2f s)", trial, choice.backend, time.perf_counter() - began)
    return None


@contextmanager
def _alone(trial: Trial) -> Iterator[None]:
    """Wait while another process compiles the same code for the same cache: it can be loaded from there afterwards."""
    directory = os.environ.get("NUMBA_CACHE_DIR")
    code = f"{trial.operation.compiled_with or trial.operation.name} {trial.variant}"
    name = f"compiling-{hashlib.sha256(code.encode()).hexdigest()[:12]}"
    with ExitStack() as stack:
        with suppress(OSError):  # the cache may be nobody's to write, or on a file system without locks
            if directory is not None:
                Path(directory).mkdir(parents=True, exist_ok=True)
                fcntl.flock(stack.enter_context(Path(directory, name).open("w")), fcntl.LOCK_EX)
        yield


def warm_up(trials: Iterable[Trial], found: Probe) -> tuple[FailedExample, ...]:
    """Run each example of a warm-up; returns the failures. Raises DeviceLost."""
    return tuple(failure for trial in trials if (failure := try_example(trial, found)) is not None)


def answer(trial: Trial, backend: Any, device: Any, key: bytes | None = None) -> dict[str, Any]:
    """Run one request of the warm-up and return its outputs. `key` stands for the random one of a private operation."""
    operation, example = trial.operation, trial.example
    inputs = {name: np.asarray(given["data"], dtype=given["dtype"]) for name, given in example.inputs.items()}
    arguments: dict[str, Any] = dict(inputs)
    if operation.randomness == "seed":
        arguments["seed"] = 0
    elif operation.randomness == "private":
        arguments["key"] = key or os.urandom(32)
    if device is not None:
        arguments["device"] = device
    params = operation.validate(example.params, {name: _info(array) for name, array in inputs.items()})
    return operation.implementation(backend)(params, **arguments)


def _info(array: np.ndarray) -> ArrayInfo:
    has_nan = array.dtype.kind == "f" and bool(np.isnan(array).any())
    return ArrayInfo(cast(DType, array.dtype.name), array.shape, has_nan)


def _runs_on_the_cpu(trial: Trial) -> bool:
    try:
        answer(trial, "cpu", None)
    except Exception as error:  # (it is told by the failure on the GPU that led here)
        log.error("the example of %s failed on the CPU too", trial, exc_info=error)
        return False
    return True


def _failure(trial: Trial, backend: Any, error: Exception, fallback: bool = False) -> FailedExample:
    return FailedExample(
        operation=trial.operation.name,
        variant=trial.variant,
        choices={} if trial.variant is None else choices(trial),
        dtypes={} if trial.variant is None else {name: given["dtype"] for name, given in trial.example.inputs.items()},
        backend=backend,
        error=type(error).__name__,
        message=" ".join(str(error).split())[:_LONGEST_MESSAGE],
        fallback=fallback,
    )


def start_second_compiler(settings: WorkerSettings) -> "subprocess.Popen[bytes] | None":
    """While this process warms up, compile for the CPU in another one.

    None where everything is compiled already. It goes through the whole catalogue: a worker with a GPU wants the CPU's
    code for the day it falls back.
    """
    if stamp(settings).exists():
        return None
    compiler = subprocess.Popen(
        [*python(), "-m", "warpdesk_server.workers.child.warmup", str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    threading.Thread(target=compiler.wait, daemon=True).start()  # so that it leaves no zombie
    return compiler


def stamp(settings: WorkerSettings) -> Path:
    """The path of the file that tells the warm-up that the whole catalogue is compiled.

    That holds for these sources, this Numba and this CPU.
    """
    for_what = f"{settings.operations} {fingerprint()} {version('numba')} {version('numpy')} {cpu_name()} {sys.version}"
    return Path(os.environ["NUMBA_CACHE_DIR"]) / f"complete-{hashlib.sha256(for_what.encode()).hexdigest()[:12]}"


def main(parent: int) -> None:
    """Warm up in the second process: run every documented example on the CPU, the last one first, then the variants."""
    die_with(parent)
    settings, cpu = WorkerSettings(), without_gpu("only compiling")
    operations = list(settings.catalogue().values())
    if os.cpu_count() == 1:
        os.nice(10)  # the worker's own warm-up comes first
    failed = warm_up(reversed([*documented(operations)]), cpu)
    os.nice(10)  # the worker is ready by now: its jobs come first
    failed += warm_up(variants(operations), cpu)
    if failed:
        return  # what was not compiled is tried again at the next start
    done = stamp(settings)
    done.parent.mkdir(parents=True, exist_ok=True)
    done.touch()


if __name__ == "__main__":
    main(int(sys.argv[1]))
