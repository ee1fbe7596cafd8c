"""What can be computed: an operation's name, parameters, inputs, outputs, limits and two implementations."""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from warpdesk_server.kernels.array import ArrayInfo, DType
from warpdesk_server.kernels.batching import Batching, Joint
from warpdesk_server.kernels.spend import Spend

Backend = Literal["cpu", "gpu"]


class Params(BaseModel):
    """Base of every operation's parameters: strict types, no unknown field, no NaN, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _of_its_type(value: Any, literal: ValidatorFunctionWrapHandler) -> Any:
    member = literal(value)
    if type(member) is not type(value):
        kind = {"bool": "boolean", "int": "integer"}.get(type(member).__name__, "value")
        raise PydanticCustomError(
            "exact_literal", "Input should be the {kind} {member}", {"kind": kind, "member": json.dumps(member)}
        )
    return member


# A Literal takes what is equal, even in strict mode: 1 for True, false for 0 and 50.0 for 50. `Annotated[Literal[...],
# EXACT]` does not.
EXACT = WrapValidator(_of_its_type)


TOLD = 20  # problems of a request that are put into words: it can be wrong in a million places


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a request: where (JSON pointer, e.g. "/params/period") and a sentence."""

    pointer: str
    detail: str


class InvalidRequest(ValueError):
    """The parameters or inputs do not fit the operation.

    `problems` are those found, of which the first 20 are put into words; `count` is how many there are.
    """

    def __init__(self, *problems: Problem, count: int | None = None) -> None:
        super().__init__("; ".join(f"{problem.pointer}: {problem.detail}" for problem in problems))
        self.problems = problems
        self.count = len(problems) if count is None else count


def refuse(pointer: str, detail: str) -> InvalidRequest:
    return InvalidRequest(Problem(pointer, detail))


def problems_of(
    findings: Sequence[Mapping[str, Any]], root: str = "", omit: frozenset[str] = frozenset()
) -> tuple[list[Problem], int]:
    """The first 20 of pydantic's findings (`ValidationError.errors()`) as places and sentences, and their count.

    Parts of a place named in `omit` are not in the request.
    """
    found = [entry for entry in findings if not _is_echo(entry)]
    return [_problem_of(entry, root, omit) for entry in found[:TOLD]], len(found)


def _is_echo(entry: Mapping[str, Any]) -> bool:
    """Whether a list is found too short only because what is wrong with an item of it, found as well, left it out."""
    return entry["type"] == "too_short" and len(entry["input"]) >= entry["ctx"]["min_length"]


def _problem_of(entry: Mapping[str, Any], root: str, omit: frozenset[str]) -> Problem:
    place = [part for part in entry["loc"] if part not in omit]
    pointer = root + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in place)
    return Problem(pointer, _sentence(entry["type"], entry["msg"], entry.get("ctx", {}), entry["input"], place))


# What pydantic finds: what should be true of the field instead.
_SHOULD = {
    "greater_than_equal": "be at least {ge}",
    "greater_than": "be above {gt}",
    "less_than_equal": "be at most {le}",
    "less_than": "be below {lt}",
    "too_short": "hold at least {min_length} items",
    "too_long": "hold at most {max_length} items",
    "string_too_short": "be at least {min_length} characters long",
    "string_too_long": "be at most {max_length} characters long",
    "string_pattern_mismatch": "match {pattern}",
    "string_type": "be a string",
    "int_type": "be an integer",
    "int_from_float": "be an integer",
    "int_parsing": "be an integer",
    "float_type": "be a number",
    "bool_type": "be true or false",
    "list_type": "be a list",
    "tuple_type": "be a list",
    "dict_type": "be an object",
    "model_type": "be an object",
    "model_attributes_type": "be an object",
}


def _sentence(kind: str, message: str, context: Mapping[str, Any], got: Any, place: Sequence[int | str]) -> str:
    if kind == "extra_forbidden":
        return f"there is no field {str(place[-1])[:80]!r} here"
    if kind == "missing":
        last = place[-1]
        return f"the field {last!r} is required" if isinstance(last, str) else f"{_name(place[:-1])} has no item {last}"
    name = _name(place)
    if kind in _SHOULD:
        numbers = {key: str(value).removesuffix(".0") for key, value in context.items()}
        should = _SHOULD[kind].format(**numbers).replace(" 1 items", " 1 item").replace(" 1 characters", " 1 character")
        return f"{name} should {should}, got {_shown(kind, got)}"
    told = message.removeprefix("Input should be ")
    if told != message:
        told = {"True": "true", "False": "false"}.get(told, told)  # a Literal of Python, whose words are quoted
        return f"{name} should be {told.removeprefix('a valid ')}, got {_shown(kind, got)}"
    # A sentence of our own has its subject; what else there is begins with the value.
    return message.removeprefix("Value error, ") if kind == "value_error" else f"{name} {message}"


