"""Prices and Greeks are the published ones, those of 50 digits, and those of formulas at the edges."""

from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cudasim.device import EmulatedDevice
from tests.kernels.parity import Case
from tests.kernels.vanilla_options.cases import MODELS, book, strikes
from tests.kernels.vanilla_options.exact import cdf, greeks
from tests.vectors import options
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.problems import InvalidRequest

Array = npt.NDArray[Any]
NAN, INF = np.nan, np.inf
NAMES = ("price", "delta", "gamma", "vega", "theta", "rho")


def black_scholes(**given: Any) -> dict[str, Array]:
    """The answer for arrays and lists as inputs, and all else as params."""
    arrays = {name: given.pop(name) for name in tuple(given) if isinstance(given[name], list | np.ndarray)}
    inputs = {name: np.asarray(array, np.uint8 if name == "is_call" else float) for name, array in arrays.items()}
    return Case("black_scholes", given, lambda: inputs).run()


def one(**given: Any) -> list[float]:
    return [float(array[0]) for array in black_scholes(**given).values()]


MARKET = {"spot": 100.0, "strike": 100.0, "rate": 0.05, "dividend": 0.02, "volatility": 0.2, "maturity": 1.0}


@pytest.mark.parametrize("row", options.HAUG_EUROPEAN)
def test_prices_are_those_of_haug(row: options.European) -> None:
    market = {"spot": row.spot, "strike": row.strike, "rate": row.r, "dividend": row.q}
    found = one(option=row.option, **market, volatility=row.volatility, maturity=row.maturity)
    assert found[0] == pytest.approx(row.price, abs=1e-4)


