"""Requests whose answers must be the same bytes on the CPU, under emulation and on a GPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.kernels.parity import Case

Arrays = dict[str, NDArray[Any]]


def market(
    assets: int,
    time: int,
    dtype: str = "float64",
    groups: int = 0,
    factors: int = 0,
    weights: bool = False,
    moving: bool = False,
    gaps: float = 0.1,
) -> Arrays:
    """Values with gaps and ties, labels of so many groups and -1, exposures and weights with gaps and zeros.

    Groups, factors and weights are the same for all bars unless they are `moving`.
    """
    random = np.random.default_rng([assets, time, groups, factors])

    def drawn(*leading: int) -> NDArray[Any]:
        numbers = random.normal(size=(*leading, assets, time) if moving else (*leading, assets)).astype(dtype)
        numbers[random.random(numbers.shape) < gaps / 4] = np.nan
        return numbers

    values = random.normal(size=(assets, time)).astype(dtype)
    values[::3] = np.round(values[::3])  # ties, and zeros of both signs
    values[random.random(values.shape) < gaps] = np.nan
    found: Arrays = {"values": values}
    if groups:
        found["groups"] = random.integers(-1, groups, (assets, time) if moving else assets)
    if factors:
        found["factors"] = drawn(factors)
    if weights:
        numbers = np.abs(drawn())
        numbers[numbers < 0.2] = 0.0
        found["weights"] = numbers
    return found


def _case(operation: str, params: dict[str, Any], make: Callable[[], Arrays], name: str, small: bool = True) -> Case:
    options = "".join(f"{value}-" for value in params.values())
    return Case(operation, params, make, small=small, name=f"{operation}-{options}{name}")


_PARAMS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("cross_rank", {"ties": ties}) for ties in ("average", "min", "max", "first")),
    *(("cross_rank", {"ties": ties, "percentile": True}) for ties in ("average", "dense")),
    ("cross_zscore", {}),
    ("cross_zscore", {"ddof": 1}),
    ("winsorise", {"lower": 0.07, "upper": 0.8}),
    ("neutralise", {}),
)
# Assets, bars, groups, whether they move; and whether the case is small. None: once for each kernel, as sorting so many
# assets takes the sanitizers long.
_SHAPES = (
    (1, 1, 0, False, True),
    (33, 5, 0, False, True),
    (31, 33, 4, False, False),
    (40, 4, 3, True, True),
    (1025, 1, 6, False, None),
    (2300, 2, 0, False, False),
)

CASES: tuple[Case, ...] = (
    *(
        _case(
            operation,
            params,
            lambda assets=assets, time=time, groups=groups, moving=moving: market(  # type: ignore[misc]
                assets, time, groups=groups, moving=moving
            ),
            f"{assets}x{time}-{groups}{'-moving' * moving}",
            params in ({}, {"ties": "average"}, {"lower": 0.07, "upper": 0.8}) if small is None else small,
        )
        for operation, params in _PARAMS
        for assets, time, groups, moving, small in _SHAPES
    ),
    *(
        _case(operation, params, lambda: market(50, 6, "float32", groups=3), "float32")
        for operation, params in _PARAMS
        if params.get("ties", "dense") == "dense"
    ),
    _case("cross_rank", {"ties": "dense"}, lambda: market(1100, 2, "float32", groups=3), "1100x2-float32", small=False),
    *(
        _case(
            "neutralise",
            params,
            lambda params=params, dtype=dtype, factors=factors, weights=weights, moving=moving: market(  # type: ignore[misc]
                45, 3, dtype, 0 if params else 4, factors, weights, moving
            ),
            f"{dtype}-{factors}{'-weights' * weights}{'-moving' * moving}",
        )
        for dtype, params, factors, weights, moving in (
            ("float64", {}, 1, False, False),
            ("float64", {}, 4, True, True),
            ("float64", {"intercept": False}, 3, True, False),
            ("float32", {}, 3, False, True),
            ("float32", {"intercept": False}, 2, True, True),
        )
    ),
)
