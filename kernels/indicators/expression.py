"""The operation `expression`: a graph of the algebra that a caller writes as JSON, with several outputs.

An expression is the name of an input (`"close"`), of a `let`, a number, or an object with `op` and the fields
of that operation. All indicators are operations, named like theirs; one with several outputs is `macd.signal`. Lags are
0 or more and nothing else reaches over bars, so no expression can look ahead.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field, ValidationError, create_model

from warpdesk_server.kernels.array import ITEMSIZE, ArrayInfo
from warpdesk_server.kernels.indicators import algebra as a
from warpdesk_server.kernels.indicators import indicator, spec
from warpdesk_server.kernels.indicators.algebra import Node
from warpdesk_server.kernels.indicators.bars import BARS
from warpdesk_server.kernels.indicators.declared import INDICATORS
from warpdesk_server.kernels.indicators.indicator import MOST_KEPT, MOST_STEPS, Bars
from warpdesk_server.kernels.indicators.plan import Program, TooManySteps, plan
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output, SameAs
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import InvalidRequest, Problem, problems_of, refuse
from warpdesk_server.kernels.sharding import Sharding

_RESERVED = ("series", "names", "first")  # outputs of the operation itself
MOST_NODES = 64
MOST_OUTPUTS = 16
INPUTS = ("open", "high", "low", "close", "volume", "benchmark", "session", "a", "b", "c", "d", "e", "f", "g", "h")

_Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
_Expression = Annotated[Any, Field(description="a name, a number, or an object with `op` and its fields")]


class Expression(Params):
    let: Annotated[
        dict[_Name, _Expression],
        Field(
            default_factory=dict,
            max_length=MOST_NODES,
            description="named expressions, which may use the inputs and each other",
        ),
    ]
    outputs: Annotated[
        dict[_Name, _Expression],
        Field(min_length=1, max_length=MOST_OUTPUTS, description="what is shown, by name: rows of `series`"),
    ]
    nan_policy: spec.Gaps = "window"


@dataclass(frozen=True)
class _Function:
    """An operation of expressions: the series it takes, its parameters, and how its node is made."""

    args: tuple[str, ...]
    params: type[Params] | None
    build: Callable[..., Node]
    own: bool = False  # an indicator, whose series are the inputs unless they are given


class _NoParams(Params):
    pass


def _params(**fields: Any) -> type[Params]:
    return create_model("Fields", __base__=Params, **fields)


_PERIOD = _params(period=(Bars, ...))
_LAG = _params(bars=(Annotated[int, Field(ge=0, le=spec.LONGEST_PERIOD)], 1))


def _two(build: Callable[[Node, Node], Node]) -> _Function:
    return _Function(("a", "b"), None, build)


def _one(build: Callable[[Node], Node]) -> _Function:
    return _Function(("of",), None, build)


def _window(build: Callable[..., Node], params: type[Params] = _PERIOD) -> _Function:
    return _Function(("of",), params, build)


_FUNCTIONS: dict[str, _Function] = {
    "add": _two(lambda x, y: x + y),
    "sub": _two(lambda x, y: x - y),
    "mul": _two(lambda x, y: x * y),
    "div": _two(lambda x, y: x / y),
    "max": _two(a.maximum),
    "min": _two(a.minimum),
    "lt": _two(lambda x, y: x < y),
    "le": _two(lambda x, y: x <= y),
    "gt": _two(lambda x, y: x > y),
    "ge": _two(lambda x, y: x >= y),
    "eq": _two(a.equal),
    "and": _two(lambda x, y: a.where(x, a.where(y, 1, 0), 0)),
    "or": _two(lambda x, y: a.where(x, 1, a.where(y, 1, 0))),
    "crosses_above": _two(a.crosses),
    "crosses_below": _two(lambda x, y: a.crosses(y, x)),
    "neg": _one(lambda of: -of),
    "abs": _one(a.absolute),
    "sqrt": _one(a.root),
    "log": _one(a.log),
    "exp": _one(a.exp),
    "atan": _one(a.arctangent),
    "sinh": _one(a.hyperbolic_sine),
    "cosh": _one(a.hyperbolic_cosine),
    "tanh": _one(a.hyperbolic_tangent),
    "floor": _one(a.floor),
    "ceil": _one(lambda of: -a.floor(-of)),
    "not": _one(lambda of: a.where(of, 0, 1)),
    "is_nan": _one(a.missing),
    "total": _one(a.total),
    "select": _Function(("if", "then", "else"), None, a.where),
    "latch": _Function(("value", "when"), None, lambda value, when: a.latch(value, a.where(when, 1, 0))),
    "lag": _Function(("of",), _LAG, lambda of, bars: a.lag(of, bars)),
    "change": _Function(("of",), _LAG, lambda of, bars: a.change(of, bars)),
    "sum": _window(a.sum_over),
    "std": _window(a.deviation),
    "highest": _window(a.highest),
    "lowest": _window(a.lowest),
    "since_highest": _window(a.since_highest),
    "since_lowest": _window(a.since_lowest),
}


def _picked(name: str, output: str) -> Callable[..., Node]:
    def build(*args: Node, **params: Any) -> Node:
        built = INDICATORS[name].build(*args, **params)
        return built[output] if isinstance(built, dict) else built

    return build


for _name, _declared in INDICATORS.items():
    _series = tuple(each.shown for each in _declared.operation.inputs)
    for _output in _declared.operation.outputs:
        _alone = len(_declared.operation.outputs) == 1
        _FUNCTIONS[_name if _alone else f"{_name}.{_output.name}"] = _Function(
            _series, _declared.operation.params, _picked(_name, _output.name), own=True
        )


def own_functions() -> list[tuple[str, tuple[str, ...], dict[str, Any]]]:
    """The operations of expressions that are not declared indicators: their names, series, and parameters with their
    defaults, `...` for none."""
    return [
        (
            name,
            each.args,
            {
                field: ... if info.is_required() else info.default
                for field, info in (each.params.model_fields.items() if each.params else ())
                if field != "nan_policy"
            },
        )
        for name, each in _FUNCTIONS.items()
        if not each.own
    ]


def _finite(written: float, at: str) -> float:
    try:
        number = float(written)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise refuse(at, "a number should be within what float64 can hold")
    return number


class _Reader:
    """The reader of one expression's JSON, which counts nodes and notes which inputs it reads."""

    def __init__(self, params: Expression, inputs: Sequence[str]) -> None:
        self._let = params.let
        self._inputs_there = inputs
        self._names: dict[str, Node | None] = {}  # None while it is read
        self._used: set[str] = set()  # names that an expression reads
        self._nodes = 0
        self.inputs: dict[str, str] = {}  # with the place that reads them first
        for name in params.let:
            if name in inputs:
                raise refuse(f"/params/let/{name}", f"{name!r} is the name of an input")
            self._named(name, f"/params/let/{name}")
        # By name: what a job record keeps has no other order.
        self.outputs = {
            name: self._node(params.outputs[name], f"/params/outputs/{name}") for name in sorted(params.outputs)
        }
        for name in params.outputs:
            if name in _RESERVED:
                raise refuse(
                    f"/params/outputs/{name}", f"{name!r} is an output of every expression; choose another name"
                )
        for name in params.let:
            if name not in self._used:
                raise refuse(f"/params/let/{name}", f"nothing reads {name!r}; use it in an output or leave it out")
        reached = a.inputs_of(self.outputs.values())
        self.inputs = {name: at for name, at in self.inputs.items() if name in reached}

    def _node(self, written: Any, at: str) -> Node:
        if isinstance(written, bool):
            raise refuse(at, "an expression is a name, a number or an object, got true or false")
        if isinstance(written, int | float):
            return a.node(_finite(written, at))
        if isinstance(written, str):
            self._used.add(written)
            return self._named(written, at)
        if not isinstance(written, dict):
            raise refuse(at, "an expression is a name, a number or an object with `op`")
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise refuse(at, f"an expression has at most {MOST_NODES} operations")
        fields = dict(written)
        function = self._function(fields.pop("op", None), at)
        args = [self._argument(function, name, fields, at) for name in function.args]
        own = function.params.model_fields if function.params else {}
        unknown = next((name for name in fields if name not in own and name != "nan_policy"), None)
        if unknown is not None:
            names = ", ".join([*function.args, *(name for name in own if name != "nan_policy")])
            pointer = f"{at}/{str(unknown)[:80]}"
            if function.own and unknown in ("of", "a", "b"):
                series = ", ".join(function.args)
                raise refuse(pointer, f"{written['op']} takes the series {series}: give each once, by its name")
            raise refuse(pointer, f"{written['op']} has no field {str(unknown)[:80]!r}; it has {names}")
        return self._built(function, args, fields, at)

    def _named(self, name: str, at: str) -> Node:
        if name in self._inputs_there:
            self.inputs.setdefault(name, at)
            return a.series(name)
        if name not in self._let:
            names = ", ".join([*self._inputs_there, *self._let])
            raise refuse(at, f"there is no series {name[:80]!r} here; there are {names}")
        if name not in self._names:
            self._names[name] = None
            self._names[name] = self._node(self._let[name], f"/params/let/{name}")
        node = self._names[name]
        if node is None:
            raise refuse(at, f"{name!r} needs itself")
        return node

    def _function(self, op: Any, at: str) -> _Function:
        if not isinstance(op, str):
            raise refuse(f"{at}/op", "op should be the name of an operation")
        if op in _FUNCTIONS:
            return _FUNCTIONS[op]
        several = [name for name in _FUNCTIONS if name.partition(".")[0] == op.partition(".")[0]]
        if several and "." not in op:
            raise refuse(f"{at}/op", f"{op} has several outputs; name one of {', '.join(several)}")
        near = several or get_close_matches(op[:80].lower(), _FUNCTIONS, n=5)
        raise refuse(f"{at}/op", f"there is no operation {op[:80]!r}{'; near are ' if near else ''}{', '.join(near)}")

    def _argument(self, function: _Function, name: str, fields: dict[str, Any], at: str) -> Node:
        if name in fields:
            return self._node(fields.pop(name), f"{at}/{name}")
        places = {1: ("of",), 2: ("a", "b")}.get(len(function.args), ())
        given = dict(zip(function.args, places, strict=False)).get(name, "")
        if function.own and given in fields:
            return self._node(fields.pop(given), f"{at}/{given}")
        if function.own:
            return self._named(name, at)
        raise refuse(f"{at}/{name}", f"the field {name!r} is required")

    def _built(self, function: _Function, args: list[Node], fields: Mapping[str, Any], at: str) -> Node:
        if "nan_policy" in fields:
            raise refuse(f"{at}/nan_policy", "gaps are closed for the whole expression, by its own nan_policy")
        try:
            params = (function.params or _NoParams).model_validate(fields)
        except ValidationError as error:
            found, count = problems_of(error.errors(include_url=False), at)
            raise InvalidRequest(*found, count=count) from None
        values = {name: value for name, value in params if name != "nan_policy"}
        several = next((name for name, value in values.items() if isinstance(value, tuple)), None)
        if several is not None:
            raise refuse(f"{at}/{several}", f"{several} takes one value here: name an output for each")
        try:
            return function.build(*args, **values)
        except InvalidRequest as error:  # its pointers are those of the indicator's own request
            moved = [Problem(each.pointer.replace("/params", at, 1), each.detail) for each in error.problems]
            raise InvalidRequest(*moved, count=error.count) from None


