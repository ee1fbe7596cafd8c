"""Occupancy: how many blocks of a kernel a GPU holds at a time, and which shape of a launch is best.

On a GPU the driver counts the blocks, from a kernel's registers and shared memory (Kernel.blocks_per_multiprocessor).
Without one they are counted here, from the assembler's log. A shape may be chosen only if no bit of the answer depends
on it: what does decide bytes, such as the tile of a sum, is a constant of its family.

The limits are those of the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". The rules are
those of its occupancy calculator. A warp gets registers in units of 256, from one quarter of the register file. A block
gets shared memory in units, of which the driver keeps 1 KiB from Ampere on.
"""

import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from warpdesk_server.kernels.gpu.contract import Device, Kernel
from warpdesk_server.kernels.gpu.faults import LaunchFailed

_WARP = 32
_QUARTERS = 4
_REGISTERS = 65_536  # per multiprocessor, and the most one block may have
_REGISTER_UNIT = 256

_AS_GOOD = Fraction(33, 32)  # shapes within this factor of the best count as equally good

# Of a cubin.
_INFO = ".nv.info."
_SIZED = 4
_MAX_THREADS = 5


@dataclass(frozen=True)
class Limits:
    """The limits of one multiprocessor for a kernel's occupancy; `shared`, `unit` and `reserved` in bytes."""

    warps: int
    blocks: int
    shared: int
    unit: int = 128
    reserved: int = 1024


LIMITS = {
    "sm_70": Limits(64, 32, 96 << 10, unit=256, reserved=0),
    "sm_75": Limits(32, 16, 64 << 10, unit=256, reserved=0),
    "sm_80": Limits(64, 32, 164 << 10),
    "sm_86": Limits(48, 16, 100 << 10),
    "sm_87": Limits(48, 16, 164 << 10),
    "sm_89": Limits(48, 24, 100 << 10),
    "sm_90": Limits(64, 32, 228 << 10),
    "sm_100": Limits(64, 32, 228 << 10),
    "sm_103": Limits(64, 32, 228 << 10),
    "sm_120": Limits(48, 24, 100 << 10),
    "sm_121": Limits(48, 24, 100 << 10),
}


@dataclass(frozen=True)
class Occupancy:
    """The occupancy of a GPU's multiprocessor: the blocks it holds, the share of its warps, and what limits it."""

    blocks: int
    share: float
    bound_by: str


def occupancy(architecture: str, threads: int, registers: int, shared: int = 0) -> Occupancy | None:
    """The occupancy of a kernel by its block's threads, registers per thread and bytes of shared memory.

    None for an unknown architecture. If a block cannot be launched, `blocks` is 0 and `bound_by` the resource it lacks.
    """
    limits = LIMITS.get(architecture)
    if limits is None:
        return None
    warps = -(-threads // _WARP)
    per_warp = _up(registers * _WARP, _REGISTER_UNIT)
    per_block = _up(shared + limits.reserved, limits.unit)
    fits = {
        "threads": limits.warps // warps if threads <= 1024 else 0,
        "registers": _REGISTERS // _QUARTERS // per_warp * _QUARTERS // warps if per_warp else limits.blocks,
        "shared memory": limits.shared // per_block if per_block else limits.blocks,
        "blocks": limits.blocks,
    }
    if _up(warps, _QUARTERS) * per_warp > _REGISTERS:
        fits["registers"] = 0
    bound = min(fits, key=lambda name: fits[name])
    return Occupancy(fits[bound], fits[bound] * warps / limits.warps, bound)


def _up(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit


@dataclass(frozen=True)
class Shape:
    """A shape of a kernel launch: its blocks, their threads, and the bytes of dynamic shared memory.

    `work` is the work of one block, including idle threads and what it reads of its neighbours. Its unit is any that is
    the same for all shapes of the job.
    """

    blocks: int
    threads: int
    work: int
    shared: int = 0


def best(device: Device, kernel: Kernel, shapes: Iterable[Shape]) -> Shape:
    """The best shape of a kernel's launch on a device, of shapes that do the same job.

    A multiprocessor runs its blocks in rounds of as many as it holds at a time. The shape with the fewest rounds wins,
    since it has the most in flight. Then comes the least work of the busiest multiprocessor, then the smaller block,
    whose loads and stores overlap with more others. If no shape fits, the smallest is returned: its launch is refused
    with the reason.
    """
    given = sorted(shapes, key=lambda shape: (shape.threads, shape.shared))
    held = [(shape, _held(kernel, shape.threads, shape.shared)) for shape in given]
    fitting = [(shape, count, -(-shape.blocks // device.multiprocessors)) for shape, count in held if count]
    if len(fitting) < 2:
        return fitting[0][0] if fitting else given[0]
    rounds = [max(Fraction(1), Fraction(each, count)) for _, count, each in fitting]
    few = [entry for entry, taken in zip(fitting, rounds, strict=True) if taken <= min(rounds) * _AS_GOOD]
    busiest = [shape.work * each for shape, _, each in few]
    return next(shape for (shape, _, _), work in zip(few, busiest, strict=True) if work <= min(busiest) * _AS_GOOD)


def resident(device: Device, kernel: Kernel, threads: int, shared: int = 0) -> int:
    """A kernel's number of blocks that the whole GPU holds at a time, at least one: a launch that loops needs no
    more."""
    return device.multiprocessors * max(1, _held(kernel, threads, shared))


def _held(kernel: Kernel, threads: int, shared: int) -> int:
    try:
        return kernel.blocks_per_multiprocessor(threads, shared)
    except LaunchFailed:  # more shared memory than a block may have
        return 0


def launch_bounds(cubin: bytes) -> dict[str, int]:
    """The most threads of a block for each kernel of a cubin that declares __launch_bounds__.

    A cubin is an ELF file. Section .nv.info.<kernel> lists attributes; number 5 holds three numbers of threads.
    """
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + index * size) for index in range(count)]
    strings = sections[names][4]
    bounds = {}
    for name_at, _, _, _, start, length in sections:
        name = cubin[strings + name_at : cubin.index(b"\0", strings + name_at)].decode()
        if name.startswith(_INFO):
            for attribute, value in _attributes(cubin[start : start + length]):
                if attribute == _MAX_THREADS:
                    bounds[name.removeprefix(_INFO)] = math.prod(struct.unpack("<III", value))
    return bounds


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        length = size if form == _SIZED else 0  # other forms have their value in the place of the size
        yield attribute, info[at + 4 : at + 4 + length]
        at += 4 + length
