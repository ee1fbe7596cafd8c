"""The estimate of an option's price by a control variate: a payoff on the same paths, whose price is known exactly.

Glasserman, Monte Carlo Methods in Financial Engineering, 4.1.
"""

from math import sqrt
from typing import Any, NamedTuple

# Paths on which the control must be expected to pay before its slope is estimated. A slope through a few paths fits
# them exactly, so the remaining error is not the option's; the README has the coverage measured around 200. The
# expected count decides, not the observed one, which is correlated with the control's mean and would bias the price.
BETA_NEEDS = 200

# A variance below this part of the mean square is rounding: a tree over 10^8 numbers errs by up to 27 half units, 3e-15
# of itself, and each of the two sums subtracted by as much.
NOISE = 2.0**-46


class Sums(NamedTuple):
    """Sums over n paths of an option's payoff x, of its control less its price, y, and of their products."""

    n: float
    x: float
    xx: float
    y: float
    yy: float
    xy: float


class Control(NamedTuple):
    """The control of an option: its name and exact price, the paths expected to pay it, and those that did."""

    name: str
    price: float
    expected: float
    paid: int


def variance_of(total: float, squares: float, n: float) -> float:
    """The unbiased sample variance of the paths' payoffs; 0 if it may be only rounding."""
    spread = squares - total * total / n
    return spread / (n - 1.0) if spread > NOISE * squares else 0.0


def controlled(
    sums: Sums, control: Control, *, shift: float = 0.0, scale: float = 1.0
) -> tuple[float, float, dict[str, Any]]:
    """The mean payoff of an option, corrected, the variance of a path, and the output `control_variate`.

    y has expectation 0, so the price is mean(x) - beta mean(y): unbiased for beta = 1, or any number that does not
    depend on the paths. An estimated beta costs one degree of freedom. `shift` is what was subtracted from each payoff,
    `scale` the currency in a unit of the sums. A control that is the option itself leaves a variance of 0.
    """
    n, x, xx, y, yy, xy = sums
    plain, spread = variance_of(x, xx, n), variance_of(y, yy, n)
    # Without variance there is no covariance.
    covariance = (xy - x * y / n) / (n - 1.0) if plain > 0.0 and spread > 0.0 else 0.0
    estimated = control.expected >= BETA_NEEDS and spread > 0.0
    if estimated:
        beta = covariance / spread
        variance = max(plain - beta * covariance, 0.0) * ((n - 1.0) / (n - 2.0))
    else:
        beta = 1.0
        variance = max(plain - 2.0 * covariance + spread, 0.0)
    variance = variance if variance * n > NOISE * xx else 0.0
    return (
        shift + (x / n - beta * (y / n)),
        variance,
        {
            "name": control.name,
            "closed_form": control.price * scale,
            "beta": beta,
            "beta_estimated": estimated,
            "paying_paths": control.paid,
            "expected_paying_paths": control.expected,
            "plain_price": (shift + x / n) * scale,
            "plain_standard_error": sqrt(plain / n) * scale,
            "variance_reduction": plain / variance if variance > 0.0 else None,
        },
    )
