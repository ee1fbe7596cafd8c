"""The value at risk of portfolios, from what a backend says of their losses: all that runs once for both backends."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, frexp, fsum, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.matmul.cpu import matmul
from warpdesk_server.kernels.matmul.spec import MatmulParams
from warpdesk_server.kernels.monte_carlo.plan import key
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.kernels.risk.distributions import normal_tail, student_tail
from warpdesk_server.kernels.risk.loops import add_terms, factorise
from warpdesk_server.kernels.risk.losses import Losses
from warpdesk_server.kernels.risk.spec import CONTRIBUTIONS, FLAT, PIECES, TOGETHER, ValueAtRisk, exact, named

Array = NDArray[Any]
Run = Callable[["Job", Callable[[Losses, int, int], None]], None]

_KERNEL = MatmulParams(algorithm="kernel")
_INFINITY = float("inf")


@dataclass(frozen=True)
class Job:
    """A value-at-risk job: portfolios, and scenarios that are rows of `rows`, or of normals where it is None.

    The loss of a portfolio in a scenario is its offset plus the product of its exposures and the scenario's row.
    """

    params: ValueAtRisk
    weights: Array  # (portfolios, assets)
    count: int  # scenarios
    exposures: Array  # (portfolios, assets)
    offsets: Array  # (portfolios)
    rows: Array | None
    masses: Array  # uint64 (scenarios), or empty where all are 1
    total: int  # mass of all scenarios
    freedom: float  # mass of n - 1 equal scenarios, or what stands for it: total - squares / total
    effective: float  # scenarios of equal mass with errors as large: total^2 / squares
    words: tuple[int, int] = (0, 0)  # the key of the normals
    mean: Array | None = None  # of the returns, where they are simulated
    factor: Array | None = None  # lower triangle whose square is their covariance


def value_at_risk(
    run: Run,
    params: ValueAtRisk,
    weights: Array,
    returns: Array | None,
    probabilities: Array | None,
    covariance: Array | None,
    mean: Array | None,
    seed: int,
) -> dict[str, Any]:
    """The outputs of value_at_risk. `run(job, measure)` calls measure(losses, first, end) for portfolios of the job.

    Raises InvalidRequest for probabilities that are negative or all 0, and for a covariance that is none.
    """
    held = np.ascontiguousarray(weights.reshape(-1, weights.shape[-1]), np.float64)
    model = None
    if covariance is not None:
        model = np.zeros(held.shape[1]) if mean is None else _float64(mean), _symmetric(covariance)
    shapes = dict.fromkeys(FLAT, ()) | dict.fromkeys(CONTRIBUTIONS, (held.shape[1] * params.components,))
    found = {name: np.empty((len(held), len(params.levels), *last)) for name, last in shapes.items()}

    def fill(parts: dict[str, Array], first: int, end: int) -> None:
        for name, part in parts.items():
            found[name][first:end] = part

    if params.method == "parametric" and model is not None:
        each = max(1, TOGETHER // held.shape[1])
        for first in range(0, len(held), each):
            fill(_analytic(params, held[first : first + each], *model, first), first, first + each)
    else:
        job = _job(params, held, returns, probabilities, model, seed)
        measure = _of_scenarios if params.samples else _of_moments
        run(job, lambda losses, first, end: fill(measure(job, losses, held[first:end]), first, end))
    lead = weights.shape[:-1]
    return {name: array.reshape(*lead, *array.shape[1:]) for name, array in found.items()} | named(params)


def _float64(array: Array) -> Array:
    return np.ascontiguousarray(array, np.float64)


def _product(a: Array, b: Array) -> Array:
    """a @ b with the bytes that every device gives."""
    product: Array = matmul(_KERNEL, np.ascontiguousarray(a), np.ascontiguousarray(b))["product"]
    return product


# ---------------------------------------------------------------- the job


def _job(
    params: ValueAtRisk,
    weights: Array,
    returns: Array | None,
    probabilities: Array | None,
    model: tuple[Array, Array] | None,
    seed: int,
) -> Job:
    """The job of some returns, or of a model: the mean and covariance of normals or t's that are simulated."""
    if returns is not None:
        masses = _masses(params, len(returns), probabilities)
        found = _mass(masses, len(returns))
        if params.method != "historical" and not found[1] > 0.0:
            raise refuse("/inputs/probabilities", f"one of {len(returns)} scenarios has a weight; a variance takes two")
        if params.method != "monte_carlo":
            return Job(params, weights, len(returns), -weights, np.zeros(len(weights)), returns, masses, *found)
        model = _estimates(_float64(returns), masses)
    mean, covariance = model  # type: ignore[misc]  # the check of the request wants one or the other
    factor = _factor(covariance, "covariance" if returns is None else "returns")
    offsets = -_product(weights, mean[:, None])[:, 0]
    none = np.empty(0, np.uint64)
    return Job(params, weights, params.simulated, -_product(weights, factor), offsets, None, none,
               *_mass(none, params.simulated), key(seed), mean, factor)  # fmt: skip


