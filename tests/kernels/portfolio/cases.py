"""Requests whose answers must be the same bytes on the CPU, under emulation and on a GPU."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.kernels.parity import Case

Array = NDArray[Any]


def returns(*shape: int, dtype: str = "float64") -> Array:
    """Returns of assets that share a factor, shape (assets, time) or (batch, assets, time)."""
    random = np.random.default_rng(list(shape))
    *batch, assets, time = shape
    common = random.normal(size=(*batch, 1, time))
    betas = random.uniform(0.2, 1.5, (*batch, assets, 1))
    sizes = random.uniform(0.005, 0.02, (*batch, assets, 1))
    made: Array = (sizes * (betas * common + random.normal(size=(*batch, assets, time))) + 3e-4).astype(dtype)
    return made


def matrices(*shape: int) -> Array:
    """Covariance matrices of assets that share a factor, shape (assets, assets) or (batch, assets, assets)."""
    random = np.random.default_rng(list(shape))
    *batch, assets = shape
    betas, specific = random.uniform(-0.1, 0.3, (*batch, assets)), random.uniform(0.01, 0.09, (*batch, assets))
    made: Array = betas[..., :, None] * betas[..., None, :]
    made[..., range(assets), range(assets)] += specific
    return made


def budgets(assets: int) -> Array:
    return np.random.default_rng(assets).uniform(0.5, 2.0, assets)


def _covariance(method: str, *shape: int) -> Case:
    return Case("covariance", {"method": method}, lambda: {"returns": returns(*shape)}, name=f"{method}-{shape}")


def _risk_parity(*shape: int, small: bool = True) -> Case:
    name = f"risk_parity-{shape}"
    return Case("risk_parity", {}, lambda: {"covariance": matrices(*shape)}, name=name, small=small)


CASES: tuple[Case, ...] = (
    _covariance("sample", 33, 31),
    _covariance("ewma", 2, 5, 40),
    _covariance("ledoit_wolf", 3, 7, 33),
    Case(
        "covariance",
        {"demean": False, "eigenvalues": True, "components": 3},
        lambda: {"returns": returns(9, 65, dtype="float32")},
        name="covariance-float32",
    ),
    _risk_parity(1),
    _risk_parity(3, 33),
    _risk_parity(2, 257, small=False),
    Case(
        "risk_parity",
        {"spectrum": True},
        lambda: {"covariance": matrices(5), "budgets": budgets(5)},
        name="risk_parity-budgets",
    ),
)
