"""The declaration of an indicator: a function from series to a graph, from which its operation is made.

    @indicator("Momentum.", momentum="the change", same_as=[talib("MOM", period="timeperiod")])
    def momentum(close: Node, *, period: Bars = 10) -> Outputs:
        return change(close, period)

Positional parameters of the function are inputs, keyword-only ones are params. The declaration says what each output
is. Parameters, look-back, cost, example, both backends and the tests follow from it.

The parameters of `_PARAMS` take lists too: several sets of parameters in one job. Lists go together, value by value,
and each output has an axis before the others for the sets. Their graphs are one program, so what sets share is computed
once, and each set has the bytes of a job by itself.
"""

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, get_type_hints

from pydantic import Field, create_model
from pydantic.fields import FieldInfo

from warpdesk_server.kernels.array import ITEMSIZE, ArrayInfo
from warpdesk_server.kernels.indicators import algebra, spec, windows
from warpdesk_server.kernels.indicators.algebra import Node
from warpdesk_server.kernels.indicators.bars import BARS
from warpdesk_server.kernels.indicators.plan import LONGEST_PAIR, SUMS, WINDOWS, Program, Step, TooManySteps, plan
from warpdesk_server.kernels.indicators.recurrence import TILE, board
from warpdesk_server.kernels.indicators.stages import stages
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output, SameAs
from warpdesk_server.kernels.params import OneOrSeveral, Params
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.kernels.sharding import Division, Sharding

MOST_WORK = 2e11  # steps of about a nanosecond of one core
MOST_SETS = 64  # of parameters in one job
MOST_STEPS = 4096  # of a program: a window of n bars is log2 n of them
MOST_KEPT = 16_000_000  # numbers that a core keeps: a chunk of each step, and what is looked back to
AXES = ("time", "asset time")  # of every series
_SETS = ("set time", "set asset time")  # of an output for several sets of parameters
_EXAMPLE_BARS = 48

Bars = Annotated[int, Field(ge=1, le=spec.LONGEST_PERIOD)]
TwoBars = Annotated[int, Field(ge=2, le=spec.LONGEST_PERIOD)]
Outputs = Node | dict[str, Node]

INPUTS = {
    "open": "opening prices",
    "high": "highest prices of the bars",
    "low": "lowest prices of the bars",
    "close": "closing prices",
    "volume": "volumes",
    "benchmark": "another series to compare with",
    "session": "a number that changes at the first bar of a session, such as the day; NaN for no change, which "
    "nan_policy skip takes for a bar to leave out",
}
# What a parameter is where its declaration does not say it, and the values that a sweep usually tries.
_PARAMS: dict[str, tuple[str, list[float]]] = {
    "period": ("bars in the window", [5, 10, 14, 20, 50, 100, 200]),
    "fast": ("bars of the fast average", [3, 5, 8, 12]),
    "slow": ("bars of the slow average", [20, 26, 35, 50]),
    "signal": ("bars of the signal line's average", [5, 9, 12]),
    "smooth": ("bars of the first smoothing", [3, 5]),
    "width": ("how many deviations or ranges lie between the middle and a band", [1.0, 1.5, 2.0, 2.5, 3.0]),
}


