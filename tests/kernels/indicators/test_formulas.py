"""Declared indicators that no library here has, beside their published formulas in NumPy, window by window."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tests.kernels.indicators.test_declared import compute, real_bars
from warpdesk_server.kernels.catalogue import OPERATIONS

Array = NDArray[Any]
N = 10
BARS = real_bars()
OPEN, HIGH, LOW, CLOSE = (BARS[name] for name in ("open", "high", "low", "close"))


def last(x: Array, statistic: Callable[..., Array], bars: int = N, **options: Any) -> Array:
    """A statistic of the last bars at each bar, NaN before the first window."""
    return np.concatenate([np.full(bars - 1, np.nan), statistic(sliding_window_view(x, bars), axis=1, **options)])


def before(x: Array, bars: int = 1) -> Array:
    return np.concatenate([np.full(bars, np.nan), x[:-bars]])


def without_drift() -> Array:
    ln = np.log
    return ln(HIGH / CLOSE) * ln(HIGH / OPEN) + ln(LOW / CLOSE) * ln(LOW / OPEN)


def yang_zhang() -> Array:
    k = 0.34 / (1.34 + (N + 1) / (N - 1))
    overnight, within = np.log(OPEN / before(CLOSE)), np.log(CLOSE / OPEN)
    parts = last(overnight, np.var, ddof=1), last(within, np.var, ddof=1), last(without_drift(), np.mean)
    return np.sqrt(252 * (parts[0] + k * parts[1] + (1 - k) * parts[2]))


def middle(bars: int) -> Array:
    return (last(HIGH, np.max, bars) + last(LOW, np.min, bars)) / 2


def breakout() -> Array:
    top, bottom = before(last(HIGH, np.max)), before(last(LOW, np.min))
    return np.where(np.isnan(top), np.nan, np.where(top < CLOSE, 1.0, np.where(bottom > CLOSE, -1.0, 0.0)))


def crossover() -> Array:
    apart = last(CLOSE, np.mean, 3) - last(CLOSE, np.mean, 8)
    up = (apart > 0) & (before(apart) <= 0)
    return np.where(np.isnan(before(apart)), np.nan, up.astype(float))


def zscore() -> Array:
    return (CLOSE - last(CLOSE, np.mean)) / last(CLOSE, np.std, ddof=1)


CASES: list[tuple[str, str, dict[str, Any], Callable[[], Array]]] = [
    (
        "close_to_close",
        "close_to_close",
        {"period": N},
        lambda: np.sqrt(252) * last(np.log(CLOSE / before(CLOSE)), np.std, ddof=1),
    ),
    (
        "parkinson",
        "parkinson",
        {"period": N},
        lambda: np.sqrt(252 * last(np.log(HIGH / LOW) ** 2, np.mean) / (4 * np.log(2))),
    ),
    (
        "garman_klass",
        "garman_klass",
        {"period": N, "periods_per_year": 1.0},
        lambda: np.sqrt(last(0.5 * np.log(HIGH / LOW) ** 2 - (2 * np.log(2) - 1) * np.log(CLOSE / OPEN) ** 2, np.mean)),
    ),
    ("rogers_satchell", "rogers_satchell", {"period": N}, lambda: np.sqrt(252 * last(without_drift(), np.mean))),
    ("yang_zhang", "yang_zhang", {"period": N}, yang_zhang),
    ("ichimoku", "conversion", {}, lambda: middle(9)),
    ("ichimoku", "span_b", {"span_period": 52}, lambda: middle(52)),
    ("ichimoku", "span_a", {"conversion_period": 9, "base_period": 26}, lambda: (middle(9) + middle(26)) / 2),
    ("breakout", "breakout", {"period": N}, breakout),
    ("crossover", "up", {"fast": 3, "slow": 8}, crossover),
    ("rolling", "rolling", {"period": N, "statistic": "zscore", "ddof": 1}, zscore),
    ("roc", "roc", {"period": N, "form": "log"}, lambda: np.log(CLOSE / before(CLOSE, N))),
    ("rolling", "rolling", {"period": N, "statistic": "mean"}, lambda: last(CLOSE, np.mean)),
    ("rolling", "rolling", {"period": N, "statistic": "var", "ddof": 1}, lambda: last(CLOSE, np.var, ddof=1)),
]


@pytest.mark.parametrize(("name", "output", "params", "formula"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES])
def test_it_is_its_published_formula(name: str, output: str, params: dict[str, Any], formula: Any) -> None:
    params = {"conversion_period": 9, "base_period": 26, "span_period": 52} | params if name == "ichimoku" else params
    own, expected = compute(OPERATIONS[name], BARS, **params)[output], formula()
    np.testing.assert_allclose(own, expected, rtol=1e-10, atol=1e-13, equal_nan=True)


def test_a_covariance_is_that_of_numpy_also_far_from_zero() -> None:
    far = {"close": 1e9 + CLOSE, "benchmark": 1e6 + HIGH}
    for ddof in (0, 1):
        own = compute(OPERATIONS["rolling_pair"], far, period=N, statistic="covariance", ddof=ddof)["rolling_pair"]
        windows = zip(sliding_window_view(far["close"], N), sliding_window_view(far["benchmark"], N), strict=True)
        expected = [np.cov(x - x[0], y - y[0], ddof=ddof)[0, 1] for x, y in windows]
        np.testing.assert_allclose(own[N - 1 :], expected, rtol=1e-9)


def test_a_keltner_channel_of_tradingview_is_an_ema_of_closes_and_average_true_ranges() -> None:
    own = compute(OPERATIONS["keltner"], BARS, period=20, range_period=10, width=1.5, convention="tradingview")
    atr = compute(OPERATIONS["atr"], BARS, period=10)["atr"]
    ema = OPERATIONS["ema"].implementation("cpu")(OPERATIONS["ema"].params(period=20), CLOSE)["ema"]
    np.testing.assert_allclose(own["upper"], ema + 1.5 * atr, rtol=1e-14)
    np.testing.assert_allclose(own["lower"], ema - 1.5 * atr, rtol=1e-14)


@pytest.mark.parametrize(
    "values",
    [
        (90.0, 0.0, 0.02, 0.02, 0.2, 0.02, 0.02, 0.2),
        (-100.0, 0.05, 0.3, 0.01, 0.2, 0.05, 0.4, 0.3),
        (0.0, 0.01, 0.0, 0.03, 0.1, 0.04, 0.0, 0.04),
    ],
)
def test_a_parabolic_stop_with_paces_of_its_own_is_talibs(values: tuple[float, ...]) -> None:
    talib = pytest.importorskip("talib", reason="TA-Lib is not installed")
    names = ("start", "apart", "first_up", "step_up", "maximum_up", "first_down", "step_down", "maximum_down")
    params = dict(zip(names, values, strict=True))
    own = compute(OPERATIONS["parabolic_sar_extended"], BARS, **params)["parabolic_sar_extended"]
    np.testing.assert_allclose(own, talib.SAREXT(HIGH, LOW, *values), rtol=1e-12)
    assert (own < 0).any()
    assert (own > 0).any()


def wilder(x: Array, bars: int) -> Array:
    """TradingView's ta.rma: the mean of the first bars, then alpha = 1 / bars."""
    first = int(np.argmin(np.isnan(x)))
    y, found = x[first : first + bars].mean(), np.full(x.size, np.nan)
    for t in range(first + bars - 1, x.size):
        found[t] = y = y if t == first + bars - 1 else (x[t] + (bars - 1) * y) / bars
    return found


