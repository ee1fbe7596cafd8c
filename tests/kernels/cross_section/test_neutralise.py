"""Residuals are those of least squares: NumPy's, certified ones, and fractions where factors are nearly collinear."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.cross_section.cases import market
from tests.kernels.parity import Case

Array = npt.NDArray[Any]
NAN = math.nan


def neutralise(values: Any, **given: Any) -> dict[str, Array]:
    arrays = {"values": np.asarray(values)}
    arrays |= {name: np.asarray(given.pop(name)) for name in ("groups", "factors", "weights") if name in given}
    return Case("neutralise", given, lambda: arrays).run()


def least_squares(values: Array, design: Array, weights: Array | None = None) -> Array:
    """NumPy's residuals of one bar, for a design (assets, unknowns); a NaN anywhere leaves an asset out."""
    root = np.sqrt(np.ones(len(values)) if weights is None else weights)
    there = ~np.isnan(values) & ~np.isnan(root) & ~np.isnan(design).any(axis=1)
    found = np.full(len(values), NAN)
    scaled = design[there] * root[there, None]
    coefficients = np.linalg.lstsq(scaled, values[there] * root[there], rcond=None)[0]
    found[there] = values[there] - design[there] @ coefficients
    return found


def design_of(assets: int, factors: Array, groups: Array | None = None) -> Array:
    """Columns of an intercept, or of one for each group, and of factors (factors, assets); no group: a NaN."""
    if groups is None:
        return np.column_stack([np.ones(assets), factors.T])
    dummies = [np.where(groups < 0, NAN, groups == label) for label in sorted(set(groups.tolist()) - {-1})]
    return np.column_stack([*dummies, factors.T])


@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("groups", [0, 4])
@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_residuals_are_those_of_numpy(count: int, groups: int, weights: bool, moving: bool) -> None:
    found = market(150, 4, groups=groups, factors=count, weights=weights, moving=moving)
    answer = neutralise(**found)
    assert (answer["used"] == count).all()
    for bar in range(4):
        own = {name: array[..., bar] if moving else array for name, array in found.items()}
        factors = own.get("factors", np.empty((0, 150)))
        expected = least_squares(
            found["values"][:, bar], design_of(150, factors, own.get("groups")), own.get("weights")
        )
        assert np.allclose(answer["residual"][:, bar], expected, rtol=0, atol=2e-14, equal_nan=True)


def test_without_an_intercept_the_regression_goes_through_the_origin() -> None:
    found = market(90, 3, factors=2)
    answer = neutralise(**found, intercept=False)["residual"]
    for bar in range(3):
        expected = least_squares(found["values"][:, bar], found["factors"].T)
        assert np.allclose(answer[:, bar], expected, rtol=0, atol=1e-14, equal_nan=True)


def test_without_factors_values_are_demeaned() -> None:
    found = market(60, 5)
    values = found["values"]
    assert np.allclose(
        neutralise(values)["residual"], values - np.nanmean(values, axis=0), rtol=0, atol=1e-15, equal_nan=True
    )
    # groupby(labels).transform(lambda group: group - group.mean()) of pandas 3.1.1.
    prices = [[3.0, NAN], [1.0, 2.0], [3.0, 5.0], [2.0, 2.0], [1.0, 8.0]]
    pandas = [[1.0, NAN], [-1.0, 0.0], [1.0, 0.0], [0.0, -3.0], [-1.0, 3.0]]
    assert np.array_equal(neutralise(prices, groups=[7, 7, 9, 9, 9])["residual"], pandas, equal_nan=True)


LONGLEY = """60323 83.0 234289 2356 1590 107608 1947  61122 88.5 259426 2325 1456 108632 1948
60171 88.2 258054 3682 1616 109773 1949  61187 89.5 284599 3351 1650 110929 1950
63221 96.2 328975 2099 3099 112075 1951  63639 98.1 346999 1932 3594 113270 1952
64989 99.0 365385 1870 3547 115094 1953  63761 100.0 363112 3578 3350 116219 1954
66019 101.2 397469 2904 3048 117388 1955  67857 104.6 419180 2822 2857 118734 1956
68169 108.4 442769 2936 2798 120445 1957  66513 110.8 444546 4681 2637 121950 1958
68655 112.6 482704 3813 2552 123366 1959  69564 114.2 502601 3931 2514 125368 1960
69331 115.7 518173 4806 2572 127852 1961  70551 116.9 554894 4007 2827 130081 1962"""


def test_longleys_residuals_have_the_certified_sum_of_squares() -> None:
    """Longley (1967), of the Statistical Reference Datasets of NIST: residual sum of squares 836424.055505915 and
    residual standard deviation 304.854073561965. Its seven columns have a condition number of 5e9."""
    table = np.array(LONGLEY.split(), float).reshape(16, 7)
    residual = neutralise(table[:, :1], factors=table[:, 1:].T)["residual"][:, 0]
    assert (residual**2).sum() == pytest.approx(836424.055505915, rel=1e-9)
    assert math.sqrt((residual**2).sum() / 9) == pytest.approx(304.854073561965, rel=1e-9)


def exact_residuals(values: Array, design: Array, weights: Array) -> Array:
    """By elimination in fractions, of the normal equations."""
    rows = [[Fraction(number) for number in row] for row in design.tolist()]
    numbers, scales = [[Fraction(number) for number in array.tolist()] for array in (values, weights)]
    count = len(rows[0])
    table = [
        [sum(w * row[i] * row[j] for w, row in zip(scales, rows, strict=True)) for j in range(count)]
        + [sum(w * row[i] * y for w, row, y in zip(scales, rows, numbers, strict=True))]
        for i in range(count)
    ]
    for i in range(count):
        table[i] = [number / table[i][i] for number in table[i]]
        for j in range(count):
            if j != i:
                table[j] = [a - table[j][i] * b for a, b in zip(table[j], table[i], strict=True)]
    fitted = [sum(row[i] * table[i][count] for i in range(count)) for row in rows]
    return np.array([float(y - fit) for y, fit in zip(numbers, fitted, strict=True)])


@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0), (1e-9, 1e9, 1.0), (1e100, 1e-100, 1e50)])
@pytest.mark.parametrize("apart", [1.0, 1e-3, 1e-6, 1e-9])
def test_residuals_are_exact_for_factors_nearly_collinear_and_badly_scaled(
    apart: float, scales: tuple[float, float, float]
) -> None:
    random = np.random.default_rng(3)
    first, noise, other = random.normal(size=(3, 25))
    factors = np.stack([first, first + apart * noise, 1.0 + apart * other]) * np.array(scales)[:, None]
    values, weights = random.normal(size=(25, 1)), random.uniform(0.5, 2, 25)
    answer = neutralise(values, factors=factors, weights=weights)
    expected = exact_residuals(values[:, 0], design_of(25, factors), weights)
    assert answer["used"].tolist() == [3]
    # The exposures themselves are rounded, which moves their differences by 1e-16 / apart.
    assert np.abs(answer["residual"][:, 0] - expected).max() < 3e-15 / min(1.0, 30 * apart)


def test_residuals_are_orthogonal_to_the_factors_and_have_no_mean_in_any_group() -> None:
    found = market(400, 3, groups=7, factors=6, weights=True, gaps=0.0)
    found["factors"][1] = found["factors"][0] + 1e-8 * found["factors"][1]
    residual, weights, there = neutralise(**found)["residual"], found["weights"], found["groups"] >= 0
    for bar in range(3):
        weighted = (weights * residual[:, bar])[there]
        for factor in found["factors"][:, there]:
            assert abs(weighted @ factor) < 1e-13
        for label in range(7):
            assert abs(weighted[found["groups"][there] == label].sum()) < 1e-14
    again = neutralise(**found | {"values": residual})["residual"]
    assert np.allclose(again, residual, rtol=0, atol=1e-15, equal_nan=True)


def test_a_factor_that_says_nothing_new_is_left_out_and_the_answer_tells() -> None:
    found = market(80, 3, groups=3, factors=2, gaps=0.0)
    expected = neutralise(**found)
    factors = found["factors"]
    of_groups = np.isin(found["groups"], [1, 2]).astype(float)
    idle = np.stack([factors[0], np.full(80, 3.0), of_groups, factors[1], factors[0] - 2 * factors[1], np.zeros(80)])
    answer = neutralise(**found | {"factors": idle})
    assert answer["used"].tolist() == expected["used"].tolist() == [2, 2, 2]
    assert np.allclose(answer["residual"], expected["residual"], rtol=0, atol=1e-14, equal_nan=True)


@pytest.mark.parametrize(("assets", "solvable"), [(4, False), (5, True)])
def test_fewer_assets_than_unknowns_have_no_residuals(assets: int, solvable: bool) -> None:
    """Three factors and two groups are five unknowns."""
    random = np.random.default_rng(2)
    values, factors = random.normal(size=(9, 1)), random.normal(size=(3, 9))
    values[assets:] = NAN
    answer = neutralise(values, factors=factors, groups=np.arange(9) % 2)
    residual = answer["residual"]
    assert answer["used"].tolist() == [3 if solvable else 0]
    assert np.isnan(residual[assets:]).all()
    assert not solvable or np.abs(residual[:assets]).max() < 1e-13
    assert np.isnan(residual[:assets]).all() != solvable


def test_an_asset_of_weight_zero_has_a_residual_and_no_influence() -> None:
    found = market(50, 2, factors=2, gaps=0.0)
    weights = np.ones(50)
    weights[40:] = 0.0
    answer = neutralise(**found, weights=weights)["residual"]
    inside = neutralise(found["values"][:40], factors=found["factors"][:, :40])["residual"]
    assert np.allclose(answer[:40], inside, rtol=0, atol=1e-14)
    for bar in range(2):
        design = design_of(50, found["factors"])
        fitted = np.linalg.lstsq(design[:40], found["values"][:40, bar], rcond=None)[0]
        assert np.allclose(answer[40:, bar], (found["values"][:, bar] - design @ fitted)[40:], rtol=0, atol=1e-14)


def test_a_group_without_weight_has_no_residuals_and_disturbs_no_other() -> None:
    found = market(30, 2, groups=3, factors=1, gaps=0.0)
    inside = found["groups"] != 1
    answer = neutralise(**found, weights=inside.astype(float))["residual"]
    expected = neutralise(**found | {"groups": np.where(inside, found["groups"], -1)})["residual"]
    assert np.isnan(answer[~inside]).all()
    assert np.allclose(answer, expected, rtol=0, atol=1e-15, equal_nan=True)


def test_weights_times_a_power_of_two_change_no_byte() -> None:
    found = market(70, 2, groups=3, factors=2, weights=True)
    expected = neutralise(**found)["residual"]
    assert neutralise(**found | {"weights": found["weights"] * 2.0**40})["residual"].tobytes() == expected.tobytes()


def test_numbers_beyond_the_range_of_squares_are_no_wrong_residuals() -> None:
    values, factors = np.array([[1.0], [2.0], [4.0]]), np.array([[1e200, -1e200, 3e200]])
    answer = neutralise(values, factors=factors)
    assert answer["used"].tolist() == [0]
    assert np.allclose(answer["residual"][:, 0], values[:, 0] - 7 / 3)
