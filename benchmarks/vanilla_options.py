"""Benchmark cases of the operations on vanilla options beside NumPy with SciPy, py_lets_be_rational and QuantLib."""

import math
from collections.abc import Callable

import numpy as np

from warpdesk_server.benchmarks.cases import Call, Case, Goal, Inputs, Peer, Sizes, measured, module, random
from warpdesk_server.kernels.catalogue import OPERATIONS

SCIPY, RATIONAL, QUANTLIB = "NumPy and SciPy", "py_lets_be_rational", "QuantLib"
PART = 10_000  # options of a peer that takes microseconds for each
FEW = 1_000  # of one that takes a hundred of them


def _book(count: int) -> Inputs:
    """Options near the money, of a week to three years."""
    generator = random()
    return {
        "spot": generator.uniform(50, 150, count),
        "strike": generator.uniform(50, 150, count),
        "rate": generator.uniform(0, 0.1, count),
        "dividend": generator.uniform(0, 0.1, count),
        "volatility": generator.uniform(0.05, 0.8, count),
        "maturity": generator.uniform(0.02, 3, count),
        "is_call": generator.integers(0, 2, count).astype(np.uint8),
    }


def _scipy_black_scholes(inputs: Inputs) -> Call:
    """Price and five Greeks as one writes them: common terms once, no loop."""
    ndtr = module("scipy.special").ndtr
    names = ("spot", "strike", "rate", "dividend", "volatility", "maturity", "is_call")
    spot, strike, rate, dividend, volatility, maturity, is_call = (inputs[name] for name in names)

    def call() -> object:
        sign, root = np.where(is_call, 1.0, -1.0), np.sqrt(maturity)
        grown, paid = np.exp(-dividend * maturity), strike * np.exp(-rate * maturity)
        d1 = (np.log(spot / strike) + (rate - dividend + 0.5 * volatility**2) * maturity) / (volatility * root)
        d2 = d1 - volatility * root
        delta, held = sign * grown * ndtr(sign * d1), sign * paid * ndtr(sign * d2)
        density = grown * np.exp(-0.5 * d1 * d1) / np.sqrt(2 * np.pi)
        decay = 0.5 * spot * density * volatility / root
        theta = dividend * spot * delta - rate * held - decay
        return (
            spot * delta - held,
            delta,
            density / (spot * volatility * root),
            spot * density * root,
            theta,
            maturity * held,
        )

    return call


def _quotes(count: int) -> Inputs:
    """The book with its prices; py_lets_be_rational takes undiscounted ones, so the rate is 0."""
    book = _book(count)
    none = np.zeros(count)
    operation = OPERATIONS["black_scholes"]
    params = operation.params.model_validate({})
    book |= {"rate": none, "dividend": none}
    return {**book, "price": operation.implementation("cpu")(params, **book)["price"]}


def _lets_be_rational(inputs: Inputs) -> Call:
    """Of PART options, in a loop, which is how it is called."""
    implied = module("py_lets_be_rational").implied_volatility_from_a_transformed_rational_guess
    arrays = (inputs[name][:PART] for name in ("price", "spot", "strike", "maturity"))
    sign = np.where(inputs["is_call"][:PART], 1.0, -1.0)
    options = list(zip(*(array.tolist() for array in (*arrays, sign)), strict=True))

    def call() -> object:
        out = []
        for option in options:
            try:
                out.append(implied(*option))
            except ArithmeticError:  # a price in the money without time value
                out.append(math.nan)
        return out

    return call


def _normal_quotes(count: int) -> Inputs:
    """The book under a normal price, with volatilities in currency, and its prices."""
    book = _book(count)
    book = {"forward": book.pop("spot"), **book, "rate": np.zeros(count), "volatility": 100 * book["volatility"]}
    del book["dividend"]
    operation = OPERATIONS["black_scholes"]
    params = operation.params.model_validate({"model": "bachelier"})
    return {**book, "price": operation.implementation("cpu")(params, **book)["price"]}


def _bachelier(inputs: Inputs) -> Call:
    """Of PART options, in a loop, which is how it is called."""
    ql = module("QuantLib")
    arrays = (inputs[name][:PART] for name in ("strike", "forward", "maturity", "price"))
    kinds = [ql.Option.Call if is_call else ql.Option.Put for is_call in inputs["is_call"][:PART]]
    options = list(zip(kinds, *(array.tolist() for array in arrays), strict=True))

    def call() -> object:
        out = []
        for option in options:
            try:
                out.append(ql.bachelierBlackFormulaImpliedVol(*option))
            except RuntimeError:  # a price in the money without time value
                out.append(math.nan)
        return out

    return call


