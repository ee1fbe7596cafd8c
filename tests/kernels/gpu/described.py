"""Emulated devices described like real ones: launches take the shapes they would have there, and are taken down."""

from dataclasses import dataclass
from typing import Any

from tests.cudasim.device import EmulatedDevice, EmulatedKernel
from warpdesk_server.kernels.gpu.occupancy import occupancy
from warpdesk_server.kernels.gpu.source import Source

# Dynamic shared memory, all that a block may have, is 64 KiB on the emulation whatever is described.
_REGISTERS = 32  # of a thread of any kernel: the emulation has none to count


@dataclass(frozen=True)
class Description:
    name: str
    architecture: str
    multiprocessors: int


DESCRIPTIONS = (
    Description("a toy", "sm_86", 2),
    Description("T4", "sm_75", 40),
    Description("A100", "sm_80", 108),
    Description("H200", "sm_90", 132),
)


class DescribedDevice(EmulatedDevice):
    """`shapes` are the launches: kernel, grid, block, bytes of dynamic shared memory. `idle`: none is done."""

    def __init__(
        self, description: Description, registers: int = _REGISTERS, idle: bool = False, **options: Any
    ) -> None:
        super().__init__(**options)
        self.name, self.multiprocessors = description.name, description.multiprocessors
        self.described, self.registers, self.idle = description, registers, idle
        self.shapes: list[tuple[str, Any, Any, int]] = []

    def kernel(self, source: Source, name: str) -> Any:
        return _DescribedKernel(self, super().kernel(source, name))

    def held(self, threads: int, shared_mem: int) -> int:
        """Blocks that a multiprocessor holds."""
        found = occupancy(self.described.architecture, threads, self.registers, shared_mem)
        assert found is not None
        return found.blocks


class ChoosyDevice(DescribedDevice):
    """It can hold one shape of those it is asked about, that of the number `choice`."""

    def __init__(self, choice: int) -> None:
        super().__init__(DESCRIPTIONS[-1])
        self._choice = choice
        self._calls = 0

    def held(self, *_shape: int) -> int:
        number, self._calls = self._calls, self._calls + 1
        return int(number == self._choice)


class _DescribedKernel:
    def __init__(self, device: DescribedDevice, kernel: EmulatedKernel) -> None:
        self._device = device
        self._kernel = kernel

    def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
        self._device.shapes.append((self._kernel.name, grid, block, shared_mem))
        if not self._device.idle:
            self._kernel(grid, block, args, shared_mem)

    def blocks_per_multiprocessor(self, threads: int, shared_mem: int = 0) -> int:
        possible = self._kernel.blocks_per_multiprocessor(threads, shared_mem)
        return self._device.held(threads, shared_mem) if possible else 0
