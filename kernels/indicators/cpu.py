"""The indicators on all cores of the CPU (moving averages, RSI, Bollinger bands): the reference for other backends."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.indicators import expression as expressions
from warpdesk_server.kernels.indicators import program_cpu, spec
from warpdesk_server.kernels.indicators.declared import INDICATORS
from warpdesk_server.kernels.indicators.expression import Expression
from warpdesk_server.kernels.indicators.gaps import close_all_gaps, reopen_gaps, whole_gap
from warpdesk_server.kernels.indicators.indicator import program_of
from warpdesk_server.kernels.indicators.plan import Program
from warpdesk_server.kernels.indicators.spec import Bollinger, Ema, Rsi, Sma

Array = NDArray[Any]


def sma(params: Sma, prices: Array) -> dict[str, Any]:
    """Moving average: mean of the last `period` prices of (time) or (assets, time), float64 or float32; first at bar
    period - 1."""
    return _of_prices(params, prices)


def bollinger(params: Bollinger, prices: Array) -> dict[str, Any]:
    """Bollinger bands: the mean of the last `period` prices and `width` population deviations around it; first at bar
    period - 1."""
    return _of_prices(params, prices)


def ema(params: Ema, prices: Array) -> dict[str, Any]:
    """Exponential moving average of prices (time) or (assets, time); first at bar period - 1 (talib) or at the first
    price."""
    return _of_prices(params, prices)


def rsi(params: Rsi, prices: Array) -> dict[str, Any]:
    """RSI of prices (time) or (assets, time): 100 * gains / (gains + losses), averaged by the convention; first at bar
    period."""
    return _of_prices(params, prices)


def _of_prices(params: Any, prices: Array) -> dict[str, Any]:
    return _by_program(spec.program(params, prices.dtype.itemsize), params, {"close": prices})


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
    outputs = program_cpu.run(program, close_all_gaps(rows, params.nan_policy))
    if params.nan_policy == "skip":
        gap = whole_gap(rows)
        for output in outputs:
            output[...] = reopen_gaps(output, gap, "skip")
    return outputs.reshape(-1, *shape)
