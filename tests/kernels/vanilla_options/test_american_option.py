"""American options are those of QuantLib's best engine, of a binomial tree and of closed forms at the edges."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.parity import Case
from tests.kernels.vanilla_options.cases import book, early_book
from tests.vectors import options
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.kernels.vanilla_options.schemes import table
from warpdesk_server.kernels.vanilla_options.spec import SCHEMES

Array = npt.NDArray[Any]
NAN, INF = np.nan, np.inf
GREEKS = ("delta", "gamma", "vega", "theta", "rho")
MARKET = {"spot": 100.0, "strike": 100.0, "rate": 0.05, "dividend": 0.02, "volatility": 0.2, "maturity": 1.0}


def run(operation: str, **given: Any) -> dict[str, Any]:
    """The answer for arrays and lists as inputs, and all else as params."""
    arrays = {name: given.pop(name) for name in tuple(given) if isinstance(given[name], list | np.ndarray)}
    inputs = {name: np.asarray(array, np.uint8 if name == "is_call" else float) for name, array in arrays.items()}
    return Case(operation, given, lambda: inputs).run()


def american(**given: Any) -> dict[str, Any]:
    return run("american_option", **given)


def everyday(count: int) -> dict[str, Array]:
    """Options of a month to two years near the money."""
    random = np.random.default_rng(5)
    return {
        "spot": random.uniform(80, 125, count),
        "strike": np.full(count, 100.0),
        "rate": random.uniform(0.01, 0.1, count),
        "dividend": random.uniform(0.0, 0.1, count),
        "volatility": random.uniform(0.1, 0.5, count),
        "maturity": random.uniform(0.1, 2, count),
        "is_call": random.integers(0, 2, count).astype(np.uint8),
    }


def rows(published: tuple[options.European, ...]) -> dict[str, Any]:
    found = np.array([row[1:7] for row in published]).T
    names = ("strike", "spot", "dividend", "rate", "maturity", "volatility")
    return {**dict(zip(names, found, strict=True)), "is_call": [row.option == "call" for row in published]}


@pytest.mark.parametrize("accuracy", SCHEMES)
def test_prices_are_those_of_quantlib_to_the_stated_error(accuracy: str) -> None:
    """The strikes are 80 to 125. QuantLib is good to 1e-7."""
    found = american(accuracy=accuracy, **rows(options.QUANTLIB_AMERICAN))
    error = np.abs(found["price"] - [row.price for row in options.QUANTLIB_AMERICAN])
    assert error.max() < 1.25 * SCHEMES[accuracy].max_error
    assert found["scheme"] == {"accuracy": accuracy, **SCHEMES[accuracy]._asdict()}


def test_a_larger_scheme_is_nearer_to_the_truth_by_what_is_stated() -> None:
    inputs = everyday(200)
    fast, accurate, high = (american(accuracy=name, **inputs)["price"] for name in ("fast", "accurate", "high"))
    assert 1e-6 < np.sqrt(np.mean((accurate - high) ** 2)) < SCHEMES["accurate"].rms_error
    assert 1e-5 < np.sqrt(np.mean((fast - high) ** 2)) < SCHEMES["fast"].rms_error


def test_the_published_premium_is_found() -> None:
    """Andersen, Lake and Offengenden (2016), table 2: the premium for early exercise of a put, with r = q."""
    market = {**MARKET, "rate": 0.05, "dividend": 0.05, "volatility": 0.25, "option": "put"}
    premium = american(accuracy="high", **market)["price"] - run("black_scholes", **market)["price"]
    assert premium[0] == pytest.approx(0.106952702747, abs=2e-7)


def _tree(call: bool, spot: float, strike: float, rate: float, dividend: float, sigma: float, years: float) -> float:
    """The price by the binomial tree of Cox, Ross and Rubinstein, the mean of 1,000 and 1,001 steps."""
    prices = []
    for steps in (1000, 1001):
        up = np.exp(sigma * np.sqrt(years / steps))
        chance = (np.exp((rate - dividend) * years / steps) - 1 / up) / (up - 1 / up)
        discount, sign = np.exp(-rate * years / steps), 1 if call else -1
        values = np.maximum(sign * (spot * up ** np.arange(-steps, steps + 1, 2.0) - strike), 0)
        for step in range(steps - 1, -1, -1):
            values = discount * (chance * values[1:] + (1 - chance) * values[:-1])
            values = np.maximum(values, sign * (spot * up ** np.arange(-step, step + 1, 2.0) - strike))
        prices.append(values[0])
    return float(np.mean(prices))


def test_prices_are_those_of_a_binomial_tree() -> None:
    """The tree's error is about a part in 1,000 of the price's time value."""
    inputs = everyday(6)
    found = american(**inputs)["price"]
    for i, numbers in enumerate(np.stack([inputs[name] for name in MARKET], axis=1)):
        assert found[i] == pytest.approx(_tree(bool(inputs["is_call"][i]), *numbers), abs=4e-3)


def test_greeks_are_derivatives_of_the_price() -> None:
    """Tolerance: the differences of a scheme whose error is 5e-6; where an option is nearly exercised gamma jumps."""
    inputs = everyday(40)
    found = american(accuracy="high", **inputs)

    def moved(name: str, step: float) -> Array:
        up, down = ({**inputs, name: inputs[name] + sign * step} for sign in (1, -1))
        difference: Array = american(accuracy="high", **up)["price"] - american(accuracy="high", **down)["price"]
        return difference / (2 * step)

    alive = found["status"] == 0
    assert alive.sum() > 30
    assert np.abs(found["delta"] - moved("spot", 1e-3)).max() < 1e-7
    assert np.abs(found["vega"] - moved("volatility", 1e-4)).max() < 1e-3
    assert np.abs(found["rho"] - moved("rate", 1e-4)).max() < 5e-3
    assert np.abs(found["theta"] + moved("maturity", 1e-4)).max() < 1e-4
    deltas = [american(accuracy="high", **{**inputs, "spot": inputs["spot"] + step})["delta"] for step in (0.01, -0.01)]
    assert np.abs(found["gamma"] - (deltas[0] - deltas[1]) / 0.02)[alive].max() < 1e-4


def test_market_units_are_parts_of_the_others() -> None:
    inputs = everyday(50)
    unit, market = american(**inputs), american(per="market", **inputs)
    for name, part in {"vega": 0.01, "rho": 0.01, "theta": 1 / 365, "gamma": 1.0, "delta": 1.0}.items():
        assert market[name] == pytest.approx(unit[name] * part, rel=1e-12, abs=1e-15)


def test_a_call_is_the_put_of_an_asset_worth_its_strike() -> None:
    """McDonald and Schroder (1998). Tolerance: roundings of prices near 100."""
    inputs = everyday(300)
    turned = {
        **inputs,
        "spot": inputs["strike"],
        "strike": inputs["spot"],
        "rate": inputs["dividend"],
        "dividend": inputs["rate"],
        "is_call": 1 - inputs["is_call"],
    }
    one, other = american(**inputs), american(**turned)
    assert one["price"] == pytest.approx(other["price"], abs=1e-12)
    product = one["critical_price"] * other["critical_price"]
    assert product == pytest.approx(inputs["strike"] * inputs["spot"], rel=1e-12)
    assert one["price"] == pytest.approx(inputs["spot"] * one["delta"] + turned["spot"] * other["delta"], abs=1e-10)


def test_an_option_is_worth_no_less_than_exercised_or_as_a_european_one() -> None:
    inputs = book(2_000)
    found, european = american(accuracy="fast", **inputs), run("black_scholes", **inputs)
    sign = np.where(inputs["is_call"] > 0, 1, -1)
    inner = np.maximum(sign * (inputs["spot"] - inputs["strike"]), 0)
    sure = found["status"] < 4
    assert sure.sum() > 1_900
    slack = 1e-13 * (inputs["spot"] + inputs["strike"])
    assert (found["price"] >= np.maximum(inner, european["price"]) - slack)[sure].all()
    assert (found["price"] == inner)[found["status"] == 1].all()
    never = found["status"] == 2
    assert never.sum() > 100
    for name in ("price", *GREEKS):
        assert np.array_equal(found[name][never], european[name][never])
    assert np.isin(found["critical_price"][never], [0, INF]).all()


def test_the_boundary_of_a_long_option_is_that_of_a_perpetual_one() -> None:
    """Merton (1973): a perpetual put is exercised at K h / (h + 1), and worth (K - B) (S / B)^-h above it."""
    rate, dividend, volatility = 0.1, 0.04, 0.3
    drift = (rate - dividend) / volatility**2 - 0.5
    power = drift + np.sqrt(drift**2 + 2 * rate / volatility**2)
    bound = 100 * power / (power + 1)
    market = {"strike": 100.0, "rate": rate, "dividend": dividend, "volatility": volatility, "maturity": 95.0}
    found = american(option="put", spot=[bound - 1e-3, bound + 5, 150.0], accuracy="high", **market)
    assert found["critical_price"] == pytest.approx(bound, abs=1e-3)
    assert found["price"][1:] == pytest.approx((100 - bound) * (np.array([bound + 5, 150]) / bound) ** -power, abs=2e-3)


@pytest.mark.parametrize("option", ["put", "call"])
def test_price_and_delta_run_smoothly_into_exercise(option: str) -> None:
    market = {**MARKET, "option": option, "dividend": 0.06}
    bound = american(accuracy="high", **market)["critical_price"][0]
    sign = -1 if option == "put" else 1
    spots = bound * (1 + sign * np.array([1e-6, -1e-6, -1e-3]))
    found = american(accuracy="high", **{**market, "spot": spots})
    assert found["status"].tolist() == [1, 0, 0]
    assert found["price"] == pytest.approx(sign * (spots - 100), abs=1e-4)
    assert found["delta"] == pytest.approx(sign, abs=1e-2)
    # What is earned by exercise, r K - q S, is what gamma is worth just before.
    curve = 2 * sign * (0.06 * bound - 0.05 * 100) / (0.2 * bound) ** 2
    assert found["gamma"][:2] == pytest.approx([0, curve], rel=1e-3)
    assert [found[name][0] for name in ("gamma", "vega", "theta", "rho")] == [0, 0, 0, 0]


def test_without_time_an_option_is_worth_what_exercise_brings() -> None:
    put = american(option="put", **{**MARKET, "maturity": 0.0, "strike": [80.0, 100.0, 120.0]})
    assert put["price"].tolist() == [0, 0, 20]
    assert put["delta"].tolist() == [0, 0, -1]
    assert put["status"].tolist() == [0, 0, 1]
    assert put["critical_price"].tolist() == [80, 100, 120]
    assert put["theta"].tolist() == put["vega"].tolist() == put["rho"].tolist() == [0, 0, 0]


def test_without_volatility_an_option_is_exercised_at_the_best_time() -> None:
    """QuantLib's edge case: the put is best exercised after 7.6 years, at ln(q S / (r K)) / (q - r)."""
    market = {"spot": 100.0, "strike": 120.0, "rate": 0.01, "dividend": 0.5, "maturity": 40.0, "option": "put"}
    when = np.log(0.5 * 100 / (0.01 * 120)) / 0.49
    paid, grown = 120 * np.exp(-0.01 * when), 100 * np.exp(-0.5 * when)
    for volatility in (0.0, 1e-14):
        found = american(volatility=volatility, **market)
        assert found["price"][0] == pytest.approx(paid - grown, rel=1e-14)
        assert found["price"][0] == pytest.approx(108.9809045611846, rel=1e-12)
        assert found["delta"][0] == pytest.approx(-grown / 100, rel=1e-14)
        assert found["rho"][0] == pytest.approx(-when * paid, rel=1e-14)
        assert found["theta"][0] == pytest.approx(0, abs=1e-13)
        assert found["status"].tolist() == [0]
    at_once = american(volatility=0.0, **{**market, "rate": 0.05, "dividend": 0.01, "maturity": 1.0})
    assert (at_once["price"][0], at_once["status"][0], at_once["critical_price"][0]) == (20, 1, 120)
    call = american(option="call", **{**MARKET, "volatility": 0.0, "strike": 50.0, "dividend": 0.01})
    assert call["price"][0] == pytest.approx(51.44351214988111, rel=1e-14)


