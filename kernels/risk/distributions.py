"""The normal and Student's t distribution, and the p-values of likelihood ratios, with the project's own exp and log.

They run on the host for both backends, so that no byte depends on a C library.
"""

from math import inf, sqrt

from warpdesk_server.kernels.device.elementary import exp64, log64
from warpdesk_server.kernels.device.normal_tail import normal_cdf
from warpdesk_server.kernels.monte_carlo.closed_form import normal_quantile
from warpdesk_server.kernels.risk.loops import exponential
from warpdesk_server.kernels.risk.spec import exact

SQRT_TWO_PI = 2.5066282746310005
PI = 3.141592653589793
_TINY = 1e-300


def normal_tail(level: float) -> tuple[float, float]:
    """The standard normal's quantile z at a level, and the mean beyond it, density(z) / (1 - level)."""
    tail = float(1 - exact(level))
    z = -float(normal_quantile(tail)) + 0.0  # never -0.0
    return z, float(exp64(-0.5 * z * z)) / SQRT_TWO_PI / tail


def student_tail(level: float, freedom: float) -> tuple[float, float]:
    """The quantile q > 0 of Student's t at a level of at least 0.5, and the mean beyond it.

    The mean is density(q) / (1 - level) (freedom + q^2) / (freedom - 1): McNeil, Frey and Embrechts, Quantitative Risk
    Management (2nd edition 2015), example 2.15.
    """
    wanted = float(1 - exact(level))
    low, high = 0.0, 1.0
    while student_upper(high, freedom) > wanted:
        low, high = high, 2.0 * high
    for _ in range(70):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if student_upper(middle, freedom) > wanted:
            low = middle
        else:
            high = middle
    q = 0.0 if level == 0.5 else high
    density = _density_at_0(freedom) * _power(1.0 + q * q / freedom, -0.5 * (freedom + 1.0))
    return q, density / wanted * (freedom + q * q) / (freedom - 1.0)


def student_upper(x: float, freedom: float) -> float:
    """The probability that Student's t exceeds x >= 0.

    It is half the regularised incomplete beta function I_t(freedom / 2, 1 / 2) at t = freedom / (freedom + x^2), by
    its continued fraction (DLMF 8.17.22), which is quick for t below (a + 1) / (a + b + 2); above, 1 - I_(1 - t)(b, a).
    """
    a, b = 0.5 * freedom, 0.5
    t, rest = freedom / (freedom + x * x), x * x / (freedom + x * x)
    if rest == 0.0:
        return 0.5
    # t^a (1 - t)^b / B(a, b); B(a, 1/2) is 1 / (density at 0 times the root of freedom).
    front = _power(t, a) * sqrt(rest) * _density_at_0(freedom) * sqrt(freedom)
    if t < (a + 1.0) / (a + b + 2.0):
        return 0.5 * front * _beta_fraction(t, a, b) / a
    return 0.5 * (1.0 - front * _beta_fraction(rest, b, a) / b)


def chi_squared_1(statistic: float) -> float:
    """The p-value of a likelihood ratio of one degree of freedom: 2 Phi(-sqrt(x))."""
    return min(1.0, 2.0 * float(normal_cdf(-sqrt(statistic))))


def chi_squared_2(statistic: float) -> float:
    """The p-value of a likelihood ratio of two degrees of freedom: e^(-x / 2)."""
    return float(exponential(-0.5 * statistic))


def _power(base: float, exponent: float) -> float:
    return float(exp64(exponent * log64(base)))


def _density_at_0(freedom: float) -> float:
    """Gamma((f + 1) / 2) / (Gamma(f / 2) sqrt(f pi)): by its recurrence from a large f, where the ratio of the Gamma
    functions over sqrt(f / 2) is 1 - 1/(4f) + 1/(32f^2) + 5/(128f^3) - 21/(2048f^4) - ... (DLMF 5.11.13)."""
    factor, f = 1.0, freedom
    while f < 200.0:  # Gamma(f/2 + 1/2) / Gamma(f/2) is (f / (f + 1)) times that of f + 2
        factor *= f / (f + 1.0)
        f += 2.0
    u = 1.0 / f
    series = 1.0 + u * (-1 / 4 + u * (1 / 32 + u * (5 / 128 + u * (-21 / 2048 + u * (-399 / 8192)))))
    return factor * series * sqrt(0.5 * f) / sqrt(freedom * PI)


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method as Thompson and Barnett changed it."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    total = d
    for m in range(1, 2_000):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        change = inf
        for term in (even, odd):
            d = 1.0 + term * d
            c = 1.0 + term / c
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = c if abs(c) > _TINY else _TINY
            change = d * c
            total *= change
        if abs(change - 1.0) < 1e-16:
            break
    return total
