"""matmul on the CPU: published products, the rounding bound, algebra, edges of tiles, and what is refused."""

import math
import platform
import tracemalloc
from fractions import Fraction

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.processors import printed
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.matmul import cpu
from warpdesk_server.kernels.matmul.spec import OPERATION, MatmulParams
from warpdesk_server.kernels.problems import InvalidRequest

KERNEL = MatmulParams(algorithm="kernel")
LIBRARY = MatmulParams(algorithm="library")

algorithms = pytest.mark.parametrize("params", [KERNEL, LIBRARY], ids=["kernel", "library"])
dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def product(params, a, b):
    return cpu.matmul(params, np.asarray(a), np.asarray(b))["product"]


def normal(seed, *shape, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# Published: products of small integers, exact in both dtypes.


@algorithms
@dtypes
def test_wilsons_matrix_times_its_published_inverse_is_the_identity(params, dtype):
    # T. S. Wilson's matrix and inverse, as in J. Morris, Phil. Mag. 37 (1946).
    W = np.array([[5, 7, 6, 5], [7, 10, 8, 7], [6, 8, 10, 9], [5, 7, 9, 10]], dtype)
    inverse = np.array([[68, -41, -17, 10], [-41, 25, 10, -6], [-17, 10, 5, -3], [10, -6, -3, 2]], dtype)

    assert np.array_equal(product(params, W, inverse), np.eye(4))
    assert product(params, W, inverse).dtype == dtype


@algorithms
def test_pascals_triangle_times_its_transpose_is_pascals_square(params):
    # Sum over p of C(i, p) C(j, p) = C(i + j, i), Vandermonde's identity; up to C(50, 25), all below 2^53.
    L = np.array([[math.comb(i, j) for j in range(26)] for i in range(26)], np.float64)
    square = np.array([[math.comb(i + j, i) for j in range(26)] for i in range(26)], np.float64)

    assert np.array_equal(product(params, L, np.ascontiguousarray(L.T)), square)


@algorithms
def test_powers_of_the_fibonacci_matrix_hold_fibonacci_numbers(params):
    Q = power = np.array([[1.0, 1.0], [1.0, 0.0]])
    for _ in range(69):
        power = product(params, power, Q)

    assert power.tolist() == [[308061521170129.0, 190392490709135.0], [190392490709135.0, 117669030460994.0]]  # A000045


# The rounding bound: |product - a b| <= k u / (1 - k u) |a| |b| for any order of summation (Higham, Accuracy and
# Stability of Numerical Algorithms, 2nd ed., eq. 3.13), against a product in extended precision.


@algorithms
@dtypes
@given(
    m=st.integers(1, 70),
    k=st.integers(1, 300),
    n=st.integers(1, 70),
    scale=st.integers(-20, 20),
    seed=st.integers(0, 999),
)
@settings(max_examples=25, deadline=None)
def test_the_error_stays_within_the_rounding_bound(params, dtype, m, k, n, scale, seed):
    a, b = normal(seed, m, k, dtype=dtype) * dtype(2.0**scale), normal(seed + 1, k, n, dtype=dtype)

    error = np.abs(product(params, a, b) - a.astype(np.longdouble) @ b.astype(np.longdouble))

    ku = k * np.finfo(dtype).eps / 2
    assert np.all(error <= ku / (1 - ku) * (np.abs(a).astype(np.longdouble) @ np.abs(b).astype(np.longdouble)))


# The order and the rounding of the kernel: fma from the first term to the last, computed here in exact fractions.


def nearest(exact, dtype):
    """The number of the dtype nearest to a fraction, ties to even; none of these overflows or is subnormal."""
    if exact == 0:
        return dtype(0)
    digits = np.finfo(dtype).nmant + 1
    exponent = math.frexp(float(abs(exact)))[1] - digits
    last = Fraction(2) ** exponent
    return dtype(math.ldexp(round(exact / last), exponent))  # round() of a fraction goes to even


@dtypes
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 300, 5), (9, 257, 50)])
def test_the_kernel_adds_each_exact_product_in_increasing_order_and_rounds_once(dtype, m, k, n):
    a, b = normal(1, m, k, dtype=dtype), normal(2, k, n, dtype=dtype)

    got = product(KERNEL, a, b)

    for i, j in {(0, 0), (m - 1, n - 1), (m // 2, n // 3)}:
        total = dtype(0)
        for p in range(k):
            total = nearest(Fraction(float(a[i, p])) * Fraction(float(b[p, j])) + Fraction(float(total)), dtype)
        assert got[i, j] == total


def test_products_that_would_round_away_are_not_lost_before_they_are_added():
    # (1 + u)(1 - u) = 1 - u^2 rounds to 1 by itself, and to nothing beside a -1 that came before it.
    u = 2.0**-30
    a, b = np.array([[-1.0, 1 + u]]), np.array([[1.0], [1 - u]])

    assert product(KERNEL, a, b).tolist() == [[-(2.0**-60)]]


_ON_ANOTHER_PROCESSOR = """
import hashlib
import numpy as np
from warpdesk_server.kernels.matmul import cpu
from warpdesk_server.kernels.matmul.spec import MatmulParams

digest = hashlib.sha256()
for dtype in ("float32", "float64"):
    for m, k, n in ((1, 1, 1), (7, 30, 50), (20, 257, 49)):
        random = np.random.default_rng(m)
        a, b = (random.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
        digest.update(cpu.matmul(MatmulParams(algorithm="kernel"), a, b)["product"].tobytes())
print(digest.hexdigest())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have other names")
@pytest.mark.timeout(300)
def test_a_processor_without_fma_or_wide_registers_gives_the_same_bytes():
    plain = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse2"}
    assert printed(_ON_ANOTHER_PROCESSOR, **plain) == printed(_ON_ANOTHER_PROCESSOR) != ""


# Sizes at the edges of the kernel's tiles, of its blocks of registers (8 x 48 and 8 x 24, or 6 x 16 and 6 x 8), and of
# matmul.cu's (32, 64, 128; 8 and 16).


@dtypes
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 23, 24, 25, 47, 49, 127, 128, 129, 256, 257, 481, 961])
def test_edges_of_tiles_do_not_show(dtype, length):
    for shape in ((length, 5, 7), (5, length, 7), (5, 7, length)):
        a, b = normal(length, *shape[:2], dtype=dtype), normal(length, *shape[1:], dtype=dtype)

        atol = (200 + length) * np.finfo(dtype).eps  # the library sums in another order
        assert np.allclose(product(KERNEL, a, b), product(LIBRARY, a, b), rtol=0, atol=atol)


@algorithms
@dtypes
@pytest.mark.parametrize("n", [1, 31, 32, 33, 127, 129])
def test_the_identity_changes_nothing(params, dtype, n):
    a = normal(n, n, n, dtype=dtype)

    assert np.array_equal(product(params, a, np.eye(n, dtype=dtype)), a)
    assert np.array_equal(product(params, np.eye(n, dtype=dtype), a), a)


# Algebra that holds to the last bit in the kernel, because its order depends on neither shape nor device.


@given(m=st.integers(1, 80), k=st.integers(1, 80), n=st.integers(1, 300), seed=st.integers(0, 999))
@settings(max_examples=25, deadline=None)
def test_the_kernels_transpose_is_the_product_of_transposes(m, k, n, seed):
    a, b = normal(seed, m, k), normal(seed + 1, k, n)

    swapped = product(KERNEL, np.ascontiguousarray(b.T), np.ascontiguousarray(a.T))

    assert np.array_equal(product(KERNEL, a, b), swapped.T)


@given(m=st.integers(2, 80), n=st.integers(2, 300), data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_part_of_the_kernels_product_is_the_product_of_parts(m, n, data):
    rows, columns = data.draw(st.integers(1, m - 1)), data.draw(st.integers(1, n - 1))
    a, b = normal(m, m, 40), normal(n, 40, n)

    part = product(KERNEL, a[rows:], np.ascontiguousarray(b[:, columns:]))

    assert np.array_equal(product(KERNEL, a, b)[rows:, columns:], part)


@algorithms
@given(power=st.integers(-100, 100), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_scaling_by_a_power_of_two_commutes(params, power, seed):
    a, b = normal(seed, 20, 30), normal(seed + 1, 30, 10)

    assert np.array_equal(product(params, a * 2.0**power, b), product(params, a, b) * 2.0**power)


def test_the_kernel_gives_the_same_bytes_on_one_thread_and_on_all():
    a, b = normal(1, 130, 300), normal(2, 300, 600)
    on_all = product(KERNEL, a, b)

    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        on_one = product(KERNEL, a, b)
    finally:
        numba.set_num_threads(threads)

    assert on_one.tobytes() == on_all.tobytes()


# Batches.


@algorithms
@dtypes
def test_a_batch_is_its_products_one_by_one(params, dtype):
    a, b = normal(1, 5, 33, 17, dtype=dtype), normal(2, 5, 17, 9, dtype=dtype)

    together = product(params, a, b)

    assert together.shape == (5, 33, 9)
    assert np.array_equal(together, [product(params, a[z], b[z]) for z in range(5)])


@dtypes
def test_one_factor_serves_a_whole_batch(dtype):
    a, b = normal(1, 4, 33, 17, dtype=dtype), normal(2, 4, 17, 9, dtype=dtype)

    assert np.array_equal(product(KERNEL, a, b[0]), [product(KERNEL, a[z], b[0]) for z in range(4)])
    assert np.array_equal(product(KERNEL, a[0], b), [product(KERNEL, a[0], b[z]) for z in range(4)])
    assert np.allclose(product(LIBRARY, a, b[0]), product(KERNEL, a, b[0]), atol=40 * np.finfo(dtype).eps)
    assert np.allclose(product(LIBRARY, a[0], b), product(KERNEL, a[0], b), atol=40 * np.finfo(dtype).eps)


@algorithms
def test_read_only_maps_are_multiplied_where_they_lie(params, tmp_path):
    a, b = normal(1, 20, 30), normal(2, 30, 10)
    for name, array in (("a", a), ("b", b)):
        np.save(tmp_path / name, array)

    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("a", "b")]
    answer = cpu.matmul(params, *mapped)["product"]

    assert type(answer) is np.ndarray
    assert np.array_equal(answer, product(params, a, b))


# What the answer says, and what is refused.


def test_the_answer_says_which_algorithm_ran_and_why():
    a, b = normal(1, 2, 3), normal(2, 3, 2)

    default = cpu.matmul(MatmulParams(), a, b)
    requested = cpu.matmul(KERNEL, a, b)

    assert default["algorithm"] == "library"
    assert default["algorithm_reason"].startswith("default: NumPy's ")
    assert (requested["algorithm"], requested["algorithm_reason"]) == ("kernel", "requested")
    assert (default["precision"], default["relative_error"]) == ("ieee", None)
    assert set(default) == {output.name for output in OPERATION.outputs}


def test_a_sum_over_nothing_is_zero():
    for dtype in (np.float64, np.float32):
        assert product(KERNEL, np.zeros((3, 0), dtype), np.zeros((0, 2), dtype)).tolist() == [[0, 0]] * 3


@pytest.mark.parametrize(("m", "n"), [(0, 4), (5, 0), (0, 0)])
def test_a_product_without_rows_or_columns_is_empty(m, n):
    params = MatmulParams(algorithm="kernel")
    assert cpu.matmul(params, np.ones((m, 3)), np.ones((3, n)))["product"].shape == (m, n)


def test_a_sum_that_rounds_to_minus_zero_stays_so():
    a, b = np.array([[-(2.0**-600)]]), np.array([[2.0**-600]])

    assert math.copysign(1, product(KERNEL, a, b)[0, 0]) == -1


def test_a_product_past_the_largest_float_is_infinite_in_both_algorithms():
    a, b = np.full((1, 2), 1e300), np.full((2, 1), 1e300)

    assert product(KERNEL, a, b).tolist() == product(LIBRARY, a, b).tolist() == [[math.inf]]


def info(*shape, dtype="float64"):
    return ArrayInfo(dtype, shape)


@pytest.mark.parametrize(
    ("params", "a", "b", "sentence"),
    [
        ({}, info(3, 4), info(5, 6), "a has shape [3, 4] and b has shape [5, 6], so a's 4 columns meet b's 5 rows"),
        ({}, info(2, 3, 4), info(3, 4, 6), "batches differ: a has shape [2, 3, 4], 2 matrices"),
        ({}, info(3, 4), info(4, 6, dtype="float32"), "a is float64 and b is float32; give both the same dtype"),
        ({}, info(3, 4, dtype="int64"), info(4, 6), "dtype int64 is not one of float64, float32"),
        ({}, info(4), info(4, 6), "shape [4] has rank 1, expected rank 2 or 3"),
        ({}, info(0, 4), info(4, 6), "the array is empty: its shape is [0, 4]"),
        ({}, ArrayInfo("float64", (3, 4), has_nan=True), info(4, 6), "the array holds a NaN"),
        ({"precision": "bf16"}, info(3, 4), info(4, 6), "bf16 is for float32 inputs"),
        (
            {"precision": "tf32", "algorithm": "kernel"},
            info(3, 4, dtype="float32"),
            info(4, 6, dtype="float32"),
            "the kernel computes ieee only; tf32 needs the library",
        ),
        ({"precision": "fp8"}, info(3, 4), info(4, 6), "/params/precision"),
        ({"tile": 64}, info(3, 4), info(4, 6), "/params/tile"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_a_sentence(params, a, b, sentence):
    with pytest.raises(InvalidRequest) as refusal:
        OPERATION.validate(params, {"a": a, "b": b})

    assert sentence in str(refusal.value)


def test_every_problem_of_a_request_is_named_at_once():
    with pytest.raises(InvalidRequest) as refusal:
        OPERATION.validate({"precision": "fp16"}, {"a": info(2, 3, 4, dtype="float32"), "b": info(3, 5, 6)})

    assert len(refusal.value.problems) == 4  # dtypes differ, one is float64, inner dimensions, batches


def test_the_work_of_a_product_is_its_multiply_adds():
    shapes = {"a": info(5, 100, 200), "b": info(200, 50)}

    assert OPERATION.cost(MatmulParams(), shapes).work == 5 * 100 * 200 * 50


def test_the_cost_counts_factors_product_and_rounded_copies():
    shapes = {"a": info(100, 200, dtype="float32"), "b": info(200, 50, dtype="float32")}

    ieee, bf16 = (OPERATION.cost(MatmulParams(precision=p), shapes).bytes for p in ("ieee", "bf16"))

    assert ieee == 4 * (100 * 200 + 200 * 50 + 100 * 50)
    assert bf16 == ieee + 4 * (100 * 200 + 200 * 50 + 2 * 100 * 200) + (64 << 20)


@pytest.mark.parametrize("precision", ["ieee", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("size", [(16, 3000, 3000), (3000, 3000, 16)])
def test_a_product_takes_no_more_memory_than_its_cost_says(size, precision):
    m, k, n = size
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    params = MatmulParams(precision=precision)
    cost = OPERATION.cost(params, {"a": info(m, k, dtype="float32"), "b": info(k, n, dtype="float32")}).bytes

    tracemalloc.start()
    try:
        cpu.matmul(params, a, b)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert a.nbytes + b.nbytes + peak <= cost + (1 << 20)


def test_the_example_runs_as_shown():
    inputs = {name: np.array(given["data"], given["dtype"]) for name, given in OPERATION.example.inputs.items()}
    infos = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in inputs.items()}

    params = OPERATION.validate(OPERATION.example.params, infos)

    assert cpu.matmul(params, **inputs)["product"].tolist() == [[19.0, 22.0], [43.0, 50.0]]
