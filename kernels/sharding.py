"""The sharding of a job: how it is cut into shards that any worker may compute, and how their results are merged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

from warpdesk_server.kernels.array import ArrayInfo


@dataclass(frozen=True, order=True)
class Shard:
    """A shard of a job: its units from `first` to `end` - 1."""

    first: int
    end: int


@dataclass(frozen=True)
class Division:
    """The division of an array among the shards of a job: of an input, or of a result that is joined from parts.

    The array is a line of items in C order. The last `inner` axes are those of an item. A unit has `each` items, and
    the last unit may have fewer. The first `outer` axes number lines that are divided alike; an input is one line.
    """

    whole: ArrayInfo
    each: int = 1
    inner: int = 1
    outer: int = 0

    @property
    def lines(self) -> tuple[int, ...]:
        """The shape of the array as lines of items, and of each item: as `whole`, but for the axes of a line."""
        shape = self.whole.shape
        last = len(shape) - self.inner
        return *shape[: self.outer], prod(shape[self.outer : last]), *shape[last:]

    def span(self, shard: Shard) -> tuple[int, int]:
        """The items of each line that a shard has: the first, and the end."""
        items = self.lines[self.outer]
        return min(shard.first * self.each, items), min(shard.end * self.each, items)

    def part(self, shard: Shard) -> ArrayInfo:
        """The description of a shard's part of the array."""
        first, end = self.span(shard)
        lines = self.lines
        return ArrayInfo(self.whole.dtype, (*lines[: self.outer], end - first, *lines[self.outer + 1 :]))


@dataclass(frozen=True)
class Sharding:
    """The sharding of one job, which its params and the descriptions of its inputs decide alone.

    The job is `units` units, and a shard is a run of them. A shard reads its part of each input in `inputs`, and all of
    every other input. It takes as long, and as much memory, as a job with the params `like(shard)` on what it reads.

    A shard gives a part of each array in `joined`, which are put together in the order of units, and an array of each
    name in `added`, which are added up: those are integers, so that their order does not matter. What is merged are the
    arrays that one shard of all units would give, whatever the cut.

    Without `partials` a shard is that job: its arrays are outputs of the operation, and `values` are the other outputs.
    `partials` names a function of the package's cpu.py and gpu.py, `partials(params, shard, **inputs, seed=, device=)`,
    which gives a shard's arrays. `outputs` is then "module.function" of the package, which makes the outputs of
    the merged arrays: `outputs(params, **arrays)`.
    """

    units: int
    like: Callable[[Shard], Any]
    inputs: Mapping[str, Division] = field(default_factory=dict)
    joined: Mapping[str, Division] = field(default_factory=dict)
    added: Mapping[str, ArrayInfo] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    partials: str = ""
    outputs: str = ""

    def __post_init__(self) -> None:
        if wrong := [name for name, info in self.added.items() if info.dtype.startswith("float")]:
            raise TypeError(f"{', '.join(wrong)}: floats that are added up depend on the cut; join them, and add later")

    def cut(self, count: int, whole: Shard | None = None) -> list[Shard]:
        """At most `count` shards of the job, or of a shard of it, which differ by one unit at most."""
        first, end = (0, self.units) if whole is None else (whole.first, whole.end)
        count = max(1, min(count, end - first))
        ends = [first + number * (end - first) // count for number in range(count + 1)]
        return [Shard(*pair) for pair in pairwise(ends)]

    def parts(self, inputs: Mapping[str, ArrayInfo], shard: Shard) -> dict[str, ArrayInfo]:
        """The descriptions of what a shard reads of the job's inputs."""
        return {name: self.inputs[name].part(shard) if name in self.inputs else whole for name, whole in inputs.items()}

    def largest(self, count: int) -> int:
        """The bytes of the arrays that the largest of so many shards gives."""
        return max(sum(info.nbytes for info in self.results(shard).values()) for shard in self.cut(count))

    def results(self, shard: Shard) -> dict[str, ArrayInfo]:
        """The descriptions of the arrays that a shard gives."""
        return {name: division.part(shard) for name, division in self.joined.items()} | dict(self.added)
