"""A GPU driven by CuPy: it is opened, checked, and owns the context, the memory and the kernels of its process."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpdesk_server.kernels.gpu import canary, nvrtc
from warpdesk_server.kernels.gpu.arguments import Parameter, check_arguments, check_shape, parameters
from warpdesk_server.kernels.gpu.contract import Copied, Times
from warpdesk_server.kernels.gpu.cubins import Cubins, default_directory
from warpdesk_server.kernels.gpu.cupy_memory import CupyMemory
from warpdesk_server.kernels.gpu.faults import DeviceFault, DeviceLost, LaunchFailed, NoDevice, OutOfMemory, fault
from warpdesk_server.kernels.gpu.memory import Memory, limit_of
from warpdesk_server.kernels.gpu.modules import Modules
from warpdesk_server.kernels.gpu.nvrtc import CompileError
from warpdesk_server.kernels.gpu.rows import as_rows, check_out
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.gpu.staging import Staging, cores

_OLDEST = 70  # Volta: kernels wait for other threads of a warp, which older GPUs run in step


def open_device(index: int = 0, memory: str = "") -> "CupyDevice":
    """Return a GPU that has just computed something right, or raise NoDevice, and nothing else, with the reason.

    `memory` limits what this process takes of it, as kernels.gpu.memory.limit_of reads it.
    """
    try:
        return _open(index, memory)
    except NoDevice:
        raise
    except DeviceFault as error:
        raise NoDevice(f"device {index} failed its first kernel: {error}", error.code) from None
    except Exception as error:  # noqa: BLE001 (CuPy raises plain RuntimeError too, and a CPU is left to compute on)
        raise NoDevice(f"device {index} cannot be opened: {type(error).__name__}: {error}") from None


def _open(index: int, memory: str) -> "CupyDevice":
    try:
        import cupy
        from cupy.cuda import driver, runtime
    except Exception as error:  # noqa: BLE001 (a broken installation raises what it likes)
        raise NoDevice(f"CuPy cannot be imported: {error}") from None
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
            f"{compiler.version} makes: it takes a driver of CUDA {made_for}, or NVRTC of CUDA {driven // 1000}"
        )
    device = CupyDevice(cupy, index, Cubins(default_directory(), compiler), memory)
    if int(device.architecture.removeprefix("sm_")) < _OLDEST:
        raise NoDevice(
            f"{device.name} is of architecture {device.architecture}; the kernels need sm_{_OLDEST} or later"
        )
    device.check()
    return device


class CupyDevice:
    """One GPU driven by CuPy: it owns the context, the memory pool and the compiled kernels of this process.

    A lane is a CUDA stream. Every thread is in lane 0 except inside `lane`, and none on CUDA's default stream. That
    waits for all others and makes them wait, but for non-blocking ones: so a library that uses it stops no lane.
    """

    warp = 32
    lanes = 2  # while one is copied to or from, the other computes or copies the other way

    def __init__(self, cupy: Any, index: int, cubins: Cubins, memory: str = "") -> None:
        self.cupy: Any | None = cupy
        self.index = index
        self.name = f"device {index}"  # until it has told its own
        self._lanes: tuple[_Lane, ...] = ()
        self.cubins = cubins
        self._cupy = cupy
        self.array: type = cupy.ndarray
        self._errors = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
        self._out_of_memory: type[Exception] = cupy.cuda.memory.OutOfMemoryError
        with self._faults():
            cupy.cuda.Device(index).use()
            properties = cupy.cuda.runtime.getDeviceProperties(index)
            _, total = cupy.cuda.runtime.memGetInfo()
            self._lanes = tuple(_Lane(cupy, index, cores(self.lanes)) for _ in range(self.lanes))
        self.name = properties["name"].decode()
        self.architecture = f"sm_{properties['major']}{properties['minor']}"
        self.multiprocessors: int = properties["multiProcessorCount"]
        self.shared_memory: int = properties["sharedMemPerBlockOptin"]
        self.l2: int = properties["l2CacheSize"]
        self._memory = CupyMemory(cupy, limit_of(memory, total))
        self.memory: Memory = self._memory
        self._modules = Modules(cupy, self.name, self.architecture, cubins)
        self._kernels: dict[tuple[Source, str], CupyKernel] = {}
        self._numbers = itertools.count()
        self._compiling = threading.Lock()
        self._thread = threading.local()

    def check(self) -> None:
        """Launch a kernel whose answers are known."""
        canary.check(self)

    def lane(self, index: int) -> AbstractContextManager[None]:
        with self._faults():
            self._cupy.cuda.Device(self.index).use()
            given = self._lanes[0].stream.record()
        return self._within(self._lanes[index], given)

    @contextmanager
    def _within(self, lane: "_Lane", given: Any) -> Iterator[None]:
        with self._faults():
            self._cupy.cuda.Device(self.index).use()
            lane.stream.wait_event(given)
        self._thread.lane = lane
        with lane.stream:
            try:
                yield
            finally:
                try:
                    with self._faults():
                        self._finish(lane)
                finally:
                    del self._thread.lane

    def kernel(self, source: Source, name: str) -> "CupyKernel":
        key = source, name
        with self._compiling:
            if key not in self._kernels:
                with self._working(), self._faults():
                    text, function = self._modules.function(source, name)
                self._kernels[key] = CupyKernel(self, name, parameters(text, name), function)
            return self._kernels[key]

    def to_device(self, array: Any) -> Any:
        array = np.asarray(array)
        try:
            rows = as_rows(array)
        except TypeError:
            rows = as_rows(np.ascontiguousarray(array))
        with self._working() as lane, self._faults(array.nbytes):
            self._finish(lane)
            start = time.perf_counter()
            copy = self._made(self._cupy.empty, array.shape, array.dtype)
            lane.staging.upload(rows, copy.data)
            lane.up += Copied(array.nbytes, time.perf_counter() - start)
        return copy

    def empty(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        with self._working(), self._faults(_nbytes(shape, dtype)):
            return self._made(self._cupy.empty, shape, dtype)

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        with self._working(), self._faults(_nbytes(shape, dtype)):
            return self._made(self._cupy.zeros, shape, dtype)

    def to_host(self, array: Any, out: Any = None) -> Any:
        if out is not None:
            check_out(array, out)
        with self._working() as lane, self._faults(array.nbytes):
            self._finish(lane)
            start = time.perf_counter()
            host = np.empty(array.shape, array.dtype) if out is None else out
            lane.staging.download(self._cupy.ascontiguousarray(array).data, as_rows(host))
            lane.down += Copied(array.nbytes, time.perf_counter() - start)
        return host

    def times(self) -> Times:
        with self._faults():
            for lane in self._lanes:
                with lane.lock:
                    self._finish(lane)
        up, down, kernel = Copied(), Copied(), 0.0
        for lane in self._lanes:
            up, down, kernel = up + lane.up, down + lane.down, kernel + lane.kernel_seconds
            lane.up, lane.down, lane.kernel_seconds = Copied(), Copied(), 0.0
        return Times(up, down, kernel)

    def forget(self) -> None:
        """Overwrite the staging buffers, and free the blocks of CuPy's pools, of pinned and of device memory.

        What is freed goes back to the operating system and to the driver, which clear memory before another process
        gets it. No lane may be at work.
        """
        with self._faults():
            for lane in self._lanes:
                with lane.lock:
                    self._finish(lane)
                    lane.staging.forget()
            self._cupy.get_default_pinned_memory_pool().free_all_blocks()  # what libraries sent up through CuPy
            self.memory.release()

    def launch(
        self, name: str, function: Any, grid: tuple[int, ...], block: tuple[int, ...], args: Any, shared_mem: int
    ) -> None:
        self._run(name, lambda: function(grid, block, args, shared_mem=shared_mem))

    def library(self, work: Callable[[], Any], name: str = "library") -> Any:
        """Return what `work` returns, which calls a library through CuPy: its time and faults count as a kernel's."""
        return self._run(name, work)

    def _run(self, name: str, work: Callable[[], Any]) -> Any:
        with self._working() as lane, self._faults(launching=name):
            before, after, number = self._cupy.cuda.Event(), self._cupy.cuda.Event(), next(self._numbers)
            before.record()
            result = work()
            after.record()
            lane.running.append(_Launch(number, name, before, after))
            if len(lane.running) >= 256:  # events are a resource too
                self._finish(lane)
        return result

    def attribute(self, function: Any, name: str) -> int:
        """An attribute of a kernel, as CUDA's CU_FUNC_ATTRIBUTE_* name it."""
        driver = self._cupy.cuda.driver
        with self._working(), self._faults():
            return int(driver.funcGetAttribute(getattr(driver, f"CU_FUNC_ATTRIBUTE_{name}"), function.ptr))

    def set_attribute(self, function: Any, name: str, value: int) -> None:
        driver = self._cupy.cuda.driver
        with self._working(), self._faults():
            driver.funcSetAttribute(function.ptr, getattr(driver, f"CU_FUNC_ATTRIBUTE_{name}"), value)

    def occupancy(self, function: Any, threads: int, shared_mem: int) -> int:
        with self._working(), self._faults():
            count = self._cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
            return int(count(function.ptr, threads, shared_mem))

    def _made(self, make: Callable[..., Any], shape: tuple[int, ...] | int, dtype: Any) -> Any:
        with self._memory.making(f"{np.dtype(dtype)} {shape}"):
            return make(shape, dtype)

    @contextmanager
    def _working(self) -> Iterator["_Lane"]:
        """This thread's lane, for this thread alone."""
        lane: _Lane | None = getattr(self._thread, "lane", None)
        if lane is None:
            # A thread that comes here the first time: to CuPy the device and the stream in use belong to a thread.
            with self._faults():
                self._cupy.cuda.Device(self.index).use()
                self._lanes[0].stream.use()
            lane = self._thread.lane = self._lanes[0]
        with lane.lock:
            yield lane

    def _finish(self, lane: "_Lane") -> None:
        """Wait for all kernels of a lane, whose faults appear here, and add up their times."""
        lane.stream.synchronize()
        running, lane.running = lane.running, []
        lane.kernel_seconds += sum(self._cupy.cuda.get_elapsed_time(run.before, run.after) for run in running) / 1e3

    @contextmanager
    def _faults(self, needed: int = 0, launching: str = "") -> Iterator[None]:
        try:
            yield
        except self._out_of_memory as error:  # the device's: a host that has no memory is no fault of it
            raise OutOfMemory(f"out of memory: needed {needed} bytes{self._free()}", 2) from error
        except self._errors as error:
            raise self._fault(error, launching) from error

    def _fault(self, error: Any, launching: str) -> DeviceFault:
        found = fault(error.status, f"{self.name}: {error}", (launching,) if launching else ())
        if not isinstance(found, DeviceLost):
            return found
        # It may come from any kernel still running, in any lane, even where a launch or a copy is what says so.
        running = [run for lane in self._lanes for run in tuple(lane.running) if not run.done]
        suspects = tuple(dict.fromkeys(run.name for run in sorted(running, key=lambda run: run.number)))
        if not suspects:
            return found
        named = suspects[0] if len(suspects) == 1 else f"one of {', '.join(suspects)}"
        return fault(error.status, f"{self.name}: {error}, in {named}", suspects)

    def _free(self) -> str:
        """What is free within the limit, in words; nothing where the driver does not tell."""
        try:
            return f", free {max(0, self._memory.room())} of {self._memory.limit} bytes"
        except self._errors:
            return ""


