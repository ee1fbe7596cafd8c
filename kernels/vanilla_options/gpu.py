"""The operations on options on a GPU, by chunks of options, with the same bytes as on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.operation import Operation
from warpdesk_server.kernels.vanilla_options import spec
from warpdesk_server.kernels.vanilla_options.contracts import Contracts
from warpdesk_server.kernels.vanilla_options.spec import (
    BLACK_SCHOLES,
    HALLEY_STEPS,
    IMPLIED_VOLATILITY,
    NEWTON_STEPS,
    BlackScholes,
    ImpliedVolatility,
)

Array = NDArray[Any]

_SOURCE = Source(Path(__file__).with_name("vanilla_options.cu"))
SOURCES: tuple[Source, ...] = (_SOURCE,)

_THREADS = 256  # as in vanilla_options.cu
_NAN = np.float64(np.nan)


def black_scholes(params: BlackScholes, *, device: Device, **inputs: Array) -> dict[str, Array]:
    """Prices and Greeks of European options on a GPU, each output float64 in the shape of the inputs, or (1).

    Raises InvalidRequest if a number of is_call is neither 0 nor 1.
    """
    units = [np.float64(unit) for unit in params.units]
    if params.model == "bachelier":
        return _by_chunk(BLACK_SCHOLES, "normal", params, inputs, (*units, _NAN), device)
    options = (np.uint32(params.model == "black76"), *units, _NAN)
    return _by_chunk(BLACK_SCHOLES, "lognormal", params, inputs, options, device)


def implied_volatility(params: ImpliedVolatility, *, device: Device, **inputs: Array) -> dict[str, Array]:
    """Implied volatilities of European options on a GPU, float64, and a status of each, uint8, in the inputs' shape.

    Raises InvalidRequest if a number of is_call is neither 0 nor 1.
    """
    options = (np.uint32(HALLEY_STEPS), np.uint32(NEWTON_STEPS), _NAN)
    return _by_chunk(IMPLIED_VOLATILITY, "implied", params, inputs, options, device)


def _by_chunk(
    operation: Operation, name: str, params: Any, inputs: dict[str, Array], options: tuple[Any, ...], device: Device
) -> dict[str, Array]:
    """The outputs of a kernel that takes the options' numbers and then `options`, run over the chunks of the job."""
    contracts, kernel = Contracts(params, inputs), device.kernel(_SOURCE, name)
    out = [np.empty(contracts.size, np.uint8 if each.name == "status" else np.float64) for each in operation.outputs]
    vary = np.uint32(sum(1 << j for j, name in enumerate(contracts.order) if contracts.each[name]))

    def work(first: int, end: int) -> None:
        part = slice(first * spec.CHUNK, min(end * spec.CHUNK, contracts.size))
        numbers = {
            name: device.to_device(array[part] if contracts.each[name] else array)
            for name, array in contracts.numbers.items()
        }
        given = [numbers[name] for name in contracts.order]
        count = part.stop - part.start
        results = [device.empty(count, array.dtype) for array in out]
        kernel((-(-count // _THREADS),), (_THREADS,), (np.uint64(count), vary, *given, *options, *results))
        for array, result in zip(out, results, strict=True):
            device.to_host(result, array[part])

    infos = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in inputs.items()}  # type: ignore[arg-type]
    chunks.run(device, operation.grid(params, infos), work, overlap=True)
    return contracts.answer(operation, out)
