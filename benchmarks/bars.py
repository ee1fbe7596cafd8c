"""Bars from ticks, and from smaller bars of many assets, beside pandas and Polars.

The peers make open, high, low, close and volume; Warpdesk makes the average price, counts and edges of bars besides.
"""

import numpy as np

from warpdesk_server.benchmarks.cases import Call, Case, Goal, Inputs, Peer, Sizes, measured, module, random

_SECOND = 1_000_000_000
_START = 1_700_000_000 * _SECOND


def _ticks(count: int) -> Inputs:
    """Ticks a second apart in the mean."""
    generator = random()
    return {
        "price": 100 * np.exp(np.cumsum(generator.normal(0, 1e-4, count))),
        "size": generator.integers(1, 500, count).astype(np.float64),
        "time": _START + np.cumsum(generator.integers(0, 2 * _SECOND, count)),
    }


def _minutes(assets: int, count: int) -> Inputs:
    generator = random()
    close = 100 * np.exp(np.cumsum(generator.normal(0, 1e-4, (assets, count)), axis=1))
    prices = {"open": close * 0.9995, "high": close * 1.001, "low": close * 0.999, "close": close}
    volume = generator.integers(1, 500, (assets, count)).astype(np.float64)
    return {**prices, "volume": volume, "time": _START + np.arange(count) * 60 * _SECOND}


def _pandas_by_time(inputs: Inputs) -> Call:
    pandas = module("pandas")
    table = pandas.DataFrame(
        {"price": inputs["price"], "size": inputs["size"]}, pandas.to_datetime(inputs["time"], unit="ns")
    )

    def call() -> object:
        grouped = table.resample("60s")
        return grouped["price"].ohlc(), grouped["size"].sum()

    return call


def _polars_by_time(inputs: Inputs) -> Call:
    polars = module("polars")
    time = inputs["time"].astype("datetime64[ns]")
    table = polars.DataFrame({"time": time, "price": inputs["price"], "size": inputs["size"]}).set_sorted("time")
    price, size = polars.col("price"), polars.col("size")
    columns = (
        price.first().alias("open"), price.max().alias("high"), price.min().alias("low"), price.last().alias("close"),
        size.sum().alias("volume"),
    )  # fmt: skip
    return lambda: table.group_by_dynamic("time", every="60s").agg(*columns)


def _pandas_by_volume(inputs: Inputs) -> Call:
    pandas = module("pandas")
    table = pandas.DataFrame({"price": inputs["price"], "size": inputs["size"]})

    def call() -> object:
        total = table["size"].cumsum()
        grouped = table.groupby((total - table["size"]) // 25_000)
        return grouped["price"].ohlc(), grouped["size"].sum()

    return call


def _pandas_of_assets(inputs: Inputs) -> Call:
    pandas = module("pandas")
    index = pandas.to_datetime(inputs["time"], unit="ns")
    tables = {name: pandas.DataFrame(array.T, index) for name, array in inputs.items() if name != "time"}
    how = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}
    return lambda: [getattr(tables[name].resample("1D"), each)() for name, each in how.items()]


def _of_ticks(sizes: Sizes, count: int, goal: Goal | None = None) -> Case:
    peers = (
        Peer("pandas", "pandas", _pandas_by_time, note="no average price"),
        Peer("Polars", "polars", _polars_by_time, threads="all", note="no average price"),
    )
    return Case("bars", f"by minute, {measured(count)} ticks", {"by": "time", "every": 60.0}, lambda: _ticks(count),
                sizes, peers, goal or Goal(), moved=24 * count, repeats=7)  # fmt: skip


def _by_volume(sizes: Sizes, count: int) -> Case:
    peers = (Peer("pandas", "pandas", _pandas_by_volume, note="groups of the running volume: the excess is carried"),)
    return Case("bars", f"by volume, {measured(count)} ticks", {"by": "volume", "every": 25_000.0},
                lambda: _ticks(count), sizes, peers, moved=24 * count, repeats=7)  # fmt: skip


def _of_assets(sizes: Sizes, assets: int, count: int, goal: Goal | None = None) -> Case:
    peers = (Peer("pandas", "pandas", _pandas_of_assets, note="no average price"),)
    return Case("bars", f"by day, {assets} assets, {count:,} minutes", {"by": "time", "every": 86_400.0},
                lambda: _minutes(assets, count), sizes, peers, goal or Goal(),
                moved=40 * assets * count, repeats=7)  # fmt: skip


CASES: tuple[Case, ...] = (
    _of_ticks("small", 10_000),
    _by_volume("small", 10_000),
    _of_assets("small", 3, 5_000),
    _of_ticks("full", 10_000_000, Goal({"pandas": 2.0, "Polars": 1.0})),
    _by_volume("full", 10_000_000),
    _of_assets("full", 500, 20_000, Goal({"pandas": 1.5})),
)
