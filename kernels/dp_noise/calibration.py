"""The calibration of discrete Gaussian noise: the sensitivity it covers at an (epsilon, delta), and the reverse.

It is computed in high precision and rounded to the safe side. The noise is Y, P(Y = n) proportional to
exp(-n**2 / 2 s**2), with s = 2**k grid steps, k >= 20.

One coordinate that moves by D steps (Canonne, Kamath, Steinke 2020, Theorem 7, an exact bound):

    delta = P(Y > e s**2 / D - D / 2) - exp(e) P(Y > e s**2 / D + D / 2)

The tails are sums over the integers, by Euler and Maclaurin with a bounded remainder, so that the returned value is
never below the exact sum. The formula of Balle and Wang (2018) for continuous noise is only the starting point of the
search: on a coarse grid it is too small.

Several coordinates: rho-zero-concentrated noise is (epsilon, delta)-private (Canonne, Kamath, Steinke 2020, Proposition
12 with the conversion of Corollary 13) with

    delta = exp((a - 1)(a rho - epsilon)) / (a - 1) * (1 - 1/a)**a     for every a > 1,

which is solved for rho or for epsilon. Any a is valid: floats find the best one, and high precision evaluates it.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from math import ceil, exp, floor, inf, log, log1p
from statistics import NormalDist
from threading import Lock
from typing import Any

from mpmath.ctx_mp import MPContext  # type: ignore[import-untyped]

# Our own mpmath context, for one thread at a time: its functions change the context's precision while they run.
_mp = MPContext()
_lock = Lock()
_GUARD = Fraction(1, 2**36)  # a safety margin, so that no rounding here can matter
_EPSILON_DIGITS = 12  # decimal places to which a computed epsilon is rounded up, as budgets count


@lru_cache(1024)
def largest_move(k: int, epsilon: Fraction, delta: Fraction) -> int:
    """The largest sensitivity D, within 1e-9, that costs at most (epsilon, delta) with noise of 2**k steps; 0 if none.

    A cold call takes 1 to 3 ms, 5 ms at worst (delta 1e-30).
    """
    with _lock:
        _mp.prec = _precision(delta)
        moved, less = int(_relative_move(epsilon, delta) * 2**k), 1
        while moved > 0 and _delta(k, moved, epsilon) > delta:
            moved, less = moved - less, 2 * less
        return max(moved, 0)


@lru_cache(1024)
def epsilon_of_move(k: int, moved: int, delta: Fraction) -> Fraction:
    """The epsilon of noise of 2**k steps for a sensitivity of D steps and this delta, rounded up to 1e-12."""
    with _lock:
        _mp.prec = _precision(delta)
        relative = _mp.mpf(moved) / 2**k
        most = _epsilon_of_rho(Fraction(moved**2, 2 * 4**k), delta)
        least = _round_up(Fraction(0))
        if _delta(k, moved, least) <= delta:
            return least
        wanted = _mp.log(_number(delta)) - _mp.ldexp(1, -29)
        found = _root(lambda e: wanted - _mp.log(_continuous(relative, e)), _number(least), _number(most))
        epsilon, more = _round_up(_fraction(found)), _GUARD
        while _delta(k, moved, epsilon) > delta:
            epsilon, more = _round_up(epsilon * (1 + more)), 2 * more
        return epsilon


@lru_cache(1024)
def rho_of(epsilon: Fraction, delta: Fraction) -> Fraction:
    """The largest rho of noise known to be (epsilon, delta)-private, rounded down; at most 0 if there is none."""

    with _lock:
        _mp.prec = _precision(delta)
        return _rho_of(epsilon, delta)


@lru_cache(1024)
def epsilon_of_rho(rho: Fraction, delta: Fraction) -> Fraction:
    """The least epsilon known to hold with delta for rho-zero-concentrated noise, rounded up to 1e-12."""
    with _lock:
        _mp.prec = _precision(delta)
        return _epsilon_of_rho(rho, delta)


def _rho_of(epsilon: Fraction, delta: Fraction) -> Fraction:
    given, log_delta = float(epsilon), _log(delta)
    beyond = _best(lambda b: (given + _gain(b, log_delta)) / (1 + b))
    return _fraction((_number(epsilon) + _exact_gain(beyond, delta)) / (1 + beyond)) * (1 - _GUARD)


def _epsilon_of_rho(rho: Fraction, delta: Fraction) -> Fraction:
    given, log_delta = float(rho), _log(delta)
    beyond = _best(lambda b: _gain(b, log_delta) - (1 + b) * given)
    return _round_up(_fraction((1 + beyond) * _number(rho) - _exact_gain(beyond, delta)) * (1 + _GUARD))


def _gain(b: float, log_delta: float) -> float:
    """The difference a rho - epsilon of noise for a = 1 + b: (log delta + log(a - 1) - a log(1 - 1/a)) / (a - 1)."""
    return (log_delta + log(b) + (1 + b) * log1p(1 / b)) / b


def _exact_gain(b: Any, delta: Fraction) -> Any:
    return (_mp.log(_number(delta)) + _mp.log(b) + (1 + b) * _mp.log1p(1 / b)) / b


@lru_cache(256)
def least_beyond(laplace: bool, k: int, share: Fraction) -> int:
    """The smallest m with P(|noise| >= m) <= share, for noise of scale 2**k steps."""
    scale = 2**k
    with _lock:
        _mp.prec = 160
        if laplace:
            # P(|Y| >= m) = 2 exp(-m / t) / (1 + exp(-1 / t)): a geometric series.
            wanted = scale * (_mp.log(2 / _number(share)) - _mp.log1p(_mp.exp(_mp.mpf(-1) / scale)))
            return int(_mp.ceil(wanted))
        m = ceil(NormalDist().inv_cdf(1 - float(share) / 2) * scale)
        while 2 * _fraction(_tail(k, m - 1)[1]) <= share:
            m -= 1
        while 2 * _fraction(_tail(k, m)[1]) > share:
            m += 1
        return m


def _delta(k: int, moved: int, epsilon: Fraction) -> Fraction:
    """The delta of Theorem 7 for noise of 2**k steps and a sensitivity of `moved` steps, or slightly more."""
    first = floor(epsilon * 4**k / moved - Fraction(moved, 2)) + 1
    upper, lower = _tail(k, first)[1], _tail(k, first + moved)[0]
    return _fraction(upper - _mp.exp(_number(epsilon)) * lower) + Fraction(1, 2 ** (_mp.prec - 32))


def _tail(k: int, m: int) -> tuple[Any, Any]:
    """The lower and upper bound of the noise's tail P(Y >= m).

    Of sum f(n), n >= m: the integral + f(m) / 2 - f'(m) / 12, with an error below 1/720 of the integral of |f''''|.
    The sum of all f is s sqrt(2 pi), with a relative error of exp(-2 pi**2 s**2).
    """
    if m <= 0:
        low, high = _tail(k, 1 - m)
        return 1 - high, 1 - low
    scale = _mp.mpf(2**k)
    u = m / scale
    top = _mp.exp(-u * u / 2)
    beyond = _mp.sqrt(_mp.pi / 2) * _mp.erfc(u / _mp.sqrt(2))
    # In units of s: f = exp(-u**2 / 2), f' = -u f / s, and |f''''| <= (u**4 + 6 u**2 + 3) f / s**4.
    middle = beyond + top / (2 * scale) + u * top / (12 * scale**2)
    remainder = ((u**3 + 9 * u) * top + 12 * beyond) / (720 * scale**4)
    whole = _mp.sqrt(2 * _mp.pi)
    return (middle - remainder) / whole, (middle + remainder) / whole