def read(params: Expression, inputs: Sequence[str] = INPUTS) -> tuple[dict[str, Node], dict[str, str]]:
    """The outputs' nodes, and the inputs that are read with the place that does so first; `inputs` are those there are.

    Raises InvalidRequest, with a JSON pointer into the parameters.
    """
    reader = _Reader(params, inputs)
    return reader.outputs, reader.inputs


def series_fields(written: Mapping[str, Any]) -> dict[str, Any]:
    """The series that an expression's operation reads, by their fields; an indicator's inputs where it has none."""
    function, found = _FUNCTIONS[written["op"]], {}
    places = {1: ("of",), 2: ("a", "b")}.get(len(function.args), ())
    for name, place in itertools.zip_longest(function.args, places):
        field = place if function.own and name not in written and place in written else name
        found[field] = written.get(field, name)
    return found


def program_of(params: Expression, itemsize: int) -> Program:
    """The program of an expression for numbers of so many bytes."""
    return _program(params.model_dump_json(exclude={"nan_policy"}), itemsize)


def values_of(program: Program) -> dict[str, Any]:
    """The outputs of an expression besides its series."""
    return {"names": list(program.names), "first": dict(program.first)}


@lru_cache(maxsize=64)
def _program(params: str, itemsize: int) -> Program:
    return plan(read(Expression.model_validate_json(params))[0], itemsize, MOST_STEPS)


