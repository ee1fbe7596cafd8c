"""Ranks, z-scores and clipped values are SciPy's, NumPy's and pandas', and each group is handled alone."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from tests.cudasim.device import EmulatedDevice
from tests.kernels.cross_section.cases import market
from tests.kernels.parity import Case, assert_same
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.cross_section import spec
from warpdesk_server.kernels.operation import Grid
from warpdesk_server.kernels.problems import InvalidRequest

Array = npt.NDArray[Any]
NAN = math.nan
SIZES = (1, 2, 31, 32, 33, 1023, 1024, 1025)
TIES = ("average", "min", "max", "dense", "first")
METHODS = {"first": "ordinal"}  # SciPy's names where they differ
NAMES = ("cross_rank", "cross_zscore", "winsorise", "neutralise")


def run(operation: str, values: Any, **given_: Any) -> Array:
    arrays = {"values": np.asarray(values, None if hasattr(values, "dtype") else float)}
    arrays |= {name: np.asarray(given_.pop(name)) for name in ("groups", "factors", "weights") if name in given_}
    return next(iter(Case(operation, given_, lambda: arrays).run().values()))


def by_group(groups: Array, values: Array, function: Callable[[Array], Array]) -> Array:
    """What a function of (assets, time) gives for each group alone; NaN for assets without a group."""
    found = np.full(values.shape, NAN)
    for label in set(groups.tolist()) - {-1}:
        found[groups == label] = function(values[groups == label])
    return found


def rankdata(ties: str) -> Callable[[Array], Array]:
    return lambda values: np.asarray(
        stats.rankdata(values, METHODS.get(ties, ties), axis=0, nan_policy="omit"), np.float64
    )


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("assets", SIZES)
def test_ranks_are_those_of_scipy(assets: int, ties: str) -> None:
    values = market(assets, 3)["values"]
    assert np.array_equal(run("cross_rank", values, ties=ties), rankdata(ties)(values), equal_nan=True)


@pytest.mark.parametrize("ties", TIES)
def test_ranks_within_groups_are_those_of_each_group_alone(ties: str) -> None:
    found = market(70, 5, groups=6)
    expected = by_group(found["groups"], found["values"], rankdata(ties))
    assert np.array_equal(run("cross_rank", **found, ties=ties), expected, equal_nan=True)


# DataFrame.rank(axis=0, method=…, pct=True) of pandas 3.1.1, and DataFrame.groupby(labels).rank of it.
PRICES = [[3.0, NAN], [1.0, 2.0], [3.0, 5.0], [2.0, 2.0], [1.0, 7.0]]
LABELS = [7, 7, 9, 9, 9]
PANDAS = {
    "average": [[0.9, NAN], [0.3, 0.375], [0.9, 0.75], [0.6, 0.375], [0.3, 1.0]],
    "min": [[0.8, NAN], [0.2, 0.25], [0.8, 0.75], [0.6, 0.25], [0.2, 1.0]],
    "max": [[1.0, NAN], [0.4, 0.5], [1.0, 0.75], [0.6, 0.5], [0.4, 1.0]],
    "dense": [[1.0, NAN], [1 / 3, 1 / 3], [1.0, 2 / 3], [2 / 3, 1 / 3], [1 / 3, 1.0]],
    "first": [[0.8, NAN], [0.2, 0.25], [1.0, 0.75], [0.6, 0.5], [0.4, 1.0]],
}
GROUPED = [[1.0, NAN], [0.5, 1.0], [1.0, 2 / 3], [2 / 3, 1 / 3], [1 / 3, 1.0]]


@pytest.mark.parametrize("ties", TIES)
def test_percentiles_are_those_of_pandas(ties: str) -> None:
    assert np.array_equal(run("cross_rank", PRICES, ties=ties, percentile=True), PANDAS[ties], equal_nan=True)
    grouped = run("cross_rank", PRICES, ties=ties, percentile=True, groups=LABELS)
    assert np.array_equal(grouped, GROUPED, equal_nan=True)


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 40), st.integers(1, 3)), elements=st.floats(-1e300, 1e300)))
@settings(deadline=None, max_examples=30)
def test_ranks_do_not_see_a_monotone_change_of_the_values(values: Array) -> None:
    for ties in TIES:
        assert np.array_equal(run("cross_rank", values, ties=ties), run("cross_rank", values * 8.0, ties=ties))
        steps = np.searchsorted(np.unique(values), values).astype(float)
        assert np.array_equal(run("cross_rank", values, ties=ties), run("cross_rank", steps, ties=ties))


def test_ranks_and_clipped_values_do_not_depend_on_the_order_of_the_assets() -> None:
    found, order = market(300, 4, groups=9), np.random.default_rng(5).permutation(300)
    moved = {name: array[order] for name, array in found.items()}
    for operation, params in (*(("cross_rank", {"ties": ties}) for ties in TIES[:4]), ("winsorise", {})):
        assert run(operation, **moved, **params).tobytes() == run(operation, **found, **params)[order].tobytes()


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("assets", SIZES[1:])
def test_z_scores_are_those_of_scipy(assets: int, ddof: int) -> None:
    values = market(assets, 3, gaps=0.1 if assets > 2 else 0.0)["values"]
    expected = stats.zscore(values, ddof=ddof, nan_policy="omit")
    assert np.allclose(run("cross_zscore", values, ddof=ddof), expected, rtol=1e-13, atol=1e-14, equal_nan=True)


def test_z_scores_within_groups_are_those_of_each_group_alone() -> None:
    found = market(400, 5, groups=6)
    expected = by_group(found["groups"], found["values"], lambda values: stats.zscore(values, nan_policy="omit"))
    assert np.allclose(run("cross_zscore", **found), expected, rtol=1e-13, atol=1e-14, equal_nan=True)


def exact_z_scores(values: Array) -> list[float]:
    numbers = [Fraction(value) for value in values.tolist()]
    mean = sum(numbers) / len(numbers)
    variance = sum((number - mean) ** 2 for number in numbers) / len(numbers)
    scale = Fraction(10) ** 60  # digits of the root
    root = Fraction(math.isqrt(int(variance * scale * scale)), int(scale))
    return [float((number - mean) / root) for number in numbers]


@pytest.mark.parametrize(("offset", "error"), [(0.0, 4e-16), (1e6, 4e-16), (1e15, 4e-16)])
def test_z_scores_of_large_numbers_that_differ_little_are_exact(offset: float, error: float) -> None:
    values = offset + np.round(np.random.default_rng(1).normal(0, 3, 70), 0)
    expected = np.array(exact_z_scores(values))
    assert np.abs(run("cross_zscore", values[:, None])[:, 0] - expected).max() <= error * 5


def test_assets_that_are_all_equal_have_no_z_score_and_no_distance_from_their_mean() -> None:
    values = np.full((7, 2), 0.1)
    values[3, 0] = NAN
    assert np.isnan(run("cross_zscore", values)).all()
    assert np.array_equal(run("neutralise", values), np.where(np.isnan(values), NAN, 0.0), equal_nan=True)


@pytest.mark.parametrize("ddof", [0, 1])
def test_one_asset_alone_has_no_z_score(ddof: int) -> None:
    assert np.isnan(run("cross_zscore", [[5.0, NAN]], ddof=ddof)).all()


@pytest.mark.parametrize(("lower", "upper"), [(0.01, 0.99), (0.0, 1.0), (0.25, 0.5), (0.5, 0.5), (0.123, 0.877)])
@pytest.mark.parametrize("assets", SIZES)
def test_clipped_values_are_numpys(assets: int, lower: float, upper: float) -> None:
    values = np.abs(market(assets, 3, gaps=0.1 if assets > 1 else 0.0)["values"])
    expected = np.clip(values, *np.nanquantile(values, [lower, upper], axis=0))
    found = run("winsorise", values, lower=lower, upper=upper)
    assert np.allclose(found, expected, rtol=1e-14, atol=0, equal_nan=True)


def test_values_are_clipped_to_the_quantiles_of_their_group() -> None:
    found = market(90, 4, groups=5)

    def clipped(values: Array) -> Array:
        return np.clip(values, *np.nanquantile(values, [0.1, 0.8], axis=0))

    expected = by_group(found["groups"], found["values"], clipped)
    assert np.allclose(run("winsorise", **found, lower=0.1, upper=0.8), expected, rtol=1e-14, atol=0, equal_nan=True)


@pytest.mark.parametrize("operation", NAMES)
def test_groups_given_for_each_bar_are_groups_given_once(operation: str) -> None:
    found = market(60, 7, groups=4)
    expected = run(operation, **found)
    moving = np.repeat(found["groups"][:, None], 7, axis=1).astype(np.int32)
    assert run(operation, **found | {"groups": moving}).tobytes() == expected.tobytes()
    other = np.random.default_rng(3).integers(-1, 4, moving.shape)
    bars = [run(operation, found["values"][:, [bar]], groups=other[:, bar]) for bar in range(7)]
    assert run(operation, **found | {"groups": other}).tobytes() == np.hstack(bars).tobytes()


@pytest.mark.parametrize("operation", NAMES)
def test_names_of_groups_do_not_matter_and_a_negative_one_is_no_group(operation: str) -> None:
    values = market(50, 3)["values"]
    groups = np.random.default_rng(0).integers(0, 3, 50)
    expected = run(operation, values, groups=groups)
    order = run(operation, values, groups=np.array([2**62, 5, 10_101_010])[groups])
    assert np.allclose(order, expected, rtol=1e-13, atol=1e-13, equal_nan=True)
    one = run(operation, values, groups=np.zeros(50, np.int64))
    assert one.tobytes() == run(operation, values).tobytes()
    some = run(operation, values, groups=np.where(groups == 1, -(2**63), groups))
    assert np.isnan(some[groups == 1]).all()
    assert np.array_equal(some[groups != 1], expected[groups != 1], equal_nan=True)


@pytest.mark.parametrize("operation", NAMES)
def test_a_missing_asset_is_as_if_it_were_not_listed(operation: str) -> None:
    values = market(64, 4, gaps=0.0)["values"]
    values[[3, 20, 21, 63]] = NAN
    there = ~np.isnan(values[:, 0])
    found = run(operation, values)
    assert np.isnan(found[~there]).all()
    assert np.allclose(found[there], run(operation, values[there]), rtol=1e-13, atol=1e-14)
    assert np.isnan(run(operation, np.full((5, 2), NAN))).all()


@pytest.mark.parametrize("operation", NAMES)
def test_the_answer_of_float32_is_that_of_float64_rounded_once(operation: str) -> None:
    found = market(80, 5, "float32", groups=3)
    wide = found | {"values": found["values"].astype(np.float64)}
    assert run(operation, **found).tobytes() == run(operation, **wide).astype(np.float32).tobytes()


@pytest.mark.parametrize("threads", [1, 3])
def test_no_answer_depends_on_the_number_of_threads(threads: int) -> None:
    found = market(300, 333, groups=12, moving=True)
    expected = [run(name, **found) for name in NAMES]
    most = numba.get_num_threads()
    numba.set_num_threads(min(threads, most))
    try:
        got = [run(name, **found) for name in NAMES]
    finally:
        numba.set_num_threads(most)
    assert [one.tobytes() for one in got] == [one.tobytes() for one in expected]


@pytest.mark.parametrize("resident", [1, 2, 100])
@pytest.mark.parametrize("operation", NAMES)
def test_no_answer_depends_on_how_many_chunks_are_in_memory(
    operation: str, resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec, "CHUNK", 900)
    monkeypatch.setattr(spec, "TILE", 16)
    example = Case(operation, {}, lambda: market(30, 80, groups=4, moving=True))
    grid = _grid(example)
    assert grid.chunks >= 3
    device = EmulatedDevice(memory=grid.fixed + resident * grid.each)
    assert_same(example, example.run(), example.run(device))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("assets", [40, 1100])
@pytest.mark.parametrize(
    ("operation", "params", "slack"),
    [
        ("cross_rank", {}, 0),
        ("cross_rank", {"ties": "dense"}, 0),
        ("winsorise", {}, 0),
        ("cross_zscore", {}, 0),
        # Of memory for the weights and for the count of factors one is free before the other is needed.
        ("neutralise", {}, 4 * 6),
    ],
)
def test_the_grid_says_what_memory_a_job_takes(
    operation: str, params: dict[str, Any], slack: int, assets: int, dtype: str
) -> None:
    for moving in (False, True):
        example = Case(operation, params, lambda moving=moving: market(assets, 6, dtype, groups=3, moving=moving))  # type: ignore[misc]
        device, grid = EmulatedDevice(), _grid(example)
        example.run(device)
        declared = grid.fixed + grid.chunks * grid.each
        assert declared - slack <= device.memory.peak <= declared, moving


def _grid(example: Case) -> Grid:
    operation = OPERATIONS[example.operation]
    infos = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in example.inputs().items()}
    return operation.grid(operation.params.model_validate(dict(example.params), strict=False), infos)


VALUES = ("float64", (5, 9))


@pytest.mark.parametrize(
    ("operation", "params", "inputs", "pointer", "words"),
    [
        (
            "cross_rank",
            {"ties": "low"},
            {},
            "/params/ties",
            "ties should be 'average', 'min', 'max', 'dense' or 'first'",
        ),
        ("cross_rank", {}, {"values": ("float64", (9,))}, "/inputs/values", "shape [9] has rank 1, expected rank 2"),
        (
            "cross_rank",
            {},
            {"values": ("float64", (65_537, 1))},
            "/inputs/values",
            "65,537 assets, the most are 65,536",
        ),
        (
            "winsorise",
            {},
            {"groups": ("int64", (9,))},
            "/inputs/groups",
            "shape [9], and values has shape [5, 9]: groups needs (5) or (5, 9)",
        ),
        ("winsorise", {}, {"groups": ("float64", (5,))}, "/inputs/groups", "dtype float64 is not one of int64, int32"),
        ("winsorise", {"lower": 0.6, "upper": 0.4}, {}, "/params/lower", "lower 0.6 is above upper 0.4"),
        ("winsorise", {"upper": 99.0}, {}, "/params/upper", "upper should be at most 1, got 99.0"),
        ("cross_zscore", {"ddof": 2}, {}, "/params/ddof", "ddof should be 0 or 1, got 2"),
        ("cross_zscore", {"ddof": True}, {}, "/params/ddof", "ddof should be"),
        (
            "neutralise",
            {},
            {"factors": ("float64", (2, 9))},
            "/inputs/factors",
            "shape [2, 9], and values has shape [5, 9]: factors needs (factors, 5) or (factors, 5, 9)",
        ),
        ("neutralise", {}, {"factors": ("float64", (65, 5))}, "/inputs/factors", "65 factors, the most are 64"),
        (
            "neutralise",
            {},
            {"values": ("float64", (50_000, 1_000)), "factors": ("float64", (64, 50_000))},
            "/inputs/factors",
            "64 factors at 50,000,000 numbers are 2.05e+11 steps, and a job has at most 2e+11",
        ),
        (
            "neutralise",
            {},
            {"factors": ("float32", (1, 5))},
            "/inputs/factors",
            "dtype float32, and values has float64: they must be equal",
        ),
        ("neutralise", {}, {"weights": ("float64", (5, 8))}, "/inputs/weights", "weights needs (5) or (5, 9)"),
        ("neutralise", {"intercept": False}, {}, "/params/intercept", "there is nothing to remove"),
        (
            "neutralise",
            {"intercept": False},
            {"groups": ("int32", (5,)), "factors": ("float64", (1, 5))},
            "/params/intercept",
            "groups have an intercept each",
        ),
        ("cross_zscore", {}, {"weights": ("float64", (5,))}, "/inputs/weights", "cross_zscore has no input 'weights'"),
    ],
)
def test_what_cannot_be_computed_is_refused_in_a_sentence(
    operation: str, params: dict[str, Any], inputs: dict[str, Any], pointer: str, words: str
) -> None:
    infos = {name: ArrayInfo(*given_) for name, given_ in {"values": VALUES, **inputs}.items()}
    with pytest.raises(InvalidRequest) as refused:
        OPERATIONS[operation].validate(params, infos)
    [problem] = refused.value.problems
    assert problem.pointer == pointer
    assert words in problem.detail


def test_an_infinity_is_refused_and_a_nan_is_not() -> None:
    OPERATIONS["cross_rank"].validate({}, {"values": ArrayInfo("float64", (3, 2), has_nan=True)})
    with pytest.raises(InvalidRequest, match="holds an infinity"):
        OPERATIONS["cross_rank"].validate({}, {"values": ArrayInfo("float64", (3, 2), has_inf=True)})


@pytest.mark.parametrize("device", [None, EmulatedDevice()], ids=["cpu", "emulated"])
def test_a_negative_weight_is_refused_with_its_place(device: EmulatedDevice | None) -> None:
    found = market(4, 3) | {"weights": np.array([[1.0, 1, 1], [1, 1, -0.5], [1, 1, 1], [1, 1, NAN]])}
    with pytest.raises(InvalidRequest, match=r"/inputs/weights: the weight of asset 1 at bar 2 is -0\.5, below 0"):
        Case("neutralise", {}, lambda: found).run(device)


def test_work_grows_with_the_numbers_and_with_the_pairs_of_factors() -> None:
    def work(operation: str, assets: int, time: int, factors: int = 0) -> float:
        infos = {"values": ArrayInfo("float64", (assets, time))}
        if factors:
            infos["factors"] = ArrayInfo("float64", (factors, assets))
        return OPERATIONS[operation].cost(OPERATIONS[operation].params(), infos).work

    for operation in NAMES:
        assert work(operation, 50, 70) == 10 * work(operation, 5, 70) == 7 * work(operation, 50, 10)
    assert work("neutralise", 5, 7, 10) > 10 * work("neutralise", 5, 7)
