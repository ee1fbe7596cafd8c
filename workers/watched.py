"""A device that notes which kernels a job launched and what went wrong, and refuses kernels whose breaker is open."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kernels.cuda import CompileFailed, Device, DeviceFault, Kernel, LaunchFailed, OutOfMemory, Source, Times
from workers.calls import Calls
from workers.pipe import FaultKind, KernelFault
from workers.wrapped import WrappedDevice, WrappedKernel

# How long a call should take at most: so many seconds, and more for more work. The slowest GPU that is of use does
# more than ten times as many steps a second, copies over a narrow bus included.
_CALL_SECONDS, _STEPS_A_SECOND = 1.2, 1e8
_LOAD_SECONDS = 60.0  # a kernel may have to be compiled first, on the CPU

_KINDS: dict[type[DeviceFault], FaultKind] = {
    OutOfMemory: "out-of-memory",
    LaunchFailed: "launch",
    CompileFailed: "compile",
}


class BreakerOpen(LaunchFailed):
    """The kernel failed for several jobs of late and is left alone for a while."""


class WatchedDevice(WrappedDevice):
    """`begin` starts a job's notes; `launched` and `faults` are what was noted since. `calls` is told of each call."""

    def __init__(self, device: Device, calls: Calls) -> None:
        super().__init__(device)
        self._calls = calls
        self.launched: set[str] = set()
        self.faults: list[KernelFault] = []
        self._refused: Mapping[str, str] = {}
        self._patience = _CALL_SECONDS

    def begin(self, refused: Mapping[str, str], work: float = 0.0) -> None:
        """A job of so many elementary steps; the kernels of `refused` are not launched, for the reasons it gives."""
        self.launched = set()
        self.faults = []
        self._refused = refused
        self._patience = _CALL_SECONDS + work / _STEPS_A_SECOND

    def kernel(self, source: Source, name: str) -> Kernel:
        if name in self._refused:
            refused = BreakerOpen(f"the kernel {name} is kept off the GPU: {self._refused[name]}")
            self.faults.append(KernelFault(kind="kept-off", kernel=name, message=str(refused)))
            raise refused
        with self._noting(name, _LOAD_SECONDS):
            return _Watched(self, name, self._device.kernel(source, name))

    def to_device(self, array: Any) -> Any:
        with self._noting():
            return self._device.to_device(array)

    def empty(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        with self._noting():
            return self._device.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> Any:
        with self._noting():
            return self._device.zeros(shape, dtype)

    def to_host(self, array: Any, out: Any = None) -> Any:
        with self._noting():
            return self._device.to_host(array, out)

    def times(self) -> Times:
        with self._noting():
            return self._device.times()

    def launch(self, name: str, kernel: Kernel, *arguments: Any) -> None:
        with self._noting(name):
            kernel(*arguments)
        self.launched.add(name)

    @contextmanager
    def _noting(self, kernel: str = "", patience: float | None = None) -> Iterator[None]:
        self._calls.begin(self._patience if patience is None else patience)
        try:
            yield
        except DeviceFault as fault:
            kind = next((kind for type_, kind in _KINDS.items() if isinstance(fault, type_)), None)
            if kind is not None:
                # A fault that shows late names the kernel it comes from; else it is the one just asked for.
                self.faults.append(KernelFault(kind=kind, kernel=fault.kernel or kernel, message=str(fault)))
            raise
        finally:
            self._calls.end()


class _Watched(WrappedKernel):
    def __init__(self, device: WatchedDevice, name: str, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._device = device
        self._name = name

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        self._device.launch(self._name, self._kernel, grid, block, args, shared_mem)
