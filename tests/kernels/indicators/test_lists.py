"""Lists of parameters: each slice of an output has the bytes of a job with that set of parameters."""

import json
from typing import Any

import pytest

from tests.kernels.indicators.cases import bars, walk
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.indicators.declared import DECLARED, takes_lists
from warpdesk_server.kernels.indicators.indicator import MOST_SETS
from warpdesk_server.kernels.operation import Operation
from warpdesk_server.kernels.problems import InvalidRequest

# Of these parameters an indicator takes lists, and each is one more in the second set.
LISTED = ("period", "fast", "slow", "signal", "smooth", "width")
WITH_LISTS = [each for each in DECLARED if set(LISTED) & set(each.params.model_fields)]


def computed(operation: Operation, inputs: Any, **params: Any) -> dict[str, Any]:
    parsed = operation.params.model_validate_json(json.dumps(params))
    return operation.implementation("cpu")(parsed, **inputs)


def requested(name: str, length: int = 60, **params: Any) -> Any:
    return OPERATIONS[name].validate(params, {"prices": ArrayInfo("float64", (length,))})


def problem(name: str, length: int = 60, **params: Any) -> tuple[str, str]:
    with pytest.raises(InvalidRequest) as refused:
        requested(name, length, **params)
    return refused.value.problems[0].pointer, refused.value.problems[0].detail


@pytest.mark.parametrize("operation", WITH_LISTS, ids=lambda each: each.name)
def test_each_slice_has_the_bytes_of_a_job_by_itself(operation: Operation) -> None:
    arrays = bars(2, 200, gaps=0.01)
    inputs = {each.name: arrays[each.shown] for each in operation.inputs}
    default = operation.params(**operation.example.params)
    own = [name for name in LISTED if name in operation.params.model_fields]
    sets = [{name: getattr(default, name) + more for name in own} for more in (0, 1)]
    lists = {name: [each[name] for each in sets] for name in own}

    both = computed(operation, inputs, **{**operation.example.params, **lists})

    for place, one in enumerate(sets):
        alone = computed(operation, inputs, **{**operation.example.params, **one})
        assert list(both) == list(alone)
        for name, array in alone.items():
            assert both[name].shape == (2, *array.shape)
            assert both[name][place].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("policy", ["skip", "ffill"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sets_of_a_single_series_have_one_axis_before_the_time(dtype: str, policy: str) -> None:
    prices = walk(300, dtype=dtype, gaps=0.1)
    found = computed(OPERATIONS["bollinger"], {"prices": prices}, period=[5, 20, 7], nan_policy=policy)
    assert list(found) == ["upper", "middle", "lower"]
    assert {(array.shape, str(array.dtype)) for array in found.values()} == {((3, 300), dtype)}
    alone = computed(OPERATIONS["bollinger"], {"prices": prices}, period=20, nan_policy=policy)
    assert found["upper"][1].tobytes() == alone["upper"].tobytes()


def test_a_list_of_one_has_its_axis_too() -> None:
    assert computed(OPERATIONS["sma"], {"prices": walk(20)}, period=[3])["sma"].shape == (1, 20)


def test_what_is_wrong_in_a_list_is_told_with_its_place() -> None:
    assert problem("rsi", period=[5, 0]) == ("/params/period/1", "period[1] should be at least 2, got 0")
    assert problem("rsi", period=[]) == ("/params/period", "period should hold at least 1 item, got 0")
    assert problem("rsi", period=[5] * (MOST_SETS + 1)) == (
        "/params/period", f"period should hold at most {MOST_SETS} items, got {MOST_SETS + 1}",
    )  # fmt: skip
    assert problem("rsi", period=[5, [6]])[0] == "/params/period/1"
    assert problem("rsi", period=0) == ("/params/period", "period should be at least 2, got 0")
    assert problem("rsi", period=[5, 70]) == ("/params/period", "period [5, 70] needs at least 71 prices, got 60")
    assert problem("bollinger", period=[5, 6], width=[1.0, 2.0, 3.0]) == (
        "/params/width", "lists go together, value by value: period has 2, and width 3",
    )  # fmt: skip


def test_only_a_job_with_lists_waits_for_workers_that_take_them() -> None:
    assert takes_lists("rsi", requested("rsi", period=[5, 6]))
    assert not takes_lists("rsi", requested("rsi", period=5))
    assert not takes_lists("matmul", OPERATIONS["matmul"].params())


def test_an_expression_takes_one_value() -> None:
    written = {"outputs": {"x": {"op": "rsi", "of": "close", "period": [5, 6]}}}
    with pytest.raises(InvalidRequest) as refused:
        OPERATIONS["expression"].validate(written, {"close": ArrayInfo("float64", (60,))})
    assert refused.value.problems[0].pointer == "/params/outputs/x/period"
    assert refused.value.problems[0].detail == "period takes one value here: name an output for each"


def test_the_schema_says_which_parameters_take_lists() -> None:
    schema = OPERATIONS["rsi"].params.model_json_schema()["properties"]
    one, several = schema["period"]["anyOf"]
    assert (one["type"], one["minimum"]) == ("integer", 2)
    assert several == {"type": "array", "items": one, "minItems": 1, "maxItems": MOST_SETS}
    assert "anyOf" not in schema["convention"]


def test_costs_grow_with_the_sets_and_shards_are_cut_by_assets() -> None:
    infos = {"prices": ArrayInfo("float64", (500, 2520))}
    operation = OPERATIONS["rsi"]
    one, many = (operation.params.model_validate_json(json.dumps({"period": period})) for period in (14, [14, 15, 16]))
    assert operation.infer(many, infos)["rsi"].shape == (3, 500, 2520)  # type: ignore[union-attr]
    assert operation.infer(one, infos)["rsi"].shape == (500, 2520)  # type: ignore[union-attr]
    assert operation.cost(many, infos).bytes > operation.cost(one, infos).bytes + 2 * infos["prices"].nbytes
    assert operation.cost(many, infos).work > 2 * operation.cost(one, infos).work
    sharding = operation.shards(many, infos)
    assert sharding is not None
    assert sharding.units == 500
    assert sharding.joined["rsi"].whole.shape == (3, 500, 2520)
