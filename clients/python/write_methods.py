"""Write the typed methods of the clients from the catalogue of operations: `make indicators`.

`warpdesk/operations.py` has a method and a result for each operation, `warpdesk/async_operations.py` the same methods
for asyncio. The client needs nothing of the service, so it has them as plain code.
"""

import keyword
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from warpdesk.calls import NanPolicy, Result, RunOptions
from warpdesk_server.kernels.catalogue import CATALOGUE
from warpdesk_server.kernels.operation import Computation
from warpdesk_server.kernels.plans import Plan

# Of a plan the caller names the inputs, so that `run` alone can take it.
COMPUTATIONS = {name: each for name, each in CATALOGUE.items() if not isinstance(each, Plan)}
PACKAGE = Path(__file__).resolve().parent / "warpdesk"
WIDTH = 120

_HEAD = '''\
"""The {kind}'s method for each operation, with types: written by clients/python/write_methods.py."""

# ruff: noqa: A002 (operations have parameters that are called like builtins)

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

'''
_CALLS = "from warpdesk.calls import NanPolicy, Numbers, Result, RunOptions, given, typed\n"
_RUN = '''

class {name}(ABC):
    """A method for each operation: inputs are arrays, frames, lists or uploaded arrays, options those of `run`."""

    @abstractmethod
    {run}(self, operation: str, *, params: Mapping[str, Any] | None = None, **fields: Any) -> Result: ...
'''


def sync_methods() -> str:
    """The text of `warpdesk/operations.py`."""
    head = _HEAD.format(kind="client") + "from warpdesk.arrays import AnyArray\n" + _CALLS
    results = "".join(_result(operation) for operation in COMPUTATIONS.values())
    methods = "".join(_method(operation) for operation in COMPUTATIONS.values())
    return head + results + _RUN.format(name="Operations", run="def run") + methods


def async_methods() -> str:
    """The text of `warpdesk/async_operations.py`."""
    results = "".join(f"    {name},\n" for name in sorted(map(_title, COMPUTATIONS), key=str.lower))
    head = _HEAD.format(kind="asynchronous client") + _CALLS + f"from warpdesk.operations import (\n{results})\n"
    methods = "".join(_method(operation, awaited=True) for operation in COMPUTATIONS.values())
    return head + _RUN.format(name="AsyncOperations", run="async def run") + methods


