"""CuPy's surface as kernels.gpu.cupy_device uses it, with the emulation as its GPU: so its handling of memory, streams
and errors runs on every machine.

Signatures, exception types and the pool's behaviour are those of CuPy 14.2. Work given to a stream is put off as long
as CUDA allows, until something waits for it: a wait that was forgotten shows as wrong bytes. `Machine` says what this
computer pretends to have. What its compiler makes of a source is the source's text, which the emulation can load.
"""

import ctypes
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.cudasim.device import DeviceArray, EmulatedDevice
from warpdesk_server.kernels.gpu import nvrtc
from warpdesk_server.kernels.gpu.nvrtc import Compiled, CompileError, Nvrtc
from warpdesk_server.kernels.gpu.source import COMPILE_OPTIONS, Source

GRANULE = 512  # the pool's, in bytes
POISON = 0xFF  # what cudaMalloc leaves in memory


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"error {status}")
        self.status = status


class CUDADriverError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"error {status}")
        self.status = status


class OutOfMemoryError(MemoryError):
    pass


@dataclass
class Machine:
    devices: int = 1
    driver_error: int | None = None  # what getDeviceCount raises
    driver: int = 12090
    architecture: int = 90
    nvrtc: str | None = "12.9.86"
    launch_error: int | None = None
    sync_error: int | None = None  # what every wait raises, and questions whether something is done that is not
    wrong: bool = False  # copies back something else than was computed
    copying: Callable[[], None] = lambda: None  # called as a copy is asked for, by the thread that asks; it may raise
    compile_error: bool = False
    broken_module: Exception | None = None  # what loading a module raises
    memory: int = 1 << 20
    others: int = 0  # bytes that other processes have of it
    pinnable: bool = True  # whether host memory can be pinned
    static_shared: int = 0  # bytes, of every kernel
    compiled: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)  # name, architecture, options
    launches: list[Any] = field(default_factory=list)
    streams: list["Stream"] = field(default_factory=list)  # one entry for each launch: where it went
    pinned: list[Any] = field(default_factory=list)  # what was ever pinned
    allowed: dict[str, int] = field(default_factory=dict)  # dynamic shared memory that a kernel was allowed
    pool: "Pool" = field(init=False)
    here: threading.local = field(default_factory=threading.local)  # this thread's device and streams

    def __post_init__(self) -> None:
        self.pool = Pool(self)
        self.allocate: Callable[[int], Any] = self.pool.malloc
        self.default_stream = Stream(self, 0)

    @property
    def device(self) -> int:
        return getattr(self.here, "device", 0)

    @property
    def stream(self) -> "Stream":
        return getattr(self.here, "stream", self.default_stream)

    @property
    def entered(self) -> "list[Stream]":
        """The streams whose `with` this thread is in."""
        if not hasattr(self.here, "entered"):
            self.here.entered = []
        entered: list[Stream] = self.here.entered
        return entered

    def check(self) -> None:
        if self.sync_error:
            raise CUDARuntimeError(self.sync_error)

    def modules(self, folder: Path) -> dict[str, Any]:
        """What to put into sys.modules."""
        cupy = _cupy(self, folder)
        return {"cupy": cupy, "cupy.cuda": cupy.cuda}

    def compiler(self) -> "Compiler":
        """What stands for kernels.gpu.nvrtc.find."""
        if self.nvrtc is None:
            raise CompileError("NVRTC is not installed")
        return Compiler(self)


def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **facts: Any) -> Machine:
    """Let CuPy and NVRTC be those of a machine of which `facts` are true."""
    machine = Machine(**facts)
    for name, module in machine.modules(tmp_path).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(nvrtc, "find", machine.compiler)
    monkeypatch.setenv("WARPDESK_KERNEL_CACHE", str(tmp_path / "cubins"))
    return machine


