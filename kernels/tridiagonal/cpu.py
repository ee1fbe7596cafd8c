"""The operations on tridiagonal systems on all cores of the CPU: the reference for every other backend."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.cpu.pages import empty
from warpdesk_server.kernels.tridiagonal import loops
from warpdesk_server.kernels.tridiagonal.answer import (
    before_repetitions,
    infos_of,
    inverse_answer,
    lines_of,
    solve_answer,
)
from warpdesk_server.kernels.tridiagonal.spec import LANES, STATES, Shift, systems_of

Array = NDArray[Any]

_AT_LEAST = 1 << 12  # rows of all systems: fewer are not worth another thread


def tridiagonal_solve(params: Shift, lower: Array, diagonal: Array, upper: Array, rhs: Array) -> dict[str, Any]:
    """Solve (T - z I) x = rhs for each tridiagonal system of (systems, rows), float64 or float32, real or complex."""
    given = {"lower": lower, "diagonal": diagonal, "upper": upper, "rhs": rhs}
    return solve_answer(params, given, *_by_group(params, given, loops.solve))


def tridiagonal_inverse_diagonal(params: Shift, lower: Array, diagonal: Array, upper: Array) -> dict[str, Any]:
    """The diagonal of (T - z I)^-1 of each tridiagonal matrix of (systems, rows), float64 or float32, real or
    complex."""
    given = {"lower": lower, "diagonal": diagonal, "upper": upper}
    return inverse_answer(params, given, *_by_group(params, given, loops.inverse_diagonal))


def _by_group(params: Shift, given: dict[str, Array], compute: Callable[..., None]) -> tuple[Array, Array]:
    """What `compute` makes of eight systems at a time, (systems, rows, parts), and the state (STATES, systems).

    Its scratch has the inputs and two more arrays, and the answer in the fourth.
    """
    systems = systems_of(params, infos_of(given))
    shift = np.array([params.shift, params.shift_imaginary][: systems.parts])
    lines = lines_of(given, systems)
    out = empty((systems.count, systems.rows, systems.parts), systems.dtype)
    states = np.empty((STATES, systems.count))
    scatter = loops.scatter if systems.dtype == "float64" else loops.scatter_float32

    def run(first_group: int, end_group: int) -> None:
        scratch = np.zeros((len(lines) + 2, systems.rows * systems.parts * LANES))
        state = np.zeros((STATES, LANES))
        for first in range(first_group * LANES, min(end_group * LANES, systems.count), LANES):
            for rows, (name, array) in zip(scratch, lines.items(), strict=False):
                loops.gather(array, first, int(name == "lower"), systems.parts, rows)
            compute(scratch, shift, systems.rows, state)
            scatter(scratch[3], first, out)
            states[:, first : first + LANES] = state[:, : systems.count - first]

    with before_repetitions():
        share(-(-systems.count // LANES), run, at_least=-(-_AT_LEAST // (LANES * systems.rows)))
    return out, states
