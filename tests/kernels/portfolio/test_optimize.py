"""Portfolios under general constraints are those of the critical line, of closed forms, and of another solver."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize

from tests.kernels.parity import Case
from tests.kernels.portfolio.cases import matrices, returns
from tests.kernels.portfolio.sequential.cases import means
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.portfolio.optimize import TASK, Optimize
from warpdesk_server.kernels.portfolio.task import optimize
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.kernels.task import Undisturbed

Array = NDArray[Any]

LIBRARY = 2e-5  # of weights: the tolerance of the objective is 1e-8, and it is flat at its minimum


def run(inputs: dict[str, Any], **params: Any) -> dict[str, Any]:
    arrays = {name: np.asarray(array, float) for name, array in inputs.items()}
    parsed = TASK.validate(params, {name: ArrayInfo("float64", array.shape) for name, array in arrays.items()})
    assert isinstance(parsed, Optimize)
    return optimize(parsed, Undisturbed(), **arrays)


def frontier(inputs: dict[str, Array], **params: Any) -> dict[str, Any]:
    return Case("frontier", params, lambda: inputs).run()


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_the_least_variance_is_that_of_the_critical_line_at_every_scale(factor: float) -> None:
    given = {"covariance": factor * matrices(40), "upper": np.array([0.1])}
    answer, exact = run(given), frontier({"means": means(40), **given})
    assert answer["weights"] == pytest.approx(exact["weights"], abs=LIBRARY)
    assert answer["risk"] == pytest.approx(exact["risk"], rel=1e-7)
    assert answer["objective"] == pytest.approx(answer["risk"] ** 2 / 2, rel=1e-6)
    assert answer["gap"] <= 1e-6 * answer["objective"]
    assert answer["risk_contributions"] == pytest.approx(exact["risk_contributions"], abs=10 * LIBRARY)
    assert answer["risk_contributions"].sum() == pytest.approx(1, rel=1e-12)
    assert (answer["smallest_eigenvalue"], answer["condition_number"]) == (
        exact["smallest_eigenvalue"],
        exact["condition_number"],
    )
    assert (answer["status"], answer["algorithm"]) == ("solved", "library")
    assert answer["algorithm_reason"].startswith("Clarabel 0.")


def test_a_mean_variance_portfolio_is_a_point_of_the_critical_line() -> None:
    given = {"means": means(20), "covariance": matrices(20)}
    answer = run(given, risk_aversion=3.0)
    same = frontier(given, portfolio="target_mean", target=answer["mean"])
    assert answer["weights"] == pytest.approx(same["weights"], abs=LIBRARY)
    assert run(given, risk_aversion=6.0)["risk"] < answer["risk"]


def test_a_least_mean_is_that_of_the_critical_line() -> None:
    given = {"means": means(20), "covariance": matrices(20)}
    least = frontier(given)["mean"]
    exact = frontier(given, portfolio="target_mean", target=least + 0.02)
    assert run(given, least_mean=least + 0.02)["weights"] == pytest.approx(exact["weights"], abs=LIBRARY)


def test_sums_of_groups_stay_between_their_bounds_and_bind_where_they_must() -> None:
    covariance = np.diag([0.01, 0.04, 0.09, 0.16])
    groups = {"groups": [[1, 1, 0, 0], [0, 0, 1, 1]], "group_upper": [0.5, 1.0], "group_lower": [0.0, 0.0]}
    weights = run({"covariance": covariance, **groups})["weights"]
    assert weights == pytest.approx([0.4, 0.1, 0.32, 0.18], abs=LIBRARY)  # inverse variances within each half


def test_turnover_is_at_most_what_is_allowed() -> None:
    covariance, previous = matrices(10), np.full(10, 0.1)
    free = np.abs(run({"covariance": covariance, "lower": [-1.0]})["weights"] - previous).sum()
    answer = run({"covariance": covariance, "lower": [-1.0], "previous": previous}, turnover=free / 2)
    assert answer["turnover"] == pytest.approx(free / 2, rel=1e-5)
    assert run({"covariance": covariance, "previous": previous}, turnover=0.0)["weights"] == pytest.approx(
        previous, abs=LIBRARY
    )


def test_costs_leave_weights_alone_of_which_a_change_gains_less() -> None:
    """With x for the first asset, (x^2 + (1 - x)^2) / 2 + 2 c |x - 0.3| is least at 0.5 - c, or at 0.3."""
    given = {"covariance": np.eye(2), "previous": [0.3, 0.7]}
    assert run({**given, "costs": [0.1]})["weights"] == pytest.approx([0.4, 0.6], abs=LIBRARY)
    assert run({**given, "costs": [0.25]})["weights"] == pytest.approx([0.3, 0.7], abs=LIBRARY)


def test_a_tracking_error_is_at_most_what_is_allowed() -> None:
    """Without bounds that bind, the portfolio lies on the way from the benchmark to the least variance."""
    covariance, benchmark = matrices(8), np.full(8, 1 / 8)
    best = run({"covariance": covariance, "lower": [-5.0], "upper": [5.0]})["weights"]
    whole = math.sqrt((best - benchmark) @ covariance @ (best - benchmark))
    given = {"covariance": covariance, "lower": [-5.0], "upper": [5.0], "benchmark": benchmark}
    answer = run(given, tracking_error=whole / 4)
    assert answer["tracking_error"] == pytest.approx(whole / 4, rel=1e-5)
    assert answer["weights"] == pytest.approx(benchmark + (best - benchmark) / 4, abs=LIBRARY)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.93])
def test_the_least_cvar_is_that_of_another_solver_of_the_linear_program(confidence: float) -> None:
    scenarios = np.ascontiguousarray(returns(6, 80).T)
    count, assets = scenarios.shape
    cost = np.concatenate([np.zeros(assets), [1.0], np.full(count, 1 / ((1 - confidence) * count))])
    table = np.hstack([-scenarios, -np.ones((count, 1)), -np.eye(count)])
    bounds = [(0, 1)] * assets + [(None, None)] + [(0, None)] * count
    equal = np.concatenate([np.ones(assets), np.zeros(count + 1)])[None]
    best = linprog(cost, table, np.zeros(count), equal, [1.0], bounds, method="highs")
    answer = run({"scenarios": scenarios}, objective="cvar", confidence=confidence)
    assert answer["cvar"] == pytest.approx(best.fun, rel=1e-6)
    assert answer["objective"] == pytest.approx(best.fun, rel=1e-6)
    assert answer["weights"].sum() == pytest.approx(1, rel=1e-7)


def test_cvar_is_the_mean_of_the_worst_scenarios_of_which_one_counts_in_part() -> None:
    """One asset with losses 1 to 10, at 0.75: of the worst 2.5 losses (10 + 9 + 8 / 2) / 2.5."""
    answer = run({"scenarios": -np.arange(1.0, 11.0)[:, None]}, objective="cvar", confidence=0.75)
    assert answer["cvar"] == pytest.approx(9.2, rel=1e-12)
    assert answer["objective"] == pytest.approx(9.2, rel=1e-6)


def test_all_constraints_together_are_met_and_no_other_solver_does_better() -> None:
    covariance, previous, benchmark = matrices(8), np.linspace(0.05, 0.2, 8), np.full(8, 1 / 8)
    given = {
        "covariance": covariance,
        "previous": previous,
        "benchmark": benchmark,
        "costs": np.full(8, 0.002),
        "groups": [[1, 1, 1, 0, 0, 0, 0, 0]],
        "group_upper": [0.35],
        "upper": [0.4],
    }
    answer = run(given, turnover=0.5, tracking_error=0.05)
    weights = answer["weights"]
    assert weights[:3].sum() <= 0.35 + 1e-7
    assert answer["turnover"] <= 0.5 + 1e-7
    assert answer["tracking_error"] <= 0.05 + 1e-7

    def value(w: Array) -> float:
        return float(w @ covariance @ w / 2 + 0.002 * np.abs(w - previous).sum())

    found = minimize(
        value,
        benchmark,
        bounds=[(0, 0.4)] * 8,
        constraints=[
            {"type": "eq", "fun": lambda w: w.sum() - 1},
            {"type": "ineq", "fun": lambda w: 0.35 - w[:3].sum()},
            {"type": "ineq", "fun": lambda w: 0.5 - np.abs(w - previous).sum()},
            {"type": "ineq", "fun": lambda w: 0.05**2 - (w - benchmark) @ covariance @ (w - benchmark)},
        ],
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    ).x
    assert answer["objective"] == pytest.approx(value(weights), rel=1e-6)
    assert answer["objective"] <= value(found) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("inputs", "params", "sentence"),
    [
        ({"upper": [0.3]}, {}, "the sum of the upper bounds is 0.9, and weights have the sum 1"),
        (
            {"groups": [[1.0, 1, 0]], "group_lower": [0.6], "group_upper": [0.5]},
            {},
            "group 0: lower 0.6 is above upper 0.5",
        ),
        (
            {"means": [0.1, 0.3, 0.2], "upper": [0.5]},
            {"least_mean": 0.26},
            "least_mean 0.26 is above 0.25, the greatest mean within the bounds",
        ),
        (
            {"groups": [[1.0, 1, 1]], "group_upper": [0.5]},
            {},
            "Clarabel finds no portfolio: PrimalInfeasible after",
        ),
        ({"covariance": [[1.0, 2, 0], [2, 1, 0], [0, 0, 1]]}, {}, "its smallest eigenvalue is -1, and the greatest 3"),
        ({"covariance": [[1.0, 2, 0], [1, 1, 0], [0, 0, 1]]}, {}, "not symmetric"),
        ({"covariance": np.eye(3)[:2]}, {}, r"shape \[2, 3\], and with 3 assets it needs \[3, 3\]"),
        ({}, {"risk_aversion": 1.0}, "risk_aversion needs means"),
        ({}, {"turnover": 1.0}, "turnover needs previous"),
        ({"costs": [0.1]}, {}, "costs needs previous"),
        ({}, {"tracking_error": 1.0}, "tracking_error needs benchmark"),
        ({"group_upper": [1.0]}, {}, "group_upper needs groups"),
        ({"groups": [[1.0, 0, 0]]}, {}, "nothing uses groups: it is for group_lower or group_upper"),
        ({"groups": [[1.0, 0]], "group_upper": [1.0]}, {}, r"shape \[1, 2\], and with 3 assets it needs \[1, 3\]"),
        ({}, {"objective": "cvar"}, "objective cvar needs scenarios"),
        ({"scenarios": np.ones((2, 3))}, {"objective": "cvar", "risk_aversion": 1.0}, "risk_aversion needs means"),
    ],
)
def test_what_makes_no_sense_is_refused(inputs: dict[str, Any], params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        run({"covariance": matrices(3), **inputs}, **params)


def test_it_needs_its_library() -> None:
    assert TASK.libraries == ("clarabel",)
    assert TASK.missing == []
