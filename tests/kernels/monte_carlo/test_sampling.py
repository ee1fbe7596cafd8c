"""Antithetic paths and Sobol points: beside an independent simulation, their errors, and that no cut changes a byte."""

from math import sqrt
from typing import Any

import numpy as np
import pytest

from tests.cudasim.device import EmulatedDevice
from tests.kernels.monte_carlo.exact import exact
from tests.kernels.monte_carlo.reference import simulate
from tests.kernels.monte_carlo.test_monte_carlo import params
from warpdesk_server.kernels.monte_carlo import cpu, gpu, spec
from warpdesk_server.kernels.monte_carlo.cpu import monte_carlo
from warpdesk_server.kernels.monte_carlo.spec import OPERATION


def assert_same_as_reference(payoff: str, seed: int, samples: int, **changes: Any) -> None:
    p = params(payoff, control_variate=False, **changes)
    payoffs = simulate(seed, p).payoffs.reshape(samples, -1).mean(axis=1)
    answer = monte_carlo(p, seed=seed)
    assert answer["price"] == pytest.approx(payoffs.mean(), abs=2e-5 * p.spot)
    assert answer["standard_error"] == pytest.approx(payoffs.std(ddof=1) / sqrt(samples), rel=1e-4, abs=1e-5)
    assert answer["sampling"]["method"] == p.sampling
    assert answer["sampling"]["samples"] == samples


@pytest.mark.parametrize("payoff", ["european", "asian_arithmetic", "barrier_down_out", "lookback_fixed"])
def test_antithetic_paths_are_the_independent_simulation(payoff: str) -> None:
    assert_same_as_reference(payoff, 21, 301, sampling="antithetic", paths=602, steps=6)


@pytest.mark.parametrize(("payoff", "steps"), [("european", 1), ("asian_arithmetic", 7), ("barrier_up_out", 70)])
def test_sobol_points_are_the_independent_simulation(payoff: str, steps: int) -> None:
    """SciPy's points and inverse normal, the hash of pbrt; 70 steps have 6 dimensions of pseudo-random numbers."""
    assert_same_as_reference(payoff, (1 << 63) + 7, 16, sampling="sobol", paths=4_096, steps=steps)


def test_the_answer_tells_its_dimensions() -> None:
    for steps, dimensions in ((3, 3), (64, 64), (65, 64)):
        answer = monte_carlo(params("european", sampling="sobol", paths=4_096, steps=steps), seed=1)
        assert answer["sampling"]["sobol_dimensions"] == dimensions
    assert monte_carlo(params("european", paths=10, steps=3), seed=1)["sampling"]["sobol_dimensions"] == 0


@pytest.mark.parametrize(
    ("payoff", "sampling", "paths"),
    [
        ("european", "sobol", 4_096),
        ("asian_arithmetic", "sobol", 4_096),
        ("lookback_floating", "sobol", 4_096),
        ("european", "antithetic", 2_000),
        ("asian_geometric", "antithetic", 2_000),
    ],
)
def test_intervals_cover_as_often_as_they_state_and_prices_have_no_bias(payoff: str, sampling: str, paths: int) -> None:
    p = params(payoff, sampling=sampling, paths=paths, steps=4)
    value, seeds = exact(p), 300
    answers = [monte_carlo(p, seed=10_000 + seed) for seed in range(seeds)]
    covered = np.mean([low <= value <= high for low, high in (answer["confidence_interval"] for answer in answers)])
    assert abs(covered - 0.95) < 3.5 * sqrt(0.95 * 0.05 / seeds), covered
    prices = np.array([answer["price"] for answer in answers])
    assert abs(prices.mean() - value) < 4 * prices.std() / sqrt(seeds)
    # A variance from 15 degrees of freedom is right on average, its root a little too small.
    errors = np.array([answer["standard_error"] for answer in answers])
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(prices.std(), rel=0.15)


@pytest.mark.parametrize("strike", [85.0, 135.0])
def test_scrambles_of_a_digital_option_that_agree_have_an_error_all_the_same(strike: float) -> None:
    """Each counts nearly the same paths that pay: at 135 most seeds have 16 equal counts."""
    p = params("cash_or_nothing", spot=100.0, strike=strike, rate=0.0, dividend=0.0, volatility=0.2, maturity=1.0,
               option="call", sampling="sobol", paths=4_096, steps=4)  # fmt: skip
    answers = [monte_carlo(p, seed=seed) for seed in range(60)]
    covered = [low <= exact(p) <= high for low, high in (answer["confidence_interval"] for answer in answers)]
    assert sum(covered) >= 54


def test_the_error_of_sobol_points_falls_faster_than_the_root_of_the_paths() -> None:
    """An Asian call of 16 fixings: 16 times the paths leave a quarter of the error to chance, less than an eighth to
    Sobol points, which have less than a hundredth of the variance of as many paths."""

    def error(sampling: str, paths: int) -> float:
        p = params("asian_arithmetic", sampling=sampling, paths=paths, steps=16, control_variate=False)
        return float(np.sqrt(np.mean([monte_carlo(p, seed=seed)["standard_error"] ** 2 for seed in range(8)])))

    few, many = error("sobol", 4_096), error("sobol", 65_536)
    assert many < few / 8
    assert many < 0.1 * error("pseudo", 65_536)
    assert error("antithetic", 65_536) < 0.85 * error("pseudo", 65_536)


def test_the_cut_changes_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    sobol = params("asian_arithmetic", sampling="sobol", paths=16_384, steps=5)
    antithetic = params("lookback_fixed", sampling="antithetic", paths=5_002, steps=5)
    for job in (sobol, antithetic):
        whole = cpu.monte_carlo(job, seed=3)
        with monkeypatch.context() as patch:
            for chunk in (1_024, 4_096):
                patch.setattr(spec, "CHUNK", chunk)
                assert cpu.monte_carlo(job, seed=3) == whole
            patch.setattr(spec, "WALKS_BYTES", 512 * 6 * 8)
            assert spec.walks_at_once(job) == 512
            assert gpu.monte_carlo(job, seed=3, device=EmulatedDevice()) == whole


def test_the_grid_tells_the_memory_of_walks() -> None:
    device, job = EmulatedDevice(), params("european", sampling="sobol", steps=7, paths=4_096)
    gpu.monte_carlo(job, seed=1, device=device)
    grid = OPERATION.grid(job, {})
    assert device.memory.peak == grid.fixed + grid.chunks * grid.each


@pytest.mark.parametrize("sampling", ["antithetic", "sobol"])
def test_without_volatility_there_is_no_error(sampling: str) -> None:
    answer = monte_carlo(params("asian_arithmetic", sampling=sampling, paths=4_096, steps=3, volatility=0.0), seed=1)
    assert (answer["standard_error"], answer["warnings"]) == (0.0, [])
