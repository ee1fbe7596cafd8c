"""Tests of a value at risk's coverage, from how often exceptions followed each other."""

from math import floor, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.device.elementary import log64
from warpdesk_server.kernels.risk.distributions import chi_squared_1, chi_squared_2
from warpdesk_server.kernels.risk.spec import VarBacktest, exact

# Basel Committee, Supervisory framework for the use of "backtesting" (1996), table 2: a zone begins where so few
# exceptions or fewer have this probability. For 250 days at 99 %: green 0 to 4, yellow 5 to 9, red from 10 on.
YELLOW, RED = 0.95, 0.9999


def outputs(params: VarBacktest, counts: NDArray[np.float64], time: int) -> dict[str, Any]:
    """The outputs of var_backtest from the counts (series, 5) of loops.count_exceptions."""
    level = exact(params.level)
    keep, fail = float(level), float(1 - level)
    found: dict[str, list[Any]] = {name: [] for name in ("exceptions", "kupiec", "independence", "zone", "cumulative")}
    unknown, cumulatives = [], {}
    for none_none, none_one, one_none, one_one, first in counts.tolist():
        exceptions = none_one + one_one + first
        ratio = 2.0 * (_term(time - exceptions, time * keep) + _term(exceptions, time * fail))
        if exceptions not in cumulatives:
            cumulatives[exceptions] = binomial_cdf(int(exceptions), time, fail)
        cumulative = cumulatives[exceptions]
        found["exceptions"].append(int(exceptions))
        found["kupiec"].append(max(ratio, 0.0))
        found["cumulative"].append(cumulative)
        found["zone"].append("green" if cumulative < YELLOW else "yellow" if cumulative < RED else "red")
        after_none, after_one = none_none + none_one, one_none + one_one
        reason = None
        if not after_none or not after_one:
            reason = (
                f"of {time} forecasts {int(exceptions)} were exceeded, and "
                f"{'none of these' if not after_one else 'every one'} before the last: "
                "whether exceptions follow each other cannot be told"
            )
        unknown.append(reason)
        found["independence"].append(float("nan") if reason else _independence(none_none, none_one, one_none, one_one))
    kupiec, independence = np.array(found["kupiec"]), np.array(found["independence"])
    conditional = kupiec + independence
    return {
        "exceptions": np.array(found["exceptions"], np.int64),
        "expected": fail * time,
        "kupiec": kupiec,
        "kupiec_p": _p_values(chi_squared_1, kupiec),
        "independence": independence,
        "independence_p": _p_values(chi_squared_1, independence),
        "conditional": conditional,
        "conditional_p": _p_values(chi_squared_2, conditional),
        "transitions": counts[:, :4].astype(np.int64).reshape(-1, 2, 2),
        "zone": found["zone"],
        "cumulative": np.array(found["cumulative"]),
        "unknown": unknown,
    }


def _term(count: float, expected: float) -> float:
    """count log(count / expected), and 0 for no count."""
    return count * float(log64(count / expected)) if count else 0.0


def _independence(none_none: float, none_one: float, one_none: float, one_one: float) -> float:
    """Christoffersen's likelihood ratio (Evaluating interval forecasts, 1998): of a Markov chain and of no memory."""
    after_none, after_one = none_none + none_one, one_none + one_one
    share = (none_one + one_one) / (after_none + after_one)
    terms = (
        _term(none_none, after_none * (1.0 - share)),
        _term(none_one, after_none * share),
        _term(one_none, after_one * (1.0 - share)),
        _term(one_one, after_one * share),
    )
    return max(2.0 * (terms[0] + terms[1] + terms[2] + terms[3]), 0.0)


def _p_values(p_value: Any, statistics: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([float("nan") if x != x else p_value(x) for x in statistics.tolist()])


def binomial_cdf(count: int, trials: int, probability: float) -> float:
    """The probability of at most `count` of so many trials.

    Terms relative to that of the mode, from it both ways, so that nothing underflows; as many as matter.
    """
    odds = probability / (1.0 - probability)
    mode = min(trials, floor((trials + 1) * probability))
    reach = 20 + int(40.0 * sqrt(trials * probability * (1.0 - probability) + 1.0))
    below = above = 0.0  # of the terms up to the count, and of the others
    for upwards in (False, True):
        term = 1.0
        for k in (
            range(mode + upwards, min(trials, mode + reach) + 1)
            if upwards
            else range(mode, max(0, mode - reach) - 1, -1)
        ):
            if upwards:
                term *= (trials - k + 1) / k * odds
            if k <= count:
                below += term
            else:
                above += term
            if not upwards:
                term *= k / (trials - k + 1) / odds
    return below / (below + above)
