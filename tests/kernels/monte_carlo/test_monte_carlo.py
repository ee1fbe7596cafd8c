"""What must hold of every simulated price: an independent simulation, parity, edges, and exact identities."""

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.monte_carlo.reference import simulate
from warpdesk_server.kernels.monte_carlo.closed_form import black_scholes
from warpdesk_server.kernels.monte_carlo.cpu import monte_carlo
from warpdesk_server.kernels.monte_carlo.plan import BARRIER_DISCRETE, terms
from warpdesk_server.kernels.monte_carlo.spec import MonteCarloParams, Payoff

PAYOFFS = get_args(Payoff)
MARKET: dict[str, Any] = {
    "option": "call",
    "spot": 100.0,
    "strike": 103.0,
    "rate": 0.04,
    "dividend": 0.01,
    "volatility": 0.35,
    "maturity": 0.5,
}


def params(payoff: str, **changes: Any) -> MonteCarloParams:
    extra: dict[str, Any] = {}
    if payoff.startswith("barrier"):
        extra = {"barrier": 115.0 if "_up_" in payoff else 92.0}
    given = {**MARKET, **extra, **changes}
    if payoff == "lookback_floating":
        del given["strike"]
    return MonteCarloParams(payoff=payoff, **given)


def assert_same_as_reference(p: MonteCarloParams, seed: int) -> None:
    """float32 normals move a path's log price by some 1e-6; the order of everything else is 1e-12."""
    expected = simulate(seed, p)
    answer = monte_carlo(p, seed=seed)
    plain = answer["control_variate"] or {
        "plain_price": answer["price"],
        "plain_standard_error": answer["standard_error"],
    }
    assert plain["plain_price"] == pytest.approx(expected.payoffs.mean(), abs=2e-5 * p.spot)
    error = expected.payoffs.std(ddof=1) / np.sqrt(p.paths)
    assert plain["plain_standard_error"] == pytest.approx(error, rel=1e-4, abs=2e-5 * p.spot)
    for quantile in answer["quantiles"]:
        rank = int(np.ceil(quantile["probability"] * p.paths))
        exact = np.sort(expected.prices[:, -1])[rank - 1]
        assert quantile["price"] == pytest.approx(exact, rel=1.01 * answer["quantile_resolution"] + 1e-5)


@pytest.mark.parametrize("paths", [2, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025])
def test_any_number_of_paths_gives_the_independent_simulation(paths: int) -> None:
    assert_same_as_reference(params("european", steps=3, paths=paths), seed=paths)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 8, 31])
def test_any_number_of_steps_gives_the_independent_simulation(steps: int) -> None:
    assert_same_as_reference(params("asian_arithmetic", steps=steps, paths=100), seed=steps)


@pytest.mark.parametrize("option", ["call", "put"])
@pytest.mark.parametrize("payoff", PAYOFFS)
def test_every_payoff_is_the_independent_simulation(payoff: str, option: str) -> None:
    rebates = {"rebate": 2.5} if payoff.startswith("barrier") else {}
    assert_same_as_reference(params(payoff, option=option, steps=6, paths=600, **rebates), seed=(1 << 63) + 11)


@pytest.mark.parametrize("payoff", [payoff for payoff in PAYOFFS if payoff.startswith("barrier")])
def test_a_barrier_on_dates_is_the_independent_simulation(payoff: str) -> None:
    assert_same_as_reference(params(payoff, steps=6, paths=600, monitoring="discrete", rebate=2.5), seed=12)


@pytest.mark.parametrize("option", ["call", "put"])
@pytest.mark.parametrize("payoff", ["lookback_fixed", "lookback_floating"])
def test_an_extreme_price_on_dates_and_of_before_is_the_independent_simulation(payoff: str, option: str) -> None:
    looks_up = params(payoff, option=option).looks_up
    for extreme, monitoring in ((110.0 if looks_up else 91.0, None), (104.0, "discrete"), (96.0, "discrete")):
        p = params(payoff, option=option, steps=5, paths=500, extreme=extreme, monitoring=monitoring)
        assert_same_as_reference(p, seed=17)


