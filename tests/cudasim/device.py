"""A kernels.gpu.contract.Device that runs kernels on the CPU, strictly: what CUDA leaves undefined is an error here."""

import ctypes
import math
import os
import platform
import threading
import time
import weakref
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import numpy as np

from tests.cudasim.build import LIBRARIES, KernelEntry, Module, compile_source, load, runtime
from warpdesk_server.kernels.gpu.arguments import Parameter, check_arguments, check_shape
from warpdesk_server.kernels.gpu.contract import Copied, Times
from warpdesk_server.kernels.gpu.faults import DeviceFault, DeviceLost, LaunchFailed, OutOfMemory
from warpdesk_server.kernels.gpu.memory import Ledger, Life, MemoryReport
from warpdesk_server.kernels.gpu.rows import check_out
from warpdesk_server.kernels.gpu.source import Source

Order = Literal["forward", "backward", "random"]
_ORDERS = {"forward": 0, "backward": 1, "random": 2}
_SHARED_MEMORY = 64 * 1024  # of a block: what Turing allows, the least of all GPUs that kernels are compiled for
_TSAN_THREADS = 6144  # it knows some 8,000 threads at a time
CAN_FLUSH = platform.machine() in ("x86_64", "AMD64")
NAN, FINITE = 0xFF, 0x5A  # bytes: as floats NaN, or 1.5e16 (float32) and 1.8e127; as integers -1, or 90, 0x5A5A, ...
_kept: list[Any] = []  # memory of launches that never ended


class KernelDefect(DeviceLost):
    """The kernel did what CUDA leaves undefined (the message has the line); code 719, as a GPU would report."""


class TooManyThreads(DeviceFault):
    """Thread sanitizer, which must see all blocks at once, cannot hold them."""


class DeviceArray:
    """An array in device memory: what cupy.ndarray offers and our gpu.py use; the host cannot read it by accident."""

    def __init__(self, memory: Any, array: "np.ndarray[Any, Any]") -> None:
        self._memory = memory
        self._array = array

    shape = property(lambda self: self._array.shape)
    dtype = property(lambda self: self._array.dtype)
    size = property(lambda self: self._array.size)
    ndim = property(lambda self: self._array.ndim)
    nbytes = property(lambda self: self._array.nbytes)
    itemsize = property(lambda self: self._array.itemsize)
    flags = property(lambda self: self._array.flags)

    def __len__(self) -> int:
        return len(self._array)

    def reshape(self, *shape: Any) -> "DeviceArray":
        return self._view(self._array.reshape(*shape))

    def ravel(self) -> "DeviceArray":
        return self._view(self._array.reshape(-1))

    def view(self, dtype: Any) -> "DeviceArray":
        return self._view(self._array.view(dtype))

    def __getitem__(self, index: Any) -> "DeviceArray":
        view = self._array[index]
        if not isinstance(view, np.ndarray) or (view.size and not np.shares_memory(view, self._array)):
            raise TypeError("take slices of a device array; its elements are read after to_host")
        return self._view(view)

    def fill(self, value: Any) -> None:
        self._array.fill(value)

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise TypeError("a device array becomes a host array through device.to_host")

    def _view(self, array: "np.ndarray[Any, Any]") -> "DeviceArray":
        return DeviceArray(self._memory, array)


