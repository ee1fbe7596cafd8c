"""Performance is pandas', SciPy's and that of the definitions, and what has no value says why."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.cudasim.device import EmulatedDevice
from tests.kernels.parity import Case, assert_same
from tests.kernels.risk.cases import series
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.kernels.risk import spec

Array = npt.NDArray[Any]


def run(returns: Any, benchmark: Any = None, **params: Any) -> dict[str, Any]:
    arrays = {"returns": np.asarray(returns, float)}
    if benchmark is not None:
        arrays["benchmark"] = np.asarray(benchmark, float)
    return Case("performance", params, lambda: arrays).run()


def test_ratios_are_pandas_and_scipys() -> None:
    found = series(6, 700)
    returns, market = found["returns"][3:], found["benchmark"]
    answer = run(returns, market, risk_free=0.02, target=0.05)
    root, free, target = math.sqrt(252), 0.02 / 252, 0.05 / 252
    for at, values in enumerate(returns):
        one, other = pd.Series(values), pd.Series(market)
        wealth = (1 + one).cumprod()
        drawdown = 1 - wealth / wealth.cummax().clip(lower=1.0)
        below = np.minimum(values - target, 0)
        beta = one.cov(other) / other.var()
        active = one - other
        expected = {
            "total_return": wealth.iloc[-1] - 1,
            "annual_return": wealth.iloc[-1] ** (252 / 700) - 1,
            "volatility": one.std() * root,
            "sharpe": (one - free).mean() / one.std() * root,
            "sortino": (one - target).mean() / math.sqrt((below**2).mean()) * root,
            "calmar": (wealth.iloc[-1] ** (252 / 700) - 1) / drawdown.max(),
            "omega": np.maximum(values - target, 0).sum() / -below.sum(),
            "skew": stats.skew(values),
            "kurtosis": stats.kurtosis(values),
            "max_drawdown": drawdown.max(),
            "tracking_error": active.std() * root,
            "information_ratio": active.mean() / active.std() * root,
            "beta": beta,
            "alpha": ((one.mean() - free) - beta * (other.mean() - free)) * 252,
            "up_capture": captured(values, market, market > 0),
            "down_capture": captured(values, market, market < 0),
        }
        for name, value in expected.items():
            assert answer[name][at] == pytest.approx(value, rel=1e-10), name
    assert answer["undefined"] == []


def captured(values: Array, market: Array, some: Array) -> float:
    own, other = (stats.gmean(1 + each[some]) - 1 for each in (values, market))
    return float(own / other)


def test_a_drawdown_by_hand_has_its_start_trough_recovery_and_length() -> None:
    #         wealth: 1.1   0.55  0.825 1.1  2.2  1.65  1.65   0.825
    answer = run([0.1, -0.5, 0.5, 1 / 3, 1.0, -0.25, 0.0, -0.5], drawdowns=3)
    assert answer["drawdown_depth"][0].tolist() == [0.625, 0.5, 0.0]
    assert answer["drawdown_start"][0].tolist() == [5, 1, -1]
    assert answer["drawdown_trough"][0].tolist() == [8, 2, -1]
    assert answer["drawdown_recovery"][0].tolist() == [-1, 4, -1]
    assert answer["drawdown_length"][0].tolist() == [3, 3, 0]
    assert answer["max_drawdown"][0] == 0.625


def test_a_fall_from_the_beginning_starts_there() -> None:
    answer = run([-0.5, 1.0, 0.5], drawdowns=1)
    assert [answer[f"drawdown_{name}"][0, 0] for name in ("start", "trough", "recovery", "length")] == [0, 1, 2, 2]


def drawdowns_by_definition(values: Array) -> list[tuple[float, int, int, int]]:
    """Depth, start, trough and recovery of each, deepest first, of wealth as a product from the last peak."""
    found, level, peak, fall, trough = [], 1.0, 0, 0.0, 0
    for now, value in enumerate(values, 1):
        level *= 1 + value
        if level >= 1:
            if fall:
                found.append((fall, peak, trough, now))
            level, peak, fall = 1.0, now, 0.0
        elif 1 - level > fall:
            fall, trough = 1 - level, now
    if fall:
        found.append((fall, peak, trough, -1))
    return sorted(found, key=lambda each: -each[0])


@settings(max_examples=50)
@given(st.lists(st.sampled_from([-0.5, -0.25, 0.0, 0.25, 1.0]), min_size=2, max_size=60), st.integers(1, 6))
def test_the_deepest_drawdowns_are_listed_in_order(values: list[float], most: int) -> None:
    expected = drawdowns_by_definition(np.array(values))[:most]
    answer = run(values, drawdowns=most)
    names = ("depth", "start", "trough", "recovery")
    listed = list(zip(*(answer[f"drawdown_{name}"][0].tolist() for name in names), strict=True))
    assert listed == expected + [(0.0, -1, -1, -1)] * (most - len(expected))


@pytest.mark.parametrize(
    ("values", "deviation"),
    [
        ([10_000_001.0, 10_000_003.0, 10_000_002.0], 1.0),
        *((large + np.concatenate([[0.2], np.tile([0.1, 0.3], 500)]), 0.1) for large in (1.0, 1e6, 1e7)),
    ],
)
def test_nists_data_of_many_digits_have_their_certified_deviation(values: Any, deviation: float) -> None:
    """NumAcc1 to NumAcc4 of the Statistical Reference Datasets of NIST. Numbers near 1e7 have nine digits after 0.1."""
    assert run(values, periods_per_year=1.0)["volatility"][0] == pytest.approx(deviation, rel=1e-8)


def test_a_constant_series_has_no_ratios_and_says_why() -> None:
    answer = run([[0.001] * 30, [0.01, -0.02] * 15])
    assert answer["volatility"][0] == 0
    assert np.isnan(answer["sharpe"]).tolist() == [True, False]
    assert (
        "sharpe is NaN for 1 of 2 series, first for series 0: in 30 returns its returns have no deviation"
        in (answer["undefined"])
    )
    assert any(sentence.startswith("calmar is NaN for 1 of 2 series") for sentence in answer["undefined"])
    assert answer["annual_return"][0] == pytest.approx(1.001**252 - 1, rel=1e-12)


def test_a_series_that_is_its_benchmark_has_beta_1_and_no_information_ratio() -> None:
    market = series(0, 100)["benchmark"]
    answer = run([market, market + 0.001], market)
    assert answer["beta"] == pytest.approx([1, 1], rel=1e-12)
    assert answer["alpha"] == pytest.approx([0, 0.252], abs=1e-12)
    assert answer["tracking_error"].tolist() == [0, 0]
    assert np.isnan(answer["information_ratio"]).all()
    assert answer["up_capture"][0] == answer["down_capture"][0] == 1


@pytest.mark.parametrize(("name", "sign", "verb"), [("up_capture", -1, "rose"), ("down_capture", 1, "fell")])
def test_a_benchmark_that_never_rose_or_never_fell_has_no_capture_there(name: str, sign: int, verb: str) -> None:
    answer = run([0.01, 0.02, -0.01, 0.03], sign * np.array([0.01, 0.02, 0.0, 0.03]))
    assert np.isnan(answer[name]).all()
    assert answer["undefined"] == [
        f"{name} is NaN for 1 of 1 series, first for series 0: in 4 returns the benchmark never {verb}"
    ]


def test_without_a_benchmark_what_needs_one_is_nan_and_one_sentence_says_so() -> None:
    answer = run([0.01, -0.02, 0.03])
    assert answer["undefined"] == [
        "tracking_error, information_ratio, beta, alpha, up_capture, down_capture are NaN: no benchmark was given"
    ]
    assert np.isnan(answer["beta"]).all()


def test_ruin_is_a_loss_of_everything_for_good() -> None:
    answer = run([0.5, -1.0, 3.0, 0.1])
    assert [answer[name][0] for name in ("total_return", "annual_return", "max_drawdown")] == [-1, -1, 1]
    assert answer["drawdown_recovery"][0, 0] == -1


def test_growth_beyond_float64_keeps_its_annual_return() -> None:
    for rate in (-0.001, 0.001):
        answer = run(np.full(1_000_000, rate))
        assert answer["annual_return"][0] == pytest.approx((1 + rate) ** 252 - 1, rel=1e-9)
    assert answer["total_return"][0] == np.inf
    assert run(np.full(1_000_000, -0.001))["total_return"][0] == -1


@pytest.mark.parametrize(("rate", "periods", "expected"), [
    (0.01, 1e6, np.inf), (-0.01, 1e6, -1.0), (0.01, 71_300.0, math.exp(71_300 * math.log1p(0.01))),
])  # fmt: skip
def test_a_rate_beyond_float64_is_infinite_and_none_below_it_is(rate: float, periods: float, expected: float) -> None:
    assert run([rate, rate], periods_per_year=periods)["annual_return"][0] == pytest.approx(expected, rel=1e-11)


def test_chunks_of_series_change_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("performance", {}, lambda: series(9, 40))
    whole = case.run()
    monkeypatch.setattr(spec, "CHUNK", 80)
    infos = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in case.inputs().items()}
    grid = OPERATIONS["performance"].grid(spec.Performance(), infos)
    assert grid.chunks == 5
    device = EmulatedDevice(memory=grid.fixed + grid.each)
    assert_same(case, whole, case.run(device))


@pytest.mark.parametrize("device", [None, EmulatedDevice()])
def test_a_return_below_minus_1_is_refused_with_its_place(device: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"\[1, 2\] is -1.5: a simple return loses 1 at most"):
        Case("performance", {}, lambda: {"returns": np.array([[0, 0, 0], [0, 0, -1.5]])}).run(device)


def test_a_benchmark_of_another_length_is_refused() -> None:
    infos = {"returns": ArrayInfo("float64", (5, 9)), "benchmark": ArrayInfo("float64", (8,))}
    with pytest.raises(InvalidRequest, match=r"shape \[8\], and returns has 9 times: it should be \[9\]"):
        OPERATIONS["performance"].validate({}, infos)
