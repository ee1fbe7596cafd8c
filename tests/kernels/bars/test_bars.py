"""Bars agree with pandas, published tables and plain Python, look nowhere ahead, and refuse what they cannot do."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.bars import reference
from tests.kernels.bars.cases import CASES, SECOND, START, Arrays, sessions, smaller, ticks
from tests.kernels.parity import Case
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.bars import spec
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.problems import InvalidRequest

PRICES = ("open", "high", "low", "close")
BARS = OPERATIONS["bars"]


def bars(inputs: Arrays, **params: Any) -> dict[str, Any]:
    return Case("bars", params, lambda: inputs).run()


def series(prices: list[float], sizes: list[float] | None = None, times: list[int] | None = None) -> Arrays:
    """Ticks a second apart."""
    return {
        "price": np.array(prices, float),
        "size": np.array(sizes or [1.0] * len(prices), float),
        "time": START + SECOND * np.array(times if times is not None else range(len(prices))),
    }


def minutes(*clock: str) -> "np.ndarray[Any, Any]":
    return np.array(clock, "datetime64[ns]").astype(np.int64)


# pandas' documentation of DataFrame.resample: nine minutes by three, and the nine multiples of 3 that are seven minutes
# apart from 2000-10-01 23:30, by 17 minutes from origins of "epoch" and 2000-01-01.
@pytest.mark.parametrize(
    ("every", "first", "size", "step", "origin", "starts", "sums"),
    [
        (3, "2000-01-01T00:00", range(9), 1, "1970-01-01", ["2000-01-01T00:00", "2000-01-01T00:03",
         "2000-01-01T00:06"], [3, 12, 21]),
        (17, "2000-10-01T23:30", range(0, 27, 3), 7, "1970-01-01", ["2000-10-01T23:18", "2000-10-01T23:35",
         "2000-10-01T23:52", "2000-10-02T00:09", "2000-10-02T00:26"], [0, 18, 27, 39, 24]),
        (17, "2000-10-01T23:30", range(0, 27, 3), 7, "2000-01-01", ["2000-10-01T23:24", "2000-10-01T23:41",
         "2000-10-01T23:58", "2000-10-02T00:15"], [3, 15, 45, 45]),
    ],
)  # fmt: skip
def test_the_tables_of_pandas_documentation(
    every: int, first: str, size: range, step: int, origin: str, starts: list[str], sums: list[int]
) -> None:
    time = minutes(first)[0] + np.arange(len(size)) * step * 60 * SECOND
    given = {"price": np.ones(len(size)), "size": np.array(size, float), "time": time}
    answer = bars(given, by="time", every=60 * every, origin=int(minutes(origin)[0]))
    assert answer["time"].tolist() == minutes(*starts).tolist()
    assert answer["volume"].tolist() == sums


@pytest.mark.parametrize("every", ["7s", "1min", "17min", "1h"])
@pytest.mark.parametrize("origin", [0, 11 * SECOND, START + 3])
@pytest.mark.parametrize("filled", [False, True])
def test_bars_of_time_are_those_of_pandas(every: str, origin: int, filled: bool) -> None:
    inputs = ticks(3000)
    table = pd.DataFrame({"price": inputs["price"], "size": inputs["size"]}, pd.to_datetime(inputs["time"]))
    grouped = table.resample(every, origin=pd.Timestamp(origin), label="left", closed="left")
    expected = grouped["price"].ohlc()
    expected["volume"], expected["count"] = grouped["size"].sum(), grouped["size"].count()
    if not filled:
        expected = expected[expected["count"] > 0]
    seconds = pd.Timedelta(every).total_seconds()
    answer = bars(inputs, by="time", every=seconds, origin=origin, gaps="nan" if filled else "omit")
    assert answer["time"].tolist() == expected.index.astype("datetime64[ns]").astype(np.int64).tolist()
    for name in (*PRICES, "volume", "count"):  # sizes are whole numbers, so their sums are exact
        np.testing.assert_array_equal(answer[name], expected[name].to_numpy(), name)


@pytest.mark.parametrize(("by", "every"), [("count", 1), ("count", 64), ("volume", 200), ("dollar", 9_000)])
def test_bars_of_amounts_are_groups_of_pandas(by: str, every: float) -> None:
    inputs = ticks(3000)
    table = pd.DataFrame(inputs)
    amount = {"count": np.ones(3000), "volume": inputs["size"], "dollar": inputs["size"] * inputs["price"]}[by]
    label, labels, total = 0, [], 0.0
    for each in amount.tolist():
        labels.append(label)
        total += each
        if total >= every:
            label, total = label + 1, 0.0
    grouped = table.groupby(np.array(labels))
    answer = bars(inputs, by=by, every=float(every))
    for name, column in (("time", grouped["time"].first()), ("close_time", grouped["time"].last()),
                         ("open", grouped["price"].first()), ("high", grouped["price"].max()),
                         ("low", grouped["price"].min()), ("close", grouped["price"].last()),
                         ("volume", grouped["size"].sum()), ("count", grouped["size"].count())):  # fmt: skip
        np.testing.assert_array_equal(answer[name], column.to_numpy(), name)
    assert answer["complete"].tolist() == [1] * (len(grouped) - 1) + [int(total == 0)]


def assert_is_reference(case: Case) -> None:
    answer, inputs, dtype = case.run(), case.inputs(), next(iter(case.inputs().values())).dtype
    rows = 1 if inputs.get("close", inputs["time"]).ndim == 1 else len(inputs["close"])
    shared = {name: array for name, array in inputs.items() if array.dtype == np.int64}
    tolerance = 1e-12 if dtype == np.float64 else 2e-7
    for row in range(rows):
        own = {name: array if rows == 1 else array[row] for name, array in inputs.items() if name not in shared}
        found = reference.bars_of({**own, **shared}, **case.params)
        if rows > 1:  # an asset without an entry in a bar has none there; the bar exists where another has one
            found = at_times(found, answer["time"])
        if case.params.get("gaps") == "last":
            found = carried(found)
        expected = [bar.numbers for bar in found]
        for name in (*PRICES, "volume", "vwap", "count"):
            got = answer[name] if rows == 1 else answer[name][row]
            wanted = np.array([numbers[name] for numbers in expected], got.dtype)
            rtol = 0 if name in (*PRICES, "count") else tolerance
            np.testing.assert_allclose(got, wanted, rtol=rtol, atol=0, equal_nan=True, err_msg=name)
        if rows == 1:
            assert answer["time"].tolist() == [bar.time for bar in found]
            assert answer["close_time"].tolist() == [bar.close_time for bar in found]
            assert answer["complete"].tolist() == [bar.complete for bar in found]


def at_times(found: list[reference.Bar], times: "np.ndarray[Any, Any]") -> list[reference.Bar]:
    by_time = {bar.time: bar for bar in found}
    assert by_time.keys() <= set(times.tolist())
    return [by_time.get(time, reference.Bar(time, time)) for time in times.tolist()]


class Carried(reference.Bar):
    last = math.nan

    @property
    def numbers(self) -> dict[str, float]:
        return {**dict.fromkeys(PRICES, self.last), "vwap": math.nan, "volume": 0.0, "count": 0}


def carried(found: list[reference.Bar]) -> list[reference.Bar]:
    last, filled = math.nan, []
    for bar in found:
        shown = bar
        if bar.entries:
            last = bar.numbers["close"]
        else:
            shown = Carried(bar.time, bar.close_time, bar.complete)
            shown.last = last
        filled.append(shown)
    return filled


@pytest.mark.parametrize("case", [case for case in CASES if case.name != "bars-one-bar"], ids=str)
def test_every_case_is_what_plain_python_says(case: Case) -> None:
    assert_is_reference(case)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 90),
    by=st.sampled_from(["time", "count", "volume", "dollar"]),
    every=st.sampled_from([1.0, 3.0, 25.0, 60.0, 1000.0, 5000.0]),
    in_sessions=st.booleans(),
    gaps=st.sampled_from(["omit", "nan", "last"]),
    incomplete=st.sampled_from(["keep", "drop"]),
)
def test_any_ticks_are_what_plain_python_says(
    seed: int, count: int, by: str, every: float, in_sessions: bool, gaps: str, incomplete: str
) -> None:
    inputs = ticks(count, nan=0.1, seed=seed)
    if in_sessions:
        inputs = sessions(inputs, 70, 130)
    gaps = gaps if by == "time" else "omit"
    params = {"by": by, "every": every, "gaps": gaps, "incomplete": incomplete, "nan_policy": "skip"}
    assert_is_reference(Case("bars", params, lambda: inputs))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    cut=st.integers(1, 119),
    by=st.sampled_from(["time", "count", "volume", "dollar"]),
    in_sessions=st.booleans(),
    gaps=st.sampled_from(["omit", "nan", "last"]),
)
def test_bars_of_the_first_ticks_are_the_first_bars_but_for_the_last(
    seed: int, cut: int, by: str, in_sessions: bool, gaps: str
) -> None:
    inputs = sessions(ticks(120, seed=seed), 200, 300) if in_sessions else ticks(120, seed=seed)
    begin = {name: array if name.startswith("session") else array[:cut] for name, array in inputs.items()}
    params = {"by": by, "every": 100.0, "gaps": gaps if by == "time" else "omit"}
    whole, part = bars(inputs, **params), bars(begin, **params)
    same = part["time"].size if part["time"].size and part["complete"][-1] else max(part["time"].size - 1, 0)
    for name, array in part.items():
        if name != "left_out":
            np.testing.assert_array_equal(array[:same], whole[name][:same], name)
    assert same == 0 or part["complete"][:-1].all() or in_sessions, "a short bar in the middle ends with its session"


def test_the_tick_that_reaches_the_threshold_closes_one_bar_and_nothing_is_carried() -> None:
    answer = bars(series([10, 11, 12, 13, 14, 15], [4, 7, 35, 3, 3, 3]), by="volume", every=10.0)
    assert answer["volume"].tolist() == [11, 35, 9]
    assert answer["count"].tolist() == [2, 1, 3]
    assert answer["complete"].tolist() == [1, 1, 0]
    dropped = bars(series([10, 11, 12, 13, 14, 15], [4, 7, 35, 3, 3, 3]), by="volume", every=10.0, incomplete="drop")
    assert dropped["volume"].tolist() == [11, 35]


def test_no_bar_spans_two_sessions_and_ticks_outside_are_left_out() -> None:
    inputs = series([1, 2, 3, 4, 5, 6, 7], times=[0, 10, 20, 29, 30, 40, 55])
    inputs |= {"session_open": START + SECOND * np.array([5, 35]), "session_close": START + SECOND * np.array([30, 50])}
    by_count = bars(inputs, by="count", every=2.0)
    assert (by_count["open"].tolist(), by_count["close"].tolist()) == ([2, 4, 6], [3, 4, 6])
    assert by_count["complete"].tolist() == [1, 0, 0]
    assert by_count["left_out"] == 3
    by_time = bars(inputs, by="time", every=20.0)
    assert ((by_time["time"] - START) // SECOND).tolist() == [5, 25, 35]
    assert ((by_time["close_time"] - START) // SECOND).tolist() == [25, 30, 50]
    assert by_time["volume"].tolist() == [2, 1, 1]
    assert by_time["complete"].tolist() == [1, 1, 1]


def test_equal_prices_have_themselves_as_average_price_and_no_average_leaves_its_bar() -> None:
    flat = bars(series([0.1] * 1000, [0.3] * 1000), by="count", every=7.0)
    assert set(flat["vwap"].tolist()) == {0.1}
    answer = bars(ticks(3000), by="count", every=3.0)
    some = ~np.isnan(answer["vwap"])
    assert some.sum() > 900
    assert (answer["low"] <= answer["vwap"])[some].all()
    assert (answer["vwap"] <= answer["high"])[some].all()


def test_bars_of_bars_are_bars_of_ticks() -> None:
    inputs = ticks(4000)
    minute = bars(inputs, by="time", every=60.0)
    again = {name: minute[name] for name in (*PRICES, "volume", "vwap", "time")}
    twice, once = bars(again, by="time", every=900.0), bars(inputs, by="time", every=900.0)
    for name in ("time", "close_time", *PRICES, "volume"):
        np.testing.assert_array_equal(twice[name], once[name], name)
    np.testing.assert_allclose(twice["vwap"], once["vwap"], rtol=1e-13)


def test_bars_go_straight_into_an_indicator() -> None:
    answer = bars(smaller((3, 400)), by="time", every=1800.0, gaps="last")
    high, low, close = (answer[name] for name in ("high", "low", "close"))
    given = {"high": high, "low": low, "close": close}
    range_of = Case("atr", {"period": 5}, lambda: given).run()
    assert next(iter(range_of.values())).shape == close.shape


def refusal(inputs: Arrays, **params: Any) -> tuple[str, str]:
    """At submit if that shows it, else by the job."""
    infos = {
        name: ArrayInfo(array.dtype.name, array.shape, array.dtype.kind == "f" and bool(np.isnan(array).any()))
        for name, array in inputs.items()
    }
    with pytest.raises(InvalidRequest) as caught:
        BARS.implementation("cpu")(BARS.validate(params, infos), **inputs)
    (problem,) = caught.value.problems
    return problem.pointer, problem.detail


def _without(inputs: Arrays, name: str) -> Arrays:
    return {other: array for other, array in inputs.items() if other != name}


_FIVE = series([1, 2, 3, 4, 5])
_TWO = {"session_open": START + np.array([0, 10]), "session_close": START + np.array([10, 20])}
_MINUTE = {"by": "time", "every": 60.0}


@pytest.mark.parametrize(
    ("inputs", "params", "pointer", "sentence"),
    [
        ({"time": _FIVE["time"]}, _MINUTE, "/inputs/price", "bars need the input 'price': ticks are price and size, "
         "smaller bars open, high, low, close, volume"),
        (_without(smaller((5,)), "low"), _MINUTE, "/inputs/low", "bars need the input 'low'"),
        (_FIVE | {"close": _FIVE["price"]}, _MINUTE, "/inputs/close", "price is of ticks and close of bars"),
        (_without(_FIVE, "time"), _MINUTE, "/inputs/time", "bars needs the input 'time'"),
        (_FIVE | {"size": np.ones(4)}, _MINUTE, "/inputs/size", "size is float64 of shape [4], and price is float64"),
        (_FIVE | {"size": np.ones(5, np.float32)}, _MINUTE, "/inputs/size", "size is float32 of shape [5], and price"),
        (_FIVE | {"time": _FIVE["time"][:4]}, _MINUTE, "/inputs/time", "4 times for 5 entries"),
        (_FIVE | {"session_open": START + np.arange(2)}, _MINUTE, "/inputs/session_close", "sessions need session_"),
        (_FIVE | _TWO | {"session_open": START + np.arange(3)}, _MINUTE, "/inputs/session_close", "3 sessions open"),
        (_FIVE | _TWO, _MINUTE | {"origin": 5}, "/params/origin", "leave out origin, got 5"),
        (_FIVE | _TWO | {"session_close": START + np.array([10, 9])}, _MINUTE, "/inputs/session_close",
         f"session 1 opens at {START + 10} and closes at {START + 9}"),
        (_FIVE | _TWO | {"session_close": START + np.array([11, 20])}, _MINUTE, "/inputs/session_open",
         f"session 1 opens at {START + 10}, before session 0 closes at {START + 11}"),
        (series([1, 2, 3], times=[4, 5, 3]), _MINUTE, "/inputs/time",
         f"time decreases at entry 2: from {START + 5 * SECOND} to {START + 3 * SECOND}"),
        (series([1, 2, 3], times=[4, 5, 3]), {"by": "count", "every": 2.0}, "/inputs/time", "decreases at entry 2"),
        (_FIVE | {"time": np.full(5, 2**62)}, _MINUTE, "/inputs/time", "the years 1823 to 2116"),
        (series([1, 2, 3], [1, -2, 1]), _MINUTE, "/inputs/size", "size should be at least 0, got -2.0 at entry 1"),
        (series([1, -3, 3]), {"by": "dollar", "every": 2.0}, "/inputs/price", "price should be at least 0, got -3.0"),
        (series([1, math.nan, 3]), _MINUTE, "/inputs/price", 'price holds a NaN and nan_policy is "error"'),
        (smaller((9,), vwap=True) | {"vwap": np.full(9, np.nan)}, _MINUTE, "/params/nan_policy", "a NaN at entry "),
        (_FIVE, {"by": "time", "every": 1.5e-9}, "/params/every", "a whole number of nanoseconds, got 1.5e-09 seconds"),
        (_FIVE, {"by": "time", "every": 1e10}, "/params/every", "at most 4611686018 seconds, got 10000000000.0"),
        (_FIVE, {"by": "count", "every": 2.5}, "/params/every", "a whole number of entries, got 2.5"),
        (_FIVE, {"by": "count", "every": 0.0}, "/params/every", "every should be above 0, got 0.0"),
        (_FIVE, {"by": "volume", "every": 5e-324}, "/params/every", "every should be at least 1e-300, got 5e-324"),
        (_FIVE, {"by": "volume", "every": 2.0, "gaps": "nan"}, "/params/gaps", "bars by volume have no gaps"),
        (_FIVE, {"by": "volume", "every": 2.0, "origin": 7}, "/params/origin", "bars by volume have no origin, got 7"),
        (smaller((2, 5)), {"by": "volume", "every": 2.0}, "/params/by", "2 assets have their bars in common"),
        (_FIVE | dict.fromkeys(("price", "size"), np.ones((2, 5))), _MINUTE, "/inputs/price", "ticks are of one"),
        (series([1, 2], times=[0, 10**8]), {"by": "time", "every": 1e-3, "gaps": "last"}, "/params/gaps",
         "2023-11-14T22:13:20+00:00 to 2027-01-15T08:00:00+00:00 holds 100000000001 bars of 0.001 s, and with gaps "
         "filled at most 1000020 are made of 2 entries (1000000 and 10 for each): choose longer bars, or omit gaps"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_its_numbers(
    inputs: Arrays, params: dict[str, Any], pointer: str, sentence: str
) -> None:
    where, detail = refusal(inputs, **params)
    assert where == pointer
    assert sentence in detail


def test_as_many_bars_as_allowed_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "FILLED", 30)
    at_most = series([1, 2], times=[0, 49])
    assert bars(at_most, by="time", every=1.0, gaps="last")["close"].tolist() == [1.0] * 49 + [2.0]
    assert refusal(series([1, 2], times=[0, 50]), by="time", every=1.0, gaps="last")[0] == "/params/gaps"


def test_a_wrong_answer_is_found() -> None:
    case = next(case for case in CASES if case.name == "bars-time-1025-float64")
    wrong = {**case.inputs(), "size": case.inputs()["size"] + 1e-9}
    expected = reference.bars_of(wrong, **case.params)
    volumes = [bar.numbers["volume"] for bar in expected]
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(case.run()["volume"], volumes, rtol=1e-12)
