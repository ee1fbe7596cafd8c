"""Frames of pandas and Polars as the client reads and makes them: every kind that comes back whole, a sentence for each
that does not, and then the same through a service."""

import asyncio
import datetime as dt
import json
import pickle
import subprocess
import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from pandas.testing import assert_frame_equal, assert_series_equal
from polars.testing import assert_frame_equal as assert_polars_equal
from polars.testing import assert_series_equal as assert_polars_series_equal

from examples.prices import stocks
from tests.conftest import Service
from warpdesk import AsyncClient, Client, RequestRefused, frames, kept_labels, ta
from warpdesk.arrays import AnyArray, as_array
from warpdesk.frames import JobLabels
from warpdesk_server.app.jobs.operations import describe
from warpdesk_server.app.settings import Settings
from warpdesk_server.kernels.catalogue import OPERATIONS

pytestmark = pytest.mark.timeout(500)

SERIES = (["time"], ["asset", "time"])
FLOATS = ("float64", "float32")


def given(inputs: Mapping[str, Any], axes: Mapping[str, Any], ranks: Any = (1, 2)) -> tuple[dict[str, AnyArray], Any]:
    """The arrays that are sent for some inputs, and the labels of the job."""
    arrays, labels = {}, {}
    for name, value in inputs.items():
        if (library := frames.library_of(value)) is not None:
            array, labels[name] = frames.read_frame(name, value, library, FLOATS, ranks, axes[name])
            arrays[name] = as_array(name, array, FLOATS)
        else:
            arrays[name] = value
    return arrays, frames.labels_of(labels, axes, {name: array.ndim for name, array in arrays.items()})


def there_and_back(value: Any) -> Any:
    """A frame as an operation gives it back whose output is its input, in the same process and in another one."""
    arrays, joint = given({"close": value}, {"close": SERIES})
    here = joint.labelled("rsi", arrays["close"], SERIES)
    text = kept_labels.written(joint, {"close": labels(value)}, 1 << 16)
    there = kept_labels.read(json.loads(json.dumps(text)), {"close": SERIES})
    assert there is not None, "it was not written"
    same(there.labelled("rsi", arrays["close"], SERIES), here)
    return here


def labels(value: Any) -> Any:
    return frames.read_frame("close", value, frames.library_of(value), FLOATS, (1, 2), SERIES)[1]  # type: ignore[arg-type]


def same(one: Any, other: Any) -> None:
    equals = {
        pd.DataFrame: assert_frame_equal,
        pd.Series: assert_series_equal,
        pl.DataFrame: assert_polars_equal,
        pl.Series: assert_polars_series_equal,
    }
    equals[type(other)](one, other)


def table(index: Any = None, columns: Any = ("A", "B"), count: int = 3) -> pd.DataFrame:
    rows = count if index is None else len(index)
    return pd.DataFrame(np.arange(1.0, 1.0 + 2 * rows).reshape(rows, 2), index, columns)


