"""A catalogue for the worker's own tests: one operation that works and several that misbehave."""

import os
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

from tests.workers.stepping import CHAIN, PACK
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.operation import Computation, Cost, Example, Input, Operation, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.plans import plan_of
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.kernels.sharding import Division, Sharding
from warpdesk_server.kernels.spend import BudgetId, Spend

PACKAGE = "tests.workers.misbehaving"


class NoParams(Params):
    pass


class NapParams(Params):
    seconds: float
    marker: str
    gate: str = ""


class DieParams(Params):
    times: int
    marker: str


class HoardParams(Params):
    numbers: int = 1 << 46


class ConfineParams(Params):
    room: int


class FussParams(Params):
    pleased: bool


class WaverParams(Params):
    mood: Literal["good", "bad"] = "good"
    times: int = 1


class WhisperParams(Params):
    marker: str = ""
    gate: str = ""


class LingerParams(Params):
    pause: str


class PiecesParams(Params):
    place: str = ""


class PaidParams(WhisperParams):
    budget: BudgetId | None = None


def _spend(params: PaidParams, inputs: Mapping[str, ArrayInfo]) -> Spend | None:
    tenth = Fraction(1, 10)
    return None if params.budget is None else Spend(tenth, (tenth, Fraction(0)), None, "add_remove")


def _cost(params: Any, inputs: Mapping[str, ArrayInfo]) -> Cost:
    return Cost(sum(info.nbytes for info in inputs.values()))


def _not_too_long(params: Any, inputs: Mapping[str, ArrayInfo]) -> None:
    if inputs["values"].size > 1_000_000:
        raise refuse("/inputs/values", f"{inputs['values'].size} numbers, at most 1000000 are taken")


_VALUES = Input("values", "numbers", ("float64",), (1,), nan=True, axes=("value",))
_EXAMPLE = Example(inputs={"values": {"data": [1.0, 2.0], "dtype": "float64"}})

_ALL = (
    Operation(
        "double",
        "Twice each value.",
        PACKAGE,
        NoParams,
        (_VALUES,),
        (Output("doubled", "2 x", axes=("value",)), Output("total", "their sum", "value")),
        _EXAMPLE,
        _cost,
        _not_too_long,
    ),
    Operation(
        "nap",
        "Sleep in native code.",
        PACKAGE,
        NapParams,
        (),
        (Output("slept", "seconds", "value"),),
        Example(params={"seconds": 0.0, "marker": "/dev/null"}),
        _cost,
    ),
    Operation(
        "stumble",
        "Raise an error that quotes its input.",
        PACKAGE,
        NoParams,
        (_VALUES,),
        (Output("doubled", "never"),),
        _EXAMPLE,
        _cost,
    ),
    Operation(
        "hoard",
        "Ask for more memory than there is, unless told otherwise.",
        PACKAGE,
        HoardParams,
        (),
        (Output("total", "how many", "value"),),
        Example(),
        _cost,
    ),
    Operation(
        "confine",
        "Let the process it runs in have so many bytes more and no others.",
        PACKAGE,
        ConfineParams,
        (),
        (Output("limit", "bytes", "value"),),
        Example(params={"room": 1 << 46}),
        _cost,
    ),
    Operation(
        "die",
        "Kill the process it runs in.",
        PACKAGE,
        DieParams,
        (),
        (Output("survived", "true", "value"),),
        Example(params={"times": 0, "marker": "/nowhere"}),
        _cost,
    ),
    Operation(
        "whisper",
        "Add private noise to a secret.",
        PACKAGE,
        WhisperParams,
        (Input("secret", "a secret", ("int64",), (1,), secret=True),),
        (Output("noisy", "their sum plus noise"),),
        Example(inputs={"secret": {"data": [1, 2], "dtype": "int64"}}),
        _cost,
        randomness="private",
    ),
    Operation(
        "linger",
        "Add private noise, and take as many seconds for it as a file says.",
        PACKAGE,
        LingerParams,
        (_VALUES,),
        (Output("noisy", "values plus noise"), Output("total", "their sum", "value")),
        Example({"pause": "/dev/null"}, _EXAMPLE.inputs),
        _cost,
        randomness="private",
    ),
)

OPERATIONS = {operation.name: operation for operation in _ALL}


def _each_alone(params: PiecesParams, inputs: Mapping[str, ArrayInfo]) -> Sharding:
    whole = Division(inputs["values"], inner=0)
    return Sharding(whole.whole.size, lambda _: params, inputs={"values": whole}, joined={"doubled": whole})


