"""The operands of a strategy's sets for the assets at hand, and what its program reads of them for some sets."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.backtest import spec
from warpdesk_server.kernels.backtest.strategy import Strategy
from warpdesk_server.kernels.indicators import program_cpu
from warpdesk_server.kernels.indicators.algebra import Node
from warpdesk_server.kernels.indicators.plan import plan

Array = NDArray[Any]
_OUTPUTS = 32  # operands of a program
_LEAST_RUN = 64  # sets that are worth calls of their own


class Operands:
    """The operands of a strategy: a row for each combination of values they depend on, for each asset.

    They are computed on the CPU, for as many assets at a time as may be held. Several threads may ask. Raises
    InvalidRequest for values that no operation takes.
    """

    def __init__(self, strategy: Strategy, inputs: Mapping[str, Array]) -> None:
        self._inputs, self._lock = inputs, threading.Lock()
        self._assets, self._bars = (max(len(rows) for rows in inputs.values()), next(iter(inputs.values())).shape[1])
        self.places: list[Array] = []  # of each operand the row of each set
        self._begins: list[int] = []
        names, count = strategy.sets.names, 0
        self._numbers: dict[int, Array] = {}  # rows of one number each, from a row on
        planned: dict[int, Node] = {}
        for operand in strategy.operands:
            self._begins.append(count)
            columns = [strategy.sets.columns[names.index(name)] for name in operand.names]
            numbers: dict[Any, int] = {}
            values = zip(*columns, strict=True) if columns else [()] * strategy.sets.count
            self.places.append(np.array([numbers.setdefault(row, len(numbers)) for row in values], np.int64))
            if operand.is_number:
                self._numbers[count] = np.array(list(numbers), np.float64)  # (numbers, 1)
            else:
                for at, row in enumerate(numbers, count):
                    planned[at] = strategy.node(operand, dict(zip(operand.names, row, strict=True)))
            count += len(numbers)
        self._begins.append(count)
        rows = list(planned)
        parts = [rows[first : first + _OUTPUTS] for first in range(0, len(rows), _OUTPUTS)]
        self._programs = [(part, plan({str(at): planned[at] for at in part}, 8)) for part in parts]
        held = max(1, count * self._bars * 8)
        self._together = max(1, min(self._assets, spec.OPERANDS_HELD // held))
        self._held: tuple[int, Array] | None = None

    def of_asset(self, asset: int) -> list[Array]:
        """The rows (combinations, bars) of each operand for an asset."""
        with self._lock:
            first = asset // self._together * self._together
            if self._held is None or self._held[0] != first:
                self._held = None  # its memory is for the next
                self._held = first, self._compute(first, min(first + self._together, self._assets))
            rows = self._held[1][asset - first]
        return [rows[begin:end] for begin, end in zip(self._begins, self._begins[1:], strict=False)]

    def _compute(self, first: int, end: int) -> Array:
        out = np.empty((end - first, self._begins[-1], self._bars))
        for at, numbers in self._numbers.items():
            out[:, at : at + len(numbers)] = numbers
        for places, program in self._programs:
            names = {*program.inputs, "close"}  # a number alone needs to know how many bars there are
            given = {name: rows if len(rows := self._inputs[name]) == 1 else rows[first:end] for name in names}
            for at, rows in zip(places, program_cpu.run(program, given), strict=True):
                out[:, at] = rows
        return out


def program_inputs(rows: list[Array], places: list[Array], first: int, end: int) -> dict[str, Array]:
    """What a strategy's program reads for the sets from `first` to `end` - 1: of each operand a row for each set, or
    one for all. Rows that follow each other, as in a grid, are not copied."""
    found = {}
    for number, (own, place) in enumerate(zip(rows, places, strict=True)):
        here = place[first:end]
        begin = int(here[0])
        if (here == begin).all():
            found[f"#{number}"] = own[begin : begin + 1]
        elif (here == begin + np.arange(len(here))).all():
            found[f"#{number}"] = own[begin : begin + len(here)]
        else:
            found[f"#{number}"] = own[here]
    return found


def cuts_of(places: list[Array], sets: int, most: int) -> list[int]:
    """Where sets are cut into runs of at most `most`: in a grid where an outer parameter changes, so that each operand
    has one row for all sets of a run, or rows that follow each other. Short runs go on."""
    steps = np.array([np.diff(place) for place in places], np.int64).reshape(len(places), sets - 1)
    turns = ((steps != 0) & (steps != 1)).any(axis=0)
    turns[1:] |= (steps[:, 1:] != steps[:, :-1]).any(axis=0)
    cuts, turned = [0], [*(np.flatnonzero(turns) + 1).tolist(), sets]
    for turn in turned:
        if turn - cuts[-1] >= _LEAST_RUN or turn == sets:
            parts = -(-(turn - cuts[-1]) // most)
            cuts += [cuts[-1] + (part + 1) * (turn - cuts[-1]) // parts for part in range(parts)]
    return cuts
