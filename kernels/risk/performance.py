"""The performance of return series, from their sums, growths and drawdowns: what runs once for both backends."""

from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.problems import refuse
from warpdesk_server.kernels.risk.loops import exponentials, logarithms
from warpdesk_server.kernels.risk.spec import Performance

Array = NDArray[Any]

# A variance below this part of the mean square is rounding: returns that differ from each other by 3e-14 of themselves.
NOISE = 2.0**-90
_RELATIVE = ("tracking_error", "information_ratio", "beta", "alpha", "up_capture", "down_capture")
_REASONS = {
    "sharpe": "its returns have no deviation",
    "sortino": "no return is below the target",
    "calmar": "there is no drawdown",
    "omega": "no return is below the target",
    "skew": "its returns have no deviation",
    "kurtosis": "its returns have no deviation",
    "information_ratio": "its returns less the benchmark's have no deviation",
    "beta": "the benchmark has no deviation",
    "alpha": "the benchmark has no deviation",
    "up_capture": "the benchmark never rose",
    "down_capture": "the benchmark never fell",
}


def check_returns(returns: Array, benchmark: Array | None) -> None:
    """Raise InvalidRequest for the first return below -1, of which no simple return can be."""
    for name, given in (("returns", returns), ("benchmark", benchmark)):
        if given is not None and (given < -1).any():
            at = [int(index) for index in np.argwhere(given < -1)[0]]
            raise refuse(f"/inputs/{name}", f"{at} is {given[tuple(at)]:g}: a simple return loses 1 at most")


def target(params: Performance) -> float:
    """The target of a period."""
    return (params.risk_free if params.target is None else params.target) / params.periods_per_year


def outputs(params: Performance, sums: Array, depths: Array, marks: Array, time: int, compared: bool) -> dict[str, Any]:
    """The outputs of performance from what loops.run_series gives."""
    n, year, root = float(time), params.periods_per_year, sqrt(params.periods_per_year)
    free = params.risk_free / year
    mean, below, gain, loss, mean_b, mean_a, d1, d2, d3, d4, e1, e2, a1, a2, de, up, down = sums[:, :17].T
    growths = sums[:, 17:].reshape(-1, 5, 2)
    logs = np.empty(growths.shape[:2])
    logarithms(growths.reshape(-1, 2), logs.reshape(-1))
    deepest = depths[:, 0].copy()
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        deviation = _deviation(d1, d2, mean, n)
        constant = deviation == 0.0
        m2 = np.where(constant, np.nan, d2 / n)
        annual = _exponential(logs[:, 0] * (year / n)) - 1.0
        found = {
            "total_return": np.ldexp(growths[:, 0, 0], (512.0 * growths[:, 0, 1]).astype(np.int32)) - 1.0,
            "annual_return": annual,
            "volatility": deviation * root,
            "sharpe": _ratio(mean - free, deviation) * root,
            "sortino": _ratio(mean - target(params), np.sqrt(below / n)) * root,
            "calmar": _ratio(annual, deepest),
            "omega": _ratio(gain, loss),
            "skew": d3 / n / (m2 * np.sqrt(m2)),
            "kurtosis": d4 / n / (m2 * m2) - 3.0,
            "max_drawdown": deepest,
            "drawdown_depth": depths,
            "drawdown_start": marks[..., 0].copy(),
            "drawdown_trough": marks[..., 1].copy(),
            "drawdown_recovery": marks[..., 2].copy(),
            "drawdown_length": _lengths(marks, time),
        }
        if compared:
            active = _deviation(a1, a2, mean_a, n)
            varies = _deviation(e1, e2, mean_b, n) > 0.0
            beta = _ratio(de - d1 * e1 / n, np.where(varies, e2 - e1 * e1 / n, 0.0))
            values = (
                active * root,
                _ratio(mean_a, active) * root,
                beta,
                ((mean - free) - beta * (mean_b - free)) * year,
                _ratio(_exponential(logs[:, 1] / up) - 1.0, _exponential(logs[:, 2] / up) - 1.0),
                _ratio(_exponential(logs[:, 3] / down) - 1.0, _exponential(logs[:, 4] / down) - 1.0),
            )
            found |= dict(zip(_RELATIVE, values, strict=True))
        else:
            found |= {name: np.full(len(sums), np.nan) for name in _RELATIVE}
    return found | {"undefined": _undefined(found, time, compared)}


def _deviation(total: Array, squares: Array, mean: Array, n: float) -> Array:
    """The sample deviation from sums of distances from the mean and of their squares; 0 where it is rounding."""
    spread = squares - total * total / n
    deviation: Array = np.where(spread > NOISE * n * (mean * mean), np.sqrt(np.maximum(spread, 0.0) / (n - 1.0)), 0.0)
    return deviation


def _ratio(a: Array, b: Array) -> Array:
    return np.where(b != 0.0, a / b, np.nan)


def _exponential(logs: Array) -> Array:
    found = np.empty(logs.shape)
    exponentials(np.ascontiguousarray(logs), found)
    return found


def _lengths(marks: Array, time: int) -> Array:
    start, recovery = marks[..., 0], marks[..., 2]
    end = np.where(recovery < 0, time, recovery)
    return np.where(start < 0, 0, end - start).astype(np.int32)


def _undefined(found: dict[str, Array], time: int, compared: bool) -> list[str]:
    sentences = [] if compared else [f"{', '.join(_RELATIVE)} are NaN: no benchmark was given"]
    for name, reason in _REASONS.items():
        nans = np.isnan(found[name])
        if nans.any() and (compared or name not in _RELATIVE):
            sentences.append(
                f"{name} is NaN for {int(nans.sum())} of {nans.size} series, first for series {int(np.argmax(nans))}: "
                f"in {time} returns {reason}"
            )
    return sentences
