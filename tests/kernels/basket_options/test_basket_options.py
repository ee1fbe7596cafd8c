"""Basket options: published prices, integrals and lattices, least squares by hand, and what is refused."""

from math import exp, sqrt
from typing import Any

import numba
import numpy as np
import pytest
from scipy import integrate, stats

from tests.cudasim.device import EmulatedDevice
from tests.kernels.basket_options import lattice
from tests.kernels.basket_options.cases import CASES, inputs
from tests.kernels.monte_carlo.test_published import assert_standard_normal
from tests.kernels.parity import Case
from tests.vectors import baskets
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.basket_options import spec
from warpdesk_server.kernels.basket_options.policy import solve
from warpdesk_server.kernels.basket_options.spec import OPERATION
from warpdesk_server.kernels.monte_carlo.closed_form import black_scholes
from warpdesk_server.kernels.problems import InvalidRequest

MARKET: dict[str, Any] = {"option": "call", "strike": 100.0, "rate": 0.05, "maturity": 1.0}


def price(seed: int, arrays: dict[str, Any], **params: Any) -> dict[str, Any]:
    given = {name: np.array(value, dtype=np.float64) for name, value in arrays.items()}
    infos = {name: ArrayInfo("float64", array.shape) for name, array in given.items()}
    OPERATION.validate({**MARKET, **params}, infos)
    return Case("basket_option", {**MARKET, **params}, lambda: given, seed=seed).run()


def alike(assets: int, spot: float, volatility: float = 0.2, dividend: float = 0.0, rho: float = 0.0) -> dict[str, Any]:
    """Assets that are alike, each two with correlation rho."""
    correlation = np.full((assets, assets), rho) + (1.0 - rho) * np.eye(assets)
    return {"spot": [spot] * assets, "volatility": [volatility], "dividend": [dividend], "correlation": correlation}


def test_prices_of_two_assets_are_those_of_stulz() -> None:
    scores = []
    for seed, row in enumerate(baskets.STULZ):
        arrays = {
            "spot": row.spot,
            "volatility": row.volatility,
            "dividend": row.dividend,
            "correlation": [[1.0, row.correlation], [row.correlation, 1.0]],
        }
        terms = {"option": row.option, "strike": row.strike, "maturity": row.maturity}
        answer = price(seed, arrays, payoff=row.payoff, paths=100_000, **terms)
        assert answer["warnings"] == []
        scores.append((answer["price"] - row.price) / answer["standard_error"])
    assert_standard_normal(scores)


@pytest.mark.parametrize("payoff", ["best_of", "worst_of"])
@pytest.mark.parametrize("assets", [1, 3, 4, 5, 32])
def test_prices_of_many_assets_are_integrals(assets: int, payoff: str) -> None:
    # One common factor: given it, prices are independent, and the distribution of the greatest or least is a product.
    k = np.arange(assets)
    spot, volatility, loading = 95.0 + k % 7, 0.15 + 0.03 * (k % 5), 0.3 + 0.1 * (k % 4)
    correlation = np.outer(loading, loading)
    np.fill_diagonal(correlation, 1.0)
    nodes, masses = np.polynomial.hermite_e.hermegauss(60)

    def beyond(level: float) -> float:
        d = (np.log(level / spot) - (0.05 - 0.5 * volatility**2)) / volatility
        below = stats.norm.cdf((d - loading * nodes[:, None]) / np.sqrt(1 - loading**2))
        above = 1 - below.prod(axis=1) if payoff == "best_of" else (1 - below).prod(axis=1)
        return float(above @ masses) / sqrt(2 * np.pi)

    exact = exp(-0.05) * integrate.quad(beyond, 100.0, 2000.0, points=[150.0, 300.0], limit=200)[0]
    arrays = {"spot": spot, "volatility": volatility, "correlation": correlation}
    answer = price(assets, arrays, payoff=payoff, paths=60_000)
    assert abs(answer["price"] - exact) < 4 * answer["standard_error"] < 0.05 * exact + 0.1


