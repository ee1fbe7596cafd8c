"""Benchmark cases of vector operations and reductions beside NumPy."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from warpdesk_server.benchmarks.cases import Case, Inputs, Sizes, measured, numpy_peer, random

# NumPy's name of the operation, its number of input arrays, its number of output arrays.
_NUMPY: dict[str, tuple[Callable[..., object], int, int]] = {
    "add": (np.add, 2, 1),
    "multiply": (np.multiply, 2, 1),
    "axpy": (lambda x, y: 2.0 * x + y, 2, 1),
    "dot": (np.dot, 2, 0),
    "sum": (np.sum, 1, 0),
    "norm": (np.linalg.norm, 1, 0),
    "min": (np.min, 1, 0),
    "max": (np.max, 1, 0),
}


def _inputs(count: int, size: int) -> Inputs:
    generator = random()
    return {name: generator.standard_normal(size) for name in ("x", "y")[:count]}


def _case(sizes: Sizes, size: int, name: str) -> Case:
    call, count, out = _NUMPY[name]
    params: dict[str, Any] = {"alpha": 2.0} if name == "axpy" else {}
    # Its dot products, and a norm is one, are its BLAS's, which takes all cores.
    threads: Literal[1, "all"] = "all" if name in ("dot", "norm") else 1
    peer = numpy_peer(lambda inputs: lambda: call(*inputs.values()), threads=threads)
    return Case(
        name,
        f"{measured(size)} float64",
        params,
        lambda: _inputs(count, size),
        sizes,
        (peer,) if sizes != "large" else (),
        moved=8 * size * (count + out),
        repeats=5 if sizes == "large" else 15,
    )


def _cases(sizes: Sizes, size: int) -> list[Case]:
    return [_case(sizes, size, name) for name in _NUMPY]


CASES: tuple[Case, ...] = (*_cases("small", 3_000), *_cases("full", 10_000_000), *_cases("large", 100_000_000))
