"""Value at risk is the closed forms', NumPy's and SciPy's, and its parts add up to it."""

import math
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
from tests.kernels.parity import Case, assert_same
from tests.kernels.risk.cases import covariance, overflowing, weighted_book
from tests.kernels.risk.reference import reference
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.kernels.risk import cpu, measures, spec
from warpdesk_server.kernels.risk.distributions import normal_tail, student_tail, student_upper

Array = npt.NDArray[Any]
INPUTS = ("weights", "returns", "probabilities", "covariance", "mean")
ONE = np.ones(1)


def case(weights: Any, seed: int = 3, **fields: Any) -> Case:
    arrays = {"weights": np.asarray(weights, float)}
    arrays |= {name: np.asarray(fields.pop(name)) for name in INPUTS if name in fields}
    return Case("value_at_risk", fields, lambda: arrays, seed=seed)


def run(weights: Any, **fields: Any) -> dict[str, Any]:
    return case(weights, **fields).run()


def of_losses(losses: Any, **fields: Any) -> dict[str, Any]:
    """The measures of one asset that loses these."""
    return run(ONE, returns=-np.asarray(losses, float)[:, None], **fields)


HUNDRED = np.random.default_rng(5).permutation(np.arange(1.0, 101.0))


@pytest.mark.parametrize(
    ("quantile", "expected"), [("lower", [95, 99]), ("higher", [96, 100]), ("linear", [95.05, 99.01])]
)
def test_of_losses_of_1_to_100_the_quantiles_and_means_are_those_worked_out_by_hand(
    quantile: str, expected: list[float]
) -> None:
    answer = of_losses(HUNDRED, levels=(0.95, 0.99), quantile=quantile)
    assert answer["var"] == pytest.approx(expected, rel=1e-15)
    assert answer["cvar"] == pytest.approx([98, 100], rel=1e-15)
    assert (answer["levels"], answer["method"], answer["quantile"]) == ([0.95, 0.99], "historical", quantile)


def test_reference_cases_of_scenarios() -> None:
    for each in reference("risk.historical_var_cvar"):
        losses = np.arange(1.0, 101.0) if isinstance(each["losses"], str) else each["losses"]
        for quantile, name in (("lower", "lower_order_stat"), ("higher", "higher"), ("linear", "linear_numpy_type7")):
            answer = of_losses(losses, levels=(each["alpha"],), quantile=quantile)
            assert answer["var"] == pytest.approx(each[f"VaR_{name}"], rel=1e-12)
            assert answer["cvar"] == pytest.approx(each["CVaR_rockafellar_uryasev"], rel=1e-12)


def test_reference_cases_of_distributions() -> None:
    for each in reference("risk.parametric_var_cvar"):
        freedom = each.get("nu")
        chosen = {"distribution": "student_t", "degrees_of_freedom": float(freedom)} if freedom else {}
        variance = freedom / (freedom - 2) if freedom else each["sigma"] ** 2  # of a t as it is in tables
        answer = run(ONE, covariance=[[variance]], method="parametric", levels=(each["alpha"],), **chosen)
        assert answer["var"] == pytest.approx(each["VaR"], rel=1e-13)
        assert answer["cvar"] == pytest.approx(each["CVaR"], rel=1e-13)


# McNeil, Frey and Embrechts, Quantitative Risk Management (2nd edition 2015), table 2.1: ten thousand in one share,
# whose daily log returns have a volatility of 20 % a year of 250 days; a t of 4 degrees of freedom has that variance.
# The printed row of the t's expected shortfall is not used: it is SciPy's integral that is compared.
def test_a_published_table_of_normal_and_t_losses() -> None:
    given = {"covariance": [[0.2**2 / 250]], "method": "parametric", "levels": (0.90, 0.95, 0.975, 0.99, 0.995)}
    normal = run([10_000.0], **given)
    student = run([10_000.0], **given, distribution="student_t", degrees_of_freedom=4.0)
    assert np.abs(normal["var"] - [162.1, 208.1, 247.9, 294.3, 325.8]).max() < 0.06
    assert np.abs(normal["cvar"] - [222.0, 260.9, 295.7, 337.1, 365.8]).max() < 0.06
    assert np.abs(student["var"] - [137.1, 190.7, 248.3, 335.1, 411.8]).max() < 0.06
    scale = 10_000 * 0.2 / math.sqrt(250) * math.sqrt(2 / 4)
    for level, cvar in zip(given["levels"], student["cvar"], strict=True):
        q = stats.t.ppf(level, 4)
        beyond = stats.t.expect(lambda x: x, args=(4,), lb=q, conditional=True)
        assert cvar == pytest.approx(scale * beyond, rel=1e-7)