def sum_of_two(
    option: str, weights: tuple[float, float], spot: Any, volatility: Any, rho: float, strike: float
) -> float:
    """The option on a sum of two prices in a year at 5 %, w2 above 0: an integral of Black-Scholes over the first."""

    def given(z: float) -> float:
        first = weights[0] * spot[0] * exp(0.05 - 0.5 * volatility[0] ** 2 + volatility[0] * z)
        left, deviation = strike - first, volatility[1] * sqrt(1 - rho * rho)
        own = weights[1] * spot[1] * exp(volatility[1] * rho * z - 0.5 * (volatility[1] * rho) ** 2)
        if left <= 0:
            return max((own * exp(0.05) - left) * exp(-0.05), 0.0) if option == "call" else 0.0
        return black_scholes(option, own, left, 0.05, 0.0, deviation, 1.0)

    return float(integrate.quad(lambda z: given(z) * stats.norm.pdf(z), -9, 9, limit=400, points=[-3, 0, 3])[0])


@pytest.mark.parametrize("option", ["call", "put"])
@pytest.mark.parametrize("weights", [(0.5, 0.5), (2.0, 0.25), (-1.0, 1.0)])
def test_prices_of_sums_of_two_assets_are_integrals(weights: tuple[float, float], option: str) -> None:
    spot, volatility, strike = (90.0, 105.0), (0.3, 0.2), 8.0 if weights[0] < 0 else 100.0
    exact = sum_of_two(option, weights, spot, volatility, 0.4, strike)
    arrays = {"spot": spot, "volatility": volatility, "correlation": [[1, 0.4], [0.4, 1]], "weights": weights}
    scores = []
    for seed in range(12):
        answer = price(seed, arrays, payoff="weighted_sum", option=option, strike=strike, paths=20_000)
        assert (answer["control_variate"] is None) == (weights[0] < 0)
        scores.append((answer["price"] - exact) / answer["standard_error"])
    assert_standard_normal(scores)


def test_the_geometric_average_is_worth_many_paths_and_changes_no_price() -> None:
    with_it = price(3, inputs(6), payoff="weighted_sum", paths=50_000)
    without = price(3, inputs(6), payoff="weighted_sum", paths=50_000, control_variate=False)
    control = with_it["control_variate"]
    assert without["control_variate"] is None
    assert control["variance_reduction"] > 50
    assert (control["plain_price"], control["plain_standard_error"]) == (without["price"], without["standard_error"])
    assert abs(with_it["price"] - without["price"]) < 4 * without["standard_error"]


def test_one_asset_is_its_own_control() -> None:
    answer = price(1, {"spot": [95.0], "volatility": [0.3]}, payoff="weighted_sum", paths=1_000)
    exact = black_scholes("call", 95.0, 100.0, 0.05, 0.0, 0.3, 1.0)
    assert (answer["price"], answer["standard_error"], answer["warnings"]) == (pytest.approx(exact, rel=1e-13), 0.0, [])


def test_american_puts_are_those_of_longstaff_and_schwartz() -> None:
    scores = []
    for seed, (spot, volatility, years, exact, _) in enumerate(baskets.LONGSTAFF_SCHWARTZ):
        answer = american(seed, spot, volatility, maturity=float(years), steps=50 * years)
        error = answer["standard_error"]
        assert error < 0.03
        # The policy is not the best one, so the price is low: by 0.2 % at most.
        assert -4 * error - 0.002 * exact < answer["price"] - exact < 4 * error
        scores.append((answer["price"] - exact) / error)
        assert answer["american"]["in_sample_price"] == pytest.approx(exact, abs=0.08)
    assert -0.8 < np.mean(scores) < 0.6, scores


