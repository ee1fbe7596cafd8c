"""Declared indicators and `expression` beside TA-Lib's functions of the same numbers.

A peer takes one series at a time and runs on one thread; Warpdesk takes all of them and runs on all cores. Both make
new arrays, hold the answers to all the series at once, and drop them on the clock, each its own.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.benchmarks.cases import Call, Case, Goal, Inputs, Peer, Sizes, measured, module
from warpdesk_server.benchmarks.indicators import walk
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.indicators.declared import DECLARED
from warpdesk_server.kernels.operation import Operation, SameAs

PERIOD = 20  # of an indicator that has no default

# How many times as quick as TA-Lib it should be: for 500 rows of 2,520 bars, and for a row of a million.
GOALS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("stochastic", "williams_r", "donchian"), (4.0, 4.0)),
    **dict.fromkeys(("cci", "adx", "rolling", "rolling_pair"), (2.0, 2.0)),
    **dict.fromkeys(("atr", "cmo"), (1.5, 1.0)),
    "macd": (1.2, 1.0),
}
PARAMS: dict[str, dict[str, Any]] = {
    "rolling": {"period": PERIOD, "statistic": "std"},
    "rolling_quantile": {"period": PERIOD, "between": "nearest_rank"},
    "candlestick": {"pattern": "engulfing"},
    "rolling_pair": {"period": PERIOD, "statistic": "correlation"},
}
# Functions of pandas-ta-classic by the indicator that has their numbers, in its own code and not by way of TA-Lib.
PANDAS_TA: dict[str, Callable[[Any, Any], Any]] = {
    "macd": lambda ta, row: ta.macd(row["close"], talib=False),
    "atr": lambda ta, row: ta.atr(row["high"], row["low"], row["close"], 14, talib=False),
    "stochastic": lambda ta, row: ta.stoch(row["high"], row["low"], row["close"], 14, 3, 3, talib=False),
}
FOUR: dict[str, Any] = {
    "outputs": {
        "rsi": {"op": "rsi", "period": 14},
        **{name: {"op": f"macd.{name}"} for name in ("macd", "signal", "histogram")},
        **{name: {"op": f"bollinger.{name}"} for name in ("upper", "middle", "lower")},
        "atr": {"op": "atr", "period": 14},
    }
}


@lru_cache(1)  # the operations of one shape follow each other
def bars(*shape: int) -> dict[str, NDArray[np.float64]]:
    """Open, high, low, close and volume around a walk."""
    close, random = walk(*shape), np.random.default_rng(1)
    reach = np.abs(random.normal(0, 1e-3, (2, *shape)))
    high, low = close * (1 + reach[0]), close * (1 - reach[1])
    return {
        "open": (high + low) / 2,
        "high": high,
        "low": low,
        "close": close,
        "benchmark": low,
        "volume": 1e6 + random.random(shape),
        "session": np.zeros(shape) + np.arange(shape[-1]) // 78,
    }


def _params(operation: Operation) -> dict[str, Any]:
    required = [name for name, field in operation.params.model_fields.items() if field.is_required()]
    return PARAMS.get(operation.name, dict.fromkeys(required, PERIOD))


def _twins(operation: Operation, params: dict[str, Any]) -> list[SameAs]:
    """Those of the operation's twins whose fixed parameters are those of the case, and that each give an output which
    those before it do not."""
    given, found, shown = operation.params.model_validate(params, strict=False), list[SameAs](), set[str]()
    for twin in operation.same_as:
        if all(getattr(given, k) == v for k, v in twin.fixed.items()) and not set(twin.outputs) <= shown:
            found.append(twin)
            shown |= set(twin.outputs)
    return found


def _each(functions: Any, inputs: Inputs) -> Call:
    rows = [dict(zip(inputs, row, strict=True)) for row in zip(*map(np.atleast_2d, inputs.values()), strict=True)]

    def run() -> None:
        answers = [function(row) for row in rows for function in functions]
        del answers

    return run


def _talib(operation: Operation, params: dict[str, Any]) -> tuple[Peer, ...]:
    """TA-Lib's functions for all outputs that it has; and the first alone, if they are several."""
    twins = _twins(operation, params)
    if not twins:
        return ()

    def call(twins: list[SameAs]) -> Callable[[Inputs], Call]:
        return lambda inputs: _each([_function(operation, params, twin) for twin in twins], inputs)

    if len(twins) == 1:
        return (Peer("TA-Lib", "TA-Lib", call(twins)),)
    names = ", ".join(twin.function for twin in twins)
    alone = f"TA-Lib's {twins[0].function} alone"
    return Peer("TA-Lib", "TA-Lib", call(twins), note=names), Peer(alone, "TA-Lib", call(twins[:1]))


