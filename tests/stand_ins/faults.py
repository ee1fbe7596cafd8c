"""A device on which things go wrong on purpose, so that recovery is tested in the real worker child.

`STAND_IN_FAULTS` is a comma-separated list of `<fault>[:<kernel>]@<n>[-<last>][/once][/start]`. n counts launches from
1 once the worker is ready, those of one kernel where one is named, and the canary's only where it is named:

    oom@1           the first launch finds device memory exhausted
    oom-alloc@3-5   allocations 3 to 5 of jobs find it exhausted, later ones do not
    full@1-2        while the first two jobs run, other processes have all of the device's memory
    launch:rsi@1-3  the first three launches of the kernel rsi are refused
    compile@1-3     the first three kernels that are asked for cannot be compiled
    lost@2          the second launch poisons the context: it and every later call raise DeviceLost
    lost=719@2      the same with another CUDA error number than 700
    hang@1          the first launch never returns, in native code that holds the interpreter's lock
    crash@1         the first launch kills the process with SIGKILL
    slow@1          the first launch takes a second longer
    leak@1          with the first launch, 1 GiB of device memory stays stuck
    corrupt@2       the second canary answers wrongly (the first is asked when the device is opened)

`/once` means once for a home directory, not once per process: a marker file is left there. `/start` counts from the
start of the process, warming up included.

Every fault leaves a line in the file `HAPPENED` beside the markers, with its kind and the time in Unix seconds. So does
every time a job waits because others have the memory it needs (`waiting`).
"""

import ctypes
import os
import re
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np

from warpdesk_server.kernels.gpu.contract import Device, Kernel, Times
from warpdesk_server.kernels.gpu.faults import CompileFailed, DeviceLost, LaunchFailed, OutOfMemory
from warpdesk_server.kernels.gpu.memory import JobMemory, Memory, MemoryReport
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.workers.child.wrapped import WrappedDevice, WrappedKernel

_ILLEGAL_ADDRESS = 700  # cudaErrorIllegalAddress
_INVALID_CONFIGURATION = 9  # cudaErrorInvalidConfiguration
_MEMORY_ALLOCATION = 2  # cudaErrorMemoryAllocation
_LEAKED = 1 << 30
_SLOW_SECONDS = 1.0
_CANARY = "canary"

HAPPENED = "happened"


@dataclass(frozen=True)
class Fault:
    """It happens from count `first` to `last`, of launches of `kernel` where one is named."""

    kind: str
    first: int
    last: int
    kernel: str = ""
    code: int = _ILLEGAL_ADDRESS
    once: bool = False
    start: bool = False

    def concerns(self, kernel: str) -> bool:
        """Whether it is planned for this kernel: for any but the canary's, where none is named."""
        return kernel == self.kernel or (not self.kernel and kernel != _CANARY)


def parse(text: str) -> tuple[Fault, ...]:
    """Raises ValueError for a fault that does not exist."""
    return tuple(_fault(part.strip()) for part in text.split(",") if part.strip())


