"""Risk contributions are the budgets, and weights those of closed forms and of another solver."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from tests.kernels.parity import Case
from tests.kernels.portfolio.cases import budgets, matrices, returns
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.portfolio.spec import RISK_PARITY
from warpdesk_server.kernels.problems import InvalidRequest

Array = NDArray[Any]


def run(covariance: Any, parts: Any = None, **params: Any) -> dict[str, Any]:
    inputs = {"covariance": np.asarray(covariance, float)}
    if parts is not None:
        inputs["budgets"] = np.asarray(parts, float)
    return Case("risk_parity", params, lambda: inputs).run()


@pytest.mark.parametrize("assets", [1, 2, 3, 31, 33, 255, 256, 257])
def test_each_asset_has_its_budget_of_the_risk(assets: int) -> None:
    covariance, parts = matrices(assets), budgets(assets)
    answer = run(covariance, parts)
    weights = answer["weights"]
    risk = np.sqrt(weights @ covariance @ weights)
    assert (weights > 0).all()
    assert weights.sum() == pytest.approx(1, rel=1e-13)
    assert answer["risk"] == pytest.approx([risk], rel=1e-12)
    assert answer["risk_contributions"].sum() == pytest.approx(1, rel=1e-13)
    assert answer["risk_contributions"] == pytest.approx(weights * (covariance @ weights) / risk**2, rel=1e-11)
    assert np.abs(answer["risk_contributions"] - parts / parts.sum()).max() <= 1.1e-10
    assert answer["residual"] <= 1e-10


def test_equal_correlations_give_weights_as_the_inverse_of_deviations() -> None:
    """Maillard, Roncalli and Teiletche 2010, section 2.2."""
    deviations = np.array([0.1, 0.2, 0.25, 0.4, 0.5])
    covariance = np.outer(deviations, deviations) * (0.3 + 0.7 * np.eye(5))
    assert run(covariance)["weights"] == pytest.approx(1 / deviations / (1 / deviations).sum(), rel=1e-10)


@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.5])
def test_two_assets_have_weights_as_the_inverse_of_deviations_whatever_their_correlation(correlation: float) -> None:
    covariance = [[0.04, correlation * 0.06], [correlation * 0.06, 0.09]]
    assert run(covariance)["weights"] == pytest.approx([0.6, 0.4], rel=1e-9)


def test_without_correlation_weights_are_roots_of_budgets_over_deviations() -> None:
    variances, parts = np.array([0.01, 0.04, 0.09]), np.array([0.5, 0.3, 0.2])
    expected = np.sqrt(parts / variances)
    assert run(np.diag(variances), parts)["weights"] == pytest.approx(expected / expected.sum(), rel=1e-10)


def test_weights_are_those_of_another_solver_of_the_convex_form() -> None:
    covariance, parts = matrices(12), budgets(12)
    parts /= parts.sum()
    start = np.ones(12) / np.sqrt(np.diag(covariance))
    found = minimize(
        lambda x: x @ covariance @ x / 2 - parts @ np.log(x),
        start,
        jac=lambda x: covariance @ x - parts / x,
        bounds=[(1e-6, None)] * 12,
        method="L-BFGS-B",
        options={"ftol": 1e-16, "gtol": 1e-12},
    ).x
    assert run(covariance, parts)["weights"] == pytest.approx(found / found.sum(), rel=1e-5)  # L-BFGS-B's


def test_scaling_assets_or_the_matrix_scales_the_weights_alone() -> None:
    covariance = matrices(20)
    scales = np.exp(np.linspace(-5, 5, 20))
    one, other = run(covariance)["weights"], run(covariance * np.outer(scales, scales) * 1e-6)["weights"]
    assert other * scales / (other * scales).sum() == pytest.approx(one, rel=1e-8)


def test_a_singular_matrix_has_weights_if_no_portfolio_is_without_risk() -> None:
    given = returns(40, 20)
    answer = run(np.cov(given))
    assert np.abs(answer["risk_contributions"] - 1 / 40).max() < 1.1e-10
    assert np.isnan(answer["condition_number"]).tolist() == [True]
    assert run(np.cov(given), spectrum=True)["condition_number"].tolist() == [np.inf]


def test_a_batch_has_the_bytes_of_each_alone() -> None:
    many = matrices(5, 17)
    together = run(many, budgets(17), spectrum=True)
    assert together["smallest_eigenvalue"] == pytest.approx(np.linalg.eigvalsh(many)[:, 0], rel=1e-12)
    assert together["condition_number"] == pytest.approx(np.linalg.cond(many), rel=1e-12)
    for item in range(5):
        alone = run(many[item], budgets(17), spectrum=True)
        for name in ("weights", "risk_contributions"):
            assert np.array_equal(together[name][item], alone[name])
        for name in ("risk", "iterations", "residual", "smallest_eigenvalue", "condition_number"):
            assert together[name][item] == alone[name][0]


def test_the_tolerance_decides_how_many_sweeps_there_are() -> None:
    covariance = matrices(30)
    rough, fine = (run(covariance, tolerance=tolerance) for tolerance in (1e-2, 1e-13))
    assert rough["iterations"] < fine["iterations"]
    assert fine["residual"] <= 1e-13


def test_sweeps_that_do_not_reach_the_tolerance_are_refused_with_both() -> None:
    with pytest.raises(InvalidRequest, match=r"after 1 sweeps a risk contribution is 0\.\d+ from its budget, and tol"):
        run(matrices(30), sweeps=1)
    with pytest.raises(InvalidRequest, match=r"matrix 1 of the batch: after 1 sweeps"):
        run(np.stack([np.eye(30), matrices(30)]), sweeps=1)


@pytest.mark.parametrize(
    ("covariance", "parts", "sentence"),
    [
        ([[1.0, 0.5], [0.4, 1.0]], None, "not symmetric: row 0, column 1 has 0.5, and row 1, column 0 has 0.4"),
        ([[1.0, 0.0], [0.0, 0.0]], None, "asset 1 has variance 0: it must be above 0"),
        (np.stack([np.eye(2), -np.eye(2)]), None, "matrix 1 of the batch: asset 0 has variance -1: it must be above 0"),
        ([[1.0, 0.0], [0.0, 1.0]], [1.0, 0.0], "asset 1 has budget 0: it must be above 0"),
    ],
)
def test_numbers_that_are_no_covariance_are_refused_with_their_place(
    covariance: Any, parts: Any, sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        run(covariance, parts)


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        ({"covariance": (2, 3)}, r"shape \[2, 3\]: a covariance matrix has as many rows as columns"),
        ({"covariance": (3, 3), "budgets": (2,)}, r"covariance has 3 assets: budgets needs \(3\)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: dict[str, tuple[int, ...]], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        RISK_PARITY.validate({}, {name: ArrayInfo("float64", shape) for name, shape in shapes.items()})


def test_a_spectrum_of_more_assets_than_eigenvalues_are_computed_of_is_refused() -> None:
    inputs = {"covariance": ArrayInfo("float64", (2049, 2049))}
    RISK_PARITY.validate({}, inputs)
    with pytest.raises(InvalidRequest, match="2,049 assets, the most are 2,048"):
        RISK_PARITY.validate({"spectrum": True}, inputs)
