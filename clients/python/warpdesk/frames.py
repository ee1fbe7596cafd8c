"""Frames of pandas and Polars: numbers and labels of those that a caller of the client gives, and frames of outputs.

A frame has a row for each time, an array of the service a column. So a frame is turned where the last axis of an input
is a time. Which axis that is, the service says: `InputDescription.axes` and `OutputDescription.axes`.

No library is imported for a caller who has none: an object is told by the name of its module.
"""

import importlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from warpdesk.arrays import AnyArray, is_exact

REST = "..."  # written before the axes of an input that may have any number of others
OUTPUT = "output"  # the axis along which the series of an expression lie: each is a frame
TIME = "time"
SERIES = ((TIME,), ("asset", TIME))  # the axes of what is uploaded
Axes = Sequence[Sequence[str]]  # the names of an array's axes, for each rank that it may have
_ROWS = {TIME, "bar", "entry", REST}  # the last axis of an array whose frame has it along its rows


@dataclass(frozen=True)
class FrameLabels:
    """The labels of a frame or series of the client's caller; a series has no `columns`, only it has a name."""

    library: "Library"
    rows: Any
    columns: Any = None
    name: Hashable = None

    @property
    def is_frame(self) -> bool:
        return self.columns is not None


class Library(Protocol):
    """What the client does with the objects of one library of frames. Labels of an axis are of the library's kind."""

    name: str

    def read(self, name: str, value: Any, dtypes: Sequence[str]) -> tuple[AnyArray, FrameLabels]:
        """The numbers of a frame (rows, columns) or series (rows,), and its labels."""

    def size(self, labels: Any) -> int: ...

    def listed(self, labels: Any) -> list[Any]:
        """The labels of an axis, each as a plain value."""

    def merged(self, one: Any, other: Any) -> Any:
        """The labels of an axis if two inputs have the same ones; None if they differ."""

    def is_long(self, rows: Any) -> bool:
        """Whether times repeat among the labels of rows, with a text beside them: rows of several assets."""

    def series(self, numbers: AnyArray, rows: Any, name: Hashable, axis: str) -> Any: ...

    def frame(self, numbers: AnyArray, rows: Any, columns: Any, axis: str) -> Any:
        """The frame of numbers (rows, columns), whose labels may be None; `axis` is the name of that of the rows."""


@dataclass(frozen=True)
class JobLabels:
    """The labels of a job's axes by their names, which outputs with these axes get.

    `sources` are the inputs whose labels together are these. `names` is the one name that all inputs have, if they are
    series; else it is empty, and a series is named like its output.
    """

    library: Library
    axes: Mapping[str, Any]
    sources: tuple[str, ...]
    names: frozenset[Hashable] = frozenset()

    def labelled(self, output: str, array: AnyArray, written: Axes, names: Sequence[str] = ()) -> Any:
        """The frame or series of an output, or the array where no axis of it has labels.

        `written` are its axes for each rank. `names` are those of the frames of an array that holds several.
        """
        axes = self._axes(written, array.shape)
        if axes[:1] == [OUTPUT]:
            return [self._one(name, each, axes[1:]) for name, each in zip(names, array, strict=True)]
        return self._one(output, array, axes)

    def _axes(self, written: Axes, shape: Sequence[int]) -> list[str]:
        """The axes of an output of this shape: of those that fit, the ones of which most have labels; the last of
        equals."""
        fitting = [_of_output(axes, len(shape)) for axes in reversed(written) if _fits(axes, len(shape))]
        return max(fitting, key=lambda axes: self._label_count(axes, shape), default=[])

    def _label_count(self, axes: Sequence[str], shape: Sequence[int]) -> int:
        return sum(self._labels(axis, length) is not None for axis, length in zip(axes, shape, strict=True))

    def _one(self, output: str, array: AnyArray, axes: Sequence[str]) -> Any:
        labels = [self._labels(axis, length) for axis, length in zip(axes, array.shape, strict=bool(axes))]
        if array.ndim not in (1, 2) or not any(each is not None for each in labels):
            return array
        if array.ndim == 1:
            return self.library.series(array, labels[0], next(iter(self.names), output), _plain(axes[0]))
        if is_turned(axes):
            return self.library.frame(array.T, labels[1], labels[0], _plain(axes[1]))
        return self.library.frame(array, labels[0], labels[1], _plain(axes[0]))

    def _labels(self, axis: str, length: int) -> Any:
        found = self.axes.get(axis)
        return found if found is not None and self.library.size(found) == length else None


