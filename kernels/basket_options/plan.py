"""The plan of a basket's simulation: the numbers that every path needs of an option, the same on every device.

With h = maturity / dates, C the Cholesky factor of the correlations, and B_j the independent Brownian motions of a path
in units of sqrt(h),

    log(S_i / S_i(0)) = a_i k + sum over j <= i of volatility_i sqrt(h) C_ij B_j(k),
    a_i = (rate - dividend_i - volatility_i^2 / 2) h.

A path is drawn from its end: B_j(n) = sqrt(n) z, and B_j(k) = k / (k + 1) B_j(k + 1) + sqrt(k / (k + 1)) z (a Brownian
bridge to 0). So the regression, which goes back in time, needs one date of all paths at once, and no more memory.

Money is in units of `scale`, a power of two, so that cubes of payments stay finite.
"""

from math import frexp, fsum, ldexp, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.basket_options.spec import BasketOption, features, functions
from warpdesk_server.kernels.device.normal_tail import normal_cdf
from warpdesk_server.kernels.monte_carlo.closed_form import black_scholes, exp, log
from warpdesk_server.kernels.monte_carlo.spec import DRIFT_LIMIT, FLOOR, SPREAD_LIMIT
from warpdesk_server.kernels.problems import refuse

Array = NDArray[Any]

WEIGHTED_SUM, BEST_OF, WORST_OF = range(3)
ROUNDING = 1e-12  # of a correlation matrix that was computed: on the diagonal, and between both triangles
MOST_GROWTH = 80.0  # (rate - dividend) maturity of an American option: cubes of its payments stay finite
LEAST_PIVOT = 1e-12  # of a correlation matrix: what is left of an asset's variance, given those before it


class Terms(NamedTuple):
    """The scalars of one simulated option. Money is in units of `scale`."""

    kind: int  # WEIGHTED_SUM .. WORST_OF
    assets: int
    dates: int
    functions: int  # of the regression's basis
    features: int  # numbers of a path that it is made of
    sign: float  # 1 call, -1 put
    strike: float
    control: float  # closed-form value of the option on the geometric average, or 0
    control_pays: float  # probability that it pays, or 0
    control_base: float  # that average is control_base e^(sum of control_loads_j B_j)
    weight: float  # of the control in the cubes: 1 where it corrects the price, else 0
    controlled: int
    scale: float
    spread: float  # the greatest standard deviation of a log price until expiry
    negative: int  # 1 where some weight is below 0
    today: float  # what exercise today pays, in currency


class Tables(NamedTuple):
    """The tables of one simulated option, float64, C-contiguous."""

    loads: Array  # (assets, assets): volatility_i sqrt(h) C_ij, lower triangle
    bases: Array  # (assets,): weight_i spot_i
    drifts: Array  # (assets,): a_i
    control_loads: Array  # (assets,)
    discounts: Array  # (dates + 1,): e^(-rate k h)
    shrinks: Array  # (dates + 1,): k / (k + 1), and 0 for the last date
    spreads: Array  # (dates + 1,): sqrt(k / (k + 1)), and sqrt(n) for the last


