"""The reliability of a Monte Carlo estimate: whether enough paths decide its error.

A confidence interval assumes that the mean of the payoffs is normally distributed. The payoffs' skewness tells how
wrong that is. Cochran (Sampling Techniques, 3rd edition 1977, section 2.15) asks for n > 25 skewness^2: then at most
6 % of 95 % intervals miss. So n / skewness^2 acts as a count of paths: for k equal payments among zeros it is about k.
"""

from math import isfinite, sqrt

from warpdesk_server.kernels.monte_carlo.closed_form import exp, geometric_mean
from warpdesk_server.kernels.monte_carlo.spec import PATHS_LIMIT, MonteCarloParams

ENOUGH = 25  # Cochran's, where the skewness is known
# The same if the skewness is the sample's. That lacks rare large payoffs which no path had, so it is too small, and the
# count is too large. The README has the measured coverage.
ENOUGH_SEEN = 2 * ENOUGH
# An average minus its control, the geometric average, is about twice as skewed as the price at expiry. By the moments
# of both it is 1.4 to 3.4 times, for a standard deviation of 1 to 1.7 of the log price and 2 to 50 fixings.
CONTROLLED = 2


def deciding_paths(n: float, total: float, squares: float, cubes: float) -> int:
    """The count of paths that decide an estimate: n / skewness^2 of n payoffs, at most n, from their power sums."""
    mean = total / n
    spread = squares - total * mean
    third = cubes - 3.0 * mean * squares + 2.0 * n * mean * mean * mean
    if spread <= 0.0 or not isfinite(third) or (cubes == 0.0 and squares > 0.0):  # lost by rounding or underflow
        return 0
    return int(min(n, spread * (spread / third) * (spread / third))) if third != 0.0 else int(n)


def warnings(
    params: MonteCarloParams, plain: float, variance: float, paying: int, deciding: int, *, knocked_at_start: bool
) -> list[str]:
    """The warnings of a simulated estimate: sentences that say why the price or its error cannot be trusted.

    `plain` is the variance of the payoffs, `variance` what the control leaves of it.
    """
    knocked_out = knocked_at_start and params.payoff.endswith("_out")
    # Every path is the same, and so is the option.
    if params.volatility == 0.0 or knocked_out or _worthless(params):
        return []
    deviation, found = params.volatility * sqrt(params.maturity), list[str]()
    if not _is_its_control(params):
        needed = _paths_needed(params)
        found = warnings_of(params.option, params.paths, plain, variance, paying, deciding, deviation, needed)
    return found + _warnings_of_greeks(params, paying, deviation) if params.greeks else found


def warnings_of(
    option: str,
    paths: int,
    plain: float,
    variance: float,
    paying: int,
    deciding: int,
    deviation: float,
    needed: float,
) -> list[str]:
    """The same of any option: of a log price with this standard deviation until expiry, whose skewness needs so many
    paths."""
    if plain == 0.0:
        outcome = "no path paid" if paying == 0 else "every path paid the same"
        return [
            f"Of {paths:,} paths {outcome}: a standard error of 0 is no evidence here, since a payment that is "
            "rarer than one path in so many was not seen. Take more paths"
        ]
    if variance == 0.0:  # the control has all of it, but for rounding
        return []
    found = []
    if deciding < ENOUGH_SEEN:
        found.append(
            f"About {deciding} of {paths:,} paths decide the estimate, fewer than {ENOUGH_SEEN}: rarer and "
            "larger payments may be missing from it, and its standard error and interval are too small. Take more paths"
        )
    if needed > paths:
        found.append(
            f"The log price has a standard deviation of {deviation:g} until expiry, so that rare high prices carry a "
            f"{option}: an interval that holds takes {_count(needed)} paths, not {paths:,}"
        )
    return found


def _warnings_of_greeks(params: MonteCarloParams, paying: int, deviation: float) -> list[str]:
    """The warnings of Greeks alone: those of the price stand for them too, but for what its control corrects."""
    found = []
    if _has_control(params) and paying < ENOUGH_SEEN:
        found.append(
            f"Greeks have no control, and {paying} of {params.paths:,} paths pay, fewer than {ENOUGH_SEEN}: their "
            "standard errors are too small. Take more paths"
        )
    needed = 0.0 if _is_bounded(params) else _paths_needed_by_vega(_spread(params))
    if needed > params.paths:
        found.append(
            f"The log price has a standard deviation of {deviation:g} until expiry, so that rare high prices carry "
            f"vega: an interval of it that holds takes {_count(needed)} paths, not {params.paths:,}"
        )
    return found


def _count(needed: float) -> str:
    return f"about {needed:.2g}" if needed <= PATHS_LIMIT else f"more than the {PATHS_LIMIT:,} allowed"


def _worthless(params: MonteCarloParams) -> bool:
    """Whether an option is knocked out wherever it would pay."""
    if params.barrier is None or params.strike is None or params.rebate > 0.0:
        return False
    if params.payoff == "barrier_up_out":
        return params.option == "call" and params.strike >= params.barrier
    return params.payoff == "barrier_down_out" and params.option == "put" and params.strike <= params.barrier


def _is_its_control(params: MonteCarloParams) -> bool:
    """Whether an Asian option has one fixing: its control is then the option itself, whose price is exact."""
    return _has_control(params) and params.steps == 1 and not params.include_spot


def _has_control(params: MonteCarloParams) -> bool:
    return params.payoff == "asian_arithmetic" and params.control_variate


def _is_bounded(params: MonteCarloParams) -> bool:
    """Whether an option's payoff has a greatest value, so that the sample's skewness is enough."""
    floating = params.payoff == "lookback_floating"
    return (params.option == "put" and not floating) or params.payoff in ("barrier_up_out", "cash_or_nothing")


def _spread(params: MonteCarloParams) -> float:
    """The standard deviation of the log price that an option pays by: at expiry, or of a geometric mean."""
    if params.payoff == "asian_geometric":
        return geometric_mean(0.0, params.volatility, params.maturity, params.steps, params.include_spot)[1]
    return params.volatility * sqrt(params.maturity)


def _paths_needed(params: MonteCarloParams) -> float:
    """The number of paths required by the skewness of the price itself, which a payoff that grows with it shares.

    An arithmetic mean has the tail of the last price, which is a part of it. A geometric mean is itself lognormal.
    """
    if _is_bounded(params):
        return 0.0
    return paths_of_a_lognormal(_spread(params), CONTROLLED if _has_control(params) else 1)


def _paths_needed_by_vega(s: float) -> float:
    """The number of paths required by the skewness of e^(s z) (z - s), the derivative of a price to its volatility.

    Of a standard normal z; its mean is 0, and its second and third moment are e^(2 s^2) (1 + s^2) and
    e^(9 s^2 / 2) (8 s^3 + 6 s).
    """
    skewness = exp(1.5 * s * s) * (8.0 * s * s + 6.0) * s / ((1.0 + s * s) * sqrt(1.0 + s * s))
    return ENOUGH * skewness * skewness


def paths_of_a_lognormal(deviation: float, more: int = 1) -> float:
    """The number of paths required by the skewness of a lognormal number, or by one that is `more` times as skewed."""
    growth = exp(deviation * deviation) - 1.0
    skewness = (growth + 3.0) * sqrt(growth) * more
    return ENOUGH * skewness * skewness
