"""Tests of coverage are those worked out by hand, and by SciPy, and the traffic light is the Basel Committee's."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import xlogy

from tests.cudasim.device import EmulatedDevice
from tests.kernels.parity import Case, assert_same
from tests.kernels.risk.cases import forecasts
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.kernels.risk import spec
from warpdesk_server.kernels.risk.coverage import binomial_cdf
from warpdesk_server.kernels.risk.distributions import chi_squared_1, chi_squared_2

Array = npt.NDArray[Any]


def answer_of(exceptions: Any, level: float = 0.99) -> dict[str, Any]:
    """The answer for a series that has an exception wherever there is a 1."""
    ones = np.asarray(exceptions, float)
    return Case("var_backtest", {"level": level}, lambda: {"returns": -ones, "var": np.full(ones.shape, 0.5)}).run()


def hits(time: int, *places: int) -> Array:
    found = np.zeros(time)
    found[list(places)] = 1.0
    return found


def test_kupiecs_ratio_without_exceptions_and_with_nothing_else_is_the_one_by_hand() -> None:
    # x = 0: -2 log((1 - p)^T); x = T: -2 log(p^T).
    none, every = answer_of(np.zeros(250)), answer_of(np.ones(250))
    assert none["kupiec"] == pytest.approx([-500 * math.log(0.99)], rel=1e-14)
    assert every["kupiec"] == pytest.approx([-500 * math.log(0.01)], rel=1e-14)
    assert none["kupiec_p"] == pytest.approx([stats.chi2.sf(-500 * math.log(0.99), 1)], rel=1e-13)
    assert (none["exceptions"], every["exceptions"], none["expected"]) == ([0], [250], 2.5)
    assert (none["zone"], every["zone"]) == (["green"], ["red"])


def test_kupiecs_ratio_is_0_where_exceptions_are_as_many_as_expected() -> None:
    answer = answer_of(hits(200, 17, 91))
    assert answer["kupiec"][0] == pytest.approx(0, abs=1e-14)
    assert answer["kupiec_p"][0] == pytest.approx(1, abs=1e-6)


# Kupiec, Techniques for verifying the accuracy of risk measurement models (1995), table 3: a test of size 5 % does not
# reject p = 0.01 by fewer than 7 exceptions of 255 days, 2 to 10 of 510 and 5 to 16 of 1000. It names no least number
# for 255 days, and the ratio of none is 5.13 there.
@pytest.mark.parametrize(("time", "least", "most"), [(255, 1, 6), (510, 2, 10), (1000, 5, 16)])
def test_kupiecs_regions_of_no_rejection(time: int, least: int, most: int) -> None:
    series = np.zeros((30, time))
    for count in range(30):
        series[count, :count] = 1.0
    accepted = np.flatnonzero(answer_of(series)["kupiec_p"] > 0.05)
    assert (accepted.min(), accepted.max()) == (least, most)


def ratio_by_definition(ones: Array, level: float) -> tuple[float, float]:
    """Both ratios by logarithms of likelihoods, with SciPy's x log y, which is 0 for x = 0."""
    p, x, n = 1 - level, ones.sum(), ones.size
    kupiec = -2 * (xlogy(n - x, 1 - p) + xlogy(x, p) - xlogy(n - x, 1 - x / n) - xlogy(x, x / n))
    pairs = np.zeros((2, 2))
    for before, now in zip(ones[:-1].astype(int), ones[1:].astype(int), strict=True):
        pairs[before, now] += 1
    share = pairs[:, 1].sum() / pairs.sum()
    own = pairs[:, 1] / pairs.sum(axis=1)
    alone = xlogy(pairs[:, 0].sum(), 1 - share) + xlogy(pairs[:, 1].sum(), share)
    chain = sum(xlogy(pairs[k, 0], 1 - own[k]) + xlogy(pairs[k, 1], own[k]) for k in (0, 1))
    return float(kupiec), float(-2 * (alone - chain))


@given(
    seed=st.integers(0, 10_000),
    time=st.integers(5, 200),
    share=st.floats(0.05, 0.9),
    level=st.sampled_from([0.9, 0.99]),
)
def test_ratios_are_those_of_the_likelihoods(seed: int, time: int, share: float, level: float) -> None:
    ones = (np.random.default_rng(seed).random(time) < share).astype(float)
    ones[:3] = 0, 1, 0
    kupiec, independence = ratio_by_definition(ones, level)
    answer = answer_of(ones, level)
    assert answer["unknown"] == [None]
    assert answer["kupiec"][0] == pytest.approx(kupiec, rel=1e-10, abs=1e-10)
    assert answer["independence"][0] == pytest.approx(independence, rel=1e-10, abs=1e-10)
    assert answer["conditional"][0] == answer["kupiec"][0] + answer["independence"][0]
    assert answer["independence_p"][0] == pytest.approx(stats.chi2.sf(answer["independence"][0], 1), rel=1e-12)
    assert answer["conditional_p"][0] == pytest.approx(stats.chi2.sf(answer["conditional"][0], 2), rel=1e-12)
    assert answer["transitions"].sum() == time - 1


