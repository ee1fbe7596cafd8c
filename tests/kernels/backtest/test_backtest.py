"""Backtests: answers by hand, an independent reference, no look-ahead, and wrong input."""

import re
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import warpdesk
from tests.conftest import ROOT
from tests.kernels.backtest.cases import CROSS, DISTANCES, SIDES, drawn, market
from tests.kernels.backtest.reference import run
from tests.kernels.parity import Case
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.backtest import operands
from warpdesk_server.kernels.backtest.job import Job
from warpdesk_server.kernels.backtest.metrics import FINAL, RAW, SUM1, WORST, metrics_of
from warpdesk_server.kernels.backtest.sets import sets_of
from warpdesk_server.kernels.backtest.signals import differences
from warpdesk_server.kernels.backtest.spec import BACKTEST, BACKTEST_SWEEP, METRICS
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.indicators.plan import plan
from warpdesk_server.kernels.problems import InvalidRequest

Answer = dict[str, Any]


def answer(operation: str, params: dict[str, Any], **inputs: Any) -> Answer:
    """The answer of the CPU, after the checks of a request."""
    arrays = {name: np.asarray(each, np.float64) for name, each in inputs.items()}
    infos = {name: ArrayInfo("float64", each.shape, bool(np.isnan(each).any())) for name, each in arrays.items()}
    OPERATIONS[operation].validate(params, infos)
    return Case(operation, params, lambda: arrays).run()


def metric(found: Answer, name: str) -> Any:
    return found["metrics"][METRICS.index(name)]


# ---------------------------------------------------------------- by hand

CLOSE, TARGET = [100.0, 110.0, 99.0, 108.9, 98.01], [1, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("rules", "total", "trips"),
    [
        ({"fill": "same_close"}, -0.109, 2),  # 1.1 * 0.9 * 0.9 - 1
        ({"fill": "same_close", "fee": 0.001, "fee_of": "spent"}, 0.891 * 0.999**4 - 1, 2),
        ({"fill": "same_close", "fee": 0.001}, 0.891 * (0.999 / 1.001) ** 2 - 1, 2),
        ({"fill": "next_close"}, -0.01, 1),  # from 110 to 108.9; then one is open
        ({"fill": "next_close", "last_bar": "sold"}, -0.01, 1),
    ],
)
def test_a_position_that_goes_in_and_out_earns_what_one_reckons_by_hand(
    rules: dict[str, Any], total: float, trips: int
) -> None:
    found = answer("backtest", rules, close=CLOSE, target=TARGET)
    assert metric(found, "total_return") == pytest.approx(total, abs=1e-12)
    assert metric(found, "trades") == trips


# Open, high, low, close of three bars. The signal is at the first, so the entry is at the open of the second, 100.
BARS = {
    "within the bar": [(100, 101, 99, 100), (100, 103, 94, 102), (102, 103, 101, 102)],
    "gap below": [(100, 101, 99, 100), (100, 103, 99, 102), (90, 91, 88, 89)],
    "gap above": [(100, 101, 99, 100), (100, 103, 99, 102), (120, 125, 94, 95)],
    "both": [(100, 101, 99, 100), (100, 103, 99, 102), (100, 111, 94, 100)],
    "neither": [(100, 101, 99, 100), (100, 103, 99, 102), (100, 109, 96, 100)],
    "trailing": [(100, 101, 99, 100), (100, 110, 99, 109), (109, 109, 104, 108)],
}


