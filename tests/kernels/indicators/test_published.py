"""Answers that others printed: StockCharts, Achelis' book, TA-Lib's own regression tests, and TA-Lib itself."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.indicators.cases import walk
from tests.kernels.indicators.reference import compute

ROOT = Path(__file__).resolve().parents[3]

# StockCharts ChartSchool, worked spreadsheet cs-rsi.xls: QQQQ closes, and their RSI(14) to two decimals.
RSI_CLOSES = [
    44.3389, 44.0902, 44.1497, 43.6124, 44.3278, 44.8264, 45.0955, 45.4245, 45.8433, 46.0826, 45.8931,
    46.0328, 45.6140, 46.2820, 46.2820, 46.0028, 46.0328, 46.4116, 46.2222, 45.6439, 46.2122, 46.2521,
    45.7137, 46.4515, 45.7835, 45.3548, 44.0288, 44.1783, 44.2181, 44.5672, 43.4205, 42.6628, 43.1314,
]  # fmt: skip
RSI_14 = [
    70.53, 66.32, 66.55, 69.41, 66.36, 57.97, 62.93, 63.26, 56.06, 62.38,
    54.71, 50.42, 39.99, 41.46, 41.87, 45.46, 37.30, 33.08, 37.77,
]  # fmt: skip

# StockCharts ChartSchool, worked spreadsheet of Bollinger bands (20, 2, population deviation).
BAND_CLOSES = [
    86.16, 89.09, 88.78, 90.32, 89.07, 91.15, 89.44, 89.18, 86.93, 87.68, 86.96, 89.43, 89.32, 88.72,
    87.45, 87.26, 89.50, 87.90, 89.13, 90.70, 92.90, 92.98, 91.80, 92.66, 92.68, 92.30, 92.77, 92.54,
    92.95, 93.20, 91.07, 89.83, 89.74, 90.40, 90.74, 88.02, 88.09, 88.84, 90.78, 90.54, 91.39, 90.65,
]  # fmt: skip
BANDS = {
    "upper": [
        91.29, 91.95, 92.61, 92.93, 93.31, 93.73, 93.90, 94.26, 94.56, 94.79, 95.04, 94.91,
        94.90, 94.89, 94.86, 94.67, 94.55, 94.68, 94.57, 94.53, 94.53, 94.37, 94.15,
    ],
    "middle": [
        88.71, 89.05, 89.24, 89.39, 89.51, 89.69, 89.75, 89.91, 90.08, 90.38, 90.66, 90.86,
        90.88, 90.90, 90.99, 91.15, 91.19, 91.12, 91.17, 91.25, 91.24, 91.17, 91.05,
    ],
    "lower": [
        86.12, 86.14, 85.87, 85.85, 85.70, 85.65, 85.59, 85.56, 85.60, 85.98, 86.27, 86.82,
        86.87, 86.91, 87.12, 87.63, 87.83, 87.56, 87.76, 87.97, 87.95, 87.96, 87.95,
    ],
}  # fmt: skip


def test_rsi_is_the_one_stockcharts_prints() -> None:
    rsi = compute("rsi", RSI_CLOSES, period=14)["rsi"]
    assert np.isnan(rsi[:14]).all()
    np.testing.assert_allclose(rsi[14:], RSI_14, rtol=0, atol=0.00501)


def test_bollinger_bands_are_those_stockcharts_prints() -> None:
    bands = compute("bollinger", BAND_CLOSES)
    for name, printed in BANDS.items():
        assert np.isnan(bands[name][:19]).all()
        np.testing.assert_allclose(bands[name][19:], printed, rtol=0, atol=0.0101)


# S. Achelis, Technical Analysis from A to Z, worked examples on pages 207, 209, 299 and 73.
def test_sma_is_that_of_achelis() -> None:
    closes = [25.0, 24.875, 24.781, 24.594, 24.5, 24.625, 25.219, 27.25]
    sma = compute("sma", closes, period=5)["sma"]
    np.testing.assert_allclose(sma[4:], [24.75, 24.675, 24.744, 25.238], rtol=0, atol=0.0006)


def test_ema_from_the_first_price_is_that_of_achelis() -> None:
    closes = [25.0, 24.875, 24.781, 24.594, 24.5, 24.625, 25.219, 27.25]
    ema = compute("ema", closes, period=5, convention="tradingview")["ema"]
    np.testing.assert_allclose(ema, [25.0, 24.958, 24.899, 24.797, 24.698, 24.674, 24.856, 25.654], rtol=0, atol=0.0006)


def test_rsi_is_that_of_achelis() -> None:
    closes = [
        37.875, 39.5, 38.75, 39.8125, 40.0, 39.875, 40.1875, 41.25, 41.125, 41.625,
        41.25, 40.1875, 39.9375, 39.9375, 40.5, 41.9375, 42.25, 42.25, 41.875, 41.875,
    ]  # fmt: skip
    printed = [
        76.6667, 78.8679, 84.9158, 81.4863, 84.5968, 73.0851, 49.3173, 45.0119,
        45.0119, 57.9252, 75.9596, 78.4676, 78.4676, 65.6299, 65.6299,
    ]  # fmt: skip
    np.testing.assert_allclose(compute("rsi", closes, period=5)["rsi"][5:], printed, rtol=0, atol=5e-5)


def test_bollinger_bands_are_those_of_achelis() -> None:
    closes = [
        31.875, 32.125, 32.3125, 32.125, 31.875, 32.3125, 32.25, 32.4375, 32.8125, 32.375, 32.5,
        32.4375, 32.75, 33.1875, 33.0625, 33.0625, 33.125, 33.0625, 32.8125, 32.875, 33.25, 33.125,
    ]  # fmt: skip
    lower = [
        31.7271, 31.8279, 31.8452, 31.8176, 31.7323, 32.0422, 32.0992, 32.2023, 32.2268,
        32.0552, 32.1927, 32.3546, 32.7354, 33.0, 32.8071, 32.7451, 32.7029, 32.7029,
    ]  # fmt: skip
    np.testing.assert_allclose(compute("bollinger", closes, period=5)["lower"][4:], lower, rtol=0, atol=5e-5)


def _rows(name: str) -> list[dict[str, str]]:
    lines = (ROOT / "tests" / "vectors" / name).read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


CLOSES = [float(row["close"]) for row in _rows("indicators_talib_closes.csv")]


@pytest.mark.parametrize("row", _rows("indicators_talib_points.csv"), ids=lambda row: "-".join(row.values()))
def test_every_value_in_talibs_regression_tests_is_met(row: dict[str, str]) -> None:
    outputs = compute(row["operation"], CLOSES, period=int(row["period"]))
    assert outputs[row["output"]][int(row["bar"])] == pytest.approx(float(row["expected"]), abs=0.01)


@pytest.fixture(scope="module")
def talib() -> Any:
    return pytest.importorskip("talib", reason="TA-Lib, a development dependency, is not installed")


@pytest.mark.parametrize("prices", [np.array(CLOSES), walk(9000, seed=5)], ids=["252 closes", "9,000 bars"])
@pytest.mark.parametrize("period", [2, 3, 14, 20, 64, 199])
def test_all_four_agree_with_talib(talib: Any, prices: Any, period: int) -> None:
    expected = {
        "sma": {"sma": talib.SMA(prices, period)},
        "ema": {"ema": talib.EMA(prices, period)},
        "rsi": {"rsi": talib.RSI(prices, period)},
        "bollinger": dict(zip(("upper", "middle", "lower"), talib.BBANDS(prices, period, 2.0, 2.0), strict=True)),
    }
    for name, outputs in expected.items():
        got = compute(name, prices, period=period)
        for output, values in outputs.items():
            # TA-Lib keeps running sums and its variance is a difference of squares: 1e-9 is its own accuracy here.
            np.testing.assert_allclose(got[output], values, rtol=1e-9, atol=1e-9, err_msg=f"{name} {output}")
