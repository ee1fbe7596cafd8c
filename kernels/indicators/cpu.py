"""The indicators on all cores of the CPU (moving averages, RSI, Bollinger bands): the reference for other backends."""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.indicators import algebra as a
from warpdesk_server.kernels.indicators import expression as expressions
from warpdesk_server.kernels.indicators import program_loops, recurrence_loops, window_loops
from warpdesk_server.kernels.indicators.declared import INDICATORS
from warpdesk_server.kernels.indicators.expression import Expression
from warpdesk_server.kernels.indicators.gaps import close_all_gaps, close_gaps, reopen_gaps, whole_gap
from warpdesk_server.kernels.indicators.indicator import program_of
from warpdesk_server.kernels.indicators.plan import Program, plan
from warpdesk_server.kernels.indicators.recurrence import rsi_recurrence
from warpdesk_server.kernels.indicators.spec import Bollinger, Ema, NanPolicy, Rsi, Sma

Array = NDArray[Any]


_CLOSE = a.series("close")


def sma(params: Sma, prices: Array) -> dict[str, Any]:
    """Moving average: mean of the last `period` prices of (time) or (assets, time), float64 or float32; first at bar
    period - 1."""
    return _by_program(_sma(params.period, prices.dtype.itemsize), params, {"close": prices})


@lru_cache(maxsize=256)
def _sma(period: int, itemsize: int) -> Program:
    return plan({"sma": a.mean(_CLOSE, period)}, itemsize)


def bollinger(params: Bollinger, prices: Array) -> dict[str, Any]:
    """Bollinger bands: the mean of the last `period` prices and `width` population deviations around it; first at bar
    period - 1."""
    names = "upper", "middle", "lower"
    return _compute(
        lambda x, out: window_loops.bands(x, params.period, params.width, *out), prices, names, params.nan_policy
    )


def ema(params: Ema, prices: Array) -> dict[str, Any]:
    """Exponential moving average of prices (time) or (assets, time); first at bar period - 1 (talib) or at the first
    price."""
    return _by_program(_ema(params.period, params.convention, prices.dtype.itemsize), params, {"close": prices})


@lru_cache(maxsize=256)
def _ema(period: int, convention: str, itemsize: int) -> Program:
    return plan({"ema": a.ema(_CLOSE, period, convention)}, itemsize)


def rsi(params: Rsi, prices: Array) -> dict[str, Any]:
    """RSI of prices (time) or (assets, time): 100 * gains / (gains + losses), averaged by the convention; first at bar
    period."""
    if params.convention == "cutler":
        return _by_program(_cutler(params.period, params.flat, prices.dtype.itemsize), params, {"close": prices})
    law = rsi_recurrence(params.period, params.convention)
    return _compute(
        lambda x, out: recurrence_loops.rsi(x, law, float(params.flat), *out), prices, ("rsi",), params.nan_policy
    )


@lru_cache(maxsize=256)
def _cutler(period: int, flat: float | str, itemsize: int) -> Program:
    return plan({"rsi": a.strength(_CLOSE, period, "cutler", float(flat))}, itemsize)


def _compute(
    fill: Callable[[Array, list[Array]], None], prices: Array, names: tuple[str, ...], policy: NanPolicy
) -> dict[str, Any]:
    series = np.ascontiguousarray(prices).reshape(-1, prices.shape[-1]) if prices.size else prices
    outputs = [np.empty_like(series) for _ in names]
    if series.size:
        # Read-only, so that memory-mapped files and arrays in memory have one Numba signature.
        closed = close_gaps(series, policy).view(np.ndarray)
        closed.flags.writeable = False
        fill(closed, outputs)
        outputs = [reopen_gaps(out, series, policy) for out in outputs]
    return {name: out.reshape(prices.shape) for name, out in zip(names, outputs, strict=True)}


def __getattr__(name: str) -> Callable[..., dict[str, Any]]:
    """The function of a declared indicator (`indicator.py`)."""
    if name not in INDICATORS:
        raise AttributeError(name)
    return partial(_run, name)


def _run(name: str, params: Any, **inputs: Array) -> dict[str, Any]:
    return _by_program(program_of(name, params, next(iter(inputs.values())).dtype), params, inputs)


def _by_program(program: Program, params: Any, inputs: Mapping[str, Array]) -> dict[str, Any]:
    return dict(zip(program.names, _compute_program(program, params, inputs), strict=True))


def expression(params: Expression, **inputs: Array) -> dict[str, Any]:
    """Several series of a caller's graph in one array (outputs, time) or (outputs, assets, time), with their names and
    first bars."""
    program = expressions.program_of(params, next(iter(inputs.values())).dtype.itemsize)
    return {
        "series": _compute_program(program, params, inputs),
        "names": list(program.names),
        "first": dict(program.first),
    }


def _compute_program(program: Program, params: Any, inputs: Mapping[str, Array]) -> Array:
    """All outputs of a program, one after another."""
    shape, dtype = next(iter(inputs.values())).shape, next(iter(inputs.values())).dtype
    if not math.prod(shape):
        return np.empty((len(program.names), *shape), dtype)
    rows = {each: array.view(np.ndarray).reshape(-1, shape[-1]) for each, array in inputs.items()}
    outputs = program_loops.run(program, close_all_gaps(rows, params.nan_policy))
    if params.nan_policy == "skip":
        gap = whole_gap(rows)
        for output in outputs:
            output[...] = reopen_gaps(output, gap, "skip")
    return outputs.reshape(-1, *shape)