@pytest.mark.parametrize(
    ("bars", "rules", "long", "short", "reason"),
    [
        ("within the bar", {"stop_loss": 0.05}, 95, 105, "stop"),
        ("within the bar", {"stop_loss": 0.05, "stops_from": "next_bar"}, 102, 98, "open"),
        ("within the bar", {"stop_loss": 0.05, "slippage": 0.01}, 101 * 0.95 * 0.99, 99 * 1.05 * 1.01, "stop"),
        ("gap below", {"stop_loss": 0.05}, 90, 110, "stop"),
        ("gap above", {"take_profit": 0.1}, 110, 90, "target"),
        ("gap above", {"take_profit": 0.1, "target_fill": "open_if_better"}, 120, 80, "target"),
        ("gap above", {"take_profit": 0.1, "stop_loss": 0.05}, 110, 90, "target"),  # the open comes first
        ("both", {"take_profit": 0.1, "stop_loss": 0.05}, 95, 105, "stop"),
        ("both", {"take_profit": 0.1, "stop_loss": 0.05, "if_both": "target"}, 110, 90, "target"),
        ("both", {"take_profit": 0.09, "slippage": 0.01}, 101 * 1.09, 99 * 0.91, "target"),  # a limit does not slip
        ("neither", {"take_profit": 0.1, "stop_loss": 0.05}, 100, 100, "open"),
        ("trailing", {"trailing_stop": 0.05}, 104.5, 94.5, "stop"),  # 5 % from the best price of the bar before
        ("trailing", {"stop_loss": 0.05, "last_bar": "sold"}, 108, 92, "end"),
        ("trailing", {"trailing_stop": "a"}, 107, 93, "stop"),  # 3 from it, as known at the signal
    ],
)
@pytest.mark.parametrize("side", [1, -1])
def test_stops_and_targets_fill_at_the_pessimistic_price(
    bars: str, rules: dict[str, Any], long: float, short: float, reason: str, side: int
) -> None:
    opened, high, low, close = np.array(BARS[bars], float).T
    if side < 0:  # the bars reflected at 100
        opened, high, low, close = 200 - opened, 200 - low, 200 - high, 200 - close
    given = {"open": opened, "high": high, "low": low, "close": close}
    given["entries" if side > 0 else "short_entries"] = np.array([1.0, 0, 0])
    if rules.get("trailing_stop") == "a":
        given["a"] = np.array([3.0, 30.0, 30.0])
    found = answer("backtest", rules, **given)
    (trade,) = found["trades"]
    assert trade[6] == pytest.approx(long if side > 0 else short)
    assert found["reasons"][int(trade[8])] == reason


def test_always_long_without_costs_is_the_price() -> None:
    bars = market(np.random.default_rng(1), 300)
    found = answer("backtest", {}, open=bars["open"], close=bars["close"], entries=np.ones(300))
    assert found["equity"][1:] == pytest.approx(100_000 * bars["close"][1:] / bars["open"][1], rel=1e-12)
    assert metric(found, "exposure") == 299 / 300


def test_a_bar_without_a_price_fills_nothing_and_keeps_the_position() -> None:
    gap = np.nan
    found = answer(
        "backtest",
        {},
        open=[9, gap, 10, gap, gap],
        close=[9, gap, 11, gap, gap],
        entries=[1, 0, 0, 0, 0],
        exits=[0, 0, 1, 0, 0],
    )
    assert found["position"].tolist() == [0, 0, 10_000, 10_000, 10_000]
    assert found["equity"].tolist() == [100_000, 100_000, 110_000, 110_000, 110_000]


def test_blocks_that_end_flat_take_up_what_is_wanted_in_the_next_one() -> None:
    rules, price = {"blocks": 3, "flat_at_edges": True}, np.full(12, 10.0)
    shown = {"fill next_open": [0, 1, 1, 0] + [1, 1, 1, 0] * 2, "same_close": [1, 1, 1, 0] * 3}
    for fill, wanted in shown.items():
        own = rules | {"fill": fill.removeprefix("fill ")}
        given = {"close": price} | ({"open": price} if fill != "same_close" else {})
        for signals in ({"target": np.ones(12)}, {"entries": np.ones(12)}):
            found = answer("backtest", own, **given, **signals)["position"]
            assert ((found != 0) * 1).tolist() == wanted
    at_an_edge = np.arange(12) == 3
    found = answer("backtest", rules, open=price, close=price, entries=at_an_edge)["position"]
    assert np.flatnonzero(found).tolist() == [4, 5, 6]
    once = np.where(np.arange(12) == 1, 1.0, np.nan)
    stopped = {"open": price, "high": price, "low": np.where(np.arange(12) == 2, 1.0, price), "close": price}
    found = answer("backtest", rules | {"stop_loss": 0.5}, **stopped, target=once)["position"]
    assert np.flatnonzero(found).tolist() == [4, 5, 6, 8, 9, 10]  # a stop ends it until the next block


