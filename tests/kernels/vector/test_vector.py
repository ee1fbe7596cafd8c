"""Sums are accurate and cut as one likes, norms neither overflow nor underflow, NaN and zeros go where they should."""

import math
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.cudasim.device import EmulatedDevice
from tests.kernels.parity import Case, assert_same
from tests.kernels.vector.cases import ELEMENTWISE, REDUCTIONS, TILE, numbers
from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.kernels.vector import spec

Array = npt.NDArray[Any]
SIZES = (1, 2, 31, 32, 33, 1023, 1024, 1025, TILE - 1, TILE, TILE + 1, 5 * TILE + 321)
UNIT = 2.0**-53  # half the distance from 1 to the next float64

finite = st.floats(-1e300, 1e300, allow_subnormal=False)
vectors = hnp.arrays(np.float64, st.integers(1, 60), elements=finite)


def run(operation: str, *arrays: Any, device: Device | None = None, **params: Any) -> Array:
    found: Array = case(operation, *arrays, **params).run(device)[operation]
    return found


def case(operation: str, *arrays: Any, **params: Any) -> Case:
    return Case(operation, params, lambda: {name: np.asarray(array) for name, array in zip("xy", arrays, strict=False)})


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", SIZES)
def test_elementwise_results_are_numpys(n: int, dtype: str) -> None:
    x, y = numbers(n, dtype=dtype), numbers(n, dtype=dtype, seed=1)
    alpha = np.dtype(dtype).type(0.3)
    for operation, params, expected in (
        ("add", {}, x + y),
        ("multiply", {}, x * y),
        ("axpy", {"alpha": 0.3}, alpha * x + y),
    ):
        got = run(operation, x, y, **params)
        assert got.dtype == dtype
        assert got.tobytes() == expected.tobytes(), operation


def test_a_product_and_a_sum_are_rounded_one_after_the_other() -> None:
    one = 1.0 + 2.0**-30
    assert run("axpy", [one], [-1.0 - 2.0**-29], alpha=one)[0] == 0.0  # a fused multiply-add gives 2^-60


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", SIZES)
def test_sums_are_as_exact_as_the_readme_says(n: int, dtype: str) -> None:
    x, y = numbers(n, dtype=dtype), numbers(n, dtype=dtype, seed=1)
    wide, other = x.astype(np.float64), y.astype(np.float64)
    depth = 17 + math.ceil(math.log2(math.ceil(n / TILE)))
    absolute = math.fsum(np.abs(wide))
    assert abs(run("sum", x)[0] - math.fsum(wide)) <= depth * UNIT * absolute
    assert abs(run("norm", x, order="l1")[0] - absolute) <= depth * UNIT * absolute
    products = [float(a) * float(b) for a, b in zip(wide, other, strict=True)]
    assert abs(run("dot", x, y)[0] - math.fsum(products)) <= depth * UNIT * math.fsum(map(abs, products))
    square = math.fsum(a * a for a in wide.tolist())
    assert run("norm", x)[0] == pytest.approx(math.sqrt(square), rel=(depth + 3) * UNIT)


def test_a_sum_of_float32_is_that_of_the_same_numbers_in_float64() -> None:
    x, y = numbers(20_000, dtype="float32"), numbers(20_000, dtype="float32", seed=1)
    wide, other = x.astype(np.float64), y.astype(np.float64)
    for operation, given_, same in (("sum", (x,), (wide,)), ("dot", (x, y), (wide, other)), ("norm", (x,), (wide,))):
        assert run(operation, *given_).tobytes() == run(operation, *same).tobytes()


def test_a_million_tenths_in_float32_are_not_lost() -> None:
    assert run("sum", np.full(1_000_000, 0.1, np.float32))[0] == pytest.approx(1e6 * float(np.float32(0.1)), rel=1e-15)


@pytest.mark.parametrize("exponent", [-1074, -1040, -600, 0, 500, 1018])
def test_the_euclidean_norm_neither_overflows_nor_underflows(exponent: int) -> None:
    x = np.array([3.0, -4.0, 12.0, 0.0]) * 2.0**exponent
    assert run("norm", x)[0] == 13.0 * 2.0**exponent


def test_a_norm_beyond_the_largest_number_is_infinite() -> None:
    assert run("norm", np.full(4, 1.7e308))[0] == np.inf


