"""Benchmark cases of the operations on vanilla options beside NumPy with SciPy."""

import numpy as np

from warpdesk_server.benchmarks.cases import Call, Case, Inputs, Peer, Sizes, measured, module, random


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


def _cases(sizes: Sizes, count: int) -> list[Case]:
    peers = (Peer("NumPy and SciPy", "scipy", _scipy_black_scholes),)
    return [Case("black_scholes", measured(count), {}, lambda: _book(count), sizes, peers, moved=97 * count, repeats=9)]


CASES: tuple[Case, ...] = (*_cases("small", 1_000), *_cases("full", 1_000_000), *_cases("large", 50_000_000))
