"""The frontier has the closed forms' portfolios, meets the conditions of optimality, and beats another solver's."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize

from tests.kernels.parity import Case, assert_same
from tests.kernels.portfolio.cases import matrices, returns
from tests.kernels.portfolio.sequential.cases import means
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.portfolio.sequential import line
from warpdesk_server.kernels.portfolio.sequential.spec import FRONTIER
from warpdesk_server.kernels.problems import InvalidRequest

Array = NDArray[Any]

# Three assets without bounds that bind: Merton 1972, w = inverse(S) (l 1 + g m).
COVARIANCE = [[0.04, 0.006, 0.01], [0.006, 0.09, 0.018], [0.01, 0.018, 0.16]]
MEANS = [0.08, 0.1, 0.14]
FREE = {"lower": [-100.0], "upper": [100.0]}


def run(mu: Any, covariance: Any, lower: Any = None, upper: Any = None, **params: Any) -> dict[str, Any]:
    arrays = {"means": mu, "covariance": covariance, "lower": lower, "upper": upper}
    inputs = {name: np.asarray(array, float) for name, array in arrays.items() if array is not None}
    return Case("frontier", params, lambda: inputs).run()


def test_the_minimum_variance_is_that_of_the_closed_form() -> None:
    answer = run(MEANS, COVARIANCE)
    assert answer["weights"] == pytest.approx([0.6420209488601355, 0.24953789279112765, 0.10844115834873694], rel=1e-13)
    assert answer["risk"] ** 2 == pytest.approx(0.028262476894639565, rel=1e-13)


def test_the_portfolio_of_a_mean_is_that_of_the_closed_form() -> None:
    answer = run(MEANS, COVARIANCE, portfolio="target_mean", target=0.11)
    assert answer["weights"] == pytest.approx([0.3, 0.3, 0.4], rel=1e-12)
    assert answer["mean"] == pytest.approx(0.11, rel=1e-14)
    assert answer["risk"] ** 2 == pytest.approx(0.0451, rel=1e-13)


def test_the_tangency_portfolio_is_that_of_the_closed_form() -> None:
    answer = run(MEANS, COVARIANCE, portfolio="maximum_sharpe", rf=0.02)
    assert answer["weights"] == pytest.approx([0.4934505342985176, 0.2714581178903827, 0.23509134781109967], rel=1e-12)
    assert answer["sharpe"] == pytest.approx((answer["mean"] - 0.02) / answer["risk"], rel=1e-14)


def test_two_assets_have_the_textbook_minimum_variance() -> None:
    covariance = [[0.04, 0.25 * 0.06], [0.25 * 0.06, 0.09]]
    assert run([0.05, 0.1], covariance)["weights"] == pytest.approx([0.75, 0.25], rel=1e-14)
    variances = np.array([0.01, 0.04, 0.09, 0.16])
    assert run([1.0, 2.0, 3.0, 4.0], np.diag(variances))["weights"] == pytest.approx(
        1 / variances / (1 / variances).sum(), rel=1e-13
    )


def test_without_bounds_that_bind_two_funds_make_the_whole_frontier() -> None:
    mu, covariance = np.linspace(0.02, 0.12, 8), matrices(8)
    one, two, three = (
        run(mu, covariance, **FREE, portfolio="target_mean", target=target)["weights"] for target in (0.08, 0.1, 0.12)
    )
    assert three == pytest.approx(2 * two - one, rel=1e-9)
    inverse, ones = np.linalg.inv(covariance), np.ones(8)
    table = np.array([[mu @ inverse @ mu, mu @ inverse @ ones], [mu @ inverse @ ones, ones @ inverse @ ones]])
    factors = np.linalg.solve(table, [0.1, 1.0])
    assert two == pytest.approx(inverse @ (factors[0] * mu + factors[1]), rel=1e-10)


def violations(answer: dict[str, Any], mu: Array, covariance: Array, lower: Array, upper: Array) -> float:
    """How far corners are from optimal: the gradient S w - L m less its value g at free assets, by the signs it must
    have. g is the best for the corner, so this knows nothing of how it was found."""
    worst = 0.0
    for weights, tolerance in zip(answer["corner_weights"], answer["corner_lambdas"], strict=True):
        assert weights.sum() == pytest.approx(1, abs=1e-12)
        assert (weights >= lower).all()
        assert (weights <= upper).all()
        gradient = covariance @ weights - tolerance * mu
        # Raising an asset with room above must not pay for lowering one with room below.
        up, down = gradient[weights < upper - 1e-12], gradient[weights > lower + 1e-12]
        if up.size and down.size:
            worst = max(worst, float(down.max() - up.min()))
    return worst


@pytest.mark.parametrize("assets", [2, 3, 31, 33, 100])
@pytest.mark.parametrize(("lower", "upper"), [(0.0, 1.0), (0.0, 0.6), (-0.2, 0.55), (0.002, 1.0)])
def test_every_corner_meets_the_conditions_of_optimality(assets: int, lower: float, upper: float) -> None:
    mu, covariance = means(assets), matrices(assets)
    answer = run(mu, covariance, [lower], [upper])
    bounds = np.full(assets, lower), np.full(assets, upper)
    assert violations(answer, mu, covariance, *bounds) < 1e-12 * max(1.0, answer["corner_lambdas"][0])
    assert answer["violation"] < 1e-12 * max(1.0, answer["corner_lambdas"][0])
    assert answer["corner_lambdas"][-1] == 0
    for name in ("corner_means", "corner_risks", "corner_lambdas"):
        assert (np.diff(answer[name]) <= 0).all()
    assert answer["corner_means"] == pytest.approx(answer["corner_weights"] @ mu, rel=1e-13)
    assert answer["steps"] <= 20 * assets


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_coarse_numbers_with_ties_and_degenerate_bounds_meet_the_conditions(data: st.DataObject) -> None:
    assets = data.draw(st.integers(1, 7))
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    covariance = np.round(np.cov(random.normal(size=(assets, assets + 4))).reshape(assets, assets), 1)
    covariance += np.eye(assets) * (0.5 - min(0.0, np.linalg.eigvalsh(covariance)[0]))
    mu = np.round(random.normal(size=assets), data.draw(st.integers(0, 1)))
    lower = -np.round(random.random(assets) * data.draw(st.integers(0, 1)), 1)
    upper = np.maximum(np.round(random.random(assets) + 0.2, 1), 1 / assets)
    answer = run(mu, covariance, lower, upper)
    assert violations(answer, mu, covariance, lower, upper) < 1e-9 * max(1.0, answer["corner_lambdas"][0])


@pytest.mark.parametrize("part", [0.2, 0.5, 0.8])
def test_no_other_solver_finds_less_risk_for_a_mean(part: float) -> None:
    mu, covariance = means(10), matrices(10)
    reach = run(mu, covariance, upper=[0.4])["corner_means"]
    target = float(reach[-1] + part * (reach[0] - reach[-1]))
    ours = run(mu, covariance, upper=[0.4], portfolio="target_mean", target=target)
    theirs = minimize(
        lambda w: w @ covariance @ w,
        np.full(10, 0.1),
        jac=lambda w: 2 * covariance @ w,
        bounds=[(0, 0.4)] * 10,
        constraints=[
            {"type": "eq", "fun": lambda w: w.sum() - 1},
            {"type": "eq", "fun": lambda w: w @ mu - target},
        ],
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    ).x
    assert ours["weights"] == pytest.approx(theirs, abs=1e-6)  # SLSQP's
    assert ours["risk"] <= math.sqrt(theirs @ covariance @ theirs) * (1 + 1e-12)


def test_the_greatest_sharpe_ratio_is_above_that_of_all_neighbours_on_the_line() -> None:
    mu, covariance = means(25), matrices(25)
    best = run(mu, covariance, [-0.1], [0.2], portfolio="maximum_sharpe", rf=0.01)
    ratios = [
        run(mu, covariance, [-0.1], [0.2], portfolio="target_mean", target=best["mean"] + shift, rf=0.01)["sharpe"]
        for shift in (-1e-3, -1e-5, 1e-5, 1e-3)
    ]
    assert max(ratios) < best["sharpe"]
    corners = (best["corner_means"] - 0.01) / best["corner_risks"]
    assert corners.max() <= best["sharpe"]


def test_the_portfolio_of_a_risk_has_it() -> None:
    mu, covariance = means(12), matrices(12)
    risks = run(mu, covariance)["corner_risks"]
    for risk in np.linspace(risks[-1], risks[0], 9):
        answer = run(mu, covariance, portfolio="target_risk", target=float(risk))
        assert answer["risk"] == pytest.approx(risk, rel=1e-12)
    same = run(mu, covariance, portfolio="target_mean", target=answer["mean"])
    assert same["weights"] == pytest.approx(answer["weights"], abs=1e-12)


def test_means_and_covariances_of_a_period_are_those_of_a_year_times_their_number() -> None:
    mu, covariance = np.array(MEANS), np.array(COVARIANCE)
    year = run(mu, covariance, portfolio="maximum_sharpe", rf=0.02)
    day = run(mu / 256, covariance / 256, portfolio="maximum_sharpe", rf=0.02, periods_per_year=256.0)
    for name in ("weights", "mean", "risk", "sharpe", "corner_lambdas"):
        assert day[name] == pytest.approx(year[name], rel=1e-12)


def test_what_the_chosen_portfolio_is_told_by() -> None:
    answer = run(means(33), matrices(33), upper=[0.06])
    weights = answer["weights"]
    assert answer["bounds"].tolist() == [int(w > 0.06 - 1e-12) - int(w < 1e-12) for w in weights]
    assert {-1, 0, 1} == set(answer["bounds"].tolist())
    assert answer["risk_contributions"] == pytest.approx(
        weights * (matrices(33) @ weights) / answer["risk"] ** 2, rel=1e-12, abs=1e-16
    )
    assert answer["smallest_eigenvalue"] == pytest.approx(np.linalg.eigvalsh(matrices(33))[0], rel=1e-12)
    assert answer["condition_number"] == pytest.approx(np.linalg.cond(matrices(33)), rel=1e-11)


def test_of_portfolios_with_the_greatest_mean_the_first_corner_has_the_least_variance() -> None:
    covariance = np.diag([0.04, 0.01, 0.02, 0.03])
    answer = run([0.1, 0.1, 0.1, 0.05], covariance)
    expected = np.array([1 / 0.04, 1 / 0.01, 1 / 0.02, 0.0])
    assert answer["corner_weights"][0] == pytest.approx(expected / expected.sum(), rel=1e-13)
    assert answer["ties"] == [[0, 1, 2]]


def test_equal_means_leave_the_minimum_variance_alone() -> None:
    answer = run(np.full(33, 0.1), matrices(33))
    assert answer["corner_weights"].shape == (1, 33)
    assert answer["corner_weights"][0] == pytest.approx(run(means(33), matrices(33))["weights"], abs=1e-12)
    assert answer["ties"] == [list(range(33))]


def test_a_line_of_more_corners_than_there_is_room_for_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    mu, covariance = means(33), matrices(33)
    whole = run(mu, covariance, upper=[0.1])
    for room in (2, 3, 7):
        monkeypatch.setattr(line, "_ROOM", room - 33)
        assert_same(Case("frontier"), whole, run(mu, covariance, upper=[0.1]))


def test_a_line_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "STEPS", 0)
    with pytest.raises(InvalidRequest, match=r"the critical line did not end within 20 x 3 steps"):
        run(MEANS, COVARIANCE)
    with pytest.raises(InvalidRequest, match="did not end"):
        run([0.1, 0.1, 0.1], COVARIANCE)


def test_a_weight_that_is_fixed_is_at_its_lower_bound() -> None:
    assert run(MEANS, COVARIANCE, [0.2, 0.0, 0.0], [0.2, 1.0, 1.0])["bounds"][0] == -1


@pytest.mark.parametrize("assets", [1, 10, 33])
def test_bounds_that_leave_one_portfolio_have_it(assets: int) -> None:
    for bounds in ({"upper": [1 / assets]}, {"lower": [1 / assets]}):
        answer = run(means(assets), matrices(assets), **bounds)  # type: ignore[arg-type]
        assert answer["corner_weights"] == pytest.approx(np.full((1, assets), 1 / assets), rel=1e-12)


def test_a_corner_is_kept_where_the_matrix_is_nearly_singular() -> None:
    given = returns(60, 61)  # condition number 4e6
    answer = run(means(60), np.cov(given), [-1.0], [1.0])
    assert answer["condition_number"] > 1e5
    assert answer["violation"] < 1e-10


@pytest.mark.parametrize(
    ("arrays", "params", "sentence"),
    [
        ({"upper": [0.3]}, {}, r"the sum of the upper bounds is 0.9, and weights have the sum 1"),
        ({"lower": [0.4]}, {}, r"the sum of the lower bounds is 1.2, and weights have the sum 1"),
        ({"lower": [0.0, 0.5, 0.0], "upper": [0.4]}, {}, r"asset 1: lower 0.5 is above upper 0.4"),
        ({"lower": [-1e308], "upper": [1e308]}, {}, r"asset 0: lower -1e\+308 is beyond 1e\+09 either way"),
        (
            {},
            {"portfolio": "target_mean", "target": 0.2},
            r"mean 0.2\d* is not on the frontier: the least is 0.0914",
        ),
        (
            {},
            {"portfolio": "target_risk", "target": 0.1},
            r"risk 0.1\d* is not on the frontier: the least is 0.1681",
        ),
        ({}, {"portfolio": "target_risk", "target": -0.2}, r"risk -0.2\d* is not on the frontier"),
        ({}, {"portfolio": "maximum_sharpe", "rf": 0.15}, r"rf is 0.15, and no mean is above it: the greatest is 0.14"),
        ({"covariance": [[1.0, 0.5, 0], [0.4, 1, 0], [0, 0, 1]]}, {}, "not symmetric: row 0, column 1 has 0.5"),
        ({"covariance": np.ones((3, 3))}, {}, r"singular: the smallest eigenvalue is .*, and the greatest 3\. Shrink"),
        ({"covariance": np.cov(returns(3, 3))}, {}, r"singular"),
        ({"covariance": np.diag([1.0, 1.0, 0.0])}, {}, "asset 2 has variance 0"),
        ({"covariance": [[1.0, 2, 0], [2, 1, 0], [0, 0, 1]]}, {}, "singular: the smallest eigenvalue is -1,"),
    ],
)
def test_what_has_no_frontier_is_refused_with_its_numbers(
    arrays: dict[str, Any], params: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        run(**{"mu": MEANS, "covariance": COVARIANCE, **arrays}, **params)


@pytest.mark.parametrize(
    ("params", "shapes", "sentence"),
    [
        ({"portfolio": "target_mean"}, {}, "target_mean needs the mean that is wanted"),
        ({"target": 0.1}, {}, "target 0.1 is not for minimum_variance"),
        ({}, {"means": (2,)}, r"covariance has 3 assets: means needs \(3\)"),
        ({}, {"lower": (2,)}, r"covariance has 3 assets: lower needs \(3\) or \(1\)"),
        ({}, {"covariance": (3, 2)}, "as many rows as columns"),
        ({}, {"covariance": (2049, 2049)}, "2,049 assets, the most are 2,048"),
    ],
)
def test_parameters_and_shapes_that_do_not_fit_are_refused(
    params: dict[str, Any], shapes: dict[str, tuple[int, ...]], sentence: str
) -> None:
    given_ = {"means": (3,), "covariance": (3, 3), **shapes}
    with pytest.raises(InvalidRequest, match=sentence):
        FRONTIER.validate(params, {name: ArrayInfo("float64", shape) for name, shape in given_.items()})
