"""Datasets of the client: the reference that a job reads, rows that were read, and their times."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk.arrays import AnyArray

# A time of a row: text with a zone, a datetime with one, NumPy's datetime64 in UTC, or nanoseconds since 1970.
Time = str | datetime | np.datetime64 | int

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT = re.compile(r"(\d{4}-.+?)(?:[.,](\d{1,9}))?\s?([Zz]|[+-]\d\d:?\d\d)", re.ASCII)


@dataclass(frozen=True)
class Dataset:
    """A part of a dataset as the input of a job: one column, as an array (asset, time), read by the service.

    `start` is in it and `stop` is not. `assets` as one name gives an array (time,). `as_of` is a version: an answer
    that names it can be repeated exactly, and `job.datasets` tells the one that was read.
    """

    name: str
    column: str
    start: Time | None = None
    stop: Time | None = None
    assets: Sequence[str] | str | None = None
    as_of: int | None = None

    def as_input(self) -> dict[str, Any]:
        """The JSON of a job's input."""
        between = {"from": self.start, "to": self.stop}
        fields: dict[str, Any] = {"dataset": self.name, "column": self.column, "as_of": self.as_of}
        fields |= {name: None if at is None else as_time(at) for name, at in between.items()}
        fields["assets"] = self.assets if self.assets is None or isinstance(self.assets, str) else list(self.assets)
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class DatasetRows:
    """Rows that the client has read: numbers (time, asset) of one column, and the version they are of."""

    times: NDArray[np.datetime64]
    assets: list[str]
    numbers: AnyArray
    version: int


def as_time(time: Time) -> str | int:
    """A time as the service takes it. Raises ValueError for a datetime without a time zone, and for NaT."""
    if isinstance(time, np.datetime64):
        if np.isnat(time):
            raise ValueError("a time is NaT")
        return int(_nanoseconds(np.asarray(time)))
    if isinstance(time, datetime):
        if time != time:  # NaT of pandas
            raise ValueError("a time is NaT")
        if time.utcoffset() is None:
            raise ValueError(f"{time} has no time zone: write datetime(..., tzinfo=UTC)")
        if hasattr(time, "to_datetime64"):  # of pandas, with nanoseconds
            return as_time(time.to_datetime64())
        return (time - _EPOCH) // timedelta(microseconds=1) * 1000
    if isinstance(time, int | np.integer) and not isinstance(time, bool):
        return int(time)
    if isinstance(time, str):
        return time
    raise TypeError(f"{time!r} of type {type(time).__name__} is no time: give text, a datetime or nanoseconds")


def as_times(times: Any) -> list[str | int]:
    """Times of rows as the service takes them, of a list, an array, an index or series of a frame, or one time."""
    if isinstance(times, str | datetime | int | np.generic):
        return [as_time(times)]  # type: ignore[arg-type]
    if hasattr(times, "to_numpy"):  # of pandas, where a dtype with a zone has a unit, or of Polars
        unit = getattr(getattr(times, "dtype", None), "unit", None)
        times = times.to_numpy() if unit is None else times.to_numpy(f"datetime64[{unit}]")
    if isinstance(times, np.ndarray) and times.dtype.kind == "M":
        if np.isnat(times).any():
            raise ValueError("a time is NaT")
        return [int(time) for time in _nanoseconds(times).reshape(-1)]
    return [as_time(time) for time in times]


def nanoseconds_of(time: str | int) -> int:
    """Nanoseconds since 1970 of a time as the service takes it. Raises ValueError for text that is no time with a
    zone."""
    if not isinstance(time, str):
        return time
    match = _TEXT.fullmatch(time)
    try:
        at = datetime.fromisoformat(match[1] + match[3].upper()) if match is not None else None
    except ValueError:
        at = None
    if match is None or at is None:
        raise ValueError(f"{time[:40]!r} is not a time with a zone: write 2026-11-27T21:00:00Z, or +01:00 instead of Z")
    found = (at - _EPOCH) // timedelta(seconds=1) * 10**9 + int((match[2] or "0").ljust(9, "0"))
    if not -(2**63) < found < 2**63:
        raise ValueError(f"{time[:40]} is outside what nanoseconds in 64 bits hold, 1677 to 2262")
    return found


def _nanoseconds(times: NDArray[np.datetime64]) -> NDArray[np.int64]:
    """Nanoseconds since 1970. Raises ValueError for a time that 64 bits of them do not hold."""
    found = times.astype("datetime64[ns]")
    if (found.astype(times.dtype) != times).any():
        raise ValueError("a time is outside what nanoseconds in 64 bits hold, 1677 to 2262")
    return found.astype(np.int64)
