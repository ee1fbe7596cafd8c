"""Exact amounts of privacy and noise: rounded to a grid, and printed so that no promise becomes stronger."""

from decimal import Context, Decimal
from fractions import Fraction
from math import inf, isqrt, nextafter
from typing import Any


def digits(value: Fraction, rounding: str) -> str:
    """Twelve significant digits of a noisy release's amount, rounded so that they promise no more: budgets up, noise
    scales down."""
    decimal = Context(prec=12, rounding=rounding).divide(Decimal(value.numerator), Decimal(value.denominator))
    return str(decimal)


def at_least(value: Fraction) -> dict[str, Any]:
    """The output of a noisy release's amount of budget: as `exact`, with the least float64 that is not below it."""
    nearest = float(value)
    return {**exact(value), "value": nearest if nearest >= value else nextafter(nearest, inf)}


def exact(value: Fraction) -> dict[str, Any]:
    return {"exact": f"{value.numerator}/{value.denominator}", "value": float(value)}


def round_down(value: Fraction) -> tuple[int, int]:
    """The steps of a noise's grid as (m, e): the largest m * 2**e that is not above `value`, 2**52 <= m < 2**53."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length() - 53
    while value >= power(exponent + 53):
        exponent += 1
    return int(value / power(exponent)), exponent


def power(exponent: int) -> Fraction:
    return Fraction(2**exponent) if exponent >= 0 else Fraction(1, 2**-exponent)


def root_up(value: int) -> int:
    return 0 if value == 0 else isqrt(value - 1) + 1
