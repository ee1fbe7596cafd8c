"""Implied volatilities are as good as the price tells them, and what tells nothing has the status that says so."""

from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.parity import Case
from tests.kernels.vanilla_options import exact
from tests.kernels.vanilla_options.cases import MODELS, book, quotes
from tests.vectors import options
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.problems import InvalidRequest

Array = npt.NDArray[Any]
NAN = np.nan
MARKET = {"spot": 100.0, "strike": 100.0, "rate": 0.05, "dividend": 0.02, "maturity": 1.0}


def run(operation: str, **given: Any) -> dict[str, Array]:
    """The answer for arrays and lists as inputs, and all else as params."""
    arrays = {name: given.pop(name) for name in tuple(given) if isinstance(given[name], list | np.ndarray)}
    inputs = {name: np.asarray(array, np.uint8 if name == "is_call" else float) for name, array in arrays.items()}
    return Case(operation, given, lambda: inputs).run()


def implied(**given: Any) -> tuple[Array, Array]:
    found = run("implied_volatility", **given)
    return found["volatility"], found["status"]


@pytest.mark.parametrize("row", options.HAUG_EUROPEAN)
def test_the_prices_of_haug_imply_his_volatilities(row: options.European) -> None:
    market = {"spot": row.spot, "strike": row.strike, "rate": row.r, "dividend": row.q, "maturity": row.maturity}
    volatility, status = implied(option=row.option, price=row.price, **market)
    vega = run("black_scholes", option=row.option, volatility=row.volatility, **market)["vega"]
    assert status.tolist() == [0]
    assert volatility[0] == pytest.approx(row.volatility, abs=6e-5 / vega[0])  # prices are printed to four digits


def _random_gaps(random: np.random.Generator) -> tuple[Array, Array]:
    """|ln(forward / strike)| and spreads: from at the money to far out of it, from a minute to a century."""
    gaps = [random.uniform(0, 5, 250), np.exp(random.uniform(-16, 0, 250)), np.zeros(60)]
    spreads = [random.uniform(0.1, 6, 250), np.exp(random.uniform(-7, 0.7, 250)), np.exp(random.uniform(-14, 2, 60))]
    return np.concatenate(gaps), np.concatenate(spreads)


@pytest.mark.parametrize("option", ["call", "put"])
def test_a_volatility_is_within_four_units_of_what_the_price_tells(option: str) -> None:
    """A unit is the last place of the volatility, and the change that the last place of the price makes."""
    gaps, spreads = _random_gaps(np.random.default_rng(4))
    strikes = 100 * np.exp(gaps if option == "call" else -gaps)
    prices, vegas = np.empty_like(gaps), np.empty_like(gaps)
    with mpmath.workdps(50):
        for i, (strike, spread) in enumerate(zip(strikes.tolist(), spreads.tolist(), strict=True)):
            numbers = (100, mpmath.mpf(strike), 0, 0, mpmath.mpf(spread), 1)
            prices[i] = float(exact.price("black76", option == "call", *numbers))
            d = mpmath.log(100 / numbers[1]) / spread + mpmath.mpf(spread) / 2
            vegas[i] = float(100 * mpmath.npdf(d))
    found, status = implied(
        model="black76", option=option, forward=100.0, strike=strikes, rate=0.0, maturity=1.0, price=prices
    )
    sure = status == 0
    assert sure.sum() > 500
    assert (status[~sure] == 3).all()
    assert (prices[~sure] < 1e-286).all()
    found, spreads, prices, vegas = found[sure], spreads[sure], prices[sure], vegas[sure]
    error = np.abs(found - spreads) / (np.spacing(spreads) + np.spacing(prices) / vegas)
    assert error.max() < 4
    assert np.quantile(error, 0.95) < 2


