"""Plans from the client: the builder writes what HTTP takes, and the result has the caller's names."""

import numpy as np
import pytest

from warpdesk import Client
from warpdesk.plan import Plan


def test_the_builder_writes_the_params_of_a_plan() -> None:
    plan = Plan()
    rsi = plan.step("rsi", close=plan.input("prices"), period=np.int64(14))
    smooth = plan.step("ema", id="smooth", close=rsi["rsi"], period=9)
    price = plan.step("monte_carlo", seed=7, paths=100)
    assert plan.params(rsi=rsi["rsi"], now=smooth["ema"].last(1), price=price["price"]) == {
        "steps": [
            {"id": "rsi_1", "operation": "rsi", "params": {"period": 14}, "inputs": {"close": "prices"}},
            {"id": "smooth", "operation": "ema", "params": {"period": 9}, "inputs": {"close": "rsi_1.rsi"}},
            {"id": "monte_carlo_3", "operation": "monte_carlo", "params": {"paths": 100}, "inputs": {}, "seed": 7},
        ],
        "outputs": {
            "rsi": {"from": "rsi_1.rsi"},
            "now": {"from": "smooth.ema", "last": 1},
            "price": {"from": "monte_carlo_3.price"},
        },
    }
    with pytest.raises(ValueError, match=r"close of ema_4 is smooth.ema.last\(...\): a step reads whole arrays"):
        plan.step("ema", close=smooth["ema"].last(3))


def test_a_plan_runs_as_its_steps_do(client: Client) -> None:
    prices = 100.0 + np.cumsum(np.random.default_rng(1).standard_normal((5, 60)), axis=1)
    plan = Plan()
    rsi = plan.step("rsi", close=plan.input("prices"), period=5)
    smooth = plan.step("ema", close=rsi["rsi"], period=3)
    ranks = plan.step("cross_rank", values=smooth["ema"])
    best = plan.step("frontier", means=plan.input("means"), covariance=plan.input("matrix"))
    wanted = plan.params(rsi=rsi["rsi"], now=ranks["rank"].last(1), weights=best["weights"], ratio=best["sharpe"])
    given = {"prices": prices, "means": [0.1, 0.2], "matrix": [[0.04, 0.0], [0.0, 0.09]]}
    result = client.run("plan", **wanted, **given, timeout=120)
    alone = client.rsi(prices, period=5)
    smoothed = client.ema(alone.rsi, period=3)
    assert result["rsi"].tobytes() == alone.rsi.tobytes()
    assert result["now"].tobytes() == client.cross_rank(smoothed.ema).rank[:, -1:].tobytes()
    portfolio = client.run("frontier", means=given["means"], covariance=given["matrix"])
    assert result["weights"].tobytes() == portfolio["weights"].tobytes()
    assert result["ratio"] == portfolio["sharpe"]
    assert result.provenance.steps is not None
    assert [step.operation for step in result.provenance.steps] == ["rsi", "ema", "cross_rank", "frontier"]
    assert client.result(result.job.id)["now"].shape == (5, 1)
