"""How far every declared indicator is from its definition in 50 digits, with gaps, after a spike, far from zero."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpmath import mp
from numpy.typing import NDArray

from tests.kernels.indicators import definition
from tests.kernels.indicators.cases import bars
from tests.kernels.indicators.test_declared import EACH, compute, example_of, given
from warpdesk_server.kernels.indicators.declared import INDICATORS
from warpdesk_server.kernels.operation import Operation

Arrays = dict[str, NDArray[Any]]
# An RSI is within 1e-6 of 0 or 100 for long after such a spike, and its range is then in its last digits (README.md).
DELICATE = {("stochastic_rsi", "a spike"): 1e-5}
PRICES = ("open", "high", "low", "close", "benchmark")


@pytest.fixture(autouse=True)
def in_50_digits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, function in {"number": mp.mpf, "fsum": mp.fsum, "sqrt": mp.sqrt, "log": mp.log, "exp": mp.exp}.items():
        monkeypatch.setattr(definition, name, function)
    with mp.workdps(50):
        yield


def series(what: str) -> Arrays:
    arrays = {name: array[0] for name, array in bars(1, 230, seed=5).items()}
    if what == "gaps":
        for name in ("high", "close"):
            arrays[name][[3, 110, 111, 180]] = np.nan
    for name in PRICES:
        if what == "a spike":
            arrays[name][100] *= 1e6
        elif what == "far from zero":
            arrays[name] += 1e6
    return arrays


def exact(operation: Operation, arrays: Arrays) -> dict[str, list[Any]]:
    meant = definition.evaluate(INDICATORS[operation.name].graph(example_of(operation)), given(operation, arrays))
    return {name: list(numbers) for name, numbers in meant.items()}


def distance(one: Any, other: Any) -> float:
    """The largest difference of two series, which must have their NaN at the same bars."""
    assert [x != x for x in one] == [y != y for y in other]
    return max((float(abs(mp.mpf(x) - y)) for x, y in zip(one, other, strict=True) if x == x), default=0.0)


@pytest.mark.parametrize("what", ["gaps", "a spike", "far from zero"])
@EACH
def test_it_is_as_exact_as_its_inputs_last_digits_allow(operation: Operation, what: str) -> None:
    """1e-12 of the largest number; or, where the question is more delicate than that, a hundred times as much as the
    exact answer moves if each price moves by its last digit."""
    arrays = series(what)
    meant, own = exact(operation, arrays), compute(operation, arrays)
    up = np.random.default_rng(1).random((len(PRICES), 230)) < 0.5
    nudged = arrays | {
        name: np.nextafter(arrays[name], np.where(side, np.inf, -np.inf)) for name, side in zip(PRICES, up, strict=True)
    }
    moved = exact(operation, nudged)
    for name, expected in meant.items():
        largest = max((float(abs(x)) for x in expected if x == x), default=0.0)
        allowed = max(1e-12 * largest, 100 * distance(moved[name], expected), DELICATE.get((operation.name, what), 0))
        assert distance(own[name].tolist(), expected) <= allowed, name
