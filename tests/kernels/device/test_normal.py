"""The normals of the simulation by SciPy's tests: distribution, moments, tails, and independence of paths and steps."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from warpdesk_server.kernels.device.normal import box_muller
from warpdesk_server.kernels.device.reduce import BLOCK
from warpdesk_server.kernels.monte_carlo import cpu

PATHS, STEPS = 1 << 16, 32
SIGNIFICANCE = 1e-4  # of each test; the seeds are fixed, so a test that passes once passes always


@pytest.fixture(scope="module")
def normals() -> NDArray[np.float32]:
    """(paths, steps), as the CPU draws them."""
    drawn = np.empty((STEPS, PATHS), dtype=np.float32)
    words, four = np.empty((4, BLOCK), np.uint32), np.empty((4, BLOCK), np.float32)
    for first in range(0, PATHS, BLOCK):
        for block in range(STEPS // 4):
            cpu._draw(np.uint64(first), np.uint64(block), np.uint64(2024), np.uint64(1 << 31), 0, words, four)
            drawn[4 * block : 4 * block + 4, first : first + BLOCK] = four
    return np.ascontiguousarray(drawn.T)


def test_they_are_standard_normal(normals: NDArray[np.float32]) -> None:
    assert stats.kstest(normals.ravel()[: 1 << 20], "norm").pvalue > SIGNIFICANCE
    assert stats.kstest(normals.ravel()[1 << 20 :], "norm").pvalue > SIGNIFICANCE


@pytest.mark.parametrize("step", range(4))
def test_each_of_the_four_of_a_draw_is_standard_normal(normals: NDArray[np.float32], step: int) -> None:
    assert stats.kstest(normals[:, step::4].ravel(), "norm").pvalue > SIGNIFICANCE


def test_their_moments_are_those_of_a_normal(normals: NDArray[np.float32]) -> None:
    z = normals.ravel().astype(np.float64)
    n = len(z)
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs((z**power).mean() - expected) < 4 * np.sqrt(variance / n), power


@pytest.mark.parametrize("beyond", [2.0, 3.0, 4.0, 4.5])
def test_their_tails_have_the_right_weight(normals: NDArray[np.float32], beyond: float) -> None:
    for tail in (normals > beyond, normals < -beyond):
        expected = stats.norm.sf(beyond) * normals.size
        assert stats.poisson.cdf(tail.sum(), expected) > SIGNIFICANCE
        assert stats.poisson.sf(tail.sum() - 1, expected) > SIGNIFICANCE


def test_the_squares_of_a_pair_are_exponential_and_the_angle_is_uniform(normals: NDArray[np.float32]) -> None:
    z = normals.astype(np.float64)
    radius = z[:, 0::2] ** 2 + z[:, 1::2] ** 2
    angle = np.arctan2(z[:, 1::2], z[:, 0::2])
    assert stats.kstest(radius.ravel() / 2, "expon").pvalue > SIGNIFICANCE
    assert stats.kstest(angle.ravel() / (2 * np.pi) + 0.5, "uniform").pvalue > SIGNIFICANCE


@pytest.mark.parametrize("function", [np.asarray, np.abs, np.square])
def test_steps_are_independent_of_each_other(normals: NDArray[np.float32], function: "np.ufunc") -> None:
    """Correlations of all pairs of steps, over paths, are standard normal times 1 / sqrt(paths)."""
    correlations = np.corrcoef(function(normals.astype(np.float64)), rowvar=False)
    pairs = correlations[np.triu_indices(STEPS, 1)] * np.sqrt(PATHS)
    assert np.abs(pairs).max() < 5
    assert stats.kstest(pairs, "norm").pvalue > SIGNIFICANCE


@pytest.mark.parametrize("lag", [1, 2, 3, 255, 256, 257, 1024])
def test_paths_are_independent_of_each_other(normals: NDArray[np.float32], lag: int) -> None:
    z = normals.astype(np.float64)
    products = z[lag:] * z[:-lag]
    assert abs(products.mean()) * np.sqrt(products.size) < 4
    products = (z[lag:] ** 2 - 1) * (z[:-lag] ** 2 - 1)
    assert abs(products.mean()) / 2 * np.sqrt(products.size) < 4


def test_sums_over_steps_are_normal(normals: NDArray[np.float32]) -> None:
    assert stats.kstest(normals.sum(axis=1, dtype=np.float64) / np.sqrt(STEPS), "norm").pvalue > SIGNIFICANCE


def test_the_largest_normal_is_6_76() -> None:
    """Word 0 is u = 2^-33, so |z| <= sqrt(66 ln 2); beyond lies a probability of 1.4e-11."""
    z, _ = box_muller(np.uint32(0), np.uint32(0))
    assert z == pytest.approx(np.sqrt(66 * np.log(2)), rel=1e-6)
    assert 1.3e-11 < 2 * stats.norm.sf(float(z)) < 1.4e-11