def tail_mean(losses: Array, masses: Array, level: float) -> tuple[float, float]:
    """The quantile and the mean of the worst 1 - level by exact fractions, from the worst loss down."""
    total = sum(Fraction(mass) for mass in masses)
    tail = rest = total * (1 - Fraction(repr(level)))
    found = Fraction(0)
    order = np.argsort(losses)[::-1]
    for at in order:
        taken = min(rest, Fraction(masses[at]))
        found += taken * Fraction(losses[at])
        rest -= taken
    reached, var = Fraction(0), math.nan
    for at in order[::-1]:
        reached += Fraction(masses[at])
        if reached >= total - tail:
            var = float(losses[at])
            break
    return var, float(found / tail)


@settings(max_examples=60)
@given(
    losses=hnp.arrays(np.float64, st.integers(20, 300), elements=st.floats(-1e6, 1e6, width=32)),
    level=st.sampled_from([0.5, 0.55, 0.9, 0.937, 0.95]),
    decay=st.sampled_from([None, 0.9, 0.97]),
)
def test_quantile_and_tail_mean_are_exact_also_at_fractional_tails_ties_and_weights(
    losses: Array, level: float, decay: float | None
) -> None:
    masses = np.ones(losses.size) if decay is None else np.rint(decay ** np.arange(losses.size)[::-1] * 2.0**40)
    var, cvar = tail_mean(losses, masses, level)
    answer = of_losses(losses, levels=(level,), decay=decay)
    assert answer["var"][0] == var
    assert answer["cvar"][0] == pytest.approx(cvar, rel=1e-12, abs=1e-9)


def test_whole_weights_are_exact_where_a_level_is_their_share() -> None:
    for share in range(50, 100):
        losses, weights = np.append(np.ones(100), 2.0), np.zeros(101)
        weights[[0, 100]] = share, 100 - share
        for scale in (1.0, 2.0**-1070, 2.0**1000, 1 / 64):
            answer = of_losses(losses, probabilities=weights * scale, levels=(share / 100,))
            assert answer["var"] == [1.0], (share, scale)


def test_infinite_losses_have_an_infinite_quantile() -> None:
    found = overflowing()
    for quantile in ("lower", "higher", "linear"):
        answer = run(**found, levels=(0.5, 0.8), quantile=quantile)
        assert answer["var"].tolist() == [[math.inf] * 2, [1e200] * 2]
        assert answer["cvar"][0].tolist() == [math.inf] * 2


@pytest.mark.parametrize("count", [2, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 8191, 8192, 8193])
def test_quantiles_are_numpys_at_every_size(count: int) -> None:
    losses = np.random.default_rng(count).normal(size=count)
    answer = of_losses(losses, levels=(0.5,), quantile="linear")
    assert answer["var"][0] == pytest.approx(np.quantile(losses, 0.5), rel=1e-14)
    assert of_losses(losses, levels=(0.5,))["var"][0] == np.sort(losses)[math.ceil(count / 2) - 1]


def test_a_level_is_the_decimal_that_is_written() -> None:
    # 0.55 * 100 is 55.00000000000001 in binary, of which the ceiling would be 56.
    assert of_losses(HUNDRED, levels=(0.55,))["var"][0] == 55
    assert of_losses(HUNDRED, levels=(0.55,), quantile="higher")["var"][0] == 56


def test_losses_of_portfolios_are_numpys_in_any_shape_of_weights() -> None:
    found = weighted_book(3_000, 30, 70)
    answer = run(**found, levels=(0.9, 0.99))
    losses = -(found["returns"] @ found["weights"].T)
    ranked = np.sort(losses, axis=0)
    assert np.allclose(answer["var"], ranked[[2699, 2969]].T, rtol=1e-13, atol=0)
    for which in (0, 69):
        alone = run(found["weights"][which], returns=found["returns"], levels=(0.9, 0.99))
        assert alone["var"].tobytes() == answer["var"][which].tobytes()
        assert alone["cvar_error"].tobytes() == answer["cvar_error"][which].tobytes()