@pytest.mark.parametrize("payoff", ["asian_arithmetic", "asian_geometric"])
def test_an_average_may_include_the_spot(payoff: str) -> None:
    assert_same_as_reference(params(payoff, steps=6, paths=600, include_spot=True), seed=13)


def test_the_control_variate_is_a_regression_on_the_geometric_average() -> None:
    p = params("asian_arithmetic", steps=6, paths=600)
    expected = simulate(14, p)
    answer = monte_carlo(p, seed=14)
    beta = np.polyfit(expected.controls, expected.payoffs, 1)[0]
    corrected = expected.payoffs - beta * (expected.controls - answer["control_variate"]["closed_form"])
    assert answer["control_variate"]["beta"] == pytest.approx(beta, rel=1e-4)
    assert answer["price"] == pytest.approx(corrected.mean(), abs=1e-5)
    assert answer["standard_error"] == pytest.approx(corrected.std(ddof=2) / np.sqrt(600), rel=1e-3)


@pytest.mark.parametrize("paths", [2, 31, 199])
def test_few_paths_take_the_control_as_it_is(paths: int) -> None:
    p = params("asian_arithmetic", steps=6, paths=paths)
    expected = simulate(15, p)
    answer = monte_carlo(p, seed=15)
    corrected = expected.payoffs - expected.controls + answer["control_variate"]["closed_form"]
    assert answer["control_variate"]["beta"] == 1.0
    assert answer["price"] == pytest.approx(corrected.mean(), abs=1e-5)
    assert answer["standard_error"] == pytest.approx(corrected.std(ddof=1) / np.sqrt(paths), rel=1e-2, abs=1e-5)


RARE: dict[str, Any] = {"rate": 0.05, "dividend": 0.0, "maturity": 1.0, "steps": 12}


@pytest.mark.parametrize(
    ("option", "strike", "paths", "paying"),
    [
        ("call", 130.0, 500, 40),
        ("call", 130.0, 2_520, 200),
        ("call", 130.0, 2_700, 214),
        ("call", 150.0, 2_000, 28),
        ("put", 65.0, 3_000, 28),
    ],
)
def test_the_interval_of_a_rarely_paying_average_covers(option: str, strike: float, paths: int, paying: int) -> None:
    """A slope through a few paying paths misses by dozens of standard errors, a slope chosen by their count is biased.

    500 intervals of 95 %: those of a skewed sum are somewhat narrow, so 91 to 98 % is what sampling (1 %) leaves.
    """
    p = params("asian_arithmetic", option=option, strike=strike, paths=paths, **{**RARE, "volatility": 0.3})
    truth = monte_carlo(p.model_copy(update={"paths": 2_000_000}), seed=1 << 40)
    answers = [monte_carlo(p, seed=seed) for seed in range(500)]
    assert np.mean([answer["control_variate"]["paying_paths"] for answer in answers]) == pytest.approx(paying, rel=0.1)
    prices, errors = (np.array([answer[name] for answer in answers]) for name in ("price", "standard_error"))
    assert truth["standard_error"] < 0.1 * errors.min()
    scores = (prices - truth["price"]) / errors
    assert 0.91 < np.mean(np.abs(scores) < 1.96) < 0.98
    assert np.abs(scores).max() < 10
    spread = prices.std(ddof=1)
    assert abs(prices.mean() - truth["price"]) < 4 * spread / np.sqrt(500)
    assert spread < 0.4 * np.std([answer["control_variate"]["plain_price"] for answer in answers])


def test_one_paying_path_draws_no_slope() -> None:
    """Few of 500 paths reach 150; a slope through them alone gave 1.8918 +- 0.0008 for a price of 0.14."""
    p = params("asian_arithmetic", strike=150.0, paths=500, **{**RARE, "volatility": 0.3, "steps": 252})
    answer = monte_carlo(p, seed=298)
    control = answer["control_variate"]
    assert 0 < control["paying_paths"] < 20
    assert (control["beta"], control["beta_estimated"]) == (1.0, False)
    truth = monte_carlo(p.model_copy(update={"paths": 200_000}), seed=1)
    assert truth["control_variate"]["beta_estimated"] is True
    assert abs(answer["price"] - truth["price"]) < 5 * answer["standard_error"]


