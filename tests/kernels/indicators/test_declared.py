"""Every declared indicator, tested from its declaration alone."""

import csv
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cudasim.device import EmulatedDevice
from tests.kernels.indicators.cases import bars
from tests.kernels.indicators.definition import evaluate
from warpdesk import ta
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.indicators.algebra import Node, lag
from warpdesk_server.kernels.indicators.declared import DECLARED, INDICATORS
from warpdesk_server.kernels.indicators.expression import EXPRESSION
from warpdesk_server.kernels.indicators.indicator import Bars, indicator
from warpdesk_server.kernels.operation import Operation, SameAs
from warpdesk_server.kernels.problems import InvalidRequest

ROOT = Path(__file__).resolve().parents[3]
Arrays = dict[str, NDArray[Any]]

EACH = pytest.mark.parametrize("operation", DECLARED, ids=lambda operation: operation.name)


def real_bars() -> Arrays:
    """The 252 daily bars of TA-Lib's regression tests."""
    with (ROOT / "tests/vectors/indicators_talib_bars.csv").open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def given(operation: Operation, arrays: Arrays) -> Arrays:
    return {each.shown: arrays[each.shown] for each in operation.inputs}


def compute(operation: Operation, arrays: Arrays, **params: Any) -> Arrays:
    model = operation.params(**{**operation.example.params, **params})
    return operation.implementation("cpu")(model, **given(operation, arrays))


def example_of(operation: Operation) -> Any:
    return operation.params(**operation.example.params)


TWINS = [
    pytest.param(operation, twin, id=f"{operation.name}-{twin.function}{''.join(map(str, twin.theirs.values()))}")
    for operation in OPERATIONS.values()
    for twin in operation.same_as
]


@pytest.mark.parametrize(("operation", "twin"), TWINS)
def test_it_agrees_with_the_function_of_talib_that_it_says_it_is(operation: Operation, twin: SameAs) -> None:
    abstract = pytest.importorskip("talib.abstract", reason="TA-Lib is not installed")
    arrays = real_bars()
    for params in (operation.example.params, {}):
        required = {name for name, field in operation.params.model_fields.items() if field.is_required()}
        if not params and not required <= set(twin.fixed):
            params = dict.fromkeys(required - set(twin.fixed), 7)  # another period
        params = {name: value for name, value in params.items() if name != "let"}  # the outputs are the twin's
        model = operation.params(**{**params, **twin.fixed})
        names = operation.given_names(twin.inputs)
        own = operation.implementation("cpu")(model, **{own: arrays[twin.inputs[name]] for own, name in names.items()})
        own = ta.outputs(own) if operation is EXPRESSION else own
        options = dict(twin.theirs)
        for name, theirs in twin.parameters.items():
            options |= dict.fromkeys((theirs,) if isinstance(theirs, str) else theirs, getattr(model, name))
        function = abstract.Function(twin.function)
        answer = function(arrays, **options)
        answers = dict(zip(function.output_names, answer if isinstance(answer, list) else [answer], strict=True))
        for name, theirs in twin.outputs.items():
            expected = answers[theirs].astype(float)
            if answers[theirs].dtype.kind == "i":  # it has 0 before the first number
                expected[: int(np.argmax(~np.isnan(own[name])))] = np.nan
            assert np.array_equal(np.isnan(own[name]), np.isnan(expected)), name
            scale = np.nanmax(np.abs(expected))
            np.testing.assert_allclose(own[name], expected, rtol=1e-9, atol=1e-11 * scale, err_msg=name)


def test_every_number_of_talibs_regression_tests_is_met() -> None:
    with (ROOT / "tests/vectors/indicators_talib_more_points.csv").open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    arrays, answers = real_bars(), dict[str, Arrays]()
    for row in rows:
        params = {name: int(value) for name, _, value in (pair.partition("=") for pair in row["params"].split())}
        key = row["operation"] + row["params"]
        answers[key] = answers.get(key) or compute(OPERATIONS[row["operation"]], arrays, **params)
        got = answers[key][row["output"]][int(row["bar"])]
        assert got == pytest.approx(float(row["expected"]), abs=0.01), row
    assert len(rows) > 50