def check(params: Expression, infos: Mapping[str, ArrayInfo]) -> None:
    inputs = read(params)[1]
    if not inputs:
        raise refuse("/params/outputs", "the expression reads no input")
    for name, at in inputs.items():
        if name not in infos:
            raise refuse(f"/inputs/{name}", f"the expression reads {name} at {at}, and the request has no such input")
    for name in infos:
        if name not in inputs:
            raise refuse(f"/inputs/{name}", f"the expression does not read {name}; it reads {', '.join(inputs)}")
    indicator.require_alike(EXPRESSION, params, infos)
    info = next(iter(infos.values()))
    try:
        program = program_of(params, ITEMSIZE[info.dtype])
    except TooManySteps:
        raise refuse("/params/outputs", f"the expression takes more than {MOST_STEPS} steps") from None
    if program.kept > MOST_KEPT:
        raise refuse(
            "/params/outputs",
            f"{len(program.steps)} steps keep {program.kept} numbers, since one looks back {max(program.history)} "
            f"bars; at most {MOST_KEPT} are kept",
        )
    for name, first in program.first.items():
        if first >= info.shape[-1]:
            raise refuse(f"/params/outputs/{name}", f"{name} needs at least {first + 1} bars, got {info.shape[-1]}")
    indicator.require_little_work(program, infos)


