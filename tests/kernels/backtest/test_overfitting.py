"""Deflated Sharpe ratios, the probability of overfitting and walk-forward: published numbers, and definitions."""

from itertools import combinations
from math import e, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kernels.backtest.cases import CROSS, market
from tests.kernels.parity import Case
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.backtest.luck import expected_best
from warpdesk_server.kernels.backtest.metrics import probability_above
from warpdesk_server.kernels.backtest.spec import OVERFITTING
from warpdesk_server.kernels.problems import InvalidRequest

Array = NDArray[Any]


def overfitting(returns: Array, **params: Any) -> dict[str, Any]:
    return Case("overfitting", params, lambda: {"returns": returns}).run()


def ratios(returns: Array) -> Array:
    """Sharpe ratios of a bar; 0 where nothing moved."""
    deviation = returns.std(axis=1, ddof=1)
    return np.where(deviation > 0, returns.mean(axis=1) / np.where(deviation > 0, deviation, 1), 0)


def test_the_published_deflated_sharpe_ratio() -> None:
    """Bailey and Lopez de Prado, The Deflated Sharpe Ratio (2014), the numerical example: an annual ratio of 2.5 over
    five years of 250 days, the best of 100 trials whose annual ratios vary by 0.5, skewness -3 and kurtosis 10."""
    luck = expected_best(0.5 / 250, 100)
    assert luck == pytest.approx(0.1132, abs=5e-5)
    assert probability_above(2.5 / sqrt(250), luck, 1250, -3.0, 10.0) == pytest.approx(0.9004, abs=5e-5)


@pytest.mark.parametrize(("skewness", "kurtosis", "expected"), [(0.0, 3.0, 0.982), (-2.448, 10.164, 0.913)])
def test_the_published_probabilistic_sharpe_ratio(skewness: float, kurtosis: float, expected: float) -> None:
    """Bailey and Lopez de Prado, The Sharpe Ratio Efficient Frontier (2012), the numerical example: 24 months with a
    ratio of 0.458 a month, for normal returns and for the moments that were seen."""
    assert probability_above(0.458, 0.0, 24, skewness, kurtosis) == pytest.approx(expected, abs=5e-4)


def test_the_best_sharpe_ratio_is_deflated_by_its_definition() -> None:
    returns = np.random.default_rng(2).standard_t(5, (40, 500)) * 0.01 + 0.0003
    found = overfitting(returns, prior_trials=60, periods_per_year=250.0)
    own = ratios(returns)
    best = returns[own.argmax()]
    spread = (best - best.mean()) / best.std()
    trials, gamma, normal = 100, np.euler_gamma, NormalDist()
    luck = own.std(ddof=1) * (
        (1 - gamma) * normal.inv_cdf(1 - 1 / trials) + gamma * normal.inv_cdf(1 - 1 / (trials * e))
    )
    ratio = own.max()
    error = sqrt(1 - (spread**3).mean() * ratio + ((spread**4).mean() - 1) / 4 * ratio**2)
    assert (found["best"], found["trials"]) == (own.argmax(), 100)
    assert found["sharpe"] == pytest.approx(ratio * sqrt(250), rel=1e-9)
    assert found["expected_best_sharpe"] == pytest.approx(luck * sqrt(250), rel=1e-9)
    assert found["deflated_sharpe"] == pytest.approx(normal.cdf((ratio - luck) * sqrt(499) / error), rel=1e-9)
    assert found["probabilistic_sharpe"] == pytest.approx(normal.cdf(ratio * sqrt(499) / error), rel=1e-9)
    given = overfitting(returns, trials=100, periods_per_year=250.0)
    assert given["deflated_sharpe"] == found["deflated_sharpe"]
    alone = overfitting(returns, trials=1)
    assert (alone["trials"], alone["deflated_sharpe"]) == (1, alone["probabilistic_sharpe"])


@pytest.mark.parametrize("rate", [1e-4, 0.003, 0.07, -0.01])
def test_a_set_whose_returns_are_all_alike_does_not_move(rate: float) -> None:
    returns = np.random.default_rng(0).normal(0, 0.01, (5, 100))
    returns[3] = 0.0
    wanted = overfitting(returns, blocks=4)
    returns[3] = rate
    found = overfitting(returns, blocks=4)
    for name in ("best", "sharpe", "expected_best_sharpe", "deflated_sharpe", "pbo"):
        assert found[name] == wanted[name]
    assert found["chosen"].tolist() == wanted["chosen"].tolist()


