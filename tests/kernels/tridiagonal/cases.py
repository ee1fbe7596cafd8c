"""Requests on tridiagonal systems whose answers must be the same bytes on the CPU, under emulation and on a GPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.kernels.parity import Case

Arrays = dict[str, NDArray[Any]]


def systems(
    count: int, rows: int, dtype: str = "float64", parts: int = 1, rhs_parts: int = 1, seed: int = 0, own: float = 3.0
) -> Arrays:
    """Systems of normal numbers, `own` more on the diagonal; with one system no axis of systems."""
    random = np.random.default_rng([count, rows, seed])

    def drawn(numbers: int, parts: int) -> NDArray[Any]:
        shape = (*((count,) if count > 1 else ()), numbers, *((2,) if parts == 2 else ()))
        return random.normal(size=shape).astype(dtype)

    found = {"lower": drawn(rows - 1, parts), "diagonal": drawn(rows, parts), "upper": drawn(rows - 1, parts)}
    found["diagonal"][..., *((0,) if parts == 2 else ())] += own
    return {**found, "rhs": drawn(rows, rhs_parts)}


def troubled(dtype: str = "float64") -> Arrays:
    """Systems of which one has a NaN, one a zero pivot, one a tiny pivot, and one a pivot that costs eight digits."""
    found = systems(37, 9, dtype)
    found["upper"][3, 5] = np.nan
    found["diagonal"][4, 0] = 0.0
    found["diagonal"][5, 0], found["lower"][5, 0], found["upper"][5, 0] = 1.0, 1.0, 1.0
    found["diagonal"][5, 1] = 1.0
    found["diagonal"][6, 0], found["lower"][6, 0], found["upper"][6, 0] = 1.0, 1.0, 1.0
    found["diagonal"][6, 1] = 1.0 + 2.0**-23
    found["diagonal"][7, 2] = np.nan
    return found


def small() -> Arrays:
    """Complex systems with right-hand sides from 2^-400 to 2^-1020, whose squares underflow."""
    found = systems(9, 7, parts=2, rhs_parts=2)
    found["rhs"] *= 2.0 ** -np.linspace(400, 1020, 9).round()[:, None, None]
    return found


def without_rhs(found: Arrays) -> Arrays:
    return {name: array for name, array in found.items() if name != "rhs"}


def _cases(make: Callable[[], Arrays], name: str, small: bool = True, **params: float) -> tuple[Case, Case]:
    return (
        Case("tridiagonal_solve", params, make, small=small, name=f"tridiagonal_solve-{name}"),
        Case(
            "tridiagonal_inverse_diagonal",
            params,
            lambda: without_rhs(make()),
            small=small,
            name=f"tridiagonal_inverse_diagonal-{name}",
        ),
    )


CASES: tuple[Case, ...] = (
    *_cases(lambda: systems(33, 17), "33x17"),
    *_cases(lambda: systems(1, 1), "1 row"),
    *_cases(lambda: systems(1, 40), "complex shift", shift=0.5, shift_imaginary=-0.25),
    *_cases(lambda: systems(70, 5, parts=2, rhs_parts=2), "70x5 complex", shift=0.5),
    *_cases(lambda: systems(9, 33, "float32", own=4.0), "9x33 float32", shift=-0.125),
    *_cases(lambda: systems(33, 4, "float32", parts=2), "33x4 float32 complex"),
    *_cases(troubled, "troubled"),
    _cases(small, "small")[0],
    *_cases(lambda: troubled("float32"), "troubled float32"),
    *_cases(lambda: systems(1025, 2), "1025x2", small=False),
)