def american(seed: int, spot: float, volatility: float, **params: Any) -> dict[str, Any]:
    given = {"payoff": "weighted_sum", "option": "put", "strike": 40.0, "rate": 0.06, "maturity": 1.0}
    size = {"paths": 60_000, "policy_paths": 20_000, "exercise": "american"}
    return price(seed, {"spot": [spot], "volatility": [volatility]}, **{**given, **size, **params})


def test_puts_are_exercised_as_often_as_a_tree_says() -> None:
    for strike, volatility, probability in baskets.EXERCISED:
        found = american(5, 36.0, volatility, strike=strike, steps=100)["american"]
        assert found["probability"] == pytest.approx(probability, abs=0.015)
        assert sum(date["probability"] for date in found["dates"]) == pytest.approx(found["probability"])


def test_eight_paths_are_valued_as_by_hand() -> None:
    prices = np.array(baskets.EIGHT_PATHS)
    paid = np.maximum(1.1 - prices[:, 3], 0)
    assert np.mean(paid) * exp(-0.18) == pytest.approx(baskets.EIGHT_PATHS_EUROPEAN, abs=5e-5)
    for date in (2, 1):
        paid *= exp(-0.06)
        x = prices[:, date]
        inside = x < 1.1
        basis = np.array([x[inside] ** power for power in range(3)])
        gram = basis @ basis.T
        moments = [[*gram[p, p:], basis[p] @ paid[inside]] for p in range(3)]
        found = solve([float(value) for row in moments for value in row], 3)
        assert found == pytest.approx(baskets.EIGHT_PATHS_COEFFICIENTS[date], abs=1.5e-3)
        now = inside & (1.1 - x > np.polyval(found[::-1], x))
        paid[now] = 1.1 - x[now]
    assert np.mean(paid) * exp(-0.06) == pytest.approx(baskets.EIGHT_PATHS_AMERICAN, abs=5e-5)


def test_least_squares_leave_out_what_other_functions_give() -> None:
    x = np.linspace(-1, 1, 50)
    basis, target = np.array([x**0, x, 2 * x - 3, x * x, 0 * x]), 1 + 2 * x + 3 * x * x
    gram = basis @ basis.T
    moments = [float(value) for p in range(5) for value in [*gram[p, p:], basis[p] @ target]]
    assert solve(moments, 5) == pytest.approx([1, 2, 0, 3, 0], abs=1e-12)


@pytest.mark.parametrize(("assets", "spot", "exact"), baskets.BEST_OF_CALLS)
def test_american_calls_on_the_best_of_two_are_those_of_glasserman(assets: int, spot: float, exact: float) -> None:
    arrays = alike(assets, spot, dividend=0.1)
    answer = price(7, arrays, payoff="best_of", exercise="american", maturity=3.0, steps=9, paths=200_000)
    reach = 4 * answer["standard_error"] + 0.005  # the book has two decimals
    assert -reach - 0.003 * exact < answer["price"] - exact < reach
    assert answer["american"]["in_sample_price"] == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize(
    ("assets", "payoff", "option"),
    [(2, "weighted_sum", "put"), (2, "worst_of", "put"), (3, "best_of", "call"), (3, "weighted_sum", "put")],
)
def test_american_prices_are_those_of_a_lattice(assets: int, payoff: str, option: str) -> None:
    market = {"strike": 100.0, "rate": 0.06, "maturity": 1.0}

    def on(dates: int, steps: int) -> float:
        given = {"dividend": 0.04, "volatility": 0.3, "dates": dates, "steps": steps}
        return lattice.price(assets, payoff, option, 95.0, **given, **market)

    # Lattices of even and odd steps err to different sides, by some 0.2 %: the mean is good to 0.1 %.
    exact, once = (on(5, 9) + on(5, 10)) / 2, (on(1, 45) + on(1, 50)) / 2
    arrays, size = alike(assets, 95.0, 0.3, 0.04), {"paths": 150_000, "policy_paths": 50_000}
    answer = price(9, arrays, payoff=payoff, option=option, exercise="american", steps=5, **market, **size)
    # The policy loses 0.4 % at most.
    reach = 4 * answer["standard_error"] + 0.001 * exact
    assert -reach - 0.004 * exact < answer["price"] - exact < reach
    assert exact > once