def test_extremes_are_selected_exactly() -> None:
    losses = [-0.0, 0.0, 5e-324, -5e-324, 1e300, -1e300, 1.0, 1.0, -1.0, 2.0**-1022]
    ranked = sorted(losses)
    for rank in range(5, 11):
        assert of_losses(losses, levels=(rank / 10,) if rank < 10 else (0.9,))["var"][0] == ranked[min(rank, 9) - 1]


@pytest.mark.parametrize(
    "chosen",
    [
        {"method": "historical"},
        {"method": "historical", "decay": 0.99},
        {"method": "historical", "quantile": "linear"},
        {"method": "historical", "quantile": "linear", "window": 5},
        {"method": "parametric"},
        {"method": "parametric", "distribution": "student_t", "degrees_of_freedom": 4.5, "decay": 0.97},
        {"method": "parametric", "distribution": "cornish_fisher"},
        {"method": "monte_carlo", "scenarios": 5_000},
    ],
    ids=str,
)
def test_components_add_up_to_the_measures(chosen: dict[str, Any]) -> None:
    answer = run(**weighted_book(700, 6, 4), components=True, **chosen)
    for name in ("var", "cvar"):
        sums = answer[f"component_{name}"].sum(axis=-1)
        assert np.allclose(sums, answer[name], rtol=1e-11, atol=0)


@pytest.mark.parametrize(
    "chosen",
    [
        {"method": "historical"},
        {"method": "historical", "quantile": "linear", "levels": (0.5, 0.913, 0.957)},
        {"method": "parametric"},
        {"method": "parametric", "distribution": "cornish_fisher", "decay": 0.99},
        {"method": "parametric", "distribution": "student_t", "degrees_of_freedom": 6.0},
        {"method": "monte_carlo", "scenarios": 2_000, "distribution": "student_t", "degrees_of_freedom": 6.0},
    ],
    ids=str,
)
def test_marginals_are_derivatives(chosen: dict[str, Any]) -> None:
    found = weighted_book(400, 4, 0)
    found["returns"] = found["returns"] + 1e-4 * np.random.default_rng(1).normal(size=found["returns"].shape)  # no ties
    answer = run(**found, components=True, **chosen)
    step = 1e-7
    for asset in range(4):
        moved = [found["weights"] + sign * step * np.eye(4)[asset] for sign in (1, -1)]
        up, down = (run(weights, returns=found["returns"], **chosen) for weights in moved)
        for name in ("var", "cvar"):
            slope = (up[name] - down[name]) / (2 * step)
            assert np.allclose(answer[f"marginal_{name}"][:, asset], slope, rtol=1e-5, atol=1e-7), (name, asset)


def test_a_window_averages_the_neighbours_of_the_var_scenario() -> None:
    found = weighted_book(301, 3, 0)
    losses = -(found["returns"] @ found["weights"])
    near = np.argsort(losses, kind="stable")[math.ceil(0.9 * 301) - 1 - 4 : math.ceil(0.9 * 301) - 1 + 5]
    # Ties at an end belong to the window.
    inside = (losses >= losses[near].min()) & (losses <= losses[near].max())
    answer = run(**found, levels=(0.9,), window=4, components=True)
    parts = -found["returns"][inside].mean(axis=0)
    scale = answer["var"][0] / (parts @ found["weights"])
    assert np.allclose(answer["marginal_var"][0], parts * scale, rtol=1e-12, atol=0)


def weighted_moments(losses: Array, masses: Array) -> tuple[float, float, float, float]:
    mean = np.average(losses, weights=masses)
    d = losses - mean
    m2, m3, m4 = (np.average(d**k, weights=masses) for k in (2, 3, 4))
    variance = np.cov(losses, aweights=masses)
    return float(mean), math.sqrt(variance), m3 / m2**1.5, m4 / m2**2 - 3


