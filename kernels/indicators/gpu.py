"""The indicators on a GPU, with the same bytes as on the CPU."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.indicators import expression as expressions
from warpdesk_server.kernels.indicators import indicator, program_gpu
from warpdesk_server.kernels.indicators.declared import INDICATORS
from warpdesk_server.kernels.indicators.expression import Expression
from warpdesk_server.kernels.indicators.gaps import close_all_gaps, reopen_gaps, whole_gap
from warpdesk_server.kernels.indicators.plan import Program
from warpdesk_server.kernels.indicators.series import SOURCES as SOURCES
from warpdesk_server.kernels.indicators.series import Series

Array = NDArray[Any]


def __getattr__(name: str) -> Callable[..., dict[str, Any]]:
    """The function of a declared indicator (`indicator.py`)."""
    if name not in INDICATORS:
        raise AttributeError(name)
    return partial(_run, name)


def _run(name: str, params: Any, *arrays: Array, device: Device, **named: Array) -> dict[str, Any]:
    declared = INDICATORS[name]
    inputs = declared.given(arrays, named)
    program = declared.program(params, next(iter(inputs.values())).itemsize)
    return declared.outputs(params, _compute_program(program, params, inputs, device))


def expression(params: Expression, *, device: Device, **inputs: Array) -> dict[str, Any]:
    """A caller's graph on a GPU: the outputs of cpu.expression."""
    program = expressions.program_of(params, next(iter(inputs.values())).dtype.itemsize)
    return {"series": _compute_program(program, params, inputs, device), **expressions.values_of(program)}


def _compute_program(program: Program, params: Any, inputs: Mapping[str, Array], device: Device) -> Array:
    shape, dtype = indicator.whole_shape(inputs), next(iter(inputs.values())).dtype
    outputs = np.empty((len(program.names), *shape), dtype)
    if not outputs.size:
        return outputs
    rows = {each: array.view(np.ndarray).reshape(-1, shape[-1]) for each, array in inputs.items()}
    closed = close_all_gaps(rows, params.nan_policy)  # on the host
    count, time = outputs[0].size // shape[-1], shape[-1]
    results, each = outputs.reshape(-1, count, time), indicator.rows_of_a_chunk(count, time)
    kind: Any = dtype.name
    infos = {given: ArrayInfo(kind, shape) for given in inputs}

    def work(first: int, end: int) -> None:
        here = slice(first * each, min(end * each, count))
        given = {}
        for name, array in closed.items():
            part = np.broadcast_to(array, (count, time))[here]
            given[name] = Series(device, device.to_device(part.reshape(-1)), len(part), time, dtype)
        for out, found in zip(results, program_gpu.run(program, given), strict=True):
            device.to_host(found.reshape(out[here].shape), out[here])

    chunks.run(device, indicator.grid_of(program, infos), work, overlap=True)
    if params.nan_policy == "skip":
        gap = whole_gap(rows)
        for result in results:
            result[...] = reopen_gaps(result, gap, "skip")
    return outputs
