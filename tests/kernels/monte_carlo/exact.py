"""The value of an option by numerical integration, to judge estimates by."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from warpdesk_server.kernels.monte_carlo.closed_form import black_scholes, geometric_asian
from warpdesk_server.kernels.monte_carlo.spec import MonteCarloParams

Floats = NDArray[np.float64]


def exact(p: MonteCarloParams) -> float:
    """The value, without rebates where a barrier is looked at on dates only, and without the spot in an average."""
    if p.is_lookback:
        return _lookback(p)
    assert p.strike is not None
    market = p.spot, p.strike, p.rate, p.dividend, p.volatility, p.maturity
    if p.payoff == "asian_geometric":
        return geometric_asian(p.option, *market, p.steps)
    if p.payoff == "asian_arithmetic":
        return _date_by_date(p)
    if p.monitoring == "discrete":
        out = _date_by_date(p)
        return black_scholes(p.option, *market) - out if p.payoff.endswith("_in") else out
    return _by_the_end(p)


def _pays(p: MonteCarloParams, price: Floats) -> Floats:
    inside = (1 if p.option == "call" else -1) * (price - (p.strike or 0.0))
    if p.payoff.endswith("or_nothing"):
        paid = np.where(inside > 0.0, price if p.payoff == "asset_or_nothing" else (p.payout or 1.0), 0.0)
    else:
        paid = np.maximum(inside, 0.0)
    return np.exp(-p.rate * p.maturity) * paid


def _lookback(p: MonteCarloParams) -> float:
    """The value of a lookback option at all times, or on dates if it begins now and the spot is past its strike."""
    up = 1 if p.looks_up else -1
    drift = up * (p.rate - p.dividend - 0.5 * p.volatility**2)
    begin = up * np.log((p.extreme or p.spot) / p.spot)
    strike = p.strike or p.spot * np.exp(
        (p.rate - p.dividend) * p.maturity
    )  # floating: the mean of the price at expiry
    beyond = up * np.log(strike / p.spot) if p.payoff == "lookback_fixed" else -np.inf
    if p.monitoring == "discrete":
        assert begin == 0.0 >= beyond
        paid = up * (p.spot * _mean_extreme(p, up, drift) - strike)
    else:
        paid = up * (p.spot * np.exp(up * begin) - strike) if beyond < begin else 0.0
        deviation = p.volatility * np.sqrt(p.maturity)
        low = max(begin, beyond)
        y, weight = _nodes(low, max(low, drift * p.maturity) + 10 * deviation + deviation**2, [], 0.5 * deviation)
        # The chance that the log price reaches y, times the price there (Harrison 1985).
        chance = norm.cdf((drift * p.maturity - y) / deviation) + np.exp(
            2 * drift * y / p.volatility**2 + norm.logcdf((-y - drift * p.maturity) / deviation)
        )
        paid += weight @ (p.spot * np.exp(up * y) * chance)
    return float(np.exp(-p.rate * p.maturity) * paid)


def _mean_extreme(p: MonteCarloParams, up: int, drift: float) -> float:
    """The mean of exp(up max(0, Y_1 .. Y_n)) of a random walk by Spitzer's identity (1956): n E_n = sum of a_k E_(n-k),
    where a_k is the mean of exp(up max(0, Y_k))."""
    k = np.arange(1, p.steps + 1)
    mean, variance = drift * k * p.maturity / p.steps, p.volatility**2 * k * p.maturity / p.steps
    root = np.sqrt(variance)
    a = norm.cdf(-mean / root) + np.exp(up * mean + 0.5 * variance) * norm.cdf((mean + up * variance) / root)
    means = [1.0]
    for n in range(1, p.steps + 1):
        means.append(a[:n] @ np.array(means[::-1]) / n)
    return float(means[-1])


def _by_the_end(p: MonteCarloParams) -> float:
    """Integrate over the normal of the price at expiry.

    Between a start and an end that lie on the same side of a barrier, a Brownian bridge reaches it with probability
    exp(-2 d0 d1 / variance), where d0 and d1 are the distances in log price.
    """
    deviation = p.volatility * np.sqrt(p.maturity)
    mean = (p.rate - p.dividend) * p.maturity - 0.5 * deviation**2
    kinks = [(np.log(price / p.spot) - mean) / deviation for price in (p.strike, p.barrier) if price is not None]
    z, weight = _nodes(-9.0, 9.0 + deviation, kinks, 1.0)
    weight *= np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    log_return = mean + deviation * z
    pays = _pays(p, p.spot * np.exp(log_return))
    if p.barrier is not None:
        side = 1 if "_up_" in p.payoff else -1
        start = side * np.log(p.barrier / p.spot)
        end = start - side * log_return
        reached = np.exp(-2.0 * start * np.maximum(end, 0.0) / deviation**2)
        missed = np.exp(-p.rate * p.maturity) * p.rebate * (1.0 - reached)
        pays = reached * pays + missed if p.payoff.endswith("_in") else (1.0 - reached) * pays
    return float(weight @ pays)


def _date_by_date(p: MonteCarloParams) -> float:
    """Carry a density from date to date: of the log price that was not knocked out, or of the log of a sum of prices.

    With returns R_k, the prices S_1 .. S_n add up to S_0 X_1, where X_k = R_k (1 + X_k+1) and X_n = R_n (Carverhill and
    Clewlow, Flexible convolution, Risk 1990).
    """
    average = p.payoff == "asian_arithmetic"
    fixings = p.steps if average else 1
    step = p.volatility * np.sqrt(p.maturity / p.steps)
    mean = (p.rate - p.dividend - 0.5 * p.volatility**2) * p.maturity / p.steps
    deviation = p.volatility * np.sqrt(p.maturity)
    low, high = -8.0 * deviation, 8.0 * deviation + deviation**2  # the price's own density is that much further up
    low, high = low + min(mean * p.steps, 0.0), high + max(mean * p.steps, 0.0) + np.log(fixings)
    if p.barrier is not None:
        barrier = np.log(p.barrier / p.spot)
        low, high = (low, min(high, barrier)) if "_up_" in p.payoff else (max(low, barrier), high)
    assert p.strike is not None
    x, weight = _nodes(low, high, [np.log(p.strike / p.spot * fixings)], 1.5 * step)

    def density(moved: Floats) -> Floats:
        return np.exp(-0.5 * ((moved - mean) / step) ** 2) / (step * np.sqrt(2.0 * np.pi))

    here = density(x)
    if p.steps > 1:
        start = np.logaddexp(0.0, x) if average else x
        onward = weight[:, None] * density(x - start[:, None])
        for _ in range(p.steps - 1):
            here = here @ onward
    return float((here * weight) @ _pays(p, p.spot * np.exp(x) / fixings))


def _nodes(low: float, high: float, kinks: list[float], width: float) -> tuple[Floats, Floats]:
    """Nodes and weights of Gauss and Legendre in parts of at most `width`, cut at the kinks."""
    node, weight = np.polynomial.legendre.leggauss(8)
    nodes, weights = [], []
    for a, b in pairwise([low, *sorted(kink for kink in kinks if low < kink < high), high]):
        edges = np.linspace(a, b, 1 + int(np.ceil((b - a) / width)))
        half = 0.5 * (edges[1] - edges[0])
        nodes.append((edges[:-1, None] + half * (1.0 + node)).ravel())
        weights.append(np.tile(half * weight, len(edges) - 1))
    return np.concatenate(nodes), np.concatenate(weights)
