"""The planner: the graph of an indicator's outputs as a program, a flat list of steps that both backends run.

Equal nodes are one step. Nothing is simplified: x + 0 is not x if x is -0. A lag is no step of its own but a property
of the operand that is read so many bars earlier. Steps are ordered by levels: the arithmetic that needs no further
loop, then the loops over its results, then the arithmetic that needs those. For each step the planner works out:

- `first`: the first bar that has a number if the inputs have no gap,
- `history`: how many bars before the current ones are still read,
- `reach`: how many earlier bars its numbers depend on, None if all. (A `strength` that stands still for so long that
  both averages decay to zero depends on more, and its loop says so.)
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from warpdesk_server.kernels.indicators.algebra import Node, Number
from warpdesk_server.kernels.indicators.recurrence import TILE, Recurrence, look_back

STRIP = 512  # bars that an arithmetic step takes at a time on the CPU; also the length of a constant's register
# Arithmetic bar by bar, in the order of its codes in program_loops.py and map.cu.
MAPS = (
    "add", "sub", "mul", "div", "abs", "sqrt", "log", "exp", "floor", "max", "min", "below", "at_most", "equal",
    "missing", "ratio", "select", "copy",
)  # fmt: skip
# On the CPU: several such steps in one (`fused`), three of them over the last 8 bars. Then the loops over a series.
EIGHTS = ("add_8", "max_8", "min_8")
FUSED = (*EIGHTS, "mul_add", "true_range")
# What the last two stand for: an operation and its operands, letters for those of the one step.
_PRODUCT, _FROM_HIGH, _FROM_LOW = ("mul", "a", "b"), ("abs", ("sub", "a", "c")), ("abs", ("sub", "b", "c"))
_PATTERNS: tuple[tuple[str, Any], ...] = (
    ("mul_add", ("add", _PRODUCT, "c")),
    ("mul_add", ("add", "c", _PRODUCT)),
    ("true_range", ("max", ("max", ("sub", "a", "b"), _FROM_HIGH), _FROM_LOW)),
)
LOOPS = (
    "mean", "deviation", "cutler", "pair", "spread", "fir", "quantile", "count_below", "follow", "strength", "scan",
    "ratchet", "sar",
)  # fmt: skip
WINDOWS = ("mean", "deviation", "cutler", "pair")
SUMS = 5  # of a window of two series x and y: x, x x, y, y y, x y
SIDE_BY_SIDE = TILE // 8  # bars of the longest such window of which the CPU runs eight blocks side by side
LONGEST_PAIR = 1024  # bars of the longest such window that each thread of a GPU adds by itself
BARS_READ = ("spread", "fir", "quantile", "count_below")  # they read every bar of the window


@dataclass(frozen=True)
class Operand:
    """An operand of a program's step: the result of step `at`, `lag` bars earlier; or a constant, if `at` is negative:
    -1 is the first."""

    at: int
    lag: int = 0


@dataclass(frozen=True)
class Step:
    """A step of a program: an operation on operands, and its own numbers, such as a period."""

    op: str
    args: tuple[Operand, ...] = ()
    values: tuple[Number, ...] = ()
    name: str = ""  # of an input
    first: int = 0
    reach: int | None = 0
    level: int = 0

    @property
    def is_map(self) -> bool:
        return self.op in MAPS or self.op in FUSED

    @property
    def law(self) -> Recurrence:
        """The recurrence of a `follow` or a `strength`."""
        if self.op == "follow":
            beta, warm, late = self.values
            return Recurrence(beta, int(warm), int(warm), late=int(late))
        beta, warm, valid, weight, _ = self.values
        return Recurrence(beta, int(warm), int(valid), weight)


@dataclass(frozen=True, eq=False)
class Program:
    """A program: steps in the order in which they run, constants, and the operand of each output.

    `history` has, for each step, how many bars before the current ones other steps or the loop itself still read.
    """

    steps: tuple[Step, ...]
    constants: tuple[float, ...]
    outputs: tuple[tuple[str, Operand], ...]
    history: tuple[int, ...]
    first: Mapping[str, int]
    reach: int | None

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(step.name for step in self.steps if step.op == "input")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.outputs)

    @property
    def chunk(self) -> int:
        """The bars that go through all steps at a time on the CPU: whole tiles, and as many as a step looks back."""
        return max(TILE, -(-max(self.history, default=0) // TILE) * TILE)

    @property
    def kept(self) -> int:
        """The numbers that a core keeps at most: a chunk of each step, and what is looked back to.

        Besides, windows: for each output a block before its chunk, and tables of a block; and the constants.
        """
        block = max((int(step.values[0]) for step in self.steps if step.op in WINDOWS), default=0)
        pairs = max((pair_space(int(step.values[0])) for step in self.steps if step.op == "pair"), default=0)
        registers = (len(self.steps) + 1) * self.chunk + len(self.outputs) * (self.chunk + block)
        return registers + sum(self.history) + 4 * block + pairs + (5 + len(self.constants)) * STRIP + 4 * TILE

    @property
    def work(self) -> float:
        """The elementary steps of the program for each bar, weighed by what they were measured to take."""
        return sum(_work(step) for step in self.steps)


# In units of an EMA's bar.
_WORK = {"mean": 1.0, "deviation": 2.0, "cutler": 2.0, "pair": 4.0, "follow": 1.0, "strength": 2.0, "scan": 1.5}


def _work(step: Step) -> float:
    if step.op in ("spread", "count_below", "fir"):
        return bars_read(step) / 8
    if step.op == "quantile":
        return 7 + step.values[0] / 8
    return _WORK.get(step.op, 0.25)


def pair_space(period: int) -> int:
    """The numbers of scratch memory of a window of two series: the earlier block's sums, and eight blocks of both."""
    if period > SIDE_BY_SIDE:
        return SUMS * (period + 8)
    return 8 * (SUMS * period + 2 * (period + 8))