@pytest.mark.parametrize(
    ("given", "price", "status"),
    [
        ({"option": "put", "spot": 0.0}, 100.0, 1),
        ({"option": "put", "spot": 0.0, "rate": -0.05}, 100 * np.exp(0.05), 2),
        ({"option": "put", "strike": 0.0}, 0.0, 0),
        ({"option": "call", "strike": 0.0}, 100.0, 1),
        ({"option": "call", "spot": 0.0}, 0.0, 0),
        ({"option": "put", "rate": -0.01, "dividend": -0.02}, NAN, 5),
        ({"option": "call", "rate": -0.02, "dividend": -0.01}, NAN, 5),
        ({"option": "put", "rate": 0.01, "dividend": 20.0}, None, 3),
        ({"option": "call", "volatility": 10.0}, None, 3),
        ({"option": "call", "dividend": 0.0}, None, 2),
        ({"option": "put", "rate": 0.0, "dividend": -0.05}, None, 0),
    ],
)
def test_edges_have_their_price_and_status(given: dict[str, Any], price: float | None, status: int) -> None:
    found = american(**{**MARKET, **given})
    assert found["status"].tolist() == [status]
    if price is not None:
        assert found["price"][0] == pytest.approx(price, rel=1e-15, nan_ok=True)
    outputs = [found[name][0] for name in ("price", *GREEKS, "critical_price")]
    assert np.isnan(outputs).all() if status == 5 else not np.isnan(outputs).any()