@lru_cache(1024)
def _relative_move(epsilon: Fraction, delta: Fraction) -> Fraction:
    """The sensitivity D / s that continuous noise just covers at (epsilon, delta): Balle and Wang (2018), Theorem 8."""
    wanted, e = _mp.log(_number(delta)), _number(epsilon)
    # Several coordinates allow slightly less. If that is nothing, as much as even epsilon 0 allows.
    low = max(_mp.sqrt(2 * _number(max(_rho_of(epsilon, delta), Fraction(0)))), _number(delta))
    high = low * 5 / 4
    while _continuous(high, e) < _number(delta):
        low, high = high, high * 5 / 4
    return _fraction(_root(lambda relative: _mp.log(_continuous(relative, e)) - wanted, low, high))


def _continuous(relative: Any, epsilon: Any) -> Any:
    """The delta of continuous Gaussian noise for a sensitivity of `relative` standard deviations."""
    at, half = epsilon / relative, relative / 2
    root = _mp.sqrt(2)
    value = (_mp.erfc((at - half) / root) - _mp.exp(epsilon) * _mp.erfc((at + half) / root)) / 2
    return max(value, _mp.ldexp(1, -_mp.prec))  # what is below this is rounding


def _root(rising: Callable[[Any], Any], low: Any, high: Any) -> Any:
    """A point between low and high at which a rising function of noise is below zero by less than 2**-30.

    The method is false position with the weights of Illinois, aimed at half of that.
    """
    aim, near = _mp.ldexp(1, -31), _mp.ldexp(1, -30)
    below, above = rising(low) + aim, rising(high) + aim
    side = 0
    for _ in range(100):
        middle = (low * above - high * below) / (above - below)
        value = rising(middle)
        if -near <= value <= 0:
            return middle
        if value + aim > 0:
            high, above = middle, value + aim
            below, side = (below / 2 if side > 0 else below), 1
        else:
            low, below = middle, value + aim
            above, side = (above / 2 if side < 0 else above), -1
    return low


def _best(gain: Callable[[float], float]) -> Any:
    """The a - 1 with the greatest gain for Gaussian noise, by a search in its logarithm, which need not be exact."""

    def at(x: float) -> float:
        return gain(exp(x))

    best = max((float(x) for x in range(-40, 81)), key=at)
    step = 0.5
    while step > 1e-7:
        best = max((best - step, best, best + step), key=at)
        step /= 2
    return _mp.mpf(exp(best))


def _precision(delta: Fraction) -> int:
    """The precision in bits with which delta, a difference of two tails of noise, keeps about eighty correct bits."""
    return 128 + 2 * max(0, delta.denominator.bit_length() - delta.numerator.bit_length())


def _log(value: Fraction) -> float:
    return log(value.numerator) - log(value.denominator) if value > 0 else -inf


def _round_up(value: Fraction) -> Fraction:
    return Fraction(max(1, ceil(value * 10**_EPSILON_DIGITS)), 10**_EPSILON_DIGITS)


def _number(value: Fraction) -> Any:
    return _mp.mpf(value.numerator) / value.denominator


def _fraction(value: Any) -> Fraction:
    sign, mantissa, exponent, _ = value._mpf_
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent
