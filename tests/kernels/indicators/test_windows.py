"""Sums of windows: the same bytes from every loop and kernel, and how exact they are."""

import re
from collections.abc import Callable
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from tests.kernels.indicators.cases import walk
from tests.kernels.indicators.reference import compute, window_moments
from warpdesk_server.kernels.cpu import lanes
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.indicators import algebra as a
from warpdesk_server.kernels.indicators import program_cpu, program_gpu, windows_gpu
from warpdesk_server.kernels.indicators.algebra import Node
from warpdesk_server.kernels.indicators.plan import plan
from warpdesk_server.kernels.indicators.series import Series
from warpdesk_server.kernels.indicators.windows import EIGHT, GROUP, SHORT, STRETCH

Array = NDArray[Any]

# Around the edges of what is added bar by bar (12), of eights, of groups (128 bars) and groups of groups (2,048).
PERIODS = [1, 2, 7, 8, 12, 13, 15, 16, 17, 24, 25, 127, 128, 129, 255, 256, 257, 512, 513, 1000, 1024, 1025]
LONG = [2047, 2048, 2049, 2300, 4097, 5000]
NAMES = ("sma", "bollinger", "cutler")


CLOSE = a.series("close")
GRAPHS: dict[str, Callable[[int], dict[str, Node]]] = {
    "sma": lambda period: {"sma": a.mean(CLOSE, period)},
    "cutler": lambda period: {"rsi": a.strength(CLOSE, period, "cutler")},
    "bollinger": lambda period: a.bands(CLOSE, period, 2.0),
}


def on_cpu(name: str, prices: Array, period: int) -> list[Array]:
    return list(program_cpu.run(plan(GRAPHS[name](period), prices.itemsize), {"close": prices}))


def on_device(name: str, prices: Array, period: int, device: Device) -> list[Array]:
    rows, time = prices.shape
    series = Series(device, device.to_device(prices.reshape(-1)), rows, time, prices.dtype)
    results = program_gpu.run(plan(GRAPHS[name](period), prices.itemsize), {"close": series})
    return [device.to_host(result).reshape(rows, time) for result in results]


def assert_same_bytes(got: list[Array], expected: list[Array]) -> None:
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        present = ~np.isnan(other)
        np.testing.assert_array_equal(np.signbit(one[present]), np.signbit(other[present]))


