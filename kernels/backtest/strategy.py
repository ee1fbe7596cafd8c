"""A strategy as a graph with parameters, cut into operands and a program.

An operand is a part of the graph that some sets share, such as an average of one length: it is computed once for each
combination of the values that it depends on. The program has operands for inputs. It makes each set's signals of them,
with the sets as its rows. So both backends compute signals by the indicators' programs and have the same bytes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from warpdesk_server.kernels.backtest.sets import Number, Sets
from warpdesk_server.kernels.indicators import algebra as a
from warpdesk_server.kernels.indicators.algebra import Node
from warpdesk_server.kernels.indicators.expression import Expression, read, series_fields
from warpdesk_server.kernels.indicators.plan import Program, plan
from warpdesk_server.kernels.problems import InvalidRequest, Problem, refuse

SIDES = ("entries", "short_entries", "exits", "short_exits")  # in the order of a signal's bits
DISTANCES = ("stop_loss", "trailing_stop", "take_profit", "size")  # series besides the signal, in the kernels' order
SIGNAL = "signal"
PRICES = ("open", "high", "low", "close")
MARKET = frozenset((*PRICES, "volume", "benchmark"))  # what is of its bar; other series may know later ones
INPUTS = (*PRICES, "volume", "benchmark", *SIDES, "target", "a", "b", "c", "d", "e", "f", "g", "h")
_SHARED = 4  # sets to each combination of values from which on a part is an operand


@dataclass(frozen=True)
class Operand:
    """An operand: a part of a strategy as JSON, where it stands, and the names of the parameters it depends on."""

    written: Any
    at: str
    names: tuple[str, ...]

    @property
    def is_number(self) -> bool:
        """Whether it is a parameter alone, whose rows are one number each."""
        return isinstance(self.written, dict) and "param" in self.written


class Strategy:
    """A strategy's graph: its outputs by name (SIDES or `target`, DISTANCES), which may use `let` and parameters.
    If `repeated`, the signal's upper four bits are those of what the target wants, at each bar.

    Raises InvalidRequest, with a JSON pointer, for what no expression may be with the first set's values.
    """

    def __init__(self, let: Mapping[str, Any], outputs: Mapping[str, Any], sets: Sets, repeated: bool = False) -> None:
        self._let, self._outputs, self.sets, self._repeated = let, outputs, sets, repeated
        first = sets.at(0)
        used = _parameters([let, outputs])
        for name in used:
            if name not in sets.names:
                names = ", ".join(sets.names) or "none"
                raise refuse(
                    "/params/strategy", f"there is no value for the parameter {name[:80]!r}; there are {names}"
                )
        self.parameters = used
        _, self.inputs = self._read(_replaced(let, first), _replaced(outputs, first))
        self._reached: dict[str, tuple[str, ...]] = {}
        self._combinations: dict[tuple[str, ...], int] = {}
        self.operands: list[Operand] = []
        self._places: dict[str, int] = {}
        self._own_let: dict[str, Any] = {}
        own = {name: self._cut(written, _place(name)) for name, written in outputs.items()}
        self._tail = Expression.model_construct(let=self._own_let, outputs=own)

    @cached_property
    def program(self) -> Program:
        """The program from operands, named "#0" and so on, to the signal's bits and the distances."""
        names = [f"#{number}" for number in range(len(self.operands))]
        nodes, _ = read(self._tail, names)
        shown = {name: node for name, node in nodes.items() if name in DISTANCES}
        return plan({SIGNAL: _signal(nodes, self._repeated), **shown}, 8)

    @property
    def rows(self) -> int:
        """The rows of all operands of an asset, one for each combination of values."""
        return sum(self._count(operand.names) for operand in self.operands)

    @property
    def planned_rows(self) -> int:
        """Those of them that are computed by programs."""
        return sum(self._count(operand.names) for operand in self.operands if not operand.is_number)

    def node(self, operand: Operand, values: Mapping[str, Number]) -> Node:
        """The graph of an operand for some values of its parameters. Raises InvalidRequest for a wrong value."""
        if operand.is_number:
            return a.node(values[operand.written["param"]])
        let = {name: self._let[name] for name in self._lets(operand.written)}
        nodes, _ = self._read(_replaced(let, values), {"value": _replaced(operand.written, values)}, operand.at, values)
        return nodes["value"]

    def _read(
        self, let: Any, outputs: Any, at: str = "", values: Mapping[str, Number] | None = None
    ) -> tuple[dict[str, Node], dict[str, str]]:
        try:
            return read(Expression.model_construct(let=let, outputs=outputs), INPUTS)
        except InvalidRequest as error:
            chosen = ", ".join(f"{name} {value}" for name, value in (values or {}).items())
            with_values = f" (with {chosen})" if chosen else ""
            problems = [Problem(_moved(each.pointer, at), each.detail + with_values) for each in error.problems]
            raise InvalidRequest(*problems, count=error.count) from None

    def _cut(self, written: Any, at: str) -> Any:
        """An expression of the program, in which operands are named by their numbers."""
        if isinstance(written, int | float):
            return written
        names = self._names(written)
        if isinstance(written, str):
            if written not in self._let or self._is_shared(names):
                return self._operand(written, at, names)
            if written not in self._own_let:
                self._own_let[written] = self._cut(self._let[written], f"/params/strategy/let/{written}")
            return written
        series = {} if "param" in written else series_fields(written)
        own = {field: value for field, value in written.items() if field not in series}
        if "param" in written or self._is_shared(names) or _parameters(own):
            return self._operand(written, at, names)
        return own | {field: self._cut(value, f"{at}/{field}") for field, value in series.items()}

    def _operand(self, written: Any, at: str, names: tuple[str, ...]) -> str:
        key = json.dumps(written, sort_keys=True)
        if key not in self._places:
            self._places[key] = len(self.operands)
            self.operands.append(Operand(written, at, names))
        return f"#{self._places[key]}"

    def _is_shared(self, names: tuple[str, ...]) -> bool:
        return not names or _SHARED * self._count(names) <= self.sets.count

    def _count(self, names: tuple[str, ...]) -> int:
        """How many combinations of values some parameters have in the sets."""
        if names not in self._combinations:
            columns = [self.sets.columns[self.sets.names.index(name)] for name in names]
            self._combinations[names] = len(set(zip(*columns, strict=True))) if names else 1
        return self._combinations[names]

    def _names(self, written: Any) -> tuple[str, ...]:
        """The parameters that an expression depends on, also by what it names."""
        key = json.dumps(written, sort_keys=True)
        if key not in self._reached:
            found = _parameters([written, *(self._let[name] for name in self._lets(written))])
            self._reached[key] = tuple(sorted(found))
        return self._reached[key]

    def _lets(self, written: Any) -> set[str]:
        """The named expressions that an expression uses, also by others."""
        found, waiting = set[str](), [written]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                waiting += series_fields(part).values() if "op" in part else ()
            elif isinstance(part, str) and part in self._let and part not in found:
                found.add(part)
                waiting.append(self._let[part])
        return found