@pytest.mark.parametrize("decay", [None, 0.98])
def test_parametric_measures_are_scipys_of_numpys_moments(decay: float | None) -> None:
    found = weighted_book(500, 5, 3)
    losses = -(found["returns"] @ found["weights"].T)
    masses = np.ones(500) if decay is None else decay ** np.arange(500.0)[::-1]
    normal = run(**found, method="parametric", levels=(0.95,), decay=decay)
    student = run(**found, method="parametric", levels=(0.95,), decay=decay, distribution="student_t",
                  degrees_of_freedom=3.7)  # fmt: skip
    expanded = run(**found, method="parametric", levels=(0.95,), decay=decay, distribution="cornish_fisher")
    z, q = stats.norm.ppf(0.95), stats.t.ppf(0.95, 3.7) * math.sqrt(1.7 / 3.7)
    for at in range(3):
        mean, sigma, skew, kurtosis = weighted_moments(losses[:, at], masses)
        assert normal["var"][at] == pytest.approx(mean + z * sigma, rel=1e-11)
        assert normal["cvar"][at] == pytest.approx(mean + stats.norm.pdf(z) / 0.05 * sigma, rel=1e-11)
        assert student["var"][at] == pytest.approx(mean + q * sigma, rel=1e-11)

        def quantile(tail: Any, skew: float = skew, kurtosis: float = kurtosis) -> Any:
            z = stats.norm.isf(tail)
            return z + (z**2 - 1) * skew / 6 + (z**3 - 3 * z) * kurtosis / 24 - (2 * z**3 - 5 * z) * skew**2 / 36

        assert expanded["var"][at] == pytest.approx(mean + quantile(0.05) * sigma, rel=1e-11)
        u, weights = np.polynomial.legendre.leggauss(200)  # the mean of the quantiles beyond, by tails 0.05 v^4
        v = (1 + u) / 2
        mean_beyond = (quantile(0.05 * v**4) * 4 * v**3 / 2 * weights).sum()
        assert expanded["cvar"][at] == pytest.approx(mean + mean_beyond * sigma, rel=1e-8)


def test_a_covariance_given_is_the_measured_one() -> None:
    found = weighted_book(300, 6, 4)
    returns = found["returns"]
    model = {"covariance": np.cov(returns.T), "mean": returns.mean(axis=0)}
    for chosen in ({}, {"distribution": "student_t", "degrees_of_freedom": 4.0}):
        measured = run(**found, method="parametric", components=True, **chosen)
        answer = run(found["weights"], **model, method="parametric", components=True, **chosen)
        for name in ("var", "cvar", "marginal_var", "component_cvar"):
            assert np.allclose(answer[name], measured[name], rtol=1e-10, atol=1e-15), name
        assert np.isnan(answer["var_error"]).all()


@pytest.mark.parametrize("freedom", [None, 5.0])
def test_simulated_measures_lie_within_their_errors_of_the_closed_forms(freedom: float | None) -> None:
    chosen = {"distribution": "student_t", "degrees_of_freedom": freedom} if freedom else {}
    found = covariance(8, 5)
    exact = run(**found, method="parametric", components=True, **chosen)
    apart: list[Array] = []
    for seed in range(4):
        answer = run(**found, method="monte_carlo", scenarios=40_000, components=True, seed=seed, **chosen)
        apart += [(answer[name] - exact[name]) / answer[f"{name}_error"] for name in ("var", "cvar")]
        slack = 0.25 * np.abs(exact["cvar"]).max()
        assert np.allclose(answer["marginal_cvar"], exact["marginal_cvar"], rtol=0, atol=slack)
    distances = np.concatenate(apart).reshape(-1)
    assert np.abs(distances).max() < 4.5
    assert 0.6 < np.sqrt((distances**2).mean()) < 1.5


def test_standard_errors_are_the_spread_over_many_samples() -> None:
    random = np.random.default_rng(8)
    draws = [-random.standard_t(5, (500, 1)) for _ in range(300)]
    for chosen in ({"method": "historical"}, {"method": "parametric"}):
        answers = [run(ONE, returns=draw, levels=(0.95,), **chosen) for draw in draws]
        if chosen["method"] == "parametric":  # whose error is that of normal losses
            answers = [run(ONE, returns=-random.normal(size=(500, 1)), levels=(0.95,), **chosen) for _ in draws]
        for name in ("var", "cvar"):
            spread = np.std([answer[name][0] for answer in answers])
            assert np.mean([answer[f"{name}_error"][0] for answer in answers]) == pytest.approx(spread, rel=0.2)