def test_p_values_of_large_ratios_go_to_0() -> None:
    for statistic in (10.0, 1000.0, 1400.0, 1450.0):
        assert chi_squared_1(statistic) == pytest.approx(stats.chi2.sf(statistic, 1), rel=1e-9)
        assert chi_squared_2(statistic) == pytest.approx(stats.chi2.sf(statistic, 2), rel=1e-9)
    assert chi_squared_2(2000.0) == 0


def test_exceptions_in_a_row_are_not_independent_and_alternating_ones_neither() -> None:
    apart, together = hits(250, 20, 70, 120, 170, 220), hits(250, 100, 101, 102, 103, 104)
    alternating = np.arange(250) % 2.0
    answer = answer_of(np.stack([apart, together, alternating]))
    assert answer["independence_p"][0] > 0.5
    assert (answer["independence_p"][1:] < 1e-6).all()
    assert answer["transitions"].tolist()[1] == [[243, 1], [1, 4]]


@pytest.mark.parametrize(
    ("ones", "words"),
    [
        (hits(100), "of 100 forecasts 0 were exceeded, and none of these before the last"),
        (hits(100, 99), "of 100 forecasts 1 were exceeded, and none of these before the last"),
        (np.ones(100), "of 100 forecasts 100 were exceeded, and every one before the last"),
    ],
)
def test_independence_without_both_transitions_is_not_known_and_says_why(ones: Array, words: str) -> None:
    answer = answer_of(ones)
    assert words in answer["unknown"][0]
    for name in ("independence", "independence_p", "conditional", "conditional_p"):
        assert np.isnan(answer[name]).all()
    assert np.isfinite(answer["kupiec"]).all()


def test_the_zones_of_250_days_are_the_basel_committees() -> None:
    series = np.zeros((15, 250))
    for count in range(15):
        series[count, :count] = 1.0
    answer = answer_of(series)
    assert answer["zone"] == ["green"] * 5 + ["yellow"] * 5 + ["red"] * 5
    # Table 2 of the framework of 1996, cumulative probabilities in per cent.
    published = [8.11, 28.58, 54.32, 75.81, 89.22, 95.88, 98.63, 99.60, 99.89, 99.97, 99.99]
    assert np.abs(100 * answer["cumulative"][:11] - published).max() < 0.0051


@pytest.mark.parametrize("trials", [2, 250, 100_000, 10_000_000])
@pytest.mark.parametrize("probability", [0.5, 0.01, 1e-6])
def test_the_binomial_distribution_is_scipys(trials: int, probability: float) -> None:
    middle = trials * probability
    for count in {0, 1, int(middle), int(middle + 3 * math.sqrt(middle) + 1), trials}:
        expected = stats.binom.cdf(count, trials, probability)
        assert binomial_cdf(count, trials, probability) == pytest.approx(expected, rel=1e-9, abs=1e-30)


def test_a_loss_equal_to_its_forecast_is_no_exception() -> None:
    found = {"returns": np.array([-0.02, -0.02, 0.02]), "var": np.array([0.02, 0.019, -0.03])}
    assert Case("var_backtest", {}, lambda: found).run()["exceptions"] == [2]


def test_chunks_of_series_change_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("var_backtest", {"level": 0.9}, lambda: forecasts(9, 40))
    whole = case.run()
    monkeypatch.setattr(spec, "CHUNK", 80)
    infos = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in case.inputs().items()}
    grid = OPERATIONS["var_backtest"].grid(spec.VarBacktest(level=0.9), infos)
    assert grid.chunks == 5
    assert_same(case, whole, case.run(EmulatedDevice(memory=grid.fixed + grid.each)))


@pytest.mark.parametrize(
    ("shapes", "pointer", "words"),
    [
        (((5, 9), (9,)), "/inputs/var", "shape [9], and returns has [5, 9]"),
        (((1,), (1,)), "/inputs/returns", "1 returns of each series; it needs at least 2"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(shapes: Any, pointer: str, words: str) -> None:
    infos = {name: ArrayInfo("float64", shape) for name, shape in zip(("returns", "var"), shapes, strict=True)}
    with pytest.raises(InvalidRequest) as error:
        OPERATIONS["var_backtest"].validate({}, infos)
    assert [problem.pointer for problem in error.value.problems] == [pointer]
    assert words in str(error.value)


def test_a_gap_is_refused() -> None:
    infos = {"returns": ArrayInfo("float64", (9,), has_nan=True), "var": ArrayInfo("float64", (9,))}
    with pytest.raises(InvalidRequest, match="returns: the array holds a NaN"):
        OPERATIONS["var_backtest"].validate({}, infos)
