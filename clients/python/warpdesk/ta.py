"""A builder of the JSON of the operation `expression`, with Python's operators.

    from warpdesk import Client, ta

    line = ta.ema(ta.close, 12) - ta.ema(ta.close, 26)
    wanted = ta.expression(line=line, signal=ta.ema(line, 9), k=ta.stochastic.k(period=14))
    result = client.run("expression", params=wanted, close=closes, high=highs, low=lows)
    result["signal"]

Every operation of expressions is a function here: `ta.rsi(ta.close, 14)`. Series come first and are `of`, or `a` and
`b`; a number after them is the period. Indicators of three inputs or more take them by name,
`ta.atr(high=x, period=14)`, and from the request if they are not given. An output of one with several is named:
`ta.macd.signal()`.

A strategy of a backtest is written likewise, with `ta.param` for the numbers that are swept:

    fast, slow = ta.sma(ta.close, ta.param("fast")), ta.sma(ta.close, ta.param("slow"))
    strategy = ta.strategy(entries=ta.crosses_above(fast, slow), exits=ta.crosses_below(fast, slow))
    client.backtest_sweep(closes, strategy=strategy, grid={"fast": [5, 10], "slow": [50, 200]})
"""

from collections.abc import Mapping
from typing import Any

_PAIRS = {
    "add",
    "sub",
    "mul",
    "div",
    "max",
    "min",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "and",
    "or",
    "crosses_above",
    "crosses_below",
}
_INPUTS = ("open", "high", "low", "close", "volume", "benchmark", "session", "a", "b", "c", "d", "e", "f", "g", "h")


class Series:
    """A series of an expression: an input, or an operation with its fields. Nothing is computed here."""

    def __init__(self, written: "str | Mapping[str, Any]") -> None:
        self._written = written

    def __repr__(self) -> str:
        return f"Series({self._written!r})"

    __array_ufunc__ = None  # an array is no operand: NumPy then asks __radd__ and so on, which refuse it

    def __add__(self, other: "Series | float") -> "Series":
        return _operation("add", a=self, b=other)

    def __radd__(self, other: float) -> "Series":
        return _operation("add", a=other, b=self)

    def __sub__(self, other: "Series | float") -> "Series":
        return _operation("sub", a=self, b=other)

    def __rsub__(self, other: float) -> "Series":
        return _operation("sub", a=other, b=self)

    def __mul__(self, other: "Series | float") -> "Series":
        return _operation("mul", a=self, b=other)

    def __rmul__(self, other: float) -> "Series":
        return _operation("mul", a=other, b=self)

    def __truediv__(self, other: "Series | float") -> "Series":
        return _operation("div", a=self, b=other)

    def __rtruediv__(self, other: float) -> "Series":
        return _operation("div", a=other, b=self)

    def __neg__(self) -> "Series":
        return _operation("neg", of=self)

    def __abs__(self) -> "Series":
        return _operation("abs", of=self)

    def __lt__(self, other: "Series | float") -> "Series":
        return _operation("lt", a=self, b=other)

    def __le__(self, other: "Series | float") -> "Series":
        return _operation("le", a=self, b=other)

    def __gt__(self, other: "Series | float") -> "Series":
        return _operation("gt", a=self, b=other)

    def __ge__(self, other: "Series | float") -> "Series":
        return _operation("ge", a=self, b=other)

    def __eq__(self, other: "Series | float") -> "Series":  # type: ignore[override]
        return _operation("eq", a=self, b=other)

    def __ne__(self, other: "Series | float") -> "Series":  # type: ignore[override]
        return ~(self == other)

    __hash__ = object.__hash__

    def __and__(self, other: "Series") -> "Series":
        return _operation("and", a=self, b=other)

    def __or__(self, other: "Series") -> "Series":
        return _operation("or", a=self, b=other)

    def __invert__(self) -> "Series":
        return _operation("not", of=self)

    def __bool__(self) -> bool:
        raise TypeError("a series has no truth value; join conditions with & and |, and choose with ta.select")