@EACH
def test_it_is_what_its_graph_means_bar_by_bar(operation: Operation) -> None:
    arrays = {name: array[0] for name, array in bars(1, 330, seed=5).items()}
    for name in ("high", "close"):
        arrays[name][[3, 150, 151, 280]] = np.nan
    graph = INDICATORS[operation.name].graph(example_of(operation))
    meant, own = evaluate(graph, given(operation, arrays)), compute(operation, arrays)
    for name, expected in meant.items():
        assert np.array_equal(np.isnan(own[name]), np.isnan(expected)), name
        scale = np.nanmax(np.abs(expected))
        np.testing.assert_allclose(own[name], expected, rtol=1e-10, atol=1e-12 * scale, err_msg=name)


@EACH
def test_the_values_that_its_schema_gives_for_a_sweep_are_values_it_takes(operation: Operation) -> None:
    sweeps = {name: field.examples for name, field in operation.params.model_fields.items() if field.examples}
    assert set(sweeps) == set(operation.params.model_fields) & {"period", "fast", "slow", "signal", "smooth", "width"}
    for at in range(max(map(len, sweeps.values()), default=0)):
        chosen = {name: values[min(at, len(values) - 1)] for name, values in sweeps.items()}
        for output in compute(operation, bars(2, 260), **chosen).values():
            assert output.shape == (2, 260)


@EACH
def test_its_first_number_is_where_it_says_and_a_shorter_series_is_refused(operation: Operation) -> None:
    program = INDICATORS[operation.name].program(example_of(operation), 8)
    needed = 1 + max(program.first.values())
    own = compute(operation, {name: array[0, : needed + 9] for name, array in bars(1, 400).items()})
    for name, first in program.first.items():
        if operation.name != "swing_pivots":  # has a number at a pivot alone
            assert int(np.argmin(np.isnan(own[name]))) == first, name
    infos = {each.name: ArrayInfo("float64", (3, needed)) for each in operation.inputs}
    operation.validate(operation.example.params, infos)
    if needed > 1:
        short = {name: ArrayInfo("float64", (3, needed - 1)) for name in infos}
        with pytest.raises(InvalidRequest, match=f"needs? at least {needed} (bars|prices), got {needed - 1}"):
            operation.validate(operation.example.params, short)


@EACH
def test_a_bar_never_depends_on_later_ones(operation: Operation) -> None:
    arrays = bars(2, 2200, seed=3)
    whole = compute(operation, arrays)
    for cut in (33, 64, 300, 2048, 2049, 2199):
        if cut > max(INDICATORS[operation.name].program(example_of(operation), 8).first.values()):
            part = compute(operation, {name: array[:, :cut] for name, array in arrays.items()})
            for name in whole:
                assert part[name].tobytes() == np.ascontiguousarray(whole[name][:, :cut]).tobytes(), (name, cut)


@EACH
def test_in_another_unit_of_prices_only_the_exponent_changes(operation: Operation) -> None:
    arrays = bars(1, 500, seed=4)
    scaled = {name: array * (1 if name == "volume" else 2.0**20) for name, array in arrays.items()}
    one, other = compute(operation, arrays), compute(operation, scaled)
    for name in one:
        numbers = np.isfinite(one[name]) & (one[name] != 0)
        ratios = np.unique(other[name][numbers] / one[name][numbers])
        assert ratios.size <= 1, name
        assert ratios.size == 0 or ratios[0] in (2.0**-20, 1, 2.0**20, 2.0**40), name
        assert np.array_equal(other[name][~numbers], one[name][~numbers], equal_nan=True)