def test_where_no_control_pays_the_price_is_that_of_the_control() -> None:
    p = params("asian_arithmetic", strike=3_000.0, paths=3_000, **{**RARE, "volatility": 0.5})
    answer = monte_carlo(p, seed=0)
    control = answer["control_variate"]
    assert (answer["paying_paths"], control["paying_paths"], control["beta_estimated"]) == (0, 0, False)
    assert answer["price"] == pytest.approx(control["closed_form"], rel=1e-12)
    assert answer["price"] > 0.0
    assert (answer["standard_error"], control["plain_price"], control["plain_standard_error"]) == (0.0, 0.0, 0.0)
    assert control["variance_reduction"] is None


def test_a_control_that_never_pays_beside_a_payoff_that_does_adds_its_own_value() -> None:
    """At 200 % the arithmetic average passes 3000 where the geometric one does not: the slope was -128 of rounding."""
    p = params("asian_arithmetic", strike=3_000.0, paths=3_000, **{**RARE, "volatility": 2.0, "steps": 52})
    count = 0
    for seed in range(30):
        answer = monte_carlo(p, seed=seed)
        control = answer["control_variate"]
        if control["paying_paths"] == 0:
            count += answer["paying_paths"] > 0
            assert answer["price"] == pytest.approx(control["plain_price"] + control["closed_form"], rel=1e-12)
            assert answer["standard_error"] == pytest.approx(control["plain_standard_error"], rel=1e-9)
    assert count > 0


@pytest.mark.parametrize("option", ["call", "put"])
@pytest.mark.parametrize("payoff", PAYOFFS)
def test_paths_that_pay_are_counted(payoff: str, option: str) -> None:
    p = params(payoff, option=option, steps=6, paths=1_300)
    expected = simulate(21, p)
    answer = monte_carlo(p, seed=21)
    assert answer["paying_paths"] == np.count_nonzero(expected.payoffs)
    if answer["control_variate"] is not None:
        assert answer["control_variate"]["paying_paths"] == np.count_nonzero(expected.controls)


def test_a_payoff_too_rare_for_its_paths_says_that_none_paid() -> None:
    answer = monte_carlo(params("european", strike=400.0, steps=1, paths=1_000), seed=0)
    assert (answer["price"], answer["standard_error"], answer["paying_paths"]) == (0.0, 0.0, 0)
    rare = {"barrier": 60.0, "steps": 4, "monitoring": "discrete", "volatility": 0.1, "rebate": 1.0}
    in_rebate = monte_carlo(params("barrier_down_in", **rare, paths=1_000), seed=0)
    assert in_rebate["paying_paths"] == 1_000


market = st.fixed_dictionaries(
    {
        "spot": st.floats(1, 1000),
        "rate": st.floats(-0.1, 0.2),
        "dividend": st.floats(-0.1, 0.2),
        "volatility": st.floats(0.01, 1.0),
        "maturity": st.floats(0.01, 5.0),
        "steps": st.integers(1, 9),
        "paths": st.integers(2, 600),
    }
)
moneyness = st.floats(0.5, 2)
seeds = st.integers(0, 2**64 - 1)


@given(market, moneyness, moneyness, seeds)
@settings(max_examples=40, deadline=None)
def test_call_less_put_falls_with_the_strike_as_a_bond_does(
    market: dict[str, Any], one: float, two: float, seed: int
) -> None:
    """Put-call parity on the same paths: C - P = e^(-rT) (mean S_T - K), so differences over strikes are exact."""

    def call_less_put(strike: float) -> float:
        return sum(
            sign
            * monte_carlo(
                MonteCarloParams(**market, payoff="european", option=option, strike=strike, quantiles=()), seed=seed
            )["price"]
            for option, sign in (("call", 1.0), ("put", -1.0))
        )

    low, high = one * market["spot"], two * market["spot"]
    discount = np.exp(-market["rate"] * market["maturity"])
    scale = discount * market["spot"] * np.exp(4 * market["volatility"] * np.sqrt(market["maturity"]))
    assert call_less_put(low) - call_less_put(high) == pytest.approx(discount * (high - low), abs=1e-11 * scale)


