"""Strategies as the builder of expressions writes them."""

from warpdesk import ta


def test_a_strategy_is_written_with_parameters_in_place_of_numbers() -> None:
    fast, slow = ta.sma(ta.close, ta.param("fast")), ta.sma(ta.close, ta.param("slow"))
    written = ta.strategy(entries=ta.crosses_above(fast, slow), exits=ta.crosses_below(fast, slow))
    averages = [{"op": "sma", "of": "close", "period": {"param": name}} for name in ("fast", "slow")]
    assert written == {
        "let": dict(zip(("series_1", "series_2"), averages, strict=True)),
        "entries": {"op": "crosses_above", "a": "series_1", "b": "series_2"},
        "exits": {"op": "crosses_below", "a": "series_1", "b": "series_2"},
    }
    level = ta.param("level")
    assert ta.strategy(target=(ta.rsi(ta.close, 14) < level) - (ta.close > level + 1)) == {
        "target": {
            "op": "sub",
            "a": {"op": "lt", "a": {"op": "rsi", "of": "close", "period": 14}, "b": {"param": "level"}},
            "b": {"op": "gt", "a": "close", "b": {"op": "add", "a": {"param": "level"}, "b": 1}},
        }
    }
