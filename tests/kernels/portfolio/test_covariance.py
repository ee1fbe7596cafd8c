"""Covariances are NumPy's, pandas' and Ledoit and Wolf's, and eigenvalues are LAPACK's."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from tests.kernels.parity import Case
from tests.kernels.portfolio.cases import matrices, returns
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.portfolio.spec import COVARIANCE
from warpdesk_server.kernels.portfolio.spectrum import decompose
from warpdesk_server.kernels.problems import InvalidRequest

Array = NDArray[Any]

ROUNDING = 1e-13  # of the greatest number: sums of hundreds of products
ONE_NUMBER = ("shrinkage", "smallest_eigenvalue", "condition_number")  # of each matrix


def run(given: Array, **params: Any) -> dict[str, Any]:
    return Case("covariance", params, lambda: {"returns": given}).run()


def assert_near(got: Array, expected: Array, rtol: float = ROUNDING) -> None:
    assert got.shape == np.shape(expected)
    assert np.abs(got - expected).max() <= rtol * np.abs(expected).max()


@pytest.mark.parametrize("assets", [1, 2, 31, 33, 193])
@pytest.mark.parametrize("time", [2, 31, 32, 33, 200])
def test_a_sample_covariance_is_that_of_numpy_and_symmetric_to_the_bit(assets: int, time: int) -> None:
    given = returns(assets, time)
    answer = run(given)
    assert_near(answer["covariance"], np.cov(given).reshape(assets, assets))
    assert_near(answer["correlation"], np.corrcoef(given).reshape(assets, assets))
    assert_near(answer["means"], given.mean(axis=1))
    assert np.array_equal(answer["covariance"], answer["covariance"].T)


def test_covariances_of_returns_far_from_zero_keep_their_digits() -> None:
    given = returns(5, 100)
    assert_near(run(given + 1e6)["covariance"], np.cov(given), rtol=1e-6)  # the returns are rounded to 1e-10


def test_a_mean_that_is_not_subtracted_deducts_nothing_from_time() -> None:
    given = returns(7, 50)
    assert_near(run(given, demean=False)["covariance"], given @ given.T / 50)


def test_a_covariance_of_a_year_is_that_of_a_period_times_the_periods() -> None:
    given = returns(4, 60)
    period, year = run(given), run(given, periods_per_year=252.0)
    for name in ("covariance", "means"):
        assert np.array_equal(year[name], 252.0 * period[name])
    assert np.array_equal(year["correlation"], period["correlation"])


@pytest.mark.parametrize("decay", [None, 0.5, 0.97])
def test_exponential_weights_are_those_of_pandas(decay: float | None) -> None:
    given = returns(6, 80)
    table = pd.DataFrame(given.T).ewm(alpha=1 - (decay or 0.94))
    answer = run(given, method="ewma", decay=decay)
    assert_near(answer["covariance"], table.cov().to_numpy()[-6:], rtol=1e-12)
    assert_near(answer["means"], table.mean().to_numpy()[-1])


def test_without_means_exponential_weights_are_those_of_riskmetrics() -> None:
    given = returns(3, 40)
    weights = 0.9 ** np.arange(39, -1, -1)
    expected = (weights / weights.sum() * given) @ given.T
    assert_near(run(given, method="ewma", decay=0.9, demean=False)["covariance"], expected)


def shrunk(given: Array) -> tuple[Array, float]:
    """Ledoit and Wolf, "Honey, I shrunk the sample covariance matrix", 2004, appendix B, by its definitions."""
    assets, time = given.shape
    y = given - given.mean(axis=1, keepdims=True)
    n = time - 1
    s = y @ y.T / n
    correlation = s / np.sqrt(np.outer(np.diag(s), np.diag(s)))
    mean = (correlation.sum() - assets) / (assets * (assets - 1))
    target = mean * np.sqrt(np.outer(np.diag(s), np.diag(s)))
    np.fill_diagonal(target, np.diag(s))
    pi = sum((y[i] ** 2 * y[j] ** 2).sum() / n - s[i, j] ** 2 for i in range(assets) for j in range(assets))
    rho = sum((y[i] ** 4).sum() / n - s[i, i] ** 2 for i in range(assets))
    for i in range(assets):
        for j in range(assets):
            if i != j:
                of_i = (y[i] ** 3 * y[j]).sum() / n - s[i, i] * s[i, j]
                of_j = (y[j] ** 3 * y[i]).sum() / n - s[j, j] * s[i, j]
                rho += mean / 2 * (np.sqrt(s[j, j] / s[i, i]) * of_i + np.sqrt(s[i, i] / s[j, j]) * of_j)
    gamma = ((target - s) ** 2).sum()
    weight = float(np.clip((pi - rho) / gamma / n, 0, 1))
    return weight * target + (1 - weight) * s, weight


@pytest.mark.parametrize(("assets", "time"), [(2, 30), (10, 200), (40, 25)])
def test_shrinkage_is_that_of_ledoit_and_wolf(assets: int, time: int) -> None:
    given = returns(assets, time)
    expected, weight = shrunk(given)
    answer = run(given, method="ledoit_wolf")
    assert 0 <= weight <= 1
    assert answer["shrinkage"] == pytest.approx([weight], rel=1e-9)
    assert_near(answer["covariance"], expected, rtol=1e-11)


def test_shrunk_covariances_of_more_assets_than_times_are_not_singular() -> None:
    given = returns(30, 10)
    plain, better = run(given, eigenvalues=True), run(given, method="ledoit_wolf", eigenvalues=True)
    assert plain["eigenvalues"][0] < 1e-12 * plain["eigenvalues"][-1]
    assert better["eigenvalues"][0] > 1e-3 * better["eigenvalues"][-1]


@pytest.mark.parametrize("assets", [1, 2, 3, 33, 100])
def test_eigenvalues_are_those_of_lapack(assets: int) -> None:
    answer = run(returns(assets, 60), eigenvalues=True)
    assert_near(answer["eigenvalues"], np.linalg.eigvalsh(answer["covariance"]), rtol=1e-14 * assets + 1e-15)


def test_eigenvalues_of_equal_correlations_are_exact() -> None:
    """1 + (n - 1) r once and 1 - r n - 1 times, for any n and correlation r."""
    matrix = np.full((50, 50), 0.25)
    np.fill_diagonal(matrix, 1.0)
    (values,), (vectors,) = decompose(matrix[np.newaxis], 50)
    assert values == pytest.approx([0.75] * 49 + [13.25], rel=1e-13)
    assert vectors[0] == pytest.approx([50**-0.5] * 50, rel=1e-13)
    assert vectors @ vectors.T == pytest.approx(np.eye(50), abs=1e-13)
    assert decompose(np.zeros((1, 3, 3)))[0].tolist() == [[0.0] * 3]


@pytest.mark.parametrize("factor", [2.0**-700, 2.0**700])
def test_eigenvalues_whose_squares_no_float64_holds_have_the_digits_of_others(factor: float) -> None:
    matrix = matrices(12)[np.newaxis]
    assert np.array_equal(decompose(factor * matrix)[0], factor * decompose(matrix)[0])


def test_numbers_that_are_none_have_no_eigenvalues_and_end() -> None:
    assert np.isnan(decompose(np.full((1, 5, 5), np.nan))[0]).all()


def test_the_condition_number_is_that_of_numpy_and_infinite_if_the_matrix_is_singular() -> None:
    answer = run(returns(3, 20, 60), eigenvalues=True)
    assert answer["smallest_eigenvalue"] == pytest.approx(answer["eigenvalues"][:, 0], abs=0)
    assert answer["condition_number"] == pytest.approx(np.linalg.cond(answer["covariance"]), rel=1e-11)
    assert run(returns(30, 10), eigenvalues=True)["condition_number"].tolist() == [np.inf]
    assert np.isnan(run(returns(3, 10))["condition_number"]).tolist() == [True]


def signed(vectors: Array) -> Array:
    """Eigenvectors (assets, n) as rows, of which each has its largest element positive: scikit-learn's PCA, 1.5 on."""
    return np.array([vector * np.sign(vector[np.abs(vector).argmax()]) for vector in vectors.T])


