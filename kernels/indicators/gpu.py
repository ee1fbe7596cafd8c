"""The indicators on a GPU (moving averages, RSI, Bollinger bands), with the same bytes as on the CPU."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.indicators import expression as expressions
from warpdesk_server.kernels.indicators import gaps_gpu, indicator, program_gpu, recurrence_gpu, spec, windows_gpu
from warpdesk_server.kernels.indicators.cuts import Cut, Piece
from warpdesk_server.kernels.indicators.declared import INDICATORS
from warpdesk_server.kernels.indicators.expression import Expression
from warpdesk_server.kernels.indicators.gaps import (
    close_all_gaps,
    close_gaps,
    count_prices_before,
    reopen_gaps,
    whole_gap,
)
from warpdesk_server.kernels.indicators.indicator import program_of
from warpdesk_server.kernels.indicators.plan import Program
from warpdesk_server.kernels.indicators.recurrence import TILE, Recurrence, ema_recurrence, look_back, rsi_recurrence
from warpdesk_server.kernels.indicators.recurrence_gpu import HOLD, Place
from warpdesk_server.kernels.indicators.series import SOURCES as SOURCES
from warpdesk_server.kernels.indicators.series import Series
from warpdesk_server.kernels.indicators.spec import Bollinger, Ema, NanPolicy, Rsi, Sma
from warpdesk_server.kernels.indicators.windows import WHOLE, Part, first_bar
from warpdesk_server.kernels.operation import Operation

Array = NDArray[Any]


def sma(params: Sma, prices: Array, *, device: Device) -> dict[str, Any]:
    """The simple moving average on a GPU: the outputs of cpu.sma."""
    windows = _Windows(params.period, lambda series, part: [windows_gpu.means(series, params.period, part)])
    return _compute(spec.SMA, params, prices, device, windows)


def bollinger(params: Bollinger, prices: Array, *, device: Device) -> dict[str, Any]:
    """Bollinger bands on a GPU: the outputs of cpu.bollinger."""
    windows = _Windows(params.period, lambda series, part: windows_gpu.bands(series, params.period, params.width, part))
    return _compute(spec.BOLLINGER, params, prices, device, windows)


def ema(params: Ema, prices: Array, *, device: Device) -> dict[str, Any]:
    """The exponential moving average on a GPU: the outputs of cpu.ema."""
    law = ema_recurrence(params.period, params.convention)
    averages = _Recursion(law, lambda series, place: recurrence_gpu.averages(series, law, place))
    return _compute(spec.EMA, params, prices, device, averages)


def rsi(params: Rsi, prices: Array, *, device: Device) -> dict[str, Any]:
    """The RSI on a GPU: the outputs of cpu.rsi."""
    flat = np.nan if params.flat == "nan" else float(params.flat)
    if params.convention == "cutler":
        cutler = _Windows(
            params.period, lambda series, part: [windows_gpu.cutler(series, params.period, flat, part)], True
        )
        return _compute(spec.RSI, params, prices, device, cutler)
    law = rsi_recurrence(params.period, params.convention)
    strengths = _Recursion(law, lambda series, place: recurrence_gpu.strengths(series, law, flat, place), flat)
    return _compute(spec.RSI, params, prices, device, strengths)


@dataclass(frozen=True)
class _Windows:
    """An indicator that sums over windows: a piece of a row also needs bars before it, from `first_bar` on."""

    period: int
    run: Callable[[Series, Part], list[Any]]
    changes: bool = False  # whether changes of prices are summed, instead of prices

    def in_turn(self, itemsize: int) -> bool:  # noqa: ARG002
        return False

    def rows(self, series: Series) -> list[Any]:
        return self.run(series, WHOLE)

    def piece(self, row: Array, piece: Piece, device: Device) -> list[Any]:
        start = first_bar(self.period, piece.begin, self.changes)
        series = Series(device, device.to_device(row[start : piece.end]), 1, piece.end - start, row.dtype)
        return self.run(series, Part(start, piece.begin - start))

    def finish(self, cut: Cut, outputs: list[Array]) -> None:
        """Do nothing: an indicator over windows is complete after its pieces."""


@dataclass(frozen=True)
class _Recursion:
    """An indicator with a state from bar to bar: a piece of a row needs the tiles it looks back to, or their state."""

    law: Recurrence
    run: Callable[[Series, Place], tuple[Any, Any]]
    flat: float | None = None
    states: dict[tuple[int, int], Array] = field(
        default_factory=dict
    )  # the state before (row, bar), if the indicator depends on all earlier tiles

    def in_turn(self, itemsize: int) -> bool:
        """Whether each piece of a row of prices needs the recurrence's state after the piece before it."""
        return look_back(self.law, itemsize) == 0

    def rows(self, series: Series) -> list[Any]:
        return [self.run(series, Place())[0]]

    def piece(self, row: Array, piece: Piece, device: Device) -> list[Any]:
        tile, back = piece.begin // TILE, look_back(self.law, row.itemsize)
        first = max(0, tile - back) if back else tile
        start, lead = first * TILE, int(first > 0)
        counted = count_prices_before(row, start, self.law.settled)
        before = self.states.get((piece.row, piece.begin))
        series = Series(device, device.to_device(row[start - lead : piece.end]), 1, piece.end - start, row.dtype)
        out, after = self.run(series, Place(first, tile - first, counted, before))
        if back == 0:
            self.states[piece.row, piece.end] = device.to_host(after)
        return [out]

    def finish(self, cut: Cut, outputs: list[Array]) -> None:
        """Complete an RSI that repeats a value from before a cut."""
        if self.flat is None or not cut.in_time:
            return
        for rsi in outputs[0]:
            for begin in range(cut.length, cut.time, cut.length):
                chunk = rsi[begin : begin + cut.length]
                if chunk[0] == HOLD:
                    last = rsi[begin - 1]
                    count = int(np.argmax(chunk != HOLD)) or chunk.size
                    chunk[:count] = self.flat if np.isnan(last) else last