class EmulatedMemory(Ledger):
    """A budget of bytes; nothing is kept for reuse. `others` is what other processes would have of it."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.others = 0
        self._used = 0
        self._freed: deque[int] = deque()  # sizes of what died since: that may happen in any thread, at any moment
        self._lock = threading.Lock()

    def used(self) -> int:
        with self._lock:
            return self._counted()

    def room(self) -> int:
        return self.limit - self.others - self.used()

    def release(self) -> None:
        """Nothing is held."""

    def report(self) -> MemoryReport:
        used = self.used()
        return MemoryReport(used, used, self.limit, peak=self.peak)

    def take(self, nbytes: int, what: str) -> Life:
        """Raises OutOfMemory where they are not there."""
        with self._lock:
            room = self.limit - self.others - self._counted()
            if nbytes > room:
                raise OutOfMemory(f"out of memory: needed {nbytes} bytes, free {room} bytes", 2)
            self._used += nbytes
        return self.born(nbytes, what)

    def give(self, nbytes: int) -> None:
        self._freed.append(nbytes)

    def _counted(self) -> int:
        while self._freed:
            self._used -= self._freed.popleft()
        return self._used


class EmulatedDevice:
    """Implements kernels.gpu.contract.Device. `order` is that of threads and blocks; no result may depend on it.

    `workers` blocks are resident at a time. `sanitize` compiles kernels with "address,undefined" or "thread"; the
    process must then run under that sanitizer (tests.cudasim.sanitized). `memory` limits the bytes allocated at a time.
    Fresh memory, shared too, is filled with the byte `poison`; an output nobody writes holds it.
    `flush` turns denormals into 0, as -ftz=true does for float32; it does so for float64 too, and on x86 only.
    """

    cupy = None
    architecture = "emulated"

    def __init__(
        self,
        order: Order = "forward",
        workers: int = 2,
        sanitize: str | None = None,
        seed: int = 0,
        memory: int = 4 << 30,
        limit: float = 60.0,
        flush: bool = False,
        poison: int = NAN,
        lanes: int = 1,
    ) -> None:
        if flush and not CAN_FLUSH:
            raise RuntimeError(f"flush=True needs the MXCSR of an x86 processor, and this is {platform.machine()}")
        if sanitize is not None and LIBRARIES[sanitize] not in os.environ.get("LD_PRELOAD", ""):
            # Loaded later, a sanitizer would end the process.
            raise RuntimeError(f"sanitize={sanitize!r} needs {LIBRARIES[sanitize]} loaded first: use run_sanitized")
        self.name = "CUDA emulation"
        self._kernels: dict[tuple[Source, str], EmulatedKernel] = {}
        self.multiprocessors = 4
        self.warp = 32
        self.shared_memory = _SHARED_MEMORY
        self.l2 = 1 << 20
        self.blocks_per_multiprocessor = 2  # of any kernel; settable, as all of these are
        self.lanes = lanes
        self.order = order
        self.sanitize = sanitize
        # To address sanitizer __shared__ is one static variable; thread sanitizer needs a thread of its own per block.
        self.workers = {None: workers, "address,undefined": 1, "thread": 64}[sanitize]
        self.launches: list[tuple[Source, str]] = []  # what was launched, in order
        self._seed = seed
        self._limit = limit
        self.memory = EmulatedMemory(memory)
        self._flush = flush
        self._poison = poison
        self._up = self._down = Copied()
        self._kernel_seconds = 0.0

    def lane(self, index: int) -> AbstractContextManager[None]:
        """Launches and copies are done when they return, in whatever thread."""
        if not 1 <= index < self.lanes:
            raise ValueError(f"there is no lane {index} to enter: the device has {self.lanes}")
        return nullcontext()

    def kernel(self, source: Source, name: str) -> "EmulatedKernel":
        key = source, name
        if key not in self._kernels:  # as on a GPU: a file is looked at once
            module = load(compile_source(source, self.sanitize))
            if name not in module.kernels:
                there = ", ".join(module.kernels)
                raise LaunchFailed(f"{source.path.name} has no kernel {name!r}; it has {there}", 500)
            self._kernels[key] = EmulatedKernel(self, source, module, module.kernels[name])
        return self._kernels[key]

    def to_device(self, array: Any) -> DeviceArray:
        array = np.asarray(array)
        start = time.perf_counter()
        copy = self.empty(array.shape, array.dtype)
        copy._array[...] = array
        self._up += Copied(array.nbytes, time.perf_counter() - start)
        return copy

    def empty(self, shape: tuple[int, ...] | int, dtype: Any) -> DeviceArray:
        array = self._allocate(shape, dtype)
        array._array.reshape(-1).view(np.uint8).fill(self._poison)
        return array

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> DeviceArray:
        array = self._allocate(shape, dtype)
        array._array.reshape(-1).view(np.uint8).fill(0)
        return array

    def to_host(self, array: DeviceArray, out: Any = None) -> "np.ndarray[Any, Any]":
        if out is not None:
            check_out(array, out)
        start = time.perf_counter()
        host: np.ndarray[Any, Any] = np.empty(array.shape, array.dtype) if out is None else out
        np.copyto(host, array._array)
        self._down += Copied(host.nbytes, time.perf_counter() - start)
        return host

    def times(self) -> Times:
        times = Times(self._up, self._down, self._kernel_seconds)
        self._up, self._down, self._kernel_seconds = Copied(), Copied(), 0.0
        return times

    def forget(self) -> None:
        """Nothing is kept for reuse: memory is freed with its array."""

    def _allocate(self, shape: tuple[int, ...] | int, dtype: Any) -> DeviceArray:
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        life = self.memory.take(nbytes, f"{dtype} {shape}")
        # The exact size, from the C library: address sanitizer guards both ends. Aligned as cudaMalloc aligns.
        address = ctypes.c_void_p()
        if _libc().posix_memalign(ctypes.byref(address), 256, max(nbytes, 1)):
            self.memory.give(nbytes)
            raise OutOfMemory(f"out of memory: needed {nbytes} bytes", 2)
        assert address.value is not None
        memory = (ctypes.c_char * nbytes).from_address(address.value)
        weakref.finalize(memory, self._free, address.value, nbytes, life)
        return DeviceArray(memory, np.frombuffer(memory, dtype).reshape(shape))

    def _free(self, address: int, nbytes: int, _life: Life) -> None:
        _libc().free(ctypes.c_void_p(address))
        self.memory.give(nbytes)


class EmulatedKernel:
    """One kernel of a compiled source, called as kernels.gpu.contract.Kernel says."""

    def __init__(self, device: EmulatedDevice, source: Source, module: Module, entry: KernelEntry) -> None:
        self.name = entry.name.decode()
        self._device = device
        self.source = source
        self._module = module
        self._entry = entry
        self._expected = deduced(entry)

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        device = self._device
        self._check_shape(grid, block, shared_mem)
        arguments = self._pack(args)
        device.launches.append((self.source, self.name))
        message = ctypes.create_string_buffer(4096)
        start = time.perf_counter()
        outcome = runtime().cudasim_launch(
            int(device._flush),
            device._poison,
            ctypes.byref(self._entry),
            self._module.touch,
            (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(value) for value in arguments)),
            (ctypes.c_uint * 3)(*(*grid, 1, 1)[:3]),
            (ctypes.c_uint * 3)(*(*block, 1, 1)[:3]),
            shared_mem,
            _ORDERS[device.order],
            device._seed,
            device.workers,
            self._module.shared[0],
            self._module.shared[1],
            device._limit,
            message,
            len(message),
        )
        device._kernel_seconds += time.perf_counter() - start
        if outcome == 2:
            _kept.append((arguments, args))
            raise KernelDefect(message.value.decode(), 702, (self.name,))
        if outcome:
            raise KernelDefect(message.value.decode(), 719, (self.name,))

    def blocks_per_multiprocessor(self, threads: int, shared_mem: int = 0) -> int:
        allowed = threads <= min(1024, self._entry.max_threads) and shared_mem <= self._device.shared_memory
        return self._device.blocks_per_multiprocessor if allowed else 0

    def _check_shape(self, grid: tuple[int, ...], block: tuple[int, ...], shared_mem: int) -> None:
        check_shape(self.name, grid, block)
        threads, allowed = math.prod(block), min(1024, self._entry.max_threads)
        if threads > allowed or max((*block, 1, 1)[2:3]) > 64:
            raise LaunchFailed(
                f"{self.name}: block {block} has {threads} threads, allowed are {allowed}", 1, (self.name,)
            )
        if not 0 <= shared_mem <= self._device.shared_memory:
            raise LaunchFailed(
                f"{self.name}: {shared_mem} bytes of dynamic shared memory, allowed are {self._device.shared_memory}",
                1,
                (self.name,),
            )
        blocks = math.prod(grid)
        if self._device.sanitize == "thread" and (blocks > self._device.workers or blocks * threads > _TSAN_THREADS):
            raise TooManyThreads(
                f"{self.name}: {blocks} blocks of {threads} threads; under the thread sanitizer all run at once, "
                f"at most {self._device.workers} blocks and {_TSAN_THREADS} threads"
            )

    def _pack(self, args: tuple[Any, ...]) -> list[Any]:
        check_arguments(self.name, self._expected, args, DeviceArray)
        return [
            ctypes.c_void_p(value._array.ctypes.data if value.size else None)
            if isinstance(value, DeviceArray)
            else (ctypes.c_char * value.itemsize).from_buffer_copy(value.tobytes())
            for value in args
        ]


def deduced(entry: KernelEntry) -> tuple[Parameter, ...]:
    """A kernel's parameters as the compiler deduced them; structs and pointers to them are left unchecked."""
    found = []
    for position in range(entry.parameter_count):
        parameter = entry.parameters[position]
        kind, pointee = parameter.kind.decode(), parameter.pointee.decode().strip(" sp")
        if kind == "s":
            found.append(Parameter("", 0))
        else:
            found.append(Parameter(kind, parameter.size, pointee, parameter.pointee_size if pointee else 0))
    return tuple(found)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