def _masses(params: ValueAtRisk, count: int, probabilities: Array | None) -> Array:
    """Integer weights of scenarios, up to 2^40, so that sums of them do not depend on their order."""
    if params.decay is not None:
        powers = np.cumprod(np.concatenate([[1.0], np.full(count - 1, params.decay)]))[::-1]
    elif probabilities is not None:
        powers = _float64(probabilities)
        if (powers < 0).any():
            at = int(np.argmax(powers < 0))
            raise refuse("/inputs/probabilities", f"that of scenario {at} is {powers[at]:g}, below 0")
        if not powers.max() > 0:
            raise refuse("/inputs/probabilities", f"all {count} are 0")
    else:
        return np.empty(0, np.uint64)
    # By a power of 2, so that whole numbers keep their ratios: the largest lies in (2^39, 2^40].
    mantissa, exponent = frexp(powers.max())
    return np.rint(np.ldexp(powers, 40 - exponent + (mantissa == 0.5))).astype(np.uint64)


def _mass(masses: Array, count: int) -> tuple[int, float, float]:
    """The mass of all scenarios, that which an unbiased variance is divided by, and their effective number."""
    if masses.size == 0:
        return count, count - 1.0, float(count)
    total, squares = int(masses.sum()), fsum(mass * mass for mass in masses.astype(np.float64).tolist())
    return total, total - squares / total, float(total) * (float(total) / squares)


def _estimates(returns: Array, masses: Array) -> tuple[Array, Array]:
    """The mean and the unbiased covariance of returns (scenarios, assets)."""
    total, freedom, _ = _mass(masses, len(returns))
    each = masses.astype(np.float64) if masses.size else np.ones(len(returns))
    mean = _product(each[None], returns)[0] / total
    apart = returns - mean
    scaled = apart * (each / freedom)[:, None] if freedom > 0.0 else apart
    covariance = _product(scaled.T, apart)
    return mean, (covariance + covariance.T) / 2.0


def _symmetric(covariance: Array) -> Array:
    given = _float64(covariance)
    apart = np.abs(given - given.T)
    if (wrong := apart > 1e-12 * np.abs(given).max()).any():
        i, j = (int(index) for index in np.argwhere(wrong)[0])
        raise refuse(
            "/inputs/covariance",
            f"[{i}, {j}] is {given[i, j]:g} and [{j}, {i}] is {given[j, i]:g}: it is not symmetric",
        )
    return (given + given.T) / 2.0


def _factor(covariance: Array, source: str) -> Array:
    """The Cholesky factor of a covariance. Raises InvalidRequest for its source if it is not positive definite."""
    factor = np.zeros_like(covariance)
    at, pivot = factorise(covariance, factor)
    if at >= 0:
        raise refuse(
            f"/inputs/{source}",
            f"the covariance of {len(covariance)} assets is not positive definite: what the assets before it leave of "
            f"the variance {covariance[at, at]:.6g} of asset {at} is {pivot:.3g}. It takes more scenarios than assets, "
            "and no asset that is constant or a combination of others",
        )
    return factor


# ---------------------------------------------------------------- by scenarios


