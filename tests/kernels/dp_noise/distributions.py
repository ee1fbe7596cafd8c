"""The exact distributions and the tests that tell a right sampler from a wrong one, with an independent slow reference.

False alarms: each test has a critical value of p = 1e-6, and a sample that fails is drawn afresh once; both must fail,
so a right sampler is accused once in 10**12 tests. Power: of a million draws, those of a scale 1 % off move E|n| by 10
standard deviations (discrete Laplace) or 13 (discrete Gaussian), and both samples fail but for 4 times in 10**7;
`power` says the same of any shift, and test_sampler.py of every mutant.
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


def passes(draw: Draw, pmf: npt.NDArray[np.float64], count: int) -> bool:
    """Whether drawn integers have P(-reach..reach), which leaves nothing out: by every test below, or a second time."""
    return any(not failures(draw(count), pmf) for _ in range(2))


def failures(sample: npt.NDArray[np.int64], pmf: npt.NDArray[np.float64]) -> set[str]:
    """Return which tests a sample fails: chi-square of its "probabilities", z of "zero" and of the moments."""
    failed = {name for name, shift in shifts(sample, pmf).items() if abs(shift) >= Z}
    return failed if _chi_square(sample, pmf) else {*failed, "probabilities"}


def shifts(sample: npt.NDArray[np.int64], pmf: npt.NDArray[np.float64]) -> dict[str, float]:
    """How many standard deviations a sample's means lie from those of P."""
    n = np.arange(len(pmf), dtype=np.float64) - len(pmf) // 2
    value, deviations = sample.astype(np.float64), {}
    for name, function in _STATISTICS.items():
        mean = (pmf * function(n)).sum()
        spread = ((pmf * function(n) ** 2).sum() - mean**2) ** 0.5
        deviations[name] = float((function(value).mean() - mean) / spread * len(sample) ** 0.5)
    return deviations


def expected_shift(name: str, wrong: npt.NDArray[np.float64], pmf: npt.NDArray[np.float64], count: int) -> float:
    """How many standard deviations of P the mean of so many draws from `wrong` lies from that of P."""
    function, n = _STATISTICS[name], np.arange(len(pmf), dtype=np.float64) - len(pmf) // 2
    mean = (pmf * function(n)).sum()
    spread = ((pmf * function(n) ** 2).sum() - mean**2) ** 0.5
    return float(abs((wrong * function(n)).sum() - mean) / spread * count**0.5)


def power(shift: float) -> float:
    """The chance that both samples of a sampler that is off by so many standard deviations fail a z test."""
    return float(stats.norm.sf(Z - shift)) ** 2


_STATISTICS: dict[str, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]] = {
    "zero": lambda n: (n == 0).astype(np.float64),
    "mean": lambda n: n,
    "magnitude": np.abs,
    "variance": lambda n: n**2,
}


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