def plan(
    params: BasketOption,
    spot: Array,
    volatility: Array,
    correlation: Array | None = None,
    dividend: Array | None = None,
    weights: Array | None = None,
) -> tuple[Terms, Tables]:
    """The scalars and tables of a simulation from its parameters and inputs. Raises InvalidRequest for bad numbers."""
    assets, dates = len(spot), params.dates
    h = params.maturity / dates
    spots, volatilities = _floats(spot, assets), _floats(volatility, assets)
    dividends = _floats(dividend if dividend is not None else np.zeros(1), assets)
    default = 1.0 / assets if params.payoff == "weighted_sum" else 1.0
    factors = _floats(weights if weights is not None else np.full(1, default), assets)
    _check_numbers(params, spots, volatilities, dividends, factors)
    root = cholesky(correlation) if correlation is not None else [[1.0]]
    loads = np.zeros((assets, assets))
    for i in range(assets):
        for j in range(i + 1):
            loads[i, j] = volatilities[i] * sqrt(h) * root[i][j]
    held = fsum(abs(factor) * price for factor, price in zip(factors, spots, strict=True))
    scale = ldexp(1.0, frexp(max(params.strike, held))[1])
    bases = np.array([factor * price / scale for factor, price in zip(factors, spots, strict=True)])
    drifts = np.array(
        [(params.rate - dividends[i] - 0.5 * volatilities[i] * volatilities[i]) * h for i in range(assets)]
    )
    count = functions(assets, params.is_american)
    job = Terms(
        kind=("weighted_sum", "best_of", "worst_of").index(params.payoff) if assets > 1 else WEIGHTED_SUM,
        assets=assets,
        dates=dates,
        functions=count,
        features=features(count),
        sign=1.0 if params.option == "call" else -1.0,
        strike=params.strike / scale,
        control=0.0,
        control_pays=0.0,
        control_base=0.0,
        weight=0.0,
        controlled=0,
        scale=scale,
        spread=max(volatilities) * sqrt(params.maturity),
        negative=int(min(factors) < 0.0),
        today=0.0,
    )
    job = job._replace(today=_payment_today(job, bases))
    k = np.arange(dates + 1.0)
    shrinks = k / (k + 1.0)
    spreads = np.sqrt(shrinks)
    shrinks[dates], spreads[dates] = 0.0, sqrt(dates)
    tables = Tables(
        loads=loads,
        bases=bases,
        drifts=drifts,
        control_loads=np.zeros(assets),
        discounts=np.array([exp(-params.rate * (k * h)) for k in range(dates + 1)]),
        shrinks=shrinks,
        spreads=spreads,
    )
    one_sign = all(factor > 0.0 for factor in factors)
    if params.payoff == "weighted_sum" and not params.is_american and params.control_variate and one_sign:
        return _with_control(params, job, tables)
    return job, tables


def cholesky(correlation: Array) -> list[list[float]]:
    """The lower Cholesky factor of a correlation matrix: of its lower triangle, with 1 on the diagonal.

    Raises InvalidRequest if it is none, or is not positive definite.
    """
    rows = [[float(value) for value in row] for row in correlation]
    root: list[list[float]] = []
    for i, row in enumerate(rows):
        if abs(row[i] - 1.0) > ROUNDING:
            raise refuse("/inputs/correlation", f"row {i}, column {i} has {row[i]:.17g}: a diagonal element is 1")
        factors: list[float] = []
        for j in range(i):
            if abs(row[j] - rows[j][i]) > ROUNDING:
                raise refuse(
                    "/inputs/correlation",
                    f"not symmetric: row {i}, column {j} has {row[j]:.17g}, and row {j}, column {i} has "
                    f"{rows[j][i]:.17g}",
                )
            if abs(row[j]) > 1.0:
                raise refuse("/inputs/correlation", f"row {i}, column {j} has {row[j]:.17g}, beyond 1 either way")
            rest = row[j]
            for m in range(j):
                rest -= factors[m] * root[j][m]
            factors.append(rest / root[j][j])
        pivot = 1.0
        for factor in factors:
            pivot -= factor * factor
        if pivot < LEAST_PIVOT:
            raise refuse(
                "/inputs/correlation",
                f"not positive definite: given the assets before it, asset {i} has {pivot:.3g} of its variance left, "
                f"and at least {LEAST_PIVOT:g} is needed",
            )
        root.append([*factors, sqrt(pivot)])
    return root


def _payment_today(job: Terms, bases: Array) -> float:
    values = [float(base) for base in bases]
    value = fsum(values) if job.kind == WEIGHTED_SUM else max(values) if job.kind == BEST_OF else min(values)
    return max(job.sign * (value - job.strike), 0.0) * job.scale


