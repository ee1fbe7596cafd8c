"""How loops of the CPU are compiled that only other loops call."""

from collections.abc import Callable
from typing import Any

from numba import njit


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function for other compiled functions alone: Python must not call it, which would end the process.

    No entry for Python is made, nor one for C. They are a seventh of the time that the indicators' loops take.
    A division by zero is infinite or NaN, as in NumPy.
    """
    return njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
