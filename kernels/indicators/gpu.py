"""Moving averages, RSI and Bollinger bands on a GPU: the CPU's joins, tiles and carries, byte for byte."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.cuda import Device
from kernels.indicators import recurrence_gpu, windows_gpu
from kernels.indicators.recurrence import SEGMENTS, ema_recurrence, rsi_recurrence
from kernels.indicators.series import SOURCES as SOURCES
from kernels.indicators.series import Series
from kernels.indicators.spec import Bollinger, Ema, NanPolicy, Rsi, Sma
from kernels.operation import refuse

Array = NDArray[Any]


def sma(params: Sma, prices: Array, *, device: Device) -> dict[str, Any]:
    """Return the outputs of cpu.sma."""
    return _compute(
        lambda series: [windows_gpu.means(series, params.period)], prices, ("sma",), params.nan_policy, device
    )


def bollinger(params: Bollinger, prices: Array, *, device: Device) -> dict[str, Any]:
    """Return the outputs of cpu.bollinger."""
    return _compute(
        lambda series: windows_gpu.bands(series, params.period, params.width),
        prices,
        ("upper", "middle", "lower"),
        params.nan_policy,
        device,
    )


def ema(params: Ema, prices: Array, *, device: Device) -> dict[str, Any]:
    """Return the outputs of cpu.ema."""
    law = ema_recurrence(params.period, params.convention)
    return _compute(
        lambda series: [recurrence_gpu.averages(series, law)[0]], prices, ("ema",), params.nan_policy, device
    )


def rsi(params: Rsi, prices: Array, *, device: Device) -> dict[str, Any]:
    """Return the outputs of cpu.rsi."""
    flat = np.nan if params.flat == "nan" else float(params.flat)
    law = rsi_recurrence(params.period, params.convention)

    def strengths(series: Series) -> list[Any]:
        if params.convention == "cutler":
            return [windows_gpu.cutler(series, params.period, flat)]
        return [recurrence_gpu.strengths(series, law, flat)[0]]

    return _compute(strengths, prices, ("rsi",), params.nan_policy, device)


def _compute(
    run: Callable[[Series], list[Any]], prices: Array, names: tuple[str, ...], policy: NanPolicy, device: Device
) -> dict[str, Any]:
    if not prices.size:
        return {name: np.empty_like(prices) for name in names}
    if policy == "error" and (missing := np.count_nonzero(np.isnan(prices))):
        raise refuse("/inputs/prices", f'the prices hold {missing} NaN and nan_policy is "error"')
    time = prices.shape[-1]
    flat = device.to_device(np.ascontiguousarray(prices).reshape(-1))
    series = Series(device, flat, prices.size // time, time, prices.dtype)
    if policy == "skip":
        results = _run_packed(run, series)
    elif policy == "ffill":
        results = run(series.with_prices(_filled(series)))
    else:
        results = run(series)
    return {name: device.to_host(out).reshape(prices.shape) for name, out in zip(names, results, strict=True)}


def _count_prices(series: Series) -> tuple[Any, Any, Any]:
    """Prices before each tile, the latest price's bar before it, and the prices of each row."""
    count, latest = (series.device.empty(series.tasks, np.int64) for _ in range(2))
    total = series.device.empty(series.rows, np.int64)
    shape = np.int64(series.time), np.int64(series.tiles)
    series.by_tile("gaps.cu", "count_prices", series.prices, *shape, count, latest)
    blocks = -(-series.rows // SEGMENTS)
    rows = np.int64(series.rows), np.int64(series.tiles)
    series.launch("gaps.cu", "carry_prices", blocks, SEGMENTS, *rows, count, latest, total)
    return count, latest, total


def _run_packed(run: Callable[[Series], list[Any]], series: Series) -> list[Any]:
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


def _filled(series: Series) -> Any:
    _, latest, _ = _count_prices(series)
    filled = series.empty()
    shape = np.int64(series.time), np.int64(series.tiles)
    series.by_tile("gaps.cu", "fill_forward", series.prices, *shape, latest, series.nan, filled)
    return filled