@pytest.mark.parametrize(("sets", "bars", "blocks"), [(2, 8, 2), (7, 61, 6), (63, 40, 4), (64, 40, 4), (65, 40, 8)])
def test_every_split_chooses_and_ranks_as_the_definition_says(sets: int, bars: int, blocks: int) -> None:
    returns = np.random.default_rng(sets).normal(0, 0.01, (sets, bars))
    if sets > 2:
        returns[2], returns[-1] = returns[0], 0.0  # equal sets, and one that never trades
    edges = [block * bars // blocks for block in range(blocks + 1)]
    logits, chosen = [], []
    for half in sorted(sum(1 << block for block in each) for each in combinations(range(blocks), blocks // 2)):
        inside = np.zeros(bars, bool)
        for block in range(blocks):
            inside[edges[block] : edges[block + 1]] = half >> block & 1
        trained, tested = ratios(returns[:, inside]), ratios(returns[:, ~inside])
        first = int(np.flatnonzero(np.isclose(trained, trained.max(), rtol=1e-9, atol=0))[0])
        same = np.isclose(tested, tested[first], rtol=1e-9, atol=1e-300)
        rank = (((tested < tested[first]) & ~same).sum() + (same.sum() + 1) / 2) / (sets + 1)
        logits.append(np.log(rank / (1 - rank)))
        chosen.append(first)
    found = overfitting(returns, blocks=blocks)
    assert found["chosen"].tolist() == chosen
    np.testing.assert_allclose(found["logits"], logits, atol=1e-12)
    assert found["pbo"] == (np.array(logits) <= 1e-12).mean()


def test_random_walks_are_overfitted_every_second_time_and_skill_is_not() -> None:
    """Single draws lie between 0.2 and 0.8; of 60 the mean has a deviation of about 0.02."""
    random = np.random.default_rng(5)
    draws = [overfitting(random.normal(0, 0.01, (30, 160)), blocks=8) for _ in range(60)]
    assert np.mean([draw["pbo"] for draw in draws]) == pytest.approx(0.5, abs=0.08)
    assert np.mean([draw["deflated_sharpe"] for draw in draws]) < 0.7
    skilled = random.normal(0, 0.01, (30, 1600))
    skilled[7] += 0.002
    found = overfitting(skilled, blocks=8)
    assert (found["best"], found["pbo"]) == (7, 0.0)
    assert found["deflated_sharpe"] > 0.99


@pytest.mark.parametrize("train", [0, 2])
def test_walk_forward_chooses_on_blocks_before_the_tested_one(train: int) -> None:
    returns = np.random.default_rng(8).normal(0, 0.01, (9, 83))
    edges = [block * 83 // 6 for block in range(7)]
    found = overfitting(returns, blocks=6, train_blocks=train)
    rows, tested = [], []
    for block in range(train or 1, 6):
        before = ratios(returns[:, edges[block - train if train else 0] : edges[block]])
        own = returns[:, edges[block] : edges[block + 1]]
        chosen = before.argmax()
        rows.append([block, chosen, before[chosen] * sqrt(252), ratios(own)[chosen] * sqrt(252)])
        tested.append(own[chosen])
    np.testing.assert_allclose(found["walk_forward"], rows, rtol=1e-9)
    assert found["walk_forward_sharpe"] == pytest.approx(ratios(np.concatenate(tested)[None])[0] * sqrt(252), rel=1e-9)


def test_a_sweeps_sums_of_blocks_give_what_its_returns_give() -> None:
    bars = market(np.random.default_rng(9), 200)
    grid = {"fast": (2, 3, 5), "slow": (8, 13), "level": (60.0, 80.0)}
    rules = {"strategy": CROSS, "fee": 0.001, "blocks": 4, "flat_at_edges": True}
    swept = Case(
        "backtest_sweep", {**rules, "grid": grid}, lambda: {name: bars[name] for name in ("open", "close")}
    ).run()
    returns = []
    for fast, level, slow in swept["sets"].T:
        values = {"fast": int(fast), "level": level, "slow": int(slow)}
        equity = Case(
            "backtest", {**rules, "values": values}, lambda: {name: bars[name] for name in ("open", "close")}
        ).run()["equity"]
        returns.append(equity / np.concatenate([[1e5], equity[:-1]]) - 1)
    by_returns = overfitting(np.array(returns), blocks=4)
    by_sums = Case("overfitting", {"blocks": 4, "bars": 200}, lambda: {"block_sums": swept["block_sums"]}).run()
    assert by_sums["chosen"].tolist() == by_returns["chosen"].tolist()
    for name in ("best", "pbo", "trials", "splits"):
        assert by_sums[name] == by_returns[name]
    for name in ("sharpe", "deflated_sharpe", "walk_forward_sharpe"):
        assert by_sums[name] == pytest.approx(by_returns[name], rel=1e-9)
    best = swept["metrics"][swept["metric_names"].index("sharpe")]
    assert by_sums["sharpe"] == pytest.approx(np.nanmax(best), rel=1e-9)


@pytest.mark.parametrize(
    ("params", "inputs", "sentence"),
    [
        ({}, {}, "give either returns"),
        ({}, {"returns": (5, 31)}, "16 blocks need at least 32 bars, got 31"),
        ({"blocks": 3}, {"returns": (5, 60)}, "multiple of 2"),
        ({"blocks": 22}, {"returns": (5, 60)}, "at most 20, got 22"),
        ({}, {"returns": (1, 60)}, "1 sets; overfitting compares 2 to 1,000,000"),
        ({"bars": 60}, {"returns": (5, 60)}, "bars belongs to block_sums"),
        ({"bars": 60}, {"block_sums": (4, 5, 8)}, "expected (4, sets, 16)"),
        ({}, {"block_sums": (4, 5, 16)}, "got 0: give the bars"),
        ({"train_blocks": 16}, {"returns": (5, 60)}, "16 blocks to train on leave none of 16"),
        ({"trials": 9, "prior_trials": 2}, {"returns": (5, 60)}, "trials 9 is the number of all trials"),
    ],
)
def test_wrong_input_is_refused_with_a_sentence(
    params: dict[str, Any], inputs: dict[str, tuple[int, ...]], sentence: str
) -> None:
    with pytest.raises(InvalidRequest) as error:
        OVERFITTING.validate(params, {name: ArrayInfo("float64", shape) for name, shape in inputs.items()})
    assert sentence in str(error.value)
