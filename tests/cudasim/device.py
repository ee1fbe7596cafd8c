"""A device for kernels.cuda that runs them on the CPU, strictly: what CUDA leaves undefined is an error here."""

import ctypes
import time
import weakref
from typing import Any, Literal

import numpy as np

from kernels.cuda import DeviceFault, DeviceLost, LaunchFailed, OutOfMemory, Source, Times
from tests.cudasim.build import KernelEntry, Module, compile_source, load, runtime

Order = Literal["forward", "backward", "random"]
_ORDERS = {"forward": 0, "backward": 1, "random": 2}
_DYNAMIC_SHARED_LIMIT = 48 * 1024  # what a launch may ask for without setting a function attribute
_KINDS = {"f": b"f", "i": b"i", "u": b"u", "b": b"b"}
_kept: list[Any] = []  # memory of launches that never ended


class KernelDefect(DeviceLost):
    """The kernel did what CUDA leaves undefined (the message has the line); code 719, as a GPU would report."""


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


class EmulatedDevice:
    """Implements kernels.cuda.Device. `order` is that of threads and blocks; no result may depend on it.

    `workers` blocks are resident at a time. `sanitize` compiles kernels with "address,undefined" or "thread"; the process
    must then run under the sanitizer, see tests.cudasim.sanitized. `memory` limits the bytes allocated at one time.
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
    ) -> None:
        self.name = "CUDA emulation"
        self.multiprocessors = 4
        self.order = order
        self.sanitize = sanitize
        # Address sanitizer sees __shared__ as one static variable; thread sanitizer needs every block on a thread of its own.
        self.workers = {None: workers, "address,undefined": 1, "thread": 8}[sanitize]
        self.launches: list[tuple[str, str]] = []  # (source file, kernel) of each launch
        self._seed = seed
        self._limit = limit
        self._memory = memory
        self._used = 0
        self._copy_seconds = 0.0
        self._kernel_seconds = 0.0

    def kernel(self, source: Source, name: str) -> "EmulatedKernel":
        module = load(compile_source(source, self.sanitize))
        if name not in module.kernels:
            raise LaunchFailed(f"{source.path.name} has no kernel {name!r}; it has {', '.join(module.kernels)}", 500)
        return EmulatedKernel(self, source, module, module.kernels[name])

    def to_device(self, array: Any) -> DeviceArray:
        array = np.ascontiguousarray(array)
        start = time.perf_counter()
        copy = self.empty(array.shape, array.dtype)
        copy._array[...] = array
        self._copy_seconds += time.perf_counter() - start
        return copy

    def empty(self, shape: tuple[int, ...] | int, dtype: Any) -> DeviceArray:
        array = self._allocate(shape, dtype)
        array._array.reshape(-1).view(np.uint8).fill(0xFF)  # NaN or -1: nobody may rely on fresh memory being zero
        return array

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> DeviceArray:
        array = self._allocate(shape, dtype)
        array._array.reshape(-1).view(np.uint8).fill(0)
        return array

    def to_host(self, array: DeviceArray) -> "np.ndarray[Any, Any]":
        start = time.perf_counter()
        copy = array._array.copy()
        self._copy_seconds += time.perf_counter() - start
        return copy

    def times(self) -> Times:
        times = Times(self._copy_seconds, self._kernel_seconds)
        self._copy_seconds = self._kernel_seconds = 0.0
        return times

    def _allocate(self, shape: tuple[int, ...] | int, dtype: Any) -> DeviceArray:
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if self._used + nbytes > self._memory:
            raise OutOfMemory(f"out of memory: needed {nbytes} bytes, free {self._memory - self._used} bytes", 2)
        # Of the exact size and from the C library, so that address sanitizer guards both ends; aligned as cudaMalloc does.
        address = ctypes.c_void_p()
        if _libc().posix_memalign(ctypes.byref(address), 256, max(nbytes, 1)):
            raise OutOfMemory(f"out of memory: needed {nbytes} bytes", 2)
        assert address.value is not None
        memory = (ctypes.c_char * nbytes).from_address(address.value)
        self._used += nbytes
        weakref.finalize(memory, self._free, address.value, nbytes)
        return DeviceArray(memory, np.frombuffer(memory, dtype).reshape(shape))

    def _free(self, address: int, nbytes: int) -> None:
        _libc().free(ctypes.c_void_p(address))
        self._used -= nbytes


class EmulatedKernel:
    """One kernel of a compiled source, called as kernels.cuda.Kernel says."""

    def __init__(self, device: EmulatedDevice, source: Source, module: Module, entry: KernelEntry) -> None:
        self.name = entry.name.decode()
        self._device = device
        self._source = source
        self._module = module
        self._entry = entry

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        device = self._device
        grid, block = _three(grid), _three(block)
        self._check_shape(grid, block, shared_mem)
        arguments = self._arguments(args)
        device.launches.append((self._source.path.name, self.name))
        message = ctypes.create_string_buffer(4096)
        start = time.perf_counter()
        outcome = runtime().cudasim_launch(
            ctypes.byref(self._entry),
            self._module.touch,
            (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(value) for value in arguments)),
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*block),
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
            raise KernelDefect(message.value.decode(), 702)
        if outcome:
            raise KernelDefect(message.value.decode(), 719)

    def _check_shape(self, grid: tuple[int, ...], block: tuple[int, ...], shared_mem: int) -> None:
        threads = block[0] * block[1] * block[2]
        if min(*grid, *block) < 1 or grid[0] > 2**31 - 1 or max(grid[1:]) > 65535:
            raise LaunchFailed(f"{self.name}: grid {grid} of blocks {block} cannot be launched", 1)
        if threads > min(1024, self._entry.max_threads) or block[0] > 1024 or block[1] > 1024 or block[2] > 64:
            raise LaunchFailed(
                f"{self.name}: block {block} has {threads} threads, allowed are {min(1024, self._entry.max_threads)}", 1
            )
        if not 0 <= shared_mem <= _DYNAMIC_SHARED_LIMIT:
            raise LaunchFailed(
                f"{self.name}: {shared_mem} bytes of dynamic shared memory, allowed are {_DYNAMIC_SHARED_LIMIT}", 1
            )
        blocks = grid[0] * grid[1] * grid[2]
        if self._device.sanitize == "thread" and blocks > self._device.workers:
            raise DeviceFault(f"{self.name}: {blocks} blocks; under the thread sanitizer all run at once, at most 8")

    def _arguments(self, args: tuple[Any, ...]) -> list[Any]:
        """Pack the arguments, or raise TypeError where a GPU would read other bytes than were meant."""
        expected = self._entry.parameter_count
        if len(args) != expected:
            raise TypeError(f"{self.name} takes {expected} arguments, got {len(args)}")
        packed = []
        for position, value in enumerate(args):
            parameter = self._entry.parameters[position]
            at = f"argument {position} of {self.name}"
            if parameter.kind == b"p":
                if not isinstance(value, DeviceArray):
                    raise TypeError(f"{at} is a pointer, got {type(value).__name__}")
                array = value._array
                if not array.flags.c_contiguous:
                    raise TypeError(f"{at}: the array of shape {array.shape} is not contiguous")
                kind = _KINDS.get(array.dtype.kind)
                wanted = {b"i": b"u"}.get(parameter.pointee, parameter.pointee)
                if wanted in (b"f", b"u") and (
                    parameter.pointee_size != array.itemsize or wanted != {b"i": b"u"}.get(kind or b"", kind)
                ):
                    raise TypeError(
                        f"{at} points to {_NAMES[parameter.pointee]} of {parameter.pointee_size} bytes, got {array.dtype}"
                    )
                packed.append(ctypes.c_void_p(array.ctypes.data if array.size else None))
            else:
                if not isinstance(value, np.generic):
                    raise TypeError(f"{at} must be a NumPy scalar, got {type(value).__name__} {value!r}")
                if _KINDS.get(value.dtype.kind) != parameter.kind or value.itemsize != parameter.size:
                    raise TypeError(
                        f"{at} is {_NAMES[parameter.kind]} of {parameter.size} bytes, got numpy.{value.dtype.name}"
                    )
                packed.append((ctypes.c_char * value.itemsize).from_buffer_copy(value.tobytes()))
        return packed


_NAMES = {b"f": "a float", b"i": "a signed integer", b"u": "an unsigned integer", b"b": "a bool", b"s": "a struct"}


def _three(shape: tuple[int, ...]) -> tuple[int, ...]:
    if not 1 <= len(shape) <= 3:
        raise LaunchFailed(f"a grid or block has 1 to 3 dimensions, got {shape}", 1)
    return (*(int(n) for n in shape), 1, 1)[:3]


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