def test_a_policy_is_worth_less_on_paths_it_has_not_seen() -> None:
    arrays = alike(3, 100.0, 0.3, 0.05)
    answers = [
        price(seed, arrays, payoff="best_of", exercise="american", steps=9, paths=4_000, policy_paths=300)
        for seed in range(12)
    ]
    gaps = [answer["american"]["in_sample_price"] - answer["price"] for answer in answers]
    assert np.mean(gaps) > 3 * np.std(gaps) / sqrt(len(gaps))


def test_a_policy_that_fits_noise_is_told() -> None:
    arrays = alike(3, 100.0, 0.2, 0.05)
    answer = price(2, arrays, payoff="best_of", exercise="american", steps=200, paths=20_000, policy_paths=100)
    (sentence,) = answer["warnings"]
    assert "it fits their noise" in sentence
    assert answer["american"]["in_sample_price"] > answer["price"] + 4 * answer["standard_error"]


def test_an_option_that_is_worth_most_today_is_exercised_today() -> None:
    answer = american(1, 20.0, 0.1)
    assert (answer["price"], answer["standard_error"], answer["warnings"]) == (20.0, 0.0, [])
    assert answer["american"]["exercise_today"]
    assert not american(1, 40.0, 0.2)["american"]["exercise_today"]


def test_the_least_volatility_over_a_short_time_is_priced() -> None:
    answer = price(1, alike(2, 100.0, 1e-9, 0.0), payoff="weighted_sum", strike=90.0, maturity=0.25, paths=300)
    assert answer["price"] == pytest.approx(100.0 - 90.0 * np.exp(-0.05 * 0.25), rel=1e-6)


def test_rare_high_prices_carry_a_put_on_a_spread_but_none_on_a_sum() -> None:
    def warns(*weights: float) -> bool:
        arrays = alike(2, 100.0, 2.0, 0.0) | {"weights": np.array(weights)}
        answer = price(1, arrays, payoff="weighted_sum", option="put", strike=100.0, paths=2_000)
        return any("rare high prices carry a put" in sentence for sentence in answer["warnings"])

    assert warns(1.0, -1.0)
    assert not warns(0.5, 0.5)


@pytest.mark.parametrize("exercise", ["european", "american"])
def test_without_volatility_every_path_pays_the_same(exercise: str) -> None:
    arrays = {**alike(2, 100.0, 0.0), "dividend": [0.0, 0.02]}
    more = {"steps": 3} if exercise == "american" else {}
    answer = price(0, arrays, payoff="best_of", exercise=exercise, strike=90.0, paths=600, **more)
    assert answer["price"] == pytest.approx(100 - 90 * exp(-0.05), rel=1e-12)
    assert (answer["standard_error"], answer["warnings"]) == (0.0, [])


@pytest.mark.parametrize("exercise", ["european", "american"])
def test_prices_scale_with_money(exercise: str) -> None:
    arrays, small = inputs(3), inputs(3)
    small["spot"] = small["spot"] / 1024
    given: dict[str, Any] = {"payoff": "weighted_sum", "exercise": exercise, "paths": 1_000}
    if exercise == "american":
        given |= {"steps": 4, "policy_paths": 500}
    one, other = price(4, arrays, **given), price(4, small, **given, strike=100 / 1024)
    assert one["price"] == 1024 * other["price"]
    assert one["standard_error"] == 1024 * other["standard_error"]


def test_rare_payments_are_told() -> None:
    answer = price(1, inputs(2), payoff="worst_of", strike=400.0, paths=1_000)
    assert answer["price"] == 0.0
    assert "no path paid" in answer["warnings"][0]