@EACH
def test_gaps_are_closed_by_each_policy_in_all_inputs_alike(operation: Operation) -> None:
    arrays = given(operation, bars(1, 600, seed=6))
    holes = {name: 40 + 90 * index for index, name in enumerate(arrays)}
    for name, bar in holes.items():
        arrays[name][0, bar] = np.nan
    gone = np.array(sorted(holes.values()))
    packed = compute(operation, {name: np.delete(array, gone, axis=1) for name, array in arrays.items()})
    skipped = compute(operation, arrays, nan_policy="skip")
    filled = {name: array.copy() for name, array in arrays.items()}
    for name, bar in holes.items():
        filled[name][0, bar] = filled[name][0, bar - 1]
    expected, forward = compute(operation, filled), compute(operation, arrays, nan_policy="ffill")
    for name in packed:
        assert np.isnan(skipped[name][0, gone]).all()
        assert np.delete(skipped[name], gone, axis=1).tobytes() == packed[name].tobytes(), name
        assert forward[name].tobytes() == expected[name].tobytes(), name
    with pytest.raises(InvalidRequest, match='NaN and nan_policy is "error"'):
        operation.validate(
            {**operation.example.params, "nan_policy": "error"},
            {each.name: ArrayInfo("float64", (1, 600), has_nan=True) for each in operation.inputs},
        )


FINITE = [each for each in DECLARED if INDICATORS[each.name].program(example_of(each), 8).reach is not None]


@pytest.mark.parametrize("operation", FINITE, ids=lambda operation: operation.name)
def test_after_a_gap_only_as_many_bars_change_as_its_reach_says(operation: Operation) -> None:
    assert len(FINITE) > 60
    reach = INDICATORS[operation.name].program(example_of(operation), 8).reach
    assert reach is not None
    bar, time = 100, 100 + reach + 400
    arrays = bars(1, time, seed=7)
    clean = compute(operation, arrays)
    for array in arrays.values():
        array[0, bar] = np.nan
    gap = compute(operation, arrays)
    for name in clean:
        assert gap[name][0, :bar].tobytes() == clean[name][0, :bar].tobytes(), name
        assert gap[name][0, bar + reach + 1 :].tobytes() == clean[name][0, bar + reach + 1 :].tobytes(), name


def test_the_page_of_indicators_is_made_from_the_declarations() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "write_indicators.py"))
    page = (ROOT / "docs/reference/indicators.md").read_text()
    assert script["written"](page) == page, "`make indicators` writes it anew"
    readme = (ROOT / "README.md").read_text()
    assert script["counted"](readme) == readme, "`make indicators` writes it anew"


def test_a_declaration_that_lacks_something_is_refused_with_what_it_lacks() -> None:
    def wild(close: Node, *, percent: float = 2.5) -> Node:
        return close * percent

    def odd(prices: Node) -> Node:
        return prices

    def bare(close: Node, *, period: Bars) -> Node:
        return lag(close, period)

    def atr(close: Node) -> Node:
        return close

    for build, problem in (
        (wild, r"wild: percent needs Annotated\[..., Field\(description=...\)\]"),
        (odd, "odd: there is no input prices; there are open, high"),
        (bare, "bare: period has no default, so `example` needs it"),
        (atr, "atr is declared twice"),
    ):
        with pytest.raises(TypeError, match=problem):
            indicator("A test.", out="out")(build)
    assert not {"wild", "odd", "bare"} & set(INDICATORS)


def test_inputs_that_are_not_alike_are_refused() -> None:
    operation = OPERATIONS["atr"]
    infos = {name: ArrayInfo("float64", (4, 50)) for name in ("high", "low", "close")}
    for shape, dtype, problem in (
        ((4, 51), "float64", r"low has the shape \[4, 51\], and high \[4, 50\]; .* one series of 50 bars"),
        ((51,), "float64", r"the shape \[51\]"),
        ((3, 50), "float64", r"the shape \[3, 50\]"),
        ((50,), "float32", "low is float32, and high is float64; they must have one dtype"),
    ):
        with pytest.raises(InvalidRequest, match=problem):
            operation.validate({}, {**infos, "low": ArrayInfo(dtype, shape)})