def test_tiles_of_very_different_size_share_a_norm() -> None:
    x = np.concatenate([np.full(TILE, 3e-200), np.full(TILE, 4e200), np.full(TILE, 5e-320)])
    assert run("norm", x)[0] == pytest.approx(4e200 * math.sqrt(TILE), rel=1e-15)


@given(vectors, st.integers(-20, 20))
@settings(deadline=None)
def test_scaling_by_a_power_of_two_scales_sums_and_norms_exactly(x: Array, exponent: int) -> None:
    x = np.where(np.abs(x) < 1e-250, 0.0, x) * 1e-10
    factor = 2.0**exponent
    for operation, params in (
        ("sum", {}),
        ("norm", {"order": "l1"}),
        ("norm", {"order": "l2"}),
        ("norm", {"order": "linf"}),
    ):
        assert run(operation, x * factor, **params)[0] == run(operation, x, **params)[0] * factor


@given(vectors)
@settings(deadline=None)
def test_norms_bound_each_other(x: Array) -> None:
    x = x / 64
    one, two, largest = (run("norm", x, order=order)[0] for order in ("l1", "l2", "linf"))
    slack = 1 + 1e-14
    assert largest <= two * slack
    assert two <= one * slack
    assert one <= math.sqrt(len(x)) * two * slack


@given(hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(allow_infinity=False)))
@settings(deadline=None)
def test_least_and_greatest_are_numpys_with_minus_zero_before_zero(x: Array) -> None:
    for operation, numpys in (("min", np.min), ("max", np.max)):
        got, expected = run(operation, x)[0], numpys(x)
        assert got == expected or (np.isnan(got) and np.isnan(expected))
    assert np.array_equal(run("norm", x, order="linf"), [np.max(np.abs(x))], equal_nan=True)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("at", [0, 40, TILE + 5])
def test_a_nan_anywhere_is_the_answer_whatever_its_sign(at: int, sign: float, dtype: str) -> None:
    x = numbers(TILE + 6, dtype=dtype)
    x[at] = np.copysign(np.nan, sign)
    for operation, params in REDUCTIONS:
        arrays = (x, np.ones_like(x)) if operation == "dot" else (x,)
        assert np.isnan(run(operation, *arrays, **params)).all(), (operation, params)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_minus_zero_is_less_than_zero(dtype: str) -> None:
    for zeros in ([0.0, -0.0], [-0.0, 0.0]):
        assert np.signbit(run("min", np.array(zeros, dtype))[0])
        assert not np.signbit(run("max", np.array(zeros, dtype))[0])
    assert not np.signbit(run("sum", np.array([-0.0, -0.0], dtype))[0])
    assert np.signbit(run("max", np.array([-0.0], dtype))[0])


@pytest.mark.parametrize(("operation", "params"), REDUCTIONS)
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 1030), (4, TILE + 2)])
def test_the_rows_of_an_array_have_the_answers_of_arrays_of_their_own(
    operation: str, params: dict[str, Any], shape: tuple[int, ...]
) -> None:
    arrays = [numbers(*shape, seed=seed) for seed in range(2 if operation == "dot" else 1)]
    rows = [array.reshape(-1, shape[-1]) for array in arrays]
    got = run(operation, *arrays, axis="last", **params)
    assert got.shape == (shape[:-1] or (1,))
    alone = [run(operation, *(array[i] for array in rows), **params)[0] for i in range(len(rows[0]))]
    assert got.reshape(-1).tobytes() == np.array(alone).tobytes()
    assert run(operation, *arrays, **params).shape == (1,)


@pytest.mark.parametrize("threads", [1, 3])
def test_no_answer_depends_on_the_number_of_threads(threads: int) -> None:
    x = numbers(40 * TILE + 3)
    expected = [run(operation, x, **params) for operation, params in REDUCTIONS if operation != "dot"]
    most = numba.get_num_threads()
    numba.set_num_threads(min(threads, most))
    try:
        got = [run(operation, x, **params) for operation, params in REDUCTIONS if operation != "dot"]
    finally:
        numba.set_num_threads(most)
    assert [one.tobytes() for one in got] == [one.tobytes() for one in expected]