@pytest.mark.parametrize("assets", [1, 2, 3, 33, 100])
def test_components_are_the_eigenvectors_of_lapack_by_falling_variance(assets: int) -> None:
    count = min(assets, 5)
    answer = run(returns(assets, 60), components=count)
    values, vectors = np.linalg.eigh(answer["covariance"])
    assert answer["components"] == pytest.approx(signed(vectors[:, ::-1])[:count], abs=1e-11)
    assert_near(answer["explained_variance"], values[::-1][:count], rtol=1e-14 * assets + 1e-15)
    assert_near(answer["explained_variance_ratio"], answer["explained_variance"] / values.sum(), rtol=1e-12)
    assert answer["eigenvalues"].shape == (0,)
    assert answer["smallest_eigenvalue"] == pytest.approx([values[0]], abs=1e-14 * values[-1])


def test_all_components_turn_returns_into_series_without_correlation() -> None:
    given = returns(30, 20)  # of which 19 directions vary
    answer = run(given, components=30, eigenvalues=True)
    components = answer["components"]
    assert components @ components.T == pytest.approx(np.eye(30), abs=1e-13)
    assert_near(np.cov(components @ given), np.diag(answer["explained_variance"]))
    assert answer["explained_variance"].tolist() == answer["eigenvalues"][::-1].tolist()
    assert answer["explained_variance_ratio"].sum() == pytest.approx(1, rel=1e-13)