DAYS = pd.date_range("2024-03-09", periods=3, tz="America/New_York", name="day")  # the clock changes on the second
INDICES = {
    "a time zone": DAYS,
    "another resolution": pd.date_range("2024-03-09", periods=3, tz="UTC", unit="s"),
    "a fixed offset": pd.DatetimeIndex(["2024-01-01T00:00+05:30", "2024-01-02T00:00+05:30"]),
    "business days": pd.bdate_range("2014-01-01", periods=2520),
    "a gap": pd.DatetimeIndex(["2024-01-01", None, "2024-01-03"]),
    "dates": pd.Index([dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
    "periods": pd.period_range("2024-01", periods=3, freq="M"),
    "durations": pd.to_timedelta(["1s", "2s"]),
    "none": None,
    "a range from 5": pd.RangeIndex(5, 11, 2, name="n"),
    "texts, one twice, one missing": pd.Index(["x", None, "x"]),
    "integers, one twice": pd.Index([3, 1, 1]),
    "nullable integers": pd.Index([3, 1], dtype="Int64"),
    "large integers": pd.Index(np.array([2**64 - 1, 0], np.uint64)),
    "floats": pd.Index([1.5, np.nan]),
    "truths": pd.Index([True, False]),
    "categories": pd.CategoricalIndex(["u", "v", "u"], ordered=True),
    "several kinds": pd.Index([1, "a", None, 2.5, True], dtype=object),
    "two levels": pd.MultiIndex.from_arrays([DAYS, ["a", "b", "c"]], names=["day", None]),
    "nothing": pd.DatetimeIndex([]),
}
COLUMNS = {
    "equal names": ["A", "A"],
    "numbers": [10, 20],
    "times": DAYS[:2],
    "two levels": pd.MultiIndex.from_tuples([("US", 1), ("UK", 2)], names=["market", "rank"]),
    "no name": [None, "A"],
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_a_frame_of_pandas_keeps_its_index(index: Any) -> None:
    frame = table(index)
    assert_frame_equal(there_and_back(frame), frame)
    series = frame["A"].rename(("a", 1)) if index is None else frame["A"]
    assert_series_equal(series, there_and_back(frame["A"]).rename(series.name))


@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
def test_a_frame_of_pandas_keeps_its_columns(columns: Any) -> None:
    frame = table(DAYS, columns)
    assert_frame_equal(there_and_back(frame), frame)


@pytest.mark.parametrize("name", ["A", None, 7])
def test_a_series_keeps_its_name(name: Any) -> None:
    series = table(DAYS)["A"].rename(name)
    assert_series_equal(there_and_back(series), series)


def test_a_frame_is_sent_with_time_along_the_last_axis_and_without_a_copy() -> None:
    frame = table(DAYS)
    array, _ = frames.read_frame("close", frame, frames.LIBRARIES["pandas"], FLOATS, (1, 2), SERIES)
    assert array.tolist() == [[1, 3, 5], [2, 4, 6]]
    assert np.shares_memory(array, frame.to_numpy())


@pytest.mark.parametrize(
    ("columns", "array"),
    [
        ({"a": pd.array([1, None], "Float64"), "b": pd.array([1, None], "Int64")}, [[1, np.nan], [1, np.nan]]),
        ({"a": np.array([1, 2], "int8"), "b": np.array([0.5, 2], "float32")}, np.float32([[1, 2], [0.5, 2]])),
        ({"a": np.array([1, 2], "float32"), "b": pd.array([1, None], "Float32")}, np.float32([[1, 2], [1, np.nan]])),
        ({"a": pd.arrays.SparseArray([0, 1]), "b": [1.0, 2.0]}, [[0, 1], [1, 2]]),
        ({"a": [2**53, 0], "b": [1.5, 0]}, [[2**53, 0], [1.5, 0]]),
    ],
)
def test_columns_of_several_dtypes_are_sent_exactly(columns: Any, array: Any) -> None:
    sent = given({"close": pd.DataFrame(columns)}, {"close": SERIES})[0]["close"]
    np.testing.assert_array_equal(sent, array)
    assert sent.dtype == np.asarray(array, None if hasattr(array, "dtype") else float).dtype


REFUSED = {
    "a text": (table(DAYS).assign(symbol="x"), r"close has columns that are no numbers: 'symbol' \((str|object.*)\)\."),
    "decimals": (table().assign(p=Decimal(1)), r"'p' \(object, with a Decimal\)"),
    "truths": (table().assign(up=True), r"'up' \(bool\)"),
    "times": (table().assign(day=DAYS), r"'day' \(datetime64.*New_York\]\)"),
    "a category": (table().assign(c=pd.Categorical(["a", "b", "c"])), r"'c' \(category\)"),
    "many": (pd.DataFrame({n: ["x"] for n in range(5)}), r": 0 \((str|object.*)\), 1 .*, 2 .* and 2 more\."),
    "a series of texts": (pd.Series(["x"]), "close is a Series of no numbers: it has the dtype"),
    "integers among floats": (
        pd.DataFrame({"v": [2**53 + 1], "p": [0.5]}),
        "the column 'v' of close has integers that float64 cannot hold exactly",
    ),
    "integers among gaps": (pd.DataFrame({"v": pd.array([2**53 + 1, None], "Int64")}), "the column 'v' of close has"),
    "a long table": (
        table(pd.MultiIndex.from_product([DAYS, ["x", "y"]])),
        "close is a long table, in which times repeat for several assets",
    ),
    "truths of Polars": (pl.DataFrame({"p": [1.0], "up": [True]}), r"no numbers: 'up' \(Boolean\)\."),
    "decimals and lists of Polars": (
        pl.DataFrame({"p": [Decimal(1)], "l": [[1.0]]}),
        r"'p' \(Decimal\(.*\)\), 'l' \(List\(Float64\)\)",
    ),
    "a series of dates of Polars": (pl.Series([dt.date(2024, 1, 1)]), "a Series of no numbers: it has the dtype Date"),
    "integers among nulls": (pl.Series([2**53 + 1, None]), "close has integers that float64 cannot hold exactly"),
    "a long table of Polars": (
        pl.DataFrame({"day": [dt.date(2024, 1, 1)] * 2, "symbol": ["x", "y"], "p": [1.0, 2.0]}),
        "close is a long table",
    ),
}


@pytest.mark.parametrize(("value", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_number_is_refused_by_the_name_of_its_column(value: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        given({"close": value}, {"close": SERIES})


def test_a_frame_of_polars_keeps_its_label_columns_where_they_are() -> None:
    moments = [dt.datetime(2024, 3, 9, 1), None]
    frame = pl.DataFrame(
        {
            "day": [dt.date(2024, 1, 1), None],
            "A": [1.0, 2.0],
            "at": moments,
            "zoned": pl.Series(moments).dt.replace_time_zone("America/New_York"),
            "clock": [dt.time(9, 30), None],
            "symbol": ["a", None],
            "kind": pl.Series(["a", None], dtype=pl.Categorical),
            "side": pl.Series(["sell", None], dtype=pl.Enum(["buy", "sell"])),
            "B": [3.0, 4.0],
        }
    )
    assert_polars_equal(there_and_back(frame), frame)
    assert_polars_equal(there_and_back(frame.select("A", "B")), frame.select("A", "B"))
    assert_polars_series_equal(there_and_back(frame["A"]), frame["A"])


def test_nulls_of_polars_come_back_as_nan_and_float32_as_itself() -> None:
    frame = pl.DataFrame({"A": [1, None], "B": [0.5, None]})
    np.testing.assert_array_equal(there_and_back(frame).to_numpy(), [[1.0, 0.5], [np.nan, np.nan]])
    narrow = pl.DataFrame({"A": [1.5, 2.5]}, schema={"A": pl.Float32})
    assert_polars_equal(there_and_back(narrow), narrow)


def test_times_are_an_input_of_integers() -> None:
    nanoseconds = DAYS.as_unit("ns").asi8.tolist()
    polars = pl.Series("day", DAYS.tz_convert("UTC").tz_localize(None).to_numpy()).dt.replace_time_zone("UTC")
    for times in (DAYS, DAYS.to_series(), polars, polars.dt.convert_time_zone("America/New_York")):
        library = frames.library_of(times)
        assert library is not None
        array, _ = frames.read_frame("time", times, library, ("int64",), (1,), (["entry"],))
        assert array.tolist() == nanoseconds
    for gaps in (pd.DatetimeIndex([None]), pl.Series([None], dtype=pl.Date)):
        with pytest.raises(ValueError, match="time has 1 gaps among its times"):
            frames.read_frame("time", gaps, frames.library_of(gaps), ("int64",), (1,), (["entry"],))  # type: ignore[arg-type]


def test_several_inputs_must_have_the_same_labels() -> None:
    high, axes = table(DAYS), {"high": SERIES, "low": SERIES, "benchmark": (["time"],)}
    with pytest.raises(
        ValueError,
        match=r"high and low have different labels of the axis time: 3 and 2 of them, the first that differ are number "
        r"1, Timestamp\('2024-03-09 .*\) and Timestamp\('2024-03-10 ",
    ):
        given({"high": high, "low": high[1:]}, axes)
    with pytest.raises(ValueError, match="asset: 2 and 2 of them, the first that differ are number 2, 'B' and 'C'"):
        given({"high": high, "low": high.rename(columns={"B": "C"})}, axes)
    with pytest.raises(ValueError, match="high and benchmark have different labels of the axis time: 3 and 2 of them"):
        given({"high": high, "benchmark": high["A"][:2]}, axes)
    with pytest.raises(TypeError, match="high is of pandas and low of Polars: give both in one kind"):
        given({"high": high, "low": pl.DataFrame({"A": [1.0]})}, axes)
    with pytest.raises(ValueError, match="time: 3 and 2 of them, the first that differ are number 3, 2 and no label"):
        given({"high": pl.Series([1.0, 2.0, 3.0]), "low": pl.Series([1.0, 2.0])}, axes)
    assert given({"high": high, "low": np.ones((2, 3)), "benchmark": high["B"]}, axes)[1].sources == ("high",)


def labelled(outputs: Mapping[str, tuple[Any, Any]], inputs: Any, axes: Any, ranks: Any = (1, 2)) -> list[Any]:
    joint: JobLabels = given(inputs, axes, ranks)[1]
    return [joint.labelled(name, np.asarray(array), written) for name, (array, written) in outputs.items()]


def test_an_output_has_the_labels_of_the_axes_that_its_operation_names() -> None:
    returns = table(DAYS)
    square, means, bars, shrinkage, equal = labelled(
        {
            "covariance": ([[1.0, 0.5], [0.5, 2.0]], (["asset", "asset"], ["batch", "asset", "asset"])),
            "means": ([0.1, 0.2], (["asset"],)),
            "close": ([[1, 2], [3, 4]], (["bar"], ["asset", "bar"])),
            "shrinkage": ([0.5], (["1"], ["batch"])),
            "metrics": ([[1.0, 2.0]], (["metric", "asset"],)),
        },
        {"returns": returns},
        {"returns": SERIES},
    )
    names = returns.columns
    assert_frame_equal(square, pd.DataFrame([[1.0, 0.5], [0.5, 2.0]], names, names))
    assert_series_equal(means, pd.Series([0.1, 0.2], names, name="means"))
    assert_frame_equal(bars, pd.DataFrame([[1, 3], [2, 4]], columns=names))
    assert isinstance(shrinkage, np.ndarray)
    assert_frame_equal(equal, pd.DataFrame([[1.0, 2.0]], columns=names))


def test_an_indicator_has_the_labels_of_its_input_and_a_list_of_parameters_none(tmp_path: Path) -> None:
    described = describe(OPERATIONS["rsi"], Settings(home=tmp_path))
    axes, written = {"close": described.inputs[0].axes}, described.outputs[0].axes
    frame = table(DAYS)
    arrays, joint = given({"close": frame}, axes)
    assert_frame_equal(joint.labelled("rsi", arrays["close"], written), frame)
    assert isinstance(joint.labelled("rsi", np.ones((2, 2, 3)), written), np.ndarray)  # (set, asset, time)
    arrays, joint = given({"close": frame["A"]}, axes)
    assert_series_equal(joint.labelled("rsi", arrays["close"], written), frame["A"])
    sets = joint.labelled("rsi", np.ones((2, 3)), written)
    assert_frame_equal(sets, pd.DataFrame(np.ones((3, 2)), DAYS))


def test_a_matrix_is_sent_as_it_is_and_has_its_own_labels_on_both_sides() -> None:
    axes = {"a": (["row", "inner"],), "b": (["inner", "column"],), "covariance": (["asset", "asset"],)}
    a, b = table(DAYS), pd.DataFrame([[1.0, 2.0, 3.0]] * 2, ["A", "B"], ["x", "y", "z"])
    arrays, joint = given({"a": a, "b": b}, axes, (2,))
    np.testing.assert_array_equal(arrays["a"], a.to_numpy())
    assert_frame_equal(joint.labelled("product", arrays["a"] @ arrays["b"], (["row", "column"],)), a @ b)
    with pytest.raises(ValueError, match="the rows and the columns of covariance have different labels"):
        given({"covariance": table(["B", "A"])}, axes)


def test_polars_names_assets_in_a_column() -> None:
    frame = pl.DataFrame({"day": [dt.date(2024, 1, 1), dt.date(2024, 1, 2)], "A": [1.0, 2.0], "asset": [3.0, 4.0]})
    square, used, means = labelled(
        {
            "covariance": ([[1.0, 0.5], [0.5, 2.0]], (["asset", "asset"],)),
            "used": ([1, 2], (["time"],)),
            "means": ([0.1, 0.2], (["asset"],)),
        },
        {"returns": frame},
        {"returns": SERIES},
    )
    assert_polars_equal(square, pl.DataFrame({"asset_": ["A", "asset"], "A": [1.0, 0.5], "asset": [0.5, 2.0]}))
    assert_polars_equal(used, pl.DataFrame({"day": frame["day"], "used": [1, 2]}))
    assert_polars_equal(means, pl.DataFrame({"asset": ["A", "asset"], "means": [0.1, 0.2]}))
    back, _ = given({"covariance": square}, {"covariance": (["asset", "asset"],)})
    assert back["covariance"].tolist() == [[1.0, 0.5], [0.5, 2.0]]
    twice = pl.DataFrame({"asset": ["A", "A"], "mean": [0.1, 0.2]})
    (square,) = labelled({"covariance": (np.eye(2), (["asset", "asset"],))}, {"m": twice}, {"m": (["asset"],)}, (1,))
    assert square.columns == ["asset", "A", "A_"]


def test_series_of_several_names_give_one_named_like_the_output() -> None:
    prices, any_axes = table(DAYS), (["..."],)
    axes = {"x": any_axes, "y": any_axes}
    added, reduced = labelled(
        {"add": ([3.0, 7.0, 11.0], any_axes), "sum": ([3.0], any_axes)}, {"x": prices["A"], "y": prices["B"]}, axes
    )
    assert_series_equal(added, pd.Series([3.0, 7.0, 11.0], DAYS, name="add"))
    assert isinstance(reduced, np.ndarray)
    (sums,) = labelled({"sum": ([9.0, 12.0], any_axes)}, {"x": prices}, axes)  # over the last axis, which is the time
    assert_series_equal(sums, pd.Series([9.0, 12.0], prices.columns, name="sum"))


def test_the_series_of_an_expression_are_frames() -> None:
    prices = table(DAYS)
    joint = given({"close": prices}, {"close": SERIES})[1]
    written = (["output", "time"], ["output", "asset", "time"])
    found = joint.labelled("series", np.stack([prices.to_numpy().T] * 2), written, ["fast", "slow"])
    for each in found:
        assert_frame_equal(each, prices)


def test_a_table_of_one_column_is_an_input_of_one_axis() -> None:
    axes = {"benchmark": (["time"],)}
    arrays, joint = given({"benchmark": table(DAYS)[["B"]]}, axes, (1,))
    assert arrays["benchmark"].tolist() == [2, 4, 6]
    assert_series_equal(joint.labelled("beta", arrays["benchmark"], axes["benchmark"]), table(DAYS)["B"])
    with pytest.raises(TypeError, match="benchmark is one series, and has 2 columns: choose one of them"):
        given({"benchmark": table(DAYS)}, axes, (1,))


def test_a_frame_is_refused_where_the_service_does_not_name_the_axes() -> None:
    with pytest.raises(TypeError, match="close is a pandas DataFrame, and the service does not say which"):
        given({"close": table()}, {"close": ()})


def test_labels_that_json_does_not_hold_or_that_are_too_large_are_not_written() -> None:
    def text(value: Any) -> dict[str, Any]:
        joint = given({"close": value}, {"close": SERIES})[1]
        return kept_labels.written(joint, {"close": labels(value)}, 1 << 16)

    assert len(json.dumps(text(table(pd.bdate_range("2014-01-01", periods=2520))))) < 500
    for index in ([object(), object()], pd.IntervalIndex.from_breaks([0, 1, 2]), pd.Index([1, None], dtype="Int64")):
        assert text(table(index)) == {}
    assert text(table(np.random.default_rng(1).integers(0, 2**60, 20_000))) == {}
    for odd in ({}, {"library": "pandas", "index": [{"name": None, "kind": "int64"}]}, {"library": "R", "index": []}):
        assert kept_labels.read({"close": odd}, {"close": SERIES}) is None


# The same through a service.


@pytest.fixture(scope="module")
def days() -> pd.DatetimeIndex:
    return pd.bdate_range("2024-01-01", periods=90, tz="America/New_York", name="day")


@pytest.fixture(scope="module")
def prices(days: pd.DatetimeIndex) -> pd.DataFrame:
    """Ninety days of three assets, under two levels of names."""
    columns = pd.MultiIndex.from_tuples([("US", "A"), ("US", "A"), ("UK", 7)], names=["market", "name"])
    return pd.DataFrame(stocks()[2][:3, :90].T, days, columns)


def test_frames_go_through_a_service_and_come_back(client: Client, service: Service, prices: pd.DataFrame) -> None:
    plain = client.run("macd", close=prices.to_numpy().T, fast=5, slow=10, signal=4)
    whole = client.macd(prices, fast=5, slow=10, signal=4)

    async def awaited() -> Any:
        async with AsyncClient(service.url) as other:
            job = await other.submit("macd", close=prices, fast=5, slow=10, signal=4)
            return await job.result()

    job = client.submit("macd", close=client.upload(prices), fast=5, slow=10, signal=4)
    for result in (whole, job.result(), client.job(job).wait().result(), asyncio.run(awaited())):
        for name, array in plain.items():
            assert_frame_equal(result[name], pd.DataFrame(array.T, prices.index, prices.columns))
    stored = client.upload(prices)
    assert_frame_equal(client.download(stored), prices)
    np.testing.assert_array_equal(client.download(stored.id), prices.to_numpy().T)
    assert isinstance(plain["macd"], np.ndarray)


def test_each_output_has_the_labels_of_its_axes(client: Client, prices: pd.DataFrame) -> None:
    names = prices.columns
    returns = prices.pct_change().iloc[1:]
    risk = client.covariance(returns)
    assert_frame_equal(risk["correlation"].round(9), returns.corr().round(9), check_names=False)
    weights = client.risk_parity(risk["covariance"])["weights"]
    assert weights.index.equals(names)
    report = client.performance(returns, benchmark=returns.iloc[:, 0])
    assert report["total_return"].index.equals(names)
    ranks = client.neutralise(returns)
    assert ranks["used"].index.equals(returns.index)
    days = dict.fromkeys(("open", "high", "low", "close", "volume"), prices)
    bars = client.bars(**days, time=prices.index, by="time", every=7 * 86_400.0)
    assert (bars["close"].shape[1], bars["close"].columns.equals(names)) == (3, True)
    assert isinstance(bars["time"], np.ndarray)
    option = {"option": "call", "maturity": 1.0, "rate": 0.0, "dividend": 0.0}
    book = client.black_scholes(spot=prices.iloc[0], strike=100.0, volatility=0.2, **option)
    assert book["price"].index.equals(names)
    wanted = ta.expression(fast=ta.ema(ta.close, 5), change=ta.change(ta.close))
    found = client.expression(**wanted, close=prices)
    assert_frame_equal(found["fast"], client.ema(prices, period=5)["ema"])
    assert_frame_equal(found["change"], prices.diff())


def test_another_process_gets_frames_again(client: Client, service: Service, prices: pd.DataFrame) -> None:
    frame = pl.DataFrame({"day": prices.index.tz_localize(None).to_numpy(), "A": prices.to_numpy()[:, 0]})
    series = prices[("UK", 7)].rename("seven")
    given = [frame, prices, series]
    jobs = [client.submit("sma", close=each, period=5, idempotency_key=str(at)) for at, each in enumerate(given)]
    code = (
        "import pickle, sys\nfrom warpdesk import Client\nwith Client(sys.argv[1]) as client:\n"
        "    assert not {'pandas', 'polars'} & sys.modules.keys()\n"
        "    found = [client.result(job)['sma'] for job in sys.argv[2:]]\n"
        "    sys.stdout.buffer.write(pickle.dumps(found))\n"
    )
    command = [sys.executable, "-c", code, service.url, *(job.id for job in jobs)]
    ran = subprocess.run(command, check=True, capture_output=True, timeout=100)
    for job, found in zip(jobs, pickle.loads(ran.stdout), strict=True):  # noqa: S301
        same(found, job.result()["sma"])
    assert client.result(client.run("sma", close=prices, period=5).job.id)["sma"].shape == (3, 90)  # run sent none


def test_what_cannot_be_a_frame_is_said_before_anything_is_sent(client: Client, prices: pd.DataFrame) -> None:
    uploaded = client.upload(prices)
    client.operations()
    sent: list[Any] = []
    client._http.event_hooks["request"] = [sent.append]
    with pytest.raises(ValueError, match="high and low have different labels of the axis time: 90 and 89 of them"):
        client.atr(high=prices, low=prices[1:], close=prices, period=3)
    with pytest.raises(TypeError, match="lower is a pandas Series, and the service does not say"):
        client.run("tridiagonal_solve", lower=prices.iloc[:, 0])
    with pytest.raises(TypeError, match="a has the axes row, inner, and the frame was uploaded with its rows"):
        client.matmul(uploaded, np.ones((3, 1)))
    assert sent == []
    with pytest.raises(RequestRefused, match="There is no operation 'rsii'; near are rsi"):
        client.run("rsii", close=prices)
    with pytest.raises(RequestRefused, match="close and prices are one input of rsi; give it once"):
        client.run("rsi", close=prices, prices=prices, period=5)