def _place(name: str) -> str:
    return f"/params/{name}" if name in DISTANCES else f"/params/strategy/{name}"


def _moved(pointer: str, at: str) -> str:
    """The pointer of an expression's problem as one of a backtest's."""
    for before, after in (("/params/outputs/value", at), ("/params/let", "/params/strategy/let")):
        if pointer.startswith(before):
            return after + pointer.removeprefix(before)
    name, slash, rest = pointer.removeprefix("/params/outputs/").partition("/")
    return _place(name) + slash + rest if pointer.startswith("/params/outputs/") else pointer


def _parameters(written: Any) -> set[str]:
    """The names of the parameters in an expression."""
    found, waiting = set[str](), [written]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if "param" in part:
                if set(part) != {"param"} or not isinstance(part["param"], str):
                    raise refuse("/params/strategy", 'a parameter is written {"param": "its name"}')
                found.add(part["param"])
            else:
                waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part
    return found


def _replaced(written: Any, values: Mapping[str, Number]) -> Any:
    """An expression with numbers in place of its parameters."""
    if not isinstance(written, dict):
        return written
    if "param" in written:
        return values[written["param"]]
    return {field: _replaced(part, values) for field, part in written.items()}


def _signal(nodes: Mapping[str, Node], repeated: bool) -> Node:
    """The bits of a signal as a number: enter long, enter short, leave long, leave short. Of a target at its turns; if
    `repeated`, the four bits above them have it at each bar."""
    if "target" in nodes:
        target = nodes["target"]
        side = a.where_missing(target, a.NOTHING, a.where(target > 0, 1, a.where(target < 0, -1, 0)))
        held = a.scan(a.missing(side), a.where_missing(side, 0, side))  # the last side that was wanted
        before = a.lag(held, 1)
        turned = a.where_missing(before, a.absolute(held), a.absolute(held - before))
        bits = a.where(held > 0, 1 + 8, a.where(held < 0, 2 + 4, 4 + 8))
        return a.where(turned, bits, 0) + 16 * bits if repeated else a.where(turned, bits, 0)
    signal: Node | None = None
    for bit, name in enumerate(SIDES):
        if name in nodes:
            own = (1 << bit) * _truth(nodes[name]) if bit else _truth(nodes[name])
            signal = own if signal is None else own + signal
    return signal if signal is not None else a.node(0)


def _truth(node: Node) -> Node:
    """1 where a series is a number but 0, else 0: the series itself if it has no other numbers."""
    return node if _is_truth(node) else a.where(node, 1, 0)


def _is_truth(node: Node) -> bool:
    if node.op in ("below", "at_most", "equal"):
        return True
    return node.op in ("mul", "max", "min") and all(_is_truth(arg) for arg in node.args)
