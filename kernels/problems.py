"""Problems of an invalid request, each a JSON pointer and a sentence, also made from pydantic's errors."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

MOST_LISTED = 20  # problems of a request that are put into words: it may have a million


@dataclass(frozen=True)
class Problem:
    """One problem of a request, such as an operation's parameter: its place (a JSON pointer such as "/params/period")
    and a sentence."""

    pointer: str
    detail: str


class InvalidRequest(ValueError):
    """Raised if the parameters or inputs of a request do not fit the operation.

    `problems` lists them, the first 20 in words; `count` is their number.
    """

    def __init__(self, *problems: Problem, count: int | None = None) -> None:
        super().__init__("; ".join(f"{problem.pointer}: {problem.detail}" for problem in problems))
        self.problems = problems
        self.count = len(problems) if count is None else count

    def __reduce__(self) -> tuple[Any, ...]:
        """How it is sent to another process: an exception is made again of its message otherwise."""
        return partial(InvalidRequest, *self.problems, count=self.count), ()


def refuse(pointer: str, detail: str) -> InvalidRequest:
    return InvalidRequest(Problem(pointer, detail))


def problems_of(
    findings: Sequence[Mapping[str, Any]],
    root: str = "",
    omit: frozenset[str] = frozenset(),
    fields: Sequence[str] = (),
) -> tuple[list[Problem], int]:
    """The first 20 of pydantic's errors (`ValidationError.errors()`) as problems of a request, and the count of all.

    Parts of a location that are in `omit` are left out: pydantic adds them, and the request does not have them.
    `fields` are those that may stand at the root, for a sentence about one that may not.
    """
    found = [entry for entry in findings if not _is_echo(entry)]
    return [_problem_of(entry, root, omit, fields) for entry in found[:MOST_LISTED]], len(found)


def _is_echo(entry: Mapping[str, Any]) -> bool:
    """Whether an error says that a parameter's list is too short only because an invalid item is left out of it. That
    item has its own error."""
    return entry["type"] == "too_short" and len(entry["input"]) >= entry["ctx"]["min_length"]


def _problem_of(entry: Mapping[str, Any], root: str, omit: frozenset[str], fields: Sequence[str]) -> Problem:
    place = [part for part in entry["loc"] if part not in omit]
    pointer = root + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in place)
    sentence = _sentence(entry["type"], entry["msg"], entry.get("ctx", {}), entry["input"], place)
    if fields and entry["type"] == "extra_forbidden" and len(place) == 1:
        sentence += f"; there are {', '.join(fields)}"
    return Problem(pointer, sentence)


# By pydantic's error type: what should be true of the field.
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
    rest = message.removeprefix("Input should be ")
    if rest != message:
        rest = {"True": "true", "False": "false"}.get(rest, rest)  # Python's booleans, as JSON writes them
        return f"{name} should be {rest.removeprefix('a valid ')}, got {_shown(kind, got)}"
    # Our own sentences have a subject. pydantic's other messages need the field's name before them.
    return message.removeprefix("Value error, ") if kind == "value_error" else f"{name} {message}"


def _name(place: Sequence[int | str]) -> str:
    """The name of a place in a request, such as an operation's parameter, for a sentence: the innermost field with its
    indices."""
    fields = [at for at, part in enumerate(place) if isinstance(part, str)]
    if not fields:
        return "the body" + "".join(f"[{index}]" for index in place)
    return str(place[fields[-1]])[:80] + "".join(f"[{index}]" for index in place[fields[-1] + 1 :])


def _shown(kind: str, got: Any) -> str:
    """A value in a request, such as an operation's parameter, as shortened JSON; if its length is the problem, its
    length."""
    if kind in ("too_short", "too_long", "string_too_short", "string_too_long"):
        return str(len(got))
    if isinstance(got, Mapping):
        return "an object"
    if isinstance(got, list | tuple):
        return f"a list of {len(got)}"
    text = json.dumps(got, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
