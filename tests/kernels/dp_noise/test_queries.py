"""What each query answers, what it spends, and that no record moves it by more than its noise covers."""

import re
import secrets
from fractions import Fraction
from math import nextafter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cudasim.device import EmulatedDevice
from tests.kernels.parity import Case, assert_same
from tests.kernels.watched import WatchedDevice
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.dp_noise import cpu, gpu, spec
from warpdesk_server.kernels.dp_noise.integers import clip_records, count_records, sum_records
from warpdesk_server.kernels.dp_noise.plan import plan
from warpdesk_server.kernels.dp_noise.release import NORM, as_bits
from warpdesk_server.kernels.dp_noise.spec import OPERATION
from warpdesk_server.kernels.problems import InvalidRequest

# The first call of a compiled function loads or compiles it: no example has a deadline.
_settings = settings(deadline=None, max_examples=50)

_CLIP = {"clip": {"norm": "linf", "bound": "1"}}
_MEAN = {"mechanism": "discrete_laplace", "mode": "records", "query": "mean", "epsilon": "1", **_CLIP}
_MEAN |= {"neighbouring": "add_remove", "unaccounted": True}
_IDENTITY = {**_MEAN, "query": "identity", "neighbouring": "replace_one"}
_HISTOGRAM = {name: value for name, value in _MEAN.items() if name != "clip"} | {"query": "histogram"}
_SURE = {"epsilon": "1000"}  # so little noise that the answer is what it is of
_GAUSSIAN = {"mechanism": "discrete_gaussian", "epsilon": None}
_BUDGET = {"unaccounted": None, "budget": "budget_" + 32 * "0"}


def _release(params: dict[str, Any], values: Any, key: bytes | None = None) -> dict[str, Any]:
    values = np.asarray(values)
    parsed = OPERATION.validate(params, {"values": ArrayInfo(values.dtype.name, values.shape)})
    return cpu.dp_noise(parsed, values, key=key or secrets.token_bytes(32))


# Means.


@pytest.mark.parametrize("neighbouring", ["add_remove", "replace_one"])
def test_a_mean_is_that_of_the_clipped_records(neighbouring: str) -> None:
    values = np.random.default_rng(1).normal(0, 1, (5000, 3))
    answer = _release({**_MEAN, **_SURE, "neighbouring": neighbouring}, values)
    assert answer["noisy"] == pytest.approx(np.clip(values, -1, 1).mean(axis=0), abs=answer["accuracy_95"] * 8)
    assert answer["accuracy_95"] < 1e-3


def test_a_mean_of_privately_many_records_is_a_noisy_sum_by_a_noisy_count_and_never_by_the_true_one() -> None:
    values, key = np.random.default_rng(2).normal(0.4, 1, 300), bytes(range(32))
    answer = _release({**_MEAN, "epsilon": "0.5"}, values, key)
    summed = _release({**_MEAN, "query": "sum", "epsilon": "0.25"}, values, key)["noisy"]
    noisy_count = answer["split"]["count"]["noisy"]
    assert noisy_count != 300
    assert answer["noisy"].tolist() == (summed / noisy_count).tolist()


@pytest.mark.parametrize(
    "amount",
    [
        {"epsilon": "0.7"},
        {"epsilon": None, "scale": "30"},
        {**_GAUSSIAN, "rho": "0.02"},
        {**_GAUSSIAN, "scale": "30"},
        {**_GAUSSIAN, "epsilon": "1", "delta": "1e-6"},
    ],
)
def test_sum_and_count_share_one_charge_evenly(amount: dict[str, Any]) -> None:
    answer = _release({**_MEAN, **amount}, np.ones((50, 4)))
    name = "epsilon" if "mechanism" not in amount else "rho"
    summed, counted = (Fraction(answer["split"][part][name]["exact"]) for part in ("sum", "count"))
    spent = Fraction(answer["spent"][name]["exact"])
    assert summed + counted == spent
    assert summed == pytest.approx(counted, rel=1e-3)
    budget = Fraction(amount.get(name) or 0)
    assert budget == 0 or budget * Fraction(999, 1000) < spent <= budget
    charged = OPERATION.spend and OPERATION.spend(
        OPERATION.validate({**_MEAN, **amount, **_BUDGET}, _info(50, 4)), _info(50, 4)
    )
    assert charged is not None
    assert (charged.pure if name == "epsilon" else charged.zcdp) == (budget or spent)
    assert "each of which spent one half" in answer["statement"]


