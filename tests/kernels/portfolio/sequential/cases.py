"""Requests whose answers must be the same bytes in every release; these operations run on the CPU alone."""

import numpy as np

from tests.kernels.parity import Case
from tests.kernels.portfolio.cases import Array, matrices


def means(assets: int) -> Array:
    """Mean returns with ties."""
    return np.round(np.random.default_rng(assets).normal(0.08, 0.05, assets), 2)


def _frontier(name: str, assets: int, lower: float | None = None, upper: float | None = None, **params: object) -> Case:
    bounds = {"lower": lower, "upper": upper}
    given = {side: np.array([bound]) for side, bound in bounds.items() if bound is not None}
    return Case(
        "frontier",
        params,
        lambda: {"means": means(assets), "covariance": matrices(assets), **given},
        name=f"frontier-{name}-{assets}",
    )


CASES: tuple[Case, ...] = (
    _frontier("least", 1),
    _frontier("least", 33, upper=0.1),
    _frontier("sharpe", 20, lower=-0.1, upper=0.3, portfolio="maximum_sharpe", rf=0.01),
    _frontier("mean", 12, portfolio="target_mean", target=0.1),
    _frontier("risk", 12, portfolio="target_risk", target=0.2, periods_per_year=1.5),
    *(
        Case("hrp", {"linkage": linkage}, lambda: {"covariance": matrices(2, 33)}, name=f"hrp-{linkage}")
        for linkage in ("single", "complete", "average")
    ),
    Case(
        "hrp",
        {"distance": "of_correlations", "spectrum": True},
        lambda: {"covariance": matrices(9)},
        name="hrp-of_correlations",
    ),
)
