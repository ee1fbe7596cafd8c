"""Labels of frames as JSON, which a service keeps beside a job: written by the client that submits it, read by the one
that fetches its result.

    {"library": "pandas", "name": ["AAPL"], "index": [level, ...], "columns": [level, ...]}

A level is one column of labels with its `name` and `kind`: `values` are texts and numbers, `packed` is base64 of zlib
of little-endian numbers. Integers, and times as integers, are packed as the differences of neighbours, the first from
0: ten years of days take 0.4 KB.
"""

import binascii
import datetime as dt
import importlib
import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from warpdesk.arrays import AnyArray
from warpdesk.frames import LIBRARIES, Axes, FrameLabels, JobLabels, PolarsRows, labels_of

_NO_TIME = np.iinfo(np.int64).min  # a gap among times, in both libraries
_SCALARS = (str, int, float, bool, type(None))
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, zlib.error)


class _NotWritable(Exception):
    """Raised for labels that JSON cannot hold, such as objects of a user's class."""


def written(joint: JobLabels, inputs: Mapping[str, FrameLabels], most: int) -> dict[str, dict[str, Any]]:
    """The labels of a job as JSON by input, of those alone without which some axis would have none.

    Nothing if JSON cannot hold them, or needs more than `most` bytes, or if they would be read otherwise than they are.
    """
    if most == 0:
        return {}
    try:
        texts = {name: _written(inputs[name], bool(joint.names)) for name in joint.sources}
    except _NotWritable:
        return {}
    size = sum(len(json.dumps(text, ensure_ascii=False, separators=(",", ":")).encode()) for text in texts.values())
    return texts if size <= most else {}


def _written(labels: FrameLabels, named: bool) -> dict[str, Any]:
    write = _write_pandas if labels.library is LIBRARIES["pandas"] else _write_polars
    text: dict[str, Any] = {"library": labels.library.name.lower(), "index": write(labels.rows)}
    if labels.is_frame:
        text["columns"] = write(labels.columns)
    elif named:  # the outputs of the job get the name of this series
        text["name"] = [_scalar(labels.name)]
    if isinstance(labels.rows, PolarsRows):
        text |= {"height": labels.rows.height, "order": list(labels.rows.order)}
    return text


def read(inputs: Mapping[str, Mapping[str, Any]], axes: Mapping[str, Axes]) -> JobLabels | None:
    """The labels of a job from those that its result has for inputs; `axes` has what is written of each input's axes.

    None where their library is not installed, and for labels that another client wrote in a way of its own.
    """
    try:
        found = {name: _read(text) for name, text in inputs.items()}
        joint = labels_of(found, axes, {name: 1 + labels.is_frame for name, labels in found.items()})
    except (ImportError, *_UNREADABLE):
        return None
    if joint is None or all("name" in text for text in inputs.values()):
        return joint
    return replace(joint, names=frozenset())


def _read(text: Mapping[str, Any]) -> FrameLabels:
    package = text["library"]
    library = LIBRARIES[package]
    module, read = importlib.import_module(package), _read_pandas if package == "pandas" else _read_polars
    rows = read(module, text["index"])
    if package == "polars":
        rows = PolarsRows(rows, int(text["height"]), tuple(text["order"]))
    if "columns" not in text:
        return FrameLabels(library, rows, name=text.get("name", [None])[0])
    columns = read(module, text["columns"])
    return FrameLabels(library, rows, columns[0].to_list() if package == "polars" else columns)


def _write_pandas(index: Any) -> list[dict[str, Any]]:
    if index.nlevels > 1:
        return [_pandas_level(index.get_level_values(level)) for level in range(index.nlevels)]
    return [_pandas_level(index)]


def _pandas_level(index: Any) -> dict[str, Any]:
    kind = str(index.dtype)
    level = {"name": _scalar(index.name), "kind": kind}
    if all(hasattr(index, each) for each in ("start", "stop", "step")):
        return level | {"kind": "range", "values": [index.start, index.stop, index.step]}
    if index.dtype.kind in "mM" and hasattr(index, "asi8"):  # one of Arrow has none
        return level | {"packed": _packed(index.asi8), "freq": index.freqstr}
    if kind.startswith("period"):
        return level | {"packed": _packed(index.asi8)}
    if kind == "category":
        categories = _pandas_level(index.categories)
        return level | {"packed": _packed(index.codes), "categories": categories, "ordered": index.ordered}
    if isinstance(index.dtype, np.dtype) and index.dtype.kind in "iuf":
        return level | {"packed": _packed(index.to_numpy())}
    values = list(index)
    if values and all(type(each) is dt.date for each in values):
        return level | {"kind": "date", "packed": _packed(np.array([each.toordinal() for each in values]))}
    gaps = index.isna() if kind in ("str", "string") else np.zeros(len(values), bool)
    return level | {"values": [None if gap else _scalar(each) for gap, each in zip(gaps, values, strict=True)]}


