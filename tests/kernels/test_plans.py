"""A plan is judged as a whole before it runs: each step by its operation, on what is known of its inputs by then."""

from typing import Any

import pytest

from warpdesk_server.kernels import plans
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import PLAN
from warpdesk_server.kernels.plans import PlanParams
from warpdesk_server.kernels.problems import InvalidRequest

PRICES = {"prices": ArrayInfo("float64", (5, 252))}
TICKS = {
    "price": ArrayInfo("float64", (100,)),
    "size": ArrayInfo("float64", (100,)),
    "time": ArrayInfo("int64", (100,)),
}


def step(name: str, operation: str, inputs: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"id": name, "operation": operation, "inputs": inputs, **more}


RSI = step("rsi14", "rsi", {"close": "prices"}, params={"period": 14})
EMA = step("smooth", "ema", {"close": "rsi14.rsi"}, params={"period": 9})


def plan(*steps: dict[str, Any], **outputs: Any) -> dict[str, Any]:
    return {"steps": list(steps), "outputs": outputs or {"answer": {"from": f"{steps[-1]['id']}.{_first(steps[-1])}"}}}


def _first(of: dict[str, Any]) -> str:
    return str(PLAN.operations[of["operation"]].outputs[0].name)


def planned(params: dict[str, Any], inputs: dict[str, ArrayInfo] = PRICES) -> list[plans.PlannedStep]:
    parsed = PLAN.validate(params, inputs)
    assert isinstance(parsed, PlanParams)
    return PLAN.planned_steps(parsed, inputs)


def test_each_step_knows_what_it_reads_and_what_nobody_reads_after_it() -> None:
    bands = step("bands", "bollinger", {"close": "smooth.ema"}, params={"period": 20})
    found = planned(plan(RSI, EMA, bands, upper={"from": "bands.upper"}, middle={"from": "bands.middle", "last": 2}))
    assert [(dict(each.inputs), set(each.gone)) for each in found] == [
        ({"prices": "prices"}, set()),
        ({"prices": "rsi14.rsi"}, {"rsi14.rsi"}),
        ({"prices": "smooth.ema"}, {"bands.middle", "bands.lower", "smooth.ema"}),
    ]


def test_its_cost_is_the_work_of_all_steps_and_the_largest_live_set() -> None:
    one, two = planned(plan(RSI))[0].cost, planned(plan(RSI, EMA))[1].cost
    parsed = PLAN.validate(plan(RSI, EMA), PRICES)
    cost = PLAN.cost(parsed, PRICES)
    assert cost.work == one.work + two.work
    assert cost.work * cost.step == pytest.approx(one.work * one.step + two.work * two.step)
    array = PRICES["prices"].nbytes
    assert max(one.bytes, two.bytes) <= cost.bytes <= max(one.bytes, two.bytes) + 2 * array


def test_what_the_last_numbers_are_taken_of_is_not_held_until_the_end() -> None:
    many = [step(f"s{at}", "sma", {"close": "prices"}, params={"period": 5}) for at in range(200)]
    whole = plan(*many, **{f"o{at}": {"from": f"s{at}.sma"} for at in range(200)})
    last = plan(*many, **{f"o{at}": {"from": f"s{at}.sma", "last": 1} for at in range(200)})
    held = [PLAN.cost(PLAN.validate(params, PRICES), PRICES).bytes for params in (whole, last)]
    assert held[0] - held[1] > 190 * PRICES["prices"].nbytes


def test_seeds_are_drawn_for_the_steps_that_have_none() -> None:
    option = {
        "payoff": "european",
        "option": "call",
        "spot": 100.0,
        "strike": 100.0,
        "volatility": 0.2,
        "maturity": 1.0,
    }
    drawn = PLAN.with_seeds(
        plan(step("a", "monte_carlo", {}, params=option), step("b", "monte_carlo", {}, params=option, seed=3), RSI),
        iter([7, 8, 9]).__next__,
    )
    assert [each.get("seed") for each in drawn["steps"]] == [7, 3, None]
    assert PLAN.with_seeds({"steps": "no list"}, int) == {"steps": "no list"}
    assert PLAN.with_seeds({"steps": [3, {"operation": []}]}, int) == {"steps": [3, {"operation": []}]}


def test_its_outputs_have_the_kinds_of_the_steps() -> None:
    frontier = step("best", "frontier", {"means": "means", "covariance": "matrix"})
    outputs = PLAN.outputs_of(plan(frontier, w={"from": "best.weights"}, ratio={"from": "best.sharpe"}))
    assert [(output.name, output.kind, output.stored_as) for output in outputs] == [
        ("ratio", "value", ""),
        ("w", "array", "w.npy"),
    ]


