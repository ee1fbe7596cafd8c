"""Exact amounts of privacy: whole numbers of 1e-12 epsilon, 1e-24 delta and 1e-15 rho.

A sum of them is the sum, whatever the order: ten times "0.1" is "1". What a release spends is rounded up to a whole
number, what a budget holds has to be one.
"""

import json
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from warpdesk.amount import Amount
from warpdesk_server.privacy.errors import Refused

Name = Literal["epsilon", "delta", "rho"]
Amounts = Mapping[Name, int]

PLACES: dict[Name, int] = {"epsilon": 12, "delta": 24, "rho": 15}  # decimal places of each

_AMOUNT: TypeAdapter[str] = TypeAdapter(Amount)


class NotAnAmount(Refused):
    """Raised if a text is not a privacy amount that can be stored exactly. `name` is epsilon, delta or rho."""

    code = "invalid-request"

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(sentence)
        self.name = name
        self.pointer = f"/{name}"


def exactly(name: Name, given: str) -> int:
    """Parse a privacy amount, a decimal string or the text of a JSON number, without rounding. Raises NotAnAmount."""
    try:
        amount = Fraction(_AMOUNT.validate_python(given)) * 10 ** PLACES[name]
    except ValidationError as error:
        raise NotAnAmount(name, f"{name} {error.errors(include_url=False)[0]['msg']}") from None
    if amount.denominator != 1:
        raise NotAnAmount(name, f"{name} {given} has more than the {PLACES[name]} decimal places that are kept")
    return amount.numerator


def rounded_up(name: Name, value: Fraction) -> int:
    """Round a privacy amount up to a whole number of its unit."""
    return math.ceil(value * 10 ** PLACES[name])


def shown(amounts: Amounts) -> dict[Name, str]:
    """Format privacy amounts as exact decimal strings without an exponent: {"epsilon": "0.1"}."""
    return {name: _decimal(amount, PLACES[name]) for name, amount in amounts.items()}


def read(text: str) -> dict[Name, int]:
    """Parse privacy amounts from the ledger's JSON, which `shown` wrote."""
    amounts = json.loads(text)
    return {name: int(Fraction(amounts[name]) * 10**places) for name, places in PLACES.items() if name in amounts}


def plus(one: Amounts, other: Amounts) -> dict[Name, int]:
    """The sum of two sets of privacy amounts, name by name."""
    return {name: one[name] + other[name] for name in one}


def minus(one: Amounts, other: Amounts) -> dict[Name, int]:
    """The difference of two sets of privacy amounts, name by name."""
    return {name: one[name] - other[name] for name in one}


def within(one: Amounts, limit: Amounts) -> bool:
    """Whether no privacy amount is above its limit."""
    return all(one[name] <= limit[name] for name in one)


def _decimal(amount: int, places: int) -> str:
    """Format a privacy amount as an exact decimal string."""
    sign, (whole, part) = "-" if amount < 0 else "", divmod(abs(amount), 10**places)
    return f"{sign}{whole}.{part:0{places}d}".rstrip("0").rstrip(".")
