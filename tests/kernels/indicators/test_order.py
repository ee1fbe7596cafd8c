"""Quantiles, ranks, skew and weighted averages: beside NumPy, SciPy, exact fractions and what libraries print."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy import stats

from tests.cudasim.device import EmulatedDevice
from tests.kernels.indicators.cases import walk
from tests.kernels.indicators.test_algebra import CLOSE, on_cpu, on_device, same_bytes
from tests.kernels.indicators.test_declared import compute, real_bars
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.indicators import algebra as a
from warpdesk_server.kernels.indicators.plan import Program, plan
from warpdesk_server.kernels.problems import InvalidRequest

Array = NDArray[Any]
BARS = real_bars()


def rolled(statistic: str, close: Array, **params: Any) -> Array:
    return compute(OPERATIONS["rolling"], {"close": close}, statistic=statistic, **params)["rolling"]


def quantile(close: Array, **params: Any) -> Array:
    return compute(OPERATIONS["rolling_quantile"], {"close": close}, **params)["rolling_quantile"]


@pytest.mark.parametrize("percent", [0.0, 12.5, 50.0, 95.0, 99.9, 100.0])
@pytest.mark.parametrize("period", [2, 3, 20, 257])
def test_a_quantile_is_numpys(percent: float, period: int) -> None:
    close = walk(3000, seed=3).round(2)  # many are equal
    windows = sliding_window_view(close, period)
    for between, method in (("linear", "linear"), ("nearest_rank", "inverted_cdf")):
        own = quantile(close, period=period, percent=percent, between=between)
        assert np.isnan(own[: period - 1]).all()
        np.testing.assert_allclose(
            own[period - 1 :], np.percentile(windows, percent, axis=1, method=method), rtol=1e-15
        )


def test_a_window_longer_than_a_chunk_has_the_exact_median() -> None:
    close, period = walk(21_000, seed=4), 9_999
    own = rolled("median", close, period=period)
    for bar in (period - 1, period, 10_239, 10_240, 15_000, 20_999):
        assert own[bar] == np.median(close[bar - period + 1 : bar + 1])


# pandas 3.1.1, Series.rolling(20) of the closes of TA-Lib's regression tests: bars 19, 100 and 251.
PANDAS = {
    ("skew", 1): [0.43517390264522754, 0.04417695057200388, 1.4842654697096482],
    ("kurtosis", 1): [-0.5114958518117922, -1.285230923276108, 1.285886648843774],
    ("median", 0): [92.64, 112.3125, 109.475],
}


@pytest.mark.parametrize(("statistic", "ddof"), PANDAS)
def test_moments_and_medians_are_those_that_pandas_prints(statistic: str, ddof: int) -> None:
    own = rolled(statistic, BARS["close"], period=20, ddof=ddof)
    np.testing.assert_allclose(own[[19, 100, 251]], PANDAS[statistic, ddof], rtol=1e-10)


@pytest.mark.parametrize("period", [5, 20, 33, 250])
def test_skew_and_kurtosis_are_those_of_scipy(period: int) -> None:
    close = walk(700, seed=5)
    windows = sliding_window_view(close, period)
    for ddof in (0, 1):
        skew, kurtosis = (rolled(name, close, period=period, ddof=ddof) for name in ("skew", "kurtosis"))
        np.testing.assert_allclose(skew[period - 1 :], stats.skew(windows, axis=1, bias=not ddof), atol=1e-11)
        expected = stats.kurtosis(windows, axis=1, bias=not ddof)
        np.testing.assert_allclose(kurtosis[period - 1 :], expected, atol=1e-11)


def test_skew_and_kurtosis_are_exact_far_from_zero_and_beside_a_spike() -> None:
    close, period = 1e9 + walk(60, seed=6).round(3), 20
    close[30] = 1e12
    skew, kurtosis = (rolled(name, close, period=period) for name in ("skew", "kurtosis"))
    for bar in range(period - 1, 60):
        window = [Fraction(float(x)) for x in close[bar - period + 1 : bar + 1]]
        middle = sum(window) / period
        two, three, four = (sum((x - middle) ** power for x in window) / period for power in (2, 3, 4))
        assert skew[bar] == pytest.approx(float(three) / float(two) ** 1.5, rel=1e-12, abs=1e-12)
        assert kurtosis[bar] == pytest.approx(float(four / (two * two)) - 3, rel=1e-12)


def test_where_nothing_moves_there_is_no_skew() -> None:
    still = np.full(40, 97.53)
    assert np.isnan(rolled("skew", still, period=7)).all()
    assert np.isnan(rolled("kurtosis", still, period=7)).all()
    assert (rolled("median", still, period=7)[6:] == 97.53).all()


def test_a_percent_rank_counts_equal_closes_only_if_it_should() -> None:
    close, n = walk(400, seed=7).round(1), 30
    earlier = sliding_window_view(close, n)[:-1]
    for equal, counts in (("out", earlier < close[n:, None]), ("in", earlier <= close[n:, None])):
        own = compute(OPERATIONS["percent_rank"], {"close": close}, period=n, equal=equal)["percent_rank"]
        assert np.isnan(own[:n]).all()
        np.testing.assert_allclose(own[n:], 100 * counts.mean(axis=1), rtol=1e-14)
    assert (earlier == close[n:, None]).any()


# Windows at which loops and warps change, gaps, zeros of both signs, infinities that a division makes.
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("period", [1, 2, 31, 32, 33, 64, 255, 700])
def test_order_has_the_same_bytes_on_the_cpu_and_on_a_device(period: int, dtype: str) -> None:
    close = walk(2, 1800, seed=period).round(1).astype(dtype) - np.array(100, dtype)
    close[:, ::7] = -0.0
    close[0, 700:740] = close[1, [3, 1790, 1795]] = np.nan
    arrays = {"close": close}
    graph = {str(share): a.quantile(CLOSE, period, share) for share in (0.0, 0.37, 1.0)}
    graph |= {"of wild": a.quantile(1.0 / CLOSE, period, 0.5), "below": a.count_below(CLOSE, period)}
    graph |= {"at most": a.count_below(CLOSE, period, with_equal=True), "sum": a.weighted_sum(CLOSE, [0.3] * period)}
    program = plan(graph, close.itemsize)
    own = on_cpu(program, arrays)
    assert np.isfinite(own["0.37"]).sum() > 300
    assert not np.signbit(own["0.37"][own["0.37"] == 0]).any()
    assert same_bytes(own, on_device(program, arrays, EmulatedDevice("random", seed=period)))


def _changed(program: Program, at: int, by: int) -> Program:
    steps = list(program.steps)
    index = next(index for index, step in enumerate(steps) if step.op == "quantile")
    values = list(steps[index].values)
    values[at] += by
    steps[index] = steps[index].__class__(**{**vars(steps[index]), "values": tuple(values)})
    return Program(**{**vars(program), "steps": tuple(steps)})


def test_a_planted_defect_of_an_order_shows_on_both_sides() -> None:
    arrays = {"close": walk(1, 600, seed=9)}
    program = plan({"out": a.quantile(CLOSE, 20, 0.5)}, 8)
    sound = on_cpu(program, arrays)
    for at, by in ((0, -1), (1, 1), (1, -1)):
        broken = _changed(program, at, by)
        assert not same_bytes(sound, on_cpu(broken, arrays))
        assert not same_bytes(sound, on_device(broken, arrays))


def test_what_cannot_be_kept_in_order_is_refused_with_the_numbers() -> None:
    infos = {"close": ArrayInfo("float64", (30_000,))}
    for name, params, problem in (
        ("rolling", {"statistic": "median", "period": 10_001}, "at most 10000 for a median, got 10001"),
        ("rolling", {"statistic": "skew", "period": 2, "ddof": 1}, "at least 3 for a skew of ddof 1, got 2"),
        ("rolling", {"statistic": "kurtosis", "period": 3, "ddof": 1}, "at least 4 for a kurtosis of ddof 1, got 3"),
        ("rolling_quantile", {"period": 10_001}, "period should be at most 10000, got 10001"),
        ("rolling_quantile", {"percent": 100.5}, "percent should be at most 100, got 100.5"),
        ("alma", {"period": 1001}, "period should be at most 1000, got 1001"),
        ("threshold", {"upper": 1.0, "lower": 2.0}, "lower should be at most upper, got 2.0 and 1.0"),
    ):
        with pytest.raises(InvalidRequest, match=problem):
            OPERATIONS[name].validate(params, infos)


def alma(close: Array, **params: Any) -> Array:
    return compute(OPERATIONS["alma"], {"close": close}, **params)["alma"]


def test_an_alma_is_its_published_formula_and_weighs_the_newest_bars_most() -> None:
    close, n, offset, sigma = BARS["close"], 21, 0.85, 6.0
    bar = np.arange(n)
    weights = np.exp(-((bar - offset * (n - 1)) ** 2) / (2 * (n / sigma) ** 2))
    expected = sliding_window_view(close, n) @ weights / weights.sum()
    np.testing.assert_allclose(alma(close, period=n)[n - 1 :], expected, rtol=1e-13)
    rising = np.arange(60.0)
    assert alma(rising, period=n, offset=1.0)[-1] > alma(rising, period=n, offset=0.0)[-1] + 10


def test_an_alma_is_that_of_a_library_that_counts_its_offset_from_the_newest_bar() -> None:
    # pandas-ta-classic 0.8.32, alma(close, 10) with its offset of 0.85: bars 9, 100, 251.
    own = alma(BARS["close"], period=10, offset=0.15)[[9, 100, 251]]
    np.testing.assert_allclose(own, [93.99287055, 118.59998771, 109.36271937], rtol=1e-9)


# pandas-ta-classic 0.8.32, vidya(close, n): bars n, n + 1, 50, 100, 251.
@pytest.mark.parametrize(
    ("period", "printed"),
    [
        (14, [93.85100272851297, 93.84107219672755, 90.17316846728276, 108.26680641816858, 108.14499919306537]),
        (5, [94.02478095955789, 93.81452706650835, 89.61198439662863, 113.36218846134932, 109.67921787840007]),
    ],
)
def test_a_vidya_is_that_of_a_library(period: int, printed: list[float]) -> None:
    own = compute(OPERATIONS["vidya"], BARS, period=period, pace_period=period)["vidya"]
    assert np.isnan(own[:period]).all()
    np.testing.assert_allclose(own[[period, period + 1, 50, 100, 251]], printed, rtol=1e-13)


def test_a_vidya_stands_still_where_gains_and_losses_are_equal() -> None:
    close = np.concatenate([np.linspace(10, 20, 30), np.tile([20.0, 21.0], 30)])
    own = compute(OPERATIONS["vidya"], {"close": close}, period=5, pace_period=4)["vidya"]
    assert np.ptp(own[40:]) < 1e-13


def test_an_average_by_session_begins_afresh_with_each() -> None:
    days = np.repeat([1.0, 2.0, 1.0], 84)
    arrays = {name: BARS[name] for name in ("high", "low", "close", "volume")} | {"session": days}
    own = compute(OPERATIONS["session_vwap"], arrays)["session_vwap"]
    for start in (0, 84, 168):
        day = {name: array[start : start + 84] for name, array in arrays.items() if name != "session"}
        np.testing.assert_allclose(own[start : start + 84], compute(OPERATIONS["vwap"], day)["vwap"], rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_inverse_tangents_and_hyperbolic_functions_are_those_of_numpy(dtype: str) -> None:
    x = np.concatenate([np.linspace(-3, 3, 997), 10 ** np.linspace(-8, 2, 500), -(10 ** np.linspace(-8, 2, 500))])
    x = np.concatenate([x, [0.0, 1.0, -1.0, np.sqrt(2) - 1, np.sqrt(2) + 1, np.nan]]).astype(dtype)[None]
    graph = {
        "arctan": a.arctangent(CLOSE),
        "sinh": a.hyperbolic_sine(CLOSE),
        "cosh": a.hyperbolic_cosine(CLOSE),
        "tanh": a.hyperbolic_tangent(CLOSE),
    }
    with np.errstate(over="ignore"):
        x = x[:, np.abs(x[0]) < 80] if dtype == "float32" else x
        own = on_cpu(plan(graph, x.itemsize), {"close": x})
        for name, found in own.items():
            np.testing.assert_allclose(found, getattr(np, name)(x), rtol=2e-15 if dtype == "float64" else 1e-6)
    assert same_bytes(own, on_device(plan(graph, x.itemsize), {"close": x}))


def test_a_session_begins_at_its_first_bar_also_if_that_has_no_price_or_the_series_has_gaps() -> None:
    close = np.array([1.0, 2.0, np.nan, 4.0, 5.0, 6.0])
    session = np.array([np.nan, 1.0, 2.0, 2.0, np.nan, 3.0])
    arrays = {"high": close, "low": close, "close": close, "volume": np.ones(6), "session": session}
    own = compute(OPERATIONS["session_vwap"], arrays)["session_vwap"]
    np.testing.assert_allclose(own, [1.0, 2.0, np.nan, 4.0, 4.5, 6.0])


def test_a_threshold_with_two_levels_does_not_count_what_moves_between_them() -> None:
    close = np.array([1.0, 5.0, 3.0, 5.0, np.nan, 3.0, 1.0, 3.0, 5.0])
    own = compute(OPERATIONS["threshold"], {"close": close}, upper=4.0, lower=2.0)
    nan = np.nan
    np.testing.assert_array_equal(own["state"], [0, 1, 1, 1, nan, 1, 0, 0, 1])
    np.testing.assert_array_equal(own["up"], [nan, 1, 0, 0, nan, 0, 0, 0, 1])
    np.testing.assert_array_equal(own["down"], [nan, 0, 0, 0, nan, 0, 1, 0, 0])


def test_the_ages_of_extremes_are_those_of_the_newest_of_equal_ones() -> None:
    close = np.array([3.0, 1.0, 3.0, 1.0, 2.0])
    own = compute(OPERATIONS["extremes"], {"close": close}, period=4)
    np.testing.assert_array_equal(own["since_highest"][3:], [1, 2])
    np.testing.assert_array_equal(own["since_lowest"][3:], [0, 1])


def test_exponentials_of_large_numbers_are_infinite_or_0_and_hyperbolic_functions_true_as_far_as_they_can_be() -> None:
    x = np.array([[-1e300, -720.0, -708.5, -500.0, 500.0, 709.5, 710.2, 720.0, 1e300]])
    graph = {"exp": a.exp(CLOSE), "sinh": a.hyperbolic_sine(CLOSE), "cosh": a.hyperbolic_cosine(CLOSE)}
    own = on_cpu(plan(graph, 8), {"close": x})
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(own["sinh"], np.sinh(x), rtol=1e-13)
        np.testing.assert_allclose(own["cosh"], np.cosh(x), rtol=1e-13)
    infinite = np.inf
    np.testing.assert_allclose(own["exp"][0], [0, 0, 0, np.exp(-500), np.exp(500), *[infinite] * 4], rtol=1e-13)
    assert same_bytes(own, on_device(plan(graph, 8), {"close": x}))


def test_the_logarithm_of_a_change_from_0_is_none() -> None:
    own = compute(OPERATIONS["roc"], {"close": np.array([0.0, 1.0, 2.0])}, period=1, form="log")["roc"]
    np.testing.assert_allclose(own, [np.nan, np.nan, np.log(2)])