@pytest.mark.parametrize("payoff", ["asian_arithmetic", "asian_geometric"])
def test_parity_holds_on_an_average_too(payoff: str) -> None:
    def call_less_put(strike: float) -> float:
        one, two = (
            monte_carlo(
                params(payoff, option=option, strike=strike, steps=12, paths=5_000, control_variate=False), seed=5
            )["price"]
            for option in ("call", "put")
        )
        return one - two

    discount = np.exp(-MARKET["rate"] * MARKET["maturity"])
    assert call_less_put(90.0) - call_less_put(120.0) == pytest.approx(30 * discount, abs=1e-10)


@given(
    market,
    moneyness,
    moneyness,
    seeds,
    st.sampled_from(["call", "put"]),
    st.sampled_from(["up", "down"]),
    st.sampled_from(["discrete", "continuous"]),
)
@settings(max_examples=40, deadline=None)
def test_knocked_in_and_knocked_out_make_the_vanilla_option(
    market: dict[str, Any], at: float, level: float, seed: int, option: str, side: str, monitoring: str
) -> None:
    common = {**market, "option": option, "strike": at * market["spot"]}

    def price(payoff: str, **more: Any) -> float:
        answer = monte_carlo(MonteCarloParams(**common, payoff=payoff, **more), seed=seed)
        value: float = answer["price"]
        assert value >= -1e-12 * market["spot"]
        return value

    barrier = {"barrier": level * market["spot"], "monitoring": monitoring}
    both = price(f"barrier_{side}_in", **barrier) + price(f"barrier_{side}_out", **barrier)
    vanilla = price("european")
    assert both == pytest.approx(vanilla, rel=1e-12, abs=1e-12 * market["spot"])


def test_a_digital_call_and_put_are_all_of_it() -> None:
    """On the same paths cash is a bond, and the asset its forward; asset less strike times cash is the option."""
    common = {"steps": 3, "paths": 5_000}

    def price(payoff: str, option: str, **more: Any) -> float:
        found: float = monte_carlo(params(payoff, option=option, **common, **more), seed=3)["price"]
        return found

    discount = np.exp(-MARKET["rate"] * MARKET["maturity"])
    assert sum(price("cash_or_nothing", option, payout=7.0) for option in ("call", "put")) == pytest.approx(
        7 * discount
    )
    both = [price("asset_or_nothing", option) for option in ("call", "put")]
    assert sum(both) == pytest.approx(price("european", "call", strike=1e-9), rel=1e-9)
    cash = price("cash_or_nothing", "call", payout=MARKET["strike"])
    assert both[0] - cash == pytest.approx(price("european", "call"), rel=1e-12)


def test_looking_more_often_finds_more() -> None:
    """The same paths on dates and at all times; and a fixed strike at the extreme so far is worth a floating one."""
    for payoff, option in (("lookback_fixed", "call"), ("lookback_fixed", "put"), ("lookback_floating", "call")):
        few, all_times = (
            monte_carlo(params(payoff, option=option, steps=10, paths=5_000, monitoring=monitoring), seed=1)["price"]
            for monitoring in ("discrete", None)
        )
        assert few < all_times
    # max(M, 120) - S_T and max(M - 120, 0) differ by 120 - S_T, whose value is known.
    floating = monte_carlo(params("lookback_floating", option="put", extreme=120.0, steps=4, paths=5_000), seed=1)[
        "price"
    ]
    fixed = monte_carlo(params("lookback_fixed", strike=120.0, steps=4, paths=5_000), seed=1)["price"]
    asset = monte_carlo(params("european", strike=1e-9, steps=4, paths=5_000), seed=1)["price"]
    assert floating == pytest.approx(fixed + 120 * np.exp(-0.02) - asset, rel=1e-9)


def test_watching_more_often_knocks_more_often() -> None:
    """The same paths on dates and at all times: the bridge can only remove value from a knock-out."""
    for payoff in ("barrier_up_out", "barrier_down_out"):
        dates = monte_carlo(params(payoff, steps=10, paths=20_000, monitoring="discrete"), seed=1)["price"]
        always = monte_carlo(params(payoff, steps=10, paths=20_000), seed=1)["price"]
        assert always < dates


