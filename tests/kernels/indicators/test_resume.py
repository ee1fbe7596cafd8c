"""Bars as they come: however a series is divided, a program that goes on from its state gives the bytes of one run."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.indicators.cases import bars
from tests.kernels.indicators.test_algebra import graphs
from warpdesk_server.kernels.indicators import algebra as a
from warpdesk_server.kernels.indicators import program_cpu
from warpdesk_server.kernels.indicators.algebra import Node
from warpdesk_server.kernels.indicators.declared import DECLARED, INDICATORS
from warpdesk_server.kernels.indicators.gaps import close_all_gaps, reopen_gaps, whole_gap
from warpdesk_server.kernels.indicators.plan import Program, plan
from warpdesk_server.kernels.indicators.resume import StateMismatch, go_on
from warpdesk_server.kernels.problems import InvalidRequest

CLOSE = a.series("close")
ONES: dict[str, Node] = {
    "sma": a.mean(CLOSE, 20),
    "sma 3000": a.mean(CLOSE, 3_000),
    "ema": a.ema(CLOSE, 20),
    "ema of all bars": a.ema(CLOSE, 20_000, "tradingview"),
    "rsi": a.strength(CLOSE, 14),
    "rsi of all bars": a.strength(CLOSE, 300),
    "cutler": a.strength(CLOSE, 14, "cutler"),
    "deviation": a.deviation(CLOSE, 50),
}


def in_one_run(program: Program, inputs: dict[str, Any], policy: Any) -> Any:
    outputs = program_cpu.run(program, close_all_gaps(inputs, policy))
    return np.stack([reopen_gaps(output, whole_gap(inputs), policy) for output in outputs])


def bar_by_bar(program: Program, inputs: dict[str, Any], policy: Any, cuts: list[int]) -> Any:
    time, state, found = next(iter(inputs.values())).shape[1], None, []
    for begin, end in zip([0, *cuts], [*cuts, time], strict=True):
        outputs, state = go_on(program, policy, {name: each[:, begin:end] for name, each in inputs.items()}, state)
        found.append(outputs)
    return np.concatenate(found, axis=2)


def check(program: Program, policy: Any, dtype: str, cuts: list[int], time: int = 4_500, gaps: float = 0.003) -> None:
    found = bars(3, time, dtype, seed=3, gaps=gaps)
    inputs = {name: found[name] for name in program.inputs}
    before = {name: each.copy() for name, each in inputs.items()}
    expected, got = in_one_run(program, inputs, policy), bar_by_bar(program, inputs, policy, cuts)
    assert np.array_equal(np.isnan(expected), np.isnan(got))
    assert np.nan_to_num(expected).tobytes() == np.nan_to_num(got).tobytes()
    assert not np.isnan(got).all()
    assert all(np.array_equal(inputs[name], before[name], equal_nan=True) for name in inputs)


@pytest.mark.parametrize("name", [*ONES, *(operation.name for operation in DECLARED)])
def test_every_indicator_goes_on_from_its_state(name: str) -> None:
    if name in ONES:
        program = plan({"out": ONES[name]}, 8)
    else:
        operation = INDICATORS[name].operation
        program = INDICATORS[name].program(operation.params(**operation.example.params), 8)
    # Within a chunk, at its end, one bar at a time, and over chunks.
    check(program, "window", "float64", [1, 2, 700, 2_047, 2_048, 2_049, 4_300, *range(4_301, 4_310)], gaps=0.0005)


@pytest.mark.parametrize("policy", ["window", "skip", "ffill"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_gaps_and_rows_that_lack_other_bars(policy: str, dtype: str) -> None:
    close, high, low = CLOSE, a.series("high"), a.series("low")
    graph = {
        "rsi": a.strength(close, 14),
        "range": a.rma(a.highest(high, 20) - a.lowest(low, 9), 5),
        "obv": a.total(close),
    }
    program = plan(graph, np.dtype(dtype).itemsize)
    check(program, policy, dtype, [5, 6, 7, 1_900, 2_060, 2_061, 4_499], gaps=0.02)


def test_a_memory_of_all_bars_goes_through_groups_of_tiles() -> None:
    check(plan({"rsi": a.strength(CLOSE, 300)}, 8), "window", "float64", [131_000, 131_072, 131_073], 140_000, 1e-5)


@pytest.mark.timeout(300)
@settings(max_examples=25, deadline=None)
@given(graphs(), st.lists(st.integers(0, 2_300), max_size=4), st.sampled_from(["window", "skip", "ffill"]))
def test_a_random_graph_goes_on_from_its_state(graph: dict[str, Node], cuts: list[int], policy: str) -> None:
    program = plan(graph, 8)
    if program.inputs:
        found = bars(2, 2_300, "float64", seed=4, gaps=0.01)
        inputs = {name: found[name] for name in program.inputs}
        expected = in_one_run(program, inputs, policy)
        got = bar_by_bar(program, inputs, policy, sorted(cuts))
        assert np.array_equal(np.isnan(expected), np.isnan(got))
        assert np.nan_to_num(expected).tobytes() == np.nan_to_num(got).tobytes()


def test_a_state_that_does_not_fit_is_refused() -> None:
    program, closes = plan({"out": ONES["rsi"]}, 8), bars(3, 100)["close"]
    _, state = go_on(program, "window", {"close": closes})
    damaged = state[:60] + bytes([state[60] ^ 1]) + state[61:]
    with pytest.raises(StateMismatch, match=f"the state of {len(state)} bytes is damaged"):
        go_on(program, "window", {"close": closes}, damaged)
    with pytest.raises(StateMismatch, match="the state has 3 rows, and the bars 2"):
        go_on(program, "window", {"close": closes[:2]}, state)
    for other, policy in ((plan({"out": ONES["sma"]}, 8), "window"), (program, "skip")):
        with pytest.raises(StateMismatch, match="is of another indicator"):
            go_on(other, policy, {"close": closes}, state)  # type: ignore[arg-type]
    with pytest.raises(StateMismatch, match="is of another indicator"):
        go_on(program, "window", {"close": closes.astype(np.float32)}, state)
    with pytest.raises(InvalidRequest, match="NaN"):
        go_on(program, "error", {"close": np.full((1, 2), np.nan)})
