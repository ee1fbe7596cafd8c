"""Requests whose answers must be the same bytes on the CPU, under emulation and on a GPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.kernels.parity import Case

TILE = 8192
REDUCTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sum", {}),
    ("dot", {}),
    ("norm", {"order": "l1"}),
    ("norm", {"order": "l2"}),
    ("norm", {"order": "linf"}),
    ("min", {}),
    ("max", {}),
)
ELEMENTWISE: tuple[tuple[str, dict[str, Any]], ...] = (("add", {}), ("multiply", {}), ("axpy", {"alpha": -1.7}))


def numbers(*shape: int, dtype: str = "float64", seed: int = 0) -> NDArray[Any]:
    """Normals times powers of two from 2^-20 to 2^20."""
    random = np.random.default_rng([seed, *shape])
    values: NDArray[Any] = (random.normal(0, 1, shape) * np.exp2(random.integers(-20, 20, shape))).astype(dtype)
    return values


def _inputs(operation: str, make: Callable[[int], NDArray[Any]]) -> Callable[[], dict[str, NDArray[Any]]]:
    names = "x" if operation in ("sum", "norm", "min", "max") else "xy"
    return lambda: {name: make(seed) for seed, name in enumerate(names)}


def _case(
    operation: str, params: dict[str, Any], make: Callable[[int], NDArray[Any]], name: str, small: bool = True
) -> Case:
    kind = f"{params['order']}-" if "order" in params else ""
    return Case(operation, params, _inputs(operation, make), small=small, name=f"{operation}-{kind}{name}")


def _shaped(*shape: int, dtype: str = "float64") -> Callable[[int], NDArray[Any]]:
    return lambda seed: numbers(*shape, dtype=dtype, seed=seed)


def _odd(*shape: int, dtype: str = "float64") -> Callable[[int], NDArray[Any]]:
    """Both zeros, NaN in some rows, and what is near the ends of the range."""

    def make(seed: int) -> NDArray[Any]:
        values = numbers(*shape, dtype=dtype, seed=seed)
        flat, ends = values.reshape(-1), np.finfo(dtype)
        flat[::7] = np.resize(np.array([0.0, -0.0, ends.max, -ends.max, ends.tiny, -ends.tiny], dtype), flat[::7].size)
        flat[5 : flat.size // 2 : 1 + flat.size // 3] = np.nan
        return values

    return make


def _subnormal(seed: int) -> NDArray[Any]:
    return numbers(300, seed=seed) * 2.0**-1060


def _jumps(_seed: int) -> NDArray[Any]:
    """Each tile of another magnitude, near the one before and far from it, zeros and infinity among them."""
    magnitudes = [1.0, 2.0**150, 1e-300, 0.0, 1e300, 2.0**-1060, np.inf, 1.0, 2.0**-199]
    return numbers(len(magnitudes), TILE).clip(-1e6, 1e6) * np.array(magnitudes)[:, None]


def _minus_zeros(_seed: int) -> NDArray[Any]:
    return np.full((3, 40), -0.0)


CASES: tuple[Case, ...] = (
    *(
        _case(operation, params, _shaped(n, dtype=dtype), f"{dtype}-{n}", small=n < 2000)
        for operation, params in (*ELEMENTWISE, *REDUCTIONS)
        for dtype in ("float64", "float32")
        for n in (1, 33, 1025, 3 * TILE + 17)
    ),
    *(
        _case(operation, {**params, "axis": "last"}, _shaped(*shape, dtype=dtype), f"{dtype}-{shape}", small=small)
        for operation, params in REDUCTIONS
        for dtype in ("float64", "float32")
        for shape, small in (((2, 5, 31), True), ((3, 1025), True), ((17, 1024), False), ((3, TILE + 1), False))
    ),
    *(
        _case(operation, {**params, "axis": "last"}, _odd(6, 50, dtype=dtype), f"odd-{dtype}")
        for operation, params in REDUCTIONS
        for dtype in ("float64", "float32")
    ),
    *(_case(operation, params, _odd(70), "odd") for operation, params in ELEMENTWISE),
    *(_case("norm", {"order": order}, _subnormal, "subnormal") for order in ("l1", "l2", "linf")),
    *(_case(operation, params, _minus_zeros, "minus zeros") for operation, params in REDUCTIONS),
    _case("norm", {"order": "l2"}, _jumps, "jumps", small=False),
    _case("norm", {"order": "l2", "axis": "last"}, _jumps, "jumps by row", small=False),
)
