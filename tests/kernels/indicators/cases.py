"""Requests whose answers must be the same bytes on the CPU, under emulation and on a GPU."""

from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tests.kernels.parity import Case
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.indicators.declared import DECLARED
from warpdesk_server.kernels.indicators.expression import EXPRESSION
from warpdesk_server.kernels.operation import Operation

TILE = 2048


def walk(*shape: int, dtype: str = "float64", seed: int = 1, gaps: float = 0.0) -> NDArray[Any]:
    """Prices around 100 that wander by 0.1 % a bar, with a share of bars missing."""
    random = np.random.default_rng(seed)
    prices = 100 * np.cumprod(1 + random.normal(0, 1e-3, shape), axis=-1)  # np.exp differs from CPU to CPU
    prices[random.random(shape) < gaps] = np.nan
    return prices.astype(dtype)


def bars(rows: int, time: int, dtype: str = "float64", seed: int = 1, gaps: float = 0.0) -> dict[str, NDArray[Any]]:
    """Open, high, low, close and volume around a walk, with a share of closes and of highs missing."""
    random = np.random.default_rng(seed)
    close = walk(rows, time, seed=seed)
    start, up, down = (np.abs(random.normal(0, 1e-3, close.shape)) for _ in range(3))
    high, low = np.maximum(close, close * (1 + up)), close * (1 - down)
    found = {
        "open": low + (high - low) * np.minimum(start * 500, 1),
        "high": high,
        "low": low,
        "close": close,
        "volume": np.floor(1e6 * (0.5 + random.random(close.shape))),
        "benchmark": close * (1 + 0.01 * random.random(close.shape)),
        "session": np.floor(np.arange(1.0, time + 1) / 78) + np.zeros(close.shape),
    }
    for name in ("close", "high"):
        found[name][random.random(close.shape) < gaps] = np.nan
    return {name: array.astype(dtype) for name, array in found.items()}


def _prices(*shape: int, **options: Any) -> Callable[[], dict[str, NDArray[Any]]]:
    return lambda: {"prices": walk(*shape, **options)}


def _flat_after_a_move() -> dict[str, NDArray[Any]]:
    prices = np.full(3 * TILE, 97.5)
    prices[:40] = walk(40)
    prices[2 * TILE + 9] = np.nan
    return {"prices": prices}


def _gap_two_tiles_back() -> dict[str, NDArray[Any]]:
    prices = walk(2, 5 * TILE)
    prices[:, TILE + 100] = np.nan
    prices[1, 2 * TILE + 50] = np.nan  # and the one before must not be taken for the last
    return {"prices": prices}


def _gap_at_the_end_of_a_tile_then_flat() -> dict[str, NDArray[Any]]:
    prices = np.full((1, 6 * TILE), 97.5)
    prices[0, :50] = walk(50)
    prices[0, TILE - 1] = np.nan
    return {"prices": prices}


def _rows_with_gaps(rows: int, time: int, dtype: str) -> Callable[[], dict[str, NDArray[Any]]]:
    """Some rows have all their prices, one has none, and one has its first price at its last bar."""

    def prices() -> dict[str, NDArray[Any]]:
        series = walk(rows, time, dtype=dtype, seed=8, gaps=0.3)
        series[::7] = walk(*series[::7].shape, dtype=dtype, seed=9)
        series[-1, :-1] = np.nan
        if rows > 2:
            series[-2] = np.nan
        return {"prices": series}

    return prices


def _overflowing(dtype: str) -> Callable[[], dict[str, NDArray[Any]]]:
    def prices() -> dict[str, NDArray[Any]]:
        series = walk(2, 9 * TILE, dtype=dtype)
        series[0, 700:702] = np.finfo(dtype).max, -np.finfo(dtype).max
        series[1, 3000:3002] = -np.finfo(dtype).max, np.finfo(dtype).max
        series[1, 3500] = np.nan
        return {"prices": series}

    return prices