def prices_of(rows: int, time: int, dtype: str, seed: int) -> Array:
    """Prices with a gap, a spike, equal prices and a zero."""
    prices = walk(rows, time, seed=seed)
    prices[0, time // 3] = np.nan
    prices[0, time // 2 : time // 2 + 40] = 97.5
    prices[-1, time // 5] = 1e6
    prices[-1, time // 4] = 0
    return prices.astype(dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("period", PERIODS)
def test_processor_and_device_give_the_same_bytes(name: str, period: int, dtype: str, device: Device) -> None:
    prices = prices_of(3, 2 * period + 301, dtype, seed=period)
    assert_same_bytes(on_device(name, prices, period, device), on_cpu(name, prices, period))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("period", "dtype"), [*((period, "float64") for period in LONG), (2049, "float32")])
def test_windows_longer_than_shared_memory_give_the_same_bytes(
    name: str, period: int, dtype: str, device: Device
) -> None:
    prices = prices_of(2, 2 * period + 777, dtype, seed=period)
    assert_same_bytes(on_device(name, prices, period, device), on_cpu(name, prices, period))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("time", [1, 12, 13, 19, 20, 21, 40])
@pytest.mark.parametrize("period", [12, 20])
def test_rows_shorter_than_a_window_or_as_long_give_the_same_bytes(
    name: str, period: int, time: int, device: Device
) -> None:
    prices = walk(5, time, seed=time)
    outputs = on_cpu(name, prices, period)
    assert_same_bytes(on_device(name, prices, period, device), outputs)
    shown = max(0, time - period + (name != "cutler"))
    assert all((~np.isnan(out)).sum() == 5 * shown for out in outputs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("period", [3, 20, 300, 2100])
def test_what_lies_outside_a_window_leaves_no_trace_wherever_it_is(name: str, period: int) -> None:
    prices = walk(1, 3 * period + 50, seed=period)
    clean = on_cpu(name, prices, period)
    bars = np.arange(prices.size)
    reach = period + (name == "cutler")  # a change has two prices
    for at in {0, 1, period - 1, period, period + 1, 2 * period - 1, 2 * period, 2 * period + 17}:
        for value in (1e12, 1e300, -1e300, np.nan):
            spoiled = prices.copy()
            spoiled[0, at] = value
            outside = (bars < at) | (bars >= at + reach)
            for got, expected in zip(on_cpu(name, spoiled, period), clean, strict=True):
                assert got[0, outside].tobytes() == expected[0, outside].tobytes()
                if np.isnan(value):
                    assert np.isnan(got[0, ~outside]).all()


@pytest.mark.parametrize("period", [5, 12, 13, 20, 97, 250])
@pytest.mark.parametrize(
    ("kind", "worst"),
    [("walk", 24), ("trend", 8), ("far", 8), ("anchor", None)],
    ids=["walk", "trend", "far", "anchor"],
)
def test_deviations_are_as_exact_as_their_anchor_is_near(period: int, kind: str, worst: int | None) -> None:
    """In units of 2^-53. An anchor far off among prices near each other costs some four times the period."""
    time = 3 * period + 20
    prices = {
        "walk": walk(time, seed=1),
        "trend": 100 + np.arange(time) * 0.25,
        "far": 2.0**30 + np.random.default_rng(1).integers(-9, 9, time),
        "anchor": walk(time, seed=2),
    }[kind]
    if kind == "anchor":
        prices[period] = prices[2 * period] = 1e12
    mean, deviation = window_moments(prices.tolist(), period)
    bands = compute("bollinger", prices, period=period, width=1e6)
    got = (bands["upper"] - bands["lower"])[period - 1 :] / 2e6
    allowed = (worst or 4 * period) * 2.0**-53
    # Bands are rounded where they stand: a band of a million deviations shows them to 1e-6 of the price's last digit.
    rounding = 1e-6 * np.spacing(np.abs(bands["upper"][period - 1 :]))
    assert (np.abs(got - deviation[period - 1 :]) <= allowed * deviation[period - 1 :] + rounding).all()
    largest = np.lib.stride_tricks.sliding_window_view(np.abs(prices), period).max(axis=1)
    assert (np.abs(bands["middle"] - mean)[period - 1 :] <= 4e-16 * largest).all()


def test_sums_of_100_000_bars_lose_nothing() -> None:
    period = 100_000
    prices = walk(2 * period + 3, seed=9)
    bands = compute("bollinger", prices, period=period, width=1e6)
    for bar in (period - 1, period, 2 * period - 2, 2 * period - 1, 2 * period + 2):
        window = prices[bar - period + 1 : bar + 1]
        mean = fsum(window) / period
        deviation = (fsum((window - mean) ** 2) / period) ** 0.5
        assert bands["middle"][bar] == pytest.approx(mean, rel=4e-16)
        assert (bands["upper"][bar] - bands["lower"][bar]) / 2e6 == pytest.approx(deviation, rel=1e-14)


def test_kernels_and_loops_know_the_same_numbers() -> None:
    text = (Path(windows_gpu.__file__).parent / "windows.cu").read_text()
    defined = {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)\b", text, re.MULTILINE)}
    assert (defined["SHORT"], defined["EIGHT"], defined["GROUP"]) == (SHORT, EIGHT, GROUP)
    assert (defined["SLOTS"], defined["THREADS"]) == (windows_gpu._SLOTS, windows_gpu._MOST)
    assert defined["SHORT_THREADS"] == windows_gpu._MOST_SHORT
    assert EIGHT * defined["THREADS"] == STRETCH  # LONG_BARS
    most = windows_gpu._MOST
    groups = [most // eights * -(-eights // GROUP) for eights in range(GROUP + 1, most + 1)]
    assert defined["GROUPS"] >= max(groups)


@njit
def _through_lanes(x, y, count, out):  # type: ignore[no-untyped-def]
    a, b, to = lanes.load(lanes.pointer(x), 0), lanes.load(lanes.pointer(x), 8), lanes.pointer(out)
    limit = lanes.spread(y)
    lanes.store(to, 0, a + b)
    lanes.store(to, 8, a - b)
    lanes.store(to, 16, a * b)
    lanes.store(to, 24, a / b)
    lanes.store(to, 32, lanes.root(a * a))
    lanes.store(to, 40, lanes.keep(a, count))
    lanes.store(to, 48, lanes.after_1(a, b))
    lanes.store(to, 56, lanes.after_4(a, b))
    lanes.store(to, 64, lanes.before_1(a, b))
    lanes.store(to, 72, lanes.before_2(a, b))
    lanes.store(to, 80, lanes.where_below(a, limit, a, b))
    lanes.store(to, 88, lanes.where_at_least(a, limit, a, b))
    lanes.store(to, 96, lanes.where_equal(a, a, b, limit))
    return lanes.first(a), lanes.last(b)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_eight_lanes_do_what_numpy_does_with_eight_numbers(dtype: str) -> None:
    x = np.random.default_rng(3).normal(0, 2, 16).astype(dtype)
    x[2] = np.nan
    a, b, y, out = x[:8], x[8:], x.dtype.type(0.5), np.empty(104, dtype)
    ends = _through_lanes(x, y, 3, out)
    expected: tuple[Array, ...] = (
        *(a + b, a - b, a * b, a / b, np.sqrt(a * a), np.concatenate([a[:3], np.zeros(5, dtype)])),
        *(np.r_[b[7:], a[:7]], np.r_[b[4:], a[:4]], np.r_[a[1:], b[:1]], np.r_[a[2:], b[:2]]),
        *(np.where(a < y, a, b), np.where(a >= y, a, b), np.where(np.isnan(a), y, b)),
    )
    np.testing.assert_array_equal(out, np.concatenate(expected))
    assert ends == (a[0], b[7])


def test_the_assertion_on_bytes_can_fail() -> None:
    def one(value: float) -> list[Array]:
        return [np.array([[value, np.nan]])]

    assert_same_bytes(one(1.0), one(1.0))
    for other in (1.0 + 2**-52, np.nan, -1.0):
        with pytest.raises(AssertionError):
            assert_same_bytes(one(1.0), one(other))
    with pytest.raises(AssertionError):
        assert_same_bytes(one(0.0), one(-0.0))
