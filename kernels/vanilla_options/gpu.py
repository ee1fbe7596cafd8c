"""The operations on options on a GPU, by chunks of options, with the same bytes as on the CPU."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.operation import Operation
from warpdesk_server.kernels.vanilla_options import spec
from warpdesk_server.kernels.vanilla_options.contracts import Contracts
from warpdesk_server.kernels.vanilla_options.schemes import table
from warpdesk_server.kernels.vanilla_options.spec import (
    AMERICAN_OPTION,
    BLACK_SCHOLES,
    HALLEY_STEPS,
    IMPLIED_VOLATILITY,
    NEWTON_STEPS,
    NORMAL_STEPS,
    American,
    BlackScholes,
    ImpliedVolatility,
    arrays_of,
)

Array = NDArray[Any]

_SOURCE = Source(Path(__file__).with_name("vanilla_options.cu"))
_AMERICAN = Source(Path(__file__).with_name("american.cu"))
SOURCES: tuple[Source, ...] = (_SOURCE, _AMERICAN)

_THREADS = 256  # as in vanilla_options.cu
_AMERICAN_THREADS = 64  # as in american.cu
_NAN = np.float64(np.nan)


def black_scholes(params: BlackScholes, *, device: Device, **inputs: Array) -> dict[str, Array]:
    """Prices and Greeks of European options on a GPU, each output float64 in the shape of the inputs, or (1).

    Raises InvalidRequest if a number of is_call is neither 0 nor 1.
    """
    units = [np.float64(unit) for unit in params.units]
    if params.model == "bachelier":
        return _by_chunk(BLACK_SCHOLES, [_Launch("normal", (*units, _NAN))], params, inputs, device)
    options = (np.uint32(params.model == "black76"), *units, _NAN)
    return _by_chunk(BLACK_SCHOLES, [_Launch("lognormal", options)], params, inputs, device)


def american_option(params: American, *, device: Device, **inputs: Array) -> dict[str, Array]:
    """Prices, Greeks and critical prices of American options on a GPU, float64, and a status of each, uint8, in the
    inputs' shape.

    Raises InvalidRequest if a number of is_call is neither 0 nor 1.
    """
    options = (np.uint32(params.model == "black76"), *(np.float64(unit) for unit in params.units))
    scheme = table(params.scheme), *(np.uint32(size) for size in params.scheme.sizes)
    launches = [
        _Launch("lognormal", (*options, _NAN), outputs=6),
        _Launch("american", (*options, *scheme, _NAN, np.float64(np.inf)), _AMERICAN, _AMERICAN_THREADS),
    ]
    return _by_chunk(AMERICAN_OPTION, launches, params, inputs, device) | params.values


def implied_volatility(params: ImpliedVolatility, *, device: Device, **inputs: Array) -> dict[str, Array]:
    """Implied volatilities of European options on a GPU, float64, and a status of each, uint8, in the inputs' shape.

    Raises InvalidRequest if a number of is_call is neither 0 nor 1.
    """
    launch = _Launch("implied", (np.uint32(HALLEY_STEPS), np.uint32(NEWTON_STEPS), _NAN))
    if params.model == "bachelier":
        launch = _Launch("implied_normal", (np.uint32(NORMAL_STEPS), _NAN))
    return _by_chunk(IMPLIED_VOLATILITY, [launch], params, inputs, device)


class _Launch(NamedTuple):
    """A kernel that takes the options' numbers, then `options`, arrays among them, and the first of the outputs."""

    name: str
    options: tuple[Any, ...]
    source: Source = _SOURCE
    threads: int = _THREADS
    outputs: int | None = None


def _by_chunk(
    operation: Operation, launches: Sequence[_Launch], params: Any, inputs: dict[str, Array], device: Device
) -> dict[str, Array]:
    """The outputs of kernels that run one after another, over the chunks of the job."""
    contracts = Contracts(params, inputs)
    kernels = [device.kernel(launch.source, launch.name) for launch in launches]
    out = [np.empty(contracts.size, np.uint8 if name == "status" else np.float64) for name in arrays_of(operation)]
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
        for launch, kernel in zip(launches, kernels, strict=True):
            options = [device.to_device(each) if isinstance(each, np.ndarray) else each for each in launch.options]
            arguments = (np.uint64(count), vary, *given, *options, *results[: launch.outputs])
            kernel((-(-count // launch.threads),), (launch.threads,), arguments)
        for array, result in zip(out, results, strict=True):
            device.to_host(result, array[part])

    infos = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in inputs.items()}  # type: ignore[arg-type]
    chunks.run(device, operation.grid(params, infos), work, overlap=True)
    return contracts.answer(operation, out)
