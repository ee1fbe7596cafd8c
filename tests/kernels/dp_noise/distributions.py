"""The exact distributions and the tests that tell a right sampler from a wrong one, with an independent slow reference.

False alarms: each test has a critical value of p = 1e-6, and a sample that fails is drawn afresh once; both must fail,
so a right sampler is accused once in 10**12 tests, while the mutants in test_sampler.py fail every time.
"""

from collections.abc import Callable
from math import exp

import numpy as np
import numpy.typing as npt
from scipy import stats

Draw = Callable[[int], npt.NDArray[np.int64]]

CRITICAL = 1e-6
Z = float(stats.norm.isf(CRITICAL / 2))


def laplace_pmf(t: float, reach: int) -> npt.NDArray[np.float64]:
    """P(-reach..reach) of the discrete Laplace: (1 - e^(-1/t)) / (1 + e^(-1/t)) * e^(-|n|/t)."""
    n = np.abs(np.arange(-reach, reach + 1))
    return (1 - exp(-1 / t)) / (1 + exp(-1 / t)) * np.exp(-n / t)


def gaussian_pmf(sigma: float, reach: int) -> npt.NDArray[np.float64]:
    """P(-reach..reach) of the discrete Gaussian: e^(-n^2 / 2 sigma^2), normalised (far tails below 1e-300)."""
    n = np.arange(-reach - int(40 * sigma) - 1, reach + int(40 * sigma) + 2, dtype=np.float64)
    weights = np.exp(-(n**2) / (2 * sigma**2))
    middle = len(n) // 2
    return np.asarray((weights / weights.sum())[middle - reach : middle + reach + 1])


def fits(draw: Draw, pmf: npt.NDArray[np.float64], count: int) -> bool:
    """Chi-square of drawn integers against P(-reach..reach), the rest as one bin; rare bins are merged."""
    return any(_chi_square(draw(count), pmf) for _ in range(2))


def moments_fit(draw: Draw, mean_abs: float, variance: float, fourth: float, count: int) -> bool:
    """Z tests of the mean, E|n| and E[n^2], given the exact E|n|, E[n^2] and E[n^4] of a symmetric distribution."""
    return any(_moments(draw(count), mean_abs, variance, fourth) for _ in range(2))


def _chi_square(sample: npt.NDArray[np.int64], pmf: npt.NDArray[np.float64]) -> bool:
    reach = len(pmf) // 2
    inside = sample[np.abs(sample) <= reach]
    observed = np.append(np.bincount(inside + reach, minlength=2 * reach + 1), len(sample) - len(inside))
    expected = np.append(pmf, max(0.0, 1 - pmf.sum())) * len(sample)
    rare = expected < 20
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 20:  # too rare for a bin of its own: joined to the rarest
        rarest = int(np.argmin(expected[:-1]))
        observed[rarest] += observed[-1]
        expected[rarest] += expected[-1]
        observed, expected = observed[:-1], expected[:-1]
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return statistic < float(stats.chi2.isf(CRITICAL, len(expected) - 1))


def _moments(sample: npt.NDArray[np.int64], mean_abs: float, variance: float, fourth: float) -> bool:
    n = len(sample)
    value = sample.astype(np.float64)
    mean = value.mean() / (variance / n) ** 0.5
    absolute = (np.abs(value).mean() - mean_abs) / ((variance - mean_abs**2) / n) ** 0.5
    square = ((value**2).mean() - variance) / ((fourth - variance**2) / n) ** 0.5
    return max(abs(mean), abs(absolute), abs(square)) < Z
