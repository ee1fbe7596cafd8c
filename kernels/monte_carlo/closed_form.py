"""Closed-form prices of European and geometric Asian options, for the control variate and to check the simulation.

All numbers are float64, with the project's own exp and log, so that the bytes do not depend on the C library.
"""

from math import sqrt

from warpdesk_server.kernels.device.elementary import exp64, log64
from warpdesk_server.kernels.device.normal_tail import normal_cdf

PI = 3.141592653589793


def normal_quantile(probability: float) -> float:
    """The x with normal_cdf(x) = probability in (1e-12, 1 - 1e-12), for an option's prices."""
    if probability == 0.5:
        return 0.0
    wanted = min(probability, 1.0 - probability)
    low, high = 0.0, 8.0
    for _ in range(60):  # 8 * 2^-60 is below the spacing of doubles near 1
        middle = 0.5 * (low + high)
        if normal_cdf(-middle) > wanted:
            low = middle
        else:
            high = middle
    return high if probability > 0.5 else -high


def student_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t at a probability in [0.5, 1 - 1e-9), for an odd number of degrees of freedom above 1.

    Its distribution function is Abramowitz and Stegun (1964), 26.7.3.
    """
    low, high = 0.0, 1.0
    while _student_cdf(high, freedom) < probability:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        if _student_cdf(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return 0.0 if probability == 0.5 else high


def _student_cdf(t: float, freedom: int) -> float:
    slope = t / sqrt(freedom)
    cosine = 1.0 / sqrt(1.0 + slope * slope)
    total, term = 0.0, cosine
    for k in range(3, freedom + 1, 2):
        total += term
        term *= cosine * cosine * ((k - 1.0) / k)
    return 0.5 + (_arc_tangent(slope) + slope * cosine * total) / PI


def _arc_tangent(x: float) -> float:
    """By halving the angle four times, and its series."""
    for _ in range(4):
        x = x / (1.0 + sqrt(1.0 + x * x))
    total = 0.0
    for k in range(21, 0, -2):  # x is at most 0.1
        total = 1.0 / k - x * x * total
    return 16.0 * x * total


def black_scholes(
    option: str, spot: float, strike: float, rate: float, dividend: float, volatility: float, maturity: float
) -> float:
    """The Black-Scholes-Merton value of a European option (times in years, rates continuous)."""
    mean = (rate - dividend - 0.5 * volatility * volatility) * maturity
    return _lognormal_option(option, spot, strike, mean, volatility * sqrt(maturity), exp(-rate * maturity))


def geometric_asian(
    option: str,
    spot: float,
    strike: float,
    rate: float,
    dividend: float,
    volatility: float,
    maturity: float,
    steps: int,
    include_spot: bool = False,
) -> float:
    """The value of an option on the geometric mean of the fixings at maturity * k / steps, k = 1 .. steps.

    The mean is lognormal (Kemna and Vorst 1990; the discrete form as in Clewlow and Strickland, Implementing
    Derivatives Models, pp. 118-123). With `include_spot` the price at time 0 is one more fixing.
    """
    mean, deviation = geometric_mean(rate - dividend, volatility, maturity, steps, include_spot)
    return _lognormal_option(option, spot, strike, mean, deviation, exp(-rate * maturity))


def geometric_asian_pays(
    option: str,
    spot: float,
    strike: float,
    rate: float,
    dividend: float,
    volatility: float,
    maturity: float,
    steps: int,
    include_spot: bool = False,
) -> float:
    """The probability that the option of `geometric_asian` pays anything."""
    mean, deviation = geometric_mean(rate - dividend, volatility, maturity, steps, include_spot)
    sign = 1.0 if option == "call" else -1.0
    distance = sign * (log(spot / strike) + mean)
    if deviation == 0.0:
        return 1.0 if distance > 0.0 else 0.0
    return normal_cdf(distance / deviation)


def positive_part(x: float) -> float:
    """An option's payoff x if it is positive, else +0.0, also for -0.0, which Python's max may keep."""
    return x if x > 0.0 else 0.0


def exp(x: float) -> float:
    """e^x by the project's own float64 exponential, for an option's price."""
    return float(exp64(float(x)))


def log(x: float) -> float:
    """ln x by the project's own float64 logarithm, for an option's price."""
    return float(log64(float(x)))


def _lognormal_option(option: str, spot: float, strike: float, mean: float, deviation: float, discount: float) -> float:
    """The value of an option on a lognormal price, spot * exp(N(mean, deviation^2)), with a discount factor."""
    sign = 1.0 if option == "call" else -1.0
    forward = spot * exp(mean + 0.5 * deviation * deviation)
    if deviation == 0.0:
        return discount * positive_part(sign * (forward - strike))
    d2 = (log(spot / strike) + mean) / deviation
    d1 = d2 + deviation
    return discount * sign * (forward * normal_cdf(sign * d1) - strike * normal_cdf(sign * d2))


def geometric_mean(
    growth: float, volatility: float, maturity: float, steps: int, include_spot: bool
) -> tuple[float, float]:
    """Mean and standard deviation of log(geometric mean of an option's fixings / spot)."""
    step = maturity / steps
    fixings = steps + 1 if include_spot else steps
    mean = (growth - 0.5 * volatility * volatility) * step * (steps * (steps + 1) / 2) / fixings
    variance = volatility * volatility * step * (steps * (steps + 1) * (2 * steps + 1) / 6) / (fixings * fixings)
    return mean, sqrt(variance)