def test_volatilities_at_the_money_are_found_however_small() -> None:
    """There the price is 100 erf(s / sqrt(8)), and s the price over 100 n(0) for small s."""
    spreads = 10.0 ** -np.arange(1.0, 30.0)
    with mpmath.workdps(50):
        prices = np.array([float(100 * mpmath.erf(mpmath.mpf(spread) / mpmath.sqrt(8))) for spread in spreads.tolist()])
    for option in ("call", "put"):
        market = {"model": "black76", "option": option, "forward": 100.0, "strike": 100.0, "rate": 0.0, "maturity": 1.0}
        found, status = implied(price=prices, **market)
        assert not status.any()
        assert np.abs(found / spreads - 1).max() < 1e-15


@pytest.mark.parametrize("apart", [2.0**-52, 2.0**-49, 1e-14, 1e-12, 1e-9, 1e-7])
def test_volatilities_near_the_money_are_found_however_small(apart: float) -> None:
    """A unit is as above. From far in the tail to a spread that does not notice the strike."""
    strike, prices, spreads, vegas = 1 + apart, [], [], []
    with mpmath.workdps(50):
        gap = mpmath.log(mpmath.mpf(strike))
        for ratio in (30.0, 10.0, 3.0, 1.0, 0.1, 1e-3, 1e-6):
            spread = float(gap / ratio)
            d = -gap / mpmath.mpf(spread) + mpmath.mpf(spread) / 2
            prices.append(float(exact.price("black76", True, 1, mpmath.mpf(strike), 0, 0, mpmath.mpf(spread), 1)))
            spreads.append(spread)
            vegas.append(float(mpmath.npdf(d)))
    found, status = implied(
        model="black76", option="call", forward=1.0, strike=strike, rate=0.0, maturity=1.0, price=prices
    )
    assert not status.any()
    error = np.abs(found - spreads) / (np.spacing(spreads) + np.spacing(prices) / np.array(vegas))
    assert error.max() < 4


def test_prices_of_all_kinds_come_back() -> None:
    """Tolerance: roundings of the option's amounts, in the money many times its time value."""
    for model in MODELS:
        inputs = quotes(2_000, model)
        volatility, status = implied(model=model, **inputs)
        found = status == 0
        assert found.sum() > 1_000
        again = {name: array[found] for name, array in inputs.items()}
        price = again.pop("price")
        back = run("black_scholes", model=model, volatility=volatility[found], **again)["price"]
        amounts = np.abs(next(iter(again.values()))) + np.abs(again["strike"])
        growth = np.exp(0.02 * again["maturity"])  # rates are -0.02 at least
        assert (np.abs(back - price) <= 1e-15 * amounts * growth + 1e-12 * price).all()


def test_a_normal_volatility_is_within_two_units_of_what_the_price_tells() -> None:
    """A unit is as above. From at the money to 36 standard deviations out of it, for spreads from tiny to huge."""
    random = np.random.default_rng(6)
    distances = np.concatenate([random.uniform(0, 36, 400), np.exp(random.uniform(-40, 0, 250)), np.zeros(30)])
    spreads = np.exp(random.uniform(-40, 40, distances.size))
    strikes = distances * spreads * random.choice([-1.0, 1.0], distances.size)
    prices, vegas = np.empty_like(spreads), np.empty_like(spreads)
    with mpmath.workdps(50):
        for i, (strike, spread) in enumerate(zip(strikes.tolist(), spreads.tolist(), strict=True)):
            prices[i] = float(exact.price("bachelier", strike > 0, 0, mpmath.mpf(strike), 0, 0, mpmath.mpf(spread), 1))
            vegas[i] = float(mpmath.npdf(mpmath.mpf(strike) / mpmath.mpf(spread)))
    market = {"model": "bachelier", "forward": 0.0, "rate": 0.0, "maturity": 1.0}
    found, status = implied(strike=strikes, price=prices, is_call=strikes > 0, **market)
    sure = status == 0
    assert sure.sum() > 600
    assert (status[~sure] == 3).all()
    assert (prices[~sure] <= 1e-250).all()
    error = np.abs(found - spreads)[sure] / (np.spacing(spreads) + np.spacing(prices) / vegas)[sure]
    assert error.max() < 2
    assert np.quantile(error, 0.95) < 1


