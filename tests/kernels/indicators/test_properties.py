"""What must hold for any prices, and what must not show in an answer: the future, neighbours, threads and chunks."""

from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from tests.kernels.indicators import reference
from tests.kernels.indicators.cases import TILE, walk
from tests.kernels.indicators.reference import compute
from warpdesk_server.kernels.indicators import algebra as a
from warpdesk_server.kernels.indicators.plan import Program, plan
from warpdesk_server.kernels.indicators.program_cpu import parts_of, run

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("sma", {"period": 9}),
    ("ema", {"period": 9}),
    ("ema", {"period": 9, "convention": "tradingview"}),
    ("rsi", {"period": 9}),
    ("rsi", {"period": 9, "convention": "cutler"}),
    ("rsi", {"period": 9, "convention": "ema"}),
    ("bollinger", {"period": 9}),
]
EDGES = [10, 31, 32, 33, 1023, 1024, 1025, TILE - 1, TILE, TILE + 1, 4096, 4097]

price_series = arrays(
    np.float64, st.integers(12, 90), elements=st.floats(1e-3, 1e6) | st.just(np.nan) | st.sampled_from([1.0, 2.0])
)


@settings(deadline=None, max_examples=40)
@given(price_series)
def test_bands_enclose_the_mean(prices: NDArray[Any]) -> None:
    bands = compute("bollinger", prices, period=5)
    shown = ~np.isnan(bands["middle"])
    assert (bands["lower"][shown] <= bands["middle"][shown]).all()
    assert (bands["middle"][shown] <= bands["upper"][shown]).all()
    for output in bands.values():
        assert (np.isnan(output) == ~shown).all()


@settings(deadline=None, max_examples=40)
@given(price_series)
def test_the_middle_band_is_the_sma_byte_for_byte(prices: NDArray[Any]) -> None:
    assert (
        compute("bollinger", prices, period=7)["middle"].tobytes() == compute("sma", prices, period=7)["sma"].tobytes()
    )


@settings(deadline=None, max_examples=40)
@given(price_series)
def test_a_mean_lies_between_the_lowest_and_the_highest_price(prices: NDArray[Any]) -> None:
    sma = compute("sma", prices, period=4)["sma"]
    for t in np.flatnonzero(~np.isnan(sma)):
        window = prices[t - 3 : t + 1]
        slack = 1e-15 * window.max()
        assert window.min() - slack <= sma[t] <= window.max() + slack


@settings(deadline=None, max_examples=40)
@given(price_series, st.sampled_from(["talib", "cutler", "ema"]))
def test_rsi_lies_between_0_and_100(prices: NDArray[Any], convention: str) -> None:
    rsi = compute("rsi", prices, period=3, convention=convention)["rsi"]
    shown = rsi[~np.isnan(rsi)]
    assert (shown >= 0).all()
    assert (shown <= 100).all()


@settings(deadline=None, max_examples=15)
@given(price_series, st.integers(-30, 30))
def test_a_power_of_two_as_unit_changes_no_digit(prices: NDArray[Any], exponent: int) -> None:
    unit = 2.0**exponent
    for name, params in CALLS:
        before, after = compute(name, prices, **params), compute(name, prices * unit, **params)
        for output, values in before.items():
            np.testing.assert_array_equal(after[output], values if name == "rsi" else values * unit)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["ema", "rsi"])
def test_the_parts_a_long_series_is_cut_into_do_not_show(name: str, dtype: type[np.floating]) -> None:
    """One series is cut into several parts, each of which begins some tiles early; many series are not cut."""
    prices = walk(60 * TILE + 5).astype(dtype)
    prices[:: 7 * TILE + 3] = np.nan
    prices[16 * TILE :] = prices[16 * TILE]  # the last RSI is held for longer than a part begins early
    prices[45 * TILE - 3] = np.nan
    alone = compute(name, prices, period=2)[name]
    rows = 4 * numba.get_num_threads()
    among = compute(name, np.tile(prices, (rows, 1)), period=2)[name]
    node = a.ema(a.series("close"), 2) if name == "ema" else a.strength(a.series("close"), 2)
    program = plan({name: node}, prices.itemsize)
    assert parts_of(program, 1, prices.size) > 1 == parts_of(program, rows, prices.size)
    assert all(row.tobytes() == alone.tobytes() for row in among)


