"""Real and complex numbers of eight tridiagonal systems side by side, so that one loop serves both.

A real number is a vector of lanes, a complex one a pair of them: the twin of the types in tridiagonal.cu. `size` is |x|
of a real number and |x|^2 of a complex one, which needs no root; `length` makes |x| of it.
"""

from collections.abc import Callable
from typing import Any

from numba.extending import overload

from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.cpu.lanes import LANES, Lanes, load, root, spread, store, where_below


@inner
def magnitude(x):  # type: ignore[no-untyped-def]
    """|x| of lanes, in a loop over tridiagonal systems."""
    none = spread(0.0)
    return where_below(x, none, none - x, x)


@inner
def larger(x, y):  # type: ignore[no-untyped-def]
    """The larger of x and y in each lane of tridiagonal systems; x where y is NaN."""
    return where_below(x, y, y, x)


def _of_one(real: Any, pair: Any) -> Callable[[Any], Any]:
    """A function of one number, for compiled loops alone: `real` of lanes, `pair` of a pair of them."""

    def function(x: Any) -> Any:
        raise NotImplementedError

    @overload(function)
    def _typed(x):  # type: ignore[no-untyped-def]
        return real if isinstance(x, Lanes) else pair

    return function


def _of_two(real: Any, pair: Any) -> Callable[[Any, Any], Any]:
    """A function of two arguments, for compiled loops alone; the first is a number and decides, as in `_of_one`."""

    def function(x: Any, y: Any) -> Any:
        raise NotImplementedError

    @overload(function)
    def _typed(x, y):  # type: ignore[no-untyped-def] # noqa: ARG001
        return real if isinstance(x, Lanes) else pair

    return function


def _of_kind(real: Any, pair: Any) -> Callable[[Any, Any], Any]:
    """A function of y for numbers of one kind, for compiled loops alone; `_like` is a number of that kind."""

    def function(_like: Any, y: Any) -> Any:
        raise NotImplementedError

    @overload(function)
    def _typed(_like, y):  # type: ignore[no-untyped-def] # noqa: ARG001
        return real if isinstance(_like, Lanes) else pair

    return function


def _of_row(real: Any, pair: Any) -> Callable[[Any, Any, Any], Any]:
    """A function of a number x, a pointer and a row, for compiled loops alone; x decides, as in `_of_one`."""

    def function(_x: Any, numbers: Any, row: Any) -> Any:
        raise NotImplementedError

    @overload(function)
    def _typed(_x, numbers, row):  # type: ignore[no-untyped-def] # noqa: ARG001
        return real if isinstance(_x, Lanes) else pair

    return function


@inner
def _inverse_of_pair(x):  # type: ignore[no-untyped-def]
    over = spread(1.0) / (x[0] * x[0] + x[1] * x[1])
    return x[0] * over, spread(0.0) - x[1] * over


@inner
def _put_pair(x, numbers, row):  # type: ignore[no-untyped-def]
    store(numbers, 2 * LANES * row, x[0])
    store(numbers, 2 * LANES * row + LANES, x[1])


minus = _of_two(lambda x, y: x - y, lambda x, y: (x[0] - y[0], x[1] - y[1]))
times = _of_two(lambda x, y: x * y, lambda x, y: (x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]))
scaled = _of_two(lambda x, y: x * y, lambda x, y: (x[0] * y, x[1] * y))  # y is real
inverse = _of_one(lambda x: spread(1.0) / x, lambda x: _inverse_of_pair(x))

size = _of_one(lambda x: magnitude(x), lambda x: x[0] * x[0] + x[1] * x[1])
length = _of_kind(lambda _like, y: y, lambda _like, y: root(y))
limit = _of_kind(lambda _like, y: spread(y), lambda _like, y: spread(y * y))  # the size of a number of that length
larger_part = _of_one(lambda x: magnitude(x), lambda x: larger(magnitude(x[0]), magnitude(x[1])))

of_real = _of_kind(lambda _like, y: y, lambda _like, y: (y, spread(0.0)))
real_part = _of_one(lambda x: x, lambda x: x[0])
imaginary = _of_one(lambda x: x - x, lambda x: x[1])
parts_sum = _of_one(lambda x: x, lambda x: x[0] + x[1])

get = _of_row(
    lambda _x, numbers, row: load(numbers, LANES * row),
    lambda _x, numbers, row: (load(numbers, 2 * LANES * row), load(numbers, 2 * LANES * row + LANES)),
)
put = _of_row(
    lambda _x, numbers, row: store(numbers, LANES * row, _x), lambda _x, numbers, row: _put_pair(_x, numbers, row)
)
