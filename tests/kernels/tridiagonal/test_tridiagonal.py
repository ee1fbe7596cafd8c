"""Solutions, inverse diagonals and determinants are LAPACK's, NumPy's and closed forms', and certificates hold."""

import math
from typing import Any

import mpmath
import numba
import numpy as np
import numpy.typing as npt
import pytest
from scipy import linalg
from scipy.linalg import lapack

from tests.kernels.parity import Case
from tests.kernels.tridiagonal.cases import Arrays, systems, troubled, without_rhs
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.kernels.progress import telling
from warpdesk_server.kernels.tridiagonal import spec

Array = npt.NDArray[Any]
SIZES = (1, 2, 31, 32, 33, 1023, 1024, 1025, 16_384)


def solve(found: Arrays, **params: float) -> dict[str, Array]:
    return Case("tridiagonal_solve", params, lambda: found).run()


def inverse_diagonal(found: Arrays, **params: float) -> dict[str, Array]:
    return Case("tridiagonal_inverse_diagonal", params, lambda: without_rhs(found)).run()


def number(array: Array, parts: int) -> Array:
    return array[..., 0] + 1j * array[..., 1] if parts == 2 else array


def dense(found: Arrays, parts: int = 1, shift: complex = 0.0) -> Array:
    """The matrices T - z I, (systems, rows, rows)."""
    lower, diagonal, upper = (number(found[name].astype(float), parts) for name in ("lower", "diagonal", "upper"))
    rows = diagonal.shape[-1]
    matrices = np.zeros((*diagonal.shape, rows), complex if parts == 2 or shift.imag else float)
    at = np.arange(rows)
    matrices[..., at, at] = diagonal - (shift if shift.imag else shift.real)
    matrices[..., at[1:], at[:-1]], matrices[..., at[:-1], at[1:]] = lower, upper
    return matrices


def second_differences(rows: int) -> Arrays:
    return {"lower": np.full(rows - 1, -1.0), "diagonal": np.full(rows, 2.0), "upper": np.full(rows - 1, -1.0)}


@pytest.mark.parametrize("rows", SIZES)
def test_second_differences_have_the_closed_forms_of_usmani(rows: int) -> None:
    """Usmani (1994): of tridiag(-1, 2, -1) the inverse has i (n + 1 - i) / (n + 1) on its diagonal, and n + 1 is the
    determinant."""
    i = np.arange(1.0, rows + 1)
    found = inverse_diagonal(second_differences(rows))
    assert np.allclose(found["inverse_diagonal"], i * (rows + 1 - i) / (rows + 1), rtol=1e-13 * max(1, rows / 100))
    assert found["log_determinant"] == pytest.approx([math.log(rows + 1)], rel=1e-12)
    assert found["sign"] == [1.0]
    assert found["dominant"] == [1]


def test_second_differences_of_nine_rows_have_their_published_inverse() -> None:
    found = inverse_diagonal(second_differences(9))["inverse_diagonal"]
    assert np.allclose(found, [0.9, 1.6, 2.1, 2.4, 2.5, 2.4, 2.1, 1.6, 0.9], rtol=1e-15, atol=0)


@pytest.mark.parametrize("rows", SIZES)
def test_solutions_are_those_of_scipy(rows: int) -> None:
    found = systems(3, rows, own=4.0)
    band = np.zeros((3, 3, rows))
    band[:, 0, 1:], band[:, 1], band[:, 2, :-1] = found["upper"], found["diagonal"], found["lower"]
    expected = [linalg.solve_banded((1, 1), band[k], found["rhs"][k]) for k in range(3)]
    answer = solve(found)
    # Both have backward errors of some roundings, and these matrices condition numbers below 1,000.
    assert np.allclose(answer["solution"], expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())
    assert answer["backward_error"].max() < 1e-15
    assert not answer["status"].any()


@pytest.mark.parametrize("rhs_parts", [1, 2])
@pytest.mark.parametrize("parts", [1, 2])
def test_complex_solutions_are_those_of_lapack(parts: int, rhs_parts: int) -> None:
    found, shift = systems(11, 60, parts=parts, rhs_parts=rhs_parts, own=1.0), 0.3 - 0.7j
    answer = solve(found, shift=shift.real, shift_imaginary=shift.imag)
    lower, diagonal, upper = (number(found[name], parts) for name in ("lower", "diagonal", "upper"))
    for k in range(11):
        rhs = number(found["rhs"], rhs_parts)[k]
        *_, expected, info = lapack.zgtsv(lower[k], diagonal[k] - shift, upper[k], rhs)
        assert info == 0
        assert np.allclose(number(answer["solution"], 2)[k], expected, rtol=0, atol=1e-11 * np.abs(expected).max())