def _compute(
    operation: Operation, params: Any, prices: Array, device: Device, indicator: _Windows | _Recursion
) -> dict[str, Any]:
    names = [output.name for output in operation.outputs]
    if not prices.size:
        return {name: np.empty_like(prices) for name in names}
    policy: NanPolicy = params.nan_policy
    rows = prices.view(np.ndarray).reshape(-1, prices.shape[-1])
    cut = Cut(*rows.shape, spec.CHUNK_BARS)
    dtype: Any = prices.dtype.name
    grid = operation.grid(params, {"prices": ArrayInfo(dtype, prices.shape)})
    # If rows are cut in time, gaps are closed on the host, which has the whole row.
    closed = close_gaps(rows, policy) if cut.in_time or policy == "error" else rows
    outputs = [np.empty(rows.shape, rows.dtype) for _ in names]

    def work(first: int, end: int) -> None:
        for piece in cut.pieces(first, end):
            if cut.in_time:
                results = indicator.piece(closed[piece.row], piece, device)
            else:
                results = _whole_rows(indicator, closed[piece.row : piece.end_row], policy, device)
            for at in range(len(names)):
                out = outputs[at][piece.row : piece.end_row, piece.begin : piece.end]
                device.to_host(results.pop(0).reshape(out.shape), out)

    chunks.run(device, grid, work, overlap=not (cut.in_time and indicator.in_turn(rows.itemsize)))
    indicator.finish(cut, outputs)
    if cut.in_time:
        outputs = [reopen_gaps(out, rows, policy) for out in outputs]
    return {name: out.reshape(prices.shape) for name, out in zip(names, outputs, strict=True)}


def _whole_rows(indicator: _Windows | _Recursion, prices: Array, policy: NanPolicy, device: Device) -> list[Any]:
    rows, time = prices.shape
    series = Series(device, device.to_device(prices.reshape(-1)), rows, time, prices.dtype)
    if policy == "skip":
        counts = gaps_gpu.count_prices(series)
        results = indicator.rows(gaps_gpu.packed(series, counts))
        return [gaps_gpu.spread(series, counts, results.pop(0)) for _ in range(len(results))]
    if policy == "ffill":
        series = gaps_gpu.filled(series)
    return indicator.rows(series)


def __getattr__(name: str) -> Callable[..., dict[str, Any]]:
    """The function of a declared indicator (`indicator.py`)."""
    if name not in INDICATORS:
        raise AttributeError(name)
    return partial(_run, name)


def _run(name: str, params: Any, *, device: Device, **inputs: Array) -> dict[str, Any]:
    program = program_of(name, params, next(iter(inputs.values())).dtype)
    return dict(zip(program.names, _compute_program(program, params, inputs, device), strict=True))


def expression(params: Expression, *, device: Device, **inputs: Array) -> dict[str, Any]:
    """A caller's graph on a GPU: the outputs of cpu.expression."""
    program = expressions.program_of(params, next(iter(inputs.values())).dtype.itemsize)
    series = _compute_program(program, params, inputs, device)
    return {"series": series, "names": list(program.names), "first": dict(program.first)}


def _compute_program(program: Program, params: Any, inputs: Mapping[str, Array], device: Device) -> Array:
    shape, dtype = next(iter(inputs.values())).shape, next(iter(inputs.values())).dtype
    outputs = np.empty((len(program.names), *shape), dtype)
    if not outputs.size:
        return outputs
    rows = {each: array.view(np.ndarray).reshape(-1, shape[-1]) for each, array in inputs.items()}
    closed = close_all_gaps(rows, params.nan_policy)  # on the host
    count, time = next(iter(rows.values())).shape
    results, each = outputs.reshape(-1, count, time), indicator.rows_of_a_chunk(count, time)
    kind: Any = dtype.name
    infos = {given: ArrayInfo(kind, shape) for given in inputs}

    def work(first: int, end: int) -> None:
        here = slice(first * each, min(end * each, count))
        given = {}
        for name, array in closed.items():
            part = array[here]
            given[name] = Series(device, device.to_device(part.reshape(-1)), len(part), time, dtype)
        for out, found in zip(results, program_gpu.run(program, given), strict=True):
            device.to_host(found.reshape(out[here].shape), out[here])

    chunks.run(device, indicator.grid_of(program, infos), work, overlap=True)
    if params.nan_policy == "skip":
        gap = whole_gap(rows)
        for result in results:
            result[...] = reopen_gaps(result, gap, "skip")
    return outputs
