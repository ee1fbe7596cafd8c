"""A device on which things go wrong on purpose, so that recovery is tested in the real worker child.

`WARPDESK_FAULTS` is a comma-separated list of `<fault>@<n>`, n counting launches from 1 once the worker is ready:

    oom@1       the first launch finds device memory exhausted
    launch@2    the second launch is refused
    lost@2      the second launch poisons the context: it and every later call raise DeviceLost
    hang@1      the first launch never returns, in native code that holds the interpreter's lock
    crash@1     the first launch kills the process with SIGKILL

`/once` after n (`lost@2/once`) means once for a home directory, not once per process: a marker file is left there.
"""

import ctypes
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from kernels.cuda import Device, DeviceLost, Kernel, LaunchFailed, OutOfMemory, Source, Times

_ILLEGAL_ADDRESS = 700  # cudaErrorIllegalAddress
_INVALID_CONFIGURATION = 9  # cudaErrorInvalidConfiguration
_MEMORY_ALLOCATION = 2  # cudaErrorMemoryAllocation


@dataclass(frozen=True)
class Fault:
    kind: str
    launch: int
    once: bool


def parse(text: str) -> tuple[Fault, ...]:
    """Raises ValueError for a fault that does not exist."""
    return tuple(_fault(part.strip()) for part in text.split(",") if part.strip())


class FaultyDevice:
    """A device whose launches are counted, and on which faults happen."""

    def __init__(self, device: Device, faults: tuple[Fault, ...], markers: Path) -> None:
        self._device = device
        self._faults = faults
        self._markers = markers
        self._launches = 0
        self._armed = False
        self._lost = False
        self.name = device.name
        self.architecture = device.architecture
        self.multiprocessors = device.multiprocessors
        self.cupy = device.cupy
        self.memory = device.memory

    def arm(self) -> None:
        """From here on launches count: warming up is over."""
        self._armed = True

    def kernel(self, source: Source, name: str) -> Kernel:
        kernel = self._device.kernel(source, name)

        def launch(grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0) -> None:
            self._before_launch(name)
            kernel(grid, block, args, shared_mem)

        return launch

    def to_device(self, array: Any) -> Any:
        return self._alive().to_device(array)

    def empty(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        return self._alive().empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        return self._alive().zeros(shape, dtype)

    def to_host(self, array: Any) -> Any:
        return self._alive().to_host(array)

    def times(self) -> Times:
        return self._device.times()

    def forget(self) -> None:
        self._device.forget()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)  # what a device may offer beyond the contract

    def _alive(self) -> Device:
        if self._lost:
            raise DeviceLost("an earlier launch hit an illegal address (planned fault)", _ILLEGAL_ADDRESS)
        return self._device

    def _before_launch(self, kernel: str) -> None:
        self._alive()
        if not self._armed:
            return
        self._launches += 1
        for fault in self._faults:
            if fault.launch == self._launches and self._happens(fault):
                self._actions()[fault.kind](kernel)

    def _happens(self, fault: Fault) -> bool:
        if not fault.once:
            return True
        self._markers.mkdir(parents=True, exist_ok=True)
        try:
            (self._markers / f"{fault.kind}-{fault.launch}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _actions(self) -> dict[str, Callable[[str], None]]:
        return {"oom": _oom, "launch": _launch, "lost": self._lose, "hang": _hang, "crash": _crash}

    def _lose(self, kernel: str) -> NoReturn:
        self._lost = True
        raise DeviceLost(f"{kernel} hit an illegal address (planned fault)", _ILLEGAL_ADDRESS)


_KINDS = ("oom", "launch", "lost", "hang", "crash")


def _fault(text: str) -> Fault:
    kind, _, place = text.partition("@")
    launch, _, option = place.partition("/")
    if kind not in _KINDS or not launch.isdigit() or int(launch) < 1 or option not in ("", "once"):
        raise ValueError(f"{text!r} is not <fault>@<launch>[/once] with a fault of {', '.join(_KINDS)}")
    return Fault(kind, int(launch), option == "once")


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
