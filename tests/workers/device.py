"""A device of paper: kernels are Python functions by name. What is tested here is the worker, not CUDA."""

import ctypes
import os
import signal
from typing import Any

import numpy as np

from warpdesk_server.kernels.gpu.canary import THREADS, answers
from warpdesk_server.kernels.gpu.contract import Copied, Kernel, Times
from warpdesk_server.kernels.gpu.cubins import CubinCounts
from warpdesk_server.kernels.gpu.faults import CompileFailed, DeviceLost, NoDevice
from warpdesk_server.kernels.gpu.memory import Ledger, Memory, MemoryReport
from warpdesk_server.kernels.gpu.source import Source


def _double_values(given: np.ndarray, doubled: np.ndarray, size: np.int64) -> None:
    doubled[:size] = given[:size] * 2


def _canary(given: np.ndarray, words: np.ndarray, doubles: np.ndarray, singles: np.ndarray) -> None:
    words[:], doubles[:], singles[:] = answers(given.size // THREADS)


KERNELS = {"double_values": _double_values, "canary": _canary}


class PaperMemory(Ledger):
    """Of a limit that nobody comes near."""

    def __init__(self) -> None:
        super().__init__(limit=16 << 30)

    def used(self) -> int:
        return 0

    def room(self) -> int:
        return self.limit

    def release(self) -> None:
        pass

    def report(self) -> MemoryReport:
        return MemoryReport(used=0, held=0, limit=self.limit)


class PaperDevice:
    """It works."""

    name = "paper"
    architecture = "sm_00"
    multiprocessors = 1
    warp = 32
    shared_memory = 64 * 1024
    l2 = 1 << 20
    lanes = 1
    cupy = None
    memory: Memory = PaperMemory()

    def kernel(self, source: Source, name: str) -> Kernel:  # noqa: ARG002 (found by name alone)
        def launch(grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0) -> None:
            KERNELS[name](*args)

        return launch

    def to_device(self, array: Any) -> Any:
        return np.array(array)

    def empty(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        return np.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        return np.zeros(shape, dtype)

    def to_host(self, array: Any, out: Any = None) -> Any:
        if out is None:
            return np.array(array)
        out[...] = array
        return out

    def times(self) -> Times:
        return Times(up=Copied(800, 0.125), down=Copied(8, 0.125), kernel=0.5)

    forgotten = 0

    def forget(self) -> None:
        self.forgotten += 1


class CachedDevice(PaperDevice):
    """It finds the canary among the kernels that are kept, and has to compile each other one once."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self.cubins = self

    def kernel(self, source: Source, name: str) -> Kernel:
        self._names.add(name)
        return super().kernel(source, name)

    @property
    def counts(self) -> CubinCounts:
        return CubinCounts(compiled=len(self._names - {"canary"}), found=len(self._names & {"canary"}), nvrtc_calls=0)


class UncompiledDevice(PaperDevice):
    """It opens, and cannot compile but the canary."""

    def kernel(self, source: Source, name: str) -> Kernel:
        if name == "canary":
            return super().kernel(source, name)
        raise CompileFailed("Failed to find CUDA headers")


def broken() -> PaperDevice:
    """Opening it fails with what no device should raise."""
    raise RuntimeError("a library of another version")


class BrokenDevice(PaperDevice):
    """It opens, and is lost as soon as it is used."""

    def to_device(self, array: Any) -> Any:  # noqa: ARG002
        raise DeviceLost("the first copy hit an uncorrectable memory error", 214)


def deadly() -> PaperDevice:
    """Opening it kills the process, as a driver may."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("this process is dead")


def ailing() -> PaperDevice:
    """Opening it fails with what a driver says of a GPU that has fallen off the bus."""
    raise NoDevice("CUDA finds no device: unknown error", 999)


def absent() -> PaperDevice:
    """It cannot be opened."""
    raise NoDevice("the device is held by another process")


def hanging() -> PaperDevice:
    """Opening it never returns, in native code that holds the interpreter's lock."""
    ctypes.PyDLL(None).sleep(3600)
    raise AssertionError("it returned")


def only_quick(*_: Any) -> PaperDevice:
    """A device that a companion for long jobs does not get."""
    if os.environ.get("WARPDESK_TAKES") == "long":
        raise NoDevice("the device is held by another process")
    return PaperDevice()


def only_long(*_: Any) -> PaperDevice:
    """A device that a companion for long jobs gets alone."""
    if os.environ.get("WARPDESK_TAKES") != "long":
        raise NoDevice("the device is held by another process")
    return PaperDevice()
