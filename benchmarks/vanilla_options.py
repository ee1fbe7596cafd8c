"""Benchmark cases of the operations on vanilla options beside NumPy with SciPy, and beside py_lets_be_rational."""

import math

import numpy as np

from warpdesk_server.benchmarks.cases import Call, Case, Goal, Inputs, Peer, Sizes, measured, module, random
from warpdesk_server.kernels.catalogue import OPERATIONS

SCIPY, RATIONAL = "NumPy and SciPy", "py_lets_be_rational"
PART = 10_000  # options of a peer that takes microseconds for each


def _book(count: int) -> Inputs:
    """Options near the money, of a week to three years."""
    generator = random()
    return {
        "spot": generator.uniform(50, 150, count),
        "strike": generator.uniform(50, 150, count),
        "rate": generator.uniform(0, 0.1, count),
        "dividend": generator.uniform(0, 0.1, count),
        "volatility": generator.uniform(0.05, 0.8, count),
        "maturity": generator.uniform(0.02, 3, count),
        "is_call": generator.integers(0, 2, count).astype(np.uint8),
    }


def _scipy_black_scholes(inputs: Inputs) -> Call:
    """Price and five Greeks as one writes them: common terms once, no loop."""
    ndtr = module("scipy.special").ndtr
    names = ("spot", "strike", "rate", "dividend", "volatility", "maturity", "is_call")
    spot, strike, rate, dividend, volatility, maturity, is_call = (inputs[name] for name in names)

    def call() -> object:
        sign, root = np.where(is_call, 1.0, -1.0), np.sqrt(maturity)
        grown, paid = np.exp(-dividend * maturity), strike * np.exp(-rate * maturity)
        d1 = (np.log(spot / strike) + (rate - dividend + 0.5 * volatility**2) * maturity) / (volatility * root)
        d2 = d1 - volatility * root
        delta, held = sign * grown * ndtr(sign * d1), sign * paid * ndtr(sign * d2)
        density = grown * np.exp(-0.5 * d1 * d1) / np.sqrt(2 * np.pi)
        decay = 0.5 * spot * density * volatility / root
        theta = dividend * spot * delta - rate * held - decay
        return (
            spot * delta - held,
            delta,
            density / (spot * volatility * root),
            spot * density * root,
            theta,
            maturity * held,
        )

    return call


def _quotes(count: int) -> Inputs:
    """The book with its prices; py_lets_be_rational takes undiscounted ones, so the rate is 0."""
    book = _book(count)
    none = np.zeros(count)
    operation = OPERATIONS["black_scholes"]
    params = operation.params.model_validate({})
    book |= {"rate": none, "dividend": none}
    return {**book, "price": operation.implementation("cpu")(params, **book)["price"]}


def _lets_be_rational(inputs: Inputs) -> Call:
    """Of PART options, in a loop, which is how it is called."""
    implied = module("py_lets_be_rational").implied_volatility_from_a_transformed_rational_guess
    arrays = (inputs[name][:PART] for name in ("price", "spot", "strike", "maturity"))
    sign = np.where(inputs["is_call"][:PART], 1.0, -1.0)
    options = list(zip(*(array.tolist() for array in (*arrays, sign)), strict=True))

    def call() -> object:
        out = []
        for option in options:
            try:
                out.append(implied(*option))
            except ArithmeticError:  # a price in the money without time value
                out.append(math.nan)
        return out

    return call


def _cases(sizes: Sizes, count: int, goals: bool = False) -> list[Case]:
    scipy = (Peer(SCIPY, "scipy", _scipy_black_scholes),)
    part = min(PART, count)
    rational = (Peer(RATIONAL, "py_lets_be_rational", _lets_be_rational, per=count / part),)
    label = measured(count)
    return [
        Case(
            "black_scholes",
            label,
            {},
            lambda: _book(count),
            sizes,
            scipy,
            Goal({SCIPY: 8.0} if goals else {}),
            moved=97 * count,
            repeats=9,
        ),
        Case(
            "implied_volatility",
            label,
            {},
            lambda: {name: array for name, array in _quotes(count).items() if name != "volatility"},
            sizes,
            rational if sizes != "large" else (),
            Goal({RATIONAL: 30.0} if goals else {}),
            moved=58 * count,
            repeats=5,
        ),
    ]


CASES: tuple[Case, ...] = (
    *_cases("small", 1_000),
    *_cases("full", 1_000_000, goals=True),
    *_cases("large", 50_000_000),
)
