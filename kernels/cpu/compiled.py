"""How loops of the CPU are compiled that only other loops call."""

from collections.abc import Callable
from typing import Any

from numba import njit, types


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function for other compiled functions alone: Python must not call it, which would end the process.

    No entry for Python is made, nor one for C. They are a seventh of the time that the indicators' loops take.
    A division by zero is infinite or NaN, as in NumPy.

    It is compiled for the types of its arguments, not once more for each constant that a caller passes.
    """
    compiled: Any = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    template = compiled.get_call_template

    def of_types(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        return template(tuple(map(types.unliteral, args)), {name: types.unliteral(kind) for name, kind in kws.items()})

    compiled.get_call_template = of_types
    return compiled