def _of_scenarios(job: Job, losses: Losses, weights: Array) -> dict[str, Array]:
    """Quantiles of scenarios, Rockafellar and Uryasev's expected shortfall, and the scenarios that contribute."""
    params, levels = job.params, [exact(level) for level in job.params.levels]
    rules = [_ranks(job, level) for level in levels]
    wanted = sorted({rank for rule in rules for rank in rule.all})
    ranked = losses.ranked(wanted)
    loss = {rank: ranked[:, at] for at, rank in enumerate(wanted)}

    def of(field: str) -> Array:
        return np.stack([loss[getattr(rule, field)] for rule in rules], axis=1)

    tails = np.array([float(1 - level) for level in levels])
    part = np.array([rule.part for rule in rules])
    lower = of("lower")
    first, second = of("first"), of("second")
    with np.errstate(over="ignore", invalid="ignore"):  # of infinite losses
        var = np.where((part > 0.0) & (second != first), first + (second - first) * part, first)
    sums, masses = losses.tails(lower)
    excess, squares = sums[..., 0] / job.total, sums[..., 1] / job.total
    with np.errstate(over="ignore", invalid="ignore"):  # losses or squares beyond float64: the error is not known
        cvar = lower + excess / tails
        spread = np.maximum(squares - excess * excess, 0.0)
        half = (of("above") - of("below")) / 2.0
    out_of_sample = np.array([rule.out_of_sample for rule in rules])
    found = {
        "var": var,
        "cvar": cvar,
        "var_error": np.where(out_of_sample, np.nan, half),
        # Fewer scenarios beyond the level than one, by their effective number, show no spread.
        "cvar_error": np.where(job.effective * tails < 1.0 - 1e-9, np.nan, np.sqrt(spread / job.effective) / tails),
    }
    if not params.components:
        return found | dict.fromkeys(CONTRIBUTIONS, np.empty((*var.shape, 0)))

    low, high = of("low"), of("high")
    (_, at_low), (_, at_high) = losses.tails(low), losses.tails(high)
    window = (at_low[..., 0] + at_low[..., 1] - at_high[..., 0]).astype(np.float64)
    tail = tails * job.total
    beyond, equal = (masses[..., each].astype(np.float64) for each in (0, 1))
    zero = np.zeros_like(low)
    pieces = np.empty((len(low), 2, len(levels), PIECES))
    pieces[:, 0] = np.stack([low, high, zero, zero, 1.0 / window, zero, zero, zero], axis=-1)
    if params.quantile == "linear" and not params.window:
        # 1 - part at the first loss and part at the second, shared by losses that are equal.
        pieces[:, 0, :, 3] = low
        pieces[:, 0, :, 4:6] = _between(low, high, (1.0 - part) / at_low[..., 1], part / at_high[..., 1], window)
    shared = np.maximum(tail - beyond, 0.0) / (tail * equal)
    pieces[:, 1] = np.stack([lower, lower, zero + 1.0 / tail, zero, shared, zero, zero, zero], axis=-1)
    marginal_var, marginal_cvar = _marginal(job, losses, pieces)
    if params.window:
        # What the window loses on average is near the VaR. Parts of the VaR add up to it.
        mean = _sums(weights, marginal_var)
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = var / mean
        marginal_var = marginal_var * np.where((scale > 0.0) & (scale < _INFINITY), scale, np.nan)[..., None]
    return found | _contributions(weights, marginal_var, marginal_cvar)


def _between(low: Array, high: Array, at_low: Array, at_high: Array, window: Array) -> Array:
    """The line c0 + c1 (L - low) that is at_low at L = low and at_high at high (..., 2); where both are one loss, or
    too near for a slope, 1 / window."""
    with np.errstate(over="ignore", invalid="ignore"):
        gap = high - low
        apart = gap > 2.0**-1000
        slope = (at_high - at_low) / np.where(apart, gap, 1.0)
    return np.stack([np.where(apart, at_low, 1.0 / window), np.where(apart, slope, 0.0)], axis=-1)


@dataclass(frozen=True)
class _Ranks:
    """The masses at which a level's losses stand: of the CVaR's quantile, of the VaR's one or two with the part of the
    way to the second, of one standard deviation of the quantile either way, and of the ends of the window."""

    lower: int
    first: int
    second: int
    part: float
    below: int
    above: int
    out_of_sample: bool
    low: int
    high: int

    @property
    def all(self) -> set[int]:
        return {self.lower, self.first, self.second, self.below, self.above, self.low, self.high}