def _cost(params: Expression, infos: Mapping[str, ArrayInfo]) -> Cost:
    return indicator.cost_of(program_of(params, indicator.itemsize_of(infos)), params.nan_policy, infos)


def _grid(params: Expression, infos: Mapping[str, ArrayInfo]) -> Grid:
    return indicator.grid_of(program_of(params, indicator.itemsize_of(infos)), infos)


def _sharding(params: Expression, infos: Mapping[str, ArrayInfo]) -> Sharding:
    program = program_of(params, indicator.itemsize_of(infos))
    return indicator.sharding_of(params, infos, ("series",), (len(program.names),), values_of(program))


def _twin(function: str, *inputs: str, **written: Any) -> SameAs:
    return SameAs(
        "TA-Lib", function, {}, {name: name for name in inputs}, {"real": "real"}, {"outputs": {"real": written}}
    )


_TWINS = (
    *(
        _twin(function, "high", "low", op=op, a="high", b="low")
        for function, op in (("ADD", "add"), ("SUB", "sub"), ("MULT", "mul"), ("DIV", "div"))
    ),
    *(
        _twin(function, "close", op=op, of="close")
        for function, op in (
            ("SQRT", "sqrt"), ("LN", "log"), ("EXP", "exp"), ("FLOOR", "floor"), ("CEIL", "ceil"), ("CUMSUM", "total"),
            ("ATAN", "atan"), ("SINH", "sinh"), ("COSH", "cosh"), ("TANH", "tanh"),
        )
    ),
    _twin(
        "LINEARREG_ANGLE", "close",
        op="mul", a={"op": "atan", "of": {"op": "linear_regression.slope", "period": 14}}, b=57.29577951308232,
    ),
    _twin("LOG10", "close", op="div", a={"op": "log", "of": "close"}, b=2.302585092994046),
)  # fmt: skip

_CLOSE = {"data": BARS["close"], "dtype": "float64"}

EXPRESSION = Operation(
    name="expression",
    compile_seconds=spec.COMPILE_SECONDS,
    compiled_with=spec.COMPILED_WITH,
    summary="Several indicators in one request, or new ones: a graph of series as JSON.",
    package="warpdesk_server.kernels.indicators",
    params=Expression,
    inputs=tuple(
        Input(
            name,
            f"{indicator.INPUTS.get(name, 'any series')}, shape (time) or (assets, time), oldest first; given if the "
            "expression reads it",
            ("float64", "float32"),
            (1, 2),
            required=False,
            nan=True,
            axes=indicator.AXES,
        )
        for name in INPUTS
    ),
    outputs=(
        Output(
            "series",
            "the outputs in the order of their names, shape (outputs, time) or (outputs, assets, time)",
            axes=("output time", "output asset time"),
            dtype="same",
        ),
        Output("names", "the names of the outputs", "value"),
        Output("first", "the bar from which on all that an output reads has a number, without gaps", "value"),
    ),
    example=Example(
        {
            "let": {"line": {"op": "sub", "a": {"op": "ema", "of": "close", "period": 6},
                             "b": {"op": "ema", "of": "close", "period": 13}}},
            "outputs": {
                "line": "line",
                "signal": {"op": "ema", "of": "line", "period": 5},
                "rsi": {"op": "rsi", "of": "close", "period": 14},
                "upper": {"op": "bollinger.upper", "of": "close", "period": 20},
                "golden": {"op": "crosses_above", "a": {"op": "sma", "of": "close", "period": 5},
                           "b": {"op": "sma", "of": "close", "period": 20}},
            },
        },
        {"close": _CLOSE},
    ),
    cost=_cost,
    grid=_grid,
    check=check,
    sizes=lambda params, _infos: {"output": len(params.outputs)},
    batching=spec.BATCHING,
    sharding=_sharding,
    same_as=_TWINS,
)  # fmt: skip
