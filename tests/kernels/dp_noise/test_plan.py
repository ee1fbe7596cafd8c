"""The plan never spends more than was asked, and its sensitivity is one that neighbouring data cannot exceed."""

import re
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.dp_noise.cases import RECORDS
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.dp_noise.description import describe
from warpdesk_server.kernels.dp_noise.integers import sum_records, to_grid
from warpdesk_server.kernels.dp_noise.params import DpNoise
from warpdesk_server.kernels.dp_noise.plan import Plan, plan
from warpdesk_server.kernels.dp_noise.release import NORM, as_bits
from warpdesk_server.kernels.dp_noise.spec import OPERATION
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.kernels.spend import Spend

# The first call of a compiled function loads or compiles it: no example has a deadline.
_settings = settings(deadline=None, max_examples=50)

_NORMS = st.sampled_from(["l1", "l2", "linf"])
_AMOUNTS = st.decimals("0.001", "50", places=5).map(str)


def _params(**params: Any) -> DpNoise:
    return DpNoise(unaccounted=True, **params)


def _records(norm: str, bound: str, neighbouring: str = "add_remove", **amount: str) -> DpNoise:
    mechanism = "discrete_laplace" if "epsilon" in amount else "discrete_gaussian"
    clip = {"norm": norm, "bound": bound}
    return _params(**{"mechanism": mechanism, "mode": "records", "clip": clip, "neighbouring": neighbouring, **amount})


def _aggregate(norm: str, value: str, **amount: str) -> DpNoise:
    mechanism = "discrete_laplace" if "epsilon" in amount else "discrete_gaussian"
    return _params(mechanism=mechanism, mode="aggregate", sensitivity={"norm": norm, "value": value}, **amount)


@_settings
@given(_NORMS, _AMOUNTS, _AMOUNTS, st.sampled_from(["add_remove", "replace_one"]), st.integers(1, 40), st.booleans())
def test_records_spend_at_most_what_was_asked_and_nearly_all_of_it(
    norm: str, bound: str, amount: str, neighbouring: str, width: int, laplace: bool
) -> None:
    name = "epsilon" if laplace else "rho"
    params = _records(norm, bound, neighbouring, **{name: amount})
    spent = Fraction(describe(params, plan(params, (10, width)))["spent"][name]["exact"])
    assert Fraction("0.99") * Fraction(amount) < spent <= Fraction(amount)


@_settings
@given(_NORMS, _AMOUNTS, _AMOUNTS, st.integers(1, 2000), st.booleans())
def test_aggregates_spend_at_most_what_was_asked_and_nearly_all_of_it(
    norm: str, value: str, amount: str, width: int, laplace: bool
) -> None:
    name = "epsilon" if laplace else "rho"
    params = _aggregate(norm, value, **{name: amount})
    spent = Fraction(describe(params, plan(params, (width,)))["spent"][name]["exact"])
    assert Fraction("0.99") * Fraction(amount) < spent <= Fraction(amount)


@_settings
@given(_NORMS, _AMOUNTS, _AMOUNTS)
def test_a_given_sigma_is_met_and_the_rho_it_costs_is_at_least_the_theory(norm: str, bound: str, sigma: str) -> None:
    made = plan(_records(norm, bound, scale=sigma), (5, 3))
    assert made.scale >= Fraction(sigma)
    assert made.scale <= Fraction(sigma) * (1 + Fraction(1, 2**51))
    # One record moves the sum by at most its clip bound, which lies on the grid.
    assert made.bound <= Fraction(bound) * made.steps


def test_accounts_are_the_formulas_of_canonne_kamath_and_steinke() -> None:
    laplace = plan(_records("l1", "1.5", epsilon="0.5"), (100, 4))
    assert (laplace.log2_scale, laplace.bound, laplace.sensitivity_squared) == (20, 2**19, 2**38)
    assert describe(_records("l1", "1.5", epsilon="0.5"), laplace)["spent"]["epsilon"]["exact"] == "1/2"
    gaussian = plan(_records("l2", "1", rho="0.5"), (100, 4))
    assert (gaussian.log2_scale, gaussian.bound) == (20, 2**20)  # rho 1/2: sigma is the sensitivity
    replaced = plan(_records("l2", "1", "replace_one", rho="0.5"), (100, 4))
    assert replaced.bound == 2**19
    assert replaced.scale == 2 * gaussian.scale
    wide = plan(_records("linf", "1", rho="0.5"), (100, 4))  # four coordinates move at once: sigma doubles
    assert wide.bound == 2**19