def test_options_on_forwards_are_those_of_an_asset_that_yields_the_rate() -> None:
    """Rho holds the forward, so that it is the sum of what rate and dividend do."""
    inputs = everyday(60) | {"dividend": np.full(60, 0.04), "rate": np.full(60, 0.04)}
    forward: dict[str, Any] = {name: inputs[name] for name in ("strike", "rate", "volatility", "maturity", "is_call")}
    forward |= {"model": "black76", "accuracy": "high", "forward": inputs["spot"]}
    found, spot = american(**forward), american(accuracy="high", **inputs)
    for name in ("price", "delta", "gamma", "vega", "theta", "critical_price"):
        assert np.array_equal(found[name], spot[name])
    up, down = (american(**{**forward, "rate": inputs["rate"] + step}) for step in (1e-4, -1e-4))
    assert found["rho"] == pytest.approx((up["price"] - down["price"]) / 2e-4, abs=1e-3)


@pytest.mark.parametrize("name", list(MARKET))
def test_nan_and_numbers_out_of_range_have_the_status_4_and_touch_no_other_option(name: str) -> None:
    inputs = everyday(5)
    whole = american(accuracy="fast", **inputs)
    for wrong in [NAN, 1e51, *([-1.0] if name not in ("rate", "dividend") else [])]:
        found = american(accuracy="fast", **inputs | {name: np.where(np.arange(5) == 2, wrong, inputs[name])})
        assert found["status"][2] == 4
        for output in ("price", *GREEKS, "critical_price"):
            assert np.isnan(found[output][2])
            assert np.array_equal(np.delete(found[output], 2), np.delete(whole[output], 2))