@pytest.mark.parametrize("resident", [1, 2, 100])
@pytest.mark.parametrize(("operation", "params"), [*ELEMENTWISE, *REDUCTIONS])
def test_no_answer_depends_on_how_many_chunks_are_in_memory(
    operation: str, params: dict[str, Any], resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec, "CHUNK", 700)
    two = operation in ("add", "multiply", "axpy", "dot")
    for shape, axis in (((5, 300), "last"), ((3 * TILE + 9,), "all")):
        options = params if operation in ("add", "multiply", "axpy") else {**params, "axis": axis}
        example = case(operation, *(numbers(*shape, seed=seed) for seed in range(1 + two)), **options)
        grid = _grid(example)
        device = EmulatedDevice(memory=grid.fixed + resident * grid.each)
        assert_same(example, example.run(), example.run(device))
        assert len(device.launches) == math.ceil(grid.chunks / resident)


@pytest.mark.parametrize(("operation", "params"), [*ELEMENTWISE, *REDUCTIONS])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_grid_says_what_memory_a_job_takes(operation: str, params: dict[str, Any], dtype: str) -> None:
    two = operation in ("add", "multiply", "axpy", "dot")
    example = case(operation, *(numbers(2 * TILE, dtype=dtype, seed=seed) for seed in range(1 + two)), **params)
    device, grid = EmulatedDevice(), _grid(example)
    example.run(device)
    assert device.memory.peak == grid.fixed + grid.chunks * grid.each


def _grid(example: Case) -> Any:
    operation = OPERATIONS[example.operation]
    infos = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in example.inputs().items()}
    return operation.grid(operation.params.model_validate(dict(example.params), strict=False), infos)


@pytest.mark.parametrize("name", sorted({name for name, _ in (*ELEMENTWISE, *REDUCTIONS)}))
def test_work_grows_with_the_elements_and_with_nothing_else(name: str) -> None:
    operation = OPERATIONS[name]
    params = operation.params(**({"alpha": 2.0} if name == "axpy" else {}))

    def work(dtype: DType, *shape: int) -> float:
        return operation.cost(params, {given.name: ArrayInfo(dtype, shape) for given in operation.inputs}).work

    one_row = work("float64", 1, 9)
    assert one_row > 0
    assert [work("float64", rows, 9) / one_row for rows in (2, 7, 1000)] == [2, 7, 1000]
    assert work("float32", 7, 9) == work("float64", 63) == work("float64", 7, 9)


@pytest.mark.parametrize(
    ("operation", "params", "inputs", "pointer", "words"),
    [
        ("add", {}, {"x": ("float64", (3,)), "y": ("float64", (4,))}, "/inputs/y", "shape [4], and x has shape [3]"),
        ("dot", {}, {"x": ("float64", (3,)), "y": ("float32", (3,))}, "/inputs/y", "dtype float32, and x has float64"),
        ("dot", {}, {"x": ("float64", (3,))}, "/inputs/y", "dot needs the input 'y'"),
        ("sum", {}, {"x": ("int64", (3,))}, "/inputs/x", "dtype int64 is not one of float64, float32"),
        ("sum", {"axis": 0}, {"x": ("float64", (3,))}, "/params/axis", "axis should be 'all' or 'last', got 0"),
        (
            "norm",
            {"order": 3},
            {"x": ("float64", (3,))},
            "/params/order",
            "order should be 'l1', 'l2' or 'linf', got 3",
        ),
        ("max", {}, {"x": ("float64", (0,))}, "/inputs/x", "the array is empty: its shape is [0]"),
        ("min", {}, {"x": ("float64", ())}, "/inputs/x", "shape [] has rank 0"),
        (
            "axpy",
            {"alpha": 1e39},
            {"x": ("float32", (3,)), "y": ("float32", (3,))},
            "/params/alpha",
            "alpha 1e+39 is beyond float32",
        ),
        (
            "axpy",
            {"alpha": "2"},
            {"x": ("float64", (3,)), "y": ("float64", (3,))},
            "/params/alpha",
            'alpha should be a number, got "2"',
        ),
    ],
)
def test_what_cannot_be_computed_is_refused_in_a_sentence(
    operation: str, params: dict[str, Any], inputs: dict[str, Any], pointer: str, words: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        OPERATIONS[operation].validate(params, {name: ArrayInfo(*given_) for name, given_ in inputs.items()})
    [problem] = refused.value.problems
    assert problem.pointer == pointer
    assert words in problem.detail


def test_an_infinity_is_refused_and_a_nan_is_not() -> None:
    OPERATIONS["sum"].validate({}, {"x": ArrayInfo("float64", (3,), has_nan=True)})
    with pytest.raises(InvalidRequest, match="holds an infinity"):
        OPERATIONS["sum"].validate({}, {"x": ArrayInfo("float64", (3,), has_inf=True)})
