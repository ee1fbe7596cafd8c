"""Sums in trees of a fixed shape."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpdesk_server.kernels.device.reduce import BLOCK, pairwise_sum, sums_of_runs, tree_sum
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.source import Source

_SOURCE = Source(Path(__file__).with_name("reduce.cu"))

finite = st.floats(-1e6, 1e6)


def as_bytes(x: object) -> bytes:
    return np.asarray(x).tobytes()


@given(st.lists(finite, min_size=1, max_size=70), st.integers(0, 5))
@settings(deadline=None)
def test_aligned_cuts_change_no_byte(values: list[float], log2_chunk: int) -> None:
    """The sums of runs of 2^k, added by the same tree, are the sum of all."""
    partials = np.array(values)[:, None]
    chunk = 1 << log2_chunk
    runs = np.array([pairwise_sum(partials[first : first + chunk]) for first in range(0, len(values), chunk)])
    assert as_bytes(sums_of_runs(partials, chunk)) == as_bytes(runs)
    assert as_bytes(pairwise_sum(runs)) == as_bytes(pairwise_sum(partials))


@given(st.lists(finite, min_size=1, max_size=70), st.integers(1, 20))
@settings(deadline=None)
def test_trailing_zeros_change_no_byte(values: list[float], zeros: int) -> None:
    partials = np.array(values)[:, None]
    padded = np.concatenate([partials, np.zeros((zeros, 1))])
    assert as_bytes(pairwise_sum(padded)) == as_bytes(pairwise_sum(partials))


def test_minus_zero_alone_is_plus_zero_as_with_neighbours() -> None:
    assert as_bytes(pairwise_sum(np.array([[-0.0]]))) == as_bytes([0.0])


def test_sums_stay_apart() -> None:
    assert pairwise_sum(np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])).tolist() == [6.0, 60.0]


def test_a_block_is_added_in_halves() -> None:
    values = np.random.default_rng(5).normal(size=BLOCK) * 10.0 ** np.arange(-8, 8).repeat(16)
    expected = values.copy()
    while len(expected) > 1:
        half = len(expected) // 2
        expected = expected[:half] + expected[half:]
    assert as_bytes(tree_sum(values.copy())) == as_bytes(expected[0])
    assert tree_sum(values.copy()) == pytest.approx(values.sum(), rel=1e-12)


def test_a_device_adds_a_block_in_the_same_tree(device: Device) -> None:
    """Two additions that change places change the last bit of some of these sums."""
    kernel = device.kernel(_SOURCE, "sum_twice")
    for seed in range(100):
        values = np.random.default_rng(seed).normal(size=(2, BLOCK))
        sums = device.zeros(2, np.float64)
        kernel((1,), (BLOCK,), (device.to_device(values), sums))
        assert as_bytes(device.to_host(sums)) == as_bytes([tree_sum(row.copy()) for row in values])


@pytest.mark.parametrize("size", [1, 2, 32, 1024])
def test_any_power_of_two_is_added_in_halves_and_zeros_behind_it_change_no_byte(size: int) -> None:
    values = np.random.default_rng(size).normal(size=size)
    padded = np.concatenate([values, np.zeros(3 * size)])
    assert as_bytes(tree_sum(padded)) == as_bytes(tree_sum(values.copy()))
    assert tree_sum(values.copy()) == pytest.approx(values.sum(), rel=1e-11)