def _read_pandas(pandas: Any, levels: Sequence[Mapping[str, Any]]) -> Any:
    read = [_pandas_index(pandas, level) for level in levels]
    return read[0] if len(read) == 1 else pandas.MultiIndex.from_arrays(read)


def _pandas_index(pandas: Any, level: Mapping[str, Any]) -> Any:
    kind, name = level["kind"], level["name"]
    if kind == "range":
        return pandas.RangeIndex(*level["values"], name=name)
    if "values" in level:
        return pandas.Index(level["values"], dtype=kind, name=name)
    if kind == "category":
        categories = _pandas_index(pandas, level["categories"])
        made = pandas.Categorical.from_codes(_unpacked(level["packed"], "int64"), categories, level["ordered"])
        return pandas.Index(made, name=name)
    if kind == "date":
        days = [dt.date.fromordinal(day) for day in _unpacked(level["packed"], "int64").tolist()]
        return pandas.Index(days, dtype=object, name=name)
    if kind.startswith("period"):
        numbers = _unpacked(level["packed"], "int64")
        return pandas.PeriodIndex.from_ordinals(numbers, freq=kind[len("period[") : -1], name=name)
    if not kind.startswith(("datetime64", "timedelta64")):
        return pandas.Index(_unpacked(level["packed"], kind), name=name)
    plain, _, zone = kind.rstrip("]").partition(", ")
    times = pandas.Index(_unpacked(level["packed"], "int64").view(f"{plain}]"), name=name)
    times = times.tz_localize("UTC").tz_convert(zone) if zone else times
    with suppress(ValueError):  # a change of the clock may leave pandas a frequency that its times do not have
        times = type(times)(times, freq=level.get("freq"))
    return times


def _write_polars(labels: Any) -> list[dict[str, Any]]:
    if not isinstance(labels, PolarsRows):
        return [{"name": "", "kind": "String", "values": list(labels)}]
    return [_polars_level(column) for column in labels.columns]


def _polars_level(column: Any) -> dict[str, Any]:
    kind = column.dtype.base_type().__name__
    level = {"name": column.name, "kind": kind}
    if kind in ("Date", "Datetime", "Time"):
        numbers = column.to_physical().fill_null(_NO_TIME) if kind != "Date" else column.to_physical().cast(int)
        level["packed"] = _packed(numbers.fill_null(_NO_TIME).to_numpy())
        return level | ({"unit": column.dtype.time_unit, "zone": column.dtype.time_zone} if kind == "Datetime" else {})
    if kind == "Enum":
        level["categories"] = column.dtype.categories.to_list()
    return level | {"values": column.to_list()}


def _read_polars(polars: Any, levels: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [_polars_column(polars, level) for level in levels]


def _polars_column(polars: Any, level: Mapping[str, Any]) -> Any:
    kind, name = level["kind"], level["name"]
    if kind == "Enum":
        return polars.Series(name, level["values"], polars.Enum(level["categories"]))
    if "values" in level:
        return polars.Series(name, level["values"], getattr(polars, kind))
    numbers = _unpacked(level["packed"], "int64")
    column = polars.Series(name, numbers).set(polars.Series(numbers == _NO_TIME), None)
    if kind == "Date":
        return column.cast(polars.Int32).cast(polars.Date)
    return column.cast(polars.Time if kind == "Time" else polars.Datetime(level["unit"], level["zone"]))


def _scalar(value: Any) -> Any:
    """A label that JSON holds as it is."""
    plain = value.item() if isinstance(value, np.generic) else value
    if type(plain) not in _SCALARS or (isinstance(plain, float) and not np.isfinite(plain)):
        raise _NotWritable(value)
    return plain


def _packed(numbers: AnyArray) -> str:
    if numbers.dtype.kind in "iu":
        whole = numbers.astype("<i8")  # of uint64 the same bits
        numbers = np.diff(whole, prepend=np.zeros(1, "<i8"))
    return binascii.b2a_base64(zlib.compress(numbers.tobytes()), newline=False).decode()


def _unpacked(text: str, kind: str) -> AnyArray:
    data = zlib.decompress(binascii.a2b_base64(text))
    if np.dtype(kind).kind == "f":
        return np.frombuffer(data, np.dtype(kind).newbyteorder("<")).astype(kind)
    return np.cumsum(np.frombuffer(data, "<i8"), dtype=np.int64).astype(kind)