def bars_read(step: Step) -> int:
    """How many bars before the current one a loop over the bars of a window reads."""
    return len(step.values) if step.op == "fir" else int(step.values[0])


class TooManySteps(ValueError):
    """Raised for a graph of more steps than are wanted."""


def plan(outputs: Mapping[str, Node], itemsize: int, most: int | None = None) -> Program:
    """The program of some outputs, for inputs whose numbers have so many bytes. Raises TooManySteps for more than
    `most`."""
    builder = _Builder(itemsize, most)
    shown = {name: builder.whole(builder.operand(node)) for name, node in outputs.items()}
    order = sorted(
        range(len(builder.steps)), key=lambda at: (builder.steps[at].level, not builder.steps[at].is_map, at)
    )
    order.sort(key=lambda at: builder.steps[at].op != "input")
    place = {at: index for index, at in enumerate(order)}

    def moved(operand: Operand) -> Operand:
        return Operand(place[operand.at], operand.lag) if operand.at >= 0 else operand

    steps = tuple(replace(builder.steps[at], args=tuple(moved(arg) for arg in builder.steps[at].args)) for at in order)
    ends = tuple((name, moved(operand)) for name, operand in shown.items())
    first = {name: _first(steps, end) for name, end in ends}
    reaches = [_reach(steps, end) for _, end in ends]
    reach = None if None in reaches else max(each for each in reaches if each is not None)
    return Program(steps, tuple(builder.constants), ends, _history(steps), first, reach)


def _history(steps: Sequence[Step]) -> tuple[int, ...]:
    history = [0] * len(steps)
    for step in steps:
        for arg in step.args:
            if arg.at >= 0:
                history[arg.at] = max(history[arg.at], arg.lag + _read_back(step))
    for index, step in enumerate(steps):
        if step.op in WINDOWS:  # the block that a chunk begins in is computed again
            history[index] = max(history[index], int(step.values[0]))
        elif step.op == "strength":
            history[index] = max(history[index], 1)
    return tuple(history)


def fused(program: Program) -> Program:
    """The program for the CPU with one step in place of several whose results nobody else reads; it has the same bytes.

    What lies between them stays in the core's registers: a window that is doubled to 8 bars, and what _PATTERNS has.
    """
    steps, readers = program.steps, Counter(arg.at for step in program.steps for arg in step.args)
    readers.update(end.at for _, end in program.outputs)
    joined, gone = dict[int, Step](), set[int]()
    for index in range(len(steps)):
        found = _doubled_to_8(steps, readers, index) or _in_one(steps, readers, index)
        if found is not None:
            joined[index] = found[0]
            gone |= found[1]
    left = [index for index in range(len(steps)) if index not in gone]
    place = {index: number for number, index in enumerate(left)}

    def moved(operand: Operand) -> Operand:
        return Operand(place[operand.at], operand.lag) if operand.at >= 0 else operand

    kept = [joined.get(index, steps[index]) for index in left]
    shorter = tuple(replace(step, args=tuple(moved(arg) for arg in step.args)) for step in kept)
    outputs = tuple((name, moved(end)) for name, end in program.outputs)
    return replace(program, steps=shorter, outputs=outputs, history=_history(shorter))


def _doubled_to_8(steps: Sequence[Step], readers: Mapping[int, int], index: int) -> tuple[Step, set[int]] | None:
    """One step for three that join a series with itself 1, 2 and 4 bars earlier, and the steps that it replaces."""
    last = steps[index]
    if last.op not in ("add", "max", "min"):
        return None
    at, inner = index, set[int]()
    for bars in (4, 2, 1):
        if steps[at].op != last.op:
            return None
        one, other = steps[at].args
        if one.at < 0 or other != Operand(one.at, one.lag + bars):
            return None
        if bars > 1:
            if one.lag or readers[one.at] != 2:
                return None
            at = one.at
            inner.add(at)
    return replace(last, op=last.op + "_8", args=(one,)), inner


def _in_one(steps: Sequence[Step], readers: Mapping[int, int], index: int) -> tuple[Step, set[int]] | None:
    """One step for several whose results nobody else reads (_PATTERNS), and the steps that it replaces."""
    for op, pattern in _PATTERNS:
        found, inner = dict[str, Operand](), set[int]()
        if _matches(steps, readers, index, pattern, found, inner):
            return replace(steps[index], op=op, args=tuple(found[letter] for letter in sorted(found))), inner
    return None