def test_of_equal_elements_the_first_decides_the_sign_of_a_component() -> None:
    given = np.array([[1.0, -1.0, 2.0, -2.0], [-1.0, 1.0, -2.0, 2.0]])
    assert run(given, components=1)["components"] == pytest.approx(np.array([[0.5**0.5, -(0.5**0.5)]]), rel=1e-15)


def test_of_returns_that_do_not_vary_no_part_is_explained() -> None:
    answer = run(np.ones((3, 4)), components=2)
    assert answer["explained_variance"].tolist() == [0.0, 0.0]
    assert np.isnan(answer["explained_variance_ratio"]).all()


def test_a_batch_has_the_bytes_of_each_alone() -> None:
    given = returns(4, 20, 70)
    params = {"method": "ledoit_wolf", "eigenvalues": True, "components": 3}
    together = run(given, **params)
    for item in range(4):
        for name, value in run(np.ascontiguousarray(given[item]), **params).items():
            assert np.array_equal(together[name][item], value[0] if name in ONE_NUMBER else value)


def test_an_asset_without_variance_has_no_correlation() -> None:
    given = returns(3, 10)
    given[1] = 0.1
    answer = run(given)
    assert np.isnan(answer["correlation"]).tolist() == [[False, True, False], [True] * 3, [False, True, False]]
    assert answer["covariance"][1].tolist() == [0.0] * 3
    with pytest.raises(InvalidRequest, match=r"/inputs/returns: asset 1 has a variance of 0"):
        run(given, method="ledoit_wolf")


def test_a_decay_that_leaves_one_return_and_squares_that_overflow_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="decay 1e-17 leaves the newest of 5 returns a weight of 1"):
        run(returns(2, 5), method="ewma", decay=1e-17)
    with pytest.raises(InvalidRequest, match=r"the largest return is 1e\+160: its square overflows"):
        run(np.array([[1e160, 0.0, 1.0], [0.0, 1.0, 2.0]]))


@pytest.mark.parametrize(
    ("params", "shape", "sentence"),
    [
        ({}, (3, 1), "1 return of each asset: a covariance needs 2"),
        ({}, (8193, 2), "8,193 assets, the most are 8,192"),
        ({"eigenvalues": True}, (2049, 2), "2,049 assets, the most are 2,048"),
        ({"components": 1}, (2049, 2), "2,049 assets, the most are 2,048"),
        ({"components": 4}, (3, 5), "4 components, and there are 3 assets"),
        ({"decay": 0.5}, (3, 5), "decay 0.5 is for ewma, and method is sample"),
        ({"method": "ledoit_wolf"}, (1, 5), "ledoit_wolf shrinks correlations: it needs 2 assets, got 1"),
        ({"method": "ewma", "decay": 1.0}, (3, 5), "decay"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_numbers(
    params: dict[str, Any], shape: tuple[int, ...], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        COVARIANCE.validate(params, {"returns": ArrayInfo("float64", shape)})