@pytest.mark.parametrize(
    ("option", "given", "status"),
    [
        ("call", {"price": 30.0}, 0),
        ("call", {"price": 98.1}, 2),  # a call is worth at most 100 e^-0.02
        ("put", {"price": 95.2}, 2),  # a put at most 100 e^-0.05
        ("call", {"price": 2.0}, 1),  # the forward less the strike is worth 2.9
        ("put", {"price": 0.0}, 3),
        ("put", {"price": -0.5}, 1),
        ("call", {"price": 100 * np.exp(-0.02) - 100 * np.exp(-0.05)}, 3),
        ("call", {"price": 5.0, "maturity": 0.0}, 2),
        ("call", {"price": 0.0, "maturity": 0.0}, 3),
        ("call", {"price": 20.0, "strike": 80.0, "maturity": 0.0}, 3),
        ("call", {"price": 50.0, "strike": 0.0}, 1),
        ("call", {"price": 100 * np.exp(-0.02), "strike": 0.0}, 3),
        ("call", {"price": 5.0, "spot": 0.0}, 2),
        ("put", {"price": 1e-295, "strike": 1.0}, 3),
    ],
)
def test_the_status_says_what_a_price_tells(option: str, given: dict[str, float], status: int) -> None:
    volatility, found = implied(option=option, **{**MARKET, **given})
    assert found.tolist() == [status]
    assert np.isnan(volatility[0]) == (status != 0)


@pytest.mark.parametrize(
    ("option", "given", "status"),
    [
        ("call", {"price": 1e4}, 0),  # no volatility is too high
        ("call", {"price": 0.009}, 1),  # the forward less the strike is worth 0.01 e^-0.02
        ("put", {"price": 0.0}, 3),
        ("put", {"price": -1e-9}, 1),
        ("put", {"price": 1e-251}, 3),
        ("put", {"price": 1e-249}, 0),
        ("call", {"price": 0.02, "maturity": 0.0}, 2),
        ("call", {"price": 0.01, "strike": -0.01, "forward": 0.0, "maturity": 0.0}, 3),
        ("call", {"price": 0.02, "strike": 0.01}, 0),  # at the money
        ("put", {"price": 1e51}, 4),
    ],
)
def test_the_status_says_what_a_price_tells_of_a_normal_volatility(
    option: str, given: dict[str, float], status: int
) -> None:
    market = {"model": "bachelier", "forward": 0.01, "strike": 0.0, "rate": 0.02, "maturity": 1.0}
    numbers = {name: [number] for name, number in {**market, **given}.items() if name != "model"}
    volatility, found = implied(model="bachelier", option=option, **numbers)
    assert found.tolist() == [status]
    assert np.isnan(volatility[0]) == (status != 0)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *(("black_scholes_merton", name) for name in ("spot", "strike", "rate", "dividend", "price", "maturity")),
        *(("bachelier", name) for name in ("forward", "strike", "rate", "price", "maturity")),
    ],
)
def test_nan_and_numbers_out_of_range_have_the_status_4_and_touch_no_other_option(model: str, name: str) -> None:
    inputs = quotes(5, model)
    del inputs["price"]
    inputs["price"] = run("black_scholes", model=model, volatility=[0.2] * 5, **inputs)["price"]
    whole, first = implied(model=model, **inputs)
    negative = ("maturity",) if model == "bachelier" else ("spot", "strike", "maturity")
    for wrong in [NAN, 1e51, *([-1.0] if name in negative else [])]:
        changed = inputs | {name: np.where(np.arange(5) == 2, wrong, inputs[name])}
        volatility, status = implied(model=model, **changed)
        assert status[2] == 4
        assert np.isnan(volatility[2])
        assert np.array_equal(np.delete(status, 2), np.delete(first, 2))
        assert np.array_equal(np.delete(volatility, 2), np.delete(whole, 2), equal_nan=True)