def test_an_error_that_the_sample_does_not_show_is_nan() -> None:
    assert np.isnan(of_losses(HUNDRED, levels=(0.8, 0.99))["var_error"]).tolist() == [False, False]
    # Of weights that decay by 0.9 about 19 scenarios count.
    weighed = of_losses(HUNDRED, levels=(0.8, 0.99), decay=0.9)
    assert np.isnan(weighed["var_error"]).tolist() == np.isnan(weighed["cvar_error"]).tolist() == [False, True]
    assert np.isfinite(of_losses(HUNDRED, levels=(0.99,), probabilities=np.full(100, 0.3))["cvar_error"]).all()


def test_a_portfolio_that_never_changes_loses_its_constant_and_has_no_derivative() -> None:
    answer = run([[1.0], [0.0]], returns=np.full((50, 1), 0.1), method="parametric", components=True)
    assert answer["var"].tolist() == [[-0.1, -0.1], [0.0, 0.0]]
    assert (answer["var_error"] == 0).all()
    assert np.isnan(answer["marginal_var"]).all()
    assert of_losses(np.full(50, 3.0), levels=(0.9,))["cvar"] == [3.0]


def test_a_hedged_portfolio_under_a_singular_covariance_has_no_deviation_and_no_derivative() -> None:
    random = np.random.default_rng(0)
    for _ in range(30):
        b = random.normal(size=2)
        given = {"covariance": np.outer(b, b), "mean": [0.01, 0.02], "method": "parametric"}
        answer = run([b[1], -b[0]], **given, components=True)
        assert answer["var"] == pytest.approx(np.full(2, 0.02 * b[0] - 0.01 * b[1]), rel=1e-13)
        assert np.isnan(answer["marginal_var"]).all()


def test_many_portfolios_of_a_covariance_are_measured_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = covariance(6, 9)
    whole = run(**found, method="parametric", components=True)
    monkeypatch.setattr(measures, "TOGETHER", 13)
    assert_same(case(**found), whole, run(**found, method="parametric", components=True))
    found["covariance"][0, 0] = -1e3
    found["weights"][:7, 0] = 0.0
    with pytest.raises(InvalidRequest, match=r"gives portfolio 7 the variance -"):
        run(**found, method="parametric")


def test_portfolios_multiplied_some_at_a_time_change_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    found = weighted_book(300, 5, 70)
    whole = run(**found)
    monkeypatch.setattr(cpu, "_PACKED", 1_000)
    assert_same(case(**found), whole, run(**found))