class FaultyDevice(WrappedDevice):
    """A device whose launches are counted, and on which faults happen.

    `folder` is where markers and `HAPPENED` are left; without one nothing is, and no fault happens `/once`.
    """

    def __init__(self, device: Device, faults: tuple[Fault, ...], folder: Path | None = None) -> None:
        super().__init__(device)
        self.lanes = 1  # else launches would have no order to be counted in
        self._faulty_memory = _FaultyMemory(self, device.memory)
        self.memory = cast(Memory, self._faulty_memory)
        self._counts = dict.fromkeys(faults, 0)
        self._folder = folder
        self._happened: int | None = None
        if folder is not None:
            # Opened ahead: what is measured from a fault on does not count that.
            folder.mkdir(parents=True, exist_ok=True)
            self._happened = os.open(folder / HAPPENED, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            weakref.finalize(self, os.close, self._happened)
        self._armed = False
        self._corrupt = False
        self._lost: DeviceLost | None = None

    def arm(self) -> None:
        """From here on launches count: warming up is over."""
        self._armed = True

    def kernel(self, source: Source, name: str) -> Kernel:
        for fault in self._counts:
            if fault.kind == "compile" and fault.concerns(name) and self._happens(fault):
                raise CompileFailed(f"{name} could not be compiled (planned fault)")
        return _Faulty(self, name, self._device.kernel(source, name))

    def to_device(self, array: Any) -> Any:
        return self._allocating().to_device(array)

    def empty(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        return self._allocating().empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        return self._allocating().zeros(shape, dtype)

    def to_host(self, array: Any, out: Any = None) -> Any:
        copy = self._alive().to_host(array, out)
        if self._corrupt:
            self._corrupt = False
            copy.reshape(-1).view(np.uint8)[0] ^= 1
        return copy

    def times(self) -> Times:
        return self._alive().times()

    def before_launch(self, kernel: str) -> None:
        self._alive()
        for fault in self._counts:
            if fault.kind in _ELSEWHERE:
                continue
            counts = kernel == _CANARY if fault.kind == "corrupt" else fault.concerns(kernel)
            if counts and self._happens(fault):
                self._actions(fault)[fault.kind](kernel)

    def before_job(self) -> bool:
        """Whether others have the memory while the job runs that begins."""
        full = [self._happens(fault) for fault in self._counts if fault.kind == "full"]
        return any(full)

    def tell(self, what: str) -> None:
        """Leave a line with the time."""
        if self._happened is not None:
            os.write(self._happened, f"{what} {time.time():.6f}\n".encode())

    def _alive(self) -> Device:
        if self._lost is not None:
            raise DeviceLost(
                f"an earlier launch poisoned the context: {self._lost}", self._lost.code, self._lost.suspects
            )
        return self._device

    def _allocating(self) -> Device:
        if self._faulty_memory.others:
            self.tell("full")
            _oom("an allocation")
        for fault in self._counts:
            if fault.kind == "oom-alloc" and self._faulty_memory.working and self._happens(fault):
                _oom("an allocation")
        return self._alive()

    def _happens(self, fault: Fault) -> bool:
        if not (self._armed or fault.start or fault.kind == "corrupt"):
            return False
        self._counts[fault] += 1
        if not fault.first <= self._counts[fault] <= fault.last:
            return False
        if fault.once:
            if self._folder is None:
                return False
            try:
                (self._folder / f"{fault.kind}-{fault.kernel or 'any'}-{fault.first}").touch(exist_ok=False)
            except FileExistsError:
                return False
        self.tell(fault.kind)
        return True

    def _actions(self, fault: Fault) -> dict[str, Callable[[str], None]]:
        return {
            "oom": _oom,
            "launch": _launch,
            "lost": lambda kernel: self._lose(kernel, fault.code),
            "hang": _hang,
            "crash": _crash,
            "slow": lambda _: time.sleep(_SLOW_SECONDS),
            "leak": lambda _: self._faulty_memory.leak(),
            "corrupt": self._lie,
        }

    def _lose(self, kernel: str, code: int) -> NoReturn:
        what = "hit an illegal address" if code == _ILLEGAL_ADDRESS else f"ended with CUDA error {code}"
        self._lost = DeviceLost(f"{kernel} {what} (planned fault)", code, (kernel,))
        raise self._lost

    def _lie(self, _kernel: str) -> None:
        self._corrupt = True


class _Faulty(WrappedKernel):
    def __init__(self, device: FaultyDevice, name: str, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._device = device
        self._name = name

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        self._device.before_launch(self._name)
        self._kernel(grid, block, args, shared_mem)


class _FaultyMemory:
    """Memory of which some is stuck, or all is other processes' (`others`) while a job runs (`working`)."""

    def __init__(self, device: FaultyDevice, memory: Memory) -> None:
        self.working = self.others = False
        self._device = device
        self._memory = memory
        self._stuck = 0

    def leak(self) -> None:
        self._stuck += _LEAKED

    @contextmanager
    def job(self) -> Iterator[JobMemory]:
        self.working, self.others = True, self._device.before_job()
        try:
            with self._memory.job() as account:
                yield account
        finally:
            self.working = self.others = False

    def room(self) -> int:
        return 0 if self.others else self._memory.room()

    def unreserved(self) -> int:
        return 0 if self.others else self._memory.unreserved()

    def short(self, nbytes: int) -> bool:
        if self.others:
            self._device.tell("waiting")
        return self.others or self._memory.short(nbytes)

    def report(self) -> MemoryReport:
        report = self._memory.report()
        return replace(report, held=report.held + self._stuck, stuck=report.stuck + self._stuck)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)


# These are counted in other things than launches.
_ELSEWHERE = ("oom-alloc", "full", "compile")
_KINDS = (*_ELSEWHERE, "oom", "launch", "lost", "hang", "crash", "slow", "leak", "corrupt")
_GRAMMAR = re.compile(
    r"(?P<kind>[a-z-]+)(=(?P<code>\d+))?(:(?P<kernel>\w+))?@(?P<first>[1-9]\d*)(-(?P<last>[1-9]\d*))?"
    r"(?P<once>/once)?(?P<start>/start)?"
)


def _fault(text: str) -> Fault:
    match = _GRAMMAR.fullmatch(text)
    if match is None or match["kind"] not in _KINDS or (match["code"] and match["kind"] != "lost"):
        raise ValueError(
            f"{text!r} is not <fault>[:<kernel>]@<n>[-<last>][/once][/start] with a fault of {', '.join(_KINDS)}"
        )
    first = int(match["first"])
    return Fault(
        match["kind"],
        first,
        int(match["last"] or first),
        match["kernel"] or "",
        int(match["code"] or _ILLEGAL_ADDRESS),
        match["once"] is not None,
        match["start"] is not None,
    )


def _oom(kernel: str) -> NoReturn:
    raise OutOfMemory(
        f"out of memory: {kernel} needed 3221225472 bytes, free 2147483648 (planned fault)", _MEMORY_ALLOCATION
    )


def _launch(kernel: str) -> NoReturn:
    raise LaunchFailed(f"the launch of {kernel} was refused (planned fault)", _INVALID_CONFIGURATION)


def _hang(_kernel: str) -> None:
    # PyDLL keeps the interpreter's lock during the call, as an extension that forgot to release it does.
    ctypes.PyDLL(None).sleep(3600)


def _crash(_kernel: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