@pytest.mark.parametrize("rules", [{"blocks": 2, "flat_at_edges": True}, {"last_bar": "sold"}])
def test_what_is_sold_is_sold_at_the_last_bar_that_has_a_price(rules: dict[str, Any]) -> None:
    price = np.array([10.0, 10, np.nan, 11, 12, np.nan])
    found = answer("backtest", rules, open=price, close=price, entries=[1.0, 0, 0, 0, 0, 0])
    assert found["trades"][:, [1, 2, 8]].tolist() == [[1, 1 if "blocks" in rules else 4, 3]]
    assert found["position"][-1] == 0
    nothing = np.full(6, np.nan)
    assert not answer("backtest", rules, open=nothing, close=nothing, entries=np.ones(6))["position"].any()


def test_costs_at_prices_below_0_are_costs() -> None:
    prices = np.array([10.0, 10, -5, -6, -7])
    costs = {"fee": 0.01, "slippage": 0.1, "borrow": 0.5}
    for side in ("entries", "short_entries"):
        ends = {"entries": "exits", "short_entries": "short_exits"}[side]
        signals = {side: [1.0, 0, 0, 0, 0], ends: [0, 0, 1.0, 0, 0]}
        rules = {"size": 100.0, "size_in": "units"}
        free = answer("backtest", rules, open=prices, close=prices, **signals)
        paid = answer("backtest", rules | costs, open=prices, close=prices, **signals)
        rent = 100 * (10 + 5) * 0.5 / 252 if side == "short_entries" else 0.0
        lost = 100 * (10 + 6) * 0.1 + 0.01 * 100 * ((11 + 6.6) if side == "entries" else (9 + 5.4)) + rent
        assert free["equity"][-1] - paid["equity"][-1] == pytest.approx(lost)
        assert metric(paid, "costs") == pytest.approx(lost / 100_000)
        assert metric(paid, "turnover") > 0


@pytest.mark.parametrize(("size", "units"), [(1e12, 1e16), (1e308, 0.0), (np.inf, 0.0)])
def test_an_order_beyond_all_measure_is_dropped(size: float, units: float) -> None:
    found = answer("backtest", {"size": "a", "fill": "same_close"}, close=[10.0, 10], entries=[1, 0], a=[size, size])
    assert found["position"][0] == units
    assert np.isfinite(found["equity"]).all()


def test_returns_that_are_all_alike_have_no_sharpe_ratio() -> None:
    """Bars of one rate, as raw sums: what is left of n q - s s is rounding."""
    raw = np.zeros((RAW, 3))
    raw[FINAL] = raw[WORST] = 1.0
    for number, rate in enumerate((1e-4, 0.003, 0.07)):
        for _ in range(2520):
            raw[SUM1 : SUM1 + 4, number] += rate ** np.arange(1, 5)
    found = metrics_of(raw, 2520, 1.0, 252.0, 0.0)
    names = ("sharpe", "skewness", "kurtosis", "probabilistic_sharpe")
    assert np.isnan(found[[METRICS.index(name) for name in names]]).all()
    assert not found[METRICS.index("volatility")].any()


def test_an_account_whose_equity_passes_0_is_ruined_and_does_nothing_more() -> None:
    close = [100.0, 100.0, 250.0, 50.0, 40.0]
    found = answer("backtest", {"fill": "same_close"}, close=close, short_entries=[1, 0, 0, 1, 1])
    assert found["equity"].tolist() == [100_000, 100_000, -50_000, -50_000, -50_000]
    assert found["position"].tolist() == [-1000, -1000, 0, 0, 0]
    assert (metric(found, "ruined"), metric(found, "cagr")) == (1, -1)
    exactly = answer("backtest", {"fill": "same_close"}, close=[100.0, 200.0, 300.0], short_entries=[1, 0, 0])
    assert metric(exactly, "ruined") == 1
    assert np.isfinite(metric(exactly, "sharpe"))