def _matches(
    steps: Sequence[Step], readers: Mapping[int, int], index: int, pattern: Any, found: dict[str, Operand],
    inner: set[int],
) -> bool:  # fmt: skip
    """Whether a step is as a pattern says; its operands are added to `found`, the steps inside to `inner`."""
    op, *parts = pattern
    if steps[index].op != op:
        return False
    for part, arg in zip(parts, steps[index].args, strict=True):
        if isinstance(part, str):
            if found.setdefault(part, arg) != arg:
                return False
            continue
        if arg.at < 0 or arg.lag or readers[arg.at] != 1 or not _matches(steps, readers, arg.at, part, found, inner):
            return False
        inner.add(arg.at)
    return True


def _read_back(step: Step) -> int:
    """The bars before the current ones that a loop reads of its operand."""
    if step.op in WINDOWS:
        return 2 * int(step.values[0]) + 1
    if step.op in BARS_READ:
        return bars_read(step)
    if step.op in EIGHTS:
        return 8
    return 1 if step.op in ("follow", "strength") else 0


def _first(steps: Sequence[Step], operand: Operand) -> int:
    return steps[operand.at].first + operand.lag if operand.at >= 0 else 0


def _reach(steps: Sequence[Step], operand: Operand) -> int | None:
    if operand.at < 0:
        return 0
    reach = steps[operand.at].reach
    return None if reach is None else reach + operand.lag


class _Builder:
    def __init__(self, itemsize: int, most: int | None) -> None:
        self._most = most
        self.steps: list[Step] = []
        self.constants: list[float] = []
        self._itemsize = itemsize
        self._numbers: dict[object, int] = {}
        self._nodes: dict[int, Operand] = {}

    def operand(self, node: Node) -> Operand:
        """The operand for a node, whose steps are added if they are new."""
        waiting = [node]  # no recursion: a graph may be thousands of nodes deep
        while waiting:
            first = waiting[-1]
            missing = [arg for arg in first.args if id(arg) not in self._nodes]
            if missing:
                waiting += reversed(missing)
            else:
                self._nodes.setdefault(id(first), self._operand(waiting.pop()))
        return self._nodes[id(node)]

    def _operand(self, node: Node) -> Operand:
        args = tuple(self._nodes[id(arg)] for arg in node.args)
        if node.op == "constant":
            return Operand(-1 - self._constant(float(node.values[0])))
        if node.op == "lag":
            inner, bars = args[0], int(node.values[0])
            return Operand(inner.at, inner.lag + bars) if inner.at >= 0 else inner
        if node.op == "scan":
            args = (args[0] if args[0].at < 0 else self.whole(args[0]), self.whole(args[1]))
        elif node.op not in MAPS:
            args = tuple(self.whole(arg) for arg in args)
        return Operand(self._step(node, args))

    def _constant(self, value: float) -> int:
        key = ("constant", math.copysign(1.0, value), repr(value))
        if key not in self._numbers:
            self._numbers[key] = len(self.constants)
            self.constants.append(value)
        return self._numbers[key]

    def whole(self, operand: Operand) -> Operand:
        """An operand as a series in a register, without a lag, as a loop reads it and as an output leaves."""
        return Operand(self._step(Node("copy"), (operand,))) if operand.lag or operand.at < 0 else operand

    def _step(self, node: Node, args: tuple[Operand, ...]) -> int:
        key = (node.op, args, node.values, node.name, node.delay, node.early)
        if key not in self._numbers:
            self._numbers[key] = len(self.steps)
            self.steps.append(self._described(node, args))
            if self._most is not None and len(self.steps) > self._most:
                raise TooManySteps(f"more than {self._most} steps")
        return self._numbers[key]

    def _described(self, node: Node, args: tuple[Operand, ...]) -> Step:
        starts = [_first(self.steps, arg) for arg in args]
        if node.op == "spread":  # the middle is that of the same window
            starts[1] = max(0, starts[1] - node.delay)
        first = node.delay + (starts[1] if node.early else max(starts, default=0))
        reaches = [_reach(self.steps, arg) for arg in args]
        level = max((self._level_after(arg) for arg in args), default=0)
        own = self._own_reach(Step(node.op, args, node.values))
        reach = None if own is None or None in reaches else own + max((each or 0 for each in reaches), default=0)
        return Step(node.op, args, node.values, node.name, first, reach, level)

    def _level_after(self, operand: Operand) -> int:
        """The level at which an operand can be read: loops end their level."""
        if operand.at < 0:
            return 0
        step = self.steps[operand.at]
        return step.level + (step.op in LOOPS)

    def _own_reach(self, step: Step) -> int | None:
        if step.op in WINDOWS:
            return 2 * int(step.values[0]) + 1
        if step.op in ("follow", "strength"):
            tiles = look_back(step.law, self._itemsize)
            return (tiles + -(-step.law.settled // TILE) + 2) * TILE if tiles else None
        if step.op in BARS_READ:
            return bars_read(step)
        return None if step.op in LOOPS else 0