@pytest.mark.parametrize("shift", [0.0, -0.5, 0.25 + 0.01j])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("rows", [1, 2, 33, 100])
def test_inverse_diagonals_and_determinants_are_those_of_dense_matrices(rows: int, parts: int, shift: complex) -> None:
    found = systems(9, rows, parts=parts, own=0.0)
    matrices, complex_parts = dense(found, parts, shift), 2 if shift.imag else parts
    answer = inverse_diagonal(found, shift=shift.real, shift_imaginary=shift.imag)
    expected = np.diagonal(np.linalg.inv(matrices), axis1=1, axis2=2)
    distance = np.abs(number(answer["inverse_diagonal"], complex_parts) / expected - 1).max(axis=1)
    # The dense inverse has the error of a condition number.
    assert (distance <= 1e-15 * rows * np.linalg.cond(matrices)).all()
    sign, logarithm = np.linalg.slogdet(matrices)
    assert np.allclose(answer["log_determinant"], logarithm, rtol=1e-10, atol=1e-10)
    assert np.allclose(number(answer["sign"], complex_parts), sign, rtol=0, atol=1e-10)
    assert solve(found, shift=shift.real, shift_imaginary=shift.imag)["sign"].shape == answer["sign"].shape


def test_determinants_beyond_float64_have_logarithms() -> None:
    """The recurrences of minors (theta, phi) overflow here; ratios of them do not."""
    found = systems(2, 500, own=50.0)
    matrices = dense(found)
    expected = np.linalg.slogdet(matrices)[1]
    assert expected.min() > 1_900  # e^709 is the end of float64
    assert np.allclose(inverse_diagonal(found)["log_determinant"], expected, rtol=1e-14)
    small = {name: array * 2.0**-40 for name, array in found.items()}
    assert np.allclose(solve(small)["log_determinant"], expected - 500 * 40 * math.log(2), rtol=1e-14)


def exact(found: Arrays, shift: complex) -> tuple[list[Any], list[Any]]:
    """The solution and the inverse diagonal of one real system in 60 digits."""
    with mpmath.workdps(60):
        matrix = mpmath.matrix(dense(found).tolist())
        rows = matrix.rows
        for i in range(rows):
            matrix[i, i] -= mpmath.mpc(shift)
        inverse = mpmath.inverse(matrix)
        solution = inverse * mpmath.matrix(found["rhs"].tolist())
        return list(solution), [inverse[i, i] for i in range(rows)]


def error_of(found: Array, expected: list[Any], shift: complex, *, of_each: bool) -> float:
    """The largest relative error, of each number or beside the largest."""
    values = number(found, 2 if shift.imag else 1)
    with mpmath.workdps(60):
        distances = [abs(mpmath.mpmathify(value.item()) - one) for value, one in zip(values, expected, strict=True)]
        scale = max(abs(one) for one in expected)
        return float(max(d / (abs(one) if of_each else scale) for d, one in zip(distances, expected, strict=True)))


@pytest.mark.parametrize("shift", [0.0, 0.2 + 0.05j])
def test_the_error_bound_of_an_inverse_diagonal_holds_and_is_not_far_off(shift: complex) -> None:
    factors = []
    for seed in range(25):
        found = systems(1, 14, seed=seed, own=0.0)
        answer = inverse_diagonal(found, shift=shift.real, shift_imaginary=shift.imag)
        error = error_of(answer["inverse_diagonal"], exact(found, shift)[1], shift, of_each=True)
        assert error <= answer["error_bound"][0]
        factors.append(answer["error_bound"][0] / error)
    assert np.median(factors) < 1_000


def with_small_pivot(ratio: float, row: int = 5) -> Arrays:
    """A system whose pivot of a row is so small a part of its diagonal number."""
    found = systems(1, 12, own=0.0)
    u = found["diagonal"][0]
    for i in range(1, row + 1):
        taken = found["lower"][i - 1] * found["upper"][i - 1] / u
        if i == row:
            found["diagonal"][i] = taken * (1 + ratio)
        u = found["diagonal"][i] - taken
    return found


