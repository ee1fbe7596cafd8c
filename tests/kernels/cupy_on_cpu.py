"""CuPy's surface as kernels.cuda uses it, with the emulation as its GPU: so its error handling runs on every machine.

Signatures and exception types are those of CuPy 14.2. `Machine` says what this computer pretends to have. What its
compiler makes of a source is the source's text, which the emulation can load.
"""

import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from kernels.cuda import COMPILE_OPTIONS, OutOfMemory, Source
from kernels.nvrtc import Compiled, CompileError, Nvrtc
from tests.cudasim.device import DeviceArray, EmulatedDevice


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
    nvrtc: str | None = "12.9.86"
    launch_error: int | None = None
    sync_error: int | None = None
    wrong: bool = False  # copies back something else than was computed
    compile_error: bool = False
    broken_module: Exception | None = None  # what loading a module raises
    memory: int = 1 << 20
    compiled: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)  # name, architecture, options
    launches: list[Any] = field(default_factory=list)
    arriving: list[Any] = field(default_factory=list)  # staging blocks of uploads, until the next is asked for
    staged: list[Any] = field(default_factory=list)  # the pool of pinned memory: free blocks with what was in them
    pool: int = 0  # free blocks of device memory

    def modules(self, folder: Path) -> dict[str, Any]:
        """What to put into sys.modules."""
        cupy = _cupy(self, folder)
        return {"cupy": cupy, "cupy.cuda": cupy.cuda}

    def compiler(self) -> "Compiler":
        """What stands for kernels.nvrtc.find."""
        if self.nvrtc is None:
            raise CompileError("NVRTC is not installed")
        return Compiler(self)


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


def _cupy(machine: Machine, folder: Path) -> Any:
    emulated = EmulatedDevice(memory=machine.memory)
    numbers = count()

    class Array(DeviceArray):
        def get(self, order: str = "C") -> Any:
            return self._array.copy(order) + machine.wrong  # type: ignore[call-overload]

    def allocate(make: Any, *arguments: Any) -> Array:
        try:
            made = make(*arguments)
        except OutOfMemory as error:
            raise OutOfMemoryError(str(error)) from None
        return Array(made._memory, made._array)

    def get_device_count() -> int:
        if machine.driver_error:
            raise CUDARuntimeError(machine.driver_error)
        return machine.devices

    def synchronize() -> None:
        if machine.sync_error:
            raise CUDARuntimeError(machine.sync_error)

    def upload(array: Any) -> Array:
        alloc_pinned_memory(array.nbytes)
        machine.arriving.append(array.copy())
        machine.pool += 1
        return allocate(emulated.to_device, array)

    def alloc_pinned_memory(_size: int) -> None:
        machine.staged += machine.arriving
        machine.arriving.clear()

    def free_device_blocks() -> None:
        machine.pool = 0

    class RawModule:
        def __init__(self, *, path: str) -> None:
            self._file = Path(path)
            self._path: Path | None = None

        def compile(self) -> None:
            if machine.broken_module:
                raise machine.broken_module
            loaded = next(numbers)
            self._path = folder / f"module{loaded}.cu"
            self._path.write_bytes(self._file.read_bytes())

        def get_function(self, name: str) -> Any:
            if self._path is None:
                self.compile()
            assert self._path
            kernel = emulated.kernel(Source(self._path), name)

            def launch(grid: Any, block: Any, args: Any, *, shared_mem: int = 0) -> None:
                if machine.launch_error:
                    raise CUDADriverError(machine.launch_error)
                machine.launches.append((name, grid, block, shared_mem))
                kernel(grid, block, args, shared_mem)

            return launch

    class Event:
        def record(self) -> None:
            self.time = time.perf_counter()

    runtime = SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=get_device_count,
        driverGetVersion=lambda: machine.driver,
        getDeviceProperties=lambda index: {"name": b"Pretended", "major": 9, "minor": 0, "multiProcessorCount": 132},
        memGetInfo=lambda: (machine.memory - emulated.memory.used, machine.memory),
    )
    cuda = SimpleNamespace(
        runtime=runtime,
        driver=SimpleNamespace(CUDADriverError=CUDADriverError),
        Device=lambda index: SimpleNamespace(use=lambda: None),
        Event=Event,
        alloc_pinned_memory=alloc_pinned_memory,
        get_elapsed_time=lambda before, after: (after.time - before.time) * 1e3,
        get_current_stream=lambda: SimpleNamespace(synchronize=synchronize),
    )
    return SimpleNamespace(
        cuda=cuda,
        ndarray=DeviceArray,
        RawModule=RawModule,
        asarray=upload,
        empty=lambda shape, dtype: allocate(emulated.empty, shape, np.dtype(dtype)),
        zeros=lambda shape, dtype: allocate(emulated.zeros, shape, np.dtype(dtype)),
        get_default_memory_pool=lambda: SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=free_device_blocks),
        get_default_pinned_memory_pool=lambda: SimpleNamespace(free_all_blocks=machine.staged.clear),
    )
