"""American options on the CPU: the European ones, and what the right to exercise early adds to them.

A call is the put of an asset worth the strike, with rate and dividend exchanged; numbers of a put are divided by its
strike and, in time, by its maturity. Twin of american.cu; README.md has the equations.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.vanilla_options import premium
from warpdesk_server.kernels.vanilla_options.spec import (
    EUROPEAN,
    EXERCISE,
    HOLD,
    LEAST_DRIFT,
    LEAST_SPREAD,
    MOST_DRIFT,
    MOST_SPREAD,
    OUTSIDE,
    TWO_BOUNDARIES,
    UNKNOWN,
)

Array = NDArray[Any]
Premiums = Callable[[Array, Array, Array, Array], Array]

BUMP = 1e-6  # of the spread: vega and rho are differences of premiums


def add_early_exercise(
    options: Sequence[Array],
    is_call: Array,
    european: Sequence[Array],
    of_forward: bool,
    units: tuple[float, float],
    premiums: Premiums,
) -> tuple[Array, Array]:
    """Change the price and Greeks of European options into those of American ones, in place, and return critical prices
    and statuses.

    Options and is_call are arrays of all options or of one number; `european` is NaN where a number is out of range.
    `premiums` are those of puts by rate, dividend, spread and spot.
    """
    count = european[0].size
    spot, strike, rate, dividend, volatility, years = (np.broadcast_to(each, count) for each in options)
    call = np.broadcast_to(is_call, count) > 0
    price, delta, gamma, vega, theta, rho = european
    percent, day = units
    with np.errstate(all="ignore"):
        sure = ~np.isnan(price)
        asset, money = np.where(call, strike, spot), np.where(call, spot, strike)
        earned, lost = rate * years, dividend * years
        spread = volatility * np.sqrt(years)
        here, there = np.where(call, lost, earned), np.where(call, earned, lost)
        may = (here > 0.0) | ((here == 0.0) & (there < 0.0)) | (years == 0.0)
        two = (here < 0.0) & (there < here)
        still = (asset == 0.0) | (money == 0.0) | (spread < LEAST_SPREAD)
        status = np.where(sure, np.where(two & ~still, TWO_BOUNDARIES, EUROPEAN), UNKNOWN).astype(np.uint8)
        critical = np.where(call, np.inf, 0.0)
        for each in (*european, critical):
            each[status >= UNKNOWN] = np.nan

        at = np.flatnonzero(sure & may & ~two & ~still)
        if at.size:
            c = call[at]
            s, a, b, m, x = (each[at] for each in (spread, here, there, money, asset / money))
            now, bump = premiums(a, b, s, x), BUMP * s
            other = premiums(a, b, s + bump, x)[0]
            more_vega = (other - now[0]) * (m / bump) * np.sqrt(years[at])
            other = premiums(
                a + np.where(c & (not of_forward), 0.0, bump), b + np.where(c | of_forward, bump, 0.0), s, x
            )[0]
            more_rho = (other - now[0]) * (m / bump) * years[at]
            bound = now[3].copy()
            premium.exp(bound)
            gain = m - asset[at]
            exercise = x <= bound
            full = price[at] + m * now[0]
            least = np.where(price[at] > gain, price[at], gain)
            full = np.where(full > least, full, least)
            full = np.where(full < m, full, m)
            full = np.where(exercise, gain, full)
            slope = delta[at] + np.where(c, now[0] - x * now[1], now[1])
            slope = np.where(exercise, np.where(c, 1.0, -1.0), slope)
            curve = gamma[at] + np.where(c, x * x * now[2], now[2]) / m
            curve = np.where(exercise, 0.0, curve)
            q, r, spots = (each[at] for each in (dividend, rate, spot))
            swing = volatility[at] * spots
            decay = r * full - (r - q) * spots * slope - 0.5 * swing * swing * curve
            drift = a - b
            stated = (drift >= LEAST_DRIFT * s) & (drift <= MOST_DRIFT * s) & (s <= MOST_SPREAD)
            price[at], delta[at], gamma[at] = full, slope, curve
            vega[at] = np.where(exercise, 0.0, vega[at] + more_vega * percent)
            theta[at] = np.where(exercise, 0.0, decay * day)
            rho[at] = np.where(exercise, 0.0, rho[at] + more_rho * percent)
            critical[at] = np.where(c, strike[at] / bound, strike[at] * bound)
            status[at] = np.where(stated, np.where(exercise, EXERCISE, HOLD), OUTSIDE)

        at = np.flatnonzero(sure & may & still)
        if at.size:
            c = call[at]
            a, b, m, s = (each[at] for each in (here, there, money, asset))
            time, paid, grown = _best(a, b, m, s)
            price[at], gamma[at], vega[at] = m * paid - s * grown, 0.0, 0.0
            delta[at] = np.where(c, paid, -grown)
            theta[at] = np.where(time > 0.0, (a * (m * paid) - b * (s * grown)) / years[at] * day, 0.0)
            owed = np.where(c, s * grown, -(m * paid))
            rho[at] = years[at] * time * (-price[at] if of_forward else owed) * percent
            bound = np.where(b > a, a / b, 1.0)
            critical[at] = np.where(c, strike[at] / bound, strike[at] * bound)
            status[at] = np.where((price[at] > 0.0) & (time == 0.0), EXERCISE, HOLD)
    return critical, status


def _best(rate: Array, dividend: Array, money: Array, asset: Array) -> tuple[Array, Array, Array]:
    """When puts without volatility are exercised, in parts of their maturity, and what is got and given for it then.

    That is two factors, of money and of the asset; both are 0 where a put is worth nothing.
    """
    turn = dividend * asset / (rate * money)
    turns = (turn > premium.TINY) & (turn < premium.HUGE)
    turn = np.where(turns, turn, 1.0)
    premium.log(turn)
    turn = np.where(turns, turn / (dividend - rate), 0.0)
    time, paid, grown, value = (np.zeros_like(rate) for _ in range(4))
    for when in (np.zeros_like(rate), turn, np.ones_like(rate)):
        got, given = -rate * when, -dividend * when
        premium.exp(got)
        premium.exp(given)
        worth = money * got - asset * given
        better = (worth > value) & (when >= 0.0) & (when <= 1.0)
        time, paid = np.where(better, when, time), np.where(better, got, paid)
        grown, value = np.where(better, given, grown), np.where(better, worth, value)
    return time, paid, grown