@pytest.mark.parametrize("ratio", [1e-7, 1e-9, 1e-11])
@pytest.mark.parametrize("shift", [0.0, 1e-13j])
def test_a_system_without_a_certificate_is_repeated_in_twice_the_precision(ratio: float, shift: complex) -> None:
    found = with_small_pivot(ratio)
    params = {"shift": shift.real, "shift_imaginary": shift.imag}
    solved, inverted = solve(found, **params), inverse_diagonal(found, **params)
    solution, diagonal = exact(found, shift)
    assert solved["status"] == inverted["status"] == [spec.REPEATED]
    assert error_of(solved["solution"], solution, shift, of_each=False) < 2e-16
    assert error_of(inverted["inverse_diagonal"], diagonal, shift, of_each=True) < 4e-16
    assert inverted["error_bound"] < 1e-15
    assert solved["backward_error"] < 1e-16
    expected = np.linalg.slogdet(dense(found, shift=shift))[1]
    assert solved["log_determinant"] == pytest.approx(expected, rel=1e-9)
    assert inverted["log_determinant"] == solved["log_determinant"]


def test_a_pivot_that_lost_twelve_digits_is_refused_by_its_row() -> None:
    for answer in (solve(with_small_pivot(1e-13)), inverse_diagonal(with_small_pivot(1e-13))):
        assert (answer["status"], answer["row"]) == ([spec.PIVOT], [5])
        assert all(np.isnan(answer[name]).all() for name in ("log_determinant", "sign", "smallest_pivot"))


def test_troubled_systems_are_named_with_their_rows_and_the_others_are_as_without_them() -> None:
    found, healthy = troubled(), np.setdiff1d(np.arange(37), [3, 4, 5, 6, 7])
    for run, name in ((solve, "solution"), (inverse_diagonal, "inverse_diagonal")):
        answer = run(found)
        assert answer["status"][3:8].tolist() == [spec.NOT_FINITE, spec.PIVOT, spec.PIVOT, spec.REPEATED, 3]
        assert answer["row"][3:8].tolist() == [5, 0, 1, -1, 2]
        assert np.isnan(answer[name][[3, 4, 5, 7]]).all()
        alone = run({key: array[healthy] for key, array in found.items()})
        for key, array in alone.items():
            assert array.tobytes() == answer[key][healthy].tobytes(), key
        assert not alone["status"].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("name", "at", "row"), [("lower", 3, 4), ("diagonal", 3, 3), ("upper", 3, 3), ("rhs", 6, 6)])
def test_a_number_that_is_not_finite_is_named_by_its_row(name: str, at: int, row: int, value: float) -> None:
    for parts in (1, 2):
        found = systems(2, 7, parts=parts, rhs_parts=parts)
        found[name][1, at, ...] = value
        answer = solve(found)
        assert answer["status"].tolist() == [0, spec.NOT_FINITE]
        assert answer["row"].tolist() == [-1, row]


def test_numbers_that_overflow_on_the_way_are_never_certified() -> None:
    with np.errstate(over="ignore"):
        found = {"lower": [1e200], "diagonal": [1.0, 1.0], "upper": [1e200], "rhs": [1.0, 1.0]}
        answer = solve({name: np.array(array) for name, array in found.items()})
    assert answer["status"] == [spec.PIVOT]
    found |= {"lower": [0.0], "upper": [0.0], "diagonal": [1e-100, 1.0], "rhs": [1e300, 1.0]}
    answer = solve({name: np.array(array) for name, array in found.items()})
    assert answer["status"] == [spec.UNCERTIFIED]
    assert np.isnan(answer["solution"]).all()


def test_dominance_is_by_rows_and_of_the_shifted_matrix() -> None:
    found = second_differences(5)
    assert inverse_diagonal(found)["dominant"] == [1]
    assert inverse_diagonal(found, shift=0.01)["dominant"] == [0]
    assert inverse_diagonal(found, shift=-0.01)["dominant"] == [1]
    pair = {name: np.stack([array, 0 * array], axis=-1) for name, array in found.items()}
    pair["diagonal"][2] = [1.2, 1.6000001]
    assert inverse_diagonal(pair)["dominant"] == [1]
    pair["diagonal"][2] = [1.2, 1.5999999]
    assert inverse_diagonal(pair)["dominant"] == [0]


def test_the_smallest_pivot_is_that_of_the_elimination() -> None:
    # The pivots of second differences are (i + 1) / i, so the last is the smallest: beside 2, (n + 1) / (2 n).
    assert solve({**second_differences(40), "rhs": np.ones(40)})["smallest_pivot"] == pytest.approx([41 / 80], 1e-14)


