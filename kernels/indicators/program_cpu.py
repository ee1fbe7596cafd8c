"""Indicators' programs on the CPU: where their steps' numbers stand, and which rows, or parts of rows, a core runs.

A step's numbers stand in a register, a stretch of scratch memory for a chunk with the bars before it that are still
read, or where the caller has them. The loops are in program_loops.py.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numba import get_num_threads
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.cpu.lanes import LANES
from warpdesk_server.kernels.cpu.pages import empty
from warpdesk_server.kernels.indicators import windows
from warpdesk_server.kernels.indicators.plan import (
    BARS_READ,
    EIGHTS,
    LOOPS,
    STRIP,
    WINDOWS,
    Operand,
    Program,
    Step,
    bars_read,
    fused,
    pair_space,
)
from warpdesk_server.kernels.indicators.program_loops import (
    ARITHMETIC,
    BETA,
    CODES,
    DECAYS,
    END,
    FLAT,
    LOOK_BACK,
    OP,
    OUTSIDE,
    OWN,
    SHARE,
    STRIDES,
    TINY,
    WEIGHT,
    run_rows,
)
from warpdesk_server.kernels.indicators.recurrence import SEGMENTS, look_back, negligible
from warpdesk_server.kernels.indicators.recurrence_loops import SPACE, decays
from warpdesk_server.kernels.indicators.window_loops import WORTH, space_of

DIRECT = (*WINDOWS, "follow", "strength")  # loops that touch no bar outside of the row


@dataclass(frozen=True)
class _Layout:
    """The layout of a program for one dtype: its tables, where its registers are, and the bars of a chunk."""

    table: NDArray[Any]
    kept: NDArray[Any]
    copies: NDArray[Any]
    integers: NDArray[Any]
    numbers: NDArray[Any]
    constants: NDArray[Any]
    hidden: tuple[int, ...]  # for each output the register of what is not shown yet, if rows are cut
    room: int
    space: int
    chunk: int

    @property
    def state(self) -> int:
        """The numbers of a row's state (`_exchange`)."""
        return int(self.kept[:, 1].sum() + 11 * len(self.integers) + 3 * self.integers[:, LOOK_BACK].sum())


@lru_cache(maxsize=256)
def _layout(whole: Program, dtype: Any, *, resumes: bool = False, cut: bool = False) -> _Layout:
    program = fused(whole)
    steps, history = program.steps, program.history
    chunk = program.chunk
    limits = np.finfo(dtype)
    constants = np.array([1.0, np.nan, 100.0, limits.tiny, limits.max, *program.constants], dtype)
    room = constants.size * STRIP
    # A loop over blocks writes its block from the beginning, which may be before the chunk.
    lead = max((_up(step.values[0]) for step in steps if step.op in WINDOWS), default=0)
    spare = room + lead
    room = spare + chunk + LANES  # after the means that nobody reads
    hidden = tuple(room + lead + k * (lead + chunk + LANES) for k in range(len(program.outputs) * cut))
    room += len(hidden) * (lead + chunk + LANES) + lead
    base, copies = _bases(program, resumes, cut)
    place, kept, free = [0] * len(steps), [], list[int]()
    last = {arg.at: index for index, step in enumerate(steps) for arg in step.args}
    last |= {end.at: len(steps) for _, end in program.outputs}
    for index, step in enumerate(steps):
        read = {arg.at for arg in step.args if arg.at >= 0}
        ended = [place[at] for at in read if last[at] == index and not history[at] and not base[at]]
        if step.is_map:  # it may write where it has read
            free += ended
        if not base[index]:
            if history[index] or not free:
                place[index] = room + _up(history[index])
                room = place[index] + chunk + LANES
                if history[index]:
                    kept.append((place[index] - history[index], history[index]))
            else:
                place[index] = free.pop()
        if not step.is_map:
            free += ended

    def at(operand: Operand) -> tuple[int, int, int]:
        if operand.at >= 0:
            return base[operand.at], place[operand.at] - operand.lag, 1
        return 0, (4 - operand.at) * STRIP, 0

    rows, laws = [], [index for index, step in enumerate(steps) if step.op in LOOPS]
    law_of = {index: law for law, index in enumerate(laws)}
    means = {(step.args, step.values): index for index, step in enumerate(steps) if step.op == "mean"}
    for index in _order(steps, means):
        step = steps[index]
        operands = [at(arg) for arg in step.args]
        if step.op == "deviation":
            mean = means.get((step.args, step.values), -1)
            operands.append((base[mean], place[mean], 1) if mean >= 0 else (0, spare, 1))
        if step.op == "log":  # of numbers between these
            operands += [(0, 3 * STRIP, 0), (0, 4 * STRIP, 0)]
        outside = base[index] or any(operand[0] for operand in operands)
        operands += [(0, 0, 0)] * (3 - len(operands))
        rows.append(
            [
                CODES.index(step.op),
                base[index],
                place[index],
                *itertools.chain(*operands),
                law_of.get(index, 0),
                0,
                int(bool(outside)),
            ]
        )
    until = len(rows)
    for index in range(len(rows) - 1, -1, -1):  # where each run of arithmetic ends
        until = until if rows[index][OP] < ARITHMETIC else index
        rows[index][END] = until
    width = max([DECAYS + SEGMENTS + STRIDES, *(len(step.values) for step in steps if step.op == "fir")])
    return _Layout(
        np.array(rows, np.int64).reshape(-1, OUTSIDE + 1),
        np.array(kept, np.int64).reshape(-1, 2),
        np.array([(series, place[step], out) for series, step, out in copies], np.int64).reshape(-1, 3),
        np.array([_integers(steps[index], constants.itemsize) for index in laws], np.int64).reshape(-1, OWN),
        np.array([_numbers(steps[index], dtype, width) for index in laws], dtype).reshape(-1, width),
        constants,
        hidden,
        room,
        max(
            [
                SPACE,
                3 * SEGMENTS,
                *(space_of(int(step.values[0])) for step in steps if step.op in WINDOWS),
                *(pair_space(int(step.values[0])) for step in steps if step.op == "pair"),
                *(int(step.values[0]) + 2 * LANES for step in steps if step.op == "quantile"),
            ]
        )
        + 4 * LANES,
        chunk,
    )


def _order(steps: tuple[Step, ...], means: Mapping[tuple[Any, Any], int]) -> list[int]:
    """The steps that run, in their order. Of a mean and a deviation of the same bars the deviation's loop gives both,
    at the later of their places."""
    place = {index: index for index, step in enumerate(steps) if step.op != "input"}
    for index, step in enumerate(steps):
        if step.op == "deviation" and (mean := means.get((step.args, step.values))) is not None:
            place[index] = max(index, place.pop(mean))
    return sorted(place, key=lambda index: place[index])


def _bases(program: Program, resumes: bool, cut: bool) -> tuple[list[int], list[tuple[int, int, int]]]:
    """The base of each step's numbers, and the copies that the others need.

    Arithmetic and the loops of DIRECT read inputs and write outputs where the caller has them, unless somebody reads
    them with a lag. If rows are `cut` into parts, an output whose earlier bars a loop reads stays in a register, since
    they are another part's. Where a row `resumes`, the caller lacks the bars that loops look back to. The caller's
    series are the inputs and then the outputs.
    """
    steps, ends = program.steps, [end.at for _, end in program.outputs]
    kept = set(ends if resumes else ())  # in a register
    for step in steps:
        for arg in step.args:
            loop = step.op in LOOPS and (resumes or step.op not in DIRECT or (cut and arg.at in ends))
            if arg.lag or loop or step.op in EIGHTS:
                kept.add(arg.at)
    base, copies = [0] * len(steps), []
    inputs = [index for index, step in enumerate(steps) if step.op == "input"]
    for series, index in enumerate(inputs):
        if index in kept or index in ends:
            copies.append((series, index, 0))
        else:
            base[index] = 1 + series
    for series, index in enumerate(ends, start=len(inputs)):
        direct = steps[index].is_map or steps[index].op in DIRECT
        if direct and index not in kept and ends.count(index) == 1:
            base[index] = 1 + series
        else:
            copies.append((series, index, 1))
    return base, copies