@pytest.mark.parametrize(("name", "params"), CALLS)
@pytest.mark.parametrize("size", EDGES)
def test_an_answer_does_not_know_the_future(name: str, params: dict[str, Any], size: int) -> None:
    prices = walk(4300, seed=21, gaps=0.001)
    whole, part = compute(name, prices, **params), compute(name, prices[:size], **params)
    for output in whole:
        assert part[output].tobytes() == whole[output][:size].tobytes()


@pytest.mark.parametrize(("name", "params"), CALLS)
def test_assets_side_by_side_do_not_see_each_other(name: str, params: dict[str, Any]) -> None:
    prices = walk(5, 2500, seed=22, gaps=0.001)
    together = compute(name, prices, **params)
    for row, series in enumerate(prices):
        for output, values in compute(name, series, **params).items():
            assert together[output][row].tobytes() == values.tobytes()


@pytest.mark.parametrize(("name", "params"), CALLS)
def test_the_number_of_threads_does_not_show(name: str, params: dict[str, Any]) -> None:
    prices = walk(3, 9000, seed=23, gaps=0.0005)
    threads = numba.get_num_threads()
    many = compute(name, prices, **params)
    numba.set_num_threads(1)
    try:
        one = compute(name, prices, **params)
    finally:
        numba.set_num_threads(threads)
    for output in many:
        assert one[output].tobytes() == many[output].tobytes()


@pytest.mark.parametrize("period", [1, 2, 20, 31, 32, 33, 1023, 1024, 1025])
def test_chunks_do_not_show(period: int, monkeypatch: pytest.MonkeyPatch) -> None:
    close = {"close": walk(2, 4 * TILE + 400, seed=24, gaps=0.0003)}
    usual = run(plan(a.bands(a.series("close"), period, 2.0), 8), close)
    monkeypatch.setattr(Program, "chunk", 3 * TILE)
    other = run(plan(a.bands(a.series("close"), period, 2.0), 8), close)
    assert other.tobytes() == usual.tobytes()


@pytest.mark.parametrize("size", EDGES)
def test_series_of_every_awkward_length_match_one_loop(size: int) -> None:
    prices = walk(size, seed=25)
    np.testing.assert_allclose(compute("ema", prices, period=9)["ema"], reference.ema(prices.tolist(), 9), rtol=1e-13)
    np.testing.assert_allclose(compute("rsi", prices, period=9)["rsi"], reference.rsi(prices.tolist(), 9), rtol=1e-12)
    mean = np.convolve(prices, np.ones(9) / 9, "valid")
    np.testing.assert_allclose(compute("sma", prices, period=9)["sma"][8:], mean, rtol=1e-13)


@pytest.mark.parametrize(("name", "params"), CALLS)
@pytest.mark.parametrize("shape", [(0,), (0, 50), (3, 0), (1,), (8,), (2, 1)])
def test_a_series_too_short_has_no_numbers(name: str, params: dict[str, Any], shape: tuple[int, ...]) -> None:
    for output in compute(name, np.ones(shape), **params).values():
        assert output.shape == shape
        assert np.isnan(output).all() or params.get("convention") == "tradingview"


def test_a_read_only_map_of_a_file_is_computed_like_memory(tmp_path: Any) -> None:
    prices = walk(2, 500)
    np.save(tmp_path / "prices.npy", prices)
    mapped = np.load(tmp_path / "prices.npy", mmap_mode="r")
    for name, params in CALLS:
        for output, values in compute(name, prices, **params).items():
            assert compute(name, mapped, **params)[output].tobytes() == values.tobytes()
