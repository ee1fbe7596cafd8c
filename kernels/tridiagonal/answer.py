"""The outputs of the tridiagonal operations from what a backend computed, the same on every backend.

Here a system whose certificate failed is computed again in twice the precision.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.device.elementary import LN2_HIGH, LN2_LOW
from warpdesk_server.kernels.progress import stage
from warpdesk_server.kernels.tridiagonal import loops, spec, twice
from warpdesk_server.kernels.tridiagonal.spec import Shift, Systems, systems_of

Array = NDArray[Any]
Given = Mapping[str, Array]

_FIRST = 0.5  # of a tridiagonal job's progress: what comes before the repetitions, of which there may be none or many


def before_repetitions() -> AbstractContextManager[None]:
    """The stage of a tridiagonal job's progress in which a backend computes all systems."""
    return stage(0.0, _FIRST)


def infos_of(given: Given) -> dict[str, ArrayInfo]:
    """The descriptions of the inputs of a tridiagonal job."""
    kinds: dict[str, Any] = {name: array.dtype.name for name, array in given.items()}
    return {name: ArrayInfo(kinds[name], array.shape) for name, array in given.items()}


def lines_of(given: Given, systems: Systems) -> dict[str, Array]:
    """The inputs of a tridiagonal job as (systems, rows, parts): read-only, as Numba compiles again for writable
    arrays."""
    lines = {}
    for name, array in given.items():
        rows = systems.rows - (name in ("lower", "upper"))
        parts = array.size // (systems.count * rows) if rows else 1
        lines[name] = np.asarray(array).reshape(systems.count, rows, parts)
        lines[name].flags.writeable = False
    return lines


def solve_answer(params: Shift, given: Given, solution: Array, state: Array) -> dict[str, Any]:
    """The outputs of tridiagonal_solve from solutions (systems, rows, parts) and the state (STATES, systems)."""

    # The larger part of a complex number may be less than the number by this factor.
    most_of_part = (1.0, math.sqrt(2.0))[systems_of(params, infos_of(given)).parts - 1]

    def errors(state: Array) -> dict[str, Array]:
        residual = state[spec.ERROR] + state[spec.TAINT]
        scale = state[spec.NORM] * state[spec.FOUND] + state[spec.GIVEN]
        backward = np.where((scale >= spec.LEAST_SCALE) & (scale < np.inf), most_of_part * residual / scale, np.nan)
        return {"residual": residual, "backward_error": np.where((scale == 0) & (residual == 0), 0.0, backward)}

    return _answer("solution", params, given, solution, state, errors, spec.BACKWARD, twice.solve)


def inverse_answer(params: Shift, given: Given, diagonal: Array, state: Array) -> dict[str, Any]:
    """The outputs of tridiagonal_inverse_diagonal from diagonals (systems, rows, parts) and the state."""

    def errors(state: Array) -> dict[str, Array]:
        return {"error_bound": state[spec.ERROR] + state[spec.TAINT]}

    return _answer("inverse_diagonal", params, given, diagonal, state, errors, spec.FORWARD, twice.inverse_diagonal)


def _answer(
    name: str,
    params: Shift,
    given: Given,
    numbers: Array,
    state: Array,
    errors: Callable[[Array], dict[str, Array]],
    most: float,
    again: Callable[..., None],
) -> dict[str, Any]:
    systems = systems_of(params, infos_of(given))
    refused = (state[spec.PIVOT_ROW] >= 0) | (state[spec.GAP_ROW] >= 0)
    with np.errstate(all="ignore"):
        failed = ~(_last(errors(state)) <= most) & ~refused
        again_of = np.flatnonzero(failed)

        def run(first: int, end: int) -> None:
            with np.errstate(all="ignore"):  # which a thread does not take over
                for system in again_of[first:end]:
                    _repeat(params, given, systems, int(system), numbers, state, again)

        with stage(_FIRST, 1.0):
            share(again_of.size, run)
        found = errors(state)
        smallest = 1.0 / state[spec.GROWTH]
    uncertified = ~(_last(found) <= most)
    if systems.dtype == "float32":  # which may not hold what was certified in float64
        uncertified |= ~np.isfinite(numbers).all(axis=(1, 2))
    status = np.where(failed, spec.REPEATED, spec.OK).astype(np.uint8)
    status[uncertified] = spec.UNCERTIFIED
    status[state[spec.PIVOT_ROW] >= 0] = spec.PIVOT
    status[state[spec.GAP_ROW] >= 0] = spec.NOT_FINITE
    refused |= uncertified
    row = np.where(status == spec.NOT_FINITE, state[spec.GAP_ROW], state[spec.PIVOT_ROW])
    log_determinant, sign = _determinant(systems, state, refused)
    for array in (numbers, log_determinant, sign, smallest, *found.values()):
        array[refused] = np.nan
    return {
        name: numbers.reshape(systems.shape),
        "log_determinant": log_determinant,
        "sign": sign.reshape(systems.sign_shape),
        "smallest_pivot": smallest,
        "dominant": np.where(refused, 0, state[spec.DOMINANT]).astype(np.uint8),
        **found,
        "status": status,
        "row": row.astype(np.int64),
    }


def _last(errors: Mapping[str, Array]) -> Array:
    return list(errors.values())[-1]


def _repeat(
    params: Shift,
    given: Given,
    systems: Systems,
    system: int,
    numbers: Array,
    state: Array,
    again: Callable[..., None],
) -> None:
    """Compute one tridiagonal system in twice the precision, and put its numbers and state into place."""
    arrays = {}
    for name, lines in lines_of(given, systems).items():
        arrays[name] = np.zeros((systems.rows, 2))
        first = int(name == "lower")
        arrays[name][first : first + lines.shape[1], : lines.shape[2]] = lines[system]
    own = np.ascontiguousarray(state[:, system])
    again(*arrays.values(), np.array([[params.shift, params.shift_imaginary]]), own)
    state[:, system] = own
    answer = list(arrays.values())[3 if "rhs" in given else 1][:, : systems.parts]
    if systems.dtype == "float32":
        answer = np.where(np.abs(answer) < spec.LEAST_FLOAT32, answer * 0.0, answer)
    numbers[system] = answer


def _determinant(systems: Systems, state: Array, refused: Array) -> tuple[Array, Array]:
    """ln |det| and det / |det| of tridiagonal matrices, the latter of shape (systems, parts)."""
    sign = state[[spec.SIGN, spec.SIGN_IMAGINARY][: systems.parts]].T
    with np.errstate(all="ignore"):
        squares = sign * sign
        length = np.abs(sign[:, 0]) if systems.parts == 1 else np.sqrt(squares[:, 0] + squares[:, 1])
        length[refused] = 1.0
        sign = np.ascontiguousarray(sign / length[:, None])
        loops.logarithms(length)
        exponents = state[spec.EXPONENT]
        return exponents * LN2_HIGH + (length + exponents * LN2_LOW), sign
