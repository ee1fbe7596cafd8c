"""Benchmark cases of options on baskets: American options by least squares beside NumPy and QuantLib.

NumPy's least squares are one pass, as Longstaff and Schwartz have it: policy and price on the same paths, which are all
kept. QuantLib fits on its calibration samples and values on others; its paths of one asset are of steps of the same
length, its baskets have a basis of monomials in all assets. Warpdesk fits on as many paths as it values.
"""

from math import exp, sqrt
from typing import Any

import numpy as np

from warpdesk_server.benchmarks.cases import Call, Case, Goal, Inputs, Peer, Sizes, measured, module, numpy_peer

STRIKE, RATE, MATURITY, DIVIDEND, VOLATILITY = 100.0, 0.05, 1.0, 0.1, 0.2
NUMPY, QUANTLIB = "NumPy, policy and price on the same paths", "QuantLib"
PART = 10  # QuantLib has so many times fewer paths, since it takes seconds


def numpy_price(assets: int, paths: int, dates: int) -> tuple[float, float]:
    """An American option on the best of assets, a put of one: price and error, as one writes it in NumPy."""
    rng = np.random.default_rng(1)
    step = MATURITY / dates
    drift = (RATE - DIVIDEND - 0.5 * VOLATILITY**2) * step
    moves = rng.standard_normal((dates, assets, paths))
    moves *= VOLATILITY * sqrt(step)
    moves += drift
    prices = STRIKE * np.exp(np.cumsum(moves, axis=0, out=moves))
    discount = exp(-RATE * step)
    best = prices.max(axis=1)
    payments = np.maximum(best - STRIKE if assets > 1 else STRIKE - best, 0.0)
    cash = payments[-1]
    for date in range(dates - 2, -1, -1):
        cash = cash * discount
        inside = np.flatnonzero(payments[date])
        x = np.sort(prices[date][:, inside], axis=0)[::-1][:3] / STRIKE
        basis = [np.ones(len(inside)), *(x[0] ** power for power in (1, 2, 3))]
        for u in x[1:]:
            basis += [u, u * u, x[0] * u]
        design = np.column_stack(basis)
        waiting = design @ np.linalg.lstsq(design, cash[inside], rcond=None)[0]
        now = payments[date][inside] > waiting
        cash[inside[now]] = payments[date][inside[now]]
    cash = cash * discount
    return float(cash.mean()), float(cash.std(ddof=1) / sqrt(paths))


def _quantlib(assets: int, paths: int, dates: int) -> Call:
    ql: Any = module("QuantLib")
    today, days = ql.Date(1, 1, 2025), ql.Actual365Fixed()
    ql.Settings.instance().evaluationDate = today

    def flat(rate: float) -> Any:
        return ql.YieldTermStructureHandle(ql.FlatForward(today, rate, days))

    def process() -> Any:
        volatility = ql.BlackConstantVol(today, ql.NullCalendar(), VOLATILITY, days)
        spot = ql.QuoteHandle(ql.SimpleQuote(STRIKE))
        return ql.BlackScholesMertonProcess(
            spot, flat(DIVIDEND), flat(RATE), ql.BlackVolTermStructureHandle(volatility)
        )

    exercise = ql.AmericanExercise(today, today + 365)
    size = {"timeSteps": dates, "requiredSamples": paths, "seed": 1, "nCalibrationSamples": paths}
    payoff = ql.PlainVanillaPayoff(ql.Option.Call if assets > 1 else ql.Option.Put, STRIKE)
    if assets == 1:
        option = ql.VanillaOption(payoff, exercise)
        engine = ql.MCAmericanEngine(process(), "pseudorandom", polynomOrder=3, polynomType=0, **size)
    else:
        processes = ql.StochasticProcessArray([process() for _ in range(assets)], np.eye(assets).tolist())
        option = ql.BasketOption(ql.MaxBasketPayoff(payoff), exercise)
        engine = ql.MCAmericanBasketEngine(processes, "pseudorandom", **size)
    option.setPricingEngine(engine)

    def call() -> object:
        option.recalculate()
        return option.NPV(), option.errorEstimate()

    return call


def _inputs(assets: int) -> Inputs:
    return {
        "spot": np.full(assets, STRIKE),
        "volatility": np.full(1, VOLATILITY),
        "dividend": np.full(1, DIVIDEND),
        "correlation": np.eye(assets),
    }


def _case(sizes: Sizes, assets: int, paths: int, dates: int, goal: Goal) -> Case:
    part = max(paths // PART, 100)
    peers = (
        numpy_peer(lambda _inputs: lambda: numpy_price(assets, paths, dates), NUMPY),
        Peer(QUANTLIB, "QuantLib", lambda _inputs: _quantlib(assets, part, dates), per=paths / part),
    )
    params = {
        "payoff": "best_of",
        "option": "call" if assets > 1 else "put",
        "exercise": "american",
        "strike": STRIKE,
        "rate": RATE,
        "maturity": MATURITY,
        "steps": dates,
        "paths": paths,
        "policy_paths": paths,
    }
    label = f"American, {assets} asset{'s' if assets > 1 else ''}, {measured(paths)} x {dates}"
    return Case("basket_option", label, params, lambda: _inputs(assets), sizes, peers, goal, repeats=3)


CASES: tuple[Case, ...] = (
    _case("small", 2, 1_000, 4, Goal()),
    _case("full", 1, 100_000, 50, Goal({NUMPY: 4.0, QUANTLIB: 30.0})),
    _case("full", 5, 100_000, 50, Goal()),
)