def test_float32_systems_have_ratios_in_float64() -> None:
    """Of 100 random systems in float32 the answer is that in float64 of the same numbers, rounded once."""
    for parts in (1, 2):
        found = systems(100, 64, "float32", parts, parts, own=0.5)
        wide = {name: array.astype(np.float64) for name, array in found.items()}
        shift = {"shift": 0.1, "shift_imaginary": 0.05 * (parts - 1)}
        for run, name in ((solve, "solution"), (inverse_diagonal, "inverse_diagonal")):
            narrow, full = run(found, **shift), run(wide, **shift)
            assert not (full["status"] > spec.REPEATED).any()
            assert narrow[name].dtype == np.float32
            expected = full[name].astype(np.float32)
            expected[np.abs(expected) < spec.LEAST_FLOAT32] = 0.0
            assert np.array_equal(narrow[name], expected)
            matrices = dense(found, parts, complex(shift["shift"], shift["shift_imaginary"]))
            inverse = np.linalg.inv(matrices)
            right = (
                (inverse @ number(found["rhs"].astype(float), parts)[..., None])[..., 0]
                if run is solve
                else np.diagonal(inverse, axis1=1, axis2=2)
            )
            error = np.abs(number(narrow[name].astype(float), parts) - right).max(axis=1)
            assert (error < 1e-4 * np.abs(right).max(axis=1)).all()


def test_solutions_that_fade_below_float32_are_zero() -> None:
    rows = 60
    found = {"lower": np.full(rows - 1, -1.0), "diagonal": np.full(rows, 8.0), "upper": np.full(rows - 1, -1.0)}
    found = {**found, "rhs": np.eye(1, rows)[0]}
    full = solve(found)["solution"]
    answer = solve({name: array.astype(np.float32) for name, array in found.items()})["solution"]
    assert ((answer == 0) == (full < spec.LEAST_FLOAT32)).all()
    assert 0 < (answer == 0).sum() < rows


def test_a_green_function_is_bounded_by_its_distance_from_the_real_axis() -> None:
    """|((T - z)^-1)_ii| <= 1 / |Im z| for a symmetric T, and its sum over energies counts states."""
    found = systems(4, 60, own=0.0)
    found["upper"] = found["lower"]
    answer = inverse_diagonal(found, shift=0.1, shift_imaginary=1e-3)
    values = number(answer["inverse_diagonal"], 2)
    assert np.abs(values).max() <= 1 / 1e-3 * (1 + 1e-12)
    assert (values.imag > 0).all()
    eigenvalues = np.linalg.eigvalsh(dense(found))
    assert np.allclose(values.sum(axis=1), (1 / (eigenvalues - 0.1 - 1e-3j)).sum(axis=1), rtol=1e-9)


def test_a_local_level_smoother_has_the_variances_of_the_kalman_smoother() -> None:
    """Durbin and Koopman (2012), section 2.4: y = level + noise, and the level a random walk. The posterior precision
    is tridiagonal, its inverse has the smoothed variances, and its determinant the likelihood."""
    noise, step, first, bars = 1.5, 0.2, 10.0, 200
    observed = np.cumsum(np.random.default_rng(4).normal(0, 0.4, bars))
    mean, variance = np.empty(bars), np.empty(bars)
    m, p = 0.0, first
    predicted, likelihood = np.empty(bars), 0.0
    for t in range(bars):
        predicted[t] = p
        total = p + noise
        likelihood -= 0.5 * (math.log(2 * math.pi * total) + (observed[t] - m) ** 2 / total)
        gain = p / total
        m, p = m + gain * (observed[t] - m), p * (1 - gain)
        mean[t], variance[t] = m, p
        p += step
    for t in range(bars - 2, -1, -1):
        back = variance[t] / predicted[t + 1]
        mean[t] += back * (mean[t + 1] - mean[t])
        variance[t] += back * back * (variance[t + 1] - predicted[t + 1])

    diagonal = np.full(bars, 1 / noise + 2 / step)
    diagonal[0], diagonal[-1] = 1 / noise + 1 / first + 1 / step, 1 / noise + 1 / step
    beside = np.full(bars - 1, -1 / step)
    precision = {"lower": beside, "diagonal": diagonal, "upper": beside}
    smoothed = solve({**precision, "rhs": observed / noise})
    assert np.allclose(smoothed["solution"], mean, rtol=0, atol=1e-12)
    assert np.allclose(inverse_diagonal(precision)["inverse_diagonal"], variance, rtol=1e-12)
    determinant = smoothed["log_determinant"][0] + bars * math.log(noise) + (bars - 1) * math.log(step)
    squares = observed @ observed / noise - observed @ smoothed["solution"] / noise
    assert -0.5 * (determinant + math.log(first) + squares + bars * math.log(2 * math.pi)) == pytest.approx(
        likelihood, rel=1e-12
    )


