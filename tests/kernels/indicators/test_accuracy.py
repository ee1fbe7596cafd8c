"""What happened long ago leaves no trace it should not leave, and none that should be there is cut off."""

import numpy as np
import pytest

from tests.kernels.indicators import reference
from tests.kernels.indicators.cases import TILE, walk
from tests.kernels.indicators.reference import compute, in_sixty_digits, window_moments
from tests.kernels.indicators.test_published import RSI_CLOSES

SPIKE = 1e12


@pytest.mark.parametrize("at", [0, 1, 500, 1023, 1024, 2047, 2048, 4095, 4096])
@pytest.mark.parametrize("period", [20, 41, 300])
def test_windows_without_the_spike_are_those_of_a_series_that_never_had_it(at: int, period: int) -> None:
    prices = walk(4800, seed=2)
    spiked = prices.copy()
    spiked[at] = SPIKE
    outside = (np.arange(4800) < at) | (np.arange(4800) >= at + period)
    for name in ("sma", "bollinger"):
        clean, after = compute(name, prices, period=period), compute(name, spiked, period=period)
        for output in clean:
            np.testing.assert_array_equal(after[output][outside], clean[output][outside])


@pytest.mark.parametrize("period", [2, 20, 23, 200])
def test_bands_of_prices_far_from_zero_are_exact(period: int) -> None:
    prices = 1e9 + np.random.default_rng(4).normal(0, 1e-3, 900)
    mean, deviation = window_moments(prices.tolist(), period)
    # Numbers near 1e9 come in steps of 1.2e-7; bands a million deviations wide show the deviation to 1e-10 even so.
    bands = compute("bollinger", prices, period=period, width=1e6)
    np.testing.assert_allclose(bands["middle"], mean, rtol=2.3e-16)
    np.testing.assert_allclose((bands["upper"] - bands["lower"]) / 2e6, deviation, rtol=1e-9)


@pytest.mark.parametrize("period", [3, 20, 97])
def test_windows_of_mixed_magnitudes_match_exact_fractions(period: int) -> None:
    random = np.random.default_rng(11)
    prices = random.normal(0, 1, 400) * 10.0 ** random.integers(-6, 7, 400)
    mean, deviation = window_moments(prices.tolist(), period)
    bands = compute("bollinger", prices, period=period, width=1.0)
    largest = np.array([np.abs(prices[max(0, t - period + 1) : t + 1]).max() for t in range(400)])[period - 1 :]
    assert (np.abs(bands["middle"] - mean)[period - 1 :] <= 1e-15 * largest * period).all()
    assert (np.abs((bands["upper"] - bands["lower"]) / 2 - deviation)[period - 1 :] <= 1e-14 * largest).all()


@pytest.mark.parametrize("price", [0.1, 97.3, 1e9 + 0.123, 1e-16, 1e12 / 3])
@pytest.mark.parametrize("period", [2, 20, 23, 99, 1500])
def test_equal_prices_have_no_deviation_and_are_their_own_mean(price: float, period: int) -> None:
    prices = np.full(1600, price)
    bands = compute("bollinger", prices, period=period)
    for output in bands.values():
        assert (output[period - 1 :] == price).all()
    assert (compute("sma", prices, period=period)["sma"][period - 1 :] == price).all()
    assert (compute("ema", prices, period=period)["ema"][period - 1 :] == price).all()


@pytest.mark.parametrize("at", [0, 700, TILE - 1, TILE, TILE + 40])
def test_a_spike_41_periods_back_is_still_there_in_the_recursions(at: int) -> None:
    period = 14
    prices = walk(at + 60 * period, seed=6)
    prices[at] = SPIKE
    rsi = in_sixty_digits(reference.rsi, prices.tolist(), period)
    got = compute("rsi", prices, period=period)["rsi"]
    np.testing.assert_allclose(got, rsi, rtol=1e-12)
    without = np.concatenate([prices[:at], prices[at + 2 :]])
    there = at + 41 * period
    assert abs(got[there] - compute("rsi", without, period=period)["rsi"][there - 2]) > 1e-6
    ema = in_sixty_digits(reference.ema, prices.tolist(), 20)
    np.testing.assert_allclose(compute("ema", prices, period=20)["ema"], ema, rtol=1e-13)


@pytest.mark.parametrize("bars", [700, 20_000])
@pytest.mark.parametrize("period", [2, 14])
@pytest.mark.parametrize("start", [0, 2000, 2030])
def test_bars_without_a_change_do_not_move_an_rsi(bars: int, period: int, start: int) -> None:
    prices = np.concatenate([walk(start, seed=7) * 0.4, RSI_CLOSES, np.full(bars, RSI_CLOSES[-1])])
    rsi = compute("rsi", prices, period=period)["rsi"]
    last = rsi[start + len(RSI_CLOSES) - 1]
    assert abs(last - 50) > 5
    np.testing.assert_allclose(rsi[start + len(RSI_CLOSES) :], last, rtol=1e-12)


def test_an_rsi_moves_again_after_20_000_bars_without_a_change() -> None:
    prices = np.concatenate([RSI_CLOSES, np.full(20_000, RSI_CLOSES[-1]), RSI_CLOSES])
    expected = in_sixty_digits(reference.rsi, prices.tolist(), 14)
    np.testing.assert_allclose(compute("rsi", prices, period=14)["rsi"], expected, rtol=1e-12)


