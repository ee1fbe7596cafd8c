"""Benchmark cases of the risk operations beside NumPy and pandas.

NumPy's value at risk is a product by its BLAS and a partition, of scenarios by portfolios, as returns are laid out, or
of portfolios by scenarios, which its partition takes in one piece. It gives the quantile alone: Warpdesk gives it with
the expected shortfall and both standard errors.
"""

import math
from typing import Any

import numpy as np

from warpdesk_server.benchmarks.cases import Call, Case, Goal, Inputs, Peer, Sizes, measured, module, numpy_peer, random

LEVEL = 0.99


def _book(scenarios: int, assets: int, portfolios: int) -> Inputs:
    generator = random()
    return {
        "weights": generator.random((portfolios, assets)) / assets,
        "returns": generator.normal(0.0, 0.01, (scenarios, assets)),
    }


def _series(count: int, time: int) -> Inputs:
    generator = random()
    return {"returns": generator.normal(0.0005, 0.01, (count, time)), "benchmark": generator.normal(0.0003, 0.01, time)}


def _forecasts(count: int, time: int) -> Inputs:
    return {"returns": _series(count, time)["returns"], "var": np.full((count, time), 0.0235)}


def _by_scenario(inputs: Inputs) -> Call:
    returns, weights = inputs["returns"], inputs["weights"]
    rank = math.ceil(LEVEL * len(returns)) - 1
    return lambda: np.partition(-(returns @ weights.T), rank, axis=0)[rank]


def _by_portfolio(inputs: Inputs) -> Call:
    returns, weights = inputs["returns"], inputs["weights"]
    rank = math.ceil(LEVEL * len(returns)) - 1
    return lambda: np.partition(-(weights @ returns.T), rank, axis=1)[:, rank]


def _numpy_kupiec(inputs: Inputs) -> Call:
    """Kupiec's ratio and the transitions; without p-values, zones and reasons."""
    returns, var = inputs["returns"], inputs["var"]

    def call() -> object:
        ones = -returns > var
        x, n = ones.sum(axis=1), ones.shape[1]
        ratio = -2 * ((n - x) * np.log(0.99 / (1 - x / n)) + x * np.log(0.01 / (x / n)))
        before, now = ones[:, :-1], ones[:, 1:]
        return ratio, [(a & b).sum(axis=1) for a in (~before, before) for b in (~now, now)]

    return call


def _pandas_performance(inputs: Inputs) -> Call:
    """Each measure as one would write it in pandas; without the table of drawdowns and the captures."""
    table, market = module("pandas").DataFrame(inputs["returns"].T), module("pandas").Series(inputs["benchmark"])
    root = math.sqrt(252)

    def call() -> object:
        wealth = (1 + table).cumprod()
        fall = (1 - wealth / wealth.cummax()).max()
        mean, deviation = table.mean(), table.std()
        annual = wealth.iloc[-1] ** (252 / len(table)) - 1
        downside = np.sqrt((table.clip(upper=0) ** 2).mean())
        beta = table.corrwith(market) * deviation / market.std()
        active = table.sub(market, axis=0)
        ratios = annual / fall, mean / deviation * root, mean / downside * root, active.mean() / active.std() * root
        omega = table.clip(lower=0).sum() / -table.clip(upper=0).sum()
        return (*ratios, omega, beta, mean - beta * market.mean(), table.skew(), table.kurt())

    return call


def _cases(sizes: Sizes, scenarios: int, assets: int, portfolios: int, series: int, time: int) -> list[Case]:
    book = f"{measured(scenarios)} x {measured(assets)}, {measured(portfolios)} portfolios"
    shape = f"{measured(series)} x {measured(time)}"

    def var(label: str, *peers: Peer, goal: Goal | None = None, rows: int = scenarios, **params: Any) -> Case:
        return Case(
            "value_at_risk",
            f"{label}, {book}",
            {"levels": (LEVEL,), **params},
            lambda: _book(rows, assets, portfolios),
            sizes,
            peers if sizes != "large" else (),
            goal or Goal(),
            multiplied=scenarios * assets * portfolios,
            repeats=5,
        )

    name = "NumPy, scenarios by portfolios"
    return [
        var(
            "historical",
            numpy_peer(_by_scenario, name, threads="all"),
            numpy_peer(_by_portfolio, "NumPy, portfolios by scenarios", threads="all"),
            goal=Goal({name: 1.2}) if sizes == "full" else None,
        ),
        var("contributions", components=True),
        var("simulated", method="monte_carlo", scenarios=scenarios, rows=time),
        Case(
            "var_backtest",
            shape,
            {},
            lambda: _forecasts(series, time),
            sizes,
            (numpy_peer(_numpy_kupiec, note="no p-values"),) if sizes != "large" else (),
            moved=16 * series * time,
        ),
        Case(
            "performance",
            shape,
            {},
            lambda: _series(series, time),
            sizes,
            (Peer("pandas", "pandas", _pandas_performance, note="no drawdowns listed"),) if sizes != "large" else (),
            moved=8 * series * time,
            repeats=5,
        ),
    ]


CASES: tuple[Case, ...] = (
    *_cases("small", 200, 10, 3, 5, 250),
    *_cases("full", 100_000, 500, 100, 500, 2_520),
    *_cases("large", 100_000, 500, 1_000, 10_000, 2_520),
)
