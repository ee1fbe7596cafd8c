"""The parameter sets of a sweep: a grid, or columns of values, and the conditions that they must meet.

A grid's sets are in the order of its names, the last one's values changing quickest.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import prod
from operator import itemgetter

from warpdesk_server.kernels.problems import refuse

Number = int | float
_LOOKED_AT = 4  # combinations of a grid's values that `where` may read, for each set of a job
_SIDE = r"[a-z][a-z0-9_]{0,39}|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_CONDITION = re.compile(rf"\s*({_SIDE})\s*(<=|>=|<|>|!=|==)\s*({_SIDE})\s*")
_HOLDS: dict[str, Callable[[Number, Number], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class Sets:
    """The parameter sets of a sweep: names, and for each name the values of all sets."""

    names: tuple[str, ...]
    columns: tuple[tuple[Number, ...], ...]

    @property
    def count(self) -> int:
        return len(self.columns[0]) if self.columns else 1

    def at(self, index: int) -> dict[str, Number]:
        return {name: column[index] for name, column in zip(self.names, self.columns, strict=True)}


def sets_of(
    grid: Mapping[str, Sequence[Number]], columns: Mapping[str, Sequence[Number]], where: str, most: int
) -> Sets:
    """The sets of a grid or of columns that meet the conditions `where`, such as "fast < slow and slow < 200".

    Raises InvalidRequest for a wrong condition, for no set and for more than `most`.
    """
    names = tuple(sorted(grid or columns))
    return _sets(names, tuple(tuple((grid or columns)[name]) for name in names), bool(grid), where, most)


@lru_cache(maxsize=1)  # a million sets are some 100 MB
def _sets(names: tuple[str, ...], values: tuple[tuple[Number, ...], ...], crossed: bool, where: str, most: int) -> Sets:
    conditions = _conditions(where, names)
    if crossed:
        rows: list[tuple[Number, ...]] = [()]
        for at, own in enumerate(values):
            left = [condition for condition in conditions if condition.last >= at]
            if not left and (whole := len(rows) * prod(len(each) for each in values[at:])) > most:
                raise refuse("/params/grid", f"the grid has {whole:,} sets, and a job has at most {most:,}")
            if (looked := len(rows) * len(own)) > _LOOKED_AT * most:
                raise refuse(
                    "/params/grid",
                    f"the values of {', '.join(names[: at + 1])} have {looked:,} combinations that `where` would read, "
                    f"and it reads at most {_LOOKED_AT * most:,}: give fewer values",
                )
            # A condition is checked as soon as all that it reads is there.
            here = [condition for condition in left if condition.last == at]
            combined = ((*row, value) for row in rows for value in own)
            rows = list(islice((row for row in combined if all(each.meets(row) for each in here)), most + 1))
            if len(rows) > most:
                raise refuse("/params/grid", f"the grid has more than {most:,} sets, the most of a job")
    else:
        lengths = {len(own) for own in values}
        if len(lengths) > 1:
            got = ", ".join(f"{name} {len(own):,}" for name, own in zip(names, values, strict=True))
            raise refuse("/params/sets", f"each parameter needs a value for each set, got {got}")
        if lengths and max(lengths) > most:
            raise refuse("/params/sets", f"{max(lengths):,} sets, and a job has at most {most:,}")
        rows = [row for row in zip(*values, strict=True) if all(each.meets(row) for each in conditions)]
    if names and not rows:
        raise refuse("/params/where", f"no set meets {where!r}")
    return Sets(names, tuple(zip(*rows, strict=True)) if names else ())


_Side = Callable[[tuple[Number, ...]], Number]


@dataclass(frozen=True)
class _Condition:
    """A condition of a grid's sets: the place of the last parameter that it reads, and how its two sides compare."""

    last: int
    holds: Callable[[Number, Number], bool]
    left: _Side
    right: _Side

    def meets(self, row: tuple[Number, ...]) -> bool:
        return self.holds(self.left(row), self.right(row))


def _conditions(where: str, names: tuple[str, ...]) -> list[_Condition]:
    found = []
    for part in where.split(" and ") if where else []:
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise refuse("/params/where", f'{part.strip()[:80]!r} is no condition such as "fast < slow"')
        (first, left), (second, right) = (_side(match[side], names) for side in (1, 3))
        if max(first, second) < 0:
            raise refuse("/params/where", f"{part.strip()[:80]!r} names no parameter")
        found.append(_Condition(max(first, second), _HOLDS[match[2]], left, right))
    return found


def _side(written: str, names: tuple[str, ...]) -> tuple[int, _Side]:
    """The place of the parameter that a side of a condition names, -1 for a number, and how it is read from a set."""
    if not written[0].isalpha():
        number = float(written)
        return -1, lambda row: number  # noqa: ARG005
    if written not in names:
        raise refuse("/params/where", f"there is no parameter {written!r}; there are {', '.join(names)}")
    return names.index(written), itemgetter(names.index(written))
