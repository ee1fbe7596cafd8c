"""A binomial lattice of independent assets in NumPy: the oracle of options that are exercised on dates."""

from math import exp, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt


def price(
    assets: int, payoff: str, option: str, spot: float, strike: float, rate: float, dividend: float, volatility: float,
    maturity: float, dates: int, steps: int,
) -> float:  # fmt: skip
    """The value of an option on the sum (weights 1 / assets), best or worst of assets that are alike and independent.

    It may be exercised on `dates` dates, and not today. `steps` of the lattice lie between two dates.
    """
    h = maturity / (dates * steps)
    move = volatility * sqrt(h)
    up = (exp((rate - dividend) * h) - exp(-move)) / (exp(move) - exp(-move))

    def pays(level: int) -> npt.NDArray[Any]:
        line = spot * np.exp(move * (2.0 * np.arange(level + 1) - level))
        prices = np.array(np.meshgrid(*[line] * assets, indexing="ij"))
        value = {"weighted_sum": prices.mean(0), "best_of": prices.max(0), "worst_of": prices.min(0)}[payoff]
        return np.maximum(value - strike if option == "call" else strike - value, 0.0)

    values = pays(dates * steps)
    for level in range(dates * steps - 1, -1, -1):
        for axis in range(assets):
            values = np.moveaxis(values, axis, 0)
            values = np.moveaxis(up * values[1:] + (1.0 - up) * values[:-1], 0, axis)
        values = values * exp(-rate * h)
        if level and level % steps == 0:
            values = np.maximum(values, pays(level))
    return float(values.reshape(-1)[0])
