"""The operations on options on all cores of the CPU: the reference for every other backend."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.cpu.pages import empty
from warpdesk_server.kernels.vanilla_options import loops
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

_AT_LEAST = 1 << 12  # options: fewer are not worth another thread


def black_scholes(params: BlackScholes, **inputs: Array) -> dict[str, Array]:
    """Prices and Greeks of European options, each output float64 in the shape of the inputs, or (1) if there are none.

    Raises InvalidRequest if a number of is_call is neither 0 nor 1.
    """
    contracts = Contracts(params, inputs)
    out = tuple(empty((len(BLACK_SCHOLES.outputs), contracts.size), np.float64))
    numbers = contracts.strips(loops.STRIP)

    def run(first: int, end: int) -> None:
        if params.model == "bachelier":
            loops.normal(*numbers, *params.units, first, end, out)
        else:
            loops.lognormal(*numbers, params.model == "black76", *params.units, first, end, out)

    share(contracts.size, run, at_least=_AT_LEAST)
    return contracts.answer(BLACK_SCHOLES, out)


def implied_volatility(params: ImpliedVolatility, **inputs: Array) -> dict[str, Array]:
    """Implied volatilities of European options, float64, and a status of each, uint8, in the shape of the inputs.

    Raises InvalidRequest if a number of is_call is neither 0 nor 1.
    """
    contracts = Contracts(params, inputs)
    out = empty((contracts.size,), np.float64), np.empty(contracts.size, np.uint8)
    numbers = (*contracts.strips(loops.STRIP), HALLEY_STEPS, NEWTON_STEPS)
    share(contracts.size, lambda first, end: loops.implied(*numbers, first, end, *out), at_least=_AT_LEAST // 8)
    return contracts.answer(IMPLIED_VOLATILITY, out)
