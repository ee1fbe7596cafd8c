"""Requests that cannot be answered are refused with the numbers that say why."""

from typing import Any

import numpy as np
import pytest

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.problems import InvalidRequest

ALL = ["sma", "ema", "rsi", "bollinger"]
PRICES = ArrayInfo("float64", (100,))


def refusal(name: str, params: dict[str, Any], prices: ArrayInfo = PRICES) -> str:
    with pytest.raises(InvalidRequest) as caught:
        OPERATIONS[name].validate(params, {"prices": prices})
    return str(caught.value)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("period", [0, -1, 100_001, 2.5, 14.0, "14", True, None])
def test_a_period_that_is_no_count_of_bars_is_refused(name: str, period: object) -> None:
    assert "/params/period" in refusal(name, {"period": period})


@pytest.mark.parametrize(
    ("flat", "sentence"),
    [
        (False, "should be the integer 0, got false"),
        (50.0, "should be the integer 50, got 50.0"),
        (True, "got true"),
        (49, "got 49"),
        ("0", 'got "0"'),
    ],
)
def test_an_rsi_of_still_prices_is_named_exactly(flat: object, sentence: str) -> None:
    assert sentence in refusal("rsi", {"period": 14, "flat": flat})


def test_an_rsi_needs_two_changes() -> None:
    assert "at least 2, got 1" in refusal("rsi", {"period": 1})


@pytest.mark.parametrize(
    ("name", "length", "sentence"),
    [
        ("rsi", 9, "period 14 needs at least 15 prices, got 9"),
        ("rsi", 14, "period 14 needs at least 15 prices, got 14"),
        ("sma", 13, "period 14 needs at least 14 prices, got 13"),
        ("ema", 13, "period 14 needs at least 14 prices, got 13"),
        ("bollinger", 13, "period 14 needs at least 14 prices, got 13"),
    ],
)
def test_a_period_longer_than_the_series_is_refused(name: str, length: int, sentence: str) -> None:
    for shape in ((length,), (500, length)):
        assert sentence in refusal(name, {"period": 14}, ArrayInfo("float64", shape))
    OPERATIONS[name].validate({"period": 14}, {"prices": ArrayInfo("float64", (length + 14,))})


@pytest.mark.parametrize("name", ALL)
def test_gaps_are_refused_at_submit_where_they_are_an_error(name: str) -> None:
    gaps = ArrayInfo("float64", (100,), has_nan=True)
    assert "nan_policy" in refusal(name, {"period": 14, "nan_policy": "error"}, gaps)
    OPERATIONS[name].validate({"period": 14}, {"prices": gaps})


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("prices", "sentence"),
    [
        (ArrayInfo("int64", (100,)), "dtype int64"),
        (ArrayInfo("float64", (2, 3, 100)), "rank 3"),
        (ArrayInfo("float64", ()), "rank 0"),
        (ArrayInfo("float64", (0,)), "empty"),
        (ArrayInfo("float64", (5, 0)), "empty"),
        (ArrayInfo("float64", (100,), has_inf=True), "infinity"),
    ],
)
def test_prices_of_the_wrong_kind_are_refused(name: str, prices: ArrayInfo, sentence: str) -> None:
    assert sentence in refusal(name, {"period": 14}, prices)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("sma", {"period": 14, "convention": "talib"}),
        ("sma", {}),
        ("ema", {"period": 14, "convention": "cutler"}),
        ("rsi", {"period": 14, "flat": 1}),
        ("rsi", {"period": 14, "convention": "wilder"}),
        ("rsi", {"period": 14, "nan_policy": "drop"}),
        ("bollinger", {"width": 0}),
        ("bollinger", {"width": -2.0}),
        ("bollinger", {"width": "2"}),
        ("bollinger", {"deviations": 2}),
    ],
)
def test_unknown_words_are_refused(name: str, params: dict[str, Any]) -> None:
    assert "/params" in refusal(name, params)


@pytest.mark.parametrize("name", ALL)
def test_the_example_runs_as_shown(name: str) -> None:
    operation = OPERATIONS[name]
    given = operation.example.inputs["prices"]
    prices = np.array(given["data"], given["dtype"])
    params = operation.validate(operation.example.params, {"prices": ArrayInfo("float64", prices.shape)})
    outputs = operation.implementation("cpu")(params, prices)
    assert list(outputs) == [output.name for output in operation.outputs]
    assert all(np.isfinite(output[-1]) for output in outputs.values())


@pytest.mark.parametrize("name", ALL)
def test_the_cost_covers_input_and_outputs(name: str) -> None:
    operation = OPERATIONS[name]
    prices = ArrayInfo("float64", (500, 2520))
    params = operation.validate({"period": 20}, {"prices": prices})
    assert operation.cost(params, {"prices": prices}).bytes >= (1 + len(operation.outputs)) * prices.nbytes
