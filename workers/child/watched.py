"""A device that notes which kernels a job launched and what went wrong, and refuses kernels whose breaker is open."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from warpdesk_server.kernels.gpu.contract import Device, Kernel, Times
from warpdesk_server.kernels.gpu.faults import CompileFailed, DeviceFault, LaunchFailed, OutOfMemory
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.workers.calls import Calls
from warpdesk_server.workers.child.wrapped import WrappedDevice, WrappedKernel
from warpdesk_server.workers.pipe import FaultKind, KernelFault

# How long a call should take at most: so many seconds, and so many times what jobs of the size took before. Where none
# ran yet, a second more for so many steps: the slowest GPU that is of use does more than ten times as many, copies over
# a narrow bus included.
_CALL_SECONDS, _TIMES, _STEPS_A_SECOND = 1.2, 10.0, 1e8
_LOAD_SECONDS = 60.0  # a kernel that is asked for first may have to be compiled, on the CPU

_KINDS: dict[type[DeviceFault], FaultKind] = {
    OutOfMemory: "out-of-memory",
    LaunchFailed: "launch",
    CompileFailed: "compile",
}


class BreakerOpen(LaunchFailed):
    """Raised for a kernel that failed for several jobs of late, and which the child leaves alone for a while."""


class WatchedDevice(WrappedDevice):
    """The child's device, which records the kernels and faults of a job since `begin`.

    They are in `launched` and `faults`. Each device call is recorded in `calls`.
    """

    def __init__(self, device: Device, calls: Calls) -> None:
        super().__init__(device)
        self._calls = calls
        self.launched: set[str] = set()
        self.faults: list[KernelFault] = []
        self._refused: Mapping[str, str] = {}
        self._patience = self._most_patience = _CALL_SECONDS
        self._loaded: set[tuple[Source, str]] = set()

    def begin(self, refused: Mapping[str, str], work: float = 0.0) -> None:
        """Begin to watch a job of so many elementary steps on the child's device.

        The kernels of `refused` are not launched, for the reasons it gives.
        """
        self.launched = set()
        self.faults = []
        self._refused = refused
        self._patience = self._most_patience = _CALL_SECONDS + work / _STEPS_A_SECOND

    def expect(self, seconds: float) -> None:
        """Shorten the limit of the child's device calls to fit earlier jobs of the same size, which took `seconds`.

        It holds until the next step of a plan, which has a limit of its own: infinite seconds for one of which nothing
        is predicted.
        """
        self._patience = min(self._most_patience, _CALL_SECONDS + _TIMES * seconds)

    def lane(self, index: int) -> AbstractContextManager[None]:
        return _WatchedLane(self, self._device.lane(index))

    def kernel(self, source: Source, name: str) -> Kernel:
        if name in self._refused:
            refused = BreakerOpen(f"the kernel {name} is kept off the GPU: {self._refused[name]}")
            self.faults.append(KernelFault(kind="kept-off", kernel=name, message=str(refused)))
            raise refused
        with self._noting(name, None if (source, name) in self._loaded else _LOAD_SECONDS):
            kernel = _Watched(self, name, self._device.kernel(source, name))
        self._loaded.add((source, name))
        return kernel

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

    def forget(self) -> None:
        with self.in_call():
            self._device.forget()

    def library(self, work: Callable[[], Any], name: str = "library") -> Any:
        with self.in_call():
            return cast(Any, self._device).library(work, name)

    def launch(self, name: str, kernel: Kernel, *arguments: Any) -> None:
        with self._noting(name):
            kernel(*arguments)
        self.launched.add(name)

    @contextmanager
    def in_call(self, patience: float | None = None) -> Iterator[None]:
        number = self._calls.begin(self._patience if patience is None else patience)
        try:
            yield
        finally:
            self._calls.end(number)

    @contextmanager
    def _noting(self, kernel: str = "", patience: float | None = None) -> Iterator[None]:
        with self.in_call(patience):
            try:
                yield
            except DeviceFault as fault:
                kind = next((kind for type_, kind in _KINDS.items() if isinstance(fault, type_)), None)
                if kind is not None:
                    # A fault that shows late names the kernel it comes from; else it is the one just asked for.
                    self.faults.append(KernelFault(kind=kind, kernel=fault.kernel or kernel, message=str(fault)))
                raise


class _WatchedLane(AbstractContextManager[None]):
    """A lane of the child's watched device.

    Entering and leaving it are device calls, which may wait; the time between is not.
    """

    def __init__(self, device: WatchedDevice, lane: AbstractContextManager[None]) -> None:
        self._device = device
        self._lane = lane

    def __enter__(self) -> None:
        with self._device.in_call():
            self._lane.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        with self._device.in_call():
            return self._lane.__exit__(*error)


class _Watched(WrappedKernel):
    def __init__(self, device: WatchedDevice, name: str, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._device = device
        self._name = name

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        self._device.launch(self._name, self._kernel, grid, block, args, shared_mem)
