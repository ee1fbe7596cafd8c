"""Sobol points beside SciPy's, their scramble, and the inverse normal beside mpmath; both twins bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray
from scipy import stats

from tests.cudasim.device import EmulatedDevice
from warpdesk_server.kernels.device.inverse_normal import inverse_normal
from warpdesk_server.kernels.device.sobol import BITS, DIMENSIONS, directions, owen_scramble, reversed_bits, sobol
from warpdesk_server.kernels.gpu.source import Source

_SOURCE = Source(Path(__file__).with_name("sobol.cu"))
SIGNIFICANCE = 1e-4


@njit
def _each(bits, directions, seed, plain, scrambled):  # type: ignore[no-untyped-def]
    for i in range(len(plain)):
        word = sobol(np.uint32(i), bits, directions)
        plain[i] = reversed_bits(word)
        scrambled[i] = owen_scramble(word, seed)


@njit
def _inverse(p, x):  # type: ignore[no-untyped-def]
    for i in range(len(p)):
        x[i] = inverse_normal(p[i])


def words(dimension: int, bits: int, seed: int = 0) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The first 2^bits points of a dimension, plain and scrambled."""
    plain, scrambled = np.empty((2, 1 << bits), np.uint32)
    _each(bits, directions()[dimension], np.uint32(seed), plain, scrambled)
    return plain, scrambled


def inverse(p: "NDArray[np.float64]") -> NDArray[np.float64]:
    x = np.empty_like(p)
    _inverse(p, x)
    return x


def test_the_first_points_of_each_dimension_are_those_of_scipy() -> None:
    """SciPy counts in Gray's code; its direction numbers are Joe and Kuo's file."""
    bits = 12
    expected = stats.qmc.Sobol(DIMENSIONS, scramble=False, bits=32).random_base2(bits)
    index = np.arange(1 << bits)
    for dimension in range(DIMENSIONS):
        plain, _ = words(dimension, bits)
        np.testing.assert_array_equal(plain[index ^ index >> 1] / 2.0**32, expected[:, dimension])


def test_the_last_of_the_direction_numbers_are_those_of_scipy() -> None:
    expected = stats.qmc.Sobol(DIMENSIONS, scramble=False, bits=32)._sv
    found = directions()
    for dimension in range(DIMENSIONS):
        assert [reversed_bits(word) for word in found[dimension]] == expected[dimension].tolist()


@pytest.mark.parametrize("seed", [0, 1, 0x8000_0000, 0xDEAD_BEEF])
def test_a_scramble_is_a_nested_permutation(seed: int) -> None:
    """Of words that share their first k bits, and differ in the next, the scrambled ones do too (Owen 1995)."""
    plain, scrambled = words(5, 10, seed)
    one = np.random.default_rng(3).integers(0, 1 << 10, (2, 4_000))
    before, after = (found[one[0]] ^ found[one[1]] for found in (plain, scrambled))
    assert [int(word).bit_length() for word in before] == [int(word).bit_length() for word in after]


def test_scrambled_points_have_one_in_each_elementary_interval() -> None:
    """Any two of the first dimensions are a (0, m, 2)-net, before and after: one point in each 2^-k x 2^(k - m)."""
    m = 10
    x, y = words(0, m, 77)[1], words(1, m, 12345)[1]
    for k in range(m + 1):
        cells = (x.astype(np.int64) >> (32 - k)) << (m - k) | (y.astype(np.int64) >> (32 - m + k))
        assert len(set(cells.tolist())) == 1 << m


def test_a_point_is_uniform_over_scrambles() -> None:
    """As an unbiased estimate needs: one point under many seeds, by Kolmogorov and Smirnov, and so are its low bits."""
    seeds = np.random.default_rng(1).integers(0, 1 << 32, 4_000, dtype=np.uint32)
    for index in (0, 1, 5, 777):
        word = sobol.py_func(index, BITS, directions()[7])
        found = np.array([owen_scramble(word, seed) for seed in seeds], np.uint32)
        assert stats.kstest(found / 2.0**32, "uniform").pvalue > SIGNIFICANCE
        assert stats.kstest((found << np.uint32(8)) / 2.0**32, "uniform").pvalue > SIGNIFICANCE


def test_the_inverse_normal_is_within_1e_15_of_itself() -> None:
    import mpmath

    random = np.random.default_rng(2)
    p = np.concatenate([(random.integers(0, 1 << 32, 400) + 0.5) / 2**32, np.exp(random.uniform(-25, -0.1, 300))])
    with mpmath.workdps(40):
        for one, got in zip(p, inverse(p), strict=True):
            exact = mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(float(one)) - 1)
            assert abs(mpmath.mpf(float(got)) - exact) <= 2e-15 * abs(exact) + 1e-17, one


def test_the_inverse_normal_has_the_published_values() -> None:
    """Wichura (1988): PPND16 at p = 0.25, 0.001 and 1e-20; the last is beyond e^-25, which is not served here."""
    assert inverse(np.array([0.25, 0.001])) == pytest.approx([-0.6744897501960817, -3.090232306167814], rel=1e-15)
    assert inverse(np.array([0.5]))[0] == 0.0
    ends = inverse(np.array([0.5, 2.0**32 - 0.5]) / 2**32)
    assert ends[0] == -ends[1] == pytest.approx(stats.norm.ppf(2.0**-33), rel=1e-14)


def test_both_twins_have_the_same_bits() -> None:
    device, count, bits, seed = EmulatedDevice(), 1_000, 10, 0xC0FFEE11
    table = directions()[40]
    found: list[Any] = [device.empty(count, np.uint32), device.empty(count, np.float64)]
    scalars = np.uint32(count), np.int32(bits), np.uint32(seed)
    device.kernel(_SOURCE, "evaluate")((2,), (256,), (*scalars, device.to_device(table), *found))
    _, scrambled = words(40, bits, seed)
    np.testing.assert_array_equal(device.to_host(found[0]), scrambled[:count])
    expected = inverse((scrambled[:count] + 0.5) / 2.0**32)
    np.testing.assert_array_equal(device.to_host(found[1]).view(np.int64), expected.view(np.int64))