@pytest.mark.parametrize(
    ("payoff", "level"), [("barrier_up_out", 100.0), ("barrier_up_out", 90.0), ("barrier_down_out", 101.0)]
)
@pytest.mark.parametrize("monitoring", ["discrete", "continuous"])
def test_an_option_past_its_barrier_is_knocked_at_the_start(payoff: str, level: float, monitoring: str) -> None:
    out = monte_carlo(params(payoff, barrier=level, monitoring=monitoring, rebate=3.0, steps=2, paths=100), seed=2)
    assert out["knocked_at_start"] is True
    assert (out["price"], out["standard_error"]) == (3.0, 0.0)
    kind = payoff.replace("_out", "_in")
    knocked_in = monte_carlo(params(kind, barrier=level, monitoring=monitoring, rebate=3.0, steps=2, paths=100), seed=2)
    assert knocked_in["price"] == monte_carlo(params("european", steps=2, paths=100), seed=2)["price"]


def test_only_a_barrier_option_says_whether_it_was_knocked_at_the_start() -> None:
    assert monte_carlo(params("european", steps=1, paths=2), seed=0)["knocked_at_start"] is None
    assert monte_carlo(params("barrier_up_in", steps=1, paths=2), seed=0)["knocked_at_start"] is False


@pytest.mark.parametrize("payoff", PAYOFFS)
def test_without_volatility_every_path_is_the_forward(payoff: str) -> None:
    """The price has no error at all, whichever the payoff; a call is deep in the money here."""
    p = params(payoff, volatility=0.0, strike=50.0, steps=8, paths=300)
    answer = monte_carlo(p, seed=3)
    forward = p.spot * np.exp((p.rate - p.dividend) * p.maturity)
    fixings = p.spot * np.exp((p.rate - p.dividend) * p.maturity * np.arange(1, 9) / 8)
    paid = {
        "asian_arithmetic": fixings.mean() - 50,
        "asian_geometric": np.exp(np.log(fixings).mean()) - 50,
        "cash_or_nothing": 1.0,
        "asset_or_nothing": forward,
        "lookback_floating": forward - p.spot,
    }.get(payoff, forward - 50)
    expected = 0.0 if payoff.endswith("_in") else np.exp(-p.rate * p.maturity) * paid
    assert answer["price"] == pytest.approx(expected, rel=1e-14)
    assert answer["standard_error"] == 0.0
    assert answer["quantile_resolution"] == 0.0
    assert [quantile["price"] for quantile in answer["quantiles"]] == pytest.approx([forward] * 3, rel=1e-14)


def test_a_path_without_noise_reaches_a_barrier_its_drift_leads_to() -> None:
    rising = {"volatility": 0.0, "rate": 0.5, "dividend": 0.0, "maturity": 1.0, "steps": 4, "paths": 2}
    out = monte_carlo(params("barrier_up_out", barrier=110.0, rebate=1.0, **rising), seed=0)
    # 100 e^(0.5 t) is past 110 at the first date, t = 1/4, where the rebate is paid.
    assert out["price"] == pytest.approx(np.exp(-0.5 / 4), rel=1e-14)


@pytest.mark.parametrize("volatility", [0.0, 1e-9])
def test_a_barrier_no_path_comes_near_is_missed_however_small_the_noise(volatility: float) -> None:
    """10^4 steps of the least maturity: the step's deviation, 3e-16, is the smallest there is."""
    still = {"volatility": volatility, "maturity": 1e-9, "steps": 10_000, "paths": 2, "strike": 50.0}
    for payoff in ("barrier_up_out", "barrier_down_out"):
        assert monte_carlo(params(payoff, **still), seed=0)["price"] == pytest.approx(50.0, rel=1e-7)
    for payoff in ("barrier_up_in", "barrier_down_in"):
        assert monte_carlo(params(payoff, **still), seed=0)["price"] == 0.0


