"""Requests whose answers must be the same bytes on the CPU, under emulation and on a GPU."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.kernels.parity import Case

Arrays = dict[str, NDArray[Any]]
Random = np.random.Generator

CROSS: dict[str, Any] = {
    "let": {"quick": {"op": "sma", "of": "close", "period": {"param": "fast"}},
            "calm": {"op": "sma", "of": "close", "period": {"param": "slow"}}},
    "entries": {"op": "crosses_above", "a": "quick", "b": "calm"},
    "short_entries": {"op": "crosses_below", "a": "quick", "b": "calm"},
    "short_exits": {"op": "gt", "a": {"op": "rsi", "of": "close", "period": 3}, "b": {"param": "level"}},
}  # fmt: skip
SIDES = ("entries", "exits", "short_entries", "short_exits")
DISTANCES = {"stop_loss": "a", "trailing_stop": "b", "take_profit": "c", "size": "d"}


def market(random: Random, *shape: int, gaps: float = 0.0, wild: float = 0.03) -> Arrays:
    """Bars (assets, time) or (time) that open away from the last close, with gaps in all four prices."""
    close = 100 * np.exp(np.cumsum(random.normal(0, wild, shape), axis=-1))
    opened = np.roll(close, 1, axis=-1) * np.exp(random.normal(0, wild / 2, shape))
    high = np.maximum(opened, close) * (1 + np.abs(random.normal(0, wild / 2, shape)))
    low = np.minimum(opened, close) * (1 - np.abs(random.normal(0, wild / 3, shape)))
    found = {"open": opened, "high": high, "low": low, "close": close}
    gap = random.random(shape) < gaps
    for prices in found.values():
        prices[gap] = np.nan
    return found


def drawn(random: Random, bars: int) -> tuple[dict[str, Any], Arrays]:
    """Rules and inputs of a backtest with given signals, any rule among them."""

    def one_of(*values: Any) -> Any:
        return values[int(random.integers(len(values)))]

    inputs = market(random, bars, gaps=one_of(0, 0.1), wild=one_of(0.01, 0.05, 0.3))
    if random.random() < 0.3:
        inputs["target"] = random.choice([-1.0, 0, 1, np.nan], bars, p=[0.1, 0.1, 0.1, 0.7])
    else:
        for name in SIDES:
            if name == "entries" or random.random() < 0.7:
                inputs[name] = (random.random(bars) < 0.15) * 1.0
    rules = {
        "fill": one_of("next_open", "next_close", "same_close"),
        "fee": one_of(0.0, 0.002),
        "fee_of": one_of("traded", "spent"),
        "fixed_fee": one_of(0.0, 3.0),
        "slippage": one_of(0.0, 0.001),
        "borrow": one_of(0.0, 0.5),
        "size_in": one_of("equity", "units"),
        "whole_units": one_of(False, True),
        "stops_from": one_of("entry", "next_bar"),
        "if_both": one_of("stop", "target"),
        "target_fill": one_of("level", "open_if_better"),
        "opposite": one_of("reverse", "exit"),
        "last_bar": one_of("marked", "sold"),
        "blocks": one_of(1, min(3, bars)),
        "flat_at_edges": one_of(False, True),
        "stop_loss": one_of(None, 0.03, "a"),
        "trailing_stop": one_of(None, 0.05, "b"),
        "take_profit": one_of(None, 0.04, "c"),
        "size": one_of(1.0, 0.5, 2.0, "d"),
    }
    if rules["size_in"] == "units" and rules["size"] != "d":
        rules["size"] *= 300
    rules["benchmark_sharpe"] = 2 * rules["borrow"]
    for name, letter in DISTANCES.items():
        if rules[name] == letter:
            inputs[letter] = np.abs(random.normal(0, 1 if name == "size" else 5, bars))
            inputs[letter][random.random(bars) < 0.1] = np.nan
    if rules["stop_loss"] is rules["trailing_stop"] is rules["take_profit"] is None:
        del inputs["high"], inputs["low"]
        if rules["fill"] != "next_open":
            del inputs["open"]
    return rules, inputs


def _given(seed: int, bars: int) -> Case:
    rules, inputs = drawn(np.random.default_rng([seed, bars]), bars)
    return Case("backtest", rules, lambda: inputs, name=f"backtest-given-{bars}-{seed}")


def _sweep(
    name: str, params: dict[str, Any], *shape: int, dtype: str = "float64", small: bool = True, **signals: Any
) -> Case:
    def inputs() -> Arrays:
        random = np.random.default_rng(list(name.encode()))
        found = market(random, *shape, gaps=0.02)
        found |= {each: make(random, shape) for each, make in signals.items()}
        return {each: array.astype(dtype) for each, array in found.items()}

    return Case("backtest_sweep", params, inputs, small=small, name=f"backtest_sweep-{name}")


def _returns(sets: int, bars: int) -> Arrays:
    returns = np.random.default_rng([sets, bars]).normal(0, 0.01, (sets, bars))
    returns[1:3] = returns[0]  # equal scores
    returns[-1] = 0.0
    if sets > 8:
        returns[-2] = 1e-4  # moves by rounding alone
    return {"returns": returns}


def _overfitting(sets: int, bars: int, blocks: int) -> Case:
    name = f"overfitting-{sets}x{bars}-{blocks}"
    return Case("overfitting", {"blocks": blocks}, lambda: _returns(sets, bars), name=name)


_GRID = {"fast": (2, 3, 5), "slow": (4, 8, 13), "level": (60.0, 80.0)}
_ATR = {"op": "mul", "a": {"param": "reach"}, "b": {"op": "atr", "period": 5}}

CASES: tuple[Case, ...] = (
    *(_given(seed, bars) for seed in range(3) for bars in (1, 33, 200)),
    _sweep("grid", {"strategy": CROSS, "grid": _GRID, "where": "fast < slow", "fee": 0.001, "blocks": 3}, 2, 70),
    _sweep(
        "trailing by ranges, flat at edges",
        {
            "strategy": CROSS, "grid": {**_GRID, "reach": (1.5, 3)}, "trailing_stop": _ATR, "stop_loss": 0.05,
            "take_profit": {"op": "mul", "a": 3, "b": {"op": "atr", "period": 5}},
            "blocks": 4, "flat_at_edges": True, "borrow": 0.1, "prefix_checks": 2,
        },
        90,
        dtype="float32",
        small=False,
    ),
    _sweep(
        "sets in any order",
        {"strategy": CROSS, "sets": {"fast": (5, 2, 3), "slow": (8, 13, 4), "level": (70, 60.5, 80)},
         "fill": "next_close"},
        1,
        33,
    ),
    _sweep(
        "given, stops swept",
        {"grid": {"stop": tuple((k + 1) / 300 for k in range(257))}, "stop_loss": {"param": "stop"},
         "fill": "same_close"},
        31,
        small=False,
        target=lambda random, shape: random.choice([-1.0, 0, 1, np.nan], shape, p=[0.1, 0.1, 0.1, 0.7]),
    ),
    _sweep(
        "a target that lasts, flat at edges",
        {"grid": {"stop": (0.02, 0.05, 0.2)}, "stop_loss": {"param": "stop"}, "fill": "same_close", "slippage": 0.001,
         "blocks": 5, "flat_at_edges": True, "last_bar": "sold"},
        2, 61,
        target=lambda random, shape: random.choice([-1.0, 0, 1, np.nan], shape, p=[0.1, 0.05, 0.1, 0.75]),
    ),
    *(_overfitting(*sizes) for sizes in ((3, 9, 2), (65, 100, 8), (33, 64, 4))),
)  # fmt: skip
