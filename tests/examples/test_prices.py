"""The shipped prices are the market's: checked against closes anyone can look up, and for order and gaps."""

import numpy as np
import pytest

from examples.prices import sp500, stocks


# Official S&P 500 closes on days people remember.
@pytest.mark.parametrize(
    ("day", "close"),
    [
        ("1999-01-04", 1228.10),
        ("2000-03-24", 1527.46),  # peak of the dot-com years
        ("2002-10-09", 776.76),  # their trough
        ("2007-10-09", 1565.15),  # peak before the financial crisis
        ("2008-09-29", 1106.42),  # -8.79 % in a day
        ("2009-03-09", 676.53),  # trough
        ("2018-12-31", 2506.85),
    ],
)
def test_index_closes_are_the_published_ones(day, close):
    index = sp500()

    (at,) = np.flatnonzero(index.dates == np.datetime64(day))

    assert round(float(index.close[at]), 2) == close


def test_index_bars_enclose_open_and_close():
    index = sp500()

    assert np.all(index.low <= np.minimum(index.open, index.close))
    assert np.all(index.high >= np.maximum(index.open, index.close))
    assert np.all(index.volume > 0)


def test_index_has_one_bar_for_each_trading_day_in_order():
    index = sp500()

    lengths = {len(series) for series in (index.dates, index.open, index.high, index.low, index.close, index.volume)}

    assert lengths == {5031}
    assert np.all(np.diff(index.dates) > np.timedelta64(0, "D"))
    assert np.diff(index.dates).max() == np.timedelta64(7, "D")  # 11 September 2001


def test_stocks_are_assets_by_time_and_positive():
    dates, symbols, closes = stocks()

    assert closes.shape == (len(symbols), len(dates)) == (20, 8313)
    assert closes.flags.c_contiguous
    assert closes.dtype == np.float64
    assert symbols[0] == "AAPL"
    assert symbols[-1] == "XOM"
    assert np.all(closes > 0)
    assert np.all(np.isfinite(closes))
    assert np.all(np.diff(dates) > np.timedelta64(0, "D"))


def test_stocks_rose_with_the_index_on_its_best_day():
    # 13 October 2008: S&P 500 +11.58 %, its largest daily gain since 1933.
    dates, _, closes = stocks()
    index = sp500()

    (at,) = np.flatnonzero(dates == np.datetime64("2008-10-13"))
    (index_at,) = np.flatnonzero(index.dates == np.datetime64("2008-10-13"))

    assert round(100 * float(index.close[index_at] / index.close[index_at - 1] - 1), 2) == 11.58
    assert np.median(closes[:, at] / closes[:, at - 1] - 1) > 0.08
