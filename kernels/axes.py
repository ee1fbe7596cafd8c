"""The named axes of arrays: the lengths that inputs give them, and the shapes of outputs that follow.

Axes are written like "asset time". Before them `...` stands for any number of axes, which are broadcast as NumPy does.
A 1 is an axis of length 1 that has no name.
"""

from collections.abc import Iterable, Mapping, Sequence

REST = "..."

Shape = tuple[int, ...]


def fitting(written: Sequence[str], rank: int) -> list[str]:
    """The axes of an array of this rank, by what is written for each rank; none where that does not tell."""
    for axes in map(str.split, written):
        if len(axes) == rank or (axes[0] == REST and len(axes) - 1 <= rank):
            return axes
    return []


def lengths(arrays: Iterable[tuple[Sequence[str], Shape]]) -> dict[str, Shape]:
    """The lengths of all axes of some arrays, each given as its `axes` and shape; `...` may have several lengths.

    An axis of length 1 is broadcast to that of another array. The shapes are known to fit each other.
    """
    found: dict[str, Shape] = {}
    for axes, shape in arrays:
        names = axes[1:] if axes[:1] == [REST] else axes
        whole = shape[: len(shape) - len(names)]
        own: dict[str, Shape] = {name: (length,) for name, length in zip(names, shape[len(whole) :], strict=True)}
        if len(names) < len(axes):
            own[REST] = whole
        for name, given in own.items():
            found[name] = _broadcast(found[name], given) if name in found else given
    return found


def _broadcast(one: Shape, other: Shape) -> Shape:
    rank = max(len(one), len(other))
    pairs = zip((1,) * (rank - len(one)) + one, (1,) * (rank - len(other)) + other, strict=True)
    return tuple(b if a == 1 else a for a, b in pairs)


def shape_of(written: Sequence[str], sizes: Mapping[str, Shape]) -> Shape | None:
    """The shape of an output: the last of its written axes that all have a length. None if one of each has none."""
    lengths_of = {**sizes, "1": (1,)}
    for axes in reversed([each.split() for each in written]):
        if all(name in lengths_of for name in axes):
            return tuple(length for name in axes for length in lengths_of[name])
    return None
