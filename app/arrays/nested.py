"""Parser of inline arrays: nested lists in a job's JSON become NumPy arrays."""

import math
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

import numpy as np

from warpdesk.models import DType
from warpdesk_server.app.arrays.ndarray import Numbers
from warpdesk_server.app.kit.errors import refuse_at
from warpdesk_server.workers.store.npy import MAX_RANK


def from_nested(data: object, dtype: DType, pointer: str, room: int) -> Numbers:
    """Parse an inline array of nested JSON lists, of at most `room` numbers. Whole numbers are exact; `null` is NaN
    in a float dtype."""
    shape: list[int] = []
    node = data
    while isinstance(node, list):
        shape.append(len(node))
        node = node[0] if node else None
        if len(shape) > MAX_RANK:
            raise refuse_at("invalid-request", pointer, f"the lists are nested deeper than {MAX_RANK}")
    if math.prod(shape) > room:
        sentence = (
            f"{math.prod(shape)} numbers of shape {shape} are more than the {room} that inline inputs may still hold; "
            "upload the array with PUT /v1/arrays"
        )
        raise refuse_at("invalid-request", pointer, sentence)
    allowed = {int, float, type(None)} if dtype.startswith("float") else {int}
    rows = [data] if shape else [[data]]
    for depth, extent in enumerate(shape):
        _require_even(rows, extent, leaves=depth == len(shape) - 1, at=(pointer, shape[:depth]))
        if depth < len(shape) - 1:
            rows = list(chain.from_iterable(rows))  # type: ignore[arg-type]
    flat = list(chain.from_iterable(rows))  # type: ignore[arg-type]
    if not set(map(type, flat)) <= allowed:
        place = next(place for place, value in enumerate(flat) if type(value) not in allowed)
        raise refuse_at(
            "invalid-request", _place(pointer, shape, place), f"{_word(flat[place])} is not a number of {dtype}"
        )
    values: list[Any] = flat
    low, high = _range(dtype)
    try:
        with np.errstate(over="ignore"):
            numbers = np.array(values, np.dtype(dtype)).reshape(shape)
        over = np.flatnonzero(np.isinf(numbers))
        if len(over) == 0:
            return numbers
        place = int(over[0])
    except OverflowError:
        place = next(i for i, value in enumerate(values) if value is not None and not low <= value <= high)
    bounds = f"{float(low):.8g} to {float(high):.8g}" if dtype.startswith("float") else f"{low} to {high}"
    sentence = f"{_word(values[place])} is outside {dtype}, which goes from {bounds}"
    raise refuse_at("invalid-request", _place(pointer, shape, place), sentence)


@cache
def _range(dtype: DType) -> tuple[int, int]:
    """The least and the greatest number that an inline array of a dtype may hold, as whole numbers, which compare
    exactly."""
    limits = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _require_even(rows: list[Any], extent: int, *, leaves: bool, at: tuple[str, list[int]]) -> None:
    """Refuse an inline array whose lists at one depth differ in length."""
    pointer, outer = at
    for place, row in enumerate(rows):
        if not isinstance(row, list):
            sentence = f"{_word(row)} is in the place of a list of {extent}"
        elif len(row) != extent:
            sentence = f"the row has {len(row)} entries, the first row has {extent}"
        elif leaves and list in map(type, row):
            sentence = "a list is in the place of a number"
        else:
            continue
        raise refuse_at("invalid-request", _place(pointer, outer, place), sentence)


def _place(pointer: str, shape: Sequence[int], flat: int) -> str:
    """The JSON pointer of an inline array's entry, from its row-major index."""
    indices = []
    for extent in reversed(shape):
        flat, index = divmod(flat, extent)
        indices.append(index)
    return pointer + "".join(f"/{index}" for index in reversed(indices))


def _word(value: object) -> str:
    """Format a wrong value of an inline array for an error's sentence: as JSON, cut to 40 characters."""
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