def test_the_noise_of_a_count_shares_no_words_with_that_of_its_sum() -> None:
    for mechanism in ({}, {**_GAUSSIAN, "rho": "0.5"}):
        for key in range(1, 30):
            answer = _release({**_MEAN, **mechanism, **_CLIP}, np.zeros(1000), bytes([key]) * 32)
            split = answer["split"]
            count = (split["count"]["noisy"] - 1000) / split["count"]["scale"]["value"]
            summed = answer["noisy"][0] * split["count"]["noisy"] / split["sum"]["scale"]["value"]
            assert abs(count - summed) > 1e-6


def test_a_mean_stays_within_its_bound_where_the_noisy_count_is_nothing() -> None:
    counts = []
    for key in range(1, 40):
        answer = _release({**_MEAN, "epsilon": "0.01"}, [0.5], bytes([key]) * 32)
        counts.append(answer["split"]["count"]["noisy"])
        assert abs(answer["noisy"][0]) <= 1
        assert answer["accuracy_95"] <= 2
    assert min(counts) < 1 < max(counts)


@pytest.mark.parametrize(
    ("change", "count"),
    [({"epsilon": "1"}, 60), ({**_GAUSSIAN, "rho": "0.1"}, 40), ({"neighbouring": "replace_one"}, 9)],
)
def test_the_error_of_a_mean_is_within_its_accuracy_in_95_of_100_releases(change: dict[str, Any], count: int) -> None:
    values = np.random.default_rng(3).uniform(-1, 1, count) + 0.6
    true, runs = np.clip(values, -1, 1).mean(), 600
    within = 0
    for run in range(runs):
        answer = _release({**_MEAN, **change}, values, run.to_bytes(32, "big"))
        within += abs(answer["noisy"][0] - true) < answer["accuracy_95"]
    assert within / runs > 0.95 - 5 * (0.95 * 0.05 / runs) ** 0.5


# Histograms.


def _counts(values: Any, **bins: Any) -> list[int]:
    """The counts under so little noise that rounding takes it away."""
    noisy = _release({**_HISTOGRAM, **_SURE, "bins": bins}, values)["noisy"]
    counts: list[int] = np.rint(noisy).astype(int).tolist()
    assert np.abs(noisy - counts).max() < 0.1
    return counts


_FLOATS = st.floats(-1e6, 1e6)


@_settings
@given(st.data(), st.lists(_FLOATS, min_size=2, max_size=9, unique=True).map(sorted))
def test_a_histogram_counts_as_numpy_does(data: st.DataObject, edges: list[float]) -> None:
    near = st.sampled_from(edges).flatmap(
        lambda edge: st.sampled_from([edge, nextafter(edge, -1e9), nextafter(edge, 1e9), -edge])
    )
    values = data.draw(st.lists(near | _FLOATS | st.sampled_from([0.0, -0.0, 1e300]), min_size=1, max_size=40))
    assert _counts(values, edges=edges) == np.histogram(values, edges)[0].tolist()


@pytest.mark.parametrize("count", [1, 31, 32, 33, 1023, 1024, 1025, 20_000])
def test_categories_count_integers_and_leave_out_all_others(count: int) -> None:
    values = np.random.default_rng(count).integers(-5, 30, count)
    inside = values[(values >= 0) & (values < 24)]
    assert _counts(values, categories=24) == np.bincount(inside, minlength=24).tolist()


def test_an_integer_beyond_float64_is_in_no_category_and_is_not_refused() -> None:
    assert _counts(np.array([2**62 + 1, -(2**63), 1]), categories=3) == [0, 1, 0]


