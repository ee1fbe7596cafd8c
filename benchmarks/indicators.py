"""Time and accuracy of the indicators beside TA-Lib: `python -m benchmarks.indicators [--save]`.

TA-Lib takes one series at a time and runs on one thread; Warpdesk takes all of them and runs on all cores. Both make
new arrays, hold the answers to all the series at once, and drop them on the clock, each its own. Who drops each answer
of TA-Lib before the next series has it use the same memory again: its Bollinger over 500 series is then much quicker.
"""

from collections.abc import Callable
from math import fsum
from typing import Any

import numpy as np
import talib
from numpy.typing import NDArray

from benchmarks.report import interleave, show
from kernels.catalogue import OPERATIONS

REPEATS = 101  # a run takes 1 to 10 ms: many, or the median moves

CASES: tuple[tuple[str, dict[str, Any], Callable[[NDArray[Any]], Any]], ...] = (
    ("sma", {"period": 20}, lambda prices: talib.SMA(prices, 20)),
    ("ema", {"period": 20}, lambda prices: talib.EMA(prices, 20)),
    ("rsi", {"period": 14}, lambda prices: talib.RSI(prices, 14)),
    ("bollinger", {"period": 20}, lambda prices: talib.BBANDS(prices, 20, 2.0, 2.0)),
)


def walk(*shape: int) -> NDArray[np.float64]:
    return 100 * np.exp(np.cumsum(np.random.default_rng(0).normal(0, 1e-3, shape), axis=-1))


def ours(name: str, params: dict[str, Any], prices: NDArray[Any]) -> dict[str, Any]:
    operation = OPERATIONS[name]
    return operation.implementation("cpu")(operation.params(**params), prices)


def speed() -> list[dict[str, Any]]:
    rows = []
    for shape in ((1_000_000,), (500, 2520)):
        prices = walk(*shape)
        for name, params, peer in CASES:
            times = interleave({"Warpdesk": own_run(name, params, prices), "TA-Lib": peer_run(peer, prices)}, REPEATS)
            own, other = times["Warpdesk"], times["TA-Lib"]
            rows.append(
                {
                    "operation": f"{name} {params['period']}",
                    "prices": " x ".join(f"{size:,}" for size in shape),
                    **times,
                    "ratio of medians": other.median / own.median,
                    "of the fastest": other.low / own.low,
                }
            )
    return rows


def own_run(name: str, params: dict[str, Any], prices: NDArray[Any]) -> Callable[[], None]:
    def run() -> None:
        ours(name, params, prices)

    return run


def peer_run(peer: Callable[[NDArray[Any]], Any], prices: NDArray[Any]) -> Callable[[], None]:
    series = list(np.atleast_2d(prices))

    def run() -> None:
        answers = [peer(each) for each in series]
        del answers

    return run


def accuracy() -> list[dict[str, Any]]:
    """Largest error of the last 1,000 bars of 100,000, relative to the exact mean or deviation of each window."""
    period, rows = 20, []
    reach = 1e6  # bands far from the mean, or their own last digit at 1e9 would hide how exact the deviation is
    spiked, far = walk(100_000), 1e9 + np.random.default_rng(1).normal(0, 1e-3, 100_000)
    spiked[1000] = 1e12
    for label, prices in (("1e12 at bar 1,000", spiked), ("1e9 + N(0, 1e-3)", far)):
        windows = np.lib.stride_tricks.sliding_window_view(prices, period)[-1000:]
        offset = windows[0, 0]  # an exact difference, so that what is summed has all its digits
        means = [fsum(window - offset) / period for window in windows]
        deviations = [
            (fsum((each - offset - mean) ** 2 for each in window) / period) ** 0.5
            for window, mean in zip(windows, means, strict=True)
        ]
        own = ours("bollinger", {"period": period, "width": reach}, prices)
        for who, (upper, middle, lower) in (
            ("Warpdesk", (own["upper"], own["middle"], own["lower"])),
            (f"TA-Lib {talib.__version__}", talib.BBANDS(prices, period, reach, reach)),
        ):
            mean = np.abs((middle[-1000:] - offset) - means).max() / np.abs(offset)
            width = np.abs((upper[-1000:] - lower[-1000:]) / (2 * reach) / deviations - 1).max()
            rows.append({"prices": label, "library": who, "error of mean": mean, "error of deviation": width})
    return rows


def main() -> None:
    show("indicators", speed())
    show("indicators_accuracy", accuracy())


if __name__ == "__main__":
    main()