@_settings
@given(_AMOUNTS, _AMOUNTS, st.integers(1, 40), st.booleans())
def test_no_number_told_understates_the_budget_or_overstates_the_noise(
    bound: str, amount: str, width: int, laplace: bool
) -> None:
    name = "epsilon" if laplace else "rho"
    _assert_careful(_records("l2", bound, **{name: amount}), name, width)


@pytest.mark.parametrize(("epsilon", "steps"), [("1e-10", 109), ("2e-11", 21)])
def test_a_coarse_grid_is_told(epsilon: str, steps: int) -> None:
    coarse, fine = (_records("linf", "1", epsilon=each) for each in (epsilon, "1"))
    description = describe(coarse, plan(coarse, (10,)))
    assert description["sensitivity"]["grid_units"] == steps
    assert f"The grid is coarse: the sensitivity is {steps} steps of it." in description["statement"]
    assert "coarse" not in describe(fine, plan(fine, (10,)))["statement"]


def test_a_budget_of_more_bits_than_a_float_is_told_by_the_float_above_it() -> None:
    for rho in range(100_000, 100_020):
        _assert_careful(_records("l2", "1", rho=str(rho)), "rho", 3)


def _assert_careful(params: DpNoise, name: str, width: int) -> None:
    description = describe(params, plan(params, (10, width)))
    exact = Fraction(description["spent"][name]["exact"])
    in_words = re.search(rf" {name} = (\S+) for .* noise at scale (\S+)\. ", description["statement"])
    assert in_words is not None
    assert exact <= Fraction(in_words[1]) <= exact * (1 + Fraction(1, 10**11))
    assert exact <= Fraction(description["spent"][name]["value"]) <= exact * (1 + Fraction(1, 2**52))
    scale = Fraction(description["scale"]["exact"])
    assert scale * (1 - Fraction(1, 10**11)) <= Fraction(in_words[2]) <= scale


def test_accuracy_is_that_of_opendp() -> None:
    # OpenDP 0.16.0: discrete_laplacian_scale_to_accuracy(2**20, 0.05) = 3141253.46..., and ours is the next integer;
    # discrete_gaussian_scale_to_accuracy(2**20, 0.05) = 2055172, and ours may be one step more careful.
    laplace, gaussian = _aggregate("linf", "1", epsilon="1"), _aggregate("linf", "1", scale="1")
    for params, steps, allowed in ((laplace, 3141254, 0), (gaussian, 2055172, 1)):
        made = plan(params, (1,))
        assert made.log2_scale == 20
        assert 0 <= round(describe(params, made)["accuracy_95"] / float(made.grid)) - steps <= allowed


def test_less_budget_is_more_noise() -> None:
    for norm in NORM:
        for name in ("epsilon", "rho"):
            scales = [plan(_records(norm, "1", **{name: f"1e-{e}"}), (10, 3)).scale for e in range(8)]
            assert scales == sorted(scales)
            assert len(set(scales)) == 8


@_settings
@given(st.data(), _NORMS, st.integers(1, 6), st.booleans(), st.sampled_from(["add_remove", "replace_one"]))
def test_no_neighbouring_records_move_the_sum_by_more_than_the_sensitivity(
    data: st.DataObject, norm: str, width: int, laplace: bool, neighbouring: str
) -> None:
    amount = data.draw(st.sampled_from(["0.003", "0.5", "1", "7"]))
    params = _records(norm, "1.5", neighbouring, **{"epsilon" if laplace else "rho": amount})
    made = plan(params, (3, width))
    floats = st.floats(-4, 4) | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([1.5, -1.5, 1e300])
    rows = np.array(data.draw(st.lists(floats, min_size=3 * width, max_size=3 * width))).reshape(3, width)
    other = rows[:2] if neighbouring == "add_remove" else np.vstack([rows[:2], -rows[2:]])
    moved = [int(q) for q in _total(made, norm, rows) - _total(made, norm, other)]
    distance = sum(map(abs, moved)) ** 2 if laplace else sum(q * q for q in moved)
    assert distance <= made.sensitivity_squared


