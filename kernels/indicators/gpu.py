"""Moving averages, RSI and Bollinger bands on a GPU: the CPU's joins, tiles and carries, byte for byte."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.cuda import Device, Source
from kernels.indicators.recurrence import (
    SEGMENTS,
    TILE,
    Recurrence,
    ema_recurrence,
    look_back,
    negligible,
    rsi_recurrence,
)
from kernels.indicators.spec import Bollinger, Ema, NanPolicy, Rsi, Sma
from kernels.indicators.windows import Step, steps
from kernels.operation import refuse

Array = NDArray[Any]

_HERE = Path(__file__).parent
_REAL = {8: "f64", 4: "f32"}
SOURCES: tuple[Source, ...] = tuple(
    Source(_HERE / file, {"REAL": real})
    for file in ("windows.cu", "recurrence.cu", "gaps.cu")
    for real in _REAL.values()
)

# As in windows.cu.
_BLOCK = 256
_CHUNK = 1024
_LONGEST_IN_SHARED_MEMORY = 1024


def sma(params: Sma, prices: Array, *, device: Device) -> dict[str, Any]:
    """Return the outputs of cpu.sma."""
    return _compute(lambda series: [_means(series, params.period)], prices, ("sma",), params.nan_policy, device)


def bollinger(params: Bollinger, prices: Array, *, device: Device) -> dict[str, Any]:
    """Return the outputs of cpu.bollinger."""
    return _compute(
        lambda series: _bands(series, params.period, params.width),
        prices,
        ("upper", "middle", "lower"),
        params.nan_policy,
        device,
    )


def ema(params: Ema, prices: Array, *, device: Device) -> dict[str, Any]:
    """Return the outputs of cpu.ema."""
    law = ema_recurrence(params.period, params.convention)
    return _compute(lambda series: [_averages(series, law)], prices, ("ema",), params.nan_policy, device)


def rsi(params: Rsi, prices: Array, *, device: Device) -> dict[str, Any]:
    """Return the outputs of cpu.rsi."""
    flat = np.nan if params.flat == "nan" else float(params.flat)
    law = rsi_recurrence(params.period, params.convention)

    def strengths(series: "_Series") -> list[Any]:
        if params.convention == "cutler":
            return [_cutler(series, params.period, flat)]
        return [_strengths(series, law, flat)]

    return _compute(strengths, prices, ("rsi",), params.nan_policy, device)


class _Series:
    """Prices on a device, (rows, time), and what every launch over them needs."""

    def __init__(self, device: Device, prices: Any, rows: int, time: int, dtype: Any) -> None:
        self.device, self.prices, self.rows, self.time, self.dtype = device, prices, rows, time, np.dtype(dtype)
        self.real = self.dtype.type
        self.nan = self.real(np.nan)
        self.size = rows * time
        self.tiles = -(-time // TILE)
        self.tasks = rows * self.tiles

    def empty(self, size: int | None = None) -> Any:
        return self.device.empty(self.size if size is None else size, self.dtype)

    def with_prices(self, prices: Any) -> "_Series":
        return _Series(self.device, prices, self.rows, self.time, self.dtype)

    def launch(self, file: str, name: str, blocks: int, threads: int, *args: Any, shared: int = 0) -> None:
        source = Source(_HERE / file, {"REAL": _REAL[self.dtype.itemsize]})
        self.device.kernel(source, name)((blocks,), (threads,), args, shared)

    def by_bar(self, name: str, *args: Any) -> None:
        self.launch("windows.cu", name, -(-self.size // _BLOCK), _BLOCK, *args)

    def by_chunk(self, name: str, joins: tuple[Step, ...], period: int, arrays: int, *args: Any) -> None:
        chunks = -(-self.time // _CHUNK)
        kinds = np.array([0 if not join.gather else 1 if join.take else 2 for join in joins], np.int32)
        lags = np.array([join.lag for join in joins], np.int32)
        self.launch(
            "windows.cu",
            name,
            self.rows * chunks,
            _BLOCK,
            *(self.prices, np.int64(self.time), np.int64(chunks), np.int32(period), np.int32(len(joins))),
            *(self.device.to_device(kinds), self.device.to_device(lags)),
            *args,
            shared=arrays * (_CHUNK + period - 1) * self.dtype.itemsize,
        )

    def by_tile(self, file: str, name: str, *args: Any) -> None:
        self.launch(file, name, self.tasks, SEGMENTS, *args)

    def shares(self, joins: tuple[Step, ...]) -> Any:
        shares = [(join.old_share, 1.0 - join.old_share, join.old_share * (1.0 - join.old_share)) for join in joins]
        return self.device.to_device(np.array(shares, self.dtype))


def _compute(
    run: Callable[[_Series], list[Any]], prices: Array, names: tuple[str, ...], policy: NanPolicy, device: Device
) -> dict[str, Any]:
    if not prices.size:
        return {name: np.empty_like(prices) for name in names}
    if policy == "error" and (missing := np.count_nonzero(np.isnan(prices))):
        raise refuse("/inputs/prices", f'the prices hold {missing} NaN and nan_policy is "error"')
    time = prices.shape[-1]
    flat = device.to_device(np.ascontiguousarray(prices).reshape(-1))
    series = _Series(device, flat, prices.size // time, time, prices.dtype)
    if policy == "skip":
        results = _run_packed(run, series)
    elif policy == "ffill":
        results = run(series.with_prices(_filled(series)))
    else:
        results = run(series)
    return {name: device.to_host(out).reshape(prices.shape) for name, out in zip(names, results, strict=True)}


def _count_prices(series: _Series) -> tuple[Any, Any, Any]:
    """Prices before each tile, the latest price's bar before it, and the prices of each row."""
    count, latest = (series.device.empty(series.tasks, np.int64) for _ in range(2))
    total = series.device.empty(series.rows, np.int64)
    shape = np.int64(series.time), np.int64(series.tiles)
    series.by_tile("gaps.cu", "count_prices", series.prices, *shape, count, latest)
    blocks = -(-series.rows // SEGMENTS)
    rows = np.int64(series.rows), np.int64(series.tiles)
    series.launch("gaps.cu", "carry_prices", blocks, SEGMENTS, *rows, count, latest, total)
    return count, latest, total


def _run_packed(run: Callable[[_Series], list[Any]], series: _Series) -> list[Any]:
    count, _, total = _count_prices(series)
    packed = series.empty()
    shape = np.int64(series.time), np.int64(series.tiles)
    series.by_tile("gaps.cu", "pack", series.prices, *shape, count, total, series.nan, packed)
    spread = []
    for result in run(series.with_prices(packed)):
        out = series.empty()
        series.by_tile("gaps.cu", "spread", result, series.prices, *shape, count, series.nan, out)
        spread.append(out)
    return spread


def _filled(series: _Series) -> Any:
    _, latest, _ = _count_prices(series)
    filled = series.empty()
    shape = np.int64(series.time), np.int64(series.tiles)
    series.by_tile("gaps.cu", "fill_forward", series.prices, *shape, latest, series.nan, filled)
    return filled


def _means(series: _Series, period: int) -> Any:
    joins, middle, nan = steps(period), series.empty(), series.nan
    if period <= _LONGEST_IN_SHARED_MEMORY:
        series.by_chunk("sma", joins, period, 2, series.shares(joins), nan, middle)
        return middle
    time, size = np.int64(series.time), np.int64(series.size)
    level = gathered = series.device.zeros(series.size, series.dtype)
    for join in joins:
        if join.take:
            gathered = level
            continue
        out = series.empty()
        new = gathered if join.gather else level
        share = series.real(join.old_share)
        series.by_bar("join_means", series.prices, time, size, np.int64(join.lag), share, nan, new, level, out)
        level, gathered = (level, out) if join.gather else (out, gathered)
    series.by_bar("show_means", series.prices, size, nan, gathered, middle)
    return middle


def _bands(series: _Series, period: int, width: float) -> list[Any]:
    joins, nan, reach = steps(period), series.nan, series.real(width)
    bands = [series.empty() for _ in range(3)]
    if period <= _LONGEST_IN_SHARED_MEMORY:
        series.by_chunk("bollinger", joins, period, 3, series.shares(joins), nan, reach, *bands)
        return bands
    time, size = np.int64(series.time), np.int64(series.size)
    zeros = series.device.zeros(series.size, series.dtype)
    level = gathered = (zeros, zeros)
    for join in joins:
        if join.take:
            gathered = level
            continue
        out = (series.empty(), series.empty())
        new = gathered if join.gather else level
        w = join.old_share
        shares = (series.real(share) for share in (w, 1.0 - w, w * (1.0 - w)))
        moments = new[0], level[0], new[1], level[1], *out
        series.by_bar("join_moments", series.prices, time, size, np.int64(join.lag), *shares, nan, *moments)
        level, gathered = (level, out) if join.gather else (out, gathered)
    series.by_bar("show_bands", series.prices, size, nan, reach, *gathered, *bands)
    return bands


def _cutler(series: _Series, period: int, flat: float) -> Any:
    joins, nan, out = steps(period), series.nan, series.empty()
    if period <= _LONGEST_IN_SHARED_MEMORY:
        series.by_chunk("cutler", joins, period, 2, nan, series.real(flat), out)
        return out
    time, size = np.int64(series.time), np.int64(series.size)
    level = gathered = (series.empty(), series.empty())
    series.by_bar("changes", series.prices, time, size, nan, *level)
    for join in joins:
        if join.take:
            gathered = level
            continue
        new = gathered if join.gather else level
        sums = (series.empty(), series.empty())
        for part, old, total in zip(new, level, sums, strict=True):
            series.by_bar("join_sums", time, size, np.int64(join.lag), nan, part, old, total)
        level, gathered = (level, sums) if join.gather else (sums, gathered)
    series.by_bar("show_strengths", size, nan, series.real(flat), *gathered, out)
    return out


def _law(law: Recurrence) -> tuple[np.int32, np.int32, np.int32]:
    return np.int32(law.warm), np.int32(law.valid), np.int32(law.settled)


def _entries(series: _Series, back: int, maps_a: Any, maps_b: Any) -> Any:
    """The state before each tile where it is carried through all of them; otherwise *_run looks back by itself."""
    if back:
        return maps_b
    entry = series.empty(series.tasks)
    rows = np.int64(series.rows), np.int64(series.tiles)
    series.launch("recurrence.cu", "carry", -(-series.rows // SEGMENTS), SEGMENTS, *rows, maps_a, maps_b, entry)
    return entry


def _reduced(series: _Series, name: str, law: tuple[Any, ...], states: int) -> tuple[Any, list[Any]]:
    """Counts of bars before each segment, and the maps from each tile's start: the factor and `states` offsets."""
    shape = np.int64(series.time), np.int64(series.tiles)
    last = series.device.empty(series.tasks, np.int64)
    series.by_tile("recurrence.cu", "gaps", series.prices, *shape, last)
    counts = series.device.empty(series.tasks * SEGMENTS, np.int32)
    maps = [series.empty(series.tasks * SEGMENTS) for _ in range(1 + states)]
    series.by_tile("recurrence.cu", name, series.prices, *shape, last, *law, counts, *maps)
    return counts, maps


def _averages(series: _Series, law: Recurrence) -> Any:
    constants = series.real(law.beta), *_law(law)
    counts, maps = _reduced(series, "ema_reduce", constants, 1)
    back = look_back(law, series.dtype.itemsize)
    shape = np.int64(series.time), np.int64(series.tiles)
    out = series.empty()
    series.by_tile(
        "recurrence.cu",
        "ema_run",
        *(series.prices, *shape, *constants, np.int32(back)),
        *(counts, *maps, _entries(series, back, *maps), series.nan, out),
    )
    return out


def _strengths(series: _Series, law: Recurrence, flat: float) -> Any:
    constants = series.real(law.beta), series.real(law.first), *_law(law)
    counts, maps = _reduced(series, "rsi_reduce", constants, 2)
    back = look_back(law, series.dtype.itemsize)
    shape = np.int64(series.time), np.int64(series.tiles)
    entries = [_entries(series, back, maps[0], offset) for offset in maps[1:]]
    held = series.device.empty(series.tasks, np.int32)
    ends, out = series.empty(series.tasks), series.empty()
    tiny, level = series.real(negligible(series.dtype.itemsize)), series.real(flat)
    series.by_tile(
        "recurrence.cu",
        "rsi_run",
        *(series.prices, *shape, *constants, np.int32(back)),
        *(counts, *maps, *entries, tiny, level, series.nan, held, ends, out),
    )
    series.by_tile("recurrence.cu", "rsi_hold", *shape, held, ends, level, out)
    return out