@dataclass(frozen=True)
class _Launch:
    number: int  # over all lanes
    name: str
    before: Any
    after: Any

    @property
    def done(self) -> bool:
        """Whether it is known to have ended well."""
        try:
            return bool(self.after.done)
        except Exception:  # noqa: BLE001 (of a lost device nothing is known)
            return False


class _Lane:
    """A stream, what was launched on it and not waited for, and what it copied and took."""

    def __init__(self, cupy: Any, device: int, cores: int) -> None:
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.staging = Staging(cupy, device, self.stream, cores)
        self.lock = threading.RLock()
        self.running: list[_Launch] = []
        self.up = self.down = Copied()
        self.kernel_seconds = 0.0


class CupyKernel:
    """A compiled kernel on one GPU, called as Kernel says."""

    def __init__(self, device: CupyDevice, name: str, expected: tuple[Parameter, ...] | None, function: Any) -> None:
        self._device = device
        self._name = name
        self._expected = expected
        self._function = function
        self._allowed = 0  # bytes of dynamic shared memory that a launch may have as it is
        self._allowing = threading.Lock()

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        check_shape(self._name, grid, block)
        array = self._device.array
        unknown = tuple(Parameter("p" if isinstance(value, array) else "", 0) for value in args)
        check_arguments(self._name, self._expected if self._expected is not None else unknown, args, array)
        self._allow(shared_mem)
        self._device.launch(self._name, self._function, grid, block, args, shared_mem)

    def blocks_per_multiprocessor(self, threads: int, shared_mem: int = 0) -> int:
        self._allow(shared_mem)
        return self._device.occupancy(self._function, threads, shared_mem)

    @property
    def registers(self) -> int:
        """What one thread of it takes."""
        return self._device.attribute(self._function, "NUM_REGS")

    def _allow(self, shared_mem: int) -> None:
        """Ask for more dynamic shared memory than the 48 KiB that every block may have."""
        with self._allowing:
            attribute = self._device.attribute
            self._allowed = self._allowed or attribute(self._function, "MAX_DYNAMIC_SHARED_SIZE_BYTES")
            if shared_mem <= self._allowed:
                return
            most = self._device.shared_memory - attribute(self._function, "SHARED_SIZE_BYTES")
            if shared_mem > most:
                raise LaunchFailed(
                    f"{self._name}: {shared_mem} bytes of dynamic shared memory, {self._device.name} allows {most}",
                    1,
                    (self._name,),
                )
            # All there is, once: another lane's launch is then never one that the next request has outlawed.
            self._device.set_attribute(self._function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", most)
            self._allowed = most


def _nbytes(shape: tuple[int, ...] | int, dtype: Any) -> int:
    return int(np.prod(shape, dtype=np.int64)) * int(np.dtype(dtype).itemsize)