def _floats(array: Array, assets: int) -> list[float]:
    return [float(value) for value in np.broadcast_to(array, (assets,))]


def _check_numbers(
    params: BasketOption, spots: list[float], volatilities: list[float], dividends: list[float], weights: list[float]
) -> None:
    years = params.maturity
    for i, spot in enumerate(spots):
        if not FLOOR <= spot <= 1e12:
            raise refuse("/inputs/spot", f"asset {i}: spot {spot:g} is not in [{FLOOR:g}, 1e+12]")
    for i, volatility in enumerate(volatilities):
        if volatility != 0.0 and not FLOOR <= volatility <= 50.0:
            raise refuse(
                "/inputs/volatility", f"asset {i}: volatility {volatility:g} is neither 0 nor in [{FLOOR:g}, 50]"
            )
        if (spread := volatility * sqrt(years)) > SPREAD_LIMIT:
            raise refuse(
                "/inputs/volatility",
                f"asset {i}: volatility {volatility:g} over {years:g} years is a standard deviation of {spread:g} of "
                f"the log price; at most {SPREAD_LIMIT:g} is allowed",
            )
    for i, dividend in enumerate(dividends):
        if abs(dividend) > 10.0 or abs(dividend * years) > DRIFT_LIMIT:
            raise refuse(
                "/inputs/dividend",
                f"asset {i}: dividend {dividend:g} over {years:g} years; at most 10 a year, and {DRIFT_LIMIT:g} in "
                "all, are allowed either way",
            )
        if params.is_american and (grown := (params.rate - dividend) * years) > MOST_GROWTH:
            raise refuse(
                "/inputs/dividend",
                f"asset {i}: rate {params.rate:g} less dividend {dividend:g} over {years:g} years is a factor of "
                f"e^{grown:g}; a regression of American options takes at most e^{MOST_GROWTH:g}",
            )
    for i, weight in enumerate(weights):
        if abs(weight) > 1e12:
            raise refuse("/inputs/weights", f"asset {i}: weight {weight:g} is beyond 1e+12 either way")
    if not any(weights):
        raise refuse("/inputs/weights", "every weight is 0: there is no basket")


def _with_control(params: BasketOption, job: Terms, tables: Tables) -> tuple[Terms, Tables]:
    """The plan with a control: the option on F prod (S_i / F_i)^u_i, F the basket's forward, F_i those of the assets.

    u_i is the part of asset i in F. That average is lognormal, so its option has the price of Black and Scholes
    (Kemna and Vorst 1990 for averages in time; for baskets Vorst 1992, International Review of Financial Analysis 1).
    """
    variances = []
    for i in range(job.assets):
        variance = 0.0
        for load in tables.loads[i]:
            variance += float(load) * float(load)
        variances.append(variance)
    forwards = [float(tables.bases[i]) * exp(float(tables.drifts[i]) + 0.5 * variances[i]) for i in range(job.assets)]
    basket = fsum(forwards)
    loads = np.zeros(job.assets)
    mean = 0.0
    for i in range(job.assets):
        part = forwards[i] / basket
        mean -= 0.5 * part * variances[i]
        for j in range(i + 1):
            loads[j] += part * tables.loads[i, j]
    variance = 0.0
    for load in loads:
        variance += float(load) * float(load)
    deviation = sqrt(variance)
    average = basket * exp(mean)
    forward = average * exp(0.5 * variance)
    value = black_scholes(
        params.option, forward, job.strike, params.rate, params.rate, deviation / sqrt(params.maturity), params.maturity
    )
    distance = job.sign * log(average / job.strike)
    pays = float(normal_cdf(distance / deviation)) if deviation > 0.0 else float(distance > 0.0)
    return (
        job._replace(control=value, control_pays=pays, control_base=average, weight=1.0, controlled=1),
        tables._replace(control_loads=loads),
    )