def _function(operation: Operation, params: dict[str, Any], twin: SameAs) -> Callable[[Any], Any]:
    """A function of TA-Lib of one row."""
    talib, abstract = module("talib"), module("talib.abstract")
    given, options = operation.params.model_validate(params, strict=False), dict(twin.theirs)
    for ours, theirs in twin.parameters.items():
        options |= dict.fromkeys((theirs,) if isinstance(theirs, str) else theirs, getattr(given, ours))
    names = abstract.Function(twin.function).input_names.values()
    order = [name for each in names for name in ([each] if isinstance(each, str) else each)]
    own = {theirs: ours for ours, theirs in twin.inputs.items()}
    function = getattr(talib, twin.function)
    return lambda row: function(*(row[own[name]] for name in order), **options)


def _pandas_ta(name: str) -> Peer:
    def call(inputs: Inputs) -> Call:
        ta, series = module("pandas_ta_classic"), module("pandas").Series
        rows = [dict(zip(inputs, map(series, row), strict=True)) for row in zip(*inputs.values(), strict=True)]

        def run() -> None:
            answers = [PANDAS_TA[name](ta, row) for row in rows]
            del answers

        return run

    return Peer("pandas-ta-classic", "pandas-ta-classic", call)


def _four(inputs: Inputs) -> Call:
    talib = module("talib")
    functions = (
        lambda row: talib.RSI(row["close"], 14),
        lambda row: talib.MACD(row["close"]),
        lambda row: talib.BBANDS(row["close"], 20, 2.0, 2.0),
        lambda row: talib.ATR(row["high"], row["low"], row["close"], 14),
    )
    return _each(functions, inputs)


def _four_jobs(inputs: Inputs) -> Call:
    """The four operations one after another, as four jobs compute them."""
    close = inputs["close"]
    calls = []
    for name, params, given in (
        ("rsi", {"period": 14}, {"prices": close}),
        ("macd", {}, {"close": close}),
        ("bollinger", {}, {"prices": close}),
        ("atr", {}, inputs),
    ):
        operation = OPERATIONS[name]
        calls.append((operation.implementation("cpu"), operation.params.model_validate(params, strict=False), given))

    def run() -> None:
        answers = [compute(params, **given) for compute, params, given in calls]
        del answers

    return run


def _cases(sizes: Sizes, shape: tuple[int, ...], goal: int | None) -> list[Case]:
    label, points = " x ".join(measured(size) for size in shape), int(np.prod(shape))
    cases = []
    for operation in (each for each in DECLARED if each.counted_as):
        params, names = _params(operation), [each.name for each in operation.inputs]
        aim = {} if goal is None or operation.name not in GOALS else {"TA-Lib": GOALS[operation.name][goal]}
        peers = _talib(operation, params)
        if goal == 0 and operation.name in PANDAS_TA:
            peers, aim = (*peers, _pandas_ta(operation.name)), {**aim, "pandas-ta-classic": 50.0}
        cases.append(
            Case(
                operation.name,
                label,
                params,
                lambda names=names: {name: bars(*shape)[name] for name in names},  # type: ignore[misc]
                sizes,
                peers,
                Goal(aim),
                moved=points * 8 * (len(names) + len(operation.outputs)),
                repeats=15,
                burst=5,
            )
        )
    own = Peer("four calls of Warpdesk", "warpdesk-server", _four_jobs, threads="all")
    cases.append(
        Case(
            "expression",
            f"RSI, MACD, bands and ATR, {label}",
            FOUR,
            lambda: {name: bars(*shape)[name] for name in ("high", "low", "close")},
            sizes,
            (Peer("TA-Lib", "TA-Lib", _four, note="four calls"), own),
            Goal({"TA-Lib": 1.5} if goal == 0 else {}),
            moved=points * 8 * 11,
            repeats=15,
            burst=5,
        )
    )
    return cases


CASES: tuple[Case, ...] = (
    *_cases("small", (60, 100), None),
    *_cases("full", (500, 2520), 0),
    *_cases("full", (1_000_000,), 1),
)
