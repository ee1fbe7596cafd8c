"""The tree is SciPy's, and weights those of Lopez de Prado's algorithm written from its description."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import pdist, squareform

from tests.kernels.parity import Case
from tests.kernels.portfolio.cases import matrices, returns
from warpdesk_server.kernels.portfolio.sequential import hrp_loops
from warpdesk_server.kernels.problems import InvalidRequest

Array = NDArray[Any]


def run(covariance: Any, **params: Any) -> dict[str, Any]:
    return Case("hrp", params, lambda: {"covariance": np.asarray(covariance, float)}).run()


def tree(covariance: Array, distance: str, linkage: str) -> Array:
    deviations = np.sqrt(np.diag(covariance))
    plain = np.sqrt(np.clip((1 - covariance / np.outer(deviations, deviations)) / 2, 0, None))
    np.fill_diagonal(plain, 0)
    found: Array = hierarchy.linkage(pdist(plain) if distance == "of_distances" else squareform(plain), linkage)
    return found


def halves(covariance: Array, order: list[int]) -> Array:
    """Lopez de Prado, "Building diversified portfolios that outperform out of sample", 2016, section 4.3."""
    weights = np.ones(len(covariance))

    def variance(part: list[int]) -> float:
        some = covariance[np.ix_(part, part)]
        w = 1 / np.diag(some)
        w /= w.sum()
        return float(w @ some @ w)

    def divide(part: list[int]) -> None:
        if len(part) < 2:
            return
        left, right = part[: len(part) // 2], part[len(part) // 2 :]
        alpha = 1 - variance(left) / (variance(left) + variance(right))
        weights[left] *= alpha
        weights[right] *= 1 - alpha
        divide(left)
        divide(right)

    divide(order)
    return weights


@pytest.mark.parametrize("distance", ["of_distances", "of_correlations"])
@pytest.mark.parametrize("linkage", ["single", "complete", "average"])
@pytest.mark.parametrize("assets", [2, 3, 31, 33, 120])
def test_tree_order_and_weights_are_those_of_scipy_and_the_paper(assets: int, linkage: str, distance: str) -> None:
    covariance = np.cov(returns(assets, 2 * assets + 5))
    answer = run(covariance, linkage=linkage, distance=distance)
    expected = tree(covariance, distance, linkage)
    assert answer["merges"] == pytest.approx(expected, rel=1e-12)
    order = hierarchy.leaves_list(expected).tolist()
    assert answer["order"].tolist() == order
    assert answer["weights"] == pytest.approx(halves(covariance, order), rel=1e-12)
    assert answer["weights"].sum() == pytest.approx(1, rel=1e-13)
    risk = np.sqrt(answer["weights"] @ covariance @ answer["weights"])
    assert answer["risk"] == pytest.approx([risk], rel=1e-12)
    assert answer["risk_contributions"] == pytest.approx(
        answer["weights"] * (covariance @ answer["weights"]) / risk**2, rel=1e-10
    )


@pytest.mark.parametrize("linkage", [hrp_loops.SINGLE, hrp_loops.COMPLETE, hrp_loops.AVERAGE])
def test_the_first_of_equally_near_pairs_is_joined_also_where_all_are_near_one_asset(linkage: int) -> None:
    """Few distances, with many ties, and a last asset that is near all others: by a look at all pairs each time."""
    random = np.random.default_rng(linkage)
    for size in (2, 5, 12, 23):
        distance = np.triu(random.integers(2, 6, (size, size)).astype(float), 1)
        distance[:-1, -1] = 1 + random.integers(0, 3, size - 1) / 4
        if linkage == hrp_loops.AVERAGE:  # rounding decides between equal means
            distance += np.triu(random.random((size, size)), 1)
        distance += distance.T
        merges = np.empty((size - 1, 4))
        hrp_loops.cluster(distance.copy(), linkage, merges)
        clusters = {place: (place, [place]) for place in range(size)}  # by the first asset: number and assets
        for row, (one, two, far, count) in enumerate(merges):
            pairs = [
                (_between(distance[np.ix_(a, b)], linkage), first, second)
                for (first, (_, a)), (second, (_, b)) in combinations(sorted(clusters.items()), 2)
            ]
            nearest, first, second = min(pairs)
            joined = clusters[first][1] + clusters[second][1]
            assert (far, count) == (pytest.approx(nearest, rel=1e-14), len(joined))
            assert [one, two] == sorted((clusters[first][0], clusters.pop(second)[0]))
            clusters[first] = size + row, joined


def _between(distances: Array, linkage: int) -> float:
    how = {hrp_loops.SINGLE: np.min, hrp_loops.COMPLETE: np.max, hrp_loops.AVERAGE: np.mean}
    return float(how[linkage](distances))


def test_one_asset_has_all_the_weight() -> None:
    answer = run([[0.04]])
    assert answer["weights"].tolist() == [1.0]
    assert answer["order"].tolist() == [0]
    assert answer["merges"].shape == (0, 4)
    assert answer["risk"] == pytest.approx([0.2], rel=1e-15)


def test_without_correlation_equal_distances_are_joined_by_index_and_weights_are_inverse_variances() -> None:
    variances = np.array([0.01, 0.04, 0.02, 0.03])
    answer = run(np.diag(variances), distance="of_correlations")
    assert answer["merges"][:, :2].tolist() == [[0, 1], [2, 4], [3, 5]]
    assert answer["order"].tolist() == [3, 2, 0, 1]
    assert answer["weights"] == pytest.approx(1 / variances / (1 / variances).sum(), rel=1e-13)


def test_a_singular_matrix_has_weights() -> None:
    answer = run(np.cov(returns(40, 20)), spectrum=True)
    assert answer["condition_number"].tolist() == [np.inf]
    assert (answer["weights"] > 0).all()
    assert answer["weights"].sum() == pytest.approx(1, rel=1e-13)


def test_assets_that_are_the_same_or_opposite_have_weights() -> None:
    assert run([[1.0, 1.0], [1.0, 1.0]])["weights"].tolist() == [0.5, 0.5]
    assert run(np.array([[0.04, -0.04], [-0.04, 0.04]]))["weights"].tolist() == [0.5, 0.5]


def test_a_batch_has_the_bytes_of_each_alone() -> None:
    many = matrices(5, 17)
    together = run(many, spectrum=True)
    assert together["condition_number"] == pytest.approx(np.linalg.cond(many), rel=1e-12)
    for item in range(5):
        alone = run(many[item], spectrum=True)
        for name in ("weights", "risk_contributions", "order", "merges"):
            assert np.array_equal(together[name][item], alone[name])
        for name in ("risk", "smallest_eigenvalue", "condition_number"):
            assert together[name][item] == alone[name][0]


def test_numbers_that_are_no_covariance_are_refused_with_their_place() -> None:
    with pytest.raises(InvalidRequest, match=r"not symmetric: row 0, column 1 has 0.5, and row 1, column 0 has 0.4"):
        run([[1.0, 0.5], [0.4, 1.0]])
    with pytest.raises(InvalidRequest, match="asset 0 has variance 0: it must be above 0"):
        run(np.zeros((2, 2)))


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_variances_whose_product_no_float64_holds_have_the_same_weights(factor: float) -> None:
    covariance = matrices(6)
    assert run(factor * covariance)["weights"] == pytest.approx(run(covariance)["weights"], rel=1e-12)