def _ranks(job: Job, level: Fraction) -> _Ranks:
    params, total = job.params, job.total
    lower = first = second = ceil(level * total)
    part = 0.0
    if params.quantile == "higher":
        first = second = min(floor(level * total) + 1, total)
    elif params.quantile == "linear":
        place = level * (total - 1)
        first, part = floor(place) + 1, float(place - floor(place))
        second = min(first + 1, total)
    # The standard deviation of a binomial count of scenarios: the quantile moves between the ranks so far either way.
    deviation = Fraction(total * sqrt(float(level * (1 - level)) / job.effective))
    above = ceil(level * total + deviation)
    return _Ranks(
        lower,
        first,
        second,
        part,
        max(1, ceil(level * total - deviation)),
        min(above, total),
        above > total,
        max(1, first - params.window),
        min(total, second + params.window if part > 0.0 or second == first else first + params.window),
    )


# ---------------------------------------------------------------- by moments


def _of_moments(job: Job, losses: Losses, weights: Array) -> dict[str, Array]:
    """Quantiles of a normal or t distribution with the losses' moments, or of Cornish and Fisher's expansion."""
    total = float(job.total)
    first = losses.moments(np.zeros(len(weights)))[:, 0] / total
    mean = first + losses.moments(first)[:, 0] / total  # what rounding left of the mean
    sums = losses.moments(mean)
    variance = np.maximum(sums[:, 1] - sums[:, 0] * sums[:, 0] / total, 0.0) / job.freedom
    sigma = np.sqrt(variance)
    var_factor, cvar_factor, excess = _factors(job.params)
    pieces = np.zeros((len(weights), 2, len(job.params.levels), PIECES))
    pieces[..., 0], pieces[..., 1] = -_INFINITY, _INFINITY
    pieces[..., 3] = mean[:, None, None]
    factors = np.broadcast_to(np.stack([var_factor, cvar_factor])[None], pieces.shape[:3])
    with np.errstate(divide="ignore", invalid="ignore"):
        pieces[..., 4] = 1.0 / total
        if job.params.distribution == "cornish_fisher":
            factors = _expanded(job.params, pieces, sums / total, sigma)
        pieces[..., 5] += factors / (job.freedom * sigma)[:, None, None]
    # A portfolio whose losses are all equal has no deviation: its VaR is its loss.
    reach = np.where(sigma[:, None, None] > 0.0, factors, 0.0) * sigma[:, None, None]
    values = mean[:, None, None] + reach
    errors = sigma[:, None, None] * np.sqrt((1.0 + factors * factors * (excess + 2.0) / 4.0) / job.effective)
    found = dict(zip(FLAT, (values[:, 0], values[:, 1], errors[:, 0], errors[:, 1]), strict=True))
    if not job.params.components:
        return found | dict.fromkeys(CONTRIBUTIONS, np.empty((*values[:, 0].shape, 0)))
    return found | _contributions(weights, *_marginal(job, losses, pieces))


def _factors(params: ValueAtRisk) -> tuple[Array, Array, float]:
    """How many deviations VaR and CVaR lie above the mean, by level, and the distribution's excess kurtosis, or NaN."""
    if params.distribution == "student_t":
        freedom = params.degrees_of_freedom or 0.0
        scale = sqrt((freedom - 2.0) / freedom)  # of a t with variance 1
        found = np.array([student_tail(level, freedom) for level in params.levels]) * scale
        excess = 6.0 / (freedom - 4.0) if freedom > 4.0 else np.nan
    else:
        found = np.array([normal_tail(level) for level in params.levels])
        excess = 0.0 if params.distribution == "normal" else np.nan
    return found[:, 0], found[:, 1], excess