@pytest.mark.parametrize(("greek", "row"), options.HAUG_GREEKS)
def test_greeks_are_those_of_haug(greek: str, row: options.European) -> None:
    market = {"spot": row.spot, "strike": row.strike, "rate": row.r, "dividend": row.q}
    found = one(option=row.option, **market, volatility=row.volatility, maturity=row.maturity)
    assert found[NAMES.index(greek)] == pytest.approx(row.price, abs=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_prices_and_greeks_are_those_of_50_digits(model: str) -> None:
    """Tolerance: a few roundings of the greatest term of each formula. The density has besides those of d, which has
    the roundings of ln(forward / strike) divided by the spread. Derivatives in 50 digits are good to 1e-40."""
    count = 40
    inputs = book(count, model, seed=2)
    found = black_scholes(model=model, **inputs)
    dividends = inputs.get("dividend", inputs["rate"])
    x = next(iter(inputs.values()))
    arrays = (x, inputs["strike"], inputs["rate"], dividends, inputs["volatility"], inputs["maturity"])
    for i, numbers in enumerate(np.stack(arrays, axis=1).tolist()):
        exact = greeks(model, bool(inputs["is_call"][i]), *numbers)
        spot, strike, rate, dividend, volatility, years = numbers
        spread = volatility * np.sqrt(years)
        gap = spot - strike if model == "bachelier" else np.log(spot / strike) + (rate - dividend) * years
        d = abs(gap / spread)
        of_density = 30 + 4 * d * d + (d / spread if model != "bachelier" else 0.0)
        most = max(abs(spot), abs(strike), spread) * max(1.0, np.exp(-min(rate, dividend) * years))
        vega = abs(float(exact["vega"]))
        allowed = {
            "price": 4 * most,
            "delta": 4 + of_density * vega / (most * np.sqrt(years)) / spread,
            "gamma": of_density * abs(float(exact["gamma"])),
            "vega": of_density * vega,
            "theta": 4 * most * max(abs(rate), abs(dividend)) + of_density * vega * volatility / (2 * years),
            "rho": 4 * most * years,
        }
        for name, value in exact.items():
            error = abs(float(mpmath.mpf(float(found[name][i])) - value))
            assert error < 1e-15 * allowed[name] + 1e-40, (name, i, numbers, value, found[name][i])


def test_prices_far_out_of_the_money_are_good_to_their_last_digits() -> None:
    """Nothing cancels: a price of 1e-100 is as good as one of 1. What is left is the rounding of d, squared by e^."""
    strikes = np.exp(np.linspace(0.05, 4.3, 20)) * 100
    market = {"spot": 100.0, "rate": 0.01, "dividend": 0.0, "volatility": 0.2, "maturity": 1.0}
    for option, numbers in (("call", strikes), ("put", 1e4 / strikes)):
        found = black_scholes(option=option, strike=numbers, **market)
        assert found["price"].min() < 1e-97
        for i, strike in enumerate(numbers):
            exact = greeks("black_scholes_merton", option == "call", 100.0, float(strike), 0.01, 0.0, 0.2, 1.0)
            d = np.log(100 / strike) / 0.2
            for name in ("price", "delta", "gamma", "vega"):
                error = abs(mpmath.mpf(float(found[name][i])) / exact[name] - 1)
                assert error < 1e-15 * (10 + 2 * d * d), (name, strike)


def test_call_and_put_differ_by_the_forward_to_rounding() -> None:
    for model in MODELS:
        inputs = book(500, model)
        del inputs["is_call"]
        call, put = (black_scholes(model=model, option=option, **inputs) for option in ("call", "put"))
        years, rate = inputs["maturity"], inputs["rate"]
        x, paid = next(iter(inputs.values())), inputs["strike"] * np.exp(-rate * years)
        dividend = inputs.get("dividend", rate)
        grown = x * np.exp(-dividend * years)
        size = np.abs(grown) + np.abs(paid) + 1
        assert np.abs(call["price"] - put["price"] - (grown - paid)).max() < 4e-15 * size.max()
        assert np.abs(call["delta"] - put["delta"] - np.exp(-dividend * years)).max() < 1e-14
        assert np.array_equal(call["gamma"], put["gamma"])
        assert np.array_equal(call["vega"], put["vega"])
        theta = call["theta"] - put["theta"] - (dividend * grown - rate * paid)
        assert np.abs(theta).max() < 2e-14 * size.max()
        rho = call["rho"] - put["rho"] - years * (paid if model == "black_scholes_merton" else paid - grown)
        assert np.abs(rho).max() < 2e-13 * size.max()


positive = st.floats(1e-3, 1e3)


@given(positive, positive, st.floats(-0.1, 0.2), st.floats(-0.1, 0.2), st.floats(0.01, 3), st.floats(1e-3, 30))
@settings(deadline=None, max_examples=50)
def test_a_price_lies_between_its_bounds_and_grows_with_volatility(
    spot: float, strike: float, rate: float, dividend: float, volatility: float, maturity: float
) -> None:
    market = {"spot": spot, "strike": strike, "rate": rate, "dividend": dividend, "maturity": maturity}
    ladder = volatility * np.array([1.0, 1.1, 1.5, 4.0])
    grown, paid = spot * np.exp(-dividend * maturity), strike * np.exp(-rate * maturity)
    slack = 4e-15 * (grown + paid)
    for option, most, inner in (("call", grown, grown - paid), ("put", paid, paid - grown)):
        price = black_scholes(option=option, volatility=ladder, **market)["price"]
        assert (price >= max(inner, 0.0) - slack).all()
        assert (price <= most + slack).all()
        assert (np.diff(price) >= -slack).all()


def test_without_time_or_volatility_an_option_is_worth_its_intrinsic_value() -> None:
    call = black_scholes(option="call", **{**MARKET, "maturity": 0.0, "strike": [80.0, 100.0, 120.0]})
    assert call["price"].tolist() == [20.0, 0.0, 0.0]
    assert call["delta"].tolist() == [1.0, 0.5, 0.0]
    assert call["gamma"].tolist() == [0.0, INF, 0.0]
    assert call["vega"].tolist() == call["rho"].tolist() == [0.0, 0.0, 0.0]
    assert call["theta"].tolist() == [0.02 * 100 - 0.05 * 80, -INF, 0.0]
    put = black_scholes(option="put", **{**MARKET, "volatility": 0.0, "strike": [80.0, 100.0, 120.0]})
    paid, grown = np.exp(-0.05) * np.array([80.0, 100.0, 120.0]), 100 * np.exp(-0.02)
    assert put["price"] == pytest.approx(np.maximum(paid - grown, 0), rel=1e-15)
    assert put["delta"] == pytest.approx(np.array([0.0, 0.0, -np.exp(-0.02)]), rel=1e-15)
    assert put["gamma"].tolist() == put["vega"].tolist() == [0.0, 0.0, 0.0]
    assert put["theta"][2] == pytest.approx(0.05 * paid[2] - 0.02 * grown, rel=1e-14)
    still = one(option="call", **{**MARKET, "volatility": 0.0, "dividend": 0.05})
    assert still[:3] == [0.0, 0.5 * np.exp(-0.05), INF]
    assert still[3] == pytest.approx(100 * np.exp(-0.05) / np.sqrt(2 * np.pi))


def test_a_strike_or_a_spot_of_zero_is_certain() -> None:
    grown, paid = 100 * np.exp(-0.02), 100 * np.exp(-0.05)
    call = one(option="call", **{**MARKET, "strike": 0.0})
    assert call == pytest.approx([grown, grown / 100, 0.0, 0.0, 0.02 * grown, 0.0], rel=1e-15)
    assert one(option="put", **{**MARKET, "strike": 0.0}) == [0.0] * 6
    assert one(option="call", **{**MARKET, "spot": 0.0}) == [0.0] * 6
    put = one(option="put", **{**MARKET, "spot": 0.0})
    assert put == pytest.approx([paid, -np.exp(-0.02), 0.0, 0.0, 0.05 * paid, -paid], rel=1e-15)


def test_bachelier_takes_negative_prices_and_its_edges() -> None:
    market: dict[str, Any] = {"model": "bachelier", "rate": 0.0, "volatility": 2.0, "maturity": 1.0}
    at_the_money = one(option="call", forward=-3.0, strike=-3.0, **market)
    assert at_the_money[:2] == pytest.approx([2 / np.sqrt(2 * np.pi), 0.5])
    market["volatility"] = 0.0
    assert one(option="put", forward=-3.0, strike=-2.5, **market) == [0.5, -1.0, 0.0, 0.0, 0.0, -0.5]
    assert one(option="call", forward=-3.0, strike=-2.5, **market) == [0.0] * 6


def test_black76_is_black_scholes_of_a_spot_that_earns_the_rate() -> None:
    inputs = book(300, "black76")
    found = black_scholes(model="black76", **inputs)
    inputs["spot"] = inputs.pop("forward")
    other = black_scholes(dividend=inputs["rate"], **inputs)
    for name in NAMES[:5]:
        assert found[name].tobytes() == other[name].tobytes()
    assert np.array_equal(found["rho"], -inputs["maturity"] * found["price"])


def test_units_of_the_market_are_a_hundredth_and_a_day() -> None:
    inputs = book(100)
    unit, market = black_scholes(**inputs), black_scholes(per="market", **inputs)
    for name, factor in zip(NAMES, (1, 1, 1, 0.01, 1 / 365, 0.01), strict=True):
        assert market[name] == pytest.approx(unit[name] * factor, rel=1e-15)


@pytest.mark.parametrize("model", MODELS)
def test_neither_the_place_nor_the_number_of_options_nor_how_they_are_given_changes_a_byte(model: str) -> None:
    inputs = book(1025, model)
    whole = black_scholes(model=model, **inputs)
    for size in (1, 31, 32, 33, 127, 128, 129, 1023, 1024):
        part = {name: array[-size:] for name, array in inputs.items()}
        for name, array in black_scholes(model=model, **part).items():
            assert array.tobytes() == whole[name][-size:].tobytes()
    single = {name: float(array[7]) for name, array in inputs.items() if name != "is_call"}
    option = "call" if inputs["is_call"][7] else "put"
    assert one(model=model, option=option, **single) == [float(whole[name][7]) for name in NAMES]
    mixed = single | {name: inputs[name][5:9] for name in ("strike", "volatility", "is_call")}
    arrays = {name: np.full(4, number) if isinstance(number, float) else number for name, number in mixed.items()}
    for name, array in black_scholes(model=model, **mixed).items():
        assert array.tobytes() == black_scholes(model=model, **arrays)[name].tobytes()


@pytest.mark.parametrize("name", ["spot", "strike", "rate", "dividend", "volatility", "maturity"])
def test_nan_and_numbers_out_of_range_are_nan_in_every_output_and_touch_no_other_option(name: str) -> None:
    inputs = book(5)
    whole = black_scholes(**inputs)
    for wrong in [NAN, *([-1.0, 1e51] if name in ("spot", "strike", "volatility", "maturity") else [1e5, -1e5])]:
        inputs[name] = inputs[name].copy()
        inputs[name][2] = wrong
        for output, array in black_scholes(**inputs).items():
            assert np.isnan(array).tolist() == [False, False, True, False, False], output
            assert np.array_equal(np.delete(array, 2), np.delete(whole[output], 2))


def test_the_answer_has_the_shape_of_the_arrays() -> None:
    inputs = {name: array.reshape(2, 5, 3) for name, array in book(30).items()}
    flat = black_scholes(**book(30))
    for name, array in black_scholes(**inputs).items():
        assert (array.shape, array.dtype, array.tobytes()) == ((2, 5, 3), np.float64, flat[name].tobytes())
    assert black_scholes(option="put", **MARKET)["price"].shape == (1,)


def test_arrays_are_broadcast_as_numpy_does() -> None:
    whole = {name: array.reshape(4, 5) for name, array in book(20).items()}
    whole["strike"][:] = whole["strike"][:1]
    whole["maturity"][:] = whole["maturity"][:, :1]
    whole["is_call"][:] = 1
    narrow = whole | {"strike": whole["strike"][0], "maturity": whole["maturity"][:, :1]}
    narrow["is_call"] = whole["is_call"][:1, :1]
    expected = black_scholes(**whole)
    for name, array in black_scholes(**narrow).items():
        assert (array.shape, array.tobytes()) == ((4, 5), expected[name].tobytes())
    operation = OPERATIONS["black_scholes"]
    params = operation.params.model_validate({})
    joint = operation.join(params, [narrow | {"strike": narrow["strike"] + 1}, narrow])
    assert joint is not None
    other, same = joint.parts(operation.implementation("cpu")(joint.params, **joint.inputs))
    assert same["price"].tobytes() == expected["price"].tobytes() != other["price"].tobytes()
    infos = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in narrow.items()}
    assert operation.cost(params, infos).bytes == 20 * (6 * 8 + 1 + 48) + (5 + 4) * 8 + 1