def test_a_chunk_is_bounded_by_all_that_its_portfolios_need() -> None:
    operation = OPERATIONS["value_at_risk"]

    def of(params: dict[str, Any], **shapes: tuple[int, ...]) -> Any:
        infos = {name: ArrayInfo("float64", shape) for name, shape in shapes.items()}
        parsed = operation.validate(params, infos)
        return operation.grid(parsed, infos), operation.cost(parsed, infos)

    grid, _ = of({"levels": (0.9,)}, weights=(3_000_000, 2), returns=(20, 2))
    assert grid.each <= 8 * spec.CHUNK
    assert -(-3_000_000 // grid.chunks) <= 32 * 65_535
    # On the CPU each thread that selects a quantile keeps a portfolio's keys twice, and their masses.
    for params, kept in (({}, 2), ({"decay": 0.9999}, 4)):
        grid, cost = of(params, weights=(10, 2), returns=(1 << 22, 2))
        assert grid.chunks == 1
        assert cost.bytes >= 8 * (10 + 10 * kept) << 22
    # Each chunk draws the normals again.
    simulated = {"method": "monte_carlo", "scenarios": 1 << 20}
    for portfolios in (10, 1_000):
        grid, cost = of(simulated, weights=(portfolios, 100), covariance=(100, 100))
        assert cost.work >= grid.chunks * (1 << 20) * 100 * 450
    assert grid.chunks > 10


def test_probabilities_count_a_scenario_as_often() -> None:
    found = weighted_book(60, 3, 2)
    times = np.random.default_rng(2).integers(0, 4, 60)
    repeated = run(found["weights"], returns=np.repeat(found["returns"], times, axis=0), levels=(0.9,), components=True)
    answer = run(**found, probabilities=times / 8, levels=(0.9,), components=True)
    for name in ("var", "cvar", "component_cvar", "component_var"):
        assert np.allclose(answer[name], repeated[name], rtol=1e-9, atol=1e-15), name


def test_the_answer_depends_on_no_number_of_threads_and_scales_exactly() -> None:
    found = weighted_book(9_000, 7, 20)
    whole = run(**found, components=True)
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        assert_same(case(**found), whole, run(**found, components=True))
    finally:
        numba.set_num_threads(threads)
    double = run(found["weights"] * 2, returns=found["returns"], components=True)
    assert (double["component_cvar"] == 2 * whole["component_cvar"]).all()
    assert (double["var_error"] == 2 * whole["var_error"]).all()


def test_chunks_of_portfolios_change_no_byte_and_take_what_the_grid_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for params in ({}, {"method": "parametric"}, {"method": "monte_carlo", "scenarios": 100}):
        job = case(**weighted_book(200, 5, 33), components=True, **params)
        whole = job.run()
        with monkeypatch.context() as patch:
            patch.setattr(spec, "CHUNK", 1_000)
            infos = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in job.inputs().items()}
            grid = OPERATIONS["value_at_risk"].grid(spec.ValueAtRisk.model_validate(dict(job.params)), infos)
            assert grid.chunks > 3
            device = EmulatedDevice(memory=grid.fixed + 2 * grid.each)
            assert_same(job, whole, job.run())
            assert_same(job, whole, job.run(device))
            assert device.memory.peak <= grid.fixed + 2 * grid.each


@pytest.mark.parametrize("freedom", [2.01, 3.0, 4.5, 30.0, 1000.0])
@pytest.mark.parametrize("level", [0.5, 0.6, 0.95, 0.99, 0.9999])
def test_students_quantile_and_tail_are_scipys(level: float, freedom: float) -> None:
    q, _ = student_tail(level, freedom)
    assert q == pytest.approx(stats.t.isf(float(1 - spec.exact(level)), freedom), rel=1e-12)
    assert student_upper(2.5, freedom) == pytest.approx(stats.t.sf(2.5, freedom), rel=1e-12)


def test_the_tail_of_a_level_is_that_of_the_decimal_that_is_written() -> None:
    for level, tail in ((0.999999, 1e-6), (0.99, 0.01), (0.9, 0.1)):
        z, beyond = normal_tail(level)
        assert z == pytest.approx(stats.norm.isf(tail), rel=1e-14)
        assert beyond == pytest.approx(stats.norm.pdf(z) / tail, rel=1e-14)
        q, _ = student_tail(level, 3.0)
        assert q == pytest.approx(stats.t.isf(tail, 3.0), rel=2e-13)
    assert math.copysign(1.0, normal_tail(0.5)[0]) == 1.0


RETURNS = ("float64", (100, 3))