def test_published_metrics_of_a_curve_and_of_returns() -> None:
    """Greatest fall of 100, 120, 90, 130, 65, 140, and the Sharpe ratio of five returns (ddof 1, 252 bars a year)."""
    curve = [100.0, 120, 90, 130, 65, 140]
    assert metric(answer("backtest", {"fill": "same_close"}, close=curve, entries=np.ones(6)), "max_drawdown") == 0.5
    returns = np.array([0.01, -0.005, 0.002, 0.007, -0.001])
    close = 100 * np.cumprod(1 + np.concatenate([[0.0], returns]))
    found = answer("backtest", {"fill": "same_close"}, close=close, entries=np.ones(6))
    all_bars = np.concatenate([[0.0], returns])
    assert metric(found, "sharpe") == pytest.approx(all_bars.mean() / all_bars.std(ddof=1) * 252**0.5, rel=1e-9)
    sure = answer("backtest", {"fill": "same_close", "benchmark_sharpe": -1e3}, close=close, entries=np.ones(6))
    assert metric(sure, "probabilistic_sharpe") == 1
    even = {"fill": "same_close", "benchmark_sharpe": float(metric(found, "sharpe"))}
    even_chance = answer("backtest", even, close=close, entries=np.ones(6))
    assert metric(even_chance, "probabilistic_sharpe") == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize("weights", [(), (0.5, 0.0, 2.0)])
def test_the_returns_of_a_portfolio_are_those_of_accounts_with_parts_of_the_capital(weights: tuple[float, ...]) -> None:
    bars = market(np.random.default_rng(6), 3, 60)
    found = answer("backtest", {"values": {}, "fill": "same_close", "weights": weights}, close=bars["close"],
                   target=np.random.default_rng(7).choice([-1.0, 0, 1], 60))  # fmt: skip
    parts = np.array(weights or (1.0, 1, 1)) @ found["equity"]
    before = np.concatenate([[100_000 * sum(weights or (1, 1, 1))], parts[:-1]])
    np.testing.assert_allclose(found["portfolio_returns"], parts / before - 1, rtol=1e-12, atol=1e-15)


def test_a_portfolio_that_lost_all_has_no_returns() -> None:
    found = answer("backtest", {"fill": "same_close"}, close=[100.0, 250.0, 50.0, 40.0], short_entries=[1.0, 0, 0, 0])
    assert found["portfolio_returns"].tolist() == [0.0, -1.5, 0.0, 0.0]


# ---------------------------------------------------------------- by a reference


def test_orders_equity_trades_and_metrics_are_those_of_a_broker_in_plain_python() -> None:
    closed = 0
    for seed in range(150):
        random = np.random.default_rng([7, seed])
        rules, inputs = drawn(random, int(random.integers(1, 120)))
        found = answer("backtest", rules, **inputs)
        whole = BACKTEST.params.model_validate(rules, strict=False).model_dump()
        series = {name: inputs[letter] for name, letter in DISTANCES.items() if rules[name] == letter}
        prices = np.array([inputs.get(name, inputs["close"]) for name in ("open", "high", "low", "close")])
        signals = {name: inputs[name] for name in (*SIDES, "target") if name in inputs}
        wanted = run(whole | dict.fromkeys(series, "series"), prices, signals, series)
        np.testing.assert_allclose(found["equity"], wanted["equity"], rtol=1e-9)
        np.testing.assert_allclose(found["position"], wanted["position"], rtol=1e-9)
        trades = [(*trade[1:7], found["reasons"][int(trade[8])]) for trade in found["trades"] if trade[2] >= 0]
        assert trades == [(*map(_about, trade[:6]), trade[6]) for trade in wanted["trades"]]
        closed += len(trades)
        # Sums of powers lose some digits where returns hardly vary.
        metrics = [wanted["metrics"][name] for name in METRICS]
        np.testing.assert_allclose(found["metrics"], metrics, rtol=1e-6, atol=1e-7, err_msg=str(seed))
    assert closed > 500


def _about(number: float) -> Any:
    return pytest.approx(number, rel=1e-9)