@pytest.mark.parametrize("bars", [700, 20_000])
def test_an_ema_comes_to_rest_at_the_price_that_stays(bars: int) -> None:
    prices = np.concatenate([walk(3000, seed=7), np.full(bars, 42.0)])
    ema = compute("ema", prices, period=14)["ema"]
    np.testing.assert_allclose(ema, reference.ema(prices.tolist(), 14), rtol=1e-12)
    assert ema[-1] == 42.0


@pytest.mark.parametrize("period", [14, 250, 3000])
def test_recursions_match_one_loop_over_many_tiles(period: int) -> None:
    prices = walk(5 * TILE + 17, seed=12)
    np.testing.assert_allclose(
        compute("ema", prices, period=period)["ema"], reference.ema(prices.tolist(), period), rtol=1e-12
    )
    np.testing.assert_allclose(
        compute("rsi", prices, period=period)["rsi"], reference.rsi(prices.tolist(), period), rtol=1e-12
    )


@pytest.mark.parametrize("scale", [1e-16, 1e-5, 1e12])
@pytest.mark.parametrize("convention", ["talib", "cutler", "ema"])
def test_rsi_does_not_depend_on_the_unit_of_the_prices(scale: float, convention: str) -> None:
    prices = walk(2300, seed=13)
    rsi = compute("rsi", prices, period=14, convention=convention)["rsi"]
    scaled = compute("rsi", prices * scale, period=14, convention=convention)["rsi"]
    # Scaling rounds prices to 1e-16 of themselves, which is 1e-13 of a change of 0.1 %.
    np.testing.assert_allclose(scaled, rsi, rtol=1e-9)


def test_float32_prices_are_computed_and_answered_in_float32() -> None:
    prices = walk(2200, seed=14)
    for name in ("sma", "ema", "rsi", "bollinger"):
        narrow, wide = compute(name, prices.astype("float32"), period=20), compute(name, prices, period=20)
        for output in wide:
            assert narrow[output].dtype == np.float32
            np.testing.assert_allclose(narrow[output], wide[output], rtol=2e-3 if name == "rsi" else 1e-5)


@pytest.mark.parametrize(
    ("dtype", "scales", "nothing", "too_much"),
    [("float64", (1e-140, 1e-3, 1e140), 1e-170, 1e157), ("float32", (1e-13, 1e-3, 1e14), 1e-26, 1e20)],
)
def test_bands_follow_the_unit_of_the_prices_until_squares_leave_the_range(
    dtype: str, scales: tuple[float, ...], nothing: float, too_much: float
) -> None:
    prices = np.random.default_rng(17).integers(90, 110, 60).astype("float64")

    def widths(scale: float) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
        with np.errstate(over="ignore"):
            bands = compute("bollinger", (prices * scale).astype(dtype), period=20)
        return (bands["upper"].astype("float64") - bands["lower"])[19:] / scale

    for scale in scales:
        np.testing.assert_allclose(widths(scale), widths(1.0), rtol=1e-11 if dtype == "float64" else 1e-4)
    assert (widths(nothing) == 0).all()
    assert np.isinf(widths(too_much)).all()


@pytest.mark.parametrize("convention", ["talib", "cutler", "ema"])
@pytest.mark.parametrize(("dtype", "most"), [("float64", 1e308), ("float32", 3e38)])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_rsi_of_changes_that_overflow_is_no_number_and_never_0(
    convention: str, dtype: str, most: float, sign: int
) -> None:
    prices = walk(9 * TILE, dtype=dtype, seed=18)
    prices[700:702] = sign * most, -sign * most
    rsi = compute("rsi", prices, period=5, convention=convention)["rsi"]
    forgotten = 706 if convention == "cutler" else 5 * TILE  # what a period of 5 looks back to at most
    assert np.isnan(rsi[701 : min(forgotten, TILE)]).all()
    without = compute("rsi", prices[forgotten:], period=5, convention=convention)["rsi"][200:]
    np.testing.assert_allclose(rsi[forgotten + 200 :], without, rtol=1e-9 if dtype == "float64" else 1e-3)


def test_differences_that_overflow_leave_no_trace_in_later_windows() -> None:
    clean = walk(300, seed=19)
    prices = clean.copy()
    prices[100:102] = 1e308, -1e308
    sma = compute("sma", prices, period=5)["sma"]
    assert not np.isfinite(sma[101])
    np.testing.assert_array_equal(sma[106:], compute("sma", clean, period=5)["sma"][106:])


@pytest.mark.parametrize("convention", ["talib", "tradingview"])
def test_an_ema_of_one_bar_is_the_price_whatever_overflowed_before(convention: str) -> None:
    prices = walk(300, seed=20)
    prices[100:102] = 1e308, -1e308
    ema = compute("ema", prices, period=1, convention=convention)["ema"]
    np.testing.assert_array_equal(ema, prices)


def test_a_memory_through_several_groups_of_tiles_is_that_of_one_loop() -> None:
    prices = walk(130 * TILE + 5, seed=21)
    np.testing.assert_allclose(
        compute("ema", prices, period=60_000)["ema"], reference.ema(prices.tolist(), 60_000), rtol=1e-11
    )
    np.testing.assert_allclose(
        compute("rsi", prices, period=60_000)["rsi"], reference.rsi(prices.tolist(), 60_000), rtol=1e-10
    )
