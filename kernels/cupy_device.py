"""A GPU driven by CuPy: it is opened, checked, and owns the context, the memory and the kernels of its process."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from kernels import canary, nvrtc
from kernels.cubins import Cubins, default_directory
from kernels.cuda import (
    DeviceFault,
    NoDevice,
    OutOfMemory,
    Parameter,
    Source,
    Times,
    check_arguments,
    check_shape,
    fault,
    parameters,
)
from kernels.memory import Memory, MemoryReport
from kernels.modules import Modules
from kernels.nvrtc import CompileError


def open_device(index: int = 0) -> "CupyDevice":
    """Return a GPU that has just computed something right, or raise NoDevice, and nothing else, with the reason."""
    try:
        return _open(index)
    except NoDevice:
        raise
    except DeviceFault as error:
        raise NoDevice(f"device {index} failed its first kernel: {error}", error.code) from None
    except Exception as error:  # noqa: BLE001 (CuPy raises plain RuntimeError too, and a CPU is left to compute on)
        raise NoDevice(f"device {index} cannot be opened: {type(error).__name__}: {error}") from None


def _open(index: int) -> "CupyDevice":
    try:
        import cupy
        from cupy.cuda import driver, runtime
    except Exception as error:  # noqa: BLE001 (a broken installation raises what it likes)
        raise NoDevice(f"CuPy cannot be imported: {error}; install warpdesk[gpu]") from None
    try:
        # First of all: a failing CuPy object prints from its destructor.
        count = runtime.getDeviceCount()
    except (runtime.CUDARuntimeError, driver.CUDADriverError) as error:
        raise NoDevice(f"CUDA finds no device: {error}", error.status) from None
    if not 0 <= index < count:
        raise NoDevice(f"there is no device {index}: CUDA sees {count}", 101)
    try:
        compiler = nvrtc.find()
        made_for, driven = compiler.major, runtime.driverGetVersion()
    except CompileError as error:
        raise NoDevice(str(error)) from None
    if made_for > driven // 1000:
        raise NoDevice(
            f"the driver knows CUDA {driven // 1000}.{driven % 1000 // 10} and cannot load what NVRTC "
            f"{compiler.version} in {compiler.path} makes: install a driver of CUDA {made_for}, or {nvrtc.INSTALL}"
        )
    device = CupyDevice(cupy, index, Cubins(default_directory(), compiler))
    device.check()
    return device


class CupyDevice:
    """One GPU driven by CuPy: it owns the context, the memory pool and the compiled kernels of this process."""

    def __init__(self, cupy: Any, index: int, cubins: Cubins) -> None:
        self.cupy: Any | None = cupy
        self.index = index
        self.cubins = cubins
        self._cupy = cupy
        self.array: type = cupy.ndarray
        self._errors = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
        with self._faults():
            cupy.cuda.Device(index).use()
            properties = cupy.cuda.runtime.getDeviceProperties(index)
        self.name: str = properties["name"].decode()
        self.architecture = f"sm_{properties['major']}{properties['minor']}"
        self.multiprocessors: int = properties["multiProcessorCount"]
        self.memory: Memory = CupyMemory(cupy)
        self._modules = Modules(cupy, self.name, self.architecture, cubins)
        self._kernels: dict[tuple[Source, str], CupyKernel] = {}
        self._running: list[tuple[Any, Any]] = []
        self._copy_seconds = 0.0
        self._kernel_seconds = 0.0

    def check(self) -> None:
        """Launch a kernel whose answers are known."""
        canary.check(self)

    def kernel(self, source: Source, name: str) -> "CupyKernel":
        key = source, name
        if key not in self._kernels:
            with self._faults():
                text, function = self._modules.function(source, name)
            self._kernels[key] = CupyKernel(self, name, parameters(text, name), function)
        return self._kernels[key]

    def to_device(self, array: Any) -> Any:
        with self._faults(array.nbytes):
            self._finish()
            start = time.perf_counter()
            copy = self._cupy.asarray(np.ascontiguousarray(array))
            self._cupy.cuda.get_current_stream().synchronize()
            self._copy_seconds += time.perf_counter() - start
        return copy

    def empty(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        with self._faults(_nbytes(shape, dtype)):
            return self._cupy.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        with self._faults(_nbytes(shape, dtype)):
            return self._cupy.zeros(shape, dtype)

    def to_host(self, array: Any) -> Any:
        with self._faults():
            self._finish()
            start = time.perf_counter()
            copy = array.get(order="C")
            self._copy_seconds += time.perf_counter() - start
        return copy

    def times(self) -> Times:
        with self._faults():
            self._finish()
        times = Times(self._copy_seconds, self._kernel_seconds)
        self._copy_seconds = self._kernel_seconds = 0.0
        return times

    def forget(self) -> None:
        """Free the blocks of CuPy's pools, of pinned host memory, through which uploads go, and of device memory.

        They go back to the operating system and to the driver, which clear memory before another process gets it.
        """
        with self._faults():
            self._finish()
            # CuPy holds the staging block of an upload until the next one is asked for, even when it has arrived.
            self._cupy.cuda.alloc_pinned_memory(1)
            self._cupy.get_default_pinned_memory_pool().free_all_blocks()
            self._cupy.get_default_memory_pool().free_all_blocks()

    def launch(self, function: Any, grid: tuple[int, ...], block: tuple[int, ...], args: Any, shared_mem: int) -> None:
        with self._faults():
            before, after = self._cupy.cuda.Event(), self._cupy.cuda.Event()
            before.record()
            function(grid, block, args, shared_mem=shared_mem)
            after.record()
            self._running.append((before, after))
            if len(self._running) >= 256:  # events are a resource too
                self._finish()

    def library(self, work: Callable[[], Any]) -> Any:
        """Return what `work` returns, which calls a library through CuPy: its time and faults count as a kernel's."""
        with self._faults():
            before, after = self._cupy.cuda.Event(), self._cupy.cuda.Event()
            before.record()
            result = work()
            after.record()
            self._running.append((before, after))
        return result

    def _finish(self) -> None:
        """Wait for all kernels, whose faults appear here, and add up their times."""
        running, self._running = self._running, []
        self._cupy.cuda.get_current_stream().synchronize()
        self._kernel_seconds += sum(self._cupy.cuda.get_elapsed_time(*pair) for pair in running) / 1e3

    @contextmanager
    def _faults(self, needed: int = 0) -> Iterator[None]:
        try:
            yield
        except MemoryError as error:
            raise OutOfMemory(f"out of memory: needed {needed} bytes{self._free()}", 2) from error
        except self._errors as error:
            raise fault(error.status, f"{self.name}: {error}") from error

    def _free(self) -> str:
        """The free bytes, with what the pool holds unused, and all bytes, in words; nothing where they are not told."""
        try:
            free, total = self._cupy.cuda.runtime.memGetInfo()
            free += self._cupy.get_default_memory_pool().free_bytes()
        except self._errors:
            return ""
        return f", free {free} of {total} bytes"


