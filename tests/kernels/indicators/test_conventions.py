"""One name, several formulas: each convention gives the number its users know, and says so."""

import numpy as np
import pytest

from tests.kernels.indicators import reference
from tests.kernels.indicators.cases import walk
from tests.kernels.indicators.reference import compute
from tests.kernels.indicators.test_published import RSI_CLOSES


# The last of the 33 closes of StockCharts' worksheet: TA-Lib and Tulip; vectorbt's default; exponential averages of
# alpha = 2 / 15 that begin with the first change, a definition without a published value.
@pytest.mark.parametrize(
    ("convention", "last"), [("talib", 37.773), ("tradingview", 37.773), ("cutler", 30.179), ("ema", 31.279)]
)
def test_rsi_of_the_same_closes_depends_on_the_convention(convention: str, last: float) -> None:
    rsi = compute("rsi", RSI_CLOSES, period=14, convention=convention)["rsi"]
    assert np.flatnonzero(~np.isnan(rsi))[0] == 14
    assert rsi[-1] == pytest.approx(last, abs=5e-4)


@pytest.mark.parametrize("convention", ["talib", "tradingview", "cutler", "ema"])
@pytest.mark.parametrize("period", [2, 14, 33])
def test_rsi_is_its_definition_bar_by_bar(convention: str, period: int) -> None:
    prices = walk(700, seed=8, gaps=0.004)
    expected = reference.rsi(prices.tolist(), period, convention)
    np.testing.assert_allclose(
        compute("rsi", prices, period=period, convention=convention)["rsi"], expected, rtol=1e-12
    )


@pytest.mark.parametrize("convention", ["talib", "tradingview"])
@pytest.mark.parametrize("period", [1, 2, 20])
def test_ema_is_its_definition_bar_by_bar(convention: str, period: int) -> None:
    prices = walk(700, seed=9, gaps=0.004)
    expected = reference.ema(prices.tolist(), period, convention)
    np.testing.assert_allclose(
        compute("ema", prices, period=period, convention=convention)["ema"], expected, rtol=1e-13
    )


def test_ema_of_talib_starts_from_the_sma() -> None:
    prices = walk(60)
    ema, sma = compute("ema", prices, period=20)["ema"], compute("sma", prices, period=20)["sma"]
    assert ema[19] == pytest.approx(sma[19], rel=1e-15)
    assert np.isnan(ema[:19]).all()


def test_ema_of_tradingview_starts_at_the_first_price() -> None:
    prices = walk(60)
    assert compute("ema", prices, period=20, convention="tradingview")["ema"][0] == prices[0]


@pytest.mark.parametrize("convention", ["talib", "tradingview", "cutler", "ema"])
@pytest.mark.parametrize(("flat", "value"), [(50, 50.0), (0, 0.0), (100, 100.0), ("nan", np.nan)])
def test_rsi_of_prices_that_never_moved_is_what_flat_says(convention: str, flat: object, value: float) -> None:
    rsi = compute("rsi", np.full(2100, 97.5), period=14, convention=convention, flat=flat)["rsi"]
    np.testing.assert_array_equal(rsi, np.where(np.arange(2100) < 14, np.nan, value))


@pytest.mark.parametrize("convention", ["talib", "cutler", "ema"])
def test_rsi_of_a_rising_series_is_100_and_of_a_falling_one_0(convention: str) -> None:
    rising = np.linspace(1.0, 2.0, 3000)
    assert (compute("rsi", rising, period=14, convention=convention)["rsi"][14:] == 100).all()
    assert (compute("rsi", rising[::-1].copy(), period=14, convention=convention)["rsi"][14:] == 0).all()


def test_one_bar_is_its_own_average_and_its_bands_meet() -> None:
    prices = walk(50)
    assert (compute("sma", prices, period=1)["sma"] == prices).all()
    assert (compute("ema", prices, period=1)["ema"] == prices).all()
    bands = compute("bollinger", prices, period=1)
    assert (bands["upper"] == prices).all()
    assert (bands["lower"] == prices).all()
