"""Bars without a price: what each policy makes of them, and that none of them poisons what follows."""

import numpy as np
import pytest

from tests.kernels.indicators import reference
from tests.kernels.indicators.cases import TILE, walk
from tests.kernels.indicators.reference import compute, window_moments
from warpdesk_server.kernels.problems import InvalidRequest

NAN = np.nan
GAP = np.array([1, 2, 3, 4, 5, 6, NAN, 8, 9, 10, 11, 12])
ALL = ["sma", "ema", "rsi", "bollinger"]


def test_a_window_has_no_number_only_while_it_holds_the_gap() -> None:
    np.testing.assert_array_equal(
        compute("sma", GAP, period=3)["sma"], [NAN, NAN, 2, 3, 4, 5, NAN, NAN, NAN, 9, 10, 11]
    )


def test_an_rsi_starts_afresh_after_a_gap_instead_of_reading_0() -> None:
    np.testing.assert_array_equal(
        compute("rsi", GAP, period=3)["rsi"], [NAN, NAN, NAN, 100, 100, 100, NAN, NAN, NAN, NAN, 100, 100]
    )


def test_an_ema_starts_afresh_after_a_gap() -> None:
    np.testing.assert_array_equal(
        compute("ema", GAP, period=3)["ema"], [NAN, NAN, 2, 3, 4, 5, NAN, NAN, NAN, 9, 10, 11]
    )


def test_skip_passes_over_the_gap() -> None:
    np.testing.assert_allclose(
        compute("sma", GAP, period=3, nan_policy="skip")["sma"],
        [NAN, NAN, 2, 3, 4, 5, NAN, 19 / 3, 23 / 3, 9, 10, 11],
        rtol=1e-15,
    )


def test_ffill_lets_the_last_price_stand() -> None:
    np.testing.assert_allclose(
        compute("sma", GAP, period=3, nan_policy="ffill")["sma"],
        [NAN, NAN, 2, 3, 4, 5, 17 / 3, 20 / 3, 23 / 3, 9, 10, 11],
        rtol=1e-15,
    )


@pytest.mark.parametrize("name", ALL)
def test_error_refuses_gaps_and_nothing_else(name: str) -> None:
    with pytest.raises(InvalidRequest, match="1 NaN"):
        compute(name, GAP, period=3, nan_policy="error")
    compute(name, GAP[:6], period=3, nan_policy="error")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("policy", ["window", "skip"])
def test_gaps_at_the_start_only_shift_it(name: str, policy: str) -> None:
    prices = walk(3000, seed=3)
    late = np.concatenate([np.full(37, NAN), prices])
    for output, values in compute(name, prices, period=14).items():
        shifted = compute(name, late, period=14, nan_policy=policy)[output]
        assert np.isnan(shifted[:37]).all()
        np.testing.assert_allclose(shifted[37:], values, rtol=1e-12)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("share", [0.001, 0.05, 0.6])
def test_skip_is_the_indicator_of_the_bars_that_have_a_price(name: str, share: float) -> None:
    prices = walk(3, 2 * TILE + 100, seed=4, gaps=share)
    got = compute(name, prices, period=9, nan_policy="skip")
    for row, series in enumerate(prices):
        present = ~np.isnan(series)
        for output, values in compute(name, series[present], period=9).items():
            np.testing.assert_array_equal(got[output][row, present], values)
            assert np.isnan(got[output][row, ~present]).all()


@pytest.mark.parametrize("name", ALL)
def test_ffill_is_the_indicator_of_the_filled_series(name: str) -> None:
    prices = walk(2500, seed=5, gaps=0.2)
    prices[:3] = NAN
    filled = prices.copy()
    for t in range(1, 2500):
        if np.isnan(filled[t]):
            filled[t] = filled[t - 1]
    expected = compute(name, filled, period=9)
    for output, values in compute(name, prices, period=9, nan_policy="ffill").items():
        np.testing.assert_array_equal(values, expected[output])


@pytest.mark.parametrize("share", [0.0005, 0.02, 0.3])
@pytest.mark.parametrize("period", [2, 14, 700])
def test_recursions_with_gaps_match_one_loop(share: float, period: int) -> None:
    prices = walk(3 * TILE + 5, seed=6, gaps=share)
    prices[TILE - 1] = prices[2 * TILE] = NAN
    np.testing.assert_allclose(
        compute("rsi", prices, period=period)["rsi"], reference.rsi(prices.tolist(), period), rtol=1e-12
    )
    for convention in ("talib", "tradingview"):
        np.testing.assert_allclose(
            compute("ema", prices, period=period, convention=convention)["ema"],
            reference.ema(prices.tolist(), period, convention),
            rtol=1e-12,
        )


def test_bands_with_gaps_match_exact_fractions() -> None:
    prices = walk(500, seed=7, gaps=0.03)
    mean, deviation = window_moments(prices.tolist(), 11)
    bands = compute("bollinger", prices, period=11, width=3.0)
    np.testing.assert_allclose(bands["middle"], mean, rtol=1e-15)
    np.testing.assert_allclose(bands["upper"], mean + 3 * deviation, rtol=1e-14)
    np.testing.assert_allclose(bands["lower"], mean - 3 * deviation, rtol=1e-14)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("policy", ["window", "skip", "ffill"])
def test_a_series_without_any_price_has_no_numbers(name: str, policy: str) -> None:
    for output in compute(name, np.full((2, 2100), NAN), period=5, nan_policy=policy).values():
        assert np.isnan(output).all()
