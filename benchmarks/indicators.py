"""Moving averages, RSI and bands beside TA-Lib, bottleneck and Tulip, and how exact they are.

One series of a million prices, and many of ten years each.

A peer takes one series at a time and runs on one thread; Warpdesk takes all of them and runs on all cores. Both make
new arrays, hold the answers to all the series at once, and drop them on the clock, each its own.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.benchmarks.cases import Call, Case, Goal, Inputs, Peer, Sizes, measured, module
from warpdesk_server.kernels.catalogue import OPERATIONS

Prices = NDArray[np.float64]

PERIOD = {"sma": 20, "ema": 20, "rsi": 14, "bollinger": 20}


@lru_cache(1)  # the operations of one shape follow each other
def walk(*shape: int) -> Prices:
    steps = np.random.default_rng(0).normal(0, 1e-3, shape)
    np.cumsum(steps, axis=-1, out=steps)
    np.exp(steps, out=steps)
    steps *= 100
    return steps


def _each(function: Callable[[Prices], object], inputs: Inputs) -> Call:
    series = list(np.atleast_2d(inputs["prices"]))

    def run() -> None:
        answers = [function(each) for each in series]
        del answers

    return run


def _talib(name: str) -> Callable[[Inputs], Call]:
    def call(inputs: Inputs) -> Call:
        talib, period = module("talib"), PERIOD[name]
        functions: dict[str, Callable[[Prices], object]] = {
            "sma": lambda prices: talib.SMA(prices, period),
            "ema": lambda prices: talib.EMA(prices, period),
            "rsi": lambda prices: talib.RSI(prices, period),
            "bollinger": lambda prices: talib.BBANDS(prices, period, 2.0, 2.0),
        }
        return _each(functions[name], inputs)

    return call


def _bottleneck(name: str) -> Callable[[Inputs], Call]:
    def call(inputs: Inputs) -> Call:
        bottleneck, period, prices = module("bottleneck"), PERIOD[name], inputs["prices"]
        if name == "sma":
            return lambda: bottleneck.move_mean(prices, period)

        def bands() -> object:
            middle = bottleneck.move_mean(prices, period)
            reach = 2.0 * bottleneck.move_std(prices, period)
            return middle + reach, middle, middle - reach

        return bands

    return call


def _tulip(name: str) -> Callable[[Inputs], Call]:
    def call(inputs: Inputs) -> Call:
        tulip, period = module("tulipy"), PERIOD[name]
        functions: dict[str, Callable[[Prices], object]] = {
            "sma": lambda prices: tulip.sma(prices, period),
            "ema": lambda prices: tulip.ema(prices, period),
            "rsi": lambda prices: tulip.rsi(prices, period),
            "bollinger": lambda prices: tulip.bbands(prices, period, 2.0),
        }
        return _each(functions[name], inputs)

    return call


def _peers(name: str) -> tuple[Peer, ...]:
    peers = [Peer("TA-Lib", "TA-Lib", _talib(name)), Peer("Tulip", "newtulipy", _tulip(name))]
    if name in ("sma", "bollinger"):  # bottleneck has no recurrences
        note = "a running total, which a spike spoils"
        peers.append(Peer("bottleneck", "Bottleneck", _bottleneck(name), note=note))
    return tuple(peers)


# Tulip's answers of EMA and RSI are as exact as ours; its windows keep a running total.
GOALS = {
    "sma": {"TA-Lib": 2.0, "bottleneck": 1.0},
    "ema": {"TA-Lib": 2.0, "Tulip": 1.0},
    "rsi": {"TA-Lib": 2.0, "Tulip": 1.0},
    "bollinger": {"TA-Lib": 2.0},
}


def _cases(sizes: Sizes, shape: tuple[int, ...]) -> list[Case]:
    points = int(np.prod(shape))
    part = {"sma": 0.8, "bollinger": 0.75, "rsi": 0.65} if points >= 100_000_000 else {}
    label = " x ".join(measured(size) for size in shape)
    return [
        Case(
            name,
            f"{period} bars, {label}",
            {"period": period},
            lambda: {"prices": walk(*shape)},
            sizes,
            _peers(name) if sizes != "large" else (),
            Goal(
                GOALS[name] if sizes == "full" else {},
                part.get(name),
                15e-6 if name == "rsi" and shape == (1_000_000,) else None,
            ),
            moved=points * 8 * (4 if name == "bollinger" else 2),
            repeats=5 if sizes == "large" else 50,
            burst=0 if sizes == "large" else 5,
        )
        for name, period in PERIOD.items()
    ]


CASES: tuple[Case, ...] = (
    *_cases("small", (2_000,)),
    *_cases("small", (5, 300)),
    *_cases("full", (1_000_000,)),
    *_cases("full", (500, 2520)),
    *_cases("large", (100_000_000,)),
)


def accuracy() -> list[dict[str, Any]]:
    """Largest error of Bollinger's last 1,000 bars of 100,000, relative to each window's exact mean or deviation."""
    period, rows = PERIOD["bollinger"], []
    reach = 1e6  # bands far from the mean, or their own last digit at 1e9 would hide how exact the deviation is
    spiked, far = walk(100_000).copy(), 1e9 + np.random.default_rng(1).normal(0, 1e-3, 100_000)
    spiked[1000] = 1e12
    operation = OPERATIONS["bollinger"]
    ours = partial(operation.implementation("cpu"), operation.params.model_validate({"period": period, "width": reach}))
    for label, prices in (("1e12 at bar 1,000", spiked), ("1e9 + N(0, 1e-3)", far)):
        windows = np.lib.stride_tricks.sliding_window_view(prices, period)[-1000:]
        offset = windows[0, 0]  # an exact difference, so that what is summed has all its digits
        means = [fsum(window - offset) / period for window in windows]
        deviations = [
            (fsum((each - offset - mean) ** 2 for each in window) / period) ** 0.5
            for window, mean in zip(windows, means, strict=True)
        ]
        own = ours(prices)
        answers = {"Warpdesk": (own["middle"], (own["upper"] - own["lower"]) / (2 * reach)), **_others(prices, reach)}
        for who, (middle, deviation) in answers.items():
            mean = np.abs((middle[-1000:] - offset) - means).max() / np.abs(offset)
            width = np.abs(deviation[-1000:] / deviations - 1).max()
            rows.append(
                {
                    "prices": label,
                    "by": who,
                    "error of mean": float(mean),
                    "error of deviation": float(width) if np.isfinite(width) else None,  # a root of less than 0
                    "exact to 1e-9": bool(mean <= 1e-9 and width <= 1e-9),
                }
            )
    return rows


def _others(prices: Prices, reach: float) -> dict[str, tuple[Prices, Prices]]:
    """The moving mean and deviation by each installed library."""
    period, found = PERIOD["bollinger"], {}
    try:
        upper, middle, lower = module("talib").BBANDS(prices, period, reach, reach)
        found["TA-Lib"] = middle, (upper - lower) / (2 * reach)
    except ImportError:
        pass
    try:
        bottleneck = module("bottleneck")
        found["bottleneck"] = bottleneck.move_mean(prices, period), bottleneck.move_std(prices, period)
    except ImportError:
        pass
    try:
        lower, middle, upper = module("tulipy").bbands(prices, period, reach)
        found["Tulip"] = middle, (upper - lower) / (2 * reach)
    except ImportError:
        pass
    return found
