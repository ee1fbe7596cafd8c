"""The operation `expression`: graphs that callers write, refused or computed with the bytes of single requests."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cudasim.device import EmulatedDevice
from tests.kernels.indicators.cases import bars
from warpdesk import ta
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.indicators.declared import DECLARED
from warpdesk_server.kernels.indicators.expression import INPUTS, program_of
from warpdesk_server.kernels.problems import InvalidRequest

EXPRESSION = OPERATIONS["expression"]
CLOSE = {"close": ArrayInfo("float64", (300,))}
Arrays = dict[str, NDArray[Any]]


def compute(params: dict[str, Any], arrays: Arrays, device: EmulatedDevice | None = None) -> Arrays:
    infos = {name: ArrayInfo("float64", array.shape) for name, array in arrays.items()}
    parsed = EXPRESSION.validate(params, infos)
    where = {} if device is None else {"device": device}
    answer = EXPRESSION.implementation("gpu" if device else "cpu")(parsed, **arrays, **where)
    assert answer["names"] == sorted(params["outputs"])
    return ta.outputs(answer)


def single(name: str, arrays: Arrays, **params: Any) -> Arrays:
    operation = OPERATIONS[name]
    inputs = {each.name: arrays["close" if each.name == "prices" else each.name] for each in operation.inputs}
    return dict(operation.implementation("cpu")(operation.params(**params), **inputs))


def test_many_indicators_in_one_request_have_the_bytes_of_single_requests() -> None:
    arrays = {name: array for name, array in bars(3, 700, gaps=0.002).items() if name in ("high", "low", "close")}
    params = {
        "outputs": {
            "rsi": {"op": "rsi", "of": "close", "period": 14},
            "cutler": {"op": "rsi", "of": "close", "period": 14, "convention": "cutler", "flat": "nan"},
            "macd": {"op": "macd.macd"},
            "signal": {"op": "macd.signal"},
            "atr": {"op": "atr", "period": 10},
            "upper": {"op": "bollinger.upper", "of": "close", "width": 1.5},
            "middle": {"op": "bollinger.middle", "of": "close"},
            "lower": {"op": "bollinger.lower", "of": "close", "period": 9},
            "ema": {"op": "ema", "of": "close", "period": 30},
        }
    }
    expected = {
        "rsi": single("rsi", arrays, period=14)["rsi"],
        "cutler": single("rsi", arrays, period=14, convention="cutler", flat="nan")["rsi"],
        "macd": single("macd", arrays)["macd"],
        "signal": single("macd", arrays)["signal"],
        "atr": single("atr", arrays, period=10)["atr"],
        "upper": single("bollinger", arrays, width=1.5)["upper"],
        "middle": single("bollinger", arrays)["middle"],
        "lower": single("bollinger", arrays, period=9)["lower"],
        "ema": single("ema", arrays, period=30)["ema"],
    }
    for answer in (compute(params, arrays), compute(params, arrays, EmulatedDevice())):
        for name, series in expected.items():
            assert np.array_equal(answer[name], series, equal_nan=True), name


def test_the_two_series_of_an_indicator_may_be_given_by_their_places() -> None:
    arrays = {name: bars(2, 200)[name] for name in ("close", "benchmark")}
    beta = {"op": "rolling_pair", "period": 20, "statistic": "beta"}
    written = {"a": {**beta, "a": "close", "b": "benchmark"}, "b": {**beta, "close": "close"}}
    answer = compute({"outputs": written}, arrays)
    expected = single("rolling_pair", arrays, period=20, statistic="beta")["rolling_pair"]
    assert np.array_equal(answer["a"], expected, equal_nan=True)
    assert np.array_equal(answer["b"], expected, equal_nan=True)


@pytest.mark.parametrize("operation", DECLARED, ids=lambda operation: operation.name)
def test_every_indicator_is_an_operation_of_expressions(operation: Any) -> None:
    arrays = {each.shown: bars(2, 200)[each.shown] for each in operation.inputs}
    alone = len(operation.outputs) == 1
    written = {
        output.name: {"op": operation.name if alone else f"{operation.name}.{output.name}", **operation.example.params}
        for output in operation.outputs
    }
    own, answer = single(operation.name, arrays, **operation.example.params), compute({"outputs": written}, arrays)
    for name, series in own.items():
        assert np.array_equal(answer[name], series, equal_nan=True), name


def test_an_indicator_takes_other_series_than_its_inputs() -> None:
    arrays = {"close": bars(1, 300)["close"][0], "a": bars(1, 300, seed=2)["close"][0]}
    written = {"op": "stochastic.k", "high": {"op": "max", "a": "close", "b": "a"}, "low": "a", "close": "close"}
    answer = compute({"outputs": {"k": written, "momentum": {"op": "momentum", "of": "a"}}}, arrays)
    inputs = {"high": np.maximum(arrays["close"], arrays["a"]), "low": arrays["a"], "close": arrays["close"]}
    assert np.array_equal(answer["k"], single("stochastic", inputs)["k"], equal_nan=True)
    assert np.array_equal(answer["momentum"], single("momentum", {"close": arrays["a"]})["momentum"], equal_nan=True)


def test_conditions_are_one_and_zero_and_choose() -> None:
    arrays = {"close": np.array([1.0, 3.0, 2.0, np.nan, 5.0, 4.0])}
    up = ta.close > ta.lag(ta.close)
    wanted = ta.expression(
        up=up,
        high=up & (ta.close >= 3.0),
        any=up | (ta.close <= 1.0),
        none=~up,
        chosen=ta.select(up, ta.close, -ta.close),
        held=ta.latch(value=ta.close, when=up),
        crossing=ta.crosses_above(ta.close, ta.lag(ta.close, 2)),
    )
    answer = compute(wanted, arrays)
    nan = np.nan
    expected = {
        "up": [0, 1, 0, 0, 0, 0],
        "high": [0, 1, 0, 0, 0, 0],
        "any": [1, 1, 0, 0, 0, 0],
        "none": [1, 0, 1, 1, 1, 1],
        "chosen": [-1, 3, -2, nan, -5, -4],
        "held": [nan, 3, 3, 3, 3, 3],
        "crossing": [0, 0, 0, 0, 0, 0],
    }
    for name, series in expected.items():
        assert np.array_equal(answer[name], np.array(series, float), equal_nan=True), name


def test_the_builder_writes_what_is_used_twice_once() -> None:
    line = ta.ema(ta.close, 12) - ta.ema(ta.close, 26)
    wanted = ta.expression(line=line, signal=ta.ema(line, 9), k=ta.stochastic.k(period=5), half=0.5 * abs(line) + 1)
    assert wanted["let"] == {
        "series_1": {
            "op": "sub",
            "a": {"op": "ema", "of": "close", "period": 12},
            "b": {"op": "ema", "of": "close", "period": 26},
        }
    }
    assert wanted["outputs"]["signal"] == {"op": "ema", "of": "series_1", "period": 9}
    assert wanted["outputs"]["k"] == {"op": "stochastic.k", "period": 5}
    with pytest.raises(TypeError, match="a series has no truth value"):
        bool(ta.close > 1)
    for wrong, problem in (
        (lambda: ta.ema(ta.close, 3, 4), "ema takes one number by position, the period, got 2"),
        (lambda: ta.macd.macd(12, 26, 9), "macd.macd takes one number by position, the period, got 3"),
        (lambda: ta.atr(ta.high, ta.low, ta.close, 14), "atr takes at most two series by position, got 3; name them"),
        (lambda: ta.ema(3, ta.close), "ema takes series first, and then a period"),
        (lambda: ta.ema(np.ones(3), 3), "an array is no operand; name it ta.a to ta.h"),
    ):
        with pytest.raises(TypeError, match=problem):
            wrong()
    assert ta.expression(x=ta.max(ta.close, 3.0))["outputs"]["x"] == {"op": "max", "a": "close", "b": 3.0}
    assert ta.expression(x=ta.close == 3.0)["outputs"]["x"] == {"op": "eq", "a": "close", "b": 3.0}
    assert ta.expression(x=3.0)["outputs"] == {"x": 3.0}
    assert ta.expression(x=ta.change(ta.close, 3), nan_policy="skip") == {
        "outputs": {"x": {"op": "change", "of": "close", "bars": 3}},
        "nan_policy": "skip",
    }
    assert ta.expression(x=ta.sma(ta.close, np.int64(20)))["outputs"]["x"]["period"] == 20
    with pytest.raises(TypeError, match=r"ta.macd.macd is an operation; call it: ta.macd.macd\(\)"):
        ta.expression(x=ta.macd.macd)
    with pytest.raises(TypeError, match="an array is no operand"):
        ta.close + np.ones(3)
    with pytest.raises(TypeError, match="an array is no operand"):
        np.ones(3) + ta.close
    with pytest.raises(TypeError, match="ema got of twice"):
        ta.ema(ta.close, 3, of=ta.high)


def _chain(length: int, op: str = "sum", period: int = 2) -> dict[str, Any]:
    return {f"x{at}": {"op": op, "of": f"x{at - 1}" if at else "close", "period": period} for at in range(length)}


@pytest.mark.parametrize(
    ("params", "pointer", "problem"),
    [
        ({"outputs": {"x": {"op": "nope"}}}, "/params/outputs/x/op", "there is no operation 'nope'"),
        ({"outputs": {"x": {"of": "close"}}}, "/params/outputs/x/op", "op should be the name of an operation"),
        (
            {"outputs": {"x": {"op": "macd"}}},
            "/params/outputs/x/op",
            "macd has several outputs; name one of macd.macd, macd.signal",
        ),
        ({"outputs": {"x": {"op": "sma", "of": "close"}}}, "/params/outputs/x/period", "'period' is required"),
        ({"outputs": {"x": {"op": "sum", "period": 3}}}, "/params/outputs/x/of", "the field 'of' is required"),
        (
            {"outputs": {"x": {"op": "neg", "of": "close", "by": 1}}},
            "/params/outputs/x/by",
            "neg has no field 'by'; it has of",
        ),
        ({"outputs": {"x": {"op": "rsii", "of": "close"}}}, "/params/outputs/x/op", "near are rsi"),
        (
            {"outputs": {"x": {"op": "atr", "a": "high", "b": "low"}}},
            "/params/outputs/x/a",
            "atr takes the series high, low, close: give each once, by its name",
        ),
        ({"outputs": {"x": {"op": "sma", "of": "close", "period": 2.5}}}, "/params/outputs/x/period", "an integer"),
        ({"outputs": {"x": {"op": "lag", "of": "close", "bars": -1}}}, "/params/outputs/x/bars", "at least 0, got -1"),
        ({"outputs": {"x": {"op": "neg", "of": {"op": "neg", "of": "y"}}}}, "/params/outputs/x/of/of", "series 'y'"),
        ({"outputs": {"x": True}}, "/params/outputs/x", "got true or false"),
        ({"outputs": {"x": {"op": "neg", "of": [1, 2]}}}, "/params/outputs/x/of", "a name, a number or an object"),
        ({"outputs": {}}, "/params/outputs", "at least 1 item"),
        ({"outputs": {"x": 3}}, "/params/outputs", "the expression reads no input"),
        ({"let": {"close": 1}, "outputs": {"x": "close"}}, "/params/let/close", "is the name of an input"),
        ({"let": {"y": "z", "z": "y"}, "outputs": {"x": "close"}}, "/params/let/z", "'y' needs itself"),
        ({"outputs": {"x": {"op": "macd.signal", "fast": 30}}}, "/params/outputs/x/fast", "fast should be below slow"),
        ({"outputs": {"x": {"op": "atr", "nan_policy": "skip"}}}, "/params/outputs/x/nan_policy", "by its own"),
        ({"outputs": {"x": {"op": "atr"}}}, "/inputs/high", "no such input"),
        (
            {"outputs": {"x": {"op": "sma", "of": "close", "period": 301}}},
            "/params/outputs/x",
            "x needs at least 301 bars, got 300",
        ),
        ({"let": _chain(65), "outputs": {"x": "close"}}, "/params/let", "at most 64 items"),
        (
            {"let": _chain(64), "outputs": {"x": {"op": "neg", "of": "x1"}}},
            "/params/outputs/x",
            "at most 64 operations",
        ),
        ({"let": _chain(60, "wma", 99_999), "outputs": {"x": "x59"}}, "/params/outputs", "more than 4096 steps"),
        ({"let": _chain(60, "sum", 69_000), "outputs": {"x": "x59"}}, "/params/outputs", "at most 16000000 are kept"),
        (
            {"let": _chain(62, "since_highest", 255), "outputs": {"x": "x61", "y": {"op": "sma", "period": 100_000}}},
            "/params/outputs",
            "since one looks back 200001 bars",
        ),
        ({"outputs": {"x": {"op": "add", "a": "close", "b": 10**400}}}, "/params/outputs/x/b", "what float64 can hold"),
        ({"outputs": {"x": {"op": "add", "a": "close", "b": 1e400}}}, "/params/outputs/x/b", "what float64 can hold"),
        ({"let": {"y": 2}, "outputs": {"x": "y"}}, "/params/outputs", "the expression reads no input"),
        ({"let": {"y": "close"}, "outputs": {"x": "close"}}, "/params/let/y", "nothing reads 'y'; use it in an output"),
        (
            {"let": {"y": {"op": "neg", "of": "z"}, "z": "close"}, "outputs": {"x": "z"}},
            "/params/let/y",
            "nothing reads 'y'",
        ),
        ({"outputs": {f"x{at}": "close" for at in range(17)}}, "/params/outputs", "at most 16 items"),
        ({"outputs": {"X": "close"}}, "/params/outputs/X", "match"),
        ({"outputs": {"first": "close"}}, "/params/outputs/first", "'first' is an output of every expression"),
    ],
)
def test_what_is_wrong_is_refused_where_it_stands(params: dict[str, Any], pointer: str, problem: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        EXPRESSION.validate(params, CLOSE)
    found = refused.value.problems
    assert any(each.pointer.startswith(pointer) and problem in each.detail for each in found), found


def test_a_condition_that_is_nan_counts_as_false() -> None:
    nothing = {"op": "div", "a": 0, "b": {"op": "sub", "a": "close", "b": "close"}}
    written = {
        "or": {"op": "or", "a": nothing, "b": 0},
        "and": {"op": "and", "a": nothing, "b": 1},
        "not": {"op": "not", "of": nothing},
        "chosen": {"op": "select", "if": nothing, "then": 1, "else": 2},
    }
    answer = compute({"outputs": written}, {"close": np.ones(3)})
    assert {name: series[0] for name, series in answer.items()} == {"or": 0, "and": 0, "not": 1, "chosen": 2}


def test_the_first_bar_is_that_from_which_all_that_is_read_has_a_number() -> None:
    late = {"op": "lag", "of": "high", "bars": 10}
    written = {
        "range": {"op": "true_range", "high": late, "low": "low", "close": "close", "convention": "tradingview"},
        "held": {"op": "latch", "value": "close", "when": {"op": "lt", "a": {"op": "sma", "period": 20}, "b": "close"}},
    }
    infos = {name: ArrayInfo("float64", (300,)) for name in ("high", "low", "close")}
    program = program_of(EXPRESSION.validate({"outputs": written}, infos), 8)
    assert program.first == {"range": 10, "held": 19}


def test_an_input_that_is_not_read_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the expression does not read high; it reads close"):
        EXPRESSION.validate({"outputs": {"x": "close"}}, {**CLOSE, "high": CLOSE["close"]})
    assert set(INPUTS) == {each.name for each in EXPRESSION.inputs}


def test_more_work_than_a_job_may_have_is_refused_with_the_numbers() -> None:
    infos = {"close": ArrayInfo("float64", (100, 500_000))}
    sentence = r"50,000,000 bars of 12,50\d steps each are 6.25e\+11 steps, and a job has at most 2e\+11"
    for name, params in (
        ("percent_rank", {"period": 100_000}),
        ("expression", {"outputs": {"x": {"op": "percent_rank", "period": 100_000}}}),
    ):
        with pytest.raises(InvalidRequest, match=sentence):
            OPERATIONS[name].validate(params, infos)


def test_the_longest_graphs_that_are_taken_are_computed() -> None:
    close = bars(1, 400)["close"][0]
    answer = compute({"let": _chain(63, "ema", 2), "outputs": {"x": {"op": "neg", "of": "x62"}}}, {"close": close})
    assert np.isnan(answer["x"][:63]).all()
    assert np.isfinite(answer["x"][63:]).all()


def test_no_change_of_later_bars_changes_an_earlier_one() -> None:
    arrays = {"close": bars(2, 600)["close"]}
    later = {"close": arrays["close"].copy()}
    later["close"][:, 300:] = 1e6
    params = EXPRESSION.example.params
    one, other = compute(params, arrays), compute(params, later)
    for name in one:
        assert one[name][:, :300].tobytes() == other[name][:, :300].tobytes(), name
