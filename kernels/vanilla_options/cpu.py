"""The operations on options on all cores of the CPU: the reference for every other backend."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.cpu.pages import empty
from warpdesk_server.kernels.vanilla_options import loops
from warpdesk_server.kernels.vanilla_options.contracts import Contracts
from warpdesk_server.kernels.vanilla_options.spec import BLACK_SCHOLES, BlackScholes

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
