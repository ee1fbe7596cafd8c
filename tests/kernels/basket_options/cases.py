"""Basket options whose price must not depend on where it is computed: each basis, odd counts of paths, high seeds."""

from typing import Any

import numpy as np

from tests.kernels.parity import Case

_MARKET = {"option": "call", "strike": 100.0, "rate": 0.05, "maturity": 0.75}


def inputs(assets: int, **others: Any) -> dict[str, Any]:
    """Assets that differ, with correlations that differ."""
    k = np.arange(assets, dtype=np.float64)
    distance = np.abs(k[:, None] - k)
    given = {
        "spot": 95.0 + 3.0 * k % 11.0,
        "volatility": 0.15 + 0.05 * k % 0.3,
        "correlation": 0.8**distance,
        "dividend": 0.03 + 0.01 * k % 0.05,
    }
    return {**given, **{name: np.array(value, dtype=np.float64) for name, value in others.items()}}


def _case(name: str, seed: int, assets: int, weights: Any = None, **params: object) -> Case:
    more = {} if weights is None else {"weights": weights}
    return Case(
        "basket_option", {**_MARKET, **params}, lambda: inputs(assets, **more), seed=seed, name=f"basket_option-{name}"
    )


_AMERICAN = {"exercise": "american", "steps": 4}

CASES: tuple[Case, ...] = (
    _case("sum-controlled", 0, 5, payoff="weighted_sum", paths=1023),
    _case("spread", 1, 2, payoff="weighted_sum", paths=257, strike=5.0, weights=[1.0, -1.0]),
    _case("worst-of-put-last-seed", (1 << 64) - 1, 3, payoff="worst_of", option="put", paths=2),
    _case("one-asset", 2, 1, payoff="weighted_sum", option="put", paths=255, policy_paths=700, **_AMERICAN),
    _case("two-assets", 3, 2, payoff="best_of", paths=600, policy_paths=513, **_AMERICAN),
    _case("five-assets", 4, 5, payoff="worst_of", option="put", paths=256, policy_paths=900, **_AMERICAN),
    _case("sum-of-three", 5, 3, payoff="weighted_sum", paths=300, policy_paths=400, **_AMERICAN),
)