class Compiler(Nvrtc):
    def __init__(self, machine: Machine) -> None:
        assert machine.nvrtc
        super().__init__(Path("libnvrtc.so"), machine.nvrtc)
        self._machine = machine

    def compile(self, text: str, name: str, architecture: str, options: tuple[str, ...] = COMPILE_OPTIONS) -> Compiled:
        self.calls += 1
        if self._machine.compile_error:
            raise CompileError("nvrtc: error: invalid value for --gpu-architecture (-arch)")
        self._machine.compiled.append((name, architecture, options))
        return Compiled(text.encode(), "")


# ---------------------------------------------------------------- streams


class Stream:
    """Work in an order, done by whoever waits for it. Number 0 is the default stream, which ours never use."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.number = number
        self._machine = machine
        self._device = machine.device
        self._waiting: list[Callable[[], None]] = []
        self._lock = threading.RLock()

    @property
    def done(self) -> bool:
        return not self._waiting

    def give(self, work: Callable[[], None]) -> None:
        assert self.number, "work was given to the default stream"
        assert self._machine.device == self._device, "work was given to another device's stream"
        self._waiting.append(work)

    def synchronize(self) -> None:
        self._machine.check()
        self.work(lambda: False)

    def work(self, enough: Callable[[], bool]) -> None:
        with self._lock:
            while self._waiting and not enough():
                self._waiting.pop(0)()

    def record(self, event: "Event | None" = None) -> "Event":
        event = event or Event(self._machine)
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        self.give(event.synchronize)

    def use(self) -> None:
        self._machine.here.stream = self

    def __enter__(self) -> "Stream":
        self._machine.entered.append(self)
        self.use()
        return self

    def __exit__(self, *_: object) -> None:
        """Back to the stream of the `with` around this one or to the default one, as CuPy does, whatever `use` said."""
        entered = self._machine.entered
        entered.pop()
        (entered[-1] if entered else self._machine.default_stream).use()


class Event:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._stream: Stream | None = None
        self._done = True
        self.time = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self._stream, self._done = stream or self._machine.stream, False
        self._stream.give(self._reached)

    def synchronize(self) -> None:
        self._machine.check()
        if self._stream is not None:
            self._stream.work(lambda: self._done)

    @property
    def done(self) -> bool:
        if not self._done:
            self._machine.check()
        return self._done

    def _reached(self) -> None:
        self._done, self.time = True, time.perf_counter()


# ---------------------------------------------------------------- memory


class Chunk:
    """A block of device memory, or a part of one that was split."""

    def __init__(self, block: Any, first: int, size: int, arena: int) -> None:
        self.block, self.first, self.size, self.arena = block, first, size, arena
        self.before: Chunk | None = None
        self.after: Chunk | None = None

    @property
    def whole(self) -> bool:
        return self.before is None and self.after is None


class PooledMemory:
    def __init__(self, pool: "Pool", chunk: Chunk) -> None:
        self.size = chunk.size
        self.chunk = chunk
        weakref.finalize(self, pool.free, chunk)


class Pool:
    """cupy.cuda.MemoryPool: best fit among the free blocks of the current stream alone, split and merged again."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._limit = self._total = self._used = 0
        self._idle: list[Chunk] = []
        self._lock = threading.RLock()

    def set_limit(self, size: int) -> None:
        self._limit = size

    def used_bytes(self) -> int:
        return self._used

    def total_bytes(self) -> int:
        return self._total

    def free_bytes(self) -> int:
        return self._total - self._used

    def malloc(self, nbytes: int) -> "Pointer":
        size = -(-nbytes // GRANULE) * GRANULE
        if not size:
            return Pointer(None, 0)
        with self._lock:
            arena = self._machine.stream.number
            fitting = [chunk for chunk in self._idle if chunk.arena == arena and chunk.size >= size]
            if fitting:
                chunk = min(fitting, key=lambda chunk: chunk.size)
                self._idle.remove(chunk)
                self._split(chunk, size)
            else:
                chunk = Chunk(self._taken(size), 0, size, arena)
            self._used += size
            memory = PooledMemory(self, chunk)
        return Pointer(memory, chunk.block.ctypes.data + chunk.first)

    def free(self, chunk: Chunk) -> None:
        with self._lock:
            self._used -= chunk.size
            while chunk.after in self._idle:
                self._idle.remove(chunk.after)
                self._merge(chunk)
            while chunk.before in self._idle:
                chunk = chunk.before
                self._idle.remove(chunk)
                self._merge(chunk)
            self._idle.append(chunk)

    def free_all_blocks(self) -> None:
        with self._lock:
            for chunk in [chunk for chunk in self._idle if chunk.whole]:
                self._idle.remove(chunk)
                self._total -= chunk.size

    def kept(self) -> bytes:
        """What lies in memory kept for reuse."""
        return b"".join(chunk.block[chunk.first : chunk.first + chunk.size].tobytes() for chunk in self._idle)

    def _taken(self, size: int) -> Any:
        for attempt in range(2):
            if self._total + size <= min(
                self._limit or self._machine.memory, self._machine.memory - self._machine.others
            ):
                self._total += size
                # Aligned as cudaMalloc aligns.
                bytes_ = np.full(size + GRANULE, POISON, np.uint8)
                return bytes_[-bytes_.ctypes.data % GRANULE :][:size]
            if attempt == 0:
                self.free_all_blocks()
        raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes (allocated so far: {self._total:,} bytes)")

    def _split(self, chunk: Chunk, size: int) -> None:
        if chunk.size == size:
            return
        rest = Chunk(chunk.block, chunk.first + size, chunk.size - size, chunk.arena)
        rest.before, rest.after = chunk, chunk.after
        if chunk.after is not None:
            chunk.after.before = rest
        chunk.after, chunk.size = rest, size
        self._idle.append(rest)

    @staticmethod
    def _merge(chunk: Chunk) -> None:
        taken = chunk.after
        assert taken is not None
        chunk.size += taken.size
        chunk.after = taken.after
        if taken.after is not None:
            taken.after.before = chunk


class Pointer:
    """cupy.cuda.MemoryPointer."""

    def __init__(self, mem: PooledMemory | None, address: int, machine: Machine | None = None) -> None:
        self.mem, self.address, self._machine = mem, address, machine

    def __add__(self, offset: int) -> "Pointer":
        return Pointer(self.mem, self.address + offset, self._machine)

    def copy_from_host_async(self, address: int, nbytes: int, stream: Stream) -> None:
        self._copy(self.address, address, nbytes, stream)

    def copy_to_host_async(self, address: int, nbytes: int, stream: Stream) -> None:
        self._copy(address, self.address, nbytes, stream)
        if self._machine and self._machine.wrong:
            stream.give(lambda: ctypes.memset(address, 0x77, nbytes))

    def _copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        assert self.mem is not None
        if self._machine:
            self._machine.copying()
        stream.give(partial(_move, self.mem.chunk.block, target, source, nbytes))


def _copied(target: DeviceArray, source: DeviceArray) -> None:
    np.copyto(target._array, source._array)


def _move(_kept: Any, target: int, source: int, nbytes: int) -> None:
    ctypes.memmove(target, source, nbytes)


def _cupy(machine: Machine, folder: Path) -> Any:
    emulated = EmulatedDevice()
    numbers, streams = count(1), count(1)

    class Array(DeviceArray):
        """Work on it, once given to a stream, keeps its block of memory from being freed, and not from being reused."""

        @property
        def unowned(self) -> DeviceArray:
            return DeviceArray(self._memory and self._memory.chunk.block, self._array)

        @property
        def data(self) -> Pointer:
            return Pointer(self._memory, self._array.ctypes.data, machine)

        def fill(self, value: Any) -> None:
            machine.stream.give(partial(self.unowned.fill, value))

        def _view(self, array: Any) -> "Array":
            return Array(self._memory, array)

    def empty(shape: Any, dtype: Any) -> Array:
        dtype = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64))
        pointer = machine.allocate(size * dtype.itemsize)
        if not size:
            return Array(None, np.empty(shape, dtype))
        memory = (ctypes.c_ubyte * (size * dtype.itemsize)).from_address(pointer.address)
        return Array(pointer.mem, np.frombuffer(memory, dtype).reshape(shape))

    def zeros(shape: Any, dtype: Any) -> Array:
        array = empty(shape, dtype)
        array.fill(0)
        return array

    def contiguous(array: Array) -> Array:
        if array.flags.c_contiguous:
            return array
        copy = empty(array.shape, array.dtype)
        machine.stream.give(partial(_copied, copy.unowned, array.unowned))
        return copy

    def get_device_count() -> int:
        if machine.driver_error:
            raise CUDARuntimeError(machine.driver_error)
        return machine.devices

    def set_allocator(allocate: Callable[[int], Any]) -> None:
        machine.allocate = allocate

    def alloc_pinned_memory(size: int) -> Any:
        if not machine.pinnable:
            raise CUDARuntimeError(2)
        machine.pinned.append(np.full(size, POISON, np.uint8))
        return machine.pinned[-1]

    class Module:
        def __init__(self) -> None:
            self.ptr = 0
            self.source = Source(Path())

        def load(self, cubin: bytes) -> None:
            if machine.broken_module:
                raise machine.broken_module
            self.ptr = next(numbers)
            self.source = Source(folder / f"module{self.ptr}.cu")
            self.source.path.write_bytes(cubin)

        def get_function(self, name: str) -> "Function":
            return Function(self, name)

    class Function:
        def __init__(self, module: Module, name: str) -> None:
            if not module.ptr:
                raise CUDADriverError(400)
            self.ptr = name
            self._kernel = emulated.kernel(module.source, name)

        def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
            assert isinstance(grid, tuple)
            assert isinstance(block, tuple)
            if machine.launch_error:
                raise CUDADriverError(machine.launch_error)
            if shared_mem > machine.allowed.get(self.ptr, 49_152 - machine.static_shared):
                raise CUDADriverError(1)
            machine.launches.append((self.ptr, grid, block, shared_mem))
            machine.streams.append(machine.stream)
            args = tuple(value.unowned if isinstance(value, Array) else value for value in args)
            machine.stream.give(partial(self._kernel, grid, block, args, shared_mem))

    def get_attribute(attribute: int, function: str) -> int:
        dynamic = machine.allowed.get(function, 49_152 - machine.static_shared)
        return {1: machine.static_shared, 4: 40, 8: dynamic}[attribute]

    def set_attribute(function: str, attribute: int, value: int) -> None:
        assert attribute == 8
        machine.allowed[function] = value

    def use(index: int) -> Any:
        return SimpleNamespace(use=lambda: setattr(machine.here, "device", index))

    runtime = SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=get_device_count,
        driverGetVersion=lambda: machine.driver,
        getDeviceProperties=lambda index: {
            "name": b"Pretended",
            "major": machine.architecture // 10,
            "minor": machine.architecture % 10,
            "multiProcessorCount": 132,
            "sharedMemPerBlockOptin": 232_448,
            "l2CacheSize": 50 << 20,
        },
        memGetInfo=lambda: (machine.memory - machine.others - machine.pool.total_bytes(), machine.memory),
    )
    driver = SimpleNamespace(
        CUDADriverError=CUDADriverError,
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES=1,
        CU_FUNC_ATTRIBUTE_NUM_REGS=4,
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
        funcGetAttribute=get_attribute,
        funcSetAttribute=set_attribute,
        occupancyMaxActiveBlocksPerMultiprocessor=lambda function, threads, shared_mem: 2048 // threads,
    )
    cuda = SimpleNamespace(
        runtime=runtime,
        driver=driver,
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        function=SimpleNamespace(Module=Module, Function=Function),
        Device=use,
        Event=lambda block=False, disable_timing=False: Event(machine),
        Stream=lambda non_blocking=False: Stream(machine, next(streams)),
        set_allocator=set_allocator,
        alloc_pinned_memory=alloc_pinned_memory,
        get_elapsed_time=lambda before, after: (after.time - before.time) * 1e3,
    )
    return SimpleNamespace(
        cuda=cuda,
        ndarray=DeviceArray,
        empty=empty,
        zeros=zeros,
        ascontiguousarray=contiguous,
        get_default_memory_pool=lambda: machine.pool,
        get_default_pinned_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None),
    )