class CupyMemory:
    """CuPy's pool of device memory, the only one of this process."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._pool = cupy.get_default_memory_pool()

    def room(self) -> int:
        free, total = self._cupy.cuda.runtime.memGetInfo()
        limit = self._pool.get_limit() or total
        return int(min(free + self._pool.free_bytes(), limit - self._pool.used_bytes()))

    def release(self) -> None:
        self._pool.free_all_blocks()

    def report(self) -> MemoryReport:
        _, total = self._cupy.cuda.runtime.memGetInfo()
        return MemoryReport(self._pool.used_bytes(), self._pool.total_bytes(), self._pool.get_limit() or total)


class CupyKernel:
    """A compiled kernel on one GPU, called as Kernel says."""

    def __init__(self, device: CupyDevice, name: str, expected: tuple[Parameter, ...] | None, function: Any) -> None:
        self._device = device
        self._name = name
        self._expected = expected
        self._function = function

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        check_shape(self._name, grid, block)
        array = self._device.array
        unknown = tuple(Parameter("p" if isinstance(value, array) else "", 0) for value in args)
        check_arguments(self._name, self._expected if self._expected is not None else unknown, args, array)
        self._device.launch(self._function, grid, block, args, shared_mem)


def _nbytes(shape: tuple[int, ...] | int, dtype: Any) -> int:
    return int(np.prod(shape, dtype=np.int64)) * int(np.dtype(dtype).itemsize)