@dataclass(frozen=True)
class Indicator:
    """A declared indicator: its graph, its operation, and what else it agrees with."""

    name: str
    build: Callable[..., Outputs]
    operation: Operation

    def graph(self, params: Any) -> dict[str, Node]:
        """The outputs' nodes; of several sets of parameters those of one output after another. Raises InvalidRequest
        for parameters that do not fit each other."""
        given = {name: value for name, value in params if name != "nan_policy"}
        if (count := sets_of(params)) is None:
            return self._graph(given)
        sets = [self._graph({name: _of_set(value, place) for name, value in given.items()}) for place in range(count)]
        return {f"{name}[{place}]": graph[name] for name in sets[0] for place, graph in enumerate(sets)}

    def outputs(self, params: Any, series: Any) -> dict[str, Any]:
        """The outputs of a job by name, of all series of its program, one after another."""
        names = [output.name for output in self.operation.outputs]
        if (count := sets_of(params)) is None:
            return dict(zip(names, series, strict=True))
        return {name: series[at * count : (at + 1) * count] for at, name in enumerate(names)}

    def _graph(self, given: Mapping[str, Any]) -> dict[str, Node]:
        built = self.build(*(algebra.series(each.shown) for each in self.operation.inputs), **given)
        names = [output.name for output in self.operation.outputs]
        found = built if isinstance(built, dict) else {names[0]: built}
        if list(found) != names:
            raise TypeError(f"{self.name} returned {', '.join(found)} and declares {', '.join(names)}")
        return found

    def given(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of a call, which has some in their order and others by either of their names, as the program
        names them."""
        own = {each.name: each.shown for each in self.operation.inputs}
        return dict(zip(own.values(), arrays, strict=False)) | {own.get(name, name): named[name] for name in named}

    def program(self, params: Any, itemsize: int) -> Program:
        return _program(self.name, json.dumps(params.model_dump(exclude={"nan_policy"}), sort_keys=True), itemsize)


INDICATORS: dict[str, Indicator] = {}


@lru_cache(maxsize=256)
def _program(name: str, params: str, itemsize: int) -> Program:
    declared = INDICATORS[name]
    parsed = declared.operation.params.model_validate_json(params)
    return plan(declared.graph(parsed), itemsize, None if sets_of(parsed) is None else MOST_STEPS)


def sets_of(params: Any) -> int | None:
    """How many sets of parameters an indicator's lists make; None if it has no list. Raises InvalidRequest for lists of
    different lengths."""
    lengths = {name: len(value) for name, value in params if isinstance(value, tuple)}
    first = next(iter(lengths), "")
    for name, length in lengths.items():
        if length != lengths[first]:
            sentence = f"lists go together, value by value: {first} has {lengths[first]}, and {name} {length}"
            raise refuse(f"/params/{name}", sentence)
    return lengths.get(first)


def _of_set(value: Any, place: int) -> Any:
    return value[place] if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Twin:
    """A function of TA-Lib that gives the numbers of an indicator, as its declaration says it.

    `outputs` has the library's names of our outputs, in order, and None for one that it does not give.
    """

    function: str
    parameters: Mapping[str, Any]
    outputs: tuple[str | None, ...] = ("real",)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    theirs: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)

    def of(self, inputs: Sequence[str], outputs: Sequence[str]) -> SameAs:
        """The description for an operation with these inputs and outputs."""
        given = {name: self.inputs.get(name, name) for name in inputs}
        shown = {ours: theirs for ours, theirs in zip(outputs, self.outputs, strict=True) if theirs is not None}
        return SameAs("TA-Lib", self.function, self.parameters, given, shown, self.fixed, self.theirs)


def talib(function: str, **options: Any) -> Twin:
    """A function of TA-Lib; keywords are our parameters with their names there: `talib("MOM", period="timeperiod")`."""
    special = {name: options.pop(name) for name in ("outputs", "fixed", "theirs", "inputs") if name in options}
    return Twin(function, options, **special)


def indicator(
    summary: str,
    *,
    same_as: Sequence[Twin] = (),
    example: Mapping[str, Any] | None = None,
    variants: Sequence[Mapping[str, Any]] = (),
    oldest: bool = False,
    **outputs: str,
) -> Callable[[Callable[..., Outputs]], Callable[..., Outputs]]:
    """Declare the indicator that a function builds; `outputs` says what each output is.

    `variants` are parameters beside the example's with which it has loops that no other example has.
    One of the `oldest` is counted by itself, and in records its `close` is `prices`.
    """

    def declare(build: Callable[..., Outputs]) -> Callable[..., Outputs]:
        name, signature = build.__name__, inspect.signature(build)
        hints = get_type_hints(build, include_extras=True)
        inputs = tuple(
            _input(each.name, oldest) for each in signature.parameters.values() if each.kind is not each.KEYWORD_ONLY
        )
        fields: dict[str, Any] = {
            each.name: (_described(each.name, hints[each.name]), ... if each.default is each.empty else each.default)
            for each in signature.parameters.values()
            if each.kind is each.KEYWORD_ONLY
        }
        if name in INDICATORS:
            raise TypeError(f"{name} is declared twice")
        _require_whole(name, inputs, fields, tuple(outputs), example or {})
        bars = {each.name: {"data": BARS[each.name][:_EXAMPLE_BARS], "dtype": "float64"} for each in inputs}
        model = create_model(_title(name), __base__=Params, **fields, nan_policy=(spec.Gaps, "window"))
        operation = Operation(
            name=name,
            compile_seconds=spec.COMPILE_SECONDS,
            compiled_with=spec.COMPILED_WITH,
            summary=summary,
            package="warpdesk_server.kernels.indicators",
            params=model,
            inputs=inputs,
            outputs=tuple(
                Output(each, f"{doc}; of the inputs' shape and dtype", axes=(*AXES, *_SETS), dtype="same")
                for each, doc in outputs.items()
            ),
            example=Example(dict(example or {}), bars),
            variants=tuple(Example({**(example or {}), **variant}, bars) for variant in variants),
            cost=lambda params, infos: cost_of(
                INDICATORS[name].program(params, itemsize_of(infos)), params.nan_policy, infos
            ),
            grid=lambda params, infos: grid_of(INDICATORS[name].program(params, itemsize_of(infos)), infos),
            check=lambda params, infos: _check(name, params, infos),
            sizes=lambda params, _: {} if (sets := sets_of(params)) is None else {"set": sets},
            batching=spec.BATCHING,
            sharding=lambda params, infos: sharding_of(
                params, infos, tuple(outputs), () if (sets := sets_of(params)) is None else (sets,)
            ),
            counted_as="" if oldest else "indicator",
            same_as=tuple(twin.of([each.shown for each in inputs], tuple(outputs)) for twin in same_as),
        )
        INDICATORS[name] = Indicator(name, build, operation)
        return build

    return declare


def _input(name: str, oldest: bool) -> Input:
    recorded, renamed = ("prices", "close") if oldest and name == "close" else (name, "")
    doc = f"{INPUTS.get(name, 'no known input')}, shape (time) or (assets, time), oldest first"
    return Input(recorded, doc, ("float64", "float32"), (1, 2), nan=True, renamed=renamed, axes=AXES)


def _require_whole(
    name: str,
    inputs: Sequence[Input],
    fields: Mapping[str, Any],
    outputs: Sequence[str],
    example: Mapping[str, Any],
) -> None:
    """Raise TypeError for a declaration that lacks something, with what it lacks."""
    if unknown := [each.shown for each in inputs if each.shown not in INPUTS]:
        raise TypeError(f"{name}: there is no input {', '.join(unknown)}; there are {', '.join(INPUTS)}")
    if not inputs or not outputs:
        raise TypeError(f"{name} needs an input (a positional parameter) and a description of each output")
    for field_name, (hint, default) in fields.items():
        found = FieldInfo.from_annotation(hint)
        bounds = {type(each).__name__ for each in found.metadata}
        if found.description is None:
            raise TypeError(f"{name}: {field_name} needs Annotated[..., Field(description=...)]")
        if found.annotation in (int, float) and not ({"Ge", "Gt"} & bounds and {"Le", "Lt"} & bounds):
            raise TypeError(f"{name}: {field_name} needs Field(ge=..., le=...)")
        if default is ... and field_name not in example:
            raise TypeError(f"{name}: {field_name} has no default, so `example` needs it")


def require_below(fast: int, slow: int) -> None:
    """Raise InvalidRequest if an indicator's fast average is not of fewer bars than its slow one."""
    if fast >= slow:
        raise refuse("/params/fast", f"fast should be below slow, got {fast} and {slow}")


def _title(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _described(name: str, hint: Any) -> Any:
    if name not in _PARAMS:
        return hint
    description, sweep = _PARAMS[name]
    own = FieldInfo.from_annotation(hint).description
    return Annotated[hint, Field(description=own or description, examples=sweep), OneOrSeveral(MOST_SETS)]


def _sizes(infos: Mapping[str, ArrayInfo]) -> tuple[int, int, int]:
    shape, dtype = whole_shape(infos), next(iter(infos.values())).dtype
    return math.prod(shape[:-1]), shape[-1], ITEMSIZE[dtype]


def whole_shape(inputs: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of an indicator's outputs: that of its inputs, of which some may be one series for all assets."""
    return max(
        (tuple(each.shape) for each in inputs.values()), key=lambda shape: (len(shape), math.prod(shape[:-1]) > 1)
    )


def itemsize_of(infos: Mapping[str, ArrayInfo]) -> int:
    """Bytes of a number of an indicator's inputs."""
    return _sizes(infos)[2]


def require_alike(operation: Operation, params: Any, infos: Mapping[str, ArrayInfo]) -> None:
    """Raise InvalidRequest if an indicator's inputs differ in shape or dtype, or have gaps that its policy refuses. One
    series of as many bars is alike to those of many assets."""
    shape, shown = whole_shape(infos), {each.name: each.shown for each in operation.inputs}
    first_name, first = next((shown[name], info) for name, info in infos.items() if info.shape == shape)
    for other, info in infos.items():
        at, name = f"/inputs/{other}", shown[other]
        if info.dtype != first.dtype:
            raise refuse(at, f"{name} is {info.dtype}, and {first_name} is {first.dtype}; they must have one dtype")
        if info.shape not in (shape, shape[-1:], (1, *shape[-1:])):
            raise refuse(
                at,
                f"{name} has the shape {list(info.shape)}, and {first_name} {list(shape)}; they must be alike, or one "
                f"series of {shape[-1]} bars",
            )
        if params.nan_policy == "error" and info.has_nan:
            raise refuse(at, f'{name} holds a NaN and nan_policy is "error"')


def _check(name: str, params: Any, infos: Mapping[str, ArrayInfo]) -> None:
    require_alike(INDICATORS[name].operation, params, infos)
    first_name, first = next(iter(infos.items()))
    try:
        program = INDICATORS[name].program(params, ITEMSIZE[first.dtype])
    except TooManySteps:
        raise refuse("/params", f"{sets_of(params)} sets of parameters take more than {MOST_STEPS} steps") from None
    if program.kept > MOST_KEPT and (sets := sets_of(params)) is not None:
        raise refuse("/params", f"{sets} sets of parameters keep {program.kept} numbers; at most {MOST_KEPT} are kept")
    needed, got = 1 + max(program.first.values()), first.shape[-1]
    if needed > got:
        lengths = {
            each: getattr(params, each) for each, field in type(params).model_fields.items() if field.annotation is int
        }
        at = f"/params/{next(iter(lengths))}" if len(lengths) == 1 else f"/inputs/{first_name}"
        who = ", ".join(f"{each} {_shown(value)}" for each, value in lengths.items()) or name
        needs = "need" if len(lengths) > 1 else "needs"
        what = "prices" if program.inputs == ("close",) else "bars"
        raise refuse(at, f"{who} {needs} at least {needed} {what}, got {got}")
    require_little_work(program, infos)


def _shown(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def require_little_work(program: Program, infos: Mapping[str, ArrayInfo]) -> None:
    """Raise InvalidRequest for a program that would take longer than a job may."""
    rows, time, _ = _sizes(infos)
    if (steps := rows * time * program.work) > MOST_WORK:
        raise refuse(
            "/params",
            f"{rows * time:,} bars of {program.work:,.0f} steps each are {steps:.3g} steps, and a job has at most "
            f"{MOST_WORK:.3g}: shorten the windows or divide the series",
        )


def need(program: Program, rows: int, time: int, itemsize: int) -> int:
    """Bytes of device memory for whole rows: registers, inputs, and the tables of the loop that needs most."""
    arrays = stages(program, itemsize).registers + len(program.inputs)
    tables = max((_table(step, rows, time, itemsize) for step in program.steps), default=0)
    return arrays * rows * time * itemsize + tables + 64 * len(program.steps) + 8 * len(program.constants)


def _table(step: Step, rows: int, time: int, itemsize: int) -> int:
    """Bytes of a loop's launch besides its series."""
    tiles = -(-time // TILE)
    if step.op in ("follow", "strength"):
        needed = board(step.law, 1 if step.op == "follow" else 2, rows, tiles, itemsize)
        return 4 * needed.flags + needed.numbers * itemsize
    if step.op == "scan":
        return 2 * rows * tiles * itemsize
    if step.op == "pair":
        return SUMS * rows * time * itemsize if step.values[0] > LONGEST_PAIR else 0
    if step.op in WINDOWS:
        return windows.totals(int(step.values[0]), rows, time, sums=1 if step.op == "mean" else 2) * itemsize
    return 0


def cost_of(program: Program, policy: spec.NanPolicy, infos: Mapping[str, ArrayInfo]) -> Cost:
    """The cost of a program: inputs, outputs, what closing gaps takes, scratch memory of spec.CORES cores, and what a
    chunk needs on a GPU."""
    rows, time, itemsize = _sizes(infos)
    inputs, grid = len(program.inputs), grid_of(program, infos)
    host = (inputs + len(program.outputs)) * rows * time * itemsize
    # Inputs without gaps, and what is made on the way.
    gaps = rows * time * {"skip": (inputs + 3) * itemsize + 2, "ffill": inputs * itemsize + 18}.get(policy, 0)
    scratch = min(spec.CORES, rows * -(-time // TILE)) * program.kept * itemsize
    return Cost(
        bytes=host + gaps + scratch + grid.fixed + grid.each, work=rows * time * max(1.0, program.work), step=1e-9
    )


def grid_of(program: Program, infos: Mapping[str, ArrayInfo]) -> Grid:
    """The grid of a program: chunks of about spec.CHUNK_BARS bars, whole rows each."""
    rows, time, itemsize = _sizes(infos)
    if not rows * time:
        return Grid(0, 0)
    each = rows_of_a_chunk(rows, time)
    return Grid(-(-rows // each), need(program, each, time, itemsize), spec.ROUNDING)


def sharding_of(
    params: Any,
    infos: Mapping[str, ArrayInfo],
    outputs: Sequence[str],
    before: tuple[int, ...] = (),
    values: Mapping[str, Any] | None = None,
) -> Sharding:
    """The sharding of an indicator by assets; one series for all assets is read by every shard.

    `before` are the axes of an output before those of the inputs, `values` the outputs that are no arrays.
    """
    shape, dtype = whole_shape(infos), next(iter(infos.values())).dtype
    whole = ArrayInfo(dtype, (*before, *shape))
    return Sharding(
        math.prod(shape[:-1]),
        lambda _: params,
        inputs={name: Division(info) for name, info in infos.items() if info.shape == shape},
        joined={name: Division(whole, outer=len(before)) for name in outputs},
        values=values or {},
    )


def rows_of_a_chunk(rows: int, time: int) -> int:
    """The rows of a chunk on a GPU, at least one."""
    return max(1, min(rows, spec.CHUNK_BARS // time))