def test_no_count_depends_on_the_order_of_records_or_on_how_they_are_shared_out() -> None:
    values = np.random.default_rng(5).normal(0, 1, 5001)
    edges = np.linspace(-2, 2, 38)
    counted = [
        count_records(order, edges, parts).tolist() for order in (values, values[::-1]) for parts in (1, 2, 7, 5001)
    ]
    assert all(counts == counted[0] for counts in counted)
    assert sum(counted[0]) == ((values >= -2) & (values <= 2)).sum()


@pytest.mark.parametrize(
    ("info", "bins", "message"),
    [
        (ArrayInfo("float64", (9, 2)), {"categories": 3}, r"one value a record, shape \(n,\), got \[9, 2\]"),
        (
            ArrayInfo("float32", (9,)),
            {"categories": 3},
            "categories are integers, and the values are float32: give edges",
        ),
    ],
)
def test_what_cannot_be_counted_is_refused(info: ArrayInfo, bins: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        OPERATION.validate({**_HISTOGRAM, "bins": bins}, {"values": info})


@pytest.mark.parametrize("mechanism", ["discrete_laplace", "discrete_gaussian"])
@pytest.mark.parametrize("neighbouring", ["add_remove", "replace_one"])
def test_a_record_moves_a_histogram_by_exactly_its_sensitivity(mechanism: str, neighbouring: str) -> None:
    laplace = mechanism == "discrete_laplace"
    amount = {"epsilon": "0.5"} if laplace else {"rho": "0.125", "epsilon": None}
    params = OPERATION.validate(
        {**_HISTOGRAM, "mechanism": mechanism, "neighbouring": neighbouring, "bins": {"categories": 4}, **amount},
        {"values": ArrayInfo("int64", (3,))},
    )
    made = plan(params, (3,))  # type: ignore[arg-type]
    edges = np.arange(-0.5, 4.5)
    before, after = ([0.0, 1, 3], [0.0, 1]) if neighbouring == "add_remove" else ([0.0, 1, 3], [0.0, 1, 2])
    moved = (count_records(np.array(before), edges, 1) - count_records(np.array(after), edges, 1)) * made.bound
    distance = np.abs(moved).sum() ** 2 if laplace else (moved**2).sum()
    assert distance == made.sensitivity_squared


# Records by themselves.


def test_each_record_is_clipped_and_has_noise_of_its_own() -> None:
    values = np.array([[0.5, 3.0], [-9.0, 0.25], [0.125, -1.0]])
    answer = _release({**_IDENTITY, **_SURE}, values)
    assert answer["noisy"] == pytest.approx(np.clip(values, -1, 1), abs=0.1)
    steps = (answer["noisy"] - np.clip(values, -1, 1)).reshape(-1)
    assert len(set(steps.tolist())) == 6


def test_a_replaced_record_changes_its_own_row_alone() -> None:
    values, key = np.random.default_rng(6).normal(0, 1, (40, 3)), bytes(range(32))
    other = values.copy()
    other[7] = 0.3
    changed = _release(_IDENTITY, values, key)["noisy"] != _release(_IDENTITY, other, key)["noisy"]
    assert np.flatnonzero(changed.any(axis=1)).tolist() == [7]


@_settings
@given(st.data(), st.sampled_from(["l1", "l2", "linf"]), st.integers(1, 6), st.booleans())
def test_no_record_moves_its_row_by_more_than_the_sensitivity(
    data: st.DataObject, norm: str, width: int, laplace: bool
) -> None:
    amount = {} if laplace else {**_GAUSSIAN, "rho": "0.5"}
    params = OPERATION.validate(
        {**_IDENTITY, **amount, "clip": {"norm": norm, "bound": "1.5"}}, {"values": ArrayInfo("float64", (2, width))}
    )
    made = plan(params, (2, width))  # type: ignore[arg-type]
    floats = st.floats(-4, 4) | st.floats(allow_nan=False, allow_infinity=False)
    rows = np.array(data.draw(st.lists(floats, min_size=2 * width, max_size=2 * width))).reshape(2, width)
    rows[1] = -rows[0] if data.draw(st.booleans()) else rows[1]
    arguments = np.uint64(made.mantissa), made.exponent, made.saturation, NORM[norm], made.bound
    clipped = clip_records(as_bits(rows, clipped=True), *arguments)
    moved = [int(q) for q in clipped[0] - clipped[1]]
    assert (sum(map(abs, moved)) ** 2 if laplace else sum(q * q for q in moved)) <= made.sensitivity_squared
    # Summing clips in the same way.
    assert sum_records(as_bits(rows, clipped=True), *arguments, 1).tolist() == clipped.sum(axis=0).tolist()


# All of them.

_QUERIES: list[tuple[dict[str, Any], npt.NDArray[Any]]] = [
    (_MEAN, np.linspace(-3, 3, 60).reshape(20, 3)),
    ({**_MEAN, "neighbouring": "replace_one"}, np.linspace(-3, 3, 60)),
    ({**_HISTOGRAM, "bins": {"edges": [-1.5, 0.25, 2.0]}}, np.linspace(-3, 3, 60)),
    ({**_HISTOGRAM, "bins": {"categories": 40}}, np.arange(60) % 43),
    (_IDENTITY, np.linspace(-3, 3, 60)),
    ({**_IDENTITY, "clip": {"norm": "l2", "bound": "1"}}, np.linspace(-3, 3, 60).reshape(20, 3)),
]


@pytest.mark.parametrize(("params", "values"), _QUERIES)
def test_an_answer_has_every_output_and_says_what_it_is(params: dict[str, Any], values: npt.NDArray[Any]) -> None:
    answer = _release(params, values)
    assert list(answer) == [output.name for output in OPERATION.outputs]
    assert answer["neighbouring"] == params["neighbouring"]
    assert answer["sensitivity_source"] == "enforced"
    assert answer["unaccounted"] is True
    change = "adding or removing" if params["neighbouring"] == "add_remove" else "replacing"
    assert re.search(
        f"epsilon-differentially private with epsilon = (1|0.99999[0-9]*) for {change} one record", answer["statement"]
    )
    assert "not from this service, which sees the records" in answer["statement"]
    charged = _release({**params, **_BUDGET}, values)
    assert charged["unaccounted"] is False
    assert "Unaccounted" not in charged["statement"]


@pytest.mark.parametrize(("params", "values"), _QUERIES)
@pytest.mark.parametrize("chunk", [7, 30, 10**6])
def test_a_query_has_the_same_bytes_however_it_is_cut_and_leaves_none_behind(
    params: dict[str, Any], values: npt.NDArray[Any], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("dp_noise", params, lambda: {"values": values}, key=bytes(range(1, 33)))
    expected = case.run()
    monkeypatch.setattr(spec, "CHUNK", chunk)
    device = WatchedDevice()
    assert_same(case, expected, case.run(device))
    assert device.left() == 0
    grid = OPERATION.grid(OPERATION.params.model_validate(params, strict=False), _info(*values.shape))
    assert_same(case, expected, case.run(EmulatedDevice(memory=grid.fixed + grid.each)))


@pytest.mark.parametrize(("params", "values"), _QUERIES)
def test_every_query_runs_on_a_device_with_one_multiprocessor(params: dict[str, Any], values: npt.NDArray[Any]) -> None:
    device = EmulatedDevice()
    device.multiprocessors = device.blocks_per_multiprocessor = 1
    parsed = OPERATION.params.model_validate(params, strict=False)
    expected = _release(params, values, bytes(32))["noisy"]
    assert np.array_equal(gpu.dp_noise(parsed, values, key=bytes(32), device=device)["noisy"], expected)


@pytest.mark.parametrize(("params", "values"), _QUERIES)
def test_a_null_in_the_values_is_refused_whatever_is_asked(params: dict[str, Any], values: npt.NDArray[Any]) -> None:
    broken = values.astype(np.float64)
    broken.reshape(-1)[5] = np.nan
    parsed = OPERATION.params.model_validate(params, strict=False)
    with pytest.raises(InvalidRequest, match="NaN or an infinity"):
        cpu.dp_noise(parsed, broken, key=bytes(32))


def _info(*shape: int) -> dict[str, ArrayInfo]:
    return {"values": ArrayInfo("float64", shape)}