def test_neither_the_place_nor_the_number_of_options_nor_how_they_are_given_changes_a_byte() -> None:
    inputs = early_book(129)
    whole = american(accuracy="fast", **inputs)
    arrays = [name for name in whole if name != "scheme"]
    for size in (1, 31, 32, 33, 65, 128):
        found = american(accuracy="fast", **{name: array[-size:] for name, array in inputs.items()})
        for name in arrays:
            assert found[name].tobytes() == whole[name][-size:].tobytes()
    single = {name: float(array[77]) for name, array in inputs.items() if name != "is_call"}
    found = american(accuracy="fast", option="call" if inputs["is_call"][77] else "put", **single)
    assert [found[name].tobytes() for name in arrays] == [whole[name][77:78].tobytes() for name in arrays]


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=list(SCHEMES))
def test_the_table_of_a_scheme_integrates_and_interpolates_polynomials(scheme: Any) -> None:
    numbers, (nodes, points, _, last) = table(scheme), scheme.sizes
    assert nodes % 4 == 1
    roots, rest = numbers[:nodes], numbers[nodes:]
    for count, lines in ((points, nodes), (last, 1)):
        sines, weights, matrix = np.split(rest[: (2 + lines * nodes) * count], [count, 2 * count])
        rest = rest[(2 + lines * nodes) * count :]
        # The integral of 2 cos(t) sin(t)^k over t from 0 to pi/2 is 2 / (k + 1).
        for k in (0, 1, 3):
            assert weights @ sines**k == pytest.approx(2 / (k + 1), rel=1e-9)
        for line, root in zip(matrix.reshape(lines, count, nodes), roots, strict=False):
            for power in (1, nodes):
                assert line @ roots**power == pytest.approx((root * np.sqrt(1 - sines**2)) ** power, abs=1e-13)
    assert rest.size == 0


@pytest.mark.parametrize(
    ("params", "inputs", "pointer", "words"),
    [
        ({"model": "bachelier"}, {}, "/params/model", "model should be 'black_scholes_merton' or 'black76'"),
        ({"accuracy": "best"}, {}, "/params/accuracy", "accuracy should be 'fast', 'accurate' or 'high'"),
        ({"volatility": None}, {}, "/params/volatility", "black_scholes_merton needs volatility: one number in params"),
        ({"rate": 200.0}, {}, "/params/rate", "rate 200 over 1 years is a factor of e^200"),
        ({}, {"spot": ArrayInfo("float64", (3,))}, "/params/spot", "spot is given as the number 100 and as an array"),
    ],
)
def test_what_cannot_be_computed_is_refused_in_a_sentence(
    params: dict[str, Any], inputs: dict[str, ArrayInfo], pointer: str, words: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        OPERATIONS["american_option"].validate({"option": "put", **MARKET, **params}, inputs)
    [problem] = refused.value.problems
    assert problem.pointer == pointer
    assert words in problem.detail


def test_a_wrong_number_of_is_call_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"is_call at \[1\] is 2, neither 0 \(put\) nor 1 \(call\)"):
        american(**MARKET, is_call=[0, 2])


def test_a_book_that_takes_too_long_is_refused_before_it_is_computed() -> None:
    book = {"strike": ArrayInfo("float64", (4_000_000,))}
    params = {"option": "put", "spot": 100.0, "rate": 0.05, "dividend": 0.0, "volatility": 0.2, "maturity": 1.0}
    OPERATIONS["american_option"].validate(params, book)
    with pytest.raises(InvalidRequest, match=r"4,000,000 options with accuracy high take .* that is 3,415,300 options"):
        OPERATIONS["american_option"].validate({**params, "accuracy": "high"}, book)