def library_of(value: Any) -> Library | None:
    """The library whose frame, series or index the client's caller gave; None for any other value."""
    for kind in type(value).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in LIBRARIES and kind.__name__ in _KINDS:
            return LIBRARIES[package]
    return None


def axes_of(written: Axes, rank: int) -> list[str]:
    """The axes of an input of this rank by what is written for each rank; none where that does not tell."""
    return next((list(axes) for axes in written if _fits(axes, rank)), [])


def is_turned(axes: Sequence[str]) -> bool:
    """Whether the frame of an array with these axes has the last of them along its rows."""
    return bool(axes) and axes[-1].partition(" ")[0] in _ROWS


def read_frame(
    name: str,
    value: Any,
    library: Library,
    dtypes: Sequence[str],
    ranks: Sequence[int],
    written: Axes,
) -> tuple[AnyArray, FrameLabels]:
    """The array that a frame or series of the caller is for an input of an operation, and its labels.

    Raises TypeError or ValueError, with the names of columns, for what cannot be an array exactly.
    """
    numbers, labels = library.read(name, value, dtypes)
    if labels.is_frame and max(ranks) == 1:
        if numbers.shape[1] != 1:
            raise TypeError(f"{name} is one series, and has {numbers.shape[1]} columns: choose one of them")
        numbers, labels = numbers[:, 0], FrameLabels(library, labels.rows, name=library.listed(labels.columns)[0])
    axes = axes_of(written, numbers.ndim)
    if not axes and (not written or numbers.ndim in ranks):  # else its rank is refused by the service
        raise TypeError(
            f"{name} is a {library.name} {type(value).__name__}, and the service does not say which of its axes is the "
            "time: send an array, .to_numpy() or .to_numpy().T"
        )
    return (numbers.T if is_turned(axes) else numbers), labels


def labels_of(
    inputs: Mapping[str, FrameLabels], axes: Mapping[str, Axes], ranks: Mapping[str, int]
) -> JobLabels | None:
    """The labels that the frames of a job's inputs give to its axes; None if no input is a frame.

    `axes` has what is written of each input's axes, `ranks` those of all arrays. Raises ValueError for labels of an
    axis that differ between two inputs, and TypeError for frames of two libraries.
    """
    if not inputs:
        return None
    (first, labels), *others = inputs.items()
    library = labels.library
    if (odd := next((each for each in others if each[1].library is not library), None)) is not None:
        raise TypeError(f"{first} is of {library.name} and {odd[0]} of {odd[1].library.name}: give both in one kind")
    fitting = {name: axes_of(axes[name], rank) for name, rank in ranks.items()}
    rest = max((ranks[name] - len(each) + 1 for name, each in fitting.items() if each[:1] == [REST]), default=0)
    found: dict[str, tuple[str, Any]] = {}
    for name, labels in inputs.items():
        for axis, own in _placed(name, labels, _expanded(fitting[name], ranks[name], rest)):
            before, earlier = found.setdefault(axis, (name, own))
            sizes = library.size(earlier), library.size(own)
            if 1 in sizes and sizes[0] != sizes[1]:  # the service repeats the one for all
                merged = earlier if sizes[1] == 1 else own
            else:
                merged = library.merged(earlier, own)
            if merged is None:
                raise ValueError(_difference(library, _plain(axis), (before, earlier), (name, own)))
            found[axis] = (before if merged is earlier else name, merged)
    sources = tuple(dict.fromkeys(name for name, _ in found.values()))
    if max((ranks[name] - len(fitting[name]) + 1 for name in sources if fitting[name][:1] == [REST]), default=0) < rest:
        sources = ()  # an array without labels has more axes, which they do not tell
    names = frozenset(labels.name for labels in inputs.values())
    common = names if len(names) == 1 and not any(labels.is_frame for labels in inputs.values()) else frozenset()
    return JobLabels(library, {axis: own for axis, (_, own) in found.items()}, sources, common)


def require_turned(name: str, labels: FrameLabels, written: Axes) -> FrameLabels:
    """The labels of an uploaded frame that an input of an operation can take, with its rows along the last axis."""
    axes = axes_of(written, 2)
    if labels.is_frame and axes and not is_turned(axes):
        raise TypeError(
            f"{name} has the axes {', '.join(axes)}, and the frame was uploaded with its rows along the last axis: "
            "give the frame itself, or upload .to_numpy()"
        )
    return labels