# ---------------------------------------------------------------- sweeps

SWEEP: dict[str, Any] = {
    "strategy": CROSS, "grid": {"fast": (2, 3, 5, 8), "slow": (4, 8, 13), "level": (55.0, 60.0, 80.0)},
    "where": "fast < slow", "fee": 0.001, "stop_loss": 0.04,
    "take_profit": {"op": "mul", "a": {"param": "slow"}, "b": {"op": "atr", "period": 5}},
    "blocks": 4, "prefix_checks": 2,
}  # fmt: skip


@pytest.mark.parametrize("fill", ["next_open", "next_close", "same_close"])
def test_each_set_of_a_sweep_has_the_bytes_of_its_own_backtest(fill: str) -> None:
    bars = market(np.random.default_rng(4), 2, 150, gaps=0.02)
    swept = answer("backtest_sweep", SWEEP | {"fill": fill}, **bars)
    assert swept["parameter_names"] == ["fast", "level", "slow"]
    assert not swept["prefix_differences"].any()
    for at, (fast, level, slow) in enumerate(swept["sets"].T):
        single = {name: value for name, value in SWEEP.items() if name not in ("grid", "where")}
        single |= {"values": {"fast": int(fast), "level": level, "slow": int(slow)}, "fill": fill}
        found = answer("backtest", single, **bars)
        assert found["metrics"].tobytes() == np.ascontiguousarray(swept["metrics"][:, at]).tobytes()
        returns = found["equity"] / np.concatenate([np.full((2, 1), 1e5), found["equity"][:, :-1]], axis=1) - 1
        edges = [block * 150 // 4 for block in range(5)]
        for power in range(4):
            sums = [(returns[:, a:b] ** (power + 1)).sum(axis=1) for a, b in pairwise(edges)]
            np.testing.assert_allclose(swept["block_sums"][power, at].T, sums, rtol=1e-9, atol=1e-15)


class _Client:
    """A client whose jobs run here."""

    def __getattr__(self, operation: str) -> Any:
        names = {each.name for each in OPERATIONS[operation].inputs}

        def job(**given: Any) -> SimpleNamespace:
            arrays = {name: value for name, value in given.items() if name in names}
            params = {name: value for name, value in given.items() if name not in names}
            return SimpleNamespace(**answer(operation, params, **arrays))

        return job


def test_the_example_of_the_readme_gives_one_set_the_bytes_that_the_sweep_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "kernels/backtest/README.md").read_text(), re.M | re.S)
    monkeypatch.setattr(warpdesk, "Client", _Client)
    bars = market(np.random.default_rng(8), 400)
    names: dict[str, Any] = bars | {"opened": bars["open"]}
    exec(example, names)  # noqa: S102
    swept, best = names["swept"], names["luck"].best
    assert names["curve"].metrics.tobytes() == np.ascontiguousarray(swept.metrics[:, best]).tobytes()
    assert swept.block_sums.shape == (4, 9000, 16)


def test_no_number_of_sets_changes_a_byte_of_one() -> None:
    bars = market(np.random.default_rng(5), 60)
    rules = {"stop_loss": {"param": "stop"}, "fill": "next_close"}
    signal = (np.random.default_rng(6).random(60) < 0.2) * 1.0
    stops = [(k + 1) / 400 for k in range(257)]
    whole = answer("backtest_sweep", {**rules, "sets": {"stop": stops}}, **bars, entries=signal)
    for count in (1, 7, 8, 9, 31, 32, 33, 255, 256):
        part = answer("backtest_sweep", {**rules, "sets": {"stop": stops[:count]}}, **bars, entries=signal)
        assert part["metrics"].tobytes() == np.ascontiguousarray(whole["metrics"][:, :count]).tobytes()


LEVELS: dict[str, Any] = {
    "strategy": {"entries": {"op": "gt", "a": {"op": "rsi", "of": "close", "period": 4}, "b": {"param": "level"}}},
    "grid": {"level": tuple(range(20, 80))},
}  # fmt: skip
PERIODS: dict[str, Any] = {
    "strategy": {"entries": {"op": "gt", "a": {"op": "rsi", "of": "close", "period": {"param": "level"}}, "b": 50}},
    "grid": LEVELS["grid"],
}