GIVEN = {"strike": ArrayInfo("float64", (3,))}
OTHERS = {"option": "call", **{name: number for name, number in MARKET.items() if name != "strike"}}


@pytest.mark.parametrize(
    ("params", "inputs", "pointer", "words"),
    [
        ({"strike": 90.0}, {}, "/params/strike", "strike is given as the number 90 and as an array; give one"),
        ({"spot": None}, {}, "/params/spot", "black_scholes_merton needs spot: one number in params or an array"),
        ({"model": "black76", "spot": None, "dividend": None}, {}, "/params/forward", "black76 needs forward"),
        ({"forward": 100.0}, {}, "/params/forward", "black_scholes_merton has no forward; it takes spot, strike, rate"),
        ({}, {"forward": ArrayInfo("float64", (3,))}, "/inputs/forward", "black_scholes_merton has no forward"),
        ({"option": None}, {}, "/params/option", "option is needed: call or put, or an array is_call in inputs"),
        ({}, {"is_call": ArrayInfo("uint8", (3,))}, "/params/option", "option is call and is_call says it of each"),
        (
            {"spot": None},
            {"spot": ArrayInfo("float64", (5, 2))},
            "/inputs/spot",
            "shape [5, 2], and the options have [5, 3]: each axis of an array has the length of the options or 1",
        ),
        ({}, {"strike": ArrayInfo("float32", (3,))}, "/inputs/strike", "dtype float32 is not one of float64"),
        ({}, {"strike": ArrayInfo("float64", (0,))}, "/inputs/strike", "the array is empty"),
        ({}, {"strike": ArrayInfo("float64", (3,), has_inf=True)}, "/inputs/strike", "holds an infinity"),
        ({"volatility": -0.2}, {}, "/params/volatility", "volatility should be 0 or at least 1e-50, got -0.2"),
        ({"volatility": 1e60}, {}, "/params/volatility", "volatility should be at most 1e+50, got 1e+60"),
        (
            {"rate": 2.0, "maturity": 60.0},
            {},
            "/params/rate",
            "rate 2 over 60 years is a factor of e^120; at most e^100",
        ),
        ({"per": "day"}, {}, "/params/per", "per should be 'unit' or 'market', got \"day\""),
    ],
)
def test_what_cannot_be_computed_is_refused_in_a_sentence(
    params: dict[str, Any], inputs: dict[str, ArrayInfo], pointer: str, words: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        OPERATIONS["black_scholes"].validate({**OTHERS, **params}, GIVEN | inputs)
    [problem] = refused.value.problems
    assert problem.pointer == pointer
    assert words in problem.detail


@pytest.mark.parametrize("device", [None, EmulatedDevice()], ids=["cpu", "emulated"])
def test_a_call_that_is_neither_0_nor_1_is_refused_with_its_place(device: EmulatedDevice | None) -> None:
    inputs = strikes(6) | {"is_call": np.array([0, 1, 0, 1, 2, 3], np.uint8)}
    inputs = {name: array.reshape(2, 3) for name, array in inputs.items()}
    params = {name: number for name, number in MARKET.items() if name != "strike"}
    with pytest.raises(InvalidRequest, match=r"/inputs/is_call: is_call at \[1, 1\] is 2, neither 0 \(put\) nor 1"):
        Case("black_scholes", params, lambda: inputs).run(device)


def test_the_oracle_is_that_of_scipy() -> None:
    from scipy.special import ndtr

    assert [float(cdf(mpmath.mpf(x))) for x in (-9.0, 0.3)] == pytest.approx([ndtr(-9.0), ndtr(0.3)], rel=1e-15)