def restored(numbers: AnyArray, labels: FrameLabels) -> Any:
    """The frame or series of the client that was uploaded as these numbers."""
    if labels.is_frame:
        return labels.library.frame(numbers.T, labels.rows, labels.columns, "row")
    return labels.library.series(numbers, labels.rows, labels.name, "row")


def _placed(name: str, labels: FrameLabels, axes: Sequence[str]) -> list[tuple[str, Any]]:
    """The labels of the axes of one input."""
    if not axes:
        return []
    rows = axes[-1] if is_turned(axes) else axes[0]
    if rows == TIME and labels.library.is_long(labels.rows):
        raise ValueError(
            f"{name} is a long table, in which times repeat for several assets: give a table with a column for each "
            "asset, as pivot makes it"
        )
    if not labels.is_frame:
        return [(rows, labels.rows)]
    return [(rows, labels.rows), (axes[0] if is_turned(axes) else axes[-1], labels.columns)]


def _difference(library: Library, axis: str, one: tuple[str, Any], other: tuple[str, Any]) -> str:
    (name, labels), (other_name, other_labels) = one, other
    where = f"{name} and {other_name}" if name != other_name else f"the rows and the columns of {name}"
    both = library.listed(labels), library.listed(other_labels)
    sentence = f"{where} have different labels of the axis {axis}: {len(both[0]):,} and {len(both[1]):,} of them"
    missing = object()
    for number, (left, right) in enumerate(zip_longest(*both, fillvalue=missing), 1):
        if left is missing or right is missing or not _same(left, right):
            left, right = ("no label" if each is missing else repr(each)[:60] for each in (left, right))
            return f"{sentence}, the first that differ are number {number:,}, {left} and {right}"
    kinds = (getattr(each, "dtype", type(each).__name__) for each in (labels, other_labels))
    return f"{sentence}, of the kinds {' and '.join(map(str, kinds))}"


def _same(left: Any, right: Any) -> bool:
    try:
        return bool(left == right) or (left != left and right != right)
    except TypeError:  # pandas' NA is neither equal nor different
        return left is right


def _fits(axes: Sequence[str], rank: int) -> bool:
    return len(axes) == rank or (axes[0] == REST and len(axes) - 1 <= rank)


def _expanded(axes: Sequence[str], rank: int, rest: int) -> list[str]:
    """The axes of an input, with a name for each that `...` stands for. They are counted from the last, as in NumPy."""
    if axes[:1] != [REST]:
        return list(axes)
    count = rank - len(axes) + 1
    return [f"{REST} {number}" for number in range(rest - count, rest)] + list(axes[1:])


def _of_output(axes: Sequence[str], rank: int) -> list[str]:
    """The axes of an output of this rank, with a name for each that `...` stands for. If those are fewer than in the
    inputs, they are the first ones: the last are summed up."""
    if axes[:1] != [REST]:
        return list(axes)
    return [f"{REST} {number}" for number in range(rank - len(axes) + 1)] + list(axes[1:])


def _plain(axis: str) -> str:
    return "row" if axis.startswith(REST) else axis


def _refused(name: str, odd: Sequence[str]) -> TypeError:
    more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
    return TypeError(
        f"{name} has columns that are no numbers: {', '.join(odd[:3])}{more}. Leave them out, or convert them"
    )


def _floats(where: str, numbers: AnyArray, gaps: AnyArray) -> AnyArray:
    """Integers as float64, with NaN at the gaps between them. Raises ValueError if one would be rounded."""
    floats = np.full(len(gaps), np.nan)
    floats[~gaps] = numbers
    _require_exact(where, numbers, floats[~gaps])
    return floats


def _joined(name: str, rows: int, columns: Sequence[tuple[Any, AnyArray]]) -> AnyArray:
    """Columns as one array (rows, columns) of a dtype that holds all numbers exactly."""
    dtype = np.result_type(*{column.dtype for _, column in columns}) if columns else np.dtype(np.float64)
    turned = np.empty((len(columns), rows), dtype)
    for row, (label, column) in zip(turned, columns, strict=True):
        row[:] = column
        _require_exact(f"the column {label!r} of {name}", column, row)
    return turned.T


