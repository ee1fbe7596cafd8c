"""What an operation's arrays are is known before it runs: what was inferred is what comes."""

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest

from tests.kernels.families import all_cases
from tests.kernels.parity import Case
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.axes import REST
from warpdesk_server.kernels.catalogue import CATALOGUE, OPERATIONS
from warpdesk_server.kernels.operation import Operation

pytestmark = pytest.mark.timeout(600)  # loops that no test before has compiled, also on a busy machine

# Outputs of which the data decide the length: how many bars, corners of a frontier, and trades there are.
OF_THE_DATA = {
    *(("bars", output.name) for output in OPERATIONS["bars"].outputs if output.kind == "array"),
    *(("frontier", f"corner_{name}") for name in ("weights", "means", "risks", "lambdas")),
    ("backtest", "trades"),
}
CASES_OF_EACH = 3
MOST_NUMBERS = 1 << 17


def _shown(operation: Operation) -> list[Case]:
    """The example and the variants of an operation, as cases."""
    return [
        Case(
            operation.name,
            shown.params,
            lambda shown=shown: {name: np.array(given["data"], given["dtype"]) for name, given in shown.inputs.items()},
            seed=7,
            key=bytes(range(32)),
        )
        for shown in (operation.example, *operation.variants)
    ]


def _some_cases() -> list[Case]:
    taken, found = Counter[str](), []
    for _, case in all_cases():
        if case.small and taken[case.operation] < CASES_OF_EACH:
            taken[case.operation] += 1
            found.append(case)
    return found


def _info(array: "np.ndarray[Any, Any]") -> ArrayInfo:
    real = array.dtype.kind == "f"
    has_nan, has_inf = (real and bool(odd(array).any()) for odd in (np.isnan, np.isinf))
    return ArrayInfo(array.dtype.name, array.shape, has_nan, has_inf)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_inferred_of_an_operation_is_what_comes(name: str) -> None:
    operation = OPERATIONS[name]
    for case in chain(_shown(operation), (case for case in _some_cases() if case.operation == name)):
        inputs = case.inputs()
        if sum(array.size for array in inputs.values()) > MOST_NUMBERS:
            continue
        params = operation.params.model_validate(dict(case.params), strict=False)
        inferred, answer = operation.infer(params, {name: _info(array) for name, array in inputs.items()}), case.run()
        arrays = {name: _info(value) for name, value in answer.items() if isinstance(value, np.ndarray)}
        assert inferred.keys() == arrays.keys()
        assert {(name, output) for output, info in inferred.items() if info is None} <= OF_THE_DATA
        for output, info in inferred.items():
            came = arrays[output]
            if info is not None:
                assert (info.dtype, info.shape) == (came.dtype, came.shape), f"{case}: {output}"
                assert info.has_nan >= came.has_nan, f"{case}: {output} holds a NaN"
                assert info.has_inf >= came.has_inf, f"{case}: {output} holds an infinity"


def test_one_series_beside_many_assets_has_their_shape() -> None:
    operation = OPERATIONS["obv"]
    given = {"close": ArrayInfo("float32", (3, 40)), "volume": ArrayInfo("float32", (40,))}
    [info] = operation.infer(operation.validate({}, given), given).values()
    assert info == ArrayInfo("float32", (3, 40), has_nan=True, has_inf=True)


def test_the_data_decide_the_length_of_few_outputs_alone() -> None:
    operation = OPERATIONS["bars"]
    infos = {name: ArrayInfo(given["dtype"], (10,)) for name, given in operation.example.inputs.items()}
    assert set(operation.infer(operation.validate(operation.example.params, infos), infos).values()) == {None}


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_array_of_an_operation_has_names_of_its_axes(name: str) -> None:
    computation = CATALOGUE[name]
    for given in computation.inputs:
        # Of `lower`, `diagonal`, `upper` and `rhs` the shapes together tell which are complex.
        if not name.startswith("tridiagonal"):
            ranks = [len(axes.split()) for axes in given.axes]
            assert ranks == list(given.ranks) or given.axes[0].startswith(REST), f"{name}: {given.name}"
    for output in computation.outputs:
        assert bool(output.axes) == (output.kind == "array"), f"{name}: {output.name}"