@pytest.mark.parametrize("gap", [0.0, 1e-6, 0.01, 0.3, 3.0])
def test_a_higher_price_implies_a_higher_volatility_across_the_inflection(gap: float) -> None:
    spreads = np.sqrt(2 * gap) * np.linspace(0.9, 1.1, 101) if gap else np.linspace(1e-3, 6, 101)
    market = {"model": "black76", "option": "call", "forward": 100.0, "rate": 0.0, "maturity": 1.0}
    strike = 100 * np.exp(gap)
    prices = run("black_scholes", volatility=spreads, strike=strike, **market)["price"]
    volatility, _ = implied(price=prices, strike=strike, **market)
    assert (np.diff(volatility) > 0).all()
    assert volatility == pytest.approx(spreads, rel=3e-12)


@pytest.mark.parametrize(
    ("model", "steps", "most", "least"),
    [("black_scholes_merton", "HALLEY_STEPS", 6.0, 1e-3), ("bachelier", "NORMAL_STEPS", np.inf, 1e-6)],
)
def test_more_steps_change_no_volatility_by_more_than_rounding(
    model: str, steps: str, most: float, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = quotes(3_000, model)
    volatility, _ = implied(model=model, **inputs)
    monkeypatch.setattr(f"warpdesk_server.kernels.vanilla_options.cpu.{steps}", 8)
    more, _ = implied(model=model, **inputs)
    sure = ~np.isnan(volatility) & (volatility * np.sqrt(inputs["maturity"]) < most)  # beyond, prices tell little
    assert np.abs(more / volatility - 1)[sure].max() < 2e-13
    monkeypatch.setattr(f"warpdesk_server.kernels.vanilla_options.cpu.{steps}", 0)
    less, _ = implied(model=model, **inputs)
    assert np.abs(less / volatility - 1)[sure].max() > least


@pytest.mark.parametrize("model", ["black_scholes_merton", "bachelier"])
def test_neither_the_place_nor_the_number_of_options_nor_how_they_are_given_changes_a_byte(model: str) -> None:
    inputs = quotes(1025, model)
    whole, statuses = implied(model=model, **inputs)
    for size in (1, 31, 32, 33, 127, 128, 129, 1023, 1024):
        volatility, status = implied(model=model, **{name: array[-size:] for name, array in inputs.items()})
        assert volatility.tobytes() == whole[-size:].tobytes()
        assert (status.dtype, status.tobytes()) == (np.uint8, statuses[-size:].tobytes())
    single = {name: float(array[7]) for name, array in inputs.items() if name != "is_call"}
    volatility, _ = implied(model=model, option="call" if inputs["is_call"][7] else "put", **single)
    assert volatility.tobytes() == whole[7:8].tobytes()


@pytest.mark.parametrize(
    ("params", "inputs", "pointer", "words"),
    [
        ({}, {}, "/params/price", "black_scholes_merton needs price: one number in params or an array in inputs"),
        ({"price": 5.0}, {"price": ArrayInfo("float64", (3,))}, "/params/price", "price is given as the number 5 and"),
        ({"price": 5.0, "volatility": 0.2}, {}, "/params/volatility", "there is no field 'volatility' here"),
        (
            {"price": 5.0, "model": "heston"},
            {},
            "/params/model",
            "model should be 'black_scholes_merton', 'black76' or",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused_in_a_sentence(
    params: dict[str, Any], inputs: dict[str, ArrayInfo], pointer: str, words: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        OPERATIONS["implied_volatility"].validate({"option": "call", **MARKET, **params}, inputs)
    [problem] = refused.value.problems
    assert problem.pointer == pointer
    assert words in problem.detail


def test_the_random_options_have_volatilities_to_be_found() -> None:
    inputs = book(500)
    expected = inputs.pop("volatility")
    price = run("black_scholes", volatility=expected, **inputs)["price"]
    volatility, status = implied(price=price, **inputs)
    assert (status == 0).mean() > 0.7
    assert np.median(np.abs(volatility / expected - 1)[status == 0]) < 1e-14