def _require_exact(where: str, before: AnyArray, after: AnyArray) -> None:
    if before.dtype.kind != after.dtype.kind and not is_exact(before, after):
        raise ValueError(f"{where} has integers that {after.dtype} cannot hold exactly")


def _nanoseconds(where: str, times: AnyArray) -> AnyArray:
    if np.isnat(times).any():
        raise ValueError(f"{where} has {np.isnat(times).sum()} gaps among its times")
    return times.astype("datetime64[ns]").astype(np.int64)


class _Pandas:
    """The client's use of pandas. The labels of an axis are an Index."""

    name = "pandas"

    def read(self, name: str, value: Any, dtypes: Sequence[str]) -> tuple[AnyArray, FrameLabels]:
        if value.ndim == 1:
            series = value if hasattr(value, "index") else value.to_series()
            if (kind := self._odd(series, dtypes)) is not None:
                raise TypeError(f"{name} is a Series of no numbers: it has the dtype {kind}")
            return self._numbers(name, series, dtypes), FrameLabels(self, series.index, name=series.name)
        labels = FrameLabels(self, value.index, value.columns)
        kinds = set(value.dtypes)
        if len(kinds) == 1 and isinstance(kind := kinds.pop(), np.dtype) and kind.kind in "iuf":
            return value.to_numpy(), labels
        columns = [(label, value.iloc[:, at]) for at, label in enumerate(value.columns)]
        odd = [f"{label!r} ({kind})" for label, each in columns if (kind := self._odd(each, ())) is not None]
        if odd:
            raise _refused(name, odd)
        numbers = [(label, self._numbers(f"the column {label!r} of {name}", each, ())) for label, each in columns]
        return _joined(name, len(value), numbers), labels

    def size(self, labels: Any) -> int:
        return len(labels)

    def listed(self, labels: Any) -> list[Any]:
        return list(labels)

    def merged(self, one: Any, other: Any) -> Any:
        return one if one.equals(other) else None

    def is_long(self, rows: Any) -> bool:
        if rows.nlevels == 1:
            return False
        levels = [rows.get_level_values(level) for level in range(rows.nlevels)]
        repeat = any(level.dtype.kind == "M" and level.has_duplicates for level in levels)
        return repeat and any(level.dtype.kind in "OUT" for level in levels)

    def series(self, numbers: AnyArray, rows: Any, name: Hashable, axis: str) -> Any:  # noqa: ARG002
        return importlib.import_module("pandas").Series(numbers, rows, name=name, copy=False)

    def frame(self, numbers: AnyArray, rows: Any, columns: Any, axis: str) -> Any:  # noqa: ARG002
        return importlib.import_module("pandas").DataFrame(numbers, rows, columns, copy=False)

    def _odd(self, column: Any, dtypes: Sequence[str]) -> str | None:
        """The kind of a column that is not of numbers, in words; None for one that is."""
        kind = column.dtype.kind
        if kind in "iuf" or (kind == "M" and "int64" in dtypes):
            return None
        member = next((each for each in column if each is not None), None) if column.dtype == object else None
        return str(column.dtype) if member is None else f"object, with a {type(member).__name__}"

    def _numbers(self, where: str, column: Any, dtypes: Sequence[str]) -> AnyArray:
        dtype = column.dtype
        if dtype.kind == "M" and "int64" in dtypes:
            if getattr(column.dt, "tz", None) is not None:
                column = column.dt.tz_convert("UTC").dt.tz_localize(None)
            return _nanoseconds(where, column.to_numpy("datetime64[ns]"))
        if isinstance(dtype, np.dtype):
            return np.asarray(column.to_numpy())
        plain = getattr(dtype, "numpy_dtype", None) or dtype.subtype  # nullable, of Arrow; sparse
        if dtype.kind == "f":
            return np.asarray(column.to_numpy(plain, na_value=np.nan))
        gaps = np.asarray(column.isna(), bool)
        numbers = column[~gaps].to_numpy(plain)
        return _floats(where, numbers, gaps) if gaps.any() else numbers


@dataclass(frozen=True)
class PolarsRows:
    """The label columns of a Polars frame, none of a series, its height and the names of all its columns in order."""

    columns: Sequence[Any]
    height: int
    order: tuple[str, ...] = ()