@pytest.mark.parametrize(
    ("params", "inputs", "pointer", "part"),
    [
        (plan(RSI, EMA | {"params": {"period": 0}}), PRICES, "/params/steps/1/params/period", "at least 1, got 0"),
        (
            plan(RSI | {"operation": "rsy"}, a={"from": "rsi14.rsi"}), PRICES,
            "/params/steps/0/operation", "no operation 'rsy'",
        ),
        (plan(RSI | {"inputs": {"close": "price"}}), PRICES, "/params/steps/0/inputs/close", "no 'price' before"),
        (plan(EMA, RSI), PRICES, "/params/steps/0/inputs/close", "no 'rsi14.rsi' before this step"),
        (plan(RSI | {"inputs": {}}), PRICES, "/params/steps/0/inputs/close", "needs the input"),
        (
            plan(RSI | {"inputs": {"close": "prices", "prices": "prices"}}), PRICES,
            "/params/steps/0/inputs/prices", "give it once",
        ),
        (plan(RSI, RSI), PRICES, "/params/steps/0/id", "2 steps have the id 'rsi14'"),
        (plan(RSI | {"id": "prices"}, a={"from": "prices.rsi"}), PRICES, "/inputs/prices", "of an input and of a step"),
        (
            plan(RSI | {"inputs": {"close": "a.b"}}, a={"from": "a.b"}), {"a.b": PRICES["prices"]},
            "/inputs/a.b", "is no name of an input",
        ),
        (plan(RSI), {**PRICES, "a/b": PRICES["prices"]}, "/inputs/a~1b", "is no name of an input"),
        (plan(RSI | {"seed": 1}), PRICES, "/params/steps/0/seed", "takes no seed"),
        (plan(RSI), {**PRICES, "more": PRICES["prices"]}, "/inputs/more", "no step reads"),
        (plan(RSI, a={"from": "rsi14.rsy"}), PRICES, "/params/outputs/a/from", "there is no 'rsi14.rsy'"),
        (plan(RSI, a={"from": "prices"}), PRICES, "/params/outputs/a/from", "no output of a step"),
        (plan(RSI, a={"from": "rsi14.rsi", "last": 0}), PRICES, "/params/outputs/a/last", "at least 1, got 0"),
        (plan(RSI, **{"../a": {"from": "rsi14.rsi"}}), PRICES, "/params/outputs/..~1a/[key]", "match"),
        (plan(RSI, **{"Result.json": {"from": "rsi14.rsi"}}), PRICES, "/params/outputs/Result.json/[key]", "match"),
        (
            plan(step("x", "matmul", {"a": "prices", "b": "prices"})), PRICES,
            "/params/steps/0/inputs/b", "inner dimensions differ",
        ),
        (
            plan(step("x", "dp_noise", {"values": "prices"})), PRICES,
            "/params/steps/0/operation", "confidential or charges a budget",
        ),
        (plan(step("x", "shamir_share", {"values": "prices"})), PRICES, "/params/steps/0/operation", "confidential"),
        (plan(step("x", "optimize", {}), a={"from": "x.y"}), PRICES, "/params/steps/0/operation", "tasks"),
        (plan(step("x", "plan", {}), a={"from": "x.y"}), PRICES, "/params/steps/0/operation", "plan in a plan"),
        (
            plan(
                step("b", "bars", {name: name for name in TICKS}, params={"by": "count", "every": 5.0}),
                step("r", "rsi", {"close": "b.close"}),
            ), TICKS, "/params/steps/1/inputs/close", "the data decide the shape of b.close",
        ),
        (
            plan(
                step("b", "bars", {name: name for name in TICKS}, params={"by": "count", "every": 5.0}),
                step("r", "rsi", {"close": "b.left_out"}),
            ), TICKS, "/params/steps/1/inputs/close", "is a JSON value",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_plan_is_said_with_a_pointer_to_it(
    params: dict[str, Any], inputs: dict[str, ArrayInfo], pointer: str, part: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        PLAN.validate(params, inputs)
    assert refused.value.problems[0].pointer == pointer
    assert part in refused.value.problems[0].detail


def test_bars_may_be_outputs_of_a_plan() -> None:
    bars = step("b", "bars", {name: name for name in TICKS}, params={"by": "count", "every": 5.0})
    params = plan(bars, close={"from": "b.close"}, now={"from": "b.vwap", "last": 3})
    assert PLAN.cost(PLAN.validate(params, TICKS), TICKS).bytes > sum(info.nbytes for info in TICKS.values())


def test_a_plan_has_at_most_so_many_steps_characters_and_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [RSI | {"id": f"s{at}"} for at in range(plans.MOST_STEPS + 1)]
    with pytest.raises(InvalidRequest, match="at most 2000 items, got 2001"):
        PLAN.validate(plan(*steps), PRICES)
    assert len(planned(plan(*steps[:-1]))) == plans.MOST_STEPS
    monkeypatch.setattr(plans, "MOST_WRITTEN", 30)
    assert len(planned(plan(*steps[:9]))) == 9  # equal parameters are checked once
    with pytest.raises(InvalidRequest, match=r"have 40 characters.*the most are 30"):
        PLAN.validate(
            plan(RSI, *(step(f"t{n}", "sma", {"close": "prices"}, params={"period": n}) for n in (3, 4))), PRICES
        )
    monkeypatch.setattr(plans, "MOST_SECONDS", 1e-6)
    with pytest.raises(InvalidRequest, match="seconds of one core"):
        PLAN.validate(plan(RSI), PRICES)
