"""The indicators on all cores of the CPU: the reference for other backends."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.indicators import expression as expressions
from warpdesk_server.kernels.indicators import program_cpu
from warpdesk_server.kernels.indicators.declared import INDICATORS
from warpdesk_server.kernels.indicators.expression import Expression
from warpdesk_server.kernels.indicators.gaps import close_all_gaps, reopen_gaps, whole_gap
from warpdesk_server.kernels.indicators.indicator import whole_shape
from warpdesk_server.kernels.indicators.plan import Program

Array = NDArray[Any]


def __getattr__(name: str) -> Callable[..., dict[str, Any]]:
    """The function of a declared indicator (`indicator.py`)."""
    if name not in INDICATORS:
        raise AttributeError(name)
    return partial(_run, name)


def _run(name: str, params: Any, *arrays: Array, **named: Array) -> dict[str, Any]:
    declared = INDICATORS[name]
    inputs = declared.given(arrays, named)
    program = declared.program(params, next(iter(inputs.values())).itemsize)
    return declared.outputs(params, _compute_program(program, params, inputs))


def expression(params: Expression, **inputs: Array) -> dict[str, Any]:
    """Several series of a caller's graph in one array (outputs, time) or (outputs, assets, time), with their names and
    first bars."""
    program = expressions.program_of(params, next(iter(inputs.values())).dtype.itemsize)
    return {"series": _compute_program(program, params, inputs), **expressions.values_of(program)}


def _compute_program(program: Program, params: Any, inputs: Mapping[str, Array]) -> Array:
    """All outputs of a program, one after another."""
    shape, dtype = whole_shape(inputs), next(iter(inputs.values())).dtype
    if not math.prod(shape):
        return np.empty((len(program.names), *shape), dtype)
    rows = {each: array.view(np.ndarray).reshape(-1, shape[-1]) for each, array in inputs.items()}
    outputs = program_cpu.run(program, close_all_gaps(rows, params.nan_policy))
    if params.nan_policy == "skip":
        gap = whole_gap(rows)
        for output in outputs:
            output[...] = reopen_gaps(output, gap, "skip")
    return outputs.reshape(-1, *shape)