def _expanded(params: ValueAtRisk, pieces: Array, means: Array, sigma: Array) -> Array:
    """Cornish and Fisher's factors (portfolios, 2, levels), with their derivatives by a scenario's loss in `pieces`.

    The quantile is z + (z^2 - 1) S/6 + (z^3 - 3z) K/24 - (2z^3 - 5z) S^2/36 for skewness S and excess kurtosis K of
    the losses. Its mean beyond z has Hermite's polynomials of one degree less, as the integral of He_n times the
    density is He_(n-1) times it (Maillard, A user's guide to the Cornish Fisher expansion, 2012).
    """
    m2, m3, m4 = (means[:, each][:, None, None] for each in (1, 2, 3))
    root = np.sqrt(m2)
    skew, kurtosis = m3 / (m2 * root), m4 / (m2 * m2) - 3.0
    z, beyond = np.array([normal_tail(level) for level in params.levels]).T
    one = np.stack([z, beyond])
    by_skew = np.stack([(z * z - 1.0) / 6.0, beyond * z / 6.0])
    by_kurtosis = np.stack([(z * z * z - 3.0 * z) / 24.0, beyond * (z * z - 1.0) / 24.0])
    by_square = np.stack([(2.0 * z * z * z - 5.0 * z) / 36.0, beyond * (2.0 * z * z - 1.0) / 36.0])
    skew_slope = (by_skew - 2.0 * skew * by_square) * pieces[..., 4] * sigma[:, None, None]
    kurtosis_slope = by_kurtosis * pieces[..., 4] * sigma[:, None, None]
    # dS = 3 (d^2 - m2) / m2^(3/2) - 3 S d / m2 and dK = 4 (d^3 - m3) / m2^2 - 4 m4 d / m2^3, over the total mass.
    pieces[..., 4] -= skew_slope * 3.0 / root + kurtosis_slope * 4.0 * m3 / (m2 * m2)
    pieces[..., 5] -= skew_slope * 3.0 * skew / m2 + kurtosis_slope * 4.0 * m4 / (m2 * m2 * m2)
    pieces[..., 6] += skew_slope * 3.0 / (m2 * root)
    pieces[..., 7] += kurtosis_slope * 4.0 / (m2 * m2)
    factors: Array = one + skew * by_skew + kurtosis * by_kurtosis - skew * skew * by_square
    return factors


def _analytic(params: ValueAtRisk, weights: Array, mean: Array, covariance: Array, first: int) -> dict[str, Array]:
    """The measures of a normal or t distribution with a given covariance, of portfolios from `first` on.

    A variance within what rounding can leave of its terms is 0.
    """
    with_each = _product(weights, covariance)
    variance = _sums(weights, with_each[:, None])[:, 0]
    size = np.abs(weights)
    rounding = len(covariance) * 2.0**-50 * _sums(size, _product(size, np.abs(covariance))[:, None])[:, 0]
    variance = np.where((np.abs(variance) <= rounding) & (rounding < _INFINITY), 0.0, variance)
    if (variance < 0.0).any():
        at = int(np.argmax(variance < 0.0))
        raise refuse("/inputs/covariance", f"it gives portfolio {first + at} the variance {variance[at]:.6g}, below 0")
    sigma, loss = np.sqrt(variance), -_product(weights, mean[:, None])
    var_factor, cvar_factor, _ = _factors(params)
    shape = len(weights), len(params.levels)
    found = {"var": loss + sigma[:, None] * var_factor, "cvar": loss + sigma[:, None] * cvar_factor}
    found |= dict.fromkeys(("var_error", "cvar_error"), np.full(shape, np.nan))
    if not params.components:
        return found | dict.fromkeys(CONTRIBUTIONS, np.empty((*shape, 0)))
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(sigma > 0.0, with_each.T / sigma, np.nan).T[:, None, :]
    marginal = (slope * factor[:, None] - mean for factor in (var_factor, cvar_factor))
    return found | _contributions(weights, *marginal)


# ---------------------------------------------------------------- contributions


def _marginal(job: Job, losses: Losses, pieces: Array) -> tuple[Array, Array]:
    """The derivatives of VaR and CVaR by each weight: sums of the assets' losses by the scenarios' part in them."""
    portfolios, _, levels, _ = pieces.shape
    rows = losses.combined(pieces.reshape(portfolios, 2 * levels, PIECES))
    if job.factor is not None and job.mean is not None:
        flat = rows.reshape(-1, rows.shape[-1])
        rows = (_product(flat, job.factor.T) + job.mean).reshape(rows.shape)
    both = -rows.reshape(portfolios, 2, levels, -1) + 0.0
    return both[:, 0], both[:, 1]


def _contributions(weights: Array, marginal_var: Array, marginal_cvar: Array) -> dict[str, Array]:
    held = weights[:, None, :]
    values = marginal_var, held * marginal_var, marginal_cvar, held * marginal_cvar
    return dict(zip(CONTRIBUTIONS, values, strict=True))


def _sums(weights: Array, terms: Array) -> Array:
    """The sums of weights (portfolios, assets) times terms (portfolios, m, assets), (portfolios, m)."""
    sums = np.empty(terms.shape[:2])
    weights, terms = (np.require(array, np.float64, ["C", "W"]) for array in (weights, terms))  # compiled once
    share(len(terms), lambda first, end: add_terms(weights, terms, first, end, sums), TOGETHER // terms[0].size + 1)
    return sums