@_settings
@given(st.data(), _NORMS, st.integers(1, 6), st.booleans())
def test_rounding_costs_an_aggregate_no_more_than_was_added_for_it(
    data: st.DataObject, norm: str, width: int, laplace: bool
) -> None:
    params = _aggregate(
        norm, "0.75", **{"epsilon" if laplace else "rho": data.draw(st.sampled_from(["0.01", "1", "9"]))}
    )
    made = plan(params, (width,))
    # Near the half steps, where two close statistics may round apart.
    halves = st.integers(-(2**30), 2**30).map(lambda n: float((n + Fraction(1, 2)) * made.grid))
    base = [data.draw(halves) for _ in range(width)]
    shares = np.array([data.draw(st.integers(-100, 100)) for _ in range(width)], np.float64)
    length = {"l1": np.abs(shares).sum(), "l2": np.sqrt((shares**2).sum()), "linf": np.abs(shares).max()}[norm]
    moved = np.array(base) + (0.75 * (1 - 1e-9) * shares / length if length else shares)
    if not _apart(
        [Fraction(float(b)) - Fraction(float(m)) for b, m in zip(base, moved, strict=True)], norm, Fraction("0.75")
    ):
        return  # floats of the moved point rounded it beyond what was declared
    difference = [int(q) for q in _grid(made, np.array(base)) - _grid(made, moved)]
    distance = sum(map(abs, difference)) ** 2 if laplace else sum(q * q for q in difference)
    assert distance <= made.sensitivity_squared


def test_rounding_adds_one_grid_step_a_coordinate_in_l1() -> None:
    params = _aggregate("l1", "1", epsilon="1")
    made = plan(params, (7,))
    sensitivity = describe(params, made)["sensitivity"]
    assert sensitivity["grid_units"] == 2**20
    assert Fraction(sensitivity["grid_units"]) - 7 >= made.steps >= Fraction(sensitivity["grid_units"]) - 8


@_settings
@given(_NORMS, _AMOUNTS, _AMOUNTS, st.booleans())
def test_what_is_charged_is_what_was_asked(norm: str, bound: str, amount: str, laplace: bool) -> None:
    name, budget = ("epsilon" if laplace else "rho"), Fraction(amount)
    spent = _spend(_records(norm, bound, "replace_one", **{name: amount}))
    assert spent.neighbouring == "replace_one"
    if laplace:
        assert (spent.pure, spent.approx, spent.zcdp) == (budget, (budget, 0), budget**2 / 2)
    else:
        assert (spent.pure, spent.approx, spent.zcdp) == (None, None, budget)


@_settings
@given(_NORMS, _AMOUNTS, _AMOUNTS, st.booleans())
def test_a_scale_is_charged_with_exactly_what_its_noise_costs(norm: str, bound: str, scale: str, laplace: bool) -> None:
    params = _records(norm, bound, scale=scale, mechanism="discrete_laplace" if laplace else "discrete_gaussian")
    made = plan(params, (10, 3))
    ratio = Fraction(made.sensitivity_squared, 4**made.log2_scale)
    spent = _spend(params)
    assert spent.zcdp == ratio / 2
    if laplace:
        assert spent.pure is not None
        assert spent.pure**2 == ratio
        assert spent.approx == (spent.pure, 0)
    else:
        assert (spent.pure, spent.approx) == (None, None)


def test_a_declared_sensitivity_is_charged_under_no_relation_and_what_is_unaccounted_not_at_all() -> None:
    shape = {"values": ArrayInfo("float64", (10, 3))}
    assert OPERATION.spend is not None
    assert OPERATION.spend(_records("l1", "1", epsilon="1"), shape) is None
    assert _spend(_aggregate("l1", "1", epsilon="0.1")) == Spend(
        Fraction(1, 10), (Fraction(1, 10), Fraction(0)), Fraction(1, 200), None
    )


def _spend(params: DpNoise) -> Spend:
    assert OPERATION.spend is not None
    charging = DpNoise.model_validate({**params.model_dump(), "unaccounted": None, "budget": _BUDGET})
    spent = OPERATION.spend(charging, {"values": ArrayInfo("float64", (10, 3))})
    assert spent is not None
    return spent