class Operation:
    """An operation of expressions by its name, to be called with series and parameters."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"ta.{self._name}"

    def __getattr__(self, output: str) -> "Operation":
        if output.startswith("_"):
            raise AttributeError(output)
        return Operation(f"{self._name}.{output}")

    def __call__(self, *args: "Series | float", **fields: Any) -> Series:
        if self._name in _PAIRS and len(args) == 2:
            return _operation(self._name, a=args[0], b=args[1])
        if named := next((arg for arg in args if isinstance(arg, Operation)), None):
            raise TypeError(f"{named!r} is no series; inputs are {', '.join(_INPUTS)}, an operation is to be called")
        args = tuple(_plain(arg) for arg in args)  # refuses an array
        series = [arg for arg in args if _is_series(arg)]
        numbers = args[len(series) :]
        if any(_is_series(number) for number in numbers):
            raise TypeError(f"{self._name} takes series first, and then a period; name what else it has")
        if len(series) > 2:
            raise TypeError(
                f"{self._name} takes at most two series by position, got {len(series)}; name them, such as high=..., "
                "low=..., close=..."
            )
        if len(numbers) > 1:
            raise TypeError(f"{self._name} takes one number by position, the period, got {len(numbers)}; name them all")
        names = ("of",) if len(series) == 1 else ("a", "b")
        given = dict(zip(names, series, strict=False)) | dict(zip(("period",), numbers, strict=False))
        if twice := sorted(given.keys() & fields.keys()):
            raise TypeError(f"{self._name} got {', '.join(twice)} twice")
        return _operation(self._name, **given, **fields)


def select(condition: Series, yes: "Series | float", no: "Series | float") -> Series:
    """`yes` where the condition is not 0, else `no`."""
    return _operation("select", **{"if": condition, "then": yes, "else": no})


def lag(of: Series, bars: int = 1) -> Series:
    """The series `bars` bars ago."""
    return _operation("lag", of=of, bars=bars)


def change(of: Series, bars: int = 1) -> Series:
    """The series less itself `bars` bars ago."""
    return _operation("change", of=of, bars=bars)


def latch(value: Series, when: Series) -> Series:
    """The value at the last bar at which `when` was not 0."""
    return _operation("latch", value=value, when=when)


def param(name: str) -> Series:
    """A number that each parameter set of a backtest gives: `ta.sma(ta.close, ta.param("fast"))`."""
    return Series({"param": name})


def expression(nan_policy: str | None = None, **wanted: "Series | float") -> dict[str, Any]:
    """The params of the operation `expression` for some outputs; what is used twice is written once, in `let`."""
    let, outputs = _written(wanted)
    policy = {} if nan_policy is None else {"nan_policy": nan_policy}
    return {**let, "outputs": outputs, **policy}


def strategy(**signals: "Series | float") -> dict[str, Any]:
    """The `strategy` of `backtest` and `backtest_sweep`: entries, exits, short_entries and short_exits, or target."""
    let, outputs = _written(signals)
    return {**let, **outputs}


def _written(wanted: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Series as JSON by name, beside the `let` of those that are used twice, if there are any."""
    wanted = {name: _plain(each) for name, each in wanted.items()}
    uses: dict[int, int] = {}
    for each in wanted.values():
        if isinstance(each, Series):
            _count(each, uses)
    let: dict[str, Any] = {}
    names: dict[int, str] = {}

    def written(value: Any) -> Any:
        if not isinstance(value, Series):
            return value
        if isinstance(value._written, str) or _is_parameter(value):
            return value._written
        if id(value) in names:
            return names[id(value)]
        fields = {name: written(each) for name, each in value._written.items()}
        if uses[id(value)] < 2:
            return fields
        names[id(value)] = f"series_{len(let) + 1}"
        let[names[id(value)]] = fields
        return names[id(value)]

    outputs = {name: written(each) for name, each in wanted.items()}
    return {"let": let} if let else {}, outputs


def outputs(result: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of a result of `expression` by name, also one that is named like an output of the operation."""
    return dict(zip(result["names"], result["series"], strict=True))


def _count(series: Series, uses: dict[int, int]) -> None:
    uses[id(series)] = uses.get(id(series), 0) + 1
    if uses[id(series)] == 1 and not isinstance(series._written, str):
        for value in series._written.values():
            if isinstance(value, Series):
                _count(value, uses)


def _operation(op: str, **fields: Any) -> Series:
    return Series({"op": op, **{name: _plain(value) for name, value in fields.items()}})


def _is_series(value: Any) -> bool:
    """Whether an argument stands where series do, and not where a period does."""
    return isinstance(value, Series) and not _is_parameter(value)


def _is_parameter(series: Series) -> bool:
    return isinstance(series._written, Mapping) and "param" in series._written


def _plain(value: Any) -> Any:
    """A field as JSON can hold it. Raises TypeError for an operation that was not called, and for an array."""
    if isinstance(value, Operation):
        raise TypeError(f"{value!r} is an operation; call it: {value!r}()")
    if hasattr(value, "tolist"):  # NumPy
        if getattr(value, "shape", ()):
            raise TypeError("an array is no operand; name it ta.a to ta.h, and send it as that input")
        return value.tolist()
    return value


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return Series(name) if name in _INPUTS else Operation(name)
