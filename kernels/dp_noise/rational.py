"""Exact amounts: rounded to a grid, and printed with rounding that never makes a promise larger."""

from decimal import Context, Decimal
from fractions import Fraction
from math import inf, isqrt, nextafter
from typing import Any


def digits(value: Fraction, rounding: str) -> str:
    """Twelve significant digits that never promise more than `value`: budgets round up, scales of noise down."""
    decimal = Context(prec=12, rounding=rounding).divide(Decimal(value.numerator), Decimal(value.denominator))
    return str(decimal)


def at_least(value: Fraction) -> dict[str, Any]:
    """As `exact`, with the least float64 that is not below the value: a budget is never understated."""
    nearest = float(value)
    return {**exact(value), "value": nearest if nearest >= value else nextafter(nearest, inf)}


def exact(value: Fraction) -> dict[str, Any]:
    return {"exact": f"{value.numerator}/{value.denominator}", "value": float(value)}


def round_down(value: Fraction) -> tuple[int, int]:
    """Return (m, e) with 2**52 <= m < 2**53 and m * 2**e the largest such number not above `value`."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length() - 53
    while value >= power(exponent + 53):
        exponent += 1
    return int(value / power(exponent)), exponent


def power(exponent: int) -> Fraction:
    return Fraction(2**exponent) if exponent >= 0 else Fraction(1, 2**-exponent)


def root_up(value: int) -> int:
    return 0 if value == 0 else isqrt(value - 1) + 1