def test_a_parameter_alone_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = 0

    def counted(outputs: dict[str, Any], size: int) -> Any:
        nonlocal planned
        planned += len(outputs)
        return plan(outputs, size)

    monkeypatch.setattr(operands, "plan", counted)
    bars = market(np.random.default_rng(2), 2, 50)
    swept = answer("backtest_sweep", LEVELS, open=bars["open"], close=bars["close"])
    assert planned == 1
    values = {name: each for name, each in LEVELS.items() if name != "grid"} | {"values": {"level": 57}}
    found = answer("backtest", values, open=bars["open"], close=bars["close"])
    assert found["metrics"].tobytes() == np.ascontiguousarray(swept["metrics"][:, 37]).tobytes()


def test_a_cost_counts_operands_and_the_checks_that_repeat_them() -> None:
    infos = {name: ArrayInfo("float64", (50,)) for name in ("open", "close")}

    def seconds(request: dict[str, Any]) -> float:
        return OPERATIONS["backtest_sweep"].cost(BACKTEST_SWEEP.validate(request, infos), infos).core_seconds

    assert seconds(PERIODS) == pytest.approx((60 - 16) * 3e-4, rel=0.1)  # the first 16 are every job's
    assert seconds(LEVELS) < seconds(PERIODS) / 10
    assert seconds(PERIODS | {"prefix_checks": 3}) == pytest.approx(4 * seconds(PERIODS), rel=0.02)


def test_a_grid_is_in_the_order_of_its_names_and_leaves_out_what_where_excludes() -> None:
    grid = {"b": (1, 2), "a": (1, 2.5), "c": (3, 0)}
    assert [list(column) for column in sets_of(grid, {}, "", 100).columns] == [
        [1, 1, 1, 1, 2.5, 2.5, 2.5, 2.5], [1, 1, 2, 2, 1, 1, 2, 2], [3, 0, 3, 0, 3, 0, 3, 0],
    ]  # fmt: skip
    assert sets_of(grid, {}, "a<b and c >= 3", 100).columns == ((1,), (2,), (3,))
    assert sets_of({}, {"a": (3, 1), "b": (2, 2)}, "b != 3 and 2.5 > a", 100).columns == ((1,), (2,))


# ---------------------------------------------------------------- no look-ahead

GRAPHS: tuple[dict[str, Any], ...] = (
    CROSS,
    {"target": {"op": "sub", "a": {"op": "rsi", "of": "close", "period": {"param": "fast"}}, "b": 50}},
    {"let": {"top": {"op": "highest", "of": "high", "period": {"param": "slow"}}},
     "entries": {"op": "gt", "a": "close", "b": {"op": "lag", "of": "top"}},
     "exits": {"op": "lt", "a": "close", "b": {"op": "supertrend.supertrend", "period": {"param": "fast"}}}},
    {"let": {"upper": {"op": "bollinger.upper", "of": "close", "period": {"param": "slow"}}},
     "target": {"op": "latch", "value": {"op": "macd.histogram", "of": "close"},
                "when": {"op": "crosses_above", "a": "close", "b": "upper"}}},
)  # fmt: skip


@pytest.mark.parametrize("graph", range(len(GRAPHS)))
def test_bars_from_any_cut_on_leave_the_positions_before_it_as_they_are(graph: int) -> None:
    names = [name for name in ("fast", "level", "slow") if f'"{name}"' in repr(GRAPHS[graph]).replace("'", '"')]
    traded = 0
    for seed in range(12):
        random = np.random.default_rng([seed, graph])
        bars = market(random, 160, gaps=0.02)
        fill = ("next_open", "next_close", "same_close")[seed % 3]
        params = {
            "strategy": GRAPHS[graph], "values": {name: {"fast": 4, "level": 60, "slow": 11}[name] for name in names},
            "fill": fill, "stop_loss": 0.05, "trailing_stop": {"op": "atr", "period": 6}, "fee": 0.001,
        }  # fmt: skip
        whole = answer("backtest", params, **bars)
        cut = int(random.integers(1, 160))
        other = market(random, 160, gaps=0.1, wild=0.2)
        changed = {name: np.concatenate([bars[name][:cut], other[name][cut:]]) for name in bars}
        found = answer("backtest", params, **changed)
        for output in ("position", "equity"):
            assert found[output][:cut].tobytes() == whole[output][:cut].tobytes()
        traded += int(metric(whole, "trades"))
    assert traded > 5


