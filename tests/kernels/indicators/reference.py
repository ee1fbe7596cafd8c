"""The indicators as their definitions read: bar by bar, slow, and in as many digits as asked."""

from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from math import isnan, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.catalogue import OPERATIONS

Number = Callable[[float], Any]


def compute(name: str, prices: Any, **params: Any) -> dict[str, NDArray[Any]]:
    """Run an operation on the CPU as a job would."""
    operation = OPERATIONS[name]
    return operation.implementation("cpu")(operation.params(**params), np.asarray(prices))


def ema(prices: Sequence[float], period: int, convention: str = "talib", number: Number = float) -> NDArray[Any]:
    """EMA in one loop; every run of prices without a gap starts afresh."""
    alpha = number(2) / number(period + 1)
    shown, run, average = [], [], number(0)
    for price in prices:
        if isnan(price):
            run = []
            shown.append(nan)
            continue
        run.append(number(price))
        if convention == "tradingview":
            average = run[0] if len(run) == 1 else average + alpha * (run[-1] - average)
        elif len(run) == period:
            average = sum(run, number(0)) / number(period)
        elif len(run) > period:
            average = average + alpha * (run[-1] - average)
        shown.append(float(average) if convention == "tradingview" or len(run) >= period else nan)
    return np.array(shown)


def rsi(
    prices: Sequence[float], period: int, convention: str = "talib", flat: float = 50.0, number: Number = float
) -> NDArray[Any]:
    """RSI in one loop with averages proper; every run of prices without a gap starts afresh."""
    alpha = number(2) / number(period + 1) if convention == "ema" else number(1) / number(period)
    shown, run, up, down = [], [], number(0), number(0)
    for price in prices:
        if isnan(price):
            run = []
            shown.append(nan)
            continue
        run.append(number(price))
        if len(run) == 1:
            up, down = number(0), number(0)
        else:
            gain, loss = max(run[-1] - run[-2], number(0)), max(run[-2] - run[-1], number(0))
            if convention == "cutler":
                recent = run[-period - 1 :]
                moves = [later - earlier for earlier, later in pairwise(recent)]
                up = sum((move for move in moves if move > 0), number(0))
                down = -sum((move for move in moves if move < 0), number(0))
            elif convention == "ema" and len(run) == 2:
                up, down = gain, loss
            elif convention != "ema" and len(run) <= period + 1:
                up, down = up + gain / number(period), down + loss / number(period)
            else:
                up, down = up + alpha * (gain - up), down + alpha * (loss - down)
        if len(run) <= period:
            shown.append(nan)
        else:
            shown.append(float(number(100) * up / (up + down)) if up + down > 0 else flat)
    return np.array(shown)


def in_sixty_digits(loop: Callable[..., NDArray[Any]], *args: Any, **options: Any) -> NDArray[Any]:
    """The same loop in decimal arithmetic, its answers rounded to float64 at the end."""
    with localcontext() as context:
        context.prec = 60
        context.Emin = -10_000_000
        return loop(*args, number=Decimal, **options)


def window_moments(prices: Sequence[float], period: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Mean and population deviation of each full window without a gap, from exact fractions."""
    means, deviations = [nan] * len(prices), [nan] * len(prices)
    for t in range(period - 1, len(prices)):
        window = prices[t - period + 1 : t + 1]
        if any(isnan(price) for price in window):
            continue
        exact = [Fraction(price) for price in window]
        mean = sum(exact) / period
        variance = sum((price - mean) ** 2 for price in exact) / period
        means[t] = float(mean)
        with localcontext() as context:
            context.prec = 60
            deviations[t] = float((Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt())
    return np.array(means), np.array(deviations)