def test_the_kind_of_barrier_is_decided_by_the_noise_of_a_step() -> None:
    """Below the least volatility, where a step's deviation underflows to 0, distances to the barrier have no unit."""
    p = params("barrier_down_out", steps=4).model_copy(update={"volatility": 1e-323, "maturity": 1e-4})
    assert terms(p).diffusion == 0.0
    assert terms(p).kind == BARRIER_DISCRETE
    assert monte_carlo(p, seed=0)["price"] == 0.0


def test_the_mean_of_the_terminal_price_is_the_forward() -> None:
    """A call with next to no strike is the asset itself: e^(-rT) E[S_T] = S0 e^(-qT)."""
    scores = []
    for seed in range(20):
        answer = monte_carlo(params("european", strike=1e-9, steps=5, paths=100_000), seed=seed)
        scores.append((answer["price"] - 100.0 * np.exp(-0.01 * 0.5)) / answer["standard_error"])
    assert max(map(abs, scores)) < 4
    assert abs(np.mean(scores)) < 4 / np.sqrt(20)


def test_the_error_falls_as_the_root_of_the_paths() -> None:
    errors = [
        monte_carlo(params("european", steps=1, paths=paths), seed=0)["standard_error"]
        for paths in (10_000, 40_000, 160_000)
    ]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.05)


def test_quantiles_of_the_terminal_price_are_those_of_a_lognormal() -> None:
    probabilities = (0.001, 0.01, 0.25, 0.5, 0.75, 0.99, 0.999)
    p = params("european", steps=4, paths=1_000_000, quantiles=probabilities)
    answer = monte_carlo(p, seed=8)
    spread = p.volatility * np.sqrt(p.maturity)
    middle = (p.rate - p.dividend - p.volatility**2 / 2) * p.maturity
    from scipy.stats import norm

    for quantile in answer["quantiles"]:
        probability = quantile["probability"]
        z = norm.ppf(probability)
        error = np.sqrt(probability * (1 - probability) / p.paths) / norm.pdf(z)
        found = (np.log(quantile["price"] / p.spot) - middle) / spread
        assert abs(found - z) < 4 * error + 0.5 / 1024
    assert [quantile["probability"] for quantile in answer["quantiles"]] == list(probabilities)


def test_different_seeds_are_different_paths_and_the_same_seed_the_same() -> None:
    p = params("european", steps=2, paths=500)
    seeds = [0, 1, 1 << 31, 1 << 32, (1 << 32) + 1, 1 << 63, (1 << 64) - 1]
    prices = {monte_carlo(p, seed=seed)["price"] for seed in seeds}
    assert len(prices) == len(seeds)
    assert monte_carlo(p, seed=1 << 63) == monte_carlo(p, seed=1 << 63)


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_a_seed_that_is_no_64_bit_word_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=r"not in \[0, 2\^64\)"):
        monte_carlo(params("european", steps=1, paths=2), seed=seed)


def test_extreme_but_allowed_parameters_stay_finite() -> None:
    for changes in (
        {"spot": 1e12, "strike": 1e-9, "volatility": 5.0, "maturity": 1.0, "rate": 10.0},
        {"spot": 1e-9, "strike": 1e12, "volatility": 0.158, "maturity": 1000.0, "rate": 0.1, "dividend": -0.1},
        {"volatility": 1e-9, "maturity": 1e-9},
    ):
        for payoff in PAYOFFS:
            answer = monte_carlo(params(payoff, steps=3, paths=300, **changes), seed=4)
            low, high = answer["confidence_interval"]
            assert np.isfinite([answer["price"], answer["standard_error"], low, high]).all()
            assert low <= answer["price"] <= high


def test_prices_of_a_long_run_approach_black_scholes() -> None:
    """Four million paths: an error of 1e-4 of the spot, where a biased generator would show."""
    p = params("european", steps=4, paths=4_000_000)
    answer = monte_carlo(p, seed=2024)
    exact = black_scholes("call", p.spot, p.strike, p.rate, p.dividend, p.volatility, p.maturity)
    assert answer["standard_error"] < 1e-4 * p.spot
    assert abs(answer["price"] - exact) < 4 * answer["standard_error"]