def _up(bars: float) -> int:
    return -(-int(bars) // LANES) * LANES


def _integers(step: Step, itemsize: int) -> list[int]:
    if step.op in WINDOWS:
        return [int(step.values[0]), int(step.values[1]) if step.op == "pair" else 0, 0, 0, 0]
    if step.op in BARS_READ:
        return [bars_read(step), int(step.values[1]) if step.op in ("quantile", "count_below") else 0, 0, 0, 0]
    if step.op in ("scan", "ratchet", "sar"):
        return [0] * OWN
    law = step.law
    return [law.warm, law.valid, law.settled, look_back(law, itemsize), law.late]


def _numbers(step: Step, dtype: Any, width: int) -> list[Any]:
    numbers: list[Any] = [0.0] * width
    if step.op in (*WINDOWS, "spread"):
        numbers[SHARE] = windows.share(int(step.values[0]), dtype)
    elif step.op in ("fir", "sar"):
        numbers[: len(step.values)] = step.values
    elif step.op == "quantile":
        numbers[SHARE] = step.values[2]
    elif step.op in ("follow", "strength"):
        inclusive, strides = decays(step.law.beta, dtype)
        numbers[BETA], numbers[WEIGHT], numbers[TINY] = (
            step.law.beta,
            step.law.first,
            negligible(np.dtype(dtype).itemsize),
        )
        numbers[DECAYS : DECAYS + SEGMENTS + STRIDES] = [*inclusive, *strides]
    if step.op in ("cutler", "strength"):
        numbers[FLAT] = step.values[-1]
    return numbers


def run(
    program: Program, inputs: Mapping[str, NDArray[Any]], states: NDArray[Any] | None = None, first: int = 0
) -> NDArray[Any]:
    """The outputs (outputs, rows, time) of a program for inputs (rows, time) of one dtype; an input of one row serves
    all rows.

    With `states` (rows, numbers) the inputs begin at the bar `first` of their rows, which begins a chunk. Rows go on
    from their states, if it is not the first of all, and these become the states after the last whole chunk.
    """
    arrays = {name: np.ascontiguousarray(inputs[name]) for name in program.inputs}
    rows, time = max(array.shape[0] for array in inputs.values()), next(iter(inputs.values())).shape[1]
    dtype = next(iter(inputs.values())).dtype
    parts, reach = parts_of(program, rows, time) if states is None else 1, 0
    layout = _layout(program, dtype, resumes=states is not None, cut=parts > 1)
    if parts > 1 and program.reach is not None:
        reach = -(-program.reach // layout.chunk) * layout.chunk
    states = np.empty((rows, 0), dtype) if states is None else states
    outputs = empty((len(program.outputs), rows, time), dtype)
    given = [(array.ctypes.data, time if array.shape[0] > 1 else 0, 0, 0) for array in arrays.values()]
    hidden = layout.hidden or (0,) * len(outputs)
    given += [(array.ctypes.data, time, 1, place) for array, place in zip(outputs, hidden, strict=True)]
    tables = (
        layout.table, layout.kept, np.array(given, np.int64).reshape(-1, 4), layout.copies, layout.integers,
        layout.numbers, layout.constants, layout.room, layout.space, states, first,
    )  # fmt: skip

    def compute(parts: int) -> bool:
        unsure = np.zeros(1, np.int64)

        def work(begin: int, end: int) -> None:
            run_rows(*tables, first + time, layout.chunk, parts, reach, unsure, begin, end)

        share(rows * parts, work, -(-WORTH // time) if parts == 1 else 1)
        return not unsure[0]

    if not compute(parts):
        compute(1)
    return outputs


def parts_of(program: Program, rows: int, time: int) -> int:
    """The parts that each row is run in: several if there are fewer rows than cores, each with so many bars that it
    does not mostly repeat what the part before it computes."""
    if program.reach is None:
        return 1
    threads, worth = get_num_threads(), 4 * max(program.reach, program.chunk)
    even = time // (4 * worth) // threads * threads
    return max(1, min(max(even, min(threads, time // worth)), -(-4 * threads // rows)))


def state_of(program: Program, dtype: Any) -> tuple[int, int]:
    """The numbers of a row's state between chunks, and the bars of a chunk."""
    layout = _layout(program, dtype, resumes=True)
    return layout.state, layout.chunk
