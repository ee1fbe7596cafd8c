"""Inner loops of the CPU are compiled for the types of their arguments."""

from typing import Any

from numba import njit

from warpdesk_server.kernels.cpu.compiled import inner


@inner
def _times(x: Any, count: Any) -> Any:
    return x * count


@njit
def _both(x: Any, count: Any) -> Any:
    return _times(x, 3) + _times(x, 4) + _times(x, count)


def test_an_inner_loop_is_compiled_once_for_all_constants_that_are_passed_to_it() -> None:
    assert _both(2.0, 5) == 24.0
    assert len(_times.overloads) == 1
