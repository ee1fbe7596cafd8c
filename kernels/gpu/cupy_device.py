"""A GPU driven by CuPy: it owns the CUDA context, the memory and the compiled kernels of its process."""

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

_OLDEST = 70  # Volta: kernels need independent thread scheduling within a warp, which older GPUs lack


def open_device(index: int = 0, memory: str = "") -> "CupyDevice":
    """Open a GPU and check it with the canary kernel. Raises NoDevice with the reason, and no other exception.

    `memory` limits the device memory of this process, as kernels.gpu.memory.limit_of parses it.
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
        # First, because a CuPy object that fails later prints from its destructor.
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

    A lane is a non-blocking CUDA stream. Every thread is in lane 0 except inside `lane`. CUDA's default stream is not
    used: it synchronises with all other streams except non-blocking ones, so a library that uses it stops no lane.
    """

    warp = 32
    lanes = 2  # while one lane copies, the other computes or copies in the other direction

    def __init__(self, cupy: Any, index: int, cubins: Cubins, memory: str = "") -> None:
        self.cupy: Any | None = cupy
        self.index = index
        self.name = f"device {index}"  # until the driver has reported its name
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
        """Check the GPU with the canary, a kernel whose answers are known."""
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
        """Overwrite the staging buffers, and free the blocks of CuPy's pools of pinned and device memory.

        Freed memory goes back to the operating system and the driver, which clear it before another process gets it.
        No lane may be in use.
        """
        with self._faults():
            for lane in self._lanes:
                with lane.lock:
                    self._finish(lane)
                    lane.staging.forget()
            self._cupy.get_default_pinned_memory_pool().free_all_blocks()  # from uploads of libraries through CuPy
            self.memory.release()

    def launch(
        self, name: str, function: Any, grid: tuple[int, ...], block: tuple[int, ...], args: Any, shared_mem: int
    ) -> None:
        self._run(name, lambda: function(grid, block, args, shared_mem=shared_mem))

    def library(self, work: Callable[[], Any], name: str = "library") -> Any:
        """Return the result of `work`, which calls a GPU library through CuPy. Time and faults count as a kernel's."""
        return self._run(name, work)

    def _run(self, name: str, work: Callable[[], Any]) -> Any:
        with self._working() as lane, self._faults(launching=name):
            before, after, number = self._cupy.cuda.Event(), self._cupy.cuda.Event(), next(self._numbers)
            before.record()
            result = work()
            after.record()
            lane.running.append(_Launch(number, name, before, after))
            if len(lane.running) >= 256:  # CUDA events are limited too
                self._finish(lane)
        return result

    def attribute(self, function: Any, name: str) -> int:
        """An attribute of a CUDA kernel, named as in CU_FUNC_ATTRIBUTE_*."""
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
        """Hold the GPU lane of this thread for the block; no other thread uses it meanwhile."""
        lane: _Lane | None = getattr(self._thread, "lane", None)
        if lane is None:
            # Needed the first time a thread comes here: CuPy keeps the current device of each thread.
            with self._faults():
                self._cupy.cuda.Device(self.index).use()
            lane = self._thread.lane = self._lanes[0]
        with lane.lock:
            # Each time: where another's `with` over a stream ends, CuPy's current stream is that of the `with` around
            # it, or the default one, and not what `use` made it.
            with self._faults():
                lane.stream.use()
            yield lane

    def _finish(self, lane: "_Lane") -> None:
        """Wait for all kernels of a GPU lane and add up their times. Their faults are raised here."""
        lane.stream.synchronize()
        running, lane.running = lane.running, []
        lane.kernel_seconds += sum(self._cupy.cuda.get_elapsed_time(run.before, run.after) for run in running) / 1e3

    @contextmanager
    def _faults(self, needed: int = 0, launching: str = "") -> Iterator[None]:
        try:
            yield
        except self._out_of_memory as error:  # of the device alone: missing host memory is not a fault of the device
            raise OutOfMemory(f"out of memory: needed {needed} bytes{self._free()}", 2) from error
        except self._errors as error:
            raise self._fault(error, launching) from error

    def _fault(self, error: Any, launching: str) -> DeviceFault:
        found = fault(error.status, f"{self.name}: {error}", (launching,) if launching else ())
        if not isinstance(found, DeviceLost):
            return found
        # Any running kernel of any lane may be the cause, even if a launch or a copy reports the error.
        running = [run for lane in self._lanes for run in tuple(lane.running) if not run.done]
        suspects = tuple(dict.fromkeys(run.name for run in sorted(running, key=lambda run: run.number)))
        if not suspects:
            return found
        named = suspects[0] if len(suspects) == 1 else f"one of {', '.join(suspects)}"
        return fault(error.status, f"{self.name}: {error}, in {named}", suspects)

    def _free(self) -> str:
        """The free device memory within CuPy's limit, for a sentence; empty if the driver does not report it."""
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
        """Whether a kernel's launch is known to have ended without a fault."""
        try:
            return bool(self.after.done)
        except Exception:  # noqa: BLE001 (of a lost device nothing is known)
            return False


class _Lane:
    """A lane of the GPU: a CUDA stream, its launches that were not waited for, and the times of its copies."""

    def __init__(self, cupy: Any, device: int, cores: int) -> None:
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.staging = Staging(cupy, device, self.stream, cores)
        self.lock = threading.RLock()
        self.running: list[_Launch] = []
        self.up = self.down = Copied()
        self.kernel_seconds = 0.0


class CupyKernel:
    """A compiled CUDA kernel on one GPU: CuPy's implementation of Kernel."""

    def __init__(self, device: CupyDevice, name: str, expected: tuple[Parameter, ...] | None, function: Any) -> None:
        self._device = device
        self._name = name
        self._expected = expected
        self._function = function
        self._allowed = 0  # bytes of dynamic shared memory that a launch may have at present
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
        """The registers that one thread of the compiled kernel takes."""
        return self._device.attribute(self._function, "NUM_REGS")

    def _allow(self, shared_mem: int) -> None:
        """Allow a CUDA kernel more dynamic shared memory than the 48 KiB that every block may have."""
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
            # Ask for the maximum, once: a smaller value later would forbid the launch of another lane.
            self._device.set_attribute(self._function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", most)
            self._allowed = most


def _nbytes(shape: tuple[int, ...] | int, dtype: Any) -> int:
    return int(np.prod(shape, dtype=np.int64)) * int(np.dtype(dtype).itemsize)