@pytest.mark.parametrize("case", [case for case in CASES if case.name.endswith(("controlled", "five-assets"))], ids=str)
def test_neither_chunks_nor_threads_change_a_byte(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    many = Case(case.operation, {**case.params, "paths": 2_049}, case.inputs, seed=case.seed)
    whole, most = many.run(), numba.get_num_threads()
    for chunk in (256, 1_024):
        monkeypatch.setattr(spec, "CHUNK", chunk)
        try:
            for threads in range(1, most + 1):
                numba.set_num_threads(threads)
                assert many.run() == whole
        finally:
            numba.set_num_threads(most)
        assert many.run(EmulatedDevice()) == whole


def test_the_grid_says_what_memory_a_job_takes() -> None:
    for case in CASES:
        device = EmulatedDevice()
        case.run(device)
        infos = {name: ArrayInfo("float64", array.shape) for name, array in case.inputs().items()}
        grid = OPERATION.grid(OPERATION.params.model_validate(case.params), infos)
        assert device.memory.peak <= grid.fixed + grid.chunks * grid.each


GOOD = {"spot": [100.0, 95.0], "volatility": [0.2, 0.3], "correlation": [[1.0, 0.5], [0.5, 1.0]]}


@pytest.mark.parametrize(
    ("params", "arrays", "sentence"),
    [
        ({}, {"correlation": [[1.0, 0.5], [0.4, 1.0]]}, "not symmetric: row 1, column 0 has 0.40000000000000002"),
        ({}, {"correlation": [[1.0, 0.5], [0.5, 0.9]]}, "row 1, column 1 has 0.9"),
        ({}, {"correlation": [[1.0, 1.5], [1.5, 1.0]]}, "row 1, column 0 has 1.5, beyond 1"),
        ({}, {"correlation": [[1.0, 1.0], [1.0, 1.0]]}, "not positive definite: given the assets before it, asset 1"),
        ({}, {"correlation": np.eye(3)}, "shape [3, 3], and spot has 2 assets: correlation needs [2, 2]"),
        ({}, {"correlation": None}, "2 assets need correlations"),
        ({}, {"volatility": [0.2, -0.1]}, "asset 1: volatility -0.1 is neither 0 nor in [1e-09, 50]"),
        ({"maturity": 900.0}, {}, "asset 0: volatility 0.2 over 900 years is a standard deviation of 6"),
        ({"exercise": "american", "rate": 2.0, "maturity": 45.0}, {"volatility": [0.2]}, "is a factor of e^90"),
        ({"maturity": 9.0}, {"dividend": [0.0, 12.0]}, "asset 1: dividend 12 over 9 years"),
        ({"rate": 2.0, "maturity": 60.0}, {}, "rate 2 over 60 years is a factor of e^120"),
        ({}, {"spot": [100.0, 0.0]}, "asset 1: spot 0 is not in [1e-09, 1e+12]"),
        ({}, {"weights": [0.0, 0.0]}, "every weight is 0"),
        ({}, {"weights": [1.0, 2e12]}, "asset 1: weight 2e+12 is beyond 1e+12"),
        ({"steps": 5}, {}, "steps belongs to exercise american"),
        ({"exercise": "american", "steps": 1000, "paths": 50_000_000}, {}, "at most 20,000,000,000 are allowed"),
        ({"exercise": "american", "policy_paths": 10_000_000, "steps": 2}, inputs(12), "at most 1,073,741,824"),
        ({}, inputs(33), "33 assets; at most 32"),
    ],
)
def test_what_cannot_be_priced_is_refused_with_the_numbers(
    params: dict[str, Any], arrays: dict[str, Any], sentence: str
) -> None:
    given = {name: value for name, value in {**GOOD, **arrays}.items() if value is not None}
    with pytest.raises(InvalidRequest) as refused:
        price(1, given, payoff="best_of", **{"paths": 100, **params})
    assert sentence in str(refused.value)
