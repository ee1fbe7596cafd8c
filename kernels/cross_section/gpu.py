"""The operations across assets on a GPU, by chunks of bars, with the same bytes as on the CPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.cross_section import spec
from warpdesk_server.kernels.cross_section.cpu import check_weights
from warpdesk_server.kernels.cross_section.groups import Groups
from warpdesk_server.kernels.cross_section.spec import COLLINEAR, TIES, Neutralise, Rank, Winsorise, ZScore
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.occupancy import Shape, best
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.operation import Operation

Array = NDArray[Any]

_FILE = Path(__file__).with_name("cross_section.cu")
_SOURCE = {"float64": Source(_FILE, {"REAL": "f64"}), "float32": Source(_FILE, {"REAL": "f32"})}
SOURCES: tuple[Source, ...] = tuple(_SOURCE.values())

# As in cross_section.cu.
_SIDE, _SIDE_ROWS, _PLACES, _WARPS = 32, 4, 256, 8
_NAN = np.float64(np.nan)


def cross_rank(params: Rank, values: Array, groups: Array | None = None, *, device: Device) -> dict[str, Any]:
    """The rank of each asset of values (assets, time) at each bar on a GPU, within its group if any."""

    def work(chunk: _Chunk, rows: Any) -> None:
        sorted_row = chunk.sort(rows)
        upto = sorted_row[1]  # any array where no rank is dense
        if params.ties == "dense":
            upto = device.empty(chunk.size, np.int32)
            chunk.for_bars("distinct", sorted_row[0], *chunk.first_of_bars, upto)
        options = np.int32(TIES[params.ties]), np.uint32(params.percentile), upto, _NAN
        chunk.for_places("ranks", *sorted_row, *chunk.first_of_bars, *options, rows)

    return {"rank": _by_chunk(spec.CROSS_RANK, params, device, work, values=values, groups=groups)}


def cross_zscore(params: ZScore, values: Array, groups: Array | None = None, *, device: Device) -> dict[str, Any]:
    """The z-score of each asset of values (assets, time) at each bar on a GPU, within its group if any."""

    def work(chunk: _Chunk, rows: Any) -> None:
        there = device.empty(chunk.size, np.float64)
        chunk.for_bars("zscores", *chunk.first_of_bars, np.int32(params.ddof), _NAN, rows, there)

    return {"zscore": _by_chunk(spec.CROSS_ZSCORE, params, device, work, values=values, groups=groups)}


def winsorise(params: Winsorise, values: Array, groups: Array | None = None, *, device: Device) -> dict[str, Any]:
    """The values (assets, time) clipped to two quantiles of each bar on a GPU, of each group if any."""

    def work(chunk: _Chunk, rows: Any) -> None:
        options = np.float64(params.lower), np.float64(params.upper), _NAN
        chunk.for_places("winsorise", *chunk.sort(rows), *chunk.first_of_bars, *options, rows)

    return {"winsorised": _by_chunk(spec.WINSORISE, params, device, work, values=values, groups=groups)}


def neutralise(
    params: Neutralise,
    values: Array,
    factors: Array | None = None,
    weights: Array | None = None,
    groups: Array | None = None,
    *,
    device: Device,
) -> dict[str, Any]:
    """The residuals of each bar's least-squares regression of values (assets, time) on factors and intercepts on a GPU.

    Raises InvalidRequest if a weight is negative.
    """
    check_weights(weights)
    used = np.empty(values.shape[1], np.int32)
    count = 0 if factors is None else len(factors)
    ones = np.ones(len(values), values.dtype)

    def work(chunk: _Chunk, columns: Any) -> None:
        chunk.gather(chunk.upload(ones if weights is None else weights), columns, 1)
        for factor in range(count):
            chunk.gather(chunk.upload(factors[factor]), columns, 2 + factor)  # type: ignore[index]
        kept = device.empty(chunk.bars, np.int32)
        options = np.uint32(count), np.uint32(params.intercept), np.float64(COLLINEAR), _NAN
        chunk.for_bars("neutralise", *chunk.first_of_bars, *options, columns, kept)
        device.to_host(kept, used[chunk.begin : chunk.end])

    given = {"values": values, "factors": factors, "weights": weights, "groups": groups}
    return {"residual": _by_chunk(spec.NEUTRALISE, params, device, work, **given), "used": used}


class _Chunk:
    """Some bars of a job on a device: how they come and go, and how kernels run on them."""

    def __init__(self, device: Device, groups: Groups, values: Array, begin: int, end: int) -> None:
        self.device, self.begin, self.end, self.bars, self.assets = device, begin, end, end - begin, len(values)
        self.size = self.bars * self.assets
        self._source = _SOURCE[values.dtype.name]
        order, first = groups.of_bars(begin, end)
        self._vary = np.uint32(groups.vary)
        self._order, self._first = device.to_device(order.reshape(-1)), device.to_device(first.reshape(-1))
        self._shape = np.uint64(self.bars), np.uint32(self.assets)

    @property
    def first_of_bars(self) -> tuple[Any, ...]:
        """The groups of a kernel's bars, and how many bars and assets there are."""
        return self._first, self._vary, *self._shape

    def upload(self, given: Array) -> Any:
        """The chunk's bars of numbers (assets, time), or the numbers (assets) of all bars, on the device."""
        return self.device.to_device(given[:, self.begin : self.end] if given.ndim == 2 else given)

    def column(self, columns: Any, which: int) -> Any:
        return columns[which * self.size : (which + 1) * self.size]

    def gather(self, given: Any, columns: Any, which: int) -> None:
        """Copy what `upload` gave to a column of rows."""
        strides = (np.uint64(self.bars), np.uint64(1)) if given.ndim == 2 else (np.uint64(1), np.uint64(0))
        groups = self._order, self._first, self._vary
        self._turn("gather", given, *strides, *groups, *self._shape, _NAN, self.column(columns, which))

    def scatter(self, rows: Any, out: Any) -> None:
        self._turn("scatter", rows, self._order, self._vary, *self._shape, out)

    def sort(self, rows: Any) -> tuple[Any, Any]:
        """The keys and places of each row, sorted by groups and numbers."""
        width = min(spec.TILE, max(2, 1 << (self.assets - 1).bit_length()))
        tiles = -(-self.assets // width)
        found = self._empty_keys()
        tiled = np.uint32(self.assets), np.uint32(tiles), np.uint32(width)
        kernel = self.device.kernel(self._source, "sort_tiles")
        threads = max(_SIDE, width // 2)
        kernel((self.bars * tiles,), (threads,), (rows, self._first, self._vary, *tiled, *found), 16 * width)
        if tiles == 1:
            return found
        merged = self._empty_keys()
        self.for_places("merge_tiles", *found, *self.first_of_bars, np.uint32(width), *merged)
        return merged

    def _empty_keys(self) -> tuple[Any, Any]:
        return self.device.empty(self.size, np.uint64), self.device.empty(self.size, np.int32)

    def for_places(self, name: str, *args: Any) -> None:
        """Launch a kernel that has a thread for each place of each row."""
        self._launch(name, args, [Shape(-(-self.size // threads), threads, threads) for threads in (64, 128, _PLACES)])

    def for_bars(self, name: str, *args: Any) -> None:
        """Launch a kernel that has a warp for each row."""
        self._launch(name, args, [Shape(-(-self.bars // warps), 32 * warps, warps) for warps in (1, 2, 4, _WARPS)])

    def _launch(self, name: str, args: tuple[Any, ...], shapes: list[Shape]) -> None:
        kernel = self.device.kernel(self._source, name)
        shape = best(self.device, kernel, shapes)
        kernel((shape.blocks,), (shape.threads,), args)

    def _turn(self, name: str, *args: Any) -> None:
        squares = -(-self.bars // _SIDE), -(-self.assets // _SIDE)
        self.device.kernel(self._source, name)(squares, (_SIDE, _SIDE_ROWS), args)


def _by_chunk(
    operation: Operation,
    params: Any,
    device: Device,
    work: Callable[[_Chunk, Any], None],
    **given: Array | None,
) -> Array:
    """Let `work` change the bars of `values`, copied to the first column of rows, and return what became of them."""
    inputs = {name: array for name, array in given.items() if array is not None}
    kinds: dict[str, Any] = {name: array.dtype.name for name, array in inputs.items()}
    infos = {name: ArrayInfo(kinds[name], array.shape) for name, array in inputs.items()}
    values, groups = inputs["values"], Groups(inputs.get("groups"), len(inputs["values"]))
    time, each, columns = values.shape[1], spec.bars_of_a_chunk(params, infos), spec.columns(params, infos)
    out = np.empty(values.shape, values.dtype)

    def run(first: int, end: int) -> None:
        chunk = _Chunk(device, groups, values, first * each, min(end * each, time))
        numbers, rows = chunk.upload(values), device.empty(columns * chunk.size, np.float64)
        chunk.gather(numbers, rows, 0)
        work(chunk, rows)
        chunk.scatter(rows, numbers)
        device.to_host(numbers, out[:, chunk.begin : chunk.end])

    chunks.run(device, operation.grid(params, infos), run, overlap=True)
    return out
