"""Values of the command line: parses a parameter from its text, and formats a result as text."""

import json
from typing import Any


def typed(text: str, schema: dict[str, Any]) -> Any:
    """Convert the text of a command-line parameter to the type in its JSON Schema: "1" is a number unless only strings
    are allowed."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:  # a bare word
        return text
    if type(value) in (int, float) and _is_amount(schema):
        return text  # it is what was written
    taken = _types(schema)
    return text if "string" in taken and taken.isdisjoint(_names(value)) else value


def _is_amount(schema: dict[str, Any]) -> bool:
    from warpdesk.amount import FORMAT

    return any(part.get("format") == FORMAT for part in (schema, *schema.get("anyOf", ())))


def _types(schema: dict[str, Any]) -> set[str]:
    """The JSON types that the JSON Schema of a command-line parameter allows."""
    found = {name for part in schema.get("anyOf", ()) for name in _types(part)}
    if "$ref" in schema:
        found.add("object")  # a model of its own
    if "enum" in schema or "const" in schema:
        return found.union(*(_names(value) for value in schema.get("enum", [schema.get("const")])))
    declared = schema.get("type", ())
    return found | ({declared} if isinstance(declared, str) else set(declared))


def _names(value: Any) -> set[str]:
    """The names that JSON Schema has for the type of a value of the command line."""
    if value is None:
        return {"null"}
    kinds = {bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}, str: {"string"}, list: {"array"}}
    return kinds.get(type(value), {"object"})


def in_short(value: Any) -> str:
    """Format a result for the terminal in one line: a number unchanged, an array by its shape and last numbers."""
    shape = getattr(value, "shape", None)
    if shape:
        last = " ".join(f"{number:.6g}" for number in value.reshape(-1)[-3:])
        return f"{'×'.join(str(length) for length in shape)} {value.dtype}, … {last}"
    if isinstance(value, float):
        return f"{value:.10g}"
    text = value if isinstance(value, str) else json.dumps(listed(value))
    return text if len(text) <= 100 else f"{text[:99]}…"


def listed(value: Any) -> Any:
    """Convert a result that `warpdesk submit` prints to JSON form: an array as nested lists, NaN as null, an infinity
    as a string."""
    import numpy as np

    from warpdesk.arrays import as_json
    from warpdesk.files import FileReference

    if isinstance(value, FileReference):
        return value.described.model_dump()
    if isinstance(value, dict):
        return {name: listed(part) for name, part in value.items()}
    if isinstance(value, list):
        return [listed(part) for part in value]
    return as_json(np.asarray(value)) if isinstance(value, float | np.ndarray) else value
