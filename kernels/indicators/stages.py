"""The stages of an indicator's program on a GPU: launches, and the registers in device memory between them.

A loop is one stage. Arithmetic steps in a row are one stage as long as their intermediate results fit into a block's
shared memory. A block computes a tile of bars, and of a step that later ones read with a lag as many bars before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from warpdesk_server.kernels.indicators.plan import Program, Step

GLOBAL = 1 << 20  # in map.cu, what an operand in a register of device memory begins with
TILES = (1024, 512, 256)  # bars of a block's tile, the longest that fits
MOST_HALO = 512  # bars before a tile
MOST_STEPS = 64  # of an arithmetic stage, so that planning is quick
SHARED = 40 << 10  # bytes of a block's shared memory, so that two fit where there are 96 KiB


@dataclass(frozen=True)
class Local:
    """One step of an arithmetic stage: `need` bars before the tile are computed too, `barrier` says whether threads
    must meet before it, and `to` is its place in shared memory."""

    step: int
    to: int
    need: int
    barrier: bool


@dataclass(frozen=True)
class Stage:
    """A stage of a program: a loop, or arithmetic steps with their tile, halo and places in shared memory.

    `registers` has the register of every step that the stage leaves to others.
    """

    steps: tuple[int, ...]
    registers: Mapping[int, int] = field(default_factory=dict)
    locals: tuple[Local, ...] = ()
    tile: int = 0
    halo: int = 0
    places: int = 0


@dataclass(frozen=True)
class Stages:
    """All stages of a program in order, and how many registers of device memory they need at most at a time.

    `inputs` has the registers of inputs that arithmetic reads; loops read others where they lie.
    """

    inputs: Mapping[int, int]
    stages: tuple[Stage, ...]
    registers: int


@lru_cache(maxsize=256)
def stages(program: Program, itemsize: int) -> Stages:
    """The stages of a program for numbers of so many bytes."""
    cut = list(_cut(program, itemsize))
    stage_of = {step: index for index, steps in enumerate(cut) for step in steps}
    last: dict[int, int] = {}  # the last stage that reads a step's register
    given = {index for index, step in enumerate(program.steps) if step.op == "input"}
    for index, step in enumerate(program.steps):
        for arg in step.args:
            left = arg.at >= 0 and stage_of.get(arg.at, -1) != stage_of.get(index, -1)
            if left and (step.is_map or arg.at not in given):
                last[arg.at] = max(last.get(arg.at, -1), stage_of[index])
    last |= {end.at: len(cut) for _, end in program.outputs if end.at not in given}
    free: list[int] = []
    used = 0
    register: dict[int, int] = {}

    def taken(step: int) -> int:
        nonlocal used
        if free:
            register[step] = free.pop()
        else:
            register[step], used = used, used + 1
        return register[step]

    inputs = {index: taken(index) for index in sorted(given & last.keys())}
    found = []
    for number, steps in enumerate(cut):
        kept = {step: taken(step) for step in steps if step in last}
        found.append(_stage(program, steps, kept, itemsize))
        free += [register[step] for step, end in last.items() if end == number]
    return Stages(inputs, tuple(found), used)


def _cut(program: Program, itemsize: int) -> Iterator[tuple[int, ...]]:
    run: list[int] = []
    for index, step in enumerate(program.steps):
        if step.op == "input":
            continue
        if run and (not step.is_map or not _fits(program.steps, [*run, index], itemsize)):
            yield tuple(run)
            run = []
        if step.is_map:
            run.append(index)
        else:
            yield (index,)
    if run:
        yield tuple(run)


def _fits(steps: Sequence[Step], run: Sequence[int], itemsize: int) -> bool:
    if len(run) > MOST_STEPS:
        return False
    halo, places = max(_needs(steps, run).values()), len(set(_places(steps, run).values()))
    return halo <= MOST_HALO and places * (TILES[-1] + halo) * itemsize <= SHARED


def _needs(steps: Sequence[Step], run: Sequence[int]) -> dict[int, int]:
    """How many bars before the tile each step of a stage must compute for those after it."""
    need = dict.fromkeys(run, 0)
    for index in reversed(run):
        for arg in steps[index].args:
            if arg.at in need:
                need[arg.at] = max(need[arg.at], need[index] + arg.lag)
    return need


def _places(steps: Sequence[Step], run: Sequence[int]) -> dict[int, int]:
    """The place in shared memory of each step of a stage; one that is read no more is given away."""
    last = {arg.at: index for index in run for arg in steps[index].args}
    place, free, used = dict[int, int](), list[int](), 0
    for index in run:
        if free:
            place[index] = free.pop()
        else:
            place[index], used = used, used + 1
        free += [place[at] for at in {arg.at for arg in steps[index].args} if at in place and last[at] == index]
        if index not in last:
            free.append(place[index])
    return place


def _stage(program: Program, run: tuple[int, ...], left: Mapping[int, int], itemsize: int) -> Stage:
    steps = program.steps
    if not steps[run[0]].is_map:
        return Stage(run, left)
    need, place = _needs(steps, run), _places(steps, run)
    halo, places = max(need.values()), 1 + max(place.values())
    tile = next(bars for bars in TILES if bars == TILES[-1] or places * (bars + halo) * itemsize <= SHARED)
    entries, written, read = [], set[int](), set[int]()
    for index in run:
        lagged = {place[arg.at] for arg in steps[index].args if arg.at in place and arg.lag}
        barrier = bool(lagged & written) or place[index] in read
        if barrier:
            written, read = set(), set()
        read |= lagged
        written.add(place[index])
        entries.append(Local(index, place[index], need[index], barrier))
    return Stage(run, left, tuple(entries), tile, halo, places)
