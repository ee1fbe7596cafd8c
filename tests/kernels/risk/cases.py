"""Requests whose answers must be the same bytes on the CPU, under emulation and on a GPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.kernels.parity import Case

Arrays = dict[str, NDArray[Any]]


def weighted_book(
    scenarios: int, assets: int, portfolios: int, dtype: str = "float64", probabilities: bool = False
) -> Arrays:
    """Returns with ties among them, and weights of both signs; no portfolios: one, with weights of rank 1."""
    random = np.random.default_rng([scenarios, assets, portfolios])
    wild = np.where(random.random((scenarios, 1)) < 0.05, 0.03, 0.01)
    returns = wild * random.normal(size=(scenarios, assets)) + 0.005 * random.normal(size=(scenarios, 1)) + 0.0005
    returns[::5] = np.round(returns[::5], 2)
    found: Arrays = {
        "weights": random.normal(size=(portfolios, assets) if portfolios else assets).astype(dtype),
        "returns": returns.astype(dtype),
    }
    if probabilities:
        found["probabilities"] = np.where(random.random(scenarios) < 0.2, 0.0, random.random(scenarios))
    return found


def covariance(assets: int, portfolios: int) -> Arrays:
    """Weights, with a covariance and a mean instead of returns."""
    random = np.random.default_rng([assets, portfolios])
    loadings = 0.01 * random.normal(size=(assets, assets))
    square = (loadings[:, None] * loadings[None]).sum(axis=-1) + 1e-4 * np.eye(assets)
    weights = random.normal(size=(portfolios, assets) if portfolios else assets)
    return {"weights": weights, "covariance": square, "mean": random.normal(0.0005, 0.001, assets)}


def overflowing() -> Arrays:
    """Two portfolios, of which the first has infinite losses at and beyond its quantiles."""
    returns = -np.array([[1e200], [1.0], [2.0], [1e200], [3.0], [1e200], [1e200], [1e200], [4.0], [1e200]])
    return {"weights": np.array([[1e200], [1.0]]), "returns": returns}


def series(count: int, time: int, dtype: str = "float64", benchmark: bool = True) -> Arrays:
    """Returns of series, none for one of rank 1: the first is constant, one follows the benchmark, one is ruined."""
    random = np.random.default_rng([count, time])
    found = {"returns": random.normal(0.0005, 0.01, (max(count, 1), time)).astype(dtype)}
    market = random.normal(0.0003, 0.01, time).astype(dtype)
    if count > 3:
        found["returns"][0] = 0.001
        found["returns"][1] = market
        found["returns"][2, time // 2] = -1.0
    if count == 0:
        found["returns"] = found["returns"][0]
    return found | ({"benchmark": market} if benchmark else {})


def forecasts(count: int, time: int, dtype: str = "float64") -> Arrays:
    """Returns and forecasts, of which the first are never exceeded, and the second always."""
    found = series(count, time, dtype, benchmark=False)
    var = np.full(found["returns"].shape, 0.016, dtype)
    if count > 3:
        var[0], var[1] = 1.0, -1.0
    return found | {"var": var}


def _var(name: str, inputs: Callable[[], Arrays], small: bool = True, **params: Any) -> Case:
    return Case("value_at_risk", params, inputs, seed=11, small=small, name=f"value_at_risk-{name}")


_T = {"distribution": "student_t", "degrees_of_freedom": 5.0}

CASES: tuple[Case, ...] = (
    _var("one", lambda: weighted_book(40, 3, 0), levels=(0.9,), quantile="linear", components=True),
    _var("overflow", overflowing, small=False, levels=(0.5, 0.9)),
    _var("rules", lambda: weighted_book(257, 5, 33), small=False, quantile="linear", window=3, components=True),
    _var("higher-float32", lambda: weighted_book(100, 2, 3, "float32"), small=False, quantile="higher",
         levels=(0.5, 0.95)),
    _var("tiles", lambda: weighted_book(8_200, 3, 2), small=False, levels=(0.95, 0.999), components=True),
    _var("decay", lambda: weighted_book(300, 4, 2), small=False, decay=0.97, components=True),
    _var("probabilities", lambda: weighted_book(120, 4, 2, probabilities=True), components=True),
    _var("normal", lambda: weighted_book(257, 5, 33), method="parametric", components=True),
    _var("cornish-fisher", lambda: weighted_book(300, 4, 2), method="parametric", distribution="cornish_fisher",
         decay=0.99, components=True),
    _var("given-covariance", lambda: covariance(4, 3), method="parametric", components=True, **_T),
    _var("simulated", lambda: weighted_book(60, 6, 3), small=False, method="monte_carlo", scenarios=400,
         components=True),
    _var("simulated-t", lambda: covariance(5, 0), method="monte_carlo", scenarios=400, components=True, **_T),
    Case("var_backtest", {"level": 0.95}, lambda: forecasts(5, 300), name="var_backtest-five"),
    Case("var_backtest", {}, lambda: forecasts(0, 33, "float32"), name="var_backtest-float32"),
    Case("performance", {"risk_free": 0.01}, lambda: series(5, 300), name="performance-five"),
    Case("performance", {"drawdowns": 2, "target": 0.1}, lambda: series(0, 33, "float32", benchmark=False),
         name="performance-float32"),
)  # fmt: skip