@pytest.mark.parametrize(
    ("params", "inputs", "pointer", "words"),
    [
        ({"levels": (0.95, 0.995)}, {"returns": RETURNS}, "/inputs/returns",
         "beyond level 0.995 lie 0.5 of 100 scenarios; it needs 200 scenarios for one of them"),
        ({"levels": (0.4,)}, {"returns": RETURNS}, "/params/levels/0", "levels[0] should be at least 0.5, got 0.4"),
        ({"levels": (0.9, 0.9)}, {"returns": RETURNS}, "/params/levels", "levels has 2 numbers, of which 1 differ"),
        ({}, {}, "/inputs/returns", "give returns, or a covariance"),
        ({}, {"returns": RETURNS, "covariance": ("float64", (3, 3))}, "/inputs/returns", "one of both"),
        ({}, {"covariance": ("float64", (3, 3))}, "/inputs/returns", "historical normal needs returns"),
        ({"method": "parametric"}, {"returns": ("float64", (1, 3))}, "/inputs/returns", "needs 2 scenarios, got 1"),
        ({"method": "parametric", "distribution": "cornish_fisher"}, {"returns": ("float64", (3, 3))},
         "/inputs/returns", "parametric cornish_fisher needs 4 scenarios, got 3"),
        ({}, {"returns": ("float64", (100, 4))}, "/inputs/returns",
         "shape [100, 4], and weights has 3 assets: it should be [100, 3]"),
        ({}, {"returns": ("float64", (3, 100))}, "/inputs/returns",
         "shape [3, 100], and weights has 3 assets: it should be [100, 3]"),
        ({"method": "parametric"}, {"covariance": ("float64", (3, 2))}, "/inputs/covariance", "it should be [3, 3]"),
        ({}, {"returns": RETURNS, "mean": ("float64", (3,))}, "/inputs/mean", "the mean of returns is measured"),
        ({}, {"returns": RETURNS, "probabilities": ("float64", (99,))}, "/inputs/probabilities",
         "shape [99], and weights has 3 assets, returns 100 scenarios: it should be [100]"),
        ({"distribution": "student_t", "method": "parametric"}, {"returns": RETURNS}, "/params",
         "student_t needs degrees_of_freedom"),
        ({"distribution": "student_t", "method": "monte_carlo", "degrees_of_freedom": 3.5}, {"returns": RETURNS},
         "/params", "degrees_of_freedom 3.5: a simulation adds squares"),
        ({"scenarios": 1000}, {"returns": RETURNS}, "/params", "scenarios belongs to monte_carlo; method is"),
        ({"decay": 0.9, "quantile": "linear"}, {"returns": RETURNS}, "/params", "they need equal weights, and decay"),
        ({"method": "monte_carlo", "scenarios": 50}, {"returns": RETURNS}, "/params/scenarios",
         "beyond level 0.99 lie 0.5 of 50 scenarios"),
    ],
)  # fmt: skip
def test_a_request_that_makes_no_sense_is_refused_with_its_numbers(
    params: dict[str, Any], inputs: dict[str, Any], pointer: str, words: str
) -> None:
    infos = {"weights": ArrayInfo("float64", (3,))} | {name: ArrayInfo(*info) for name, info in inputs.items()}
    with pytest.raises(InvalidRequest) as error:
        OPERATIONS["value_at_risk"].validate(params, infos)
    assert [problem.pointer for problem in error.value.problems] == [pointer]
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"covariance": [[1.0, 2.0], [2.0, 1.0]], "method": "monte_carlo"},
         "the covariance of 2 assets is not positive definite: what the assets before it leave of the variance 1 of "
         "asset 1 is -3"),
        ({"returns": np.ones((30, 2)), "method": "monte_carlo"}, "of the variance 0 of asset 0 is 0"),
        ({"returns": np.random.default_rng(1).normal(size=(2, 2)), "method": "monte_carlo"}, "of asset 1 is"),
        ({"covariance": [[1.0, 0.5], [0.4, 1.0]], "method": "parametric"}, "[0, 1] is 0.5 and [1, 0] is 0.4"),
        ({"covariance": [[1.0, -3.0], [-3.0, 1.0]], "method": "parametric"}, "gives portfolio 0 the variance -4"),
        ({"returns": np.ones((3, 2)), "probabilities": [1.0, -2.0, 1.0]}, "that of scenario 1 is -2, below 0"),
        ({"returns": np.ones((3, 2)), "probabilities": np.zeros(3)}, "all 3 are 0"),
        ({"returns": np.ones((3, 2)), "probabilities": [0.0, 2.0, 0.0], "method": "parametric"},
         "one of 3 scenarios has a weight; a variance takes two"),
    ],
)  # fmt: skip
def test_numbers_that_are_no_covariance_or_no_weights_are_refused(fields: dict[str, Any], words: str) -> None:
    job = case([1.0, 1.0], **fields)
    for device in (None, EmulatedDevice()):
        with pytest.raises(InvalidRequest) as error:
            job.run(device)
        assert words in str(error.value)
        if "positive definite" in str(error.value):
            assert error.value.problems[0].pointer == f"/inputs/{'returns' if 'returns' in fields else 'covariance'}"