def _title(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_")) + "Result"


def _result(operation: Computation) -> str:
    lines = [f"class {_title(operation.name)}(Result):", f'    """The result of `{operation.name}`."""', ""]
    lines += [
        f"    {output.name}: {'AnyArray' if output.kind == 'array' else 'Any'}"
        for output in operation.outputs
        if not hasattr(Result, output.name) and output.name not in Result.__annotations__
    ]
    return "\n\n" + "\n".join(lines).rstrip() + "\n"


def _method(operation: Computation, *, awaited: bool = False) -> str:
    name, title = operation.name, _title(operation.name)
    needed = [each.shown for each in operation.inputs if each.required]
    optional = [each.shown for each in operation.inputs if not each.required]
    schema = operation.params.model_json_schema()
    fields: Mapping[str, Any] = schema.get("properties", {})
    either = {*optional} & {*fields}  # an array, or a parameter of the same name: one number for all
    fields = {each: field for each, field in fields.items() if each not in either}
    names = [*needed, *optional, *fields]
    taken = {*keyword.kwlist, *RunOptions.__annotations__, "self", "options"}
    if odd := sorted(taken & set(names)) or len(set(names)) < len(names):
        raise ValueError(f"{name}: arguments of a method have names of their own: {odd}")
    required = set(schema.get("required", ()))
    items = ["self", *(f"{each}: Numbers" for each in needed), *(["*"] if optional or fields else [])]
    items += [f"{each}: Numbers | {'float | ' * (each in either)}None = None" for each in optional]
    items += [_parameter(each, field, each in required) for each, field in fields.items()]
    items.append("**options: Unpack[RunOptions]")
    run, wait = ("async def", "await ") if awaited else ("def", "")
    return "\n".join(
        [
            "",
            *_laid_out(4, f"{run} {name}(", items, f") -> {title}:"),
            *(f"        {line}".rstrip() for line in _documented(operation, fields, awaited=awaited)),
            *_laid_out(8, "fields = given(", [f"{each}={each}" for each in names], ")"),
            *_laid_out(8, "return typed(", [title, f'{wait}self.run("{name}", params=fields, **options)'], ")"),
            "",
        ]
    )


def _laid_out(indent: int, head: str, items: list[str], tail: str) -> list[str]:
    """A definition or call as the formatter lays it out: in one line, in three, or with a line for each item."""
    at, inside = " " * indent, " " * (indent + 4)
    line = at + head + ", ".join(items) + tail
    if len(line) <= WIDTH:
        return [line]
    line = inside + ", ".join(items)
    if len(line) <= WIDTH:
        return [at + head, line, at + tail]
    lines = [at + head]
    for item in items:
        if len(inside + item) < WIDTH:
            lines.append(f"{inside}{item},")
        else:  # a long Literal
            kind, values, default = re.fullmatch(r"(.*?\[)(.*)(\].*)", item).groups()  # type: ignore[union-attr]
            lines += _laid_out(indent + 4, kind, values.split(", "), f"{default},")
    return [*lines, at + tail]


def _parameter(name: str, field: Mapping[str, Any], required: bool) -> str:
    default = field.get("default")
    kind = "NanPolicy" if _is_of_gaps(name, field) else _type(field)
    if not required and default is None and "None" not in kind:
        kind += " | None"
    return f"{name}: {kind}" if required else f"{name}: {kind} = {_text(default)}"


def _type(field: Mapping[str, Any]) -> str:
    """The type that a parameter's JSON Schema means."""
    if "const" in field:
        return f"Literal[{_text(field['const'])}]"
    if "enum" in field:
        return f"Literal[{', '.join(map(_text, field['enum']))}]"
    if "anyOf" in field:
        kinds = dict.fromkeys(kind for each in field["anyOf"] for kind in _type(each).split(" | "))
        return " | ".join(sorted(kinds, key=lambda kind: kind == "None"))
    if field.get("type") == "array":
        items = field.get("items")
        return f"Sequence[{_type(items) if items else 'Any'}]"
    plain = {"integer": "int", "number": "float", "boolean": "bool", "string": "str", "null": "None"}
    return plain.get(field.get("type", ""), "Mapping[str, Any]")


def _is_of_gaps(name: str, field: Mapping[str, Any]) -> bool:
    """Whether a parameter is the policy for gaps that indicators have."""
    return name == "nan_policy" and field.get("enum") == list(get_args(NanPolicy))


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"({', '.join(map(_text, value))})"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _documented(operation: Computation, fields: Mapping[str, Any], *, awaited: bool) -> Iterator[str]:
    if awaited:
        yield from _wrapped(f'"""{operation.summary} Arguments are those of `Client.{operation.name}`."""')
        return
    yield from _wrapped(f'"""{operation.summary}')
    yield ""
    yield "Args:"
    for each in operation.inputs:
        yield from _wrapped(f"{each.shown}: {each.doc}", "    ")
    for name, field in fields.items():
        gaps = _is_of_gaps(name, field)
        doc = "what gaps do: see the reference of indicators" if gaps else field.get("description", "")
        if words := "; ".join(part for part in (doc, _range(field)) if part):
            yield from _wrapped(f"{name}: {words}", "    ")
    yield ""
    yield "Returns:"
    for output in operation.outputs:
        yield from _wrapped(f"{output.name}: {output.doc}", "    ")
    yield '"""'


def _range(field: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        one, *others = field["anyOf"]
        return f"{words}, or a list of such" if (words := _range(one)) and others[0].get("items") == one else ""
    if "minimum" in field and "maximum" in field:
        return f"{field['minimum']:,} to {field['maximum']:,}"
    return ""


def _wrapped(text: str, indent: str = "") -> list[str]:
    if "\\" in text:
        raise ValueError(f"a backslash in {text!r}")
    return textwrap.wrap(
        text, WIDTH - 8, initial_indent=indent, subsequent_indent=indent + "    " * bool(indent), break_on_hyphens=False
    )


FILES = {PACKAGE / "operations.py": sync_methods, PACKAGE / "async_operations.py": async_methods}

if __name__ == "__main__":
    for path, text in FILES.items():
        path.write_text(text())