def _name(place: Sequence[int | str]) -> str:
    """What a sentence calls a place: the innermost field, with its indices."""
    fields = [at for at, part in enumerate(place) if isinstance(part, str)]
    if not fields:
        return "the body" + "".join(f"[{index}]" for index in place)
    return str(place[fields[-1]])[:80] + "".join(f"[{index}]" for index in place[fields[-1] + 1 :])


def _shown(kind: str, got: Any) -> str:
    """A value as JSON would show it, cut short; of what is too long or too short, the length."""
    if kind in ("too_short", "too_long", "string_too_short", "string_too_long"):
        return str(len(got))
    if isinstance(got, Mapping):
        return "an object"
    if isinstance(got, list | tuple):
        return f"a list of {len(got)}"
    text = json.dumps(got, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class Input:
    """One named array an operation takes."""

    name: str
    doc: str
    dtypes: tuple[DType, ...]
    ranks: tuple[int, ...]
    required: bool = True
    nan: bool = False  # NaN allowed; infinities never are
    empty: bool = False  # an axis of length 0 allowed
    secret: bool = False  # erased from the store when the job is committed


@dataclass(frozen=True)
class Output:
    """One named result: an array, or a plain JSON value ("value": number, string, list or object)."""

    name: str
    doc: str
    kind: Literal["array", "value"] = "array"


@dataclass(frozen=True)
class Cost:
    """What one job needs, known before it starts.

    `bytes` are those of inputs, workspace and outputs together, all at once. `work` counts its elementary steps (an
    element touched, a path step, a multiply-add): a device's time for the operation is about a + b * work.
    """

    bytes: int
    work: float = 0.0

    @property
    def steps(self) -> float:
        """The work, or the bytes where the operation counts none."""
        return max(self.work or self.bytes, 1.0)


@dataclass(frozen=True)
class Grid:
    """How a job is cut into chunks on a device: a function of the job alone, so that its answer does not depend on how
    many chunks are in memory at a time, nor on where they run.

    `each` is what one chunk needs in device memory, `fixed` what the job needs beside its chunks, in bytes.
    """

    chunks: int
    each: int
    fixed: int = 0


@dataclass(frozen=True)
class Example:
    """A request that runs exactly as shown; inputs are nested lists with a dtype."""

    params: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Operation:
    """A named computation with one implementation per backend.

    `package` holds `cpu.py` and `gpu.py`, each with a function named like the operation:

        cpu.<name>(params, **inputs [, seed=int | key=bytes]) -> dict[output name, ndarray | JSON value]
        gpu.<name>(params, **inputs [, seed=int | key=bytes], device=Device) -> the same

    Inputs are C-contiguous NumPy arrays in host memory (possibly read-only memory maps), outputs are too.
    `randomness` says which generator feeds it: "seed" receives `seed` (0 <= seed < 2**64), "private" receives
    `key`, 32 bytes from the operating system that no caller chooses and nobody stores.
    `grid` is how a job is cut on a device; gpu.py cuts by it and nothing else (kernels.gpu.chunks).
    `check` sees the parameters and the inputs' descriptions together and raises InvalidRequest.
    `variants` are further requests that run as shown, one for each other piece of compiled code that parameters or
    dtypes select: workers run them ahead of the first user. Twins of examples in float32 need not be listed.
    `batching` says which jobs may run together; None where each runs alone.
    `spend` is what a job costs its privacy budget, None for one that names no budget; an operation without it never
    charges. A job that charges has the same `key` at every attempt, which depends on `release_version` too: raise it
    with every change of the answer's bytes.
    """

    name: str
    summary: str
    package: str
    params: type[Params]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    example: Example
    cost: Callable[[Any, Mapping[str, ArrayInfo]], Cost]
    check: Callable[[Any, Mapping[str, ArrayInfo]], None] = lambda params, inputs: None  # noqa: ARG005
    randomness: Literal["none", "seed", "private"] = "none"
    variants: tuple[Example, ...] = ()
    grid: Callable[[Any, Mapping[str, ArrayInfo]], Grid] = lambda params, inputs: Grid(1, 0)  # noqa: ARG005
    batching: Batching | None = None
    spend: Callable[[Any, Mapping[str, ArrayInfo]], Spend | None] | None = None
    release_version: str = ""

    @property
    def confidential(self) -> bool:
        """Whether it draws private randomness or takes a secret: what it held is overwritten, and its jobs run together
        with those of their own owner at most."""
        return self.randomness == "private" or any(given.secret for given in self.inputs)

    def secrets(self, inputs: Mapping[str, str]) -> list[str]:
        """Of the arrays that a job reads, by input, those that nobody keeps once it is done."""
        return [inputs[given.name] for given in self.inputs if given.secret and given.name in inputs]

    @property
    def coalescible(self) -> bool:
        """Whether one computation may answer several identical jobs: equal parameters, input arrays and chosen seed. A
        seed that was drawn for a job makes it like no other."""
        return not self.confidential

    def batch_key(self, params: Params, inputs: Mapping[str, ArrayInfo]) -> str | None:
        """What jobs have in common that may run together, as JSON; None for one that runs alone.

        The caller adds what the operation does not know: the backend that is wished for, and the owner of what is
        confidential.
        """
        if self.batching is None:
            return None
        cost = self.cost(params, inputs)
        if cost.steps > self.batching.steps or cost.bytes > self.batching.bytes:
            return None
        alike: list[Any] = []
        if self.batching.alike:
            alike = [{name: (info.dtype, info.shape) for name, info in inputs.items()}, params.model_dump(mode="json")]
        return json.dumps([self.name, *alike], sort_keys=True)

    def join(self, params: Params, jobs: Sequence[Mapping[str, Any]]) -> Joint | None:
        """One call for the inputs of several jobs with these parameters, of equal dtypes and shapes each. None where
        they run one after another."""
        if self.batching is None or not self.batching.alike:
            return None
        joint: Joint | None = importlib.import_module(f"{self.package}.batch").join(params, jobs)
        return joint

    def implementation(self, backend: Backend) -> Callable[..., dict[str, Any]]:
        """Import and return the function that computes this operation on a backend."""
        function: Callable[..., dict[str, Any]] = getattr(
            importlib.import_module(f"{self.package}.{backend}"), self.name
        )
        return function

    def validate(self, params: Mapping[str, Any], inputs: Mapping[str, ArrayInfo]) -> Params:
        """Return the parsed parameters, or raise InvalidRequest with what is wrong with them and with the inputs."""
        problems = list(self._input_problems(inputs))
        try:
            # JSON rules of strict mode: lists are tuples there, strings are literals.
            parsed = self.params.model_validate_json(json.dumps(dict(params)))
        except ValidationError as error:
            others, count = problems_of(error.errors(include_url=False), "/params")
            raise InvalidRequest(*problems, *others, count=len(problems) + count) from None
        if problems:
            raise InvalidRequest(*problems)
        self.check(parsed, inputs)
        return parsed

    def _input_problems(self, inputs: Mapping[str, ArrayInfo]) -> list[Problem]:
        known = {expected.name: expected for expected in self.inputs}
        problems = [
            Problem(
                f"/inputs/{name}",
                f"{self.name} has no input {name!r}; it takes {', '.join(known) or 'none'}",
            )
            for name in inputs
            if name not in known
        ]
        for expected in self.inputs:
            info = inputs.get(expected.name)
            at = f"/inputs/{expected.name}"
            if info is None:
                if expected.required:
                    problems.append(Problem(at, f"{self.name} needs the input {expected.name!r}: {expected.doc}"))
                continue
            if info.dtype not in expected.dtypes:
                problems.append(Problem(at, f"dtype {info.dtype} is not one of {', '.join(expected.dtypes)}"))
            if info.ndim not in expected.ranks:
                ranks = " or ".join(str(rank) for rank in expected.ranks)
                problems.append(Problem(at, f"shape {list(info.shape)} has rank {info.ndim}, expected rank {ranks}"))
            if info.size == 0 and not expected.empty:
                problems.append(Problem(at, f"the array is empty: its shape is {list(info.shape)}"))
            if info.has_inf:
                problems.append(Problem(at, "the array holds an infinity"))
            if info.has_nan and not expected.nan:
                problems.append(Problem(at, "the array holds a NaN"))
        return problems
