"""Prices and Greeks of European options in 50 digits, by their definitions: Greeks are derivatives of the price."""

from typing import Any

import mpmath

DIGITS = 50


def price(model: str, call: bool, x: Any, strike: Any, rate: Any, dividend: Any, volatility: Any, maturity: Any) -> Any:
    """The price of one option under a model, of spot (and dividend) or of forward x."""
    sign, spread = (1 if call else -1), volatility * mpmath.sqrt(maturity)
    discount = mpmath.exp(-rate * maturity)
    if model == "bachelier":
        d = (x - strike) / spread
        return discount * (sign * (x - strike) * cdf(sign * d) + spread * mpmath.npdf(d))
    grown = x * (discount if model == "black76" else mpmath.exp(-dividend * maturity))
    paid = strike * discount
    d1 = mpmath.log(grown / paid) / spread + spread / 2
    return sign * (grown * cdf(sign * d1) - paid * cdf(sign * (d1 - spread)))


def cdf(x: Any) -> Any:
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def greeks(model: str, call: bool, *numbers: float) -> dict[str, Any]:
    """Price and Greeks of one option: numbers are x, strike, rate, dividend, volatility, maturity."""
    with mpmath.workdps(DIGITS):
        given = [mpmath.mpf(number) for number in numbers]

        def by(place: int, order: int = 1) -> Any:
            def along(value: Any) -> Any:
                return price(model, call, *given[:place], value, *given[place + 1 :])

            return mpmath.diff(along, given[place], order)

        return {
            "price": price(model, call, *given),
            "delta": by(0),
            "gamma": by(0, 2),
            "vega": by(4),
            "theta": -by(5),
            "rho": by(2),
        }
