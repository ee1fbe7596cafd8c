"""Requests whose answers must be the same bytes on the CPU, under emulation and on a GPU."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.kernels.parity import Case

Arrays = dict[str, NDArray[Any]]

MODELS = ("black_scholes_merton", "black76", "bachelier")


def book(count: int, model: str = "black_scholes_merton", seed: int = 0) -> Arrays:
    """Options of all kinds: in and out of the money, of a day and of decades; with is_call."""
    random = np.random.default_rng([seed, count])
    years = np.exp(random.uniform(-6, 3, count))
    found: Arrays = {
        "spot": 100 * np.exp(random.normal(0, 0.4, count)),
        "strike": np.round(100 * np.exp(random.normal(0, 0.4, count))),
        "rate": random.uniform(-0.02, 0.1, count),
        "dividend": random.uniform(-0.02, 0.1, count),
        "volatility": np.exp(random.uniform(-3.5, 0.5, count)),
        "maturity": years,
        "is_call": random.integers(0, 2, count).astype(np.uint8),
    }
    if model == "black_scholes_merton":
        return found
    found = {"forward": found.pop("spot"), **found}
    del found["dividend"]
    if model == "bachelier":
        found["volatility"] = 60 * found["volatility"]
        found["forward"], found["strike"] = found["forward"] - 80, found["strike"] - 80
    return found


# Zeros of both signs, ends of ranges, what is beyond them, NaN, the kink.
ODD: dict[str, list[float]] = {
    "spot": [0.0, -0.0, 1e-50, 1e50, 1e51, -1.0, np.nan, 100.0, 100.0],
    "strike": [0.0, 100.0, 1e50, 1e-50, -0.0],
    "rate": [0.0, 0.05, -100.0, 101.0, np.nan],
    "dividend": [0.0, 0.05],
    "volatility": [0.0, -0.0, 0.2, 1e50, 1e-50, -0.2],
    "maturity": [0.0, -0.0, 1.0, 1e-50, 1e50],
}


def odd(model: str = "black_scholes_merton") -> Arrays:
    """Combinations of odd numbers, and of puts and calls."""
    random = np.random.default_rng(1)
    found: Arrays = {name: random.choice(np.array(numbers), 900) for name, numbers in ODD.items()}
    found["is_call"] = random.integers(0, 2, 900).astype(np.uint8)
    if model != "black_scholes_merton":
        found = {"forward": found.pop("spot"), **found}
        del found["dividend"]
    return found


def quotes(count: int, model: str = "black_scholes_merton") -> Arrays:
    """Prices of options of the money to far out of it, some of them impossible; with is_call."""
    random = np.random.default_rng([7, count])
    found = book(count, model)
    inner = np.where(found["is_call"] > 0, 1, -1) * (next(iter(found.values())) - found["strike"])
    found["price"] = np.maximum(inner, 0) * random.choice([1.0, 0.9], count, p=[0.9, 0.1])
    found["price"] += np.exp(random.uniform(-20, 4.8, count))
    found["price"][::9] = np.exp(random.uniform(-110, -20, len(found["price"][::9])))
    del found["volatility"]
    return found


def odd_quotes(model: str = "black_scholes_merton") -> Arrays:
    """Combinations of odd numbers, prices among them."""
    found = odd(model)
    prices = np.array([0.0, -0.0, 1e-50, 1e-300, 1e50, 1e60, -1.0, np.nan, 1.0, 50.0, 100.0])
    found["price"] = np.random.default_rng(3).choice(prices, found.pop("volatility").size)
    return found


def _case(operation: str, params: dict[str, Any], make: Callable[[], Arrays], name: str, small: bool = True) -> Case:
    return Case(operation, params, make, small=small, name=f"{operation}-{name}")


def strikes(count: int) -> Arrays:
    return {"strike": np.linspace(60, 150, count)}


def near_quotes() -> Arrays:
    """Options at and near the money with prices from large to tiny."""
    apart = np.repeat([0.0, 2.0**-52, -(2.0**-50), 1e-13, -1e-9, 1e-7, 1e-5], 8)
    prices = np.tile([0.1, 1e-3, 1e-6, 1e-11, 1e-15, 1e-16, 1e-25, 1e-200], 7)
    return {"strike": 1 + apart, "price": prices, "is_call": (apart >= 0).astype(np.uint8)}


_ONE = {"option": "put", "spot": 100.0, "rate": 0.03, "dividend": 0.01, "volatility": 0.2, "maturity": 0.7}


def early_book(count: int) -> Arrays:
    """Options that may be worth exercising early, others that never are, and some of two boundaries."""
    found, edges = book(count, seed=9), odd()
    some = min(count // 4, 900)
    return {name: np.concatenate([array[some:], edges[name][:some]]) for name, array in found.items()}


_FORWARD = {"option": "call", "forward": 100.0, "rate": 0.03, "volatility": 0.2, "maturity": 0.7}

_QUOTED = {name: number for name, number in _ONE.items() if name != "volatility"}
_SURFACE = {name: number for name, number in _ONE.items() if name != "maturity"}

CASES: tuple[Case, ...] = (
    *(
        _case("black_scholes", {"model": model}, lambda model=model: book(1025, model), f"{model}-1025")  # type: ignore[misc]
        for model in MODELS
    ),
    *(
        _case("black_scholes", {"model": model}, lambda model=model: odd(model), f"{model}-odd")  # type: ignore[misc]
        for model in MODELS
    ),
    *(
        _case("black_scholes", {**_ONE, "per": "market"}, lambda count=count: strikes(count), f"market-{count}")  # type: ignore[misc]
        for count in (1, 31, 33, 129)
    ),
    _case("black_scholes", {**_ONE, "strike": 90.0}, dict, "one"),
    *(
        _case("implied_volatility", {"model": model}, lambda model=model, make=make: make(model), f"{model}-{name}")  # type: ignore[misc]
        for model in MODELS
        for name, make in (("1025", partial(quotes, 1025)), ("odd", odd_quotes))
    ),
    _case("implied_volatility", {**_QUOTED, "price": 3.0}, lambda: strikes(129), "129"),
    _case("implied_volatility", {"spot": 1.0, "rate": 0.0, "dividend": 0.0, "maturity": 1.0}, near_quotes, "near"),
    _case("implied_volatility", {**_QUOTED, "price": 3.0, "strike": 90.0}, dict, "one"),
    _case("american_option", {"accuracy": "fast"}, lambda: early_book(513), "513"),
    _case("american_option", {"model": "black76", **_FORWARD}, lambda: strikes(65), "black76-65"),
    _case("american_option", {**_ONE, "accuracy": "high", "per": "market"}, lambda: strikes(3), "high-3"),
    _case("american_option", {**_ONE, "strike": 90.0}, dict, "one"),
    _case("black_scholes", {}, lambda: {name: a.reshape(5, 7, 3) for name, a in book(105).items()}, "5x7x3"),
    _case(
        "black_scholes", _SURFACE, lambda: {"strike": strikes(9)["strike"], "maturity": np.array([[0.1], [1.0]])}, "2x9"
    ),
)