def _spiked() -> dict[str, NDArray[Any]]:
    prices = 1e9 + walk(2, 700, seed=3)
    prices[0, 0] = prices[1, 311] = 1e12
    return {"prices": prices}


def _decayed(rows: int, time: int, dtype: str = "float64") -> Callable[[], dict[str, NDArray[Any]]]:
    """Nothing moves after bar 60, or, in the second row, after a gap."""

    def prices() -> dict[str, NDArray[Any]]:
        series = walk(rows, time, dtype=dtype)
        series[:, 60:] = series[:, 59:60]
        series[1:, time // 2 : time // 2 + 1] = np.nan
        return {"prices": series}

    return prices


def _long_run(time: int, dtype: str = "float64") -> Callable[[], dict[str, NDArray[Any]]]:
    """A series that moves all along, with gaps in its third group of tiles."""

    def prices() -> dict[str, NDArray[Any]]:
        series = walk(time, dtype=dtype)
        series[130 * TILE + 7 :: 3 * TILE - 1] = np.nan
        return {"prices": series}

    return prices


def _one_close(rows: int, time: int, dtype: str = "float64") -> Callable[[], dict[str, NDArray[Any]]]:
    return lambda: {"close": walk(rows, time, gaps=0.0002, dtype=dtype)}


def _two_closes(dtype: str = "float64") -> Callable[[], dict[str, NDArray[Any]]]:
    return lambda: {name: walk(1, 2100, seed=seed, dtype=dtype) for seed, name in enumerate(("close", "benchmark"))}


def _declared(operation: Operation, rows: int, time: int, small: bool, **options: Any) -> Case:
    policy = options.pop("nan_policy", "window")
    label = "-".join([f"{rows}x{time}", policy, *map(str, options.values())])

    def inputs() -> dict[str, NDArray[Any]]:
        arrays = bars(rows, time, **options)
        return {each.name: arrays[each.shown] for each in operation.inputs}

    return _case(operation.name, inputs, label, small, **operation.example.params, nan_policy=policy)


def _case(operation: str, inputs: Callable[[], Any], name: str, small: bool = True, **params: Any) -> Case:
    return Case(operation, params, inputs, small=small, name=f"{operation}-{name}")


CASES: tuple[Case, ...] = (
    *(
        _case(operation, _prices(2, 300, dtype=dtype), f"{dtype}-{period}", period == 20, period=period)
        for operation in ("sma", "ema", "rsi", "bollinger")
        for dtype in ("float64", "float32")
        for period in (2, 14, 20)
    ),
    # Several sets of parameters in one program.
    _case("bollinger", _prices(300), "sets", period=[5, 20, 7], width=[1.0, 2.0, 2.5]),
    _case("rsi", _prices(2, 300, gaps=0.03, dtype="float32"), "sets", period=[14, 2], nan_policy="skip"),
    *(
        _case(
            "rsi",
            _prices(300, dtype=dtype),
            f"{convention}-{dtype}",
            convention == "cutler",
            period=14,
            convention=convention,
        )
        for convention in ("cutler", "ema", "tradingview")
        for dtype in ("float64", "float32")
    ),
    _case("ema", _prices(300), "tradingview", small=False, period=20, convention="tradingview"),
    *(
        _case(
            operation,
            _prices(2, 1300, gaps=0.03),
            f"gaps-{policy}",
            operation in ("sma", "rsi"),
            period=7,
            nan_policy=policy,
        )
        for operation in ("sma", "ema", "rsi", "bollinger")
        for policy in ("window", "skip", "ffill")
    ),
    *(
        _case(operation, _prices(2, size, gaps=gaps), f"{size}-{gaps}", small=False, period=period)
        for operation in ("ema", "rsi")
        for size, gaps, period in ((TILE, 0, 14), (TILE + 1, 0, 14), (5 * TILE + 33, 0, 14), (5 * TILE, 3e-4, 200))
    ),
    *(
        _case(operation, _prices(1, 3 * TILE, gaps=0.001), f"tiles-{policy}", small=False, period=30, nan_policy=policy)
        for operation in ("ema", "rsi")
        for policy in ("skip", "ffill")
    ),
    *(
        _case("sma", _prices(2, TILE + 60, gaps=0.3), f"two tiles-{policy}", period=7, nan_policy=policy)
        for policy in ("skip", "ffill")
    ),
    # Gaps of rows that share a block, and the edges of segments and of what a block holds.
    *(
        _case(
            operation,
            _rows_with_gaps(*shape, dtype),
            f"gaps of {shape}, {dtype}-{policy}",
            small=shape == (70, 31),
            period=5,
            nan_policy=policy,
        )
        for policy in ("skip", "ffill")
        for operation, dtype, shape in (
            *(("sma", "float64", shape) for shape in ((1000, 6), (70, 31), (129, 32), (70, 33), (9, 700))),
            *(("ema", "float64", shape) for shape in ((3, 1024), (3, 1025), (2, TILE - 1), (2, TILE), (2, TILE + 1))),
            ("bollinger", "float32", (40, 99)),
        )
    ),
    _case("ema", _prices(1, 4 * TILE), "period longer than a tile", small=False, period=3000),
    _case("rsi", _prices(1, 4 * TILE), "period longer than a tile", small=False, period=3000),
    _case("ema", _prices(1, 2500), "carried through all tiles", period=2400),
    _case("rsi", _prices(1, 2500), "carried through all tiles", period=2400),
    _case("ema", _gap_two_tiles_back, "gap two tiles back", small=False, period=4000),
    _case("rsi", _gap_at_the_end_of_a_tile_then_flat, "gap at a tile's end, then flat", small=False, period=2500),
    *(
        _case(operation, _overflowing(dtype), f"{dtype}, overflowing {name}", small=False, period=14, **options)
        for dtype, operation, name, options in (
            ("float64", "ema", "differences", {}),
            ("float64", "rsi", "changes", {}),
            ("float64", "rsi", "changes, cutler", {"convention": "cutler"}),
            ("float64", "bollinger", "bands", {}),
            # Not the RSI: an ordinary gain beside a loss of 3e38 is a share of 1e-39, which a GPU flushes.
            ("float32", "ema", "differences", {}),
            ("float32", "bollinger", "bands", {}),
        )
    ),
    # Rows that share a block, and the edges of segments and of what a block holds.
    *(
        _case(operation, _prices(*shape, gaps=gaps), f"{shape}-{gaps}", small=shape == (70, 31) and gaps > 0, period=7)
        for operation in ("ema", "rsi")
        for shape in ((1000, 20), (70, 31), (70, 32), (70, 33), (9, 700), (3, 1024), (3, 1025), (2, 2047))
        for gaps in (0, 0.03)
    ),
    # Tiles of several groups, and small runs of the one pass in which blocks wait for each other.
    *(
        _case(operation, _long_run(140 * TILE + 9, dtype), f"several groups, {dtype}", small=False, period=period)
        for operation in ("ema", "rsi")
        for dtype, period in (("float64", 4000), ("float32", 1500), ("float32", 20_000))
    ),
    *(
        _case(operation, _prices(2, 3 * TILE + 40, gaps=0.001), f"waiting blocks, {period}", period=period)
        for operation in ("ema", "rsi")
        for period in (5, 2100)
    ),
    _case("rsi", _decayed(2, 70 * TILE), "decayed for longer than a look back", small=False, period=2),
    _case("rsi", _decayed(2, 4 * TILE), "decayed for tiles", period=2),
    _case("rsi", _decayed(2, 4 * TILE, "float32"), "decayed for tiles, float32", small=False, period=2),
    _case("rsi", _decayed(4, 900, "float32"), "decayed in rows that share a block", small=False, period=2),
    *(
        _case("ema", _overflowing("float64"), f"overflowing, period 1, {policy}", False, period=1, nan_policy=policy)
        for policy in ("window", "skip")
    ),
    _case("rsi", _flat_after_a_move, "flat run", period=2),
    _case("rsi", _flat_after_a_move, "flat run, nan", small=False, period=3, flat="nan"),
    *(_case(operation, _spiked, "spikes", small=False, period=41) for operation in ("sma", "ema", "rsi", "bollinger")),
    # The two sides of each bound: bar by bar; many blocks of bars for a block of threads, one, a part of one.
    *(
        _case(operation, _prices(2, 5000), f"period {period}", small=False, period=period)
        for operation in ("sma", "bollinger")
        for period in (1, 12, 13, 15, 16, 17, 128, 129, 512, 513, 2048, 2049)
    ),
    *(
        _case("rsi", _prices(2, 5000), f"cutler, period {period}", small=False, period=period, convention="cutler")
        for period in (12, 13, 17, 513, 2048, 2049)
    ),
    *(
        _case(operation, _prices(1, bars), f"{bars} bars, period {period}", small=True, period=period, **options)
        for operation, options in (("sma", {}), ("bollinger", {}), ("rsi", {"convention": "cutler"}))
        for period, bars in ((5, 300), (150, 500), (2049, 2100))
    ),
    # Every kernel in float32 too.
    _case("rsi", _prices(1, 2500, dtype="float32"), "float32, carried through all tiles", small=False, period=2400),
    *(
        _case(
            operation,
            _prices(1, 4500, dtype="float32", gaps=0.01),
            f"float32-{period}-{policy}",
            small=False,
            period=period,
            nan_policy=policy,
            **options,
        )
        for operation, period, options in (
            *(("sma", period, {}) for period in (9, 1025, 2049)),
            *(("bollinger", period, {}) for period in (9, 1025, 2049)),
            *(("rsi", period, {"convention": "cutler"}) for period in (9, 1025, 2049)),
            ("ema", 30, {}),
        )
        for policy in ("skip", "ffill")
    ),
    # Declared indicators: each over some tiles in small and in large.
    *(_declared(operation, 2, 130, small=True, gaps=0.01) for operation in DECLARED),
    *(_declared(operation, 2, 2100, small=False, gaps=0.001) for operation in DECLARED),
    *(
        _declared(operation, 3, 4200, small=False, gaps=0.002, dtype="float32", nan_policy=policy)
        for operation in DECLARED
        for policy in [("window", "skip", "ffill")[crc32(operation.name.encode()) % 3]]  # not by its place in the list
    ),
    _declared(OPERATIONS["obv"], 1, 2100, small=True, gaps=0.001),
    _case("rolling", _one_close(1, 2100), "std, 2100 bars, period 2049", period=2049, statistic="std"),
    _case("rolling", _one_close(1, 2100, "float32"), "std, float32, period 2049", False, period=2049, statistic="std"),
    _case("rolling_pair", _two_closes(), "beta, period 1100", period=1100, statistic="beta"),
    _case("rolling_pair", _two_closes("float32"), "beta, float32, period 1100", False, period=1100, statistic="beta"),
    *(
        _case(
            "expression", _one_close(2, time, dtype), f"{time} bars, {dtype}", time == 200, **EXPRESSION.example.params
        )
        for time in (200, 4200)
        for dtype in ("float64", "float32")
    ),
    # Kernels of programs at the sizes at which they change: tiles of scans, long windows, stages cut by their lags.
    *(
        _case(
            "rolling",
            _one_close(1, 4600),
            f"{statistic}, period {period}",
            period == 40,
            period=period,
            statistic=statistic,
        )
        for statistic, periods in (
            *((each, (9, 40, 700, 2500)) for each in ("std", "sum", "max", "mean_deviation")),
            ("median", (40, 2500)),
            ("kurtosis", (40, 2500)),
        )
        for period in periods
    ),
)
