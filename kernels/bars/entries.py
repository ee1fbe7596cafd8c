"""The entries of a job as both backends read them, ticks or smaller bars, and the answer made of their bars."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.bars.edges import Edges, edges_of
from warpdesk_server.kernels.bars.spec import NUMBERS, SMALLER, Bars, values_of
from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.problems import refuse

Array = NDArray[Any]

EDGES = 0.5  # of the time of a job, until its entries are checked and its edges found

_PART = 1 << 20  # numbers that a core looks at in turn


@dataclass(frozen=True)
class Entries:
    """Entries (rows, time) and the edges of their bars.

    Of ticks, `open`, `high`, `low`, `close` and `value` are one array. `value` (rows, 0 or time) is what VWAP
    averages if it is given. `keep` has 0 where an entry is left out; it is empty if none is.
    """

    open: Array
    high: Array
    low: Array
    close: Array
    value: Array
    size: Array
    keep: NDArray[np.uint8]
    edges: Edges
    shape: tuple[int, ...]  # of an output without its bars

    @property
    def rows(self) -> int:
        return int(self.size.shape[0])

    @property
    def columns(self) -> tuple[Array, ...]:
        return self.open, self.high, self.low, self.close, self.value, self.size


@dataclass(frozen=True)
class Sums:
    """What a backend computes: the outputs `NUMBERS` (6, rows, bars), for bars with entries, and their counts."""

    numbers: Array
    count: NDArray[np.int64]


def entries_of(params: Bars, inputs: Mapping[str, Array | None]) -> Entries:
    """The entries of a job and the edges of their bars. Raises InvalidRequest for what only the data shows."""
    given = {name: _frozen(array) for name, array in inputs.items() if array is not None}
    time, names = given["time"], values_of(given)
    shape = given[names[0]].shape
    given |= {name: given[name].reshape(-1, time.size) for name in names}
    size_name = "size" if "size" in given else "volume"
    size, prices = given[size_name], _prices(given)
    least = _least((*prices.values(), size))
    _require_at_least_zero(size_name, size, least[id(size)])
    if params.by == "dollar":
        for name in ("price",) if "price" in given else SMALLER[1:4]:
            _require_at_least_zero(name, given[name], least[id(given[name])])
    keep = _keep(params, size, prices, least)
    of_time = keep.reshape(-1, time.size).max(axis=0) if keep.size else keep
    edges = edges_of(params, time, of_time, _amounts(params, size, prices), len(size), given)
    return Entries(**prices, size=size, keep=keep.reshape(-1), edges=edges, shape=shape[:-1])


def answer(params: Bars, entries: Entries, sums: Sums) -> dict[str, Any]:
    """The outputs of the operation, with the bars that have no entry among the others."""
    edges, rows = entries.edges, entries.rows
    numbers, count = sums.numbers, sums.count
    if edges.count > edges.places.size:
        numbers = np.full((len(NUMBERS), rows, edges.count), np.nan, sums.numbers.dtype)
        numbers[NUMBERS.index("volume")] = 0
        numbers[:, :, edges.places] = sums.numbers
        count = np.zeros((rows, edges.count), np.int64)
        count[:, edges.places] = sums.count
    if params.gaps == "last":
        _carry(numbers, count)
    shape = *entries.shape, edges.count
    shown = {name: part.reshape(shape) for name, part in zip(NUMBERS, numbers, strict=True)}
    return {
        "time": edges.time,
        "close_time": edges.close_time,
        **shown,
        "count": count.reshape(shape),
        "complete": edges.complete,
        "left_out": edges.left_out,
    }


def _carry(numbers: Array, count: NDArray[np.int64]) -> None:
    """Give bars without entries the last close before them as their prices."""
    latest = np.maximum.accumulate(np.where(count > 0, np.arange(count.shape[1]), -1), axis=1)
    row, bar = np.nonzero((count == 0) & (latest >= 0))
    last = numbers[NUMBERS.index("close"), row, latest[row, bar]]
    for name in ("open", "high", "low", "close"):
        numbers[NUMBERS.index(name), row, bar] = last


def _frozen(array: Array) -> Array:
    """A C-ordered, read-only view: Numba compiles again for each mixture of writable and read-only arrays."""
    view = np.ascontiguousarray(array).view(np.ndarray)
    view.flags.writeable = False
    return view


def _prices(given: Mapping[str, Array]) -> dict[str, Array]:
    if "price" in given:
        return dict.fromkeys(("open", "high", "low", "close", "value"), given["price"])
    prices = {name: given[name] for name in SMALLER[:4]}
    if "vwap" in given:
        return {**prices, "value": given["vwap"]}
    return {**prices, "value": _frozen(np.empty((len(given["close"]), 0), given["close"].dtype))}


def _least(arrays: Iterable[Array]) -> dict[int, float]:
    """The least number of each array by its id, NaN if it holds one; on all cores."""
    flat = {id(array): array.reshape(-1) for array in arrays}
    parts = [(key, array[at : at + _PART]) for key, array in flat.items() for at in range(0, array.size, _PART)]
    found = np.empty(len(parts))

    def run(first: int, end: int) -> None:
        for at in range(first, end):
            found[at] = parts[at][1].min()

    share(len(parts), run)
    return {key: found[[at for at, part in enumerate(parts) if part[0] == key]].min(initial=np.inf) for key in flat}


def _require_at_least_zero(name: str, array: Array, least: float) -> None:
    if least >= 0:
        return
    row, at = np.unravel_index(np.argmax(array < 0), array.shape)
    if array[row, at] < 0:
        raise refuse(
            f"/inputs/{name}", f"{name} should be at least 0, got {array[row, at]} at {_place(array, row, at)}"
        )


def _place(array: Array, row: Any, at: Any) -> str:
    return f"entry {at}" if len(array) == 1 else f"entry {at} of asset {row}"


def _keep(params: Bars, size: Array, prices: Mapping[str, Array], least: Mapping[int, float]) -> NDArray[np.uint8]:
    """1 for entries with all their numbers, of the inputs' shape; empty if that is all of them.

    An average price may be missing where the volume is 0.
    """
    missing = np.zeros(size.shape, np.bool_)
    for name, array in {**prices, "size": size}.items():
        if math.isnan(least[id(array)]):
            missing |= np.isnan(array) & ~(size == 0) if name == "value" else np.isnan(array)
    if not missing.any():
        return np.empty(0, np.uint8)
    if params.nan_policy == "error":
        place = _place(missing, *np.argwhere(missing)[0])
        raise refuse("/params/nan_policy", f'a NaN at {place}, and nan_policy is "error"')
    return (~missing).astype(np.uint8)


def _amounts(params: Bars, size: Array, prices: Mapping[str, Array]) -> NDArray[np.float64]:
    """What is summed by volume and dollars, otherwise nothing."""
    if params.by == "volume":
        return _frozen(size.astype(np.float64, copy=False).reshape(-1))
    if params.by != "dollar":
        return _frozen(np.empty(0))
    value = prices["value"]
    with np.errstate(over="ignore"):
        if not value.size:
            value = prices["high"].astype(np.float64) + prices["low"] + prices["close"]
            value /= 3
        amounts = np.multiply(value, size, dtype=np.float64)
    amounts[size == 0] = 0  # whose price may be missing
    return _frozen(amounts.reshape(-1))
