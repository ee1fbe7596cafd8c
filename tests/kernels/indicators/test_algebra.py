"""Graphs that nobody wrote: the interpreter on the CPU, the one on a device and the definition agree on random ones."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.cudasim.device import EmulatedDevice
from tests.kernels.indicators.cases import bars
from tests.kernels.indicators.definition import evaluate
from tests.kernels.indicators.test_declared import example_of
from warpdesk_server.kernels.indicators import algebra as a
from warpdesk_server.kernels.indicators import program_cpu, program_gpu
from warpdesk_server.kernels.indicators.algebra import Node
from warpdesk_server.kernels.indicators.declared import INDICATORS
from warpdesk_server.kernels.indicators.plan import Program, plan
from warpdesk_server.kernels.indicators.series import Series

Arrays = dict[str, NDArray[Any]]

CLOSE, HIGH, LOW = a.series("close"), a.series("high"), a.series("low")

# How a node is made of one, two or three others, and a number of bars.
UNARY: tuple[Callable[[Node, int], Node], ...] = (
    lambda x, n: a.lag(x, n % 40),
    lambda x, n: -x,
    lambda x, n: a.absolute(x),
    lambda x, n: a.root(a.absolute(x)),
    lambda x, n: a.log(a.absolute(x) + 1.0),
    lambda x, n: a.exp(x * 0.01),
    lambda x, n: a.floor(x),
    lambda x, n: a.missing(x),
    lambda x, n: x - 100.0 if n % 2 else x * 0.25,
    a.mean,
    a.deviation,
    a.highest,
    a.lowest,
    a.sum_over,
    a.weighted_mean,
    a.since_highest,
    lambda x, n: a.count_below(x, n, with_equal=n % 2 == 1),
    lambda x, n: a.ema(x, n),
    a.rma,
    lambda x, n: a.strength(x, n + 1),
    lambda x, n: a.strength(x, n + 1, "cutler"),
    lambda x, n: a.from_bar(n + 1, a.wilder_sum(x, x, n + 2, n + 1), x),
    lambda x, n: a.total(x),
    lambda x, n: a.mean_deviation(x, a.mean(x, n), n),
    lambda x, n: a.quantile(x, n, 0.3),
    lambda x, n: a.weighted_sum(x, [(k % 5) / 7 for k in range(n)]),
    lambda x, n: a.central_moments(x, n)[1],
)
BINARY: tuple[Callable[[Node, Node], Node], ...] = (
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y,
    lambda x, y: a.ratio(x, y, 0),
    a.maximum,
    a.minimum,
    lambda x, y: x < y,
    lambda x, y: x >= y,
    a.equal,
    a.crosses,
    lambda x, y: a.latch(x, x < y),
    a.ratchet,
    lambda x, y: a.parabolic(x, y, (0.02, 0.02, 0.2), (0.02, 0.02, 0.2)),
    lambda x, y: a.parabolic(x, y, (0.01, 0.03, 0.1), (0.05, 0.02, 0.2), apart=0.01, start=-90.0, signed=True),
    lambda x, y: a.covariance(x, y, 13),
    lambda x, y: a.correlation(x, y, 3),
    lambda x, y: a.beta(x, y, 20),
    lambda x, y: a.where(x < y, x, a.NOTHING),
)


@st.composite
def graphs(draw: Any) -> dict[str, Node]:
    """Up to twelve nodes over the inputs and each other; the last three are outputs."""
    nodes = [CLOSE, HIGH, LOW]
    for _ in range(draw(st.integers(1, 12))):
        one = nodes[draw(st.integers(0, len(nodes) - 1))]
        if draw(st.booleans()):
            nodes.append(draw(st.sampled_from(UNARY))(one, draw(st.sampled_from([1, 2, 3, 7, 12, 13, 20, 33, 64]))))
        else:
            nodes.append(draw(st.sampled_from(BINARY))(one, nodes[draw(st.integers(0, len(nodes) - 1))]))
    return {f"out{index}": node for index, node in enumerate(nodes[-3:])}


def series_of(rows: int, time: int, seed: int, dtype: str = "float64") -> Arrays:
    found = bars(rows, time, dtype, seed, gaps=0.004)
    return {name: found[name] for name in ("close", "high", "low")}


def on_device(program: Program, arrays: Arrays, device: EmulatedDevice | None = None) -> Arrays:
    device = device or EmulatedDevice("random", seed=1)
    rows, time = next(iter(arrays.values())).shape
    series = {
        name: Series(device, device.to_device(arrays[name].reshape(-1)), rows, time, arrays[name].dtype)
        for name in program.inputs
    }
    found = program_gpu.run(program, series)
    return {
        name: device.to_host(each.reshape(rows, time)) for (name, _), each in zip(program.outputs, found, strict=True)
    }


def on_cpu(program: Program, arrays: Arrays) -> Arrays:
    found = program_cpu.run(program, {name: arrays[name] for name in program.inputs})
    return dict(zip(program.names, found, strict=True))


def same_bytes(one: Arrays, other: Arrays) -> bool:
    return all(
        np.array_equal(one[name], other[name], equal_nan=True)
        and np.array_equal(np.signbit(one[name][~np.isnan(one[name])]), np.signbit(other[name][~np.isnan(other[name])]))
        for name in one
    )


def as_meant(graph: dict[str, Node], arrays: Arrays) -> bool:
    """Whether the CPU's numbers are those of the definition, as far as rounding allows.

    1e-7 of the row's largest number, since a graph may subtract large numbers that it has made, and more than once.
    """
    own = on_cpu(plan(graph, 8), arrays)
    for row in range(arrays["close"].shape[0]):
        meant = evaluate(graph, {name: array[row] for name, array in arrays.items()})
        for name, expected in meant.items():
            got, scale = own[name][row], max(1.0, float(np.nanmax(np.abs(expected), initial=0.0)))
            with np.errstate(invalid="ignore"):  # the difference of two infinities
                wrong = (np.isnan(got) != np.isnan(expected)) | (np.abs(got - expected) > 1e-7 * scale)
            if wrong.any():
                return False
    return True


@pytest.mark.timeout(300)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), st.integers(0, 5), st.sampled_from(["float64", "float32"]))
def test_a_random_graph_has_the_same_bytes_on_the_cpu_and_on_a_device(
    graph: dict[str, Node], seed: int, dtype: str
) -> None:
    arrays = series_of(2, (70, 300, 2100)[seed % 3], seed, dtype)
    program = plan(graph, arrays["close"].itemsize)
    if program.inputs:
        assert same_bytes(on_cpu(program, arrays), on_device(program, arrays))


# Without comparisons, of which rounding may turn one round.
SMOOTH = UNARY[:6] + UNARY[8:15] + UNARY[17:19] + UNARY[21:]
JOINED: tuple[Callable[[Node, Node], Node], ...] = (lambda x, y: x + y, lambda x, y: x - y, a.maximum)


@pytest.mark.timeout(300)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 40)), min_size=1, max_size=8))
def test_a_random_graph_is_what_it_means_bar_by_bar(choices: list[tuple[int, int, int]]) -> None:
    nodes = [CLOSE, HIGH, LOW]
    for kind, which, period in choices:
        one, other = nodes[which % len(nodes)], nodes[kind % len(nodes)]
        kind %= len(SMOOTH) + len(JOINED)
        nodes.append(SMOOTH[kind](one, period) if kind < len(SMOOTH) else JOINED[kind - len(SMOOTH)](one, other))
    assert as_meant({"out": nodes[-1]}, series_of(2, 150, len(choices)))


@pytest.mark.parametrize("time", [1, 2, 31, 32, 33, 255, 256, 257, 2047, 2048, 2049, 4097])
def test_every_length_has_the_bytes_of_a_longer_series_cut(time: int) -> None:
    graph = {"mean": a.mean(CLOSE, 20), "ema": a.ema(CLOSE, 20), "rsi": a.strength(CLOSE, 14)}
    moved = a.change(CLOSE)
    graph |= {"sum": a.from_bar(14, a.wilder_sum(moved, moved, 14, 13), moved), "high": a.highest(HIGH, 30)}
    graph |= {
        "pair": a.correlation(CLOSE, HIGH, 20),
        "eight": a.lowest(LOW, 8),
        "copied": a.lag(LOW, 3),
        "twice": a.lag(LOW, 3),
    }
    arrays = series_of(3, 4500, 2)
    whole, program = on_cpu(plan(graph, 8), arrays), plan(graph, 8)
    part = on_cpu(program, {name: np.ascontiguousarray(array[:, :time]) for name, array in arrays.items()})
    for name in whole:
        assert np.array_equal(part[name], whole[name][:, :time], equal_nan=True), name


def test_a_long_row_has_the_same_bytes_in_parts_and_in_one() -> None:
    fast, slow, apart = a.ema(CLOSE, 12), a.ema(CLOSE, 26), CLOSE - HIGH
    graph = {"fast": fast, "slow": slow, "signal": a.ema(fast - slow, 9), "high": a.highest(HIGH, 30)}
    graph |= {"apart": apart, "sum": CLOSE + HIGH, "average": a.mean(2.0 * apart, 20), "bands": a.deviation(CLOSE, 20)}
    graph |= {"pair": a.beta(CLOSE, HIGH, 50)}
    arrays = series_of(1, 400_000, 3)
    program = plan(graph, 8)
    assert program.reach is not None
    assert same_bytes(on_cpu(program, arrays), on_cpu(replace(program, reach=None), arrays))


@pytest.mark.parametrize(
    "window",
    [a.mean, a.deviation, lambda x, n: a.strength(x, n, "cutler"), lambda x, n: a.correlation(x, x * x, n)],
)
def test_blocks_that_begin_before_a_part_spoil_no_other_output(window: Callable[[Node, int], Node]) -> None:
    square, blocks = CLOSE * CLOSE, window(CLOSE, 1000)
    graph = {"a": square, "b": blocks, "c": a.mean(square + blocks, 1500), "d": a.ema(square - blocks, 50)}
    arrays, program = bars(1, 400_000), plan(graph, 8)
    assert program_cpu.parts_of(program, 1, 400_000) > 1
    assert same_bytes(on_cpu(program, arrays), on_cpu(replace(program, reach=None), arrays))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("period", [2, 7, 8, 9, 30, 255, 257, 1025, pytest.param(1500, marks=pytest.mark.thorough)])
def test_windows_of_two_series_are_what_they_mean_alone_and_eight_side_by_side(period: int, dtype: str) -> None:
    graph = {"covariance": a.covariance(CLOSE, HIGH, period), "correlation": a.correlation(CLOSE, HIGH, period)}
    graph |= {"beta": a.beta(CLOSE, HIGH, period), "alike": a.correlation(CLOSE, 2.0 * CLOSE + 3.0, period)}
    arrays = bars(2, 4500, dtype, seed=period)
    arrays["close"][1, [5, 700, 701, 4499]] = np.nan
    arrays["high"][1, 2047:2060] = arrays["high"][1, 2047]  # it does not move
    arrays = {name: arrays[name] for name in ("close", "high")}
    own = on_cpu(plan(graph, arrays["close"].itemsize), arrays)
    assert same_bytes(own, on_device(plan(graph, arrays["close"].itemsize), arrays))
    assert np.nanmax(np.abs(own["alike"])) <= 1
    tolerance = 1e-10 if dtype == "float64" else 0.02
    for row in range(2):
        for name, meant in evaluate(graph, {name: array[row] for name, array in arrays.items()}).items():
            np.testing.assert_allclose(own[name][row], meant, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("period", [2, 20, 2049, 100_000])
def test_a_core_keeps_no_more_than_is_declared(period: int) -> None:
    for name, convention in (
        ("sma", {}),
        ("ema", {}),
        ("rsi", {}),
        ("rsi", {"convention": "cutler"}),
        ("bollinger", {}),
    ):
        declared = INDICATORS[name]
        program = declared.program(declared.operation.params(period=period, **convention), 8)
        layout = program_cpu._layout(program, np.dtype("float64"), cut=True)
        assert layout.room + layout.space <= program.kept, (name, convention)


@pytest.mark.parametrize("name", INDICATORS)
def test_a_core_keeps_no_more_than_a_program_says(name: str) -> None:
    program = INDICATORS[name].program(example_of(INDICATORS[name].operation), 8)
    layout = program_cpu._layout(program, np.dtype("float64"), cut=True)
    assert layout.room + layout.space <= program.kept


def test_one_row_serves_all_rows() -> None:
    arrays = series_of(4, 500, 4)
    single = {**arrays, "high": arrays["high"][:1]}
    repeated = {**arrays, "high": np.repeat(arrays["high"][:1], 4, axis=0)}
    program = plan({"out": CLOSE - a.mean(HIGH, 5)}, 8)
    assert same_bytes(on_cpu(program, single), on_cpu(program, repeated))


def test_a_lag_cannot_look_ahead() -> None:
    with pytest.raises(ValueError, match="a lag of -1 bars would look ahead"):
        a.lag(CLOSE, -1)


# ---------------------------------------------------------------- defects that the comparisons above must find


def _changed(program: Program, at: int, **changes: Any) -> Program:
    steps = list(program.steps)
    steps[at] = replace(steps[at], **changes)
    return replace(program, steps=tuple(steps))


def _defects(program: Program) -> dict[str, Program]:
    found = {}
    for at, step in enumerate(program.steps):
        for index, arg in enumerate(step.args):
            if arg.lag:
                later = (*step.args[:index], replace(arg, lag=arg.lag - 1), *step.args[index + 1 :])
                found[f"a lag off by one at step {at}"] = _changed(program, at, args=later)
        if step.op == "select":
            found[f"a choice turned round at step {at}"] = _changed(
                program, at, args=(step.args[0], step.args[2], step.args[1])
            )
        if step.op == "max":
            found[f"a minimum at step {at}"] = _changed(program, at, op="min")
        if step.op == "mean":
            found[f"a shorter window at step {at}"] = _changed(program, at, values=(step.values[0] - 1,))
    return found


def test_every_planted_defect_of_a_program_shows_on_both_backends_and_beside_the_definition() -> None:
    top, bottom = a.highest(HIGH, 14), a.lowest(LOW, 14)
    graph = {"k": a.mean(a.ratio(CLOSE - bottom, top - bottom, 0), 3)}
    arrays, program = series_of(2, 300, 5), plan(graph, 8)
    meant = evaluate(graph, {name: array[0] for name, array in arrays.items()})["k"]
    sound, defects = on_cpu(program, arrays), _defects(program)
    assert len(defects) >= 10
    for what, broken in defects.items():
        wrong = on_cpu(broken, arrays)
        assert not same_bytes(sound, wrong), what
        assert not same_bytes(sound, on_device(broken, arrays)), what
        assert not np.allclose(wrong["k"][0], meant, rtol=1e-9, equal_nan=True), what


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_infinities_that_a_division_makes_are_the_same_on_both_sides(dtype: str) -> None:
    arrays = series_of(2, 700, 7, dtype)
    wild = 1.0 / (a.floor(CLOSE * 10.0) - 1000.0)
    graph = {
        "stop": a.parabolic(wild, wild, (0.02, 0.02, 0.2), (0.02, 0.02, 0.2)),
        "falls": a.ratchet(wild, CLOSE),
        "sum": a.sum_over(wild, 9),
    }
    graph |= {"total": a.total(wild), "average": a.ema(wild, 5), "held": a.latch(wild, wild > 0), "log": a.log(wild)}
    graph |= {"highest": a.highest(wild, 12), "mean": a.mean(wild, 20), "spread": a.deviation(wild, 20)}
    program = plan(graph, arrays["close"].itemsize)
    own = on_cpu(program, arrays)
    assert np.isinf(own["highest"]).any()
    assert same_bytes(own, on_device(program, arrays))


def test_zeros_of_both_signs_are_compared_alike_on_both_sides() -> None:
    zeros = np.where(np.random.default_rng(6).random((2, 400)) < 0.5, 0.0, -0.0)
    arrays = {"close": zeros, "high": -zeros, "low": zeros}
    program = plan({"high": a.highest(CLOSE, 5), "low": a.minimum(CLOSE, HIGH), "size": a.absolute(CLOSE)}, 8)
    own = on_cpu(program, arrays)
    assert same_bytes(own, on_device(program, arrays))
    assert not np.signbit(own["size"]).any()
