"""The estimate of an option's price, its error and quantiles, from sums over paths and counts of terminal prices."""

from math import ceil, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.device.reduce import pairwise_sum, sums_of_runs
from warpdesk_server.kernels.monte_carlo.bridge import dimensions
from warpdesk_server.kernels.monte_carlo.closed_form import exp, normal_quantile, student_quantile
from warpdesk_server.kernels.monte_carlo.control_variate import Control, Sums, controlled, variance_of
from warpdesk_server.kernels.monte_carlo.plan import ASIAN_ARITHMETIC, Terms, terms
from warpdesk_server.kernels.monte_carlo.reliability import deciding_paths, warnings
from warpdesk_server.kernels.monte_carlo.spec import (
    BINS,
    BINS_PER_DEVIATION,
    GREEKS,
    REPLICATES,
    SUMS,
    MonteCarloParams,
)


def estimate(params: MonteCarloParams, sums: NDArray[np.float64], counts: NDArray[np.int64]) -> dict[str, Any]:
    """The outputs of monte_carlo from the sums over each unit's paths, listed in spec.SUMS, and the histogram of
    W_steps."""
    job = terms(params)
    n = float(params.paths >> job.mirrored)  # what is summed are the means of antithetic pairs
    x, xx, y, yy, xy, paid, control_paid, cubes, *moments = (float(value) for value in pairwise_sum(sums))
    price, plain = job.shift + x / n, variance_of(x, xx, n)
    variance = plain
    control: dict[str, Any] | None = None
    if job.kind == ASIAN_ARITHMETIC and params.control_variate:
        average = Control("geometric_asian", job.control, n * job.control_pays, int(control_paid))
        price, variance, control = controlled(Sums(n, x, xx, y, yy, xy), average, shift=job.shift)
        control["expected_paying_paths"] *= 1 << job.mirrored  # n are pairs
    error = sqrt(variance / n)
    sobol = params.sampling == "sobol"
    if sobol:
        replicates = sums_of_runs(sums, len(sums) // REPLICATES)
        error = _replicates_error(replicates[:, 0] - (control["beta"] if control else 0.0) * replicates[:, 2], n)
        if params.payoff in ("cash_or_nothing", "asset_or_nothing"):
            error = max(error, _least_error(params, job))
        if control:
            plain_error = _replicates_error(replicates[:, 0], n)
            control["plain_standard_error"] = plain_error
            control["variance_reduction"] = (plain_error / error) ** 2 if error > 0.0 else None
    greeks: dict[str, Any] | None = {} if params.greeks else None
    for greek, name in enumerate(GREEKS if greeks is not None else ()):
        total, squares = moments[2 * greek : 2 * greek + 2]
        spread = sqrt(variance_of(total, squares, n) / n)
        if sobol:
            spread = _replicates_error(replicates[:, SUMS + 2 * greek], n)
        greeks[name] = {"value": total / n, "standard_error": spread}  # type: ignore[index]
    knocked_at_start = job.side * job.barrier <= 0.0 if params.is_barrier else None
    # As in the sum of cubes: the payoff minus its control, with slope 1.
    total = (x - job.weight * y) * job.unit
    squares = (xx - 2.0 * job.weight * xy + job.weight * yy) * job.unit * job.unit
    deciding = deciding_paths(n, total, squares, cubes) if variance > 0.0 else 0
    level = 0.5 + 0.5 * params.confidence
    reach = (student_quantile(level, REPLICATES - 1) if sobol else normal_quantile(level)) * error
    return {
        "price": price,
        "standard_error": error,
        "confidence_interval": [price - reach, price + reach],
        "confidence": params.confidence,
        "quantiles": _quantiles(params, job, counts),
        "quantile_resolution": exp(0.5 * _bin_width(job)) - 1.0,
        "control_variate": control,
        "knocked_at_start": knocked_at_start,
        "greeks": greeks,
        "paths": params.paths,
        "sampling": {
            "method": params.sampling,
            "samples": REPLICATES if sobol else int(n),
            "sobol_dimensions": dimensions(params) if sobol else 0,
        },
        "paying_paths": int(paid),
        "deciding_paths": deciding,
        "warnings": warnings(params, plain, variance, int(paid), deciding, knocked_at_start=bool(knocked_at_start)),
        "steps": params.steps,
    }


def _replicates_error(sums: NDArray[np.float64], n: float) -> float:
    """The standard error of a mean over Sobol points from the sums of its independent scrambles (Owen 1997)."""
    means = [float(one) / (n / REPLICATES) for one in sums]
    mean = sum(means) / REPLICATES
    return sqrt(sum((one - mean) * (one - mean) for one in means) / (REPLICATES - 1) / REPLICATES)


def _least_error(params: MonteCarloParams, job: Terms) -> float:
    """The standard error of a digital option over Sobol points, of rounding alone.

    The terminal price has one dimension, of which each scramble puts the same number of points into equal parts, give
    or take one: scrambles may agree, though the share that pays lies between two counts.
    """
    jump = job.cash if params.payoff == "cash_or_nothing" else job.strike
    return job.discount * jump / (params.paths / REPLICATES) / sqrt(12 * REPLICATES)


def _bin_width(job: Terms) -> float:
    """The width of a bin of the simulated terminal prices' histogram, in log price."""
    return job.diffusion * sqrt(job.steps) / BINS_PER_DEVIATION


def _quantiles(params: MonteCarloParams, job: Terms, counts: NDArray[np.int64]) -> list[dict[str, float]]:
    """The quantiles of terminal prices: the middle of the bin that holds the rank ceil(probability * paths)."""
    reached = np.cumsum(counts)
    answers = []
    for probability in params.quantiles:
        rank = min(max(ceil(probability * params.paths), 1), params.paths)
        bin_ = int(np.searchsorted(reached, rank))
        deviations = (bin_ + 0.5 - BINS / 2) / BINS_PER_DEVIATION
        log_return = job.drift * job.steps + job.diffusion * (sqrt(job.steps) * deviations)
        answers.append({"probability": probability, "price": job.spot * exp(log_return)})
    return answers