def test_one_system_is_that_of_a_batch_of_one_and_a_real_one_that_of_a_complex_one() -> None:
    found = systems(1, 50)
    for run, name in ((solve, "solution"), (inverse_diagonal, "inverse_diagonal")):
        single, batch = run(found, shift=0.5), run({key: array[None] for key, array in found.items()}, shift=0.5)
        assert batch[name].shape == (1, 50)
        assert all(single[key].tobytes() == batch[key].tobytes() for key in single)
        pair = run({key: np.stack([array, 0 * array], axis=-1) for key, array in found.items()}, shift=0.5)
        assert np.allclose(pair[name], np.stack([single[name], 0 * single[name]], axis=-1), rtol=1e-12)
        assert np.allclose(pair["sign"], [[single["sign"][0], 0.0]])


def test_a_shift_is_taken_from_the_diagonal() -> None:
    found = systems(5, 20)
    moved = {**found, "diagonal": found["diagonal"] - 0.75}
    for run in (solve, inverse_diagonal):
        one, other = run(found, shift=0.75), run(moved)
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("threads", [1, 2])
def test_no_answer_depends_on_the_number_of_threads(threads: int) -> None:
    found = systems(400, 60)
    expected = solve(found)
    most = numba.get_num_threads()
    numba.set_num_threads(min(threads, most))
    try:
        got = solve(found)
    finally:
        numba.set_num_threads(most)
    assert all(got[name].tobytes() == expected[name].tobytes() for name in expected)


@pytest.mark.parametrize(
    ("shapes", "pointer", "words"),
    [
        ({"lower": (5, 4), "diagonal": (5, 4), "upper": (5, 3)}, "/inputs/lower", "lower needs [5, 3]"),
        ({"lower": (3,), "diagonal": (4,), "upper": (4,)}, "/inputs/upper", "shape [4], and diagonal has shape [4]"),
        ({"lower": (4, 2), "diagonal": (5, 2), "upper": (4,)}, "/inputs/upper", "upper needs [4, 2]"),
        ({"lower": (2, 3, 3), "diagonal": (2, 3, 4), "upper": (2, 3, 3)}, "/inputs/diagonal", "a last axis of two"),
        (
            {"lower": (16_384,), "diagonal": (16_385,), "upper": (16_384,)},
            "/inputs/diagonal",
            "16,385 rows of a system, the most are 16,384",
        ),
    ],
)
def test_systems_that_do_not_fit_together_are_refused(
    shapes: dict[str, tuple[int, ...]], pointer: str, words: str
) -> None:
    infos = {name: ArrayInfo("float64", shape) for name, shape in shapes.items()}
    with pytest.raises(InvalidRequest) as refusal:
        OPERATIONS["tridiagonal_inverse_diagonal"].validate({}, infos)
    (problem,) = refusal.value.problems
    assert problem.pointer == pointer
    assert words in problem.detail


def test_a_right_hand_side_of_another_shape_or_dtype_is_refused() -> None:
    infos = {name: ArrayInfo("float64", (7,)) for name in ("lower", "upper")} | {"diagonal": ArrayInfo("float64", (8,))}
    for info, words in (
        (ArrayInfo("float64", (8, 3)), "rhs needs [8] or [8, 2]"),
        (ArrayInfo("float32", (8,)), "dtype float32, and diagonal has float64"),
    ):
        with pytest.raises(InvalidRequest, match=words.replace("[", r"\[")):
            OPERATIONS["tridiagonal_solve"].validate({}, {**infos, "rhs": info})
    OPERATIONS["tridiagonal_solve"].validate({}, {**infos, "rhs": ArrayInfo("float64", (8, 2))})


