"""Memory of large arrays serves the next one, but never while anybody can still see it."""

import gc

import numpy as np
import pytest

from warpdesk_server.kernels.cpu import pages

LARGE = (5, 1 << 20)  # 40 MiB of float64


def address(array: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> int:
    return int(array.ctypes.data)


def spare() -> list[int]:
    """The mebibytes of the blocks that nobody uses."""
    return [block.nbytes >> 20 for block in pages._spare.values()]


@pytest.fixture(autouse=True)
def nothing_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_spare", {})


def test_memory_is_used_again_once_no_view_is_left() -> None:
    first = pages.empty(LARGE, "float64")
    assert first.shape == LARGE
    assert first.flags.c_contiguous
    assert first.flags.writeable
    first[...] = 1.0
    view, where = first[2][5:9].reshape(2, 2), address(first)
    del first
    gc.collect()
    second = pages.empty(LARGE, "float64")
    second[...] = 2.0
    assert address(second) != where
    assert (view == 1.0).all()
    del second, view
    gc.collect()
    (kept,) = pages._spare.values()  # of two that were given back
    third = pages.empty((9, 1 << 19), "float64")  # a smaller one fits into it
    assert address(third) == kept.ctypes.data
    assert spare() == []


def test_a_larger_array_gets_new_memory_and_the_old_is_not_kept_beside_it() -> None:
    pages.empty(LARGE, "float64")
    assert spare() == [40]
    larger = pages.empty((6, 1 << 20), "float64")
    assert spare() == []
    del larger
    assert spare() == [48]


def test_a_small_array_does_not_hold_a_large_block() -> None:
    pages.empty(LARGE, "float64")
    small = pages.empty((1 << 20,), "float64")
    assert spare() == [40]
    del small
    assert spare() == [40, 8]


def test_what_is_kept_has_a_limit_and_the_oldest_goes_first() -> None:
    for mebibytes in (10, 200, 50, 9):
        pages.empty((mebibytes << 17,), "float64")
    assert spare() == [50, 9]


@pytest.mark.parametrize("shape", [(8,), (1 << 19,), (0, 5), (33 << 20,)])
def test_what_is_small_or_very_large_is_not_kept_here(shape: tuple[int, ...]) -> None:
    array = pages.empty(shape, "float64")
    assert array.shape == shape
    assert array.base is None