def _quantlib(scheme: str) -> Callable[[Inputs], Call]:
    """Prices alone of FEW options, each made before: what is timed is the engine's work, and one call for each.

    An engine is told of new market data by its quotes. Maturities are whole days of ten years, to which rates and
    volatilities are scaled.
    """

    def make(inputs: Inputs) -> Call:
        ql = module("QuantLib")
        today, days, years = ql.Date(2, 1, 2020), 3650, 10.0
        ql.Settings.instance().evaluationDate = today
        quotes = [ql.SimpleQuote(1.0) for _ in range(4)]
        spot, dividend, rate, volatility = (ql.QuoteHandle(quote) for quote in quotes)
        curves = [
            ql.YieldTermStructureHandle(ql.FlatForward(today, quote, ql.Actual365Fixed())) for quote in (dividend, rate)
        ]
        flat = ql.BlackConstantVol(today, ql.NullCalendar(), volatility, ql.Actual365Fixed())
        process = ql.BlackScholesMertonProcess(spot, *curves, ql.BlackVolTermStructureHandle(flat))
        engine = ql.QdFpAmericanEngine(process, getattr(ql.QdFpAmericanEngine, scheme)())
        exercise = ql.AmericanExercise(today, today + days)
        part = {name: array[:FEW] for name, array in inputs.items()}
        scale = part["maturity"] / years
        market = np.stack(
            [part["spot"], part["dividend"] * scale, part["rate"] * scale, part["volatility"] * np.sqrt(scale)], axis=1
        ).tolist()
        options = []
        for strike, is_call in zip(part["strike"].tolist(), part["is_call"].tolist(), strict=True):
            payoff = ql.PlainVanillaPayoff(ql.Option.Call if is_call else ql.Option.Put, strike)
            option = ql.VanillaOption(payoff, exercise)
            option.setPricingEngine(engine)
            options.append(option)

        def call() -> object:
            out = []
            for numbers, option in zip(market, options, strict=True):
                for quote, number in zip(quotes, numbers, strict=True):
                    quote.setValue(number)
                out.append(option.NPV())
            return out

        return call

    return make


def _american(accuracy: str, scheme: str, sizes: Sizes, count: int, goals: bool) -> Case:
    """Ours gives six Greeks and critical prices besides. Its errors are no larger than those of the peer's scheme."""
    peer = Peer(QUANTLIB, "QuantLib", _quantlib(scheme), per=count / min(FEW, count), note=f"{scheme}, prices alone")
    goal = Goal({QUANTLIB: 5.0} if goals else {})
    peers = (peer,) if sizes != "large" else ()
    label = f"{accuracy}, {measured(count)}"
    return Case(
        "american_option",
        label,
        {"accuracy": accuracy},
        lambda: _book(count),
        sizes,
        peers,
        goal,
        moved=114 * count,
        repeats=3,
    )


def _cases(sizes: Sizes, count: int, goals: bool = False) -> list[Case]:
    scipy = (Peer(SCIPY, "scipy", _scipy_black_scholes),)
    part = min(PART, count)
    rational = (Peer(RATIONAL, "py_lets_be_rational", _lets_be_rational, per=count / part),)
    quantlib = (Peer(QUANTLIB, "QuantLib", _bachelier, per=count / part),)
    label = measured(count)
    return [
        Case(
            "black_scholes",
            label,
            {},
            lambda: _book(count),
            sizes,
            scipy,
            Goal({SCIPY: 8.0} if goals else {}),
            moved=97 * count,
            repeats=9,
        ),
        Case(
            "implied_volatility",
            label,
            {},
            lambda: {name: array for name, array in _quotes(count).items() if name != "volatility"},
            sizes,
            rational if sizes != "large" else (),
            Goal({RATIONAL: 30.0} if goals else {}),
            moved=58 * count,
            repeats=5,
        ),
        Case(
            "implied_volatility",
            f"bachelier, {label}",
            {"model": "bachelier"},
            lambda: {name: array for name, array in _normal_quotes(count).items() if name != "volatility"},
            sizes,
            quantlib if sizes != "large" else (),
            moved=50 * count,
            repeats=5,
        ),
    ]


CASES: tuple[Case, ...] = (
    _american("fast", "fastScheme", "small", 500, goals=False),
    _american("fast", "fastScheme", "full", 20_000, goals=True),
    _american("accurate", "accurateScheme", "full", 20_000, goals=True),
    _american("accurate", "accurateScheme", "large", 5_000_000, goals=False),
    *_cases("small", 1_000),
    *_cases("full", 1_000_000, goals=True),
    *_cases("large", 50_000_000),
)
