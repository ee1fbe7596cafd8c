"""Benchmark cases of tridiagonal systems beside SciPy's LAPACK, and on a GPU beside cuSPARSE."""

from collections.abc import Callable
from typing import Any

import numpy as np

from warpdesk_server.benchmarks.cases import Call, Case, Goal, Inputs, Peer, Sizes, measured, module, random
from warpdesk_server.kernels.array import ITEMSIZE
from warpdesk_server.kernels.gpu.contract import Device

LOOP = "SciPy solve_banded"
COMPLEX_LOOP = "LAPACK zgtsv"
SHIFT = {"shift": 0.5, "shift_imaginary": 0.1}


def _inputs(systems: int, rows: int, dtype: str, rhs: bool) -> Inputs:
    generator = random()

    def drawn(numbers: int) -> Any:
        return generator.normal(size=(systems, numbers)).astype(dtype)

    found: Inputs = {"lower": drawn(rows - 1), "diagonal": drawn(rows) + np.array(4, dtype), "upper": drawn(rows - 1)}
    return {**found, "rhs": drawn(rows)} if rhs else found


def _solve_banded(inputs: Inputs) -> Call:
    solve = module("scipy.linalg").solve_banded
    systems, rows = inputs["rhs"].shape
    band = np.zeros((systems, 3, rows))
    band[:, 0, 1:], band[:, 1], band[:, 2, :-1] = inputs["upper"], inputs["diagonal"], inputs["lower"]
    return lambda: [solve((1, 1), band[k], inputs["rhs"][k]) for k in range(systems)]


def _zgtsv(inputs: Inputs) -> Call:
    """One solution for each system: LAPACK has no diagonal of an inverse."""
    zgtsv = module("scipy.linalg").lapack.zgtsv
    shift = complex(SHIFT["shift"], SHIFT["shift_imaginary"])
    lower, diagonal, upper = (inputs[name].astype(complex) for name in ("lower", "diagonal", "upper"))
    diagonal = diagonal - shift
    rhs = np.ones(diagonal.shape[1], complex)
    return lambda: [zgtsv(lower[k], diagonal[k], upper[k], rhs) for k in range(len(diagonal))]


def cusparse(device: Device, inputs: Inputs) -> Callable[[], object] | None:
    """The call of cuSPARSE's gtsv2StridedBatch that solves the case's systems, which lie on the GPU; None if there is
    none for it. It has no shift and no certificate, and overwrites its right-hand side.

    Raises ImportError or AttributeError if CuPy's binding is not there."""
    cupy = device.cupy
    if cupy is None or "rhs" not in inputs:
        return None
    library = module("cupy_backends.cuda.libs.cusparse")
    handle = cupy.cuda.device.get_cusparse_handle()
    dtype = inputs["rhs"].dtype
    letter = {"float32": "s", "float64": "d"}[dtype.name]
    solve, workspace = (getattr(library, f"{letter}gtsv2StridedBatch{end}") for end in ("", "_bufferSizeExt"))
    systems, rows = inputs["rhs"].shape
    # Each array has a number for each row: the first of `lower` and the last of `upper` are 0.
    padded = {"lower": ((0, 0), (1, 0)), "upper": ((0, 0), (0, 1))}
    arrays = [
        device.to_device(np.pad(inputs[name], padded[name]) if name in padded else inputs[name])
        for name in ("lower", "diagonal", "upper", "rhs")
    ]
    pointers = [array.data.ptr for array in arrays]
    buffer = device.empty(workspace(handle, rows, *pointers, systems, rows), np.uint8)

    def call() -> object:
        solve(handle, rows, *pointers, systems, rows, buffer.data.ptr)
        return arrays, buffer  # alive as long as the call

    return call


def _cases(sizes: Sizes, systems: int, rows: int, dtype: str = "float64", goals: bool = False) -> list[Case]:
    label = f"{measured(systems)} x {measured(rows)}, {dtype}"
    numbers = systems * rows * ITEMSIZE[dtype]
    beside = sizes != "large"
    return [
        Case(
            "tridiagonal_solve",
            label,
            {},
            lambda: _inputs(systems, rows, dtype, rhs=True),
            sizes,
            (Peer(LOOP, "scipy", _solve_banded, note="a call for each system"),) if beside else (),
            Goal({LOOP: 8.0} if goals else {}),
            moved=5 * numbers,
        ),
        Case(
            "tridiagonal_inverse_diagonal",
            f"{label}, complex shift",
            SHIFT,
            lambda: _inputs(systems, rows, dtype, rhs=False),
            sizes,
            (Peer(COMPLEX_LOOP, "scipy", _zgtsv, note="a solution for each system, no inverse"),) if beside else (),
            # On one core each, as the peer's loop runs on one and ours on all of two.
            Goal({COMPLEX_LOOP: 2 / 1.3} if goals else {}),
            moved=5 * numbers,
        ),
    ]


CASES: tuple[Case, ...] = (
    *_cases("small", 10, 20),
    *_cases("full", 1_000, 512, goals=True),
    *_cases("full", 1, 512),
    *_cases("large", 100_000, 512),
    *_cases("large", 100_000, 512, "float32"),
)