# Each value is a unit; what happens to it a directory says.
PIECES = {
    "pieces": Operation(
        "pieces",
        "Twice each value, one after another.",
        PACKAGE,
        PiecesParams,
        (_VALUES,),
        (Output("doubled", "2 x"),),
        _EXAMPLE,
        _cost,
        sharding=_each_alone,
    ),
    "double": OPERATIONS["double"],
}

# The same operation with other code.
OTHER_PIECES = {"pieces": replace(PIECES["pieces"]), "double": OPERATIONS["double"]}
vars(OTHER_PIECES["pieces"])["code"] = "other code"

WITH_PLANS: Mapping[str, Computation] = {**OPERATIONS, "plan": plan_of(OPERATIONS)}

WITH_TASKS: Mapping[str, Computation] = {**OPERATIONS, CHAIN.name: CHAIN, PACK.name: PACK}

# The same task where its library is missing.
WITHOUT_LIBRARY: Mapping[str, Computation] = {CHAIN.name: replace(CHAIN, libraries=("no-such-library",)), **OPERATIONS}

# The same task with other code.
WITH_OTHER_TASKS: Mapping[str, Computation] = {CHAIN.name: replace(CHAIN, uses=(PACKAGE,))}

# A whisper that a budget can be charged for. Its key is the noise: who has one has the other.
PAID = {
    "whisper": replace(
        OPERATIONS["whisper"],
        params=PaidParams,
        inputs=(Input("secret", "a secret", ("int64",), (1,)),),
        spend=_spend,
        release_version="whisper 1",
    ),
    "double": OPERATIONS["double"],
}

# A sampler whose time the test decides.
LINGERING = {"linger": OPERATIONS["linger"]}

# Nothing works here.
NOTHING_WORKS = {name: OPERATIONS[name] for name in ("stumble", "hoard")}

# The first works for some, and its example is not among them.
FUSSY = {
    "fuss": Operation(
        "fuss",
        "Fail unless pleased.",
        PACKAGE,
        FussParams,
        (),
        (Output("pleased", "true", "value"),),
        Example(params={"pleased": False}),
        _cost,
    ),
    "double": OPERATIONS["double"],
}

# The documented example of one kills the process that tries it, three times for a directory of marks.
FRAIL = {
    "die": replace(OPERATIONS["die"], example=Example(params={"times": 3, "marker": os.environ.get("MARKS", "")})),
    "double": OPERATIONS["double"],
}

# The documented examples of two wait at gates, which the environment names.
GATED = {
    "double": OPERATIONS["double"],
    **{
        name: replace(
            OPERATIONS["nap"],
            name=name,
            compile_seconds=order,
            example=Example(params={"seconds": 0.0, "marker": os.devnull, "gate": os.environ.get(variable, "")}),
        )
        for order, (name, variable) in enumerate((("nap", "GATE"), ("doze", "SECOND_GATE")), start=1)
    },
}

# Everything here works.
SOUND = {name: OPERATIONS[name] for name in ("double", "whisper")}

# One launch in each job, and in the example.
TRUTH_TABLE = {"double": OPERATIONS["double"]}

# One variant of it fails: bad mood, float32.
WAVERING = {
    "waver": Operation(
        "waver",
        "Fail in one mood for some numbers of one type.",
        PACKAGE,
        WaverParams,
        (Input("values", "numbers", ("float64", "float32"), (1,)),),
        (Output("doubled", "2 x"),),
        _EXAMPLE,
        _cost,
        variants=(Example({"mood": "bad", "times": 3}, _EXAMPLE.inputs),),
    )
}

# Catalogues of real operations. To import those takes as long as to start a worker, so only who asks for them waits.
_REAL = {
    "WIDE": ("rsi", "matmul", "monte_carlo"),  # what several workers compute together
    "SHARED": ("rsi",),  # its jobs share launches
    "SMA_ALONE": ("sma",),  # for a worker that should not compile the others
}


def __getattr__(name: str) -> Any:
    """The catalogues of `_REAL`, and NOT_BESIDE_ANOTHER, which ends a worker that another one started."""
    if name in _REAL:
        from warpdesk_server.kernels.catalogue import OPERATIONS as ALL

        return {**(PIECES if name == "WIDE" else {}), **{each: ALL[each] for each in _REAL[name]}}
    if name != "NOT_BESIDE_ANOTHER":
        raise AttributeError(name)
    if os.environ.get("WARPDESK_TAKES") == "long":
        raise SystemExit(3)
    return OPERATIONS