_SENSITIVITY = {"norm": "l1", "value": "1"}
_BUDGET = "budget_" + 32 * "a"
_GAUSSIAN = {"mechanism": "discrete_gaussian"}


@pytest.mark.parametrize(
    ("change", "pointer", "message"),
    [
        ({"epsilon": "0"}, "/params/epsilon", "'0' is not above zero"),
        ({"epsilon": "-1"}, "/params/epsilon", "'-1' is not above zero"),
        ({"epsilon": "NaN"}, "/params/epsilon", "'NaN' is not a decimal number"),
        ({"epsilon": "inf"}, "/params/epsilon", "'inf' is not a decimal number"),
        ({"epsilon": "0x1"}, "/params/epsilon", "is not a decimal number"),
        ({"epsilon": "1/3"}, "/params/epsilon", "is not a decimal number"),
        ({"epsilon": ""}, "/params/epsilon", "is not a decimal number"),
        ({"epsilon": "١"}, "/params/epsilon", "is not a decimal number"),
        ({"epsilon": 1.0}, "/params/epsilon", "epsilon should be a string, got 1.0"),
        ({"epsilon": "1e-31"}, "/params/epsilon", "outside 1e-30 to 1e30"),
        ({"epsilon": "1e999"}, "/params/epsilon", "outside 1e-30 to 1e30"),
        ({"epsilon": "1e-13"}, "/params/epsilon", "leaves 0 grid steps for the sensitivity"),
        ({"epsilon": "1e9"}, "/params/epsilon", "makes the sensitivity 1048576000000000 grid steps"),
        ({"epsilon": None}, "/params", "exactly one of epsilon, rho and scale is needed, got none"),
        ({"rho": "1"}, "/params", "exactly one of epsilon, rho and scale is needed, got epsilon, rho"),
        ({"epsilon": None, "rho": "1"}, "/params", "discrete_laplace does not take rho"),
        ({"delta": "1e-6"}, "/params", "discrete_laplace does not take delta"),
        ({"epsilon": None, "scale": "1", "delta": "1e-6"}, "/params", "discrete_laplace does not take delta"),
        (_GAUSSIAN, "/params", "discrete_gaussian takes epsilon with a delta"),
        ({**_GAUSSIAN, "epsilon": None, "delta": "1e-6"}, "/params", "exactly one of epsilon, rho and scale is needed"),
        ({**_GAUSSIAN, "epsilon": None, "rho": "1", "delta": "1e-6"}, "/params", "rho is taken without a delta"),
        ({**_GAUSSIAN, "delta": "1"}, "/params", "delta '1' is not below one"),
        ({**_GAUSSIAN, "delta": "1.5"}, "/params", "delta '1.5' is not below one"),
        ({**_GAUSSIAN, "delta": "0"}, "/params/delta", "'0' is not above zero"),
        ({**_GAUSSIAN, "delta": "NaN"}, "/params/delta", "'NaN' is not a decimal number"),
        ({**_GAUSSIAN, "delta": 1e-6}, "/params/delta", "delta should be a string"),
        ({**_GAUSSIAN, "epsilon": "1e-12", "delta": "1e-9"}, "/params/epsilon", "1e-12 and delta 1e-9 over 1 coord"),
        ({"mechanism": "laplace"}, "/params/mechanism", "discrete_laplace"),
        ({"clip": None}, "/params", "mode records needs clip"),
        ({"clip": {"norm": "l2", "bound": "0"}}, "/params/clip/bound", "'0' is not above zero"),
        ({"clip": {"norm": "l2", "bound": "-3"}}, "/params/clip/bound", "not above zero"),
        ({"clip": {"norm": "l3", "bound": "1"}}, "/params/clip/norm", "l1"),
        ({"neighbouring": None}, "/params", "mode records needs neighbouring"),
        ({"sensitivity": _SENSITIVITY}, "/params", "mode records does not take sensitivity"),
        ({"mode": "aggregate"}, "/params", "mode aggregate needs sensitivity"),
        ({"mode": "aggregate", "query": "mean"}, "/params", "mode aggregate does not take query mean"),
        ({"query": "median"}, "/params/query", "query should be 'sum', 'mean', 'histogram' or 'identity'"),
        ({"query": "identity"}, "/params", "query identity needs neighbouring replace_one: the answer has one row per"),
        ({"query": "histogram"}, "/params", "mode records with query histogram needs bins"),
        ({"query": "histogram", "bins": {"categories": 3}}, "/params", "with query histogram does not take clip"),
        ({"bins": {"categories": 3}}, "/params", "mode records does not take bins"),
        ({"bins": {}}, "/params/bins", "exactly one of categories and edges, got none"),
        ({"bins": {"categories": 3, "edges": [0, 1]}}, "/params/bins", "exactly one of categories and edges, got both"),
        ({"bins": {"categories": 0}}, "/params/bins/categories", "at least 1, got 0"),
        ({"bins": {"categories": 10**6}}, "/params/bins/categories", "at most 65536, got 1000000"),
        ({"bins": {"edges": [0.5]}}, "/params/bins/edges", "at least 2 items, got 1"),
        ({"bins": {"edges": [0, 1, 1]}}, "/params/bins", "increase strictly, but edge 2, 1.0, comes after 1.0"),
        ({"bins": {"edges": [0.0, -0.0]}}, "/params/bins", "increase strictly, but edge 1, -0.0, comes after 0.0"),
        ({"bins": {"edges": [3, 2]}}, "/params/bins", "increase strictly, but edge 1, 2.0, comes after 3.0"),
        ({"unaccounted": False}, "/params/unaccounted", "should be true, got "),
        ({"unaccounted": None}, "/params", "exactly one of budget and unaccounted is needed"),
        ({"budget": _BUDGET}, "/params", "got both"),
        ({"budget": "budget_1"}, "/params/budget", "budget should match ^budget_"),
        ({"unaccounted": 1}, "/params/unaccounted", "should be the boolean true, got 1"),
        ({"unaccounted": 1.0}, "/params/unaccounted", "should be the boolean true, got 1.0"),
        ({"seed": 7}, "/params/seed", "there is no field"),
        ({"key": "00"}, "/params/key", "there is no field"),
    ],
)
def test_bad_parameters_are_refused_with_the_numbers(change: dict[str, Any], pointer: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        OPERATION.validate({**RECORDS, **change}, {"values": ArrayInfo("float64", (10,))})
    assert any(p.pointer == pointer and message in p.detail for p in refused.value.problems), refused.value


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (ArrayInfo("float64", (0,)), "the array is empty"),
        (ArrayInfo("float64", (4,), has_nan=True), "the array holds a NaN"),
        (ArrayInfo("float64", (4,), has_inf=True), "the array holds an infinity"),
        (ArrayInfo("float64", (2, 2, 2)), "rank 3"),
        (ArrayInfo("uint64", (4,)), "dtype uint64"),
        (ArrayInfo("uint8", (2**43,)), "8796093022208 records * 1048576 grid steps = 9223372036854775808, above"),
    ],
)
def test_bad_values_are_refused_with_the_numbers(info: ArrayInfo, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message.replace("*", r"\*")):
        OPERATION.validate(RECORDS, {"values": info})


def test_a_statistic_too_wide_for_its_budget_is_refused() -> None:
    params = _aggregate("l1", "1", epsilon="0.00001")
    with pytest.raises(InvalidRequest, match="over 100000000 coordinates leaves 0 grid steps"):
        plan(params, (100_000_000,))


def _total(made: Plan, norm: str, rows: Any) -> Any:
    bits = as_bits(np.array(rows), clipped=True)
    return sum_records(bits, np.uint64(made.mantissa), made.exponent, made.saturation, NORM[norm], made.bound, 1)


def _grid(made: Plan, values: Any) -> Any:
    steps = np.empty(prod(values.shape), np.int64)
    to_grid(as_bits(values, clipped=False), np.uint64(made.mantissa), made.exponent, steps)
    return steps


def _apart(difference: list[Fraction], norm: str, at_most: Fraction) -> bool:
    if norm == "l2":
        return sum(x * x for x in difference) <= at_most**2
    return (sum if norm == "l1" else max)(abs(x) for x in difference) <= at_most
