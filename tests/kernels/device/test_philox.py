"""Philox4x32-10 against Random123's known answers and against an implementation in Python's integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from tests.kernels.monte_carlo.reference import philox4x32 as in_python_integers
from tests.vectors.options import PHILOX4X32_10
from warpdesk_server.kernels.device.philox import philox4x32

word = st.integers(0, 2**32 - 1)


@njit
def _philox(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    return philox4x32(c0, c1, c2, c3, k0, k1)


def words(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(w) for w in _philox(*(np.uint64(w) for w in (*counter, *key))))


@pytest.mark.parametrize(("counter", "key", "expected"), PHILOX4X32_10)
def test_the_known_answers_of_random123(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert words(counter, key) == expected
    assert tuple(in_python_integers(list(counter), list(key))) == expected


@given(st.tuples(word, word, word, word), st.tuples(word, word))
@settings(deadline=None)  # the first call compiles
def test_every_counter_and_key_gives_the_words_of_the_paper(counter: tuple[int, ...], key: tuple[int, ...]) -> None:
    assert words(counter, key) == tuple(in_python_integers(list(counter), list(key)))


@given(st.tuples(word, word, word, word), st.tuples(word, word), st.integers(0, 127))
@settings(deadline=None)  # the first call compiles
def test_one_bit_of_the_counter_changes_half_of_the_words_bits(
    counter: tuple[int, ...], key: tuple[int, ...], bit: int
) -> None:
    flipped = list(counter)
    flipped[bit // 32] ^= 1 << (bit % 32)
    changed = sum(
        (one ^ two).bit_count() for one, two in zip(words(counter, key), words(tuple(flipped), key), strict=True)
    )
    assert 30 <= changed <= 98  # 64 expected; six standard deviations of sqrt(32) either way
