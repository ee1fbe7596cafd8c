"""Indicators beside TA-Lib, in one run: time on 1M points and on 500 x 2520, and accuracy after a spike.

Run as `python -m benchmarks.indicators [--repeats 30] [--save]`. Each ratio is TA-Lib's shortest time over ours,
measured in turn so that a busy machine disturbs both; TA-Lib takes one series at a time and runs on one thread.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from math import fsum
from pathlib import Path
from typing import Any

import numba
import numpy as np
import talib
from numpy.typing import NDArray

from kernels.catalogue import OPERATIONS

RESULTS = Path(__file__).parent / "results" / "indicators.json"

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


def shortest(repeats: int, *jobs: Callable[[], Any]) -> list[float]:
    """The shortest time of each job in seconds, after one call that is not timed; the jobs take turns."""
    times = [float("inf")] * len(jobs)
    for repeat in range(repeats + 1):
        for index, job in enumerate(jobs):
            start = time.perf_counter()
            job()
            if repeat:
                times[index] = min(times[index], time.perf_counter() - start)
    return times


def speed(repeats: int) -> list[dict[str, Any]]:
    rows = []
    for shape in ((1_000_000,), (500, 2520)):
        prices = walk(*shape)
        series = [prices] if prices.ndim == 1 else list(prices)
        for name, params, peer in CASES:
            own, other = shortest(
                repeats,
                lambda name=name, params=params, prices=prices: ours(name, params, prices),  # type: ignore[misc]
                lambda peer=peer, series=series: [peer(each) for each in series],  # type: ignore[misc]
            )
            rows.append(
                {
                    "operation": name,
                    "params": params,
                    "shape": list(shape),
                    "milliseconds": round(own * 1e3, 3),
                    "threads": numba.get_num_threads(),
                    "peer": f"TA-Lib {talib.__version__}",
                    "peer_milliseconds": round(other * 1e3, 3),
                    "peer_threads": 1,
                    "ratio": round(other / own, 2),
                }
            )
    return rows


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
            rows.append({"prices": label, "library": who, "mean_error": mean, "deviation_error": width})
    return rows


def main(repeats: int = 30, save: bool = "--save" in sys.argv) -> None:
    print(
        f"TA-Lib {talib.__version__}, 1 thread; Warpdesk, {numba.get_num_threads()} threads; shortest of {repeats} runs"
    )
    print(f"{'operation':<10} {'prices':>12} {'Warpdesk':>10} {'TA-Lib':>10} {'ratio':>7}")
    rows = speed(repeats)
    for row in rows:
        shape = " x ".join(f"{size:,}" for size in row["shape"])
        times = f"{row['milliseconds']:>7.2f} ms {row['peer_milliseconds']:>7.2f} ms"
        print(f"{row['operation']:<10} {shape:>12} {times} {row['ratio']:>6.2f}x")
    print("\nlargest relative error, Bollinger(20), last 1,000 of 100,000 bars")
    print(f"{'prices':<18} {'library':<13} {'mean':>9} {'deviation':>10}")
    errors = accuracy()
    for row in errors:
        print(f"{row['prices']:<18} {row['library']:<13} {row['mean_error']:>9.1e} {row['deviation_error']:>10.1e}")
    if save:
        RESULTS.write_text(json.dumps({"machine": platform.processor(), "speed": rows, "accuracy": errors}, indent=1))
        print(f"\nsaved to {RESULTS}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name} to benchmarks/results")
    arguments = parser.parse_args()
    main(arguments.repeats, arguments.save)
