"""Benchmark cases of backtests beside vectorbt, where it is installed, and beside a loop in plain Python.

vectorbt has a licence (Commons Clause) under which it is no dependency: install it by hand to compare.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from warpdesk_server.benchmarks.cases import Call, Case, Inputs, Peer, Sizes, measured, module, numpy_peer, random

STRATEGY: dict[str, Any] = {
    "let": {name: {"op": "sma", "of": "close", "period": {"param": name}} for name in ("fast", "slow")},
    "entries": {"op": "crosses_above", "a": "fast", "b": "slow"},
    "exits": {"op": "crosses_below", "a": "fast", "b": "slow"},
}
COSTS = {"fee": 0.001, "slippage": 0.0005, "stop_loss": 0.05}
FAST, SLOW = range(5, 37), 40  # the first lengths of the averages


def _bars(time: int) -> Inputs:
    generator = random()
    close = 100 * np.exp(np.cumsum(generator.normal(0.0003, 0.012, time)))
    opened = np.concatenate([close[:1], close[:-1] * np.exp(generator.normal(0, 0.002, time - 1))])
    high = np.maximum(opened, close) * (1 + np.abs(generator.normal(0, 0.004, time)))
    low = np.minimum(opened, close) * (1 - np.abs(generator.normal(0, 0.004, time)))
    return {"open": opened, "high": high, "low": low, "close": close}


def _vectorbt(grid: Mapping[str, list[int]]) -> Any:
    """Its `from_signals`, whose orders fill at the open of the bar after the signal, and four of its metrics."""

    def call(inputs: Inputs) -> Call:
        vectorbt, pandas = module("vectorbt"), module("pandas")
        days = pandas.date_range("2000-01-03", periods=len(inputs["close"]), freq="D")
        opened, high, low, close = (pandas.Series(inputs[name], days) for name in ("open", "high", "low", "close"))

        def run() -> object:
            means = {n: close.rolling(n).mean().to_numpy() for n in {*grid["fast"], *grid["slow"]}}
            fast = np.repeat(np.array([means[n] for n in grid["fast"]]), len(grid["slow"]), axis=0).T
            slow = np.tile(np.array([means[n] for n in grid["slow"]]), (len(grid["fast"]), 1)).T
            entries, exits = np.zeros(fast.shape, bool), np.zeros(fast.shape, bool)
            # A bar later, since the order fills at the next open.
            entries[2:] = (fast[1:-1] > slow[1:-1]) & (fast[:-2] <= slow[:-2])
            exits[2:] = (fast[1:-1] < slow[1:-1]) & (fast[:-2] >= slow[:-2])
            portfolio = vectorbt.Portfolio.from_signals(
                close, pandas.DataFrame(entries, days), pandas.DataFrame(exits, days), price=opened, open=opened,
                high=high, low=low, fees=COSTS["fee"], slippage=COSTS["slippage"], sl_stop=COSTS["stop_loss"],
                stop_entry_price="FillPrice", stop_exit_price="StopMarket", init_cash=1e5, freq="D",
            )  # fmt: skip
            return (
                portfolio.total_return(),
                portfolio.sharpe_ratio(),
                portfolio.max_drawdown(),
                portfolio.trades.count(),
            )

        return run

    return call


def _plain(inputs: Inputs) -> Call:
    """One backtest as most write it: positions by array operations, without stops, trades or any order's rule."""
    close = inputs["close"]

    def mean(bars: int) -> Any:
        total = np.cumsum(np.concatenate([[0.0], close]))
        return np.concatenate([np.full(bars - 1, np.nan), (total[bars:] - total[:-bars]) / bars])

    def run() -> object:
        position = np.nan_to_num(mean(10) > mean(50))
        moves = np.concatenate([[0.0], close[1:] / close[:-1] - 1])
        held = np.concatenate([[0.0], position[:-1]])
        returns = held * moves - COSTS["fee"] * np.abs(np.diff(held, prepend=0.0))
        equity = np.cumprod(1 + returns)
        return equity, returns.mean() / returns.std(ddof=1), (1 - equity / np.maximum.accumulate(equity)).max()

    return run


def _cscv(blocks: int) -> Any:
    """PBO as its authors wrote it: for each split the Sharpe ratios of both halves from their returns."""

    def call(inputs: Inputs) -> Call:
        returns = inputs["returns"]
        parts = np.array_split(np.arange(returns.shape[1]), blocks)

        def run() -> float:
            below = 0
            halves = list(combinations(range(blocks), blocks // 2))
            for half in halves:
                inside = returns[:, np.concatenate([parts[block] for block in half])]
                outside = returns[:, np.concatenate([parts[block] for block in range(blocks) if block not in half])]
                best = (inside.mean(axis=1) / inside.std(axis=1, ddof=1)).argmax()
                tested = outside.mean(axis=1) / outside.std(axis=1, ddof=1)
                below += 2 * (tested <= tested[best]).sum() <= len(tested) + 1
            return below / len(halves)

        return run

    return call


def _cases(sizes: Sizes, time: int, slow: int, sets: int, blocks: int) -> list[Case]:
    grid = {"fast": list(FAST), "slow": list(range(SLOW, SLOW + slow))}
    runs = len(FAST) * slow
    shape = f"{measured(runs)} sets x {measured(time)}"
    vectorbt = Peer(
        "vectorbt", "vectorbt", _vectorbt(grid), note="four metrics; a stop comes before an exit at the open"
    )
    plain = numpy_peer(_plain, "NumPy", note="one backtest, without stops and trades")

    def returns() -> Inputs:
        return {"returns": random().normal(0, 0.01, (sets, 80 * blocks))}

    return [
        Case(
            "backtest_sweep", shape, {"strategy": STRATEGY, "grid": grid, **COSTS}, lambda: _bars(time), sizes,
            (vectorbt,) if sizes != "large" else (), repeats=5,
        ),
        Case(
            "backtest", measured(time), {"strategy": STRATEGY, "values": {"fast": 10, "slow": 50}, **COSTS},
            lambda: _bars(time), sizes, (plain,), repeats=5,
        ),
        Case(
            "overfitting", f"{measured(sets)} sets, {blocks} blocks", {"blocks": blocks}, returns, sizes,
            (numpy_peer(_cscv(blocks), note="a call for each split"),) if sizes == "small" else (), repeats=3,
        ),
    ]  # fmt: skip


CASES: tuple[Case, ...] = (
    *_cases("small", 300, 8, 60, 8),
    *_cases("full", 2_520, 128, 10_000, 16),
    *_cases("large", 2_520, 4_096, 100_000, 16),
)
