"""The operations on options on all cores of the CPU: the reference for every other backend."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.cpu.pages import empty
from warpdesk_server.kernels.vanilla_options import loops, premium
from warpdesk_server.kernels.vanilla_options.american import add_early_exercise
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
    numbers = contracts.strips(loops.STRIP)

    def run(first: int, end: int) -> None:
        if params.model == "bachelier":
            loops.implied_normal(*numbers, NORMAL_STEPS, first, end, *out)
        else:
            loops.implied(*numbers, HALLEY_STEPS, NEWTON_STEPS, first, end, *out)

    share(contracts.size, run, at_least=_AT_LEAST // 8)
    return contracts.answer(IMPLIED_VOLATILITY, out)


def american_option(params: American, **inputs: Array) -> dict[str, Array]:
    """Prices, Greeks and critical prices of American options, float64, and a status of each, uint8, in the shape of the
    inputs, or (1) if there are none. README.md has their errors.

    Raises InvalidRequest if a number of is_call is neither 0 nor 1.
    """
    contracts, scheme = Contracts(params, inputs), params.scheme
    out = tuple(empty((len(BLACK_SCHOLES.outputs), contracts.size), np.float64))
    of_forward, units = params.model == "black76", params.units
    numbers = (*contracts.strips(loops.STRIP), of_forward, *units)
    share(contracts.size, lambda first, end: loops.lognormal(*numbers, first, end, out), at_least=_AT_LEAST)

    def premiums(rate: Array, dividend: Array, spread: Array, spot: Array) -> Array:
        found = empty((4, rate.size), np.float64)
        given = (rate, dividend, spread, spot, table(scheme), *scheme.sizes)
        share(rate.size, lambda first, end: premium.premiums(*given, first, end, found), at_least=premium.STRIP)
        return found

    options = [contracts.numbers[name] for name in contracts.order]
    added = add_early_exercise(options[:-1], options[-1], out, of_forward, units, premiums)
    return contracts.answer(AMERICAN_OPTION, (*out, *added)) | params.values