@pytest.mark.parametrize("policy", ["window", "skip", "ffill"])
@pytest.mark.parametrize(("name", "alone"), [("rolling_pair", "benchmark"), ("rolling_pair", "close"), ("atr", "low")])
def test_one_series_stands_beside_those_of_many_assets(name: str, alone: str, policy: str) -> None:
    operation, arrays = OPERATIONS[name], bars(5, 300, gaps=0.02)
    params = operation.params(**operation.example.params, nan_policy=policy)
    repeated = given(operation, {**arrays, alone: np.repeat(arrays[alone][:1], 5, axis=0)})
    expected = operation.implementation("cpu")(params, **repeated)
    for one in (arrays[alone][0], arrays[alone][:1]):
        inputs = given(operation, {**arrays, alone: one})
        infos = {each: ArrayInfo("float64", array.shape) for each, array in inputs.items()}
        operation.validate(operation.example.params, infos)
        on_device = operation.implementation("gpu")(params, **inputs, device=EmulatedDevice())
        for got in (operation.implementation("cpu")(params, **inputs), on_device):
            for output, numbers in expected.items():
                assert np.array_equal(got[output], numbers, equal_nan=True), (output, one.shape)


@pytest.mark.parametrize(
    ("name", "params", "problem"),
    [
        ("macd", {"fast": 26, "slow": 12}, "fast should be below slow, got 26 and 12"),
        ("crossover", {"fast": 50, "slow": 50}, "fast should be below slow"),
        ("mean_reversion", {"entry": 1.0, "exit": 1.5}, "exit should be below entry, got 1.5 and 1.0"),
        ("adosc", {"fast": 10, "slow": 3}, "fast should be below slow"),
        ("stochastic", {"period": 0}, "period should be at least 1, got 0"),
        ("stochastic", {"k": 3}, "no field 'k'"),
        ("ultimate_oscillator", {"short": 10, "medium": 10}, "should ascend, got 10, 10 and 28"),
        ("macd", {"average": "fixed", "fast": 5}, "for fast 12 and slow 26, talib or plain, got 5 and 26"),
        ("parabolic_sar", {"acceleration": 0.3}, "acceleration should be at most maximum"),
        ("rolling", {"period": 5, "statistic": "std", "ddof": True}, "ddof should be the integer 1"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(name: str, params: dict[str, Any], problem: str) -> None:
    operation = OPERATIONS[name]
    infos = {each.name: ArrayInfo("float64", (300,)) for each in operation.inputs}
    with pytest.raises(InvalidRequest, match=problem):
        operation.validate(params, infos)


def test_swing_pivots_are_those_of_their_definition() -> None:
    arrays, left, right = {name: array[0].round(1) for name, array in bars(1, 900, seed=8).items()}, 3, 2
    own = compute(OPERATIONS["swing_pivots"], arrays, left=left, right=right)
    for name, side in (("high", 1), ("low", -1)):
        x, expected = side * arrays[name], np.full(900, np.nan)
        for p in range(left, 900 - right):
            if x[p] > x[p - left : p].max() and x[p] >= x[p + 1 : p + right + 1].max():
                expected[p + right] = arrays[name][p]
        assert np.array_equal(own[name], expected, equal_nan=True)
        assert 50 < np.isfinite(expected).sum() < 300


def test_averages_and_indices_over_all_bars_pass_over_a_gap() -> None:
    high = np.full(8, 10.0)
    high[3] = np.nan
    bars_ = {"high": high, "low": np.full(8, 10.0), "close": np.full(8, 10.0), "volume": np.arange(1.0, 9.0)}
    assert np.array_equal(compute(OPERATIONS["vwap"], bars_)["vwap"], high, equal_nan=True)
    close, volume = np.array([10.0, 11.0, 12.0, np.nan, 11.0]), np.array([5.0, 4.0, 3.0, 9.0, 2.0])
    index = compute(OPERATIONS["nvi"], {"close": close, "volume": volume})["nvi"]
    np.testing.assert_allclose(index, [1000, 1100, 1200, np.nan, 1100], rtol=1e-14)


def test_a_position_is_taken_left_and_kept_through_a_gap() -> None:
    close = np.tile([10.0, 11.0], 30)
    close[20], close[24], close[26], close[45] = 30.0, np.nan, 10.5, -20.0
    own = compute(OPERATIONS["mean_reversion"], {"close": close}, period=10, entry=2.0, exit=0.5)
    position, z = own["position"], own["zscore"]
    assert position[20] == -1
    assert z[20] > 2
    assert np.isnan(z[24:34]).all()
    assert (position[24:34] == position[23]).all()
    assert position[45] == 1
    assert (np.isin(position, (-1, 0, 1))).all()
