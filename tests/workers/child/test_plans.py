"""Plans in the child: each output has the bytes of the same steps as single jobs, on the CPU and the emulated GPU.

PLANS=1000 draws so many random plans on each.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cudasim.device import EmulatedDevice
from tests.workers.child.test_execute import CPU, array, document, gpu, request
from tests.workers.operations import OPERATIONS as OWN
from warpdesk_server.kernels import progress
from warpdesk_server.kernels.catalogue import CATALOGUE, OPERATIONS
from warpdesk_server.kernels.gpu.faults import DeviceLost
from warpdesk_server.kernels.plans import plan_of
from warpdesk_server.workers.child import execute
from warpdesk_server.workers.child.device import Probe
from warpdesk_server.workers.queue.protocol import ArrayOutput, Failed, JobRequest, Succeeded, ValueOutput
from warpdesk_server.workers.queue.reports import DeviceReport
from warpdesk_server.workers.store.spool import SpoolStore

pytestmark = pytest.mark.timeout(600)  # seconds: the emulator compiles kernels

PLANS = int(os.environ.get("PLANS", "15"))  # random plans on each device
SHAPE = (3, 40)
_RANDOM = np.random.default_rng(24)
PRICES = {
    "close": 100.0 * np.exp(np.cumsum(0.02 * _RANDOM.standard_normal(SHAPE), axis=1)),
    "volume": _RANDOM.uniform(1.0, 9.0, SHAPE),
    "gaps": np.where(_RANDOM.random(SHAPE) < 0.1, np.nan, 50.0 + _RANDOM.random(SHAPE)),
}


@pytest.fixture
def store(tmp_path: Path) -> SpoolStore:
    return SpoolStore(tmp_path / "store")


def emulated() -> Probe:
    return Probe(DeviceReport(backend="gpu", name="emulated"), EmulatedDevice())


def run(store: SpoolStore, wanted: JobRequest, found: Probe = CPU) -> Succeeded | Failed:
    (outcome,) = execute.run([(wanted, 1)], store, found, CATALOGUE)  # type: ignore[arg-type]
    assert isinstance(outcome, Succeeded | Failed)
    return outcome


def outputs(store: SpoolStore, outcome: Succeeded | Failed) -> dict[str, Any]:
    """Each output: its bytes with dtype and shape, or its value."""
    assert isinstance(outcome, Succeeded), outcome
    written: dict[str, Any] = {}
    for name, output in document(store, outcome).outputs.items():
        if isinstance(output, ArrayOutput):
            written[name] = np.load(store.result(outcome.result) / output.file, allow_pickle=False)
        elif isinstance(output, ValueOutput):
            written[name] = output.value
    return written


def one_by_one(
    store: SpoolStore, steps: list[dict[str, Any]], inputs: dict[str, str], found: Probe
) -> tuple[dict[str, Any], str]:
    """What the steps of a plan give as single jobs, by their sources; and the first that fails."""
    ids, answers = dict(inputs), dict[str, Any]()
    for each in steps:
        sources = {name: ids[source] for name, source in each["inputs"].items()}
        names = OPERATIONS[each["operation"]].given_names(sources)
        own = {name: sources[shown] for name, shown in names.items()}
        fields = {"params": each["params"], "seed": each.get("seed")}
        outcome = run(store, request(each["operation"], own, **fields).model_copy(update={"id": "job_single"}), found)
        if isinstance(outcome, Failed):
            return answers, each["id"]
        for name, value in outputs(store, outcome).items():
            answers[f"{each['id']}.{name}"] = value
            if isinstance(value, np.ndarray):
                ids[f"{each['id']}.{name}"] = array(store, value, value.dtype.name)
    return answers, ""


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return bool(one == other)


# What random plans are made of: the inputs of each operation, and its outputs that have the shape of those.
_KINDS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], st.SearchStrategy[dict[str, Any]]], ...] = (
    ("rsi", ("close",), ("rsi",), st.fixed_dictionaries({"period": st.integers(2, 9)})),
    ("ema", ("prices",), ("ema",), st.fixed_dictionaries({"period": st.integers(2, 9)})),
    ("bollinger", ("close",), ("upper", "middle", "lower"), st.fixed_dictionaries({"period": st.integers(2, 9)})),
    ("sma", ("close",), ("sma",), st.sampled_from([{"period": 3}, {"period": 3, "nan_policy": "error"}])),
    ("obv", ("close", "volume"), ("obv",), st.just({})),
    ("add", ("x", "y"), ("add",), st.just({})),
    ("multiply", ("x", "y"), ("multiply",), st.just({})),
    ("axpy", ("x", "y"), ("axpy",), st.fixed_dictionaries({"alpha": st.floats(-2.0, 2.0)})),
    ("cross_rank", ("values",), ("rank",), st.just({"percentile": True})),
    ("cross_zscore", ("values",), ("zscore",), st.just({})),
    ("sum", ("x",), (), st.sampled_from([{}, {"axis": "last"}])),
    ("covariance", ("returns",), (), st.just({})),  # refuses a NaN, which is known only when it runs
)


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    sources, steps, given = list(PRICES), list[dict[str, Any]](), list[str]()
    for at in range(draw(st.integers(1, 7))):
        operation, names, shaped, params = draw(st.sampled_from(_KINDS))
        inputs = {name: draw(st.sampled_from(sources)) for name in names}
        steps.append({"id": f"s{at}", "operation": operation, "params": draw(params), "inputs": inputs})
        sources += [f"s{at}.{name}" for name in shaped]
        given += [f"s{at}.{output.name}" for output in OPERATIONS[operation].outputs]
    chosen = draw(st.lists(st.sampled_from(given), min_size=1, max_size=6))
    last = st.one_of(st.none(), st.integers(1, 50))
    return {
        "steps": steps,
        "outputs": {
            f"o{at}": {"from": source} | ({} if (n := draw(last)) is None else {"last": n})
            for at, source in enumerate(chosen)
        },
    }


@pytest.mark.parametrize("device", ["cpu", "emulated"])
def test_random_plans_have_the_bytes_of_their_steps_as_single_jobs(store: SpoolStore, device: str) -> None:
    found = CPU if device == "cpu" else emulated()
    uploaded = {name: array(store, values) for name, values in PRICES.items()}

    @settings(max_examples=PLANS, deadline=None, suppress_health_check=list(HealthCheck))
    @given(plans())
    def check(params: dict[str, Any]) -> None:
        read = {source for each in params["steps"] for source in each["inputs"].values()}
        inputs = {name: array_id for name, array_id in uploaded.items() if name in read}
        outcome = run(store, request("plan", inputs, params=params), found)
        answers, failed = one_by_one(store, params["steps"], inputs, found)
        if failed:
            assert isinstance(outcome, Failed)
            # What is known before it runs, of its inputs, is refused then.
            assert outcome.message.startswith((f"step {failed} of the plan, ", "/params/steps/"))
            return
        written = outputs(store, outcome)
        assert list(written) == sorted(params["outputs"])
        for name, wanted in params["outputs"].items():
            whole = answers[wanted["from"]]
            assert same(written[name], whole if "last" not in wanted else whole[..., -wanted["last"] :])

    check()


def _rsi(*more: dict[str, Any], **wanted: Any) -> dict[str, Any]:
    return {
        "steps": [{"id": "a", "operation": "rsi", "params": {"period": 3}, "inputs": {"close": "prices"}}, *more],
        "outputs": wanted or {"rsi": {"from": "a.rsi"}},
    }


def step(name: str, operation: str, inputs: dict[str, str], **params: Any) -> dict[str, Any]:
    return {"id": name, "operation": operation, "params": params, "inputs": inputs}


def plan(store: SpoolStore, params: dict[str, Any], found: Probe = CPU, **fields: Any) -> Succeeded | Failed:
    return run(store, request("plan", {"prices": array(store, PRICES["close"])}, params=params, **fields), found)


def test_the_result_says_of_each_step_where_it_ran_and_how_long(store: SpoolStore) -> None:
    params = _rsi(step("b", "ema", {"close": "a.rsi"}, period=4), b={"from": "b.ema"})
    outcome = plan(store, params, emulated())
    assert isinstance(outcome, Succeeded)
    steps = document(store, outcome).steps
    assert steps is not None
    assert [(each.id, each.operation, each.backend) for each in steps] == [("a", "rsi", "gpu"), ("b", "ema", "gpu")]
    assert outcome.provenance.backend == "gpu"
    assert outcome.provenance.compute_seconds == pytest.approx(sum(each.seconds for each in steps))
    assert document(store, plan(store, params)).steps != steps


def test_a_step_without_a_gpu_implementation_runs_on_the_cpu_and_says_so(store: SpoolStore) -> None:
    params = {
        "steps": [
            step("c", "covariance", {"returns": "prices"}),
            step("h", "hrp", {"covariance": "c.covariance"}),
        ],
        "outputs": {"w": {"from": "h.weights"}},
    }
    outcome = plan(store, params, emulated())
    assert isinstance(outcome, Succeeded)
    steps = document(store, outcome).steps
    assert steps is not None
    assert [each.backend for each in steps] == ["gpu", "cpu"]
    assert steps[1].fallback_reason == outcome.provenance.fallback_reason == "hrp has no GPU implementation"


def test_a_step_that_fails_names_itself_and_nothing_is_kept(store: SpoolStore) -> None:
    outcome = plan(store, _rsi(step("c", "covariance", {"returns": "a.rsi"}), c={"from": "c.covariance"}))
    assert outcome == Failed(
        code="invalid-input",
        message="step c of the plan, covariance: /inputs/returns: returns: the array holds a NaN",
    )
    assert list((store.result("job_1.1").parent).iterdir()) == []


def test_a_fault_of_the_gpu_takes_one_step_to_the_cpu(store: SpoolStore) -> None:
    values = array(store, [1.0, 2.0])
    doubles = {"double": OWN["double"]}
    params = {
        "steps": [step("a", "double", {"values": "values"}), step("b", "double", {"values": "a.doubled"})],
        "outputs": {"x": {"from": "b.doubled"}, "n": {"from": "a.total"}},
    }
    wanted = request("plan", {"values": values}, params=params)
    (outcome,) = execute.run([(wanted, 1)], store, gpu("oom@2"), {**doubles, "plan": plan_of(doubles)})
    assert isinstance(outcome, Succeeded)
    steps = document(store, outcome).steps
    assert steps is not None
    assert [each.backend for each in steps] == ["gpu", "cpu"]
    assert outputs(store, outcome)["x"].tolist() == [4.0, 8.0]
    assert outputs(store, outcome)["n"] == 6.0
    with pytest.raises(DeviceLost):
        execute.run([(wanted, 1)], store, gpu("lost@2"), {**doubles, "plan": plan_of(doubles)})


def test_progress_is_the_share_of_work_and_arrays_are_let_go_of(
    store: SpoolStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, held = list[float](), list[set[str]]()
    whole = execute._Batch._step

    def watched(self: Any, item: Any, planned: Any, at: int, arrays: dict[str, Any]) -> Any:
        held.append({name for name in arrays if "." in name})
        return whole(self, item, planned, at, arrays)

    monkeypatch.setattr(execute._Batch, "_step", watched)
    params = _rsi(
        step("b", "bollinger", {"close": "a.rsi"}, period=3),
        step("c", "ema", {"close": "b.upper"}, period=3),
        step("d", "ema", {"close": "c.ema"}, period=3),
        now={"from": "b.middle", "last": 1}, d={"from": "d.ema"}, up={"from": "b.upper"},
    )  # fmt: skip
    wanted = request("plan", {"prices": array(store, PRICES["close"])}, params=params)
    (outcome,) = execute.run([(wanted, 1)], store, CPU, CATALOGUE, tell=parts.append)  # type: ignore[arg-type]
    assert isinstance(outcome, Succeeded)
    assert held == [set(), {"a.rsi"}, {"b.upper"}, {"b.upper", "c.ema"}]
    assert parts == sorted(parts)
    assert len(parts) >= 4
    assert parts[-1] == pytest.approx(1.0)
    assert not progress.has_listener()


def test_steps_that_draw_words_have_the_seeds_that_the_door_wrote(store: SpoolStore) -> None:
    option = {"payoff": "european", "option": "call", "spot": 100.0, "strike": 100.0, "volatility": 0.2,
              "maturity": 1.0, "paths": 1024, "steps": 4}  # fmt: skip
    params = {
        "steps": [{**step(name, "monte_carlo", {}, **option), "seed": seed} for name, seed in (("a", 7), ("b", 8))],
        "outputs": {"a": {"from": "a.price"}, "b": {"from": "b.price"}},
    }
    written = outputs(store, run(store, request("plan", {}, params=params)))
    assert written["a"] != written["b"]
    alone = outputs(store, run(store, request("monte_carlo", {}, params=option, seed=7)))
    assert written["a"] == alone["price"]


def test_a_worker_that_knows_no_plans_and_an_input_that_has_gone_are_told(store: SpoolStore) -> None:
    (outcome,) = execute.run([(request("plan", {}, params=_rsi()), 1)], store, CPU, OPERATIONS)
    assert outcome == Failed(code="invalid-input", message="this worker has no operation 'plan'")
    gone = run(store, request("plan", {"prices": "blake3:" + "1" * 64}, params=_rsi()))
    assert isinstance(gone, Failed)
    assert "the array was erased" in gone.message