def test_an_adx_of_tradingview_is_its_published_script() -> None:
    up, down = HIGH - before(HIGH), before(LOW) - LOW
    tr = np.maximum(HIGH - LOW, np.maximum(np.abs(HIGH - before(CLOSE)), np.abs(LOW - before(CLOSE))))
    plus = wilder(np.where(np.isnan(up), np.nan, np.where((up > down) & (up > 0), up, 0)), N)
    minus = wilder(np.where(np.isnan(up), np.nan, np.where((down > up) & (down > 0), down, 0)), N)
    plus, minus = 100 * plus / wilder(tr, N), 100 * minus / wilder(tr, N)
    own = compute(OPERATIONS["adx"], BARS, period=N, convention="tradingview")
    np.testing.assert_allclose(own["plus_di"], plus, rtol=1e-12)
    np.testing.assert_allclose(own["adx"], 100 * wilder(np.abs(plus - minus) / (plus + minus), N), rtol=1e-12)


def test_a_macd_of_tradingview_has_averages_from_the_first_price() -> None:
    def ema(x: Array, bars: int) -> Array:
        found = x.copy()
        for t in range(1, x.size):
            found[t] = found[t - 1] + 2 / (bars + 1) * (x[t] - found[t - 1])
        return found

    own = compute(OPERATIONS["macd"], BARS, fast=12, slow=26, signal=9, convention="tradingview")
    line = ema(CLOSE, 12) - ema(CLOSE, 26)
    np.testing.assert_allclose(own["macd"], line, atol=1e-12)
    np.testing.assert_allclose(own["signal"], ema(line, 9), atol=1e-12)
    np.testing.assert_allclose(own["histogram"], line - ema(line, 9), atol=1e-12)


def test_a_true_range_of_tradingview_begins_with_the_first_bar() -> None:
    own = compute(OPERATIONS["true_range"], BARS, convention="tradingview")["true_range"]
    assert own[0] == HIGH[0] - LOW[0]
    atr = compute(OPERATIONS["atr"], BARS, period=14, convention="tradingview")["atr"]
    assert np.isnan(atr[:13]).all()
    assert atr[13] == pytest.approx(own[:14].mean())