def test_a_prefix_check_finds_a_signal_that_differs_before_the_cut() -> None:
    bars = market(np.random.default_rng(3), 2, 60)
    params = BACKTEST_SWEEP.params.model_validate(
        {"strategy": CROSS, "grid": {"fast": (2, 3), "slow": (5, 9), "level": (60.0,)}}, strict=False
    )
    job = Job(params, bars)
    earlier = job.replaced(29)
    assert differences(job, earlier, 29) == 0
    assert differences(job, earlier, 60) == 8


# ---------------------------------------------------------------- wrong input

GOOD: dict[str, Any] = {"strategy": CROSS, "grid": {"fast": (2, 3), "slow": (5, 9), "level": (60.0,)}}
_AHEAD = {"op": "lag", "of": "close", "bars": -1}
_MANY = {"fast": tuple(range(2, 1002)), "slow": tuple(range(2, 1002)), "level": (1, 2)}
_HUGE = {"fast": tuple(range(2, 70_002)), "slow": tuple(range(2, 70_002)), "level": (1,)}
_PERIOD = "/params/strategy/let/quick/period"


def _with(**changes: Any) -> dict[str, Any]:
    return {**GOOD, **changes}


@pytest.mark.parametrize(
    ("params", "pointer", "sentence"),
    [
        ({}, "/params/strategy", "give a strategy, or signals as inputs"),
        (_with(strategy={}), "/params/strategy", "has no entries"),
        (_with(strategy={**CROSS, "target": "close"}), "/params/strategy/target", "target stands for all signals"),
        ({"strategy": CROSS}, "/params/grid", "give a grid or sets, got neither"),
        (_with(sets={"fast": (1,)}), "/params/grid", "not both"),
        (_with(where="fast <"), "/params/where", "is no condition such as"),
        (_with(where="quick < slow"), "/params/where", "no parameter 'quick'; there are fast, level, slow"),
        (_with(where="fast > slow"), "/params/where", "no set meets 'fast > slow'"),
        (_with(grid={"fast": (2,)}), "/params/strategy", "no value for the parameter"),
        (_with(grid={**GOOD["grid"], "more": (1,)}), "/params/grid/more", "nothing reads the parameter 'more'"),
        (_with(grid={**GOOD["grid"], "fast": (0, 2)}), _PERIOD, "should be at least 1, got 0"),
        (_with(grid={**GOOD["grid"], "fast": (2, 3.5)}), _PERIOD, "should be an integer, got 3.5"),
        (_with(strategy={**CROSS, "exits": {"op": "nothing"}}), "/params/strategy/exits/op", "no operation 'nothing'"),
        (_with(strategy={**CROSS, "exits": "volume"}), "/inputs/volume", "the strategy reads volume at"),
        (_with(strategy={**CROSS, "exits": _AHEAD}), "/params/strategy/exits/bars", "should be at least 0, got -1"),
        (_with(stop_loss=1.5), "/params/stop_loss", "above 0 and at most 1, got 1.5"),
        (_with(stop_loss={"param": "none"}), "/params/stop_loss", "names no parameter"),
        (_with(stop_loss=[1]), "/params/stop_loss", "is a number, a parameter or an expression"),
        (_with(size=0.0), "/params/size", "above 0 and at most 10, got 0"),
        (_with(blocks=64), "/params/blocks", "64 blocks need as many bars, got 40"),
        ({"sets": {"a": (1, 2), "b": (1,)}, "size": {"param": "a"}, "strategy": CROSS}, "/params/sets", "a 2, b 1"),
        (_with(grid=_MANY), "/params/grid", "the grid has 2,000,000 sets, and a job has at most 1,000,000"),
        (_with(grid=_MANY, where="slow < 900"), "/params/grid", "the grid has more than 1,000,000 sets"),
        (_with(grid=_HUGE), "/params/grid", "the grid has 4,900,000,000 sets"),
        (_with(grid=_HUGE, where="fast == slow"), "/params/grid", "fast, level, slow have 4,900,000,000 combinations"),
        (_with(size=10**400), "/params/size", "at most 10, got a number beyond what float64 can hold"),
        (_with(stop_loss=10**320), "/params/stop_loss", "at most 1, got a number beyond what float64 can hold"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_refused_with_a_sentence(params: dict[str, Any], pointer: str, sentence: str) -> None:
    infos = {name: ArrayInfo("float64", (40,)) for name in ("open", "high", "low", "close")}
    if "stop_loss" not in params:
        del infos["high"], infos["low"]
    with pytest.raises(InvalidRequest) as error:
        BACKTEST_SWEEP.validate(params, infos)
    assert error.value.problems[0].pointer == pointer
    assert sentence in error.value.problems[0].detail


@pytest.mark.parametrize(
    ("inputs", "params", "sentence"),
    [
        ({"close": (40,)}, {}, "fill next_open needs open"),
        ({"close": (40,), "open": (40,)}, {"stop_loss": 0.1}, "a stop or a target needs high"),
        ({"close": (40,), "open": (40,), "volume": (40,)}, {}, "nothing reads volume"),
        ({"close": (40,), "open": (41,)}, {}, "the shape [41]"),
        ({"open": (40,)}, {}, "needs the input 'close'"),
    ],
)
def test_wrong_inputs_are_refused_with_a_sentence(
    inputs: dict[str, tuple[int, ...]], params: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest) as error:
        BACKTEST_SWEEP.validate(_with(**params), {name: ArrayInfo("float64", shape) for name, shape in inputs.items()})
    assert sentence in str(error.value)


@pytest.mark.parametrize("weights", [(1.0,), (0.0, 0.0)])
def test_weights_of_no_portfolio_are_refused(weights: tuple[float, ...]) -> None:
    infos = {name: ArrayInfo("float64", (2, 9)) for name in ("close", "target")}
    with pytest.raises(InvalidRequest, match=r"for 2 assets: give one for each, not all 0"):
        BACKTEST.validate({"fill": "same_close", "weights": list(weights)}, infos)


def test_values_between_the_checked_ones_are_refused_before_any_work() -> None:
    bars = {name: np.ones(40) for name in ("open", "close")}
    with pytest.raises(InvalidRequest, match=r"should be an integer, got 3.5 \(with fast 3.5\)"):
        answer("backtest_sweep", _with(grid={**GOOD["grid"], "fast": (2, 3.5, 5)}), **bars)


def test_the_answer_tells_its_rules_and_whether_it_is_optimistic() -> None:
    rules = answer("backtest", {"fill": "same_close"}, close=CLOSE, target=TARGET)["rules"]
    assert (rules["fill"], rules["optimistic"], rules["signals"]) == ("same_close", True, "given")
    assert rules["look_ahead"] == "not known: reads target"
    tomorrow = np.sign(np.diff(CLOSE, append=CLOSE[-1]))
    given = {"open": CLOSE, "high": CLOSE, "low": CLOSE, "close": CLOSE, "a": tomorrow, "b": np.ones(5)}
    rules = answer("backtest", {"strategy": {"target": "a"}, "stop_loss": "b", "prefix_checks": 1}, **given)["rules"]
    assert (rules["signals"], rules["look_ahead"]) == ("graph", "not known: reads a, b")
    bars = market(np.random.default_rng(1), 40)
    rules = answer("backtest_sweep", GOOD | {"prefix_checks": 3}, open=bars["open"], close=bars["close"])["rules"]
    assert (rules["optimistic"], rules["look_ahead"], rules["prefix_cuts"]) == (
        False,
        "none: no expression reads a later bar",
        [10, 20, 30],
    )