@pytest.mark.parametrize("exponent", [-400, -530, -565, -600, -900])
def test_small_complex_systems_have_the_certificates_of_large_ones(exponent: int) -> None:
    """A power of two changes no digit. The second pivot loses nine, so that all are repeated."""
    scale = 2.0**exponent
    found = {
        "lower": np.array([[1.0, 0.0], [-1.7, 0.0]]),
        "diagonal": np.array([[1.0, 0.0], [1.0 + 2.0**-30, 0.0], [2.3, 0.0]]),
        "upper": np.array([[1.0, 0.0], [-0.9, 0.0]]),
        "rhs": np.array([[1.0, 0.2], [0.7, 0.1], [0.3, 0.4]]),
    }
    full, answer = solve(found), solve({**found, "rhs": found["rhs"] * scale})
    assert answer["status"] == full["status"] == [spec.REPEATED]
    assert (answer["solution"] / scale).tobytes() == full["solution"].tobytes()
    assert answer["backward_error"] == pytest.approx(full["backward_error"], rel=1e-12)
    assert (answer["residual"] / scale).tobytes() == full["residual"].tobytes()


@pytest.mark.parametrize("parts", [1, 2])
def test_a_complex_backward_error_is_from_once_to_twice_that_of_rigal_and_gaches(parts: int) -> None:
    found = systems(20, 6, parts=parts, rhs_parts=parts)
    answer = solve(found)
    matrices, rhs, x = dense(found, parts), number(found["rhs"], parts), number(answer["solution"], parts)
    with mpmath.workdps(40):
        systems_of_digits = (map(mpmath.matrix, each.tolist()) for each in (matrices, x, rhs))
        left = [b - a * y for a, y, b in zip(*systems_of_digits, strict=True)]
        worst = np.array([float(max(abs(one) for one in rows)) for rows in left])
    exact_error = worst / (np.abs(matrices).sum(axis=2).max(axis=1) * np.abs(x).max(axis=1) + np.abs(rhs).max(axis=1))
    # The residual is computed in float64: some roundings of its terms.
    assert (answer["backward_error"] <= 2 * exact_error + 1e-15).all()
    assert (answer["backward_error"] >= exact_error - 1e-15).all()


@pytest.mark.parametrize("small", [2.0**-1010, 1e-320])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_residual_of_numbers_that_underflow_certifies_nothing(parts: int, small: float) -> None:
    found = systems(2, 6, parts=parts, rhs_parts=parts)
    found["rhs"][0] *= small
    answer = solve(found)
    assert answer["status"].tolist() == [spec.UNCERTIFIED, spec.OK]
    assert np.isnan(answer["solution"][0]).all()
    found["rhs"][0] = 0.0
    answer = solve(found)
    assert answer["status"].tolist() == [spec.OK, spec.OK]
    assert not answer["solution"][0].any()


def test_a_matrix_whose_norm_overflows_certifies_nothing() -> None:
    found = {"lower": [0.0], "diagonal": [1e150, 1.0], "upper": [1e308], "rhs": [1.0, 1e-3]}
    assert solve({name: np.array(array) for name, array in found.items()})["status"] == [spec.UNCERTIFIED]


def test_answers_beyond_float32_are_not_certified() -> None:
    """1e40 and 1e45 are the answers, good in float64; the systems beside them keep theirs."""
    none = np.zeros((2, 1), np.float32)
    found = {"lower": none, "diagonal": np.array([[1e-20, 1.0], [1.0, 1.0]], np.float32), "upper": none}
    answer = solve({**found, "rhs": np.array([[1e20, 1.0], [3.0, 1.0]], np.float32)})
    assert answer["status"].tolist() == [spec.UNCERTIFIED, spec.OK]
    assert np.isnan(answer["solution"][0]).all()
    assert answer["solution"][1].tolist() == [3.0, 1.0]
    found["diagonal"][0, 0] = 1e-40
    answer = inverse_diagonal(found)
    assert answer["status"].tolist() == [spec.UNCERTIFIED, spec.OK]
    assert np.isnan(answer["inverse_diagonal"][0]).all()


def test_repetitions_tell_their_progress() -> None:
    one = without_rhs(with_small_pivot(1e-9))
    found = {name: np.stack([array] * 64) for name, array in one.items()}
    parts: list[float] = []
    threads = numba.get_num_threads()
    numba.set_num_threads(1)  # else the other thread may do all, which tells nothing
    try:
        with telling(parts.append):
            answer = inverse_diagonal(found)
    finally:
        numba.set_num_threads(threads)
    assert (answer["status"] == spec.REPEATED).all()
    assert sum(0.5 < done < 1.0 for done in parts) > 3
    assert parts[-1] == 1.0