class _Polars:
    """The client's use of Polars, whose frames have no index.

    The labels of rows are the columns of dates, times and texts; the labels of columns are the names of the others.
    """

    name = "Polars"

    _NUMBERS = ("Float64", "Float32", "Int64", "Int32", "Int16", "Int8", "UInt64", "UInt32", "UInt16", "UInt8")
    _LABELS = ("Date", "Datetime", "Time", "String", "Categorical", "Enum")
    _TIMES = ("Date", "Datetime")

    def read(self, name: str, value: Any, dtypes: Sequence[str]) -> tuple[AnyArray, FrameLabels]:
        if not hasattr(value, "get_columns"):
            times = "int64" in dtypes and self._kind(value) in self._TIMES
            if not times and self._kind(value) not in self._NUMBERS:
                raise TypeError(f"{name} is a Series of no numbers: it has the dtype {value.dtype}")
            return self._numbers(name, value), FrameLabels(self, PolarsRows((), len(value)), name=value.name)
        columns = value.get_columns()
        if odd := [
            f"{each.name!r} ({each.dtype})" for each in columns if self._kind(each) not in self._NUMBERS + self._LABELS
        ]:
            raise _refused(name, odd)
        numbers = [each for each in columns if self._kind(each) in self._NUMBERS]
        rows = [each for each in columns if self._kind(each) in self._LABELS]
        arrays = [(each.name, self._numbers(f"the column {each.name!r} of {name}", each)) for each in numbers]
        labels = PolarsRows(rows, value.height, tuple(value.columns)), [each.name for each in numbers]
        return _joined(name, value.height, arrays), FrameLabels(self, *labels)

    def size(self, labels: Any) -> int:
        return labels.height if isinstance(labels, PolarsRows) else len(labels)

    def listed(self, labels: Any) -> list[Any]:
        if not isinstance(labels, PolarsRows):
            return list(labels)
        if not labels.columns:
            return list(range(labels.height))
        lists = [column.to_list() for column in labels.columns]
        return lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))

    def merged(self, one: Any, other: Any) -> Any:
        if self.size(one) != self.size(other):
            return None
        for blank, chosen in ((one, other), (other, one)):
            if isinstance(blank, PolarsRows) and not blank.columns:
                return chosen
        if isinstance(one, PolarsRows) and isinstance(other, PolarsRows) and len(one.columns) == len(other.columns):
            same = all(left.equals(right) for left, right in zip(one.columns, other.columns, strict=True))
        else:
            same = self.listed(one) == self.listed(other)
        return one if same else None

    def is_long(self, rows: Any) -> bool:
        repeat = any(self._kind(each) in self._TIMES and each.n_unique() < len(each) for each in rows.columns)
        return repeat and any(self._kind(each) in ("String", "Categorical", "Enum") for each in rows.columns)

    def series(self, numbers: AnyArray, rows: Any, name: Hashable, axis: str) -> Any:
        if isinstance(rows, PolarsRows) and not rows.columns:
            return importlib.import_module("polars").Series(name, numbers)
        return self.frame(numbers[:, None], rows, [name], axis)

    def frame(self, numbers: AnyArray, rows: Any, columns: Any, axis: str) -> Any:
        polars = importlib.import_module("polars")
        names = [f"column_{at}" for at in range(numbers.shape[1])] if columns is None else self.listed(columns)
        if isinstance(rows, PolarsRows):
            labels, order = list(rows.columns), rows.order
        else:
            labels, order = [] if rows is None else [polars.Series(axis, rows)], ()
        taken: set[str] = set()
        series = [
            polars.Series(_unlike(str(name), taken), np.ascontiguousarray(each))
            for name, each in zip(names, numbers.T, strict=True)
        ]
        made = polars.DataFrame([*(each.alias(_unlike(each.name, taken)) for each in labels), *series])
        return made.select(order) if set(order) == set(made.columns) else made

    def _kind(self, column: Any) -> str:
        return str(column.dtype.base_type().__name__)

    def _numbers(self, where: str, column: Any) -> AnyArray:
        if self._kind(column) in self._TIMES:
            return _nanoseconds(where, column.to_numpy())
        if column.null_count() and column.dtype.is_integer():
            return _floats(where, column.drop_nulls().to_numpy(), column.is_null().to_numpy())
        return np.asarray(column.to_numpy())


def _unlike(name: str, taken: set[str]) -> str:
    """The name of a column, with "_" after one that is taken: in a frame of Polars names are unique."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


LIBRARIES: dict[str, Library] = {"pandas": _Pandas(), "polars": _Polars()}
_KINDS = ("DataFrame", "Series", "Index")
