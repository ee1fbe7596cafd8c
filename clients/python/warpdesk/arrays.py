"""Array conversions of the client: from a caller's value to NumPy, between NumPy and JSON, and from .npy."""

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

INLINE = 4096  # numbers: below, JSON costs less than a second request

_HEADER = 4096  # bytes, in which the header of an .npy file of a few axes ends

AnyArray = NDArray[Any]


def as_array(name: str, value: ArrayLike, dtypes: Sequence[str]) -> AnyArray:
    """Convert the client's input array to one of the operation's `dtypes`: unchanged if it has one, else without
    rounding.

    None within a list is a gap (NaN). Dates and times (datetime64 of any unit) become nanoseconds since 1970. Integers
    among floats are converted as exactly as integers alone.
    Raises TypeError for a value with labels, since frames are read by frames.py, and for a value that is not numeric.
    Raises ValueError if none of `dtypes` holds the numbers exactly.
    """
    if isinstance(value, str | Path):
        kind = "string" if isinstance(value, str) else "path"
        raise TypeError(
            f"{name} is a {kind}: give numbers as an array or a list, a file as what upload(Path({str(value)[:80]!r})) "
            "returns"
        )
    members = value if isinstance(value, list | tuple) else []
    labelled = next((each for each in (value, *members) if _has_labels(each)), None)
    if labelled is not None:
        library, kind = type(labelled).__module__.partition(".")[0], type(labelled).__name__
        holds = "is" if labelled is value else "holds"
        raise TypeError(
            f"{name} {holds} a {library} {kind}, whose labels and orientation are not read: give one DataFrame or "
            "Series of pandas or Polars, or an array in which a row is an asset and a column a time. A table of dates "
            "by assets is .to_numpy().T, one series .to_numpy()"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask is not sent: fill it, with NaN for a gap")
    array = _of_list(name, value) if isinstance(value, list | tuple) else np.asarray(value)
    if array.dtype.kind == "M" and "int64" in dtypes:
        array = array.astype("datetime64[ns]").astype("int64")
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} has the dtype {array.dtype}; it must be numbers: integers or floats")
    if array.dtype.name in dtypes:
        return plain(array)
    for dtype in dtypes:
        with np.errstate(invalid="ignore"):
            changed = array.astype(dtype)
            if is_exact(array, changed):
                return plain(changed)
    raise ValueError(f"{name} has the dtype {array.dtype} and numbers that {' and '.join(dtypes)} cannot hold exactly")


# Attributes of a table, a series or another array with labels, of any library: PyArrow, xarray, a LazyFrame of Polars.
_LABELLED = ("to_numpy", "__dataframe__", "dims", "collect")


def _has_labels(value: Any) -> bool:
    return any(hasattr(value, mark) for mark in _LABELLED)


def _of_list(name: str, value: Any) -> AnyArray:
    """Convert the caller's list of numbers, lists or arrays to a NumPy array, where None is a gap."""
    try:
        array = np.asarray(value)
    except ValueError:  # NumPy names neither the list nor the fault
        raise ValueError(f"{name} is a list whose rows differ in length") from None
    if array.dtype.kind not in "iufO" or all(isinstance(each, np.ndarray) for each in value):
        return array
    objects = np.array(value, dtype=object)
    flat = [math.nan if each is None else each for each in objects.reshape(-1).tolist()]
    odd = next((each for each in flat if isinstance(each, bool) or not isinstance(each, _NUMBER)), None)
    if odd is not None:
        raise TypeError(
            f"{name} holds {str(odd)[:40]!r} of type {type(odd).__name__}; it must be numbers, or None for a gap"
        )
    if array.dtype.kind in "iu":
        return array
    large = next((each for each in flat if isinstance(each, int) and not _is_float(each)), None)
    if large is not None:
        raise ValueError(f"{name} holds {str(large)[:40]}, which float64 cannot hold exactly")
    return array if array.dtype.kind == "f" else np.array(flat, dtype=np.float64).reshape(objects.shape)


_NUMBER = (int, float, np.integer, np.floating)


def _is_float(number: int) -> bool:
    try:
        return int(float(number)) == number
    except OverflowError:
        return False


def is_exact(before: AnyArray, after: AnyArray) -> bool:
    """Whether the client's array has the same numbers after a change of its dtype."""
    if before.dtype.kind == after.dtype.kind == "f":  # whoever has more digits than are taken rounds them
        return np.can_cast(before.dtype, after.dtype, "safe")
    if after.dtype.kind == "f" and (after >= 2.0 ** (63 if before.dtype.kind == "i" else 64)).any():
        return False  # rounded up to a number that is not an integer of the dtype before
    same_sign = not ((before < 0) != (after < 0)).any()
    return same_sign and np.array_equal(after.astype(before.dtype), before)


def as_param(name: str, value: Any) -> Any:
    """Convert the caller's parameter to a JSON value: NumPy's scalars become plain numbers. Raises TypeError for
    others."""
    if isinstance(value, np.generic):
        value = value.item()
    try:
        json.dumps(value)
    except TypeError as error:
        raise TypeError(
            f"{name} is no input of this operation, and as a parameter it cannot be sent: {error}"
        ) from None
    return value


def plain(array: AnyArray) -> AnyArray:
    """The client's array in C order and little-endian, without a copy if it is so already."""
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def fits_json(array: AnyArray) -> bool:
    """Whether the client sends an input array inside the JSON body: few numbers, and no infinity, which JSON does not
    have."""
    return array.size <= INLINE and not (array.dtype.kind == "f" and np.isinf(array).any())


def as_json(array: AnyArray) -> Any:
    """Convert an array to nested lists for a JSON body. NaN becomes None and an infinity a string: JSON has no such
    numbers."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array.tolist()
    loose = array.astype(object)
    loose[np.isnan(array)] = None
    loose[np.isposinf(array)] = "Infinity"
    loose[np.isneginf(array)] = "-Infinity"
    return loose.tolist()


def from_base64(described: Mapping[str, Any]) -> AnyArray:
    """The array of an output that a service wrote as {dtype, shape, base64}: little-endian bytes in C order."""
    data = bytearray(base64.b64decode(described["base64"]))  # writable, as an array that was downloaded
    return np.frombuffer(data, np.dtype(described["dtype"]).newbyteorder("<")).reshape(described["shape"])


def from_npy(content: bytes | bytearray) -> AnyArray:
    """The array of an .npy file's content, writable; it stays in the memory of a bytearray."""
    if isinstance(content, bytes):
        array: AnyArray = np.load(io.BytesIO(content), allow_pickle=False)
        return array
    start = io.BytesIO(content[:_HEADER])
    if np.lib.format.read_magic(start) != (1, 0):
        return from_npy(bytes(content))
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(start)
    return np.frombuffer(content, dtype, math.prod(shape), start.tell()).reshape(shape, order="F" if fortran else "C")
